"""Two files side by side, section by section: what is identical, what differs, and in which words.

    python -m tools.compare ddpg_torch td3_torch            two algorithm files; `ddpg td3` means the same
    python -m tools.compare ppo                             a PyTorch file and its TensorFlow-1 twin
    python -m tools.compare my_ppo.py ppo_torch             a copy that you have changed, and the original
    python -m tools.compare ddpg td3 --html diff.html       the same as a page, for a browser

Sections are compared with the section of the same name, and definitions in them with the definition of the same name,
so that the two sides stay aligned. Lines that differ only in the algorithm's own name (VPGBuffer, PPOBuffer) count as
equal. A wide terminal shows two columns, a narrow one a single column, where `-` is the first file and `+` the second.
"""
import ast
import contextlib
import difflib
import functools
import html
import io
import itertools
import keyword
import os
import re
import shutil
import sys
import tempfile
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from common.errors import ArgumentParser, UserError, nearest, one_line_errors
from common.logx import colorize
from tools import sections
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT, algorithm_files

CONTEXT = 3             # equal lines shown around what differs
COLUMN = 72             # two columns need room for so many characters each
SIMILAR = 0.45          # share of their characters that two lines must have in common to be paired
LARGEST = 300_000       # pairs of lines that are compared to align two texts; beyond that, only equal lines count


# ---- The data: what a site builder, a test or a printer uses

@dataclass
class Side:
    """A line of one file, and which of its characters the other file's line does not have."""
    number: int
    text: str
    marks: list                     # [(start, end), ...]


@dataclass
class Row:
    """Two lines that belong together; or one alone, and None on the other side."""
    left: Side | None
    right: Side | None
    equal: bool


@dataclass
class Section:
    """The rows of a section. `only` is the name of the file that has it, if the other does not."""
    name: str
    rows: list
    only: str | None = None

    @property
    def changed(self):
        """How many rows differ."""
        return sum(not row.equal for row in self.rows)

    @property
    def identical(self):
        return not self.only and not self.changed

    @property
    def summary(self):
        """What stands behind its name: identical, or how much differs."""
        if self.only:
            return f'only in {self.only}'
        if self.changed:
            return f'{self.changed} of {len(self.rows)} lines differ'
        same = all(row.left.text == row.right.text for row in self.rows)
        return 'identical' if same else "identical but for the algorithm's name"


@dataclass
class Diff:
    """Two files compared. `code_lines` is what tools.sections counts, None if a file is not valid Python."""
    a: str
    b: str
    sections: list
    code_lines: int | None
    kinds: tuple                    # for each file {line: [(start, end, kind of word), ...]}, for colours

    @property
    def summary(self):
        """The closing line."""
        same = sum(section.identical for section in self.sections)
        code = ('code lines not counted, since a file is not valid Python' if self.code_lines is None
                else f'{self.code_lines} code line{"" if self.code_lines == 1 else "s"} changed')
        return f'{same} of {len(self.sections)} sections identical, {code}'


# ---- Reading

def read(path):
    """The text of a file, with one kind of line end."""
    try:
        return re.sub('\r\n?', '\n', Path(path).read_bytes().decode())
    except OSError as error:
        raise UserError(f'{path}: {error.strerror}') from None
    except UnicodeDecodeError:
        raise UserError(f'{path} is not a text file') from None


def algorithms_of(paths):
    """The algorithms of two files, by their names or, since a copy may have any name, by the training functions that
    they define. Two Nones, which neutralise nothing, unless both are known."""
    found = []
    for path in paths:
        defined = re.findall(rf'^def ({"|".join(ALGORITHMS)})\(', read(path), flags=re.MULTILINE)
        known = [path.stem.split('_')[0]] if path.stem in algorithm_files() else defined
        found.append(known[0] if len(known) == 1 else None)
    return found if all(found) else [None, None]


def sections_in(path):
    """{name of section: (number of its first line, its lines)}, without the blank lines at a section's end."""
    try:
        parts = sections.split(path)
    except ValueError as error:                             # two sections of one name
        raise UserError(str(error)) from None
    found, number = {}, 1
    for name, part in parts.items():
        lines = re.sub('\r\n?', '\n', part).split('\n')
        found[name] = number, '\n'.join(lines).rstrip('\n').split('\n')
        number += len(lines) - 1
    return found


def code_lines_changed(paths, algorithms):
    """As tools.sections counts them; it takes the algorithm from a file's name, which a copy may have lost."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, f'{algorithm or "other"}_{side}.py') for algorithm, side in zip(algorithms, 'ab')]
        for path, copy in zip(paths, copies):
            copy.write_bytes(read(path).encode())
        try:
            return sections.changed_lines(*copies)
        except (SyntaxError, tokenize.TokenError, ValueError):
            return None


def word_kinds(text):
    """{line: [(start, end, kind), ...]} of the words that a page colours; {} for what is not Python."""
    found, after = {}, ''
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = {tokenize.COMMENT: 'comment', tokenize.STRING: 'string', tokenize.NUMBER: 'digits'}.get(token.type)
            if token.type == tokenize.NAME:
                kind = 'keyword' if keyword.iskeyword(token.string) else 'name' if after in ('def', 'class') else None
            elif tokenize.tok_name[token.type].startswith(('FSTRING', 'TSTRING')):      # since Python 3.12
                kind = 'string'
            after = token.string
            for line in range(token.start[0], token.end[0] + 1) if kind else ():
                start = token.start[1] if line == token.start[0] else 0
                end = token.end[1] if line == token.end[0] else sys.maxsize
                found.setdefault(line, []).append((start, end, kind))
    except (tokenize.TokenError, SyntaxError):
        return {}
    return found


# ---- Aligning

def section_diff(a, b):
    """Compare two files: a Diff, whose sections have rows."""
    a, b = paths = Path(a), Path(b)
    texts, algorithms = [read(path) for path in paths], algorithms_of(paths)
    lefts, rights = map(sections_in, paths)
    if len(lefts) == 1 or len(rights) == 1:                 # no sections to compare by: all of a file is one
        lefts, rights = ({'Whole file': (1, text.rstrip('\n').split('\n'))} for text in texts)
    name_a, name_b = (a.name, b.name) if a.name != b.name else map(str, paths)
    found = []
    for name in merged(list(lefts), list(rights)):
        sides = lefts.get(name, (0, [])), rights.get(name, (0, []))
        only = None if name in lefts and name in rights else name_a if name in lefts else name_b
        keys = [[sections.neutral(line, algorithm) if algorithm else line for line in lines]
                for (_, lines), algorithm in zip(sides, algorithms)]
        found.append(Section(name, [make_row(pair, sides, keys) for pair in align(name, *keys)], only))
    return Diff(name_a, name_b, found, code_lines_changed(paths, algorithms), tuple(map(word_kinds, texts)))


def merged(a, b):
    """All names of two lists; those in only one of them keep their places."""
    names = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        names += a[i1:i2] + (b[j1:j2] if tag != 'equal' else [])
    return list(dict.fromkeys(names))


def align(section, a, b):
    """[(line of a or None, line of b or None), ...] for the lines of a section, definition by definition: one that
    both have is compared with itself alone, and what stands between two such with what stands there in the other."""
    ends_a, ends_b = definitions(section, a), definitions(section, b)
    names_a, names_b = ([name for name, _ in ends[1:]] for ends in (ends_a, ends_b))
    cuts = [(0, 0)]
    for i, j, size in difflib.SequenceMatcher(None, names_a, names_b, autojunk=False).get_matching_blocks():
        for k in range(size):
            cuts += [(ends_a[i + k][1], ends_b[j + k][1]), (ends_a[i + k + 1][1], ends_b[j + k + 1][1])]
    cuts.append((len(a), len(b)))
    return [(None if i is None else i + start_a, None if j is None else j + start_b)
            for (start_a, start_b), (end_a, end_b) in zip(cuts, cuts[1:])
            for i, j in align_lines(a[start_a:end_a], b[start_b:end_b])]


def definitions(section, lines):
    """[('', 1), (name, its last line), ...] as in tools.sections; where the lines are not valid Python by themselves,
    none after the first, which is the section's marker."""
    with contextlib.suppress(SyntaxError, ValueError):
        ends = sections.ends(section, ast.parse('\n'.join(lines)))
        names = [(name, end) for name, end in ends if name.split('.')[0].isidentifier() and not keyword.iskeyword(name)]
        return [('', 1), *names]
    return [('', 1)]


def align_lines(a, b):
    """[(i, j), ...]: equal and similar lines in pairs, others with None."""
    if a == b:
        return [(k, k) for k in range(len(a))]
    if len(a) * len(b) <= LARGEST:
        matched = best_pairs(a, b)
    else:
        blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
        matched = [(i + k, j + k) for i, j, size in blocks for k in range(size)]
    pairs, i, j = [], 0, 0
    for x, y in [*matched, (len(a), len(b))]:
        pairs += [(k, None) for k in range(i, x)] + [(None, k) for k in range(j, y)] + [(x, y)]
        i, j = x + 1, y + 1
    return pairs[:-1]


def best_pairs(a, b):
    """The pairs (i, j), both ascending, whose likeness is largest in sum."""
    best = [[0.0] * (len(b) + 1) for _ in range(len(a) + 1)]
    scores = [[likeness(x, y) for y in b] for x in a]
    for i in reversed(range(len(a))):
        for j in reversed(range(len(b))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], scores[i][j] + best[i + 1][j + 1])
    pairs, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        if scores[i][j] and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


@functools.lru_cache(maxsize=2**20)
def likeness(x, y):
    """0 for lines that are not to be paired, more for those that are more alike; little for blank ones."""
    if x == y:
        return 1.5 if x.strip() else 0.1
    x, y = (line.split('#')[0].rstrip() or line for line in (x, y))         # code decides, where there is any
    words_x, words_y = words(x), words(y)
    if not words_x or not words_y:
        return 0
    weights = [sum(map(len, line_words)) for line_words in (words_x, words_y)]
    weight, shorter = sum(weights), min(weights)
    shared = sum(len(word) * n for word, n in (Counter(words_x) & Counter(words_y)).items())
    if shared < min(SIMILAR * weight / 2, 0.9 * shorter):                   # the most that could be equal is too little
        return 0
    matcher = difflib.SequenceMatcher(None, words_x, words_y, autojunk=False)
    equal = sum(len(words_x[i + k]) for i, _, size in matcher.get_matching_blocks() for k in range(size))
    alike, contained = 2 * equal / weight, shorter >= 16 and equal >= 0.9 * shorter
    return max(alike, SIMILAR) if contained else alike if alike >= SIMILAR else 0


def words(line, spaces=False):
    """A line's words, numbers and signs, and if asked for the spaces between them."""
    return re.findall(r'\w+|\s+|[^\w\s]' if spaces else r'\w+|[^\w\s]', line)


def make_row(pair, sides, keys):
    """The row of two lines, of which one may be None; sides: (number of the first line, lines) of both files."""
    left, right = (None if k is None else Side(start + k, printable(lines[k]), [])
                   for k, (start, lines) in zip(pair, sides))
    equal = bool(left and right) and keys[0][pair[0]] == keys[1][pair[1]]
    if left and right and not equal:
        left.marks, right.marks = differing(left.text, right.text)
    return Row(left, right, equal)


def printable(line):
    """The line as it can be shown: a file may hold tabs and escape codes."""
    return ''.join(c if c.isprintable() else '\ufffd' for c in line.replace('\t', '\xbb   '))


def differing(x, y):
    """The ranges of characters in which two lines differ, in whole words; two with only spaces between them are one."""
    parts, marks = (words(x, spaces=True), words(y, spaces=True)), ([], [])
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *parts, autojunk=False).get_opcodes():
        for line, line_words, found, first, last in ((x, parts[0], marks[0], i1, i2), (y, parts[1], marks[1], j1, j2)):
            if tag != 'equal' and first < last:
                start, end = len(''.join(line_words[:first])), len(''.join(line_words[:last]))
                if found and not line[found[-1][1]:start].strip():
                    start, _ = found.pop()
                found.append((start, end))
    return marks


def folded(rows, context=CONTEXT):
    """[(are they to be hidden, rows), ...]: runs of equal rows that are longer than the context around changes."""
    shown = {k + d for k, row in enumerate(rows) if not row.equal for d in range(-context, context + 1)}
    found = []
    for k, row in enumerate(rows):
        hidden = k not in shown
        if not found or found[-1][0] != hidden:
            found.append((hidden, []))
        found[-1][1].append(row)
    return [(hidden and len(part) > 1, part) for hidden, part in found]


# ---- The terminal

def render_text(diff, width=80, color=False):
    """The comparison as lines for a terminal of this width, in two columns if that is wide enough."""
    digits = len(str(max(side.number for section in diff.sections for row in section.rows
                         for side in (row.left, row.right) if side)))
    column = (width - 2 * (digits + 1) - 3) // 2
    lines = [painted(f'- {diff.a}', 'red', color), painted(f'+ {diff.b}', 'green', color)]
    for section in diff.sections:
        lines += [''] if section.changed else []
        lines.append(f'{"=" if section.identical else "!"} {painted(section.name, "cyan", color)}  {section.summary}')
        for hidden, rows in folded(section.rows) if section.changed else ():
            if hidden:
                lines.append(f'  ... {len(rows)} equal lines')
            for row in () if hidden else rows:
                lines += two_columns(row, column, digits, color) if column >= COLUMN else one_column(row, digits, color)
    return [*lines, '', diff.summary]


def painted(text, name, color, marks=None):
    """The text in a colour, if there are colours: in bold or, if ranges are marked, these on a background of it."""
    if not color or not text:
        return text
    if marks is None:
        return colorize(text, name, bold=True)
    edges = [0, *(edge for mark in marks for edge in mark), len(text)]          # every second part is marked
    parts = [(text[start:end], k % 2 == 1) for k, (start, end) in enumerate(zip(edges, edges[1:])) if start < end]
    return ''.join(colorize(part, name, bold=marked, highlight=marked) for part, marked in parts)


def carets(marks, color):
    """A line with ^ below what is marked, in place of colours; [] if there is nothing to say."""
    lines = [' ' * start + '^' * (end - start) for start, end in marks]
    return [''.join(line[len(before):] for before, line in zip(['', *lines], lines))] if lines and not color else []


def one_column(row, digits, color):
    """A row's lines, one below the other."""
    if row.equal:
        return [f'  {row.right.number:{digits}} {row.right.text}'.rstrip()]
    lines = []
    for side, sign, name in ((row.left, '-', 'red'), (row.right, '+', 'green')):
        if side:
            text = painted(side.text, name, color, side.marks)
            lines.append(f'{painted(sign, name, color, [])} {side.number:{digits}} {text}'.rstrip())
            lines += [f'?{" " * (digits + 2)}{line}' for line in carets(side.marks, color)]
    return lines


def two_columns(row, width, digits, color):
    """A row's lines, side by side; long ones continue below, with a deeper indent."""
    halves = []
    for side, name in ((row.left, 'red'), (row.right, 'green')):
        cells = []
        for start, end, indent in wrapped(side.text, width) if side else ():
            number = ' ' * (digits + 1 + indent) if start else f'{side.number:{digits}} '
            marks = [(max(x, start) - start, min(y, end) - start) for x, y in side.marks if x < end and y > start]
            text, pad = side.text[start:end], ' ' * (width - indent - (end - start))
            cells.append(number + (text if row.equal else painted(text, name, color, marks)) + pad)
            cells += [(' ' * len(number) + line).ljust(width + digits + 1) for line in carets(marks, color)]
        halves.append(cells)
    sign = ' ' if row.equal else '|' if row.left and row.right else '<' if row.left else '>'
    blank = ' ' * (width + digits + 1)
    return [f'{left} {sign if k == 0 else " "} {right}'.rstrip()
            for k, (left, right) in enumerate(itertools.zip_longest(*halves, fillvalue=blank))]


def wrapped(text, width):
    """[(start, end, indentation), ...] of the parts of a line that fit into a width, cut at spaces if possible."""
    indent = min(len(text) - len(text.lstrip()) + 4, width // 2)
    parts, start, room = [], 0, width
    while len(text) - start > room:
        cut = text.rfind(' ', start + room // 2, start + room) + 1 or start + room
        parts.append((start, cut, indent if parts else 0))
        start, room = cut, width - indent
    return [*parts, (start, len(text), indent if parts else 0)]


# ---- The page

STYLE = """\
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --faint: #5b6470; --bar: #edf0f4; --line: #d3d9e0;
  --del: #ffebe9; --del-word: #fac4bf; --ins: #e6f6ea; --ins-word: #a3dfb2; --gap: #f3f5f7; --accent: #a3161a;
  --keyword: #0b5a1e; --string: #8f2410; --comment: #4a5460; --number: #6a3fa0; --name: #0a3fa8; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --text: #dfe4ea; --faint: #a3acb8; --bar: #20252c;
  --line: #353c45; --del: #3b1d1f; --del-word: #6b262a; --ins: #15301f; --ins-word: #17482a; --gap: #1a1e23;
  --accent: #ff9a94; --keyword: #86d69a; --string: #f2ad9c; --comment: #a3acb8; --number: #cbb2f5; --name: #9fc0ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.15rem; margin: 0; padding: .8rem 1rem; overflow-wrap: anywhere; }
h1 small { font-weight: normal; color: var(--faint); }
.section { border-top: 1px solid var(--line); }
.section > summary, .whole { background: var(--bar); padding: .35rem 1rem; cursor: pointer; }
.section h2 { display: inline; font-size: 1rem; margin: 0; color: var(--accent); }
.section > summary span { color: var(--faint); }
.note { margin: 0; padding: .5rem 1rem; max-width: 60rem; }
.fold > summary { padding: 0 1rem; color: var(--faint); cursor: pointer; font-size: .85rem; }
.row { display: grid; grid-template-columns: 3.2rem minmax(0, 1fr) 3.2rem minmax(0, 1fr);
  font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.number { padding-right: .7rem; text-align: right; color: var(--faint); user-select: none; }
.code { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0 .4rem 0 calc(var(--indent) * 1ch + 2.5ch);
  text-indent: calc(var(--indent) * -1ch - 2ch); min-height: 1.45em; }
.left.code.changed { background: var(--del); } .right.code.changed { background: var(--ins); }
.gap { background: repeating-linear-gradient(135deg, var(--gap) 0 6px, transparent 6px 12px); }
del, ins { text-decoration: none; border-radius: 2px; }
del { background: var(--del-word); } ins { background: var(--ins-word); }
.keyword { color: var(--keyword); font-weight: 600; } .string { color: var(--string); } .name { color: var(--name); }
.comment { color: var(--comment); font-style: italic; } .digits { color: var(--number); }
summary:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
@media (max-width: 60rem) { .row { grid-template-columns: 2.8rem minmax(0, 1fr); font-size: 11.5px; }
  .gap, .equal .left { display: none; } }
@media print { body { print-color-adjust: exact; -webkit-print-color-adjust: exact; } .row { break-inside: avoid; } }
"""


def render_html(diff, notes={}):
    """A page of its own, without scripts or anything from elsewhere. notes: {section: a sentence about it, as HTML}"""
    title = f'{html.escape(diff.a)} | {html.escape(diff.b)}'
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
            f'<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title} <small>{html.escape(diff.summary)}</small>'
            f'</h1>\n{render_sections(diff, notes)}</main>\n</body>\n</html>\n')


def render_sections(diff, notes={}):
    """The sections as HTML, to be put into any page that has STYLE: each can be folded, and identical ones are."""
    return ''.join(render_section(section, diff.kinds, notes.get(section.name, '')) for section in diff.sections)


def render_section(section, kinds, note=''):
    """One section; runs of equal lines in it are folded too."""
    parts = [f'<p class="note">{note}</p>\n'] if note else []
    for hidden, rows in folded(section.rows) if section.changed else [(False, section.rows)]:
        text = ''.join(render_row(row, kinds) for row in rows)
        parts.append(f'<details class="fold"><summary>{len(rows)} equal lines</summary>\n{text}</details>\n'
                     if hidden else text)
    return (f'<details class="section"{"" if section.identical else " open"}><summary><h2>{html.escape(section.name)}'
            f'</h2> <span>{html.escape(section.summary)}</span></summary>\n{"".join(parts)}</details>\n')


def render_row(row, kinds):
    """Two lines side by side; on a narrow screen one below the other."""
    cells = []
    for side, which, tag, of_file in ((row.left, 'left', 'del', kinds[0]), (row.right, 'right', 'ins', kinds[1])):
        if side is None:
            cells.append('<div class="gap"></div><div class="gap"></div>')
            continue
        indent, changed = len(side.text) - len(side.text.lstrip()), '' if row.equal else ' changed'
        cells.append(f'<div class="number {which}">{side.number}</div>'
                     f'<div class="code {which}{changed}" style="--indent:{indent}">'
                     f'{render_line(side, of_file.get(side.number, []), tag)}</div>')
    return f'<div class="row{" equal" if row.equal else ""}">{"".join(cells)}</div>\n'


def render_line(side, kinds, tag):
    """The text of a line, its words in their colours, and what is marked in <del> or <ins>."""
    text, end = side.text, len(side.text)
    edges = sorted({0, end, *(min(edge, end) for span in side.marks for edge in span),
                    *(min(edge, end) for start, stop, _ in kinds for edge in (start, stop))})
    parts, open_mark = [], False
    for start, stop in zip(edges, edges[1:]):
        mark = any(x <= start < y for x, y in side.marks)
        if mark != open_mark:
            parts.append(f'<{tag}>' if mark else f'</{tag}>')
            open_mark = mark
        kind = next((kind for x, y, kind in kinds if x <= start < y), None)
        word = html.escape(text[start:stop], quote=False)
        parts.append(f'<span class="{kind}">{word}</span>' if kind else word)
    return ''.join(parts) + (f'</{tag}>' if open_mark else '')


# ---- The command

def find_pair(words):
    """The paths of the two files that the words on the command line mean."""
    if len(words) > 2:
        raise UserError('two files can be compared, or one that has a twin')
    if len(words) == 1:
        path = find_file(words[0]).resolve()
        algorithm, _, framework = path.stem.partition('_')
        if path.parent != ROOT or path.stem not in algorithm_files():
            raise UserError(f'compare {words[0]} with what? Give a second file')
        return path, ROOT / f'{algorithm}_{FRAMEWORKS[1 - FRAMEWORKS.index(framework)]}.py'
    # A bare algorithm means the framework that the other file has, or PyTorch.
    given = [word.removesuffix('.py').rpartition('_')[2] for word in words]
    framework = next((name for name in given if name in FRAMEWORKS), FRAMEWORKS[0])
    return tuple(find_file(word, framework) for word in words)


def find_file(word, framework=FRAMEWORKS[0]):
    """The path of a file, given by its path, or as ppo_torch, ppo_torch.py or ppo."""
    if os.path.isfile(word):                                # False of names that are too long for a file, too
        return Path(word)
    name = f'{word}_{framework}' if word in ALGORITHMS else word.removesuffix('.py')
    if name in algorithm_files():
        return ROOT / f'{name}.py'
    names = [*algorithm_files(), *ALGORITHMS, *(str(path) for path in Path().glob('*.py'))]
    raise UserError(f'there is no file {word}{nearest(word, names)}')


def main(argv=None):
    """The command line."""
    parser = ArgumentParser(prog='python -m tools.compare', description=__doc__)
    parser.add_argument('files', metavar='FILE', nargs='+', help='names such as ppo_torch or ppo, or paths')
    parser.add_argument('--html', metavar='FILE', help='write a page for a browser, and print only the closing line')
    parser.add_argument('--width', type=int, help="characters in a line; the terminal's own if not given")
    parser.add_argument('--color', choices=('auto', 'always', 'never'), default='auto', help='auto: on a terminal')
    with one_line_errors('compare'):
        args = parser.parse_args(argv)
        diff = section_diff(*find_pair(args.files))
        if args.html:
            if not args.html.endswith(('.html', '.htm')):
                raise UserError(f'--html {args.html}: the name of a page ends in .html')
            try:
                Path(args.html).write_text(render_html(diff), encoding='utf-8')
            except OSError as error:
                raise UserError(f'{args.html}: {error.strerror}') from None
            print(f'{diff.summary}: {args.html}')
            return
        color = args.color == 'always' or args.color == 'auto' and sys.stdout.isatty() and not os.getenv('NO_COLOR')
        try:
            print(*render_text(diff, args.width or shutil.get_terminal_size().columns, color), sep='\n', flush=True)
        except BrokenPipeError:                             # the reader, `head` say, has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == '__main__':
    main()
