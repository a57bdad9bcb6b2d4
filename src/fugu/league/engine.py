"""The engine of a league: PPO that plays against a pool of snapshots and others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.league.collect import LeagueCollector
from fugu.league.ledger import Ledger
from fugu.league.players import SNAPSHOTS, Player, PolicyPlayer, find_source, load_player
from fugu.league.pool import Pool
from fugu.league.seats import LEARNER
from fugu.policies.policy import Policy
from fugu.store.checkpoint import load_checkpoint, save_checkpoint
from fugu.store.run import Run
from fugu.training.config import Config
from fugu.training.engine import Engine, Tensors
from fugu.training.keeping import as_arrays, as_tensor, as_tensors
from fugu.training.parts import Parts
from fugu.training.ppo_engine import PPOEngine, choose_precision
from fugu.training.safe_ppo_engine import SafePPOEngine
from fugu.vector import Vector

CHANCE = 0x6C67  # the branch of the seed tree
LEDGER = "league.sqlite"  # in the folder of the runs


class LeagueEngine(PPOEngine):
    """PPO in a league; see `Engine` for what its parts do.

    Attributes:
        pool: The opponents.
        run: Where snapshots are kept; they stay in memory alone if nobody says.
    """

    run: Run | None = None

    def __init__(self, cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> None:
        if cfg.policy.recall:
            raise UsageError(f"policy.recall: given {cfg.policy.recall} in a league; allowed: 0.")
        if parts.ranks.size > 1:
            raise UsageError(
                f"league: given {parts.ranks.size} processes that learn together; allowed: one."
            )
        self._parts, self._root = parts, cfg.run.folder
        self.pool = Pool(vec, cfg.league, np.random.default_rng(derive(cfg.seed, CHANCE)))
        self._agents = [vec.num_envs * group.num_agents for group in vec.groups]
        self._era = self._sequence = self._snapshot_at = 0
        super().__init__(cfg, vec, device, parts)

    def make_collector(self) -> LeagueCollector:
        """One in which members of the pool act for their agents."""
        only_itself = self.cfg.league.self_share >= 1.0
        return LeagueCollector(self.vec, self._actors, self.pool, only_itself=only_itself)

    def settle(self, run: Run) -> None:
        """Keep snapshots in the run's folder, and results in the ledger."""
        self.run = run
        with self._ledger():
            pass  # what is wrong with the file is said before anything is trained

    def start(self, seed: int) -> None:
        """Begin: the pool is made of those that the settings name and the learner as it is."""
        if not self.pool.members:
            for name in self.cfg.league.opponents:
                source = find_source(name, self._root)
                self.pool.add(source.name, self._load(source.name, None))
            self._add_snapshot()
        super().start(seed)

    def update(self, progress: float, learning_rate: float) -> dict[str, float]:
        """Learn; then it may be time for a snapshot, and for other opponents."""
        losses = super().update(progress, learning_rate)
        every = self.cfg.league.snapshot_every
        due = every and self.steps // every > self._snapshot_at // every
        if due or self.pool.beaten:
            self._add_snapshot()
        self.pool.refresh()
        return losses

    # ------------------------------------------------------------------ snapshots

    def _add_snapshot(self) -> None:
        """The learner as it is now becomes a member of the pool."""
        name = f"{self.run.name if self.run else 'learner'}:{self.steps}"
        weights = [
            {key: value.detach().clone() for key, value in policy.state_dict().items()}
            for policy in self.policies
        ]
        if self.run is not None:
            self._write_results()
            tensors = {f"policy_{i}": each for i, each in enumerate(weights)}
            save_checkpoint(
                self._folder(self.run, self.steps), tensors=tensors, state={"step": self.steps}
            )
        self.pool.add(name, self._player_of(weights), self.steps)
        self._snapshot_at = self.steps
        self._era += 1

    def _player_of(self, weights: list[dict[str, torch.Tensor]]) -> PolicyPlayer:
        policies: list[Policy] = []
        with torch.random.fork_rng(devices=[]):  # chances of training are not used up
            for group, agents, given in zip(self.vec.groups, self._agents, weights, strict=True):
                precision = choose_precision(self.cfg.policy, agents, self._device)
                cfg = replace(self.cfg.policy, precision=precision)
                policy = self.make_policy(group, cfg, self._parts).to(self._device)
                policy.load_state_dict(given)
                policies.append(policy.requires_grad_(False))
        return PolicyPlayer(policies, self._agents, self.pool.random)

    def _load(self, name: str, step: int | None) -> Player:
        """A member of the pool, from where it is kept."""
        if step is None:
            source = find_source(name, self._root)
            groups, copies = self.vec.groups, self.vec.num_envs
            return load_player(source, groups, copies, self.pool.random, device=self._device)
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
        """Write results that came since the last time, all at once."""
        if self.run is None or not self.pool.tallies:
            return
        self._sequence += 1
        game, run = game_of(self.cfg.env, self.cfg.env_kwargs), self.run.name
        with self._ledger() as ledger:
            numbers = {LEARNER: ledger.learner(game, run, self._era, self.steps)}
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

    def checkpoint(self) -> tuple[Tensors, dict[str, Any]]:
        """All that the engine needs to go on exactly; snapshots stand in the run's folder."""
        if self.run is None:
            raise UsageError(
                "checkpoint: given a league without a run to keep its snapshots in; allowed: after "
                "settle(run)."
            )
        self._write_results()
        tensors, state = super().checkpoint()
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
        return tensors, {**state, "league": {**self.pool.state(), **counters}}

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], seed: int) -> None:
        """Go on from a checkpoint; what came after it is taken back."""
        assert self.run is not None
        told = state["league"]
        self.pool.load_state(told, self._load)
        for member in self.pool.members:
            if isinstance(member.player, PolicyPlayer):
                for i, kept in tensors.get(f"league_{member.number}", {}).items():
                    member.player.states[int(i)][:] = as_tensor(kept).to(self._device)
        if tensors.get("environments") is None:
            self.pool.seats.clear()
        else:
            seats = as_arrays(tensors["league_seats"])
            self.pool.seats.load_state_dict(seats)
        self._era, self._sequence = int(told["era"]), int(told["sequence"])
        self._snapshot_at = int(told["snapshot_at"])
        with self._ledger() as ledger:
            ledger.rewind(self.run.name, self._sequence, self._era)
        super().restore(tensors, state, seed)


class SafeLeagueEngine(LeagueEngine, SafePPOEngine):
    """Safe PPO in a league."""


ENGINES: dict[str, type[LeagueEngine]] = {"ppo": LeagueEngine, "safe_ppo": SafeLeagueEngine}


def make_league_engine(cfg: Config, vec: Vector, device: torch.device, parts: Parts) -> Engine:
    """The engine of a run whose settings ask for a league."""
    if cfg.algo not in ENGINES:
        raise UsageError(
            f"algo: given {cfg.algo!r} in a league; allowed: {', '.join(ENGINES)}, whose learners "
            "need nothing of what other agents do."
        )
    return ENGINES[cfg.algo](cfg, vec, device, parts)


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
