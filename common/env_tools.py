"""What stands between an environment and the training loops: checks, number types, and going on after a stop."""
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from common.mpi_tools import UserError


def make_env(env_fn, discrete_actions=True):
    """Make an environment that the algorithms can use, or say in one line why they cannot use this one."""
    env = env_fn()
    obs_space, act_space = env.observation_space, env.action_space
    supported = 'Box or Discrete' if discrete_actions else 'Box'
    if not isinstance(obs_space, (Box, Discrete)):
        raise UserError(f'observations of type {type(obs_space).__name__} are not supported: they must be Box or '
                        'Discrete (gymnasium.wrappers.FlattenObservation turns Dict and Tuple into Box)')
    if not isinstance(act_space, (Box, Discrete) if discrete_actions else Box):
        raise UserError(f'actions of type {type(act_space).__name__} are not supported here: they must be {supported}'
                        + ('' if discrete_actions else ' (vpg, trpo and ppo take Discrete ones)'))
    if not discrete_actions and not act_space.is_bounded('both'):
        raise UserError('actions without bounds are not supported here, since noise and tanh are scaled to the bounds: '
                        'use vpg, trpo or ppo, or gymnasium.wrappers.RescaleAction')
    if not discrete_actions and (act_space.low == act_space.high).any():
        raise UserError('actions with a dimension that has only one value (low equals high) are not supported here, '
                        'since noise and tanh are scaled to the bounds: leave that dimension out of the action space')
    if isinstance(obs_space, Discrete) or obs_space.shape == ():
        env = gym.wrappers.FlattenObservation(env)                  # one-hot; and a lone number as an array of one
    return TrainingEnv(env)


class TrainingEnv(gym.Wrapper):
    """An environment as the training loops use it.

    Observations come out as float32, and as copies, since an environment may use its array again. Actions are brought
    to the space's shape and clipped to its bounds on their way in, so that a Gaussian policy may sample outside of
    them. The episode under way can be saved and continued: the state of a simulator cannot be saved in general, but
    its random state at the last reset and the actions since then can, and played again they lead to the same place.
    """

    def __init__(self, env):
        super().__init__(env)
        space = env.action_space
        self.discrete = isinstance(space, Discrete)
        if self.discrete:
            self.first_action = int(space.start)
        else:
            self.act_shape, self.act_dtype, self.low, self.high = space.shape, space.dtype, space.low, space.high
            self.whole_numbers = np.issubdtype(space.dtype, np.integer)
            self.action_space = Box(*(np.float32(bound.ravel()) for bound in (space.low, space.high)))
        self.seed_given, self.random_state, self.actions = None, None, []

    def reset(self, *, seed=None, options=None):
        self.seed_given = seed
        self.random_state = None if seed is not None else self.unwrapped.np_random.bit_generator.state
        self.actions = []
        obs, info = self.env.reset(seed=seed, options=options)
        return np.array(obs, dtype=np.float32), info

    def step(self, action):
        self.actions.append(action)
        if self.discrete:
            action = int(action) + self.first_action
        else:
            action = np.minimum(np.maximum(action.reshape(self.act_shape), self.low), self.high)
            action = np.rint(action) if self.whole_numbers else action
            action = action.astype(self.act_dtype, copy=False)
        obs, rew, terminated, truncated, info = self.env.step(action)
        return np.array(obs, dtype=np.float32), float(rew), terminated, truncated, info

    def get_state(self):
        """What `set_state` needs to continue the episode under way."""
        return dict(seed=self.seed_given, random_state=self.random_state, actions=np.array(self.actions))

    def set_state(self, state):
        """Play the saved episode again up to where it was saved; returns the observation there."""
        if state['random_state'] is not None:
            self.unwrapped.np_random.bit_generator.state = state['random_state']
        obs, _ = self.reset(seed=state['seed'])
        self.random_state = state['random_state']
        for action in state['actions']:
            obs, *_ = self.step(action)
        return obs
