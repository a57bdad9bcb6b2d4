"""Pruning: which trials are not worth going on with.

Optuna's own pruners know one objective only; a sweep has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fugu.sweep.curves import TrialCurve, score_at

PEERS = 5  # trials that must have come so far before anybody is judged
WARMUP = 0.15  # share of a training in which it is not judged


def falls_behind(
    curve: TrialCurve,
    total_steps: int,
    peers: Sequence[Sequence[Sequence[float]]],
    maximise: bool = True,
) -> bool:
    """Whether the best score of a trial so far is worse than the median of others at its step.

    Args:
        curve: Of the trial.
        total_steps: Of its training.
        peers: Kept curves of trials that went to their end.
        maximise: Whether more is better.
    """
    if not curve.points or curve.step < WARMUP * total_steps:
        return False
    there = [score for peer in peers if (score := score_at(peer, curve.step)) is not None]
    if len(there) < PEERS:
        return False
    scores = [point.score for point in curve.points]
    return max(scores) < median(there) if maximise else min(scores) > median(there)
