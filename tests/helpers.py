"""What several test files use: small environments, arguments for an agent, and reading what a run leaves."""
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from common import logx, mpi_tools

ROOT = Path(__file__).resolve().parents[1]
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')


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


class CountingWorld:
    """The communicator of all processes, which counts the messages of the kind that average gradients."""
    def __init__(self, world):
        self.world, self.messages, self.bytes = world, 0, 0

    def __getattr__(self, name):
        return getattr(self.world, name)

    def Allreduce(self, in_place, x, **kwargs):
        self.messages, self.bytes = self.messages + 1, self.bytes + x.nbytes
        return self.world.Allreduce(in_place, x, **kwargs)


def count_messages():
    """Have all messages from now on counted; returns the communicator that counts them."""
    world = CountingWorld(mpi_tools._world())
    mpi_tools._world = lambda: world
    return world


def mpirun(*args, timeout=300):
    """mpirun with these arguments; fails with what was printed, if it fails."""
    env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')  # on few cores
    done = subprocess.run([MPIRUN, *map(str, args)], env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
