"""Learning results that anyone can reproduce, compared with published ones.

    python -m benchmarks.learning                   everything in SUITES below but for other libraries
    python -m benchmarks.learning --suite cartpole --scripts ppo_torch ppo_tf1 --seeds 0 1 2
    python -m benchmarks.learning --list            which runs there are, which are done, how long the rest takes
    python -m benchmarks.learning --missing         only what benchmarks/tables lacks, on another machine for example
    python -m benchmarks.learning --suite peers     other libraries' PPO, TRPO and SAC
    python -m benchmarks.learning --summary         runs nothing: writes RESULTS.md from the runs there are
    python -m benchmarks.learning --quick           do all twelve scripts learn? In less than three minutes

Every run is a command line of its script, with one thread per process. After a stop the same command continues:
finished runs are skipped, the others resume from their last checkpoint. The runs' folders are in data/learning; remove
it to start over. The rows that they log are collected in benchmarks/tables, one file per suite with one array per
column: pandas.DataFrame(dict(numpy.load('benchmarks/tables/cartpole.npz'))) has them all.
"""
import contextlib
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.contest import ENVIRONMENT, FOLDER, ROOT, cores, machine, versions
from benchmarks.learning_report import read_runs, report
from benchmarks.speed import peers_python, peers_versions, prepare_peers
from common.errors import ArgumentParser, ExperimentFailed, UserError, nearest, one_line_errors
from common.run_utils import Experiment, setup_logger_kwargs, valid_str
from common.serialization import atomic_write
from tools.plot import read_columns

COMMAND = 'python -m benchmarks.learning'

# ---- What is run: short suites first. MuJoCo continues for 5 epochs beyond the steps that are compared, since results
# there are averaged over the 11 epochs around them.
# suite, algorithms, frameworks, environments, steps, seeds, settings that are not the defaults
SUITES = [
    ('cartpole', 'vpg ppo trpo', 'torch tf1', 'CartPole-v1', 120_000, 10, {}),
    ('cartpole', 'vpg', 'torch tf1', 'CartPole-v1', 120_000, 10, dict(pi_lr=1e-2)),
    ('pendulum', 'ddpg td3', 'torch tf1', 'Pendulum-v1', 20_000, 5, dict(steps_per_epoch=1000)),
    ('pendulum', 'sac', 'torch tf1', 'Pendulum-v1', 20_000, 10, dict(steps_per_epoch=1000)),
    ('pendulum', 'sac', 'torch tf1', 'Pendulum-v1', 20_000, 5, dict(steps_per_epoch=1000, alpha='auto')),
    ('acrobot', 'ppo trpo', 'torch', 'Acrobot-v1', 200_000, 10, {}),
    ('acrobot', 'ppo', 'torch', 'Acrobot-v1', 120_000, 10,
     dict(max_ep_len=2000, env_kwargs=dict(max_episode_steps=2000))),
    ('lunarlander', 'ppo trpo', 'torch', 'LunarLander-v3', 200_000, 5, {}),
    ('lunarlander', 'trpo', 'torch', 'LunarLander-v3', 200_000, 5, dict(steps_per_epoch=1000)),
    ('lunarlander', 'trpo', 'torch', 'LunarLander-v3', 200_000, 5,
     dict(steps_per_epoch=1000, lam=0.98, damping_coeff=0.01)),
    ('processes', 'ppo', 'torch', 'CartPole-v1', 120_000, 10, dict(num_cpu=4)),
    ('processes', 'sac', 'torch', 'Pendulum-v1', 20_000, 5, dict(steps_per_epoch=1000, num_cpu=4)),
    ('mujoco_on_policy', 'ppo trpo vpg', 'torch', 'HalfCheetah-v5 Hopper-v5', 1_020_000, 5, {}),
    ('mujoco_on_policy', 'ppo trpo', 'torch', 'Walker2d-v4', 1_020_000, 3, {}),
    ('mujoco_on_policy', 'ppo trpo vpg', 'tf1', 'HalfCheetah-v5 Hopper-v5', 320_000, 3, {}),
    ('mujoco_off_policy', 'ddpg td3 sac', 'torch', 'HalfCheetah-v5 Hopper-v5', 120_000, 3, {}),
    ('mujoco_off_policy', 'sac', 'torch', 'Hopper-v5', 120_000, 5, {}),
    ('mujoco_off_policy', 'ddpg td3 sac', 'tf1', 'HalfCheetah-v5', 120_000, 1, {}),
    ('mujoco_off_policy', 'td3 sac', 'torch', 'HalfCheetah-v5', 320_000, 1, {}),
    ('peers', 'ppo', 'spinup', 'CartPole-v1 Acrobot-v1', 120_000, 10, {}),
    ('peers', 'sac', 'spinup', 'Hopper-v5', 120_000, 3, {}),
    ('peers', 'trpo', 'contrib', 'LunarLander-v3', 200_000, 5,                          # with the zoo's settings
     dict(envs=2, n_steps=512, gae_lambda=0.98, cg_damping=0.01, learning_rate=1e-3, n_critic_updates=15)),
]
STEPS_PER_EPOCH = 4000                                  # the scripts' default
LIBRARIES = 'spinup', 'contrib'                         # Spinning Up and sb3-contrib, for the suite 'peers'
PEERS, SPINNING_UP = FOLDER / '.peers', ROOT.parent / 'spinningup'
ON_POLICY = 'vpg', 'trpo', 'ppo'


# ---- Runs

@dataclass
class Run:
    """One command line of one script."""
    suite: str
    script: str
    env: str
    steps: int
    seed: int
    settings: dict = field(default_factory=dict)
    data_dir: str = 'data/learning'

    def __post_init__(self):
        algo, library = self.script.split('_')
        on_policy = algo in ON_POLICY                       # else steps_per_epoch only sets how often to test
        label = [f'{key}={value}' for key, value in self.settings.items() if library not in LIBRARIES
                 and key not in ('num_cpu', 'env_kwargs') and (on_policy or key != 'steps_per_epoch')]
        self.num_cpu = self.settings.get('num_cpu', 1)
        self.label = ' '.join([self.script, *label, *([f'{self.num_cpu} processes'] if self.num_cpu > 1 else [])])
        self.epochs = self.steps // self.settings.get('steps_per_epoch', STEPS_PER_EPOCH)
        kwargs = dict(env_name=self.env, seed=self.seed, epochs=self.epochs, **self.settings)
        self.flags = [word for key, value in kwargs.items() for word in (f'--{key}', str(value))]
        name, folder = valid_str(self.label), os.path.join(self.data_dir, valid_str(self.env))
        command = [sys.executable, str(ROOT / f'{self.script}.py'), *self.flags, '--exp_name', name,
                   '--data_dir', folder, '--resume', '--quiet']
        place = dict(setup_logger_kwargs(name, self.seed, folder), resume=True)
        if library in LIBRARIES:                            # -E: they are not to find the packages of this environment
            arguments = dict(self.settings, library=library, algo=algo, env=self.env, seed=self.seed,
                             steps=self.steps, every=STEPS_PER_EPOCH, path=f'{place["output_dir"]}/progress.txt',
                             **(dict(checkout=str(SPINNING_UP)) if library == 'spinup' else {}))
            command = [peers_python(PEERS), '-E', str(FOLDER / 'train_peers.py'), json.dumps(arguments)]
        self.experiment = Experiment(command, kwargs, self.num_cpu, place)

    @property
    def key(self):
        return self.label, self.env, self.seed

    def columns(self):
        """What it has logged so far; empty before its first epoch."""
        try:
            found = read_columns(self.experiment.folder / 'progress.txt')
        except OSError:
            return {}
        return found if len(found.get('Epoch', [])) else {}

    def finished(self):
        """Whether nothing is left to do. Other libraries' runs have no checkpoint: a table that is complete."""
        if self.script.split('_')[1] in LIBRARIES:
            return self.done()[0] == self.steps
        return self.experiment.finished()

    def done(self):
        """Steps, and the seconds they took."""
        columns = self.columns()
        return (min(columns['TotalEnvInteracts'][-1], self.steps), columns['Time'][-1]) if columns else (0, 0)

    def __str__(self):
        return f'{self.label}, {self.env}, seed {self.seed}'


def planned(args):
    """The runs of SUITES that the command line selects, seed by seed, so that what is there at any time is balanced.
    Those of other libraries have to be asked for."""
    chosen = vars(args)
    runs, known = {}, dict(suite=set(), scripts=set(), envs=set())
    for order, (suite, algos, frameworks, envs, steps, seeds, settings) in enumerate(SUITES):
        for framework in frameworks.split():
            for algo in algos.split():
                for env in envs.split():
                    row = dict(suite=suite, scripts=f'{algo}_{framework}', envs=env)
                    for key, names in known.items():
                        names.add(row[key])
                    asked_for = chosen['suite'] or chosen['scripts'] or framework not in LIBRARIES
                    if asked_for and all(not chosen[key] or row[key] in chosen[key] for key in row):
                        for seed in range(seeds) if chosen['seeds'] is None else chosen['seeds']:
                            run = Run(suite, row['scripts'], env, steps, seed, settings, args.data_dir)
                            if run.key in runs and seed >= seeds:       # a longer row is only for its own seeds
                                continue
                            first, other = runs.get(run.key, (order, run))
                            runs[run.key] = first, max(run, other, key=lambda run: run.steps)
    for key, names in known.items():
        for word in chosen[key] or ():
            if word not in names:
                raise UserError(f'--{key} {word} is in no suite'
                                f'{nearest(word, names) or ", there are " + " ".join(sorted(names))}')
    if not runs:
        raise UserError(f'no suite has all that is asked for; {COMMAND} --list shows what there is')
    suites = list(dict.fromkeys(suite for suite, *_ in SUITES))
    ordered = sorted(runs.values(), key=lambda pair: (suites.index(pair[1].suite), pair[1].seed, pair[0]))
    return [run for _, run in ordered]


def missing(runs, out):
    """The runs that no table has in full."""
    there = {key: columns['TotalEnvInteracts'].max() for suite in {run.suite for run in runs}
             for key, columns in read_runs(out / 'tables' / f'{suite}.npz').items()}
    return [run for run in runs if there.get(run.key, 0) < run.steps]


def seconds_left(runs, jobs):
    """Estimated from the speed of runs under way: of the same kind, else of the same script, else of its family."""
    measured = {}
    for run in runs:
        steps, seconds = run.done()
        if seconds:
            for kind in (run.script, run.env, run.num_cpu), run.script:
                measured.setdefault(kind, []).append(seconds / steps)
    total = 0
    for run in runs:
        guess = 1 / 4000 if run.script.split('_')[0] in ON_POLICY else 1 / 300
        kind = measured.get((run.script, run.env, run.num_cpu)) or measured.get(run.script) or [guess]
        total += (run.steps - run.done()[0]) * statistics.mean(kind) * min(run.num_cpu, jobs)
    return total / jobs


def duration(seconds):
    minutes = round(seconds / 60)
    return f'{seconds:.0f} s' if seconds < 100 else f'{minutes} min' if minutes < 100 else f'{seconds / 3600:.1f} h'


def carry_out(runs, jobs, ended=lambda run: None):
    """Run all unfinished runs, `jobs` processes at a time. One that fails does not stop the others."""
    waiting, running, failed = [run for run in runs if not run.finished()], [], []
    steps = {id(run): run.done()[0] for run in runs}
    bar = tqdm(total=sum(run.steps for run in runs), initial=sum(steps.values()), unit='step', unit_scale=True,
               disable=None, smoothing=0)
    looked = 0
    try:
        while waiting or running:
            busy = sum(run.num_cpu for run in running)
            while waiting and (not running or busy + waiting[0].num_cpu <= jobs):
                waiting[0].experiment.start()
                busy += waiting[0].num_cpu
                running.append(waiting.pop(0))
            time.sleep(0.2)
            over = [run for run in running if run.experiment.poll()[1]]
            if over or time.time() - looked > 5:
                looked, before = time.time(), sum(steps.values())
                steps.update({id(run): run.done()[0] for run in running})
                left = f'about {duration(seconds_left(runs, jobs))} left'
                bar.set_postfix_str(left, refresh=False)
                bar.update(sum(steps.values()) - before)
            for run in over:
                running.remove(run)
                failed += [run] if run.experiment.error else []
                what = run.experiment.error or f'return {run.experiment.performance()}'
                tqdm.write(f'{len(runs) - len(waiting) - len(running)}/{len(runs)} {run}: {what} '
                           f'({duration(run.experiment.seconds)}); {left}')
                sys.stdout.flush()
                ended(run)
    finally:
        for run in running:
            run.experiment.stop()
        bar.close()
    if failed:
        logs = ', '.join(str(run.experiment.log) for run in failed)
        raise ExperimentFailed(f'{len(failed)} of {len(runs)} runs failed: see {logs}')


def prepare_libraries(runs):
    """What the runs of other libraries need."""
    wanted = {run.script.split('_')[1] for run in runs}.intersection(LIBRARIES)
    if 'spinup' in wanted and not SPINNING_UP.is_dir():
        raise UserError(f'there is no {SPINNING_UP}: git clone https://github.com/openai/spinningup there')
    if wanted and not prepare_peers(PEERS):
        raise UserError('without the peers, their runs cannot be made')


@contextlib.contextmanager
def alone(data_dir):
    """Hold a lock: two of these at once would write into the same folders."""
    os.makedirs(data_dir, exist_ok=True)
    with open(os.path.join(data_dir, 'lock'), 'w') as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f'runs in {data_dir} are going on: wait for them, or give another --data_dir') from None
        yield


# ---- Tables of rows

def collect(suite, runs, out):
    """Put what a suite's runs have logged into its table, unless that has more; and beside it, what they ran on."""
    path = out / 'tables' / f'{suite}.npz'
    path.parent.mkdir(parents=True, exist_ok=True)
    found, new = read_runs(path), False
    for run in runs:
        columns = run.columns() if run.suite == suite else {}
        columns.pop('Performance', None)
        times, known = np.float32(columns.get('Time', [])), found.get(run.key, {}).get('Time', [])
        if len(times) >= len(known) and not np.array_equal(times, known):
            found[run.key], new = columns, True
    if not new:
        return
    names = list(dict.fromkeys(name for columns in found.values() for name in columns))
    numbers = {key: len(columns['Epoch']) for key, columns in found.items()}
    rows = {name: np.repeat([key[i] for key in numbers], list(numbers.values()))
            for i, name in enumerate(('label', 'env', 'seed'))}
    for name in names:
        rows[name] = np.concatenate([columns.get(name, np.full(numbers[key], np.nan))
                                     for key, columns in found.items()]).astype(np.float32)
    with atomic_write(path) as file:
        np.savez_compressed(file, **rows)
    facts = dict(machine=machine(), versions=peers_versions(PEERS) or {} if suite == 'peers' else versions())
    path = out / 'tables' / 'machines.json'
    machines = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    machines[suite] = [other for other in machines.get(suite, []) if {**other, 'date': 0} != {**facts, 'date': 0}]
    machines[suite].append(dict(facts, date=time.strftime('%Y-%m-%d')))
    with atomic_write(path, 'w') as file:
        json.dump(machines, file, indent=1)


# ---- The quick form: do they learn?

# Episodes are truncated early, so that values are wrong if that is mistaken for termination; target networks follow
# faster, so that seconds are enough; PPO does not stop early, so that only its clipping restrains it.
# algorithm: environment, settings, {column: lowest and highest value} for the mean of the last 3 epochs
SHORT = dict(max_ep_len=100, env_kwargs=dict(max_episode_steps=100))        # by the loop, and by the environment
ON_POLICY_QUICK = dict(SHORT, steps_per_epoch=2000, epochs=15)
OFF_POLICY_QUICK = dict(SHORT, steps_per_epoch=1000, epochs=5, start_steps=1000, polyak=0.98, hid='64,64')
LEARNS, VALUES = dict(AverageEpRet=(85, 100)), dict(AverageVVals=(45, 100))
TESTS, FITS = dict(AverageTestEpRet=(-300, 0)), dict(LossQ=(0, 70))
QUICK = {
    'vpg': ('CartPole-v1', dict(ON_POLICY_QUICK, pi_lr=1e-2), {**LEARNS, **VALUES}),
    'trpo': ('CartPole-v1', ON_POLICY_QUICK, {**LEARNS, **VALUES, 'KL': (0.001, 0.01)}),
    'ppo': ('CartPole-v1', dict(ON_POLICY_QUICK, target_kl=1), {**LEARNS, **VALUES, 'KL': (0.001, 0.05)}),
    'ddpg': ('Pendulum-v1', OFF_POLICY_QUICK, {**TESTS, **FITS, 'AverageQVals': (-200, -50)}),
    'td3': ('Pendulum-v1', OFF_POLICY_QUICK, {**TESTS, **FITS, 'AverageQ1Vals': (-200, -50)}),
    'sac': ('Pendulum-v1', OFF_POLICY_QUICK, {**TESTS, **FITS, 'AverageQ1Vals': (-250, -50), 'AverageLogPi': (0, 3)}),
}


def quick(args):
    """Train each script for seconds, and check what it logs against limits that faulty code violates."""
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for framework in 'torch', 'tf1':
            for algo, (env, settings, _) in QUICK.items():
                settings = dict(settings)
                steps = settings.pop('epochs') * settings['steps_per_epoch']
                runs += [Run('quick', f'{algo}_{framework}', env, steps, seed, settings, folder)
                         for seed in args.seeds or [0] if not args.scripts or f'{algo}_{framework}' in args.scripts]
        carry_out(runs, args.jobs)
        lines, wrong = [], 0
        for run in runs:
            columns = run.columns()
            for name, (low, high) in QUICK[run.script.split('_')[0]][2].items():
                value = np.nanmean(columns[name][-3:])
                good = low <= value <= high
                wrong += not good
                lines.append(f'{run.script:12}seed {run.seed}  {name:18}{value:10.4g}   from {low:g} to {high:g}'
                             f'{"" if good else "   WRONG"}')
    print('\n'.join(lines))
    if wrong:
        raise ExperimentFailed(f'{wrong} of {len(lines)} values are outside of their limits')
    print(f'all {len(runs)} runs learn as they should')


# ---- Command line

def parse_args(argv):
    parser = ArgumentParser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add('--suite', nargs='+', help=f'only these: {", ".join(dict.fromkeys(suite for suite, *_ in SUITES))}')
    add('--scripts', nargs='+', help='only these: ppo_torch, say')
    add('--envs', nargs='+', help='only these environments')
    add('--seeds', nargs='+', type=int, help='these seeds (default: 0, 1, ... as many as the suite says)')
    add('--jobs', type=int, default=len(cores()), help='processes at a time (default: one per core)')
    add('--data_dir', default='data/learning', help='folder of the runs (default: %(default)s)')
    add('--out', default=Path(__file__).parent, type=Path, help='folder for tables, figures and RESULTS.md')
    add('--list', action='store_true', help='list the runs, and run nothing')
    add('--missing', action='store_true', help='only the runs that the tables in --out lack')
    add('--summary', action='store_true', help='write RESULTS.md from the runs so far, and run nothing')
    add('--quick', action='store_true', help='a test of all twelve scripts, in less than three minutes')
    args = parser.parse_args(argv)
    if args.jobs < 1 or min(args.seeds or [0]) < 0:
        raise UserError('--jobs takes a number from 1 on, and --seeds numbers from 0 on')
    if not args.out.is_dir():
        raise UserError(f'--out {args.out} is not a folder: make it first')
    return args


def summarize(args):
    """Collect what there is, and write RESULTS.md."""
    suites = [suite for suite, *_ in SUITES]
    everything = planned(Namespace(**dict(vars(args), suite=suites, scripts=None, envs=None, seeds=None)))
    for suite in dict.fromkeys(run.suite for run in everything):
        collect(suite, everything, args.out)
    report(args.out, everything, COMMAND)
    print(f'wrote {args.out / "RESULTS.md"}')


def main(argv=None):
    os.environ.update(ENVIRONMENT)                      # one thread, no accelerator, in every process that is started
    with one_line_errors(COMMAND, '; the same command goes on from here'):
        args = parse_args(argv)
        if args.quick:
            quick(args)
            return
        runs = missing(planned(args), args.out) if args.missing else planned(args)
        if args.list:
            for run in runs:
                print(f'{run.done()[0] / run.steps:5.0%}  {run.suite:18} {run}, {run.steps} steps')
            print(f'{len(runs)} runs, about {duration(seconds_left(runs, args.jobs))} left with {args.jobs} at a time')
        elif args.summary:
            summarize(args)
        else:
            prepare_libraries(runs)
            with alone(args.data_dir):
                try:
                    carry_out(runs, args.jobs, lambda run: collect(run.suite, runs, args.out))
                finally:
                    summarize(args)


if __name__ == '__main__':
    main()
