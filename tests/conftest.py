"""Where only one framework is installed (requirements-torch.txt, requirements-tf1.txt), the tests that need the other
one are skipped: those that fail, if the failure says that the framework cannot be imported or, where that was said in
another process, if the test names it."""
import importlib.util
import inspect
import re

import pytest

NAMES = dict(torch='torch', tensorflow='tf1|tensorflow')
MISSING = [package for package in NAMES if importlib.util.find_spec(package) is None]


def named(item):
    """The frameworks that a test names in its name and its parameters, or else in its code."""
    for text in (item.name, inspect.getsource(item.function)):
        found = {package for package in NAMES if re.search(NAMES[package], text)}
        if found:
            return found
    return set()


def skipped_if_missing(report, path, names=frozenset()):
    for package in MISSING:
        said = f"No module named '{package}" in report.longreprtext + report.capstderr
        if report.failed and (said or package in names):
            report.outcome, report.longrepr = 'skipped', (str(path), 0, f'Skipped: {package} is not installed')
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return skipped_if_missing((yield), collector.path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    return skipped_if_missing((yield), item.path, named(item) if MISSING else ())
