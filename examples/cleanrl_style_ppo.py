"""PPO in one file, in CleanRL's style, for any Gymnasium vector and any structured environment.

    python examples/cleanrl_style_ppo.py [--env expedition] [--total-steps 60000]
    python examples/cleanrl_style_ppo.py --env CartPole-v1 --vector gymnasium

The loop knows a `gymnasium.vector.VectorEnv` that restarts episodes in the same step, and nothing
else. fugu's gives observations as flat rows, and the network's first layer unpacks them: Expedition
shows a map, texts, numbers and a bag of things, and takes a direction, a switch and an effort.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
import tyro
from expedition import BAG
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

import fugu
from fugu.policies import unpack
from fugu.spaces import Leaf
from fugu.vector import to_gymnasium

Envs = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class Settings:
    """Train a policy with PPO."""

    env: str = "expedition"
    """fugu's Expedition, or whatever `fugu.make` takes."""
    vector: Literal["fugu", "gymnasium"] = "fugu"
    """Whose vector; Gymnasium's for environments whose observation is one array."""
    total_steps: int = 60_000
    """Steps of all copies together."""
    num_envs: int = 16
    """Copies of the environment."""
    num_steps: int = 32
    """Steps of each copy between two updates."""
    learning_rate: float = 1e-3
    """At the start; it falls to zero."""
    gamma: float = 0.98
    """Discount of later rewards."""
    gae_lambda: float = 0.95
    """Between one-step (0) and whole-episode (1) advantages."""
    epochs: int = 4
    """Times that each update goes over its data."""
    minibatches: int = 4
    """Parts in which it does."""
    clip: float = 0.2
    """How far an update may move the policy."""
    entropy: float = 0.005
    """Worth of a policy that is not sure of itself."""
    seed: int = 1
    """Of everything."""


# ---------------------------------------------------------------------- environments


def make_envs(cfg: Settings) -> Envs:
    """The vector."""
    if cfg.vector == "gymnasium":
        factories = [lambda: gymnasium.make(cfg.env)] * cfg.num_envs
        return SyncVectorEnv(factories, autoreset_mode=AutoresetMode.SAME_STEP)
    if cfg.env == "expedition":
        limits = {"walker/bag": BAG}
        vector = fugu.make("expedition:Expedition", cfg.num_envs, limits=limits)
    else:
        vector = fugu.make(cfg.env, cfg.num_envs)
    return to_gymnasium(vector, flat=True)


def layouts(envs: Envs) -> tuple[fugu.Layout, fugu.Layout]:
    """How its observations and actions stand in flat rows."""
    found = getattr(envs, "observation_layout", None)
    action_layout = fugu.Layout.of(envs.single_action_space)
    return found or fugu.Layout.of(envs.single_observation_space), action_layout


# ---------------------------------------------------------------------- the network


def leaves(tree: Any) -> Iterator[Any]:
    """The arrays of a tree, in the order of its layout."""
    if isinstance(tree, dict | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(item)
    else:
        yield tree


def features(layout: fugu.Layout, rows: Tensor) -> Tensor:
    """Flat rows as floats, every choice one-hot."""
    tree = unpack(layout, rows)
    parts = [encode(leaf.space, x) for leaf, x in zip(layout.leaves, leaves(tree), strict=True)]
    return torch.cat([part.reshape(len(rows), -1) for part in parts], 1)


def encode(space: Any, values: Tensor) -> Tensor:
    """One leaf of a batch as floats."""
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts = np.max(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        choices = values.long() - torch.as_tensor(space.start)
        return nn.functional.one_hot(choices.clamp(0, int(counts) - 1), int(counts)).float()
    return values.float() / scale(space)


def scale(space: Any) -> float:
    """The largest number of a bounded space."""
    bound = float(np.max(np.abs([space.low, space.high]))) if isinstance(space, spaces.Box) else 1.0
    return bound if 0 < bound < 1e6 else 1.0


class Agent(nn.Module):
    """Observations in, a distribution of actions and a value out.

    An action is a row of numbers: choices counted from 0, and continuous ones as they come.
    """

    def __init__(self, observation_layout: fugu.Layout, action_layout: fugu.Layout) -> None:
        super().__init__()
        self.observation_layout, self.action_layout = observation_layout, action_layout
        self.counts = [n for leaf in action_layout.leaves for n in choices_of(leaf)]
        width = features(observation_layout, torch.from_numpy(observation_layout.zeros(1))).shape[1]
        self.body = nn.Sequential(
            nn.Linear(width, 128), nn.LayerNorm(128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
        )
        self.policy = nn.Linear(128, sum(n or 1 for n in self.counts))
        self.value = nn.Linear(128, 1)
        self.log_spread = nn.Parameter(torch.full((self.counts.count(0),), -0.5))
        nn.init.normal_(self.policy.weight, std=0.01)
        nn.init.zeros_(self.policy.bias)

    def forward(self, rows: Tensor) -> tuple[list[Categorical | Normal], Tensor]:
        """The distribution of each number of the action, and the value."""
        hidden = self.body(features(self.observation_layout, rows))
        parts = self.policy(hidden).split([n or 1 for n in self.counts], dim=1)
        spreads = iter(self.log_spread.exp())
        numbers: list[Categorical | Normal] = [
            Categorical(logits=part) if count else Normal(part[:, 0], next(spreads))
            for count, part in zip(self.counts, parts, strict=True)
        ]
        return numbers, self.value(hidden)[:, 0]

    def act(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, their log-probabilities, and values."""
        numbers, values = self(rows)
        actions = torch.stack([number.sample().float() for number in numbers], 1)
        return actions, log_probability(numbers, actions), values

    def to_env(self, actions: Tensor) -> Any:
        """Actions as the vector takes them: the tree of arrays of its action space."""
        rows = self.action_layout.zeros(len(actions))
        tree, begin = self.action_layout.views(rows), 0
        for leaf, out in zip(self.action_layout.leaves, leaves(tree), strict=True):
            end = begin + int(np.prod(leaf.shape))
            values = actions[:, begin:end].numpy().reshape(out.shape)
            if isinstance(leaf.space, spaces.Box):
                out[...] = values.clip(leaf.space.low, leaf.space.high)
            else:
                out[...] = values + getattr(leaf.space, "start", 0)
            begin = end
        return tree


def choices_of(leaf: Leaf) -> list[int]:
    """How many choices each number of an action's leaf has; 0 if it is continuous."""
    match leaf.space:
        case spaces.Discrete():
            return [int(leaf.space.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in leaf.space.nvec.reshape(-1)]
        case spaces.MultiBinary():
            return [2] * int(np.prod(leaf.shape))
        case _:
            return [0] * int(np.prod(leaf.shape))


def log_probability(numbers: list[Categorical | Normal], actions: Tensor) -> Tensor:
    """Of whole actions."""
    return sum((number.log_prob(actions[:, i]) for i, number in enumerate(numbers)), torch.zeros(1))


# ---------------------------------------------------------------------- PPO


@dataclass
class Rollout:
    """What the copies went through since the last update, `[num_steps, num_envs, ...]`."""

    rows: Tensor
    actions: Tensor
    log_probabilities: Tensor
    values: Tensor
    rewards: Tensor
    ended: Tensor

    @classmethod
    def zeros(cls, cfg: Settings, agent: Agent) -> Rollout:
        """Room for one."""
        shape = (cfg.num_steps, cfg.num_envs)
        rows = torch.from_numpy(agent.observation_layout.zeros(*shape))
        return cls(
            rows, torch.zeros(*shape, len(agent.counts)), *(torch.zeros(shape) for _ in range(4))
        )


class Collector:
    """Steps the vector and keeps count of its episodes."""

    def __init__(self, envs: Envs, agent: Agent, cfg: Settings) -> None:
        self.envs, self.agent, self.cfg = envs, agent, cfg
        self.rows = self.to_rows(envs.reset(seed=cfg.seed)[0])
        self.running = np.zeros(cfg.num_envs)
        self.returns: list[float] = []

    def to_rows(self, observations: Any) -> Tensor:
        """Observations as flat rows."""
        return torch.as_tensor(np.asarray(observations).reshape(len(observations), -1))

    @torch.no_grad()
    def collect(self, rollout: Rollout) -> Tensor:
        """Fill a rollout; the values after its end."""
        for t in range(self.cfg.num_steps):
            actions, log_probabilities, values = self.agent.act(self.rows)
            rollout.rows[t], rollout.actions[t] = self.rows, actions
            rollout.log_probabilities[t], rollout.values[t] = log_probabilities, values
            observations, rewards, terminations, truncations, infos = self.envs.step(
                self.agent.to_env(actions)
            )
            ended = terminations | truncations
            self.count(rewards, ended)
            rollout.rewards[t] = torch.as_tensor(rewards)
            rollout.ended[t] = torch.as_tensor(ended)
            cut = np.flatnonzero(truncations & ~terminations)
            if len(cut):  # a limit of time is no end: what would have come is still worth something
                last = self.to_rows(np.stack([infos["final_obs"][env] for env in cut]))
                rollout.rewards[t, cut] += self.cfg.gamma * self.agent(last)[1]
            self.rows = self.to_rows(observations)
        return torch.as_tensor(self.agent(self.rows)[1])

    def count(self, rewards: Any, ended: Any) -> None:
        """Add to the returns of the episodes, and note those of the ended ones."""
        self.running += rewards
        self.returns += self.running[ended].tolist()
        self.running[ended] = 0


def advantages_of(rollout: Rollout, next_values: Tensor, cfg: Settings) -> Tensor:
    """Generalised advantage estimation."""
    advantages, later = torch.zeros_like(rollout.rewards), torch.zeros_like(next_values)
    for t in reversed(range(cfg.num_steps)):
        going_on = 1 - rollout.ended[t]
        error = rollout.rewards[t] + cfg.gamma * next_values * going_on - rollout.values[t]
        later = advantages[t] = error + cfg.gamma * cfg.gae_lambda * going_on * later
        next_values = rollout.values[t]
    return advantages


def update(agent: Agent, optimizer: torch.optim.Optimizer, data: Rollout, next_values: Tensor,
           cfg: Settings) -> None:  # fmt: skip
    """Improve the policy with one rollout."""
    advantages = advantages_of(data, next_values, cfg)
    targets = (advantages + data.values).flatten()
    rows, actions = data.rows.flatten(0, 1), data.actions.flatten(0, 1)
    old, advantages = data.log_probabilities.flatten(), advantages.flatten()
    for _ in range(cfg.epochs):
        for part in torch.randperm(len(rows)).chunk(cfg.minibatches):
            numbers, values = agent(rows[part])
            ratio = (log_probability(numbers, actions[part]) - old[part]).exp()
            gain = advantages[part]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
            policy_loss = -torch.min(gain * ratio, gain * clipped).mean()
            value_loss = 0.5 * (values - targets[part]).square().mean()
            entropy = torch.stack([number.entropy().mean() for number in numbers]).sum()
            loss = policy_loss + 0.5 * value_loss - cfg.entropy * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def train(cfg: Settings) -> list[float]:
    """Train; the returns of all episodes."""
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)  # the networks are small, and the workers need the cores
    torch.distributions.Distribution.set_default_validate_args(False)  # for speed
    envs = make_envs(cfg)
    agent = Agent(*layouts(envs))
    optimizer = torch.optim.Adam(agent.parameters(), lr=cfg.learning_rate, eps=1e-5)
    collector, rollout = Collector(envs, agent, cfg), Rollout.zeros(cfg, agent)
    steps, start = cfg.num_steps * cfg.num_envs, time.monotonic()
    updates = max(1, cfg.total_steps // steps)
    shown = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(TextColumn(shown[0]), *shown[1:], console=Console()) as progress:
        task = progress.add_task(cfg.env, total=updates * steps)
        for number in range(updates):
            optimizer.param_groups[0]["lr"] = cfg.learning_rate * (1 - number / updates)
            update(agent, optimizer, rollout, collector.collect(rollout), cfg)
            recent = deque(collector.returns, 100)
            done = (number + 1) * steps
            rate = done / (time.monotonic() - start)
            text = f"return {np.mean(recent):6.2f}" if recent else "no episode yet"
            progress.update(task, completed=done, description=f"{cfg.env}  {text}  {rate:,.0f}/s")
    envs.close()
    return collector.returns


def main(cfg: Settings) -> None:
    """Train and say how well it went."""
    returns = train(cfg)
    console = Console()
    if not returns:
        console.print("mean return: no episode ended; train for longer")
        return
    tenth = max(1, len(returns) // 10)
    console.print(
        f"mean return {np.mean(returns[-tenth:]):.2f} over the last {tenth} episodes "
        f"({np.mean(returns[:tenth]):.2f} over the first)"
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
