"""The doctor: every diagnosis with a run that shows it, and runs near to it that are well."""
import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box

from ddpg_torch import ddpg
from helpers import SmallEnv
from ppo_torch import ppo
from tools import doctor
from tools.sections import ROOT

HEALTHY = 'Nothing looks wrong.'
N = 20                                                          # epochs of the runs that are made up here
EPOCHS = np.arange(N)
RISING = np.minimum(500, 22 * 1.3**EPOCHS)
NOWHERE = dict(AverageEpRet=np.full(N, 22.), AverageTestEpRet=np.full(N, -1400.))       # returns that never rise


# ---- Runs: made up after real ones, PPO and others on CartPole-v1, SAC and others on Pendulum-v1

def returns(kind, average, std, length):
    return {f'Average{kind}EpRet': average, f'Std{kind}EpRet': std, f'Max{kind}EpRet': average + std,
            f'Min{kind}EpRet': average - std, f'{kind}EpLen': length}


def on_policy(algo='ppo'):
    """config and columns of a run that went well: from 22 to 500 while the value function first falls behind."""
    config = dict(algo=f'{algo}_torch', env_name='CartPole-v1', epochs=N, steps_per_epoch=4000, num_procs=4, gamma=0.99,
                  max_ep_len=1000, vf_lr=1e-3, train_v_iters=80)
    average = RISING
    loss = 300 + 600 * np.sin(np.pi * EPOCHS / N) - 15 * EPOCHS
    columns = dict(Epoch=EPOCHS, **returns('', average, 10 + average / 10, average),
                   AverageVVals=100 * EPOCHS / N, StdVVals=EPOCHS, TotalEnvInteracts=4000 * (EPOCHS + 1),
                   LossPi=0 * EPOCHS, LossV=loss, DeltaLossPi=np.full(N, -0.01), DeltaLossV=-0.3 * loss,
                   Entropy=0.68 - 0.02 * EPOCHS, KL=np.full(N, 0.006))
    if algo == 'trpo':
        return dict(config, delta=0.01, damping_coeff=0.1, backtrack_iters=10), dict(columns, BacktrackIters=EPOCHS % 2)
    config = dict(config, pi_lr=3e-4)
    if algo == 'vpg':
        return config, columns
    return (dict(config, target_kl=0.01, train_pi_iters=80),
            dict(columns, ClipFrac=np.full(N, 0.1), StopIter=np.where(EPOCHS == 7, 9, 79)))


def off_policy(algo='ddpg'):
    """From -1400 to -130; no update in the first epoch."""
    config = dict(algo=f'{algo}_torch', env_name='Pendulum-v1', epochs=N, steps_per_epoch=2000, num_procs=1, gamma=0.99,
                  max_ep_len=1000, start_steps=1000, update_after=2000, polyak=0.995, q_lr=1e-3, pi_lr=1e-3)
    average = -130 - 1270 * np.exp(-EPOCHS / 2)
    updated = np.where(EPOCHS == 0, np.nan, 1)
    q = updated * (-20 - 10 * EPOCHS * np.exp(-EPOCHS / 10))
    columns = dict(Epoch=EPOCHS, **returns('', average, -average / 5, np.full(N, 200.)),
                   **returns('Test', average, -average / 5, np.full(N, 200.)), TotalEnvInteracts=2000 * (EPOCHS + 1),
                   LossPi=-q, LossQ=updated)
    if algo == 'ddpg':
        return config, dict(columns, AverageQVals=q)
    columns.update(AverageQ1Vals=q, AverageQ2Vals=q)
    if algo == 'td3':
        return config, columns
    del config['q_lr'], config['pi_lr']
    columns.update(AverageLogPi=updated * np.linspace(-1, 0.4, N))
    if algo == 'sac':
        return dict(config, lr=1e-3, alpha=0.2), columns
    return dict(config, lr=1e-3, alpha='auto'), dict(columns, Alpha=updated * 0.8**EPOCHS)


RUNS = {**{algo: on_policy(algo) for algo in ('vpg', 'ppo', 'trpo')},
        **{algo: off_policy(algo) for algo in ('ddpg', 'td3', 'sac', 'sac auto')}}


def change(algo, config=(), **columns):
    """The healthy run of an algorithm, but for some settings and columns (as far as it has them)."""
    columns = {name: values for name, values in columns.items() if name in RUNS[algo][1]}
    return {**RUNS[algo][0], **dict(config)}, {**RUNS[algo][1], **columns}


def cell(value):
    return '' if np.isnan(value) else str(float(value))


def write_run(folder, config, columns):
    folder.mkdir(parents=True)
    (folder / 'config.json').write_text(json.dumps(config))
    rows = [list(columns), *([cell(value) for value in row] for row in zip(*columns.values()))]
    (folder / 'progress.txt').write_text(''.join('\t'.join(row) + '\n' for row in rows))
    return folder


def diagnosed(folder, capsys):
    """What the command line says about a run, a message each."""
    doctor.main([str(folder)])
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith(f'{folder}: ')
    assert all(len(line) <= 100 for line in lines)
    return ' '.join(line.strip() for line in lines).removeprefix('- ').split(' - ')


def after(epoch, before, then):
    """`before` up to an epoch, and from it on `then`."""
    return np.where(epoch > EPOCHS, before, then)


# ---- Well

@pytest.mark.parametrize('algo', RUNS)
def test_a_healthy_run(algo, tmp_path, capsys):
    assert diagnosed(write_run(tmp_path / 'run', *RUNS[algo]), capsys) == [HEALTHY]


@pytest.mark.parametrize('algo', RUNS)
@pytest.mark.parametrize('epochs', [1, 2, 3, 9, 10])
def test_a_healthy_run_under_way(algo, epochs):
    config, columns = RUNS[algo]
    messages = doctor.diagnose(config, {name: values[:epochs] for name, values in columns.items()})
    expected = ['There was no update in'] if 'LossQ' in columns and epochs == 1 else []
    assert [message[:22] for message in messages] == expected


WELL = dict(
    sure_and_good=change('ppo', Entropy=after(12, 0.6, 0.01)),
    narrow_and_good=change('ppo', Entropy=0.92 - 0.2 * EPOCHS),
    wide=change('ppo', Entropy=0.92 + 0.2 * EPOCHS),
    some_stops_at_once=change('ppo', StopIter=after(5, 1, 79)),
    one_step_is_all_it_may=change('ppo', dict(train_pi_iters=2), StopIter=np.ones(N)),
    some_searches_fail=change('trpo', BacktrackIters=after(5, 10, 0)),
    long_searches=change('trpo', BacktrackIters=np.full(N, 9)),
    nothing_left_to_fit=change('ppo', LossV=after(8, 400, 1e-6), DeltaLossV=after(8, -100, 1e-7)),
    empty_now_and_then=change('ppo', AverageEpRet=np.where(EPOCHS % 6 == 3, np.nan, RISING)),
    dip=change('ppo', AverageEpRet=np.where(EPOCHS == N - 1, 40, RISING)),
    slow=change('ppo', AverageEpRet=22 + 0.6 * EPOCHS),
    random_actions_so_far=change('sac', dict(start_steps=150_000, epochs=100)),
    q_of_what_is_earned=change('td3', dict(max_ep_len=100), AverageTestEpRet=np.linspace(-10, 3000, N),
                               MaxTestEpRet=np.linspace(0, 3300, N), AverageQ1Vals=np.linspace(0, 1600, N),
                               AverageQ2Vals=np.linspace(0, 1600, N)),
    q_with_entropy=change('sac', AverageQ1Vals=np.full(N, 440.), AverageLogPi=np.linspace(-3, 0, N)),
    sure_of_its_actions_and_good=change('sac', AverageLogPi=np.full(N, 15.)),
    large_alpha=change('sac auto', Alpha=after(5, 4 * EPOCHS, 20)),
)


@pytest.mark.parametrize('name', WELL)
def test_nearly_ill(name):
    assert doctor.diagnose(*WELL[name]) == []


def test_a_policy_that_is_a_little_surer_and_does_badly():
    one_dimension, six = 0.92 - 0.1 * EPOCHS, 5.5 - 0.6 * EPOCHS
    for entropy in (np.full(N, 0.06), one_dimension, six):
        assert doctor.entropy_collapsed(*change('ppo', Entropy=entropy, **NOWHERE)) is None


# ---- Ill: check, run, words of its message, other checks that speak as well

ILL = [
    (doctor.not_finite, change('ppo', KL=after(6, 0.01, np.inf), LossV=after(4, 300, np.inf)),
     ['LossV became nan or infinite in epoch 4', 'pi_lr (0.0003) or vf_lr (0.001)']),
    (doctor.not_finite, change('sac', LossQ=after(1, np.nan, -np.inf)), ['LossQ became', 'epoch 1', 'lr (0.001)']),
    (doctor.no_finished_episode, change('ppo', dict(num_procs=8), AverageEpRet=np.full(N, np.nan)),
     ['No episode finished in 20 of 20 epochs', 'of 8', '500 steps', 'may have 1000', 'fewer processes']),
    (doctor.no_finished_episode, change('ppo', AverageEpRet=np.where(EPOCHS % 2, RISING, np.nan)),
     ['in 10 of 20 epochs, first in epoch 0']),
    (doctor.no_finished_episode, change('ppo', dict(num_procs=16)),
     ['Processes are starved', 'of 16', '250 steps', 'EpLen', '500', 'epoch 19', 'more steps_per_epoch']),
    (doctor.entropy_collapsed, change('ppo', Entropy=after(3, 0.5, 0.02), **NOWHERE),
     ['stopped exploring', '0.5 at first', '17 of 20 epochs, first in epoch 3', 'almost sure', 'AverageEpRet is 22'],
     doctor.no_learning),
    (doctor.entropy_collapsed, change('ppo', Entropy=2.76 - 0.52 * EPOCHS, **NOWHERE),           # three dimensions
     ['stopped exploring', 'below -3.2 in 8 of 20 epochs, first in epoch 12', 'seven times'], doctor.no_learning),
    (doctor.kl_stops_at_once, change('ppo', dict(target_kl=1e-4), StopIter=after(2, 79, 1)),
     ['one gradient step of 80 in 18 of 20 epochs, first in epoch 2', 'KL 0.006', 'pi_lr (0.0003)', 'target_kl (0.0']),
    (doctor.line_search_fails, change('trpo', BacktrackIters=after(12, 1, 10)),
     ['no step (BacktrackIters 10) in 8 of 20 epochs, first in epoch 12', 'delta (0.01)', 'damping_coeff (0.1)']),
    (doctor.value_not_learning, change('ppo', DeltaLossV=np.full(N, -0.01), AverageVVals=np.full(N, 1.)),
     ['does not learn', 'in 20 of 20 epochs, first in epoch 0', 'vf_lr (0.001)', 'train_v_iters (80)']),
    (doctor.value_not_learning, change('ppo', DeltaLossV=after(5, -30, 80), AverageVVals=np.full(N, 1.)),
     ['does not learn', 'in 15 of 20 epochs, first in epoch 5', 'smaller vf_lr']),
    (doctor.value_not_learning, change('ppo', LossV=np.full(N, 250_000.), DeltaLossV=np.full(N, -2000.)),
     ['far behind', 'after 20 epochs', 'error (the root of LossV) is 500', 'larger vf_lr (0.001)']),
    (doctor.no_update, change('sac', dict(update_after=10**6), LossQ=np.full(N, np.nan), **NOWHERE),
     ['no update in 40000 steps (up to epoch 19) of 40000', 'update_after (1e+06)']),
    (doctor.no_update, change('ddpg', dict(start_steps=40_000)), ['never acts', '40000 steps', 'start_steps (40000)']),
    # -1400 in 200 steps is -700 with gamma 0.99: half of it above the 0 that no return exceeds
    (doctor.q_too_high, change('ddpg', AverageQVals=after(6, -50, 360.)),
     ['Q is far above', 'up to 360', '14 of 20 epochs, first in epoch 6', 'about 0 is possible', '200 steps',
      'gamma 0.99 sums up 100 steps', 'q_lr (0.001)', 'td3']),
    (doctor.q_too_high, change('sac', AverageQ2Vals=after(6, -50, 500.)),                       # alpha 0.2, LogPi -1
     ['up to 500', 'entropy adds 18.5', 'lr (0.001)']),
    (doctor.q_too_high, change('td3', dict(gamma=1., max_ep_len=200), AverageQ1Vals=np.full(N, 701.)),
     ['gamma 1 sums up 200 steps']),
    (doctor.policy_saturated, change('sac', AverageLogPi=after(9, 0, 18.), **NOWHERE),
     ['hardly stochastic', 'LogPi is 18', 'epoch 19', 'AverageTestEpRet -1400', 'larger alpha', 'lr (0.001)'],
     doctor.no_learning),
    (doctor.alpha_explodes, change('sac auto', Alpha=1.3**EPOCHS),
     ['alpha explodes', '1 at first', '146 in epoch 19', 'fixed --alpha']),
    (doctor.no_learning, change('ppo', **NOWHERE),
     ['Nothing was learned in 20 epochs', 'began at 22', 'pi_lr (0.0003)']),
    (doctor.no_learning, change('trpo', AverageEpRet=np.full(N, -200.), StdEpRet=np.zeros(N)),
     ['began at -200', '(-200, up to epoch', 'episodes, 0', 'delta (0.01)']),
    (doctor.no_learning, change('sac', AverageTestEpRet=-1400 + 5. * EPOCHS), ['AverageTestEpRet', 'lr (0.001)']),
    (doctor.fell_back, change('ppo', AverageEpRet=after(12, RISING, 60.)),
     ['learned, and lost it', 'AverageEpRet averaged', 'up to epoch 11', '60 at the end', '--keep_all']),
]


@pytest.mark.parametrize(('check', 'run', 'words', 'others'), [(*case[:3], case[3:]) for case in ILL],
                         ids=[case[0].__name__ for case in ILL])
def test_a_run_that_shows_it(check, run, words, others, tmp_path, capsys):
    messages = diagnosed(write_run(tmp_path / 'run', *run), capsys)
    mine = [message for message in messages if all(word in message for word in words)]
    assert len(mine) == 1, messages
    assert ' try ' in mine[0].lower()
    assert len(messages) == 1 + len(others), messages
    assert set(messages) == {' '.join(f(*run).split()) for f in (check, *others)}


def test_every_check_is_shown():
    assert {case[0] for case in ILL} == {doctor.not_finite, doctor.no_update, *(check for check, _ in doctor.CHECKS)}


def test_what_came_before_a_nan_is_diagnosed_too(tmp_path, capsys):
    """A nan is not an empty cell; and what led to it is still seen."""
    config, columns = change('ddpg', AverageQVals=after(3, -50, 1e30), LossQ=after(10, 1, np.inf))
    folder = write_run(tmp_path / 'run', config, columns)
    text = (folder / 'progress.txt').read_text()
    assert '\tinf\t' in text
    (folder / 'progress.txt').write_text(text.replace('\tinf\t', '\tnan\t'))
    overflow, q = diagnosed(folder, capsys)
    assert overflow.startswith('LossQ became nan or infinite in epoch 10')
    assert q.startswith('Q is far above what returns can be') and 'in 7 of 10 epochs' in q


# ---- Real runs

def train(train_fn, folder, make_env, **kwargs):
    logger_kwargs = dict(output_dir=str(folder), config=dict(algo=train_fn.__module__, env_name='Small'))
    train_fn(make_env, ac_kwargs=dict(hidden_sizes=(8,)), logger_kwargs=logger_kwargs, **kwargs)


def test_a_real_run_of_ppo(tmp_path, capsys):
    settings = dict(steps_per_epoch=50, train_v_iters=2, train_pi_iters=4, epochs=3)
    train(ppo, tmp_path / 'well', lambda: SmallEnv(length=9), vf_lr=0.1, **settings)
    train(ppo, tmp_path / 'kl', lambda: SmallEnv(length=9), vf_lr=0.1, target_kl=1e-8, **settings)
    train(ppo, tmp_path / 'episodes', SmallEnv, vf_lr=0.1, max_ep_len=170, **settings)
    capsys.readouterr()
    assert diagnosed(tmp_path / 'well', capsys) == [HEALTHY]
    kl, = diagnosed(tmp_path / 'kl', capsys)
    assert kl.startswith('The policy made one gradient step of 4 in 3 of 3 epochs')
    episodes, = diagnosed(tmp_path / 'episodes', capsys)
    assert episodes.startswith('No episode finished in 3 of 3 epochs') and 'may have 170' in episodes


def test_a_real_run_of_ddpg(tmp_path, capsys):
    settings = dict(steps_per_epoch=50, epochs=2, num_test_episodes=1, update_every=50, batch_size=8, replay_size=200)
    env = lambda: SmallEnv(action_space=Box(-1, 1, (1,)), length=9)
    train(ddpg, tmp_path / 'no_update', env, update_after=200, start_steps=10, **settings)
    train(ddpg, tmp_path / 'random', env, update_after=10, start_steps=100, **settings)
    capsys.readouterr()
    no_update, = diagnosed(tmp_path / 'no_update', capsys)
    assert no_update.startswith('There was no update in 100 steps (up to epoch 1) of 100')
    random, = diagnosed(tmp_path / 'random', capsys)
    assert random.startswith('The policy never acts')


# ---- The command line

def refused(argv, capsys):
    with pytest.raises(SystemExit) as leaving:
        doctor.main([str(arg) for arg in argv])
    assert leaving.value.code == 2
    line, = capsys.readouterr().err.splitlines()
    assert line.startswith('doctor: error: ')
    return line


def test_several_runs(tmp_path):
    write_run(tmp_path / 'a', *RUNS['ppo'])
    write_run(tmp_path / 'b', *change('ppo', **NOWHERE))
    with open(tmp_path / 'a' / 'progress.txt', 'a') as file:
        file.write('20\t500.0\t')                                       # a row that is being written
    done = subprocess.run([sys.executable, '-m', 'tools.doctor', tmp_path / 'a', tmp_path / 'b'], cwd=ROOT,
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')
    first, well, second, ill, *_ = done.stdout.splitlines()
    assert first == f'{tmp_path / "a"}: 20 epochs of ppo_torch on CartPole-v1'
    assert well == f'  - {HEALTHY}'
    assert second.startswith(f'{tmp_path / "b"}: ')
    assert ill.startswith('  - Nothing was learned')


def test_mistakes_on_the_command_line(capsys):
    assert 'RUN' in refused([], capsys)
    assert '--verbose' in refused(['--verbose', 'data'], capsys)


def test_what_is_not_a_run(tmp_path, capsys):
    folder = write_run(tmp_path / 'run', *RUNS['ppo'])
    assert 'nowhere is not a run such as data/' in refused([tmp_path / 'nowhere'], capsys)
    line = f'doctor: error: {tmp_path} has no config.json, but runs inside it; give one of {folder}'
    assert refused([tmp_path], capsys) == line
    for i in range(10):
        write_run(tmp_path / 'z' / f'z_s{i}', *RUNS['ppo'])
    assert refused([tmp_path], capsys) == f'{line}, ' + ', '.join(
        f'{tmp_path}/z/z_s{i}' for i in range(9)) + ' and 1 more'
    (folder / 'progress.txt').write_text('Epoch\tAverageEpRet\n')
    assert 'no complete epoch yet' in refused([folder], capsys)
    (folder / 'progress.txt').write_text('')
    assert 'no complete epoch yet' in refused([folder], capsys)
    (folder / 'progress.txt').write_text('Epoch\tAverageEpRet\n1\tmany\n')
    assert 'is not a run' in refused([folder], capsys)
    (folder / 'progress.txt').write_text('Epoch\tAverageEpRet\n1\t2\n')
    assert 'lacks TotalEnvInteracts' in refused([folder], capsys)
    (folder / 'config.json').write_text('{')
    assert 'config.json cannot be read' in refused([folder], capsys)
    (folder / 'config.json').unlink()
    assert 'config.json' in refused([folder], capsys)


@pytest.mark.parametrize(('name', 'value'), [
    ('num_procs', None), ('num_procs', 0), ('num_procs', 'auto'), ('steps_per_epoch', 'auto'), ('gamma', [0.9])])
def test_a_setting_that_is_no_number(name, value, tmp_path, capsys):
    folder = write_run(tmp_path / 'run', *change('ppo', {name: value}))
    assert f'is damaged: {name} is {value!r} there, and not a number of at least' in refused([folder], capsys)


def test_a_table_without_values_of_q(tmp_path, capsys):
    config, columns = RUNS['sac']
    columns = {name: values for name, values in columns.items() if not name.startswith('AverageQ')}
    assert 'run is damaged, or from another program (ValueError: ' in refused(
        [write_run(tmp_path / 'run', config, columns)], capsys)


def test_no_framework_is_imported():
    code = 'import sys, tools.doctor; assert not {"torch", "tensorflow"} & set(sys.modules)'
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)
