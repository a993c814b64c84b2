"""Environments of all kinds, as the training loops see them."""
import functools
import random
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from common.env_tools import make_env, make_env_and_test_env, make_registered, wrap
from common.errors import UserError
from helpers import SmallEnv


@pytest.mark.parametrize(('space', 'size'), [
    (Dict(a=Box(-1, 1, (2, 2)), b=Discrete(3)), 7), (Tuple([Box(-1, 1, (2,)), Discrete(2)]), 4),
    (MultiDiscrete([2, 3]), 5), (MultiBinary(4), 4), (Discrete(5), 5), (Box(-1, 1, ()), 1)])
def test_observations_are_flattened(space, size):
    env = make_env(functools.partial(SmallEnv, space, Discrete(2)))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == obs.shape == (size,) and obs.dtype == np.float32


@pytest.mark.parametrize(('space', 'n'), [(MultiDiscrete([2, 3]), 6), (MultiBinary(3), 8), (MultiBinary((2, 2)), 16),
                                          (MultiDiscrete([2, 3], start=[1, -1]), 6)])
def test_every_combination_of_several_choices_is_an_action(space, n):
    seen = set()

    class Recording(SmallEnv):
        def step(self, action):
            assert action in space
            seen.add(tuple(np.ravel(action)))
            return super().step(action)
    env = make_env(functools.partial(Recording, Box(-1, 1, (2,)), space))
    assert env.action_space == Discrete(n)
    env.reset(seed=0)
    for action in range(n):
        env.step(np.int64(action))
    assert len(seen) == n


def test_too_many_combinations_are_refused():
    with pytest.raises(UserError, match='1048576 combinations, and at most 1000 are supported'):
        make_env(functools.partial(SmallEnv, Box(-1, 1, (2,)), MultiBinary(20)))


def test_a_misspelt_wrapper_is_told_the_nearest():
    with pytest.raises(UserError, match="has no attribute 'NormaliseReward' .nearest: NormalizeReward"):
        make_registered('CartPole-v1', wrappers=['NormaliseReward'])


def test_an_argument_that_is_missing_has_a_place(monkeypatch):
    with pytest.raises(UserError, match="'stack_size'; give it in parentheses, .FrameStack"):
        make_registered('CartPole-v1', wrappers=['FrameStackObservation'])
    monkeypatch.setitem(gym.registry, 'Needy-v0', gym.envs.registration.EnvSpec('Needy-v0', lambda data: SmallEnv()))
    with pytest.raises(UserError, match="'data'.*; give it by --env_kwargs; if it is not a literal, register"):
        make_registered('Needy-v0')


@pytest.mark.parametrize(('space', 'off_policy', 'words'), [
    (MultiBinary(3), True, 'they must be Box .vpg, trpo and ppo take MultiBinary ones'),
    (Tuple([Discrete(2)]), True, 'put a wrapper around the environment that turns them into Box ones'),
    (Tuple([Discrete(2)]), False, 'put a wrapper around the environment that turns them into Box or Discrete ones')])
def test_actions_that_are_refused_have_a_remedy(space, off_policy, words):
    with pytest.raises(UserError, match=f'{type(space).__name__} are not supported here: {words}'):
        make_env(functools.partial(SmallEnv, Box(-1, 1, (2,)), space), off_policy)


class Mission(gym.Space):
    """A space that gymnasium cannot flatten, as minigrid's texts."""
    def __init__(self):
        super().__init__(shape=(), dtype=str)

    @property
    def is_np_flattenable(self):
        return True


def test_observations_with_a_part_that_is_no_array_are_refused():
    make = functools.partial(SmallEnv, Dict(image=Box(-1, 1, (2,)), mission=Mission(), to=Discrete(3)), Discrete(2))
    with pytest.raises(UserError, match='Dict with parts other than image, to are not supported: keep only') as error:
        make_env(make)
    wrapper = re.search('--wrapper "(.*)"', str(error.value))[1]
    assert make_env(lambda: wrap(make(), wrapper)).observation_space.shape == (5,)
    with pytest.raises(UserError, match='observations of type Tuple are not supported: put a wrapper around'):
        make_env(functools.partial(SmallEnv, Tuple([Mission()]), Discrete(2)))


def test_rewards_of_several_parts_are_refused():
    env = make_env(functools.partial(SmallEnv, reward=lambda *_: np.ones(2)))
    env.reset(seed=0)
    with pytest.raises(UserError, match='gave the reward .*, which is not a number: put a wrapper around it'):
        env.step(np.int64(1))


class GlobalGenerators(SmallEnv):
    """Draws from the generators of the modules, as many environments do in spite of gymnasium's advice."""
    def draw_obs(self):
        return np.array([np.random.uniform(), random.random(), 0], np.float32)


def test_the_seed_is_that_of_the_modules_generators_too():
    first, same, other = [[env.reset(seed=seed)[0], env.step(np.int64(1))[0]]
                          for env, seed in [(make_env(GlobalGenerators), seed) for seed in (2**32 + 1, 2**32 + 1, 2)]]
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


class OwnGenerator(SmallEnv):
    """Draws from a generator that is not numpy's, as dm_control's environments do, and so cannot be replayed."""
    @property
    def np_random(self):
        raise AttributeError

    def reset(self, *, seed=None, options=None):
        return np.float32(np.random.default_rng().uniform(-1, 1, 2)), {}

    def step(self, action):
        return np.float32(np.random.default_rng().uniform(-1, 1, 2)), 1.0, False, False, {}


def test_episodes_that_cannot_be_replayed(capsys):
    """It says so, and the run goes on from a new episode: with no return and no length yet."""
    env = make_env(functools.partial(OwnGenerator, Box(-1, 1, (2,)), Discrete(2)))
    env.reset(seed=0)
    env.reset()
    env.step(np.int64(1))
    obs, ep_ret, ep_len = env.replay_episode(env.episode_state())
    assert (ep_ret, ep_len) == (0, 0) and obs.shape == (2,)
    assert 'the run goes on from a new episode' in capsys.readouterr().err


class StickyActions(SmallEnv):
    """Begins every episode alike, and then draws from a generator of its own, as Atari's games do."""
    hidden = np.random.default_rng(0)

    def draw_obs(self):
        return np.full(3, self.hidden.uniform() if self.received else 0, np.float32)


def test_an_episode_that_only_seems_to_be_repeated(capsys):
    """The observation is the same, and what follows it may not be: Atari's went on with other numbers, silently."""
    env = make_env(StickyActions)
    env.reset(seed=0)
    env.replay_episode(env.episode_state())
    assert not capsys.readouterr().err                      # a seed sets the environment's own generator, too
    env.reset()
    env.replay_episode(env.episode_state())
    assert 'takes no random numbers from its np_random' in capsys.readouterr().err


class Forgetful(SmallEnv):
    """In a new process its episodes are other ones: in their rewards or in their length, but not in observations."""
    episodes = 0

    def __init__(self, what):
        super().__init__(Box(-1, 1, (2,)), Discrete(2), reward=lambda *_: self.episodes if what == 'reward' else 1)
        self.what = what

    def draw_obs(self):
        return np.zeros(2, dtype=np.float32)

    def reset(self, **kwargs):
        self.episodes, self.ended = self.episodes + 1, False
        return super().reset(**kwargs)

    def step(self, action):
        assert not self.ended
        obs, rew, _, truncated, info = super().step(action)
        self.ended = self.what == 'length' and self.t == 2 * self.episodes
        return obs, rew, self.ended, truncated, info


@pytest.mark.parametrize('what', ['reward', 'length'])
def test_episodes_that_differ_in_more_than_observations(what, capsys):
    """Nor is an episode stepped on that has ended, which many environments refuse."""
    env, again = (make_env(functools.partial(Forgetful, what)) for _ in range(2))
    env.reset(seed=0)
    env.reset()
    for _ in range(3):
        env.step(np.int64(1))
    _, ep_ret, ep_len = again.replay_episode(env.episode_state())
    assert (ep_ret, ep_len) == (0, 0) and 'the run goes on from a new episode' in capsys.readouterr().err


def test_an_episode_is_replayed_with_its_return_and_length(capsys):
    env, again = (make_env(functools.partial(gym.make, 'CartPole-v1')) for _ in range(2))
    env.reset(seed=0)
    env.reset()
    for action in (0, 1, 1):
        obs, *_ = env.step(np.int64(action))
    again.reset(seed=5)
    same, ep_ret, ep_len = again.replay_episode(env.episode_state())
    np.testing.assert_array_equal(same, obs)
    assert (ep_ret, ep_len) == (3, 3) and not capsys.readouterr().err


@pytest.mark.parametrize('name', ['BipedalWalker-v3', 'BipedalWalkerHardcore-v3', 'LunarLanderContinuous-v3'])
def test_episodes_in_a_physical_world_are_replayed(name, capsys):
    """Exactly, and exactly from there on, although the first process has played other episodes before."""
    env, again = (make_env(functools.partial(gym.make, name)) for _ in range(2))
    actions = np.random.default_rng(0).uniform(-1, 1, (2, 40, *env.act_shape)).astype(np.float32)
    env.reset(seed=0)
    for _ in range(2):
        for action in actions[0]:
            env.step(action)
        env.reset()
    for action in actions[0]:
        env.step(action)
    again.reset(seed=5)
    again.replay_episode(env.episode_state())
    assert not capsys.readouterr().err
    for action in actions[1]:
        obs, rew, *_ = env.step(action)
        same, same_rew, *_ = again.step(action)
        np.testing.assert_array_equal(same, obs)
        assert same_rew == rew


def test_what_a_normalizing_wrapper_has_seen_is_saved_and_shared(capsys):
    """A resumed run normalizes as the one that was stopped; the test episodes by the statistics of training."""
    make = functools.partial(make_registered, 'Pendulum-v1', wrappers=['NormalizeObservation', 'NormalizeReward'])
    env, test_env = make_env_and_test_env(make)
    env.reset(seed=0)
    for _ in range(30):
        obs, *_ = env.step(np.float32([0.5]))
    again, _ = make_env_and_test_env(make)
    again.reset(seed=9)
    same, *_ = again.replay_episode(env.episode_state())
    np.testing.assert_array_equal(same, obs)
    rewards = [e.step(np.float32([0.1]))[1] for e in (env, again)]
    assert rewards[0] == rewards[1] and not capsys.readouterr().err

    seen = [dict(statistics) for statistics in env.statistics()]
    test_env.reset(seed=3)
    test_env.step(np.float32([0.5]))
    assert [s['count'] for s in env.statistics()] == [s['count'] for s in seen] == [
        s['count'] for s in test_env.statistics()] and seen[0]['count'] > 30


def test_config_describes_what_python_made():
    env = make_env(lambda: gym.wrappers.RescaleObservation(gym.make('Pendulum-v1', g=5), -1, 1))
    assert env.description['env_name'] == 'Pendulum-v1' and env.description['env_kwargs'] == dict(g=5)
    again = make_registered(**env.description)
    assert again.unwrapped.g == 5 and type(again).__name__ == 'RescaleObservation'
    assert make_env(functools.partial(SmallEnv, Box(-1, 1, (2,)), Discrete(2))).description == {}
    with_code = make_env(lambda: gym.wrappers.TransformReward(gym.make('Pendulum-v1'), lambda rew: 2 * rew))
    assert with_code.description == {}
