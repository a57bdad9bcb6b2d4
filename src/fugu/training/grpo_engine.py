"""GRPO's engine: teams of copies play whole episodes, and a learner compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.algos.grpo import GRPO
from fugu.algos.optimisers import make_optimiser
from fugu.algos.preferences import RewardModel, load_reward_model
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.data.episodes import Episodes, EpisodeShape
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.policy import Policy
from fugu.training.collect import Collector, EpisodeRecord, Look
from fugu.training.config import GRPORun
from fugu.training.engine import Tensors
from fugu.training.keeping import (
    as_arrays,
    keep_chance,
    keep_environments,
    keep_network,
    recall_chance,
    recall_network,
)
from fugu.training.parts import Parts
from fugu.training.ppo_engine import (
    ROWS,
    SAMPLING,
    WEIGHTS,
    choose_precision,
    compile_policy,
    optimiser_config,
)
from fugu.training.recollect import Recollection
from fugu.training.rollouts import EpisodeActor
from fugu.training.shares import own_seeds
from fugu.vector import Batch, Vector

TEAMS = 4  # the branch of the seed tree for teams that begin anew after a fault


class TeamActor(EpisodeActor):
    """One group's agents, whose complete teams go to a learner."""

    def __init__(
        self,
        policy: Policy,
        episodes: Episodes,
        device: torch.device,
        random: np.random.Generator,
        learner: GRPO,
    ) -> None:
        super().__init__(policy, episodes, device, random)
        self.learner = learner

    @property
    def full(self) -> bool:
        """Whether the learner has enough."""
        return self.learner.full

    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Take what came to these agents, write it down, and say what they do."""
        actions = super().act(agents, rows)
        for team in self.episodes.take():
            self.learner.offer(team)
        return actions

    def forget(self, agents: NDArray[np.int64]) -> None:
        """The episodes under way of these agents, which are whole teams."""
        self.episodes.forget(agents)
        self.states[agents] = 0.0


class TeamCollector(Collector):
    """A collector whose teams stay in step.

    A copy that a fault restarted begins other episodes than its team: then the whole team begins
    anew, with a seed of its own.
    """

    def __init__(
        self,
        vec: Vector,
        actors: list[TeamActor],
        team_size: int,
        seed: int,
        look: Look | None = None,
        first_team: int = 0,
    ) -> None:
        super().__init__(vec, actors, look)
        self._teams, self._team_size, self._seed = actors, team_size, seed
        self._first_team = first_team  # of all ranks' teams, the first one here
        self.mended = 0

    @torch.no_grad()
    def handle(self, batch: Batch) -> None:
        """Act on one batch."""
        broken = np.zeros(self.vec.num_envs, np.bool_)
        for group, own in zip(batch.groups, self.vec.groups, strict=True):
            broken |= ~group.rows.valid.reshape(-1, own.num_agents).all(1)
        if broken.any():
            self.episodes.note(batch.infos)
            batch = replace(self._begin_teams(broken), infos={})
        super().handle(batch)

    def forget_all(self) -> None:
        """All episodes under way, since every environment begins anew."""
        for actor in self._teams:
            actor.forget(np.arange(actor.episodes.shape.agents))

    def _begin_teams(self, broken: NDArray[np.bool_]) -> Batch:
        size = self._team_size
        hit = np.repeat(broken.reshape(-1, size).any(1), size)
        self.mended += 1
        teams = [self._first_team + env // size for env in range(len(hit))]
        seeds = [derive(self._seed, TEAMS, self.mended, team) for team in teams]
        for actor, group in zip(self._teams, self.vec.groups, strict=True):
            actor.forget(np.flatnonzero(np.repeat(hit, group.num_agents)))
        return self.vec.reset_some(hit, seeds)


class GRPOEngine:
    """GRPO for each group of agents; see `Engine` for what its parts do.

    Attributes:
        policies: One for each group.
        collector: Steps the environments.
    """

    def __init__(self, cfg: GRPORun, vec: Vector, device: torch.device, parts: Parts) -> None:
        check(cfg, vec)
        self.cfg, self.vec, self._device, self.ranks = cfg, vec, device, parts.ranks
        self._random = [
            self.ranks.row_generator(derive(cfg.seed, SAMPLING)),
            self.ranks.own_generator(derive(cfg.seed, ROWS)),
        ]
        torch.manual_seed(derive(cfg.seed, WEIGHTS) >> 1)
        self._actors = [self._make_actor(group, parts) for group in vec.groups]
        self.policies = [actor.policy for actor in self._actors]
        self._recollection = Recollection.of(self.policies, cfg.policy.recall_worth)
        first = self.ranks.rank * vec.num_envs // cfg.vec.group_size
        self.collector = TeamCollector(
            vec, self._actors, cfg.vec.group_size, cfg.seed, self._recollection, first
        )

    def _make_actor(self, group: AgentGroup, parts: Parts) -> TeamActor:
        cfg, agents = self.cfg, self.vec.num_envs * group.num_agents
        precision = choose_precision(cfg.policy, agents, self._device)
        shape = replace(cfg.policy, precision=precision)
        factory, critics = parts.factory(shape), cfg.train.num_critics(group)
        policy = factory(group, shape, critics).to(self._device)
        if cfg.train.compile:
            compile_policy(policy)
        model: RewardModel | None = None
        if cfg.train.reward_model is not None:
            model = load_reward_model(cfg.train.reward_model, group).to(self._device)
        optimiser = make_optimiser(policy, optimiser_config(cfg))
        learner = GRPO(policy, optimiser, cfg.train, self._random[1], group, model, self.ranks)
        store = EpisodeShape(
            agents,
            cfg.vec.group_size,
            policy.distribution.num_samples,
            cfg.train.ahead,
            cfg.train.longest,
        )
        episodes = Episodes(policy.stored(group), store)
        return TeamActor(policy, episodes, self._device, self._random[0], learner)

    # ------------------------------------------------------------------ the engine

    @property
    def steps(self) -> int:
        """Agent steps so far."""
        return self.collector.steps

    @property
    def episodes(self) -> EpisodeRecord:
        """What ended episodes told."""
        return self.collector.episodes

    def start(self, seed: int) -> None:
        """Begin all environments anew."""
        self.collector.forget_all()
        self.collector.start(own_seeds(seed, self.vec, self.cfg.vec.group_size, self.ranks))

    def collect(self) -> None:
        """Until some group has teams enough for an update."""
        self.collector.collect()

    def update(self, progress: float, learning_rate: float) -> dict[str, float]:
        """Learn from the teams that are complete, at whatever rank."""
        losses: dict[str, float] = {}
        for actor, group in zip(self._actors, self.vec.groups, strict=True):
            if not self.ranks.any(actor.full):
                continue
            for parameters in actor.learner.optimiser.param_groups:
                parameters["lr"] = learning_rate
            told = actor.learner.update(progress)
            told["given_up"] = float(actor.episodes.given_up)
            prefix = "" if len(self._actors) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in told.items()}
        return losses

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> tuple[Tensors, dict[str, Any]]:
        """All that the engine needs to go on exactly."""
        tensors: Tensors = {}
        optimisers = []
        for i, actor in enumerate(self._actors):
            optimiser = actor.learner.optimiser
            optimisers.append(keep_network(tensors, i, actor.policy, optimiser))
            tensors[f"episodes_{i}"] = {**actor.episodes.state_dict(), "recurrent": actor.states}
            tensors[f"learner_{i}"] = actor.learner.state_dict()
        if self._recollection is not None:
            tensors |= self._recollection.state()
        keep_environments(tensors, self.collector)
        state = {
            "optimisers": optimisers,
            "random": keep_chance(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
            "mended": self.collector.mended,
        }
        return tensors, state

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], seed: int) -> None:
        """Go on from a checkpoint."""
        for i, actor in enumerate(self._actors):
            optimiser = actor.learner.optimiser
            recall_network(tensors, i, actor.policy, optimiser, state["optimisers"][i])
            arrays = as_arrays(tensors[f"episodes_{i}"])
            actor.states.copy_(torch.from_numpy(arrays.pop("recurrent")))
            actor.episodes.load_state_dict(arrays)
            actor.learner.load_state_dict(tensors[f"learner_{i}"])
        recall_chance(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        self.collector.mended = int(state["mended"])
        environments = tensors.get("environments")
        if environments is None:
            self.start(seed)
        else:
            if self._recollection is not None:
                self._recollection.load(tensors)
            self.collector.resume(as_arrays(environments))


def check(cfg: GRPORun, vec: Vector) -> None:
    """Raise if copies cannot be compared, or cannot be kept in step."""
    if cfg.vec.group_size < 2:
        raise UsageError(
            f"vec.group_size: given {cfg.vec.group_size}; allowed with grpo: 2 or more. The copies "
            "of a group begin each episode alike, and are compared."
        )
    if vec.batch_size != vec.num_envs:
        raise UsageError(
            f"vec.batch_size: given {vec.batch_size}; allowed with grpo: all {vec.num_envs} copies."
        )
    if cfg.train.reward_model is not None and cfg.policy.recall:
        raise UsageError(
            "train.reward_model: given with policy.recall; allowed: one of them, since the model "
            "reads what agents see and not what they are shown."
        )
    if cfg.train.reward_model is not None and len(vec.groups) > 1:
        raise UsageError(
            f"train.reward_model: given with {len(vec.groups)} groups of agents; allowed: one."
        )
