"""Ratings: how good players are, and how sure that is, from counts of wins, draws and losses."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError

CENTRE = 1000.0  # the mean of all Elo ratings
SCALE = 400.0 / math.log(10.0)  # Elo points of a factor e in the odds
PRIOR = 800.0 / SCALE  # how far ratings may lie apart before anybody has played
REPLAYED = 4000  # games that OpenSkill is shown, at most
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tally:
    """Games of two players, from the first one's view."""

    first: int
    second: int
    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """All of them."""
        return self.wins + self.draws + self.losses


@dataclass(frozen=True)
class Rating:
    """An estimate and its standard deviation."""

    mean: float
    deviation: float

    @property
    def interval(self) -> tuple[float, float]:
        """Where it lies with a probability of 95 %."""
        return self.mean - 1.96 * self.deviation, self.mean + 1.96 * self.deviation


def elo_ratings(players: Sequence[int], tallies: Sequence[Tally]) -> dict[int, Rating]:
    """Elo ratings that explain all games best, at once and whatever their order.

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
    """Of the log posterior: its gradient, and the negative of its second derivatives."""
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
    """Whether the package is installed."""
    return importlib.util.find_spec("openskill") is not None


def open_skill_ratings(players: Sequence[int], tallies: Sequence[Tally]) -> dict[int, Rating]:
    """OpenSkill's ratings (Plackett and Luce's model, from 25 with a deviation of 25 / 3).

    It takes games one by one. Players that do not change need no order, so pairs take turns; of
    very many games each pair is shown as many, in the proportions of all of its games.

    Raises:
        MissingExtraError: The package `openskill` is not installed.
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
    """Its games as 1, 0 and -1, evenly mixed; of more than `most`, so many in their proportions.

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
