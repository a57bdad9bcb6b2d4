"""Random numbers of different uses come from different branches of the seed tree."""

from __future__ import annotations

import pytest

from fugu.algos import algorithm, decision_transformer, grpo, preferences
from fugu.algos.dreamer import algorithm as dreamer
from fugu.data.recording import RECORDING
from fugu.training.auto_search import FINAL
from fugu.training.dreaming import DREAMS
from fugu.training.evaluate import EVALUATION
from fugu.training.trainer import ENVIRONMENTS

SHARED = (ENVIRONMENTS, FINAL, DREAMS, EVALUATION, RECORDING)
PPO = (algorithm.SAMPLING_STREAM, algorithm.ROW_STREAM, algorithm.WEIGHT_STREAM)
BRANCHES = {
    "ppo": (*SHARED, *PPO),
    "grpo": (*SHARED, *PPO, grpo.GROUP_STREAM),
    "dreamer": (
        *SHARED,
        dreamer.ACTIONS,
        dreamer.SEQUENCES,
        dreamer.WEIGHTS,
        dreamer.LATENTS,
    ),
    "decision_transformer": (
        *SHARED,
        decision_transformer.DRAWING_STREAM,
        algorithm.WEIGHT_STREAM,
        decision_transformer.DROPOUT_STREAM,
    ),
    "preferences": (preferences.WEIGHTS, preferences.BATCHES, preferences.HOLDOUT),
}


@pytest.mark.parametrize("use", BRANCHES)
def test_no_two_uses_share_a_branch(use: str) -> None:
    assert len(set(BRANCHES[use])) == len(BRANCHES[use])
