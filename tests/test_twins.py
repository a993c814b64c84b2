"""The proof that twins are twins: a PyTorch file and its TensorFlow-1 file compute the same and make the same run.

What remains is rounding, since the frameworks add up in another order: about 1e-7, where nothing amplifies it. Under
mpirun this file is a script: see `many_processes`.
"""
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from common.env_tools import make_env
from common.mpi_tools import gather, num_procs, proc_id
from helpers import SmallEnv, read_progress
from tools import twins
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT
from tools.twins import flat, losses_and_gradients, make_agent, make_batch, parameters, update

SPACES = dict(discrete=Discrete(3), box=Box(np.float32([-1, 0.5]), np.float32([3, 1])))     # not symmetric, nor alike
ON_POLICY = dict(ac_kwargs=dict(hidden_sizes=(16, 8)), train_v_iters=5)
OFF_POLICY = dict(ac_kwargs=dict(hidden_sizes=(16, 8)), polyak=0.9)                         # targets that soon move
VARIANTS = dict(
    vpg=('vpg', dict(ON_POLICY, pi_lr=0.01)),
    ppo=('ppo', dict(ON_POLICY, pi_lr=0.01, train_pi_iters=20)),                           # so fast that it stops early
    trpo=('trpo', dict(ON_POLICY, cg_iters=5)),
    npg=('trpo', dict(ON_POLICY, cg_iters=5, algo='npg')),
    ddpg=('ddpg', OFF_POLICY),
    td3=('td3', OFF_POLICY),
    sac=('sac', OFF_POLICY),
    auto=('sac', dict(OFF_POLICY, alpha='auto')),
)
CASES = [(variant, space) for variant, (_, kwargs) in VARIANTS.items() for space in SPACES
         if space == 'box' or 'polyak' not in kwargs]
pytestmark = pytest.mark.skipif(not all(map(importlib.util.find_spec, ('torch', 'tensorflow'))),
                                reason='one of the frameworks is not installed')


# %% Helpers
@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """A second thread costs small networks more than it brings."""
    import torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spaces_only(space):
    return make_env(functools.partial(SmallEnv, Box(-1, 1, (4,)), SPACES[space]))


def make_twins(variant, space, **changes):
    """The agents of both frameworks, made with the same seed."""
    algo, kwargs = VARIANTS[variant]
    return [make_agent(f'{algo}_{framework}', spaces_only(space), **{**kwargs, **changes}) for framework in FRAMEWORKS]


@pytest.fixture(params=CASES, ids='-'.join, scope='module')
def pair(request):
    """variant, space, agents, and what these were at first. Several tests share them: graphs take time to build."""
    variant, space = request.param
    agents = make_twins(variant, space, seed=7)
    first = [(arrays(agent), actions(agent, space)) for agent in agents]
    yield variant, space, agents, first
    agents[1].sess.close()


def arrays(agent):
    """{network: [its parameters, as arrays of their own]}"""
    if hasattr(agent, 'sess'):
        return agent.sess.run(parameters(agent))
    return {name: [p.detach().numpy().astype(np.float32) for p in params] for name, params in parameters(agent).items()}


def set_arrays(agent, new):
    for name, params in parameters(agent).items():
        for p, array in zip(params, new.get(name, [])):
            if hasattr(agent, 'sess'):
                p.load(array, agent.sess)
            else:
                p.data.copy_(p.new_tensor(array))
    if hasattr(agent, 'sess'):
        agent.refresh_policy()


def disturb(agents, rng):
    """Move all parameters from where agents begin: there targets are copies, and all deviations are equal."""
    new = {name: [np.float32(array + 0.1 * rng.standard_normal(array.shape)) for array in params]
           for name, params in arrays(agents[1]).items()}
    for agent in agents:
        set_arrays(agent, new)


def own_batch(agent, space, rng, n=64):
    """A batch as training makes it: on-policy, with the log-probabilities of the policy itself."""
    data, *noise = make_batch(agent, spaces_only(space), rng, n)
    return dict(data, logp=agent.evaluate(data['obs'], data['act'])) if 'logp' in data else data, *noise


def actions(agent, space, n=20):
    """What an agent does in some observations, with some noise and, off-policy, without."""
    rng = np.random.default_rng(3)
    obs = rng.standard_normal((n, 4), dtype=np.float32)
    noise = rng.standard_normal((n, 3 if space == 'discrete' else 2), dtype=np.float32)
    acts = [agent.act(*pair) for pair in zip(obs, noise)]
    return np.array(acts + [agent.act(o) for o in obs] if hasattr(agent, 'noises') else acts)


def assert_near(x, y, tolerance, unit=None):
    """The vectors differ by at most `tolerance` times the norm of the first, or of `unit`."""
    assert x.shape == y.shape and np.isfinite(x).all()
    assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(x if unit is None else unit)


# %% The same numbers
def test_users_are_told_the_same_number_of_parameters(pair):
    _, _, agents, _ = pair
    told, nothing = [], lambda *args, **kwargs: None
    logger = SimpleNamespace(log=told.append, setup_pytorch_saver=nothing, setup_tf_saver=nothing)
    for agent in agents:
        sys.modules[type(agent).__module__].setup_saver(agent, logger)
    assert told[0] == told[1] and told[0].startswith('Number of parameters: pi: ')
    assert sum(map(int, re.findall(r': ([0-9]+)', told[0]))) == sum(p.numel() for p in agents[0].ac.parameters())


def test_new_agents_have_the_same_weights_and_act_the_same(pair):
    variant, _, _, ((torch_arrays, torch_acts), (tf_arrays, tf_acts)) = pair
    unused = {'pi_targ'} if VARIANTS[variant][0] == 'sac' else set()        # what PyTorch copies along, for brevity
    assert set(torch_arrays) - unused == set(tf_arrays)
    for name in tf_arrays:
        for x, y in zip(torch_arrays[name], tf_arrays[name], strict=True):
            assert x.dtype == y.dtype == np.float32
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(torch_acts, tf_acts)


def test_losses_and_gradients_are_the_same(pair):
    _, space, agents, _ = pair
    rng = np.random.default_rng(1)
    disturb(agents, rng)
    batch = make_batch(agents[0], spaces_only(space), rng, n=64)
    (torch_losses, torch_grads), (tf_losses, tf_grads) = [losses_and_gradients(agent, *batch) for agent in agents]
    assert torch_losses == pytest.approx(tf_losses, rel=1e-5) and len(tf_losses) == 2
    assert list(torch_grads) == list(tf_grads)
    for name, grad in torch_grads.items():
        assert np.linalg.norm(grad) > 1e-3
        assert_near(grad, tf_grads[name], 1e-5)


def test_parameters_are_the_same_after_1_and_after_10_updates(pair):
    variant, space, agents, _ = pair
    rng = np.random.default_rng(2)
    disturb(agents, rng)
    start, old_acts, stops = arrays(agents[1]), actions(agents[1], space), []
    for agent in agents:
        agent.updates = 0
    for number in range(1, 11):
        batch = own_batch(agents[0], space, rng)
        torch_metrics, tf_metrics = [update(agent, *batch) for agent in agents]
        assert torch_metrics.keys() == tf_metrics.keys()
        for key, value in torch_metrics.items():
            np.testing.assert_allclose(tf_metrics[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
        if variant == 'ppo':
            stops.append(torch_metrics['StopIter'])
        if variant == 'auto':                                  # the loss is -log_alpha mean( logp_pi + target_entropy )
            tf_grad = -np.mean(tf_metrics['LogPi'] + agents[1].target_entropy)
            assert agents[0].temperature[0].grad.item() == pytest.approx(tf_grad, rel=1e-5)
        if number in (1, 10):
            torch_arrays, tf_arrays = arrays(agents[0]), arrays(agents[1])
            for name, params in start.items():
                x, y = flat(torch_arrays[name]), flat(tf_arrays[name])
                assert_near(x, y, 1e-4, unit=x - flat(params))              # of the way that they have gone
    assert variant != 'ppo' or len(set(stops)) > 1                          # it did stop early

    # Acting follows the updates and, for equal weights, is equal.
    torch_acts, tf_acts = [actions(agent, space) for agent in agents]
    np.testing.assert_allclose(torch_acts, tf_acts, atol=1e-4)
    assert np.abs(torch_acts - old_acts).max() > 1e-3
    set_arrays(agents[1], torch_arrays)
    np.testing.assert_array_equal(torch_acts, actions(agents[1], space))


@pytest.mark.parametrize('own', [False, True], ids=['compiled', 'not compiled'])
@pytest.mark.parametrize('variant', ['ddpg', 'td3', 'sac', 'auto'])
def test_a_group_of_updates_is_one_after_the_other(variant, own, monkeypatch):
    """In TensorFlow, where a group is a loop inside of the graph: with XLA or, for networks of one's own, without."""
    algo, kwargs = VARIANTS[variant]
    file, compiled = importlib.import_module(f'{algo}_tf1'), []
    with_xla = file.tf.xla.experimental.compile
    monkeypatch.setattr(file.tf.xla.experimental, 'compile', lambda *args: compiled.append(args) or with_xla(*args))
    changes = dict(actor_critic=functools.partial(file.mlp_actor_critic)) if own else {}
    torch_agent = make_agent(f'{algo}_torch', spaces_only('box'), **kwargs)
    together = make_agent(f'{algo}_tf1', spaces_only('box'), **kwargs, **changes)
    assert bool(compiled) != own
    rng = np.random.default_rng(5)
    disturb([torch_agent, together], rng)                                   # equal from here on
    torch_agent.updates = together.updates = 1                              # td3 begins with a step of its policy
    batches, noise = zip(*[make_batch(together, spaces_only('box'), rng, 32) for _ in range(7)])
    batches = {key: np.stack([batch[key] for batch in batches]) for key in batches[0]}
    expected, group = [agent.update(batches, np.stack(noise)) for agent in (torch_agent, together)]
    assert torch_agent.updates == together.updates == 8
    for metrics, tf_metrics in zip(expected, group, strict=True):
        assert metrics.keys() == tf_metrics.keys()
        for key, value in metrics.items():
            np.testing.assert_allclose(tf_metrics[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    torch_arrays, tf_arrays = arrays(torch_agent), arrays(together)
    for name, params in tf_arrays.items():
        assert_near(flat(torch_arrays[name]), flat(params), 1e-5)
    together.sess.close()


def own_networks(file):
    """Linear networks of a user's own, for one action. A variable that begins as a tensor cannot be made in a loop."""
    tf = file.tf

    def linear(*inputs):
        x = tf.concat(inputs, axis=-1)
        return x @ tf.get_variable('own', initializer=tf.fill((int(x.shape[1]), 1), 0.1))

    def pi(obs, noise=None):
        u = linear(obs)
        return tf.tanh(u) if noise is None else (tf.tanh(u + 0.1 * noise), -tf.reduce_sum(noise**2 + u, axis=-1))

    def on_policy(obs, act, action_space):
        with tf.variable_scope('pi'):
            dist = file.Gaussian(linear(obs), tf.get_variable('log_std', (1,)))
        with tf.variable_scope('v'):
            return dist, dist.log_prob(act), linear(obs)[:, 0]

    def off_policy(scope, action_space):
        q, q1, q2 = (tf.make_template(f'{scope}/{name}', lambda obs, act: linear(obs, act)[:, 0])
                     for name in (('q', 'unused', 'unused') if file.__name__ == 'ddpg_tf1' else ('unused', 'q1', 'q2')))
        return SimpleNamespace(pi=tf.make_template(f'{scope}/pi', pi), q=q, q1=q1, q2=q2)
    return off_policy if hasattr(file, 'ReplayBuffer') else on_policy


@pytest.mark.parametrize('algo', ALGORITHMS)
def test_networks_of_ones_own_are_trained_by_tensorflow(algo, tmp_path):
    file = importlib.import_module(f'{algo}_tf1')
    first, networks = [], own_networks(file)
    class Watched(file.Agent):
        def __init__(self, *args):
            super().__init__(*args)
            first.append(arrays(self))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file, 'Agent', Watched)
        agent = getattr(file, algo)(lambda: gym.make('Pendulum-v1'), logger_kwargs=dict(output_dir=tmp_path),
                                    **dict(RUNS[algo], ac_kwargs={}, actor_critic=networks))
    last = arrays(agent)
    assert set(last) >= {'pi', *(('v',) if 'v' in last else ('q',) if algo == 'ddpg' else ('q1', 'q2'))}
    for name, params in first[0].items():
        if name != 'log_alpha':
            assert np.isfinite(flat(last[name])).all() and (flat(params) != flat(last[name])).any(), name
    agent.sess.close()


@pytest.mark.parametrize(('times', 'limit', 'made'), [(5, 100, 5), (5, 3, 3), (5, 0, 0), (0, 100, 0)])
def test_steps_inside_of_the_graph_follow_each_other_and_stop(times, limit, made):
    """Each step adds to a variable what it finds there, unless that would be too much."""
    from common.fast_tf import repeat
    from common.mpi_tf import setup_tf_for_mpi, tf
    sess = setup_tf_for_mpi(0)
    x = tf.get_variable('x', initializer=1.0)

    def step():
        value = x.read_value()
        go_on = value < 2.0**limit
        return tf.cond(go_on, lambda: x.assign_add(value).op, tf.no_op), go_on
    count = repeat(step, times)
    sess.run(tf.global_variables_initializer())
    assert sess.run(count) == made and sess.run(x) == 2**made
    sess.close()


@pytest.mark.parametrize('space', SPACES)
def test_trpo_has_the_same_direction_and_accepts_the_same_step(space, monkeypatch):
    """Conjugate gradient amplifies rounding before it has converged, in both twins alike: 1e-7 becomes 1e-6 in five
    iterations, and up to 1e-4 in the usual ten."""
    agents, tried = make_twins('trpo', space), []
    first = arrays(agents[0])
    for settings, tolerance in [(dict(cg_iters=5, delta=0.01), 1e-5), (dict(cg_iters=10, delta=0.01), 2e-3),
                                (dict(cg_iters=5, delta=5.0), 1e-5),                        # too far: it has to search
                                (dict(cg_iters=5, delta=5.0, backtrack_iters=1), 1e-5)]:    # and then in vain
        rng, solved = np.random.default_rng(1), []
        for agent in agents:
            set_arrays(agent, first)
            vars(agent.args).update(settings)
            def record(apply_matrix, b, iters, solve=sys.modules[type(agent).__module__].conjugate_gradient):
                solved.append((b, solve(apply_matrix, b, iters)))
                return solved[-1][1]
            monkeypatch.setattr(sys.modules[type(agent).__module__], 'conjugate_gradient', record)
        disturb(agents, rng)
        start, batch = arrays(agents[0]), own_batch(agents[0], space, rng)
        torch_metrics, tf_metrics = [update(agent, *batch) for agent in agents]
        monkeypatch.undo()
        (torch_grad, torch_x), (tf_grad, tf_x) = solved
        assert_near(torch_grad, tf_grad, 1e-5)
        assert_near(torch_x, tf_x, tolerance)
        torch_step, tf_step = [flat(arrays(agent)['pi']) - flat(start['pi']) for agent in agents]
        assert_near(torch_step, tf_step, tolerance)
        assert torch_metrics['BacktrackIters'] == tf_metrics['BacktrackIters']
        assert torch_metrics['KL'] == pytest.approx(tf_metrics['KL'], rel=10 * tolerance)
        tried.append((torch_metrics['BacktrackIters'], bool(torch_step.any())))
    assert tried == ([(0, True), (0, True), (1, True), (1, False)] if space == 'box' else [(0, True)] * 4)


# %% The same run
class Recorder(gym.Wrapper):
    """Keeps all rewards."""
    def __init__(self, env):
        super().__init__(env)
        self.rewards = []

    def step(self, action):
        obs, rew, *rest = self.env.step(action)
        self.rewards.append(float(rew))
        return obs, rew, *rest


def run(algo, framework, env_name, folder, **kwargs):
    """The table of a training run, and the rewards of all its steps."""
    envs = []

    def env_fn():
        envs.append(Recorder(gym.make(env_name)))
        return envs[-1]
    train_fn = getattr(importlib.import_module(f'{algo}_{framework}'), algo)
    train_fn(env_fn, logger_kwargs=dict(output_dir=folder / framework), **kwargs)
    return read_progress(folder / framework), envs[0].rewards


STEPS = 200
RUN = dict(seed=3, steps_per_epoch=STEPS, epochs=3, max_ep_len=50, ac_kwargs=dict(hidden_sizes=(32, 32)))
ON_POLICY_RUN = dict(RUN, train_v_iters=20)
OFF_POLICY_RUN = dict(RUN, batch_size=32, start_steps=STEPS // 2, update_after=STEPS, update_every=25, epochs=2,
                      num_test_episodes=2)
RUNS = dict(vpg=ON_POLICY_RUN, ppo=dict(ON_POLICY_RUN, train_pi_iters=20), trpo=ON_POLICY_RUN,
            ddpg=OFF_POLICY_RUN, td3=OFF_POLICY_RUN, sac=OFF_POLICY_RUN)


@pytest.mark.parametrize(('algo', 'env_name'), [*((algo, 'CartPole-v1') for algo in ('vpg', 'ppo', 'trpo')),
                                                *((algo, 'Pendulum-v1') for algo in ALGORITHMS)])
def test_one_seed_makes_the_same_run(algo, env_name, tmp_path):
    """Every return of the first epoch is equal, since both act with the same weights. (Off-policy the first half of
    these actions is random, the second half the policy's, and updates begin in the second epoch.) From then on the
    weights differ by rounding, and so do returns, by 1e-8 to 1e-4 of themselves; off-policy by up to 2e-3, as soon as
    the input of a relu is within rounding of zero, and q's slope with it on one side or on the other. Two runs of
    the same twin, of which one starts from weights changed by 1e-7, come apart as fast. On CartPole the actions, and so
    the returns, stay the same."""
    ((columns, rows), rewards), ((tf_columns, tf_rows), tf_rewards) = [
        run(algo, framework, env_name, tmp_path, **RUNS[algo]) for framework in FRAMEWORKS]
    assert columns == tf_columns and len(rows) == len(tf_rows) == RUNS[algo]['epochs']
    assert len(rewards) == len(tf_rewards) == STEPS * len(rows)
    assert rewards[:STEPS] == tf_rewards[:STEPS]
    returns = [key for key in columns if key.endswith(('EpRet', 'EpLen'))]
    assert rows[0]['AverageEpRet'] and [rows[0][key] for key in returns] == [tf_rows[0][key] for key in returns]

    tolerance = 1e-2 if 'batch_size' in RUNS[algo] else 1e-3
    for row, tf_row in zip(rows[1:], tf_rows[1:]):
        for key in columns:
            if key.endswith(('EpRet', 'EpLen')) and not key.startswith('Std') or key in ('LossPi', 'LossV', 'LossQ'):
                assert float(row[key]) == pytest.approx(float(tf_row[key]), rel=tolerance, abs=1e-6), key


# %% Several processes
TOGETHER = dict(
    ppo=('CartPole-v1', dict(ON_POLICY, train_pi_iters=5)),
    trpo=('Pendulum-v1', dict(ON_POLICY, cg_iters=5)),
    sac=('Pendulum-v1', dict(OFF_POLICY, alpha='auto', batch_size=32, start_steps=40, update_after=80, update_every=10,
                             num_test_episodes=1)),
    td3=('Pendulum-v1', dict(OFF_POLICY, policy_delay=3, batch_size=32, start_steps=40, update_after=80,
                             update_every=10, num_test_episodes=1)))
MPIRUN = shutil.which('mpirun', path=str(Path(sys.executable).parent)) or shutil.which('mpirun')


def my_share(data, *noise):
    """Of the rows of a batch, those that are this process's."""
    rows = slice(proc_id(), None, num_procs())
    return {key: array[rows] for key, array in data.items()}, *(array[:, rows] for array in noise)


def averaged_gradients(agent, data, *noise):
    """{network: its gradient, as the optimizers get it}"""
    if noise:
        _, grads = losses_and_gradients(agent, data, *noise)
        return {f'gradient of {net}': grad for net, grad in grads.items()}
    optimizer, params, grads = sys.modules[type(agent).__module__].MpiAdamOptimizer(), parameters(agent), {}
    feed = {agent.phs[key]: array for key, array in data.items()}
    with agent.sess.graph.as_default():
        for net, loss in twins.LOSSES.items():
            if net in params:
                pairs = optimizer.compute_gradients(agent.metrics[loss], params[net])
                grads[f'gradient of {net}'] = flat(agent.sess.run([grad for grad, _ in pairs], feed))
    return grads


def work_together(agent, env):
    """From new: gradients on one batch, and parameters after two updates. Every process has its share of a batch."""
    rng = np.random.default_rng(1)
    with agent.sess.graph.as_default():
        agent.sess.run(sys.modules[type(agent).__module__].tf.global_variables_initializer())       # for Adam's moments
    set_arrays(agent, {net: [np.float32(rng.normal(scale=0.3, size=p.shape)) for p in params]
                       for net, params in parameters(agent).items()})
    results = averaged_gradients(agent, *my_share(*make_batch(agent, env, rng, 64)))
    for _ in range(2):
        data, *noise = my_share(*make_batch(agent, env, rng, 64))
        update(agent, dict(data, logp=agent.evaluate(data['obs'], data['act'])) if 'logp' in data else data, *noise)
    return dict(results, **{f'updated {net}': flat(params) for net, params in arrays(agent).items()})


def many_processes(folder):
    """What this file does under mpirun: train, then work_together. Process 0 saves the results of all."""
    for algo, (env_name, kwargs) in TOGETHER.items():
        env_fn, train_fn = functools.partial(gym.make, env_name), getattr(importlib.import_module(f'{algo}_tf1'), algo)
        agent = train_fn(env_fn, steps_per_epoch=60, epochs=2, logger_kwargs=dict(output_dir=f'{folder}/{algo}'),
                         **kwargs)
        trained = {f'trained {net}': flat(params) for net, params in arrays(agent).items()}
        everybody = gather(dict(trained, **work_together(agent, make_env(env_fn))))
        if proc_id() == 0:
            np.savez(f'{folder}/{algo}.npz', **{key: [each[key] for each in everybody] for key in everybody[0]})


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
def test_four_processes_compute_what_one_computes_and_stay_equal(tmp_path):
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')  # on few cores
    done = subprocess.run([MPIRUN, '-np', '4', sys.executable, __file__, str(tmp_path)], env=env, capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for algo, (env_name, kwargs) in TOGETHER.items():
        four, env = dict(np.load(tmp_path / f'{algo}.npz')), make_env(functools.partial(gym.make, env_name))
        for key, of_all in four.items():
            assert len(of_all) == 4 and np.isfinite(of_all).all() and (of_all == of_all[0]).all(), key
        one = work_together(make_agent(f'{algo}_tf1', env, **kwargs), env)
        assert {key for key in four if not key.startswith('trained')} == set(one)
        for key, array in one.items():
            assert_near(array, four[key][0], 1e-5)


if __name__ == '__main__':
    many_processes(sys.argv[1])
