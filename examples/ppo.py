"""PPO in one file, made to be copied and changed.

    python examples/ppo.py
    python examples/ppo.py --env breakout --num-envs 256 --total-timesteps 5_500_000
    python examples/ppo.py --env continuous --total-timesteps 100_000

fugu steps the environments (`fugu.make`), stores what agents see and do (`Segments`) and computes
their advantages (`fugu.native.advantage`). Network, loss and optimizer are plain torch.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

import fugu
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.native.advantage import advantages as compute_advantages
from fugu.policies.config import PolicyConfig
from fugu.policies.encoders import make_encoder
from fugu.vector import Batch


@dataclass(frozen=True)
class Settings:
    """Train an agent with PPO."""

    env: str = "cartpole"
    """Environment: any name that `fugu.make` takes."""
    seed: int = 1
    """Random seed; equal seeds give identical runs."""
    total_timesteps: int = 300_000
    """Agent steps of the whole run."""
    num_envs: int = 64
    """Copies of the environment."""
    num_steps: int = 32
    """Steps of each agent per update."""
    hidden_size: int = 128
    """Width of the hidden layer."""
    learning_rate: float = 3e-3
    """Learning rate of AdamW."""
    anneal_lr: bool = True
    """Anneal the learning rate linearly to 0."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    num_minibatches: int = 4
    """Minibatches per epoch."""
    update_epochs: int = 4
    """Passes over the steps of each update."""
    norm_adv: bool = True
    """Normalize the advantages of each minibatch."""
    clip_coef: float = 0.2
    """Clipping range of the probability ratio."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Maximum norm of the gradient."""
    torch_threads: int = 0
    """Threads of torch; 0: one if minibatches are small, else as many as cores."""


# ---------------------------------------------------------------------- network


class Agent(nn.Module):
    """An actor and a critic that share a hidden layer.

    For discrete actions, the actor's outputs are the log-probabilities of the choices; for
    continuous ones, the means of normal distributions.
    """

    def __init__(self, group: AgentGroup, hidden_size: int) -> None:
        super().__init__()
        layout = group.observation_layout
        self.action_space: Any = group.action_layout.space
        if isinstance(layout.space, spaces.Box) and layout.dtype == np.float32:
            linear = layer_init(nn.Linear(layout.size, hidden_size))
            self.body: nn.Module = nn.Sequential(linear, nn.GELU())
        else:  # an encoder for images, categories, texts, and dicts of them
            self.body = make_encoder(layout, PolicyConfig(hidden_size=hidden_size))
        match self.action_space:
            case spaces.Discrete(n=choices):
                self.discrete, self.num_samples, outputs = True, 1, int(choices)
            case spaces.Box(shape=shape):
                self.discrete, self.num_samples = False, math.prod(shape)
                outputs = self.num_samples
                self.log_std = nn.Parameter(torch.zeros(outputs))
            case space:
                raise SystemExit(
                    f"--env: expected Discrete or Box actions; got {space}. "
                    "examples/cleanrl_style_ppo.py trains on combinations of them."
                )
        self.actor = layer_init(nn.Linear(hidden_size, outputs), 0.01)
        self.critic = layer_init(nn.Linear(hidden_size, 1), 1.0)

    def forward(self, rows: Tensor, masks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the actor's outputs `[n, outputs]` and the values `[n]` of observations."""
        hidden = self.body(rows)
        outputs, values = self.actor(hidden), self.critic(hidden)[:, 0]
        if not self.discrete:
            return outputs, values
        if masks is not None and not masks.all():
            outputs = outputs.masked_fill(~masks, -1e9)  # probability 0, but finite
        return outputs.log_softmax(-1), values

    def sample(self, outputs: Tensor) -> Tensor:
        """Draw actions, `[n, numbers]`."""
        if self.discrete:  # the Gumbel-max trick
            gumbel = -torch.empty_like(outputs).exponential_().log()
            return (outputs + gumbel).argmax(-1, keepdim=True)
        return outputs + self.log_std.exp() * torch.randn_like(outputs)

    def log_prob(self, outputs: Tensor, samples: Tensor) -> Tensor:
        """Return the log-probabilities of actions, `[n]`."""
        if self.discrete:
            return outputs.gather(-1, samples.long())[:, 0]
        errors = (samples - outputs) / self.log_std.exp()
        return (-0.5 * errors.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return the mean entropy of the distributions of actions."""
        if self.discrete:
            return -(outputs.exp() * outputs).sum(-1).mean()
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()

    def to_env(self, samples: NDArray[np.float32]) -> NDArray[Any]:
        """Return actions as the environment takes them, `[n, numbers]`."""
        if self.discrete:
            return samples.astype(np.int64) + self.action_space.start
        return samples.clip(self.action_space.low.ravel(), self.action_space.high.ravel())


def layer_init(layer: nn.Linear, gain: float = math.sqrt(2)) -> nn.Linear:
    """Give a layer orthogonal weights and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


# ---------------------------------------------------------------------- experience


class Steps(NamedTuple):
    """Steps that the loss is computed from, one per row."""

    observations: Tensor
    masks: Tensor
    samples: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor


@torch.no_grad()
def act(agent: Agent, segments: Segments, batch: Batch) -> NDArray[Any]:
    """Store the outcome of the last actions, choose the next actions and store them.

    A truncated episode could have gone on, so it is bootstrapped from the value of its final
    observation; after a termination there is nothing to come.
    """
    ids, rows = batch.agent_ids, batch.groups[0].rows
    truncated = rows.truncations & rows.valid & segments.waiting(ids)
    segments.record_reward(
        ids, rows.rewards, rows.terminations, rows.truncations, rows.valid, rows.live
    )
    if truncated.any():
        _, values = agent(torch.from_numpy(rows.final[truncated]))
        segments.bootstrap(ids[truncated], values[:, None].numpy())

    masks = torch.from_numpy(rows.action_masks)
    outputs, values = agent(torch.from_numpy(rows.observations), masks)
    samples = agent.sample(outputs)
    log_probs = agent.log_prob(outputs, samples).numpy()
    numbers = samples.numpy()
    live = slice(None) if rows.live.all() else rows.live  # agents whose turn it is
    segments.record_step(
        ids[live], rows.observations[live], rows.action_masks[live], numbers[live],
        log_probs[live], values.numpy()[live, None], np.zeros((len(ids), 0), np.float32),
    )  # fmt: skip
    return agent.to_env(numbers)


def read_steps(segments: Segments, chosen: NDArray[np.int64], cfg: Settings) -> Steps:
    """Compute the advantages of complete segments and return all their steps."""

    def numbers(table: NDArray[Any]) -> NDArray[Any]:  # [num_steps, segments]
        return table.take(chosen, axis=1)

    values, valid = numbers(segments.values[0]), numbers(segments.valid)
    advantages = compute_advantages(
        numbers(segments.rewards),
        values,  # of one more step, from which the last one is bootstrapped
        numbers(segments.final_values[0]),
        numbers(segments.terminations),
        numbers(segments.truncations),
        valid=valid,
        gamma=cfg.gamma,
        lambda_=cfg.gae_lambda,
    )
    by_time = numbers(segments.log_probabilities), advantages, advantages + values[:-1]
    steps = Steps(
        segments.observations.read(chosen).flatten(0, 1),
        torch.from_numpy(segments.masks[chosen]).flatten(0, 1),
        torch.from_numpy(segments.samples[chosen]).flatten(0, 1),
        *(torch.from_numpy(table.T.ravel()) for table in by_time),
    )
    if valid.all():
        return steps
    kept = torch.from_numpy(valid.T.ravel())  # a step that failed in a worker teaches nothing
    return Steps(*(table[kept] for table in steps))


def episode_returns(batch: Batch) -> Iterator[float]:
    """Yield the returns of the episodes that ended just now."""
    for infos in batch.infos.values():
        for info in infos:
            if "episode_return" in info:
                yield info["episode_return"]


# ---------------------------------------------------------------------- learning


def ppo_loss(agent: Agent, steps: Steps, cfg: Settings) -> Tensor:
    """Return the clipped loss of PPO for a minibatch."""
    outputs, values = agent(steps.observations, steps.masks)
    advantages = steps.advantages
    if cfg.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratios = (agent.log_prob(outputs, steps.samples) - steps.log_probs).exp()
    clipped = ratios.clamp(1 - cfg.clip_coef, 1 + cfg.clip_coef)
    policy_loss = -torch.min(advantages * ratios, advantages * clipped).mean()
    value_loss = 0.5 * nn.functional.mse_loss(values, steps.returns)
    return policy_loss + cfg.vf_coef * value_loss - cfg.ent_coef * agent.entropy(outputs)


def learn(agent: Agent, optimizer: torch.optim.Optimizer, steps: Steps, cfg: Settings) -> None:
    """Improve the agent with the steps of one update."""
    for _ in range(cfg.update_epochs):
        order = torch.randperm(len(steps.samples))
        parts = (table[order].chunk(cfg.num_minibatches) for table in steps)
        for minibatch in zip(*parts, strict=True):
            optimizer.zero_grad()
            ppo_loss(agent, Steps(*minibatch), cfg).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), cfg.max_grad_norm)
            optimizer.step()


def train(cfg: Settings) -> tuple[Agent, float]:
    """Train an agent; return it, and the mean return of the last 100 episodes."""
    torch.manual_seed(cfg.seed)
    with fugu.make(cfg.env, cfg.num_envs) as vec:
        if len(vec.groups) > 1:
            names = ", ".join(group.name for group in vec.groups)
            raise SystemExit(f"--env: expected one group of agents; got {names}.")
        agents, group = vec.num_agents, vec.groups[0]
        batch_size = agents * cfg.num_steps
        small = batch_size // cfg.num_minibatches * cfg.hidden_size < 2**17
        if cfg.torch_threads or small:  # threads of small products would wait for each other
            torch.set_num_threads(cfg.torch_threads or 1)
        agent = Agent(group, cfg.hidden_size)
        optimizer = torch.optim.AdamW(
            agent.parameters(), cfg.learning_rate, eps=1e-5, weight_decay=0.0, fused=True
        )
        segments = Segments(group, SegmentShape(agents, agents, cfg.num_steps, agent.num_samples))
        returns, begin = deque[float](maxlen=100), time.perf_counter()
        num_updates = max(1, cfg.total_timesteps // batch_size)
        vec.async_reset(cfg.seed)
        for update in range(1, num_updates + 1):
            while not segments.full:
                batch = vec.recv()
                returns.extend(episode_returns(batch))
                vec.send(act(agent, segments, batch), batch.agent_ids)
            # The environments step while the agent learns.
            if cfg.anneal_lr:
                progress = (update - 1) / num_updates
                optimizer.param_groups[0]["lr"] = cfg.learning_rate * (1 - progress)
            chosen = segments.take()
            learn(agent, optimizer, read_steps(segments, chosen, cfg), cfg)
            segments.release(chosen)
            if update % max(1, num_updates // 20) == 0:
                steps = update * batch_size
                rate = steps / (time.perf_counter() - begin)
                print(f"step {steps:,}  return {mean(returns):.2f}  {rate:,.0f} steps/s")
    return agent, mean(returns)


def mean(numbers: Sequence[float]) -> float:
    """Return the mean, or NaN of nothing."""
    return float(np.mean(numbers)) if numbers else math.nan


if __name__ == "__main__":
    _, score = train(tyro.cli(Settings))
    print(f"score: {score:.2f}, the mean return of the last 100 episodes")
