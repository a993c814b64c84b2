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
# # DDPG: learn what actions are worth, and climb
#
# This notebook reads `ddpg_torch.py` from its first line to its last. The cells with the file's sections are the file
# itself: what you run here is what `python ddpg_torch.py` runs. Around them stand the mathematics, a check of every
# equation by numbers, experiments, and exercises that tell you whether you have solved them.
#
# DDPG is the first *off-policy* algorithm of the six, and the two that follow it, TD3 and SAC, share most of its text.
# So this page takes its time over what is new: the replay buffer, target networks, and test episodes.
#
# **Goals.** At the end you can
#
# - say why an algorithm that learns action values may use experience of any age, and one with a policy gradient may
#   not;
# - derive the gradient that improves a deterministic policy, and check it against finite differences;
# - compute the target of a transition by hand, whether its episode went on, terminated or ran into a time limit;
# - explain what the replay buffer and the target networks are for, and recognise a run that lacks one of them;
# - judge a learned q by the returns that it claims to predict, and find a line that makes it lie.
#
# **Prerequisites.** Python with numpy, derivatives and the chain rule, and the words *observation*, *action*, *reward*,
# *policy*, *discount*; the introductory notebook has them all. The on-policy notebooks help, but are not needed.
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

classroom.begin('ddpg', 'torch')

# %% [markdown]
# ## The problem: experience that is used once
#
# VPG, PPO and TRPO learn from what the *current* policy did. After an update the experience is stale, and they throw it
# away. If experience comes from a simulator that plays ten thousand steps in a second, so be it. If it comes from a
# robot, it is a scandal.
#
# What would it take to learn from the experience of *any* policy? A quantity about which every transition tells the
# truth, whoever acted. Here is one: the **action value** $Q^\pi(s, a)$, the discounted return if we take the action $a$
# in the state $s$, whatever $a$ is, and let the policy $\pi$ act from then on. For a deterministic policy, which maps
# each state to one action $\pi(s)$, it satisfies the Bellman equation
#
# $$
# Q^\pi(s, a) = \mathbb{E}_{r, s'}\big[\, r + \gamma\, Q^\pi(s', \pi(s')) \,\big] \tag{1}
# $$
#
# Look at what is random in it: the reward $r$ and the next state $s'$, and these are the world's answer to $(s, a)$.
# The policy that *chose* $a$ does not appear. So a transition $(s, a, r, s')$ from last week, from a beginner or from
# pure chance is a fair sample for (1), and we may keep them all. That is what *off-policy* means.
#
# A policy can then be improved without looking at its own returns. If $Q$ is smooth in the action, its derivative says
# how to change an action so that it becomes better. Let $\pi_\theta$ have parameters $\theta$ and $J(\theta)$ be its
# expected discounted return. The **deterministic policy gradient theorem** (Silver et al. 2014) says
#
# $$
# \nabla_\theta J(\theta) = \sum_{t=0}^{\infty} \gamma^t\, \mathbb{E}\Big[ \nabla_\theta \pi_\theta(s_t)\;
# \nabla_a Q^{\pi_\theta}(s_t, a)\big|_{a = \pi_\theta(s_t)} \Big] \tag{2}
# $$
#
# It is the chain rule, with a surprise: $Q^\pi$ itself depends on $\theta$, since the policy acts ever after; yet no
# derivative of $Q$ by $\theta$ appears. That part is what the later terms of the sum over $t$ account for.
#
# No sampling of actions, no log-probability, no ratio. In exchange we need a $Q$ with a trustworthy *slope*. DDPG (deep
# deterministic policy gradient, Lillicrap et al. 2016) learns it with a network, from a memory of transitions, and
# takes two precautions so that this does not blow up.

# %% [markdown]
# ### The data flow as a picture
#
# Green are networks, blue is data, orange are losses. There are two loops, and they run at their own pace. On the left
# the policy plays, and everything it lives through goes into the buffer. The rest of the picture never sees the
# environment: it draws old transitions at random, moves `q` towards the backup, and moves the policy uphill on `q`. The
# target networks are copies that follow both, slowly.

# %%
import matplotlib.pyplot as plt

classroom.diagram(
    boxes=dict(
        env=(0, 0, 'environment', 'env'),
        pi=(1, 0, 'policy\npi(obs)', 'net'),
        loss_pi=(2, 0, 'minus q(obs, pi(obs))\nloss_pi', 'loss'),
        buf=(0, 1, 'ReplayBuffer\nthe last million steps'),
        batch=(1, 1, 'batch: obs, act, rew,\nnext_obs, terminated'),
        q=(2, 1, 'action values\nq(obs, act)', 'net'),
        targ=(0, 2, 'target networks\npi_targ, q_targ', 'net'),
        backup=(1, 2, 'backup: rew +\ngamma q_targ(next_obs, ...)'),
        loss_q=(2, 2, 'squared error\nloss_q', 'loss'),
    ),
    arrows=[
        ('env', 'pi', 'obs', -0.25), ('pi', 'env', 'act', -0.25), ('env', 'buf', 'every step'),
        ('buf', 'batch', 'random'), ('batch', 'q', 'obs, act'), ('batch', 'backup'), ('q', 'targ', 'follow slowly'),
        ('targ', 'backup', 'value'), ('backup', 'loss_q'), ('q', 'loss_q', 'q', -0.3), ('loss_q', 'q', 'step', -0.3),
        ('q', 'loss_pi', 'slope in act'), ('loss_pi', 'pi', 'step'),
    ],
    title='DDPG: playing, and learning from memory',
)
plt.show()

# %% [markdown]
# ## The file's own summary
#
# Every file of this repository opens with the idea, the equations in the names that the code uses, the paper and the
# neighbours. There are four equations, and each will get a part of this page: the `backup`, which is the right-hand
# side of (1) for one transition; a regression of `q` on it; a policy that climbs `q`; and targets that follow. The
# suffix `_targ` marks the slow copies. Note which of them stand in the backup: both.

# %% Docstring tags=["section"]
"""Deep Deterministic Policy Gradient (DDPG).

The idea: learn the value q(obs, act) of every action from all experience so far, kept in a replay buffer, and let a
deterministic policy climb it: the gradient of q by its action says how to change the action, and so the policy. Two
devices keep this stable: the targets of q come from target networks, which follow slowly, and noise on the actions
explores.

The equations, in the names of the code:
    backup   = rew + gamma (1 - terminated) q_targ(next_obs, pi_targ(next_obs))
    loss_q   = mean( (q(obs, act) - backup)^2 )
    loss_pi  = -mean( q(obs, pi(obs)) ),                 by the parameters of pi alone
    targets  : params_targ = polyak params_targ + (1 - polyak) params

Paper: Lillicrap et al. 2016, Continuous Control with Deep Reinforcement Learning, arXiv:1509.02971.

Its neighbours: td3_torch.py fixes the overestimated q with three changes, sac_torch.py learns a stochastic policy with
an entropy bonus, and ddpg_tf1.py is this file in TensorFlow-1 style.

Run it:
    python ddpg_torch.py --env Pendulum-v1 --epochs 5 --start_steps 1000
    mpirun -np 2 python ddpg_torch.py --env HalfCheetah-v5 --seed 1
"""

# %% [markdown] tags=["notes"]
# - `backup   = rew + gamma (1 - terminated) q_targ(next_obs, pi_targ(next_obs))`: the expectation of (1) is gone. One
#   transition gives one noisy sample of it, and the regression in the next line averages.
# - `by the parameters of pi alone`: `q` is a fixed landscape in this step. If the policy's loss could move `q` as well,
#   it would simply raise all values, and call that success.
# - `targets  : params_targ = polyak params_targ + (1 - polyak) params`: with `polyak` = 0.995, each update moves the
#   copies by half a percent of the distance.

# %% [markdown]
# ## Imports
#
# Nothing that you need in order to understand DDPG is imported: networks, buffer, losses and loop are all on this page.
# What comes from `common/` is plumbing. One piece deserves a remark now. `make_env_and_test_env` makes two
# environments, one to learn in and one to be tested in, and puts each behind a gate: on our side every action lies in
# $[-1, 1]$, and the gate stretches it to the bounds that the environment has, $a_\text{low}$ and $a_\text{high}$:
#
# $$
# a_\text{env} = a_\text{low} + \frac{a + 1}{2}\, (a_\text{high} - a_\text{low}) \tag{3}
# $$
#
# Networks, noise and buffer never see the bounds. This is worth more than it looks. Where the scaling is done in the
# policy's last layer instead, every other place has to know the scale too, and one is forgotten: CleanRL's TD3 added
# the noise of its target actions without the scale (issue 279 of vwxyzjn/cleanrl), which on an environment with bounds
# of $\pm 0.4$ is two and a half times the noise that was meant.

# %% Imports tags=["section"]
import time
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.optim import Adam

from common.env_tools import make_env_and_test_env
from common.logx import EpochLogger
from common.mpi_pytorch import mpi_avg_grads, setup_pytorch_for_mpi, setup_saver, sync_params
from common.mpi_tools import num_procs, proc_id
from common.run_utils import command_line, explain_arguments

# %% [markdown] tags=["notes"]
# - `from copy import deepcopy`: for the target networks, which begin as exact copies.
# - `from types import SimpleNamespace`: the arguments of a run travel as one object, `args`.
# - `from common.mpi_tools import num_procs, proc_id`: how many processes there are, and which one this is. In this
#   notebook: one, and number 0.

# %% tags=["check"]
# Equation (3) in numbers: Pendulum's torque goes from -2 to 2; our actions go from -1 to 1.
import gymnasium as gym

from common.env_tools import make_env

pendulum = make_env(lambda: gym.make('Pendulum-v1'), off_policy=True)
bounds = pendulum.unwrapped.action_space
asked, torques = np.array([-1.0, -0.3, 0.0, 0.8], dtype=np.float32), []
for number in asked:
    pendulum.reset(seed=0)
    pendulum.step(np.array([number]))
    torques.append(pendulum.unwrapped.last_u)                   # the torque that arrived
classroom.agree('The torque that arrives and (3)', torques,
                bounds.low[0] + (asked + 1) / 2 * (bounds.high[0] - bounds.low[0]))

# %% [markdown]
# ### A world where everything is known
#
# Now (1) and (2), in a world that we can solve on paper. A point on a line has the position $s$; an action pushes it,
# $s' = 0.9\, s + 0.5\, a$, and both distance and effort cost: $r = -(s^2 + 0.1\, a^2)$. The policy is a single number,
# $\pi_\theta(s) = \theta s$. Under it $s$ shrinks by the same factor in every step, the sum of the rewards is
# geometric, and the value of being at $s$ is $-p\, s^2$ with
# $p = (1 + 0.1\, \theta^2) / (1 - \gamma\, (0.9 + 0.5\, \theta)^2)$.
#
# The cell compares the action value that follows from this formula with a sum of 400 rewards, which is (1) unrolled;
# and the right-hand side of (2), added up along a trajectory, with the slope of the return by finite differences.

# %% tags=["check"]
# Equations (1) and (2) in numbers: action values by formula and by playing; the gradient by theorem and by differences.
discount = 0.9


def point_step(s, a):
    """The next position and the reward."""
    return 0.9 * s + 0.5 * a, -(s**2 + 0.1 * a**2)


def point_q(theta, s, a):
    """Q of the policy a = theta s, by formula."""
    p = (1 + 0.1 * theta**2) / (1 - discount * (0.9 + 0.5 * theta)**2)
    next_s, r = point_step(s, a)
    return r - discount * p * next_s**2


def point_return(theta, s, a=None):
    """The discounted sum of 400 rewards; the first action is `a` if given, all others are the policy's."""
    total = 0
    for t in range(400):
        s, r = point_step(s, theta * s if a is None or t > 0 else a)
        total += discount**t * r
    return total


theta, s, a = -0.7, 1.5, 0.4                                    # an action that the policy would not have chosen
next_s, r = point_step(s, a)
classroom.agree('Q by formula and by playing', point_q(theta, s, a), point_return(theta, s, a), tol=1e-9)
classroom.agree('The two sides of (1)', point_q(theta, s, a), r + discount * point_q(theta, next_s, theta * next_s),
                tol=1e-9)

by_theorem, s_t = 0, 1.5
for t in range(400):
    slope = (point_q(theta, s_t, theta * s_t + 1e-5) - point_q(theta, s_t, theta * s_t - 1e-5)) / 2e-5    # of Q by a
    by_theorem += discount**t * s_t * slope                     # the derivative of theta s by theta is s
    s_t, _ = point_step(s_t, theta * s_t)
by_differences = (point_return(theta + 1e-5, 1.5) - point_return(theta - 1e-5, 1.5)) / 2e-5
classroom.agree('The gradient by (2) and by finite differences', by_theorem, by_differences, tol=1e-4)

# %% [markdown]
# ## Networks
#
# Two networks. The **policy** maps an observation to one action; there is no distribution, and nothing to sample. Its
# last layer ends in a hyperbolic tangent, which brings every number $u$ into the interval that (3) expects:
#
# $$
# a = \tanh(u), \qquad \frac{\partial a}{\partial u} = 1 - a^2 \tag{4}
# $$
#
# The derivative names a trap. Near the bounds it vanishes: at $a = 0.99$ only 2 % of the slope of $Q$ arrives at the
# weights. A policy that has been driven into a corner, by a wrong $Q$ early in the training, leaves it slowly or
# never. If all actions of your agent are 1 or -1 from the start, look here.
#
# The **action-value function** takes observation *and* action. For a few discrete actions one could let a network with
# one output for each action do it, and pick the best output, as DQN does. With continuous actions there are
# infinitely many, and finding the best one would be an optimization problem in every step. So the action is an *input*,
# through which we can differentiate, and the policy is a network that has learned the answers to that optimization.
#
# Mind the last axis: `q` returns `(batch,)`. You will see in a hunt what happens otherwise.

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


class MLPActor(nn.Module):
    """A deterministic policy: tanh brings every dimension of the action into [-1, 1]."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng, nn.Tanh)

    def forward(self, obs):
        return self.net(obs)                                    # (batch, act_dim)


class MLPQFunction(nn.Module):
    """The value of an action in an observation, under the policy."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.q = mlp([obs_dim + act_dim, *hidden_sizes, 1], activation, rng)

    def forward(self, obs, act):
        return self.q(torch.cat([obs.flatten(1), act], dim=-1)).squeeze(-1)     # squeeze: (batch,), as rew is


class MLPActorCritic(nn.Module):
    """The policy and the action-value function.

    One of your own (a CNN, say) is an nn.Module made from the same arguments, with two modules, which may share
    layers: pi(obs) -> actions in [-1, 1] (batch, act_dim);
    q(obs, act) -> values (batch,). It need not use rng, which draws the initial weights.
    """
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(256, 256), activation=nn.ReLU):
        super().__init__()
        obs_dim, act_dim = int(np.prod(observation_space.shape)), action_space.shape[0]
        self.pi = MLPActor(obs_dim, act_dim, hidden_sizes, activation, rng)
        self.q = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)

# %% [markdown] tags=["notes"]
# - `layers += [`: hidden layers, each with its activation.
# - `return self.net(obs)                                    # (batch, act_dim)`: actions, not means of a distribution.
# - `self.q = mlp([obs_dim + act_dim, *hidden_sizes, 1], activation, rng)`: the action enters at the first layer, beside
#   the observation. (In the paper it enters at the second; with vectors as observations it makes little difference.)
# - `# squeeze: (batch,), as rew is`: the network's output is `(batch, 1)`, rewards are `(batch,)`, and their difference
#   would be a `(batch, batch)` matrix.
# - `hidden_sizes=(256, 256)`: four times the width that the on-policy files use. `q` has to get a *slope* right in
#   every state and action, which takes more than a value.
# - `layers: pi(obs) -> actions in [-1, 1] (batch, act_dim);`: this is the whole contract for networks of your own.

# %% [markdown] tags=["notes", "torch"]
# - `self.net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng, nn.Tanh)`: equation (4). Only the policy has an
#   output activation; a value may be any number.
# - `p.data = torch.as_tensor(rng.uniform(-1, 1, p.shape) / np.sqrt(n_in), dtype=torch.float32)`: small weights, so that
#   the policy begins near action 0, far from the corners of the tangent.

# %% [markdown] tags=["notes", "tf1"]
# - `self.net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng, tf.tanh)`: equation (4). Only the policy has an
#   output activation; a value may be any number.
# - `draw = lambda *shape: (rng.uniform(-1, 1, shape) / np.sqrt(n_in)).astype(np.float32)`: small weights, so that the
#   policy begins near action 0, far from the corners of the tangent.
# - `class Linear(tf.Module):`: in graph style a layer is made once and called wherever its output is needed. `q` will
#   be called twice, with stored actions and with the policy's; its variables are the same.

# %% [markdown]
# A policy without hidden layers is $\tanh(w s + b)$, and its derivative by the observation must be $w (1 - a^2)$.
# `classroom.gradient` differentiates a function of this page by its first argument.

# %% tags=["check"]
# Equation (4) in numbers: the derivative of a policy's action, and how little is left of it near the bounds.
line_obs = np.linspace(-6, 6, 121, dtype=np.float32)[:, None]
tiny_policy = lambda obs: MLPActor(1, 1, (), None, np.random.default_rng(3))(obs)
line_act = classroom.call(tiny_policy, line_obs)[:, 0]
line_slope = classroom.gradient(tiny_policy, line_obs)[:, 0]
weight = np.random.default_rng(3).uniform(-1, 1)                # the first number that the layer draws, n_in being 1
classroom.agree('The slope of the policy and (4)', line_slope, weight * (1 - line_act**2))
corner = np.abs(line_act) > 0.99
classroom.claim(np.abs(line_slope[corner]).max() < 0.02 * abs(weight),
                f'where the action is beyond 0.99, at most {np.abs(line_slope[corner] / weight).max():.1%} of the '
                'slope is left')

# %% [markdown]
# ## Buffer
#
# The replay buffer is the memory: transitions `(obs, act, rew, next_obs, terminated)`, up to a million of them, the
# oldest overwritten first. An update draws a batch from it, uniformly. Two things are gained.
#
# - **Reuse.** A transition is not used once, but again and again. When the buffer holds $n$ transitions, a batch of $B$
#   contains each of them $B / n$ times on average. So with one update for every step (5) tells how often the transition
#   that was stored as number $i$ has been drawn by the time that there are $T$ of them:
#
# $$
# \mathbb{E}[\text{draws}] = \sum_{n=i}^{T} \frac{B}{n} \;\approx\; B \ln \frac{T}{i} \tag{5}
# $$
#
# With $B = 100$ each transition is drawn seventy times while the buffer doubles in size.
#
# - **Independence.** Consecutive transitions are nearly the same. A network that is trained on them in order chases the
#   present: it fits what the pendulum does on the left, and forgets the right, where it was a minute ago. A batch from
#   all over the memory looks like the independent samples that gradient descent was made for.
#
# What is stored about the end of an episode? `terminated`, and not `truncated`. If the pole fell, the future is worth
# nothing, and the buffer must remember it. If a time limit struck, the last transition is like any other: it has a next
# observation with a next value. So a truncation is *not stored at all*. This is simpler than in the on-policy files,
# which had to say what stands behind each cut: here a transition carries its own next observation, and nobody needs to
# know to which episode it belonged.
#
# In memory, a transition is one row of one array. To draw a batch is then one indexing operation instead of five.

# %% Buffer tags=["section"]
class ReplayBuffer:
    """The latest experience of one process. A transition is one row of one array, so that one index draws a batch."""
    def __init__(self, obs_space, act_space, size):
        row = [('obs', obs_space.dtype, obs_space.shape), ('act', np.float32, act_space.shape), ('rew', np.float32),
               ('next_obs', obs_space.dtype, obs_space.shape), ('terminated', np.float32)]
        self.data = np.zeros(size, dtype=np.dtype(row, align=True))     # images stay uint8, a fourth of float32
        self.ptr, self.size, self.count = 0, 0, 0                       # the next row, rows filled, rows ever stored

    def store(self, obs, act, rew, next_obs, terminated):
        """Keep one transition, in place of the oldest when the buffer is full."""
        self.data[self.ptr] = obs, act, rew, next_obs, terminated
        self.ptr = (self.ptr + 1) % len(self.data)
        self.size, self.count = min(self.size + 1, len(self.data)), self.count + 1

    def sample_batch(self, rng, batch_size):
        """Transitions drawn uniformly, with replacement: arrays (batch, ...)."""
        rows = self.data[rng.integers(self.size, size=batch_size)]
        return {key: np.asarray(rows[key], dtype=np.float32) for key in rows.dtype.names}

# %% [markdown] tags=["notes"]
# - `row = [('obs', obs_space.dtype, obs_space.shape)`: numpy's structured arrays have rows of named fields, so that
#   `self.data['rew']` is the column of all rewards.
# - `self.data = np.zeros(size, dtype=np.dtype(row, align=True))`: a million rows are *reserved*, but the system gives
#   out the memory only as rows are written.
# - `self.ptr, self.size, self.count = 0, 0, 0`: before the first lap `size` grows with `ptr`; afterwards it stays, and
#   `ptr` goes round.
# - `self.ptr = (self.ptr + 1) % len(self.data)`: the ring. The oldest transition is the one that is overwritten.
# - `rows = self.data[rng.integers(self.size, size=batch_size)]`: below `size`, not below `len(self.data)`: the empty
#   rows are zeros, and would teach that everything is worth nothing. The index makes a copy, so a batch does not change
#   when the ring goes on.
# - `return {key: np.asarray(rows[key], dtype=np.float32) for key in rows.dtype.names}`: `rew` and `terminated` are
#   `(batch,)`, as the values that they are added to.

# %% tags=["check"]
# Equation (5) in numbers: number the transitions, draw a batch after each one, and count.
n_steps, drawn_each = 4000, 20
one_number = gym.spaces.Box(-1, 1, (1,))
numbered, draws = ReplayBuffer(one_number, one_number, n_steps), np.zeros(n_steps + 1)
dice = np.random.default_rng(0)
for i in range(1, n_steps + 1):
    numbered.store(np.zeros(1), np.zeros(1), i, np.zeros(1), False)          # the reward is the number
    np.add.at(draws, numbered.sample_batch(dice, drawn_each)['rew'].astype(int), 1)
ranks = np.arange(1, n_steps + 1)
expected_draws = drawn_each * np.cumsum(1 / ranks[::-1])[::-1]               # the sum of (5) for each i
groups = [slice(100, 200), slice(500, 600), slice(1000, 1200), slice(2000, 2500)]
classroom.agree('Draws of four groups of transitions and the sum in (5)', [draws[1:][g].mean() for g in groups],
                [expected_draws[g].mean() for g in groups], tol=1.5)
classroom.agree('The sum in (5) and the logarithm', expected_draws[99:], drawn_each * np.log(n_steps / ranks[99:]),
                tol=0.2)
ax = classroom.figure()[1]
ax.plot(ranks, draws[1:], '.', markersize=2, label='counted')
ax.plot(ranks, expected_draws, label='equation (5)')
ax.set(xlabel='number of the transition', ylabel='draws', ylim=(0, 170), title='Who is remembered most?')
ax.legend()
plt.show()

# %% [markdown]
# The first transitions are drawn most: they had the buffer to themselves. Since the first ones come from random actions
# (`start_steps`), this is a bias towards the beginner. It fades slowly, and it is one reason why the size of the buffer
# matters.
#
# **Exercise 1 (implement).** A ring of `size` rows has received `count` transitions, numbered 0, 1, 2, ... Which number
# stands in each row? Return an array `(size,)`, with -1 for rows that are still empty. One line is enough, but a loop
# is fine too.

# %% tags=["exercise"]
def my_rows(count, size):
    """The number of the transition in each row, (size,); -1 where there is none yet."""
    ### BEGIN SOLUTION
    rows = np.full(size, -1)
    for number in range(count):
        rows[number % size] = number
    return rows
    ### END SOLUTION


def true_rows(count, size):
    """What the file's buffer does."""
    ring = ReplayBuffer(one_number, one_number, size)
    ring.data['rew'] = -1
    for ticket in range(count):
        ring.store(np.zeros(1), np.zeros(1), ticket, np.zeros(1), False)
    return ring.data['rew'].astype(int)


classroom.check('Exercise 1a', lambda: my_rows(3, 5), true_rows(3, 5), hint='after three of five, two rows are empty')
classroom.check('Exercise 1b', lambda: my_rows(12, 5), true_rows(12, 5),
                hint='transition number 7 goes to row 7 % size, and a later one takes its place')

# %% [markdown]
# ## Losses
#
# Three functions of one line each. The first is the sample of (1) that a transition provides, with the target networks
# $Q_\text{targ}$ and $\pi_\text{targ}$, of which more below, and $d = 1$ if the transition terminated its episode:
#
# $$
# y = r + \gamma\, (1 - d)\, Q_\text{targ}\big(s', \pi_\text{targ}(s')\big) \tag{6}
# $$
#
# The second makes `q` fit these numbers by least squares. In its gradient $y$ counts as a constant, *as if* it were a
# label that somebody gave us:
#
# $$
# L_Q = \frac{1}{n} \sum_{i} \big( Q(s_i, a_i) - y_i \big)^2, \qquad
# \frac{\partial L_Q}{\partial Q(s_i, a_i)} = \frac{2}{n} \big( Q(s_i, a_i) - y_i \big) \tag{7}
# $$
#
# But $y$ contains a $Q$ too, and it will be another number once the networks have moved. We are not descending on any
# fixed function; we are chasing a target that our own steps move. That this works at all is not obvious, and without
# care it does not.
#
# The third is the policy's. To maximise $Q(s, \pi(s))$ in the observations of the batch, minimise its negative. The
# chain rule gives
#
# $$
# L_\pi = -\frac{1}{n} \sum_i Q\big(s_i, \pi_\theta(s_i)\big), \qquad \nabla_\theta L_\pi = -\frac{1}{n} \sum_i
# \nabla_\theta \pi_\theta(s_i)\; \nabla_a Q(s_i, a)\big|_{a = \pi_\theta(s_i)} \tag{8}
# $$
#
# Compare with (2): the same product in the sum. What differs is the weight of the states. The theorem wants those that
# the policy visits, discounted; we take those that are in the memory. With a network flexible enough to do the best in
# each state this changes little, since the best action in a state does not depend on how often we are there. It is an
# approximation all the same, and so is the learned $Q$ in the place of the true one.
#
# Note what is *absent*: the policy's loss has no stored action in it. The batch contributes observations; the action is
# the one that the policy would take today.

# %% Losses tags=["section"]
def compute_backup(rew, terminated, next_q, gamma):
    """backup = rew + gamma (1 - terminated) next_q: termination ends the future, truncation does not."""
    return rew + gamma * (1 - terminated) * next_q


def compute_loss_q(q, backup):
    """loss_q = mean( (q(obs, act) - backup)^2 )"""
    assert len(q.shape) == len(backup.shape) == 1, '(batch,) minus (batch, 1) would broadcast silently'
    return ((q - backup)**2).mean()


def compute_loss_pi(q_pi):
    """loss_pi = -mean( q(obs, pi(obs)) )"""
    return -q_pi.mean()

# %% [markdown] tags=["notes"]
# - `return rew + gamma * (1 - terminated) * next_q`: equation (6). All four are `(batch,)`, `gamma` apart. Were
#   `terminated` to include truncations, the line would still look right.
# - `'(batch,) minus (batch, 1) would broadcast silently'`: an assertion against the most expensive missing `squeeze` of
#   this field. It costs nothing: shapes are known without computing anything.
# - `"""loss_pi = -mean( q(obs, pi(obs)) )"""`: this number is not an error, and need not go to 0. It is minus the value
#   that the policy believes in, and falls as long as the agent is, or thinks it is, getting better.

# %% [markdown] tags=["notes", "torch"]
# - `return ((q - backup)**2).mean()`: equation (7).
# - `return -q_pi.mean()`: equation (8). The gradient flows through `q` into the action and from there into the policy.

# %% [markdown] tags=["notes", "tf1"]
# - `return tf.reduce_mean((q - backup)**2)`: equation (7).
# - `return -tf.reduce_mean(q_pi)`: equation (8). The gradient flows through `q` into the action and from there into the
#   policy.

# %% [markdown]
# For (8) we go back to the point on the line: a batch of positions, the policy $\theta s$, and its true $Q$ as the
# landscape to climb. The gradient by the file's loss must be the sum of products.

# %% tags=["check"]
# Equations (6), (7) and (8) in numbers: backups, and the two gradients, by the file's functions and by formula.
generator = np.random.default_rng(1)
some_rew, some_next_q = generator.normal(size=6), generator.normal(size=6)
some_ends = np.array([0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
by_cases = [rew if ends else rew + 0.9 * next_q for rew, ends, next_q in zip(some_rew, some_ends, some_next_q)]
some_backup = classroom.call(compute_backup, some_rew, some_ends, some_next_q, 0.9)
classroom.agree('Backups and (6), case by case', some_backup, by_cases)

some_q = generator.normal(size=6)
classroom.agree('The gradient of loss_q and (7)', classroom.gradient(compute_loss_q, some_q, some_backup),
                2 / 6 * (some_q - some_backup))

positions = generator.normal(size=50)
by_the_loss = classroom.gradient(lambda parameter, s: compute_loss_pi(point_q(-0.7, s, parameter * s)),
                                 np.array([-0.7]), positions)
slopes = (point_q(-0.7, positions, -0.7 * positions + 1e-5)
          - point_q(-0.7, positions, -0.7 * positions - 1e-5)) / 2e-5
classroom.agree('The gradient of loss_pi and (8)', by_the_loss, [-np.mean(positions * slopes)])

# %% [markdown]
# In the last comparison `point_q` keeps the first argument -0.7 while the action varies: $Q$ is a fixed landscape, the
# value of *today's* policy, and the step improves on it.
#
# **Exercise 2 (implement).** An episode has been played: rewards `(steps,)`, the next value $Q_\text{targ}(s',
# \pi_\text{targ}(s'))$ of every step `(steps,)`, and a word that says how it ended: `'terminated'`, or `'truncated'` by
# a time limit, or `'running'` if it goes on. Return the backups of all its transitions.

# %% tags=["exercise"]
def my_backups(rew, next_q, how_it_ended, gamma):
    """The backups (6) of one episode's transitions, (steps,)."""
    ### BEGIN SOLUTION
    terminated = np.zeros(len(rew))
    if how_it_ended == 'terminated':
        terminated[-1] = 1                                      # only the last transition can have terminated
    return rew + gamma * (1 - terminated) * next_q
    ### END SOLUTION


last_only = np.eye(6)[-1]
classroom.check('Exercise 2a', lambda: my_backups(some_rew, some_next_q, 'terminated', 0.9),
                classroom.call(compute_backup, some_rew, last_only, some_next_q, 0.9),
                hint='how many transitions of an episode can be its termination?')
for end in ('truncated', 'running'):
    classroom.check('Exercise 2b', lambda end=end: my_backups(some_rew, some_next_q, end, 0.9),
                    classroom.call(compute_backup, some_rew, 0 * last_only, some_next_q, 0.9),
                    hint='does a time limit change what the last state is worth?')

# %% [markdown]
# ## Update
#
# An update is one step of `q`, one of the policy, and one small move of the target networks. Why targets? Suppose that
# `q` is too high in some state. Without targets the backup of the state *before* it is too high at once, `q` follows,
# and since a network generalises, raising one value raises its neighbours, among them the one that we started from. An
# error feeds itself. With targets the backup is computed by copies that lag behind,
#
# $$
# \phi_\text{targ} \leftarrow \rho\, \phi_\text{targ} + (1 - \rho)\, \phi \tag{9}
# $$
#
# where $\phi$ stands for the parameters of both networks, $\rho$ is `polyak`, and the name is that of B. Polyak, whose
# method of averaging iterates it recalls. For a while `q` then solves something close to an ordinary regression, on
# labels that nearly stand still. How long is a while? Unrolled, (9) is an average over the past with weights that fade
# geometrically,
#
# $$
# \phi_\text{targ}^{(n)} = \rho^n\, \phi_\text{targ}^{(0)} + (1 - \rho) \sum_{k=1}^{n} \rho^{\,n-k}\, \phi^{(k)}
# \tag{10}
# $$
#
# so the targets forget their origin with a time constant of $1 / (1 - \rho)$: 200 updates for $\rho = 0.995$. Too slow
# is a fault as well: the values have to travel through the targets from the place of the reward to the place of the
# decision, one backup at a time.
#
# The order of the three steps matters little, but it must be *an* order. In a graph that has no order of its own, it
# has to be enforced: a reader of Spinning Up's DDPG in graph style saw the target update run before the policy's step
# that it was to follow (openai/spinningup, pull request 65).

# %% Update tags=["section"]
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    columns_with_min_and_max, columns_average_only = ['QVals'], ['LossPi', 'LossQ']
    noise_arrays = 0                                            # standard normal, (batch, act_dim) each, for an update

    def __init__(self, env, rng, args):
        self.args = args
        setup_pytorch_for_mpi(rng.integers(2**31))              # for layers with random numbers of their own: dropout
        self.ac = args.actor_critic(env.observation_space, env.action_space, rng, **args.ac_kwargs)
        sync_params(self.ac.eval())                             # in mode train() only while it is trained
        self.ac_targ = deepcopy(self.ac).requires_grad_(False)
        self.pi_optimizer = Adam(self.ac.pi.parameters(), lr=args.pi_lr, fused=True)
        self.q_optimizer = Adam(self.ac.q.parameters(), lr=args.q_lr, fused=True)
        self.updates = 0

    def act(self, obs, noise=0):
        """An action for one observation, by the network itself; without noise, the deterministic one."""
        with torch.inference_mode():
            act = self.ac.pi(torch.as_tensor(obs, dtype=torch.float32)[None])[0].numpy()
        return np.clip(act + self.args.act_noise * noise, -1, 1)

    def update(self, batch, noise):
        """One step of q, one of the policy, and the target networks after them; returns what is logged about it."""
        obs, act, rew, next_obs, terminated = [torch.as_tensor(batch[key]) for key in
                                               ('obs', 'act', 'rew', 'next_obs', 'terminated')]
        self.updates += 1
        self.ac.train()                                         # dropout, say, is active in training, not in acting

        with torch.no_grad():
            next_q = self.ac_targ.q(next_obs, self.ac_targ.pi(next_obs))
            backup = compute_backup(rew, terminated, next_q, self.args.gamma)
        q = self.ac.q(obs, act)
        loss_q = compute_loss_q(q, backup)
        self.q_optimizer.zero_grad()
        loss_q.backward()
        mpi_avg_grads(self.ac.q)
        self.q_optimizer.step()

        loss_pi = compute_loss_pi(self.ac.q(obs, self.ac.pi(obs)))
        self.pi_optimizer.zero_grad()
        # Only the policy's own gradient is computed: the parameters of q are frozen in this step.
        loss_pi.backward(inputs=[p for p in self.ac.pi.parameters() if p.requires_grad])
        mpi_avg_grads(self.ac.pi)
        self.pi_optimizer.step()

        self.ac.eval()
        with torch.no_grad():                                   # target = polyak target + (1 - polyak) main
            for p_targ, p in zip(self.ac_targ.parameters(), self.ac.parameters()):
                p_targ.lerp_(p, 1 - self.args.polyak)
            for buffer_targ, buffer in zip(self.ac_targ.buffers(), self.ac.buffers()):     # of BatchNorm, say
                buffer_targ.copy_(buffer)
        metrics = dict(QVals=q, LossPi=loss_pi, LossQ=loss_q)
        return {key: value.detach().numpy() for key, value in metrics.items()}

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, 'state_dict')}

    def set_state(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

# %% [markdown] tags=["notes"]
# - `noise_arrays = 0`: how many arrays of noise an update needs; the training loop asks. DDPG needs none, TD3 one for
#   the actions in its targets, and SAC two.
# - `return np.clip(act + self.args.act_noise * noise, -1, 1)`: exploration. The action that is stored and learned from
#   is the clipped one: the one that was done.
# - `self.updates = 0`: counts updates; the training loop compares it with what is due.
# - `metrics = dict(QVals=q, LossPi=loss_pi, LossQ=loss_q)`: values and losses *before* this update's steps, `LossPi`
#   being that of the policy before its step, under the `q` after its own.

# %% [markdown] tags=["notes", "torch"]
# - `self.ac_targ = deepcopy(self.ac).requires_grad_(False)`: equal at the beginning, and never touched by an optimizer.
# - `self.pi_optimizer = Adam(self.ac.pi.parameters(), lr=args.pi_lr, fused=True)`: two optimizers, each with its own
#   parameters; the two losses must not pull on each other's network.
# - `with torch.inference_mode():`: acting needs no gradient.
# - `next_q = self.ac_targ.q(next_obs, self.ac_targ.pi(next_obs))`: *both* from the targets.
# - `backup = compute_backup(rew, terminated, next_q, self.args.gamma)`: under `no_grad`, so it is a label, as (7)
#   wants.
# - `q = self.ac.q(obs, act)`: the stored action.
# - `loss_pi = compute_loss_pi(self.ac.q(obs, self.ac.pi(obs)))`: the policy's action, under the `q` that has just made
#   its step.
# - `loss_pi.backward(inputs=[p for p in self.ac.pi.parameters() if p.requires_grad])`: the gradient passes *through*
#   `q` and stops at the policy's parameters. Other implementations switch `requires_grad` of `q` off and on again;
#   Spinning Up's TD3 and SAC do so with an iterator that is already used up, and so switch nothing (pull requests 251
#   and 330 of openai/spinningup).
# - `p_targ.lerp_(p, 1 - self.args.polyak)`: equation (9), in place. `lerp_` is linear interpolation.

# %% [markdown] tags=["notes", "tf1"]
# - `self.ac_targ = args.actor_critic(env.observation_space, env.action_space, deepcopy(rng), **args.ac_kwargs)`: the
#   random state is copied, so that the targets take no random numbers from the run.
# - `self.sess.run([p_targ.assign(p) for p_targ, p in zip(self.ac_targ.variables, self.ac.variables)])`: equal at the
#   beginning, whatever they were drawn as.
# - `next_q = self.ac_targ.q(next_obs, self.ac_targ.pi(next_obs))`: *both* from the targets.
# - `backup = tf.stop_gradient(compute_backup(rew, terminated, next_q, self.args.gamma))`: a label, as (7) wants.
# - `train_q = MpiAdamOptimizer(self.args.q_lr).minimize(loss_q, var_list=self.ac.q.trainable_variables)`: the list says
#   whom this loss may move.
# - `with tf.control_dependencies([train_q]):`: the order of the steps, enforced.
# - `loss_pi = compute_loss_pi(self.ac.q(obs, self.ac.pi(obs)))`: a second call of `q`, built inside the dependency, so
#   that it reads the variables after their step.
# - `self.train = tf.group([p_targ.assign_add((1 - self.args.polyak) * (p - p_targ)) for p_targ, p in`: equation (9).

# %% [markdown]
# ## Evaluation
#
# An off-policy agent plays with noise and, at the very beginning, entirely at random. The returns of these episodes,
# `EpRet`, say how the *exploring* agent did, which is not what we want to know. So at the end of every epoch some test
# episodes are played without noise, in an environment of their own, and their returns are logged as `TestEpRet`. When
# you compare DDPG with another algorithm, this is the column.
#
# Two points of method. The test environment is a second one, since a test that used the training environment would
# interrupt the episode under way. And nothing from a test goes into the buffer: it would be experience that the agent
# did not pay for, and a comparison by environment steps would be unfair.
#
# The number of test episodes is a trade of time against noise. The mean of $m$ returns with standard deviation $\sigma$
# is uncertain by
#
# $$
# \operatorname{std}\Big( \frac{1}{m} \sum_{j=1}^m R_j \Big) = \frac{\sigma}{\sqrt{m}} \tag{11}
# $$
#
# Pendulum starts anywhere between hanging and standing: an episode that begins near the top costs a good policy next to
# nothing, one from the bottom two or three hundred. With $\sigma = 100$ and four test episodes the curve has error bars
# of fifty; keep that in mind before explaining a bump in it. Seeds vary even more: no conclusion from one seed
# (Henderson et al. 2018).

# %% Evaluation tags=["section"]
def test_agent(agent, test_env, logger, num_test_episodes, max_ep_len):
    """Test episodes with the deterministic policy, shared out among the processes."""
    for _ in range(proc_id(), num_test_episodes, num_procs()):
        (obs, _), ep_ret, ep_len, ended = test_env.reset(), 0, 0, False
        while not ended:
            obs, rew, terminated, truncated, _ = test_env.step(agent.act(obs))
            ep_ret, ep_len = ep_ret + rew, ep_len + 1
            ended = terminated or truncated or ep_len == max_ep_len
        logger.store(TestEpRet=ep_ret, TestEpLen=ep_len)

# %% [markdown] tags=["notes"]
# - `for _ in range(proc_id(), num_test_episodes, num_procs()):`: with several processes each plays its share.
# - `test_env.step(agent.act(obs))`: no noise is passed, and its default is 0: the deterministic policy.
# - `ended = terminated or truncated or ep_len == max_ep_len`: here, and only here, all ends are equal: the episode is
#   over and its return is known.

# %% [markdown]
# ## Training
#
# The signature is the list of all knobs, each with its meaning. The body makes two environments, agent, buffer and
# logger, and then plays step by step. Compare with the on-policy loop: there the epoch was a unit of *learning*; here
# it is only the distance from one test and one line of the table to the next. Learning goes on all the time.
#
# **Exploration.** A deterministic policy tries nothing new. So noise is added to what it says, independent and normal
# in each dimension:
#
# $$
# a = \operatorname{clip}\big( \pi(s) + \sigma\, \varepsilon,\; -1,\; 1 \big), \qquad \varepsilon \sim \mathcal{N}(0, I)
# \tag{12}
# $$
#
# The paper used noise that is correlated in time (an Ornstein-Uhlenbeck process); plain normal noise has turned out to
# do as well (Fujimoto et al. 2018 report no benefit of the other). For the first `start_steps` steps the policy is not
# asked at all, and actions are uniform: the first thing that `q` learns should be about actions of every kind.
#
# **When to update.** Nothing is learned before `update_after` steps, so that the first batches are not drawn from a
# handful of transitions. From then on there is one update for each step, though not after each step, but in groups of
# `update_every`:
#
# $$
# \text{updates}(\text{steps}) = \max\Big(0,\; \Big\lfloor \frac{\text{steps}}{k} \Big\rfloor\, k - \text{update\_after}
# \Big), \qquad k = \text{update\_every} \tag{13}
# $$
#
# The ratio of updates to steps is a knob in its own right, hidden in the "one" of this sentence. Fewer updates waste
# experience; many more let `q` fit its own errors before the world can correct them.
#
# Now read the loop. Act, step, store, update, and at the end of an episode reset.

# %% Training tags=["section"]
@explain_arguments
def ddpg(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=MLPActorCritic,        # the networks, made from (observation_space, action_space, rng, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; process i uses seed + 10000 i
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=100,                         # epochs; each ends with test episodes
    replay_size=int(1e6),               # transitions kept for replay, of all processes together
    gamma=0.99,                         # discount of the future, per step
    polyak=0.995,                       # target = polyak target + (1 - polyak) main
    pi_lr=1e-3,                         # learning rate of the policy
    q_lr=1e-3,                          # learning rate of q
    batch_size=100,                     # transitions in an update, shared out among the processes
    start_steps=10000,                  # steps with uniformly random actions before the policy acts
    update_after=1000,                  # steps before the first update
    update_every=50,                    # steps between rounds of updates; a round has one update per step
    act_noise=0.1,                      # standard deviation of the exploration noise on actions in [-1, 1]
    num_test_episodes=10,               # test episodes at the end of an epoch
    max_ep_len=1000,                    # longest episode; a longer one is truncated
    logger_kwargs=dict(),               # arguments of EpochLogger: where the results go
    save_freq=1,                        # epochs from one saved model and checkpoint to the next
):
    """Train, and return the agent. The command line has a flag for each of these arguments."""
    args = SimpleNamespace(**locals())
    seed += 10000 * proc_id()
    rng = np.random.default_rng(seed)
    env, test_env = make_env_and_test_env(env_fn)
    env.action_space.seed(seed)
    agent = Agent(env, rng, args)
    local_steps, local_batch = steps_per_epoch // num_procs(), int(np.ceil(batch_size / num_procs()))
    act_dim = env.action_space.shape[0]
    buf = ReplayBuffer(env.observation_space, env.action_space, replay_size // num_procs())
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(vars(args), ddpg, env)
    setup_saver(agent, logger)

    test_env.reset(seed=seed + 5000)
    (obs, _), ep_ret, ep_len, start_epoch = env.reset(seed=seed), 0, 0, 0
    saved = logger.load_state(replay=buf)               # None, except for a run that is resumed
    if saved:
        agent.set_state(saved['agent'])
        rng.bit_generator.state = saved['rng']
        test_env.replay_episode(saved['test_env'])
        (obs, ep_ret, ep_len), start_epoch = env.replay_episode(saved['env']), saved['epoch']
        agent.updates = saved['updates']

    for epoch in range(start_epoch, epochs):
        for t in logger.progress(local_steps, epoch, epochs):
            steps = (epoch * local_steps + t + 1) * num_procs()             # of all processes, this one included
            if steps > start_steps:
                act = agent.act(obs, rng.standard_normal(act_dim, dtype=np.float32))
            else:
                act = rng.uniform(-1, 1, act_dim).astype(np.float32)
            next_obs, rew, terminated, truncated, _ = env.step(act)
            buf.store(obs, act, rew, next_obs, terminated)
            obs, ep_ret, ep_len = next_obs, ep_ret + rew, ep_len + 1

            if terminated or truncated or ep_len == max_ep_len:
                logger.store(EpRet=ep_ret, EpLen=ep_len)
                (obs, _), ep_ret, ep_len = env.reset(), 0, 0

            updates_due = steps // update_every * update_every - update_after
            while agent.updates < updates_due:
                noise = rng.standard_normal((agent.noise_arrays, local_batch, act_dim), dtype=np.float32)
                logger.store(**agent.update(buf.sample_batch(rng, local_batch), noise))

        test_agent(agent, test_env, logger, num_test_episodes, max_ep_len)

        logger.log_tabular('Epoch', epoch)
        logger.log_tabular('EpRet', with_min_and_max=True)
        logger.log_tabular('TestEpRet', with_min_and_max=True)
        logger.log_tabular('EpLen', average_only=True)
        logger.log_tabular('TestEpLen', average_only=True)
        logger.log_tabular('TotalEnvInteracts', (epoch + 1) * local_steps * num_procs())
        for key in agent.columns_with_min_and_max:
            logger.log_tabular(key, with_min_and_max=True)
        for key in agent.columns_average_only:
            logger.log_tabular(key, average_only=True)
        logger.log_tabular('Time', time.time() - logger.start_time)
        logger.dump_tabular()
        if epoch % save_freq == 0 or epoch == epochs - 1 or logger.interrupted():
            logger.save_state(dict(agent=agent.get_state(), rng=rng.bit_generator.state, env=env.episode_state(),
                                   test_env=test_env.episode_state(), updates=agent.updates, epoch=epoch + 1),
                              itr=epoch, replay=buf)
    return agent

# %% [markdown] tags=["notes"]
# - `env, test_env = make_env_and_test_env(env_fn)`: two environments, as the section above
#   wants.
# - `test_env.reset(seed=seed + 5000)`: seeded once; later resets continue its random numbers, so that test episodes
#   differ from each other, but not from one run with this seed to the next.
# - `if steps > start_steps:`: and not before. The updates do not wait for it: `update_after` is usually smaller, and
#   the policy learns while chance is still acting.
# - `act = agent.act(obs, rng.standard_normal(act_dim, dtype=np.float32))`: equation (12): one number for each dimension
#   of the action.
# - `buf.store(obs, act, rew, next_obs, terminated)`: `terminated` alone. This word decides whether `q` is right about
#   everything that happens before a time limit.
# - `if terminated or truncated or ep_len == max_ep_len:`: here it is about resetting, so all three.
# - `obs, ep_ret, ep_len = next_obs, ep_ret + rew, ep_len + 1`: *after* storing. Exchange the two lines, and every
#   transition leads from a state to itself.
# - `updates_due = steps // update_every * update_every - update_after`: equation (13).
# - `while agent.updates < updates_due:`: not `if`: a whole group is made here.
# - `logger.log_tabular('TestEpRet', with_min_and_max=True)`: the column to plot.
# - `start_steps=10000,`: fine for HalfCheetah and a million steps, and far too many for this page, which sets its own.
# - `saved = logger.load_state(replay=buf)`: a run that was stopped goes on with its memory. It plays no part here.

# %% [markdown]
# ## Command line
#
# The last section turns the training function into a program, every argument a flag. In a notebook there is no command
# line: here you call the function. In a terminal it is `python ddpg_torch.py --env Pendulum-v1 --start_steps 1000
# --polyak 0.99`, and several values for one flag make a grid of runs. The results land in a folder with a table that
# `tools/plot.py` draws.

# %% Command line tags=["section"]
if __name__ == '__main__':
    command_line(ddpg)

# %% [markdown] tags=["notes"]
# - `if __name__ == '__main__':`: true when the file is run, false when another program imports it.

# %% [markdown]
# To look into an agent we need two small functions: the values that its `q` gives to pairs of observation and action,
# and all parameters of its networks as one long array.

# %% tags=["torch"]
def q_of(agent, obs, act):
    """What the agent's q says about pairs of observation and action: (batch,)."""
    with torch.no_grad():
        return agent.ac.q(torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(act, dtype=torch.float32)).numpy()


def parameters_of(agent, which):
    """All parameters of agent.ac or agent.ac_targ, in one array."""
    return np.concatenate([p.detach().numpy().ravel() for p in getattr(agent, which).parameters()])

# %% [raw] tags=["tf1"]
# def q_of(agent, obs, act):
#     """What the agent's q says about pairs of observation and action: (batch,)."""
#     return agent.sess.run(agent.metrics['QVals'], {agent.inputs['obs']: obs, agent.inputs['act']: act})
#
#
# def parameters_of(agent, which):
#     """All parameters of agent.ac or agent.ac_targ, in one array."""
#     return np.concatenate([array.ravel() for array in agent.sess.run(getattr(agent, which).trainable_variables)])

# %% [markdown]
# Now the equations of the last three sections. Twenty updates on random transitions: after each, the main parameters
# are noted, and from these (10) predicts where the targets are.

# %% tags=["check"]
# Equations (9) and (10) in numbers: one move of the targets, and twenty.
def random_batch(n, seed):
    """n transitions of Pendulum's shapes, invented."""
    dice = np.random.default_rng(seed)
    batch = dict(obs=dice.normal(size=(n, 3)), act=dice.uniform(-1, 1, (n, 1)), rew=dice.normal(size=n),
                 next_obs=dice.normal(size=(n, 3)), terminated=np.zeros(n))
    return {key: array.astype(np.float32) for key, array in batch.items()}


def no_noise(agent, n):
    """The noise of an update: DDPG needs zero arrays of it."""
    return np.zeros((agent.noise_arrays, n, 1), dtype=np.float32)


rho, small = 0.9, dict(ac_kwargs=dict(hidden_sizes=(32, 32)))
watched, _ = classroom.make_agent(ddpg, 'Pendulum-v1', polyak=rho, **small)
mains, targets = [parameters_of(watched, 'ac')], [parameters_of(watched, 'ac_targ')]
for i in range(20):
    watched.update(random_batch(50, seed=i), no_noise(watched, 50))
    mains.append(parameters_of(watched, 'ac'))
    targets.append(parameters_of(watched, 'ac_targ'))
classroom.agree('The targets at the beginning and their originals', targets[0], mains[0], tol=0)
classroom.agree('One move of the targets and (9)', targets[1], rho * targets[0] + (1 - rho) * mains[1])
by_weights = rho**20 * targets[0] + (1 - rho) * sum(rho**(20 - k) * mains[k] for k in range(1, 21))
classroom.agree('Twenty moves and (10)', targets[20], by_weights, tol=1e-5)
print(f'After 200 updates with polyak = 0.995 the targets still hold {0.995**200:.0%} of where they began.')

# %% tags=["check"]
# Equations (11), (12) and (13) in numbers: means of returns, noisy actions, and the number of updates.
invented_returns = generator.normal(-150, 100, size=(20_000, 4))
classroom.agree('The spread of means of four returns and (11), relative', invented_returns.mean(1).std() / (100 / 2), 1,
                tol=0.03)

some_obs, some_noise = np.array([0.6, -0.8, 1.0], dtype=np.float32), np.float32([[0.4], [3.0]])
noisy, quiet = (classroom.make_agent(ddpg, 'Pendulum-v1', act_noise=sigma)[0] for sigma in (0.5, 0.0))
classroom.agree('Two noisy actions, of which one is clipped, and (12)', [noisy.act(some_obs, z) for z in some_noise],
                np.clip(quiet.act(some_obs) + 0.5 * some_noise, -1, 1))

counted = [classroom.train(ddpg, 'Pendulum-v1', epochs=1, steps_per_epoch=played, update_after=60, update_every=25,
                           replay_size=200, num_test_episodes=1, label=f'{played} steps', **small)[0].agent.updates
           for played in (40, 99, 130)]
classroom.agree('The number of updates and (13)', counted, [max(0, steps // 25 * 25 - 60) for steps in (40, 99, 130)])

# %% [markdown]
# ## Train
#
# Pendulum: a rod hangs on a motor that is too weak to lift it directly. It has to be swung up, and then balanced. The
# reward is at most 0, and the return of an episode of 200 steps lies between about -1600, for doing everything wrong,
# and -150, for a good policy, which still has to pay for the way up. Small networks and a larger learning rate than the
# file's make it a matter of seconds; the discount of 0.95 looks twenty steps ahead, one second of the pendulum's time.

# %%
two_seeds = classroom.steps([0, 1], fast=[0])
recipe = dict(env='Pendulum-v1', epochs=classroom.steps(8, fast=2), steps_per_epoch=classroom.steps(400, fast=150),
              start_steps=classroom.steps(400, fast=100), update_after=classroom.steps(400, fast=100), gamma=0.95,
              polyak=0.98, q_lr=3e-3, pi_lr=1e-3, batch_size=64, act_noise=0.2, replay_size=10_000,
              num_test_episodes=classroom.steps(4, fast=1), **small)
ddpg_runs = classroom.train(ddpg, seeds=two_seeds, **recipe)

fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageTestEpRet', 'AverageQVals', 'LossQ')):
    classroom.curves({'DDPG': ddpg_runs}, y=column, ax=ax)
plt.show()
first_return = np.mean([run['AverageTestEpRet'][0] for run in ddpg_runs])
classroom.claim(classroom.last(ddpg_runs, rows=2) > -500,
                f'in {recipe["epochs"] * recipe["steps_per_epoch"]} steps the test return rises from '
                f'{first_return:.0f} to {classroom.last(ddpg_runs, rows=2):.0f}', full=True)

# %% [markdown]
# Three thousand steps, sixteen episodes: that is what reusing experience buys. (Try how far `ppo_torch.py` gets with as
# many.) Look at the middle curve too. `AverageQVals` first *falls*: the rewards are negative, `q` begins near
# 0, and it takes backup after backup, through the slow targets, until the costs of a long future have arrived. Then it
# rises, as the policy gets better. The loss of `q` on the right does *not* go to zero, and a small one is no sign of
# success: its labels move as long as the agent learns.
#
# ## Experiment 1: does q tell the truth?
#
# A learned `q` makes a promise that can be checked. Put the pendulum into some state, take some action, let the policy
# act from then on, add up the discounted rewards: by definition that is $Q^\pi(s, a)$, and since pendulum and policy
# are deterministic, one trajectory gives it exactly. The cell does this for sixty pairs that the trained agent meets
# while it explores. On the right, `q` as a function of the action in four of these states, with the policy's own action
# as a dot: has the policy climbed to the top?

# %%
def play(agent, state, act, steps=150):
    """The return, discounted by 0.95, from a state of the pendulum: one given action, then the policy's."""
    pendulum.reset(seed=0)
    pendulum.unwrapped.state = state.copy()
    total = 0
    for t in range(steps):
        obs, rew, *_ = pendulum.step(act)
        total, act = total + 0.95**t * rew, agent.act(obs)
    return total


def moments(agent, episodes, every):
    """States, observations and actions that an exploring agent meets on its way up."""
    met, dice = [], np.random.default_rng(0)
    for episode in range(episodes):
        obs, _ = pendulum.reset(seed=episode)
        for t in range(100):
            act = agent.act(obs, dice.standard_normal(1, dtype=np.float32))
            if t % every == 0:
                met.append((pendulum.unwrapped.state.copy(), obs, act))
            obs, *_ = pendulum.step(act)
    return [np.array(part) for part in zip(*met)]


def judge(agent):
    """What q says about sixty moments, and what is true."""
    states, obs, acts = moments(agent, episodes=classroom.steps(6, fast=2), every=10)
    return q_of(agent, obs, acts), np.array([play(agent, state, act) for state, act in zip(states, acts)])


student = ddpg_runs[0].agent
said, true = judge(student)
_, met_obs, _ = moments(student, episodes=6, every=10)
all_acts = np.linspace(-1, 1, 41, dtype=np.float32)[:, None]
hills = np.array([q_of(student, np.repeat(obs[None], 41, axis=0), all_acts) for obs in met_obs])       # (60, 41)
chosen = np.array([student.act(obs)[0] for obs in met_obs])
reached = np.array([np.interp(act, all_acts[:, 0], hill) for act, hill in zip(chosen, hills)])
height = (reached - hills.min(1)) / (hills.max(1) - hills.min(1))

fig, axes = classroom.figure(columns=2)
axes[0].plot(true, said, 'o', markersize=4)
axes[0].axline((0, 0), slope=1, color='gray', linestyle='--')
axes[0].set(xlabel='true discounted return', ylabel='q', title='Promise and truth')
for i in (0, 1, 2, 3):
    axes[1].plot(all_acts[:, 0], hills[i] - hills[i].max(), label=f'moment {i}')
    axes[1].plot(chosen[i], reached[i] - hills[i].max(), 'o', color=f'C{i}')
axes[1].set(xlabel='action', ylabel='q, minus its maximum', title="q over the action; dots: the policy's choice")
axes[1].legend()
plt.show()
classroom.claim(np.corrcoef(said, true)[0, 1] > 0.8, f'the correlation of q and the true return is '
                f'{np.corrcoef(said, true)[0, 1]:.2f}; on average q differs from it by {np.mean(said - true):+.1f}',
                full=True)
classroom.claim(height.mean() > 0.8, f"on the way from the worst action to the best, the policy's choice is at "
                f'{height.mean():.0%} on average', full=True)

# %% [markdown]
# ## Experiment 2: a short memory
#
# What does the buffer do? We take it away, or almost: 100 transitions, half an episode, instead of all. There are as
# many updates as before, with batches of the same size, but they are drawn from the immediate past.

# %%
short_memory = classroom.train(ddpg, seeds=two_seeds, label='A short memory', **dict(recipe, replay_size=100))
fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('AverageTestEpRet', 'LossQ')):
    classroom.curves({'all of it': ddpg_runs, 'the last 100 transitions': short_memory}, y=column, ax=ax)
plt.show()
with_memory, without_memory = classroom.last(ddpg_runs), classroom.last(short_memory)
classroom.claim(without_memory < with_memory - 300, f'with its memory the agent ends at {with_memory:.0f}, with a '
                f'short one at {without_memory:.0f}', full=True)
losses = [classroom.last(runs, 'LossQ', rows=99) for runs in (ddpg_runs, short_memory)]
classroom.claim(losses[1] < 1.5 * losses[0], f'yet the loss of q is {losses[0]:.1f} on average with the memory, and '
                f'{losses[1]:.1f} with a short one', full=True)

# %% [markdown]
# The agent with the short memory is not short of data to fit: its `q` has no large loss, since it is easy to fit the
# last 100 steps. It is short of everything else. What `q` says about the states where the pendulum has not been lately
# is no longer corrected by anything, and the policy climbs there too, on slopes that nobody has checked.
#
# **Exercise 3 (ablate).** Now take away the other precaution: `polyak=0` makes the targets equal to the main networks
# after every update. Everything else is as in the first run. Decide before you run the next cell:
#
# - Will the loss of `q`, averaged over the run, be `'higher'`, `'lower'` or the `'same'` (within a third)?
# - In the first epoch of updates, from 400 to 800 steps: will the values of `q` be further from 0 (`'further'`) or
#   closer to 0 (`'closer'`) than with slow targets?

# %% tags=["exercise"]
loss_without_targets = None         # 'higher', 'lower' or 'same'
values_without_targets = None       # 'further' or 'closer'
### BEGIN SOLUTION
loss_without_targets = 'higher'
values_without_targets = 'further'
### END SOLUTION

# %%
no_targets = classroom.train(ddpg, seeds=two_seeds, label='Without targets', **dict(recipe, polyak=0.0))
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageTestEpRet', 'AverageQVals', 'LossQ')):
    classroom.curves({'slow targets': ddpg_runs, 'no targets': no_targets}, y=column, ax=ax)
plt.show()
losses = [classroom.last(runs, 'LossQ', rows=99) for runs in (ddpg_runs, no_targets)]
early = [abs(np.mean([run['AverageQVals'][1] for run in runs])) for runs in (ddpg_runs, no_targets)]
classroom.say(f'The loss of q is {losses[0]:.1f} on average with targets, and {losses[1]:.1f} without. In the first '
              f'epoch of updates, q is {early[0]:.0f} away from 0 with targets, and {early[1]:.0f} without.')
change = losses[1] / losses[0]
outcome = 'higher' if change > 4 / 3 else 'lower' if change < 3 / 4 else 'same'
classroom.check('Exercise 3a', loss_without_targets, outcome, full=True,
                hint='the labels now jump with every step of q; can a regression on them be accurate?')
classroom.check('Exercise 3b', values_without_targets, 'further' if early[1] > early[0] else 'closer', full=True,
                hint='slow targets delay everything that travels through them, the truth included')

# %% [markdown] tags=["solution"]
# *Discussion.* Without targets the labels change with every step, and `q` is never done: its loss is several times as
# large. The values travel faster, too. Most of the way for which slow targets need three epochs is done in the first;
# what arrives so quickly is the truth and the error alike. On this small task the policy often survives it, with more
# ups and downs. On larger ones an error that feeds itself runs away, and this is why the authors of DQN (Mnih et al.
# 2015) and of DDPG introduced targets. Speed and stability are one dial, `polyak`, and the 0.98 of this page is fast.

# %% [markdown]
# ## What changed from PPO, and why
#
# DDPG is not a variation on the on-policy files, as PPO is on VPG; networks, buffer, losses and update are new. The
# section that can be compared line by line is the training function. Here is the difference, and it is the difference
# between on-policy and off-policy.

# %%
classroom.changes('ppo', 'ddpg', 'Training')

# %% [markdown]
# | section | PPO | DDPG | why |
# |---|---|---|---|
# | Networks | a distribution, and $V(s)$ | one action, and $Q(s, a)$ | the slope of $Q$ replaces the log-probability |
# | Buffer | one epoch in order, then emptied | a ring, drawn from at random | (1) does not ask who acted |
# | Losses | ratio and clip | minus $Q$ | the policy is improved on the landscape, not on samples |
# | Update | many steps on one batch | one step on each of many batches | the batch is never stale |
# | Update | | target networks | labels that contain $Q$ must not run with it |
# | Evaluation | | test episodes | the policy that explores is not the policy that is learned |
# | Training | noise belongs to the policy | random first steps, then noise | a deterministic policy tries nothing new |
# | Training | `finish_path` at every end | `terminated` in every transition | each transition carries its own future |
#
# ## Hunt the bug
#
# Five copies of `ddpg_torch.py` follow, with one line changed in each. Every one of these mistakes has been made in a
# public implementation, and none of them raises an error. You see a symptom, and you have the copy as `culprit.module`,
# with all functions and classes of the file: `culprit.module.compute_backup`, `culprit.module.ReplayBuffer`,
# `culprit.module.ddpg`. Your answer is the line of the *good* file, as this page shows it, that you believe to be
# different in the copy: quote it, or as much of it as stands in no other line.
#
# **Exercise 4 (hunt).** The student of experiment 1 had a `q` that told the truth about its own policy. The copy's test
# returns are as good in the end. But ask its `q` what it thinks of that policy.

# %%
culprit = classroom.bug('A')
copy_run = classroom.train(culprit.module.ddpg, label='The copy', **recipe)[0]
fig, axes = classroom.figure(columns=2)
classroom.curves({'this page': ddpg_runs[:1], 'the copy': [copy_run]}, ax=axes[0])
errors = []
for agent, source in ((student, 'this page'), (copy_run.agent, 'the copy')):
    said, true = judge(agent)
    errors.append(np.mean(said - true))
    axes[1].plot(true, said, 'o', markersize=4, label=source)
axes[1].axline((0, 0), slope=1, color='gray', linestyle='--')
axes[1].set(xlabel='true discounted return', ylabel='q', title='Promise and truth')
axes[1].legend()
plt.show()
classroom.claim(errors[1] < errors[0] - 8, f'on average q differs from the true return by {errors[0]:+.1f} here and by '
                f'{errors[1]:+.1f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None                      # a quotation: 'return -q_pi.mean()' for example
### BEGIN SOLUTION
my_line = dict(torch='zip(self.ac_targ.parameters()',
               tf1='zip(self.ac_targ.trainable_variables')[classroom.lesson.framework]
### END SOLUTION
classroom.hunt('Exercise 4', culprit, my_line)

# %% [markdown]
# **Exercise 5 (hunt).** In the waiting room every step pays 1 and nothing ever happens; a time limit sends you out
# after five steps, and you come in again. With $\gamma = 0.9$ every action is worth $1 + 0.9 + 0.81 + \dots = 10$. The
# copy thinks less of it.

# %%
from walkthroughs.bugs.ddpg import Waiting

culprit = classroom.bug('B')
waiting = dict(env=Waiting, epochs=classroom.steps(8, fast=2), steps_per_epoch=100, start_steps=100, update_after=50,
               gamma=0.9, polyak=0.9, q_lr=1e-2, batch_size=32, replay_size=1000, num_test_episodes=1, **small)
waiting_runs = {'this page': classroom.train(ddpg, **waiting),
                'the copy': classroom.train(culprit.module.ddpg, label='The copy', **waiting)}
ax = classroom.curves(waiting_runs, y='AverageQVals', title='What q believes')
ax.axhline(10, color='gray', linestyle='--')
plt.show()
believed = [classroom.last(runs, 'AverageQVals', rows=1) for runs in waiting_runs.values()]
classroom.claim(abs(believed[0] - 10) < 1.5 and believed[1] < 6,
                f'q comes out as {believed[0]:.1f} here, and as {believed[1]:.1f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'buf.store(obs, act, rew, next_obs, terminated)'
### END SOLUTION
classroom.hunt('Exercise 5', culprit, my_line)

# %% [markdown]
# **Exercise 6 (hunt).** Good and bad states, good and bad actions: `q` is there to tell them apart. The table has a
# column for that, `StdQVals`, the standard deviation of `q` over the transitions of an epoch's batches. The loss of the
# copy, too, is a clue: it cannot be brought down.

# %%
culprit = classroom.bug('C')
brief = dict(recipe, epochs=classroom.steps(5, fast=2))
copy_runs = classroom.train(culprit.module.ddpg, label='The copy', **brief)
fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('StdQVals', 'LossQ')):
    classroom.curves({'this page': ddpg_runs[:1], 'the copy': copy_runs}, y=column, ax=ax)
plt.show()
spread = [run['StdQVals'][brief['epochs'] - 1] for run in (ddpg_runs[0], copy_runs[0])]
classroom.claim(spread[1] < spread[0] / 2, f'after {brief["epochs"]} epochs the standard deviation of q is '
                f'{spread[0]:.1f} here, and {spread[1]:.1f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = '(q - backup)**2'
### END SOLUTION
classroom.hunt('Exercise 6', culprit, my_line)

# %% [markdown]
# **Exercise 7 (hunt).** A robot with two motors. Here is every action that an untrained agent tries in 300 steps of the
# waiting room: the first motor to the right, the second one upwards. On Pendulum, the copy is perfect.

# %%
culprit = classroom.bug('D')
fig, axes = classroom.figure(columns=2)
correlations = []
for ax, trainer, source in zip(axes, (ddpg, culprit.module.ddpg), ('this page', 'the copy')):
    room = Waiting()
    classroom.train(trainer, lambda room=room: room, epochs=1, steps_per_epoch=300, start_steps=0, update_after=1000,
                    num_test_episodes=0, replay_size=300, act_noise=0.3, label=source)
    tried = np.array(room.actions)
    correlations.append(np.corrcoef(tried.T)[0, 1])
    ax.plot(*tried.T, '.', markersize=4)
    ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xlabel='motor 1', ylabel='motor 2', title=f'{source}: what is tried')
plt.show()
classroom.claim(abs(correlations[0]) < 0.3 and correlations[1] > 0.95,
                f'the correlation of the two motors is {correlations[0]:.2f} here, {correlations[1]:.2f} in the copy')

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'rng.standard_normal(act_dim, dtype=np.float32)'
### END SOLUTION
classroom.hunt('Exercise 7', culprit, my_line)

# %% [markdown]
# **Exercise 8 (hunt).** Back to the waiting room, where everything is worth 10. This copy does not stop there.

# %%
culprit = classroom.bug('E')
waiting_runs['the copy'] = classroom.train(culprit.module.ddpg, label='The copy', **waiting)
ax = classroom.curves(waiting_runs, y='AverageQVals', title='What q believes')
ax.axhline(10, color='gray', linestyle='--')
plt.show()
believed = [classroom.last(runs, 'AverageQVals', rows=1) for runs in waiting_runs.values()]
classroom.claim(believed[1] > 2 * believed[0],
                f'q comes out as {believed[0]:.1f} here, and as {believed[1]:.1f} in the copy, and rises', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'return rew + gamma * (1 - terminated) * next_q'
### END SOLUTION
classroom.hunt('Exercise 8', culprit, my_line)

# %% [markdown]
# ## What to take away
#
# - $Q^\pi(s, a)$ is about any action, so any experience can teach it; the policy climbs its slope (2).
# - A memory makes batches that are varied and experience that is used many times. Without it, `q` is only right about
#   the last minute.
# - Labels that contain the learner run away with it. Target networks slow them down, and with them the learning.
# - `terminated` is a property of a transition; truncation is not stored.
# - A `q` can be checked: compare it with returns. Half an hour for such a plot saves days of reading loss curves.
#
# A policy that climbs `q` also climbs its *errors*: where `q` is too high by mistake, there the policy goes. On this
# page the promise was about right; in longer runs it becomes too good to be true. The next notebook, on TD3, measures
# that, and repairs it with three changes.
#
# **Read on.** T. Lillicrap et al., *Continuous Control with Deep Reinforcement Learning*, ICLR 2016, arXiv:1509.02971.
# D. Silver, G. Lever, N. Heess, T. Degris, D. Wierstra, M. Riedmiller, *Deterministic Policy Gradient Algorithms*, ICML
# 2014. V. Mnih et al., *Human-Level Control through Deep Reinforcement Learning*, Nature 518, 2015, for replay and
# targets; L.-J. Lin, *Self-Improving Reactive Agents Based on Reinforcement Learning, Planning and Teaching*, Machine
# Learning 8, 1992, where replay comes from. F. Pardo, A. Tavakoli, V. Levdik, P. Kormushev, *Time Limits in
# Reinforcement Learning*, ICML 2018, arXiv:1712.00378. P. Henderson et al., *Deep Reinforcement Learning that Matters*,
# AAAI 2018, arXiv:1709.06560, about seeds and error bars. S. Fujimoto, H. van Hoof, D. Meger, *Addressing Function
# Approximation Error in Actor-Critic Methods*, ICML 2018, arXiv:1802.09477, on which the next notebook is.
