"""A PyTorch file and its TensorFlow-1 twin side by side: the same numbers, and the same run.

    python -m tools.twins ppo --env CartPole-v1                         three epochs, unless told otherwise
    python -m tools.twins sac --env Pendulum-v1 --steps_per_epoch 1000 --start_steps 500 --update_after 500 --seed 1

takes the flags of the algorithm file. With one seed the twins start from the same weights and draw the same noise, and
then drift by rounding only: the frameworks sum in different orders, so that results differ in their last digits. The
drift grows, slowly at first, then by leaps, when the input of a relu, a ratio at PPO's clip or the choice between two
actions falls on the other side. To show that rounding does this, the PyTorch file runs a second time, "nudged": after
each step of an optimizer every weight is moved to a neighbouring float32.

Every run has a process of its own, where the other framework is not even imported.
"""
import functools
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from common.env_tools import make_env
from common.errors import UserError, nearest, one_line_errors
from common.logx import read_progress
from common.run import check, parse_args, run_options
from common.run_utils import default_arguments
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT

NOT_COMPARED = 'Epoch', 'TotalEnvInteracts', 'Time'


# ---- What a twin computes; its agent may be of either framework

def make_agent(name, env, **kwargs):
    """The agent of an algorithm file, as its training function makes it."""
    file = importlib.import_module(name)
    args = SimpleNamespace(**{**default_arguments(getattr(file, name.split('_')[0])), **kwargs})
    return file.Agent(env, np.random.default_rng(args.seed), args)


def make_batch(agent, env, rng, n=100):
    """Random arguments for `update`: an epoch's data on-policy, a batch and its noise off-policy."""
    space, normal = env.action_space, functools.partial(rng.standard_normal, dtype=np.float32)
    obs, next_obs = normal((2, n, *env.observation_space.shape))
    rew, adv, ret = normal((3, n))
    if hasattr(agent, 'noise_arrays'):
        act, terminated = np.float32(rng.uniform(-1, 1, (n, *space.shape))), np.float32(rng.random(n) < 0.2)
        batch = dict(obs=obs, act=act, rew=rew, next_obs=next_obs, terminated=terminated)
        return batch, normal((agent.noise_arrays, n, *space.shape))
    act = normal((n, *space.shape)) if isinstance(space, Box) else np.float32(rng.integers(space.n, size=n))
    _, logp, _ = agent.evaluate(obs, act, obs)
    return dict(obs=obs, act=act, adv=adv, ret=ret, logp=logp),


def variables(agent):
    """{path: variable} of all its networks: ac.pi.mu_net.1.weight, ac_targ.q1.q.1.bias. The paths are the same in both
    frameworks, but not their order."""
    found = {}

    def visit(path, part):
        if hasattr(part, 'named_parameters'):                               # a module of PyTorch
            found.update({f'{path}.{name}': p for name, p in part.named_parameters()})
        elif isinstance(part, tuple):                                       # of TensorFlow: a Sequential's layers,
            for i, child in enumerate(part):
                visit(f'{path}.{i}', child)
        elif hasattr(part, 'trainable_variables'):                          # a module,
            for name, child in vars(part).items():
                if not name.startswith('_'):
                    visit(path if name == 'layers' else f'{path}.{name}', child)
        elif hasattr(part, 'initializer'):                                  # and a variable
            found[path] = part
    for name in ('ac', 'ac_targ', 'temperature'):
        visit(name, getattr(agent, name, None))
    return found


def parameters(agent):
    """{path: array}, copies of all `variables`."""
    if hasattr(agent, 'sess'):
        return agent.sess.run(variables(agent))
    return {name: p.detach().numpy().copy() for name, p in variables(agent).items()}


def flat(arrays, prefix='ac.'):
    """All arrays whose paths begin with `prefix`, as one vector."""
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays) if name.startswith(prefix)])


def first_update(name, env, kwargs):
    """{label: number or vector} of an update of new networks on a random batch."""
    agent = make_agent(name, env, **kwargs)
    agent.updates = getattr(agent.args, 'policy_delay', 1) - 1              # so that this one moves the policy too
    old, metrics = parameters(agent), agent.update(*make_batch(agent, env, np.random.default_rng(1)))
    new = parameters(agent)
    networks = dict.fromkeys(name.split('.')[1] for name in new if name.startswith('ac.'))
    steps = {f'|step of {net}|': flat(new, f'ac.{net}.') - flat(old, f'ac.{net}.') for net in sorted(networks)}
    return {**{key: np.mean(value) for key, value in metrics.items()}, **steps}


def watch(file, nudged):
    """Make a file's training function record the parameters at first and after each epoch; returns the records."""
    notes, setup_saver = [], file.setup_saver

    def setup_and_watch(agent, logger):
        setup_saver(agent, logger)
        dump, note = logger.dump_tabular, lambda: notes.append(flat(parameters(agent)))
        logger.dump_tabular = lambda: note() or dump()
        note()
        for part in vars(agent).values():
            if nudged and hasattr(part, 'register_step_post_hook'):         # an optimizer
                part.register_step_post_hook(nudge)
    file.setup_saver = setup_and_watch
    return notes


def nudge(optimizer, *_):
    """Move every weight to the next float32 above or below, at random."""
    for p in optimizer.param_groups[0]['params']:
        p.data = p.data.nextafter(p.data + p.data.new_empty(p.shape).normal_())


def run_twin(name, folder, *argv):
    """What a process does: it saves the first update, the parameters after each epoch of a run, and progress.txt."""
    with one_line_errors('python -m tools.twins'):
        file = importlib.import_module(name)
        train_fn = getattr(file, name.split('_')[0])
        grid, options = parse_args(argv, train_fn)
        if options != run_options() or len(grid.variants()) > 1:
            raise UserError("only the algorithm's own flags are compared, with one value each")
        check(train_fn, grid.variants(), options)
        kwargs = dict(dict(epochs=3), **grid.variants()[0])
        env_fn = functools.partial(gym.make, kwargs.pop('env_name'))
        env = make_env(env_fn, off_policy='replay_size' in default_arguments(train_fn))
        np.savez(Path(folder, 'update.npz'), **first_update(name, env, kwargs))
        notes = watch(file, nudged=folder.endswith('nudged'))
        train_fn(env_fn, logger_kwargs=dict(output_dir=folder), **kwargs)
        np.save(Path(folder, 'parameters.npy'), notes)


# ---- Side by side

def show(title, rows):
    """A table of (label, of torch, of tf1); vectors by their norms."""
    print(f'\n{title:<44}{"torch":>16}{"tf1":>16}{"difference":>14}')
    for label, *twins in rows:
        difference = np.linalg.norm(twins[1] - twins[0]) if np.ndim(twins[0]) else twins[1] - twins[0]
        numbers = [np.linalg.norm(x) if np.ndim(x) else x for x in twins]
        print(f'{label:<44}{numbers[0]:>16.7g}{numbers[1]:>16.7g}{difference:>14.2g}')


def read_rows(folder):
    """The rows of a run's progress.txt as numbers, without the columns that say nothing about the algorithm."""
    _, rows = read_progress(folder / 'progress.txt')
    return [{key: float(cell or 'nan') for key, cell in row.items() if key not in NOT_COMPARED} for row in rows]


def parameter_drift(x, y):
    """The norm of the difference, relative to that of the parameters."""
    return np.linalg.norm(x - y) / np.linalg.norm(x)


def column_drift(row, other):
    """The largest difference, relative to the column's size if that is above 1 (a loss may be zero but for rounding),
    and the column."""
    return max((abs(val - other[key]) / max(1, abs(val)), key) for key, val in row.items() if val == val)


def report(algo, folders):
    """Show what the runs of torch, tf1 and torch nudged have left in their folders."""
    updates = [np.load(folder / 'update.npz') for folder in folders[:2]]
    show('One update of new networks, the same batch', [(key, *(x[key] for x in updates)) for key in updates[0]])
    rows, tf_rows, nudged_rows = map(read_rows, folders)
    params, tf_params, nudged_params = [np.load(folder / 'parameters.npy') for folder in folders]
    show('The same run', [(f'{key}, epoch {epoch}', row[key], tf_row[key])
                          for epoch, (row, tf_row) in enumerate(zip(rows, tf_rows))
                          for key in ('AverageEpRet', 'AverageTestEpRet') if key in row])
    print(f'\n{algo}_torch and {algo}_tf1 start from the same weights and draw the same noise, and then drift by\n'
          'rounding only. The relative difference of these runs, and of two runs of torch, one of them nudged:\n\n'
          f'{"":<16}{"parameters":>12}{"nudged":>10}{"logged columns":>18}{"nudged":>10}    largest in\n'
          f'at first        {parameter_drift(params[0], tf_params[0]):>12.1e}')
    for epoch, row in enumerate(rows):
        of_params, of_nudged = [parameter_drift(params[epoch + 1], x[epoch + 1]) for x in (tf_params, nudged_params)]
        (of_columns, key), (of_nudged_columns, _) = [column_drift(row, x[epoch]) for x in (tf_rows, nudged_rows)]
        print(f'after epoch {epoch:<4}{of_params:>12.1e}{of_nudged:>10.1e}{of_columns:>18.1e}{of_nudged_columns:>10.1e}'
              f'    {key}')


def main(argv=None):
    algo, *argv = (sys.argv[1:] if argv is None else argv) or ['help']
    with one_line_errors('python -m tools.twins'), tempfile.TemporaryDirectory() as root:
        if {algo, *argv} & {'-h', '--help', 'help'}:
            print(__doc__)
            return
        if algo not in ALGORITHMS:
            raise UserError(f'unknown algorithm {algo}{nearest(algo, ALGORITHMS)}; there are {", ".join(ALGORITHMS)}')
        code = 'import sys; from tools.twins import run_twin; run_twin(*sys.argv[1:])'
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
        folders = [Path(root, name) for name in (*FRAMEWORKS, 'torch_nudged')]
        for folder in folders:
            folder.mkdir()
            name = f'{algo}_{folder.name.removesuffix("_nudged")}'
            status = subprocess.run([sys.executable, '-c', code, name, str(folder), *argv], env=env,
                                    stdout=subprocess.DEVNULL).returncode
            if status:
                sys.exit(status)                                # it has said why
        report(algo, folders)


if __name__ == '__main__':
    main()
