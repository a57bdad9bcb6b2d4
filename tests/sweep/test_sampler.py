"""The cost-aware sampler: compared with random search on known problems, and its behavior."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState

from fugu.sweep.sampler import (
    INTERRUPTED,
    CostAwareSampler,
    make_sampler,
    outcome,
    pareto_front,
    spread,
    value_at,
)

Objective = Callable[[Mapping[str, Any]], tuple[float, float]]
Space = dict[str, BaseDistribution]
SEEDS, TRIALS = 20, 25
optuna.logging.set_verbosity(optuna.logging.WARNING)

# ---------------------------------------------------------------------- known problems

HARTMANN_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def branin(x: float, y: float) -> float:
    bend = y - 5.1 / (4 * np.pi**2) * x**2 + 5 / np.pi * x - 6
    return float(bend**2 + 10 * (1 - 1 / (8 * np.pi)) * np.cos(x) + 10)


def hartmann(point: NDArray[np.float64]) -> float:
    inner = (HARTMANN_A * (point - HARTMANN_P) ** 2).sum(1)
    return float(np.array([1.0, 1.2, 3.0, 3.2]) @ np.exp(-inner))


def priced_branin(p: Mapping[str, Any]) -> tuple[float, float]:
    """A short training scores less, and some of the plane costs more."""
    steps = p["steps"]
    return -branin(p["x"], p["y"]) - 30 * (1 - steps) ** 2, 10 * steps * np.exp(0.1 * p["y"])


def priced_hartmann(p: Mapping[str, Any]) -> tuple[float, float]:
    point = np.array([p[f"x{i}"] for i in range(6)])
    return hartmann(point) * (1 - np.exp(-4 * p["steps"])), 10 * p["steps"] * np.exp(point[0])


STEPS: Space = {"steps": FloatDistribution(0.05, 1.0, log=True)}
BRANIN: Space = {"x": FloatDistribution(-5, 10), "y": FloatDistribution(0, 15), **STEPS}
HARTMANN: Space = {**{f"x{i}": FloatDistribution(0, 1) for i in range(6)}, **STEPS}
PROBLEMS = {
    "branin": (priced_branin, BRANIN, -60.0, 45.0),
    "hartmann": (priced_hartmann, HARTMANN, 0.0, 28.0),
}


def test_the_problems_are_the_published_ones() -> None:
    for x, y in ((-np.pi, 12.275), (np.pi, 2.275), (9.42478, 2.475)):
        assert abs(branin(x, y) - 0.397887) < 1e-5
    best = np.array([0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573])
    assert abs(hartmann(best) - 3.32237) < 1e-4


def search(name: str, objective: Objective, space: Space, seed: int) -> NDArray[np.float64]:
    sampler = make_sampler(name, space, seed)  # type: ignore[arg-type]
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(TRIALS):
        trial = study.ask(space)
        study.tell(trial, objective(trial.params))
    return np.array([trial.values for trial in study.trials])


def hypervolume(
    scores: NDArray[np.float64], costs: NDArray[np.float64], worst_score: float, worst_cost: float
) -> float:
    """The area between the front and a score and a cost that are worse than all."""
    inside = (scores > worst_score) & (costs < worst_cost)
    scores, costs = scores[inside], costs[inside]
    front = pareto_front(scores, costs)
    until = np.append(costs[front][1:], worst_cost)
    return float(((until - costs[front]) * (scores[front] - worst_score)).sum())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_it_covers_more_than_random_over_twenty_seeds(problem: str) -> None:
    objective, space, worst_score, worst_cost = PROBLEMS[problem]
    volumes = {}
    for name in ("cost", "random"):
        found = [search(name, objective, space, seed) for seed in range(SEEDS)]
        volumes[name] = np.array(
            [hypervolume(v[:, 0], np.log(v[:, 1]), worst_score, np.log(worst_cost)) for v in found]
        )
    wins = (volumes["cost"] > volumes["random"]).sum()
    assert wins >= 18, (wins, volumes)  # by chance alone less often than once in 4,000 times
    assert np.median(volumes["cost"]) > np.median(volumes["random"]), volumes


# ---------------------------------------------------------------------- its behavior


def fresh_study(sampler: CostAwareSampler) -> optuna.Study:
    return optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)


def test_the_same_history_gives_the_same_choice_in_another_process() -> None:
    """What a resumed sweep tries next is what it would have tried."""
    one = fresh_study(CostAwareSampler(BRANIN, seed=3))
    for _ in range(12):
        trial = one.ask(BRANIN)
        one.tell(trial, priced_branin(trial.params))
    two = fresh_study(CostAwareSampler(BRANIN, seed=3))
    two.add_trials(one.trials)
    assert one.ask(BRANIN).params == two.ask(BRANIN).params
    other = fresh_study(CostAwareSampler(BRANIN, seed=4))
    other.add_trials(two.trials[:12])
    assert other.ask(BRANIN).params != two.trials[12].params


def test_two_that_ask_at_once_are_given_different_trials() -> None:
    study = fresh_study(CostAwareSampler(BRANIN, seed=0))
    for _ in range(10):
        trial = study.ask(BRANIN)
        study.tell(trial, priced_branin(trial.params))
    asked = [study.ask(BRANIN).params for _ in range(3)]
    points = np.array([[p["x"] / 15, p["y"] / 15, np.log(p["steps"]) / 3] for p in asked])
    gaps = [np.abs(points[i] - points[j]).max() for i in range(3) for j in range(i)]
    assert min(gaps) > 0.01, points


def test_failures_keep_it_away_and_what_was_cut_off_does_not() -> None:
    """Half of the line crashes: that half is left alone, unless its trials were only cut off."""
    space: Space = {"x": FloatDistribution(0, 1)}
    tried = {}
    for cut_off in (False, True):
        study = fresh_study(CostAwareSampler(space, seed=0, startup=4))
        late = []
        for number in range(24):
            trial = study.ask(space)
            x = trial.params["x"]
            late += [x] if number >= 12 else []
            if x > 0.5:
                if cut_off:
                    trial.set_user_attr(INTERRUPTED, True)
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(trial, (x, 1.0))
        tried[cut_off] = np.mean(np.array(late) > 0.5)
    assert tried[False] < tried[True], tried


def test_pruned_trials_tell_what_they_were_on_the_way_to() -> None:
    space: Space = {"x": FloatDistribution(0, 1)}
    study = fresh_study(CostAwareSampler(space, seed=0, startup=2))
    for x, score, cost in ((0.2, 1.0, 10.0), (0.4, 2.0, 10.0), (0.6, 3.0, 10.0)):
        study.enqueue_trial({"x": x})
        study.tell(study.ask(space), (score, cost))
    study.enqueue_trial({"x": 0.9})
    pruned = study.ask(space)
    for name, value in (("score", -50.0), ("cost", 5.0), ("share", 0.5)):
        pruned.set_user_attr(name, value)
    study.tell(pruned, state=TrialState.PRUNED)
    found = [outcome(trial) for trial in study.trials]
    assert found == [(1.0, 10.0), (2.0, 10.0), (3.0, 10.0), (-50.0, 10.0)]
    assert study.ask(space).params["x"] < 0.85, "what was pruned keeps it away"


def test_minimised_scores_are_minimised() -> None:
    space: Space = {"x": FloatDistribution(0, 1), **STEPS}
    study = optuna.create_study(
        directions=["minimize", "minimize"], sampler=CostAwareSampler(space, seed=1)
    )
    for _ in range(20):
        trial = study.ask(space)
        study.tell(trial, ((trial.params["x"] - 0.3) ** 2, trial.params["steps"]))
    late = np.array([trial.params["x"] for trial in study.trials[10:]])
    assert np.median(np.abs(late - 0.3)) < 0.15


def test_what_seems_to_cost_too_much_is_not_tried() -> None:
    space: Space = {"x": FloatDistribution(0.01, 1, log=True)}
    study = fresh_study(CostAwareSampler(space, seed=0, startup=6, max_cost=20.0))
    for _ in range(18):
        trial = study.ask(space)
        x = trial.params["x"]
        study.tell(trial, (x, 100 * x))
    assert max(trial.values[1] for trial in study.trials[8:]) < 24.0


@pytest.mark.parametrize("name", ["cost", "tpe", "gp", "random"])
def test_every_sampler_takes_every_kind_of_range(name: str) -> None:
    space: Space = {
        "a": FloatDistribution(0, 1),
        "b": FloatDistribution(1e-4, 1, log=True),
        "c": IntDistribution(1, 5),
        "d": IntDistribution(1, 100, log=True),
        "e": CategoricalDistribution(("x", "y", "z")),
    }
    sampler = make_sampler(name, space, 0)  # type: ignore[arg-type]
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for number in range(13):
        trial = study.ask(space)
        if number == 5:
            study.tell(trial, state=TrialState.FAIL)
        elif number == 7:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            bonus = trial.params["e"] == "y"
            study.tell(trial, (trial.params["a"] + bonus, trial.params["d"]))
    for trial in study.trials:
        for key, each in space.items():
            assert each._contains(each.to_internal_repr(trial.params[key])), (key, trial.params)


# ---------------------------------------------------------------------- its parts


def test_a_share_of_a_distribution_is_a_value_of_it() -> None:
    random = np.random.default_rng(0).random(5000)
    for low, high, log in ((1, 5, False), (1, 10**9, True)):
        whole = IntDistribution(low, high, log=log)
        assert [value_at(whole, share) for share in (0.0, 1 - 1e-16)] == [low, high]
        assert all(whole._contains(value_at(whole, share)) for share in random)
    counts = np.bincount([value_at(IntDistribution(1, 5), share) for share in random])[1:]
    assert counts.min() > 850, "every integer is as likely, those at the ends too"
    rate = FloatDistribution(1e-4, 1, log=True)
    assert value_at(rate, 0.75) == pytest.approx(0.1)
    assert all(rate._contains(value_at(rate, share)) for share in (*random, 0.0, 1.0))
    assert [value_at(CategoricalDistribution(("x", "y")), share) for share in (0.4, 0.6)] == [
        *("x", "y")
    ]


def test_a_spread_fills_every_part() -> None:
    points = np.array([spread(i, np.zeros(3)) for i in range(64)])
    corners = {tuple(corner) for corner in (points > 0.5).astype(int)}
    assert len(corners) == 8
    assert np.abs(points.mean(0) - 0.5).max() < 0.03


def test_fronts_against_a_slow_reference() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        scores, costs = random.integers(0, 6, (2, 12)).astype(float)
        pairs = list(zip(scores, costs, strict=True))
        slow = {
            (s, c)
            for s, c in pairs
            if not any(t >= s and d <= c and (t > s or d < c) for t, d in pairs)
        }
        front = pareto_front(scores, costs)
        assert [(scores[i], costs[i]) for i in front] == sorted(slow, key=lambda pair: pair[1])
