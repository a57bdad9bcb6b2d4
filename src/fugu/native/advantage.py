"""Advantages of segments: GAE with clipped importance ratios, as in V-trace.

Arrays are time-major, [horizon, rows]. Row-major ones are given as their views `array.T`: the
kernel then transposes blocks of rows on the way, which is quicker than to copy whole arrays, though
several times slower than arrays that stand time-major from the start.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.advantage_reference import advantages_reference
from fugu.native.arrays import apart, count_threads, describe, refuse, take, take_flags, take_out

if native.available:
    from fugu import _native

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_] | NDArray[np.uint8]


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
    """Advantages of all steps, from the last one back.

    With `n = not (terminated or truncated)`,

        d = min(ratio, rho_clip) * (reward + gamma * next_value - value)
        A = d + gamma * lambda * min(ratio, c_clip) * n * A_next

    where the next value is 0 at a termination, the final value at a truncation, else the value of
    the next step. Both clips infinite and ratios 1: GAE. Native and reference agree bit for bit.

    A step that is not live is a pause: its advantage is 0, and the trace and the next value pass
    over it. A pause belongs to the step before it, so a termination in a pause ends that step. A
    truncation or a break in a pause leaves that step without a next value: its advantage is 0
    and the trace is cut; collectors rather move such an end to the step that acted. A step that is
    not valid has advantage 0 and cuts the trace; the step before it bootstraps from `values` there,
    which was seen before the break. Nothing else of a step that is not live or not valid is read.

    Args:
        rewards: Of each step, beside the action that earned them. [horizon, rows]
        values: Of the observations acted on; the last row is the bootstrap. [horizon + 1, rows]
        final_values: Of the last observations of truncated episodes; read only where truncated.
        terminations: Where an episode ended for good.
        truncations: Where an episode was cut off.
        gamma: The discount of a step.
        lambda_: The decay of the trace.
        rho_clip: The most that a ratio weighs a step.
        c_clip: The most that a ratio weighs the trace.
        ratios: New over old probabilities of the actions; 1 if missing.
        valid: 0 where a step was broken; none if missing.
        live: 0 where no agent acted; none if missing.
        out: Where to write the advantages.
        returns_out: Where to write advantages + values too, 0 where not live or not valid.
        threads: How many may be used; 0: all cores. Small inputs are left to the caller's thread.
        use_native: False: the slow reference.

    Raises:
        UsageError: If a shape, a dtype or a number will not do.

    >>> ones, no = np.ones((3, 1), np.float32), np.zeros((3, 1), bool)
    >>> values = np.zeros((4, 1), np.float32)
    >>> advantages(ones, values, ones, no, no, gamma=1.0, lambda_=0.5)[:, 0].tolist()
    [1.75, 1.5, 1.0]
    """
    numbers = (gamma, gamma * lambda_, rho_clip, c_clip)
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lambda_ <= 1.0 and rho_clip >= 0.0 and c_clip >= 0.0):
        raise _bad_number(gamma=gamma, lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip)
    result: Floats = np.empty_like(rewards) if out is None else out
    inputs = (rewards, values, final_values, ratios, terminations, truncations, valid, live)
    count = count_threads(threads)
    if native.available and use_native:
        try:  # the kernel looks at everything itself: what it takes needs no second look
            _native.advantages(*inputs, result, returns_out, *numbers, count)
        except (TypeError, ValueError):
            inputs = _checked(*inputs, result, returns_out)
            _native.advantages(*inputs, result, returns_out, *numbers, count)
        return result
    inputs = _checked(*inputs, result, returns_out)
    advantages_reference(*inputs, result, returns_out, *numbers)
    return result


Inputs = tuple[Floats, Floats, Floats, Floats | None, Flags, Flags, Flags | None, Flags | None]


def _checked(
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
) -> Inputs:
    """The inputs, their flags as bytes; raises for what will not do."""
    if not isinstance(rewards, np.ndarray) or rewards.ndim != 2:
        raise refuse("rewards", describe(rewards), "a float32 array [horizon, rows]")
    horizon, rows = shape = rewards.shape[0], rewards.shape[1]
    axes = "[horizon, rows]"
    inputs: Inputs = (
        take("rewards", rewards, np.float32, shape, axes),
        take("values", values, np.float32, (horizon + 1, rows), "[horizon + 1, rows]"),
        take("final_values", final_values, np.float32, shape, axes),
        None if ratios is None else take("ratios", ratios, np.float32, shape, axes),
        take_flags("terminations", terminations, shape, axes),
        take_flags("truncations", truncations, shape, axes),
        None if valid is None else take_flags("valid", valid, shape, axes),
        None if live is None else take_flags("live", live, shape, axes),
    )
    names = ("rewards", "values", "final_values", "ratios", "terminations", "truncations", "valid")
    named = dict(zip((*names, "live"), inputs, strict=True))
    apart("out", take_out("out", out, np.float32, shape, contiguous=False), **named)
    if returns_out is not None:
        take_out("returns_out", returns_out, np.float32, shape, contiguous=False)
        apart("returns_out", returns_out, out=out, **named)
    return inputs


def _bad_number(**numbers: float) -> UsageError:
    for name, number in numbers.items():
        most = math.inf if name.endswith("clip") else 1.0
        if not 0.0 <= number <= most:
            return refuse(name, f"{number}", f"0 to {most}")
    raise AssertionError("every number is good")
