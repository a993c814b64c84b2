"""Every environment that gymnasium registers, with every script: does it run, and does it resume exactly?

    python -m benchmarks.environments                           all of them, two at a time; about half an hour
    python -m benchmarks.environments --envs CartPole-v1 Pendulum-v1 --scripts ppo_torch sac_tf1

A run of two short epochs is compared with one that stops after the first and is resumed: their tables must be equal in
all columns but Time. Each environment runs in a process of its own. Results: environments.json (every outcome; --envs
replaces those of the environments given) and environments.md (the table).
"""
import argparse
import concurrent.futures
import contextlib
import functools
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium as gym

from common.env_tools import make_registered
from common.errors import ArgumentParser, UserError, nearest, one_line_errors
from common.logx import read_progress

HERE = Path(__file__).parent
SCRIPTS = [f'{algo}_{framework}' for framework in ('torch', 'tf1') for algo in 'vpg ppo trpo ddpg td3 sac'.split()]
SMALL = dict(ac_kwargs=dict(hidden_sizes=(16,)), steps_per_epoch=120, max_ep_len=100, save_freq=1, seed=1)
OFF_POLICY = dict(start_steps=40, update_after=80, update_every=20, batch_size=16, replay_size=150, num_test_episodes=1)
MARKS = dict(exact='=', new='n', refused='-', failed='**!**')
LEGEND = (f'{MARKS["exact"]} runs, and resumes exactly; {MARKS["new"]} runs, and resumes with a new episode, after a '
          f'warning that the environment is not repeatable; {MARKS["refused"]} is refused; {MARKS["failed"]} fails.')


# ---- One environment

def attempt(script, env_name):
    """The outcome of one script on one environment, and the reason given."""
    algo, said = script.split('_')[0], io.StringIO()
    train_fn = getattr(importlib.import_module(script), algo)
    arguments = dict(SMALL, **(OFF_POLICY if algo in ('ddpg', 'td3', 'sac') else {}))

    def table(folder, *epochs):
        for i, n in enumerate(epochs):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                train_fn(functools.partial(make_registered, env_name), epochs=n, **arguments,
                         logger_kwargs=dict(output_dir=folder, resume=i > 0))
        return [{**row, 'Time': ''} for row in read_progress(os.path.join(folder, 'progress.txt'))[1]]
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole, parts = table(f'{folder}/whole', 2), table(f'{folder}/parts', 1, 2)
        except UserError as error:
            return 'refused', str(error)
        except Exception as error:
            return 'failed', f'{type(error).__name__}: {error}'
    if whole == parts:
        return 'exact', ''
    if 'does not repeat its episodes' in said.getvalue():
        return 'new', 'the environment does not repeat its episodes'
    return 'failed', 'it runs, and resumes to another table without a word'


def in_a_process(scripts, env_name):
    """The outcomes of scripts on one environment, in a process of their own, since it may crash the whole process."""
    command = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.environments', '--one', env_name, '--scripts']
    environ = dict(os.environ, OMP_NUM_THREADS='1', TF_CPP_MIN_LOG_LEVEL='3')
    done = subprocess.run([*command, *scripts], capture_output=True, text=True, env=environ, cwd=HERE.parent)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return dict.fromkeys(scripts, ('failed', f'the process ended with status {done.returncode}'))
    return json.loads(lines[-1])


# ---- The table

def reason_only(text, env_name):
    """A message without the environment's name, so that equal reasons are listed once."""
    return text.replace(env_name, 'NAME').splitlines()[0] if text else text


def page(outcomes):
    """environments.md: one row for each environment, with a mark for each script, and the reasons."""
    count = sum(outcome == 'exact' for row in outcomes.values() for outcome, _ in row.values())
    total = sum(map(len, outcomes.values()))
    lines = ['# Every environment of gymnasium, with every script', '', f'{count} of {total} run and resume exactly. '
             + LEGEND, '', f'| | {" | ".join(SCRIPTS)} |', '|---' * (len(SCRIPTS) + 1) + '|']
    for env_name, row in outcomes.items():
        cells = [MARKS[row[script][0]] if script in row else '' for script in SCRIPTS]
        lines.append(f'| {env_name} | {" | ".join(cells)} |')
    reasons = {}
    for env_name, row in outcomes.items():
        for outcome, text in row.values():
            if text:
                names = reasons.setdefault((outcome, reason_only(text, env_name)), [])
                names += [env_name] if env_name not in names else []
    lines += ['', '| | why | environments |', '|---|---|---|']
    lines += [f'| {MARKS[outcome]} | {why} | {", ".join(names)} |' for (outcome, why), names in sorted(reasons.items())]
    return '\n'.join([*lines, '', 'Made by `python -m benchmarks.environments`.', ''])


def main(argv=None):
    parser = ArgumentParser(prog='python -m benchmarks.environments', description=__doc__)
    parser.add_argument('--envs', nargs='+', default=list(gym.registry), help='only these')
    parser.add_argument('--scripts', nargs='+', default=SCRIPTS, help='only these')
    parser.add_argument('--jobs', type=int, default=2, help='environments at a time')
    parser.add_argument('--out', default=str(HERE), help='folder for environments.json and environments.md')
    parser.add_argument('--one', help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for word, names in [*((env, gym.registry) for env in args.envs), *((script, SCRIPTS) for script in args.scripts)]:
        if word not in names:
            raise UserError(f'unknown: {word}{nearest(word, names)}')
    if args.one:
        print(json.dumps({script: attempt(script, args.one) for script in args.scripts}))
        return
    path = Path(args.out) / 'environments.json'
    outcomes = json.loads(path.read_text()) if path.exists() else {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for env_name, row in zip(args.envs, pool.map(functools.partial(in_a_process, args.scripts), args.envs)):
            outcomes[env_name] = {**outcomes.get(env_name, {}), **row}
            print(f'{env_name:<28}', ' '.join(f'{script}:{row[script][0]}' for script in row), flush=True)
            known = {name: outcomes[name] for name in gym.registry if name in outcomes}
            path.write_text(json.dumps(known, indent=1))
            path.with_suffix('.md').write_text(page(known))


if __name__ == '__main__':
    with one_line_errors('environments'):
        main()
