"""Watching a policy: what is loaded is what was trained, in both frameworks; and nothing else is loaded."""
import functools
import importlib
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from PIL import Image

import ppo_torch
from common.env_tools import TrainingEnv, make_env, make_registered
from common.errors import UserError
from common.run import ROOT
from helpers import SmallEnv
from tools import test_policy
from tools.test_policy import load_policy_and_env, main, model_path, run_policy

ON_POLICY = dict(steps_per_epoch=100, epochs=1, train_v_iters=1, train_pi_iters=5, pi_lr=0.01)
OFF_POLICY = dict(steps_per_epoch=100, epochs=1, start_steps=20, update_after=50, update_every=10, batch_size=8,
                  replay_size=100, num_test_episodes=1, max_ep_len=20)
STOCHASTIC = [(algo, env_name, framework) for framework in ('torch', 'tf1')
              for algo, env_name in (('ppo', 'CartPole-v1'), ('ppo', 'Pendulum-v1'), ('sac', 'Pendulum-v1'))]
CASES = [*STOCHASTIC, ('ddpg', 'Pendulum-v1', 'torch'), ('ddpg', 'Pendulum-v1', 'tf1')]


class MovingEnv(SmallEnv):
    """Its picture has one white column, at the number of the step. Episodes end after 12 steps."""
    metadata = dict(render_modes=['rgb_array', 'human'], render_fps=20)

    def __init__(self, render_mode=None):
        super().__init__(length=12)
        self.render_mode = render_mode

    def render(self):
        picture = np.zeros((7, 15, 3), dtype=np.uint8)
        picture[:, self.t] = 255
        return picture


class UndrawnEnv(SmallEnv):
    """It knows nothing of render_mode."""
    def __init__(self, length=12):
        super().__init__(length=length)


class BrokenEnv(SmallEnv):
    def __init__(self, render_mode=None):
        raise ZeroDivisionError('no such\nthing')


gym.register('Moving-v0', MovingEnv)
gym.register('Undrawn-v0', UndrawnEnv)
gym.register('Broken-v0', BrokenEnv)


@pytest.fixture(autouse=True, scope='module')
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """runs(algo, env_name, framework): folder and agent of a tiny run, trained when it is first asked for."""
    @functools.cache
    def train(algo, env_name, framework, **kwargs):
        if framework == 'tf1':
            pytest.importorskip('tensorflow')
        folder = tmp_path_factory.mktemp(f'{algo}_{framework}')
        keep_all = kwargs.get('epochs', 1) > 1
        logger_kwargs = dict(output_dir=str(folder), keep_all=keep_all,
                             config=dict(env_name=env_name, algo=f'{algo}_{framework}'))
        train_fn = getattr(importlib.import_module(f'{algo}_{framework}'), algo)
        known = inspect.signature(train_fn).parameters
        settings = {**(OFF_POLICY if 'replay_size' in known else ON_POLICY), **kwargs}
        settings = {key: value for key, value in settings.items() if key in known}
        agent = train_fn(functools.partial(gym.make, env_name), ac_kwargs=dict(hidden_sizes=(8,)),
                         logger_kwargs=logger_kwargs, **settings)
        return SimpleNamespace(folder=str(folder), agent=agent)
    return train


@pytest.fixture
def run(runs, tmp_path):
    """The folder of a run of PPO on CartPole-v1 in PyTorch: a copy, for a test to spoil."""
    return shutil.copytree(runs('ppo', 'CartPole-v1', 'torch').folder, tmp_path / 'run')


@pytest.fixture
def no_display(monkeypatch):
    monkeypatch.setattr(sys, 'platform', 'linux')
    monkeypatch.delenv('DISPLAY', raising=False)
    monkeypatch.delenv('WAYLAND_DISPLAY', raising=False)


def change_config(folder, **changes):
    path = os.path.join(folder, 'config.json')
    with open(path) as file:
        config = {**json.load(file), **changes}
    with open(path, 'w') as file:
        json.dump({key: value for key, value in config.items() if value is not None}, file)


def episodes(text):
    """[(return, length), ...] as main prints them."""
    return [(float(ret), int(length)) for ret, length in re.findall(r'EpRet +(\S+) +EpLen +(\d+)$', text, flags=re.M)]


def refused(argv, capsys):
    """The one line that main prints for a mistake, with exit status 2."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in argv])
    line, = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and line.startswith('test_policy: error: ')
    return line


# ---- The policy

@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_the_policy_is_the_trained_one(runs, case):
    run = runs(*case)
    env, get_action = load_policy_and_env(run.folder, deterministic=True)
    assert env.spec.id == case[1]
    env.reset(seed=0)
    observations = np.float32(np.random.default_rng(1).normal(0, 2, (30, *env.observation_space.shape)))
    found = np.array([get_action(obs) for obs in observations])
    np.testing.assert_allclose(found, [run.agent.act(obs) for obs in observations], atol=1e-5)
    np.testing.assert_array_equal(found, [get_action(obs) for obs in observations])
    assert found.shape[1:] == env.action_space.shape
    assert np.ptp(found) > 0.01
    env.step(get_action(observations[0]))


def test_saved_models_are_also_those_of_tensorflow_2(runs):
    """tf.saved_model.load reads them, and they act as the agent does."""
    cases = [runs(algo, 'Pendulum-v1', 'tf1') for algo in ('vpg', 'trpo', 'ppo', 'ddpg', 'td3', 'sac')]
    code = ("import sys, tensorflow as tf\n"
            "for folder in sys.argv[1:]:\n"
            "    act = tf.saved_model.load(folder + '/tf1_save').signatures['serving_default']\n"
            "    values = dict(obs=[[0.5, -0.5, 2.]], noise=[[0.]])\n"
            "    names = act.structured_input_signature[1]\n"
            "    print(*act(**{name: tf.constant(values[name]) for name in names})['act'].numpy().ravel())\n")
    command = [sys.executable, '-c', code, *(case.folder for case in cases)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [case.agent.act(np.float32([0.5, -0.5, 2])) for case in cases]
    np.testing.assert_allclose([float(line) for line in done.stdout.split()], np.ravel(expected), atol=1e-6)


@pytest.mark.parametrize('case', STOCHASTIC, ids='-'.join)
def test_the_stochastic_policy_is_the_trained_one(runs, case):
    """The same mean and standard deviation as the agent's own actions."""
    run = runs(*case)
    env, get_action = load_policy_and_env(run.folder)
    obs = np.full(env.observation_space.shape, 0.3, dtype=np.float32)
    found = np.array([get_action(obs) for _ in range(400)], dtype=float)
    rng = np.random.default_rng(2)
    discrete = case[1] == 'CartPole-v1'
    noise = rng.gumbel(size=(4000, 2)) if discrete else rng.standard_normal((4000, 1))
    own = np.array([run.agent.act(obs, row.astype(np.float32)) for row in noise], dtype=float)
    assert own.std() > 0.1
    assert abs(found.mean() - own.mean()) < 5 * own.std() / np.sqrt(400)
    assert abs(found.std() / own.std() - 1) < 0.2


@pytest.mark.parametrize('framework', ['torch', 'tf1'])
def test_noise_of_exploration_is_not_of_the_policy(runs, framework):
    run = runs('ddpg', 'Pendulum-v1', framework)
    _, get_action = load_policy_and_env(run.folder)
    obs = np.float32([0.6, 0.8, -1])
    for _ in range(3):
        np.testing.assert_array_equal(get_action(obs), run.agent.act(obs))


@pytest.mark.parametrize('framework', ['torch', 'tf1'])
@pytest.mark.parametrize('algo', ['ddpg', 'td3', 'sac'])
def test_actions_are_rescaled_to_the_bounds_of_the_environment(algo, framework, tmp_path, monkeypatch):
    """In training, in its test episodes, and when the policy is watched: -1 becomes low, and 1 high."""
    if framework == 'tf1':
        pytest.importorskip('tensorflow')
    low, high = np.float32([0.5, -50]), np.float32([1, -10])
    envs, original = [], TrainingEnv.step

    def env_fn():
        envs.append(SmallEnv(action_space=Box(low, high), length=10))
        envs[-1].given = []                                     # what loop and tester give, beside what it receives
        return envs[-1]

    def step(env, action):
        env.unwrapped.given.append(action)
        return original(env, action)
    monkeypatch.setattr(TrainingEnv, 'step', step)
    train_fn = getattr(importlib.import_module(f'{algo}_{framework}'), algo)
    train_fn(env_fn, ac_kwargs=dict(hidden_sizes=(8,)), **OFF_POLICY,
             logger_kwargs=dict(output_dir=str(tmp_path), config=dict(algo=f'{algo}_{framework}')))
    run_policy(*load_policy_and_env(tmp_path, env_fn=env_fn), num_episodes=1)
    assert [len(env.received) for env in envs] == [100, 10, 10] and np.ptp(envs[0].given, axis=0).min() > 1.5
    for env in envs:
        assert np.abs(env.given).max() <= 1
        np.testing.assert_allclose(env.received, low + (np.array(env.given) + 1) / 2 * (high - low), rtol=1e-5)


@pytest.mark.parametrize('framework', ['torch', 'tf1'])
def test_every_kept_model(runs, framework):
    """Two epochs with --keep_all: the first model is that of a run of one epoch."""
    case = 'ppo', 'Pendulum-v1', framework
    one, two = runs(*case), runs(*case, epochs=2, save_freq=1)
    obs = np.float32([0.6, 0.8, -1])
    first, second = one.agent.act(obs), two.agent.act(obs)
    assert abs(first - second) > 1e-3
    for itr, action in (0, first), ('0', first), (1, second), ('last', second), (-1, second), ('-1', second):
        np.testing.assert_allclose(load_policy_and_env(two.folder, itr, True)[1](obs), action, atol=1e-5)
    with pytest.raises(UserError, match='no model of epoch 2 in .*; it has: 0, 1$'):
        load_policy_and_env(two.folder, 2)


def test_which_model_is_the_last(tmp_path):
    """By number, not by name; with a model of no epoch beside them, the newer one; and what a kill left is found."""
    def last():
        return os.path.relpath(model_path(tmp_path, 'last'), tmp_path)
    (tmp_path / 'pyt_save').mkdir()
    for i, name in enumerate(['model9.pt', 'model10.pt', 'model.pt', 'model11.pt.tmp', 'mine.pt']):
        (tmp_path / 'pyt_save' / name).touch()
        os.utime(tmp_path / 'pyt_save' / name, (i, i))
    assert last() == 'pyt_save/model.pt'
    os.utime(tmp_path / 'pyt_save' / 'model.pt', (0, 0))
    assert last() == 'pyt_save/model10.pt'
    shutil.rmtree(tmp_path / 'pyt_save')
    (tmp_path / 'tf1_save.old').mkdir()
    assert last() == 'tf1_save.old'
    (tmp_path / 'tf1_save').mkdir()
    (tmp_path / 'tf1_save12.tmp').mkdir()
    assert last() == 'tf1_save'


class OwnActor(torch.nn.Linear):
    def forward(self, obs):
        return ppo_torch.Categorical(super().forward(obs))


class OwnNetworks(torch.nn.Module):
    """On-policy networks of one's own."""
    def __init__(self, observation_space, action_space, rng, factor=1):
        super().__init__()
        self.pi, self.v, self.factor = OwnActor(3, 2), torch.nn.Linear(3, 1), factor


def test_networks_and_environments_of_ones_own(run, capsys):
    own = OwnNetworks(None, None, None)
    torch.save(own.state_dict(), run / 'pyt_save' / 'model.pt')
    change_config(run, actor_critic='OwnNetworks', ac_kwargs=dict(factor=3))
    with pytest.raises(UserError, match=r'networks of its own: call load_policy_and_env\(fpath, actor_critic=...\)'):
        load_policy_and_env(run, env_fn=SmallEnv)
    change_config(run, env_name=None)
    with pytest.raises(UserError, match=r'not registered: call load_policy_and_env\(fpath, env_fn=...\)'):
        load_policy_and_env(run, actor_critic=OwnNetworks)
    env, get_action = load_policy_and_env(run, deterministic=True, env_fn=SmallEnv, actor_critic=OwnNetworks)
    assert isinstance(env.unwrapped, SmallEnv) and get_action.__self__.ac.factor == 3
    observations = np.random.default_rng(0).normal(0, 3, (50, 3)).astype(np.float32)
    likeliest = own.pi(torch.as_tensor(observations)).log_probs.argmax(-1).tolist()
    assert [get_action(obs) for obs in observations] == likeliest and len(set(likeliest)) == 2
    _, get_action = load_policy_and_env(run, env_fn=SmallEnv, actor_critic=OwnNetworks)
    assert len({int(get_action(observations[0] / 10)) for _ in range(50)}) == 2


class Sine(torch.nn.Module):
    """An activation of one's own."""


def test_activations_are_those_of_the_run(run, capsys):
    def activation(**kwargs):
        _, get_action = load_policy_and_env(run, deterministic=True, **kwargs)
        return type(get_action.__self__.ac.pi.logits_net[2])
    assert activation() is torch.nn.Tanh
    change_config(run, ac_kwargs=dict(hidden_sizes=[8], activation='ReLU'))
    assert activation() is torch.nn.ReLU
    change_config(run, ac_kwargs=dict(hidden_sizes=[8], activation='Sine'))
    assert activation(ac_kwargs=dict(activation=Sine)) is Sine
    assert 'Sine is not an activation function' in refused([run, '-nr'], capsys)


@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_acting_has_one_definition(runs, case, monkeypatch):
    """What a student changes in the file is what is watched."""
    file = importlib.import_module(f'{case[0]}_{case[2]}')
    monkeypatch.setattr(file.Agent, 'act', lambda agent, obs, noise=0: 'changed')
    for deterministic in True, False:
        _, get_action = load_policy_and_env(runs(*case).folder, deterministic=deterministic)
        assert get_action(np.zeros(3, np.float32)) == 'changed'


# ---- Episodes

def test_run_policy(capsys):
    """Returns 0 + 1 + 1 + ..., by a policy that knows the step; the second environment never ends."""
    for length, max_ep_len, expected in (3, None, 3), (None, 5, 5), (3, 5, 3):
        env = make_env(lambda: SmallEnv(length=length, reward=lambda obs, act: act))
        actions = iter([0, *[1] * 20])
        returns, lengths = run_policy(env, lambda obs: next(actions), max_ep_len, num_episodes=2, seed=4)
        assert (returns, lengths) == ([expected - 1, expected], [expected] * 2)
        assert env.unwrapped.seeds == [4, None]
        out = capsys.readouterr().out
        assert episodes(out) == list(zip(returns, lengths))
        summary = {key: float(value) for key, value in re.findall(r'^ *(\w+) +([\d.]+)$', out, flags=re.M)}
        assert summary == dict(AverageEpRet=expected - 0.5, StdEpRet=0.5, MaxEpRet=expected, MinEpRet=expected - 1,
                               EpLen=expected)


@pytest.mark.parametrize('case', CASES, ids='-'.join)
def test_deterministic_episodes_from_the_command_line(runs, case, capsys):
    """-d, -n, -l, -nr and -s: the returns of the agent's own actions in the same environment."""
    run = runs(*case)
    capsys.readouterr()
    main([run.folder, '-d', '-n', '2', '-l', '15', '-nr', '-s', '3'])
    env, expected = make_env(lambda: gym.make(case[1]), off_policy=case[0] != 'ppo'), []
    for seed in 3, None:
        (obs, _), ep_ret, ep_len, ended = env.reset(seed=seed), 0, 0, False
        while not ended:
            obs, rew, terminated, truncated, _ = env.step(run.agent.act(obs))
            ep_ret, ep_len = ep_ret + rew, ep_len + 1
            ended = terminated or truncated or ep_len == 15
        expected.append((ep_ret, ep_len))
    out = capsys.readouterr().out
    np.testing.assert_allclose(episodes(out), expected, atol=2e-3)
    assert 'display' not in out


@pytest.mark.parametrize('framework', ['torch', 'tf1'])
def test_a_seed_makes_the_same_episodes_again(runs, framework, capsys):
    folder, printed = runs('sac', 'Pendulum-v1', framework).folder, []
    capsys.readouterr()
    for more in ['-s', '5'], ['-s', '5'], ['-s', '5', '-d']:
        main([folder, '-n', '1', '-l', '8', '-nr', *more])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


@pytest.mark.parametrize(('more', 'display', 'mode'), [
    ([], True, 'human'), ([], False, None), (['-nr'], True, None), (['-nr'], False, None),
    (['--gif', 'a.gif'], True, 'rgb_array'), (['--gif', 'a.gif'], False, 'rgb_array')])
def test_shown_where_there_is_a_display(more, display, mode, run, no_display, monkeypatch, tmp_path, capsys):
    """Where there is none, that is said, and the episodes run all the same."""
    if display:
        monkeypatch.setenv('DISPLAY', ':0')
    monkeypatch.chdir(tmp_path)
    modes = []

    def load(*args, **kwargs):
        env, get_action = load_policy_and_env(*args, **kwargs)
        modes.append(env.unwrapped.render_mode)
        return env, get_action
    monkeypatch.setattr(test_policy, 'load_policy_and_env', load)
    change_config(run, env_name='Moving-v0')
    shutil.copy(moving_model(tmp_path), run / 'pyt_save' / 'model.pt')
    main([str(run), '-n', '2', *more])
    out = capsys.readouterr().out
    assert modes == [mode] and episodes(out) == [(12, 12)] * 2
    assert out.startswith('There is no display, so the episodes are not shown') == (not display and not more)
    assert (tmp_path / 'a.gif').exists() == ('--gif' in more)


def moving_model(folder):
    """New weights for the run's networks in Moving-v0, which has one number less to observe."""
    env = MovingEnv()
    rng = np.random.default_rng(0)
    ac = ppo_torch.MLPActorCritic(env.observation_space, env.action_space, rng, hidden_sizes=(8,))
    torch.save(ac.state_dict(), folder / 'weights.pt')
    return folder / 'weights.pt'


# ---- The animation

def test_gif(run, tmp_path, capsys):
    change_config(run, env_name='Moving-v0')
    shutil.copy(moving_model(tmp_path), run / 'pyt_save' / 'model.pt')
    path = tmp_path / 'moving.GIF'
    main([str(run), '-n', '2', '-l', '9', '--gif', str(path)])
    out = capsys.readouterr().out
    assert episodes(out) == [(9, 9), (9, 9)] and out.endswith(f'Wrote {path}\n') and 'display' not in out
    with Image.open(path) as gif:
        assert (gif.format, gif.size, gif.n_frames) == ('GIF', (15, 7), 18)
        for i in range(18):
            gif.seek(i)
            assert gif.info['duration'] == 50                           # render_fps is 20
            assert np.array(gif.convert('L'))[3].argmax() == i % 9 + 1


def headless(**more):
    """The variables of a process on a machine without a display, that has not been told how to draw."""
    told = 'DISPLAY', 'WAYLAND_DISPLAY', 'MUJOCO_GL', 'SDL_VIDEODRIVER', 'PYGAME_HIDE_SUPPORT_PROMPT', 'XDG_RUNTIME_DIR'
    return {**{key: value for key, value in os.environ.items() if key not in told}, 'PYTHONPATH': str(ROOT), **more}


@pytest.mark.parametrize(('env_name', 'size'), [('CartPole-v1', (600, 400)), ('HalfCheetah-v5', (480, 480))])
def test_gif_of_a_real_environment_without_a_display(env_name, size, runs, tmp_path):
    """It draws, and prints nothing but the episodes: no greeting, no warning."""
    path = tmp_path / 'a.gif'
    done = subprocess.run([sys.executable, '-m', 'tools.test_policy', runs('ppo', env_name, 'torch').folder, '-n', '1',
                           '-l', '5', '--gif', str(path)], cwd=tmp_path, env=headless(), capture_output=True, text=True)
    if 'libegl1' in done.stderr:
        pytest.skip('there is neither EGL nor OSMesa')
    assert done.stderr == '' and done.stdout.startswith('Episode   0 ') and len(done.stdout.splitlines()) == 9
    assert os.listdir(tmp_path) == ['a.gif']
    with Image.open(path) as gif:
        assert gif.size == size and 2 <= gif.n_frames <= 5              # equal pictures in a row are one, shown longer
        assert len(gif.convert('RGB').getcolors(10**6)) >= 3


@pytest.mark.parametrize(('works', 'chosen'), [({'egl', 'osmesa'}, 'egl'), ({'osmesa'}, 'osmesa'), (set(), None)])
def test_mujoco_draws_by_what_works(works, chosen, no_display, monkeypatch):
    monkeypatch.setattr(os, 'environ', headless())
    monkeypatch.setattr(subprocess, 'run', lambda command, env, **_: SimpleNamespace(
        returncode=int(env['MUJOCO_GL'] not in works)))
    test_policy.draw_without_display()
    assert (os.environ.get('MUJOCO_GL'), os.environ['SDL_VIDEODRIVER']) == (chosen, 'dummy')
    os.environ.update(MUJOCO_GL='mine', SDL_VIDEODRIVER='mine')         # what the user has set stays
    test_policy.draw_without_display()
    assert os.environ['MUJOCO_GL'] == os.environ['SDL_VIDEODRIVER'] == 'mine'


def test_mujoco_that_cannot_draw_says_what_it_needs(runs, tmp_path):
    folder = runs('ppo', 'HalfCheetah-v5', 'torch').folder
    command = [sys.executable, '-m', 'tools.test_policy', folder, '--gif', 'a.gif']
    done = subprocess.run(command, cwd=tmp_path, env=headless(MUJOCO_GL='glfw'), capture_output=True, text=True)
    line, = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith('test_policy: error: HalfCheetah-v5 cannot be drawn')
    assert 'libegl1' in line and 'MUJOCO_GL=egl' in line and os.listdir(tmp_path) == []


def test_environments_that_do_not_take_render_mode(run, tmp_path, monkeypatch, capsys):
    """They run, with and without a display; and cannot be an animation."""
    change_config(run, env_name='Undrawn-v0', env_kwargs=dict(length=7))
    shutil.copy(moving_model(tmp_path), run / 'pyt_save' / 'model.pt')
    monkeypatch.setenv('DISPLAY', ':0')
    for more, words in ([], "Undrawn-v0 does not take render_mode='human', so"), (['-nr'], 'Episode'):
        main([str(run), '-n', '1', *more])
        out = capsys.readouterr().out
        assert out.startswith(words) and episodes(out) == [(7, 7)]
    assert "Undrawn-v0 cannot be drawn: its constructor does not take render_mode='rgb_array'" in refused(
        [run, '--gif', tmp_path / 'a.gif'], capsys)
    change_config(run, env_name='Moving-v0', env_kwargs=dict(render_mode='human'))      # of a run from Python
    monkeypatch.setattr(MovingEnv, 'render', lambda env: env.render_mode)
    assert 'Moving-v0 cannot be drawn: it gives str in' in refused([run, '--gif', tmp_path / 'a.gif'], capsys)


def test_an_environment_whose_constructor_fails(run, capsys):
    change_config(run, env_name='Broken-v0')
    for more in ['-nr'], ['--gif', 'a.gif']:
        line = refused([run, *more], capsys)
        assert 'Broken-v0' in line and 'ZeroDivisionError: no such thing' in line


def test_wrappers_are_those_of_the_run(tmp_path):
    """Also what a normalizing one has seen in training, to which watching adds nothing."""
    env_fn = functools.partial(make_registered, 'Pendulum-v1', {'g': 5.}, ['NormalizeObservation'])
    ppo_torch.ppo(env_fn, ac_kwargs=dict(hidden_sizes=(8,)), **ON_POLICY, logger_kwargs=dict(
        output_dir=str(tmp_path), config=dict(env_name='Pendulum-v1', env_kwargs={'g': 5.},
                                              wrappers=['NormalizeObservation'])))
    env, get_action = load_policy_and_env(tmp_path)
    before, = env.statistics()
    assert env.unwrapped.g == 5 and before['count'] > 100
    run_policy(env, get_action, 20, 1)
    after, = env.statistics()
    np.testing.assert_array_equal(after['mean'], before['mean'])
    (tmp_path / 'evil.py').write_text('raise AssertionError("executed")')
    change_config(tmp_path, wrappers=[f'{tmp_path.name}.evil:Wrapper'])
    sys.path.append(str(tmp_path.parent))
    with pytest.raises(UserError, match='would execute code from the folder of the run'):
        load_policy_and_env(tmp_path, trust=True)
    sys.path.remove(str(tmp_path.parent))


# ---- Mistakes

def test_what_is_not_a_run(run, tmp_path, capsys):
    assert 'nowhere has no config.json of a run: give a' in refused([tmp_path / 'nowhere', '-nr'], capsys)
    line = refused([tmp_path, '-nr'], capsys)
    assert line.endswith(f'{tmp_path} has no config.json of a run, but runs inside it; give one of {run}')
    assert 'has no config.json' in refused([run / 'progress.txt', '-nr'], capsys)
    assert 'there is no model of epoch 3 in' in refused([run, '-i', '3'], capsys)
    assert 'only the last one; train with --keep_all for more' in refused([run, '-i', '0'], capsys)
    shutil.rmtree(run / 'pyt_save')
    assert 'has no saved model yet' in refused([run], capsys)
    (run / 'config.json').write_text('{')
    assert 'config.json cannot be read (JSONDecodeError: ' in refused([run], capsys)


@pytest.mark.parametrize(('argv', 'words'), [
    (['-n', '0'], '--episodes has to be at least 1'), (['-l', '-1'], '--len at least 0'), (['-n', 'x'], 'invalid int'),
    (['--deterministc'], '--deterministc (nearest: --deterministic)'), (['--gif', 'no/such/a.gif'], 'no folder no'),
    (['--gif', 'a.mp4'], '--gif a.mp4: the name has to end in .gif'), (['--file', 'no.py'], 'there is no file no.py'),
    (['--gif', '.'], '--gif .: the name has to end in .gif'), (['--gif', 'folder.gif'], 'folder.gif: that is a folder'),
    (['-s', '-1'], '--seed -1: expected a whole number from 0'), (['-s', '9' * 400], 'expected a whole number from 0')])
def test_mistakes_on_the_command_line(run, argv, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'folder.gif').mkdir()
    assert words in refused([run, '-nr', *argv], capsys)


def test_algorithm_files_of_ones_own(run, tmp_path, monkeypatch, capsys):
    """A changed copy under another name, beside the others or named; never found elsewhere by its name alone."""
    def acts_as(folder, **kwargs):
        return load_policy_and_env(folder, deterministic=True, **kwargs)[1](np.zeros(4, np.float32))
    text = (ROOT / 'ppo_torch.py').read_text()
    assert text.count('def ppo(') == text.count('    def act(self') == 1
    text = re.sub(r'\bppo\b', 'better', text).replace('    def act(self', '    act = lambda *_: 5\n\n    def act_(self')
    (tmp_path / 'my_own.py').write_text(f'import beside_it\n{text}')
    (tmp_path / 'beside_it.py').touch()
    change_config(run, algo='my_own')
    monkeypatch.setattr(sys, 'path', [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert 'not of an algorithm file in' in (line := refused([run, '-nr'], capsys)) and 'with --file FILE.py' in line
    assert acts_as(run, file='my_own.py') == 5
    sys.modules.pop('my_own')
    monkeypatch.setattr(test_policy, 'ROOT', tmp_path)
    monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
    assert 'not of an algorithm file in' in refused([run, '-nr'], capsys)       # a run may be somebody else's
    assert acts_as(run, trust=True) == 5
    sys.modules.pop('my_own')
    assert 'beside_it.py is not an algorithm file' in refused([run, '-nr', '--file', 'beside_it.py'], capsys)


def test_an_environment_that_is_not_there(run, capsys):
    for name, words in ('CartPol-v1', 'unknown environment CartPol-v1'), ('no_such_module:Env-v0', 'no_such_module'):
        change_config(run, env_name=name)
        assert words in refused([run, '-nr', '--trust'], capsys)


def test_weights_that_do_not_fit(run, capsys):
    change_config(run, ac_kwargs=dict(hidden_sizes=[9]))
    line = refused([run, '-nr'], capsys)
    assert 'does not hold the weights of these networks: pi.logits_net.1.weight has the shape [9, 4] here, and' in line
    for sizes in [10**5, 10**5], [10**9], [0, 10**9]:                           # are not even tried
        change_config(run, ac_kwargs=dict(hidden_sizes=sizes))
        assert f'whose hidden sizes are {sizes}: it is too small' in refused([run, '-nr'], capsys)
    change_config(run, ac_kwargs=dict(hidden_sizes=[8]))
    weights = torch.load(path := run / 'pyt_save' / 'model.pt', weights_only=True)
    torch.save(dict(weights, more=torch.zeros(1)), path)
    assert 'model.pt cannot be read (RuntimeError: Error(s) in loading state_dict' in refused([run, '-nr'], capsys)
    torch.save({name: array * np.nan for name, array in weights.items()}, path)
    assert 'model.pt does not hold weights: some numbers in ' in refused([run, '-nr'], capsys)
    path.write_bytes(b'no weights' * 100)
    assert 'model.pt cannot be read (BadZipFile: File is not a zip file)' in refused([run, '-nr'], capsys)


def test_a_tensorflow_model_that_is_not_complete(runs, tmp_path, capsys):
    run = shutil.copytree(runs('ppo', 'CartPole-v1', 'tf1').folder, tmp_path / 'run')
    capsys.readouterr()
    change_config(run, ac_kwargs=dict(hidden_sizes=[9]))
    assert 'does not hold the weights of these networks: ' in refused([run, '-nr'], capsys)
    change_config(run, ac_kwargs=dict(hidden_sizes=[8]))
    (run / 'tf1_save' / 'weights.npz').unlink()
    assert 'weights.npz cannot be read (FileNotFoundError: ' in refused([run, '-nr'], capsys)
    change_config(run, algo='ppo_torch')
    assert 'tf1_save is not a regular file' in refused([run, '-nr'], capsys)


# ---- Nothing in a run is executed

class Trap:
    """Unpickling it makes a folder."""
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize('how', ['torch', 'inside', 'pickle'])
def test_a_pickled_object_is_refused(how, run, tmp_path, capsys):
    trap, path = Trap(tmp_path / 'executed'), run / 'pyt_save' / 'model.pt'
    if how == 'pickle':
        path.write_bytes(pickle.dumps(trap, protocol=2))
    else:
        torch.save(trap if how == 'torch' else dict(torch.load(path, weights_only=True), trap=trap), path)
    assert f'{path} ' + ('cannot be read' if how == 'pickle' else 'holds more than weights') in refused([run], capsys)
    assert not (tmp_path / 'executed').exists()
    with pytest.raises(Exception, match='.*'):                          # the trap is a trap
        torch.load(path, weights_only=False).missing if how != 'pickle' else pickle.loads(path.read_bytes()).missing
    assert (tmp_path / 'executed').exists()


@pytest.mark.parametrize('framework', ['torch', 'tf1'])
def test_nothing_is_unpickled(runs, framework, monkeypatch, capsys):
    folder = runs('sac', 'Pendulum-v1', framework).folder

    def forbidden(*args, **kwargs):
        raise AssertionError('unpickled')
    for name in 'load', 'loads', 'Unpickler':
        monkeypatch.setattr(pickle, name, forbidden)
    main([folder, '-n', '1', '-l', '3', '-nr'])
    assert len(episodes(capsys.readouterr().out)) == 1


def test_a_file_of_the_same_name_in_the_folder_is_not_imported(run):
    (run / 'ppo_torch.py').write_text('print("executed")')
    done = subprocess.run([sys.executable, '-m', 'tools.test_policy', '.', '-nr'], cwd=run, capture_output=True,
                          text=True, env=dict(os.environ, PYTHONPATH=str(ROOT)))
    assert (done.returncode, done.stdout) == (2, '') and 'not of an algorithm file' in done.stderr


@pytest.mark.parametrize(('config', 'words'), [(dict(algo='run.evil'), 'not of an algorithm file'),
                                               (dict(algo='evil'), 'not of an algorithm file'),
                                               (dict(env_name='run.evil:CartPole-v1'), 'execute code from the folder'),
                                               (dict(env_name='evil:CartPole-v1'), 'execute code from the folder')])
def test_code_in_the_folder_is_not_imported(config, words, run, monkeypatch, capsys):
    """Even where Python would find it: from the folder itself, or from above it."""
    (run / 'evil.py').write_text('raise AssertionError("executed")')
    monkeypatch.setattr(sys, 'path', [*sys.path, str(run), str(run.parent)])
    change_config(run, **config)
    for confirmed in ['--trust'], ['--env', config.get('env_name', 'CartPole-v1')]:
        assert words in refused([run, '-nr', *confirmed], capsys)


@pytest.mark.parametrize(('framework', 'other'), [('torch', 'tensorflow'), ('tf1', 'torch')])
def test_as_a_command_with_one_framework(framework, other, runs, tmp_path):
    folder = runs('ppo', 'CartPole-v1', framework).folder
    code = ('import sys; from common.run import main; '
            f'main(["test_policy", {folder!r}, "-n", "2", "-nr", "-d", "-s", "1"]); '
            f'assert {other!r} not in sys.modules')
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, '')
    assert len(episodes(done.stdout)) == 2
    assert os.listdir(tmp_path) == []
