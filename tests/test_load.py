"""Long runs, many rows, many processes."""
import importlib.util
import json
import subprocess
import sys

import pytest

from helpers import ROOT, mpirun, needs_mpirun
from tools import doctor

FRAMEWORKS = [framework for framework, module in (('torch', 'torch'), ('tf1', 'tensorflow'))
              if importlib.util.find_spec(module)]
ON_POLICY = dict(env='CartPole-v1', steps_per_epoch=50, train_v_iters=2, train_pi_iters=2)
OFF_POLICY = dict(env='Pendulum-v1', steps_per_epoch=20, start_steps=10, update_after=10, update_every=10,
                  replay_size=1000, batch_size=10, num_test_episodes=1, max_ep_len=10)


# A process of its own, since the memory of one that has run other tests moves by more than this.
MEASURE = """
import functools, importlib, json, sys
import gymnasium as gym
from common.logx import EpochLogger
name, folder, env, arguments = json.loads(sys.argv[1])
sizes, dump_tabular = [], EpochLogger.dump_tabular

def dump_and_measure(logger):
    dump_tabular(logger)
    with open('/proc/self/statm') as file:
        sizes.append(int(file.read().split()[1]) * 4096 / 1e6)
EpochLogger.dump_tabular = dump_and_measure
getattr(importlib.import_module(name), name.split('_')[0])(
    functools.partial(gym.make, env), epochs=200, save_freq=1, ac_kwargs=dict(hidden_sizes=(8,)),
    logger_kwargs=dict(output_dir=folder, quiet=True), **arguments)
print(json.dumps(sizes))
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='memory is read from /proc')
@pytest.mark.parametrize('name', [f'{algo}_{framework}' for framework in FRAMEWORKS for algo in ('ppo', 'sac')])
def test_memory_does_not_grow_with_the_epochs(name, tmp_path):
    """Each epoch logs, saves a model and a checkpoint: a fifth of a megabyte lost at each save would show."""
    arguments = dict(ON_POLICY if name.startswith('ppo') else OFF_POLICY)
    words = json.dumps([name, str(tmp_path), arguments.pop('env'), arguments])
    done = subprocess.run([sys.executable, '-c', MEASURE, words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout.splitlines()[-1])
    assert len(sizes) == 200 and sizes[-1] < 1.05 * sizes[19], f'{sizes[19]:.1f} MB, then {sizes[-1]:.1f} MB'


def test_doctor_reads_a_long_table(tmp_path, capsys):
    """300,000 epochs: what takes time with the square of their number would not end."""
    rows = ''.join(f'{i}\t{i % 100}\t1\t100\t{4000 * (i + 1)}\t{i}\n' for i in range(300_000))
    columns = 'Epoch', 'AverageEpRet', 'StdEpRet', 'EpLen', 'TotalEnvInteracts', 'Time'
    (tmp_path / 'progress.txt').write_text('\t'.join(columns) + '\n' + rows)
    config = dict(algo='ppo_torch', env_name='CartPole-v1', epochs=300_000, gamma=0.99, max_ep_len=1000, num_procs=1,
                  steps_per_epoch=4000, pi_lr=1e-3)
    (tmp_path / 'config.json').write_text(json.dumps(config))
    doctor.main([str(tmp_path)])
    assert '300000 epochs of ppo_torch on CartPole-v1' in capsys.readouterr().out


@needs_mpirun
def test_sixteen_processes(tmp_path):
    """More than there are cores: what they send and sum arrives."""
    script = tmp_path / 'script.py'
    script.write_text(f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from common.mpi_tools import broadcast, gather, mpi_statistics_scalar, mpi_sum, num_procs, proc_id, scatter
assert num_procs() == 16
for size in (1, 1000, 100_000):
    total = mpi_sum(np.arange(size) + proc_id())
    assert np.array_equal(total, 16 * np.arange(size) + 120)
x = np.full(1000, proc_id(), dtype=np.float32)
broadcast(x)
assert not x.any()
assert mpi_statistics_scalar([proc_id()], with_min_and_max=True)[2:] == (0, 15)
assert scatter(gather(proc_id() + 1)) == proc_id() + 1
""")
    mpirun('-np', 16, sys.executable, script)
