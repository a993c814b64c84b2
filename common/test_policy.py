"""Watch a trained policy, and measure it.

    python -m common.run test_policy data/ppo_torch/ppo_torch_s0                  in a window, if there is a display
    python -m common.run test_policy data/ppo_torch/ppo_torch_s0 -n 10 -nr -d     ten, not shown, without randomness
    python -m common.run test_policy data/ppo_torch/ppo_torch_s0 -n 1 --gif cartpole.gif

Loading a model executes nothing from the run's folder: it is only numbers (weights, or a SavedModel), and the networks
of a PyTorch run are built again from config.json by the algorithm's own file, here.
"""
import argparse
import importlib
import json
import os
import pickle
import re
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

from common.env_tools import make_env
from common.logx import restore_tf_graph
from common.mpi_tools import UserError
from common.run import ROOT, nearest
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
    except (OSError, ValueError):
        raise UserError(f'{fpath} has no config.json of a run: give a folder such as data/ppo/ppo_s0') from None
    path = model_path(fpath, itr)
    env = make_env(env_fn) if env_fn else load_env(fpath, config, render_mode)
    if path.endswith('.pt'):
        return env, load_pytorch_policy(path, config, env, deterministic, actor_critic)
    return env, load_tf_policy(path, deterministic)


def load_env(fpath, config, render_mode):
    """The environment that config.json names; but none of a module in the run's own folder, which would be its code."""
    if 'env_name' not in config:
        raise UserError('this run was started from Python: call load_policy_and_env(fpath, env_fn=...) for it')
    name = config['env_name']
    module, found, _ = name.rpartition(':')
    inside = [Path(place, *module.split('.')).resolve().is_relative_to(Path(fpath).resolve()) for place in sys.path]
    if found and any(inside):
        raise UserError(f'{name} would execute code from the folder of the run')
    try:
        return make_env(lambda: gym.make(name, render_mode=render_mode))
    except (gym.error.Error, ImportError) as error:
        raise UserError(f'cannot make {name}: {error}') from None


def model_path(fpath, itr):
    """The file of a PyTorch model, or the folder of a TensorFlow one: that of an epoch, or the last."""
    found = {}                                      # by epoch: '' in runs that keep only the last
    for name in listdir(fpath) + [f'pyt_save/{name}' for name in listdir(os.path.join(fpath, 'pyt_save'))]:
        match = re.fullmatch(r'pyt_save/model(\d*)\.pt|tf1_save(\d*)(?:\.old)?', name)
        if match:
            found[match[1] or match[2] or ''] = complete_folder(os.path.join(fpath, name.removesuffix('.old')))
    if not found:
        raise UserError(f'{fpath} has no saved model yet: the first is saved at the end of the first epoch')
    epoch = max(found, key=lambda number: int(number or -1)) if itr == 'last' else str(itr)
    if itr == 'last' and '' in found and os.path.getmtime(found['']) > os.path.getmtime(found[epoch]):
        epoch = ''                                  # a run with --keep_all that was resumed without it
    if epoch not in found:
        kept = ', '.join(sorted(filter(None, found), key=int)) or 'only the last one; train with --keep_all for more'
        raise UserError(f'there is no model of epoch {epoch} in {fpath}; it has: {kept}')
    return found[epoch]


def listdir(folder):
    return os.listdir(folder) if os.path.isdir(folder) else []


def load_pytorch_policy(path, config, env, deterministic, actor_critic=None):
    """get_action(obs) of the weights in a file."""
    import torch
    if actor_critic is None:
        files = {file.stem for file in ROOT.glob('*.py')}
        if config.get('actor_critic') != 'MLPActorCritic' or config.get('algo') not in files:
            raise UserError('this run has networks of its own: call load_policy_and_env(fpath, actor_critic=...)')
        actor_critic = importlib.import_module(config['algo']).MLPActorCritic
    ac_kwargs = dict(config['ac_kwargs'])
    if isinstance(ac_kwargs.get('activation'), str):
        ac_kwargs['activation'] = getattr(torch.nn, ac_kwargs['activation'])
    ac = actor_critic(env.observation_space, env.action_space, **ac_kwargs)
    try:
        ac.load_state_dict(torch.load(path, weights_only=True))
    except pickle.UnpicklingError:
        raise UserError(f'{path} holds more than weights, and is not loaded: that could execute code') from None
    except (RuntimeError, TypeError, EOFError) as error:
        raise UserError(f'{path} does not hold the weights of these networks: {error}') from None
    if not hasattr(ac, 'v'):
        return lambda obs: ac.act(torch.as_tensor(obs), deterministic)
    if not deterministic:
        return lambda obs: ac.act(torch.as_tensor(obs))
    if not hasattr(ac, 'policy'):
        raise UserError('these networks of your own have no deterministic action: leave -d out')
    policy = ac.policy()
    return lambda obs: policy(obs, np.float32(0))                       # on-policy: the likeliest action has no noise


def load_tf_policy(folder, deterministic):
    """get_action(obs) of a SavedModel."""
    from common.mpi_tf import quiet, tf
    try:
        with quiet():
            sess = tf.Session(graph=tf.Graph())
            with sess.graph.as_default():
                model = restore_tf_graph(sess, folder)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f'{folder} is not a complete model: {error}') from None
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
    """An animation from pictures, by Pillow, which comes with matplotlib."""
    from PIL import Image
    first, *others = [Image.fromarray(frame) for frame in frames]
    first.save(path, format='GIF', save_all=True, append_images=others, duration=1000 / fps, loop=0)


def has_display():
    return sys.platform in ('darwin', 'win32') or bool(os.getenv('DISPLAY') or os.getenv('WAYLAND_DISPLAY'))


def parse_args(argv):
    def fail(message):
        raise UserError(message)
    parser = argparse.ArgumentParser(prog='test_policy', description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = fail
    parser.add_argument('fpath', metavar='RUN', help='folder of the run, such as data/ppo_torch/ppo_torch_s0')
    parser.add_argument('-l', '--len', type=int, default=0, help='longest episode (0: as the environment ends it)')
    parser.add_argument('-n', '--episodes', type=int, default=100, help='number of episodes (100)')
    parser.add_argument('-nr', '--norender', action='store_true', help='do not show them')
    parser.add_argument('-i', '--itr', default='last', help='epoch of the model, for runs with --keep_all (last)')
    parser.add_argument('-d', '--deterministic', action='store_true', help='the likeliest action, without randomness')
    parser.add_argument('-s', '--seed', type=int, default=None, help='seed of the episodes and of the actions')
    parser.add_argument('--gif', metavar='FILE', help='write the episodes as an animation')
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise UserError(f'unknown argument {unknown[0]}{nearest(unknown[0], parser._option_string_actions)}')
    if args.episodes < 1 or args.len < 0:
        raise UserError('--episodes has to be at least 1, and --len at least 0')
    if args.gif and not os.path.isdir(os.path.dirname(args.gif) or '.'):
        raise UserError(f'there is no folder {os.path.dirname(args.gif)} for the animation')
    return args


def main(argv=None):
    with one_line_errors('test_policy'):
        args = parse_args(argv)
        show = not args.norender and not args.gif
        if show and not has_display():
            print('There is no display, so the episodes are not shown; --gif FILE writes them as an animation.')
            show = False
        mode = 'rgb_array' if args.gif else 'human' if show else None
        env, get_action = load_policy_and_env(args.fpath, args.itr, args.deterministic, render_mode=mode)
        if args.seed is not None and 'torch' in sys.modules:            # a TensorFlow graph has its seed in it
            sys.modules['torch'].manual_seed(args.seed)
        frames = [] if args.gif else None
        try:
            run_policy(env, get_action, args.len or None, args.episodes, args.seed, frames)
        except gym.error.Error as error:                                # no library for drawing, say
            raise UserError(f'the environment failed: {error}') from None
        if args.gif:
            write_gif(frames, args.gif, fps=env.metadata.get('render_fps', 30))
            print(f'Wrote {args.gif}')
        env.close()


if __name__ == '__main__':
    main()
