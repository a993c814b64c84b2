"""DDPG, TD3 and SAC: every equation against an independent computation, and the training loop around them."""
import functools
from copy import deepcopy
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn
from torch.distributions import AffineTransform, Normal, TanhTransform, TransformedDistribution

import ddpg_torch
import sac_torch
import td3_torch
from common.env_tools import make_env
from common.mpi_tools import UserError
from common.numpy_mlp import ACTIVATIONS
from helpers import SmallEnv, make_args, read_progress
from tools.twins import update

MODULES = dict(ddpg=ddpg_torch, td3=td3_torch, sac=sac_torch)
LOW, HIGH = np.array([-1, 0.5, -3], np.float32), np.array([3, 1, -2], np.float32)       # none symmetric, none alike
CENTER, HALF_RANGE = np.array([1, 0.75, -2.5]), np.array([2, 0.25, 0.5])
algos = pytest.mark.parametrize('algo', MODULES)
VARIANTS = dict(ddpg=('ddpg', {}), td3=('td3', {}), sac=('sac', {}), auto=('sac', dict(alpha='auto')))
variants = pytest.mark.parametrize('algo, changes', VARIANTS.values(), ids=VARIANTS)
Toy = functools.partial(SmallEnv, Box(-1, 1, (2,)), Box(LOW, HIGH))                      # reward 1, and no end


# %% Helpers
def make_agent(algo, obs_shape=(4,), low=LOW, high=HIGH, seed=0, same_targets=False, **changes):
    """An agent for a box of actions; its targets are not where its networks are."""
    args = make_args(getattr(MODULES[algo], algo), **{'ac_kwargs': dict(hidden_sizes=(16, 8)), **changes})
    spaces = SimpleNamespace(observation_space=Box(-1, 1, obs_shape), action_space=Box(low, high))
    rng = np.random.default_rng(seed)
    agent = MODULES[algo].Agent(spaces, rng, args)
    for p in () if same_targets else agent.ac_targ.parameters():
        p += torch.as_tensor(rng.normal(scale=0.1, size=p.shape))
    return agent


def make_batch(rng, n=32, obs_shape=(4,), low=LOW, high=HIGH):
    """Transitions as ReplayBuffer.sample_batch gives them, some of them terminated."""
    batch = dict(obs=rng.normal(size=(n, *obs_shape)), act=rng.uniform(low, high, (n, len(low))),
                 rew=rng.normal(size=n), next_obs=rng.normal(size=(n, *obs_shape)), terminated=rng.random(n) < 0.3)
    return {key: array.astype(np.float32) for key, array in batch.items()}


def make_noise(agent, rng, n=32, act_dim=3):
    return rng.standard_normal((agent.noises, n, act_dim), dtype=np.float32)


def numbers(module):
    """All parameters of a module, as one array of their own."""
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def set_policy(actor, mu, log_std):
    """Let a SquashedGaussianMLPActor have this mean and log_std whatever it observes."""
    *_, last = [layer for layer in actor.net if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([*np.atleast_1d(mu), *np.atleast_1d(log_std)]))


def train(algo, env_fn, folder, **changes):
    """A short run of tiny networks; returns its agent."""
    small = dict(ac_kwargs=dict(hidden_sizes=(16,)), steps_per_epoch=40, epochs=2, replay_size=1000, batch_size=16,
                 start_steps=30, update_after=20, update_every=10, num_test_episodes=2, max_ep_len=20, save_freq=100)
    return getattr(MODULES[algo], algo)(env_fn, **{**small, 'logger_kwargs': dict(output_dir=folder), **changes})


@pytest.fixture
def buffers(monkeypatch):
    """Every ReplayBuffer that a training function makes."""
    made = []
    for module in MODULES.values():
        class Kept(module.ReplayBuffer):
            def __init__(self, *args):
                super().__init__(*args)
                made.append(self)
        monkeypatch.setattr(module, 'ReplayBuffer', Kept)
    return made


# %% Networks
@algos
def test_initial_weights_are_uniform_and_drawn_from_the_generator_given(algo):
    agent, rng = make_agent(algo, seed=5), np.random.default_rng(5)
    rng.integers(2**31)                                                 # the first draw seeds torch, for other networks
    for net in (agent.pi, *agent.q):
        for layer in [layer for layer in net.modules() if isinstance(layer, nn.Linear)]:
            for p in (layer.weight, layer.bias):
                expected = rng.uniform(-1, 1, p.shape) / np.sqrt(layer.weight.shape[1])
                np.testing.assert_allclose(p.detach(), expected, rtol=1e-6)


# %% An update by hand: float64, and no torch
def dense(net, x):
    """The answer of a relu perceptron, from its weights alone."""
    params = [p.detach().numpy().astype(np.float64) for p in net.parameters()]
    for i in range(0, len(params), 2):
        x = (np.maximum(x, 0) if i else x) @ params[i].T + params[i + 1]
    return x


def q_by_hand(q, obs, act):
    return dense(q, np.concatenate([obs.reshape(len(obs), -1), act], axis=1))[:, 0]


def squash(u):
    """From the real line to the box; exactly the middle of the box for 0."""
    return LOW + (HIGH.astype(np.float64) - LOW) * (np.tanh(u) + 1) / 2


def sac_by_hand(actor, obs, noise):
    """Actions and their log-density: that of u, over the derivative of the action by u."""
    mu, log_std = np.split(dense(actor, obs), 2, axis=1)
    std = np.exp(np.clip(log_std, -20, 2))
    u = mu + std * noise
    density = np.exp(-((u - mu) / std)**2 / 2) / np.sqrt(2 * np.pi) / std
    return squash(u), np.log(density * np.cosh(u)**2 / HALF_RANGE).sum(axis=1)              # tanh' = 1 / cosh^2


def backup_by_hand(algo, ac, ac_targ, batch, noise, args):
    rew, next_obs, alive = batch['rew'], batch['next_obs'], batch['terminated'] == 0
    if algo == 'ddpg':
        next_v = q_by_hand(ac_targ.q, next_obs, squash(dense(ac_targ.pi, next_obs)))
    elif algo == 'td3':
        blur = HALF_RANGE * np.clip(args.target_noise * noise[0], -args.noise_clip, args.noise_clip)
        blurred = squash(dense(ac_targ.pi, next_obs)) + blur
        next_act = np.minimum(np.maximum(blurred, LOW), HIGH)
        next_v = np.minimum(q_by_hand(ac_targ.q1, next_obs, next_act), q_by_hand(ac_targ.q2, next_obs, next_act))
        assert 0 < (np.abs(args.target_noise * noise) > args.noise_clip).mean() < 1             # both clips are at work
        assert ((blurred < LOW).any(axis=0) | (blurred > HIGH).any(axis=0)).all()
    else:
        next_act, next_logp = sac_by_hand(ac.pi, next_obs, noise[1])                # the policy itself has no target
        next_q = np.minimum(q_by_hand(ac_targ.q1, next_obs, next_act), q_by_hand(ac_targ.q2, next_obs, next_act))
        next_v = next_q - args.alpha * next_logp
    return rew + args.gamma * np.where(alive, next_v, 0)


@algos
def test_losses_of_an_update_are_those_computed_by_hand(algo):
    changes = dict(td3=dict(policy_delay=1, target_noise=1.0), sac=dict(alpha=0.7)).get(algo, {})
    agent, rng = make_agent(algo, gamma=0.9, **changes), np.random.default_rng(1)
    with torch.no_grad():
        for p in [*agent.ac.pi.parameters(), *agent.ac_targ.pi.parameters()]:
            p *= 2                                                          # some actions are near their bounds
    batch, noise = make_batch(rng), make_noise(agent, rng)
    ac, ac_targ = deepcopy(agent.ac), deepcopy(agent.ac_targ)
    metrics = update(agent, batch, noise)

    backup = backup_by_hand(algo, ac, ac_targ, batch, noise, agent.args)
    names = ['q'] if algo == 'ddpg' else ['q1', 'q2']
    before = [q_by_hand(getattr(ac, name), batch['obs'], batch['act']) for name in names]
    for name, q in zip(names, before):
        np.testing.assert_allclose(metrics[f'{name.upper()}Vals'], q, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics['LossQ'], sum(np.mean((q - backup)**2) for q in before), rtol=1e-5)

    # The policy's loss is taken after the step of q, and before its own.
    if algo == 'sac':
        act_pi, logp_pi = sac_by_hand(ac.pi, batch['obs'], noise[0])
        np.testing.assert_allclose(metrics['LogPi'], logp_pi, rtol=1e-4, atol=1e-4)
    else:
        act_pi, logp_pi = squash(dense(ac.pi, batch['obs'])), 0
    q_pi = [q_by_hand(getattr(agent.ac, name), batch['obs'], act_pi) for name in names]
    q_pi = np.minimum(*q_pi) if algo == 'sac' else q_pi[0]
    np.testing.assert_allclose(metrics['LossPi'], np.mean(changes.get('alpha', 0) * logp_pi - q_pi), rtol=1e-5)


# %% Losses: the pure functions, with numbers
def test_backup_ends_with_termination_alone():
    rew, terminated, next_q = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), torch.tensor([10.0, 10.0])
    for module in (ddpg_torch, td3_torch):
        assert module.compute_backup(rew, terminated, next_q, 0.5).tolist() == [6, 2]
    next_logp = torch.tensor([-3.0, -3.0])                              # entropy 3, worth 6: the future is worth 16
    assert sac_torch.compute_backup(rew, terminated, next_q, next_logp, 2.0, 0.5).tolist() == [9, 2]


def test_losses_on_numbers():
    q1, q2, backup = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 5.0]), torch.tensor([3.0, 2.0])
    assert ddpg_torch.compute_loss_q(q1, backup) == 2
    assert td3_torch.compute_loss_q(q1, q2, backup) == sac_torch.compute_loss_q(q1, q2, backup) == 2 + 9
    assert ddpg_torch.compute_loss_pi(q2) == td3_torch.compute_loss_pi(q2) == -2.5
    assert sac_torch.compute_loss_pi(q2, torch.tensor([1.0, 3.0]), 0.5) == 1 - 2.5


def test_smoothing_of_the_target_action_is_in_half_ranges_and_within_the_bounds():
    low, high = torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([3.0, 1.0, 1.0])                   # half-ranges 2, .5, .5
    act = torch.tensor([[1.0, 0.5, 0.9], [1.0, 0.5, 0.1]])
    noise = torch.tensor([[1.0, 1.0, 1.0], [-9.0, 9.0, -9.0]])
    smooth = td3_torch.smooth_action(act, noise, 0.2, 0.5, low, high)
    expected = [[1.0 + 0.4, 0.5 + 0.1, 1.0], [1.0 - 1.0, 0.5 + 0.25, 0.0]]      # .2 noise; then .5 at most; then bounds
    np.testing.assert_allclose(smooth, expected, rtol=1e-6)


# %% Update, against textbook code
class Textbook:
    """The three algorithms as their papers have them: float64, torch.optim.Adam as it comes, nothing done fast."""

    def __init__(self, algo, agent):
        self.algo, self.args, self.updates = algo, agent.args, 0
        ac, ac_targ = agent.ac, agent.ac_targ
        names = ['q'] if algo == 'ddpg' else ['q1', 'q2']
        self.pi, self.pi_targ = self.copy(ac.pi.net), self.copy(ac_targ.pi.net)
        self.qs = nn.ModuleList([self.copy(getattr(ac, name).q) for name in names])
        self.qs_targ = nn.ModuleList([self.copy(getattr(ac_targ, name).q) for name in names])
        rates = [self.args.lr] * 2 if algo == 'sac' else [self.args.pi_lr, self.args.q_lr]
        self.pi_optimizer = torch.optim.Adam(self.pi.parameters(), lr=rates[0])
        self.q_optimizer = torch.optim.Adam(self.qs.parameters(), lr=rates[1])
        if algo == 'sac':
            self.auto = self.args.alpha == 'auto'
            start = 1.0 if self.auto else self.args.alpha
            self.log_alpha = torch.tensor(start, dtype=torch.float64).log().requires_grad_()
            self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=self.args.lr)

    @staticmethod
    def copy(net):
        layers = [nn.Linear(layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else nn.ReLU()
                  for layer in net if isinstance(layer, (nn.Linear, nn.ReLU))]
        new = nn.Sequential(*layers)
        new.load_state_dict(dict(zip(new.state_dict(), net.state_dict().values())))
        return new.double()

    def box(self, act):
        return torch.tensor(CENTER) + torch.tensor(HALF_RANGE) * torch.tanh(act)

    def sample(self, obs, noise):
        mu, log_std = self.pi(obs).split(3, dim=-1)
        std = log_std.clamp(min=-20, max=2).exp()
        tanh = TanhTransform(cache_size=1)
        affine = AffineTransform(torch.tensor(CENTER), torch.tensor(HALF_RANGE), cache_size=1)
        act = affine(tanh(mu + std * noise))
        return act, TransformedDistribution(Normal(mu, std), [tanh, affine]).log_prob(act).sum(-1)

    def minimum(self, qs, obs, act):
        return torch.stack([q(torch.cat([obs, act], 1))[:, 0] for q in qs]).min(0).values

    def target(self, rew, next_obs, terminated, noise):
        args = self.args
        if self.algo == 'sac':
            next_act, next_logp = self.sample(next_obs, noise[1])
            next_v = self.minimum(self.qs_targ, next_obs, next_act) - self.log_alpha.exp() * next_logp
        else:
            next_act = self.box(self.pi_targ(next_obs))
            if self.algo == 'td3':
                blur = (args.target_noise * noise[0]).clamp(-args.noise_clip, args.noise_clip)
                next_act = next_act + blur * torch.tensor(HALF_RANGE)
                next_act = torch.max(torch.min(next_act, torch.tensor(HIGH)), torch.tensor(LOW))
            next_v = self.minimum(self.qs_targ, next_obs, next_act)
        return (rew + args.gamma * (1 - terminated) * next_v).detach()

    def step(self, optimizer, loss):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def update(self, batch, noise):
        self.updates += 1
        obs, act, rew, next_obs, terminated = [torch.tensor(array).double() for array in batch.values()]
        noise = torch.tensor(noise).double()
        backup = self.target(rew, next_obs, terminated, noise)
        losses = [nn.functional.mse_loss(q(torch.cat([obs, act], 1))[:, 0], backup) for q in self.qs]
        self.step(self.q_optimizer, sum(losses))
        if self.algo == 'td3' and self.updates % self.args.policy_delay:
            return

        if self.algo == 'sac':
            act_pi, logp = self.sample(obs, noise[0])
            alpha = self.log_alpha.exp().detach()
            self.step(self.pi_optimizer, (alpha * logp - self.minimum(self.qs, obs, act_pi)).mean())
            if self.auto:
                entropy_in_half_ranges = -logp.detach().mean() - np.log(HALF_RANGE).sum()
                self.step(self.alpha_optimizer, self.log_alpha * (entropy_in_half_ranges + 3))
        else:
            self.step(self.pi_optimizer, -self.minimum(self.qs[:1], obs, self.box(self.pi(obs))).mean())

        pairs = [(self.pi, self.pi_targ), (self.qs, self.qs_targ)]
        for p, p_targ in [pair for net, targ in pairs for pair in zip(net.parameters(), targ.parameters())]:
            p_targ.data = self.args.polyak * p_targ.data + (1 - self.args.polyak) * p.data


@variants
def test_update_is_the_textbooks(algo, changes):
    rates = dict(lr=2e-3) if algo == 'sac' else dict(pi_lr=2e-3, q_lr=5e-4)
    agent, rng = make_agent(algo, gamma=0.9, polyak=0.8, **rates, **changes), np.random.default_rng(2)
    book, start = Textbook(algo, agent), numbers(agent.ac)
    for i in range(1, 11):
        batch, noise = make_batch(rng), make_noise(agent, rng)
        update(agent, batch, noise)
        book.update(batch, noise)
        if i in (1, 10):
            for ours, theirs in [(agent.pi, book.pi), (agent.q, book.qs), (agent.ac_targ.pi, book.pi_targ)]:
                np.testing.assert_allclose(numbers(ours), numbers(theirs), rtol=0, atol=1e-5)
            q_targ = nn.ModuleList([q for name, q in agent.ac_targ.named_children() if name != 'pi'])
            np.testing.assert_allclose(numbers(q_targ), numbers(book.qs_targ), rtol=0, atol=1e-5)
            if algo == 'sac':
                np.testing.assert_allclose(agent.temperature[0].item(), book.log_alpha.item(), rtol=0, atol=1e-5)
    assert agent.updates == 10
    assert np.abs(numbers(agent.ac) - start).max() > 1e-3


@variants
def test_a_group_of_updates_is_one_after_the_other(algo, changes):
    together, apart, rng = make_agent(algo, **changes), make_agent(algo, **changes), np.random.default_rng(2)
    batches, noise = zip(*[(make_batch(rng), make_noise(together, rng)) for _ in range(5)])
    group = together.update({key: np.stack([batch[key] for batch in batches]) for key in batches[0]}, np.stack(noise))
    assert together.updates == 5 and isinstance(group, list)
    for metrics, *inputs in zip(group, batches, noise, strict=True):
        alone = update(apart, *inputs)
        assert metrics.keys() == alone.keys()
        for key, value in alone.items():
            np.testing.assert_array_equal(metrics[key], value)
    np.testing.assert_array_equal(numbers(together.ac), numbers(apart.ac))
    np.testing.assert_array_equal(numbers(together.ac_targ), numbers(apart.ac_targ))


@pytest.mark.parametrize('polyak', [0.995, 0.7])
@algos
def test_targets_move_by_polyak(algo, polyak):
    changes = dict(policy_delay=1) if algo == 'td3' else {}
    agent, rng = make_agent(algo, polyak=polyak, **changes), np.random.default_rng(3)
    before = numbers(agent.ac_targ).astype(np.float64)
    update(agent, make_batch(rng), make_noise(agent, rng))
    expected = polyak * before + (1 - polyak) * numbers(agent.ac)
    np.testing.assert_allclose(numbers(agent.ac_targ), expected, rtol=1e-6, atol=1e-7)
    assert np.abs(expected - before).max() > 1e-5


@algos
def test_targets_start_as_copies_and_never_get_gradients(algo):
    agent, rng = make_agent(algo, same_targets=True), np.random.default_rng(4)
    np.testing.assert_array_equal(numbers(agent.ac_targ), numbers(agent.ac))
    for _ in range(2):
        update(agent, make_batch(rng), make_noise(agent, rng))
    assert not any(p.requires_grad or p.grad is not None for p in agent.ac_targ.parameters())
    ours, targets = ({p.data_ptr() for p in net.parameters()} for net in (agent.ac, agent.ac_targ))
    assert not ours & targets                                                       # they share no memory


@variants
def test_each_step_touches_its_own_network_alone(algo, changes):
    changes = dict(changes, policy_delay=1) if algo == 'td3' else changes
    agent, rng = make_agent(algo, **changes), np.random.default_rng(5)
    update(agent, make_batch(rng), make_noise(agent, rng))                           # from now on gradients are there

    def state(net):
        return numbers(net), np.concatenate([p.grad.numpy().ravel() for p in net.parameters()])
    step, seen = agent.q_optimizer.step, {}

    def step_and_look():
        step()
        seen.update(pi=state(agent.pi), q=state(agent.q))
    agent.q_optimizer.step = step_and_look
    before = state(agent.pi), state(agent.q)
    update(agent, make_batch(rng), make_noise(agent, rng))
    np.testing.assert_array_equal(seen['pi'], before[0])                            # by the step of q
    np.testing.assert_array_equal(seen['q'], state(agent.q))                        # by the step of the policy
    assert np.abs(seen['q'][1]).max() > 0 and (seen['q'][0] != before[1][0]).any()
    assert np.abs(state(agent.pi)[1]).max() > 0 and (state(agent.pi)[0] != before[0][0]).any()


def test_td3_moves_policy_and_targets_every_policy_delay_updates():
    agent, rng = make_agent('td3', policy_delay=3), np.random.default_rng(6)
    for number in range(1, 8):
        before = [numbers(net) for net in (agent.q, agent.pi, agent.ac_targ)]
        metrics = update(agent, make_batch(rng), make_noise(agent, rng))
        moved = [(numbers(net) != old).any() for net, old in zip((agent.q, agent.pi, agent.ac_targ), before)]
        assert moved == [True, number % 3 == 0, number % 3 == 0]
        assert ('LossPi' in metrics) == (number % 3 == 0)


# %% SAC: the squashed Gaussian
def make_actor(mu, log_std, low=(-1.0,), high=(3.0,), dtype=torch.float64):
    """A policy with the same distribution for every observation."""
    low, high = np.array(low, np.float32), np.array(high, np.float32)
    actor = sac_torch.SquashedGaussianMLPActor(1, len(low), (), nn.ReLU, low, high).to(dtype)
    set_policy(actor, mu, log_std)
    return actor


def sample(actor, noise):
    """Actions and log-probabilities for a column of noise, each as an array."""
    noise = torch.as_tensor(noise, dtype=actor.center.dtype).reshape(-1, len(actor.center))
    return [x.detach().numpy() for x in actor(torch.zeros(len(noise), 1, dtype=noise.dtype), noise)]


@pytest.mark.parametrize('mu, log_std', [(0, 0), (0, -3), (1.5, -1), (-2, 0.5), (0.3, 1), (4, 0.7)])
def test_sac_density_integrates_to_one_over_the_action_interval(mu, log_std):
    u = np.linspace(-17, 17, 200001)                                    # tanh(17) is 1 but for 3e-15
    act, logp = sample(make_actor(mu, log_std), (u - mu) / np.exp(log_std))
    act = act[:, 0]
    assert abs(act[0] + 1) < 1e-9 and abs(act[-1] - 3) < 1e-9
    assert np.trapezoid(np.exp(logp), act) == pytest.approx(1, abs=1e-5)
    # It is the density of the actions drawn, and not only a density: it gives their mean too.
    noise = np.random.default_rng(0).standard_normal(100000)
    drawn, _ = sample(make_actor(mu, log_std), noise)
    mean = np.trapezoid(act * np.exp(logp), act)
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / np.sqrt(len(noise)))


def test_sac_logp_is_a_numerical_change_of_variables():
    mu, log_std, noise = np.array([0.4, -1.1]), np.array([-0.5, 0.3]), np.random.default_rng(0).normal(size=(50, 2))
    actor, h = make_actor(mu, log_std, low=(-1, 0.5), high=(3, 1)), 1e-6
    _, logp = sample(actor, noise)
    slope = (sample(actor, noise + h)[0] - sample(actor, noise - h)[0]) / (2 * h)
    expected = (-noise**2 / 2 - np.log(2 * np.pi) / 2 - np.log(slope)).sum(axis=1)
    np.testing.assert_allclose(logp, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize('mu', [-50, -20, -9, 0, 9, 20, 50])
@pytest.mark.parametrize('log_std', [-30, -20, -5, 0, 2, 30])
def test_sac_logp_is_exact_at_the_extremes(mu, log_std):
    """In float32, as it is used; 1 - tanh(u)^2 = 1 / cosh(u)^2 is computed where it cannot vanish: in float64."""
    actor, noise = make_actor(mu, log_std, dtype=torch.float32), np.linspace(-4, 4, 41)
    act, logp = sample(actor, noise)
    std = np.exp(np.clip(log_std, -20, 2))
    u = mu + std * noise
    expected = -noise**2 / 2 - np.log(2 * np.pi) / 2 - np.log(std) - np.log(2) + 2 * np.log(np.cosh(u))
    np.testing.assert_allclose(logp, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(act[:, 0], 1 + 2 * np.tanh(u), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('mu', [-50, 0, 50])
@pytest.mark.parametrize('log_std', [-30, -20, 0, 2, 30])
def test_sac_gradients_are_finite_at_the_extremes(mu, log_std):
    actor, noise = make_actor(mu, log_std, dtype=torch.float32), torch.linspace(-4, 4, 41).reshape(-1, 1)
    act, logp = actor(torch.ones(41, 1), noise)
    (logp.sum() + act.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in actor.parameters())
    # d logp / d mu is that of 2 log cosh(u), 2 tanh(u); of the action, 2 (1 - tanh(u)^2).
    tanh = np.tanh(mu + np.exp(np.clip(log_std, -20, 2)) * noise.numpy().astype(np.float64))
    *_, last = [layer for layer in actor.net if isinstance(layer, nn.Linear)]
    assert last.bias.grad[0].item() == pytest.approx((2 * tanh + 2 * (1 - tanh**2)).sum(), rel=1e-4, abs=1e-3)


def test_sac_log_std_is_clamped_in_torch_and_in_numpy():
    agent = make_agent('sac', obs_shape=(1,))
    spreads = []
    for log_std in (-25, -20, -19, 1.5, 2, 5):
        set_policy(agent.pi, [0.0] * 3, [log_std] * 3)
        _, logp = agent.pi(torch.zeros(1, 1), torch.zeros(1, 3))
        assert logp.item() == pytest.approx(-3 * (np.clip(log_std, -20, 2) + np.log(2 * np.pi) / 2)
                                            - np.log(HALF_RANGE).sum(), rel=1e-5)           # the density's peak
        noise = np.full(3, 0.01 * np.exp(-np.clip(log_std, -20, 2)), np.float32)            # 0.01 standard deviations
        act = agent.act(np.zeros(1, np.float32), noise)
        np.testing.assert_allclose(act, CENTER + HALF_RANGE * np.tanh(0.01), rtol=1e-5)
        spreads.append(logp.item())
    assert spreads[0] == spreads[1] > spreads[2] > spreads[3] > spreads[4] == spreads[5]


# %% SAC: the optimum of a one-step problem is known: a density proportional to exp(rew / alpha)
def train_on_one_step(reward, updates, **changes):
    """An agent updated on uniform actions of one-step episodes."""
    low, high = np.array([-1], np.float32), np.array([3], np.float32)
    agent = make_agent('sac', obs_shape=(1,), low=low, high=high, same_targets=True,
                       ac_kwargs=dict(hidden_sizes=(32, 32)), **changes)
    rng, n = np.random.default_rng(7), 128
    for _ in range(updates):
        batch = make_batch(rng, n, (1,), low, high)
        batch['rew'], batch['terminated'][:], batch['obs'][:] = reward(batch['act'][:, 0]), 1, 0
        update(agent, batch, make_noise(agent, rng, n, 1))
    act, logp = agent.pi(torch.zeros(20000, 1), torch.as_tensor(rng.standard_normal((20000, 1), dtype=np.float32)))
    return agent, act.mean().item(), act.std().item(), -logp.mean().item()


def optimum(reward, alpha):
    """Mean, standard deviation and entropy of the density proportional to exp(rew / alpha) on [-1, 3]."""
    act = np.linspace(-1, 3, 20001)
    density = np.exp(reward(act) / alpha)
    density /= np.trapezoid(density, act)
    mean = np.trapezoid(act * density, act)
    return mean, np.sqrt(np.trapezoid((act - mean)**2 * density, act)), -np.trapezoid(np.log(density) * density, act)


@pytest.mark.parametrize('reward, alpha', [(lambda act: -(act - 0.5)**2, 0.2), (lambda act: 0.5 * act, 0.5)],
                         ids=['hill', 'slope'])
def test_sac_finds_the_optimum_of_a_one_step_problem(reward, alpha):
    _, *found = train_on_one_step(reward, 500, lr=3e-3, alpha=alpha)
    np.testing.assert_allclose(found, optimum(reward, alpha), atol=0.13)


@pytest.mark.parametrize('log_std, grows', [(-4, True), (0, False)])
def test_sac_alpha_grows_while_entropy_is_below_its_target(log_std, grows):
    agent, rng = make_agent('sac', alpha='auto'), np.random.default_rng(8)
    set_policy(agent.pi, [0.0] * 3, [log_std] * 3)
    metrics = update(agent, make_batch(rng), make_noise(agent, rng))
    entropy_in_half_ranges = -metrics['LogPi'].mean() - np.log(HALF_RANGE).sum()
    assert (entropy_in_half_ranges < -3) == grows == (agent.temperature[0].item() > 0)
    assert metrics['Alpha'] == 1                                                # the one that the update used


def test_sac_gradient_of_alpha():
    log_alpha, logp_pi = torch.tensor(0.5, requires_grad=True), torch.tensor([1.0, 4.0])
    sac_torch.compute_loss_alpha(log_alpha, logp_pi, -2.0).backward()
    assert log_alpha.grad == -(2.5 - 2)


def test_sac_target_entropy_is_minus_act_dim_for_actions_in_half_ranges():
    unit = np.ones(3, np.float32)
    assert make_agent('sac', low=-unit, high=unit, alpha='auto').target_entropy == -3
    assert make_agent('sac', alpha='auto').target_entropy == pytest.approx(np.log(HALF_RANGE).sum() - 3)


def test_sac_learned_alpha_brings_the_entropy_to_its_target():
    agent, _, std, entropy = train_on_one_step(lambda act: -(act - 1)**2, 700, lr=1e-2, alpha='auto')
    assert entropy == pytest.approx(np.log(2) - 1, abs=0.1)
    # A hill's optimum is normal with variance alpha / 2 here, so its entropy log(pi e alpha) / 2 says which alpha.
    alpha = np.exp(2 * (np.log(2) - 1)) / (np.pi * np.e)
    assert np.exp(agent.temperature[0].item()) == pytest.approx(alpha, rel=0.25)
    assert std == pytest.approx(np.sqrt(alpha / 2), rel=0.15)


def test_sac_fixed_alpha_stays():
    agent, rng = make_agent('sac', alpha=0.3), np.random.default_rng(9)
    for _ in range(3):
        update(agent, make_batch(rng), make_noise(agent, rng))
    assert np.exp(agent.temperature[0].item()) == pytest.approx(0.3)


# %% Buffer
@pytest.mark.parametrize('obs_shape', [(3,), (), (2, 4, 5)])
@algos
def test_replay_keeps_the_latest_and_gives_every_field_in_its_shape(algo, obs_shape):
    buf, rng = MODULES[algo].ReplayBuffer(obs_shape, 2, 5), np.random.default_rng(0)
    rows = []
    for i in range(13):
        rows.append(dict(obs=rng.normal(size=obs_shape), act=rng.normal(size=2), rew=i + 0.5,
                         next_obs=rng.normal(size=obs_shape), terminated=i % 3 == 0))
        buf.store(*map(np.asarray, rows[i].values()))
        assert (buf.ptr, buf.size, buf.count) == ((i + 1) % 5, min(i + 1, 5), i + 1)

        batch = buf.sample_batch(np.random.default_rng(i), 200)                     # so many that every row is drawn
        assert list(batch) == ['obs', 'act', 'rew', 'next_obs', 'terminated']
        shapes = [(200, *obs_shape), (200, 2), (200,), (200, *obs_shape), (200,)]
        assert [array.shape for array in batch.values()] == shapes
        assert all(array.dtype == np.float32 for array in batch.values())
        assert set(batch['rew']) == {row['rew'] for row in rows[-5:]}               # the oldest are replaced
        for key, array in batch.items():
            np.testing.assert_array_equal(array, np.float32([rows[int(rew)][key] for rew in batch['rew']]))


@algos
def test_replay_draws_uniformly_with_replacement_from_filled_rows(algo):
    buf, rng = MODULES[algo].ReplayBuffer((1,), 1, 10), np.random.default_rng(0)
    for i in range(1, 8):
        buf.store(np.array([i]), np.array([i]), i, np.array([i]), False)
    batches = np.array([buf.sample_batch(rng, 7)['rew'] for _ in range(2000)])
    values, counts = np.unique(batches, return_counts=True)
    assert values.tolist() == [1, 2, 3, 4, 5, 6, 7]                                 # never a row not yet filled
    assert ((counts - 2000)**2 / 2000).sum() < 22.5                                 # chi squared: 1 in 1000 is beyond
    distinct = np.mean([len(set(batch)) == 7 for batch in batches])
    assert distinct == pytest.approx(5040 / 7**7, abs=0.01)                         # without replacement: always


@pytest.mark.parametrize('obs_shape', [(3,), (), (2, 4, 5)])
@algos
def test_many_batches_at_once_are_those_one_after_the_other(algo, obs_shape):
    buf, rng = MODULES[algo].ReplayBuffer(obs_shape, 2, 9), np.random.default_rng(0)
    for i in range(9):
        buf.store(rng.normal(size=obs_shape), rng.normal(size=2), i, rng.normal(size=obs_shape), i % 2 == 0)
    many, rng = buf.sample_batch(np.random.default_rng(1), 4, 7), np.random.default_rng(1)
    for i in range(4):
        one = buf.sample_batch(rng, 7)
        assert list(one) == list(many)
        for key, array in one.items():
            np.testing.assert_array_equal(many[key][i], array)


# %% Acting
@algos
def test_numpy_policy_is_the_torch_policy(algo):
    torch_names, rng = {name.lower(): name for name in dir(nn)}, np.random.default_rng(0)
    for name in ACTIVATIONS:
        kwargs = dict(hidden_sizes=(16, 8), activation=getattr(nn, torch_names[name]))
        agent = make_agent(algo, obs_shape=(2, 3), ac_kwargs=kwargs)
        for _ in range(2):                                                          # also after an update
            obs = rng.normal(scale=3, size=(20, 2, 3)).astype(np.float32)
            noise = rng.standard_normal((20, 3), dtype=np.float32)
            inputs = map(torch.as_tensor, (obs, noise) if algo == 'sac' else (obs,))
            expected = agent.ac.pi(*inputs)
            expected = (expected[0] if algo == 'sac' else expected).detach().numpy()
            acts = [agent.act(o, n) if algo == 'sac' else agent.act(o) for o, n in zip(obs, noise)]
            np.testing.assert_allclose(acts, expected, rtol=1e-5, atol=1e-5)
            assert acts[0].shape == (3,) and acts[0].dtype == np.float32
            update(agent, make_batch(rng, obs_shape=(2, 3)), make_noise(agent, rng))


@algos
def test_policy_reaches_the_bounds_of_each_dimension_and_not_beyond(algo):
    agent, obs = make_agent(algo), np.ones(4, np.float32)
    *_, last = [layer for layer in agent.pi.net if isinstance(layer, nn.Linear)]
    for bias, bound in ((-100, LOW), (0, CENTER), (100, HIGH)):
        with torch.no_grad():
            last.weight.zero_()
            last.bias[:3] = bias
        np.testing.assert_allclose(agent.act(obs), bound, rtol=1e-6)
        noise = () if algo != 'sac' else (torch.zeros(1, 3),)
        act = agent.ac.pi(torch.ones(1, 4), *noise)
        np.testing.assert_allclose((act[0] if algo == 'sac' else act).detach().numpy()[0], bound, rtol=1e-6)


@pytest.mark.parametrize('algo', ['ddpg', 'td3'])
def test_exploration_noise_is_in_half_ranges_and_clipped_to_each_bound(algo):
    agent, rng = make_agent(algo, act_noise=0.3), np.random.default_rng(0)
    obs = rng.normal(size=4).astype(np.float32)
    noise = rng.uniform(-1, 1, (50, 3)).astype(np.float32)
    mean = squash(dense(agent.pi, obs))
    assert (np.abs(mean - CENTER) < 0.6 * HALF_RANGE).all()                         # far enough: nothing is clipped
    acts = np.array([agent.act(obs, row) for row in noise])
    np.testing.assert_allclose(acts - mean, 0.3 * HALF_RANGE * noise, rtol=1e-3, atol=1e-6)
    assert acts.dtype == np.float32
    np.testing.assert_array_equal(agent.act(obs, np.array([100, -100, 100], np.float32)), [HIGH[0], LOW[1], HIGH[2]])
    np.testing.assert_array_equal(agent.act(obs, np.array([-100, 100, -100], np.float32)), [LOW[0], HIGH[1], LOW[2]])


def test_sac_explores_with_its_own_distribution():
    agent, rng = make_agent('sac'), np.random.default_rng(0)
    obs, noise = rng.normal(size=4).astype(np.float32), rng.standard_normal((50, 3), dtype=np.float32)
    expected, _ = sac_by_hand(agent.pi, np.tile(obs, (50, 1)), noise)
    np.testing.assert_allclose([agent.act(obs, row) for row in noise], expected, rtol=1e-5)
    assert ((expected >= LOW) & (expected <= HIGH)).all()


@algos
def test_test_episodes_are_deterministic(algo):
    agent, stored = make_agent(algo, obs_shape=(2,)), []
    env = Toy(length=4)
    env.draw_obs = lambda: np.array([0.5, -0.5], np.float32)
    logger = SimpleNamespace(store=lambda **values: stored.append(values))
    MODULES[algo].test_agent(agent, env, logger, 3, 1000)
    mean = dense(agent.pi, env.draw_obs())[:3]
    np.testing.assert_allclose(env.received, np.tile(squash(mean), (12, 1)), rtol=1e-5)
    assert stored == [dict(TestEpRet=4, TestEpLen=4)] * 3
    stored.clear()
    MODULES[algo].test_agent(agent, env, logger, 2, 3)                              # max_ep_len cuts them
    assert stored == [dict(TestEpRet=3, TestEpLen=3)] * 2
    np.testing.assert_array_equal(agent.ac.act(env.draw_obs(), deterministic=True), agent.act(env.draw_obs()))


@algos
def test_first_start_steps_actions_are_uniform_over_the_box(algo, monkeypatch, tmp_path):
    envs, policy_act = [], np.array([0, 0.6, -2.2], np.float32)
    monkeypatch.setattr(MODULES[algo].Agent, 'act', lambda self, obs, noise=None: policy_act)
    train(algo, lambda: envs.append(Toy()) or envs[-1], tmp_path, start_steps=1501, steps_per_epoch=800,
          update_after=10000, num_test_episodes=0)
    acts = np.array(envs[0].received)
    assert acts.shape == (1600, 3)
    assert (acts[1501:] == policy_act).all() and not (acts[:1501] == policy_act).any()      # 1501 of them, to the step
    unit = np.sort((acts[:1501] - LOW) / (HIGH - LOW), axis=0)
    assert unit.min() >= 0 and unit.max() <= 1
    distance = np.abs(unit - (np.arange(1501)[:, None] + 0.5) / 1501).max(axis=0)
    assert (distance < 1.95 / np.sqrt(1501)).all()                      # Kolmogorov and Smirnov: 1 in 1000 is beyond
    assert np.abs(np.corrcoef(acts[:1501].T) - np.eye(3)).max() < 0.1               # the dimensions are independent


# %% Training: what ends an episode, and what that is worth
@pytest.mark.parametrize('ends', ['time limit', 'max_ep_len', 'termination'])
@algos
def test_truncation_is_bootstrapped_through_and_termination_is_not(algo, ends, buffers, tmp_path):
    env_fn = {'time limit': lambda: gym.wrappers.TimeLimit(Toy(), 5), 'max_ep_len': Toy,
              'termination': lambda: Toy(length=5)}[ends]
    rates = dict(lr=1e-2, alpha=0.2) if algo == 'sac' else dict(pi_lr=1e-4, q_lr=1e-2)
    agent = train(algo, env_fn, tmp_path, max_ep_len=5 if ends == 'max_ep_len' else 1000, steps_per_epoch=350, epochs=1,
                  start_steps=350, update_after=50, batch_size=64, gamma=0.8, polyak=0.8, **rates)
    _, [row] = read_progress(tmp_path)
    assert float(row['AverageEpRet']) == float(row['EpLen']) == 5
    buf, = buffers
    assert buf.size == 350
    terminated = buf.data[:buf.size, -1]
    assert terminated.tolist() == ([0, 0, 0, 0, 1] * 70 if ends == 'termination' else [0] * 350)

    batch = buf.sample_batch(np.random.default_rng(0), 200)
    inputs = torch.as_tensor(batch['obs']), torch.as_tensor(batch['act'])
    # Reward 1 for ever is worth 1 / (1 - gamma) = 5; where each fifth step is the last, q = 1 + gamma 4/5 q makes 2.8.
    # SAC's next action is worth its entropy too: that of uniform actions, since no action is better than another.
    gamma, entropy = 0.8 * (4 / 5 if ends == 'termination' else 1), np.log(np.prod(HIGH - LOW))
    worth = (1 + gamma * (0.2 * entropy if algo == 'sac' else 0)) / (1 - gamma)
    for q in agent.q:
        assert q(*inputs).mean().item() == pytest.approx(worth, rel=0.15)


# %% Training: how many updates, and when
@pytest.mark.parametrize('update_every', [1, 7, 50])
@pytest.mark.parametrize('update_after', [0, 10, 1000])
@algos
def test_number_of_updates(algo, update_every, update_after, buffers, monkeypatch, tmp_path):
    at, shapes = [], set()

    def update(self, batches, noise):
        self.updates += len(noise)
        at.extend([buffers[0].count] * len(noise))
        shapes.add((batches['obs'].shape[1:], noise.shape[1:]))
        assert len(batches['obs']) == len(noise)
        return []
    monkeypatch.setattr(MODULES[algo].Agent, 'update', update)
    agent = train(algo, Toy, tmp_path, steps_per_epoch=373, epochs=3, update_every=update_every,
                  update_after=update_after, replay_size=2000, num_test_episodes=0)
    assert agent.updates == len(at) == 1119 // update_every * update_every - update_after
    for steps in range(1, 1120):                                        # and so after every single step
        assert np.searchsorted(at, steps, side='right') == max(steps // update_every * update_every - update_after, 0)
    assert shapes == {((16, 2), (dict(ddpg=0, td3=1, sac=2)[algo], 16, 3))}


@algos
def test_batches_of_images_are_drawn_a_few_at_a_time(algo, monkeypatch, tmp_path):
    """All of a group at once could be more than fits into memory: never more than 64 MB."""
    drawn = []

    def update(self, batches, noise):
        self.updates += len(noise)
        drawn.append((len(noise), sum(array.nbytes for array in batches.values())))
        return []
    monkeypatch.setattr(MODULES[algo].Agent, 'update', update)
    images = functools.partial(SmallEnv, Box(-1, 1, (256, 256)), Box(LOW, HIGH))
    agent = train(algo, images, tmp_path, update_every=20, update_after=0, replay_size=50, num_test_episodes=0)
    assert agent.updates == 80 and [n for n, _ in drawn] == [7, 7, 6] * 4
    assert max(size for _, size in drawn) <= 2**26


# %% Training: the table
def spread(*keys):
    return [f'{statistic}{key}' for key in keys for statistic in ('Average', 'Std', 'Max', 'Min')]


@variants
def test_columns(algo, changes, tmp_path):
    train(algo, lambda: Toy(length=9), tmp_path, **changes)
    middle = dict(ddpg=spread('QVals'), td3=spread('Q1Vals', 'Q2Vals'), sac=spread('Q1Vals', 'Q2Vals', 'LogPi'))[algo]
    alpha = ['Alpha'] if changes else []
    columns, rows = read_progress(tmp_path)
    assert columns == ['Epoch', *spread('EpRet', 'TestEpRet'), 'EpLen', 'TestEpLen', 'TotalEnvInteracts', *middle,
                       *alpha, 'LossPi', 'LossQ', 'Time']
    assert all(cell != '' and np.isfinite(float(cell)) for row in rows for cell in row.values())
    assert [row['TotalEnvInteracts'] for row in rows] == ['40', '80']


@variants
def test_epoch_without_update_or_episode_leaves_cells_empty(algo, changes, tmp_path):
    train(algo, Toy, tmp_path, update_after=60, max_ep_len=60, **changes)
    columns, (first, second) = read_progress(tmp_path)
    learned = columns[columns.index('TotalEnvInteracts') + 1:-1]
    assert [key for key, cell in first.items() if cell == ''] == [*spread('EpRet'), 'EpLen', *learned]
    assert '' not in second.values()                                    # its episode of 60 steps and its 20 updates
    assert float(second['AverageEpRet']) == float(second['EpLen']) == 60


def test_td3_epoch_without_policy_update(tmp_path):
    train('td3', Toy, tmp_path, policy_delay=1000)
    assert all(row['LossPi'] == '' and row['LossQ'] != '' for row in read_progress(tmp_path)[1])


@variants
def test_same_seed_same_table(algo, changes, tmp_path):
    runs, env_fn = [], functools.partial(Toy, length=9, reward=lambda obs, act: float(act[0]))
    for folder, seed in (('a', 3), ('b', 3), ('c', 4)):
        train(algo, env_fn, tmp_path / folder, seed=seed, **changes)
        _, rows = read_progress(tmp_path / folder)
        runs.append([{key: cell for key, cell in row.items() if key != 'Time'} for row in rows])
    assert runs[0] == runs[1]
    assert all(runs[0][-1][key] != runs[2][-1][key] for key in ('LossQ', 'AverageEpRet', 'AverageTestEpRet'))


# %% Training: environments and networks
@pytest.mark.parametrize('spaces, words', [
    (dict(action_space=Discrete(3)), 'Discrete.*must be Box'),
    (dict(action_space=Box(np.array([-1, -1], np.float32), np.array([1, np.inf], np.float32))), 'bounds.*use vpg'),
    (dict(action_space=Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32))), 'only one value.*leave that'),
    (dict(observation_space=Dict(a=Box(-1, 1, (2,)))), 'Dict.*must be Box or Discrete'),
], ids=['discrete actions', 'half a bound missing', 'a dimension without width', 'dict observations'])
@algos
def test_refusals_say_what_is_supported_and_leave_nothing(algo, spaces, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        train(algo, lambda: SmallEnv(**{'action_space': Box(LOW, HIGH), **spaces}), tmp_path / 'run')
    assert not list(tmp_path.iterdir())


class Dial(SmallEnv):
    """Actions are whole numbers, and nothing else is taken."""
    def step(self, action):
        assert action.dtype == np.int64 and self.action_space.contains(action)
        return super().step(action)


@algos
def test_actions_of_whole_numbers_are_rounded(algo, tmp_path):
    env = make_env(lambda: Dial(Box(-1, 1, (2,)), Box(-3, 5, (2,), np.int64)), discrete_actions=False)
    env.reset(seed=0)
    rounded, step = [], env.env.step
    env.env.step = lambda action: rounded.append(action) or step(action)
    env.step(np.array([2.6, -2.6], np.float32))
    env.step(np.array([9.0, 0.4], np.float32))
    np.testing.assert_array_equal(rounded, [[3, -3], [5, 0]])
    train(algo, lambda: Dial(Box(-1, 1, (2,)), Box(-3, 5, (2,), np.int64)), tmp_path)


@algos
def test_a_policy_may_have_frozen_layers(algo):
    class Frozen(MODULES[algo].MLPActorCritic):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            next(layer for layer in self.pi.net if isinstance(layer, nn.Linear)).requires_grad_(False)
    agent, rng = make_agent(algo, actor_critic=Frozen), np.random.default_rng(0)
    before = [p.clone() for p in agent.pi.parameters()]
    for _ in range(2):                                                  # td3 moves its policy at every second update
        update(agent, make_batch(rng), make_noise(agent, rng))
    moved = [not torch.equal(*pair) for pair in zip(before, agent.pi.parameters())]
    assert moved == [False, False, True, True, True, True]


def test_sac_logs_a_learned_alpha_alone_and_takes_none_at_all(recwarn):
    rng = np.random.default_rng(0)
    for alpha, columns in (('auto', {'Alpha'}), (0.2, set()), (0, set())):
        agent = make_agent('sac', alpha=alpha)
        metrics = update(agent, make_batch(rng), make_noise(agent, rng))
        assert set(metrics) & {'Alpha'} == columns and all(np.isfinite(value).all() for value in metrics.values())
    assert not recwarn.list


class Lamp(SmallEnv):
    """An image, dark or bright: the brighter, the larger the right action. Episodes of one step."""
    def __init__(self):
        super().__init__(Box(0, 255, (1, 8, 8), np.uint8), Box(LOW[:1], HIGH[:1]), length=1,
                         reward=lambda obs, act: -(act[0] - 2 * obs.mean() / 255)**2)

    def draw_obs(self):
        return np.full((1, 8, 8), self.np_random.integers(256), np.uint8)


class CnnQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(4 * 9 + 1, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, act):
        return self.head(torch.cat([self.features(obs / 255), act], 1))[:, 0]


class CnnPi(nn.Module):
    """A deterministic policy or, if it gets noise, a random one with a fixed standard deviation before its tanh."""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 9, 1))

    def forward(self, obs, noise=None):
        mu = self.net(obs / 255)
        if noise is None:
            return 1 + 2 * torch.tanh(mu)
        u = mu + 0.1 * noise
        return 1 + 2 * torch.tanh(u), (Normal(mu, 0.1).log_prob(u) - torch.log(2 * (1 - torch.tanh(u)**2))).sum(-1)


class CnnActorCritic(nn.Module):
    """A user's own networks."""
    def __init__(self, observation_space, action_space):
        super().__init__()
        assert observation_space.shape == (1, 8, 8) and action_space.shape == (1,)
        self.pi, self.q1, self.q2 = CnnPi(), CnnQ(), CnnQ()
        self.q = self.q1

    def act(self, obs, deterministic=False):
        with torch.no_grad():
            u = self.pi.net(obs[None] / 255) + (0 if deterministic else 0.1 * torch.randn(1))
            return 1 + 2 * torch.tanh(u)[0].numpy()


@algos
def test_own_networks_learn_from_images(algo, tmp_path):
    rates = dict(lr=3e-3, alpha=0.01) if algo == 'sac' else dict(pi_lr=3e-3, q_lr=1e-2)
    agent = train(algo, Lamp, tmp_path, actor_critic=CnnActorCritic, ac_kwargs={}, steps_per_epoch=400, epochs=1,
                  start_steps=300, update_after=50, batch_size=32, num_test_episodes=50, **rates)
    assert isinstance(agent.ac, CnnActorCritic) and agent.policy is None
    _, [row] = read_progress(tmp_path)
    assert float(row['AverageTestEpRet']) > -0.15                       # a constant action: -1/3 at best
    image, noise = np.full((1, 8, 8), 100, np.float32), np.ones(1, np.float32)
    assert agent.act(image) == agent.act(image) != agent.act(image, noise)
