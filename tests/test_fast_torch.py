"""The faster layers and the faster optimizer do what PyTorch's own do."""
import copy
import io

import pytest
import torch
from torch import nn, optim

from common import fast_torch
from common.mpi_pytorch import setup_pytorch_for_mpi


@pytest.mark.parametrize('slow', [True, False])
def test_fast_tanh_and_its_first_two_derivatives_are_those_of_tanh(slow, monkeypatch):
    monkeypatch.setattr(fast_torch, 'SLOW_TANH', slow)
    x = torch.linspace(-20, 20, 401, dtype=torch.double, requires_grad=True)
    fast = lambda x: fast_torch.Tanh()(x + 0)                               # which it may overwrite
    torch.testing.assert_close(fast(x), torch.tanh(x))
    torch.testing.assert_close(fast(x.float()), torch.tanh(x.float()), rtol=0, atol=3e-7)
    assert torch.autograd.gradcheck(fast, x) and torch.autograd.gradgradcheck(fast, x)


@pytest.mark.parametrize('sizes', [(3, 64), (64, 64), (64, 2)])
def test_fast_linear_and_its_gradients_are_those_of_linear(sizes):
    torch.manual_seed(0)
    fast, plain = fast_torch.Linear(*sizes), nn.Linear(*sizes)
    x, grad = torch.randn(501, sizes[0]), torch.randn(501, sizes[1])
    plain.load_state_dict(fast.state_dict())
    torch.testing.assert_close(fast(x), plain(x))
    for layer in (fast, plain):
        layer(x).backward(grad)
    for p, q in zip(fast.parameters(), plain.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-4)
        assert p.grad.is_contiguous()


def test_fast_sequential_and_relu_are_those_of_pytorch():
    torch.manual_seed(0)
    fast = fast_torch.Sequential(fast_torch.Linear(5, 7), fast_torch.ReLU(), fast_torch.Linear(7, 3), nn.Identity())
    plain = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3), nn.Identity())
    plain.load_state_dict(fast.state_dict())
    x = torch.randn(11, 5)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    outputs = [net(each) for net, each in zip((fast, plain), inputs)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        (output**2).sum().backward()
    for p, q in zip([inputs[0], *fast.parameters()], [inputs[1], *plain.parameters()]):
        torch.testing.assert_close(p.grad, q.grad)
    assert torch.equal(inputs[0], x)                                        # what it overwrites is its own
    hidden = nn.functional.linear(x, *fast[0].parameters())
    assert fast[1](hidden) is hidden and (hidden >= 0).all() and (hidden == 0).any()


@pytest.mark.parametrize('lr', [1e-3, 0.3])
def test_fast_adam_makes_the_steps_of_adam(lr):
    """Also when a parameter has no gradient for some steps, and when saved and loaded in between, into either kind."""
    torch.manual_seed(0)
    params = [torch.randn(3, 2), torch.randn(4), torch.randn(())]
    ours, theirs = [[p.clone().requires_grad_() for p in params] for _ in range(2)]
    fast, plain = fast_torch.Adam(ours, lr=lr), optim.Adam(theirs, lr=lr, fused=True)

    def step(without=()):
        for i, (p, q) in enumerate(zip(ours, theirs)):
            p.grad = None if i in without else torch.randn_like(p)
            q.grad = copy.deepcopy(p.grad)
        fast.step()
        plain.step()
        for p, q in zip(ours, theirs):
            assert torch.equal(p, q)
    for without in [(), (), (1,), (1, 2), (), (), (0,), ()]:
        step(without)
    assert fast.state[ours[0]]['step']._base is not None                    # it did go the fast way
    assert [fast.state[p]['step'].item() for p in ours] == [7, 6, 7]
    file = io.BytesIO()
    torch.save(fast.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    fast, plain = fast_torch.Adam(ours, lr=lr), optim.Adam(theirs, lr=lr, fused=True)
    for optimizer in (fast, plain):
        optimizer.load_state_dict(copy.deepcopy(saved))
    for _ in range(3):
        step()
    assert [fast.state[p]['step'].item() for p in ours] == [10, 9, 10]


def test_fast_adam_follows_a_schedule_of_the_learning_rate():
    p = torch.zeros(2, requires_grad=True)
    optimizer = fast_torch.Adam([p], lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    for expected in (-1.0, -1.1, -1.11):
        p.grad = torch.ones(2)
        optimizer.step()
        schedule.step()
        torch.testing.assert_close(p.detach(), torch.full((2,), expected), rtol=1e-4, atol=0)


@pytest.mark.parametrize('told', [None, '2'])
def test_one_thread_unless_told_otherwise(told, monkeypatch):
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    if told:
        monkeypatch.setenv('OMP_NUM_THREADS', told)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    setup_pytorch_for_mpi()
    assert torch.get_num_threads() == (2 if told else 1)
    torch.set_num_threads(before)


def test_numbers_below_the_normal_ones_are_zero():
    setup_pytorch_for_mpi()
    assert torch.tensor(1e-20) * torch.tensor(1e-20) == 0
    torch.set_flush_denormal(False)
    assert torch.tensor(1e-20) * torch.tensor(1e-20) > 0
