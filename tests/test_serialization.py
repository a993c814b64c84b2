"""Files of a run: exact, safe to read, and never half written."""
import contextlib
import functools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from common.errors import UserError
from common.serialization import (ReplayFiles, atomic_folder, atomic_write, complete_folder, convert_json, load_tree,
                                  save_tree)

ROOT = Path(__file__).parent.parent


def assert_same(a, b):
    """Equal, of the same types all the way down, and in the same order."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b) and list(map(type, a)) == list(map(type, b))
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    else:
        assert repr(a) == repr(b)                           # repr, since nan is not equal to itself


# %% Trees
def test_tree_comes_back_exactly(tmp_path):
    tree = {
        'arrays': [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4), np.float32), np.array(2.5),
                   np.array(['a', 'bc']), np.array([np.nan, -0.0, np.inf]), np.array([True, False]),
                   np.asfortranarray(np.random.rand(3, 2))],
        'tensors': (torch.randn(3, 2), torch.tensor(7), torch.zeros(0, dtype=torch.float64), torch.tensor([True])),
        'scalars': [np.float32(0.1), np.int64(3), np.bool_(True), np.float64('nan'), np.str_('text')],
        'numbers': [True, False, 0, -1, 2**200, 0.1, -0.0, 1e-320, float('nan'), float('inf'), -float('inf')],
        'strings': ['', 'tab\tnewline\n', 'é \ud800', None],
        'keys': {0: 'integer', '0': 'string', 'array': {'array': '0'}, 'tuple': {'tuple': []}, '': {}},
        'nested': ((), [], {}, ([{'a': ((1,),)}],)),
        3: None,
    }
    save_tree(tmp_path / 'tree.npz', tree)
    assert_same(load_tree(tmp_path / 'tree.npz'), tree)


@pytest.mark.parametrize('tree', [None, 3, 'text', [], (), {}, np.ones(2)], ids=str)
def test_tree_of_one_leaf(tmp_path, tree):
    save_tree(tmp_path / 'tree.npz', tree)
    assert_same(load_tree(tmp_path / 'tree.npz'), tree)


def test_random_state_comes_back(tmp_path):
    rng = np.random.default_rng(3)
    save_tree(tmp_path / 'rng.npz', rng.bit_generator.state)
    expected, again = rng.random(5), np.random.default_rng(0)
    again.bit_generator.state = load_tree(tmp_path / 'rng.npz')
    assert np.array_equal(again.random(5), expected)


def test_optimizer_state_comes_back(tmp_path):
    """Integer keys, tuples (betas) and tensors together, as torch.optim has them."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    save_tree(tmp_path / 'adam.npz', optimizer.state_dict())
    assert_same(load_tree(tmp_path / 'adam.npz'), optimizer.state_dict())


def test_loaded_arrays_can_be_written_to(tmp_path):
    save_tree(tmp_path / 'tree.npz', [np.zeros(3), torch.zeros(3, requires_grad=True)])
    array, tensor = load_tree(tmp_path / 'tree.npz')
    array += 1
    tensor += 1
    assert array.sum() == tensor.sum() == 3


@pytest.mark.parametrize('leaf, word', [(object(), 'object'), ({1, 2}, 'set'), (np.array([None]), 'Python objects'),
                                        ({1.5: 0}, 'keys'), (lambda: 0, 'function')])
def test_what_cannot_be_saved_is_refused_by_its_place(tmp_path, leaf, word):
    with pytest.raises(TypeError, match=rf"tree\['a'\]\[1\].*{word}"):
        save_tree(tmp_path / 'tree.npz', {'a': [0, leaf]})
    assert os.listdir(tmp_path) == []


class Bomb:
    def __reduce__(self):
        return os.mkdir, ('exploded',)


def test_loading_never_executes_what_is_in_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = np.frombuffer(json.dumps({'array': '0'}).encode(), np.uint8)
    np.savez(tmp_path / 'bomb.npz', **{'tree': text, '0': np.array(Bomb(), dtype=object)})
    with pytest.raises(UserError, match='bomb.npz cannot be read .ValueError: .*allow_pickle'):
        load_tree(tmp_path / 'bomb.npz')
    (tmp_path / 'bomb.npz').write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(UserError, match='bomb.npz cannot be read .BadZipFile: '):
        load_tree(tmp_path / 'bomb.npz')
    assert not os.path.exists('exploded')


# %% Atomic replacement
def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / 'file'
    path.write_text('old')
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b'half of the new')
        raise RuntimeError
    assert path.read_text() == 'old' and os.listdir(tmp_path) == ['file']
    with atomic_write(path, 'w') as file:
        file.write('né\n')
    assert path.read_bytes() == 'né\n'.encode() and os.listdir(tmp_path) == ['file']


def test_killed_while_saving_leaves_a_complete_file(tmp_path):
    code = ('import itertools, numpy as np; from common.serialization import save_tree\n'
            'for i in itertools.count(): save_tree("tree.npz", [i, np.full(300_000, i)])')
    saved = tmp_path / 'tree.npz'
    for _ in range(3):
        child = subprocess.Popen([sys.executable, '-c', code], cwd=tmp_path, env=dict(os.environ, PYTHONPATH=str(ROOT)))
        deadline = time.time() + 120
        while time.time() < deadline and not (saved.exists() and any(tmp_path.glob('tree.npz.*.tmp'))):
            pass                                            # until it is in the middle of a later save
        child.send_signal(signal.SIGKILL)
        child.wait()
        number, array = load_tree(tmp_path / 'tree.npz')
        assert (array == number).all()
        assert len(os.listdir(tmp_path)) <= 2               # what the kill before has left is gone
    save_tree(saved, 0)
    assert os.listdir(tmp_path) == ['tree.npz']


def test_folder_is_complete_wherever_the_replacement_is_killed(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def replace(folder, text, calls):
        """Replace a folder with one that holds `text`, killed at a given call of a function that changes folders."""
        left = iter(range(calls))
        def mortal(function):
            def wrapper(*args, **kwargs):
                if next(left, None) is None:
                    raise Killed
                return function(*args, **kwargs)
            return wrapper
        with monkeypatch.context() as patch:
            patch.setattr('os.rename', mortal(os.rename))
            patch.setattr('shutil.rmtree', mortal(shutil.rmtree))
            with atomic_folder(str(folder)) as new:
                Path(new, 'text').write_text(text)

    seen = set()
    for calls in range(10):
        folder = tmp_path / str(calls) / 'model'
        folder.parent.mkdir()
        replace(folder, 'old', 10)
        with contextlib.suppress(Killed):
            replace(folder, 'new', calls)
        seen.add((Path(complete_folder(f'{folder}/')) / 'text').read_text())
        replace(folder, 'newest', 10)
        assert (folder / 'text').read_text() == 'newest' and os.listdir(folder.parent) == ['model']
    assert seen == {'old', 'new'}


# %% Replay buffers
class Buffer:
    def __init__(self, capacity):
        self.data = np.zeros((capacity, 2), dtype=np.float32)
        self.ptr = self.size = self.count = 0

    def store(self, n):
        for _ in range(n):
            self.data[self.ptr] = self.count, -self.count
            self.count += 1
            self.ptr, self.size = self.count % len(self.data), min(self.count, len(self.data))


@pytest.mark.parametrize('capacity', [7, 10, 1000])
@pytest.mark.parametrize('steps', [[3], [3, 3, 3, 3], [0, 5, 0, 6, 1], [25, 1], [10, 10, 10], [1, 30, 2, 2]], ids=str)
def test_replay_files_bring_back_the_buffer_as_it_was(tmp_path, capacity, steps):
    buffer, files = Buffer(capacity), ReplayFiles(tmp_path / 'replay')
    for n in steps:
        buffer.store(n)
        files.save(buffer)
        files.remove_others(capacity)
        again, reader = Buffer(capacity), ReplayFiles(tmp_path / 'replay')
        reader.load(again, buffer.count)
        assert np.array_equal(again.data, buffer.data)
        assert (again.ptr, again.size, again.count) == (buffer.ptr, buffer.size, buffer.count)
        assert reader.saved == buffer.count                 # so that the next save goes on from here
    rows = [len(load_tree(path)[0]) for path in (tmp_path / 'replay').iterdir()]
    assert max(rows) <= capacity and sum(rows) < capacity + max(steps)      # no rows, no files that are overwritten


def test_replay_file_that_a_kill_left_behind_is_not_read(tmp_path):
    """Saved after the last checkpoint, which knows of three rows only; later ones may be others."""
    buffer, files = Buffer(10), ReplayFiles(tmp_path / 'replay')
    for n in (3, 2):
        buffer.store(n)
        files.save(buffer)
    resumed, files = Buffer(10), ReplayFiles(tmp_path / 'replay')
    files.load(resumed, 3)
    resumed.data[:] *= -1
    resumed.store(4)
    resumed.data[3:] += 100
    files.save(resumed)
    again = Buffer(10)
    ReplayFiles(tmp_path / 'replay').load(again, 7)
    assert np.array_equal(again.data[3:7], resumed.data[3:7]) and len(os.listdir(tmp_path / 'replay')) == 2


def test_processes_with_different_numbers_of_rows_are_refused(tmp_path, monkeypatch):
    buffer = Buffer(10)
    buffer.store(3)
    monkeypatch.setattr('common.serialization.gather', lambda part: [part, (4, part[1])])
    with pytest.raises(AssertionError, match='different numbers of rows'):
        ReplayFiles(tmp_path / 'replay').save(buffer)


# %% JSON
class Thing:
    def __init__(self, **kwargs):
        self.__dict__.update(kwargs)


class Slots:
    __slots__ = ()


class Rude:
    def __repr__(self):
        raise RuntimeError


def function():
    pass


@pytest.mark.parametrize('obj, expected', [
    (None, None), (True, True), (3, 3), (0.5, 0.5), ('a', 'a'), ((1, (2,)), [1, [2]]), ({3, 1}, [1, 3]),
    (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.array([[1, 2]]), [[1, 2]]),
    (np.array(1.5), 1.5), (torch.tensor([1., 2.]), [1., 2.]), (torch.float32, 'torch.float32'),
    (float('nan'), 'nan'), (float('inf'), 'inf'), (np.float64('-inf'), '-inf'), (np.array([np.nan]), ['nan']),
    (function, 'function'), (np.tanh, 'tanh'), (torch.nn.ReLU, 'ReLU'), (Thing, 'Thing'), (lambda: 0, '<lambda>'),
    (np, 'numpy'),
    ({1: 2, function: 3, 'a': (4,)}, {'1': 2, 'function': 3, 'a': [4]}),
    (Thing(a=1, b=(function, Thing(c=2))), {'Thing': {'a': 1, 'b': ['function', {'Thing': {'c': 2}}]}}),
    (functools.partial(gym.make, 'CartPole-v1'), "functools.partial(<function make>, 'CartPole-v1')"),
    (Slots(), f'<{__name__}.Slots object>'), (Rude(), '<Rude>'), (b'a', "b'a'"), (1j, '1j'),
], ids=lambda x: type(x).__name__)
def test_convert_json(obj, expected):
    result = convert_json(obj)
    assert result == expected and type(result) is type(expected)
    json.dumps(result, allow_nan=False, sort_keys=True)


def test_convert_json_of_cycles_and_of_depth():
    loop = [1]
    loop.append({'again': loop})
    assert convert_json(loop) == [1, {'again': '<the list that this is part of>'}]
    thing = Thing()
    thing.me = thing
    assert convert_json(thing) == {'Thing': {'me': '<the Thing that this is part of>'}}
    twice = [1]
    assert convert_json([twice, twice]) == [[1], [1]]       # the same thing twice is no cycle

    deep = []
    for _ in range(5000):
        deep = [deep]
    assert len(json.dumps(convert_json(deep))) < 20_000
    assert len(json.dumps(convert_json(gym.make('CartPole-v1')), allow_nan=False)) < 20_000


def test_convert_json_is_the_same_in_every_run():
    """No addresses in memory, no order of a set."""
    class Local:
        pass
    assert convert_json([Local(), Thing(a=Local())]) == convert_json([Local(), Thing(a=Local())])
    assert '0x' not in json.dumps(convert_json([Local(), functools.partial(function, Local()), {Local()}]))
