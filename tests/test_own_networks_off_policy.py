"""A network of one's own, and an update of one's own, in DDPG, TD3 and SAC: what is written there acts, and is trained.

Acting and training can be seen to agree without looking inside. While the learning rate of the policy is zero, LossPi
of an update is that of the actions which `agent.act` takes. With another, each update changes what `agent.act` gives.
"""
import inspect
import os
import shutil
import subprocess
import sys
import types
from copy import deepcopy

import numpy as np
import pytest
from gymnasium.spaces import Box

from common.errors import UserError
from common.mpi_tools import gather, num_procs, proc_id
from helpers import SmallEnv, read_progress
from test_off_policy import (NAMES, Q_NAMES, call_net, each_file, file, make_agent, make_batch, make_noise, qs, train,
                             values)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
TORCH, TF1 = [[name for name in NAMES if framework in name] for framework in ('torch', 'tf1')]
each_torch_file, each_tf1_file = [pytest.mark.parametrize('name', names) for names in (TORCH, TF1)]


# %% What a student does: edit a copy of a file, or write networks
def edited(name, old, new, more=''):
    """The name of a copy of an algorithm file in which `new` stands for `old`, and `more` before the networks."""
    source = inspect.getsource(file(name))
    assert source.count(old) == 1
    copy = types.ModuleType(f'{name}_edited')
    sys.modules[copy.__name__] = copy
    exec(compile(source.replace(old, new).replace('# %% Networks\n', more), copy.__name__, 'exec'), vars(copy))
    return copy.__name__


def edited_mlp(name, layers, more=''):
    """A copy of an algorithm file with other hidden layers in its `mlp`."""
    hidden = '[linear(n_in, n_out, rng), activation()]' if 'torch' in name else '[Linear(n_in, n_out, rng), activation]'
    return edited(name, f'layers += {hidden}', f'layers += {layers}', more)


LAYER_NORM_TF1 = '''
class LayerNorm(tf.Module):
    def __init__(self, n):
        super().__init__()
        self.scale, self.shift = tf.Variable(tf.ones(n)), tf.Variable(tf.zeros(n))

    def __call__(self, x):
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        return self.scale * (x - mean) / tf.sqrt(variance + 1e-5) + self.shift
'''


def own_networks(name, image=False, shared=False, frozen=False):
    """Networks with features of their own: of an image, shared by pi and q, or frozen in pi."""
    rows = 36 if image else 16
    if 'torch' in name:
        import torch
        from torch import nn
        functions, Module, cat = torch, nn.Module, torch.cat
        linear = lambda n_in, n_out, rng: nn.Linear(n_in, n_out)

        def make_features(rng, trainable):
            layer = nn.Conv2d(1, 4, 3, stride=2) if image else nn.Linear(4, 16)
            return nn.Sequential(layer.requires_grad_(trainable), nn.Tanh(), nn.Flatten())
    else:
        functions = tf = file(name).tf
        Module, cat, linear = tf.Module, tf.concat, file(name).Linear

        class Features(tf.Module):
            def __init__(self, rng, trainable):
                super().__init__()
                weight = rng.normal(scale=0.3, size=(3, 3, 1, 4) if image else (4, 16)).astype(np.float32)
                self.weight = tf.Variable(weight, trainable=trainable)
                self.bias = tf.Variable(tf.zeros(weight.shape[-1]), trainable=trainable)

            def __call__(self, obs):
                if not image:
                    return tf.tanh(tf.matmul(obs, self.weight) + self.bias)
                maps = tf.nn.conv2d(tf.transpose(obs, [0, 2, 3, 1]), self.weight, strides=2, padding='VALID')
                return tf.reshape(tf.tanh(maps + self.bias), [-1, 36])
        make_features = Features
    log, tanh, total = (functions.log, functions.tanh, functions.sum if 'torch' in name else functions.reduce_sum)

    class Policy(Module):
        """Deterministic or, if it gets noise, with a fixed standard deviation before its tanh."""
        def __init__(self, features, act_dim, rng):
            super().__init__()
            self.features, self.mu = features, linear(rows, act_dim, rng)

        def forward(self, obs, noise=None):
            mu = self.mu(self.features(obs))
            if noise is None:
                return tanh(mu)
            act = tanh(mu + 0.3 * noise)
            return act, total(-noise**2 / 2 - np.log(0.3 * np.sqrt(2 * np.pi)) - log(1 - act**2 + 1e-6), -1)

        if 'tf1' in name:
            __call__ = forward

    class Q(Module):
        def __init__(self, features, act_dim, rng):
            super().__init__()
            self.features, self.hidden, self.q = features, linear(rows + act_dim, 32, rng), linear(32, 1, rng)

        def forward(self, obs, act):
            return self.q(tanh(self.hidden(cat([self.features(obs), act], -1))))[:, 0]

        if 'tf1' in name:
            __call__ = forward

    class Networks(Module):
        def __init__(self, observation_space, action_space, rng):
            super().__init__()
            assert observation_space.shape == ((1, 8, 8) if image else (4,))
            act_dim, features = action_space.shape[0], make_features(rng, not frozen)
            self.pi = Policy(features, act_dim, rng)
            for q in Q_NAMES[name.split('_')[0]]:
                setattr(self, q, Q(features if shared else make_features(rng, True), act_dim, rng))
    return dict(actor_critic=Networks, ac_kwargs={}, obs_shape=(1, 8, 8) if image else (4,))


def halved(name):
    """A subclass of the actor that overrides its method: half of each action."""
    algo, method = name.split('_')[0], 'forward' if 'torch' in name else '__call__'
    Actor = file(name).SquashedGaussianMLPActor if algo == 'sac' else file(name).MLPActor

    def half(self, obs, *noise):
        result = getattr(Actor, method)(self, obs, *noise)
        return (result[0] / 2, result[1] + 3 * np.log(2)) if algo == 'sac' else result / 2
    Half = type('Half', (Actor,), {method: half})

    class Networks(inspect.getmro(Actor)[1]):                           # nn.Module or tf.Module
        def __init__(self, observation_space, action_space, rng):
            super().__init__()
            activation = inspect.signature(file(name).MLPActorCritic).parameters['activation'].default
            self.pi = Half(4, 3, (16,), activation, rng)
            for q in Q_NAMES[algo]:
                setattr(self, q, file(name).MLPQFunction(4, 3, (16,), activation, rng))
    return dict(actor_critic=Networks, ac_kwargs={})


def network(kind, name):
    """A file's name, and arguments of make_agent."""
    torch_layers = {'layer norm': '[linear(n_in, n_out, rng), nn.LayerNorm(n_out), activation()]',
                    'spectral norm': '[nn.utils.spectral_norm(linear(n_in, n_out, rng)), activation()]',
                    'dropout': '[linear(n_in, n_out, rng), activation(), nn.Dropout(0.5)]'}
    if kind == 'layer norm' and 'tf1' in name:
        return edited_mlp(name, '[Linear(n_in, n_out, rng), LayerNorm(n_out), activation]', LAYER_NORM_TF1), {}
    if kind in torch_layers:
        return edited_mlp(name, torch_layers[kind]), {}
    options = {'trunk': dict(shared=True), 'cnn': dict(image=True), 'frozen': dict(frozen=True)}
    return name, halved(name) if kind == 'subclass' else own_networks(name, **options[kind])


# %% Acting and training
KINDS = [(kind, name) for kind in ('layer norm', 'cnn', 'frozen', 'subclass', 'trunk', 'spectral norm')
         for name in NAMES if 'torch' in name or kind != 'spectral norm']
each_network = pytest.mark.parametrize('kind, name', KINDS)


def rates(name, pi_lr):
    """Learning rates, of which SAC has only one; and a policy step in each update."""
    delay = dict(policy_delay=1) if 'td3' in name else {}
    return dict(lr=pi_lr) if 'sac' in name else dict(pi_lr=pi_lr, q_lr=1e-2, **delay)


def act_on(agent, name, obs, noise):
    """What the agent does in each of these observations; in SAC, with this noise."""
    return np.array([agent.act(o, n) if 'sac' in name else agent.act(o) for o, n in zip(obs, noise)])


def loss_of_actions(agent, name, metrics, obs, act):
    """LossPi for these actions."""
    q_pi = [call_net(agent, q, obs, act) for q in qs(agent.ac)]
    if 'sac' in name:
        return np.mean(agent.args.alpha * metrics['LogPi'] - np.minimum(*q_pi))
    return -np.mean(q_pi[0])


def all_parameters(agent):
    """(those that are trained, those that are not), as arrays."""
    if hasattr(agent, 'sess'):
        trained = agent.ac.trainable_variables
        others = [v for v in agent.ac.variables if not v.trainable]
        return values(agent, list(trained)), values(agent, others)
    params = list(agent.ac.parameters())
    return [values(agent, [p for p in params if p.requires_grad is trained]) for trained in (True, False)]


@each_network
def test_the_network_that_is_trained_is_the_one_that_acts(kind, name):
    name, changes = network(kind, name)
    agent, rng = make_agent(name, same_targets=True, **rates(name, 0.0), **changes), np.random.default_rng(0)
    batch = make_batch(rng, obs_shape=changes.get('obs_shape', (4,)))
    noise, other_losses = rng.standard_normal((2, 32, 3), np.float32), []
    for _ in range(20 if kind == 'spectral norm' else 0):               # whose norm takes some passes to converge
        agent.update(batch, noise[:agent.noise_arrays])
    for i in range(8):                                              # one observation at a time: nothing averages out
        one, one_noise = {key: array[i:i + 1] for key, array in batch.items()}, noise[:, i:i + 1]
        metrics = agent.update(one, one_noise[:agent.noise_arrays])
        act = act_on(agent, name, one['obs'], one_noise[0])
        loss = loss_of_actions(agent, name, metrics, one['obs'], act)
        assert metrics['LossPi'] == pytest.approx(loss, abs=1e-5)
        other_losses.append(loss_of_actions(agent, name, metrics, one['obs'], act + 0.02) - loss)
        assert kind != 'subclass' or np.abs(act).max() <= 0.5
    assert np.abs(other_losses).mean() > 1e-4                           # the loss of other actions is another


@each_network
def test_training_changes_how_the_network_acts(kind, name):
    name, changes = network(kind, name)
    changes.update(polyak=1.0)                                          # nor does the target network act: it is at rest
    agent, rng = make_agent(name, same_targets=True, **rates(name, 1e-2), **changes), np.random.default_rng(0)
    obs, noise = make_batch(rng, obs_shape=changes.get('obs_shape', (4,)))['obs'], [0] * 32
    old_trained, old_frozen = all_parameters(agent)
    acts = [act_on(agent, name, obs, noise)]
    for _ in range(3):
        agent.update(make_batch(rng, obs_shape=obs.shape[1:]), make_noise(agent, rng))
        acts.append(act_on(agent, name, obs, noise))
        assert (np.abs(acts[-1] - acts[-2]).max(axis=1) > 1e-4).mean() > 0.9      # at once, and nearly everywhere
    trained, frozen = all_parameters(agent)
    assert all((new != old).any() for new, old in zip(trained, old_trained, strict=True))
    assert len(frozen) > 0 if kind == 'frozen' else len(frozen) == 0
    for new, old in zip(frozen, old_frozen, strict=True):
        np.testing.assert_array_equal(new, old)


@each_torch_file
def test_dropout_is_off_in_acting_and_on_in_training(name):
    import torch
    name, _ = network('dropout', name)
    agent, rng = make_agent(name), np.random.default_rng(0)
    batch, noise = make_batch(rng), rng.standard_normal((2, 32, 3), np.float32)

    def act():
        return act_on(agent, name, batch['obs'], noise[0])
    for _ in range(3):                                              # TD3's first and third update leave the policy
        expected = call_net(agent, deepcopy(agent.ac.pi).eval(), *[batch['obs'], noise[0]][:2 if 'sac' in name else 1])
        np.testing.assert_allclose(act(), expected[0] if 'sac' in name else expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(act(), act())
        agent.update(batch, noise[:agent.noise_arrays])

    losses, state = [], deepcopy(agent.get_state())
    for seed in (1, 1, 2):
        agent = make_agent(name)
        agent.set_state(deepcopy(state))
        torch.manual_seed(seed)
        losses.append(agent.update(batch, noise[:agent.noise_arrays])['LossQ'])
    assert losses[0] == losses[1] != losses[2]                      # it is dropout alone that differs
    assert not any(layer.training for layer in agent.ac_targ.modules())     # targets are not trained


@pytest.mark.parametrize('name', [name for name in NAMES if 'sac' in name])
def test_a_policy_may_take_its_noise_as_an_input(name):
    """Noise is (batch, act_dim) in training and in acting alike: here, correlated actions by a product of matrices."""
    mixed = ('noise @ torch.ones(3, 3)' if 'torch' in name else 'tf.matmul(noise, np.ones((3, 3), np.float32))')
    exp = 'torch.exp' if 'torch' in name else 'tf.exp'
    name = edited(name, f'u = mu + {exp}(log_std) * noise', f'u = mu + {exp}(log_std) * ({mixed})')
    agent, rng = make_agent(name), np.random.default_rng(0)
    obs, noise = rng.normal(size=4).astype(np.float32), rng.standard_normal(3, np.float32)
    for given in (noise, 0):
        expected, _ = call_net(agent, agent.ac.pi, obs[None], given + np.zeros((1, 3)))
        np.testing.assert_allclose(agent.act(obs, given), expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('layers', ['[nn.utils.spectral_norm(linear(n_in, n_out, rng)), activation()]',
                                    '[linear(n_in, n_out, rng), nn.BatchNorm1d(n_out), activation()]'],
                         ids=['spectral norm', 'batch norm'])
@each_torch_file
def test_targets_follow_what_layers_keep_beside_their_parameters(name, layers):
    """Running statistics, and the vectors of a power iteration: with polyak 0 the target is the network itself."""
    name = edited_mlp(name, layers)
    agent, rng = make_agent(name, same_targets=True, polyak=0.0, **rates(name, 1e-2)), np.random.default_rng(0)
    for _ in range(5):
        batch = make_batch(rng)
        agent.update(batch, make_noise(agent, rng))
    for q, q_targ in zip(qs(agent.ac), qs(agent.ac_targ)):
        expected = call_net(agent, q, batch['obs'], batch['act'])
        np.testing.assert_allclose(call_net(agent, q_targ, batch['obs'], batch['act']), expected, rtol=1e-4, atol=1e-5)


@each_tf1_file
def test_variables_may_have_names(name):
    """`tf.get_variable` refuses a name that is there already, and target networks are made by the same calls."""
    tf, own = file(name).tf, own_networks(name)

    class Networks(own['actor_critic']):
        def __init__(self, *args):
            super().__init__(*args)
            self.pi.scale = tf.get_variable('scale', initializer=1.0)
            features = self.pi.features
            self.pi.features, self.pi.keep = lambda obs: features(self.pi.scale * obs), features
    agent, rng = make_agent(name, **{**own, 'actor_critic': Networks}, **rates(name, 1e-2)), np.random.default_rng(0)
    agent.update(make_batch(rng), make_noise(agent, rng))
    assert values(agent, agent.ac.pi.scale) != 1


# %% Several processes
def updated_parameters(name, kind):
    """All parameters of every process, after updates on its share of each batch."""
    name, changes = network(kind, name)
    agent = make_agent(name, same_targets=True, seed=proc_id(), **rates(name, 1e-2), **changes)
    rng, n = np.random.default_rng(1), 32 // num_procs()
    share = slice(proc_id() * n, (proc_id() + 1) * n)
    for _ in range(3):
        batch, noise = make_batch(rng), make_noise(agent, rng)
        agent.update({key: array[share] for key, array in batch.items()}, noise[:, share])
    trained, _ = all_parameters(agent)
    return gather(np.concatenate([array.ravel() for array in trained]))


@pytest.fixture(scope='module')
def of_two_processes(tmp_path_factory):
    """{(file, kind): updated_parameters}, of two processes; one mpirun for each framework."""
    if MPIRUN is None:
        pytest.skip('there is no mpirun')
    results = {}
    for names, kinds in ((TORCH, ('trunk', 'spectral norm')), (TF1, ('trunk',))):
        path = tmp_path_factory.mktemp('mpi') / 'results.npz'
        cases = [(name, kind) for name in names for kind in kinds]
        code = f'''
import numpy as np
from test_own_networks_off_policy import proc_id, updated_parameters
results = [updated_parameters(*case) for case in {cases}]
if proc_id() == 0:
    np.savez({str(path)!r}, *results)
'''
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([ROOT, os.path.join(ROOT, 'tests')]), OMP_NUM_THREADS='1')
        done = subprocess.run([MPIRUN, '-np', '2', sys.executable, '-c', code], env=env, timeout=300,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        with np.load(path) as arrays:
            results.update(zip(cases, arrays.values()))
    return results


TWICE = [('trunk', name) for name in NAMES] + [('spectral norm', name) for name in TORCH]


@pytest.mark.parametrize('kind, name', TWICE)
def test_two_processes_make_the_steps_of_one(kind, name, of_two_processes):
    """With features shared by pi and q: in their gradients both losses meet."""
    first, second = of_two_processes[name, kind]
    np.testing.assert_array_equal(first, second)                    # the processes do not drift apart
    one, = updated_parameters(name, kind)
    np.testing.assert_allclose(first, one, rtol=0, atol=2e-5)


# %% What is refused
@each_file
def test_values_of_shape_batch_1_are_refused(name):
    """(batch,) minus (batch, 1) would be (batch, batch), and training would go on, towards something else."""
    squeezed = 'tf.squeeze(self.q(tf.concat([flatten(obs), act], -1)), -1)'
    name = (edited(name, 'dim=-1)).squeeze(-1)', 'dim=-1))') if 'torch' in name
            else edited(name, squeezed, 'self.q(tf.concat([flatten(obs), act], -1))'))
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match='broadcast'):
        agent = make_agent(name)
        agent.update(make_batch(rng), make_noise(agent, rng))


@pytest.mark.parametrize('name', [name for name in NAMES if 'sac' in name])
def test_log_probabilities_of_shape_batch_1_are_refused(name):
    name = (edited(name, 'log_slope).sum(-1)', 'log_slope).sum(-1, keepdim=True)') if 'torch' in name
            else edited(name, 'log_slope, -1)', 'log_slope, -1, keepdims=True)'))
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match='broadcast'):
        agent = make_agent(name)
        agent.update(make_batch(rng), make_noise(agent, rng))


@pytest.mark.parametrize('where', ['beside pi and q', 'in a call', 'in an object that is no module'])
@each_tf1_file
def test_a_variable_that_nothing_would_train_is_refused(name, where):
    tf, own = file(name).tf, own_networks(name)

    class Scale:
        def __init__(self):
            self.scale = tf.Variable(1.0, name='vision/scale')

        def __call__(self, obs):
            return self.scale * obs

    class Networks(own['actor_critic']):
        def __init__(self, *args):
            super().__init__(*args)
            features = self.pi.features
            if where == 'beside pi and q':
                self.vision = tf.Variable(1.0, name='vision/scale')
                scale = lambda obs: self.vision * obs
            elif where == 'in a call':
                scale = lambda obs: tf.Variable(1.0, name='vision/scale') * obs
            else:
                scale = Scale()
            self.pi.features = lambda obs: features(scale(obs))
            self.pi.keep = features                                 # or the features themselves would be refused
    with pytest.raises(UserError, match='nothing would train .*vision/scale.*keep them'):
        make_agent(name, **{**own, 'actor_critic': Networks})


# %% An update of one's own
@each_file
def test_what_is_added_to_an_update_runs_at_each_update_and_only_when_it_says(name, capsys):
    name = edited(name, '        self.updates += 1\n', '''        self.updates += 1
        print('update', self.updates)
        if self.updates % 10 == 0:
            print('the tenth')
''')
    agent, rng = make_agent(name), np.random.default_rng(0)
    for _ in range(25):
        agent.update(make_batch(rng), make_noise(agent, rng))
    lines = [[f'update {i}'] + ['the tenth'] * (i % 10 == 0) for i in range(1, 26)]
    assert capsys.readouterr().out.splitlines() == sum(lines, [])


def test_an_annealed_temperature_is_the_one_of_each_update():
    """Each update is that of an agent which has the temperature of that moment fixed."""
    learned_or_fixed = "self.temperature.log_alpha.exp().detach() if self.args.alpha == 'auto' else self.args.alpha"
    name = edited('sac_torch', learned_or_fixed, '0.5 / (1 + self.updates)')
    agent, rng, losses = make_agent(name), np.random.default_rng(0), []
    for i in range(5):
        fixed, batch, noise = make_agent('sac_torch', alpha=0.5 / (1 + i)), make_batch(rng), make_noise(agent, rng)
        fixed.set_state(deepcopy(agent.get_state()))
        expected, metrics = fixed.update(batch, noise), agent.update(batch, noise)
        assert metrics['LossQ'] == expected['LossQ'] and metrics['LossPi'] == expected['LossPi']
        losses.append(float(metrics['LossPi']))
    assert len(set(losses)) == 5


# %% All of it: a CNN that learns from images
class Lamp(SmallEnv):
    """An image, dark or bright: the brighter, the larger the right action, in [-1, 3]. Episodes of one step."""
    def __init__(self):
        super().__init__(Box(-1, 1, (1, 8, 8)), Box(np.float32([-1]), np.float32([3])), length=1,
                         reward=lambda obs, act: -(act[0] - 1 - obs.mean())**2)

    def draw_obs(self):
        return np.full((1, 8, 8), self.np_random.uniform(-1, 1), np.float32)


@each_file
def test_own_networks_learn_from_images(name, tmp_path):
    changes = dict(lr=1e-2, alpha=0.01) if 'sac' in name else dict(pi_lr=3e-3, q_lr=1e-2)
    own = own_networks(name, image=True)
    agent = train(name, Lamp, tmp_path, actor_critic=own['actor_critic'], ac_kwargs={}, steps_per_epoch=500, epochs=1,
                  start_steps=300, update_after=50, batch_size=32, num_test_episodes=50, **changes)
    _, [row] = read_progress(tmp_path)
    assert float(row['AverageTestEpRet']) > -0.15                   # a constant action: -1/3 at best
    dark, bright = (agent.act(np.full((1, 8, 8), brightness, np.float32)) for brightness in (-1, 1))
    assert bright - dark > 0.5
