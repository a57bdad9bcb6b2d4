"""Matchmaking: how the learner fares against each opponent, and whom it meets next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

WINDOW = 400  # games after which older ones count half
Weighting = Literal["hard", "even", "uniform"]
Floats = NDArray[np.float64]

# Weights of opponents, of the share of points that the learner takes from them.
WEIGHTINGS: dict[Weighting, Callable[[Floats], Floats]] = {
    "hard": lambda scores: (1.0 - scores) ** 2,
    "even": lambda scores: scores * (1.0 - scores),
    "uniform": np.ones_like,
}


@dataclass
class Record:
    """The learner's games against one opponent, of which the last few hundred count most.

    >>> record = Record()
    >>> record.add(wins=3, draws=1, losses=0)
    >>> record.score  # with a win and a loss beforehand
    0.75
    """

    wins: float = 0.0
    draws: float = 0.0
    losses: float = 0.0

    @property
    def games(self) -> float:
        """How many, those that count half as halves."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """The share of points that the learner takes, draws as half; a half before the first."""
        return (self.wins + self.draws / 2 + 1.0) / (self.games + 2.0)

    def add(self, wins: float, draws: float, losses: float) -> None:
        """More games."""
        self.wins, self.draws, self.losses = (
            self.wins + wins,
            self.draws + draws,
            self.losses + losses,
        )
        while self.games > 2 * WINDOW:
            self.wins, self.draws, self.losses = self.wins / 2, self.draws / 2, self.losses / 2


def chances(scores: Sequence[float], weighting: Weighting) -> Floats:
    """How probable each opponent is, by the learner's score against it.

    >>> chances([0.5, 0.9], "hard").round(3).tolist()
    [0.962, 0.038]
    """
    weights = WEIGHTINGS[weighting](np.asarray(scores, np.float64))
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / len(weights))


def draw_matches(
    count: int,
    sides: int,
    opponents: NDArray[np.int64],
    self_share: float,
    learner: int,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Who holds the sides of new matches, `[count, sides]`.

    In a share of them the learner holds all sides; else one, whichever, and each other side has
    one of the opponents.
    """
    holders = np.full((count, sides), learner)
    if not len(opponents):
        return holders
    others = random.choice(opponents, (count, sides))
    mine = random.integers(sides, size=count)
    alone = random.random(count) < self_share
    others[np.arange(count), mine] = learner
    found: NDArray[np.int64] = np.where(alone[:, None], holders, others)
    return found
