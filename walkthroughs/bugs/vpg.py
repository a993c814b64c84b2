"""The bugs that the walkthrough of VPG hunts. Reading on spoils the hunt."""
import gymnasium as gym
import numpy as np

from walkthroughs import classroom
from walkthroughs.classroom import Bug


def filled_buffer(module, rew, ends, gamma=1.0, lam=1.0):
    """A buffer with these rewards and zero observations, whose trajectories terminate after the steps `ends`."""
    buf = module.VPGBuffer(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), len(rew), gamma, lam)
    for t, reward in enumerate(rew):
        buf.store(np.zeros(1), 0, reward)
        if t + 1 in ends:
            buf.finish_path(np.zeros(1), True)
    return buf


def check_reward(module):
    """The reward of a step is stored with the action that earned it."""
    buf = filled_buffer(module, [0.0, 0.0, 1.0, 0.0, 0.0, 0.0], ends=[3, 6])
    assert buf.rew[2] == 1, ('the third action earned a reward of 1 and ended its episode, and the buffer has the '
                             f'rewards {buf.rew[:3].tolist()} for that episode, {buf.rew[3:].tolist()} for the next')


def check_episodes(module):
    """What happens in one episode does not change the returns of another."""
    returns = []
    for later in (0.0, 100.0):
        buf = filled_buffer(module, [1.0, 1.0, later, later], ends=[2, 4])
        returns.append(buf.get(np.zeros(4), np.zeros(4), np.zeros(2))['ret'][0])
    assert returns[0] == returns[1], ('the first episode has two rewards of 1; its return came out as '
                                      f'{returns[0]:g} and, if the NEXT episode earns 100 a step, as {returns[1]:g}')


def check_weights(module):
    """Each log-probability is weighted by its own advantage."""
    logp, adv = np.array([-0.2, -1.0, -2.0]), np.array([1.0, 0.5, -1.5])
    came = classroom.gradient(module.compute_loss_pi, logp, adv)
    assert np.allclose(came, -adv / 3), (f'the advantages are {adv.tolist()}, and the log-probabilities were given '
                                         f'the weights {np.round(-3 * came, 3).tolist()}')


def check_probabilities(module):
    """The probabilities of the actions in one state sum to one, however many states are asked about."""
    logits = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])
    for batch in (logits, logits[:1]):
        total = np.exp(classroom.call(lambda x: module.Categorical(x).log_probs, batch)).sum(-1)
        assert np.allclose(total, 1), (f'for a batch of {len(batch)}, the probabilities of the two actions sum to '
                                       f'{np.round(total, 2).tolist()}')


BUGS = dict(
    A=Bug(
        'rewards stored one step late',
        section='Buffer',
        old='self.obs[self.ptr], self.act[self.ptr], self.rew[self.ptr] = obs, act, rew',
        new='self.obs[self.ptr], self.act[self.ptr], self.rew[(self.ptr + 1) % self.size] = obs, act, rew',
        check=check_reward,
        story='Every reward is credited to the action after the one that earned it, and the last reward of an episode '
              'to the first action of the next. Where all rewards are equal nobody can notice. Modelled on '
              'openai/spinningup, whose VPG and PPO stored a step before they took it, and so with the reward of the '
              'step before, while the last reward of an episode took the place of the value of its end: reported in '
              'its issues 50 and 67 (2018), noticed in FrozenLake, which rewards the last step alone (pull request '
              '126, 2019), fixed in 2020.',
        hint='which action does a reward belong to? Print what the buffer holds after an episode of three steps.',
    ),
    B=Bug(
        'returns that run on from one episode into the one before',
        section='Buffer',
        old='for t in reversed(range(start, end)):',
        new='for t in reversed(range(end)):',
        check=check_episodes,
        story='The sum of rewards to go is not cut where an episode ends, so that the return of a step includes all '
              'episodes that come after it, and to fall costs nothing. Seen in nikhilbarhate99/PPO-PyTorch (issue 8, '
              '2019) and in the VPG of JuliaReinforcementLearning/ReinforcementLearning.jl (issue 578, 2022).',
        hint='the values are those of a life without end. Where does the sum of rewards to go stop?',
    ),
    C=Bug(
        'log-probabilities (batch, 1) times advantages (batch,)',
        section='Losses',
        old='return -(logp * adv).mean()',
        new='return -(logp[:, None] * adv).mean()',
        tf1=('return -tf.reduce_mean(logp * adv)', 'return -tf.reduce_mean(logp[:, None] * adv)'),
        check=check_weights,
        story='The product has the shape (batch, batch): every action is weighted by the advantages of all. Its mean '
              'is mean(logp) mean(adv), which is zero for normalised advantages, and so is its gradient: the policy '
              'stands still, and no error tells. In thu-ml/tianshou log_prob was (batch, 1) for continuous actions '
              'and (batch,) for discrete ones, until pull request 155 (2020). In '
              'PacktPublishing/Deep-Reinforcement-Learning-Hands-On the advantages themselves came out as (batch, '
              'batch): issue 33 (2019) was closed with the remark that the mean takes care of it, and issue 74 (2020) '
              'found that learning is much faster without it.',
        hint='which numbers stand still from the first epoch on? Compute the gradient of that loss by hand.',
    ),
    D=Bug(
        'softmax over the batch',
        section='Networks',
        old='self.log_probs = torch.log_softmax(logits, dim=-1)',
        new='self.log_probs = torch.log_softmax(logits, dim=0)',
        tf1=('self.log_probs = tf.nn.log_softmax(logits)', 'self.log_probs = tf.nn.log_softmax(logits, axis=0)'),
        check=check_probabilities,
        story='The probabilities are normalised over the batch instead of over the actions. One observation is a batch '
              'of one, over which every softmax is 1: the agent acts at random whatever it learns. Seen in '
              'BindsNET/bindsnet (issue 577, 2022), whose agents therefore always acted at random; a softmax over '
              'dimension 0 of batches is also in DeepReinforcementLearning/DeepReinforcementLearningInAction (issue '
              '32, 2021).',
        hint='the policy is asked about one state when it acts, and about thousands when it learns.',
    ),
)
