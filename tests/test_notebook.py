"""In a kernel the cells of an algorithm file run to the last one, and its training function can be used."""
from pathlib import Path

import jupytext
import nbclient
import pytest
from nbformat.v4 import new_code_cell

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
    assert f"train by {algo}(lambda: gymnasium.make('{env}'))" in hint
    assert f'Logging to {tmp_path}/run' in trained and trained.count('TotalEnvInteracts') == 1 and 'action' in trained
    assert 'Epoch 0' in again and '|' in again                                      # one line, and a bar
    for folder in (tmp_path / 'run', tmp_path / 'data' / name / f'{name}_s0'):
        _, get_action = load_policy_and_env(folder, deterministic=True)
        assert get_action is not None
