"""Data-parallel PyTorch over MPI: equal parameters on every process, gradients averaged in one message per step."""
import contextlib
import ctypes
import os

import torch

from common.mpi_tools import allreduce, broadcast, num_procs

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3             # of mallopt, in C's malloc.h


def setup_pytorch_for_mpi(seed):
    """Settings of the whole process, not of the algorithm, and the seed of layers that draw random numbers.

    One thread, unless OMP_NUM_THREADS says otherwise: to use more cores, start more processes. The threads of an
    operation wait for the slowest of them, so two threads on two cores, one of them busy with another program, are far
    slower than one thread.
    """
    torch.manual_seed(seed)
    if 'OMP_NUM_THREADS' not in os.environ:
        torch.set_num_threads(1)
    torch.set_flush_denormal(True)                      # numbers below 1e-38 are slow, and count as zero
    # Freed memory is kept for the next tensor. The C library returns every array of a few hundred kilobytes to the
    # system, which then has to clear the pages of the next one.
    with contextlib.suppress(OSError, AttributeError):  # other C libraries have no mallopt
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, 2**26)


def sync_params(module):
    """Give every process the parameters of process 0, and the buffers that layers may keep, in one message."""
    if num_procs() > 1:
        tensors = [x for x in (*module.parameters(), *module.buffers()) if x.is_floating_point()]
        flat = torch.nn.utils.parameters_to_vector(tensors).detach()
        broadcast(flat.numpy())
        set_flat(tensors, flat)


def set_flat(params, flat):
    """Copy a vector into parameters. PyTorch's vector_to_parameters would make them views of it, at other addresses
    than those of a resumed run, and matrix products may round differently there."""
    for p, part in zip(params, flat.split([p.numel() for p in params])):
        p.data.copy_(part.view_as(p))


def mpi_avg_grads(module, number=0.0):
    """Average a module's gradients over all processes, in one message; returns the average of `number`, sent along."""
    if num_procs() == 1:
        return float(number)
    params = [p for p in module.parameters() if p.grad is not None]         # frozen layers have none
    flat = torch.cat([*[p.grad.reshape(-1) for p in params], torch.tensor([float(number)])])
    allreduce(flat.numpy())
    flat /= num_procs()
    for p, part in zip(params, flat.split([p.numel() for p in params] + [1])):
        p.grad = part.view_as(p)
    return flat[-1].item()


def count_vars(module):
    """The number of a module's parameters."""
    return sum(p.numel() for p in module.parameters())


def check_moments(optimizer, state_dict):
    """Refuse a checkpoint whose moments do not have their parameters' shapes. PyTorch does not look, and its fused
    steps would read and write beyond the end of a smaller array."""
    saved = [index for group in state_dict['param_groups'] for index in group['params']]
    for index, p in zip(saved, (p for group in optimizer.param_groups for p in group['params'])):
        for key, value in state_dict['state'].get(index, {}).items():
            if value.shape != (() if key == 'step' else p.shape):
                raise ValueError(f'{key} of Adam has the shape {tuple(value.shape)}')


def setup_saver(agent, logger):
    """Tell the logger what to save as the model, and the user how large it is."""
    logger.setup_pytorch_saver(agent.ac)
    for part in vars(agent).values():
        if isinstance(part, torch.optim.Optimizer):
            part.register_load_state_dict_pre_hook(check_moments)
    sizes = ', '.join(f'{name}: {count_vars(net)}' for name, net in agent.ac.named_children())
    logger.log(f'Number of parameters: {sizes}')
