"""The site: all pairs of algorithm files side by side, the walkthroughs as annotated pages, and the results.

    python -m tools.site                        build it into build/site/; then open build/site/index.html
    python -m tools.site --no-execute           without the outputs of the walkthroughs' cells: quick
    python -m tools.site --fast -o DIR          outputs from few training steps; another folder

The pages are plain HTML without scripts: they need no server and no network, fold by <details>, follow the reader's
choice of light or dark, and print. Mathematics is set by KaTeX while the site is built. KaTeX and the fonts come from
the npm registry, checked against the hashes below; they and the executed notebooks are kept in build/cache/, so that a
second build is quick. What the site needs beyond the repository's requirements is in requirements-site.txt.
"""
import argparse
import ast
import base64
import concurrent.futures
import functools
import hashlib
import html
import io
import itertools
import json
import os
import re
import shutil
import struct
import sys
import tarfile
import time
import tomllib
import urllib.request
from pathlib import Path

from tools import compare, notebooks
from tools.sections import ALGORITHMS, FRAMEWORKS, NEIGHBOURS, ROOT, algorithm_files, ends, split

NAME = 'Deep RL, one file at a time'
FRAMEWORK_NAMES = dict(torch='PyTorch', tf1='TensorFlow 1')
ASSETS = Path(__file__).resolve().parent / 'site_assets'
BUILD = ROOT / 'build'
WIDE = 1000                 # pixels: a wider picture spans both columns of a page
SHORT = 24                  # lines: shorter code stays in view while the text beside it is read

# Pages of benchmarks/: {file: (name of the page, title)}
RESULTS = {'RESULTS.md': ('results', 'Learning results'), 'speed.md': ('speed', 'Speed'),
           'environments.md': ('environments', 'Environments'), 'README.md': ('benchmarks', 'What was measured')}

# From the npm registry: {name: (package, version, its hash as the registry gives it)}
PACKAGES = dict(
    katex=('katex', '0.19.1',
           'jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA=='),
    sans=('@fontsource-variable/source-sans-3', '5.3.0',
          'dpi0GZk7EQe2tYpg6Q0Fx0OmUgnuGu+0rHPgtXqtKhglYmJuP7jZ12Mu1uN+NfRaJRY1Emn8AQJEWzmoZ4wa9g=='),
    mono=('@fontsource-variable/source-code-pro', '5.3.0',
          'CxzAbqtNrQ6EQXTb9ovRZIRiOhFPcBQhNKla58K5UV6IMoL/ROkWxXDSBOa/frIDLuV4B5PLHI4R1e9SWVinYg=='),
)


# ---- What comes from elsewhere

def ignored_by_git(folder):
    """Make a folder of which nothing is ever committed."""
    folder.mkdir(exist_ok=True)
    (folder / '.gitignore').write_text('*\n', encoding='utf-8')


def package(name, version, sha512, cache=BUILD / 'cache'):
    """The folder of an unpacked npm package, from the cache or else from the registry."""
    folder = Path(cache) / 'packages' / f'{name.replace("/", "-")}-{version}'
    if not folder.exists():
        ignored_by_git(BUILD)
        registry = os.environ.get('NPM_CONFIG_REGISTRY', 'https://registry.npmjs.org').rstrip('/')
        with urllib.request.urlopen(f'{registry}/{name}/-/{name.split("/")[-1]}-{version}.tgz', timeout=60) as reply:
            data = reply.read()
        if base64.b64encode(hashlib.sha512(data).digest()).decode() != sha512:
            raise ValueError(f'{name} {version} from {registry} is not what it should be: its hash differs')
        partial = folder.with_name(f'{folder.name}.{os.getpid()}')
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(partial, filter='data')
        partial.replace(folder)
    return folder / 'package'


class Text:
    """Markdown with mathematics, as HTML."""
    def __init__(self, katex, engine):
        from markdown_it import MarkdownIt
        from mdit_py_plugins.anchors import anchors_plugin
        from mdit_py_plugins.dollarmath import dollarmath_plugin
        self.engine = engine
        engine.eval((katex / 'dist' / 'katex.min.js').read_text(encoding='utf-8'))
        self.parser = MarkdownIt('commonmark').enable('table')
        self.parser.use(anchors_plugin, max_level=4)
        self.parser.use(dollarmath_plugin, double_inline=True,
                        renderer=lambda tex, options: self.equation(tex, options['display_mode']))

    def equation(self, tex, display):
        """A formula as KaTeX sets it; a mistake in it is an error."""
        done = self.engine.call('katex.renderToString', tex, dict(displayMode=display, strict='error'))
        # Of two things that it writes, the first is no longer MathML, and browsers ignore the second.
        done = re.sub(r'(?<=<mtd) width="50%"|(?<=style=")height:-[^;]*;', '', done)
        return scrolling(done, 'equation', 'Equation', 'span') if display else done

    def __call__(self, text):
        content = re.sub(r'<th[^>]*></th>', '<td></td>', self.parser.render(text))       # a heading has a text
        return re.sub(r'<table>.*?</table>', lambda table: scrolling(table[0], 'table', 'Table'), content,
                      flags=re.DOTALL)

    def inline(self, text):
        return self.parser.renderInline(text)


# ---- Pieces of pages

def page(title, body, depth=0, kind=''):
    """A whole page; depth: how many folders below the index it is."""
    up = '../' * depth
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:,">\n'
            f'<link rel="stylesheet" href="{up}katex/katex.min.css">\n<link rel="stylesheet" href="{up}style.css">\n'
            f'</head>\n<body class="{kind}">\n<header class="bar"><nav aria-label="Site">'
            f'<a href="{up}index.html">{NAME}</a> <a href="{up}index.html#walkthroughs">Walkthroughs</a> '
            f'<a href="{up}index.html#compare">Compare</a> <a href="{up}results.html">Results</a></nav></header>\n'
            f'<main>\n{body}</main>\n</body>\n</html>\n')


def scrolling(content, kind, label, tag='div'):
    """What may be too wide for a phone scrolls by itself, by keyboard too, and the page does not."""
    return f'<{tag} class="{kind}" tabindex="0" role="group" aria-label="{label}">{content}</{tag}>'


def slug(name):
    """What a section is called in an address."""
    return name.lower().replace(' ', '-')


def diff_name(a, b):
    """The file of the page that compares two files; their order does not matter."""
    order = algorithm_files()
    return '--'.join(sorted((a, b), key=order.index)) + '.html'


def code_lines(source, first=None, kinds=None):
    """Lines of Python as HTML, in colours; with numbers if the number of the first one is given."""
    kinds = compare.word_kinds(source) if kinds is None else kinds
    found = []
    for i, line in enumerate(source.split('\n'), start=1):
        side = compare.Side(i, compare.printable(line), [])
        number = f'<span class="number">{first + i - 1}</span>' if first else ''
        found.append(f'<div class="line">{number}<div class="code" style="--indent:{len(line) - len(line.lstrip())}">'
                     f'{compare.render_line(side, kinds.get(i, []), "ins")}</div></div>')
    return found


def picture(data, alt, images):
    """An image whose file is written into the site; it has the size that it should have on the page."""
    width, height = struct.unpack('>II', data[16:24])                               # of a PNG
    name = hashlib.sha256(data).hexdigest()[:16] + '.png'
    (images / name).write_bytes(data)
    image = f'<img src="../{images.name}/{name}" width="{width}" height="{height}" alt="{html.escape(alt)}">'
    return scrolling(image, 'figure', 'Picture')


def alt_text(source):
    """What an image made by a cell is called, by the titles in its code."""
    titles = re.findall(r'''\btitle=f?(['"])(.*?)\1''', source)
    comment = re.match(r'# (.*)', source)
    about = '; '.join(title for _, title in titles if title) or (comment[1] if comment else 'plot')
    return f'Picture drawn by the code beside it: {about.rstrip(".")}.'


def render_outputs(cell, images):
    """([HTML of an output, ...], is one of them wide)"""
    found, wide = [], False
    for output in cell.get('outputs', []):
        data = output.get('data', {})
        if output['output_type'] == 'stream':
            found.append(f'<pre>{escape(output["text"])}</pre>')
        elif output['output_type'] == 'error':
            found.append(f'<pre class="error">{escape(output["ename"] + ": " + output["evalue"])}</pre>')
        elif 'image/png' in data:
            content = base64.b64decode(data['image/png'])
            wide = wide or struct.unpack('>I', content[16:20])[0] > WIDE
            found.append(picture(content, alt_text(joined(cell['source'])), images))
        elif 'text/html' in data:
            found.append(f'<div class="paper">{joined(data["text/html"])}</div>')
        elif 'text/plain' in data and not joined(data['text/plain']).startswith(('<', 'Ellipsis')):
            found.append(f'<pre>{escape(data["text/plain"])}</pre>')
    return found, wide


def joined(text):
    """The text of a cell or output, which JSON may have as a list of lines."""
    return ''.join(text)


def escape(text):
    """Printed text as HTML, without its colours."""
    return html.escape(re.sub(r'\x1b\[[\d;]*m', '', joined(text)).rstrip('\n'), quote=False)


# ---- Pairs

@functools.cache
def all_notes():
    return tomllib.loads((ASSETS / 'notes.toml').read_text(encoding='utf-8'))


def notes_of(a, b):
    """{section: what changed in it and why} for two files that are read side by side; {} for others."""
    (algorithm_a, framework_a), (algorithm_b, framework_b) = a.split('_'), b.split('_')
    if algorithm_a == algorithm_b:
        return all_notes()['twins']
    return all_notes().get(f'{algorithm_a}-{algorithm_b}', {}) if framework_a == framework_b else {}


def natural_pairs():
    """The pairs that are read side by side: neighbours in each framework, and twins."""
    return ([(f'{a}_{framework}', f'{b}_{framework}') for framework in FRAMEWORKS for a, b in NEIGHBOURS]
            + [tuple(f'{algorithm}_{framework}' for framework in FRAMEWORKS) for algorithm in ALGORITHMS])


def diff_page(a, b, notes, walkthroughs):
    """(the page, the number of changed code lines, {section: how much of it differs}) of two files."""
    diff = compare.section_diff(ROOT / f'{a}.py', ROOT / f'{b}.py')
    sections = ''.join(f'<div id="{slug(section.name)}">'
                       + compare.render_section(section, diff.kinds, notes.get(section.name, '')) + '</div>\n'
                       for section in diff.sections)
    (algorithm_a, framework_a), (algorithm_b, framework_b) = a.split('_'), b.split('_')
    other = dict(zip(FRAMEWORKS, reversed(FRAMEWORKS)))
    related = [(f'{name} annotated', f'../annotated/{name}.html') for name in (a, b) if name.split('_')[0] in
               walkthroughs]
    if algorithm_a != algorithm_b and framework_a == framework_b:
        pairs = [(f'{algorithm_a}_{other[framework_a]}', f'{algorithm_b}_{other[framework_a]}'),
                 (a, f'{algorithm_a}_{other[framework_a]}'), (b, f'{algorithm_b}_{other[framework_a]}')]
        related += [(f'{x} | {y}', diff_name(x, y)) for x, y in pairs]
    links = ''.join(f'<li><a href="{address}">{text}</a></li>' for text, address in related)
    body = (f'<h1>{a}.py <span class="versus">|</span> {b}.py</h1>\n<p class="lead">{html.escape(diff.summary)}. '
            'Sections and runs of lines that are equal are folded.</p>\n'
            + (f'<ul class="related">{links}</ul>\n' if links else '') +
            f'<div class="columns"><span class="left">{a}.py</span><span class="right">{b}.py</span></div>\n{sections}')
    return page(f'{a} | {b}', body, depth=1, kind='diff'), diff.code_lines, {s.name: s.summary for s in diff.sections}


# ---- Annotated pages

def executed(name, framework, mode, cache=BUILD / 'cache'):
    """The students' notebook, run in full or fast (mode None: not at all), from the cache if nothing has changed."""
    notebook = notebooks.build(name, framework)
    if mode is None:
        return notebook
    used = [*sorted((ROOT / 'common').glob('*.py')), ROOT / 'walkthroughs' / 'classroom.py',
            *sorted((ROOT / 'walkthroughs' / 'bugs').glob(f'{name}.py'))]
    key = hashlib.sha256('\0'.join([mode, notebooks.to_json(notebook), *(path.read_text(encoding='utf-8')
                                                                        for path in used)]).encode()).hexdigest()
    path = Path(cache) / 'notebooks' / f'{name}_{framework}_{key[:20]}.json'
    if not path.exists():
        done = notebooks.execute(notebook, fast=mode == 'fast')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix('.part').write_text(json.dumps(done), encoding='utf-8')
        path.with_suffix('.part').replace(path)
    return json.loads(path.read_text(encoding='utf-8'))


def run_notebooks(walkthroughs, mode, jobs, cache, say):
    """({(name, framework): notebook}, [what failed, ...])"""
    failed = []

    def run(task):
        start, name = time.time(), '_'.join(task)
        try:
            return executed(*task, mode, cache)
        except Exception as error:                          # the page is still worth reading, without outputs
            failed.append(name)
            say(f'{name} failed, so its page has no outputs: {escape(str(error)).splitlines()[-1]}')
            return executed(*task, None)
        finally:
            if mode and time.time() - start > 1:
                say(f'{name}: executed in {time.time() - start:.0f} s')
    tasks = list(itertools.product(walkthroughs, FRAMEWORKS))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return dict(zip(tasks, pool.map(run, tasks))), failed


def parse_notes(text):
    """[(quoted code, Markdown of the note), ...] of a cell with notes."""
    items = re.split(r'^[-*] ', text, flags=re.MULTILINE)[1:]
    return [(re.match(r'(`+) ?(.*?) ?\1(?!`)', item, flags=re.DOTALL)[2], item.strip()) for item in items]


def source_of(cell):
    """Where a mirrored cell is from, in words."""
    return cell['metadata'].get('source', '').replace(':', ' · ').replace(',', ', ')


class Annotated:
    """A walkthrough as rows of two columns: text on the left, code and what it gave on the right."""
    def __init__(self, name, framework, notebook, text, images, differences):
        self.name, self.framework, self.text, self.images = name, framework, text, images
        self.file = f'{name}_{framework}' if name in ALGORITHMS else None
        self.differences = differences                      # {(a, b): {section: how much of it differs}}
        self.rows, self.prose, self.cells, self.headings = [], [], [], []
        cells = list(notebook['cells'])
        while cells:
            cell = cells.pop(0)
            tags, source = cell['metadata'].get('tags', []), joined(cell['source'])
            if cell['cell_type'] == 'markdown':
                if self.cells:
                    self.flush()
                self.add_prose(source)
            elif cell['cell_type'] == 'code':
                notes = []
                while cells and 'notes' in cells[0]['metadata'].get('tags', []):
                    notes += parse_notes(joined(cells.pop(0)['source']))
                if 'section' in tags or notes:
                    self.add_section(cell, source, notes)
                else:
                    self.add_cell(cell, source, tags)
        self.flush()

    def add_prose(self, source):
        content = self.text(source)
        self.headings += re.findall(r'<h2 id="(.*?)">(.*?)</h2>', content)
        self.prose.append(content)

    def row(self, left, right, kind=''):
        self.rows.append(f'<div class="pair {kind}"><div class="prose">{left}</div>'
                         f'<div class="right">{right}</div></div>\n')

    def flush(self):
        """Text and the code beside it, as they have come up to here."""
        if self.prose or self.cells:
            aside = self.rows and (not self.cells or 'class="card"' in self.cells[0])
            self.row(''.join(self.prose), ('@CONTENTS@' if not self.rows else '') + ''.join(self.cells),
                     'aside' if aside else '')
        self.prose, self.cells = [], []

    def add_cell(self, cell, source, tags):
        """An experiment, a check or an exercise, with its outputs."""
        if 'setup' in tags:
            self.cells.append('<details class="cell"><summary>The first cell finds the repository</summary>'
                              f'<div class="lines">{"".join(code_lines(source))}</div></details>')
            return
        outputs, wide = render_outputs(cell, self.images)
        kind = next((tag for tag in ('check', 'exercise', 'mirror') if tag in tags), 'experiment')
        label = dict(exercise='exercise', check='check', mirror=source_of(cell)).get(kind)
        label = f'<p class="label">{html.escape(label)}</p>' if label else ''
        short = ' short' if source.count('\n') < SHORT and (wide or not any('<img' in out for out in outputs)) else ''
        shown = f'<div class="output">{"".join(outputs)}</div>' if outputs else ''
        self.cells.append(f'<div class="cell {kind}{short}">{label}'
                          f'<div class="lines">{"".join(code_lines(source))}</div>{"" if wide else shown}</div>')
        if wide:
            self.flush()
            self.rows.append(f'<div class="wide">{shown}</div>\n')

    def add_section(self, cell, source, notes):
        """A section of the file: before it the text about it, beside its lines the notes on them."""
        title, lines = cell['metadata'].get('title', ''), source.split('\n')
        first, where = None, source_of(cell)
        if self.file and title:
            parts = split(ROOT / f'{self.file}.py')
            first = 1 + sum(parts[name].count('\n') for name in itertools.takewhile(lambda x: x != title, parts))
            first += title != 'Docstring'                                           # the marker is not in the cell
            where = f'{self.file}.py · {title}'
        if self.prose and not self.cells and self.file and title:
            self.cells.append(self.card(title, source, first, first + len(lines) - 1))
        self.flush()
        places = {}
        for quote, note in notes:
            line = next((i for i, line in enumerate(lines) if quote in line), 0)
            places.setdefault(line, []).append(f'<div class="annotation">{self.text(note)}</div>')
        shown, starts = code_lines(source, first), sorted({0, *places})
        for start, end in zip(starts, [*starts[1:], len(lines)]):
            label = f'<p class="label">{html.escape(where)}</p>' if start == 0 and where else ''
            kind = ('first ' if start == 0 else '') + ('last' if end == len(lines) else '')
            self.row(''.join(places.get(start, [])), f'{label}<div class="lines">{"".join(shown[start:end])}</div>',
                     f'part {kind}')
        outputs, _ = render_outputs(cell, self.images)
        if outputs:
            self.row('', f'<div class="output">{"".join(outputs)}</div>')

    def card(self, title, source, first, last):
        """What comes next: a section's place, what it defines, and how it differs in the neighbour files."""
        defined = list(dict.fromkeys(name.split('.')[0] for name, _ in ends(title, ast.parse(source)))) \
            if title not in ('Docstring', 'Imports', 'Command line') else []
        names = ', '.join(f'<code>{html.escape(name)}</code>' for name in defined)
        items = []
        for (a, b), sections in self.differences.items():
            if self.file in (a, b) and title in sections:
                other = b if a == self.file else a
                items.append(f'<li><a href="../diff/{diff_name(a, b)}#{slug(title)}">beside {other}</a>: '
                             f'{html.escape(sections[title])}</li>')
        return (f'<div class="card"><p>{self.file}.py, lines {first} to {last}{": " + names if names else ""}</p>'
                f'<ul>{"".join(items)}</ul></div>')

    def page(self, walkthroughs):
        """The whole page, with a tab for each framework."""
        current = {self.framework: ' aria-current="page"'}
        tabs = ''.join(f'<a href="{self.name}_{framework}.html"{current.get(framework, "")}>{title}</a>'
                       for framework, title in FRAMEWORK_NAMES.items())
        items = ''.join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in self.headings)
        contents = f'<details class="contents" open><summary>Contents</summary><ol>{items}</ol></details>'
        place = walkthroughs.index(self.name)
        around = [(word, walkthroughs[k]) for word, k in (('Before', place - 1), ('Next', place + 1))
                  if 0 <= k < len(walkthroughs)]
        links = ' · '.join(f'{word}: <a href="{other}_{self.framework}.html">{other}</a>' for word, other in around)
        body = (f'<nav class="tabs" aria-label="Framework">{tabs}</nav>\n'
                f'<div class="pairs">\n{"".join(self.rows).replace("@CONTENTS@", contents, 1)}</div>\n'
                f'<p class="around">{links + " · " if links else ""}'
                f'<a href="../notebooks/{self.name}_{self.framework}.ipynb" download>This page as a notebook</a></p>\n')
        return page(f'{self.name} · {FRAMEWORK_NAMES[self.framework]}', body, depth=1, kind='annotated')


# ---- The other pages

def title_of(name):
    """The heading of a walkthrough."""
    text = (ROOT / 'walkthroughs' / f'{name}.py').read_text(encoding='utf-8')
    return re.search(r'^# # (.*)', text, flags=re.MULTILINE)[1]


def index_page(text, counts, walkthroughs):
    """The walkthroughs, the natural pairs, and the matrix of all pairs."""
    files, largest = algorithm_files(), max(counts.values())
    head = ''.join(f'<th scope="col"><span>{name}</span></th>' for name in files)
    rows = ''
    for a in files:
        cells = ''
        for b in files:
            if a == b:
                inside = f'<a href="annotated/{a}.html" aria-label="{a}, annotated">·</a>' \
                    if a.split('_')[0] in walkthroughs else '·'
                cells += f'<td class="self">{inside}</td>'
                continue
            count = counts[frozenset((a, b))]
            cells += (f'<td style="--heat:{count / largest:.2f}"><a href="diff/{diff_name(a, b)}" '
                      f'aria-label="{a} and {b}: {count} code lines changed">{count}</a></td>')
        rows += f'<tr><th scope="row">{a}</th>{cells}</tr>\n'
    items = ''.join(f'<li><b>{text.inline(title_of(name))}</b> <span>'
                    + ' · '.join(f'<a href="annotated/{name}_{framework}.html">{name} in {title}</a>'
                                 for framework, title in FRAMEWORK_NAMES.items()) + '</span></li>\n'
                    for name in walkthroughs)
    pairs = ''
    for a, b in NEIGHBOURS:
        links = ' · '.join(f'<a href="diff/{diff_name(f"{a}_{f}", f"{b}_{f}")}">{a}_{f} | {b}_{f}</a>: '
                           f'{counts[frozenset((f"{a}_{f}", f"{b}_{f}"))]}' for f in FRAMEWORKS)
        pairs += f'<li>{text.inline(notes_of(f"{a}_torch", f"{b}_torch")["Docstring"])} <span>{links}</span></li>\n'
    twins = ' · '.join(f'<a href="diff/{diff_name(f"{a}_torch", f"{a}_tf1")}">{a}</a>: '
                       f'{counts[frozenset((f"{a}_torch", f"{a}_tf1"))]}' for a in ALGORITHMS)
    body = f'''<h1>Deep reinforcement learning, one file at a time</h1>
<p class="lead">Six algorithms, each as one file that can be read from top to bottom, in PyTorch and again in
TensorFlow-1 style. Two files differ only where the algorithms, or the frameworks, differ. These pages are made for
reading them: with the mathematics beside the lines, and side by side.</p>
<h2 id="walkthroughs">Walkthroughs</h2>
<p>The whole file, section by section, with its equations, notes on its lines, experiments and exercises.</p>
<ol class="walkthroughs">
{items}</ol>
<h2 id="compare">Side by side</h2>
<p>Each step from one algorithm to the next, with the number of code lines that change (comments, docstrings and the
algorithm's own name aside) and a sentence for every section on what changed and why.</p>
<ul class="steps">
{pairs}<li>The same algorithm in both frameworks. <span>{twins}</span></li>
</ul>
<h3 id="matrix">All pairs</h3>
<p>Code lines that change from the file of the row to the file of the column. Every number leads to the two files; a dot
leads to the file itself, annotated.</p>
{scrolling(f'<table class="matrix"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>', 'table',
           'Code lines changed, for every pair of files')}
<h2 id="results">Results</h2>
<p><a href="results.html">What the files learn</a>, seed by seed, beside published figures; <a href="speed.html">how
fast</a>, beside other libraries; <a href="environments.html">with which environments</a>; and <a
href="benchmarks.html">how all of this was measured</a>.</p>
'''
    return page(NAME, body, kind='index')


def results_page(text, source, title, folder):
    """A page of benchmarks/, with its pictures."""
    content = text((ROOT / 'benchmarks' / source).read_text(encoding='utf-8'))
    (folder / 'figures').mkdir(exist_ok=True)

    def image(found):
        path = ROOT / 'benchmarks' / found[1]
        shutil.copy(path, folder / 'figures' / path.name)
        width, height = struct.unpack('>II', path.read_bytes()[16:24])
        return f'<img src="figures/{path.name}" width="{width}" height="{height}"'
    content = re.sub(r'<img src="(.*?)"', image, content)
    for other, (name, _) in RESULTS.items():
        content = content.replace(f'href="{other}"', f'href="{name}.html"')
    content = re.sub(r'<a href="tables">(.*?)</a>', r'\1', content)             # for programs
    return page(title, f'<article>\n{content}</article>\n', kind='results')


def write_assets(folder, cache):
    """Style sheets and fonts."""
    katex, sans, mono = (package(*PACKAGES[name], cache) for name in ('katex', 'sans', 'mono'))
    (folder / 'katex' / 'fonts').mkdir(parents=True)
    (folder / 'fonts').mkdir()
    css = (katex / 'dist' / 'katex.min.css').read_text(encoding='utf-8')
    css = re.sub(r',url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)', '', css)     # every browser reads woff2
    (folder / 'katex' / 'katex.min.css').write_text(css, encoding='utf-8')
    for name in re.findall(r'fonts/(.*?\.woff2)', css):
        shutil.copy(katex / 'dist' / 'fonts' / name, folder / 'katex' / 'fonts')
    shutil.copy(katex / 'LICENSE', folder / 'katex')
    for source, name in ((sans, 'source-sans-3'), (mono, 'source-code-pro')):
        for style in ('normal', 'italic'):
            shutil.copy(source / 'files' / f'{name}-latin-wght-{style}.woff2', folder / 'fonts')
        shutil.copy(source / 'LICENSE', folder / 'fonts' / f'LICENSE-{name}')
    style = compare.STYLE.replace('@media (prefers-color-scheme', '@media screen and (prefers-color-scheme')
    (folder / 'style.css').write_text(style + (ASSETS / 'site.css').read_text(encoding='utf-8'), encoding='utf-8')
    return katex


# ---- The whole

def build_site(folder, mode='full', jobs=2, cache=BUILD / 'cache', say=print):
    """Build all pages into a new folder, which takes the place of the old one at the end; returns what failed."""
    from py_mini_racer import MiniRacer
    walkthroughs, start = notebooks.names(), time.time()
    done, failed = run_notebooks(walkthroughs, mode, jobs, cache, say)
    between = time.time()

    new = Path(folder).with_name(Path(folder).name + '.new')
    shutil.rmtree(new, ignore_errors=True)
    for part in ('diff', 'annotated', 'images', 'notebooks'):
        (new / part).mkdir(parents=True)
    katex = write_assets(new, cache)
    with MiniRacer() as engine:
        text = Text(katex, engine)
        pairs, counts, differences = list(itertools.combinations(algorithm_files(), 2)), {}, {}
        notes = [{name: text.inline(note) for name, note in notes_of(*pair).items()} for pair in pairs]
        with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
            pages = pool.map(diff_page, *zip(*pairs), notes, itertools.repeat(walkthroughs), chunksize=4)
            for pair, (content, count, sections) in zip(pairs, pages):
                (new / 'diff' / diff_name(*pair)).write_text(content, encoding='utf-8')
                counts[frozenset(pair)], differences[pair] = count, sections
        natural = {pair: differences[pair] for pair in natural_pairs() if pair in differences}
        for (name, framework), notebook in done.items():
            annotated = Annotated(name, framework, notebook, text, new / 'images', natural)
            (new / 'annotated' / f'{name}_{framework}.html').write_text(annotated.page(walkthroughs), encoding='utf-8')
            (new / 'notebooks' / f'{name}_{framework}.ipynb').write_text(
                notebooks.to_json(notebooks.build(name, framework)), encoding='utf-8')
        (new / 'index.html').write_text(index_page(text, counts, walkthroughs), encoding='utf-8')
        for source, (name, title) in RESULTS.items():
            (new / f'{name}.html').write_text(results_page(text, source, title, new), encoding='utf-8')
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    size = sum(path.stat().st_size for path in Path(folder).rglob('*') if path.is_file())
    say(f'{len(list(Path(folder).rglob("*.html")))} pages, {size / 1e6:.1f} MB in {folder}: notebooks '
        f'{between - start:.0f} s, pages {time.time() - between:.0f} s')
    return failed


def main(argv=None):
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog='python -m tools.site', description=__doc__.split('\n')[0])
    parser.add_argument('-o', '--out', default=BUILD / 'site', type=Path, help='the folder (%(default)s)')
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument('--fast', action='store_const', dest='mode', const='fast', default='full',
                       help='execute the walkthroughs with few training steps')
    modes.add_argument('--no-execute', action='store_const', dest='mode', const=None, help='do not execute them')
    parser.add_argument('--jobs', type=int, default=2, help='processes (%(default)s)')
    args = parser.parse_args(argv)
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / 'style.css').exists():
        parser.error(f'{args.out} holds something other than a site, and would be replaced')
    return 1 if build_site(args.out, args.mode, args.jobs) else 0


if __name__ == '__main__':
    sys.exit(main())
