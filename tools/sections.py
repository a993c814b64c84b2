"""The algorithm files by section, and what keeps them alike.

The twelve files repeat each other on purpose: each can be read, copied and changed alone. The rule: a piece that has
the same name in several files of a framework has the same text there, byte for byte (the algorithm's own name aside),
unless OWN below says which files differ; and a PyTorch piece that contains no word of PyTorch's is the same in the
TensorFlow file. A piece is a whole section (Buffer, Evaluation, Command line) or, in the others, a function, a method,
the head of a class, or the head or the body of the training function. A check finds what has drifted and can repair it:

    python -m tools.sections ppo_torch                          the sections of a file, and what they define
    python -m tools.sections ppo_torch Losses                   the text of a section; Losses.compute_kl: of one piece
    python -m tools.sections --check                            where copies have drifted from their owner
    python -m tools.sections --repair                           copy each shared piece from its owner to the other files
    python -m tools.sections --diff vpg_torch ppo_torch         the code lines that change from one file to another
    python -m tools.sections --budgets                          their number for every natural pair, for the tests

To change something shared, edit it in its owner (the first of those that share it: ppo or ddpg, mostly), repair, and
commit all files together. A piece that a file lacks, or names differently, is not drift: that shows in the budgets.
"""
import argparse
import ast
import difflib
import io
import itertools
import re
import sys
import tokenize
from pathlib import Path

from common.errors import one_line_errors

ROOT = Path(__file__).resolve().parent.parent
ALGORITHMS = 'vpg', 'ppo', 'trpo', 'ddpg', 'td3', 'sac'
FRAMEWORKS = 'torch', 'tf1'
FAMILIES = 'ppo vpg trpo', 'ddpg td3 sac'                       # on-policy, off-policy
SECTIONS = ('Docstring', 'Imports', 'Networks', 'Buffer', 'Losses', 'Update', 'Evaluation', 'Training', 'Command line')
BUFFERS = dict(vpg='VPGBuffer', ppo='PPOBuffer', trpo='GAEBuffer')

# Neighbours that are read side by side; every algorithm's two frameworks are another pair.
NEIGHBOURS = ('vpg', 'ppo'), ('ppo', 'trpo'), ('ddpg', 'td3'), ('td3', 'sac')

# Who shares a piece: all algorithms that have it, except that each group has its own text of these pieces. The first
# of a group that has the piece owns it. A key may end in the framework that it is about, if the other differs.
ALL = ' '.join(FAMILIES)
OWN = {
    'Networks.MLPActorCritic.head': 'ppo vpg | trpo | ddpg | td3 | sac',
    'Networks.MLPActorCritic.__init__': 'ppo vpg trpo | ddpg | td3 | sac',
    'Buffer': 'ppo vpg trpo | ddpg td3 sac',
    'Losses.compute_backup': 'ddpg td3 | sac',
    'Losses.compute_loss_q': 'ddpg | td3 sac',
    'Losses.compute_loss_pi': 'ppo | vpg | trpo | ddpg | td3 | sac',
    'Update.Agent.head': 'ppo vpg trpo | ddpg | td3 | sac',
    'Update.Agent.__init__ torch': 'ppo vpg | trpo | ddpg | td3 | sac',
    'Update.Agent.__init__ tf1': 'ppo | vpg | trpo | ddpg | td3 | sac',
    'Update.Agent.act': 'ppo vpg trpo | ddpg td3 | sac',
    'Update.Agent.compute_metrics': 'ppo | vpg | trpo',
    'Update.Agent.step_pi': 'ppo | vpg | trpo',
    'Update.Agent.update': 'ppo | vpg | trpo | ddpg | td3 | sac',
    'Update.Agent.build_update tf1': 'ddpg | td3 | sac',
    'Training._algorithm_.head': 'ppo | vpg | trpo | ddpg | td3 | sac',
    'Training._algorithm_.body': 'ppo vpg trpo | ddpg td3 sac',
}
PYTORCH_WORDS = re.compile(r'torch|\bnn\.|backward|state_dict|\.(mean|sum|gather)\(')
WHOLE = 'Buffer', 'Evaluation', 'Command line'


# Reading: a file is a dict of sections, or of pieces, in order.

def algorithm_of(name):
    """ppo, for ppo_torch."""
    return name.split('_')[0]


def algorithm_files(root=ROOT):
    """The names of the algorithm files that exist, torch first."""
    names = [f'{algorithm}_{framework}' for framework in FRAMEWORKS for algorithm in ALGORITHMS]
    return [name for name in names if (Path(root) / f'{name}.py').exists()]


def sections_of(algorithm):
    """The names of an algorithm's sections; test episodes are for off-policy algorithms."""
    return tuple(section for section in SECTIONS if section != 'Evaluation' or algorithm in FAMILIES[1].split())


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


def ends(section, tree):
    """(name of a piece, its last line) for what a section defines, in order."""
    for node in tree.body:
        name = getattr(node, 'name', None) or ast.unparse(node).split()[0]      # of an assignment: its variable
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            starts = [part.lineno for method in methods for part in [method, *method.decorator_list]]
            yield f'{name}.head', min(starts) - 1 if starts else node.end_lineno
            yield from ((f'{name}.{method.name}', method.end_lineno) for method in methods)
        elif isinstance(node, ast.FunctionDef) and section == 'Training':
            yield f'{name}.head', node.body[0].lineno - 1
            yield f'{name}.body', node.end_lineno
        else:
            yield name, node.end_lineno


def pieces(path, whole=WHOLE):
    """{piece: its neutral text}, which together are the file: what stands before a definition belongs to it."""
    found = {}
    for section, text in split(path).items():
        text = found[section] = neutral(text, algorithm_of(path.stem))
        if section not in ('Docstring', 'Imports', *whole):
            lines, start, piece = text.splitlines(keepends=True), 1, section
            found[section] = lines[0]
            for name, end in ends(section, ast.parse(text, f'section {section} of {path.name}')):
                found[piece := f'{section}.{name}'] = ''.join(lines[start:end])
                start = end
            found[piece] += ''.join(lines[start:])
    return found


# Keeping alike.

def read_files(root=ROOT):
    """{name: its pieces} of the algorithm files that exist."""
    return {name: pieces(Path(root) / f'{name}.py') for name in algorithm_files(root)}


def groups_of(piece, framework):
    """[[algorithm, ...], ...]: those in one list share the piece."""
    groups = OWN.get(f'{piece} {framework}', OWN.get(piece, ALL))
    return [group.split() for group in groups.split('|')]


def group_owner(files, piece, algorithm, framework):
    """The file of a framework that owns an algorithm's piece, or None if its group has no such piece there."""
    group = next((group for group in groups_of(piece, framework) if algorithm in group), [algorithm])
    return next((name for a in group if piece in files.get(name := f'{a}_{framework}', ())), None)


def owner_of(files, piece, name):
    """The file that owns a piece of the file `name`: a PyTorch file, if no word of the piece is PyTorch's."""
    algorithm, framework = name.split('_')
    owner = group_owner(files, piece, algorithm, 'torch')
    if owner is None or PYTORCH_WORDS.search(files[owner][piece]):
        owner = group_owner(files, piece, algorithm, framework)
    return owner


def compare(files):
    """Yield (piece, owner, copy, owner's text, copy's text) of each copy that differs, blank lines around it aside."""
    for copy, texts in files.items():
        for piece in texts:
            if '.' in piece or piece in WHOLE:                                  # no mere marker of a section
                owner = owner_of(files, piece, copy)
                text, found = files[owner][piece].strip('\n'), texts[piece].strip('\n')
                if text != found:
                    yield piece, owner, copy, text, found


def check(root=ROOT):
    """All drift, as compare gives it."""
    return list(compare(read_files(root)))


def repair(root=ROOT):
    """Copy each drifted piece from its owner. Returns the drift that was repaired."""
    files, repaired = read_files(root), []
    for piece, owner, copy, text, found in compare(files):
        files[copy][piece] = files[copy][piece].replace(found, text)
        repaired.append((piece, owner, copy, text, found))
    for name in {copy for _, _, copy, _, _ in repaired}:
        text = named(''.join(files[name].values()), algorithm_of(name))
        (Path(root) / f'{name}.py').write_bytes(text.encode())
    return repaired


def stale(root=ROOT):
    """[(key, what is wrong), ...] for entries of OWN that are not true."""
    files, wrong = read_files(root), []
    for key in OWN:
        piece, _, only = key.partition(' ')
        for framework in [only] if only else FRAMEWORKS:
            groups = groups_of(piece, framework)
            texts = {algorithm_of(name): texts[piece].strip('\n') for name, texts in files.items()
                     if name.endswith(framework) and piece in texts}
            if set(texts) != set(sum(groups, [])):
                wrong.append((key, f'in {framework}, {", ".join(texts) or "no file"} has it'))
            owners = [group[0] for group in groups if group[0] in texts]
            wrong += [(key, f'in {framework}, {a} and {b} have the same text')
                      for a, b in itertools.combinations(owners, 2) if texts[a] == texts[b]]
    return wrong


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
    """Print sections or definitions of a file or, if none is asked for, its outline."""
    path = path_of(name)
    sections, algorithm = split(path), algorithm_of(path.stem)
    if not wanted:
        row = 1
        for section, text in sections.items():
            end = row + len(text.splitlines()) - 1
            names = re.findall(r'^(?:class|def) (\w+)', text, re.MULTILINE)
            print(f'{section:<13}{row:4}-{end:<5}{", ".join(names)}'.rstrip())
            row = end + 1
    for piece in wanted:
        parts = pieces(path, whole=()).items()
        text = ''.join(text for part, text in parts if f'{named(part, algorithm)}.'.startswith(f'{piece}.'))
        if not text:
            sys.exit(f'{path.name} has no {piece}; its sections are {", ".join(sections)}')
        print(named(text, algorithm).strip('\n'))


def show_drift(drift):
    """Print where copies have drifted, with the lines that differ."""
    for piece, owner, copy, text, found in drift:
        print(f'{named(piece, algorithm_of(copy))} in {copy}.py differs from {owner}.py:')
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
        drift, wrong = check(), stale()
        show_drift(drift)
        for key, problem in wrong:
            print(f'OWN in tools/sections.py is wrong about {key}: {problem}')
        return 1 if drift or wrong else 0
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
    with one_line_errors('sections'):
        try:
            status = main()
            sys.stdout.flush()                                  # so that a closed pipe, of head say, is noticed here
        except SyntaxError as error:                            # says in which section of which file
            sys.exit(f'{error}')
    sys.exit(status)
