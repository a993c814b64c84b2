# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Reinforcement learning from nothing to the policy gradient
#
# This is the first notebook of the course. It starts with a pole that falls over and ends with a program of about
# forty lines that learns to balance it, of which you will understand every line. Nothing is assumed about reinforcement
# learning, and nothing is to be believed: every equation is followed by a cell that checks it with numbers.
#
# **Goals.** At the end you can
#
# - say what an environment, a policy, an episode and a return are, and play with them in code;
# - derive the policy gradient in four lines, and say why the world need not be differentiated;
# - explain what a baseline is, and why it is allowed;
# - write a policy gradient from memory, run it, and read its curve.
#
# **Prerequisites.** Python with numpy; derivatives, the logarithm and the chain rule; expectations of random variables.
#
# **Time.** One hour with the exercises; all cells together run for about half a minute.

# %% tags=["setup"]
# Finds the repository: in this folder, in one above it, in a clone beside this notebook, or where you say it is.
import os
import sys
from pathlib import Path

here = Path.cwd()
places = [Path(os.environ.get('WALKTHROUGH_REPOSITORY', here)).resolve(), here, *here.parents, *sorted(here.glob('*/'))]
repositories = [place for place in places if (place / 'walkthroughs' / 'classroom.py').exists()]
if not repositories:
    raise FileNotFoundError(
        f'The repository that this notebook belongs to is neither in {here} nor above it. Clone it into that folder, '
        'install what it needs (%pip install -r ITS_FOLDER/requirements.txt), then run this cell again. If it is '
        'somewhere else, say where: %env WALKTHROUGH_REPOSITORY=ITS_FOLDER')
sys.path.insert(0, str(repositories[0]))
from walkthroughs import classroom

classroom.begin(None, 'torch')

# %% [markdown]
# ## The game
#
# Reinforcement learning is learning from consequences. There is an **environment**: a game, a robot, a market. At each
# step it shows an **observation**; the **agent** chooses an **action**; the environment answers with a **reward**, a
# number, and with the next observation. Nobody says which action would have been right. After a while the **episode**
# ends, and a new one begins. The agent wants to collect as much reward as possible over a whole episode, so an action
# may be good although it pays nothing at once, and bad although it does.
#
# The rule by which the agent chooses is its **policy**. We write $\pi(a \mid s)$ for the probability that it takes
# action $a$ when it sees $s$. (One often says *state* instead of observation; on this page they are the same.)

# %%
classroom.diagram(
    boxes=dict(
        agent=(0, 0, 'agent\npolicy pi(a | s)', 'net'),
        env=(2, 0, 'environment', 'env'),
        data=(1, 1, 'experience\ns, a, r, s, a, r, ...'),
        step=(0, 1, 'learning:\na better policy', 'loss'),
    ),
    arrows=[
        ('agent', 'env', 'action', -0.12), ('env', 'agent', 'observation, reward', -0.12), ('env', 'data'),
        ('data', 'step'), ('step', 'agent'),
    ],
    title='Reinforcement learning',
)

# %% [markdown]
# Our environment is CartPole, from the collection `gymnasium`. A pole stands on a cart. The agent sees four numbers,
# the position and velocity of the cart and the angle and angular velocity of the pole, and pushes the cart to the left
# (action 0) or to the right (action 1). Every step pays 1. When the pole leans too far or the cart leaves the track,
# the episode has **terminated**. After 500 steps it is stopped in any case; it is then called **truncated**.
#
# The function `play` plays one episode with any policy, given as a function from observation to action. The five lines
# of its loop are the interface between every agent and every environment in this repository.

# %%
import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np


def play(env, policy, seed=None):
    """One episode: arrays of its observations, actions and rewards."""
    (obs, _), ended, experience = env.reset(seed=seed), False, []
    while not ended:
        action = policy(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        experience.append((obs, action, reward))
        obs, ended = next_obs, terminated or truncated
    observations, actions, rewards = zip(*experience)
    return np.array(observations), np.array(actions), np.array(rewards)


env, rng = gym.make('CartPole-v1'), np.random.default_rng(0)
observations, actions, rewards = play(env, lambda obs: int(rng.integers(2)), seed=0)
print(f'The first observation is {observations[0].round(3)}; random actions kept the pole up for {len(rewards)} steps.')

# %% [markdown]
# ### What is an episode worth?
#
# The **return** of an episode is the sum of its rewards, in which later ones count a little less: with a **discount**
# $\gamma \le 1$,
#
# $$
# R(\tau) = \sum_{t=0}^{T-1} \gamma^t\, r_t \tag{1}
# $$
#
# where $\tau$ is the whole **trajectory** $s_0, a_0, r_0, s_1, a_1, r_1, \dots$ The discount says how far we look
# ahead: with $\gamma = 0.99$ about a hundred steps, since $1 + 0.99 + 0.99^2 + \dots = 100$. Policies are compared by
# their *expected* return, on average over all that chance may bring.
#
# **Exercise 1 (implement).** For learning we will need more than (1): for *every* step the discounted sum of the
# rewards from there on, $\hat R_t = r_t + \gamma r_{t+1} + \gamma^2 r_{t+2} + \dots$, its **rewards to go**. One pass
# from the end of the episode to its beginning is enough, because $\hat R_t = r_t + \gamma \hat R_{t+1}$.

# %% tags=["exercise"]
def my_rewards_to_go(rewards, gamma):
    """The discounted rewards to go of each step, (steps,)."""
    ### BEGIN SOLUTION
    to_go, following = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        to_go[t] = following = rewards[t] + gamma * following
    return to_go
    ### END SOLUTION


classroom.check('Exercise 1', lambda: my_rewards_to_go(np.array([1.0, 0.0, 2.0, 4.0]), 0.5),
                np.array([2.0, 2.0, 4.0, 4.0]), hint='the last one is the last reward; go backwards from it')

# %% tags=["check"]
# Equation (1) in numbers: the sum, the first of the rewards to go, and the closed form for rewards of 1.
def rewards_to_go(rewards, gamma):
    """As in the exercise, for those who skip it: a triangle of discounts times the rewards."""
    ages = np.arange(len(rewards)) - np.arange(len(rewards))[:, None]
    return np.where(ages >= 0, gamma**np.abs(ages), 0) @ rewards


gamma = 0.99
by_sum = sum(gamma**t * reward for t, reward in enumerate(rewards))
classroom.agree('The return by (1) and the rewards to go of the first step', by_sum, rewards_to_go(rewards, gamma)[0])
classroom.agree('and the geometric sum', by_sum, (1 - gamma**len(rewards)) / (1 - gamma))

# %% [markdown]
# ## Experiment 1: three policies without learning
#
# How good are policies that one can write down in a minute? The first acts at random. The second pushes the cart to the
# side to which the pole leans. The third pushes to the side to which it *will* lean: it adds half of the angular
# velocity to the angle. Thirty episodes of each.

# %%
by_hand = {
    'random': lambda obs: int(rng.integers(2)),
    'angle': lambda obs: int(obs[2] > 0),
    'angle + velocity / 2': lambda obs: int(obs[2] + 0.5 * obs[3] > 0),
}
lengths = {name: [len(play(env, policy, seed=seed)[2]) for seed in range(30)] for name, policy in by_hand.items()}
fig, ax = classroom.figure()
for i, (name, values) in enumerate(lengths.items()):
    ax.plot(values, np.full(30, i) + rng.uniform(-0.15, 0.15, 30), 'o', alpha=0.5)
    ax.plot(np.mean(values), i, 'k|', markersize=30)
ax.set(yticks=range(3), yticklabels=list(lengths), xlabel='steps until the pole falls', ylim=(-0.5, 2.5))
plt.show()
means = [np.mean(values) for values in lengths.values()]
classroom.claim(means[0] < means[1] < means[2], f'the policies keep the pole up for {means[0]:.0f}, {means[1]:.0f} and '
                f'{means[2]:.0f} steps on average')

# %% [markdown]
# So a single number, the weight of the velocity, separates a poor policy from a good one. Here physics told us what to
# do. The program at the end of this page finds it out by itself, from nothing but actions and rewards. For this it
# needs a policy with **parameters** $\theta$ that can be changed a little at a time, and a direction in which to change
# them.
#
# ## The trick, with a single action
#
# Forget the pole for a moment. There are three slot machines; machine $a$ pays $r(a)$ on average. The policy has one
# parameter for each, and its probabilities are their **softmax**, $\pi_\theta(a) = e^{\theta_a} / \sum_i e^{\theta_i}$,
# which is positive and sums to one whatever the parameters are. The expected reward and its gradient are
#
# $$
# J(\theta) = \sum_a \pi_\theta(a)\, r(a), \qquad \nabla J(\theta) = \sum_a \nabla \pi_\theta(a)\, r(a) \tag{2}
# $$
#
# To compute this sum we would have to know what *every* machine pays. But we only ever see what the machine paid that
# we chose. The way out is one line of calculus, $\nabla \log \pi = \nabla \pi / \pi$, read backwards: $\nabla \pi =
# \pi\, \nabla \log \pi$. Put into (2), it turns the sum into an expectation over our own choices,
#
# $$
# \nabla J(\theta) = \sum_a \pi_\theta(a)\, \nabla \log \pi_\theta(a)\, r(a)
# = \mathbb{E}_{a \sim \pi_\theta}\big[ \nabla \log \pi_\theta(a)\, r(a) \big] \tag{3}
# $$
#
# and an expectation can be *sampled*: choose a machine, see what it pays, compute $\nabla \log \pi_\theta(a)$ for the
# one that was chosen, multiply; on average this is the gradient. It does not matter where $r$ comes from; it may be
# random, unknown, not differentiable. This is called the log-derivative trick, and it is the heart of the matter. For
# the softmax the gradient of the logarithm is particularly simple: with $\log \pi_\theta(a) = \theta_a - \log \sum_i
# e^{\theta_i}$,
#
# $$
# \frac{\partial \log \pi_\theta(a)}{\partial \theta_i} = \mathbf{1}[i = a] - \pi_\theta(i) \tag{4}
# $$
#
# The chosen machine's parameter goes up, and all go down in proportion to their probabilities.

# %% tags=["check"]
# Equations (2) to (4) in numbers: the gradient by differences, by the sum, by the expectation, and by samples.
def softmax(theta):
    return np.exp(theta) / np.exp(theta).sum()


def differences(function, x, nudge=1e-5):
    """The gradient of a function of an array, by finite differences."""
    nudges = nudge * np.eye(x.size).reshape(-1, *x.shape)
    return np.array([function(x + n) - function(x - n) for n in nudges]).reshape(x.shape) / (2 * nudge)


theta, pays = np.array([0.5, 0.0, -0.5]), np.array([1.0, 2.0, 4.0])
probs = softmax(theta)
log_gradients = np.eye(3) - probs                                           # row a: the gradient of log pi(a), by (4)
by_differences = differences(lambda x: softmax(x) @ pays, theta)
for machine in range(3):
    classroom.agree(f'(4) for machine {machine} and differences of its log-probability', log_gradients[machine],
                    differences(lambda x, a=machine: np.log(softmax(x)[a]), theta))
classroom.agree('(2), the sum, and differences of J', (probs[:, None] * log_gradients).T @ pays, by_differences)
chosen = rng.choice(3, size=200_000, p=probs)
classroom.agree('(3), the mean of 200,000 samples, and differences of J',
                (log_gradients[chosen] * pays[chosen][:, None]).mean(0), by_differences, tol=0.02)

# %% [markdown]
# **Exercise 2 (implement).** Write the sampled gradient: given the parameters, the machines that were chosen in many
# games and what they paid, return the average of $\nabla \log \pi_\theta(a)\, r$ over the games.

# %% tags=["exercise"]
def my_gradient(theta, chosen, paid):
    """The estimate (3) of the gradient, (machines,). chosen: (games,) integers; paid: (games,)."""
    ### BEGIN SOLUTION
    scores = np.eye(len(theta))[chosen] - softmax(theta)
    return (scores * paid[:, None]).mean(0)
    ### END SOLUTION


classroom.check('Exercise 2', lambda: my_gradient(theta, np.array([0, 2, 2]), np.array([1.0, 4.0, 3.0])),
                np.array([1.0, 0.0, 7.0]) / 3 - 8 / 3 * probs,
                hint='np.eye(3)[chosen] has one row for each game; multiply row by row, then take the mean')

# %% [markdown]
# ### Baselines
#
# Look again at (3) and (4), with machines that pay 1, 2 and 4 as in the cell above: a reward of 4 pulls the chosen
# machine up, and a reward of 1 pulls it up as well, though that machine is the worst of the three. On average things
# come out right, because good machines pull harder. But an average needs many games. It would be better to compare a
# reward with what was to be expected, so that a poor reward pushes *down*. We may subtract any number $b$ that does not
# depend on the choice, since probabilities always sum to one:
#
# $$
# \mathbb{E}_{a \sim \pi_\theta}\big[ \nabla \log \pi_\theta(a)\, b \big] = b \sum_a \nabla \pi_\theta(a)
# = b\, \nabla 1 = 0 \tag{5}
# $$
#
# Such a $b$ is a **baseline**. It leaves the mean of the estimate as it is and changes its scatter.

# %% tags=["check"]
# Equation (5) in numbers: the mean stays, the scatter does not.
classroom.agree('The expectation of a baseline of 100, and 0', 100 * probs @ log_gradients, np.zeros(3))
scatters = {}
for baseline in (0.0, probs @ pays, 100.0):
    one_game = log_gradients[chosen] * (pays[chosen] - baseline)[:, None]
    scatters[baseline] = np.sqrt(one_game.var(0).sum())
    print(f'baseline {baseline:6.2f}: mean {one_game.mean(0).round(2)}, scatter of one game {scatters[baseline]:.2f}')
classroom.claim(scatters[probs @ pays] < scatters[0.0] < scatters[100.0],
                f'one game scatters by {scatters[probs @ pays]:.1f} with the expected reward as baseline, by '
                f'{scatters[0.0]:.1f} without a baseline, and by {scatters[100.0]:.0f} with a bad one')

# %% [markdown]
# ## Experiment 2: learning to choose
#
# Let us learn. Three machines pay 10, 10.5 and 11, plus noise. In each of 300 rounds we play ten games, estimate the
# gradient by (3), and take a step $\theta \leftarrow \theta + \alpha \nabla J$ uphill with this estimate. Ten agents
# without a baseline, and ten that subtract the mean of the ten rewards of the round. (Strictly, (5) does not cover
# this mean: a tenth of it is the game's own reward, which does depend on the choice. All that comes of it is a factor
# of 9/10 on the expected gradient, whose direction stays.)

# %%
def learn_machines(subtract, seed, level=10.0, rounds=300, step_size=0.3):
    """The probability of the best machine, after each round."""
    rng, theta, curve = np.random.default_rng(seed), np.zeros(3), []
    for _ in range(rounds):
        chosen = rng.choice(3, size=10, p=softmax(theta))
        paid = level + np.array([0.0, 0.5, 1.0])[chosen] + rng.normal(size=10)
        scores = np.eye(3)[chosen] - softmax(theta)
        theta = theta + step_size * (scores * (paid - (paid.mean() if subtract else 0))[:, None]).mean(0)
        curve.append(softmax(theta)[2])
    return curve


fig, ax = classroom.figure()
best = {}
for color, (name, subtract) in zip(('C1', 'C0'), (('no baseline', False), ('with baseline', True))):
    machine_curves = np.array([learn_machines(subtract, seed) for seed in range(10)])
    ax.plot(machine_curves.T, color=color, linewidth=0.8, alpha=0.4)
    ax.plot(machine_curves.mean(0), color=color, linewidth=2.5, label=name)
    best[name] = machine_curves[:, -1]
ax.set(xlabel='round', title='Probability of the best machine')
ax.legend()
plt.show()
classroom.claim(best['with baseline'].min() > 0.5 > best['no baseline'].min(),
                f'with the baseline all ten agents choose the best machine in the end (with a probability of at least '
                f'{best["with baseline"].min():.2f}); without it {(best["no baseline"] < 0.5).sum()} of ten do not')

# %% [markdown]
# Without a baseline some agents end up certain, and wrong. Whatever they happened to choose early on paid about 10,
# which pulled it up, so that they chose it more often, which pulled it up again. The scatter of the estimate is no mere
# blemish: a policy that has become certain sees no other actions any more, and cannot learn that they are better.
#
# **Exercise 3 (ablate).** The agents without a baseline had machines that pay 10, 10.5 and 11. Now take 10 away from
# all of them, so that they pay 0, 0.5 and 1; the differences are the same, and so is the noise. Decide *before* you run
# the next cell: of the ten agents without a baseline, will `'more'`, `'fewer'` or as many (`'same'`) prefer the best
# machine in the end?

# %% tags=["exercise"]
prediction = None                   # 'more', 'fewer' or 'same'
### BEGIN SOLUTION
prediction = 'more'
### END SOLUTION

# %%
fig, axes = classroom.figure(columns=2)
winners = {}
for ax, level in zip(axes, (10.0, 0.0)):
    machine_curves = np.array([learn_machines(False, seed, level) for seed in range(10)])
    ax.plot(machine_curves.T, color='C1', linewidth=0.8, alpha=0.6)
    ax.plot(machine_curves.mean(0), color='C1', linewidth=2.5)
    ax.set(xlabel='round', title=f'No baseline; machines pay {level:g}, {level + 0.5:g}, {level + 1:g}', ylim=(0, 1))
    winners[level] = int((machine_curves[:, -1] > 0.5).sum())
plt.show()
print(f'Winners: {winners[10.0]} of ten agents at the level of 10, and {winners[0.0]} of ten at the level of 0.')
outcome = 'more' if winners[0.0] > winners[10.0] else 'fewer' if winners[0.0] < winners[10.0] else 'same'
classroom.check('Exercise 3', prediction, outcome,
                hint='to take 10 away from all rewards is to subtract a baseline of 10')

# %% [markdown] tags=["solution"]
# *Discussion.* Taking 10 from every reward is a baseline of 10, nearly the best one. So an algorithm without a baseline
# depends on something that should not matter at all, the level of the rewards. One with a baseline does not.

# %% [markdown]
# ## Many actions, one return
#
# Back to episodes. The agent now acts many times, each action changes what it sees next, and the reward may come late.
# But a whole trajectory can be looked at as *one* big choice, with the return (1) as its reward! Its probability is a
# product: the probability of the start and, for each step, that of what the policy does and that of what the world
# answers. In the logarithm the product is a sum, and the gradient does something wonderful to it:
#
# $$
# P_\theta(\tau) = p(s_0) \prod_{t=0}^{T-1} \pi_\theta(a_t \mid s_t)\, p(s_{t+1} \mid s_t, a_t), \qquad
# \nabla \log P_\theta(\tau) = \sum_{t=0}^{T-1} \nabla \log \pi_\theta(a_t \mid s_t) \tag{6}
# $$
#
# The world has disappeared. Its probabilities do not depend on $\theta$, so the gradient of their logarithm is zero. We
# need not know them, and we need not be able to differentiate them. With the trick (3), applied to trajectories, we
# have the **policy gradient**:
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\tau \sim \pi_\theta}\Big[ \sum_{t=0}^{T-1} \nabla \log \pi_\theta(a_t \mid s_t)\,
# R(\tau) \Big] \tag{7}
# $$
#
# Play, add up for each action the direction that makes it more probable, times the return of the episode. One more
# improvement is free. An action cannot change the rewards that came before it, and by the argument of (5) what it
# cannot change may be left out. So each action is weighted by what came *after* it, the rewards to go:
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\tau \sim \pi_\theta}\Big[ \sum_{t=0}^{T-1} \gamma^t\,
# \nabla \log \pi_\theta(a_t \mid s_t)\, \hat R_t \Big], \qquad \hat R_t = \sum_{k=t}^{T-1} \gamma^{k-t} r_k \tag{8}
# $$
#
# This algorithm is called REINFORCE (R. J. Williams, 1992). Let us check (6) to (8) in a world so small that all its
# trajectories can be listed: two states, two actions, three steps, 64 trajectories.

# %% tags=["check"]
# Equations (6) to (8) in numbers: a sum over all trajectories of a small world, and finite differences.
import itertools

tiny = np.random.default_rng(1)
move_probs = tiny.dirichlet(np.ones(2), size=(2, 2))                        # p(next | state, action)
tiny_rewards, tiny_theta = tiny.normal(size=(2, 2)), tiny.normal(size=(2, 2))


def trajectories(theta):
    """(probability, states, actions) of each trajectory of three steps from state 0."""
    for acts in itertools.product((0, 1), repeat=3):
        for later in itertools.product((0, 1), repeat=3):
            states, probability = (0, *later), 1.0
            for t in range(3):
                probability *= softmax(theta[states[t]])[acts[t]] * move_probs[states[t], acts[t], states[t + 1]]
            yield probability, states[:3], acts


def expected_return(theta, gamma=0.9):
    return sum(p * sum(gamma**t * tiny_rewards[s, a] for t, (s, a) in enumerate(zip(states, acts)))
               for p, states, acts in trajectories(theta))


def policy_score(theta, s, a):
    """The gradient of log pi(a | s) by the table theta."""
    result = np.zeros((2, 2))
    result[s] = np.eye(2)[a] - softmax(theta[s])
    return result


whole, to_go = np.zeros((2, 2)), np.zeros((2, 2))
for p, states, acts in trajectories(tiny_theta):
    discounted = np.array([0.9**t * tiny_rewards[s, a] for t, (s, a) in enumerate(zip(states, acts))])
    for t in range(3):
        whole += p * policy_score(tiny_theta, states[t], acts[t]) * discounted.sum()
        to_go += p * policy_score(tiny_theta, states[t], acts[t]) * discounted[t:].sum()     # gamma^t times R_t
probability_of = lambda x: [p for p, _, _ in trajectories(x)]
classroom.agree('The probabilities of all 64 trajectories, and 1', sum(probability_of(tiny_theta)), 1)
_, states, acts = list(trajectories(tiny_theta))[41]
classroom.agree('(6) for one of them, and differences of the logarithm of its probability',
                sum(policy_score(tiny_theta, s, a) for s, a in zip(states, acts)),
                differences(lambda x: np.log(probability_of(x)[41]), tiny_theta))
classroom.agree('(7), with whole returns, and differences of J', whole, differences(expected_return, tiny_theta))
classroom.agree('(8), with rewards to go, and differences of J', to_go, differences(expected_return, tiny_theta))

# %% [markdown]
# ## A policy gradient in forty lines
#
# Now the program. The policy is a network with one hidden layer: four numbers in, two logits out, and the softmax of
# the logits gives the probabilities of the two actions. In each epoch it plays whole episodes until it has `steps`
# steps, and then makes one step on
#
# `loss = -mean(log pi(a | s) * weight)`
#
# whose gradient is the one in (8), up to the sign and the scale (the mean is taken over steps, not over episodes): the
# framework computes $\nabla \log \pi$ for us. Three remarks before you read.
#
# - The weights are the rewards to go, shifted and scaled to mean 0 and standard deviation 1. The shift is a baseline as
#   in (5): what followed a step on average? The scale only changes the length of the gradient.
# - The factor $\gamma^t$ of (8) is left out. Nearly everybody does so: taken literally it would make the agent careless
#   late in an episode.
# - An episode that is stopped after 500 steps is treated as if nothing would have followed. That is wrong, and the next
#   notebook makes it right.

# %% [markdown] tags=["torch"]
# In PyTorch the loss is written as if it were any other; `backward` differentiates it by all weights of the network.

# %% tags=["torch"]
import torch
from torch import nn


def policy_gradient(epochs, steps=1000, gamma=0.99, rate=0.02, seed=0):
    """Learn CartPole; returns the mean return of the episodes of each epoch."""
    env, rng, curve = gym.make('CartPole-v1'), np.random.default_rng(seed), []
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    env.reset(seed=seed)                                                    # seeds the episodes that follow

    def policy(obs):
        with torch.no_grad():
            probs = torch.softmax(net(torch.as_tensor(obs)), dim=-1)
        return int(rng.random() < probs[1])                                 # 1 with its probability, else 0

    for _ in range(epochs):
        episodes = []
        while sum(len(rewards) for _, _, rewards in episodes) < steps:
            episodes.append(play(env, policy))
        obs = torch.as_tensor(np.concatenate([observations for observations, _, _ in episodes]))         # (batch, 4)
        act = torch.as_tensor(np.concatenate([actions for _, actions, _ in episodes]))                   # (batch,)
        weight = np.concatenate([rewards_to_go(rewards, gamma) for _, _, rewards in episodes])           # (batch,)
        weight = (weight - weight.mean()) / weight.std()

        logp = torch.log_softmax(net(obs), dim=-1)[torch.arange(len(act)), act]                          # (batch,)
        loss = -(logp * torch.as_tensor(weight, dtype=torch.float32)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(np.mean([rewards.sum() for _, _, rewards in episodes]))
    return np.array(curve)

# %% [markdown] tags=["tf1"]
# In TensorFlow, in the style of version 1, the computation is described first, as a graph with placeholders for the
# data, and then run in a session as often as it is needed: once for each action, and once for each step of learning.

# %% [raw] tags=["tf1"]
# from common.mpi_tf import tf
#
#
# def policy_gradient(epochs, steps=1000, gamma=0.99, rate=0.02, seed=0):
#     """Learn CartPole; returns the mean return of the episodes of each epoch."""
#     env, rng, curve = gym.make('CartPole-v1'), np.random.default_rng(seed), []
#     env.reset(seed=seed)                                                    # seeds the episodes that follow
#     draw = lambda *shape: tf.Variable((rng.uniform(-1, 1, shape) / np.sqrt(shape[0])).astype(np.float32))
#     with tf.Graph().as_default(), tf.Session() as sess:
#         obs, act, weight = [tf.placeholder(kind, shape) for kind, shape in
#                             ((tf.float32, (None, 4)), (tf.int32, (None,)), (tf.float32, (None,)))]
#         logits = tf.matmul(tf.tanh(tf.matmul(obs, draw(4, 32)) + draw(32)), draw(32, 2)) + draw(2)
#         probs = tf.nn.softmax(logits)
#         logp = tf.gather(tf.nn.log_softmax(logits), act, batch_dims=1)      # (batch,)
#         loss = -tf.reduce_mean(logp * weight)
#         step = tf.train.AdamOptimizer(rate).minimize(loss)
#         sess.run(tf.global_variables_initializer())
#
#         def policy(seen):
#             return int(rng.random() < sess.run(probs, {obs: seen[None]})[0, 1])    # 1 with its probability
#
#         for _ in range(epochs):
#             episodes = []
#             while sum(len(rewards) for _, _, rewards in episodes) < steps:
#                 episodes.append(play(env, policy))
#             weights = np.concatenate([rewards_to_go(rewards, gamma) for _, _, rewards in episodes])
#             weights = (weights - weights.mean()) / weights.std()
#             sess.run(step, {obs: np.concatenate([observations for observations, _, _ in episodes]),
#                             act: np.concatenate([actions for _, actions, _ in episodes]), weight: weights})
#             curve.append(np.mean([rewards.sum() for _, _, rewards in episodes]))
#     return np.array(curve)

# %% [markdown]
# ## Run it
#
# Twenty-five epochs, three seeds. At the beginning the program does what the random policy of experiment 1 did.

# %%
epochs = classroom.steps(25, fast=3)
seeds = range(classroom.steps(3, fast=1))
learned = np.array([policy_gradient(epochs, steps=classroom.steps(1000, fast=200), seed=seed) for seed in seeds])
fig, ax = classroom.figure()
ax.plot(learned.T, color='C0', linewidth=0.8, alpha=0.5)
ax.plot(learned.mean(0), color='C0', linewidth=2.5)
ax.axhline(means[0], color='gray', linestyle='--', label='random actions')
ax.set(xlabel='epoch', ylabel='mean return', title='A policy gradient in forty lines')
ax.legend()
plt.show()
learned_end = learned[:, -3:].mean()
classroom.claim(learned_end > 4 * means[0], f'the return rises from {learned[:, 0].mean():.0f} to {learned_end:.0f}; '
                f'random actions earn {means[0]:.0f}', full=True)

# %% [markdown]
# Nobody told the program what a pole is. Compare the curve with the policies that we wrote by hand.
#
# ## What is missing
#
# Forty lines learn to balance a pole, and you can now read the files of this repository as answers to what these lines
# do badly:
#
# - A better baseline is one that knows the state: how much reward is to be expected *from here*? A second network can
#   learn it. With it come advantages, and a dial between noise and bias. That is **VPG**, the next notebook.
# - Each epoch of experience serves one step. To take more of them without ruin needs care: **PPO** and **TRPO**.
# - Actions are often continuous, and experience is expensive. To learn from old experience, made by other policies, one
#   gives up the policy gradient (8) for another idea: **DDPG**, **TD3** and **SAC**, the second half of the course.
#
# ## What to take away
#
# - The log-derivative trick turns the gradient of an expectation into an expectation that can be sampled.
# - The world drops out of the gradient. It enters only through the rewards.
# - Every action is made more probable with the weight of what came after it, minus what was to be expected.
# - A baseline does not change the mean. Noise, though, decides whether anything is learned.
#
# **Read on.** R. Sutton and A. Barto, *Reinforcement Learning: An Introduction*, second edition, MIT Press 2018,
# chapters 1 to 3 and 13. R. J. Williams, *Simple Statistical Gradient-Following Algorithms for Connectionist
# Reinforcement Learning*, Machine Learning 8, 1992.
