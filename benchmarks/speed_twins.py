"""How fast a PyTorch file and its TensorFlow-1 twin are, on one thread, round by round in one run.

    python -m benchmarks.speed_twins [--rounds 5]

On-policy: seconds of one ppo epoch's update (80 + 80 iterations on 4000 steps of CartPole-v1). Off-policy: updates per
second on HalfCheetah-v5's shapes at batch 100 (256x256 networks). Collecting is the same code in both twins.
"""
import argparse
import importlib
import statistics
import time

import gymnasium as gym
import numpy as np
import torch

from common.env_tools import make_env
from common.run_utils import default_arguments


def make_agent(script, env, **overrides):
    module = importlib.import_module(script)
    args = argparse.Namespace(**{**default_arguments(getattr(module, script.split('_')[0])), **overrides})
    return module.Agent(env, np.random.default_rng(0), args)


def on_policy_seconds(agent, steps=4000):
    rng = np.random.default_rng(0)
    obs, act = rng.standard_normal((steps, 4), dtype=np.float32), rng.integers(2, size=steps).astype(np.float32)
    data = dict(obs=obs, act=act, adv=rng.standard_normal(steps, dtype=np.float32),
                ret=rng.standard_normal(steps, dtype=np.float32), logp=agent.evaluate(obs, act))
    start = time.perf_counter()
    agent.update(data)
    return time.perf_counter() - start


def off_policy_rate(agent, env, updates=150, batch_size=100):
    rng, (obs_dim,), (act_dim,) = np.random.default_rng(0), env.observation_space.shape, env.action_space.shape
    shapes = dict(obs=(obs_dim,), act=(act_dim,), rew=(), next_obs=(obs_dim,))
    batch = {key: rng.standard_normal((batch_size, *shape), dtype=np.float32) for key, shape in shapes.items()}
    batch['terminated'] = np.zeros(batch_size, dtype=np.float32)
    start = time.perf_counter()
    for _ in range(updates):
        agent.update(batch, rng.standard_normal((agent.noises, batch_size, act_dim), dtype=np.float32))
    return updates / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    cartpole, cheetah = make_env(lambda: gym.make('CartPole-v1')), make_env(lambda: gym.make('HalfCheetah-v5'))
    contestants = {script: (lambda agent: 1 / on_policy_seconds(agent), make_agent(script, cartpole, target_kl=1e9))
                   for script in ('ppo_torch', 'ppo_tf1')}
    contestants.update({f'{name}_{framework}': (lambda agent: off_policy_rate(agent, cheetah),
                                                make_agent(f'{name}_{framework}', cheetah))
                        for name in ('ddpg', 'td3', 'sac') for framework in ('torch', 'tf1')})
    results = {script: [] for script in contestants}
    for round_number in range(rounds + 1):
        for script, (measure, agent) in contestants.items():
            rate = measure(agent)
            if round_number:                                    # the first round warms up
                results[script].append(rate)
    for name in ('ppo', 'ddpg', 'td3', 'sac'):
        pair = [statistics.median(results[f'{name}_{framework}']) for framework in ('torch', 'tf1')]
        print(f'{name}: updates per s: torch {pair[0]:7.2f}, tf1 {pair[1]:7.2f}, their ratio {pair[1] / pair[0]:.2f}')


if __name__ == '__main__':
    main()
