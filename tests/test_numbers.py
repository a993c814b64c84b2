"""Numbers gone bad: a run ends at once, says where and at which step, and keeps what it saved when they were good."""
import importlib
import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from common.env_tools import make_env, make_registered
from common.errors import UserError
from common.logx import EpochLogger
from helpers import SmallEnv, read_progress

FRAMEWORKS = [framework for framework, module in (('torch', 'torch'), ('tf1', 'tensorflow'))
              if importlib.util.find_spec(module)]
ON_POLICY = dict(ac_kwargs=dict(hidden_sizes=(16,)), steps_per_epoch=40, save_freq=1, max_ep_len=15)
OFF_POLICY = dict(ON_POLICY, replay_size=1000, batch_size=16, start_steps=30, update_after=20, update_every=10,
                  num_test_episodes=1)
ARGUMENTS = dict(vpg=ON_POLICY, ppo=ON_POLICY, trpo=ON_POLICY, ddpg=OFF_POLICY, td3=OFF_POLICY, sac=OFF_POLICY)
RATES = dict(vpg=['pi_lr', 'vf_lr'], ppo=['pi_lr', 'vf_lr'], trpo=['vf_lr'], ddpg=['q_lr'], td3=['q_lr'], sac=['lr'])
each_file = pytest.mark.parametrize('name', [f'{algo}_{framework}' for framework in FRAMEWORKS for algo in ARGUMENTS])


class Faulty(SmallEnv):
    """Gives `bad` as reward or in the observation from its step number `when` on, counted over all episodes."""
    def __init__(self, when=np.inf, reward=None, obs=None):
        super().__init__(Box(-1, 1, (3,)), Box(-1, 1, (2,)), length=30)
        self.when, self.bad_reward, self.bad_obs, self.steps = when, reward, obs, 0

    def step(self, action):
        obs, rew, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps >= self.when:
            rew = rew if self.bad_reward is None else self.bad_reward
            obs = obs if self.bad_obs is None else np.float32([0, self.bad_obs, 0])
        return obs, rew, terminated, truncated, info


def train(name, env_fn, folder, epochs=3, **changes):
    algo = name.split('_')[0]
    return getattr(importlib.import_module(name), algo)(
        env_fn, epochs=epochs, **{**ARGUMENTS[algo], 'logger_kwargs': dict(output_dir=str(folder)), **changes})


def table(folder):
    """The rows of a run, without its Time column."""
    return [{**row, 'Time': ''} for row in read_progress(folder)[1]]


def kept(folder):
    """The files of a run that must survive: the model and the checkpoint."""
    names = [path for path in sorted(folder.rglob('*')) if path.is_file() and path.parent.name != 'replay'
             and path.name not in ('.lock', 'progress.txt', 'config.json', 'fingerprint.pb')]
    return {path.relative_to(folder): path.read_bytes() for path in names}


@pytest.mark.parametrize(('name', 'fault'), [
    *((f'{algo}_{framework}', dict(reward=np.nan)) for framework in FRAMEWORKS for algo in ARGUMENTS),
    *((f'{algo}_{FRAMEWORKS[0]}', fault) for algo in ('ppo', 'sac') for fault in (
        dict(reward=-np.inf), dict(reward=1e30), dict(obs=np.nan), dict(obs=-np.inf), dict(obs=1e30)))])
def test_bad_numbers_from_the_environment_end_the_run(name, fault, tmp_path):
    """At step 95, in the third epoch: the table, model and checkpoint of the second stay, and the run can go on."""
    what = 'reward' if 'reward' in fault else 'observation'
    with pytest.raises(UserError, match=f'the environment gave .*{what}.* at step 95: nothing can be learned'):
        train(name, lambda: Faulty(when=95, **fault), tmp_path)
    assert len(read_progress(tmp_path)[1]) == 2 and len(kept(tmp_path)) >= 2
    train(name, Faulty, tmp_path, logger_kwargs=dict(output_dir=str(tmp_path), resume=True))
    assert len(read_progress(tmp_path)[1]) == 3


@pytest.mark.parametrize(('name', 'rate'), [(f'{algo}_{framework}', rate) for framework in FRAMEWORKS
                                            for algo, rates in RATES.items() for rate in rates])
def test_a_learning_rate_far_too_large_ends_the_run(name, rate, tmp_path):
    """And what it has ruined is not saved. (The pi_lr of DDPG and TD3 only makes tanh saturate: all stays finite.)"""
    with pytest.raises(UserError, match=r'at step \d+: the run has diverged'):
        train(name, Faulty, tmp_path, epochs=4, **{rate: 1e12})
    assert not kept(tmp_path)


@each_file
def test_nan_in_a_parameter_ends_the_run(name, tmp_path, monkeypatch):
    """Even if it appears in the very last update, after which nothing is computed from it but what is saved."""
    module = importlib.import_module(name)
    get_state = module.Agent.get_state

    def broken(agent):
        state = get_state(agent)
        if torch_state := state.get('ac'):
            next(iter(torch_state.values())).view(-1)[0] = float('nan')
        else:
            next(array for array in state.values() if array.dtype == np.float32)[...] = np.nan
        return state
    train(name, Faulty, tmp_path, epochs=1)
    saved = kept(tmp_path)
    monkeypatch.setattr(module.Agent, 'get_state', broken)
    with pytest.raises(UserError, match=r'^the agent, .* is not finite at step 80: the run has diverged'):
        train(name, Faulty, tmp_path, epochs=2, logger_kwargs=dict(output_dir=str(tmp_path), resume=True))
    assert kept(tmp_path) == saved


def test_what_is_logged_must_be_finite(tmp_path):
    logger = EpochLogger(tmp_path)
    logger.store(A=1, B=np.ones(3), C=[], D=True, E=np.float32(-1e17))
    for bad in (np.nan, np.inf, -1e19, np.array([0, np.nan]), np.float32(np.inf)):
        with pytest.raises(UserError, match='^Loss is .* at step 0: the run has diverged'):
            logger.store(Loss=bad)


def test_an_action_that_is_nan_is_the_policys_fault():
    env = make_env(Faulty)
    env.reset(seed=0)
    with pytest.raises(UserError, match=r'the policy gave the action .* at step 1: the run has diverged'):
        env.step(np.float32([0, np.nan]))


# %% Environments that do not keep what their spaces promise
class Breaking(SmallEnv):
    """Changes what a step returns."""
    def __init__(self, change, observation_space=Box(-1, 1, (3,))):
        super().__init__(observation_space, Discrete(2))
        self.change = change

    def step(self, action):
        return self.change(*super().step(action))


@pytest.mark.parametrize(('change', 'words'), [
    (lambda obs, *rest: (obs[:2], *rest), r'an observation of shape \(2,\) at step 1, but its observation_space has'),
    (lambda obs, *rest: (obs[:, None], *rest), r'an observation of shape \(3, 1\) at step 1'),
    (lambda obs, *rest: (dict(a=obs), *rest), 'an observation of type dict at step 1, but its observation_space is'),
    (lambda obs, *rest: ('three', *rest), 'an observation of type str at step 1'),
    (lambda obs, *rest: (None, *rest), r'an observation of shape \(\) at step 1'),
    (lambda obs, rew, *rest: (obs, None, *rest), 'gave the reward None, which is not a number'),
    (lambda obs, rew, *rest: (obs, 'much', *rest), 'gave the reward much, which is not a number'),
    (lambda obs, rew, *rest: (obs, 10**400, *rest), 'gave the reward 1000.* which is not a number'),
    (lambda obs, rew, terminated, truncated, info: (obs, rew, terminated, info), 'step must return obs, reward, term'),
    (lambda *rest: None, 'step must return obs, reward, terminated, truncated, info')])
def test_a_wrong_type_or_shape_is_named(change, words):
    env = make_env(lambda: Breaking(change))
    env.reset(seed=0)
    with pytest.raises(UserError, match=words):
        env.step(np.int64(1))


@pytest.mark.parametrize('pixel', [0.7, -1, 256, np.nan])
def test_pixels_that_are_no_bytes_are_not_cut_off(pixel):
    env = make_env(lambda: Breaking(lambda obs, *rest: ([pixel], *rest), Box(0, 255, (1,), np.uint8)))
    env.reset(seed=0)
    with pytest.raises(UserError, match='with numbers other than 0, 1, ..., 255 at step 1, but its observation_space'):
        env.step(np.int64(1))


@pytest.mark.parametrize('returned', [np.zeros(3), np.zeros(2), None])
def test_reset_as_gym_had_it_is_named(returned, monkeypatch):
    monkeypatch.setattr(SmallEnv, 'reset', lambda env, *, seed=None, options=None: returned)
    with pytest.raises(UserError, match='reset must return obs, info, as gymnasium describes them'):
        make_env(SmallEnv).reset(seed=0)


def test_mistakes_inside_of_an_environment_keep_their_traceback(monkeypatch):
    monkeypatch.setattr(SmallEnv, 'reset', lambda env, *, seed=None, options=None: ({}['missing'], int('x')))
    with pytest.raises(KeyError):
        make_env(SmallEnv).reset(seed=0)
    monkeypatch.setattr(SmallEnv, 'reset', lambda env, *, seed=None, options=None: int('x'))
    with pytest.raises(ValueError, match='invalid literal'):
        make_env(SmallEnv).reset(seed=0)


def test_wrong_shapes_under_gymnasiums_own_wrappers(monkeypatch):
    """gym.make puts a checker and a time limit around an environment, which unpack what it returns."""
    gym.register('Breaking-v0', Breaking, max_episode_steps=9, kwargs=dict(change=lambda obs, *rest: (obs, *rest[1:])))
    monkeypatch.setitem(gym.registry, 'Breaking-v0', gym.registry['Breaking-v0'])
    env = make_env(lambda: make_registered('Breaking-v0'))
    env.reset(seed=0)
    with pytest.raises(UserError, match='step must return obs, reward, terminated, truncated, info'):
        env.step(np.int64(1))


def test_images_stay_uint8_and_are_told_from_floats():
    env = make_env(lambda: SmallEnv(Box(0, 255, (4, 4, 3), np.uint8)))
    obs, _ = env.reset(seed=0)
    assert obs.dtype == env.observation_space.dtype == np.uint8
    floats = make_env(lambda: SmallEnv(Box(-1, 1, (4,), np.float64)))
    assert floats.reset(seed=0)[0].dtype == floats.observation_space.dtype == np.float32
    whole = make_env(lambda: SmallEnv(Box(-100, 100, (4,), np.int64)))
    assert whole.reset(seed=0)[0].dtype == whole.observation_space.dtype == np.float32


@each_file
def test_buffers_keep_images_as_they_are(name, tmp_path):
    """One byte for a pixel, in memory and in the checkpoint; networks get float32; the run resumes exactly."""
    arguments = ARGUMENTS[name.split('_')[0]]
    pixels, action = Box(0, 255, (6, 5, 1), np.uint8), Box(-1, 1, (2,))
    module = importlib.import_module(name)
    if arguments is OFF_POLICY:
        buf = module.ReplayBuffer(pixels, action, 10)
        assert buf.data['obs'].dtype == buf.data['next_obs'].dtype == np.uint8 and buf.data.itemsize < 100
        buf.store(np.full((6, 5, 1), 200, np.uint8), np.zeros(2), 1, np.full((6, 5, 1), 7, np.uint8), False)
        batch = buf.sample_batch(np.random.default_rng(0), 3)
        assert batch['obs'].dtype == np.float32 and (batch['obs'] == 200).all() and (batch['next_obs'] == 7).all()
    else:
        buffer = next(value for key, value in vars(module).items() if key.endswith('Buffer'))
        assert buffer(pixels, action, 10, 0.9, 0.9).obs.dtype == np.uint8
    make = lambda: SmallEnv(pixels, action, length=30)
    train(name, make, tmp_path / 'whole', epochs=4)
    train(name, make, tmp_path / 'parts', epochs=2)
    train(name, make, tmp_path / 'parts', epochs=4,
          logger_kwargs=dict(output_dir=str(tmp_path / 'parts'), resume=True))
    assert table(tmp_path / 'whole') == table(tmp_path / 'parts') and len(table(tmp_path / 'whole')) == 4


class Plain(SmallEnv):
    """Float32 observations, the reward a float, an empty info."""
    def __init__(self, dtype=np.float32, whole=False):
        super().__init__(Box(-9, 9, (3,), dtype), Box(-1, 1, (2,)), 12, lambda obs, act: int(act[0] > act[1]))
        self.whole = whole

    def draw_obs(self):
        obs = self.np_random.uniform(-9, 9, 3)
        return (np.rint(obs) if self.whole else obs).astype(self.observation_space.dtype)


class Odd(Plain):
    """The same, in the types that users' environments have, and with whatever they put into info."""
    infos = (None, [], 'text', {1: object(), 'episode': 'text', 'final_observation': (), 'f': print},
             {'TimeLimit.truncated': True, 'terminal_observation': np.full(3, np.nan), 'terminated': True})
    numbers = np.float32, np.int64, np.array, bool, float

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        return obs, self.infos[len(self.seeds) % 5]

    def step(self, action):
        obs, rew, terminated, truncated, _ = super().step(action)
        return obs, self.numbers[self.t % 5](rew), np.bool_(terminated), int(truncated), self.infos[-self.t % 5]


@each_file
@pytest.mark.parametrize(('dtype', 'whole'), [(np.float64, False), (np.int64, True)])
def test_odd_environments_learn_as_plain_ones(name, dtype, whole, tmp_path):
    """Of several time limits the shortest counts; types and infos change nothing; the run resumes exactly."""
    def odd():
        return gym.wrappers.TimeLimit(gym.wrappers.TimeLimit(gym.wrappers.TimeLimit(Odd(dtype, whole), 9), 7), 11)
    train(name, lambda: Plain(whole=whole), tmp_path / 'plain', epochs=4, max_ep_len=7)
    train(name, odd, tmp_path / 'odd', epochs=2)
    train(name, odd, tmp_path / 'odd', epochs=4, logger_kwargs=dict(output_dir=str(tmp_path / 'odd'), resume=True))
    assert table(tmp_path / 'odd') == table(tmp_path / 'plain') and len(table(tmp_path / 'odd')) == 4
