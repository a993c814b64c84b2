"""The command line: of every algorithm file, and of all of them together.

    python ppo_torch.py --env CartPole-v1 --gamma 0.95          an algorithm file ends with command_line(ppo)
    python -m common.run ppo_torch --env CartPole-v1 --gamma 0.95         the same; `ppo` alone means ppo_torch
    python -m common.run plot data                              and the tools

Flags are not listed anywhere: they are the arguments of the training function, their types are those of its defaults,
and --help shows the comments behind them in its signature. argparse does the rest.
"""
import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import itertools
import math
import os
import pathlib
import re
import runpy
import shlex
import sys
import textwrap
import time
import traceback
import warnings

from common.env_tools import make_env, make_registered
from common.errors import ArgumentParser, UserError, in_notebook, nearest, one_line_errors, printable, terminal_width
from common.logx import LARGEST, Logger, algo_name, script_of
from common.mpi_tools import num_procs, processes_started
from common.run_utils import (DATESTAMP, ENV_ARGUMENTS, ExperimentGrid, comments, cpu_count, default_arguments,
                              run_here, setup_logger_kwargs)

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = dict(plot='draw learning curves of runs', test_policy='watch a trained policy, and measure it')
SHORT_FLAGS = dict(env='env_name', hid='ac_kwargs:hidden_sizes', act='ac_kwargs:activation', cpu='num_cpu',
                   dt='datestamp')
NO_FLAGS = 'env_fn', 'actor_critic', 'ac_kwargs', 'logger_kwargs'
HELP = dict(hidden_sizes='sizes of the hidden layers', activation='their activation function, by its name')

# Lowest and highest values of numbers, as far as they are obvious. Anything else is left to the algorithm.
BOUNDS = {
    **dict.fromkeys('gamma lam polyak backtrack_coeff pi_lr vf_lr q_lr lr'.split(), (0, 1)),
    **dict.fromkeys('''start_steps update_after num_test_episodes clip_ratio target_kl delta
        damping_coeff act_noise target_noise noise_clip alpha train_v_iters'''.split(), (0, LARGEST)),
    **dict.fromkeys('''steps_per_epoch epochs max_ep_len save_freq train_pi_iters cg_iters backtrack_iters
        replay_size batch_size update_every policy_delay jobs'''.split(), (1, LARGEST)),
    'seed': (0, 2**32 - 1), 'num_cpu': (1, 1024)}
TF_ACTIVATIONS = '''identity elu gelu leaky_relu log_softmax relu relu6 selu sigmoid silu softmax softplus softsign
                    swish tanh'''.split()
MAX_VARIANTS = 100_000                                      # of a grid: more would be a mistake


def run_options(
    exp_name=None,          # name of the experiment and of its folder; the script's own if not given
    data_dir='data',        # folder for all results
    num_cpu=1,              # MPI processes of a run, or 'auto' for one per core
    datestamp=False,        # put date and time into folder names; to resume such a run, give them: 2030-01-31_12-00-00
    resume=False,           # continue a run from its last checkpoint; of a grid, run only what is not finished
    overwrite=False,        # replace the run that is in the folder
    keep_all=False,         # keep every model that is saved, not only the last
    tensorboard=False,      # write TensorBoard event files as well
    quiet=False,            # print one line for each epoch
    jobs=1,                 # runs of a grid to carry out at the same time
    print_commands=False,   # print a shell command for each run, for a job array, and run nothing
):
    """What the command line asks for besides the algorithm's arguments: these options, checked."""
    if resume and overwrite:
        raise UserError('--resume continues a run and --overwrite replaces it: give one of them')
    if resume and datestamp is True:
        raise UserError('--resume needs the date and time in the name of the run: --datestamp 2030-01-31_12-00-00')
    if exp_name and (exp_name in ('.', '..') or re.search(r'[/\\]', exp_name) or not exp_name.isprintable()):
        raise UserError(f'--exp_name {exp_name}: expected a name, not a path (--data_dir is for the path)')
    if exp_name and len(os.fsencode(exp_name)) > 200:
        raise UserError(f'--exp_name {printable(exp_name, 50)}: too long for the name of a folder')
    datestamp = time.strftime(DATESTAMP) if datestamp is True else datestamp
    return dict(locals(), num_cpu=cpu_count(num_cpu))


# ---- Values

def parse_value(text, name, default, words, train_fn):
    """The value that a text stands for: a literal of the same type as the argument's default, the name of an activation
    function, or one of `words`. Nothing is evaluated."""
    if text in words or default is None or isinstance(default, str) and not words:
        return text
    if callable(default):
        return activation(train_fn, text)
    value, expected = literal(text), []
    if isinstance(default, bool):
        expected, truths = ['true or false'], dict(true=True, false=False)
        if name == 'datestamp' and re.fullmatch(r'\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d', text):
            return text
        if text.lower() in truths:
            return truths[text.lower()]
    elif isinstance(default, tuple):
        expected = ['a list of layer sizes such as [64,64]']
        value = (value,) if type(value) is int else value
        if isinstance(value, (list, tuple)) and value and all(type(size) is int and size > 0 for size in value):
            return value
    elif isinstance(default, (int, float)):
        whole, (low, high) = isinstance(default, int), BOUNDS.get(name, (-LARGEST, LARGEST))
        kind, number = f'a {"whole " if whole else ""}number', type(value) in (int, float)
        if number and low <= value <= high and (not whole or value == int(value)):     # 1e6 is a whole number, too
            return int(value) if whole else value
        bounds = f' from {low} to {high}' if high == 1 else f' of at least {low}' if low >= 0 else ''
        expected = [f'{kind} up to {high}' if number and value > high > 1 else kind + bounds]
    raise argparse.ArgumentTypeError(f'{printable(text, 100)} is not ' + ' or '.join([*expected, *map(repr, words)]))


def literal(text):
    """The value of a text that is a Python literal, or None."""
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ast.literal_eval(text)


def parse_dict(text):
    value = literal(text)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise argparse.ArgumentTypeError(f"{printable(text)} is not a dictionary of arguments such as \"{{'gravity': 5}}\"")


def activation(train_fn, name):
    """The activation function of this name, in the framework that the training function's file imports: a function of
    tf.nn, or a class of torch.nn. Case and underscores do not count: leaky_relu is torch.nn.LeakyReLU, too."""
    modules = train_fn.__globals__
    if 'tf' in modules:
        places = modules['tf'], modules['tf'].nn, modules['tf'].compat.v2.nn                # the last one has gelu
        found = [(name, next(getattr(place, name) for place in places if hasattr(place, name)))
                 for name in TF_ACTIVATIONS]
    else:
        found = [(name, kind) for name, kind in inspect.getmembers(modules.get('nn'), inspect.isclass)
                 if name == 'Identity' or kind.__module__ == 'torch.nn.modules.activation'
                 and name not in ('GLU', 'Softmax2d', 'Threshold', 'MultiheadAttention')]      # not elementwise
    known = {word.lower().replace('_', ''): function for word, function in found}
    key = name.split('.')[-1].lower().replace('_', '')
    if key not in known:
        raise UserError(f'{name} is not an activation function{nearest(key, known)}')
    return known[key]


# ---- The parser

class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Every flag with its short form, without placeholders for its values, which its help describes."""
    def _format_action_invocation(self, action):
        return ', '.join(action.option_strings)


class StoreOnce(argparse.Action):
    """Store the flag as it is written, and its value or values. A bare flag means True."""
    def __call__(self, parser, namespace, values, option_string=None):
        if hasattr(namespace, self.dest):
            parser.error(f'{"/".join(self.option_strings)} is given twice: put all its values after one flag')
        setattr(namespace, self.dest, (option_string, [True] if values == [] else values))


class NumberOfLayers(argparse.Action):
    """Spinning Up's flag, which needed --hid to be one number."""
    def __call__(self, parser, namespace, values, option_string=None):
        parser.error('--l is not needed: --hid 64,64 gives the size of each hidden layer')


def example_env(train_fn):
    return 'Pendulum-v1' if 'replay_size' in default_arguments(train_fn) else 'CartPole-v1'


def make_parser(train_fn):
    """The command line of a training function."""
    script, defaults = os.path.basename(script_of(train_fn)), default_arguments(train_fn)
    epilog = EPILOG.format(script=script, env=example_env(train_fn), name=script.removesuffix('.py'))
    width = terminal_width()
    parser = ArgumentParser(prog=script, usage=f'python {script} --env NAME [--FLAG VALUE [VALUE ...]] ...',
                            description=train_fn.__globals__.get('__doc__') or '',
                            formatter_class=functools.partial(HelpFormatter, max_help_position=30, width=width),
                            epilog=epilog, argument_default=argparse.SUPPRESS)
    parser._negative_number_matcher = re.compile(r'-[\d.]')                 # argparse's own takes -1e-3 for a flag
    group = parser.add_argument_group('options of a run')
    group.add_argument('--env', '--env_name', dest='env_name', nargs='+', action=StoreOnce,
                       help='environment, by its name: CartPole-v1; or module:Env-v0, which imports module first')
    group.add_argument('--l', nargs='+', action=NumberOfLayers, help=argparse.SUPPRESS)
    group.add_argument('--env_kwargs', nargs='+', action=StoreOnce, type=parse_dict,
                       help="its constructor's arguments: \"{'gravity': 5}\"")
    group.add_argument('--wrappers', '--wrapper', nargs='+', action=StoreOnce,
                       help="wrappers around it, in order: gymnasium's own, such as NormalizeObservation or "
                            '"RescaleObservation(-1, 1)", or module:Name')
    add_flags(group, run_options, train_fn)
    group = parser.add_argument_group("the algorithm's arguments")
    add_flags(group, train_fn, train_fn)
    if 'actor_critic' in defaults:
        add_flags(group, defaults['actor_critic'], train_fn, prefix='ac_kwargs:')
    return parser


def add_flags(group, function, train_fn, prefix=''):
    """A flag for every argument of a function or class whose default can be written on a command line."""
    texts = dict(HELP, **comments(function))
    for name, default in default_arguments(function).items():
        if name in NO_FLAGS or default is None and function is not run_options:
            continue
        words = re.findall(r"'(\w+)'", texts.get(name, ''))         # in quotes: values besides those of its type
        parse = functools.partial(parse_value, name=name, default=default, words=words, train_fn=train_fn)
        shorts = [f'--{short}' for short, long in SHORT_FLAGS.items() if long == prefix + name]
        shown = '' if default is None or default is False else f' (default: {as_text(default)})'
        many, bare = ('+', '*') if function is not run_options else (None, '?')
        group.add_argument(*shorts, f'--{prefix}{name}', dest=prefix + name, action=StoreOnce, type=parse, const=True,
                           nargs=bare if isinstance(default, bool) else many,
                           help=(texts.get(name, '') + shown).replace('%', '%%'))


def parse_args(argv, train_fn):
    """The grid that a command line describes, and the options of the run."""
    words, shorthands = [], {}
    for word in argv:                                       # --hid[h] is --hid, to be called h in names
        if re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]', word):
            raise UserError(f'{printable(word)}: it has unprintable characters')
        flag = re.fullmatch(r'--([^[=]+)\[(.*?)\](=.*)?', word)
        if flag:
            shorthands[SHORT_FLAGS.get(flag[1], flag[1])] = flag[2]
        words.append(f'--{flag[1]}{flag[3] or ""}' if flag else word)
    given = vars(make_parser(train_fn).parse_args(words))   # in the order in which they were given
    if 'env_name' not in given:
        raise UserError('which environment? For example --env CartPole-v1; --help shows all flags')
    options = run_options(**{name: given.pop(name)[1] for name in default_arguments(run_options) if name in given})

    # The order of parameters in names is Spinning Up's: as written, then those with a shorthand, then the short flags.
    shorts = [f'--{short}' for short in SHORT_FLAGS]
    order = {key: (shorts.index(flag) if flag in shorts else -1, key in shorthands) for key, (flag, _) in given.items()}
    grid = ExperimentGrid(options['exp_name'] or algo_name(train_fn))
    for key in sorted(given, key=order.get):
        values = given[key][1]
        if len(values) > 1 and any(isinstance(value, tuple) and len(value) == 1 for value in values):
            raise UserError(f'--hid {values[0][0]} {values[1][0]} would be several runs: write 64,64 for two layers of '
                            'one network, and [64] [32] for two runs')
        grid.add(key, [values] if key == 'wrappers' else values, shorthands.get(key))       # all wrappers, in each run
    if (variants := math.prod(map(len, grid.vals))) > MAX_VARIANTS:
        raise UserError(f'this grid has {variants} runs, and at most {MAX_VARIANTS} are allowed')
    return grid, options


# ---- Running

def command_line(train_fn, argv=None):
    """The whole command line of an algorithm file: `--help`, one run, or several values for a flag and so a grid."""
    argv, script = sys.argv[1:] if argv is None else argv, script_of(train_fn)
    sys.path.append(os.getcwd())                            # for environments and wrappers in modules of the user's own
    with one_line_errors(os.path.basename(script), '; the same command with --resume goes on from the last checkpoint'):
        grid, options = parse_args(argv, train_fn)
        variants = grid.variants()
        check(train_fn, variants, options)
        file = '__file__' in train_fn.__globals__               # else its cells were run in a notebook
        command = functools.partial(variant_command, grid, script, options) if file else None
        options['quiet'] = options['quiet'] or in_notebook()
        logger_options = {key: options[key] for key in ('resume', 'overwrite', 'keep_all', 'tensorboard', 'quiet')}
        if options['print_commands']:
            if not command:
                raise UserError('--print_commands: no command can run the cells of a notebook; leave it out')
            for variant in variants:
                print(shlex.join(command(grid.variant_name(variant), variant)))
        elif len(variants) > 1 or options['num_cpu'] > 1 and in_notebook():     # whose kernel cannot start again
            grid.run(train_fn, options['num_cpu'], options['data_dir'], options['datestamp'], options['jobs'], command,
                     **logger_options)
        else:
            variant = variants[0]
            place = setup_logger_kwargs(grid.name, variant.get('seed', 0), options['data_dir'], options['datestamp'])
            Logger.restoring = None
            try:
                run_here(train_fn, variant, options['num_cpu'], dict(place, **logger_options))
            except Exception as error:
                if isinstance(error, UserError) or not Logger.restoring:        # a bug keeps its traceback
                    raise
                trace = traceback.extract_tb(error.__traceback__)
                place = [frame for frame in trace if 'site-packages' not in frame.filename][-1]
                raise UserError(f'cannot resume {Logger.restoring}: state.npz there is damaged, or of another kind of '
                                f'run ({type(error).__name__}: {printable(error)}, in line {place.lineno} of '
                                f'{os.path.basename(place.filename)}); restore it from a copy, or start '
                                'over (--overwrite)') from error


def check(train_fn, variants, options):
    """What is bound to fail should fail before anything is created on disk.

    Processes that mpirun started must not each start the same runs. (Its variables tell, without starting MPI.) Then
    each environment is made once; what will be allocated has to fit; and every process needs a share of each epoch and
    batch.
    """
    processes = options['num_cpu']
    if len(variants) == 1 and processes == 1 and not options['print_commands']:
        processes = num_procs()
    elif processes_started() > 1 and not os.getenv('STARTED_BY_MPI_FORK'):
        raise UserError('a grid, and --cpu, start processes of their own: leave out mpirun, and give --cpu')
    defaults = default_arguments(train_fn)
    envs = [{key: variant[key] for key in ENV_ARGUMENTS if key in variant} for variant in variants]
    spaces = {}
    for key, env in {repr(env): env for env in envs}.items():
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')                 # training will warn
            made = make_registered(**env)
            try:
                checked = make_env(lambda made=made: made, off_policy='replay_size' in defaults)
            except UserError as error:
                raise UserError(f'environment {env["env_name"]}: {error}') from None
            spaces[key] = checked.observation_space, checked.action_space
            checked.close()
    for variant, env in zip(variants, envs):
        check_memory(dict(defaults, **variant), *spaces[repr(env)], processes)
    for variant, key in itertools.product(variants, ('steps_per_epoch', 'batch_size')):
        total = dict(defaults, **variant).get(key, processes)
        if total < processes:
            raise UserError(f'--{key} {total} is too few for {processes} processes: they share it')


def check_memory(arguments, obs_space, act_space, processes):
    """Refuse buffers, batches and networks whose least size exceeds the memory of this machine."""
    local = int(os.getenv('MPI_LOCALNRANKS') or os.getenv('OMPI_COMM_WORLD_LOCAL_SIZE') or processes)
    obs, act = obs_space.dtype.itemsize * math.prod(obs_space.shape), 4 * math.prod(act_space.shape)
    floats = 4 * math.prod(obs_space.shape)                                 # in a batch, images are numbers, too
    stored = dict(replay_size=2 * obs + act + 8, batch_size=2 * floats + act + 8,           # with next_obs
                  steps_per_epoch=obs + act + 8 + (floats if obs < floats else 0))          # buffer, and batch
    sizes = arguments.get('ac_kwargs', {}).get('hidden_sizes', ())
    needs = {'--hid ' + as_text(sizes): 4 * network_bytes((obs_space, *sizes)) * local}     # gradients, and Adam's two
    for key in ('replay_size', 'batch_size') if 'replay_size' in arguments else ('steps_per_epoch',):
        needs[f'--{key} {arguments.get(key, 0)}'] = arguments.get(key, 0) * stored[key] * local / processes
    total = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') if hasattr(os, 'sysconf') else math.inf
    for flag, size in needs.items():
        if size > total:
            raise UserError(f'{printable(flag, 100)} needs {size / 2**30:.3g} GB of memory, and this machine has '
                            f'{total / 2**30:.3g}: try a smaller {flag.split()[0]}')


def network_bytes(sizes):
    """The least that a network with layers of these sizes takes, weights and biases; the first size may be an
    observation space."""
    sizes = [math.prod(getattr(size, 'shape', (size,))) for size in sizes]
    return 4 * sum((a + 1) * b for a, b in zip(sizes, sizes[1:]))


def variant_command(grid, script, options, name, variant):
    """The command line that runs one variant of a grid by itself, into the same folder."""
    words = [sys.executable, min(script, os.path.relpath(script), key=len)]
    for key in grid.keys:
        flag = next((short for short, long in SHORT_FLAGS.items() if long == key), key)
        value = grid.value(variant, key)
        words += [f'--{flag}', *(value if key == 'wrappers' else [as_text(value)])]
    for key, value in dict(options, exp_name=name).items():
        if key not in ('jobs', 'print_commands') and value != default_arguments(run_options)[key]:
            words += [f'--{key}'] if value is True else [f'--{key}', str(value)]
    return words


def as_text(value):
    """A value as it is written after a flag."""
    if isinstance(value, (list, tuple)):
        return '[' + ','.join(str(v) for v in value) + ']'
    return str(getattr(value, '__name__', value))


# ---- Help

EPILOG = """\
A flag that is true or false needs no value. Several values for a flag make a grid of runs, whose folders are named
after what varies; '--flag[short]' sets its name there. docs/reference.md explains the columns of the results.

examples:
  python {script} --env {env} --hid 32,32 --act relu --gamma 0.95 --exp_name mine
  python {script} --env {env} --exp_name mine --resume
  python {script} --env {env} '--hid[h]' '[32]' '[64,64]' --seed 0 1 2 --jobs 2
  python -m common.run plot data
  python -m common.run test_policy data/{name}/{name}_s0"""


def overview(algorithms):
    """What `python -m common.run` shows: all algorithms, by the first lines of their files, and the tools."""
    lines = ['python -m common.run COMMAND [ARGUMENTS]', '', 'Algorithms (ppo alone means ppo_torch, and so on):']
    for name in algorithms:
        about = ast.get_docstring(ast.parse((ROOT / f'{name}.py').read_text(encoding='utf-8'))) or ''
        about = textwrap.shorten(about.split('\n')[0], terminal_width() - 16, placeholder=' ...')
        lines.append(f'  {name:<14}{about}')
    lines += ['', 'Tools:', *(f'  {name:<14}{text}' for name, text in TOOLS.items()), '', 'COMMAND --help shows more.']
    return '\n'.join(lines)


# ---- python -m common.run

def parse_and_execute_grid_search(cmd, args):
    """Run the algorithm file that `cmd` names as if it had been called directly."""
    script = str(ROOT / f'{cmd}.py')
    sys.argv = [script, *args]
    runpy.run_path(script, run_name='__main__')


def main(argv=None):
    cmd, *args = (sys.argv[1:] if argv is None else argv) or ['help']
    algorithms = sorted(path.stem for path in ROOT.glob('*_*.py') if path.stem.endswith(('_torch', '_tf1')))
    with one_line_errors('python -m common.run'):
        if cmd in ('help', '--help', '-h'):
            print(overview(algorithms))
        elif cmd in TOOLS:
            importlib.import_module(f'tools.{cmd}').main(args)
        elif cmd in algorithms or f'{cmd}_torch' in algorithms:
            parse_and_execute_grid_search(cmd if cmd in algorithms else f'{cmd}_torch', args)
        else:
            names = [*algorithms, *(name.rpartition('_')[0] for name in algorithms), *TOOLS, 'help']
            raise UserError(f'unknown command {cmd}{nearest(cmd, names) or ", there are " + ", ".join(algorithms)}')


if __name__ == '__main__':
    main()
