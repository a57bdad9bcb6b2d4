"""GRPO learns from teams that begin alike; not from mixed ones, nor from shuffled rewards.

Seeds, steps and thresholds are fixed.
"""

from __future__ import annotations

import pytest
from grpo_lessons import (
    balanced,
    exact_sequences,
    mixed_teams,
    right_pulls,
    shuffled_rewards,
    taught_by_preferences,
)

pytestmark = pytest.mark.timeout(280)


def test_teams_that_begin_alike_learn_the_context() -> None:
    assert right_pulls() >= 0.95


def test_mixed_teams_do_not() -> None:
    with mixed_teams():
        assert right_pulls() <= 0.4


def test_shuffled_rewards_teach_nothing() -> None:
    with shuffled_rewards():
        assert right_pulls() <= 0.3  # chance is an eighth


def test_preferences_stand_in_for_rewards() -> None:
    score, report = taught_by_preferences(shuffled=False)
    assert report.accuracy >= 0.7  # ties count half
    assert score >= 9.0  # of 10


def test_shuffled_preferences_do_not() -> None:
    score, report = taught_by_preferences(shuffled=True)
    assert report.accuracy <= 0.65
    assert score <= 6.0  # chance is 2.5


@pytest.mark.slow
def test_cartpole_is_balanced() -> None:
    assert balanced() >= 400


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_sequences_are_written_again(task: str) -> None:
    assert exact_sequences(task) >= 0.95
