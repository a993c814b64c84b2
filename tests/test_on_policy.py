"""The mathematics of VPG, PPO and TRPO, each equation against an independent computation; and their training loop."""
import copy
import inspect
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import ppo_torch
import trpo_torch
import vpg_torch
from common.env_tools import make_env
from common.errors import UserError
from common.logx import read_progress
from helpers import SmallEnv, make_args

VPG = SimpleNamespace(name='vpg', file=vpg_torch, train=vpg_torch.vpg, Buffer=vpg_torch.VPGBuffer)
PPO = SimpleNamespace(name='ppo', file=ppo_torch, train=ppo_torch.ppo, Buffer=ppo_torch.PPOBuffer)
TRPO = SimpleNamespace(name='trpo', file=trpo_torch, train=trpo_torch.trpo, Buffer=trpo_torch.GAEBuffer)
each_algo = pytest.mark.parametrize('algo', [VPG, PPO, TRPO], ids=lambda algo: algo.name)
SPACES = dict(discrete=Discrete(4), box=Box(-1, 1, (2,)))
each_action_space = pytest.mark.parametrize('action_space', SPACES.values(), ids=SPACES)


# %% Tools
def make_agent(algo, action_space, /, seed=0, hidden_sizes=(8,), **kwargs):
    """An agent for observations of three numbers."""
    args = make_args(algo.train, ac_kwargs=dict(hidden_sizes=hidden_sizes), **kwargs)
    return algo.file.Agent(make_env(lambda: SmallEnv(action_space=action_space)), np.random.default_rng(seed), args)


def make_data(algo, agent, action_space, seed=0, n=64):
    """An epoch's data as the buffer would give it: random but for the actions, which are the policy's own."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((n, 3)).astype(np.float32)
    noise = algo.file.draw_noise(rng, n, action_space)
    act = np.array([agent.act(*pair) for pair in zip(obs, noise)], dtype=np.float32)
    adv, ret = rng.standard_normal((2, n)).astype(np.float32)
    _, logp, _ = agent.evaluate(obs, act, obs)
    return dict(obs=obs, act=act, adv=adv, ret=ret, logp=logp)


def as_torch(dist):
    """One of our distributions as one of PyTorch's."""
    if hasattr(dist, 'mu'):
        return Independent(Normal(dist.mu, torch.exp(dist.log_std)), 1)
    return torch.distributions.Categorical(logits=dist.log_probs)


def in_float64(module, data):
    """An exact copy of a network, and the data, for computations without rounding errors to speak of."""
    data = {key: torch.as_tensor(array, dtype=torch.float64) for key, array in data.items()}
    return copy.deepcopy(module).double(), SimpleNamespace(**data)


def finite_differences(function, x, eps=1e-6):
    """The gradient of a function of a vector, by central differences."""
    return torch.stack([(function(x + step) - function(x - step)) / (2 * eps) for step in eps * torch.eye(len(x))])


def flat(module):
    return parameters_to_vector(module.parameters()).detach().clone()


def adam(params, gradient, lr, steps):
    """Adam, from its paper."""
    m, v = torch.zeros_like(params), torch.zeros_like(params)
    for t in range(1, steps + 1):
        g = gradient(params)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        params = params - lr * (m / (1 - 0.9**t)) / (torch.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return params


def gradient_of(loss, module):
    """The gradient of loss(module) as a function of the parameters in one vector."""
    def gradient(params):
        vector_to_parameters(params, module.parameters())
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(module), list(module.parameters()))])
    return gradient


def record(monkeypatch, owner, name):
    """Let a method keep its arguments in the list that is returned."""
    calls, original = [], getattr(owner, name)

    def recording(self, *args):
        calls.append(copy.deepcopy(args))
        return original(self, *args)
    monkeypatch.setattr(owner, name, recording)
    return calls


def run(algo, env, folder, /, **kwargs):
    """A short training; returns the agent, and the columns and rows of its progress.txt."""
    small = dict(steps_per_epoch=30, epochs=2, train_v_iters=2, train_pi_iters=2, ac_kwargs=dict(hidden_sizes=(8,)))
    known = {key: val for key, val in small.items() if key in inspect.signature(algo.train).parameters}
    agent = algo.train(lambda: env, logger_kwargs=dict(output_dir=str(folder)), **{**known, **kwargs})
    return agent, *read_progress(folder / 'progress.txt')


def chi_square_fits(counts, probs):
    """Whether counts may well come from probs: a bound that one fair draw in some thousand exceeds."""
    expected, df = probs * sum(counts), len(probs) - 1
    return ((counts - expected)**2 / expected).sum() < df + 5 * np.sqrt(2 * df)


def kolmogorov_smirnov_fits(samples, cdf):
    """Whether samples may well come from the distribution with this cdf, in the same sense."""
    n = len(samples)
    return np.abs(cdf(np.sort(samples)) - (np.arange(n) + 0.5) / n).max() < 2 / np.sqrt(n)


def normal_cdf(x):
    return torch.special.ndtr(torch.as_tensor(x, dtype=torch.float64)).numpy()


# %% Buffer: advantages and rewards to go
def brute_force(rew, val, paths, last_val, gamma, lam):
    """adv and ret as double sums, straight from their definitions."""
    adv, ret, start = np.zeros(len(rew)), np.zeros(len(rew)), 0
    for (end, terminated), bootstrap in zip(paths, last_val):
        values = [*val[start:end], 0 if terminated else bootstrap]
        for t in range(start, end):
            ret[t] = sum(gamma**(k - t) * rew[k] for k in range(t, end)) + gamma**(end - t) * values[-1]
            adv[t] = sum((gamma * lam)**(k - t) * (rew[k] + gamma * values[k + 1 - start] - values[k - start])
                         for k in range(t, end))
        start = end
    return adv, ret


def fill(buf, rng, last_terminated):
    """An epoch of random numbers, in trajectories that terminate or are cut; returns val, paths, last_val."""
    ends = [*sorted(rng.choice(np.arange(1, buf.size), size=rng.integers(6), replace=False)), buf.size]
    paths = [(end, bool(rng.integers(2))) for end in ends[:-1]] + [(buf.size, last_terminated)]
    for t in range(buf.size):
        buf.store(rng.standard_normal(3), rng.standard_normal(2), rng.standard_normal())
        for end, terminated in paths:
            if t + 1 == end:
                buf.finish_path(rng.standard_normal(3), terminated)
    return rng.standard_normal(buf.size), paths, rng.standard_normal(len(paths))


@each_algo
@pytest.mark.parametrize('gamma', [0, 0.9, 1])
@pytest.mark.parametrize('lam', [0, 0.9, 1])
@pytest.mark.parametrize('last_terminated', [True, False])
def test_adv_and_ret_are_their_definitions(algo, gamma, lam, last_terminated, monkeypatch):
    monkeypatch.setattr(algo.file, 'mpi_statistics_scalar', lambda x: (0, 1))           # leave adv as it is
    rng = np.random.default_rng(0)
    buf = algo.Buffer(Box(-1, 1, (3,)), Box(-1, 1, (2,)), 20, gamma, lam)
    for _ in range(10):                                                                 # the buffer is used again
        val, paths, last_val = fill(buf, rng, last_terminated)
        rew = buf.rew.copy()
        data = buf.get(val, np.zeros(20), last_val)
        adv, ret = brute_force(rew, val, paths, last_val, gamma, lam)
        np.testing.assert_allclose(data['adv'], adv, atol=1e-6, rtol=1e-6)
        np.testing.assert_allclose(data['ret'], ret, atol=1e-6, rtol=1e-6)


@each_algo
def test_termination_on_the_last_step_of_an_epoch_is_not_bootstrapped(algo):
    for terminated, expected in [(True, [1.9, 1]), (False, [1.9 + 0.81 * 100, 1 + 0.9 * 100])]:
        buf = algo.Buffer(Box(-1, 1, (1,)), Discrete(2), 2, 0.9, 0.95)
        buf.store([0], 0, 1)
        buf.store([0], 0, 1)
        buf.finish_path([0], terminated)
        np.testing.assert_allclose(buf.get(np.zeros(2), np.zeros(2), np.array([100.]))['ret'], expected, rtol=1e-6)


@each_algo
def test_adv_is_normalised_in_float64_and_with_an_epsilon(algo):
    rng = np.random.default_rng(0)
    buf = algo.Buffer(Box(-1, 1, ()), Discrete(2), 1000, 0, 0)                            # gamma 0: adv is rew - val
    for offset, scale in [(0, 1), (1e7, 0.1)]:                                          # float32 would lose the latter
        rew = offset + scale * rng.standard_normal(1000)
        for t in range(1000):
            buf.store(0, 0, rew[t])
        buf.finish_path(0, True)
        adv = buf.get(np.zeros(1000), np.zeros(1000), np.zeros(1))['adv']
        np.testing.assert_allclose(adv, (rew - rew.mean()) / rew.std(), atol=1e-5)
    for t in range(1000):
        buf.store(0, 0, 1)
    buf.finish_path(0, True)
    assert (buf.get(np.zeros(1000), np.zeros(1000), np.zeros(1))['adv'] == 0).all()


@each_algo
def test_buffer_gives_back_what_it_was_given_in_its_shape(algo):
    rng = np.random.default_rng(0)
    obs, act, logp = rng.random((5, 4, 4, 2)), rng.random((5, 3)), rng.random(5)
    buf = algo.Buffer(Box(-1, 1, (4, 4, 2)), Box(-1, 1, (3,)), 5, 0.9, 0.9)
    for t in range(5):
        buf.store(obs[t], act[t], 0)
    with pytest.raises((AssertionError, IndexError)):
        buf.get(np.zeros(5), logp, np.zeros(1))                             # its path is not finished
    buf.finish_path(obs[0], False)
    data = buf.get(np.zeros(5), logp, np.zeros(1))
    for key, array in dict(obs=obs, act=act, logp=logp).items():
        assert data[key].dtype == np.float32
        np.testing.assert_array_equal(data[key], array.astype(np.float32))


# %% Networks and distributions
@each_algo
@each_action_space
def test_initial_weights_are_uniform_and_drawn_from_the_generator_given(algo, action_space):
    ac, rng = make_agent(algo, action_space, seed=3).ac, np.random.default_rng(3)
    rng.integers(2**31)                                                                 # the seed of PyTorch's own
    for layer in (layer for layer in ac.modules() if isinstance(layer, nn.Linear)):
        for p in layer.parameters():
            expected = rng.uniform(-1, 1, p.shape) / np.sqrt(layer.in_features)
            np.testing.assert_array_equal(p.detach(), expected.astype(np.float32))
    assert isinstance(action_space, Discrete) or (ac.pi.log_std == -0.5).all()


def random_categorical(file, seed, n=50):
    logits = 3 * np.random.default_rng(seed).standard_normal((n, 5))
    logits[0] = [1000, 0, 0, -1000, 999]                                                # neither overflow nor nan
    return file.Categorical(torch.as_tensor(logits))


def random_gaussian(file, seed, n=50):
    rng = np.random.default_rng(seed)
    return file.Gaussian(torch.as_tensor(rng.standard_normal((n, 2))), torch.as_tensor(rng.standard_normal(2)))


def random_gaussian_of_the_state(file, seed, n=50):
    """Standard deviations that depend on the observation, as many a user's do."""
    rng = np.random.default_rng(seed)
    return file.Gaussian(*torch.as_tensor(rng.standard_normal((2, n, 2))))


def grid(width=12, step=0.02):
    """The points of a grid over the plane, and the area of each cell."""
    x = torch.arange(-width, width, step, dtype=torch.float64)
    return torch.cartesian_prod(x, x), step**2


@each_algo
@pytest.mark.parametrize('make', [random_categorical, random_gaussian, random_gaussian_of_the_state])
def test_log_prob_entropy_and_kl_are_those_of_torch(algo, make):
    dist, other = make(algo.file, 0), make(algo.file, 1)
    reference, rng = as_torch(dist), np.random.default_rng(2)
    act = torch.as_tensor(rng.integers(5, size=50) if make is random_categorical else rng.standard_normal((50, 2)))
    torch.testing.assert_close(dist.log_prob(act), reference.log_prob(act))
    torch.testing.assert_close(dist.entropy().expand(50), reference.entropy())
    if algo is TRPO:
        torch.testing.assert_close(dist.kl(other), kl_divergence(reference, as_torch(other)))
        torch.testing.assert_close(dist.kl(dist), torch.zeros(50, dtype=torch.float64))


@each_algo
def test_categorical_is_the_softmax_of_the_logits_and_sums_to_its_entropy_and_kl(algo):
    logits, other_logits = np.random.default_rng(0).standard_normal((2, 5))
    p, q = [np.exp(x) / np.exp(x).sum() for x in (logits, other_logits)]
    dist = algo.file.Categorical(torch.as_tensor(logits).expand(5, 5))                  # (batch, actions)
    np.testing.assert_allclose(dist.log_prob(torch.arange(5)), np.log(p))
    np.testing.assert_allclose(dist.entropy(), sum(-p * np.log(p)))
    if algo is TRPO:
        other = algo.file.Categorical(torch.as_tensor(other_logits))
        np.testing.assert_allclose(dist.kl(other), sum(p * np.log(p / q)))


@each_algo
def test_gaussian_integrates_to_one_and_to_its_entropy_and_kl(algo):
    points, area = grid()
    dist, other = [algo.file.Gaussian(torch.tensor(mu).double(), torch.tensor(log_std).double())
                   for mu, log_std in [([0.5, -1.], [0.3, -0.5]), ([-0.2, 0.3], [-0.1, 0.4])]]
    logp = dist.log_prob(points)
    p = torch.exp(logp) * area
    assert p.sum().item() == pytest.approx(1)
    assert -(p * logp).sum().item() == pytest.approx(dist.entropy().item())
    if algo is TRPO:
        assert (p * (logp - other.log_prob(points))).sum().item() == pytest.approx(dist.kl(other).item())


@pytest.mark.parametrize('algo', [VPG, PPO], ids=['vpg', 'ppo'])
def test_kl_estimate_is_never_negative(algo):
    rng = np.random.default_rng(0)
    for _ in range(1500):
        logp_old = torch.tensor([rng.normal(0, 5)], dtype=torch.float32)
        logp = logp_old + 10**rng.uniform(-9, 1) * rng.choice([-1, 1])
        assert algo.file.compute_kl(logp, logp_old) >= 0
        assert algo.file.compute_kl(logp_old, logp_old) == 0


@pytest.mark.parametrize('algo', [VPG, PPO], ids=['vpg', 'ppo'])
@pytest.mark.parametrize('make', [random_categorical, random_gaussian])
def test_kl_estimate_is_near_the_exact_kl(algo, make):
    """On actions of pi_old, for the KL from pi_old to pi and not the other way round."""
    torch.manual_seed(0)
    old, new = [as_torch(make(algo.file, seed, n=2)) for seed in (3, 4)]
    act = old.sample((200_000,))[:, 1:]                                                 # of the second observation
    logp_old, logp = [dist.log_prob(act.expand(-1, 2, *act.shape[2:]))[:, 1] for dist in (old, new)]
    exact, wrong = kl_divergence(old, new)[1], kl_divergence(new, old)[1]
    error = 5 * (torch.exp(logp - logp_old) - 1 - logp + logp_old).std() / 200_000**0.5
    assert abs(algo.file.compute_kl(logp, logp_old) - exact) < error < abs(exact - wrong) / 2


# %% Losses
def test_ppo_loss_and_gradient_on_both_sides_of_the_clip_and_for_both_signs_of_adv():
    ratio = torch.tensor([0.5, 0.79, 0.81, 1, 1.19, 1.21, 2] * 2, dtype=torch.float64)
    adv = torch.tensor([1.5] * 7 + [-0.7] * 7, dtype=torch.float64)
    logp_old = torch.linspace(-3, 0, 14, dtype=torch.float64)
    logp = (logp_old + torch.log(ratio)).requires_grad_()

    def loss_pi(logp):
        return ppo_torch.compute_loss_pi(logp, logp_old, adv, 0.2)
    expected = [min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio.tolist(), adv.tolist())]
    assert loss_pi(logp).item() == pytest.approx(-np.mean(expected))

    gradient, = torch.autograd.grad(loss_pi(logp), logp)
    torch.testing.assert_close(gradient, finite_differences(loss_pi, logp.detach()), atol=1e-8, rtol=1e-6)
    flat_part = (adv > 0) & (ratio > 1.2) | (adv < 0) & (ratio < 0.8)                   # nothing more to gain
    torch.testing.assert_close(gradient, torch.where(flat_part, 0, -ratio * adv / 14))


@pytest.mark.parametrize('algo', [VPG, TRPO], ids=['vpg', 'trpo'])
def test_vpg_and_trpo_loss_and_gradient(algo):
    rng = np.random.default_rng(0)
    logp, logp_old, adv = torch.as_tensor(rng.standard_normal((3, 10)))

    def loss_pi(logp):
        return algo.file.compute_loss_pi(*([logp, adv] if algo is VPG else [logp, logp_old, adv]))
    weight = logp if algo is VPG else torch.exp(logp) / torch.exp(logp_old)
    assert loss_pi(logp).item() == pytest.approx(-np.mean([w * a for w, a in zip(weight.tolist(), adv.tolist())]))
    gradient, = torch.autograd.grad(loss_pi(logp.requires_grad_()), logp)
    torch.testing.assert_close(gradient, finite_differences(loss_pi, logp.detach()), atol=1e-8, rtol=1e-6)


@each_algo
@each_action_space
def test_gradient_of_the_loss_is_the_policy_gradient(algo, action_space):
    """Where pi is pi_old all three losses have it: -mean(adv score), the score derived by hand for a linear policy."""
    agent = make_agent(algo, action_space, hidden_sizes=())
    pi, data = in_float64(agent.ac.pi, make_data(algo, agent, action_space))
    dist = pi(data.obs)
    logp = dist.log_prob(data.act)
    loss_pi = algo.file.compute_loss_pi
    loss = {VPG.name: lambda: loss_pi(logp, data.adv), PPO.name: lambda: loss_pi(logp, logp.detach(), data.adv, 0.2),
            TRPO.name: lambda: loss_pi(logp, logp.detach(), data.adv)}[algo.name]()
    gradients = dict(zip(dict(pi.named_parameters()), torch.autograd.grad(loss, list(pi.parameters()))))

    with torch.no_grad():
        if isinstance(action_space, Box):
            z = (data.act - dist.mu) / torch.exp(dist.log_std)
            scores = {'log_std': z**2 - 1, 'bias': z / torch.exp(dist.log_std)}
        else:
            scores = {'bias': torch.eye(4)[data.act.long()] - torch.softmax(pi.logits_net(data.obs), -1)}
        scores['weight'] = scores['bias'][:, :, None] * data.obs[:, None, :]
        assert len(scores) == len(gradients)
        for name, gradient in gradients.items():
            score = scores[name.split('.')[-1]]
            weighted = data.adv.view(-1, *[1] * (score.ndim - 1)) * score
            torch.testing.assert_close(gradient, -weighted.mean(0))


@each_algo
def test_value_loss_and_gradient(algo):
    val, ret = torch.as_tensor(np.random.default_rng(0).standard_normal((2, 10))).requires_grad_()
    loss = algo.file.compute_loss_v(val, ret)
    assert loss.item() == pytest.approx(np.mean([(v - r)**2 for v, r in zip(val.tolist(), ret.tolist())]))
    gradient, = torch.autograd.grad(loss, val)
    difference = finite_differences(lambda val: algo.file.compute_loss_v(val, ret.detach()), val.detach())
    torch.testing.assert_close(gradient, difference, atol=1e-8, rtol=1e-6)


# %% Acting and evaluating
@each_algo
def test_noise_is_gumbel_or_normal_and_gumbel_max_samples_the_softmax(algo):
    rng, n = np.random.default_rng(0), 50_000
    noise = algo.file.draw_noise(rng, n, Discrete(4, start=7))
    assert noise.shape == (n, 4) and noise.dtype == np.float32
    assert all(kolmogorov_smirnov_fits(noise[:, i], lambda x: np.exp(-np.exp(-x))) for i in range(4))
    logits = torch.tensor([1, -2, 0.5, 3])
    act = algo.file.Categorical(logits).sample(torch.as_tensor(noise))
    assert chi_square_fits(np.bincount(act), torch.softmax(logits, -1).numpy())
    noise = algo.file.draw_noise(rng, n, Box(-1, 1, (2,)))
    assert noise.shape == (n, 2) and noise.dtype == np.float32
    assert all(kolmogorov_smirnov_fits(noise[:, i], normal_cdf) for i in range(2))
    assert abs(np.corrcoef(noise.T)[0, 1]) < 4 / np.sqrt(n)                             # dimensions are independent


@each_algo
@each_action_space
def test_act_is_the_distribution_with_its_noise_and_without_noise_the_most_likely_action(algo, action_space):
    agent = make_agent(algo, action_space, hidden_sizes=(16, 16))
    rng = np.random.default_rng(0)
    obs = 3 * rng.standard_normal((200, 3)).astype(np.float32)
    noise = algo.file.draw_noise(rng, 200, action_space)
    act = np.array([agent.act(*pair) for pair in zip(obs, noise)])
    best = np.array([agent.act(x) for x in obs])
    with torch.no_grad():
        dist = as_torch(agent.ac.pi(torch.as_tensor(obs)))
    if isinstance(action_space, Box):
        np.testing.assert_allclose(act, dist.mean.numpy() + np.exp(-0.5) * noise, atol=1e-5)
        np.testing.assert_allclose(best, dist.mean, atol=1e-5)
    else:
        np.testing.assert_array_equal(act, np.argmax(dist.logits.numpy() + noise, axis=-1))
        np.testing.assert_array_equal(best, dist.probs.argmax(-1))
        assert set(act) == set(range(4))


@each_algo
@each_action_space
def test_evaluate_gives_what_the_networks_say_of_one_step_after_the_other(algo, action_space):
    agent, rng = make_agent(algo, action_space), np.random.default_rng(0)
    obs, last_obs = [rng.standard_normal((n, 3)).astype(np.float32) for n in (20, 2)]
    act = np.array([agent.act(*pair) for pair in zip(obs, algo.file.draw_noise(rng, 20, action_space))])
    val, logp, last_val = agent.evaluate(obs, np.float32(act), last_obs)
    assert val.shape == logp.shape == (20,) and last_val.shape == (2,)
    for t in range(20):
        dist = as_torch(agent.ac.pi(torch.as_tensor(obs[t:t + 1])))
        assert logp[t] == pytest.approx(dist.log_prob(torch.as_tensor(act[t:t + 1])).item(), rel=1e-5)
    for x, v in zip([*obs, *last_obs], [*val, *last_val]):
        assert v == pytest.approx(agent.ac.v.v_net(torch.as_tensor(x[None])).item(), rel=1e-5)


# %% Updates
def reference_loss_pi(algo, logp, data, clip_ratio=0.2):
    """Written once more, on PyTorch's own log-probabilities."""
    ratio = torch.exp(logp - data.logp)
    return {VPG.name: -(data.adv * logp).mean(), TRPO.name: -(data.adv * ratio).mean(),
            PPO.name: -torch.where(data.adv > 0, torch.clip(ratio, max=1 + clip_ratio) * data.adv,
                                   torch.clip(ratio, min=1 - clip_ratio) * data.adv).mean()}[algo.name]


def policy_steps(algo, pi, data, lr, steps):
    """The parameters after some steps of Adam on the policy's loss, computed in float64."""
    pi, data = in_float64(pi, data)

    def loss(pi):
        return reference_loss_pi(algo, as_torch(pi(data.obs)).log_prob(data.act), data)
    return adam(flat(pi), gradient_of(loss, pi), lr, steps)


def check_params(module, expected, lr):
    """The float32 parameters are the expected ones, but for a small part of one step of length lr."""
    torch.testing.assert_close(flat(module).double(), expected, atol=0.01 * lr, rtol=1e-6)


@each_action_space
def test_vpg_takes_one_step_of_adam(action_space):
    agent = make_agent(VPG, action_space, pi_lr=0.01, train_v_iters=0)
    data = make_data(VPG, agent, action_space)
    expected = policy_steps(VPG, agent.ac.pi, data, 0.01, 1)
    agent.update(data)
    check_params(agent.ac.pi, expected, 0.01)


@each_action_space
@pytest.mark.parametrize('steps', [0, 1, 5])
def test_ppo_takes_train_pi_iters_steps_of_adam(action_space, steps):
    agent = make_agent(PPO, action_space, pi_lr=0.03, train_v_iters=0, train_pi_iters=steps, target_kl=1e9)
    data = make_data(PPO, agent, action_space)
    expected = policy_steps(PPO, agent.ac.pi, data, 0.03, steps)
    metrics = agent.update(data)
    check_params(agent.ac.pi, expected, 0.03)
    assert metrics['StopIter'] == steps
    assert steps < 2 or metrics['ClipFrac'] > 0


@each_action_space
def test_ppo_stops_before_the_step_that_a_tiny_target_kl_forbids(action_space):
    """The first iteration sees no KL at all and makes its step, the second one sees too much and makes none."""
    agent = make_agent(PPO, action_space, pi_lr=0.01, train_v_iters=0, target_kl=1e-9)
    data = make_data(PPO, agent, action_space)
    expected = policy_steps(PPO, agent.ac.pi, data, 0.01, 1)
    assert agent.update(data)['StopIter'] == 1
    check_params(agent.ac.pi, expected, 0.01)


@each_action_space
def test_ppo_stops_once_kl_exceeds_one_and_a_half_target_kl(action_space):
    def update(steps, target_kl):
        agent = make_agent(PPO, action_space, pi_lr=0.01, train_v_iters=0, train_pi_iters=steps, target_kl=target_kl)
        return agent.update(make_data(PPO, agent, action_space)), flat(agent.ac.pi)
    kls = [update(steps, np.inf)[0]['KL'] for steps in range(1, 8)]                     # after 1, 2, ... steps
    assert kls == sorted(kls)
    for target_kl in [(0.9 * kls[3] + 0.1 * kls[4]) / 1.5, 0.999 * kls[4] / 1.5]:       # allows 4 steps, makes 5
        metrics, params = update(80, target_kl)
        assert metrics['StopIter'] == 5 and metrics['KL'] == pytest.approx(kls[4])
        torch.testing.assert_close(params, update(5, np.inf)[1])
    assert update(80, 1.001 * kls[4] / 1.5)[0]['StopIter'] == 6


@each_algo
def test_value_function_takes_train_v_iters_steps_of_adam(algo):
    agent = make_agent(algo, Discrete(4), vf_lr=0.01, train_v_iters=4)
    data = make_data(algo, agent, Discrete(4))
    v, data64 = in_float64(agent.ac.v, data)
    expected = adam(flat(v), gradient_of(lambda v: ((v.v_net(data64.obs)[:, 0] - data64.ret)**2).mean(), v), 0.01, 4)
    agent.update(data)
    check_params(agent.ac.v, expected, 0.01)


@each_algo
@each_action_space
def test_metrics_say_what_the_update_did(algo, action_space):
    agent = make_agent(algo, action_space, train_v_iters=3, vf_lr=0.05,
                       **(dict(delta=0.1) if algo is TRPO else dict(pi_lr=0.1)))
    data = make_data(algo, agent, action_space)
    ac_old, data64 = in_float64(agent.ac, data)
    metrics = agent.update(data)
    ac, _ = in_float64(agent.ac, data)

    with torch.no_grad():
        dist_old, dist = [as_torch(module.pi(data64.obs)) for module in (ac_old, ac)]
        logp = dist.log_prob(data64.act)
        ratio = torch.exp(logp - data64.logp)
        kl = kl_divergence(dist_old, dist).mean() if algo is TRPO else (ratio - 1 - torch.log(ratio)).mean()
        loss_pi_old, loss_pi = [reference_loss_pi(algo, x, data64) for x in (data64.logp, logp)]
        loss_v_old, loss_v = [((module.v.v_net(data64.obs)[:, 0] - data64.ret)**2).mean() for module in (ac_old, ac)]
        expected = dict(LossPi=loss_pi_old, LossV=loss_v_old, DeltaLossPi=loss_pi - loss_pi_old,
                        DeltaLossV=loss_v - loss_v_old, Entropy=dist.entropy().mean(), KL=kl)
        if algo is PPO:
            expected['ClipFrac'] = ((ratio > 1.2) | (ratio < 0.8)).double().mean()
            assert expected['ClipFrac'] > 0
    for key, val in expected.items():
        assert metrics[key] == pytest.approx(val.item(), rel=1e-4, abs=1e-5), key
    assert abs(metrics['DeltaLossPi']) > 1e-3 and abs(metrics['DeltaLossV']) > 1e-3 and metrics['KL'] > 1e-3


# %% TRPO's update
def mean_kl(pi, obs):
    """KL(pi now, pi with other parameters), averaged over obs, as a function of those, in one vector."""
    with torch.no_grad():
        old = as_torch(copy.deepcopy(pi)(obs))
    names, shapes = zip(*[(name, p.shape) for name, p in pi.named_parameters()])

    def kl(params):
        parts = params.split([shape.numel() for shape in shapes])
        params = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes)}
        return kl_divergence(old, as_torch(torch.func.functional_call(pi, params, (obs,)))).mean()
    return kl


@each_action_space
def test_trpo_solves_for_the_damped_hessian_and_the_gradient_of_the_surrogate(action_space, monkeypatch):
    seen = {}

    def spy(apply_matrix, b, iters):
        seen.update(matrix=np.array([apply_matrix(row) for row in np.eye(len(b))]), b=b.copy(), iters=iters)
        return solve(apply_matrix, b, iters)
    solve = trpo_torch.conjugate_gradient
    monkeypatch.setattr(trpo_torch, 'conjugate_gradient', spy)
    agent = make_agent(TRPO, action_space, hidden_sizes=(4,), damping_coeff=0.05, cg_iters=7)
    data = make_data(TRPO, agent, action_space)
    pi, data64 = in_float64(agent.ac.pi, data)
    agent.update(data)

    params, kl = flat(pi), mean_kl(pi, data64.obs)
    hessian = torch.autograd.functional.hessian(kl, params)
    torch.testing.assert_close(hessian, finite_differences(torch.func.grad(kl), params), atol=1e-7, rtol=1e-5)
    np.testing.assert_allclose(seen['matrix'], hessian + 0.05 * torch.eye(len(hessian)), atol=1e-5)
    surrogate = gradient_of(lambda pi: reference_loss_pi(TRPO, pi(data64.obs).log_prob(data64.act), data64), pi)
    np.testing.assert_allclose(seen['b'], surrogate(params), atol=1e-5)
    assert seen['iters'] == 7


def test_conjugate_gradient_solves_the_system():
    rng = np.random.default_rng(0)
    for n in (1, 5, 20):
        half = rng.standard_normal((n, n))
        matrix, b = half @ half.T + np.eye(n), rng.standard_normal(n)
        kept, solution = b.copy(), np.linalg.solve(matrix, b)
        x = [trpo_torch.conjugate_gradient(lambda x: matrix @ x, b, iters) for iters in range(2 * n + 1)]
        np.testing.assert_allclose(x[-1], solution, atol=1e-5)
        np.testing.assert_allclose(x[n], solution, atol=1e-4)                           # n steps are enough in theory
        errors = [(y - solution) @ matrix @ (y - solution) for y in x[:n + 1]]
        assert all(new < old for old, new in zip(errors, errors[1:]))                   # what each step makes least
        np.testing.assert_array_equal(b, kept)


@each_action_space
@pytest.mark.parametrize('delta', [0.01, 10])
def test_npg_takes_the_full_natural_step_and_does_not_search(action_space, delta):
    def make(**kwargs):
        return make_agent(TRPO, action_space, 9, (4,), delta=delta, cg_iters=80, train_v_iters=0, **kwargs)
    agent = make(algo='npg')
    data = make_data(TRPO, agent, action_space)
    pi, data64 = in_float64(agent.ac.pi, data)
    hessian = torch.autograd.functional.hessian(mean_kl(pi, data64.obs), flat(pi))
    hessian += 0.1 * torch.eye(len(hessian))
    surrogate = gradient_of(lambda pi: reference_loss_pi(TRPO, pi(data64.obs).log_prob(data64.act), data64), pi)
    x = torch.linalg.solve(hessian, surrogate(flat(pi)))
    step = torch.sqrt(2 * delta / (x @ hessian @ x)) * x
    metrics = agent.update(data)
    torch.testing.assert_close(flat(pi) - flat(agent.ac.pi), step, rtol=2e-3, atol=2e-3 * step.abs().max().item())
    assert 'BacktrackIters' not in metrics
    assert (make().update(data)['BacktrackIters'] > 0) == (delta == 10)                 # TRPO would not go that far


@each_action_space
def test_trpo_accepts_the_first_step_inside_the_trust_region_that_improves_and_else_none(action_space):
    accepted, rejected, searched = 0, 0, 0
    for seed in range(40):
        delta, coeff, iters = [(0.01, 0.8, 10), (1, 0.6, 10), (3, 0.5, 3), (5, 0.9, 2)][seed % 4]
        agent = make_agent(TRPO, action_space, seed, train_v_iters=0, delta=delta, backtrack_coeff=coeff,
                           backtrack_iters=iters, damping_coeff=[0.1, 1e-3][seed // 4 % 2])
        data = make_data(TRPO, agent, action_space, seed)
        old = flat(agent.ac.pi)
        pi, data64 = in_float64(agent.ac.pi, data)
        kl = mean_kl(copy.deepcopy(pi), data64.obs)

        def inside_and_better(params, slack):
            vector_to_parameters(params, pi.parameters())
            with torch.no_grad():
                loss = reference_loss_pi(TRPO, pi(data64.obs).log_prob(data64.act), data64)
            return kl(params) <= delta * (1 + slack) and loss < -data64.adv.mean() + slack
        metrics, new = agent.update(data), flat(agent.ac.pi)
        i = metrics['BacktrackIters']
        if i == iters:
            rejected += 1
            assert torch.equal(new, old)                                                # to the last bit
            assert metrics['KL'] == metrics['DeltaLossPi'] == 0
            continue
        accepted, searched = accepted + 1, searched + (i > 0)
        assert inside_and_better(new.double(), slack=1e-5)
        assert metrics['KL'] <= delta and metrics['DeltaLossPi'] < 0
        full_step = (old - new).double() / coeff**i
        for shorter in range(i):                                                        # longer steps were not allowed
            assert not inside_and_better(old.double() - coeff**shorter * full_step, slack=-1e-5)
    assert accepted > 10 and rejected > 2 and searched > 5


# %% Training: spaces
@each_algo
def test_actions_are_clipped_for_the_environment_and_stored_unclipped(algo, tmp_path, monkeypatch):
    low, high = np.array([-1, 0, -np.inf], dtype=np.float32), np.array([0.2, 3, 0], dtype=np.float32)
    updates = record(monkeypatch, algo.file.Agent, 'update')
    env = SmallEnv(action_space=Box(low, high))
    agent = make_agent(algo, env.action_space)                                          # seed 0: the same first weights
    run(algo, env, tmp_path, epochs=1, steps_per_epoch=200)
    (data,), = updates
    stored, received = data['act'], np.array(env.received)
    np.testing.assert_array_equal(received, np.clip(stored, low, high))
    assert (stored[:, 0] < -1).any() and (stored[:, 0] > 0.2).any() and (stored[:, 1:] != received[:, 1:]).any(0).all()
    dist = as_torch(agent.ac.pi(torch.as_tensor(data['obs'])))
    np.testing.assert_allclose(data['logp'], dist.log_prob(torch.as_tensor(stored)).detach(), rtol=1e-5)


@each_algo
@pytest.mark.parametrize('space', [Box(-np.inf, np.inf, (2,)), Box(-0.1, 0.3, (2, 3)), Box(-1, 1, (1,), np.float64),
                                   Discrete(3, start=5)], ids=['unbounded', 'matrix', 'float64', 'from 5'])
def test_action_spaces(algo, space, tmp_path, monkeypatch):
    stored = record(monkeypatch, algo.Buffer, 'store')
    env = SmallEnv(action_space=space)
    _, _, rows = run(algo, env, tmp_path)
    received = np.array(env.received)
    acts = np.array([act for _, act, _ in stored])
    assert received.shape == (60, *space.shape) and len(rows) == 2
    if isinstance(space, Discrete):
        np.testing.assert_array_equal(received, acts + 5)
        assert set(received) == {5, 6, 7}
    else:
        np.testing.assert_array_equal(received, np.clip(acts.reshape(received.shape), space.low, space.high))
        assert (received != received[0]).any() and (received == acts.reshape(received.shape)).any()


@each_algo
@pytest.mark.parametrize('space', [Discrete(4), Discrete(4, start=-2), Box(0, 255, (6, 5, 3), np.uint8), Box(0, 1, ())],
                         ids=['one-hot', 'from -2', 'image', 'scalar'])
def test_observation_spaces(algo, space, tmp_path, monkeypatch):
    """Discrete observations come as one-hot; the buffer keeps the shape of others, and the perceptrons flatten it."""
    stored, updates = record(monkeypatch, algo.Buffer, 'store'), record(monkeypatch, algo.file.Agent, 'update')
    seen, env = [], SmallEnv(observation_space=space, length=7)
    draw_obs = env.draw_obs
    monkeypatch.setattr(env, 'draw_obs', lambda: seen.append(draw_obs()) or seen[-1])
    agent, _, _ = run(algo, env, tmp_path)
    obs = np.array([obs for obs, _, _ in stored])
    expected = np.array([x for i, x in enumerate(seen) if i % 8 != 7][:60])             # all but each episode's last
    if isinstance(space, Discrete):
        expected = np.eye(4)[expected - space.start]
    np.testing.assert_array_equal(obs, expected.reshape(60, *(space.shape or (-1,))))   # a scalar may come as a vector
    data = updates[-1][0]
    np.testing.assert_array_equal(data['obs'], obs[30:])
    inputs = agent.ac.v.v_net[1].in_features
    assert inputs == 4 if isinstance(space, Discrete) else inputs == np.prod(space.shape)
    flattened = torch.as_tensor(data['obs']).reshape(30, inputs)
    torch.testing.assert_close(agent.ac.v(torch.as_tensor(data['obs'])), agent.ac.v(flattened))


@each_algo
@pytest.mark.parametrize('spaces', [dict(action_space=Dict(x=Discrete(2))),
                                    dict(observation_space=Sequence(Discrete(2)))], ids=['actions', 'observations'])
def test_other_spaces_are_refused(algo, spaces, tmp_path):
    with pytest.raises(UserError, match='(actions|observations) of type (Dict|Sequence) are not supported'):
        run(algo, SmallEnv(**spaces), tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@each_algo
def test_several_choices_at_once_train(algo, tmp_path):
    space = MultiDiscrete([2, 3])
    env = SmallEnv(Dict(a=Discrete(3), b=Box(-1, 1, (2,))), space)
    run(algo, env, tmp_path / 'run')
    assert len({tuple(action) for action in env.received}) == 6 and all(space.contains(a) for a in env.received)


class ReusingEnv(SmallEnv):
    """Returns the same array for every observation, overwritten in place, as some environments do."""
    def draw_obs(self):
        obs = super().draw_obs()
        self.obs = getattr(self, 'obs', obs)
        self.obs[:] = obs
        return self.obs


@each_algo
def test_environment_that_reuses_its_observation_array_trains_the_same(algo, tmp_path):
    tables = [run(algo, make(length=7), tmp_path / make.__name__)[2] for make in (SmallEnv, ReusingEnv)]
    assert without_time(tables[0]) == without_time(tables[1])


# %% Training: time limits and epochs
def fixed_value(file, value):
    """Our networks, but for a value function that always says `value`."""
    class FixedCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.tensor(float(value)))

        def forward(self, obs):
            return self.value.expand(len(obs))

    def actor_critic(*spaces, **kwargs):
        ac = file.MLPActorCritic(*spaces, **kwargs)
        ac.v = FixedCritic()
        return ac
    return actor_critic


ENDS = dict(time_limit=(lambda: gym.wrappers.TimeLimit(SmallEnv(), 5), {}), max_ep_len=(SmallEnv, dict(max_ep_len=5)),
            termination=(lambda: SmallEnv(length=5), {}))


@each_algo
@pytest.mark.parametrize('end', ENDS)
@pytest.mark.parametrize('steps', [10, 13])                         # the last episode ends with the epoch, or is cut
def test_returns_of_an_endless_reward_are_bootstrapped_unless_it_terminates(algo, end, steps, tmp_path, monkeypatch):
    """Reward 1 for ever is worth 1 / (1 - gamma), and a time limit changes nothing about that."""
    monkeypatch.setattr(algo.file, 'mpi_statistics_scalar', lambda x: (0, 1))           # leave adv as it is
    updates, (env_fn, kwargs) = record(monkeypatch, algo.file.Agent, 'update'), ENDS[end]
    _, _, rows = run(algo, env_fn(), tmp_path, epochs=1, steps_per_epoch=steps, gamma=0.9, train_v_iters=0,
                     actor_critic=fixed_value(algo.file, 10), **kwargs)
    (data,), = updates
    expected = np.full(steps, 10, dtype=np.float32)
    if end == 'termination':
        expected[:10] = [sum(0.9**k for k in range(5 - t % 5)) for t in range(10)]
    else:
        assert (data['adv'] == 0).all()
    np.testing.assert_allclose(data['ret'], expected, rtol=0 if end != 'termination' else 1e-6)
    assert rows[0]['AverageEpRet'] == rows[0]['EpLen'] == '5.0' and rows[0]['StdEpRet'] == '0.0'


@each_algo
@pytest.mark.parametrize('end', ENDS)
def test_value_of_an_endless_reward_is_learned(algo, end, tmp_path):
    env_fn, kwargs = ENDS[end]
    _, _, rows = run(algo, env_fn(), tmp_path, epochs=15, steps_per_epoch=50, gamma=0.9, train_v_iters=30, vf_lr=0.03,
                     **kwargs)
    value = float(rows[-1]['AverageVVals'])
    assert value < 4 if end == 'termination' else abs(value - 10) < 0.5


@each_algo
@pytest.mark.parametrize('end', ['length', 'max_ep_len'])
def test_episode_goes_on_over_epochs_and_is_logged_when_it_ends(algo, end, tmp_path):
    env = SmallEnv(length=25 if end == 'length' else None, reward=lambda obs, action: 2)
    _, _, rows = run(algo, env, tmp_path, epochs=5, steps_per_epoch=10, max_ep_len=1000 if end == 'length' else 25)
    for epoch, row in enumerate(rows):
        logged = [row[key] for key in ('AverageEpRet', 'StdEpRet', 'MaxEpRet', 'MinEpRet', 'EpLen')]
        assert logged == (['50.0', '0.0', '50.0', '50.0', '25.0'] if epoch in (2, 4) else [''] * 5)
        assert row['TotalEnvInteracts'] == str(10 * (epoch + 1)) and row['LossV'] and row['AverageVVals']
    assert len(env.seeds) == 3                                                          # the last ended with its epoch


# %% Training: what is logged and saved
def times4(key):
    return [f'Average{key}', f'Std{key}', f'Max{key}', f'Min{key}']


@pytest.mark.parametrize('algo, kwargs, own', [
    (VPG, {}, []), (PPO, {}, ['ClipFrac', 'StopIter']), (TRPO, {}, ['BacktrackIters']), (TRPO, dict(algo='npg'), [])
], ids=['vpg', 'ppo', 'trpo', 'npg'])
def test_columns(algo, kwargs, own, tmp_path):
    _, columns, _ = run(algo, SmallEnv(length=5), tmp_path, **kwargs)
    assert columns == ['Epoch', *times4('EpRet'), 'EpLen', *times4('VVals'), 'TotalEnvInteracts', 'LossPi', 'LossV',
                       'DeltaLossPi', 'DeltaLossV', 'Entropy', 'KL', *own, 'Time']


def without_time(rows):
    return [{key: val for key, val in row.items() if key != 'Time'} for row in rows]


@each_algo
@each_action_space
def test_same_seed_same_run(algo, action_space, tmp_path):
    def train(name, seed):
        np.random.seed(len(name))                                                       # global state does not matter
        torch.manual_seed(len(name))
        env = SmallEnv(action_space=action_space, length=7, reward=lambda obs, action: float(obs[0] * np.sum(action)))
        rows = without_time(run(algo, env, tmp_path / name, seed=seed)[2])
        assert env.seeds[0] == seed and set(env.seeds[1:]) == {None}
        return rows
    first, again, other = train('first', 3), train('again once more', 3), train('other', 4)
    assert first == again
    for key in ('AverageEpRet', 'AverageVVals', 'DeltaLossPi', 'LossV', 'KL'):
        assert all(row[key] != changed[key] for row, changed in zip(first, other)), key


@each_algo
def test_model_saved_last_is_the_model_after_the_last_update(algo, tmp_path):
    agent, _, _ = run(algo, SmallEnv(), tmp_path, epochs=3, save_freq=2)
    saved = torch.load(tmp_path / 'pyt_save' / 'model.pt', weights_only=True)
    assert list(saved) == list(agent.ac.state_dict())
    assert all(torch.equal(saved[key], val) for key, val in agent.ac.state_dict().items())
