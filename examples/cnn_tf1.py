"""Learning from images: a convolutional network of one's own for PPO, in TensorFlow-1 style.

The twin of cnn_torch.py, which explains it. Here convolutions take (height, width, channels), and weights are drawn
from `rng`, so that nothing else has to be seeded.

Run it:
    python examples/cnn_tf1.py --env CarRacing-v3 --wrapper GrayscaleObservation 'FrameStackObservation(4)'
"""
import sys
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box

sys.path.append(str(Path(__file__).resolve().parents[1]))           # the folder of ppo_tf1.py and common/
from common.mpi_tf import tf
from common.run_utils import command_line, explain_arguments
from ppo_tf1 import Agent, Linear, MLPActorCritic, draw_noise, flatten, ppo  # noqa: F401  (tools.test_policy: two)


class Conv(tf.Module):
    """A convolution with relu: (batch, height, width, n_in) -> (batch, height', width', n_out)."""
    def __init__(self, n_in, n_out, kernel_size, stride, rng):
        super().__init__()
        shape, scale = (kernel_size, kernel_size, n_in, n_out), 1 / (kernel_size * np.sqrt(n_in))
        self.weight = tf.Variable(rng.uniform(-scale, scale, shape).astype(np.float32), name='weight')
        self.bias = tf.Variable(rng.uniform(-scale, scale, n_out).astype(np.float32), name='bias')
        self.stride = stride

    def __call__(self, x):
        return tf.nn.relu(tf.nn.conv2d(x, self.weight, self.stride, 'VALID') + self.bias)


class CNN(tf.Module):
    """Images (batch, *shape) -> features (batch, n_features)."""
    n_features = 128

    def __init__(self, shape, rng):
        super().__init__()
        self.channels_first = len(shape) == 3 and shape[-1] >= shape[0]     # (4, 96, 96), and not (96, 96, 3)
        *size, channels = (*shape[1:], shape[0]) if self.channels_first else shape if len(shape) == 3 else (*shape, 1)
        self.convs = [Conv(channels, 16, 5, 3, rng), Conv(16, 32, 3, 2, rng)]
        height, width = (((n - 5) // 3 + 1 - 3) // 2 + 1 for n in size)     # kernels of 5 and 3, strides of 3 and 2
        self.linear = Linear(32 * height * width, self.n_features, rng)

    def __call__(self, obs):
        if len(obs.shape) == 3:                                             # one channel, which has no axis
            obs = tf.expand_dims(obs, -1)
        if self.channels_first:
            obs = tf.transpose(obs, [0, 2, 3, 1])
        x = obs / 255
        for conv in self.convs:
            x = conv(x)
        return tf.nn.relu(self.linear(flatten(x)))


class OnFeatures(tf.Module):
    """A network that sees the CNN's features in place of the image. What it takes beside them, it gets as it is."""
    def __init__(self, cnn, net):
        super().__init__()
        self.cnn, self.net = cnn, net

    def __call__(self, obs, *others):
        return self.net(self.cnn(obs), *others)


class CNNActorCritic(tf.Module):
    """The networks of MLPActorCritic, pi and v, each behind a CNN of its own."""
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(64,), activation=tf.tanh):
        super().__init__()
        features = Box(-np.inf, np.inf, (CNN.n_features,))
        nets = MLPActorCritic(features, action_space, rng, hidden_sizes, activation)
        self.pi = OnFeatures(CNN(observation_space.shape, rng), nets.pi)
        self.v = OnFeatures(CNN(observation_space.shape, rng), nets.v)


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
