"""Networks of one's own in VPG, PPO and TRPO: whatever a user puts in acts and trains by its one definition.

Under mpirun this file is a script: see `work_together`.
"""
import copy
import functools
import importlib
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.nn.utils import parametrizations

from common.env_tools import make_env
from common.errors import UserError
from common.logx import read_progress
from common.mpi_tf import tf
from common.mpi_tools import num_procs, proc_id
from helpers import SmallEnv, make_args

FAST = dict(vpg=dict(pi_lr=0.05), ppo=dict(pi_lr=0.03, train_pi_iters=5, target_kl=0.2), trpo=dict(delta=0.1))
FILES = [f'{algo}_{framework}' for algo in FAST for framework in ('torch', 'tf1')]
TORCH, TF1 = FILES[::2], FILES[1::2]
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
each_file = pytest.mark.parametrize('name', FILES)
each_torch_file = pytest.mark.parametrize('name', TORCH)
each_tf1_file = pytest.mark.parametrize('name', TF1)


# %% Layers and networks, alike in both frameworks
class TorchActor(nn.Module):
    def __init__(self, distribution, *layers):
        super().__init__()
        self.net, self.distribution = nn.Sequential(*layers), distribution

    def forward(self, obs):
        return self.distribution(self.net(obs))


class TorchCritic(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, obs):
        return self.net(obs).squeeze(-1)


class TorchPair(nn.Module):
    def __init__(self, pi, v):
        super().__init__()
        self.pi, self.v = pi, v


class TorchVision(nn.Module):
    """Images (1, 6, 6) -> 64 numbers."""
    def __init__(self, rng):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.conv.weight.data = torch.as_tensor(rng.normal(0, 0.3, (4, 1, 3, 3)), dtype=torch.float32)

    def forward(self, obs):
        return torch.relu(self.conv(obs / 255)).flatten(1)


class TfActor(tf.Module):
    def __init__(self, sequential, distribution, *layers):
        super().__init__()
        self.net, self.distribution = sequential(*layers), distribution

    def __call__(self, obs):
        return self.distribution(self.net(obs))


class TfCritic(tf.Module):
    def __init__(self, sequential, *layers):
        super().__init__()
        self.net = sequential(*layers)

    def __call__(self, obs):
        return tf.squeeze(self.net(obs), -1)


class TfPair(tf.Module):
    def __init__(self, pi, v):
        super().__init__()
        self.pi, self.v = pi, v


class TfVision(tf.Module):
    """Images (1, 6, 6) -> 64 numbers."""
    def __init__(self, rng):
        super().__init__()
        with tf.variable_scope('vision'):
            self.weight = tf.get_variable('weight', initializer=np.float32(rng.normal(0, 0.3, (3, 3, 1, 4))))
            self.bias = tf.get_variable('bias', initializer=tf.zeros(4))

    def __call__(self, obs):
        images = tf.transpose(obs / 255, [0, 2, 3, 1])
        return tf.reshape(tf.nn.relu(tf.nn.conv2d(images, self.weight, padding='VALID') + self.bias), [-1, 64])


class TfLayerNorm(tf.Module):
    def __init__(self, n):
        super().__init__()
        self.weight, self.bias = tf.Variable(tf.ones(n)), tf.Variable(tf.zeros(n))

    def __call__(self, x):
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        return (x - mean) * tf.rsqrt(variance + 1e-5) * self.weight + self.bias


class TfFrozen(tf.Module):
    def __init__(self, n_in, n_out, rng):
        super().__init__()
        self.weight = tf.Variable(np.float32(rng.uniform(-1, 1, (n_in, n_out))), trainable=False)
        self.bias = tf.Variable(np.float32(rng.uniform(-1, 1, n_out)), trainable=False)

    def __call__(self, x):
        return x @ self.weight + self.bias


def kit(file):
    """What both frameworks have, under the same names."""
    if file.__name__.endswith('torch'):
        return SimpleNamespace(
            linear=file.linear, frozen=lambda *args: file.linear(*args).requires_grad_(False), layer_norm=nn.LayerNorm,
            vision=TorchVision, flatten=nn.Flatten(), tanh=nn.Tanh(), sequential=nn.Sequential, actor=TorchActor,
            critic=TorchCritic, pair=TorchPair, activation=nn.Tanh)
    return SimpleNamespace(
        linear=file.Linear, frozen=TfFrozen, layer_norm=TfLayerNorm, vision=TfVision, flatten=file.flatten,
        tanh=tf.tanh, sequential=file.Sequential, actor=functools.partial(TfActor, file.Sequential),
        critic=functools.partial(TfCritic, file.Sequential), pair=TfPair, activation=tf.tanh)


def two_networks(body):
    """An actor_critic of two networks that begin with `body`."""
    def actor_critic(file, observation_space, action_space, rng):
        k = kit(file)
        return k.pair(k.actor(file.Categorical, *body(k, rng), k.linear(8, 4, rng)),
                      k.critic(*body(k, rng), k.linear(8, 1, rng)))
    return actor_critic


frozen_layer = two_networks(lambda k, rng: [k.linear(3, 8, rng), k.tanh, k.frozen(8, 8, rng), k.tanh])
spectral = two_networks(lambda k, rng: [parametrizations.spectral_norm(k.linear(3, 8, rng)), k.tanh])
old_spectral = two_networks(lambda k, rng: [nn.utils.spectral_norm(k.linear(3, 8, rng)), k.tanh])


def shared_trunk(file, observation_space, action_space, rng):
    k = kit(file)
    trunk = k.sequential(k.linear(3, 8, rng), k.tanh)
    return k.pair(k.actor(file.Categorical, trunk, k.linear(8, 4, rng)), k.critic(trunk, k.linear(8, 1, rng)))


def convolutional(file, observation_space, action_space, rng):
    k = kit(file)
    vision, n = k.vision(rng), int(action_space.n)
    return k.pair(k.actor(file.Categorical, vision, k.linear(64, n, rng)), k.critic(vision, k.linear(64, 1, rng)))


def gaussian_of_the_state(file, observation_space, action_space, rng):
    """The standard deviations depend on the observation, too."""
    k = kit(file)
    halves = lambda x: file.Gaussian(x[:, :2], k.tanh(x[:, 2:]))
    return k.pair(k.actor(halves, k.linear(3, 8, rng), k.tanh, k.linear(8, 4, rng)),
                  k.critic(k.linear(3, 8, rng), k.tanh, k.linear(8, 1, rng)))


def scaled_by_a_subclass(file, observation_space, action_space, rng):
    """Our networks, but for one method: logits 3 times as large."""
    class Actor(file.MLPCategoricalActor):
        def __call__(self, obs):
            return file.Categorical(3 * self.logits_net(obs))
        if file.__name__.endswith('torch'):
            forward, __call__ = __call__, nn.Module.__call__
    k = kit(file)
    return k.pair(Actor(3, 4, (8,), k.activation, rng), file.MLPCritic(3, (8,), k.activation, rng))


# %% Tools
def arguments(name, actor_critic, kwargs):
    """The training function, and arguments with which an update moves networks of one's own, or ours, far."""
    file, algo = importlib.import_module(name), name.split('_')[0]
    own = dict(actor_critic=functools.partial(actor_critic, file)) if actor_critic else {}
    ac_kwargs = {} if actor_critic else dict(hidden_sizes=(8, 8))
    return getattr(file, algo), dict(FAST[algo], ac_kwargs=ac_kwargs, vf_lr=0.01, train_v_iters=5, **own) | kwargs


def make_agent(name, actor_critic=None, env=None, seed=0, **kwargs):
    train_fn, kwargs = arguments(name, actor_critic, kwargs)
    env = make_env(lambda: env or SmallEnv(action_space=Discrete(4)))
    return importlib.import_module(name).Agent(env, np.random.default_rng(seed), make_args(train_fn, **kwargs))


def train(name, env, folder, actor_critic=None, **kwargs):
    """A short training; returns the agent and the rows of its progress.txt."""
    train_fn, kwargs = arguments(name, actor_critic, dict(dict(steps_per_epoch=30, epochs=1), **kwargs))
    agent = train_fn(lambda: env, logger_kwargs=dict(output_dir=str(folder)), **kwargs)
    return agent, read_progress(folder / 'progress.txt')[1]


def weights(agent):
    """All weights, trainable or not, in the order in which they were made."""
    if hasattr(agent, 'sess'):
        own = {v.ref() for v in agent.ac.variables}
        return agent.sess.run([v for v in agent.sess.graph.get_collection('variables') if v.ref() in own])
    return [p.detach().numpy().copy() for p in agent.ac.parameters()]


def changed(agent, before):
    """Which of the weights are no longer what they were."""
    return [(old != new).any() for old, new in zip(before, weights(agent), strict=True)]


def flat(agent):
    return np.concatenate([array.ravel() for array in weights(agent)])


def what_it_says(agent, obs, noise):
    """By the networks themselves, as they are: actions with noise and without, their log-probabilities, and values."""
    if hasattr(agent, 'sess'):
        with agent.sess.graph.as_default():
            obs = tf.constant(obs)
            dist, val = agent.ac.pi(obs), agent.ac.v(obs)
            act = dist.sample(noise)
            return agent.sess.run([act, dist.sample(0), dist.log_prob(act), val])
    with torch.no_grad():
        ac, obs = copy.deepcopy(agent.ac).eval(), torch.as_tensor(obs)
        dist = ac.pi(obs)
        act = dist.sample(torch.as_tensor(noise))
        return [x.numpy() for x in (act, dist.sample(torch.zeros(1)), dist.log_prob(act), ac.v(obs))]


def what_it_does(agent, obs, noise):
    """The same by what training calls."""
    act = np.array([agent.act(*pair) for pair in zip(obs, noise)])
    val, logp, _ = agent.evaluate(obs, np.float32(act), obs[:1])
    return [act, np.array([agent.act(x) for x in obs]), logp, val]


def goodness(act):
    """Of discrete actions the first is good; others are the better the larger they are."""
    return act == 0 if act.ndim == 1 else act[:, 0]


def make_data(agent, obs, noise):
    """An epoch in which actions were worth their goodness."""
    act, _, logp, _ = what_it_does(agent, obs, noise)
    adv = (goodness(act) - goodness(act).mean()) / (goodness(act).std() + 1e-8)
    data = dict(obs=obs, act=act, adv=adv, ret=obs.reshape(64, -1).mean(-1), logp=logp)
    return {key: np.float32(x) for key, x in data.items()}


def a_batch(rng, agent, n=64):
    """An epoch of random numbers."""
    obs = np.float32(rng.uniform(-1, 1, (n, 3)))
    act, adv, ret = rng.integers(4, size=n), *rng.standard_normal((2, n))
    data = dict(obs=obs, act=act, adv=adv, ret=ret, logp=agent.evaluate(obs, np.float32(act), obs[:1])[1])
    return {key: np.float32(x) for key, x in data.items()}


def check_it_acts_and_trains(name, agent, env, frozen=()):
    """What acts is what trains, before and after updates, which move all weights except for those with the numbers
    `frozen`, and after which good actions are more frequent."""
    rng, space = np.random.default_rng(1), env.observation_space
    obs = rng.uniform(space.low, space.high, (64, *space.shape)).astype(np.float32)
    noise = importlib.import_module(name).draw_noise(rng, 64, env.action_space)
    before, acts, losses = weights(agent), [], []
    for _ in range(5):
        act, best, logp, val = what_it_does(agent, obs, noise)
        # One observation after the other, since in a batch of many they must not meet.
        single = [agent.evaluate(obs[t:t + 1], np.float32(act[t:t + 1]), obs[t:t + 1]) for t in range(64)]
        single_val, single_logp, _ = [np.concatenate(arrays) for arrays in zip(*single)]
        for x, y in zip([act, best, logp, val, logp, val], [*what_it_says(agent, obs, noise), single_logp, single_val]):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
        acts.append(act)
        losses.append(agent.update(make_data(agent, obs, noise))['LossV'])
    assert changed(agent, before) == [i not in frozen for i in range(len(before))]
    assert goodness(acts[-1]).mean() > goodness(acts[0]).mean() + 0.2 and losses[-1] < losses[0]


# %% Acting and training
OWN = dict(frozen=frozen_layer, trunk=shared_trunk, cnn=convolutional, subclass=scaled_by_a_subclass,
           deviations=gaussian_of_the_state)
ENVS = dict(cnn=dict(observation_space=Box(0, 255, (1, 6, 6), np.uint8)),
            deviations=dict(observation_space=Box(-1, 1, (3,)), action_space=Box(-9, 9, (2,))))


@each_file
@pytest.mark.parametrize('network', OWN)
def test_it_acts_and_trains_by_its_one_definition(name, network):
    env = SmallEnv(**{**dict(action_space=Discrete(4)), **ENVS.get(network, {})})
    agent = make_agent(name, OWN[network], env)
    check_it_acts_and_trains(name, agent, env, frozen=[2, 3, 8, 9] if network == 'frozen' else [])
    if network == 'cnn' and name in TF1:
        assert {v.op.name for v in agent.ac.pi.trainable_variables} > {'vision/weight', 'vision/bias'}


@each_file
def test_layer_norm_behind_each_layer_of_mlp(name, monkeypatch):
    """One line of the file changed, as a student would: our actors and critics then have it, and act by it."""
    file = importlib.import_module(name)
    k = kit(file)

    def mlp(sizes, activation, rng):
        layers = [k.flatten]
        for n_in, n_out in zip(sizes[:-2], sizes[1:-1]):
            layers += [k.linear(n_in, n_out, rng), k.layer_norm(n_out), activation() if name in TORCH else activation]
        return k.sequential(*layers, k.linear(*sizes[-2:], rng))
    monkeypatch.setattr(file, 'mlp', mlp)
    env = SmallEnv(action_space=Discrete(4))
    agent = make_agent(name, env=env)
    assert len(weights(agent)) == 2 * (3 * 2 + 2 * 2)
    check_it_acts_and_trains(name, agent, env)


@pytest.mark.parametrize('name', ['trpo_torch', 'trpo_tf1'])
def test_the_old_policy_of_trpo_has_the_frozen_layers_too(name):
    """Without a step the policy is the old one, from which its KL is zero."""
    agent = make_agent(name, frozen_layer, train_v_iters=0)
    metrics = agent.update(dict(a_batch(np.random.default_rng(1), agent), adv=np.zeros(64, np.float32)))
    assert metrics['KL'] == pytest.approx(0, abs=1e-6)


@each_torch_file
@pytest.mark.parametrize('network', [spectral, old_spectral], ids=['parametrization', 'hook'])
def test_weights_under_a_spectral_norm_train(name, network):
    """Layers whose weight is computed anew in each forward pass, by PyTorch's parametrizations or its older hooks."""
    env = SmallEnv(action_space=Discrete(4))
    agent = make_agent(name, network, env)
    check_it_acts_and_trains(name, agent, env)
    if name != 'trpo_torch':                                    # its policy is never in mode train()
        assert torch.linalg.svdvals(agent.ac.pi.net[0].weight)[0].item() == pytest.approx(1, rel=0.1)


def dropout(p):
    return two_networks(lambda k, rng: [k.linear(3, 8, rng), k.tanh, nn.Dropout(p)])


@each_torch_file
def test_dropout_drops_out_in_training_and_never_in_acting(name):
    """Where all is dropped the first layer does not train, although it acts. TRPO's policy is trained as it acts."""
    env = SmallEnv(action_space=Discrete(4))
    agent = make_agent(name, dropout(1.0), env, **({} if name == 'trpo_torch' else dict(pi_lr=0.01)),
                       **(dict(target_kl=np.inf) if name == 'ppo_torch' else {}))
    before = weights(agent)
    rng, file = np.random.default_rng(1), importlib.import_module(name)
    obs, noise = np.float32(rng.uniform(-1, 1, (64, 3))), file.draw_noise(rng, 64, env.action_space)
    agent.update(make_data(agent, obs, noise))
    for x, y in zip(what_it_does(agent, obs, noise), what_it_says(agent, obs, noise)):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    assert len(set(what_it_does(agent, obs, noise)[2])) == 64                           # nothing was dropped here
    # First layers, with all behind them dropped, and the weights of last layers, with nothing before them, stay.
    assert changed(agent, before) == [name == 'trpo_torch'] * 3 + [True] + [False] * 3 + [True]


@each_torch_file
def test_layers_that_draw_are_seeded(name):
    def updated(seed, global_seed):
        torch.manual_seed(global_seed)                                                  # has no effect
        agent = make_agent(name, dropout(0.5), seed=seed)
        agent.update(a_batch(np.random.default_rng(1), agent))
        return flat(agent)
    np.testing.assert_array_equal(updated(0, 1), updated(0, 2))


@each_file
def test_an_agent_that_overrides_act_acts_so_in_training(name, tmp_path, monkeypatch):
    """The environment gets what the override says, and the update its log-probability."""
    file, updates = importlib.import_module(name), []

    class Greedy(file.Agent):
        def act(self, obs, noise=0):
            return 3 - super().act(obs)                                                 # the mirrored best action

        def update(self, data):
            updates.append((copy.deepcopy(data), what_it_says(self, data['obs'], np.zeros((30, 4), dtype=np.float32))))
            return super().update(data)
    monkeypatch.setattr(file, 'Agent', Greedy)
    env = SmallEnv(action_space=Discrete(4))
    train(name, env, tmp_path, steps_per_epoch=30, epochs=2)
    received = np.array(env.received).reshape(2, 30)
    for acts, (data, (best, _, best_logp, _)) in zip(received, updates):
        np.testing.assert_array_equal(acts, 3 - best)
        np.testing.assert_array_equal(data['act'], acts)
        assert (data['logp'] < best_logp).all()                                         # of what was done


class SidesEnv(SmallEnv):
    """An image with a bright left or right half; the action that names the half is rewarded."""
    def __init__(self):
        def bright(obs, action):
            return obs[0, 0, 3 * action] > 100
        super().__init__(Box(0, 255, (1, 6, 6), np.uint8), Discrete(2), length=10, reward=bright)

    def draw_obs(self):
        obs = self.np_random.integers(50, size=(1, 6, 6), dtype=np.uint8)
        side = self.np_random.integers(2)
        obs[:, :, 3 * side:3 * side + 3] += 150
        return obs


@each_file
def test_convolutions_learn_from_images(name, tmp_path):
    _, rows = train(name, SidesEnv(), tmp_path, convolutional, epochs=8, steps_per_epoch=100)
    returns = [float(row['AverageEpRet']) for row in rows]
    assert returns[0] < 7 and returns[-1] > 9
    assert float(rows[-1]['Entropy']) < float(rows[0]['Entropy'])


# %% A trunk that pi and v share
@each_file
@pytest.mark.parametrize('network', [shared_trunk, convolutional], ids=['trunk', 'cnn'])
def test_either_loss_trains_what_is_shared_and_its_own_part(name, network):
    """Also where the scope of its variables is called vision/, which begins as v/ would."""
    env = SmallEnv(**ENVS['cnn'] if network is convolutional else {}, action_space=Discrete(4))
    obs, noise = np.random.default_rng(1).random((64, *env.observation_space.shape), np.float32), np.eye(4)[[0, 1] * 32]
    agent = make_agent(name, network, env, train_v_iters=0)
    before = weights(agent)
    agent.update(make_data(agent, obs, 9 * noise))
    assert changed(agent, before) == [True] * 4 + [False] * 2
    agent = make_agent(name, network, env)
    agent.update(dict(make_data(agent, obs, 9 * noise), adv=np.zeros(64, np.float32)))
    assert changed(agent, before) == [True] * 2 + [False] * 2 + [True] * 2


@pytest.mark.parametrize('algo', ['vpg', 'ppo'])
def test_shared_trunk_takes_the_steps_of_both_losses(algo):
    """Two plain optimizers in float64, the policy's steps first; both move the trunk."""
    agents = [make_agent(f'{algo}_{framework}', shared_trunk, **(dict(target_kl=np.inf) if algo == 'ppo' else {}))
              for framework in ('torch', 'tf1')]
    np.testing.assert_array_equal(flat(agents[0]), flat(agents[1]))
    data, ac = a_batch(np.random.default_rng(1), agents[0]), copy.deepcopy(agents[0].ac).double()
    optimizers = {net: torch.optim.Adam(getattr(ac, net).parameters(), lr)
                  for net, lr in dict(pi=agents[0].args.pi_lr, v=0.01).items()}
    obs, act, adv, ret, logp_old = [torch.as_tensor(x).double() for x in data.values()]

    def loss_pi():
        logp = torch.log_softmax(ac.pi.net(obs), -1)[torch.arange(64), act.long()]
        ratio = torch.exp(logp - logp_old)
        clipped = torch.where(adv > 0, ratio.clip(max=1.2), ratio.clip(min=0.8))
        return -(adv * (logp if algo == 'vpg' else clipped)).mean()

    def loss_v():
        return ((ac.v(obs) - ret)**2).mean()
    for net, loss, steps in [('pi', loss_pi, 1 if algo == 'vpg' else 5), ('v', loss_v, 5)]:
        for _ in range(steps):
            optimizers[net].zero_grad()
            loss().backward()
            optimizers[net].step()
    for agent in agents:
        agent.update(data)
        np.testing.assert_allclose(flat(agent), nn.utils.parameters_to_vector(ac.parameters()).detach(), atol=1e-4)


def work_together(framework):
    """Two updates with each algorithm and network, each process on its share of the rows; returns what came of it:
    all weights, and log-probabilities and values, which also depend on what is no weight."""
    results, networks = {}, dict(trunk=shared_trunk, frozen=frozen_layer)
    if framework == 'torch':
        networks.update(spectral=spectral)
    for algo in FAST:
        for network, actor_critic in networks.items():
            agent = make_agent(f'{algo}_{framework}', actor_critic, seed=proc_id())
            rng = np.random.default_rng(1)
            for _ in range(2):
                whole = a_batch(rng, agent)
                agent.update({key: x[proc_id()::num_procs()] for key, x in whole.items()})
            val, logp, _ = agent.evaluate(whole['obs'], whole['act'], whole['obs'])
            results[f'{algo} {network} weights'] = flat(agent)
            results[f'{algo} {network} outputs'] = np.append(val, logp)
    return results


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
@pytest.mark.parametrize('framework', ['torch', 'tf1'])
def test_two_processes_make_the_step_of_one_and_stay_equal(framework, tmp_path):
    env = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(os.path.abspath(__file__))), OMP_NUM_THREADS='1')
    done = subprocess.run([MPIRUN, '-np', '2', sys.executable, os.path.abspath(__file__), framework], cwd=tmp_path,
                          env=env, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = [np.load(tmp_path / f'{process}.npz') for process in range(2)]
    for key, expected in work_together(framework).items():
        np.testing.assert_array_equal(first[key], second[key], err_msg=key)
        np.testing.assert_allclose(first[key], expected, atol=2e-4 if 'trpo' in key else 2e-5, err_msg=key)


# %% What is refused, and NaN
def made_when_called(file, observation_space, action_space, rng):
    """A variable that no module keeps: made where the network is called."""
    k = kit(file)
    hidden = lambda x: x @ tf.Variable(tf.ones((3, 3)), name='hidden')
    return k.pair(k.actor(file.Categorical, hidden, k.linear(3, 4, rng)), k.critic(k.linear(3, 1, rng)))


def kept_elsewhere(file, observation_space, action_space, rng):
    """A trunk that the actor-critic keeps, but neither of its networks does."""
    k = kit(file)
    trunk = k.linear(3, 3, rng)
    ac = k.pair(k.actor(file.Categorical, lambda x: trunk(x), k.linear(3, 4, rng)), k.critic(k.linear(3, 1, rng)))
    ac.trunk = trunk
    return ac


@each_tf1_file
@pytest.mark.parametrize('network, variable', [(made_when_called, 'hidden'), (kept_elsewhere, 'weight, bias')],
                         ids=['made when called', 'kept elsewhere'])
def test_a_variable_that_nothing_would_train_is_refused(name, network, variable):
    with pytest.raises(UserError, match=f'nothing would train .*{variable}'):
        make_agent(name, network)


@each_file
@pytest.mark.parametrize('wrong', ['log_prob', 'v'])
def test_a_column_for_a_vector_is_refused(name, wrong, tmp_path):
    """(batch, 1) minus (batch,) would be (batch, batch), and its mean a number like any other."""
    def network(file, *args):
        ac = shared_trunk(file, *args)
        if wrong == 'log_prob':
            class Column(file.Categorical):
                def log_prob(self, act):
                    return super().log_prob(act)[:, None]
            ac.pi.distribution = Column
        else:
            ac.v = (nn.Sequential if name in TORCH else file.Sequential)(ac.v.net)
        return ac
    with pytest.raises(AssertionError, match=r'must give \(batch,\), not \(batch, 1\)'):
        train(name, SmallEnv(action_space=Discrete(4)), tmp_path, network)


@pytest.mark.parametrize('name', ['ppo_torch', 'ppo_tf1'])
@pytest.mark.parametrize('key, steps', [('logp', 0), ('adv', 1)])
def test_a_nan_stops_the_policy_steps_of_both_twins(name, key, steps):
    """A KL that is NaN is not close: not at first, nor after the step that a NaN advantage has spoilt."""
    agent = make_agent(name, train_v_iters=0)
    data, before = a_batch(np.random.default_rng(1), agent), flat(agent)
    data[key][3] = np.nan
    assert agent.update(data)['StopIter'] == steps
    assert steps or (flat(agent) == before).all()


@pytest.mark.parametrize('name', ['trpo_torch', 'trpo_tf1'])
def test_a_nan_leaves_the_policy_of_trpo_as_it_was(name):
    agent = make_agent(name, train_v_iters=0)
    data, before = a_batch(np.random.default_rng(1), agent), flat(agent)
    data['adv'][3] = np.nan
    assert agent.update(data)['BacktrackIters'] == 10
    np.testing.assert_array_equal(flat(agent), before)


if __name__ == '__main__':
    np.savez(str(proc_id()), **work_together(sys.argv[1]))
