"""A disk that is full, read-only or gone: one line that says so, no damaged file, and a run that --resume continues."""
import contextlib
import errno
import gc
import importlib.util
import io
import os
import pkgutil
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import UserError
from common.logx import EpochLogger, Logger, read_progress
from common.run_utils import Experiment, setup_logger_kwargs
from common.serialization import load_tree
from tests.test_grid import TOY
from tests.test_logx import Buffer, contents, finish_run, table

ROOT = Path(__file__).parent.parent
ENV = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL='3')
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
if importlib.util.find_spec('mpi4py') is None:
    MPIRUN = None
GO_ON = '; when that is put right, --resume goes on from the last checkpoint'


@contextlib.contextmanager
def files_of_at_most(size):
    """What is written beyond so many bytes fails, as on a full disk: in the middle of a row, or of an array. Python
    ignores the signal that comes with it. What is printed meanwhile goes to a file of pytest's, and so nowhere."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def complete(folder):
    """Every file can be read, and no row ends in the middle."""
    for path in folder.rglob('*'):
        if path.suffix == '.npz':
            load_tree(path)
        elif path.name == 'progress.txt':
            text = path.read_text()
            assert text == '' or text.endswith('\n') and len(read_progress(path)[1]) == text.count('\n') - 1
        else:
            assert path.is_dir() or path.name in ('.lock', 'config.json') or path.suffix == '.tmp', path
    return True


# %% One run
@pytest.mark.parametrize('number, harmless', [(errno.ENOSPC, 'os.remove'), (errno.EROFS, None)])
def test_a_fault_at_every_change_of_the_disk(tmp_path, monkeypatch, number, harmless):
    """From the first, second, ... change of a file on, all of them fail. Then the disk is repaired, the run resumed."""
    finish_run(tmp_path / 'whole', epochs=4)
    expected, starts = table(tmp_path / 'whole'), []
    for calls in range(1000):
        left, folder = iter(range(calls)), tmp_path / str(calls)

        def faulty(function):
            def wrapper(*args, **kwargs):
                reading = function is open and not set(args[1:2][0] if args[1:2] else 'r') & set('wax')
                if not reading and next(left, None) is None:
                    raise OSError(number, os.strerror(number))
                return function(*args, **kwargs)
            return wrapper
        with monkeypatch.context() as patch:
            for name in {'os.replace', 'os.makedirs', 'os.fsync', 'os.remove', 'builtins.open'} - {harmless}:
                patch.setattr(name, faulty(pkgutil.resolve_name(name)))
            try:
                finish_run(folder, epochs=4)
                break
            except UserError as error:
                assert str(error).startswith(f'{folder}: {os.strerror(number)}'), error
        assert complete(folder) and table(folder) == expected[:len(table(folder))]
        assert not harmless or not list(folder.rglob('*.tmp'))
        starts.append(finish_run(folder, epochs=4, resume=True))
        assert table(folder) == expected
        if starts[-1] < 4:                                      # else there was nothing left to do, nor to tidy up
            assert not list(folder.rglob('*.tmp'))
        shutil.rmtree(folder)
    assert set(starts) >= {0, 1, 2, 3} and starts == sorted(starts)


def test_full_in_the_middle_of_a_file(tmp_path):
    """The table and the checkpoint grow by the row: at each size something no longer fits."""
    def run(folder, **kwargs):
        logger = EpochLogger(folder, **kwargs)
        logger.save_config(dict(seed=0))
        saved = logger.load_state() or dict(epoch=0)
        for epoch in range(saved['epoch'], 5):
            logger.log_tabular('Epoch', epoch)
            logger.log_tabular('Value', 10.**epoch)
            logger.dump_tabular()
            logger.save_state(dict(epoch=epoch + 1, history=[float(i) for i in range(400 * epoch)]))
        return saved['epoch']
    run(tmp_path / 'whole')
    expected, starts = table(tmp_path / 'whole'), set()
    sizes = range(10, (tmp_path / 'whole' / 'state.npz').stat().st_size, 300)
    assert len(sizes) > 20
    for size in sizes:
        folder = tmp_path / str(size)
        with files_of_at_most(size), pytest.raises(UserError, match='File too large') as failure:
            run(folder)
        assert str(failure.value).startswith(str(folder)) and complete(folder)
        assert table(folder) == expected[:len(table(folder))]
        with contextlib.redirect_stdout(io.StringIO()):
            starts.add(run(folder, resume=True))
        assert table(folder) == expected
    assert starts == {0, 1, 2, 3, 4}


def test_full_in_the_middle_of_a_row(tmp_path):
    """The row is in the table, or it is not; and the line says what to do."""
    logger = Logger(tmp_path)
    for i in range(100):
        logger.log_tabular('Epoch', i)
        logger.dump_tabular()
    before = (tmp_path / 'progress.txt').read_text()
    logger.log_tabular('Epoch', 123456789)
    with files_of_at_most(len(before) + 5), pytest.raises(UserError) as failure:
        logger.dump_tabular()
    assert str(failure.value) == f'{tmp_path}: File too large{GO_ON}'
    assert (tmp_path / 'progress.txt').read_text() == before


def test_full_while_the_model_is_saved(tmp_path):
    """PyTorch would only speak of an unexpected position."""
    torch = pytest.importorskip('torch')
    module = torch.nn.Linear(100, 100)
    logger = Logger(tmp_path)
    logger.setup_pytorch_saver(module)
    logger.save_state(dict())
    before = contents(tmp_path)
    with files_of_at_most(20_000), pytest.raises(UserError) as failure:
        logger.save_state(dict())
    assert str(failure.value) == f'{tmp_path}: File too large{GO_ON}'
    assert contents(tmp_path) == before


def test_full_while_tensorflow_saves(tmp_path):
    """A SavedModel, and event files: the old model stays, and the line is one, without TensorFlow's stack."""
    pytest.importorskip('tensorflow')
    code = '''
import os, re, resource, sys
import tensorflow.compat.v1 as tf
from common.errors import UserError
from common.logx import Logger
tf.disable_v2_behavior()
w = tf.get_variable('w', shape=(100, 100))
sess = tf.Session()
sess.run(tf.global_variables_initializer())

def message(write, size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, -1))
    try:
        write()
    except UserError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
logger = Logger('run', tensorboard=True)
logger.setup_tf_saver(sess, inputs=dict(w=w), outputs=dict(w=w))
logger.save_state(dict())
before = {path: os.stat(path).st_mtime_ns for path in ('run/state.npz', 'run/tf1_save/variables/variables.index')}
told = message(lambda: logger.save_state(dict()), 20_000)
assert re.match('run: File too large; when', told) and len(told) < 120, told
assert {path: os.stat(path).st_mtime_ns for path in before} == before
assert not [name for name in os.listdir('run') if name.endswith('.tmp')], 'a full disk is not filled with halves'

logger.log_tabular('Epoch', 0)
logger.dump_tabular()
name, = [name for name in os.listdir('run') if name.startswith('events')]
logger.log_tabular('Epoch', 1)
told = message(logger.dump_tabular, os.path.getsize('run/' + name) + 10)
assert re.match('run: File too large; when', told) and len(told) < 120, told
'''
    done = subprocess.run([sys.executable, '-c', code], env=ENV, cwd=tmp_path, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0 and 'Traceback' not in done.stderr, done.stdout + done.stderr


def test_a_folder_that_is_removed_is_not_made_again(tmp_path):
    """With a half of a run in it, from which it would be resumed wrongly."""
    for write in ('dump_tabular', 'save_state'):
        logger, replay = EpochLogger(tmp_path / 'run'), Buffer()
        replay.store(4)
        logger.log_tabular('Epoch', 0)
        logger.dump_tabular()
        logger.save_state(dict(), replay=replay)
        logger.log_tabular('Epoch', 1)
        replay.store(4)
        (tmp_path / 'run').rename(tmp_path / write)
        with pytest.raises(UserError, match=r'run: No such file or directory$'):
            logger.save_state(dict(), replay=replay) if write == 'save_state' else logger.dump_tabular()
        assert not (tmp_path / 'run').exists()
        del logger                                              # where it was moved to, it is still locked
        gc.collect()                                            # for the error has a traceback, which has the logger
        assert EpochLogger(tmp_path / write, resume=True).load_state(replay=Buffer()) == {}


def test_no_checkpoint_in_a_folder_that_was_made_again(tmp_path):
    """By TensorFlow, which makes the folders of what it saves: without its table, this is not the run's."""
    def save_model(logger, suffix):
        (tmp_path / 'run').rename(tmp_path / 'away')
        (tmp_path / 'run' / 'tf1_save').mkdir(parents=True)
    logger = EpochLogger(tmp_path / 'run')
    logger.log_tabular('Epoch', 0)
    logger.dump_tabular()
    logger.save_model = save_model
    with pytest.raises(UserError, match='run/progress.txt: No such file or directory; when'):
        logger.save_state(dict())
    assert contents(tmp_path / 'run') == {}


def test_a_table_that_is_removed_is_not_begun_anew(tmp_path):
    """In the middle of the run, without the rows that there were."""
    finish_run(tmp_path, epochs=3)
    logger = EpochLogger(tmp_path, resume=True)
    logger.load_state(replay=Buffer())
    (tmp_path / 'progress.txt').unlink()
    logger.log_tabular('Epoch', 3)
    with pytest.raises(UserError, match=r'progress.txt: No such file or directory$'):
        logger.dump_tabular()
    assert not (tmp_path / 'progress.txt').exists()


def test_a_full_disk_for_what_is_printed_stops_no_run(tmp_path):
    """Nor does a terminal that is gone: the table has it all."""
    (tmp_path / 'toy.py').write_text(TOY)
    with open('/dev/full', 'w') as full:
        subprocess.run([sys.executable, 'toy.py', '--env', 'CartPole-v1'], env=ENV, cwd=tmp_path, stdout=full,
                       stderr=subprocess.DEVNULL, timeout=60)
    assert len(table(tmp_path / 'data/toy/toy_s0')) == 2 and (tmp_path / 'data/toy/toy_s0/state.npz').exists()


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
@pytest.mark.parametrize('where', ['dump_tabular', 'save_state'])
def test_all_processes_end(tmp_path, where):
    """Process 0 alone writes; the others hear of its fault, too, with a replay buffer larger than a message."""
    code = f'''
import resource
import numpy as np
from common.errors import one_line_errors
from common.logx import EpochLogger
from common.mpi_tools import num_procs, proc_id
from tests.test_logx import Buffer
assert num_procs() == 2
with one_line_errors('script'):
    logger, replay = EpochLogger({str(tmp_path / 'run')!r}), Buffer(10**5)
    replay.store(10**5)
    logger.log_tabular('Epoch', 0)
    if proc_id() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0 if {where!r} == 'dump_tabular' else 1000, -1))
    logger.dump_tabular()
    logger.save_state(dict(), replay=replay)
    print('never')
'''
    done = subprocess.run([MPIRUN, '-np', '2', sys.executable, '-c', code], env=ENV, cwd=ROOT, capture_output=True,
                          text=True, timeout=60)
    assert done.returncode and 'never' not in done.stdout
    lines = re.findall(rf'script: (?:process \d of 2: )?error: {tmp_path}/run: File too large{GO_ON}\n', done.stderr)
    assert len(lines) == 1 and 'Traceback' not in done.stderr, done.stderr
    assert contents(tmp_path / 'run').keys() <= {'progress.txt'}


# %% Grids
def grid(tmp_path, *more, toy=TOY):
    (tmp_path / 'toy.py').write_text(toy)
    return subprocess.run([sys.executable, 'toy.py', '--env', 'CartPole-v1', '--seed', '0', '1', *more], env=ENV,
                          cwd=tmp_path, capture_output=True, text=True, timeout=60)


def test_grid_where_nothing_can_be_written(tmp_path):
    (tmp_path / 'file').write_text('')
    done = grid(tmp_path, '--data_dir', 'file')
    assert done.returncode == 1 and done.stderr == 'toy.py: 2 of 2 runs failed: file/toy: Not a directory\n'
    assert done.stdout.count('seed 0: file/toy: Not a directory') == 1 and 'seed 1 failed: file/toy' in done.stdout


def test_grid_whose_folder_is_removed(tmp_path):
    """The line that the run printed went with its log."""
    removing = "    __import__('shutil').rmtree('data')\n    began ="
    done = grid(tmp_path, toy=TOY.replace('    began =', removing))
    assert done.returncode == 1 and 'Traceback' not in done.stdout + done.stderr
    assert done.stdout.count('data/toy/toy_s0: No such file or directory') == 2         # when it ends, and in the table


def test_log_that_is_a_link_leads_nowhere(tmp_path):
    (tmp_path / 'mine').write_text('mine')
    for flag in ('--resume', '--overwrite'):
        for seed in (0, 1):
            (tmp_path / f'data/toy/toy_s{seed}').mkdir(parents=True, exist_ok=True)
            (tmp_path / f'data/toy/toy_s{seed}/output.log').unlink(missing_ok=True)
            (tmp_path / f'data/toy/toy_s{seed}/output.log').symlink_to(tmp_path / 'mine')
        done = grid(tmp_path, flag)
        assert done.returncode == 1 and 'data/toy/toy_s1/output.log is a link' in done.stdout
        assert (tmp_path / 'mine').read_text() == 'mine'


def test_output_that_did_not_fit_into_the_log(tmp_path, monkeypatch):
    """What is wrong with the disk is asked of the disk."""
    monkeypatch.chdir(tmp_path)
    run = Experiment([sys.executable, '-c', 'import sys; print("script: error: No sp", end=""); sys.exit(2)'],
                     dict(seed=0), 1, setup_logger_kwargs('e', 0))
    run.start()
    run.process.wait()
    with files_of_at_most(100):
        assert run.poll() == ('script: error: No sp', True)
    assert run.error == 'exit status 2, last line: data/e/e_s0: File too large'
