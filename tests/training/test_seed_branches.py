"""Random numbers of different uses come from different branches of the seed tree."""

from __future__ import annotations

import pytest

from fugu.algos import preferences
from fugu.data.recording import RECORDING
from fugu.training import (
    decision_transformer_engine,
    dreamer_engine,
    grpo_engine,
    ppo_engine,
)
from fugu.training.auto.search import FINAL
from fugu.training.dreaming import DREAMS
from fugu.training.evaluate import EVALUATION
from fugu.training.trainer import ENVIRONMENTS

SHARED = (ENVIRONMENTS, FINAL, DREAMS, EVALUATION, RECORDING)
PPO = (ppo_engine.SAMPLING, ppo_engine.ROWS, ppo_engine.WEIGHTS)
BRANCHES = {
    "ppo": (*SHARED, *PPO),
    "grpo": (*SHARED, *PPO, grpo_engine.TEAMS),
    "dreamer": (
        *SHARED,
        dreamer_engine.ACTIONS,
        dreamer_engine.SEQUENCES,
        dreamer_engine.WEIGHTS,
        dreamer_engine.LATENTS,
    ),
    "decision_transformer": (
        *SHARED,
        decision_transformer_engine.DRAWING,
        decision_transformer_engine.WEIGHTS,
        decision_transformer_engine.DROPOUT,
    ),
    "preferences": (preferences.WEIGHTS, preferences.BATCHES, preferences.HOLDOUT),
}


@pytest.mark.parametrize("use", BRANCHES)
def test_no_two_uses_share_a_branch(use: str) -> None:
    assert len(set(BRANCHES[use])) == len(BRANCHES[use])
