"""Deep Deterministic Policy Gradient (DDPG).

The idea: learn the value q(obs, act) of every action from all experience so far, kept in a replay buffer, and let a
deterministic policy climb it: the gradient of q by its action says how to change the action, and so the policy. Two
devices keep this stable: the targets of q come from slowly moving copies of the networks, and noise on the actions
explores.

The equations, in the names of the code:
    backup   = rew + gamma (1 - terminated) q_targ(next_obs, pi_targ(next_obs))
    loss_q   = mean( (q(obs, act) - backup)^2 )
    loss_pi  = -mean( q(obs, pi(obs)) ),                 by the parameters of pi alone
    targets  : params_targ = polyak params_targ + (1 - polyak) params

Paper: Lillicrap et al. 2016, Continuous Control with Deep Reinforcement Learning, arXiv:1509.02971.

Its neighbours: td3_tf1.py mends its overestimated q with three changes, sac_tf1.py learns a random policy with a
bonus for its entropy, and ddpg_torch.py is this file in PyTorch.

Run it:
    python ddpg_tf1.py --env Pendulum-v1 --epochs 5 --start_steps 1000
    mpirun -np 2 python ddpg_tf1.py --env HalfCheetah-v5 --seed 1
"""
# %% Imports
import time
from types import SimpleNamespace

import numpy as np

from common.env_tools import make_env
from common.fast_tf import for_each
from common.logx import EpochLogger
from common.mpi_tf import (MpiAdamOptimizer, get_state, init_weights, set_state, setup_saver,
                           setup_tf_for_mpi, sync_all_params, tf)
from common.mpi_tools import num_procs, proc_id
from common.numpy_mlp import numpy_mlp
from common.run_utils import command_line


# %% Networks
def placeholder(shape=()):
    """An input of the graph: (batch, *shape)."""
    return tf.placeholder(tf.float32, (None, *shape))


def placeholders(*shapes):
    return [placeholder(shape) for shape in shapes]


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
    """act(obs) for one observation, in numpy."""
    net = numpy_mlp(params, activation)
    center, half_range = (action_space.high + action_space.low) / 2, (action_space.high - action_space.low) / 2
    return lambda obs: center + half_range * np.tanh(net(obs))


def mlp_policy(obs, action_space, hidden_sizes, activation):
    """A deterministic policy: tanh brings every dimension of the action between its own bounds."""
    center, half_range = (action_space.high + action_space.low) / 2, (action_space.high - action_space.low) / 2
    return center + half_range * tf.tanh(mlp(obs, [*hidden_sizes, action_space.shape[0]], activation))


def mlp_q_function(obs, act, hidden_sizes, activation):
    """The value of an action in an observation, under the policy."""
    obs = tf.reshape(obs, [-1, int(np.prod(obs.shape[1:]))])
    return tf.squeeze(mlp(tf.concat([obs, act], axis=-1), [*hidden_sizes, 1], activation), axis=1)  # squeeze: (batch,)


def mlp_actor_critic(scope, action_space, hidden_sizes=(256, 256), activation=tf.nn.relu):
    """pi(obs), q(obs, act): functions with variables of their own in the scope. Yours (a CNN, say) gives the same."""
    return SimpleNamespace(
        pi=tf.make_template(f'{scope}/pi', mlp_policy, action_space=action_space, hidden_sizes=hidden_sizes,
                            activation=activation),
        q=tf.make_template(f'{scope}/q', mlp_q_function, hidden_sizes=hidden_sizes, activation=activation))


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
def compute_backup(rew, terminated, next_q, gamma):
    """backup = rew + gamma (1 - terminated) next_q: termination ends the future, truncation does not."""
    return rew + gamma * (1 - terminated) * next_q


def compute_loss_q(q, backup):
    """loss_q = mean( (q(obs, act) - backup)^2 )"""
    return tf.reduce_mean((q - backup)**2)


def compute_loss_pi(q_pi):
    """loss_pi = -mean( q(obs, pi(obs)) )"""
    return -tf.reduce_mean(q_pi)


# %% Update
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    columns_with_spread, columns = ['QVals'], ['LossPi', 'LossQ']
    noises = 0                                                  # noise arrays, (batch, act_dim), for an update

    def __init__(self, env, rng, args):
        self.sess = setup_tf_for_mpi(rng.integers(2**31))       # for networks of your own: ours draw from rng alone
        self.args, self.policy, self.action_space, self.updates = args, None, env.action_space, 0
        self.low, self.high = env.action_space.low, env.action_space.high
        obs_shape, act_shape = env.observation_space.shape, env.action_space.shape
        obs, act = placeholders(obs_shape, act_shape)
        self.ac, self.ac_targ = (args.actor_critic(scope, env.action_space, **args.ac_kwargs)
                                 for scope in ('main', 'target'))
        self.inputs, self.outputs = dict(obs=obs), dict(mode=self.ac.pi(obs), sample=self.ac.pi(obs))
        for ac in self.ac, self.ac_targ:                        # make the variables, of pi before those of q
            ac.q(obs, ac.pi(obs))
        self.pi_params, self.q_params = tf.trainable_variables('main/pi'), tf.trainable_variables('main/q')
        self.params, self.params_targ = tf.trainable_variables('main'), tf.trainable_variables('target')
        shapes = dict(obs=obs_shape, act=act_shape, rew=(), next_obs=obs_shape, terminated=())
        self.phs = {key: placeholder((None, *shape)) for key, shape in shapes.items()}      # (batches, batch, *shape)
        self.phs['noise'] = placeholder((self.noises, None, *act_shape))
        compiled = num_procs() == 1 and args.actor_critic is mlp_actor_critic  # XLA cannot do MPI, perhaps not yours
        self.metrics = for_each(self.update_once, self.phs.values(), self.columns_with_spread + self.columns, compiled)
        self.sess.run(tf.global_variables_initializer())
        if args.actor_critic is mlp_actor_critic:
            init_weights(self.sess, self.params, rng)
        self.sess.run(sync_all_params())
        self.sess.run(tf.group([p_targ.assign(p) for p_targ, p in zip(self.params_targ, self.params)]))
        self.refresh_policy()

    def refresh_policy(self):
        """Fetch the parameters for acting in numpy: a session would take as long for one action as for hundreds."""
        if self.args.actor_critic is mlp_actor_critic:
            activation = self.args.ac_kwargs.get('activation', tf.nn.relu)
            self.policy = numpy_policy(self.sess.run(self.pi_params), activation, self.action_space)
        self.stale = False

    def act(self, obs, noise=None):
        """An action for one observation: the policy's and, if there is noise, act_noise half-ranges of it."""
        if self.stale:
            self.refresh_policy()
        act = self.policy(obs) if self.policy else self.run('mode', obs)
        if noise is not None:
            act = np.clip(act + self.args.act_noise * (self.high - self.low) / 2 * noise, self.low, self.high)
        return act

    def run(self, output, obs):
        return self.sess.run(self.outputs[output], {self.inputs['obs']: obs[None]})[0]

    def update(self, batches, noise):
        """One update on each batch, in turn; returns a list of what is logged about them."""
        self.updates += len(noise)
        self.stale = True                                       # the numpy policy has old parameters from here on
        feed = {self.phs[key]: array for key, array in dict(batches, noise=noise).items()}
        metrics = self.sess.run(self.metrics, feed)             # arrays, with a row for each update
        return [dict(zip(metrics, row)) for row in zip(*metrics.values())]

    def update_once(self, obs, act, rew, next_obs, terminated, noise):
        """One step of q, one of the policy, and the targets after them; gives (what is logged, the operation)."""
        next_q = self.ac_targ.q(next_obs, self.ac_targ.pi(next_obs))
        backup = tf.stop_gradient(compute_backup(rew, terminated, next_q, self.args.gamma))
        q = self.ac.q(obs, act)
        loss_q = compute_loss_q(q, backup)
        train_q = MpiAdamOptimizer(self.args.q_lr).minimize(loss_q, var_list=self.q_params)

        with tf.control_dependencies([train_q]):                # the policy climbs the q that has made its step
            loss_pi = compute_loss_pi(self.ac.q(obs, self.ac.pi(obs)))
            train_pi = MpiAdamOptimizer(self.args.pi_lr).minimize(loss_pi, var_list=self.pi_params)

        with tf.control_dependencies([train_pi]):
            train = tf.group([p_targ.assign_add((1 - self.args.polyak) * (p - p_targ))
                              for p_targ, p in zip(self.params_targ, self.params)])
        return dict(QVals=q, LossPi=loss_pi, LossQ=loss_q), train


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
def ddpg(
    env_fn,                             # function without arguments that makes the environment
    actor_critic=mlp_actor_critic,      # the networks, made from (scope, action_space, **ac_kwargs)
    ac_kwargs=dict(),                   # its keyword arguments: hidden_sizes, activation
    seed=0,                             # of all random numbers; every process adds 10000 times its number
    steps_per_epoch=4000,               # environment steps in an epoch, of all processes together
    epochs=100,                         # epochs; each ends with test episodes
    replay_size=int(1e6),               # transitions kept for replay, of all processes together
    gamma=0.99,                         # discount of the future, per step
    polyak=0.995,                       # how much of the target networks stays at each update
    pi_lr=1e-3,                         # learning rate of the policy
    q_lr=1e-3,                          # learning rate of q
    batch_size=100,                     # transitions in an update, shared out among the processes
    start_steps=10000,                  # steps with uniformly random actions before the policy acts
    update_after=1000,                  # steps before the first update
    update_every=50,                    # steps from one group of updates to the next; there is one update for each step
    act_noise=0.1,                      # standard deviation of the exploration noise, in half-ranges of the action
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
    command_line(ddpg)
