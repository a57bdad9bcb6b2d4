"""`fugu rank`: who is how good, and how sure is that?"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.league.standings import Standing


@dataclass(frozen=True)
class Rank:
    """Print the ratings of a league's players, or let some meet first.

    fugu rank | fugu rank --plot ratings.png | fugu rank RUN RUN:STEP random --games 200

    Ratings come from all results that the database holds, of training and of tournaments.
    """

    players: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN[:best|:STEP]|random")
    ] = ()
    """Who meet each other before: last checkpoints of runs, their best, or others by their steps.
    Nobody plays if none is given."""
    games: int = 100
    """Games of each two of them; sides are changed."""
    env: str | None = None
    """Only games of this environment; where all players are random, what they play."""
    greedy: bool = False
    """Let players take the most probable actions; their games may then all be the same."""
    seed: int | None = None
    """Of the games; a fresh one if not given, so that the same games are not counted twice."""
    runs: Path = Path("runs")
    """Where runs are."""
    database: Path | None = None
    """The SQLite file; league.sqlite beside the runs if not given."""
    plot: Path | None = None
    """Draw the ratings: FILE.png, .svg or .pdf."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """Play and print; 0 if it went well."""
        from fugu.league.self_play import LEDGER
        from fugu.league.standings import draw, show
        from fugu.track.curves import check_picture

        if self.plot is not None:
            check_picture(self.plot)
        path = self.database or self.runs / LEDGER
        found = self._rate(path, self._play(path) if self.players else self.env)
        if self.json:
            told = {game: [each.to_dict() for each in found[game]] for game in found}
            print(json.dumps(told))
        for place, (game, standings) in enumerate(found.items()):
            if not self.json:
                show(standings, game)
            if self.plot is not None:
                more = f"{self.plot.stem}-{place + 1}"
                draw(standings, game, self.plot.with_stem(more) if place else self.plot)
        return 0

    def _play(self, path: Path) -> str:
        """Let the players meet; the name of their game."""
        from fugu.league.tournament import play_tournament

        game, results = play_tournament(
            self.players,
            root=self.runs,
            database=path,
            env=self.env,
            games=self.games,
            greedy=self.greedy,
            seed=self.seed,
        )
        for (one, other), (wins, draws, losses) in results.items():
            if not self.json:
                print(f"{one} against {other}: {wins} won, {draws} drawn, {losses} lost")
        return game.name

    def _rate(self, path: Path, wanted: str | None) -> dict[str, list[Standing]]:
        """The tables of all games that are wanted: one by its whole name, or an environment's."""
        from fugu.league.ledger import Ledger
        from fugu.league.standings import rate

        if not path.is_file():
            raise UsageError(
                f"rank: given no players, and there is no {str(path)!r}; allowed: players to "
                "meet, or the database of a league. fugu league ENV trains one."
            )
        with Ledger(path) as ledger:
            ledger.check()
            games = ledger.games()
            meant = [g for g in games if wanted in (None, g, g.partition(" ")[0])]
            found = {game: standings for game in meant if (standings := rate(ledger, game))}
        if not found:
            raise UsageError(
                f"env: given {wanted!r}, of which {str(path)!r} holds no results; allowed: one of "
                f"{', '.join(games) or 'none yet'}."
            )
        return found
