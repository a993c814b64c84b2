"""The bugs that the walkthrough of DDPG hunts. Reading on spoils the hunt."""
import gymnasium as gym
import numpy as np

from walkthroughs import classroom
from walkthroughs.classroom import Bug


class Waiting(gym.Env):
    """Nothing to do: every step gives reward 1, nothing terminates, and a time limit truncates every episode."""
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, limit=5):
        self.limit, self.actions = limit, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, act):
        self.age += 1
        self.actions.append(act.copy())
        return np.zeros(1, dtype=np.float32), 1.0, False, self.age == self.limit, {}


def a_batch(terminated):
    """Thirty transitions of Pendulum's shapes; the rewards differ."""
    rng = np.random.default_rng(0)
    batch = dict(obs=rng.normal(size=(30, 3)), act=rng.uniform(-1, 1, (30, 1)), rew=rng.normal(size=30),
                 next_obs=rng.normal(size=(30, 3)), terminated=np.full(30, terminated))
    return {key: array.astype(np.float32) for key, array in batch.items()}


def without_updates(module, env, **kwargs):
    """Forty steps of training in which nothing is learned."""
    return classroom.train(module.ddpg, lambda: env, epochs=1, steps_per_epoch=40, start_steps=0, update_after=1000,
                           num_test_episodes=0, replay_size=100, **kwargs)[0].agent


def check_target_policy(module):
    """Both target networks follow theirs."""
    agent, _ = classroom.make_agent(module.ddpg, 'Pendulum-v1', q_lr=0.0, pi_lr=0.1, polyak=0.0)
    batch = a_batch(terminated=0)
    losses = [float(agent.update(batch, np.zeros((0, 30, 1), dtype=np.float32))['LossQ']) for _ in range(2)]
    assert losses[0] != losses[1], (
        'with q held still and polyak = 0, the backup must change when the policy has, through pi_targ; '
        f'loss_q was {losses[0]:.6f} both before and after')


def check_truncation(module):
    """Only a true termination is stored as one."""
    stored, store = [], module.ReplayBuffer.store
    module.ReplayBuffer.store = lambda self, *row: (stored.append(bool(row[-1])), store(self, *row))
    try:
        without_updates(module, Waiting())
    finally:
        module.ReplayBuffer.store = store
    assert not any(stored), (f'of {len(stored)} transitions {sum(stored)} went into the buffer as terminated, in an '
                             'environment that never terminates')


def check_backup_shape(module):
    """Each transition is compared with its own backup."""
    agent, _ = classroom.make_agent(module.ddpg, 'Pendulum-v1')
    batch = a_batch(terminated=1)
    metrics = agent.update(batch, np.zeros((0, 30, 1), dtype=np.float32))
    expected = np.mean((metrics['QVals'] - batch['rew'])**2)
    assert abs(metrics['LossQ'] - expected) < 1e-4, (
        f'on terminated transitions loss_q is the mean of (q - rew)^2, {expected:.4f}; it came out as '
        f'{float(metrics["LossQ"]):.4f}')


def check_discount(module):
    """A future worth nothing adds nothing."""
    backup = classroom.call(module.compute_backup, np.array([1.0, 1.0]), np.array([0.0, 1.0]), np.zeros(2), 0.9)
    assert np.allclose(backup, 1), f'with rew = 1 and next_q = 0 the backup is 1; it came out as {backup}'


def check_exploration(module):
    """Every dimension of an action has noise of its own."""
    env = Waiting()
    agent = without_updates(module, env)
    noise = np.array(env.actions) - agent.act(np.zeros(1, dtype=np.float32))
    assert not np.allclose(noise[:, 0], noise[:, 1], atol=1e-5), (
        'in 40 steps the noise was the same number in both dimensions of the action')


BUGS = dict(
    A=Bug(
        'The target policy is never updated',
        section='Update',
        old='zip(self.ac_targ.parameters(), self.ac.parameters())',
        new='zip(self.ac_targ.q.parameters(), self.ac.q.parameters())',
        tf1=('zip(self.ac_targ.trainable_variables, self.ac.trainable_variables)',
             'zip(self.ac_targ.q.trainable_variables, self.ac.q.trainable_variables)'),
        check=check_target_policy,
        story='Only the target of q follows; pi_targ stays the random policy of the beginning, for ever. So q learns, '
              'without any error, what the actions are worth if that random policy acts ever after, and the policy is '
              'greedy with respect to that: one step of policy improvement, and never a second. Seen in '
              'kakaoenterprise/JORLDY (issue 120: the update of the target actor was missing in its DDPG).',
        hint='q fits its targets perfectly, so the losses and the step of q are innocent. Whose value are the targets?',
    ),
    B=Bug(
        'Truncation is stored as termination',
        section='Training',
        old='buf.store(obs, act, rew, next_obs, terminated)',
        new='buf.store(obs, act, rew, next_obs, terminated or truncated)',
        check=check_truncation,
        story='The last transition before the time limit is stored as if the world ended there, so its backup is the '
              'reward alone, although the same observation in the middle of an episode has a future. q averages the '
              'two. Seen in openai/baselines (issue 436, about its DDPG; the analysis is Pardo et al. 2018, Time '
              'Limits in Reinforcement Learning, arXiv:1712.00378).',
        hint='compute_backup is right, and gets right numbers for all but one transition of each episode. Where do its '
             'arguments come from?',
    ),
    C=Bug(
        'Values (batch, 1) against backups (batch,)',
        section='Losses',
        old='return ((q - backup)**2).mean()',
        new='return ((q[:, None] - backup)**2).mean()',
        tf1=('return tf.reduce_mean((q - backup)**2)', 'return tf.reduce_mean((q[:, None] - backup)**2)'),
        check=check_backup_shape,
        story='A column minus a row is a matrix: every q is compared with the backups of the whole batch, and the best '
              'that q can do is to predict their mean, whatever the observation and the action. The mean over a matrix '
              "is a number, so nothing complains. Seen in a reader's variant of openai/spinningup's DDPG (issue 339: "
              'without the squeeze, the return on Swimmer reached 10 to 50 instead of 130).',
        hint='q is almost the same number everywhere: which line says what it should be in each place?',
    ),
    D=Bug(
        'One noise for all dimensions of an action',
        section='Training',
        old='rng.standard_normal(act_dim, dtype=np.float32)',
        new='rng.standard_normal(1, dtype=np.float32)',
        check=check_exploration,
        story='One number is drawn and broadcast over the dimensions of the action: the agent explores along the '
              'diagonal alone, and never tries to push one joint forwards and another one backwards. Seen in '
              'vwxyzjn/cleanrl (issue 500, about its DDPG and TD3). On Pendulum and every other task whose action is '
              'one number, no test can find it.',
        hint='the policy is not to blame: look for where the noise is made, and at its shape.',
    ),
    E=Bug(
        'A plus sign in the backup',
        section='Losses',
        old='return rew + gamma * (1 - terminated) * next_q',
        new='return rew + gamma * (1 - terminated) + next_q',
        check=check_discount,
        story='The mask and the discount are added to the future instead of multiplying it: without a discount the sum '
              'has no end, and every backup is larger than the last by rew + gamma. Only the slowness of the target '
              'networks hides how fast it grows. Seen in ikostrikov/pytorch-ddpg-naf, in naf.py (reported in 2018, '
              'pull request 11, and fixed in 2021, issue 16).',
        hint='q is not pulled towards any value at all. What should hold it is the discount.',
    ),
)
