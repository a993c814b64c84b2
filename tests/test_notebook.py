"""In a kernel the cells of an algorithm file run to the last one, and its training function can be used."""
import json
from pathlib import Path

import jupytext
import nbclient
import pytest
from nbformat.v4 import new_code_cell

from helpers import read_progress
from tools.test_policy import load_policy_and_env

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(('name', 'env'), [('ppo_torch', 'CartPole-v1'), ('ddpg_tf1', 'Pendulum-v1')])
def test_cells_run_to_the_last_and_train(name, env, tmp_path):
    notebook, algo = jupytext.read(ROOT / f'{name}.py'), name.split('_')[0]
    flags = ['--env', env, '--epochs', '1', '--steps_per_epoch', '200', '--data_dir', str(tmp_path / 'data')]
    train = ('import gymnasium as gym\n'
             f"agent = {algo}(lambda: gym.make('{env}'), epochs=1, steps_per_epoch=200, "
             f"logger_kwargs=dict(output_dir='{tmp_path}/run'))\n"
             f"print('action', agent.act(gym.make('{env}').reset(seed=0)[0]))")
    notebook.cells += [new_code_cell(train), new_code_cell(f'command_line({algo}, {flags})')]
    nbclient.NotebookClient(notebook, timeout=120, resources=dict(metadata=dict(path=ROOT))).execute()
    hint, trained, again = [''.join(output.get('text', '') for output in cell.outputs) for cell in notebook.cells[-3:]]
    assert f"train with {algo}(lambda: gymnasium.make('{env}'))" in hint
    assert f'Logging to {tmp_path}/run' in trained and trained.count('TotalEnvInteracts') == 1 and 'action' in trained
    assert 'Epoch 0' in again and '|' in again                                      # one line, and a bar
    for folder in (tmp_path / 'run', tmp_path / 'data' / name / f'{name}_s0'):
        _, get_action = load_policy_and_env(folder, deterministic=True)
        assert get_action is not None


def test_mistakes_grids_and_several_processes(tmp_path):
    """A mistake is one line, and neither it nor --help ends the kernel. What needs processes of its own, a grid or
    --cpu, trains with the functions of the cells, of which there is no file."""
    notebook = jupytext.read(ROOT / 'ppo_torch.py')
    flags = f'--env CartPole-v1 --epochs 1 --steps_per_epoch 200 --data_dir {tmp_path} --seed 0 1 --cpu 2 --jobs 2'
    cells = [f"command_line(ppo, '{flags} {word}'.split())" for word in ('--hidd 8', '--print_commands', '--help', '')]
    notebook.cells += map(new_code_cell, ['compute_loss_v = lambda val, ret: 0 * val.sum()', *cells])
    options = dict(timeout=120, allow_errors=True, resources=dict(metadata=dict(path=ROOT)))
    nbclient.NotebookClient(notebook, **options).execute()
    misspelt, printed, helped, trained = [cell.outputs for cell in notebook.cells[-4:]]
    for outputs, message in ((misspelt, 'unknown argument --hidd'), (printed, '--print_commands: no command can run')):
        assert len(outputs) == 1 and outputs[0].output_type == 'error'
        assert len(outputs[0].traceback) == 1 and outputs[0].traceback[0].startswith(f'ppo_torch.py: error: {message}')
    assert {output.output_type for output in helped + trained} == {'stream'}
    assert 'usage: python ppo_torch.py' in ''.join(output.text for output in helped)
    for seed in (0, 1):
        folder = tmp_path / f'ppo_torch/ppo_torch_s{seed}'
        config, (_, (row,)) = json.loads((folder / 'config.json').read_text()), read_progress(folder)
        assert (config['algo'], config['num_procs'], float(row['LossV'])) == ('ppo_torch', 2, 0)
