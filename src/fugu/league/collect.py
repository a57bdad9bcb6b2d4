"""Collection in a league: the learner acts for its agents and the pool's members for theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fugu.envs.contract import Buffers
from fugu.league.players import Ids, take
from fugu.league.pool import Pool
from fugu.league.seats import LEARNER, SAME, Matches
from fugu.rollout.actor import Acts
from fugu.rollout.collector import Collector, EpisodeStatistics
from fugu.vector import Batch, Vector


class LeagueStatistics(EpisodeStatistics):
    """What matches told: the learner's returns, and its score, against others.

    Matches of the learner with itself say nothing of how good it is; they count only where there
    are no others.
    """

    def __init__(self, only_itself: bool) -> None:
        super().__init__()
        self._only_itself = only_itself

    def note_matches(self, matches: Matches, members: int) -> None:
        """Matches that are over, and how many opponents there are."""
        mine = matches.holders == LEARNER
        told = mine.all(1) if self._only_itself else mine.any(1) & ~mine.all(1)
        if not told.any():
            return
        mine, returns = mine[told], matches.returns[told]
        own = np.where(mine, returns, 0.0).sum(1) / mine.sum(1)
        lead = own - np.where(mine, -np.inf, returns).max(1)
        score = float(np.mean((lead > SAME) + 0.5 * (np.abs(lead) <= SAME)))
        facts = {
            "episode_return": float(own.mean()),
            "episode_length": float(matches.lengths[told].mean()),
            "pool": float(members),
        }
        if not self._only_itself:
            facts["score"] = score
        self._add(facts, float(len(own)))


class LeagueCollector(Collector):
    """Steps a vector in which several players hold the agents; only the learner's are learned from.

    Attributes:
        steps: The learner's agent steps; those of others do not count.
    """

    def __init__(
        self, vec: Vector, actors: Sequence[Acts], pool: Pool, *, only_itself: bool
    ) -> None:
        super().__init__(vec, actors)
        self._pool = pool
        self.episodes: LeagueStatistics = LeagueStatistics(only_itself)

    @torch.no_grad()
    def handle(self, batch: Batch) -> None:
        """Act on one batch."""
        pool, seats = self._pool, self._pool.seats
        before = seats.holders[batch.env_ids]
        over, matches = pool.note(batch)
        self.episodes.note_matches(matches, len(pool.active))
        after = seats.holders[batch.env_ids]
        actions = []
        for i, (actor, group) in enumerate(zip(self.actors, batch.groups, strict=True)):
            agents, rows = group.agent_ids, group.rows
            held, holds = seats.of_group(i, before), seats.of_group(i, after)
            fresh = np.repeat(over, len(agents) // len(over))
            found = np.zeros_like(rows.actions)
            pool.act(i, agents, rows, holds, fresh, found)
            mine = np.flatnonzero((held == LEARNER) | (holds == LEARNER))
            if len(mine):
                shown = learner_rows(rows, held, holds)
                some = shown if len(mine) == len(agents) else take(shown, mine)
                acted = actor.act(agents[mine], some)
                acts = holds[mine] == LEARNER
                found[mine[acts]] = acted[acts]
                self.steps += int(np.count_nonzero(some.live))
            actions.append(found)
        if self.on_batch is not None:
            self.on_batch(batch, actions)
        ids = [group.agent_ids for group in batch.groups]
        if len(actions) == 1:
            self.vec.send(actions[0], ids[0])
        else:
            self.vec.send(tuple(actions), tuple(ids))


def learner_rows(rows: Buffers, held: Ids, holds: Ids) -> Buffers:
    """Rows as the learner's actor is to see them.

    An agent that was the learner's earns, and does not act if it is no more. One that has just
    become the learner's earns nothing of what others did, and begins with no memory: to the actor
    that looks like a fault, of an agent that waits for nothing.
    """
    return replace(rows, live=rows.live & (holds == LEARNER), valid=rows.valid & (held == LEARNER))
