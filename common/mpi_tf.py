"""Data-parallel TensorFlow-1 style over MPI: equal parameters on every process, gradients averaged in one message.

`tf` is tensorflow.compat.v1 with the behaviour of version 2 off and its chatter silenced, which has to happen before it
is imported: so the algorithm files take it from here.
"""
import contextlib
import os
import warnings

import numpy as np

from common.mpi_tools import allreduce, broadcast, num_procs


@contextlib.contextmanager
def quiet():
    """Nothing on standard error: TensorFlow's C++ reports there about accelerators, before any setting can stop it."""
    keep, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        os.dup2(keep, 2)
        os.close(keep)
        os.close(null)


os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '1')         # the fast matrix products, off by default on some CPUs
with quiet():
    import tensorflow.compat.v1 as tf
    from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

tf.logging.set_verbosity(tf.logging.ERROR)
tf.disable_v2_behavior()
tf.enable_resource_variables()


def setup_tf_for_mpi(seed):
    """A session on a new default graph, with one thread; `seed` is for what a network of your own may draw."""
    tf.reset_default_graph()
    tf.set_random_seed(int(seed))
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    # TensorFlow would merge a product with the tanh behind it into one operation, which is slower than the two.
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    with quiet():
        return tf.Session(config=config)


def flat_concat(tensors):
    """All tensors as one vector."""
    return tf.concat([tf.reshape(x, [-1]) for x in tensors], axis=0)


def assign_params_from_flat(flat, params):
    """The operation that sets the variables from one vector."""
    parts = tf.split(flat, [int(np.prod(p.shape)) for p in params])
    return tf.group([p.assign(tf.reshape(part, p.shape)) for p, part in zip(params, parts)])


def sync_params(params):
    """The operation that gives every process the variables of process 0, in one message."""
    if num_procs() == 1:
        return tf.no_op()

    def broadcast_flat(flat):
        broadcast(flat)
        return flat
    flat = flat_concat(params)
    synced = tf.py_func(broadcast_flat, [flat], tf.float32)
    synced.set_shape(flat.shape)
    return assign_params_from_flat(synced, params)


def sync_all_params():
    """The operation that gives every process all variables of process 0."""
    return sync_params(tf.global_variables())


def mpi_avg_tensor(x):
    """The average of a tensor over all processes, in one message."""
    if num_procs() == 1:
        return x

    def average(local):
        total = np.empty_like(local)
        allreduce(np.ascontiguousarray(local), total)
        return total / np.float32(num_procs())
    averaged = tf.py_func(average, [x], tf.float32)
    averaged.set_shape(x.shape)
    return averaged


class MpiAdamOptimizer(tf.train.AdamOptimizer):
    """Adam on gradients averaged over all processes.

    TensorFlow adds epsilon before it corrects the bias of the second moment, and the paper and PyTorch after it; here
    it is as in the paper, so that both twins make the same steps.
    """

    def compute_gradients(self, loss, var_list, scalars=(), **kwargs):
        """Gradients and variables, averaged over all processes; with `scalars`, their averages too, sent along."""
        grads, variables = zip(*super().compute_gradients(loss, var_list, **kwargs))
        if num_procs() > 1:
            sizes = [int(np.prod(v.shape)) for v in variables] + [1] * len(scalars)
            parts = tf.split(mpi_avg_tensor(flat_concat([*grads, *scalars])), sizes)
            grads = [tf.reshape(part, v.shape) for part, v in zip(parts, variables)]
            scalars = [part[0] for part in parts[len(variables):]]
        pairs = list(zip(grads, variables))
        return (pairs, *scalars) if scalars else pairs

    def apply_gradients(self, grads_and_vars, condition=None, **kwargs):
        """The operation that makes the step; with a `condition`, only where that is true."""
        if condition is None:
            return super().apply_gradients(grads_and_vars, **kwargs)
        step = super().apply_gradients
        return tf.cond(condition, lambda: tf.group(step(grads_and_vars, **kwargs)), tf.no_op)

    def _prepare(self):
        super()._prepare()
        _, beta2_power = self._get_beta_accumulators()
        self._epsilon_t = self._epsilon_t * tf.sqrt(1 - beta2_power)


def init_weights(sess, params, rng):
    """Draw weights (out, in) and the biases behind them uniformly in +-1/sqrt(in), as the PyTorch twin does."""
    for p in params:
        if len(p.shape) == 2:
            fan_in = int(p.shape[1])
        if p.op.name.endswith(('weight', 'bias')):
            p.load((rng.uniform(-1, 1, p.shape.as_list()) / np.sqrt(fan_in)).astype(np.float32), sess)


def count_vars(scope):
    """The number of parameters in a scope of the graph."""
    return sum(int(np.prod(p.shape)) for p in tf.trainable_variables(f'{scope}/'))


def setup_saver(agent, logger):
    """Tell the logger what to save as the model, and the user how large it is."""
    logger.setup_tf_saver(agent.sess, inputs=agent.inputs, outputs=agent.outputs)
    with agent.sess.graph.as_default():
        scopes = [scope for scope in ('pi', 'v', 'main/pi', 'main/q', 'main/q1', 'main/q2') if count_vars(scope)]
        sizes = ', '.join(f'{scope.removeprefix("main/")}: {count_vars(scope)}' for scope in scopes)
    logger.log(f'Number of parameters: {sizes}')


def get_state(agent, rng):
    """What resuming needs of an agent (the same on all processes) and of this process's generator."""
    with agent.sess.graph.as_default():
        params = {p.op.name: p for p in tf.global_variables()}
    return dict(agent=agent.sess.run(params), rng=dict(numpy=rng.bit_generator.state))


def set_state(agent, rng, state):
    """Put back what `get_state` gave."""
    with agent.sess.graph.as_default():
        for p in tf.global_variables():
            p.load(state['agent'][p.op.name], agent.sess)
    agent.refresh_policy()
    rng.bit_generator.state = state['rng']['numpy']
