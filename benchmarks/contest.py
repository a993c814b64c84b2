"""What benchmarks.speed and benchmarks.scaling share: contestants measured in turn, and the report about them.

Machines are shared and noisy, so only ratios within one run mean anything: a round measures every contestant once, each
in a process of its own, so that those that are compared are neighbours in time; and the rounds give medians and spread.
"""
import argparse
import io
import json
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common.errors import UserError
from common.serialization import atomic_write

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
TIME_LIMIT = 3600                                       # seconds for one measurement
MAX_STEPS = 300_000                                     # to reach a return in
PACKAGES = 'torch', 'tensorflow', 'numpy', 'gymnasium', 'mujoco', 'mpi4py', 'mpich'
COLOURS = dict(ours='#0072B2', twin='#56B4E9', before='#CC79A7', plain='#999999', sb3='#E69F00', sbx='#009E73',
               bound='#DDDDDD')
# One thread, and no accelerator, in whatever framework.
ENVIRONMENT = dict(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='',
                   XLA_FLAGS='--xla_cpu_multi_thread_eigen=false', JAX_PLATFORMS='cpu', TF_CPP_MIN_LOG_LEVEL='3')


@dataclass
class Contestant:
    """One way to do the work of a workload. Its command measures it once, and prints a line of JSON."""
    workload: str
    name: str
    command: list
    arguments: dict                                     # of the measurement; the round becomes the seed
    kind: str = 'ours'                                  # ours, before, plain, sb3, sbx or bound
    root: Path = ROOT                                   # the checkout whose modules the command imports
    values: list = field(default_factory=list)          # what was measured, round by round
    failed: str = ''                                    # or why it could not be

    def __str__(self):
        return f'{self.workload}: {self.name}'

    def get(self, key):
        return [value[key] for value in self.values if key in value]


# ---- Measuring

def cores():
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else list(range(os.cpu_count() or 1))


def measure(command, arguments, pin, root=ROOT):
    """What one process measures: a dict, with why under `failed` if it could not."""
    pin_to_one_core = None
    if pin and hasattr(os, 'sched_setaffinity'):
        core = cores()[-1]                              # the last: the system's own work tends to be on the first
        pin_to_one_core = lambda: os.sched_setaffinity(0, {core})
    env = dict(os.environ, PYTHONPATH=str(root), **ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:       # to work in: some libraries leave files where they are started
        try:
            run = subprocess.run([*command, json.dumps(arguments)], cwd=folder, env=env, capture_output=True, text=True,
                                 timeout=TIME_LIMIT, preexec_fn=pin_to_one_core)
        except subprocess.TimeoutExpired:
            return dict(failed=f'not done after {TIME_LIMIT} s')
        except OSError as error:
            return dict(failed=f'cannot be started: {error.strerror}')
    try:
        assert run.returncode == 0
        return json.loads(run.stdout.splitlines()[-1])
    except (AssertionError, IndexError, ValueError):
        said = run.stderr.strip().splitlines() or [f'exit status {run.returncode}, without a word']
        return dict(failed=re.sub(r'(/[^/\s\'"]+)+/', '', said[-1])[:200])          # without the paths of this machine


def hold(contestants, rounds, pin=True):
    """Measure all of them in turn, round by round. One that fails takes no further part."""
    for number in range(rounds):
        for contestant in contestants:
            if contestant.failed:
                continue
            value = measure(contestant.command, dict(contestant.arguments, seed=number), pin, contestant.root)
            contestant.failed = value.get('failed', '')
            if not contestant.failed:
                contestant.values.append(value)
            print(f'round {number + 1} of {rounds}  {str(contestant):60} {in_short(value)}', flush=True)


def in_short(value):
    if 'failed' in value:
        return f'failed: {value["failed"]}'
    if 'rate' in value:
        return f'{value["rate"]:10.1f} steps/s'
    if 'pi_us' in value:
        return f'{value["pi_us"]:.0f} us a gradient of pi, {value["v_us"]:.0f} of v'
    return f'{value["seconds"]:10.1f} s, {value["steps"]} steps' if value['seconds'] else 'not reached'


# ---- Numbers and tables

def speeds(contestant):
    """Round by round, what is better when larger: steps per second, or one over the seconds to a goal."""
    return [value['rate'] if 'rate' in value else 1 / (value['seconds'] or math.inf)
            for value in contestant.values if 'rate' in value or 'seconds' in value]


def ratios(ours, theirs):
    """Round by round: in a round they were neighbours in time, so what slows the machine for minutes cancels out."""
    return [a / b if b else math.inf for a, b in zip(ours, theirs)]


def ratio(ours, theirs):
    """'3.2 (3.0 – 3.3)': the median of the ratios round by round, the least and the greatest."""
    pairs = ratios(ours, theirs)
    if not pairs:
        return ''
    return f'{statistics.median(pairs):.2f} ({min(pairs):.2f} – {max(pairs):.2f})'.replace('inf', '∞')


def number(x):
    """Three digits that mean something."""
    return f'{x:,.0f}'.replace(',', ' ') if x >= 100 else f'{x:.3g}'


def median_and_spread(values):
    """As two cells."""
    return (number(statistics.median(values)), f'{number(min(values))} – {number(max(values))}') if values else ('', '')


def time_cells(contestant):
    """The median time to the goal, and every seed's."""
    times = [value['seconds'] for value in contestant.values]
    if not times:
        return '', ''
    median = statistics.median([seconds or math.inf for seconds in times])
    return ('not reached' if median == math.inf else f'{median:.1f}',
            ', '.join(f'{seconds:.1f}' if seconds else 'not reached' for seconds in times))


def table(header, rows):
    """Markdown."""
    lines = [header, ['---'] + ['---:'] * (len(header) - 1), *rows]
    return '\n'.join(f'| {" | ".join(map(str, line))} |' for line in lines) + '\n'


# ---- What it ran on

def machine():
    try:
        model = re.search(r'model name\s*:\s*(.+)', Path('/proc/cpuinfo').read_text())
    except OSError:
        model = None
    count = os.cpu_count()
    return f'{model.group(1) if model else platform.machine()}, {count} core{"s" * (count > 1)}, {platform.system()}'


def versions(packages=PACKAGES):
    found = dict(python=platform.python_version())
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def circumstances(module, parser, args):
    """What belongs to a result, to read it later; paths of this machine do not."""
    command = ['python', '-m', f'benchmarks.{module}']
    for key, val in vars(args).items():
        if val != parser.get_default(key) and key not in ('out', 'peers'):
            val = val.name if isinstance(val, Path) else val
            values = [] if val is True else val if isinstance(val, list) else [val]
            command += [f'--{key}', *(f'{x:g}' if isinstance(x, float) else str(x) for x in values)]
    return dict(command=shlex.join(command), machine=machine(), versions=versions(),
                date=time.strftime('%Y-%m-%d'), rounds=args.rounds, cores_used=len(cores()),
                load_before=round(os.getloadavg()[0], 2) if hasattr(os, 'getloadavg') else None)


def describe(facts):
    """The circumstances as a paragraph."""
    packages = ', '.join(f'{name} {number}' for name, number in facts['versions'].items())
    rounds = f'medians of {facts["rounds"]} rounds' if facts['rounds'] > 1 else 'one round'
    text = (f'Written by `{facts["command"]}` on {facts["date"]}: {rounds}, on {facts["machine"]} (load '
            f'{facts["load_before"]} before it began), with {packages}.')
    if facts.get('least_cpu_share'):
        text += (f' Every measurement had at least {facts["least_cpu_share"]:.0%} of its core, and other work of the '
                 'machine the rest.')
    return text


def least_cpu_share(contestants):
    return min((share for contestant in contestants for share in contestant.get('cpu_share')), default=None)


# ---- The command line, and files

def make_parser(doc):
    """The options that both have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = complain
    parser.add_argument('--rounds', type=int, default=5, help='how often each is measured, in turn (default 5)')
    parser.add_argument('--only', metavar='REGEX', help='only contestants whose "workload: name" it is found in')
    parser.add_argument('--quick', action='store_true', help='short measurements, to try it out')
    parser.add_argument('--time_to', type=float, metavar='RETURN', help='also the time to this mean return of the last '
                        '100 episodes, ppo on CartPole-v1: 475 is where it counts as solved; the round is the seed')
    parser.add_argument('--out', metavar='FOLDER', help='where the files go (default: benchmarks/; with --only or '
                        '--quick none are written unless this is given, since they would replace complete ones)')
    return parser


def complain(message):
    raise UserError(f'{message} (--help tells the flags)')


def check(args):
    """Find mistakes before anything is measured or written."""
    if args.rounds < 1:
        raise UserError(f'--rounds {args.rounds} measures nothing: give 1 or more, 5 for medians that mean something')
    if args.time_to is not None and not 0 < args.time_to <= 500:
        raise UserError(f'--time_to {args.time_to:g} is no return of CartPole-v1: give one above 0 and up to 500')
    if args.out and not Path(args.out).is_dir():
        raise UserError(f'--out {args.out} is no folder: make it first')


def choose(contestants, only):
    """Those that --only leaves."""
    try:
        chosen = [contestant for contestant in contestants if re.search(only or '', str(contestant), re.IGNORECASE)]
    except re.error as error:
        raise UserError(f'--only {only} is no regular expression: {error}') from None
    if not chosen:
        workloads = '; '.join(dict.fromkeys(contestant.workload for contestant in contestants))
        raise UserError(f'--only {only} leaves nothing; the workloads are: {workloads}')
    return chosen


def page_with(path, text):
    """The page with one benchmark's report in the place of its former one; that of the other stays."""
    old = path.read_text(encoding='utf-8') if path.exists() else ''
    parts = {part.partition('\n')[0]: part.strip() for part in re.split('^(?=# )', old + text, flags=re.MULTILINE)}
    return '\n\n'.join(sorted(filter(None, parts.values()), reverse=True)) + '\n'        # Speed, then Scaling


def finish(name, args, facts, contestants, text, draw):
    """Write the files, print the report, and return the exit status."""
    written = ''
    if args.out or not (args.only or args.quick):
        folder, picture = Path(args.out or FOLDER), io.BytesIO()
        draw().savefig(picture, format='png', dpi=110)
        (folder / 'figures').mkdir(exist_ok=True)
        results = [dict(workload=contestant.workload, name=contestant.name, kind=contestant.kind,
                        arguments=contestant.arguments, values=contestant.values,
                        **(dict(failed=contestant.failed) if contestant.failed else {})) for contestant in contestants]
        for path, content in ((f'{name}.json', json.dumps(dict(facts, results=results), indent=1) + '\n'),
                              ('speed.md', page_with(folder / 'speed.md', text)),
                              (f'figures/{name}.png', picture.getvalue())):
            with atomic_write(folder / path, 'wb' if isinstance(content, bytes) else 'w') as file:
                file.write(content)
        written = f'wrote {name}.json, speed.md and figures/{name}.png'
    print(f'\n{text}\n{written}')
    failed = [contestant for contestant in contestants if contestant.failed]
    for contestant in failed:
        print(f'failed: {contestant}: {contestant.failed}')
    return 1 if failed else 0
