"""The walkthroughs as notebooks: filled in from the algorithm files, built for both frameworks, executed.

A walkthrough is a jupytext file, walkthroughs/ppo.py. Its prose is written by hand; cells with the tag "section" hold
the sections of ppo_torch.py, and --sync puts them there. Two notebooks for students are made from it, the second with
the sections of ppo_tf1.py, and with --solutions two for teachers. The tags that decide what goes where:

    section, mirror     code of the repository, byte for byte; what --sync writes, as it does the cell with "setup"
    torch, tf1          a cell for one framework only; code for tf1 is a raw cell, which the walkthrough itself skips
    solution            a cell for teachers only; within a cell, lines from ### BEGIN SOLUTION to ### END SOLUTION

    python -m tools.notebooks                           build walkthroughs/notebooks/; with names, ppo vpg, only these
    python -m tools.notebooks --sync                    bring the code in walkthroughs/*.py up to date
    python -m tools.notebooks --check                   what is out of date, with status 1 if anything is
    python -m tools.notebooks --solutions DIR           build the notebooks with solutions, into a folder of your own
    python -m tools.notebooks --execute --fast          run them all, every cell, from clean kernels, with few steps
    python -m tools.notebooks --execute --solutions DIR --html DIR ppo      run one in full, and keep the pages
"""
import argparse
import ast
import concurrent.futures
import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT, split

NAMES = 'intro', 'vpg', 'ppo', 'trpo', 'ddpg', 'td3', 'sac', 'mpi'          # in the order in which a class reads them
FOLDER = ROOT / 'walkthroughs'
KERNEL = dict(display_name='Python 3', language='python', name='python3')
PLACEHOLDER = 'pass  # not solved yet: your code here'
BEGIN, END = '### BEGIN SOLUTION', '### END SOLUTION'
HEADER = '''\
# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

'''
SETUP = '''\
# Finds the repository: in this folder, in one above it, in a clone beside this notebook, or where you say it is.
import os
import sys
from pathlib import Path

here = Path.cwd()
places = [Path(os.environ.get('WALKTHROUGH_REPOSITORY', here)).resolve(), here, *here.parents, *sorted(here.glob('*/'))]
repositories = [place for place in places if (place / 'walkthroughs' / 'classroom.py').exists()]
if not repositories:
    raise FileNotFoundError(
        f'The repository that this notebook belongs to is neither in {here} nor above it. Clone it into that folder, '
        'install what it needs (%pip install -r ITS_FOLDER/requirements.txt), then run this cell again. If it is '
        'somewhere else, say where: %env WALKTHROUGH_REPOSITORY=ITS_FOLDER')
sys.path.insert(0, str(repositories[0]))
from walkthroughs import classroom

classroom.begin(@ALGORITHM@, @FRAMEWORK@)'''


# ---- Reading

def names():
    """The walkthroughs that exist."""
    return [name for name in NAMES if (FOLDER / f'{name}.py').exists()]


def read(name):
    """The text of a walkthrough."""
    return (FOLDER / f'{name}.py').read_text(encoding='utf-8')


def algorithm_of(name):
    """The algorithm that a walkthrough is about, or None."""
    return name if name in ALGORITHMS else None


def file_of(name, framework):
    """The algorithm file that a walkthrough shows."""
    return ROOT / f'{name}_{framework}.py'


def definitions(source):
    """The text of definitions of a file, given as common/mpi_tools.py:mpi_avg,mpi_sum; what stands before one, such as
    a decorator, belongs to it, and comments directly above do too."""
    path, wanted = source.split(':')
    lines, parts = (ROOT / path).read_text(encoding='utf-8').split('\n'), {}
    for node in ast.parse('\n'.join(lines)).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, 'decorator_list', []))]) - 1
        while start and lines[start - 1].startswith('#') and not lines[start - 1].startswith('# ---'):
            start -= 1
        name = getattr(node, 'name', None) or ast.unparse(node).split()[0]
        parts[name] = '\n'.join(lines[start:node.end_lineno])
    return '\n\n\n'.join(parts[name.strip()] for name in wanted.split(','))


def mirrored(name, tags, title, source, framework):
    """The code that a cell has to hold, or None if that is its author's business."""
    if 'setup' in tags:
        return SETUP.replace('@ALGORITHM@', repr(algorithm_of(name))).replace('@FRAMEWORK@', repr(framework))
    if 'mirror' in tags:
        return definitions(source)
    if 'section' in tags:
        text = split(file_of(name, framework))[title]
        return (text if title == 'Docstring' else text.split('\n', 1)[1]).rstrip('\n')
    return None


# ---- The walkthrough

def parse_marker(line):
    """(tags, title, source) of a line such as `# %% Networks tags=["section"]`."""
    tags, source = re.search(r'tags=(\[.*?\])', line), re.search(r'source="(.*?)"', line)
    title = re.match(r'# %%(.*?)(?=\[(?:markdown|raw)\]|\w+=|$)', line)[1].strip()
    return json.loads(tags[1]) if tags else [], title, source[1] if source else None


def synced(name):
    """The text of a walkthrough with its header and every mirrored cell as they should be."""
    _, *cells = re.split(r'^(?=# %%)', read(name), flags=re.MULTILINE)
    for i, cell in enumerate(cells):
        marker, _, body = cell.partition('\n')
        code = mirrored(name, *parse_marker(marker), 'torch')
        cells[i] = marker.rstrip() + '\n' + (body if code is None else code).strip('\n')
    return HEADER + '\n\n'.join(cells) + '\n'


# ---- Notebooks

def without_solutions(source):
    """A cell's source with every solution replaced by a placeholder at its indentation."""
    return re.sub(rf'^([ \t]*){BEGIN}\n.*?{END}[ \t]*$', rf'\1{PLACEHOLDER}', source, flags=re.MULTILINE | re.DOTALL)


def build(name, framework, solutions=False, text=None):
    """A walkthrough (or the text of one) as a notebook, a dict as in its JSON; the same input gives the same bytes."""
    import jupytext
    other = {'torch': 'tf1', 'tf1': 'torch'}[framework]
    cells, ids = [], set()
    for cell in jupytext.reads(read(name) if text is None else text, fmt='py:percent').cells:
        tags, kind, source = cell.metadata.get('tags', []), cell.cell_type, cell.source
        if other in tags or 'solution' in tags and not solutions:
            continue
        kind = 'code' if kind == 'raw' and 'tf1' in tags else kind
        code = mirrored(name, tags, cell.metadata.get('title'), cell.metadata.get('source'), framework)
        if code is not None:
            source = code
        elif framework not in tags:
            source = re.sub(rf'\b({"|".join(ALGORITHMS)})_torch\b', rf'\1_{framework}', source)
        source = source if solutions else without_solutions(source)
        metadata = {key: cell.metadata[key] for key in ('tags', 'title', 'source') if key in cell.metadata}
        cells.append(dict(cell_type=kind, id=cell_id(kind + source, ids), metadata=metadata,
                          source=source.splitlines(keepends=True)))
        if kind == 'code':
            cells[-1].update(execution_count=None, outputs=[])
    return dict(cells=cells, metadata=dict(kernelspec=KERNEL, language_info=dict(name='python')), nbformat=4,
                nbformat_minor=5)


def cell_id(text, taken):
    """An id that depends on the cell alone, so that a new cell changes no other's; `taken` are those that exist."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    found = next(digest[i:i + 8] for i in range(len(digest)) if digest[i:i + 8] not in taken)
    taken.add(found)
    return found


def to_json(notebook):
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + '\n'


def path_of(name, framework, folder=FOLDER / 'notebooks'):
    return Path(folder) / f'{name}_{framework}.ipynb'


def problems(wanted):
    """What is out of date, in words."""
    wrong = [f'walkthroughs/{name}.py: python -m tools.notebooks --sync {name}' for name in wanted
             if read(name) != synced(name)]
    expected = {path_of(name, framework): (name, framework) for name in wanted for framework in FRAMEWORKS}
    for path, (name, framework) in expected.items():
        if not path.exists() or path.read_text(encoding='utf-8') != to_json(build(name, framework)):
            wrong.append(f'{path.relative_to(ROOT)}: python -m tools.notebooks {name}')
    if set(wanted) == set(names()):
        wrong += [f'{path.relative_to(ROOT)}: nothing builds it' for path in sorted((FOLDER / 'notebooks').glob('*'))
                  if path.suffix == '.ipynb' and path not in expected]
    return wrong


# ---- Execution

def execute(notebook, fast=False):
    """Run a notebook from a clean kernel, as a test; returns it with its outputs. An error of a cell is an error."""
    import nbformat
    from nbclient import NotebookClient
    notebook = nbformat.reads(to_json(notebook), as_version=4)
    env = dict(os.environ, WALKTHROUGH_TEST='1', WALKTHROUGH_FAST='1' if fast else '', PYTHONDONTWRITEBYTECODE='1')
    client = NotebookClient(notebook, timeout=600, kernel_name='python3', resources=dict(metadata=dict(path=FOLDER)),
                            extra_arguments=['--IPKernelApp.log_level=40'])
    return client.execute(env=env)


def printed(notebook):
    """All text that the cells of an executed notebook printed."""
    outputs = [output for cell in notebook.cells if cell.cell_type == 'code' for output in cell.outputs]
    return '\n'.join(output.get('text', '') or output.get('data', {}).get('text/plain', '') for output in outputs)


def exercises(notebook):
    """The names of the exercises of a notebook, as its checks call them."""
    code = ''.join(''.join(cell['source']) for cell in notebook['cells'] if cell['cell_type'] == 'code')
    return re.findall(r'''classroom\.(?:check|hunt)\(\s*'([^']+)\'''', code)


def wrong_answers(notebook, solutions):
    """The exercises of an executed notebook that say the wrong thing: solved ones must be judged correct (or, in fast
    mode, be too short to judge), the others not solved yet."""
    text = printed(notebook)
    states = ('correct', 'answered') if solutions else ('not solved yet',)
    return [name for name in exercises(notebook) if not any(f'{name}: {state}' in text for state in states)]


def run(name, framework, solutions, fast, html=None):
    """Execute one notebook; returns what to say about it, and whether all went well."""
    start, title = time.time(), f'{name}_{framework}' + (' with solutions' if solutions else '')
    try:
        notebook = execute(build(name, framework, solutions), fast)
    except Exception as error:
        lines = re.sub(r'\x1b\[[\d;]*m', '', str(error)).strip().split('\n')               # a traceback in colours
        return '\n'.join([f'{title}: FAILED after {time.time() - start:.0f} s', *lines[:4], '...', *lines[-12:]]), False
    if html:
        import nbconvert
        Path(html).mkdir(parents=True, exist_ok=True)
        page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
        (Path(html) / f'{name}_{framework}{"_solutions" if solutions else ""}.html').write_text(page, encoding='utf-8')
    wrong = wrong_answers(notebook, solutions)
    return f'{title}: {time.time() - start:.0f} s' + (f'; WRONG: {", ".join(wrong)}' if wrong else ''), not wrong


# ---- The command

def main(argv=None):
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog='python -m tools.notebooks', description=__doc__.split('\n')[0])
    parser.add_argument('name', nargs='*', help='walkthroughs, such as ppo; all of them if none is given')
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument('--sync', action='store_true', help='bring the code in walkthroughs/*.py up to date')
    modes.add_argument('--check', action='store_true', help='say what is out of date, with status 1 if anything is')
    modes.add_argument('--execute', action='store_true', help='run every cell from a clean kernel, with its claims')
    parser.add_argument('--solutions', metavar='DIR', help='with the solutions of the exercises, into this folder')
    parser.add_argument('--fast', action='store_true', help='execute with few training steps')
    parser.add_argument('--framework', choices=FRAMEWORKS, help='only this framework')
    parser.add_argument('--html', metavar='DIR', help='keep executed notebooks as pages in this folder')
    parser.add_argument('--jobs', type=int, default=1, help='notebooks executed at the same time')
    args = parser.parse_args(argv)
    unknown = [name for name in args.name if name not in names()]
    if unknown:
        parser.error(f'no walkthrough {", ".join(unknown)}; there are {", ".join(names())}')
    wanted, frameworks = args.name or names(), [args.framework] if args.framework else FRAMEWORKS

    if args.check:
        wrong = problems(wanted)
        print(*wrong, sep='\n', end='\n' if wrong else '')
        return 1 if wrong else 0
    if args.sync:
        for name in wanted:
            text = synced(name)
            if text != read(name):
                (FOLDER / f'{name}.py').write_text(text, encoding='utf-8', newline='\n')
                print(f'walkthroughs/{name}.py')
        return 0

    folder = Path(args.solutions or FOLDER / 'notebooks')
    if folder.resolve() == FOLDER / 'notebooks' and args.solutions:
        parser.error("solutions do not go into the students' folder")
    if not args.execute or args.solutions:
        folder.mkdir(parents=True, exist_ok=True)
        for name in wanted:
            for framework in frameworks:
                text = to_json(build(name, framework, bool(args.solutions)))
                path_of(name, framework, folder).write_text(text, encoding='utf-8', newline='\n')
    if not args.execute:
        return 0
    tasks = [(name, framework, bool(args.solutions), args.fast, args.html) for name in wanted
             for framework in frameworks]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = []
        for future in concurrent.futures.as_completed([pool.submit(run, *task) for task in tasks]):
            results.append(future.result())
            print(results[-1][0], flush=True)
    return 0 if all(well for _, well in results) else 1


if __name__ == '__main__':
    sys.exit(main())
