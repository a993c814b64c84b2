"""The shape of the repository: what imports what, and what a file may hold."""
import ast
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tools.sections import NEIGHBOURS, ROOT, algorithm_files

FILES = algorithm_files()
PACKAGES = dict(torch='torch', tf1='tensorflow')
TESTS = {path.stem for folder in ('tests', 'examples') for path in (ROOT / folder).glob('*.py')}
OWN = {'common', 'tools', 'benchmarks', 'walkthroughs', 'tests', *FILES, *TESTS}        # imported from the repository
PYTHON_FILES = sorted(path for folder in ('', 'common', 'tools', 'tests', 'benchmarks', 'examples')
                      for path in (ROOT / folder).glob('*.py'))


def relative(path):
    return str(path.relative_to(ROOT))


def read(path):
    return path.read_text(encoding='utf-8')


def run_python(code, folder):
    """What `python -c code` prints, on standard error too; folder is where it works, and where any file would go."""
    env = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE='1', TF_CPP_MIN_LOG_LEVEL='3',
               TMPDIR=str(folder))
    run = subprocess.run([sys.executable, '-c', code], cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def import_statements(nodes):
    """[(module, is it `from module import`), ...]"""
    statements = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            statements.append((node.module, True))
        elif isinstance(node, ast.Import):
            statements += [(alias.name, False) for alias in node.names]
    return statements


# Imports.

@pytest.mark.parametrize(('framework', 'other'), [('torch', 'tensorflow'), ('tf1', 'torch')])
def test_importing_does_nothing_and_leaves_the_other_framework_alone(framework, other, tmp_path):
    names = [name for name in FILES if name.endswith(framework)]
    if not names or importlib.util.find_spec(PACKAGES[framework]) is None:
        pytest.skip(f'no {framework} files, or no {PACKAGES[framework]}')
    code = '\n'.join(['import sys', *(f'import {name}' for name in names), f'assert {other!r} not in sys.modules'])
    assert run_python(code, tmp_path) == ''
    assert list(tmp_path.iterdir()) == []


def test_an_error_class_does_not_start_mpi(tmp_path):
    code = 'import sys, common.errors; assert not {"mpi4py", "common.mpi_tools"} & set(sys.modules)'
    assert run_python(code, tmp_path) == ''


def test_the_logger_imports_no_framework(tmp_path):
    code = 'import sys, common.logx; assert not {"torch", "tensorflow"} & set(sys.modules)'
    assert run_python(code, tmp_path) == ''
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('name', FILES)
def test_an_algorithm_file_needs_only_its_framework_and_common(name):
    allowed = {'numpy', 'gymnasium', 'common', PACKAGES[name.split('_')[1]], *sys.stdlib_module_names}
    statements = import_statements(ast.walk(ast.parse(read(ROOT / f'{name}.py'))))
    assert {module for module, _ in statements if module.split('.')[0] not in allowed} == set()
    assert sum(module.startswith('common.') for module, _ in statements) <= 5


@pytest.mark.parametrize('path', (ROOT / 'common').glob('*.py'), ids=relative)
def test_common_needs_no_tools(path):
    """A copied algorithm file brings common/ along, and nothing else."""
    modules = {module.split('.')[0] for module, _ in import_statements(ast.walk(ast.parse(read(path))))}
    assert not modules & (OWN - {'common'})


@pytest.mark.parametrize('path', PYTHON_FILES, ids=relative)
def test_imports_are_in_order(path):
    """The standard library, packages, this repository; in each, `import` before `from`, by name."""
    def place(statement):
        module, is_from = statement
        top = module.split('.')[0]
        return 0 if top in sys.stdlib_module_names else 2 if top in OWN else 1, is_from, module.lower()
    statements = import_statements(ast.parse(read(path)).body)
    assert statements == sorted(statements, key=place)


# Text.

@pytest.mark.parametrize('name', FILES)
def test_the_docstring_names_the_neighbours_and_how_to_run(name):
    algorithm, framework = name.split('_')
    others = {other for pair in NEIGHBOURS if algorithm in pair for other in pair} - {algorithm}
    twin = f'{algorithm}_{"tf1" if framework == "torch" else "torch"}.py'
    docstring = ast.get_docstring(ast.parse(read(ROOT / f'{name}.py')))
    for mentioned in [twin, f'python {name}.py --env', *(f'{other}_{framework}.py' for other in others)]:
        assert mentioned in docstring


def test_the_readme_tests_as_the_integration_does():
    section = re.split(r'^#+ Run the tests *$', read(ROOT / 'README.md'), flags=re.MULTILINE)[1]
    command = re.search(r'^```\w*\n(.*)\n```$', section, flags=re.MULTILINE).group(1)
    assert 'pytest' in command
    assert command in read(ROOT / '.ci' / 'run').splitlines()


def test_no_file_holds_paths_of_one_machine():
    listed = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, capture_output=True, text=True).stdout.split('\0')
    pattern = re.compile(rb'(?<![\w.~-])/(?:home|root|tmp|work)/')
    found = [name for name in listed if (ROOT / name).is_file() and pattern.search((ROOT / name).read_bytes())]
    assert found == []


def test_ruff_has_nothing_to_say():
    run = subprocess.run([sys.executable, '-m', 'ruff', 'check', '--no-cache', '--output-format', 'concise', '.'],
                         cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
