"""Data-parallel PyTorch over MPI: equal parameters on every process, gradients averaged in one message per step."""
import contextlib
import ctypes
import os

import numpy as np
import torch

from common.mpi_tools import allreduce, broadcast, num_procs

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3 # of mallopt, in C's malloc.h
SPARE = 4                                   # room behind the gradients for numbers that travel with them


def setup_pytorch_for_mpi():
    """One thread, unless OMP_NUM_THREADS says otherwise: to use more cores, start more processes.

    The threads of an operation wait for the last of them, and small operations do so all the time. On two free cores
    two threads are up to 1.4 times as fast; with another program on one of the two, they take many times as long.
    And, for this whole thread: numbers below 1e-38 count as zero, and freed memory is kept.
    """
    if 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)
    torch.set_flush_denormal(True)                      # such numbers are slow: 6 to 11 % of an off-policy update
    keep_freed_memory()


def keep_freed_memory():
    """Let the C library keep freed memory for the next tensor.

    As it is, it returns every array of a few hundred kilobytes to the system, which then has to clear the pages of the
    next one: up to a fifth of the time of an update.
    """
    with contextlib.suppress(OSError, AttributeError):              # other C libraries have no mallopt
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, 2**26)


def init_weights(module, rng):
    """Draw the weights and biases of all linear layers uniformly in +-1/sqrt(fan_in).

    That is PyTorch's own default, but from our generator, so that the TensorFlow twin starts from the same numbers.
    """
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            for p in layer.parameters():
                p.data.copy_(torch.as_tensor(rng.uniform(-1, 1, p.shape) / np.sqrt(layer.in_features)))


def sync_params(module):
    """Give every process the parameters of process 0, in one message."""
    if num_procs() == 1:
        return
    params = list(module.parameters())
    flat = np.concatenate([p.detach().numpy().ravel() for p in params])
    broadcast(flat)
    with torch.no_grad():
        for p, new in zip(params, np.split(flat, np.cumsum([p.numel() for p in params])[:-1])):
            p.copy_(torch.from_numpy(new).view_as(p))


def parameters(module):
    """The list of a module's parameters, made once: to go through its layers takes as long as an operation on them."""
    if not hasattr(module, '_parameter_list'):
        module._parameter_list = list(module.parameters())
    return module._parameter_list


def flat_grads(module):
    """One buffer for all gradients of a module, made when first asked for: each parameter's .grad is a view of it.

    So averaging over processes is a single in-place Allreduce, without packing and unpacking. optimizer.zero_grad()
    would drop the views; use `zero_grads`.
    """
    if not hasattr(module, '_flat_grads'):
        params = parameters(module)
        flat = torch.zeros(sum(p.numel() for p in params) + SPARE)
        for p, part in zip(params, flat[:-SPARE].split([p.numel() for p in params])):
            p.grad = part.view_as(p)
        module._flat_grads = flat
    return module._flat_grads


def zero_grads(module):
    """Forget all gradients of a module. A process alone needs no buffer: autograd then makes them, without adding."""
    if num_procs() > 1:
        flat_grads(module).zero_()
    else:
        for p in parameters(module):
            p.grad = None


def mpi_avg_grads(module, *scalars):
    """Average the gradients of a module over all processes, in place; returns the averages of `scalars`, sent along."""
    if num_procs() > 1:
        data = flat_grads(module).numpy()
        spare = data[len(data) - SPARE:][:len(scalars)]
        spare[:] = [float(scalar) for scalar in scalars]
        allreduce(_in_place(), data)
        data /= num_procs()
        scalars = spare.tolist()
    return [float(scalar) for scalar in scalars]


def _in_place():
    from mpi4py import MPI
    return MPI.IN_PLACE


def count_vars(module):
    """The number of a module's parameters."""
    return sum(p.numel() for p in module.parameters())


def setup_saver(agent, logger):
    """Tell the logger what to save as the model, and the user how large it is."""
    logger.setup_pytorch_saver(agent.ac)
    sizes = ', '.join(f'{name}: {count_vars(net)}' for name, net in agent.ac.named_children())
    logger.log(f'Number of parameters: {sizes}')


def get_state(agent, rng):
    """What resuming needs of an agent (the same on all processes) and of this process's generators."""
    parts = {name: part.state_dict() for name, part in vars(agent).items() if hasattr(part, 'state_dict')}
    return dict(agent=parts, rng=dict(numpy=rng.bit_generator.state, torch=torch.get_rng_state()))


def set_state(agent, rng, state):
    """Put back what `get_state` gave."""
    for name, part in state['agent'].items():
        getattr(agent, name).load_state_dict(part)
    rng.bit_generator.state = state['rng']['numpy']
    torch.set_rng_state(state['rng']['torch'])
