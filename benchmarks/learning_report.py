"""The tables of benchmarks.learning, compared with what is published and written as RESULTS.md."""
import json
import re

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.contest import table
from common.serialization import atomic_write
from tools import plot

SMOOTH = {'HalfCheetah-v5': 11, 'Hopper-v5': 11, 'Walker2d-v4': 11, 'Pendulum-v1': 5}       # epochs; elsewhere none
LEARNED = {'CartPole-v1': 475, 'Acrobot-v1': -100, 'LunarLander-v3': 200,                   # gymnasium's own, and
           'Pendulum-v1': -200}                                                             # ours
FIGURES = dict(on_policy='vpg trpo ppo', off_policy='ddpg td3 sac', processes='')           # algorithms in each

# ---- What is published: {(algorithm, environment): {steps: (mean, standard deviation over seeds or None)}}
K, M = 1000, 1_000_000
PUBLISHED = {
    'Spinning Up (10 seeds)': {
        ('vpg', 'HalfCheetah-v5'): {100*K: (-269, 33), 200*K: (-230, 25), 300*K: (-209, 26), M: (-49, 102)},
        ('vpg', 'Hopper-v5'): {100*K: (99, 21), 200*K: (163, 18), 300*K: (202, 13), M: (391, 37)},
        ('trpo', 'HalfCheetah-v5'): {100*K: (-576, 99), 200*K: (-459, 105), 300*K: (-330, 111), M: (720, 278)},
        ('trpo', 'Hopper-v5'): {100*K: (248, 67), 200*K: (356, 152), 300*K: (458, 207), M: (1161, 319)},
        ('ppo', 'HalfCheetah-v5'): {100*K: (-60, 53), 200*K: (235, 101), 300*K: (559, 105), M: (1733, 521)},
        ('ppo', 'Hopper-v5'): {100*K: (249, 57), 200*K: (373, 114), 300*K: (517, 148), M: (1770, 498)},
        ('ppo', 'Walker2d-v4'): {100*K: (291, 25), 200*K: (317, 32), 300*K: (343, 38), M: (1211, 321)},
        ('ddpg', 'HalfCheetah-v5'): {100*K: (4339, 1014), 200*K: (6539, 1163), 300*K: (7757, 1341)},
        ('ddpg', 'Hopper-v5'): {100*K: (641, 108), 200*K: (1012, 241), 300*K: (1443, 242)},
        ('td3', 'HalfCheetah-v5'): {100*K: (5242, 632), 200*K: (6817, 661), 300*K: (7625, 593)},
        ('td3', 'Hopper-v5'): {100*K: (785, 355), 200*K: (1751, 755), 300*K: (2402, 867)},
        ('sac', 'HalfCheetah-v5'): {100*K: (6081, 470), 200*K: (7932, 847), 300*K: (9163, 819)},
        ('sac', 'Hopper-v5'): {100*K: (1164, 301), 200*K: (2247, 502), 300*K: (2887, 417)}},
    'Spinning Up, rerun': {('ppo', 'CartPole-v1'): {40*K: (300, None), 60*K: (500, None)}},
    'CleanRL (3 seeds)': {('ppo', 'HalfCheetah-v5'): {M: (1443, 46)}, ('ppo', 'Hopper-v5'): {M: (2383, 272)}},
    'SB3 zoo': {
        ('ppo', 'CartPole-v1'): {100*K: (500, None)}, ('trpo', 'CartPole-v1'): {100*K: (500, None)},
        ('ddpg', 'Pendulum-v1'): {20*K: (-152, None)}, ('td3', 'Pendulum-v1'): {20*K: (-152, None)},
        ('sac', 'Pendulum-v1'): {20*K: (-157, None)}, ('trpo', 'LunarLander-v3'): {200*K: (133, None)}}}
SOURCES = """\
- Spinning Up: the curves in openai/spinningup, `docs/images/plots`, mean and standard deviation over 10 seeds, averaged
  over 11 epochs; TRPO from its TensorFlow code, the others from PyTorch, on older versions of the environments.
  HalfCheetah-v5 has the same reward, Hopper-v5 differs in the bonus of the terminal step, Walker2d is compared as -v4.
- Spinning Up, rerun: its PPO on CartPole-v1, approximately.
- CleanRL: its documentation, training return on -v4; its PPO normalises observations and rewards, ours does not.
- SB3 zoo: the benchmark table of RL Baselines3 Zoo: one trained agent each, with tuned settings, evaluated without
  exploration, whereas on-policy rows here have the training return, with exploration."""


# ---- What the tables do not explain

CARTPOLE = """
**PPO at 60k steps**: the published figure says that 500 is reached by then, and our runs get there at about that time,
too; at 60k itself, the return of a policy that has only just learned still fluctuates. Thousands of steps until 475 is
first reached, seed by seed:

{rows}"""
ACROBOT = """
**Seeds that stay at -500** have never seen a success. Every step costs 1 until the goal is reached, so before the first
success all returns are equal and the advantages are noise; the policy drifts, and its entropy falls. Uniformly random
actions reach the goal in 1 of 200 episodes, so it is a matter of luck whether a run starts to learn. Epoch of the first
success, seed by seed:

{rows}
An experiment: in episodes of 2000 steps, where successes are less rare, seed 1 of ppo_torch, which never starts to
learn otherwise, is at -98 after 88k steps and at -85 after 184k:

    python ppo_torch.py --env Acrobot-v1 --seed 1 --env_kwargs "{{'max_episode_steps': 2000}}" --max_ep_len 2000
"""
LUNARLANDER = """
**TRPO at 200k steps**: the published figure is that of one agent, trained with settings tuned for this environment:
1024 steps between updates, lam=0.98 and damping_coeff=0.01 among them. With about these, our seeds differ by more than
100 from one another, as they do with the defaults. Where episodes are close to 1000 steps long, the time limit, the
lander has learned to hover and not to land. Mean length of an episode at the end, seed by seed:

{rows}"""


def explained(env, groups):
    """The text below the table of an environment."""
    def first(scripts, there, column, unit=1):
        """Script by script and seed by seed: a column's value in the first epoch in which there(columns) holds."""
        found = {label: [run.columns[column][there(run.columns)][:1] / unit for run in runs]
                 for (label, other), runs in groups.items() if other == env and label in scripts}
        return ''.join(f'- {label}: {" ".join(f"{x[0]:.0f}" if len(x) else "never" for x in seeds)}\n'
                       for label, seeds in found.items())
    if env == 'CartPole-v1':
        return CARTPOLE.format(rows=first(['ppo_torch', 'ppo_tf1'], lambda run: run['Performance'] >= 475,
                                          'TotalEnvInteracts', 1000))
    if env == 'LunarLander-v3':
        return LUNARLANDER.format(rows=first([label for label, _ in groups if 'trpo' in label],
                                             lambda run: run['Epoch'] == run['Epoch'].max(), 'EpLen'))
    if env == 'Acrobot-v1':
        return ACROBOT.format(rows=first(['ppo_torch', 'trpo_torch'], lambda run: run['MaxEpRet'] > -500, 'Epoch'))
    return ''


# ---- Tables of rows

def read_runs(path):
    """{(label, environment, seed): {column: values}} of a table."""
    if not path.exists():
        return {}
    rows = dict(np.load(path))
    keys = list(zip(rows.pop('label').tolist(), rows.pop('env').tolist(), rows.pop('seed').tolist()))
    where = {key: [i for i, other in enumerate(keys) if other == key] for key in dict.fromkeys(keys)}
    return {key: {name: column[found] for name, column in rows.items() if np.isfinite(column[found]).any()}
            for key, found in where.items()}


def read_tables(out, suites):
    """All runs of all tables, in the plotter's form."""
    data = []
    for suite in suites:
        for (label, env, seed), columns in read_runs(out / 'tables' / f'{suite}.npz').items():
            empty = np.full(len(columns['Epoch']), np.nan)
            columns['Performance'] = columns.get('AverageTestEpRet', columns.get('AverageEpRet', empty))
            data.append(plot.Dataset(suite, label, env, seed, columns, {}))
    return data


# ---- Statistics

IQM = plot.ESTIMATORS['iqm']


def curves_to(runs, steps, smooth):
    """(x, y) of each run that got this far, averaged over `smooth` epochs."""
    found = [plot.run_curve(run, 'TotalEnvInteracts', 'Performance', smooth) for run in runs
             if run.columns['TotalEnvInteracts'].max() >= steps]
    return [curve for curve in found if curve]


def returns_at(runs, steps):
    """Return of each run that got this far, averaged over the epochs of SMOOTH around it; seed by seed."""
    smooth = SMOOTH.get(runs[0].env_name, 1)
    return np.array([np.interp(steps, x, y) for x, y in curves_to(runs, steps, smooth)])


def mean_returns(runs, steps):
    """The mean of the curve up to these steps, of each run that got this far: it says how fast the run learned."""
    return np.array([y[x <= steps].mean() for x, y in curves_to(runs, steps, 1)])


def iqm_interval(values):
    """Interquartile mean and its 95 % interval, which a single seed does not have."""
    low, high = plot.confidence_interval(values, IQM) if len(values) > 1 else (np.nan, np.nan)
    return IQM(values), *np.ravel([low, high])


def difference(ours, theirs):
    """Difference of interquartile means and its 95 % interval: each group resampled by itself (a stratified bootstrap),
    or with few seeds Student's t with one variance for both, which also serves where one of them is a single seed."""
    centre, few = IQM(ours) - IQM(theirs), min(len(ours), len(theirs)) < plot.T_BELOW[IQM]
    if not few:
        rng = np.random.default_rng(0)
        resampled = [IQM(group[rng.integers(len(group), size=(len(group), 10_000))]) for group in (ours, theirs)]
        return centre, *np.percentile(np.subtract(*resampled), [2.5, 97.5])
    (n, squares), (m, more_squares) = [plot.kept_and_squares(group, IQM) for group in (ours, theirs)]
    if n + m < 3:
        return centre, np.nan, np.nan
    half = plot.T_975[n + m - 3] * np.sqrt((squares + more_squares) / (n + m - 2) * (1 / n + 1 / m))
    return centre, centre - half, centre + half


def verdict(centre, low, high, mean, deviation):
    """Where an interquartile mean lies relative to the published mean ± deviation; or, for a figure without one,
    whether the interval contains that figure."""
    if deviation is None:
        low, high = (centre, centre) if np.isnan(low) else (low, high)
        return 'within' if low <= mean <= high else 'above' if centre > mean else 'below'
    if abs(centre - mean) <= deviation:
        return 'within'
    side, touches = ('above', low <= mean + deviation) if centre > mean else ('below', high >= mean - deviation)
    return f'{side}, but its interval overlaps' if touches else side


def published(label, env):
    """[(steps, source, mean, deviation)] for a curve."""
    algo = label.split('_')[0]
    return sorted((steps, source, *figure) for source, figures in PUBLISHED.items()
                  for steps, figure in figures.get((algo, env), {}).items())


# ---- Text

def number(x):
    return f'{x:.0f}' if abs(x) >= 10 else f'{x:.1f}'


def with_interval(centre, low, high):
    return number(centre) + ('' if np.isnan(low) else f' [{number(low)}, {number(high)}]')


def curves(data):
    """{(label, environment): runs}."""
    groups = {}
    for run in data:
        groups.setdefault((run.condition, run.env_name), []).append(run)
    return groups


def last_steps(runs):
    return max(run.columns['TotalEnvInteracts'].max() for run in runs)


def rows_of(label, env, runs):
    """Lines of an environment's table: one for each step count with a published figure, and one for the end."""
    figures, end = published(label, env), last_steps(runs)
    figures = [figure for figure in figures if len(returns_at(runs, figure[0]))]
    if end > 1.25 * max([steps for steps, *_ in figures], default=0):
        figures.append((end, None, None, None))
    for steps, source, mean, deviation in figures:
        values = returns_at(runs, steps)
        result, limit = iqm_interval(values), LEARNED.get(env)
        learned = '' if limit is None else f'{(values >= limit).sum()} of {len(values)}'
        each = ' '.join(number(value) for value in values) if steps == figures[-1][0] else ''
        theirs = '' if source is None else number(mean) + ('' if deviation is None else f' ± {number(deviation)}')
        yield [label, plot.thousands(steps), len(values), with_interval(*result), each, learned, theirs, source or '',
               '' if source is None else verdict(*result, mean, deviation)]


def twins_of(groups, swap):
    """Lines of the table that compares each curve with those whose label is among swap(label)."""
    pairs = [(label, other, env) for label, env in groups for other in swap(label) if other != label]
    for label, other, env in pairs:
        runs, others = groups[label, env], groups.get((other, env), [])
        if not others:
            continue
        shared = min(last_steps(runs), last_steps(others))
        steps = max([steps for steps, *_ in published(label, env) if .8 * shared <= steps <= shared], default=shared)
        line = [label, other, env, plot.thousands(steps)]
        pairs = [[function(group, steps) for group in (runs, others)] for function in (returns_at, mean_returns)]
        if all(len(group) for pair in pairs for group in pair):
            results = [difference(*pair) for pair in pairs]
            same = ['one seed each' if np.isnan(low) else 'yes' if low <= 0 <= high else 'no'
                    for _, low, high in results]
            yield [*line, ' and '.join(str(len(group)) for group in pairs[0]), *map(with_interval, *zip(*results)),
                   same[0] if len(set(same)) == 1 else ' / '.join(same)]


def draw(name, data, path):
    """A panel for each environment: curves, and published points with their deviation in the algorithm's colour."""
    envs, labels = list(dict.fromkeys(run.env_name for run in data)), plot.curve_labels(data)
    looks, numbers, columns = plot.curve_looks(labels), set(), min(3, len(envs))
    rows, figure = -(-len(envs) // columns), plt.figure(layout='constrained')
    with plt.rc_context(plot.STYLE):
        figure.set_size_inches(max(5.6, 4.4 * columns), 3.4 * rows)
        for i, env in enumerate(envs):
            ax, here = figure.add_subplot(rows, columns, i + 1), [run for run in data if run.env_name == env]
            drawn = plot.plot_data(here, smooth=SMOOTH.get(env, 1), estimator='iqm', ax=ax, labels=labels)
            numbers.update(n for *_, seeds in drawn.values() for n in seeds if n > 1)
            heights = [centre for _, centre, *_ in drawn.values()]
            for label in drawn:
                figures = published(label, env) if ' ' not in label and '_torch' in label else []
                for steps, _, mean, deviation in figures:
                    if steps <= last_steps(here):
                        ax.errorbar(steps, mean, deviation, fmt='*', color=looks[label]['color'], markersize=12,
                                    capsize=4, markeredgecolor='white', zorder=5)
                        heights.append([mean - (deviation or 0), mean + (deviation or 0)])
            # With few seeds, an interval may be wider than the range of all returns: the panel's edge cuts it off.
            bottom, top = np.nanmin(np.concatenate(heights)), np.nanmax(np.concatenate(heights))
            ax.set_ylim(bottom - 0.1 * (top - bottom), top + 0.1 * (top - bottom))
            ax.set(title=env, xlabel=plot.LABELS['TotalEnvInteracts'])
            ax.set_ylabel('' if i % columns else plot.LABELS['Performance'])
        ax.plot([], [], '*', color='0.4', markersize=12, label='published: mean and deviation')
        plot.add_legend(figure, f'interquartile mean and {plot.interval_name("iqm", numbers or {1})} over seeds')
        plot.save(figure, str(path))
    plt.close(figure)


def chosen_for(figure, data):
    """The runs of a figure: of a family on all environments, or those made with one process and with several."""
    if FIGURES[figure]:
        return [run for run in data if run.condition.split('_')[0] in FIGURES[figure].split()
                and run.path not in ('processes', 'peers') and 'steps_per_epoch' not in run.condition]
    several = {(run.condition.split(' ')[0], run.env_name) for run in data if 'processes' in run.condition}
    return [run for run in data if (run.condition.split(' ')[0], run.env_name) in several
            and (' ' not in run.condition or 'processes' in run.condition)]


INTRO = """\
# Learning results

Written by `{command} --summary` from the logged rows of all runs, in [tables/](tables). Each run is a
command line of its script with default settings, except for those after its name; every seed that ran is included.

- **Return**: on-policy, of the training episodes of an epoch (`AverageEpRet`); off-policy, of 10 test episodes without
  exploration (`AverageTestEpRet`). Each run is averaged over the epochs around a step count: 11 epochs for MuJoCo, as
  in Spinning Up's published curves; 5, of 1000 steps each, on Pendulum-v1; elsewhere there is no smoothing.
- **Interval**: interquartile mean over seeds (with fewer than four seeds, the mean) and its 95 % interval. With 8 seeds
  or more, the interval is a bootstrap over seeds, as in rliable. With fewer, that would be too narrow (with 5 it covers
  the true value 90 times in 100, with 3 it does 76 times), so Student's t for trimmed means is used instead (Tukey and
  McLaughlin, 1963).
- **Verdict**: whether the interquartile mean is within one standard deviation of the published mean, above or below it;
  where no deviation is published, whether the interval contains the published figure.
- **Learned**: seeds that reach {learned}.
"""


def report(out, runs, command):
    """RESULTS.md and its figures, from the tables in out/tables. runs: those that are planned."""
    data = read_tables(out, dict.fromkeys(run.suite for run in runs))
    machines = out / 'tables' / 'machines.json'
    machines = json.loads(machines.read_text(encoding='utf-8')) if machines.exists() else {}
    groups, single = curves(data), curves(run for run in data if 'processes' not in run.condition)
    learned = ', '.join(f'{limit} on {env}' for env, limit in LEARNED.items())
    parts = [INTRO.format(command=command, learned=learned)]
    (out / 'figures').mkdir(exist_ok=True)
    for figure in FIGURES:
        shown = chosen_for(figure, data)
        if shown:
            draw(figure, shown, out / 'figures' / f'learning_{figure}.png')
            parts.append(f'![Learning curves: {figure.replace("_", " ")}](figures/learning_{figure}.png)\n')
    for env in dict.fromkeys(env for _, env in single):
        lines = [line for (label, other), group in single.items() if other == env
                 for line in rows_of(label, env, group)]
        header = ['', 'steps', 'seeds', 'return [95 % interval]', 'seed by seed', 'learned', 'published', 'source',
                  'verdict']
        empty = [i for i in range(len(header)) if i and not any(line[i] for line in lines)]
        rows = [[cell for i, cell in enumerate(line) if i not in empty] for line in [header, *lines]]
        parts.append(f'## {env}\n\n{table(rows[0], rows[1:])}{explained(env, single)}')
    header = ['', 'compared with', '', 'steps', 'seeds', 'difference there', 'difference of curve means', 'same']
    for title, swap in TWINS.items():
        lines = list(twins_of(groups, swap))
        if lines:
            same = sum(line[-1] == 'yes' for line in lines)
            parts.append(f'## {title}\n\nDifferences between interquartile means with 95 % intervals, of which one in '
                         f'twenty misses 0 by chance. {same} of {len(lines)} rows have 0 in both.\n\n'
                         f'{table(header, lines)}')
    parts += [f'## Where the published figures come from\n\n{SOURCES}\n', how_and_where(runs, data, machines, command)]
    text = '\n'.join(parts)
    with atomic_write(out / 'RESULTS.md', 'w') as file:
        file.write(text)
    return text


# Title: the labels of what a curve is compared with.
TWINS = {'PyTorch and TensorFlow': lambda label: [label.replace('_torch', '_tf1')],
         'One process and several': lambda label: [label.removesuffix(' 4 processes')],
         'Other libraries, run here': lambda label: [] if 'processes' in label else [
             re.sub('_torch.*', f'_{library}', label) for library in ('spinup', 'contrib')]}


def how_and_where(runs, data, machines, command):
    """Commands, times, machines, and which runs are missing."""
    reached = {(run.condition, run.env_name, run.seed): run.columns for run in data}
    lines, missing = [], []
    for suite in dict.fromkeys(run.suite for run in runs):
        there = [run for run in data if run.path == suite]
        on = '; '.join(f'{facts["machine"]}, {facts["jobs"]} at a time, {facts["date"]}'
                       for facts in machines.get(suite, []))
        seconds = sum(run.columns['Time'].max() for run in there)
        lines.append([f'`{command} --suite {suite}`', len(there), f'{seconds / 3600:.1f} h', on])
        for label, env in dict.fromkeys((run.label, run.env) for run in runs if run.suite == suite):
            wanted = [run for run in runs if (run.suite, run.label, run.env) == (suite, label, env)]
            never = [str(run.seed) for run in wanted if run.key not in reached]
            short = [str(run.seed) for run in wanted if run.key in reached
                     and reached[run.key]['TotalEnvInteracts'].max() < run.steps]
            missing += [f'- {label}, {env}: seeds {" ".join(never)}'] if never else []
            missing += [f'- {label}, {env}: seeds {" ".join(short)} are not finished'] if short else []
    times = [[label, env, plot.thousands(last_steps(group)), f'{rate(group):.0f}', f'{run_time(group):.0f} s']
             for (label, env), group in curves(data).items()]
    used = {json.dumps(facts['versions']): facts['versions'] for entries in machines.values() for facts in entries}
    software = '; '.join(', '.join(f'{name} {version}' for name, version in found.items()) for found in used.values())
    example = next((run for run in runs if run.settings), runs[0])
    return ('## How to reproduce it, what it ran on, and how long it took\n\n'
            f'`{command}` runs everything, and continues where it was stopped; with\n'
            '`--scripts`, `--envs` and `--seeds`, it runs a part. A run is a command such as\n\n'
            f'    python {example.script}.py {" ".join(example.flags)}\n\n'
            + table(['', 'runs', 'time of all runs', 'on'], lines) + f'\nSoftware: {software}.\n\n'
            'The times say how long to wait, not how fast the scripts are (for that see [speed.md](speed.md)): the\n'
            'runs share their machine with whatever else it does.\n\n'
            + table(['', '', 'steps', 'steps/s', 'time of a run'], times)
            + ('\n## Not run yet\n\n' + '\n'.join(missing) + '\n' if missing else ''))


def run_time(runs):
    return np.mean([run.columns['Time'].max() for run in runs])


def rate(runs):
    return np.mean([run.columns['TotalEnvInteracts'].max() / run.columns['Time'].max() for run in runs])
