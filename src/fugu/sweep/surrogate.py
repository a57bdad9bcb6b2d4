"""The surrogate model of the cost-aware sampler: a unit cube of parameters and regression on it."""

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
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

Floats = NDArray[np.float64]


class UnitCube:
    """Parameters as points: a column for each number, on its own scale, and one for each choice.

    >>> cube = UnitCube({"rate": FloatDistribution(0.01, 1.0, log=True)})
    >>> cube.encode({"rate": 0.1}).tolist(), round(cube.decode(np.array([1.0]))["rate"], 9)
    ([0.5], 1.0)
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.space, self.size = dict(space), 0
        self._columns: dict[str, slice] = {}
        for name, each in space.items():
            width = len(each.choices) if isinstance(each, CategoricalDistribution) else 1
            self._columns[name] = slice(self.size, self.size + width)
            self.size += width

    def encode(self, parameters: Mapping[str, Any]) -> Floats:
        """Return the point [columns] of parameters."""
        point = np.zeros(self.size)
        for name, each in self.space.items():
            if isinstance(each, CategoricalDistribution):
                point[self._columns[name]][int(each.to_internal_repr(parameters[name]))] = 1.0
            else:
                point[self._columns[name]] = _to_unit(each, np.array(float(parameters[name])))
        return point

    def decode(self, point: Floats) -> dict[str, Any]:
        """Return the parameters nearest to a point."""
        found: dict[str, Any] = {}
        for name, each in self.space.items():
            columns = point[self._columns[name]]
            if isinstance(each, CategoricalDistribution):
                found[name] = each.choices[int(columns.argmax())]
            else:
                value = float(_from_unit(each, columns)[0])
                found[name] = int(value) if isinstance(each, IntDistribution) else value
        return found

    def sample(self, count: int, random: np.random.Generator) -> Floats:
        """Return random points [count, columns] of the whole cube."""
        return self._round(random.random((count, self.size)))

    def spread(self, index: int, shift: Floats) -> Floats:
        """Return a point of a sequence that fills the cube evenly from the start (Roberts' R_d).

        Args:
            index: Position in the sequence.
            shift: Its offset. [columns]
        """
        ratio = 2.0  # becomes the root of x^(d+1) = x + 1
        for _ in range(50):
            ratio = (1.0 + ratio) ** (1.0 / (self.size + 1))
        steps = ratio ** -np.arange(1.0, self.size + 1)
        point: Floats = (shift + (index + 1) * steps) % 1.0
        return point

    def sample_near(self, centers: Floats, random: np.random.Generator) -> Floats:
        """Return a random point near each center: most parameters change, choices seldom do."""
        count = len(centers)
        radius = 0.3 * 10.0 ** -random.random((count, 1))  # 0.03 to 0.3
        points = np.abs(centers + radius * random.standard_normal(centers.shape))
        points = np.where(points > 1.0, 2.0 - points, points)  # reflected at the faces
        for name, each in self.space.items():
            columns = self._columns[name]
            is_choice = isinstance(each, CategoricalDistribution)
            if is_choice:
                points[:, columns] = random.random((count, columns.stop - columns.start))
            stays = random.random(count) < (0.8 if is_choice else 0.3)
            points[stays, columns] = centers[stays, columns]
        return self._round(points)

    def _round(self, points: Floats) -> Floats:
        """Return the nearest points that stand for parameters."""
        for name, each in self.space.items():
            columns = self._columns[name]
            if isinstance(each, CategoricalDistribution):
                chosen = points[:, columns].argmax(1)
                points[:, columns] = np.eye(len(each.choices))[chosen]
            else:
                points[:, columns] = _to_unit(each, _from_unit(each, points[:, columns]))
        return points


class GaussianProcess:
    """Regression with a Matérn-5/2 kernel, a linear kernel and noise, on standardized targets.

    The log of each length scale, of the two variances and of the noise variance are fitted: they
    maximize the posterior under broad normal priors.

    Args:
        inputs: Points of the unit cube. [points, columns]
        targets: Observed values. [points]
    """

    def __init__(self, inputs: Floats, targets: Floats) -> None:
        self._mean, self._scale = float(targets.mean()), float(targets.std()) or 1.0
        self._inputs, self._targets = inputs, (targets - self._mean) / self._scale
        columns = inputs.shape[1]
        self._prior = np.array([*[np.log(0.5 * columns**0.5)] * columns, 0.0, *np.log([0.1, 0.01])])
        self._prior_scale = np.array([*[1.0] * columns, 1.0, 1.5, 1.5])
        bounds = [*[(-3.5, 3.5)] * columns, (-4.0, 4.0), (-8.0, 3.0), (-11.5, 0.0)]
        options = {"maxiter": 60}
        found = minimize(self._loss, self._prior, method="L-BFGS-B", bounds=bounds, options=options)
        self._log_parameters = found.x
        self._factorize()

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Return the mean and the standard deviation [points] of the function without noise."""
        cross = _kernel(self._log_parameters, points, self._inputs)
        variance = np.exp(self._log_parameters[-3])
        variance = variance + np.exp(self._log_parameters[-2]) * ((points - 0.5) ** 2).sum(1)
        explained = (cross * cho_solve(self._factor, cross.T).T).sum(1)
        deviation = np.sqrt(np.maximum(variance - explained, 1e-12))
        return self._mean + self._scale * (cross @ self._weights), self._scale * deviation

    def condition(self, points: Floats) -> None:
        """Treat the predicted means at points as observed, so that they are not proposed again."""
        predicted = (self.predict(points)[0] - self._mean) / self._scale
        self._inputs = np.concatenate([self._inputs, points])
        self._targets = np.concatenate([self._targets, predicted])
        self._factorize()

    def _factorize(self) -> None:
        kernel = _kernel(self._log_parameters, self._inputs, self._inputs)
        self._factor = cho_factor(kernel + _noise(self._log_parameters, len(kernel)), lower=True)
        self._weights = cho_solve(self._factor, self._targets)

    def _loss(self, log_parameters: Floats) -> float:
        """Return the negative log posterior of the kernels' parameters."""
        kernel = _kernel(log_parameters, self._inputs, self._inputs)
        try:
            factor = cho_factor(kernel + _noise(log_parameters, len(kernel)), lower=True)
        except LinAlgError:
            return 1e10
        fit = 0.5 * self._targets @ cho_solve(factor, self._targets)
        deviation = (log_parameters - self._prior) / self._prior_scale
        return float(fit + np.log(np.diag(factor[0])).sum() + 0.5 * (deviation**2).sum())


def _kernel(log_parameters: Floats, left: Floats, right: Floats) -> Floats:
    *_, variance, linear, _ = np.exp(log_parameters)
    lengths = np.exp(log_parameters[:-3])
    distance = 5.0**0.5 * cdist(left / lengths, right / lengths)
    matern = variance * (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    kernel: Floats = matern + linear * (left - 0.5) @ (right - 0.5).T
    return kernel


def _noise(log_parameters: Floats, count: int) -> Floats:
    noise: Floats = (np.exp(log_parameters[-1]) + 1e-8) * np.eye(count)
    return noise


def _bounds(each: BaseDistribution) -> tuple[float, float, bool]:
    """Return the ends of a number's column, with equal room for each integer, and if it is log."""
    assert isinstance(each, FloatDistribution | IntDistribution)
    half = 0.5 if isinstance(each, IntDistribution) else 0.0
    low, high = each.low - half, each.high + half
    return (float(np.log(low)), float(np.log(high)), True) if each.log else (low, high, False)


def _to_unit(each: BaseDistribution, values: Floats) -> Floats:
    low, high, is_log = _bounds(each)
    numbers = np.log(values) if is_log else values
    columns: Floats = np.clip((numbers - low) / (high - low), 0.0, 1.0)
    return columns


def _from_unit(each: BaseDistribution, columns: Floats) -> Floats:
    assert isinstance(each, FloatDistribution | IntDistribution)
    low, high, is_log = _bounds(each)
    numbers = low + columns * (high - low)
    numbers = np.exp(numbers) if is_log else numbers
    numbers = np.round(numbers) if isinstance(each, IntDistribution) else numbers
    values: Floats = np.clip(numbers, each.low, each.high)
    return values
