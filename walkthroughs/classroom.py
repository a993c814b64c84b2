"""What the walkthroughs import: training with one line of progress, plots, checks that answer in words, bugs to hunt.

It works the same for both frameworks: the losses of the algorithm files are pure functions of tensors, and `call` and
`gradient` give them arrays. Two environment variables set the mode: WALKTHROUGH_FAST=1 trains for fewer steps, and
WALKTHROUGH_TEST=1 turns every claim that a page makes about its data into an assertion.
"""
import ast
import contextlib
import dataclasses
import difflib
import functools
import html
import importlib
import importlib.util
import io
import os
import re
import sys
import tempfile
import textwrap
import time
import types
import warnings

MISSING = [name for name in ('numpy', 'matplotlib', 'gymnasium') if importlib.util.find_spec(name) is None]
if MISSING:
    raise ImportError(f'{", ".join(MISSING)} missing: pip install -r requirements.txt, in the folder of the repository')

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyBboxPatch

from common.env_tools import make_env
from common.logx import read_progress
from common.run_utils import default_arguments
from tools.sections import ROOT, named, neutral, sections_of, split

PACKAGES = dict(torch='torch', tf1='tensorflow')
COLORS = dict(data='#e3eefa', net='#e5f3e3', loss='#fdeeda', env='#efe8f6')          # of boxes in a diagram
FAST = os.environ.get('WALKTHROUGH_FAST', '') not in ('', '0')
TEST = os.environ.get('WALKTHROUGH_TEST', '') not in ('', '0')
NOT_SOLVED = 'not solved yet'
lesson = types.SimpleNamespace(algorithm=None, framework=None, quiet=False)          # what begin was told
folders = tempfile.TemporaryDirectory(prefix='walkthrough_', ignore_cleanup_errors=True)    # gone with the kernel


# ---- The notebook

def begin(algorithm, framework):
    """What the first cell calls: the page's algorithm (None: none of the six) and its framework, 'torch' or 'tf1'."""
    lesson.algorithm, lesson.framework = algorithm, framework
    if importlib.util.find_spec(PACKAGES[framework]) is None:
        raise ImportError(f'{PACKAGES[framework]} is missing: pip install -r requirements.txt, in {ROOT}')
    plt.rcParams.update({'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'grid.alpha': 0.3,
                         'axes.titlesize': 11, 'figure.constrained_layout.use': True, 'legend.frameon': False})
    warnings.filterwarnings('ignore', category=UserWarning, module='gymnasium')
    shell = kernel()
    if shell and not any(isinstance(known, HideConstants) for known in shell.ast_transformers):
        shell.ast_transformers.append(HideConstants())
    what = f'{algorithm}_{framework}.py in {ROOT}' if algorithm else f'the repository in {ROOT}'
    print(f'Found {what}.' + (' Fast mode: too few steps to learn much.' if FAST else ''))


def kernel():
    """IPython's shell, or None outside of it."""
    return sys.modules['IPython'].get_ipython() if 'IPython' in sys.modules else None


class HideConstants(ast.NodeTransformer):
    """A string or ... that ends a cell is not its output: a docstring, or an exercise that is not solved yet."""
    def visit_Module(self, node):
        last = node.body[-1] if node.body else None
        if isinstance(last, ast.Expr) and isinstance(last.value, ast.Constant) and isinstance(
                last.value.value, (str, types.EllipsisType)):
            node.body.append(ast.copy_location(ast.Pass(), last))
        return node


def steps(full, fast):
    """`full`, or in fast mode `fast`."""
    return fast if FAST else full


def say(text):
    """Print a text in lines that fit a page."""
    print('\n'.join(textwrap.fill(line, 110, subsequent_indent='    ') for line in text.split('\n')))


# ---- The file's functions, called with arrays

def framework_of(function):
    """The framework that a function uses: that of the file (or notebook) it is from, or of what it refers to."""
    function = getattr(function, 'func', function)                                      # of functools.partial
    spaces = [getattr(function, '__globals__', None) or getattr(function.__init__, '__globals__', {})]
    for cell in getattr(function, '__closure__', None) or ():
        value = cell.cell_contents
        spaces.append(vars(value) if isinstance(value, types.ModuleType) else getattr(value, '__globals__', {}))
    known = [name for space in spaces for name, module in (('tf1', 'tf'), ('torch', 'torch')) if module in space]
    return known[0] if known else lesson.framework


def call(function, *arguments, **kwargs):
    """What a function of tensors gives, in arrays: arrays among the arguments become tensors of their own type."""
    if framework_of(function) == 'torch':
        import torch
        with torch.no_grad():
            return to_arrays(function(*to_tensors(arguments, torch.tensor), **kwargs))
    from common.mpi_tf import tf
    with tf.Graph().as_default(), tf.Session() as sess:
        result = function(*to_tensors(arguments, tf.constant), **kwargs)
        sess.run(tf.global_variables_initializer())
        return sess.run(result)


def gradient(function, *arguments, **kwargs):
    """The gradient of a function's result (of the sum of its numbers) by its first argument, an array."""
    if framework_of(function) == 'torch':
        import torch
        first, *rest = to_tensors(arguments, torch.tensor)
        first.requires_grad_()
        return torch.autograd.grad(function(first, *rest, **kwargs).sum(), first)[0].numpy()
    from common.mpi_tf import tf
    with tf.Graph().as_default(), tf.Session() as sess:
        first, *rest = to_tensors(arguments, tf.constant)
        result = tf.gradients(function(first, *rest, **kwargs), first)[0]
        sess.run(tf.global_variables_initializer())
        return sess.run(result)


def to_tensors(arguments, make):
    return [make(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]


def to_arrays(result):
    if isinstance(result, dict):
        return {key: to_arrays(value) for key, value in result.items()}
    if isinstance(result, (tuple, list)):
        return type(result)(map(to_arrays, result))
    return result.numpy() if hasattr(result, 'numpy') else result


# ---- Training

def env_function(env):
    """A function that makes an environment, given that or the environment's name."""
    return functools.partial(gym.make, env) if isinstance(env, str) else env


def make_agent(train_fn, env, seed=0, **kwargs):
    """An untrained Agent of the training function's file, with that function's defaults; and its environment."""
    defaults = default_arguments(train_fn)
    args = types.SimpleNamespace(**dict(defaults, env_fn=env_function(env), seed=seed, **kwargs))
    env = make_env(args.env_fn, off_policy='replay_size' in defaults)
    env.action_space.seed(seed)
    return train_fn.__globals__['Agent'](env, np.random.default_rng(seed), args), env


class Run:
    """A finished run: run['AverageEpRet'] is a column of its table, NaN where it is empty."""
    def __init__(self, agent, folder, seed, seconds):
        self.agent, self.folder, self.seed, self.seconds = agent, folder, seed, seconds
        self.columns, self.rows = read_progress(os.path.join(folder, 'progress.txt'))

    def __getitem__(self, column):
        return np.array([float(row[column] or 'nan') for row in self.rows])


def train(train_fn, env, seeds=(0,), label=None, **kwargs):
    """Train in this process, once for each seed, in a temporary folder; returns the list of runs.

    What a training function prints becomes one line, which is updated."""
    runs, label, framework = [], label or train_fn.__name__.upper(), framework_of(train_fn)
    config = dict(algo=f'{train_fn.__name__}_{framework}', **(dict(env_name=env) if isinstance(env, str) else {}))
    line = Line()
    epochs = kwargs.get('epochs', default_arguments(train_fn)['epochs'])
    for i, seed in enumerate(seeds):
        folder, start = tempfile.mkdtemp(dir=folders.name), time.time()
        which = f'{label}, seed {seed} ({i + 1} of {len(seeds)})' if len(seeds) > 1 else label
        shown = Progress(line, which, epochs)
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):      # no bars
            logger_kwargs = dict(output_dir=folder, config=config, quiet=True)
            agent = train_fn(env_function(env), seed=seed, logger_kwargs=logger_kwargs, **kwargs)
        runs.append(Run(agent, folder, seed, time.time() - start))
    seconds = sum(run.seconds for run in runs)
    ends = ', '.join(f'{last([run], rows=1):.4g}' for run in runs)
    line.show(f'{label}: {epochs} epoch{"s" * (epochs != 1)} in {seconds:.0f} s'
              + (f' for {len(runs)} seeds' if len(runs) > 1 else '') + f'; average return at the end: {ends}')
    return runs


class Line:
    """One line of output that is updated in place, in a notebook; elsewhere nothing."""
    def __init__(self):
        self.handle, self.shown = None, 0

    def show(self, text):
        if kernel() and not lesson.quiet:
            from IPython.display import display
            content = {'text/plain': text, 'text/html': f'<code>{html.escape(text)}</code>'}
            if self.handle:
                self.handle.update(content, raw=True)
            else:
                self.handle = display(content, raw=True, display_id=True)
            self.shown = time.time()


class Progress(io.TextIOBase):
    """Where a training function prints: its line for each epoch becomes one state of the line."""
    def __init__(self, line, label, epochs):
        self.line, self.label, self.epochs = line, label, epochs

    def write(self, text):
        row = dict(re.findall(r'(\w+) (\S+)', text)) if text.startswith('Epoch ') else {}      # a logger's quiet line
        if row and time.time() - self.line.shown > 0.2:
            done = int(row['Epoch']) + 1
            bar = '█' * round(20 * done / self.epochs)
            value = row.get('AverageTestEpRet', row.get('AverageEpRet', '-'))
            self.line.show(f'{self.label} {bar:░<20} epoch {done} of {self.epochs}, average return {value}')
        return len(text)


def last(runs, y=None, rows=3):
    """The mean of a column over all runs and their last rows; without a name, of the (test) return."""
    y = y or ('AverageTestEpRet' if 'AverageTestEpRet' in runs[0].columns else 'AverageEpRet')
    values = np.concatenate([run[y][-rows:] for run in runs])
    return float(np.nanmean(values)) if np.isfinite(values).any() else float('nan')


# ---- Pictures

def figure(columns=1, rows=1, height=3.2):
    """A figure with axes side by side, of a size that fits a page."""
    return plt.subplots(rows, columns, figsize=(4.8 * columns if columns > 1 else 6.4, height * rows))


def curves(groups, y=None, x='TotalEnvInteracts', title='', ax=None):
    """Learning curves of {label: runs}: thin lines for the seeds, thick ones for their means."""
    if ax is None:
        _, ax = figure()
    for i, (label, runs) in enumerate(groups.items()):
        column = y or ('AverageTestEpRet' if 'AverageTestEpRet' in runs[0].columns else 'AverageEpRet')
        if len(runs) > 1:
            for run in runs:
                ax.plot(run[x], run[column], color=f'C{i}', linewidth=0.8, alpha=0.4)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', RuntimeWarning)                 # a column of which all is empty
            mean = np.nanmean([run[column] for run in runs], axis=0)
        ax.plot(runs[0][x], mean, color=f'C{i}', linewidth=2, label=label)
    ax.set(xlabel='environment steps' if x == 'TotalEnvInteracts' else x, ylabel=column, title=title)
    ax.legend()
    return ax


def diagram(boxes, arrows, title=''):
    """A data-flow diagram. boxes: {name: (column, row, text[, kind])}, row 0 at the top; kinds are the keys of COLORS.
    arrows: [(from, to[, label[, bend]])]; a bend other than 0 curves the arrow, to its right if positive."""
    wide, high, half_width, half_height = 3.6, 1.6, 1.08, 0.42
    columns, rows = (max(box[i] for box in boxes.values()) + 1 for i in (0, 1))
    fig, ax = plt.subplots(figsize=(0.86 * wide * columns, 0.86 * high * rows + 0.3 * bool(title)))
    patches = {}
    for name, (column, row, text, *kind) in boxes.items():
        x, y = wide * column, -high * row
        patches[name] = FancyBboxPatch((x - half_width, y - half_height), 2 * half_width, 2 * half_height,
                                       boxstyle='round,pad=0.08', facecolor=COLORS[kind[0] if kind else 'data'],
                                       edgecolor='#5a6472')
        ax.add_patch(patches[name])
        ax.text(x, y, text, ha='center', va='center', fontsize=9, color='black')
    for start, end, *rest in arrows:
        label, bend = (*rest, *('', 0)[len(rest):])
        (x0, y0), (x1, y1) = [(wide * boxes[name][0], -high * boxes[name][1]) for name in (start, end)]
        ax.annotate('', (x1, y1), (x0, y0), arrowprops=dict(
            arrowstyle='-|>', color='#5a6472', patchA=patches[start], patchB=patches[end], shrinkA=2, shrinkB=2,
            connectionstyle=f'arc3,rad={bend}'))
        if label:
            ax.text((x0 + x1) / 2 + bend / 2 * (y1 - y0), (y0 + y1) / 2 - bend / 2 * (x1 - x0), label, fontsize=8.5,
                    ha='center', va='center', color='#30363d', bbox=dict(facecolor='white', edgecolor='none', pad=1))
    ax.set(xlim=(-0.5 * wide, wide * (columns - 0.5)), ylim=(-high * (rows - 0.42), 0.58 * high), aspect='equal',
           title=title)
    ax.axis('off')
    plt.show()


# ---- What changed

def changes(a, b, *sections):
    """The lines that change from algorithm a's file to algorithm b's, by section, a's own name put into b's."""
    files = [split(ROOT / f'{algorithm}_{lesson.framework}.py') for algorithm in (a, b)]
    parts = []
    for section in sections or [name for name in sections_of(b) if name != 'Docstring']:
        before, after = [file.get(section, '').splitlines() for file in files]
        before = named(neutral('\n'.join(before), a), b).split('\n')
        difference = list(difflib.unified_diff(before, after, lineterm='', n=1))[2:]
        parts.append((section, ['    the same', *difference][bool(difference):]))
    if not kernel():
        print(*(line for section, lines in parts for line in [section, *lines]), sep='\n')
        return
    from IPython.display import HTML, display
    styles = {'+': 'background:#e2f5e6;color:#14491f', '-': 'background:#fce8e8;color:#6e1a1a', '@': 'color:#8a8f98'}
    rows = []
    for section, lines in parts:
        rows.append(f'<div style="margin-top:0.6em"><b>{section}</b></div>')
        for line in lines:
            line = '...' if line.startswith('@') else line
            style = styles.get(line[:1] if line != '...' else '@', '')
            rows.append(f'<div style="{style};white-space:pre-wrap">{html.escape(line)}</div>')
    display(HTML(f'<div style="font-family:monospace;font-size:85%;line-height:1.35">{"".join(rows)}</div>'))


# ---- Answers in words

def agree(what, a, b, tol=1e-6):
    """Two ways to compute the same: say how far apart they are, and fail if that is more than tol."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert a.shape == b.shape, f'{what}: the shapes {a.shape} and {b.shape} differ'
    difference = float(np.abs(a - b).max(initial=0))
    assert difference <= tol, f'{what}: they differ by {difference:.2g}, and only {tol:.0e} was allowed'
    say(f'{what}: they differ by at most {difference:.1e}')


def claim(condition, text, full=False):
    """A sentence about this page's data, and whether they bear it out. full: not to be judged by a fast run."""
    judged = not (full and FAST)
    say(f'[{"too short to tell" if not judged else "shown" if condition else "NOT shown by this run"}] {text}')
    assert condition or not judged or not TEST, f'the data do not show: {text}'


def unsolved(value):
    return value is None or value is ...


def describe(value):
    """A value in words: numbers rounded, arrays with their shape."""
    if isinstance(value, np.ndarray) and value.ndim or isinstance(value, (list, tuple)) and np.ndim(value[:1]):
        array = np.asarray(value)
        return f'{np.array2string(array, precision=4, threshold=12, separator=", ")} of shape {array.shape}'
    if isinstance(value, (float, np.floating, np.ndarray)):
        return f'{float(value):.6g}'
    return repr(value)


def equal(came, expected, tol):
    """Whether two values are equal: numbers within tol, arrays also in shape, and what is made of them."""
    if isinstance(expected, dict):
        return isinstance(came, dict) and set(came) == set(expected) and all(
            equal(came[key], expected[key], tol) for key in expected)
    if isinstance(expected, (str, bool, np.bool_)):
        return bool(came == expected)
    try:
        came, expected = np.asarray(came, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return came.shape == expected.shape and bool(np.allclose(came, expected, rtol=tol, atol=tol, equal_nan=True))


def check(name, came, expected, hint, tol=1e-5, full=False):
    """Check an exercise, and answer in words. came: a value, or a function without arguments that gives it; None or
    ... for an exercise that is not solved yet. full: the expected value is not to be trusted after a fast run."""
    problem = ''
    if callable(came):
        try:
            came = came()
        except NotImplementedError:
            came = None
        except Exception as error:
            came, problem = error, f'it raised {type(error).__name__}: {error}'
    if unsolved(came):
        say(f'{name}: {NOT_SOLVED}.')
    elif full and FAST:
        say(f'{name}: answered; the run was too short to judge.')
    elif not problem and equal(came, expected, tol):
        say(f'{name}: correct.')
    else:
        problem = problem or describe(came)
        say(f'{name}: not yet.\nExpected: {describe(expected)}.\nCame: {problem}.\nHint: {hint}')
        assert not TEST, f'{name}: the solution does not pass its own check'


# ---- Bugs

@dataclasses.dataclass(frozen=True, repr=False)
class Bug:
    """One line of an algorithm file, changed: a real bug of some implementation, and the check that catches it."""
    name: str                           # what it is, for teachers
    section: str
    old: str                            # part of exactly one line of the section
    new: str                            # what stands there instead
    check: types.FunctionType           # check(module) passes on the good file, and raises AssertionError on the other
    story: str                          # what it did, and where it stood
    hint: str                           # for who quotes another line
    tf1: tuple = None                   # (old, new) in TensorFlow, if they differ; False if there is no such line
    algorithm: str = None               # filled in by bugs_of

    def patch(self, framework):
        """(old, new), or None where the bug has no place."""
        return (self.old, self.new) if framework == 'torch' or self.tf1 is None else self.tf1 or None

    def lines(self, framework):
        """The good file's line (its index in the file, and its text), and the line that replaces it."""
        old, new = self.patch(framework)
        sections, row = split(ROOT / f'{self.algorithm}_{framework}.py'), 0
        for section, text in sections.items():
            if section == self.section:
                break
            row += len(text.splitlines())
        found = [(row + i, line) for i, line in enumerate(sections[self.section].splitlines()) if old in line]
        if len(found) != 1 or found[0][1].count(old) != 1:
            raise ValueError(f'{old!r} stands in {len(found)} lines of {self.section} in {self.algorithm}_{framework}')
        return *found[0], found[0][1].replace(old, new)

    def load(self, framework):
        """A module made of the file with that line changed."""
        row, _, new = self.lines(framework)
        name = f'{self.algorithm}_{framework}'
        lines = (ROOT / f'{name}.py').read_text(encoding='utf-8').split('\n')
        lines[row] = new
        module = types.ModuleType(f'{name}_copy')
        exec(compile('\n'.join(lines), f'copy of {name}.py', 'exec'), vars(module))
        return module

    @functools.cached_property
    def module(self):
        return self.load(lesson.framework)

    def __repr__(self):
        return f'a copy of {self.algorithm}_{lesson.framework}.py in which one line is wrong'


def bugs_of(algorithm):
    """The bugs of a walkthrough, {letter: Bug}."""
    if importlib.util.find_spec(f'walkthroughs.bugs.{algorithm}') is None:
        return {}
    bugs = importlib.import_module(f'walkthroughs.bugs.{algorithm}').BUGS
    return {letter: dataclasses.replace(bug, algorithm=algorithm) for letter, bug in bugs.items()}


def bug(letter):
    """A bug of this page's algorithm; its `module` is the copy of the file that has it."""
    return bugs_of(lesson.algorithm)[letter]


def hunt(name, bug, line):
    """Check the answer to a hunt: part of the line, as the good file has it, that is wrong in the copy."""
    if unsolved(line):
        say(f'{name}: {NOT_SOLVED}.')
        return
    file = f'{bug.algorithm}_{lesson.framework}.py'
    found = [row for row, text in enumerate((ROOT / file).read_text(encoding='utf-8').split('\n'))
             if line.strip() and line.strip() in text]
    row, _, new = bug.lines(lesson.framework)
    if found == [row]:
        caught, lesson.quiet = '', True                                                 # the check may train
        try:
            bug.check(bug.module)
        except AssertionError as error:
            caught = f'\nA check that catches it ({bug.check.__doc__.strip().rstrip(".")}) says: {error}'
        finally:
            lesson.quiet = False
        say(f'{name}: correct. In the copy, line {row + 1} reads\n    {new.strip()}\n{bug.story}{caught}')
        return
    problem = (f'no line of {file} contains it: quote a line as the page shows it' if not found else
               f'it is in {len(found)} lines of {file}: quote more of it' if len(found) > 1 else
               f'that line is the same in both. Hint: {bug.hint}')
    say(f'{name}: not yet. You quoted {line.strip()!r}; {problem}')
    assert not TEST, f'{name}: the solution does not pass its own check'
