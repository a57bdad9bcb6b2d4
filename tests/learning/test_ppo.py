"""PPO learns, with its defaults; and what it needs for that, taken away, is missed.

Seeds, steps and thresholds are fixed; scores are means over the last hundred episodes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lessons import Circumstance, actors_of, as_usual, cuts_as_ends, learn

from fugu.native.priorities import sample_segments
from fugu.training.trainer import Progress, Trainer

pytestmark = pytest.mark.timeout(280)
SANITY = {  # name: steps, the score to reach, what chance gets
    "bandit": (40_000, 0.85, 0.3),
    "password": (60_000, 0.9, 0.04),
    "stochastic": (60_000, 0.85, 0.0),
    "squared": (100_000, 0.8, 0.2),
    "multiagent": (40_000, 0.95, 0.5),
    "spaces": (100_000, 0.9, 0.5),
    "continuous": (100_000, 48.0, 10.0),
    "masked": (60_000, 14.0, 8.5),
    "memory": (60_000, 0.9, 0.5),
}


@pytest.mark.parametrize("name", SANITY)
def test_sanity_environments_are_solved(name: str) -> None:
    steps, score, chance = SANITY[name]
    result = learn(name, steps)
    assert result.score is not None
    assert result.score >= score
    untrained = learn(name, 3000, {"train": {"learning_rate": 0.0}})
    assert untrained.score is not None
    assert untrained.score <= max(chance, 0.75 * score)


def test_memory_needs_memory() -> None:
    result = learn("memory", 60_000, {"policy": {"core": "none"}})
    assert result.score is not None
    assert result.score <= 0.6


@pytest.mark.parametrize("core", ["gru", "mingru", "transformer"])
def test_other_cores_remember_too(core: str) -> None:
    steps = {"transformer": 40_000}.get(core, 60_000)
    result = learn("memory", steps, {"policy": {"core": core, "window": 8}})
    assert result.score is not None
    assert result.score >= 0.9


def value_of_the_truncated_state(circumstance: Circumstance) -> float:
    found: list[Trainer] = []

    def look(trainer: Trainer, progress: Progress) -> None:
        found[:] = [trainer]

    with circumstance():
        result = learn("truncated", 60_000, {"train": {"gamma": 0.9}}, callbacks=(look,))
    (policy,) = result.policies
    with torch.no_grad():
        _, values, _ = policy(torch.ones(1, 1), policy.initial_state(1))
    return float(values[0, 0]) * float(actors_of(found[0])[0].returns.divisor)


def test_truncated_episodes_are_worth_what_would_have_come() -> None:
    assert value_of_the_truncated_state(as_usual) == pytest.approx(10.0, rel=0.05)  # 1 / (1 - 0.9)


def test_a_truncation_taken_for_an_end_biases_the_value() -> None:
    assert value_of_the_truncated_state(cuts_as_ends) < 8.0


def test_cartpole_is_balanced() -> None:
    result = learn("cartpole", 250_000)
    assert result.score is not None
    assert result.score >= 475


def test_gymnasiums_cartpole_is_balanced_through_processes() -> None:
    settings = {"vec": {"num_envs": 64, "backend": "process", "num_workers": 2}}
    result = learn("CartPole-v1", 200_000, settings)
    assert result.score is not None
    assert result.score >= 400


@pytest.mark.parametrize(("optimiser", "rate"), [("muon", 0.006), ("muon_torch", 0.02)])
def test_muon_learns(optimiser: str, rate: float) -> None:
    settings = {"optimiser": optimiser, "learning_rate": rate}
    result = learn("cartpole", 300_000, {"train": settings})
    assert result.score is not None
    assert result.score >= 400


def test_prioritised_segments_learn() -> None:
    result = learn("password", 60_000, {"train": {"alpha": 0.8}})
    assert result.score is not None
    assert result.score >= 0.9


def test_importance_weights_leave_means_as_they_are() -> None:
    random = np.random.default_rng(2)
    probabilities = np.array([0.05, 0.1, 0.15, 0.3, 0.4])
    numbers = np.array([3.0, -1.0, 4.0, 1.0, -5.0])

    def mean_of_draws(beta: float) -> float:
        draws = [
            sample_segments(probabilities, random.random(5), 1, beta=beta, correction="draw")
            for _ in range(20_000)
        ]
        return float(np.mean([weights[0] * numbers[rows[0]] for rows, weights in draws]))

    assert mean_of_draws(1.0) == pytest.approx(numbers.mean(), abs=0.15)
    assert abs(mean_of_draws(0.0) - numbers.mean()) > 1.0
