"""Grids: their names, which are Spinning Up's, and how their variants are run, fail, are skipped and are printed."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import nn

from common import run, run_utils
from common.errors import ExperimentFailed, UserError
from common.logx import read_progress
from common.mpi_tools import num_procs
from common.run_utils import ExperimentGrid, call_experiment, setup_logger_kwargs, valid_str
from ppo_torch import ppo

ROOT = Path(__file__).parent.parent
ENV = dict(os.environ, PYTHONPATH=str(ROOT))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- Names

def names(line):
    grid, _ = run.parse_args(line.split(), ppo)
    return list(dict.fromkeys(grid.variant_name(variant) for variant in grid.variants()))


def test_names_in_spinning_up_s_documentation():
    """https://spinningup.openai.com/en/latest/user/running.html"""
    assert names('--exp_name ppo_ant --env Ant-v2 --clip_ratio 0.1 0.2 --hid[h] [32,32] [64,32] --act torch.nn.Tanh '
                 '--seed 0 10 20 --data_dir path/to/data') == [
        'ppo_ant_cli0-1_h32-32', 'ppo_ant_cli0-1_h64-32', 'ppo_ant_cli0-2_h32-32', 'ppo_ant_cli0-2_h64-32']
    assert sorted(names('--exp_name x --env Hopper-v2 --hid[h] [300] [128,128] --act tanh relu')) == [
        'x_h128-128_ac-actrelu', 'x_h128-128_ac-acttanh', 'x_h300_ac-actrelu', 'x_h300_ac-acttanh']

    grid = ExperimentGrid('ppo-pyt-bench')                  # its bench_ppo_cartpole.py
    grid.add('env_name', 'CartPole-v0', '', True)
    grid.add('seed', [0, 10, 20])
    grid.add('epochs', 10)
    grid.add('ac_kwargs:hidden_sizes', [(32,), (64, 64)], 'hid')
    grid.add('ac_kwargs:activation', [nn.Tanh, nn.ReLU], '')
    assert len(grid.variants()) == 12 and {grid.variant_name(variant) for variant in grid.variants()} == {
        f'ppo-pyt-bench_cartpole-v0_hid{hid}_{act}' for hid in ('32', '64-64') for act in ('tanh', 'relu')}


def test_order_in_names():
    """As written; behind them flags with a shorthand; behind these the short flags, in their own order."""
    assert names('--act tanh relu --hid[h] [32] [64,64] --pi_lr[p] 1e-3 1e-4 --clip_ratio 0.1 0.2 --env A-v0 B-v0 '
                 '--lam 0 1')[0] == 'ppo_torch_cli0-1_lam0_p0-001_enva-v0_h32_ac-acttanh'
    assert names('--hid[h] [32] [64,64] --clip_ratio 0.1 0.2 --env CartPole-v1')[0] == 'ppo_torch_cli0-1_h32'
    assert names('--hid[] [32] [64,64] --env CartPole-v1')[0] == 'ppo_torch_32'
    assert names('--hid [32] --env CartPole-v1 --seed 0 1') == ['ppo_torch']


@pytest.mark.parametrize('value, text', [
    ('CartPole-v1', 'cartpole-v1'), (0.1, '0-1'), (1e-5, '1e-05'), (-0.5, '-0-5'), ((64, 32), '64-32'),
    ([[1, 2], 3], '1-2-3'), (nn.ReLU, 'relu'), (True, 'true'), (None, 'none'), ('a b/c:d_e', 'a-b-c-d_e'), ('', '')])
def test_valid_str(value, text):
    assert valid_str(value) == text


def test_eg():
    """Spinning Up's own example of a grid."""
    grid = ExperimentGrid()
    grid.add('test:a', [1, 2, 3], 'ta', True)
    grid.add('test:b', [1, 2, 3])
    grid.add('some', [4, 5])
    grid.add('why', [True, False])
    grid.add('huh', 5)
    grid.add('no', 6, in_name=True)
    variants = grid.variants()
    assert len(variants) == 36
    assert variants[0] == dict(test=dict(a=1, b=1), some=4, why=True, huh=5, no=6)
    assert variants[1] == dict(variants[0], why=False) and variants[-1]['test'] == dict(a=3, b=3)
    assert grid.variant_name(variants[0]) == 'ta1_tes-b1_som4_why_no6'
    assert grid.variant_name(variants[1]) == 'ta1_tes-b1_som4_no6'
    assert len({grid.variant_name(variant) for variant in variants}) == 36


def test_nested_keys():
    grid = ExperimentGrid()
    grid.add('a:b:c', [1, 2])
    grid.add('a:b:d', len)
    grid.add('a:e', dict(f=3))
    assert grid.variants() == [dict(a=dict(b=dict(c=c, d=len), e=dict(f=3))) for c in (1, 2)]
    for key in ('a', 'a:b', 'a:b:c:x', 'a:e'):
        other = ExperimentGrid()
        for k, vals in [*zip(grid.keys, grid.vals), (key, [dict(z=1)])]:
            other.add(k, vals)
        if key == 'a:e':
            assert len(other.variants()) == 2               # the later value counts
        else:
            with pytest.raises(UserError, match='has a value of its own and values for its parts'):
                other.variants()


def test_folders():
    assert setup_logger_kwargs('e') == dict(output_dir='data/e', exp_name='e')
    assert setup_logger_kwargs('e', 3, 'there')['output_dir'] == 'there/e/e_s3'
    assert setup_logger_kwargs('e', 0, 'd', '2030-01-31_12-00-00') == dict(
        output_dir='d/2030-01-31_e/2030-01-31_12-00-00-e_s0', exp_name='e')
    now = setup_logger_kwargs('e', 0, datestamp=True)['output_dir']
    assert re.fullmatch(time.strftime('data/%Y-%m-%d_e/%Y-%m-%d') + r'_\d\d-\d\d-\d\d-e_s0', now)


def test_print(capsys):
    grid = ExperimentGrid('g')
    grid.add('seed', [0, 1, 2])
    grid.add('act', [nn.Tanh, nn.ReLU])
    grid.print()
    told = capsys.readouterr().out
    assert 'variants: 2, runs: 6' in told and 'g_acttanh' in told and 'g_actrelu' in told and 'ReLU' in told


# ---- Grids of the command line, on a script that trains nothing

TOY = '''
"""A toy that logs as an algorithm does, and does what its environment variables tell."""
import os
import time
from common.logx import EpochLogger
from common.run_utils import command_line


def toy(env_fn, seed=0, epochs=2, lam=0.5, size=1, logger_kwargs=dict()):
    config = locals()
    logger = EpochLogger(**logger_kwargs)
    logger.save_config(config)
    start = (logger.load_state() or dict(epoch=0))['epoch']
    with open('calls.txt', 'a') as file:
        file.write(f'{logger_kwargs["exp_name"]}_s{seed} from {start}\\\\n')
    began = time.time()
    for epoch in range(start, epochs):
        time.sleep(float(os.getenv('TOY_SLEEP', 0)))
        if os.getenv('TOY_FAILS') == f'{lam} {seed}' and epoch == 1:
            raise ZeroDivisionError('as told')
        logger.log_tabular('Epoch', epoch)
        logger.log_tabular('AverageEpRet', 100 * lam + 10 * seed + epoch)
        logger.dump_tabular()
        logger.save_state(dict(epoch=epoch + 1))
    with open('times.txt', 'a') as file:
        file.write(f'{began} {time.time()}\\\\n')


if __name__ == '__main__':
    command_line(toy)
'''.replace('\\\\', '\\')
GRID = '--env CartPole-v1 --lam 0.1 0.2 --seed 0 1'


def toy(line, **environment):
    Path('toy.py').write_text(TOY)
    return subprocess.run([sys.executable, 'toy.py', *line.split()], env=dict(ENV, **environment), capture_output=True,
                          text=True, timeout=60)


def runs():
    """The runs on disk: folder -> last row of its progress.txt."""
    return {f'{path.parent.parent.name}/{path.parent.name}': read_progress(path)[1][-1]
            for path in sorted(Path('.').glob('data/*/*/progress.txt'))}


ALL_FOUR = [f'toy_lam0-{lam}/toy_lam0-{lam}_s{seed}' for lam in (1, 2) for seed in (0, 1)]


def calls():
    """Which runs were begun since the last time, and from which epoch."""
    lines = sorted(Path('calls.txt').read_text().split('\n')[:-1]) if Path('calls.txt').exists() else []
    Path('calls.txt').unlink(missing_ok=True)
    return lines


def overlap():
    """How many runs went on at the same time, at most."""
    times = [[float(t) for t in line.split()] for line in Path('times.txt').read_text().split('\n')[:-1]]
    return max(sum(begin <= t <= end for begin, end in times) for t, _ in times)


def test_failure_of_one_variant_then_resume():
    done = toy(f'{GRID} --jobs 2', TOY_FAILS='0.1 1')
    assert done.returncode == 1
    assert list(runs()) == ALL_FOUR and [row['Epoch'] for row in runs().values()] == ['1', '0', '1', '1']
    table = [line.split(maxsplit=7) for line in done.stdout.split('\n')[-4:-1]]
    assert [line[:5] + line[7:] for line in table] == [
        ['variant', 'seeds', 'performance', 'time', 'outcome'],
        ['toy_lam0-1', '0', '1', '11', '20', 'seed 1 failed: ZeroDivisionError: as told'],
        ['toy_lam0-2', '0', '1', '21', '31', 'finished']]
    assert done.stderr == 'toy.py: 1 of 4 runs failed: see data/toy_lam0-1/toy_lam0-1_s1/output.log\n'
    assert 'ZeroDivisionError: as told' in Path('data/toy_lam0-1/toy_lam0-1_s1/output.log').read_text()
    assert len(calls()) == 4

    done = toy(GRID)                                        # neither flag: nothing is started
    assert (done.returncode, done.stdout, calls()) == (2, '', [])
    assert done.stderr == ('toy.py: error: data/toy_lam0-1/toy_lam0-1_s0 already has a run: --resume continues it, '
                           '--overwrite replaces it\n')

    done = toy(f'{GRID} --jobs 2 --resume')                 # the rest only, from where it was
    assert done.returncode == 0 and calls() == ['toy_lam0-1_s1 from 1']
    assert [row['Epoch'] for row in runs().values()] == ['1'] * 4
    assert all(f'finished ({skipped} skipped: finished before)' in done.stdout for skipped in (1, 2))

    assert toy(f'{GRID} --jobs 2 --resume').returncode == 0 and calls() == []
    assert toy(f'{GRID} --jobs 2 --resume --epochs 3').returncode == 0      # more epochs are no longer finished
    assert calls() == [f'{name.split("/")[1]} from 2' for name in ALL_FOUR]

    done = toy(f'{GRID} --jobs 2 --resume --epochs 3 --size 2')     # another argument: each run says what is wrong
    assert done.returncode == 1 and done.stdout.count('toy.py: error: ') >= 4 and calls() == [], done.stdout

    assert toy(f'{GRID} --jobs 2 --overwrite').returncode == 0 and len(calls()) == 4


def test_finished_means_saved():
    """A run that was killed between its last row and its last checkpoint is not finished."""
    assert toy('--env CartPole-v1 --seed 0 1').returncode == 0
    folder = Path('data/toy/toy_s1')
    os.utime(folder / 'progress.txt', (time.time() + 9, time.time() + 9))
    calls()
    assert toy('--env CartPole-v1 --seed 0 1 --resume').returncode == 0 and calls() == ['toy_s1 from 2']


@pytest.mark.parametrize(('name', 'text', 'error'), [
    ('config.json', '[' * 10**5, 'RecursionError'), ('config.json', '["seed"]', 'list in place of an object'),
    ('progress.txt', 'Epoch\tAverageEpRet\n0\tx\n1\t\x1b[2J\n', None)])
def test_a_damaged_file_of_one_run_stops_no_grid(name, text, error):
    """What is wrong is said by the run itself, if it matters; the others go on."""
    assert toy('--env CartPole-v1 --seed 0 1 2').returncode == 0
    Path('data/toy/toy_s0', name).write_text(text)
    os.utime('data/toy/toy_s0/state.npz')
    Path('data/toy/toy_s2/state.npz').unlink()
    Path('data/toy/toy_s2/progress.txt').unlink()
    calls()
    done = toy('--env CartPole-v1 --seed 0 1 2 --resume')
    assert calls() == ['toy_s2 from 0'] and 'Traceback' not in done.stdout + done.stderr
    if error:
        assert done.returncode == 1 and done.stderr.startswith('toy.py: 1 of 3 runs failed: see data/toy/toy_s0/output')
        assert re.search(rf'seed 0: toy.py: error: .*{name} cannot be read \(.*{error}', done.stdout)
    else:
        assert done.returncode == 0 and re.search(r'toy +0 1 2 +- 61 71 ', done.stdout), done.stdout


def test_jobs_at_a_time():
    assert toy(f'{GRID} --jobs 2 --epochs 1', TOY_SLEEP='1').returncode == 0 and overlap() == 2
    Path('times.txt').unlink()
    done = toy('--env CartPole-v1 --seed 0 1 --exp_name one')
    assert done.returncode == 0 and overlap() == 1
    assert done.stdout.count('AverageEpRet') == 4               # one at a time: what it prints is shown


def test_printed_commands_run_the_same_variants():
    line = f'{GRID} --data_dir a(b --size 2'
    done = toy(f'{line} --print_commands')
    commands = done.stdout.split('\n')[:-1]
    assert done.returncode == 0 and len(commands) == 4 and not Path('a(b').exists()
    for command in commands:
        assert subprocess.run(command, shell=True, env=ENV, capture_output=True, timeout=60).returncode == 0, command
    separate = {path: json.loads(path.read_text()) for path in Path('a(b').glob('*/*/config.json')}
    assert len(separate) == 4 and {config['size'] for config in separate.values()} == {2}
    assert toy(f'{line} --overwrite').returncode == 0
    for path, config in separate.items():
        together = json.loads(path.read_text())
        assert {**together, 'logger_kwargs': 0} == {**config, 'logger_kwargs': 0}


def test_grid_with_datestamp():
    assert toy('--env CartPole-v1 --seed 0 1 --jobs 2 --dt', TZ='UTC').returncode == 0
    stamps = {str(path.parent.name)[:20] for path in Path('data').glob('*_toy/*-toy_s*/progress.txt')}
    assert len(list(Path('data').glob('*_toy/*-toy_s*/progress.txt'))) == 2 and len(stamps) == 1


def test_variants_that_would_share_a_folder():
    grid = ExperimentGrid('g')
    grid.add('name', ['a b', 'a-b'])
    with pytest.raises(UserError, match='two runs would share the folder data/g_nama-b/g_nama-b_s0'):
        grid.run(print)
    assert not Path('data').exists()


@pytest.mark.skipif(sys.platform != 'linux', reason='only Linux ends children with their parent')
@pytest.mark.parametrize('how', [signal.SIGTERM, signal.SIGKILL])
def test_killed_grid_leaves_no_run_behind(how):
    Path('toy.py').write_text(TOY)
    grid = subprocess.Popen([sys.executable, 'toy.py', *GRID.split(), '--jobs', '2'], env=dict(ENV, TOY_SLEEP='300'),
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for _ in range(1200):
        if Path('calls.txt').exists() and Path('calls.txt').read_text().count('\n') == 2:
            break
        time.sleep(0.1)
    children = Path(f'/proc/{grid.pid}/task/{grid.pid}/children').read_text().split()
    assert len(children) == 2
    grid.send_signal(how)
    told = grid.communicate(timeout=60)[1]
    if how == signal.SIGTERM:
        assert grid.returncode == 130 and told.startswith('toy.py: interrupted; the same command with --resume')
    deadline = time.time() + 60
    commands = [Path(f'/proc/{child}/cmdline') for child in children]       # empty when a process has ended
    while any(command.exists() and command.read_text() for command in commands):
        assert time.time() < deadline, 'a run goes on'
        time.sleep(0.1)
    assert len(calls()) == 2


# ---- From Python

def test_interrupted_grid_stops_its_runs(monkeypatch):
    sleeping = run_utils.Experiment([sys.executable, '-c', 'import time; time.sleep(60)'], dict(seed=0), 1,
                                    setup_logger_kwargs('e', 0))

    def interrupt():
        raise KeyboardInterrupt
    monkeypatch.setattr(sleeping, 'poll', interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_utils.run_experiments([sleeping])
    assert sleeping.process.returncode == -signal.SIGTERM


def test_one_datestamp_for_a_grid(monkeypatch):
    stamps = iter(['2030-01-31_12-00-00', '2030-01-31_12-00-01', '2030-01-31_12-00-02'])
    monkeypatch.setattr(run_utils.time, 'strftime', lambda *_: next(stamps))
    grid = ExperimentGrid('g')
    grid.add('seed', [0, 1])
    grid.run(lambda seed, logger_kwargs: None, datestamp=True, jobs=2)
    assert sorted(str(path) for path in Path('data').glob('*/*')) == [
        f'data/2030-01-31_g/2030-01-31_12-00-00-g_s{seed}' for seed in (0, 1)]


def test_call_experiment():
    """Any callable, in a process of its own, with its environment, its folder and nothing left on disk but its own."""
    offset, here = 5, os.getpid()

    def experiment(env_fn, number, seed, logger_kwargs):
        assert os.getpid() != here
        folder = Path(logger_kwargs['output_dir'])
        folder.joinpath('result.txt').write_text(f'{env_fn().spec.id} {number + offset} {seed}')
    call_experiment('exp', experiment, seed=3, env_name='CartPole-v1', number=37)
    assert Path('data/exp/exp_s3/result.txt').read_text() == 'CartPole-v1 42 3'
    assert {str(path) for path in Path('.').rglob('*') if path.is_file()} == {
        'data/exp/exp_s3/result.txt', 'data/exp/exp_s3/output.log'}


def test_call_experiment_that_fails(capsys):
    with pytest.raises(ExperimentFailed, match='1 of 1 runs failed: see data/exp/exp_s0/output.log'):
        call_experiment('exp', lambda seed, logger_kwargs: 1 / 0)
    assert 'ZeroDivisionError: division by zero' in capsys.readouterr().out


def test_call_experiment_with_processes():
    pytest.importorskip('mpi4py')

    def experiment(seed, logger_kwargs):
        print(f'processes {num_procs()}')
    call_experiment('exp', experiment, num_cpu=2)
    assert Path('data/exp/exp_s0/output.log').read_text().count('processes 2') == 2


def test_grid_over_functions():
    """The training function itself can be what varies."""
    def first(number, seed, logger_kwargs):
        Path(logger_kwargs['output_dir'], 'result.txt').write_text(f'first {number} {seed}')

    def second(number, seed, logger_kwargs):
        Path(logger_kwargs['output_dir'], 'result.txt').write_text(f'second {number} {seed}')
    grid = ExperimentGrid('g')
    grid.add('algo', [first, second])
    grid.add('number', [1, 2])
    grid.run('algo', jobs=2)
    assert {str(path): path.read_text() for path in Path('data').glob('*/*/result.txt')} == {
        f'data/g_alg{name}_num{number}/g_alg{name}_num{number}_s0/result.txt': f'{name} {number} 0'
        for name in ('first', 'second') for number in (1, 2)}


def test_too_much_data_for_a_command():
    with pytest.raises(UserError, match='too much data'):
        call_experiment('exp', lambda data, seed, logger_kwargs: None, data=os.urandom(200_000))
