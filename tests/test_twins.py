"""The proof that twins are twins: a PyTorch file and its TensorFlow-1 file compute the same and make the same run.

What remains is rounding, since the frameworks add up in another order. The tolerances follow from float32, in which a
number is off by up to 6e-8 of itself (u):
- a forward pass of three layers, of up to 16 inputs each: some ten u, 1e-6;
- a mean over a batch of 64, and so a loss and a gradient: up to 64 u in the worst case, 4e-6; with what the numbers in
  it are off, 1e-5;
- a step of Adam, of length 1e-3 for a weight of up to 1: the weight itself is rounded by 3e-8, which is 3e-5 of the
  step; and TensorFlow keeps 0.999^t as float32, where 1 - 0.999^t is off by up to 3e-5 of itself: 1e-4 of the way gone.

Under mpirun this file is a script: see `many_processes`.
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
from common.logx import read_progress
from common.mpi_tools import gather, num_procs, proc_id
from helpers import SmallEnv
from tools import twins
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT
from tools.twins import column_drift, flat, make_agent, make_batch, parameters, variables

SPACES = dict(discrete=Discrete(3), box=Box(np.float32([-1, 0.5]), np.float32([3, 1])))     # not symmetric, nor alike
ON_POLICY = dict(train_v_iters=5)
OFF_POLICY = dict(polyak=0.9)                                                               # targets that soon move
VARIANTS = dict(
    vpg=('vpg', dict(ON_POLICY, pi_lr=0.01)),
    ppo=('ppo', dict(ON_POLICY, pi_lr=0.01, train_pi_iters=20)),                           # so fast that it stops early
    trpo=('trpo', dict(ON_POLICY, cg_iters=5)),
    npg=('trpo', dict(ON_POLICY, cg_iters=5, algo='npg')),
    ddpg=('ddpg', OFF_POLICY),
    td3=('td3', OFF_POLICY),
    td3_delay_3=('td3', dict(OFF_POLICY, policy_delay=3)),
    sac=('sac', OFF_POLICY),
    sac_alpha_0=('sac', dict(OFF_POLICY, alpha=0.0)),
    sac_auto=('sac', dict(OFF_POLICY, alpha='auto')),
)
CASES = [(variant, space) for variant, (_, kwargs) in VARIANTS.items() for space in SPACES
         if space == 'box' or 'polyak' not in kwargs]
pytestmark = pytest.mark.skipif(not all(map(importlib.util.find_spec, ('torch', 'tensorflow'))),
                                reason='one of the frameworks is not installed')


# %% Helpers
def spaces_only(variant, space):
    return make_env(functools.partial(SmallEnv, Box(-1, 1, (4,)), SPACES[space]),
                    off_policy='polyak' in VARIANTS[variant][1])


def make_twins(variant, space):
    """The agents of both frameworks, made with the same seed. All have tanh: the slope of a relu would differ where its
    input is within rounding of zero, which happens once in some hundred updates."""
    (algo, kwargs), agents = VARIANTS[variant], []
    for framework in FRAMEWORKS:
        file = importlib.import_module(f'{algo}_{framework}')
        ac_kwargs = dict(hidden_sizes=(16, 8), activation=file.tf.tanh if framework == 'tf1' else file.nn.Tanh)
        agents.append(make_agent(file.__name__, spaces_only(variant, space), **kwargs, seed=7, ac_kwargs=ac_kwargs))
    return agents


@pytest.fixture(params=CASES, ids='-'.join, scope='module')
def pair(request):
    """variant, space, agents, and what these were at first. Several tests share them: graphs take time to build."""
    variant, space = request.param
    agents = make_twins(variant, space)
    first = [(parameters(agent), actions(agent, space)) for agent in agents]
    yield variant, space, agents, first
    agents[1].sess.close()


def set_parameters(agent, new):
    for name, variable in variables(agent).items():
        if hasattr(agent, 'sess'):
            variable.load(new[name], agent.sess)
        else:
            variable.data.copy_(variable.new_tensor(new[name]))


def disturb(agents, rng):
    """Move all parameters from where agents begin: there targets are copies, and all deviations are equal."""
    new = {name: np.float32(array + 0.1 * rng.standard_normal(array.shape))
           for name, array in parameters(agents[0]).items()}
    for agent in agents:
        set_parameters(agent, new)


def actions(agent, space, n=20):
    """What an agent does in some observations, with some noise and without."""
    rng = np.random.default_rng(3)
    obs = rng.standard_normal((n, 4), dtype=np.float32)
    noise = rng.standard_normal((n, 3 if space == 'discrete' else 2), dtype=np.float32)
    return np.array([[agent.act(o, z), agent.act(o)] for o, z in zip(obs, noise)])


def by_network(arrays):
    """{network: all its arrays as one vector}, of a dictionary by paths."""
    return {net: flat(arrays, net) for net in sorted({'.'.join(path.split('.')[:2]) for path in arrays})}


def adam(agent):
    """Adam's averages of the gradients and of their squares, by network, and how many steps each optimizer has made."""
    if hasattr(agent, 'sess'):
        values = agent.get_state()
        slots = [{path: values[f'{v.op.name}/{slot}'] for path, v in variables(agent).items()
                  if f'{v.op.name}/{slot}' in values} for slot in ('Adam', 'Adam_1')]
        powers = [power for name, power in values.items() if 'beta1_power' in name]             # 0.9^(steps + 1)
        steps = [round(np.log(power) / np.log(0.9)) - 1 for power in powers]
    else:
        optimizers = [part for part in vars(agent).values() if hasattr(part, 'param_groups') and part.state]
        states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
        slots = [{path: states[p][slot].numpy() for path, p in variables(agent).items() if p in states}
                 for slot in ('exp_avg', 'exp_avg_sq')]
        steps = [int(next(iter(optimizer.state.values()))['step']) for optimizer in optimizers]
    return *map(by_network, slots), sorted(steps)


def assert_near(x, y, tolerance, unit=None, what=''):
    """The arrays differ by at most `tolerance` times the length of the first, or of `unit`."""
    assert x.shape == y.shape and np.isfinite(x).all(), what
    assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(x if unit is None else unit), what


# %% The same numbers
def test_users_are_told_the_same_number_of_parameters(pair):
    _, _, agents, _ = pair
    told, nothing = [], lambda *args, **kwargs: None
    logger = SimpleNamespace(log=told.append, setup_pytorch_saver=nothing, setup_tf_saver=nothing)
    for agent in agents:
        sys.modules[type(agent).__module__].setup_saver(agent, logger)
    assert told[0] == told[1] and told[0].startswith('Number of parameters: pi: ')
    assert sum(map(int, re.findall(r': ([0-9]+)', told[0]))) == sum(p.numel() for p in agents[0].ac.parameters())


def test_new_agents_have_the_same_weights_and_act_alike(pair):
    """Byte for byte; actions but for rounding, and the choices among Discrete ones are the same."""
    _, _, _, ((torch_params, torch_acts), (tf_params, tf_acts)) = pair
    assert set(torch_params) == set(tf_params) and any(path.endswith('weight') for path in tf_params)
    for path, array in torch_params.items():
        assert array.dtype == tf_params[path].dtype == np.float32 and array.shape == tf_params[path].shape, path
        assert array.tobytes() == tf_params[path].tobytes(), path
    np.testing.assert_allclose(torch_acts, tf_acts, rtol=0, atol=1e-6)
    assert len(np.unique(torch_acts)) > 1


def test_updates_make_the_same_steps(pair):
    """Metrics, Adam's averages and all parameters after each of ten updates. At the first, one step of each optimizer,
    Adam's averages are the gradient and its square; its advantages are small enough for Adam's epsilon to count."""
    variant, space, agents, _ = pair
    rng, env = np.random.default_rng(1), spaces_only(variant, space)
    disturb(agents, rng)
    start, old_acts, stops, moved = by_network(parameters(agents[0])), actions(agents[0], space), [], []
    old_pi = start['ac.pi']
    for number in range(1, 11):
        batch, *noise = make_batch(agents[0], env, rng, 64)
        if number == 1 and 'adv' in batch:
            batch['adv'] *= 1e-4
        for agent in agents:
            vars(agent.args).update(dict.fromkeys(['train_pi_iters', 'train_v_iters'], 1) if number == 1
                                    else VARIANTS[variant][1])
        metrics, tf_metrics = [agent.update(batch, *noise) for agent in agents]
        assert metrics.keys() == tf_metrics.keys()
        for key, value in metrics.items():
            np.testing.assert_allclose(tf_metrics[key], value, rtol=1e-5, atol=1e-5, err_msg=key)
        stops.append(metrics.get('StopIter'))

        (averages, squares, steps), (tf_averages, tf_squares, tf_steps) = map(adam, agents)
        assert steps == [step for step in tf_steps if step]                 # PyTorch has no state before the first step
        for net in averages:
            assert_near(averages[net], tf_averages[net], 1e-5 if number == 1 else 1e-4, what=net)
            assert_near(squares[net], tf_squares[net], 5e-5 if number == 1 else 2e-4, what=net)
        params, tf_params = by_network(parameters(agents[0])), by_network(parameters(agents[1]))
        for net, x in params.items():
            assert_near(x, tf_params[net], 1e-4, unit=x - start[net], what=net)
        moved.append(bool((params['ac.pi'] != old_pi).any()))
        old_pi = params['ac.pi']
    assert averages.keys() == tf_averages.keys() and len(steps) == len(tf_steps)
    assert variant != 'ppo' or len(set(stops)) > 2                          # it did stop early
    assert moved == [number % getattr(agents[0].args, 'policy_delay', 1) == 0 for number in range(1, 11)]

    # Acting follows the updates.
    torch_acts, tf_acts = [actions(agent, space) for agent in agents]
    np.testing.assert_allclose(torch_acts, tf_acts, rtol=0, atol=1e-4)
    assert np.abs(torch_acts - old_acts).max() > 1e-3


@pytest.mark.parametrize('space', SPACES)
def test_trpo_has_the_same_direction_and_accepts_the_same_step(space, monkeypatch):
    """Conjugate gradient amplifies rounding before it has converged, in both twins alike: 1e-7 becomes 1e-6 in five
    iterations, and up to 1e-4 in the usual ten."""
    agents, tried = make_twins('trpo', space), []
    first, far = parameters(agents[0]), dict(delta=0.05, damping_coeff=0.001)   # the KL will be above delta
    for settings, tolerance in [(dict(), 1e-5), (dict(cg_iters=10), 2e-3), (far, 1e-5), (dict(far, delta=5), 1e-5),
                                (dict(far, backtrack_iters=1), 1e-5), (dict(far, algo='npg'), 1e-5)]:
        rng, solved = np.random.default_rng(7), []
        for agent in agents:
            set_parameters(agent, first)
            vars(agent.args).update(dict(cg_iters=5, delta=0.01, damping_coeff=0.1, backtrack_iters=10, algo='trpo'),
                                    **settings)
            def record(apply_matrix, b, iters, solve=sys.modules[type(agent).__module__].conjugate_gradient):
                x = solve(apply_matrix, b, iters)
                solved.append((np.sort(b), np.sort(x)))                 # parameters have another order in each twin
                return x
            monkeypatch.setattr(sys.modules[type(agent).__module__], 'conjugate_gradient', record)
        disturb(agents, rng)
        start, batch = flat(parameters(agents[0]), 'ac.pi'), make_batch(agents[0], spaces_only('trpo', space), rng, 64)
        metrics, tf_metrics = [agent.update(*batch) for agent in agents]
        monkeypatch.undo()
        (grad, x), (tf_grad, tf_x) = solved
        assert_near(grad, tf_grad, 1e-5)
        assert_near(x, tf_x, tolerance)
        step, tf_step = [flat(parameters(agent), 'ac.pi') - start for agent in agents]
        assert_near(step, tf_step, tolerance)
        assert metrics.get('BacktrackIters') == tf_metrics.get('BacktrackIters')
        assert metrics['KL'] == pytest.approx(tf_metrics['KL'], rel=10 * tolerance)
        tried.append((metrics.get('BacktrackIters'), bool(step.any())))
    agents[1].sess.close()
    assert tried == [(0, True), (0, True), (1, True), (3, True), (1, False), (None, True)]


# %% The same run
STEPS = 200
RUN = dict(seed=3, steps_per_epoch=STEPS, epochs=3, max_ep_len=50, ac_kwargs=dict(hidden_sizes=(32, 32)))
ON_POLICY_RUN = dict(RUN, train_v_iters=20)
OFF_POLICY_RUN = dict(RUN, batch_size=32, start_steps=STEPS // 2, update_after=STEPS - 25, update_every=25, epochs=2,
                      num_test_episodes=2)
RUNS = dict(vpg=ON_POLICY_RUN, ppo=dict(ON_POLICY_RUN, train_pi_iters=20), trpo=ON_POLICY_RUN,
            ddpg=OFF_POLICY_RUN, td3=OFF_POLICY_RUN, sac=OFF_POLICY_RUN)


@pytest.mark.parametrize(('algo', 'env_name'), [*((algo, 'CartPole-v1') for algo in ('vpg', 'ppo', 'trpo')),
                                                *((algo, 'Pendulum-v1') for algo in ALGORITHMS)])
def test_one_seed_makes_the_same_run(algo, env_name, tmp_path):
    """In the first epoch both act by the same weights: all columns agree to 1e-4 of themselves, or of 1 where they are
    smaller. (The least exact is DeltaLossV, the difference of two nearly equal losses: 4e-5.) From then on the weights
    differ by rounding, and this grows, most with TRPO (1e-3), where conjugate gradient amplifies it."""
    for framework in FRAMEWORKS:
        train_fn = getattr(importlib.import_module(f'{algo}_{framework}'), algo)
        train_fn(functools.partial(gym.make, env_name), logger_kwargs=dict(output_dir=tmp_path / framework),
                 **RUNS[algo])
    columns, tf_columns = [read_progress(tmp_path / framework / 'progress.txt')[0] for framework in FRAMEWORKS]
    rows, tf_rows = [twins.read_rows(tmp_path / framework) for framework in FRAMEWORKS]
    assert columns == tf_columns and len(rows) == len(tf_rows) == RUNS[algo]['epochs']
    assert all(val == val for row in rows + tf_rows for val in row.values())            # no cell is empty, or NaN
    first, *later = [column_drift(row, tf_row) for row, tf_row in zip(rows, tf_rows)]
    assert first < (1e-4,) and max(later) < (1e-2,)


# %% The tool
def test_the_tool_says_how_far_the_twins_have_drifted(capfd):
    twins.main('sac --env Pendulum-v1 --hid [16] --steps_per_epoch 60 --epochs 2 --max_ep_len 20 --start_steps 20 '
               '--update_after 30 --update_every 10 --num_test_episodes 1'.split())
    out = capfd.readouterr().out
    assert 'start from the same weights and draw the same noise, and then drift by\nrounding only' in out
    assert re.search(r'^at first +0.0e\+00$', out, flags=re.MULTILINE)
    rows = re.findall(r'^after epoch ([01]) +(\S+) +(\S+) +(\S+) +(\S+) +\w+$', out, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ['0', '1']
    assert all(0 < float(number) < 1e-2 for row in rows for number in row[1:3])
    assert len(re.findall(r'^\|step of (pi|q1|q2)\| ', out, flags=re.MULTILINE)) == 3
    assert len(re.findall(r'^Average(?:Test)?EpRet, epoch [01] ', out, flags=re.MULTILINE)) == 4


@pytest.mark.parametrize(('command', 'answer'), [
    ('pppo --env CartPole-v1', 'unknown algorithm pppo (nearest: ppo'),
    ('ppo --env CartPole-v1 --gamma 0.9 0.99', "only the algorithm's own flags are compared, with one value each")])
def test_the_tool_refuses_in_one_line(command, answer, capfd):
    with pytest.raises(SystemExit) as stopped:
        twins.main(command.split())
    out, err = capfd.readouterr()
    assert stopped.value.code == 2 and answer in err and err.count('\n') == 1 and not out


# %% Several processes
TOGETHER = dict(ppo=('CartPole-v1', dict(train_pi_iters=5)), trpo=('Pendulum-v1', dict(cg_iters=5)),
                td3=('Pendulum-v1', dict(policy_delay=3)), sac=('Pendulum-v1', dict(alpha='auto')))
MPIRUN = shutil.which('mpirun', path=str(Path(sys.executable).parent)) or shutil.which('mpirun')


def work_together(algo):
    """All parameters of a new agent, and after three updates; every process has its share of the rows, and a seed of
    its own: that the weights are equal is due to the message of process 0."""
    env_name, kwargs = TOGETHER[algo]
    env = make_env(functools.partial(gym.make, env_name), off_policy='batch_size' in RUNS[algo])
    agent = make_agent(f'{algo}_tf1', env, **dict(RUNS[algo], **kwargs, seed=proc_id()))
    start, rng, rows = flat(parameters(agent), ''), np.random.default_rng(1), slice(proc_id(), None, num_procs())
    for _ in range(3):
        batch, *noise = make_batch(agent, env, rng, 64)
        agent.update({key: array[rows] for key, array in batch.items()}, *(array[:, rows] for array in noise))
    return start, flat(parameters(agent), '')


def many_processes(folder):
    """What this file does under mpirun: train, then work_together. Process 0 saves the results of all."""
    for algo, (env_name, kwargs) in TOGETHER.items():
        train_fn = getattr(importlib.import_module(f'{algo}_tf1'), algo)
        agent = train_fn(functools.partial(gym.make, env_name), logger_kwargs=dict(output_dir=f'{folder}/{algo}'),
                         **dict(RUNS[algo], **kwargs))
        results = gather([flat(parameters(agent), ''), *work_together(algo)])
        if proc_id() == 0:
            np.save(f'{folder}/{algo}.npy', results)


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
def test_four_processes_compute_what_one_computes_and_stay_equal(tmp_path):
    """In TensorFlow; tests/test_mpi.py is about PyTorch."""
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')  # on few cores
    done = subprocess.run([MPIRUN, '-np', '4', sys.executable, __file__, str(tmp_path)], env=env, capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for algo in TOGETHER:
        four = np.load(tmp_path / f'{algo}.npy')                            # (processes, results, parameters)
        assert len(four) == 4 and np.isfinite(four).all() and (four == four[0]).all(), algo
        start, updated = work_together(algo)
        np.testing.assert_array_equal(four[0, 1], start)
        assert_near(updated, four[0, 2], 1e-4, unit=updated - start, what=algo)


def test_help_for_a_reader_who_has_had_enough():
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([sys.executable, '-u', '-m', 'tools.twins', '--help'], cwd=ROOT, stdout=write_end,
                          stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, '')


if __name__ == '__main__':
    many_processes(sys.argv[1])
