"""Data-parallel TensorFlow-1 style over MPI: equal parameters on every process, gradients averaged in one message.

`tf` is tensorflow.compat.v1 with version 2 behaviour switched off and its log messages silenced, which has to happen
before it is imported: so the algorithm files take it from here.
"""
import contextlib
import os
import warnings

import numpy as np

from common.errors import UserError
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
    """A session on a new default graph, in one thread; `seed` is for layers that draw random numbers."""
    tf.reset_default_graph()
    tf.set_random_seed(int(seed))
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=-1)      # -1: in this one
    # TensorFlow would fuse a matrix product with the tanh after it into one operation, which is slower than the two.
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    with quiet():
        return tf.Session(config=config)


def init_variables(sess, *networks):
    """Initialise all variables, to equal values on all processes; returns them.

    A trainable variable that belongs to none of the `networks`, and that no optimizer would train, is refused.
    """
    trained = {v.ref() for network in networks for v in network.trainable_variables}
    others = [v.op.name for v in tf.trainable_variables() if v.ref() not in trained]
    if others:
        raise UserError(f'nothing would train {", ".join(others)}: make variables in __init__, and keep them, or the '
                        'tf.Module that has them, as attributes of the networks that the actor_critic consists of')
    sess.run(tf.global_variables_initializer())
    sess.run(sync_all_params())
    return tf.global_variables()


def flat_concat(tensors):
    """All tensors as one vector."""
    return tf.concat([tf.reshape(x, [-1]) for x in tensors], axis=0)


def split_flat(flat, shapes):
    """The reverse of `flat_concat`: tensors of these shapes."""
    parts = tf.split(flat, [int(np.prod(shape)) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes)]


def sync_params(params):
    """The operation that gives every process the variables of process 0, in one message."""
    if num_procs() == 1:
        return tf.no_op()

    def broadcast_flat(flat):
        flat = flat.copy()
        broadcast(flat)
        return flat
    flat = flat_concat(params)
    synced = tf.py_func(broadcast_flat, [flat], tf.float32)
    synced.set_shape(flat.shape)
    return tf.group([p.assign(part) for p, part in zip(params, split_flat(synced, [p.shape for p in params]))])


def sync_all_params():
    """The operation that gives every process all variables of process 0."""
    return sync_params(tf.global_variables())


def mpi_avg_tensor(x):
    """The average of a tensor over all processes, in one message."""
    if num_procs() == 1:
        return x

    def average(local):
        total = local.copy()
        allreduce(total)
        return total / np.float32(num_procs())
    averaged = tf.py_func(average, [x], tf.float32)
    averaged.set_shape(x.shape)
    return averaged


class MpiAdamOptimizer(tf.train.AdamOptimizer):
    """Adam on gradients averaged over all processes.

    TensorFlow adds epsilon before it corrects the bias of the second moment, the paper and PyTorch after; here it is
    done as in the paper, so that both twins take the same steps.
    """

    def compute_gradients(self, loss, var_list, number=None, **kwargs):
        """Gradients and variables, averaged in one message; with a `number`, also its average, sent along."""
        pairs = [(grad, v) for grad, v in super().compute_gradients(loss, var_list, **kwargs) if grad is not None]
        if num_procs() > 1:
            grads, variables = zip(*pairs)
            flat = mpi_avg_tensor(flat_concat([*grads, 0.0 if number is None else number]))
            *grads, average = split_flat(flat, [v.shape for v in variables] + [()])
            pairs, number = list(zip(grads, variables)), None if number is None else average
        return pairs if number is None else (pairs, number)

    def _prepare(self):
        super()._prepare()
        _, beta2_power = self._get_beta_accumulators()
        self._epsilon_t = self._epsilon_t * tf.sqrt(1 - beta2_power)


def count_vars(network):
    """The number of a network's parameters."""
    return sum(int(np.prod(p.shape)) for p in network.trainable_variables)


def setup_saver(agent, logger):
    """Tell the logger what to save as the model, and the user how large it is."""
    inputs = {key: agent.inputs[key] for key in ('obs', 'noise') if key in agent.inputs}
    logger.setup_tf_saver(agent.sess, inputs, dict(act=agent.outputs['act']))
    networks = {name: net for name, net in sorted(vars(agent.ac).items()) if isinstance(net, tf.Module)}
    logger.log('Number of parameters: ' + ', '.join(f'{name}: {count_vars(net)}' for name, net in networks.items()))
