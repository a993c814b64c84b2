"""What several test files use: small environments, arguments for an agent, and reading what a run leaves."""
import inspect
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from common import logx


def make_args(train_fn, **overrides):
    """A training function's arguments as its Agent takes them: the defaults, but for the overrides."""
    defaults = {name: p.default for name, p in inspect.signature(train_fn).parameters.items() if name != 'env_fn'}
    assert set(overrides) <= set(defaults)
    return SimpleNamespace(**{**defaults, **overrides})


class SmallEnv(gym.Env):
    """Random observations; reward(obs, action) in a step; episodes terminate after `length` steps, or never.

    `received` has every action that it was given, and `seeds` the seed of every reset.
    """
    def __init__(self, observation_space=Box(-1, 1, (3,)), action_space=Discrete(2), length=None, reward=lambda *_: 1):
        self.observation_space, self.action_space = observation_space, action_space
        self.length, self.reward = length, reward
        self.received, self.seeds = [], []

    def draw_obs(self):
        space = self.observation_space
        if isinstance(space, Discrete):
            return self.np_random.integers(space.n) + space.start
        if not isinstance(space, Box):
            return space.sample()
        return np.asarray(self.np_random.uniform(space.low, space.high), dtype=space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t, self.obs = 0, self.draw_obs()
        return self.obs, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.received.append(action)
        rew, self.t, self.obs = self.reward(self.obs, action), self.t + 1, self.draw_obs()
        return self.obs, rew, self.t == self.length, False, {}


def read_progress(folder):
    """progress.txt as (columns, rows), each row a dict of strings; no row may be incomplete."""
    columns, rows = logx.read_progress(folder / 'progress.txt')
    assert len(rows) == (folder / 'progress.txt').read_text().count('\n') - 1
    return columns, rows
