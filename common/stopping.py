"""Stopping a run: by Ctrl-C or SIGTERM, or by an error in one process, which the others would not notice.

- From the command line, Ctrl-C and SIGTERM only ask a training run to stop, which it does when its epoch has ended and
  is saved: see Logger.interrupted. A second signal stops it at once, and so does a wait of GRACE seconds. Everywhere
  else, as in a notebook, they raise KeyboardInterrupt, as usual in Python.
- A process in a collective waits forever if another one has ended, and answers no signal. So a process that fails ends
  the others, and in each process a thread watches for signals, and for the end of mpirun, on the main thread's behalf.
"""
import contextlib
import faulthandler
import functools
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

from common.errors import STOP_SIGNALS, Ended, UserError, command, in_notebook, on_stop_signals

EXIT = sys.exit
GRACE = 4                                                   # seconds; with what follows, ten at most
several = SimpleNamespace(world=None, ends=None)            # where there are several processes: MPI's communicator,
asked = SimpleNamespace(signal=0, time=math.inf)            # and one for the end; the first signal, and its time


def processes_started():
    """How many processes mpirun says it has started, by the variables of mpich and Open MPI. MPI need not be there."""
    return int(os.getenv('PMI_SIZE') or os.getenv('OMPI_COMM_WORLD_SIZE') or 1)


# ---- Signals

def finish_epoch_first():
    """From here on Ctrl-C and SIGTERM only ask to stop, if this is a run of the command line."""
    asked.signal, asked.time = 0, math.inf
    if command.hint and os.name == 'posix' and not in_notebook() and on_stop_signals(_ask):
        _watch_signals()


def _ask(number, _):
    now = time.time()
    if now - asked.time > 1:                                # two at once are one signal, sent to mpirun, too
        asked.time = now
        raise KeyboardInterrupt
    if asked.time == math.inf and not (several.world and several.world.Get_rank()):
        os.write(2, f'\n{command.program}: stopping at the end of the epoch, or in {GRACE} seconds\n'.encode())
    asked.signal, asked.time = number, min(asked.time, now)


def _forget():
    """For a process that an environment forks: its end is not the end of the run."""
    several.world, sys.excepthook, sys.exit = None, sys.__excepthook__, EXIT
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C: its parent decides


def _write_signals_to(pipe):
    with contextlib.suppress(ValueError):                   # only the main thread can; its signals are for this one
        signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)


@functools.cache                                            # once
def _watch_signals():
    """Start a thread that ends this process GRACE seconds after a signal or, with several processes, when its parent,
    which belongs to mpirun, is gone. Python writes the number of a signal to a pipe as soon as it arrives."""
    def watch():
        deadline, number = math.inf, 0
        while time.time() < deadline:
            told = os.read(read_end, 1)[0] if select.select([read_end], [], [], 0.5)[0] else 0
            if told in STOP_SIGNALS and not number:         # process 0 a bit earlier: it speaks for all if it can
                deadline, number = time.time() + GRACE + (rank > 0), told
            if world and os.getppid() != parent:
                os._exit(1)
        if world:
            cause = f'interrupted by {signal.Signals(number).name}, {GRACE} seconds ago'
            os.write(2, f'{command.program}: {_place(rank, world.Get_size())}: {cause}{command.hint}\n'.encode())
            _abort(130)
        elif command.hint:                                  # else the run is over already
            asked.time = 0                                  # also if the main thread, in C, has not heard of it yet
            background = signal.getsignal(signal.SIGINT) is signal.SIG_IGN      # or under nohup
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM if background else signal.SIGINT)
    world, parent, (read_end, write_end) = several.world, os.getppid(), os.pipe()
    rank = world.Get_rank() if world else 0
    os.set_blocking(write_end, False)
    _write_signals_to(write_end)
    os.register_at_fork(before=functools.partial(_write_signals_to, -1), after_in_child=_forget,
                        after_in_parent=functools.partial(_write_signals_to, write_end))
    threading.Thread(target=watch, daemon=True).start()


# ---- Errors of one process among several

def stop_all_with_one(world):
    """From here on, none of these processes leaves the others waiting."""
    several.world, several.ends = world, world.Dup()        # messages about the end are kept apart from training's
    sys.excepthook, sys.exit = _show_and_abort, _exit
    _watch_signals()


def _place(rank, size):
    return f'process {rank} of {size}'


def _abort(status):
    time.sleep(0.5)                                         # mpirun drops what it has not passed on by then
    several.world.Abort(status)


def _show_and_abort(kind, error, trace):
    """sys.excepthook: all processes end, with the traceback of this one."""
    place = _place(several.world.Get_rank(), several.world.Get_size())
    sys.stdout.flush()
    sys.stderr.write(f'{place.capitalize()} failed, so all of them stop:\n')
    sys.stderr.write(''.join(traceback.format_exception(kind, error, trace)))
    sys.stderr.flush()
    _abort(1)


def _exit(status=None):
    """sys.exit, which sys.excepthook does not hear of."""
    if status:
        end_together(f'{command.program}: error: sys.exit({status!r})', status)
    raise SystemExit(status)


def end_together(line, status):
    """End this process with a line that says why. If all processes end like this within two seconds, only process 0
    prints it; otherwise this one does, with its number, and ends the others."""
    rank = 0
    if several.world or processes_started() > 1:
        from common import mpi_tools
        try:
            rank, size = mpi_tools.proc_id(), mpi_tools.num_procs()
            all_end, deadline = several.ends and several.ends.Ibarrier(), time.time() + 2
            while size > 1 and not all_end.Test():
                if time.time() > deadline:
                    print(line.replace(': ', f': {_place(rank, size)}: ', 1), file=sys.stderr, flush=True)
                    _abort(status)
                time.sleep(0.01)
        except UserError:                                   # MPI itself is wrong: one process of each host says so
            rank = int(os.getenv('MPI_LOCALRANKID') or os.getenv('OMPI_COMM_WORLD_LOCAL_RANK') or 0)
    if rank == 0:
        print(line, file=sys.stderr)
    raise Ended(status)


def _sibling_has_ended():
    """Whether mpich's mpirun has fewer processes on this host than it started, as far as Linux tells."""
    with contextlib.suppress(OSError):
        proxy = os.getppid()
        if 'pmi_proxy' in Path(f'/proc/{proxy}/comm').read_text():
            siblings = Path(f'/proc/{proxy}/task/{proxy}/children').read_text().split()
            return len(siblings) < int(os.environ['MPI_LOCALNRANKS'])
    return False


@contextlib.contextmanager
def others_expected():
    """MPI starts when all processes have got this far, and mpirun does not tell if one has failed before. So this one
    ends if it can see that, or if MPI has not started after a minute. (Python's timer works while MPI waits in C.)"""
    if processes_started() == 1:
        yield
        return
    if _sibling_has_ended():
        time.sleep(1)                                       # mpirun may just not have started all of them yet
        if _sibling_has_ended():
            place = _place(os.getenv('PMI_RANK'), processes_started())
            os.write(2, f'{command.program}: {place}: error: another process has ended; see what it says\n'.encode())
            os._exit(1)
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
