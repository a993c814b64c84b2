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
# # VPG: the policy gradient, and what it takes to make it work
#
# This notebook reads `vpg_torch.py` from its first line to its last. The code cells with the file's sections are the
# file: what you run here is what `python vpg_torch.py` runs. It is the first algorithm of this course and shares most
# of its text with the next two, PPO and TRPO; so it is worth going through every line of it once, slowly. Around the
# sections you will find the mathematics, a check of every equation by numbers, experiments, and exercises that tell you
# whether you have solved them.
#
# **Goals.** At the end you can
#
# - state the policy gradient theorem, and check it against finite differences in a world small enough to be exact;
# - say what a baseline does and what it does not, and measure how much noise it removes;
# - compute advantages by GAE by hand, choose $\lambda$ knowing what it costs, and say what happens at a termination, at
#   a time limit and at the end of an epoch;
# - explain why the experience of an epoch is good for one step, and why the policy's loss tells you nothing;
# - find a line that is wrong in a program that runs without any error.
#
# **Prerequisites.** Python with numpy, derivatives, expectations. The introduction of this course derives the policy
# gradient from nothing; if you have not read it, you will have to believe equation (2) until it is checked.
#
# **Time.** Two hours with the exercises; all cells together run for about one minute.

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

classroom.begin('vpg', 'torch')

# %% [markdown]
# ## The idea: reinforce what went better than expected
#
# An agent meets a state $s_t$, chooses an action $a_t$ at random according to its **policy** $\pi_\theta(a \mid s)$,
# receives a reward $r_t$ and finds itself in the next state. The policy is a network, and $\theta$ are its weights.
# What we want is a large **return**, the discounted sum of rewards, on average over everything that can happen:
#
# $$
# J(\theta) = \mathbb{E}_{\pi_\theta}\Big[ \sum_{t} \gamma^t r_t \Big] \tag{1}
# $$
#
# We know neither how the world answers nor how the reward comes about, so we cannot differentiate through them. The
# policy gradient theorem says that we need not. With $Q^\pi(s, a)$, the return to expect after action $a$ in state
# $s$,
#
# $$
# \nabla J(\theta) = \mathbb{E}_{\pi_\theta}\Big[ \sum_t \gamma^t\, \nabla \log \pi_\theta(a_t \mid s_t)\,
# Q^\pi(s_t, a_t) \Big] \tag{2}
# $$
#
# Read it from the inside. $\nabla \log \pi_\theta(a \mid s)$ is the direction in the space of weights that makes this
# action more probable in this state. Each action pulls in its own direction, with the force of what followed it. All
# that is differentiated is our own network, and the expectation is over what the agent lives through anyway: play, and
# take an average.
#
# There is a catch, and most of the file is about it: the average is *noisy*. Suppose that all returns are between 100
# and 110. Then every action, good or bad, is pulled up with a force of about 100, and only the small differences carry
# information. The remedy is to subtract what was to be expected. Any number $b(s)$ that does not depend on the action
# may be subtracted, since probabilities sum to one whatever $\theta$ is:
#
# $$
# \mathbb{E}_{a \sim \pi_\theta}\big[ \nabla \log \pi_\theta(a \mid s)\, b(s) \big]
# = b(s)\, \nabla \sum_a \pi_\theta(a \mid s) = b(s)\, \nabla 1 = 0 \tag{3}
# $$
#
# The natural choice is the value of the state, $V^\pi(s)$, the return to expect *before* the action is chosen. What is
# left is the **advantage** of the action, how much better it is than what the policy does on average:
#
# $$
# A^\pi(s, a) = Q^\pi(s, a) - V^\pi(s), \qquad
# \nabla J(\theta) = \mathbb{E}_{\pi_\theta}\Big[ \sum_t \gamma^t\, \nabla \log \pi_\theta(a_t \mid s_t)\,
# A^\pi(s_t, a_t) \Big] \tag{4}
# $$
#
# Now actions that were better than expected are pulled up and the others are pushed down. Nobody tells us $V^\pi$, so a
# second network learns it, and the advantages are estimated with its help. A policy, a value function, advantages, one
# step: that is **vanilla policy gradient**, "vanilla" because it is the plain flavour from which the others are made.

# %% [markdown]
# ### One epoch as a picture
#
# Green are networks, blue is data, orange are losses. The environment and the policy take turns until the buffer is
# full. Then the value function is asked what every observation was worth, and the buffer makes advantages and returns.
# With these the policy takes a single step, and the value function many. Then the experience is thrown away: it was
# made by a policy that no longer exists.

# %%
classroom.diagram(
    boxes=dict(
        env=(0, 0, 'environment', 'env'),
        pi=(1, 0, 'policy\npi(act | obs)', 'net'),
        loss_pi=(2, 0, 'policy loss\n-mean(logp adv)', 'loss'),
        buf=(0, 1, 'VPGBuffer\nobs, act, rew'),
        adv=(1, 1, 'GAE(lambda)\nadv, ret'),
        loss_v=(2, 1, 'squared error\nmean((v - ret)^2)', 'loss'),
        v=(1, 2, 'value function\nv(obs)', 'net'),
    ),
    arrows=[
        ('env', 'pi', 'obs', -0.25), ('pi', 'env', 'act', -0.25), ('env', 'buf', '4000 steps'), ('buf', 'adv'),
        ('v', 'adv', 'val'), ('adv', 'loss_pi', 'adv'), ('pi', 'loss_pi', 'logp', -0.25),
        ('loss_pi', 'pi', 'ONE step', -0.25), ('adv', 'loss_v', 'ret'), ('v', 'loss_v', 'val', 0.2),
        ('loss_v', 'v', '80 steps', 0.2),
    ],
    title='One epoch of VPG',
)

# %% [markdown]
# ## The file's own summary
#
# Every file of this repository opens with the idea, the equations in the names that the code uses, the papers, and its
# neighbours. Learn the names now, for they are the same in all files: `obs` and `act` for observation and action, `rew`
# for one reward and `ret` for a discounted sum of them, `adv` for an advantage, `val` for a value, `logp` for the
# logarithm of a probability. There are only three equations. The rest of the file is what it takes to compute them
# correctly, quickly, for every kind of action, and on many processes at once.

# %% Docstring tags=["section"]
"""Vanilla Policy Gradient (VPG), with a learned value function as its baseline.

The idea: make actions that turned out better than expected more probable, and worse ones less. The value
function says what to expect, and an action's advantage over it weights the gradient of its log-probability. Each
epoch's experience serves one policy step, after which it no longer comes from the current policy and is thrown away.

The equations, in the names of the code:
    adv[t]   = sum over l of (gamma lam)^l delta[t+l],   delta[t] = rew[t] + gamma v(obs[t+1]) - v(obs[t])
    loss_pi  = -mean( logp adv ),                        logp = log pi(act | obs): its gradient is the policy gradient's
    loss_v   = mean( (v(obs) - ret)^2 ),                 ret: the discounted rewards to go

Papers: Sutton et al. 2000, Policy Gradient Methods for Reinforcement Learning with Function Approximation; for adv,
Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438.

Its neighbours: ppo_torch.py takes many clipped steps where this file takes one plain step, trpo_torch.py one step
inside an explicit trust region, and vpg_tf1.py is this file in TensorFlow-1 style.

Run it:
    python vpg_torch.py --env CartPole-v1 --pi_lr 0.01
    mpirun -np 4 python vpg_torch.py --env HalfCheetah-v5 --epochs 250 --seed 1
"""

# %% [markdown] tags=["notes"]
# - `adv[t]   = sum over l of (gamma lam)^l delta[t+l]`: an estimate of $A^\pi(s_t, a_t)$ in (4), for which a single
#   trajectory must do. The section on the buffer explains it.
# - `loss_pi  = -mean( logp adv )`: a minus sign, since optimizers descend and we want to climb. Advantages are data
#   here: no gradient flows through them.
# - `its gradient is the policy gradient's`: and nothing else about this loss is meaningful. Its *value* is not an error
#   that should fall from epoch to epoch; we will see what happens to those who believe in it.
# - `Policy Gradient Methods for Reinforcement Learning with Function Approximation`: the theorem (2) in general. The
#   algorithm without the value function is older: REINFORCE, by R. J. Williams, 1992.
# - `--pi_lr 0.01`: one step for each epoch has to be a large one. The default would be thirty times smaller.

# %% [markdown]
# ## Imports
#
# Nothing that you have to understand in order to understand VPG is imported: no network, no buffer, no loss, no loop.
# What comes from `common/` is plumbing. `make_env` checks that the environment is one that the algorithm can handle,
# turns observations into arrays of float32, and clips continuous actions on their way into the environment.
# `EpochLogger` writes the table of results. The `mpi` functions average over processes; with a single process, as in
# this notebook, there are no others to average with.

# %% Imports tags=["section"]
import time
from types import SimpleNamespace

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.optim import Adam

from common.env_tools import make_env
from common.logx import EpochLogger
from common.mpi_pytorch import mpi_avg_grads, setup_pytorch_for_mpi, setup_saver, sync_params
from common.mpi_tools import mpi_statistics_scalar, num_procs, proc_id
from common.run_utils import command_line, explain_arguments

# %% [markdown] tags=["notes"]
# - `from types import SimpleNamespace`: the arguments of a run travel as one object, `args`, so that a new one does not
#   have to be passed through three signatures.
# - `from gymnasium.spaces import Box`: the type of a space of continuous actions, an interval for each component. If
#   the action space is not a `Box`, it is `Discrete`: one of `n` actions.
# - `import mpi_statistics_scalar, num_procs, proc_id`: mean and standard deviation over all processes; how many there
#   are; which one this is.

# %% [markdown] tags=["notes", "torch"]
# - `from torch.optim import Adam`: the optimizer, with a step size of its own for every weight. Its steps hardly depend
#   on the scale of the loss: multiply the loss by ten, and they stay the same.

# %% [markdown] tags=["notes", "tf1"]
# - `from common.mpi_tf import MpiAdamOptimizer, init_variables, setup_saver, setup_tf_for_mpi, tf`: the module `tf` is
#   TensorFlow 2 with its interface of version 1: graphs, placeholders, sessions. First the computation is described,
#   then it is run, as often as you like.

# %% [markdown]
# ### A world small enough to be exact
#
# Now that numpy is there, let us not believe (1) to (4) but check them. A corridor has seven cells. The agent starts in
# the middle and goes left or right; every step costs 0.1; whoever reaches the right end receives 1, and at the left end
# nothing; at both the episode is over. The policy is a table of logits, two for each inner cell. In so small a world
# everything can be computed without sampling: with the matrix $P$ of transitions under the policy, the values solve
# $V = r + \gamma P V$, a linear system, and the expected discounted visits of the cells are a row of
# $(1 - \gamma P)^{-1}$.

# %%
import gymnasium as gym


class Corridor(gym.Env):
    """Seven cells, of which the outer two end the episode. Observation: the cell. Actions: 0 is left, 1 is right."""
    observation_space, action_space = gym.spaces.Discrete(7), gym.spaces.Discrete(2)

    def __init__(self, cost=0.1):
        self.cost = cost

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 3
        return self.cell, {}

    def step(self, action):
        self.cell += 1 if action == 1 else -1
        return self.cell, (self.cell == 6) - self.cost, self.cell in (0, 6), False, {}


def probabilities(logits):
    """The softmax of each row."""
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def solve_corridor(logits, discount):
    """Exact (V, Q, visits) of the five inner cells under a table of logits (5, 2); visits: expected discounted ones."""
    probs, moves = probabilities(logits), np.zeros((5, 2, 5))                            # moves: (cell, action, next)
    for cell in range(5):
        for action, target in ((0, cell - 1), (1, cell + 1)):
            if 0 <= target < 5:
                moves[cell, action, target] = 1                                          # else the episode has ended
    pay = np.full((5, 2), -0.1)
    pay[4, 1] += 1
    transition = np.einsum('sa,san->sn', probs, moves)
    visits = np.linalg.inv(np.eye(5) - discount * transition)
    values = visits @ (probs * pay).sum(-1)
    return values, pay + discount * moves @ values, visits[2]                            # cell 3 is row 2


def score(probs, action):
    """The gradient of log softmax(logits)[action] by the logits."""
    return np.eye(probs.shape[-1])[action] - probs


world_rng = np.random.default_rng(0)
logit_table, discount = world_rng.normal(size=(5, 2)) / 2, 0.95
probs_table = probabilities(logit_table)
true_v, true_q, visit_weights = solve_corridor(logit_table, discount)
print('V of the inner cells:', true_v.round(3), ' probability of going right:', probs_table[:, 1].round(2))

# %% tags=["check"]
# Equations (1) to (4) in numbers: the return by play, the gradient by the theorem and by finite differences.
def play_corridor(logits, generator):
    """One episode: arrays of the rows (cell - 1), actions and rewards of its steps."""
    world, steps_taken = Corridor(), []
    cell, _ = world.reset()
    ended = False
    while not ended:
        action = int(generator.random() < probabilities(logits)[cell - 1, 1])
        next_cell, reward, ended, _, _ = world.step(action)
        steps_taken.append((cell - 1, action, reward))
        cell = next_cell
    rows, actions, rewards = zip(*steps_taken)
    return np.array(rows), np.array(actions), np.array(rewards)


episodes = [play_corridor(logit_table, world_rng) for _ in range(3000)]
played = np.mean([(discount**np.arange(len(rewards)) * rewards).sum() for _, _, rewards in episodes])
classroom.agree('(1), the return: the mean of 3000 episodes and the exact value', played, true_v[2], tol=0.03)


def by_theorem(weights):
    """The gradient of J with these weights (5, 2) for the actions: the sums over cells and actions, exactly."""
    return sum(visit_weights[cell] * probs_table[cell, action] * weights[cell, action]
               * np.eye(5)[cell][:, None] * score(probs_table[cell], action) for cell in range(5) for action in (0, 1))


nudges = 1e-5 * np.eye(10).reshape(10, 5, 2)
by_differences = np.array([solve_corridor(logit_table + nudge, discount)[0][2]
                           - solve_corridor(logit_table - nudge, discount)[0][2] for nudge in nudges]) / 2e-5
by_differences = by_differences.reshape(5, 2)
classroom.agree('(2), the theorem with Q, and finite differences of the return', by_theorem(true_q), by_differences)
classroom.agree('(3), any baseline, here -7, 0, 7, 14, 21 for the five cells, and 0',
                by_theorem(np.repeat(7.0 * np.arange(-1, 4)[:, None], 2, axis=1)), np.zeros((5, 2)))
classroom.agree('(4), the theorem with advantages, and finite differences',
                by_theorem(true_q - true_v[:, None]), by_differences)

# %% [markdown]
# ## Experiment 1: the same mean, less noise
#
# (2) and (4) have the same expectation, and so has a third, still cruder form, in which every action of an episode is
# weighted by the *whole* return of the episode, including rewards that were received before the action was taken. In
# practice we have samples. From each of the 3000 episodes above we make one estimate of the gradient, in three ways:
# with the whole return, with the rewards to go (what came after the action), and with the rewards to go minus
# $V^\pi$. How far do single estimates scatter around the true gradient?

# %%
import matplotlib.pyplot as plt

estimates = {'whole return': [], 'rewards to go': [], 'rewards to go - V': []}
for rows, actions, rewards in episodes:
    discounted = discount**np.arange(len(rewards)) * rewards
    to_go = np.cumsum(discounted[::-1])[::-1]                            # gamma^t times the rewards to go of step t
    expected_to_go = discount**np.arange(len(rewards)) * true_v[rows]
    scores = np.zeros((len(rows), 5, 2))
    scores[np.arange(len(rows)), rows] = np.eye(2)[actions] - probs_table[rows]
    weightings = np.full(len(rows), discounted.sum()), to_go, to_go - expected_to_go
    for estimate, weighting in zip(estimates.values(), weightings):
        estimate.append((weighting[:, None, None] * scores).sum(0))

scatter = {name: np.sqrt(np.var(estimate, axis=0).sum()) for name, estimate in estimates.items()}
miss = {name: np.linalg.norm(np.mean(estimate, axis=0) - by_differences) for name, estimate in estimates.items()}
fig, axes = classroom.figure(columns=2)
for i, (name, estimate) in enumerate(estimates.items()):
    axes[0].hist(np.array(estimate)[:, 2, 1], bins=np.linspace(-2, 2, 60), histtype='step', linewidth=1.5, label=name)
    axes[1].bar(i, scatter[name], color=f'C{i}')
axes[0].axvline(by_differences[2, 1], color='black', linestyle='--')
axes[0].set(title='one component of the gradient; dashed: its true value', xlabel='estimate from one episode')
axes[0].legend()
axes[1].set(xticks=range(3), xticklabels=list(scatter), title='standard deviation of an estimate')
plt.show()
print('Distance of the mean of 3000 estimates from the true gradient, whose length is '
      f'{np.linalg.norm(by_differences):.2f}:', {name: round(float(value), 3) for name, value in miss.items()})
factor = (scatter['whole return'] / scatter['rewards to go - V'])**2
classroom.claim(scatter['whole return'] > scatter['rewards to go'] > scatter['rewards to go - V'],
                f'one estimate scatters by {scatter["whole return"]:.2f} with whole returns, '
                f'{scatter["rewards to go"]:.2f} with rewards to go and {scatter["rewards to go - V"]:.2f} with the '
                f'baseline: to be equally exact, the first needs {factor:.1f} times as many episodes as the last')

# %% [markdown]
# The price of noise is counted in episodes: the error of a mean falls with the square root of their number, so a
# standard deviation that is twice as large costs four times the experience. And this is a world with five states whose
# episodes last about nine steps on average. In a world with a thousand steps the whole return carries the noise of all
# of them.

# %% [markdown]
# ## Networks
#
# A policy needs three abilities: to *sample* an action, to give the *log-probability* of an action, and to tell its
# *entropy*, how undecided it is, which is only logged. The file has two kinds of policies and uses no library of
# distributions, since each of them is a few lines, and these lines are where many bugs live.
#
# **Discrete actions.** The network gives one number for each action, its logit $\ell_i$, and the probabilities are the
# softmax of the logits. To sample, add independent noise $g_i$ from the standard Gumbel distribution to every logit and
# take the largest,
#
# $$
# \arg\max_i\, (\ell_i + g_i) \;\sim\; \operatorname{softmax}(\ell) \tag{5}
# $$
#
# The usual way is to compare the cumulated probabilities with a uniform random number. This one has a merit of design:
# sampling becomes a plain function of logits and noise. All noise of an epoch is drawn beforehand, in one array, and
# with noise 0 the same function gives the most probable action, which is how a trained policy is tested.
#
# **Continuous actions.** The network gives the means $\mu(s)$ of independent normal distributions, and the logarithms
# of their standard deviations $\sigma$ are parameters of their own, the same in all states. A sample is $\mu + \sigma
# \varepsilon$ with standard normal $\varepsilon$. The log-density of an action with $k$ components is the sum over its
# components
#
# $$
# \log \pi(a \mid s) = -\sum_{i=1}^{k} \left( \frac{1}{2} \Big(\frac{a_i - \mu_i(s)}{\sigma_i}\Big)^2
# + \log \sigma_i + \frac{1}{2} \log 2\pi \right) \tag{6}
# $$
#
# What does the policy gradient do to such a network? It pulls along the gradient of the log-probability, and that is
# simple in both cases:
#
# $$
# \frac{\partial \log \pi(a \mid s)}{\partial \ell_i} = \mathbf{1}[i = a] - \pi(i \mid s), \qquad
# \frac{\partial \log \pi(a \mid s)}{\partial \mu_i} = \frac{a_i - \mu_i}{\sigma_i^2} \tag{7}
# $$
#
# For a discrete action: its own logit goes up, all go down in proportion to their probabilities. An action that was
# nearly certain is pulled hardly at all, for there is nothing to change. For a continuous one: the mean moves towards
# the action that was taken, if that was good, and away from it otherwise. Note the $\sigma^2$ below: as the policy
# becomes certain, the same deviation pulls harder and harder, which makes late training restless.
#
# The value function is one more network, with a single output. The two share nothing, so that the policy's step does
# not disturb the values, and the other way round.
#
# Watch the shapes in the comments. Wherever there is one number for each step, the shape is `(batch,)`. An array of
# shape `(batch, 1)` holds the same numbers, but multiplied with one of shape `(batch,)` it gives a whole matrix.

# %% Networks tags=["section"]
def linear(n_in, n_out, rng):
    """A linear layer. Uniform in +-1/sqrt(n_in) is PyTorch's default too; drawn from rng, the twin's is the same."""
    layer = nn.Linear(n_in, n_out)
    for p in layer.parameters():                                            # the weight, then the bias
        p.data = torch.as_tensor(rng.uniform(-1, 1, p.shape) / np.sqrt(n_in), dtype=torch.float32)
    return layer


def mlp(sizes, activation, rng, output_activation=nn.Identity):
    """A multilayer perceptron: (batch, ...) -> (batch, sizes[-1])."""
    layers = [nn.Flatten()]
    for n_in, n_out in zip(sizes[:-2], sizes[1:-1]):
        layers += [linear(n_in, n_out, rng), activation()]
    return nn.Sequential(*layers, linear(*sizes[-2:], rng), output_activation())


def draw_noise(rng, n, action_space):
    """The noise of n actions: standard normal for a Gaussian policy, standard Gumbel for a categorical one."""
    if isinstance(action_space, Box):
        return rng.standard_normal((n, *action_space.shape), dtype=np.float32)
    return rng.gumbel(size=(n, action_space.n)).astype(np.float32)


class Categorical:
    """The distribution over n actions with probabilities softmax(logits)."""
    def __init__(self, logits):
        self.log_probs = torch.log_softmax(logits, dim=-1)                               # (batch, n)

    def sample(self, noise):
        """The Gumbel-max trick: argmax(logits + Gumbel noise) is a sample of softmax(logits)."""
        return torch.argmax(self.log_probs + noise, dim=-1)

    def log_prob(self, act):
        return self.log_probs.gather(-1, act.long().unsqueeze(-1)).squeeze(-1)           # (batch,)

    def entropy(self):
        return -(torch.exp(self.log_probs) * self.log_probs).sum(-1)


class Gaussian:
    """The normal distribution of independent dimensions with means mu and standard deviations exp(log_std)."""
    def __init__(self, mu, log_std):
        self.mu, self.log_std = mu, log_std                                              # (batch, act_dim), (act_dim,)

    def sample(self, noise):
        return self.mu + torch.exp(self.log_std) * noise

    def log_prob(self, act):
        z = (act - self.mu) * torch.exp(-self.log_std)
        return -0.5 * (z**2).sum(-1) - (self.log_std + 0.5 * np.log(2 * np.pi)).sum(-1)  # (batch,)

    def entropy(self):
        return (self.log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(-1)


class MLPCategoricalActor(nn.Module):
    """Discrete actions: the network gives the logits."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.logits_net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng)

    def forward(self, obs):
        return Categorical(self.logits_net(obs))


class MLPGaussianActor(nn.Module):
    """Continuous actions: the network gives the means; the standard deviations are parameters of their own."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.mu_net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def forward(self, obs):
        return Gaussian(self.mu_net(obs), self.log_std)


class MLPCritic(nn.Module):
    """The value of an observation under the policy."""
    def __init__(self, obs_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.v_net = mlp([obs_dim, *hidden_sizes, 1], activation, rng)

    def forward(self, obs):
        return self.v_net(obs).squeeze(-1)      # squeeze: (batch,) minus (batch, 1) would broadcast silently


class MLPActorCritic(nn.Module):
    """The policy and the value function.

    One of your own (a CNN, say) is an nn.Module made from the same arguments, with two modules, which may share layers:
    pi(obs) -> the distribution of actions, with sample(noise), log_prob(act) (batch,) and entropy();
    v(obs) -> the value (batch,). It need not use rng, which draws the initial weights.
    """
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(64, 64), activation=nn.Tanh):
        super().__init__()
        obs_dim = int(np.prod(observation_space.shape))
        if isinstance(action_space, Box):
            self.pi = MLPGaussianActor(obs_dim, action_space.shape[0], hidden_sizes, activation, rng)
        else:
            self.pi = MLPCategoricalActor(obs_dim, int(action_space.n), hidden_sizes, activation, rng)
        self.v = MLPCritic(obs_dim, hidden_sizes, activation, rng)

# %% [markdown] tags=["notes"]
# - `for n_in, n_out in zip(sizes[:-2], sizes[1:-1]):`: hidden layers, each with its activation. The output layer comes
#   last and has none, since logits, means and values may be any number.
# - `rng.gumbel(size=(n, action_space.n))`: one Gumbel number for each action of each step: `(n, actions)`, and not
#   `(n,)`. A single number added to all logits would change nothing about which is the largest.
# - `return rng.standard_normal((n, *action_space.shape), dtype=np.float32)`: the $\varepsilon$ of the Gaussian policy.
# - `(batch, n)`: log-probabilities, so the sum of their exponentials over the *last* axis is 1. Remember this line when
#   you hunt.
# - `self.log_probs + noise`: equation (5) with log-probabilities instead of logits. They differ by one number for each
#   state, which does not change which is the largest.
# - `self.mu, self.log_std = mu, log_std`: means belong to observations, `(batch, act_dim)`; standard deviations do not,
#   `(act_dim,)`, and broadcasting brings the two together as it should.
# - `squeeze: (batch,) minus (batch, 1) would broadcast silently`: the network's output has a last axis of length 1.
#   Left there, a later subtraction of returns `(batch,)` would give a `(batch, batch)` matrix, without any error.
# - `hidden_sizes=(64, 64), activation=`: two layers of 64, small by the standards of today and enough for most control
#   problems. Tanh is the custom for on-policy algorithms.
# - `obs_dim = int(np.prod(observation_space.shape))`: an observation may have any shape; it is flattened on its way in.
# - `need not use rng, which draws the initial weights`: one generator draws weights and noise, so that the two versions
#   of this file, one for each framework, start from the same weights and take the same first actions.

# %% [markdown] tags=["notes", "torch"]
# - `p.data = torch.as_tensor(rng.uniform(-1, 1, p.shape) / np.sqrt(n_in), dtype=torch.float32)`: with $n$ inputs, each
#   weight at most $1/\sqrt n$: the sum of $n$ such terms is of the order of 1, whatever $n$ is.
# - `return self.log_probs.gather(-1, act.long().unsqueeze(-1)).squeeze(-1)`: picks, in every row, the entry of the
#   action taken. Actions come from the buffer as floats, hence `long`; `gather` wants the same number of axes, hence
#   `unsqueeze`; and the result must be `(batch,)`, hence `squeeze`.
# - `self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))`: a parameter, not the output of a layer. Exploration
#   starts with a standard deviation of $e^{-0.5} \approx 0.6$ in every state, and shrinks if that pays. Its logarithm
#   may be any number, so no step can make the deviation negative.
# - `z = (act - self.mu) * torch.exp(-self.log_std)`: how many standard deviations the action is away from the mean.

# %% [markdown] tags=["notes", "tf1"]
# - `draw = lambda *shape: (rng.uniform(-1, 1, shape) / np.sqrt(n_in)).astype(np.float32)`: with $n$ inputs, each weight
#   at most $1/\sqrt n$: the sum of $n$ such terms is of the order of 1, whatever $n$ is.
# - `class Linear(tf.Module):`: in graph style a layer is built once and called wherever its output is needed; the
#   variables belong to the object, so calling it twice does not make them twice.
# - `tf.gather(self.log_probs, tf.cast(act, tf.int32), batch_dims=1)`: picks, in every row, the entry of the action
#   taken. Actions come from the buffer as floats, hence the cast. Without `batch_dims` it would pick whole rows.
# - `self.log_std = tf.Variable(tf.fill((act_dim,), -0.5), name='log_std')`: a variable, not the output of a layer.
#   Exploration starts with a standard deviation of $e^{-0.5} \approx 0.6$ in every state, and shrinks if that pays. Its
#   logarithm may be any number, so no step can make the deviation negative.
# - `z = (act - self.mu) * tf.exp(-self.log_std)`: how many standard deviations the action is away from the mean.

# %% [markdown]
# In the cell below `classroom.call` gives arrays to a function of the file as tensors and returns arrays, and
# `classroom.gradient` differentiates its result by the first of them. So we can hold the file's own code against the
# formulas. If (6) is a density, then its exponential integrates to one, here over a grid in two dimensions.

# %% tags=["check"]
# Equations (5) to (7) in numbers: frequencies against softmax, an integral of 1, and two gradients.
three_logits = np.array([1.0, 0.0, -2.0])
gumbel_noise = draw_noise(np.random.default_rng(0), 200_000, gym.spaces.Discrete(3)).astype(np.float64)
samples = classroom.call(lambda logits, noise: Categorical(logits).sample(noise), three_logits, gumbel_noise)
classroom.agree('(5), frequencies of Gumbel-max samples and softmax', np.bincount(samples) / len(samples),
                probabilities(three_logits), tol=0.005)

grid = np.linspace(-7, 7, 281)
points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)                       # (281 * 281, 2)
center, log_spread = np.array([0.3, -1.0]), np.array([-0.5, 0.2])
log_density = classroom.call(lambda act, mu, log_std: Gaussian(mu, log_std).log_prob(act), points, center, log_spread)
area = (grid[1] - grid[0])**2
classroom.agree('(6), the integral of the Gaussian density and 1', np.exp(log_density).sum() * area, 1, tol=1e-4)

by_logits = classroom.gradient(lambda logits, act: Categorical(logits).log_prob(act), three_logits[None], np.array([2]))
classroom.agree('(7), the gradient by the logits and its formula', by_logits[0],
                np.eye(3)[2] - probabilities(three_logits))
by_means = classroom.gradient(lambda mu, act, log_std: Gaussian(mu, log_std).log_prob(act), center[None],
                              np.array([[1.0, 1.0]]), log_spread)
classroom.agree('(7), the gradient by the means and its formula', by_means[0], (1 - center) / np.exp(2 * log_spread))

# %% [markdown]
# ## Buffer
#
# Now for the advantages. In the corridor we could compute them; in the world we have one trajectory, and a value
# function $V$ that is more or less wrong. How much better than expected did it go? After one step the answer is the
# **temporal-difference residual**
#
# $$
# \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t) \tag{8}
# $$
#
# the reward that came, plus what $V$ says about the place where we are now, minus what it said before. If $V$ were
# exact, the expectation of $\delta_t$ would be the advantage. It has little noise, that of a single step; but if $V$
# is wrong, so is $\delta_t$, however many samples we take. At the other extreme we wait to the end and sum all rewards:
# no bias, much noise. **Generalized advantage estimation** (GAE) is the dial between the two. In a trajectory of $T$
# steps it adds up the residuals from step $t$ on, discounting each by $\gamma\lambda$ once more than the one before it:
#
# $$
# \hat A_t = \sum_{l=0}^{T-t-1} (\gamma\lambda)^l\, \delta_{t+l} \tag{9}
# $$
#
# With $\lambda = 0$ only $\delta_t$ remains. With $\lambda = 1$ the values in between cancel in pairs, and what is left
# is the discounted sum of rewards minus $V(s_t)$ (plus the value behind the end, where the trajectory was cut; see
# below): the estimate of experiment 1, with the network in the place of $V^\pi$. A double loop over (9) would take time
# quadratic in the length of the trajectory. But the sum at $t$ contains the sum at $t + 1$, so one pass from the end to
# the beginning does it. A second recursion of the same kind gives the **rewards to go**, which are the targets from
# which $V$ learns:
#
# $$
# \hat A_t = \delta_t + \gamma\lambda\, \hat A_{t+1}, \qquad \hat R_t = r_t + \gamma \hat R_{t+1} \tag{10}
# $$
#
# Now a question that has cost many people many weeks: *what stands behind the last step?* A trajectory can end in three
# ways.
#
# - It **terminated**: the pole fell, the corridor was left. Nothing follows, and the value of nothing is 0.
# - It was **truncated**: a time limit struck. The pole still stands. What would have followed is worth $V(s_T)$.
# - The **epoch** is over while the episode goes on. Again $V(s_T)$.
#
# So the buffer notes with every end the observation behind it, and whether it was a termination. It computes nothing
# while the agent plays. When the epoch is complete, it is handed the values of all steps and all ends, which the
# network has computed in one batch, and makes everything from them.
#
# Finally the advantages of the epoch are shifted and scaled to mean 0 and standard deviation 1.
#
# $$
# \hat A_t \leftarrow \frac{\hat A_t - \operatorname{mean}(\hat A)}{\operatorname{std}(\hat A) + 10^{-8}} \tag{11}
# $$
#
# To subtract the mean is to use one more baseline, and (3) allows it (almost: an advantage has a share in its own mean,
# but one of thousands). It is a strong one: it alone protects us from the case in which all returns are about 100, even
# while the value function has not learned anything yet. The division makes the gradient's size independent of the scale
# of the rewards.

# %% Buffer tags=["section"]
class VPGBuffer:
    """One process's experience of one epoch, with advantages by GAE(lambda) and rewards to go."""
    def __init__(self, obs_space, act_space, size, gamma, lam):
        self.obs = np.zeros((size, *obs_space.shape), dtype=obs_space.dtype)
        self.act = np.zeros((size, *act_space.shape), dtype=np.float32)
        self.rew = np.zeros(size)
        self.gamma, self.lam, self.size = gamma, lam, size
        self.ptr, self.paths = 0, []

    def store(self, obs, act, rew):
        """Append one step."""
        self.obs[self.ptr], self.act[self.ptr], self.rew[self.ptr] = obs, act, rew
        self.ptr += 1

    def finish_path(self, last_obs, terminated):
        """A trajectory ends here, at last_obs: it terminated, or it was truncated, or the epoch's end cuts it."""
        self.paths.append((self.ptr, last_obs, terminated))

    def last_obs(self):
        """The observation after each trajectory's last step, (trajectories, *obs_space.shape)."""
        return np.array([last_obs for _, last_obs, _ in self.paths])

    def get(self, val, logp, last_val):
        """The epoch's data, given V and log pi of every step (size,) and V of every last_obs (trajectories,)."""
        assert self.ptr == self.size == self.paths[-1][0], 'the epoch is not complete'
        assert val.shape == logp.shape == (self.size,), 'v and log_prob must give (batch,), not (batch, 1)'
        adv, ret, rew, val = np.zeros(self.size), np.zeros(self.size), self.rew.tolist(), val.tolist()
        start = 0
        for (end, _, terminated), next_val in zip(self.paths, last_val.tolist()):
            # What follows a trajectory is worth nothing if it terminated, and V(last_obs) if it was only cut.
            next_val = 0 if terminated else next_val
            next_adv, next_ret = 0, next_val
            for t in reversed(range(start, end)):
                delta = rew[t] + self.gamma * next_val - val[t]
                adv[t] = next_adv = delta + self.gamma * self.lam * next_adv
                ret[t] = next_ret = rew[t] + self.gamma * next_ret
                next_val = val[t]
            start = end
        self.ptr, self.paths = 0, []
        mean, std = mpi_statistics_scalar(adv)
        data = dict(obs=self.obs, act=self.act, adv=(adv - mean) / (std + 1e-8), ret=ret, logp=logp)
        return {key: np.asarray(array, dtype=np.float32) for key, array in data.items()}

# %% [markdown] tags=["notes"]
# - `self.act = np.zeros((size, *act_space.shape), dtype=np.float32)`: discrete actions have the shape `()`, so this is
#   `(size,)` for them and `(size, act_dim)` for continuous ones.
# - `self.rew = np.zeros(size)`: float64, unlike observations. Sums over a thousand discounted rewards lose digits in
#   float32.
# - `self.obs[self.ptr], self.act[self.ptr], self.rew[self.ptr] = obs, act, rew`: one row is one step: what was seen,
#   what was done, and what *that* earned. The reward is that of the action in the same row.
# - `self.paths.append((self.ptr, last_obs, terminated))`: `terminated` and nothing else. If a time limit has
#   *truncated* the episode, this is False, and so it is if only the end of the epoch cuts it.
# - `v and log_prob must give (batch,), not (batch, 1)`: the trap from the networks, stopped at the door.
# - `adv, ret, rew, val = np.zeros(self.size), np.zeros(self.size), self.rew.tolist(), val.tolist()`: in a Python loop,
#   numbers from a list are several times faster than numbers from an array.
# - `next_val = 0 if terminated else next_val`: the question of the last step, in one line.
# - `next_adv, next_ret = 0, next_val`: behind the end there are no residuals to collect, but there is a return: the
#   rewards to go continue with $V$ where the trajectory was only cut.
# - `for t in reversed(range(start, end)):`: each trajectory by itself, from its last step to its first.
# - `delta = rew[t] + self.gamma * next_val - val[t]`: equation (8).
# - `adv[t] = next_adv = delta + self.gamma * self.lam * next_adv`: equation (10), left.
# - `ret[t] = next_ret = rew[t] + self.gamma * next_ret`: equation (10), right.
# - `next_val = val[t]`: we walk backwards; the value of this step is what follows the step before it.
# - `mean, std = mpi_statistics_scalar(adv)`: of the advantages of *all* processes, so that all scale alike.
# - `adv=(adv - mean) / (std + 1e-8)`: equation (11). Where all advantages are equal the standard deviation is 0, and
#   without the small number everything after this line would be NaN.

# %% [markdown]
# **Exercise 1 (implement).** Write (8) to (10) for one trajectory: advantages and rewards to go, in one pass from the
# end. The check compares your function with the plain double sums, and the next cell holds the same sums against the
# file's buffer.

# %% tags=["exercise"]
def my_advantages(rew, val, last_val, gamma, lam):
    """(adv, ret), each (steps,), of one trajectory. rew, val: (steps,); last_val: what follows the last step."""
    ### BEGIN SOLUTION
    adv, ret = np.zeros(len(rew)), np.zeros(len(rew))
    next_val, next_adv, next_ret = last_val, 0, last_val
    for t in reversed(range(len(rew))):
        delta = rew[t] + gamma * next_val - val[t]
        adv[t] = next_adv = delta + gamma * lam * next_adv
        ret[t] = next_ret = rew[t] + gamma * next_ret
        next_val = val[t]
    return adv, ret
    ### END SOLUTION


def by_definition(rew, val, last_val, gamma, lam):
    """The same by (8), (9) and the plain sum of discounted rewards: slow, and hard to get wrong."""
    steps_left, values, rewards = len(rew), np.append(val, last_val), np.append(rew, last_val)
    deltas = rew + gamma * values[1:] - values[:-1]
    adv = [sum((gamma * lam)**l * deltas[t + l] for l in range(steps_left - t)) for t in range(steps_left)]
    ret = [sum(gamma**l * rewards[t + l] for l in range(steps_left - t + 1)) for t in range(steps_left)]
    return np.array(adv), np.array(ret)


example_rew, example_val = world_rng.normal(size=7), world_rng.normal(size=7)
classroom.check('Exercise 1', lambda: my_advantages(example_rew, example_val, 2.0, 0.9, 0.8),
                by_definition(example_rew, example_val, 2.0, 0.9, 0.8),
                hint='three numbers travel backwards with you: the next value, advantage and return')

# %% tags=["check"]
# Equations (8) to (11) in numbers: the buffer's backward pass against the definitions, with two kinds of ends.
example = VPGBuffer(Box(-1, 1, (1,)), Box(-1, 1, ()), size=7, gamma=0.9, lam=0.8)
for t in range(7):
    example.store(np.zeros(1), 0, example_rew[t])
    if t == 3:
        example.finish_path(np.zeros(1), terminated=True)               # the first trajectory: four steps, then the end
    if t == 6:
        example.finish_path(np.zeros(1), terminated=False)              # the second: three steps, cut
example_data = example.get(example_val, np.zeros(7), last_val=np.array([100.0, 2.0]))    # the 100 must have no effect

raw_adv, raw_ret = np.concatenate([by_definition(example_rew[:4], example_val[:4], 0, 0.9, 0.8),
                                   by_definition(example_rew[4:], example_val[4:], 2, 0.9, 0.8)], axis=1)
classroom.agree('Advantages by the buffer and by definition', example_data['adv'],
                (raw_adv - raw_adv.mean()) / (raw_adv.std() + 1e-8))
classroom.agree('Rewards to go by the buffer and by definition', example_data['ret'], raw_ret)
telescoped = by_definition(example_rew, example_val, 2, 0.9, 1.0)
classroom.agree('With lambda = 1, advantages and rewards to go minus V', telescoped[0], telescoped[1] - example_val)

# %% [markdown]
# ## Experiment 2: the dial between bias and noise
#
# Back to the corridor, where we know the truth. What decides between two actions is the *difference* of their
# advantages, so we estimate by how much going right is better than going left in the start cell: by (9), from an
# episode that begins with the one and another that begins with the other, for many $\lambda$. Once $V$ is exact; once
# it is what an untrained network might say, 0 everywhere. An estimate errs in two ways: by its **bias**, the distance
# of its mean from the truth, which no amount of data removes, and by its **noise**, the standard deviation of a single
# estimate.

# %%
first_steps = [[episode for episode in episodes if episode[1][0] == action] for action in (0, 1)]
true_difference = true_q[2, 1] - true_q[2, 0]
lambdas = np.linspace(0, 1, 11)
errors = {}
for believed, value_table in (('exact V', true_v), ('V = 0', np.zeros(5))):
    means, variances = [], []
    for group in first_steps:
        guesses = np.zeros((len(lambdas), len(group)))
        for j, (rows, _, rewards) in enumerate(group):
            values = np.append(value_table[rows], 0)
            deltas = rewards + discount * values[1:] - values[:-1]
            guesses[:, j] = ((discount * lambdas[:, None])**np.arange(len(deltas)) * deltas).sum(1)
        means.append(guesses.mean(1))
        variances.append(guesses.var(1))
    errors[believed] = np.abs(means[1] - means[0] - true_difference), np.sqrt(variances[0] + variances[1])

fig, axes = classroom.figure(columns=2)
for believed, (bias, noise_level) in errors.items():
    axes[0].plot(lambdas, bias, 'o-', label=believed)
    axes[1].plot(lambdas, noise_level, 'o-', label=believed)
axes[0].set(title=f'bias (the truth is {true_difference:.2f})', xlabel='lambda')
axes[1].set(title='standard deviation of one estimate', xlabel='lambda')
axes[0].legend()
plt.show()
bias, noise_level = errors['exact V']
classroom.claim(bias.max() < 0.05 and noise_level[-1] > 0.2 and noise_level[0] < 1e-6,
                f'with the exact V every lambda is right on average (the bias is at most {bias.max():.3f}); the noise '
                f'grows from {abs(noise_level[0]):.2f} at lambda = 0 to {noise_level[-1]:.2f} at lambda = 1')
bias, noise_level = errors['V = 0']
classroom.claim(bias[0] > 3 * bias[-1],
                f'with V = 0 the bias is {bias[0]:.2f} at lambda = 0, {bias[5]:.2f} at 0.5 and {bias[-1]:.2f} at 1')

# %% [markdown]
# The left picture says what is wrong with $\lambda = 0$ while the value function is still learning, and the right one
# what is wasted by $\lambda = 1$ once it is good. The file's default is 0.97, close to 1: noise averages out over
# thousands of steps, bias does not.
#
# ## Losses
#
# Three short functions of tensors, without networks and without data of their own. The first is a surrogate whose
# gradient is minus (4), with the mean over steps for the expectation and GAE for the advantage,
#
# $$
# L_\pi(\theta) = -\frac{1}{n} \sum_{t=1}^{n} \log \pi_\theta(a_t \mid s_t)\, \hat A_t, \qquad
# \nabla L_\pi = -\frac{1}{n} \sum_{t=1}^{n} \nabla \log \pi_\theta(a_t \mid s_t)\, \hat A_t \tag{12}
# $$
#
# Two things deserve a second look. First, this is a loss only in name. The distribution of the data depends on the
# parameters, and the formula does not show it; so only its gradient, and only at the parameters that collected the
# data, has anything to do with the return. Second, where is the $\gamma^t$ of (4)? It is missing, here as in nearly
# every implementation. Taken literally it would tell the agent not to care how it behaves after step 500, since
# $0.99^{500} < 0.01$. Nobody wants that, so $\gamma$ is kept inside of the advantages, where it limits the noise, and
# dropped from the weights of the states. What remains is, strictly speaking, not the gradient of (1), nor of any other
# function (C. Nota and P. Thomas, 2020, show it). We will measure by how much it deviates in the corridor.
#
# The value function learns by least squares. The number that minimises a mean of squares is the mean, so $V$ tends to
# the *expected* rewards to go, which is what a value is:
#
# $$
# L_V = \frac{1}{n} \sum_{t} \big( V(s_t) - \hat R_t \big)^2, \qquad
# \frac{\partial L_V}{\partial V(s_t)} = \frac{2}{n} \big( V(s_t) - \hat R_t \big) \tag{13}
# $$
#
# The third function is an instrument: how far has the policy moved? With the ratio $\rho = \pi_\theta / \pi_\text{old}$
# of the probabilities after and before the step, the Kullback-Leibler divergence is
#
# $$
# \mathrm{KL}(\pi_\text{old}, \pi_\theta) = \mathbb{E}_{a \sim \pi_\text{old}}\big[ -\log \rho \big]
# = \mathbb{E}_{a \sim \pi_\text{old}}\big[ (\rho - 1) - \log \rho \big] \tag{14}
# $$
#
# since $\mathbb{E}[\rho] = \sum_a \pi_\text{old} \cdot \pi_\theta / \pi_\text{old} = 1$. The file averages the second
# form over the recorded actions, because each of its terms is at least 0 ($x - 1 \ge \log x$). VPG only logs it. PPO
# and TRPO, the next two algorithms, act on it.

# %% Losses tags=["section"]
def compute_loss_pi(logp, adv):
    """loss_pi = -mean( logp adv )"""
    return -(logp * adv).mean()


def compute_loss_v(val, ret):
    """loss_v = mean( (v(obs) - ret)^2 )"""
    return ((val - ret)**2).mean()


def compute_kl(logp, logp_old):
    """KL(pi_old, pi) estimated from the actions of pi_old: mean( (ratio - 1) - log ratio ), which is never negative."""
    return (torch.expm1(logp - logp_old) - (logp - logp_old)).mean()

# %% [markdown] tags=["notes", "torch"]
# - `return -(logp * adv).mean()`: equation (12), whole. Both are `(batch,)`, and the product is taken step by step.
# - `return ((val - ret)**2).mean()`: equation (13). Two shapes `(batch,)`, or it is not what it looks like.
# - `torch.expm1(logp - logp_old) - (logp - logp_old)`: equation (14). `expm1(x)` is $e^x - 1$, without the loss of
#   digits that subtracting 1 from a number close to 1 brings.

# %% [markdown] tags=["notes", "tf1"]
# - `return -tf.reduce_mean(logp * adv)`: equation (12), whole. Both are `(batch,)`, and the product is taken step by
#   step.
# - `return tf.reduce_mean((val - ret)**2)`: equation (13). Two shapes `(batch,)`, or it is not what it looks like.
# - `tf.expm1(logp - logp_old) - (logp - logp_old)`: equation (14). `expm1(x)` is $e^x - 1$, without the loss of digits
#   that subtracting 1 from a number close to 1 brings.

# %% [markdown]
# Now the promise of this page: the gradient of the file's own loss against finite differences of the return. We give
# `compute_loss_pi` all ten pairs of cell and action of the corridor, each with its exact advantage, weighted by how
# often it occurs. Then we leave out the $\gamma^t$, as the file does, and compare the directions.

# %% tags=["check"]
# Equations (12) to (14) in numbers: the file's loss and the return's gradient, the value loss, and a KL divergence.
def corridor_loss(logits, act, weights):
    """The file's loss for the ten pairs of cell and action."""
    return compute_loss_pi(Categorical(logits).log_prob(act), weights)


def loss_gradient(visits):
    """Minus the gradient of the file's loss by the table of logits, if the cells are visited so often."""
    weights = 10 * (visits[:, None] * probs_table * (true_q - true_v[:, None])).reshape(10)      # 10: it takes the mean
    return -classroom.gradient(corridor_loss, np.repeat(logit_table, 2, axis=0), np.tile([0, 1], 5),
                               weights).reshape(5, 2, 2).sum(1)


classroom.agree("(12), minus the gradient of the file's loss and finite differences of the return",
                loss_gradient(visit_weights), by_differences)
as_the_file = loss_gradient(solve_corridor(logit_table, 1.0)[2])                                 # visits not discounted
cosine = (as_the_file * by_differences).sum() / np.linalg.norm(as_the_file) / np.linalg.norm(by_differences)
degrees = np.degrees(np.arccos(cosine))
classroom.claim(0 < degrees < 20, f'without gamma^t the direction changes by {degrees:.1f} degrees in this corridor')

v_guess, v_target = world_rng.normal(size=6), world_rng.normal(size=6)
classroom.agree('(13), the gradient of the value loss and its formula',
                classroom.gradient(compute_loss_v, v_guess, v_target), 2 * (v_guess - v_target) / 6)
old_probs, new_probs = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
taken = world_rng.choice(3, size=100_000, p=old_probs)                                           # by the old policy
classroom.agree('(14), compute_kl and the exact KL divergence',
                classroom.call(compute_kl, np.log(new_probs)[taken], np.log(old_probs)[taken]),
                (old_probs * np.log(old_probs / new_probs)).sum(), tol=5e-4)

# %% [markdown]
# **Exercise 2 (implement).** Compute the gradient of (12) without any framework. Given the logits of a batch, the
# actions taken and the advantages, return the gradient of $L_\pi$ by the logits, in numpy. You have all that you need
# in (7) and (12). The check differentiates the file's function.

# %% tags=["exercise"]
def my_gradient(logits, act, adv):
    """The gradient (batch, n) of loss_pi by the logits (batch, n). act: (batch,) integers; adv: (batch,)."""
    ### BEGIN SOLUTION
    scores = np.eye(logits.shape[1])[act] - probabilities(logits)
    return -adv[:, None] * scores / len(adv)
    ### END SOLUTION


batch_logits, batch_act, batch_adv = world_rng.normal(size=(4, 3)), np.array([0, 2, 1, 1]), world_rng.normal(size=4)
classroom.check('Exercise 2', lambda: my_gradient(batch_logits, batch_act, batch_adv),
                classroom.gradient(corridor_loss, batch_logits, batch_act, batch_adv),
                hint='np.eye(3)[act] has a 1 in each row, for the action taken; the loss is minus a mean')

# %% [markdown]
# ## Update
#
# The agent owns the networks and their optimizers, and it knows three things: how to act, how to evaluate an epoch, and
# how to improve. The training loop, which comes next, sees nothing else of it.
#
# An update is one step on the policy and `train_v_iters` steps on the value function. Why one here and eighty there?
# The value function solves a regression: the targets $\hat R_t$ are given, and nothing is wrong with fitting them
# better (within the limits that any regression has). The policy's loss (12) is valid at one point only, where the data
# were collected. After the first step we are somewhere else. Experiment 3 will show what further steps are worth.
#
# There is an order that matters: values are computed *before* the value function learns from the epoch. Fit $V$ to the
# returns first and then compute $\hat R_t - V(s_t)$, and you find small advantages everywhere, because $V$ has seen the
# answers. In this file `evaluate` runs first, and its results are data.
#
# Note what `update` returns. `LossPi` and `LossV` are those *before* the update, their changes are called `Delta`, and
# `KL` and `Entropy` describe the policy after it. These columns are your instruments. An entropy that falls to zero
# within a few epochs is a policy that has stopped exploring; a KL of exactly zero is one that does not learn.

# %% Update tags=["section"]
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    def __init__(self, env, rng, args):
        self.args = args
        setup_pytorch_for_mpi(rng.integers(2**31))              # for layers with random numbers of their own: dropout
        self.ac = args.actor_critic(env.observation_space, env.action_space, rng, **args.ac_kwargs)
        sync_params(self.ac.eval())                             # in mode train() only while it is trained
        self.pi_optimizer = Adam(self.ac.pi.parameters(), lr=args.pi_lr, fused=True)
        self.vf_optimizer = Adam(self.ac.v.parameters(), lr=args.vf_lr, fused=True)

    def act(self, obs, noise=0):
        """An action for one observation, by the network itself; without noise, the most likely one."""
        with torch.inference_mode():
            obs, noise = torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(noise, dtype=torch.float32)
            return self.ac.pi(obs[None]).sample(noise)[0].numpy()

    def evaluate(self, obs, act, last_obs):
        """V(obs), log pi(act | obs) and V(last_obs) of a whole epoch at once, which is faster than at each step."""
        with torch.no_grad():
            obs, act, last_obs = [torch.as_tensor(x, dtype=torch.float32) for x in (obs, act, last_obs)]
            return self.ac.v(obs).numpy(), self.ac.pi(obs).log_prob(act).numpy(), self.ac.v(last_obs).numpy()

    def compute_metrics(self, obs, act, adv, ret, logp_old):
        """What is logged about the policy and the value function as they are: numbers, or arrays to be averaged."""
        dist, val = self.ac.pi(obs), self.ac.v(obs)
        logp = dist.log_prob(act)
        return dict(
            LossPi=compute_loss_pi(logp, adv),
            LossV=compute_loss_v(val, ret),
            Entropy=dist.entropy(),
            KL=compute_kl(logp, logp_old),
        )

    def metrics(self, batch):
        with torch.no_grad():
            return {key: value.float().mean().item() for key, value in self.compute_metrics(*batch).items()}

    def step_pi(self, batch):
        """One step on the policy."""
        obs, act, adv, _, logp_old = batch
        logp = self.ac.pi(obs).log_prob(act)
        self.pi_optimizer.zero_grad()
        compute_loss_pi(logp, adv).backward()
        mpi_avg_grads(self.ac.pi)
        self.pi_optimizer.step()

    def step_v(self, batch):
        """One step on the value function."""
        obs, _, _, ret, _ = batch
        self.vf_optimizer.zero_grad()
        compute_loss_v(self.ac.v(obs), ret).backward()
        mpi_avg_grads(self.ac.v)
        self.vf_optimizer.step()

    def update(self, data):
        """Improve the policy, then the value function, on one epoch's data; returns what is logged about it."""
        batch = [torch.as_tensor(data[key]) for key in ('obs', 'act', 'adv', 'ret', 'logp')]
        old = self.metrics(batch)
        self.ac.train()                                         # dropout, say, is active in training, not in acting

        self.step_pi(batch)

        for _ in range(self.args.train_v_iters):
            self.step_v(batch)

        self.ac.eval()
        new = self.metrics(batch)
        return dict(LossPi=old['LossPi'], LossV=old['LossV'], DeltaLossPi=new.pop('LossPi') - old['LossPi'],
                    DeltaLossV=new.pop('LossV') - old['LossV'], **new)

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, 'state_dict')}

    def set_state(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

# %% [markdown] tags=["notes"]
# - `def act(self, obs, noise=0):`: the network that is trained is the network that acts; there is no copy that could
#   lag behind.
# - `def evaluate(self, obs, act, last_obs):`: once for each epoch, in one batch. The policy does not change while it
#   plays, so this gives the same numbers as asking at every step, and takes a fraction of the time.
# - `LossPi=compute_loss_pi(logp, adv),`: before the update its value says little: with advantages of mean 0 it is the
#   covariance of log-probability and advantage, up to sign. It may be negative, and it need not fall over a run.
# - `Entropy=dist.entropy(),`: of a policy with two actions at most $\log 2 \approx 0.69$. The entropy of a Gaussian is
#   that of a density and may be negative.
# - `self.step_pi(batch)`: the single step. PPO has a loop here.
# - `for _ in range(self.args.train_v_iters):`: after the policy's step and with the same returns. The order of the two
#   does not matter, since they share no parameter and the advantages are data.
# - `DeltaLossV=new.pop('LossV') - old['LossV']`: negative if the update did its work.

# %% [markdown] tags=["notes", "torch"]
# - `sync_params(self.ac.eval())`: with many processes, all start from the weights of the first.
# - `with torch.inference_mode():`: acting needs no gradients, and most of the time of a run is acting.
# - `return self.ac.pi(obs[None]).sample(noise)[0].numpy()`: the network takes batches. `obs[None]` is a batch of one,
#   and `[0]` unpacks it.
# - `self.pi_optimizer.zero_grad()`: `backward` adds to the gradients that are there. Without this line every step would
#   be made with the sum of all gradients so far.
# - `mpi_avg_grads(self.ac.pi)`: between gradient and step, so that all make the same step, with the mean of their
#   gradients.

# %% [markdown] tags=["notes", "tf1"]
# - `self.sess = setup_tf_for_mpi(rng.integers(2**31))`: a new graph and a new session for every agent, so that a
#   training function can be called twice in one notebook.
# - `noise, dist = tf.placeholder(tf.float32), self.ac.pi(obs)`: a placeholder is an input of the graph, filled in at
#   each run. This one has no shape, so that it takes an array of noise or the number 0.
# - `self.train_pi = pi_optimizer.minimize(metrics['LossPi'], var_list=self.ac.pi.trainable_variables)`: `var_list` says
#   whose step it is. The gradients are averaged over all processes on the way.
# - `return self.run('act', obs=obs[None], noise=noise)[0]`: the network takes batches. `obs[None]` is a batch of one,
#   and `[0]` unpacks it.
# - `return {key: np.mean(value) for key, value in self.sess.run(self.outputs['metrics'], batch).items()}`: arrays are
#   averaged here, outside of the graph.

# %% [markdown]
# ## Training
#
# The signature is the list of all knobs, each with its meaning; the command line is made from it. The body makes
# environment, agent, buffer and logger, and then repeats: play an epoch, evaluate it, update, write one row of the
# table. But for names, the body is the same in VPG, PPO and TRPO. All that makes an algorithm out of it is in the
# agent.
#
# Read the inner loop with one question in mind: which of the three ways to end does each line stand for? `ended` is
# about the *episode*: it decides about resetting the environment and about logging a return. `terminated` is about the
# *future*: it decides what the last step is worth. To use the first where the second is meant is perhaps the most
# common mistake in this field, and no table and no plot complains.
#
# And mind the order of the lines. An observation, the action chosen in it and the reward for this action belong
# together. When the loop comes to `buf.store`, the environment has already answered with a *new* observation, and the
# old one must be stored.

# %% Training tags=["section"]
@explain_arguments
def vpg(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=MLPActorCritic,        # the networks, made from (observation_space, action_space, rng, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; process i uses seed + 10000 i
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=50,                          # epochs of experience and update
    gamma=0.99,                         # discount of the future, per step
    lam=0.97,                           # lambda of GAE: 0 relies on the value function, 1 on the rewards
    pi_lr=3e-4,                         # learning rate of the policy
    vf_lr=1e-3,                         # learning rate of the value function
    train_v_iters=80,                   # gradient steps on the value function in an epoch
    max_ep_len=1000,                    # longest episode; a longer one is truncated
    logger_kwargs=dict(),               # arguments of EpochLogger: where the results go
    save_freq=10,                       # epochs from one saved model and checkpoint to the next
):
    """Train, and return the agent. The command line has a flag for each of these arguments."""
    args = SimpleNamespace(**locals())
    seed += 10000 * proc_id()
    rng = np.random.default_rng(seed)
    env = make_env(env_fn)
    env.action_space.seed(seed)
    agent = Agent(env, rng, args)
    local_steps = steps_per_epoch // num_procs()
    buf = VPGBuffer(env.observation_space, env.action_space, local_steps, gamma, lam)
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(vars(args), vpg, env)
    setup_saver(agent, logger)

    (obs, _), ep_ret, ep_len, start_epoch = env.reset(seed=seed), 0, 0, 0
    saved = logger.load_state()                         # None, except for a run that is resumed
    if saved:
        agent.set_state(saved['agent'])
        rng.bit_generator.state = saved['rng']
        (obs, ep_ret, ep_len), start_epoch = env.replay_episode(saved['env']), saved['epoch']

    for epoch in range(start_epoch, epochs):
        noise = draw_noise(rng, local_steps, env.action_space)
        for t in logger.progress(local_steps, epoch, epochs):
            act = agent.act(obs, noise[t])
            next_obs, rew, terminated, truncated, _ = env.step(act)
            buf.store(obs, act, rew)
            obs, ep_ret, ep_len = next_obs, ep_ret + rew, ep_len + 1

            ended = terminated or truncated or ep_len == max_ep_len
            if ended or t == local_steps - 1:           # the epoch's end cuts the trajectory; the episode goes on
                buf.finish_path(obs, terminated)
            if ended:
                logger.store(EpRet=ep_ret, EpLen=ep_len)
                (obs, _), ep_ret, ep_len = env.reset(), 0, 0

        val, logp, last_val = agent.evaluate(buf.obs, buf.act, buf.last_obs())
        metrics = agent.update(buf.get(val, logp, last_val))
        logger.store(VVals=val, **metrics)

        logger.log_tabular('Epoch', epoch)
        logger.log_tabular('EpRet', with_min_and_max=True)
        logger.log_tabular('EpLen', average_only=True)
        logger.log_tabular('VVals', with_min_and_max=True)
        logger.log_tabular('TotalEnvInteracts', (epoch + 1) * local_steps * num_procs())
        for key in metrics:
            logger.log_tabular(key, average_only=True)
        logger.log_tabular('Time', time.time() - logger.start_time)
        logger.dump_tabular()
        if epoch % save_freq == 0 or epoch == epochs - 1 or logger.interrupted():
            logger.save_state(dict(agent=agent.get_state(), rng=rng.bit_generator.state, env=env.episode_state(),
                                   epoch=epoch + 1), itr=epoch)
    return agent

# %% [markdown] tags=["notes"]
# - `seed += 10000 * proc_id()`: every process plays differently. The initial weights are made equal afterwards, so this
#   is about the noise of the actions and the chance in the environments.
# - `pi_lr=3e-4,`: made for the harder problems. On CartPole one step for each epoch wants 0.01.
# - `lam=0.97,`: experiment 2.
# - `local_steps = steps_per_epoch // num_procs()`: the epoch is shared out: with four processes each plays a quarter.
# - `(obs, _), ep_ret, ep_len, start_epoch = env.reset(seed=seed), 0, 0, 0`: seeded once. Later resets go on from the
#   same random numbers; to seed each of them would give the same start every time.
# - `noise = draw_noise(rng, local_steps, env.action_space)`: all randomness of the epoch's actions, in one call.
# - `next_obs, rew, terminated, truncated, _ = env.step(act)`: two flags, not one. The old interface had a single
#   `done`.
# - `buf.store(obs, act, rew)`: `obs`, not `next_obs`: what was seen when the action was chosen.
# - `ended = terminated or truncated or ep_len == max_ep_len`: the episode is over, for whatever reason.
# - `if ended or t == local_steps - 1:`: the epoch's end cuts the trajectory, but does not reset the environment: the
#   episode goes on in the next epoch. Only complete episodes are logged.
# - `buf.finish_path(obs, terminated)`: the reason of the end. `obs` is the observation *after* the last step: its value
#   stands behind the trajectory if that was only cut.
# - `val, logp, last_val = agent.evaluate(buf.obs, buf.act, buf.last_obs())`: before the update, with the policy and the
#   value function that played.
# - `metrics = agent.update(buf.get(val, logp, last_val))`: the one line in which learning happens.
# - `saved = logger.load_state()`: a run that was stopped goes on from its checkpoint, to the same numbers. It plays no
#   part in this notebook.

# %% [markdown]
# ## Command line
#
# The last section turns the training function into a program: every argument of the signature becomes a flag, its
# comment the help text. In a notebook there is no command line; here you call the function, and the cell only prints
# how. Outside, in a terminal, it is `python vpg_torch.py --env CartPole-v1 --pi_lr 0.01`, and several values for a flag
# make a grid of runs. But for the name, these lines are the same in all six algorithms.

# %% Command line tags=["section"]
if __name__ == '__main__':
    command_line(vpg)

# %% [markdown] tags=["notes"]
# - `if __name__ == '__main__':`: true when the file is run, and in a notebook; false when another file imports it.

# %% [markdown]
# ## Train
#
# A pole is to be balanced on a cart; every step that it stands pays 1, up to 500. Twelve epochs of 2000 steps, two
# seeds. `classroom.train` calls the function above, turns its tables into one line, and keeps the results where they
# vanish with this notebook. The thin lines are the seeds, the thick ones their means.

# %%
on_cartpole = dict(env='CartPole-v1', seeds=[0, 1], epochs=classroom.steps(12, fast=2),
                   steps_per_epoch=classroom.steps(2000, fast=300), pi_lr=1e-2)
vpg_runs = classroom.train(vpg, **on_cartpole)

fig, axes = classroom.figure(columns=2, rows=2)
for ax, column in zip(axes.flat, ('AverageEpRet', 'AverageVVals', 'LossPi', 'Entropy')):
    classroom.curves({'VPG': vpg_runs}, y=column, ax=ax)
plt.show()
classroom.claim(classroom.last(vpg_runs) > 100,
                f'the return rises from {np.mean([run["AverageEpRet"][0] for run in vpg_runs]):.0f} to '
                f'{classroom.last(vpg_runs):.0f}', full=True)
loss_range = [float(np.min([run['LossPi'] for run in vpg_runs])), float(np.max([run['LossPi'] for run in vpg_runs]))]
classroom.claim(max(map(abs, loss_range)) < 0.3,
                f'LossPi stays between {loss_range[0]:.2f} and {loss_range[1]:.2f} all the while', full=True)

# %% [markdown]
# The return rises, in jumps and with setbacks: a single step on noisy data may well go wrong, and the next epoch is
# played by whatever came of it. `AverageVVals` follows from below: the value function can only learn what the policy
# has already achieved, and values are discounted, so that with $\gamma = 0.99$ no true one exceeds 100. `Entropy` falls
# slowly: the policy makes up its mind. And `LossPi`, the only number that is called a loss of the policy, wanders about
# zero and tells you nothing.

# %% [markdown]
# ## Experiment 3: more than one step
#
# Why throw the data away? Take an agent that has learned a little and let it play one epoch. Then take not one step
# with these data but eight, on the policy alone. After some of them we let the policy play *fresh* episodes and see
# what it is really worth. Three agents, from three seeds, so that luck does not decide. (The left curve is simply begun
# at 0: where `LossPi` stands before the first step means nothing, as we saw.)

# %%
def collect(agent, env, steps, play_seed):
    """An epoch of an agent's experience, as the buffer gives it, and the mean return of its complete episodes."""
    buf = VPGBuffer(env.observation_space, env.action_space, steps, gamma=0.99, lam=0.97)
    noise = draw_noise(np.random.default_rng(play_seed), steps, env.action_space)
    (obs, _), ep_ret, ep_rets = env.reset(seed=play_seed), 0, []
    for t in range(steps):
        act = agent.act(obs, noise[t])
        next_obs, rew, terminated, truncated, _ = env.step(act)
        buf.store(obs, act, rew)
        obs, ep_ret = next_obs, ep_ret + rew
        if terminated or truncated or t == steps - 1:
            buf.finish_path(obs, terminated)
        if terminated or truncated:
            ep_rets.append(ep_ret)
            (obs, _), ep_ret = env.reset(), 0
    return buf.get(*agent.evaluate(buf.obs, buf.act, buf.last_obs())), np.mean(ep_rets)


pupils = classroom.train(vpg, **dict(on_cartpole, seeds=[0, 1, 2], epochs=classroom.steps(6, fast=1)), label='Pupils')
look_after = 0, 1, 2, 3, 5, 8
fresh_steps = classroom.steps(2500, fast=600)
overdone = np.zeros((len(pupils), len(look_after), 2))                           # (agent, steps, loss and return)
for i, run in enumerate(pupils):
    pupil, playground = classroom.make_agent(vpg, 'CartPole-v1', pi_lr=1e-2, train_v_iters=0)
    pupil.set_state(run.agent.get_state())
    epoch_data, before = collect(pupil, playground, fresh_steps, play_seed=100 + i)
    for n in range(max(look_after) + 1):
        if n:
            report = pupil.update(epoch_data)
        if n in look_after:
            loss_now = report['LossPi'] + report['DeltaLossPi'] if n else 0
            overdone[i, look_after.index(n)] = loss_now, collect(pupil, playground, fresh_steps, play_seed=200 + i)[1]

fig, axes = classroom.figure(columns=2)
for ax, column, what in zip(axes, (0, 1), ('LossPi on the old data', 'return in fresh play')):
    ax.plot(look_after, overdone[:, :, column].T, color='C0', linewidth=0.8, alpha=0.4)
    ax.plot(look_after, overdone[:, :, column].mean(0), 'o-', color='C0', linewidth=2)
    ax.set(xlabel='steps on the same epoch', title=what)
plt.show()
losses, returns_of = overdone.mean(0).T
classroom.claim(returns_of[-1] < 0.7 * returns_of.max() and (np.diff(losses) < 0).all(),
                f'the loss goes down with every step, to {losses[-1]:.2f}; the return was {returns_of[0]:.0f}, is '
                f'{returns_of[1]:.0f} after the first step, {returns_of.max():.0f} at best and {returns_of[-1]:.0f} '
                f'after the last', full=True)

# %% [markdown]
# A step or two may help; but soon the policy falls apart, while the loss promises improvement at every step. It could
# do so for ever: $-\log \pi \cdot \hat A$ has no lower bound, since the probability of an action with a negative
# advantage may go to zero and its logarithm to $-\infty$. No loss curve warns you. This is the problem to which PPO and
# TRPO are two answers; keep this picture in mind.
#
# ## What changed from forty lines, and why
#
# VPG is the first of the six algorithms. What came before it is the policy gradient of about forty lines in the
# introduction to this course, and the difference to that is the list of what makes a policy gradient work:
#
# | section | what changed | why |
# |---|---|---|
# | Networks | Gaussian policies beside categorical ones | most machines have continuous actions |
# | Networks | a value function | a baseline that depends on the state takes out more noise |
# | Buffer | GAE instead of the rewards to go | a dial between bias and noise |
# | Buffer | trajectories that are cut | epochs of equal length, time limits that are no terminations |
# | Losses | the same loss | it was right |
# | Update | a loop for the value function | a regression bears many steps |
# | Training | seeds, logging, checkpoints, many processes | so that you can believe, repeat and resume what you see |
#
# And this is how little it takes from here to PPO: the lines of the losses and of the update that will change.

# %%
classroom.changes('vpg', 'ppo', 'Losses', 'Update')

# %% [markdown]
# **Exercise 3 (ablate).** The advantages of the runs above were made with $\lambda = 0.97$. Now we turn the dial to 0,
# so that an advantage is a single residual $\delta_t$, and train again; nothing else changes. Think of experiment 2,
# and of CartPole, where every step pays exactly 1: what is $\delta_t$ while $V$ has not learned much? Decide *before*
# you run the next cell: will the return at the end be `'higher'`, `'lower'` or about the `'same'` (within 20 %)?

# %% tags=["exercise"]
return_with_zero = None             # 'higher', 'lower' or 'same'
### BEGIN SOLUTION
return_with_zero = 'lower'
### END SOLUTION

# %%
zero_runs = classroom.train(vpg, **on_cartpole, lam=0.0, label='lambda = 0')
classroom.curves({'lambda = 0.97': vpg_runs, 'lambda = 0': zero_runs}, title='What the dial does to learning')
plt.show()
change = classroom.last(zero_runs) / classroom.last(vpg_runs)
print(f'The return with lambda = 0 is {change:.2f} of that with 0.97.')
classroom.check('Exercise 3', return_with_zero, 'same' if 0.8 <= change <= 1.2 else 'higher' if change > 1 else 'lower',
                full=True, hint='delta is 1 + gamma V(next) - V: all the information is in differences of V')

# %% [markdown] tags=["solution"]
# *Discussion.* Every reward is 1, so the only thing in $\delta_t$ that distinguishes a good step from a bad one is what
# $V$ says about the two observations, and the termination. An untrained $V$ says nothing about them but its own
# prejudices, and the normalisation (11) blows these up to full size. The policy follows them, the value function learns
# the values of a policy that has become worse, and the two never catch up with each other. Algorithms that live with
# $\lambda = 0$ do exist: the second half of this course is about them, and about what it takes.

# %% [markdown]
# ## Hunt the bug
#
# Four copies of `vpg_torch.py` follow. In each, one line has been changed; all four changes are modelled on mistakes
# that stood in published implementations, and none of them raises an error. You see a symptom, and you have the copy,
# as `culprit.module`, with all the functions and classes of the file: `culprit.module.VPGBuffer`,
# `culprit.module.compute_loss_pi`, `culprit.module.vpg`. Compare them with the ones on this page, by calling both.
#
# Your answer is the line of the *good* file, as this page shows it, that you believe to be wrong in the copy: quote it,
# or as much of it as stands in no other line.
#
# **Exercise 4 (hunt).** On CartPole this copy is as good as the file; its numbers are even the same to the last digit.
# In the corridor, this time without the cost for each step, its returns wander about instead of rising, and its value
# function believes that there is far less to be had than there is. What is the difference between the two environments?

# %%
culprit = classroom.bug('A')
in_corridor = dict(env=lambda: Corridor(cost=0), seeds=[0, 1, 2], epochs=classroom.steps(12, fast=2),
                   steps_per_epoch=classroom.steps(500, fast=200), pi_lr=1e-2, train_v_iters=20)
corridor_runs = {'this page': classroom.train(vpg, **in_corridor),
                 'the copy': classroom.train(culprit.module.vpg, **in_corridor, label='The copy')}
fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('AverageEpRet', 'AverageVVals')):
    classroom.curves(corridor_runs, y=column, ax=ax)
plt.show()
believed_values = [classroom.last(runs, 'AverageVVals') for runs in corridor_runs.values()]
classroom.claim(believed_values[0] > 0.8 and believed_values[1] < 0.5,
                f'the values come out as {believed_values[0]:.2f} here, and as {believed_values[1]:.2f} in the copy',
                full=True)

# %% tags=["exercise"]
my_line = None                      # a quotation: 'start = end' for example
### BEGIN SOLUTION
my_line = 'self.rew[self.ptr] = obs, act, rew'
### END SOLUTION
classroom.hunt('Exercise 4', culprit, my_line)

# %% [markdown]
# **Exercise 5 (hunt).** This pole falls sooner and sooner, and yet its value function grows more cheerful with every
# epoch. It is not wrong by accident: it has learned, correctly, what it was told.

# %%
culprit = classroom.bug('B')
short_runs = dict(on_cartpole, epochs=classroom.steps(6, fast=2))
falling_runs = {'this page': vpg_runs, 'the copy': classroom.train(culprit.module.vpg, **short_runs, label='The copy')}
fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('AverageEpRet', 'AverageVVals')):
    classroom.curves(falling_runs, y=column, ax=ax)
plt.show()
fallen = [classroom.last(falling_runs['the copy'], column, rows=1) for column in ('AverageEpRet', 'AverageVVals')]
classroom.claim(fallen[1] > fallen[0], f'at the end the copy earns {fallen[0]:.0f} in an episode, and believes '
                f'that an observation is worth {fallen[1]:.0f}', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'for t in reversed(range(start, end)):'
### END SOLUTION
classroom.hunt('Exercise 5', culprit, my_line)

# %% [markdown]
# **Exercise 6 (hunt).** "My policy does not learn, and I have tried every learning rate." The value function does
# learn, no number is NaN, and the shapes of everything that is stored are right. Look at the instruments.

# %%
culprit = classroom.bug('C')
one_seed = dict(short_runs, seeds=[0])
still_runs = {'this page': vpg_runs, 'the copy': classroom.train(culprit.module.vpg, **one_seed, label='The copy')}
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'Entropy', 'KL')):
    classroom.curves(still_runs, y=column, ax=ax)
plt.show()
moved = [classroom.last(runs, 'KL', rows=99) for runs in still_runs.values()]
classroom.claim(moved[1] < 1e-3 * moved[0],
                f'a step moves the policy by a KL of {moved[0]:.3f} here, and of {moved[1]:.1g} in the copy')

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'logp * adv)'
### END SOLUTION
classroom.hunt('Exercise 6', culprit, my_line)

# %% [markdown]
# **Exercise 7 (hunt).** The same complaint, but here the policy does move: the KL of every step is large, and the
# entropy that is logged is close to zero, as if the policy were certain of what it does. The returns are those of a
# coin that is tossed at every step. Can a policy be certain and toss coins?

# %%
culprit = classroom.bug('D')
coin_runs = {'this page': vpg_runs, 'the copy': classroom.train(culprit.module.vpg, **one_seed, label='The copy')}
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'Entropy', 'KL')):
    classroom.curves(coin_runs, y=column, ax=ax)
plt.show()
certain = classroom.last(coin_runs['the copy'], 'Entropy', rows=99)
classroom.claim(certain < 0.05 and 15 < classroom.last(coin_runs['the copy'], rows=99) < 30,
                f'the copy logs an entropy of {certain:.3f} on average (two actions can have {np.log(2):.2f}), and '
                f'earns {classroom.last(coin_runs["the copy"], rows=99):.0f} in an episode, as random actions do')

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'self.log_probs = '
### END SOLUTION
classroom.hunt('Exercise 7', culprit, my_line)

# %% [markdown]
# ## What to take away
#
# - The policy gradient differentiates the policy and nothing else; the world enters only as a weight on each action.
# - A baseline does not change the mean of the gradient. It takes out noise, and noise is paid for in episodes.
# - GAE is a dial: towards 0 you trust the value function, towards 1 the rewards.
# - An end is three things: termination (worth 0), time limit and end of epoch (worth $V$).
# - The loss of the policy is a trick to obtain a gradient. Its value means nothing, and after one step neither does its
#   gradient.
# - Know what your instruments must show: log-probabilities that sum to one, a KL above zero, an entropy that falls
#   slowly, values that do not exceed what can be earned, and a test environment in which only the last step pays.
#
# **Read on.** R. J. Williams, *Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
# Learning*, Machine Learning 8, 1992. R. Sutton, D. McAllester, S. Singh, Y. Mansour, *Policy Gradient Methods for
# Reinforcement Learning with Function Approximation*, NIPS 1999 (proceedings of 2000). J. Schulman, P. Moritz, S.
# Levine, M. Jordan, P. Abbeel, *High-Dimensional Continuous Control Using Generalized Advantage Estimation*,
# arXiv:1506.02438. C. Nota, P. Thomas, *Is the Policy Gradient a Gradient?*, arXiv:1906.07073. The next notebook, on
# PPO, takes up the question of experiment 3.
