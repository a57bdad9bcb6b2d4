"""Parameters as points of a unit cube, which models can measure distances in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

Floats = NDArray[np.float64]


class Cube:
    """A column for each number, on its own scale, and one for each choice.

    >>> cube = Cube({"rate": FloatDistribution(0.01, 1.0, log=True)})
    >>> cube.encode({"rate": 0.1}).tolist(), round(cube.decode(np.array([1.0]))["rate"], 9)
    ([0.5], 1.0)
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.space = dict(sorted(space.items()))
        self.columns: dict[str, slice] = {}
        self.size = 0
        for name, each in self.space.items():
            width = len(each.choices) if isinstance(each, CategoricalDistribution) else 1
            self.columns[name] = slice(self.size, self.size + width)
            self.size += width

    def encode(self, parameters: Mapping[str, Any]) -> Floats:
        """The point of some parameters."""
        point = np.zeros(self.size)
        for name, each in self.space.items():
            value = parameters[name]
            if isinstance(each, CategoricalDistribution):
                point[self.columns[name]][int(each.to_internal_repr(value))] = 1.0
            else:
                low, high, log = _bounds(each)
                number = np.log(value) if log else float(value)
                point[self.columns[name]] = (number - low) / (high - low) if high > low else 0.5
        return point.clip(0.0, 1.0)

    def decode(self, point: Floats) -> dict[str, Any]:
        """The parameters of a point, or of the nearest that has some."""
        found: dict[str, Any] = {}
        for name, each in self.space.items():
            part = point[self.columns[name]]
            if isinstance(each, CategoricalDistribution):
                found[name] = each.choices[int(part.argmax())]
                continue
            low, high, log = _bounds(each)
            number = low + float(part[0]) * (high - low)
            number = float(np.exp(number)) if log else number
            if isinstance(each, IntDistribution):
                found[name] = int(np.clip(round(number), each.low, each.high))
            else:
                assert isinstance(each, FloatDistribution)
                found[name] = float(np.clip(number, each.low, each.high))
        return found

    def snap(self, points: Floats) -> Floats:
        """Points moved to the nearest that parameters have: whole numbers, one choice."""
        snapped = points.clip(0.0, 1.0)
        for name, each in self.space.items():
            columns = self.columns[name]
            if isinstance(each, CategoricalDistribution):
                chosen = points[:, columns].argmax(1)
                snapped[:, columns] = np.eye(len(each.choices))[chosen]
            elif isinstance(each, IntDistribution):
                low, high, log = _bounds(each)
                numbers = low + snapped[:, columns] * (high - low)
                whole = np.round(np.exp(numbers) if log else numbers).clip(each.low, each.high)
                numbers = np.log(whole) if log else whole
                snapped[:, columns] = (numbers - low) / (high - low) if high > low else 0.5
        return snapped

    def uniform(self, count: int, random: np.random.Generator) -> Floats:
        """Points anywhere."""
        return self.snap(random.random((count, self.size)))

    def spread(self, index: int, shift: Floats) -> Floats:
        """The point of that number in a sequence that fills the cube evenly (Roberts' R_d)."""
        ratio = 2.0  # the root of x^(d+1) = x + 1
        for _ in range(50):
            ratio = (1.0 + ratio) ** (1.0 / (self.size + 1))
        steps = ratio ** -np.arange(1.0, self.size + 1)
        point: Floats = self.snap(((shift + (index + 1) * steps) % 1.0)[None])[0]
        return point

    def nearby(self, centres: Floats, random: np.random.Generator) -> Floats:
        """Points around centres, one each: most parameters move a little, some choices change."""
        count = len(centres)
        radius = 0.3 * 10.0 ** -random.random((count, 1))  # 0.03 to 0.3
        moved = centres + radius * random.standard_normal(centres.shape)
        moved = np.where(moved < 0, -moved, moved)
        moved = np.where(moved > 1, 2 - moved, moved)
        for name, each in self.space.items():
            columns = self.columns[name]
            stays = random.random(count) < 0.3
            if isinstance(each, CategoricalDistribution):
                stays = random.random(count) < 0.8
                moved[:, columns] = random.random((count, len(each.choices)))
            moved[stays, columns] = centres[stays, columns]
        return self.snap(moved)


def _bounds(each: BaseDistribution) -> tuple[float, float, bool]:
    """The ends of a column on its scale; whole numbers at the ends get as much room as others."""
    assert isinstance(each, FloatDistribution | IntDistribution)
    half = 0.5 if isinstance(each, IntDistribution) else 0.0
    low, high = each.low - half, each.high + half
    return (float(np.log(low)), float(np.log(high)), True) if each.log else (low, high, False)
