"""The bugs that the walkthrough of PPO hunts. Reading on spoils the hunt."""
import gymnasium as gym
import numpy as np

from walkthroughs import classroom
from walkthroughs.classroom import Bug


class Treadmill(gym.Env):
    """Every step is worth 1, and nothing ever ends but by the time limit."""
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def __init__(self, limit=5):
        self.limit, self.step_count = limit, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.step_count += 1
        return np.zeros(1, dtype=np.float32), 1.0, False, self.step_count == self.limit, {}


def check_truncation(module):
    """a time limit is no termination"""
    ends, good = [], module.PPOBuffer

    class Spy(good):
        def finish_path(self, last_obs, terminated):
            ends.append(terminated)
            super().finish_path(last_obs, terminated)
    module.PPOBuffer = Spy
    try:
        classroom.train(module.ppo, Treadmill, epochs=1, steps_per_epoch=20, train_v_iters=1, train_pi_iters=1)
    finally:
        module.PPOBuffer = good
    assert not any(ends), (f'in an environment that never terminates, {sum(ends)} of {len(ends)} trajectories were '
                           'recorded as terminated')


def check_broadcasting(module):
    """a perfect prediction has no loss"""
    loss = classroom.call(module.compute_loss_v, np.array([1.0, 5.0]), np.array([1.0, 5.0]))
    assert abs(loss) < 1e-9, f'V predicts the returns 1 and 5 exactly, and compute_loss_v is {loss:.3g} instead of 0'


def check_kl(module):
    """the estimate against a KL divergence that is known exactly"""
    old, new = np.array([0.5, 0.5]), np.array([0.8, 0.2])           # each action was taken as often as the other
    kl, exact = classroom.call(module.compute_kl, np.log(new), np.log(old)), (old * np.log(old / new)).sum()
    assert abs(kl - exact) < 1e-6, f'of two policies with a KL divergence of {exact:.3f}, compute_kl says {kl:.3f}'


def check_last_step(module):
    """the future of an episode that terminates on an epoch's last step is worth nothing"""
    buf = module.PPOBuffer(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), 2, 0.99, 0.97)
    for _ in range(2):
        buf.store(np.zeros(1), 0, 1.0)
    buf.finish_path(np.zeros(1), True)
    ret = buf.get(np.zeros(2), np.zeros(2), np.array([100.0]))['ret'][-1]
    assert abs(ret - 1) < 1e-6, f'the last step paid 1 and ended the episode, but its return to go is {ret:.3g}'


BUGS = dict(
    A=Bug(
        'truncation taken for termination',
        section='Training',
        old='buf.finish_path(obs, terminated)',
        new='buf.finish_path(obs, ended)',
        check=check_truncation,
        story='An episode that runs into its time limit ends, but the future it would have had is not worth '
              'nothing. Gym had one flag, done, for both until version 0.26, and most implementations of that time '
              'confuse them; Stable-Baselines3 computed the advantages of PPO so until its issues 633 and 651 of '
              '2021.',
        hint='which line tells the buffer how a trajectory ended?',
    ),
    B=Bug(
        '(batch,) against (batch, 1)',
        section='Losses',
        old='return ((val - ret)**2).mean()',
        new='return ((val[:, None] - ret)**2).mean()',
        tf1=('return tf.reduce_mean((val - ret)**2)', 'return tf.reduce_mean((val[:, None] - ret)**2)'),
        check=check_broadcasting,
        story='A column minus a row is a matrix: every value is compared with every return, and the best that V can '
              'do is to predict their mean. Nothing fails, and the loss falls. Issue 1568 of RLinf/RLinf is about '
              'exactly this in the value loss of a PPO; CleanRL had the same shapes in the policy loss of its SAC '
              '(issue 379).',
        hint='V learns something, yet it does not tell one observation from another: which line says what V should '
             'learn?',
    ),
    C=Bug(
        'KL of the wrong sign',
        section='Losses',
        old='return (torch.expm1(logp - logp_old) - (logp - logp_old)).mean()',
        new='return (logp - logp_old).mean()',
        tf1=('return tf.reduce_mean(tf.expm1(logp - logp_old) - (logp - logp_old))',
             'return tf.reduce_mean(logp - logp_old)'),
        check=check_kl,
        story='The simplest estimate of KL(old, new) is the mean of log old - log new. With the two exchanged it is '
              'mostly negative, never exceeds the limit, and the early stop is dead code: so in the PPO of '
              'Jason-CKY/DeepRL-pytorch and of others that descend from Spinning Up.',
        hint='a divergence is never negative: which line computes it?',
    ),
    D=Bug(
        "bootstrapping a true termination at an epoch's end",
        section='Buffer',
        old='next_val = 0 if terminated else next_val',
        new='next_val = 0 if terminated and end < self.size else next_val',
        check=check_last_step,
        story='Where an epoch ends, a trajectory is cut and V says what would have followed; but if the episode '
              'terminates on that very step, nothing follows. Spinning Up asks only whether the epoch has ended '
              '(its issue 257, still open): rare in long epochs, and poison in short ones.',
        hint='it happens only if an episode terminates on the last step of an epoch: which line decides what '
             'follows?',
    ),
)
