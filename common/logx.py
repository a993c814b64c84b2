"""Logging, saving and resuming: everything that a run leaves on disk is written here, by process 0 alone.

A run's folder holds progress.txt (a table, one row per epoch), config.json (every argument), the model (pyt_save/ or
tf1_save/), and state.npz with replay/ (the checkpoint that a stopped run goes on from). A kill at any moment leaves the
last complete checkpoint, and reading a run executes nothing in it: there is no pickle.
"""
import contextlib
import functools
import importlib.util
import inspect
import json
import math
import os
import re
import shutil
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.mpi_tools import bcast, gather, mpi_statistics_scalar, mpi_sum, num_procs, proc_id
from common.serialization import (ReplayFiles, atomic_folder, atomic_write, complete_folder, convert_json, load_tree,
                                  save_tree)

COLORS = dict(gray=30, red=31, green=32, yellow=33, blue=34, magenta=35, cyan=36, white=37)
ONE_LINE = 'Epoch', 'AverageEpRet', 'AverageTestEpRet', 'EpLen', 'TotalEnvInteracts', 'Time'     # if there is no table
MAY_CHANGE = {'epochs', 'save_freq', 'logger_kwargs', 'env_fn', 'exp_name'}     # when a run is resumed
OWN_FILES = (r'(state\.npz|config\.json|replay/\d+\.npz|pyt_save/model\d*\.pt)(\.tmp)?|progress\.txt\.tmp'
             r'|tf1_save\d*(\.tmp|\.old)?|events\.out\.tfevents\..*')


def colorize(string, color, bold=False, highlight=False):
    """The string with the codes that make a terminal show it in colour."""
    codes = [str(COLORS[color] + (10 if highlight else 0))] + (['1'] if bold else [])
    return f'\x1b[{";".join(codes)}m{string}\x1b[0m'


def read_progress(path):
    """The columns of a progress.txt and its rows, each a dict of strings, '' where a cell is empty.

    Before the first epoch has ended there may be no such file. A line without its newline is still being written, and
    left out, as is one with another number of cells.
    """
    if not os.path.exists(path):
        return [], []
    with open(path, encoding='utf-8', errors='replace') as file:
        columns, *rows = [line[:-1].split('\t') for line in file if line.endswith('\n')] or [[]]
    return columns, [dict(zip(columns, row)) for row in rows if len(row) == len(columns)]


def on_terminal(stream):
    """Whether a standard stream ends on a terminal. mpirun gives its processes a pipe and passes on what they write: so
    under it, where its own ends."""
    if stream.isatty():
        return True
    with contextlib.suppress(OSError, ValueError, AttributeError):      # of a system without /proc, of a notebook
        fd, parent = stream.fileno(), os.getppid() if os.getenv('PMI_RANK') else 0
        while parent and 'pmi_proxy' in Path(f'/proc/{parent}/comm').read_text():
            parent = int(re.search(r'PPid:\s*(\d+)', Path(f'/proc/{parent}/status').read_text())[1])
        return parent > 0 and os.readlink(f'/proc/{parent}/fd/{fd}').startswith(('/dev/pts/', '/dev/tty'))
    return False


def default_arguments(function):
    """The keyword arguments of a function with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def algo_name(train_fn):
    """The name of the file that a training function comes from, ppo_torch; also where its cells were run in a notebook,
    which has no file."""
    scope = getattr(train_fn, '__globals__', {})
    if '__file__' in scope:
        return Path(scope['__file__']).stem
    return getattr(train_fn, '__name__', type(train_fn).__name__) + ('_tf1' if 'tf' in scope else '_torch')


def restore_tf_graph(sess, fpath):
    """Load the SavedModel in the folder `fpath` into `sess`; returns its inputs and outputs, tensors by name."""
    import tensorflow.compat.v1 as tf
    model = tf.saved_model.loader.load(sess, [tf.saved_model.tag_constants.SERVING], complete_folder(fpath))
    signature = model.signature_def['serving_default']
    return {key: sess.graph.get_tensor_by_name(tensor.name)
            for key, tensor in [*signature.inputs.items(), *signature.outputs.items()]}


def on_process_0(function, *args):
    """What `function` gives on process 0, on all processes; they also fail together, so that none is left waiting."""
    result = None
    if proc_id() == 0:
        try:
            result = function(*args)
        except (UserError, OSError) as error:
            result = UserError(str(error))
    result = bcast(result)
    if isinstance(result, UserError):
        raise result
    return result


class Logger:
    """A table of results, one row per dump_tabular; and the configuration, model and checkpoint that belong to it."""

    def __init__(
        self,
        output_dir=None,                # folder of the run; if not given, a new one where temporary files go
        output_fname='progress.txt',    # name of the table in it
        exp_name=None,                  # name of the experiment, for config.json
        resume=False,                   # go on from the checkpoint in output_dir, if there is one
        overwrite=False,                # replace the run in output_dir, if there is one
        keep_all=False,                 # keep every saved model, with its epoch in its name, and not only the last
        tensorboard=False,              # write the same columns as TensorBoard's event files too
        quiet=False,                    # print one line for each row, as in notebooks, and not a table
        config=None,                    # more entries for config.json
    ):
        self.output_fname, self.exp_name, self.keep_all, self.config = output_fname, exp_name, keep_all, config or {}
        self.start_time = time.time()                               # moved back by load_state: the Time column goes on
        self.headers, self.row, self.rows = [], {}, 0               # columns, the row under way, rows in the table
        self.save_model = None                                      # function of what to append to the model's name
        self.tensorboard, self.write_events = tensorboard, None
        self.quiet = quiet or 'ipykernel' in sys.modules
        self.output_dir, self.resuming = on_process_0(self._prepare_folder, output_dir, resume, overwrite)
        self.replay_files = ReplayFiles(self._path('replay'))
        self.log(f'Logging to {self.output_dir}', 'cyan')

    # ---- The terminal
    def log(self, msg, color='green'):
        """Print a message, in colour if standard output is a terminal."""
        if proc_id() == 0:
            print(colorize(msg, color, bold=True) if color and on_terminal(sys.stdout) else msg, flush=True)

    def progress(self, local_steps, epoch, epochs):
        """range(local_steps), the steps of an epoch; on a terminal, and in a notebook, with a bar for the steps of the
        whole run."""
        if proc_id() > 0 or not (on_terminal(sys.stderr) or 'ipykernel' in sys.modules):
            return range(local_steps)
        from tqdm import tqdm
        bar = tqdm(range(local_steps), total=epochs * local_steps, initial=epoch * local_steps, unit=' steps',
                   unit_scale=num_procs(), smoothing=0, dynamic_ncols=True, leave=False)
        bar.initial, bar.start_t = 0, self.start_time       # so that the time between epochs counts in the time left
        return bar

    # ---- The table
    def log_tabular(self, key, val):
        """Put a value into column `key` of the row under way. The first row decides which columns there are."""
        if self.rows == 0 and key not in self.headers:
            self.headers.append(key)
        assert key in self.headers, f'column {key} is not in the table: its first row decided which columns there are'
        assert key not in self.row, f'column {key} already has its value in this row: dump_tabular begins a new one'
        self.row[key] = val.item() if hasattr(val, 'item') else val

    def dump_tabular(self):
        """End the row under way: print it, and append it to the table on disk."""
        assert not self.resuming, 'a resumed run calls load_state before its first row'
        if proc_id() == 0:
            self._print_row()
            cells = '\t'.join(_cell(self.row.get(key)) for key in self.headers)
            lines = [cells] if self.rows else ['\t'.join(self.headers), cells]
            with open(self._path(self.output_fname), 'a', encoding='utf-8', newline='\n') as file:
                file.write(''.join(f'{line}\n' for line in lines))
            if self.tensorboard:
                step = int(self.row.get('TotalEnvInteracts', self.rows))
                self.write_events = self.write_events or event_writer(self.output_dir)
                self.write_events({key: val for key, val in self.row.items() if isinstance(val, (int, float))}, step)
        self.row, self.rows = {}, self.rows + 1

    def _print_row(self):
        if self.quiet:
            row = {key: _shown(self.row[key]) for key in ONE_LINE if self.row.get(key) is not None}
            self.log('  '.join(f'{key} {text}' for key, text in row.items()), color=None)
            return
        texts = [_shown(self.row.get(key)) for key in self.headers]
        key_width, width = max([15, *map(len, self.headers)]), max([10, *map(len, texts)])
        cells = [f'| {key:>{key_width}} | {text:>{width}} ' for key, text in zip(self.headers, texts)]
        if len(cells) > 20:                             # two side by side, so that a terminal of 24 lines holds them
            cells += [f'| {"":{key_width}} | {"":{width}} '] * (len(cells) % 2)
            cells = [left + right for left, right in zip(cells[:len(cells) // 2], cells[len(cells) // 2:])]
        rule = '-' * (max(map(len, cells), default=0) + 1)
        self.log('\n'.join([rule, *(cell + '|' for cell in cells), rule]), color=None)

    # ---- The folder
    def _path(self, *names):
        return os.path.join(self.output_dir, *names)

    def _prepare_folder(self, output_dir, resume, overwrite):
        """Make the folder; returns its name, and whether there is a run in it to continue."""
        if resume and overwrite:
            raise UserError('--resume and --overwrite exclude each other')
        if self.tensorboard and not any(map(importlib.util.find_spec, ('tensorboard', 'tensorflow'))):
            raise UserError('--tensorboard needs the tensorboard package: pip install tensorboard')
        self.output_dir = output_dir or tempfile.mkdtemp(prefix='experiment_')
        exists = any(os.path.exists(self._path(name)) for name in (self.output_fname, 'state.npz'))
        if exists and not resume and not overwrite:
            raise UserError(f'{self.output_dir} already has a run: --resume continues it, --overwrite replaces it')
        os.makedirs(self.output_dir, exist_ok=True)
        resuming = resume and os.path.exists(self._path('state.npz'))
        if exists and not resuming:                     # to be replaced, or killed before its first checkpoint
            self._remove_run()
        return self.output_dir, resuming

    def _remove_run(self):
        """Remove the files that a logger writes, and no others.

        The checkpoint goes first and the table last: what a kill leaves in between is not taken for a run that can go
        on, nor for an empty folder.
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
        on_process_0(self._write_config, convert_json(config))
        shown = {key: val for key, val in config.items() if isinstance(val, (bool, int, float, str))}
        if 'actor_critic' in config:
            shown.update(convert_json({**default_arguments(config['actor_critic']), **config['ac_kwargs']}))
        text = ', '.join(f'{key}={val}' for key, val in sorted(shown.items()))
        self.log(textwrap.fill(text, width=min(120, shutil.get_terminal_size().columns)), 'cyan')

    def _write_config(self, config):
        path = self._path('config.json')
        if self.resuming and os.path.exists(path):
            with open(path, encoding='utf-8') as file:
                old = json.load(file)
            for key in sorted(set(old) & set(config) - MAY_CHANGE):
                if old[key] != config[key]:
                    raise UserError(f'cannot resume {self.output_dir}: {key} was {old[key]!r} there and is '
                                    f'{config[key]!r} now')
            rows = len(read_progress(self._path(self.output_fname))[1])
            if rows >= config.get('epochs', math.inf):
                self.log(f'{self.output_dir} has {rows} epochs already; to go on, give more --epochs', 'yellow')
                return
        with atomic_write(path, 'w') as file:
            json.dump(config, file, indent=4, sort_keys=True, allow_nan=False)

    # ---- The model
    def setup_pytorch_saver(self, module):
        """Let save_state save the weights of `module`."""
        self.save_model = functools.partial(self._pytorch_simple_save, module)

    def _pytorch_simple_save(self, module, suffix):
        import torch
        os.makedirs(self._path('pyt_save'), exist_ok=True)
        with atomic_write(self._path('pyt_save', f'model{suffix}.pt')) as file:
            torch.save(module.state_dict(), file)

    def setup_tf_saver(self, sess, inputs, outputs):
        """Let save_state save the graph and variables of `sess`; `inputs` and `outputs` are dicts of tensors."""
        import tensorflow.compat.v1 as tf
        with sess.graph.as_default():
            saver = tf.train.Saver()            # one for the whole run: each would add its operations to the graph
        self.save_model = functools.partial(self._tf_simple_save, sess, inputs, outputs, saver)

    def _tf_simple_save(self, sess, inputs, outputs, saver, suffix):
        """Write a SavedModel, whose signature has the names of its inputs and outputs."""
        import tensorflow.compat.v1 as tf
        signatures = dict(serving_default=tf.saved_model.predict_signature_def(inputs, outputs))
        with atomic_folder(self._path(f'tf1_save{suffix}')) as folder:
            builder = tf.saved_model.Builder(folder)
            builder.add_meta_graph_and_variables(sess, [tf.saved_model.tag_constants.SERVING], signatures, saver=saver)
            builder.save()

    # ---- The checkpoint
    def save_state(self, state, itr=None, replay=None):
        """Save the model, and a checkpoint: the state of every process and, if there is one, its replay buffer.

        state['agent'] is equal on all processes and kept once. PyTorch's generator, from which dropout and networks of
        your own may draw, is kept as well. Of the replay buffers only the rows since the last time are written, to a
        file of their own. The checkpoint itself comes last and in one step: it refers to files that are complete by
        then, and only those that it no longer needs are deleted after it.
        """
        if 'torch' in sys.modules:
            state = dict(state, torch_rng=sys.modules['torch'].get_rng_state().numpy())
        states = gather({key: val for key, val in state.items() if key != 'agent' or proc_id() == 0})
        if replay is not None:
            self.replay_files.save(replay)
        if proc_id() == 0:
            if self.save_model:
                self.save_model(itr if self.keep_all and itr is not None else '')
            save_tree(self._path('state.npz'), dict(states=states, rows=self.rows, replay=self.replay_files.saved,
                                                    elapsed=time.time() - self.start_time))
            if replay is not None:
                self.replay_files.remove_others(len(replay.data))

    def load_state(self, replay=None):
        """What this process saved last; fills `replay`, and cuts the table back to the rows that it had then.

        None for a run that is not resumed, or was killed before its first checkpoint: that one starts from nothing.
        """
        if not self.resuming:
            return None
        saved, self.resuming = on_process_0(self._read_checkpoint), False
        self.headers, self.rows, self.start_time = saved['headers'], saved['rows'], time.time() - saved['elapsed']
        if replay is not None:
            self.replay_files.load(replay, saved['replay'])
        self.log(f'Resuming after row {self.rows} of {self.output_fname}')
        state = {**saved['states'][0], **saved['states'][proc_id()]}
        torch_rng = state.pop('torch_rng', None)
        if torch_rng is not None and 'torch' in sys.modules:
            sys.modules['torch'].set_rng_state(sys.modules['torch'].from_numpy(torch_rng))
        return state

    def _read_checkpoint(self):
        saved = load_tree(self._path('state.npz'))
        if len(saved['states']) != num_procs():
            raise UserError(f'cannot resume {self.output_dir}: that run had {len(saved["states"])} processes, and now '
                            f'there are {num_procs()}')
        headers, rows = read_progress(self._path(self.output_fname))
        rows = [list(row.values()) for row in rows[:saved['rows']]]
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
        """Collect values, each a number or an array."""
        for key, val in kwargs.items():
            self.epoch_dict.setdefault(key, []).append(val)

    def log_tabular(self, key, val=None, with_min_and_max=False, average_only=False):
        """Log `val`; or, without one, the statistics of what all processes have stored as `key` since the last time.

        For a key X these are AverageX, StdX and, with_min_and_max, MaxX and MinX; with average_only the average, as X.
        Where no process has stored anything the cells stay empty: nan would mean that a value was nan.
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
    """The function write(row, step) that appends to event files for TensorBoard, by the framework at hand that can."""
    if 'tensorflow' not in sys.modules and importlib.util.find_spec('tensorboard'):
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter(folder)
        add = writer.add_scalar
    else:
        import tensorflow.compat.v1 as tf
        with tf.Graph().as_default():                       # FileWriter refuses to work outside of a graph
            writer = tf.summary.FileWriter(folder)
        add = lambda key, val, step: writer.add_summary(tf.Summary(value=[dict(tag=key, simple_value=val)]), step)

    def write(row, step):
        for key, val in row.items():
            add(key, val, step)
        writer.flush()
    return write


def _shown(val):
    """A value as people read it: three digits, but no exponent for what is not far from 1."""
    return f'{val:.0f}' if isinstance(val, float) and 1e3 <= abs(val) < 1e9 else (
        f'{val:.3g}' if isinstance(val, float) else _cell(val))


def _cell(val):
    """A value as the table on disk has it: floats in their shortest exact form, nothing for None."""
    if val is None:
        return ''
    if isinstance(val, str):
        return ' '.join(val.split())                        # a tab would begin a new column
    return str(int(val) if isinstance(val, int) else float(val))
