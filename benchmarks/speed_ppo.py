"""How fast PPO is: collecting against the bare environment, and end to end against the same algorithm written plainly.

    python -m benchmarks.speed_ppo [--env CartPole-v1] [--rounds 5] [--epochs 3]

Machines are shared and noisy, so only ratios within one run count: every round measures each contestant once, one after
the other, each on one thread, and the medians over the rounds are compared.
"""
import argparse
import contextlib
import io
import platform
import statistics
import sys
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch

import ppo_torch
from benchmarks.plain_ppo import plain_ppo


def bare_loop(env_name, steps):
    """Seconds per step of the environment alone, with random actions chosen beforehand."""
    env = gym.make(env_name)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    env.reset(seed=0)
    start = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return (time.perf_counter() - start) / steps


def collecting(env_name, steps):
    """Seconds per step of ppo_torch.py's collection: acting, stepping, storing, and evaluating it all at the end.

    Measured from one update to the next, with updates that do nothing.
    """
    times, original = [], ppo_torch.Agent.update
    ppo_torch.Agent.update = lambda self, data: times.append(time.perf_counter()) or dict(LossPi=0.0)
    try:
        train(ppo_torch.ppo, env_name, 3, steps_per_epoch=steps, save_freq=100)
    finally:
        ppo_torch.Agent.update = original
    return (times[2] - times[1]) / steps


def train(function, env_name, epochs, **kwargs):
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        own = {} if function is plain_ppo else dict(logger_kwargs=dict(output_dir=folder))
        function(lambda: gym.make(env_name), epochs=epochs, **own, **kwargs)


def steps_per_second(function, env_name, epochs):
    start = time.perf_counter()
    train(function, env_name, epochs)
    return epochs * 4000 / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--env', default='CartPole-v1')
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--epochs', type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    contestants = {
        'bare environment loop, us per step': lambda: 1e6 * bare_loop(args.env, 8000),
        'ppo_torch collecting, us per step': lambda: 1e6 * collecting(args.env, 8000),
        'plain PPO, steps per s': lambda: steps_per_second(plain_ppo, args.env, args.epochs),
        'ppo_torch, steps per s': lambda: steps_per_second(ppo_torch.ppo, args.env, args.epochs),
    }
    results = {name: [] for name in contestants}
    for _ in range(args.rounds):
        for name, measure in contestants.items():
            results[name].append(measure())
    print(f'{args.env}, {args.rounds} rounds, one thread; {platform.machine()}, Python {platform.python_version()}, '
          f'torch {torch.__version__}, gymnasium {gym.__version__}, numpy {np.__version__}')
    medians = {}
    for name, values in results.items():
        medians[name] = statistics.median(values)
        print(f'{name:40} median {medians[name]:10.1f}   from {min(values):10.1f} to {max(values):10.1f}')
    bare, collect, plain, ours = medians.values()
    print(f'collecting takes {collect / bare:.2f} times as long as the environment alone')
    print(f'end to end it makes {ours / plain:.2f} times the steps per second of plain PPO')


if __name__ == '__main__':
    sys.exit(main())
