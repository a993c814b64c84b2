"""The proof that twins are twins: a PyTorch file and its TensorFlow-1 file compute the same numbers, and make the same run.

What remains is rounding: the frameworks add up in another order. It is about 1e-7, and it is to stay near there for as
long as the mathematics does not amplify it. Under mpirun this file is a script, see `many_processes`.
"""
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers import SmallEnv, read_progress

from common.env_tools import make_env
from common.mpi_tools import gather, num_procs, proc_id
from tools import twins
from tools.sections import ALGORITHMS, FRAMEWORKS, ROOT
from tools.twins import flat, losses_and_gradients, make_agent, make_batch, parameters

SPACES = dict(discrete=Discrete(3), box=Box(np.float32([-1, 0.5]), np.float32([3, 1])))     # not symmetric, nor alike
ON_POLICY = dict(ac_kwargs=dict(hidden_sizes=(16, 8)), train_v_iters=5)
OFF_POLICY = dict(ac_kwargs=dict(hidden_sizes=(16, 8)), polyak=0.9)                         # targets that soon move
VARIANTS = dict(
    vpg=('vpg', dict(ON_POLICY, pi_lr=0.01)),
    ppo=('ppo', dict(ON_POLICY, pi_lr=0.01, train_pi_iters=20)),                            # so fast that it stops early
    trpo=('trpo', dict(ON_POLICY, cg_iters=5)),
    npg=('trpo', dict(ON_POLICY, cg_iters=5, algo='npg')),
    ddpg=('ddpg', OFF_POLICY),
    td3=('td3', OFF_POLICY),
    sac=('sac', OFF_POLICY),
    auto=('sac', dict(OFF_POLICY, alpha='auto')),
)
CASES = [(variant, space) for variant, (_, kwargs) in VARIANTS.items() for space in SPACES
         if space == 'box' or 'polyak' not in kwargs]
pytestmark = pytest.mark.skipif(not all(map(importlib.util.find_spec, ('torch', 'tensorflow'))),
                                reason='one of the frameworks is not installed')


# %% Helpers
@pytest.fixture(autouse=True, scope='module')
def one_thread():
    """A second thread costs small networks more than it brings."""
    import torch
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def spaces_only(space):
    return make_env(functools.partial(SmallEnv, Box(-1, 1, (4,)), SPACES[space]))


def make_twins(variant, space, **changes):
    """The agents of both frameworks, made with the same seed."""
    algo, kwargs = VARIANTS[variant]
    return [make_agent(f'{algo}_{framework}', spaces_only(space), **{**kwargs, **changes}) for framework in FRAMEWORKS]


@pytest.fixture(params=CASES, ids='-'.join, scope='module')
def pair(request):
    """Twins that several tests use, since a graph takes its time to build: variant, space, agents, what they were first."""
    variant, space = request.param
    agents = make_twins(variant, space, seed=7)
    first = [(arrays(agent), actions(agent, space)) for agent in agents]
    yield variant, space, agents, first
    agents[1].sess.close()


def arrays(agent):
    """{network: [its parameters, as arrays of their own]}"""
    if hasattr(agent, 'sess'):
        return agent.sess.run(parameters(agent))
    return {name: [p.detach().numpy().astype(np.float32) for p in params] for name, params in parameters(agent).items()}


def set_arrays(agent, new):
    for name, params in parameters(agent).items():
        for p, array in zip(params, new.get(name, [])):
            if hasattr(agent, 'sess'):
                p.load(array, agent.sess)
            else:
                p.data.copy_(p.new_tensor(array))
    if hasattr(agent, 'sess'):
        agent.refresh_policy()


def disturb(agents, rng):
    """Move all parameters from where agents begin: there targets are copies, and all deviations are equal."""
    new = {name: [np.float32(array + 0.1 * rng.standard_normal(array.shape)) for array in params]
           for name, params in arrays(agents[1]).items()}
    for agent in agents:
        set_arrays(agent, new)


def own_batch(agent, space, rng, n=64):
    """A batch as training makes it: on-policy, with the log-probabilities of the policy itself."""
    data, *noise = make_batch(agent, spaces_only(space), rng, n)
    return dict(data, logp=agent.evaluate(data['obs'], data['act'])) if 'logp' in data else data, *noise


def actions(agent, space, n=20):
    """What an agent does in some observations, with some noise and, off-policy, without."""
    rng = np.random.default_rng(3)
    obs = rng.standard_normal((n, 4), dtype=np.float32)
    noise = rng.standard_normal((n, 3 if space == 'discrete' else 2), dtype=np.float32)
    acts = [agent.act(*pair) for pair in zip(obs, noise)]
    return np.array(acts + [agent.act(o) for o in obs] if hasattr(agent, 'noises') else acts)


def assert_near(x, y, tolerance, unit=None):
    """The vectors differ by at most `tolerance` times the norm of the first, or of `unit`."""
    assert x.shape == y.shape and np.isfinite(x).all()
    assert np.linalg.norm(x - y) <= tolerance * np.linalg.norm(x if unit is None else unit)


# %% The same numbers
def test_new_agents_have_the_same_weights_and_act_the_same(pair):
    variant, _, _, ((torch_arrays, torch_acts), (tf_arrays, tf_acts)) = pair
    unused = {'pi_targ'} if VARIANTS[variant][0] == 'sac' else set()        # what PyTorch copies along, for brevity
    assert set(torch_arrays) - unused == set(tf_arrays)
    for name in tf_arrays:
        for x, y in zip(torch_arrays[name], tf_arrays[name], strict=True):
            assert x.dtype == y.dtype == np.float32
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(torch_acts, tf_acts)


def test_losses_and_gradients_are_the_same(pair):
    variant, space, agents, _ = pair
    rng = np.random.default_rng(1)
    disturb(agents, rng)
    batch = make_batch(agents[0], spaces_only(space), rng, n=64)
    (torch_losses, torch_grads), (tf_losses, tf_grads) = [losses_and_gradients(agent, *batch) for agent in agents]
    assert torch_losses == pytest.approx(tf_losses, rel=1e-5) and len(tf_losses) == 2
    assert list(torch_grads) == list(tf_grads)
    for name, grad in torch_grads.items():
        assert np.linalg.norm(grad) > 1e-3
        assert_near(grad, tf_grads[name], 1e-5)


def test_parameters_are_the_same_after_1_and_after_10_updates(pair):
    variant, space, agents, _ = pair
    rng = np.random.default_rng(2)
    disturb(agents, rng)
    start, old_acts, tried = arrays(agents[1]), actions(agents[1], space), []
    for agent in agents:
        agent.updates = 0
    for update in range(1, 11):
        batch = own_batch(agents[0], space, rng)
        torch_metrics, tf_metrics = [agent.update(*batch) for agent in agents]
        assert torch_metrics.keys() == tf_metrics.keys()
        for key, value in torch_metrics.items():
            np.testing.assert_allclose(tf_metrics[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
        tried.append(torch_metrics.get('StopIter'))
        if update in (1, 10):
            torch_arrays, tf_arrays = arrays(agents[0]), arrays(agents[1])
            for name, params in start.items():
                x, y = flat(torch_arrays[name]), flat(tf_arrays[name])
                assert_near(x, y, 1e-4, unit=x - flat(params))              # of the way that they have gone
    if variant == 'ppo':
        assert max(tried) > min(tried)                                      # it did stop early

    # Acting follows the updates and, for equal weights, is equal.
    torch_acts, tf_acts = [actions(agent, space) for agent in agents]
    np.testing.assert_allclose(torch_acts, tf_acts, atol=1e-4)
    assert np.abs(torch_acts - old_acts).max() > 1e-3
    set_arrays(agents[1], torch_arrays)
    np.testing.assert_array_equal(torch_acts, actions(agents[1], space))


def test_sac_learns_the_same_alpha():
    ...


@pytest.mark.parametrize('space', SPACES)
@pytest.mark.parametrize('changes, searched', [
    (dict(cg_iters=5), 0), (dict(delta=2.0, cg_iters=5), 1), (dict(delta=2.0, cg_iters=5, backtrack_iters=1), 1),
    (dict(), 0)])
def test_trpo_has_the_same_direction_and_accepts_the_same_step(space, changes, searched, monkeypatch):
    agents, rng, solved = make_twins('trpo', space, **changes), np.random.default_rng(1), []
    disturb(agents, rng)
    for file in (sys.modules[type(agent).__module__] for agent in agents):
        def recorded(apply_matrix, b, iters, solve=file.conjugate_gradient):
            solved.append((b, solve(apply_matrix, b, iters)))
            return solved[-1][1]
        monkeypatch.setattr(file, 'conjugate_gradient', recorded)
    start, batch = flat(arrays(agents[0])['pi']), own_batch(agents[0], space, rng)
    torch_metrics, tf_metrics = [agent.update(*batch) for agent in agents]
    (torch_grad, torch_x), (tf_grad, tf_x) = solved
    print('DIR', np.linalg.norm(torch_x-tf_x)/np.linalg.norm(torch_x), torch_metrics['BacktrackIters'], tf_metrics['BacktrackIters'])
    steps=[flat(arrays(agent)['pi']) - start for agent in agents]
    print('STEP', np.linalg.norm(steps[0]-steps[1])/np.linalg.norm(steps[0]))
