"""Priorities of segments: exact against the reference, and true to their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.priorities import sample_segments, segment_probabilities

needs_native = pytest.mark.skipif(not native.available, reason="the extension is not built")
seeds = st.integers(0, 2**31)


@given(seeds, st.integers(1, 9), st.integers(1, 60), st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_probabilities_equal_the_reference_bit_for_bit(
    seed: int, horizon: int, rows: int, alpha: float
) -> None:
    random = np.random.default_rng(seed)
    data = random.standard_normal((horizon, rows)).astype(np.float32)
    valid, live = random.random((2, horizon, rows)) < 0.8
    for masks in ({}, {"valid": valid}, {"live": live}, {"valid": valid, "live": live}):
        ours = segment_probabilities(data, alpha, **masks)
        reference = segment_probabilities(data, alpha, **masks, use_native=False)
        assert ours.tobytes() == reference.tobytes()
        assert ours.min() > 0
        assert ours.sum() == pytest.approx(1.0, abs=1e-12)
        counted = np.where(masks.get("valid", True) & masks.get("live", True), data, 0.0)
        weights = np.abs(counted.astype(np.float64)).sum(0) ** alpha + 1e-6
        np.testing.assert_allclose(ours, weights / weights.sum(), rtol=1e-12)
    turned = np.ascontiguousarray(data.T).T
    assert segment_probabilities(turned, alpha).tobytes() == (
        segment_probabilities(data, alpha).tobytes()
    )


def test_what_does_not_count_may_be_anything() -> None:
    data = np.array([[1.0, np.nan], [np.inf, 2.0]], np.float32)
    counts = np.array([[1, 0], [0, 1]], bool)
    for name in ("valid", "live"):
        found = segment_probabilities(data, 1.0, **{name: counts})
        np.testing.assert_allclose(found, [1 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("use_native", [True, False])
def test_rows_that_are_not_finite_are_named(use_native: bool) -> None:
    data = np.zeros((3, 4), np.float32)
    data[1, 2] = np.nan
    with pytest.raises(UsageError, match="advantages of row 2"):
        segment_probabilities(data, 0.8, use_native=use_native)


@given(seeds, st.integers(1, 80), st.data(), st.sampled_from([0.0, 0.4, 1.0]), st.booleans())
def test_samples_equal_the_reference_bit_for_bit(
    seed: int, rows: int, data: st.DataObject, beta: float, inclusion: bool
) -> None:
    count = data.draw(st.integers(1, rows))
    random = np.random.default_rng(seed)
    p = random.random(rows) + 1e-9
    p /= p.sum()
    uniforms = random.random(rows).round(1) % 1.0  # with ties
    arguments: dict[str, Any] = {"beta": beta, "correction": "inclusion" if inclusion else "draw"}
    chosen, weights = sample_segments(p, uniforms, count, **arguments)
    same, same_weights = sample_segments(p, uniforms, count, **arguments, use_native=False)
    assert chosen.tolist() == same.tolist()
    assert weights.tobytes() == same_weights.tobytes()
    assert len(set(chosen.tolist())) == count
    keys = np.sort(-np.log1p(-uniforms) / p)
    threshold = max(keys[count], 1e-12) if count < rows else np.inf
    shares = rows / count * -np.expm1(-p[chosen] * threshold) if inclusion else rows * p[chosen]
    expected = shares**-beta
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@needs_native
def test_inclusion_weights_are_unbiased_for_every_segment() -> None:
    random = np.random.default_rng(3)
    p = np.linspace(0.1, 4.0, 64) ** 2
    p /= p.sum()
    totals = {"inclusion": np.zeros(64), "draw": np.zeros(64)}
    draws = 20_000
    for _ in range(draws):
        uniforms = random.random(64)
        for correction, total in totals.items():
            chosen, weights = sample_segments(p, uniforms, 16, beta=1.0, correction=correction)
            total[chosen] += weights * 4 / draws
    assert totals["inclusion"].reshape(8, 8).mean(1) == pytest.approx(np.ones(8), abs=0.1)
    assert totals["draw"][-8:].mean() < 0.9  # single-draw weights over-correct large segments


def test_equal_keys_go_by_their_rows() -> None:
    chosen, _ = sample_segments(np.full(5, 0.2), np.zeros(5), 3, beta=0.0)
    assert chosen.tolist() == [0, 1, 2]


@needs_native
def test_one_row_is_drawn_by_its_probability() -> None:
    random = np.random.default_rng(0)
    p = np.array([0.05, 0.1, 0.15, 0.3, 0.4])
    draws = 20_000
    chosen = [int(sample_segments(p, random.random(5), 1, beta=0.0)[0][0]) for _ in range(draws)]
    assert stats.chisquare(np.bincount(chosen, minlength=5), p * draws).pvalue > 1e-3


@needs_native
def test_the_second_row_is_drawn_from_those_that_are_left() -> None:
    random = np.random.default_rng(1)
    p = np.array([0.2, 0.3, 0.5])
    draws = 20_000
    pairs = [tuple(sample_segments(p, random.random(3), 2, beta=0.0)[0]) for _ in range(draws)]
    expected = {(i, j): p[i] * p[j] / (1 - p[i]) for i in range(3) for j in range(3) if i != j}
    counts = [pairs.count(pair) for pair in expected]
    assert sum(counts) == draws
    assert stats.chisquare(counts, np.array(list(expected.values())) * draws).pvalue > 1e-3


def test_out_is_written_in_place() -> None:
    p = np.full(4, 0.25)
    out = np.empty(2, np.int64), np.empty(2, np.float32)
    found = sample_segments(p, np.array([0.1, 0.2, 0.3, 0.4]), 2, beta=1.0, out=out)
    assert found[0] is out[0]
    assert found[1] is out[1]
    probabilities = np.empty(4)
    data = np.ones((2, 4), np.float32)
    assert segment_probabilities(data, 1.0, out=probabilities) is probabilities
    assert probabilities.tolist() == p.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 5}, "count: given 5; allowed: 1 to 4"),
        ({"count": 0}, "count: given 0"),
        ({"beta": -1.0}, "beta: given -1.0"),
        ({"correction": "none"}, "correction: given 'none'"),
        ({"uniforms": np.zeros(3)}, r"uniforms: .*\(4,\)"),
        ({"uniforms": np.ones(4)}, "uniforms: .*out of range"),
        ({"probabilities": np.array([0.5, 0.5, 0.0, 0.0])}, "probabilities: .*not positive"),
        ({"probabilities": np.ones(4, np.float32)}, "probabilities: given a float32"),
        ({"probabilities": np.ones((2, 2))}, r"probabilities: .*\(2, 2\)"),
    ],
)
def test_what_will_not_do_is_told(change: dict[str, Any], message: str) -> None:
    data = {"probabilities": np.full(4, 0.25), "uniforms": np.zeros(4), "count": 2, "beta": 1.0}
    with pytest.raises(UsageError, match=message):
        sample_segments(**{**data, **change})


def test_shapes_of_advantages_are_told() -> None:
    with pytest.raises(UsageError, match="advantages: given a float32 array of shape"):
        segment_probabilities(np.zeros(3, np.float32), 1.0)
    with pytest.raises(UsageError, match="at least one row"):
        segment_probabilities(np.zeros((3, 0), np.float32), 1.0)
    with pytest.raises(UsageError, match="alpha: given -1"):
        segment_probabilities(np.zeros((3, 1), np.float32), -1)
