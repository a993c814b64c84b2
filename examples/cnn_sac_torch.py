"""Learning from images: the CNN of cnn_torch.py for SAC, in PyTorch.

The same three classes, with the networks of sac_torch.py behind the CNN: pi, q1 and q2. DDPG and TD3 go the same way.

Run it:
    python examples/cnn_sac_torch.py --env CarRacing-v3 --wrapper GrayscaleObservation 'FrameStackObservation(4)'
"""
import sys
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box
from torch import nn

sys.path.extend(map(str, Path(__file__).resolve().parents[:2]))     # the folders of cnn_torch.py and of sac_torch.py
from cnn_torch import CNN, OnFeatures
from common.run_utils import command_line, explain_arguments
from sac_torch import Agent, MLPActorCritic, sac  # noqa: F401  (tools.test_policy uses Agent)


class CNNActorCritic(nn.Module):
    """The networks of MLPActorCritic, pi, q1 and q2, each behind a CNN of its own."""
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(256,), activation=nn.ReLU):
        super().__init__()
        features = Box(-np.inf, np.inf, (CNN.n_features,))
        nets = MLPActorCritic(features, action_space, rng, hidden_sizes, activation)
        self.pi = OnFeatures(CNN(observation_space.shape), nets.pi)
        self.q1 = OnFeatures(CNN(observation_space.shape), nets.q1)
        self.q2 = OnFeatures(CNN(observation_space.shape), nets.q2)


@explain_arguments
def cnn_sac(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=CNNActorCritic,        # the networks
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers
    steps_per_epoch=1000,               # environment steps in an epoch
    epochs=100,                         # epochs
    replay_size=20000,                  # transitions that are kept; each has two observations, of 37 kB in CarRacing
    lr=3e-4,                            # learning rate of the policy and of q1 and q2
    batch_size=64,                      # transitions in an update
    alpha=0.2,                          # temperature: weight of the entropy; 'auto' learns it
    start_steps=2000,                   # steps with uniformly random actions, before the policy acts
    update_after=1000,                  # steps before the first update
    update_every=50,                    # steps from one round of updates to the next; as many updates as steps
    num_test_episodes=1,                # test episodes after each epoch
    max_ep_len=1000,                    # longest episode
    logger_kwargs=dict(),               # arguments of EpochLogger: where the results go
    save_freq=10,                       # epochs from one saved model and checkpoint to the next
):
    """SAC with CNNs, and with defaults for images. An argument of `sac` that is missing here can be added."""
    return sac(**locals())


if __name__ == '__main__':
    command_line(cnn_sac)
