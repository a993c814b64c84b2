"""The algorithm files repeat each other exactly where they should, and differ by no more lines than they must."""
import ast
import shutil

import pytest

from tools import sections
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT, SECTIONS, SHARED, TWINS, algorithm_files, algorithm_of, split

FILES = algorithm_files()
FAMILIES = ('vpg', 'ppo', 'trpo'), ('ddpg', 'td3', 'sac')

# Changed code lines from one file to another: they may only become fewer. `python -m tools.sections --budgets` counts.
BUDGETS = {
    ('vpg_torch', 'ppo_torch'): 25,
    ('ppo_torch', 'trpo_torch'): 79,
    ('ddpg_torch', 'td3_torch'): 40,
    ('td3_torch', 'sac_torch'): 92,
    ('vpg_tf1', 'ppo_tf1'): 27,
    ('ppo_tf1', 'trpo_tf1'): 89,
    ('ddpg_tf1', 'td3_tf1'): 48,
    ('td3_tf1', 'sac_tf1'): 100,
    ('vpg_torch', 'vpg_tf1'): 180,
    ('ppo_torch', 'ppo_tf1'): 198,
    ('trpo_torch', 'trpo_tf1'): 218,
    ('ddpg_torch', 'ddpg_tf1'): 147,
    ('td3_torch', 'td3_tf1'): 171,
    ('sac_torch', 'sac_tf1'): 187,
}


def path_of(name):
    return ROOT / f'{name}.py'


def existing(*names):
    """Skip the test unless the files exist."""
    if missing := set(names) - set(FILES):
        pytest.skip(f'no {", ".join(sorted(missing))} yet')


def parameters(name):
    """{parameter of the training function: its line, comment included}"""
    text = split(path_of(name))['Training']
    args = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)).args
    return {arg.arg: text.splitlines()[arg.lineno - 1] for arg in args.args}


@pytest.fixture
def copies(tmp_path):
    """The algorithm files, repaired, to be damaged."""
    for name in FILES:
        shutil.copy(path_of(name), tmp_path)
    sections.repair(tmp_path)
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def damage(folder, name, piece):
    """Change the last line of a piece."""
    path, algorithm = folder / f'{name}.py', algorithm_of(name)
    file = split(path)
    text = sections.get_piece(file, piece, algorithm)
    sections.put_piece(file, piece, algorithm, text.rstrip('\n') + '  # damaged\n')
    path.write_text(''.join(file.values()))


def present(row):
    """Does any file have what a row of the table, as sections.shared gives it, speaks of?"""
    piece, owner, copies = row
    return any(sections.get_piece(split(path_of(name)), piece, algorithm_of(name)) for name in [owner, *copies])


# The files as they are.

@pytest.mark.parametrize('name', FILES)
def test_same_sections_in_the_same_order(name):
    assert tuple(split(path_of(name))) == SECTIONS


@pytest.mark.parametrize('name', FILES)
def test_sections_are_the_whole_file(name):
    assert ''.join(split(path_of(name)).values()) == path_of(name).read_bytes().decode()


@pytest.mark.parametrize('name', FILES)
def test_short_files_and_lines(name):
    lines = path_of(name).read_text().splitlines()
    assert len(lines) <= 400
    assert [(row, line) for row, line in enumerate(lines, 1) if len(line) > 120] == []


def test_shared_pieces_are_equal():
    drift = [f'{piece} in {copy} differs from {owner}' for piece, owner, copy, *_ in sections.check()]
    assert drift == [], 'python -m tools.sections --check shows the lines, --repair copies the owner'


def test_whatever_is_equal_is_in_the_table():
    assert sections.unlisted() == [], 'rows to be added to SHARED in tools/sections.py'


def test_every_row_of_the_table_speaks_of_something():
    rows = list(sections.shared())
    assert {row[0] for row in rows} == {row[0] for row in rows if present(row)}


def test_twins_share_buffer_evaluation_loop_and_command_line():
    for piece in 'Buffer', 'Evaluation', 'Training._algorithm_.body', 'Command line':
        rows = [algorithms.split() for name, algorithms, extent in SHARED if (name, extent) == (piece, TWINS)]
        assert sorted(sum(rows, [])) == sorted(ALGORITHMS)


@pytest.mark.parametrize('family', FAMILIES, ids='-'.join)
def test_a_parameter_is_the_same_line_in_every_file_of_a_family(family):
    seen = {}
    for name in FILES:
        if algorithm_of(name) in family:
            for parameter, line in parameters(name).items():
                if parameter != 'actor_critic':
                    assert line == seen.setdefault(parameter, line), name


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_twins_have_the_same_parameters(algorithm):
    twins = [f'{algorithm}_{framework}' for framework in FRAMEWORKS]
    existing(*twins)
    assert list(parameters(twins[0])) == list(parameters(twins[1]))


# What differs.

@pytest.mark.parametrize('pair', BUDGETS, ids='-'.join)
def test_changed_code_lines(pair):
    existing(*pair)
    changed = sections.changed_lines(*map(path_of, pair))
    assert changed <= BUDGETS[pair], f'python -m tools.sections --diff {" ".join(pair)} shows them'
    assert changed == BUDGETS[pair], f'better than before: lower the budget of {pair} to {changed}'


def test_every_pair_has_a_budget():
    assert [pair for pair in sections.pairs() if pair not in BUDGETS] == []


def test_changed_lines_are_those_of_code(tmp_path):
    a, b = tmp_path / 'vpg_torch.py', tmp_path / 'ppo_torch.py'
    a.write_text('"""A."""\nx = "#"    # one\n\ndef vpg():\n    """B."""\n    return VPGBuffer(x)\n')
    b.write_text('"""C.\n"""\nx = "#"\ndef ppo():\n    if x:    # two\n        return PPOBuffer(x)\n    y = 1\n')
    assert sections.code_diff(a, b) == ['+ if x:', '+ y = 1']
    assert sections.changed_lines(a, b) == 2


# The tool.

def test_neutral_names_the_algorithm_and_nothing_else():
    text = 'ppo(PPOBuffer) ppo_torch.py PPO ppos vpg_torch.py'
    assert sections.neutral(text, 'ppo') == \
        '_algorithm_(_AlgorithmBuffer_) _algorithm__torch.py _ALGORITHM_ ppos vpg_torch.py'
    assert sections.named(sections.neutral(text, 'ppo'), 'ppo') == text
    assert sections.named(sections.neutral('trpo(GAEBuffer)', 'trpo'), 'vpg') == 'vpg(VPGBuffer)'


@pytest.mark.parametrize('name', FILES)
def test_neutral_can_be_undone(name):
    text = path_of(name).read_text()
    assert sections.named(sections.neutral(text, algorithm_of(name)), algorithm_of(name)) == text


def test_repair_leaves_good_files_alone(copies):
    before = contents(copies)
    assert sections.repair(copies) == []
    assert contents(copies) == before


def test_a_damaged_copy_is_reported(copies):
    damage(copies, 'sac_torch', 'Training._algorithm_.body')
    assert [drift[:3] for drift in sections.check(copies)] == [('Training._algorithm_.body', 'ddpg_torch', 'sac_torch')]


def test_damaged_copies_are_repaired(copies):
    before, damaged = contents(copies), set()
    for piece, owner, names in filter(present, sections.shared(copies)):
        for name in names:
            damage(copies, name, piece)
            damaged.add((piece, owner, name))
    assert {drift[:3] for drift in sections.check(copies)} >= damaged
    sections.repair(copies)
    assert contents(copies) == before


def test_a_broken_section_is_repaired(copies):
    before = contents(copies)
    path = copies / 'td3_torch.py'
    path.write_text(path.read_text().replace('class ReplayBuffer:', 'class ReplayBuffer'))
    assert [drift[:3] for drift in sections.repair(copies)] == [('Buffer', 'ddpg_torch', 'td3_torch')]
    assert contents(copies) == before


def test_a_change_of_the_owner_reaches_every_copy_at_once(copies):
    for piece, owner, _ in filter(present, sections.shared(copies)):
        if owner.endswith('torch'):
            damage(copies, owner, piece)
    sections.repair(copies)
    assert sections.check(copies) == []
    after = contents(copies)
    assert sections.repair(copies) == []
    assert contents(copies) == after


def test_missing_pieces_are_reported_and_not_invented(copies):
    path = copies / 'td3_torch.py'
    path.write_text(path.read_text().replace('class MLPQFunction', 'class QFunction'))
    before = contents(copies)
    piece, owner, copy, text, found = sections.check(copies)[-1]
    assert (piece, owner, copy, found) == ('Networks.MLPQFunction', 'ddpg_torch', 'td3_torch', None) and text
    assert sections.repair(copies) == [] and contents(copies) == before


def test_command(capsys):
    sections.main(['ppo_torch', 'Command line'])
    assert capsys.readouterr().out == split(path_of('ppo_torch'))['Command line']
    sections.main(['ppo_torch.py', 'Training.ppo.body'])
    assert capsys.readouterr().out.endswith('    return agent\n')
    sections.main(['--diff', 'vpg_torch', 'ppo_torch'])
    changed = sections.changed_lines(path_of('vpg_torch'), path_of('ppo_torch'))
    assert capsys.readouterr().out.endswith(f'\n{changed} changed code lines\n')
    for wrong in ['pro_torch'], ['ppo_torch', 'Loss']:
        with pytest.raises(SystemExit, match=f'no .*{wrong[-1]}'):
            sections.main(wrong)
