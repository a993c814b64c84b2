"""What stands between an environment and the training loops: checks, number types, and going on after a stop."""
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FlattenObservation, RescaleAction, TransformAction

from common.errors import UserError


def make_env(env_fn, off_policy=False):
    """Make an environment that the algorithms can use, or say in one line why they cannot use this one.

    On-policy, a Gaussian policy may sample outside of the bounds, and the environment gets the action clipped.
    Off-policy, actions live in [-1, 1] in networks, noise and replay buffer; RescaleAction brings them to the bounds.
    """
    env = env_fn()
    obs_space, act_space = env.observation_space, env.action_space
    if not isinstance(obs_space, (Box, Discrete)):
        raise UserError(f'observations of type {type(obs_space).__name__} are not supported: they must be Box or '
                        'Discrete (gymnasium.wrappers.FlattenObservation turns Dict and Tuple into Box)')
    if not isinstance(act_space, Box if off_policy else (Box, Discrete)):
        raise UserError(f'actions of type {type(act_space).__name__} are not supported here: they must be '
                        + ('Box (vpg, trpo and ppo take Discrete ones)' if off_policy else 'Box or Discrete'))
    if off_policy and not act_space.is_bounded('both'):
        raise UserError('actions without bounds are not supported here, since [-1, 1] is rescaled to the bounds: '
                        'use vpg, trpo or ppo, or put gymnasium.wrappers.ClipAction and bounds of your own around it')
    if off_policy and (act_space.low == act_space.high).any():
        raise UserError('actions with a dimension that has only one value (low equals high) are not supported here, '
                        'since [-1, 1] is rescaled to the bounds: leave that dimension out of the action space')
    if isinstance(obs_space, Discrete) or obs_space.shape == ():
        env = FlattenObservation(env)                   # one-hot; and a lone number as an array of one
    if isinstance(act_space, Box):
        bounds = Box(act_space.low.astype(np.float32), act_space.high.astype(np.float32), act_space.shape)
        env = TransformAction(env, lambda act: fit_action(act, act_space), bounds)
        if off_policy:
            env = RescaleAction(env, np.float32(-1), np.float32(1))
    return TrainingEnv(env)


def fit_action(act, space):
    """The action of a Box that is nearest to `act`: within its bounds, and whole where its type is an integer's."""
    act = np.minimum(np.maximum(act, space.low), space.high)
    return (np.rint(act) if np.issubdtype(space.dtype, np.integer) else act).astype(space.dtype, copy=False)


class TrainingEnv(gym.Wrapper):
    """An environment as the training loops use it: flat actions, float32 observations, episodes that can be resumed.

    Observations are copies, since an environment may use its array again. A simulator's state cannot be saved in
    general, but its random state at the last reset and the actions since then can: replayed, they lead to the same
    place.
    """

    def __init__(self, env):
        super().__init__(env)
        space = env.action_space
        self.discrete, self.act_shape = isinstance(space, Discrete), space.shape
        if self.discrete:
            self.first_action = int(space.start)
        else:
            self.action_space = Box(space.low.ravel(), space.high.ravel())
        self.seed_given, self.random_state, self.actions = None, None, []

    def reset(self, *, seed=None, options=None):
        self.seed_given = seed
        self.random_state = None if seed is not None else self.unwrapped.np_random.bit_generator.state
        self.actions = []
        obs, info = self.env.reset(seed=seed, options=options)
        return np.array(obs, dtype=np.float32), info

    def step(self, action):
        self.actions.append(action)
        action = int(action) + self.first_action if self.discrete else action.reshape(self.act_shape)
        obs, rew, terminated, truncated, info = self.env.step(action)
        return np.array(obs, dtype=np.float32), float(rew), terminated, truncated, info

    def episode_state(self):
        """What `replay_episode` needs to continue the episode under way."""
        return dict(seed=self.seed_given, random_state=self.random_state, actions=np.array(self.actions))

    def replay_episode(self, state):
        """Replay the saved episode up to where it was saved; returns the observation there."""
        if state['random_state'] is not None:
            self.unwrapped.np_random.bit_generator.state = state['random_state']
        obs, _ = self.reset(seed=state['seed'])
        self.random_state = state['random_state']
        for action in state['actions']:
            obs, *_ = self.step(action)
        return obs
