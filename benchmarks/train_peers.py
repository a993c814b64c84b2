"""Train another library's algorithm, to compare its returns with ours: Spinning Up's, from a checkout of it, or
sb3-contrib's. In a process of its own and in the peers' environment, which benchmarks.learning makes:

    .peers/bin/python train_peers.py '{"library": "spinup", "algo": "ppo", "env": "CartPole-v1", "steps": 120000,
                                       "every": 4000, "path": "progress.txt", "checkout": "../../spinningup"}'

It imports nothing of this repository, whose packages are not installed there.
"""
import importlib
import json
import statistics
import sys
import time
from types import ModuleType, SimpleNamespace

import gymnasium


class Table:
    """A table as our scripts write it: after every `every` steps, a row about the episodes that ended in them; or, with
    `tests`, a row once so many test episodes have followed."""
    def __init__(self, path, every, tests=0):
        self.path, self.every, self.tests = path, every, tests
        self.rows, self.steps, self.episodes, self.test_returns, self.start = 0, 0, [], [], time.time()

    def add_step(self, episode):
        """Count a step, with the statistics of the episode that it ends, or None."""
        self.steps += 1
        if episode:
            self.episodes.append((float(episode['r']), int(episode['l'])))
        if self.steps % self.every == 0 and not self.tests:
            self.write_row()

    def add_test_step(self, episode):
        if episode:
            self.test_returns.append(float(episode['r']))
        if len(self.test_returns) == self.tests:
            self.write_row()

    def write_row(self):
        returns, lengths = zip(*self.episodes) if self.episodes else ((), ())
        tests = dict(AverageTestEpRet=statistics.mean(self.test_returns)) if self.tests else {}
        row = dict(Epoch=self.rows, AverageEpRet=statistics.mean(returns) if returns else '',
                   MaxEpRet=max(returns, default=''), **tests, EpLen=statistics.mean(lengths) if lengths else '',
                   TotalEnvInteracts=self.steps, Time=time.time() - self.start)
        with open(self.path, 'a' if self.rows else 'w') as file:
            for line in [row.values()] if self.rows else [row, row.values()]:
                print(*line, sep='\t', file=file)
        self.rows, self.episodes, self.test_returns = self.rows + 1, [], []


class Logged(gymnasium.wrappers.RecordEpisodeStatistics):
    """Has a table add its steps; several environments may share one."""
    def __init__(self, env, add):
        super().__init__(env)
        self.add = add

    def step(self, act):
        obs, rew, terminated, truncated, info = super().step(act)
        self.add(info.get('episode'))
        return obs, rew, terminated, truncated, info


class OldApi(gymnasium.Wrapper):
    """What gym's environments were like: reset returns the observation alone, and step one flag for both ends."""
    def __init__(self, env, seed):
        super().__init__(env)
        self.seed = seed                                # of the first episode

    def reset(self):
        obs, _ = self.env.reset(seed=self.seed)
        self.seed = None
        return obs

    def step(self, act):
        obs, rew, terminated, truncated, info = self.env.step(act)
        return obs, rew, terminated or truncated, info


def spinning_up(checkout, algo):
    """A training function of Spinning Up, as it stands in a checkout. Its package and utilities import TensorFlow 1,
    MPI and gym, so only the algorithm's own folder is used; what it would log is in Table."""
    def nothing(*args, **kwargs):
        pass

    methods = 'log', 'store', 'log_tabular', 'dump_tabular', 'save_config', 'save_state', 'setup_pytorch_saver'
    logger = SimpleNamespace(**dict.fromkeys(methods, nothing))
    one_process = dict(mpi_fork=nothing, mpi_avg=lambda x: x, proc_id=lambda: 0, num_procs=lambda: 1,
                       mpi_statistics_scalar=lambda x: (x.mean(), x.std()))
    utils = dict(logx=dict(EpochLogger=lambda **kwargs: logger), mpi_tools=one_process,
                 mpi_pytorch=dict(setup_pytorch_for_mpi=nothing, sync_params=nothing, mpi_avg_grads=nothing))
    package = ModuleType('spinup')
    package.__path__ = [f'{checkout}/spinup']
    sys.modules.update({'gym': gymnasium, 'gym.spaces': gymnasium.spaces, 'spinup': package,
                        **{f'spinup.utils.{name}': SimpleNamespace(**names) for name, names in utils.items()}})
    return getattr(importlib.import_module(f'spinup.algos.pytorch.{algo}.{algo}'), algo)


def train(library, algo, env, steps, every, path, seed=0, checkout=None, envs=1, **settings):
    """Train, and write the returns into the table `path`."""
    table = Table(path, every, tests=10 if algo in ('ddpg', 'td3', 'sac') else 0)
    if library == 'spinup':
        parts = iter([(seed, table.add_step), (seed + 5000, table.add_test_step)])    # a second one is for the tests

        def make_env():
            first_seed, add = next(parts)
            return OldApi(Logged(gymnasium.make(env), add), first_seed)

        spinning_up(checkout, algo)(make_env, seed=seed, steps_per_epoch=every, epochs=steps // every, **settings)
    else:
        from stable_baselines3.common.env_util import make_vec_env
        vec_env = make_vec_env(lambda: Logged(gymnasium.make(env), table.add_step), n_envs=envs, seed=seed)
        model = getattr(importlib.import_module('sb3_contrib'), algo.upper())
        model('MlpPolicy', vec_env, seed=seed, device='cpu', **settings).learn(steps)


if __name__ == '__main__':
    train(**json.loads(sys.argv[1]))
