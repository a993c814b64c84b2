"""Deep Deterministic Policy Gradient (DDPG).

The idea: learn the value q(obs, act) of every action from all experience so far, kept in a replay buffer, and let a
deterministic policy climb it: the gradient of q by its action says how to change the action, and so the policy. Two
devices keep this stable: the targets of q come from target networks, which follow slowly, and noise on the actions
explores.

The equations, in the names of the code:
    backup   = rew + gamma (1 - terminated) q_targ(next_obs, pi_targ(next_obs))
    loss_q   = mean( (q(obs, act) - backup)^2 )
    loss_pi  = -mean( q(obs, pi(obs)) ),                 by the parameters of pi alone
    targets  : params_targ = polyak params_targ + (1 - polyak) params

Paper: Lillicrap et al. 2016, Continuous Control with Deep Reinforcement Learning, arXiv:1509.02971.

Its neighbours: td3_tf1.py fixes the overestimated q with three changes, sac_tf1.py learns a stochastic policy with
an entropy bonus, and ddpg_torch.py is this file in PyTorch.

Run it:
    python ddpg_tf1.py --env Pendulum-v1 --epochs 5 --start_steps 1000
    mpirun -np 2 python ddpg_tf1.py --env HalfCheetah-v5 --seed 1
"""
# %% Imports
import time
from copy import deepcopy
from types import SimpleNamespace

import numpy as np

from common.env_tools import make_env_and_test_env
from common.logx import EpochLogger
from common.mpi_tf import MpiAdamOptimizer, init_variables, setup_saver, setup_tf_for_mpi, tf
from common.mpi_tools import num_procs, proc_id
from common.run_utils import command_line, explain_arguments


# %% Networks
def flatten(x):
    """(batch, ...) -> (batch, numbers)"""
    return tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])


class Linear(tf.Module):
    """A linear layer. Uniform in +-1/sqrt(n_in) is PyTorch's default; drawn from rng, the twin's is the same."""
    def __init__(self, n_in, n_out, rng):
        super().__init__()
        draw = lambda *shape: (rng.uniform(-1, 1, shape) / np.sqrt(n_in)).astype(np.float32)
        self.weight = tf.Variable(draw(n_out, n_in), name='weight')
        self.bias = tf.Variable(draw(n_out), name='bias')

    def __call__(self, x):
        return tf.matmul(x, self.weight, transpose_b=True) + self.bias


class Sequential(tf.Module):
    """Layers, one after the other."""
    def __init__(self, *layers):
        super().__init__()
        self.layers = layers

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def mlp(sizes, activation, rng, output_activation=tf.identity):
    """A multilayer perceptron: (batch, ...) -> (batch, sizes[-1])."""
    layers = [flatten]
    for n_in, n_out in zip(sizes[:-2], sizes[1:-1]):
        layers += [Linear(n_in, n_out, rng), activation]
    return Sequential(*layers, Linear(*sizes[-2:], rng), output_activation)


class MLPActor(tf.Module):
    """A deterministic policy: tanh brings every dimension of the action into [-1, 1]."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.net = mlp([obs_dim, *hidden_sizes, act_dim], activation, rng, tf.tanh)

    def __call__(self, obs):
        return self.net(obs)                                    # (batch, act_dim)


class MLPQFunction(tf.Module):
    """The value of an action in an observation, under the policy."""
    def __init__(self, obs_dim, act_dim, hidden_sizes, activation, rng):
        super().__init__()
        self.q = mlp([obs_dim + act_dim, *hidden_sizes, 1], activation, rng)

    def __call__(self, obs, act):
        return tf.squeeze(self.q(tf.concat([flatten(obs), act], -1)), -1)      # squeeze: (batch,), as rew is


class MLPActorCritic(tf.Module):
    """The policy and the action-value function.

    One of your own (a CNN, say) is a tf.Module made from the same arguments, with two modules, which may share
    layers: pi(obs) -> actions in [-1, 1] (batch, act_dim);
    q(obs, act) -> values (batch,). It need not use rng, which draws the initial weights.
    """
    def __init__(self, observation_space, action_space, rng, hidden_sizes=(256, 256), activation=tf.nn.relu):
        super().__init__()
        obs_dim, act_dim = int(np.prod(observation_space.shape)), action_space.shape[0]
        self.pi = MLPActor(obs_dim, act_dim, hidden_sizes, activation, rng)
        self.q = MLPQFunction(obs_dim, act_dim, hidden_sizes, activation, rng)


mlp_actor_critic = MLPActorCritic               # its name in Spinning Up's TensorFlow files


# %% Buffer
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


# %% Losses
def compute_backup(rew, terminated, next_q, gamma):
    """backup = rew + gamma (1 - terminated) next_q: termination ends the future, truncation does not."""
    return rew + gamma * (1 - terminated) * next_q


def compute_loss_q(q, backup):
    """loss_q = mean( (q(obs, act) - backup)^2 )"""
    assert len(q.shape) == len(backup.shape) == 1, '(batch,) minus (batch, 1) would broadcast silently'
    return tf.reduce_mean((q - backup)**2)


def compute_loss_pi(q_pi):
    """loss_pi = -mean( q(obs, pi(obs)) )"""
    return -tf.reduce_mean(q_pi)


# %% Update
class Agent:
    """The networks and their optimizers: all that the training loop sees. args: the training function's arguments."""
    columns_with_min_and_max, columns_average_only = ['QVals'], ['LossPi', 'LossQ']
    noise_arrays = 0                                            # standard normal, (batch, act_dim) each, for an update

    def __init__(self, env, rng, args):
        self.args = args
        self.sess = setup_tf_for_mpi(rng.integers(2**31))       # for layers with random numbers of their own: dropout
        self.ac = args.actor_critic(env.observation_space, env.action_space, rng, **args.ac_kwargs)
        with tf.variable_scope('target'):
            self.ac_targ = args.actor_critic(env.observation_space, env.action_space, deepcopy(rng), **args.ac_kwargs)
        obs_shape, act_shape = env.observation_space.shape, env.action_space.shape
        obs, act, rew, next_obs, terminated = [tf.placeholder(tf.float32, (None, *shape)) for shape in
                                               (obs_shape, act_shape, (), obs_shape, ())]
        self.inputs = dict(obs=obs, act=act, rew=rew, next_obs=next_obs, terminated=terminated)
        self.outputs = dict(act=self.ac.pi(obs))
        self.noise = tf.placeholder(tf.float32, (self.noise_arrays, None, *act_shape))
        self.build_update(obs, act, rew, next_obs, terminated, *tf.unstack(self.noise))
        self.variables = init_variables(self.sess, self.ac.pi, self.ac.q, self.ac_targ)
        self.sess.run([p_targ.assign(p) for p_targ, p in zip(self.ac_targ.variables, self.ac.variables)])
        self.updates = 0

    def act(self, obs, noise=0):
        """An action for one observation, by the network itself; without noise, the deterministic one."""
        act = self.sess.run(self.outputs['act'], {self.inputs['obs']: obs[None]})[0]
        return np.clip(act + self.args.act_noise * noise, -1, 1)

    def update(self, batch, noise):
        """One step of q, one of the policy, and the target networks after them; returns what is logged about it."""
        feed = {self.noise: noise, **{self.inputs[key]: array for key, array in batch.items()}}
        self.updates += 1
        metrics, _ = self.sess.run([self.metrics, self.train], feed)
        return metrics

    def build_update(self, obs, act, rew, next_obs, terminated):
        """The graph of an update: each of its steps depends on those before."""
        next_q = self.ac_targ.q(next_obs, self.ac_targ.pi(next_obs))
        backup = tf.stop_gradient(compute_backup(rew, terminated, next_q, self.args.gamma))
        q = self.ac.q(obs, act)
        loss_q = compute_loss_q(q, backup)
        train_q = MpiAdamOptimizer(self.args.q_lr).minimize(loss_q, var_list=self.ac.q.trainable_variables)

        with tf.control_dependencies([train_q]):                # the policy's step uses q after q's own step
            loss_pi = compute_loss_pi(self.ac.q(obs, self.ac.pi(obs)))
            train_pi = MpiAdamOptimizer(self.args.pi_lr).minimize(loss_pi, var_list=self.ac.pi.trainable_variables)

        with tf.control_dependencies([train_pi]):               # target = polyak target + (1 - polyak) main
            self.train = tf.group([p_targ.assign_add((1 - self.args.polyak) * (p - p_targ)) for p_targ, p in
                                   zip(self.ac_targ.trainable_variables, self.ac.trainable_variables)])
        self.metrics = dict(QVals=q, LossPi=loss_pi, LossQ=loss_q)

    def get_state(self):
        """What resuming needs, equal on all processes: networks and optimizers."""
        return self.sess.run({v.op.name: v for v in self.variables})

    def set_state(self, state):
        for v in self.variables:
            v.load(state[v.op.name], self.sess)


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
@explain_arguments
def ddpg(
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
    logger.save_config(vars(args), ddpg, env)
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


# %% Command line
if __name__ == '__main__':
    command_line(ddpg)
