"""Watch a trained policy, and measure it.

    python -m common.run test_policy data/ppo_torch/ppo_torch_s0                  in a window, if there is a display
    python -m common.run test_policy data/ppo_torch/ppo_torch_s0 -n 10 -nr -d     ten, not shown, without randomness
    python -m common.run test_policy data/ppo_torch/ppo_torch_s0 -n 1 --gif cartpole.gif

Loading a model executes nothing from the run's folder: it is only numbers (weights, or a SavedModel), and the networks
of a PyTorch run are built again from config.json by the algorithm's own file.
"""
import argparse
import contextlib
import importlib
import json
import os
import re
import sys

import gymnasium as gym
import numpy as np

from common.env_tools import make_env
from common.logx import restore_tf_graph
from common.mpi_tools import UserError
from common.run_utils import one_line_errors
from common.serialization import complete_folder


def load_policy_and_env(fpath, itr='last', deterministic=False, env_fn=None, actor_critic=None, render_mode=None):
    """The environment of the run in folder `fpath`, and its policy as a function get_action(obs).

    A run that was started from Python needs its `env_fn` again, and one with networks of its own its `actor_critic`,
    since a run's folder holds no code.
    """
    try:
        with open(os.path.join(fpath, 'config.json'), encoding='utf-8') as file:
            config = json.load(file)
    except OSError:
        raise UserError(f'{fpath} has no config.json: give the folder of a run, such as data/ppo/ppo_s0') from None
    if env_fn is None and 'env_name' not in config:
        raise UserError('this run was started from Python: call load_policy_and_env(fpath, env_fn=...) for it')
    env = make_env(env_fn or (lambda: gym.make(config['env_name'], render_mode=render_mode)))
    folder, suffix = model_location(fpath, itr)
    if os.path.basename(folder).startswith('tf1_save'):
        return env, load_tf_policy(folder, deterministic)
    path = os.path.join(folder, f'model{suffix}.pt')
    return env, load_pytorch_policy(path, config, env, deterministic, actor_critic)


def model_location(fpath, itr):
    """The folder of a model, and the number in its name: '' in runs that keep only the last."""
    names = os.listdir(fpath) + [f'pyt_save/{name}' for name in listdir(os.path.join(fpath, 'pyt_save'))]
    found = {}
    for name in names:
        match = re.fullmatch(r'pyt_save/model(\d*)\.pt|tf1_save(\d*)(?:\.old)?', name)
        if match:
            found[match[1] or match[2] or ''] = 'pyt_save' if name.startswith('pyt') else f'tf1_save{match[2]}'
    if not found:
        raise UserError(f'{fpath} has no saved model yet: the first is saved at the end of the first epoch')
    suffix = max(found, key=lambda number: int(number or -1)) if itr == 'last' else str(itr)
    if suffix not in found:
        kept = ', '.join(sorted(filter(None, found), key=int)) or 'only the last one; train with --keep_all for more'
        raise UserError(f'there is no model of epoch {suffix} in {fpath}; it has: {kept}')
    return complete_folder(os.path.join(fpath, found[suffix])), suffix


def listdir(folder):
    return os.listdir(folder) if os.path.isdir(folder) else []


def load_pytorch_policy(path, config, env, deterministic, actor_critic=None):
    """get_action(obs) of the weights in a file."""
    import torch
    if actor_critic is None:
        if config.get('actor_critic') != 'MLPActorCritic' or 'algo' not in config:
            raise UserError('this run has networks of its own: call load_policy_and_env(fpath, actor_critic=...)')
        actor_critic = importlib.import_module(config['algo']).MLPActorCritic
    ac_kwargs = dict(config['ac_kwargs'])
    if isinstance(ac_kwargs.get('activation'), str):
        ac_kwargs['activation'] = getattr(torch.nn, ac_kwargs['activation'])
    ac = actor_critic(env.observation_space, env.action_space, **ac_kwargs)
    ac.load_state_dict(torch.load(path, weights_only=True))
    if hasattr(ac, 'v') and deterministic and hasattr(ac, 'policy'):
        policy = ac.policy()
        return lambda obs: policy(obs, np.float32(0))                   # on-policy: the likeliest action has no noise
    if hasattr(ac, 'v'):
        return lambda obs: ac.act(torch.as_tensor(obs))
    return lambda obs: ac.act(torch.as_tensor(obs), deterministic)


def load_tf_policy(folder, deterministic):
    """get_action(obs) of a SavedModel."""
    from common.mpi_tf import quiet, tf
    with quiet():
        sess = tf.Session(graph=tf.Graph())
        with sess.graph.as_default():
            model = restore_tf_graph(sess, folder)
    output = model['mode' if deterministic else 'sample']
    return lambda obs: sess.run(output, {model['obs']: obs[None]})[0]


def run_policy(env, get_action, max_ep_len=None, num_episodes=100, seed=None, frames=None):
    """Run episodes, print each and their summary; the list `frames` collects pictures. Gives returns and lengths."""
    returns, lengths = [], []
    for episode in range(num_episodes):
        (obs, _), ep_ret, ep_len, ended = env.reset(seed=seed if episode == 0 else None), 0, 0, False
        while not ended:
            obs, rew, terminated, truncated, _ = env.step(get_action(obs))
            if frames is not None:
                frames.append(env.render())
            ep_ret, ep_len = ep_ret + rew, ep_len + 1
            ended = terminated or truncated or ep_len == max_ep_len
        returns.append(ep_ret)
        lengths.append(ep_len)
        print(f'Episode {episode:3d}    EpRet {ep_ret:9.3f}    EpLen {ep_len:5d}', flush=True)
    summary = dict(AverageEpRet=np.mean(returns), StdEpRet=np.std(returns), MaxEpRet=np.max(returns),
                   MinEpRet=np.min(returns), EpLen=np.mean(lengths))
    print('-' * 30, *(f'{key:>15} {value:14.3f}' for key, value in summary.items()), '-' * 30, sep='\n')
    return returns, lengths


def write_gif(frames, path, fps):
    """An animation from pictures, by matplotlib."""
    import matplotlib.pyplot as plt
    from matplotlib.animation import PillowWriter
    height, width, _ = frames[0].shape
    figure = plt.figure(figsize=(width / 100, height / 100), dpi=100)
    picture = figure.figimage(frames[0])
    writer = PillowWriter(fps=fps)
    with writer.saving(figure, path, dpi=100):
        for frame in frames:
            picture.set_data(frame)
            writer.grab_frame()
    plt.close(figure)


def has_display():
    return sys.platform in ('darwin', 'win32') or bool(os.getenv('DISPLAY') or os.getenv('WAYLAND_DISPLAY'))


def main(argv=None):
    parser = argparse.ArgumentParser(prog='test_policy', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('fpath', metavar='RUN', help='folder of the run, such as data/ppo_torch/ppo_torch_s0')
    parser.add_argument('-l', '--len', type=int, default=0, help='longest episode (0: as the environment ends it)')
    parser.add_argument('-n', '--episodes', type=int, default=100, help='number of episodes (100)')
    parser.add_argument('-nr', '--norender', action='store_true', help='do not show them')
    parser.add_argument('-i', '--itr', default='last', help='epoch of the model, for runs with --keep_all (last)')
    parser.add_argument('-d', '--deterministic', action='store_true', help='the likeliest action, without randomness')
    parser.add_argument('-s', '--seed', type=int, default=None, help='seed of the episodes and of the actions')
    parser.add_argument('--gif', metavar='FILE', help='write the episodes as an animation')
    args = parser.parse_args(argv)
    with one_line_errors('test_policy'):
        if args.episodes < 1:
            raise UserError(f'--episodes has to be at least 1, not {args.episodes}')
        show = not args.norender and not args.gif
        if show and not has_display():
            print('There is no display, so the episodes are not shown; --gif FILE writes them as an animation.')
            show = False
        if args.seed is not None:
            seed_frameworks(args.seed)
        mode = 'rgb_array' if args.gif else 'human' if show else None
        env, get_action = load_policy_and_env(args.fpath, args.itr, args.deterministic, render_mode=mode)
        frames = [] if args.gif else None
        run_policy(env, get_action, args.len or None, args.episodes, args.seed, frames)
        if args.gif:
            write_gif(frames, args.gif, fps=env.metadata.get('render_fps', 30))
            print(f'Wrote {args.gif}')
        env.close()


def seed_frameworks(seed):
    """Seed what a policy draws from: PyTorch's generator (a TensorFlow graph has its seed in it)."""
    with contextlib.suppress(ImportError):
        import torch
        torch.manual_seed(seed)


if __name__ == '__main__':
    main()
