"""Samplers: who proposes the settings of the next trial."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

import numpy as np
import optuna
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
from optuna.trial import FrozenTrial, TrialState, create_trial

Floats = NDArray[np.float64]
SamplerName = Literal["cost", "tpe", "gp", "random"]
INTERRUPTED = "cut_off"  # attribute of trials that failed for reasons other than their settings
GOLDEN = (5**0.5 - 1) / 2
MAX_TRIALS = 400  # the newest trials that the models are fitted to, beside the Pareto front


class CostAwareSampler(BaseSampler):
    """Maximizes the score at every cost up to the highest so far.

    In the spirit of CARBS (Fetterman et al., 2023) and PufferLib's Protein. After some trials that
    fill the space evenly, one of Optuna's Gaussian processes models the score and another the log
    of the cost. It proposes the settings with the greatest expected improvement over the best score
    within a target cost, which changes from trial to trial. So the whole front improves, and most
    trials are cheap.

    The study has two objectives: the score, and the cost, which is minimized. Trials that failed
    count with the worst score, trials that were pruned with what they had reached, as their user
    attributes `score`, `cost` and `share` (of the training, 0 to 1) say, and trials that still run
    with the score that is expected of them.

    Args:
        space: Distributions of the parameters.
        seed: A proposal depends on this, on the trial's number and on the trials before it only, so
            a resumed sweep proposes what it would have proposed.
        startup: Number of trials that fill the space evenly.
        max_cost: Settings that are expected to cost more are avoided.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        seed: int = 0,
        startup: int = 8,
        max_cost: float | None = None,
    ) -> None:
        self._space, self._seed = dict(sorted(space.items())), seed
        self._startup, self._max_cost = startup, max_cost
        self._random = RandomSampler(seed=seed % 2**32)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the whole space."""
        return self._space

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
        trials = [
            each
            for each in study.get_trials(deepcopy=False)
            if self._space.keys() <= each.params.keys() and each.number != trial.number
        ]
        complete = [each for each in trials if each.state == TrialState.COMPLETE]
        if len(complete) < max(2, self._startup):
            shift = np.random.default_rng(self._seed).random(len(self._space))
            shares = spread(trial.number, shift)
            return {
                name: value_at(each, share)
                for (name, each), share in zip(self._space.items(), shares, strict=True)
            }
        recent = {each.number for each in (*trials[-MAX_TRIALS:], *study.best_trials)}
        trials = [each for each in trials if each.number in recent]
        seed = int(np.random.SeedSequence([self._seed, trial.number]).generate_state(1)[0])
        model = optuna.create_study(
            direction=study.directions[0],
            sampler=GPSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False),
        )
        model.add_trials(self._within_target(trials, study.directions[0], trial.number))
        return model.ask(self._space).params

    def _within_target(
        self, trials: Sequence[FrozenTrial], goal: StudyDirection, number: int
    ) -> list[FrozenTrial]:
        """Return trials with their scores, constrained to the target cost of the next one."""
        results = {each.number: found for each in trials if (found := outcome(each)) is not None}
        scores = [score for score, _ in results.values()]
        worst = min(scores) if goal == StudyDirection.MAXIMIZE else max(scores)
        costs = [_log(cost) for _, cost in results.values()]
        share = (number * GOLDEN) % 1.0  # a sequence that covers [0, 1) evenly
        target = min(costs) + share * (max(costs) - min(costs))
        if self._max_cost is not None:
            target = min(target, _log(self._max_cost))
        known = []
        for each in trials:
            score, cost = results.get(each.number, (worst, math.exp(median(costs))))
            is_running = each.state == TrialState.RUNNING
            if not is_running and each.user_attrs.get(INTERRUPTED):
                continue
            known.append(
                create_trial(
                    state=TrialState.RUNNING if is_running else TrialState.COMPLETE,
                    value=None if is_running else score,
                    params={name: each.params[name] for name in self._space},
                    distributions=self._space,
                    constraints={} if is_running else {"cost": _log(cost) - target},
                )
            )
        return known


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


def spread(index: int, shift: Floats) -> Floats:
    """Return a point of a sequence that fills the unit cube evenly from the start (Roberts' R_d).

    Args:
        index: Position in the sequence.
        shift: Its offset. [parameters]
    """
    ratio = 2.0  # becomes the root of x^(d+1) = x + 1
    for _ in range(50):
        ratio = (1.0 + ratio) ** (1.0 / (len(shift) + 1))
    point: Floats = (shift + (index + 1) * ratio ** -np.arange(1.0, len(shift) + 1)) % 1.0
    return point


def value_at(distribution: BaseDistribution, share: float) -> Any:
    """Return the value below which a share of a distribution lies.

    >>> value_at(IntDistribution(1, 4), 0.3), value_at(FloatDistribution(1, 100, log=True), 0.5)
    (2, 10.0)
    """
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(share * len(distribution.choices))]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    is_whole = isinstance(distribution, IntDistribution)
    half = 0.5 if is_whole else 0.0  # each integer has as much room
    low, high = distribution.low - half, distribution.high + half
    value = low * (high / low) ** share if distribution.log else low + share * (high - low)
    value = min(max(round(value) if is_whole else value, distribution.low), distribution.high)
    return int(value) if is_whole else float(value)


def _log(cost: float) -> float:
    return math.log(max(cost, 1e-3))  # seconds are rounded to thousandths
