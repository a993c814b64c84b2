"""PPO as it is usually written, to measure ppo_torch.py against: the shape of Spinning Up's loop.

The policy is a torch distribution that is asked at every step, together with the value function; the losses go through
distribution objects, every iteration computes its diagnostics, and Adam is the plain one. The mathematics is that of
ppo_torch.py.
"""
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.distributions import Categorical, Normal


def mlp(sizes):
    layers = []
    for i, (n_in, n_out) in enumerate(zip(sizes, sizes[1:])):
        layers += [nn.Linear(n_in, n_out)] + ([nn.Tanh()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*layers)


class ActorCritic(nn.Module):
    def __init__(self, observation_space, action_space, hidden_sizes=(64, 64)):
        super().__init__()
        obs_dim, self.continuous = observation_space.shape[0], isinstance(action_space, Box)
        act_dim = action_space.shape[0] if self.continuous else int(action_space.n)
        self.pi, self.v = mlp([obs_dim, *hidden_sizes, act_dim]), mlp([obs_dim, *hidden_sizes, 1])
        self.log_std = nn.Parameter(torch.full((act_dim,), -0.5))

    def distribution(self, obs):
        return Normal(self.pi(obs), torch.exp(self.log_std)) if self.continuous else Categorical(logits=self.pi(obs))

    def log_prob(self, dist, act):
        return dist.log_prob(act).sum(-1) if self.continuous else dist.log_prob(act)

    def step(self, obs):
        with torch.no_grad():
            dist = self.distribution(obs)
            act = dist.sample()
            return act.numpy(), self.v(obs).squeeze(-1).numpy(), self.log_prob(dist, act).numpy()


def advantages(rew, val, last_val, gamma, lam):
    adv, ret, next_adv, next_ret, next_val = np.zeros_like(rew), np.zeros_like(rew), 0, last_val, last_val
    for t in reversed(range(len(rew))):
        next_adv = adv[t] = rew[t] + gamma * next_val - val[t] + gamma * lam * next_adv
        next_ret = ret[t] = rew[t] + gamma * next_ret
        next_val = val[t]
    return adv, ret


def plain_ppo(env_fn, seed=0, steps_per_epoch=4000, epochs=50, gamma=0.99, lam=0.97, pi_lr=3e-4, vf_lr=1e-3,
              train_pi_iters=80, train_v_iters=80, clip_ratio=0.2, target_kl=0.01, max_ep_len=1000, on_epoch=None):
    """Train; on_epoch(epoch, returns) is called after every epoch and may return True to stop."""
    torch.manual_seed(seed)
    env = env_fn()
    ac = ActorCritic(env.observation_space, env.action_space)
    pi_params = [*ac.pi.parameters()] + ([ac.log_std] if ac.continuous else [])
    pi_optimizer, vf_optimizer = torch.optim.Adam(pi_params, lr=pi_lr), torch.optim.Adam(ac.v.parameters(), lr=vf_lr)
    obs, ep_ret, ep_len = env.reset(seed=seed)[0], 0, 0
    for epoch in range(epochs):
        data, paths, start, returns = [], [], 0, []
        for t in range(steps_per_epoch):
            act, val, logp = ac.step(torch.as_tensor(obs, dtype=torch.float32))
            bounded = np.clip(act, env.action_space.low, env.action_space.high) if ac.continuous else act
            next_obs, rew, terminated, truncated, _ = env.step(bounded)
            data.append((obs, act, rew, val, logp))
            obs, ep_ret, ep_len = next_obs, ep_ret + rew, ep_len + 1
            ended = terminated or truncated or ep_len == max_ep_len
            if ended or t == steps_per_epoch - 1:
                last_val = 0 if terminated else ac.step(torch.as_tensor(obs, dtype=torch.float32))[1]
                _, _, path_rew, path_val, _ = zip(*data[start:])
                paths.append(advantages(np.array(path_rew), np.array(path_val), last_val, gamma, lam))
                start = t + 1
            if ended:
                returns.append(ep_ret)
                obs, ep_ret, ep_len = env.reset()[0], 0, 0

        obs_all, act_all, _, _, logp_old = (torch.as_tensor(np.array(x), dtype=torch.float32) for x in zip(*data))
        adv, ret = (torch.as_tensor(np.concatenate(x), dtype=torch.float32) for x in zip(*paths))
        adv = (adv - adv.mean()) / adv.std()
        for _ in range(train_pi_iters):
            pi_optimizer.zero_grad()
            dist = ac.distribution(obs_all)
            logp = ac.log_prob(dist, act_all)
            ratio = torch.exp(logp - logp_old)
            clipped = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio)
            loss_pi = -torch.min(ratio * adv, clipped * adv).mean()
            kl, entropy = (logp_old - logp).mean().item(), dist.entropy().mean().item()
            clip_frac = ((ratio > 1 + clip_ratio) | (ratio < 1 - clip_ratio)).float().mean().item()
            if kl > 1.5 * target_kl:
                break
            loss_pi.backward()
            pi_optimizer.step()
        for _ in range(train_v_iters):
            vf_optimizer.zero_grad()
            loss_v = ((ac.v(obs_all).squeeze(-1) - ret)**2).mean()
            loss_v.backward()
            vf_optimizer.step()
        if on_epoch and on_epoch(epoch, returns, dict(kl=kl, entropy=entropy, clip_frac=clip_frac)):
            break
