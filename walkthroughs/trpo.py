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
# # TRPO: a step that is measured in behaviour
#
# This notebook reads `trpo_torch.py` from its first line to its last. The code cells with the file's sections are the
# file: what you run here is what `python trpo_torch.py` runs. Around them stand the mathematics, a check of every
# equation by numbers, experiments, and exercises that tell you whether you have solved them.
#
# **Goals.** At the end you can
#
# - say why a learning rate is the wrong unit for a policy, and what the right one is;
# - derive the natural gradient step from a constrained optimization problem, with its length;
# - multiply a vector by a Hessian that nobody has ever written down, and solve a linear system by such products alone;
# - explain what the line search is for, and read from the table of a run whether it has done its work.
#
# **Prerequisites.** The notebooks on VPG and PPO: policy gradient, advantages, the ratio, KL divergence. From linear
# algebra: gradient, Hessian, eigenvalues.
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

classroom.begin('trpo', 'torch')

# %% [markdown]
# ## The problem: how far is far?
#
# VPG moves the parameters along the gradient, by a learning rate. But nobody cares about parameters. What matters is
# how the *policy* changes, and the same step in the parameters can be nothing or everything. Take a normal distribution
# and move its mean by 0.1. With a standard deviation of 1 nobody will notice. With one of 0.01 it is another policy:
# not one of its actions would have come from the old one. PPO answered with two brakes. TRPO, which is two years older,
# takes the question literally: *move as far as you like in the parameters, but no further than $\delta$ in behaviour.*
#
# Why is behaviour what has to be limited? Here is the theory, in three lines. Let $\eta(\pi)$ be the discounted return
# of a policy, $\rho_\pi(s) = \sum_t \gamma^t P(s_t = s)$ how often it visits a state, and $A_\pi$ its advantages. For
# *any* other policy $\tilde\pi$, exactly,
#
# $$
# \eta(\tilde\pi) = \eta(\pi) + \sum_s \rho_{\tilde\pi}(s) \sum_a \tilde\pi(a \mid s)\, A_\pi(s, a) \tag{1}
# $$
#
# (Kakade and Langford, 2002). If the new policy prefers, on average and *in the states that it visits*, actions with
# positive advantage, then it is better. The trouble is $\rho_{\tilde\pi}$: to know where the new policy goes, we would
# have to play it. So we take the states of the old one,
#
# $$
# L_\pi(\tilde\pi) = \eta(\pi) + \sum_s \rho_\pi(s) \sum_a \tilde\pi(a \mid s)\, A_\pi(s, a) \tag{2}
# $$
#
# and this is the surrogate of the PPO notebook, with the advantages weighted by the ratio. Schulman et al. proved how
# much this exchange can cost, at most:
#
# $$
# \eta(\tilde\pi) \;\ge\; L_\pi(\tilde\pi) - \frac{4 \epsilon \gamma}{(1 - \gamma)^2}\,
# \max_s \mathrm{KL}\big(\pi(\cdot \mid s), \tilde\pi(\cdot \mid s)\big),
# \qquad \epsilon = \max_{s, a} |A_\pi(s, a)| \tag{3}
# $$
#
# The price depends on one thing that we can control: how far the new policy's behaviour is from the old one's, as a KL
# divergence. Maximise the right side and the return can never fall. That is a theorem, and we will see below what it is
# worth in practice: its constant is so cautious that learning would take for ever. So TRPO keeps the form and replaces
# the penalty by a limit, and the maximum over states, which nobody can compute, by the mean:
#
# $$
# \max_\theta\; \mathbb{E}_{s, a \sim \pi_\text{old}}\left[
# \frac{\pi_\theta(a \mid s)}{\pi_\text{old}(a \mid s)}\, A(s, a) \right]
# \quad \text{such that} \quad
# \mathbb{E}_{s}\big[ \mathrm{KL}\big(\pi_\text{old}(\cdot \mid s), \pi_\theta(\cdot \mid s)\big) \big] \le \delta
# \tag{4}
# $$
#
# The set of all policies within $\delta$ is the **trust region**: there, and only there, we trust what the surrogate
# says. The rest of this page solves (4), approximately, for a network with thousands of parameters, in one step for
# each epoch.

# %% [markdown]
# ### One epoch as a picture
#
# Green are networks, blue is data, orange are computations that end in a step. The right half is new. The gradient `g`
# says where the surrogate rises; the KL says how behaviour reacts to a change of the parameters, and its second
# derivative `F` is never stored, only multiplied. Conjugate gradient makes a direction of the two, the line search a
# step that keeps its promise. The value function learns as it did before.

# %%
classroom.diagram(
    boxes=dict(
        env=(0, 1, 'environment', 'env'),
        pi=(1, 0, 'policy\npi(act | obs)', 'net'),
        old=(2, 0, 'old policy\nac_old', 'net'),
        data=(1, 1, 'GAEBuffer: obs, act,\nadv, ret, logp_old'),
        expand=(2, 1, 'gradient g of loss_pi,\nproducts x -> F x', 'loss'),
        cg=(3, 1, 'conjugate gradient\nH x = g', 'loss'),
        search=(3, 0, 'line search\nKL <= delta, loss falls', 'loss'),
        v=(0, 2, 'value function\nv(obs)', 'net'),
        loss_v=(1, 2, 'squared error\nloss_v', 'loss'),
    ),
    arrows=[
        ('pi', 'env', 'act', 0.1), ('env', 'data', 'rew'), ('data', 'expand', 'adv'),
        ('pi', 'old', 'copy'), ('old', 'expand', 'KL'), ('expand', 'cg', 'g, F x'), ('cg', 'search', 'step'),
        ('search', 'pi', 'one step', 0.22), ('v', 'data', 'val', 0.1), ('data', 'loss_v', 'ret'),
        ('loss_v', 'v', 'train'),
    ],
    title='One epoch of TRPO',
)

# %% [markdown]
# ## The file's own summary
#
# Five equations again, and two of them you know: the advantages, and the loss of the value function. The new ones stand
# in the middle. The surrogate has lost its clip. Below it is a linear system, `H x = g`, whose solution is the
# direction of the step; and then the step itself, with a length that comes out of a formula instead of a learning rate,
# and an exponent `i` that counts how often it had to be shortened. You will not find a learning rate for the policy in
# this file at all.

# %% Docstring tags=["section"]
"""Trust Region Policy Optimization (TRPO), and the natural policy gradient (NPG) that it grew from.

The idea: take the largest step that keeps the new policy's behaviour close to the old one's, as measured by their KL.
To second order the KL is a quadratic form, so the best direction solves a linear system; a line search then makes sure
of what the quadratic form only promised. NPG is the same without the line search.

The equations, in the names of the code:
    adv[t]   = sum over l of (gamma lam)^l delta[t+l],   delta[t] = rew[t] + gamma v(obs[t+1]) - v(obs[t])
    loss_pi  = -mean( pi(act | obs) / pi_old(act | obs) adv ),  to be minimised while  mean KL(pi_old, pi) <= delta
    H x      = g,    g the gradient of loss_pi, H the Hessian of the KL plus damping_coeff, by conjugate gradient
    params   = params_old - backtrack_coeff^i sqrt(2 delta / (x H x)) x,    the first i that does both
    loss_v   = mean( (v(obs) - ret)^2 ),                 ret: the discounted rewards to go

Papers: Schulman et al. 2015, Trust Region Policy Optimization, arXiv:1502.05477; Kakade 2001, A Natural Policy
Gradient; for adv, Schulman et al. 2016, High-Dimensional Continuous Control Using GAE, arXiv:1506.02438.

Its neighbours: ppo_torch.py does it with a clipped objective and plain gradients, vpg_torch.py takes one step without
any constraint, and trpo_tf1.py is this file in TensorFlow-1 style.

Run it: mpirun -np 4 python trpo_torch.py --env CartPole-v1 --algo npg
"""

# %% [markdown] tags=["notes"]
# - `so the best direction solves a linear system; a line search then makes sure`: the whole method in one
#   sentence. A linear model of the objective, a quadratic one of the constraint, and a look at the truth before the
#   step counts.
# - `to be minimised while  mean KL(pi_old, pi) <= delta`: the problem (4). The mean is over the states of the epoch;
#   the theorem (3) has a maximum.
# - `H x      = g,    g the gradient of loss_pi, H the Hessian of the KL plus damping_coeff, by conjugate gradient`: for
#   the default network on CartPole, `H` would have more than twenty million entries. It is never built.
# - `the first i that does both`: stays inside the trust region *and* lowers the loss.
# - `Trust Region Policy Optimization, arXiv:1502.05477; Kakade 2001, A Natural Policy`: the natural gradient is from
#   2001. What TRPO added is the theory that limits its length, the products without a matrix, and the line search.

# %% [markdown]
# ## Imports
#
# Two imports are new against PPO, and both tell something. `deepcopy` helps to make the old policy: PPO could do with
# one number per step, the log-probability of the action taken, but an exact KL divergence needs the whole old
# distribution in every state, so the old network has to be kept. And `mpi_avg` averages a plain vector over processes,
# because here it is not an optimizer that makes the step on the policy but the few lines of linear algebra below. The
# optimizer that is left is for the value function alone.

# %% Imports tags=["section"]
import time
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.optim import Adam

from common.env_tools import make_env
from common.logx import EpochLogger
from common.mpi_pytorch import mpi_avg_grads, set_flat, setup_pytorch_for_mpi, setup_saver, sync_params
from common.mpi_tools import mpi_avg, mpi_statistics_scalar, num_procs, proc_id
from common.run_utils import command_line, explain_arguments

# %% [markdown] tags=["notes"]
# - `from copy import deepcopy`: the one algorithm of the three on-policy ones that owns two policies.
# - `import mpi_avg, mpi_statistics_scalar, num_procs, proc_id`: with one process, as here, `mpi_avg` gives back what it
#   gets, as an array in double precision. That matters: the linear algebra in numpy is done in float64.

# %% [markdown]
# Now that numpy is there: are (1) to (3) true? In a small world they can be computed exactly. It has five states and
# three actions with random rewards and transitions, a random old policy $\pi$, and a one-parameter family of new ones,
# $\tilde\pi \propto \pi\, e^{\tau A_\pi}$, which prefers good actions the more, the larger $\tau$ is.

# %% tags=["check"]
# Equations (1), (2) and (3) in numbers: a world so small that nothing has to be estimated.
import matplotlib.pyplot as plt

generator = np.random.default_rng(1)
world_gamma = 0.9
world_next = generator.dirichlet(np.full(5, 0.5), (5, 3))               # P(next state | state, action), (5, 3, 5)
world_rew = generator.normal(size=(5, 3))
world_start = np.full(5, 0.2)


def solve_world(policy):
    """The return of a policy (5, 3), how often it visits each state (5,), and its advantages (5, 3); all exact."""
    visits = np.linalg.inv(np.eye(5) - world_gamma * np.einsum('sa,sat->st', policy, world_next))
    values = visits @ (policy * world_rew).sum(1)
    return world_start @ values, world_start @ visits, world_rew + world_gamma * world_next @ values - values[:, None]


def tilted(tau):
    """The old policy, with a preference for actions with a high advantage."""
    weights = world_pi * np.exp(tau * world_adv)
    return weights / weights.sum(1, keepdims=True)


world_pi = generator.dirichlet(np.full(3, 2.0), 5)
world_return, world_rho, world_adv = solve_world(world_pi)
world_penalty = 4 * np.abs(world_adv).max() * world_gamma / (1 - world_gamma)**2
local = lambda policy: world_return + (world_rho[:, None] * policy * world_adv).sum()               # equation (2)
largest_kl = lambda policy: (world_pi * np.log(world_pi / policy)).sum(1).max()
bound = lambda policy: local(policy) - world_penalty * largest_kl(policy)                           # equation (3)

others = [0.999 * generator.dirichlet(np.full(3, width), 5) + 0.001 / 3 for width in generator.choice([0.3, 1, 3], 500)]
returns = np.array([solve_world(policy)[0] for policy in others])
by_identity = [world_return + (solve_world(policy)[1][:, None] * policy * world_adv).sum() for policy in others]
classroom.agree('Returns of 500 policies, and what (1) says they are', returns, by_identity)
some = others + [tilted(tau) for tau in np.linspace(-3, 3, 101)]
slack = min(solve_world(policy)[0] - bound(policy) for policy in some)
classroom.claim(slack > -1e-9, f'the bound (3) holds for all {len(some)} policies; the least gap is {slack:.1g}')

fig, axes = classroom.figure(columns=2)
for ax, reach in zip(axes, (3.0, 0.012)):
    taus = np.linspace(0, reach, 61)
    ax.plot(taus, [solve_world(tilted(tau))[0] for tau in taus], linewidth=2.5, label='return')
    ax.plot(taus, [local(tilted(tau)) for tau in taus], '--', label='surrogate (2)')
    ax.plot(taus, [bound(tilted(tau)) for tau in taus], label='bound (3)')
    ax.set(xlabel='tau', title='far away' if reach > 1 else 'close to the old policy')
axes[0].set_ylim(world_return - 1, world_return + 8)
axes[0].legend()
plt.show()
taus = np.linspace(0, 0.05, 2001)
safest = taus[np.argmax([bound(tilted(tau)) for tau in taus])]
gain = solve_world(tilted(safest))[0] - world_return
possible = max(solve_world(tilted(tau))[0] for tau in np.linspace(0, 20, 201)) - world_return
classroom.claim(0 < gain < 0.02 * possible,
                f'the best step by the bound is one of KL {largest_kl(tilted(safest)):.1g}. It is an improvement, of '
                f'{gain:.3f}; along the same path {possible:.1f} could be had')

# %% [markdown]
# On the right, where $\tau$ is tiny, the bound does what it promises: at the $\tau$ where it has its maximum, the
# return is higher than at $\tau = 0$. On the left you see what that is worth. The bound leaves the picture at once,
# while the surrogate stays close to the truth for a long way. This is the situation that TRPO responds to: right form,
# useless constant. A radius of $\delta = 0.01$ is no theorem any more. It is a number that works.
#
# ## Networks
#
# The networks are those of VPG and PPO, and the two distributions have learned one thing more: `kl`, the divergence
# from another distribution of the same kind, for every state of a batch. PPO estimated it from the actions that were
# taken. Here it is computed, with all actions, in closed form: for probabilities $p$ and $q$ it is the sum
#
# $$
# \mathrm{KL}(p, q) = \sum_{i} p_i\, (\log p_i - \log q_i) \tag{5}
# $$
#
# and for normal distributions with independent components the integral can be done once and for all:
#
# $$
# \mathrm{KL}\big(\mathcal N(\mu, \sigma), \mathcal N(\mu', \sigma')\big)
# = \sum_{j} \left( \log \frac{\sigma'_j}{\sigma_j} + \frac{\sigma_j^2 + (\mu_j - \mu'_j)^2}{2 \sigma_j'^2}
# - \frac{1}{2} \right) \tag{6}
# $$
#
# Look at the fraction. The distance of the means is measured in standard deviations: the fact from the beginning, that
# 0.1 is little for $\sigma = 1$ and a lot for $\sigma = 0.01$, is here. It also shows that KL is no distance in the
# sense of geometry, because $\sigma$ and $\sigma'$ do not play the same part. *From which* policy *to which* has to be
# said every time. In this file it is from the old one to the new one, as in the paper: `old.kl(new)`, an expectation
# over the actions of the policy that played.

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

    def kl(self, other):
        """KL(self, other), (batch,)"""
        return (torch.exp(self.log_probs) * (self.log_probs - other.log_probs)).sum(-1)


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

    def kl(self, other):
        """KL(self, other), (batch,)"""
        z2 = (torch.exp(2 * self.log_std) + (self.mu - other.mu)**2) * torch.exp(-2 * other.log_std)
        return (other.log_std - self.log_std + 0.5 * (z2 - 1)).sum(-1)


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
    pi(obs) -> the distribution of actions, with sample(noise), log_prob(act), entropy() and kl(other) (batch,);
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
# - `self.mu, self.log_std = mu, log_std`: the shapes differ, `(batch, act_dim)` and `(act_dim,)`. In `kl` both kinds
#   meet, and broadcasting gives `(batch, act_dim)` before the sum over the last axis.
# - `need not use rng, which draws the initial weights`: layers of your own may draw their weights themselves. Layers
#   that draw *while they run*, such as dropout, are another matter: they have to be at rest during the step on the
#   policy, or the KL of a policy from itself would not be 0.
# - `with sample(noise), log_prob(act), entropy() and kl(other) (batch,)`: the contract for a distribution of your own
#   has grown by `kl`. Forget it, and everything runs until the first update.

# %% [markdown] tags=["notes", "torch"]
# - `return (torch.exp(self.log_probs) * (self.log_probs - other.log_probs)).sum(-1)`: equation (5), by rows. The
#   logarithms come from `log_softmax`, so that no probability can underflow to a logarithm of zero.
# - `z2 = (torch.exp(2 * self.log_std) + (self.mu - other.mu)**2) * torch.exp(-2 * other.log_std)`: the fraction in (6),
#   numerator first. Mind the brackets: old variance *and* squared distance are divided by the new variance.
# - `return (other.log_std - self.log_std + 0.5 * (z2 - 1)).sum(-1)`: the sum is over components of the action. The mean
#   over states comes later.

# %% [markdown] tags=["notes", "tf1"]
# - `return tf.reduce_sum(tf.exp(self.log_probs) * (self.log_probs - other.log_probs), -1)`: equation (5), by rows. The
#   logarithms come from `log_softmax`, so that no probability can underflow to a logarithm of zero.
# - `z2 = (tf.exp(2 * self.log_std) + (self.mu - other.mu)**2) * tf.exp(-2 * other.log_std)`: the fraction in (6),
#   numerator first. Mind the brackets: old variance *and* squared distance are divided by the new variance.
# - `return tf.reduce_sum(other.log_std - self.log_std + 0.5 * (z2 - 1), -1)`: the sum is over components of the action.
#   The mean over states comes later.

# %% tags=["check"]
# Equations (5) and (6) in numbers: against the sum and the integral that define a KL divergence.
kl_of_logits = lambda a, b: Categorical(a).kl(Categorical(b))
kl_of_normals = lambda mu_a, std_a, mu_b, std_b: Gaussian(mu_a, std_a).kl(Gaussian(mu_b, std_b))
logits_a, logits_b = generator.normal(size=(4, 3)), generator.normal(size=(4, 3))
probs_a, probs_b = [np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (logits_a, logits_b)]
classroom.agree('Categorical.kl and the sum over actions', classroom.call(kl_of_logits, logits_a, logits_b),
                (probs_a * np.log(probs_a / probs_b)).sum(1))

mu_a, log_std_a, mu_b, log_std_b = np.array([[0.3]]), np.array([-0.5]), np.array([[0.7]]), np.array([-0.2])
line = np.linspace(-12, 12, 20001)[:, None]                                              # actions, (20001, 1)
log_a, log_b = [classroom.call(lambda act, mu, log_std: Gaussian(mu, log_std).log_prob(act), line, mu, log_std)
                for mu, log_std in ((mu_a, log_std_a), (mu_b, log_std_b))]
integral = (np.exp(log_a) * (log_a - log_b)).sum() * (line[1, 0] - line[0, 0])
forwards = classroom.call(kl_of_normals, mu_a, log_std_a, mu_b, log_std_b)[0]
backwards = classroom.call(kl_of_normals, mu_b, log_std_b, mu_a, log_std_a)[0]
classroom.agree('Gaussian.kl and the integral', forwards, integral)
classroom.claim(abs(forwards - backwards) > 0.01, f'the order matters: {forwards:.3f} and {backwards:.3f}')
for sigma in (1.0, 0.1, 0.01):
    moved = classroom.call(kl_of_normals, np.zeros((1, 1)), np.log([sigma]), np.full((1, 1), 0.1), np.log([sigma]))[0]
    print(f'The mean moves by 0.1, the standard deviation is {sigma:g}: a KL of {moved:g}')

# %% [markdown]
# ## Buffer
#
# This is the buffer of VPG and PPO, byte for byte but for its name, and their notebooks take it apart. The short
# version: it stores observations, actions and rewards of an epoch, notes where trajectories end and whether they
# terminated, and computes, from the end of each trajectory to its beginning,
#
# $$
# \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t), \qquad
# \hat A_t = \delta_t + \gamma\lambda\, \hat A_{t+1}, \qquad
# \hat R_t = r_t + \gamma \hat R_{t+1} \tag{7}
# $$
#
# where behind the last step stands 0 after a termination, and $V$ of the last observation after a cut. The advantages
# are then shifted and scaled to mean 0 and standard deviation 1. In TRPO this scaling has less to do than elsewhere:
# multiply all advantages by ten, and the gradient grows tenfold, but the length of the step comes from the trust region
# and stays what it was. (Do not confuse the $\delta_t$ of (7) with the radius $\delta$ of (4). The file calls both
# `delta`, in different functions, as the papers do.)

# %% Buffer tags=["section"]
class GAEBuffer:
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
# - `def finish_path(self, last_obs, terminated):`: `terminated` alone, not "done". A time limit is no termination.
# - `next_val = 0 if terminated else next_val`: the end of the world is worth 0, the end of the epoch is worth $V$.
# - `delta = rew[t] + self.gamma * next_val - val[t]`: the residual. Not the radius of the trust region.
# - `adv=(adv - mean) / (std + 1e-8)`: the mean matters even here. Shifting all advantages by a constant does not change
#   the expected gradient, but it changes its noise.

# %% tags=["check"]
# Equation (7) in numbers: one trajectory that is cut, against the sums that the recursions stand for.
cut_rew, cut_val, cut_last = generator.normal(size=6), generator.normal(size=6), 0.7
example = GAEBuffer(Box(-1, 1, (1,)), Box(-1, 1, ()), size=6, gamma=0.9, lam=0.8)
for reward in cut_rew:
    example.store(np.zeros(1), 0, reward)
example.finish_path(np.zeros(1), terminated=False)
example_data = example.get(cut_val, np.zeros(6), last_val=np.array([cut_last]))
residuals = cut_rew + 0.9 * np.append(cut_val[1:], cut_last) - cut_val
sums = np.array([sum(0.72**l * residuals[t + l] for l in range(6 - t)) for t in range(6)])
classroom.agree('Advantages by the buffer and as sums', example_data['adv'], (sums - sums.mean()) / sums.std())
classroom.agree('Rewards to go by the buffer and as sums', example_data['ret'],
                [sum(0.9**k * r for k, r in enumerate(np.append(cut_rew, cut_last)[t:])) for t in range(6)])

# %% [markdown]
# ## Losses
#
# Two functions, and the first is the shortest surrogate of the three algorithms: no logarithm as in VPG, no clip as in
# PPO, just the ratio times the advantage. What kept the policies together there will be a constraint here, and a
# constraint is not a term of a loss.
#
# At the old policy all ratios are 1, and since $\nabla r = r\, \nabla \log \pi$ the gradient is the policy gradient:
#
# $$
# L(\theta) = -\frac{1}{n} \sum_t \frac{\pi_\theta(a_t \mid s_t)}{\pi_\text{old}(a_t \mid s_t)}\, \hat A_t, \qquad
# \nabla L \big|_{\theta_\text{old}} = -\frac{1}{n} \sum_t \nabla \log \pi_\theta(a_t \mid s_t)\, \hat A_t \tag{8}
# $$
#
# So TRPO starts from the same gradient as VPG. It draws another conclusion from it. For the gradient alone it could as
# well use VPG's loss; the ratio is needed afterwards, when the line search asks how large the surrogate is *at the new
# policy*. There $\log \pi\, \hat A$ would be the wrong question.

# %% Losses tags=["section"]
def compute_loss_pi(logp, logp_old, adv):
    """loss_pi = -mean( pi(act | obs) / pi_old(act | obs) adv )"""
    ratio = torch.exp(logp - logp_old)
    return -(ratio * adv).mean()


def compute_loss_v(val, ret):
    """loss_v = mean( (v(obs) - ret)^2 )"""
    return ((val - ret)**2).mean()

# %% [markdown] tags=["notes", "torch"]
# - `return -(ratio * adv).mean()`: negative, since the file minimises. A step is an improvement if this *falls*.
# - `ratio = torch.exp(logp - logp_old)`: at the old policy 1 for every step, so `LossPi` in the table is minus the mean
#   advantage, which is 0: that column is no measure of progress. `DeltaLossPi`, the change, is.

# %% [markdown] tags=["notes", "tf1"]
# - `return -tf.reduce_mean(ratio * adv)`: negative, since the file minimises. A step is an improvement if this *falls*.
# - `ratio = tf.exp(logp - logp_old)`: at the old policy 1 for every step, so `LossPi` in the table is minus the mean
#   advantage, which is 0: that column is no measure of progress. `DeltaLossPi`, the change, is.

# %% [markdown]
# We check (8) with a policy that is simple enough to do everything by hand and rich enough to be a policy: logits that
# are a linear function of four numbers, $\ell = s W$. It will serve for the Fisher matrix too.

# %% tags=["check"]
# Equation (8) in numbers: the gradient of the ratio's loss at the old policy, against that of log pi.
weights = generator.normal(size=(4, 3))                                                  # W: four inputs, three actions
states, taken, advantages = generator.normal(size=(50, 4)), generator.integers(3, size=50), generator.normal(size=50)
logp_taken = classroom.call(lambda w, s, a: Categorical(s @ w).log_prob(a), weights, states, taken)


def surrogate_loss(w, s, a, logp_old, adv):
    return compute_loss_pi(Categorical(s @ w).log_prob(a), logp_old, adv)


by_ratio = classroom.gradient(surrogate_loss, weights, states, taken, logp_taken, advantages)
by_log = classroom.gradient(lambda w, s, a, adv: -Categorical(s @ w).log_prob(a) * adv,
                            weights, states, taken, advantages) / 50
classroom.agree('The gradient of the surrogate and the policy gradient', by_ratio, by_log)

# %% [markdown]
# ## Update
#
# Four ideas make a step. Take them one by one; each is small.
#
# **1. The constraint is a bowl.** At the old parameters the KL is 0, and it is nowhere negative: so this is a minimum,
# the first derivative is 0 too, and the first term that says anything is the second,
#
# $$
# \mathbb{E}_s\big[\mathrm{KL}(\pi_\text{old}, \pi_{\theta_\text{old} + d})\big] \approx \frac{1}{2}\, d^\top F d,
# \qquad
# F = \mathbb{E}_{s,\, a \sim \pi_\text{old}}\big[
# \nabla \log \pi(a \mid s)\, \nabla \log \pi(a \mid s)^\top \big] \tag{9}
# $$
#
# The Hessian of the KL is the **Fisher information matrix**: the gradients that you know from VPG, each times itself
# transposed, on average. In directions to which the action probabilities are sensitive, the bowl is steep; in others it
# is flat.
#
# **2. In a bowl, the best direction is not the gradient.** Replace the loss by its linear part $g^\top d$ and the
# constraint by $\frac{1}{2} d^\top H d \le \delta$. The minimum of a linear function on an ellipsoid is where the
# ellipsoid touches a level plane. There, with a Lagrange multiplier $\lambda$, $g + \lambda H d = 0$, so that
# $d = -x / \lambda$ with $H x = g$; and $\lambda$ follows from $\frac{1}{2} d^\top H d = \delta$. Together:
#
# $$
# d = -\sqrt{\frac{2 \delta}{x^\top H x}}\; x, \qquad H x = g, \qquad H = F + c I \tag{10}
# $$
#
# The direction $F^{-1} g$ is the **natural gradient**: steep directions of the bowl are shortened, flat ones stretched.
# Without damping, what a small step of this kind does to the policy does not depend on how the policy is parametrised.
# The small number $c$, `damping_coeff`, is there because $F$ is singular in practice: there are always directions in
# which nothing changes on the states of this epoch. There the step would be zero divided by zero, and next to them
# huge.
#
# **3. $F$ is never built.** What conjugate gradient needs is not the matrix but its products. And a product of a
# Hessian with a vector is a gradient of a gradient:
#
# $$
# F x = \nabla_\theta \Big( \big(\nabla_\theta\, \overline{\mathrm{KL}}\big)^\top x \Big) \tag{11}
# $$
#
# Differentiate the mean KL, take the inner product with the fixed vector $x$, which is a single number, differentiate
# again. It costs about as much as two gradients, and no memory to speak of. **Conjugate gradient** then solves $H x =
# g$ by a few products: from $x = 0$ and the residual $r = p = g$, repeat
#
# $$
# \alpha = \frac{r^\top r}{p^\top H p}, \quad x \leftarrow x + \alpha p, \quad r' = r - \alpha H p, \quad
# p \leftarrow r' + \frac{r'^\top r'}{r^\top r}\, p, \quad r \leftarrow r' \tag{12}
# $$
#
# Each step minimises the error along a direction that does not spoil the earlier ones, so $n$ steps are exact for $n$
# unknowns. In practice ten are enough for thousands, and below you will see why.
#
# **4. Trust, and verify.** All this was about a linear and a quadratic *model*. So the step is tried, and the true KL
# and the true surrogate are computed at the new parameters. If it does not keep its promise it is shortened by a factor
# of 0.8, again and again. The step is the first of
#
# $$
# \theta_i = \theta_\text{old} + 0.8^i d, \quad i = 0, 1, \dots, 9, \quad \text{with} \quad
# \overline{\mathrm{KL}}(\pi_\text{old}, \pi_{\theta_i}) \le \delta \;\text{ and }\; L(\theta_i) < L(\theta_\text{old})
# \tag{13}
# $$
#
# and if there is none, the policy stays where it is. With `algo='npg'` the first is taken without a look: that is the
# natural policy gradient.

# %% Update tags=["section"]
def flat_grad(loss, params, **kwargs):
    """The gradient of a loss by all parameters, as one vector."""
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, params, retain_graph=True, **kwargs)])


def conjugate_gradient(apply_matrix, b, iters):
    """Solve A x = b for a positive definite A that is known only by its products apply_matrix(x) = A x."""
    x, r, p, r_dot_r = np.zeros_like(b), b.copy(), b.copy(), b @ b
    for _ in range(iters):
        if not r_dot_r > 1e-12 * (b @ b):                       # solved, up to rounding (or b is zero, or NaN)
            break
        product = apply_matrix(p)
        step = r_dot_r / (p @ product)
        x, r = x + step * p, r - step * product
        p, r_dot_r = r + (r @ r) / r_dot_r * p, r @ r
    return x


class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    def __init__(self, env, rng, args):
        self.args = args
        setup_pytorch_for_mpi(rng.integers(2**31))              # for layers with random numbers of their own: dropout
        self.ac = args.actor_critic(env.observation_space, env.action_space, rng, **args.ac_kwargs)
        sync_params(self.ac.eval())                             # in mode train() only while it is trained
        self.ac_old = deepcopy(self.ac).requires_grad_(False)
        self.pi_params = [p for p in self.ac.pi.parameters() if p.requires_grad]
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
            LossPi=compute_loss_pi(logp, logp_old, adv),
            LossV=compute_loss_v(val, ret),
            Entropy=dist.entropy(),
            KL=self.ac_old.pi(obs).kl(dist),
        )

    def metrics(self, batch):
        with torch.no_grad():
            return {key: value.float().mean().item() for key, value in self.compute_metrics(*batch).items()}

    def expand(self, batch):
        """The old policy's parameters, loss_pi, its gradient, and the function x -> F x, F the Hessian of the KL."""
        self.ac_old.load_state_dict(self.ac.state_dict())
        params, metrics = self.pi_params, self.compute_metrics(*batch)
        loss_pi, kl_grad = metrics['LossPi'], flat_grad(metrics['KL'].mean(), params, create_graph=True)
        return (nn.utils.parameters_to_vector(params).detach().numpy(), loss_pi.item(), flat_grad(loss_pi, params),
                lambda x: flat_grad(kl_grad @ torch.as_tensor(x, dtype=torch.float32), params))

    def set_params(self, flat):
        set_flat(self.pi_params, torch.as_tensor(flat, dtype=torch.float32))

    def step_pi(self, batch):
        """The largest step that the trust region allows; returns how often the line search had to shorten it."""
        params_old, loss_old, grad, fisher_product = self.expand(batch)
        apply_hessian = lambda x: mpi_avg(fisher_product(x)) + self.args.damping_coeff * x
        x = conjugate_gradient(apply_hessian, mpi_avg(grad), self.args.cg_iters)
        # The length at which the quadratic form of the KL is delta. 1e-30: without a gradient, x and the step are zero.
        step = np.sqrt(2 * self.args.delta / max(1e-30, x @ apply_hessian(x))) * x
        for i in range(self.args.backtrack_iters):
            self.set_params(params_old - self.args.backtrack_coeff**i * step)
            new = self.metrics(batch)
            kl, change = mpi_avg([new['KL'], new['LossPi'] - loss_old])
            if self.args.algo == 'npg' or kl <= self.args.delta and change < 0:
                return i
        self.set_params(params_old)                             # no step is inside the trust region and an improvement
        return self.args.backtrack_iters

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
        backtrack_iters = self.step_pi(batch)
        self.ac.train()                                         # the policy that acts has its trust region in eval()

        for _ in range(self.args.train_v_iters):
            self.step_v(batch)

        self.ac.eval()
        new = self.metrics(batch)
        return dict(LossPi=old['LossPi'], LossV=old['LossV'], DeltaLossPi=new.pop('LossPi') - old['LossPi'],
                    DeltaLossV=new.pop('LossV') - old['LossV'], **new,
                    **(dict(BacktrackIters=backtrack_iters) if self.args.algo == 'trpo' else {}))

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, 'state_dict')}

    def set_state(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

# %% [markdown] tags=["notes"]
# - `x, r, p, r_dot_r = np.zeros_like(b), b.copy(), b.copy(), b @ b`: copies, because `b` is the gradient, which is
#   needed as it was. In numpy `r = b` would be another name for the same array.
# - `if not r_dot_r > 1e-12 * (b @ b):`: relative to the right side. An absolute limit, as many implementations have it,
#   stops too early when gradients are small and never when they are large. Written with `not`, it also ends for NaN.
# - `step = r_dot_r / (p @ product)`: $\alpha$ of (12). The denominator is positive for a positive definite matrix, and
#   damping makes `H` one.
# - `params_old, loss_old, grad, fisher_product = self.expand(batch)`: a number, a vector and a function: the whole
#   local model of the problem, around the point `params_old`.
# - `apply_hessian = lambda x: mpi_avg(fisher_product(x)) + self.args.damping_coeff * x`: $H x$, averaged over all
#   processes, each of which has states of its own. The damping is added after the average, once.
# - `step = np.sqrt(2 * self.args.delta / max(1e-30, x @ apply_hessian(x))) * x`: the length in (10), with *the same*
#   `H` that was solved for. As far as the model is right, the KL of the step is therefore below $\delta$, by the share
#   of the damping.
# - `self.set_params(params_old - self.args.backtrack_coeff**i * step)`: minus, for `grad` is that of a loss. Every
#   attempt starts from `params_old`, not from the attempt before.
# - `kl, change = mpi_avg([new['KL'], new['LossPi'] - loss_old])`: both averaged in one message, so that all processes
#   decide the same and stay equal. A process that decided alone would leave the others waiting.
# - `if self.args.algo == 'npg' or kl <= self.args.delta and change < 0:`: rule (13). `and` binds more tightly than
#   `or`. Comparisons with NaN are False, so a step into NaN is refused.
# - `self.set_params(params_old)                             # no step is inside`: without this line the policy would be
#   left at the last and shortest attempt, which has just been refused.
# - `KL=self.ac_old.pi(obs).kl(dist),`: old first. Evaluated at the old policy it is 0, and so is its gradient; its
#   second derivative is not, and that is the one we want.
# - `**(dict(BacktrackIters=backtrack_iters) if self.args.algo == 'trpo' else {}))`: 0: the full step was fine. 10: no
#   step was made. Watch this column.

# %% [markdown] tags=["notes", "torch"]
# - `self.ac_old.load_state_dict(self.ac.state_dict())`: the centre of the trust region moves along, at the start of
#   every update.
# - `self.ac_old = deepcopy(self.ac).requires_grad_(False)`: the old policy is a constant; the derivative goes to the
#   new one alone.
# - `self.pi_params = [p for p in self.ac.pi.parameters() if p.requires_grad]`: all of them, `log_std` included, and in
#   a fixed order, since from here on they are one vector.
# - `flat_grad(metrics['KL'].mean(), params, create_graph=True)`: `create_graph` makes the gradient a function that can
#   be differentiated again. Without it, the next derivative raises an error.
# - `lambda x: flat_grad(kl_grad @ torch.as_tensor(x, dtype=torch.float32), params))`: equation (11). The first gradient
#   is computed once, and the graph is kept for all products: ten for the direction, one more for the length.
# - `the policy that acts has its trust region in eval()`: dropout in the trust region would compare two different
#   policies with each other.

# %% [markdown] tags=["notes", "tf1"]
# - `self.sess.run(self.set_old)`: the centre of the trust region moves along, at the start of every update.
# - `params, loss_pi, kl = self.ac.pi.trainable_variables, metrics['LossPi'], tf.reduce_mean(metrics['KL'])`: all
#   variables of the policy, `log_std` included, and in a fixed order, since from here on they are one vector.
# - `self.ac_old = args.actor_critic(env.observation_space, env.action_space, deepcopy(rng), **args.ac_kwargs)`: a
#   second network in the graph; the copy of the generator keeps the first one's from being disturbed.
# - `self.fisher_product = flat_grad(tf.reduce_sum(flat_grad(kl, params) * self.x), params)`: equation (11), once, when
#   the graph is built. Running it with another `x` is all that conjugate gradient does.
# - `self.set_pi = tf.group([p.assign(x) for p, x in zip(params, split_flat(self.x, [p.shape for p in params]))])`: from
#   one vector back to the variables.

# %% [markdown]
# Now piece by piece. First (9), with the linear policy in double precision: the Hessian of the mean KL by finite
# differences of its gradient, against the right side of (9), a sum over all states and actions. The gradients of
# $\log \pi$ are for this policy $s \otimes (e_a - p)$: the outer product of the inputs $s$ with the unit vector of the
# action minus the probabilities.

# %% tags=["check"]
# Equation (9) in numbers: the Hessian of the KL is the Fisher matrix, and the KL is half its quadratic form.
mean_kl = lambda w, w_old, s: Categorical(s @ w_old).kl(Categorical(s @ w)) / 50                     # gradient sums it
kl_slope = lambda w: classroom.gradient(mean_kl, w, weights, states).ravel()
small_steps = 1e-5 * np.eye(12).reshape(12, 4, 3)
kl_hessian = np.array([kl_slope(weights + nudge) - kl_slope(weights - nudge) for nudge in small_steps]) / 2e-5

action_probs = np.exp(classroom.call(lambda w, s: Categorical(s @ w).log_probs, weights, states))       # (50, 3)
fisher = np.zeros((12, 12))
for s, p in zip(states, action_probs):
    for act in range(3):
        score = np.outer(s, np.eye(3)[act] - p).ravel()                 # the gradient of log pi(act | s) by W
        fisher += p[act] * np.outer(score, score) / 50
classroom.agree('The slope of the KL at the old policy, and 0', kl_slope(weights), np.zeros(12), tol=1e-12)
classroom.agree('The Hessian of the KL and the Fisher matrix', kl_hessian, fisher)

direction = generator.normal(size=(4, 3))
lengths = np.array([0.02, 0.1, 0.5])
true_kl = np.array([classroom.call(mean_kl, weights + l * direction, weights, states).sum() for l in lengths])
quadratic = 0.5 * lengths**2 * (direction.ravel() @ fisher @ direction.ravel())
print('KL in a random direction, divided by its quadratic form:',
      ', '.join(f'{ratio:.3f} at length {l:g}' for ratio, l in zip(true_kl / quadratic, lengths)))
classroom.claim(abs(true_kl[0] / quadratic[0] - 1) < 0.05, 'close to the old policy the two agree')
print(f'Eigenvalues of F: {np.array2string(np.linalg.eigvalsh(fisher), precision=3, suppress_small=True)}')

# %% [markdown]
# Four of the twelve eigenvalues are 0, and with reason: adding the same number to all logits of a state changes no
# probability. For such a direction the bowl is a valley without end, and an undamped step could go there as far as it
# liked. This is what the damping is for.
#
# Next (10), and the problem (4) that it solves. A policy with two parameters can be drawn: a normal distribution with
# mean $\mu$ and logarithm of the standard deviation $\log \sigma$, in a world with a single state, where an action $a$
# has the advantage $-(a - 1)^2$ plus a constant. The surrogate is then $-(\mu - 1)^2 - \sigma^2$, and the mean should
# move to 1 and the noise should go.

# %% tags=["check"]
# Equations (4) and (10) in numbers: the step by formula, the best step by brute force, and the plain gradient's.
def one_state(mu, log_std, delta):
    """The gradient of the loss and the Fisher matrix at a normal policy, and its step (10), without damping."""
    gradient_there = np.array([-2 * (1 - mu), 2 * np.exp(2 * log_std)])
    metric = np.diag([np.exp(-2 * log_std), 2.0])
    x = np.linalg.solve(metric, gradient_there)
    return gradient_there, metric, -np.sqrt(2 * delta / (x @ metric @ x)) * x


radius = 0.01
fig, axes = classroom.figure(columns=2, height=3.6)
for ax, log_sigma in zip(axes, (0.0, -1.5)):
    slope, metric, natural = one_state(0.0, log_sigma, radius)
    plain = -np.sqrt(2 * radius / (slope @ metric @ slope)) * slope             # along the gradient, to the same rim
    span = 0.35 * np.exp(log_sigma)
    shifts, widths = np.meshgrid(np.linspace(-span, span, 301), log_sigma + np.linspace(-0.25, 0.25, 301))
    kl_there = classroom.call(lambda mu, log_std, mu_old, log_std_old: Gaussian(mu_old, log_std_old).kl(
        Gaussian(mu, log_std)), shifts.reshape(-1, 1), widths.reshape(-1, 1), np.zeros((1, 1)), np.array([log_sigma]))
    inside = kl_there <= radius
    worth = -(shifts.ravel() - 1)**2 - np.exp(2 * widths.ravel())
    best = np.argmax(np.where(inside, worth, -np.inf))
    now = -1 - np.exp(2 * log_sigma)
    gains = [-(step[0] - 1)**2 - np.exp(2 * (log_sigma + step[1])) - now for step in (natural, plain)]
    ax.contourf(shifts, widths, worth.reshape(shifts.shape), levels=12, cmap='Greens')
    ax.contour(shifts, widths, kl_there.reshape(shifts.shape), levels=[radius], colors='black', linewidths=2)
    ax.plot(shifts.ravel()[best], widths.ravel()[best], 'k*', markersize=12, label='best by brute force')
    for step, label, color in ((natural, 'natural gradient (10)', 'C1'), (plain, 'plain gradient, same KL', 'C0')):
        ax.plot([0, step[0]], [log_sigma, log_sigma + step[1]], 'o-', color=color, label=label)
    ax.set(xlabel='mean', ylabel='log sigma', title=f'sigma = {np.exp(log_sigma):.2f}')
    classroom.claim(abs(gains[0] / (worth[best] - now) - 1) < 0.05 and gains[0] >= gains[1] - 1e-3,
                    f'sigma {np.exp(log_sigma):.2f}: the surrogate rises by {worth[best] - now:.4f} at the best point, '
                    f'by {gains[0]:.4f} with (10), by {gains[1]:.4f} along the plain gradient')
axes[0].legend(loc='lower left', fontsize=8)
plt.show()

rim_directions = generator.normal(size=(100_000, 12))
damped = fisher + 0.1 * np.eye(12)
rim_directions *= np.sqrt(2 * radius / np.einsum('ni,ij,nj->n', rim_directions, damped, rim_directions))[:, None]
solution = np.linalg.solve(damped, by_ratio.ravel())
formula_step = -np.sqrt(2 * radius / (solution @ damped @ solution)) * solution
classroom.claim((rim_directions @ by_ratio.ravel()).min() > formula_step @ by_ratio.ravel(),
                f'on the rim of the ellipsoid the linear loss is {formula_step @ by_ratio.ravel():.4f} at the step by '
                f'(10); the best of 100,000 random points has {(rim_directions @ by_ratio.ravel()).min():.4f}')

# %% [markdown]
# The black line is the true trust region. It is round where you look at it in the right units, and the axes of the two
# pictures differ: with a small $\sigma$ the same behaviour is a much smaller piece of the parameter space. The step
# (10) ends close to the star without ever having seen the black line, for the quadratic form has told it enough. Not
# quite: on the left it is a little outside, which is why its surrogate is even higher than the best that is allowed. A
# shrinking $\sigma$ costs more KL than the bowl says. Remember this when we come to the line search.
#
# **Exercise 1 (implement).** The Fisher matrix of a categorical distribution *by its logits* is $\operatorname{diag}(p)
# - p p^\top$. With a thousand actions it would have a million entries, and its product with a vector can be had with
# two passes over a thousand numbers. Write that product, for a batch: one row of probabilities and one vector for each
# state. No matrix, no loop.

# %% tags=["exercise"]
def my_fisher_product(probs, x):
    """(diag(p) - p p^T) x for each row p of probs (batch, n) and x (batch, n); returns (batch, n)."""
    ### BEGIN SOLUTION
    return probs * (x - (probs * x).sum(-1, keepdims=True))
    ### END SOLUTION


vectors = generator.normal(size=logits_a.shape)
slope_at = lambda logits: classroom.gradient(lambda new, old: Categorical(old).kl(Categorical(new)), logits, logits_a)
classroom.check('Exercise 1', lambda: my_fisher_product(probs_a, vectors),
                (slope_at(logits_a + 1e-5 * vectors) - slope_at(logits_a - 1e-5 * vectors)) / 2e-5,
                hint='p p^T x is p times a number, the inner product of p and x; keepdims=True keeps the shapes apart')

# %% [markdown]
# ## Training
#
# The body of the training function is, but for names, that of VPG and PPO: play an epoch, evaluate it, update, write a
# row of the table. What is particular to TRPO is in the signature. Compare its knobs with PPO's. Gone are the learning
# rate of the policy, the number of its steps, the clip, `target_kl`. The one that matters is `delta`, and it has a
# meaning that carries over from one task to the next: how different may the policy's behaviour be after an update. The
# other four belong to the machinery: how accurately the linear system is solved, how much damping it gets, and how long
# the line search looks.

# %% Training tags=["section"]
@explain_arguments
def trpo(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=MLPActorCritic,        # the networks, made from (observation_space, action_space, rng, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; process i uses seed + 10000 i
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=50,                          # epochs of experience and update
    gamma=0.99,                         # discount of the future, per step
    lam=0.97,                           # lambda of GAE: 0 relies on the value function, 1 on the rewards
    vf_lr=1e-3,                         # learning rate of the value function
    train_v_iters=80,                   # gradient steps on the value function in an epoch
    delta=0.01,                         # radius of the trust region: the largest mean KL from the old policy
    damping_coeff=0.1,                  # added to the Hessian's diagonal, which makes it well-conditioned
    cg_iters=10,                        # iterations of conjugate gradient
    backtrack_iters=10,                 # step lengths that the line search tries
    backtrack_coeff=0.8,                # factor from one step length to the next
    algo='trpo',                        # 'trpo', or 'npg': the natural gradient, without line search
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
    buf = GAEBuffer(env.observation_space, env.action_space, local_steps, gamma, lam)
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(vars(args), trpo, env)
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
# - `delta=0.01,                         # radius of the trust region: the largest mean KL from the old policy`: two
#   distributions with a KL of 0.01 are hard to tell apart: for normal ones it is a shift by 0.14 standard deviations.
# - `damping_coeff=0.1,`: large against most eigenvalues of `F`, as you will see. In their directions the step is the
#   plain gradient's, up to a factor.
# - `cg_iters=10,`: ten products for each update, and one more for the length, whatever the size of the network.
# - `backtrack_iters=10,`: the shortest step that is tried is $0.8^9 \approx 0.13$ of the full one.
# - `algo='trpo',`: one switch makes the ancestor of the algorithm, for comparison.
# - `ended = terminated or truncated or ep_len == max_ep_len`: about the episode; `terminated` is about the future.
# - `metrics = agent.update(buf.get(val, logp, last_val))`: the one line in which learning happens.

# %% [markdown]
# ## Command line
#
# As in every file of this repository, the arguments of the training function become the flags of a program. To compare
# TRPO with its ancestor, for example, as experiment 2 on this page does in a smaller way, takes one command in a
# terminal, `python trpo_torch.py --env CartPole-v1 --algo trpo npg --seed 0 1 2`, since several values for a flag make
# a grid of runs. In a notebook you call the function, and that is what the next part does.

# %% Command line tags=["section"]
if __name__ == '__main__':
    command_line(trpo)

# %% [markdown] tags=["notes"]
# - `command_line(trpo)`: reads names, defaults and comments of the signature above. There is no second list of options
#   that could go out of date.

# %% [markdown]
# ## Train
#
# Twelve epochs of two thousand steps on CartPole, three seeds, with the file's own `delta`. Networks, epochs and the
# number of steps on the value function are half as large as by default, to save time.

# %%
small = dict(ac_kwargs=dict(hidden_sizes=(32, 32)), train_v_iters=40, steps_per_epoch=classroom.steps(2000, fast=200))
three_seeds = dict(env='CartPole-v1', seeds=classroom.steps([0, 1, 2], fast=[0]), epochs=classroom.steps(12, fast=2),
                   **small)
trpo_runs = classroom.train(trpo, **three_seeds)

fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL', 'BacktrackIters')):
    classroom.curves({'TRPO': trpo_runs}, y=column, ax=ax)
axes[1].axhline(0.01, color='gray', linestyle='--')
axes[1].set_ylim(0, 0.012)
plt.show()
first_return = np.mean([run['AverageEpRet'][0] for run in trpo_runs])
kls = np.concatenate([run['KL'] for run in trpo_runs])
classroom.claim(classroom.last(trpo_runs) > 200, f'the return rises from {first_return:.0f} to '
                f'{classroom.last(trpo_runs):.0f}', full=True)
classroom.claim(kls.max() <= 0.0101, f'the KL of an update is never above {kls.max():.4f}, and {kls.mean():.4f} on '
                'average')

# %% [markdown]
# Compare the middle picture with the one in the PPO notebook. There the KL came out as it did, and a brake ended the
# update when it had gone too far. Here each update uses a good part of what it is allowed, and none uses more. And the
# line search has hardly anything to do: with this radius and this damping the quadratic model is as good as the truth.
# Keep that in mind, for further down we will take the safety away and see what it was good for.
#
# ## The step, taken apart

# %% [markdown]
# Now the real thing: an agent with a small network on CartPole. `collect` plays with it as the training loop does. The
# agent's method `expand` gives the products (11), and 130 products with unit vectors make the matrix that is never
# built in earnest.

# %% tags=["torch"]
def make_batch(agent, data):
    """An epoch's data as the methods of the agent take it."""
    return [torch.as_tensor(data[key]) for key in ('obs', 'act', 'adv', 'ret', 'logp')]

# %% [raw] tags=["tf1"]
# def make_batch(agent, data):
#     """An epoch's data as the methods of the agent take it."""
#     return {agent.inputs[key]: array for key, array in data.items()}

# %% tags=["check"]
# Equation (11) in numbers: a quadratic form made of products, against the KL that a step really makes.
def collect(agent, env, steps, play_seed):
    """An epoch of an agent's experience, as the buffer gives it."""
    buf = GAEBuffer(env.observation_space, env.action_space, steps, gamma=0.99, lam=0.97)
    noise, (obs, _) = draw_noise(np.random.default_rng(play_seed), steps, env.action_space), env.reset(seed=play_seed)
    for t in range(steps):
        act = agent.act(obs, noise[t])
        next_obs, rew, terminated, truncated, _ = env.step(act)
        buf.store(obs, act, rew)
        obs = next_obs
        if terminated or truncated or t == steps - 1:
            buf.finish_path(obs, terminated)
            obs, _ = env.reset()
    return buf.get(*agent.evaluate(buf.obs, buf.act, buf.last_obs()))


pupil, playground = classroom.make_agent(trpo, 'CartPole-v1', seed=2, ac_kwargs=dict(hidden_sizes=(8, 8)))
pupil_data = collect(pupil, playground, 1000, play_seed=2)
pupil_batch = make_batch(pupil, pupil_data)
params_old, loss_old, pupil_grad, fisher_product = pupil.expand(pupil_batch)
pupil_grad = np.asarray(pupil_grad, dtype=np.float64)
F = np.array([np.asarray(fisher_product(unit)) for unit in np.eye(len(params_old), dtype=np.float32)], dtype=np.float64)
eigenvalues = np.linalg.eigvalsh((F + F.T) / 2)[::-1]


def kl_of_step(step):
    """The KL that a change of the pupil's parameters makes, on its epoch."""
    pupil.set_params(params_old + step)
    kl = pupil.metrics(pupil_batch)['KL']
    pupil.set_params(params_old)
    return float(kl)


classroom.agree('F and its transpose', F, F.T, tol=1e-6)
probe = F @ generator.normal(size=len(params_old))                      # a direction in which behaviour does change
probe *= np.sqrt(2e-3 / (probe @ F @ probe))                            # to a quadratic form of 0.001
classroom.agree('The KL of a small step, forwards and back, and the quadratic form',
                (kl_of_step(probe) + kl_of_step(-probe)) / 2, 1e-3, tol=5e-5)

# %% [markdown]
# ### Why ten products are enough
#
# A network with 130 parameters, and 130 eigenvalues. Here they are, together with the error of conjugate gradient after
# each of its steps. Before you look: how many steps will it take until the residual is a thousandth of the gradient?

# %% tags=["check"]
# Equation (12) in numbers: conjugate gradient against a direct solution, and how its error falls.
identity = np.eye(len(params_old))
for damping in (0.1, 1e-3):
    damped = F + damping * identity
    x_cg, x_direct = conjugate_gradient(damped.dot, pupil_grad, 60), np.linalg.solve(damped, pupil_grad)
    classroom.agree(f'Damping {damping:g}: conjugate gradient and a direct solution, relative',
                    x_cg / np.linalg.norm(x_direct), x_direct / np.linalg.norm(x_direct), tol=1e-3)


def residuals_of(damping, most=15):
    """The length of the residual after 0, 1, ... steps of conjugate gradient, divided by the gradient's."""
    matrix = F + damping * identity
    solutions = [conjugate_gradient(matrix.dot, pupil_grad, k) for k in range(most + 1)]
    return np.array([np.linalg.norm(pupil_grad - matrix @ x) for x in solutions]) / np.linalg.norm(pupil_grad)


fig, axes = classroom.figure(columns=2)
axes[0].semilogy(1 + np.arange(len(eigenvalues)), np.maximum(eigenvalues, 1e-9), 'o', markersize=3)
for damping, color in ((0.1, 'C1'), (1e-3, 'C2')):
    axes[0].axhline(damping, color=color, linestyle='--', label=f'damping {damping:g}')
    axes[1].semilogy(residuals_of(damping), 'o-', color=color, label=f'damping {damping:g}')
axes[0].set(xlabel='number', title='eigenvalues of F (those below 1e-9 drawn there)')
axes[1].set(xlabel='iterations', title='residual of conjugate gradient')
for ax in axes:
    ax.legend()
plt.show()
large = int((eigenvalues > 1e-3).sum())
enough = int(np.argmax(residuals_of(0.1) < 1e-3))
classroom.claim(large <= 10 and enough <= 10,
                f'of {len(eigenvalues)} eigenvalues {large} are above 0.001; with the default damping the residual is '
                f'below a thousandth after {enough} iterations')

# %% [markdown]
# Behaviour hangs on a handful of directions in the parameter space, and in all the others next to nothing happens.
# Conjugate gradient needs about one step for each *cluster* of eigenvalues; damping moves all the tiny ones together
# into a single cluster at $c$. That is why ten products are enough for 130 parameters, and mostly for a million.
#
# **Exercise 2 (implement).** You have seen all the pieces. Write the full step (10), for a Fisher matrix that is small
# enough to be there as an array: return the change of the parameters that TRPO tries first. The check compares it with
# what the agent's own update does to its parameters, with `algo='npg'`, so that the first attempt is taken as it is.

# %% tags=["exercise"]
def my_step(grad, fisher, damping, delta):
    """The change of the parameters (n,): grad (n,) is the gradient of the loss, fisher (n, n)."""
    ### BEGIN SOLUTION
    hessian = fisher + damping * np.eye(len(grad))
    x = np.linalg.solve(hessian, grad)
    return -np.sqrt(2 * delta / (x @ hessian @ x)) * x
    ### END SOLUTION


npg_pupil, _ = classroom.make_agent(trpo, 'CartPole-v1', seed=2, ac_kwargs=dict(hidden_sizes=(8, 8)), algo='npg',
                                    train_v_iters=0)
npg_pupil.update(pupil_data)
params_new = np.asarray(npg_pupil.expand(make_batch(npg_pupil, pupil_data))[0])
classroom.check('Exercise 2', lambda: my_step(pupil_grad, F, 0.1, 0.01), params_new - params_old, tol=1e-3,
                hint='the damping belongs into the linear system and into the length; the sign: the loss has to fall')

# %% [markdown]
# ### What the model promises, and what comes
#
# The last idea was not to trust the model. Let us walk along the step, up to its full length: for each length the
# quadratic form promises a KL, the gradient promises a change of the loss, and both can be measured. First with the
# default damping, then with a hundredth of it and a radius of 0.05.

# %% tags=["check"]
# Equation (13) in numbers: the line search takes the first step that keeps both promises.
def attempts(agent, batch):
    """For each length that the line search could try: (length, KL, change of the loss). Changes nothing."""
    centre, loss, grad, product = agent.expand(batch)
    apply_matrix = lambda x: np.asarray(product(x), dtype=np.float64) + agent.args.damping_coeff * x
    x = conjugate_gradient(apply_matrix, np.asarray(grad, dtype=np.float64), agent.args.cg_iters)
    step, rows = np.sqrt(2 * agent.args.delta / (x @ apply_matrix(x))) * x, []
    for i in range(agent.args.backtrack_iters):
        agent.set_params(centre - agent.args.backtrack_coeff**i * step)
        new = agent.metrics(batch)
        rows.append((agent.args.backtrack_coeff**i, new['KL'], new['LossPi'] - loss))
    agent.set_params(centre)
    return np.array(rows, dtype=float), float(step @ np.asarray(grad, dtype=np.float64))


fig, axes = classroom.figure(columns=2)
for settings, color in ((dict(), 'C1'), (dict(damping_coeff=1e-3, delta=0.05), 'C2')):
    walker, _ = classroom.make_agent(trpo, 'CartPole-v1', seed=2, ac_kwargs=dict(hidden_sizes=(8, 8)), train_v_iters=0,
                                     **settings)
    rows, promised = attempts(walker, make_batch(walker, pupil_data))
    limit = walker.args.delta
    expected = next((i for i, (_, kl, change) in enumerate(rows) if kl <= limit and change < 0), len(rows))
    report = walker.update(pupil_data)
    label = f'damping {walker.args.damping_coeff:g}, delta {limit:g}'
    axes[0].plot(rows[:, 0], rows[:, 1] / limit, 'o-', color=color, label=label)
    axes[1].plot(rows[:, 0], rows[:, 2], 'o-', color=color, label=label)
    axes[1].plot(rows[:, 0], -promised * rows[:, 0], ':', color=color)
    classroom.claim(report['BacktrackIters'] == expected and report['KL'] <= limit,
                    f'{label}: the full step has a KL of {rows[0, 1]:.4f}; the agent shortened it '
                    f'{report["BacktrackIters"]:.0f} times, to a KL of {report["KL"]:.4f}')
    if settings:
        broken_promise = rows[0, 1] / limit
lengths_drawn = np.linspace(0.1, 1, 50)
axes[0].plot(lengths_drawn, lengths_drawn**2, 'k:', label='promised, damping included')
axes[0].axhline(1, color='gray', linestyle='--')
axes[0].set(xlabel='part of the full step', title='KL, in units of delta')
axes[1].set(xlabel='part of the full step', title='change of the loss (dotted: promised)')
axes[0].legend(fontsize=8)
plt.show()
classroom.claim(broken_promise > 1.5, f'with little damping the full step has {broken_promise:.1f} times the KL that '
                'the quadratic form promised')

# %% [markdown]
# With little damping the step goes far out into the flat directions, so far that the bowl is no bowl any more. There
# the model fails, and the line search is what stands between the model and the policy.
#
# ## Experiment 1: a plateau
#
# What is the natural gradient good for? The classic answer is an example with two states, after Kakade (2001). In
# each you can stay, or go to the other one. Staying pays 1 in the first state and 2 in the second, and going pays
# nothing. The best policy is plain: go to the second state and stay. But we start with a policy that mostly stays in
# the first and mostly leaves the second. Everything is computed exactly, without samples, and all three climbers
# begin with a step of the same KL:
#
# - the plain gradient with a constant learning rate, the oldest method of all;
# - the plain gradient *direction*, but with every step as long as the trust region allows;
# - the natural gradient, by (10).

# %%
def two_states(theta):
    """The return per step, visits (2,), probabilities to stay (2,), and the advantage of staying over going (2,)."""
    stay = 1 / (1 + np.exp(-theta))
    moves = np.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]])
    resolvent = np.linalg.inv(np.eye(2) - 0.95 * moves)
    values = resolvent @ (stay * np.array([1.0, 2.0]))
    visits = 0.05 * np.array([0.8, 0.2]) @ resolvent
    return visits @ (stay * np.array([1.0, 2.0])), visits, stay, np.array([1.0, 2.0]) + 0.95 * (values - values[::-1])


def climb(natural, constant, radius=0.01, target=1.8, most=2000):
    """The returns of all steps until the target is reached."""
    theta, rate, history = np.array([1.4, -3.0]), None, []
    while len(history) < most:
        value, visits, stay, better = two_states(theta)
        history.append(value)
        if value > target:
            break
        information = visits * stay * (1 - stay)                        # the Fisher matrix, which is diagonal here
        ascent = better if natural else information * better            # information * better is the gradient
        longest = np.sqrt(2 * radius / (ascent @ (information * ascent)))
        rate = longest if rate is None or not constant else rate
        theta = theta + rate * ascent
    return np.array(history)


climbers = {'plain gradient, constant rate': climb(False, True), 'plain direction, length by KL': climb(False, False),
            'natural gradient': climb(True, False)}
fig, ax = classroom.figure()
for name, history in climbers.items():
    ax.semilogx(1 + np.arange(len(history)), history, linewidth=2, label=name)
ax.set(xlabel='steps', ylabel='return per step', title='Two states, three ways to climb')
ax.legend(loc='lower right', fontsize=8)
plt.show()
counts = {name: len(history) - 1 for name, history in climbers.items()}
plain_count, length_count, natural_count = counts.values()
classroom.claim(plain_count > 20 * natural_count, 'steps until the return is 1.8: '
                + ', '.join(f'{count} ({name})' for name, count in counts.items()))

# %% [markdown]
# The plain gradient first learns to stay in the first state, since that pays at once. By doing so it visits the second
# state ever more rarely; and a gradient is weighted by visits, so what happens there counts ever less. That is the
# plateau: for hundreds of steps nothing moves. The natural gradient divides by the Fisher matrix, which contains the
# same visits. A rare state is then as important as a frequent one.
#
# Note the second climber. It has the plain gradient's direction and still does well, because its *length* is measured
# in behaviour: on the plateau, where behaviour hardly reacts, its steps in the parameters become huge. In this world
# the right length is most of the secret. Adam, which enlarges small gradients too, profits from the same effect.
#
# ## Experiment 2: without the line search
#
# **Exercise 3 (ablate).** Now we take the safety away: `algo='npg'` makes the full step without a look. And we make
# life dangerous, with a radius of 0.05 and a damping of 0.001, where the model was so wrong above. Decide *before* you
# run the next cell:
#
# - How large will the largest KL of a run with NPG be, in units of `delta`: `'below 1'`, `'1 to 2'`, `'above 2'`?
# - Will the return at the end, averaged over seeds, be `'higher'`, `'lower'` or about the `'same'` (within 15 %)?

# %% tags=["exercise"]
largest_kl_without = None           # 'below 1', '1 to 2' or 'above 2'
return_without = None               # 'higher', 'lower' or 'same'
### BEGIN SOLUTION
largest_kl_without = 'above 2'
return_without = 'lower'
### END SOLUTION

# %%
dangerous = dict(three_seeds, delta=0.05, damping_coeff=1e-3)
searched = classroom.train(trpo, **dangerous, label='TRPO')
unsearched = classroom.train(trpo, **dangerous, algo='npg', label='NPG')
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL')):
    classroom.curves({'TRPO': searched, 'NPG': unsearched}, y=column, ax=ax)
classroom.curves({'TRPO': searched}, y='BacktrackIters', ax=axes[2])
axes[1].set_yscale('log')
axes[1].axhline(0.05, color='gray', linestyle='--')
plt.show()
worst_kls = [max(run['KL'].max() for run in runs) / 0.05 for runs in (searched, unsearched)]
change = classroom.last(unsearched) / classroom.last(searched)
classroom.claim(worst_kls[0] <= 1.01 < worst_kls[1],
                f'the largest KL of an update is {worst_kls[0]:.2f} delta with the line search and '
                f'{worst_kls[1]:.1f} delta without it', full=True)
print(f'The return at the end without line search: {change:.2f} of that with it')
classroom.check('Exercise 3a', largest_kl_without, full=True, hint='look at the picture of the attempts above',
                expected='below 1' if worst_kls[1] <= 1 else '1 to 2' if worst_kls[1] <= 2 else 'above 2')
classroom.check('Exercise 3b', return_without, full=True, hint='one bad step is followed by an epoch of bad data',
                expected='same' if 0.85 <= change <= 1.15 else 'higher' if change > 1 else 'lower')

# %% [markdown] tags=["solution"]
# *Discussion.* A step that is too long is not merely a step that is too long. The policy after it collects the next
# epoch's data, and a policy that has become bad collects data about bad states. Look at single seeds (the thin lines):
# some runs of NPG fall back to where they began. With the default damping of 0.1 NPG does well on this task: damping,
# radius and line search are three safeties, and you need not have all of them. Note also the third picture: with so
# little damping the line search shortens most steps, and a search that shortens every step says that its model is bad.

# %% [markdown]
# ## What changed from PPO, and why
#
# Here is the whole difference between the two files, section by section, in the lines that they do not share. In
# history TRPO came first, and PPO was the attempt to get most of it with plain gradients: read the minus lines as what
# replaced the plus lines two years later.

# %%
classroom.changes('ppo', 'trpo')

# %% [markdown]
# | section | what changed | why |
# |---|---|---|
# | Networks | `kl` for both distributions | the constraint is exact in the actions, not estimated from samples |
# | Losses | no clip, no `compute_kl` | the surrogate is limited by a constraint, not by its own shape |
# | Update | `ac_old`, a second network | an exact KL needs the whole old distribution |
# | Update | `expand`, `conjugate_gradient` | direction and length from the curvature of the KL |
# | Update | `step_pi` is a line search | one large step that is verified, instead of many small ones |
# | Training | `delta` and four others for `pi_lr`, `clip_ratio`, ... | a limit in units of behaviour |
#
# **Which one to use?** PPO is simpler, and its plain gradients get along with dropout and with layers that policy and
# value function share. In TRPO the steps on the value function would move shared layers after the line search has
# looked. TRPO has one knob that means something, and every step is checked against it. Engstrom et al. (2020) found
# that much of PPO's advantage in published comparisons came from details of the code and not from the clip.

# %% [markdown]
# ## Hunt the bug
#
# Four copies of `trpo_torch.py` follow. In each, one line has been changed; all four mistakes, in this form or a close
# one, have stood in published implementations, and none of them raises an error. You see a symptom and the copy, as
# `culprit.module`, with all the functions and classes of the file: `culprit.module.Gaussian`,
# `culprit.module.conjugate_gradient`, `culprit.module.Agent`. Your answer is the line of the *good* file, as this page
# shows it, that you believe to be wrong in the copy: quote it, or as much of it as stands in no other line.
#
# **Exercise 4 (hunt).** The copy learns for one epoch and then stands still. Its KL looks healthier than ours: every
# update comes close to `delta`, and not one exceeds it. But look at what the line search has to do.

# %%
culprit = classroom.bug('A')
copy_runs = classroom.train(culprit.module.trpo, **dict(three_seeds, seeds=[0, 1]), label='The copy')
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL', 'BacktrackIters')):
    classroom.curves({'this page': trpo_runs, 'the copy': copy_runs}, y=column, ax=ax)
plt.show()
shortened = [classroom.last(runs, 'BacktrackIters', rows=99) for runs in (trpo_runs, copy_runs)]
classroom.claim(classroom.last(copy_runs) < 0.5 * classroom.last(trpo_runs) and shortened[1] > shortened[0] + 2,
                f'the return ends at {classroom.last(trpo_runs):.0f} here and at {classroom.last(copy_runs):.0f} in '
                f'the copy; the line search shortens {shortened[0]:.1f} times here and {shortened[1]:.1f} times there',
                full=True)

# %% tags=["exercise", "torch"]
my_line = None                      # a quotation: 'new = self.metrics(batch)' for example
### BEGIN SOLUTION
my_line = 'self.ac_old.load_state_dict'
### END SOLUTION
classroom.hunt('Exercise 4', culprit, my_line)

# %% [raw] tags=["exercise", "tf1"]
# my_line = None                      # a quotation: 'new = self.metrics(batch)' for example
# ### BEGIN SOLUTION
# my_line = 'self.sess.run(self.set_old)'
# ### END SOLUTION
# classroom.hunt('Exercise 4', culprit, my_line)

# %% [markdown]
# **Exercise 5 (hunt).** A game of skill: `Aim` shows a number $x$, the answer should be $\sin 3x$, and every shot costs
# the square of the miss. A steady hand is half the game. Both agents learn where to aim, and both keep to the trust
# region. One of them gets no further than a certain score, however long it trains. What is the least that a shot costs
# on average if the hand trembles with $\sigma = e^{-0.5}$?

# %%
from walkthroughs.bugs.trpo import Aim

culprit = classroom.bug('B')
at_the_range = dict(env=Aim, epochs=classroom.steps(25, fast=3), steps_per_epoch=classroom.steps(1000, fast=200),
                    train_v_iters=10, gamma=0.0, delta=0.03, ac_kwargs=dict(hidden_sizes=(32, 32)))
aim_runs = classroom.train(trpo, **at_the_range)
shaky_runs = classroom.train(culprit.module.trpo, **at_the_range, label='The copy')
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL', 'Entropy')):
    classroom.curves({'this page': aim_runs, 'the copy': shaky_runs}, y=column, ax=ax)
plt.show()
scores = [classroom.last(runs) for runs in (aim_runs, shaky_runs)]
classroom.claim(scores[0] > -0.5 and scores[1] < -3,
                f'ten shots cost {-scores[0]:.2f} here and {-scores[1]:.2f} in the copy; ten times '
                f'sigma squared is {10 * np.exp(-1):.2f}', full=True)

# %% tags=["exercise", "torch"]
my_line = None
### BEGIN SOLUTION
my_line = 'self.pi_params = [p for p'
### END SOLUTION
classroom.hunt('Exercise 5', culprit, my_line)

# %% [raw] tags=["exercise", "tf1"]
# my_line = None
# ### BEGIN SOLUTION
# my_line = 'params, loss_pi, kl = self.ac.pi'
# ### END SOLUTION
# classroom.hunt('Exercise 5', culprit, my_line)

# %% [markdown]
# **Exercise 6 (hunt).** The same range, another copy. On CartPole it is as good as ours to the last digit. At the range
# it starts faster than ours and ends far worse, and one column of its table is impossible.

# %%
culprit = classroom.bug('C')
rash_runs = classroom.train(culprit.module.trpo, **at_the_range, label='The copy')
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL', 'Entropy')):
    classroom.curves({'this page': aim_runs, 'the copy': rash_runs}, y=column, ax=ax)
plt.show()
lowest = [min(run['KL'].min() for run in runs) for runs in (aim_runs, rash_runs)]
classroom.claim(lowest[0] >= 0 > lowest[1],
                f'the smallest KL of an update is {lowest[0]:.3f} here and {lowest[1]:.3f} in the copy')
classroom.claim(classroom.last(rash_runs) < classroom.last(aim_runs) - 1,
                f'ten shots cost {-classroom.last(aim_runs):.2f} here and {-classroom.last(rash_runs):.2f} in the copy',
                full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'z2 = ('
### END SOLUTION
classroom.hunt('Exercise 6', culprit, my_line)

# %% [markdown]
# **Exercise 7 (hunt).** With the default damping this copy is not to be told from the original. With little damping, as
# in experiment 2, many of its epochs pass without any step at all. Look at the third picture: which numbers occur?

# %%
culprit = classroom.bug('D')
stuck_runs = classroom.train(culprit.module.trpo, **dict(dangerous, seeds=[0, 1]), label='The copy')
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL')):
    classroom.curves({'this page': searched[:2], 'the copy': stuck_runs}, y=column, ax=ax)
tried = [np.concatenate([run['BacktrackIters'] for run in runs]) for runs in (searched[:2], stuck_runs)]
axes[2].hist(tried, bins=np.arange(12) - 0.5, label=['this page', 'the copy'])
axes[2].set(xlabel='BacktrackIters', title='how often')
axes[2].legend()
plt.show()
refused, between = [[int(found.sum()) for found in counts] for counts in (
    [count == 10 for count in tried], [(count > 0) & (count < 10) for count in tried])]
classroom.claim(refused[1] > refused[0] and between[1] == 0,
                f'{refused[1]} of {len(tried[1])} updates of the copy made no step, against {refused[0]} here; numbers '
                f'between 1 and 9 occur {between[1]} times there and {between[0]} times here', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'backtrack_coeff**i * step'
### END SOLUTION
classroom.hunt('Exercise 7', culprit, my_line)

# %% [markdown]
# ## What to take away
#
# - Parameters are a description; behaviour is what counts. KL measures it, and near the old policy it is a bowl whose
#   curvature is the Fisher matrix.
# - The best direction in a bowl is $-F^{-1} g$, and the rim says how far. There is no learning rate left.
# - A Hessian need not exist to be used: two derivatives and an inner product multiply by it, and a few such products
#   solve a system.
# - Models promise. The line search looks. A step that has been looked at cannot leave the trust region.
# - Three one-line checks for any such code: the KL of a policy from itself is 0; no KL is negative; where the line
#   search has work to do, numbers between 0 and the maximum occur in its column.
#
# **Read on.** J. Schulman, S. Levine, P. Moritz, M. Jordan, P. Abbeel, *Trust Region Policy Optimization*, ICML 2015,
# arXiv:1502.05477. S. Kakade, *A Natural Policy Gradient*, NIPS 2001. S. Kakade and J. Langford, *Approximately Optimal
# Approximate Reinforcement Learning*, ICML 2002, for equation (1). S. Amari, *Natural Gradient Works Efficiently in
# Learning*, Neural Computation 10, 1998. B. Pearlmutter, *Fast Exact Multiplication by the Hessian*, Neural Computation
# 6, 1994, for equation (11). L. Engstrom et al., *Implementation Matters in Deep RL: A Case Study on PPO and TRPO*,
# ICLR 2020.
