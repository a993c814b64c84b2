"""A run that was stopped and resumed ends with the same table as one that never was."""
import os
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
ON_POLICY = ['--env', 'CartPole-v1', '--steps_per_epoch', '300', '--train_v_iters', '5', '--save_freq', '2']
OFF_POLICY = ['--env', 'Pendulum-v1', '--steps_per_epoch', '130', '--start_steps', '100', '--update_after', '60',
              '--hid', '16,16', '--replay_size', '300', '--num_test_episodes', '1', '--max_ep_len', '70']
FLAGS = dict(vpg=ON_POLICY, ppo=ON_POLICY + ['--train_pi_iters', '5'], trpo=ON_POLICY,
             ddpg=OFF_POLICY, td3=OFF_POLICY, sac=OFF_POLICY + ['--alpha', 'auto'])


def command(script, epochs, folder, *more, processes=1):
    launcher = [MPIRUN, '-np', str(processes)] if processes > 1 else []
    algorithm = script.split('_')[0]
    return [*launcher, sys.executable, os.path.join(ROOT, f'{script}.py'), *FLAGS[algorithm], '--epochs', str(epochs),
            '--data_dir', str(folder), *more]


def train(*args, **kwargs):
    done = subprocess.run(command(*args, **kwargs), capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS='1'))
    assert done.returncode == 0, done.stderr


def table(folder, script):
    """The rows of a run, without the Time column."""
    with open(os.path.join(folder, script, f'{script}_s0', 'progress.txt'), encoding='utf-8') as file:
        rows = [line.rstrip('\n').split('\t') for line in file]
    time_column = rows[0].index('Time')
    return [row[:time_column] + row[time_column + 1:] for row in rows]


# All six in PyTorch, one of each family in TensorFlow (which has the same loop), and two processes of each family.
CASES = [('vpg_torch', 1), ('ppo_torch', 1), ('trpo_torch', 1), ('ddpg_torch', 1), ('td3_torch', 1), ('sac_torch', 1),
         ('ppo_tf1', 1), ('td3_tf1', 1), ('ppo_torch', 2), ('sac_torch', 2), ('ppo_tf1', 2), ('sac_tf1', 2)]


@pytest.mark.parametrize('script, processes', CASES)
def test_n_epochs_and_n_more_are_2n_epochs(script, processes, tmp_path):
    """With episodes that go on over the end of an epoch, and a replay buffer that is full and has wrapped around."""
    if processes > 1 and MPIRUN is None:
        pytest.skip('there is no mpirun')
    train(script, 6, tmp_path / 'whole', processes=processes)
    train(script, 3, tmp_path / 'parts', processes=processes)
    train(script, 6, tmp_path / 'parts', '--resume', processes=processes)
    assert table(tmp_path / 'parts', script) == table(tmp_path / 'whole', script)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    train('ppo_torch', 2, tmp_path)
    before = table(tmp_path, 'ppo_torch')
    train('ppo_torch', 2, tmp_path, '--resume')
    assert table(tmp_path, 'ppo_torch') == before


@pytest.mark.parametrize('script', ['ppo_torch', 'sac_torch'])
def test_killed_at_any_moment_it_ends_the_same(script, tmp_path):
    """SIGKILL at a few moments of the run's life, resumed each time."""
    train(script, 6, tmp_path / 'whole')
    env = dict(os.environ, OMP_NUM_THREADS='1')
    kills, wait = 0, 1.5
    while True:
        run = subprocess.Popen(command(script, 6, tmp_path / 'killed', '--resume'), env=env,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            _, error = run.communicate(timeout=wait)
            assert run.returncode == 0, error
            break
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.communicate()
            kills, wait = kills + 1, wait + 0.7                 # each life is a little longer, so that it ends
    assert table(tmp_path / 'killed', script) == table(tmp_path / 'whole', script)
    assert kills > 0


def test_a_run_is_not_resumed_with_other_arguments(tmp_path):
    train('ppo_torch', 1, tmp_path)
    before = table(tmp_path, 'ppo_torch')
    other = command('ppo_torch', 2, tmp_path, '--resume', '--gamma', '0.9')
    done = subprocess.run(other, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count('\n') == 1 and 'gamma was 0.99' in done.stderr
    assert table(tmp_path, 'ppo_torch') == before


def test_an_existing_run_is_not_overwritten_unless_told(tmp_path):
    train('ppo_torch', 2, tmp_path)
    done = subprocess.run(command('ppo_torch', 1, tmp_path), capture_output=True, text=True)
    assert done.returncode == 2 and '--resume' in done.stderr and '--overwrite' in done.stderr
    assert len(table(tmp_path, 'ppo_torch')) == 3
    train('ppo_torch', 1, tmp_path, '--overwrite')
    assert len(table(tmp_path, 'ppo_torch')) == 2
