"""A perceptron's answer to one observation, in numpy: 6 us where either framework takes 340.

An environment is stepped one observation at a time, and for a batch of one the time of a framework goes into its own
machinery. Training works on the networks; only acting goes through here.
"""
import numpy as np

from common.mpi_tools import UserError

ACTIVATIONS = {
    'tanh': np.tanh,
    'relu': lambda x: np.maximum(x, 0),
    'elu': lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    'sigmoid': lambda x: (1 + np.tanh(x / 2)) / 2,                  # the same as 1 / (1 + exp(-x)), without overflow
    'softplus': lambda x: np.logaddexp(x, 0),
    'softsign': lambda x: x / (1 + np.abs(x)),
    'silu': lambda x: x * (1 + np.tanh(x / 2)) / 2,
    'identity': lambda x: x,
}


def numpy_mlp(params, activation):
    """The perceptron with params [weight, bias, weight, bias, ...], weights (out, in), and the framework's activation.

    It keeps the arrays themselves: where they share memory with a network, it follows that network's training.
    """
    name = getattr(activation, '__name__', repr(activation))
    known = ACTIVATIONS.get(name.lower().replace('_', ''))
    if known is None:
        raise UserError(f'the activation {name} is not supported; there are: {", ".join(ACTIVATIONS)}')
    *hidden, (last_weight, last_bias) = zip(params[::2], params[1::2])

    def forward(x):
        x = x.reshape(-1)
        for weight, bias in hidden:
            x = known(weight @ x + bias)
        return last_weight @ x + last_bias
    return forward
