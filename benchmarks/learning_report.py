"""The tables of benchmarks.learning, compared with what is published and written as RESULTS.md."""
import json
import re

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.contest import table
from common.serialization import atomic_write
from tools import plot

SMOOTH = {'HalfCheetah-v5': 44_000, 'Hopper-v5': 44_000, 'Walker2d-v4': 44_000, 'LunarLander-v3': 44_000,
          'Pendulum-v1': 5_000}                                                             # steps; elsewhere none
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
  over 11 epochs; TRPO from its TensorFlow code, whose on-policy curves start lower, the others from PyTorch; on older
  versions of the environments. HalfCheetah-v5 has the same reward, Hopper-v5 differs in the bonus of the terminal step,
  Walker2d is compared as -v4.
- Spinning Up, rerun: its PPO on CartPole-v1, read off a few runs.
- CleanRL: its documentation, training return on -v4; its PPO normalises observations and rewards, ours does not.
- SB3 zoo: the benchmark table of RL Baselines3 Zoo: one trained agent each, with tuned settings, evaluated without
  exploration, whereas on-policy rows here have the training return, with exploration; LunarLander is v2 there.
- ppo_spinup, sac_spinup, trpo_contrib: trained here, by `train_peers.py`. The first two are Spinning Up's PyTorch code,
  with its defaults; these runs are of a copy typed without the docstrings, not of a checkout. Its PPO takes a time
  limit for a termination, as was usual with gym, and drops the episode that the end of an epoch cuts. The third is
  sb3-contrib's TRPO, with the zoo's settings for LunarLander."""


# ---- What the tables do not explain

CARTPOLE = """
Thousands of steps until PPO first reaches 475, seed by seed; at 60k, the return of a policy that has only just learned
still fluctuates, in Spinning Up's own code, too:

{rows}"""
PENDULUM = """
Most of the spread over seeds is that of the initial states of their test episodes, which a seed has in common in all
scripts: compare the columns of the seeds.
"""
ACROBOT = """
**Seeds that stay at -500** have never seen a success. Every step costs 1 until the goal is reached, so before the first
success all returns are equal and the advantages are noise. Uniformly random actions reach the goal in 1 of 57 episodes
of 500 steps: a policy that stayed random would see it soon, but one that drifts first, and loses entropy, may never see
it. Spinning Up's own code has such seeds, too. Epoch of the first success, seed by seed:

{rows}
An experiment: in episodes of 2000 steps, where random actions are successful in 6 of 10, {learned} seeds of PPO learn
(`max_ep_len=2000`, with `--env_kwargs "{{'max_episode_steps': 2000}}"`), seeds {seeds}.
"""
LUNARLANDER = """
**TRPO at 200k steps**: the published figure is one agent's, with settings tuned for this environment, evaluated without
exploration. sb3-contrib's own TRPO, trained here with these settings (`trpo_contrib`), is where ours is: see [other
libraries](#other-libraries-run-here). Agents of both learn to hover before they learn to land, so that their episodes
last for up to 1000 steps, the time limit. Mean length of an episode in the last 20k steps, seed by seed:

{rows}"""
HOPPER = """
**SAC at 100k steps**: its seeds differ widely, and their returns by hundreds from one test to the next. Spinning Up's
own code, trained here on Hopper-v5, is compared with ours under [other libraries](#other-libraries-run-here). Thousands
of steps until a test return of 700 is first reached, seed by seed:

{rows}"""


def explained(env, groups):
    """The text below the table of an environment."""
    def by_seed(labels, value):
        """Curve by curve and seed by seed: value(columns), None for never."""
        found = {label: [value(run.columns) for run in runs] for (label, other), runs in groups.items()
                 if other == env and label in labels}
        return ''.join(f'- {label}: {" ".join("never" if x is None else f"{x:.0f}" for x in values)}\n'
                       for label, values in found.items())

    def first(there, column, unit=1):
        """A column's value in the first epoch in which there(columns) holds."""
        return lambda run: next(iter(run[column][there(run)] / unit), None)

    if env == 'CartPole-v1':
        reached = first(lambda run: run['Performance'] >= 475, 'TotalEnvInteracts', 1000)
        return CARTPOLE.format(rows=by_seed(['ppo_torch', 'ppo_tf1', 'ppo_spinup'], reached))
    if env == 'Pendulum-v1':
        return PENDULUM
    if env == 'Acrobot-v1':
        success = first(lambda run: run['MaxEpRet'] > -500, 'Epoch')
        longer = groups.get(('ppo_torch max_ep_len=2000', env), [])
        learned = sum(run.columns['Performance'][-1] > -200 for run in longer)
        return ACROBOT.format(rows=by_seed(['ppo_torch', 'trpo_torch', 'ppo_spinup'], success),
                              learned=f'{learned} of {len(longer)}', seeds=' '.join(str(run.seed) for run in longer))
    if env == 'Hopper-v5':
        reached = first(lambda run: run['Performance'] >= 700, 'TotalEnvInteracts', 1000)
        return HOPPER.format(rows=by_seed(['sac_torch', 'sac_spinup'], reached))
    if env == 'LunarLander-v3':
        def last_lengths(run):
            return np.nanmean(run['EpLen'][run['TotalEnvInteracts'] > run['TotalEnvInteracts'].max() - 20_000])
        return LUNARLANDER.format(rows=by_seed([label for label, _ in groups if 'trpo' in label], last_lengths))
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

IQM, PAIRED_FROM = plot.ESTIMATORS['iqm'], 5


def window(run):
    """The epochs that make the steps of SMOOTH."""
    return round(SMOOTH.get(run.env_name, 0) / run.columns['TotalEnvInteracts'][0]) or 1


def curves_to(runs, steps, smooth):
    """{seed: (x, y)} of the runs that got this far, with the average over smooth(run) epochs around each."""
    found = {run.seed: plot.run_curve(run, 'TotalEnvInteracts', 'Performance', smooth(run)) for run in runs
             if run.columns['TotalEnvInteracts'].max() >= steps}
    return {seed: curve for seed, curve in found.items() if curve}


def returns_at(runs, steps):
    """{seed: return} of the runs that got this far, averaged over the steps of SMOOTH around it."""
    return {seed: np.interp(steps, x, y) for seed, (x, y) in curves_to(runs, steps, window).items()}


def mean_returns(runs, steps):
    """{seed: mean of the curve up to these steps} of the runs that got this far: it says how fast they learned."""
    return {seed: y[x <= steps].mean() for seed, (x, y) in curves_to(runs, steps, lambda run: 1).items()}


def iqm_interval(values):
    """Interquartile mean and its 95 % interval, which a single seed does not have."""
    low, high = plot.confidence_interval(values, IQM) if len(values) > 1 else (np.nan, np.nan)
    return IQM(values), *np.ravel([low, high])


def difference(ours, theirs, paired=False):
    """Difference of two {seed: value} and its 95 % interval. Paired, with enough seeds in common: the interquartile
    mean of the differences seed by seed. Else: that of the interquartile means, by Student's t with one variance for
    both, which also serves where one of them is a single seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    if paired and len(seeds) >= PAIRED_FROM:
        return iqm_interval(np.array([ours[seed] - theirs[seed] for seed in seeds]))
    ours, theirs = [np.array(list(group.values())) for group in (ours, theirs)]
    centre = IQM(ours) - IQM(theirs)
    (n, squares), (m, more_squares) = [plot.kept_and_squares(group, IQM) for group in (ours, theirs)]
    if n + m < 3:
        return centre, np.nan, np.nan
    half = t_975(n + m - 2) * np.sqrt((squares + more_squares) / (n + m - 2) * (1 / n + 1 / m))
    return centre, centre - half, centre + half


def t_975(freedom):
    return plot.T_975[min(freedom, len(plot.T_975)) - 1]


def verdict(values, mean, deviation):
    """Where an interquartile mean lies relative to the published mean ± deviation; or, where the published figure is
    one agent's, where that agent lies relative to the 95 % prediction interval of one more seed."""
    (centre, low, high), n = iqm_interval(values), len(values)
    if deviation is None:
        if n == 1:
            return 'one seed each'
        half = t_975(n - 1) * values.std(ddof=1) * np.sqrt(1 + 1 / n)
        return 'within' if abs(values.mean() - mean) <= half else 'above' if values.mean() > mean else 'below'
    if abs(centre - mean) <= deviation:
        return 'within'
    side, touches = ('above', low <= mean + deviation) if centre > mean else ('below', high >= mean - deviation)
    return f'{side}, intervals overlap' if touches else side


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
    """{(label, environment): runs, by their seeds}."""
    groups = {}
    for run in data:
        groups.setdefault((run.condition, run.env_name), []).append(run)
    return {key: sorted(runs, key=lambda run: run.seed) for key, runs in groups.items()}


def last_steps(runs):
    return max(run.columns['TotalEnvInteracts'].max() for run in runs)


def rows_of(label, env, runs):
    """Lines of an environment's table: one for each step count with a published figure, and one for the end."""
    figures, end = published(label, env), last_steps(runs)
    figures = [figure for figure in figures if len(returns_at(runs, figure[0]))]
    if end > 1.25 * max([steps for steps, *_ in figures], default=0):
        figures.append((end, None, None, None))
    for steps, source, mean, deviation in figures:
        values = np.array(list(returns_at(runs, steps).values()))
        result, limit = iqm_interval(values), LEARNED.get(env)
        learned = '' if limit is None else f'{(values >= limit).sum()} of {len(values)}'
        each = ' '.join(number(value) for value in values) if steps == figures[-1][0] else ''
        theirs = '' if source is None else number(mean) + ('' if deviation is None else f' ± {number(deviation)}')
        itself = source is None or 'spinup' in label and 'Spinning Up' in source
        yield [label, plot.thousands(steps), len(values), with_interval(*result), each, learned, theirs, source or '',
               '' if itself else verdict(values, mean, deviation)]


def twins_of(groups, swap, paired):
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
            results = [difference(*pair, paired) for pair in pairs]
            equal = ['one seed each' if np.isnan(low) else 'yes' if low <= 0 <= high else 'no'
                     for _, low, high in results]
            yield [*line, ' and '.join(str(len(group)) for group in pairs[0]), *map(with_interval, *zip(*results)),
                   equal[0] if len(set(equal)) == 1 else ' / '.join(equal)]


def draw(name, data, path):
    """A panel for each environment: curves, and published points with their deviation in the algorithm's colour."""
    envs, labels = list(dict.fromkeys(run.env_name for run in data)), plot.curve_labels(data)
    looks, numbers, columns = plot.curve_looks(labels), set(), min(3, len(envs))
    rows, figure = -(-len(envs) // columns), plt.figure(layout='constrained')
    with plt.rc_context(plot.STYLE):
        figure.set_size_inches(max(5.6, 4.4 * columns), 3.4 * rows)
        for i, env in enumerate(envs):
            ax, here = figure.add_subplot(rows, columns, i + 1), [run for run in data if run.env_name == env]
            drawn = plot.plot_data(here, smooth=window(here[0]), estimator='iqm', ax=ax, labels=labels)
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
                and run.path not in ('processes', 'peers')
                and not re.search('steps_per_epoch|max_ep_len', run.condition)]
    several = {(run.condition.split(' ')[0], run.env_name) for run in data if 'processes' in run.condition}
    return [run for run in data if (run.condition.split(' ')[0], run.env_name) in several
            and (' ' not in run.condition or 'processes' in run.condition)]


INTRO = """\
# Learning results

Written by `{command} --summary` from the logged rows of all runs, in [tables/](tables). Each run is a
command line of its script, with default settings except for those after its name, for its number of epochs, and on
Pendulum-v1 for a test after every 1000 steps. Every seed that was run to its end is included.

- **Return**: on-policy, of the training episodes of an epoch (`AverageEpRet`); off-policy, of 10 test episodes without
  exploration (`AverageTestEpRet`). Each run is averaged over the epochs around a step count, or those that there are
  at its end: 11 epochs of 4000 steps for MuJoCo, as in Spinning Up's published curves, and for LunarLander; 5 of 1000
  steps on Pendulum-v1; elsewhere there is no smoothing.
- **Interval**: interquartile mean over seeds (with fewer than four seeds, the mean) and its 95 % interval. With 8 seeds
  or more, the interval is a bootstrap over seeds, as in rliable, which covers the true value about 92 times in 100.
  With fewer seeds it does so less often (76 times with 3), so Student's t for trimmed means is used instead (Tukey and
  McLaughlin, 1963).
- **Verdict**: whether the interquartile mean is within one standard deviation of the published mean, above or below it,
  and if not, whether its interval overlaps with theirs. An equal algorithm is outside by chance in one row of nine
  with 5 seeds, in one of six with 3. Where the published figure is one agent's, without a deviation: whether that
  agent is within the 95 % prediction interval of one more of our seeds.
- **Learned**: seeds whose return at that step count is at least {learned}.
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
    header = ['', 'compared with', '', 'steps', 'seeds', 'difference there', 'difference of curve means', '0 in both']
    for title, compared in TWINS.items():
        lines = list(twins_of(groups, *compared))
        if lines:
            equal = sum(line[-1] == 'yes' for line in lines)
            parts.append(f'## {title}\n\n{COMPARED}\n{equal} of {len(lines)} rows have 0 in both intervals.\n\n'
                         f'{table(header, lines)}')
    parts += [f'## Where the published figures come from\n\n{SOURCES}\n', how_and_where(runs, data, machines, command)]
    text = '\n'.join(parts)
    with atomic_write(out / 'RESULTS.md', 'w') as file:
        file.write(text)
    return text


COMPARED = f"""\
Differences between interquartile means, with 95 % intervals. Twins begin equal with one seed and stay similar for a
while, so with {PAIRED_FROM} seeds or more it is the interquartile mean of their differences seed by seed. Where nothing
differs, one interval in twenty misses 0 by chance, and about one row in ten has such an interval. The mean of a curve,
up to that step count, says how fast it rose."""
# Title: the labels of what a curve is compared with, and whether they are its twins.
TWINS = {'PyTorch and TensorFlow': (lambda label: [label.replace('_torch', '_tf1')], True),
         'One process and several': (lambda label: [label.removesuffix(' 4 processes')], False),
         'Other libraries, run here': (lambda label: [] if re.search('processes|max_ep_len', label) else [
             re.sub('_torch.*', f'_{library}', label) for library in ('spinup', 'contrib')], False)}


def how_and_where(runs, data, machines, command):
    """Commands, times, machines, and which runs are missing."""
    reached = {(run.condition, run.env_name, run.seed): run.columns for run in data}
    lines, missing = [], []
    for suite in dict.fromkeys(run.suite for run in runs):
        there = [run for run in data if run.path == suite]
        on = '; '.join(f'{facts["machine"]}, {facts["date"]}' for facts in machines.get(suite, []))
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
            f'`{command}` runs all but the other libraries, and continues where it\n'
            'was stopped; with `--suite`, `--scripts`, `--envs` and `--seeds`, it runs a part. A run is a command such '
            'as\n\n'
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
