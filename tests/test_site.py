"""The site: built once, without running the walkthroughs, then read as text, by a validator, and by a real browser."""
import base64
import html
import io
import itertools
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from tools import compare, notebooks
from tools import site as builder
from tools.sections import ROOT, algorithm_files, changed_lines, split

AXE = ('axe-core', '4.14.0', '9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==')
VNU = ('vnu-jar', '26.9.27', 'TkQd5DFfOaWC9ebtvozTsrH2Vaod3jYg+vrOeREzIXxBexLz9+rS2DNtjn7+RPUiZhgli0SghgBX6RJRNea0KA==')
BROWSERS = 'chromium', 'chromium-browser', 'google-chrome', 'chrome'


def package(*pinned):
    """A package of the npm registry, or a reason to skip a test."""
    try:
        return builder.package(*pinned)
    except OSError as error:
        pytest.skip(f'{pinned[0]} is neither in the cache nor to be had: {error}')


def png(width, height):
    file = io.BytesIO()
    matplotlib.image.imsave(file, np.ones((height, width, 3)))
    return base64.b64encode(file.getvalue()).decode()


def with_outputs(notebook):
    """The notebook as if it had been run: every kind of output, below its experiments in turn."""
    kinds = [
        [dict(output_type='stream', name='stdout', text='a line <of text>\n\x1b[31mred\x1b[0m')],
        [dict(output_type='display_data', data={'image/png': png(500, 300), 'text/plain': '<Figure>'})],
        [dict(output_type='display_data', data={'image/png': png(1400, 300), 'text/plain': '<Figure>'})],
        [dict(output_type='display_data', data={'text/html': '<code>a bar</code>', 'text/plain': 'a bar'})],
        [dict(output_type='execute_result', data={'text/plain': '42'})],
        [dict(output_type='error', ename='ValueError', evalue='no', traceback=[])],
    ]
    cells = [cell for cell in notebook['cells'] if cell['cell_type'] == 'code'
             and not {'setup', 'section'} & set(cell['metadata'].get('tags', []))]
    for cell, outputs in zip(cells, itertools.cycle(kinds)):
        cell['outputs'] = outputs
    return notebook


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    """The folder of a whole site."""
    for name in ('markdown_it', 'mdit_py_plugins', 'py_mini_racer', 'jupytext'):
        pytest.importorskip(name, reason=f'{name} is missing: pip install -r requirements-site.txt')
    for pinned in builder.PACKAGES.values():
        package(*pinned)
    folder = tmp_path_factory.mktemp('site') / 'site'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, 'executed', lambda name, framework, *_: with_outputs(notebooks.build(name, framework)))
        assert builder.build_site(folder, mode='full', say=lambda text: None) == []
    return folder


def pages(folder):
    return sorted(folder.rglob('*.html'))


def plain(text):
    """HTML without its tags."""
    return html.unescape(re.sub(r'<[^>]*>', '', text))


# ---- As text

def test_a_note_on_every_section_that_differs():
    """What changed, and why, for each natural pair: no section forgotten, and none that is the same."""
    for a, b in builder.natural_pairs():
        diff = compare.section_diff(ROOT / f'{a}.py', ROOT / f'{b}.py')
        differing = {section.name for section in diff.sections if not section.identical}
        assert set(builder.notes_of(a, b)) == differing, (a, b)
    assert builder.notes_of('vpg_torch', 'sac_torch') == builder.notes_of('vpg_torch', 'ppo_tf1') == {}


def test_matrix_leads_to_the_right_pair(site):
    """Every cell: the number that tools.sections counts, and the page of its row and column."""
    files, index = algorithm_files(), (site / 'index.html').read_text()
    rows = re.findall(r'<th scope="row">(\w+)</th>(.*?)</tr>', index, flags=re.DOTALL)
    assert [name for name, _ in rows] == files
    for a, row in rows:
        cells = re.findall(r'<td.*?</td>', row)
        for b, cell in zip(files, cells, strict=True):
            if a != b:
                address = re.search(r'href="(.*?)"', cell)[1]
                pair = [ROOT / f'{name}.py' for name in files if name in (a, b)]
                assert plain(cell) == str(changed_lines(*pair)), (a, b)
                heading = plain(re.search(r'<h1>.*?</h1>', (site / address).read_text())[0])
                assert set(heading.split(' | ')) == {f'{a}.py', f'{b}.py'}


def test_links_resolve(site):
    """Links within the site, anchors included; and nothing but links leads out of it."""
    ids = {path: set(re.findall(r' id="(.*?)"', path.read_text())) for path in pages(site)}
    for path in pages(site):
        for attribute, address in re.findall(r' (href|src)="(.*?)"', path.read_text()):
            address, _, anchor = html.unescape(address).partition('#')
            if address.startswith('data:') or attribute == 'href' and address.startswith('https://'):
                continue
            target = (path.parent / address).resolve() if address else path
            assert target.is_file() and site in target.parents, f'{path.name}: {address}'
            assert not anchor or anchor in ids[target], f'{path.name}: {address}#{anchor}'


def test_no_scripts_and_nothing_from_elsewhere(site):
    for path in pages(site):
        text = path.read_text()
        assert not re.search(r'<script|<iframe|\son\w+="|javascript:', text), path
        assert not re.search(r'<(?:link|img)[^>]*(?:href|src)="(?:https?:)?//', text), path
    assert all('//' not in address for css in site.rglob('*.css')
               for address in re.findall(r'url\((.*?)\)', css.read_text()))


def test_annotated_page_is_the_file(site):
    """All lines of the file but the markers of sections, once and in order, however the notes cut them."""
    for path in (site / 'annotated').glob('*.html'):
        if path.stem in algorithm_files():
            shown = re.findall(r'<span class="number">(\d+)</span><div class="code"[^>]*>(.*?)</div>', path.read_text())
            expected, number = [], 0
            for text in split(ROOT / f'{path.stem}.py').values():
                expected += [(str(number + i), line) for i, line in enumerate(text.rstrip('\n').split('\n'), start=1)
                             if not line.startswith('# %% ')]
                number += text.count('\n')
            assert [(number, plain(line)) for number, line in shown] == expected, path


def test_notes_are_level_with_their_lines(site):
    """A note stands in the row that begins with the line it quotes."""
    found = 0
    for path in (site / 'annotated').glob('*.html'):
        parts = path.read_text().split('<div class="pair part')[1:]
        for part in parts:
            line = re.search(r'<div class="code"[^>]*>(.*?)</div>', part)
            for quote in re.findall(r'<div class="annotation"><p><code>(.*?)</code>', part):
                assert html.unescape(quote) in plain(line[1]), path
                found += 1
    assert found > 20 or not notebooks.names()


def test_notes_are_parsed():
    text = '- `a = b[0]`: why\n  it is so, see `c`.\n- `` x `y` ``: and this'
    assert builder.parse_notes(text) == [('a = b[0]', '`a = b[0]`: why\n  it is so, see `c`.'),
                                         ('x `y`', '`` x `y` ``: and this')]


# ---- Building

def test_package_with_another_hash_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(builder.urllib.request, 'urlopen', lambda *_, **__: io.BytesIO(b'something else'))
    with pytest.raises(ValueError, match='its hash differs'):
        builder.package('katex', '0', 'abc=', tmp_path)
    assert not list(tmp_path.rglob('*.js'))


def test_executed_notebooks_are_kept(tmp_path, monkeypatch):
    """A second build runs nothing; a change of the notebook, or of the mode, runs it again."""
    source, runs = ['print(1)'], []
    monkeypatch.setattr(notebooks, 'build', lambda name, framework: dict(cells=list(source)))
    monkeypatch.setattr(notebooks, 'execute', lambda notebook, fast: runs.append(fast) or dict(notebook, done=True))
    for _ in range(2):
        assert builder.executed('ppo', 'torch', 'full', tmp_path) == dict(cells=['print(1)'], done=True)
    assert runs == [False]
    builder.executed('ppo', 'torch', 'fast', tmp_path)
    source.append('print(2)')
    builder.executed('ppo', 'torch', 'full', tmp_path)
    assert runs == [False, True, False]
    assert 'done' not in builder.executed('ppo', 'torch', None, tmp_path)


def test_a_notebook_that_fails_is_told(tmp_path, monkeypatch):
    """Its page is there, without outputs, and the command's status says so."""
    def execute(notebook, fast):
        raise RuntimeError('line one\nthe claim is not true')
    said = []
    monkeypatch.setattr(notebooks, 'build', lambda name, framework: dict(cells=[framework]))
    monkeypatch.setattr(notebooks, 'execute', execute)
    done, failed = builder.run_notebooks(['ppo'], 'full', 1, tmp_path, said.append)
    assert failed == ['ppo_torch', 'ppo_tf1'] and done['ppo', 'tf1'] == dict(cells=['tf1'])
    assert 'the claim is not true' in said[0]
    monkeypatch.setattr(builder, 'build_site', lambda *_: failed)
    assert builder.main(['-o', str(tmp_path / 'new')]) == 1


def test_other_folders_are_not_replaced(tmp_path, capsys):
    (tmp_path / 'thesis.tex').write_text('')
    with pytest.raises(SystemExit):
        builder.main(['-o', str(tmp_path)])
    assert 'something other than a site' in capsys.readouterr().err and (tmp_path / 'thesis.tex').exists()


def test_mathematics_with_a_mistake_is_an_error(site):
    from py_mini_racer import MiniRacer
    with MiniRacer() as engine:
        text = builder.Text(package(*builder.PACKAGES['katex']), engine)
        assert text.inline('$x^2$').startswith('<span class="math inline"><span class="katex">')
        with pytest.raises(Exception, match='ParseError'):
            text('$$\n\\frac{1\n$$')


# ---- The validator

def test_html_is_valid(site):
    """By the Nu checker, the one behind validator.w3.org."""
    if not shutil.which('java'):
        pytest.skip('the HTML validator needs java')
    jar = next(package(*VNU).rglob('vnu.jar'))
    result = subprocess.run(['java', '-Xss16m', '-jar', jar, '--errors-only', '--format', 'gnu', *pages(site)],
                            capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[:3000]


# ---- The browser

@pytest.fixture(scope='module')
def browser():
    """A headless Chromium: the system's, or Playwright's own."""
    api = pytest.importorskip('playwright.sync_api', reason='playwright is missing: see requirements-site.txt')
    with api.sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, BROWSERS)), playwright.chromium.executable_path)
        if not Path(path).exists():
            pytest.skip('no browser: apt-get install chromium, or playwright install chromium')
        chromium = playwright.chromium.launch(executable_path=path, args=['--no-sandbox'])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(site, browser):
    """visit(address, width, scheme) -> the page in the browser."""
    opened = []

    def go(address, width=1440, scheme='light'):
        opened.append(browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme))
        opened[-1].goto((site / address).as_uri())
        return opened[-1]
    yield go
    for page in opened:
        page.close()


def some_pages(site):
    """One page of each kind."""
    annotated = sorted((site / 'annotated').glob('*_torch.html'))[:1]
    return ['index.html', 'results.html', 'speed.html', 'environments.html', 'benchmarks.html',
            'diff/ddpg_torch--td3_torch.html', 'diff/ppo_torch--ppo_tf1.html',
            *(str(path.relative_to(site)) for path in annotated)]


def test_every_page_loads_on_a_phone(site, browser):
    """No error, no request to anywhere else, mathematics that is seen, and no sideways scrolling, all folds open."""
    page, problems = browser.new_page(viewport=dict(width=390, height=844)), []
    page.on('console', lambda message: problems.append(message.text) if message.type == 'error' else None)
    page.on('pageerror', lambda error: problems.append(str(error)))
    page.on('requestfailed', lambda request: problems.append(request.url))
    page.on('request', lambda request: None if request.url.startswith((site.as_uri(), 'data:')) else
            problems.append(request.url))
    for path in pages(site):
        page.goto(path.as_uri())
        seen = page.evaluate('''async () => {
            for (const fold of document.querySelectorAll('details')) fold.open = true;
            await document.fonts.ready;
            const boxes = [...document.querySelectorAll('.katex-html')].map(x => x.getBoundingClientRect());
            const fonts = [...document.fonts].filter(x => x.status == 'loaded').map(x => x.family);
            return {width: document.documentElement.scrollWidth, maths: boxes.length,
                    hidden: boxes.filter(box => box.width < 2 || box.height < 5).length, fonts: fonts};
        }''')
        assert seen['width'] <= 390, f'{path.name} is {seen["width"]} pixels wide'
        assert not seen['hidden'] and 'Sans' in seen['fonts'], path.name
        assert path.parent.name != 'annotated' or seen['maths'] and 'KaTeX_Math' in seen['fonts'], path.name
    page.close()
    assert problems == []


def test_folds_open(visit):
    page = visit('diff/ddpg_torch--td3_torch.html')
    buffer = page.locator('#buffer')
    assert not buffer.locator('.row').first.is_visible()                        # identical: folded
    buffer.locator('summary').click()
    assert buffer.locator('.row').first.is_visible()
    fold = page.locator('#update .fold').first
    assert page.locator('#update > details > .row').first.is_visible() and not fold.locator('.row').first.is_visible()
    fold.locator('summary').click()
    assert fold.locator('.row').first.is_visible()


def test_the_way_through_the_site(visit):
    """From the matrix to a pair, on to a section of an annotated page, and to its twin."""
    page = visit('index.html')
    page.get_by_label('td3_torch and ddpg_torch:').click()
    assert page.locator('h1').inner_text() == 'ddpg_torch.py | td3_torch.py'
    assert 'three changes' in page.locator('#docstring .note').inner_text()
    if 'ppo' in notebooks.names():
        page = visit('annotated/ppo_torch.html')
        page.get_by_role('link', name='TensorFlow 1', exact=True).click()
        assert page.url.endswith('ppo_tf1.html') and 'setup_tf_for_mpi' in page.locator('main').inner_text()
        page.get_by_role('link', name='beside ppo_torch').nth(3).click()
        assert '/diff/ppo_torch--ppo_tf1.html#' in page.url


def test_notes_are_seen_beside_their_lines(site, visit):
    """In two columns at the same height on a wide screen; on a phone, above the lines."""
    address = next((path for path in some_pages(site) if path.startswith('annotated')), None)
    if not address:
        pytest.skip('there is no walkthrough yet')
    places = '''() => [...document.querySelectorAll('.pair.part:has(.annotation)')].map(part => {
        const [note, line] = ['.annotation', '.line'].map(x => part.querySelector(x).getBoundingClientRect());
        return [note.top, note.right, note.bottom, line.top, line.left]; })'''
    wide = visit(address).evaluate(places)
    assert wide and all(abs(top - line) < 30 and right <= left for top, right, _, line, left in wide)
    narrow = visit(address, width=390).evaluate(places)
    assert narrow and all(bottom <= line for _, _, bottom, line, _ in narrow)


def test_prints_in_light_colours(visit):
    page = visit('diff/ddpg_torch--td3_torch.html', scheme='dark')
    colour = 'getComputedStyle(document.body).backgroundColor'
    assert page.evaluate(colour) != 'rgb(255, 255, 255)'
    page.emulate_media(media='print')
    assert page.evaluate(colour) == 'rgb(255, 255, 255)'
    assert page.pdf()[:5] == b'%PDF-'


@pytest.mark.parametrize('width, scheme', [(1440, 'light'), (390, 'dark')])
def test_accessibility(site, visit, width, scheme):
    """axe-core finds nothing: contrast, names, landmarks, reachability by keyboard."""
    script = (package(*AXE) / 'axe.min.js').read_text()
    for address in some_pages(site):
        page = visit(address, width, scheme)
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        page.evaluate(script)
        found = page.evaluate('axe.run({resultTypes: ["violations"]})')['violations']
        assert not found, [(address, rule['id'], rule['help'], rule['nodes'][0]['html'][:200],
                            rule['nodes'][0].get('failureSummary', '')[:300]) for rule in found]
