"""DDPG, TD3 and SAC: every equation against an independent computation, in both frameworks; and the training loop."""
import functools
import importlib
import importlib.util
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, Sequence
from torch import nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from common.env_tools import make_env
from common.errors import UserError
from helpers import SmallEnv, make_args, read_progress

FRAMEWORKS = ['torch', 'tf1'] if importlib.util.find_spec('tensorflow') else ['torch']
NAMES = [f'{algo}_{framework}' for framework in FRAMEWORKS for algo in ('ddpg', 'td3', 'sac')]
Q_NAMES = dict(ddpg=['q'], td3=['q1', 'q2'], sac=['q1', 'q2'])
VARIANTS = {f'{name} {" ".join(changes.values())}': (name, changes) for name in NAMES
            for changes in ({}, dict(alpha='auto'))[:2 if 'sac' in name else 1]}
LOW, HIGH = np.array([-1, 0.5, -3], np.float32), np.array([3, 1, -2], np.float32)       # none symmetric, none alike
Toy = functools.partial(SmallEnv, Box(-1, 1, (2,)), Box(LOW, HIGH))                      # reward 1, and no end

each_file = pytest.mark.parametrize('name', NAMES)
each_variant = pytest.mark.parametrize('name, changes', VARIANTS.values(), ids=VARIANTS)
each_sac = pytest.mark.parametrize('name', [name for name in NAMES if 'sac' in name])
# The loop is the same in twins, byte for byte (tests/test_sameness.py): these are enough for what the loop alone does.
each_loop = pytest.mark.parametrize('name', [name for name in NAMES if 'torch' in name])


# %% Helpers: an agent of either framework, as numbers
file = importlib.import_module                      # when it is needed: processes of mpirun need one framework alone


def make_agent(name, obs_shape=(4,), act_dim=3, seed=0, same_targets=False, **changes):
    """An agent whose target networks are not where its networks are."""
    args = make_args(getattr(file(name), name.split('_')[0]), **{'ac_kwargs': dict(hidden_sizes=(16, 8)), **changes})
    spaces = SimpleNamespace(observation_space=Box(-1, 1, obs_shape), action_space=Box(-1, 1, (act_dim,)))
    rng = np.random.default_rng(seed)
    agent = file(name).Agent(spaces, rng, args)
    for p in () if same_targets else parameters(agent.ac_targ):
        array = values(agent, p)
        assign(agent, p, array + rng.normal(scale=0.1, size=array.shape))
    return agent


def linear_layers(net):
    modules = net.modules() if isinstance(net, nn.Module) else net.submodules
    return [layer for layer in modules if type(layer).__name__ == 'Linear']


def parameters(*nets):
    """Each layer's weight and bias, which torch and TensorFlow would list in another order."""
    return [p for net in nets for layer in linear_layers(net) for p in (layer.weight, layer.bias)]


def values(agent, tensors):
    """A tensor as an array of its own, or a list of tensors as a list of arrays."""
    if hasattr(agent, 'sess'):
        return agent.sess.run(tensors)
    return [x.detach().numpy().copy() for x in tensors] if isinstance(tensors, list) else values(agent, [tensors])[0]


def assign(agent, p, array):
    if hasattr(agent, 'sess'):
        p.load(array, agent.sess)
    else:
        p.data.copy_(torch.as_tensor(array))


def numbers(agent, *nets):
    """All parameters of these networks, as one vector."""
    return np.concatenate([array.ravel() for array in values(agent, parameters(*nets))])


def qs(ac):
    """The action-value functions: one of DDPG, two of the others."""
    return [getattr(ac, name) for name in ('q', 'q1', 'q2') if hasattr(ac, name)]


def call_net(agent, net, *arrays):
    """What a network of the agent gives for a batch of arrays."""
    if hasattr(agent, 'sess'):
        with agent.sess.graph.as_default():
            return agent.sess.run(net(*[np.asarray(array, np.float32) for array in arrays]))
    with torch.no_grad():
        result = net(*[torch.as_tensor(array, dtype=torch.float32) for array in arrays])
    return tuple(x.numpy() for x in result) if isinstance(result, tuple) else result.numpy()


def call(name, function, *args):
    """What a function of tensors in an algorithm file gives for numbers; lists become tensors."""
    function = getattr(file(name), function)
    if 'torch' in name:
        return function(*[torch.tensor(arg) if isinstance(arg, list) else arg for arg in args]).numpy()
    tf = file(name).tf
    with tf.Graph().as_default(), tf.Session() as sess:
        return sess.run(function(*[tf.constant(arg) if isinstance(arg, list) else arg for arg in args]))


def log_alpha(agent):
    return values(agent, agent.temperature.log_alpha)


def set_policy(agent, mu, log_std=()):
    """Let the policy have this output of its last layer whatever it observes: (mean, log_std) for SAC."""
    last = linear_layers(agent.ac.pi)[-1]
    assign(agent, last.weight, np.zeros(last.weight.shape))
    assign(agent, last.bias, np.array([*mu, *log_std]))


def make_batch(rng, n=32, obs_shape=(4,), act_dim=3):
    """Transitions as ReplayBuffer.sample_batch gives them, some of them terminated."""
    batch = dict(obs=rng.normal(size=(n, *obs_shape)), act=rng.uniform(-1, 1, (n, act_dim)), rew=rng.normal(size=n),
                 next_obs=rng.normal(size=(n, *obs_shape)), terminated=rng.random(n) < 0.3)
    return {key: array.astype(np.float32) for key, array in batch.items()}


def make_noise(agent, rng, n=32, act_dim=3):
    return rng.standard_normal((agent.noise_arrays, n, act_dim), dtype=np.float32)


def train(name, env_fn, folder, **changes):
    """A short run of tiny networks; returns its agent."""
    small = dict(ac_kwargs=dict(hidden_sizes=(16,)), steps_per_epoch=40, epochs=2, replay_size=1000, batch_size=16,
                 start_steps=30, update_after=20, update_every=10, num_test_episodes=2, max_ep_len=20, save_freq=100)
    train_fn = getattr(file(name), name.split('_')[0])
    return train_fn(env_fn, **{**small, 'logger_kwargs': dict(output_dir=folder), **changes})


@pytest.fixture
def buffers(name, monkeypatch):
    """Every ReplayBuffer that the training function makes."""
    made = []

    class Kept(file(name).ReplayBuffer):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)
    monkeypatch.setattr(file(name), 'ReplayBuffer', Kept)
    return made


# %% Networks
@each_file
def test_initial_weights_are_uniform_and_drawn_from_the_generator_given(name):
    agent, rng = make_agent(name, seed=5, same_targets=True), np.random.default_rng(5)
    rng.integers(2**31)                                                 # the first draw seeds the framework
    arrays = values(agent, parameters(agent.ac.pi, *qs(agent.ac)))
    for weight, bias in zip(arrays[::2], arrays[1::2]):
        for array in (weight, bias):
            expected = rng.uniform(-1, 1, array.shape) / np.sqrt(weight.shape[1])
            np.testing.assert_allclose(array, expected, rtol=1e-6)


# %% An update by hand: float64, and no framework
def dense(agent, net, x):
    """The answer of a relu perceptron, from its weights alone."""
    params = [array.astype(np.float64) for array in values(agent, parameters(net))]
    for i in range(0, len(params), 2):
        x = (np.maximum(x, 0) if i else x) @ params[i].T + params[i + 1]
    return x


def q_by_hand(agent, q, obs, act):
    return dense(agent, q, np.concatenate([obs.reshape(len(obs), -1), act], axis=1))[:, 0]


def sac_by_hand(agent, actor, obs, noise):
    """Actions and their log-density: that of u, over the derivative of the action by u."""
    mu, log_std = np.split(dense(agent, actor, obs), 2, axis=1)
    std = np.exp(np.clip(log_std, -20, 2))
    u = mu + std * noise
    density = np.exp(-((u - mu) / std)**2 / 2) / np.sqrt(2 * np.pi) / std
    return np.tanh(u), np.log(density * np.cosh(u)**2).sum(axis=1)                          # tanh' = 1 / cosh^2


def backup_by_hand(algo, agent, batch, noise):
    args, rew, next_obs, alive = agent.args, batch['rew'], batch['next_obs'], batch['terminated'] == 0
    entropy_bonus = 0
    if algo == 'sac':                                                               # the policy itself has no target
        next_act, next_logp = sac_by_hand(agent, agent.ac.pi, next_obs, noise[1])
        entropy_bonus = -args.alpha * next_logp
    else:
        next_act = np.tanh(dense(agent, agent.ac_targ.pi, next_obs))
    if algo == 'td3':
        smoothed = next_act + np.clip(args.target_noise * noise[0], -args.noise_clip, args.noise_clip)
        next_act = np.clip(smoothed, -1, 1)
        assert 0 < (np.abs(args.target_noise * noise) > args.noise_clip).mean() < 1         # both clips are at work
        assert (np.abs(smoothed) > 1).any(axis=0).all()
    next_q = np.min([q_by_hand(agent, q, next_obs, next_act) for q in qs(agent.ac_targ)], axis=0)
    return rew + args.gamma * np.where(alive, next_q + entropy_bonus, 0)


@each_file
def test_losses_of_an_update_are_those_computed_by_hand(name):
    algo = name.split('_')[0]
    changes = dict(td3=dict(policy_delay=1, target_noise=1.0), sac=dict(alpha=0.7)).get(algo, {})
    agent, rng = make_agent(name, gamma=0.9, **changes), np.random.default_rng(1)
    for p in parameters(agent.ac.pi, agent.ac_targ.pi):
        assign(agent, p, 2 * values(agent, p))                              # some actions are near their bounds
    batch, noise = make_batch(rng), make_noise(agent, rng)
    backup = backup_by_hand(algo, agent, batch, noise)
    before = [q_by_hand(agent, q, batch['obs'], batch['act']) for q in qs(agent.ac)]
    act_pi, logp_pi = np.tanh(dense(agent, agent.ac.pi, batch['obs'])), 0
    if algo == 'sac':
        act_pi, logp_pi = sac_by_hand(agent, agent.ac.pi, batch['obs'], noise[0])
    metrics = agent.update(batch, noise)

    for key, q in zip(Q_NAMES[algo], before):
        np.testing.assert_allclose(metrics[f'{key.upper()}Vals'], q, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics['LossQ'], sum(np.mean((q - backup)**2) for q in before), rtol=1e-5)

    # The policy's loss is taken after the step of q, and before its own.
    q_pi = [q_by_hand(agent, q, batch['obs'], act_pi) for q in qs(agent.ac)]
    q_pi = np.minimum(*q_pi) if algo == 'sac' else q_pi[0]
    np.testing.assert_allclose(metrics['LossPi'], np.mean(changes.get('alpha', 0) * logp_pi - q_pi), rtol=1e-5)
    if algo == 'sac':
        np.testing.assert_allclose(metrics['LogPi'], logp_pi, rtol=1e-4, atol=1e-4)


# %% Losses: the pure functions, with numbers
@each_file
def test_backup_ends_with_termination_alone(name):
    rew, terminated, next_q = [1.0, 2.0], [0.0, 1.0], [10.0, 10.0]
    if 'sac' in name:                                                   # entropy 3, worth 6: the future is worth 16
        assert call(name, 'compute_backup', rew, terminated, next_q, [-3.0, -3.0], 2.0, 0.5).tolist() == [9, 2]
    else:
        assert call(name, 'compute_backup', rew, terminated, next_q, 0.5).tolist() == [6, 2]


@each_file
def test_losses_on_numbers(name):
    q1, q2, backup = [1.0, 2.0], [0.0, 5.0], [3.0, 2.0]
    if 'ddpg' in name:
        assert call(name, 'compute_loss_q', q1, backup) == 2
    else:
        assert call(name, 'compute_loss_q', q1, q2, backup) == 2 + 9
    if 'sac' in name:
        assert call(name, 'compute_loss_pi', q2, [1.0, 3.0], 0.5) == 1 - 2.5
        assert call(name, 'compute_loss_alpha', 0.5, [1.0, 4.0], -2.0) == -0.5 * (2.5 - 2)
    else:
        assert call(name, 'compute_loss_pi', q2) == -2.5


@pytest.mark.parametrize('name', [name for name in NAMES if 'td3' in name])
def test_target_policy_smoothing_clips_the_noise_and_then_the_action(name):
    act, noise = [[0.0, 0.5, 0.9], [0.0, 0.5, -0.9]], [[1.0, -1.0, 1.0], [-9.0, 9.0, -9.0]]
    smooth = call(name, 'smooth_action', act, noise, 0.2, 0.4)
    np.testing.assert_allclose(smooth, [[0.2, 0.3, 1.0], [-0.4, 0.9, -1.0]], rtol=1e-6)     # .2 noise, .4 at most; +-1


# %% Update, against textbook code
class Textbook:
    """The three algorithms as their papers have them: float64, torch.optim.Adam as it comes, nothing done fast."""

    def __init__(self, algo, agent):
        self.algo, self.args, self.agent, self.updates = algo, agent.args, agent, 0
        self.pi, self.pi_targ = self.copy(agent.ac.pi), self.copy(agent.ac_targ.pi)
        self.qs = nn.ModuleList([self.copy(q) for q in qs(agent.ac)])
        self.qs_targ = nn.ModuleList([self.copy(q) for q in qs(agent.ac_targ)])
        rates = [self.args.lr] * 2 if algo == 'sac' else [self.args.pi_lr, self.args.q_lr]
        self.pi_optimizer = torch.optim.Adam(self.pi.parameters(), lr=rates[0])
        self.q_optimizer = torch.optim.Adam(self.qs.parameters(), lr=rates[1])
        if algo == 'sac':
            self.auto = self.args.alpha == 'auto'
            start = 1.0 if self.auto else self.args.alpha
            self.log_alpha = torch.tensor(start, dtype=torch.float64).log().requires_grad_()
            self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=self.args.lr)

    def copy(self, net):
        arrays = values(self.agent, parameters(net))
        layers = [layer for weight in arrays[::2] for layer in (nn.Linear(*weight.shape[::-1]), nn.ReLU())]
        new = nn.Sequential(*layers[:-1]).double()
        for p, array in zip(new.parameters(), arrays):
            p.data.copy_(torch.as_tensor(array))
        return new

    def sample(self, obs, noise):
        mu, log_std = self.pi(obs).split(3, dim=-1)
        std, tanh = log_std.clamp(min=-20, max=2).exp(), TanhTransform(cache_size=1)
        act = tanh(mu + std * noise)
        return act, TransformedDistribution(Normal(mu, std), [tanh]).log_prob(act).sum(-1)

    def minimum(self, qs, obs, act):
        return torch.stack([q(torch.cat([obs, act], 1))[:, 0] for q in qs]).min(0).values

    def target(self, rew, next_obs, terminated, noise):
        args = self.args
        if self.algo == 'sac':
            next_act, next_logp = self.sample(next_obs, noise[1])
            next_v = self.minimum(self.qs_targ, next_obs, next_act) - self.log_alpha.exp() * next_logp
        else:
            next_act = torch.tanh(self.pi_targ(next_obs))
            if self.algo == 'td3':
                epsilon = (args.target_noise * noise[0]).clamp(-args.noise_clip, args.noise_clip)
                next_act = (next_act + epsilon).clamp(-1, 1)
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
            if self.auto:                                               # three dimensions: the target entropy is -3
                entropy = -logp.detach().mean()
                self.step(self.alpha_optimizer, self.log_alpha * (entropy + 3))
        else:
            self.step(self.pi_optimizer, -self.minimum(self.qs[:1], obs, torch.tanh(self.pi(obs))).mean())

        pairs = [(self.pi, self.pi_targ), (self.qs, self.qs_targ)]
        for p, p_targ in [pair for net, targ in pairs for pair in zip(net.parameters(), targ.parameters())]:
            p_targ.data = self.args.polyak * p_targ.data + (1 - self.args.polyak) * p.data


@each_variant
def test_update_is_the_textbooks(name, changes):
    algo = name.split('_')[0]
    rates = dict(lr=2e-3) if algo == 'sac' else dict(pi_lr=2e-3, q_lr=5e-4)
    agent, rng = make_agent(name, gamma=0.9, polyak=0.8, **rates, **changes), np.random.default_rng(2)
    book, start = Textbook(algo, agent), numbers(agent, agent.ac)
    for i in range(1, 11):
        batch, noise = make_batch(rng), make_noise(agent, rng)
        agent.update(batch, noise)
        book.update(batch, noise)
        if i in (1, 10):
            for ours, theirs in [([agent.ac.pi], book.pi), (qs(agent.ac), book.qs),
                                 (qs(agent.ac_targ), book.qs_targ)]:
                np.testing.assert_allclose(numbers(agent, *ours), numbers(book, theirs), rtol=0, atol=1e-5)
            if algo != 'sac':                                           # whose target policy is not used
                np.testing.assert_allclose(numbers(agent, agent.ac_targ.pi), numbers(book, book.pi_targ), atol=1e-5)
            if changes:
                np.testing.assert_allclose(log_alpha(agent), book.log_alpha.item(), rtol=0, atol=1e-5)
    assert agent.updates == 10
    assert np.abs(numbers(agent, agent.ac) - start).max() > 1e-3


@pytest.mark.parametrize('polyak', [0.995, 0.7])
@each_file
def test_targets_move_by_polyak(name, polyak):
    changes = dict(policy_delay=1) if 'td3' in name else {}
    agent, rng = make_agent(name, polyak=polyak, **changes), np.random.default_rng(3)
    before = numbers(agent, *qs(agent.ac_targ)).astype(np.float64)
    agent.update(make_batch(rng), make_noise(agent, rng))
    expected = polyak * before + (1 - polyak) * numbers(agent, *qs(agent.ac))
    np.testing.assert_allclose(numbers(agent, *qs(agent.ac_targ)), expected, rtol=1e-6, atol=1e-7)
    assert np.abs(expected - before).max() > 1e-5


@each_file
def test_targets_start_as_copies_that_share_nothing(name):
    agent, rng = make_agent(name, same_targets=True, polyak=1.0), np.random.default_rng(4)
    start = numbers(agent, agent.ac)
    np.testing.assert_array_equal(numbers(agent, agent.ac_targ), start)
    for _ in range(2):
        agent.update(make_batch(rng), make_noise(agent, rng))
    np.testing.assert_array_equal(numbers(agent, agent.ac_targ), start)             # no optimizer moves them
    assert (numbers(agent, agent.ac.pi) != start[:len(numbers(agent, agent.ac.pi))]).any()


@each_loop
def test_q_is_frozen_in_the_step_of_the_policy(name):
    """Its gradient is not even computed there: that would take time, and add to what is there already."""
    agent, rng = make_agent(name, **(dict(policy_delay=1) if 'td3' in name else {})), np.random.default_rng(5)
    step, seen = agent.q_optimizer.step, []

    def gradient():
        return np.concatenate([p.grad.numpy().ravel() for p in parameters(*qs(agent.ac))])
    agent.q_optimizer.step = lambda: seen.append(gradient()) or step()
    agent.update(make_batch(rng), make_noise(agent, rng))
    np.testing.assert_array_equal(gradient(), seen[0])
    assert np.abs(seen[0]).max() > 0


@pytest.mark.parametrize('name', [name for name in NAMES if 'td3' in name])
def test_td3_delays_its_updates_of_policy_and_targets(name):
    agent, rng = make_agent(name, policy_delay=3), np.random.default_rng(6)
    nets = qs(agent.ac), [agent.ac.pi], [agent.ac_targ]
    for number in range(1, 8):
        before = [numbers(agent, *group) for group in nets]
        metrics = agent.update(make_batch(rng), make_noise(agent, rng))
        moved = [(numbers(agent, *group) != old).any() for group, old in zip(nets, before)]
        assert moved == [True, number % 3 == 0, number % 3 == 0]
        assert ('LossPi' in metrics) == (number % 3 == 0)


# %% SAC: the squashed Gaussian
def sample(agent, mu, log_std, noise):
    """Actions and log-probabilities, in float32, of a policy with this mean and log_std, for rows of noise."""
    set_policy(agent, np.atleast_1d(mu), np.atleast_1d(log_std))
    noise = np.reshape(noise, (-1, np.size(mu)))
    return call_net(agent, agent.ac.pi, np.zeros((len(noise), 1)), noise)


@each_sac
def test_sac_density_integrates_to_one_over_the_action_interval(name):
    agent, rng = make_agent(name, obs_shape=(1,), act_dim=1), np.random.default_rng(0)
    for mu, log_std in [(0, 0), (0, -3), (1.5, -1), (-2, 0.5), (0.3, 1), (4, 0.7)]:
        u = np.linspace(-17, 17, 100001)                                # tanh(17) is 1 but for 3e-15
        _, logp = sample(agent, mu, log_std, (u - mu) / np.exp(log_std))
        act, density = np.tanh(u), np.exp(logp.astype(np.float64))      # of float64, since float32 has few near 1
        assert np.trapezoid(density, act) == pytest.approx(1, abs=1e-4)
        # It is the density of the actions drawn, and not only a density: it gives their mean too.
        drawn, _ = sample(agent, mu, log_std, rng.standard_normal(100000))
        mean = np.trapezoid(act * density, act)
        assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / np.sqrt(len(drawn)))


@each_sac
def test_sac_logp_is_a_numerical_change_of_variables(name):
    agent, h = make_agent(name, obs_shape=(1,), act_dim=2), 1e-2
    mu, log_std, noise = [0.4, -1.1], [-0.5, 0.3], np.random.default_rng(0).uniform(-1.5, 1.5, (50, 2))
    _, logp = sample(agent, mu, log_std, noise)
    forward, backward = (sample(agent, mu, log_std, noise + step)[0].astype(np.float64) for step in (h, -h))
    expected = (-noise**2 / 2 - np.log(2 * np.pi) / 2 - np.log((forward - backward) / (2 * h))).sum(axis=1)
    np.testing.assert_allclose(logp, expected, rtol=0, atol=2e-3)


@each_sac
def test_sac_logp_is_exact_at_the_extremes(name):
    """1 - tanh(u)^2 = 1 / cosh(u)^2 vanishes in float32; here it is computed where it cannot: in float64."""
    agent, noise = make_agent(name, obs_shape=(1,), act_dim=1), np.linspace(-4, 4, 41)
    for mu in (-50, -20, -9, 0, 9, 20, 50):
        for log_std in (-30, -20, -5, 0, 2, 30):                        # limited to -20, ..., 2
            act, logp = sample(agent, mu, log_std, noise)
            std = np.exp(np.clip(log_std, -20, 2))
            u = mu + std * noise
            expected = -noise**2 / 2 - np.log(2 * np.pi) / 2 - np.log(std) + 2 * np.log(np.cosh(u))
            np.testing.assert_allclose(logp, expected, rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(act[:, 0], np.tanh(u), rtol=1e-5, atol=1e-5)


@each_sac
def test_sac_gradients_are_finite_and_right_at_the_extremes(name):
    agent, noise = make_agent(name, obs_shape=(1,), act_dim=1), np.linspace(-4, 4, 41, dtype=np.float32).reshape(-1, 1)
    bias = linear_layers(agent.ac.pi)[-1].bias
    if 'torch' in name:
        def gradient():
            act, logp = agent.ac.pi(torch.ones(41, 1), torch.as_tensor(noise))
            return torch.autograd.grad(logp.sum() + act.sum(), bias)[0].numpy()
    else:
        with agent.sess.graph.as_default():
            act, logp = agent.ac.pi(np.ones((41, 1), np.float32), noise)
            gradient = functools.partial(agent.sess.run, file(name).tf.gradients([logp, act], bias)[0])
    for mu in (-50, 0, 50):
        for log_std in (-30, -20, 0, 2, 30):
            set_policy(agent, [mu], [log_std])
            # d logp / d mu is that of 2 log cosh(u), 2 tanh(u); of the action, 1 - tanh(u)^2.
            std = np.exp(np.clip(log_std, -20, 2))
            tanh = np.tanh(mu + std * noise.astype(np.float64))
            by_mu, by_log_std = gradient()
            assert by_mu == pytest.approx((2 * tanh + 1 - tanh**2).sum(), rel=1e-4, abs=1e-3)
            by_u = (2 * tanh + 1 - tanh**2) * std * noise - 1
            expected = by_u.sum() if -20 <= log_std <= 2 else 0         # no gradient beyond the limits
            assert by_log_std == pytest.approx(expected, rel=1e-4, abs=1e-3)


# %% SAC: the optimum of a one-step problem is known: a density proportional to exp(rew / alpha)
def train_on_one_step(name, reward, updates, **changes):
    """An agent updated on uniform actions of one-step episodes."""
    agent = make_agent(name, obs_shape=(1,), act_dim=1, same_targets=True, ac_kwargs=dict(hidden_sizes=(32, 32)),
                       **changes)
    rng, n = np.random.default_rng(7), 128
    for _ in range(updates):
        batch = make_batch(rng, n, (1,), 1)
        batch['rew'], batch['terminated'][:], batch['obs'][:] = reward(batch['act'][:, 0]), 1, 0
        agent.update(batch, make_noise(agent, rng, n, 1))
    act, logp = call_net(agent, agent.ac.pi, np.zeros((20000, 1)), rng.standard_normal((20000, 1)))
    return agent, act.mean(), act.std(), -logp.mean()


def optimum(reward, alpha):
    """Mean, standard deviation and entropy of the density proportional to exp(rew / alpha) on [-1, 1]."""
    act = np.linspace(-1, 1, 20001)
    density = np.exp(reward(act) / alpha)
    density /= np.trapezoid(density, act)
    mean = np.trapezoid(act * density, act)
    return mean, np.sqrt(np.trapezoid((act - mean)**2 * density, act)), -np.trapezoid(np.log(density) * density, act)


@pytest.mark.parametrize('reward, alpha', [(lambda act: -(2 * act - 0.5)**2, 0.2), (lambda act: act, 0.5)],
                         ids=['hill', 'slope'])
@each_sac
def test_sac_finds_the_optimum_of_a_one_step_problem(name, reward, alpha):
    _, *found = train_on_one_step(name, reward, 500, lr=3e-3, alpha=alpha)
    np.testing.assert_allclose(found, optimum(reward, alpha), atol=0.1)


@each_sac
def test_sac_learned_alpha_brings_the_entropy_to_its_target(name):
    agent, _, std, entropy = train_on_one_step(name, lambda act: -4 * act**2, 700, lr=1e-2, alpha='auto')
    assert agent.target_entropy == -1
    assert entropy == pytest.approx(-1, abs=0.1)
    # A hill's optimum is normal with variance alpha / 8 here, so its entropy log(pi e alpha / 4) / 2 says which alpha.
    alpha = 4 * np.exp(-2) / (np.pi * np.e)
    assert np.exp(log_alpha(agent)) == pytest.approx(alpha, rel=0.25)
    assert std == pytest.approx(np.sqrt(alpha / 8), rel=0.15)


@pytest.mark.parametrize('log_std, grows', [(-4, True), (0, False)])
@each_sac
def test_sac_alpha_grows_while_entropy_is_below_minus_act_dim(name, log_std, grows):
    agent, rng = make_agent(name, alpha='auto'), np.random.default_rng(8)
    set_policy(agent, [0.0] * 3, [log_std] * 3)
    metrics = agent.update(make_batch(rng), make_noise(agent, rng))
    assert (-metrics['LogPi'].mean() < -3) == grows == (log_alpha(agent) > 0)
    assert metrics['Alpha'] == 1                                                # the one that the update used


@each_sac
def test_sac_logs_a_learned_alpha_alone_and_takes_none_at_all(name, recwarn):
    rng = np.random.default_rng(0)
    for alpha, columns in (('auto', {'Alpha'}), (0.2, set()), (0, set())):
        agent = make_agent(name, alpha=alpha)
        metrics = agent.update(make_batch(rng), make_noise(agent, rng))
        assert set(metrics) & {'Alpha'} == columns and all(np.isfinite(value).all() for value in metrics.values())
    assert not recwarn.list


# %% Buffer
@pytest.mark.parametrize('obs_shape', [(3,), (), (2, 4, 5)])
@each_loop
def test_replay_keeps_the_latest_and_gives_every_field_in_its_shape(name, obs_shape):
    buf, rng = file(name).ReplayBuffer(Box(-1, 1, obs_shape), Box(-1, 1, (2,)), 5), np.random.default_rng(0)
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


@each_loop
def test_replay_draws_uniformly_with_replacement_from_filled_rows(name):
    buf, rng = file(name).ReplayBuffer(Box(-1, 1, (1,)), Box(-1, 1, (1,)), 10), np.random.default_rng(0)
    for i in range(1, 8):
        buf.store(np.array([i]), np.array([i]), i, np.array([i]), False)
    batches = np.array([buf.sample_batch(rng, 7)['rew'] for _ in range(2000)])
    drawn, counts = np.unique(batches, return_counts=True)
    assert drawn.tolist() == [1, 2, 3, 4, 5, 6, 7]                                  # never a row not yet filled
    assert ((counts - 2000)**2 / 2000).sum() < 22.5                                 # chi squared: 1 in 1000 is beyond
    distinct = np.mean([len(set(batch)) == 7 for batch in batches])
    assert distinct == pytest.approx(5040 / 7**7, abs=0.01)                         # without replacement: always


# %% Acting, in [-1, 1]; RescaleAction brings the actions to the environment's bounds
@each_file
def test_exploration_noise_is_added_and_clipped_and_sac_explores_with_its_own_distribution(name):
    algo = name.split('_')[0]
    changes = {} if algo == 'sac' else dict(act_noise=0.3)
    agent, rng = make_agent(name, **changes), np.random.default_rng(0)
    obs, noise = rng.normal(size=4).astype(np.float32), rng.standard_normal((20, 3), dtype=np.float32)
    mean = dense(agent, agent.ac.pi, obs)[:3]
    if algo == 'sac':
        expected, _ = sac_by_hand(agent, agent.ac.pi, np.tile(obs, (20, 1)), noise)
    else:
        expected = np.clip(np.tanh(mean) + 0.3 * noise, -1, 1)
    acts = np.array([agent.act(obs, row) for row in noise])
    np.testing.assert_allclose(acts, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(agent.act(obs), np.tanh(mean), rtol=1e-4, atol=1e-6)         # none: deterministic
    assert acts.dtype == agent.act(obs).dtype == np.float32
    np.testing.assert_array_equal(agent.act(obs, np.array([1e4, -1e4, 1e4], np.float32)), [1, -1, 1])


@each_file
def test_environment_gets_its_own_bounds_and_the_buffer_has_the_units_of_the_policy(name, buffers, tmp_path):
    """In training and in test episodes; the noise of a policy that acts knows no bounds either."""
    low, high = np.array([0.5, -50], np.float32), np.array([1, -10], np.float32)
    envs = []

    def env_fn():
        envs.append(SmallEnv(Box(-1, 1, (2,)), Box(low, high)))                     # it takes no action out of bounds
        envs[-1].draw_obs = lambda: np.array([0.5, -0.5], np.float32)
        return envs[-1]
    agent = train(name, env_fn, tmp_path, steps_per_epoch=60, epochs=1, start_steps=30, update_after=100,
                  num_test_episodes=1, **({} if 'sac' in name else dict(act_noise=0.2)))
    env, test_env = envs
    act, center, half_range = buffers[0].data['act'][:60], [0.75, -30], [0.25, 20]
    assert len(env.received) == 60 and (np.abs(act) <= 1).all()
    np.testing.assert_allclose(env.received, center + half_range * act, rtol=1e-5)
    assert (np.ptp(act[:30], axis=0) > 1.5).all()                                   # uniform over [-1, 1]
    mean = agent.act(np.array([0.5, -0.5], np.float32))
    if 'sac' not in name:
        np.testing.assert_allclose(np.std(act[30:] - mean, axis=0), 0.2, rtol=0.5)  # alike in both dimensions
    assert len(test_env.received) == 20
    np.testing.assert_allclose(test_env.received, np.tile(center + half_range * mean, (20, 1)), rtol=1e-5)


@each_loop
def test_test_episodes_are_counted_and_cut_at_max_ep_len(name):
    agent, stored = make_agent(name, obs_shape=(2,)), []
    logger = SimpleNamespace(store=lambda **row: stored.append(row))
    env = make_env(lambda: Toy(length=4), off_policy=True)
    file(name).test_agent(agent, env, logger, 3, 1000)
    file(name).test_agent(agent, env, logger, 2, 3)
    assert stored == [dict(TestEpRet=4, TestEpLen=4)] * 3 + [dict(TestEpRet=3, TestEpLen=3)] * 2


@each_loop
def test_first_start_steps_actions_are_uniform_over_the_box(name, monkeypatch, tmp_path):
    envs, policy_act = [], np.array([0, 0.2, -0.2], np.float32)
    monkeypatch.setattr(file(name).Agent, 'act', lambda self, obs, noise=None: policy_act)
    train(name, lambda: envs.append(Toy()) or envs[-1], tmp_path, start_steps=1501, steps_per_epoch=800,
          update_after=10000, num_test_episodes=0)
    acts = (np.array(envs[0].received) - LOW) / (HIGH - LOW) * 2 - 1
    assert acts.shape == (1600, 3)
    of_policy = np.isclose(acts, policy_act, rtol=0, atol=1e-5).all(axis=1)
    assert of_policy[1501:].all() and not of_policy[:1501].any()                    # 1501 of them, to the step
    unit = np.sort((acts[:1501] + 1) / 2, axis=0)
    distance = np.abs(unit - (np.arange(1501)[:, None] + 0.5) / 1501).max(axis=0)
    assert (distance < 1.95 / np.sqrt(1501)).all()                      # Kolmogorov and Smirnov: 1 in 1000 is beyond
    assert np.abs(np.corrcoef(acts[:1501].T) - np.eye(3)).max() < 0.1               # the dimensions are independent


# %% Training: what ends an episode, and what that is worth
@pytest.mark.parametrize('ends', ['time limit', 'max_ep_len', 'termination'])
@each_loop
def test_truncation_is_bootstrapped_through_and_termination_is_not(name, ends, buffers, tmp_path):
    env_fn = {'time limit': lambda: gym.wrappers.TimeLimit(Toy(), 5), 'max_ep_len': Toy,
              'termination': lambda: Toy(length=5)}[ends]
    rates = dict(lr=1e-2, alpha=0.2) if 'sac' in name else dict(pi_lr=1e-4, q_lr=1e-2)
    agent = train(name, env_fn, tmp_path, max_ep_len=5 if ends == 'max_ep_len' else 1000, steps_per_epoch=350, epochs=1,
                  start_steps=350, update_after=50, batch_size=64, gamma=0.8, polyak=0.8, **rates)
    _, [row] = read_progress(tmp_path)
    assert float(row['AverageEpRet']) == float(row['EpLen']) == 5
    buf, = buffers
    assert buf.size == 350
    terminated = buf.data['terminated'][:buf.size]
    assert terminated.tolist() == ([0, 0, 0, 0, 1] * 70 if ends == 'termination' else [0] * 350)

    batch = buf.sample_batch(np.random.default_rng(0), 200)
    # Reward 1 for ever is worth 1 / (1 - gamma) = 5; where each fifth step is the last, q = 1 + gamma 4/5 q makes 2.8.
    # SAC's next action is worth its entropy too: that of uniform actions, since no action is better than another.
    gamma, entropy = 0.8 * (4 / 5 if ends == 'termination' else 1), 3 * np.log(2)
    worth = (1 + gamma * (0.2 * entropy if 'sac' in name else 0)) / (1 - gamma)
    for q in qs(agent.ac):
        assert call_net(agent, q, batch['obs'], batch['act']).mean() == pytest.approx(worth, rel=0.15)


# %% Training: how many updates, and when
@pytest.mark.parametrize('update_every', [1, 7, 50])
@pytest.mark.parametrize('update_after', [0, 10, 1000])
@each_loop
def test_number_of_updates(name, update_every, update_after, buffers, monkeypatch, tmp_path):
    at, shapes = [], set()

    def update(self, batch, noise):
        self.updates += 1
        at.append(buffers[0].count)
        shapes.add((batch['obs'].shape, noise.shape))
        return {}
    monkeypatch.setattr(file(name).Agent, 'update', update)
    agent = train(name, Toy, tmp_path, steps_per_epoch=373, epochs=3, update_every=update_every,
                  update_after=update_after, replay_size=2000, num_test_episodes=0)
    assert agent.updates == len(at) == 1119 // update_every * update_every - update_after
    for steps in range(1, 1120):                                        # and so after every single step
        assert np.searchsorted(at, steps, side='right') == max(steps // update_every * update_every - update_after, 0)
    assert shapes == {((16, 2), (dict(ddpg=0, td3=1, sac=2)[name.split('_')[0]], 16, 3))}


# %% Training: the table
def spread(*keys):
    return [f'{statistic}{key}' for key in keys for statistic in ('Average', 'Std', 'Max', 'Min')]


@each_variant
def test_columns(name, changes, tmp_path):
    algo = name.split('_')[0]
    train(name, lambda: Toy(length=9), tmp_path, **changes)
    middle = dict(ddpg=spread('QVals'), td3=spread('Q1Vals', 'Q2Vals'), sac=spread('Q1Vals', 'Q2Vals', 'LogPi'))[algo]
    alpha = ['Alpha'] if changes else []
    columns, rows = read_progress(tmp_path)
    assert columns == ['Epoch', *spread('EpRet', 'TestEpRet'), 'EpLen', 'TestEpLen', 'TotalEnvInteracts', *middle,
                       *alpha, 'LossPi', 'LossQ', 'Time']
    assert all(cell != '' and np.isfinite(float(cell)) for row in rows for cell in row.values())
    assert [row['TotalEnvInteracts'] for row in rows] == ['40', '80']


@each_loop
def test_epoch_without_update_or_episode_leaves_cells_empty(name, tmp_path):
    train(name, Toy, tmp_path, update_after=60, max_ep_len=60)
    columns, (first, second) = read_progress(tmp_path)
    learned = columns[columns.index('TotalEnvInteracts') + 1:-1]
    assert [key for key, cell in first.items() if cell == ''] == [*spread('EpRet'), 'EpLen', *learned]
    assert '' not in second.values()                                    # its episode of 60 steps and its 20 updates
    assert float(second['AverageEpRet']) == float(second['EpLen']) == 60


@pytest.mark.parametrize('name', [name for name in NAMES if 'td3' in name])
def test_td3_epoch_without_policy_update(name, tmp_path):
    train(name, Toy, tmp_path, policy_delay=1000)
    assert all(row['LossPi'] == '' and row['LossQ'] != '' for row in read_progress(tmp_path)[1])


@each_loop
def test_same_seed_same_table(name, tmp_path):
    runs, env_fn = [], functools.partial(Toy, length=9, reward=lambda obs, act: float(act[0]))
    for folder, seed in (('a', 3), ('b', 3), ('c', 4)):
        train(name, env_fn, tmp_path / folder, seed=seed)
        _, rows = read_progress(tmp_path / folder)
        runs.append([{key: cell for key, cell in row.items() if key != 'Time'} for row in rows])
    assert runs[0] == runs[1]
    assert all(runs[0][-1][key] != runs[2][-1][key] for key in ('LossQ', 'AverageEpRet', 'AverageTestEpRet'))


# %% Training: environments
@pytest.mark.parametrize('spaces, words', [
    (dict(action_space=Discrete(3)), 'Discrete.*must be Box'),
    (dict(action_space=Box(np.array([-1, -1], np.float32), np.array([1, np.inf], np.float32))), 'bounds.*use vpg'),
    (dict(action_space=Box(np.array([-1, 2], np.float32), np.array([1, 2], np.float32))), 'only one value.*leave that'),
    (dict(action_space=MultiBinary(2)), 'MultiBinary.*must be Box'),
    (dict(observation_space=Sequence(Box(-1, 1, (2,)))), 'observations of type Sequence are not supported'),
], ids=['discrete actions', 'half a bound missing', 'a dimension without width', 'bits', 'sequences as observations'])
@each_loop
def test_refusals_say_what_is_supported_and_leave_nothing(name, spaces, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words):
        train(name, lambda: SmallEnv(**{'action_space': Box(LOW, HIGH), **spaces}), tmp_path / 'run')
    assert not list(tmp_path.iterdir())


class Dial(SmallEnv):
    """Actions are whole numbers, and nothing else is taken."""
    def __init__(self):
        super().__init__(Box(-1, 1, (2,)), Box(-3, 5, (2,), np.int64))

    def step(self, action):
        assert action.dtype == np.int64 and self.action_space.contains(action)
        return super().step(action)


def test_actions_of_whole_numbers_are_rounded_to_the_nearest():
    env = make_env(Dial, off_policy=True)
    env.reset(seed=0)
    for act in ([0.4, -0.9], [1, -1], [-0.13, -0.12]):                              # -3, ..., 5: 1 + 4 act
        env.step(np.array(act, np.float32))
    np.testing.assert_array_equal(env.unwrapped.received, [[3, -3], [5, -3], [0, 1]])
