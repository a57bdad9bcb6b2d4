"""Sequences: stretches of recorded episodes with what is still to be earned, padded on the left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.data.offline import Dataset


@dataclass(frozen=True)
class Sequences:
    """Stretches of episodes, `[batch, window, ...]`; where the mask is 0 there is only padding.

    Attributes:
        observations: Rows of the layout.
        actions: Rows of the action layout.
        returns: What is still to be earned, this step's reward included.
        times: Steps since the episode began.
        mask: Whether a step is there.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    returns: NDArray[np.float32]
    times: NDArray[np.int64]
    mask: NDArray[np.bool_]


class SequenceSampler:
    """Draws stretches that begin at any step, all steps alike: long episodes are drawn more often.

    A stretch ends with its episode if that is shorter than the window.

    Args:
        data: The episodes.
        window: Steps of a stretch.
        percentile: Draw only from the episodes of highest return that have this share of all
            steps, in percent.
        delayed: Count rewards only in the end: what is to be earned is the whole return at every
            step.

    Attributes:
        episodes: Those that are drawn from, the best last.
        returns_to_go: Of every step of the dataset.
    """

    def __init__(
        self, data: Dataset, window: int, *, percentile: float = 100.0, delayed: bool = False
    ) -> None:
        if not len(data):
            raise UsageError(f"data: given {str(data.folder)!r} without an episode; allowed: some.")
        self.data, self.window = data, window
        self.episodes = best_episodes(data, percentile)
        self.returns_to_go = returns_to_go(data, delayed=delayed)
        lengths = data.lengths[self.episodes]
        self._ends = np.cumsum(lengths)  # of each episode among the steps that are drawn from
        self._places = np.arange(window)

    @property
    def steps(self) -> int:
        """Of the episodes that are drawn from."""
        return int(self._ends[-1])

    def draw(self, batch: int, random: np.random.Generator) -> Sequences:
        """So many stretches."""
        drawn = random.integers(self.steps, size=batch)
        return self.take(drawn)

    def take(self, drawn: NDArray[np.int64]) -> Sequences:
        """The stretches that begin at these steps, counted through the episodes drawn from."""
        which = np.searchsorted(self._ends, drawn, side="right")
        episodes = self.episodes[which]
        lengths = self.data.lengths[episodes]
        first = drawn - (self._ends[which] - lengths)  # within the episode
        count = np.minimum(lengths - first, self.window)
        # Padding comes first: place p holds step p - (window - count) of the stretch.
        inside = self._places - (self.window - count)[:, None]  # [batch, window]
        mask = inside >= 0
        times = np.where(mask, first[:, None] + inside, 0)
        steps = self.data.starts[episodes][:, None] + times
        observations = self.data.observations[steps + episodes[:, None]]
        actions = self.data.actions[steps]
        observations[~mask], actions[~mask] = 0, 0
        returns = np.where(mask, self.returns_to_go[steps], np.float32(0.0))
        return Sequences(observations, actions, returns, times, mask)


def returns_to_go(data: Dataset, *, delayed: bool = False) -> NDArray[np.float32]:
    """What is still to be earned at each step of a dataset, its own reward included."""
    found = np.empty(data.steps, np.float32)
    for first, length, total in zip(data.starts, data.lengths, data.returns, strict=True):
        steps = slice(first, first + length)
        rewards = data.rewards[steps].astype(np.float64)
        found[steps] = total if delayed else rewards[::-1].cumsum()[::-1]
    return found


def best_episodes(data: Dataset, percentile: float) -> NDArray[np.int64]:
    """Episodes of the highest returns with at most this share of all steps, the best one always."""
    if not 0.0 < percentile <= 100.0:
        raise UsageError(f"train.percentile: given {percentile}; allowed: above 0, to 100.")
    order = np.argsort(data.returns, kind="stable")
    if percentile == 100.0:
        return order
    taken = np.cumsum(data.lengths[order][::-1])
    count = int(np.searchsorted(taken, percentile / 100.0 * data.steps, side="right"))
    return order[len(order) - max(count, 1) :]
