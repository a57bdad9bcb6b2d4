"""The advantage kernel, slow and obvious: one row after the other, one step after the other.

Every number is a float32 and every sum and product is rounded in the order written, as in the
native kernel, so that both give the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.uint8] | NDArray[np.bool_]
ZERO = np.float32(0)


def advantages_reference(
    rewards: Floats,
    values: Floats,
    final_values: Floats,
    ratios: Floats | None,
    terminations: Flags,
    truncations: Flags,
    valid: Flags | None,
    live: Flags | None,
    out: Floats,
    returns_out: Floats | None,
    gamma: float,
    decay: float,
    rho_clip: float,
    c_clip: float,
) -> None:
    """Write the advantages of arrays [horizon, rows]; `decay` is gamma * lambda."""
    horizon, rows = rewards.shape
    ratios = np.ones_like(rewards) if ratios is None else ratios
    valid = np.ones_like(terminations) if valid is None else valid
    live = np.ones_like(terminations) if live is None else live
    discount, fading = np.float32(gamma), np.float32(decay)
    rho_limit, c_limit = np.float32(rho_clip), np.float32(c_clip)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities follow IEEE, as in C
        for row in range(rows):
            next_value, trace = values[horizon, row], ZERO
            lost = False  # whether the step before lost its next value while it paused
            for t in reversed(range(horizon)):
                terminated, truncated = bool(terminations[t, row]), bool(truncations[t, row])
                ended = terminated or truncated
                broken = not valid[t, row]
                if not live[t, row]:  # a pause of the step before
                    out[t, row] = ZERO
                    if returns_out is not None:
                        returns_out[t, row] = ZERO
                    if broken:
                        trace, lost = ZERO, True
                    elif terminated:
                        next_value, trace, lost = ZERO, ZERO, False
                    elif truncated:
                        trace, lost = ZERO, True
                    continue
                value = values[t, row]
                advantage = ZERO
                if not broken and (ended or not lost):
                    if terminated:
                        next_value = ZERO
                    elif truncated:
                        next_value = final_values[t, row]
                    rho = clip(ratios[t, row], rho_limit)
                    c = clip(ratios[t, row], c_limit)
                    advantage = rho * (rewards[t, row] + discount * next_value - value)
                    advantage = advantage + (ZERO if ended else fading * c * trace)
                out[t, row] = advantage
                if returns_out is not None:
                    returns_out[t, row] = ZERO if broken else advantage + value
                next_value, trace, lost = value, advantage, False


def clip(ratio: np.float32, limit: np.float32) -> np.float32:
    """The lesser of the two; not-a-number stays."""
    return limit if ratio > limit else ratio
