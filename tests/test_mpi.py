"""Several processes: the collectives, a process that fails, and training that does the mathematics of one process."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from common.logx import read_progress
from common.mpi_tools import mpi_avg, mpi_op, mpi_statistics_scalar, mpi_sum, num_procs, proc_id

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')


def run(code_or_args, processes, cwd, timeout=120):
    """Run a piece of code, or a script with its arguments, under mpirun."""
    command = ['-c', textwrap.dedent(code_or_args)] if isinstance(code_or_args, str) else code_or_args
    env = dict(os.environ, PYTHONPATH=ROOT, OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')  # on few cores
    return subprocess.run([MPIRUN, '-np', str(processes), sys.executable, *command], cwd=cwd, env=env, timeout=timeout,
                          capture_output=True, text=True)


def rows_of(folder):
    """The table of a run, without its Time column."""
    _, rows = read_progress(os.path.join(folder, 'progress.txt'))
    return [{key: val for key, val in row.items() if key != 'Time'} for row in rows]


def test_one_process_is_its_own_world():
    assert (proc_id(), num_procs()) == (0, 1)
    assert mpi_sum(3) == 3 and mpi_avg(3) == 3 and mpi_op(3, 'max') == 3
    np.testing.assert_array_equal(mpi_sum([1, 2]), [1, 2])


def test_statistics_are_two_pass_and_in_float64():
    x = (1e6 + np.arange(5)).astype(np.float32)
    assert mpi_statistics_scalar(x, with_min_and_max=True) == (1e6 + 2, np.std(np.arange(5)), 1e6, 1e6 + 4)


def test_statistics_of_nothing_are_nan():
    assert np.isnan(mpi_statistics_scalar([], with_min_and_max=True)).all()


@pytest.mark.parametrize(('variable', 'mpi4py', 'cause'), [
    ('PMI_SIZE', None, 'mpi4py is not there, or finds no MPI library'),
    ('OMPI_COMM_WORLD_SIZE', 'installed', 'it is not the mpirun of mpi4py')])
def test_processes_that_do_not_know_of_each_other_are_refused(variable, mpi4py, cause, tmp_path):
    """Else each would train alone, all into one folder."""
    code = f'''
import runpy, sys
if {mpi4py!r} is None:
    sys.modules['mpi4py'] = None
sys.argv = ['ppo_torch.py', '--env', 'CartPole-v1']
runpy.run_path({os.path.join(ROOT, 'ppo_torch.py')!r}, run_name='__main__')'''
    env = dict(os.environ, PYTHONPATH=ROOT, **{variable: '3'})
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', code], env=env, cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.returncode == 2 and os.listdir(tmp_path) == []
    assert done.stderr.startswith('ppo_torch.py: error: mpirun has started 3 processes that do not know of each other')
    assert cause in done.stderr and done.stderr.count('\n') == 1


@needs_mpirun
def test_progress_is_shown_where_mpirun_writes_to_a_terminal(tmp_path):
    """mpirun gives its processes pipes; its own output may be a terminal, or redirected."""
    pty = pytest.importorskip('pty')
    command = [MPIRUN, '-np', '2', sys.executable, os.path.join(ROOT, 'ppo_torch.py'), '--env', 'CartPole-v1',
               '--epochs', '1', '--overwrite']
    env = dict(os.environ, PYTHONPATH=ROOT, OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')
    terminal, end = pty.openpty()
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=end, stderr=end)
    os.close(end)
    shown = b''
    with contextlib.suppress(OSError):                  # which ends the output of a terminal
        while chunk := os.read(terminal, 10000):
            shown += chunk
    assert process.wait() == 0 and b'0/4000' in shown and b'\x1b[36;1m' in shown
    plain = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True)
    assert plain.returncode == 0 and plain.stderr == b'' and b'\x1b' not in plain.stdout


@needs_mpirun
def test_statistics_over_processes_of_which_some_hold_nothing(tmp_path):
    done = run('''
        import json
        from common.mpi_tools import *
        numbers = [[1.0, 2.0, 6.0], [], [-3.0], []][proc_id()]
        stats = mpi_statistics_scalar(numbers, with_min_and_max=True)
        gathered, scattered = gather(proc_id()), scatter([10, 11, 12, 13] if proc_id() == 0 else None)
        total, low = mpi_sum([proc_id(), 1]).tolist(), mpi_op(proc_id() + 5, 'min')
        everybody = gather([stats, scattered, total, low, bcast(proc_id() + 7)])
        if proc_id() == 0:
            print(json.dumps([gathered, everybody]))
        ''', 4, tmp_path)
    gathered, everybody = json.loads(done.stdout)
    assert gathered == [0, 1, 2, 3]
    numbers = np.array([1.0, 2.0, 6.0, -3.0])
    for process, (stats, scattered, total, low, broadcasted) in enumerate(everybody):
        np.testing.assert_allclose(stats, [numbers.mean(), numbers.std(), -3, 6], rtol=1e-12)
        assert (scattered, total, low, broadcasted) == (10 + process, [6, 4], 5, 7)


@needs_mpirun
@pytest.mark.parametrize(('failure', 'status', 'message'), [
    ("raise ValueError('the reason')", 1, 'Process 1 of 3 failed, so all of them stop:\nTraceback'),
    ('sys.exit(3)', 3, 'process 1 of 3: error: sys.exit(3)')])
def test_a_failing_process_ends_all_and_says_why(failure, status, message, tmp_path):
    done = run(f'''
        import sys
        from common.mpi_tools import *
        if proc_id() == 1:
            {failure}
        mpi_sum(1)                                  # the others would wait here for ever
        ''', 3, tmp_path, timeout=30)
    assert done.returncode == status and message in done.stderr
    assert 'ValueError' not in failure or 'ValueError: the reason' in done.stderr


@needs_mpirun
def test_gradients_and_scalars_are_averaged_and_parameters_synced(tmp_path):
    done = run('''
        import json, torch
        from common.mpi_pytorch import *
        from common.mpi_tools import gather, proc_id
        torch.manual_seed(proc_id())
        net = torch.nn.Linear(3, 2)
        sync_params(net)
        (net(torch.ones(1, 3)).sum() * (proc_id() + 1)).backward()
        kl, nan = mpi_avg_grads(net, 10.0 * proc_id()), mpi_avg_grads(net, float('nan') if proc_id() == 1 else 0.0)
        everybody = gather([net.weight.tolist(), net.weight.grad.tolist(), net.bias.grad.tolist(), kl, nan != nan])
        if proc_id() == 0:
            print(json.dumps(everybody))
        ''', 3, tmp_path)
    everybody = json.loads(done.stdout)
    assert everybody[0] == everybody[1] == everybody[2]
    _, weight_grad, bias_grad, kl, is_nan = everybody[0]
    assert np.allclose(weight_grad, 2) and np.allclose(bias_grad, 2) and kl == 10
    assert is_nan, 'a NaN of one process must stop all'


def test_adam_of_tensorflow_makes_the_steps_of_pytorch():
    """Also where gradients are as small as epsilon, which TensorFlow's own would add before correcting the bias."""
    torch = pytest.importorskip('torch')
    pytest.importorskip('tensorflow')
    from common.mpi_tf import MpiAdamOptimizer, tf
    weights, factors = np.linspace(-1, 1, 8, dtype=np.float32), np.logspace(-10, 0, 8, dtype=np.float32)
    x = torch.tensor(weights, requires_grad=True)
    adam = torch.optim.Adam([x], lr=0.01, fused=True)
    with tf.Graph().as_default(), tf.Session() as sess:
        y = tf.get_variable('y', initializer=weights)
        step = MpiAdamOptimizer(0.01).minimize(tf.reduce_sum(factors * (y - 2)**2), var_list=[y])
        sess.run(tf.global_variables_initializer())
        for number in range(1, 31):
            adam.zero_grad()
            (torch.as_tensor(factors) * (x - 2)**2).sum().backward()
            adam.step()
            sess.run(step)
            if number in (1, 2, 30):
                np.testing.assert_allclose(sess.run(y), x.detach(), atol=1e-6)
        assert (np.abs(sess.run(y) - weights) > 1e-3).all()


@needs_mpirun
def test_any_number_of_processes_has_the_gradient_of_one(tmp_path):
    """The same total batch, split among 1 and among 4 processes, leads to the same parameters after one update."""
    code = '''
        import importlib, sys, numpy as np, gymnasium as gym
        sys.path.insert(0, 'TESTS')
        from helpers import make_args
        from common.env_tools import make_env
        from common.mpi_tools import num_procs, proc_id
        for algorithm in ('ppo', 'trpo', 'sac'):
            file = importlib.import_module(f'{algorithm}_torch')
            env = make_env(lambda: gym.make('Pendulum-v1'), off_policy=algorithm == 'sac')
            args = make_args(getattr(file, algorithm), ac_kwargs=dict(hidden_sizes=(16,)))
            agent = file.Agent(env, np.random.default_rng(0), args)
            rng, n = np.random.default_rng(1), 80 // num_procs()
            share = slice(proc_id() * n, (proc_id() + 1) * n)
            draw = lambda *shape: rng.standard_normal((80, *shape)).astype(np.float32)[share]
            if algorithm == 'sac':
                batch = dict(obs=draw(3), act=np.tanh(draw(1)), rew=draw(), next_obs=draw(3), terminated=draw() > 1)
                agent.update({key: np.float32(x) for key, x in batch.items()}, np.stack([draw(1), draw(1)]))
            else:
                obs, act = draw(3), draw(1)
                _, logp, _ = agent.evaluate(obs, act, obs)
                agent.update(dict(obs=obs, act=act, adv=draw(), ret=draw(), logp=logp))
            params = [p.detach().numpy().ravel() for p in agent.ac.parameters()]
            np.save(f'{algorithm}_{num_procs()}_{proc_id()}', np.concatenate(params))
        '''.replace('TESTS', os.path.join(ROOT, 'tests'))
    for processes in (1, 4):
        done = run(code, processes, tmp_path)
        assert done.returncode == 0, done.stderr
    for algorithm in ('ppo', 'trpo', 'sac'):
        one, *four = [np.load(tmp_path / f'{algorithm}_{name}.npy') for name in ('1_0', '4_0', '4_1', '4_2', '4_3')]
        for other in four[1:]:
            np.testing.assert_array_equal(other, four[0], err_msg=algorithm)
        np.testing.assert_allclose(four[0], one, atol=1e-5, err_msg=algorithm)


TRAINING = {
    'ppo': dict(env='CartPole-v1', steps_per_epoch=400, epochs=3, train_pi_iters=5),
    'trpo': dict(env='CartPole-v1', steps_per_epoch=400, epochs=2, train_v_iters=5),
    'sac': dict(env='Pendulum-v1', steps_per_epoch=300, epochs=2, start_steps=100, update_after=100,
                num_test_episodes=2, max_ep_len=50, ac_kwargs=dict(hidden_sizes=(16, 16))),
}


@needs_mpirun
@pytest.mark.parametrize('algorithm', TRAINING)
def test_two_processes_are_reproducible_and_stay_equal(algorithm, tmp_path):
    """The same seed gives the same table twice, and both processes end with the same parameters."""
    done = run(f'''
        import gymnasium as gym, numpy as np
        from {algorithm}_torch import {algorithm} as train
        from common.mpi_tools import proc_id
        kwargs = {TRAINING[algorithm]}
        env = kwargs.pop('env')
        for folder in ('first', 'second'):
            agent = train(lambda: gym.make(env), logger_kwargs=dict(output_dir=folder), **kwargs)
        np.save(f'process_{{proc_id()}}', np.concatenate([p.detach().numpy().ravel() for p in agent.ac.parameters()]))
        ''', 2, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = rows_of(tmp_path / 'first'), rows_of(tmp_path / 'second')
    assert first == second and len(first) == TRAINING[algorithm]['epochs']
    np.testing.assert_array_equal(np.load(tmp_path / 'process_0.npy'), np.load(tmp_path / 'process_1.npy'))


@needs_mpirun
def test_off_policy_processes_share_out_steps_and_updates(tmp_path):
    """As many environment steps and updates at two processes as at one, also where they do not divide evenly."""
    code = '''
        import gymnasium as gym
        from ddpg_torch import ddpg
        from common.mpi_tools import proc_id
        agent = ddpg(lambda: gym.make('Pendulum-v1'), steps_per_epoch=212, epochs=1, start_steps=50, update_after=50,
                     update_every=7, batch_size=9, num_test_episodes=1, ac_kwargs=dict(hidden_sizes=(8,)),
                     logger_kwargs=dict(output_dir='out'))
        if proc_id() == 0:
            print('updates', agent.updates)
        '''
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        done = run(code, processes, folder)
        assert f'updates {212 // 7 * 7 - 50}\n' in done.stdout, done.stderr
        assert [row['TotalEnvInteracts'] for row in rows_of(folder / 'out')] == ['212']


@needs_mpirun
def test_four_processes_train_from_the_command_line(tmp_path):
    """The README's command, made short."""
    script = os.path.join(ROOT, 'ppo_torch.py')
    done = run([script, '--env', 'CartPole-v1', '--epochs', '2', '--steps_per_epoch', '800'], 4, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('AverageEpRet') == 2, 'process 0 alone prints'
    rows = rows_of(tmp_path / 'data' / 'ppo_torch' / 'ppo_torch_s0')
    assert [row['TotalEnvInteracts'] for row in rows] == ['800', '1600']


def test_without_mpi4py_everything_runs_as_one_process(tmp_path):
    code = '''
        import sys
        sys.modules['mpi4py'] = None                            # makes its import fail
        import gymnasium as gym
        from ppo_torch import ppo
        ppo(lambda: gym.make('CartPole-v1'), steps_per_epoch=200, epochs=1, logger_kwargs=dict(output_dir='out'))
        '''
    done = subprocess.run([sys.executable, '-c', textwrap.dedent(code)], cwd=tmp_path, capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=ROOT))
    assert done.returncode == 0, done.stderr
    assert len(rows_of(tmp_path / 'out')) == 1
