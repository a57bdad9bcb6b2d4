"""Samplers: who proposes the settings of the next trial."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.spatial.distance import cdist
from scipy.special import ndtr

Floats = NDArray[np.float64]
SamplerName = Literal["cost", "tpe", "gp", "random"]
INTERRUPTED = "cut_off"  # attribute of trials that failed for reasons other than their settings
CANDIDATES = 2048
GOLDEN = (5**0.5 - 1) / 2
MAX_TRIALS = 400  # the newest trials that the models are fitted to, beside the Pareto front


class CostAwareSampler(BaseSampler):
    """Maximizes the score at every cost up to the highest so far.

    In the spirit of CARBS (Fetterman et al., 2023) and PufferLib's Protein. After some trials that
    fill the space evenly, one Gaussian process models the score and another the log of the cost. Of
    random candidates, most of them near the Pareto front, it proposes the one with the greatest
    expected improvement over the best score at its own cost, near a target cost that changes from
    trial to trial. So the whole front improves, and most trials are cheap.

    The study has two objectives: the score, and the cost, which is minimized. Trials that failed
    count with the worst score, trials that were pruned with what they had reached, as their user
    attributes `score`, `cost` and `share` (of the training, 0 to 1) say, and trials that still run
    with the score that is expected of them.

    Args:
        space: Distributions of the parameters.
        seed: A proposal depends on this, on the trial's number and on the trials before it only, so
            a resumed sweep proposes what it would have proposed.
        startup: Number of trials that fill the space evenly.
        max_cost: Candidates that are expected to cost more are not proposed.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        seed: int = 0,
        startup: int = 8,
        max_cost: float | None = None,
    ) -> None:
        self._cube, self._seed = UnitCube(dict(sorted(space.items()))), seed
        self._startup, self._max_cost = startup, max_cost
        self._random = RandomSampler(seed=seed % 2**32)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the whole space."""
        return self._cube.space

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value, for a parameter that is not in the space."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the next trial."""
        names = self._cube.space.keys()
        trials = [
            each
            for each in study.get_trials(deepcopy=False)
            if names <= each.params.keys() and each.number != trial.number
        ]
        complete = [each for each in trials if each.state == TrialState.COMPLETE]
        if len(complete) < max(2, self._startup):
            shift = np.random.default_rng(self._seed).random(self._cube.size)
            return self._cube.decode(self._cube.spread(trial.number, shift))
        recent = {each.number for each in (*trials[-MAX_TRIALS:], *study.best_trials)}
        trials = [each for each in trials if each.number in recent]
        sign = 1.0 if study.directions[0] == StudyDirection.MAXIMIZE else -1.0
        return self._cube.decode(self._propose(trials, sign, trial.number))

    def _propose(self, trials: Sequence[FrozenTrial], sign: float, number: int) -> Floats:
        """Return the candidate of the greatest expected improvement near the target cost."""
        random = np.random.default_rng([self._seed, number])
        points = {each.number: self._cube.encode(each.params) for each in trials}
        complete = [each for each in trials if each.state == TrialState.COMPLETE]
        scores = sign * np.array([each.values[0] for each in complete])
        log_costs = np.array([_log_cost(each.values[1]) for each in complete])
        front = pareto_front(scores, log_costs)
        centers = np.array([points[complete[i].number] for i in front])
        near = centers[random.integers(len(centers), size=CANDIDATES * 3 // 4)]
        anywhere = self._cube.sample(CANDIDATES // 4, random)
        candidates = np.concatenate([self._cube.sample_near(near, random), anywhere])
        score_model, cost_model = _fit_models(trials, points, sign)
        mean, deviation = score_model.predict(candidates)
        log_cost = cost_model.predict(candidates)[0]
        gain = expected_improvement(mean, deviation, best_within(scores, log_costs, log_cost))
        low, high = log_costs.min(), log_costs.max()
        target = (number * GOLDEN) % 1.0  # a sequence that covers [0, 1) evenly
        distance = (log_cost - low) / max(high - low, 0.1) - target
        weight = np.exp(-0.5 * (distance / 0.2) ** 2)
        if self._max_cost is not None:
            weight = np.where(log_cost <= math.log(self._max_cost), weight, 0.0)
        value = gain * weight
        chosen: Floats = candidates[int(value.argmax() if value.any() else deviation.argmax())]
        return chosen


def _fit_models(
    trials: Sequence[FrozenTrial], points: Mapping[int, Floats], sign: float
) -> tuple[GaussianProcess, GaussianProcess]:
    """Return models of the score, where more is better, and of the log cost."""
    results = {each.number: result for each in trials if (result := outcome(each)) is not None}
    failed = [
        each.number
        for each in trials
        if each.state in (TrialState.FAIL, TrialState.PRUNED)
        and each.number not in results
        and not each.user_attrs.get(INTERRUPTED)
    ]
    running = [each.number for each in trials if each.state == TrialState.RUNNING]
    scores = [sign * score for score, _ in results.values()]
    inputs = np.array([points[number] for number in (*results, *failed)])
    score_model = GaussianProcess(inputs, np.array(scores + [min(scores)] * len(failed)))
    if running:
        score_model.condition(np.array([points[number] for number in running]))
    log_costs = np.array([_log_cost(cost) for _, cost in results.values()])
    return score_model, GaussianProcess(inputs[: len(results)], log_costs)


def make_sampler(
    name: SamplerName,
    space: Mapping[str, BaseDistribution],
    seed: int = 0,
    *,
    max_cost: float | None = None,
) -> BaseSampler:
    """Return the sampler of that name.

    Optuna's own samplers draw new random numbers in each process that continues a sweep.
    """
    if name == "cost":
        return CostAwareSampler(space, seed, max_cost=max_cost)
    seed = seed % 2**32
    if name == "random":
        return RandomSampler(seed=seed)
    if name == "gp":
        return GPSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(seed=seed, multivariate=True, constant_liar=True)


def outcome(trial: FrozenTrial) -> tuple[float, float] | None:
    """Return the score of a trial, and the cost of all of its training; None if it has none."""
    if trial.state == TrialState.COMPLETE:
        return trial.values[0], trial.values[1]
    facts = trial.user_attrs
    if trial.state != TrialState.PRUNED or "score" not in facts or "cost" not in facts:
        return None
    share = min(max(float(facts.get("share", 1.0)), 1e-3), 1.0)
    return float(facts["score"]), float(facts["cost"]) / share


def pareto_front(scores: Floats, costs: Floats) -> NDArray[np.intp]:
    """Return the indices of entries that no other beats in both, cheapest first.

    >>> pareto_front(np.array([1.0, 3.0, 2.0]), np.array([1.0, 2.0, 3.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((-scores, costs))
    best = np.maximum.accumulate(np.concatenate([[-np.inf], scores[order]]))[:-1]
    front: NDArray[np.intp] = order[scores[order] > best]
    return front


def best_within(scores: Floats, costs: Floats, limits: Floats) -> Floats:
    """Return the best score at no more than each limit of cost; the worst of all if there is none.

    >>> best_within(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [1.0, 1.0, 2.0]
    """
    front = pareto_front(scores, costs)
    found = np.searchsorted(costs[front], limits, side="right")
    best: Floats = np.concatenate([[scores.min()], scores[front]])[found]
    return best


def expected_improvement(mean: Floats, deviation: Floats, best: Floats) -> Floats:
    """Return the expected improvement of normal variables over the best value.

    >>> expected_improvement(np.array([2.0]), np.array([1e-9]), np.array([0.5])).round(6).tolist()
    [1.5]
    """
    gap = mean - best
    ratio = gap / deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    gain: Floats = gap * ndtr(ratio) + deviation * density
    return np.maximum(gain, 0.0)


def _log_cost(cost: float) -> float:
    return math.log(max(cost, 1e-3))  # seconds are rounded to thousandths


# ------------------------------------------------------------------ its models


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
