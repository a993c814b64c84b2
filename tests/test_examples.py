"""The worked examples in examples/: networks for images."""
import importlib
import os
import re
import shlex
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from common.env_tools import make_env
from helpers import SmallEnv, make_args, read_progress
from tools.sections import ROOT

each_example = pytest.mark.parametrize('name', ['cnn_torch', 'cnn_sac_torch', 'cnn_tf1'])


class Spot(SmallEnv):
    """A noisy image with a bright spot in its left or its right half. The action that tells the side is rewarded: one
    of two, or a number from -1 to 1."""
    def __init__(self, continuous=False):
        def reward(obs, action):
            return float(action[0] * self.side if continuous else action == (self.side > 0))
        super().__init__(Box(0, 255, (16, 16), np.uint8), Box(-1, 1, (1,)) if continuous else Discrete(2), 10, reward)

    def draw_obs(self):
        obs = self.np_random.integers(60, size=(16, 16), dtype=np.uint8)
        self.side = self.np_random.choice([-1, 1])
        row, column = self.np_random.integers(13), self.np_random.integers(5) + 8 * (self.side > 0)
        obs[row:row + 3, column:column + 3] = 255
        return obs


gym.register('Spot-v0', Spot)


def load(name, monkeypatch):
    """An example's module, and its training function."""
    monkeypatch.syspath_prepend(ROOT / 'examples')
    module = importlib.import_module(name)
    return module, module.cnn_sac if 'sac' in name else module.cnn_ppo


def first_layers(agent):
    """The weights of each CNN's first convolution, as they are now."""
    cnns = [getattr(agent.ac, key).cnn for key in ('pi', 'v', 'q1', 'q2') if hasattr(agent.ac, key)]
    if hasattr(agent, 'sess'):
        return agent.sess.run([cnn.convs[0].weight for cnn in cnns])
    return [cnn.layers[0].weight.detach().numpy().copy() for cnn in cnns]


@each_example
@pytest.mark.parametrize('shape', [(16, 16), (16, 16, 3), (4, 16, 20)], ids=str)
def test_an_image_of_any_layout_trains_the_convolutions(name, shape, monkeypatch):
    module, train_fn = load(name, monkeypatch)
    env = make_env(lambda: SmallEnv(Box(0, 255, shape, np.uint8), Box(-1, 1, (2,))), off_policy='sac' in name)
    args = make_args(module.sac if 'sac' in name else module.ppo, **vars(make_args(train_fn)))
    agent, rng, n = module.Agent(env, np.random.default_rng(0), args), np.random.default_rng(1), 12
    obs = rng.integers(256, size=(n, *shape)).astype(np.float32)
    act, rew, adv = rng.uniform(-1, 1, (n, 2)).astype(np.float32), rng.random(n, np.float32), rng.random(n, np.float32)
    assert agent.act(obs[0]).shape == (2,) and not np.allclose(agent.act(obs[0]), agent.act(obs[1]), atol=1e-6)
    before = first_layers(agent)
    if 'sac' in name:
        batch = dict(obs=obs, act=act, rew=rew, next_obs=obs[::-1].copy(), terminated=np.zeros(n, np.float32))
        agent.update(batch, rng.standard_normal((2, n, 2), dtype=np.float32))
    else:
        val, logp, last_val = agent.evaluate(obs, act, obs[:3])
        assert val.shape == logp.shape == (n,) and last_val.shape == (3,)
        agent.update(dict(obs=obs, act=act, adv=adv - adv.mean(), ret=rew, logp=logp))
    assert len(before) == (3 if 'sac' in name else 2)
    for old, new in zip(before, first_layers(agent)):
        assert (old != new).mean() > 0.5


def test_channels_first_and_last_are_the_same_image(monkeypatch):
    torch = pytest.importorskip('torch')
    module, _ = load('cnn_torch', monkeypatch)
    last, first = module.CNN((16, 16, 3)), module.CNN((3, 16, 16))
    first.load_state_dict(last.state_dict())
    obs = torch.rand(5, 16, 16, 3) * 255
    np.testing.assert_allclose(last(obs).detach(), first(obs.permute(0, 3, 1, 2)).detach(), atol=1e-5)
    assert 0 < last(obs).max() < 5                                          # 255 is scaled to 1


@each_example
def test_it_learns_where_the_spot_is(name, monkeypatch, tmp_path):
    _, train_fn = load(name, monkeypatch)
    logger_kwargs = dict(output_dir=tmp_path, quiet=True)
    if 'sac' in name:
        train_fn(lambda: Spot(continuous=True), epochs=1, steps_per_epoch=500, start_steps=200, update_after=100,
                 lr=1e-3, alpha=0.02, num_test_episodes=10, logger_kwargs=logger_kwargs)
    else:
        train_fn(Spot, epochs=12, steps_per_epoch=200, pi_lr=1e-3, logger_kwargs=logger_kwargs)
    _, rows = read_progress(tmp_path)
    returns = [float(row['AverageTestEpRet' if 'sac' in name else 'AverageEpRet']) for row in rows]
    assert np.mean(returns[-3:]) > (5 if 'sac' in name else 7)              # by chance: 0, and 5


def test_the_command_line_resuming_and_test_policy_as_of_an_algorithm_file(tmp_path):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / 'tests')]))
    script, run = str(ROOT / 'examples' / 'cnn_torch.py'), tmp_path / 'cnn_torch' / 'cnn_torch_s0'
    train = [script, '--env', 'test_examples:Spot-v0', '--steps_per_epoch', '50', '--data_dir', tmp_path, '--quiet']
    watch = ['-m', 'common.run', 'test_policy', str(run)]
    for command, words in [([*train, '--epochs', '1'], 'Epoch 0'), ([*train, '--epochs', '2', '--resume'], 'Epoch 1'),
                           ([*watch, '--trust', '--file', script, '-n', '2', '-nr'], 'EpRet')]:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0 and words in done.stdout, done.stderr
        hint = re.search('Watch it:  (.*)', done.stdout)                # with all that this run, and this place, need
        assert hint is None or (
            shlex.split(hint[1])[:-1] == [f'PYTHONPATH={ROOT}', 'python', *watch, '--trust', '--file'])
