"""The command line of an algorithm file: what it takes, what it refuses and how, and what it shows."""
import functools
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from torch import nn

import ppo_torch
from common import run, run_utils
from common.errors import UserError
from common.run_utils import command_line, default_arguments

ROOT = Path(__file__).parent.parent
ENV = dict(os.environ, PYTHONPATH=str(ROOT))
CARTPOLE = '--env CartPole-v1 '


class Networks:
    def __init__(
        self,
        observation_space,
        action_space,
        rng,
        hidden_sizes=(64, 64),
        activation=nn.Tanh,
        output=None,
        scale=0.5,          # of the weights
    ):
        pass


def train(
    env_fn,                     # makes the environment
    actor_critic=Networks,      # the networks
    ac_kwargs=dict(),           # their arguments
    seed=0,                     # of all random numbers
    steps_per_epoch=4000,       # steps of all processes (a comma, and a bracket, are no trouble)
    epochs=50,                  # epochs
    gamma=0.99,                 # discount
    alpha=0.2,                  # temperature, or 'auto' to have it tuned
    algo='trpo',                # 'trpo' or 'npg'
    size=int(1e6),              # a large whole number
    shape=dict(a=(1, 2)),       # not a flag's kind, but its brackets must not confuse
    normalize=False,            # a switch
    on=True,                    # another
    shift=0.,                   # a number that may be negative
    logger_kwargs=dict(),       # where results go
):
    train.called = dict(locals())


def called(line):
    """What the command line makes train be called with."""
    train.called = None
    command_line(train, line.split())
    return train.called


def refused(capsys, function, line, status=2):
    """The line with which a command line is refused. It must be one line, and nothing may have been created."""
    with pytest.raises(SystemExit) as stop:
        command_line(function, line.split())
    told = capsys.readouterr()
    assert stop.value.code == status and told.out == '' and told.err.count('\n') == 1, told
    assert os.listdir() == []
    name, _, message = told.err.strip().partition(': ')
    assert name == Path(inspect.getsourcefile(function)).name
    return message


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---- What is refused

@pytest.mark.parametrize('line, message', [
    ('', 'which environment?'),
    ('--epochs 3', 'which environment?'),
    ('CartPole-v1', 'unknown argument CartPole-v1'),
    ('--env', 'argument --env/--env_name: expected at least one argument'),
    ('--evn CartPole-v1', 'unknown argument --evn (nearest: --env'),
    ('--env CartPol-v1', 'unknown environment CartPol-v1 (nearest: CartPole-v1, '),
    ('--env cartpole-v1', 'unknown environment cartpole-v1 (nearest: CartPole-v1, '),
    ('--env CartPole-v1 Pendulun-v1', 'unknown environment Pendulun-v1 (nearest: Pendulum-v1'),
    ('--env Zzzzzzz-v9', 'unknown environment Zzzzzzz-v9'),
    ('--env no_such_module:Env-v0', "environment no_such_module:Env-v0: ModuleNotFoundError: No module named 'no_such"),
    ('--env Pendulum-v0', 'environment Pendulum-v0 (Pendulum-v1 is its newest version): DeprecatedEnv: '),
    ('--env HalfCheetah-v2', 'environment HalfCheetah-v2 (HalfCheetah-v5 is its newest version): ImportError: '),
    ('--env ALE/Pong-v9', 'unknown environment ALE/Pong-v9; if a package registers it, put its module before the name'),
    *((f'--env {name}', f'environment {name}: that is not a name such as Env-v0 or module:Env-v0')
      for name in (':X', 'a:b:c', '.x:Y-v0', 'x:', ':')),
    (CARTPOLE + '--env_kwargs x', 'argument --env_kwargs: x is not a dictionary of arguments such as'),
    (CARTPOLE + "--env_kwargs {'a':1}", 'environment CartPole-v1: TypeError: CartPoleEnv.__init__() got an unexpected'),
    (CARTPOLE + '--wrapper Nope', "wrapper Nope: AttributeError: module 'gymnasium.wrappers' has no attribute 'Nope'"),
    (CARTPOLE + '--wrapper ClipReward(os.sep)', 'wrapper ClipReward(os.sep): ValueError: its arguments have to be'),
    (CARTPOLE + '--wrapper TransformReward', 'wrapper TransformReward: TypeError: TransformReward.__init__() missing'),
    (CARTPOLE + '--l 2', '--l is not needed: --hid 64,64 gives the size of each hidden layer'),
    (CARTPOLE + '--exp_name ..', '--exp_name ..: expected a name, not a path'),
    (CARTPOLE + '--epoch 3', 'unknown argument --epoch (nearest: --epochs); --help shows them all'),
    (CARTPOLE + '-epochs 3', 'unknown argument -epochs (nearest: --epochs); --help'),
    (CARTPOLE + '--steps 3', 'unknown argument --steps'),                               # no abbreviations
    (CARTPOLE + '--actor_critic x', 'unknown argument --actor_critic'),
    (CARTPOLE + '--logger_kwargs x', 'unknown argument --logger_kwargs'),
    (CARTPOLE + '--gamma abc', 'argument --gamma: abc is not a number from 0 to 1'),
    (CARTPOLE + '--gamma 1.5', 'argument --gamma: 1.5 is not a number from 0 to 1'),
    (CARTPOLE + '--gamma -0.1', 'argument --gamma: -0.1 is not a number from 0 to 1'),
    (CARTPOLE + '--gamma -1e-3', 'argument --gamma: -1e-3 is not a number from 0 to 1'),
    (CARTPOLE + '--gamma 1e999', 'argument --gamma: 1e999 is not a number'),
    (CARTPOLE + '--gamma True', 'argument --gamma: True is not a number'),
    (CARTPOLE + '--gamma 0.9 x', 'argument --gamma: x is not a number'),
    (CARTPOLE + '--gamma __import__("os").getpid()', 'argument --gamma: __import__("os").getpid() is not a number'),
    (CARTPOLE + '--pi_lr -1', 'argument --pi_lr: -1 is not a number from 0 to 1'),
    (CARTPOLE + '--epochs 2.5', 'argument --epochs: 2.5 is not a whole number of at least 1'),
    (CARTPOLE + '--epochs -1', 'argument --epochs: -1 is not a whole number of at least 1'),
    (CARTPOLE + '--epochs 0', 'argument --epochs: 0 is not a whole number of at least 1'),
    (CARTPOLE + '--epochs 1e999', 'argument --epochs: 1e999 is not a whole number'),
    (CARTPOLE + '--seed', 'argument --seed: expected at least one argument'),
    (CARTPOLE + '--seed -1', 'argument --seed: -1 is not a whole number of at least 0'),
    (CARTPOLE + '--seed 1 --seed 2', '--seed is given twice: put all its values after one flag'),
    (CARTPOLE + '--env_name CartPole-v0', '--env/--env_name is given twice'),
    (CARTPOLE + '--seed 1 2 1', 'two runs would share the folder data/ppo_torch/ppo_torch_s1: is a value given twice?'),
    (CARTPOLE + '--cpu 0', "argument --cpu/--num_cpu: 0 is not a whole number of at least 1 or 'auto'"),
    (CARTPOLE + '--cpu all', "argument --cpu/--num_cpu: all is not a whole number of at least 1 or 'auto'"),
    (CARTPOLE + '--cpu 1 2', 'unknown argument 2'),
    (CARTPOLE + '--jobs 0', 'argument --jobs: 0 is not a whole number of at least 1'),
    (CARTPOLE + '--hid x', 'argument --hid/--ac_kwargs:hidden_sizes: x is not a list of layer sizes such as [64,64]'),
    (CARTPOLE + '--hid 64 64', '--hid 64 64 would be several runs: write 64,64 for two layers'),   # no grid by accident
    (CARTPOLE + '--hid [64,0]', 'argument --hid/--ac_kwargs:hidden_sizes: [64,0] is not a list'),
    (CARTPOLE + '--hid []', 'argument --hid/--ac_kwargs:hidden_sizes: [] is not a list'),
    (CARTPOLE + '--hid {64:64}', 'argument --hid/--ac_kwargs:hidden_sizes: {64:64} is not a list'),
    (CARTPOLE + '--act rleu', 'rleu is not an activation function (nearest: relu'),
    (CARTPOLE + '--act nn.Linear', 'nn.Linear is not an activation function'),
    (CARTPOLE + '--act Threshold', 'Threshold is not an activation function'),     # which needs arguments
    (CARTPOLE + '--resume maybe', 'argument --resume: maybe is not true or false'),
    (CARTPOLE + '--resume --overwrite', '--resume continues a run and --overwrite replaces it'),
    (CARTPOLE + '--resume --datestamp', '--resume needs the date and time in the name of the run'),
    (CARTPOLE + '--exp_name a/b', '--exp_name a/b: expected a name, not a path'),
    (CARTPOLE + '--cpu 3 --steps_per_epoch 2 --seed 0 1', '--steps_per_epoch 2 is too few for 3 processes'),
])
def test_bad_input(capsys, monkeypatch, line, message):
    monkeypatch.setattr(run, 'run_here', None)              # if it is not refused, it fails rather than trains
    monkeypatch.setattr(run_utils, 'run_experiments', None)
    assert refused(capsys, ppo_torch.ppo, line).startswith(f'error: {message}')


def test_bad_choice(capsys):
    assert refused(capsys, train, CARTPOLE + '--algo trp') == "error: argument --algo: trp is not 'trpo' or 'npg'"
    assert refused(capsys, train, CARTPOLE + '--alpha auo') == (
        "error: argument --alpha: auo is not a number of at least 0 or 'auto'")


class TextEnv(gym.Env):
    observation_space = gym.spaces.Sequence(gym.spaces.Box(-1, 1, (2,)))
    action_space = gym.spaces.Discrete(2)


def test_environments_that_do_not_fit(capsys):
    gym.register('TextObs-v0', TextEnv)
    try:
        message = refused(capsys, ppo_torch.ppo, '--env TextObs-v0')
        assert message.startswith('error: environment TextObs-v0: observations of type Sequence are not supported')
    finally:
        del gym.registry['TextObs-v0']

    def off_policy(env_fn, replay_size=1000, logger_kwargs=dict()):
        raise AssertionError('must not be called')
    message = refused(capsys, off_policy, CARTPOLE)
    assert message.startswith('error: environment CartPole-v1: actions of type Discrete are not supported here')


def test_mpirun_and_processes_of_their_own(capsys, monkeypatch):
    monkeypatch.setenv('PMI_SIZE', '4')
    for line in ('--seed 0 1', '--cpu 2', '--print_commands'):
        assert refused(capsys, train, CARTPOLE + line).startswith('error: a grid, and --cpu, start processes of their')


def test_errors_of_the_run_itself(capsys):
    def mistaken(env_fn, logger_kwargs=dict()):
        raise UserError('two\nlines')

    def interrupted(env_fn, logger_kwargs=dict()):
        raise KeyboardInterrupt

    def broken(env_fn, logger_kwargs=dict()):
        raise ZeroDivisionError
    assert refused(capsys, mistaken, CARTPOLE) == 'error: two lines'
    assert refused(capsys, interrupted, CARTPOLE, status=130).startswith('interrupted; the same command with --resume')
    with pytest.raises(ZeroDivisionError):              # a bug keeps its traceback
        command_line(broken, CARTPOLE.split())


def test_one_line_from_the_script_itself():
    command = [sys.executable, ROOT / 'ppo_torch.py', '--env', 'CartPol-v1']
    done = subprocess.run(command, env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (2, '', 1)
    assert done.stderr.startswith('ppo_torch.py: error: unknown environment CartPol-v1') and os.listdir() == []


TOY = '''
"""A toy: trains nothing, in no time."""
from common.mpi_tools import num_procs, proc_id
from common.run_utils import command_line


def toy(env_fn, seed=0, steps_per_epoch=4, logger_kwargs=dict()):
    if proc_id() == 0:
        print('processes', num_procs())


if __name__ == '__main__':
    command_line(toy)
'''


def test_processes():
    pytest.importorskip('mpi4py')
    Path('toy.py').write_text(TOY)
    mpirun = [Path(sys.executable).parent / 'mpirun', '-np', '3']
    toy = [sys.executable, 'toy.py', *CARTPOLE.split()]

    def result(*command):
        done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.split('\n')[0], done.stderr
    assert result(*toy) == (0, 'processes 1', '')
    assert result(*toy, '--cpu', '2') == (0, 'processes 2', '')
    assert result(*mpirun, *toy) == (0, 'processes 3', '')
    too_few = 'toy.py: error: --steps_per_epoch 2 is too few for {} processes: they share it\n'
    assert result(*mpirun, *toy, '--steps_per_epoch', '2') == (2, '', too_few.format(3))
    assert result(*toy, '--cpu', '4', '--steps_per_epoch', '2') == (2, '', too_few.format(4))
    unknown = 'toy.py: error: unknown argument --epoch; --help shows them all\n'
    assert result(*mpirun, *toy, '--epoch', '2') == (2, '', unknown)
    assert os.listdir() == ['toy.py']


# ---- What is understood

@pytest.mark.parametrize('line, key, value', [
    ('', 'seed', None),                                                                 # left to the function
    ('--seed 3', 'seed', 3),
    ('--seed=3', 'seed', 3),
    ('--gamma 1', 'gamma', 1),
    ('--gamma 9e-1', 'gamma', 0.9),
    ('--size 1e3', 'size', 1000),
    ('--alpha 0.5', 'alpha', 0.5),
    ('--alpha auto', 'alpha', 'auto'),
    ('--algo npg', 'algo', 'npg'),
    ('--normalize', 'normalize', True),
    ('--normalize true', 'normalize', True),
    ('--on False', 'on', False),
    ('--hid 32,16', 'ac_kwargs', dict(hidden_sizes=(32, 16))),
    ('--hid [32]', 'ac_kwargs', dict(hidden_sizes=[32])),
    ('--ac_kwargs:hidden_sizes [32]', 'ac_kwargs', dict(hidden_sizes=[32])),
    ('--act relu', 'ac_kwargs', dict(activation=nn.ReLU)),
    ('--act nn.ELU', 'ac_kwargs', dict(activation=nn.ELU)),
    ('--act torch.nn.Softplus --hid 8,8', 'ac_kwargs', dict(activation=nn.Softplus, hidden_sizes=(8, 8))),
    ('--act leaky_relu', 'ac_kwargs', dict(activation=nn.LeakyReLU)),
    ('--act GELU', 'ac_kwargs', dict(activation=nn.GELU)),
    ('--act identity', 'ac_kwargs', dict(activation=nn.Identity)),
    ('--ac_kwargs:scale 2', 'ac_kwargs', dict(scale=2)),
    ('--shift -1e-3', 'shift', -1e-3),
])
def test_values(line, key, value):
    found = called(CARTPOLE + line).get(key)
    default = inspect.signature(train).parameters[key].default
    assert found == (default if value is None else value) and type(found) is type(default if value is None else value)


def test_activations_of_tensorflow():
    """A file with `tf` gets functions of tf.nn, gelu of its second version too, and tf's own, as in its defaults."""
    tf = pytest.importorskip('tensorflow').compat.v1
    train_fn = type(train)(train.__code__, dict(train.__globals__, tf=tf))
    for name, function in {'relu': tf.nn.relu, 'tf.nn.leaky_relu': tf.nn.leaky_relu, 'Softplus': tf.nn.softplus,
                           'identity': tf.identity, 'tanh': tf.tanh, 'GELU': tf.compat.v2.nn.gelu}.items():
        assert run.activation(train_fn, name) is function
    for name in 'tanhh', 'conv2d', 'dropout':
        with pytest.raises(UserError, match=f'^{name} is not an activation function'):
            run.activation(train_fn, name)
    with pytest.raises(UserError, match=r'^rleu is not an activation function \(nearest: relu'):
        run.activation(train_fn, 'rleu')


@pytest.mark.parametrize('name', [name for name, kind in inspect.getmembers(nn, inspect.isclass)
                                  if kind.__module__ == 'torch.nn.modules.activation'])
def test_every_activation_of_pytorch_works_or_is_refused(name):
    try:
        function = run.activation(train, name)
    except UserError:
        assert name in ('GLU', 'Softmax2d', 'Threshold', 'MultiheadAttention')
    else:
        assert function is getattr(nn, name) and function()(torch.zeros(3, 2)).shape == (3, 2)


@pytest.mark.parametrize('name', run.TF_ACTIVATIONS)
def test_every_activation_of_tensorflow_works(name):
    tf = pytest.importorskip('tensorflow').compat.v1
    train_fn = type(train)(train.__code__, dict(train.__globals__, tf=tf))
    with tf.Graph().as_default():
        assert run.activation(train_fn, name)(tf.zeros((3, 2))).shape == (3, 2)


def test_what_the_function_gets():
    found = called(CARTPOLE + '--exp_name mine --seed 7 --data_dir here --keep_all --resume')
    assert isinstance(found['env_fn'], functools.partial) and found['env_fn'].keywords == dict(env_name='CartPole-v1')
    assert found['env_fn']().spec.id == 'CartPole-v1'
    assert found['logger_kwargs'] == dict(
        output_dir='here/mine/mine_s7', exp_name='mine', resume=True, overwrite=False, keep_all=True,
        tensorboard=False, quiet=False, config=dict(env_name='CartPole-v1', algo='test_command_line'))
    assert called(CARTPOLE)['logger_kwargs']['output_dir'] == 'data/test_command_line/test_command_line_s0'


def test_short_flags():
    long = '--env_name CartPole-v1 --ac_kwargs:hidden_sizes [8] --ac_kwargs:activation elu --num_cpu 1 --datestamp'
    found = [called(line) for line in (long, '--env CartPole-v1 --hid [8] --act elu --cpu 1 --dt')]
    for kwargs in found:
        stamped = kwargs.pop('logger_kwargs')['output_dir']
        assert re.fullmatch(r'data/(\d{4}-\d\d-\d\d)_(\w+)/\1_\d\d-\d\d-\d\d-\2_s0', stamped)
        assert kwargs.pop('env_fn').keywords == dict(env_name='CartPole-v1')
    assert found[0] == found[1]


def test_datestamp_of_an_earlier_run():
    folder = called(CARTPOLE + '--exp_name e --resume --datestamp 2030-01-31_12-00-00')['logger_kwargs']['output_dir']
    assert folder == 'data/2030-01-31_e/2030-01-31_12-00-00-e_s0'


def test_environment_from_a_module(monkeypatch):
    Path('my_envs.py').write_text("import gymnasium as gym\n"
                                  "gym.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n")
    monkeypatch.syspath_prepend(os.getcwd())
    assert called('--env my_envs:Mine-v0')['env_fn']().spec.id == 'Mine-v0'
    del gym.registry['Mine-v0']


def test_every_argument_is_a_flag():
    flags = [action.dest for action in run.make_parser(ppo_torch.ppo)._actions if action.dest != 'help']
    arguments = set(inspect.signature(ppo_torch.ppo).parameters)
    assert set(flags) & arguments == arguments - {'env_fn', 'actor_critic', 'ac_kwargs', 'logger_kwargs'}
    assert set(flags) - arguments == {
        'env_name', 'ac_kwargs:hidden_sizes', 'ac_kwargs:activation', 'num_cpu', 'exp_name', 'data_dir', 'datestamp',
        'resume', 'overwrite', 'keep_all', 'tensorboard', 'jobs', 'print_commands', 'env_kwargs', 'wrappers', 'quiet',
        'l'}
    assert len(flags) == len(set(flags))


def test_constructor_arguments_and_wrappers():
    """In each run of a grid: all wrappers, in order, and gymnasium's own by name; modules of the current folder."""
    Path('my_wrappers.py').write_text('import gymnasium as gym\n'
                                      'class Twice(gym.Wrapper):\n'
                                      '    def __init__(self, env, times=2):\n'
                                      '        super().__init__(env)\n'
                                      '        self.times = times\n')
    words = ['--env_kwargs', "{'g': 5}", '--wrapper', 'RescaleObservation(-1, 1)', 'my_wrappers:Twice(times=3)']
    train.called = None
    command_line(train, ['--env', 'Pendulum-v1', *words])
    env, config = train.called['env_fn'](), train.called['logger_kwargs']['config']
    assert env.times == 3 and type(env.env).__name__ == 'RescaleObservation' and env.unwrapped.g == 5
    assert config['env_kwargs'] == dict(g=5) and config['wrappers'] == words[3:]
    grid, _ = run.parse_args(['--env', 'Pendulum-v1', '--seed', '0', '1', *words], train)
    command = run.variant_command(grid, 'x.py', run.run_options(), 'name', grid.variants()[1])
    assert grid.variants()[1]['wrappers'] == words[3:] and run.parse_args(command[2:], train)[0].variants() == [
        dict(grid.variants()[1])]


def test_one_number_is_one_layer():
    assert called(CARTPOLE + '--hid 32')['ac_kwargs']['hidden_sizes'] == (32,)


# ---- Help

def test_comments_behind_arguments():
    found = run.comments(train)
    assert found['env_fn'] == 'makes the environment' and found['logger_kwargs'] == 'where results go'
    assert found['steps_per_epoch'] == 'steps of all processes (a comma, and a bracket, are no trouble)'
    assert set(found) == set(inspect.signature(train).parameters)


def help_page(train_fn, line, capsys):
    with pytest.raises(SystemExit) as stop:
        command_line(train_fn, line.split())
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_help_page(capsys):
    page = help_page(ppo_torch.ppo, '--env CartPole-v1 --help', capsys)
    words = ' '.join(page.split())
    assert ' '.join(ppo_torch.__doc__.split()) in words and os.listdir() == []
    comments = run.comments(ppo_torch.ppo)
    for name, default in default_arguments(ppo_torch.ppo).items():
        if name not in run.NO_FLAGS:
            assert comments[name] and f' --{name} {comments[name]} (default: {default})' in words
    for told in ('--hid, --ac_kwargs:hidden_sizes sizes of the hidden layers (default: [64,64])', '(default: Tanh)',
                 "--cpu, --num_cpu MPI processes of a run, or 'auto' for one per core (default: 1)",
                 '--overwrite replace the run that is in the folder --keep_all', '--env, --env_name environment, by'):
        assert told in words
    assert max(len(line) for line in page.split('\n') if not line.startswith('  ')) <= 80       # pytest's terminal


def test_examples_on_the_help_page_are_right(capsys):
    page = help_page(train, '-h', capsys)
    assert '--ac_kwargs:scale of the weights (default: 0.5)' in ' '.join(page.split())       # from a class's comment
    examples = re.findall(r'^  python test_command_line.py (.*)$', page, flags=re.M)
    assert len(examples) == 3
    for example in examples:
        run.parse_args(shlex.split(example), train)


# ---- python -m common.run

def common_run(line):
    command = [sys.executable, '-m', 'common.run', *line.split()]
    return subprocess.run(command, env=ENV, capture_output=True, text=True)


def test_overview():
    pages = [common_run(line).stdout for line in ('', 'help', '--help')]
    assert pages[0] == pages[1] == pages[2] and 'ppo_torch     Proximal Policy Optimization' in pages[0]
    for name in ['plot', 'test_policy', *(path.stem for path in ROOT.glob('*_torch.py'))]:
        assert f'\n  {name} ' in pages[0]


def test_algorithm_by_name(monkeypatch, capsys):
    done = common_run('ppo --env CartPol-v1')
    assert done.returncode == 2 and done.stderr.startswith('ppo_torch.py: error: unknown environment CartPol-v1')

    monkeypatch.setattr(run, 'ROOT', Path.cwd())
    monkeypatch.setattr(sys, 'argv', [])
    Path('toy_torch.py').write_text(TOY)
    Path('toy_tf1.py').write_text(TOY.replace('processes', 'twin'))
    for name, printed in [('toy', 'processes 1'), ('toy_torch', 'processes 1'), ('toy_tf1', 'twin 1')]:
        run.main([name, *CARTPOLE.split()])
        assert capsys.readouterr().out.startswith(printed)


@pytest.mark.parametrize('line, message', [
    ('pppo', 'unknown command pppo (nearest: '),
    ('ppo_toch --env x', 'unknown command ppo_toch (nearest: ppo_torch'),
    ('plt', 'unknown command plt (nearest: plot'),
    ('xyzxyz', 'unknown command xyzxyz, there are '),
])
def test_misspelt_command(capsys, line, message):
    with pytest.raises(SystemExit) as stop:
        run.main(line.split())
    told = capsys.readouterr().err
    assert stop.value.code == 2 and told.startswith(f'python -m common.run: error: {message}') and told.count('\n') == 1


@pytest.mark.parametrize('module', ['common.run plot', 'tools.plot', 'common.run test_policy', 'tools.test_policy'])
def test_tools_as_commands(module):
    """Spinning Up's users type the one, the layout of this repository suggests the other."""
    done = subprocess.run([sys.executable, '-m', *module.split(), 'nowhere'], env=ENV, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count('\n')) == (2, 1)
    assert done.stderr.startswith(f'{module.replace(".", " ").split()[-1]}: error: ') and 'nowhere' in done.stderr


@pytest.mark.parametrize('tool', ['plot', 'test_policy'])
def test_tools(monkeypatch, tool):
    got = []

    class Tool:
        @staticmethod
        def main(argv):
            got.append(argv)
    monkeypatch.setattr(importlib, 'import_module', {f'tools.{tool}': Tool}.__getitem__)
    run.main([tool, 'data', '-x', 'Epoch'])
    assert got == [['data', '-x', 'Epoch']]


@pytest.mark.parametrize('command', ['help', 'doctor', 'test_policy', 'plot'])
def test_help_fits_the_terminal(command, monkeypatch, capsys):
    """Prose, that is: an indented line, such as an example to be copied, is left as it is."""
    monkeypatch.setenv('COLUMNS', '70')
    if command == 'help':
        run.main(['help'])
    else:
        with pytest.raises(SystemExit):
            importlib.import_module(f'tools.{command}').main(['--help'])
    lines = capsys.readouterr().out.split('\n')
    assert max(len(line) for line in lines if command == 'help' or not line.startswith('    ')) <= 70
