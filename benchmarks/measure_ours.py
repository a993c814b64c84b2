"""One measurement, in a process of its own: of one of the twelve scripts, of the plain version, or of a bound.

    python -m benchmarks.measure_ours '{"what": "on_policy", "script": "ppo_torch", "env": "CartPole-v1"}'

prints one line of JSON. benchmarks.speed and benchmarks.scaling start it on one thread, alone or under mpirun. A script
runs through its own training function, from which it is stopped when enough has been seen; it is timed from the end of
one update to the end of another, so that whole numbers of steps and of updates lie between, and no start-up.
"""
import collections
import contextlib
import cProfile
import importlib
import io
import itertools
import json
import os
import pstats
import sys
import tempfile
import time

import gymnasium as gym

from common import mpi_tools

STEPS = 4000                                            # of an epoch: the default of the on-policy scripts
FILLED = 1000                                           # rows in the replay buffer before the first update
WARM = 200                                              # updates before the first that is timed


class Enough(Exception):
    """Raised inside of a training function, to leave it."""


class Messages:
    """Counts what goes through common.mpi_tools.allreduce. To be made before anything imports that by name."""
    def __init__(self):
        self.calls, self.bytes, allreduce = 0, 0, mpi_tools.allreduce

        def counted(x, **kwargs):
            self.calls, self.bytes = self.calls + 1, self.bytes + x.nbytes
            allreduce(x, **kwargs)
        mpi_tools.allreduce = counted


class Window:
    """What happens from the end of update `first` to the end of update `last`, where the training stops.

    on_open and on_close are called at both ends.
    """
    def __init__(self, first, last, on_open=lambda agent: None, on_close=lambda: None):
        self.first, self.last, self.on_open, self.on_close = first, last, on_open, on_close
        self.open, self.calls, self.in_update, self.metrics, self.seconds = False, 0, 0.0, [], None
        self.messages, self.sent = Messages(), [0, 0]

    def watch(self, agent_class):
        update = agent_class.update

        def watched(agent, *args):
            before, sent = time.perf_counter(), (self.messages.calls, self.messages.bytes)
            metrics = update(agent, *args)
            now = time.perf_counter()
            self.calls += 1
            count = getattr(agent, 'updates', self.calls)       # off-policy agents count for themselves
            if self.open:
                self.in_update += now - before
                self.metrics.append(metrics)
                self.sent = [self.sent[0] + self.messages.calls - sent[0], self.sent[1] + self.messages.bytes - sent[1]]
                if count >= self.last:
                    self.seconds, self.cpu_seconds = now - self.start, time.process_time() - self.cpu_start
                    self.updates = count - self.start_count
                    self.on_close()
                    raise Enough
            elif count >= self.first:
                self.open, self.start_count = True, count
                self.on_open(agent)
                self.start, self.cpu_start = time.perf_counter(), time.process_time()
            return metrics
        agent_class.update = watched

    def result(self, steps):
        """steps: of the environment, of all processes together, in the window."""
        return dict(rate=steps / self.seconds, update_us=1e6 * self.in_update / steps,
                    collect_us=1e6 * (self.seconds - self.in_update) / steps, seconds=self.seconds,
                    cpu_share=self.cpu_seconds / self.seconds)


def import_script(script):
    if script.endswith('torch'):
        import torch
        torch.set_num_threads(1)                        # the TensorFlow files see to that themselves
    return importlib.import_module(script)


def run(module, env_fn, **kwargs):
    """Call a script's training function, which ends by itself or by Enough. It saves nothing after its first epoch."""
    train_fn = getattr(module, module.__name__.split('_')[0])
    quiet = contextlib.redirect_stdout(io.StringIO())
    with quiet, tempfile.TemporaryDirectory() as folder, contextlib.suppress(Enough):
        train_fn(env_fn, logger_kwargs=dict(output_dir=folder), save_freq=10**9, **kwargs)


def train(script, env, window, **kwargs):
    """Run the training function of a script until the window closes."""
    module = import_script(script)
    window.watch(module.Agent)
    run(module, lambda: gym.make(env), **kwargs)
    assert window.seconds, f'{script} came to its end before update {window.last}'


def on_policy_window(epochs, **hooks):
    return Window(2, 2 + epochs, **hooks)               # after the first epoch, which warms up, there is a checkpoint


def off_policy_window(updates, **hooks):
    return Window(WARM, WARM + updates, **hooks)        # multiples of update_every: groups of updates stay whole


def off_policy_arguments(updates, batch):
    return dict(batch_size=batch, start_steps=FILLED, update_after=FILLED, num_test_episodes=0, epochs=1,
                steps_per_epoch=FILLED + WARM + updates + 100)


# ---- The measurements

def on_policy(script, env, epochs=4, seed=0, steps=STEPS):
    """Steps per second with default settings, and how they divide into collecting and updating."""
    window = on_policy_window(epochs)
    train(script, env, window, epochs=window.last + 1, seed=seed, steps_per_epoch=steps)
    result = window.result(steps * epochs)
    # The policy's gradients in an epoch: ppo stops when the KL is too large, after a gradient that it does not use.
    result['pi_gradients'] = sum(min(metrics.get('StopIter', 0) + 1, 80) for metrics in window.metrics) / epochs
    return with_messages(result, window, gradients=epochs * (result['pi_gradients'] + 80))


def apart(script, env, epochs=4, seed=0):
    """The same of processes that share out the steps but never meet: what the machine's cores allow."""
    world = mpi_tools._world()
    mpi_tools._world = lambda: None                     # so each of them is alone, as far as it can tell
    result = on_policy(script, env, epochs, seed + 1000 * world.Get_rank(), STEPS // world.Get_size())
    rates = world.gather(result['rate'])
    return dict(rate=sum(rates), processes=len(rates)) if rates else None


def off_policy(script, env, batch, updates=400, seed=0):
    """Steps with one update each, per second."""
    window = off_policy_window(updates)
    train(script, env, window, seed=seed, **off_policy_arguments(updates, batch))
    gradients = window.updates * (1.5 if script.startswith('td3') else 2)       # of q, and of the policy
    return with_messages(window.result(window.updates), window, gradients)


def with_messages(result, window, gradients):
    """Only what is sent inside of an update belongs to its gradients; statistics for the log come between them."""
    calls, size = window.sent
    return dict(result, processes=mpi_tools.num_procs(), calls_per_gradient=calls / gradients,
                bytes_per_gradient=size / gradients)


def plain(env, epochs=4, seed=0):
    """The same for PPO as it is usually written."""
    import torch

    from benchmarks.plain_ppo import plain_ppo
    torch.set_num_threads(1)
    ends, cpu = [], []

    def on_epoch(epoch, returns, metrics):
        ends.append(time.perf_counter())
        cpu.append(time.process_time())
    plain_ppo(lambda: gym.make(env), epochs=2 + epochs, seed=seed, on_epoch=on_epoch)
    seconds = ends[-1] - ends[1]
    return dict(rate=STEPS * epochs / seconds, seconds=seconds, cpu_share=(cpu[-1] - cpu[1]) / seconds)


def environment(env, seconds=1.5, seed=0):
    """Steps per second of the environment alone, with actions that were chosen beforehand."""
    env = gym.make(env)
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(1000)]
    env.reset(seed=seed)

    def rate(at_least):
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < at_least:
            for action in actions:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            steps += len(actions)
        return steps / (time.perf_counter() - start)
    rate(seconds / 5)
    return dict(rate=rate(seconds))


def products(algo, env, batch=None, seconds=1.5, seed=0):
    """The bare matrix products: updates per second off-policy, microseconds of each kind of gradient on-policy."""
    import torch

    from benchmarks import products as bare
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = gym.make(env)
    obs_dim, space = env.observation_space.shape[0], env.action_space
    act_dim = int(space.n) if isinstance(space, gym.spaces.Discrete) else space.shape[0]
    if batch:
        work, updates = getattr(bare, algo)(batch, obs_dim, act_dim)
        taken = work.seconds(seconds) / updates
        return dict(rate=1 / taken, gflops_per_s=work.flops() / updates / taken / 1e9)
    pi = (bare.natural_gradient if algo == 'trpo' else bare.gradient)(STEPS, obs_dim, 64, 64, act_dim)
    v = bare.gradient(STEPS, obs_dim, 64, 64, 1)
    pi_seconds, v_seconds = pi.seconds(seconds / 2), v.seconds(seconds / 2)
    return dict(pi_us=1e6 * pi_seconds, v_us=1e6 * v_seconds,
                gflops_per_s=(pi.flops() + v.flops()) / (pi_seconds + v_seconds) / 1e9)


class EpisodeReturns(gym.Wrapper):
    """Notes (time, return, length) of every episode."""
    def __init__(self, env):
        super().__init__(env)
        self.episodes, self.total, self.length = [], 0.0, 0

    def step(self, action):
        result = self.env.step(action)
        self.total, self.length = self.total + result[1], self.length + 1
        if result[2] or result[3]:
            self.episodes.append((time.time(), self.total, self.length))
            self.total, self.length = 0.0, 0
        return result


def first_time_at(episodes, goal, last=100):
    """(time, steps) when the mean return of the last 100 episodes first was `goal`, or None."""
    recent, steps = collections.deque(maxlen=last), 0
    for when, total, length in sorted(episodes):
        recent.append(total)
        steps += length
        if len(recent) == last and sum(recent) >= goal * last:
            return when, steps
    return None


def time_to(script, env, goal, max_steps, seed=0):
    """Seconds until the mean return of the last 100 episodes, of all processes together, is `goal`.

    The time is exact; that it has come is noticed at the end of an epoch, where the processes meet anyway.
    """
    module, own, reached = import_script(script), [], []
    update = module.Agent.update

    def watched(agent, *args):
        everyone = mpi_tools.gather(own[0].episodes)
        found = mpi_tools.bcast(first_time_at(itertools.chain(*everyone), goal) if everyone else None)
        if found:
            reached.extend(found)
            raise Enough
        return update(agent, *args)

    def make_env():
        own.append(EpisodeReturns(gym.make(env)))
        return own[-1]
    module.Agent.update = watched
    start = time.time()
    run(module, make_env, epochs=max_steps // STEPS, seed=seed)
    when, steps = reached or (None, max_steps)
    return dict(seconds=when and when - start, steps=steps, processes=mpi_tools.num_procs())


# ---- Where the time goes

def profile(script, env, batch=100, epochs=2, updates=400, lines=25):
    """A text about it: as Python sees it and, in a second run, as the framework does."""
    on = script.split('_')[0] in ('vpg', 'trpo', 'ppo')
    kwargs = dict(epochs=epochs + 3) if on else off_policy_arguments(updates, batch)

    def run_with(**hooks):
        window = on_policy_window(epochs, **hooks) if on else off_policy_window(updates, **hooks)
        train(script, env, window, **kwargs)
        importlib.reload(sys.modules[script])           # the next run shall not be watched by this window too
        return window

    python = cProfile.Profile()
    window = run_with(on_open=lambda agent: python.enable(), on_close=python.disable)
    stats = pstats.Stats(python)
    rows = [(calls, own, cumulative, name if file == '~' else f'{os.path.basename(file)}:{line} {name}')
            for (file, line, name), (_, calls, own, cumulative, _) in stats.stats.items()]
    share = window.in_update / window.seconds
    text = (f'{script} on {env}, {"epochs" if on else "updates"} {window.first + 1} to {window.last}: '
            f'{window.seconds:.2f} s under the profiler, {share:.0%} of them in Agent.update.\n\n'
            'Python functions by their own time. The lines of the training function itself are not among them: '
            f'{window.seconds - stats.total_tt:.2f} s.\n{"calls":>9}{"seconds":>9}{"share":>7}{"us/call":>10}'
            f'{"with what it calls":>20}  function\n')
    for calls, own, cumulative, name in sorted(rows, key=lambda row: -row[1])[:lines]:
        text += (f'{calls:>9}{own:>9.3f}{own / window.seconds:>7.1%}{1e6 * own / calls:>10.1f}{cumulative:>20.3f}'
                 f'  {name}\n')
    title, rows = (torch_operators if script.endswith('torch') else tensorflow_operations)(script, run_with)
    total = sum(own for _, own, _ in rows)
    text += f'\n{title}\n{"calls":>9}{"seconds":>9}{"share":>7}{"us/call":>10}  name\n'
    for calls, own, name in sorted(rows, key=lambda row: -row[1])[:lines]:
        text += f'{calls:>9}{own / 1e6:>9.3f}{own / total:>7.1%}{own / calls:>10.1f}  {name}\n'
    return dict(text=text)


def torch_operators(script, run_with):
    """(calls, own microseconds, name) of each."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile
    operators = torch_profile(activities=[ProfilerActivity.CPU], acc_events=True)
    run_with(on_open=lambda agent: operators.start(), on_close=operators.stop)
    return ('Operators of torch by their own time, with the overhead of the profiler:',
            [(event.count, event.self_cpu_time_total, event.key) for event in operators.key_averages()])


def tensorflow_operations(script, run_with):
    """The same by type of operation, from the trace that a session can make of a run."""
    tf = sys.modules[script].tf
    spent, calls = collections.Counter(), collections.Counter()

    def trace(agent):
        session_run, graph = agent.sess.run, agent.sess.graph
        types = {operation.name: operation.type for operation in graph.get_operations()}

        def traced(fetches, feed_dict=None):
            metadata, options = tf.RunMetadata(), tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            result = session_run(fetches, feed_dict, options=options, run_metadata=metadata)
            for device in metadata.step_stats.dev_stats:
                for node in device.node_stats:
                    # What TensorFlow made itself is in no graph of ours, but is labelled `name = Type(inputs)`.
                    label = node.timeline_label.split(' = ')[-1].split('(')[0]
                    kind = types.get(node.node_name.split(':')[0], label or 'other')
                    spent[kind] += node.op_end_rel_micros - node.op_start_rel_micros
                    calls[kind] += 1
            return result
        agent.sess.run = traced
    run_with(on_open=trace)
    return ('Operations of TensorFlow by type, in traced calls of session.run:',
            [(calls[kind], own, kind) for kind, own in spent.items()])


def main():
    arguments = json.loads(sys.argv[1])
    measure = dict(on_policy=on_policy, apart=apart, off_policy=off_policy, plain=plain, environment=environment,
                   products=products, time_to=time_to, profile=profile)[arguments.pop('what')]
    result = measure(**arguments)
    if result and mpi_tools.proc_id() == 0:
        print(json.dumps(result), flush=True)


if __name__ == '__main__':
    main()
