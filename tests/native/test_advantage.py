"""Advantages: the kernel against its reference, the formula's special cases, masks, errors."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.advantage import advantages

SETTINGS = {"gamma": 0.97, "lambda_": 0.9, "rho_clip": 1.0, "c_clip": 1.1}
needs_native = pytest.mark.skipif(not native.available, reason="the extension is not built")


def segments(seed: int, horizon: int, rows: int, *, masked: bool = True) -> dict[str, Any]:
    """Random segments with ends of both kinds, pauses and breaks."""
    random = np.random.default_rng(seed)

    def floats(times: int) -> NDArray[np.float32]:
        return random.standard_normal((times, rows)).astype(np.float32)

    def flags(share: float) -> NDArray[np.bool_]:
        return random.random((horizon, rows)) < share

    data = {
        "rewards": floats(horizon), "values": floats(horizon + 1), "final_values": floats(horizon),
        "ratios": np.exp(floats(horizon)), "terminations": flags(0.1), "truncations": flags(0.1),
    }  # fmt: skip
    return {**data, "valid": flags(0.9), "live": flags(0.7)} if masked else data


def both(**data: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns, native and reference, proven equal to the bit."""
    results = []
    for use_native in (True, False):
        returns = np.full_like(data["rewards"], 7.0)
        found = advantages(**data, **SETTINGS, returns_out=returns, use_native=use_native)
        results.append((found, returns))
    for ours, reference in zip(*results, strict=True):
        assert ours.tobytes() == reference.tobytes()
    return results[0]


shapes = st.tuples(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 40))


@given(shapes, st.booleans())
def test_equal_to_the_reference_bit_for_bit(shape: tuple[int, int, int], masked: bool) -> None:
    both(**segments(*shape, masked=masked))


@pytest.mark.parametrize("rows", [511, 512, 513, 1300])
@pytest.mark.parametrize("masked", [False, True])
def test_blocks_of_rows_meet_without_a_seam(rows: int, masked: bool) -> None:
    both(**segments(rows, 5, rows, masked=masked))


@given(shapes)
def test_nothing_masked_equals_masks_of_ones(shape: tuple[int, int, int]) -> None:
    data = segments(*shape, masked=False)
    ones = np.ones(data["rewards"].shape, np.uint8)
    plain = advantages(**data, **SETTINGS)
    for masks in ({"valid": ones}, {"live": ones}, {"valid": ones, "live": ones}):
        assert advantages(**data, **SETTINGS, **masks).tobytes() == plain.tobytes()


@given(shapes)
def test_gae_when_ratios_are_one(shape: tuple[int, int, int]) -> None:
    """Against generalised advantage estimation as the sum that defines it."""
    data = segments(*shape, masked=False)
    data["ratios"] = None
    found = advantages(**data, gamma=0.9, lambda_=0.8)
    horizon, rows = found.shape
    ends = data["terminations"] | data["truncations"]
    exact = {k: data[k].astype(np.float64) for k in ("rewards", "values", "final_values")}
    following = np.where(data["truncations"], exact["final_values"], exact["values"][1:])
    following[data["terminations"]] = 0.0
    errors = exact["rewards"] + 0.9 * following - exact["values"][:-1]
    for row in range(rows):
        for t in range(horizon):
            last = next((k for k in range(t, horizon) if ends[k, row]), horizon - 1)
            expected = sum((0.9 * 0.8) ** (k - t) * errors[k, row] for k in range(t, last + 1))
            assert found[t, row] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(shapes)
def test_not_a_number_where_nothing_counts_changes_no_other_bit(
    shape: tuple[int, int, int],
) -> None:
    data = segments(*shape)
    before = both(**data)
    spoiled = {k: v.copy() for k, v in data.items()}
    for name in ("rewards", "ratios", "final_values"):
        spoiled[name][~data["live"] | ~data["valid"]] = np.nan
    spoiled["values"][:-1][~data["live"]] = np.nan
    for ours, expected in zip(both(**spoiled), before, strict=True):
        assert ours.tobytes() == expected.tobytes()
        assert np.isfinite(ours).all()


@given(shapes)
def test_final_values_are_read_only_where_truncated(shape: tuple[int, int, int]) -> None:
    data = segments(*shape)
    before = both(**data)[0]
    data["final_values"][~data["truncations"] | data["terminations"]] = np.nan
    assert both(**data)[0].tobytes() == before.tobytes()


@given(shapes)
def test_pauses_change_nothing_around_them(shape: tuple[int, int, int]) -> None:
    """Rows without their pauses have the same advantages."""
    data = segments(*shape)
    live = data["live"]
    data["valid"] |= ~live
    data["terminations"] &= live
    data["truncations"] &= live
    found, returns = both(**data)
    assert not found[~live].any()
    assert not returns[~live].any()
    for row in range(found.shape[1]):
        steps = np.flatnonzero(live[:, row])
        kept = {k: v[steps, row : row + 1] for k, v in data.items()}
        kept["values"] = data["values"][[*steps, -1], row : row + 1]
        alone = advantages(**kept, **SETTINGS)
        assert alone.tobytes() == found[steps, row : row + 1].tobytes()


def line(**changes: Any) -> dict[str, Any]:
    """One row of four steps: rewards 1, values 10 to 50, final values 100."""
    data: dict[str, Any] = {
        "rewards": np.ones((4, 1), np.float32),
        "values": np.arange(10, 60, 10, dtype=np.float32).reshape(5, 1),
        "final_values": np.full((4, 1), 100, np.float32),
        "terminations": np.zeros((4, 1), bool), "truncations": np.zeros((4, 1), bool),
    }  # fmt: skip
    return {**data, **{k: np.array(v, bool).reshape(4, 1) for k, v in changes.items()}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [44, 33, 22, 11]),
        ({"terminations": [0, 1, 0, 0]}, [-8, -19, 22, 11]),
        ({"truncations": [0, 1, 0, 0]}, [92, 81, 22, 11]),
        ({"terminations": [0, 1, 0, 0], "truncations": [0, 1, 0, 0]}, [-8, -19, 22, 11]),
        ({"valid": [1, 1, 0, 1]}, [22, 11, 0, 11]),  # the step before bootstraps from 30
        ({"valid": [0, 1, 1, 1]}, [0, 33, 22, 11]),
        ({"live": [1, 0, 1, 1]}, [43, 0, 22, 11]),  # it bootstraps from 30, over the pause
        ({"live": [1, 1, 0, 0]}, [42, 31, 0, 0]),  # and from 50, the bootstrap
        ({"live": [1, 1, 0, 1], "terminations": [0, 0, 1, 0]}, [-8, -19, 0, 11]),
        ({"live": [1, 1, 0, 1], "truncations": [0, 0, 1, 0]}, [11, 0, 0, 11]),
        ({"live": [1, 1, 0, 1], "valid": [1, 1, 0, 1]}, [11, 0, 0, 11]),
        # A dead agent's last step stays as it is, whatever happens in its padding.
        (
            {"live": [1, 1, 0, 1], "terminations": [0, 1, 0, 0], "truncations": [0, 0, 1, 0]},
            [-8, -19, 0, 11],
        ),
    ],
)
@pytest.mark.parametrize("use_native", [True, False])
def test_small_cases_by_hand(
    changes: dict[str, list[int]], expected: list[float], use_native: bool
) -> None:
    data = line(**changes)
    found = advantages(**data, gamma=1.0, lambda_=1.0, use_native=use_native)
    assert found[:, 0].tolist() == expected


def test_ratios_are_clipped_apart() -> None:
    data = line()
    data["ratios"] = np.full((4, 1), 3, np.float32)
    found = advantages(**data, gamma=1.0, lambda_=1.0, rho_clip=2.0, c_clip=0.5)
    assert found[:, 0].tolist() == [41.25, 38.5, 33.0, 22.0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", [1, 63, 64, 200])
def test_row_major_views_give_the_same_bits(masked: bool, rows: int) -> None:
    data = segments(3, 17, rows, masked=masked)
    expected = both(**data)
    turned = {k: np.ascontiguousarray(v.T).T for k, v in data.items()}
    found = both(**turned)
    assert found[0].T.flags.c_contiguous
    for ours, other in zip(found, expected, strict=True):
        assert np.array_equal(ours, other)
    every_second = {k: np.repeat(v, 2, axis=1)[:, ::2] for k, v in data.items()}
    assert np.array_equal(both(**every_second)[0], expected[0])
    backwards = {k: np.ascontiguousarray(v[::-1, ::-1])[::-1, ::-1] for k, v in data.items()}
    assert np.array_equal(both(**backwards)[0], expected[0])


@needs_native
@pytest.mark.parametrize("masked", [False, True])
def test_any_number_of_threads_gives_the_same_bits(masked: bool) -> None:
    data = segments(5, 16, 5000, masked=masked)
    expected = advantages(**data, **SETTINGS, threads=1).tobytes()
    for threads in (0, 2, 3, 8):
        for _ in range(20):
            assert advantages(**data, **SETTINGS, threads=threads).tobytes() == expected


@needs_native
def test_callers_at_once_do_not_disturb_each_other() -> None:
    data = [segments(seed, 16, 3000) for seed in range(4)]
    expected = [advantages(**d, **SETTINGS, threads=1).tobytes() for d in data]
    wrong: list[int] = []

    def call(i: int) -> None:
        for _ in range(30):
            if advantages(**data[i], **SETTINGS, threads=2).tobytes() != expected[i]:
                wrong.append(i)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_a_team_of_its_own() -> None:
    data = segments(6, 16, 5000)
    expected = advantages(**data, **SETTINGS, threads=2).tobytes()
    child = os.fork()
    if child == 0:
        equal = advantages(**data, **SETTINGS, threads=2).tobytes() == expected
        os._exit(0 if equal else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_out_is_written_in_place() -> None:
    data = segments(1, 4, 5)
    out = np.empty((4, 5), np.float32)
    assert advantages(**data, **SETTINGS, out=out) is out
    assert out.tobytes() == advantages(**data, **SETTINGS).tobytes()


def test_nothing_is_no_trouble() -> None:
    for horizon, rows in ((0, 3), (3, 0)):
        assert both(**segments(0, horizon, rows))[0].shape == (horizon, rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": np.zeros(4, np.float32)}, r"rewards: given a float32 array of shape \(4,\)"),
        ({"values": np.zeros((4, 5), np.float32)}, r"values: .*\(5, 5\) \[horizon \+ 1, rows\]"),
        ({"rewards": np.zeros((4, 5))}, r"rewards: given a float64 .*astype\(np\.float32\)"),
        ({"terminations": np.zeros((4, 5), np.float32)}, "terminations: .*bool or uint8"),
        ({"ratios": [1.0]}, "ratios: given list"),
        ({"live": np.ones((5, 4), bool)}, "live: given a bool|live: given a uint8"),
        ({"out": np.zeros((4, 4), np.float32)}, r"out: .*\(4, 4\)"),
        ({"gamma": 1.5}, "gamma: given 1.5"),
        ({"lambda_": float("nan")}, "lambda_: given nan"),
        ({"rho_clip": -1.0}, "rho_clip: given -1.0"),
        ({"threads": -1}, "threads: given -1"),
    ],
)
def test_what_will_not_do_is_told(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        advantages(**{**segments(0, 4, 5), **SETTINGS, **change})


@pytest.mark.parametrize("use_native", [True, False])
def test_an_output_apart_from_the_inputs(use_native: bool) -> None:
    data = segments(0, 4, 5)
    with pytest.raises(UsageError, match="out: given an array that overlaps rewards"):
        advantages(**data, **SETTINGS, out=data["rewards"], use_native=use_native)
    out = np.zeros((4, 5), np.float32)
    with pytest.raises(UsageError, match="returns_out: given an array that overlaps out"):
        advantages(**data, **SETTINGS, out=out, returns_out=out, use_native=use_native)
    out.flags.writeable = False
    with pytest.raises(UsageError, match="out: .*cannot be written"):
        advantages(**data, **SETTINGS, out=out, use_native=use_native)
