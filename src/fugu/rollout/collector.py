"""Collectors step a vector with actors until there is enough experience to learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.ranks import SINGLE_PROCESS, Ranks
from fugu.data.segments import Segments
from fugu.envs.episode_stats import scalars
from fugu.nets.learning import ActionPart, NativeLearner
from fugu.policies.distribution import ActionDistribution
from fugu.rollout.actor import Actor, Acts
from fugu.vector import Batch, GroupBatch, Vector
from fugu.vector.backends.native import EpisodeInfos
from fugu.vector.supervisor import Seeds


class EpisodeStatistics:
    """Means of what the infos of ended episodes report, since they were last read.

    Attributes:
        listener: Called with the copy and the info of every episode that ends; None: nothing is.
        episodes: Number of episodes since the last reading.
    """

    listener: Callable[[int, Mapping[str, Any]], None] | None = None

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self.episodes = 0

    def note(self, infos: Mapping[int, tuple[dict[str, Any], ...]]) -> None:
        """Add the infos of a batch."""
        if isinstance(infos, EpisodeInfos) and self.listener is None:
            self.add_totals(infos.names, infos.episodes.sum(0, dtype=np.float64))
            return
        for copy, entries in infos.items():
            for info in entries:
                if "episode_return" in info:
                    self._add(info, 1.0)
                    if self.listener is not None:
                        self.listener(copy, info)

    def read(self, ranks: Ranks = SINGLE_PROCESS) -> dict[str, float]:
        """Return means over the episodes of all ranks since the last reading; empty without any."""
        every = ranks.gather((self._sums, self._counts, self.episodes))
        sums, counts = _add_up(each[0] for each in every), _add_up(each[1] for each in every)
        found = {name: sums[name] / counts[name] for name in sums}
        if found:
            found["episodes"] = float(sum(each[2] for each in every))
        self._sums, self._counts, self.episodes = {}, {}, 0
        return found

    def add_totals(self, names: Sequence[str], totals: NDArray[np.float64]) -> None:
        """Add sums over ended episodes: their number, then one sum for each name."""
        if totals[0]:
            means = dict(zip(names, totals[1:] / totals[0], strict=True))
            self._add(means, float(totals[0]))

    def _add(self, info: Mapping[str, Any], weight: float) -> None:
        self.episodes += int(weight)
        for name, value in scalars(info).items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight
            self._counts[name] = self._counts.get(name, 0.0) + weight


def _add_up(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for name, value in (item for table in tables for item in table.items()):
        total[name] = total.get(name, 0.0) + value
    return total


# Returns what actors are shown of a batch, where that is not just its groups.
ViewBatch: TypeAlias = Callable[[Batch], Sequence[GroupBatch]]


class Collector:
    """Steps a vector with its actors until some group's segments are full.

    Environments step while the learner learns: the last actions of a collection are sent before
    its update, and their results are received after it.

    Attributes:
        actors: One for each group.
        episodes: Statistics of ended episodes.
        steps: Agent steps so far.
        on_batch: Called with every batch and the actions that follow; None: nothing is.
    """

    on_batch: Callable[[Batch, Sequence[NDArray[Any]]], None] | None = None

    def __init__(self, vec: Vector, actors: Sequence[Acts], view: ViewBatch | None = None) -> None:
        self.vec, self.actors, self._view = vec, actors, view
        self.episodes, self.steps = EpisodeStatistics(), 0
        self._held: list[Batch] = []  # received before a checkpoint, not acted on yet

    def start(self, seed: Seeds) -> None:
        """Reset all environments."""
        self.vec.async_reset(seed)

    def collect(self) -> None:
        """Step until some actor is full; groups whose agents act less often take longer."""
        while not any(actor.full for actor in self.actors):
            self.handle(self._held.pop(0) if self._held else self.vec.recv())

    def wait(self) -> None:
        """Wait for all environments; their batches are acted on when collection continues."""
        while self.vec.under_way:
            self._held.append(self.vec.recv(rest=True))

    def pause(self) -> dict[str, NDArray[Any]] | None:
        """Wait for all environments and return a snapshot, or None if they have no states.

        Their batches are acted on when collection continues.
        """
        self.wait()
        if not self.vec.has_states:
            return None
        orders = np.concatenate([batch.env_ids for batch in self._held])
        return {**self.vec.snapshot(), "order": orders}

    def resume(self, snapshot: dict[str, NDArray[Any]]) -> None:
        """Continue from a snapshot."""
        order = snapshot.pop("order")
        self._held = self.vec.restore(snapshot, order)

    @torch.no_grad()
    def handle(self, batch: Batch) -> None:
        """Act on one batch."""
        self.episodes.note(batch.infos)
        actions = []
        groups = batch.groups if self._view is None else self._view(batch)
        for actor, group in zip(self.actors, groups, strict=True):
            actions.append(actor.act(group.agent_ids, group.rows))
            self.steps += int(np.count_nonzero(group.rows.live))
        if self.on_batch is not None:
            self.on_batch(batch, actions)
        ids = [group.agent_ids for group in batch.groups]
        if len(actions) == 1:
            self.vec.send(actions[0], ids[0])
        else:
            self.vec.send(tuple(actions), tuple(ids))


class NativeCollector(Collector):
    """A collector whose segments are filled natively; it records what `Collector` does.

    Args:
        vec: Native copies whose agents all act in every step; see `can_fill_segments`.
        actor: The actor of their group.
        learner: The native learner of its policy.
    """

    def __init__(self, vec: Vector, actor: Actor[Segments], learner: NativeLearner) -> None:
        super().__init__(vec, [actor])
        self._actor, self._learner = actor, learner
        self._parts = action_parts(actor.policy.distribution)

    def collect(self) -> None:
        """Step until the segments are full, natively while all agents are in step."""
        while not self._actor.full:
            batch = self._held.pop(0) if self._held else self.vec.recv()
            rows = batch.groups[0].rows
            plain = self.on_batch is None and self.episodes.listener is None
            whole = plain and len(batch.env_ids) == self.vec.num_envs
            where = self._actor.store.in_step() if whole else None
            if where is not None and rows.live.all() and rows.valid.all():
                self._fill_segments(batch.infos, *where)
            else:
                self.handle(batch)

    def _fill_segments(
        self,
        infos: Mapping[int, tuple[dict[str, Any], ...]],
        begin: int,
        first_segment: int,
        next_segment: int,
    ) -> None:
        """Fill the open segments from a time on, and begin the next ones.

        Environments step on then, with the actions that follow the last step.
        """
        actor, segments, distribution = (
            self._actor,
            self._actor.store,
            self._actor.policy.distribution,
        )
        agents, actions = segments.shape.agents, segments.shape.horizon - begin + 1
        assert isinstance(infos, EpisodeInfos)
        self.episodes.note(infos)
        episodes = np.zeros(1 + len(infos.names))
        with self.vec.step_natively() as pool:
            try:
                self._learner.collect(
                    pool,
                    self._learner.bind(segments),
                    begin,
                    first_segment,
                    next_segment,
                    actor.states.numpy(),
                    distribution.choices,
                    distribution.num_continuous,
                    draw_random(actor.random, distribution, actions, agents),
                    self._parts,
                    episodes,
                )
            except FloatingPointError:
                raise UsageError(
                    "collect: expected finite outputs of the policy; got NaN or infinity. Try a "
                    "lower train.learning-rate, or look at the environment's observations."
                ) from None
        segments.complete_in_step()
        self.episodes.add_totals(infos.names, episodes)
        self.steps += agents * actions
        rewarded = np.s_[max(begin, 1) - 1 :, first_segment : first_segment + agents]
        ended = segments.terminations[rewarded] | segments.truncations[rewarded]
        if actor.returns is not None:
            actor.returns.note_rows(segments.rewards[rewarded], ended)


def draw_random(
    random: np.random.Generator, distribution: ActionDistribution, steps: int, agents: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return uniform and normal numbers `[steps, agents, ...]`, as steps would draw them."""
    heads, dims = distribution.num_heads, distribution.num_continuous
    uniforms = np.zeros((steps, agents, heads), np.float32)
    noise = np.zeros((steps, agents, dims), np.float32)
    if not dims and type(random) is np.random.Generator:  # steps follow each other in any case
        return random.random(uniforms.shape, np.float32), noise
    for step in range(steps):
        if heads:
            uniforms[step] = random.random((agents, heads), np.float32)
        if dims:
            noise[step] = random.standard_normal((agents, dims), np.float32)
    return uniforms, noise


def action_parts(distribution: ActionDistribution) -> list[ActionPart]:
    """Return where the numbers of an action stand in its row, and the bounds of floats."""
    writer, parts = distribution.sampler.writer, list[ActionPart]()
    for choice in writer.choices:
        parts.append((choice.leaf.offset, len(choice.counts), None, None))
    for numbers in writer.numbers:
        bounds = (numbers.low.astype(np.float32), numbers.high.astype(np.float32))
        parts.append((numbers.leaf.offset, len(numbers.low), *bounds))
    return parts


def can_fill_segments(
    vec: Vector, learner: NativeLearner, distribution: ActionDistribution
) -> bool:
    """Return whether collection can be native: native copies whose agents all act, all at once."""
    if not vec.all_act or vec.batch_size != vec.num_envs or len(vec.groups) != 1:
        return False
    group, writer = vec.groups[0], distribution.sampler.writer
    whole = all(c.leaf.dtype.itemsize == 8 and not c.start.any() for c in writer.choices)
    floats = all(n.leaf.dtype == np.float32 for n in writer.numbers)
    return group.num_agents <= learner.most_agents and not group.num_costs and whole and floats
