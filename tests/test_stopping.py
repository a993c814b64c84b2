"""Stopping a run, by signals and by errors, of all processes and of one: all end, say why, and can be resumed.

A toy trains in most tests, since it starts fast; the algorithm files themselves are stopped in the last ones.
"""
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from common import stopping
from common.errors import one_line_errors
from common.logx import Logger, read_progress
from helpers import MPIRUN, ROOT, needs_mpirun

TOY = '''
import os, signal, sys, time
if os.getenv('BEFORE') and os.environ['PMI_RANK'] == '1':
    exec(os.environ['BEFORE'])
from common import stopping
from common.errors import UserError
from common.logx import Logger
from common.mpi_tools import mpi_sum, proc_id
from common.run_utils import command_line
stopping.GRACE = int(os.getenv('GRACE', 50))


def toy(env_fn, seed=0, epochs=100000, save_freq=10, logger_kwargs=dict()):
    logger = Logger(**logger_kwargs)
    logger.save_config(dict(seed=seed, epochs=epochs))
    saved = logger.load_state()
    for epoch in range(saved['epoch'] if saved else 0, epochs):
        if epoch == 3 and os.getenv('PROCESS', 'all') in ('all', str(proc_id())):
            exec(os.getenv('FAULT', ''))
        time.sleep(0.02)
        logger.log_tabular('Epoch', epoch)
        logger.log_tabular('Sum', mpi_sum(epoch))
        logger.dump_tabular()
        if epoch % save_freq == 0 or epoch == epochs - 1 or logger.interrupted():
            logger.save_state(dict(epoch=epoch + 1), itr=epoch)


if __name__ == '__main__':
    toy(None, logger_kwargs=dict(output_dir='data/x/x_s0')) if os.getenv('PLAIN') else command_line(toy)
'''
ARGUMENTS = '--env CartPole-v1 --exp_name x'.split()
HANG = 'open("hanging", "w"); time.sleep(100)'
AT_ONCE = 'interrupted; the same command with --resume'
linux = pytest.mark.skipif(sys.platform != 'linux', reason='processes are found in /proc')


def listen():
    """In a new process: SIGINT, which shells let background jobs ignore, and so perhaps these tests, has its effect."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Job:
    """A command in a folder of its own, and all the processes that it starts, which are known by a mark."""

    def __init__(self, folder, command, **variables):
        self.mark, self.folder, self.run = f'MARK={uuid.uuid4().hex}', folder, folder / 'data' / 'x' / 'x_s0'
        self.command = list(map(str, command))
        self.env = dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')
        with open(folder / 'err', 'w') as err:
            env = dict(self.env, MARK=self.mark[5:], **variables)
            self.process = subprocess.Popen(self.command, cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=err, preexec_fn=listen)

    def alive(self):
        """The processes that go on, by name ('process 1' for those of mpirun), with their ids."""
        found = {}
        for path in Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):                      # it has just ended, or is somebody else's
                variables = (path / 'environ').read_text(errors='replace').split('\0')
                if self.mark in variables and ') Z ' not in (path / 'stat').read_text():
                    rank = [f'process {entry[9:]}' for entry in variables if entry.startswith('PMI_RANK=')]
                    found[rank[0] if rank else (path / 'comm').read_text().strip()] = int(path.name)
        return found

    def wait_until(self, condition, seconds=120):
        deadline = time.time() + seconds
        while not condition():
            assert time.time() < deadline, f'{self.said()}\nstill there: {self.alive()}'
            time.sleep(0.05)

    def rows(self):
        return len(read_progress(self.run / 'progress.txt')[1])

    def kill(self, name, number, rows=3):
        """Send a signal to the process with this name, or to the first of them, once there are some rows, or one
        hangs."""
        self.wait_until(lambda: self.rows() >= rows or (self.folder / 'hanging').exists() or self.process.poll())
        os.kill(self.alive()[name] if name else self.process.pid, number)

    def said(self):
        return (self.folder / 'err').read_text()

    def end(self):
        """Wait until all processes have ended; the status of the first, and what they said."""
        try:
            self.wait_until(lambda: self.process.poll() is not None and not self.alive(), 60)
        finally:
            for number in self.alive().values():
                os.kill(number, signal.SIGKILL)
        return self.process.wait(), self.said()

    def resumes(self):
        """--resume goes on from the rows that are saved, for another epoch."""
        rows = self.rows()
        command = [*self.command, '--resume', '--epochs', str(rows + 1)]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        epochs = [row['Epoch'] for row in read_progress(self.run / 'progress.txt')[1]]
        assert epochs == [str(epoch) for epoch in range(rows + 1)]
        return done.stdout


@pytest.fixture
def start(tmp_path):
    """Start the toy, or an algorithm file; with several processes under mpirun."""
    def job(processes=1, script='toy.py', arguments=ARGUMENTS, prefix=(), **variables):
        (tmp_path / 'toy.py').write_text(TOY)
        mpirun = [MPIRUN, '-np', processes] if processes > 1 else []
        return Job(tmp_path, [*prefix, *mpirun, sys.executable, script, *arguments], **variables)
    return job


# ---- One process

@linux
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_run_at_the_end_of_its_epoch(start, number):
    job = start()
    job.kill(None, number, rows=15)
    status, said = job.end()
    last = job.rows() - 1
    assert status == 130 and 'toy.py: stopping at the end of the epoch' in said
    assert f'toy.py: interrupted after epoch {last}, which is saved, by {number.name}; the same command with' in said
    assert f'Resuming after row {last + 1} ' in job.resumes(), 'the last of the rows, though only each tenth is saved'


@linux
@pytest.mark.parametrize(('grace', 'signals'), [('50', 2), ('2', 1)])
def test_a_second_signal_and_the_end_of_patience_stop_it_at_once(start, grace, signals):
    job = start(FAULT=HANG, GRACE=grace)
    job.kill(None, signal.SIGINT, rows=4)
    for _ in range(signals - 1):
        time.sleep(1.5)                                 # signals that come together are one
        job.process.send_signal(signal.SIGINT)
    status, said = job.end()
    assert status == 130 and f'toy.py: {AT_ONCE}' in said and job.rows() == 3


@linux
def test_patience_ends_where_python_has_not_seen_the_signal(start):
    """Python handles a signal when its main thread is back from C, and sleeps on if the signal came just before."""
    job = start(FAULT=f'signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); {HANG}', GRACE='2')
    job.wait_until((job.folder / 'hanging').exists)
    job.process.send_signal(signal.SIGTERM)             # another thread gets it
    status, said = job.end()
    assert status == 130 and said.endswith(f'{AT_ONCE} goes on from the last checkpoint\n') and job.rows() == 3
    assert 'Traceback' not in said and 'at the end of the epoch' not in said


@linux
def test_patience_ends_where_ctrl_c_is_ignored(start):
    """As it is in the background of a shell script, and under nohup."""
    job = start(FAULT=HANG, GRACE='2', prefix=['sh', '-c', 'trap "" INT; exec "$@"', 'sh'])
    job.kill(None, signal.SIGTERM, rows=4)
    status, said = job.end()
    assert status == 130 and f'toy.py: {AT_ONCE}' in said and job.rows() == 3


def test_only_a_run_of_the_command_line_is_asked_to_stop(tmp_path, monkeypatch):
    """Elsewhere Ctrl-C raises KeyboardInterrupt at once: in Python, in a notebook, in a tool, and after the run."""
    def handlers():
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    before = handlers()
    Logger(tmp_path / '0')
    assert handlers() == before
    with one_line_errors('tool'):
        Logger(tmp_path / '1')
        assert handlers() == [signal.default_int_handler] * 2
    with one_line_errors('ppo_torch.py', '; resume it'):
        assert handlers() == [signal.default_int_handler] * 2
        logger = Logger(tmp_path / '2')
        assert handlers() == [stopping._ask] * 2 and not logger.interrupted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert logger.interrupted() == 'by SIGTERM'
        with pytest.raises(KeyboardInterrupt, match='after epoch 7, which is saved, by SIGTERM'):
            logger.save_state({}, itr=7)
        assert not Logger(tmp_path / '3').interrupted(), 'another run'
        monkeypatch.setattr(stopping, 'in_notebook', lambda: True)
    with one_line_errors('ppo_torch.py', '; resume it'):
        Logger(tmp_path / '4')
        assert handlers() == [signal.default_int_handler] * 2
    assert handlers() == before


# ---- Several processes

@needs_mpirun
@linux
@pytest.mark.parametrize(('name', 'number', 'place'), [
    (None, signal.SIGINT, 'to process 0 of 2'), (None, signal.SIGTERM, 'to process 0 of 2'),
    ('process 1', signal.SIGTERM, 'to process 1 of 2'), ('process 1', signal.SIGINT, 'to process 1 of 2')])
def test_a_signal_to_mpirun_or_to_one_process_stops_all_at_the_end_of_the_epoch(start, name, number, place):
    job = start(2)
    job.kill(name, number, rows=15)
    status, said = job.end()
    last = job.rows() - 1
    assert status == 130
    assert f'toy.py: interrupted after epoch {last}, which is saved, by {number.name} {place}; the same command' in said
    assert f'Resuming after row {last + 1} ' in job.resumes()


@needs_mpirun
@linux
@pytest.mark.parametrize(('processes', 'fault', 'status', 'message'), [
    (2, 'raise UserError("the reason")', 2, 'error: the reason'),
    (4, 'sys.exit(3)', 3, 'error: sys.exit(3)'),
    (2, 'sys.exit()', 1, 'error: sys.exit(None)'),
    (2, 'raise SystemExit("the reason")', 1, "error: sys.exit('the reason')"),
    (4, 'raise KeyboardInterrupt', 130, AT_ONCE)])
def test_an_error_of_one_process_ends_all(start, processes, fault, status, message):
    job = start(processes, FAULT=fault, PROCESS='1')
    assert job.end()[0] == status
    assert f'toy.py: process 1 of {processes}: {message}' in job.said()
    job.resumes()


@needs_mpirun
@linux
def test_sys_exit_of_one_process_in_a_program_of_ones_own(start):
    """Which calls a training function, and has no command line that would hear of it."""
    status, said = start(2, FAULT='sys.exit(3)', PROCESS='1', PLAIN='1').end()
    assert status == 3 and 'python: process 1 of 2: error: sys.exit(3)' in said


@needs_mpirun
@linux
@pytest.mark.parametrize(('fault', 'status', 'message'), [
    ('raise UserError("the reason")', 2, 'error: the reason'), ('sys.exit(3)', 3, 'error: sys.exit(3)')])
def test_an_error_of_all_processes_is_shown_once(start, fault, status, message):
    assert start(4, FAULT=fault).end() == (status, f'toy.py: {message}\n')


@needs_mpirun
@linux
@pytest.mark.parametrize(('name', 'place'), [(None, 'process 0 of 2'), ('process 1', 'process 1 of 2')])
def test_patience_ends_where_a_process_waits_in_a_collective(start, name, place):
    """Python answers no signal there."""
    job = start(2, GRACE='2', PROCESS='0' if name else '1', FAULT=HANG)
    job.kill(name, signal.SIGTERM, rows=4)
    status, said = job.end()
    assert status == 130 and f'toy.py: {place}: interrupted by SIGTERM, 2 seconds ago; the same command' in said


@needs_mpirun
@linux
@pytest.mark.parametrize(('code', 'message'), [
    ('import missing_module', 'process 0 of 2: error: another process has ended; see what it says'),
    ('sys.argv += ["--seeed", "1"]', 'process 1 of 2: error: unknown argument --seeed')])
def test_a_process_that_fails_before_mpi_is_there(start, code, message):
    """As where one of several hosts lacks a module."""
    status, said = start(2, BEFORE=code).end()
    assert status != 0 and message in said


@needs_mpirun
@linux
@pytest.mark.parametrize('name', [None, 'hydra_pmi_proxy'])             # the latter is mpirun's, one on each host
def test_nothing_outlives_mpirun(start, name):
    job = start(2)
    job.kill(name, signal.SIGKILL)
    assert job.end()[0] != 0
    job.resumes()


@needs_mpirun
@linux
@pytest.mark.parametrize(('number', 'status'), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_the_processes_of_cpu_end_with_the_one_that_started_them(start, number, status):
    job = start(arguments=[*ARGUMENTS, '--cpu', '2'])
    job.kill(None, number, rows=15)
    assert job.end()[0] == status
    assert f'toy.py: interrupted after epoch {job.rows() - 1}, which is saved' in job.said()
    assert job.said().count('interrupted') == 1, 'the first process only waits for the others'
    assert f'Resuming after row {job.rows()} ' in job.resumes()


@needs_mpirun
@linux
def test_a_signal_to_a_process_that_an_environment_forks_is_not_the_run_s(start):
    fork = ('import multiprocessing; p = multiprocessing.Process(target=time.sleep, args=(99,)); p.start(); '
            'time.sleep(0.5); p.terminate(); p.join()')
    job = start(2, FAULT=f'{fork}; time.sleep(3)', GRACE='1', arguments=[*ARGUMENTS, '--epochs', '5'])
    assert job.end() == (0, '') and job.rows() == 5


# ---- The algorithm files

ON_POLICY = '--env CartPole-v1 --steps_per_epoch 200 --train_v_iters 5'.split()
OFF_POLICY = '''--env Pendulum-v1 --steps_per_epoch 200 --start_steps 100 --update_after 100 --num_test_episodes 1
                --batch_size 16'''.split()


@needs_mpirun
@linux
@pytest.mark.parametrize(('script', 'processes', 'name', 'number'), [
    ('ppo_torch', 4, None, signal.SIGINT), ('sac_torch', 2, 'process 1', signal.SIGTERM),
    ('ppo_tf1', 2, None, signal.SIGTERM), ('sac_tf1', 2, None, signal.SIGINT)])
def test_algorithm_files_are_stopped_and_resumed(start, script, processes, name, number):
    pytest.importorskip('torch' if script.endswith('torch') else 'tensorflow')
    arguments = [*(ON_POLICY if script.startswith('ppo') else OFF_POLICY), '--hid', '16', '--exp_name', 'x']
    job = start(processes, f'{ROOT}/{script}.py', arguments)
    job.kill(name, number)
    status, said = job.end()
    assert status == 130 and f'{script}.py: interrupted after epoch {job.rows() - 1}, which is saved, by' in said
    job.resumes()
