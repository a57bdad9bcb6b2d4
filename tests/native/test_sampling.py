"""Sampling: the kernels against the float64 reference, their edges, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.sampling import (
    Sample,
    probabilities,
    sample_categorical,
    sample_normal,
)

BOTH = pytest.mark.parametrize("use_native", [True, False])
needs_native = pytest.mark.skipif(not native.available, reason="the extension is not built")
seeds = st.integers(0, 2**31)


def uniform(*rows: list[float]) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def random_heads(seed: int, choices: list[int], batch: int, scale: float) -> tuple[Any, Any, Any]:
    """Logits, masks and uniforms; every head keeps a choice."""
    random = np.random.default_rng(seed)
    width = sum(choices)
    logits = (random.standard_normal((batch, width)) * scale).astype(np.float32)
    masks = random.random((batch, width)) < 0.7
    starts = np.cumsum([0, *choices[:-1]])
    for row in range(batch):
        masks[row, starts + random.integers(0, choices)] = True
    logits[(random.random(logits.shape) < 0.1) & ~masks] = -np.inf
    return logits, masks, random.random((batch, len(choices)), np.float32)


@given(
    seeds,
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([0.0, 1.0, 30.0, 1e4, 1e30]),
    st.booleans(),
    st.booleans(),
)
def test_categorical_heads_agree_with_the_reference(
    seed: int, choices: list[int], scale: float, masked: bool, greedy: bool
) -> None:
    logits, masks, uniforms = random_heads(seed, choices, 12, scale)
    if not masked:
        logits[logits == -np.inf] = -5.0
    options = {"masks": masks if masked else None}
    given_uniforms = None if greedy else uniforms
    ours = sample_categorical(logits, choices, given_uniforms, **options)
    reference = sample_categorical(logits, choices, given_uniforms, use_native=False, **options)
    np.testing.assert_allclose(ours.entropies, reference.entropies, rtol=1e-5, atol=1e-5)
    same = np.ones(12, bool)
    starts = np.cumsum([0, *choices])
    for row, head in np.argwhere(ours.actions != reference.actions):
        assert not greedy
        same[row] = False  # allowed only within float32's rounding of a boundary
        part = slice(starts[head], starts[head + 1])
        x = logits[row, part].astype(np.float64)
        p = probabilities(
            x, (masks[row, part] if masked else np.ones(len(x), bool)) & (x > -np.inf)
        )
        edges = np.concatenate([[0.0], np.cumsum(p)])
        action, u = ours.actions[row, head], uniforms[row, head]
        assert p[action] > 0
        assert edges[action] - 1e-6 <= u <= edges[action + 1] + 1e-6
    np.testing.assert_allclose(
        ours.log_probabilities[same], reference.log_probabilities[same], rtol=1e-5, atol=1e-5
    )
    if masked:
        for head in range(len(choices)):
            assert masks[np.arange(12), starts[head] + ours.actions[:, head]].all()


@BOTH
def test_the_inverse_of_the_distribution_function(use_native: bool) -> None:
    """Probabilities 1/4, 1/2, 1/4 are exact in float32, and so are the boundaries."""
    logits = np.tile(np.log(np.array([1, 2, 1], np.float32)), (5, 1))
    below = np.nextafter(np.float32(0.25), np.float32(0)) - np.float32(1e-6)
    uniforms = uniform([0.0], [float(below)], [0.2501], [0.7499], [0.99999994])
    sample = sample_categorical(logits, [3], uniforms, use_native=use_native)
    assert sample.actions[:, 0].tolist() == [0, 0, 1, 1, 2]
    expected = np.log([0.25, 0.25, 0.5, 0.5, 0.25])
    np.testing.assert_allclose(sample.log_probabilities, expected, atol=1e-6)
    np.testing.assert_allclose(sample.entropies, 1.5 * np.log(2), atol=1e-6)


@needs_native
def test_frequencies_follow_the_probabilities() -> None:
    random = np.random.default_rng(0)
    logits = np.array([0.3, -1.0, 2.0, 0.0, -np.inf, 1.0], np.float32)
    batch = 100_000
    sample = sample_categorical(
        np.tile(logits, (batch, 1)), [6], random.random((batch, 1), np.float32)
    )
    counts = np.bincount(sample.actions[:, 0], minlength=6)
    p = probabilities(logits.astype(np.float64), np.isfinite(logits))
    assert counts[4] == 0
    kept = p > 0
    assert stats.chisquare(counts[kept], p[kept] * batch).pvalue > 1e-3


@BOTH
def test_what_is_masked_has_probability_zero(use_native: bool) -> None:
    logits = np.array([[1e38, 0.0, 0.0, 90.0]], np.float32)
    masks = np.array([[0, 1, 1, 0]], bool)
    for u, action in ((0.0, 1), (0.49, 1), (0.51, 2), (0.99999994, 2)):
        sample = sample_categorical(logits, [4], uniform([u]), masks=masks, use_native=use_native)
        assert sample.actions[0, 0] == action
        np.testing.assert_allclose(sample.log_probabilities, -np.log(2), atol=1e-6)
        np.testing.assert_allclose(sample.entropies, np.log(2), atol=1e-6)


@BOTH
def test_extreme_logits(use_native: bool) -> None:
    most = np.finfo(np.float32).max
    logits = np.array([[most, -most], [-most, -most], [-np.inf, -1e30], [3e38, 3e38]], np.float32)
    sample = sample_categorical(logits, [2], uniform(*[[0.7]] * 4), use_native=use_native)
    assert sample.actions[:, 0].tolist() == [0, 1, 1, 1]
    half = np.log(2)
    np.testing.assert_allclose(sample.log_probabilities, [0, -half, 0, -half], atol=1e-6)
    np.testing.assert_allclose(sample.entropies, [0, half, 0, half], atol=1e-6)


@BOTH
def test_one_choice_only_is_certain(use_native: bool) -> None:
    sample = sample_categorical(
        np.array([[-80.0, 5.0]], np.float32), [1, 1], uniform([0.9, 0.0]), use_native=use_native
    )
    assert sample.actions.tolist() == [[0, 0]]
    assert sample.log_probabilities.tolist() == sample.entropies.tolist() == [0.0]


@BOTH
def test_greedy_takes_the_lowest_of_equals(use_native: bool) -> None:
    logits = np.array([[1, 3, 3, 0, 9, 9]], np.float32)
    masks = np.array([[1, 1, 1, 1, 0, 1]], bool)
    sample = sample_categorical(logits, [4, 2], None, masks=masks, use_native=use_native)
    assert sample.actions.tolist() == [[1, 1]]


@BOTH
@pytest.mark.parametrize("batch", [3, 1000])
def test_faults_name_the_lowest_row(use_native: bool, batch: int) -> None:
    logits = np.zeros((batch, 30), np.float32)
    uniforms = np.zeros((batch, 2), np.float32)
    masks = np.ones((batch, 30), bool)
    good = sample_categorical(logits, [10, 20], uniforms, masks=masks, use_native=use_native)
    assert not good.actions.any()

    def refused(match: str, **change: Any) -> None:
        data = {"logits": logits, "uniforms": uniforms, "masks": masks, **change}
        with pytest.raises(UsageError, match=match):
            sample_categorical(choices=[10, 20], use_native=use_native, **data)

    for bad in (np.nan, np.inf):
        spoiled = logits.copy()
        spoiled[batch - 1, 3] = spoiled[batch - 2, 12] = bad
        refused(rf"row {batch - 2}, head 1: .*not a number", logits=spoiled)
    empty = masks.copy()
    empty[1:, :10] = False
    refused(r"row 1, head 0: .*no choice", masks=empty)
    nowhere = logits.copy()
    nowhere[batch - 1] = -np.inf
    refused(rf"row {batch - 1}, head 0: .*no choice", logits=nowhere)
    for bad in (1.0, -0.1, np.nan):
        wild = uniforms.copy()
        wild[1, 1] = bad
        refused("row 1, head 1: .*out of range", uniforms=wild)


@BOTH
def test_rows_that_do_not_act_are_not_looked_at(use_native: bool) -> None:
    logits = np.array([[0, 1], [np.nan, np.nan]], np.float32)
    live = np.array([True, False])
    sample = sample_categorical(
        logits, [2], uniform([0.9], [5.0]), live=live, use_native=use_native
    )
    assert sample.actions.tolist() == [[1], [0]]
    assert sample.log_probabilities[1] == sample.entropies[1] == 0
    normal = sample_normal(logits, logits, logits, live=live, use_native=use_native)
    assert normal.actions[1].tolist() == [0, 0]
    assert normal.log_probabilities[1] == normal.entropies[1] == 0


@needs_native
def test_heads_with_thousands_of_choices() -> None:
    logits, masks, uniforms = random_heads(0, [3000, 513, 2], 20, 3.0)
    arguments = (logits, [3000, 513, 2], uniforms)
    ours = sample_categorical(*arguments, masks=masks)
    reference = sample_categorical(*arguments, masks=masks, use_native=False)
    assert (ours.actions == reference.actions).mean() > 0.9
    np.testing.assert_allclose(ours.entropies, reference.entropies, rtol=1e-5, atol=1e-5)


@needs_native
def test_any_number_of_threads_gives_the_same_bits() -> None:
    logits, masks, uniforms = random_heads(1, [7, 5], 4000, 2.0)
    results = [
        sample_categorical(logits, [7, 5], uniforms, masks=masks, threads=threads)
        for threads in (1, 2, 5)
    ]
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert left.tobytes() == right.tobytes()


@given(seeds, st.integers(1, 7), st.booleans(), st.booleans())
def test_normals_agree_with_the_reference(seed: int, dims: int, shared: bool, mean: bool) -> None:
    random = np.random.default_rng(seed)
    means, log_stds, noise = random.standard_normal((3, 9, dims)).astype(np.float32)
    if shared:
        log_stds = log_stds[0]
    arguments = (means, log_stds, None if mean else noise)
    ours = sample_normal(*arguments)
    reference = sample_normal(*arguments, use_native=False)
    for left, right in zip(ours, reference, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)
    stds = np.exp(log_stds.astype(np.float64))
    exact = stats.norm.logpdf(ours.actions.astype(np.float64), means, stds).sum(-1)
    np.testing.assert_allclose(ours.log_probabilities, exact, rtol=1e-4, atol=1e-4)
    entropy = np.broadcast_to(stats.norm.entropy(means, stds), means.shape).sum(-1)
    np.testing.assert_allclose(ours.entropies, entropy, rtol=1e-5, atol=1e-5)


@BOTH
def test_normals_refuse_what_is_not_finite(use_native: bool) -> None:
    zeros = np.zeros((3, 2), np.float32)
    for name, index in (("means", 0), ("log_stds", 1), ("noise", 2)):
        arguments = [zeros.copy() for _ in range(3)]
        arguments[index][2, 1] = np.nan
        message = "out of range" if name == "noise" else "not a number"
        with pytest.raises(UsageError, match=f"row 2, dimension 1: .*{message}"):
            sample_normal(*arguments, use_native=use_native)


@BOTH
def test_out_is_written_in_place(use_native: bool) -> None:
    logits, _, uniforms = random_heads(2, [3], 4, 1.0)
    logits[logits == -np.inf] = 0
    out = Sample(np.empty((4, 1), np.int64), np.empty(4, np.float32), np.empty(4, np.float32))
    found = sample_categorical(logits, [3], uniforms, out=out, use_native=use_native)
    assert all(ours is given for ours, given in zip(found, out, strict=True))
    normal = Sample(np.empty((4, 3), np.float32), np.empty(4, np.float32), np.empty(4, np.float32))
    assert sample_normal(logits, logits, None, out=normal, use_native=use_native) is normal
    assert normal.actions.tolist() == logits.tolist()


def test_views_are_taken_too() -> None:
    logits, masks, uniforms = random_heads(3, [3, 4], 6, 1.0)
    expected = sample_categorical(logits, [3, 4], uniforms, masks=masks)
    turned = [np.asfortranarray(a) for a in (logits, masks, uniforms)]
    found = sample_categorical(turned[0], [3, 4], turned[2], masks=turned[1])
    assert found.actions.tolist() == expected.actions.tolist()
    wide = sample_normal(logits, np.asfortranarray(np.zeros_like(logits)), None)
    assert wide.actions.shape == logits.shape


@BOTH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros((2, 4), np.float32)}, r"logits: .*\(2, 5\) \[batch, sum of choices\]"),
        ({"logits": np.zeros((2, 5))}, r"logits: given a float64 .*astype\(np\.float32\)"),
        ({"choices": [5, 0]}, r"choices: given \[5, 0\]"),
        ({"choices": []}, "choices: given"),
        ({"uniforms": np.zeros((2, 1), np.float32)}, r"uniforms: .*\(2, 2\)"),
        ({"masks": np.ones((2, 5), np.float32)}, "masks: .*bool or uint8"),
        ({"live": np.ones(3, bool)}, r"live: .*\(2,\)"),
    ],
)
def test_what_will_not_do_is_told(change: dict[str, Any], message: str, use_native: bool) -> None:
    data: dict[str, Any] = {
        "logits": np.zeros((2, 5), np.float32), "choices": [2, 3],
        "uniforms": np.zeros((2, 2), np.float32),
    }  # fmt: skip
    with pytest.raises(UsageError, match=message):
        sample_categorical(**{**data, **change}, use_native=use_native)
    zeros = np.zeros((2, 3), np.float32)
    with pytest.raises(UsageError, match=r"log_stds: .*\(4,\)"):
        sample_normal(zeros, np.zeros(4, np.float32), None, use_native=use_native)
    with pytest.raises(UsageError, match="noise: given a float64"):
        sample_normal(zeros, zeros, np.zeros((2, 3)), use_native=use_native)
