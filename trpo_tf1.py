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

Its neighbours: ppo_tf1.py does it with a clipped objective and plain gradients, vpg_tf1.py takes one step without
any constraint, and trpo_torch.py is this file in PyTorch.

Run it:
    mpirun -np 4 python trpo_tf1.py --env CartPole-v1 --algo npg
"""
# %% Imports
import time
from types import SimpleNamespace

import numpy as np
from gymnasium.spaces import Box

from common.env_tools import make_env
from common.fast_tf import repeat
from common.logx import EpochLogger
from common.mpi_tf import (MpiAdamOptimizer, flat_concat, get_state, init_weights, set_state, setup_saver,
                           setup_tf_for_mpi, sync_all_params, tf)
from common.mpi_tools import mpi_avg, mpi_statistics_scalar, num_procs, proc_id
from common.numpy_mlp import numpy_mlp
from common.run_utils import command_line


# %% Networks
def placeholder(shape=()):
    """An input of the graph: (batch, *shape)."""
    return tf.placeholder(tf.float32, (None, *shape))


def placeholders(*shapes):
    return [placeholder(shape) for shape in shapes]


def placeholder_from_space(space):
    return placeholder(space.shape)


def placeholders_from_spaces(*spaces):
    return [placeholder_from_space(space) for space in spaces]


def mlp(x, sizes, activation, output_activation=tf.identity):
    """A multilayer perceptron: (batch, ...) -> (batch, sizes[-1])."""
    x = tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])
    for i, n_out in enumerate(sizes):
        bound = 1 / np.sqrt(int(x.shape[1]))
        uniform = tf.random_uniform_initializer(-bound, bound)
        weight = tf.get_variable(f'{i}/weight', (n_out, x.shape[1]), initializer=uniform)
        bias = tf.get_variable(f'{i}/bias', (n_out,), initializer=uniform)
        x = (activation if i < len(sizes) - 1 else output_activation)(tf.matmul(x, weight, transpose_b=True) + bias)
    return x


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
        self.logits = tf.nn.log_softmax(logits)                                          # (batch, n)
        self.params = [self.logits]
        self.mode = tf.argmax(self.logits, axis=-1)
        self.sample = tf.argmax(self.logits - tf.log(-tf.log(tf.random_uniform(tf.shape(logits)))), axis=-1)

    def log_prob(self, act):
        return tf.gather(self.logits, tf.cast(act, tf.int32), batch_dims=1)              # (batch,)

    def entropy(self):
        return -tf.reduce_sum(tf.exp(self.logits) * self.logits, axis=-1)

    def kl(self, other):
        return tf.reduce_sum(tf.exp(self.logits) * (self.logits - other.logits), axis=-1)    # KL(self, other), (batch,)


class Gaussian:
    """The normal distribution of independent dimensions with means mu and standard deviations exp(log_std)."""
    def __init__(self, mu, log_std):
        self.mu, self.log_std = mu, log_std                                              # (batch, act_dim), (act_dim,)
        self.params, self.mode = [mu, log_std], mu
        self.sample = mu + tf.exp(log_std) * tf.random_normal(tf.shape(mu))

    def log_prob(self, act):
        z = (act - self.mu) * tf.exp(-self.log_std)
        return -0.5 * tf.reduce_sum(z**2, -1) - tf.reduce_sum(self.log_std + 0.5 * np.log(2 * np.pi))    # (batch,)

    def entropy(self):
        return tf.reduce_sum(self.log_std + 0.5 * np.log(2 * np.pi * np.e))

    def kl(self, other):
        z2 = (tf.exp(2 * self.log_std) + (self.mu - other.mu)**2) * tf.exp(-2 * other.log_std)
        return tf.reduce_sum(other.log_std - self.log_std + 0.5 * (z2 - 1), axis=-1)         # KL(self, other), (batch,)


def mlp_categorical_policy(obs, action_space, hidden_sizes, activation):
    """Discrete actions: the network gives the logits."""
    return Categorical(mlp(obs, [*hidden_sizes, int(action_space.n)], activation))


def mlp_gaussian_policy(obs, action_space, hidden_sizes, activation):
    """Continuous actions: the network gives the means; the standard deviations are parameters of their own."""
    log_std = tf.get_variable('log_std', action_space.shape, initializer=tf.constant_initializer(-0.5))
    return Gaussian(mlp(obs, [*hidden_sizes, action_space.shape[0]], activation), log_std)


def mlp_actor_critic(obs, act, action_space, hidden_sizes=(64, 64), activation=tf.tanh):
    """dist, logp, v, in the scopes pi and v. One of your own (a CNN, say) does the same, with tf.get_variable."""
    with tf.variable_scope('pi'):
        policy = mlp_gaussian_policy if isinstance(action_space, Box) else mlp_categorical_policy
        dist = policy(obs, action_space, hidden_sizes, activation)
    with tf.variable_scope('v'):
        v = tf.squeeze(mlp(obs, [*hidden_sizes, 1], activation), axis=1)                 # squeeze: (batch,), as ret is
    return dist, dist.log_prob(act), v


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
    return -tf.reduce_mean(tf.exp(logp - logp_old) * adv)


def compute_loss_v(val, ret):
    """loss_v = mean( (v(obs) - ret)^2 )"""
    return tf.reduce_mean((val - ret)**2)


# %% Update
def flat_grad(loss, params):
    """The gradient of a loss by all parameters, as one vector."""
    return flat_concat(tf.gradients(loss, params))


def hessian_vector_product(grad, params, x):
    """H x, for the function whose gradient is grad: the gradient of grad . x"""
    return flat_grad(tf.reduce_sum(grad * x), params)


def assign_params_from_flat(flat, params):
    """Set the parameters from one vector."""
    parts = tf.split(flat, [int(np.prod(p.shape)) for p in params])
    return tf.group([p.assign(tf.reshape(part, p.shape)) for p, part in zip(params, parts)])


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
        self.sess = setup_tf_for_mpi(rng.integers(2**31))       # for networks of your own: ours draw from rng alone
        obs, act = placeholders_from_spaces(env.observation_space, env.action_space)
        adv, ret, logp_old = placeholders((), (), ())
        ac = tf.make_template('', args.actor_critic, **args.ac_kwargs)              # the same variables at every call
        dist, logp, v = ac(obs, act, env.action_space)
        self.inputs, self.outputs = dict(obs=obs), dict(v=v, logp=logp, mode=dist.mode, sample=dist.sample)
        self.phs = dict(obs=obs, act=act, adv=adv, ret=ret, logp=logp_old)
        self.metrics = dict(LossPi=compute_loss_pi(logp, logp_old, adv),
                            LossV=compute_loss_v(v, ret), Entropy=tf.reduce_mean(dist.entropy()))

        self.pi_params, self.v_params = tf.trainable_variables('pi'), tf.trainable_variables('v')
        self.vf_optimizer = MpiAdamOptimizer(args.vf_lr)

        def step_v():
            _, _, v = ac(obs, act, env.action_space)            # anew at every step
            return self.vf_optimizer.minimize(compute_loss_v(v, ret), var_list=self.v_params), True

        self.train_v = repeat(step_v, args.train_v_iters)

        # Unless it is fed, the old distribution is the present one as a constant: the Hessian of the KL is taken there.
        self.dist_params = dist.params
        self.dist_old_phs = [tf.placeholder_with_default(tf.stop_gradient(p), p.shape) for p in dist.params]
        self.kl = tf.reduce_mean(type(dist)(*self.dist_old_phs).kl(dist))
        self.flat_params = flat_concat(self.pi_params)
        self.x = tf.placeholder(tf.float32, self.flat_params.shape)
        self.assign_params = assign_params_from_flat(self.x, self.pi_params)
        self.grad = flat_grad(self.metrics['LossPi'], self.pi_params)
        self.hessian_product = hessian_vector_product(flat_grad(self.kl, self.pi_params), self.pi_params, self.x)

        self.sess.run(tf.global_variables_initializer())
        self.args, self.policy, self.action_space = args, None, env.action_space
        if args.actor_critic is mlp_actor_critic:
            init_weights(self.sess, self.pi_params + self.v_params, rng)
        self.sess.run(sync_all_params())
        self.refresh_policy()

    def refresh_policy(self):
        """Fetch the parameters for acting in numpy: a session would take as long for one action as for hundreds."""
        if self.args.actor_critic is mlp_actor_critic:
            activation = self.args.ac_kwargs.get('activation', tf.tanh)
            self.policy = numpy_policy(self.sess.run(self.pi_params), activation, self.action_space)

    def act(self, obs, noise):
        """An action for one observation. Networks of your own act by themselves, and draw their own noise."""
        return self.policy(obs, noise) if self.policy else self.run('sample', obs=obs[None])[0]

    def evaluate(self, obs, act=None):
        """V(obs), or log pi(act | obs), of many observations."""
        return self.run('v', obs=obs) if act is None else self.run('logp', obs=obs, act=act)

    def run(self, output, **inputs):
        return self.sess.run(self.outputs[output], {self.phs[key]: array for key, array in inputs.items()})

    def update(self, data):
        """Improve the policy, then the value function, on one epoch's data; returns what is logged about it."""
        feed = {self.phs[key]: array for key, array in data.items()}
        old = self.sess.run(self.metrics, feed)
        # The direction x with H x = g, and the length at which the quadratic form of the KL would be delta.
        params_old, dist_old = self.sess.run([self.flat_params, self.dist_params], feed)
        old_phs = dict(zip(self.dist_old_phs, dist_old))
        grad = mpi_avg(self.sess.run(self.grad, feed))
        product = lambda x: self.sess.run(self.hessian_product, feed | {self.x: x})
        apply_hessian = lambda x: mpi_avg(product(x)) + self.args.damping_coeff * x
        x = conjugate_gradient(apply_hessian, grad, self.args.cg_iters)
        step = np.sqrt(2 * self.args.delta / (x @ apply_hessian(x) + 1e-30)) * x

        # The longest step of the line search that is inside the trust region and improves the surrogate; else none.
        for i in range(self.args.backtrack_iters):
            self.sess.run(self.assign_params, {self.x: params_old - self.args.backtrack_coeff**i * step})
            kl, loss_pi = self.sess.run([self.kl, self.metrics['LossPi']], feed | old_phs)
            kl, change = mpi_avg([kl, loss_pi - old['LossPi']])
            if self.args.algo == 'npg' or kl <= self.args.delta and change < 0:
                break
        else:
            i, kl = self.args.backtrack_iters, 0.0
            self.sess.run(self.assign_params, {self.x: params_old})

        self.sess.run(self.train_v, feed)

        self.refresh_policy()
        new = self.sess.run(self.metrics, feed)
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
    actor_critic=mlp_actor_critic,      # the networks, made from (obs, act, action_space, **ac_kwargs)
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
