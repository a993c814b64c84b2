"""Soft Actor-Critic (SAC), with a fixed or a learned temperature.

The idea: be paid for randomness as well as for reward. The policy is a distribution whose entropy, times the
temperature alpha, is added to every reward, so it explores wherever q does not say which action is better. Its actions
are a function of observation and noise, so the gradient of q passes through them. The smaller of two q's counts.

The equations, in the names of the code:
    pi       : act = center + half_range tanh(u),  u = mu(obs) + std(obs) noise,  logp: the log-density of act
    backup   = rew + gamma (1 - terminated) ( min( q1_targ, q2_targ )(next_obs, next_act) - alpha next_logp )
    loss_q   = mean( (q1(obs, act) - backup)^2 ) + mean( (q2(obs, act) - backup)^2 )
    loss_pi  = mean( alpha logp_pi - min( q1, q2 )(obs, act_pi) ),   by the parameters of pi alone
    loss_alpha = -log_alpha mean( logp_pi + target_entropy ),        if alpha is 'auto'
    targets  : params_targ = polyak params_targ + (1 - polyak) params

Papers: Haarnoja et al. 2018, Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a
Stochastic Actor, arXiv:1801.01290, and, with a learned alpha, Soft Actor-Critic Algorithms and Applications,
arXiv:1812.05905.

Its neighbours: td3_torch.py has a deterministic policy, moved more seldom; ddpg_torch.py has a single q as well; and
sac_tf1.py is this file in TensorFlow-1 style.

Run it:
    python sac_torch.py --env Pendulum-v1 --epochs 5 --start_steps 1000
    mpirun -np 2 python sac_torch.py --env HalfCheetah-v5 --alpha auto
"""
# %% Imports
import time
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from common.env_tools import make_env
from common.fast_torch import Adam, Linear, ReLU, Sequential
from common.logx import EpochLogger
from common.mpi_pytorch import (get_state, init_weights, mpi_avg_grads, set_state, setup_pytorch_for_mpi, setup_saver,
                                sync_params, zero_grads)
from common.mpi_tools import num_procs, proc_id
from common.numpy_mlp import numpy_mlp
from common.record_torch import Recorder
from common.run_utils import command_line


# %% Networks
def mlp(sizes, activation, output_activation=nn.Identity):
    """A multilayer perceptron: (batch, sizes[0]) -> (batch, sizes[-1])."""
    layers = []
    for n_in, n_out in zip(sizes[:-2], sizes[1:-1]):
        layers += [Linear(n_in, n_out), activation()]
    return Sequential(*layers, Linear(*sizes[-2:]), output_activation())


def numpy_policy(params, activation, action_space):
    """act(obs, noise) for one observation, in numpy."""
    net = numpy_mlp(params, activation)
    center, half_range = (action_space.high + action_space.low) / 2, (action_space.high - action_space.low) / 2

    def act(obs, noise):
        mu, log_std = np.split(net(obs), 2)
        u = mu if noise is None else mu + np.exp(np.clip(log_std, -20, 2)) * noise
        return center + half_range * np.tanh(u)
    return act


class SquashedGaussianMLPActor(nn.Module):
    """A random policy: tanh of a normal variable, brought between the bounds of each dimension of the action."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, low, high):
        super().__init__()
        self.net = mlp([obs_dim, *hidden_sizes, 2 * act_dim], activation)
        self.register_buffer('center', torch.as_tensor((high + low) / 2))
        self.register_buffer('half_range', torch.as_tensor((high - low) / 2))
        self.log_scale = float(np.log(np.sqrt(2 * np.pi) * (high - low) / 2).sum())

    def forward(self, obs, noise):
        """Actions (batch, act_dim) and their log-probabilities (batch,); the noise is normal."""
        mu, log_std = self.net(obs.flatten(1)).chunk(2, dim=-1)
        log_std = torch.clamp(log_std, -20, 2)
        u = mu + torch.exp(log_std) * noise
        # The density of u over d act / d u = half_range (1 - tanh(u)^2), whose log has a form exact for large u too.
        logp = (-0.5 * noise**2 - log_std - 2 * (np.log(2) - u - F.softplus(-2 * u))).sum(-1) - self.log_scale
        return self.center + self.half_range * torch.tanh(u), logp


class MLPQFunction(nn.Module):
    """The value of an action in an observation, under the policy."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation):
        super().__init__()
        self.q = mlp([obs_dim + act_dim, *hidden_sizes, 1], activation)

    def forward(self, obs, act):
        return self.q(torch.cat([obs.flatten(1), act], dim=-1)).squeeze(-1)     # squeeze: (batch,), as rew is


class MLPActorCritic(nn.Module):
    """Policy and action values. Your own (a CNN, say) has pi(obs, noise), q1(obs, act), q2, act(obs, deterministic)."""
    def __init__(self, observation_space, action_space, hidden_sizes=(256, 256), activation=ReLU):
        super().__init__()
        obs_dim, act_dim = int(np.prod(observation_space.shape)), action_space.shape[0]
        low, high = action_space.low, action_space.high
        self.pi = SquashedGaussianMLPActor(obs_dim, act_dim, hidden_sizes, activation, low, high)
        self.q1 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation)
        self.q2 = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation)
        self.activation, self.action_space = activation, action_space

    def policy(self):
        """numpy_policy on the parameters' own memory."""
        return numpy_policy([p.detach().numpy() for p in self.pi.net.parameters()], self.activation, self.action_space)

    def act(self, obs, deterministic=False):
        """An action for one observation."""
        noise = None if deterministic else torch.randn(len(self.pi.center)).numpy()
        return self.policy()(np.asarray(obs, dtype=np.float32), noise)


# %% Buffer
class ReplayBuffer:
    """The latest experience of one process. A transition is one row of one array, so that one index draws a batch."""
    def __init__(self, obs_shape, act_dim, size):
        self.obs_shape, obs_dim = obs_shape, int(np.prod(obs_shape))
        self.cuts = np.cumsum([obs_dim, act_dim, 1, obs_dim])
        self.data = np.zeros((size, self.cuts[-1] + 1), dtype=np.float32)
        self.ptr, self.size, self.count = 0, 0, 0                       # the next row, rows filled, rows ever stored

    def store(self, obs, act, rew, next_obs, terminated):
        """Keep one transition, in place of the oldest when the buffer is full."""
        row, (obs_end, act_end, rew_end, next_obs_end) = self.data[self.ptr], self.cuts
        row[:obs_end], row[obs_end:act_end], row[act_end] = obs.reshape(-1), act, rew
        row[rew_end:next_obs_end], row[next_obs_end] = next_obs.reshape(-1), terminated
        self.ptr = (self.ptr + 1) % len(self.data)
        self.size, self.count = min(self.size + 1, len(self.data)), self.count + 1

    def sample_batch(self, rng, *shape):
        """Transitions drawn with replacement: (batch_size), or (batches, batch_size) for many batches at once."""
        rows = self.data[rng.integers(self.size, size=shape)]
        obs, act, rew, next_obs, terminated = np.split(rows, self.cuts, axis=-1)
        obs, next_obs = obs.reshape(*shape, *self.obs_shape), next_obs.reshape(*shape, *self.obs_shape)
        return dict(obs=obs, act=act, rew=rew[..., 0], next_obs=next_obs, terminated=terminated[..., 0])


# %% Losses
def compute_backup(rew, terminated, next_q, next_logp, alpha, gamma):
    """backup = rew + gamma (1 - terminated) (next_q - alpha next_logp): truncation does not end the future."""
    return rew + gamma * (1 - terminated) * (next_q - alpha * next_logp)


def compute_loss_q(q1, q2, backup):
    """loss_q = mean( (q1(obs, act) - backup)^2 ) + mean( (q2(obs, act) - backup)^2 )"""
    return nn.functional.mse_loss(q1, backup) + nn.functional.mse_loss(q2, backup)


def compute_loss_pi(q_pi, logp_pi, alpha):
    """loss_pi = mean( alpha logp_pi - min( q1, q2 )(obs, act_pi) )"""
    return (alpha * logp_pi - q_pi).mean()


def compute_loss_alpha(log_alpha, logp_pi, target_entropy):
    """loss_alpha = -log_alpha mean( logp_pi + target_entropy ): alpha grows while the entropy is below its target"""
    return -log_alpha * (logp_pi + target_entropy).mean()


# %% Update
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    columns_with_spread, columns = ['Q1Vals', 'Q2Vals', 'LogPi'], ['LossPi', 'LossQ']
    noises = 2                                                  # noise arrays, (batch, act_dim), for an update

    def __init__(self, env, rng, args):
        setup_pytorch_for_mpi()
        torch.manual_seed(rng.integers(2**31))                  # for networks of your own: ours draw from rng alone
        self.ac = args.actor_critic(env.observation_space, env.action_space, **args.ac_kwargs)
        self.args, self.policy = args, None
        if isinstance(self.ac, MLPActorCritic):
            init_weights(self.ac, rng)
            self.policy = self.ac.policy()
        sync_params(self.ac)
        self.ac_targ = deepcopy(self.ac).requires_grad_(False)
        self.pi, self.q = self.ac.pi, nn.ModuleList([self.ac.q1, self.ac.q2])
        self.pi_optimizer = Adam(self.pi.parameters(), lr=args.lr)
        self.q_optimizer = Adam(self.q.parameters(), lr=args.lr)
        self.pi_params = [p for p in self.pi.parameters() if p.requires_grad]
        self.params, self.params_targ = (list(ac.parameters()) for ac in (self.ac, self.ac_targ))
        self.low, self.high = env.action_space.low, env.action_space.high
        self.auto = args.alpha == 'auto'
        self.columns = ['Alpha', *self.columns] if self.auto else self.columns
        log_alpha = np.log(np.float32(1 if self.auto else args.alpha + 1e-30))      # alpha may be 0, its log may not
        self.temperature = nn.ParameterList([torch.tensor(log_alpha)])
        self.alpha_optimizer = Adam(self.temperature.parameters(), lr=args.lr)
        self.target_entropy = np.sum(np.log((self.high - self.low) / 2) - 1)    # -act_dim, in half-ranges of the action
        self.updates = 0
        # Played back from a recording after a while: the same bits in less time. To debug it, leave this line out.
        self.update_once = Recorder(self.update_once, type(self.ac) is MLPActorCritic and num_procs() == 1)

    def act(self, obs, noise=None):
        """An action for one observation; without noise, the deterministic one."""
        return self.policy(obs, noise) if self.policy else self.ac.act(torch.as_tensor(obs), noise is None)

    def update(self, batches, noise):
        """One update on each batch, in turn; returns a list of what is logged about them."""
        arrays = [torch.as_tensor(array) for array in (*batches.values(), noise)]
        self.updates += len(noise)
        return [self.update_once(*batch) for batch in zip(*arrays)]

    def update_once(self, obs, act, rew, next_obs, terminated, noise):
        """One step of the q's, one of the policy, and the targets after them; returns what is logged about it."""
        noise, next_noise = noise

        with torch.no_grad():
            alpha = torch.exp(self.temperature[0])
            next_act, next_logp = self.ac.pi(next_obs, next_noise)
            next_q = torch.min(self.ac_targ.q1(next_obs, next_act), self.ac_targ.q2(next_obs, next_act))
            backup = compute_backup(rew, terminated, next_q, next_logp, alpha, self.args.gamma)
        q1, q2 = self.ac.q1(obs, act), self.ac.q2(obs, act)
        loss_q = compute_loss_q(q1, q2, backup)
        zero_grads(self.q)                                      # optimizer.zero_grad() would give up the flat buffer
        loss_q.backward()
        mpi_avg_grads(self.q)
        self.q_optimizer.step()
        metrics = dict(Q1Vals=q1.detach().numpy(), Q2Vals=q2.detach().numpy(), LossQ=loss_q.item())

        act_pi, logp_pi = self.ac.pi(obs, noise)
        q_pi = torch.min(self.ac.q1(obs, act_pi), self.ac.q2(obs, act_pi))
        loss_pi = compute_loss_pi(q_pi, logp_pi, alpha)
        zero_grads(self.pi)
        loss_pi.backward(inputs=self.pi_params)                 # q is frozen: no gradient for it is even computed
        mpi_avg_grads(self.pi)
        self.pi_optimizer.step()

        if self.auto:
            zero_grads(self.temperature)
            compute_loss_alpha(self.temperature[0], logp_pi.detach(), self.target_entropy).backward()
            mpi_avg_grads(self.temperature)
            self.alpha_optimizer.step()

        with torch.no_grad():
            torch._foreach_lerp_(self.params_targ, self.params, 1 - self.args.polyak)
        return dict(metrics, LossPi=loss_pi.item(), LogPi=logp_pi.detach().numpy(),
                    **(dict(Alpha=alpha.item()) if self.auto else {}))


# %% Evaluation
def test_agent(agent, test_env, logger, num_test_episodes, max_ep_len):
    """Test episodes with the deterministic policy, shared out among the processes."""
    for _ in range(proc_id(), num_test_episodes, num_procs()):
        (obs, _), ep_ret, ep_len, ended = test_env.reset(), 0, 0, False
        while not ended:
            obs, rew, terminated, truncated, _ = test_env.step(agent.act(obs))
            ep_ret, ep_len = ep_ret + rew, ep_len + 1
            ended = terminated or truncated or ep_len == max_ep_len
        logger.store(TestEpRet=ep_ret, TestEpLen=ep_len)


# %% Training
def sac(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=MLPActorCritic,        # the networks, made from (observation_space, action_space, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; every process adds 10000 times its number
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=100,                         # epochs; each ends with test episodes
    replay_size=int(1e6),               # transitions kept for replay, of all processes together
    gamma=0.99,                         # discount of the future, per step
    polyak=0.995,                       # how much of the target networks stays at each update
    lr=1e-3,                            # learning rate of the policy, of q and of a learned alpha
    batch_size=100,                     # transitions in an update, shared out among the processes
    start_steps=10000,                  # steps with uniformly random actions before the policy acts
    update_after=1000,                  # steps before the first update
    update_every=50,                    # steps from one group of updates to the next; there is one update for each step
    alpha=0.2,                          # temperature: what a nat of entropy is worth in reward; or 'auto', learned
    num_test_episodes=10,               # test episodes at the end of an epoch
    max_ep_len=1000,                    # longest episode; a longer one is truncated
    logger_kwargs=dict(),               # arguments of EpochLogger: where the results go
    save_freq=1,                        # epochs from one saved model and checkpoint to the next
):
    """Train; the arguments are the command line's flags."""
    args = SimpleNamespace(**locals())
    seed += 10000 * proc_id()
    rng = np.random.default_rng(seed)
    env, test_env = (make_env(env_fn, discrete_actions=False) for _ in range(2))
    env.action_space.seed(seed)
    agent = Agent(env, rng, args)
    local_steps, local_batch = steps_per_epoch // num_procs(), -(-batch_size // num_procs())
    act_dim = env.action_space.shape[0]
    buf = ReplayBuffer(env.observation_space.shape, act_dim, replay_size // num_procs())
    max_batches = max(2**24 // (local_batch * buf.data.shape[1]), 1)        # at once: 64 MB of rows
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(vars(args))
    setup_saver(agent, logger)

    test_env.reset(seed=seed + 5000)
    (obs, _), ep_ret, ep_len, start_epoch = env.reset(seed=seed), 0, 0, 0
    saved = logger.load_state(replay=buf)               # None, except for a run that is resumed
    if saved:
        set_state(agent, rng, saved)
        test_env.set_state(saved['test_env'])
        obs, (ep_ret, ep_len, agent.updates, start_epoch) = env.set_state(saved['env']), saved['counters']

    for epoch in range(start_epoch, epochs):
        for t in logger.progress(local_steps, epoch, epochs):
            steps = (epoch * local_steps + t + 1) * num_procs()             # of all processes, this one included
            if steps > start_steps:
                act = agent.act(obs, rng.standard_normal(act_dim, dtype=np.float32))
            else:
                act = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
            next_obs, rew, terminated, truncated, _ = env.step(act)
            buf.store(obs, act, rew, next_obs, terminated)
            obs, ep_ret, ep_len = next_obs, ep_ret + rew, ep_len + 1

            if terminated or truncated or ep_len == max_ep_len:
                logger.store(EpRet=ep_ret, EpLen=ep_len)
                (obs, _), ep_ret, ep_len = env.reset(), 0, 0

            due = steps // update_every * update_every - update_after
            while agent.updates < due:
                n = min(due - agent.updates, max_batches)
                noise = rng.standard_normal((n, agent.noises, local_batch, act_dim), dtype=np.float32)
                for metrics in agent.update(buf.sample_batch(rng, n, local_batch), noise):
                    logger.store(**metrics)

        test_agent(agent, test_env, logger, num_test_episodes, max_ep_len)

        logger.log_tabular('Epoch', epoch)
        logger.log_tabular('EpRet', with_min_and_max=True)
        logger.log_tabular('TestEpRet', with_min_and_max=True)
        logger.log_tabular('EpLen', average_only=True)
        logger.log_tabular('TestEpLen', average_only=True)
        logger.log_tabular('TotalEnvInteracts', steps)
        for key in agent.columns_with_spread:
            logger.log_tabular(key, with_min_and_max=True)
        for key in agent.columns:
            logger.log_tabular(key, average_only=True)
        logger.log_tabular('Time', time.time() - logger.start_time)
        logger.dump_tabular()
        if epoch % save_freq == 0 or epoch == epochs - 1:
            state = dict(get_state(agent, rng), env=env.get_state(), test_env=test_env.get_state(),
                         counters=(ep_ret, ep_len, agent.updates, epoch + 1))
            logger.save_state(state, itr=epoch, replay=buf)
    return agent


# %% Command line
if __name__ == '__main__':
    command_line(sac)
