"""A run that was stopped and resumed ends with the same table as one that never was."""
import functools
import importlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time

import gymnasium as gym
import pytest

from common.errors import UserError
from common.logx import read_progress

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
FRAMEWORKS = ['torch', 'tf1'] if importlib.util.find_spec('tensorflow') else ['torch']
ENVS = dict(vpg='CartPole-v1', ppo='CartPole-v1', trpo='CartPole-v1', ddpg='Pendulum-v1', td3='Pendulum-v1',
            sac='Pendulum-v1')
# Episodes go on over the end of an epoch, and the replay buffer is full and has wrapped around.
ON_POLICY = dict(steps_per_epoch=300, train_v_iters=5, save_freq=2)
OFF_POLICY = dict(steps_per_epoch=130, start_steps=100, update_after=60, replay_size=200, num_test_episodes=1,
                  max_ep_len=70)
ARGUMENTS = dict(vpg=ON_POLICY, ppo=dict(ON_POLICY, train_pi_iters=5), trpo=ON_POLICY, ddpg=OFF_POLICY, td3=OFF_POLICY,
                 sac=dict(OFF_POLICY, alpha='auto'))


def rows(folder):
    """The table of a run, without its Time column."""
    _, table = read_progress(os.path.join(folder, 'progress.txt'))
    return [{key: cell for key, cell in row.items() if key != 'Time'} for row in table]


# %% In this process
def train(name, epochs, folder, gamma=0.99, **logger_kwargs):
    algo = name.split('_')[0]
    train_fn = getattr(importlib.import_module(name), algo)
    train_fn(functools.partial(gym.make, ENVS[algo]), ac_kwargs=dict(hidden_sizes=(16, 16)), epochs=epochs, gamma=gamma,
             logger_kwargs=dict(output_dir=str(folder), **logger_kwargs), **ARGUMENTS[algo])
    return rows(folder)


@pytest.mark.parametrize('name', [f'{algo}_{framework}' for framework in FRAMEWORKS for algo in ENVS])
def test_n_epochs_and_n_more_are_2n_epochs(name, tmp_path):
    whole = train(name, 4, tmp_path / 'whole')
    train(name, 2, tmp_path / 'parts')
    assert train(name, 4, tmp_path / 'parts', resume=True) == whole
    assert len(whole) == 4


@pytest.mark.parametrize('name', [f'{algo}_torch' for algo in ENVS])
def test_dropout_goes_on_from_where_it_was(name, monkeypatch, tmp_path):
    """It draws from PyTorch's own generator, which every new run seeds afresh."""
    from torch import nn
    file = importlib.import_module(name)
    plain_mlp, without = file.mlp, train(name, 4, tmp_path / 'without')

    def mlp(*args, **kwargs):
        *hidden, last, output = plain_mlp(*args, **kwargs)
        return nn.Sequential(*hidden, nn.Dropout(0.2), last, output)
    monkeypatch.setattr(file, 'mlp', mlp)
    whole = train(name, 4, tmp_path / 'whole')
    train(name, 2, tmp_path / 'parts')
    assert train(name, 4, tmp_path / 'parts', resume=True) == whole != without


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    assert train('ppo_torch', 2, tmp_path) == train('ppo_torch', 2, tmp_path, resume=True)


def test_a_run_is_not_resumed_with_other_arguments(tmp_path):
    before = train('ppo_torch', 1, tmp_path)
    with pytest.raises(UserError, match='gamma was 0.99'):
        train('ppo_torch', 2, tmp_path, gamma=0.9, resume=True)
    assert rows(tmp_path) == before


def test_an_existing_run_is_not_overwritten_unless_told(tmp_path):
    before = train('ppo_torch', 2, tmp_path)
    with pytest.raises(UserError, match='--resume.*--overwrite'):
        train('ppo_torch', 1, tmp_path)
    assert rows(tmp_path) == before
    assert len(train('ppo_torch', 1, tmp_path, overwrite=True)) == 1


# %% In processes of their own
def command(script, epochs, folder, *more, processes=1):
    launcher = [MPIRUN, '-np', str(processes)] if processes > 1 else []
    algo = script.split('_')[0]
    flags = sum(([f'--{key}', str(value)] for key, value in ARGUMENTS[algo].items()), ['--env', ENVS[algo]])
    return [*launcher, sys.executable, os.path.join(ROOT, f'{script}.py'), *flags, '--hid', '16,16', '--epochs',
            str(epochs), '--data_dir', str(folder), *more]


def run(*args, **kwargs):
    """The rows of a run that is started by its command."""
    done = subprocess.run(command(*args, **kwargs), capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS='1'))
    assert done.returncode == 0, done.stderr
    script, _, folder, *_ = args
    return rows(os.path.join(folder, script, f'{script}_s0'))


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
@pytest.mark.parametrize('script', ['sac_torch', 'ppo_tf1'][:len(FRAMEWORKS)])
def test_each_of_two_processes_goes_on_from_where_it_was(script, tmp_path):
    whole = run(script, 4, tmp_path / 'whole', processes=2)
    run(script, 2, tmp_path / 'parts', processes=2)
    assert run(script, 4, tmp_path / 'parts', '--resume', processes=2) == whole


@pytest.mark.parametrize('script', ['ppo_torch', 'sac_torch'])
def test_killed_at_any_moment_it_ends_the_same(script, tmp_path):
    """SIGKILL at a few moments of the run's life, while it saves or a little later; resumed each time."""
    whole, killed = run(script, 8, tmp_path / 'whole'), 0
    progress = tmp_path / 'killed' / script / f'{script}_s0' / 'progress.txt'
    for rows_at_kill, delay in ((2, 0), (3, 0.02)):
        process = subprocess.Popen(command(script, 8, tmp_path / 'killed', '--resume'), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS='1'))
        while process.poll() is None and (len(rows(progress.parent)) if progress.exists() else 0) < rows_at_kill:
            time.sleep(0.002)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        _, error = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), error        # 0: it was faster than we are
        killed += process.returncode != 0
    assert run(script, 8, tmp_path / 'killed', '--resume') == whole
    assert killed
