"""Evaluation: how well policies play, episode by episode, with the same memory as in training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.policies.policy import Policy, make_policy
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.config import Config, read_config
from fugu.training.parts import Parts, PolicyFactory
from fugu.vector import Batch, Vector, make

EVALUATION = 0x6576  # the branch of the seed tree
COPIES = 16
PATIENCE = 10_000_000  # steps after which an episode counts as endless


@dataclass(frozen=True)
class Evaluation:
    """What some episodes came to.

    Attributes:
        returns: Of each episode.
        lengths: Of each episode.
    """

    returns: tuple[float, ...]
    lengths: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Its figures, as JSON has them."""
        returns = np.array(self.returns)
        spread = float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
        return {
            "episodes": len(returns),
            "mean_return": float(returns.mean()),
            "deviation": spread,
            "lowest": float(returns.min()),
            "highest": float(returns.max()),
            "mean_length": float(np.mean(self.lengths)),
        }


class Players:
    """Policies that act, with a recurrent state for each agent that ends with its episode."""

    def __init__(
        self, policies: list[Policy], vec: Vector, seed: int, *, greedy: bool = True
    ) -> None:
        self._policies, self._greedy = policies, greedy
        self._random = np.random.default_rng(derive(seed))
        agents = [vec.num_envs * group.num_agents for group in vec.groups]
        self._devices = [next(policy.parameters()).device for policy in policies]
        self._states = [
            policy.initial_state(count, device)
            for policy, count, device in zip(policies, agents, self._devices, strict=True)
        ]

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Any:
        """Actions for a batch, as `Vector.send` takes them."""
        actions = []
        parts = zip(self._policies, self._states, self._devices, batch.groups, strict=True)
        for policy, states, device, group in parts:
            rows, agents = group.rows, group.agent_ids
            ended = rows.terminations | rows.truncations | ~rows.valid
            states[agents[ended]] = 0.0
            observations = torch.from_numpy(np.ascontiguousarray(rows.observations)).to(device)
            params, _, after = policy(observations, states[agents])
            states[agents[rows.live]] = after[torch.from_numpy(rows.live).to(device)].float()
            masks = None if rows.action_masks.all() else rows.action_masks
            samples, _ = policy.distribution.sample(
                params.float().cpu(), masks, self._random, greedy=self._greedy, live=rows.live
            )
            actions.append(policy.distribution.to_rows(samples))
        return actions[0] if len(actions) == 1 else tuple(actions)


def load_policies(
    run: Run, checkpoint: Path | None = None, parts: Parts | None = None
) -> tuple[Config, list[Policy]]:
    """A run's settings and its policies, from a checkpoint or its last one."""
    path = checkpoint or run.latest()
    if path is None:
        raise UsageError(f"run: given {run.name!r}, which has no checkpoint yet.")
    cfg, parts = read_config(run.config), parts or Parts()
    tensors = load_checkpoint(path).tensors
    policies = []
    with make(parts.env_of(cfg.env), 1, backend="serial", env_kwargs=cfg.env_kwargs) as vec:
        for i, group in enumerate(vec.groups):
            policy = parts.policy(group, cfg.policy)
            policy.load_state_dict(dict(tensors[f"policy_{i}"]))
            policies.append(policy.eval())
    return cfg, policies


def evaluate(
    run: str | Path | Run,
    *,
    episodes: int = 100,
    root: str | Path = "runs",
    best: bool = False,
    greedy: bool = True,
    seed: int = 0,
    env: Callable[..., Any] | None = None,
    policy_factory: PolicyFactory | None = None,
) -> Evaluation:
    """Play episodes with a run's policies.

    Every copy plays the same number of episodes, so that short ones are not counted more often.

    Args:
        run: Its name, its folder, or "latest".
        episodes: How many, rounded up to a multiple of the copies.
        root: Where runs are.
        best: Take the best checkpoint and not the last.
        greedy: Take the most probable actions and not random ones.
        seed: Of the environments and of the actions.
        env: What the run was trained on, if that was something to call.
        policy_factory: As of `train`, if it was given there.
    """
    if episodes < 1:
        raise UsageError(f"episodes: given {episodes}; allowed: 1 or more.")
    found = run if isinstance(run, Run) else Run.open(run, root)
    parts = Parts(env, policy_factory or make_policy)
    cfg, policies = load_policies(found, found.best() if best else None, parts)
    with make(parts.env_of(cfg.env), min(COPIES, episodes), env_kwargs=cfg.env_kwargs) as vec:
        return play(policies, vec, episodes, greedy=greedy, seed=seed)


def play(
    policies: list[Policy], vec: Vector, episodes: int, *, greedy: bool = True, seed: int = 0
) -> Evaluation:
    """Play episodes in a vector of your own; every copy plays as many."""
    quota = -(-episodes // vec.num_envs)
    returns: list[list[float]] = [[] for _ in range(vec.num_envs)]
    lengths: list[list[float]] = [[] for _ in range(vec.num_envs)]
    players = Players(policies, vec, derive(seed, EVALUATION), greedy=greedy)
    vec.async_reset(derive(seed, EVALUATION, 1))
    for _ in range(PATIENCE):
        batch = vec.recv()
        for env, told in batch.infos.items():
            for info in told:
                returns[env].append(float(info["episode_return"]))
                lengths[env].append(float(info["episode_length"]))
        if all(len(mine) >= quota for mine in returns):
            break
        vec.send(players(batch))
    flat = [value for mine in returns for value in mine[:quota]]
    return Evaluation(tuple(flat), tuple(value for mine in lengths for value in mine[:quota]))
