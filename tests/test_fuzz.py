"""Whatever is in a run's folder and whatever is typed, a tool does its work or says in one line why it cannot.

Hypothesis damages the files of small runs, byte by byte and by what they mean, and writes command lines. A few hundred
of each are tried here; FUZZ=10000 pytest tests/test_fuzz.py tries ten thousand files and as many command lines.
"""
import contextlib
import functools
import importlib
import importlib.util
import io
import json
import os
import random
import re
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common import run, run_utils

resource = pytest.importorskip('resource')                              # not on Windows
EXAMPLES = int(os.getenv('FUZZ', 250))
FRAMEWORKS = [framework for framework, module in (('torch', 'torch'), ('tf1', 'tensorflow'))
              if importlib.util.find_spec(module)]
ON_POLICY = '--env CartPole-v1 --epochs 2 --steps_per_epoch 20 --hid 4 --train_v_iters 1 --save_freq 1 --quiet'
OFF_POLICY = ('--env Pendulum-v1 --epochs 2 --steps_per_epoch 20 --hid 4 --replay_size 30 --start_steps 5 --quiet '
              '--update_after 10 --update_every 5 --batch_size 4 --num_test_episodes 1 --max_ep_len 10')
RUNS = {f'{algo}_{framework}': flags for framework in FRAMEWORKS for algo, flags in
        (('ppo', ON_POLICY), ('sac', OFF_POLICY))}
CONTROL = re.compile(r'[\x00-\x08\x0b-\x1f\x7f-\x9f]')                  # what a terminal could obey
SECONDS, GIGABYTES = 30, 12                                            # no run takes a hundredth of either
TIMERS = {signal.ITIMER_PROF: SECONDS, signal.ITIMER_REAL: 20 * SECONDS}       # computing; waiting, perhaps for others


def fuzz(examples=EXAMPLES):
    return settings(max_examples=examples, deadline=None, derandomize=True, database=None, print_blob=False,
                    suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope='module')
def bounded_memory():
    """What is read without bound fails, and does not take the machine with it."""
    for name in RUNS:
        files_of_run(name)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize() if os.path.exists(
        '/proc/self/statm') else 0
    resource.setrlimit(resource.RLIMIT_AS, (int(used + GIGABYTES * 2**30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Hangs(BaseException):
    pass


def problem(function, *args):
    """None if a command does its work, or refuses it in one line; else what is wrong with how it ends."""
    def hang(*_):
        raise Hangs
    out, err, status, trace = io.StringIO(), io.StringIO(), 0, ''
    before = {number: signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGTERM)}
    path = list(sys.path)
    signal.signal(signal.SIGPROF, hang)
    signal.signal(signal.SIGALRM, hang)
    for timer, seconds in TIMERS.items():
        signal.setitimer(timer, seconds)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter('ignore')
            function(*args)
    except SystemExit as end:
        status = end.code or 0
    except (Hangs, Exception):
        trace = traceback.format_exc()
    finally:
        for timer in TIMERS:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.path[:] = path
    out, err = out.getvalue(), err.getvalue()
    if trace:
        return trace
    if CONTROL.search(out + err):
        return f'control characters in {out + err!r}'
    if status not in (0, 2) or status == 2 and not re.fullmatch(r'.*: error: .+\n', err) or len(err) > 3000:
        return f'status {status}, {err!r}'
    return None


# ---- Runs with damaged files

def train_fn(name):
    return getattr(importlib.import_module(name), name.split('_')[0])


@functools.cache
def files_of_run(name):
    """{path: content} of a small run, trained when it is first asked for."""
    with tempfile.TemporaryDirectory() as folder:
        assert problem(run.command_line, train_fn(name), [*RUNS[name].split(), '--data_dir', folder]) is None
        folder = Path(folder, name, f'{name}_s0')
        return {path.relative_to(folder).as_posix(): path.read_bytes()
                for path in sorted(folder.rglob('*')) if path.is_file() and not path.name.endswith('.lock')}


def resume(name, folder):
    flags = RUNS[name].replace('--epochs 2', '--epochs 3').split()
    return problem(run.command_line, train_fn(name), [*flags, '--data_dir', str(folder.parents[1]), '--resume'])


def watch(name, folder):
    return problem(importlib.import_module('tools.test_policy').main, [str(folder), '-nr', '-n', '1', '-l', '3'])


def draw(name, folder):
    plot = importlib.import_module('tools.plot')
    with np.errstate(all='ignore'):
        try:
            return problem(plot.main, [str(folder), '--out', str(folder.parents[1] / 'plot.svg')])
        finally:
            plot.plt.close('all')


def diagnose(name, folder):
    with np.errstate(all='ignore'):
        return problem(importlib.import_module('tools.doctor').main, [str(folder)])


TOOLS = dict(resume=resume, test_policy=watch, plot=draw, doctor=diagnose)
READS = [('resume', 'config.json'), ('resume', 'progress.txt'), ('resume', 'state.npz'), ('resume', 'state.npz'),
         ('resume', 'replay/'), ('test_policy', 'config.json'), ('test_policy', 'pyt_save/'),
         ('test_policy', 'tf1_save/'), ('test_policy', 'tf1_save/weights'), ('plot', 'config.json'),
         ('plot', 'progress.txt'), ('doctor', 'config.json'), ('doctor', 'progress.txt')]

texts = st.one_of(st.text(max_size=8), st.sampled_from([
    '', 'nan', 'inf', '-1', '1e400', '9' * 400, '\x1b[2J\x1b]0;x\x07', '\x9b31m', '../..', '/etc/passwd', 'a' * 5000,
    '$\\frac{$', '\ud800', '\u202e', 'auto', 'CartPole-v1', 'no_such_module:E-v0', ':E', 'a:b:c', '.x:Y-v0', '{}', '%s',
    '$']))
numbers = st.one_of(st.integers(-3, 3), st.floats(allow_subnormal=False), st.sampled_from(
    [10**9, -10**9, 2**63, 10**30, -10**30, 1e-300, 1e308, -1e308, 1e38, True, False]))
values = st.recursive(st.none() | numbers | texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    texts, inner, max_size=3), max_leaves=6)


@st.composite
def damaged_bytes(draw, content):
    """A file as disks, transfers and editors leave it."""
    how, content = draw(st.sampled_from(['bytes', 'cut', 'insert', 'delete', 'fill', 'other'])), bytearray(content)
    where = st.integers(0, max(0, len(content) - 1))
    if how == 'bytes' and content:
        for i in draw(st.lists(where, min_size=1, max_size=8)):
            content[i] = draw(st.integers(0, 255))
    elif how == 'cut':
        del content[draw(where):]
    elif how == 'insert':
        i = draw(where)
        content[i:i] = draw(st.binary(min_size=1, max_size=50))
    elif how == 'delete':
        i = draw(where)
        del content[i:i + draw(st.integers(1, 200))]
    elif how == 'fill':
        i = draw(where)
        content[i:i + draw(st.integers(1, 600))] = draw(st.sampled_from([b'', b'\0' * 600, b'\xff' * 100, b'\n' * 9]))
    else:
        content = draw(st.binary(max_size=100) | st.sampled_from([
            b'', b'\0', b'{', b'[' * 100_000, b'{"a":' * 100_000, b'[]', b'null', b'PK\x05\x06' + b'\0' * 18,
            b'\x80\x02.', b'\x93NUMPY', b'Epoch\n', b'\n\n\n', b'\xff\xfe']))
    return bytes(content)


def places(node, path=()):
    """The paths to all parts of a nested structure."""
    yield path
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(inner, (*path, key))


def changed(node, path, change):
    """A copy of a nested structure in which change(part) stands at a path; a part of None is left out."""
    if not path:
        return change(node)
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = changed(copy[path[0]], path[1:], change)
    return copy


@st.composite
def damaged_json(draw, content):
    tree = json.loads(content)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(tree))))
        value = draw(values)
        tree = changed(tree, path[:-1], lambda node: {key: inner for key, inner in node.items() if key != path[-1]}
                       if isinstance(node, dict) else value) if path and draw(st.booleans()) and draw(
                           st.booleans()) else changed(tree, path, lambda _: value)
    return json.dumps(tree).encode()


@st.composite
def damaged_table(draw, content):
    rows = [line.split('\t') for line in content.decode().splitlines()]
    rows *= draw(st.sampled_from([1, 1, 12]))                   # so many that doctor judges them, too
    for _ in range(draw(st.integers(1, 5))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        if row:
            i = draw(st.integers(0, len(row) - 1))
            row[i:i + 1] = draw(st.lists(texts | numbers.map(repr), min_size=1, max_size=1) | st.just([]))
    return '\n'.join('\t'.join(row) for row in [*rows, []]).encode(errors='surrogatepass')


arrays = st.builds(lambda shape, kind, fill: np.full(shape, fill).astype(kind), st.lists(st.integers(0, 5), max_size=3),
                   st.sampled_from(['f4', 'f8', 'i8', 'u1', 'U3', '?', 'c8', 'M8[s]', 'f4,i2']),
                   st.sampled_from([0., 1., -1., 1e30, 7.]))


@st.composite
def damaged_npz(draw, content):
    """Another array in it, another tree, one of them missing, compressed, or one whose header lies about its size."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name, how = draw(st.sampled_from(sorted(members))), draw(st.sampled_from(
        ['array', 'tree', 'tree', 'tree', 'missing', 'twice', 'compressed', 'header', 'object', 'bytes']))
    buffer = io.BytesIO()
    if how == 'array':
        np.save(buffer, draw(arrays))
        members[name] = buffer.getvalue()
    elif how == 'object':
        np.save(buffer, np.array([{}], dtype=object))
        members[name] = buffer.getvalue()
    elif how == 'tree':
        tree = np.load(io.BytesIO(members['tree.npy'])).tobytes()
        text = draw(damaged_json(tree) | damaged_json(tree) | st.sampled_from([
            b'[' * 10**6, b'{"dict":[' * 1000, b'', b'{}', b'{"array":"0"}']))
        np.save(buffer, np.frombuffer(text, dtype=np.uint8))
        members['tree.npy'] = buffer.getvalue()
    elif how == 'missing':
        del members[name]
    elif how == 'header':
        shape = draw(st.sampled_from(['(10**15,)', '(1000000000000000,)', '(-1,)', '(0, 9223372036854775807)', '()',
                                      '(99999999999999999999999,)', '(50000000000,)', '1e5']))
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b'\n'
        members[name] = b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header + members[name][128:]
    elif how == 'bytes':
        members[name] = draw(damaged_bytes(members[name]))
    with zipfile.ZipFile(buffer := io.BytesIO(), 'w', zipfile.ZIP_DEFLATED if how == 'compressed' else 0) as file:
        for name, part in members.items():
            file.writestr(name, part)
        if how == 'twice':
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                file.writestr(name, members[name])
    return buffer.getvalue()


@st.composite
def damaged_weights(draw, content):
    import torch
    weights = torch.load(io.BytesIO(content), weights_only=True)
    name = draw(st.sampled_from(sorted(weights)))
    change = draw(st.sampled_from(['shape', 'name', 'missing', 'more', 'value', 'nan', 'type', 'sparse', 'whole']))
    if change == 'shape':
        weights[name] = torch.zeros(draw(st.lists(st.integers(0, 5), max_size=3)))
    elif change in ('name', 'more'):
        weights[draw(texts.filter(lambda text: '\ud800' not in text))] = weights.pop(name) if change == 'name' else 0
    elif change == 'missing':
        del weights[name]
    elif change == 'value':
        weights[name] = draw(st.none() | st.integers() | st.lists(st.integers(), max_size=2))
    elif change == 'nan':
        weights[name] = weights[name] * float('nan')
    elif change == 'type':
        kinds = [torch.float64, torch.int8, torch.complex64, torch.bool]
        weights[name] = weights[name].to(draw(st.sampled_from(kinds)))
    elif change == 'sparse':
        weights[name] = weights[name].to_sparse()
    else:
        weights = draw(st.sampled_from([None, 3, [], {}, 'text', {1: 2}, weights[name]]))
    torch.save(weights, buffer := io.BytesIO())
    return buffer.getvalue()


def damaged(path, content):
    """The strategy for a file of this name."""
    kinds = {'.json': damaged_json, '.txt': damaged_table, '.npz': damaged_npz, '.pt': damaged_weights}
    own = kinds.get(Path(path).suffix)
    return st.one_of(damaged_bytes(content), own(content), own(content)) if own else damaged_bytes(content)


@st.composite
def damaged_runs(draw):
    """(tool, name of the run, {path: its content, None for none, a name for a kind of file that is none})."""
    tool, beginning = draw(st.sampled_from(READS))
    name = draw(st.sampled_from([name for name in sorted(RUNS) if any(
        path.startswith(beginning) for path in files_of_run(name))]))
    files = dict(files_of_run(name))
    chosen = {draw(st.sampled_from([path for path in files if path.startswith(beginning)]))}
    if draw(st.integers(0, 4)) == 0:                            # and another one
        chosen.add(draw(st.sampled_from(sorted(files))))
    for path in sorted(chosen):
        odd = draw(st.integers(0, 40))
        files[path] = (None, 'folder', 'fifo', '/dev/zero')[odd] if odd < 4 else draw(damaged(path, files[path]))
    return tool, name, files


def try_run(tool, name, files):
    """The problem, if any, that a tool has with a run of these files; it must touch nothing outside of its folder."""
    random.seed(0)                                              # of what the tools do not seed
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, name, f'{name}_s0')
        for path, content in files.items():
            path = folder / path
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content == 'folder':
                path.mkdir()
            elif content == 'fifo':
                os.mkfifo(path)
            elif content:
                path.symlink_to(content)
        found = TOOLS[tool](name, folder)
        others = [path.name for path in Path(root).glob('*') if path.name not in (name, 'plot.svg')]
        return found or (f'it wrote {others}' if others else None)


@fuzz()
@given(damaged_runs())
def test_damaged_runs(case):
    tool, name, files = case
    found, original = try_run(tool, name, files), files_of_run(name)
    others = [f'{path}: {content!r:.2000}' for path, content in files.items() if content != original[path]]
    assert found is None, '\n'.join([found, tool, name, *others])


# ---- Command lines

SCRIPTS = [f'{algo}_{framework}' for framework in FRAMEWORKS for algo in ('vpg', 'trpo', 'ppo', 'ddpg', 'td3', 'sac')]
WORDS = dict(
    test_policy='-l --len -n --episodes -nr --norender -i --itr -d -s --seed --gif --file --env --trust',
    plot='-l --legend -x --xaxis -y --value --count -s --smooth --select --exclude --est --band --out',
    doctor='', compare='--html --width --color', eject='-o --out --mpi --with-common --overwrite',
    run='help plot test_policy ppo sac_tf1')
typed = st.one_of(
    st.sampled_from('''0 1 2 -1 0.5 1.5 1e3 1e12 1e300 -1e300 1e-300 1e999 nan inf True true False None auto
        64,64 [64,64] [] [1e9] 10**9 0x10 1_0 [99999999,99999999] relu tanh nn.ReLU tf.nn.relu softmax {} {'g':5}
        {'g':'x'} {1:2} {'id':1} {'render_mode':'human'} a/b . .. ./. / data nowhere RUN RUN/.. out.png out.svg .gif
        a.gif folder.gif x.py td3 sac ppo_torch vpg_tf1 -- - --= = --env --env= --seed[ --seed[s] --seed[]=1
        Performance AverageEpRet Epoch mean iqm std ci none always never CartPole-v1 Pendulum-v1 CartPole-v9
        Blackjack-v1 MountainCarContinuous-v0 :X a:b:c .x:Y-v0 no_such_module:E-v0 math:E-v0 NormalizeReward
        TimeLimit(5) TimeLimit(x) RescaleAction(-1,1) no_such_module:W() Wrapper: :() 2030-01-31_12-00-00
        npg trpo last 99999'''.split()),
    st.sampled_from(['', ' ', '9' * 400, '9' * 5000, '[' * 3000, '-' * 300 + '1', '(' * 90 + '1', 'a' * 300, '\x1b[2J',
                     '\n', 'é', '\udcff', '[' + '1,' * 3000 + '1]']),
    st.text(st.characters(exclude_characters='\0', exclude_categories=['Cs']), max_size=6), numbers.map(str))


@functools.cache
def flags_of(name):
    return sorted(run.make_parser(train_fn(name))._option_string_actions)


@st.composite
def command_lines(draw):
    """(script or tool, words)"""
    name = draw(st.sampled_from(SCRIPTS + 2 * sorted(WORDS)))
    flags = flags_of(name) if name in SCRIPTS else [*WORDS[name].split(), '--help']
    parts = st.tuples(st.sampled_from(flags), typed) | st.tuples(st.sampled_from(flags)) | st.tuples(typed)
    words = [word for part in draw(st.lists(parts, max_size=5)) for word in part]
    if draw(st.integers(0, 9)) == 0:
        return name, words
    if name in SCRIPTS:
        env = 'Pendulum-v1' if name.startswith(('ddpg', 'td3', 'sac')) else 'CartPole-v1'
        return name, [*draw(st.sampled_from([['--env', env], [f'--env={env}'], ['--env', env, '--cpu', '1']])), *words]
    return name, ['RUN' if name in ('test_policy', 'plot', 'doctor') else 'ppo_torch', *words]


def try_line(name, words):
    """The problem, if any, that a script or tool has with a command line. Scripts go on until training would begin."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(run, 'run_here', lambda *_: None)
        patch.setattr(run_utils, 'run_experiments', lambda *_: None)
        patch.setattr(run, 'parse_and_execute_grid_search', lambda *_: None)
        os.mkdir('folder.gif')
        for path, content in files_of_run(sorted(RUNS)[0]).items():
            Path('RUN', path).parent.mkdir(parents=True, exist_ok=True)
            Path('RUN', path).write_bytes(content)
        if name in SCRIPTS:
            return problem(run.command_line, train_fn(name), words)
        if name == 'run':
            return problem(run.main, words)
        tool = importlib.import_module(f'tools.{name}')
        if name == 'test_policy':                               # a hundred episodes are not needed
            patch.setattr(tool, 'run_policy', lambda *args: None)
            patch.setattr(tool, 'write_gif', lambda *args, **kwargs: None)
        if name == 'plot':
            patch.setattr(tool.plt, 'show', lambda: None)
            patch.setattr(tool, 'save', lambda *_: None)        # which takes most of the time
        try:
            return problem(tool.main, words)
        finally:
            if name == 'plot':
                tool.plt.close('all')


@fuzz()
@given(command_lines())
def test_command_lines(case):
    name, words = case
    assert (found := try_line(name, words)) is None, f'{found}\n{name} {words}'


# ---- Arguments that are allowed, and odd

LONG = 'epochs steps_per_epoch num_test_episodes train_pi_iters train_v_iters cg_iters backtrack_iters'.split()


@st.composite
def odd_arguments(draw):
    """(script, words) of a short run in which one number is an odd one, but not the number of times that something is
    done."""
    name = draw(st.sampled_from([name for name in SCRIPTS if EXAMPLES > 1000 or name.endswith(FRAMEWORKS[0])]))
    words = (ON_POLICY if name.startswith(('vpg', 'trpo', 'ppo')) else OFF_POLICY).split()
    defaults = run.default_arguments(train_fn(name)).items()
    flag = '--' + draw(st.sampled_from([key for key, val in defaults if type(val) in (int, float) and key not in LONG]))
    if flag in words:
        del words[words.index(flag):words.index(flag) + 2]
    return name, [*words, flag, draw(st.sampled_from('0 1 2 0.5 1e-30 1e-9 1e9 1e15 1e18 1e300'.split()))]


def try_to_train(name, words):
    with tempfile.TemporaryDirectory() as root:
        return problem(run.command_line, train_fn(name), [*words, '--data_dir', root])


@fuzz(EXAMPLES // 5)
@given(odd_arguments())
def test_odd_arguments(case):
    name, words = case
    assert (found := try_to_train(name, words)) is None, f'{found}\n{name} {words}'
