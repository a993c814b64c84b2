"""Running experiments: where results go, grids of hyperparameters, and the command line of every algorithm file.

From the command line, several values for a flag make a grid: `python ppo_torch.py --env CartPole-v1 --seed 0 1 2`.
From Python, the same is an `ExperimentGrid`:

    grid = ExperimentGrid('ppo-bench')
    grid.add('env_name', 'CartPole-v1', '', in_name=True)
    grid.add('seed', [0, 10, 20])
    grid.add('ac_kwargs:hidden_sizes', [(32,), (64, 64)], 'hid')
    grid.run(ppo, num_cpu=2, jobs=2)

Every variant of a grid runs in a process of its own, so that none leaves anything behind for the next.
"""
import base64
import builtins
import contextlib
import functools
import inspect
import itertools
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
import zlib
from pathlib import Path

from common.env_tools import make_registered, not_plain
from common.errors import ExperimentFailed, UserError, one_line_errors
from common.logx import algo_name, default_arguments, lock_folder, read_progress, script_of
from common.mpi_tools import end_with_parent, mpi_fork, proc_id
from common.serialization import convert_json, read_json

DATESTAMP = '%Y-%m-%d_%H-%M-%S'
ROOT = Path(__file__).resolve().parents[1]
OURS = r'(vpg|trpo|ppo|ddpg|td3|sac)_(torch|tf1)'       # algorithm files that someone else's run may name
ENV_ARGUMENTS = 'env_name', 'env_kwargs', 'wrappers'


# ---- Names and folders

def setup_logger_kwargs(exp_name, seed=None, data_dir=None, datestamp=False):
    """The logger's arguments for an experiment: its name, and data_dir/[date_]exp_name/[date_time-]exp_name[_s<seed>].

    Without a seed the inner folder is left out. `datestamp` is True for now, or a moment as '2030-01-31_12-00-00'.
    """
    stamp = time.strftime(DATESTAMP) if datestamp is True else datestamp
    folder = os.path.join(data_dir or 'data', f'{stamp[:10]}_{exp_name}' if stamp else exp_name)
    if seed is not None:
        folder = os.path.join(folder, f'{stamp}-{exp_name}_s{seed}' if stamp else f'{exp_name}_s{seed}')
    return dict(output_dir=folder, exp_name=exp_name)


def valid_str(value):
    """A value as part of a file name: lower case letters, digits, '-' and '_'; lists are joined, functions named."""
    if isinstance(value, (list, tuple)):
        return '-'.join(valid_str(v) for v in value)
    return re.sub('[^a-z0-9_-]', '-', str(getattr(value, '__name__', value)).lower())


# ---- Experiments, each in a process of its own

def run_here(thunk, kwargs, num_cpu, logger_kwargs):
    """Train in this process or, with num_cpu > 1, in that many under mpirun. `env_name`, `env_kwargs` and `wrappers`
    become thunk's `env_fn`, and go into config.json, so that the policy can be loaded and watched later."""
    mpi_fork(num_cpu)
    env = {key: kwargs[key] for key in ENV_ARGUMENTS if key in kwargs}
    kwargs = {key: val for key, val in kwargs.items() if key not in env}
    kwargs['logger_kwargs'] = dict(logger_kwargs, config=dict(algo=algo_name(thunk), **env))
    if 'env_name' in env:
        kwargs['env_fn'] = functools.partial(make_registered, **env)
    thunk(**kwargs)
    if proc_id() == 0:
        folder, file = shlex.quote(logger_kwargs['output_dir']), Path(script_of(thunk)).resolve()
        trust = ' --trust' if not_plain(**env) else ''      # which test_policy asks for
        if file.is_file() and not (file.parent == ROOT and re.fullmatch(OURS, file.stem)):
            trust += f' --file {shlex.quote(min(str(file), os.path.relpath(file), key=len))}'
        run = ('' if Path.cwd() == ROOT else f'PYTHONPATH={shlex.quote(str(ROOT))} ') + 'python -m common.run'
        print(f'\nPlot it:   {run} plot {folder}')
        print(f'Watch it:  {run} test_policy {folder}{trust}')


def comments(function):
    """The comment behind each parameter in the signature of a function or class, where each has its own line."""
    with contextlib.suppress(OSError, TypeError):           # there is no source, or no signature of several lines
        signature = re.search(r'\(\n(.*?)\n *\)', inspect.getsource(function), flags=re.DOTALL)
        return dict(re.findall(r'^ *(\w+).*?, *# (.*)$', signature[1], flags=re.MULTILINE))
    return {}


def explain_arguments(train_fn):
    """Make help(train_fn) show the comments behind its arguments, too."""
    lines = [f'    {name + " " * (20 - len(name))}{text}' for name, text in comments(train_fn).items()]
    train_fn.__doc__ = '\n'.join([train_fn.__doc__, '', *lines])
    return train_fn


def cpu_count(num_cpu):
    """num_cpu itself, or for 'auto' the number of cores that this process may use."""
    if num_cpu != 'auto':
        return num_cpu
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()


def pickled_command(thunk, kwargs, num_cpu, logger_kwargs):
    """The command that runs any Python callable in another process. The callable travels in the command itself, by
    cloudpickle (which gymnasium installs): lambdas and a notebook's functions work, mpirun can repeat the command, and
    no file is written."""
    import cloudpickle
    payload = base64.b64encode(zlib.compress(cloudpickle.dumps((thunk, kwargs, num_cpu, logger_kwargs)))).decode()
    if len(payload) > 120_000:                             # Linux allows 128 KiB in one argument
        raise UserError('the experiment holds too much data to be sent to another process: load it inside the function')
    return [sys.executable, '-m', 'common.run_utils', payload]


class Experiment:
    """One run, as a command for a process of its own. Its output goes to output.log in the run's folder."""

    def __init__(self, command, kwargs, num_cpu, logger_kwargs):
        self.command, self.kwargs, self.num_cpu = command, kwargs, num_cpu
        self.name, self.seed, self.folder = logger_kwargs['exp_name'], kwargs['seed'], Path(logger_kwargs['output_dir'])
        self.resume, self.overwrite = logger_kwargs.get('resume'), logger_kwargs.get('overwrite')
        self.log = self.folder / 'output.log'
        self.process, self.started, self.seconds, self.error = None, 0, 0, None
        self.output, self.position = '', 0                  # what it has printed, and its place in the log

    def performance(self):
        """The last test return, or training return where there are no tests."""
        with contextlib.suppress(UserError, LookupError, ValueError):       # a damaged table; no row; no number
            row = read_progress(self.folder / 'progress.txt')[1][-1]
            return f'{float(row.get("AverageTestEpRet") or row["AverageEpRet"]):.4g}'
        return '-'

    def finished(self):
        """Whether nothing is left to do: all epochs are in progress.txt, the checkpoint was written after the last of
        them, and the arguments are those of config.json. If in doubt, False: the run itself then finds out."""
        try:
            config = read_json(self.folder / 'config.json')
            progress, state = [(self.folder / name).stat().st_mtime for name in ('progress.txt', 'state.npz')]
            _, rows = read_progress(self.folder / 'progress.txt')
        except (OSError, UserError):
            return False
        now = dict(convert_json(self.kwargs), num_procs=self.num_cpu)
        same = all(config[key] == now[key] for key in now if key in config and key != 'logger_kwargs')
        return progress <= state and same and len(rows) >= self.kwargs.get('epochs', math.inf)

    def start(self):
        """Start the process, with the module search path of this one. If it cannot be started, `error` says why."""
        env = dict(os.environ, PYTHONUNBUFFERED='1', PYTHONPATH=os.pathsep.join(map(os.path.abspath, sys.path)))
        try:
            os.makedirs(self.folder, exist_ok=True)
            if self.log.is_symlink():
                raise UserError(f'{self.log} is a link: put the file itself there')
            if self.log.exists() and not self.resume:
                lock = lock_folder(self.folder)             # a run still going there writes to it
                os.truncate(self.log, 0)
                lock.release()
            with open(self.log, 'a') as log:
                self.started, self.position = time.time(), log.tell()
                self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                                preexec_fn=end_with_parent if sys.platform == 'linux' else None)
        except UserError as error:
            self.error = str(error)
        except OSError as error:
            self.error = f'{error.filename or self.folder}: {error.strerror}'

    def poll(self):
        """What the process has printed since the last time, and whether it has ended."""
        if not self.process:
            return '', True
        status = self.process.poll()                        # asked first, so that the last output is read too
        text = ''
        with contextlib.suppress(OSError), open(self.log, errors='replace') as log:     # it may have been removed
            log.seek(self.position)
            text, self.position = log.read(), log.tell()
        self.output, self.seconds = self.output + text, time.time() - self.started
        if status:
            self.error = last_error(self.output, status, self.folder)
        return text, status is not None

    def stop(self):
        """End the process, and an mpirun below it; kill it if it does not listen."""
        if not self.process:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.process.kill()
        self.process.wait()


def last_error(output, status, folder):
    """The last line that looks like an error; mpirun may add lines of its own after it. If the disk is full, that line
    is not in the log, so a write to the disk is tried."""
    if status < 0:
        return f'killed by signal {-status}'
    errors = re.findall(r'^(?:\S+: (?:process \d+ of \d+: )?error: |[\w.]*(?:Error|Exception|Interrupt)\b).*(?=\n)',
                        output, flags=re.MULTILINE)
    lines = output.strip().splitlines() or ['nothing printed']
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        lines.append(f'{folder}: {error.strerror}')
    return errors[-1] if errors else f'exit status {status}, last line: {lines[-1]}'


def run_experiments(experiments, jobs=1):
    """Run experiments, `jobs` at a time, and end with a table. With one at a time, its output is shown as it comes.
    One that fails does not stop the others; at the end, ExperimentFailed is raised if any did."""
    from tqdm import tqdm
    waiting, running = [e for e in experiments if not (e.resume and e.finished())], []
    bar = tqdm(total=len(experiments), initial=len(experiments) - len(waiting), unit='run', disable=None)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                waiting[0].start()
                running.append(waiting.pop(0))
            time.sleep(0.05)
            for e in list(running):
                text, ended = e.poll()
                if jobs == 1 and text:
                    bar.write(text, end='')
                    sys.stdout.flush()
                if ended:
                    running.remove(e)
                    bar.update()
                    bar.write(f'{e.name}, seed {e.seed}: {e.error or "finished"} ({e.seconds:.0f} s)')
    finally:
        for e in running:                                   # all are told before one is waited for
            if e.process:                                   # else it could not be started
                e.process.terminate()
        for e in running:
            e.stop()
        bar.close()
    if len(experiments) > 1:
        print(table(experiments))
    failed = [e for e in experiments if e.error]
    if failed:
        logs = ', '.join(str(e.log) for e in failed if e.process)
        why = f'see {logs}' if logs else failed[0].error    # it could not even be started
        raise ExperimentFailed(f'{len(failed)} of {len(experiments)} runs failed: {why}')


def table(experiments):
    """The results: one row per variant, with its seeds, the last performance of each, the total time, and errors."""
    rows = [('variant', 'seeds', 'performance', 'time', 'outcome')]
    for name in dict.fromkeys(e.name for e in experiments):
        group = [e for e in experiments if e.name == name]
        errors = '; '.join(f'seed {e.seed} failed: {textwrap.shorten(e.error, 100)}' for e in group if e.error)
        skipped = sum(e.process is None for e in group)
        rows.append((name, ' '.join(str(e.seed) for e in group), ' '.join(e.performance() for e in group),
                     f'{sum(e.seconds for e in group):.0f} s',
                     errors or (f'finished ({skipped} skipped: finished before)' if skipped else 'finished')))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ['  '.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return '\n'.join(['', *lines])


def call_experiment(exp_name, thunk, seed=0, num_cpu=1, data_dir=None, datestamp=False, **kwargs):
    """Call thunk(seed=seed, logger_kwargs=..., **kwargs) in a process of its own or, with num_cpu > 1, in that many
    under mpirun ('auto': one per core). If `env_name` is given, thunk gets an `env_fn` that makes that environment."""
    grid, logger_kwargs = ExperimentGrid(exp_name), kwargs.pop('logger_kwargs', {})
    for key, value in dict(kwargs, seed=seed).items():
        grid.add(key, [value])
    grid.run(thunk, num_cpu, data_dir, datestamp, **logger_kwargs)


# ---- Grids

class ExperimentGrid:
    """All combinations of some values of some parameters, each run as an experiment."""

    def __init__(self, name=''):
        self.name, self.keys, self.vals, self.shorthands, self.in_names = name, [], [], [], []

    def _default_shorthand(self, key):
        """The letters and digits among the first three characters of each part of a:b:c: ac_kwargs -> ac."""
        return '-'.join(re.sub('[^A-Za-z0-9]', '', part[:3]) for part in key.split(':'))

    def add(self, key, vals, shorthand=None, in_name=False):
        """Add a parameter with its value or list of values. The key a:b:c means variant['a']['b']['c']. It appears in
        names, as `shorthand`, if it has several values or if in_name is set."""
        self.keys.append(key)
        self.vals.append(vals if isinstance(vals, list) else [vals])
        self.shorthands.append(self._default_shorthand(key) if shorthand is None else shorthand)
        self.in_names.append(in_name)

    def _variants(self, keys, vals):
        """All combinations, as flat dicts; the last key varies fastest."""
        return [dict(zip(keys, combination)) for combination in itertools.product(*vals)]

    def variants(self):
        """All combinations, as dicts, nested where keys have colons."""
        return [self._nest(flat) for flat in self._variants(self.keys, self.vals)]

    def _nest(self, flat):
        variant = {}
        for key, value in flat.items():
            *path, last = key.split(':')
            place = functools.reduce(lambda node, part: node.setdefault(part, {}), path, variant)
            if last in place or any(other.startswith(key + ':') for other in flat):
                raise UserError(f'{key} has a value of its own and values for its parts')
            place[last] = value
        return variant

    def value(self, variant, key):
        """The value of the parameter a:b:c in a variant."""
        return functools.reduce(lambda node, part: node[part], key.split(':'), variant)

    def variant_name(self, variant):
        """The grid's name and, for every parameter that varies, its shorthand and value. A parameter that is only ever
        True or False is named if True; the seed never is, so that seeds of one variant share a folder."""
        name = self.name
        for key, vals, shorthand, in_name in zip(self.keys, self.vals, self.shorthands, self.in_names):
            if (len(vals) > 1 or in_name) and key != 'seed':
                value = self.value(variant, key)
                if not all(isinstance(v, bool) for v in vals):
                    name += f'_{valid_str(shorthand)}{valid_str(value)}'
                elif value:
                    name += f'_{valid_str(shorthand)}'
        return name.lstrip('_')

    def print(self):
        """Show what is in the grid."""
        variants = self.variants()
        names = list(dict.fromkeys(self.variant_name(variant) for variant in variants))
        print(f'{self.name} (variants: {len(names)}, runs: {len(variants)}) with')
        for key, vals, shorthand in zip(self.keys, self.vals, self.shorthands):
            print(f'    {key} [{shorthand}]: ' + '  '.join(str(convert_json(value)) for value in vals))
        print('in the folders\n    ' + '\n    '.join(names) + '\n')

    def run(self, thunk, num_cpu=1, data_dir=None, datestamp=False, jobs=1, command=None, **logger_options):
        """Run every variant, `jobs` of them at a time, each with `num_cpu` processes.

        thunk: the training function, or the name of a parameter whose values are training functions.
        logger_options: resume (finished variants are skipped), overwrite, keep_all, tensorboard.
        command(name, variant) returns a command to run instead of thunk. The command line uses this: its variants are
        command lines of their own.
        """
        experiments, num_cpu = [], cpu_count(num_cpu)
        datestamp = time.strftime(DATESTAMP) if datestamp is True else datestamp        # one moment for the whole grid
        for variant in self.variants():
            name, call = self.variant_name(variant), variant.pop(thunk) if isinstance(thunk, str) else thunk
            kwargs = dict(variant, seed=variant.get('seed', 0))
            logger_kwargs = dict(setup_logger_kwargs(name, kwargs['seed'], data_dir, datestamp), **logger_options)
            argv = command(name, variant) if command else pickled_command(call, kwargs, num_cpu, logger_kwargs)
            experiments.append(Experiment(argv, dict(default_arguments(call), **kwargs), num_cpu, logger_kwargs))
        folders = [e.folder for e in experiments]
        for e in experiments:
            if folders.count(e.folder) > 1:
                raise UserError(f'two runs would share the folder {e.folder}: is a value given twice? Else '
                                '--flag[shorthand] tells them apart')
            if (e.folder / 'progress.txt').exists() and not (e.resume or e.overwrite):
                raise UserError(f'{e.folder} already has a run: --resume continues it, --overwrite replaces it')
        self.print()
        run_experiments(experiments, jobs)


# ---- The command line

def command_line(train_fn, argv=None):
    """The command line of an algorithm file, made from its training function: see common/run.py. A notebook has no
    command line: there, running the file's last cell tells how to train."""
    from common import run
    if argv is None and hasattr(builtins, '__IPYTHON__') and Path(sys.argv[0]).name != Path(script_of(train_fn)).name:
        name, env = train_fn.__name__, run.example_env(train_fn)
        print(f"In a notebook, train with {name}(lambda: gymnasium.make('{env}')), or as on the command line with "
              f"command_line({name}, ['--env', '{env}'])")
        return
    run.command_line(train_fn, argv)


if __name__ == '__main__':                                  # the other end of pickled_command
    import cloudpickle
    with one_line_errors('experiment'):
        run_here(*cloudpickle.loads(zlib.decompress(base64.b64decode(sys.argv[1]))))
