"""The command line: of every algorithm file, and of all of them together.

    python ppo_torch.py --env CartPole-v1 --gamma 0.95          an algorithm file ends with command_line(ppo)
    python -m common.run ppo_torch --env CartPole-v1 --gamma 0.95         the same; `ppo` alone means ppo_torch
    python -m common.run plot data                              and the tools

Flags are not listed anywhere: they are the arguments of the training function, their types are those of its defaults,
and --help shows the comments that stand behind them in its signature.
"""
import ast
import contextlib
import difflib
import functools
import importlib
import inspect
import io
import itertools
import math
import os
import pathlib
import re
import runpy
import shlex
import shutil
import sys
import textwrap
import time
import tokenize
import warnings
from typing import NamedTuple

import gymnasium as gym

from common.env_tools import make_env
from common.mpi_tools import UserError, mpi_fork, num_procs, proc_id
from common.numpy_mlp import ACTIVATIONS
from common.run_utils import DATESTAMP, ExperimentGrid, algo_name, cpu_count, default_arguments
from common.run_utils import one_line_errors, run_here, setup_logger_kwargs

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = dict(plot='draw learning curves of runs', test_policy='watch a trained policy, and measure it')
SHORT_FLAGS = dict(env='env_name', hid='ac_kwargs:hidden_sizes', act='ac_kwargs:activation', cpu='num_cpu',
                   dt='datestamp')
NO_FLAGS = 'env_fn', 'actor_critic', 'ac_kwargs', 'logger_kwargs'
TEXTS = dict(hidden_sizes='sizes of the hidden layers', activation='activation behind each of them: relu, tanh, elu')

# Where numbers must lie, as far as that is plain. Anything else is left to the algorithm.
AT_LEAST_1 = '''steps_per_epoch epochs max_ep_len save_freq train_pi_iters train_v_iters cg_iters backtrack_iters
    replay_size batch_size update_every policy_delay num_cpu jobs'''.split()
AT_LEAST_0 = '''seed start_steps update_after num_test_episodes pi_lr vf_lr q_lr lr clip_ratio target_kl delta
    damping_coeff act_noise target_noise noise_clip alpha'''.split()
FROM_0_TO_1 = 'gamma lam polyak backtrack_coeff'.split()


# ---- Flags

def run_options(
    exp_name=None,          # name of the experiment and of its folder; the script's own if not given
    data_dir='data',        # folder for all results
    num_cpu=1,              # MPI processes of a run, or 'auto' for one per core
    datestamp=False,        # put date and time into folder names; to resume such a run, give them: 2030-01-31_12-00-00
    resume=False,           # continue a run from its last checkpoint; of a grid, run only what is not finished
    overwrite=False,        # replace the run that is in the folder
    keep_all=False,         # keep every model that is saved, not only the last
    tensorboard=False,      # write TensorBoard event files as well
    jobs=1,                 # runs of a grid that go on at the same time
    print_commands=False,   # print a shell command for each run, for a job array, and run nothing
):
    """What the command line asks for beside the algorithm's arguments: these options, checked."""
    if resume and overwrite:
        raise UserError('--resume continues a run and --overwrite replaces it: give one of them')
    if resume and datestamp is True:
        raise UserError('--resume needs the date and time in the name of the run: --datestamp 2030-01-31_12-00-00')
    if exp_name and re.search(r'[/\\]', exp_name):
        raise UserError(f'--exp_name {exp_name}: expected a name, not a path (--data_dir is for the path)')
    datestamp = time.strftime(DATESTAMP) if datestamp is True else datestamp
    return dict(locals(), num_cpu=cpu_count(num_cpu))


class Flag(NamedTuple):
    """An argument that the command line can set."""
    name: str
    default: object
    text: str               # what it means

    @property
    def spellings(self):
        """The flag as one may write it, shortest first."""
        shorts = [short for short, name in SHORT_FLAGS.items() if name == self.name]
        return [f'--{name}' for name in [*shorts, self.name]]

    @property
    def words(self):
        """Words that its text puts in quotes are values that it takes beside those of its type."""
        return re.findall(r"'(\w+)'", self.text)

    @property
    def expected(self):
        """What its values look like."""
        kinds = {bool: 'true or false', int: 'a whole number', float: 'a number', tuple: 'layer sizes such as [64,64]'}
        kind = kinds.get(type(self.default), '' if self.words else 'a name')
        return ' or '.join(filter(None, [kind, *(repr(word) for word in self.words)]))


def all_flags(train_fn):
    """Every flag of an algorithm file, in groups."""
    env = Flag('env_name', None, 'environment, by its name: CartPole-v1; or module:Env-v0, which imports module first')
    networks = default_arguments(train_fn).get('actor_critic')
    return {'Options of a run': [env, *signature_flags(run_options)],
            "The algorithm's arguments": signature_flags(train_fn) + signature_flags(networks, 'ac_kwargs:')}


def signature_flags(function, prefix=''):
    """A flag for every argument of a function, or class, with a default that can be written on a command line."""
    if function is None:
        return []
    texts = dict(TEXTS, **comments(function.__init__ if inspect.isclass(function) else function))
    return [Flag(prefix + name, default, texts.get(name, '')) for name, default in default_arguments(function).items()
            if name not in NO_FLAGS and (default is not None or name == 'exp_name')]


def comments(function):
    """The trailing comment behind each parameter in a function's source."""
    with contextlib.suppress(OSError, TypeError, tokenize.TokenError):
        found, depth, name, before = {}, 0, None, ''
        for kind, text, *_ in tokenize.generate_tokens(io.StringIO(inspect.getsource(function)).readline):
            if kind == tokenize.OP:
                depth += (text in '([{') - (text in ')]}')
            if kind == tokenize.OP and depth == 0 and text == ')':
                return found                                # the end of the signature
            if kind == tokenize.NAME and depth == 1 and before in ('(', ','):
                name = text
            if kind == tokenize.COMMENT and name:
                found[name] = f'{found.get(name, "")} {text.lstrip("# ")}'.strip()
            elif kind != tokenize.NL:
                before = text
    return {}


# ---- Parsing

def nearest(word, names):
    """' (nearest: ...)' with the names most like a misspelt word, or nothing when there are none."""
    names = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), names, n=3)
    return f' (nearest: {", ".join(names[name] for name in close)})' if close else ''


def parse_args(argv, train_fn):
    """The grid that a command line describes, and the options of the run."""
    flags = {spelling: flag for group in all_flags(train_fn).values() for flag in group for spelling in flag.spellings}
    given = []                                              # of each flag: as written, shorthand, texts of its values
    for arg in argv:
        if re.match('--?[A-Za-z]', arg):
            written, equals, text = arg.partition('=')
            written, bracket, shorthand = written.partition('[')
            if written not in flags:
                raise UserError(f'unknown flag {written}{nearest(written, flags)}; --help shows them all')
            given.append((written, shorthand.rstrip(']') if bracket else None, [text] if equals else []))
        elif given:
            given[-1][2].append(arg)
        else:
            raise UserError(f'expected a flag such as --env before {arg}')

    # The order of parameters in names is Spinning Up's: as written, then those with a shorthand, then the short flags.
    shorts = [f'--{short}' for short in SHORT_FLAGS]
    given.sort(key=lambda item: (shorts.index(item[0]) if item[0] in shorts else -1, item[1] is not None))
    grid, options, activations = ExperimentGrid(), {}, activation_names(train_fn)
    for written, shorthand, texts in given:
        flag = flags[written]
        if flag.name in grid.keys or flag.name in options:
            raise UserError(f'{" or ".join(flag.spellings)} is given twice; all values stand behind one flag')
        values = parse_values(flag, written, texts, activations)
        if flag.name not in default_arguments(run_options):
            grid.add(flag.name, values, shorthand)
        elif len(values) == 1:
            options[flag.name] = values[0]
        else:
            raise UserError(f'{written} takes one value, not {len(values)}')
    if 'env_name' not in grid.keys:
        raise UserError('which environment? For example --env CartPole-v1; --help shows all flags')
    options = run_options(**options)
    grid.name = options['exp_name'] or algo_name(train_fn)
    return grid, options


def parse_values(flag, written, texts, activations):
    """The values behind a flag; a flag that is true or false needs none."""
    if not texts and not isinstance(flag.default, bool):
        raise UserError(f'{written} needs a value: {flag.expected}')
    values = []
    for text in texts or ['true']:
        try:
            value = parse_value(flag, text, activations)
        except UserError as error:
            raise UserError(f'{written} {text}: {error}') from None
        if value in values:
            raise UserError(f'{written}: {text} is given twice')
        values.append(value)
    return values


def parse_value(flag, text, activations):
    """The value that a text means for a flag: a literal of the type of its default, or a name. Nothing is evaluated."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = text
    if text in flag.words:
        return text
    if flag.default is None or isinstance(flag.default, str) and not flag.words:
        return text
    if callable(flag.default):
        name = text.split('.')[-1].lower().replace('_', '')                 # nn.ReLU and tf.nn.relu are both relu
        if name not in activations:
            raise UserError(f'no activation of that name{nearest(name, activations) or ": " + ", ".join(activations)}')
        return activations[name]
    if isinstance(flag.default, bool):
        if text.lower() in ('true', 'false'):
            return text.lower() == 'true'
        if flag.name == 'datestamp' and re.fullmatch(r'\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d', text):
            return text
    elif isinstance(flag.default, tuple):
        if isinstance(value, (list, tuple)) and value and all(type(size) is int and size > 0 for size in value):
            return value
    elif type(value) in (int, float) and math.isfinite(value):
        if isinstance(flag.default, float) or value == int(value):
            check_range(flag, value)
            return value if isinstance(flag.default, float) else int(value)         # 1e6 is a whole number too
    raise UserError(f'expected {flag.expected}')


def check_range(flag, value):
    """Refuse a number that makes no sense."""
    low = 1 if flag.name in AT_LEAST_1 else 0 if flag.name in AT_LEAST_0 + FROM_0_TO_1 else -math.inf
    if value < low or value > 1 and flag.name in FROM_0_TO_1:
        bounds = 'from 0 to 1' if flag.name in FROM_0_TO_1 else f'at least {low}'
        raise UserError(f'expected {flag.expected}, {bounds}')


def activation_names(train_fn):
    """The activations of the framework that the training function's file imports, by their names in lower case."""
    names = train_fn.__globals__
    module = names['tf'].nn if 'tf' in names else names.get('nn')
    names = {name.lower().replace('_', ''): name for name in dir(module)}
    return {name: getattr(module, names[name]) for name in ACTIVATIONS if name in names}


# ---- Running

def command_line(train_fn, argv=None):
    """The whole command line of an algorithm file: `--help`, one run, or several values for a flag and so a grid."""
    argv = sys.argv[1:] if argv is None else argv
    script = inspect.getsourcefile(train_fn)
    with one_line_errors(os.path.basename(script), '; the same command with --resume goes on from the last checkpoint'):
        if {'-h', '--help'} & set(argv) or argv == ['help']:
            if proc_id() == 0:
                print(help_page(train_fn, os.path.basename(script)))
            return
        grid, options = parse_args(argv, train_fn)
        variants = grid.variants()
        if len(variants) > 1 or options['num_cpu'] > 1 or options['print_commands']:
            refuse_mpirun()
        if options['print_commands']:
            check(train_fn, variants, options['num_cpu'])
            for variant in variants:
                print(shlex.join(variant_command(grid, script, options, grid.variant_name(variant), variant)))
        elif len(variants) == 1:
            run_one(train_fn, grid.name, variants[0], options)
        else:
            check(train_fn, variants, options['num_cpu'])
            grid.run(train_fn, command=functools.partial(variant_command, grid, script, options), **{
                key: value for key, value in options.items() if key not in ('exp_name', 'print_commands')})


def run_one(train_fn, exp_name, variant, options):
    """Train here, or with --cpu N in N processes under mpirun."""
    mpi_fork(options['num_cpu'])
    check(train_fn, [variant], num_procs())
    floats = [key for key, default in default_arguments(train_fn).items() if isinstance(default, float)]
    kwargs = {key: float(value) if key in floats and type(value) is int else value for key, value in variant.items()}
    place = setup_logger_kwargs(exp_name, kwargs.get('seed', 0), options['data_dir'], options['datestamp'])
    logger_options = {key: options[key] for key in ('resume', 'overwrite', 'keep_all', 'tensorboard')}
    run_here(train_fn, kwargs, 1, dict(place, **logger_options))


def refuse_mpirun():
    """Processes that mpirun started must not each start the same runs. (These variables tell, without starting MPI.)"""
    started = int(os.getenv('PMI_SIZE') or os.getenv('OMPI_COMM_WORLD_SIZE') or 1)
    if started > 1 and not os.getenv('STARTED_BY_MPI_FORK'):
        raise UserError('a grid, and --cpu, start processes of their own: leave out mpirun, and give --cpu')


def check(train_fn, variants, processes):
    """What can be known to fail should fail before anything is created on disk: environments are made once, and every
    process needs a share of each epoch and batch."""
    defaults = default_arguments(train_fn)
    for name in dict.fromkeys(variant['env_name'] for variant in variants):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')             # training will warn
                make_env(functools.partial(gym.make, name), discrete_actions='replay_size' not in defaults).close()
        except gym.error.UnregisteredEnv:
            raise UserError(f'unknown environment {name}{nearest(name, gym.registry)}') from None
        except (UserError, gym.error.Error, ImportError) as error:
            raise UserError(f'environment {name}: {error}') from None
    for variant, key in itertools.product(variants, ('steps_per_epoch', 'batch_size')):
        total = dict(defaults, **variant).get(key, processes)
        if total < processes:
            raise UserError(f'--{key} {total} is too few for {processes} processes: they share it')


def variant_command(grid, script, options, name, variant):
    """The command line that runs one variant of a grid alone, into the same folder, as one would type it here."""
    python = 'python' if shutil.which('python') == sys.executable else sys.executable
    words = [python, min(script, os.path.relpath(script), key=len)]
    for key in grid.keys:
        flag = next((short for short, long in SHORT_FLAGS.items() if long == key), key)
        words += [f'--{flag}', as_text(grid.value(variant, key))]
    for key, value in dict(options, exp_name=name).items():
        if key not in ('jobs', 'print_commands') and value != default_arguments(run_options)[key]:
            words += [f'--{key}'] if value is True else [f'--{key}', str(value)]
    return words


def as_text(value):
    """A value as it is written behind a flag."""
    if isinstance(value, (list, tuple)):
        return '[' + ','.join(str(v) for v in value) + ']'
    return str(getattr(value, '__name__', value))


# ---- Help

def help_page(train_fn, script, width=100):
    """What --help shows: the file's docstring, every flag with its meaning and default, and examples."""
    lines = [f'python {script} --env NAME [--FLAG VALUE [VALUE ...]] ...', '']
    for paragraph in inspect.cleandoc(train_fn.__globals__.get('__doc__') or '').split('\n\n'):
        lines += [paragraph if '\n ' in paragraph else textwrap.fill(paragraph, width), '']        # equations stay
    for group, flags in all_flags(train_fn).items():
        lines.append(f'{group}:')
        for flag in flags:
            shown = flag.default is not None and flag.default is not False
            default = f' (default:\xa0{as_text(flag.default)})' if shown else ''            # which no line end parts
            text = [line.replace('\xa0', ' ') for line in textwrap.wrap(flag.text + default, width - 30)]
            head = '  ' + ', '.join(flag.spellings)
            lines += [f'{head:<29} {text.pop(0)}' if len(head) < 30 and text else head]
            lines += [' ' * 30 + line for line in text]
        lines.append('')
    env, stem = 'Pendulum-v1' if 'replay_size' in default_arguments(train_fn) else 'CartPole-v1', script[:-3]
    lines.append(textwrap.dedent(f'''\
        A flag that is true or false needs no value. Several values for a flag make a grid of runs, whose
        folders are named after what varies; --flag[short] says how to call it there.

        Examples:
          python {script} --env {env}
          python {script} --env {env} --hid 32,32 --act relu --gamma 0.95 --exp_name mine
          mpirun -np 4 python {script} --env {env}                  (or --cpu 4)
          python {script} --env {env} --exp_name mine --resume
          python {script} --env {env} --hid[h] [32] [64,64] --seed 0 1 2 --jobs 2
          python -m common.run plot data
          python -m common.run test_policy data/{stem}/{stem}_s0'''))
    return '\n'.join(lines)


def overview(algorithms):
    """What `python -m common.run` shows: all algorithms, by the first lines of their files, and the tools."""
    lines = ['python -m common.run COMMAND [ARGUMENTS]', '', 'Algorithms (ppo alone means ppo_torch, and so on):']
    for name in algorithms:
        about = ast.get_docstring(ast.parse((ROOT / f'{name}.py').read_text(encoding='utf-8'))) or ''
        lines.append(f'  {name:<14}' + textwrap.shorten(about.split('\n')[0], 84, placeholder=' ...'))
    lines += ['', 'Tools:', *(f'  {name:<14}{text}' for name, text in TOOLS.items()), '', 'Examples:']
    return '\n'.join(lines) + textwrap.indent(textwrap.dedent('''
        python -m common.run ppo --help                                     the flags of an algorithm
        python -m common.run ppo --env CartPole-v1 --exp_name mine          train
        python -m common.run ppo --env CartPole-v1 --clip_ratio 0.1 0.2 --seed 0 1 --jobs 2
        python -m common.run plot data/mine                                 see how it went
        python -m common.run test_policy data/mine/mine_s0                  see what it learned'''), '  ')


# ---- python -m common.run

def parse_and_execute_grid_search(cmd, args):
    """Run the algorithm file that `cmd` names, as if it had been called itself."""
    script = str(ROOT / f'{cmd}.py')
    sys.argv = [script, *args]
    runpy.run_path(script, run_name='__main__')


def main(argv=None):
    cmd, *args = (sys.argv[1:] if argv is None else argv) or ['help']
    algorithms = sorted(path.stem for path in ROOT.glob('*_*.py') if path.stem.endswith(('_torch', '_tf1')))
    with one_line_errors('python -m common.run'):
        if cmd in ('help', '--help', '-h'):
            if proc_id() == 0:
                print(overview(algorithms))
        elif cmd in TOOLS:
            importlib.import_module(f'common.{cmd}').main(args)
        elif cmd in algorithms or f'{cmd}_torch' in algorithms:
            parse_and_execute_grid_search(cmd if cmd in algorithms else f'{cmd}_torch', args)
        else:
            names = [*algorithms, *(name.rpartition('_')[0] for name in algorithms), *TOOLS, 'help']
            raise UserError(f'unknown command {cmd}{nearest(cmd, names) or ", there are " + ", ".join(algorithms)}')


if __name__ == '__main__':
    main()
