"""Sampling of actions: categorical heads side by side, and diagonal normals.

Random numbers are arguments, so that actions are reproducible to the bit. Each kernel has a slow
reference here, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.arrays import count_threads, describe, refuse, take, take_flags, take_out

if native.available:
    from fugu import _native

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_] | NDArray[np.uint8]
NO_FAULT, NOT_A_NUMBER, NO_CHOICE, BAD_RANDOM = range(4)
Fault = tuple[int, int, int]  # what, the row, and the head or dimension
HALF_LOG_TAU = math.log(2 * math.pi) / 2
FAULTS = (
    "",
    "given a logit, mean or standard deviation that is not a number or infinite; allowed: finite "
    "numbers, and minus infinity as a logit.",
    "given no choice that is allowed; allowed: at least one that is neither masked nor minus "
    "infinity. Mark rows that do not act as not live.",
    "given a random number out of range; allowed: [0, 1) for choices, finite ones for normals.",
)


class Sample(NamedTuple):
    """Actions, with the logarithm of their joint probability or density."""

    actions: NDArray[Any]  # [batch, heads] of int64, or [batch, dims] of float32
    log_probabilities: Floats  # [batch]
    entropies: Floats  # [batch]


def sample_categorical(
    logits: Floats,
    choices: Sequence[int] | NDArray[np.int64],
    uniforms: Floats | None,
    *,
    masks: Flags | None = None,
    live: Flags | None = None,
    out: Sample | None = None,
    threads: int = 0,
    use_native: bool = True,
) -> Sample:
    """Sample every head of every row, with joint log-probabilities and entropies.

    A head takes the first choice at which the sum of its probabilities passes its uniform number.
    Choices that are masked or have a logit of minus infinity have probability exactly 0.

    Args:
        logits: The heads' logits side by side. [batch, sum of choices]
        choices: Number of choices of each head.
        uniforms: Random numbers from [0, 1), [batch, heads]; None: the most probable choices, the
            lowest of equals.
        masks: Allowed choices, shaped as `logits`; all by default.
        live: Rows that act [batch], all by default; others are not read and get zeros.
        out: Where to write.
        threads: Maximum threads; 0: all cores. Small inputs use the caller's thread alone.
        use_native: False: the slow reference.

    Raises:
        UsageError: If a shape, a dtype, a logit or a random number is wrong, or if a head has no
            choice that is allowed; it names the row.

    >>> logits = np.log(np.array([[0.5, 0.5, 0.2, 0.8]], np.float32))
    >>> sample = sample_categorical(logits, [2, 2], np.array([[0.4, 0.4]], np.float32))
    >>> sample.actions.tolist(), f"{np.exp(sample.log_probabilities[0]):.4f}"
    ([[0, 1]], '0.4000')
    """
    heads = np.asarray(choices, np.int64)
    shape = (len(logits), heads.size)
    kernel = _native.sample_categorical if native.available and use_native else None
    arguments = (logits, heads, masks, live, uniforms)
    return _run(
        kernel,
        categorical_reference,
        _checked_categorical,
        arguments,
        out,
        shape,
        np.int64,
        threads,
    )


def sample_normal(
    means: Floats,
    log_stds: Floats,
    noise: Floats | None,
    *,
    live: Flags | None = None,
    out: Sample | None = None,
    threads: int = 0,
    use_native: bool = True,
) -> Sample:
    """Sample diagonal normals: mean + exp(log_std) * noise.

    The log-density is that of the noise given, before the action is rounded to float32.

    Args:
        means: Means of each dimension. [batch, dims]
        log_stds: Logarithms of standard deviations; [batch, dims], or [dims] for all rows.
        noise: Standard normal random numbers, shaped as `means`; None: the means themselves.
        live: Rows that act [batch], all by default; others are not read and get zeros.
        out: Where to write.
        threads: Maximum threads; 0: all cores. Small inputs use the caller's thread alone.
        use_native: False: the slow reference.

    Raises:
        UsageError: If a shape or a dtype is wrong, or if an action would not be finite.

    >>> means, noise = np.ones((1, 2), np.float32), np.array([[1.0, -1.0]], np.float32)
    >>> sample_normal(means, np.zeros(2, np.float32), noise).actions.tolist()
    [[2.0, 0.0]]
    """
    if isinstance(log_stds, np.ndarray) and log_stds.ndim == 1 and means.ndim == 2:
        if log_stds.shape != means.shape[1:]:
            allowed = f"a float32 array of shape {means.shape[1:]} or {means.shape}"
            raise refuse("log_stds", describe(log_stds), allowed)
        log_stds = np.broadcast_to(np.ascontiguousarray(log_stds), means.shape)
    kernel = _native.sample_normal if native.available and use_native else None
    arguments = (means, log_stds, noise, live)
    return _run(
        kernel, normal_reference, _checked_normal, arguments, out, means.shape, np.float32, threads
    )


Arguments = tuple[Any, ...]


def _run(
    kernel: Callable[..., Fault] | None,
    reference: Callable[..., Fault],
    check: Callable[..., Arguments],
    arguments: Arguments,
    out: Sample | None,
    shape: tuple[int, ...],
    dtype: type[np.generic],
    threads: int,
) -> Sample:
    """Fill `out`, or a new sample, by a kernel, or by the reference if there is none."""
    count = count_threads(threads)
    if out is None:
        logs, entropies = np.empty(shape[0], np.float32), np.empty(shape[0], np.float32)
        out = Sample(np.empty(shape, dtype), logs, entropies)
    if kernel is None:
        fault, row, number = reference(*check(*arguments, out), *out)
    else:
        try:  # the kernel checks its arguments itself
            fault, row, number = kernel(*arguments, *out, count)
        except (TypeError, ValueError):
            fault, row, number = kernel(*check(*arguments, out), *out, count)
    if fault:
        part = "head" if reference is categorical_reference else "dimension"
        raise UsageError(f"row {row}, {part} {number}: {FAULTS[fault]}")
    return out


def _check_out(out: Sample, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    take_out("out.actions", out.actions, dtype, shape)
    take_out("out.log_probabilities", out.log_probabilities, np.float32, shape[:1])
    take_out("out.entropies", out.entropies, np.float32, shape[:1])


def _checked_categorical(
    logits: Any, choices: NDArray[np.int64], masks: Any, live: Any, uniforms: Any, out: Sample
) -> Arguments:
    """Return the arguments, contiguous; raise if one is wrong."""
    if choices.ndim != 1 or not choices.size or (choices < 1).any():
        raise refuse("choices", f"{choices.tolist()}", "for each head, 1 choice or more")
    batch, heads, width = len(logits), choices.size, int(choices.sum())
    axes = "[batch, sum of choices]"
    _check_out(out, np.int64, (batch, heads))
    logits = np.ascontiguousarray(take("logits", logits, np.float32, (batch, width), axes))
    masks = _flags("masks", masks, (batch, width), axes)
    if uniforms is not None:
        uniforms = np.ascontiguousarray(take("uniforms", uniforms, np.float32, (batch, heads)))
    choices = np.ascontiguousarray(choices)
    return logits, choices, masks, _flags("live", live, (batch,), "[batch]"), uniforms


def _checked_normal(means: Any, log_stds: Any, noise: Any, live: Any, out: Sample) -> Arguments:
    """Return the arguments, contiguous; raise if one is wrong."""
    if not isinstance(means, np.ndarray) or means.ndim != 2:
        raise refuse("means", describe(means), "a float32 array [batch, dims]")
    _check_out(out, np.float32, means.shape)
    found = []
    for name, array in {"means": means, "log_stds": log_stds, "noise": noise}.items():
        if array is not None or name != "noise":
            array = take(name, array, np.float32, means.shape, "[batch, dims]")
            array = np.ascontiguousarray(array)
        found.append(array)
    return *found, _flags("live", live, means.shape[:1], "[batch]")


def _flags(name: str, array: Any, shape: tuple[int, ...], axes: str) -> Any:
    return None if array is None else np.ascontiguousarray(take_flags(name, array, shape, axes))


# ---------------------------------------------------------------------- references


def probabilities(logits: NDArray[Any], allowed: NDArray[Any]) -> NDArray[np.float64]:
    """Return the probabilities of one head's choices, exactly 0 where not allowed."""
    most = logits[allowed].max()
    weights = np.zeros(len(logits))
    weights[allowed] = np.exp(logits[allowed] - most)
    # These weights are 0 in float32, so neither kernel takes them.
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
    """Return the first choice at which the running sum passes `uniform`, else the last one."""
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
