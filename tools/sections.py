"""The algorithm files by section, and what keeps them alike.

The twelve files repeat each other on purpose: each can be read, copied and changed alone. What they repeat is listed
in SHARED below, is the same byte for byte (an algorithm's own name aside), and stays so by a check that can repair it:

    python -m tools.sections ppo_torch                          the sections of a file, and what they define
    python -m tools.sections ppo_torch Losses                   the text of a section; Losses.compute_kl: of one piece
    python -m tools.sections --check                            where copies have drifted from their owner
    python -m tools.sections --repair                           copy each shared piece from its owner to the other files
    python -m tools.sections --diff vpg_torch ppo_torch         the code lines that change from one file to another
    python -m tools.sections --budgets                          their number for every natural pair, for the tests

To change something shared, edit it in its owner, repair, and commit all files together.
"""
import argparse
import ast
import difflib
import functools
import io
import re
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = 'vpg', 'ppo', 'trpo', 'ddpg', 'td3', 'sac'
FRAMEWORKS = 'torch', 'tf1'
SECTIONS = ('Docstring', 'Imports', 'Networks', 'Buffer', 'Losses', 'Update', 'Evaluation', 'Training', 'Command line')
BUFFERS = dict(vpg='VPGBuffer', ppo='PPOBuffer', trpo='GAEBuffer')

# What is shared. A piece is a section, or after dots a definition in it and then a method, or the body of a function.
# The first algorithm owns it. TWINS: equal in both frameworks, owned by its torch file. EACH: equal within each
# framework, owned by its file there. TORCH, TF1: equal within that framework alone. Repaired in this order: what both
# frameworks share before what holds some of it.
TWINS, EACH, TORCH, TF1 = 'twins', 'each', *FRAMEWORKS
SHARED = (
    ('Command line', 'ppo vpg trpo ddpg td3 sac', TWINS),
    ('Networks.mlp', 'ppo vpg trpo ddpg td3 sac', EACH),
    ('Networks.placeholder', 'ppo vpg trpo ddpg td3 sac', TF1),
    ('Networks.placeholders', 'ppo vpg trpo ddpg td3 sac', TF1),

    # on-policy
    ('Networks.numpy_policy', 'ppo vpg trpo', TWINS),
    ('Networks.draw_noise', 'ppo vpg trpo', TWINS),
    ('Buffer', 'ppo vpg trpo', TWINS),
    ('Update.conjugate_gradient', 'trpo', TWINS),
    ('Evaluation', 'ppo vpg trpo', TWINS),
    ('Training._algorithm_.body', 'ppo vpg trpo', TWINS),
    ('Networks', 'ppo vpg', EACH),
    ('Networks.Categorical.__init__', 'ppo trpo', TORCH),
    ('Networks.Categorical.log_prob', 'ppo trpo', EACH),
    ('Networks.Categorical.entropy', 'ppo trpo', EACH),
    ('Networks.Gaussian.__init__', 'ppo trpo', TORCH),
    ('Networks.Gaussian.log_prob', 'ppo trpo', EACH),
    ('Networks.Gaussian.entropy', 'ppo trpo', EACH),
    ('Networks.Actor', 'ppo trpo', TORCH),
    ('Networks.MLPCategoricalActor', 'ppo trpo', TORCH),
    ('Networks.MLPGaussianActor.__init__', 'ppo trpo', TORCH),
    ('Networks.MLPCritic', 'ppo trpo', TORCH),
    ('Networks.MLPActorCritic', 'ppo trpo', TORCH),
    ('Networks.placeholder_from_space', 'ppo trpo', TF1),
    ('Networks.placeholders_from_spaces', 'ppo trpo', TF1),
    ('Networks.mlp_categorical_policy', 'ppo trpo', TF1),
    ('Networks.mlp_gaussian_policy', 'ppo trpo', TF1),
    ('Networks.mlp_actor_critic', 'ppo trpo', TF1),
    ('Losses.compute_loss_v', 'ppo vpg trpo', EACH),
    ('Losses.compute_kl', 'ppo vpg', EACH),
    ('Update.Agent.__init__', 'ppo vpg', TORCH),
    ('Update.Agent.act', 'ppo vpg trpo', EACH),
    ('Update.Agent.evaluate', 'ppo vpg trpo', EACH),
    ('Update.Agent.refresh_policy', 'ppo vpg trpo', TF1),
    ('Update.Agent.run', 'ppo vpg trpo', TF1),

    # off-policy
    ('Buffer', 'ddpg td3 sac', TWINS),
    ('Evaluation', 'ddpg td3 sac', TWINS),
    ('Training._algorithm_.body', 'ddpg td3 sac', TWINS),
    ('Networks.numpy_policy', 'ddpg td3', TWINS),
    ('Networks.numpy_policy', 'sac', TWINS),
    ('Networks.MLPActor', 'ddpg td3', TORCH),
    ('Networks.MLPQFunction', 'ddpg td3 sac', TORCH),
    ('Networks.MLPActorCritic.policy', 'ddpg td3 sac', TORCH),
    ('Networks.MLPActorCritic.act', 'ddpg td3', TORCH),
    ('Networks.mlp_policy', 'ddpg td3', TF1),
    ('Networks.mlp_q_function', 'ddpg td3 sac', TF1),
    ('Losses.compute_backup', 'ddpg td3', TWINS),
    ('Losses.compute_backup', 'sac', TWINS),
    ('Losses.compute_loss_q', 'td3 sac', EACH),
    ('Update.Agent.act', 'ddpg td3', EACH),
    ('Update.Agent.update', 'ddpg sac', EACH),
    ('Update.Agent.refresh_policy', 'ddpg td3 sac', TF1),
    ('Update.Agent.run', 'ddpg td3 sac', TF1),
)

# Neighbours that are read side by side; every algorithm's two frameworks are another pair.
NEIGHBOURS = ('vpg', 'ppo'), ('ppo', 'trpo'), ('ddpg', 'td3'), ('td3', 'sac')


# Reading: a file is a dict of sections, a section is text.

def algorithm_of(name):
    """ppo, for ppo_torch."""
    return name.split('_')[0]


def algorithm_files(root=ROOT):
    """The names of the algorithm files that exist, torch first."""
    names = [f'{algorithm}_{framework}' for framework in FRAMEWORKS for algorithm in ALGORITHMS]
    return [name for name in names if (Path(root) / f'{name}.py').exists()]


def split(path):
    """{name of section: its text from marker to marker}, in order; Docstring is what stands before the first marker."""
    head, *parts = re.split(r'^(?=# %% )', Path(path).read_bytes().decode(), flags=re.MULTILINE)
    names = ['Docstring', *(part.splitlines()[0].removeprefix('# %% ') for part in parts)]
    if len(set(names)) < len(names):
        raise ValueError(f'{path} has two sections of the same name: {", ".join(names)}')
    return dict(zip(names, [head, *parts]))


def names_of(algorithm):
    """[(the algorithm's own name, what stands for it in every algorithm), ...]"""
    buffer = [(BUFFERS[algorithm], '_AlgorithmBuffer_')] if algorithm in BUFFERS else []
    return [*buffer, (algorithm, '_algorithm_'), (algorithm.upper(), '_ALGORITHM_')]


def neutral(text, algorithm):
    """The text with the algorithm's own name neutralised, as a word and in ppo_torch or PPOBuffer."""
    for own, general in names_of(algorithm):
        text = re.sub(rf'(?<![A-Za-z0-9]){own}(?![A-Za-z0-9])', general, text)
    return text


def named(text, algorithm):
    """The reverse of neutral: the text with the algorithm's own name put in."""
    for own, general in names_of(algorithm):
        text = text.replace(general, own)
    return text


@functools.lru_cache(maxsize=512)
def definitions(text):
    """The syntax trees of a section's statements; none of a section that is broken."""
    try:
        return ast.parse(text).body
    except SyntaxError:
        return []


def locate(text, names):
    """The lines [start, end) in a section of the definition that the names lead to, or None if there is none."""
    start, end, nodes = 0, len(text.splitlines()), definitions(text) if names else []
    for name in names:
        if name == 'body':
            return nodes[0].lineno - 1, end
        node = next((node for node in nodes if getattr(node, 'name', None) == name), None)
        if node is None:
            return None
        start, end, nodes = min(n.lineno for n in [node, *node.decorator_list]) - 1, node.end_lineno, node.body
    return start, end


def get_piece(sections, piece, algorithm):
    """The neutral text of a piece, or None if the file has none."""
    section, *names = piece.split('.')
    text = neutral(sections.get(section, ''), algorithm)
    lines = locate(text, names) if text else None
    return ''.join(text.splitlines(keepends=True)[slice(*lines)]) if lines else None


def put_piece(sections, piece, algorithm, new):
    """Replace a piece, which must be there, by a neutral text."""
    section, *names = piece.split('.')
    text = neutral(sections[section], algorithm)
    start, end = locate(text, names)
    lines = text.splitlines(keepends=True)
    sections[section] = named(''.join([*lines[:start], new, *lines[end:]]), algorithm)


# Keeping alike.

def shared(root=ROOT):
    """(piece, owner, copies) for each row of the table, by the names of those files that exist."""
    existing = algorithm_files(root)
    extents = {TWINS: [(TORCH, TF1)], EACH: [(TORCH,), (TF1,)], TORCH: [(TORCH,)], TF1: [(TF1,)]}
    for piece, algorithms, extent in SHARED:
        for frameworks in extents[extent]:
            group = [f'{algorithm}_{framework}' for framework in frameworks for algorithm in algorithms.split()]
            group = [name for name in group if name in existing]
            if len(group) > 1:
                yield piece, group[0], group[1:]


def read_files(root=ROOT):
    """{name: {section: text}} of the algorithm files that exist."""
    return {name: split(Path(root) / f'{name}.py') for name in algorithm_files(root)}


def drifted(files, piece, owner, copies):
    """[(piece, owner, copy, owner's text, copy's text), ...] of the copies that differ. A text is None where there is
    no such piece; if no file of a framework has it, it is none of that framework's, and that is no drift."""
    text = get_piece(files[owner], piece, algorithm_of(owner))
    found = [(copy, get_piece(files[copy], piece, algorithm_of(copy))) for copy in copies]
    return [(piece, owner, copy, text, copy_text) for copy, copy_text in found if copy_text != text]


def check(root=ROOT):
    """All drift, as drifted gives it."""
    files = read_files(root)
    return [drift for row in shared(root) for drift in drifted(files, *row)]


def repair(root=ROOT):
    """Copy each drifted piece from its owner; what is missing stays missing. Returns the drift that was repaired."""
    files, repaired = read_files(root), []
    for row in shared(root):
        for piece, owner, copy, text, found in drifted(files, *row):
            if text is not None and found is not None:
                put_piece(files[copy], piece, algorithm_of(copy), text)
                repaired.append((piece, owner, copy, text, found))
    for name in {copy for _, _, copy, _, _ in repaired}:
        (Path(root) / f'{name}.py').write_bytes(''.join(files[name].values()).encode())
    return repaired


def pieces_of(sections, algorithm):
    """Every piece that could be shared, larger ones before what is in them."""
    for section in SECTIONS[2:]:
        yield section
        for node in definitions(neutral(sections[section], algorithm)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield f'{section}.{node.name}'
            if isinstance(node, ast.ClassDef):
                yield from (f'{section}.{node.name}.{n.name}' for n in node.body if isinstance(n, ast.FunctionDef))
            elif isinstance(node, ast.FunctionDef) and section == 'Training':
                yield f'{section}.{node.name}.body'


def unlisted(root=ROOT):
    """[(piece, names of files), ...] that are equal although the table does not ask for it: rows to be added."""
    files = read_files(root)
    equal = defaultdict(list)                                   # (piece, text) -> the files that have it
    for name, sections in files.items():
        for piece in pieces_of(sections, algorithm_of(name)):
            equal[piece, get_piece(sections, piece, algorithm_of(name))].append(name)
    known = [(piece, {owner, *copies}) for piece, owner, copies in shared(root)]
    rows = []
    for (piece, _), names in equal.items():
        joined = {names[0]}                                     # the files that the rows so far tie to the first
        for _ in names:
            joined.update(*(group for p, group in known if f'{piece}.'.startswith(f'{p}.') and group & joined))
        if not joined.issuperset(names):
            rows.append((piece, names))
            known.append((piece, set(names)))
    return rows


# Counting what changes.

def code_lines(path):
    """A file's lines of code: names neutral, without comments, docstrings, blank lines and indentation."""
    text = neutral(Path(path).read_text(encoding='utf-8'), algorithm_of(Path(path).stem))
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines[first.lineno - 1:first.end_lineno] = [''] * (first.end_lineno - first.lineno + 1)
    return [line.strip() for line in lines if line.strip()]


def code_diff(a, b):
    """The code lines that change from file a to file b: '- line' for those only in a, '+ line' for those only in b."""
    return [line for line in difflib.ndiff(code_lines(a), code_lines(b)) if line[0] in '+-']


def changed_lines(a, b):
    """The number of code lines that change from file a to file b, those that go and those that come."""
    return len(code_diff(a, b))


def pairs(root=ROOT):
    """The natural pairs among the files that exist: neighbours in each framework, and twins."""
    names = [(f'{a}_{framework}', f'{b}_{framework}') for framework in FRAMEWORKS for a, b in NEIGHBOURS]
    names += [tuple(f'{algorithm}_{framework}' for framework in FRAMEWORKS) for algorithm in ALGORITHMS]
    existing = algorithm_files(root)
    return [pair for pair in names if set(pair) <= set(existing)]


# The command.

def path_of(name):
    """The path of an algorithm file, given as ppo_torch or ppo_torch.py."""
    name = name.removesuffix('.py')
    if name not in algorithm_files():
        sys.exit(f'no algorithm file {name}; there are {", ".join(algorithm_files())}')
    return ROOT / f'{name}.py'


def show(name, wanted):
    """Print sections or pieces of a file or, if none is asked for, its outline."""
    path = path_of(name)
    sections, algorithm = split(path), algorithm_of(path.stem)
    if not wanted:
        row = 1
        for section, text in sections.items():
            end = row + len(text.splitlines()) - 1
            names = [node.name for node in definitions(text) if hasattr(node, 'name')]
            print(f'{section:<13}{row:4}-{end:<5}{", ".join(names)}'.rstrip())
            row = end + 1
    for piece in wanted:
        text = get_piece(sections, neutral(piece, algorithm), algorithm)
        if text is None:
            sys.exit(f'{path.name} has no {piece}; its sections are {", ".join(sections)}')
        print(named(text, algorithm).rstrip())


def show_drift(drift):
    """Print where copies have drifted, with the lines that differ."""
    for piece, owner, copy, text, found in drift:
        piece = named(piece, algorithm_of(copy))
        if text is None or found is None:
            print(f'{piece} is missing in {owner if text is None else copy}.py')
            continue
        print(f'{piece} in {copy}.py differs from {owner}.py:')
        differences = difflib.unified_diff(text.splitlines(), found.splitlines(), lineterm='', n=0)
        print(*(f'    {line}' for line in list(differences)[2:]), sep='\n')


def main(argv=None):
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog='python -m tools.sections', description=__doc__.split('\n')[0])
    parser.add_argument('name', nargs='?', help='an algorithm file, such as ppo_torch')
    parser.add_argument('section', nargs='*', help='sections to print, such as Losses, or Losses.compute_loss_v')
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument('--check', action='store_true', help='list what has drifted, with status 1 if anything has')
    modes.add_argument('--repair', action='store_true', help='copy each shared piece from its owner')
    modes.add_argument('--diff', nargs=2, metavar=('A', 'B'), help='the code lines that change from file A to file B')
    modes.add_argument('--budgets', action='store_true', help='the number of changed code lines of every natural pair')
    args = parser.parse_args(argv)
    if args.repair:
        for piece, owner, copy, *_ in repair():
            print(f'{named(piece, algorithm_of(copy))}: {owner}.py -> {copy}.py')
    if args.check or args.repair:
        drift = check()
        show_drift(drift)
        for piece, names in unlisted() if not drift else []:
            print(f'{piece} is equal in {", ".join(names)}: SHARED does not say so')
        return 1 if drift else 0
    if args.diff:
        lines = code_diff(*map(path_of, args.diff))
        print(*lines, f'{len(lines)} changed code lines', sep='\n')
    elif args.budgets:
        print('BUDGETS = {')
        for a, b in pairs():
            print(f'    ({a!r}, {b!r}): {changed_lines(path_of(a), path_of(b))},')
        print('}')
    elif args.name:
        show(args.name, args.section)
    else:
        parser.print_help()
    return 0


if __name__ == '__main__':
    sys.exit(main())
