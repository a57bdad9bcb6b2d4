"""The sampling kernels, slow and obvious: one row after the other, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.uint8] | NDArray[np.bool_]
NO_FAULT, NOT_A_NUMBER, NO_CHOICE, BAD_RANDOM = range(4)
Fault = tuple[int, int, int]  # what, the row, and the head or dimension
HALF_LOG_TAU = math.log(2 * math.pi) / 2


def probabilities(logits: NDArray[Any], allowed: NDArray[Any]) -> NDArray[np.float64]:
    """Of one head's choices, those that are not allowed exactly 0."""
    most = logits[allowed].max()
    weights = np.zeros(len(logits))
    weights[allowed] = np.exp(logits[allowed] - most)
    # Float32 cannot tell such weights from 0, so neither kernel ever takes them.
    weights[logits - most < -87.0] = 0.0
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def categorical_reference(
    logits: Floats,
    choices: NDArray[np.int64],
    masks: Flags | None,
    live: Flags | None,
    uniforms: Floats | None,
    actions: NDArray[np.int64],
    log_probabilities: Floats,
    entropies: Floats,
) -> Fault:
    """Sample heads side by side, or take their best choices if there are no uniforms."""
    for row in range(len(logits)):
        log_probability = entropy = 0.0
        offset = 0
        for head, count in enumerate(choices):
            x = logits[row, offset : offset + count].astype(np.float64)
            allowed = np.ones(count, bool)
            if masks is not None:
                allowed = masks[row, offset : offset + count] != 0
            offset += count
            actions[row, head] = 0
            if live is not None and not live[row]:
                continue
            if np.isnan(x).any() or (x == np.inf).any():
                return NOT_A_NUMBER, row, head
            allowed &= x > -np.inf
            if not allowed.any():
                return NO_CHOICE, row, head
            p = probabilities(x, allowed)
            if uniforms is None:
                action = int(np.flatnonzero(allowed & (x == x[allowed].max()))[0])
            else:
                uniform = float(uniforms[row, head])
                if not 0.0 <= uniform < 1.0:
                    return BAD_RANDOM, row, head
                action = draw(p, uniform)
            actions[row, head] = action
            most = x[allowed].max()
            log_probability += x[action] - most - math.log(np.exp(x[allowed] - most).sum())
            entropy -= sum(q * math.log(q) for q in p if q > 0)
        log_probabilities[row] = log_probability
        entropies[row] = entropy
    return NO_FAULT, 0, 0


def draw(p: NDArray[np.float64], uniform: float) -> int:
    """The first choice at which the running sum passes `uniform`, else the last possible one."""
    running, last = 0.0, 0
    for choice in range(len(p)):
        running += p[choice]
        if p[choice] > 0:
            last = choice
            if running > uniform:
                break
    return last


def normal_reference(
    means: Floats,
    log_stds: Floats,
    noise: Floats | None,
    live: Flags | None,
    actions: Floats,
    log_probabilities: Floats,
    entropies: Floats,
) -> Fault:
    """Sample diagonal normals, or take their means if there is no noise."""
    batch, dims = means.shape
    for row in range(batch):
        log_probability = entropy = 0.0
        for d in range(dims):
            actions[row, d] = 0
            if live is not None and not live[row]:
                continue
            mean, log_std = float(means[row, d]), float(log_stds[row, d])
            z = 0.0 if noise is None else float(noise[row, d])
            with np.errstate(all="ignore"):
                action = np.float32(mean + np.exp(log_std) * z)
            if not (math.isfinite(action) and math.isfinite(log_std)):
                return (NOT_A_NUMBER if math.isfinite(z) else BAD_RANDOM), row, d
            actions[row, d] = action
            log_probability += -0.5 * z * z - log_std - HALF_LOG_TAU
            entropy += 0.5 + HALF_LOG_TAU + log_std
        log_probabilities[row] = log_probability
        entropies[row] = entropy
    return NO_FAULT, 0, 0
