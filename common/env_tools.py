"""What stands between an environment and the training loops: making it, checks, number types, and resuming its
episode after a stop."""
import ast
import contextlib
import importlib
import os
import random
import re
import sys
import traceback
import warnings

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.spaces.utils import flatten_space
from gymnasium.wrappers import FlattenObservation, RescaleAction, TransformAction

from common.errors import UserError, nearest, printable
from common.logx import DIVERGED, LARGEST

MAX_COMBINATIONS = 1000         # of MultiDiscrete actions: each becomes a choice of its own
# One of gymnasium's own, with no strings or six-digit numbers as arguments: that many frames would fill any memory.
PLAIN_WRAPPER = r'(?!.*(?<![.\w])\d\w{5})(gymnasium\.wrappers(\.\w+)*:)?\w+(\([^\'"]*\))?'


warnings.filterwarnings('ignore', 'overflow encountered in dot')        # TrainingEnv reports it in its own words


# ---- Making it

def make_registered(env_name, env_kwargs=None, wrappers=(), **more_kwargs):
    """gym.make, then the wrappers, in order. Each is a name, or a call with literal arguments, of gymnasium's own
    wrappers or of a module's: 'NormalizeObservation', 'RescaleObservation(-1, 1)', 'my_module:MyWrapper(scale=0.1)'."""
    if not re.fullmatch(r'([^:.][^:]*:)?[^:]+', env_name):
        raise UserError(f'environment {env_name}: that is not a name such as Env-v0 or module:Env-v0')
    if 'mujoco' in str(getattr(gym.registry.get(env_name), 'entry_point', '')):
        hide_mujoco_deprecations()
    try:
        env = gym.make(env_name, **(env_kwargs or {}), **more_kwargs)
    except gym.error.UnregisteredEnv as error:
        hint = nearest(env_name, gym.registry)
        if ':' not in env_name:
            hint += '; if a package registers it, put its module before the name: module:' + env_name
        raise UserError(f'unknown environment {env_name}{hint}') from error
    except Exception as error:                              # from a constructor that somebody else wrote
        name = env_name.rpartition(':')[2]
        family = [other for other in gym.registry if '-v' in name and other.startswith(f'{name.rpartition("-v")[0]}-v')]
        newest = max(family, key=lambda name: gym.registry[name].version or 0, default=name)
        hint = f' ({newest} is its newest version)' if newest != name else ''
        frame = traceback.extract_tb(error.__traceback__)[-1]
        cause = str(error) or f'in line {frame.lineno} of {frame.filename}: {frame.line}'
        cause += if_missing(error, 'give it by --env_kwargs; if it is not a literal, register the environment with it '
                            'in a module of your own (--env module:Env-v0)')
        raise UserError(f'environment {env_name}{hint}: {type(error).__name__}: {cause}') from error
    own = describe(env).get('wrappers', [])                 # those that its constructor adds itself
    for text in wrappers[len(own):] if own and list(wrappers[:len(own)]) == own else wrappers:
        try:
            env = wrap(env, text)
        except Exception as error:
            remedy = if_missing(error, 'give it in parentheses, "FrameStackObservation(4)"; if it is not a literal, '
                                       'write a wrapper of your own (--wrapper module:Name)')
            raise UserError(f'wrapper {text}: {type(error).__name__}: {error}{remedy}') from error
    return env


def if_missing(error, remedy):
    """The remedy, if the error says that an argument is missing."""
    return f'; {remedy}' if isinstance(error, TypeError) and 'missing' in str(error) else ''


def hide_mujoco_deprecations():
    """At every start MuJoCo warns about gymnasium's models, which a user cannot change. Other warnings stay."""
    with contextlib.suppress(Exception):                    # not installed, or a wrong MUJOCO_GL: gym.make reports it
        import mujoco
        mujoco.set_mju_user_warning(lambda text: 'deprecated' in text or print(f'MuJoCo: {text}', file=sys.stderr))


def wrap(env, text):
    """Put the wrapper named by `text` around an environment."""
    name, parenthesis, arguments = text.partition('(')
    module, _, name = name.rpartition(':')
    call = ast.parse(f'f({arguments}' if parenthesis else 'f()', mode='eval').body
    known = importlib.import_module(module or 'gymnasium.wrappers')
    if not hasattr(known, name):
        raise AttributeError(f'module {known.__name__!r} has no attribute {name!r}{nearest(name, dir(known))}')
    wrapper = getattr(known, name)
    if not (isinstance(wrapper, type) and issubclass(wrapper, gym.Wrapper)):
        raise TypeError('this is not a gymnasium.Wrapper')
    try:
        args = [ast.literal_eval(value) for value in call.args]
        keywords = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    except ValueError:
        raise ValueError('its arguments have to be literals, such as numbers and lists; for a function, write a '
                         'wrapper of your own (--wrapper module:Name)') from None
    return wrapper(env, *args, **keywords)


def describe(env):
    """What `make_registered` needs to make the environment again, as far as gymnasium knows; {} if it does not."""
    def as_text(wrapper):
        ast.literal_eval(repr(wrapper.kwargs or {}))                        # ValueError, if it is not all literals
        arguments = ', '.join(f'{key}={value!r}' for key, value in (wrapper.kwargs or {}).items())
        return f'{wrapper.entry_point}({arguments})'
    with contextlib.suppress(AttributeError, ValueError, SyntaxError):      # no spec, or what only code can make again
        return dict(env_name=env.spec.id, env_kwargs=dict(env.spec.kwargs),
                    wrappers=[as_text(wrapper) for wrapper in env.spec.additional_wrappers])
    return {}


def not_plain(env_name='', env_kwargs=None, wrappers=()):
    """What in an environment's description could import a module, reach a file or fill the memory. Some of gymnasium's
    own environments read files that their arguments name, and some of its wrappers write such files."""
    def plain(value):
        if isinstance(value, (list, dict)):
            return all(map(plain, value.values() if isinstance(value, dict) else value))
        return not isinstance(value, str) or re.fullmatch(r'[\w -]*', value)
    return [*([env_name] if ':' in env_name else []),
            *(text for text in wrappers if not re.fullmatch(PLAIN_WRAPPER, text)),
            *(f'{key}={value!r}' for key, value in (env_kwargs or {}).items()
              if not plain(value) or len(repr(value)) > 10_000)]        # larger than a map of 99 by 99


# ---- Making it fit

def make_env(env_fn, off_policy=False):
    """Make an environment that the algorithms can use, or say in one line why they cannot use this one.

    Observations other than arrays are flattened, one-hot where they are choices. MultiDiscrete and MultiBinary actions
    become Discrete ones, one for each combination. On-policy, a Gaussian policy may sample outside the bounds, and the
    environment gets the clipped action. Off-policy, actions are in [-1, 1] in networks, noise and replay buffer;
    RescaleAction maps them to the bounds.
    """
    env = env_fn()
    description, obs_space, act_space = describe(env), env.observation_space, env.action_space
    if not isinstance(obs_space, Box) or obs_space.shape == ():
        if not can_be_flat(obs_space):
            keys = [key for key, part in obs_space.items() if can_be_flat(part)] if isinstance(obs_space, Dict) else []
            some = f' with parts other than {", ".join(keys)}' if keys else ''
            hint = f'keep only those, --wrapper "FilterObservation({keys})", or ' if keys else ''
            raise UserError(f'observations of type {type(obs_space).__name__}{some} are not supported: {hint}put a '
                            'wrapper around the environment that turns them into arrays (--wrapper module:Name)')
        env = FlattenObservation(env)
    if isinstance(act_space, (MultiDiscrete, MultiBinary)) and not off_policy:
        sizes = np.broadcast_to(getattr(act_space, 'nvec', 2), act_space.shape)
        if sizes.prod(dtype=float) > MAX_COMBINATIONS:
            raise UserError(f'{act_space} has {sizes.prod(dtype=float):.0f} combinations, and at most '
                            f'{MAX_COMBINATIONS} are supported: put a wrapper around the environment that offers '
                            'fewer (--wrapper module:Name)')
        start = getattr(act_space, 'start', 0)
        env = TransformAction(env, lambda act: start + np.reshape(np.unravel_index(act, sizes.ravel()), sizes.shape),
                              Discrete(int(sizes.prod())))
        act_space = env.action_space
    if not isinstance(act_space, Box if off_policy else (Box, Discrete)):
        kind, choices = type(act_space).__name__, isinstance(act_space, (Discrete, MultiDiscrete, MultiBinary))
        raise UserError(f'actions of type {kind} are not supported here: ' + (
            f'they must be Box (vpg, trpo and ppo take {kind} ones)' if choices else 'put a wrapper around the '
            f'environment that turns them into Box{"" if off_policy else " or Discrete"} ones (--wrapper module:Name)'))
    if off_policy and not act_space.is_bounded('both'):
        raise UserError('actions without bounds are not supported here, since [-1, 1] is rescaled to the bounds: '
                        'use vpg, trpo or ppo, or put gymnasium.wrappers.ClipAction and bounds of your own around it')
    if off_policy and (act_space.low == act_space.high).any():
        raise UserError('actions with a dimension that has only one value (low equals high) are not supported here, '
                        'since [-1, 1] is rescaled to the bounds: leave that dimension out of the action space')
    if isinstance(act_space, Box):
        bounds = Box(act_space.low.astype(np.float32), act_space.high.astype(np.float32), act_space.shape)
        env = TransformAction(env, lambda act: fit_action(act, act_space), bounds)
        if off_policy:
            env = RescaleAction(env, np.float32(-1), np.float32(1))
    return TrainingEnv(env, description)


def can_be_flat(space):
    """Whether gymnasium can flatten the elements of a space to arrays: not if a part of it is, say, a text."""
    with contextlib.suppress(NotImplementedError):
        return isinstance(flatten_space(space), Box)
    return False


def make_env_and_test_env(env_fn):
    """Two environments for an off-policy algorithm. Where a wrapper normalizes by what it has seen, the second one uses
    what the first has seen, and adds nothing to it."""
    env, test_env = (make_env(env_fn, off_policy=True) for _ in range(2))
    test_env.share_statistics(env)
    return env, test_env


def fit_action(act, space):
    """The action of a Box that is nearest to `act`: within its bounds, and whole where its type is an integer's."""
    act = np.minimum(np.maximum(act, space.low), space.high)
    return (np.rint(act) if np.issubdtype(space.dtype, np.integer) else act).astype(space.dtype, copy=False)


def renew_world(env):
    """Give BipedalWalker a new physical world before its reset, as LunarLander does for itself. It would only clear the
    old one, in which what happens depends on the episodes before, so that none could be repeated."""
    if type(env).__name__.startswith('BipedalWalker') and type(env.world).__name__ == 'b2World':
        env._destroy()
        env.world = type(env.world)()


class TrainingEnv(gym.Wrapper):
    """An environment as the training loops use it: flat actions, float32 observations (uint8 ones stay uint8), finite
    numbers only, episodes that can be resumed.

    Observations are copies, since an environment may reuse its array. A simulator's state cannot be saved in
    general, but its random state at the last reset and the actions since then can: replayed, they lead to the same
    place.
    """

    def __init__(self, env, description):
        super().__init__(env)
        space, obs_space = env.action_space, env.observation_space
        self.description = description                          # for config.json
        self.observation_space = obs_space if obs_space.dtype == np.uint8 else Box(
            obs_space.low.astype(np.float32), obs_space.high.astype(np.float32), obs_space.shape)
        self.obs_shape, self.obs_dtype = self.observation_space.shape, self.observation_space.dtype
        self.discrete, self.act_shape = isinstance(space, Discrete), space.shape
        if self.discrete:
            self.first_action = int(space.start)
        else:
            self.action_space = Box(space.low.ravel(), space.high.ravel())
        self.start, self.actions, self.obs, self.ep_ret, self.steps = None, [], None, 0, 0

    def reset(self, *, seed=None, options=None):
        self.start = dict(seed=seed, random_state=None if seed is not None else self._random_state(),
                          statistics=self.statistics())
        self.actions, self.ep_ret = [], 0
        if seed is not None:                                    # for environments that draw from global generators, too
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
        renew_world(self.unwrapped)
        obs, info = self._returned('reset', ('obs', 'info'), seed=seed, options=options)
        self.obs = self._checked(obs)
        return self.obs, info

    def step(self, action):
        self.steps += 1
        self.actions.append(action)
        if self.discrete:
            action = int(action) + self.first_action
        elif not action.dot(action) < np.inf:                   # False for NaN
            raise UserError(f'the policy gave the action {action} at step {self.steps}: {DIVERGED}')
        else:
            action = action.reshape(self.act_shape)
        obs, rew, terminated, truncated, info = self._returned(
            'step', ('obs', 'reward', 'terminated', 'truncated', 'info'), action)
        self.obs = self._checked(obs)
        try:
            rew = float(rew)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f'the environment gave the reward {printable(rew, 100)}, which is not a number: put a '
                            'wrapper around it that turns it into one (--wrapper module:Name)') from None
        if not abs(rew) < LARGEST:
            raise UserError(f'the environment gave the reward {rew} at step {self.steps}: nothing can be learned from '
                            'it; put a wrapper around the environment that clips or scales it (--wrapper module:Name)')
        self.ep_ret += rew
        return self.obs, rew, terminated, truncated, info

    def _returned(self, method, names, *args, **kwargs):
        """What the environment's reset or step returns, which must have these parts."""
        try:
            values = getattr(self.env, method)(*args, **kwargs)
            if not isinstance(values, tuple) or len(values) != len(names):
                raise TypeError(f'it returned {values!r}')
            return values
        except (AssertionError, TypeError, ValueError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1].filename
            if place != __file__ and not place.startswith(os.path.dirname(gym.__file__)):       # a mistake of its own
                raise
            raise UserError(f"the environment's {method} must return {', '.join(names)}, as gymnasium describes them: "
                            f'{printable(error)}') from None

    def _checked(self, obs):
        """A copy of an observation, of the space's type, once it is known to be what the space promises."""
        try:
            given = np.asarray(obs)
            obs = np.array(given, dtype=self.obs_dtype)
        except (TypeError, ValueError, OverflowError):
            raise UserError(f'the environment gave an observation of type {type(obs).__name__} at step {self.steps}, '
                            f'but its observation_space is {self.observation_space}') from None
        if obs.shape != self.obs_shape:
            raise UserError(f'the environment gave an observation of shape {obs.shape} at step {self.steps}, but its '
                            f'observation_space has {self.obs_shape}')
        if self.obs_dtype == np.uint8 and given.dtype != np.uint8 and not np.array_equal(obs, given):
            raise UserError('the environment gave an observation with numbers other than 0, 1, ..., 255 at step '
                            f'{self.steps}, but its observation_space is of uint8: put a wrapper around it that gives '
                            'the space its true type (--wrapper module:Name)')
        flat = obs.ravel()
        if not (self.obs_dtype == np.uint8 or flat.dot(flat) < LARGEST**2):     # faster than np.isfinite
            worst = flat[np.argmax(np.where(np.isnan(flat), np.inf, np.abs(flat)))]
            raise UserError(f'the environment gave an observation with the value {worst} at step {self.steps}: nothing '
                            'can be learned from it; put a wrapper around it that repairs it (--wrapper module:Name)')
        return obs

    def _random_state(self):
        """The state of the environment's generator; None if it is not the numpy Generator that gymnasium expects."""
        with contextlib.suppress(AttributeError, gym.error.Error):
            return self.unwrapped.np_random.bit_generator.state

    # ---- Resuming after a stop
    def episode_state(self):
        """What `replay_episode` needs to continue the episode in progress."""
        return dict(start=self.start, actions=np.array(self.actions), obs=self.obs, ep_ret=self.ep_ret,
                    statistics=self.statistics(), steps=self.steps)

    def replay_episode(self, state):
        """Replay the saved episode up to where it was saved; returns the observation there, the return and the length
        so far. If the environment does not arrive at the same observation and return, a new episode begins."""
        start = state['start']
        if start['random_state'] is not None:
            self.unwrapped.np_random.bit_generator.state = start['random_state']
        self.set_statistics(start['statistics'])
        self.reset(seed=start['seed'])
        self.start = start
        terminated = truncated = False
        for action in state['actions']:
            if not terminated and not truncated:                # else not even the length is the same
                _, _, terminated, truncated, _ = self.step(action)
        now = self.episode_state()
        if any(not np.array_equal(now[key], state[key]) for key in ('actions', 'obs', 'ep_ret') if key in state):
            print('warning: this environment does not repeat its episodes, so the one in progress cannot be continued; '
                  'the run goes on from a new episode', file=sys.stderr)
            self.set_statistics(state['statistics'])
            self.reset()
        elif start['seed'] is None and self._random_state() == start['random_state']:       # as Atari's, in C++
            print('warning: this environment takes no random numbers from its np_random: if it has others, they may '
                  'differ from those of a run that was not stopped', file=sys.stderr)
        self.steps = state['steps']
        return self.obs, self.ep_ret, len(self.actions)

    # ---- Wrappers that normalize
    def _normalizers(self):
        """Gymnasium's wrappers that keep running statistics, which are attributes of these names."""
        env, found = self.env, []
        while isinstance(env, gym.Wrapper):
            found += [(env, name) for name in ('obs_rms', 'return_rms') if name in vars(env)]
            env = env.env
        return found

    def statistics(self):
        """What normalizing wrappers have seen so far."""
        return [dict(vars(getattr(env, name)), discounted_reward=getattr(env, 'discounted_reward', 0))
                for env, name in self._normalizers()]

    def set_statistics(self, statistics):
        for (env, name), saved in zip(self._normalizers(), statistics):
            env.discounted_reward = saved['discounted_reward']
            vars(getattr(env, name)).update({key: val for key, val in saved.items() if key != 'discounted_reward'})

    def share_statistics(self, other):
        """Normalize by what another environment has seen, and add nothing to it."""
        for (env, name), (other_env, _) in zip(self._normalizers(), other._normalizers()):
            setattr(env, name, getattr(other_env, name))
            env.update_running_mean = False
