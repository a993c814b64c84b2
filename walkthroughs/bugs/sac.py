"""The bugs that the walkthrough of SAC hunts. Reading on spoils the hunt."""
from types import SimpleNamespace

import numpy as np

from walkthroughs import classroom
from walkthroughs.classroom import Bug


def squashed(module, net_output, noise):
    """What the actor gives for its network's output [mu, log_std]: actions and log-probabilities, in arrays."""
    identity_net = SimpleNamespace(net=lambda x: x)

    def act(net_output, noise):
        actor = module.SquashedGaussianMLPActor
        return getattr(actor, 'forward', actor.__call__)(identity_net, net_output, noise)
    return classroom.call(act, net_output, noise)


def check_density(module):
    """a density integrates to one"""
    noise = np.linspace(-8, 8, 4001)[:, None]
    act, logp = squashed(module, np.tile([0.5, 0.0], (len(noise), 1)), noise)
    width, density = np.diff(act[:, 0]), np.exp(logp)
    mass = (width * (density[1:] + density[:-1]) / 2).sum()
    assert abs(mass - 1) < 1e-3, f'the density of the squashed action integrates to {mass:.3f} over [-1, 1], not to 1'


def check_terminated(module):
    """after a termination nothing follows, no entropy either"""
    rew, one = np.array([1.5]), np.ones(1)
    backup = classroom.call(module.compute_backup, rew, one, 10 * one, -3 * one, 0.2, 0.99)
    assert np.allclose(backup, rew), (
        f'the reward before a termination was {rew[0]}, and the backup is {backup[0]:.3f}: what follows was counted')


def check_rows(module):
    """the log-probability of an action does not depend on the rest of the batch"""
    rng = np.random.default_rng(0)
    net_output, noise = rng.normal(size=(5, 4)), rng.normal(size=(5, 2))
    together = squashed(module, net_output, noise)[1]
    assert np.shape(together) == (5,), (
        f'five actions have log-probabilities of shape {np.shape(together)} instead of (5,)')
    alone = np.concatenate([squashed(module, net_output[i:i + 1], noise[i:i + 1])[1] for i in range(5)])
    assert np.allclose(together, alone), 'an action has another log-probability in a batch than alone'


def check_next(module):
    """the backup depends on where a step led, and not on where it began"""
    agent, _ = classroom.make_agent(module.sac, 'Pendulum-v1', lr=0.0, polyak=1.0, ac_kwargs=dict(hidden_sizes=(8,)))
    rng = np.random.default_rng(0)
    next_obs, act, noise = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 3), (1, 1), (2, 1, 1)))
    backups = []
    for obs in np.float32([[[1, 0, 5]], [[-1, 0, -5]]]):
        batch = dict(obs=obs, act=act, rew=np.float32([100]), next_obs=next_obs, terminated=np.float32([0]))
        metrics = agent.update(batch, noise)
        mean, half = (metrics['Q1Vals'] + metrics['Q2Vals']) / 2, (metrics['Q1Vals'] - metrics['Q2Vals']) / 2
        backups.append(float(mean[0] + np.sqrt(metrics['LossQ'] / 2 - half[0]**2)))     # loss_q, solved for backup
    assert abs(backups[0] - backups[1]) < 0.01, (
        f'two steps from different places to the same place, with the same reward, have the backups {backups[0]:.2f} '
        f'and {backups[1]:.2f}')


BUGS = dict(
    A=Bug(
        'the tanh correction at the wrong variable',
        section='Networks',
        old='log_slope = 2 * (np.log(2) - u - nn.functional.softplus(-2 * u))',
        new='log_slope = torch.log(1 - torch.tanh(torch.tanh(u))**2)',
        tf1=('log_slope = 2 * (np.log(2) - u - tf.nn.softplus(-2 * u))',
             'log_slope = tf.log(1 - tf.tanh(tf.tanh(u))**2)'),
        check=check_density,
        story='The slope of tanh is 1 - tanh(u)^2, and that is 1 - act^2; who takes tanh of the action takes it twice. '
              'The correction then never exceeds 0.87, however far out u is, and the entropy that the program believes '
              'in grows with the standard deviation without end: the actions are driven to the bounds. '
              'Seen in boyu-ai/Hands-on-RL, the code of a textbook (issues 44 and 121).',
        hint='the copy believes that actions at the bounds are improbable: which line knows how tanh squeezes them?',
    ),
    B=Bug(
        'entropy outside of the mask',
        section='Losses',
        old='return rew + gamma * (1 - terminated) * (next_q - alpha * next_logp)',
        new='return rew + gamma * (1 - terminated) * next_q - alpha * next_logp',
        check=check_terminated,
        story='A pair of parentheses less, and the entropy of the next step is neither discounted nor masked: it is '
              'counted even behind a termination, where there is no next step. Seen in DLR-RM/stable-baselines3 (issue '
              '76, fixed in 2020) and in rail-berkeley/serl (issue 93).',
        hint='something is counted behind the end: which line knows about terminations?',
    ),
    C=Bug(
        'log-probabilities summed over the batch too',
        section='Networks',
        old='(logp_u - log_slope).sum(-1)',
        new='(logp_u - log_slope).sum()',
        tf1=('tf.reduce_sum(logp_u - log_slope, -1)', 'tf.reduce_sum(logp_u - log_slope)'),
        check=check_rows,
        story='A sum without an axis is a single number for the whole batch. It broadcasts wherever a log-probability '
              'is expected, and so each step is paid for the entropy of all 64. Seen in '
              'PacktPublishing/Tensorflow-2-Reinforcement-Learning-Cookbook (pull request 46).',
        hint='q is too high by far more than a step can earn in entropy; a batch has 64 of them: what is counted 64 '
             'times?',
    ),
    D=Bug(
        'the next action valued where the step began',
        section='Update',
        old='torch.min(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))',
        new='torch.min(self.ac_targ.q1(obs, next_act), self.ac_targ.q2(obs, next_act))',
        tf1=('tf.minimum(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))',
             'tf.minimum(self.ac_targ.q1(obs, next_act), self.ac_targ.q2(obs, next_act))'),
        check=check_next,
        story='The next action belongs to the next observation. Valued in the old one, a cell hears only from itself, '
              'and no reward ever travels backwards. Seen in seungeunrho/minimalRL (issue 40, fixed in 2020).',
        hint='only the step that pays has learned its value: from which line should a cell hear about the next one?',
    ),
)
