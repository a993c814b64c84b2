"""A recording does what the function does, to the last bit; and where it cannot, the function is called."""
import importlib
import sys
import warnings
from collections import defaultdict
from copy import deepcopy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import nn

from common import record_torch
from common.fast_torch import Adam
from common.record_torch import Recorder
from helpers import SmallEnv, make_args


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Recorded and checked at every tenth call. A warning is an error, unless it is expected."""
    monkeypatch.setattr(Recorder, 'PERIOD', 10)
    monkeypatch.setattr(record_torch, 'debugging', lambda: False)          # also where the tests are traced
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        yield


# The three algorithms.

def make_agent(algo, recorded=True, **changes):
    file = importlib.import_module(f'{algo}_torch')
    env = SmallEnv(Box(-1, 1, (4,)), Box(np.float32([-1, 0, -2]), np.float32([1, 1, 2])))
    agent = file.Agent(env, np.random.default_rng(0), make_args(getattr(file, algo), **changes,
                                                                ac_kwargs=dict(hidden_sizes=(8, 8))))
    if not recorded:
        del agent.update_once                                              # the Recorder, so that the method is left
    return agent


def make_batches(agent, rng, n, size=5):
    draw = lambda *shape: rng.standard_normal((n, size, *shape), dtype=np.float32)
    batches = dict(obs=draw(4), act=draw(3), rew=draw(), next_obs=draw(4), terminated=np.float32(draw() > 1))
    return batches, rng.standard_normal((n, agent.noises, size, 3), dtype=np.float32)


def optimizers(agent):
    return [part for part in vars(agent).values() if isinstance(part, torch.optim.Optimizer)]


def state(agent):
    """Every tensor that an update may change, as bytes."""
    tensors = [*agent.params, *agent.params_targ, *getattr(agent, 'temperature', [])]
    tensors += [x for optimizer in optimizers(agent) for each in optimizer.state.values() for x in each.values()]
    return [x.detach().numpy().tobytes() for x in tensors]


def assert_same(agents, rng, n, size=5):
    """n updates of both agents, on the same batches, have the same results and leave the same state."""
    batches = make_batches(agents[0], rng, n, size)
    for one, other in zip(*[agent.update(*batches) for agent in agents], strict=True):
        assert [(key, type(x), np.asarray(x).tobytes()) for key, x in one.items()] == \
               [(key, type(x), np.asarray(x).tobytes()) for key, x in other.items()]
    assert state(agents[0]) == state(agents[1]) and agents[0].updates == agents[1].updates


VARIANTS = [('ddpg', {}, 1), ('td3', dict(policy_delay=1), 1), ('td3', dict(policy_delay=2), 2),
            ('td3', dict(policy_delay=3), 2), ('sac', {}, 1), ('sac', dict(alpha='auto'), 1)]


@pytest.mark.parametrize('algo, changes, recordings', VARIANTS)
def test_played_back_an_update_is_the_same_to_the_last_bit(algo, changes, recordings, monkeypatch):
    agents, rng = [make_agent(algo, recorded, **changes) for recorded in (True, False)], np.random.default_rng(1)
    recorder, steps = agents[0].update_once, []
    for n in (1, 4, 30, 2, 23):
        assert_same(agents, rng, n)
    assert recorder.enabled and len(recorder.recordings) == recordings
    monkeypatch.setattr(Adam, 'step', lambda self: steps.append(self))
    agents[0].update(*make_batches(agents[0], rng, 3))
    assert len(steps) <= 4                                                 # but for a check, nothing calls it any more
    assert next(iter(state(agents[0]))) != next(iter(state(agents[1])))


def test_not_a_number_is_the_same_as_itself():
    agents = [make_agent('sac', recorded) for recorded in (True, False)]
    for agent in agents:
        agent.params[0].data[0] = np.nan
    assert_same(agents, np.random.default_rng(1), 25)
    assert agents[0].params[-1].isnan().all() and agents[0].update_once.recordings


def test_other_shapes_have_recordings_of_their_own():
    agents, rng = [make_agent('sac', recorded) for recorded in (True, False)], np.random.default_rng(1)
    for size in (5, 6, 5, 6, 7):
        assert_same(agents, rng, 7, size)
    assert len(agents[0].update_once.recordings) == 2


def load_state(optimizer):
    optimizer.load_state_dict(deepcopy(optimizer.state_dict()))


def replace_state(optimizer):
    optimizer.state = defaultdict(dict, {p: deepcopy(state) for p, state in optimizer.state.items()})


def change_lr(optimizer):
    optimizer.param_groups[0]['lr'] = 0.1


@pytest.mark.parametrize('change', [load_state, replace_state, change_lr])
def test_another_state_of_an_optimizer_is_noticed_at_once(change):
    agents, rng = [make_agent('sac', recorded) for recorded in (True, False)], np.random.default_rng(1)
    recorder = agents[0].update_once
    assert_same(agents, rng, 12)
    for agent in agents:
        change(agent.pi_optimizer)
    assert recorder.recordings
    assert_same(agents, rng, 5)
    assert not recorder.recordings
    assert_same(agents, rng, 12)
    assert recorder.recordings and recorder.enabled


def test_networks_of_ones_own_and_several_processes_are_not_recorded(monkeypatch):
    for algo in ('ddpg', 'td3', 'sac'):
        file = importlib.import_module(f'{algo}_torch')
        assert make_agent(algo).update_once.enabled
        own = type('Own', (file.MLPActorCritic,), {})
        assert not make_agent(algo, actor_critic=own).update_once.enabled
        monkeypatch.setattr(file, 'num_procs', lambda: 2)
        assert not make_agent(algo).update_once.enabled


# Functions that are more than their operations on tensors.

class Learner:
    """Something to record: one step of a layer. change() is what somebody adds to it."""

    def __init__(self, change=lambda self, loss: None):
        torch.manual_seed(0)
        self.layer, self.change, self.count, self.rate = nn.Linear(3, 2), change, 0, 1.0
        self.optimizer = Adam(self.layer.parameters(), lr=0.01)

    def step(self, x):
        loss = self.rate * (self.layer(x)**2).mean()
        loss.backward()
        change = self.change(self, loss)
        self.optimizer.step()
        self.optimizer.zero_grad()                  # at the end: what an attempt left in .grad would be added to
        return dict(Loss=loss.item(), **(change or {}))

    def state(self):
        return [x.detach().clone() for x in self.layer.parameters()], self.count


def run(change, calls=35, between=lambda learner, i: None):
    """A recorder and a learner left alone, after the same calls with the same results."""
    one, other, rng = Learner(change), Learner(change), np.random.default_rng(0)
    recorder = Recorder(one.step)
    for i in range(calls):
        x = torch.as_tensor(rng.standard_normal((5, 3), dtype=np.float32))
        for learner in (one, other):
            between(learner, i)
        torch.manual_seed(i)
        expected = other.step(x)
        random_state = torch.get_rng_state()
        torch.manual_seed(i)
        assert recorder(x) == expected
        assert torch.equal(torch.get_rng_state(), random_state)
        assert all(map(torch.equal, one.state()[0], other.state()[0])) and one.count == other.count
    return recorder


def count(self, loss):
    self.count += 1


def count_and_fail(self, loss):
    with torch.no_grad():
        self.layer.bias.add_(0.1)
    self.count += 1
    if loss.item() > 1e9:
        raise RuntimeError


def add_loss(self, loss):
    self.layer.bias.data.sub_(float(loss.detach()) / 100)


def print_loss(self, loss):
    print(loss.item())


CHANGES = dict(count=(count, 'changes count'), use_a_number=(count_and_fail, 'NumberFromTensor'),
               print=(print_loss, 'a number out of a tensor'),
               float=(add_loss, 'TypeError|RuntimeError'),
               numpy=(lambda self, loss: dict(Size=np.abs(self.layer.bias.detach().numpy()).sum()), 'out of a tensor'),
               other_output=(lambda self, loss: dict(Rate=self.rate), 'other things than'))


@pytest.mark.parametrize('name', CHANGES)
def test_what_cannot_be_recorded_is_called(name):
    """And nothing is done twice, or half: neither to tensors nor to attributes."""
    change, message = CHANGES[name]
    with pytest.warns(UserWarning, match=message) as caught:
        recorder = run(change)
    assert len(caught) == 1 and 'Learner.step' in str(caught[0].message) and '\n' not in str(caught[0].message)
    assert not recorder.enabled


def test_random_numbers_of_pytorch_are_drawn_alike():
    def add_noise(self, loss):
        with torch.no_grad():
            self.layer.bias.add_(torch.randn(2))
    assert run(add_noise).recordings


def test_the_default_of_a_loss_is_kept():
    """torch.binary_cross_entropy_with_logits(x, y) alone does not take the mean, unlike the operation behind it."""
    def entropy(self, loss):
        return dict(Entropy=nn.functional.binary_cross_entropy_with_logits(self.layer.bias, torch.ones(2)).item())
    assert run(entropy).recordings


def test_an_out_argument_is_noticed():
    def double(self, loss):
        with torch.no_grad():
            torch.add(self.layer.bias, self.layer.bias, out=self.layer.bias)
    run(double)


@pytest.mark.parametrize('when', [10, 15, 19])
def test_a_changed_attribute_is_noticed_by_the_next_check(when):
    """The state that remains is the function's, from that of the recording before."""
    learner, rng = Learner(), np.random.default_rng(0)
    recorder = Recorder(learner.step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for i in range(30):
            x = torch.as_tensor(rng.standard_normal((5, 3), dtype=np.float32))
            if i == when:
                learner.rate = 3.0
            if i == 19:
                expected = Learner()
                expected.rate = 3.0
                expected.layer.load_state_dict(learner.layer.state_dict())
                expected.optimizer.load_state_dict(deepcopy(learner.optimizer.state_dict()))
            loss = recorder(x)
            if i >= 19:
                assert loss == expected.step(x)
                assert all(map(torch.equal, learner.state()[0], expected.state()[0]))
            assert len(caught) == (i >= 19)
    assert 'tensors otherwise' in str(caught[0].message)


def test_a_branch_that_is_taken_later_is_noticed_by_the_next_check():
    """Also when the function then changes fewer tensors than its recording."""
    def jump(self, loss):
        if self.rate == 1:
            self.layer.bias.data.add_(1)
    learner, x = Learner(jump), torch.ones(5, 3)
    recorder = Recorder(learner.step)
    for _ in range(12):
        recorder(x)
    assert recorder.recordings
    learner.rate = 2.0
    with pytest.warns(UserWarning, match='cannot repeat'):
        for _ in range(7):
            recorder(x)
        before = learner.layer.bias.clone()
        recorder(x)
    assert (learner.layer.bias - before).abs().max() < 0.1                  # a step of Adam; the recording would add 1


@pytest.mark.parametrize('what', ['tensor', 'output'])
def test_a_difference_in_tensors_or_outputs_alone_is_noticed(what):
    weight, factors = torch.zeros(3), dict(tensor=1, output=1)

    def add(x):
        weight.add_(x * factors['tensor'])
        return dict(Sum=(x * factors['output']).sum().item())
    recorder = Recorder(add)
    for _ in range(19):
        recorder(torch.ones(3))
    assert recorder.recordings and weight.tolist() == [19, 19, 19]
    factors[what] = 2
    with pytest.warns(UserWarning, match='tensors otherwise'):
        assert recorder(torch.ones(3)) == dict(Sum=3 * factors['output'])
    assert weight.tolist() == [19 + factors['tensor']] * 3


def test_views_of_one_memory_are_put_back():
    weights = torch.zeros(3), torch.zeros(3)

    def add(x, weight=weights[0]):
        weight[:2].add_(x[:2])
        weight.mul_(0.9)
        return dict(Sum=weight.sum().item())
    recorder = Recorder(add)
    for _ in range(25):
        assert recorder(torch.ones(3)) == add(torch.ones(3), weights[1])
        assert torch.equal(*weights)
    assert recorder.recordings


def test_a_value_of_an_argument_has_its_own_recording():
    weight = torch.zeros(3)

    def add(x, sign):
        weight.add_(x if sign > 0 else -x)
        return dict(Sum=weight.sum().item())
    recorder = Recorder(add)
    for i in range(60):
        assert recorder(torch.ones(3), 1 if i % 3 else -1)['Sum'] == weight.sum()
    assert len(recorder.recordings) == 2 and weight.tolist() == [20, 20, 20]


def test_under_a_tracer_the_function_is_called(monkeypatch):
    monkeypatch.undo()                                                      # the real debugging()
    monkeypatch.setattr(Recorder, 'PERIOD', 10)
    learner, x, lines = Learner(count), torch.ones(5, 3), []
    learner.change = lambda self, loss: lines.append(1)                     # neither attribute nor tensor: not noticed
    recorder, tracer = Recorder(learner.step), sys.gettrace()
    try:
        sys.settrace(None)
        for _ in range(15):
            recorder(x)
        called = len(lines)
        assert recorder.recordings and called < 15
        sys.settrace(lambda *_: None)
        for _ in range(15):
            recorder(x)
    finally:
        sys.settrace(tracer)
    assert len(lines) == called + 15


def test_nothing_is_recorded_before_its_time(monkeypatch):
    monkeypatch.undo()
    assert Recorder.PERIOD == 1000
    monkeypatch.setattr(record_torch, 'record', None)
    learner = Learner()
    recorder = Recorder(learner.step)
    for _ in range(999):
        recorder(torch.ones(5, 3))
    assert recorder.enabled and not recorder.recordings
