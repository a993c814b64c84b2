"""The table, the configuration, the model and the checkpoint of a run."""
import csv
import json
import os
import pkgutil
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from common.errors import UserError
from common.logx import EpochLogger, Logger, colorize, read_progress
from common.serialization import load_tree

ROOT = Path(__file__).parent.parent
ENV = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL='3')


def run(code, tmp_path, *before, cwd=None):
    """Run code in a process of its own, with `before` (mpirun, say) before its command; returns what it printed."""
    done = subprocess.run([*before, sys.executable, '-c', code], env=dict(ENV, TMPDIR=str(tmp_path)),
                          cwd=cwd or tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(folder):
    return read_progress(folder / 'progress.txt')[1]


class Buffer:
    """As the algorithms' replay buffers: row number i stands in data[i % capacity]."""

    def __init__(self, capacity=10):
        self.data = np.zeros((capacity, 2), dtype=np.float32)
        self.ptr = self.size = self.count = 0

    def store(self, n, first=0):
        for i in range(self.count, self.count + n):
            self.data[i % len(self.data)] = first + i
        self.count += n
        self.ptr, self.size = self.count % len(self.data), min(self.count, len(self.data))


# %% The table
def test_table_is_plain_tab_separated_text(tmp_path):
    logger = Logger(tmp_path)
    rows = [dict(Int=3, Float=0.1, Single=np.float32(0.5), Big=10**20, Bool=True, Array=np.array([2.5]), Nan=np.nan),
            dict(Int=np.int64(4), Float=1e-300, Single=-np.inf, Big=2, Bool=np.bool_(0), Array=np.array(1), Nan=None)]
    for row in rows:
        for key, val in row.items():
            logger.log_tabular(key, val)
        logger.dump_tabular()
    assert (tmp_path / 'progress.txt').read_text() == (
        'Int\tFloat\tSingle\tBig\tBool\tArray\tNan\n'
        '3\t0.1\t0.5\t100000000000000000000\t1\t2.5\tnan\n'
        '4\t1e-300\t-inf\t2\t0\t1\t\n')
    with open(tmp_path / 'progress.txt', newline='') as file:   # as another program would read it
        assert list(csv.DictReader(file, delimiter='\t')) == table(tmp_path)


def test_reading_a_table(tmp_path):
    """Complete lines only, and '' where a cell is empty."""
    path = tmp_path / 'progress.txt'
    assert read_progress(path) == ([], [])
    for text, columns, rows in [
            ('', [], []), ('A\tB', [], []), ('A\tB\n', ['A', 'B'], []), ('A\tB\n1\t2', ['A', 'B'], []),
            ('A\tB\n1\t\n\t2\n', ['A', 'B'], [dict(A='1', B=''), dict(A='', B='2')]),
            ('A\tB\n1\n1\t2\t3\n4\t5\n6\t', ['A', 'B'], [dict(A='4', B='5')]),
            ('A\r\n1\r\n', ['A'], [dict(A='1')])]:
        path.write_bytes(text.encode())
        assert read_progress(path) == (columns, rows)


def test_every_row_is_on_disk_at_once(tmp_path):
    logger = Logger(tmp_path)
    for i in range(3):
        logger.log_tabular('Epoch', i)
        logger.dump_tabular()
        assert len(table(tmp_path)) == i + 1


def test_statistics_of_stored_values(tmp_path):
    logger = EpochLogger(tmp_path)
    logger.store(X=1, Y=np.array([[1., 2.], [3., 6.]]))
    logger.store(X=2.5, Y=np.float32(8), Z=True)
    logger.store(X=np.array([]), Y=[4.])
    assert logger.get_stats('X') == (1.75, 0.75)
    logger.log_tabular('Epoch', 0)
    logger.log_tabular('X')
    logger.log_tabular('Y', with_min_and_max=True)
    logger.log_tabular('Z', average_only=True)
    logger.dump_tabular()
    row, = table(tmp_path)
    assert list(row) == ['Epoch', 'AverageX', 'StdX', 'AverageY', 'StdY', 'MaxY', 'MinY', 'Z']
    values = [1, 2, 3, 6, 8, 4]
    expected = [0, 1.75, 0.75, np.mean(values), np.std(values), 8, 1, 1]
    assert np.allclose([float(cell) for cell in row.values()], expected, rtol=1e-15)


def test_statistics_are_in_float64(tmp_path):
    logger = EpochLogger(tmp_path)
    logger.store(X=np.full(1000, 1e4, dtype=np.float32) + np.tile(np.float32([0, 0.01]), 500))
    mean, std = logger.get_stats('X')
    assert abs(mean - 10000.005) < 1e-3 and 0.0045 < std < 0.0055


def test_column_without_values_stays_empty(tmp_path):
    logger = EpochLogger(tmp_path)
    for stored in (dict(), dict(X=1., Y=2.), dict(X=3.)):
        logger.store(**stored)
        logger.log_tabular('X', with_min_and_max=True)
        logger.log_tabular('Y', average_only=True)
        logger.log_tabular('Epoch', 1)
        logger.dump_tabular()
    first, second, third = table(tmp_path)
    assert list(first.values()) == ['', '', '', '', '', '1']
    assert list(second.values()) == ['1.0', '0.0', '1.0', '1.0', '2.0', '1']
    assert third['AverageX'] == '3.0' and third['Y'] == ''      # what was stored in the second row is gone


def test_columns_are_those_of_the_first_row(tmp_path):
    logger = EpochLogger(tmp_path)
    logger.log_tabular('Epoch', 0)
    logger.log_tabular('Loss', 0.5)
    with pytest.raises(AssertionError, match='Loss already'):
        logger.log_tabular('Loss', 0.5)
    logger.dump_tabular()
    with pytest.raises(AssertionError, match='New is not in the table'):
        logger.log_tabular('New', 1)
    logger.log_tabular('Loss', 0.25)
    logger.dump_tabular()
    assert table(tmp_path)[1] == dict(Epoch='', Loss='0.25')


def test_processes_log_together(tmp_path):
    """Statistics over both processes, one of which stores nothing; only process 0 writes and prints."""
    code = '''
from pathlib import Path
import numpy as np
import torch
from common.logx import EpochLogger
from common.mpi_tools import proc_id, num_procs
from common.serialization import load_tree
from tests.test_logx import Buffer, table
assert num_procs() == 2

logger = EpochLogger(exp_name='two')
folder = Path(logger.output_dir)
if proc_id() == 1:
    logger.store(Some=[1., 3.])
logger.store(All=np.arange(proc_id(), 4.))                      # 0 1 2 3 and 1 2 3
logger.save_config(dict(seed=0))
for key in ('Some', 'All', 'None'):
    logger.log_tabular(key, with_min_and_max=True)
logger.log_tabular('Rank', proc_id())
logger.dump_tabular()
if proc_id() == 0:
    row, = table(folder)
    assert list(row.values())[:4] == ['2.0', '1.0', '3.0', '1.0'], row
    values = [0, 1, 2, 3, 1, 2, 3]
    assert np.allclose([float(x) for x in list(row.values())[4:8]], [np.mean(values), np.std(values), 3, 0])
    assert list(row.values())[8:] == ['', '', '', '', '0'], row

replay = Buffer()
torch.manual_seed(proc_id())
for epoch in range(3):
    replay.store(4, first=100 * proc_id())
    logger.save_state(dict(agent=[proc_id()], own=proc_id(), counters=(epoch, 0.5)), itr=epoch, replay=replay)
if proc_id() == 0:
    states = load_tree(folder / 'state.npz')['states']
    assert 'agent' in states[0] and 'agent' not in states[1]

own = torch.rand(1)
torch.manual_seed(7)
logger = EpochLogger(folder, resume=True)
again = Buffer()
state = logger.load_state(replay=again)
assert state == dict(agent=[0], own=proc_id(), counters=(2, 0.5)), state
assert torch.rand(1) == own                                     # each process goes on with its own generator
assert again.count == replay.count == 12 and again.ptr == replay.ptr
assert np.array_equal(again.data, replay.data)

try:
    EpochLogger(folder)
except Exception as error:                                      # on both processes, or one of them would wait for ever
    assert '--resume' in str(error) and '--overwrite' in str(error), error
else:
    assert False
'''
    pytest.importorskip('mpi4py')
    mpirun = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or 'mpirun'
    printed = run(code, tmp_path, mpirun, '-np', '2', cwd=ROOT)
    assert printed.count('AverageSome') == 1 and printed.count('Logging to') == 2       # said by one process alone


# %% The terminal
TALK = '''
from common.logx import EpochLogger
logger = EpochLogger('run')
logger.log('hello')
for epoch in range(2):
    for t in logger.progress(5, epoch, 2):
        pass
    assert t == 4
    logger.log_tabular('Epoch', epoch)
    logger.log_tabular('TotalEnvInteracts', 123456)
    logger.log_tabular('Loss', 0.123456)
    logger.dump_tabular()
'''


def test_plain_output_on_a_pipe(tmp_path):
    done = subprocess.run([sys.executable, '-c', TALK], env=ENV, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ''
    assert '\x1b' not in done.stdout and '\r' not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[1] == 'hello'
    rows = [line for line in lines if line.startswith('|')]
    assert len(set(map(len, rows))) == 1                        # aligned
    assert [row.split()[3] for row in rows[:3]] == ['0', '123456', '0.123']


def test_colours_and_bar_on_a_terminal(tmp_path):
    terminal, child_side = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 100))
    child = subprocess.Popen([sys.executable, '-c', TALK], env=ENV, cwd=tmp_path, stdout=child_side,
                             stderr=child_side)
    os.close(child_side)
    shown = b''
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:                                             # how Linux says that the other side is closed
        pass
    assert child.wait() == 0
    assert colorize('hello', 'green', bold=True).encode() in shown
    assert b'/10.0 [' in shown and b'steps/s' in shown          # 2 epochs of 5 steps
    assert b'steps/s]-' not in shown                            # the bar is cleared before the table is printed


def test_progress_without_a_terminal_counts(tmp_path):
    assert list(Logger(tmp_path).progress(5, 0, 2)) == list(range(5))


def test_importing_imports_no_framework(tmp_path):
    run('import sys\n'
        'from common.logx import EpochLogger\n'
        'logger = EpochLogger("run")\n'
        'logger.save_config(dict(seed=0))\n'
        'logger.log_tabular("Epoch", 0)\n'
        'logger.dump_tabular()\n'
        'logger.save_state(dict(epoch=0))\n'
        'found = {"torch", "tensorflow", "tensorboard", "tqdm", "gymnasium"} & set(sys.modules)\n'
        'assert not found, found', tmp_path)


# %% The folder and the configuration
def test_folder_of_its_own_if_none_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    first, second = Logger(), Logger()
    assert sorted([first.output_dir, second.output_dir]) == sorted(map(str, tmp_path.iterdir()))
    assert first.output_dir in capsys.readouterr().out


def finish_run(folder, epochs=3, config=None, save_until=100, capacity=10, **kwargs):
    """What an algorithm does: one row and one checkpoint per epoch; the loss depends on the saved state alone."""
    logger, replay = EpochLogger(folder, **kwargs), Buffer(capacity)
    logger.save_config(dict(seed=0, epochs=epochs, **(config or {})))
    saved = logger.load_state(replay=replay)
    start, loss = (saved['epoch'], saved['agent']) if saved else (0, 1.)
    for epoch in range(start, epochs):
        replay.store(4)
        loss = loss / 3 + replay.data.sum().item()
        logger.log_tabular('Epoch', epoch)
        logger.log_tabular('Loss', loss)
        logger.dump_tabular()
        if epoch < save_until:
            logger.save_state(dict(epoch=epoch + 1, agent=loss), itr=epoch, replay=replay)
    return start


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*')
            if path.is_file() and path.name != '.lock'}


def test_existing_run_is_never_overwritten_silently(tmp_path):
    finish_run(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r'--resume.*--overwrite'):
        Logger(tmp_path)
    with pytest.raises(UserError, match='exclude'):
        Logger(tmp_path, resume=True, overwrite=True)
    assert contents(tmp_path) == before


def test_folder_without_a_run_needs_no_flag(tmp_path):
    (tmp_path / 'notes.txt').write_text('mine')
    Logger(tmp_path).save_config(dict(seed=0))                  # a run that failed before its first row is none
    assert finish_run(tmp_path, config=dict(gamma=0.9)) == 0


def test_unusable_folder_is_the_users_mistake(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='file'):
        Logger(tmp_path / 'file' / 'run')


def test_overwrite_removes_the_run_and_nothing_else(tmp_path):
    finish_run(tmp_path)
    mine = ['notes.txt', 'pyt_save/mine.pt', 'tf1_saved/x', 'replay/notes', 'other/state.npz', 'model.pt']
    theirs = ['pyt_save/model.pt', 'pyt_save/model12.pt', 'pyt_save/model.pt.tmp', 'tf1_save/saved_model.pb',
              'tf1_save7/variables/variables.index', 'tf1_save.old/model_info.json', 'tf1_save.tmp/x', 'state.npz.tmp',
              'progress.txt.tmp', 'replay/99.npz', 'events.out.tfevents.123.host']
    for name in mine + theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('x')
    Logger(tmp_path, overwrite=True)
    assert sorted(contents(tmp_path)) == sorted(mine)
    assert not (tmp_path / 'tf1_save7').exists()
    assert finish_run(tmp_path, overwrite=True) == 0 and len(table(tmp_path)) == 3


def test_config_file(tmp_path):
    logger = Logger(tmp_path, exp_name='try', config=dict(env_name='CartPole-v1', algo='ppo_torch'))
    logger.save_config(dict(seed=0, ac_kwargs=dict(hidden_sizes=(64, 64), activation=np.tanh), env_fn=lambda: 0,
                            gamma=float('nan')))
    text = (tmp_path / 'config.json').read_text()
    config = json.loads(text, parse_constant=pytest.fail)       # no NaN, which is not JSON
    assert config == dict(seed=0, ac_kwargs=dict(hidden_sizes=[64, 64], activation='tanh'), env_fn='<lambda>',
                          gamma='nan', exp_name='try', num_procs=1, env_name='CartPole-v1', algo='ppo_torch')
    assert list(config) == sorted(config) and '\n    "seed": 0' in text


# %% The model
def test_pytorch_model(tmp_path):
    torch = pytest.importorskip('torch')
    module = torch.nn.Linear(2, 1)
    logger = Logger(tmp_path / 'last')
    logger.setup_pytorch_saver(module)
    logger.save_state(dict(), itr=0)
    with torch.no_grad():
        module.weight.fill_(3)
    logger.save_state(dict(), itr=1)
    assert os.listdir(tmp_path / 'last' / 'pyt_save') == ['model.pt']
    weights = torch.load(tmp_path / 'last' / 'pyt_save' / 'model.pt', weights_only=True)
    assert (weights['weight'] == 3).all() and set(weights) == {'weight', 'bias'}

    logger = Logger(tmp_path / 'all', keep_all=True)
    logger.setup_pytorch_saver(module)
    for itr in (0, 10):
        logger.save_state(dict(), itr=itr)
    assert sorted(os.listdir(tmp_path / 'all' / 'pyt_save')) == ['model0.pt', 'model10.pt']


def test_tensorflow_model_and_tensorboard(tmp_path):
    pytest.importorskip('tensorflow')
    run('''
import os, sys
from common.logx import Logger, restore_tf_graph
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
assert 'torch' not in sys.modules
x = tf.placeholder(tf.float32, (None,))
w = tf.get_variable('w', initializer=2.)
y = x * w
sess = tf.Session()
sess.run(tf.global_variables_initializer())

logger = Logger('run', keep_all=False, tensorboard=True)
logger.setup_tf_saver(sess, inputs=dict(x=x), outputs=dict(y=y))
sess.graph.finalize()                                           # saving adds nothing to the graph
logger.save_state(dict(), itr=0)
w.load(5., sess)
logger.save_state(dict(), itr=1)
assert sorted(os.listdir('run')) == ['.lock', 'state.npz', 'tf1_save'], os.listdir('run')

def restored(path):
    with tf.Session(graph=tf.Graph()) as other:
        model = restore_tf_graph(other, path)
        assert set(model) == {'x', 'y'}
        return other.run(model['y'], {model['x']: [1, 2]}).tolist()
assert restored('run/tf1_save') == [5, 10]
os.rename('run/tf1_save', 'run/tf1_save.old')                   # as a kill may leave it
assert restored('run/tf1_save/') == [5, 10]
logger.keep_all = True
logger.save_state(dict(), itr=7)
assert restored('run/tf1_save7') == [5, 10]

for i in range(2):
    for key, val in dict(TotalEnvInteracts=100 * (i + 1), Loss=0.5 + i, Note='text', Empty=None).items():
        logger.log_tabular(key, val)
    logger.dump_tabular()
name, = [name for name in os.listdir('run') if name.startswith('events')]
events = [(event.step, value.tag, value.simple_value) for event in tf.train.summary_iterator('run/' + name)
          for value in event.summary.value]
assert events[:2] == [(100, 'TotalEnvInteracts', 100), (100, 'Loss', 0.5)], events
assert events[2:] == [(200, 'TotalEnvInteracts', 200), (200, 'Loss', 1.5)], events
assert 'torch' not in sys.modules
''', tmp_path)


def test_tensorboard_through_torch(tmp_path):
    pytest.importorskip('tensorboard')
    from common.logx import event_writer
    if 'tensorflow' in sys.modules:
        pytest.skip('tensorflow writes them here')
    event_writer(tmp_path)(dict(Loss=0.5), 0)
    assert os.listdir(tmp_path)[0].startswith('events.out.tfevents')


def test_tensorboard_without_anything_that_writes_it(tmp_path, monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(UserError, match='pip install tensorboard'):
        Logger(tmp_path / 'run', tensorboard=True)
    assert not (tmp_path / 'run').exists()


# %% Resuming
def test_resumed_run_is_as_if_it_had_not_stopped(tmp_path):
    finish_run(tmp_path / 'whole', epochs=9)
    assert finish_run(tmp_path / 'parts', epochs=4) == 0
    assert finish_run(tmp_path / 'parts', epochs=9, resume=True) == 4
    assert table(tmp_path / 'parts') == table(tmp_path / 'whole')


def test_pytorch_draws_on_where_it_was(tmp_path):
    """The generator of which dropout draws; the algorithm's state does not mention it, and gets nothing of it."""
    torch = pytest.importorskip('torch')
    logger = Logger(tmp_path)
    torch.manual_seed(3)
    torch.rand(5)
    logger.save_state(dict(agent=1, rng=2))
    expected = torch.rand(4)
    torch.manual_seed(0)
    assert Logger(tmp_path, resume=True).load_state() == dict(agent=1, rng=2)
    assert torch.equal(torch.rand(4), expected)


def test_resume_of_nothing_starts_a_run(tmp_path):
    assert finish_run(tmp_path / 'new', resume=True) == 0
    assert finish_run(tmp_path / 'new', resume=True) == 3       # the same command again: nothing left to do
    assert len(table(tmp_path / 'new')) == 3


def test_rows_after_the_checkpoint_are_cut(tmp_path):
    finish_run(tmp_path / 'whole', epochs=5)
    finish_run(tmp_path / 'cut', epochs=4, save_until=2)
    with open(tmp_path / 'cut' / 'progress.txt', 'a') as file:
        file.write('4\t0.12')                                   # killed in the middle of a row
    assert finish_run(tmp_path / 'cut', epochs=5, resume=True) == 2
    assert table(tmp_path / 'cut') == table(tmp_path / 'whole')


def test_killed_before_the_first_checkpoint_starts_afresh(tmp_path):
    finish_run(tmp_path / 'whole', epochs=3)
    finish_run(tmp_path / 'again', epochs=1, save_until=0)
    (tmp_path / 'again' / 'replay').mkdir()
    (tmp_path / 'again' / 'replay' / '4.npz').write_text('of the dead')
    logger = EpochLogger(tmp_path / 'again', resume=True)
    logger.save_config(dict(seed=0, epochs=3))
    assert logger.load_state(replay=Buffer()) is None
    assert contents(tmp_path / 'again').keys() == {'config.json', 'progress.txt'}
    assert table(tmp_path / 'again') == []                      # the row is gone, and will be the same again
    assert finish_run(tmp_path / 'again', resume=True) == 0
    assert table(tmp_path / 'again') == table(tmp_path / 'whole')


def test_resumed_run_keeps_its_columns_and_its_time(tmp_path):
    finish_run(tmp_path)
    logger = EpochLogger(tmp_path, resume=True)
    with pytest.raises(AssertionError, match='load_state'):
        logger.dump_tabular()                                   # would overwrite the table
    logger.load_state()
    with pytest.raises(AssertionError, match='Other is not in the table'):
        logger.log_tabular('Other', 1)
    logger.start_time -= 1000
    logger.save_state(dict())
    logger = EpochLogger(tmp_path, resume=True)
    logger.load_state()
    assert 1000 <= time.time() - logger.start_time < 1030


@pytest.mark.parametrize('old, new, words', [
    (dict(gamma=0.9), dict(gamma=0.99), 'gamma was 0.9 there and is 0.99 now'),
    (dict(env_name='A-v0'), dict(env_name='B-v0'), "env_name was 'A-v0' there and is 'B-v0' now"),
    (dict(hid=(64, 64)), dict(hid=(32,)), r'hid was \[64, 64\] there and is \[32\] now'),
    (dict(ac_kwargs={}), dict(ac_kwargs=dict(hid=(32,))), r"ac_kwargs was {} there and is {'hid': \[32\]} now"),
    (dict(ac_kwargs=dict(act='relu')), dict(ac_kwargs={}), "ac_kwargs was {'act': 'relu'} there and is {} now"),
    (dict(act=np.tanh), dict(act=np.sin), "act was 'tanh' there and is 'sin' now"),
    (dict(alpha=0.2), dict(alpha='auto'), "alpha was 0.2 there and is 'auto' now"),
])
def test_resume_with_other_arguments_is_refused(tmp_path, old, new, words):
    finish_run(tmp_path, config=old)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=words):
        finish_run(tmp_path, config=new, resume=True)
    assert contents(tmp_path) == before


def test_resume_with_arguments_that_make_no_difference(tmp_path):
    class Other:
        pass
    config = dict(save_freq=1, env_fn=lambda: 0, x=Other(), gamma=1, hid=[64], act=None, y=np.zeros(3), z=np.nan)
    finish_run(tmp_path, config=config)
    config = dict(save_freq=2, env_fn=Other, x=Other(), gamma=1.0, hid=(64,), act=None, y=[0, 0, 0], z=np.nan, new=3)
    assert finish_run(tmp_path, config=config, epochs=5, resume=True) == 3
    assert json.loads((tmp_path / 'config.json').read_text())['epochs'] == 5


def test_resume_with_another_number_of_processes_is_refused(tmp_path, monkeypatch):
    finish_run(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr('common.logx.num_procs', lambda: 3)
    with pytest.raises(UserError, match='num_procs was 1 there and is 3 now'):
        finish_run(tmp_path, resume=True)
    with pytest.raises(UserError, match='that run had 1 processes, and now there are 3'):
        EpochLogger(tmp_path, resume=True).load_state()
    assert contents(tmp_path) == before


def test_replay_rows_are_saved_once(tmp_path):
    finish_run(tmp_path, epochs=5, capacity=100)
    for end in range(4, 24, 4):
        assert load_tree(tmp_path / 'replay' / f'{end}.npz')[0][:, 0].tolist() == list(range(end - 4, end))
    finish_run(tmp_path, epochs=6, capacity=10, overwrite=True)
    assert sorted(os.listdir(tmp_path / 'replay')) == ['16.npz', '20.npz', '24.npz']    # the last 10 of 24 rows


class Killed(BaseException):
    """Ends a run as a kill would: nothing that comes after has any effect on the disk."""


def test_run_survives_a_kill_at_every_change_of_the_disk(tmp_path, monkeypatch):
    """Stop a run before its first, second, ... change of a file, resume it, and compare with the undisturbed run."""
    finish_run(tmp_path / 'whole', epochs=5)
    expected = table(tmp_path / 'whole')
    starts = []
    for calls in range(1000):
        left = iter(range(calls))

        def mortal(function):
            def wrapper(*args, **kwargs):
                if next(left, None) is None:
                    raise Killed
                return function(*args, **kwargs)
            return wrapper
        folder = tmp_path / str(calls)
        with monkeypatch.context() as patch:
            for name in ('os.replace', 'os.remove', 'os.makedirs', 'os.fsync', 'builtins.open'):
                patch.setattr(name, mortal(pkgutil.resolve_name(name)))
            try:
                finish_run(folder, epochs=5)
                break                                           # it made fewer changes than that
            except Killed:
                pass
        starts.append(finish_run(folder, epochs=5, resume=True))
        assert table(folder) == expected
        if starts[-1] < 5:                                      # else there was nothing left to do, nor to tidy up
            assert sorted(os.listdir(folder / 'replay')) == ['12.npz', '16.npz', '20.npz']
            assert not list(folder.rglob('*.tmp'))
        shutil.rmtree(folder)
    assert set(starts) == {0, 1, 2, 3, 4, 5} and starts == sorted(starts)


def test_run_survives_sigkill(tmp_path):
    code = f'''
from pathlib import Path
from tests.test_logx import finish_run
finish_run(Path({str(tmp_path)!r}) / 'killed', epochs=10**9, resume=True)
'''
    rows = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, '-c', code], env=ENV, cwd=ROOT, stdout=subprocess.DEVNULL)
        deadline = time.time() + 120
        path = tmp_path / 'killed' / 'progress.txt'
        while time.time() < deadline and not (path.exists() and len(path.read_text().splitlines()) > rows + 20):
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
        child.wait()
        rows = len(path.read_text().splitlines())
    start = finish_run(tmp_path / 'killed', epochs=rows + 5, resume=True)
    assert start >= rows - 3
    finish_run(tmp_path / 'whole', epochs=rows + 5)
    assert table(tmp_path / 'killed') == table(tmp_path / 'whole')


# ---- The screen

def test_a_long_table_fits_a_small_terminal(tmp_path, capsys):
    """29 columns, as SAC has: in 80 x 24 characters, and returns without exponents."""
    logger = Logger(tmp_path)
    capsys.readouterr()
    logger.log_tabular('AverageEpRet', -1390.4)
    for i in range(28):
        logger.log_tabular(f'Column{i}', 0.00123456 * i)
    logger.dump_tabular()
    lines = capsys.readouterr().out.split('\n')
    assert len(lines) <= 23 and max(map(len, lines)) < 80 and len(set(map(len, filter(None, lines)))) == 1
    assert '-1390 |' in lines[1] and '0.0333' in '\n'.join(lines)


def test_quiet_prints_one_line(tmp_path, capsys):
    logger = Logger(tmp_path, quiet=True)
    capsys.readouterr()
    logger.log_tabular('Epoch', 3)
    logger.log_tabular('AverageEpRet', -1390.4)
    logger.log_tabular('LossPi', 0.1)
    logger.dump_tabular()
    assert capsys.readouterr().out == 'Epoch 3  AverageEpRet -1390\n'


@pytest.mark.parametrize('code', ["print('line', flush=True)", 'logger.log_tabular("Epoch", 0); logger.dump_tabular()'])
def test_a_reader_who_has_had_enough(code, tmp_path):
    """`python ppo_torch.py ... | head` ends without a traceback, and does not take it for an error of the disk."""
    code = ("from common.errors import one_line_errors\n"
            "from common.logx import Logger\n"
            "with one_line_errors('x'):\n"
            f"    logger = Logger('{tmp_path}')\n"
            f"    while True: {code}\n")
    done = subprocess.run(f'{sys.executable} -c {shlex.quote(code)} | head -n 2', shell=True, capture_output=True,
                          text=True, env=dict(os.environ, PYTHONPATH=ROOT), timeout=60)
    assert (done.stdout.count('\n'), done.stderr) == (2, '')


def test_resuming_a_finished_run_says_so_and_changes_nothing(tmp_path, capsys):
    finish_run(tmp_path, epochs=3)
    before = (tmp_path / 'config.json').read_bytes()
    finish_run(tmp_path, epochs=2, resume=True)
    assert 'has 3 epochs already; to go on, give more --epochs' in capsys.readouterr().out
    assert (tmp_path / 'config.json').read_bytes() == before
