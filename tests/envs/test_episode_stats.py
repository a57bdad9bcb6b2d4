"""EpisodeStats sums an episode up, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fugu.core.errors import UsageError
from fugu.envs import EpisodeStats
from fugu.envs.episode_stats import Reduction, scalars


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


@pytest.mark.parametrize(
    ("value", "mean", "total"),
    [
        (True, 1.0, 4),
        (np.True_, 1.0, 4),
        *((np.dtype(f"{kind}{size}").type(100), 100.0, 400) for kind in "iu" for size in (1, 2, 4)),
        (np.uint8(200), 200.0, 800),
        (np.uint64(2**63), 2.0**63, 2**65),
        (2**63, 2.0**63, 2**65),
        (np.float16(60_000), 60_000.0, 240_000.0),
        (np.array(True), 1.0, 4),
        (np.array(0.5), 0.5, 2.0),
    ],
)
def test_means_and_sums_of_small_types_do_not_overflow(
    value: object, mean: float, total: float
) -> None:
    stats = EpisodeStats(reduce={"total": "sum"})
    for _ in range(4):
        stats.add(0, {"mean": value, "total": value})
    info = stats.emit()
    assert (info["mean"], info["total"]) == (mean, total)
    assert type(info["mean"]) is float


@pytest.mark.parametrize("kind", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2"])
def test_means_and_sums_of_arrays_of_small_types_do_not_overflow(kind: str) -> None:
    largest = 1 if kind == "?" else 100
    stats = EpisodeStats(reduce={"total": "sum"})
    for _ in range(1000):
        values = np.array([0, largest], kind)
        stats.add(0, {"mean": values, "total": values})
    info = stats.emit()
    assert info["mean"].tolist() == [0, largest]
    assert info["total"].tolist() == [0, 1000 * largest]


@pytest.mark.parametrize("how", ["last", "min", "max"])
@pytest.mark.parametrize("values", [(True, False), (3, 7), (0.5, 1.5)])
def test_other_reductions_keep_the_type(how: str, values: tuple[float, float]) -> None:
    stats = EpisodeStats(reduce={"x": how, "array": how})  # type: ignore[dict-item]
    for value in values:
        stats.add(0, {"x": value, "array": np.array([value])})
    info = stats.emit()
    assert type(info["x"]) is type(values[0])
    assert info["array"].dtype == np.array([values[0]]).dtype


def test_the_success_flag_of_an_episode_is_its_last() -> None:
    stats = EpisodeStats()
    for success in (False, False, np.True_):
        stats.add(0, {"is_success": success})
    assert stats.emit()["is_success"] is True
    averaged = EpisodeStats(reduce={"is_success": "mean"})
    for success in (False, True):
        averaged.add(0, {"is_success": success})
    assert averaged.emit()["is_success"] == 0.5


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


def test_the_scalars_of_an_info_are_its_numbers_and_booleans() -> None:
    info = {"is_success": True, "hit": np.False_, "score": np.uint8(7), "where": "cave"}
    assert scalars({**info, "board": np.ones(3)}) == {"is_success": 1.0, "hit": 0.0, "score": 7.0}


def reference(steps: list[dict[str, Any]], reduce: dict[str, str]) -> dict[str, Any]:
    """What the infos of an episode come to, from all of its values at once."""
    values: dict[str, list[Any]] = {}
    for info in steps:
        for key, value in info.items():
            values.setdefault(key, []).append(np.asarray(value, np.float64))
    reducers = {"mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max}
    return {
        key: each[-1] if reduce.get(key) == "last" else reducers[reduce.get(key, "mean")](each, 0)
        for key, each in values.items()
    }


def test_reductions_agree_with_those_over_all_values_at_once() -> None:
    rng = np.random.default_rng(0)
    makers: dict[str, Callable[[], Any]] = {
        "float": rng.normal,
        "float32": lambda: np.float32(rng.normal()),
        "float64": lambda: np.float64(rng.normal()),
        "flag": lambda: bool(rng.integers(2)),
        "byte": lambda: np.uint8(rng.integers(256)),
        "int": lambda: int(rng.integers(-9, 9)),
        "mixed": lambda: rng.choice([True, np.int8(-100), 0.5, np.float32(0.25)]),
        "array": lambda: rng.normal(size=3).astype(np.float32),
    }
    names: tuple[Reduction, ...] = ("mean", "sum", "last", "min", "max")
    reduce = {f"{key}_{name}": name for key in makers for name in names}
    steps: list[dict[str, Any]] = []
    for _ in range(200):
        values = {key: make() for key, make in makers.items() if rng.random() < 0.7}
        steps.append({f"{key}_{name}": each for key, each in values.items() for name in names})
    stats = EpisodeStats(reduce)
    for step, info in enumerate(steps):
        stats.note({**info, "nested": info})
        if step % 50 == 0:  # go on with a copy
            resumed = EpisodeStats(reduce)
            resumed.set_state(stats.state())
            stats = resumed
    found, expected = stats.emit(), reference(steps, {**reduce})
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-12)
    nested = reference([{f"nested/{key}": v for key, v in info.items()} for info in steps], {})
    for key, value in nested.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-12)


def test_an_entry_that_changes_its_kind_begins_again() -> None:
    stats = EpisodeStats()
    for value in (1.0, 3.0, "lost", 5, np.array([1, 2]), np.array([3, 4])):
        stats.note({"x": value, "y": 1})
    assert stats.emit() == {
        "episode_return": 0.0,
        "episode_length": 0,
        "x": pytest.approx([2.0, 3.0]),
        "y": 1.0,
    }
    for value in (1.0, 3.0, "lost", 5, 6):
        stats.note({"x": value})
    assert stats.emit()["x"] == 5.5


def test_keys_that_are_not_plain_strings_keep_their_place() -> None:
    stats = EpisodeStats()
    for _ in range(3):
        stats.note({"x": 1, "inner": {np.str_("x"): 5, 7: 9}, 7: 2})
    info = stats.emit()
    assert (info["x"], info["inner/x"], info["inner/7"], info["7"]) == (1.0, 5.0, 9.0, 2.0)
