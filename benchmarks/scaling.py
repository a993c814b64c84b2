"""How the speed grows with the number of processes, for the same work.

    python -m benchmarks.scaling                                1, 2, 4 processes, and more where there are cores
    python -m benchmarks.scaling --np 1 2 --only ppo --time_to 475

The steps of an epoch and the transitions of a batch are shared out among the processes, which average their gradients
at every step: so any number of processes does the same work. A round measures each number once. Efficiency is the speed
over that of one process, divided by their number; it cannot stay high with more processes than cores. Nor with cores
that are not wholly their own, as a virtual machine's often are: `apart` are processes that share out the steps of PPO
and never meet, each with networks of its own, and are as fast as the cores allow. Calls and bytes are those of one
process's Allreduce in a gradient step.
Results: scaling.json (every value), speed.md (tables, below those of benchmarks.speed), figures/scaling.png.
"""
import math
import shutil
import statistics
import sys
from pathlib import Path

from benchmarks.contest import (MAX_STEPS, Contestant, check, choose, circumstances, cores, describe, finish,
                                hold, make_parser, median_and_spread, number, ratio, ratios, speeds, table, time_cells)
from common.errors import UserError, one_line_errors
from tools.plot import COLORS

STEPS = 4000                                            # of an epoch of ppo, which the processes share out
LOOKS = [dict(color=colour, marker=marker) for colour, marker in zip(COLORS, 'os^D*vX')]


def processes(contestant):
    return int(contestant.name.split()[0])


def default_numbers():
    """1, 2, 4, and on while there are cores."""
    return [2**i for i in range(max(3, len(cores()).bit_length()))]


def contestants(args, mpirun):
    """All of them, workload by workload."""
    epochs, updates = (1, 100) if args.quick else (8, 800)
    workloads = {f'ppo_{framework}, CartPole-v1': dict(what='on_policy', script=f'ppo_{framework}', env='CartPole-v1',
                                                        epochs=epochs) for framework in ('torch', 'tf1')}
    for batch in 100, 256:
        for framework in 'torch', 'tf1':
            workloads[f'sac_{framework}, HalfCheetah-v5, batch {batch}'] = dict(
                what='off_policy', script=f'sac_{framework}', env='HalfCheetah-v5', batch=batch, updates=updates)
    if args.time_to:
        for framework in 'torch', 'tf1':
            workloads[f'ppo_{framework}, CartPole-v1, time to {args.time_to:g}'] = dict(
                what='time_to', script=f'ppo_{framework}', env='CartPole-v1', goal=args.time_to,
                max_steps=20_000 if args.quick else MAX_STEPS)
    everyone = []
    for workload, arguments in workloads.items():
        for n in args.np:
            command = [mpirun, '-np', str(n), sys.executable, '-m', 'benchmarks.measure_ours']
            name = f'{n} process{"es" * (n > 1)}'
            everyone.append(Contestant(workload, name, command, arguments))
            if n > 1 and arguments['what'] == 'on_policy':
                everyone.append(Contestant(workload, f'{name} apart', command, dict(arguments, what='apart'), 'bound'))
    return everyone


def report(facts, groups):
    text = (f'# Scaling\n\n{describe(facts)}\n\nRatios are medians over the rounds; in brackets, the least and '
            'the greatest.\n\n'
            '![Speed by processes](figures/scaling.png)\n')
    for workload, group in groups.items():
        times = any('goal' in contestant.arguments for contestant in group)
        single = next((contestant for contestant in group if processes(contestant) == 1), None)
        rows = []
        for contestant in group:
            n, own = processes(contestant), speeds(contestant)
            crowded = ' (more than cores)' if n > facts['cores_used'] else ''
            values = time_cells(contestant) if times else median_and_spread(own)
            cells = [*(('failed', contestant.failed) if contestant.failed else values)]
            base = speeds(single) if single else []
            cells += [ratio(own, base), efficiency(own, base, n)]
            if not times:
                sent = [contestant.get(key) for key in ('calls_per_gradient', 'bytes_per_gradient')]
                cells += [number(statistics.median(values)) if values else '' for values in sent]
            rows.append([f'{contestant.name}{crowded}', *cells])
        header = ['', 'median, s', 'seed by seed, s'] if times else ['', 'steps/s', 'from – to']
        header += ['speed ÷ 1 process', 'efficiency'] + ([] if times else ['calls/gradient', 'bytes/gradient'])
        text += f'\n## {workload}\n\n{table(header, rows)}'
    return text


def efficiency(own, base, n):
    pairs = ratios(own, base)
    return f'{statistics.median(pairs) / n:.0%}' if pairs and statistics.median(pairs) < math.inf else ''


def draw(groups, available):
    """Speed over that of one process, a line for each workload."""
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    figure = Figure(figsize=(9, 6), layout='constrained')
    axes = figure.subplots()
    most = max(processes(contestant) for group in groups.values() for contestant in group)
    axes.plot([1, most], [1, most], ':', color='#888888', label='ideal')
    if most > available:
        axes.axvspan(available, most, color='#EEEEEE', label=f'more processes than cores ({available})')
    looks = {}                                          # a colour and marker for each workload; its tf1 twin is paler
    for workload, group in groups.items():
        look, shift = looks.setdefault(workload.replace('_tf1', '_torch'), LOOKS[len(looks) % len(LOOKS)]), 0
        if '_tf1' in workload:                          # and beside it, so that none hides the other
            pale, shift = [0.55 * part + 0.45 for part in to_rgb(look['color'])], 0.03
            look = dict(look, color=pale, linestyle='--', markerfacecolor='white')
        single = next((contestant for contestant in group if processes(contestant) == 1), None)
        base = speeds(single) if single else []
        points = []
        for contestant in group:
            if contestant.kind == 'bound':
                continue
            pairs = [pair for pair in ratios(speeds(contestant), base) if 0 < pair < math.inf]
            if pairs:
                middle = statistics.median(pairs)
                points.append((processes(contestant), middle, middle - min(pairs), max(pairs) - middle))
        if points:
            numbers, middles, below, above = zip(*points)
            axes.errorbar([n + shift for n in numbers], middles, [below, above], capsize=3, label=workload, **look)
    axes.set_xticks(sorted({processes(contestant) for group in groups.values() for contestant in group}))
    axes.set(xlabel='processes', ylabel='speed ÷ that of one process', ylim=(0, None))
    axes.spines[['top', 'right']].set_visible(False)
    axes.legend(fontsize=8, frameon=False, handlelength=4)
    return figure


def main(argv=None):
    parser = make_parser(__doc__)
    parser.add_argument('--np', type=int, nargs='+', default=default_numbers(), metavar='N',
                        help='numbers of processes (default: 1 2 4, and more where there are cores)')
    with one_line_errors('python -m benchmarks.scaling'):
        args = parser.parse_args(argv)
        check(args)
        for n in args.np:
            if n < 1 or STEPS % n:
                raise UserError(f'--np {n}: give numbers that divide the {STEPS} steps of an epoch, as 1 2 4 do')
        # The mpich wheel puts mpirun beside the interpreter, where it is found although no environment is activated.
        mpirun = shutil.which('mpirun', path=Path(sys.executable).parent) or shutil.which('mpirun')
        if mpirun is None:
            raise UserError('there is no mpirun: pip install mpi4py mpich')
        everyone = choose(contestants(args, mpirun), args.only)
        facts = circumstances('scaling', parser, args)
        print(f'{args.rounds} rounds of {len(everyone)} measurements', flush=True)
        hold(everyone, args.rounds, pin=False)          # mpirun's processes find their cores themselves, as a user's do
        groups = {}
        for contestant in everyone:
            groups.setdefault(contestant.workload, []).append(contestant)
        return finish('scaling', args, facts, everyone, report(facts, groups), lambda: draw(groups, len(cores())))


if __name__ == '__main__':
    sys.exit(main())
