"""An algorithm file made to stand alone, to be copied into a project of your own.

    python -m tools.eject ppo_torch -o my_ppo.py                one file that needs only PyTorch, numpy and gymnasium
    python -m tools.eject ppo_torch -o my_ppo.py --mpi          one file that runs under mpirun, too
    python -m tools.eject ppo_torch -o my_ppo.py --with-common  the file as it is, and beside it what it uses of common/

The one file makes the same run: the same progress.txt, except for Time. Its sections are the original's; what they use
of common/ is between Training and Command line, copied from the source, without what a single process does not need.
Checkpoints are left out, and with them the lines about resuming in Training; the environment, the logger and the
command line are reduced forms, found at the end of this file.
"""
import argparse
import ast
import builtins
import functools
import inspect
import json
import operator
import re
import subprocess
import symtable
import sys
import tempfile
import textwrap
import time
import traceback
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FlattenObservation, RescaleAction, TransformAction

from common.env_tools import fit_action
from common.errors import ArgumentParser, UserError, one_line_errors
from common.mpi_tools import mpi_statistics_scalar, mpi_sum, num_procs, proc_id
from tools import sections
from tools.compare import find_file
from tools.sections import ROOT

WIDTH = 120

# What is always so with one process, the functions that then do nothing, and a with-statement that can be done without.
ONE_PROCESS = {'_world()': None, 'proc_id()': 0, 'num_procs()': 1}
NO_MESSAGES = {'sync_params', 'sync_all_params', 'broadcast'}
UNWRAPPED = 'quiet'
WHOLE = 'MpiAdamOptimizer',         # of others, the first paragraph of the docstring is enough

# The sections that are put in, and what of common/ goes into them, in order.
PUT_IN = {'Processes': ('mpi_tools', 'mpi_pytorch', 'mpi_tf'), 'Environment': ('env_tools',),
          'Logger': ('logx',), 'Command line': ('run', 'run_utils')}
COMPARISONS = {ast.Eq: operator.eq, ast.Gt: operator.gt}


# ---- Text changed by its syntax tree, so that comments and layout stay

def source(text, node):
    """The text of a node."""
    return ast.get_source_segment(text, node)


def replaced(text, node, new):
    """The text with that of a node replaced."""
    lines = text.encode().split(b'\n')                          # the columns of a syntax tree count bytes
    first, last = node.lineno - 1, node.end_lineno - 1
    lines[first:last + 1] = [lines[first][:node.col_offset] + new.encode() + lines[last][node.end_col_offset:]]
    return b'\n'.join(lines).decode()


def without(text, statement):
    """The text without a statement, the comments right above it, and one of two blank lines around it."""
    lines, end = text.split('\n'), statement.end_lineno
    start = min(node.lineno for node in [statement, *getattr(statement, 'decorator_list', [])]) - 1
    while start and lines[start - 1].strip().startswith('#'):
        start -= 1
    if start and not lines[start - 1].strip() and not ''.join(lines[end:end + 1]).strip():
        start -= 1
    return '\n'.join(lines[:start] + lines[end:])


def unwrapped(text, statement, body):
    """The text with a statement's body in place of the statement."""
    lines, shift = text.split('\n'), body[0].col_offset - statement.col_offset
    kept = [line if line[:shift].strip() else line[shift:] for line in lines[body[0].lineno - 1:body[-1].end_lineno]]
    return '\n'.join(lines[:statement.lineno - 1] + kept + lines[statement.end_lineno:])


def nodes(text, *kinds):
    """All nodes of some kinds."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def called(node):
    """The name of the function that an expression calls, or None."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


def called_of(owner, node):
    """save_state, for the expression logger.save_state(...) if owner is 'logger'; else None."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.attr if is_method and ast.unparse(node.func.value) == owner else None


def global_names(text):
    """The names that a text uses, but for a function's own: modules, functions, builtins."""
    def visit(table):
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table.get_type() == 'module' or symbol.is_global()):
                yield symbol.get_name()
        for child in table.get_children():
            yield from visit(child)
    return set(visit(symtable.symtable(text, 'text', 'exec')))


# ---- Branches that are never taken

def known(node, facts):
    """[value] of an expression whose value follows from the facts {expression: value}, [] of others."""
    if ast.unparse(node) in facts:
        return [facts[ast.unparse(node)]]
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        x, y = known(node.left, facts), known(node.comparators[0], facts)
        return [COMPARISONS[type(node.ops[0])](x[0], y[0])] if x and y else []
    return []


def pruned(text, facts):
    """A definition without the branches that are never taken."""
    while (shorter := one_branch_less(text, facts)) is not None:
        text = shorter
    return text


def one_branch_less(text, facts):
    """The text with one thing less that is not needed, or None if there is no such thing."""
    tree = ast.parse(text)
    in_strings = [part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)]
    for node in ast.walk(tree):
        if node in in_strings:                                  # where a syntax tree does not know its columns
            continue
        if isinstance(node, ast.If | ast.IfExp) and (value := known(node.test, facts)):
            kept = node.body if value[0] else node.orelse
            if isinstance(node, ast.IfExp):
                return replaced(text, node, source(text, kept))
            return unwrapped(text, node, kept) if kept else without(text, node)
        if isinstance(node, ast.With) and called(node.items[0].context_expr) == UNWRAPPED:
            return unwrapped(text, node, node.body)
        if 'num_procs()' in facts and isinstance(node, ast.Expr) and \
                NO_MESSAGES & {called(part) for part in ast.walk(node)}:
            return without(text, node)
    for function in nodes(text, ast.FunctionDef):
        for statement, following in zip(function.body, function.body[1:]):
            if isinstance(statement, ast.Return):
                return without(text, following)
    return None


# ---- Definitions, made short

def brief(text):
    """A definition with the first paragraph of each docstring, and no blank line between a class's and its methods."""
    for node in reversed(nodes(text, ast.FunctionDef, ast.ClassDef)):
        if ast.get_docstring(node) and node.name not in WHOLE:
            words = source(text, node.body[0])
            text = replaced(text, node.body[0], words if '\n\n' not in words else words.split('\n\n')[0] + '"""')
    return re.sub(r'^(class .*\n    """(?:(?!""").)*?""")\n\n', r'\1\n', text, flags=re.MULTILINE | re.DOTALL)


def one_line(text):
    """(line, comment) of a function of one expression, as `name = lambda ...: expression`, if that fits; else None."""
    function = ast.parse(text).body[0]
    if not isinstance(function, ast.FunctionDef):
        line, _, comment = text.partition('  # ')
        return None if '\n' in text else (line.rstrip(), comment)
    words = ast.get_docstring(function) or ''
    body = function.body[1 if words else 0:]
    if function.decorator_list or len(body) > 1 or body and not isinstance(body[0], ast.Return) or \
            body and isinstance(body[0].value, ast.Tuple):      # lambda: x, y would be a tuple itself
        return None
    arguments = ast.unparse(function.args)
    line = (f'{function.name} = lambda{" " * bool(arguments)}{arguments}: '
            f'{source(text, body[0].value) if body else None}')
    return None if '\n' in line or len(line) > WIDTH else (line, re.split('[:;.]', words)[0])


def one_liners(lines):
    """Lines, with their comments in a column: as much of these, up to a comma, as there is room for."""
    column, found = max((len(line) for line, comment in lines if comment and len(line) < WIDTH / 2), default=0), []
    for line, comment in lines:
        forms = [f'{line:<{column}}  # {text}' for text in (comment, comment.split(',')[0]) if text]
        found.append(next((form for form in forms if len(form) <= WIDTH), line))
    return '\n'.join(found)


# ---- What a file uses of common/

class Module:
    """The source of a module: its definitions and imports, and what it does besides when it is imported."""
    def __init__(self, path):
        self.name, self.lines = Path(path).stem, Path(path).read_text(encoding='utf-8').split('\n')
        self.definitions, self.imports, self.actions = {}, {}, []
        for node in ast.parse('\n'.join(self.lines)).body:
            inner = {name: node for part in ast.walk(node) for name in imported(part)}
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.update(imported(node))
            elif isinstance(node, ast.Assign):
                stored = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
                self.definitions.update(dict.fromkeys(stored, node))
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                self.actions.append(node)
                self.definitions.update(inner)                  # of `with quiet(): import tensorflow`

    def actions_text(self):
        """All that it does, from the first to the last."""
        return '\n'.join(self.lines[self.actions[0].lineno - 1:self.actions[-1].end_lineno])

    def text(self, node):
        """A top-level statement, with its decorators and its comments."""
        first = min(part.lineno for part in [node, *getattr(node, 'decorator_list', [])])
        return '\n'.join(self.lines[first - 1:node.end_lineno])


def imported(node):
    """{name: (module, its name there or None, the name it is given or None)} of an import statement, {} of others."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: (node.module, alias.name, alias.asname) for alias in node.names}
    return {alias.asname or alias.name.split('.')[0]: (alias.name, None, alias.asname) for alias in node.names} \
        if isinstance(node, ast.Import) else {}


def of_common(name):
    """The name of a module in common/, given as common.logx; None for others."""
    return name.removeprefix('common.') if name.startswith('common.') else None


class Collector:
    """Collects definitions and imports, name by name, and whatever they use in turn."""
    def __init__(self, original, mpi):
        self.original, self.mpi, self.framework = original, mpi, 'tf1' if 'tf' in original.imports else 'torch'
        self.here, self.modules = Module(__file__), {}
        self.texts, self.imports, self.actions = {}, {}, {}     # texts: {(module, name): text}

    def module(self, name):
        if name not in self.modules:
            self.modules[name] = Module(ROOT / 'common' / f'{name}.py')
        return self.modules[name]

    def need_all(self, text, module):
        """Collect what a text of a module uses."""
        for name in sorted(global_names(text)):
            self.need(name, module)

    def need(self, name, module):
        """Collect what a name means in a module."""
        while name in module.imports and of_common(module.imports[name][0]):
            place, name, _ = module.imports[name]
            module = self.module(of_common(place))
        place, form = module.name, REDUCED.get(name)
        if form and not (self.mpi and form.get('one_process')):
            place, module = form['module'], self.here
            text = form.get('text') or form.get(self.framework) or module.text(module.definitions[name])
        elif name in module.imports:
            self.imports[name] = module.imports[name]
            return
        elif name not in module.definitions or module is self.original:
            return
        elif module.definitions[name] in module.actions:
            place, name, text = None, module.name, module.actions_text()
        else:
            text = module.text(module.definitions[name])
        collected = self.actions if place is None else self.texts
        key = name if place is None else (place, name)
        if key not in collected:
            collected[key] = None                               # it may use itself
            text = brief(pruned(text.strip('\n'), {} if self.mpi else ONE_PROCESS))
            collected[key] = text = text.replace('ACTIVATIONS', ACTIVATIONS[self.framework])
            self.need_all(text, module)

    def section(self, section):
        """The text of a section that is put in: what is one line first, then the others, in the order of common/."""
        found = []
        for place in PUT_IN[section]:
            order = list(self.module(place).definitions)
            names = [name for where, name in self.texts if where == place]
            names.sort(key=lambda name: order.index(name) if name in order else len(order))
            found += [self.texts[place, name] for name in names]
        found = list(dict.fromkeys(found))                      # x, y = 1, 2 is one text of two names
        lines, rest = list(filter(None, map(one_line, found))), [text for text in found if not one_line(text)]
        return '\n\n\n'.join([one_liners(lines), *rest] if lines else rest)


# ---- The one file

def not_resuming(text):
    """The Training section without what resuming needs, which would take more of common/ than all the rest; and
    without what puts the arguments into its docstring, since --help shows them."""
    text = text.replace('\n@explain_arguments\n', '\n')
    saved = {ast.unparse(node.targets[0]) for node in nodes(text, ast.Assign)
             if called_of('logger', node.value) == 'load_state'}
    for node in sorted(nodes(text, ast.Assign, ast.If, ast.Expr), key=lambda node: -node.lineno):
        if isinstance(node, ast.If) and ast.unparse(node.test) in saved or \
                isinstance(node, ast.Assign) and called_of('logger', node.value) == 'load_state':
            text = without(text, node)
        elif isinstance(node, ast.Expr) and called_of('logger', node.value) == 'save_state':
            text = replaced(text, node, 'logger.save_model()')
    return text.replace(' or logger.interrupted()', '').replace(' and checkpoint', '')      # in what save_freq means


def introduced(text, name, target, mpi):
    """The docstring with where the file comes from, in place of its neighbours, which are not there."""
    git = subprocess.run(['git', 'describe', '--always', '--dirty'], cwd=ROOT, capture_output=True, text=True) \
        if (ROOT / '.git').exists() else None
    version = f' (version {git.stdout.strip()})' if git and git.returncode == 0 else ''
    terms = (ROOT / 'LICENSE').read_text().split('\n')
    origin = textwrap.fill(
        f'Where it comes from: python -m tools.eject {name}{" --mpi" * mpi} made it of {name}.py{version} and what '
        f'that uses of common/. It makes the same run{"" if mpi else " of one process"}, and does not resume. '
        f'{terms[0]}, {terms[2]}.', WIDTH)
    parts = [part for part in text.split('\n\n') if not part.startswith('Its neighbours')]
    text = '\n\n'.join([*parts[:-1], origin, parts[-1]]).replace(f'python {name}.py', f'python {Path(target).name}')
    return text if mpi else re.sub(r'mpirun -np \d+ ', '', text)


def import_lines(imports):
    """Import statements: the standard library, then packages; in each, `import` before `from`, by name."""
    names = {}
    for module, name, asname in imports:
        alias = f' as {asname}' if asname else ''
        names.setdefault((name is not None, module), set()).add(f'{name or module}{alias}')
    groups = [], []
    for (is_from, module), given in sorted(names.items(), key=lambda item: (item[0][0], item[0][1].lower())):
        line = f'from {module} import {", ".join(sorted(given))}' if is_from else f'import {", ".join(given)}'
        if len(line) > WIDTH:
            head, tail = line.split('import ')
            line = textwrap.fill(f'{head}import ({tail})', WIDTH, subsequent_indent=' ' * len(f'{head}import ('))
        groups[module.split('.')[0] not in sys.stdlib_module_names].append(line)
    return '\n\n'.join('\n'.join(group) for group in groups if group)


def eject(path, target='my_copy.py', mpi=False):
    """The text of the one file."""
    try:
        parts, original = {name: part.rstrip('\n') for name, part in sections.split(path).items()}, Module(path)
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f'{path}: {error}') from None
    if not {'Imports', 'Training', 'Command line'} <= set(parts):
        raise UserError(f'{path} has no sections Imports, Training and Command line: it is not an algorithm file')
    head, command = introduced(parts.pop('Docstring'), path.stem, target, mpi), parts.pop('Command line')
    del parts['Imports']
    parts['Training'] = not_resuming(parts['Training'])
    found = Collector(original, mpi)
    found.need_all('\n'.join([*parts.values(), command]), original)
    imports = '\n\n'.join([import_lines({*found.imports.values()}), *found.actions.values()])
    put_in = {name: found.section(name) for name in PUT_IN}
    put_in['Command line'] += '\n\n\n' + command.split('\n', 1)[1].strip('\n')
    texts = [f'# %% {name}\n{text.strip()}' for name, text in put_in.items() if text]
    text = f'{head}\n' + '\n\n\n'.join([f'# %% Imports\n{imports}', *parts.values(), *texts]) + '\n'
    check(text, path)
    return text


def check(text, path):
    """All that the text uses is in it; if not, common/ has something that this tool cannot follow."""
    table = symtable.symtable(text, 'text', 'exec')
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    lost = global_names(text) - names - set(dir(builtins)) - {'__file__'}
    logger = next((node for node in nodes(text, ast.ClassDef) if node.name == 'EpochLogger'), None)
    if logger:
        has = {node.name for node in ast.walk(logger) if isinstance(node, ast.FunctionDef)} | {'save_model'}
        lost |= {f'logger.{name}' for node in nodes(text, ast.Call) if (name := called_of('logger', node))
                 and name not in has}
    if lost:
        raise UserError(f'{path.name} uses {", ".join(sorted(lost))}, which tools/eject.py does not know; '
                        'try --with-common')


# ---- The file with common/

def modules_used(path, found=()):
    """The files of common/ that a file imports, and that these import."""
    found = dict(found) or {ROOT / 'common' / '__init__.py': None}
    for node in ast.walk(ast.parse(Path(path).read_text(encoding='utf-8'))):
        for module, name, _ in imported(node).values():
            for dotted in (module, f'{module}.{name}'):         # from common.logx import x, and from common import logx
                file = ROOT / 'common' / f'{of_common(dotted)}.py'
                if of_common(dotted) and file.exists() and file not in found:
                    found = modules_used(file, {**found, file: None})
    return found


# ---- The command

def write(files, overwrite):
    """Write {path: content}: all or none, and never over an existing file, unless told to."""
    for path, content in files.items():
        if path.exists() and not overwrite and not (path.is_file() and path.read_bytes() == content):
            raise UserError(f'{path} already exists: choose another name, or --overwrite it')
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise UserError(f'{error.filename}: {error.strerror}') from None


def main(argv=None):
    """The command line."""
    parser = ArgumentParser(prog='python -m tools.eject', description=__doc__)
    parser.add_argument('file', metavar='FILE', help='an algorithm file, such as ppo_torch; ppo alone means that one')
    parser.add_argument('-o', '--out', metavar='FILE', required=True, help='file to be written, such as my_ppo.py')
    parser.add_argument('--mpi', action='store_true', help='let it run under mpirun, which needs mpi4py')
    parser.add_argument('--with-common', action='store_true', help='copy the file as it is, and the parts of common/ '
                        'that it imports into a folder common beside it')
    parser.add_argument('--overwrite', action='store_true', help='replace files that are there')
    with one_line_errors('eject'):
        args = parser.parse_args(argv)
        path, out = find_file(args.file), Path(args.out)
        if out.suffix != '.py':
            raise UserError(f'-o {out}: the name of the file must end in .py')
        if out.resolve() == path.resolve() or out.resolve().parent == ROOT and out.stem in sections.algorithm_files():
            raise UserError(f'-o {out}: that would replace an original')
        if args.with_common and args.mpi:
            raise UserError('--with-common copies MPI, too: leave out --mpi')
        files = {out: eject(path, out, args.mpi).encode()} if not args.with_common else {
            out: path.read_bytes(),
            **{out.parent / 'common' / file.name: file.read_bytes() for file in modules_used(path)}}
        write(files, args.overwrite)
        for file, content in files.items():
            print(f'{file}: {content.count(bytes([10]))} lines')


# ---- The reduced forms, which take the place of what has the same name in common/

ACTIVATIONS = dict(torch='nn', tf1='tf.nn')
REDUCED = dict(
    UserError=dict(module='mpi_tools', text='UserError = ValueError  # The original shows it in one line'),
    **{name: dict(module='env_tools') for name in ('make_env', 'make_env_and_test_env', 'TrainingEnv')},
    EpochLogger=dict(module='logx'),
    _world=dict(module='mpi_tools'),
    command_line=dict(module='run_utils'),
    parse_value=dict(module='run_utils'),
    setup_saver=dict(module='logx', torch='''
def setup_saver(agent, logger):
    """Tell the logger what to save as the model: the weights of the networks."""
    def save_model():
        if proc_id() == 0:
            torch.save(agent.ac.state_dict(), logger.output_dir / 'model.pt')
    logger.save_model = save_model
''', tf1='''
def setup_saver(agent, logger):
    """Tell the logger what to save as the model: all variables, as agent.set_state takes them."""
    def save_model():
        if proc_id() == 0:
            np.savez(logger.output_dir / 'model.npz', **agent.get_state())
    logger.save_model = save_model
'''),
    mpi_sum=dict(module='mpi_tools', one_process=True, text='''
def mpi_sum(x):
    """The sum of `x` over all processes, in float64."""
    return np.asarray(x, dtype=np.float64)
'''),
    mpi_statistics_scalar=dict(module='mpi_tools', one_process=True, text='''
def mpi_statistics_scalar(x, with_min_and_max=False):
    """Mean and standard deviation (and min, max) of an array."""
    return (x.mean(), x.std(), x.min(), x.max())[:4 if with_min_and_max else 2]
'''))


@functools.cache
def _world():
    """The communicator of all processes, or None where there is no MPI. If one process fails, all of them end."""
    def abort(*error):
        traceback.print_exception(*error)
        sys.stderr.flush()
        time.sleep(0.5)                                         # mpirun drops what it has not passed on by then
        MPI.COMM_WORLD.Abort(1)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):                         # not installed, or it finds no MPI library
        return None
    if MPI.COMM_WORLD.Get_size() > 1:
        sys.excepthook = abort
    return MPI.COMM_WORLD


def make_env(env_fn, off_policy=False):
    """Make an environment that the algorithm can use. Off-policy, its actions are in [-1, 1]; on-policy, the
    environment gets them clipped to its bounds."""
    env = env_fn()
    obs_space, act_space = env.observation_space, env.action_space
    if not isinstance(act_space, Box if off_policy else (Box, Discrete)):
        raise ValueError(f'actions must be Box{"" if off_policy else " or Discrete"}, not {act_space}')
    if off_policy and not (act_space.is_bounded('both') and (act_space.low < act_space.high).all()):
        raise ValueError('actions must have bounds, since [-1, 1] is rescaled to the bounds')
    if not isinstance(obs_space, Box) or obs_space.shape == ():
        env = FlattenObservation(env)                           # one-hot, where observations are choices
    if isinstance(act_space, Box):
        bounds = Box(act_space.low.astype(np.float32), act_space.high.astype(np.float32), act_space.shape)
        env = TransformAction(env, lambda act: fit_action(act, act_space), bounds)
        env = RescaleAction(env, np.float32(-1), np.float32(1)) if off_policy else env
    return TrainingEnv(env)


def make_env_and_test_env(env_fn):
    """Two environments for an off-policy algorithm. Wrappers that normalize have statistics of their own in each."""
    return make_env(env_fn, off_policy=True), make_env(env_fn, off_policy=True)


class TrainingEnv(gym.Wrapper):
    """An environment as the training loop uses it: flat actions, and observations that are float32 and copies."""
    def __init__(self, env):
        super().__init__(env)
        self.space = env.action_space
        self.observation_space = Box(-np.inf, np.inf, env.observation_space.shape)              # float32
        if isinstance(self.space, Box):
            self.action_space = Box(self.space.low.ravel(), self.space.high.ravel())

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return np.array(obs, dtype=np.float32), info

    def step(self, action):
        action = action.reshape(self.space.shape) if isinstance(self.space, Box) else int(action + self.space.start)
        obs, rew, terminated, truncated, info = self.env.step(action)
        return np.array(obs, dtype=np.float32), float(rew), terminated, truncated, info


class EpochLogger:
    """A run's folder: progress.txt, a table with one row per epoch; config.json, every argument; and the model."""
    def __init__(self, output_dir=None, **config):
        self.output_dir, self.config = Path(output_dir or tempfile.mkdtemp(prefix='experiment_')), config
        self.row, self.epoch_dict, self.start_time = {}, {}, time.time()
        if proc_id() == 0:
            self.output_dir.mkdir(parents=True, exist_ok=output_dir is None)    # never into the folder of another run
            print(f'Logging to {self.output_dir}')

    def save_config(self, config, train_fn, env):
        """Write the arguments of the run; functions become their names."""
        if proc_id() == 0:
            config = {**config, 'algo': train_fn.__name__, 'env': str(env), **self.config, 'num_procs': num_procs()}
            text = json.dumps(config, indent=4, sort_keys=True, default=lambda obj: getattr(obj, '__name__', str(obj)))
            (self.output_dir / 'config.json').write_text(text)

    def progress(self, local_steps, epoch, epochs):
        """The steps of an epoch."""
        return range(local_steps)

    def store(self, **kwargs):
        """Collect values, each a number or an array."""
        for key, val in kwargs.items():
            self.epoch_dict.setdefault(key, []).append(val)

    def log_tabular(self, key, val=None, with_min_and_max=False, average_only=False):
        """Log `val`; or, without one, the statistics of what is stored as `key`, None where nothing is."""
        if val is not None:
            self.row[key] = val
            return
        values = np.concatenate([np.ravel(val) for val in self.epoch_dict.pop(key, [])] or [[]], dtype=np.float64)
        stored = mpi_sum(values.size) > 0
        mean, std, low, high = mpi_statistics_scalar(values, with_min_and_max=True) if stored else [None] * 4
        self.row[key if average_only else f'Average{key}'] = mean
        if not average_only:
            self.row[f'Std{key}'] = std
        if with_min_and_max:
            self.row[f'Max{key}'], self.row[f'Min{key}'] = high, low

    def dump_tabular(self):
        """End the row: print it, and append it to the table."""
        if proc_id() == 0:
            cells = ['' if val is None else str(val) for val in self.row.values()]
            print(*(f'{key:>20}  {cell}' for key, cell in zip(self.row, cells)), '', sep='\n', flush=True)
            with open(self.output_dir / 'progress.txt', 'a', newline='\n') as file:
                file.writelines('\t'.join(line) + '\n' for line in ([cells] if file.tell() else [self.row, cells]))
        self.row = {}


def parse_value(text, default, words):
    """What a text means for an argument: one of `words`, a function by its name, or a literal of the default's type."""
    try:
        if text in words or isinstance(default, str):
            return text
        if callable(default):
            return {name.lower(): value for name, value in inspect.getmembers(ACTIVATIONS, callable)}[text.lower()]
        value = ast.literal_eval(text)                          # 1e6 is a whole number, 2.5 is not
        return type(default)(value) if not isinstance(default, int) or value == int(value) else int(text)
    except (KeyError, SyntaxError, TypeError, ValueError):
        raise argparse.ArgumentTypeError(f'{text} is no value like {getattr(default, "__name__", default)}') from None


def command_line(train_fn):
    """A flag for every argument of the training function and of its networks; its help is the comment behind it."""
    texts = dict(re.findall(r'^ *(\w+)=.*?, *# (.*)$', inspect.getsource(train_fn), flags=re.MULTILINE),
                 hidden_sizes='sizes of the hidden layers', activation='their activation function, by its name')
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--env', required=True, help='environment, by its name: CartPole-v1')
    parser.add_argument('--exp_name', default=Path(__file__).stem, help='name of the experiment and of its folder')
    parser.add_argument('--data_dir', default='data', help='folder for all results')
    defaults = lambda function: {p.name: p.default for p in inspect.signature(function).parameters.values()
                                 if p.default is not p.empty}
    networks = defaults(defaults(train_fn)['actor_critic'])
    for name, default in {**defaults(train_fn), **networks}.items():
        if name not in ('actor_critic', 'ac_kwargs', 'logger_kwargs'):
            words, short = re.findall(r"'(\w+)'", texts[name]), dict(hidden_sizes='--hid', activation='--act').get(name)
            parser.add_argument(*[short] * bool(short), f'--{name}', dest=name, default=default,
                                type=lambda text, default=default, words=words: parse_value(text, default, words),
                                help=f'{texts[name]} (default: {getattr(default, "__name__", default)})')
    args = vars(parser.parse_args())
    env, exp_name, data_dir = args.pop('env'), args.pop('exp_name'), args.pop('data_dir')
    ac_kwargs = {name: args.pop(name) for name in networks}
    train_fn(lambda: gym.make(env), ac_kwargs=ac_kwargs, **args, logger_kwargs=dict(
        output_dir=Path(data_dir, exp_name, f'{exp_name}_s{args["seed"]}'), exp_name=exp_name, env_name=env))


if __name__ == '__main__':
    main()
