"""The bugs that the walkthrough of TRPO hunts. Reading on spoils the hunt."""
import gymnasium as gym
import numpy as np

from walkthroughs import classroom
from walkthroughs.classroom import Bug


class Aim(gym.Env):
    """Ten shots: see a number x between -1 and 1, answer with sin(3 x); every shot costs the square of the miss."""
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-3, 3, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shots, self.obs = 0, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.obs, {}

    def step(self, action):
        rew = -float((action[0] - np.sin(3 * self.obs[0]))**2)
        self.shots, self.obs = self.shots + 1, self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.obs, rew, self.shots == 10, False, {}


SMALL = dict(ac_kwargs=dict(hidden_sizes=(8,)), train_v_iters=1)


def invent(agent, env, noise, judge):
    """An epoch's data without an environment: random observations, the agent's own actions, advantages by `judge`."""
    obs = np.random.default_rng(len(noise)).normal(size=(len(noise), *env.observation_space.shape)).astype(np.float32)
    act = np.array([agent.act(obs[i], noise[i]) for i in range(len(noise))], dtype=np.float32)
    val, logp, _ = agent.evaluate(obs, act, obs[:1])
    adv = judge(obs, act, noise)
    return dict(obs=obs, act=act, adv=((adv - adv.mean()) / adv.std()).astype(np.float32), ret=val, logp=logp)


def update_cart_pole(module, updates, **kwargs):
    """(the KL that the last of a few updates reports, the KL between the policies before and after it, the report)"""
    agent, env = classroom.make_agent(module.trpo, 'CartPole-v1', **SMALL, **kwargs)
    log_probs = lambda obs: np.stack([agent.evaluate(obs, np.full(len(obs), act, dtype=np.float32), obs[:1])[1]
                                      for act in (0, 1)], axis=1)
    for i in range(updates):
        noise = np.random.default_rng(i).gumbel(size=(200 + i, 2)).astype(np.float32)
        data = invent(agent, env, noise, lambda obs, act, _: (act - 0.5) * obs[:, 0] + obs[:, 1])
        before = log_probs(data['obs'])
        report = agent.update(data)
        true_kl = (np.exp(before) * (before - log_probs(data['obs']))).sum(1).mean()
    return float(report['KL']), float(true_kl), report


def check_reported_kl(module):
    """the KL of an update is that between the policy before it and the policy after it"""
    reported, true, _ = update_cart_pole(module, updates=3)
    assert abs(reported - true) < 1e-4, (f'the third update reports a KL of {reported:.4f}, and between the policies '
                                         f'before and after it there is one of {true:.4f}')


def check_log_std(module):
    """where small deviations from the mean are the good ones, the standard deviation shrinks"""
    agent, env = classroom.make_agent(module.trpo, 'Pendulum-v1', **SMALL)
    noise = np.random.default_rng(0).standard_normal((200, 1), dtype=np.float32)
    entropy = float(agent.update(invent(agent, env, noise, lambda obs, act, noise: -noise[:, 0]**2))['Entropy'])
    before = 0.5 * np.log(2 * np.pi * np.e) - 0.5
    assert entropy < before - 0.01, f'the entropy was {before:.3f} before the update, and is {entropy:.3f} after it'


def check_gaussian_kl(module):
    """no distribution differs from itself"""
    itself = lambda mu, log_std: module.Gaussian(mu, log_std).kl(module.Gaussian(mu, log_std))
    kl = classroom.call(itself, np.zeros((1, 2)), np.array([-0.5, -0.5]))[0]
    assert abs(kl) < 1e-9, f'the KL of a Gaussian from itself came out as {kl:.3f} instead of 0'


def check_shorter_steps(module):
    """if the first step is too long, a shorter one is tried"""
    reported, _, report = update_cart_pole(module, updates=1, delta=1.0, damping_coeff=1e-4)
    assert 0 < report['BacktrackIters'] < 10 and reported > 0, (
        f'the line search tried {report["BacktrackIters"]:.0f} shorter steps, and the policy moved by a KL of '
        f'{reported:.3g}')


BUGS = dict(
    A=Bug(
        'the old policy is never brought up to date',
        section='Update',
        old='self.ac_old.load_state_dict(self.ac.state_dict())',
        new='self.ac_old.eval()',
        tf1=('self.sess.run(self.set_old)', "self.copied = hasattr(self, 'copied') or self.sess.run(self.set_old)"),
        check=check_reported_kl,
        story='The trust region is a ball around the policy that collected the data. If its centre does not move, '
              'it stays where the run began: the policy walks to the rim of the first ball and can never leave it. In '
              'rlworkgroup/garage the meta-learner RL2 trained like that until pull request 1444, which copies the '
              'new parameters into the old policy after every update.',
        hint='the KL is always just below delta, even when the step was refused and nothing has moved. From which '
             'policy is it measured?',
    ),
    B=Bug(
        'log_std is left out of the parameters',
        section='Update',
        old='self.pi_params = [p for p in self.ac.pi.parameters() if p.requires_grad]',
        new="self.pi_params = [p for name, p in self.ac.pi.named_parameters() if 'net' in name]",
        tf1=('params, loss_pi, kl = self.ac.pi.trainable_variables,',
             "params, loss_pi, kl = [p for p in self.ac.pi.trainable_variables if 'log_std' not in p.name],"),
        check=check_log_std,
        story='The parameters were chosen by their names, those of the layers, and the standard deviation belongs '
              'to no layer. It was never trained, and nothing failed. So it was in the TRPO of openai/baselines '
              '(issue 262): Ant did not learn until logstd was added to the list.',
        hint='everything that should move does move, but for one parameter. Which line says what is moved?',
    ),
    C=Bug(
        'a bracket in the KL of two Gaussians',
        section='Networks',
        old='(torch.exp(2 * self.log_std) + (self.mu - other.mu)**2) * torch.exp(-2 * other.log_std)',
        new='torch.exp(2 * self.log_std) + (self.mu - other.mu)**2 * torch.exp(-2 * other.log_std)',
        tf1=('(tf.exp(2 * self.log_std) + (self.mu - other.mu)**2) * tf.exp(-2 * other.log_std)',
             'tf.exp(2 * self.log_std) + (self.mu - other.mu)**2 * tf.exp(-2 * other.log_std)'),
        check=check_gaussian_kl,
        story='Only the difference of the means is divided by the variance; the old variance is not. The formula then '
              'has no curvature along the standard deviation, so that the step there is limited by nothing but the '
              'damping, and a falling standard deviation makes the "KL" negative, which every line search accepts. '
              'Issue 17 of PacktPublishing/Deep-Reinforcement-Learning-Hands-On found it in chapter 15 of the book.',
        hint='the trust region does not hold, but only where actions are continuous. What is computed for these alone?',
    ),
    D=Bug(
        'the line search never shortens the step',
        section='Update',
        old='self.set_params(params_old - self.args.backtrack_coeff**i * step)',
        new='self.set_params(params_old - step)',
        check=check_shorter_steps,
        story='The full step, or none: ten times the same attempt. In wojzaremba/trpo the result of the line search '
              'was overwritten by the full step in the next line (issue 1), and a step with too large a KL was '
              'then taken back, so that the policy of issue 2 did not move at all. Pull request 3 repaired both.',
        hint='a line search that works ends at all sorts of numbers. What should differ from one attempt to the next?',
    ),
)
