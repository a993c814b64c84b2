"""The plotter: which runs it finds, the numbers it draws, the pictures it writes, and how it refuses."""
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from benchmarks import scaling
from benchmarks.contest import Contestant
from common.errors import UserError
from tools import plot

ROOT = Path(__file__).resolve().parent.parent


def write_run(folder, returns, env_name='CartPole-v1', exp_name='ppo_torch', seed=0, step=10, column='AverageEpRet',
              config=(), **columns):
    """A run with the columns Epoch, TotalEnvInteracts, column and those given: a value per epoch, None if empty."""
    folder.mkdir(parents=True)
    config = dict(config, env_name=env_name, exp_name=exp_name, seed=seed)
    (folder / 'config.json').write_text(json.dumps(config))
    epochs = range(len(returns))
    table = {'Epoch': epochs, 'TotalEnvInteracts': [step * (i + 1) for i in epochs], column: returns, **columns}
    rows = [list(table), *zip(*table.values())]
    lines = ['\t'.join('' if cell is None else str(cell) for cell in row) + '\n' for row in rows]
    (folder / 'progress.txt').write_text(''.join(lines))
    return folder


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two algorithms on two environments, two seeds each, in the folder data below the current one."""
    monkeypatch.chdir(tmp_path)
    for algo, env, seed in itertools.product(('ppo_torch', 'sac_tf1'), ('CartPole-v1', 'Hopper-v5'), range(2)):
        exp = f'{algo}_{env.split("-")[0].lower()}'
        write_run(tmp_path / 'data' / exp / f'{exp}_s{seed}', [seed, seed + 1., seed + 4.], env, algo, seed,
                  column='AverageEpRet' if algo == 'ppo_torch' else 'AverageTestEpRet', KL=[.1, .2, .3])
    return Path('data')


@pytest.fixture(autouse=True)
def no_windows():
    plt.switch_backend('agg')
    yield
    plt.close('all')


def legend_texts(figure):
    """The title of the legend, and its entries."""
    return [text.get_text() for text in (figure.legends[0].get_title(), *figure.legends[0].get_texts())]


def names(datasets):
    return sorted(Path(run.path).name for run in datasets)


def refused(argv, capsys):
    """The one line that main prints for a mistake, checked to be one line, with exit status 2."""
    with pytest.raises(SystemExit) as stop:
        plot.main([str(word) for word in argv])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert captured.err.startswith('plot: error: ') and captured.err.count('\n') == 1, captured.err
    return captured.err


# %% Reading
def test_columns_empty_cells_and_performance(tmp_path):
    run = write_run(tmp_path / 'a', [None, 2.5, 3.5], LossPi=['nan', None, -1e-3], Note=['x', '', 'y'])
    columns = plot.read_columns(run / 'progress.txt')
    np.testing.assert_array_equal(columns['AverageEpRet'], [np.nan, 2.5, 3.5])
    np.testing.assert_array_equal(columns['LossPi'], [np.nan, np.nan, -1e-3])
    np.testing.assert_array_equal(columns['Note'], [np.nan] * 3)                 # words are no numbers, and no crash
    np.testing.assert_array_equal(columns['Performance'], columns['AverageEpRet'])
    x, y = plot.run_curve(plot.get_datasets(run)[0], 'TotalEnvInteracts', 'Performance')
    assert x.tolist() == [20, 30] and y.tolist() == [2.5, 3.5]                   # skipped, not taken for 0
    tested = write_run(tmp_path / 'b', [1., 2.], AverageTestEpRet=[None, 7.])
    np.testing.assert_array_equal(plot.read_columns(tested / 'progress.txt')['Performance'], [np.nan, 7.])
    untested = write_run(tmp_path / 'c', [1., 2.], AverageTestEpRet=[None, None])
    np.testing.assert_array_equal(plot.read_columns(untested / 'progress.txt')['Performance'], [1., 2.])


def test_every_prefix_of_a_file_being_written_can_be_read(tmp_path):
    """Cut after any byte, as a reader may find it: exactly the rows whose newline is there, none of them changed."""
    run = write_run(tmp_path / 'run', [1.25, 2.5, None], KL=[.125, None, None])
    text = (run / 'progress.txt').read_text()
    whole = plot.read_columns(run / 'progress.txt')
    for end in range(len(text)):
        (run / 'progress.txt').write_text(text[:end])
        columns = plot.read_columns(run / 'progress.txt')
        rows = max(0, text[:end].count('\n') - 1)
        if '\n' in text[:end]:
            assert list(columns) == list(whole)
            for name in columns:
                np.testing.assert_array_equal(columns[name], whole[name][:rows])
        else:
            assert 'AverageEpRet' not in columns


def test_half_lines_and_broken_files_do_not_stop_a_plot(data):
    with open(data / 'ppo_torch_hopper' / 'ppo_torch_hopper_s0' / 'progress.txt', 'a') as file:
        file.write('3\t40\t5')                                                   # 5 may become 57.3
    (data / 'ppo_torch_hopper' / 'ppo_torch_hopper_s1' / 'progress.txt').write_text('Epoch\tTotal')
    (data / 'sac_tf1_hopper' / 'sac_tf1_hopper_s0' / 'config.json').write_text('{"exp_na')
    (data / 'sac_tf1_hopper' / 'sac_tf1_hopper_s1' / 'progress.txt').write_bytes(b'Epoch\t\xff\xfe\n1\n\xff\t2\n\n')
    plot.make_plots(['data'])
    results = plot.plot_data(plot.get_datasets('data/ppo_torch_hopper'))
    assert results['ppo_torch'][0].tolist() == [10, 20, 30]


def test_name_of_a_run_without_config(tmp_path):
    run = write_run(tmp_path / '2024-05-06_ppo' / '2024-05-06_07-08-09-ppo_s12', [1.])
    (run / 'config.json').unlink()
    assert [(d.condition, d.env_name) for d in plot.get_datasets(tmp_path)] == [('ppo', '')]
    assert plot.get_datasets(tmp_path, 'mine')[0].condition == 'mine'


@pytest.mark.parametrize('logdir, expected', [
    ('data', 8), ('data/', 8), ('./data', 8), ('.', 8), ('dat', 8),              # a data folder
    ('data/ppo_torch_hopper', 2), ('data/ppo_torch_hopper/', 2),                 # an experiment
    ('data/sac_tf1_hopper/sac_tf1_hopper_s1', 1), ('data/sac_tf1_hopper/sac_tf1_hopper_s1/', 1),      # a run
    ('data/ppo', 4), ('data/sac_tf1_h', 2), ('data/sac_tf1_hopper/sac', 2)])     # beginnings of names
def test_logdirs(data, logdir, expected):
    (data / 'ppo_notes.txt').write_text('a file is no folder of runs')
    assert len(plot.get_all_datasets([logdir])) == expected


def test_prefix_is_a_beginning_and_a_folder_means_itself(data):
    with pytest.raises(UserError):
        plot.get_all_datasets(['data/torch'])                                    # inside a name, not its beginning
    write_run(data / '2024-05-06_vpg_torch' / '2024-05-06_07-08-09-vpg_torch_s0', [1.])
    assert len(plot.get_all_datasets(['data/vpg'])) == 1                         # a date stamp does not count
    write_run(data / 'ppo' / 'ppo_s0', [1.])
    assert names(plot.get_all_datasets(['data/ppo'])) == names(plot.get_all_datasets(['data/ppo/'])) == ['ppo_s0']


def test_a_run_found_twice_counts_once(data):
    assert len(plot.get_all_datasets(['data', 'data/ppo', os.path.abspath('data')])) == 8


def test_select_and_exclude(data):
    def chosen(**rules):
        return names(plot.get_all_datasets(['data'], **rules))
    assert chosen(select=['hopper', 'ppo']) == ['ppo_torch_hopper_s0', 'ppo_torch_hopper_s1']          # all words
    assert chosen(exclude=['hopper', 'ppo']) == ['sac_tf1_cartpole_s0', 'sac_tf1_cartpole_s1']         # no word
    assert chosen(select=['hopper'], exclude=['_s0']) == ['ppo_torch_hopper_s1', 'sac_tf1_hopper_s1']


def test_legend_is_one_title_for_each_folder_left(data, capsys):
    runs = plot.get_all_datasets(['data/ppo', 'data/sac_tf1_hopper'], ['A', 'B', 'C'])
    assert {(Path(run.path).parent.name, run.condition) for run in runs} == {
        ('ppo_torch_cartpole', 'A'), ('ppo_torch_hopper', 'B'), ('sac_tf1_hopper', 'C')}
    runs = plot.get_all_datasets(['data/ppo'], ['B'], exclude=['cartpole'])
    assert {run.condition for run in runs} == {'B'}
    runs = plot.get_all_datasets(['data'], ['A', 'B'])                           # one folder, two experiments
    assert {(run.condition, Path(run.path).name[:3]) for run in runs} == {('A', 'ppo'), ('B', 'sac')}
    line = refused(['data/ppo', '-l', 'one', 'two', 'three'], capsys)
    assert '3 legend' in line and '2 folder' in line and 'data/ppo_torch_hopper' in line


def test_runs_of_one_name_and_different_settings_are_not_one_curve(tmp_path, capsys):
    """What differs stands behind the name; what may differ within a curve, as the seed, does not."""
    def add(folder, seed=0, env_name='CartPole-v1', **config):
        write_run(tmp_path / folder / f'{folder}_s{seed}', [1., 2.], env_name, 'mine', seed, config=config)

    def conditions(*args, **kwargs):
        return sorted({run.condition for run in plot.get_all_datasets([str(tmp_path)], *args, **kwargs)})
    add('a', algo='ppo_torch', gamma=0.9, ac_kwargs={}, epochs=3, num_procs=1)
    add('a', 1, algo='ppo_torch', gamma=0.9, ac_kwargs=None, epochs=4, num_procs=2, env_kwargs={})
    add('other', env_name='Hopper-v5', algo='sac_tf1', gamma=0.5)                # in a panel of its own
    assert conditions() == ['mine']
    add('b', algo='ppo_torch', gamma=0.9, ac_kwargs=dict(hidden_sizes=[32]))
    assert conditions(exclude=['other']) == ['mine hidden_sizes=[32]', 'mine hidden_sizes=default']
    add('c', algo='ppo_torch', gamma=0.8)
    add('d', algo='sac_torch', gamma=0.7, alpha=0.2)
    assert conditions() == ['mine', 'mine algo=ppo_torch gamma=0.8 hidden_sizes=default',
                            'mine algo=ppo_torch gamma=0.9 hidden_sizes=[32]',
                            'mine algo=ppo_torch gamma=0.9 hidden_sizes=default', 'mine algo=sac_torch']
    plot.main([str(tmp_path), '--out', str(tmp_path / 'a.png')])
    assert 'CartPole-v1 Performance, mine algo=sac_torch: 2 at 20\n' in capsys.readouterr().out
    assert conditions(['all']) == ['all']                                        # a title of one's own says what is one


# %% Numbers
def test_interpolation_by_hand():
    curves = [(np.array([0., 10.]), np.array([0., 10.])), (np.array([4., 20.]), np.array([2., 10.]))]
    grid, values = plot.interpolate(curves)
    assert grid.tolist() == [0, 4, 10, 20]
    np.testing.assert_allclose(values, [[0, 4, 10, np.nan], [np.nan, 2, 5, 10]])
    _, centre, low, high, number = plot.aggregate(curves, 'mean', 'minmax')
    np.testing.assert_allclose(centre, [0, 3, 7.5, 10])                          # to the end of the longest
    np.testing.assert_allclose(low, [np.nan, 2, 5, np.nan])                      # one seed alone has no band
    np.testing.assert_allclose(high, [np.nan, 4, 10, np.nan])
    assert number.tolist() == [1, 2, 2, 1]


def test_seeds_with_different_steps_and_lengths(tmp_path):
    write_run(tmp_path / 'e' / 'e_s0', [1., 2., 3.], seed=0, step=10)            # 10 20 30
    write_run(tmp_path / 'e' / 'e_s1', [10., 20., None, 40.], seed=1, step=15)   # 15 30 (45) 60
    x, centre, low, high, number = plot.plot_data(plot.get_datasets(tmp_path), band='none')['ppo_torch']
    assert x.tolist() == [10, 15, 20, 30, 60]
    np.testing.assert_allclose(centre, [1, (1.5 + 10) / 2, (2 + 10 + 10 / 3) / 2, (3 + 20) / 2, 40])
    assert number.tolist() == [1, 2, 2, 2, 1] and np.isnan([low, high]).all()


def test_long_curves_keep_their_ends_and_unordered_x_is_sorted(tmp_path):
    grid, values = plot.interpolate([(np.arange(5000.), np.arange(5000.) * 2)])
    assert len(grid) == plot.MAX_POINTS and (grid[0], grid[-1]) == (0, 4999)
    np.testing.assert_allclose(values[0], 2 * grid)
    run = plot.get_datasets(write_run(tmp_path / 'r', [1., 2., 3., 5.], Odd=[7, 3, 5, 3]))[0]
    x, y = plot.run_curve(run, 'Odd', 'AverageEpRet')
    assert x.tolist() == [3, 5, 7] and y.tolist() == [3.5, 3, 1]                 # one x twice: their mean


@pytest.mark.parametrize('width', [1, 2, 3, 4, 7, 50])
def test_smoothing_against_a_plain_loop(width):
    y = np.random.default_rng(0).normal(size=9)
    y[[2, 8]] = np.nan
    expected = []
    for i in range(len(y)):
        window = [y[j] for j in range(i - width // 2, i - width // 2 + width) if 0 <= j < len(y) and not np.isnan(y[j])]
        expected.append(np.nan if np.isnan(y[i]) else statistics.mean(window))
    np.testing.assert_allclose(plot.smoothed(y, width), expected)


@pytest.mark.parametrize('number', [1, 3, 4, 5, 8, 10])
def test_estimators(number):
    values = np.random.default_rng(number).normal(size=(number, 6))
    columns = [sorted(column) for column in values.T.tolist()]
    cut = int(number * .25)                                                      # as in rliable: trim_mean(0.25)
    expected = dict(mean=[statistics.fmean(c) for c in columns], median=[statistics.median(c) for c in columns],
                    iqm=[statistics.fmean(c[cut:number - cut]) for c in columns], max=[c[-1] for c in columns],
                    min=[c[0] for c in columns])
    assert set(expected) == set(plot.ESTIMATORS)
    for name, estimate in plot.ESTIMATORS.items():
        np.testing.assert_allclose(estimate(values), expected[name], err_msg=name)


@pytest.mark.parametrize('estimator', ['mean', 'iqm', 'median'])
def test_bootstrap_against_all_resamples(estimator):
    """With five seeds there are only 3125 resamples: the interval from draws is close to that from all of them."""
    values = np.array([[0.], [1.], [2.5], [7.], [8.]])
    estimates = [plot.ESTIMATORS[estimator](values[list(draw)])[0] for draw in itertools.product(range(5), repeat=5)]
    low, high = plot.bootstrap_interval(values, plot.ESTIMATORS[estimator])
    share_below, share_above = np.mean(estimates < low), np.mean(estimates > high)
    assert share_below <= .04 and share_above <= .04                             # 2.5 % and the noise of 1000 draws
    assert np.mean(estimates <= low) >= .01 and np.mean(estimates >= high) >= .01


def test_bootstrap_against_theory_and_its_determinism():
    values = np.random.default_rng(3).normal(size=(40, 5))
    low, high = plot.bootstrap_interval(values, plot.ESTIMATORS['mean'])
    error = values.std(axis=0) / np.sqrt(40)
    np.testing.assert_allclose(low, values.mean(axis=0) - 1.96 * error, atol=.2 * error.max())
    np.testing.assert_allclose(high, values.mean(axis=0) + 1.96 * error, atol=.2 * error.max())
    np.testing.assert_array_equal(plot.bootstrap_interval(values, plot.ESTIMATORS['mean']), [low, high])
    low, high = plot.bootstrap_interval(values[:3], plot.ESTIMATORS['mean'])     # 1 draw in 27 is one seed: > 2.5 %
    np.testing.assert_allclose([low, high], [values[:3].min(axis=0), values[:3].max(axis=0)])


def test_bands():
    curves = [(np.arange(2.), np.array(y)) for y in ([1., 2.], [3., 2.], [8., 2.])]
    _, centre, low, high, _ = plot.aggregate(curves, 'median', 'std')
    deviation = np.sqrt(((1 - 4) ** 2 + (3 - 4) ** 2 + (8 - 4) ** 2) / 3)
    np.testing.assert_allclose([centre, low, high], [[3, 2], [3 - deviation, 2], [3 + deviation, 2]])
    _, _, low, high, _ = plot.aggregate(curves, 'mean', 'ci')
    half = 4.303 * np.sqrt(26 / (3 * 2))                                         # t(2 degrees) s / sqrt(3)
    np.testing.assert_allclose([low, high], [[4 - half, 2], [4 + half, 2]])
    _, _, low, high, _ = plot.aggregate(curves, 'median', 'ci')                  # no t for it: bootstrap
    np.testing.assert_allclose([low, high], [[1, 2], [8, 2]])


SAMPLES = dict(normal=lambda rng, size: rng.normal(size=size),
               some_fail=lambda rng, size: rng.normal(size=size) - 5 * (rng.random(size) < .2))


def coverage(interval, estimator, sample, number, repeats=1000):
    """How often an interval from `number` values holds the estimate that infinitely many would have."""
    rng, estimate = np.random.default_rng(7), plot.ESTIMATORS[estimator]
    trimmed = estimator == 'iqm' and number >= 4                                 # of fewer it is the mean
    truth = plot.ESTIMATORS['iqm' if trimmed else 'mean'](sample(rng, 400_000))
    low, high = interval(sample(rng, (number, repeats)), estimate)               # every column a trial of its own
    return np.mean((low <= truth) & (truth <= high))


@pytest.mark.parametrize('estimator, number, least', [('mean', 3, .93), ('mean', 5, .93), ('mean', 10, .93),
                                                      ('mean', 35, .92), ('iqm', 3, .93), ('iqm', 5, .92),
                                                      ('iqm', 7, .91), ('iqm', 8, .91), ('iqm', 10, .91)])
def test_intervals_cover_what_they_claim(estimator, number, least):
    """Of normal values. A band of the bootstrap from few of them does not, which is why there are two kinds."""
    covered = coverage(plot.confidence_interval, estimator, SAMPLES['normal'], number)
    assert least <= covered <= .98, covered
    if estimator == 'mean' and number <= 5:
        assert coverage(plot.bootstrap_interval, estimator, SAMPLES['normal'], number) < .87


@pytest.mark.parametrize('number', [5, 7, 8, 10])
def test_intervals_of_the_interquartile_mean_cover_where_some_seeds_fail(number):
    assert .91 <= coverage(plot.confidence_interval, 'iqm', SAMPLES['some_fail'], number) <= .98


def test_student_t_and_what_the_interval_is_called():
    values = np.array([[1.], [2.], [4.], [5.], [100.]])                          # 2 2 4 5 5 once the ends are moved in
    half = 4.303 * np.sqrt((1.6**2 * 2 + .4**2 + 1.4**2 * 2) / (3 * 2))
    np.testing.assert_allclose(plot.t_interval(values, plot.interquartile_mean)[:, 0], [11 / 3 - half, 11 / 3 + half])
    assert list(plot.T_975) == sorted(plot.T_975, reverse=True) and len(plot.T_975) == 30 - 2
    z = 1.959964                                                                 # Cornish and Fisher's expansion
    for df, t in list(enumerate(plot.T_975, start=1))[5:]:
        series = (z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
                  + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3))
        assert t == pytest.approx(series, abs=2e-3)
    assert plot.interval_name('mean', {3, 5}) == "95 % interval (Student's t)"
    assert plot.interval_name('iqm', {5, 10}) == "95 % interval (Student's t below 8 seeds, else bootstrap)"
    assert plot.interval_name('iqm', {10}) == plot.interval_name('median', {3}) == '95 % bootstrap interval'


# %% Pictures
def test_panels_labels_and_looks(data):
    figure = plot.make_plots(['data'], values=['Performance', 'KL'])
    figure.canvas.draw()
    axes = figure.axes
    assert [ax.get_title() for ax in axes] == ['CartPole-v1', 'Hopper-v5', '', '']
    assert [ax.get_ylabel() for ax in axes] == ['Average return', '', 'KL', '']
    assert [ax.get_xlabel() for ax in axes] == ['', '', 'Environment steps', 'Environment steps']
    looks = [{(line.get_label(), line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines
              if line.get_label()[0] != '_'} for ax in axes]
    assert all(panel == looks[0] for panel in looks)                             # a curve looks the same everywhere
    assert len({color for _, color, _, _ in looks[0]}) == len({dashes for *_, dashes, _ in looks[0]}) == 2
    legend, = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ['ppo_torch', 'sac_tf1']
    assert legend.get_title().get_text() == "mean and 95 % interval (Student's t) over 2 seeds"


def test_twins_share_a_colour_and_every_curve_looks_different():
    def look(style):
        return tuple(str(style[key]) for key in ('color', 'linestyle', 'marker', 'markerfacecolor'))
    algos = 'ddpg', 'ppo', 'sac', 'td3', 'trpo', 'vpg', 'mine_h64', 'mine'
    twins = [f'{algo}_{framework}' for algo in algos for framework in ('tf1', 'torch')]
    looks = plot.curve_looks(twins)
    assert len({look(style)[:2] for style in looks.values()}) == len(twins)      # already by colour and dashes
    for algo in algos:
        torch, tf1 = looks[f'{algo}_torch'], looks[f'{algo}_tf1']
        assert torch['color'] == tf1['color'] and torch['marker'] == tf1['marker']
        assert {torch['markerfacecolor'], tf1['markerfacecolor']} == {torch['color'], 'white'}
    for algo in algos[:7]:
        assert (looks[f'{algo}_torch']['linestyle'], looks[f'{algo}_tf1']['linestyle']) == tuple(plot.DASHES[:2])
    assert len({looks[f'{algo}_torch']['color'] for algo in algos[:7]}) == 7
    alone = plot.curve_looks([f'{algo}_torch' for algo in algos])                # without twins, dashes differ too
    assert len({look(style)[1] for style in alone.values()}) == len(plot.DASHES)
    for names in ['a', 'a_torch', 'a_tf1', 'b'], [f'run {i}' for i in range(28)]:
        assert len({look(style)[:2] for style in plot.curve_looks(names).values()}) == len(names)
    looks = plot.curve_looks(['mine algo=ppo_tf1 gamma=0.9', 'mine algo=ppo_torch gamma=0.9'])
    assert len({style['color'] for style in looks.values()}) == 1


@pytest.mark.parametrize('name, more', [('', 0), ('_h64-64_lr0-00010', 0), ('_h64_lr0-001', 1)])
def test_a_legend_of_twelve_curves_leaves_the_page_to_them(tmp_path, name, more):
    """Also where names are long, and where every one has its number of seeds behind it."""
    for i in range(12):
        for seed in range(1 + more * (i % 2)):
            write_run(tmp_path / f'{i}' / f's{seed}', [1., 2.], exp_name=f'algo{i:02}_torch{name}', seed=seed)
    figure = plot.make_plots([str(tmp_path)])
    figure.canvas.draw()
    legend, page = figure.legends[0].get_window_extent(), figure.bbox
    assert len(figure.legends[0].get_texts()) == 12
    assert legend.height < 0.3 * page.height and legend.x0 >= 0 and legend.x1 <= page.width


def test_twins_are_told_apart_in_the_figure_of_scaling():
    """By shade, dashes and marker, and where both have the same values; other workloads have other colours."""
    groups = {}
    for workload in 'ppo_torch, CartPole-v1', 'ppo_tf1, CartPole-v1', 'sac_torch, Ant-v5', 'sac_tf1, Ant-v5':
        groups[workload] = [Contestant(workload, name, [], {}) for name in ('1 process', '2 processes')]
        for contestant, rate in zip(groups[workload], (100., 150.)):
            contestant.values = [dict(rate=rate)]
    axes = scaling.draw(groups, 2).axes[0]
    looks = [dict(color=to_hex(lines[0].get_color()), dashes=lines[0].get_linestyle(), shift=lines[0].get_xdata()[0],
                  face=to_hex(lines[0].get_markerfacecolor())) for lines in axes.containers]
    assert len({look['color'] for look in looks}) == 4
    for torch, tf1 in (looks[:2], looks[2:]):
        assert all(torch[key] != tf1[key] for key in torch) and tf1['face'] == '#ffffff'
    assert axes.get_legend().handlelength >= 3                                   # else dashes look like a line there


def test_lines_are_thick_where_all_seeds_are_and_thin_elsewhere(tmp_path):
    write_run(tmp_path / 'e' / 'e_s0', [1., 2., 3., 4.], seed=0)
    write_run(tmp_path / 'e' / 'e_s1', [3., 4.], seed=1)
    figure = plot.make_plots([str(tmp_path)], band='none')
    thick, thin = figure.axes[0].lines
    np.testing.assert_array_equal(thick.get_ydata(), [2, 3, np.nan, np.nan])
    np.testing.assert_array_equal(thin.get_ydata(), [np.nan, 3, 3, 4])
    assert thick.get_linewidth() > thin.get_linewidth() and thick.get_color() == thin.get_color()
    assert figure.legends[0].get_title().get_text() == 'mean over 2 seeds'
    assert plot.make_plots([str(tmp_path)], figure=figure) is figure and len(figure.axes) == len(figure.legends) == 1


def test_labels_count_seeds_as_they_are(data):
    assert list(plot.curve_labels(plot.get_datasets('data/ppo_torch_hopper')[:1]).values()) == ['ppo_torch (1 seed)']
    (data / 'ppo_torch_hopper' / 'ppo_torch_hopper_s1' / 'progress.txt').write_text('')
    figure = plot.make_plots(['data/ppo'])                                       # nothing logged: not counted
    assert legend_texts(figure) == ["mean and 95 % interval (Student's t) over 1-2 seeds", 'ppo_torch']
    figure = plot.make_plots(['data/ppo_torch_hopper', 'data/sac_tf1_hopper'])
    assert legend_texts(figure) == ["mean and 95 % interval (Student's t) over seeds", 'ppo_torch (1 seed)',
                                    'sac_tf1 (2 seeds)']
    figure = plot.make_plots(['data'], select=['_s0'])                           # no interval of one seed
    assert legend_texts(figure) == ['1 seed each', 'ppo_torch', 'sac_tf1']
    assert legend_texts(plot.make_plots(['data/sac_tf1_hopper'], exclude=['_s1'])) == ['1 seed', 'sac_tf1']
    write_run(data / 'again' / 'again_s0', [1.], exp_name='ppo_torch', seed=0)
    runs = plot.get_all_datasets(['data/ppo_torch_cartpole', 'data/again'])
    assert list(plot.curve_labels(runs).values()) == ['ppo_torch (3 runs)']      # three runs of two seeds


def test_a_run_without_a_name_is_called_as_its_folder(tmp_path):
    """One made by ppo(lambda: ...), whose config.json has null for exp_name. Two of them are two experiments."""
    for name in 'mine', 'other':
        write_run(tmp_path / name, [1.], exp_name=None)
    assert [run.condition for run in plot.get_datasets(tmp_path)] == ['mine', 'other']


def test_count_draws_each_run(data):
    write_run(data / 'again' / 'again_s0', [1.], exp_name='ppo_torch', seed=0)
    runs = plot.get_all_datasets(['data/ppo', 'data/again'])
    results = plot.plot_data([run for run in runs if run.env_name == 'CartPole-v1'], count=True)
    assert list(results) == ['ppo_torch seed 0', 'ppo_torch seed 1', 'data/again/again_s0']
    assert results['ppo_torch seed 1'][1].tolist() == [1, 2, 5]
    figure = plot.make_plots(['data/ppo'], count=True, smooth=3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ['ppo_torch seed 0', 'ppo_torch seed 1']
    assert figure.legends[0].get_title().get_text() == 'smoothed over 3 epochs'


def test_a_column_of_some_runs_only(data, capsys):
    write_run(data / 'vpg' / 'vpg_s0', [1., 2.], 'Ant-v5', 'vpg', StopIter=[3, 4])
    figure = plot.make_plots(['data'], values=['StopIter'])
    assert [ax.get_title() for ax in figure.axes] == ['Ant-v5']
    assert capsys.readouterr().out == 'Ant-v5 StopIter, vpg: 4 at 20\n'


def test_ends_are_printed(data, capsys):
    write_run(data / 'ppo_torch_cartpole' / 'ppo_torch_cartpole_s2', [0., 1., 2., 3.5], seed=2)
    plot.make_plots(['data/ppo_torch_cartpole'], band='minmax')
    assert capsys.readouterr().out == 'CartPole-v1 Performance, ppo_torch: 3.5 at 40, 1 of 3 seeds\n'
    plot.make_plots(['data/ppo_torch_hopper'], band='minmax')
    assert capsys.readouterr().out == 'Hopper-v5 Performance, ppo_torch: 4.5 [4, 5] at 30\n'


def test_tick_labels():
    assert [plot.thousands(x) for x in (0, .5, 250, 1000, 10000, 12500, 1e6, 1.5e6, 3e9)] == [
        '0', '0.5', '250', '1k', '10k', '12.5k', '1M', '1.5M', '3G']


@pytest.mark.parametrize('suffix, start', [('png', b'\x89PNG\r\n'), ('svg', b'<?xml'), ('pdf', b'%PDF-')])
def test_out_formats_are_written_and_repeatable(data, suffix, start, capsys):
    for name in ('first', 'second'):
        plot.main(['data/ppo_torch_hopper', '--out', f'{name}.{suffix}'])
    first, second = Path(f'first.{suffix}').read_bytes(), Path(f'second.{suffix}').read_bytes()
    assert first.startswith(start) and len(first) > 5000 and first == second
    assert f'wrote first.{suffix}' in capsys.readouterr().out
    assert sorted(os.listdir('.')) == ['data', f'first.{suffix}', f'second.{suffix}']     # no partial file is left


def test_interrupted_writing_leaves_the_old_file_and_nothing_else(data, monkeypatch):
    def interrupted(self, path, **kwargs):
        Path(path).write_text('half a picture')
        raise KeyboardInterrupt
    Path('a.png').write_text('the last one')
    monkeypatch.setattr(plt.Figure, 'savefig', interrupted)
    plot.main(['data/ppo_torch_hopper', '--out', 'a.png'])
    assert sorted(os.listdir('.')) == ['a.png', 'data'] and Path('a.png').read_text() == 'the last one'


def test_flags_reach_the_picture(data):
    plot.main('data --select hopper --exclude cart -x Epoch -y AverageTestEpRet -l A B --est iqm --band std -s 2 '
              '--out a.svg'.split())
    texts = re.findall('<!-- (.*) -->', Path('a.svg').read_text())               # where matplotlib notes each text
    assert {'Hopper-v5', 'Epoch', 'Average return (test)', 'B'} <= set(texts)
    assert 'interquartile mean and standard deviation over 2 seeds, smoothed over 2 epochs' in texts
    assert 'A' not in texts                                                      # ppo logs no test returns


def test_without_display_it_writes_plot_png_and_says_so(data, capsys):
    plot.main(['data'])
    assert Path('plot.png').stat().st_size > 5000
    assert 'no display: wrote plot.png' in capsys.readouterr().out


def test_with_a_display_it_opens_a_window(data, monkeypatch):
    """No window system here: the canvas only says that it has one."""
    calls = []
    monkeypatch.setattr(FigureCanvasAgg, 'required_interactive_framework', 'tk')
    monkeypatch.setattr(plt, 'show', lambda: calls.append('show'))
    monkeypatch.setattr(plt, 'pause', lambda seconds: calls.append(seconds) or len(calls) == 3 and plt.close('all'))
    plot.main(['data'])
    assert calls == ['show']
    plt.close('all')
    plot.main(['data', '--live', '7'])                                           # until it is closed
    assert calls == ['show', 7., 7.] and os.listdir('.') == ['data']


def test_live_follows_the_runs(data):
    """Waits for a first epoch, draws again when there are more, and ends with Ctrl-C, quietly."""
    progress = data / 'ppo_torch_hopper' / 'ppo_torch_hopper_s0' / 'progress.txt'
    header, *rows = progress.read_text().splitlines(keepends=True)
    progress.write_text(header)
    command = [sys.executable, '-m', 'tools.plot', str(progress.parent), '--live', '.1', '--out', 'a.svg']
    live = subprocess.Popen(command, env=dict(os.environ, PYTHONPATH=str(ROOT), MPLBACKEND='agg'), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        assert 'logged yet' in live.stdout.readline()
        for i, row in enumerate(rows):
            with open(progress, 'a') as file:
                file.write(row)
            deadline, expected = time.time() + 60, f' at {10 * (i + 1)}\n'
            while not (line := live.stdout.readline()).endswith(expected):
                assert line and time.time() < deadline
        while not live.stdout.readline().startswith('wrote a.svg'):
            pass
        live.send_signal(signal.SIGINT)
        _, errors = live.communicate(timeout=60)
        assert live.returncode == 0 and errors == ''
        assert sorted(os.listdir('.')) == ['a.svg', 'data']
    finally:
        live.kill()
        live.wait()


# %% Mistakes
@pytest.mark.parametrize('argv, words', [
    (['data', '-y', 'AverageEpRt'], ['AverageEpRt', 'AverageEpRet']),
    (['data', '-y', 'PERFORMANCE'], ['(nearest: Performance)']),
    (['data', '-y', 'KL', 'Zzzzz'], ["'Zzzzz'", 'Epoch', 'AverageTestEpRet', 'KL']),      # nothing near: all of them
    (['data', '-x', 'TotalEnvInteract'], ['TotalEnvInteracts']),
    (['dada/ppo'], ['dada/ppo']),
    (['data/pop_torch'], ['data/pop_torch', 'ppo_torch_hopper']),
    (['nothing_here'], ['nothing_here']),
    (['data', '--select', 'walker'], ['no runs', '--select']),
    (['data', '--out', 'a.jpg'], ['a.jpg', '.png, .svg or .pdf']),
    (['data', '--out', 'missing/a.png'], ['missing/a.png']),
    (['data', '--smoth', '3'], ['--smoth', '--smooth']),
    (['data', '--sm', '3'], ['unknown argument --sm']),                                          # flags are written out
    (['data', '--smooth', 'x'], ['--smooth', "'x'"]),
    (['data', '--smooth', '0'], ['--smooth']),
    (['data', '--live', '0'], ['--live']),
    (['data', '--est', 'men'], ['men', 'mean', 'iqm']),
    (['data', '--band', 'sd'], ['sd', 'std']),
    (['-y', 'KL', 'data'], ['before the flags']),
    ([], ['which runs?'])])
def test_mistakes_are_one_line_with_status_2(data, argv, words, capsys):
    line = refused(argv, capsys)
    for word in words:
        assert word in line
    assert os.listdir('.') == ['data']                                           # and nothing is written


def test_no_runs_and_nothing_logged(tmp_path, capsys):
    (tmp_path / 'empty').mkdir()
    assert 'no runs' in refused([tmp_path / 'empty'], capsys)
    run = write_run(tmp_path / 'exp' / 'exp_s0', [])
    assert 'logged yet' in refused([run], capsys)                                # a header only
    (run / 'progress.txt').write_text('')
    assert 'logged yet' in refused([run], capsys)


def test_folders_may_stand_between_flags(data, capsys):
    plot.main(['-s', '2', 'data/ppo_torch_hopper', '--est', 'median', 'data/sac_tf1_hopper', '--out', 'a.png'])
    assert re.findall(r'ppo_torch|sac_tf1', capsys.readouterr().out) == ['ppo_torch', 'sac_tf1']


@pytest.mark.parametrize('live', [[], ['--live']])
def test_a_reader_who_has_had_enough_ends_it(live, monkeypatch):
    """As a mistake it would be shown, and with --live tried again for ever."""
    monkeypatch.setattr(plot, 'make_plots', Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(plot.time, 'sleep', Mock(side_effect=AssertionError))
    with pytest.raises(BrokenPipeError):
        plot.show(plot.parse_args(['data', *live]))
