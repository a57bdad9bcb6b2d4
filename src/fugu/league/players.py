"""Players, which act for some agents of a vector, and how they are found by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.distribution import ActionDistribution
from fugu.policies.policy import Policy
from fugu.store.run import Run
from fugu.training.evaluate import load_policies
from fugu.vector import make

Ids: TypeAlias = NDArray[np.int64]
SNAPSHOTS = "league"  # the folder of a run that holds those of its pool
RANDOM = "random"  # the name of the player that needs no run


class Player(Protocol):
    """Acts for whichever agents it holds."""

    def begin(self, group: int, agents: Ids) -> None:
        """Take these agents of a group, which begin an episode."""

    def act(self, group: int, agents: Ids, rows: Buffers) -> NDArray[Any]:
        """Return actions of these agents, which it holds, as rows of the action layout."""


class PolicyPlayer:
    """Policies, one for each group, with recurrent states of their own for every agent.

    Args:
        policies: One for each group.
        agents: Number of agents of the vector, by group.
        random: Generator that actions are drawn with.
        greedy: Take the most probable actions.

    Attributes:
        states: Recurrent states, `[agents, state]` for each group.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        agents: Sequence[int],
        random: np.random.Generator,
        *,
        greedy: bool = False,
    ) -> None:
        self.policies = [policy.eval() for policy in policies]
        self._random, self._greedy = random, greedy
        self._looks = [policy.viewer() for policy in policies]
        self._devices = [next(policy.parameters()).device for policy in policies]
        sizes = zip(policies, agents, self._devices, strict=True)
        self.states = [policy.initial_state(count, device) for policy, count, device in sizes]

    def begin(self, group: int, agents: Ids) -> None:
        """Forget what came before."""
        self.states[group][agents] = 0.0

    @torch.no_grad()
    def act(self, group: int, agents: Ids, rows: Buffers) -> NDArray[Any]:
        """Draw actions; agents that do not act keep their states."""
        policy, states, device = self.policies[group], self.states[group], self._devices[group]
        ended = rows.terminations | rows.truncations | ~rows.valid
        states[agents] = policy.earned(states[agents], rows.rewards)
        states[agents[ended]] = 0.0
        acting = np.flatnonzero(rows.live)
        samples = np.zeros((len(agents), policy.distribution.num_samples), np.float32)
        if len(acting):
            seen = np.ascontiguousarray(self._looks[group](agents, rows)[acting])
            params, _, after = policy(torch.from_numpy(seen).to(device), states[agents[acting]])
            samples[acting], _ = policy.distribution.sample(
                params.float().cpu(), rows.action_masks[acting], self._random, greedy=self._greedy
            )
            if policy.state_size:
                states[agents[acting]] = policy.acted(after, samples[acting]).float()
        return policy.distribution.to_rows(samples)


class RandomPlayer:
    """Draws all allowed actions with equal probability."""

    def __init__(self, groups: Sequence[AgentGroup], random: np.random.Generator) -> None:
        self._actions = [ActionDistribution(group.action_layout) for group in groups]
        self._random = random

    def begin(self, group: int, agents: Ids) -> None:
        """Do nothing: there is no memory."""

    def act(self, group: int, agents: Ids, rows: Buffers) -> NDArray[Any]:
        """Draw actions."""
        actions = self._actions[group]
        even = np.zeros((len(agents), actions.num_params), np.float32)
        samples, _ = actions.sample(even, rows.action_masks, self._random, live=rows.live)
        return actions.to_rows(samples)


@dataclass(frozen=True)
class Source:
    """Where a player comes from: its name is `<run>:<step>`, or `random`, which has no run."""

    name: str
    run: Run | None = None
    checkpoint: Path | None = None
    step: int | None = None


def find_source(name: str, root: str | Path) -> Source:
    """Find the player of a name: `random`, `RUN` (its last checkpoint), `RUN:best`, `RUN:STEP`."""
    if name == RANDOM:
        return Source(RANDOM)
    run_name, colon, moment = name.rpartition(":")
    if not colon or not (moment == "best" or moment.isdigit()):
        run_name, moment = name, ""
    run = Run.open(run_name, root)
    kept = {step_of(path): path for path in [*run.checkpoints(), *snapshots(run)]}
    if moment.isdigit():
        path = kept.get(int(moment))
    else:
        path = run.best() if moment == "best" else run.latest()
    if path is None:
        steps = ", ".join(map(str, sorted(kept))) or "none"
        raise UsageError(
            f"player: given {name!r}; allowed: one of the steps of {run.name!r}: {steps}."
        )
    step = step_of(path)
    return Source(f"{run.name}:{step}", run, path, step)


def snapshots(run: Run) -> list[Path]:
    """Return the snapshots of a run's pool, oldest first."""
    return sorted((run.folder / SNAPSHOTS).glob("step_*"))


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's folder is named after."""
    return int(path.name.rpartition("_")[2])


def load_player(
    source: Source,
    groups: Sequence[AgentGroup],
    num_envs: int,
    random: np.random.Generator,
    *,
    greedy: bool = False,
    device: torch.device | None = None,
) -> Player:
    """Load a player for so many copies of an environment, if its policies fit the agents."""
    if source.run is None:
        return RandomPlayer(groups, random)
    cfg, policies = load_policies(source.run, source.checkpoint)
    with make(cfg.env, 1, backend="serial", env_kwargs=cfg.env_kwargs) as vec:
        known = [(group.observation_layout, group.action_layout) for group in vec.groups]
    if known != [(group.observation_layout, group.action_layout) for group in groups]:
        raise UsageError(
            f"player: given {source.name!r}, which was trained for agents that see or do something "
            "else than those of this game; allowed: a run of the same environment."
        )
    agents = [num_envs * group.num_agents for group in groups]
    placed = [policy.to(device) for policy in policies]
    return PolicyPlayer(placed, agents, random, greedy=greedy)


def take(rows: Buffers, index: NDArray[Any]) -> Buffers:
    """Return some agents' rows; what an environment has but once stays whole."""
    shared = ("global_state", "final_state")
    arrays = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return replace(rows, **{name: arrays[name][index] for name in arrays if name not in shared})
