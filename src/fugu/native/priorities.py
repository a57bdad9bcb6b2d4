"""Priorities of segments: which rows to learn from, and how much each of them weighs.

Each kernel has a slow reference here, equal to the bit. Powers and logarithms are those of `math`,
which are the system's, as in C++; those of NumPy may differ in the last bits.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.arrays import apart, describe, refuse, take, take_flags, take_out

if native.available:
    from fugu import _native

Flags = NDArray[np.bool_] | NDArray[np.uint8]
Correction = Literal["inclusion", "draw"]
EPSILON = 1e-6
"""Minimum weight, so that every row may be drawn."""


def segment_probabilities(
    advantages: NDArray[np.float32],
    alpha: float,
    *,
    valid: Flags | None = None,
    live: Flags | None = None,
    out: NDArray[np.float64] | None = None,
    use_native: bool = True,
) -> NDArray[np.float64]:
    """Return each row's probability: (w + 1e-6) over the sum of the same, w = (sum_t |A|)^alpha.

    Args:
        advantages: Advantages of all steps. [horizon, rows]
        alpha: 0: all rows equal; 1: in proportion to their advantages.
        valid: 0 where a step was broken; it does not count.
        live: 0 where no agent acted; it does not count.
        out: Where to write. [rows]
        use_native: False: the slow reference. Both give the same bits.

    Raises:
        UsageError: If a shape or dtype is wrong, or a row's advantages are not finite.

    >>> segment_probabilities(np.array([[1.0, -3.0]], np.float32), 1.0).round(6).tolist()
    [0.25, 0.75]
    """
    if not isinstance(advantages, np.ndarray) or advantages.ndim != 2:
        raise refuse("advantages", describe(advantages), "a float32 array [horizon, rows]")
    shape = advantages.shape
    if not shape[1]:
        raise refuse("advantages", describe(advantages), "at least one row")
    if not 0.0 <= alpha < np.inf:
        raise refuse("alpha", f"{alpha}", "0 or more")
    advantages = _contiguous_rows(take("advantages", advantages, np.float32, shape))
    valid = None if valid is None else _contiguous_rows(take_flags("valid", valid, shape))
    live = None if live is None else _contiguous_rows(take_flags("live", live, shape))
    result = take_out("out", out, np.float64, (shape[1],))
    apart("out", result, advantages=advantages, valid=valid, live=live)
    compute = probabilities_reference
    if native.available and use_native:
        compute = _native.segment_probabilities
    row = compute(advantages, valid, live, float(alpha), EPSILON, result)
    if row < shape[1]:
        raise refuse(f"advantages of row {row}", "a number that is not finite", "finite numbers")
    return result


def sample_segments(
    probabilities: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    count: int,
    *,
    beta: float,
    correction: Correction = "inclusion",
    out: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None,
    use_native: bool = True,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw `count` distinct rows by their probabilities, with importance weights.

    Row r gets the key -log(1 - uniform) / probability, and the rows with the lowest keys are taken
    in the order of their keys, the lower row first among equals (Efraimidis and Spirakis, in
    exponential form). That is drawing one after the other, each in proportion to its probability
    among the rows that are left.

    Args:
        probabilities: Probabilities of all rows, above 0. [rows]
        uniforms: A random number from [0, 1) for every row. [rows]
        count: Number of rows to draw.
        beta: How far weights correct for preference: 0 corrects nothing, 1 everything.
        correction: The probability that weights correct for. `inclusion`: the probability pi of
            being among the drawn rows, given the lowest key that was not drawn (Cohen and Kaplan
            2007); weights are (rows / count * pi)^-beta, and a weighted mean with beta 1 is
            unbiased. `draw`: that of a single draw; weights are (rows * probability)^-beta, as in
            PufferLib.
        out: Where to write the rows and the weights. [count]
        use_native: False: the slow reference. Both give the same bits.

    Raises:
        UsageError: If a shape, a dtype or a number is wrong.

    >>> p, uniforms = np.array([0.2, 0.8]), np.array([0.5, 0.5])
    >>> rows, weights = sample_segments(p, uniforms, 1, beta=1.0, correction="draw")
    >>> rows.tolist(), weights.tolist()
    ([1], [0.625])
    >>> rows, weights = sample_segments(p, uniforms, 1, beta=1.0)
    >>> rows.tolist(), round(float(weights[0]), 3)
    ([1], 0.533)
    """
    if not isinstance(probabilities, np.ndarray) or probabilities.ndim != 1:
        raise refuse("probabilities", describe(probabilities), "a float64 array [rows]")
    shape = probabilities.shape
    if not 1 <= count <= shape[0]:
        raise refuse("count", f"{count}", f"1 to {shape[0]}, the number of rows")
    if not 0.0 <= beta < np.inf:
        raise refuse("beta", f"{beta}", "0 or more")
    if correction not in ("inclusion", "draw"):
        raise refuse("correction", f"{correction!r}", "'inclusion' or 'draw'")
    probabilities = np.ascontiguousarray(take("probabilities", probabilities, np.float64, shape))
    uniforms = np.ascontiguousarray(take("uniforms", uniforms, np.float64, shape))
    if not (probabilities.min() > 0.0 and probabilities.max() < np.inf):
        raise UsageError("probabilities: given one that is not positive; allowed: above 0.")
    if not (uniforms.min() >= 0.0 and uniforms.max() < 1.0):
        raise UsageError("uniforms: given one out of range; allowed: 0 up to, not including, 1.")
    rows_out, weights_out = (None, None) if out is None else out
    rows = take_out("out[0]", rows_out, np.int64, (count,))
    weights = take_out("out[1]", weights_out, np.float32, (count,))
    compute = segments_reference
    if native.available and use_native:
        compute = _native.sample_segments
    compute(probabilities, uniforms, float(beta), correction == "inclusion", rows, weights)
    return rows, weights


def _contiguous_rows(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or a copy in which the rows of one time are contiguous."""
    return array if array.strides[1] == array.itemsize else np.ascontiguousarray(array)


def probabilities_reference(
    advantages: NDArray[np.float32],
    valid: Flags | None,
    live: Flags | None,
    alpha: float,
    epsilon: float,
    out: NDArray[np.float64],
    /,
) -> int:
    """Write the rows' probabilities; return the first row that is not finite, else their number."""
    horizon, rows = map(int, advantages.shape)
    total = 0.0
    for row in range(rows):
        magnitude = 0.0
        for t in range(horizon):
            counts = (valid is None or valid[t, row]) and (live is None or live[t, row])
            if counts:
                magnitude += abs(float(advantages[t, row]))
        if not math.isfinite(magnitude):
            return row
        out[row] = math.pow(magnitude, alpha) + epsilon
        total += float(out[row])
    for row in range(rows):
        out[row] = float(out[row]) / total
    return rows


def segments_reference(
    probabilities: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    beta: float,
    inclusion: bool,
    out: NDArray[np.int64],
    weights: NDArray[np.float32],
    /,
) -> None:
    """Write the rows of the lowest keys -log(1 - u) / P, and their weights.

    Weights are (N / k * pi)^-beta with pi = 1 - exp(-P * threshold), the threshold being the lowest
    key that was not drawn, or (N P)^-beta if `inclusion` is false.
    """
    rows, count = len(probabilities), len(out)
    keys = sorted(
        (-math.log1p(-float(u)) / float(p), row)
        for row, (u, p) in enumerate(zip(uniforms, probabilities, strict=True))
    )
    threshold = max(keys[count][0], 1e-12) if count < rows else math.inf
    for i, (_, row) in enumerate(keys[:count]):
        share = rows * float(probabilities[row])
        if inclusion:
            share = rows / count * -math.expm1(-float(probabilities[row]) * threshold)
        out[i] = row
        weights[i] = math.pow(share, -beta)
