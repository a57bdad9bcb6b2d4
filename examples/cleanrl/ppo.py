"""PPO in one file, in the style of CleanRL, for observations that are one array."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical


@dataclass(frozen=True)
class Args:
    """Train an agent with PPO."""

    env_id: str = "CartPole-v1"
    """Environment."""
    seed: int = 1
    """Random seed."""
    total_timesteps: int = 100_000
    """Steps of all copies together."""
    num_envs: int = 8
    """Copies of the environment."""
    num_steps: int = 128
    """Steps of each copy per update."""
    learning_rate: float = 1e-3
    """Initial learning rate, annealed linearly to 0."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    num_minibatches: int = 4
    """Minibatches per epoch."""
    update_epochs: int = 4
    """Passes over the steps of each update."""
    clip_coef: float = 0.2
    """Clipping range of the probability ratio."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""


def make_env(args: Args) -> gym.Env[Any, Any]:
    """Make one copy of the environment."""
    return gym.make(args.env_id)


def layer_init(layer: Any, std: float = 2**0.5) -> Any:
    """Give a layer orthogonal weights and zero biases."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """An actor and a critic on the convolutions of Mnih et al. 2015 for images, else on an MLP."""

    def __init__(self, envs: Any) -> None:
        super().__init__()
        space = envs.single_observation_space
        self.scale = 255.0 if space.dtype == np.uint8 else 1.0
        if len(space.shape) == 3:
            self.body = nn.Sequential(
                layer_init(nn.Conv2d(space.shape[0], 32, 8, 4)), nn.ReLU(),
                layer_init(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
                layer_init(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(),
                layer_init(nn.Linear(64 * 7 * 7, 512)), nn.ReLU(),
            )  # fmt: skip
            width = 512
        else:
            self.body = nn.Sequential(
                layer_init(nn.Linear(int(np.prod(space.shape)), 64)), nn.Tanh(),
                layer_init(nn.Linear(64, 64)), nn.Tanh(),
            )  # fmt: skip
            width = 64
        self.actor = layer_init(nn.Linear(width, int(envs.single_action_space.n)), 0.01)
        self.critic = layer_init(nn.Linear(width, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        """Return the distribution of actions, and the values."""
        hidden = self.body(obs.float() / self.scale)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden)[:, 0]


def train(args: Args) -> float:
    """Train, and return the mean return of the last hundred episodes."""
    torch.manual_seed(args.seed)
    copies = [lambda: make_env(args)] * args.num_envs
    envs = gym.vector.SyncVectorEnv(copies, autoreset_mode="SameStep")
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    shape, space = (args.num_steps, args.num_envs), envs.single_observation_space
    obs = torch.from_numpy(np.zeros((*shape, *space.shape), space.dtype))
    actions = torch.zeros(shape, dtype=torch.int64)
    logprobs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))

    start, global_step = time.monotonic(), 0
    running, returns = np.zeros(args.num_envs), deque[float](maxlen=100)
    batch_size = args.num_steps * args.num_envs
    num_updates = max(1, args.total_timesteps // batch_size)
    next_obs = torch.as_tensor(envs.reset(seed=args.seed)[0])

    for update in range(num_updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - update / num_updates)

        for step in range(args.num_steps):
            obs[step] = next_obs
            with torch.no_grad():
                policy, values[step] = agent(next_obs)
                actions[step] = policy.sample()
                logprobs[step] = policy.log_prob(actions[step])
            seen, reward, terminations, truncations, infos = envs.step(actions[step].numpy())
            done = terminations | truncations
            running += reward
            returns.extend(running[done])
            running[done] = 0.0
            rewards[step] = torch.as_tensor(np.clip(reward, -1.0, 1.0))
            dones[step] = torch.as_tensor(done)
            cut = truncations & ~terminations
            if cut.any():  # the episode could have gone on: add the value of its final observation
                with torch.no_grad():
                    final_values = agent(torch.as_tensor(np.stack(infos["final_obs"][cut])))[1]
                rewards[step, cut] += args.gamma * final_values
            next_obs = torch.as_tensor(seen)
        global_step += batch_size

        with torch.no_grad():
            advantages, later, next_value = torch.zeros(shape), torch.zeros(1), agent(next_obs)[1]
            for t in reversed(range(args.num_steps)):
                going_on = 1.0 - dones[t]
                delta = rewards[t] + args.gamma * next_value * going_on - values[t]
                later = advantages[t] = delta + args.gamma * args.gae_lambda * going_on * later
                next_value = values[t]

        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten(), logprobs.flatten()
        b_advantages, b_returns = advantages.flatten(), (advantages + values).flatten()
        for _ in range(args.update_epochs):
            for chosen in torch.randperm(batch_size).chunk(args.num_minibatches):
                policy, new_values = agent(b_obs[chosen])
                ratio = (policy.log_prob(b_actions[chosen]) - b_logprobs[chosen]).exp()
                gain = b_advantages[chosen]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-gain * ratio, -gain * clipped).mean()
                v_loss = 0.5 * (new_values - b_returns[chosen]).square().mean()
                entropy = policy.entropy().mean()
                loss = pg_loss + args.vf_coef * v_loss - args.ent_coef * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        mean = float(np.mean(returns)) if returns else float("nan")
        rate = global_step / (time.monotonic() - start)
        print(f"global_step={global_step} return={mean:.2f} SPS={rate:.0f}", flush=True)

    envs.close()
    return mean


if __name__ == "__main__":
    train(tyro.cli(Args))
