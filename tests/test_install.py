"""An install with one framework: what is required, and which tests are skipped."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = '''
import subprocess, sys, pytest
def test_it_is_imported(): import no_such_framework.compat
def test_something_else_is_imported(): import no_such_module
def test_nothing_is_imported(): pass
def test_a_failure(): assert 1 == 2
@pytest.mark.parametrize('name', ['ppo_tf1', 'ppo_torch'])
def test_elsewhere(name): assert subprocess.run([sys.executable, '-c', f'exit({name == "ppo_tf1"})']).returncode == 0
@pytest.mark.parametrize('name', ['ppo_tf1', 'ppo_torch'])
def test_all_fail(name): assert False
def test_by_its_code(): assert not 'ppo_tf1'
'''
OTHERS = {'something_else_is_imported', 'a_failure', 'all_fail[ppo_torch]'}      # what fails for another reason


def requirements(name, seen):
    """Every line of a requirements file and of those that it includes: name of the package -> the file and the line."""
    for line in (ROOT / name).read_text(encoding='utf-8').splitlines():
        line = line.partition('#')[0].strip()
        if line.startswith('-r '):
            requirements(line[3:], seen)
        elif line:
            seen.setdefault(re.match(r'[\w-]+', line)[0], set()).add((name, line))
    return seen


def test_each_framework_can_be_installed_alone_and_each_version_stands_once():
    both, torch, tf1 = (requirements(f'requirements{kind}.txt', {}) for kind in ('', '-torch', '-tf1'))
    assert set(both) - set(torch) == {'tensorflow'} and set(both) - set(tf1) == {'torch'}
    assert all(len(places) == 1 for places in both.values())
    assert both['torch'] == {('requirements-torch.txt', 'torch==2.13.0')}


@pytest.mark.parametrize(('package', 'failing', 'skipped'), [
    ('no_such_framework', OTHERS, 5),
    ('json', OTHERS | {'', 'it_is_imported', 'elsewhere[ppo_tf1]', 'all_fail[ppo_tf1]', 'by_its_code'}, 0)])
def test_what_needs_a_missing_framework_is_skipped_and_nothing_else(package, failing, skipped, tmp_path):
    """The hooks, in a suite of their own, with another package in TensorFlow's place, and one that is there in both."""
    conftest, line = (ROOT / 'tests' / 'conftest.py').read_text(encoding='utf-8'), "dict(torch='torch', tensorflow='"
    assert conftest.count(line) == 1
    (tmp_path / 'conftest.py').write_text(conftest.replace(line, f"dict(sys='torch', {package}='"))
    (tmp_path / 'test_mine.py').write_text(TESTS)
    (tmp_path / 'test_import.py').write_text('import no_such_framework\ndef test(): pass')
    done = subprocess.run([sys.executable, '-m', 'pytest', '-rfE', '-p', 'no:cacheprovider',
                           '--continue-on-collection-errors'], cwd=tmp_path, capture_output=True, text=True)
    lines = re.findall(r'^(?:FAILED|ERROR) test_\w+\.py(?:::test_)?(\S*)', done.stdout, flags=re.MULTILINE)
    assert set(lines) == failing
    assert sum(map(int, re.findall(r'(\d+) skipped', done.stdout.splitlines()[-1]))) == skipped
