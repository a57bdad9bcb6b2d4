"""Tournaments: given players meet each other, pair by pair, in one vector."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fugu.core.errors import UsageError
from fugu.core.seeding import derive, fresh_seed
from fugu.league.ledger import Ledger
from fugu.league.players import Player, Source, find_source, load_player
from fugu.league.pool import Seats, act_for
from fugu.league.self_play import game_of
from fugu.training.config import resolve_config
from fugu.training.untrusted import settings_of
from fugu.vector import Vector, make

COPIES = 64
PATIENCE = 1_000_000  # steps of a vector after which games count as endless
Results = dict[tuple[int, int], list[int]]


@dataclass(frozen=True)
class Game:
    """An environment with the arguments that make it a game, and its sides (see `Seats`)."""

    env: str
    env_kwargs: Mapping[str, Any]
    sides: int = 0

    @property
    def name(self) -> str:
        """Its name in a ledger."""
        return game_of(self.env, self.env_kwargs)


def round_robin(
    vec: Vector, players: Sequence[Player], games: int, *, sides: int = 0, seed: int = 0
) -> Results:
    """Let every two players meet; return wins, draws and losses of the first, by their indices.

    In each match one side has the first of a pair and all others the second. Pairs play `games`
    matches, rounded up so that the first has had every side as often. Every match that was begun
    is played to its end, so short ones do not count more.
    """
    seats = Seats(vec.groups, vec.num_envs, sides)
    due = _schedule(len(players), games, seats.sides, np.random.default_rng(derive(seed, 1)))
    waiting, left, results = len(due), list(reversed(due)), Results()
    extra = np.full(seats.sides, len(players))  # nobody: places of players who are done
    acting = {**dict(enumerate(players)), len(players): players[0]}
    vec.async_reset(derive(seed, 0))
    for _ in range(PATIENCE):
        batch = vec.recv()
        over, matches = seats.note(batch)
        counted = (
            matches.holders.max(1) < len(players) if len(matches.holders) else np.zeros(0, bool)
        )
        waiting -= int(np.count_nonzero(counted))
        for pair, counts in matches.outcomes().items():
            if max(pair) < len(players):
                total = results.setdefault(pair, [0, 0, 0])
                results[pair] = [a + b for a, b in zip(total, counts, strict=True)]
        if not waiting:
            return results
        for env in batch.env_ids[over].tolist():
            seats.holders[env] = left.pop() if left else extra
        actions = []
        holders = seats.holders[batch.env_ids]
        for i, group in enumerate(batch.groups):
            found = np.zeros_like(group.rows.actions)
            fresh = np.repeat(over, len(group.agent_ids) // len(over))
            held = seats.of_group(i, holders)
            act_for(acting, i, group.agent_ids, group.rows, held, fresh, found)
            actions.append(found)
        vec.send(actions[0] if len(actions) == 1 else tuple(actions))
    raise UsageError(
        f"games: given some that did not end within {PATIENCE:,} steps; allowed: games that end. "
        "An environment's max_steps may help."
    )


def _schedule(
    players: int, games: int, sides: int, random: np.random.Generator
) -> list[np.ndarray[Any, Any]]:
    """Return who holds the sides of each match, in random order."""
    matches = []
    for first, second in itertools.combinations(range(players), 2):
        for match in range(-(-games // sides) * sides):
            holders = np.full(sides, second)
            holders[match % sides] = first
            matches.append(holders)
    random.shuffle(matches)
    return matches


def find_game(sources: Sequence[Source], env: str | None = None) -> Game:
    """Return the game that runs have in common: their environment, as leagues play it."""
    runs = [source.run for source in sources if source.run is not None]
    configs = [settings_of(run) for run in runs]
    names = list(dict.fromkeys([*([env] if env else []), *(cfg.env for cfg in configs)]))
    if len(names) != 1:
        raise UsageError(
            f"players: given runs of {', '.join(map(repr, names)) or 'no environment'}; allowed: "
            "runs of one environment, or none with the name of one."
        )
    cfg = configs[0] if configs else None
    added = resolve_config(names[0], overrides={"league": {"enabled": True}}).env_kwargs
    return Game(
        names[0],
        {**(cfg.env_kwargs if cfg else {}), **added},
        cfg.league.sides if cfg else 0,
    )


def play_tournament(
    names: Sequence[str],
    *,
    root: str | Path = "runs",
    database: str | Path | None = None,
    env: str | None = None,
    games: int = 100,
    greedy: bool = False,
    seed: int | None = None,
) -> tuple[Game, dict[tuple[str, str], list[int]]]:
    """Let checkpoints of runs meet and record the results.

    Args:
        names: `RUN`, `RUN:best`, `RUN:STEP`, or `random`; two or more.
        root: The folder of runs.
        database: The ledger; none is written if not given.
        env: The environment; that of the runs if not given.
        games: Games of each two of them.
        greedy: Take the most probable actions; games of two such players may all be the same.
        seed: Random seed; a fresh one if not given, so that games are not counted twice.
    """
    if games < 1:
        raise UsageError(f"games: given {games}; allowed: 1 or more.")
    sources = list(
        {source.name: source for source in (find_source(n, root) for n in names)}.values()
    )
    if len(sources) < 2:
        raise UsageError(f"players: given {', '.join(names)}; allowed: two or more different ones.")
    game = find_game(sources, env)
    root_seed = fresh_seed() if seed is None else seed
    random = np.random.default_rng(derive(root_seed, 2))
    with make(game.env, COPIES, env_kwargs=game.env_kwargs) as vec:
        players = [
            load_player(source, vec.groups, vec.num_envs, random, greedy=greedy)
            for source in sources
        ]
        results = round_robin(vec, players, games, sides=game.sides, seed=root_seed)
    if database is not None:
        _write(database, game, sources, results)
    found = {(sources[a].name, sources[b].name): counts for (a, b), counts in results.items()}
    return game, found


def _write(database: str | Path, game: Game, sources: Sequence[Source], results: Results) -> None:
    with Ledger(database) as ledger:
        numbers = [
            ledger.player(
                game.name, each.name, run=each.run.name if each.run else None, step=each.step
            )
            for each in sources
        ]
        found = {(numbers[a], numbers[b]): counts for (a, b), counts in results.items()}
        ledger.add(found, source=f"tournament-{secrets.token_hex(8)}")
