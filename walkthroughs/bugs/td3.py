"""The bugs that the walkthrough of TD3 hunts. Reading on spoils the hunt."""
import numpy as np

from walkthroughs import classroom
from walkthroughs.bugs.ddpg import a_batch
from walkthroughs.classroom import Bug


def noise_of(seed, n=30):
    """The noise of one update on n transitions of Pendulum's shapes."""
    return np.random.default_rng(seed).standard_normal((1, n, 1), dtype=np.float32)


def check_twins(module):
    """The two q functions begin differently."""
    agent, _ = classroom.make_agent(module.td3, 'Pendulum-v1')
    metrics = agent.update(a_batch(terminated=0), noise_of(0))
    difference = np.abs(metrics['Q1Vals'] - metrics['Q2Vals']).max()
    assert difference > 1e-6, 'before the first step q1 and q2 gave the same values to thirty transitions'


def check_second_loss(module):
    """An error of q2 costs something."""
    loss = classroom.call(module.compute_loss_q, np.zeros(3), np.full(3, 2.0), np.zeros(3))
    assert abs(loss - 4) < 1e-6, f'q1 is right and q2 wrong by 2 everywhere, so loss_q is 4; it came out as {loss:.3g}'


def check_noise(module):
    """Each transition of a batch has noise of its own."""
    batch, losses = a_batch(terminated=0), []
    for last in (0.0, 3.0):
        agent, _ = classroom.make_agent(module.td3, 'Pendulum-v1', target_noise=0.2)
        noise = np.zeros((1, 30, 1), dtype=np.float32)
        noise[0, -1] = last
        losses.append(float(agent.update(batch, noise)['LossQ']))
    assert losses[0] != losses[1], (f'noise on the target action of the last transition alone left loss_q at '
                                    f'{losses[0]:.6f}')


def check_delay(module):
    """With a delay of 3, two updates of three leave the policy alone."""
    agent, _ = classroom.make_agent(module.td3, 'Pendulum-v1', policy_delay=3)
    steps = ['LossPi' in agent.update(a_batch(terminated=0), noise_of(i)) for i in range(6)]
    assert steps == [False, False, True] * 2, f'in six updates with policy_delay = 3 the policy made {sum(steps)} steps'


BUGS = dict(
    A=Bug(
        'The twins begin equal',
        section='Networks',
        old='self.q1 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)',
        new='self.q1 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, deepcopy(rng))',
        check=check_twins,
        story='q1 draws its weights from a copy of the generator, q2 then from the generator itself: the same numbers. '
              'Two equal networks with equal data, losses and steps stay equal for ever; the smaller of two equal '
              'numbers is either, and twice the work is done for nothing. Seen in EdanToledo/Stoix (issue 72: the '
              'double critics of its TD3 and SAC were initialised to the same parameters).',
        hint='every line of the update is right. What has to be true of the two q functions so that the smaller of '
             'them is smaller?',
    ),
    B=Bug(
        'Both terms of the loss are about q1',
        section='Losses',
        old='return ((q1 - backup)**2).mean() + ((q2 - backup)**2).mean()',
        new='return ((q1 - backup)**2).mean() + ((q1 - backup)**2).mean()',
        tf1=('return tf.reduce_mean((q1 - backup)**2) + tf.reduce_mean((q2 - backup)**2)',
             'return tf.reduce_mean((q1 - backup)**2) + tf.reduce_mean((q1 - backup)**2)'),
        check=check_second_loss,
        story='q2 never learns, and goes on saying what its initial weights say, numbers near 0. Where rewards are '
              'negative, the minimum picks q1, and all looks well; where they are positive it picks the ignorant twin, '
              'and nothing that lies further ahead than one step is ever learned. Seen in ray-project/ray (issue 4103, '
              'in the twin Q of its DDPG, which is TD3: both were taken from q_t).',
        hint='the target is the smaller of two values; one of the two has stopped moving. Who should move it?',
    ),
    C=Bug(
        'One noise for all target actions of a batch',
        section='Update',
        old='smooth_action(self.ac_targ.pi(next_obs), noise, ',
        new='smooth_action(self.ac_targ.pi(next_obs), noise[:1], ',
        check=check_noise,
        story='One noise is drawn and broadcast over the batch: all target actions are moved in the same direction at '
              'once. On average over many updates the targets are right, but within a batch nothing is smoothed, and '
              'the whole batch pulls q up or down together. Seen in vwxyzjn/cleanrl (issue 279: the noise had the '
              'shape of one action; fixed by pull request 281).',
        hint='the noise has the right size and is clipped rightly. To how many transitions does one number of it go?',
    ),
    D=Bug(
        'A delay that never delays',
        section='Update',
        old='self.updates % self.args.policy_delay ',
        new='self.updates * self.args.policy_delay % self.args.policy_delay ',
        check=check_delay,
        story='The number that is asked whether it is a multiple of the delay always is one, so that the policy and '
              'the targets move with every update. Seen in instadeepai/Mava (issue 1154, in the delayed updates of its '
              'SAC: the counter that was asked advanced in steps that are multiples of the delay).',
        hint='whatever the delay, the same happens. Which line asks for it?',
    ),
)
