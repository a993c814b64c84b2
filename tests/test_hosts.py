"""Training on several hosts, which are made on this machine: two network namespaces, joined by a cable.

Each host has its own name, processes, shared memory and network; the only way from one to the other is the cable, where
what passes is counted. They have the same programs, as the hosts of a cluster should, but not the same folder of
results. All of this is made in namespaces of its own, and gone when the last process in them has ended: nothing on the
machine is changed. Without the right to make them (in most containers, say) the tests are skipped.

Under mpirun this file is a script: see `train`.
"""
import functools
import importlib
import os
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec

import gymnasium as gym
import numpy as np
import pytest

from common.mpi_tools import gather, num_procs, proc_id
from common.serialization import load_tree, save_tree
from helpers import MPIRUN, ROOT, count_messages, needs_mpirun, read_progress
from tools.twins import flat, parameters

RUNS = dict(
    ppo_torch=('CartPole-v1', dict(epochs=2, steps_per_epoch=400, train_pi_iters=10, train_v_iters=10)),
    sac_tf1=('Pendulum-v1', dict(epochs=2, steps_per_epoch=200, start_steps=100, update_after=100, num_test_episodes=2,
                                 ac_kwargs=dict(hidden_sizes=(32, 32)))),
)
NAMESPACES = 'unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc'
MAKE_HOSTS = '''
set -e
hostname left
mount -t tmpfs tmpfs /run                       # where ip keeps the names of network namespaces
mount --bind hosts /etc/hosts
for host in left right; do ip netns add $host; ip -n $host link set lo up; done
ip link add cable netns left type veth peer name cable netns right
ip -n left address add 10.9.8.1/24 dev cable
ip -n right address add 10.9.8.2/24 dev cable
for host in left right; do ip -n $host link set cable up; done
for host in left right; do until ip -n $host link show cable | grep -q 'state UP'; do sleep 0.05; done; done
'''
# What mpirun starts in place of ssh, with the same arguments: -x HOST COMMAND. As with ssh, the environment's variables
# do not come along; mpirun itself hands them to the processes. The folder of results is another one, and empty.
LAUNCHER = f'''#!/bin/sh
test "$1 $2" = '-x right' || exit 1
shift 2
exec env -i PATH="$PATH" ip netns exec right {NAMESPACES} sh -c "
    hostname right; mount -t tmpfs tmpfs {{folder}}/results; $*"
'''


def train(name, folder):
    """What a process does. Process 0 leaves FOLDER/NAME.npz, with reports of all."""
    world, (env_name, kwargs) = count_messages(), RUNS[name]
    train_fn = getattr(importlib.import_module(name), name.split('_')[0])
    agent = train_fn(functools.partial(gym.make, env_name), logger_kwargs=dict(output_dir=f'{folder}/{name}'), **kwargs)
    reports = gather(dict(host=socket.gethostname(), processes=num_procs(), bytes=world.bytes,
                          files=os.listdir(folder), parameters=flat(parameters(agent), '')))
    if proc_id() == 0:
        save_tree(f'{folder}/{name}.npz', reports)


@pytest.fixture
def on_two_hosts(tmp_path):
    """A function that runs a command on the host `left`, from where mpirun reaches `right`; returns what it printed."""
    path = f'{os.environ["PATH"]}:/usr/sbin:/sbin'
    missing = [tool for tool in ('ip', 'unshare') if shutil.which(tool, path=path) is None]
    if missing:
        pytest.skip(f'{missing[0]} is not installed (Debian: iproute2, util-linux)')
    (tmp_path / 'results').mkdir()
    (tmp_path / 'hosts').write_text('127.0.0.1 localhost\n10.9.8.1 left\n10.9.8.2 right\n')
    (tmp_path / 'launcher').write_text(LAUNCHER.format(folder=tmp_path))
    (tmp_path / 'launcher').chmod(0o755)
    env = dict(os.environ, PATH=path, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1',
               MPIR_CVAR_ENABLE_HEAVY_YIELD='1')                                        # on few cores
    more = ['--net'] if os.geteuid() == 0 else ['--net', '--user', '--map-root-user']

    def run(command):
        return subprocess.run([*NAMESPACES.split(), *more, 'sh', '-c', MAKE_HOSTS + command], env=env, cwd=tmp_path,
                              capture_output=True, text=True, timeout=300)
    allowed = run('')
    if allowed.returncode:
        pytest.skip(f'namespaces cannot be made here: {allowed.stderr.strip()}')
    return run


@needs_mpirun
@pytest.mark.parametrize(('name', 'processes'), [('ppo_torch', 4), ('sac_tf1', 2)])
def test_gradients_cross_the_cable_and_parameters_stay_equal(name, processes, on_two_hosts, tmp_path):
    package = 'torch' if name.endswith('torch') else 'tensorflow'
    if find_spec(package) is None:
        pytest.skip(f'{package} is not installed')
    (tmp_path / 'hosts.txt').write_text(f'left:{processes // 2}\nright:{processes // 2}\n')
    done = on_two_hosts(f'''
        ip netns exec left {MPIRUN} -f hosts.txt -launcher ssh -launcher-exec {tmp_path}/launcher -np {processes} \
            {sys.executable} {os.path.abspath(__file__)} {name} {tmp_path}/results
        ip netns exec left sh -c 'cat /sys/class/net/cable/statistics/?x_bytes'
        ''')
    assert done.returncode == 0, done.stdout + done.stderr
    received, sent = map(int, done.stdout.split()[-2:])
    reports = load_tree(tmp_path / 'results' / f'{name}.npz')
    assert [report['host'] for report in reports] == ['left'] * (processes // 2) + ['right'] * (processes // 2)
    for report in reports:
        assert report['processes'] == processes
        np.testing.assert_array_equal(report['parameters'], reports[0]['parameters'])
        # Each host has to learn what the other adds to every sum. These are gradients of all networks, of four bytes
        # for a parameter, and not a few numbers alone.
        assert min(received, sent) > report['bytes'] > 5 * reports[0]['parameters'].nbytes
        assert report['files'] == ([name] if report['host'] == 'left' else []), 'process 0 alone writes'
    _, rows = read_progress(tmp_path / 'results' / name)
    assert len(rows) == RUNS[name][1]['epochs']


if __name__ == '__main__':
    train(*sys.argv[1:])
