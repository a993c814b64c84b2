"""What several processes do together: short runs of every algorithm file under mpirun, watched, and then repeated.

The runs are repeated in one process, by PyTorch: every process is played by a `Process` below, and one agent learns
from the data of all. Tables and parameters must be the same, so that whatever is seeded, shared out, averaged or
counted in another way shows. All processes differ, so that nothing local is like what all have: each has observations
of another scale, episodes of another length, and rewards that want another policy.

Under mpirun this file is a script: see `watch`.
"""
import functools
import importlib
import os
import sys
from collections import defaultdict
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.utils import seeding

from common.env_tools import make_env
from common.mpi_tools import proc_id
from common.serialization import load_tree, save_tree
from helpers import SmallEnv, count_messages, make_args, mpirun, needs_mpirun, read_progress
from tools.twins import parameters

PROCESSES = dict(torch=3, tf1=2)
FRAMEWORKS = [name for name, package in dict(torch='torch', tf1='tensorflow').items() if find_spec(package)]
# Little of this divides evenly: what is left over has its place, too.
ON_POLICY = dict(seed=3, epochs=3, steps_per_epoch=301, max_ep_len=9, gamma=0.5, train_v_iters=5)
OFF_POLICY = dict(seed=3, epochs=2, steps_per_epoch=101, max_ep_len=9, start_steps=40, update_after=30, update_every=7,
                  batch_size=11, replay_size=71, num_test_episodes=5, polyak=0.9)
RUNS = dict(
    vpg=dict(ON_POLICY, pi_lr=0.01),
    ppo=dict(ON_POLICY, pi_lr=0.003, train_pi_iters=20),            # so fast that it stops early
    trpo=dict(ON_POLICY, cg_iters=5, damping_coeff=0.01),           # so long a step that it has to be shortened
    ddpg=OFF_POLICY,
    td3=OFF_POLICY,
    sac=dict(OFF_POLICY, alpha='auto'),
)
pytestmark = [needs_mpirun,
              pytest.mark.skipif('torch' not in FRAMEWORKS, reason='PyTorch, which repeats the runs, is not installed')]
each_algorithm = pytest.mark.parametrize('algo', RUNS)
each_off_policy_algorithm = pytest.mark.parametrize('algo', [algo for algo in RUNS if 'batch_size' in RUNS[algo]])


def small_env(process):
    """What a process trains on; the environment's random numbers come from its seed alone."""
    def reward(obs, act):
        return (3, -0.5, 0.5)[process] * (act[0] + obs[0] * act[1]) - process
    return SmallEnv(Box(-1 - process, 1 + process, (3,)), Box(np.float32([-1, 0.5]), np.float32([3, 1])),
                    length=(7, None, 8)[process], reward=reward)


def file_and_arguments(algo, framework):
    """An algorithm file, and the arguments of its run. All have tanh: the slope of a relu jumps where rounding moves
    its input past zero."""
    file = importlib.import_module(f'{algo}_{framework}')
    ac_kwargs = dict(hidden_sizes=(16, 8), activation=file.tf.tanh if framework == 'tf1' else file.nn.Tanh)
    return file, dict(RUNS[algo], ac_kwargs=ac_kwargs)


# %% Under mpirun
def watch(framework, folder):
    """Train with every algorithm. Each process leaves a file ALGORITHM_PROCESS.npz with what it has seen."""
    world, written = count_messages(), []
    sys.addaudithook(lambda event, args: written.append(f'{event} {args}') if changes_files(event, args) else None)
    for algo in RUNS:
        file, kwargs = file_and_arguments(algo, framework)
        seen, envs = dict(rows_per_update=[], messages_per_update=[], actions_of_policy=0), []

        class WatchedAgent(file.Agent):
            def __init__(self, env, rng, args):
                super().__init__(env, rng, args)
                seen['action_space_generator'] = env.action_space.np_random.bit_generator.state
                seen['framework_seed'] = file.tf.get_default_graph().seed if framework == 'tf1' else (
                    file.torch.initial_seed())

            def act(self, obs, noise=0):
                seen['actions_of_policy'] += np.ndim(noise)         # 0 in test episodes
                return super().act(obs, noise)

            def update(self, data, *noise):
                before = world.messages
                metrics = super().update(data, *noise)
                seen['messages_per_update'].append(world.messages - before)
                seen['rows_per_update'].append([len(array) for array in data.values()])
                return metrics

        class WatchedBuffer(getattr(file, 'ReplayBuffer', object)):
            def __init__(self, *args):
                super().__init__(*args)
                seen['replay_size'] = len(self.data)

        def env_fn():
            envs.append(small_env(proc_id()))
            return envs[-1]
        file.Agent, file.ReplayBuffer = WatchedAgent, WatchedBuffer
        written.clear()
        agent = getattr(file, algo)(env_fn, logger_kwargs=dict(output_dir=f'{folder}/{algo}'), **kwargs)
        seen.update(written=[call for call in written if str(folder) in call], seeds=[env.seeds for env in envs],
                    steps=len(envs[0].received), state=agent.get_state(), parameters=parameters(agent))
        save_tree(f'{folder}/{algo}_{proc_id()}.npz', seen)


def changes_files(event, args):
    """Whether an audit event of Python is about a file that is made, changed, renamed or removed."""
    return args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if event == 'open' else (
        event in ('os.mkdir', 'os.rename', 'os.remove', 'os.rmdir', 'os.link', 'os.symlink', 'os.truncate'))


@pytest.fixture(params=FRAMEWORKS, scope='module')
def runs(request, tmp_path_factory):
    """What all processes have seen, by algorithm; and the table of each run."""
    framework, folder = request.param, tmp_path_factory.mktemp(request.param)
    count = PROCESSES[framework]
    mpirun('-np', count, sys.executable, __file__, framework, folder)
    return SimpleNamespace(
        framework=framework, count=count,
        seen={algo: [load_tree(folder / f'{algo}_{process}.npz') for process in range(count)] for algo in RUNS},
        tables={algo: read_progress(folder / algo) for algo in RUNS})


# %% Repeated in one process
class Process:
    """One of several processes."""
    def __init__(self, number, file, args):
        seed, off_policy = args.seed + 10000 * number, 'batch_size' in vars(args)
        self.rng, self.replay = np.random.default_rng(seed), []
        self.env, self.test_env = (make_env(functools.partial(small_env, number), off_policy) for _ in range(2))
        self.agent = file.Agent(self.env, self.rng, args)           # all draw weights, and use those of process 0
        self.test_env.reset(seed=seed + 5000)
        (self.obs, _), self.ep_ret, self.ep_len = self.env.reset(seed=seed), 0, 0

    def step(self, act, args, table):
        """Take a step; returns the transition, and whether it ended an episode."""
        obs, (next_obs, rew, terminated, truncated, _) = self.obs, self.env.step(act)
        self.obs, self.ep_ret, self.ep_len = next_obs, self.ep_ret + rew, self.ep_len + 1
        ended = terminated or truncated or self.ep_len == args.max_ep_len
        if ended:
            table.store(EpRet=self.ep_ret, EpLen=self.ep_len)
            (self.obs, _), self.ep_ret, self.ep_len = self.env.reset(), 0, 0
        return dict(obs=obs, act=act, rew=rew, next_obs=next_obs, terminated=terminated), ended


class Table:
    """The rows that all processes should log together."""
    def __init__(self):
        self.rows, self.stored = [], defaultdict(list)

    def store(self, **kwargs):
        for key, val in kwargs.items():
            self.stored[key].extend(np.ravel(val))

    def end_row(self, steps):
        row = dict(Epoch=len(self.rows), TotalEnvInteracts=steps)
        for key, values in self.stored.items():
            row.update({key: np.mean(values), f'Average{key}': np.mean(values), f'Std{key}': np.std(values),
                        f'Max{key}': np.max(values), f'Min{key}': np.min(values)})
        self.rows.append(row)
        self.stored.clear()


def leaves(tree, path=''):
    """{path: array} of a state, which is a nested dict in PyTorch, with lists in it, and a flat one in TensorFlow."""
    if not isinstance(tree, (dict, list, tuple)):
        return {path: np.asarray(tree)}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {name: leaf for key, part in items for name, leaf in leaves(part, f'{path}/{key}').items()}


def adam_moments(state):
    """The norms of Adam's first and second moments, in which it shows if a gradient is twice what it should be: the
    steps themselves remain the same."""
    def norm(*names):
        return np.sqrt(sum((leaf**2).sum() for path, leaf in leaves(state).items() if path.endswith(names)))
    return [norm('/exp_avg', '/Adam'), norm('/exp_avg_sq', '/Adam_1')]


def stack(transitions):
    """{key: array} of a list of transitions."""
    return {key: np.array([row[key] for row in transitions], dtype=np.float32) for key in transitions[0]}


@functools.cache
def repeated(algo, count):
    """The rows of the table, and the parameters at the end, of a run that `count` processes make."""
    file, kwargs = file_and_arguments(algo, 'torch')
    args, table = make_args(getattr(file, algo), **kwargs), Table()
    processes = [Process(number, file, args) for number in range(count)]
    run = run_off_policy if 'batch_size' in kwargs else run_on_policy
    run(file, args, processes, processes[0].agent, table)
    return table.rows, parameters(processes[0].agent), adam_moments(processes[0].agent.get_state())


def run_on_policy(file, args, processes, agent, table):
    local_steps = args.steps_per_epoch // len(processes)
    for epoch in range(args.epochs):
        shares = [collect(process, agent, local_steps, args, table) for process in processes]
        data = {key: np.concatenate([share[key] for share in shares]) for key in shares[0]}
        data['adv'] = (data['adv'] - data['adv'].mean()) / (data['adv'].std() + 1e-8)
        table.store(VVals=data.pop('val'), **agent.update({key: np.float32(array) for key, array in data.items()}))
        table.end_row((epoch + 1) * local_steps * len(processes))


def collect(process, agent, steps, args, table):
    """One process's share of an epoch, with advantages that are not normalized."""
    noise, rows, ends = process.rng.standard_normal((steps, 2), dtype=np.float32), [], []
    for t in range(steps):
        row, ended = process.step(agent.act(process.obs, noise[t]), args, table)
        rows.append(row)
        ends.append(ended or t == steps - 1)
    data, adv, ret = stack(rows), np.zeros(steps), np.zeros(steps)
    val, logp, next_val = agent.evaluate(data['obs'], data['act'], data['next_obs'])
    next_val = next_val * (1 - data['terminated'])
    for t in reversed(range(steps)):
        delta = rows[t]['rew'] + args.gamma * next_val[t] - val[t]
        adv[t] = delta + (0 if ends[t] else args.gamma * args.lam * adv[t + 1])
        ret[t] = rows[t]['rew'] + args.gamma * (next_val[t] if ends[t] else ret[t + 1])
    return dict(obs=data['obs'], act=data['act'], adv=adv, ret=ret, logp=logp, val=val)


def run_off_policy(file, args, processes, agent, table):
    count, updates = len(processes), 0
    local_steps, local_batch = args.steps_per_epoch // count, int(np.ceil(args.batch_size / count))
    for epoch in range(args.epochs):
        for t in range(epoch * local_steps, (epoch + 1) * local_steps):
            steps, place = (t + 1) * count, t % (args.replay_size // count)
            for process in processes:
                if steps > args.start_steps:
                    act = agent.act(process.obs, process.rng.standard_normal(2, dtype=np.float32))
                else:
                    act = np.float32(process.rng.uniform(-1, 1, 2))
                process.replay[place:place + 1] = [process.step(act, args, table)[0]]       # in a new place, at first
            while updates < steps // args.update_every * args.update_every - args.update_after:
                noise, rows = [], []
                for process in processes:
                    noise.append(process.rng.standard_normal((agent.noise_arrays, local_batch, 2), dtype=np.float32))
                    rows += [process.replay[i] for i in process.rng.integers(len(process.replay), size=local_batch)]
                table.store(**agent.update(stack(rows), np.concatenate(noise, axis=1)))
                updates += 1
        for number, process in enumerate(processes):
            episodes = len(range(number, args.num_test_episodes, count))
            file.test_agent(agent, process.test_env, table, episodes, args.max_ep_len)
        table.end_row((epoch + 1) * local_steps * count)


# %% What is asserted
@each_algorithm
def test_the_run_of_all_processes_is_the_one_that_a_single_process_repeats(algo, runs):
    """float32 is off by 1e-7, and by 1e-6 after all the updates; DeltaLossPi and the like are small differences."""
    expected_rows, expected_parameters, expected_moments = repeated(algo, runs.count)
    columns, rows = runs.tables[algo]
    assert len(rows) == len(expected_rows) == RUNS[algo]['epochs']
    for row, expected in zip(rows, expected_rows):
        for column in columns[:-1]:                                 # Time is the last
            np.testing.assert_allclose(float(row[column]), expected[column], rtol=1e-3, atol=1e-4, err_msg=column)
    seen = runs.seen[algo][0]
    for path, expected in expected_parameters.items():
        np.testing.assert_allclose(seen['parameters'][path], expected, atol=1e-4, err_msg=path)
    np.testing.assert_allclose(adam_moments(seen['state']), expected_moments, rtol=1e-3)


@each_algorithm
def test_networks_and_optimizers_are_equal_bit_for_bit(algo, runs):
    first, *others = [leaves([seen['state'], seen['parameters']]) for seen in runs.seen[algo]]
    for other in others:
        assert list(other) == list(first)
        assert [path for path in first if not np.array_equal(other[path], first[path])] == []


@each_algorithm
def test_every_process_has_seeds_of_its_own(algo, runs):
    for process, seen in enumerate(runs.seen[algo]):
        seed = RUNS[algo]['seed'] + 10000 * process
        env_seeds, *test_env_seeds = seen['seeds']
        assert env_seeds == [seed] + [None] * (len(env_seeds) - 1)
        for seeds in test_env_seeds:
            assert seeds == [seed + 5000] + [None] * (len(seeds) - 1)
        assert seen['framework_seed'] == np.random.default_rng(seed).integers(2**31)
        assert seen['action_space_generator'] == seeding.np_random(seed)[0].bit_generator.state


@each_algorithm
def test_steps_and_data_are_shared_out(algo, runs):
    args = SimpleNamespace(**RUNS[algo])
    local_steps = args.steps_per_epoch // runs.count
    for process, seen in enumerate(runs.seen[algo]):
        assert seen['steps'] == args.epochs * local_steps
        if 'batch_size' not in RUNS[algo]:
            assert seen['actions_of_policy'] == seen['steps']
            assert seen['rows_per_update'] == [[local_steps] * 5] * args.epochs


@each_off_policy_algorithm
def test_batches_replay_and_test_episodes_are_shared_out(algo, runs):
    """Which of the steps come before the first update, and before the policy acts, is counted over all processes."""
    args = SimpleNamespace(**RUNS[algo])
    steps = args.epochs * (args.steps_per_epoch // runs.count) * runs.count
    updates = steps // args.update_every * args.update_every - args.update_after
    for process, seen in enumerate(runs.seen[algo]):
        assert seen['actions_of_policy'] == seen['steps'] - args.start_steps // runs.count
        assert seen['rows_per_update'] == [[-(-args.batch_size // runs.count)] * 5] * updates
        assert seen['replay_size'] == args.replay_size // runs.count < seen['steps'], 'or nothing was overwritten'
        test_episodes = len(seen['seeds'][1]) - 1
        assert test_episodes == args.epochs * len(range(process, args.num_test_episodes, runs.count))


@each_algorithm
def test_a_gradient_step_takes_one_message(algo, runs):
    args, (_, rows) = SimpleNamespace(**RUNS[algo]), runs.tables[algo]
    for seen in runs.seen[algo]:
        messages = seen['messages_per_update']
        if algo == 'vpg':
            assert messages == [1 + args.train_v_iters] * args.epochs
        elif algo == 'ppo':                                         # a message more says that the policy has to stop
            stops = [int(float(row['StopIter'])) for row in rows]
            assert 1 < min(stops) < args.train_pi_iters
            assert messages == [min(stop + 1, args.train_pi_iters) + args.train_v_iters for stop in stops]
        elif algo == 'trpo':                                        # the gradient; F x; a message for each try
            tries = [int(float(row['BacktrackIters'])) + 1 for row in rows]
            assert max(tries) > 1
            assert messages == [1 + args.cg_iters + 1 + number + args.train_v_iters for number in tries]
        else:
            each = dict(ddpg=[2, 2], td3=[1, 2], sac=[3, 3])[algo]                          # TD3's policy is delayed
            assert messages == [each[i % 2] for i in range(len(messages))]


@each_algorithm
def test_process_0_alone_writes(algo, runs):
    first, *others = [seen['written'] for seen in runs.seen[algo]]
    assert first and not any(others), others


if __name__ == '__main__':
    watch(*sys.argv[1:])
