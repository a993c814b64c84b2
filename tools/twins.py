"""A PyTorch file and its TensorFlow-1 twin side by side: the same numbers, and the same run.

    python -m tools.twins ppo --env CartPole-v1                         three epochs, unless told otherwise
    python -m tools.twins sac --env Pendulum-v1 --steps_per_epoch 1000 --start_steps 500 --update_after 500 --seed 1

takes the flags of the algorithm file. Each twin runs in a process of its own, where the other framework is not even
imported. With one seed both start from the same weights and take the same actions. After the first update the weights
differ in their last digits, since the frameworks add up in another order. That grows, slowly at first, then by leaps:
where the input of a relu, or the choice between two actions, falls on the other side.
"""
import functools
import importlib
import inspect
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
from common.mpi_tools import UserError
from common.run import check, nearest, parse_args, run_one, run_options
from common.run_utils import default_arguments, one_line_errors
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT

LOSSES = dict(pi='LossPi', v='LossV', q='LossQ', q1='LossQ', q2='LossQ')        # from which each network learns


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
    rew, adv, ret, noise = normal((4, n))
    if hasattr(agent, 'noises'):
        act, terminated = rng.uniform(space.low, space.high, (n, *space.shape)), rng.random(n) < 0.2
        batch = dict(obs=obs, act=act, rew=rew, next_obs=next_obs, terminated=terminated)
        noises = [normal((agent.noises, n, *space.shape))]
    else:
        act = normal((n, *space.shape)) if isinstance(space, Box) else rng.integers(space.n, size=n)
        logp = -0.5 * (act**2 + np.log(2 * np.pi)).sum(-1) if isinstance(space, Box) else -np.log(space.n)
        batch, noises = dict(obs=obs, act=act, adv=adv, ret=ret, logp=logp + 0.2 * noise), []
    return {key: array.astype(np.float32) for key, array in batch.items()}, *noises


def parameters(agent):
    """{network: its parameters}, torch's or TensorFlow's variables. The names of target networks end in _targ."""
    networks = {}
    if hasattr(agent, 'sess'):
        for p in agent.sess.graph.get_collection('trainable_variables'):
            scope, *inner = p.op.name.split('/')                # log_alpha, pi/0/weight, main/pi/0/weight, target/...
            name = dict(main=inner[0], target=f'{inner[0]}_targ').get(scope, scope) if inner else scope
            networks.setdefault(name, []).append(p)
        return networks
    for suffix, ac in ('', agent.ac), ('_targ', getattr(agent, 'ac_targ', None)):
        networks.update({name + suffix: list(net.parameters()) for name, net in ac.named_children()} if ac else {})
    return dict(networks, log_alpha=list(agent.temperature)) if hasattr(agent, 'temperature') else networks


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


def update(agent, data, *noise):
    """An update on what `make_batch` gives. Off-policy agents take many batches at once, so there it is one of one."""
    if not noise:
        return agent.update(data)
    metrics, = agent.update({key: array[None] for key, array in data.items()}, noise[0][None])
    return metrics


def first_moments(agent, nets):
    """{network: what Adam keeps of its gradients}, of a TensorFlow agent. A gradient g makes it 0.9 of it + 0.1 g."""
    variables = {p.op.name: p for p in agent.sess.graph.get_collection('variables')}
    return agent.sess.run({net: [variables[f'{p.op.name}/Adam'] for p in parameters(agent)[net]] for net in nets})


def losses_and_gradients(agent, data, *noise):
    """{loss: number} and {network: its gradient, a vector}. Off-policy, as in an update: pi's follow q's step."""
    file, params = sys.modules[type(agent).__module__], parameters(agent)
    nets = {net: name for net, name in LOSSES.items() if net in params}
    if noise:
        agent.updates = getattr(agent.args, 'policy_delay', 1) - 1              # so that this one moves the policy too
        old = first_moments(agent, nets) if hasattr(agent, 'sess') else None
        losses = update(agent, data, *noise)
        if hasattr(agent, 'sess'):
            new = first_moments(agent, nets)
            grads = {net: [(y - 0.9 * x) / 0.1 for x, y in zip(old[net], new[net])] for net in nets}
        else:
            grads = {net: [p.grad for p in params[net]] for net in nets}
    elif hasattr(agent, 'sess'):
        feed = {agent.phs[key]: array for key, array in data.items()}
        with agent.sess.graph.as_default():
            grads = {net: file.tf.gradients(agent.metrics[name], params[net]) for net, name in nets.items()}
        losses, grads = agent.sess.run([agent.metrics, grads], feed)
    else:
        obs, act, adv, ret, logp_old = [file.torch.as_tensor(array) for array in data.values()]
        given = dict(vars(agent.args), logp=agent.ac.pi(obs, act)[1], logp_old=logp_old, adv=adv)
        loss_pi = file.compute_loss_pi(*[given[name] for name in inspect.signature(file.compute_loss_pi).parameters])
        losses = dict(LossPi=loss_pi, LossV=file.compute_loss_v(agent.ac.v(obs), ret))
        grads = {net: file.torch.autograd.grad(losses[name], params[net]) for net, name in nets.items()}
        losses = {name: loss.item() for name, loss in losses.items()}
    return {name: losses[name] for name in nets.values()}, {net: flat(grads[net]) for net in nets}


def run_twin(name, folder, *argv):
    """What the process of a twin does: the numbers of one batch go into batch.npz, and a run into the same folder."""
    with one_line_errors('python -m tools.twins'):
        train_fn = getattr(importlib.import_module(name), name.split('_')[0])
        grid, options = parse_args(argv, train_fn)
        if options != run_options() or len(grid.variants()) > 1:
            raise UserError("only the algorithm's own flags are compared, with one value each")
        kwargs = dict(dict(epochs=3), **grid.variants()[0])
        check(train_fn, [kwargs], processes=1)
        env = make_env(functools.partial(gym.make, kwargs['env_name']))
        agent = make_agent(name, env, **kwargs)
        losses, grads = losses_and_gradients(agent, *make_batch(agent, env, np.random.default_rng(1)))
        np.savez(Path(folder, 'batch.npz'), **losses, **{f'|grad {net}|': grad for net, grad in grads.items()})
        run_one(train_fn, 'run', kwargs, dict(options, data_dir=folder))


# ---- Side by side

def show(title, rows):
    """A table of (label, of torch, of tf1); vectors by their norms."""
    print(f'\n{title:<44}{"torch":>16}{"tf1":>16}{"difference":>14}')
    for label, *twins in rows:
        numbers = [np.linalg.norm(x) if np.ndim(x) else x for x in twins]
        difference = np.linalg.norm(twins[1] - twins[0]) if np.ndim(twins[0]) else twins[1] - twins[0]
        print(f'{label:<44}{numbers[0]:>16.7g}{numbers[1]:>16.7g}{difference:>14.2g}')


def read_returns(path):
    """(label, return) of every epoch."""
    header, *rows = [line.split('\t') for line in path.read_text().splitlines()]
    return [(f'{key}, epoch {row[0]}', float(cell or 'nan')) for row in rows for key, cell in zip(header, row)
            if key in ('AverageEpRet', 'AverageTestEpRet')]


def main(argv=None):
    algo, *argv = (sys.argv[1:] if argv is None else argv) or ['help']
    if {algo, *argv} & {'-h', '--help', 'help'}:
        print(__doc__)
        return
    with one_line_errors('python -m tools.twins'), tempfile.TemporaryDirectory() as root:
        if algo not in ALGORITHMS:
            raise UserError(f'unknown algorithm {algo}{nearest(algo, ALGORITHMS)}; there are {", ".join(ALGORITHMS)}')
        code = 'import sys; from tools.twins import run_twin; run_twin(*sys.argv[1:])'
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
        folders = [Path(root, framework) for framework in FRAMEWORKS]
        for folder in folders:
            folder.mkdir()
            command = [sys.executable, '-c', code, f'{algo}_{folder.name}', str(folder), *argv]
            status = subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode
            if status:
                sys.exit(status)                                # it has said why
        batches = [np.load(folder / 'batch.npz') for folder in folders]
        show('The same batch, in new networks', [(key, *(batch[key] for batch in batches)) for key in batches[0]])
        runs = [read_returns(next(folder.rglob('progress.txt'))) for folder in folders]
        show('The same run', [(label, x, y) for (label, x), (_, y) in zip(*runs)])


if __name__ == '__main__':
    main()
