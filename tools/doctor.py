"""What looks wrong with a run, in plain words, and what to try.

    python -m tools.doctor data/ppo_torch/ppo_torch_s0 [RUN ...]

It reads progress.txt and config.json, also of runs in progress, and knows nothing of the environment. So it compares a
run with itself: "poor" returns are those that never rose, or that fell back. Every check below is a function of config
and columns ({name: a number per epoch; nan where the cell is empty, inf where it holds nan or inf}) that returns a
message, or None if all is well. Its limits are rules of thumb.
"""
import os
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from common.errors import ArgumentParser, UserError, one_line_errors, printable
from common.logx import LARGEST, read_progress
from common.run import BOUNDS
from common.serialization import read_json

ENOUGH = 10                     # epochs before returns are judged: many runs do not move in the first few
NEEDED = {'Epoch', 'TotalEnvInteracts', 'AverageEpRet', 'epochs', 'steps_per_epoch', 'num_procs', 'max_ep_len', 'gamma'}


# ---- What the checks share

def settings(config, *names):
    """'pi_lr (0.0003) or lr (0.001)': those names that the run has, with their values."""
    return ' or '.join(f'{name} ({config[name]:g})' for name in names if name in config)


def count(columns, chosen):
    """'4 of 10 epochs, first in epoch 2'."""
    return f'{chosen.sum()} of {len(chosen)} epochs, first in epoch {columns["Epoch"][chosen.argmax()]:.0f}'


def late(values):
    """The average of the last fifth of the epochs that have a value; nan without any."""
    values = values[~np.isnan(values)]
    return values[-max(1, len(values) // 5):].mean() if len(values) else np.nan


def judge_returns(columns):
    """How the returns developed, of test episodes or else of training; learned is None if it is too early to say."""
    name = 'AverageTestEpRet' if np.isfinite(columns.get('AverageTestEpRet', np.nan)).any() else 'AverageEpRet'
    there = ~np.isnan(columns[name])
    values, n = columns[name][there], there.sum()
    if n < ENOUGH:
        return SimpleNamespace(name=name, learned=None, fell=False, well=False)
    sums = np.cumsum([0, *values])
    smooth = (sums[n // 5:] - sums[:-(n // 5)]) / (n // 5)                              # over a fifth of the run
    start, best = values[:n // 10].mean(), smooth.max()
    spread = columns[name.replace('Average', 'Std')][there][:n // 10].mean()            # of single episodes
    learned = best - start > spread / 2
    fell = learned and (values[-(n // 5):] < (start + best) / 2).all()
    return SimpleNamespace(name=name, learned=learned, fell=fell, well=learned and not fell, epochs=n, spread=spread,
                           start=start, best=best, best_epoch=columns['Epoch'][there][smooth.argmax() + n // 5 - 1])


# ---- Any run

def not_finite(config, columns):
    bad = {name: np.isinf(values).argmax() for name, values in columns.items() if np.isinf(values).any()}
    if not bad:
        return None
    first = min(bad.values())
    return (f'{", ".join(name for name in bad if bad[name] == first)} became nan or infinite in epoch '
            f'{columns["Epoch"][first]:.0f}, and nothing after that means anything. Try a smaller '
            f'{settings(config, "pi_lr", "vf_lr", "q_lr", "lr")}, and look for huge rewards and observations.')


def no_finished_episode(config, columns):
    empty, length = np.isnan(columns['AverageEpRet']), late(columns['EpLen'])
    steps = config['steps_per_epoch'] // config['num_procs']
    share = f'each process (of {config["num_procs"]}) takes {steps} steps in an epoch'
    if empty.mean() > 0.2:
        return (f'No episode finished in {count(columns, empty)}, so that AverageEpRet is empty: {share}, and an '
                f'episode may have {config["max_ep_len"]}. Try more steps_per_epoch, fewer processes, or a smaller '
                'max_ep_len.')
    if not length > steps:
        return None
    return (f'Processes are starved: {share}, and episodes lately have {length:.0f} (EpLen up to epoch '
            f'{columns["Epoch"][-1]:.0f}), so many processes finish none, and the returns are those of a few. Try '
            'more steps_per_epoch, or fewer processes.')


def no_learning(config, columns):
    run = judge_returns(columns)
    if run.learned is None or run.learned or no_update(config, columns):
        return None
    return (f'Nothing was learned in {run.epochs} epochs: {run.name} began at {run.start:.4g}, and its best stretch '
            f'({run.best:.4g}, up to epoch {run.best_epoch:.0f}) is above that by less than half the spread of '
            f'single episodes, {run.spread:.3g}. Unless there is no more to get, try another '
            f'{settings(config, "pi_lr", "delta", "q_lr", "lr")}, more steps, or rewards for progress.')


def fell_back(config, columns):
    run = judge_returns(columns)
    if not run.fell:
        return None
    return (f'It learned, and lost it: {run.name} averaged {run.best:.4g} up to epoch {run.best_epoch:.0f}, and '
            f'{late(columns[run.name]):.4g} at the end. Try a smaller '
            f'{settings(config, "pi_lr", "delta", "q_lr", "lr")}; --keep_all keeps the models of better epochs.')


# ---- On-policy

def entropy_collapsed(config, columns):
    entropy, run = columns['Entropy'], judge_returns(columns)
    # That of a Gaussian begins at 0.92 per dimension and may become negative; that of n actions cannot go below 0.
    gaussian = (entropy < 0).any()
    limit = entropy[0] - 2 * max(1, round(entropy[0] / 0.92)) if gaussian else 0.05
    if late(entropy) >= limit or run.well:
        return None
    meaning = 'the noise in its actions is seven times smaller' if gaussian else 'it is almost sure of every action'
    return (f'The policy stopped exploring: Entropy was {entropy[0]:.3g} at first, and below {limit:.2g} in '
            f'{count(columns, entropy < limit)} ({meaning}), while {run.name} is {late(columns[run.name]):.4g}. Try a '
            f'smaller {settings(config, "pi_lr", "delta", "target_kl")}, or more steps_per_epoch.')


def kl_stops_at_once(config, columns):
    at_once = columns['StopIter'] <= 1
    if len(at_once) < 3 or at_once.mean() < 0.8 or config['train_pi_iters'] <= 2:
        return None
    return (f'The policy made one gradient step of {config["train_pi_iters"]} in {count(columns, at_once)}: that was '
            f'beyond 1.5 target_kl already (median KL {np.median(columns["KL"]):.2g}). Try a smaller '
            f'{settings(config, "pi_lr")}, or a larger {settings(config, "target_kl")}.')


def line_search_fails(config, columns):
    failed = columns['BacktrackIters'] >= config['backtrack_iters']
    if failed.mean() <= 1 / 3:
        return None
    return (f'The line search found no step (BacktrackIters {config["backtrack_iters"]}) in {count(columns, failed)}, '
            f'and the policy stayed as it was. Try a smaller {settings(config, "delta")}, a larger '
            f'{settings(config, "damping_coeff", "backtrack_iters")}; and see whether rewards differ at all.')


def value_not_learning(config, columns):
    # The share of the mean of ret^2 that is missed. Explained variance would need the variance of ret: not logged.
    loss, val = columns['LossV'], np.hypot(columns['AverageVVals'], columns['StdVVals'])
    missed = loss / (loss + val**2 + 1e-12)
    idle = (columns['DeltaLossV'] > -0.001 * loss) & (missed > 0.1)
    if len(loss) >= 3 and idle.mean() > 0.5:
        return (f'The value function does not learn: its update did not lower LossV (now {loss[-1]:.3g}) in '
                f'{count(columns, idle)}. If DeltaLossV is positive try a smaller {settings(config, "vf_lr")}, else a '
                f'larger one or more {settings(config, "train_v_iters")}.')
    if len(loss) < ENOUGH or late(missed) <= 0.8:
        return None
    return (f'The value function is far behind: after {len(loss)} epochs its error (the root of LossV) is '
            f'{late(np.sqrt(loss)):.3g} where its values are about {late(val):.3g}, so that advantages are mostly '
            f'noise. Try a larger {settings(config, "vf_lr", "train_v_iters")}, or rewards scaled down.')


# ---- Off-policy

def no_update(config, columns):
    steps, planned = columns['TotalEnvInteracts'][-1], config['steps_per_epoch'] * config['epochs']
    if 'LossQ' in columns and np.isnan(columns['LossQ']).all():
        return (f'There was no update in {steps:.0f} steps (up to epoch {columns["Epoch"][-1]:.0f}) of {planned}: they '
                f'begin after {settings(config, "update_after")}. Try a smaller one, or wait.')
    if config.get('start_steps', 0) < max(steps, planned):
        return None
    return (f'The policy never acts: all {planned} steps, up to epoch {config["epochs"] - 1}, are random, since it '
            f'takes over after {settings(config, "start_steps")}. Try a smaller one, or more epochs.')


def q_too_high(config, columns):
    """Averaged over an episode of L steps, the return to go is at most (return / L) / (1 - gamma), wherever in the
    episode the rewards are. Twice the best of these bounds, plus half of the largest, leaves room for luck."""
    horizon = 1 / max(1 - config['gamma'], 1 / config['max_ep_len'])
    best, average, length = (np.concatenate([columns[name.format(kind)] for kind in ('', 'Test')])
                             for name in ('Max{}EpRet', 'Average{}EpRet', '{}EpLen'))
    q = np.fmax.reduce([columns[name] for name in columns if name.startswith('AverageQ')])
    if np.isnan(q).all() or np.isnan(best).all():
        return None
    i, alpha = np.nanargmax(best / length), columns.get('Alpha', config.get('alpha'))
    bonus = max(0, np.nanmax(-alpha * columns['AverageLogPi']) * horizon) if 'AverageLogPi' in columns else 0
    bound = max(0, best[i] / length[i] * horizon) + bonus
    above = q > 2 * bound + np.nanmax(np.abs(average / length)) * horizon / 2
    if not above.any():
        return None
    return (f'Q is far above what returns can be: the average is up to {np.nanmax(q):.4g}, and too high in '
            f'{count(columns, above)}, where about {bound:.3g} is possible (the best return was {best[i]:.4g} in '
            f'{length[i]:.0f} steps, gamma {config["gamma"]:g} sums up {horizon:.0f} steps, entropy adds {bonus:.3g}). '
            f'Try a smaller {settings(config, "q_lr", "lr")}, polyak nearer to 1, rewards scaled down, or td3 or sac.')


def policy_saturated(config, columns):
    run, logp = judge_returns(columns), late(columns['AverageLogPi'])
    if not logp > 10 or run.well:
        return None
    return (f'The policy is hardly stochastic, or stuck at the bounds of its actions: LogPi is {logp:.3g} lately '
            f'(up to epoch {columns["Epoch"][-1]:.0f}), and {run.name} {late(columns[run.name]):.4g}. Try a larger '
            f'alpha or --alpha auto, a smaller {settings(config, "lr")}, or rewards scaled down.')


def alpha_explodes(config, columns):
    alpha = columns['Alpha'][~np.isnan(columns['Alpha'])]
    if len(alpha) < 3 or alpha[-1] < 10 or alpha[-1] < 2 * alpha[len(alpha) // 2]:
        return None
    return (f'The learned alpha explodes, so that entropy drowns the rewards: {alpha[0]:.3g} at first, '
            f'{alpha[len(alpha) // 2]:.3g} half-way, {alpha[-1]:.3g} in epoch {columns["Epoch"][-1]:.0f}. Try rewards '
            f'scaled down, a smaller {settings(config, "lr")}, or a fixed --alpha.')


CHECKS = [                      # besides not_finite and no_update; each for the runs that have its column
    (no_finished_episode, 'EpLen'), (entropy_collapsed, 'Entropy'), (kl_stops_at_once, 'StopIter'),
    (line_search_fails, 'BacktrackIters'), (value_not_learning, 'LossV'), (q_too_high, 'LossQ'),
    (policy_saturated, 'AverageLogPi'), (alpha_explodes, 'Alpha'), (no_learning, 'AverageEpRet'),
    (fell_back, 'AverageEpRet')]


# ---- The command line

def diagnose(config, columns):
    """The messages of all checks; where a number is not finite, the others look at the epochs before it."""
    finite = ~np.any([np.isinf(values) for values in columns.values()], axis=0)
    messages = [not_finite(config, columns), no_update(config, columns)]
    columns = {name: values[:len(finite) if finite.all() else finite.argmin()] for name, values in columns.items()}
    if len(columns['Epoch']):
        messages += [check(config, columns) for check, column in CHECKS if column in columns]
    return [message for message in messages if message]


def runs_inside(folder):
    """Text that names the runs below a folder, or '' if there are none."""
    runs = sorted(str(path.parent) for path in Path(folder).glob('*/**/progress.txt')) if os.path.isdir(folder) else []
    more = f' and {len(runs) - 10} more' if len(runs) > 10 else ''
    return f', but runs inside it; give one of {", ".join(runs[:10])}{more}' if runs else ''


def check_numbers(config, path):
    """A UserError if what has to be a number in a run's configuration is not one, or is too small."""
    for name, (low, _) in dict(BOUNDS, num_procs=BOUNDS['num_cpu']).items():
        value = config.get(name, low)
        learned = name == 'alpha' and value == 'auto'
        if not (learned or isinstance(value, (int, float)) and low <= value <= LARGEST):
            raise UserError(f'{path} is damaged: {name} is {printable(repr(value))} there, and not a number of at '
                            f'least {low}')


def read_run(folder):
    """config.json, and progress.txt as columns."""
    path = os.path.join(folder, 'config.json')
    try:
        os.stat(path)
        header, rows = read_progress(os.path.join(folder, 'progress.txt'))
        rows = [list(row.values()) for row in rows]
        numbers = np.array([[float(cell or 'nan') for cell in row] for row in rows])
    except (OSError, ValueError) as error:
        inside = runs_inside(folder)
        text = f'has no config.json{inside}' if inside else f'is not a run such as data/ppo_torch/ppo_torch_s0: {error}'
        raise UserError(f'{folder} {text}') from None
    config = read_json(path)
    check_numbers(config, path)
    if not rows:
        raise UserError(f'{folder} has no complete epoch yet')
    if not {*header, *config} >= NEEDED:
        raise UserError(f'{folder} lacks {", ".join(sorted(NEEDED - {*header, *config}))}: it is from another program')
    numbers[np.isnan(numbers) & (np.array(rows) != '')] = np.inf        # a value that was nan, not an empty cell
    return config, dict(zip(header, numbers.T))


def main(argv=None):
    parser = ArgumentParser(prog='python -m tools.doctor', description=__doc__)
    parser.add_argument('runs', metavar='RUN', nargs='+', help='folder of a run, such as data/ppo_torch/ppo_torch_s0')
    with one_line_errors('doctor'), np.errstate(all='ignore'):
        for folder in parser.parse_args(argv).runs:
            config, columns = read_run(folder)
            algo, env_name = printable(config.get('algo')), printable(config.get('env_name'))
            print(f'{folder}: {len(columns["Epoch"])} epochs of {algo} on {env_name}')
            try:
                messages = diagnose(config, columns) or ['Nothing looks wrong.']
            except KeyError as error:
                raise UserError(f'{folder} lacks {error}: it is damaged, or from another program') from error
            except (TypeError, ValueError) as error:        # such as a table without any column of Q values
                raise UserError(f'{folder} is damaged, or from another program ({type(error).__name__}: '
                                f'{printable(error)})') from error
            for message in messages:
                print(textwrap.fill(message, 100, initial_indent='  - ', subsequent_indent='    '))


if __name__ == '__main__':
    main()
