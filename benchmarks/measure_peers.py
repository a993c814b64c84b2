"""One measurement of stable-baselines3 or of sbx (the same in JAX), in a process of its own and in their environment.

    .peers/bin/python measure_peers.py '{"what": "on_policy", "library": "sbx", "env": "CartPole-v1", "envs": 4}'

prints one line of JSON. It imports nothing of this repository, whose packages are not installed there.
"""
import collections
import importlib
import json
import sys
import time

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

FILLED, WARM_UP = 1000, 200                 # steps before the first update, and steps with updates that compile


class Clock(BaseCallback):
    """Notes when rollouts begin and end and, for steps that are asked for, when they are made."""
    def __init__(self, at_steps=()):
        super().__init__()
        self.at_steps, self.steps, self.begins, self.ends = at_steps, [], [], []

    def now(self):
        return time.perf_counter(), time.process_time()

    def _on_rollout_start(self):
        if not self.at_steps:
            self.begins.append(self.now())

    def _on_rollout_end(self):
        if not self.at_steps:
            self.ends.append(self.now())

    def _on_training_end(self):
        self.begins.append(self.now())

    def _on_step(self):
        if self.num_timesteps in self.at_steps:
            self.steps.append(self.now())
        return True


class UntilMeanReturn(BaseCallback):
    """Stops when the mean return of the last 100 episodes is `goal`."""
    def __init__(self, goal):
        super().__init__()
        self.goal, self.recent, self.reached = goal, collections.deque(maxlen=100), None

    def _on_step(self):
        for info in self.locals['infos']:
            if 'episode' in info:
                self.recent.append(info['episode']['r'])
                if len(self.recent) == 100 and sum(self.recent) >= 100 * self.goal:
                    self.reached = time.time()
        return self.reached is None


def make(library, algo, env, envs, seed, **kwargs):
    package = importlib.import_module(dict(sb3='stable_baselines3', sbx='sbx')[library])
    return getattr(package, algo.upper())('MlpPolicy', make_vec_env(env, n_envs=envs, seed=seed), seed=seed,
                                          device='cpu', **kwargs)


def on_policy(library, env, envs, rollouts=2, seed=0):
    """PPO with its own default settings: whole rollouts and their updates, after a first one."""
    model, clock = make(library, 'ppo', env, envs, seed), Clock()
    steps = model.n_steps * envs
    model.learn((1 + rollouts) * steps, callback=clock)
    (begins, cpu), ends = zip(*clock.begins[1:]), [end for end, _ in clock.ends[1:]]
    seconds, collecting = begins[-1] - begins[0], sum(end - begin for begin, end in zip(begins, ends))
    timed = rollouts * steps
    return dict(rate=timed / seconds, collect_us=1e6 * collecting / timed, seconds=seconds,
                update_us=1e6 * (seconds - collecting) / timed, cpu_share=(cpu[-1] - cpu[0]) / seconds)


def off_policy(library, algo, env, batch, updates=400, together=1, seed=0):
    """Steps with one update each, in groups of `together`, on 256x256 networks."""
    first = FILLED + WARM_UP
    # ent_coef: a constant, as in sac_*.py; learning it would be work that those do not do.
    own = dict(ent_coef=0.2) if algo == 'sac' else {}
    model = make(library, algo, env, 1, seed, batch_size=batch, train_freq=together, gradient_steps=together,
                 learning_starts=FILLED, policy_kwargs=dict(net_arch=dict(pi=[256, 256], qf=[256, 256])), **own)
    clock = Clock(at_steps=(first, first + updates))
    model.learn(first + updates, callback=clock)
    (start, cpu_start), (end, cpu_end) = clock.steps
    return dict(rate=updates / (end - start), seconds=end - start, cpu_share=(cpu_end - cpu_start) / (end - start))


def time_to(library, env, envs, goal, max_steps, seed=0):
    """Seconds until the mean return of the last 100 episodes is `goal`, with default settings."""
    callback, start = UntilMeanReturn(goal), time.time()
    model = make(library, 'ppo', env, envs, seed)
    model.learn(max_steps, callback=callback)
    return dict(seconds=callback.reached and callback.reached - start, steps=model.num_timesteps)


def main():
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    measure = dict(on_policy=on_policy, off_policy=off_policy, time_to=time_to)[arguments.pop('what')]
    print(json.dumps(measure(**arguments)), flush=True)


if __name__ == '__main__':
    main()
