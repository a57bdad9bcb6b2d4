"""Evaluation: how well policies play, episode by episode, with the same memory as in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.data.episode_costs import EpisodeCosts, by_constraint
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyEngine
from fugu.policies.policy import Policy, make_policy
from fugu.store.checkpoint import load_checkpoint, refuses_misfits
from fugu.store.run import Run
from fugu.training.config import Config, read_config
from fugu.training.engines import policy_factory
from fugu.training.forwards import make_forward
from fugu.training.parts import Parts, PolicyFactory
from fugu.vector import Batch, Vector, make

EVALUATION = 0x6576  # the branch of the seed tree
COPIES = 16
UNASKED = 10_000_000  # weights that a policy may have, whatever its checkpoint holds
PATIENCE = 10_000_000  # steps after which an episode counts as endless


@dataclass(frozen=True)
class Evaluation:
    """What some episodes came to.

    Attributes:
        returns: Of each episode.
        lengths: Of each episode.
        costs: Means over agents' episodes, by name; none if the environment has no costs.
    """

    returns: tuple[float, ...]
    lengths: tuple[float, ...]
    costs: Mapping[str, float] = field(default_factory=dict)

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
            **self.costs,
        }


class Players:
    """Policies that act, with a recurrent state for each agent that ends with its episode.

    They are told what was drawn, and then what it earned. Their weights are those of now.

    Attributes:
        drawn: The samples of the last batch, by group.
        engines: Who computes what the policies say, by group: "torch" or "native".
    """

    drawn: list[Any]

    def __init__(
        self,
        policies: list[Policy],
        vec: Vector,
        seed: int,
        *,
        greedy: bool = True,
        engine: PolicyEngine = "auto",
    ) -> None:
        self._policies, self._greedy = policies, greedy
        self._random = np.random.default_rng(derive(seed))
        agents = [vec.num_envs * group.num_agents for group in vec.groups]
        self._looks = [policy.viewer() for policy in policies]
        self._devices = [next(policy.parameters()).device for policy in policies]
        self._states = [
            policy.initial_state(count, device)
            for policy, count, device in zip(policies, agents, self._devices, strict=True)
        ]
        self._forwards = [
            make_forward(policy, group.observation_layout, engine, count)
            for policy, group, count in zip(policies, vec.groups, agents, strict=True)
        ]
        self.engines = [forward.engine for forward in self._forwards]

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Any:
        """Actions for a batch, as `Vector.send` takes them."""
        actions, self.drawn = [], []
        parts = zip(
            self._policies,
            self._forwards,
            self._looks,
            self._states,
            self._devices,
            batch.groups,
            strict=True,
        )
        for policy, forward, look, states, device, group in parts:
            rows, agents = group.rows, group.agent_ids
            ended = rows.terminations | rows.truncations | ~rows.valid
            states[agents] = policy.earned(states[agents], rows.rewards)
            states[agents[ended]] = 0.0
            seen = np.ascontiguousarray(look(agents, rows))
            params, _, after = forward(torch.from_numpy(seen).to(device), states[agents])
            masks = None if rows.action_masks.all() else rows.action_masks
            samples, _ = policy.distribution.sample(
                params.float().cpu(), masks, self._random, greedy=self._greedy, live=rows.live
            )
            after = policy.acted(after, samples)
            states[agents[rows.live]] = after[torch.from_numpy(rows.live).to(device)].float()
            self.drawn.append(samples)
            actions.append(policy.distribution.to_rows(samples))
        return actions[0] if len(actions) == 1 else tuple(actions)


def load_policies(
    run: Run, checkpoint: Path | None = None, parts: Parts | None = None
) -> tuple[Config, list[Policy]]:
    """A run's settings and its policies, from a checkpoint or its last one."""
    cfg, found = load_groups(run, checkpoint, parts)
    return cfg, [policy for _, policy in found]


def load_groups(
    run: Run, checkpoint: Path | None = None, parts: Parts | None = None
) -> tuple[Config, list[tuple[AgentGroup, Policy]]]:
    """A run's settings, and each group of its agents with its policy; see `load_policies`."""
    path = checkpoint or run.latest()
    if path is None:
        raise UsageError(f"run: given {run.name!r}, which has no checkpoint yet.")
    cfg, parts = read_config(run.config), parts or Parts()
    tensors, factory = load_checkpoint(path).tensors, policy_factory(cfg, parts)
    found = []
    options = {"env_kwargs": cfg.env_kwargs, **cfg.train.emulation}
    with make(parts.env_of(cfg.env), 1, backend="serial", **options) as vec:
        for i, group in enumerate(vec.groups):
            _check_size(cfg, tensors.get(f"policy_{i}", {}))
            critics = cfg.train.num_critics(group)
            policy = factory(group, cfg.policy, *([] if critics == 1 else [critics]))
            with refuses_misfits("the policy that the run's settings describe"):
                policy.load_state_dict(dict(tensors[f"policy_{i}"]))
            found.append((group, policy.eval()))
    return cfg, found


def _check_size(cfg: Config, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise UsageError before much memory is taken for a policy that the weights cannot fill."""
    width, layers = getattr(cfg.policy, "hidden_size", 1), getattr(cfg.policy, "layers", 1)
    least, held = width + (layers - 1) * width**2, sum(w.numel() for w in weights.values())
    if least > max(held, UNASKED):
        raise UsageError(
            f"policy: given {layers} layers of {width:,}, and {held:,} weights for them; allowed: "
            "the settings that the run was trained with. Use another run."
        )


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
    options = {"env_kwargs": cfg.env_kwargs, **cfg.train.emulation}
    with make(parts.env_of(cfg.env), min(COPIES, episodes), **options) as vec:
        return play(policies, vec, episodes, greedy=greedy, seed=seed, engine=engine_of(cfg))


def engine_of(cfg: Config) -> PolicyEngine:
    """Who is to compute what policies say; torch, for policies that have no such setting."""
    found: PolicyEngine = getattr(cfg.policy, "engine", "torch")
    return found


class Bills:
    """What each agent of a vector pays, over the same number of episodes."""

    def __init__(self, vec: Vector, quota: int) -> None:
        self._groups, self._quota = vec.groups, quota
        counts = [vec.num_envs * group.num_agents for group in vec.groups]
        self._sums = [
            EpisodeCosts(count, group.num_costs)
            for count, group in zip(counts, vec.groups, strict=True)
        ]
        self._left = [np.full(count, quota) for count in counts]

    def note(self, batch: Batch) -> None:
        """What a batch says; agents that have played their episodes pay no more."""
        for sums, left, group in zip(self._sums, self._left, batch.groups, strict=True):
            agents, rows = group.agent_ids, group.rows
            if not rows.costs.shape[1]:
                continue
            ended = rows.terminations | rows.truncations
            sums.note(agents, rows.costs, ended & (left[agents] > 0), rows.valid)
            left[agents] -= ended & rows.valid

    def means(self) -> dict[str, float]:
        """Over episodes, by name."""
        found: dict[str, float] = {}
        for sums, group in zip(self._sums, self._groups, strict=True):
            prefix = "" if len(self._groups) == 1 else f"{group.name}/"
            if group.num_costs and len(sums.finished):
                found |= by_constraint(f"{prefix}mean_cost", sums.finished.mean(0))
        return found


def play(
    policies: list[Policy],
    vec: Vector,
    episodes: int,
    *,
    greedy: bool = True,
    seed: int = 0,
    engine: PolicyEngine = "auto",
    max_steps: int = PATIENCE,
) -> Evaluation:
    """Play episodes in a vector of your own; every copy plays as many.

    Episodes that have not ended after `max_steps` steps of the vector are left out.
    """
    quota = -(-episodes // vec.num_envs)
    returns: list[list[float]] = [[] for _ in range(vec.num_envs)]
    lengths: list[list[float]] = [[] for _ in range(vec.num_envs)]
    bills = Bills(vec, quota)
    players = Players(policies, vec, derive(seed, EVALUATION), greedy=greedy, engine=engine)
    vec.async_reset(derive(seed, EVALUATION, 1))
    for _ in range(max_steps):
        batch = vec.recv()
        bills.note(batch)
        for env, told in batch.infos.items():
            for info in told:
                returns[env].append(float(info["episode_return"]))
                lengths[env].append(float(info["episode_length"]))
        if all(len(mine) >= quota for mine in returns):
            break
        vec.send(players(batch))
    flat = [value for mine in returns for value in mine[:quota]]
    long = [value for mine in lengths for value in mine[:quota]]
    return Evaluation(tuple(flat), tuple(long), bills.means())
