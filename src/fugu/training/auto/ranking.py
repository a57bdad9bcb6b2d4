"""How the members of a search are compared: recent training returns, and paired evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fugu.track.sinks import read_metrics


@dataclass(frozen=True)
class ReturnEstimate:
    """The mean return of some episodes.

    Attributes:
        mean: Mean over the episodes.
        error: Standard error of the mean.
        episodes: Number of episodes.
    """

    mean: float
    error: float
    episodes: int


def recent_return(metrics: Path, steps: int) -> ReturnEstimate | None:
    """Return the mean return of the training episodes that ended in the second half of `steps`.

    The standard error is that of the means of single updates. None if no episode has ended.

    Args:
        metrics: The run's `metrics.jsonl`.
        steps: Environment steps so far.
    """
    updates = list(_episodes(metrics, steps))
    late = [update for update in updates if update[0] > steps / 2] or updates[-1:]
    if not late:
        return None
    _, means, counts = zip(*late, strict=True)
    mean = float(np.average(means, weights=counts))
    error = float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0
    return ReturnEstimate(mean, error, int(sum(counts)))


def returns_vary(metrics: Iterable[Path]) -> bool:
    """Return whether any two updates of these runs have different mean returns.

    True too if no episode has ended: then nothing is known of the rewards.
    """
    found = {round(mean, 9) for path in metrics for _, mean, _ in _episodes(path)}
    return len(found) != 1


def trained_steps(metrics: Path) -> int:
    """Return the environment steps that a run has trained for."""
    return max((int(entry["step"] or 0) for entry in read_metrics(metrics)), default=0)


def _episodes(metrics: Path, steps: float = math.inf) -> Iterable[tuple[float, float, float]]:
    """Yield the step, mean return and number of episodes of updates, to the one at `steps`."""
    for entry in read_metrics(metrics):
        step, mean, count = (entry.get(name) for name in ("step", "episode_return", "episodes"))
        if mean is not None and count:
            yield float(step or 0), float(mean), float(count)
        if (step or 0) >= steps:
            return


def rank(scores: Mapping[str, float | None], first: Sequence[str] = ()) -> list[str]:
    """Return names by score, highest first; those without a score or with NaN are last.

    Args:
        scores: The score of each name, in the order that ties have.
        first: Names that come first among equals.

    >>> rank({"defaults": 1.0, "a": 2.0, "b": None, "c": 2.0, "rnd": 1.0}, first=["rnd"])
    ['a', 'c', 'rnd', 'defaults', 'b']
    """

    def key(name: str) -> tuple[float, bool]:
        score = scores[name]
        known = score is not None and not math.isnan(score)
        return (-score if known and score is not None else math.inf), name not in first

    return sorted(scores, key=key)


def lead_of_pairs(challenger: Sequence[float], reference: Sequence[float]) -> ReturnEstimate:
    """Return by how much a challenger's returns exceed those of a reference on the same episodes.

    >>> lead_of_pairs([2.0, 4.0], [1.0, 3.0])
    ReturnEstimate(mean=1.0, error=0.0, episodes=2)
    """
    leads = np.subtract(challenger, reference)
    error = float(leads.std(ddof=1)) / math.sqrt(len(leads)) if len(leads) > 1 else 0.0
    return ReturnEstimate(float(leads.mean()), error, len(leads))


def lead_of_estimates(
    challenger: ReturnEstimate | None, reference: ReturnEstimate | None
) -> ReturnEstimate:
    """Return by how much one estimate exceeds another; nothing beats a member without episodes."""
    if challenger is None or reference is None:
        lead = 0.0 if challenger is None else math.inf
        return ReturnEstimate(lead, 0.0, 0)
    error = math.hypot(challenger.error, reference.error)
    episodes = min(challenger.episodes, reference.episodes)
    return ReturnEstimate(challenger.mean - reference.mean, error, episodes)


def is_better(lead: ReturnEstimate) -> bool:
    """Return whether a lead is more than its standard error; anything less is a tie.

    >>> is_better(ReturnEstimate(1.0, 0.5, 10)), is_better(ReturnEstimate(0.0, 0.0, 10))
    (True, False)
    """
    return lead.mean > lead.error
