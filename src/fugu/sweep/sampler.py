"""Samplers: who says which settings to try next. The cost-aware one is written here.

It is in the spirit of CARBS (Fetterman et al., 2023) and PufferLib's Protein: one model of the
score and one of the logarithm of the cost, candidates around the front of what was tried, and a
cost to aim at that changes from trial to trial, so that the whole front is improved and most trials
are cheap.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from fugu.core.errors import MissingExtraError
from fugu.sweep.cube import Cube
from fugu.sweep.gaussian_process import GaussianProcess
from fugu.sweep.pareto import best_within, pareto_front

Floats = NDArray[np.float64]
SamplerName = Literal["cost", "tpe", "gp", "random"]
CANDIDATES = 2048
GOLDEN = (5**0.5 - 1) / 2
CUT_OFF = "cut_off"  # the attribute of trials that failed through no fault of their settings
MOST = 500  # trials that the models learn from: the newest, and the front


@dataclass(frozen=True)
class Observations:
    """What trials came to, as the models see it.

    Attributes:
        points: Where, in the unit cube. [trials, columns]
        scores: More is better; failed trials have the worst. [trials]
        log_costs: Logarithms; NaN for failed trials, which have none. [trials]
        complete: Whether the trial went to its end. [trials]
    """

    points: Floats
    scores: Floats
    log_costs: Floats
    complete: NDArray[np.bool_]


class CostAwareSampler(BaseSampler):
    """Maximises scores at all costs up to the highest that was seen.

    The study has two objectives: a score, and a cost to be minimised. Trials that were pruned or
    failed count too, if their user attributes `score`, `cost` and `share` (of the training that was
    done) tell of them.

    Args:
        space: What to draw from.
        seed: Of its chance. A trial's chance hangs on the seed and its number only, so that a sweep
            that is resumed goes on as it would have.
        startup: Trials that fill the space evenly before models choose.
        max_cost: Candidates that seem to cost more are left out.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        seed: int = 0,
        startup: int = 8,
        max_cost: float | None = None,
    ) -> None:
        self._cube, self._seed = Cube(space), seed
        self._startup, self._max_cost = startup, max_cost
        self._random = RandomSampler(seed=seed % 2**32)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All of it."""
        return self._cube.space

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """At random, for parameters that the space does not have."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the next trial."""
        trials = study.get_trials(deepcopy=False)
        names = self._cube.space.keys()
        known = [each for each in trials if names <= each.params.keys()]
        seen = self._observe(study, known)
        random = np.random.default_rng([self._seed, trial.number])
        if seen.complete.sum() < max(2, self._startup):
            shift = np.random.default_rng(self._seed).random(self._cube.size)
            return self._cube.decode(self._cube.spread(trial.number, shift))
        pending = [
            self._cube.encode(each.params)
            for each in known
            if each.state == TrialState.RUNNING and each.number != trial.number
        ]
        point = self._choose(seen, np.reshape(pending, (-1, self._cube.size)), trial.number, random)
        return self._cube.decode(point)

    def _observe(self, study: Study, trials: Sequence[FrozenTrial]) -> Observations:
        sign = 1.0 if study.directions[0] == StudyDirection.MAXIMIZE else -1.0
        rows: list[tuple[Floats, float, float, bool]] = []
        for each in trials:
            score, cost = outcome(each)
            complete = each.state == TrialState.COMPLETE
            if each.state.is_finished() and not each.user_attrs.get(CUT_OFF):
                rows.append((self._cube.encode(each.params), sign * score, cost, complete))
        rows = _most_telling(rows)
        points = np.reshape([row[0] for row in rows], (-1, self._cube.size))
        scores, costs = (np.array([row[i] for row in rows], np.float64) for i in (1, 2))
        finite = scores[np.isfinite(scores)]
        scores = np.where(np.isfinite(scores), scores, finite.min() if len(finite) else 0.0)
        costs = np.where(np.isfinite(costs) & (costs > 0), costs, np.nan)
        return Observations(points, scores, np.log(costs), np.array([row[3] for row in rows], bool))

    def _choose(
        self, seen: Observations, pending: Floats, number: int, random: np.random.Generator
    ) -> Floats:
        """The candidate that promises most above the front, near the cost to aim at."""
        priced = np.isfinite(seen.log_costs)
        score_model = GaussianProcess(seen.points, seen.scores)
        cost_model = GaussianProcess(seen.points[priced], seen.log_costs[priced])
        score_model.believe(pending)
        scores, log_costs = seen.scores[seen.complete], seen.log_costs[seen.complete]
        front = pareto_front(scores, log_costs)
        candidates = self._candidates(seen.points[seen.complete][front], random)
        mean, deviation = score_model.predict(candidates)
        log_cost = cost_model.predict(candidates)[0]
        gain = expected_gain(mean, deviation, best_within(scores, log_costs, log_cost))
        low, high = log_costs.min(), log_costs.max()
        place = (log_cost - low) / max(high - low, 0.1)  # 0: as cheap as the cheapest so far
        target = (number * GOLDEN) % 1.0  # all costs in turn, evenly
        aim = np.exp(-0.5 * ((place - target) / 0.2) ** 2)
        if self._max_cost is not None:
            aim = np.where(log_cost <= math.log(self._max_cost), aim, 0.0)
        worth = gain * aim
        chosen: Floats = candidates[int(worth.argmax() if worth.any() else deviation.argmax())]
        return chosen

    def _candidates(self, front: Floats, random: np.random.Generator) -> Floats:
        """Three quarters around the front, the rest anywhere."""
        near = front[random.integers(len(front), size=CANDIDATES * 3 // 4)]
        anywhere = self._cube.uniform(CANDIDATES // 4, random)
        return np.concatenate([self._cube.nearby(near, random), anywhere])


def make_sampler(
    name: SamplerName,
    space: Mapping[str, BaseDistribution],
    seed: int = 0,
    *,
    max_cost: float | None = None,
) -> BaseSampler:
    """The sampler of that name. Optuna's own are seeded anew by each process that goes on."""
    if name == "cost":
        _need_scipy()
        return CostAwareSampler(space, seed, max_cost=max_cost)
    seed = seed % 2**32
    if name == "random":
        return RandomSampler(seed=seed)
    if name == "gp":
        _need_scipy()
        return GPSampler(seed=seed)
    with warnings.catch_warnings():  # multivariate is marked as experimental
        warnings.simplefilter("ignore")
        return TPESampler(seed=seed, multivariate=True, constant_liar=True)


def expected_gain(mean: Floats, deviation: Floats, above: Floats) -> Floats:
    """How far a normal variable is expected to lie above a level; below it counts as nothing.

    >>> expected_gain(np.array([2.0]), np.array([1e-9]), np.array([0.5])).round(6).tolist()
    [1.5]
    """
    special: Any = importlib.import_module("scipy.special")
    gap = mean - above
    ratio = gap / deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    gain: Floats = gap * special.ndtr(ratio) + deviation * density
    return np.maximum(gain, 0.0)


def outcome(trial: FrozenTrial) -> tuple[float, float]:
    """The score of a trial, and what it cost or would have cost in full; NaN if it has none."""
    if trial.state == TrialState.COMPLETE:
        return trial.values[0], trial.values[1]
    told = trial.user_attrs
    if trial.state != TrialState.PRUNED or "score" not in told or "cost" not in told:
        return math.nan, math.nan
    share = min(max(float(told.get("share", 1.0)), 1e-3), 1.0)
    return float(told["score"]), float(told["cost"]) / share


def _most_telling(
    rows: list[tuple[Floats, float, float, bool]],
) -> list[tuple[Floats, float, float, bool]]:
    """All, if they are not too many; else the front and the newest."""
    if len(rows) <= MOST:
        return rows
    whole = [i for i, row in enumerate(rows) if row[3]]
    front = pareto_front([rows[i][1] for i in whole], [rows[i][2] for i in whole])
    kept = {whole[i] for i in front[-MOST // 2 :]}
    newest = [i for i in reversed(range(len(rows))) if i not in kept][: MOST - len(kept)]
    return [rows[i] for i in sorted(kept.union(newest))]


def _need_scipy() -> None:
    if importlib.util.find_spec("scipy") is None:
        raise MissingExtraError("scipy", "sweep")
