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
Gradient; for adv, Schulman et al. 2016, Generalized Advantage Estimation, arXiv:1506.02438.

Its neighbours: ppo_torch.py does it with a clipped objective and plain gradients, vpg_torch.py takes one step without
any constraint, and trpo_tf1.py is this file in TensorFlow-1 style.

Run it: mpirun -np 4 python trpo_torch.py --env CartPole-v1 --algo npg
"""
# %% Imports
import time
from types import SimpleNamespace

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.distributions import kl_divergence

from common.env_tools import make_env
from common.fast_torch import Adam, Linear, Sequential, Tanh
from common.logx import EpochLogger
from common.mpi_pytorch import (get_state, init_weights, mpi_avg_grads, set_state, setup_pytorch_for_mpi, setup_saver,
                                sync_params, zero_grads)
from common.mpi_tools import mpi_avg, mpi_statistics_scalar, num_procs, proc_id
from common.numpy_mlp import numpy_mlp
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
    if isinstance(action_space, Box):
        log_std, *params = params
        mu_net = numpy_mlp(params, activation)
        return lambda obs, noise: mu_net(obs) + np.exp(log_std) * noise
    logits_net = numpy_mlp(params, activation)
    return lambda obs, noise: np.argmax(logits_net(obs) + noise)


def draw_noise(rng, n, action_space):
    """The randomness of n actions: normal, or Gumbel, since argmax(logits + Gumbel) is a sample of softmax(logits)."""
    if isinstance(action_space, Box):
        return rng.standard_normal((n, *action_space.shape), dtype=np.float32)
    return rng.gumbel(size=(n, action_space.n)).astype(np.float32)


class Categorical:
    """The distribution over n actions with probabilities softmax(logits)."""
    def __init__(self, logits):
        self.logits = torch.log_softmax(logits, dim=-1)                                  # (batch, n)

    def log_prob(self, act):
        return self.logits.gather(-1, act.long().unsqueeze(-1)).squeeze(-1)              # (batch,)

    def entropy(self):
        return -(torch.exp(self.logits) * self.logits).sum(-1)

    def kl(self, other):
        return (torch.exp(self.logits) * (self.logits - other.logits)).sum(-1)           # KL(self, other), (batch,)


class Gaussian:
    """The normal distribution of independent dimensions with means mu and standard deviations exp(log_std)."""
    def __init__(self, mu, log_std):
        self.mu, self.log_std = mu, log_std                                              # (batch, act_dim), (act_dim,)

    def log_prob(self, act):
        z = (act - self.mu) * torch.exp(-self.log_std)
        return -0.5 * (z**2).sum(-1) - (self.log_std + 0.5 * np.log(2 * np.pi)).sum()    # (batch,)

    def entropy(self):
        return (self.log_std + 0.5 * np.log(2 * np.pi * np.e)).sum()

    def kl(self, other):
        z2 = (torch.exp(2 * self.log_std) + (self.mu - other.mu)**2) * torch.exp(-2 * other.log_std)
        return (other.log_std - self.log_std + 0.5 * (z2 - 1)).sum(-1)                   # KL(self, other), (batch,)


class Actor(nn.Module):
    """A policy: the distribution of the action in each observation and, for given actions, their log-probability."""
    def forward(self, obs, act=None):
        dist = self.distribution(obs)
        return dist, None if act is None else dist.log_prob(act)


class MLPCategoricalActor(Actor):
    """Discrete actions: the network gives the logits."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation):
        super().__init__()
        self.logits_net = mlp([obs_dim, *hidden_sizes, act_dim], activation)

    def distribution(self, obs):
        return Categorical(self.logits_net(obs.flatten(1)))


class MLPGaussianActor(Actor):
    """Continuous actions: the network gives the means; the standard deviations are parameters of their own."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation):
        super().__init__()
        self.mu_net = mlp([obs_dim, *hidden_sizes, act_dim], activation)
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def distribution(self, obs):
        return Gaussian(self.mu_net(obs.flatten(1)), self.log_std.clone())   # clone: dist_old stays when params move


class MLPCritic(nn.Module):
    """The value of an observation under the policy."""
    def __init__(self, obs_dim, hidden_sizes, activation):
        super().__init__()
        self.v_net = mlp([obs_dim, *hidden_sizes, 1], activation)

    def forward(self, obs):
        return self.v_net(obs.flatten(1)).squeeze(-1)   # squeeze: (batch,) minus (batch, 1) would broadcast silently


class MLPActorCritic(nn.Module):
    """Policy and value function. One of your own (a CNN, say) has pi(obs, act), v(obs), step(obs) and act(obs)."""
    def __init__(self, observation_space, action_space, hidden_sizes=(64, 64), activation=Tanh):
        super().__init__()
        obs_dim = int(np.prod(observation_space.shape))
        if isinstance(action_space, Box):
            self.pi = MLPGaussianActor(obs_dim, action_space.shape[0], hidden_sizes, activation)
        else:
            self.pi = MLPCategoricalActor(obs_dim, int(action_space.n), hidden_sizes, activation)
        self.v = MLPCritic(obs_dim, hidden_sizes, activation)
        self.activation, self.action_space = activation, action_space

    def policy(self):
        return numpy_policy([p.detach().numpy() for p in self.pi.parameters()], self.activation, self.action_space)

    def act(self, obs):
        """An action for one observation."""
        rng = np.random.default_rng(torch.randint(2**31, ()).item())
        return self.policy()(np.asarray(obs, dtype=np.float32), draw_noise(rng, 1, self.action_space)[0])

    def step(self, obs):
        """act, val, logp for one observation."""
        act = self.act(obs)
        with torch.no_grad():
            obs, acts = torch.as_tensor(obs, dtype=torch.float32)[None], torch.as_tensor(act)[None]
            return act, self.v(obs).numpy()[0], self.pi(obs, acts)[1].numpy()[0]


# %% Buffer
class GAEBuffer:
    """One process's experience of one epoch, with advantages by GAE(lambda) and rewards to go."""
    def __init__(self, obs_shape, act_shape, size, gamma, lam):
        self.obs = np.zeros((size, *obs_shape), dtype=np.float32)
        self.act = np.zeros((size, *act_shape), dtype=np.float32)
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

    def get(self, val, last_val, logp):
        """The epoch's data, given V of every observation (size,) and of every trajectory's last_obs (trajectories,)."""
        assert self.ptr == self.size == self.paths[-1][0], 'the epoch is not complete'
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
    return -(torch.exp(logp - logp_old) * adv).mean()


def compute_loss_v(val, ret):
    """loss_v = mean( (v(obs) - ret)^2 )"""
    return nn.functional.mse_loss(val, ret)


# %% Update
def flat_grad(loss, params, **kwargs):
    """The gradient of a loss by all parameters, as one vector."""
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, params, **kwargs)])


def hessian_vector_product(grad, params, x):
    """H x, for the function whose gradient (made with create_graph) is grad: the gradient of grad . x"""
    return flat_grad((grad * torch.as_tensor(x, dtype=torch.float32)).sum(), params, retain_graph=True)


def assign_params_from_flat(flat, params):
    """Set the parameters from one vector, in place, since numpy_mlp acts on their memory."""
    for p, part in zip(params, flat.split([p.numel() for p in params])):
        p.data.copy_(part.view_as(p))


def conjugate_gradient(apply_matrix, b, iters):
    """Solve A x = b for a positive definite A that is known only by its products apply_matrix(x) = A x."""
    x, r, p, tiny = np.zeros_like(b), b.copy(), b.copy(), 1e-12 * (b @ b) + 1e-30
    for _ in range(iters):
        product, r_dot_r = apply_matrix(p), r @ r
        step = r_dot_r / (p @ product + tiny)
        x, r = x + step * p, r - step * product
        p = r + (r @ r) / (r_dot_r + tiny) * p
    return x


class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    def __init__(self, env, rng, args):
        setup_pytorch_for_mpi()
        torch.manual_seed(rng.integers(2**31))                  # for networks of your own: ours draw from rng alone
        self.ac = args.actor_critic(env.observation_space, env.action_space, **args.ac_kwargs)
        self.args, self.policy = args, None
        if isinstance(self.ac, MLPActorCritic):
            init_weights(self.ac, rng)
            self.policy = self.ac.policy()
        sync_params(self.ac)
        self.vf_optimizer = Adam(self.ac.v.parameters(), lr=args.vf_lr)

    def act(self, obs, noise):
        """An action for one observation. Networks of your own act by themselves, and draw their own noise."""
        return self.policy(obs, noise) if self.policy else self.ac.act(torch.as_tensor(obs))

    def evaluate(self, obs, act=None):
        """V(obs), or log pi(act | obs), of many observations."""
        with torch.no_grad():
            obs = torch.as_tensor(obs)
            return (self.ac.v(obs) if act is None else self.ac.pi(obs, torch.as_tensor(act))[1]).numpy()

    def metrics(self, obs, act, adv, ret, logp_old):
        """What is logged about the policy and the value function as they are."""
        with torch.no_grad():
            dist, logp = self.ac.pi(obs, act)
            metrics = dict(LossPi=compute_loss_pi(logp, logp_old, adv),
                           LossV=compute_loss_v(self.ac.v(obs), ret), Entropy=dist.entropy().mean())
        return {key: value.item() for key, value in metrics.items()}

    def update(self, data):
        """Improve the policy, then the value function, on one epoch's data; returns what is logged about it."""
        obs, act, adv, ret, logp_old = batch = [torch.as_tensor(array) for array in data.values()]
        old = self.metrics(*batch)
        # The direction x with H x = g, and the length at which the quadratic form of the KL would be delta.
        params = list(self.ac.pi.parameters())
        with torch.no_grad():
            dist_old, params_old = self.ac.pi(obs, act)[0], nn.utils.parameters_to_vector(params)
        mean_kl = lambda dist: (dist_old.kl(dist) if hasattr(dist_old, 'kl') else kl_divergence(dist_old, dist)).mean()
        dist, logp = self.ac.pi(obs, act)
        grad = mpi_avg(flat_grad(compute_loss_pi(logp, logp_old, adv), params, retain_graph=True))
        kl_grad = flat_grad(mean_kl(dist), params, create_graph=True)
        apply_hessian = lambda x: mpi_avg(hessian_vector_product(kl_grad, params, x)) + self.args.damping_coeff * x
        x = conjugate_gradient(apply_hessian, grad, self.args.cg_iters)
        step = torch.as_tensor(np.sqrt(2 * self.args.delta / (x @ apply_hessian(x) + 1e-30)) * x, dtype=torch.float32)

        # The longest step of the line search that is inside the trust region and improves the surrogate; else none.
        for i in range(self.args.backtrack_iters):
            assign_params_from_flat(params_old - self.args.backtrack_coeff**i * step, params)
            with torch.no_grad():
                dist, logp = self.ac.pi(obs, act)
            kl, change = mpi_avg([mean_kl(dist), compute_loss_pi(logp, logp_old, adv) - old['LossPi']])
            if self.args.algo == 'npg' or kl <= self.args.delta and change < 0:
                break
        else:
            i, kl = self.args.backtrack_iters, 0.0
            assign_params_from_flat(params_old, params)

        for _ in range(self.args.train_v_iters):
            zero_grads(self.ac.v)
            compute_loss_v(self.ac.v(obs), ret).backward()
            mpi_avg_grads(self.ac.v)
            self.vf_optimizer.step()

        new = self.metrics(*batch)
        return dict(LossPi=old['LossPi'], LossV=old['LossV'], DeltaLossPi=new.pop('LossPi') - old['LossPi'],
                    DeltaLossV=new.pop('LossV') - old['LossV'], **new, KL=kl,
                    **(dict(BacktrackIters=i) if self.args.algo == 'trpo' else {}))


# %% Evaluation
def evaluate(agent, buf):
    """V of every observation and last_obs, and log pi of every action: all at once, which is fast."""
    val = agent.evaluate(np.concatenate([buf.obs, [last_obs for _, last_obs, _ in buf.paths]]))
    return val[:buf.size], val[buf.size:], agent.evaluate(buf.obs, buf.act)


# %% Training
def trpo(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=MLPActorCritic,        # the networks, made from (observation_space, action_space, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; every process adds 10000 times its number
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=50,                          # epochs of experience and update
    gamma=0.99,                         # discount of the future, per step
    lam=0.97,                           # lambda of GAE: 0 trusts the value function, 1 the rewards
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
    """Train; the arguments are the command line's flags."""
    args = SimpleNamespace(**locals())
    seed += 10000 * proc_id()
    rng = np.random.default_rng(seed)
    env = make_env(env_fn)
    env.action_space.seed(seed)
    agent = Agent(env, rng, args)
    local_steps = steps_per_epoch // num_procs()
    buf = GAEBuffer(env.observation_space.shape, env.action_space.shape, local_steps, gamma, lam)
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(vars(args))
    setup_saver(agent, logger)

    (obs, _), ep_ret, ep_len, start_epoch = env.reset(seed=seed), 0, 0, 0
    saved = logger.load_state()                         # None, except for a run that is resumed
    if saved:
        set_state(agent, rng, saved)
        obs, ep_ret, ep_len, start_epoch = env.set_state(saved['env']), *saved['counters']

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

        val, last_val, logp = evaluate(agent, buf)
        metrics = agent.update(buf.get(val, last_val, logp))
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
        if epoch % save_freq == 0 or epoch == epochs - 1:
            state = dict(get_state(agent, rng), env=env.get_state(), counters=(ep_ret, ep_len, epoch + 1))
            logger.save_state(state, itr=epoch)
    return agent


# %% Command line
if __name__ == '__main__':
    command_line(trpo)
