"""Ejected files: alone, readable, not much longer, and the same run."""
import ast
import os
import re
import shutil
import subprocess
import sys

import pytest

from common.logx import read_progress
from tools import eject
from tools.sections import FAMILIES, ROOT, algorithm_files, algorithm_of, split

FILES = algorithm_files()
PACKAGES = dict(torch='torch', tf1='tensorflow')
MPIRUN = shutil.which('mpirun', path=os.path.dirname(sys.executable)) or shutil.which('mpirun')
FLAGS = dict(on_policy='--env Pendulum-v1 --epochs 2 --steps_per_epoch 250 --train_v_iters 5',
             off_policy='--env Pendulum-v1 --epochs 2 --steps_per_epoch 250 --start_steps 60 --update_after 200 '
                        '--max_ep_len 50 --num_test_episodes 1 --replay_size 1e3 --hid 16,16')

# Runs scripts, each with its flags, in one process, since importing a framework takes longer than a short run; and
# before that makes what may not be needed impossible to import.
RUNNER = """
import runpy, sys, traceback
sys.modules.update(dict.fromkeys(eval(sys.argv[1])))
for sys.argv in eval(sys.argv[2]):
    try:
        runpy.run_path(sys.argv[0], run_name='__main__')
    except BaseException:
        traceback.print_exc()
"""


def flags_of(name):
    return FLAGS['off_policy' if algorithm_of(name) in FAMILIES[1].split() else 'on_policy'].split()


def run_scripts(folder, scripts, blocked=(), path='', before=()):
    """Run {script: flags} in a folder, where each leaves data/x/x_s0; returns what they printed on standard error."""
    commands = [[str(script), *flags, '--exp_name', script.stem] for script, flags in scripts.items()]
    env = dict(os.environ, PYTHONPATH=str(path), OMP_NUM_THREADS='1', MPIR_CVAR_ENABLE_HEAVY_YIELD='1')
    arguments = [*before, sys.executable, '-c', RUNNER, repr(set(blocked)), repr(commands)]
    return subprocess.run(arguments, cwd=folder, env=env, capture_output=True, text=True, timeout=300).stderr


def rows_of(folder, name):
    """The table of a run, without its Time column."""
    _, rows = read_progress(folder / 'data' / name / f'{name}_s0' / 'progress.txt')
    return [{key: val for key, val in row.items() if key != 'Time'} for row in rows]


@pytest.fixture(scope='module', params=PACKAGES)
def runs(request, tmp_path_factory):
    """(folder of the originals' runs, folder of the ejected files' runs, what these printed) of a framework."""
    names, package = [name for name in FILES if name.endswith(request.param)], PACKAGES[request.param]
    pytest.importorskip(package)
    original, alone = tmp_path_factory.mktemp('original'), tmp_path_factory.mktemp('alone')
    for name in names:
        (alone / f'{name}.py').write_text(eject.eject(ROOT / f'{name}.py', f'{name}.py'), encoding='utf-8')
    run_scripts(original, {ROOT / f'{name}.py': flags_of(name) for name in names}, path=ROOT)
    blocked = {'common', 'tools', 'mpi4py', 'matplotlib', 'tqdm', 'torch', 'tensorflow'} - {package}
    printed = run_scripts(alone, {alone / f'{name}.py': flags_of(name) for name in names}, blocked)
    return names, original, alone, printed


def test_the_same_run_alone(runs):
    names, original, alone, printed = runs
    for name in names:
        expected = rows_of(original, name)
        assert len(expected) == 2 and expected[-1]['LossPi'] != ''
        assert rows_of(alone, name) == expected, f'{name}\n{printed}'
        model = alone / 'data' / name / f'{name}_s0' / ('model.pt' if name.endswith('torch') else 'model.npz')
        assert model.stat().st_size > 1000
    assert {path.name for path in alone.iterdir()} == {'data', *(f'{name}.py' for name in names)}


@pytest.fixture(scope='module', params=[False, True], ids=['one process', 'mpi'])
def texts(request):
    """{name: the ejected text}"""
    return request.param, {name: eject.eject(ROOT / f'{name}.py', 'my_copy.py', mpi=request.param) for name in FILES}


def test_it_needs_the_framework_numpy_and_gymnasium_alone(texts):
    mpi, texts = texts
    for name, text in texts.items():
        found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        modules = {getattr(node, 'module', None) or node.names[0].name for node in found}
        packages = {module.split('.')[0] for module in modules} - set(sys.stdlib_module_names)
        assert packages == {'numpy', 'gymnasium', PACKAGES[name.split('_')[1]], *(['mpi4py'] if mpi else [])}, name


def test_it_is_not_much_longer(texts):
    mpi, texts = texts
    longer = {name: len(text.splitlines()) - len((ROOT / f'{name}.py').read_text(encoding='utf-8').splitlines())
              for name, text in texts.items()}
    assert max(longer.values()) <= (310 if mpi else 200), longer


def test_it_keeps_its_sections_and_says_where_it_comes_from(texts, tmp_path):
    mpi, texts = texts
    for name, text in texts.items():
        (tmp_path / 'my_copy.py').write_text(text, encoding='utf-8')
        parts, original = split(tmp_path / 'my_copy.py'), split(ROOT / f'{name}.py')
        assert [section for section in parts if section in original] == list(original)
        for section in {'Networks', 'Buffer', 'Losses', 'Update', 'Evaluation'} & set(original):
            assert parts[section] == original[section], f'{section} of {name}'
        assert f'made it of {name}.py' in parts['Docstring'] and 'python my_copy.py --env' in parts['Docstring']
        assert ('mpirun' in text) == mpi and 'MIT License' in text and f'{name}.py --env' not in text
        # Only what is about resuming is gone from the training function.
        gone = set(original['Training'].split('\n')) - set(parts['Training'].split('\n'))
        assert all(re.search('save|state|itr=epoch|explain_arguments', line) for line in gone), gone


def test_the_linter_has_nothing_to_say(texts, tmp_path):
    for name, text in texts[1].items():
        (tmp_path / f'my_{name}.py').write_text(text, encoding='utf-8')
    done = subprocess.run([sys.executable, '-m', 'ruff', 'check', '--no-cache', '--output-format', 'concise',
                           '--config', ROOT / 'ruff.toml', tmp_path], capture_output=True, text=True)
    assert done.stdout.strip() == 'All checks passed!', done.stdout + done.stderr


@pytest.mark.skipif(MPIRUN is None, reason='there is no mpirun')
@pytest.mark.parametrize('name', ['ppo_torch', 'ddpg_tf1'])
def test_the_same_run_under_mpirun(name, tmp_path):
    original, alone = tmp_path / 'original', tmp_path / 'alone'
    for folder in (original, alone):
        folder.mkdir()
    (alone / f'{name}.py').write_text(eject.eject(ROOT / f'{name}.py', f'{name}.py', mpi=True), encoding='utf-8')
    before = MPIRUN, '-np', '2'
    run_scripts(original, {ROOT / f'{name}.py': flags_of(name)}, path=ROOT, before=before)
    printed = run_scripts(alone, {alone / f'{name}.py': flags_of(name)}, {'common', 'tools'}, before=before)
    expected = rows_of(original, name)
    assert len(expected) == 2 and expected[-1]['TotalEnvInteracts'] == '500'
    assert rows_of(alone, name) == expected, printed
    assert '"num_procs": 2' in (alone / 'data' / name / f'{name}_s0' / 'config.json').read_text()


def test_with_common(tmp_path, capsys):
    """The file as it is, and of common/ what it imports: enough to run, and nothing of the other framework."""
    eject.main(['ppo', '--with-common', '-o', str(tmp_path / 'ppo_torch.py')])
    names = {path.name for path in (tmp_path / 'common').iterdir()}
    assert {'__init__.py', 'logx.py', 'mpi_pytorch.py', 'run.py'} <= names and 'mpi_tf.py' not in names
    for path in [tmp_path / 'ppo_torch.py', *(tmp_path / 'common').iterdir()]:
        assert path.read_bytes() == (ROOT / path.relative_to(tmp_path)).read_bytes()
    flags = '--env CartPole-v1 --epochs 1 --steps_per_epoch 50 --train_pi_iters 1 --train_v_iters 1'.split()
    printed = run_scripts(tmp_path, {tmp_path / 'ppo_torch.py': flags}, {'tools', 'tensorflow', 'matplotlib'}, tmp_path)
    assert len(rows_of(tmp_path, 'ppo_torch')) == 1, printed


@pytest.mark.parametrize('name', ['sac_torch', 'trpo_tf1'])
def test_its_command_line(name, tmp_path, monkeypatch, capsys):
    """argparse over the signature: every argument is a flag of the type of its default."""
    package = pytest.importorskip(PACKAGES[name.split('_')[1]])
    path = tmp_path / 'my_copy.py'
    path.write_text(eject.eject(ROOT / f'{name}.py', 'my_copy.py'), encoding='utf-8')
    module = import_file(path)
    train_fn, given = getattr(module, algorithm_of(name)), {}
    fake = make_fake(train_fn, given)

    def call(*words):
        given.clear()
        monkeypatch.setattr(sys, 'argv', ['my_copy.py', '--env', 'Pendulum-v1', *words])
        module.command_line(fake)
        return given
    defaults = call()
    assert defaults['ac_kwargs']['hidden_sizes'] == ((256, 256) if name == 'sac_torch' else (64, 64))
    assert defaults['epochs'] == (100 if name == 'sac_torch' else 50) and defaults['seed'] == 0
    assert call('--epochs', '3', '--gamma', '.5')['epochs'] == 3 and given['gamma'] == 0.5
    assert call('--epochs', '1e2')['epochs'] == 100 and isinstance(given['epochs'], int)
    assert call('--hid', '[32,16]', '--seed', '7')['ac_kwargs']['hidden_sizes'] in ([32, 16], (32, 16))
    assert str(given['logger_kwargs']['output_dir']) == os.path.join('data', 'my_copy', 'my_copy_s7')
    relu = package.nn.ELU if name == 'sac_torch' else module.tf.nn.elu
    assert call('--act', 'elu')['ac_kwargs']['activation'] is relu
    assert given['env_fn']().spec.id == 'Pendulum-v1'
    if name == 'sac_torch':
        assert call('--alpha', 'auto')['alpha'] == 'auto' and call('--alpha', '.1')['alpha'] == 0.1
    else:
        assert call('--algo', 'npg')['algo'] == 'npg'
    for words in (['--epochs', '2.5'], ['--epochs', 'many'], ['--act', 'nothing'], ['--epoch_s', '3']):
        with pytest.raises(SystemExit) as error:
            call(*words)
        assert error.value.code == 2 and words[0] in capsys.readouterr().err


def import_file(path):
    """A file as a module. inspect.getsource, from which flags have their help, needs it to stay where it is."""
    import importlib.util
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_fake(train_fn, given):
    """A function with the signature and source of train_fn, which only keeps its arguments."""
    import functools

    @functools.wraps(train_fn)
    def fake(env_fn, **kwargs):
        given.update(kwargs, env_fn=env_fn)
    return fake


def test_a_run_is_not_overwritten(runs):
    (name, *_), _, alone, _ = runs
    before = rows_of(alone, name)
    printed = run_scripts(alone, {alone / f'{name}.py': flags_of(name)})
    assert 'FileExistsError' in printed and rows_of(alone, name) == before


# The command.

def test_nothing_is_overwritten(tmp_path, capsys):
    out = tmp_path / 'my_ppo.py'
    eject.main(['ppo_torch', '-o', str(out)])
    text = out.read_text(encoding='utf-8')
    assert capsys.readouterr().out == f'{out}: {len(text.splitlines())} lines\n'
    out.write_text('mine\n')
    with pytest.raises(SystemExit) as error:
        eject.main(['ppo_torch', '-o', str(out)])
    assert error.value.code == 2 and 'already exists' in capsys.readouterr().err and out.read_text() == 'mine\n'
    eject.main(['ppo_torch', '-o', str(out), '--overwrite'])
    assert out.read_text(encoding='utf-8') == text


@pytest.mark.parametrize(('args', 'message'), [
    (['pppo', '-o', 'x.py'], 'there is no file pppo (nearest: ppo)'),
    (['ppo', '-o', 'mine'], '-o mine: the name of the file must end in .py'),
    (['ppo', '-o', 'vpg_torch.py', '--overwrite'], '-o vpg_torch.py: that would replace an original'),
    (['ppo', '-o', 'x.py', '--mpi', '--with-common'], '--with-common copies MPI, too: leave out --mpi'),
    (['tools/doctor.py', '-o', 'x.py'], 'Imports, Training and Command line: it is not an algorithm file'),
])
def test_mistakes_get_one_line(args, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as error:
        eject.main(args)
    assert error.value.code == 2 and capsys.readouterr().err.endswith(f'{message}\n')
    assert not (ROOT / 'x.py').exists()


def test_what_cannot_be_followed_is_refused(tmp_path):
    """A copy whose training function uses the logger in a way that the reduced logger does not know."""
    text = (ROOT / 'ppo_torch.py').read_text(encoding='utf-8')
    (tmp_path / 'mine.py').write_text(text.replace('logger.dump_tabular()', "logger.get_stats('KL')"))
    with pytest.raises(eject.UserError, match='logger.get_stats'):
        eject.eject(tmp_path / 'mine.py')


def test_a_changed_copy_can_be_ejected(tmp_path):
    """Of common/ a file gets what it uses, whatever that is."""
    text = (ROOT / 'ppo_torch.py').read_text(encoding='utf-8')
    text = text.replace('import mpi_avg_grads,', 'import count_vars, mpi_avg_grads,')
    (tmp_path / 'mine.py').write_text(text.replace('    return agent\n', '    return count_vars(agent.ac)\n'))
    assert 'count_vars = lambda' in eject.eject(tmp_path / 'mine.py')
    assert 'count_vars' not in eject.eject(ROOT / 'ppo_torch.py')
