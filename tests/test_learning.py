"""benchmarks.learning: what it runs, that it goes on where it stopped, its tables and statistics, and RESULTS.md."""
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from benchmarks import learning, learning_report, train_peers
from common.errors import ExperimentFailed, UserError
from tools import plot

ROOT = Path(__file__).resolve().parent.parent
SMALL = [('small', 'ppo', 'torch', 'CartPole-v1', 600, 1, dict(steps_per_epoch=200)),
         ('small', 'ppo trpo', 'torch', 'CartPole-v1', 400, 2, dict(steps_per_epoch=200))]


def arguments(folder, **chosen):
    return Namespace(**{**dict(suite=None, scripts=None, envs=None, seeds=None, jobs=2, data_dir=str(folder / 'data'),
                               out=folder), **chosen})


def write_run(run, returns, column='AverageEpRet', step=4000, seconds=10):
    """The folder that a run leaves, with these returns."""
    run.experiment.folder.mkdir(parents=True, exist_ok=True)
    lines = [f'Epoch\t{column}\tTotalEnvInteracts\tTime'] + [
        f'{i}\t{value}\t{step * (i + 1)}\t{seconds * (i + 1)}' for i, value in enumerate(returns)]
    (run.experiment.folder / 'progress.txt').write_text('\n'.join(lines) + '\n')


# ---- What is run

def test_the_suites_are_those_of_scripts_that_exist_and_no_run_is_there_twice(tmp_path):
    runs = learning.planned(arguments(tmp_path))
    assert len({run.key for run in runs}) == len({run.experiment.folder for run in runs}) == len(runs)
    assert {run.script for run in runs} == {path.stem for path in ROOT.glob('*_t*.py')}
    assert all(run.steps % run.settings.get('steps_per_epoch', learning.STEPS_PER_EPOCH) == 0 for run in runs)
    order = list(dict.fromkeys(run.suite for run in runs))
    assert order[0] == 'cartpole' and order[-2:] == ['mujoco_on_policy', 'mujoco_off_policy']
    longest = [run for run in runs if run.key == ('sac_torch', 'HalfCheetah-v5', 0)]
    assert [run.steps for run in longest] == [320_000]                  # the longer of two rows that share a seed
    others = learning.planned(arguments(tmp_path, scripts=['sac_torch'], envs=['HalfCheetah-v5'], seeds=[0, 1]))
    assert [run.steps for run in others] == [320_000, 120_000]          # and no longer where it has not this seed
    seeds = [run.seed for run in runs if run.suite == 'cartpole']
    assert seeds == sorted(seeds)                                       # so that what is there at any time is balanced


def test_choosing_a_part_and_mistakes(tmp_path):
    runs = learning.planned(arguments(tmp_path, scripts=['sac_tf1'], envs=['Pendulum-v1'], seeds=[7]))
    assert [run.label for run in runs] == ['sac_tf1', 'sac_tf1 alpha=auto']
    assert runs[1].flags == ['--env_name', 'Pendulum-v1', '--seed', '7', '--epochs', '20', '--steps_per_epoch', '1000',
                             '--alpha', 'auto']
    for chosen, said in ((dict(scripts=['ppo_torhc']), 'ppo_torch'), (dict(suite=['x']), 'cartpole'),
                         (dict(scripts=['sac_tf1'], envs=['CartPole-v1']), '--list')):
        with pytest.raises(UserError, match=said):
            learning.planned(arguments(tmp_path, **chosen))
    for argv, said in ((['--jobs', '0'], '--jobs'), (['--seeds', '-1'], '--seeds'), (['--out', 'nowhere'], 'nowhere'),
                       (['--suit', 'x'], '--suite')):
        with pytest.raises(UserError, match=said):
            learning.parse_args(argv)


def test_other_libraries_are_run_when_they_are_asked_for(tmp_path, monkeypatch):
    assert not {run.script for run in learning.planned(arguments(tmp_path))} & {'ppo_spinup', 'trpo_contrib'}
    first, *_, last = runs = learning.planned(arguments(tmp_path, suite=['peers']))
    assert runs[:2] == learning.planned(arguments(tmp_path, scripts=['ppo_spinup'], seeds=[0]))
    assert (first.label, last.label) == ('ppo_spinup', 'ppo_spinup') and len(runs) == 28
    write_run(first, [20.] * 29)
    assert not first.finished()
    write_run(first, [20.] * 30)
    assert first.finished() and not last.finished()
    monkeypatch.setattr(learning, 'SPINNING_UP', tmp_path / 'spinningup')
    with pytest.raises(UserError, match='git clone'):
        learning.prepare_libraries(runs)


SPINNING_UP_PPO = """
import gym, numpy as np, torch
import spinup.algos.pytorch.ppo.core as core
from spinup.utils.logx import EpochLogger
from spinup.utils.mpi_pytorch import setup_pytorch_for_mpi, sync_params, mpi_avg_grads
from spinup.utils.mpi_tools import mpi_fork, mpi_avg, proc_id, mpi_statistics_scalar, num_procs

def ppo(env_fn, seed=0, steps_per_epoch=4000, epochs=50, logger_kwargs=dict()):
    setup_pytorch_for_mpi()
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(locals())
    assert (seed, proc_id(), num_procs(), mpi_avg(0.5)) == (3, 0, 1, 0.5)
    assert mpi_statistics_scalar(np.array([1., 3.])) == (2, 1)
    env = env_fn()
    obs, length = env.reset(), 0
    assert obs.shape == env.observation_space.shape and isinstance(env.action_space, gym.spaces.Discrete)
    for t in range(epochs * steps_per_epoch):
        obs, rew, done, _ = env.step(core.choose(obs))
        length += 1
        logger.store(EpLen=length)
        if done:
            print(t + 1, length)
            env.reset()
            length = 0
"""


def test_what_another_library_trains_is_in_a_table(tmp_path):
    """A checkout of Spinning Up whose package cannot be imported, as on current versions of what it needs."""
    folder = tmp_path / 'checkout' / 'spinup' / 'algos' / 'pytorch' / 'ppo'
    folder.mkdir(parents=True)
    (tmp_path / 'checkout' / 'spinup' / '__init__.py').write_text('import tensorflow.contrib')
    (folder / 'core.py').write_text('from gym.spaces import Box, Discrete\nchoose = lambda obs: int(obs[2] > 0)')
    (folder / 'ppo.py').write_text(SPINNING_UP_PPO)
    given = dict(library='spinup', algo='ppo', env='CartPole-v1', steps=400, every=40, seed=3,
                 path=str(tmp_path / 'progress.txt'), checkout=str(tmp_path / 'checkout'))
    done = subprocess.run([sys.executable, '-E', ROOT / 'benchmarks' / 'train_peers.py', json.dumps(given)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    episodes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]      # the step of its end, length
    columns = learning.read_columns(tmp_path / 'progress.txt')
    assert columns['TotalEnvInteracts'].tolist() == list(range(40, 401, 40))
    means = [np.mean([length for end, length in episodes if steps - 40 < end <= steps] or [np.nan])
             for steps in columns['TotalEnvInteracts']]
    assert np.isnan(means).any() and len(episodes) > 5              # an epoch without an episode's end is an empty cell
    np.testing.assert_allclose(columns['AverageEpRet'], means)
    np.testing.assert_allclose(columns['EpLen'], means)


def test_environments_that_are_stepped_in_turn_share_a_table(tmp_path):
    table = train_peers.Table(tmp_path / 'progress.txt', every=4)
    envs = [train_peers.Logged(gym.make('CartPole-v1', max_episode_steps=length), table.add_step) for length in (3, 5)]
    for t in range(6):                                      # the first ends after its steps 3 and 6, the other after 5
        for env in envs:
            if t % env.spec.max_episode_steps == 0:
                env.reset(seed=0)
            env.step(t % 2)
    columns = learning.read_columns(tmp_path / 'progress.txt')
    assert columns['TotalEnvInteracts'].tolist() == [4, 8, 12]
    np.testing.assert_array_equal(columns['AverageEpRet'], [np.nan, 3, 4])
    np.testing.assert_array_equal(columns['MaxEpRet'], [np.nan, 3, 5])


def test_test_episodes_are_a_column_of_their_own_and_no_training_steps(tmp_path):
    table = train_peers.Table(tmp_path / 'progress.txt', every=4, tests=2)
    for add, lengths in ((table.add_step, [3, 1]), (table.add_test_step, [5, 7]), (table.add_step, [4]),
                         (table.add_test_step, [9, 1])):
        for length in lengths:
            for step in range(length):
                add(dict(r=10 * length, l=length) if step == length - 1 else None)
    columns = learning.read_columns(tmp_path / 'progress.txt')
    assert columns['TotalEnvInteracts'].tolist() == [4, 8] and columns['EpLen'].tolist() == [2, 4]
    assert columns['AverageEpRet'].tolist() == [20, 40] and columns['AverageTestEpRet'].tolist() == [60, 50]


def test_time_left_is_by_what_was_measured(tmp_path):
    one, two = learning.planned(arguments(tmp_path, scripts=['ppo_torch'], suite=['cartpole'], seeds=[0, 1]))
    write_run(one, [20.] * 15, seconds=8)                               # 60k of 120k steps in 120 s
    assert learning.seconds_left([one, two], 1) == pytest.approx(120 + 240)
    assert learning.seconds_left([one, two], 2) == pytest.approx(180)
    assert [learning.duration(s) for s in (8, 300, 8000)] == ['8 s', '5 min', '2.2 h']


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(learning, 'SUITES', SMALL)


def test_runs_are_made_collected_and_skipped_once_they_are_finished(tmp_path, small, capsys):
    argv = ['--data_dir', str(tmp_path / 'data'), '--out', str(tmp_path)]
    learning.main(argv)
    said = capsys.readouterr().out
    assert '4/4' in said and 'wrote' in said
    rows = dict(np.load(tmp_path / 'tables' / 'small.npz'))
    logged = learning.planned(arguments(tmp_path, scripts=['ppo_torch'], seeds=[0]))[0].columns()
    ours = (rows['label'] == 'ppo_torch steps_per_epoch=200') & (rows['seed'] == 0)
    assert ours.sum() == 3 and len(rows['seed']) == 3 + 2 + 2 + 2       # seed 0 of ppo goes on to 600 steps
    for name in 'AverageEpRet', 'KL', 'ClipFrac', 'Time':
        np.testing.assert_array_equal(rows[name][ours], np.float32(logged[name]))
    assert np.isnan(rows['ClipFrac'][rows['label'] == 'trpo_torch steps_per_epoch=200']).all()
    facts, = json.loads((tmp_path / 'tables' / 'machines.json').read_text())['small']
    assert 'core' in facts['machine'] and facts['versions']['torch']
    text = (tmp_path / 'RESULTS.md').read_text()
    assert '| trpo_torch steps_per_epoch=200 | 400 | 2 |' in text and 'Not run yet' not in text
    before = (tmp_path / 'tables' / 'small.npz').read_bytes()
    learning.main(argv)                                                 # nothing is left to do
    assert ': return' not in capsys.readouterr().out
    assert (tmp_path / 'tables' / 'small.npz').read_bytes() == before


def test_stopped_it_leaves_nothing_behind_and_goes_on(tmp_path):
    """Stopped in the middle of a run, the same command gives the rows of a run that was not stopped."""
    code = ('from benchmarks import learning; learning.SUITES = [("s", "ppo", "torch", "CartPole-v1", 120_000, 1, '
            'dict(steps_per_epoch=500, save_freq=1, train_v_iters=5))]; learning.main()')
    command = [sys.executable, '-c', code, '--data_dir', str(tmp_path / 'data'), '--out', str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    progress = tmp_path / 'data' / 'cartpole-v1' / 'ppo_torch-steps_per_epoch-500-save_freq-1-train_v_iters-5'
    progress = progress / f'{progress.name}_s0' / 'progress.txt'
    deadline = time.time() + 300
    while not (progress.exists() and progress.read_text().count('\n') > 4):
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.05)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert second.returncode == 2 and 'going on' in second.stderr       # two at once would write to the same folders
    process.send_signal(signal.SIGTERM)
    assert 'interrupted; the same command goes on' in process.communicate(timeout=300)[1]
    assert process.returncode == 130
    stopped = progress.read_text()
    time.sleep(0.5)
    assert progress.read_text() == stopped and 4 < stopped.count('\n') < 200        # its process has ended, too
    assert 'are not finished' in (tmp_path / 'RESULTS.md').read_text()
    rows = stopped.count('\n') - 1
    done = subprocess.run([*command[:2], code.replace('120_000', str(500 * (rows + 2))), *command[3:]], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'Resuming after row' in (progress.parent / 'output.log').read_text()
    assert np.load(tmp_path / 'tables' / 's.npz')['Epoch'].tolist() == list(range(rows + 2))


def test_a_run_that_fails_is_named_and_the_others_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, 'SUITES', [('s', 'ppo', 'torch', 'CartPole-v1', 200, 1, dict(steps_per_epoch=100)),
                                             ('s', 'sac', 'torch', 'CartPole-v1', 200, 1, dict(steps_per_epoch=100))])
    args = arguments(tmp_path)
    with pytest.raises(ExperimentFailed, match='1 of 2 runs failed.*sac_torch'):
        learning.carry_out(learning.planned(args), 1)
    assert learning.planned(args)[0].done()[0] == 200


def test_a_table_keeps_what_no_folder_has_and_takes_what_is_longer(tmp_path, small):
    one, two, other = learning.planned(arguments(tmp_path))[:3]
    write_run(one, [1., 2.])
    write_run(two, [5.])
    learning.collect('small', [one, two, other], tmp_path)
    write_run(one, [7.])                                                # begun anew, and not yet as far
    write_run(two, [5., 6.])
    learning.collect('small', [one, two], tmp_path)
    found = learning_report.read_runs(tmp_path / 'tables' / 'small.npz')
    assert {key: columns['AverageEpRet'].tolist() for key, columns in found.items()} == {
        one.key: [1, 2], two.key: [5, 6]}


def test_missing_is_what_the_tables_lack(tmp_path, small):
    one, two, *others = runs = learning.planned(arguments(tmp_path))
    write_run(one, [1., 2., 3.], step=200)                              # all of its 600 steps
    write_run(two, [5.], step=200)                                      # half
    learning.collect('small', runs, tmp_path)
    assert learning.missing(runs, tmp_path) == [two, *others]
    assert learning.missing(runs, tmp_path / 'elsewhere') == runs


# ---- Statistics

def by_seed(values):
    return dict(enumerate(values))


def coverage(sizes, repeats, paired=False, shared=0.):
    """How often the interval of a difference holds the true one, 0; shared: the part that equal seeds share."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(repeats):
        common = shared * rng.normal(size=max(sizes))
        groups = [by_seed(common[:n] + (1 - shared) * rng.normal(size=n)) for n in sizes]
        _, low, high = learning_report.difference(*groups, paired)
        covered += low <= 0 <= high
    return covered / repeats


@pytest.mark.parametrize('sizes', [(3, 3), (5, 5), (3, 1), (10, 3), (40, 5)])
def test_intervals_of_differences_cover_what_they_claim(sizes):
    assert .92 <= coverage(sizes, 2000) <= .98


@pytest.mark.parametrize('sizes, shared, repeats', [((5, 5), 0., 2000), ((5, 6), .9, 2000), ((10, 10), .9, 400)])
def test_intervals_of_differences_of_twins(sizes, shared, repeats):
    assert .90 <= coverage(sizes, repeats, True, shared) <= .99
    if shared:                                                          # of which unpaired ones would see less
        assert coverage(sizes, 400, False, shared) > .99


def test_differences_by_hand():
    difference, values = learning_report.difference, np.random.default_rng(0).normal(size=10)
    ours, theirs = by_seed(values), by_seed(values + 5)
    np.testing.assert_allclose(difference(ours, theirs, True), -5)      # seed by seed it is the same
    centre, low, high = difference(ours, theirs)
    assert low < centre < high < 0 and centre == pytest.approx(-5)
    few = {seed: theirs[seed] for seed in (0, 1, 2, 3)}
    assert difference(ours, few, True) == difference(ours, few)         # too few seeds in common
    assert np.isnan(difference({0: 1.}, {0: 2.})[1])
    np.testing.assert_allclose(difference(by_seed([500.] * 10), by_seed([500.] * 10)), 0)


def test_verdicts():
    def verdict(values, mean, deviation):
        return learning_report.verdict(np.array(values), mean, deviation)

    wide, narrow = [80., 100, 120], [99., 100, 101]                     # intervals of +-50 and +-2.5
    assert verdict(narrow, 95, 10) == 'within' and verdict(narrow, 200, 100) == 'within'
    assert verdict(narrow, 80, 10) == 'above' and verdict(narrow, 120, 10) == 'below'
    assert verdict(wide, 120, 10) == 'below, intervals overlap' and verdict(wide, 80, 10) == 'above, intervals overlap'
    assert verdict([100.], 120, 10) == 'below'
    # One more seed, of a standard deviation of 1: 4.303 sqrt(1 + 1/3) = 4.97 to either side
    assert verdict(narrow, 104.9, None) == 'within' and verdict(narrow, 105.1, None) == 'below'
    assert verdict(narrow, 95.1, None) == 'within' and verdict(narrow, 94.9, None) == 'above'
    assert verdict([100.], 100, None) == 'one seed each'


def test_the_prediction_interval_contains_one_more_seed():
    values = np.random.default_rng(0).normal(size=(2000, 6))
    assert .93 <= np.mean([learning_report.verdict(seeds, one, None) == 'within' for *seeds, one in values
                           for seeds in [np.array(seeds)]]) <= .97


def dataset(label, env, seed, returns, step=4000, suite='cartpole'):
    steps = step * np.arange(1., len(returns) + 1)
    return plot.Dataset(suite, label, env, seed, dict(TotalEnvInteracts=steps, Time=steps / 1000,
                                                      Performance=np.array(returns)), {})


def test_returns_are_averaged_over_the_epochs_around():
    """As in Spinning Up's curves: 11 epochs around the step count for MuJoCo; and one, or as many steps, elsewhere."""
    returns = np.random.default_rng(0).normal(size=44)
    runs = [dataset('ppo_torch', 'Hopper-v5', 0, returns), dataset('ppo_torch', 'Hopper-v5', 1, returns[:20])]
    assert learning_report.returns_at(runs, 100_000) == {0: pytest.approx(returns[24 - 5:24 + 6].mean())}
    assert learning_report.mean_returns(runs, 80_000) == {seed: pytest.approx(returns[:20].mean()) for seed in (0, 1)}
    runs = [dataset('ppo_torch', 'CartPole-v1', 0, returns)]
    assert learning_report.returns_at(runs, 102_000) == {0: pytest.approx(returns[24:26].mean())}
    runs = [dataset('trpo_torch steps_per_epoch=1000', 'LunarLander-v3', 0, returns, step=1000)]
    assert learning_report.returns_at(runs, 22_000) == {0: pytest.approx(returns[:43].mean())}


def test_published_figures_belong_to_what_is_run(tmp_path):
    runs = learning.planned(arguments(tmp_path))
    planned = {(run.script.split('_')[0], run.env): run.steps for run in sorted(runs, key=lambda run: run.steps)}
    for figures in learning_report.PUBLISHED.values():
        assert set(figures) <= set(planned)
        assert all(deviation is None or deviation > 0
                   for points in figures.values() for _, deviation in points.values())
    assert learning_report.published('sac_tf1 alpha=auto', 'Pendulum-v1') == [(20_000, 'SB3 zoo', -157, None)]


# ---- RESULTS.md

def test_the_report_of_partial_results(tmp_path):
    """Numbers by hand in its tables, twins and processes beside each other, what has not run by name."""
    runs = learning.planned(arguments(tmp_path))
    runs += learning.planned(arguments(tmp_path, suite=['peers'], envs=['CartPole-v1']))
    wanted = {'ppo_torch': 5, 'ppo_tf1': 3, 'ppo_torch 4 processes': 2, 'ppo_spinup': 4}
    rng = np.random.default_rng(0)
    for run in runs:
        if run.env == 'CartPole-v1' and run.seed < wanted.get(run.label, 0):
            write_run(run, np.append(rng.uniform(100, 300, 24), [10. * run.seed] * 6))
        if run.key == ('sac_torch', 'Hopper-v5', 0):
            write_run(run, [1164.] * 30, 'AverageTestEpRet')
    for suite in 'cartpole', 'processes', 'mujoco_off_policy', 'peers':
        learning.collect(suite, runs, tmp_path)
    text = learning_report.report(tmp_path, runs, learning.COMMAND)
    assert text == (tmp_path / 'RESULTS.md').read_text()
    half = 4.303 * np.sqrt((10**2 + 10**2 + 10**2 + 10**2) / (3 * 2))       # of 10 10 20 30 30, 3 kept
    assert f'| ppo_torch | 100k | 5 | 20 [{20 - half:.0f}, {20 + half:.0f}] | 0.0 10 20 30 40 | 0 of 5 | 500 |' in text
    assert '| sac_torch | 100k | 1 | 1164 | 1164 | 1164 ± 301 | Spinning Up (10 seeds) | within |' in text
    assert '| ppo_torch | ppo_tf1 | CartPole-v1 | 100k | 5 and 3 | 10 [' in text
    assert '| ppo_torch 4 processes | ppo_torch | CartPole-v1 | 100k | 2 and 5 | -15 [' in text
    assert '| ppo_torch | ppo_spinup | CartPole-v1 | 100k | 5 and 4 | 5.0 [' in text
    assert '| ppo_spinup | 100k | 4 | 15 [' in text and '| 500 | SB3 zoo |' in text
    assert '- vpg_torch, CartPole-v1: seeds 0 1 2 3 4 5 6 7 8 9\n' in text
    assert '- ppo_tf1, CartPole-v1: seeds 3 4 5 6 7 8 9\n' in text
    for name in learning_report.FIGURES:
        assert f'figures/learning_{name}.png' in text
        assert (tmp_path / 'figures' / f'learning_{name}.png').stat().st_size > 10_000
    assert str(tmp_path) not in text


def test_the_first_times_of_each_seed():
    runs = [dataset('ppo_torch', 'Acrobot-v1', seed, returns) for seed, returns in enumerate(([0, 475, 400], [0] * 3))]
    for run, best in zip(runs, ([-500, -500, -400], [-500] * 3)):
        run.columns.update(MaxEpRet=np.array(best), Epoch=np.arange(3))
    groups = {('ppo_torch', 'Acrobot-v1'): runs, ('ppo_torch', 'CartPole-v1'): runs}
    assert '\n- ppo_torch: 2 never\n' in learning_report.explained('Acrobot-v1', groups)
    assert '\n- ppo_torch: 8 never\n' in learning_report.explained('CartPole-v1', groups)


def test_nothing_at_all_is_a_report_too(tmp_path):
    text = learning_report.report(tmp_path, learning.planned(arguments(tmp_path)), learning.COMMAND)
    assert 'Not run yet' in text and not list((tmp_path / 'figures').iterdir())


# ---- The quick form

def test_quick_holds_what_is_logged_against_its_limits(monkeypatch, capsys):
    settings = dict(steps_per_epoch=200, epochs=2)
    monkeypatch.setattr(learning, 'QUICK', dict(ppo=('CartPole-v1', settings, dict(AverageEpRet=(5, 200), KL=(0, 1)))))
    args = Namespace(scripts=['ppo_torch'], seeds=[3], jobs=1)
    learning.quick(args)
    assert 'all 1 runs' in capsys.readouterr().out
    learning.QUICK['ppo'][2]['AverageEpRet'] = (300, 500)
    with pytest.raises(ExperimentFailed, match='1 of 2'):
        learning.quick(args)
    assert capsys.readouterr().out.count('WRONG') == 1


def test_quick_is_of_all_twelve_scripts():
    assert {f'{algo}_{framework}.py' for algo in learning.QUICK for framework in ('torch', 'tf1')} == {
        path.name for path in ROOT.glob('*_t*.py')}
    assert os.path.exists(ROOT / 'benchmarks' / 'README.md')
