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
# # PPO: many steps on one batch, without losing the way
#
# This notebook reads `ppo_torch.py` from its first line to its last. The code cells with the file's sections are the
# file: what you run here is what `python ppo_torch.py` runs. Around them you will find the mathematics, a check of
# every equation by numbers, experiments, and exercises that tell you whether you have solved them.
#
# **Goals.** At the end you can
#
# - explain why vanilla policy gradient throws its data away after one step, and what it takes to use them more often;
# - write down the clipped objective, draw it for both signs of the advantage, and say what it does *not* guarantee;
# - compute advantages by GAE by hand, and say what happens at a termination, at a time limit and at the end of an
#   epoch;
# - tell from the numbers of a run whether its brakes work, and find a line that breaks them.
#
# **Prerequisites.** Python with numpy, derivatives, and the idea of the policy gradient: read the notebook on VPG
# first. Nothing else.
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

classroom.begin('ppo', 'torch')

# %% [markdown]
# ## The problem: experience is expensive, and VPG uses it once
#
# Vanilla policy gradient (VPG) plays an epoch of some thousand steps, computes one gradient, takes one step, and throws
# the experience away. The reason is in the formula: the gradient is an expectation over actions *of the current
# policy*. After one step the policy is another one, and the recorded actions are no longer its own.
#
# The way out is an old one. To estimate an expectation under one distribution by samples from another, weigh every
# sample by the ratio of the two probabilities. With $\pi_\text{old}$, the policy that played, and $A$, the advantage of
# an action over what the policy does on average, the **surrogate objective** of a new policy $\pi_\theta$ is
#
# $$
# L(\theta) = \mathbb{E}_{s, a \sim \pi_\text{old}}\big[ r_\theta(s, a)\, A(s, a) \big], \qquad
# r_\theta(s, a) = \frac{\pi_\theta(a \mid s)}{\pi_\text{old}(a \mid s)} \tag{1}
# $$
#
# It can be evaluated for any $\theta$ with the same recorded actions, and climbed for as many steps as we like. Where
# $\theta = \theta_\text{old}$ all ratios are 1, and since $\nabla r = r\, \nabla \log \pi_\theta$, its gradient there
# is the policy gradient that VPG follows:
#
# $$
# \nabla L(\theta)\big|_{\theta_\text{old}} = \mathbb{E}_{s, a \sim \pi_\text{old}}\big[
# \nabla \log \pi_\theta(a \mid s)\, A(s, a) \big]\Big|_{\theta_\text{old}} \tag{2}
# $$
#
# So the first step is VPG's own. The trouble begins with the later ones. The surrogate corrects for the new *actions*,
# but the states $s$ are still those that the old policy visited, and the advantages are noisy estimates about the old
# policy. The further we climb, the less the surrogate says about the return, and it does not warn us. **Proximal policy
# optimization** is the art of stopping in time: it changes the objective so that nothing is gained by going far, and it
# looks at the distance travelled before each step. That is the whole idea; the rest of the file is bookkeeping done
# well.

# %% [markdown]
# ### One epoch as a picture
#
# Green are networks, blue is data, orange are losses. Follow the arrows once before you read on: the environment and
# the policy fill the buffer; the buffer asks the value function what each observation is worth and makes advantages and
# returns; then the two losses pull on the two networks, many times each, while the data stand still.

# %%
classroom.diagram(
    boxes=dict(
        env=(0, 0, 'environment', 'env'),
        pi=(1, 0, 'policy\npi(act | obs)', 'net'),
        loss_pi=(2, 0, 'clipped loss\nloss_pi', 'loss'),
        buf=(0, 1, 'PPOBuffer\nobs, act, rew'),
        adv=(1, 1, 'GAE(lambda)\nadv, ret, logp_old'),
        loss_v=(2, 2, 'squared error\nloss_v', 'loss'),
        v=(1, 2, 'value function\nv(obs)', 'net'),
    ),
    arrows=[
        ('env', 'pi', 'obs', -0.25), ('pi', 'env', 'act', -0.25), ('env', 'buf', '4000 steps'), ('buf', 'adv'),
        ('v', 'adv', 'val'), ('adv', 'loss_pi', 'adv, logp_old'), ('adv', 'loss_v', 'ret'),
        ('pi', 'loss_pi', 'logp', -0.25), ('loss_pi', 'pi', 'up to 80', -0.25),
        ('v', 'loss_v', 'val', 0.25), ('loss_v', 'v', '80 steps', 0.25),
    ],
    title='One epoch of PPO',
)

# %% [markdown]
# ## The file's own summary
#
# Every file of this repository opens with the idea, the equations in the names that the code uses, the paper, and the
# neighbours. Read the five equations slowly. The next sections explain each of them, and it is worth seeing now how few
# there are: advantages (`adv`), the ratio, two losses, and one rule for stopping. In the code `pi_old` never exists as
# a network. All that is kept of the old policy is one number for every step, `logp_old`, the log-probability that it
# gave to the action it took; the ratio needs no more.

# %% Docstring tags=["section"]
"""Proximal Policy Optimization (PPO), the variant with a clipped objective.

The idea: collect an epoch of experience, then take many gradient steps on it, which uses it better than one step does.
That is safe only while the policy stays close to the one that collected, so the objective stops rewarding a change of
an action's probability by more than clip_ratio, and the steps end early once the policies have moved too far apart.

The equations, in the names of the code:
    adv[t]   = sum over l of (gamma lam)^l delta[t+l],   delta[t] = rew[t] + gamma v(obs[t+1]) - v(obs[t])
    ratio    = pi(act | obs) / pi_old(act | obs)         = exp(logp - logp_old)
    loss_pi  = -mean( min( ratio adv, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) adv ) )
    loss_v   = mean( (v(obs) - ret)^2 ),                 ret: the discounted rewards to go
    stop as soon as  mean( (ratio - 1) - log ratio ) > 1.5 target_kl,   an estimate of KL(pi_old, pi)

Papers: Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv:1707.06347; for adv, Schulman et al. 2016,
High-Dimensional Continuous Control Using Generalized Advantage Estimation, arXiv:1506.02438.

Its neighbours: vpg_torch.py takes one plain policy-gradient step where this file takes many clipped ones, trpo_torch.py
one step inside an explicit trust region, and ppo_tf1.py is this file in TensorFlow-1 style.

Run it:
    python ppo_torch.py --env CartPole-v1
    mpirun -np 4 python ppo_torch.py --env HalfCheetah-v5 --epochs 250 --seed 1
"""

# %% [markdown] tags=["notes"]
# - `ratio    = pi(act | obs) / pi_old(act | obs)`: computed as the exponential of a difference of logarithms. A density
#   can be astronomically small or large; its logarithm is an ordinary number, and so is the difference of two of them.
# - `loss_pi  = -mean( min(`: a minus sign, since optimizers descend and we want to climb.
# - `stop as soon as  mean( (ratio - 1) - log ratio ) > 1.5 target_kl`: the second brake. The clip takes away the
#   *reward* for going far; this rule looks at how far the policy has in fact gone.

# %% [markdown]
# ## Imports
#
# Nothing that you have to understand in order to understand PPO is imported: no network, no buffer, no loss, no loop.
# What comes from `common/` is plumbing. `make_env` checks that the environment is one that the algorithm can handle and
# clips actions on their way into it; `EpochLogger` writes the table of results; the `mpi` functions average numbers
# over processes, and with a single process, as in this notebook, they return what they are given. There is a notebook
# on MPI for the day when you want to know what they do with many.

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
# - `import mpi_statistics_scalar, num_procs, proc_id`: mean and standard deviation over all processes; how many there
#   are; which one this is.

# %% [markdown]
# ## Networks
#
# The policy needs three abilities: to *sample* an action, to give the *log-probability* of an action, and to tell its
# *entropy*, which is only logged. The file has two kinds, and no library of distributions, since each is a few lines.
#
# **Discrete actions.** The network gives one number for each action, its logit, and the probabilities are the softmax
# of the logits. To sample, most libraries build the cumulative distribution and throw a uniform random number at it.
# This file uses the Gumbel-max trick: add independent noise $g_i$ from the standard Gumbel distribution to every logit
# and take the largest,
#
# $$
# \arg\max_i\, (\ell_i + g_i) \;\sim\; \operatorname{softmax}(\ell) \tag{3}
# $$
#
# This looks like a curiosity and is a piece of design. All randomness of an epoch can be drawn in advance, as one
# array, and a sample is then a plain function of logits and noise. With noise 0 the same function returns the most
# probable action, so that testing needs no code of its own.
#
# **Continuous actions.** The network gives the means $\mu(s)$ of independent normal distributions. The standard
# deviations $\sigma$ do not depend on the state; their logarithms are parameters that are trained. The log-density of
# an action with $k$ components is
#
# $$
# \log \pi(a \mid s) = -\frac{1}{2} \sum_{i=1}^{k} \left(\frac{a_i - \mu_i(s)}{\sigma_i}\right)^2
# - \sum_{i=1}^{k} \left(\log \sigma_i + \frac{1}{2} \log 2\pi\right) \tag{4}
# $$
#
# One number for each action: the sum runs over the components, never over the batch. Watch the shapes in the comments.
# They are `(batch,)` wherever there is one number for each step, and one of the hunts at the end of this page would be
# over at once if every program kept to it.
#
# The value function is one more network, with one output. The two share nothing: the policy can move without disturbing
# the value function, and the other way round.

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
# - `layers += [`: hidden layers, each with its activation. The output layer comes last and has none, since logits,
#   means and values may be any number.
# - `rng.gumbel(size=(n, action_space.n))`: one Gumbel number for each action of each step, drawn for a whole epoch at
#   once.
# - `self.log_probs + noise`: equation (3) with log-probabilities instead of logits. They differ by one constant for
#   each state, which does not change which is the largest.
# - `self.mu, self.log_std = mu, log_std`: note the shapes. Means belong to observations, `(batch, act_dim)`; standard
#   deviations do not, `(act_dim,)`, and broadcasting brings the two together.
# - `squeeze: (batch,) minus (batch, 1) would broadcast silently`: the network's output has a last axis of length 1.
#   Left there, a later subtraction of returns `(batch,)` would give a `(batch, batch)` matrix, without any error.
# - `need not use rng, which draws the initial weights`: one generator draws weights and noise, so that the two versions
#   of this file, one for each framework, start from the same weights and take the same first actions.

# %% [markdown] tags=["notes", "torch"]
# - `return self.log_probs.gather(-1, act.long().unsqueeze(-1)).squeeze(-1)`: picks, in every row, the entry of the
#   action taken. Actions come from the buffer as floats, hence `long`.
# - `self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))`: a parameter, not the output of a layer. Exploration
#   starts with a standard deviation of $e^{-0.5} \approx 0.6$ in every state, and shrinks if that pays.
# - `z = (act - self.mu) * torch.exp(-self.log_std)`: how many standard deviations the action is away from the mean.
#   Multiplying by $e^{-\log\sigma}$ saves a division and cannot divide by zero.

# %% [markdown] tags=["notes", "tf1"]
# - `tf.gather(self.log_probs, tf.cast(act, tf.int32), batch_dims=1)`: picks, in every row, the entry of the action
#   taken. Actions come from the buffer as floats, hence the cast.
# - `self.log_std = tf.Variable(tf.fill((act_dim,), -0.5), name='log_std')`: a variable, not the output of a layer.
#   Exploration starts with a standard deviation of $e^{-0.5} \approx 0.6$ in every state, and shrinks if that pays.
# - `z = (act - self.mu) * tf.exp(-self.log_std)`: how many standard deviations the action is away from the mean.
#   Multiplying by $e^{-\log\sigma}$ saves a division and cannot divide by zero.
# - `class Linear(tf.Module):`: in graph style a layer is built once and called wherever its output is needed; the
#   variables belong to the object, so calling it twice does not make them twice.

# %% [markdown]
# Is (3) true? Draw 200,000 actions and count. Is (4) a density? Then its exponential integrates to one, here over a
# grid in two dimensions. `classroom.call` gives arrays to a function of the file as tensors and returns arrays.

# %% tags=["check"]
# Equations (3) and (4) in numbers: frequencies against softmax, and a density that integrates to one.
from gymnasium.spaces import Discrete

three_logits = np.array([1.0, 0.0, -2.0], dtype=np.float32)
gumbel_noise = draw_noise(np.random.default_rng(0), 200_000, Discrete(3))
samples = classroom.call(lambda logits, noise: Categorical(logits).sample(noise), three_logits, gumbel_noise)
softmax = np.exp(three_logits) / np.exp(three_logits).sum()
frequencies = np.bincount(samples) / len(samples)
classroom.agree('Frequencies of Gumbel-max samples and softmax', frequencies, softmax, tol=0.005)

grid = np.linspace(-7, 7, 281)
points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)                       # (281 * 281, 2)
log_density = classroom.call(lambda act, mu, log_std: Gaussian(mu, log_std).log_prob(act),
                             points, np.array([0.3, -1.0]), np.array([-0.5, 0.2]))
area = (grid[1] - grid[0])**2
classroom.agree('The integral of the Gaussian density and 1', np.exp(log_density).sum() * area, 1, tol=1e-4)
entropy = classroom.call(lambda mu, log_std: Gaussian(mu, log_std).entropy(), np.zeros(2), np.array([-0.5, 0.2]))
classroom.agree('Its entropy and -E[log density]', entropy, -(np.exp(log_density) * log_density).sum() * area, tol=1e-4)

# %% [markdown]
# ## Buffer
#
# What does an action deserve? The rewards after it, but those depend on a thousand later actions too, and on luck. The
# advantage asks for less noise: how much better did it go than the value function $V$ expected? After one step the
# answer is the **temporal-difference residual**
#
# $$
# \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t) \tag{5}
# $$
#
# ($r_t$ is the reward, not the ratio $r_\theta$ of (1)): the reward that came, plus what $V$ says about the place where
# we are now, minus what it said before. It has little
# noise, a single reward, and a large bias as long as $V$ is wrong. We could wait longer and sum all discounted rewards
# instead: no bias, much noise. **Generalized advantage estimation** is the dial between the two. It adds up the
# residuals of all later steps of the trajectory, each discounted by $\gamma\lambda$ once more:
#
# $$
# \hat A_t = \sum_{l=0}^{T-t-1} (\gamma\lambda)^l\, \delta_{t+l} \tag{6}
# $$
#
# With $\lambda = 0$ only $\delta_t$ remains. With $\lambda = 1$ the values in between cancel each other, and what is
# left is the discounted sum of rewards minus $V(s_t)$. A double loop over (6) would take time quadratic in the length
# of the trajectory, but the sum at $t$ contains the sum at $t + 1$, so one pass from the end to the beginning does it,
# and a second recursion of the same kind gives the **rewards to go**, which are the targets for $V$:
#
# $$
# \hat A_t = \delta_t + \gamma\lambda\, \hat A_{t+1}, \qquad \hat R_t = r_t + \gamma \hat R_{t+1} \tag{7}
# $$
#
# Now the question that costs more people more weeks than any other in this field: *what stands behind the last step?* A
# trajectory can end in three ways.
#
# - It **terminated**: the pole fell. Nothing follows, and the value of nothing is 0.
# - It was **truncated**: the time limit struck. The pole still stands. What would have followed is worth $V(s_T)$.
# - The **epoch** is over while the episode goes on. Again $V(s_T)$.
#
# So the buffer notes, with every end, the observation behind it and whether it was a termination. When the epoch is
# complete it is given the values of all steps and of all ends, which one pass of the network has computed for all of
# them together. Finally the advantages of the epoch are shifted and scaled to mean 0 and standard deviation 1: the step
# size then does not depend on the scale of the rewards.
#
# $$
# \hat A_t \leftarrow \frac{\hat A_t - \operatorname{mean}(\hat A)}{\operatorname{std}(\hat A) + 10^{-8}} \tag{8}
# $$

# %% Buffer tags=["section"]
class PPOBuffer:
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
# - `self.rew = np.zeros(size)`: float64, unlike observations. Sums over a thousand discounted rewards lose digits in
#   float32.
# - `self.paths.append((self.ptr, last_obs, terminated))`: `terminated` and nothing else. If the environment says
#   only *truncated*, this is False, and so it is at the end of an epoch.
# - `v and log_prob must give (batch,), not (batch, 1)`: the trap from the networks, stopped at the door.
# - `next_val = 0 if terminated else next_val`: the question of the last step, in one line.
# - `next_adv, next_ret = 0, next_val`: behind the end there are no residuals to collect, but there is a return: the
#   rewards to go continue with $V$ where the trajectory was only cut.
# - `delta = rew[t] + self.gamma * next_val - val[t]`: equation (5).
# - `adv[t] = next_adv = delta + self.gamma * self.lam * next_adv`: equation (7), left.
# - `ret[t] = next_ret = rew[t] + self.gamma * next_ret`: equation (7), right.
# - `next_val = val[t]`: we walk backwards; the value of this step is what follows the step before it.
# - `adv=(adv - mean) / (std + 1e-8)`: equation (8). Where all advantages are equal the standard deviation is 0, and
#   without the small number everything after this line would be NaN.

# %% tags=["check"]
# Equations (5) to (8) in numbers: the buffer's backward pass against the double sum of the definition.
def gae_by_definition(rew, val, last_val, gamma, lam):
    """The advantages of one trajectory by (5) and (6), term by term; last_val: what follows its last step."""
    values = np.append(val, last_val)
    deltas = rew + gamma * values[1:] - values[:-1]
    return np.array([sum((gamma * lam)**l * deltas[t + l] for l in range(len(rew) - t)) for t in range(len(rew))])


def returns_by_definition(rew, last_val, gamma):
    """The rewards to go of one trajectory, each as a sum of its own."""
    rew = np.append(rew, last_val)
    return np.array([sum(gamma**(k - t) * rew[k] for k in range(t, len(rew))) for t in range(len(rew) - 1)])


generator = np.random.default_rng(1)
example_rew, example_val = generator.normal(size=7), generator.normal(size=7)
example = PPOBuffer(Box(-1, 1, (1,)), Box(-1, 1, ()), size=7, gamma=0.9, lam=0.8)
for t in range(7):
    example.store(np.zeros(1), 0, example_rew[t])
    if t == 3:
        example.finish_path(np.zeros(1), terminated=True)               # the first trajectory: four steps, then the end
    if t == 6:
        example.finish_path(np.zeros(1), terminated=False)              # the second: three steps, cut
example_data = example.get(example_val, np.zeros(7), last_val=np.array([100.0, 2.0]))    # the 100 must have no effect

raw_adv = np.concatenate([gae_by_definition(example_rew[:4], example_val[:4], 0, 0.9, 0.8),
                          gae_by_definition(example_rew[4:], example_val[4:], 2, 0.9, 0.8)])
classroom.agree('Advantages by the buffer and by definition', example_data['adv'],
                (raw_adv - raw_adv.mean()) / (raw_adv.std() + 1e-8))
classroom.agree('Rewards to go by the buffer and by definition', example_data['ret'],
                np.concatenate([returns_by_definition(example_rew[:4], 0, 0.9),
                                returns_by_definition(example_rew[4:], 2, 0.9)]))

# %% [markdown]
# **Exercise 1 (implement).** There is another way to look at GAE. The *n-step advantage* trusts the first $n$ rewards
# and then $V$: $\hat A^{(n)}_t = r_t + \gamma r_{t+1} + \dots + \gamma^{n-1} r_{t+n-1} + \gamma^n V(s_{t+n}) - V(s_t)$.
# GAE is their average with geometric weights: $(1 - \lambda)\lambda^{n-1}$ for the $n$-step advantage, and the whole
# remaining weight $\lambda^{N-1}$ for the longest, with $N = T - t$ steps. Compute the advantages of one trajectory in
# this way. If you get the numbers of (6), you have proved a theorem by experiment.

# %% tags=["exercise"]
def my_advantages(rew, val, last_val, gamma, lam):
    """Advantages (steps,), as averages of n-step advantages. rew, val: (steps,); last_val: what follows the end."""
    values = np.append(val, last_val)                       # values[t] is V before step t, values[-1] behind the last
    ### BEGIN SOLUTION
    adv = np.zeros(len(rew))
    for t in range(len(rew)):
        longest = len(rew) - t
        for n in range(1, longest + 1):
            rewards = sum(gamma**k * rew[t + k] for k in range(n))
            weight = (1 - lam) * lam**(n - 1) if n < longest else lam**(n - 1)
            adv[t] += weight * (rewards + gamma**n * values[t + n] - values[t])
    return adv
    ### END SOLUTION


classroom.check('Exercise 1', lambda: my_advantages(example_rew[4:], example_val[4:], 2.0, 0.9, 0.8),
                gae_by_definition(example_rew[4:], example_val[4:], 2.0, 0.9, 0.8),
                hint='the weights of all n-step advantages of a step add up to 1; the longest has no factor (1 - lam)')

# %% [markdown]
# ## Losses
#
# Here is the heart of the file, in three short functions. The surrogate (1) rewards us for making good actions more
# probable, without end: double the probability of an action with $A > 0$, and its term doubles. PPO puts a ceiling on
# it,
#
# $$
# L^\text{clip}(\theta) = \mathbb{E}\Big[ \min\big( r_\theta A,\;
# \operatorname{clip}(r_\theta, 1 - \epsilon, 1 + \epsilon)\, A \big) \Big] \tag{9}
# $$
#
# with $\epsilon = 0.2$, `clip_ratio` in the code. Do not trust your intuition about a minimum of two products; go
# through the cases.
#
# - **$A > 0$, a good action.** Up to $r = 1 + \epsilon$ the two products agree, or the unclipped one is smaller. Beyond
#   that the clipped one is smaller and constant: no gradient. Make the action 20 % more probable, and that is all the
#   objective pays for.
# - **$A < 0$, a bad action.** The same on the other side: below $r = 1 - \epsilon$ nothing more is gained.
# - **And the wrong sides?** A good action that has become *less* probable, $A > 0$ and $r < 1 - \epsilon$: the
#   unclipped product is the smaller one, and the gradient is there in full. The minimum is a pessimist: it lets us
#   repair mistakes without limit, and profit only within one. A clip without the minimum would leave such an action
#   where it is.
#
# The other two functions are quickly told. The value function learns by least squares, and the constant that minimises
# a mean of squares is the mean: so $V$ learns the *expected* return.
#
# $$
# L_V = \frac{1}{n} \sum_{t} \big( V(s_t) - \hat R_t \big)^2, \qquad
# \frac{\partial L_V}{\partial V(s_t)} = \frac{2}{n} \big( V(s_t) - \hat R_t \big) \tag{10}
# $$
#
# The distance from the old policy is measured by the Kullback-Leibler divergence. Its definition is an expectation over
# actions of the old policy, and such actions are what we have:
#
# $$
# \mathrm{KL}(\pi_\text{old}, \pi_\theta) = \mathbb{E}_{a \sim \pi_\text{old}}\big[ -\log r_\theta \big]
# = \mathbb{E}_{a \sim \pi_\text{old}}\big[ (r_\theta - 1) - \log r_\theta \big] \tag{11}
# $$
#
# The second form is the one in the file. It has the same expectation, since $\mathbb{E}[r_\theta] = \sum_a
# \pi_\text{old} \cdot \pi_\theta / \pi_\text{old} = 1$; but every single term is at least 0, because $x - 1 \ge \log
# x$. An estimate that cannot be negative is the better gauge, and it is less noisy too, as we will see.

# %% Losses tags=["section"]
def compute_loss_pi(logp, logp_old, adv, clip_ratio):
    """loss_pi = -mean( min( ratio adv, clip(ratio, 1 - clip_ratio, 1 + clip_ratio) adv ) )"""
    ratio = torch.exp(logp - logp_old)
    return -torch.min(ratio * adv, torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv).mean()


def compute_loss_v(val, ret):
    """loss_v = mean( (v(obs) - ret)^2 )"""
    return ((val - ret)**2).mean()


def compute_kl(logp, logp_old):
    """KL(pi_old, pi) estimated from the actions of pi_old: mean( (ratio - 1) - log ratio ), which is never negative."""
    return (torch.expm1(logp - logp_old) - (logp - logp_old)).mean()

# %% [markdown] tags=["notes", "torch"]
# - `ratio = torch.exp(logp - logp_old)`: a function of `logp`, through which the gradient flows; `logp_old` is data.
# - `return -torch.min(ratio * adv, torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv).mean()`: equation (9). The
#   minimum is taken for each step, and the mean afterwards.
# - `return ((val - ret)**2).mean()`: two shapes `(batch,)`, or it is not what it looks like.
# - `torch.expm1(logp - logp_old) - (logp - logp_old)`: `expm1(x)` is $e^x - 1$, without the loss of digits that
#   subtracting 1 from a number close to 1 brings. Early in an update all ratios are close to 1.

# %% [markdown] tags=["notes", "tf1"]
# - `ratio = tf.exp(logp - logp_old)`: a function of `logp`, through which the gradient flows; `logp_old` is a
#   placeholder.
# - `tf.minimum(ratio * adv, tf.clip_by_value(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv)`: equation (9). The minimum
#   is taken for each step, and the mean afterwards.
# - `return tf.reduce_mean((val - ret)**2)`: two shapes `(batch,)`, or it is not what it looks like.
# - `tf.expm1(logp - logp_old) - (logp - logp_old)`: `expm1(x)` is $e^x - 1$, without the loss of digits that
#   subtracting 1 from a number close to 1 brings. Early in an update all ratios are close to 1.

# %% [markdown]
# First the claim that PPO begins as VPG: at the old policy, the gradient of the clipped loss, the policy gradient (2),
# and differences of the surrogate (1) itself must be the same numbers. The policy here is a table of logits, five
# states with three actions, in double precision.

# %% tags=["check"]
# Equations (1) and (2) in numbers: three ways to the gradient at the old policy.
table = generator.normal(size=(5, 3))                                                    # logits of five states
table_act, table_adv = np.array([0, 2, 1, 1, 0]), generator.normal(size=5)
log_prob_of = lambda logits, act: Categorical(logits).log_prob(act)
table_logp_old = classroom.call(log_prob_of, table, table_act)


def clipped_loss(logits, act, logp_old, adv):
    return compute_loss_pi(Categorical(logits).log_prob(act), logp_old, adv, 0.2)


def surrogate(logits):
    """Equation (1), in numpy."""
    return np.mean(np.exp(classroom.call(log_prob_of, logits, table_act) - table_logp_old) * table_adv)


by_ppo = -classroom.gradient(clipped_loss, table, table_act, table_logp_old, table_adv)
by_vpg = classroom.gradient(lambda logits, act, adv: Categorical(logits).log_prob(act) * adv,
                            table, table_act, table_adv) / len(table_adv)
nudges = 1e-5 * np.eye(table.size).reshape(-1, *table.shape)
by_differences = np.array([surrogate(table + nudge) - surrogate(table - nudge) for nudge in nudges]) / 2e-5
classroom.agree("PPO's gradient at ratio 1 and VPG's", by_ppo, by_vpg)
classroom.agree("PPO's gradient at ratio 1 and finite differences", by_ppo, by_differences.reshape(table.shape))

# %% [markdown]
# Now the clipped objective, drawn from the file's own function over the ratio. Where a curve is flat, the action has no
# gradient any more. Compare with the three cases above, and note that each curve is flat on one side only.

# %% tags=["check"]
# Equation (9) in numbers: the objective over the ratio, for both signs of the advantage.
import matplotlib.pyplot as plt


def objective_over(ratios, adv):
    """The clipped objective of one step, for each of many ratios."""
    return np.array(classroom.call(lambda logp: [-compute_loss_pi(logp[i], 0.0, adv, 0.2) for i in range(len(ratios))],
                                   np.log(ratios)))


ratios = np.linspace(0.5, 1.5, 41)
fig, axes = classroom.figure(columns=2)
for ax, adv_sign, where in zip(axes, (1, -1), ('good', 'bad')):
    drawn = objective_over(ratios, adv_sign)
    classroom.agree(f'The objective of a {where} action and its formula', drawn,
                    np.minimum(ratios * adv_sign, np.clip(ratios, 0.8, 1.2) * adv_sign))
    ax.plot(ratios, ratios * adv_sign, '--', color='gray', label='surrogate (1)')
    ax.plot(ratios, drawn, linewidth=2.5, label='clipped objective (9)')
    ax.axvspan(0.8, 1.2, color='C0', alpha=0.08)
    ax.plot(1, adv_sign, 'ko')
    ax.set(title=f'a {where} action, A = {adv_sign}', xlabel='ratio', ylabel='objective')
    ax.legend()
plt.show()

# %% tags=["check"]
# Equations (10) and (11) in numbers: the gradient of the value loss, and two estimates of a KL divergence.
v_guess, v_target = generator.normal(size=6), generator.normal(size=6)
classroom.agree('The gradient of the value loss and its formula', classroom.gradient(compute_loss_v, v_guess, v_target),
                2 * (v_guess - v_target) / 6)

old_probs, new_probs = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
exact_kl = (old_probs * np.log(old_probs / new_probs)).sum()
taken = generator.choice(3, size=100_000, p=old_probs)                                   # actions of the old policy
log_ratio = np.log(new_probs / old_probs)[taken]
simple, careful = -log_ratio, np.expm1(log_ratio) - log_ratio                            # the two sides of (11)
classroom.agree('compute_kl and the mean of the second form', careful.mean(),
                classroom.call(compute_kl, np.log(new_probs)[taken], np.log(old_probs)[taken]))
classroom.agree('compute_kl and the exact KL divergence', careful.mean(), exact_kl, tol=5e-4)
classroom.claim(careful.std() < simple.std() and careful.min() >= 0 > simple.min(),
                f'a term of the second form has a standard deviation of {careful.std():.3f} and is at least '
                f'{careful.min():.3f}; a term of the first has {simple.std():.3f} and can be {simple.min():.3f}')

# %% [markdown]
# **Exercise 2 (implement).** The minimum in (9) can be written without `min` and without `clip`: for a good action it
# is $\min(r, 1 + \epsilon) A$, for a bad one $\max(r, 1 - \epsilon) A$. Write the objective in numpy, for arrays of
# ratios and advantages, by the cases: which ratios count as they are, and which are replaced by the limit?

# %% tags=["exercise"]
def my_objective(ratio, adv, clip_ratio):
    """The clipped objective of every step, (batch,), by cases."""
    ### BEGIN SOLUTION
    limit = np.where(adv >= 0, 1 + clip_ratio, 1 - clip_ratio)
    beyond = np.where(adv >= 0, ratio > limit, ratio < limit)
    return np.where(beyond, limit, ratio) * adv
    ### END SOLUTION


cases_ratio, cases_adv = np.array([0.5, 0.9, 1.1, 1.5] * 2), np.array([1.0] * 4 + [-2.0] * 4)
classroom.check('Exercise 2', lambda: my_objective(cases_ratio, cases_adv, 0.2),
                np.concatenate([objective_over(cases_ratio[:4], 1.0), objective_over(cases_ratio[4:], -2.0)]),
                hint='only on one side of 1 is there a limit, and the sign of the advantage says on which')

# %% [markdown]
# ## Update
#
# The agent owns networks and optimizers and knows how to act, how to evaluate an epoch, and how to improve. The update
# goes over the same data many times: up to `train_pi_iters` steps on the policy, then `train_v_iters` steps on the
# value function. Each step uses the whole epoch as its batch. Other implementations shuffle it into minibatches: that
# makes more and noisier steps of the same data; the principle is the same.
#
# The clip alone does not keep the policies together. It removes the incentive for a step's *own* action to go further,
# yet all states share one network: a step that is good for others can carry a ratio far out, and nothing pulls it back.
# Adam adds its momentum. So before every step the update measures (11) on the whole epoch and goes on only while
#
# $$
# \widehat{\mathrm{KL}}(\pi_\text{old}, \pi_\theta) \;\le\; 1.5\, d \tag{12}
# $$
#
# with $d$ = `target_kl`, 0.01 unless told otherwise. The value function has no such rule, for it moves nobody's data:
# only the policy decides what the next epoch will look like.
#
# Note what `update` returns. Losses are those *before* the update, their changes are called `Delta`, and `KL`,
# `Entropy`, `ClipFrac` and `StopIter` describe the policy after it. These columns are your instruments; the last part
# of this page is about reading them.

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
            LossPi=compute_loss_pi(logp, logp_old, adv, self.args.clip_ratio),
            LossV=compute_loss_v(val, ret),
            Entropy=dist.entropy(),
            KL=compute_kl(logp, logp_old),
            ClipFrac=torch.abs(torch.exp(logp - logp_old) - 1) > self.args.clip_ratio,
        )

    def metrics(self, batch):
        with torch.no_grad():
            return {key: value.float().mean().item() for key, value in self.compute_metrics(*batch).items()}

    def step_pi(self, batch):
        """One step on the policy, unless that has moved too far already; returns whether the step was made."""
        obs, act, adv, _, logp_old = batch
        logp = self.ac.pi(obs).log_prob(act)
        self.pi_optimizer.zero_grad()
        compute_loss_pi(logp, logp_old, adv, self.args.clip_ratio).backward()
        # False for NaN, too, at which logger.store will end the run.
        close = mpi_avg_grads(self.ac.pi, compute_kl(logp.detach(), logp_old)) <= 1.5 * self.args.target_kl
        if close:
            self.pi_optimizer.step()
        return close

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

        stop_iter = 0
        while stop_iter < self.args.train_pi_iters and self.step_pi(batch):
            stop_iter += 1

        for _ in range(self.args.train_v_iters):
            self.step_v(batch)

        self.ac.eval()
        new = self.metrics(batch)
        return dict(LossPi=old['LossPi'], LossV=old['LossV'], DeltaLossPi=new.pop('LossPi') - old['LossPi'],
                    DeltaLossV=new.pop('LossV') - old['LossV'], **new, StopIter=stop_iter)

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, 'state_dict')}

    def set_state(self, state):
        for name, part in state.items():
            getattr(self, name).load_state_dict(part)

# %% [markdown] tags=["notes"]
# - `def act(self, obs, noise=0):`: the network that is trained is the network that acts; there is no copy that could
#   lag behind.
# - `def evaluate(self, obs, act, last_obs):`: the log-probabilities computed here, before the first step of the update,
#   are `logp_old`. No later moment would do: after the first step the policy is another one.
# - `stop_iter = 0`: counts the steps that were made. A run in which `StopIter` is always 80 never met the brake (12).
# - `for _ in range(self.args.train_v_iters):`: after the policy's steps, and with the old returns. The order does not
#   matter, since these networks share no parameter.
# - `DeltaLossV=new.pop('LossV') - old['LossV']`: negative if the update did its work.

# %% [markdown] tags=["notes", "torch"]
# - `sync_params(self.ac.eval())`: `eval` and `train` matter to layers such as dropout. Yours may have them.
# - `with torch.inference_mode():`: acting needs no gradients, and most of the time of a run is acting.
# - `compute_loss_pi(logp, logp_old, adv, self.args.clip_ratio).backward()`: the gradient comes before the decision,
#   since with many processes gradient and KL travel in one message.
# - `close = mpi_avg_grads(self.ac.pi, compute_kl(logp.detach(), logp_old)) <= 1.5 * self.args.target_kl`: rule (12), on
#   the average over all processes, so that all of them stop at the same step.
# - `if close:`: checked *before* the step, so that a step that goes too far is not made and regretted.

# %% [markdown] tags=["notes", "tf1"]
# - `self.sess = setup_tf_for_mpi(rng.integers(2**31))`: a new graph and a new session for every agent, so that a
#   training function can be called twice in one notebook.
# - `self.close = kl <= 1.5 * args.target_kl`: rule (12), on the average over all processes, so that all of them stop at
#   the same step.
# - `self.train_pi = tf.cond(self.close, lambda: tf.group(pi_optimizer.apply_gradients(grads)), tf.no_op)`: the step is
#   made only if the rule allows it, in the same run of the session that computes the gradient.
# - `return {key: np.mean(value) for key, value in self.sess.run(self.outputs['metrics'], batch).items()}`: arrays are
#   averaged here, outside of the graph.

# %% [markdown]
# ## Training
#
# The signature is the list of all knobs, each with its meaning; the command line is made from it. The body makes
# environment, agent, buffer and logger, and then repeats: play an epoch, evaluate it, update, write one row of the
# table.
#
# The loop is the same, byte for byte, in VPG, PPO and TRPO. All that makes an algorithm out of it is in the agent. Read
# the inner loop with one question in mind: which of the three ways to end does each line stand for? `ended` is about
# the *episode*: it decides about resetting the environment and about logging a return. `terminated` is about the
# *future*: it decides what the last step is worth. To use the first where the second is meant is the most common
# mistake in this field, and none of the tables and plots complains.

# %% Training tags=["section"]
@explain_arguments
def ppo(
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
    train_pi_iters=80,                  # gradient steps on the policy in an epoch, at most
    clip_ratio=0.2,                     # how far pi / pi_old may move from 1 before the objective stops rewarding it
    target_kl=0.01,                     # the steps on the policy end when its KL from the old one is 1.5 times this
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
    buf = PPOBuffer(env.observation_space, env.action_space, local_steps, gamma, lam)
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(vars(args), ppo, env)
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
# - `seed += 10000 * proc_id()`: every process plays differently. Initial weights are then made equal, so this is about
#   noise alone.
# - `noise = draw_noise(rng, local_steps, env.action_space)`: all randomness of the epoch's actions, in one call.
# - `buf.store(obs, act, rew)`: no value, no log-probability: those are computed for the whole epoch at once, which is
#   faster and gives the same numbers, since the policy does not change while it plays.
# - `ended = terminated or truncated or ep_len == max_ep_len`: the episode is over, for whatever reason.
# - `buf.finish_path(obs, terminated)`: the reason. `obs` is the observation *after* the last step: its value stands
#   behind the trajectory if that was only cut.
# - `if ended or t == local_steps - 1:`: the epoch's end cuts the trajectory, but does not reset the environment: the
#   episode goes on in the next epoch. Only complete episodes are logged.
# - `metrics = agent.update(buf.get(val, logp, last_val))`: the one line in which learning happens.
# - `saved = logger.load_state()`: a run that was stopped goes on from its checkpoint, to the same numbers. It plays no
#   part in this notebook.

# %% [markdown]
# ## Command line
#
# The last section turns the training function into a program: every argument of the signature becomes a flag, and the
# comment behind it the help text, so that signature and help cannot disagree. In a notebook there is no command line;
# the cell prints a hint, and you call the function yourself. Outside, in a terminal, you would write
# `python ppo_torch.py --env CartPole-v1 --clip_ratio 0.1`, and several values for a flag make a grid of runs.

# %% Command line tags=["section"]
if __name__ == '__main__':
    command_line(ppo)

# %% [markdown] tags=["notes"]
# - `if __name__ == '__main__':`: true when the file is run, and false when another one imports it, as the experiments
#   below do with the file of VPG.

# %% [markdown]
# ## Train
#
# Fifteen epochs of a thousand steps on CartPole, two seeds. A pole is to be balanced on a cart; every step that it
# stands pays 1, up to 500. `classroom.train` calls the function above, turns its tables into one line, and keeps the
# results where they vanish with this notebook. Its last argument is the learning rate, here the file's default.

# %%
two_seeds = dict(env='CartPole-v1', seeds=[0, 1], epochs=classroom.steps(15, fast=2),
                 steps_per_epoch=classroom.steps(1000, fast=200))
ppo_runs = {3e-4: classroom.train(ppo, **two_seeds, pi_lr=3e-4)}

fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL', 'StopIter')):
    classroom.curves({'PPO': ppo_runs[3e-4]}, y=column, ax=ax)
plt.show()
classroom.claim(classroom.last(ppo_runs[3e-4]) > 150,
                f'the return rises from {np.mean([run["AverageEpRet"][0] for run in ppo_runs[3e-4]]):.0f} to '
                f'{classroom.last(ppo_runs[3e-4]):.0f}', full=True)

# %% [markdown]
# The table has more to tell than the return. `KL` is the distance that each update travelled, and `StopIter` the number
# of steps that it took. With the small default learning rate the 80 steps are often used up before the brake (12)
# strikes; the clip alone has kept the policies close.

# %% [markdown]
# Let us watch an update. The function `collect` plays with an agent as the training loop does and returns what the
# buffer makes of it, together with the returns of the finished episodes. With a large learning rate the brake must
# strike early; and if (12) is what decides, then the KL after one step less than `StopIter` is still within the limit,
# and after the last one beyond it.

# %% tags=["check"]
# Equation (12) in numbers: the steps end where the KL divergence passes the limit, and not before.
def collect(agent, env, steps, play_seed):
    """An epoch of an agent's experience, as the buffer gives it, and the returns of its episodes."""
    buf = PPOBuffer(env.observation_space, env.action_space, steps, gamma=0.99, lam=0.97)
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
    return buf.get(*agent.evaluate(buf.obs, buf.act, buf.last_obs())), ep_rets


def first_update(**kwargs):
    """What the first update of a new agent reports."""
    agent, env = classroom.make_agent(ppo, 'CartPole-v1', pi_lr=3e-3, train_v_iters=1, **kwargs)
    return agent.update(collect(agent, env, 1000, play_seed=0)[0])

one_update = first_update()
last_step = int(one_update['StopIter'])
shorter = [float(first_update(target_kl=1e6, train_pi_iters=last_step - k)['KL']) for k in (1, 0)]
classroom.claim(shorter[0] <= 1.5 * 0.01 < shorter[1],
                f'the update ended after {last_step} of 80 steps. One step before the end '
                f'the KL was {shorter[0]:.4f}, at the end {shorter[1]:.4f}: the limit of 0.015 lies between them')

# %% [markdown]
# ## Experiment 1: what the surrogate promises, and what comes
#
# Now the question from the beginning. Take an agent that has learned to balance, let it play one epoch, and climb on
# these data alone, for 120 steps: once on the clipped objective, once on the plain surrogate (a clip ratio so large
# that it never acts). The early stop is off in both. Every 40 steps the policy plays fresh episodes, and we see what it
# is really worth. One climb proves little, so we train two agents, at ten times the default learning rate, and let each
# climb twice, on two different epochs.

# %%
ppo_runs[3e-3] = classroom.train(ppo, **two_seeds, pi_lr=3e-3, label='PPO at 0.003')


def climb(trained, play_seed, clip_ratio):
    """Rows of (gradient steps, KL, value of the objective, length of fresh episodes) of a climb on one epoch."""
    climber, playground = classroom.make_agent(ppo, 'CartPole-v1', clip_ratio=clip_ratio, pi_lr=3e-3, target_kl=1e6,
                                               train_pi_iters=40, train_v_iters=1)
    climber.set_state(trained.get_state())
    fresh_steps = classroom.steps(1000, fast=100)
    length = lambda: fresh_steps / max(1, len(collect(climber, playground, fresh_steps, play_seed=99)[1]))
    epoch_data, _ = collect(climber, playground, classroom.steps(1000, fast=200), play_seed)
    rows = [(0, 0.0, 0.0, length())]
    for i in range(3):
        report = climber.update(epoch_data)
        rows.append((40 * (i + 1), report['KL'], -(report['LossPi'] + report['DeltaLossPi']), length()))
    return rows


climbs = {what: np.array([climb(run.agent, play_seed, limit) for run in ppo_runs[3e-3] for play_seed in (1, 2)])
          for what, limit in (('clipped', 0.2), ('not clipped', 1e6))}                   # arrays (climbs, rows, 4)

fig, axes = classroom.figure(columns=3)
titles = 'KL from the old policy', 'what the objective promises', 'length of episodes in fresh play'
for ax, column, what in zip(axes, (1, 2, 3), titles):
    for i, (climb_label, rows) in enumerate(climbs.items()):
        ax.plot(rows[0, :, 0], rows[:, :, column].T, color=f'C{i}', linewidth=0.8, alpha=0.4)
        ax.plot(rows[0, :, 0], rows[:, :, column].mean(0), 'o-', color=f'C{i}', label=climb_label)
    ax.set(xlabel='gradient steps on one epoch', title=what)
axes[0].set_yscale('symlog', linthresh=0.01)
axes[0].legend()
plt.show()
near, far = climbs['clipped'][:, -1], climbs['not clipped'][:, -1]                       # (climbs, 4), at the end
start = climbs['clipped'][:, 0, 3].mean()
fallen = (far[:, 3] < near[:, 3]).sum()
classroom.claim(far[:, 2].mean() > near[:, 2].mean() and far[:, 3].mean() < near[:, 3].mean(),
                f'without the clip the objective promises {far[:, 2].mean():.3f} on average, with it '
                f'{near[:, 2].mean():.3f}. Episodes lasted {start:.0f} steps before; in the end {far[:, 3].mean():.0f} '
                f'without the clip and {near[:, 3].mean():.0f} with it. In {fallen} of {len(far)} climbs the policy '
                'without the clip is the worse one', full=True)

# %% [markdown]
# The middle picture is the trap: without the clip the objective looks *better*. It promises more and more about a
# policy that it knows less and less about, and only fresh play, on the right, shows the fall. No loss curve would have
# warned you. An unclipped climb can end well, by luck, on a task as simple as this one; look for it among the thin
# lines. Note also that the clipped policies go on moving a little, and that their KL is small but not zero: the clip is
# an incentive, not a fence.
#
# ## Experiment 2: what the brakes buy, and what they cannot
#
# VPG with one step per epoch must choose its learning rate well: too small, and an epoch of experience is spent on a
# tiny step; too large, and the step ruins the policy. PPO takes many small steps and stops when it has gone far enough,
# so how large each of them is should matter much less. We try three learning rates, each ten times the one before; PPO
# has been trained at the first two already.

# %%
from vpg_torch import vpg

vpg_runs = {}
for rate in (3e-4, 3e-3, 3e-2):
    if rate not in ppo_runs:
        ppo_runs[rate] = classroom.train(ppo, **two_seeds, pi_lr=rate, label=f'PPO at {rate:g}')
    vpg_runs[rate] = classroom.train(vpg, **two_seeds, pi_lr=rate, label=f'VPG at {rate:g}')

fig, axes = classroom.figure(columns=2)
for ax, algorithm, runs in zip(axes, ('VPG', 'PPO'), (vpg_runs, ppo_runs)):
    classroom.curves({f'pi_lr = {rate:g}': runs[rate] for rate in sorted(runs)}, ax=ax, title=algorithm)
    ax.set_ylim(0, 510)
plt.show()
finals = {algorithm: [classroom.last(runs[rate]) for rate in sorted(runs)]
          for algorithm, runs in (('VPG', vpg_runs), ('PPO', ppo_runs))}
classroom.claim(min(finals['PPO'][:2]) > max(finals['VPG'][:2]),
                f'at 0.0003 and 0.003 PPO ends at {finals["PPO"][0]:.0f} and {finals["PPO"][1]:.0f}, VPG at '
                f'{finals["VPG"][0]:.0f} and {finals["VPG"][1]:.0f}', full=True)
fast_steps, fast_kl = [classroom.last(ppo_runs[3e-2], column, rows=99) for column in ('StopIter', 'KL')]
classroom.claim(fast_steps < 5 and fast_kl > 0.05,
                f'at 0.03 PPO ends at {finals["PPO"][2]:.0f} and VPG at {finals["VPG"][2]:.0f}; a PPO update makes '
                f'{fast_steps:.1f} steps on average and ends at a KL of {fast_kl:.2f}, where 0.015 was allowed',
                full=True)

# %% [markdown]
# Over the first two rates PPO keeps its promise: it does well at both, while VPG is left far behind with steps that are
# too short. At the third rate both suffer, and the last line says why. Rule (12) looks *before* each step, and before
# the first step the KL is always 0. If a single step already goes ten times too far, the brake comes too late: it
# allows that step and forbids the next, and a PPO that makes one step per epoch is VPG. When `StopIter` in your own
# runs is 1 or 2, lower the learning rate.

# %% [markdown]
# ## What changed from VPG, and why
#
# Here is the whole difference between the two files, section by section, in the lines that they do not share.
# Everything else, networks, buffer, loop, is the same text.

# %%
classroom.changes('vpg', 'ppo')

# %% [markdown]
# | section | what changed | why |
# |---|---|---|
# | Losses | `compute_loss_pi` takes the old log-probabilities and clips the ratio | one epoch must bear many steps |
# | Update | `step_pi` decides whether the step is made, and says so | the clip is no fence; KL is measured |
# | Update | a loop of up to `train_pi_iters` steps | the point of it all: more learning from the same experience |
# | Update | `ClipFrac` and `StopIter` are logged | to see the brakes at work |
# | Training | three arguments more | `train_pi_iters`, `clip_ratio`, `target_kl` |
#
# **Exercise 3 (ablate).** We take the brakes off. In the first run, at a learning rate of 0.003, both are gone:
# `clip_ratio` and `target_kl` are so large that they never act, and all 80 steps are made. In the second run only the
# clip is gone, and the rule (12) stays. Decide *before* you run the next cell:
#
# - Without both: will the return at the end be `'higher'`, `'lower'` or about the `'same'` (within 15 %) as with them?
# - Without the clip alone: will an update make `'more'` or `'fewer'` steps on average than with it, before (12) ends
#   it?

# %% tags=["exercise"]
return_without_brakes = None        # 'higher', 'lower' or 'same'
steps_without_clip = None           # 'more' or 'fewer'
### BEGIN SOLUTION
return_without_brakes = 'lower'
steps_without_clip = 'fewer'
### END SOLUTION

# %%
no_brakes = classroom.train(ppo, **two_seeds, pi_lr=3e-3, clip_ratio=1e6, target_kl=1e6, label='Without brakes')
no_clip = classroom.train(ppo, **dict(two_seeds, seeds=[0]), pi_lr=3e-3, clip_ratio=1e6, label='Without the clip')
fig, axes = classroom.figure(columns=3)
for ax, column in zip(axes, ('AverageEpRet', 'KL', 'StopIter')):
    classroom.curves({'PPO': ppo_runs[3e-3], 'without brakes': no_brakes, 'without the clip': no_clip}, y=column, ax=ax)
axes[1].set_yscale('log')
plt.show()

change = classroom.last(no_brakes) / classroom.last(ppo_runs[3e-3])
outcome = 'same' if 0.85 <= change <= 1.15 else 'higher' if change > 1 else 'lower'
step_counts = [classroom.last(runs, 'StopIter', rows=99) for runs in (ppo_runs[3e-3], no_clip)]
print(f'Return without brakes: {change:.2f} of that with them. Steps per update: {step_counts[0]:.0f} with the clip, '
      f'{step_counts[1]:.0f} without')
classroom.check('Exercise 3a', return_without_brakes, outcome, full=True,
                hint='80 steps at ten times the usual rate, on advantages of an old policy: think of experiment 1')
classroom.check('Exercise 3b', steps_without_clip, 'fewer' if step_counts[1] < step_counts[0] else 'more', full=True,
                hint='what does the clip do to the gradient of an action that has gained 20 %?')

# %% [markdown] tags=["solution"]
# *Discussion.* Without both brakes single epochs can be spectacular, since 80 free steps are a lot of learning, and the
# next ones lose it all: the KL of an update is some hundred times what PPO allows. The rule (12) alone keeps the
# distance, but the unclipped gradient runs straight for the limit and uses it up in a few steps, in the direction of
# whichever actions have the largest ratios. The clip spends the same budget more evenly: an action that has had its
# 20 % leaves the rest to others.

# %% [markdown]
# ## Hunt the bug
#
# Four copies of `ppo_torch.py` follow. In each, one line has been changed; all four changes have stood in published
# implementations, and none of them raises an error. You see a symptom and the copy, as `culprit.module`, with all the
# functions and classes of the file: `culprit.module.compute_kl`, `culprit.module.PPOBuffer`, `culprit.module.ppo`.
# Compare them with the ones on this page, by calling both.
#
# Your answer is the line of the *good* file, as this page shows it, that you believe to be wrong in the copy: quote it,
# or as much of it as stands in no other line.
#
# **Exercise 4 (hunt).** The treadmill pays 1 for every step and never ends; after five steps the time limit stops the
# clock. With $\gamma = 0.9$ every observation is worth $1 + 0.9 + 0.81 + \dots = 10$. The page's `ppo` finds that out.
# The copy believes in far less, and a policy that is judged by it will prefer quick profits.

# %%
from walkthroughs.bugs.ppo import Treadmill

culprit = classroom.bug('A')
on_the_treadmill = dict(env=Treadmill, epochs=classroom.steps(25, fast=2), steps_per_epoch=50, gamma=0.9, vf_lr=1e-2,
                        train_pi_iters=1)
treadmill_runs = {'this page': classroom.train(ppo, **on_the_treadmill),
                  'the copy': classroom.train(culprit.module.ppo, **on_the_treadmill, label='The copy')}
ax = classroom.curves(treadmill_runs, y='AverageVVals', title='What the value function believes')
ax.axhline(10, color='gray', linestyle='--')
plt.show()
believed = [classroom.last(runs, 'AverageVVals', rows=1) for runs in treadmill_runs.values()]
classroom.claim(abs(believed[0] - 10) < 1.5 and believed[1] < 5,
                f'the value comes out as {believed[0]:.1f} here, and as {believed[1]:.1f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None                      # a quotation: 'def compute_kl(' for example
### BEGIN SOLUTION
my_line = 'buf.finish_path(obs, terminated)'
### END SOLUTION
classroom.hunt('Exercise 4', culprit, my_line)

# %% [markdown]
# **Exercise 5 (hunt).** A value function is good if it explains why some observations are followed by higher returns
# than others: if the variance that is left, $\operatorname{Var}(\hat R - V)$, is a small part of
# $\operatorname{Var}(\hat R)$. Both agents below learn from the same epoch, with many steps on the value function. Both
# losses fall. Yet one of the two value functions has understood nothing.

# %%
culprit = classroom.bug('B')
learn_values = dict(train_v_iters=classroom.steps(300, fast=30), train_pi_iters=1, vf_lr=3e-3)
fig, axes = classroom.figure(columns=2)
explained = []
for ax, trainer, source in zip(axes, (ppo, culprit.module.ppo), ('this page', 'the copy')):
    pupil, playground = classroom.make_agent(trainer, 'CartPole-v1', **learn_values)
    epoch_data, _ = collect(pupil, playground, 1000, play_seed=0)
    report = pupil.update(epoch_data)
    predicted = pupil.evaluate(epoch_data['obs'], epoch_data['act'], epoch_data['obs'][:1])[0]
    explained.append(1 - np.var(epoch_data['ret'] - predicted) / np.var(epoch_data['ret']))
    ax.plot(epoch_data['ret'], predicted, '.', markersize=3)
    ax.set(xlabel='return', ylabel='prediction', xlim=(0, 45), ylim=(0, 45),
           title=f'{source}: LossV changes by {report["DeltaLossV"]:.0f}')
plt.show()
classroom.claim(explained[0] > 0.3 and explained[1] < 0.1,
                f'explained variance: {explained[0]:.2f} here, {explained[1]:.2f} in the copy', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = '(val - ret)**2'
### END SOLUTION
classroom.hunt('Exercise 5', culprit, my_line)

# %% [markdown]
# **Exercise 6 (hunt).** A colleague complains that early stopping "does not do anything": whatever `target_kl` she
# sets, every update makes all 80 steps. She has looked at the line that compares with `target_kl` for an hour, and it
# is fine. Look at the table of her run.

# %%
culprit = classroom.bug('C')
short_runs = dict(env='CartPole-v1', epochs=classroom.steps(6, fast=2), steps_per_epoch=classroom.steps(500, fast=200),
                  pi_lr=3e-3)
stop_runs = {'this page': classroom.train(ppo, **short_runs),
             'the copy': classroom.train(culprit.module.ppo, **short_runs, label='The copy')}
fig, axes = classroom.figure(columns=2)
for ax, column in zip(axes, ('StopIter', 'KL')):
    classroom.curves(stop_runs, y=column, ax=ax)
plt.show()
stop_steps = [classroom.last(runs, 'StopIter', rows=99) for runs in stop_runs.values()]
classroom.claim(stop_steps[0] < 80 == stop_steps[1],
                f'steps per update: {stop_steps[0]:.0f} here, {stop_steps[1]:.0f} in the copy')

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'expm1(logp - logp_old)'
### END SOLUTION
classroom.hunt('Exercise 6', culprit, my_line)

# %% [markdown]
# **Exercise 7 (hunt).** A game of exactly ten rounds pays 1 for each round, and then it is over: no observation can be
# worth more than 10. With epochs of 13 steps the copy's values are sound. With epochs of 10 steps they grow and grow.
# It is the same code. What is special about 10?

# %%
class TenRounds(Treadmill):
    """Ten rounds, each worth 1; then the game has terminated."""
    def step(self, action):
        obs, rew, _, _, info = super().step(action)
        return obs, rew, self.step_count == 10, False, info


culprit = classroom.bug('D')
ten_runs = {}
for source, trainer in (('this page', ppo), ('the copy', culprit.module.ppo)):
    for length in (13, 10):
        ten_runs[f'{source}, {length} steps'] = classroom.train(
            trainer, TenRounds, epochs=classroom.steps(60, fast=2), steps_per_epoch=length, vf_lr=1e-2,
            train_pi_iters=1, label=f'{source}, epochs of {length} steps')
ax = classroom.curves(ten_runs, y='AverageVVals', x='Epoch', title='What the value function believes')
ax.axhline(10, color='gray', linestyle='--')
plt.show()
believed = [classroom.last(runs, 'AverageVVals', rows=5) for runs in ten_runs.values()]
classroom.claim(max(believed[:3]) < 10 < believed[3],
                f'with epochs of 10 steps, the values at the end are {believed[1]:.1f} here and {believed[3]:.1f} in '
                'the copy', full=True)

# %% tags=["exercise"]
my_line = None
### BEGIN SOLUTION
my_line = 'next_val = 0 if terminated else next_val'
### END SOLUTION
classroom.hunt('Exercise 7', culprit, my_line)

# %% [markdown]
# ## What to take away
#
# - The ratio lets old experience speak about a new policy; the further the two are apart, the less it has to say, and
#   the objective itself does not show it.
# - The clip takes away the profit of going far. It is no fence; the KL divergence is measured too, and ends the update.
# - An end is three things: termination (worth 0), time limit and end of epoch (worth $V$).
# - Shapes are `(batch,)`. A KL is never negative. A ratio is 1 before the first step. Three checks of one line each,
#   and with them you would have found most of the bugs on this page in an afternoon.
#
# **Read on.** J. Schulman, F. Wolski, P. Dhariwal, A. Radford, O. Klimov, *Proximal Policy Optimization Algorithms*,
# arXiv:1707.06347, 2017. J. Schulman, P. Moritz, S. Levine, M. Jordan, P. Abbeel, *High-Dimensional Continuous Control
# Using Generalized Advantage Estimation*, arXiv:1506.02438. L. Engstrom et al., *Implementation Matters in Deep RL: A
# Case Study on PPO and TRPO*, ICLR 2020, about how much the small print decides. The estimator (11) is from J.
# Schulman's note *Approximating KL Divergence*, 2020. The next notebook, on TRPO, replaces the two brakes by a fence.
