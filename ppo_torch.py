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
# %% Imports
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


# %% Networks
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


# %% Buffer
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


# %% Losses
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


# %% Update
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


# %% Training
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


# %% Command line
if __name__ == '__main__':
    command_line(ppo)
