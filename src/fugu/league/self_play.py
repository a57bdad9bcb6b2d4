"""Self-play in a league: a pool of opponents that an algorithm's run plays against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fugu.algos.algorithm import RunContext, State, Tensors, as_arrays, as_tensor, as_tensors
from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup
from fugu.league.collect import LeagueCollector
from fugu.league.ledger import Ledger
from fugu.league.players import SNAPSHOTS, Player, PolicyPlayer, find_source, load_player
from fugu.league.pool import Pool
from fugu.league.seats import LEARNER
from fugu.policies.policy import Policy
from fugu.rollout.actor import Acts
from fugu.store.checkpoint import load_checkpoint, save_checkpoint
from fugu.store.run import Run
from fugu.vector import Vector

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

    Args:
        context: What the run hands to its algorithm.
        learner: The algorithm.

    Attributes:
        pool: The opponents.
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

    def _ledger(self) -> Ledger:
        return Ledger(ledger_path(self.cfg))

    def _write_results(self) -> None:
        """Write the results since the last time, all at once."""
        if self.run is None or not self.pool.tallies:
            return
        self._sequence += 1
        game, run = game_of(self.cfg.env, self.cfg.env_kwargs), self.run.name
        with self._ledger() as ledger:
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
        counters = {
            "era": self._era,
            "sequence": self._sequence,
            "snapshot_at": self._snapshot_at,
        }
        return {**self.pool.state(), **counters}

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a checkpoint; later results are taken back from the ledger."""
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
        with self._ledger() as ledger:
            ledger.rewind(self.run.name, self._sequence, self._era)


def ledger_path(cfg: Config) -> Path:
    """The ledger of a run: the settings', or the one that all runs of a folder share."""
    return cfg.league.database or cfg.run.folder / LEDGER


def game_of(env: str, env_kwargs: Mapping[str, Any]) -> str:
    """What a ledger calls a game: the environment and its arguments.

    >>> game_of("connect4", {"opponent": 2}), game_of("my_games:kuhn", {})
    ('connect4 {"opponent": 2}', 'my_games:kuhn')
    """
    told = json.dumps(dict(env_kwargs), sort_keys=True, default=str) if env_kwargs else ""
    return f"{env} {told}".strip()
