"""Regression by a Gaussian process: what a model knows of points that were not tried."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ROOT5 = 5.0**0.5


class GaussianProcess:
    """A Matérn-5/2 kernel with a length for each column, plus a plane, plus noise.

    Targets are centred and scaled. The logarithms of the lengths, of the variances of both kernels
    and of the noise are those of the highest posterior, under broad normal priors.

    Args:
        inputs: Points of the unit cube. [points, columns]
        targets: What was observed there. [points]
    """

    def __init__(self, inputs: Floats, targets: Floats) -> None:
        self._inputs = inputs
        self._centre = float(targets.mean())
        self._unit = float(targets.std()) or 1.0
        self._targets = (targets - self._centre) / self._unit
        columns = inputs.shape[1]
        length = np.log(0.5 * columns**0.5)
        self._means = np.array([*[length] * columns, 0.0, np.log(0.1), np.log(0.01)])
        self._widths = np.array([*[1.0] * columns, 1.0, 1.5, 1.5])
        self._bounds = [*[(-3.5, 3.5)] * columns, (-4.0, 4.0), (-8.0, 3.0), (-11.5, 0.0)]
        self._theta = self._fit()
        self._factor(inputs, self._targets)

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of what is observed there, but for the noise."""
        cross = self._kernel(points, self._inputs)
        mean = cross @ self._weights
        solved = np.linalg.solve(self._lower, cross.T)
        variance = self._prior_variance(points) - (solved**2).sum(0)
        deviation = np.sqrt(np.maximum(variance, 1e-12))
        return self._centre + self._unit * mean, self._unit * deviation

    def believe(self, points: Floats) -> None:
        """Take for observed what is predicted at points, so that nobody asks there again."""
        if len(points):
            believed = (self.predict(points)[0] - self._centre) / self._unit
            self._inputs = np.concatenate([self._inputs, points])
            self._targets = np.concatenate([self._targets, believed])
            self._factor(self._inputs, self._targets)

    def _factor(self, inputs: Floats, targets: Floats) -> None:
        kernel = self._kernel(inputs, inputs)
        kernel[np.diag_indices_from(kernel)] += np.exp(self._theta[-1]) + 1e-8
        self._lower = np.linalg.cholesky(kernel)
        self._weights = np.linalg.solve(self._lower.T, np.linalg.solve(self._lower, targets))

    def _fit(self) -> Floats:
        optimise: Any = importlib.import_module("scipy.optimize")
        found = optimise.minimize(
            self._loss, self._means, jac=True, method="L-BFGS-B", bounds=self._bounds,
            options={"maxiter": 60},
        )  # fmt: skip
        theta: Floats = found.x
        return theta

    def _loss(self, theta: Floats) -> tuple[float, Floats]:
        """The negative logarithm of the posterior, and its gradient."""
        self._theta = theta
        inputs, targets = self._inputs, self._targets
        matern, plane, slopes = self._parts(inputs, inputs)
        noise = np.exp(theta[-1])
        kernel = matern + plane
        kernel[np.diag_indices_from(kernel)] += noise + 1e-8
        offset = (theta - self._means) / self._widths
        try:
            lower = np.linalg.cholesky(kernel)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse = np.linalg.inv(kernel)
        weights = inverse @ targets
        loss = 0.5 * targets @ weights + np.log(np.diag(lower)).sum() + 0.5 * (offset**2).sum()
        sensitivity = 0.5 * (inverse - np.outer(weights, weights))
        gradient = np.empty_like(theta)
        scaled = inputs / np.exp(theta[:-3])
        weighted = sensitivity * slopes
        for column in range(inputs.shape[1]):
            gaps = scaled[:, column, None] - scaled[None, :, column]
            gradient[column] = (weighted * gaps**2).sum()
        gradient[-3] = (sensitivity * matern).sum()
        gradient[-2] = (sensitivity * plane).sum()
        gradient[-1] = noise * np.trace(sensitivity)
        return float(loss), gradient + offset / self._widths

    def _kernel(self, left: Floats, right: Floats) -> Floats:
        matern, plane, _ = self._parts(left, right)
        return matern + plane

    def _parts(self, left: Floats, right: Floats) -> tuple[Floats, Floats, Floats]:
        """The two kernels, and the first one's slope by a squared gap of a column."""
        lengths, size = np.exp(self._theta[:-3]), np.exp(self._theta[-3])
        one, two = left / lengths, right / lengths
        squares = (one**2).sum(1)[:, None] + (two**2).sum(1)[None] - 2 * one @ two.T
        distance = np.sqrt(np.maximum(squares, 0.0))
        decay = np.exp(-ROOT5 * distance)
        matern = size * (1 + ROOT5 * distance + 5 / 3 * distance**2) * decay
        slopes = size * 5 / 3 * (1 + ROOT5 * distance) * decay
        plane = np.exp(self._theta[-2]) * (left - 0.5) @ (right - 0.5).T
        return matern, plane, slopes

    def _prior_variance(self, points: Floats) -> Floats:
        plane = np.exp(self._theta[-2]) * ((points - 0.5) ** 2).sum(1)
        variance: Floats = np.exp(self._theta[-3]) + plane
        return variance
