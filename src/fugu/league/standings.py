"""Standings: the ratings of a game's players, as a table and as a picture."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fugu.core.errors import UsageError
from fugu.league.ledger import Ledger, LedgerError
from fugu.league.ratings import Rating, Tally, elo_ratings, has_open_skill, open_skill_ratings
from fugu.track.curves import COLOURS, check_picture

WIDTH = 32  # of intervals in a terminal
MOST = 4096  # players that are rated together: it takes their square of memory


@dataclass(frozen=True)
class Standing:
    """How a player stands.

    Attributes:
        name: Its.
        elo: Its Elo rating.
        skill: Its OpenSkill rating; None if the package is not installed.
        wins: Games.
        draws: Games.
        losses: Games.
    """

    name: str
    elo: Rating
    skill: Rating | None
    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """All of them."""
        return self.wins + self.draws + self.losses

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"games": self.games}


def rate(ledger: Ledger, game: str) -> list[Standing]:
    """Rate all players of a game who played, best first; the ledger keeps the ratings."""
    tallies = ledger.tallies(game)
    played = {player for tally in tallies for player in (tally.first, tally.second)}
    entries = [entry for entry in ledger.players(game) if entry.number in played]
    numbers = [entry.number for entry in entries]
    if len(numbers) < len(played):
        raise LedgerError(
            f"ledger {ledger.path}: it holds games of players that it does not list. Use another "
            "file."
        )
    if len(numbers) > MOST:
        raise UsageError(f"rank: given {len(numbers):,} players of {game!r}; allowed: {MOST:,}.")
    elo = elo_ratings(numbers, tallies)
    skill = open_skill_ratings(numbers, tallies) if has_open_skill() else {}
    counts = {number: _counts(number, tallies) for number in numbers}
    ledger.write_ratings(elo, skill, {number: sum(told) for number, told in counts.items()})
    standings = [
        Standing(entry.name, elo[entry.number], skill.get(entry.number), *counts[entry.number])
        for entry in entries
    ]
    return sorted(standings, key=lambda standing: -standing.elo.mean)


def _counts(player: int, tallies: Sequence[Tally]) -> tuple[int, int, int]:
    """Wins, draws and losses of one player."""
    wins = draws = losses = 0
    for tally in tallies:
        if tally.first == player:
            wins, losses = wins + tally.wins, losses + tally.losses
        elif tally.second == player:
            wins, losses = wins + tally.losses, losses + tally.wins
        else:
            continue
        draws += tally.draws
    return wins, draws, losses


def show(standings: Sequence[Standing], game: str, console: Console | None = None) -> None:
    """Print the table, with the intervals of all Elo ratings on one scale."""
    table = Table(title=Text(game), title_justify="left", box=None, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("player", overflow="fold")
    for name in ("Elo", "± 95 %", "OpenSkill", "± 95 %", "games", "won", "drawn", "lost"):
        table.add_column(name, justify="right")
    low = min(each.elo.interval[0] for each in standings)
    high = max(each.elo.interval[1] for each in standings)
    table.add_column(f"Elo {low:.0f} to {high:.0f}", no_wrap=True)
    for place, each in enumerate(standings, 1):
        skill = ("-", "-")
        if each.skill is not None:
            skill = f"{each.skill.mean:.1f}", f"{1.96 * each.skill.deviation:.1f}"
        counts = [f"{count:,}" for count in (each.games, each.wins, each.draws, each.losses)]
        error = f"{1.96 * each.elo.deviation:.0f}"
        bar = whiskers(each.elo, low, high, WIDTH)
        table.add_row(
            str(place), Text(each.name), f"{each.elo.mean:.0f}", error, *skill, *counts, bar
        )
    (console or Console()).print(table)


def whiskers(rating: Rating, low: float, high: float, width: int) -> str:
    """A rating and its interval in one line of a scale.

    >>> whiskers(Rating(1000, 50), 800, 1200, 21)
    '     ├────●────┤     '
    """
    span = max(high - low, 1e-9)
    first, middle, last = (
        min(width - 1, max(0, round((value - low) / span * (width - 1))))
        for value in (rating.interval[0], rating.mean, rating.interval[1])
    )
    line = [" "] * width
    line[first : last + 1] = "─" * (last + 1 - first)
    line[first], line[last], line[middle] = "├", "┤", "●"
    return "".join(line)


def draw(standings: Sequence[Standing], game: str, path: Path) -> None:
    """Write a picture of all ratings with their intervals."""
    check_picture(path)
    figures: Any = importlib.import_module("matplotlib.figure")
    both = all(each.skill is not None for each in standings)
    height = 1.6 + 0.28 * len(standings)
    figure = figures.Figure(figsize=(11 if both else 7, height), layout="constrained")
    panels = figure.subplots(1, 2 if both else 1, sharey=True, squeeze=False)[0]
    kinds = [("Elo", [each.elo for each in standings], COLOURS[0])]
    if both:
        skills = [each.skill for each in standings if each.skill is not None]
        kinds.append(("OpenSkill", skills, COLOURS[1]))
    for axes, (name, ratings, colour) in zip(panels, kinds, strict=True):
        places = range(len(ratings))
        means, errors = [r.mean for r in ratings], [1.96 * r.deviation for r in ratings]
        axes.errorbar(means, places, xerr=errors, fmt="o", color=colour, capsize=3, lw=1.6)
        axes.set_xlabel(f"{name}, with 95 % intervals")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#e5e8eb", lw=0.8)
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(standings)), [each.name for each in standings])
    panels[0].invert_yaxis()
    figure.suptitle(game)
    figure.savefig(path, dpi=140)
