"""How fast the twelve scripts are, against other libraries, against PPO written plainly, and against what is possible.

    python -m benchmarks.speed                                  all of it, 5 rounds: an hour and a half
    python -m benchmarks.speed --time_to 475                    and how long PPO takes to solve CartPole-v1
    python -m benchmarks.speed --only 'SAC.*batch 100' --rounds 3 --no_peers
    python -m benchmarks.speed --before ../old --only ppo_      beside another checkout of this repository
    python -m benchmarks.speed --profile sac_torch --env HalfCheetah-v5

Every measurement is a process of its own on one core and one thread, warmed up, in which a script runs through its own
training function. A round makes them all once, and only neighbours of a round are compared.
  - On-policy, with default settings: environment steps per second, and how the time divides.
  - Off-policy, HalfCheetah-v5 and 256x256 networks: steps with one update each, per second.
  - The peers are stable-baselines3 and sbx (the same in JAX), in an environment of their own which this makes once.
    Their PPO has its own default settings, with one environment and with four, of which the better counts; their other
    algorithms have our batch and networks, and make an update after every step. Our scripts make theirs in groups of
    50; sbx can put such a group into one compiled call, so there is `sbx, groups of 50` too.
  - The bounds are the environment alone, with actions chosen beforehand, and the bare matrix products of the updates
    in torch (benchmarks/products.py), which TensorFlow can pass where its own products are faster.
Results: speed.json (every value), speed.md (tables), figures/speed.png.
"""
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.contest import (COLOURS, FOLDER, MAX_STEPS, ROOT, Contestant, check, choose, circumstances, describe,
                                finish, hold, least_cpu_share, make_parser, measure, median_and_spread, number, ratio,
                                speeds, table, time_cells)
from common.errors import UserError, nearest, one_line_errors
from tools.sections import algorithm_files

ON_POLICY, OFF_POLICY, FRAMEWORKS = ('ppo', 'vpg', 'trpo'), ('sac', 'td3', 'ddpg'), ('torch', 'tf1')
CARTPOLE, CHEETAH = 'CartPole-v1', 'HalfCheetah-v5'
LIBRARIES = dict(sb3='SB3', sbx='sbx')
PEER_PACKAGES = ['torch==2.13.0', 'stable-baselines3', 'sbx-rl', 'sb3-contrib', 'gymnasium[mujoco,box2d]']
ENVIRONMENT, PRODUCTS, BOUND = 'environment alone', 'matrix products alone', 'bound: both, one after the other'
V_GRADIENTS, STEPS = 80, 4000                           # of an epoch


# ---- The peers' environment

def peers_python(folder):
    return str(Path(folder, 'bin', 'python'))


def peers_versions(folder):
    """What is installed there, or None if it is not complete."""
    code = ('import json, sbx, sb3_contrib, mujoco, Box2D, scipy; from importlib.metadata import version; '
            'print(json.dumps({f"{name} (peers)": version(name) for name in ["stable-baselines3", "sb3-contrib", '
            '"sbx-rl", "torch", "jax"]}))')
    try:
        run = subprocess.run([peers_python(folder), '-c', code], capture_output=True, text=True)
        return json.loads(run.stdout) if run.returncode == 0 else None
    except OSError:
        return None


def prepare_peers(folder):
    """Make the environment if it is not there; returns the versions in it, or None when that fails."""
    found = peers_versions(folder)
    if found:
        return found
    print('installing the peers, once: some two gigabytes', flush=True)
    for command in ([sys.executable, '-m', 'venv', str(folder)],
                    [peers_python(folder), '-m', 'pip', 'install', '-q', *PEER_PACKAGES]):
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            said = [line for line in run.stderr.splitlines() if 'ERROR' in line] or ['no reason was given']
            print(f'the peers cannot be installed, so they are left out: {said[-1]}', flush=True)
            return None
    return peers_versions(folder)


# ---- The contestants

def contestants(args):
    """All of them, workload by workload."""
    ours = [sys.executable, '-m', 'benchmarks.measure_ours']
    peers = [peers_python(args.peers), str(FOLDER / 'measure_peers.py')]
    epochs, rollouts, updates, seconds = (1, 1, 100, 0.2) if args.quick else (3, 2, 250, 1.0)
    everyone = []

    def add(workload, name, kind='ours', command=ours, **arguments):
        everyone.append(Contestant(workload, name, command, arguments, kind))
        if args.before and 'script' in arguments:
            everyone.append(Contestant(workload, f'{name} (before)', command, arguments, 'before', root=args.before))

    for env in CARTPOLE, CHEETAH:
        for algo in ON_POLICY:
            workload = f'{algo.upper()}, {env}'
            for framework in FRAMEWORKS:
                script = f'{algo}_{framework}'
                add(workload, script, what='on_policy', script=script, env=env, epochs=epochs)
            if algo == 'ppo':
                add(workload, 'plain PPO', 'plain', what='plain', env=env, epochs=epochs)
                for library, title in LIBRARIES.items():
                    for envs in 1, 4:
                        name = f'{title}, {envs} environment{"s" * (envs > 1)}'
                        add(workload, name, library, peers, what='on_policy', library=library, env=env, envs=envs,
                            rollouts=max(rollouts // envs, 1))
            add(workload, ENVIRONMENT, 'bound', what='environment', env=env, seconds=seconds)
            add(workload, PRODUCTS, 'bound', what='products', algo=algo, env=env, seconds=seconds)

    for batch in 100, 256:
        for algo in OFF_POLICY:
            workload, same = f'{algo.upper()}, {CHEETAH}, batch {batch}', dict(env=CHEETAH, batch=batch)
            for framework in FRAMEWORKS:
                script = f'{algo}_{framework}'
                add(workload, script, what='off_policy', script=script, updates=updates, **same)
            for library, title in LIBRARIES.items():
                add(workload, title, library, peers, what='off_policy', library=library, algo=algo, updates=updates,
                    **same)
            add(workload, 'sbx, groups of 50', 'sbx', peers, what='off_policy', library='sbx', algo=algo,
                updates=updates, together=50, **same)
            add(workload, PRODUCTS, 'bound', what='products', algo=algo, seconds=seconds, **same)

    if args.time_to:
        workload = f'PPO, {CARTPOLE}, time to {args.time_to:g}'
        same = dict(what='time_to', env=CARTPOLE, goal=args.time_to, max_steps=20_000 if args.quick else MAX_STEPS)
        for framework in FRAMEWORKS:
            add(workload, f'ppo_{framework}', script=f'ppo_{framework}', **same)
        for envs in 1, 4:
            add(workload, f'SB3, {envs} environment{"s" * (envs > 1)}', 'sb3', peers, library='sb3', envs=envs, **same)
    return everyone


# ---- The report

def add_bound(group):
    """A contestant made from two: an epoch's steps of the environment, then the bare products of its update.

    There are as many products as ours made in the same round: ppo may stop before all 80 gradients of the policy.
    """
    by_name = {contestant.name: contestant for contestant in group}
    alone, products = by_name.get(ENVIRONMENT), by_name.get(PRODUCTS)
    ours = next((contestant for contestant in group if contestant.kind == 'ours'), None)
    if not (alone and products and ours):
        return group
    bound = Contestant(ours.workload, BOUND, [], {}, 'bound')
    for value, env, each in zip(ours.values, alone.values, products.values):
        update_us = (value['pi_gradients'] * each['pi_us'] + V_GRADIENTS * each['v_us']) / STEPS
        each.update(rate=1e6 / update_us, update_us=update_us)
        env.update(collect_us=1e6 / env['rate'])
        bound.values.append(dict(rate=1e6 / (update_us + 1e6 / env['rate']), update_us=update_us,
                                 collect_us=1e6 / env['rate']))
    return [*group, bound]


def rivals(group):
    """{title of a column: contestant} that ours are compared with: of a library's variants, the one that is fastest."""
    chosen = {contestant.name: contestant for contestant in group if contestant.kind == 'plain' and contestant.values}
    for library, title in LIBRARIES.items():
        variants = [contestant for contestant in group if contestant.kind == library and speeds(contestant)]
        by_environments = [contestant for contestant in variants if 'environment' in contestant.name]
        if by_environments:
            best = max(by_environments, key=lambda contestant: statistics.median(speeds(contestant)))
            chosen[best.name] = best
        chosen.update({variant.name: variant for variant in variants if variant not in by_environments})
    limit = [contestant for contestant in group if contestant.name in (BOUND, PRODUCTS) and speeds(contestant)]
    if limit:
        chosen[limit[-1].name.split(':')[0]] = limit[-1]
    return chosen


def ratio_table(group):
    """How many times as fast ours are; and the parts of the time, in those that are possible."""
    ours, columns = [contestant for contestant in group if contestant.kind == 'ours'], {}
    by_name = {contestant.name: contestant for contestant in group}
    if any(contestant.kind == 'before' for contestant in group):
        before = lambda own: by_name.get(f'{own.name} (before)')
        columns['speed ÷ before'] = lambda own: ratio(speeds(own), speeds(before(own))) if before(own) else ''
    for title, rival in rivals(group).items():
        columns[f'speed ÷ {title}'] = lambda own, rival=rival: ratio(speeds(own), speeds(rival))
    twin = next((contestant for contestant in ours if contestant.name.endswith('torch')), None)
    if twin and len(ours) > 1:
        columns[f'speed ÷ {twin.name}'] = lambda own: '' if own is twin else ratio(speeds(own), speeds(twin))
        if twin.get('update_us'):
            columns['its update alone'] = lambda own: (
                '' if own is twin else ratio(twin.get('update_us'), own.get('update_us')))
    if BOUND in by_name:
        bound = by_name[BOUND]
        columns['collecting ÷ environment'] = lambda own: ratio(own.get('collect_us'), bound.get('collect_us'))
        columns['updating ÷ products'] = lambda own: ratio(own.get('update_us'), bound.get('update_us'))
    rows = [[own.name, *[cell(own) for cell in columns.values()]] for own in ours]
    return table(['', *columns], rows) if columns and ours else ''


def value_table(group):
    if any('goal' in contestant.arguments for contestant in group):
        rows = [[contestant.name, *(time_cells(contestant) if contestant.values else ('failed', contestant.failed))]
                for contestant in group]
        return table(['', 'median, s', 'seed by seed, s'], rows)
    rows = []
    for contestant in group:
        parts = [contestant.get(key) for key in ('collect_us', 'update_us')]
        cells = [number(statistics.median(part)) if part else '' for part in parts]
        spread = ('failed', contestant.failed) if contestant.failed else median_and_spread(speeds(contestant))
        rows.append([contestant.name, *spread, *cells])
    return table(['', 'steps/s', 'from – to', 'collecting, µs/step', 'updating, µs/step'], rows)


def grouped(everyone):
    """{workload: its contestants}"""
    groups = {}
    for contestant in everyone:
        groups.setdefault(contestant.workload, []).append(contestant)
    return {workload: add_bound(group) for workload, group in groups.items()}


def report(facts, groups):
    text = (f'# Speed\n\n{describe(facts)}\n\nRatios are medians over the rounds; in brackets, the least and '
            'the greatest. Off-policy, every step has one update. Collecting is all that is not in the update.\n\n'
            '![Steps per second](figures/speed.png)\n')
    for workload, group in groups.items():
        text += f'\n## {workload}\n\n{value_table(group)}\n{ratio_table(group)}'
    return text


def draw(groups):
    """A panel of bars for each workload: medians, with lines from the least to the greatest."""
    from matplotlib.figure import Figure
    columns = min(len(groups), 3)
    figure = Figure(figsize=(5 * columns, 2.9 * -(-len(groups) // columns)), layout='constrained')
    axes = figure.subplots(-(-len(groups) // columns), columns, squeeze=False).ravel()
    for panel in axes[len(groups):]:
        panel.axis('off')
    for panel, (workload, group) in zip(axes, groups.items()):
        has_bound = any(contestant.name == BOUND for contestant in group)
        shown = [contestant for contestant in group if speeds(contestant)
                 and not (has_bound and contestant.name in (ENVIRONMENT, PRODUCTS))]
        times = any('goal' in contestant.arguments for contestant in group)
        for place, contestant in enumerate(reversed(shown)):
            values = [1 / speed for speed in speeds(contestant) if speed] if times else speeds(contestant)
            if not values:
                panel.text(0, place, ' not reached', va='center', fontsize=8)
                continue
            kind = 'twin' if contestant.name.endswith('tf1') else contestant.kind
            median = statistics.median(values)
            panel.barh(place, median, color=COLOURS[kind], height=0.75, hatch='///' if kind == 'bound' else None,
                       edgecolor='#888888' if kind == 'bound' else 'none', linewidth=0.5,
                       xerr=[[median - min(values)], [max(values) - median]], error_kw=dict(lw=1, ecolor='#333333'))
            missed = len(contestant.values) - len(values)
            label = number(median) + (f', {missed} not reached' if missed else '')
            panel.annotate(label, (max(values), place), (4, 0), textcoords='offset points', va='center',
                           fontsize=8)
        names = [contestant.name.replace(BOUND, 'bound').replace(' alone', '') for contestant in reversed(shown)]
        panel.set_yticks(range(len(shown)), names, fontsize=8)
        panel.set_title(workload, fontsize=10, loc='left')
        panel.set_xlabel('seconds (less is better)' if times else 'steps per second', fontsize=8)
        panel.tick_params(axis='x', labelsize=8)
        panel.margins(x=0.14)
        panel.spines[['top', 'right']].set_visible(False)
    return figure


# ---- The command line

def show_profile(script, env, root):
    scripts = algorithm_files()
    if script not in scripts:
        raise UserError(f'--profile {script}: there is no such script{nearest(script, scripts)}; there are '
                        f'{", ".join(scripts)}')
    import gymnasium as gym
    env = env or (CARTPOLE if script.split('_')[0] in ON_POLICY else CHEETAH)
    try:
        gym.spec(env)
    except (gym.error.Error, ImportError):
        names = [name for name in gym.registry if '/' not in name]
        raise UserError(f'--env {env}: there is no such environment{nearest(env, names)}') from None
    command = [sys.executable, '-m', 'benchmarks.measure_ours']
    result = measure(command, dict(what='profile', script=script, env=env), True, root)
    if 'failed' in result:
        print(f'{script}: {result["failed"]}', file=sys.stderr)
        return 1
    print(result['text'])
    return 0


def main(argv=None):
    parser = make_parser(__doc__)
    parser.add_argument('--no_peers', action='store_true', help='without stable-baselines3 and sbx')
    parser.add_argument('--peers', metavar='FOLDER', default=str(FOLDER / '.peers'),
                        help='where their environment is, or is made (default: benchmarks/.peers)')
    parser.add_argument('--before', metavar='FOLDER', type=Path,
                        help='another checkout of this repository, whose scripts are measured too')
    parser.add_argument('--profile', metavar='SCRIPT', help='instead, print where the time of a script goes')
    parser.add_argument('--env', help=f'for --profile (default: {CARTPOLE}, off-policy {CHEETAH})')
    with one_line_errors('python -m benchmarks.speed'):
        args = parser.parse_args(argv)
        check(args)
        if args.before:
            for needed in 'ppo_torch.py', 'benchmarks/measure_ours.py':
                if not (args.before / needed).is_file():
                    raise UserError(f'--before {args.before} is no checkout of this repository: it has no {needed}')
            args.before = args.before.resolve()         # every measurement works in a folder of its own
        if args.env and not args.profile:
            raise UserError('--env is for --profile: the workloads have their environments, which --only can choose')
        if args.profile:
            return show_profile(args.profile, args.env, args.before or ROOT)
        everyone = choose(contestants(args), args.only)
        facts, peers = circumstances('speed', parser, args), None
        if not args.no_peers and any(contestant.kind in LIBRARIES for contestant in everyone):
            peers = prepare_peers(args.peers)
        if peers:
            facts['versions'].update(peers)
        else:
            everyone = [contestant for contestant in everyone if contestant.kind not in LIBRARIES]
        print(f'{args.rounds} rounds of {len(everyone)} measurements', flush=True)
        hold(everyone, args.rounds)
        facts['least_cpu_share'] = least_cpu_share(everyone)
        groups = grouped(everyone)
        return finish('speed', args, facts, everyone, report(facts, groups), lambda: draw(groups))


if __name__ == '__main__':
    sys.exit(main())
