"""A run's folder has one writer at a time; and --resume deletes nothing that it could not make again."""
import contextlib
import errno
import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.errors import UserError
from common.logx import EpochLogger, Logger, lock_folder
from tests.test_grid import TOY
from tests.test_logx import contents, finish_run, table

ROOT = Path(__file__).parent.parent
ENV = dict(os.environ, PYTHONPATH=str(ROOT))
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
if importlib.util.find_spec('mpi4py') is None:
    MPIRUN = None
HOLD = '''
import sys, time
from common.logx import EpochLogger
logger = EpochLogger(sys.argv[1])
logger.log_tabular('Epoch', 0)
logger.dump_tabular()
print('ready', flush=True)
time.sleep(60)
'''
CAN_LOCK = 'import sys; from common.logx import Logger; Logger(sys.argv[1], resume=True)'


@contextlib.contextmanager
def run_elsewhere(folder):
    """A process whose run has written a row into the folder, and goes on."""
    command = [sys.executable, '-c', HOLD, str(folder)]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert any(line == 'ready\n' for line in child.stdout)
            yield child
        finally:
            child.kill()


def another_process_can_lock(folder):
    command = [sys.executable, '-c', CAN_LOCK, str(folder)]
    return subprocess.run(command, env=ENV, capture_output=True, timeout=60).returncode == 0


# %% The lock
def test_the_folder_of_a_run_that_goes_on_is_refused(tmp_path):
    with run_elsewhere(tmp_path) as child:
        before = contents(tmp_path)
        for flags in (dict(), dict(resume=True), dict(overwrite=True)):
            with pytest.raises(UserError, match=f'is in use by process {child.pid} on .*: wait until it ends, or'):
                Logger(tmp_path, **flags)
        assert contents(tmp_path) == before and len(table(tmp_path)) == 1
    with pytest.raises(UserError, match='already has a run'):       # killed: the lock is gone, the run is there
        Logger(tmp_path)
    assert finish_run(tmp_path, resume=True) == 0 and len(table(tmp_path)) == 3


def test_a_notebook_may_train_again_where_it_trained(tmp_path):
    """Also if the logger is still there: an interrupted cell's is, in the traceback that the notebook keeps."""
    first = EpochLogger(tmp_path)
    second = EpochLogger(tmp_path, resume=True)
    assert not another_process_can_lock(tmp_path)
    del first
    assert not another_process_can_lock(tmp_path)
    del second
    assert another_process_can_lock(tmp_path)


def test_the_end_of_training_frees_the_folder(tmp_path):
    """At once, and not when the garbage collector comes by: nothing that the logger keeps refers to it."""
    torch = pytest.importorskip('torch')
    gc.disable()
    try:
        logger = EpochLogger(tmp_path)
        logger.setup_pytorch_saver(torch.nn.Linear(1, 1))
        for _ in logger.progress(1, 0, 1):
            logger.store(X=1)
        logger.log_tabular('X')
        logger.dump_tabular()
        logger.save_state(dict())
        assert not another_process_can_lock(tmp_path)
        del logger
        assert another_process_can_lock(tmp_path)
    finally:
        gc.enable()


def test_of_many_that_start_at_once_one_trains(tmp_path):
    (tmp_path / 'toy.py').write_text(TOY)
    command = [sys.executable, 'toy.py', '--env', 'CartPole-v1', '--resume']
    children = [subprocess.Popen(command, env=dict(ENV, TOY_SLEEP='120'), cwd=tmp_path, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True) for _ in range(4)]
    deadline = time.time() + 60
    while sum(child.poll() is None for child in children) > 1 and time.time() < deadline:
        time.sleep(0.05)
    training = [child for child in children if child.poll() is None]
    for child in training:
        child.kill()
    told = sorted(child.communicate()[1] for child in children)
    assert len(training) == 1 and told[0] == '', told
    for line in told[1:]:
        assert line.startswith('toy.py: error: data/toy/toy_s0 is in use by '), line
        assert line.count('\n') == 1
    assert subprocess.run(command, env=ENV, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0
    assert [row['Epoch'] for row in table(tmp_path / 'data/toy/toy_s0')] == ['0', '1']


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
def test_all_processes_of_a_second_start_end(tmp_path):
    (tmp_path / 'toy.py').write_text(TOY)
    with run_elsewhere(tmp_path / 'data/toy/toy_s0') as child:
        for flag in ('--resume', '--overwrite'):
            done = subprocess.run([MPIRUN, '-np', '2', sys.executable, 'toy.py', '--env', 'CartPole-v1', flag], env=ENV,
                                  cwd=tmp_path, capture_output=True, text=True, timeout=60)
            errors = [line for line in done.stderr.split('\n') if 'error' in line]
            assert done.returncode and len(errors) == 1, done.stderr
            line = rf'toy.py: (process \d of 2: )?error: data/toy/toy_s0 is in use by process {child.pid} on '
            assert re.match(line, errors[0]), errors
        assert len(table(tmp_path / 'data/toy/toy_s0')) == 1


def test_a_second_grid_leaves_the_output_of_the_first(tmp_path):
    """Where it would replace the run, too: the file is emptied only when nobody writes to it."""
    (tmp_path / 'toy.py').write_text(TOY)
    folder = tmp_path / 'data/toy/toy_s0'
    grid = [sys.executable, 'toy.py', '--env', 'CartPole-v1', '--seed', '0', '1', '--jobs', '2']
    with run_elsewhere(folder):
        (folder / 'output.log').write_text('what the first has printed\n')
        done = subprocess.run([*grid, '--overwrite'], env=ENV, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and 'Traceback' not in done.stdout + done.stderr
        assert done.stderr.startswith('toy.py: 1 of 2 runs failed: data/toy/toy_s0 is in use by process ')
        assert 'seed 0 failed: data/toy/toy_s0 is in use by process' in done.stdout
        assert (folder / 'output.log').read_text() == 'what the first has printed\n' and len(table(folder)) == 1
    assert len(table(tmp_path / 'data/toy/toy_s1')) == 2            # nobody was there
    done = subprocess.run([*grid, '--overwrite'], env=ENV, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0
    assert len(table(folder)) == 2 and 'first' not in (folder / 'output.log').read_text()


def test_a_run_whose_folder_was_given_away_ends(tmp_path):
    """Removed, and another run started in its place: the old one does not write into its files."""
    folder = tmp_path / 'run'
    old = EpochLogger(folder)
    shutil.rmtree(folder)
    with run_elsewhere(folder):
        before = contents(folder)
        old.log_tabular('Epoch', 7)
        for write in (old.dump_tabular, lambda: old.save_state(dict())):
            with pytest.raises(UserError, match='run was removed, and now has another run'):
                write()
        assert contents(folder) == before


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('number', [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch, number):
    fcntl = pytest.importorskip('fcntl')

    def flock(*_):
        raise OSError(number, os.strerror(number))
    monkeypatch.setattr(fcntl, 'flock', flock)
    assert finish_run(tmp_path) == 0 and finish_run(tmp_path, epochs=5, resume=True) == 3
    assert len(table(tmp_path)) == 5


def test_a_lock_that_is_a_link_leads_nowhere(tmp_path):
    """A folder from somebody else: what its .lock points to is not written to."""
    (tmp_path / 'mine').write_text('mine')
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run' / '.lock').symlink_to(tmp_path / 'mine')
    lock_folder(tmp_path / 'run')
    assert (tmp_path / 'mine').read_text() == 'mine'


@pytest.mark.parametrize('make', [os.mkfifo, os.mkdir, lambda path: path.write_text('x' * 2000)])
def test_a_lock_that_is_none_is_refused(tmp_path, make):
    """A folder from somebody else, again: who has it locked would be read from a pipe, for ever, or to no end."""
    make(tmp_path / '.lock')
    with pytest.raises(UserError, match=r'\.lock is (not a regular file|refused)'):
        lock_folder(tmp_path)


# %% --resume where there is no checkpoint
def test_resume_without_a_checkpoint_deletes_no_table(tmp_path):
    finish_run(tmp_path, epochs=3)
    (tmp_path / 'state.npz').unlink()                               # to save space, say
    before = contents(tmp_path)
    with pytest.raises(UserError, match='has 3 epochs and no checkpoint, state.npz, to continue from: --overwrite'):
        Logger(tmp_path, resume=True)
    assert contents(tmp_path) == before
    assert finish_run(tmp_path, overwrite=True) == 0


@pytest.mark.parametrize('name', ['pyt_save/model.pt', 'pyt_save/model7.pt', 'tf1_save/saved_model.pb',
                                  'tf1_save.old/saved_model.pb'])
def test_a_model_alone_is_never_replaced_unless_told(tmp_path, name):
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text('of weeks')
    with pytest.raises(UserError, match='has a model and no checkpoint'):
        Logger(tmp_path, resume=True)
    with pytest.raises(UserError, match='already has a run'):
        Logger(tmp_path)
    assert contents(tmp_path) == {name: b'of weeks'}
    Logger(tmp_path, overwrite=True)
    assert contents(tmp_path) == {}


def test_one_row_before_the_first_checkpoint_is_made_again(tmp_path, capsys):
    """A kill between the first row and the first checkpoint. Only the same arguments make the same row."""
    finish_run(tmp_path / 'whole', config=dict(gamma=0.9))
    finish_run(tmp_path / 'again', epochs=1, save_until=0, config=dict(gamma=0.9))
    before = contents(tmp_path / 'again')
    with pytest.raises(UserError, match='gamma was 0.9 there and is 0.5 now'):
        finish_run(tmp_path / 'again', resume=True, config=dict(gamma=0.5))
    assert contents(tmp_path / 'again') == before and len(table(tmp_path / 'again')) == 1
    assert finish_run(tmp_path / 'again', resume=True, config=dict(gamma=0.9)) == 0
    assert 'Starting from the beginning: the run was stopped before its first checkpoint' in capsys.readouterr().out
    assert table(tmp_path / 'again') == table(tmp_path / 'whole')


def test_a_grid_goes_on_where_it_was_killed_before_any_checkpoint(tmp_path):
    """One variant in its first epoch, one between its first row and its checkpoint; one waits for its turn."""
    (tmp_path / 'toy.py').write_text(TOY)
    grid = [sys.executable, 'toy.py', '--env', 'CartPole-v1', '--seed', '0', '1', '2']
    stop = ('import os, toy\n'
            'toy.EpochLogger.save_state = lambda *_, **__: os.kill(os.getpid(), 9)\n'
            'toy.command_line(toy.toy)')
    subprocess.run([sys.executable, '-c', stop, '--env', 'CartPole-v1'], env=ENV, cwd=tmp_path, capture_output=True)
    assert len(table(tmp_path / 'data/toy/toy_s0')) == 1 and not (tmp_path / 'data/toy/toy_s0/state.npz').exists()
    with subprocess.Popen([sys.executable, 'toy.py', '--env', 'CartPole-v1', '--seed', '1'], cwd=tmp_path,
                          env=dict(ENV, TOY_SLEEP='60'), stdout=subprocess.DEVNULL) as child:
        deadline = time.time() + 60
        while not (tmp_path / 'data/toy/toy_s1/config.json').exists() and time.time() < deadline:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    done = subprocess.run([*grid, '--resume'], env=ENV, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [len(table(tmp_path / f'data/toy/toy_s{seed}')) for seed in range(3)] == [2, 2, 2]


def test_rows_that_are_lost_are_mentioned(tmp_path, capsys):
    finish_run(tmp_path, epochs=3)
    (tmp_path / 'progress.txt').unlink()
    assert finish_run(tmp_path, epochs=5, resume=True) == 3
    assert 'warning: progress.txt lacks 3 of its rows' in capsys.readouterr().out
