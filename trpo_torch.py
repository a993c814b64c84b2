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
# %% Imports
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


# %% Buffer
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


# %% Losses
def compute_loss_pi(logp, logp_old, adv):
    """loss_pi = -mean( pi(act | obs) / pi_old(act | obs) adv )"""
    ratio = torch.exp(logp - logp_old)
    return -(ratio * adv).mean()


def compute_loss_v(val, ret):
    """loss_v = mean( (v(obs) - ret)^2 )"""
    return ((val - ret)**2).mean()


# %% Update
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


# %% Training
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


# %% Command line
if __name__ == '__main__':
    command_line(trpo)
