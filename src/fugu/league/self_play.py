"""Self-play in a league: a pool of opponents that an algorithm's run plays against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fugu.algos.algorithm import RunContext, State, Tensors, as_arrays, as_tensor, as_tensors
from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers
from fugu.league.ledger import Ledger
from fugu.league.players import (
    SNAPSHOTS,
    Ids,
    Player,
    PolicyPlayer,
    find_source,
    load_player,
    take,
)
from fugu.league.pool import LEARNER, SAME, Matches, Pool, act_for
from fugu.policies.policy import Policy
from fugu.rollout.actor import Acts
from fugu.rollout.collector import Collector, EpisodeStatistics
from fugu.store.checkpoint import load_checkpoint, save_checkpoint
from fugu.store.run import Run
from fugu.vector import Batch, Vector

LEAGUE_STREAM = 0x6C67  # branch of the seed tree
LEDGER = "league.sqlite"  # in the folder of the runs


class Learner(Protocol):
    """What a league needs of the algorithm that learns in it."""

    policies: Sequence[Policy]

    @property
    def steps(self) -> int:
        """Agent steps so far."""

    def make_policy(self, group: AgentGroup) -> Policy:
        """Return a new policy of a group, for a snapshot's weights."""


class SelfPlay:
    """The opponents of one training run: see `fugu.algos.algorithm.Opponents`.

    Snapshots of the learner join the pool; results go to the ledger.
    """

    def __init__(self, context: RunContext, learner: Learner) -> None:
        cfg, vec = context.config, context.vector
        if cfg.policy.recall:
            raise UsageError(f"policy.recall: given {cfg.policy.recall} in a league; allowed: 0.")
        if context.ranks.size > 1:
            raise UsageError(
                f"league: given {context.ranks.size} processes that learn together; allowed: one."
            )
        self._context, self._learner = context, learner
        self.cfg, self.vec, self._root = cfg, vec, cfg.run.folder
        self.pool = Pool(vec, cfg.league, np.random.default_rng(derive(cfg.seed, LEAGUE_STREAM)))
        self._agents = [vec.num_envs * group.num_agents for group in vec.groups]
        self._era = self._sequence = self._snapshot_at = 0

    @property
    def run(self) -> Run | None:
        """The folder that keeps the snapshots; None: they stay in memory."""
        return self._context.run

    def make_collector(self, vector: Vector, actors: Sequence[Acts]) -> LeagueCollector:
        """Return a collector in which members of the pool act for their agents."""
        only_itself = self.cfg.league.self_share >= 1.0
        return LeagueCollector(vector, actors, self.pool, only_itself=only_itself)

    def start(self) -> None:
        """Fill the pool with those that the settings name and the learner as it is."""
        if not self.pool.members:
            for name in self.cfg.league.opponents:
                source = find_source(name, self._root)
                self.pool.add(source.name, self._load(source.name, None))
            self._add_snapshot()

    def after_update(self) -> None:
        """Add a snapshot if one is due, and draw who plays next."""
        every, steps = self.cfg.league.snapshot_every, self._learner.steps
        due = every and steps // every > self._snapshot_at // every
        if due or self.pool.beaten:
            self._add_snapshot()
        self.pool.refresh()

    # ------------------------------------------------------------------ snapshots

    def _add_snapshot(self) -> None:
        """Add the learner as it is now to the pool."""
        steps = self._learner.steps
        name = f"{self.run.name if self.run else 'learner'}:{steps}"
        weights = [
            {key: value.detach().clone() for key, value in policy.state_dict().items()}
            for policy in self._learner.policies
        ]
        if self.run is not None:
            self._write_results()
            tensors = {f"policy_{i}": each for i, each in enumerate(weights)}
            save_checkpoint(self._folder(self.run, steps), tensors=tensors, state={"step": steps})
        self.pool.add(name, self._player_of(weights), steps)
        self._snapshot_at = steps
        self._era += 1

    def _player_of(self, weights: list[dict[str, torch.Tensor]]) -> PolicyPlayer:
        policies: list[Policy] = []
        with torch.random.fork_rng(devices=[]):  # training draws the same numbers as without
            for group, given in zip(self.vec.groups, weights, strict=True):
                policy = self._learner.make_policy(group).to(self._context.device)
                policy.load_state_dict(given)
                policies.append(policy.requires_grad_(False))
        return PolicyPlayer(policies, self._agents, self.pool.random)

    def _load(self, name: str, step: int | None) -> Player:
        """Load a member of the pool."""
        if step is None:
            source = find_source(name, self._root)
            groups, copies = self.vec.groups, self.vec.num_envs
            return load_player(
                source, groups, copies, self.pool.random, device=self._context.device
            )
        assert self.run is not None
        kept = load_checkpoint(self._folder(self.run, step)).tensors
        weights = [as_tensors(kept[f"policy_{i}"]) for i in range(len(self.vec.groups))]
        return self._player_of(weights)

    @staticmethod
    def _folder(run: Run, step: int) -> Path:
        return run.folder / SNAPSHOTS / f"step_{step:09d}"

    # ------------------------------------------------------------------ results

    def _write_results(self) -> None:
        """Write the results since the last time, all at once."""
        if self.run is None or not self.pool.tallies:
            return
        self._sequence += 1
        game, run = game_of(self.cfg.env, self.cfg.env_kwargs), self.run.name
        with Ledger(ledger_path(self.cfg)) as ledger:
            numbers = {LEARNER: ledger.learner(game, run, self._era, self._learner.steps)}
            for member in self.pool.members:
                owner = run if member.step is not None else None
                numbers[member.number] = ledger.player(
                    game, member.name, run=owner, step=member.step
                )
            results = {
                (numbers[first], numbers[second]): counts
                for (first, second), counts in self.pool.tallies.items()
            }
            ledger.add(results, source=run, sequence=self._sequence)
        self.pool.tallies.clear()

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self, tensors: Tensors) -> State:
        """Add seats and recurrent states; snapshots stand in the run's folder."""
        if self.run is None:
            raise UsageError(
                "checkpoint: given a league without a run to keep its snapshots in; allowed: runs "
                "that are kept (keep=True)."
            )
        self._write_results()
        tensors["league_seats"] = dict(self.pool.seats.state_dict())
        for member in self.pool.members:
            if isinstance(member.player, PolicyPlayer):
                states = {str(i): each for i, each in enumerate(member.player.states)}
                tensors[f"league_{member.number}"] = states
        counters = {"era": self._era, "sequence": self._sequence}
        return {**self.pool.state(), **counters, "snapshot_at": self._snapshot_at}

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Restore a checkpoint; later results are removed from the ledger."""
        assert self.run is not None
        self.pool.load_state(state, self._load)
        for member in self.pool.members:
            if isinstance(member.player, PolicyPlayer):
                for i, saved in tensors.get(f"league_{member.number}", {}).items():
                    device = self._context.device
                    member.player.states[int(i)][:] = as_tensor(saved).to(device)
        if tensors.get("environments") is None:
            self.pool.seats.clear()
        else:
            seats = as_arrays(tensors["league_seats"])
            self.pool.seats.load_state_dict(seats)
        self._era, self._sequence = int(state["era"]), int(state["sequence"])
        self._snapshot_at = int(state["snapshot_at"])
        with Ledger(ledger_path(self.cfg)) as ledger:
            ledger.rewind(self.run.name, self._sequence, self._era)


def ledger_path(cfg: Config) -> Path:
    """Return the ledger of a run: the settings', or the one that all runs of a folder share."""
    return cfg.league.database or cfg.run.folder / LEDGER


def game_of(env: str, env_kwargs: Mapping[str, Any]) -> str:
    """Return the name of a game in a ledger: the environment and its arguments.

    >>> game_of("connect4", {"opponent": 2}), game_of("my_games:kuhn", {})
    ('connect4 {"opponent": 2}', 'my_games:kuhn')
    """
    kwargs = json.dumps(dict(env_kwargs), sort_keys=True, default=str) if env_kwargs else ""
    return f"{env} {kwargs}".strip()


# ------------------------------------------------------------------ collection


class LeagueStatistics(EpisodeStatistics):
    """The learner's returns, and its score, in matches against others.

    Matches of the learner with itself say nothing of how good it is; they count only where there
    are no others.
    """

    def __init__(self, only_itself: bool) -> None:
        super().__init__()
        self._only_itself = only_itself

    def note_matches(self, matches: Matches, members: int) -> None:
        """Add matches that are over, with the number of opponents in the pool."""
        mine = matches.holders == LEARNER
        counted = mine.all(1) if self._only_itself else mine.any(1) & ~mine.all(1)
        if not counted.any():
            return
        mine, returns = mine[counted], matches.returns[counted]
        own = np.where(mine, returns, 0.0).sum(1) / mine.sum(1)
        lead = own - np.where(mine, -np.inf, returns).max(1)
        score = float(np.mean((lead > SAME) + 0.5 * (np.abs(lead) <= SAME)))
        facts = {
            "episode_return": float(own.mean()),
            "episode_length": float(matches.lengths[counted].mean()),
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
        actions, players = [], pool.players
        for i, (actor, group) in enumerate(zip(self.actors, batch.groups, strict=True)):
            agents, rows = group.agent_ids, group.rows
            held, holds = seats.of_group(i, before), seats.of_group(i, after)
            fresh = np.repeat(over, len(agents) // len(over))
            found = np.zeros_like(rows.actions)
            act_for(players, i, agents, rows, holds, fresh, found)
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
    """Return rows as the learner's actor is to see them.

    An agent that was the learner's gets its reward, and does not act if it no longer is. One that
    has just become the learner's gets no reward for what others did, and begins without memory: to
    the actor that looks like a fault.
    """
    return replace(rows, live=rows.live & (holds == LEARNER), valid=rows.valid & (held == LEARNER))
