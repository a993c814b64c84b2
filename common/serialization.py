"""Files that a run can be resumed from, and that are safe to read: JSON and npz, never pickle.

`convert_json` turns anything into JSON, for people to read. `save_tree` and `load_tree` store nested containers of
arrays and numbers exactly, for programs to resume from; `ReplayFiles` does the same for replay buffers, a part at a
time. `atomic_write` is how every file of a run is replaced. What is read may be damaged, or made by someone else: no
more is read than is there, and what cannot be read is a UserError.
"""
import contextlib
import functools
import glob
import importlib
import json
import math
import os
import re
import secrets
import shutil
import zipfile
from pathlib import Path

import numpy as np

from common.errors import UserError, printable
from common.mpi_tools import bcast, gather, num_procs, proc_id, scatter

MAX_DEPTH = 10          # of convert_json: an environment as an argument would fill pages
MAX_JSON = 10**7        # largest JSON file that is read: parsed, it may take fifty times as much memory
MAX_TABLE = 2**28       # largest progress.txt that is read: half a million epochs


def temporary_name(path):
    """A name that nobody can foresee, to put a link there; what a killed run left under such a name is removed."""
    for old in glob.glob(f'{glob.escape(path)}.{"[0-9a-f]" * 16}.tmp'):
        shutil.rmtree(old) if os.path.isdir(old) and not os.path.islink(old) else os.remove(old)
    return f'{path}.{secrets.token_hex(8)}.tmp'


@contextlib.contextmanager
def atomic_write(path, mode='wb'):
    """A new file that takes the place of `path` once it is complete: a kill leaves the old one or the new one."""
    temporary, mode = temporary_name(str(path)), mode.replace('w', 'x')         # x: a new file, never another's
    try:
        with open(temporary, mode, **({} if 'b' in mode else dict(encoding='utf-8', newline='\n'))) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


@contextlib.contextmanager
def atomic_folder(path):
    """A new folder that takes the place of `path` once it is complete.

    No system can replace a folder in one step: a kill between the two renames leaves the old one as `path`.old, where
    `complete_folder` finds it.
    """
    new, old = temporary_name(path), f'{path}.old'
    os.mkdir(new)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if os.path.isdir(path):
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(new, path)
    shutil.rmtree(old, ignore_errors=True)


def complete_folder(path):
    """`path`, or where the folder is if `atomic_folder` was killed while replacing it."""
    path = os.path.normpath(path)
    return f'{path}.old' if os.path.isdir(f'{path}.old') and not os.path.isdir(path) else path


def check_file(path, longest):
    """A UserError unless `path` is a file of at most `longest` bytes: a pipe or a device may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f'{path} is not a regular file')
    if (size := os.path.getsize(path)) > longest:
        raise UserError(f'{path} is refused: it has {size} bytes, and a run writes at most {longest}')


def check_zip(path):
    """A UserError unless `path` is a zip file whose parts are stored uncompressed, as numpy and PyTorch store them:
    those of a compressed file, or of one that uses its bytes several times, could fill any memory."""
    check_file(path, np.inf)
    with zipfile.ZipFile(path) as file:
        parts = file.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise UserError(f'{path} is refused: it is compressed, and a run compresses nothing')
    if sum(part.file_size for part in parts) > os.path.getsize(path):
        raise UserError(f'{path} is refused: unpacked, it would be larger than the file')


@contextlib.contextmanager
def damage_is_a_user_error(path):
    """Turn whatever zipfile, numpy, PyTorch and json may raise for a damaged file into a UserError, in one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{path} cannot be read ({type(error).__name__}: {printable(error)}): it is damaged, or not a '
                        'file of such a run; restore it from a copy, or start over') from error


# %% JSON, for people
def read_json(path):
    """The JSON object in a file."""
    with damage_is_a_user_error(path):
        check_file(path, MAX_JSON)
        tree = json.loads(Path(path).read_text(encoding='utf-8'))
        if not isinstance(tree, dict):
            raise TypeError(f'{type(tree).__name__} in place of an object')
        return convert_json(tree)                           # as it was written; one from elsewhere, no deeper


def convert_json(obj, parents=()):
    """The nearest thing to `obj` that JSON can hold; what JSON cannot represent becomes a string that says what it was.

    Functions and classes become their names, other objects {name of the class: attributes}. `parents` are the objects
    through which `obj` was reached.
    """
    if obj is None or isinstance(obj, (bool, int, str)):
        return obj
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else str(float(obj))      # JSON has no word for nan and inf
    if any(obj is parent for parent in parents):
        return f'<the {type(obj).__name__} that this is part of>'
    if hasattr(obj, '__name__'):
        return obj.__name__
    if len(parents) == MAX_DEPTH:
        return _describe(obj)

    convert = functools.partial(convert_json, parents=(*parents, obj))
    if isinstance(obj, dict):
        return {key if isinstance(key, str) else str(convert(key)): convert(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple)):
        return [convert(item) for item in obj]
    if isinstance(obj, (set, frozenset)):
        return [convert(item) for item in sorted(obj, key=repr)]
    if hasattr(obj, 'tolist'):                              # arrays and tensors
        value = obj.tolist()
        return _describe(obj) if type(value) is type(obj) else convert(value)
    attributes = getattr(obj, '__dict__', None)
    return {type(obj).__name__: convert(attributes)} if attributes else _describe(obj)


def _describe(obj):
    """A short string for `obj`, the same in every run: without the memory address that a repr may end with."""
    try:
        return re.sub(r' at 0x[0-9a-fA-F]+', '', repr(obj))
    except Exception:
        return f'<{type(obj).__name__}>'


# %% Trees, for programs
def save_tree(path, tree):
    """Save nested dicts, lists and tuples of arrays, tensors, numbers, strings and None as an npz file without objects.

    Arrays among the leaves become its arrays '0', '1', ...; the structure around them is JSON, in its array 'tree'.
    """
    arrays = {}
    text = json.dumps(_encode(tree, arrays, 'tree'))
    with atomic_write(path) as file:
        np.savez(file, tree=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)


def load_tree(path):
    """What `save_tree` saved, with equal values and the same types; nothing in it can be code."""
    def decode(node):                                       # called for a JSON object once its parts are decoded
        [(kind, value)] = node.items()
        return decoders[kind](value)
    with damage_is_a_user_error(path):
        check_zip(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        tree, array = arrays.pop('tree'), arrays.pop        # each can be used once
        if tree.nbytes > MAX_JSON:
            raise ValueError(f'its tree has {tree.nbytes} bytes')
        decoders = dict(dict=dict, tuple=tuple, array=array, scalar=lambda name: array(name)[()],
                        tensor=lambda name: importlib.import_module('torch').from_numpy(array(name)))
        return json.loads(tree.tobytes(), object_hook=decode)


def _encode(node, arrays, where):
    """`node` as JSON, where {'tuple': [...]} is a tuple, {'array': '3'} is arrays['3'], and so on; fills `arrays`."""
    if isinstance(node, (np.generic, np.ndarray)) or hasattr(node, 'detach'):
        kind = 'tensor' if hasattr(node, 'detach') else 'array' if isinstance(node, np.ndarray) else 'scalar'
        array = node.detach().cpu().numpy() if kind == 'tensor' else np.asarray(node)
        if array.dtype.hasobject:
            raise TypeError(f'{where} is an array of Python objects, which only pickle could save')
        arrays[str(len(arrays))] = array
        return {kind: str(len(arrays) - 1)}
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    if isinstance(node, dict):
        if not all(isinstance(key, (str, int)) for key in node):
            raise TypeError(f'{where} has keys other than strings and integers')
        return {'dict': [[key, _encode(value, arrays, f'{where}[{key!r}]')] for key, value in node.items()]}
    if isinstance(node, (list, tuple)):
        items = [_encode(item, arrays, f'{where}[{i}]') for i, item in enumerate(node)]
        return {'tuple': items} if isinstance(node, tuple) else items
    raise TypeError(f'{where} is of type {type(node).__name__}, which cannot be saved')


# %% Replay buffers
class ReplayFiles:
    """The replay buffers of all processes on disk: each checkpoint adds a file with the rows since the last one.

    Row number i of a buffer, counted from the start of the run, is in data[i % len(data)]. So it is enough to name a
    file after the number of rows there were when it was written: that tells where its rows belong, and when all of them
    have been overwritten. Every process stores a row at every step, so all have equally many.
    """

    def __init__(self, folder):
        self.folder, self.saved = Path(folder), 0               # how many rows of a buffer have been saved

    def save(self, replay):
        """Save the rows that are new."""
        start, end = max(self.saved, replay.count - len(replay.data)), replay.count
        parts = gather((end, replay.data[np.arange(start, end) % len(replay.data)]))
        if proc_id() == 0 and start < end:
            assert all(count == end for count, _ in parts), 'the processes have stored different numbers of rows'
            os.makedirs(self.folder, exist_ok=True)
            save_tree(self.folder / f'{end}.npz', [rows for _, rows in parts])
        self.saved = end

    def load(self, replay, count):
        """Fill every process's buffer as it was when it had stored `count` rows."""
        self.saved = replay.count = count
        replay.ptr, replay.size = count % len(replay.data), min(count, len(replay.data))
        filled = max(0, count - len(replay.data))               # all rows up to this one are in place
        for end in bcast([end for end in self._ends() if filled < end <= count]):
            rows = scatter(self._read(end, replay.data) if proc_id() == 0 else None)
            if end - len(rows) <= filled:
                replay.data[np.arange(end - len(rows), end) % len(replay.data)] = rows
                filled = end
        if filled < count:
            raise UserError(f'{self.folder} lacks the rows from {filled} to {count} of the replay buffer: restore '
                            'them from a copy, or start over (--overwrite)')
        if proc_id() == 0:
            self.remove_others(len(replay.data))

    def _read(self, end, data):
        """The rows that a file has for each process, after checking that they fit the buffer."""
        path = self.folder / f'{end}.npz'
        parts = load_tree(path)
        with damage_is_a_user_error(path):
            shapes, types = {part.shape for part in parts}, {part.dtype for part in parts}
            if len(parts) != num_procs() or types != {data.dtype} or not any(
                    shapes == {(n, *data.shape[1:])} and n <= min(end, len(data)) for n, *_ in shapes):
                raise ValueError('these are not the rows of such a replay buffer')
            return parts

    def remove_others(self, capacity):
        """On process 0: remove files whose rows are overwritten, or that a kill left behind."""
        for end in self._ends():
            if not self.saved - capacity < end <= self.saved:
                os.remove(self.folder / f'{end}.npz')

    def _ends(self):
        return sorted(int(path.stem) for path in self.folder.glob('*.npz') if re.fullmatch('[1-9][0-9]*', path.stem))
