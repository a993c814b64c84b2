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
# # TD3: do not believe the best news
#
# This notebook reads `td3_torch.py` from its first line to its last. The cells with the file's sections are the file
# itself. TD3 (twin delayed DDPG) is DDPG with three changes, some forty lines of code in all; so this page is short
# where the two files agree, and spends its time on the question that the changes answer.
#
# **Goals.** At the end you can
#
# - explain why a policy that climbs a learned `q` makes it too high, and compute how fast such an error grows;
# - show the effect in a world where the truth is known, and measure what each of the three changes does about it;
# - say when the smaller of two estimates helps, and when it is no help at all;
# - write the target of TD3 from memory: noise, clip, clip, minimum, mask;
# - find the line in which one of the changes has quietly been lost.
#
# **Prerequisites.** The notebook on DDPG: replay buffer, target networks, test episodes and the deterministic policy
# gradient are explained there, and used here without much ado. A little probability: mean, variance, correlation.
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

classroom.begin('td3', 'torch')

# %% [markdown]
# ## The problem: good news that is too good
#
# DDPG's `q` is an estimate, and every estimate has errors, some too high and some too low. If we looked at it with an
# open mind, the two would balance. But the policy does not look with an open mind: it goes where `q` is highest. Among
# actions of equal worth it picks the one whose value is overestimated most. For estimates $\hat Q(a)$ that are right on
# average, the best one is not:
#
# $$
# \mathbb{E}\big[ \max_a \hat Q(a) \big] \;\ge\; \max_a\, \mathbb{E}\big[ \hat Q(a) \big] \tag{1}
# $$
#
# The winner of an auction has paid too much; the best of a hundred students in one exam has had luck, too. In
# statistics it is called the winner's curse.
#
# One such error would be harmless. But the policy's value is the *target* for the state before it, which so inherits
# the error, adds its own, and passes both on. If each backup adds the same bias $b$, the bias of `q` satisfies
#
# $$
# B = b + \gamma B \quad\Longrightarrow\quad B = \frac{b}{1 - \gamma} \tag{2}
# $$
#
# With $\gamma = 0.99$ a backup that is too high by one percent of the true value ends in a `q` that is too high by one
# hundred percent of it. And an inflated `q` is not inflated evenly: it has hills where there should be none, and the
# policy stands on top of them.
#
# TD3 (Fujimoto, van Hoof and Meger 2018) makes three changes against it:
#
# - **Clipped double-Q learning.** Two functions `q1` and `q2` are learned from the same data. The target is the
#   *smaller* of their values: good news is believed only if both bring it.
# - **Target policy smoothing.** The action in the target gets a little noise, so that a narrow peak of `q` counts for
#   what it is worth on average over its surroundings.
# - **Delayed policy updates.** The policy and the targets move only with every second update: `q` gets time to correct
#   an error before the policy has run after it.

# %% [markdown]
# ### The data flow as a picture
#
# It is the picture of DDPG with a twin. Both `q` functions learn from one and the same backup, for which the smaller
# target value has been taken. Only `q1` shows the policy the way: the policy needs one landscape to climb, and the two
# are alike. Environment and buffer, on the left, are unchanged.

# %%
import matplotlib.pyplot as plt

classroom.diagram(
    boxes=dict(
        env=(0, 0, 'environment', 'env'),
        pi=(1, 0, 'policy\npi(obs)', 'net'),
        loss_pi=(2, 0, 'minus q1(obs, pi(obs))\nloss_pi', 'loss'),
        buf=(0, 1, 'ReplayBuffer'),
        batch=(1, 1, 'batch: obs, act, rew,\nnext_obs, terminated'),
        q=(2, 1, 'the twins\nq1, q2 (obs, act)', 'net'),
        targ=(0, 2, 'target networks\npi_targ, q1_targ, q2_targ', 'net'),
        backup=(1, 2, 'backup: rew + gamma\nmin(q1_targ, q2_targ)'),
        loss_q=(2, 2, 'two squared errors\nloss_q', 'loss'),
    ),
    arrows=[
        ('env', 'pi', 'obs', -0.25), ('pi', 'env', 'act', -0.25), ('env', 'buf', 'every step'),
        ('buf', 'batch', 'random'), ('batch', 'q', 'obs, act'), ('batch', 'backup'), ('q', 'targ', 'every 2nd'),
        ('targ', 'backup', 'noisy act'), ('backup', 'loss_q'), ('q', 'loss_q', 'q1, q2', -0.3),
        ('loss_q', 'q', 'step', -0.3), ('q', 'loss_pi', 'q1'), ('loss_pi', 'pi', 'every 2nd'),
    ],
    title='TD3: the same with a twin, noise in the target, and a slower policy',
)
plt.show()

# %% [markdown]
# ## The file's own summary
#
# Here are the equations in the names of the code. Compare them with DDPG's: the first line is new; the second has a
# minimum; the third two terms; the fourth says `q1` and *every policy_delay updates*; the fifth says *with the policy*.
# Each of the three ideas is one line of mathematics, and almost one line of code. What makes the paper is not that they
# are complicated, but that it shows which trouble they cure.

# %% Docstring tags=["section"]
"""Twin Delayed DDPG (TD3).

The idea: DDPG's policy finds and exploits the errors of q, so q comes to overestimate. Three changes fix that.
Clipped double-Q learning: two q functions are learned alike, and the smaller value makes the target. Target policy
smoothing: noise on the target's action averages narrow peaks of q away. Delayed policy updates: the policy and the
target networks are updated less often than q.

The equations, in the names of the code:
    next_act = clip( pi_targ(next_obs) + clip(target_noise noise, -noise_clip, noise_clip), -1, 1 )
    backup   = rew + gamma (1 - terminated) min( q1_targ(next_obs, next_act), q2_targ(next_obs, next_act) )
    loss_q   = mean( (q1(obs, act) - backup)^2 ) + mean( (q2(obs, act) - backup)^2 )
    loss_pi  = -mean( q1(obs, pi(obs)) ),                by the parameters of pi alone, every policy_delay updates
    targets  : params_targ = polyak params_targ + (1 - polyak) params,  with the policy

Paper: Fujimoto, van Hoof and Meger 2018, Addressing Function Approximation Error in Actor-Critic Methods,
arXiv:1802.09477.

Its neighbours: ddpg_torch.py is without the three changes, sac_torch.py learns a stochastic policy with an entropy
bonus, updated as often as q, and td3_tf1.py is this file in TensorFlow-1 style.

Run it:
    python td3_torch.py --env Pendulum-v1 --epochs 5 --start_steps 1000
    mpirun -np 2 python td3_torch.py --env HalfCheetah-v5 --seed 1
"""

# %% [markdown] tags=["notes"]
# - `next_act = clip( pi_targ(next_obs) + clip(target_noise noise, -noise_clip, noise_clip), -1, 1 )`: two clips, for
#   two reasons. The inner one keeps the noise small, so that the target stays near the policy's action; the outer one
#   keeps the action possible.
# - `min( q1_targ(next_obs, next_act), q2_targ(next_obs, next_act) )`: the minimum is taken for each transition, at the
#   same noisy action.
# - `every policy_delay updates`: the policy's loss is DDPG's; it is only asked less often.

# %% [markdown]
# ## Imports
#
# The same as DDPG's. The environment stands behind the same gate, `make_env_and_test_env`, so that actions are in
# $[-1, 1]$ for networks, noise and buffer alike. For TD3 this matters twice, since there are now two noises:
# `act_noise` explores, and `target_noise` smooths the target. Both are standard deviations on that scale, whatever the
# environment's own bounds are. Do not confuse the two: the first changes what is *tried*, the second what is
# *believed*.

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
# - `from copy import deepcopy`: for the targets.
# - `from common.mpi_tools import num_procs, proc_id`: one process here, number 0.

# %% [markdown]
# First, (1) and (2) by numbers. For the first we need no neural network: ten actions that are all worth 0, estimates
# with normal errors, and the best of them. In the second an error of 0.05 is added in each of many backups.

# %% tags=["check"]
# Equations (1) and (2) in numbers: the best of noisy estimates, and a bias that travels through backups.
generator = np.random.default_rng(0)
estimates = generator.normal(0, 1, size=(100_000, 10))                          # ten actions, all worth 0
best, average_of_each = estimates.max(axis=1).mean(), np.abs(estimates.mean(axis=0)).max()
classroom.claim(average_of_each < 0.02 and best > 1,
                f'each estimate is right on average (within {average_of_each:.3f}); the best of ten says {best:.2f}')

bias, gamma, travelled = 0.05, 0.95, [0.0]
for _ in range(200):
    travelled.append(bias + gamma * travelled[-1])
classroom.agree('A bias of 0.05 after 200 backups and (2)', travelled[-1], bias / (1 - gamma), tol=1e-4)

# %% [markdown]
# ## Networks
#
# Policy and `q` are DDPG's. The one change is that there are two of the latter, with the same shape, the same data, the
# same targets and the same loss. What makes them different? Only the weights with which they begin. That is enough for
# errors that are not the same, and it is necessary. For two estimates with mean $\mu$, standard deviation $\sigma$, and
# correlation $\rho$ (jointly normal, for a formula),
#
# $$
# \mathbb{E}\big[ \min(\hat Q_1, \hat Q_2) \big] = \mu - \sigma \sqrt{\frac{1 - \rho}{\pi}} \tag{3}
# $$
#
# For independent errors the minimum is lower than the mean by $0.56\, \sigma$: a counterweight to (1). For equal
# errors, $\rho = 1$, it does nothing at all. The twins of TD3 are somewhere in between, since they see the same data;
# and an implementation that lets them begin alike has one `q` at the price of two.
#
# The counterweight may be too heavy, and then `q` is too *low*. That is the lesser evil. Where a value is too high, the
# policy goes, and the targets carry the error on; where it is too low, nobody goes, and the error stays where it is.

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
    """The policy and the action-value functions.

    One of your own (a CNN, say) is an nn.Module made from the same arguments, with three modules, which may share
    layers: pi(obs) -> actions in [-1, 1] (batch, act_dim);
    q1(obs, act) and q2(obs, act) -> values (batch,). It need not use rng, which draws the initial weights.
    """
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(256, 256), activation=nn.ReLU):
        super().__init__()
        obs_dim, act_dim = int(np.prod(observation_space.shape)), action_space.shape[0]
        self.pi = MLPActor(obs_dim, act_dim, hidden_sizes, activation, rng)
        self.q1 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)
        self.q2 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)

# %% [markdown] tags=["notes"]
# - `self.q1 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)`: draws its weights from `rng`.
# - `self.q2 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)`: draws the *next* numbers. The two begin
#   differently because the generator has gone on.
# - `q1(obs, act) and q2(obs, act) -> values (batch,).`: networks of your own may share layers between the twins; then
#   their errors are more alike, and (3) says what that costs.

# %% [markdown] tags=["notes", "torch"]
# - `self.net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng, nn.Tanh)`: actions in $[-1, 1]$, as in DDPG.

# %% [markdown] tags=["notes", "tf1"]
# - `self.net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng, tf.tanh)`: actions in $[-1, 1]$, as in DDPG.

# %% tags=["check"]
# Equation (3) in numbers: the smaller of two estimates, for errors that are independent, alike, and equal.
for rho in (0.0, 0.5, 0.9, 1.0):
    shared, own = generator.normal(size=(400_000, 1)), generator.normal(size=(400_000, 2))
    twins = 3 + 2 * (np.sqrt(rho) * shared + np.sqrt(1 - rho) * own)            # mean 3, standard deviation 2
    classroom.agree(f'The mean of the smaller one and (3), correlation {rho}', twins.min(axis=1).mean(),
                    3 - 2 * np.sqrt((1 - rho) / np.pi), tol=0.02)

# %% [markdown]
# ## Buffer
#
# Nothing changes here: one row for each transition, the oldest overwritten first, batches drawn uniformly, `terminated`
# stored and truncation not. If you have read DDPG's page, look only for the answer to one question: the action in a row
# is the one that was *done*, exploration noise included. The noise of target smoothing is not in the buffer. It belongs
# to the *next* action, which is never stored, but invented anew each time that a transition is drawn.

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
# - `def store(self, obs, act, rew, next_obs, terminated):`: no next action among the five: it would be that of an old
#   policy, and (6) below wants that of the target policy of today.
# - `rows = self.data[rng.integers(self.size, size=batch_size)]`: both twins learn from these same rows. Batches of
#   their own would make their errors less alike, for twice the work; the paper and this file do without.
# - `return {key: np.asarray(rows[key], dtype=np.float32) for key in rows.dtype.names}`: `rew` is `(batch,)`, as the
#   values are.

# %% [markdown]
# ## Losses
#
# **Smoothing.** The action in the target is the target policy's, with noise:
#
# $$
# \tilde a = \operatorname{clip}\big( \pi_\text{targ}(s') + \operatorname{clip}(\sigma \varepsilon, -c, c),\; -1,\; 1
# \big), \qquad \varepsilon \sim \mathcal{N}(0, I) \tag{4}
# $$
#
# with $\sigma$ = `target_noise` and $c$ = `noise_clip`. Over many draws of a transition, `q` so learns from the
# *average* of the target over a neighbourhood of the action. For a target that is a parabola, with second derivative
# $-2k$, and noise that meets no clip, that average is
#
# $$
# \mathbb{E}_\varepsilon\big[ Q(a + \sigma\varepsilon) \big] = Q(a) - k\, \sigma^2 \qquad\text{for}\quad
# Q(a) = Q_0 - k\, (a - a_0)^2 \tag{5}
# $$
#
# A broad hill, $k$ small, loses next to nothing. A spike, $k$ large, loses its tip. That is the point: similar actions
# should have similar values, and a spike in `q` is more likely an error than a discovery.
#
# **The minimum.** The value at $\tilde a$ is the smaller of the two, and the rest is DDPG's backup, with $d = 1$ for a
# termination and $d = 0$ otherwise:
#
# $$
# y = r + \gamma\, (1 - d)\, \min_{j = 1, 2} Q_{j,\text{targ}}(s', \tilde a) \tag{6}
# $$
#
# **The losses.** Both functions are fitted to the *same* $y$, and the policy climbs the first of them:
#
# $$
# L_Q = \frac{1}{n} \sum_i \big( Q_1(s_i, a_i) - y_i \big)^2 + \frac{1}{n} \sum_i \big( Q_2(s_i, a_i) - y_i \big)^2,
# \qquad L_\pi = -\frac{1}{n} \sum_i Q_1\big( s_i, \pi(s_i) \big) \tag{7}
# $$
#
# Since no weight belongs to both twins, one loss, one optimizer and one backward pass serve both, and the gradients are
# those of two separate regressions.

# %% Losses tags=["section"]
def smooth_action(act, noise, target_noise, noise_clip):
    """Target policy smoothing: next_act = clip(act + clip(target_noise noise, -noise_clip, noise_clip), -1, 1)"""
    return torch.clamp(act + torch.clamp(target_noise * noise, -noise_clip, noise_clip), -1, 1)


def compute_backup(rew, terminated, next_q, gamma):
    """backup = rew + gamma (1 - terminated) next_q: termination ends the future, truncation does not."""
    return rew + gamma * (1 - terminated) * next_q


def compute_loss_q(q1, q2, backup):
    """loss_q = mean( (q1(obs, act) - backup)^2 ) + mean( (q2(obs, act) - backup)^2 )"""
    assert len(q1.shape) == len(q2.shape) == len(backup.shape) == 1, '(batch, 1) would broadcast silently'
    return ((q1 - backup)**2).mean() + ((q2 - backup)**2).mean()


def compute_loss_pi(q_pi):
    """loss_pi = -mean( q1(obs, pi(obs)) )"""
    return -q_pi.mean()

# %% [markdown] tags=["notes"]
# - `def smooth_action(act, noise, target_noise, noise_clip):`: the noise is an argument. A function that draws for
#   itself could not be tested against a formula, and the two frameworks could not be compared.
# - `return rew + gamma * (1 - terminated) * next_q`: DDPG's line; the minimum has been taken before.
# - `'(batch, 1) would broadcast silently'`: three arrays, and each of them could bring the wrong shape.
# - `"""loss_pi = -mean( q1(obs, pi(obs)) )"""`: not the minimum. The minimum guards the *targets*, where errors pile
#   up. The policy only needs a direction.

# %% [markdown] tags=["notes", "torch"]
# - `return torch.clamp(act + torch.clamp(target_noise * noise, -noise_clip, noise_clip), -1, 1)`: equation (4).
# - `return ((q1 - backup)**2).mean() + ((q2 - backup)**2).mean()`: equation (7), left. The sum, not the mean, of the
#   two: each twin has the gradient that it would have alone.
# - `return -q_pi.mean()`: equation (7), right.

# %% [markdown] tags=["notes", "tf1"]
# - `return tf.clip_by_value(act + tf.clip_by_value(target_noise * noise, -noise_clip, noise_clip), -1, 1)`: equation
#   (4).
# - `return tf.reduce_mean((q1 - backup)**2) + tf.reduce_mean((q2 - backup)**2)`: equation (7), left. The sum, not the
#   mean, of the two: each twin has the gradient that it would have alone.
# - `return -tf.reduce_mean(q_pi)`: equation (7), right.

# %% [markdown]
# The cell also draws what smoothing does: a broad hill with a spike on its right, as an error of `q` might look, and
# the average over the noise of (4). Before, the spike is the highest point, and DDPG's policy, once near it, would stay
# there. In the average the hill is higher.

# %% tags=["check"]
# Equations (4) and (5) in numbers: smoothed actions, parabolas, and a hill with a spike.
many = generator.standard_normal(200_000)
by_hand = np.minimum(np.maximum(0.8 + np.minimum(np.maximum(0.2 * many, -0.5), 0.5), -1), 1)
classroom.agree('Smoothed actions and (4)', classroom.call(smooth_action, np.array([0.8]), many, 0.2, 0.5), by_hand)
for k in (1.0, 10.0):
    noisy_act = classroom.call(smooth_action, np.array([0.1]), many, 0.1, 9.0)
    classroom.agree(f'The average over the noise and (5), k = {k:g}', np.mean(-k * (noisy_act - 0.3)**2),
                    -k * (0.1 - 0.3)**2 - k * 0.1**2, tol=0.003 * k)


def hill_with_spike(act):
    return np.exp(-(act + 0.3)**2 / 0.3) + 1.3 * np.exp(-(act - 0.5)**2 / 0.002)


all_acts = np.linspace(-1, 1, 201)
smoothed = [np.mean(hill_with_spike(classroom.call(smooth_action, np.array([act]), many[:5000], 0.2, 0.5)))
            for act in all_acts[::4]]
ax = classroom.figure()[1]
ax.plot(all_acts, hill_with_spike(all_acts), label='q_targ')
ax.plot(all_acts[::4], smoothed, label='its average over (4)')
ax.set(xlabel='action', ylabel='value', title='What smoothing does to a spike')
ax.legend()
plt.show()
spike, hill = hill_with_spike(0.5), hill_with_spike(-0.3)
spike_after, hill_after = (np.interp(act, all_acts[::4], smoothed) for act in (0.5, -0.3))
classroom.claim(spike > hill and spike_after < hill_after,
                f'the spike falls from {spike:.2f} to {spike_after:.2f}, the top of the hill from {hill:.2f} to '
                f'{hill_after:.2f}')

# %% [markdown]
# **Exercise 1 (implement).** Write (6) in numpy: the backups of a batch from the target policy's actions `(batch, 1)`,
# standard normal noise `(batch, 1)`, and two functions `q1_targ(act)` and `q2_targ(act)` that map actions `(batch, 1)`
# to values `(batch,)`. Use $\sigma = 0.2$ and $c = 0.5$, and do not forget the mask.

# %% tags=["exercise"]
def my_backups(rew, terminated, next_act, noise, q1_targ, q2_targ, gamma):
    """The backups of TD3, (batch,)."""
    ### BEGIN SOLUTION
    next_act = np.clip(next_act + np.clip(0.2 * noise, -0.5, 0.5), -1, 1)
    next_q = np.minimum(q1_targ(next_act), q2_targ(next_act))
    return rew + gamma * (1 - terminated) * next_q
    ### END SOLUTION


n_some = 8
some_rew, some_noise, some_ends = generator.normal(size=n_some), generator.normal(size=(n_some, 1)), np.eye(n_some)[2]
some_act = np.linspace(-1, 1, n_some)[:, None]
one_value, other_value = lambda act: 5 * act[:, 0], lambda act: 1 - act[:, 0]**2
noised = classroom.call(smooth_action, some_act, some_noise, 0.2, 0.5)
smaller = np.minimum(one_value(noised), other_value(noised))
right_backups = classroom.call(compute_backup, some_rew, some_ends, smaller, 0.9)
classroom.check('Exercise 1',
                lambda: my_backups(some_rew, some_ends, some_act, some_noise, one_value, other_value, 0.9),
                right_backups, hint='smooth the action first, then ask both functions about the same noisy action')

# %% tags=["check"]
# Equations (6) and (7) in numbers: the backup case by case, and the gradients of the twins' loss.
by_cases = [rew if ends else rew + 0.9 * min(one, other) for rew, ends, one, other in
            zip(some_rew, some_ends, one_value(noised), other_value(noised))]
classroom.agree('Backups and (6), case by case', right_backups, by_cases)
some_q1, some_q2 = generator.normal(size=(2, n_some))
classroom.agree('The gradient of loss_q by q1 and that of a regression of its own',
                classroom.gradient(compute_loss_q, some_q1, some_q2, right_backups),
                2 / n_some * (some_q1 - right_backups))
classroom.agree('The gradient by q2', classroom.gradient(lambda q2, q1, y: compute_loss_q(q1, q2, y), some_q2, some_q1,
                                                         right_backups), 2 / n_some * (some_q2 - right_backups))
classroom.agree('loss_pi and (7)', classroom.call(compute_loss_pi, some_q1), -some_q1.mean())

# %% [markdown]
# ## Update
#
# An update makes one step of both `q` functions. The policy and the target networks move only when the number of
# updates is a multiple of $d$ = `policy_delay` (not the $d$ of (6)). How many steps has the policy made after $n$
# updates, and how much is left in the targets of what they were at the beginning?
#
# $$
# \text{steps of the policy} = \Big\lfloor \frac{n}{d} \Big\rfloor, \qquad
# \text{share of the beginning} = \rho^{\lfloor n / d \rfloor} \tag{8}
# $$
#
# where $\rho$ is `polyak` (not the correlation of (3)). So with the delay of 2 the targets are twice as slow as DDPG's
# at the same `polyak`, and this is intended: a policy should be improved on values that have settled. The paper's
# argument: policy and value spoil each other if the policy is poor because the value is wrong, and the value wrong
# because the policy is poor; so reduce the error first, and then move the policy.
#
# Whether the targets of `q` should wait, too, is a detail on which implementations differ; the authors' does, and so
# does this file. Acme's did not, and one of its developers found that slightly better on locomotion tasks
# (google-deepmind/acme, issue 195). Small print of this kind is why two TD3s are rarely the same.

# %% Update tags=["section"]
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    columns_with_min_and_max, columns_average_only = ['Q1Vals', 'Q2Vals'], ['LossPi', 'LossQ']
    noise_arrays = 1                                            # standard normal, (batch, act_dim) each, for an update

    def __init__(self, env, rng, args):
        self.args = args
        setup_pytorch_for_mpi(rng.integers(2**31))              # for layers with random numbers of their own: dropout
        self.ac = args.actor_critic(env.observation_space, env.action_space, rng, **args.ac_kwargs)
        sync_params(self.ac.eval())                             # in mode train() only while it is trained
        self.ac_targ = deepcopy(self.ac).requires_grad_(False)
        self.q = nn.ModuleList([self.ac.q1, self.ac.q2])
        self.pi_optimizer = Adam(self.ac.pi.parameters(), lr=args.pi_lr, fused=True)
        self.q_optimizer = Adam(self.q.parameters(), lr=args.q_lr, fused=True)
        self.updates = 0

    def act(self, obs, noise=0):
        """An action for one observation, by the network itself; without noise, the deterministic one."""
        with torch.inference_mode():
            act = self.ac.pi(torch.as_tensor(obs, dtype=torch.float32)[None])[0].numpy()
        return np.clip(act + self.args.act_noise * noise, -1, 1)

    def update(self, batch, noise):
        """One step of the q functions and, every policy_delay updates, of the policy and the target networks."""
        obs, act, rew, next_obs, terminated = [torch.as_tensor(batch[key]) for key in
                                               ('obs', 'act', 'rew', 'next_obs', 'terminated')]
        noise = torch.as_tensor(noise[0])
        self.updates += 1
        self.ac.train()                                         # dropout, say, is active in training, not in acting

        with torch.no_grad():
            next_act = smooth_action(self.ac_targ.pi(next_obs), noise, self.args.target_noise, self.args.noise_clip)
            next_q = torch.min(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))
            backup = compute_backup(rew, terminated, next_q, self.args.gamma)
        q1, q2 = self.ac.q1(obs, act), self.ac.q2(obs, act)
        loss_q = compute_loss_q(q1, q2, backup)
        self.q_optimizer.zero_grad()
        loss_q.backward()
        mpi_avg_grads(self.q)
        self.q_optimizer.step()
        metrics = dict(Q1Vals=q1, Q2Vals=q2, LossQ=loss_q)

        if self.updates % self.args.policy_delay == 0:
            loss_pi = compute_loss_pi(self.ac.q1(obs, self.ac.pi(obs)))
            self.pi_optimizer.zero_grad()
            # Only the policy's own gradient is computed: the parameters of q are frozen in this step.
            loss_pi.backward(inputs=[p for p in self.ac.pi.parameters() if p.requires_grad])
            mpi_avg_grads(self.ac.pi)
            self.pi_optimizer.step()

            with torch.no_grad():                               # target = polyak target + (1 - polyak) main
                for p_targ, p in zip(self.ac_targ.parameters(), self.ac.parameters()):
                    p_targ.lerp_(p, 1 - self.args.polyak)
                for buffer_targ, buffer in zip(self.ac_targ.buffers(), self.ac.buffers()):     # of BatchNorm, say
                    buffer_targ.copy_(buffer)
            metrics.update(LossPi=loss_pi)

        self.ac.eval()
        return {key: value.detach().numpy() for key, value in metrics.items()}

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, 'state_dict')}

    def set_state(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

# %% [markdown] tags=["notes"]
# - `noise_arrays = 1`: the training loop draws one array of noise `(batch, act_dim)` for every update: each transition
#   gets noise of its own.
# - `['Q1Vals', 'Q2Vals']`: the table shows both twins. They should be close to each other, and not equal.
# - `next_act = smooth_action(self.ac_targ.pi(next_obs), noise, self.args.target_noise, self.args.noise_clip)`: equation
#   (4), with the *target* policy.
# - `return np.clip(act + self.args.act_noise * noise, -1, 1)`: the other noise, for exploration. Same word, other
#   purpose.

# %% [markdown] tags=["notes", "torch"]
# - `self.q = nn.ModuleList([self.ac.q1, self.ac.q2])`: the twins as one module, for optimizer and averaging. Spinning
#   Up chains the two parameter lists with `itertools.chain`; such an iterator is empty after its first use, and a loop
#   over it that should freeze `q` freezes nothing (openai/spinningup, pull requests 251 and 330).
# - `next_q = torch.min(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))`: equation (6), for
#   each transition. `torch.min` with *two* arguments compares them element by element; with one it would return the
#   smallest number of the whole batch.
# - `if self.updates % self.args.policy_delay == 0:`: the delay. `updates` has been raised by one before, so with a
#   delay of 2 the policy moves at updates 2, 4, 6, ...
# - `loss_pi = compute_loss_pi(self.ac.q1(obs, self.ac.pi(obs)))`: equation (7), right.
# - `p_targ.lerp_(p, 1 - self.args.polyak)`: inside the `if`: the targets wait for the policy.
# - `metrics.update(LossPi=loss_pi)`: only every second update has one to report.

# %% [markdown] tags=["notes", "tf1"]
# - `self.q = Sequential(self.ac.q1, self.ac.q2)`: the twins as one module, only for the list of its variables; it is
#   never called.
# - `next_q = tf.minimum(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))`: equation (6), for
#   each transition.
# - `if self.updates % self.args.policy_delay > 0:`: the delay. `updates` has been raised by one before, so with a delay
#   of 2 the policy moves at updates 2, 4, 6, ...
# - `metrics, _ = self.sess.run([self.metrics_q, self.train_q], feed)`: only the step of the twins: the graph of the
#   policy is not touched.
# - `loss_pi = compute_loss_pi(self.ac.q1(obs, self.ac.pi(obs)))`: equation (7), right.
# - `with tf.control_dependencies([self.train_q]):`: the order of the steps: first the twins, then the policy, then the
#   targets.

# %% [markdown]
# ## Evaluation
#
# Unchanged: at the end of an epoch some episodes without noise, in an environment of their own. For this page the
# section has a second meaning. Test episodes are the *truth* about a policy, and `q` is an opinion about it; the
# difference of the two is what TD3 is about. The tables of all off-policy files show both, `TestEpRet` and the values;
# one is a sum over an episode and the other a discounted one, so compare the trend rather than the number. A run whose
# values rise while its returns do not is a run that dreams.

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
# - `test_env.step(agent.act(obs))`: neither of the two noises.
# - `logger.store(TestEpRet=ep_ret, TestEpLen=ep_len)`: not discounted: the return that a user of the policy gets.

# %% [markdown]
# ## Training
#
# The body is DDPG's, but for the name of the function; the signature has three arguments more. Their defaults are the
# paper's: noise of 0.2, clipped at 0.5, and a delay of 2. They are worth a moment's thought. For actions in $[-1, 1]$,
# 0.2 is large: two target actions of the same transition differ by a ninth of the whole range on average. For a task in
# which the action must be exact, it may be too much; experiment 2 shows what it is good for. The clip at two and a half
# standard deviations acts on one number in eighty: it is a guard against outliers, no more.
#
# The loop knows nothing of all this. It asks the agent how many arrays of noise it wants and passes them on.

# %% Training tags=["section"]
@explain_arguments
def td3(
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
    target_noise=0.2,                   # target policy smoothing: standard deviation of the noise
    noise_clip=0.5,                     # limit of that noise
    policy_delay=2,                     # delayed policy updates: updates of q to one of the policy and targets
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
    logger.save_config(vars(args), td3, env)
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
# - `polyak=0.995,`: by (8) the targets move only every second update, so that they follow half as fast as DDPG's do at
#   the same value.
# - `target_noise=0.2,`: $\sigma$ in (4). With 0 there is no smoothing.
# - `noise_clip=0.5,`: $c$ in (4).
# - `policy_delay=2,`: $d$ in (8). With 1 there is no delay.
# - `noise = rng.standard_normal((agent.noise_arrays, local_batch, act_dim), dtype=np.float32)`: for DDPG an empty
#   array, here one number for each transition and dimension.
# - `buf.store(obs, act, rew, next_obs, terminated)`: as in DDPG, `terminated` alone.

# %% [markdown]
# ## Command line
#
# As in the other files: every argument of the training function becomes a flag, and its comment the help text. In a
# terminal, `python td3_torch.py --env Pendulum-v1 --start_steps 1000 --policy_delay 1 2 4` makes three runs, one for
# each delay, and `tools/plot.py` draws them in one picture. In this notebook, where there is no command line, we call
# the function.

# %% Command line tags=["section"]
if __name__ == '__main__':
    command_line(td3)

# %% [markdown] tags=["notes"]
# - `if __name__ == '__main__':`: true when the file is run, and false when it is imported, as we import DDPG below. It
#   is true in a notebook, too, where the next line prints a hint instead of reading the command line.

# %% [markdown]
# To look into an agent: all parameters of its policy, or of its target networks, as one long array; and what its
# (first) `q` says about pairs of observation and action. The second function works for agents of DDPG, too.

# %% tags=["torch"]
def parameters_of(network):
    """All parameters of a network of an agent, in one array."""
    return np.concatenate([p.detach().numpy().ravel() for p in network.parameters()])


def q_of(agent, obs, act):
    """What an agent's (first) q says about pairs of observation and action: (batch,)."""
    q = agent.ac.q1 if hasattr(agent.ac, 'q1') else agent.ac.q
    with torch.no_grad():
        return q(torch.as_tensor(obs, dtype=torch.float32), torch.as_tensor(act, dtype=torch.float32)).numpy()

# %% [raw] tags=["tf1"]
# def parameters_of(network):
#     """All parameters of a network of the agent `watched`, in one array."""
#     return np.concatenate([array.ravel() for array in watched.sess.run(network.trainable_variables)])
#
#
# def q_of(agent, obs, act):
#     """What an agent's (first) q says about pairs of observation and action: (batch,)."""
#     values = agent.metrics['Q1Vals' if 'Q1Vals' in agent.metrics else 'QVals']
#     return agent.sess.run(values, {agent.inputs['obs']: obs, agent.inputs['act']: act})

# %% tags=["check"]
# Equation (8) in numbers: when the policy and the targets move, and how much of their beginning the targets keep.
small = dict(ac_kwargs=dict(hidden_sizes=(32, 32)))


def random_batch(n, seed):
    """n transitions of Pendulum's shapes, invented, and the noise of an update."""
    dice = np.random.default_rng(seed)
    batch = dict(obs=dice.normal(size=(n, 3)), act=dice.uniform(-1, 1, (n, 1)), rew=dice.normal(size=n),
                 next_obs=dice.normal(size=(n, 3)), terminated=np.zeros(n))
    batch = {key: array.astype(np.float32) for key, array in batch.items()}
    return batch, dice.standard_normal((1, n, 1), dtype=np.float32)


watched, _ = classroom.make_agent(td3, 'Pendulum-v1', polyak=0.9, policy_delay=3, **small)
policies, mains, targets = [], [], []
for i in range(11):
    if i > 0:
        watched.update(*random_batch(50, seed=i))
    policies.append(parameters_of(watched.ac.pi))
    mains.append(parameters_of(watched.ac))
    targets.append(parameters_of(watched.ac_targ))
pi_moved = [i for i in range(1, 11) if np.any(policies[i] != policies[i - 1])]
targets_moved = [i for i in range(1, 11) if np.any(targets[i] != targets[i - 1])]
classroom.agree('Steps of the policy in ten updates and (8)', len(pi_moved), 10 // 3, tol=0)
classroom.claim(pi_moved == targets_moved == [3, 6, 9], f'the policy moved at the updates {pi_moved}, the targets at '
                f'{targets_moved}')
share = 0.9**(10 // 3)                                          # of (8); the rest is of the main networks at each move
classroom.agree('The targets after ten updates and (8)', targets[10],
                share * targets[0] + 0.1 * (0.9**2 * mains[3] + 0.9 * mains[6] + mains[9]), tol=1e-5)

# %% [markdown]
# ## Train
#
# Pendulum again, with the small networks of DDPG's page. TD3 is asked to learn what DDPG learned there: swing up, and
# stand. Look at the returns, and at the values of the twins.

# %%
from ddpg_torch import ddpg

two_seeds = classroom.steps([0, 1], fast=[0])
recipe = dict(env='Pendulum-v1', epochs=classroom.steps(8, fast=2), steps_per_epoch=classroom.steps(400, fast=150),
              start_steps=classroom.steps(400, fast=100), update_after=classroom.steps(400, fast=100), gamma=0.95,
              polyak=0.98, q_lr=3e-3, pi_lr=1e-3, batch_size=64, act_noise=0.2, replay_size=10_000,
              num_test_episodes=classroom.steps(4, fast=1), **small)
td3_runs = classroom.train(td3, seeds=two_seeds, **recipe)
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageTestEpRet', 'AverageQ1Vals', 'AverageQ2Vals')):
    classroom.curves({'TD3': td3_runs}, y=column, ax=ax)
plt.show()
first_return = np.mean([run['AverageTestEpRet'][0] for run in td3_runs])
classroom.claim(classroom.last(td3_runs, rows=2) > first_return + 300,
                f'in {recipe["epochs"] * recipe["steps_per_epoch"]} steps the test return rises from '
                f'{first_return:.0f} to {classroom.last(td3_runs, rows=2):.0f}', full=True)

# %% [markdown]
# DDPG did about as well on its own page. The pendulum is deterministic, its rewards are exact, and DDPG's `q` had
# little to be wrong about. The three changes are an insurance, and to see what it is worth we need an accident.
#
# ## Experiment 1: the lottery
#
# Here is a world in which there is nothing to learn. The observation is random, the next one is random, whatever we do;
# the reward is a normal random number with mean 0, whatever we do. The discounted return of every policy has mean 0, so
# the true $Q$ is 0: for every observation, every action, every policy. Any other value is an error.
#
# Both algorithms play 2000 rounds. The plot on the left is $q(s, \pi(s))$, the value that the policy believes it has
# (minus `LossPi` in the table). On the right we take one observation, and walk through actions along a line through the
# policy's choice: what does `q` look like there, and where does the policy stand?

# %%
import gymnasium as gym


class Lottery(gym.Env):
    """Random observations, and random rewards with mean 0; actions do nothing."""
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Box(-1, 1, (2,))

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rounds = 0
        return self.look(), {}

    def step(self, action):
        self.rounds += 1
        return self.look(), self.np_random.normal(), False, self.rounds == 50, {}


tickets = dict(recipe, env=Lottery, steps_per_epoch=classroom.steps(250, fast=120), num_test_episodes=1,
               start_steps=classroom.steps(250, fast=100), update_after=classroom.steps(250, fast=100))
lottery_runs = {'DDPG': classroom.train(ddpg, seeds=two_seeds, **tickets),
                'TD3': classroom.train(td3, seeds=two_seeds, **tickets)}


def believed(runs, rows=3):
    """The value that the policy believes it has, q(obs, pi(obs)), at the end of the runs."""
    return -classroom.last(runs, 'LossPi', rows)


def draw_beliefs(groups, ax):
    """That value over time; the truth is 0."""
    for i, (label, runs) in enumerate(groups.items()):
        for run in runs:
            ax.plot(run['TotalEnvInteracts'], -run['LossPi'], color=f'C{i}', linewidth=0.8, alpha=0.4)
        ax.plot(runs[0]['TotalEnvInteracts'], -np.mean([run['LossPi'] for run in runs], axis=0), color=f'C{i}',
                linewidth=2, label=label)
    ax.axhline(0, color='gray', linestyle='--')
    ax.set(xlabel='environment steps', ylabel='q(obs, pi(obs))', title='What the policy believes; the truth is 0')
    ax.legend()


fig, axes = classroom.figure(columns=2)
draw_beliefs(lottery_runs, axes[0])
some_obs = np.array([0.3, -0.2], dtype=np.float32)
cut = np.linspace(-1, 1, 81, dtype=np.float32)
gaps = {}
dice = np.random.default_rng(0)
many_obs, random_act = dice.uniform(-1, 1, (2, 500, 2)).astype(np.float32)
for i, (label, runs) in enumerate(lottery_runs.items()):
    agent = runs[0].agent
    act = agent.act(some_obs)
    along = np.stack([cut, np.full(81, act[1])], axis=1)                        # the first dimension varies
    axes[1].plot(cut, q_of(agent, np.repeat(some_obs[None], 81, axis=0), along), color=f'C{i}', label=label)
    axes[1].plot(act[0], q_of(agent, some_obs[None], act[None])[0], 'o', color=f'C{i}')
    policy_act = np.array([agent.act(obs) for obs in many_obs])
    gaps[label] = [q_of(agent, many_obs, acts).mean() for acts in (policy_act, random_act)]
axes[1].axhline(0, color='gray', linestyle='--')
axes[1].set(xlabel='first dimension of the action', ylabel='q', title="A cut through q; dots: the policy's choice")
axes[1].legend()
plt.show()
values = {label: believed(runs) for label, runs in lottery_runs.items()}
classroom.claim(values['DDPG'] > 2 * values['TD3'] > 0, f'in the end DDPG believes in {values["DDPG"]:.2f}, TD3 in '
                f'{values["TD3"]:.2f}; the truth is 0', full=True)
classroom.claim(gaps['DDPG'][0] > gaps['DDPG'][1],
                f"DDPG's q says {gaps['DDPG'][0]:.2f} about its policy's actions and {gaps['DDPG'][1]:.2f} about "
                'random ones, which are just as good', full=True)

# %% [markdown]
# There is no skill in a lottery, and DDPG is sure that it has found some. Each of its steps is correct: `q` is fitted
# to the backups, the policy climbs `q`, the targets follow. The error comes from the *combination*. What the sample of
# rewards happened to favour becomes a slope; the policy follows it; its value, the best news in the neighbourhood,
# becomes the target of all states; and (2) multiplies it by up to 20. Look at the curve: has it come to rest when the
# run ends? TD3 makes the same errors and does not believe in them so readily. It does not believe in 0 either: the
# policy still climbs `q1`.
#
# ## Experiment 2: which of the three does it?
#
# TD3 has a knob for two of its changes: `target_noise=0` takes the smoothing away, `policy_delay=1` the delay. Without
# both, clipped double-Q learning alone is left.
#
# **Exercise 2 (ablate).** Put the four into the order of what they believe in the lottery at the end, the highest value
# first: `'DDPG'`, `'twins alone'`, `'no smoothing'` (twins and delay), `'TD3'`. Then run the cell below,
# which for comparison draws a fifth, `'no delay'` (twins and smoothing).

# %% tags=["exercise"]
my_order = None                     # ['...', '...', '...', '...'], the highest value first
### BEGIN SOLUTION
my_order = ['DDPG', 'twins alone', 'no smoothing', 'TD3']
### END SOLUTION

# %%
lottery_runs['twins alone'] = classroom.train(td3, seeds=two_seeds, label='Twins alone',
                                              **dict(tickets, target_noise=0.0, policy_delay=1))
lottery_runs['no smoothing'] = classroom.train(td3, seeds=two_seeds, label='No smoothing',
                                               **dict(tickets, target_noise=0.0))
lottery_runs['no delay'] = classroom.train(td3, seeds=two_seeds, label='No delay', **dict(tickets, policy_delay=1))
ax = classroom.figure()[1]
draw_beliefs(lottery_runs, ax)
plt.show()
values = {label: believed(runs) for label, runs in lottery_runs.items()}
classroom.say('Believed at the end: ' + ', '.join(f'{label} {value:.2f}' for label, value in values.items()))
classroom.claim(values['twins alone'] > max(values['no smoothing'], values['no delay']) > values['TD3'],
                'each of the two changes lowers the value that is believed, and both together lower it most', full=True)
true_order = ' > '.join(sorted(('DDPG', 'twins alone', 'no smoothing', 'TD3'), key=lambda label: -values[label]))
classroom.check('Exercise 2', my_order and ' > '.join(my_order), true_order, full=True,
                hint='each change is there to lower it, so count the changes')

# %% [markdown] tags=["solution"]
# *Discussion.* The twins alone lower the value, but the two have the same data: when the rewards near some action
# happened to be high, both have seen it, and (3) with a correlation near 1 has little to give. Smoothing attacks what
# they have in common, the bumps that the data themselves have. The delay lets `q` look at more data before the policy
# has moved to where the last ones were good. Remember that this world has no signal. In a real one, smoothing also
# blurs what is true, and a delayed policy is a later policy; the defaults are a compromise.

# %% [markdown]
# **Exercise 3 (implement).** How much alike are the errors of the twins? In the lottery every value is an error, so it
# is enough to correlate `Q1Vals` with `Q2Vals` over a batch. (Elsewhere you must subtract the truth first: two good
# estimates agree because both are right, and (3) is about what is left.) Compute the correlation of two arrays
# `(batch,)` from its definition: the mean of the product of the deviations, divided by both standard deviations. Then
# use it in (3): by how much does the minimum lower the value, if `sigma` is the standard deviation of an error?

# %% tags=["exercise"]
def my_correction(q1, q2, sigma):
    """(correlation, what the minimum takes away according to (3))"""
    ### BEGIN SOLUTION
    rho = np.mean((q1 - q1.mean()) * (q2 - q2.mean())) / (q1.std() * q2.std())
    return rho, sigma * np.sqrt((1 - rho) / np.pi)
    ### END SOLUTION


cousin_1, cousin_2 = generator.normal(size=(2, 300))
cousin_2 = 0.8 * cousin_1 + 0.6 * cousin_2
alike = np.corrcoef(cousin_1, cousin_2)[0, 1]
classroom.check('Exercise 3', lambda: my_correction(cousin_1, cousin_2, 2.0),
                (alike, 2 * np.sqrt((1 - alike) / np.pi)),
                hint='deviations are differences from the mean; rho is at most 1')

# %% [markdown]
# ## What changed from DDPG, and why
#
# Here is the whole difference between the two files, section by section.

# %%
classroom.changes('ddpg', 'td3')

# %% [markdown]
# | section | what changed | why |
# |---|---|---|
# | Networks | `q2` | a second opinion |
# | Losses | `smooth_action` | spikes of `q` should not make targets |
# | Losses | `compute_loss_q` has two terms | both twins learn |
# | Update | the smaller value makes the target | good news needs two witnesses |
# | Update | the policy and the targets move in an `if` | `q` first, then the policy |
# | Training | three arguments more | `target_noise`, `noise_clip`, `policy_delay` |
#
# ## Hunt the bug
#
# Four copies of `td3_torch.py`, with one line changed in each; each of these mistakes has stood, in this form or a
# similar one, in a public implementation. The copy is `culprit.module`, with all functions and classes of the file.
# Your answer is the line of the *good* file, as this page shows it, that you believe to be different in the copy: quote
# it, or as much of it as stands in no other line.
#
# **Exercise 4 (hunt).** The copy plays the lottery. It has twins, it takes their minimum, it smooths and delays. All
# lines of its update are as on this page. Yet it believes in more than TD3 does. (The table of `copy_runs[0]` has
# columns for both twins: `copy_runs[0]['AverageQ1Vals']`.)

# %%
culprit = classroom.bug('A')
copy_runs = classroom.train(culprit.module.td3, seeds=two_seeds, label='The copy', **tickets)
ax = classroom.figure()[1]
draw_beliefs({'DDPG': lottery_runs['DDPG'], 'TD3': lottery_runs['TD3'], 'the copy': copy_runs}, ax)
plt.show()
classroom.claim(believed(copy_runs) > 1.3 * values['TD3'],
                f'at the end the copy believes in {believed(copy_runs):.2f}, TD3 in {values["TD3"]:.2f}', full=True)

# %% tags=["exercise"]
my_line = None                      # a quotation: 'return -q_pi.mean()' for example
### BEGIN SOLUTION
my_line = 'self.q1 = MLPQFunction('
### END SOLUTION
classroom.hunt('Exercise 4', culprit, my_line)

# %% [markdown]
# **Exercise 5 (hunt).** In the waiting room every step pays 1, and nothing else happens; with $\gamma = 0.9$ every
# action is worth 10. The copy's first twin finds that it is worth about 1. On Pendulum, where no reward is positive,
# nobody would notice.

# %%
from walkthroughs.bugs.ddpg import Waiting

culprit = classroom.bug('B')
waiting = dict(env=Waiting, epochs=classroom.steps(10, fast=2), steps_per_epoch=100, start_steps=100, update_after=50,
               gamma=0.9, polyak=0.8, q_lr=1e-2, batch_size=32, replay_size=1000, num_test_episodes=1, **small)
waiting_runs = {'this page': classroom.train(td3, **waiting),
                'the copy': classroom.train(culprit.module.td3, label='The copy', **waiting)}
ax = classroom.curves(waiting_runs, y='AverageQ1Vals', title='What q1 believes')
ax.axhline(10, color='gray', linestyle='--')
plt.show()
worth = [classroom.last(runs, 'AverageQ1Vals', rows=1) for runs in waiting_runs.values()]
classroom.claim(abs(worth[0] - 10) < 2 and worth[1] < 3,
                f'q1 comes out as {worth[0]:.1f} here, and as {worth[1]:.1f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = dict(torch='((q2 - backup)**2).mean()', tf1='tf.reduce_mean((q2 - backup)**2)')[classroom.lesson.framework]
### END SOLUTION
classroom.hunt('Exercise 5', culprit, my_line)

# %% [markdown]
# **Exercise 6 (hunt).** A batch of 64 copies of *one* transition, and an agent that does not learn (its learning rates
# are 0). The loss of `q` then depends on nothing but the noise in the target. Averaged over 64 transitions, it should
# hardly vary from one update to the next. In the copy it varies as if there were only one.

# %%
culprit = classroom.bug('C')
one_batch = {key: np.repeat(array, 64, axis=0) for key, array in random_batch(1, seed=5)[0].items()}
spreads = []
ax = classroom.figure()[1]
for trainer, source in ((td3, 'this page'), (culprit.module.td3, 'the copy')):
    frozen, _ = classroom.make_agent(trainer, 'Pendulum-v1', q_lr=0.0, pi_lr=0.0, polyak=1.0, target_noise=0.5, **small)
    dice = np.random.default_rng(0)
    losses = [float(frozen.update(one_batch, dice.standard_normal((1, 64, 1), dtype=np.float32))['LossQ'])
              for _ in range(classroom.steps(300, fast=50))]
    spreads.append(np.std(losses))
    ax.hist(losses, bins=30, alpha=0.6, label=source)
ax.set(xlabel='loss of q', ylabel='updates', title='The same batch, again and again')
ax.legend()
plt.show()
classroom.claim(spreads[1] > 4 * spreads[0],
                f'from update to update the loss varies {spreads[1] / spreads[0]:.1f} times as much in the copy; the '
                'square root of 64 is 8')

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'next_act = smooth_action(self.ac_targ.pi(next_obs), noise'
### END SOLUTION
classroom.hunt('Exercise 6', culprit, my_line)

# %% [markdown]
# **Exercise 7 (hunt).** A colleague tries the delays 1, 2 and 5 and reports that "the delay makes no difference
# whatsoever". She is right about the copy that she uses: the three curves lie on top of each other, to the last digit.

# %%
culprit = classroom.bug('D')
brief = dict(tickets, epochs=classroom.steps(3, fast=2))
delayed = {source: {delay: classroom.train(trainer, label=f'{source}, delay {delay}', **dict(brief, policy_delay=delay))
                    for delay in (1, 2, 5)}
           for source, trainer in (('this page', td3), ('the copy', culprit.module.td3))}
fig, axes = classroom.figure(columns=2)
for ax, (source, by_delay) in zip(axes, delayed.items()):
    for delay, runs in by_delay.items():
        ax.plot(runs[0]['TotalEnvInteracts'], -runs[0]['LossPi'], label=f'delay {delay}', linewidth=6 / delay**0.7)
    ax.set(xlabel='environment steps', ylabel='q(obs, pi(obs))', title=source)
    ax.legend()
plt.show()
ends = {source: [believed(runs, rows=1) for runs in by_delay.values()] for source, by_delay in delayed.items()}
classroom.claim(np.ptp(ends['the copy']) == 0 < np.ptp(ends['this page']),
                'believed at the end with delays 1, 2 and 5: '
                + '; '.join(f'{source} {np.round(ends[source], 3).tolist()}' for source in ends))

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'if self.updates % self.args.policy_delay'
### END SOLUTION
classroom.hunt('Exercise 7', culprit, my_line)

# %% [markdown]
# ## What to take away
#
# - A maximum of estimates is too high (1), a policy that climbs is a maximum, and bootstrapping multiplies the error by
#   up to $1 / (1 - \gamma)$ (2).
# - The minimum of two helps as far as their errors differ (3); smoothing and delay work on what they have in common.
# - It is better to be too low than too high: the policy runs after the one, and away from the other.
# - To test a learner, give it a world in which there is nothing to learn. What it then believes is its own doing.
# - Three changes, some forty lines, and each can be lost by changing one word without any error message. A
#   lost twin shows in the table, if you look at both columns; a lost smoothing or delay only in a test made for it.
#
# **Read on.** S. Fujimoto, H. van Hoof, D. Meger, *Addressing Function Approximation Error in Actor-Critic Methods*,
# ICML 2018, arXiv:1802.09477; its section 4 measures the overestimation on real tasks. H. van Hasselt, *Double
# Q-Learning*, NeurIPS 2010, and H. van Hasselt, A. Guez, D. Silver, *Deep Reinforcement Learning with Double
# Q-Learning*, AAAI 2016, arXiv:1509.06461, for where the idea of two estimates comes from. S. Thrun and A. Schwartz,
# *Issues in Using Function Approximation for Reinforcement Learning*, 1993, who saw the problem first. The next
# notebook, on SAC, keeps the twins and replaces both noises by a policy that is random by nature.
