"""Dreamer learns a model of its world, and to act in it; without either it does not.

Seeds, steps and thresholds are fixed. CartPole is judged by episodes that were not seen.
"""

from __future__ import annotations

from typing import Any

import pytest
from lessons import imagination_off, judge, learn

from fugu.training.dreaming import Dream, dream
from fugu.vector import make

SMALL: dict[str, Any] = {
    "train_ratio": 128.0,  # a gradient step for each agent step
    "batch_length": 16,
    "imagination_starts": 4,
    "imagination_length": 3,
    "warmup_steps": 20,
    "learning_rate": 1e-3,
}
STEPS = 8_000  # of CartPole


def dream_after(steps: int, **train: Any) -> Dream:
    """What an agent that learned for so many gradient steps expects of 15 steps of CartPole."""
    settings = {"algo": "dreamer", "vec": {"num_envs": 8}, "train": {**SMALL, **train}}
    result = learn("cartpole", 1024 + steps, settings)
    with make("cartpole", 16) as vec:
        return dream(result.policies, vec, stretches=64, context=5, steps=15, seed=1)


@pytest.mark.timeout(600)
def test_open_loop_predictions_beat_copying_the_last_observation() -> None:
    model, copied = dream_after(128).errors()
    assert model < 0.6 * copied


def test_a_model_that_did_not_learn_predicts_nothing() -> None:
    model, copied = dream_after(8, learning_rate=0.0).errors()
    assert model > copied


def cartpole() -> float:
    settings = {"algo": "dreamer", "vec": {"num_envs": 8, "backend": "serial"}}
    return judge(learn("CartPole-v1", STEPS, settings).policies, "CartPole-v1", 1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_cartpole_is_balanced_within_20_000_steps() -> None:
    assert cartpole() >= 250


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_without_imagination_it_is_not() -> None:
    with imagination_off():
        assert cartpole() <= 125
