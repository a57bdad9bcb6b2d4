"""EpisodeStats sums an episode up, once."""

from __future__ import annotations

import numpy as np
import pytest

from fugu.core.errors import UsageError
from fugu.envs import EpisodeStats


def test_numbers_are_averaged_over_the_steps_that_had_them() -> None:
    stats = EpisodeStats()
    stats.add(1, {"speed": 2, "rare": 5.0})
    stats.add(2, {"speed": 4, "deep": {"er": np.float32(3)}})
    assert stats.emit() == {
        "episode_return": 3.0, "episode_length": 2, "speed": 3.0, "rare": 5.0, "deep/er": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("how", "expected"), [("mean", 2.0), ("sum", 6), ("last", 1), ("min", 1), ("max", 3)]
)
def test_each_entry_has_its_reduction(how: str, expected: float) -> None:
    stats = EpisodeStats(reduce={"x": how})  # type: ignore[dict-item]
    for x in (2, 3, 1):
        stats.add(0, {"x": x})
    assert stats.emit()["x"] == expected


def test_arrays_are_kept_and_not_dropped() -> None:
    stats = EpisodeStats()
    array = np.array([1.0, 2.0])
    stats.add(0, {"a": array, "changing": np.zeros(2)})
    array[:] = 99  # the environment goes on using its array
    stats.add(0, {"a": np.array([3.0, 4.0]), "changing": np.ones(3)})
    info = stats.emit()
    assert info["a"].tolist() == [2.0, 3.0]
    assert info["changing"].tolist() == [1, 1, 1]


def test_words_are_kept_as_they_were_last_and_masks_are_left_out() -> None:
    stats = EpisodeStats()
    stats.add(0, {"where": "cave", "action_mask": np.ones(3)})
    stats.add(0, {"where": "lake"})
    assert stats.emit() == {"episode_return": 0, "episode_length": 2, "where": "lake"}


def test_the_next_episode_begins_empty() -> None:
    stats = EpisodeStats()
    stats.add(5, {"x": 1})
    stats.emit()
    assert stats.emit() == {"episode_return": 0.0, "episode_length": 0}


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(UsageError, match="given 'median'; allowed: mean, sum"):
        EpisodeStats(reduce={"x": "median"})  # type: ignore[dict-item]
