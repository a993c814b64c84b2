"""Watch a trained policy, and measure it.

    python -m common.run test_policy data/ppo_torch/ppo_torch_s0                  in a window, if there is a display
    python -m common.run test_policy data/ppo_torch/ppo_torch_s0 -n 10 -nr -d     ten episodes of the mean action
    python -m common.run test_policy data/ppo_torch/ppo_torch_s0 -n 1 --gif cartpole.gif

The policy acts as it did in training: the algorithm's own file builds its Agent from config.json, and the saved weights
are loaded into it. Nothing from the run's folder is executed, neither code nor a graph: only numbers are read. But
config.json may name modules to import, for an environment or a wrapper: they are imported only if you confirm this with
--env module:Env-v0 or --trust. Give a file of your own, such as a changed copy of ppo_torch.py, with --file.
"""
import importlib.util
import inspect
import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from common.env_tools import make_env, make_registered, not_plain
from common.errors import ArgumentParser, UserError, one_line_errors, printable
from common.run import BOUNDS, NO_FLAGS, ROOT, activation, network_bytes
from common.run_utils import OURS, default_arguments
from common.serialization import atomic_write, check_zip, complete_folder, damage_is_a_user_error, load_tree, read_json
from tools.doctor import check_numbers, runs_inside


def load_policy_and_env(fpath, itr='last', deterministic=False, env_fn=None, actor_critic=None, ac_kwargs=dict(),
                        render_mode=None, seed=None, file=None, env_name=None, trust=False):
    """The environment of the run in folder `fpath`, and its policy as a function get_action(obs).

    A run's folder holds no code. So pass `env_fn` again for an environment that is not registered, `actor_critic` for
    networks of your own, with those of its `ac_kwargs` that are functions of your own, and `file` for an algorithm of
    your own. What config.json names is imported if you `trust` it; `env_name` takes the place of the environment named
    there. `seed` is for the noise of a stochastic policy.
    """
    path = os.path.join(fpath, 'config.json')
    if not os.path.exists(path):
        inside = runs_inside(fpath) or ': give a folder such as data/ppo/ppo_s0'
        raise UserError(f'{fpath} has no config.json of a run{inside}')
    config = read_json(path)
    check_numbers(config, path)
    model, train_fn = model_path(fpath, itr), training_function(config, file, trust)
    defaults, module = default_arguments(train_fn), sys.modules[train_fn.__module__]
    if actor_critic is None and config.get('actor_critic') != defaults['actor_critic'].__name__:
        raise UserError('this run has networks of its own: call load_policy_and_env(fpath, actor_critic=...)')
    off_policy = 'replay_size' in defaults
    env = make_env(env_fn or (lambda: registered_env(fpath, config, render_mode, env_name, trust)), off_policy)
    if env.statistics():                                # what a normalizing wrapper has seen, now frozen
        state = os.path.join(fpath, 'state.npz')
        with damage_is_a_user_error(state):
            env.set_statistics(load_tree(state)['states'][0]['env']['statistics'])
        env.share_statistics(env)

    args = {**defaults, **{key: config[key] for key in defaults if key in config and key not in NO_FLAGS}}
    with damage_is_a_user_error(path):                  # config.json decides how the networks are made
        args.update(actor_critic=actor_critic or defaults['actor_critic'],
                    ac_kwargs={**config['ac_kwargs'], **ac_kwargs})
        if isinstance(args['ac_kwargs'].get('activation'), str):
            args['ac_kwargs']['activation'] = activation(train_fn, args['ac_kwargs']['activation'])
        if network_bytes((0, *args['ac_kwargs'].get('hidden_sizes', ()))) > size_of(model):     # 0: whatever is seen
            raise UserError(f'{model} does not hold the weights of these networks, whose hidden sizes are '
                            f'{printable(args["ac_kwargs"]["hidden_sizes"])}: it is too small')
        agent = module.Agent(env, np.random.default_rng(0), SimpleNamespace(**args))
    load_weights(agent, model)
    if deterministic or 'act_noise' in defaults:        # ddpg's and td3's noise is for exploration only
        return env, agent.act
    rng, space = np.random.default_rng(seed), env.action_space
    if off_policy:
        return env, lambda obs: agent.act(obs, rng.standard_normal(space.shape, dtype=np.float32))
    return env, lambda obs: agent.act(obs, module.draw_noise(rng, 1, space)[0])


def training_function(config, file=None, trust=False):
    """The training function of the run's algorithm, from the file that the user names, or else from the file of that
    name in this repository, and from nowhere else."""
    algo, files = str(config.get('algo')), {path.stem: path for path in ROOT.glob('*.py')}
    if file and not os.path.isfile(file):
        raise UserError(f'there is no file {file}')
    if file:
        sys.path.append(os.path.dirname(os.path.abspath(file)))         # for what it imports from beside it
        spec = importlib.util.spec_from_file_location(Path(file).stem, file)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif algo in files and (trust or re.fullmatch(OURS, algo)) and (
            importlib.util.find_spec(algo).origin == str(files[algo])):
        module = importlib.import_module(algo)
    else:
        raise UserError(f'this run is not of an algorithm file in {ROOT}, but of {printable(algo)}: if you trust '
                        'that, name it with --file FILE.py')
    functions = [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    found = [f for f in functions if {'env_fn', 'logger_kwargs'} <= {*inspect.signature(f).parameters}]
    if len(found) != 1 or not hasattr(module, 'Agent'):
        raise UserError(f'{module.__file__} is not an algorithm file: it has no Agent, or not one training function')
    return found[0]


def load_weights(agent, path):
    """Load the weights in a file of PyTorch's, or those beside a SavedModel, into the agent's networks."""
    tensorflow = hasattr(agent, 'sess')
    with damage_is_a_user_error(path):
        if tensorflow:
            saved, own = load_tree(os.path.join(path, 'weights.npz')), {v.op.name: v for v in agent.ac.variables}
        else:
            import torch
            check_zip(path)
            try:
                saved, own = torch.load(path, weights_only=True), agent.ac.state_dict()
            except pickle.UnpicklingError:
                raise UserError(f'{path} holds more than weights, and is not loaded: that could execute code') from None
        for name, array in own.items():
            shapes = [list(x.shape) if hasattr(x, 'shape') else 'none' for x in (array, saved.get(name))]
            if shapes[0] != shapes[1]:
                raise UserError(f'{path} does not hold the weights of these networks: {name} has the shape {shapes[0]} '
                                f'here, and {shapes[1]} in the file')
            if shapes[0] != 'none' and not np.isfinite(np.asarray(saved[name])).all():
                raise UserError(f'{path} does not hold weights: some numbers in {name} are not finite')
            if tensorflow:
                array.load(saved[name], agent.sess)
        if not tensorflow:
            agent.ac.load_state_dict(saved)


def size_of(path):
    """The bytes in a file, or in all files of a folder."""
    files = Path(path).rglob('*') if os.path.isdir(path) else [path]
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))


def check_trust(fpath, name, kwargs, wrappers, given, trust):
    """A UserError if what config.json names could do harm, see not_plain, unless the user confirms it."""
    names = [name, *(wrappers if isinstance(wrappers, list) else [None])]
    if not (isinstance(kwargs, dict) and all(isinstance(text, str) and text.isprintable() for text in names)):
        raise UserError(f'{fpath}/config.json does not describe an environment: env_name is {printable(name)}, '
                        f'env_kwargs {printable(kwargs)}, wrappers {printable(wrappers)}')
    strange = not_plain('' if name == given else name, kwargs, wrappers)
    if strange and not trust:
        way = f'--env {name} or --trust' if strange == [name] else '--trust'
        raise UserError(f'{fpath}/config.json asks for {printable(", ".join(strange))}, which may import modules, '
                        f'reach files or fill the memory: if you trust it, add {way}')
    for text in names:
        module, found, _ = text.partition(':')
        inside = [Path(place, *module.split('.')).resolve().is_relative_to(Path(fpath).resolve()) for place in sys.path]
        if found and any(inside):
            raise UserError(f'{text} would execute code from the folder of the run')


def registered_env(fpath, config, render_mode, given=None, trust=False):
    """The environment that config.json names, or that is given in its place; but none from a module in the run's own
    folder, which would be code of the run."""
    if not given and 'env_name' not in config:
        raise UserError('its environment is not registered: call load_policy_and_env(fpath, env_fn=...) for this run')
    name = given or config['env_name']
    kwargs, wrappers = config.get('env_kwargs') or {}, config.get('wrappers') or []
    check_trust(fpath, name, kwargs, wrappers, given, trust)
    kwargs = {key: value for key, value in kwargs.items() if key != 'render_mode'}
    if not render_mode:
        return make_registered(name, kwargs, wrappers)
    draw_without_display()
    try:
        return make_registered(name, dict(kwargs, render_mode=render_mode), wrappers)
    except UserError as error:
        if 'render_mode' not in str(error):
            raise
    if render_mode != 'human':
        raise UserError(f'{name} cannot be drawn: its constructor does not take render_mode={render_mode!r}')
    print(f'{name} does not take render_mode={render_mode!r}, so the episodes are not shown.')
    return make_registered(name, kwargs, wrappers)


def model_path(fpath, itr):
    """The file of a PyTorch model, or the folder of a TensorFlow one: that of an epoch, or the last."""
    found = {}                                      # by epoch: '' in runs that keep only the last
    for name in listdir(fpath) + [f'pyt_save/{name}' for name in listdir(os.path.join(fpath, 'pyt_save'))]:
        match = re.fullmatch(r'pyt_save/model(\d*)\.pt|tf1_save(\d*)(?:\.old)?', name)
        if match:
            found[match[1] or match[2] or ''] = complete_folder(os.path.join(fpath, name.removesuffix('.old')))
    if not found:
        raise UserError(f'{fpath} has no saved model yet: the first is saved at the end of the first epoch')
    itr = 'last' if str(itr) == '-1' else itr
    epoch = max(found, key=lambda number: int(number or -1)) if itr == 'last' else str(itr)
    if itr == 'last' and '' in found and os.path.getmtime(found['']) > os.path.getmtime(found[epoch]):
        epoch = ''                                  # a run with --keep_all that was resumed without it
    if epoch not in found:
        kept = ', '.join(sorted(filter(None, found), key=int)) or 'only the last one; train with --keep_all for more'
        raise UserError(f'there is no model of epoch {epoch} in {fpath}; it has: {kept}')
    return found[epoch]


def listdir(folder):
    return os.listdir(folder) if os.path.isdir(folder) else []


def run_policy(env, get_action, max_ep_len=None, num_episodes=100, seed=None, frames=None):
    """Run episodes, print each and a summary; pictures go to the list `frames`. Returns the returns and lengths."""
    returns, lengths = [], []
    for episode in range(num_episodes):
        (obs, _), ep_ret, ep_len, ended = env.reset(seed=seed if episode == 0 else None), 0, 0, False
        while not ended:
            obs, rew, terminated, truncated, _ = env.step(get_action(obs))
            if frames is not None:
                frames.append(picture(env))
            ep_ret, ep_len = ep_ret + rew, ep_len + 1
            ended = terminated or truncated or ep_len == max_ep_len
        returns.append(ep_ret)
        lengths.append(ep_len)
        print(f'Episode {episode:3d}    EpRet {ep_ret:9.3f}    EpLen {ep_len:5d}', flush=True)
    summary = dict(AverageEpRet=np.mean(returns), StdEpRet=np.std(returns), MaxEpRet=np.max(returns),
                   MinEpRet=np.min(returns), EpLen=np.mean(lengths))
    print('-' * 30, *(f'{key:>15} {value:14.3f}' for key, value in summary.items()), '-' * 30, sep='\n')
    return returns, lengths


def draw_without_display():
    """Settings that pygame and MuJoCo read when they are imported: no greeting, and pictures without a window."""
    os.environ.setdefault('PYGAME_HIDE_SUPPORT_PROMPT', '1')
    if has_display():
        return
    os.environ.setdefault('SDL_VIDEODRIVER', 'dummy')
    for backend in ('egl', 'osmesa') if importlib.util.find_spec('mujoco') else ():
        trial = [sys.executable, '-c', 'import mujoco; mujoco.GLContext(8, 8).make_current()']
        if 'MUJOCO_GL' not in os.environ and subprocess.run(trial, env=dict(os.environ, MUJOCO_GL=backend),
                                                            capture_output=True).returncode == 0:
            os.environ['MUJOCO_GL'] = backend


def picture(env):
    """What the environment draws, or one line about why it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')                             # of GLFW: the error says it all
            frame = env.render()
    except Exception as error:                                          # whatever the libraries for drawing raise
        hint = '' if has_display() or 'mujoco' not in sys.modules else (
            '. Without a display, MuJoCo needs EGL (apt-get install libegl1 libgl1-mesa-dri) or OSMesa (libosmesa6); '
            'the variable MUJOCO_GL=egl or osmesa chooses one')
        raise UserError(f'{env.spec.id} cannot be drawn: {type(error).__name__}: {error}{hint}') from error
    if not isinstance(frame, np.ndarray):
        raise UserError(f'{env.spec.id} cannot be drawn: it gives {type(frame).__name__} in place of a picture')
    return frame


def write_gif(frames, path, fps):
    """An animation from pictures, by Pillow, which comes with matplotlib."""
    from PIL import Image
    first, *others = [Image.fromarray(frame) for frame in frames]
    try:
        with atomic_write(path) as file:
            first.save(file, format='GIF', save_all=True, append_images=others, duration=1000 / fps, loop=0)
    except OSError as error:
        raise UserError(f'cannot write {path}: {error.strerror or error}') from None


def has_display():
    return sys.platform in ('darwin', 'win32') or bool(os.getenv('DISPLAY') or os.getenv('WAYLAND_DISPLAY'))


def parse_args(argv):
    parser = ArgumentParser(prog='test_policy', description=__doc__)
    parser.add_argument('fpath', metavar='RUN', help='folder of the run, such as data/ppo_torch/ppo_torch_s0')
    parser.add_argument('-l', '--len', type=int, default=0, help='longest episode (0: as the environment ends it)')
    parser.add_argument('-n', '--episodes', type=int, default=100, help='number of episodes (100)')
    parser.add_argument('-nr', '--norender', action='store_true', help='do not show them')
    parser.add_argument('-i', '--itr', default='last', help='epoch of the model, for runs with --keep_all (-1: last)')
    parser.add_argument('-d', '--deterministic', action='store_true', help='the mean action, or the most likely one')
    parser.add_argument('-s', '--seed', type=int, default=None, help='seed of the environment and of the policy')
    parser.add_argument('--gif', metavar='FILE.gif', help='write the episodes as an animation')
    parser.add_argument('--env', metavar='NAME', help="in place of the run's: CartPole-v1, or module:Env-v0")
    parser.add_argument('--file', metavar='FILE.py', help="the run's algorithm, if it is one of your own")
    parser.add_argument('--trust', action='store_true', help='import the modules that config.json names')
    args = parser.parse_args(argv)
    if args.episodes < 1 or args.len < 0:
        raise UserError('--episodes has to be at least 1, and --len at least 0')
    if args.gif and not args.gif.lower().endswith('.gif'):
        raise UserError(f'--gif {args.gif}: the name has to end in .gif')
    if args.gif and (os.path.isdir(args.gif) or not os.path.isdir(os.path.dirname(args.gif) or '.')):
        raise UserError(f'--gif {args.gif}: that is a folder' if os.path.isdir(args.gif) else
                        f'there is no folder {os.path.dirname(args.gif)} for the animation')
    if args.seed is not None and not 0 <= args.seed <= BOUNDS['seed'][1]:
        raise UserError(f'--seed {args.seed}: expected a whole number from 0 to {BOUNDS["seed"][1]}')
    return args


def main(argv=None):
    with one_line_errors('test_policy'):
        args = parse_args(argv)
        show = not args.norender and not args.gif
        if show and not has_display():
            print('There is no display, so the episodes are not shown; --gif FILE writes them as an animation.')
            show = False
        mode = 'rgb_array' if args.gif else 'human' if show else None
        env, get_action = load_policy_and_env(args.fpath, args.itr, args.deterministic, render_mode=mode,
                                              seed=args.seed, file=args.file, env_name=args.env, trust=args.trust)
        frames = [] if args.gif else None
        try:
            run_policy(env, get_action, args.len or None, args.episodes, args.seed, frames)
        except (UserError, BrokenPipeError):
            raise
        except Exception as error:              # no library for drawing, say, or wrong arguments in config.json
            raise UserError(f'the environment failed: {type(error).__name__}: {error}') from error
        if args.gif:
            write_gif(frames, args.gif, fps=env.metadata.get('render_fps') or 30)
            print(f'Wrote {args.gif}')
        env.close()


if __name__ == '__main__':
    main()
