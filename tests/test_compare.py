"""Two files side by side: nothing is lost, nothing slips, and what differs is marked."""
import html.parser
import os
import re
import subprocess
import sys

import pytest

from tools import compare, sections
from tools.compare import find_pair, folded, render_html, render_text, section_diff
from tools.sections import ROOT, changed_lines, neutral, pairs, split

A, B = 'ddpg_torch', 'td3_torch'
BEGIN = '"""Head."""\n# %% One\n'


def diff_of(a, b):
    return section_diff(ROOT / f'{a}.py', ROOT / f'{b}.py')


def written(folder, **texts):
    """The comparison of two texts, as files a.py and b.py."""
    for name, text in texts.items():
        (folder / f'{name}.py').write_text(text, newline='')
    return section_diff(folder / 'a.py', folder / 'b.py')


def rows_of(diff, section):
    """[(left, right), ...]: the texts of a section's rows."""
    rows = next(part.rows for part in diff.sections if part.name == section)
    return [tuple(side and side.text for side in (row.left, row.right)) for row in rows]


def marked(side):
    return [side.text[start:end] for start, end in side.marks]


def run(*args):
    return subprocess.run([sys.executable, '-m', 'tools.compare', *map(str, args)], cwd=ROOT, capture_output=True,
                          text=True, env=dict(os.environ, COLUMNS='80'))


# The data.

@pytest.mark.parametrize(('a', 'b'), pairs())
def test_every_line_is_there_once_and_equal_means_equal(a, b):
    diff = diff_of(a, b)
    for name, side in ((a, 'left'), (b, 'right')):
        lines = (ROOT / f'{name}.py').read_text(encoding='utf-8').split('\n')
        shown = {s.number: s.text for section in diff.sections for row in section.rows if (s := getattr(row, side))}
        assert list(shown) == sorted(shown)
        assert [shown.get(number, '') for number in range(1, len(lines) + 1)] == lines
    for row in [row for section in diff.sections for row in section.rows if row.left and row.right]:
        texts = neutral(row.left.text, a.split('_')[0]), neutral(row.right.text, b.split('_')[0])
        assert row.equal == (texts[0] == texts[1]) and (row.equal or row.left.marks or row.right.marks)


@pytest.mark.parametrize(('a', 'b'), pairs())
def test_closing_line(a, b):
    texts = [{name: neutral(text, file.split('_')[0]).rstrip() for name, text in split(ROOT / f'{file}.py').items()}
             for file in (a, b)]
    same = sum(texts[0].get(name) == text for name, text in texts[1].items())
    count = changed_lines(ROOT / f'{a}.py', ROOT / f'{b}.py')
    diff = diff_of(a, b)
    assert diff.summary == f'{same} of {len(texts[0] | texts[1])} sections identical, {count} code lines changed'


def test_definitions_are_compared_with_those_of_the_same_name(tmp_path):
    """Alike bodies in functions of other names must not be paired across them."""
    body = '    total = first + second\n    return total * 2\n'
    diff = written(tmp_path, a=f'{BEGIN}def f(first, second):\n{body}\n\ndef g(first, second):\n    return first\n',
                   b=f'{BEGIN}def f(first, second):\n    return second\n\n\ndef g(first, second):\n{body}')
    rows = rows_of(diff, 'One')
    assert ('def f(first, second):',) * 2 in rows and ('def g(first, second):',) * 2 in rows
    assert ('    total = first + second', None) in rows and (None, '    total = first + second') in rows


def test_a_new_first_definition_does_not_move_the_marker():
    rows = rows_of(diff_of(A, B), 'Losses')
    assert rows[0] == ('# %% Losses', '# %% Losses')
    assert rows[1] == (None, 'def smooth_action(act, noise, target_noise, noise_clip):')


def test_similar_lines_are_paired_and_their_words_marked():
    losses = next(section for section in diff_of(A, B).sections if section.name == 'Losses')
    row = next(row for row in losses.rows if row.left and row.left.text.startswith('def compute_loss_q'))
    assert (row.left.text, row.right.text) == ('def compute_loss_q(q, backup):', 'def compute_loss_q(q1, q2, backup):')
    assert (marked(row.left), marked(row.right)) == (['q'], ['q1, q2'])


def test_words_with_only_spaces_between_them_are_one_mark():
    assert compare.differing('f(one two)', 'f(three four)') == ([(2, 9)], [(2, 12)])


def test_lines_that_have_little_in_common_are_not_paired(tmp_path):
    diff = written(tmp_path, a=f'{BEGIN}loss = compute(x)\n', b=f'{BEGIN}for step in range(10):\n    pass\n')
    assert ('loss = compute(x)', None) in rows_of(diff, 'One')


def test_indentation_counts_and_is_kept(tmp_path):
    diff = written(tmp_path, a=f'{BEGIN}if a:\n    call(with_an_argument)\n',
                   b=f'{BEGIN}if a:\n    if b:\n        call(with_an_argument)\n')
    row = diff.sections[1].rows[-1]
    assert (row.left.text, row.right.text) == ('    call(with_an_argument)', '        call(with_an_argument)')
    assert marked(row.left) == ['    '] and marked(row.right) == ['        '] and not row.equal
    assert '+ 5         call(with_an_argument)' in render_text(diff, 80)


def test_the_algorithms_own_name_is_no_difference():
    buffer = next(section for section in diff_of('vpg_torch', 'ppo_torch').sections if section.name == 'Buffer')
    assert buffer.identical and buffer.summary == "identical but for the algorithm's name"
    assert ('class VPGBuffer:', 'class PPOBuffer:') in rows_of(diff_of('vpg_torch', 'ppo_torch'), 'Buffer')


def test_a_section_that_one_file_has_not():
    diff = diff_of('ppo_torch', 'ddpg_torch')
    assert [section.name for section in diff.sections] == list(sections.SECTIONS)
    evaluation = diff.sections[sections.SECTIONS.index('Evaluation')]
    assert evaluation.summary == 'only in ddpg_torch.py' and not evaluation.identical
    assert all(row.left is None for row in evaluation.rows)


@pytest.mark.parametrize('function', ['ppo', 'my_ppo'])
def test_a_changed_copy_and_the_original(tmp_path, function):
    """Also one whose training function has a new name, so that its algorithm is not known."""
    text = (ROOT / 'ppo_torch.py').read_text(encoding='utf-8').replace('def ppo(', f'def {function}(')
    text = text.replace('command_line(ppo)', f'command_line({function})').replace('gamma=0.99', 'gamma=0.95')
    (tmp_path / 'mine.py').write_bytes(text.replace('\n', '\r\n').encode())
    diff = section_diff(tmp_path / 'mine.py', ROOT / 'ppo_torch.py')
    changed = 1 if function == 'ppo' else 3
    assert diff.code_lines == 2 * changed and sum(section.changed for section in diff.sections) == changed
    row = next(row for row in diff.sections[6].rows if row.left.text.startswith('    gamma='))
    assert (marked(row.left), marked(row.right)) == (['95'], ['99'])


def test_files_without_sections_or_python(tmp_path):
    assert written(tmp_path, a='x = 1\n', b='x = 2\n').summary == '0 of 1 sections identical, 2 code lines changed'
    diff = written(tmp_path, a='x = (\n', b='\tx = <1>\x1b[31m\n')
    assert diff.summary == '0 of 1 sections identical, code lines not counted, since a file is not valid Python'
    assert '\x1b' not in ''.join(render_text(diff)) and '&lt;1&gt;' in render_html(diff)
    assert written(tmp_path, a='x = 1\n', b='x = 1\n').summary == '1 of 1 sections identical, 0 code lines changed'


# What is shown.

def test_two_columns_where_the_terminal_is_wide_enough():
    diff = diff_of(A, B)
    wide, narrow = render_text(diff, 170), render_text(diff, 100)
    assert max(map(len, wide)) <= 170 and wide[-1] == narrow[-1] == diff.summary
    assert any(re.fullmatch(r'118 def compute_loss_q\(q, backup\): +\| 126 def compute_loss_q\(q1, q2, backup\):', line)
               for line in wide)
    at = narrow.index('- 118 def compute_loss_q(q, backup):')
    assert narrow[at + 1:at + 4] == ['?' + ' ' * 24 + '^', '+ 126 def compute_loss_q(q1, q2, backup):',
                                     '?' + ' ' * 24 + '^^^^^^']
    assert '= Buffer  identical' in wide and '= Buffer  identical' in narrow


@pytest.mark.parametrize('width', [100, 170])
def test_colours_take_the_place_of_carets(width):
    diff = diff_of(A, B)
    plain = [line for line in render_text(diff, width) if not re.fullmatch(r'\?? *\^[ ^]*', line)]
    colored = render_text(diff, width, color=True)
    assert [re.sub(r'\x1b\[[\d;]*m', '', line).rstrip() for line in colored] == plain
    old, new = '\x1b[41;1mq\x1b[0m', '\x1b[42;1mq1, q2\x1b[0m'            # on a red and on a green background
    assert any(old in line and (new in line) == (width == 170) for line in colored)


def test_runs_of_equal_lines_are_folded():
    for section in diff_of(A, B).sections:
        parts = folded(section.rows)
        assert [row for _, rows in parts for row in rows] == section.rows
        assert all(row.equal for hidden, rows in parts if hidden for row in rows)
        assert not section.changed or max((len(rows) for hidden, rows in parts if not hidden and
                                           all(row.equal for row in rows)), default=0) <= 1


def test_context_around_a_change(tmp_path):
    equal = ''.join(f'x{i} = {i}\n' for i in range(20))
    diff = written(tmp_path, a=f'{equal}y = 1\n{equal}', b=f'{equal}y = 2\n{equal}')
    parts = [(hidden, len(rows)) for hidden, rows in folded(diff.sections[0].rows)]
    assert parts == [(True, 17), (False, 7), (True, 17)]


def test_long_lines_go_on_below():
    text = '        ' + 'word ' * 40 + 'x' * 70
    parts = compare.wrapped(text, 40)
    assert ''.join(text[start:end] for start, end, _ in parts) == text and len(parts) > 5
    assert all(indent + end - start <= 40 for start, end, indent in parts)
    assert [indent for *_, indent in parts] == [0] + [12] * (len(parts) - 1)


class Page(html.parser.HTMLParser):
    """Checks that all tags are closed in order; {('left', number): text of the line} and folded sections."""
    def __init__(self, text):
        super().__init__()
        self.open, self.lines, self.closed, self.marks, self.place = [], {}, [], [], None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag not in ('script', 'link', 'img')
        if tag != 'meta':
            self.open.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        kinds = [set(attributes.get('class', '').split()) for _, attributes in self.open]
        side = {'left', 'right'} & set().union(*kinds)
        if any('number' in kind for kind in kinds):
            self.place = side.pop(), int(data)
            self.lines[self.place] = ''
        elif any('code' in kind for kind in kinds):
            self.lines[self.place] += data
            self.marks += [data] if self.open[-1][0] in ('ins', 'del') else []
        elif self.open and self.open[-1][0] == 'h2' and not any('open' in attributes for _, attributes in self.open):
            self.closed.append(data)


def test_the_page_has_both_files_and_folds_what_is_identical():
    diff = diff_of(A, B)
    page = Page(render_html(diff, {'Losses': 'Clipped double-Q learning.'}))
    for name, side in ((A, 'left'), (B, 'right')):
        lines = (ROOT / f'{name}.py').read_text(encoding='utf-8').split('\n')
        assert [page.lines.get((side, number), '') for number in range(1, len(lines) + 1)] == lines
    assert page.closed == [section.name for section in diff.sections if section.identical] != []
    assert 'q' in page.marks and '<p class="note">Clipped double-Q learning.</p>' in render_html(
        diff, {'Losses': 'Clipped double-Q learning.'})


# The command.

def test_which_files_are_meant(monkeypatch, tmp_path):
    def names(*words):
        return [path.stem for path in find_pair(words)]
    assert names('ddpg', 'td3') == names('ddpg_torch', 'td3_torch.py') == ['ddpg_torch', 'td3_torch']
    assert names('ppo') == ['ppo_torch', 'ppo_tf1'] and names('ppo_tf1') == ['ppo_tf1', 'ppo_torch']
    assert names('ddpg_tf1', 'td3') == ['ddpg_tf1', 'td3_tf1']
    monkeypatch.chdir(ROOT)
    assert names('ppo_torch.py') == ['ppo_torch', 'ppo_tf1']
    (tmp_path / 'my_ppo.py').write_text('')
    assert find_pair([str(tmp_path / 'my_ppo.py'), 'ppo_torch']) == (tmp_path / 'my_ppo.py', ROOT / 'ppo_torch.py')


@pytest.mark.parametrize(('args', 'message'), [
    (['ddpg', 'td33'], 'there is no file td33 (nearest: td3)'),
    (['tools/compare.py'], 'compare tools/compare.py with what? Give a second file'),
    (['ppo', 'vpg', 'sac'], 'two files can be compared, or one that has a twin'),
    (['ddpg', 'td3', '--html', 'page.txt'], '--html page.txt: the name of a page ends in .html'),
    (['ddpg', 'td3', '--html', 'nowhere/page.html'], 'nowhere/page.html: No such file or directory'),
])
def test_mistakes_get_one_line(args, message, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as error:
        compare.main(args)
    assert error.value.code == 2 and capsys.readouterr().err == f'compare: error: {message}\n'


def test_the_command(tmp_path):
    done = run('ddpg', 'td3')
    diff = diff_of(A, B)
    assert done.stdout.splitlines() == render_text(diff, 80) and done.returncode == 0
    done = run('ddpg', 'td3', '--html', tmp_path / 'page.html')
    assert (tmp_path / 'page.html').read_text(encoding='utf-8') == render_html(diff)
    assert done.stdout == f'{diff.summary}: {tmp_path / "page.html"}\n'
