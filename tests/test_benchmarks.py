"""The benchmarks: that they count right, measure what there is, and name mistakes. None says how fast anything is."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import contest, products

ROOT = Path(__file__).resolve().parent.parent


def run(module, *args):
    return subprocess.run([sys.executable, '-m', f'benchmarks.{module}', *args], cwd=ROOT, capture_output=True,
                          text=True, timeout=300, env=dict(os.environ, OMP_NUM_THREADS='1'))


def forward_and_backward(batch, *sizes):
    """Multiplications and additions of a perceptron, layer by layer: forward, and its gradient by its weights."""
    layers = [2 * batch * n_in * n_out for n_in, n_out in zip(sizes, sizes[1:])]
    return sum(layers), 2 * sum(layers) - layers[0]


def test_the_products_of_an_update_are_those_that_the_algorithms_need():
    q_forward, q_backward = forward_and_backward(100, 23, 256, 256, 1)
    pi_forward, pi_backward = forward_and_backward(100, 17, 256, 256, 6)
    to_the_action = 2 * 100 * (256 + 256 * 256 + 256 * 6)               # the gradient of q by the action alone
    work, updates = products.ddpg(100, 17, 6)
    assert updates == 1
    assert work.flops() == 2 * pi_forward + 3 * q_forward + q_backward + to_the_action + pi_backward
    work, updates = products.td3(100, 17, 6)
    assert updates == 2                                                 # of q, with one of the policy
    assert work.flops() == (2 * (pi_forward + 4 * q_forward + 2 * q_backward)
                            + pi_forward + q_forward + to_the_action + pi_backward)
    pi_forward, pi_backward = forward_and_backward(100, 17, 256, 256, 12)
    work, _ = products.sac(100, 17, 6)
    assert work.flops() == 2 * pi_forward + 6 * q_forward + 2 * (q_backward + to_the_action) + pi_backward
    assert products.gradient(4000, 4, 64, 64, 2).flops() == sum(forward_and_backward(4000, 4, 64, 64, 2))


def test_the_products_are_really_made():
    work = products.gradient(10, 4, 8, 2)
    work.run()
    for a, b, out in work.list:
        torch.testing.assert_close(out, a @ b)


def test_ratios_have_the_median_and_the_spread_of_rounds():
    assert contest.ratio([2., 12., 9.], [1., 2., 3.]) == '3.00 (2.00 – 6.00)'         # of the medians it would be 4.5
    assert contest.ratio([2.], [0.]) == '∞ (∞ – ∞)'
    assert contest.ratio([], [1.]) == ''
    assert contest.number(1234.5) == '1 234' and contest.number(12.345) == '12.3'


@pytest.mark.parametrize('module, args, said', [
    ('speed', ['--rounds', '0'], '--rounds 0'), ('speed', ['--only', 'nothing'], '--only nothing'),
    ('speed', ['--profile', 'pop_torch'], 'pop_torch'), ('speed', ['--out', 'nowhere'], '--out nowhere'),
    ('speed', ['--before', 'tests'], '--before tests'),
    ('scaling', ['--np', '3'], '--np 3'), ('scaling', ['--time_to', '501'], '--time_to 501')])
def test_mistakes_get_one_line(module, args, said):
    done = run(module, '--no_peers', *args) if module == 'speed' else run(module, *args)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_speed_measures_and_writes(tmp_path):
    done = run('speed', '--no_peers', '--quick', '--rounds', '1', '--out', str(tmp_path), '--only',
               r'PPO, CartPole-v1: (ppo_torch|environment|matrix)|DDPG.*batch 100: (ddpg_torch|matrix)')
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / 'speed.json').read_text())
    results = {result['name']: result['values'] for result in written['results']}
    assert set(results) >= {'ppo_torch', 'ddpg_torch', 'environment alone'}
    for name, [value] in results.items():
        assert value.get('rate', value.get('pi_us')) > 0, name
    assert 'ddpg_torch' in (tmp_path / 'speed.md').read_text()
    assert (tmp_path / 'figures' / 'speed.png').stat().st_size > 1000


def test_before_measures_the_scripts_of_another_checkout(tmp_path):
    other, out = tmp_path / 'other', tmp_path / 'out'
    (other / 'benchmarks').mkdir(parents=True)
    out.mkdir()
    (other / 'ppo_torch.py').write_text('rate = 0.125')
    (other / 'benchmarks' / 'measure_ours.py').write_text('import json, ppo_torch\n'
                                                          'print(json.dumps(dict(rate=ppo_torch.rate)))')
    done = run('speed', '--no_peers', '--quick', '--rounds', '1', '--out', str(out), '--before', str(other), '--only',
               'PPO, CartPole-v1: ppo_torch')
    assert done.returncode == 0, done.stdout + done.stderr
    text, tables = (out / 'speed.json').read_text(), (out / 'speed.md').read_text()
    rates = {result['name']: result['values'][0]['rate'] for result in json.loads(text)['results']}
    assert rates['ppo_torch'] > rates['ppo_torch (before)'] == 0.125
    assert 'speed ÷ before' in tables
    assert str(tmp_path) not in text + tables           # no path of this machine


@pytest.mark.skipif(shutil.which('mpirun', path=str(Path(sys.executable).parent)) is None, reason='there is no mpirun')
def test_scaling_measures_processes_together_and_apart(tmp_path):
    (tmp_path / 'speed.md').write_text('# Speed\n\nwhat it was\n\n# Scaling\n\nwhat it was, before\n')
    done = run('scaling', '--quick', '--rounds', '1', '--np', '1', '2', '--only', '^ppo_torch', '--out', str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / 'scaling.json').read_text())
    values = {result['name']: result['values'][0] for result in written['results']}
    assert {name: value['processes'] for name, value in values.items()} == {
        '1 process': 1, '2 processes': 2, '2 processes apart': 2}
    assert all(value['rate'] > 0 for value in values.values())
    assert values['2 processes']['calls_per_gradient'] == pytest.approx(1, abs=0.05)
    page = (tmp_path / 'speed.md').read_text()
    assert '2 processes apart' in page and 'before\n' not in page and page.startswith('# Speed\n\nwhat it was\n\n# Sc')
