"""Programs are learned from rewards: operations on lists by PPO and GRPO, Brainf*** by PPO.

Seeds, steps and thresholds are fixed. `benchmarks/learning_coding.py` proves it for longer
programs, with those that are judged held out.
"""

from __future__ import annotations

from typing import Any

import pytest
from coding_lessons import GRPO, shuffled_earnings, single_operations
from grpo_lessons import shuffled_rewards
from lessons import learn

pytestmark = pytest.mark.timeout(280)
PPO_STEPS, GRPO_STEPS = 150_000, 60_000
FEW: dict[str, Any] = {"vec": {"num_envs": 256}}
FEW_TEAMS: dict[str, Any] = {**GRPO, **FEW, "train": {"teams": 64, "minibatches": 4}}
ECHO = {  # better programs soon, where the environment's own settings look for the best
    "env_kwargs": {"task": 0, "length": 8},
    "vec": {"num_envs": 256},
    "train": {
        "learning_rate": 0.003,
        "epochs": 2,
        "normalise_advantages": True,
        "normalise_rewards": True,
        "entropy_coefficient": 0.02,
        "final_entropy_coefficient": 0.02,
        "best_episodes": 0,
    },
}


def test_ppo_finds_single_operations() -> None:
    assert single_operations(PPO_STEPS, FEW) >= 0.6


def test_it_does_not_with_shuffled_rewards() -> None:
    with shuffled_earnings():
        assert single_operations(PPO_STEPS, FEW) <= 0.2  # chance is a twentieth


def test_grpo_finds_single_operations() -> None:
    assert single_operations(GRPO_STEPS, FEW_TEAMS) >= 0.6


def test_it_does_not_with_the_rewards_of_others() -> None:
    with shuffled_rewards():
        assert single_operations(GRPO_STEPS, FEW_TEAMS) <= 0.2


def test_programs_that_echo_get_better() -> None:
    result = learn("brainf", 150_000, ECHO)
    assert result.score is not None
    assert result.score >= 0.07


def test_they_do_not_by_chance() -> None:
    result = learn("brainf", 30_000, {**ECHO, "train": {"learning_rate": 0.0}})
    assert result.score is not None
    assert result.score <= 0.04
