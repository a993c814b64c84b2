"""Learning curves from the progress.txt files of runs.

    python -m common.run plot data/ppo_torch data/sac_torch -y Performance -s 5 --out curves.png

Runs with one exp_name in one environment make one curve: the estimate over their seeds, thin where not all seeds have
arrived yet, in a band that shows its uncertainty. If their settings differ, they make several. Each environment and
value has its panel. From Python, make_plots draws the figure, plot_data one panel, and get_all_datasets only reads.
"""
import contextlib
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
import numpy as np

from common.errors import ArgumentParser, UserError, nearest, one_line_errors, printable
from common.logx import MAY_CHANGE, read_progress
from common.serialization import read_json

# Okabe and Ito's colours without yellow, too pale for a line. With 7 colours and 4 dashes, 28 curves differ; dashes and
# markers tell them apart in grey print. Twins, ppo_torch and ppo_tf1, share a colour and a marker.
COLORS = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#000000', '#E69F00', '#56B4E9']
DASHES = ['-', (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2))]
MARKERS = ['o', 's', '^', 'D', 'v', 'p', '<', 'h', '>']
STYLE = {'font.size': 11, 'axes.titlesize': 12, 'legend.fontsize': 10.5, 'legend.title_fontsize': 9.5,
         'legend.handlelength': 3.2, 'axes.grid': True, 'axes.axisbelow': True, 'grid.color': '0.9',
         'axes.edgecolor': '0.4', 'axes.spines.top': False, 'axes.spines.right': False, 'lines.linewidth': 1.8,
         'lines.markersize': 6.5, 'lines.markeredgewidth': 0.7, 'lines.dash_capstyle': 'butt', 'savefig.dpi': 200,
         'savefig.bbox': 'tight', 'pdf.fonttype': 42, 'svg.hashsalt': 'plot', 'text.parse_math': False}
METADATA = {'.png': {}, '.svg': {'Date': None}, '.pdf': {'CreationDate': None}}     # no dates: same data, same file
LABELS = {'TotalEnvInteracts': 'Environment steps', 'Performance': 'Average return', 'Time': 'Time (s)',
          'AverageEpRet': 'Average return (training)', 'AverageTestEpRet': 'Average return (test)'}
MAX_POINTS, RESAMPLES = 1000, 1000
NO_SETTINGS = {'seed', 'env_name', 'num_procs', *MAY_CHANGE}                # runs of one curve may differ in these


# %% Reading runs
@dataclass
class Dataset:
    """One run: columns maps a name to a float array with one value per epoch, nan where the cell is empty."""
    path: str
    condition: str                       # name of its curve: runs of one condition are estimated together
    env_name: str
    seed: object
    columns: dict
    config: dict                         # config.json, with what is in ac_kwargs beside the rest


def number(cell):
    """nan where a cell is empty, or holds a word."""
    try:
        return float(cell)
    except ValueError:
        return np.nan


def read_columns(path):
    """The columns of a progress.txt as arrays, and Performance: the return of test episodes, or else of training."""
    names, rows = read_progress(path)
    columns = {name: np.array([number(row[name]) for row in rows]) for name in names}
    for source in ('AverageEpRet', 'AverageTestEpRet'):          # the second where there were tests
        if source in columns and ('Performance' not in columns or np.isfinite(columns[source]).any()):
            columns['Performance'] = columns[source]
    return columns


def get_datasets(logdir, condition=None):
    """All runs at or below logdir. Their condition is the one given, else exp_name, else the folder's name."""
    datasets = []
    for folder, subfolders, files in os.walk(logdir):
        subfolders.sort()
        if 'progress.txt' in files:
            try:
                config = read_json(os.path.join(folder, 'config.json'))
                config.update(config.pop('ac_kwargs', None) or {})
            except (UserError, ValueError, TypeError):
                config = {}
            stem = re.sub(r'^\d{4}-\d\d-\d\d_(\d\d-\d\d-\d\d-)?|_s\d+$', '', os.path.basename(os.path.abspath(folder)))
            config = {key: value for key, value in config.items() if value is not None}     # as exp_name in Python
            name, env_name, seed = [printable(config.get(key, '')) for key in ('exp_name', 'env_name', 'seed')]
            datasets.append(Dataset(folder, condition or name or stem, env_name, seed,
                                    read_columns(os.path.join(folder, 'progress.txt')), config))
    return datasets


def tell_apart(runs):
    """Put the settings that differ among runs of one condition and environment into their conditions."""
    for keys in ['algo'], sorted({key for run in runs for key in run.config} - NO_SETTINGS):
        groups = {}
        for run in runs:
            groups.setdefault((run.condition, run.env_name), []).append(run)
        for group in groups.values():
            differing = [key for key in keys if len({str(run.config.get(key) or None) for run in group}) > 1]
            for run in group:
                run.condition += ''.join(f' {key}={printable(run.config.get(key, "default"))}' for key in differing)


def matching_folders(logdir):
    """[logdir] where it is a folder, else the folders whose names begin with it, date stamps aside."""
    if os.path.isdir(logdir):
        return [logdir]
    base, prefix = os.path.split(logdir)
    names = sorted(next(os.walk(base or '.'), ('', [], []))[1])            # the folders there; none where base is none
    pattern = re.compile(r'(\d{4}-\d\d-\d\d_)?(\d\d-\d\d-\d\d-)?' + re.escape(prefix))
    matches = [os.path.join(base, name) for name in names if pattern.match(name)]
    if not matches:
        raise UserError(f'there is no folder {logdir!r}, nor one that begins with that{nearest(prefix, names)}')
    return matches


def get_all_datasets(all_logdirs, legend=None, select=None, exclude=None):
    """Runs below the logdirs with all words of select and none of exclude in their paths.

    legend: a title for each folder that is left (or else for each experiment), under which its runs are one condition.
    """
    found, seen = {}, set()
    for folder in (folder for logdir in all_logdirs for folder in matching_folders(logdir)):
        for run in get_datasets(folder):
            real = os.path.realpath(run.path)
            left_out = [*(word not in run.path for word in select or ()), *(word in run.path for word in exclude or ())]
            if not any(left_out) and real not in seen:                     # a run named twice would count twice
                seen.add(real)
                found.setdefault(folder, []).append(run)
    if not found:
        rules = ' that --select and --exclude leave' if select or exclude else ''
        raise UserError(f'no runs (folders with a progress.txt){rules} in {", ".join(all_logdirs)}')
    runs = [run for runs in found.values() for run in runs]
    tell_apart(runs)
    groups = found if len(legend or ()) in (0, len(found)) else group_runs(runs)
    if legend and len(legend) != len(groups):
        raise UserError(f'{len(legend)} legend title(s) for the {len(found)} folder(s) {", ".join(found)}')
    for title, group in zip(legend or (), groups.values()):
        for run in group:
            run.condition = title
    return runs


# %% From runs to curves
def interquartile_mean(values):
    """Mean without the lowest and the highest quarter (rounded down: with fewer than four seeds, just the mean)."""
    cut = len(values) // 4
    return np.sort(values, axis=0)[cut:len(values) - cut].mean(axis=0)


def bootstrap_interval(values, estimate):
    """95 % percentile interval of estimate(values), values (seeds, points), by resampling whole seeds."""
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return np.percentile([estimate(values[draw]) for draw in draws], [2.5, 97.5], axis=0)


def kept_and_squares(values, estimate):
    """How many values the mean or interquartile mean keeps, and the sum of squares for its standard error: around the
    mean, after those left out have become like the nearest that is kept (Tukey and McLaughlin, 1963)."""
    cut = len(values) // 4 if estimate is interquartile_mean else 0
    low, high = np.sort(values, axis=0)[[cut, len(values) - cut - 1]]
    values = np.clip(values, low, high)
    return len(values) - 2 * cut, ((values - values.mean(axis=0))**2).sum(axis=0)


def t_interval(values, estimate):
    """95 % interval of a mean or interquartile mean by Student's t."""
    kept, squares = kept_and_squares(values, estimate)
    return estimate(values) + np.outer([-1, 1], T_975[kept - 2] * np.sqrt(squares / (kept * (kept - 1))))


def confidence_interval(values, estimate):
    """95 % interval of estimate(values). With few seeds, a bootstrap interval is too narrow: with 3 it covers the true
    mean 75 times in 100, with 5 it does 83 times; Student's t does about 95 times, whatever their number, though less
    often where returns pile up at a maximum."""
    return (t_interval if len(values) < T_BELOW.get(estimate, 0) else bootstrap_interval)(values, estimate)


def interval_name(estimator, numbers):
    """What an interval from these numbers of seeds is called."""
    limit = T_BELOW.get(ESTIMATORS[estimator], 0)
    if min(numbers) >= limit:
        return '95 % bootstrap interval'
    return "95 % interval (Student's t" + (f' below {limit} seeds, else bootstrap)' if max(numbers) >= limit else ')')


ESTIMATORS = {'mean': partial(np.mean, axis=0), 'iqm': interquartile_mean, 'median': partial(np.median, axis=0),
              'max': partial(np.max, axis=0), 'min': partial(np.min, axis=0)}
BANDS = {'ci': confidence_interval, 'none': None,
         'std': lambda values, estimate: estimate(values) + np.outer([-1, 1], values.std(axis=0)),
         'minmax': lambda values, estimate: (values.min(axis=0), values.max(axis=0))}
WORDS = {'iqm': 'interquartile mean', 'std': 'standard deviation', 'minmax': 'range'}

# From so many seeds on, the bootstrap interval covers the true value 91 to 94 times in 100, in simulations of five
# distributions (tests/test_plot.py has two of them); below, Student's t comes closer to 95.
T_BELOW = {ESTIMATORS['mean']: 30, ESTIMATORS['iqm']: 8}
T_975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048]   # of 1 to 28 df


def smoothed(y, width):
    """Average of y over the width rows around each; at the ends, and beside missing values, of those that are there."""
    def window_sum(z):
        return np.convolve(z, np.ones(width))[(width - 1) // 2:][:len(z)] if len(z) else z
    there = np.isfinite(y)
    return np.where(there, window_sum(np.where(there, y, 0)) / np.maximum(window_sum(there), 1), np.nan)


def run_curve(run, xaxis, value, smooth=1):
    """(x, y) of one run, x increasing, missing values left out; None when nothing is left."""
    if xaxis not in run.columns or value not in run.columns:
        return None
    x, y = run.columns[xaxis], smoothed(run.columns[value], smooth)
    there = np.isfinite(x) & np.isfinite(y)
    x, where = np.unique(x[there], return_inverse=True)
    return (x, np.bincount(where, y[there]) / np.bincount(where)) if len(x) else None


def interpolate(curves):
    """Grid of all x of the curves, and a row of values per curve: linear between its points, nan outside its range."""
    grid = np.unique(np.concatenate([x for x, _ in curves]))
    if len(grid) > MAX_POINTS:                                             # more than print can show
        grid = grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(int)]
    return grid, np.stack([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in curves])


def aggregate(curves, estimator='mean', band='ci'):
    """x, centre, low, high, and the number of curves at x: each counts where it has values, and nowhere else."""
    grid, values = interpolate(curves)
    estimate, reached = ESTIMATORS[estimator], np.isfinite(values)
    centre, low, high = np.full((3, len(grid)), np.nan)
    for seeds in np.unique(reached, axis=1).T:                             # a few sets, as runs end at different x
        here = (reached == seeds[:, None]).all(axis=0)
        part = values[seeds][:, here]                                      # (seeds that reach here, points)
        centre[here] = estimate(part)
        if len(part) > 1 and band != 'none':
            low[here], high[here] = BANDS[band](part, estimate)
    return grid, centre, low, high, reached.sum(axis=0)


def group_runs(data, count=False):
    """Name -> runs of each curve: those of one condition, or with count every run by itself."""
    groups = {}
    for run in data:
        name = f'{run.condition} seed {run.seed}' if count else run.condition
        if count and any(other.env_name == run.env_name for other in groups.get(name, ())):
            name = run.path                                                # a seed again: only its folder differs
        groups.setdefault(name, []).append(run)
    return groups


def curve_labels(data, count=False):
    """Name -> legend text of each curve: 'ppo_torch (3 seeds)', or (2-3 seeds) where it depends on the environment."""
    labels = {}
    for name, runs in group_runs(data, count).items():
        per_env = Counter(run.env_name for run in runs).values()
        number = '-'.join(str(n) for n in sorted({min(per_env), max(per_env)}))
        unit = 'seed' if len({(run.env_name, str(run.seed)) for run in runs}) == len(runs) else 'run'
        labels[name] = name if count else f'{name} ({number} {unit}{"" if number == "1" else "s"})'
    return labels


# %% Drawing
def curve_looks(names):
    """Name -> what plot takes for the looks of each curve. A twin has the other's colour, dashes and hollow markers."""
    looks, families = {}, {}                     # a family: names that are the same but for the framework
    for name in names:
        families.setdefault(re.sub(r'_(torch|tf1)(?![a-z\d])', '', name), []).append(name)
    for i, family in enumerate(families.values()):
        for j, name in enumerate(sorted(family, key=lambda name: '_tf1' in name)):
            color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
            dashes = i if len(families) == len(names) else j + 2 * (i // len(COLORS))
            looks[name] = dict(color=color, linestyle=DASHES[dashes % len(DASHES)], marker=marker,
                               markevery=(0.03 * ((i + 2 * j) % 4), 0.14), markeredgecolor=color if j else 'white',
                               markerfacecolor='white' if j else color)
    return looks


def thousands(x, _=None):
    """Tick label: 10000 -> 10k, 1500000 -> 1.5M."""
    scale, suffix = next(((s, t) for s, t in ((1e9, 'G'), (1e6, 'M'), (1e3, 'k')) if abs(x) >= s), (1, ''))
    return f'{x / scale:g}{suffix}'


def plot_data(data, xaxis='TotalEnvInteracts', value='Performance', count=False, smooth=1, estimator='mean', band='ci',
              ax=None, labels=None):
    """One panel: a curve of value against xaxis for each condition of data, on ax (default: the current axes).

    labels: curve_labels of the whole figure, so that a curve looks the same in every panel.
    Returns what was drawn: {name: (x, centre, low, high, number of seeds at x)}.
    """
    ax, labels, results = ax or plt.gca(), labels or curve_labels(data, count), {}
    looks = curve_looks(labels)
    for name, runs in group_runs(data, count).items():
        curves = [curve for run in runs if (curve := run_curve(run, xaxis, value, smooth))]
        if not curves:
            continue
        x, centre, low, high, seeds = results[name] = aggregate(curves, estimator, band)
        complete = seeds == seeds.max()
        thin = np.convolve(~complete, np.ones(3))[1:-1] > 0                # and the points beside, to leave no gap
        ax.plot(x, np.where(complete, centre, np.nan), label=labels[name], **looks[name])
        ax.plot(x, np.where(thin, centre, np.nan), color=looks[name]['color'], linewidth=0.8)
        ax.fill_between(x, low, high, color=looks[name]['color'], alpha=0.17, linewidth=0)
    if not results:
        ax.text(0.5, 0.5, f'{value} is not logged', transform=ax.transAxes, ha='center', color='0.4')
    ax.xaxis.set_major_formatter(thousands)
    ax.margins(x=0.02)
    return results


def make_plots(all_logdirs, legend=None, xaxis='TotalEnvInteracts', values='Performance', count=False, smooth=1,
               select=None, exclude=None, estimator='mean', band='ci', figure=None):
    """The figure (a new one, or the one given): a panel for each value and environment. Prints where the curves end."""
    values = [values] if isinstance(values, str) else values
    data = get_all_datasets(all_logdirs, legend, select, exclude)
    check_columns(data, [xaxis, *values])
    data = [run for run in data if any(run_curve(run, xaxis, value) for value in values)]
    if not data:
        raise UserError(f'no {" or ".join(values)} is logged yet in {", ".join(all_logdirs)}')
    envs, labels = list(dict.fromkeys(run.env_name for run in data)), curve_labels(data, count)
    seeds = {label.removeprefix(name).strip(' ()') for name, label in labels.items()}
    if len(seeds) == 1:                                                    # all alike: said once, above the legend
        labels = {name: name for name in labels}
    panels = [(value, env) for value in values for env in envs]
    columns = len(envs) if len(values) > 1 and len(envs) > 1 else {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    rows, numbers = -(-len(panels) // columns), set()                      # of seeds that an interval rests on
    with plt.rc_context(STYLE):
        figure = figure or plt.figure(layout='constrained')
        figure.clear()
        figure.set_size_inches(max(5.6, 4.4 * columns), 3.2 * rows + 0.6)
        for i, (value, env) in enumerate(panels):
            ax, title = figure.add_subplot(rows, columns, i + 1), env.split(':')[-1]
            runs = [run for run in data if run.env_name == env]
            results = plot_data(runs, xaxis, value, count, smooth, estimator, band, ax, labels)
            print_ends(results, f'{title} {value}'.strip())
            numbers.update(n for *_, number in results.values() for n in number if n > 1)
            if len(envs) == 1 and len(values) > 1:
                figure.suptitle(title)
            elif i < columns or len(values) == 1:
                ax.set_title(title)
            if i + columns >= len(panels):
                ax.set_xlabel(LABELS.get(xaxis, xaxis))
            if i % columns == 0 or len(envs) == 1:
                ax.set_ylabel(LABELS.get(value, value))
        words = dict(WORDS, ci=interval_name(estimator, numbers or {1}))
        meaning = ' and '.join(words.get(word, word) for word in (estimator, band) if word != 'none')
        meaning += f' over {"seeds" if len(seeds) > 1 else max(seeds)}'
        meaning = ('1 seed each' if len(labels) > 1 else '1 seed') if seeds == {'1 seed'} else meaning
        window = f'smoothed over {smooth} epochs' if smooth > 1 else ''
        add_legend(figure, ', '.join(filter(None, ['' if count else meaning, window])))
    return figure


def check_columns(data, names):
    """A column that no run has is the user's mistake; one that some runs lack is not."""
    known = list(dict.fromkeys(name for run in data for name in run.columns if name))
    for name in names:
        if known and name not in known:
            near = nearest(name, known) or f'; there are: {", ".join(known)}'
            raise UserError(f'no run has a column {name!r}{near}')


def print_ends(results, title):
    """The last point of each curve in numbers, and how many seeds it rests on."""
    for name, (x, centre, low, high, seeds) in results.items():
        interval = f' [{low[-1]:.5g}, {high[-1]:.5g}]' if np.isfinite(low[-1]) else ''
        fewer = f', {seeds[-1]} of {seeds.max()} seeds' if seeds[-1] < seeds.max() else ''
        print(f'{title}, {name}: {centre[-1]:.5g}{interval} at {thousands(x[-1])}{fewer}')


def add_legend(figure, title):
    """One legend for all panels, below them, where it hides no curve; the figure grows by its height. Many entries are
    written smaller."""
    entries = {label: handle for ax in figure.axes for handle, label in zip(*ax.get_legend_handles_labels())}
    for size in 10.5, 9, 7.5:
        entry = size / 72 * (0.55 * max(map(len, entries)) + 6)            # its width in inches, about
        columns = max(1, int((figure.get_figwidth() + 0.2) / entry))
        rows = -(-len(entries) // columns)
        if rows <= 4:
            break
    figure.set_figheight(figure.get_figheight() + 0.021 * size * rows)
    figure.legend(entries.values(), entries.keys(), loc='outside lower center', ncols=-(-len(entries) // rows),
                  title=title, frameon=False, fontsize=size)


# %% Command line
def parse_args(argv=None):
    parser = ArgumentParser(prog='plot', description='Draw learning curves of runs.',
                            epilog='example: plot data/ppo data/sac_torch -s 5 --est iqm --out curves.pdf')
    add = parser.add_argument
    add('logdir', nargs='*', help='folders of runs, experiments or data, or beginnings of their names')
    add('-l', '--legend', nargs='+', help='titles of the curves, one per folder or experiment (default: exp_name)')
    add('-x', '--xaxis', default='TotalEnvInteracts', help='column along x (default: %(default)s)')
    add('-y', '--value', nargs='+', default=['Performance'],
        help='columns along y, a panel each (default: Performance, which is AverageTestEpRet or else AverageEpRet)')
    add('--count', action='store_true', help='a curve for each run instead of one over the seeds')
    add('-s', '--smooth', type=int, default=1, metavar='EPOCHS', help='average over a window of this many epochs')
    add('--select', nargs='+', metavar='WORD', help='only runs whose path contains all these words')
    add('--exclude', nargs='+', metavar='WORD', help='no runs whose path contains one of these words')
    add('--est', choices=ESTIMATORS, default='mean', help='the curve: estimate over the seeds (default: %(default)s)')
    add('--band', choices=BANDS, default='ci', help='the band: 95%% confidence interval (default), deviation or range')
    add('--out', metavar='FILE', help='write a .png, .svg or .pdf (default where there is no display: plot.png)')
    add('--live', nargs='?', type=float, const=10., metavar='SECONDS', help='draw again at this interval (default: 10)')
    args = parser.parse_args(argv)
    if not args.logdir:
        raise UserError('which runs? Name folders before the flags, for instance: plot data/ppo_torch -y EpLen')
    if not 0 < args.smooth <= 10**5 or not (args.live is None or 0 < args.live < 1e6):
        raise UserError('--smooth and --live take positive numbers, of at most 100000 epochs and a million seconds')
    if args.out and os.path.splitext(args.out)[1].lower() not in METADATA:
        raise UserError(f'--out {args.out}: the name has to end in .png, .svg or .pdf')
    return args


def save(figure, path):
    """Write the figure in one step, so that a viewer that follows --live never finds half a file."""
    stem, suffix = os.path.splitext(path)
    partial_path = f'{stem}.{os.getpid()}{suffix}'
    try:
        with plt.rc_context(STYLE):
            figure.savefig(partial_path, metadata=METADATA[suffix.lower()])
        os.replace(partial_path, path)
    except (OSError, ValueError) as error:                                 # ValueError: too large a picture
        raise UserError(f'cannot write {path}: {getattr(error, "strerror", None) or error}') from error
    finally:                                                               # Ctrl-C may come at any time
        if os.path.exists(partial_path):
            os.remove(partial_path)


def show(args):
    """Draw in a window or a file; with --live again and again, until the window is closed or Ctrl-C."""
    if args.out:
        plt.switch_backend('agg')
    figure = None
    while True:
        try:
            figure = make_plots(args.logdir, args.legend, args.xaxis, args.value, args.count, args.smooth, args.select,
                                args.exclude, args.est, args.band, figure)
        except BrokenPipeError:                                            # the reader, `head` say, has had enough
            raise
        except (UserError, OSError) as error:                              # no epoch finished yet, a run just replaced
            if not args.live:
                raise UserError(str(error)) from None
            print(f'{error} (trying again)', flush=True)
            time.sleep(args.live)
            continue
        window = not args.out and figure.canvas.required_interactive_framework
        if not window:
            save(figure, args.out or 'plot.png')
            print(f'wrote {args.out}' if args.out else 'no display: wrote plot.png', flush=True)
        elif not args.live:
            plt.show()
        if not args.live:
            return
        plt.pause(args.live) if window else time.sleep(args.live)
        if window and not plt.fignum_exists(figure.number):
            return


def main(argv=None):
    """The command line; a mistake of the user's is one line and exit status 2."""
    with one_line_errors('plot'), contextlib.suppress(KeyboardInterrupt):      # Ctrl-C is how --live ends
        show(parse_args(argv))


if __name__ == '__main__':
    main()
