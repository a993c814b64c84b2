"""MPI in a few functions that work the same with one process, with many, and without any MPI installed.

`mpirun -np 4 python ppo_torch.py ...` starts four copies of a script; each asks `proc_id()` who it is and `num_procs()`
how many there are, and they meet only in the collectives below. Without mpi4py, or without an MPI library, a script is
one process and every collective returns what it was given.
"""
import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys

import numpy as np

from common.errors import ExperimentFailed, UserError, on_stop_signals
from common.stopping import others_expected, processes_started, stop_all_with_one


@functools.cache
def _world():
    """The communicator of all processes, or None where there is no MPI. Asked for first when first needed, so that
    `mpi_fork` can start mpirun from a process that has not itself started MPI."""
    try:
        with others_expected():
            from mpi4py import MPI
        world = MPI.COMM_WORLD
    except (ImportError, RuntimeError):                     # not installed, or it finds no MPI library
        world = None
    if processes_started() > 1 and (world is None or world.Get_size() == 1):
        cause = 'mpi4py is not there, or finds no MPI library' if world is None else 'it is not the mpirun of mpi4py'
        raise UserError(f'mpirun has started {processes_started()} processes that do not know of each other: {cause}. '
                        f'pip install mpi4py mpich, and start by {os.path.dirname(sys.executable)}/mpirun')
    if world and world.Get_size() > 1:
        stop_all_with_one(world)
    return world


def proc_id():
    """The number of this process: 0, ..., num_procs() - 1."""
    return _world().Get_rank() if _world() else 0


def num_procs():
    """How many processes take part."""
    return _world().Get_size() if _world() else 1


def msg(text, string=''):
    """Print `text` with the number of the process that says so."""
    print(f'Message from {proc_id()}: {string} \t {text}')


def mpi_fork(n):
    """Run this script again as `n` processes under mpirun, wait for it, and exit with its status.

    Returns at once when n is 1 or when the script already runs under mpirun. No process continues past this call twice.
    """
    if n <= 1 or os.getenv('STARTED_BY_MPI_FORK'):
        return
    # The mpich wheel puts mpirun beside the interpreter, where it is found although no environment is activated.
    here = os.path.dirname(sys.executable)
    mpirun = shutil.which('mpirun', path=here) or shutil.which('mpirun')
    try:
        import mpi4py  # noqa: F401  (importing the package, not its MPI module, starts nothing)
    except ImportError:
        mpirun = None
    if mpirun is None:
        raise UserError(f'{n} processes need mpirun and mpi4py: pip install mpi4py mpich, or leave out --cpu')
    # One thread for each: n processes that each use all cores would only wait for each other.
    env = dict(os.environ, STARTED_BY_MPI_FORK='1', OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')
    main = sys.modules['__main__']
    script = ['-m', main.__spec__.name] if main.__spec__ else [sys.argv[0]]
    # In a session of its own mpirun does not hear Ctrl-C from the terminal, but once, from here: twice, it would kill.
    process = subprocess.Popen([mpirun, '-np', str(n), sys.executable, *script, *sys.argv[1:]], env=env,
                               start_new_session=True, preexec_fn=end_with_parent if sys.platform == 'linux' else None)
    on_stop_signals(lambda number, _: process.send_signal(number))
    status = process.wait()
    if status < 0:
        raise ExperimentFailed(f'mpirun was ended by {signal.Signals(-status).name}')
    sys.exit(status)


def end_with_parent():
    """In a new process: ask Linux to end it when its parent ends, however that is killed. A run that went on unseen
    would write into the folder into which `--resume` soon writes, too."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)              # 1 is PR_SET_PDEATHSIG


def mpi_op(x, op):
    """Reduce the array or number `x` over all processes, in float64, with `op`: 'sum', 'min' or 'max'."""
    x = np.asarray(x, dtype=np.float64)
    result = x.copy(order='C')
    if num_procs() > 1:
        from mpi4py import MPI
        allreduce(result, op=getattr(MPI, op.upper()))
    return result if x.ndim else float(result)


def allreduce(x, **kwargs):
    """Replace the array `x` of every process by their sum (or by what `op` says), in place."""
    from mpi4py import MPI
    _world().Allreduce(MPI.IN_PLACE, x, **kwargs)


def mpi_sum(x):
    """The sum of `x` over all processes."""
    return mpi_op(x, 'sum')


def mpi_avg(x):
    """The average of `x` over all processes."""
    return mpi_sum(x) / num_procs()


def mpi_statistics_scalar(x, with_min_and_max=False):
    """Mean and standard deviation (and min, max) of the numbers that all processes hold together.

    In float64, and in two passes (mean first): a one-pass E[x^2] - E[x]^2 loses everything to rounding when the mean is
    large. A process may hold none; if all hold none, every statistic is nan.
    """
    x = np.asarray(x, dtype=np.float64).ravel()
    total, count = mpi_sum([x.sum(), x.size])
    if count == 0:
        return (np.nan,) * (4 if with_min_and_max else 2)
    mean = total / count
    std = np.sqrt(mpi_sum(((x - mean)**2).sum()) / count)
    if not with_min_and_max:
        return float(mean), float(std)
    low = mpi_op(x.min() if x.size else np.inf, 'min')
    high = mpi_op(x.max() if x.size else -np.inf, 'max')
    return float(mean), float(std), low, high


def broadcast(x, root=0):
    """Give every process the array `x` of process `root`, in place."""
    if num_procs() > 1:
        _world().Bcast(x, root=root)


def bcast(obj):
    """Process 0's object, on every process."""
    return _world().bcast(obj) if num_procs() > 1 else obj


def gather(obj):
    """Every process's object, as a list on process 0; None elsewhere."""
    return _world().gather(obj) if num_procs() > 1 else [obj]


def scatter(objs):
    """The item of process 0's list that is this process's own."""
    return _world().scatter(objs) if num_procs() > 1 else objs[0]
