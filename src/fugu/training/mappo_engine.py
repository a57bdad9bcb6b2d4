"""The engine of MAPPO: rows are widened by what only critics see before actors act on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.algos.learner import Learner
from fugu.algos.mappo import MAPPO, MAPPOConfig
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.nets.learning import NativeLearner
from fugu.policies.central import CentralPolicy, make_central_policy
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy
from fugu.policies.sight import Bytes, Part, Sight, bytes_of
from fugu.spaces import Layout
from fugu.training.collect import Actor, Collector
from fugu.training.config import Config
from fugu.training.parts import Parts
from fugu.training.ppo_engine import PPOEngine
from fugu.vector import Batch, GroupBatch, Vector


class MAPPOEngine(PPOEngine):
    """MAPPO for each group of agents; the critics of all see the same state."""

    def __init__(self, cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> None:
        assert isinstance(cfg.train, MAPPOConfig)
        self._train = cfg.train
        names = [group.name for group in vec.groups]
        self._sights = dict(zip(names, make_sights(vec.groups, cfg.train), strict=True))
        super().__init__(cfg, vec, device, parts)

    def make_policy(self, group: AgentGroup, cfg: PolicyConfig, parts: Parts) -> Policy:
        """Actors and critics."""
        train, sight = self._train, self._sights[group.name]
        return make_central_policy(
            group,
            cfg,
            sight,
            agent_ids=train.agent_ids,
            shared=train.share_parameters,
            critic=critic_parts(sight, train),
            factory=parts.policy,
        )

    def make_learner(
        self,
        group: AgentGroup,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        core: NativeLearner | None,
    ) -> Learner:
        """What improves them."""
        assert isinstance(policy, CentralPolicy)
        return MAPPO(policy, optimiser, self._train, self._random[1], self.ranks)

    def stored(self, group: AgentGroup) -> AgentGroup:
        """The group with whole rows of its sight."""
        return replace(group, observation_layout=self._sights[group.name].layout)

    def make_collector(self) -> Collector:
        """One that widens what it receives."""
        look = Widener(self.vec, list(self._sights.values()), self._actors)
        return Collector(self.vec, self._actors, look)


def make_sights(groups: Sequence[AgentGroup], cfg: MAPPOConfig) -> list[Sight]:
    """What the rows of each group hold."""
    state = groups[0].state_layout
    if cfg.critic == "central" and cfg.state == "environment" and state is None:
        raise UsageError(
            "train.state: given 'environment' for one without a state of its own; allowed: "
            "PettingZoo environments that have state() and state_space. Take 'observations'."
        )
    rest: tuple[tuple[Layout, int], ...] = ()
    if cfg.critic == "central" and cfg.state != "observations" and state is not None:
        rest = ((state, 1),)
    elif cfg.critic == "central":
        rest = tuple((group.observation_layout, group.num_agents) for group in groups)
    named = cfg.agent_ids or not cfg.share_parameters
    return [Sight.of(group, named=named, rest=rest) for group in groups]


def critic_parts(sight: Sight, cfg: MAPPOConfig) -> tuple[Part, ...]:
    """What critics read of their rows."""
    parts = [sight.own] if cfg.critic == "local" or cfg.own_observation else []
    if sight.name is not None and cfg.agent_ids and cfg.share_parameters:
        parts.append(sight.name)
    return (*parts, *sight.rest)


class Widener:
    """Makes rows of sights of what came from environments, and of what was last in episodes.

    What dead agents see, and those whose turn it is not, is zeros.
    """

    def __init__(self, vec: Vector, sights: list[Sight], actors: list[Actor]) -> None:
        self._sights, self._actors = sights, actors
        counts = [vec.num_envs * group.num_agents for group in vec.groups]
        pairs = list(zip(sights, counts, strict=True))
        self._rows = [sight.rows(count) for sight, count in pairs]
        self._final = [sight.rows(count) for sight, count in pairs]
        rest = sights[0].rest
        layout = vec.groups[0].state_layout
        self._given = bool(rest) and layout is not None and rest[0].layout is layout

    def __call__(self, batch: Batch) -> tuple[GroupBatch, ...]:
        """The groups of a batch, with whole rows."""
        groups, envs = batch.groups, len(batch.env_ids)
        seen = [_where(group.rows.live, group.rows.observations) for group in groups]
        first = groups[0].rows
        shared = [bytes_of(first.global_state)] if self._given else [_flat(s, envs) for s in seen]
        cut = np.zeros(envs, np.bool_)
        for group in groups:
            cut |= group.rows.truncations.reshape(envs, -1).any(1)
        last: list[Bytes] = []
        if cut.any():
            last = [bytes_of(first.final_state)] if self._given else self._last(groups, envs)
        found = []
        for i, (group, sight) in enumerate(zip(groups, self._sights, strict=True)):
            agents, count = group.agent_ids, len(group.agent_ids)
            rows, final = self._rows[i][:count], self._final[i][:count]
            _fill(sight, rows, seen[i], agents, shared)
            if cut.any():
                mine = np.repeat(cut, count // envs)
                some = sight.rows(int(mine.sum()))
                _fill(sight, some, group.rows.final[mine], agents[mine], [s[cut] for s in last])
                final[mine] = some
            found.append(replace(group, rows=replace(group.rows, observations=rows, final=final)))
        return tuple(found)

    def _last(self, groups: Sequence[GroupBatch], envs: int) -> list[Bytes]:
        """What all agents saw last: of those whose episode goes on, what they see now.

        One that was dead before may see the next episode already, but did not live to its own end.
        """
        found = []
        for group, actor in zip(groups, self._actors, strict=True):
            rows = group.rows
            ended = rows.terminations | rows.truncations
            stays = rows.live & actor.segments.waiting(group.agent_ids)
            now = _where(stays, rows.observations)
            found.append(_flat(np.where(ended[:, None], rows.final, now), envs))
        return found


def _where(flags: NDArray[np.bool_], rows: NDArray[Any]) -> NDArray[Any]:
    """Rows, zeroed where a flag is not set."""
    return rows if flags.all() else np.where(flags[:, None], rows, rows.dtype.type(0))


def _flat(rows: NDArray[Any], envs: int) -> Bytes:
    """The rows of all agents of an environment side by side."""
    return bytes_of(rows).reshape(envs, -1)


def _fill(
    sight: Sight,
    rows: NDArray[Any],
    own: NDArray[Any],
    agents: NDArray[np.int64],
    shared: Sequence[Bytes],
) -> None:
    """Write rows: each agent's own, and what all agents of an environment share."""
    sight.write_own(rows, own, agents)
    for part, numbers in zip(sight.rest, shared, strict=bool(sight.rest)):
        by_env = rows.view(np.uint8).reshape(len(numbers), -1, sight.nbytes)
        by_env[:, :, part.offset : part.end] = numbers[:, None]
