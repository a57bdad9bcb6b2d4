"""Collect experience: policies act in a vector, and what follows is recorded in segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.ranks import SINGLE_PROCESS, Ranks
from fugu.data.segments import Segments
from fugu.envs.contract import Buffers
from fugu.envs.episode_stats import scalars
from fugu.policies.policy import Policy
from fugu.rollout.forwards import Forward, TorchForward
from fugu.rollout.return_normalizer import ReturnNormalizer
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


class Acts(Protocol):
    """Acts for one group's agents."""

    @property
    def full(self) -> bool:
        """Whether there is enough experience to learn from."""

    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""


# Returns what actors are shown of a batch, where that is not just its groups.
ViewBatch: TypeAlias = Callable[[Batch], Sequence[GroupBatch]]


class Actor:
    """One group's agents: their policy, their recurrent states, their segments.

    Attributes:
        returns: Measures how much discounted returns vary.
        forward: Computes the policy's outputs.
        random: Draws actions.
        states: Recurrent states, `[agents, state]`.
    """

    def __init__(
        self,
        policy: Policy,
        segments: Segments,
        returns: ReturnNormalizer,
        device: torch.device,
        random: np.random.Generator,
        forward: Forward | None = None,
    ) -> None:
        self.policy, self.segments, self.returns = policy, segments, returns
        self.forward: Forward = forward or TorchForward(policy)
        self._device, self.random = device, random
        self.states = policy.initial_state(segments.shape.agents, device)

    @property
    def full(self) -> bool:
        """Whether there are enough complete segments."""
        return self.segments.full

    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""
        ended = rows.terminations | rows.truncations | ~rows.valid
        waiting = self.segments.waiting(agents)
        costs = rows.costs if self.segments.shape.num_costs else None
        self.segments.earn(
            agents, rows.rewards, rows.terminations, rows.truncations, rows.valid, rows.live, costs
        )
        self._note_rewards(agents, waiting, ended, rows.valid)
        cut = rows.truncations & rows.valid & waiting
        if cut.any():
            self.segments.cut(agents[cut], self._values(rows.final[cut], agents[cut]))
        recurrent, index = self.policy.state_size > 0, torch.from_numpy(agents).to(self._device)
        if recurrent and ended.any():
            self.states[agents[ended]] = 0.0
        before = self.states[index] if recurrent else self.states[: len(agents)]
        seen = self._tensor(rows.observations)
        params, values, after = self.forward(seen, before)
        masks = None if rows.action_masks.all() else rows.action_masks
        live, everyone = rows.live, bool(rows.live.all())
        samples, log_probabilities = self.policy.distribution.sample(
            params.float().cpu(),
            masks,
            self.random,
            greedy=False,
            live=None if everyone else live,
        )
        acting = None if everyone else torch.from_numpy(live).to(self._device)
        if recurrent and acting is None:
            self.states[index] = after.float()
        elif recurrent:
            self.states[index[acting]] = after[acting].float()
        critics = values.float().cpu().numpy()
        part = slice(None) if everyone else live
        self.segments.add(
            agents[part],
            rows.observations[part],
            rows.action_masks[part],
            samples[part],
            log_probabilities[part],
            critics[part],
            before.cpu().numpy()[part],
            seen if acting is None else seen[acting],
        )
        return self.policy.distribution.to_rows(samples)

    def _note_rewards(
        self,
        agents: NDArray[np.int64],
        waiting: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        valid: NDArray[np.bool_],
    ) -> None:
        """Add the rewards of actions that are complete now to the statistics of returns.

        Agents that have not acted (dead, or not yet begun) have none.
        """
        complete = waiting & ~self.segments.waiting(agents)
        if not complete.all():
            agents, ended, valid = agents[complete], ended[complete], valid[complete]
        self.returns.note(agents, self.segments.last_rewards(agents), ended, valid)

    def _values(self, observations: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[np.float32]:
        _, values, _ = self.forward(self._tensor(observations), self.states[agents])
        found: NDArray[np.float32] = values.float().cpu().numpy()
        return found

    def _tensor(self, rows: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(self._device)


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

    @torch.no_grad()
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
