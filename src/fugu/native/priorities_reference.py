"""The priority kernels, slow and obvious, step for step as the native ones.

Powers and logarithms are those of `math`, which are the system's, as in C++: NumPy has its own,
whose last bits may differ.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.uint8] | NDArray[np.bool_]


def probabilities_reference(
    advantages: NDArray[np.float32],
    valid: Flags | None,
    live: Flags | None,
    alpha: float,
    epsilon: float,
    out: NDArray[np.float64],
    /,
) -> int:
    """Write the rows' probabilities; the first row that is not finite, else their number."""
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
