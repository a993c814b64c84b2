"""A run that somebody else made, or that a disk has damaged: nothing in it is executed, nothing is written outside of
its folder, no more is read than is there, and what is wrong is said in one line."""
import importlib
import inspect
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box

from common import run, serialization
from common.errors import UserError, printable
from common.logx import OWN_FILES, read_progress
from common.serialization import atomic_folder, atomic_write, check_zip, load_tree, read_json, save_tree
from helpers import SmallEnv
from tools import doctor, plot, test_policy

ROOT = Path(__file__).parent.parent
FLAGS = dict(
    ppo='--env CartPole-v1 --epochs 2 --steps_per_epoch 20 --hid 4 --train_v_iters 1 --save_freq 1 --quiet',
    sac='--env Pendulum-v1 --epochs 2 --steps_per_epoch 20 --hid 4 --replay_size 30 --start_steps 5 --quiet '
        '--update_after 10 --update_every 5 --batch_size 4 --num_test_episodes 1 --max_ep_len 10')
EVIL = '''
import gymnasium, os
os.mkdir('executed')
gymnasium.register('E-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')
class W(gymnasium.Wrapper):
    pass
'''


def command(name, folder, *more):
    """Run a script's command line in this process, into folder/name/name_s0."""
    algo = name.split('_')[0]
    words = [word for word in FLAGS[algo].split() if not (word == '2' and '--epochs' in more)]
    words = [word for word in words if not (word == '--epochs' and word in more)]
    run.command_line(getattr(importlib.import_module(name), algo), [*words, '--data_dir', str(folder), *more])


@pytest.fixture(scope='module')
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data')

    def train(name):
        if name.endswith('_tf1'):
            pytest.importorskip('tensorflow')
        if not (folder / name).exists():
            command(name, folder)
        return folder / name
    return train


@pytest.fixture
def copied(originals, tmp_path, monkeypatch):
    """copied(name): the folder of a small run, for a test to spoil, in the folder in which the test then works."""
    monkeypatch.chdir(tmp_path)
    return lambda name='ppo_torch': shutil.copytree(originals(name), tmp_path / name) / f'{name}_s0'


def change_config(folder, **changes):
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, **changes}))


def refused(capsys, function, *args):
    """The one line with which a command refuses what it is given."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        function(*args)
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and err.count('\n') == 1 and ': error: ' in err and 'Traceback' not in out, err
    return err.partition(': error: ')[2].strip()


def watch(folder, *more):
    test_policy.main([str(folder), '-nr', '-n', '1', '-l', '3', *more])


# ---- Nothing is executed

def hostile_saved_model(folder, victim):
    """A SavedModel that writes a file, reads one and calls Python, when it is loaded and when it acts."""
    from common.mpi_tf import tf
    shutil.rmtree(folder, ignore_errors=True)
    asset = Path(folder).with_name('words.txt')
    asset.write_text('one\ntwo\n')
    with tf.Graph().as_default(), tf.Session() as sess:
        obs = tf.placeholder(tf.float32, [None, 4], name='obs')
        weight = tf.get_variable('w', [4, 2])
        path = tf.constant(str(asset))
        tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, path)
        table = tf.lookup.StaticHashTable(tf.lookup.TextFileInitializer(
            path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER), -1)
        written = tf.io.write_file(str(victim / 'written'), tf.io.read_file(path))
        called = tf.py_func(lambda: os.mkdir(victim / 'called') or np.int64(0), [], tf.int64)
        with tf.control_dependencies([written]):
            act = tf.argmax(tf.matmul(obs, weight), axis=1) + table.lookup(tf.constant('one')) + called
        sess.run(tf.global_variables_initializer())
        builder = tf.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            sess, [tf.saved_model.tag_constants.SERVING], main_op=tf.group(written, tf.tables_initializer()),
            signature_def_map=dict(serving_default=tf.saved_model.predict_signature_def(dict(obs=obs), dict(act=act))))
        builder.save()


def test_a_tensorflow_graph_is_not_loaded(copied, capsys):
    folder, victim = copied('ppo_tf1'), Path('victim').absolute()
    victim.mkdir()
    weights = (folder / 'tf1_save' / 'weights.npz').read_bytes()
    hostile_saved_model(folder / 'tf1_save', victim)
    (folder / 'tf1_save' / 'weights.npz').write_bytes(weights)
    watch(folder)
    assert 'Episode   0' in capsys.readouterr().out and os.listdir(victim) == []
    from common.mpi_tf import tf                                # the trap is a trap
    with tf.Graph().as_default(), tf.Session() as sess:
        tf.saved_model.loader.load(sess, ['serve'], str(folder / 'tf1_save'))
    assert os.listdir(victim) == ['written']


def test_a_checkpoint_that_makes_tensorflow_abort_is_not_read(copied, capsys):
    """Its C++ reader ends the whole process when a shape in the index is negative, and more."""
    folder = copied('ppo_tf1')
    for path in (folder / 'tf1_save' / 'variables').iterdir():
        path.write_bytes(b'\xff' * 100)
    (folder / 'tf1_save' / 'saved_model.pb').write_bytes(b'\xff' * 100)
    watch(folder)
    assert 'Episode   0' in capsys.readouterr().out


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that can be imported, beside the run, and that leaves a folder when it is."""
    (tmp_path / 'modules').mkdir()
    (tmp_path / 'modules' / 'evil.py').write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path / 'modules')
    yield
    sys.modules.pop('evil', None)
    gym.registry.pop('E-v0', None)


@pytest.mark.parametrize('config', [
    dict(env_name='evil:E-v0'), dict(wrappers=['evil:W']), dict(wrappers=['NormalizeReward', 'evil:W()']),
    dict(wrappers=['gymnasium.wrappers.evil.x:W', 'evil:W(1)'])])
def test_a_module_is_imported_only_if_that_is_confirmed(config, copied, evil, capsys):
    folder = copied()
    change_config(folder, **config)
    line = refused(capsys, watch, folder)
    assert 'evil:' in line and 'if you trust it, add --' in line and '--trust' in line
    with pytest.raises(UserError, match='if you trust it'):
        test_policy.load_policy_and_env(folder)
    assert not os.path.exists('executed')
    if 'env_name' in config:
        assert line.endswith('add --env evil:E-v0 or --trust')
        watch(folder, '--env', 'evil:E-v0')
        assert os.path.exists('executed') and 'Episode   0' in capsys.readouterr().out
    elif 'gymnasium.wrappers.evil.x:W' not in config['wrappers']:
        watch(folder, '--trust')
        assert os.path.exists('executed') and 'Episode   0' in capsys.readouterr().out


@pytest.mark.parametrize(('config', 'strange'), [
    (dict(env_kwargs=dict(xml_file='/etc/passwd')), "xml_file='/etc/passwd'"),
    (dict(env_kwargs=dict(a=[{'b': ['x', '../x']}])), "a=[{'b': ['x', '../x']}]"),
    (dict(env_kwargs=dict(env_id='evil:E-v0')), "env_id='evil:E-v0'"),
    (dict(wrappers=["RecordVideo('videos')"]), "RecordVideo('videos')"),
    (dict(wrappers=['RecordVideo("videos")']), 'RecordVideo("videos")'),
    *((dict(wrappers=[f'FrameStackObservation({n})']), f'FrameStackObservation({n})')
      for n in ('100000000', '0xfffffff', '[0, 1_0_0_0_0_0]')),
    (dict(wrappers=['os:W']), 'os:W'), (dict(wrappers=['gymnasium.wrappers_:W']), 'gymnasium.wrappers_:W'),
    (dict(wrappers=['gymnasium.envs:W']), 'gymnasium.envs:W')])
def test_arguments_that_may_do_harm_are_confirmed_too(config, strange, copied, capsys):
    """gymnasium's RecordVideo writes to where its argument says, MuJoCo's environments read what theirs names, and a
    stack of many frames fills the memory."""
    folder = copied()
    change_config(folder, **config)
    before = sorted(os.listdir())
    line = refused(capsys, watch, folder)
    assert line.endswith(f'config.json asks for {strange}, which may import modules, reach files or fill the memory: '
                         'if you trust it, add --trust')
    assert sorted(os.listdir()) == before


def test_a_map_that_would_fill_the_memory_is_confirmed_too():
    with pytest.raises(UserError, match=r"desc=\['FFF.* or fill the memory: if you trust it, add --trust"):
        test_policy.check_trust('run', 'FrozenLake-v1', dict(desc=['F' * 3000] * 3000), [], None, False)


def test_what_needs_no_confirmation(copied, capsys):
    """Registered environments, their arguments, and gymnasium's own wrappers."""
    folder = copied()
    change_config(folder, wrappers=['TimeLimit(max_episode_steps=2)', 'gymnasium.wrappers:ClipReward(-1.1234567, 1)'],
                  env_kwargs=dict(sutton_barto_reward=True))
    watch(folder)
    assert 'EpLen     2' in capsys.readouterr().out
    test_policy.check_trust(folder, 'FrozenLake-v1', dict(map_name='8x8', desc=['SF', 'FG']), [], None, False)


@pytest.mark.parametrize('config', [
    dict(env_name=['CartPole-v1']), dict(env_name={'a': 1}), dict(env_kwargs=['x']), dict(wrappers='NormalizeReward'),
    dict(wrappers=[3]), dict(env_name='a\0b:E-v0'), dict(env_name='\x1b[2J')])
def test_what_is_no_environment(config, copied, capsys):
    folder = copied()
    change_config(folder, **config)
    assert 'config.json does not describe an environment' in refused(capsys, watch, folder, '--trust')


# ---- Nothing is written outside of the folder

@pytest.mark.parametrize('name', ['ppo_torch', 'sac_torch', 'ppo_tf1'])
def test_planted_temporary_names_are_not_followed(name, tmp_path, capsys):
    """Links under the names that earlier versions used for their temporary files."""
    if name.endswith('_tf1'):
        pytest.importorskip('tensorflow')
    victim, folder = tmp_path / 'victim', tmp_path / name / f'{name}_s0'
    (folder / 'pyt_save').mkdir(parents=True)
    (folder / 'replay').mkdir()
    (tmp_path / 'folder').mkdir()
    victim.write_text('precious')
    for path in 'progress.txt config.json state.npz pyt_save/model.pt replay/20.npz replay/40.npz'.split():
        (folder / f'{path}.tmp').symlink_to(victim)
    (folder / 'tf1_save.tmp').symlink_to(tmp_path / 'folder')
    line = refused(capsys, command, name, tmp_path)             # links among the run's own files are no run's
    assert 'is a link to ' in line and 'a run writes into its own folder only' in line
    for path in folder.rglob('*.tmp'):
        path.unlink()
    command(name, tmp_path)
    for path in 'progress.txt config.json state.npz'.split():
        (folder / f'{path}.tmp').symlink_to(victim)
    refused(capsys, command, name, tmp_path, '--epochs', '3', '--resume')
    refused(capsys, command, name, tmp_path, '--overwrite')
    assert victim.read_text() == 'precious' and os.listdir(tmp_path / 'folder') == []


def test_temporary_names_cannot_be_foreseen_nor_taken(tmp_path, monkeypatch):
    names = {serialization.temporary_name(str(tmp_path / 'state.npz')) for _ in range(100)}
    assert len(names) == 100
    logger = importlib.import_module('common.logx')
    for name in names:
        assert logger.re.fullmatch(OWN_FILES, os.path.basename(name))           # so that --overwrite removes it
    victim = tmp_path / 'victim'
    victim.write_text('precious')
    (tmp_path / 'folder').mkdir()
    monkeypatch.setattr(serialization, 'temporary_name', lambda path: f'{path}.known.tmp')      # guessed after all
    (tmp_path / 'file.known.tmp').symlink_to(victim)
    (tmp_path / 'model.known.tmp').symlink_to(tmp_path / 'folder')
    with pytest.raises(FileExistsError), atomic_write(tmp_path / 'file') as file:
        file.write(b'x')
    with pytest.raises(FileExistsError), atomic_folder(str(tmp_path / 'model')) as folder:
        Path(folder, 'x').touch()
    assert victim.read_text() == 'precious' and os.listdir(tmp_path / 'folder') == []


@pytest.mark.parametrize('link', ['progress.txt', 'config.json', 'state.npz', 'pyt_save', 'replay', '.lock',
                                  'output.log', 'pyt_save/model.pt', 'replay/40.npz', 'tf1_save.old'])
@pytest.mark.parametrize('how', ['', '--resume', '--overwrite'])
def test_links_in_place_of_files_are_refused(link, how, copied, tmp_path, capsys):
    """A table is appended to, and files of numbers are deleted when they are no longer needed: not those elsewhere."""
    folder, victim = copied('sac_torch'), tmp_path / 'victim'
    if (folder / link).exists():
        (folder / link).rename(victim)
    else:
        victim.write_text('precious')
    before = {path: path.read_bytes() for path in [victim, *victim.rglob('*')] if path.is_file()}
    (folder / link).symlink_to(victim)
    line = refused(capsys, command, 'sac_torch', tmp_path, '--epochs', '3', *how.split())
    assert f'{folder / link} is a link to {victim}' in line
    assert {path: path.read_bytes() for path in [victim, *victim.rglob('*')] if path.is_file()} == before


def test_a_link_to_nothing_is_not_written_through(tmp_path, capsys):
    folder = tmp_path / 'ppo_torch' / 'ppo_torch_s0'
    folder.mkdir(parents=True)
    (folder / 'progress.txt').symlink_to(tmp_path / 'new')
    assert 'is a link to ' in refused(capsys, command, 'ppo_torch', tmp_path)
    assert not (tmp_path / 'new').exists()


def test_a_folder_of_runs_may_be_a_link(tmp_path):
    (tmp_path / 'disk').mkdir()
    (tmp_path / 'data').symlink_to(tmp_path / 'disk')
    command('ppo_torch', tmp_path / 'data')
    assert (tmp_path / 'disk' / 'ppo_torch' / 'ppo_torch_s0' / 'state.npz').exists()


def test_an_animation_replaces_a_link_and_not_what_it_leads_to(tmp_path):
    victim, path = tmp_path / 'victim', tmp_path / 'a.gif'
    victim.write_text('precious')
    path.symlink_to(victim)
    test_policy.write_gif([np.zeros((4, 4, 3), np.uint8)], str(path), 10)
    assert victim.read_text() == 'precious' and not path.is_symlink() and path.read_bytes()[:3] == b'GIF'


# ---- No more is read than is there

def npz(path, compression=zipfile.ZIP_STORED, tree=b'null', times=1, **members):
    with zipfile.ZipFile(path, 'w', compression) as file:
        for name, content in dict(members, tree=np.frombuffer(tree, np.uint8)).items():
            if isinstance(content, bytes):
                file.writestr(f'{name}.npy', content)
            else:
                np.save(buffer := io.BytesIO(), content)
                file.writestr(f'{name}.npy', buffer.getvalue())
        file.filelist *= times
    return path


def header(shape, descr='<f8'):
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + '\n'
    return b'\x93NUMPY\x01\x00' + len(text).to_bytes(2, 'little') + text.encode()


def memory_of(function, *args):
    """The most memory that a call takes."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as error:
            function(*args)
        return tracemalloc.get_traced_memory()[1], str(error.value)
    finally:
        tracemalloc.stop()


BIG = np.zeros(2 * 10**7, np.uint8)


@pytest.mark.parametrize(('make', 'words'), [
    (lambda path: npz(path, zipfile.ZIP_DEFLATED, x=BIG), 'is refused: it is compressed'),
    (lambda path: npz(path, times=1000, x=BIG[:10**6]), 'unpacked, it would be larger than the file'),
    (lambda path: npz(path, tree=b'[' + b'{"array":"x"},' * 1000 + b'0]', x=BIG[:10**6]), "read (KeyError: 'x')"),
    (lambda path: npz(path, x=header('(1000000000000,)')), 'cannot be read ('),
    (lambda path: npz(path, x=header('(-1,)')), 'cannot be read ('),
    (lambda path: npz(path, x=header('(99999999999999999999999999,)')), 'cannot be read ('),
    (lambda path: npz(path, x=header('(1,)', '|O')), 'Object arrays cannot be loaded'),
    (lambda path: npz(path, tree=b'[' * 10**6), 'cannot be read (RecursionError: '),
    (lambda path: npz(path, tree=b' ' * 2 * 10**7), 'its tree has 20000000 bytes'),
    (lambda path: npz(path, tree=b'{"a": 1, "dict": []}'), 'cannot be read (ValueError: '),
    (lambda path: path.write_bytes(b''), 'cannot be read (BadZipFile: File is not a zip file)'),
    (lambda path: os.mkfifo(path), 'is not a regular file'), (lambda path: path.mkdir(), 'is not a regular file'),
    (lambda path: path.symlink_to('/dev/zero'), 'is not a regular file'),
    (lambda path: None, 'cannot be read (FileNotFoundError: ')],
    ids='compressed overlapping repeated huge negative overflowing objects deep long odd empty pipe folder device none'
        .split())
def test_trees_that_are_no_trees(make, words, tmp_path):
    path = tmp_path / 'state.npz'
    make(path)
    memory, line = memory_of(load_tree, path)
    assert line.startswith(f'{path} ') and words in line
    assert memory < 10**8 or 'MemoryError: Unable to allocate' in line          # which numpy says, and takes none
    if words in ('is refused: it is compressed', 'unpacked, it would be larger than the file'):
        assert memory < 2 * 10**6                               # refused by what it says of itself


@pytest.mark.parametrize(('content', 'words'), [
    (b'[' * 10**5, 'RecursionError'), (b'{"a":' * 10**5, 'RecursionError'), (b'[]', 'list in place of an object'),
    (b'{"a":' + b'[' * 900 + b']' * 900 + b'}', None), (b'{"a": "' + b'x' * 10**7 + b'"}', 'bytes, and a run writes'),
    (b'{"a": 1', 'JSONDecodeError'), (b'\xff', 'UnicodeDecodeError'), (b'{"a": ' + b'9' * 5000 + b'}', 'ValueError')],
    ids='lists objects list nested long cut bytes digits'.split())
def test_configurations_that_are_none(content, words, copied, capsys):
    folder = copied()
    (folder / 'config.json').write_bytes(content)
    if words is None:                                           # deep, and yet within what Python parses
        node, depth = read_json(folder / 'config.json')['a'], 0
        while isinstance(node, list):
            node, depth = node[0], depth + 1
        assert 5 < depth < 20                                   # and the rest as a text
        return
    for function, args in (watch, [folder]), (command, ['ppo_torch', folder.parents[1], '--epochs', '3', '--resume']), (
            doctor.main, [[str(folder)]]):
        line = refused(capsys, function, *args)
        assert 'config.json' in line and words in line and len(line) < 1000
    plot.main([str(folder), '--out', 'plot.svg'])               # which needs only the table


def test_tables_that_have_no_end(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(UserError, match='pipe is not a regular file'):
        read_progress(tmp_path / 'pipe')
    (tmp_path / 'progress.txt').write_text('Epoch\n0\n1\n2\n')
    assert len(read_progress(tmp_path / 'progress.txt')[1]) == 3
    monkeypatch.setattr('common.logx.MAX_TABLE', 11)
    with pytest.raises(UserError, match='it has 12 bytes, and a run writes at most 11'):
        read_progress(tmp_path / 'progress.txt')


def test_a_compressed_model_is_refused(copied, capsys):
    folder = copied()
    path = folder / 'pyt_save' / 'model.pt'
    check_zip(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    assert f'{path} is refused: it is compressed' in refused(capsys, watch, folder)


# ---- Nothing speaks to the terminal

ESCAPES = '\x1b[2J\x1b]0;title\x07\x9b31m\r'


def test_printable():
    assert printable('plain text, é') == 'plain text, é'
    assert printable('a\n b\tc') == 'a b c'
    assert printable(f'a{ESCAPES}b') == r'a\x1b[2J\x1b]0;title\x07\x9b31m b'
    assert printable('\ud800\u202e') == r'\ud800\u202e'
    assert len(printable('x' * 10**6)) < 300 and printable('x' * 300) == 'x' * 300


def test_escape_codes_are_not_passed_on(copied, capsys):
    folder = copied()
    head, *rows = (folder / 'progress.txt').read_text().splitlines()
    (folder / 'progress.txt').write_text('\n'.join([f'{head}\tX{ESCAPES[:-1]}', *(f'{row}\tnan' for row in rows), '']))
    change_config(folder, exp_name=f'mine{ESCAPES}', env_name=f'Env{ESCAPES}', algo='ppo_torch')
    for function, args in ((plot.main, ['--out', 'plot.svg', '--count']), (plot.main, ['-y', 'nothing']),
                           (doctor.main, []), (test_policy.main, ['-nr'])):
        try:
            function([str(folder), *args])
        except SystemExit as stop:
            assert stop.code == 2
        out = ''.join(capsys.readouterr())
        assert out and not {'\x1b', '\x07', '\x9b', '\r'} & {*out}
        assert function is not doctor.main or r'X\x1b[2J\x1b]0;title\x07\x9b31m became nan' in ' '.join(out.split())
    assert '\x1b' not in Path('plot.svg').read_text()


# ---- What is damaged is said in one line, and nothing is lost

def resume(folder, *more):
    command(folder.parent.name, folder.parents[1], '--epochs', '3', '--resume', *more)


@pytest.mark.parametrize(('name', 'spoil', 'words'), [
    ('ppo_torch', lambda folder, other: shutil.copy(other / 'state.npz', folder), 'has other columns than state.npz'),
    ('ppo_torch', lambda folder, other: [shutil.copy(other / name, folder) for name in ('state.npz', 'progress.txt')],
     'state.npz there is damaged, or of another kind of run ('),
    ('ppo_tf1', lambda folder, other: [shutil.copy(other / name, folder) for name in ('state.npz', 'progress.txt')],
     'state.npz there is damaged, or of another kind of run ('),
    ('sac_torch', lambda folder, _: (folder / 'state.npz').write_bytes(b'PK'), 'state.npz cannot be read (BadZipFile'),
    ('sac_torch', lambda folder, _: save_tree(folder / 'state.npz', {}), "npz cannot be read (KeyError: 'states'"),
    ('sac_torch', lambda folder, _: (folder / 'replay' / '20.npz').unlink(), 'replay lacks the rows from 10 to 40 of'),
    ('sac_torch', lambda folder, _: (folder / 'replay' / '40.npz').unlink(), 'replay lacks the rows from 20 to 40 of'),
    ('sac_torch', lambda folder, _: save_tree(folder / 'replay' / '40.npz', [np.zeros((20, 9))]),
     'these are not the rows of such a replay buffer'),
    ('sac_torch', lambda folder, _: save_tree(folder / 'replay' / '40.npz', 3), '40.npz cannot be read (TypeError'),
    ('ppo_torch', lambda folder, _: (folder / 'progress.txt').write_text('Epoch\n0\n'), 'or move the table away'),
], ids='other_state other_run other_run_tf1 bytes empty lacks_first lacks_last type number columns'.split())
def test_resuming_what_is_damaged(name, spoil, words, copied, originals, capsys):
    folder = copied(name)
    spoil(folder, originals('sac_torch') / 'sac_torch_s0')
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.name != 'config.json'}
    assert words in refused(capsys, resume, folder)
    after = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.name != 'config.json'}
    assert after == before


@pytest.mark.parametrize('key', ['agent', 'rng', 'env', 'epoch', 'updates', 'test_env'])
def test_a_checkpoint_that_lacks_something(key, copied, capsys):
    folder = copied('sac_torch')
    saved = load_tree(folder / 'state.npz')
    for change in (lambda state: state.pop(key)), (lambda state: state.update({key: 'text'})):
        spoilt = dict(saved, states=[dict(state) for state in saved['states']])
        change(spoilt['states'][0])
        save_tree(folder / 'state.npz', spoilt)
        line = refused(capsys, resume, folder)
        assert ('one of rows, replay, epoch, updates is not a whole number' if key in ('epoch', 'updates')
                and 'state.npz cannot' in line else 'state.npz there is damaged, or of another kind of run (') in line
    save_tree(folder / 'state.npz', saved)
    resume(folder)


@pytest.mark.parametrize('key', ['exp_avg', 'exp_avg_sq', 'step'])
@pytest.mark.parametrize('name', ['ppo_torch', 'sac_torch'])
def test_adam_gets_moments_of_its_parameters_shapes(name, key, copied, capsys):
    """PyTorch does not look, and its fused step would read and write beyond the end of a smaller array."""
    torch, folder = pytest.importorskip('torch'), copied(name)
    saved = load_tree(folder / 'state.npz')
    saved['states'][0]['agent']['pi_optimizer']['state'][0][key] = torch.zeros(3)
    save_tree(folder / 'state.npz', saved)
    assert f'damaged, or of another kind of run (ValueError: {key} of Adam has the shape (3,)' in refused(
        capsys, resume, folder)


def test_a_bug_in_the_first_epoch_after_resuming_can_be_found(copied, monkeypatch, capsys):
    """It cannot be told from a damaged checkpoint, and so the line says where it is."""
    folder, line = copied(), inspect.currentframe().f_lineno + 1
    monkeypatch.setattr('ppo_torch.Agent.update', lambda *_: 1 / 0)
    assert f'(ZeroDivisionError: division by zero, in line {line} of test_hostile_files.py); restore it' in refused(
        capsys, resume, folder)


def test_a_run_goes_on_without_its_table(copied):
    folder = copied()
    (folder / 'progress.txt').rename('elsewhere')
    resume(folder)
    assert [row['Epoch'] for row in read_progress(folder / 'progress.txt')[1]] == ['2']


# ---- Numbers that are too large, on the command line

@pytest.mark.parametrize(('name', 'flags', 'words'), [
    ('ppo_torch', '--seed ' + '9' * 400, 'is not a whole number up to 4294967295'),
    ('ppo_torch', '--seed ' + '9' * 5000, 'is not a whole number of at least 0'),
    ('ppo_torch', '--clip_ratio 1e300', '1e300 is not a number up to 1e+18'),
    ('ppo_torch', '--epochs 1e300', '1e300 is not a whole number up to 1e+18'),
    ('ppo_torch', '--cpu 100000', '100000 is not a whole number up to 1024'),
    ('ppo_torch', '--steps_per_epoch 1e12', '--steps_per_epoch 1000000000000 needs 2.61e+04 GB of memory, and this'),
    ('sac_torch', '--replay_size 1e12', 'needs 3.35e+04 GB of memory, and this machine has 16: try a smaller --re'),
    ('sac_torch', '--batch_size 1e12', '--batch_size 1000000000000 needs 3.35e+04 GB of memory'),
    ('ppo_torch', '--hid 99999999,99999999', '--hid [99999999,99999999] needs 1.49e+08 GB of memory'),
    ('ppo_torch', '--hid 999999999', '--hid [999999999] needs 74.5 GB of memory'),
    ('ppo_torch', '--seed ' + ' '.join(map(str, range(400))) + ' --gamma ' + ' '.join(f'0.{i}' for i in range(10, 270)),
     'this grid has 104000 runs, and at most 100000'),
    ('ppo_torch', '--exp_name a\x1bb', 'a\\x1bb: it has unprintable characters'),
    ('ppo_torch', '--exp_name \udcff', 'it has unprintable characters'),
    ('ppo_torch', '--exp_name ' + 'a' * 300, 'too long for the name of a folder'),
    ('ppo_torch', '--steps 1000', 'unknown argument --steps (nearest: --steps_per_epoch')])
def test_what_cannot_be(name, flags, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, 'sysconf', lambda key: {'SC_PHYS_PAGES': 2**22, 'SC_PAGE_SIZE': 4096}[key])       # 16 GB
    monkeypatch.setattr(run, 'run_here', None)
    algo = name.split('_')[0]
    argv = [*FLAGS[algo].split()[:2], *flags.split(' ')]
    line = refused(capsys, run.command_line, getattr(importlib.import_module(name), algo), argv)
    assert words in line and len(line) < 1000 and os.listdir() == []


@pytest.mark.parametrize(('dtype', 'itemsize'), [(np.uint8, 1), (np.float32, 4), (np.float64, 4)])
def test_memory_is_that_of_the_replay_buffer(dtype, itemsize, monkeypatch):
    """Just enough, and a transition less: the sizes are those of the buffer itself."""
    import sac_torch
    from common.env_tools import make_env
    env = make_env(lambda: SmallEnv(Box(0, 1, (8, 8, 3), dtype), Box(-1, 1, (2,))), off_policy=True)
    size = sac_torch.ReplayBuffer(env.observation_space, env.action_space, 1000).data.nbytes
    assert math.isclose(size, 1000 * (2 * 192 * itemsize + 4 * 4), rel_tol=0.01)
    arguments = dict(replay_size=1000, ac_kwargs=dict(hidden_sizes=(8,)))
    for pages, processes, local, fits in ((size, 1, None, True), (size - 1000, 1, None, False),
                                          (size // 2, 4, '2', True), (size // 2 - 1000, 4, '2', False)):
        monkeypatch.setattr(os, 'sysconf', {'SC_PHYS_PAGES': pages, 'SC_PAGE_SIZE': 1}.get)
        monkeypatch.setenv('MPI_LOCALNRANKS', local) if local else monkeypatch.delenv('MPI_LOCALNRANKS', raising=False)
        if fits:
            run.check_memory(arguments, env.observation_space, env.action_space, processes)
        else:
            with pytest.raises(UserError, match='--replay_size 1000 needs '):
                run.check_memory(arguments, env.observation_space, env.action_space, processes)


@pytest.mark.parametrize(('arguments', 'flag', 'floats'), [
    (dict(steps_per_epoch=1000), '--steps_per_epoch', 1), (dict(replay_size=1, batch_size=1000), '--batch_size', 2)])
def test_images_of_a_batch_are_numbers(arguments, flag, floats, monkeypatch):
    """Of four bytes, whatever the buffer stores: what fits as images alone is refused, too."""
    obs_space, act_space = Box(0, 255, (8, 8, 3), np.uint8), Box(-1, 1, (2,))
    monkeypatch.setattr(os, 'sysconf', {'SC_PHYS_PAGES': 1000 * floats * 192 * 4, 'SC_PAGE_SIZE': 1}.get)
    with pytest.raises(UserError, match=f'{flag} 1000 needs '):
        run.check_memory(dict(arguments, ac_kwargs={}), obs_space, act_space, processes=1)
    run.check_memory({key: min(size, 700) for key, size in arguments.items()}, obs_space, act_space, processes=1)


@pytest.mark.parametrize('value', ['9' * 400, '9' * 5000, '100001', '0', '-3', 'x'])
def test_smoothing_over_too_much(value, copied, capsys):
    refused(capsys, plot.main, [str(copied()), '-s', value, '--out', 'a.png'])


def test_sections_into_a_pipe_that_is_closed():
    done = subprocess.run(f'{sys.executable} -m tools.sections ppo_torch Training Networks Update Losses | head -n 1',
                          shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ('# %% Training\n', '')
