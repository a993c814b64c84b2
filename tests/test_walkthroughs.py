"""The walkthroughs: they show the files as they are, say nothing that they do not check, and run from top to bottom.

The rules are functions that list what is wrong with a notebook. They are held for every walkthrough in both frameworks,
and each is shown to catch what it is there to catch, in a walkthrough spoiled on purpose.
"""
import ast
import concurrent.futures
import functools
import importlib
import importlib.util
import re
import symtable
import types
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('jupytext')
from tools import notebooks
from tools.notebooks import BEGIN, END, NAMES, PLACEHOLDER
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT, sections_of, split
from walkthroughs import classroom

WALKTHROUGHS = notebooks.names()
LESSONS = [name for name in WALKTHROUGHS if name in ALGORITHMS]
PREVIOUS = dict(ppo='vpg', trpo='ppo', td3='ddpg', sac='td3')
BUGS = [(name, letter) for name in ALGORITHMS for letter in classroom.bugs_of(name)]
each_notebook = pytest.mark.parametrize(('name', 'framework'), [(n, f) for n in WALKTHROUGHS for f in FRAMEWORKS])
each_lesson = pytest.mark.parametrize(('name', 'framework'), [(n, f) for n in LESSONS for f in FRAMEWORKS])


def needs(framework):
    if importlib.util.find_spec(classroom.PACKAGES[framework]) is None:
        pytest.skip(f'no {classroom.PACKAGES[framework]}')


@functools.cache
def page(name, framework, solutions=True, text=None):
    """The cells of a notebook: kind, tags, title and source of each."""
    return [types.SimpleNamespace(kind=cell['cell_type'], tags=cell['metadata'].get('tags', []),
                                  title=cell['metadata'].get('title'), source=''.join(cell['source']))
            for cell in notebooks.build(name, framework, solutions, text)['cells']]


def mirrors(cell):
    return 'section' in cell.tags or 'mirror' in cell.tags


def code_of(text, section):
    """The text of a section without its marker and the blank lines behind it."""
    return (text if section == 'Docstring' else text.split('\n', 1)[1]).rstrip('\n')


# ---- The rules. Each gives a list of what is wrong, in words.

def shows_the_file(name, framework, cells):
    """Every section once, in order, byte for byte; together they are the file."""
    path = ROOT / f'{name}_{framework}.py'
    shown = [cell for cell in cells if 'section' in cell.tags]
    titles, file = [cell.title for cell in shown], split(path)
    wrong = [] if titles == list(sections_of(name)) == list(file) else [f'the sections shown are {titles}']
    wrong += [f'{cell.title} is not as in {path.name}' for cell in shown
              if cell.title in file and cell.source != code_of(file[cell.title], cell.title)]
    tree, whole = [ast.dump(ast.parse(text)) for text in
                   ('\n\n\n'.join(cell.source for cell in shown), path.read_text(encoding='utf-8'))]
    return wrong + [f'the sections together are not {path.name}'] * (tree != whole)


def shows_after_prose(name, framework, cells):
    """Sections come after at least 60 words of prose, and notes on their lines follow at once."""
    wrong, words = [], 0
    for cell, following in zip(cells, [*cells[1:], None]):
        if cell.kind == 'markdown' and 'notes' not in cell.tags:
            words += len(re.findall(r'[^\W\d_]{2,}', re.sub(r'\$.*?\$', '', cell.source, flags=re.DOTALL)))
        if 'section' in cell.tags:
            wrong += [f'only {words} words before {cell.title}'] * (words < 60)
            wrong += [f'no notes behind {cell.title}'] * (not following or 'notes' not in following.tags)
            words = 0
    return wrong


def notes_quote_one_line(name, framework, cells):
    """Notes are a list; each begins with a quotation, which stands in exactly one line of the code above."""
    wrong, code = [], None
    for before, cell in zip([None, *cells], cells):
        code = cell if cell.kind == 'code' else code
        if 'notes' not in cell.tags:
            continue
        if cell.kind != 'markdown' or before is not code and 'notes' not in before.tags:
            wrong.append(f'notes that do not stand directly behind code: {cell.source[:60]!r}')
        for item in re.split(r'\n(?=\S)', cell.source):
            quotation = re.match(r'- (`+)(.+?)\1:\s\S', item)
            if not quotation:
                wrong.append(f'a note without a quotation: {item[:60]!r}')
                continue
            lines = [line for line in code.source.split('\n') if quotation[2].strip() in line]
            wrong += [f'{quotation[2]!r} is in {len(lines)} lines of {code.title}'] * (len(lines) != 1)
    return wrong


def bound_names(code):
    """The names that code binds where it stands at the top level: by =, for, with, import, def, class."""
    symbols = symtable.symtable(code, 'cell', 'exec').get_symbols()
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}


def leaves_names_alone(name, framework, cells):
    """Experiments bind no name of the file, in either framework, and none of what is mirrored."""
    taken = set().union(*(bound_names(cell.source) for cell in cells if mirrors(cell)))
    for twin in FRAMEWORKS if name in ALGORITHMS else ():
        taken |= bound_names((ROOT / f'{name}_{twin}.py').read_text(encoding='utf-8'))
    return [f'{", ".join(sorted(again))} bound by {cell.source[:60]!r}' for cell in cells
            if cell.kind == 'code' and not mirrors(cell) and (again := bound_names(cell.source) & taken)]


def equations(source):
    """([(display?, LaTeX), ...], what is left of the text) of a markdown cell; code does not count."""
    found = []

    def take(match):
        found.append((match[0].startswith('$$'), match[1] or match[2]))
        return ' '
    source = re.sub(r'```.*?```|(`+).+?\1', ' ', source, flags=re.DOTALL)
    return found, re.sub(r'\$\$(.+?)\$\$|\$([^$]+?)\$', take, source, flags=re.DOTALL)


def equations_are_checked(name, framework, cells):
    """Display equations are numbered, and a later cell checks each with numbers."""
    wrong, numbers, checked = [], [], {}
    for cell in cells:
        if cell.kind == 'markdown':
            found, rest = equations(cell.source)
            wrong += [f'a dollar alone in {cell.source[:60]!r}'] * ('$' in rest)
            for _, latex in (equation for equation in found if equation[0]):
                number = re.search(r'\\tag\{(\d+)\}\s*$', latex)
                wrong += [f'an equation without a number: {latex.strip()[:60]}'] * (not number)
                numbers += [int(number[1])] if number else []
            wrong += ['$$ does not stand alone on its line'] * bool(re.search(r'\$\$[^\n]|[^\n]\$\$', cell.source))
        elif 'check' in cell.tags:
            title = re.match(r'(# Equations? .*?)(?: in numbers|:|\n)', cell.source)
            wrong += [f'a check of no equation: {cell.source[:60]!r}'] * (not title)
            for first, last in re.findall(r'\((\d+)\)(?: to \((\d+)\))?', title[1] if title else ''):
                for n in range(int(first), int(last or first) + 1):
                    wrong += [f'({n}) is checked before it is there'] * (n not in numbers)
                    checked[n] = True
    wrong += [f'equations are numbered {numbers}'] * (numbers != list(range(1, len(numbers) + 1)))
    return wrong + [f'nothing checks equation ({n})' for n in numbers if n not in checked]


def begins_as_a_lesson(name, framework, cells):
    """Title, goals, prerequisites and time; then the cell that finds the repository."""
    missing = [word for word in ('Goals', 'Prerequisites', 'Time') if word not in cells[0].source]
    wrong = [f'the first cell has no {", ".join(missing)}'] * bool(missing)
    wrong += ['the first cell has no title'] * (not re.match(r'# \S', cells[0].source))
    code = [cell for cell in cells if cell.kind == 'code']
    return wrong + ['the first code cell is not the setup'] * (not code or code[0].tags != ['setup'])


def has_what_a_lesson_has(name, framework, cells):
    """Exercises of all kinds, two experiments with plots and claims, a diagram, and what changed."""
    code = '\n'.join(cell.source for cell in cells if cell.kind == 'code' and not mirrors(cell))
    prose = '\n'.join(cell.source for cell in cells if cell.kind == 'markdown')
    names = re.findall(r"classroom\.(?:check|hunt)\(\s*'([^']+)'", code)
    numbers = list(dict.fromkeys(int(number) for number in re.findall(r'Exercise (\d+)', ' '.join(names))))
    wrong = [f'the exercises are {names}'] * (len(numbers) < 3 or numbers != list(range(1, len(numbers) + 1))
                                              or len(set(names)) < len(names))
    wrong += [f'there is a check without a literal name: {call[:50]!r}' for call in
              re.findall(r"classroom\.(?:check|hunt)\((?!\s*'Exercise \d+)[^\n]*", code)]
    kinds = ('implement', 'ablate', 'hunt') if name in ALGORITHMS else ('implement',)
    wrong += [f'no exercise to {kind}' for kind in kinds if not re.search(rf'Exercise \d+\w? \({kind}\)', prose)]
    for what, least in (('plt.show()', 2), ('classroom.claim(', 2), ('classroom.diagram(', 1)):
        wrong += [f'{what} stands there {code.count(what)} times'] * (code.count(what) < least)
    if name in PREVIOUS and not re.search(rf"classroom\.changes\('{PREVIOUS[name]}', '{name}'", code):
        wrong.append(f'what changed from {PREVIOUS[name]} is not shown')
    bugs = classroom.bugs_of(name)
    wrong += [f'the page does not hunt bug {letter}' for letter in bugs if f"classroom.bug('{letter}')" not in code]
    return wrong


def belongs_to_its_framework(name, framework, cells):
    """Text for both frameworks names neither's functions nor files."""
    other = {'torch': 'tf1', 'tf1': 'torch'}[framework]
    foreign = {'torch': r'\btf\.\w', 'tf1': r'\btorch\.\w|\bnn\.\w'}[framework]
    text = [cell for cell in cells if cell.kind == 'markdown']
    wrong = [f'{foreign!r} in {cell.source[:60]!r}' for cell in text if re.search(foreign, cell.source)
             and framework not in cell.tags and name in ALGORITHMS]
    code = [cell for cell in cells if cell.kind == 'code' and framework not in cell.tags and not mirrors(cell)]
    wrong += [f'another framework in {cell.source[:60]!r}' for cell in code
              if re.search(rf'\w_{other}\b|^(import|from) ({classroom.PACKAGES[other]})\b', cell.source, re.MULTILINE)]
    return wrong


RULES = (shows_after_prose, notes_quote_one_line, leaves_names_alone, equations_are_checked, begins_as_a_lesson,
         has_what_a_lesson_has, belongs_to_its_framework)


def test_there_are_walkthroughs():
    assert WALKTHROUGHS, 'no walkthrough was found'


@each_lesson
def test_sections_are_the_file(name, framework):
    for solutions in (True, False):
        assert shows_the_file(name, framework, page(name, framework, solutions)) == []


@pytest.mark.parametrize('rule', RULES, ids=lambda rule: rule.__name__)
@each_notebook
def test_rules(name, framework, rule):
    for solutions in (True, False):
        assert rule(name, framework, page(name, framework, solutions)) == []


# One change to the PPO walkthrough for everything that a rule says: what is replaced (a pattern), and by what.
SABOTAGE = [
    (shows_the_file, r'(# %% Buffer tags=.*?\n)(?=# %% \[markdown\] tags=\["notes"\])', r'\1\1'),      # shown twice
    (shows_the_file, r'# %% Losses tags=\["section"\]', '# %% Losses'),
    (shows_the_file, r'# %% Imports tags', '# %% Networks tags'),
    (shows_after_prose, r'# %% \[markdown\]\n# ## Imports\n.*?(?=# %% Imports)', ''),
    (shows_after_prose, r'(# %% Losses tags.*?)(?=# %% \[markdown\])', r'\1# %%\n0\n\n'),
    (notes_quote_one_line, r'- `layers \+= \[`', '- `layers -= [`'),                                   # in no line
    (notes_quote_one_line, r'- `layers \+= \[`', '- `self`'),                                          # in many
    (notes_quote_one_line, r'- `layers \+= \[`:', '- The list'),
    (leaves_names_alone, r'three_logits = ', 'linear = three_logits = '),
    (leaves_names_alone, r'three_logits = ', 'flatten = three_logits = '),                             # the twin's
    (leaves_names_alone, r'from gymnasium.spaces import Discrete', 'import numpy as np'),
    (equations_are_checked, r' \\tag\{3\}', ''),
    (equations_are_checked, r' \\tag\{3\}', r' \\tag{30}'),
    (equations_are_checked, r'# Equation \(9\) in numbers', '# Equation (8) in numbers'),
    (equations_are_checked, r'# Equations \(3\) and \(4\)', '# Equations (3) and (4), (12)'),          # too early
    (equations_are_checked, r'# Equation \(9\) in numbers', '# In numbers'),
    (equations_are_checked, r'Is \(3\) true\?', 'Is it 5 \\$?'),
    (begins_as_a_lesson, r'\*\*Prerequisites\.\*\*', '**Before.**'),
    (begins_as_a_lesson, r'# # PPO', '# PPO'),
    (begins_as_a_lesson, r'# %% tags=\["setup"\]', '# %%\n1 + 1\n\n# %% tags=["setup"]'),
    (has_what_a_lesson_has, r"classroom\.check\('Exercise 2'", "classroom.check('Exercise 20'"),
    (has_what_a_lesson_has, r"classroom\.check\('Exercise 2'", "classroom.check('Exercise 1'"),
    (has_what_a_lesson_has, r"classroom\.check\('Exercise 2'", 'classroom.check(name'),
    (has_what_a_lesson_has, r'\(ablate\)', ''),
    (has_what_a_lesson_has, r'classroom\.diagram\(', 'print('),
    (has_what_a_lesson_has, r"classroom\.changes\('vpg', 'ppo'\)", '0'),
    (has_what_a_lesson_has, r"classroom\.bug\('C'\)", "classroom.bug('A')"),
    (belongs_to_its_framework, r'# %% \[markdown\] tags=\["notes", "torch"\]', '# %% [markdown] tags=["notes"]'),
    (belongs_to_its_framework, r'(?=three_logits = )', 'import torch\n'),
]


@pytest.mark.skipif('ppo' not in LESSONS, reason='no walkthrough of PPO')
@pytest.mark.parametrize(('rule', 'pattern', 'replacement'), SABOTAGE, ids=[
    f'{rule.__name__}{i}' for i, (rule, _, _) in enumerate(SABOTAGE)])
def test_rules_catch_what_breaks_them(rule, pattern, replacement):
    text = notebooks.read('ppo')
    spoiled, count = re.subn(pattern, replacement, text, flags=re.DOTALL)
    assert count and spoiled != text
    assert rule('ppo', 'tf1', page('ppo', 'tf1', text=spoiled)) != []


# ---- Mirrored cells, and drift

@pytest.mark.parametrize('name', WALKTHROUGHS)
def test_mirrored_cells_are_byte_for_byte(name):
    """Read without the builder: behind each marker stands the section of the PyTorch file, or the definition."""
    text = notebooks.read(name)
    if name in ALGORITHMS:
        for section, code in split(ROOT / f'{name}_torch.py').items():
            marker = f'# %% {section} tags=["section"]\n'
            assert text.count(marker) == 1 and f'{marker}{code_of(code, section)}\n\n# %%' in text, section
    for source, code in re.findall(r'^# %%.*? source="(.*?)"\n(.*?)\n*(?=^# %%|\Z)', text, re.MULTILINE | re.DOTALL):
        path, names = source.split(':')
        file = (ROOT / path).read_text(encoding='utf-8')
        assert {wanted.strip() for wanted in names.split(',')} <= bound_names(code)
        assert all(f'\n{part}\n' in file for part in code.split('\n\n\n')), source


@pytest.mark.parametrize('name', WALKTHROUGHS)
def test_opened_in_jupyter_it_is_the_notebook_with_solutions(name):
    """The walkthrough as jupytext reads it is the PyTorch notebook; cells for TensorFlow are inert there."""
    import jupytext
    opened = jupytext.reads(notebooks.read(name), fmt='py:percent').cells
    assert [cell.source for cell in opened if cell.cell_type == 'code'] == [
        cell.source for cell in page(name, 'torch') if cell.kind == 'code']
    assert all('tf1' in cell.metadata.get('tags', []) for cell in opened if cell.cell_type == 'raw')
    assert all('tf1' not in cell.metadata.get('tags', []) for cell in opened if cell.cell_type == 'code')


@each_lesson
def test_one_changed_character_is_drift(name, framework, tmp_path, monkeypatch):
    """One character of one section changes: the walkthrough (of PyTorch) and the notebook are out of date."""
    good = split(ROOT / f'{name}_{framework}.py')
    path = tmp_path / f'{name}_{framework}.py'
    monkeypatch.setattr(notebooks, 'file_of', lambda n, f: path if f == framework else ROOT / f'{n}_{f}.py')
    path.write_text(''.join(good.values()), encoding='utf-8')
    assert notebooks.problems([name]) == []
    stale = [f'walkthroughs/notebooks/{name}_{framework}.ipynb'] + [f'walkthroughs/{name}.py'] * (framework == 'torch')
    for section in good:
        code = code_of(good[section], section)
        i = len(good[section].rstrip('\n')) - len(code) + len(code) // 2
        changed = good[section][:i] + ('x' if good[section][i] != 'x' else 'y') + good[section][i + 1:]
        path.write_text(''.join({**good, section: changed}.values()), encoding='utf-8')
        assert sorted(problem.split(':')[0] for problem in notebooks.problems([name])) == sorted(stale), section


def test_all_is_in_sync_and_built():
    """The walkthroughs hold the files' code, and the notebooks are what a fresh build gives, byte for byte."""
    assert notebooks.problems(WALKTHROUGHS) == [], 'python -m tools.notebooks --sync && python -m tools.notebooks'


# ---- Notebooks

@each_notebook
def test_notebooks_are_valid_and_deterministic(name, framework):
    nbformat = pytest.importorskip('nbformat')
    text = notebooks.to_json(notebooks.build(name, framework))
    assert text == notebooks.to_json(notebooks.build(name, framework))
    nbformat.validate(nbformat.reads(text, as_version=4))
    cells = nbformat.reads(text, as_version=4).cells
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells if cell.cell_type == 'code')
    for cell in cells:
        if cell.cell_type == 'code':
            ast.parse(cell.source)                                      # no magics: the walkthrough is Python, too


@pytest.mark.parametrize('name', WALKTHROUGHS)
def test_lines_are_not_too_long(name):
    assert [line for line in notebooks.read(name).split('\n') if len(line) > 120] == []


def leaks(name, framework, text=None):
    """What a student's notebook tells of the solutions, and of the patches of the bugs."""
    own, whole = page(name, framework, False, text), page(name, framework, True, text)
    student = '\n'.join(cell.source for cell in own)
    wrong = [f'{word} in it' for word in (BEGIN, END) if word in student]
    wrong += ['a cell for teachers'] * any('solution' in cell.tags for cell in own)
    regions = []
    for cell in whole:
        found = re.findall(rf'^[ \t]*{BEGIN}\n(.*?)^[ \t]*{END}[ \t]*$', cell.source, re.MULTILINE | re.DOTALL)
        if len(found) != cell.source.count(BEGIN) or len(found) != cell.source.count(END):
            wrong.append(f'solution markers that do not match: {cell.source[:60]!r}')
        if bool(found) != ('exercise' in cell.tags):
            wrong.append(f'an exercise without a solution, or the reverse: {cell.source[:60]!r}')
        regions += found
    wrong += [f'{len(regions)} solutions, but {student.count(PLACEHOLDER)} placeholders'] * (
        student.count(PLACEHOLDER) != len(regions))
    secret = [line for region in regions for line in region.split('\n')]
    secret += [line for cell in whole if 'solution' in cell.tags for line in cell.source.split('\n')]
    shown = {line.strip() for cell in own if not mirrors(cell) for line in cell.source.split('\n')}
    wrong += [f'a line of a solution: {line}' for line in secret if len(line.strip()) > 24 and line.strip() in shown]
    patched = [bug.lines(framework)[2].strip() for bug in classroom.bugs_of(name).values() if bug.patch(framework)]
    return wrong + [f'the patch of a bug: {line}' for line in patched if line in student]


@each_notebook
def test_no_solution_leaks(name, framework):
    assert leaks(name, framework) == []


@pytest.mark.skipif('ppo' not in LESSONS, reason='no walkthrough of PPO')
@pytest.mark.parametrize(('pattern', 'replacement'), [
    (END, '### END OF SOLUTION'),
    (f'{BEGIN}\n', ''),
    (r'# %% tags=\["exercise"\]', '# %%'),
    (r'(?=# %% tags=\["exercise"\])', '# %%\nbuf.finish_path(obs, ended)\n\n'),                      # a bug's patch
    (r'(?=# %% tags=\["exercise"\])', '# %%\nreturn np.where(beyond, limit, ratio) * adv\n\n'),
])
def test_leaks_are_seen(pattern, replacement):
    spoiled, count = re.subn(pattern, replacement, notebooks.read('ppo'), count=1)
    assert count
    assert leaks('ppo', 'torch', spoiled) != []


# ---- Equations

@functools.cache
def katex():
    """A function that compiles LaTeX and returns what is wrong with it, or ''."""
    racer = pytest.importorskip('py_mini_racer', reason='compiling equations needs mini-racer')
    places = importlib.util.find_spec('sphinxcontrib')
    paths = [Path(place) / 'katex.min.js' for place in (places.submodule_search_locations if places else [])]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        pytest.skip('compiling equations needs sphinxcontrib-katex, which brings KaTeX')
    context = racer.MiniRacer()
    context.eval(path.read_text(encoding='utf-8'))
    context.eval('''function problem(latex, display) {
        try { katex.renderToString(latex, {displayMode: display, strict: 'error'}); return '' }
        catch (error) { return error.message }
    }''')
    return lambda latex, display: context.call('problem', latex, display)


def test_katex_compiles_and_complains():
    assert katex()(r'\frac{a}{b} \tag{1}', True) == ''
    assert all(katex()(latex, False) for latex in (r'\frac{a', r'\thta', r'a \tag{1}', r'a_b_c'))


@each_notebook
def test_equations_compile(name, framework):
    wrong = [f'{latex}: {problem}' for cell in page(name, framework) if cell.kind == 'markdown'
             for display, latex in equations(cell.source)[0] if (problem := katex()(latex, display))]
    assert wrong == []


# ---- Bugs

def good_module(name, framework):
    """A fresh copy of the algorithm file as a module: checks may put something else into it."""
    path = ROOT / f'{name}_{framework}.py'
    module = types.ModuleType(f'{name}_{framework}_good')
    exec(compile(path.read_text(encoding='utf-8'), str(path), 'exec'), vars(module))
    return module


@pytest.mark.parametrize('framework', FRAMEWORKS)
@pytest.mark.parametrize(('name', 'letter'), BUGS)
def test_bugs_are_caught(name, letter, framework):
    """The patch applies to one line, the check passes on the good file, and says in words what the patch broke."""
    needs(framework)
    bug = classroom.bugs_of(name)[letter]
    if not bug.patch(framework):
        pytest.skip('this bug has no place in TensorFlow')
    _, old, new = bug.lines(framework)                          # raises unless it is exactly one line, and once there
    assert old != new
    bug.check(good_module(name, framework))
    with pytest.raises(AssertionError, match=r'\w+ \w+ \w+ \w+'):
        bug.check(bug.load(framework))
    assert bug.check.__doc__ and bug.story and bug.hint and bug.name


def test_patches_must_apply_to_one_place():
    bug = classroom.Bug('x', section='Losses', old='no such line', new='y', check=None, story='', hint='',
                        algorithm='ppo')
    with pytest.raises(ValueError, match='stands in 0 lines'):
        bug.lines('torch')


@pytest.mark.skipif(len(WALKTHROUGHS) < len(NAMES), reason='not all walkthroughs are there')
def test_there_are_enough_bugs():
    assert len(BUGS) >= 15
    assert {name for name, _ in BUGS} == set(ALGORITHMS)


# ---- The support library

@pytest.fixture
def lesson(monkeypatch):
    """As in a notebook on PPO that is read, not tested."""
    monkeypatch.setattr(classroom, 'lesson', types.SimpleNamespace(algorithm='ppo', framework='torch'))
    monkeypatch.setattr(classroom, 'TEST', False)
    monkeypatch.setattr(classroom, 'FAST', False)


@pytest.mark.parametrize(('came', 'words'), [
    (None, ['Exercise 1: not solved yet']), (..., ['not solved yet']), (lambda: None, ['not solved yet']),
    (np.array([1.0, 2.0]), ['Exercise 1: correct']), (lambda: np.array([1.0, 2.0 + 1e-9]), ['correct']),
    (np.array([1.0, 3.0]), ['not yet', 'Expected: [1., 2.]', 'Came: [1., 3.]', 'Hint: think']),
    (np.array([[1.0, 2.0]]), ['not yet', '(1, 2)', '(2,)']),                              # the right numbers, misshapen
    (lambda: 1 / 0, ['not yet', 'ZeroDivisionError']), ('a word', ['not yet', 'a word']),
])
def test_checks_answer_in_words(lesson, came, words, capsys):
    classroom.check('Exercise 1', came, np.array([1.0, 2.0]), hint='think')
    answer = capsys.readouterr().out
    assert all(word in answer for word in words), answer


def test_wrong_answers_fail_a_test_run(lesson, monkeypatch, capsys):
    monkeypatch.setattr(classroom, 'TEST', True)
    with pytest.raises(AssertionError):
        classroom.check('Exercise 1', 1, 2, hint='')
    with pytest.raises(AssertionError, match='do not show'):
        classroom.claim(False, 'one is two')
    with pytest.raises(AssertionError, match='differ by 1'):
        classroom.agree('one and two', 1, 2)
    with pytest.raises(AssertionError, match='shapes'):
        classroom.agree('a column and a row', np.zeros((3, 1)), np.zeros(3))
    monkeypatch.setattr(classroom, 'FAST', True)
    classroom.claim(False, 'needs many steps', full=True)
    classroom.check('Exercise 2', 'higher', 'lower', hint='', full=True)
    assert 'too short to tell' in (text := capsys.readouterr().out) and 'Exercise 2: answered' in text


@pytest.mark.skipif(('ppo', 'A') not in BUGS, reason='no bugs in PPO')
def test_hunts_answer_in_words(lesson, capsys):
    needs('torch')
    bug = classroom.bug('A')
    for line, words in ((None, 'not solved yet'), ('no such line', 'no line of ppo_torch.py contains it'),
                        ('self', 'quote more of it'), ('def compute_kl', bug.hint[:20]), (bug.old, 'correct')):
        classroom.hunt('Exercise 4', bug, line)
        answer = capsys.readouterr().out
        assert answer.startswith('Exercise 4: ') and words in answer.replace('\n    ', ' '), answer


@pytest.mark.parametrize('framework', FRAMEWORKS)
def test_functions_are_called_with_arrays(framework):
    needs(framework)
    module = good_module('ppo', framework)
    val, ret = np.array([1.0, 2.0]), np.array([0.0, 5.0])
    assert classroom.call(module.compute_loss_v, val, ret) == pytest.approx(5)
    assert classroom.gradient(module.compute_loss_v, val, ret) == pytest.approx(val - ret)


def test_the_setup_says_how_to_get_the_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('WALKTHROUGH_REPOSITORY', raising=False)
    setup = notebooks.SETUP.split('sys.path.insert')[0]
    with pytest.raises(FileNotFoundError, match='Clone it'):
        exec(setup, {})
    for place in (ROOT, ROOT / 'walkthroughs', ROOT / 'walkthroughs' / 'notebooks', ROOT.parent):
        if place.exists():
            found = {}
            monkeypatch.chdir(place)
            exec(setup, found)
            assert found['repositories']
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('WALKTHROUGH_REPOSITORY', str(ROOT))
    exec(setup, found := {})
    assert found['repositories'] == [ROOT]


# ---- Execution: every notebook from a clean kernel, two at a time

RUNS = [(name, framework, solutions) for name in WALKTHROUGHS for framework, solutions in
        (('torch', False), ('tf1', False), ('torch', True))]


@pytest.fixture(scope='module')
def executions(request):
    """{(name, framework, solutions): a future of the executed notebook} for the tests that were selected."""
    pytest.importorskip('nbclient')
    pytest.importorskip('ipykernel')
    wanted = [item.callspec.params['run'] for item in request.session.items if item.name.startswith('test_execution[')]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        yield {run: pool.submit(lambda run: notebooks.execute(notebooks.build(*run), fast=True), run) for run in wanted
               if importlib.util.find_spec(classroom.PACKAGES[run[1]])}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize('run', RUNS, ids=lambda run: f'{run[0]}_{run[1]}{"_solutions" * run[2]}')
def test_execution(run, executions):
    """In fast mode: no cell fails, solved exercises are judged correct, and the others say that they are not solved."""
    needs(run[1])
    assert notebooks.wrong_answers(executions[run].result(), solutions=run[2]) == []
