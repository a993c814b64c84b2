"""Learning from images: a convolutional network of one's own for PPO, in PyTorch.

It shows all that a network of your own needs: `CNNActorCritic` is made from the same arguments as `MLPActorCritic` in
ppo_torch.py, and its `pi` and `v` take the same observations and return the same things; PPO itself is not touched.
Observations are uint8 images of one or several channels, (height, width, channels) or (channels, height, width); the
buffer keeps them as they are, and the networks get them as float32 numbers from 0 to 255.

Run it, on images that tell the speed too, because each is a stack of four grey ones:
    python examples/cnn_torch.py --env CarRacing-v3 --wrapper GrayscaleObservation 'FrameStackObservation(4)'
    python -m tools.test_policy data/cnn_torch/cnn_torch_s0 --file examples/cnn_torch.py --gif car.gif -n 1

Other algorithms take the CNN in the same way: cnn_sac_torch.py is SAC's. In TensorFlow-1 style: cnn_tf1.py.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))           # the folder of ppo_torch.py and common/
from common.run_utils import command_line, explain_arguments
from ppo_torch import Agent, MLPActorCritic, draw_noise, ppo  # noqa: F401  (tools.test_policy uses the first and third)


class CNN(nn.Module):
    """Images (batch, *shape) -> features (batch, n_features)."""
    n_features = 128

    def __init__(self, shape):
        super().__init__()
        self.channels_last = len(shape) == 3 and shape[-1] < shape[0]       # (96, 96, 3), and not (4, 96, 96)
        self.layers = nn.Sequential(
            nn.LazyConv2d(16, kernel_size=5, stride=3), nn.ReLU(),          # lazy: its inputs are counted when it is
            nn.LazyConv2d(32, kernel_size=3, stride=2), nn.ReLU(),          # called first, which is below
            nn.Flatten(), nn.LazyLinear(self.n_features), nn.ReLU())
        self(torch.zeros(1, *shape))

    def forward(self, obs):
        if obs.dim() == 3:                                                  # one channel, which has no axis
            obs = obs.unsqueeze(1)
        if self.channels_last:
            obs = obs.permute(0, 3, 1, 2)
        return self.layers(obs / 255)


class OnFeatures(nn.Module):
    """A network that sees the CNN's features in place of the image. What it takes beside them, it gets as it is."""
    def __init__(self, cnn, net):
        super().__init__()
        self.cnn, self.net = cnn, net

    def forward(self, obs, *others):
        return self.net(self.cnn(obs), *others)


class CNNActorCritic(nn.Module):
    """The networks of MLPActorCritic, pi and v, each behind a CNN of its own."""
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(64,), activation=nn.Tanh):
        super().__init__()
        features = Box(-np.inf, np.inf, (CNN.n_features,))
        nets = MLPActorCritic(features, action_space, rng, hidden_sizes, activation)
        self.pi = OnFeatures(CNN(observation_space.shape), nets.pi)
        self.v = OnFeatures(CNN(observation_space.shape), nets.v)


@explain_arguments
def cnn_ppo(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=CNNActorCritic,        # the networks
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers
    steps_per_epoch=1000,               # environment steps in an epoch; all their images are one batch
    epochs=100,                         # epochs of experience and update
    pi_lr=3e-4,                         # learning rate of the policy
    vf_lr=1e-3,                         # learning rate of the value function
    train_v_iters=20,                   # gradient steps on the value function in an epoch
    train_pi_iters=20,                  # gradient steps on the policy in an epoch, at most
    max_ep_len=1000,                    # longest episode
    logger_kwargs=dict(),               # arguments of EpochLogger: where the results go
    save_freq=10,                       # epochs from one saved model and checkpoint to the next
):
    """PPO with a CNN, and with defaults for images. An argument of `ppo` that is missing here can be added."""
    return ppo(**locals())


if __name__ == '__main__':
    command_line(cnn_ppo)
