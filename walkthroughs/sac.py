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
# # SAC: a policy that is paid for keeping its options open
#
# This notebook reads `sac_torch.py` from its first line to its last. The cells that hold the file's sections *are* the
# file; running them defines the same functions and classes that `python sac_torch.py` uses. Between them stand the
# mathematics, a numerical check of every equation, experiments, and seven exercises that check themselves.
#
# **Goals.** At the end you can
#
# - say what the maximum-entropy objective adds to the return, and compute soft values of a small problem by hand;
# - write down the density of a squashed Gaussian, and know why its logarithm is never computed in the obvious way;
# - explain how a gradient passes through a *random* action, and why that is worth the trouble;
# - choose a temperature, or let the algorithm choose it, and read from the table of a run whether the choice is good;
# - find four bugs that have stood in well-known implementations.
#
# **Prerequisites.** Python with numpy, derivatives, the change of variables in an integral. Read the notebooks on DDPG
# and TD3 first: the replay buffer, target networks and the minimum of two q functions are explained there.
#
# **Time.** Ninety minutes with the exercises; all cells together run for about one minute.

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

classroom.begin('sac', 'torch')

# %% [markdown]
# ## The problem: noise that knows nothing
#
# DDPG and TD3 learn a deterministic policy. A deterministic policy tries nothing new, so while it plays, noise is added
# to its actions: the same amount in every state, at the beginning and at the end of training, where the policy is
# clueless and where it is certain. Somebody has to choose that amount, and the policy knows nothing about it: it is
# trained as if it were not there.
#
# **Soft actor-critic** makes the noise a part of the policy and pays for it. The policy is a distribution $\pi(a \mid
# s)$, and every step earns, besides its reward, the *entropy* of that distribution, a measure of how undecided it is:
#
# $$
# J(\pi) = \mathbb{E}_\pi\Big[ \sum_{t} \gamma^t \big( r_t + \alpha\, \mathcal{H}(\pi(\cdot \mid s_t)) \big) \Big],
# \qquad \mathcal{H}(\pi(\cdot \mid s)) = \mathbb{E}_{a \sim \pi}\big[ -\log \pi(a \mid s) \big] \tag{1}
# $$
#
# The **temperature** $\alpha$ is an exchange rate: how much reward is one nat of entropy worth? (A nat is the unit of
# entropy if logarithms are natural ones.) At $\alpha = 0$ we are back at the ordinary return. The larger it is, the
# more the policy prefers to leave things open.
#
# What would a policy do that maximises this? Take a single decision among a few actions with known values $Q(a)$. The
# answer can be written down. It is the softmax of the values divided by $\alpha$, and the best sum of value and entropy
# is a smooth maximum of them:
#
# $$
# \max_\pi\; \mathbb{E}_{a \sim \pi}\big[ Q(a) - \alpha \log \pi(a) \big] = \alpha \log \sum_a e^{Q(a)/\alpha},
# \qquad \text{attained by}\quad \pi(a) = \frac{e^{Q(a)/\alpha}}{\sum_b e^{Q(b)/\alpha}} \tag{2}
# $$
#
# Read the right-hand side as advice. Two actions of equal value are taken equally often. An action that is worse by
# $\alpha$ is taken $e$ times less often, one that is worse by $10\,\alpha$ practically never. So the policy explores
# exactly where $Q$ does not say which action is better, and stops where it does. Nobody has to turn the noise down.
#
# With more than one step, $Q$ must contain the entropy that is still to come. As always, values satisfy a recursion,
# the **soft Bellman equation**:
#
# $$
# V(s) = \mathbb{E}_{a \sim \pi}\big[ Q(s, a) - \alpha \log \pi(a \mid s) \big], \qquad
# Q(s, a) = r(s, a) + \gamma\, \mathbb{E}_{s'}\big[ V(s') \big] \tag{3}
# $$
#
# Mind the small print: $Q(s, a)$ counts the entropy of all *later* steps, and not of the step at which $a$ is taken.
# That action is given; nothing about it is undecided. The file keeps to this convention, and two of the four bugs
# at the end of the page are violations of (3).

# %% [markdown]
# ### One update as a picture
#
# Green are networks, blue is data, orange are losses, violet is the environment. On the left the policy plays and fills
# the replay buffer. In the middle row a batch from the buffer becomes a target for the two q functions. In the top row
# the policy climbs the smaller of the two q, and the temperature watches how undecided it is.

# %%
import matplotlib.pyplot as plt

classroom.diagram(
    boxes=dict(
        env=(0, 0, 'environment', 'env'),
        pi=(1, 0, 'policy\nact, logp = pi(obs, noise)', 'net'),
        loss_pi=(2, 0, 'loss_pi\nalpha logp - min(q1, q2)', 'loss'),
        alpha=(3, 0, 'temperature alpha\nloss_alpha', 'loss'),
        buf=(0, 1, 'ReplayBuffer\na million transitions'),
        backup=(1, 1, 'backup\nrew + gamma (...)'),
        loss_q=(2, 1, 'squared error\nloss_q', 'loss'),
        q=(3, 1, 'q1, q2', 'net'),
        targ=(2, 2, 'q1_targ, q2_targ', 'net'),
    ),
    arrows=[
        ('env', 'pi', 'obs', -0.25), ('pi', 'env', 'act', -0.25), ('env', 'buf', 'every step'),
        ('buf', 'backup', 'a batch'), ('pi', 'backup', 'next_act, next_logp'), ('backup', 'loss_q', 'backup'),
        ('q', 'loss_q', 'q1, q2', -0.25), ('loss_q', 'q', 'step 1', -0.25), ('q', 'loss_pi', 'q_pi'),
        ('pi', 'loss_pi', 'logp_pi', -0.25), ('loss_pi', 'pi', 'step 2', -0.25),
        ('loss_pi', 'alpha', 'logp_pi', -0.25), ('alpha', 'loss_pi', 'alpha', -0.25),
        ('q', 'targ', 'polyak', -0.15), ('targ', 'backup', 'next_q', -0.15),
    ],
    title='One update of SAC',
)
plt.show()

# %% [markdown]
# ## The file's own summary
#
# The opening text states the idea, then the equations, one line each, in the names that the code uses. Two things are
# worth noticing before you see any code. First, `act` is written as a *function* of the observation and of noise; the
# policy contains no random number generator. Second, compare `backup` and `loss_pi`: the same difference, q minus alpha
# times the log-probability, appears in both, once as something to be predicted and once as something to be climbed. It
# is the inside of $V$ in (3).

# %% Docstring tags=["section"]
"""Soft Actor-Critic (SAC), with a fixed or a learned temperature.

The idea: reward entropy too. The policy is stochastic, and its entropy, times the temperature alpha, is added to every
reward, so that it explores wherever q does not say which action is better. An action is a function of observation and
noise (the reparameterization trick), so the gradient of q passes through it. As in TD3, the smaller of two q counts.

The equations, in the names of the code:
    pi       : act = tanh(u),  u = mu(obs) + std(obs) noise,  logp: the log-density of act
    backup   = rew + gamma (1 - terminated) ( min( q1_targ, q2_targ )(next_obs, next_act) - alpha next_logp )
    loss_q   = mean( (q1(obs, act) - backup)^2 ) + mean( (q2(obs, act) - backup)^2 )
    loss_pi  = mean( alpha logp_pi - min( q1, q2 )(obs, act_pi) ),   by the parameters of pi alone
    loss_alpha = -log_alpha mean( logp_pi + target_entropy ),        if alpha is 'auto'
    targets  : params_targ = polyak params_targ + (1 - polyak) params

Papers: Haarnoja et al. 2018, Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a
Stochastic Actor, arXiv:1801.01290, and, with a learned alpha, Soft Actor-Critic Algorithms and Applications,
arXiv:1812.05905.

Its neighbours: td3_torch.py has a deterministic policy, with delayed updates; ddpg_torch.py also has a single q; and
sac_tf1.py is this file in TensorFlow-1 style.

Run it:
    python sac_torch.py --env Pendulum-v1 --epochs 5 --start_steps 1000
    mpirun -np 2 python sac_torch.py --env HalfCheetah-v5 --alpha auto
"""

# %% [markdown] tags=["notes"]
# - `pi       : act = tanh(u),  u = mu(obs) + std(obs) noise`: both the mean and the standard deviation depend on the
#   observation. In PPO and its relatives there is one standard deviation for each dimension, the same in all states.
# - `backup   = rew + gamma (1 - terminated) (`: the discount and the mask stand in front of the whole parenthesis: a
#   terminated episode has no future, and no future entropy either.
# - `loss_pi  = mean( alpha logp_pi - min( q1, q2 )(obs, act_pi) )`: the negative of the inside of $V$ in (3), since
#   optimizers descend. TD3's policy climbs `q1` alone; here it is the smaller of the two.
# - `if alpha is 'auto'`: the first paper has a fixed temperature, the second one learns it. The file does both.

# %% [markdown]
# ## Imports
#
# Networks, buffer, losses and loop are all in this file; what is imported from `common/` is plumbing.
# `make_env_and_test_env` checks that the actions are bounded and rescales them, so that for the algorithm every action
# space is $[-1, 1]^k$, whatever the environment's own bounds are. The functions with `mpi` in their names average over
# processes, and in a notebook there is one. Note what is missing: no random numbers are imported from the framework.
# All noise is drawn by numpy, by one generator that the seed starts, and handed to the networks as data.

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
# - `from common.env_tools import make_env`: the noise and the entropy of this page refer to actions in $[-1, 1]$. If
#   the environment wants $[-2, 2]$, the rescaling happens behind this function and concerns nobody here.

# %% [markdown] tags=["notes", "torch"]
# - `from copy import deepcopy`: a copy of the values, not a second name for the same object. With a second name the
#   target networks would move with every step of the main ones.

# %% [markdown] tags=["notes", "tf1"]
# - `from copy import deepcopy`: the target networks are built by the same function as the main ones and then set to
#   their values. They get a copy of the random generator to draw from, so that the original is not disturbed.

# %% [markdown]
# Now that numpy is here, the first three equations can be put to the test. For (2), a decision among four actions: the
# softmax attains the smooth maximum, and none of ten thousand random policies does better. For (1) and (3), a world of
# three states and two actions, small enough to be solved exactly. Its soft values are the solution of a linear system
# made of (3); independently of that, (1) is summed up step by step, by following the distribution over states.

# %% tags=["check"]
# Equations (1), (2) and (3) in numbers: the best policy of one decision, and the soft values of a small world.
chance = np.random.default_rng(0)
four_q, warmth = np.array([1.0, 0.9, 0.2, -1.0]), 0.3


def soft_value(policy, q, alpha):
    """E[q - alpha log policy], for a policy over a few actions, or for each of many: (..., actions) -> (...)."""
    return (policy * (q - alpha * np.log(policy))).sum(-1)


boltzmann = np.exp(four_q / warmth) / np.exp(four_q / warmth).sum()
best_value = warmth * np.log(np.exp(four_q / warmth).sum())
classroom.agree('The soft value of the softmax policy and the smooth maximum', soft_value(boltzmann, four_q, warmth),
                best_value)
others = soft_value(chance.dirichlet(np.ones(4), size=10_000), four_q, warmth)
classroom.claim(others.max() <= best_value,
                f'the softmax policy, with probabilities {np.round(boltzmann, 2).tolist()}, is worth {best_value:.3f}; '
                f'the best of 10,000 others is worth {others.max():.3f}')

transition = chance.dirichlet(np.ones(3), size=(3, 2))                      # (state, action, next state)
world_rew, world_pi = chance.normal(size=(3, 2)), chance.dirichlet(np.ones(2), size=3)
earned = soft_value(world_pi, world_rew, warmth)                            # reward and entropy of a step, by state
follow = (world_pi[:, :, None] * transition).sum(1)                         # (state, next state), under the policy
v_bellman = np.linalg.solve(np.eye(3) - 0.9 * follow, earned)               # (3), solved for V
v_sum, where = np.zeros(3), np.eye(3)
for t in range(400):
    v_sum += 0.9**t * where @ earned                                        # (1), one term after the other
    where = where @ follow
classroom.agree('Soft values by the Bellman equation and by summing up rewards and entropies', v_bellman, v_sum)
q_bellman = world_rew + 0.9 * transition @ v_bellman
classroom.agree('V from Q by the left half of (3), and V', soft_value(world_pi, q_bellman, warmth), v_bellman)

# %% [markdown]
# ## Networks
#
# Two q functions, as in TD3, and a policy of a new kind. Actions have bounds, and a normal distribution has none. One
# could clip, but then a heap of probability piles up at the bounds, of which no density can tell; and an action
# that has been clipped has no gradient. SAC bends the line instead: it draws $u$ from a normal distribution and takes
#
# $$
# a = \tanh(u), \qquad u = \mu(s) + \sigma(s)\, \varepsilon, \qquad \varepsilon \sim \mathcal{N}(0, 1) \tag{4}
# $$
#
# in every dimension. This is the **reparameterization trick**: all randomness is in $\varepsilon$, which depends on
# nothing, and the action is a smooth function of the network's outputs. Hold $\varepsilon$ fixed and you can
# differentiate the action by $\mu$ and $\sigma$.
#
# For the entropy we need the log-density of $a$, not of $u$. Where $\tanh$ is flat it squeezes a wide range of $u$ into
# a narrow range of $a$, so the density there is *higher*, by one over the slope. That is the change of variables, and
# since $\tanh' = 1 - \tanh^2$, an action with $k$ components has
#
# $$
# \log \pi(a \mid s) = \sum_{i=1}^{k} \Big[ \log \mathcal{N}(u_i;\, \mu_i, \sigma_i) - \log\big( 1 - \tanh^2(u_i)
# \big) \Big] \tag{5}
# $$
#
# The second term is the *tanh correction*, and it is the most abused line in the history of this algorithm. It is
# forgotten, added instead of subtracted, evaluated at the wrong variable, summed over the wrong axis. Even when it
# is right on paper it goes wrong in the machine: at $u = 10$ the slope is $8 \cdot 10^{-9}$, in single precision
# $\tanh(10)$ is 1, and the logarithm of 0 is $-\infty$. Many programs add a small constant inside the logarithm, which
# is to be wrong on purpose. There is an exact way. Write $1 - \tanh^2(u) = 4 / (e^u + e^{-u})^2$, take out $e^{u}$, and
#
# $$
# \log\big( 1 - \tanh^2(u) \big) = 2 \big( \log 2 - u - \log(1 + e^{-2u}) \big) \tag{6}
# $$
#
# where $\log(1 + e^x)$ is called softplus and is in every library, in a form that is accurate for every $x$.
#
# Densities are not probabilities. The uniform density on $[-1, 1]$ is $1/2$, so its entropy is $\log 2 \approx 0.69$
# for each dimension, the highest that any density on this interval has. A narrow density exceeds 1, its logarithm is
# positive, and its entropy is *negative*. Get used to it now: the column `LogPi` in the table of a run, the mean of
# $\log\pi$, is usually positive once the policy has learned something. (The code says `logp`, log-probability, as the
# whole field does, and means the log-density.)

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


class SquashedGaussianMLPActor(nn.Module):
    """A stochastic policy: tanh of a normal variable, so that every dimension of the action is in [-1, 1]."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.net = mlp([obs_dim, *hidden_sizes, 2 * act_dim], activation, rng)

    def forward(self, obs, noise):
        """Actions (batch, act_dim) and their log-probabilities (batch,), from standard normal noise."""
        mu, log_std = self.net(obs).chunk(2, dim=-1)
        log_std = torch.clamp(log_std, -20, 2)
        u = mu + torch.exp(log_std) * noise
        # log N(u; mu, std), by dimension: (u - mu) / std is the noise.
        logp_u = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        # act = tanh(u) has the density p(u) / |d act / d u|, and d act / d u = 1 - tanh(u)^2 = 4 / (e^u + e^-u)^2.
        # Its log is 2 (log 2 - u - log(1 + e^-2u)), exact for large |u| too, where 1 - tanh(u)^2 rounds to 0.
        log_slope = 2 * (np.log(2) - u - nn.functional.softplus(-2 * u))
        return torch.tanh(u), (logp_u - log_slope).sum(-1)


class MLPQFunction(nn.Module):
    """The value of an action in an observation, under the policy."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.q = mlp([obs_dim + act_dim, *hidden_sizes, 1], activation, rng)

    def forward(self, obs, act):
        return self.q(torch.cat([obs.flatten(1), act], dim=-1)).squeeze(-1)     # squeeze: (batch,), as rew is


class Temperature(nn.Module):
    """The learned alpha, if that is 'auto'. It is positive, so its logarithm is the parameter; it starts at 1."""
    def __init__(self):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(()))


class MLPActorCritic(nn.Module):
    """The policy and the action-value functions.

    One of your own (a CNN, say) is an nn.Module made from the same arguments, with three modules, which may share
    layers: pi(obs, noise) -> actions in [-1, 1] (batch, act_dim) and their log-probabilities (batch,);
    q1(obs, act) and q2(obs, act) -> values (batch,). It need not use rng, which draws the initial weights.
    """
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(256, 256), activation=nn.ReLU):
        super().__init__()
        obs_dim, act_dim = int(np.prod(observation_space.shape)), action_space.shape[0]
        self.pi = SquashedGaussianMLPActor(obs_dim, act_dim, hidden_sizes, activation, rng)
        self.q1 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)
        self.q2 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)

# %% [markdown] tags=["notes"]
# - `A stochastic policy: tanh of a normal variable`: one module gives both the action and its log-probability, from the
#   same noise. Asking for the two separately would ask about two different actions.
# - `self.net = mlp([obs_dim, *hidden_sizes, 2 * act_dim], activation, rng)`: one network with two halves of outputs,
#   the means and the logarithms of the standard deviations. No activation at the end: both may be any number.
# - `logp_u = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)`: the normal log-density. No division by the standard
#   deviation is needed, because $(u - \mu) / \sigma$ is the noise that we started from. Shape `(batch, act_dim)`.
# - `# log N(u; mu, std), by dimension`: the sum over the dimensions comes at the very end, in the line that returns.
# - `squeeze: (batch,), as rew is`: the network's output has a last axis of length 1. Left there, `q - backup` would be
#   a `(batch, batch)` matrix.
# - `its logarithm is the parameter; it starts at 1`: a step of an optimizer can make any number negative; the
#   exponential of any number is positive.
# - `q1(obs, act) and q2(obs, act) -> values (batch,)`: two functions with the same task and different initial weights.
#   Where they disagree, at least one is wrong, and the smaller one is the safer guess.

# %% [markdown] tags=["notes", "torch"]
# - `mu, log_std = self.net(obs).chunk(2, dim=-1)`: `(batch, 2 act_dim)` into two of `(batch, act_dim)`.
# - `log_std = torch.clamp(log_std, -20, 2)`: a standard deviation between $2 \cdot 10^{-9}$ and 7.4. It keeps the
#   exponential in the next line from overflowing. Beyond a bound the clamp has no gradient, so a network that gets
#   there tends to stay; the bounds are wide enough that this is a sign of other trouble.
# - `log_slope = 2 * (np.log(2) - u - nn.functional.softplus(-2 * u))`: equation (6).
# - `return torch.tanh(u), (logp_u - log_slope).sum(-1)`: equation (5). Minus, and over the last axis alone: one number
#   for each action, `(batch,)`.

# %% [markdown] tags=["notes", "tf1"]
# - `mu, log_std = tf.split(self.net(obs), 2, axis=-1)`: `(batch, 2 act_dim)` into two of `(batch, act_dim)`.
# - `log_std = tf.clip_by_value(log_std, -20, 2)`: a standard deviation between $2 \cdot 10^{-9}$ and 7.4. It keeps the
#   exponential in the next line from overflowing. Beyond a bound the clip has no gradient, so a network that gets there
#   tends to stay; the bounds are wide enough that this is a sign of other trouble.
# - `log_slope = 2 * (np.log(2) - u - tf.nn.softplus(-2 * u))`: equation (6).
# - `return tf.tanh(u), tf.reduce_sum(logp_u - log_slope, -1)`: equation (5). Minus, and over the last axis alone: one
#   number for each action, `(batch,)`.

# %% [markdown]
# Is (5) a density? Then it integrates to one over $[-1, 1]$. We call the file's own actor, with the identity in the
# place of its network, so that we can choose $\mu$ and $\log\sigma$ ourselves; and we look at the shapes that a
# squashed Gaussian can have.

# %% tags=["check"]
# Equations (4), (5) and (6) in numbers: a density that integrates to one, and a logarithm that stays finite.
actor_call = getattr(SquashedGaussianMLPActor, 'forward', SquashedGaussianMLPActor.__call__)
identity_net = SimpleNamespace(net=lambda x: x)


def squashed(net_output, noise):
    """The file's actor for given outputs [mu, log_std] of its network, (batch, 2 act_dim), and noise: tensors."""
    return actor_call(identity_net, net_output, noise)


def trapezoid(y, x):
    return ((y[1:] + y[:-1]) / 2 * np.diff(x)).sum()


fine_noise = np.linspace(-8, 8, 4001)[:, None]
fig, axes = classroom.figure(columns=2)
errors, masses = [], []
for ax, mu in zip(axes, (0.0, 1.0)):
    for std in (0.3, 0.88, 2.0):
        act, logp = classroom.call(squashed, np.tile([mu, np.log(std)], (4001, 1)), fine_noise)
        errors.append(act - np.tanh(mu + std * fine_noise))
        masses.append(trapezoid(np.exp(logp), act[:, 0]))
        entropy = -trapezoid(np.exp(logp) * logp, act[:, 0])
        ax.plot(act[:, 0], np.exp(logp), label=f'std {std:g}: entropy {entropy:.2f}')
    ax.axhline(0.5, color='gray', linestyle='--', linewidth=1)
    ax.set(title=f'mu = {mu:g}', xlabel='action', ylabel='density', ylim=(0, 3))
    ax.legend()
plt.show()
classroom.agree('The actions of the six policies and (4)', errors, np.zeros((6, 4001, 1)))
classroom.agree('The integrals of the six densities and 1', masses, np.ones(6), tol=1e-3)

u = np.linspace(-6, 6, 121)
classroom.agree('Both sides of (6), where both can be computed', 2 * (np.log(2) - u - np.log1p(np.exp(-2 * u))),
                np.log(1 - np.tanh(u)**2))
far = [classroom.call(squashed, np.float32([[20, -20]]), np.float32([[0]]))[1][0]]      # u = 20 and std = exp(-20)
with np.errstate(divide='ignore'):
    far.append(20 - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(np.float32(20))**2))
classroom.claim(np.isfinite(far[0]) and not np.isfinite(far[1]),
                f'at u = 20, in single precision, the log-density is {far[0]:.2f}; by (5) as it stands, {far[1]}')

# %% [markdown]
# The dashed line is the uniform density. A standard deviation of 0.88 comes closest to it, with an entropy of 0.68,
# just short of $\log 2$. A *larger* standard deviation is not more random: most of its actions sit at the two bounds,
# and the entropy falls again. Remember the picture on the left. A policy whose density is computed wrongly will be
# drawn to one of the other shapes, and one of the hunts shows you which.
#
# **Exercise 1 (implement).** The actor computes the log-density of the actions that it samples itself. Suppose that you
# are given an action, from a data set perhaps, and want its log-density under the policy. Write it in numpy, for a
# batch of actions with several dimensions. You need $u$ first; then (5) and (6).

# %% tags=["exercise"]
def my_log_density(act, mu, log_std):
    """Log-densities (batch,) of actions strictly between -1 and 1. act, mu, log_std: (batch, act_dim)."""
    ### BEGIN SOLUTION
    u = np.arctanh(act)
    logp_u = -0.5 * ((u - mu) / np.exp(log_std))**2 - log_std - 0.5 * np.log(2 * np.pi)
    log_slope = 2 * (np.log(2) - u - np.log1p(np.exp(-2 * u)))
    return (logp_u - log_slope).sum(-1)
    ### END SOLUTION


some_outputs, some_noise = 0.5 * chance.normal(size=(5, 6)), chance.normal(size=(5, 3))     # five actions of three
some_act, some_logp = classroom.call(squashed, some_outputs, some_noise)
classroom.check('Exercise 1', lambda: my_log_density(some_act, some_outputs[:, :3], some_outputs[:, 3:]), some_logp,
                hint='the inverse of tanh is np.arctanh; sum over the last axis, and over nothing else')

# %% [markdown]
# ## Buffer
#
# The replay buffer is that of DDPG and TD3, byte for byte. It may be: nothing in (3) asks *who* took the action $a$.
# The equation holds for any action in any state; only the next action $a'$ must come from the policy, and that one is
# drawn anew whenever the transition is used. So the file stores no log-probability and no next action. An old
# transition stays useful, because it is a fact about the world: in this state this action led there and paid that. This
# is what *off-policy* means, and why SAC can learn from each step about a hundred times: 100 transitions are drawn for
# each one that comes.
#
# Entropy is not stored either. It is not a fact about the world but about the policy, and the policy changes with every
# update; whoever adds the bonus to the stored reward will be learning from the entropies of policies long gone.

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
# - `self.ptr, self.size, self.count = 0, 0, 0`: `ptr` goes round in a circle, so the oldest transition is overwritten.
# - `def store(self, obs, act, rew, next_obs, terminated):`: `terminated`, not "episode over". A time limit ends the
#   episode too, but the state behind it has a value; the flag that is stored here decides whether (3) may use it.
# - `self.data[self.ptr] = obs, act, rew, next_obs, terminated`: the action in $[-1, 1]$, as the policy gave it.
# - `rows = self.data[rng.integers(self.size, size=batch_size)]`: uniform over what is filled, with replacement. One
#   index fetches all five fields, so they cannot get out of step.
# - `return {key: np.asarray(rows[key], dtype=np.float32) for key in rows.dtype.names}`: `rew` and `terminated` are
#   `(batch,)`, the shape of a q function's output.

# %% [markdown]
# ## Losses
#
# Four short functions, one equation each. The first makes the target. Of the expectations in (3), that over $s'$ is
# replaced by the one next state that was recorded, and that over the next action by one sample $a'$ of the policy *as
# it is now*. With $d = 1$ for a termination, and the smaller of the two target networks, as in TD3:
#
# $$
# y = r + \gamma\, (1 - d) \Big( \min_{j = 1, 2} Q_j^\text{targ}(s', a') - \alpha \log \pi(a' \mid s') \Big), \qquad
# a' \sim \pi(\cdot \mid s') \tag{7}
# $$
#
# Two differences from TD3. The next action comes from the current policy; there is no target policy. And nobody adds
# noise to it: TD3's target policy smoothing was invented to average over neighbouring actions, and a stochastic policy
# does that by itself. Both q functions then learn this number by least squares, over a batch $B$:
#
# $$
# L_Q = \frac{1}{|B|} \sum_{B} \big( Q_1(s, a) - y \big)^2 + \frac{1}{|B|} \sum_{B} \big( Q_2(s, a) - y \big)^2 \tag{8}
# $$
#
# The policy maximises $V$ of (3) at the states of the batch. With the action written as in (4), a function $a_\theta(s,
# \varepsilon)$ of the policy's parameters and of noise,
#
# $$
# L_\pi(\theta) = \frac{1}{|B|} \sum_{B} \Big( \alpha \log \pi_\theta\big( a_\theta(s, \varepsilon) \mid s \big) -
# \min_{j = 1, 2} Q_j\big( s, a_\theta(s, \varepsilon) \big) \Big) \tag{9}
# $$
#
# and the gradient flows through $Q$ into the action, and through the action into the network, as it does in DDPG. There
# is another way to the same gradient: the one of VPG and PPO, which never looks inside $Q$. For a function $f$ of the
# action and its derivative by a mean $\mu$, the two are
#
# $$
# \frac{\partial}{\partial \mu}\, \mathbb{E}_\varepsilon\big[ f(a) \big] = \mathbb{E}_\varepsilon\big[ f'(a)\, (1 - a^2)
# \big] = \mathbb{E}_\varepsilon\Big[ f(a)\, \frac{\varepsilon}{\sigma} \Big], \qquad a = \tanh(\mu + \sigma
# \varepsilon) \tag{10}
# $$
#
# First the reparameterized gradient, then the score function. They have the same expectation, and experiment 1 will
# show what differs.
#
# Last, the temperature. The second paper turns the question round: do not say what a nat of entropy is worth, say how
# much entropy you want, $\bar{\mathcal{H}}$, and let $\alpha$ become what it must be. If the policy has less, raise the
# price; if it has more, lower it. The loss is the one whose gradient does just that,
#
# $$
# L_\alpha = -\log\alpha \cdot \frac{1}{|B|} \sum_{B} \big( \log \pi(a \mid s) + \bar{\mathcal{H}} \big), \qquad
# \frac{\partial L_\alpha}{\partial \log\alpha} = \widehat{\mathcal{H}} - \bar{\mathcal{H}} \tag{11}
# $$
#
# where $\widehat{\mathcal{H}} = -\operatorname{mean} \log\pi$ is the entropy of the batch. The paper writes $\alpha$ in
# front where the file has $\log\alpha$; the two gradients have the same sign and vanish at the same place, and most
# implementations do as the file does. The usual target is $\bar{\mathcal{H}} = -k$ for $k$ dimensions, minus one nat
# each. What does that mean? A normal distribution in the middle of the interval has this entropy at a standard
# deviation of 0.09; and TD3's exploration noise of 0.1 has an entropy of $-0.88$. So the target asks for about as much
# noise as TD3 has, on average over the states, and leaves it to the policy in which of them.

# %% Losses tags=["section"]
def compute_backup(rew, terminated, next_q, next_logp, alpha, gamma):
    """backup = rew + gamma (1 - terminated) (next_q - alpha next_logp): truncation does not end the future."""
    return rew + gamma * (1 - terminated) * (next_q - alpha * next_logp)


def compute_loss_q(q1, q2, backup):
    """loss_q = mean( (q1(obs, act) - backup)^2 ) + mean( (q2(obs, act) - backup)^2 )"""
    assert len(q1.shape) == len(q2.shape) == len(backup.shape) == 1, '(batch, 1) would broadcast silently'
    return ((q1 - backup)**2).mean() + ((q2 - backup)**2).mean()


def compute_loss_pi(q_pi, logp_pi, alpha):
    """loss_pi = mean( alpha logp_pi - min( q1, q2 )(obs, act_pi) )"""
    return (alpha * logp_pi - q_pi).mean()


def compute_loss_alpha(log_alpha, logp_pi, target_entropy):
    """loss_alpha = -log_alpha mean( logp_pi + target_entropy ): alpha grows while the entropy is below its target"""
    return -log_alpha * (logp_pi + target_entropy).mean()

# %% [markdown] tags=["notes"]
# - `return rew + gamma * (1 - terminated) * (next_q - alpha * next_logp)`: equation (7). Everything behind the mask is
#   future: the value and the entropy.
# - `assert len(q1.shape) == len(q2.shape) == len(backup.shape) == 1`: the trap from the networks, stopped at the door.
# - `loss_pi = mean( alpha logp_pi - min( q1, q2 )(obs, act_pi) )`: equation (9); the minimum has been taken by the
#   caller, and arrives here as `q_pi`.
# - `alpha grows while the entropy is below its target`: then `logp_pi + target_entropy` is positive on average, the
#   gradient by `log_alpha` is negative, and descending raises it.

# %% [markdown] tags=["notes", "torch"]
# - `return ((q1 - backup)**2).mean() + ((q2 - backup)**2).mean()`: equation (8). The same target for both; what keeps
#   them different is their initial weights.
# - `return (alpha * logp_pi - q_pi).mean()`: `q_pi` depends on the policy's parameters through the action, `logp_pi`
#   through the action and directly. The gradient takes both ways.
# - `return -log_alpha * (logp_pi + target_entropy).mean()`: equation (11). The log-probabilities must be numbers here,
#   without a gradient; the caller sees to it.

# %% [markdown] tags=["notes", "tf1"]
# - `return tf.reduce_mean((q1 - backup)**2) + tf.reduce_mean((q2 - backup)**2)`: equation (8). The same target for
#   both; what keeps them different is their initial weights.
# - `return tf.reduce_mean(alpha * logp_pi - q_pi)`: `q_pi` depends on the policy's parameters through the action,
#   `logp_pi` through the action and directly. The gradient takes both ways.
# - `return -log_alpha * tf.reduce_mean(logp_pi + target_entropy)`: equation (11). Only `log_alpha` is in the list of
#   variables that this loss trains, so the policy does not feel it.

# %% tags=["check"]
# Equations (10) and (11) in numbers: two forms of one gradient, by quadrature, and the gradient of the temperature.
nodes, weights = np.polynomial.hermite_e.hermegauss(100)
weights = weights / weights.sum()                                                       # E over standard normal noise


def hill(act):
    """A value that is highest at 0.5, and its derivative."""
    return -(act - 0.5)**2, -2 * (act - 0.5)


def expected_hill(mu, std):
    return (weights * hill(np.tanh(mu + std * nodes))[0]).sum()


node_act = np.tanh(0.2 + 0.5 * nodes)
by_differences = (expected_hill(0.2 + 1e-5, 0.5) - expected_hill(0.2 - 1e-5, 0.5)) / 2e-5
reparameterized = (weights * hill(node_act)[1] * (1 - node_act**2)).sum()
score_function = (weights * hill(node_act)[0] * nodes / 0.5).sum()
classroom.agree('The reparameterized gradient and finite differences', reparameterized, by_differences)
classroom.agree('The score-function gradient and finite differences', score_function, by_differences)

for target in (-1.0, 0.5):
    slope = classroom.gradient(compute_loss_alpha, np.array(-1.0), some_logp, target_entropy=target)
    classroom.agree(f'Target {target:g}: the gradient by log alpha and entropy minus target', slope,
                    -some_logp.mean() - target)

# %% [markdown]
# **Exercise 2 (implement).** To see what the entropy does to the policy, differentiate (9) with your own hands, in one
# dimension and with the hill $q(a) = -(a - c)^2$ for a q function. Hold the noise fixed. By (5), with $a = \tanh(u)$
# and $u = \mu + \sigma\varepsilon$, $\;\log\pi = -\tfrac{1}{2}\varepsilon^2 - \log\sigma - \tfrac{1}{2}\log 2\pi -
# \log(1 - \tanh^2 u)$. You need $da/du = 1 - a^2$, the derivative $-2a$ of $\log(1 - \tanh^2 u)$ by $u$, and $du/d\mu =
# 1$, $du/d\log\sigma = \sigma\varepsilon$. Return the derivatives by $\mu$ and by $\log\sigma$, each the mean over the
# noise.

# %% tags=["exercise"]
def my_policy_gradient(mu, log_std, noise, best, alpha):
    """(d loss_pi / d mu, d loss_pi / d log_std) of mean(alpha logp - q), q = -(act - best)^2. noise: (batch,)."""
    std = np.exp(log_std)
    act = np.tanh(mu + std * noise)
    ### BEGIN SOLUTION
    by_u = alpha * 2 * act + 2 * (act - best) * (1 - act**2)        # of alpha logp - q, through u
    return np.array([by_u.mean(), (by_u * std * noise).mean() - alpha])
    ### END SOLUTION


def loss_on_hill(net_output, noise):
    """The file's policy loss for the hill with its top at 0.5, alpha = 0.2."""
    act, logp = squashed(net_output, noise)
    return compute_loss_pi(-(act[:, 0] - 0.5)**2, logp, 0.2)


hill_noise = chance.normal(size=(50, 1))
hill_gradient = classroom.gradient(loss_on_hill, np.tile([0.3, -0.7], (50, 1)), hill_noise).sum(0)
classroom.check('Exercise 2', lambda: my_policy_gradient(0.3, -0.7, hill_noise[:, 0], 0.5, 0.2), hill_gradient,
                hint='through u: alpha times 2 a, minus the slope of q times (1 - a^2). log pi has log_std in it, too')

# %% [markdown] tags=["solution"]
# *Discussion.* The terms with $\alpha$ are what the entropy does. By $\mu$ it is $2\alpha a$: a pull towards the middle
# of the interval, strongest at the bounds, where the density is squeezed. By $\log\sigma$ it is $-\alpha$, a constant
# push outwards, and $2\alpha a \sigma\varepsilon$, which holds against it as soon as the actions reach the bounds.
# Without the tanh correction only the constant push is left, and the standard deviation grows to its limit.

# %% [markdown]
# ## Experiment 1: what a gradient through the action buys
#
# Both forms of (10) point the same way on average. How much does a single sample scatter? Let the action have $k$
# dimensions, let $f$ be the sum of $k$ hills, and look at the derivative by the *first* mean alone. The score function
# multiplies the whole of $f$ by the first component of the noise, so the luck of all other dimensions goes into the
# first one's gradient. The usual remedy, subtracting a baseline, is tried as well.

# %%
def scatter(dimensions, samples=20_000):
    """Standard deviations of one sample's gradient by the first mean: reparameterized, score function, and that with
    the best constant baseline that is easily had, the mean of f."""
    noise = np.random.default_rng(dimensions).standard_normal((samples, dimensions))
    act = np.tanh(0.5 * noise)
    f, slope = hill(act)[0].sum(1), hill(act)[1][:, 0]
    score = noise[:, 0] / 0.5
    return [(slope * (1 - act[:, 0]**2)).std(), (f * score).std(), ((f - f.mean()) * score).std()]


dimensions = [1, 2, 4, 8, 16, 32, 64]
scatters = np.array([scatter(k) for k in dimensions])
ax = classroom.figure()[1]
for column, kind in zip(scatters.T, ('reparameterized', 'score function', 'score function with baseline')):
    ax.loglog(dimensions, column, 'o-', label=kind, base=2)
ax.set(xlabel='dimensions of the action', ylabel='standard deviation', title='Noise of one sample of the gradient')
ax.legend()
plt.show()
classroom.claim(scatters[-1, 0] < 1.1 * scatters[0, 0] and scatters[-1, 2] > 4 * scatters[0, 2],
                f'from 1 to 64 dimensions, the noise of the reparameterized gradient goes from {scatters[0, 0]:.2f} to '
                f'{scatters[-1, 0]:.2f}; of the score function with a baseline from {scatters[0, 2]:.2f} to '
                f'{scatters[-1, 2]:.2f}, and without one from {scatters[0, 1]:.2f} to {scatters[-1, 1]:.2f}')

# %% [markdown]
# So why does PPO use the score function? Because it asks for nothing but the numbers $f(a)$: not for a derivative, and
# hence not for a model of $f$. SAC has such a model, its q function, and pays with the errors of the model. And the
# gradient through the action needs actions that can be moved a little: it does not exist for discrete ones.
#
# ## Update
#
# Everything comes together in one method. An update makes three steps, or four, in this order:
#
# 1. **q1 and q2**: draw next actions from the current policy, compute the target (7), descend (8).
# 2. **The policy**: draw actions for the *same* observations, with fresh noise, descend (9). The q functions, just
#    improved, are held still. TD3 waits for two steps of q before it makes one of the policy; SAC does not.
# 3. **The temperature**, if it is learned: descend (11), with the log-probabilities of step 2.
# 4. **The target networks**: $\bar\phi \leftarrow \rho\,\bar\phi + (1 - \rho)\,\phi$, with $\rho$ = `polyak`. At 0.995
#    they follow about 200 updates behind.
#
# Watch what has a gradient and what is a number. The target is a number. The temperature is a number in steps 1 and 2.
# The log-probabilities are numbers in step 3. And in step 2 the gradient goes *through* the q functions but not *into*
# them: they must not learn to please the policy.

# %% Update tags=["section"]
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    columns_with_min_and_max, columns_average_only = ['Q1Vals', 'Q2Vals', 'LogPi'], ['LossPi', 'LossQ']
    noise_arrays = 2                                            # standard normal, (batch, act_dim) each, for an update

    def __init__(self, env, rng, args):
        self.args = args
        setup_pytorch_for_mpi(rng.integers(2**31))              # for layers with random numbers of their own: dropout
        self.ac = args.actor_critic(env.observation_space, env.action_space, rng, **args.ac_kwargs)
        sync_params(self.ac.eval())                             # in mode train() only while it is trained
        self.ac_targ = deepcopy(self.ac).requires_grad_(False)
        self.q = nn.ModuleList([self.ac.q1, self.ac.q2])
        self.pi_optimizer = Adam(self.ac.pi.parameters(), lr=args.lr, fused=True)
        self.q_optimizer = Adam(self.q.parameters(), lr=args.lr, fused=True)
        self.act_dim = env.action_space.shape[0]
        self.temperature, self.target_entropy = Temperature(), -self.act_dim
        self.alpha_optimizer = Adam(self.temperature.parameters(), lr=args.lr, fused=True)
        if args.alpha == 'auto':
            self.columns_average_only = ['Alpha', *self.columns_average_only]
        self.updates = 0

    def act(self, obs, noise=0):
        """An action for one observation, by the network itself; without noise, the deterministic one."""
        with torch.inference_mode():
            obs, noise = torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(noise, dtype=torch.float32)
            act, _ = self.ac.pi(obs[None], noise.expand(1, self.act_dim))
        return act[0].numpy()

    def update(self, batch, noise):
        """One step of q1 and q2, one of the policy, and the target networks after them; returns what is logged."""
        obs, act, rew, next_obs, terminated = [torch.as_tensor(batch[key]) for key in
                                               ('obs', 'act', 'rew', 'next_obs', 'terminated')]
        noise, next_noise = torch.as_tensor(noise)
        alpha = self.temperature.log_alpha.exp().detach() if self.args.alpha == 'auto' else self.args.alpha
        self.updates += 1
        self.ac.train()                                         # dropout, say, is active in training, not in acting

        with torch.no_grad():
            next_act, next_logp = self.ac.pi(next_obs, next_noise)
            next_q = torch.min(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))
            backup = compute_backup(rew, terminated, next_q, next_logp, alpha, self.args.gamma)
        q1, q2 = self.ac.q1(obs, act), self.ac.q2(obs, act)
        loss_q = compute_loss_q(q1, q2, backup)
        self.q_optimizer.zero_grad()
        loss_q.backward()
        mpi_avg_grads(self.q)
        self.q_optimizer.step()
        metrics = dict(Q1Vals=q1, Q2Vals=q2, LossQ=loss_q)

        act_pi, logp_pi = self.ac.pi(obs, noise)
        q_pi = torch.min(self.ac.q1(obs, act_pi), self.ac.q2(obs, act_pi))
        loss_pi = compute_loss_pi(q_pi, logp_pi, alpha)
        self.pi_optimizer.zero_grad()
        # Only the policy's own gradient is computed: the parameters of q are frozen in this step.
        loss_pi.backward(inputs=[p for p in self.ac.pi.parameters() if p.requires_grad])
        mpi_avg_grads(self.ac.pi)
        self.pi_optimizer.step()

        if self.args.alpha == 'auto':
            self.alpha_optimizer.zero_grad()
            compute_loss_alpha(self.temperature.log_alpha, logp_pi.detach(), self.target_entropy).backward()
            mpi_avg_grads(self.temperature)
            self.alpha_optimizer.step()
            metrics.update(Alpha=alpha)

        self.ac.eval()
        with torch.no_grad():                                   # target = polyak target + (1 - polyak) main
            for p_targ, p in zip(self.ac_targ.parameters(), self.ac.parameters()):
                p_targ.lerp_(p, 1 - self.args.polyak)
            for buffer_targ, buffer in zip(self.ac_targ.buffers(), self.ac.buffers()):     # of BatchNorm, say
                buffer_targ.copy_(buffer)
        metrics.update(LossPi=loss_pi, LogPi=logp_pi)
        return {key: value.detach().numpy() for key, value in metrics.items()}

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, 'state_dict')}

    def set_state(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

# %% [markdown] tags=["notes"]
# - `noise_arrays = 2`: one array of noise for the actions of step 2 and one for the next actions of step 1. Two samples
#   that have nothing to do with each other must not share their noise.
# - `columns_with_min_and_max, columns_average_only = ['Q1Vals', 'Q2Vals', 'LogPi']`: `LogPi` holds the
#   log-probabilities of step 2; the negative of their mean estimates the entropy. It is the instrument to watch in this
#   algorithm.
# - `self.temperature, self.target_entropy = Temperature(), -self.act_dim`: $\bar{\mathcal{H}} = -k$. The module exists
#   with a fixed `alpha` as well, and is then not used.
# - `An action for one observation, by the network itself; without noise, the deterministic one.`: noise 0 gives
#   $\tanh(\mu)$, the median. Playing with noise and testing without it need no code of their own.
# - `def get_state(self):`: what a resumed run needs, the target networks and the optimizers' memories included. The
#   temperature is a parameter like the others: a run that forgets it begins again at 1.

# %% [markdown] tags=["notes", "torch"]
# - `self.ac_targ = deepcopy(self.ac).requires_grad_(False)`: a copy of all three networks; the policy's copy is never
#   used. It keeps the file the same as TD3's here.
# - `self.q = nn.ModuleList([self.ac.q1, self.ac.q2])`: one module, so that one optimizer trains both. A generator that
#   chains their parameters would be empty after its first use, and everything that comes later would do nothing,
#   silently.
# - `alpha = self.temperature.log_alpha.exp().detach() if self.args.alpha == 'auto' else self.args.alpha`: a
#   number in steps 1 and 2. The derivative of (9) by $\alpha$ is the mean of $\log\pi$: a program in which the policy's
#   loss reached the temperature would drive it down whenever `LogPi` is positive, whatever the target entropy. (Here
#   `no_grad` and `inputs=` below would prevent it a second time.)
# - `next_act, next_logp = self.ac.pi(next_obs, next_noise)`: `self.ac`, not `self.ac_targ`: the current policy. It sees
#   `next_obs`.
# - `next_q = torch.min(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))`: the *target* q
#   functions, on the next observations and the next actions. Four places to write the wrong name.
# - `q_pi = torch.min(self.ac.q1(obs, act_pi), self.ac.q2(obs, act_pi))`: the *main* q functions; the policy climbs the
#   newest knowledge.
# - `loss_pi.backward(inputs=[p for p in self.ac.pi.parameters() if p.requires_grad])`: the gradient is computed for the
#   policy's parameters alone. It still passes through q on its way.
# - `compute_loss_alpha(self.temperature.log_alpha, logp_pi.detach(), self.target_entropy).backward()`: the
#   log-probabilities that step 2 has computed, now as numbers.
# - `p_targ.lerp_(p, 1 - self.args.polyak)`: the weight is the *step*, 0.005. Mistaken for 0.995, the targets are the
#   main networks of a moment ago, and the bootstrapping chases itself.

# %% [markdown] tags=["notes", "tf1"]
# - `self.sess = setup_tf_for_mpi(rng.integers(2**31))`: a new graph and a new session for every agent, so that a
#   training function can be called twice in one notebook.
# - `self.ac_targ = args.actor_critic(env.observation_space, env.action_space, deepcopy(rng), **args.ac_kwargs)`: a
#   second set of all three networks; the policy's is never used. It keeps the file the same as TD3's here.
# - `alpha = tf.exp(self.temperature.log_alpha) if self.args.alpha == 'auto' else self.args.alpha`: no gradient has to
#   be stopped here, since every loss below names the variables that it trains.
# - `next_act, next_logp = self.ac.pi(next_obs, next_noise)`: `self.ac`, not `self.ac_targ`: the current policy. It sees
#   `next_obs`.
# - `next_q = tf.minimum(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))`: the *target* q
#   functions, on the next observations and the next actions. Four places to write the wrong name.
# - `with tf.control_dependencies([train_q]):`: a graph has no order of its own. Without this the policy might climb the
#   q functions from before their step, or, worse, sometimes these and sometimes those.
# - `q_pi = tf.minimum(self.ac.q1(obs, act_pi), self.ac.q2(obs, act_pi))`: the *main* q functions; the policy climbs the
#   newest knowledge.
# - `minimize(loss_pi, var_list=self.ac.pi.trainable_variables)`: the policy's variables alone. The gradient still
#   passes through q on its way.
# - `minimize(loss_alpha, var_list=[self.temperature.log_alpha])`: the log-probabilities are those of step 2, and only
#   the temperature moves.
# - `p_targ.assign_add((1 - self.args.polyak) * (p - p_targ))`: the step is 0.005 of the way. Mistaken for 0.995, the
#   targets are the main networks of a moment ago, and the bootstrapping chases itself.

# %% [markdown]
# ## Evaluation
#
# While it learns, the policy acts with noise, and its returns suffer from it: the entropy is paid for in reward. What
# we want to know is how good the policy is *without* the noise, and so every epoch ends with test episodes in which
# `agent.act` is given none. They are played in an environment of their own, so that the training episode which is under
# way is not disturbed, and nothing of them goes into the replay buffer. `EpRet` and `TestEpRet` in the table are these
# two points of view; for SAC they differ more than for TD3, and a large gap means that the policy is still undecided.

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
# - `obs, rew, terminated, truncated, _ = test_env.step(agent.act(obs))`: no noise: the action is $\tanh(\mu)$. This is
#   the median of the distribution and not its mean, which $\tanh$ has moved.
# - `ended = terminated or truncated or ep_len == max_ep_len`: here only the end matters, not its reason, because no
#   value is computed.
# - `logger.store(TestEpRet=ep_ret, TestEpLen=ep_len)`: the plain return, without discount and without entropy. The
#   bonus is a means, not an end; nobody is graded by it.

# %% [markdown]
# ## Training
#
# The signature lists every knob with its meaning. Compare it with TD3's: three arguments about noise and the delay are
# gone, one temperature has come, and one learning rate serves all. The loop is that of DDPG and TD3, byte for byte:
# act, step, store, and after every `update_every` steps as many updates. The first `start_steps` actions are drawn
# uniformly, which fills the buffer with actions that no policy would take; a q function that has only seen one opinion
# cannot correct it.
#
# Look for the line in which `terminated` goes into the buffer, and for the line in which `truncated` joins it to decide
# about the reset. If you have done the hunts of the earlier notebooks you know why they are two.

# %% Training tags=["section"]
@explain_arguments
def sac(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=MLPActorCritic,        # the networks, made from (observation_space, action_space, rng, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; process i uses seed + 10000 i
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=100,                         # epochs; each ends with test episodes
    replay_size=int(1e6),               # transitions kept for replay, of all processes together
    gamma=0.99,                         # discount of the future, per step
    polyak=0.995,                       # target = polyak target + (1 - polyak) main
    lr=1e-3,                            # learning rate of the policy, of q and of a learned alpha
    batch_size=100,                     # transitions in an update, shared out among the processes
    start_steps=10000,                  # steps with uniformly random actions before the policy acts
    update_after=1000,                  # steps before the first update
    update_every=50,                    # steps between rounds of updates; a round has one update per step
    alpha=0.2,                          # temperature: what a nat of entropy is worth in reward; or 'auto', learned
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
    logger.save_config(vars(args), sac, env)
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
# - `@explain_arguments`: puts the comments behind the arguments into the docstring, so that `help(sac)` shows them.
# - `alpha=0.2,`: means nothing without the scale of the rewards. Experiment 2 and exercise 3 are about this line.
# - `update_after=1000,`: a q function that is fitted to the first ten steps is fitted to nothing.
# - `act = agent.act(obs, rng.standard_normal(act_dim, dtype=np.float32))`: the policy's own noise, scaled by its own
#   standard deviation. In TD3 this line looks the same and means something else: there `act` multiplies the noise by
#   `act_noise`.
# - `buf.store(obs, act, rew, next_obs, terminated)`: the plain reward. The entropy is added in (7), from the policy of
#   that moment.
# - `updates_due = steps // update_every * update_every - update_after`: one update for every step, in groups. Where the
#   number of processes does not divide `update_every`, none gets lost.
# - `noise = rng.standard_normal((agent.noise_arrays, local_batch, act_dim), dtype=np.float32)`: both arrays of noise
#   for one update. They are drawn here, by the same generator as everything else, so that a run is a function of its
#   seed.
# - `test_agent(agent, test_env, logger, num_test_episodes, max_ep_len)`: the only line of the loop that looks at the
#   policy without its noise.

# %% [markdown]
# ## Command line
#
# The last section makes a program of the function: every argument becomes a flag, and its comment the help text. In a
# notebook there is no command line; you call `sac` yourself. In a terminal it is `python sac_torch.py --env Pendulum-v1
# --alpha auto`. Several values for a flag make a grid: `--alpha 0.05 0.2 auto` is three runs, each in a process and a
# folder of its own.

# %% Command line tags=["section"]
if __name__ == '__main__':
    command_line(sac)

# %% [markdown] tags=["notes"]
# - `if __name__ == '__main__':`: false when the file is imported, and true in a notebook, where the next line prints a
#   hint instead of reading the command line.

# %% [markdown]
# All parts are defined now, and an old debt can be paid: the check of (7), (8) and (9). The numbers that `update`
# reports let us recompute all of it from outside. With a learning rate of 0 and `polyak` = 1 an update changes nothing,
# and becomes a question that can be asked of the agent: what are your q values and log-probabilities here? From the
# answers, (7), (8) and (9) are put together in numpy and compared with the losses that the agent reports.

# %% tags=["check"]
# Equations (7), (8) and (9) in numbers: the losses of an update, put together from the agent's own answers.
frozen, _ = classroom.make_agent(sac, 'Pendulum-v1', lr=0.0, polyak=1.0, alpha=0.2, ac_kwargs=dict(hidden_sizes=(16,)))
draw = lambda *shape: chance.normal(size=shape).astype(np.float32)
a_batch = dict(obs=draw(8, 3), act=np.tanh(draw(8, 1)), rew=draw(8), next_obs=draw(8, 3),
               terminated=np.float32([0, 0, 1, 0, 0, 0, 1, 0]))
two_noises = draw(2, 8, 1)                                                              # noise, next_noise


def ask(obs, noise):
    """The policy's actions for given noise, their log-probabilities, and the smaller q of each."""
    act = np.array([frozen.act(o, e) for o, e in zip(obs, noise)])
    answer = frozen.update(dict(a_batch, obs=obs, act=act), np.stack([noise, noise]))
    return answer['LogPi'], np.minimum(answer['Q1Vals'], answer['Q2Vals'])


reported = frozen.update(a_batch, two_noises)
next_logp, next_q = ask(a_batch['next_obs'], two_noises[1])
target_y = a_batch['rew'] + 0.99 * (1 - a_batch['terminated']) * (next_q - 0.2 * next_logp)             # (7)
classroom.agree('The loss of q, reported and by (7) and (8)', reported['LossQ'],
                np.mean((reported['Q1Vals'] - target_y)**2) + np.mean((reported['Q2Vals'] - target_y)**2), tol=1e-4)
logp_pi, q_pi = ask(a_batch['obs'], two_noises[0])
classroom.agree('The loss of the policy, reported and by (9)', reported['LossPi'], np.mean(0.2 * logp_pi - q_pi),
                tol=1e-5)

# %% [markdown]
# ## Train
#
# A pendulum hangs from a motor that is too weak to lift it at once: it has to be swung up, and then balanced. Every
# step costs, up to 16 for hanging down at full speed, and almost nothing for standing upright. To save your time, each
# action is held for four steps of the simulation, so an episode has 50 decisions; the networks are small, and the
# learning rate is high. Ten epochs of a hundred steps each: 1000 decisions for each of three seeds, the first 200 of
# them random.

# %%
import gymnasium as gym


class QuickPendulum(gym.Wrapper):
    """Pendulum with every action held for four steps; the reward is their mean, times `scale`."""
    def __init__(self, scale=1.0):
        super().__init__(gym.make('Pendulum-v1'))
        self.scale = scale

    def step(self, action):
        rewards = []
        for _ in range(4):
            obs, rew, terminated, truncated, info = self.env.step(action)
            rewards.append(rew)
        return obs, self.scale * np.mean(rewards), terminated, truncated, info


quick = dict(steps_per_epoch=100, lr=1e-2, gamma=0.9, polyak=0.98, batch_size=64, replay_size=5000, save_freq=100,
             ac_kwargs=dict(hidden_sizes=(32, 32)))
on_pendulum = dict(quick, env=QuickPendulum, seeds=classroom.steps([0, 1, 2], fast=[0]),
                   epochs=classroom.steps(10, fast=3), num_test_episodes=classroom.steps(5, fast=1),
                   start_steps=200, update_after=200)
sac_runs = {0.2: classroom.train(sac, **on_pendulum, alpha=0.2)}

fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageTestEpRet', 'AverageQ1Vals', 'AverageLogPi')):
    classroom.curves({'SAC, alpha = 0.2': sac_runs[0.2]}, y=column, ax=ax)
plt.show()
at_first = np.mean([run['AverageTestEpRet'][0] for run in sac_runs[0.2]])
classroom.claim(classroom.last(sac_runs[0.2]) > at_first + 150,
                f'the return without noise rises from {at_first:.0f} to {classroom.last(sac_runs[0.2]):.0f}', full=True)

# %% [markdown]
# Read the picture on the right. `LogPi` begins below zero: the policy is close to the uniform distribution, with an
# entropy of 0.68 at most. As the q functions learn to tell good actions from bad, it becomes more decided, and `LogPi`
# rises to about 1. Nobody has told it to.
#
# Where is it decided, and where not? The next cell asks the first of the three agents at every angle and every speed:
# what does it do without noise, and what is its entropy there? TD3's exploration would be one flat colour on the right.

# %%
def look_around(agent, size=25, samples=64):
    """Over a grid of speeds and angles: the action without noise, and the policy's entropy; (speed, angle) each."""
    angle, speed = np.meshgrid(np.linspace(-np.pi, np.pi, size), np.linspace(-6, 6, size))
    obs = np.stack([np.cos(angle), np.sin(angle), speed], -1).reshape(-1, 3).astype(np.float32)
    copy, _ = classroom.make_agent(sac, QuickPendulum, **quick, alpha=0.2)     # asking for LogPi is an update
    copy.set_state(agent.get_state())
    many = np.repeat(obs, samples, axis=0)
    noise = np.random.default_rng(0).standard_normal((2, len(many), 1)).astype(np.float32)
    zeros = np.zeros(len(many), dtype=np.float32)
    answer = copy.update(dict(obs=many, act=noise[0], rew=zeros, next_obs=many, terminated=zeros), noise)
    entropy = -answer['LogPi'].reshape(size, size, samples).mean(-1)
    return np.array([agent.act(o) for o in obs]).reshape(size, size), entropy


maps = look_around(sac_runs[0.2][0].agent)
fig, axes = classroom.figure(columns=2)
for ax, picture, what, colors in zip(axes, maps, ('action without noise', 'entropy'), ('coolwarm', 'viridis')):
    drawn = ax.imshow(picture, origin='lower', aspect='auto', extent=(-np.pi, np.pi, -6, 6), cmap=colors)
    fig.colorbar(drawn, ax=ax)
    ax.grid(False)
    ax.set(xlabel='angle (0: upright)', ylabel='speed', title=what)
plt.show()
classroom.claim(maps[1].max() - maps[1].min() > 0.5,
                f'depending on the state, the entropy is between {maps[1].min():.2f} and {maps[1].max():.2f}',
                full=True)

# %% [markdown]
# ## Experiment 2: the temperature
#
# Too cold, and the policy makes up its mind before it knows anything. Too hot, and it never does. We add a run without
# any entropy, $\alpha = 0$, and one with thirty times the price.

# %%
for alpha in (0.0, 6.0):
    sac_runs[alpha] = classroom.train(sac, **on_pendulum, alpha=alpha, label=f'SAC, alpha = {alpha:g}')

fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('AverageTestEpRet', 'AverageLogPi')):
    classroom.curves({f'alpha = {alpha:g}': sac_runs[alpha] for alpha in sorted(sac_runs)}, y=column, ax=ax)
axes[1].set_yscale('symlog', linthresh=2)
plt.show()
found = {alpha: -classroom.last(sac_runs[alpha], 'AverageLogPi') for alpha in sorted(sac_runs)}
classroom.claim(found[0.0] < -3 < found[0.2] < found[6.0],
                'entropies at the end: ' + ', '.join(f'{h:.2f} at alpha = {alpha:g}' for alpha, h in found.items()),
                full=True)
by_seed = {alpha: [round(classroom.last([run])) for run in sac_runs[alpha]] for alpha in found}
classroom.claim(classroom.last(sac_runs[0.2]) > classroom.last(sac_runs[6.0]) + 100,
                'returns at the end, by seed: '
                + '; '.join(f'{ends} at alpha = {alpha:g}' for alpha, ends in by_seed.items())
                + '. At alpha = 6 next to nothing has been learned', full=True)

# %% [markdown]
# At $\alpha = 6$ the policy stays next to uniform, and with reason: uniform actions earn 0.68 nats times 6, about 4, in
# every step, and about as much is what swinging up would save. It solves the problem that it was given. At $\alpha = 0$
# nothing keeps the distribution open, and within a few hundred updates its entropy is what no reasonable policy has:
# practically a deterministic one, which explores no more. If the q functions were right by then, all is well. If not,
# that seed is stuck; compare the seeds in the line above. A method that depends on luck of this kind may have a good
# mean and is still not a good method.
#
# ## What changed from TD3, and why
#
# Here are the lines that the two files do not share, section by section. Where they differ by the algorithm's name
# alone, nothing is shown.

# %%
classroom.changes('td3', 'sac')

# %% [markdown]
# | section | what changed | why |
# |---|---|---|
# | Networks | the actor gives mean and deviation, samples, and knows its log-probability | the noise is learned |
# | Networks | `Temperature` | an exchange rate between entropy and reward, if it is to be learned |
# | Losses | `smooth_action` is gone | the stochastic policy averages over neighbouring actions by itself |
# | Losses | `- alpha * next_logp` in the target, `alpha * logp_pi` in the policy's loss | equations (7) and (9) |
# | Update | next actions from the current policy | its own entropy is what the target counts |
# | Update | the policy climbs the smaller q, in every update | fewer errors to climb, and noise averages them |
# | Training | `act_noise`, `target_noise`, `noise_clip`, `policy_delay` make room for `alpha` | noise is learned |
# | Training | one `lr` instead of `pi_lr` and `q_lr` | the temperature would have been the third |
#
# Buffer, evaluation and the loop are the same text.
#
# **Exercise 3 (ablate).** Look at (1) again. What would happen if all rewards were thirty times smaller, as if they
# were paid in another currency? A return is just a number, and the best policy does not care; a fixed temperature does.
# We run the pendulum with rewards divided by 30, once with `alpha=0.2` and once with `alpha='auto'`, and `'auto'` with
# the full rewards for comparison. Decide *before* you run the cell behind the next one:
#
# - With small rewards and `alpha=0.2`: does it still learn to swing up, `'learns'` or `'fails'`? (Experiment 2 knows.)
# - With small rewards and `alpha='auto'`: `'learns'` or `'fails'`?
# - By which factor will the learned temperature differ from the one that is learned with the full rewards: 1/900, 1/30,
#   1, 30 or 900?

# %% tags=["exercise"]
fixed_alpha = None                  # 'learns' or 'fails'
learned_alpha = None                # 'learns' or 'fails'
temperature_factor = None           # 1/900, 1/30, 1, 30 or 900
### BEGIN SOLUTION
fixed_alpha = 'fails'
learned_alpha = 'learns'
temperature_factor = 1 / 30
### END SOLUTION

# %%
two_seeds = dict(on_pendulum, seeds=classroom.steps([0, 1], fast=[0]))
small_rewards = dict(two_seeds, env=lambda: QuickPendulum(scale=1 / 30))
scale_runs = {
    'full rewards, auto': classroom.train(sac, **two_seeds, alpha='auto', label='Full rewards, auto'),
    'rewards / 30, alpha = 0.2': classroom.train(sac, **small_rewards, alpha=0.2, label='Small rewards, alpha = 0.2'),
    'rewards / 30, auto': classroom.train(sac, **small_rewards, alpha='auto', label='Small rewards, auto'),
}
fig, axes = classroom.figure(columns=2)
swing_ups = {}
for i, (scale_label, runs) in enumerate(scale_runs.items()):
    full_rewards = [run['AverageTestEpRet'] * (30 if '30' in scale_label else 1) for run in runs]
    swing_ups[scale_label] = np.mean([rewards[-3:] for rewards in full_rewards])
    for j, run in enumerate(runs):
        axes[0].plot(run['TotalEnvInteracts'], full_rewards[j], color=f'C{i}', label=scale_label if j == 0 else None)
        if 'auto' in scale_label:
            axes[1].plot(run['TotalEnvInteracts'], run['Alpha'], color=f'C{i}')
axes[0].set(xlabel='environment steps', title='return, in the old currency')
axes[1].set(xlabel='environment steps', title='learned temperature', yscale='log')
axes[0].legend(loc='lower right')
plt.show()

warmths = {label: classroom.last(runs, 'Alpha', rows=1) for label, runs in scale_runs.items() if 'auto' in label}
factor = warmths['rewards / 30, auto'] / warmths['full rewards, auto']
classroom.say('Returns at the end: ' + ', '.join(f'{value:.0f} ({label})' for label, value in swing_ups.items())
              + '. The learned temperatures are ' + ' and '.join(f'{value:.2g}' for value in warmths.values())
              + f', a factor of 1/{1 / factor:.0f}')
outcome = {label: 'learns' if value > -180 else 'fails' for label, value in swing_ups.items()}
classroom.check('Exercise 3a', fixed_alpha, outcome['rewards / 30, alpha = 0.2'], full=True,
                hint='divide the whole objective (1) by a constant: what happens to alpha?')
classroom.check('Exercise 3b', learned_alpha, outcome['rewards / 30, auto'], full=True,
                hint='(11) looks at the entropy alone; where in it does the scale of the rewards appear?')
nearest_factor = min((1 / 900, 1 / 30, 1, 30, 900), key=lambda candidate: abs(np.log(factor / candidate)))
classroom.check('Exercise 3c', temperature_factor, nearest_factor, full=True,
                hint='which alpha gives the same best policy when all rewards are divided by 30?')

# %% [markdown] tags=["solution"]
# *Discussion.* Only the ratio of rewards and temperature matters to the best policy: dividing the rewards by 30 is the
# same as multiplying $\alpha$ by 30, and experiment 2 has shown that $\alpha = 6$ does not learn. The learned
# temperature starts at 1 in both runs and sinks until the entropy has reached its target, which for small rewards takes
# longer and leads to about a thirtieth. What has been gained is not that a knob has vanished, for there is a target
# entropy now; but the new knob is about actions, which always live in $[-1, 1]$, and no longer about money.

# %% [markdown]
# ## Hunt the bug
#
# Four copies of `sac_torch.py`, each with one line changed. None of the changes raises an error, and all four have
# stood in public implementations; one of them in a library that thousands of people use. You are shown a symptom, and
# you have the copy, as `culprit.module`, with everything that is in the file: `culprit.module.compute_backup`,
# `culprit.module.SquashedGaussianMLPActor`, `culprit.module.sac`. Call the copy's functions and this page's with the
# same arguments, until two answers differ.
#
# Your answer is the line of the *good* file, as this page shows it, that must be wrong in the copy: quote it, or as
# much of it as stands in no other line.
#
# The hunts take place in a corridor, where everything can be computed by hand. It has five cells. Whatever the agent
# does, each step leads one cell on; the fifth step leaves the corridor, the episode terminates, and this step alone
# pays. The observation tells in which cell one is.

# %%
class Corridor(gym.Env):
    """Five cells in a row. Every action leads one cell on; the fifth terminates the episode, and pays `prize`."""
    observation_space, action_space = gym.spaces.Box(0, 1, (5,)), gym.spaces.Box(-1, 1, (1,))
    cells = np.concatenate([np.eye(5), np.zeros((1, 5))]).astype(np.float32)            # the sixth is outside

    def __init__(self, prize=0.0):
        self.prize, self.cell = prize, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return self.cells[0], {}

    def step(self, action):
        self.cell += 1
        return self.cells[self.cell], self.prize * (self.cell == 5), self.cell == 5, False, {}


def values_of(agent):
    """The smaller q of action 0 in each of the five cells. It is asked by an update, so it is the agent's last act."""
    rows = dict(obs=Corridor.cells[:5], act=np.zeros((5, 1), dtype=np.float32), rew=np.zeros(5, dtype=np.float32),
                next_obs=Corridor.cells[1:], terminated=np.float32([0, 0, 0, 0, 1]))
    answer = agent.update(rows, np.zeros((2, 5, 1), dtype=np.float32))
    return np.minimum(answer['Q1Vals'], answer['Q2Vals'])


in_corridor = dict(quick, gamma=0.8, polyak=0.95, batch_size=32, epochs=classroom.steps(10, fast=3), start_steps=100,
                   update_after=100, num_test_episodes=1)

# %% [markdown]
# **Exercise 4 (hunt).** Without a prize there is nothing to be gained in the corridor but entropy. What does a policy
# do that is paid for entropy alone? It takes all actions equally often, as nearly as a squashed Gaussian can. These are
# 2000 actions of the trained policy, in the first cell.

# %%
culprit = classroom.bug('A')
normal_noise = np.random.default_rng(0).standard_normal((2000, 1)).astype(np.float32)
fig, axes = classroom.figure(columns=2)
of_this_page = classroom.train(sac, Corridor, **in_corridor, alpha=1.0, label='Entropy alone')[0].agent
of_the_copy = classroom.train(culprit.module.sac, Corridor, **in_corridor, alpha=1.0, label='The copy')[0].agent
at_the_bounds = []
for ax, trained, source in zip(axes, (of_this_page, of_the_copy), ('this page', 'the copy')):
    taken = np.array([trained.act(Corridor.cells[0], e) for e in normal_noise])[:, 0]
    at_the_bounds.append(np.mean(np.abs(taken) > 0.95))
    ax.hist(taken, bins=40, range=(-1, 1))
    ax.set(title=source, xlabel='action', ylabel='actions')
plt.show()
classroom.claim(at_the_bounds[0] < 0.15 and at_the_bounds[1] > 0.5,
                f'{at_the_bounds[0]:.0%} of the actions are within 0.05 of a bound here, {at_the_bounds[1]:.0%} in the '
                'copy; of uniform ones it would be 5%', full=True)

# %% tags=["exercise"]
my_line = None                      # a quotation: 'u = mu + ' for example
### BEGIN SOLUTION
my_line = 'log_slope = 2 * (np.log(2) - u'
### END SOLUTION
classroom.hunt('Exercise 4', culprit, my_line)

# %% [markdown]
# **Exercise 5 (hunt).** The same corridor, still without a prize and with $\alpha = 1$, and this page's agent of
# exercise 4 beside that of another copy. By (3) the soft q of a cell is the entropy of the steps after it, discounted:
# with $h$ nats for each, $\gamma h$ in the fourth cell, $\gamma h + \gamma^2 h$ in the third, and so on. In the fifth
# cell it is 0: the step is taken, the episode is over.

# %%
culprit = classroom.bug('B')
ax = classroom.figure()[1]
corridor_q = []
of_the_copy = classroom.train(culprit.module.sac, Corridor, **in_corridor, alpha=1.0, label='The copy')[0].agent
for trained, source in ((of_this_page, 'this page'), (of_the_copy, 'the copy')):
    corridor_q.append(values_of(trained))
    ax.plot(range(1, 6), corridor_q[-1], 'o-', label=source)
ax.plot(range(1, 6), [sum(0.8**k * 0.68 for k in range(1, 6 - cell)) for cell in range(1, 6)], 'k:', label='by (3)')
ax.set(xlabel='cell', ylabel='q', title='What is still to come', xticks=range(1, 6))
ax.legend()
plt.show()
classroom.claim(abs(corridor_q[0][-1]) < 0.1 and corridor_q[1][-1] > 0.4,
                f'in the fifth cell, q is {corridor_q[0][-1]:.2f} here and {corridor_q[1][-1]:.2f} in the copy',
                full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'return rew + gamma * (1 - terminated) * (next_q - alpha * next_logp)'
### END SOLUTION
classroom.hunt('Exercise 5', culprit, my_line)

# %% [markdown]
# **Exercise 6 (hunt).** Back to the pendulum, with $\alpha = 0.2$ and $\gamma = 0.9$. Its rewards are never positive,
# and a step's entropy is at most $\log 2$. So no soft q can exceed $\gamma\, \alpha \log 2 / (1 - \gamma) = 1.25$,
# whatever the policy does. The author of the copy has only looked at the returns, and has been tuning the learning rate
# for a week.

# %%
culprit = classroom.bug('C')
one_seed = dict(on_pendulum, seeds=[0], alpha=0.2)
ceiling_runs = {'this page': sac_runs[0.2][:1],
                'the copy': classroom.train(culprit.module.sac, **one_seed, label='The copy')}
fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('AverageTestEpRet', 'AverageQ1Vals')):
    classroom.curves(ceiling_runs, y=column, ax=ax)
axes[1].axhline(0.9 * 0.2 * np.log(2) / 0.1, color='gray', linestyle='--')
plt.show()
ceiling_q = [classroom.last(runs, 'AverageQ1Vals', rows=1) for runs in ceiling_runs.values()]
classroom.claim(ceiling_q[0] < 1.25 < ceiling_q[1],
                f'q is {ceiling_q[0]:.1f} here, and {ceiling_q[1]:.1f} in the copy: above the ceiling', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = '- log_slope'
### END SOLUTION
classroom.hunt('Exercise 6', culprit, my_line)

# %% [markdown]
# **Exercise 7 (hunt).** Once more the corridor, now with a prize of 1 at its end, and next to no entropy ($\alpha =
# 0.01$). In the fifth cell the step itself pays, and q is 1; a prize that comes $n$ steps later is worth
# $\gamma^n$. The news of it travels backwards, cell by cell, from target to target. In the copy it does not arrive.

# %%
culprit = classroom.bug('D')
ax = classroom.figure()[1]
prize_q = []
for trainer, source in ((sac, 'this page'), (culprit.module.sac, 'the copy')):
    trained = classroom.train(trainer, lambda: Corridor(prize=1.0), **in_corridor, alpha=0.01,
                              label=f'A prize, {source}')[0].agent
    prize_q.append(values_of(trained))
    ax.plot(range(1, 6), prize_q[-1], 'o-', label=source)
ax.plot(range(1, 6), 0.8 ** np.arange(4, -1, -1), 'k:', label='gamma to the power of the steps')
ax.set(xlabel='cell', ylabel='q', title='What is still to come', xticks=range(1, 6))
ax.legend()
plt.show()
classroom.claim(np.abs(prize_q[0] - 0.8 ** np.arange(4, -1, -1)).max() < 0.1 and prize_q[1][:4].max() < 0.2,
                f'in the fourth cell, q is {prize_q[0][3]:.2f} here and {prize_q[1][3]:.2f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'self.ac_targ.q2(next_obs, next_act))'
### END SOLUTION
classroom.hunt('Exercise 7', culprit, my_line)

# %% [markdown]
# ## What to take away
#
# - The objective pays for entropy, and the best policy is the softmax of the values: it explores where q does not know.
# - An action is a smooth function of noise, so the gradient of q passes through it; it scatters far less than the score
#   function, and needs a q function that can be differentiated.
# - The density of a squashed action is that of $u$, divided by the slope at $u$; its logarithm is computed by softplus.
# - Entropy is part of the *future*: it is discounted and masked with the value, and never stored in the buffer.
# - The temperature is in the currency of the rewards. Learn it, or rescale the rewards.
# - Four one-line tests: the density integrates to 1; `LogPi` of a batch has the shape `(batch,)` and, at standard
#   deviation 0.88 around 0, a mean near $-k \log 2$; the target of a terminated step is its reward; no q exceeds what
#   can be earned.
#
# **Read on.** T. Haarnoja, A. Zhou, P. Abbeel, S. Levine, *Soft Actor-Critic: Off-Policy Maximum Entropy Deep
# Reinforcement Learning with a Stochastic Actor*, ICML 2018, arXiv:1801.01290. T. Haarnoja et al., *Soft Actor-Critic
# Algorithms and Applications*, arXiv:1812.05905, 2018, with the learned temperature. B. D. Ziebart et al., *Maximum
# Entropy Inverse Reinforcement Learning*, AAAI 2008, for where the objective comes from. S. Levine, *Reinforcement
# Learning and Control as Probabilistic Inference*, arXiv:1805.00909, 2018, for a derivation of (3) as inference in a
# graphical model. D. P. Kingma, M. Welling, *Auto-Encoding Variational Bayes*, arXiv:1312.6114, for the
# reparameterization trick.
