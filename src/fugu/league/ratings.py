"""Ratings: how good players are, and how sure that is, from counts of wins, draws and losses."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fugu.core.errors import MissingExtraError, UsageError
from fugu.league.ledger import Ledger, LedgerError, Rating, Tally
from fugu.track.curves import COLOURS, check_picture

CENTRE = 1000.0  # the mean of all Elo ratings
SCALE = 400.0 / math.log(10.0)  # Elo points of a factor e in the odds
PRIOR = 800.0 / SCALE  # how far ratings may lie apart before anybody has played
REPLAYED = 4000  # games that OpenSkill is shown, at most
WIDTH = 32  # of intervals in a terminal
MOST = 4096  # players that are rated together: it takes their square of memory
Floats = NDArray[np.float64]


def elo_ratings(players: Sequence[int], tallies: Sequence[Tally]) -> dict[int, Rating]:
    """Return the Elo ratings that explain all games best, whatever their order.

    The model of Bradley and Terry: a lead of 400 points makes odds of 10 to 1, and a draw is half
    a win of both. A wide prior keeps those finite who never lost. Deviations are of the distance
    from the mean of all.

    >>> ratings = elo_ratings([1, 2], [Tally(1, 2, wins=75, draws=0, losses=25)])
    >>> lead = ratings[1].mean - ratings[2].mean
    >>> 189 < lead < 191  # 400 * log10(3) = 190.8, a little less by the prior
    True
    """
    if not players:
        return {}
    place = {player: i for i, player in enumerate(players)}
    first = np.array([place[tally.first] for tally in tallies], np.int64)
    second = np.array([place[tally.second] for tally in tallies], np.int64)
    games = np.array([tally.games for tally in tallies], np.float64)
    points = np.array([tally.wins + tally.draws / 2 for tally in tallies], np.float64)
    strengths = np.zeros(len(players))
    precision = np.eye(len(players))
    for _ in range(100):
        slope, precision = _slope(strengths, first, second, games, points)
        step = np.linalg.solve(precision, slope)
        step *= min(1.0, 2.0 / max(float(np.abs(step).max()), 1e-12))  # far steps overshoot
        strengths += step
        if np.abs(step).max() < 1e-9:
            break
    centring = np.eye(len(players)) - 1.0 / len(players)
    spread = centring @ np.linalg.inv(precision) @ centring
    means = CENTRE + SCALE * (strengths - strengths.mean())
    deviations = SCALE * np.sqrt(np.maximum(np.diag(spread), 0.0))
    return {player: Rating(float(means[i]), float(deviations[i])) for player, i in place.items()}


def _slope(
    strengths: Floats,
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    games: Floats,
    points: Floats,
) -> tuple[Floats, Floats]:
    """Return the gradient of the log posterior, and its negative second derivatives."""
    expected = 1.0 / (1.0 + np.exp(strengths[second] - strengths[first]))
    surplus = points - games * expected
    slope = -strengths / PRIOR**2
    np.add.at(slope, first, surplus)
    np.add.at(slope, second, -surplus)
    weight = games * expected * (1.0 - expected)
    precision = np.eye(len(strengths)) / PRIOR**2
    np.add.at(precision, (first, first), weight)
    np.add.at(precision, (second, second), weight)
    np.add.at(precision, (first, second), -weight)
    np.add.at(precision, (second, first), -weight)
    return slope, precision


def has_open_skill() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec("openskill") is not None


def open_skill_ratings(players: Sequence[int], tallies: Sequence[Tally]) -> dict[int, Rating]:
    """Return OpenSkill's ratings (Plackett and Luce's model, from 25 with a deviation of 25 / 3).

    It takes games one by one. Players that do not change need no order, so pairs take turns; of
    very many games each pair is shown as many, in the proportions of all of its games.
    """
    if not has_open_skill():
        raise MissingExtraError("openskill", "league")
    model: Any = importlib.import_module("openskill.models").PlackettLuce()
    found: dict[int, Any] = {player: model.rating() for player in players}
    share = max(1, REPLAYED // max(1, len(tallies)))
    queues = [(tally, replayed(tally, share)) for tally in tallies]
    for turn in range(max((len(games) for _, games in queues), default=0)):
        for tally, games in queues:
            if turn >= len(games):
                continue
            teams = [[found[tally.first]], [found[tally.second]]]
            (one,), (other,) = model.rate(teams, ranks=_RANKS[games[turn]])
            found[tally.first], found[tally.second] = one, other
    return {player: Rating(float(each.mu), float(each.sigma)) for player, each in found.items()}


_RANKS = {1: [1, 2], 0: [1, 1], -1: [2, 1]}  # of a win, a draw and a loss of the first


def replayed(tally: Tally, most: int) -> list[int]:
    """Return games as 1, 0 and -1, evenly mixed; at most `most`, in their proportions.

    >>> replayed(Tally(1, 2, wins=2, draws=1, losses=1), 10)
    [1, 0, -1, 1]
    >>> replayed(Tally(1, 2, wins=3000, draws=0, losses=1000), 4)
    [1, 1, -1, 1]
    """
    total = min(most, tally.games)
    counts = {1: tally.wins, 0: tally.draws, -1: tally.losses}
    shown = dict.fromkeys(counts, 0)
    games = []
    for game in range(total):
        # Whichever is furthest behind its share; of equals the first.
        due = {
            kind: count * (game + 1) / tally.games - shown[kind] for kind, count in counts.items()
        }
        kind = max(due, key=lambda each: due[each])
        shown[kind] += 1
        games.append(kind)
    return games


# ------------------------------------------------------------------ standings


@dataclass(frozen=True)
class Standing:
    """The ratings and games of a player; `skill` is None if OpenSkill is not installed."""

    name: str
    elo: Rating
    skill: Rating | None
    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Number of all games."""
        return self.wins + self.draws + self.losses

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
    ledger.write_ratings(elo, skill, {number: sum(three) for number, three in counts.items()})
    standings = [
        Standing(entry.name, elo[entry.number], skill.get(entry.number), *counts[entry.number])
        for entry in entries
    ]
    return sorted(standings, key=lambda standing: -standing.elo.mean)


def _counts(player: int, tallies: Sequence[Tally]) -> tuple[int, int, int]:
    """Return wins, draws and losses of one player."""
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
    """Return a rating and its interval as a line of a scale.

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
