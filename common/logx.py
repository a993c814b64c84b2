"""Logging, saving and resuming: everything that a run leaves on disk is written here, by process 0 alone.

A run's folder holds progress.txt (a table, one row per epoch), config.json (every argument), the model (pyt_save/ or
tf1_save/), and state.npz with replay/ (the checkpoint from which a stopped run resumes). A kill at any moment leaves
the last complete checkpoint, and reading a run executes nothing in it: there is no pickle.
"""
import contextlib
import functools
import importlib.util
import inspect
import io
import json
import math
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np

from common.errors import UserError, in_notebook, printable, terminal_width
from common.mpi_tools import bcast, gather, mpi_op, mpi_statistics_scalar, mpi_sum, num_procs, proc_id
from common.serialization import (MAX_TABLE, ReplayFiles, atomic_folder, atomic_write, check_file, complete_folder,
                                  convert_json, damage_is_a_user_error, load_tree, read_json, save_tree)
from common.stopping import asked, finish_epoch_first

COLORS = dict(gray=30, red=31, green=32, yellow=33, blue=34, magenta=35, cyan=36, white=37)
ONE_LINE = 'Epoch', 'AverageEpRet', 'AverageTestEpRet', 'EpLen', 'TotalEnvInteracts', 'Time'     # if there is no table
LARGEST = 1e18           # number to learn from: losses square it, and float32 ends at 3e38
DIVERGED = 'the run has diverged and stops here, its last checkpoint and model are intact; try a smaller learning rate'
MAY_CHANGE = {'epochs', 'save_freq', 'logger_kwargs', 'env_fn', 'exp_name'}     # when a run is resumed
COUNTS = 'rows', 'replay', 'epoch', 'updates'                                   # in a checkpoint
TEMPORARY = r'(\.[0-9a-f]{16})?\.tmp'
OWN_FILES = (fr'(state\.npz|config\.json|replay/\d+\.npz|pyt_save/model\d*\.pt)({TEMPORARY})?|progress\.txt{TEMPORARY}'
             fr'|tf1_save\d*({TEMPORARY}|\.old)?|events\.out\.tfevents\..*')


def colorize(string, color, bold=False, highlight=False):
    """The string with the codes that make a terminal show it in colour."""
    codes = [str(COLORS[color] + (10 if highlight else 0))] + (['1'] if bold else [])
    return f'\x1b[{";".join(codes)}m{string}\x1b[0m'


def read_progress(path):
    """The columns of a progress.txt and its rows, each a dict of strings, '' where a cell is empty.

    Before the first epoch has ended there may be no such file. A line without a newline is still being written, and is
    left out, as is one with the wrong number of cells.
    """
    if not os.path.exists(path):
        return [], []
    check_file(path, MAX_TABLE)
    with open(path, encoding='utf-8', errors='replace') as file:
        columns, *rows = [line[:-1].split('\t') for line in file if line.endswith('\n')] or [[]]
    columns = [name if name.isprintable() else printable(name) for name in columns]
    return list(dict.fromkeys(columns)), [dict(zip(columns, row)) for row in rows if len(row) == len(columns)]


def on_terminal(stream):
    """Whether a standard stream ends on a terminal. mpirun gives its processes a pipe and passes on what they write:
    under mpirun, it is mpirun's own stream that counts."""
    if stream.isatty():
        return True
    with contextlib.suppress(OSError, ValueError, AttributeError):      # a system without /proc; a notebook
        fd, parent = stream.fileno(), os.getppid() if os.getenv('PMI_RANK') else 0
        while parent and 'pmi_proxy' in Path(f'/proc/{parent}/comm').read_text():
            parent = int(re.search(r'PPid:\s*(\d+)', Path(f'/proc/{parent}/status').read_text())[1])
        return parent > 0 and os.readlink(f'/proc/{parent}/fd/{fd}').startswith(('/dev/pts/', '/dev/tty'))
    return False


def default_arguments(function):
    """The keyword arguments of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def script_of(train_fn):
    """The file that a training function comes from; if its cells were run in a notebook, the name it would have."""
    return getattr(train_fn, '__globals__', {}).get('__file__') or f'{algo_name(train_fn)}.py'


def algo_name(train_fn):
    """The name of the file that a training function comes from, such as ppo_torch; also if its cells were run in a
    notebook, which has no file."""
    scope = getattr(train_fn, '__globals__', {})
    if '__file__' in scope:
        return Path(scope['__file__']).stem
    return getattr(train_fn, '__name__', type(train_fn).__name__) + ('_tf1' if 'tf' in scope else '_torch')


def restore_tf_graph(sess, fpath):
    """Load the SavedModel in the folder `fpath` into `sess`; returns its inputs and outputs, tensors by name. Its
    operations are executed, whatever they are: only for a model that you trust."""
    import tensorflow.compat.v1 as tf
    model = tf.saved_model.loader.load(sess, [tf.saved_model.tag_constants.SERVING], complete_folder(fpath))
    signature = model.signature_def['serving_default']
    return {key: sess.graph.get_tensor_by_name(tensor.name)
            for key, tensor in [*signature.inputs.items(), *signature.outputs.items()]}


@contextlib.contextmanager
def failing_together(folder, hint=''):
    """Let all processes fail if process 0 does in here, so that none is left waiting: with its UserError, or with one
    that says in one line what is wrong with the disk."""
    failure = None
    try:
        yield
    except UserError as error:
        failure = error
    except BrokenPipeError:                                 # not the disk: the reader of the output is gone
        raise
    except OSError as error:
        path = re.sub(f'{TEMPORARY}$', '', str(error.filename or folder))
        failure = UserError(f'{path}: {error.strerror or error}{hint}')
    failure = bcast(failure) or failure
    if failure:
        raise failure


def lock_folder(folder):
    """Let no other process write into a folder until the lock that this returns is released or gone, or this process
    has ended in any way. Loggers of one process share it: in a notebook, one that was interrupted lives on."""
    from filelock import FileLock, Timeout
    path = Path(folder, '.lock')
    lock = FileLock(path, timeout=0, thread_local=False, is_singleton=True, fallback_to_soft=False)
    with contextlib.suppress(FileNotFoundError):
        check_file(path, longest=1000)                      # reading a pipe would block
    try:
        lock.acquire()
        path.write_text(f'process {os.getpid()} on {platform.node()}', encoding='utf-8')
    except Timeout:
        owner = path.read_text(encoding='utf-8', errors='replace') or 'another process'
        raise UserError(f'{folder} is in use by {owner}: wait until it ends, or choose another --exp_name') from None
    except OSError:                 # a file system without locks, or a read-only one: see the next file
        pass
    return lock


@contextlib.contextmanager
def disk_errors():
    """Turn TensorFlow's disk errors, '/path/of/file; No space left on device' among many lines, into an OSError."""
    try:
        yield
    except Exception as error:
        cause = re.search(r'/\S+; (\w.*)', str(error))
        if isinstance(error, OSError) or not cause:
            raise
        raise OSError(cause[1]) from None


class Logger:
    """A table of results, one row per dump_tabular; and the configuration, model and checkpoint that belong to it."""

    restoring = None            # the folder of a run that is being resumed, from load_state to its first row

    def __init__(
        self,
        output_dir=None,                # folder of the run; if not given, a new temporary one
        output_fname='progress.txt',    # name of the table in it
        exp_name=None,                  # name of the experiment, for config.json
        resume=False,                   # go on from the checkpoint in output_dir, if there is one
        overwrite=False,                # replace the run in output_dir, if there is one
        keep_all=False,                 # keep every saved model, with its epoch in its name, not only the last
        tensorboard=False,              # write the same columns to TensorBoard event files too
        quiet=False,                    # print one line for each row, as in notebooks, not a table
        config=None,                    # more entries for config.json
    ):
        self.output_fname, self.exp_name, self.keep_all, self.config = output_fname, exp_name, keep_all, config or {}
        self.start_time = time.time()                               # moved back by load_state, so that Time continues
        self.headers, self.row, self.rows = [], {}, 0               # columns, the current row, rows in the table
        self.step = 0                                               # environment steps, of all processes together
        self.save_model = None          # function of the logger and of a suffix for the model's name
        self.tensorboard, self.write_events = tensorboard, None
        self.quiet = quiet or in_notebook()
        self.lock = self.lock_file = None                           # of process 0: no other run may write there
        self.output_dir = output_dir
        self.output_dir, self.resuming = self._on_process_0(self._prepare_folder, resume, overwrite)
        self.replay_files = ReplayFiles(self._path('replay'))
        finish_epoch_first()
        self.log(f'Logging to {self.output_dir}', 'cyan')

    # ---- The terminal
    def log(self, msg, color='green'):
        """Print a message, in colour if standard output is a terminal."""
        if proc_id() == 0:
            try:
                print(colorize(msg, color, bold=True) if color and on_terminal(sys.stdout) else msg, flush=True)
            except BrokenPipeError:
                raise
            except OSError:                 # its terminal is gone, or the disk is full: the table has the rows
                pass

    def progress(self, local_steps, epoch, epochs):
        """range(local_steps), the steps of an epoch; on a terminal or in a notebook, with a progress bar for the whole
        run."""
        steps, processes = range(local_steps), num_procs()
        if proc_id() == 0 and (on_terminal(sys.stderr) or in_notebook()):
            from tqdm import tqdm
            steps = tqdm(steps, total=epochs * local_steps, initial=epoch * local_steps, unit=' steps',
                         unit_scale=processes, smoothing=0, dynamic_ncols=True, leave=False)
            steps.initial, steps.start_t = 0, self.start_time       # to count the time between epochs, too
        for t in steps:
            self.step = (epoch * local_steps + t + 1) * processes
            yield t

    # ---- The table
    def log_tabular(self, key, val):
        """Put a value into column `key` of the current row. The first row decides which columns there are."""
        if self.rows == 0 and key not in self.headers:
            self.headers.append(key)
        assert key in self.headers, f'column {key} is not in the table: its first row decided which columns there are'
        assert key not in self.row, f'column {key} already has its value in this row: dump_tabular begins a new one'
        self.row[key] = val.item() if hasattr(val, 'item') else val

    def dump_tabular(self):
        """End the current row: print it, and append it to the table on disk."""
        assert not self.resuming, 'a resumed run calls load_state before its first row'
        with self._writing():
            if proc_id() == 0:
                self._print_row()
                self._append_row()
                if self.tensorboard:
                    step = int(self.row.get('TotalEnvInteracts', self.rows))
                    row = {key: val for key, val in self.row.items() if isinstance(val, (int, float))}
                    with disk_errors():
                        self.write_events = self.write_events or event_writer(self.output_dir)
                        self.write_events(row, step)
        self.row, self.rows, Logger.restoring = {}, self.rows + 1, None

    def _append_row(self):
        """Append the row to the table on disk: all of it, or nothing."""
        cells = '\t'.join(_cell(self.row.get(key)) for key in self.headers)
        lines = [cells] if self.rows else ['\t'.join(self.headers), cells]
        path = self._path(self.output_fname)
        size = os.path.getsize(path) if self.rows else 0
        try:
            with open(path, 'a', encoding='utf-8', newline='\n') as file:
                file.write(''.join(f'{line}\n' for line in lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, size)
            raise

    def _print_row(self):
        if self.quiet:
            row = {key: _shown(self.row[key]) for key in ONE_LINE if self.row.get(key) is not None}
            self.log('  '.join(f'{key} {text}' for key, text in row.items()), color=None)
            return
        texts = [_shown(self.row.get(key)) for key in self.headers]
        key_width, width = max([15, *map(len, self.headers)]), max([10, *map(len, texts)])
        cells = [f'| {key:>{key_width}} | {text:>{width}} ' for key, text in zip(self.headers, texts)]
        if len(cells) > 20:                             # two side by side, to fit into a terminal of 24 lines
            cells += [f'| {"":{key_width}} | {"":{width}} '] * (len(cells) % 2)
            cells = [left + right for left, right in zip(cells[:len(cells) // 2], cells[len(cells) // 2:])]
        rule = '-' * (max(map(len, cells), default=0) + 1)
        self.log('\n'.join([rule, *(cell + '|' for cell in cells), rule]), color=None)

    # ---- The folder
    def _path(self, *names):
        return os.path.join(self.output_dir, *names)

    def _on_process_0(self, function, *args):
        """What `function` returns on process 0, on all processes."""
        result = None
        with failing_together(self.output_dir):
            if proc_id() == 0:
                result = function(*args)
        return bcast(result)

    @contextlib.contextmanager
    def _writing(self):
        """Around everything that is written in training: a disk error ends the run, and leaves what there was."""
        self._on_process_0(self._check_folder)
        with failing_together(self.output_dir, '; when that is put right, --resume goes on from the last checkpoint'):
            yield

    def _check_folder(self):
        """A folder or table that was removed is not made again, to hold half a run; and if another run was started in
        its place, that run's folder is not written to."""
        os.stat(self.output_dir)
        if self.rows:
            os.stat(self._path(self.output_fname))
        with contextlib.suppress(FileNotFoundError):
            if self.lock_file and not os.path.samestat(self.lock_file, os.stat(self._path('.lock'))):
                raise UserError(f'{self.output_dir} was removed, and now has another run: this one ends')

    def _prepare_folder(self, resume, overwrite):
        """Make the folder and lock it; returns its name, and whether there is a run in it to continue."""
        if resume and overwrite:
            raise UserError('--resume and --overwrite exclude each other')
        if self.tensorboard and not any(map(importlib.util.find_spec, ('tensorboard', 'tensorflow'))):
            raise UserError('--tensorboard needs the tensorboard package: pip install tensorboard')
        self.output_dir = self.output_dir or tempfile.mkdtemp(prefix='experiment_')
        os.makedirs(self.output_dir, exist_ok=True)
        self._refuse_links()
        self.lock = lock_folder(self.output_dir)
        self.lock_file = os.stat(self.lock.lock_file) if self.lock.is_locked else None
        table, checkpoint = [os.path.exists(self._path(name)) for name in (self.output_fname, 'state.npz')]
        model = any(any(Path(self.output_dir).glob(name)) for name in ('pyt_save/model*.pt', 'tf1_save*/*'))
        exists = table or checkpoint or model
        if exists and not resume and not overwrite:
            raise UserError(f'{self.output_dir} already has a run: --resume continues it, --overwrite replaces it')
        if exists and overwrite:
            self._remove_run()
        # Killed before its first checkpoint, a run has one row at most, which it can repeat. More would be lost.
        rows = len(read_progress(self._path(self.output_fname))[1])
        if resume and not checkpoint and (rows > 1 or model and not rows):
            raise UserError(f'{self.output_dir} has {f"{rows} epochs" if rows else "a model"} and no checkpoint, '
                            'state.npz, to continue from: --overwrite replaces it, another --exp_name keeps it')
        return self.output_dir, resume and exists

    def _refuse_links(self):
        """A run writes only into its own folder; links there, in someone else's run, could lead anywhere."""
        folder = Path(self.output_dir)
        for path in [*folder.glob('*'), *folder.glob('replay/*'), *folder.glob('pyt_save/*')]:
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() and (name in ('.lock', self.output_fname, 'output.log', 'replay', 'pyt_save')
                                      or re.fullmatch(OWN_FILES, name)):
                raise UserError(f'{path} is a link to {os.readlink(path)}, and a run writes into its own folder only: '
                                'put the file itself there')

    def _remove_run(self):
        """Remove the files that a logger writes, and no others.

        The checkpoint goes first and the table last: what a kill leaves in between is taken neither for a run that can
        be resumed nor for an empty folder.
        """
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path('state.npz'))
        folder = Path(self.output_dir)
        for path in [*folder.glob('*'), *folder.glob('*/*')]:
            if re.fullmatch(OWN_FILES, path.relative_to(folder).as_posix()):
                shutil.rmtree(path) if path.is_dir() else os.remove(path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._path(self.output_fname))

    # ---- The configuration
    def save_config(self, config, train_fn=None, env=None):
        """Write the arguments of the run to config.json, after checking that a resumed run has the same ones. With them
        go the algorithm and the environment, for the tools that load the policy."""
        config = {**config, **(dict(algo=algo_name(train_fn)) if train_fn else {}), **getattr(env, 'description', {}),
                  **self.config, 'exp_name': self.exp_name, 'num_procs': num_procs()}
        self._on_process_0(self._write_config, convert_json(config))
        shown = {key: val for key, val in config.items()
                 if isinstance(val, (bool, int, float, str)) or key in ('env_kwargs', 'wrappers') and val}
        if 'actor_critic' in config:
            network = getattr(config['actor_critic'], '__name__', '')
            if len(env.observation_space.shape) == 3 and network == 'MLPActorCritic':
                self.log('warning: a multilayer perceptron sees no shapes in images: pass a convolutional network of '
                         'your own as actor_critic, as examples/cnn_torch.py does', 'yellow')
            shown.update(convert_json({**default_arguments(config['actor_critic']), **config['ac_kwargs']}))
            if num_procs() > 1 and env.statistics():
                self.log('warning: each process normalizes by what it has seen itself; saved with the policy are the '
                         'statistics of process 0', 'yellow')
        text = ', '.join(f'{key}={val}' for key, val in sorted(shown.items()))
        self.log(textwrap.fill(text, terminal_width(), break_on_hyphens=False), 'cyan')

    def _write_config(self, config):
        path = self._path('config.json')
        if self.resuming and os.path.exists(path):
            old = read_json(path)
            for key in sorted(set(old) & set(config) - MAY_CHANGE):
                if old[key] != config[key]:
                    raise UserError(f'cannot resume {self.output_dir}: {key} was {printable(repr(old[key]))} there and '
                                    f'is {config[key]!r} now')
            rows = len(read_progress(self._path(self.output_fname))[1])
            if rows >= config.get('epochs', math.inf):
                self.log(f'{self.output_dir} has {rows} epochs already; to go on, give more --epochs', 'yellow')
                return
        with atomic_write(path, 'w') as file:
            json.dump(config, file, indent=4, sort_keys=True, allow_nan=False)

    # ---- The model
    def setup_pytorch_saver(self, module):
        """Let save_state save the weights of `module`."""
        self.save_model = functools.partial(Logger._pytorch_simple_save, module=module)

    def _pytorch_simple_save(self, suffix, module):
        import torch
        weights = io.BytesIO()                  # torch.save's own error does not name the cause
        torch.save(module.state_dict(), weights)
        Path(self._path('pyt_save')).mkdir(exist_ok=True)
        with atomic_write(self._path('pyt_save', f'model{suffix}.pt')) as file:
            file.write(weights.getbuffer())

    def setup_tf_saver(self, sess, inputs, outputs):
        """Let save_state save the graph and variables of `sess`; `inputs` and `outputs` are dicts of tensors."""
        import tensorflow.compat.v1 as tf
        with sess.graph.as_default():
            saver = tf.train.Saver()            # one for the whole run: each adds operations to the graph
        self.save_model = functools.partial(Logger._tf_simple_save, sess=sess, inputs=inputs, outputs=outputs,
                                            saver=saver)

    def _tf_simple_save(self, suffix, sess, inputs, outputs, saver):
        """Write a SavedModel whose signature names its inputs and outputs."""
        import tensorflow.compat.v1 as tf
        signatures = dict(serving_default=tf.saved_model.predict_signature_def(inputs, outputs))
        with disk_errors(), atomic_folder(self._path(f'tf1_save{suffix}')) as folder:
            builder = tf.saved_model.Builder(folder)
            builder.add_meta_graph_and_variables(sess, [tf.saved_model.tag_constants.SERVING], signatures, saver=saver)
            builder.save()
            # The tools load only the numbers: to load a SavedModel is to execute it.
            weights = sess.run({variable.op.name: variable for variable in sess.graph.get_collection('variables')})
            save_tree(os.path.join(folder, 'weights.npz'), weights)

    # ---- The checkpoint
    def save_state(self, state, itr=None, replay=None):
        """Save the model, and a checkpoint: the state of every process and, if there is one, its replay buffer.

        state['agent'] is equal on all processes and kept once. PyTorch's generator, from which dropout and networks of
        your own may draw, is kept as well. Of the replay buffers only the rows since the last time are written, to a
        file of their own. The checkpoint itself comes last and in one step: it refers to files that are complete by
        then, and only those that it no longer needs are deleted after it.
        """
        self._require_finite(state.get('agent'), 'the agent')
        stop = self.interrupted()
        if 'torch' in sys.modules:
            state = dict(state, torch_rng=sys.modules['torch'].get_rng_state().numpy())
        states = gather({key: val for key, val in state.items() if key != 'agent' or proc_id() == 0})
        with self._writing():
            if replay is not None:
                self.replay_files.save(replay)
            if proc_id() == 0:
                if self.save_model:
                    self.save_model(self, itr if self.keep_all and itr is not None else '')
                self._check_folder()                    # TensorFlow makes it again
                save_tree(self._path('state.npz'), dict(states=states, rows=self.rows, replay=self.replay_files.saved,
                                                        headers=self.headers, elapsed=time.time() - self.start_time))
                if replay is not None:
                    self.replay_files.remove_others(len(replay.data))
        if stop:
            raise KeyboardInterrupt(f'after epoch {itr}, which is saved, {stop}')

    def interrupted(self):
        """By what a process was asked to stop (Ctrl-C or SIGTERM), the same on all processes; '' if none was. Once it
        was, save_state stops the run."""
        found = mpi_op(100 * proc_id() + asked.signal if asked.signal else np.inf, 'min')
        if found == np.inf:
            return ''
        process, number = divmod(int(found), 100)
        place = f' to process {process} of {num_procs()}' if num_procs() > 1 else ''
        return f'by {signal.Signals(number).name}{place}'

    def _require_finite(self, node, where):
        """A UserError that names the first array in a tree with NaN or infinity in it."""
        if isinstance(node, (dict, list, tuple)):
            for key, val in node.items() if isinstance(node, dict) else enumerate(node):
                self._require_finite(val, f'{where}, {key}')
        elif hasattr(node, '__array__') and not np.all(np.asarray(node) < np.inf):      # -inf may be a mask
            raise UserError(f'{where} is not finite at step {self.step}: {DIVERGED}')

    def load_state(self, replay=None):
        """What this process saved last; fills `replay`, and cuts the table back to the rows that it had then.

        None for a run that is not resumed, or was killed before its first checkpoint: that one starts from scratch.
        """
        if not self.resuming:
            return None
        Logger.restoring = self.output_dir
        saved, self.resuming = self._on_process_0(self._read_checkpoint), False
        self.headers, self.rows, self.start_time = saved['headers'], saved['rows'], time.time() - saved['elapsed']
        if replay is not None:
            self.replay_files.load(replay, saved['replay'])
        if not saved['states']:
            self.log('Starting from the beginning: the run was stopped before its first checkpoint')
            return None
        self.log(f'Resuming after row {self.rows} of {self.output_fname}')
        state = {**saved['states'][0], **saved['states'][proc_id()]}
        torch_rng = state.pop('torch_rng', None)
        if torch_rng is not None and 'torch' in sys.modules:
            sys.modules['torch'].set_rng_state(sys.modules['torch'].from_numpy(torch_rng))
        return state

    def _read_checkpoint(self):
        saved = dict(states=[], rows=0, replay=0, elapsed=0)    # a checkpoint from before the first epoch
        path = self._path('state.npz')
        if os.path.exists(path):
            saved = load_tree(path)
            with damage_is_a_user_error(path):
                saved = dict(states=[dict(state) for state in saved['states']], rows=saved['rows'],
                             replay=saved['replay'], elapsed=float(saved['elapsed']), headers=[*saved['headers']])
                counts = [state.get(key, 0) for state in [saved, *saved['states']] for key in COUNTS]
                if not all(isinstance(count, int) and count >= 0 for count in counts):
                    raise ValueError(f'one of {", ".join(COUNTS)} is not a whole number of at least 0')
        if saved['states'] and len(saved['states']) != num_procs():
            raise UserError(f'cannot resume {self.output_dir}: that run had {len(saved["states"])} processes, and now '
                            f'there are {num_procs()}')
        headers, rows = read_progress(self._path(self.output_fname))
        if headers and headers != saved.get('headers', headers):
            raise UserError(f'cannot resume: {self._path(self.output_fname)} has other columns than state.npz says, so '
                            'one of them is damaged or from another run; restore it from a copy, or move the table '
                            'away, and the run goes on with a new one')
        rows = [list(row.values()) for row in rows[:saved['rows']]]
        if len(rows) < saved['rows']:
            self.log(f'warning: {self.output_fname} lacks {saved["rows"] - len(rows)} of its rows', 'yellow')
        headers = headers if rows else []               # the first row decides which columns there are
        with atomic_write(self._path(self.output_fname), 'w') as file:
            file.writelines('\t'.join(cells) + '\n' for cells in [headers, *rows] if cells)
        return dict(saved, headers=headers, rows=len(rows))


class EpochLogger(Logger):
    """A Logger that also collects values during an epoch, and logs their statistics over all processes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.epoch_dict = {}

    def store(self, **kwargs):
        """Collect values, each a number or an array. A run whose numbers have gone bad ends here, and what it saved
        before that stays."""
        for key, val in kwargs.items():
            if not (largest := np.max(np.abs(val), initial=0)) < LARGEST:               # so for NaN, too
                raise UserError(f'{key} is {largest} at step {self.step}: {DIVERGED}')
            self.epoch_dict.setdefault(key, []).append(val)

    def log_tabular(self, key, val=None, with_min_and_max=False, average_only=False):
        """Log `val`; or, without one, the statistics of what all processes have stored as `key` since the last time.

        For a key X these are AverageX, StdX and, with_min_and_max, MaxX and MinX; with average_only the average, as X.
        Where no process has stored anything the cells stay empty.
        """
        if val is not None:
            super().log_tabular(key, val)
            return
        mean, std, low, high = self._statistics(key)
        self.epoch_dict.pop(key, None)
        super().log_tabular(key if average_only else f'Average{key}', mean)
        if not average_only:
            super().log_tabular(f'Std{key}', std)
        if with_min_and_max:
            super().log_tabular(f'Max{key}', high)
            super().log_tabular(f'Min{key}', low)

    def get_stats(self, key):
        """Mean and standard deviation, over all processes, of what is stored as `key` so far."""
        return self._statistics(key)[:2]

    def _statistics(self, key):
        values = np.concatenate([np.ravel(val) for val in self.epoch_dict.get(key, [])] or [[]], dtype=np.float64)
        stored = mpi_sum(values.size) > 0
        return mpi_statistics_scalar(values, with_min_and_max=True) if stored else (None, None, None, None)


def event_writer(folder):
    """The function write(row, step) that appends to event files for TensorBoard, by whichever framework can."""
    if 'tensorflow' not in sys.modules and importlib.util.find_spec('tensorboard'):
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter(folder)
        add = writer.add_scalar
    else:
        import tensorflow.compat.v1 as tf
        # Record by record, not by tf.summary.FileWriter, whose thread would print a traceback if the disk is full.
        writer = tf.io.TFRecordWriter(os.path.join(folder, f'events.out.tfevents.{time.time():.0f}.{platform.node()}'))
        event = lambda **fields: writer.write(tf.Event(wall_time=time.time(), **fields).SerializeToString())
        event(file_version='brain.Event:2')
        add = lambda key, val, step: event(step=step, summary=dict(value=[dict(tag=key, simple_value=val)]))

    def write(row, step):
        for key, val in row.items():
            add(key, val, step)
        writer.flush()
    return write


def _shown(val):
    """A value for people to read: three digits, and no exponent unless it is far from 1."""
    return f'{val:.0f}' if isinstance(val, float) and 1e3 <= abs(val) < 1e9 else (
        f'{val:.3g}' if isinstance(val, float) else _cell(val))


def _cell(val):
    """A value as written to the table on disk: floats in their shortest exact form, nothing for None."""
    if val is None:
        return ''
    if isinstance(val, str):
        return ' '.join(val.split())                        # a tab would begin a new column
    return str(int(val) if isinstance(val, int) else float(val))
