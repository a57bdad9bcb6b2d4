"""Advantages of segments: GAE with clipped importance ratios, as in V-trace.

Arrays are time-major, [horizon, rows]. Pass row-major arrays as views `array.T`: the kernel
transposes blocks of rows, which is faster than copying whole arrays, and several times slower than
time-major arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.native.arrays import apart, count_threads, describe, refuse, take, take_flags, take_out

if native.available:
    from fugu import _native

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_] | NDArray[np.uint8]
Inputs = tuple[Any, ...]
FLOATS = ("rewards", "values", "final_values", "ratios")
NAMES = (*FLOATS, "terminations", "truncations", "valid", "live")
ZERO = np.float32(0)


def advantages(
    rewards: Floats,
    values: Floats,
    final_values: Floats,
    terminations: Flags,
    truncations: Flags,
    *,
    gamma: float,
    lambda_: float,
    rho_clip: float = math.inf,
    c_clip: float = math.inf,
    ratios: Floats | None = None,
    valid: Flags | None = None,
    live: Flags | None = None,
    out: Floats | None = None,
    returns_out: Floats | None = None,
    threads: int = 0,
    use_native: bool = True,
) -> Floats:
    """Return the advantages of all steps, from the last one back.

    With `n = not (terminated or truncated)`,

        d = min(ratio, rho_clip) * (reward + gamma * next_value - value)
        A = d + gamma * lambda * min(ratio, c_clip) * n * A_next

    where the next value is 0 at a termination, the final value at a truncation, else the value of
    the next step. Both clips infinite and ratios 1: GAE. Native and reference agree bit for bit.

    A step that is not live is a pause: its advantage is 0, and the trace and the next value skip
    it. A pause belongs to the previous step, so a termination in a pause ends that step. A
    truncation or a break in a pause leaves that step without a next value: its advantage is 0 and
    the trace is cut; collectors move such an end to the step that acted. A step that is not valid
    has advantage 0 and cuts the trace; the previous step bootstraps from `values` there, which
    precedes the break. Nothing else of a step that is not live or not valid is read.

    Args:
        rewards: Rewards of the actions. [horizon, rows]
        values: Values of the observations; the last row is the bootstrap. [horizon + 1, rows]
        final_values: Values of the last observations of truncated episodes; read only there.
        terminations: Where an episode terminated.
        truncations: Where an episode was truncated.
        gamma: The discount of a step.
        lambda_: The decay of the trace.
        rho_clip: The limit of the ratio that weighs a step.
        c_clip: The limit of the ratio that weighs the trace.
        ratios: New over old probabilities of the actions; 1 by default.
        valid: 0 where a step was broken.
        live: 0 where no agent acted.
        out: Where to write the advantages.
        returns_out: Where to write advantages + values, 0 where not live or not valid.
        threads: Maximum threads; 0: all cores. Small inputs use the caller's thread alone.
        use_native: False: the slow reference.

    Raises:
        UsageError: If a shape, a dtype or a number is wrong.

    >>> ones, no = np.ones((3, 1), np.float32), np.zeros((3, 1), bool)
    >>> values = np.zeros((4, 1), np.float32)
    >>> advantages(ones, values, ones, no, no, gamma=1.0, lambda_=0.5)[:, 0].tolist()
    [1.75, 1.5, 1.0]
    """
    numbers = (gamma, gamma * lambda_, rho_clip, c_clip)
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lambda_ <= 1.0 and rho_clip >= 0.0 and c_clip >= 0.0):
        given = {"gamma": gamma, "lambda_": lambda_, "rho_clip": rho_clip, "c_clip": c_clip}
        for name, number in given.items():
            most = math.inf if name.endswith("clip") else 1.0
            if not 0.0 <= number <= most:
                raise refuse(name, f"{number}", f"0 to {most}")
    result: Floats = np.empty_like(rewards) if out is None else out
    inputs: Inputs = (rewards, values, final_values, ratios)
    inputs += (terminations, truncations, valid, live)
    compute: Any = advantages_reference
    rest: tuple[Any, ...] = (result, returns_out, *numbers)
    count = count_threads(threads)
    if native.available and use_native:
        compute, rest = _native.advantages, (*rest, count)
        try:  # the kernel checks its arguments itself
            compute(*inputs, *rest)
            return result
        except (TypeError, ValueError):
            pass  # what is wrong is found below, and what is only unaligned is copied
    compute(*_checked(inputs, result, returns_out), *rest)
    return result


def _checked(inputs: Inputs, out: Floats, returns_out: Floats | None) -> Inputs:
    """Return the inputs, their flags as bytes; raise if one is wrong."""
    rewards = inputs[0]
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 2:
        raise refuse("rewards", describe(rewards), "a float32 array [horizon, rows]")
    found: dict[str, Any] = {}
    for name, array in zip(NAMES, inputs, strict=True):
        extra = int(name == "values")
        shape = rewards.shape[0] + extra, rewards.shape[1]
        axes = "[horizon + 1, rows]" if extra else "[horizon, rows]"
        if array is None and name in ("ratios", "valid", "live"):
            found[name] = None
        elif name in FLOATS:
            found[name] = take(name, array, np.float32, shape, axes)
        else:
            found[name] = take_flags(name, array, shape, axes)
    apart("out", take_out("out", out, np.float32, rewards.shape, contiguous=False), **found)
    if returns_out is not None:
        take_out("returns_out", returns_out, np.float32, rewards.shape, contiguous=False)
        apart("returns_out", returns_out, out=out, **found)
    return tuple(found.values())


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
    """Write the advantages of arrays [horizon, rows], slowly; `decay` is gamma * lambda.

    Every number is a float32 and every sum and product is rounded in the order written, as in the
    native kernel, so that both give the same bits.
    """
    horizon, rows = rewards.shape
    ratios = np.ones_like(rewards) if ratios is None else ratios
    valid = np.ones_like(terminations) if valid is None else valid
    live = np.ones_like(terminations) if live is None else live
    discount, fading = np.float32(gamma), np.float32(decay)
    rho_limit, c_limit = np.float32(rho_clip), np.float32(c_clip)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities follow IEEE, as in C
        for row in range(rows):
            next_value, trace = values[horizon, row], ZERO
            lost = False  # whether the previous step lost its next value in a pause
            for t in reversed(range(horizon)):
                terminated, truncated = bool(terminations[t, row]), bool(truncations[t, row])
                ended = terminated or truncated
                broken = not valid[t, row]
                if not live[t, row]:  # a pause of the previous step
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
    """Return the lesser of the two; NaN stays NaN."""
    return limit if ratio > limit else ratio
