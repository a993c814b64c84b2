# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # MPI: one program, many processes
#
# All programs of this repository can run as several processes that learn together: `mpirun -np 4 python ppo_torch.py`.
# This notebook shows what these processes do. It starts real ones, from these cells, and looks at what each of them
# holds, says, sends and waits for. The functions that it takes apart are those of `common/`, and the cells that show
# them hold their source, line by line.
#
# **Goals.** At the end you can
#
# - say what processes share (nothing) and where they meet (in collectives);
# - predict what sum, average, broadcast, gather and scatter leave in every process;
# - explain why averaging gradients over four processes is one step on a batch four times as large, and what has to be
#   equal everywhere for it to be true;
# - recognise the ways in which parallel programs go wrong: they drift apart, they all do the same work, they hang.
#
# **Prerequisites.** Python with numpy, and the notebook on VPG or PPO: what an epoch and a gradient step are. Nothing
# about parallel programs.
#
# **Time.** One hour with the exercises; all cells together run for about one minute.

# %% tags=["setup"]
# Finds the repository: in this folder, in one above it, in a clone beside this notebook, or where you say it is.
import os
import sys
from pathlib import Path

here = Path.cwd()
places = [Path(os.environ.get('WALKTHROUGH_REPOSITORY', here)).resolve(), here, *here.parents, *sorted(here.glob('*/'))]
repositories = [place for place in places if (place / 'walkthroughs' / 'classroom.py').exists()]
if not repositories:
    raise FileNotFoundError(
        f'The repository that this notebook belongs to is neither in {here} nor above it. Clone it into that folder, '
        'install what it needs (%pip install -r ITS_FOLDER/requirements.txt), then run this cell again. If it is '
        'somewhere else, say where: %env WALKTHROUGH_REPOSITORY=ITS_FOLDER')
sys.path.insert(0, str(repositories[0]))
from walkthroughs import classroom

classroom.begin(None, 'torch')

# %% [markdown]
# ## Four copies of one program
#
# The idea of MPI, the Message Passing Interface, is the opposite of what most people expect. There is no main program
# that hands out work. `mpirun -np 4 python program.py` starts the *same* program four times, from its first line, as
# four processes with a memory of their own. They differ in nothing but a number, their **rank**, from 0 to 3. Whatever
# one of them computes, the others do not see. They meet only where all of them call the same function, a
# **collective**: each brings its numbers, waits for the others, and leaves with the result.
#
# So a parallel program is written as an ordinary program that asks, in a few places, "who am I?" and "what do the
# others say?". That is all there is, and it is why the algorithm files of this repository look as if they knew nothing
# about processes.
#
# In the picture: every process has an environment and networks of its own. The orange box is the only place where they
# touch, and since all start with the same weights and all make the same step, the networks remain copies of each other.

# %%
classroom.diagram(
    boxes=dict(
        env0=(0, 0, 'environment,\nseed', 'env'), play0=(1, 0, 'process 0\nplays'),
        grad0=(2, 0, 'gradient of\nits own data'),
        env1=(0, 1, 'environment,\nseed + 10000', 'env'), play1=(1, 1, 'process 1\nplays'),
        grad1=(2, 1, 'gradient of\nits own data'),
        env2=(0, 2, 'environment,\nseed + 20000', 'env'), play2=(1, 2, 'process 2\nplays'),
        grad2=(2, 2, 'gradient of\nits own data'),
        mean=(3, 1, 'average over\nall processes', 'loss'),
        net=(4, 1, 'the same step,\nso the same weights', 'net'),
    ),
    arrows=[('env0', 'play0'), ('env1', 'play1'), ('env2', 'play2'), ('play0', 'grad0'), ('play1', 'grad1'),
            ('play2', 'grad2'), ('grad0', 'mean'), ('grad1', 'mean'), ('grad2', 'mean'), ('mean', 'net')],
    title='One gradient step of three processes',
)

# %% [markdown]
# ### Starting processes from a notebook
#
# A notebook is one process. To look at many, the next cell defines `on_processes(n, function, ...)`. It writes a small
# program, which imports the functions of `common/mpi_tools.py`, contains the source of your function, and calls it; it
# starts this program with `mpirun -np n`; and it returns the list of what the function returned, one item for each
# process. There is no trick: the function really runs in `n` processes, and it sees nothing of this notebook but what
# you pass to it.

# %%
import functools
import inspect
import os
import pickle
import shutil
import signal
import subprocess
import tempfile
import textwrap

import matplotlib.pyplot as plt
import numpy as np

from common.errors import UserError
from common.stopping import others_expected, processes_started, stop_all_with_one

PROGRAM = '''
import pickle
import numpy as np
from common.mpi_tools import *

{source}

with open({inbox!r}, 'rb') as file:
    arguments = pickle.load(file)
results = gather({name}(*arguments))
if proc_id() == 0:
    with open({outbox!r}, 'wb') as file:
        pickle.dump(results, file)
'''


def on_processes(n, function, *arguments, helpers=(), timeout=100, quiet=False):
    """Run a function of this notebook on n processes; returns the list of their results, None if there are none."""
    here = os.path.dirname(sys.executable)
    mpirun = shutil.which('mpirun', path=here) or shutil.which('mpirun')
    if mpirun is None:
        raise RuntimeError('This page needs mpirun: %pip install mpi4py mpich, then run this cell again.')
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        program, inbox, outbox = (os.path.join(folder, name) for name in ('program.py', 'inbox', 'outbox'))
        source = '\n\n'.join(textwrap.dedent(inspect.getsource(part)) for part in (*helpers, function))
        with open(program, 'w') as file:
            file.write(PROGRAM.format(source=source, name=function.__name__, inbox=inbox, outbox=outbox))
        with open(inbox, 'wb') as file:
            pickle.dump(arguments, file)
        env = dict(os.environ, PYTHONPATH=str(repositories[0]), OMP_NUM_THREADS='1', PYTHONDONTWRITEBYTECODE='1',
                   OMPI_MCA_rmaps_base_oversubscribe='1', PRTE_MCA_rmaps_default_mapping_policy=':oversubscribe')
        run = subprocess.Popen([mpirun, '-np', str(n), sys.executable, program], env=env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        try:
            printed = run.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGTERM)                          # mpirun, and with it all that it started
            try:
                run.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
            print(f'After {timeout:g} seconds they were still waiting, and have been stopped.')
            return None
        if not quiet and printed:
            print(printed.rstrip())
        if not os.path.exists(outbox):
            return None
        with open(outbox, 'rb') as file:
            return pickle.load(file)


def hello():
    print(f'I am process {proc_id()} of {num_procs()}\n', end='', flush=True)       # in one piece
    return proc_id()**2


squares = on_processes(4, hello)
print('What they returned:', squares)
classroom.claim(squares == [0, 1, 4, 9], f'{len(squares)} processes ran the same function, each with its own number')

# %% [markdown]
# Run the cell again, a few times. The *lines* may come in another order, because nobody tells the processes when to
# print; the *list* has always the same order, because `gather` sorts by rank. Whenever the order in which processes
# arrive could change a result, a program has a bug.
#
# Here is how a process learns who it is. These are the first functions of `common/mpi_tools.py`.

# %% tags=["mirror"] source="common/mpi_tools.py:_world,proc_id,num_procs"
@functools.cache
def _world():
    """The communicator of all processes, or None where there is no MPI. Asked for first when first needed, so that
    `mpi_fork` can start mpirun from a process that has not itself started MPI."""
    try:
        with others_expected():
            from mpi4py import MPI
        world = MPI.COMM_WORLD
    except (ImportError, RuntimeError):                     # not installed, or it finds no MPI library
        world = None
    if processes_started() > 1 and (world is None or world.Get_size() == 1):
        cause = 'mpi4py is not there, or finds no MPI library' if world is None else 'it is not the mpirun of mpi4py'
        raise UserError(f'mpirun has started {processes_started()} processes that do not know of each other: {cause}. '
                        f'pip install mpi4py mpich, and start by {os.path.dirname(sys.executable)}/mpirun')
    if world and world.Get_size() > 1:
        stop_all_with_one(world)
    return world


def proc_id():
    """The number of this process: 0, ..., num_procs() - 1."""
    return _world().Get_rank() if _world() else 0


def num_procs():
    """How many processes take part."""
    return _world().Get_size() if _world() else 1

# %% [markdown] tags=["notes"]
# - `@functools.cache`: the question is asked once. The answer cannot change while a program runs.
# - `except (ImportError, RuntimeError):                     # not installed, or it finds no MPI library`: without MPI a
#   program is a single process, and everything works. Nobody has to install it in order to learn.
# - `if processes_started() > 1 and (world is None or world.Get_size() == 1):`: what `mpirun` has told this process
#   through its environment. If it says four, and the library believes it is alone, then the two belong to different
#   installations of MPI: four equal runs instead of one.
# - `stop_all_with_one(world)`: what happens when one process fails. See below, under "They hang". It ends by MPI's
#   `Abort`, which ends all processes, not only this one.
# - `return _world().Get_rank() if _world() else 0`: the whole of "who am I?".

# %%
print(f'This notebook is process {proc_id()} of {num_procs()}')

# %% [markdown]
# ## Collectives
#
# Six functions are enough for everything in this repository. Two of them, `mpi_sum` and `mpi_avg`, do nearly all the
# work: every process brings an array of the same shape, and every process leaves with the sum, or the average, of all
# of them, number by number. MPI's name for that is *allreduce*. The others move data in one direction only: `broadcast`
# (an array, in place) and `bcast` (any object) from process 0 to all, `gather` from all to process 0, `scatter` from
# process 0 one piece to each. `mpi_op` and `allreduce`, which come first in the cell, are what the first two are made
# of; `mpi_op` knows minimum and maximum too.
#
# Why is the average all that learning needs? Let $n$ processes have $m$ steps each, and let $g_{pj}$ be the gradient of
# the loss of step $j$ of process $p$. Each computes the mean over its own steps. Then
#
# $$
# \frac{1}{n} \sum_{p=1}^{n} \Big( \frac{1}{m} \sum_{j=1}^{m} g_{pj} \Big)
# = \frac{1}{nm} \sum_{p=1}^{n} \sum_{j=1}^{m} g_{pj} \tag{1}
# $$
#
# The average of the processes' gradients *is* the gradient of the big batch that they hold together. Nothing is
# approximated: four processes with 1000 steps each make the step that one process would make with those 4000. Look
# closely at what the equation needs, though: that all have the same number of steps $m$. With different numbers the
# average of averages is not the average, and that is why an epoch is divided into equal parts.

# %% tags=["mirror"] source="common/mpi_tools.py:mpi_op,allreduce,mpi_sum,mpi_avg,broadcast,bcast,gather,scatter"
def mpi_op(x, op):
    """Reduce the array or number `x` over all processes, in float64, with `op`: 'sum', 'min' or 'max'."""
    x = np.asarray(x, dtype=np.float64)
    result = x.copy(order='C')
    if num_procs() > 1:
        from mpi4py import MPI
        allreduce(result, op=getattr(MPI, op.upper()))
    return result if x.ndim else float(result)


def allreduce(x, **kwargs):
    """Replace the array `x` of every process by their sum (or by what `op` says), in place."""
    from mpi4py import MPI
    _world().Allreduce(MPI.IN_PLACE, x, **kwargs)


def mpi_sum(x):
    """The sum of `x` over all processes."""
    return mpi_op(x, 'sum')


def mpi_avg(x):
    """The average of `x` over all processes."""
    return mpi_sum(x) / num_procs()


def broadcast(x, root=0):
    """Give every process the array `x` of process `root`, in place."""
    if num_procs() > 1:
        _world().Bcast(x, root=root)


def bcast(obj):
    """Process 0's object, on every process."""
    return _world().bcast(obj) if num_procs() > 1 else obj


def gather(obj):
    """Every process's object, as a list on process 0; None elsewhere."""
    return _world().gather(obj) if num_procs() > 1 else [obj]


def scatter(objs):
    """The item of process 0's list that is this process's own."""
    return _world().scatter(objs) if num_procs() > 1 else objs[0]

# %% [markdown] tags=["notes"]
# - `x = np.asarray(x, dtype=np.float64)`: sums in double precision. The result depends on the order of the additions
#   then only in the sixteenth digit.
# - `result = x.copy(order='C')`: MPI writes the sum over the array that it gets, and the caller's must not change.
# - `return result if x.ndim else float(result)`: a number comes back as a number.
# - `_world().Allreduce(MPI.IN_PLACE, x, **kwargs)`: the capital letter matters in mpi4py. `Allreduce` sends the memory
#   of an array as it is; `allreduce` would pickle an object, which is far slower.
# - `return mpi_sum(x) / num_procs()`: equation (1), left.
# - `_world().Bcast(x, root=root)`: in place: afterwards the arrays of all processes are equal, bit for bit.
# - `return _world().gather(obj) if num_procs() > 1 else [obj]`: None everywhere but on process 0. A program that
#   uses the list elsewhere fails there, and only there.

# %% [markdown]
# Four processes, each with four numbers of its own. What do they hold afterwards? Cover all pictures but the first with
# your hand and predict them.

# %% tags=["check"]
# Equation (1) in numbers: what four processes hold before and after each collective, and a mean of means.
def meet():
    mine = np.arange(4.0) + 10 * proc_id()
    copied = mine.copy()
    broadcast(copied)                                                   # in place
    return dict(before=mine, mpi_sum=mpi_sum(mine), mpi_avg=mpi_avg(mine), max=mpi_op(mine, 'max'), broadcast=copied)


held = on_processes(4, meet)
fig, axes = classroom.figure(columns=5, height=2.6)
fig.set_size_inches(14, 2.9)
for ax, what in zip(axes, held[0]):
    table = np.array([result[what] for result in held])                 # a row for each process
    ax.imshow(table, cmap='Blues', vmin=-20, vmax=140)
    for (row, column), number in np.ndenumerate(table):
        ax.text(column, row, f'{number:g}', ha='center', va='center')
    ax.set(title=what, xticks=[], yticks=range(4),
           yticklabels=[f'process {i}' if ax is axes[0] else '' for i in range(4)])
    ax.grid(False)
plt.show()
own = np.array([result['before'] for result in held])
for result in held:
    assert np.array_equal(result['mpi_avg'], own.mean(0)) and np.array_equal(result['broadcast'], own[0])
classroom.claim(all(np.array_equal(result['mpi_sum'], own.sum(0)) for result in held), 'all four hold the same sum')


def mean_of_means(*samples):
    parts = [np.array_split(numbers, num_procs())[proc_id()] for numbers in samples]
    return [(mpi_avg(part.mean()), len(part)) for part in parts]


numbers = np.random.default_rng(0).normal(size=12)
means = on_processes(4, mean_of_means, numbers, numbers[:10])           # of each process: two pairs (mean, own count)
classroom.agree('A mean of four means, of three numbers each, and the mean', means[0][0][0], numbers.mean())
classroom.claim(abs(means[0][1][0] - numbers[:10].mean()) > 1e-3,
                f'with parts of {[pair[1][1] for pair in means]} numbers the mean of means is {means[0][1][0]:.3f}, '
                f'and the mean is {numbers[:10].mean():.3f}')

# %% [markdown]
# ### Statistics of numbers that nobody holds
#
# Advantages are shifted and scaled to mean 0 and standard deviation 1, and the returns of episodes are averaged for the
# table. Both are statistics of numbers that are spread over processes, and of returns each process may have a different
# number: how many episodes end in an epoch is a matter of luck. So sums and counts are added, and divided at the end:
#
# $$
# \mu = \frac{\sum_p \sum_j x_{pj}}{\sum_p m_p}, \qquad
# \sigma^2 = \frac{\sum_p \sum_j (x_{pj} - \mu)^2}{\sum_p m_p} \tag{2}
# $$
#
# It takes two rounds: nobody can compute the second sum before $\mu$ is known to all. There is a formula with one
# round, $\sigma^2 = \overline{x^2} - \mu^2$, and it is a trap: for numbers around a hundred million with a spread of
# one the two terms agree in their first sixteen digits. More a double does not have, and the difference is noise.
#
# **Exercise 1 (implement).** Write it. `x` are the numbers that *this* process holds, perhaps none. The one collective
# that you need is `mpi_sum`, called twice; it adds numbers or arrays over all processes. Remember: your function runs
# in every process at the same time.

# %% tags=["exercise"]
def my_statistics(x):
    """(mean, standard deviation) of the numbers of all processes together; x: (m,), and m may differ, or be 0."""
    ### BEGIN SOLUTION
    total, count = mpi_sum([x.sum(), len(x)])
    mean = total / count
    return mean, np.sqrt(mpi_sum(((x - mean)**2).sum()) / count)
    ### END SOLUTION


def test_statistics(numbers):
    return my_statistics(numbers[:0] if proc_id() == 0 else numbers[proc_id() - 1::3])     # process 0 has none


million = 1e6 + np.random.default_rng(1).normal(size=100)
answers = on_processes(4, test_statistics, million, helpers=[my_statistics])
classroom.check('Exercise 1', answers and answers[0], (million.mean(), million.std()), tol=1e-9,
                hint='first one mpi_sum of the sum and the count together, then one of the squared deviations')

# %% [markdown]
# And here is the function that the files use. It does the same, with minimum and maximum if wanted.

# %% tags=["mirror"] source="common/mpi_tools.py:mpi_statistics_scalar"
def mpi_statistics_scalar(x, with_min_and_max=False):
    """Mean and standard deviation (and min, max) of the numbers that all processes hold together.

    In float64, and in two passes (mean first): a one-pass E[x^2] - E[x]^2 loses everything to rounding when the mean is
    large. A process may hold none; if all hold none, every statistic is nan.
    """
    x = np.asarray(x, dtype=np.float64).ravel()
    total, count = mpi_sum([x.sum(), x.size])
    if count == 0:
        return (np.nan,) * (4 if with_min_and_max else 2)
    mean = total / count
    std = np.sqrt(mpi_sum(((x - mean)**2).sum()) / count)
    if not with_min_and_max:
        return float(mean), float(std)
    low = mpi_op(x.min() if x.size else np.inf, 'min')
    high = mpi_op(x.max() if x.size else -np.inf, 'max')
    return float(mean), float(std), low, high

# %% [markdown] tags=["notes"]
# - `total, count = mpi_sum([x.sum(), x.size])`: two numbers in one message. A message costs nearly the same whether it
#   has two numbers or two hundred.
# - `if count == 0:`: *all* processes come to the same conclusion, since all have the same `count`. A test of `x.size`
#   here would send some of them out of the function while the others wait in the next `mpi_sum`.
# - `low = mpi_op(x.min() if x.size else np.inf, 'min')`: a process without numbers brings the one that cannot win.

# %% tags=["check"]
# Equation (2) in numbers: the file's function on four processes, and the one-pass formula's failure.
def both_statistics(numbers):
    mine = numbers[:0] if proc_id() == 0 else numbers[proc_id() - 1::3]
    count, total, squares = mpi_sum([len(mine), mine.sum(), (mine**2).sum()])
    return mpi_statistics_scalar(mine), squares / count - (total / count)**2


far_away = 1e8 + np.random.default_rng(1).normal(size=100)
(careful, one_pass), *_ = on_processes(4, both_statistics, far_away)
classroom.agree('Standard deviation by two rounds and by numpy', careful[1], far_away.std(), tol=1e-6)
classroom.claim(abs(one_pass - far_away.var()) > 0.1,
                f'around a hundred million the variance is {far_away.var():.2f}; the formula with one round says '
                f'{one_pass:.2f}')

# %% [markdown]
# ## The same weights everywhere
#
# Learning together rests on one invariant: **at every moment all processes have the same weights.** It is kept in two
# moves. At the start, process 0 gives its weights to all. Then, at every step, all use the same averaged gradient, and
# an optimizer that gets the same numbers makes the same step. Weights are never sent again. This is cheap, and it is
# fragile: whatever makes one process do something else, once, parts it from the others for ever, and no error tells.

# %% [markdown] tags=["torch"]
# These are the two functions of `common/mpi_pytorch.py` that do it. `setup_pytorch_for_mpi` has told each process to
# use a single thread before: four processes with four threads each would only get in each other's way.

# %% [markdown] tags=["tf1"]
# In TensorFlow, both moves are operations of the graph, from `common/mpi_tf.py`: Python functions that `tf.py_func`
# calls in the middle of a computation. The class `MpiAdamOptimizer` there puts the second one between computing
# gradients and applying them.

# %% tags=["torch"]
# ruff: noqa: F811, F821
import torch

# %% [raw] tags=["tf1"]
# from common.mpi_tf import flat_concat, split_flat, tf

# %% tags=["mirror", "torch"] source="common/mpi_pytorch.py:sync_params,mpi_avg_grads"
def sync_params(module):
    """Give every process the parameters of process 0, and the buffers that layers may keep, in one message."""
    if num_procs() > 1:
        tensors = [x for x in (*module.parameters(), *module.buffers()) if x.is_floating_point()]
        flat = torch.nn.utils.parameters_to_vector(tensors).detach()
        broadcast(flat.numpy())
        set_flat(tensors, flat)


def mpi_avg_grads(module, number=0.0):
    """Average a module's gradients over all processes, in one message; returns the average of `number`, sent along."""
    if num_procs() == 1:
        return float(number)
    params = [p for p in module.parameters() if p.grad is not None]         # frozen layers have none
    flat = torch.cat([*[p.grad.reshape(-1) for p in params], torch.tensor([float(number)])])
    allreduce(flat.numpy())
    flat /= num_procs()
    for p, part in zip(params, flat.split([p.numel() for p in params] + [1])):
        p.grad = part.view_as(p)
    return flat[-1].item()

# %% [markdown] tags=["notes", "torch"]
# - `tensors = [x for x in (*module.parameters(), *module.buffers()) if x.is_floating_point()]`: buffers, too: the
#   running averages of a normalisation layer are no parameters, and would differ.
# - `broadcast(flat.numpy())`: the array shares its memory with the tensor `flat`, which therefore holds process 0's
#   numbers afterwards.
# - `flat = torch.cat([*[p.grad.reshape(-1) for p in params], torch.tensor([float(number)])])`: one message for all
#   layers. Sending each for itself would cost as many waits as there are layers.
# - `return flat[-1].item()`: a passenger: the KL of PPO travels with the gradient, and all processes read the same
#   average. So they all decide the same about stopping.
# - `if num_procs() == 1:`: with one process nothing is copied at all.

# %% [raw] tags=["mirror", "tf1"] source="common/mpi_tf.py:sync_params,mpi_avg_tensor"
def sync_params(params):
    """The operation that gives every process the variables of process 0, in one message."""
    if num_procs() == 1:
        return tf.no_op()

    def broadcast_flat(flat):
        flat = flat.copy()
        broadcast(flat)
        return flat
    flat = flat_concat(params)
    synced = tf.py_func(broadcast_flat, [flat], tf.float32)
    synced.set_shape(flat.shape)
    return tf.group([p.assign(part) for p, part in zip(params, split_flat(synced, [p.shape for p in params]))])


def mpi_avg_tensor(x):
    """The average of a tensor over all processes, in one message."""
    if num_procs() == 1:
        return x

    def average(local):
        total = local.copy()
        allreduce(total)
        return total / np.float32(num_procs())
    averaged = tf.py_func(average, [x], tf.float32)
    averaged.set_shape(x.shape)
    return averaged

# %% [markdown] tags=["notes", "tf1"]
# - `broadcast(flat)`: in place, hence the copy in the line before: TensorFlow's own memory must not be written to.
# - `synced = tf.py_func(broadcast_flat, [flat], tf.float32)`: a node of the graph that leaves the graph, talks to the
#   other processes, and comes back.
# - `averaged = tf.py_func(average, [x], tf.float32)`: one vector for all layers. Sending each for itself would cost as
#   many waits as there are layers, and in a graph the order of the nodes is not even fixed: two processes could run
#   them in different orders and wait for each other for ever.
# - `averaged.set_shape(x.shape)`: what comes out of Python has no shape that TensorFlow could know.

# %% [markdown]
# Does it do what (1) says? Two processes start with different weights of a linear function, agree on those of process
# 0, and compute the gradient of a squared error, each on its half of twelve examples. The result must be the gradient
# of all twelve, which we compute by hand.

# %% tags=["torch"]
def learn_together(inputs, targets):
    import torch

    from common.mpi_pytorch import mpi_avg_grads, sync_params
    torch.manual_seed(proc_id())
    layer = torch.nn.Linear(3, 1, bias=False)
    before = layer.weight.detach().numpy().copy()
    sync_params(layer)
    mine = slice(proc_id(), None, num_procs())
    errors = layer(torch.as_tensor(inputs[mine])).squeeze(-1) - torch.as_tensor(targets[mine])
    (errors**2).mean().backward()
    alone = layer.weight.grad.numpy().copy()
    mpi_avg_grads(layer)
    return dict(before=before[0], after=layer.weight.detach().numpy()[0], alone=alone[0],
                together=layer.weight.grad.numpy()[0])

# %% [raw] tags=["tf1"]
# def learn_together(inputs, targets):
#     from common.mpi_tf import mpi_avg_tensor, setup_tf_for_mpi, sync_all_params, tf
#     sess = setup_tf_for_mpi(0)
#     weight = tf.Variable(np.random.default_rng(proc_id()).normal(size=3).astype(np.float32))
#     sess.run(tf.global_variables_initializer())
#     before = sess.run(weight)
#     sess.run(sync_all_params())
#     mine = slice(proc_id(), None, num_procs())
#     errors = tf.reduce_sum(inputs[mine] * weight, -1) - targets[mine]
#     alone = tf.gradients(tf.reduce_mean(errors**2), weight)[0]
#     after, own, together = sess.run([weight, alone, mpi_avg_tensor(alone)])
#     return dict(before=before, after=after, alone=own, together=together)

# %%
examples = np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)
learned = on_processes(2, learn_together, examples[:, :3], examples[:, 3])
common_weight = learned[0]['before'].astype(np.float64)
errors_by_hand = examples[:, :3] @ common_weight - examples[:, 3]
classroom.agree('The weights of process 1 after the exchange, and those of process 0 before it', learned[1]['after'],
                common_weight)
classroom.agree('The averaged gradient and that of all twelve examples', learned[0]['together'],
                2 * (errors_by_hand[:, None] * examples[:, :3]).mean(0), tol=1e-5)
classroom.claim(np.array_equal(learned[0]['together'], learned[1]['together'])
                and not np.allclose(learned[0]['alone'], learned[1]['alone']),
                'each had a gradient of its own, and both end with the same one, bit for bit')

# %% [markdown]
# **Exercise 2 (implement).** Layers come as a list of arrays of different shapes. Average such a list over all
# processes *with a single message*: make one vector of it, average that, and cut it up again. The check counts your
# calls of `mpi_avg`.

# %% tags=["exercise"]
def my_average(arrays):
    """The list of the averages over all processes of `arrays`, a list; same shapes; one call of mpi_avg."""
    ### BEGIN SOLUTION
    flat = mpi_avg(np.concatenate([array.ravel() for array in arrays]))
    ends = np.cumsum([array.size for array in arrays])
    return [part.reshape(array.shape) for part, array in zip(np.split(flat, ends[:-1]), arrays)]
    ### END SOLUTION


def test_average():
    calls, true_average = [], mpi_avg

    def counted(x):
        calls.append(1)
        return true_average(x)
    globals()['mpi_avg'] = counted
    averages = my_average([np.full((2, 3), 1.0 + proc_id()), np.full(4, 10.0 * proc_id())])
    return averages and dict(first=averages[0], second=averages[1], messages=len(calls))


answers = on_processes(3, test_average, helpers=[my_average])
classroom.check('Exercise 2', answers and answers[2],
                dict(first=np.full((2, 3), 2.0), second=np.full(4, 10.0), messages=1),
                hint='np.concatenate of the raveled arrays, then np.split at the cumulated sizes, then reshape')

# %% [markdown]
# ## How it goes wrong, first: they drift apart
#
# Now a whole training function, `ppo` from `ppo_torch.py`, on two processes: three epochs of CartPole. Afterwards each
# process is asked for the log-probability of the same action in five situations. Then once more, with the first
# exchange of weights left out. All gradients are still averaged. The table below is the last one that process 0 printed
# in that second run: it looks as usual, and shows nothing.

# %% tags=["torch"]
def forget_to_synchronise():
    import ppo_torch
    ppo_torch.sync_params = lambda module: None

# %% [raw] tags=["tf1"]
# def forget_to_synchronise():
#     from common import mpi_tf
#     mpi_tf.sync_params = lambda params: mpi_tf.tf.no_op()

# %%
def train_together(epochs):
    import contextlib
    import io
    import tempfile

    import gymnasium as gym

    from ppo_torch import ppo
    situations, answers, table = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4), [], io.StringIO()
    for synchronised in (True, False):
        if not synchronised:
            forget_to_synchronise()
        with contextlib.redirect_stdout(table):
            agent = ppo(lambda: gym.make('CartPole-v1'), epochs=epochs, steps_per_epoch=400, pi_lr=3e-3,
                        ac_kwargs=dict(hidden_sizes=(16,)), logger_kwargs=dict(output_dir=tempfile.mkdtemp()))
        answers.append(agent.evaluate(situations, np.zeros(5, dtype=np.float32), situations)[1])
    return answers, table.getvalue()


(process_0, first_table), (process_1, second_table) = on_processes(2, train_together, classroom.steps(3, fast=1),
                                                                   helpers=[forget_to_synchronise], quiet=True)
print('\n'.join(first_table.strip().split('\n')[-22:]))
apart = [float(np.abs(a - b).max()) for a, b in zip(process_0, process_1)]
classroom.claim(apart[0] == 0, 'with the exchange, the policies of the two processes are equal, bit for bit')
classroom.claim(apart[1] > 0.01, f'without it, log-probabilities differ by up to {apart[1]:.2f}: two policies, each of '
                'them trained with gradients that belong half to the other')
classroom.claim(bool(first_table) and not second_table.strip(), 'only process 0 prints')

# %% [markdown]
# A check of one line catches it: every now and then, compare a sum of all weights over the processes, with
# `mpi_op(x, 'min') == mpi_op(x, 'max')`. Other ways to drift apart: a step that depends on a *local* number (each
# process stops early by its own KL); a normalisation layer whose running averages each process takes from its own data;
# reading a file that only process 0 has.
#
# ## Second: they all do the same work
#
# Processes are copies, and copies of a random number generator draw the same numbers. If all processes used the same
# seed, they would play the same episodes, to the last frame. Everything would be equal everywhere, all averages right,
# and with four processes three quarters of the work wasted. That is why the training functions begin with
# `seed += 10000 * proc_id()`. For $n$ processes with $m$ independent samples each, of a quantity with variance
# $\sigma^2$, the mean of all has
#
# $$
# \operatorname{Var}\Big[ \frac{1}{n} \sum_{p=1}^{n} \bar x_p \Big] =
# \begin{cases} \sigma^2 / (nm) & \text{seeds differ} \\ \sigma^2 / m & \text{seeds are equal} \end{cases} \tag{3}
# $$
#
# **Exercise 3 (ablate).** Below, 1, 2 and 4 processes estimate a mean from ten samples each, many times over, once with
# seeds of their own and once with the same seed. By which factor does the standard deviation of the estimate fall from
# one process to four, with seeds of their own? And with the same seed? Predict two numbers.

# %% tags=["exercise"]
factor_own_seeds = None             # a number: standard deviation with 1 process, divided by that with 4
factor_same_seed = None
### BEGIN SOLUTION
factor_own_seeds = 2.0
factor_same_seed = 1.0
### END SOLUTION

# %% tags=["check"]
# Equation (3) in numbers: the spread of an estimate by 1, 2 and 4 processes, with their own seeds and with one.
def estimate(repeats):
    spreads = []
    for own_seed in (True, False):
        rng = np.random.default_rng(100 + 10000 * proc_id() * own_seed)
        samples = rng.normal(size=(repeats, 10))
        spreads.append(float(mpi_avg(samples.mean(1)).std()))
    return spreads


process_counts = np.array([1, 2, 4])
spreads = np.array([on_processes(int(n), estimate, 4000)[0] for n in process_counts])               # (3, 2)
fig, ax = classroom.figure()
for column, label in enumerate(('seeds of their own', 'the same seed')):
    ax.plot(process_counts, spreads[:, column], 'o-', label=label)
ax.plot(process_counts, 1 / np.sqrt(10 * process_counts), 'k:', label='1 / sqrt(10 n)')
ax.set(xlabel='processes', ylabel='standard deviation of the estimate', xticks=process_counts, ylim=(0, 0.36))
ax.legend()
plt.show()
classroom.agree('The spread with own seeds, and (3)', spreads[:, 0], 1 / np.sqrt(10 * process_counts), tol=0.01)
classroom.agree('The spread with the same seed, and (3)', spreads[:, 1], np.full(3, 1 / np.sqrt(10)), tol=0.01)
factors = spreads[0] / spreads[2]
classroom.check('Exercise 3a', factor_own_seeds, factors[0], tol=0.05, hint='variance falls as 1 / n; its square root?')
classroom.check('Exercise 3b', factor_same_seed, factors[1], tol=0.05, hint='what is the mean of four equal numbers?')

# %% [markdown]
# ## Third: they hang
#
# A collective is a meeting. It ends when *all* have come, and who does not come keeps the others waiting: for ever,
# with all processors busy and not a word on the screen. The classic way to get there is innocent: "only process 0
# prints, so only process 0 needs the number".

# %%
def print_best(ret):
    mine = ret + proc_id()
    if proc_id() == 0:
        print('The best return is', mpi_op(mine, 'max'), flush=True)
    return mine


nothing = on_processes(3, print_best, 10.0, timeout=classroom.steps(5, fast=2))
classroom.claim(nothing is None, 'three processes, and no result')

# %% [markdown]
# Process 0 waits in `mpi_op` for the maximum. The others have never heard of it; they have gone on to the *next*
# collective, the `gather` at the end of the program. Nothing is wrong with either line.
#
# **Exercise 4 (hunt).** Repair it: process 0, and only process 0, prints the best return; every process *returns* the
# best return. Then remember the rule: a collective never stands behind an `if` that processes may answer differently.

# %% tags=["exercise"]
def my_best(ret):
    """Returns the largest ret + proc_id() of all processes, on every process; process 0 prints it."""
    ### BEGIN SOLUTION
    best = mpi_op(ret + proc_id(), 'max')
    if proc_id() == 0:
        print('The best return is', best, flush=True)
    return best
    ### END SOLUTION


answers = on_processes(3, my_best, 10.0, timeout=20)
classroom.check('Exercise 4', np.array(answers) if answers and None not in answers else None, np.full(3, 12.0),
                hint='all call mpi_op, first; then process 0 alone prints')

# %% [markdown]
# There is a second way to hang: a process *fails*. An exception ends it, and the others wait in their next meeting for
# someone who is dead. This is what `stop_all_with_one`, at the top of this page, is for: it puts a function in place of
# the usual handler of exceptions, which says which process failed and why, and ends them all.

# %%
def one_fails():
    if proc_id() == 1:
        raise ValueError('I have lost my environment')
    return mpi_sum(1.0)


print('Returned:', on_processes(3, one_fails, timeout=30))

# %% [markdown]
# ## The timeline of a meeting
#
# Now watch them. Three processes, five epochs. Each "plays" for a random time, as episodes have random lengths (it
# sleeps), and then meets the others in `mpi_sum`. All write down when they began, when they arrived, and when the
# meeting was over. If $t_{ep}$ is how long process $p$ plays in epoch $e$, then all wait for the slowest, in every
# epoch anew:
#
# $$
# T \;\ge\; \sum_{e} \max_p t_{ep} \;\ge\; \max_p \sum_e t_{ep} \tag{4}
# $$
#
# The right side is the total of the slowest process. The middle is what it really takes, but for the messages
# themselves, and it is more, because it is not always the same one that is slow.

# %% tags=["check"]
# Equation (4) in numbers: when three processes worked, and when they waited.
def timeline(epochs):
    import time
    rng, spans = np.random.default_rng(7 + proc_id()), []
    mpi_sum(0.0)                                                        # begin together
    for _ in range(epochs):
        begin = time.time()
        time.sleep(rng.uniform(0.05, 0.3))
        arrived = time.time()
        mpi_sum(np.ones(1000))
        spans.append((begin, arrived, time.time()))
    return spans


spans = np.array(on_processes(3, timeline, 5))                          # (process, epoch, [begin, arrived, over])
spans -= spans.min()
fig, ax = plt.subplots(figsize=(11, 2.6))
for p, row in enumerate(spans):
    ax.barh([p] * 5, row[:, 1] - row[:, 0], left=row[:, 0], color='C0', height=0.6, label='plays' if p == 0 else None)
    ax.barh([p] * 5, row[:, 2] - row[:, 1], left=row[:, 1], color='C1', height=0.6, label='waits' if p == 0 else None)
ax.set(yticks=range(3), yticklabels=[f'process {p}' for p in range(3)], xlabel='seconds', title='Five epochs')
ax.invert_yaxis()
ax.legend(loc='center left', bbox_to_anchor=(1, 0.5))
plt.show()
playing, total = spans[:, :, 1] - spans[:, :, 0], spans[:, :, 2].max()
middle, right = playing.max(0).sum(), playing.sum(1).max()
waited = 1 - playing.sum() / (3 * total)
classroom.claim(total >= middle - 1e-3 and middle >= right,
                f'the run took {total:.2f} s; the slowest of each epoch add up to {middle:.2f} s, the slowest process '
                f'alone to {right:.2f} s. The processes spent {100 * waited:.0f} % of the time waiting')

# %% [markdown]
# Two lessons about speed are in this picture. **Meet rarely**: in longer stretches of work luck evens out. An epoch of
# PPO has one long stretch of playing and then up to 160 short ones, 80 gradient steps on the policy and 80 on the value
# function, each with its message: that is what costs. **Have equal parts**: the algorithm files give each process the
# same number of *steps*, not of episodes, and so the same amount of work.
#
# And there is a third: more processes than processor cores only take turns. Here is the same work, divided by one, two
# and four, on the machine that you are using. Times are not checked on this page; they depend on who else is computing.

# %%
def share_of_work(pieces):
    import time
    rng = np.random.default_rng(proc_id())
    mpi_sum(0.0)
    begin = time.time()
    for _ in range(pieces // num_procs()):
        np.linalg.svd(rng.normal(size=(100, 100)))
    mpi_sum(0.0)
    return time.time() - begin


cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
for n in classroom.steps((1, 2, 4), fast=(1, 2)):
    print(f'{n} processes on {cores} cores: {on_processes(n, share_of_work, classroom.steps(240, fast=24))[0]:.2f} s')

# %% [markdown]
# ## From the command line
#
# Two ways lead to many processes, and both start the same program. `mpirun -np 4 python ppo_torch.py ...` is the plain
# one. `python ppo_torch.py --cpu 4 ...` is for those who forget the first: the program starts itself again, under
# `mpirun`, waits for the end, and exits with the same status. This is the function.

# %% tags=["mirror"] source="common/mpi_tools.py:mpi_fork"
def mpi_fork(n):
    """Run this script again as `n` processes under mpirun, wait for it, and exit with its status.

    Returns at once when n is 1 or when the script already runs under mpirun. No process continues past this call twice.
    """
    if n <= 1 or os.getenv('STARTED_BY_MPI_FORK'):
        return
    # The mpich wheel puts mpirun beside the interpreter, where it is found although no environment is activated.
    here = os.path.dirname(sys.executable)
    mpirun = shutil.which('mpirun', path=here) or shutil.which('mpirun')
    try:
        import mpi4py  # noqa: F401  (importing the package, not its MPI module, starts nothing)
    except ImportError:
        mpirun = None
    if mpirun is None:
        raise UserError(f'{n} processes need mpirun and mpi4py: pip install mpi4py mpich, or leave out --cpu')
    # One thread for each: n processes that each use all cores would only wait for each other.
    env = dict(os.environ, STARTED_BY_MPI_FORK='1', OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')
    main = sys.modules['__main__']
    script = ['-m', main.__spec__.name] if main.__spec__ else [sys.argv[0]]
    # In a session of its own mpirun does not hear Ctrl-C from the terminal, but once, from here: twice, it would kill.
    process = subprocess.Popen([mpirun, '-np', str(n), sys.executable, *script, *sys.argv[1:]], env=env,
                               start_new_session=True, preexec_fn=end_with_parent if sys.platform == 'linux' else None)
    on_stop_signals(lambda number, _: process.send_signal(number))
    status = process.wait()
    if status < 0:
        raise ExperimentFailed(f'mpirun was ended by {signal.Signals(-status).name}')
    sys.exit(status)

# %% [markdown] tags=["notes"]
# - `if n <= 1 or os.getenv('STARTED_BY_MPI_FORK'):`: the program runs a second time, from its first line, and comes to
#   this line again, in each of the `n` processes. The variable is how they know that they are the children. Without it
#   each would start `n` more, and so on: a fork bomb.
# - `mpirun = shutil.which('mpirun', path=here) or shutil.which('mpirun')`: the `mpirun` that belongs to this Python, if
#   there is one. Another MPI's would start `n` processes that each believe they are alone: `n` equal runs, not one.
# - `OMP_NUM_THREADS='1', MKL_NUM_THREADS='1')`: one thread each.
# - `sys.exit(status)`: the parent never comes back from here. What follows `mpi_fork` in a program is done by
#   the children alone.

# %% [markdown]
# ## What to take away
#
# - Copies of one program, with nothing in common but meetings. No main process, no shared memory.
# - The average of gradients of equal parts is the gradient of the whole: many processes make the very step that one
#   would make on all the data. `steps_per_epoch` counts the steps of all processes together, so that adding processes
#   makes an epoch faster and not larger.
# - Equal weights at the start, equal steps ever after. Seeds must differ, weights must not.
# - A collective behind an `if` is a program that hangs one day. A decision that all have to share is made from a number
#   that has been averaged.
# - Meet rarely, in equal parts, with no more processes than cores.
#
# **Read on.** W. Gropp, E. Lusk, A. Skjellum, *Using MPI*, MIT Press, third edition 2014. L. Dalcín, R. Paz, M. Storti,
# *MPI for Python*, Journal of Parallel and Distributed Computing 65, 2005, about the library behind these functions. P.
# Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, arXiv:1706.02677, on what a large batch
# does to the learning rate.
