"""Sampling of actions: categorical heads side by side, and diagonal normals.

The random numbers are given, so that actions are reproducible to the bit whatever drew them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import UsageError
from fugu.native.arrays import count_threads, describe, refuse, take, take_flags, take_out
from fugu.native.sampling_reference import categorical_reference, normal_reference

if native.available:
    from fugu import _native

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_] | NDArray[np.uint8]


class CategoricalSample(NamedTuple):
    """Actions of categorical heads, with the logarithm of their joint probability."""

    actions: NDArray[np.int64]  # [batch, heads]
    log_probabilities: Floats  # [batch]
    entropies: Floats  # [batch]


class NormalSample(NamedTuple):
    """Actions of normals, with the logarithm of their joint density."""

    actions: Floats  # [batch, dims]
    log_probabilities: Floats  # [batch]
    entropies: Floats  # [batch]


def sample_categorical(
    logits: Floats,
    choices: Sequence[int] | NDArray[np.int64],
    uniforms: Floats | None,
    *,
    masks: Flags | None = None,
    live: Flags | None = None,
    out: CategoricalSample | None = None,
    threads: int = 0,
    use_native: bool = True,
) -> CategoricalSample:
    """Sample every head of every row, with joint log-probabilities and entropies.

    A head takes the first choice at which the sum of its probabilities passes its uniform number.
    Choices that are masked or have a logit of minus infinity have probability exactly 0.

    Args:
        logits: The heads' logits side by side. [batch, sum of choices]
        choices: How many choices each head has.
        uniforms: Random numbers from [0, 1), [batch, heads]; None: the most probable choices, the
            lowest of equals.
        masks: What is allowed, shaped as `logits`; everything if missing.
        live: Rows that act [batch], all if missing; others are not looked at and get zeros.
        out: Where to write.
        threads: How many may be used; 0: all cores. Small inputs are left to the caller's thread.
        use_native: False: the slow reference.

    Raises:
        UsageError: If a shape, a dtype, a logit or a random number will not do, or if a head has no
            choice that is allowed; it names the row.

    >>> logits = np.log(np.array([[0.5, 0.5, 0.2, 0.8]], np.float32))
    >>> sample = sample_categorical(logits, [2, 2], np.array([[0.4, 0.4]], np.float32))
    >>> sample.actions.tolist(), f"{np.exp(sample.log_probabilities[0]):.4f}"
    ([[0, 1]], '0.4000')
    """
    heads = np.asarray(choices, np.int64)
    batch = len(logits)
    if out is None:
        out = CategoricalSample(
            np.empty((batch, heads.size), np.int64),
            np.empty(batch, np.float32),
            np.empty(batch, np.float32),
        )
    inputs = (logits, heads, masks, live, uniforms)
    count = count_threads(threads)
    if native.available and use_native:
        try:  # the kernel looks at everything itself: what it takes needs no second look
            fault = _native.sample_categorical(*inputs, *out, count)
        except (TypeError, ValueError):
            inputs = _checked_categorical(*inputs, out)
            fault = _native.sample_categorical(*inputs, *out, count)
    else:
        inputs = _checked_categorical(*inputs, out)
        fault = categorical_reference(*inputs, *out)
    if fault[0]:
        raise _fault(fault, "head")
    return out


def sample_normal(
    means: Floats,
    log_stds: Floats,
    noise: Floats | None,
    *,
    live: Flags | None = None,
    out: NormalSample | None = None,
    threads: int = 0,
    use_native: bool = True,
) -> NormalSample:
    """Sample diagonal normals: mean + exp(log_std) * noise.

    The log-density is that of the noise given, before the action is rounded to float32.

    Args:
        means: Of each dimension. [batch, dims]
        log_stds: Logarithms of standard deviations; [batch, dims], or [dims] for all rows.
        noise: Standard normal random numbers, shaped as `means`; None: the means themselves.
        live: Rows that act [batch], all if missing; others are not looked at and get zeros.
        out: Where to write.
        threads: How many may be used; 0: all cores. Small inputs are left to the caller's thread.
        use_native: False: the slow reference.

    Raises:
        UsageError: If a shape or a dtype will not do, or if an action would not be finite.

    >>> means, noise = np.ones((1, 2), np.float32), np.array([[1.0, -1.0]], np.float32)
    >>> sample_normal(means, np.zeros(2, np.float32), noise).actions.tolist()
    [[2.0, 0.0]]
    """
    if isinstance(log_stds, np.ndarray) and log_stds.ndim == 1 and means.ndim == 2:
        if log_stds.shape != means.shape[1:]:
            allowed = f"a float32 array of shape {means.shape[1:]} or {means.shape}"
            raise refuse("log_stds", describe(log_stds), allowed)
        log_stds = np.broadcast_to(np.ascontiguousarray(log_stds), means.shape)
    if out is None:
        batch = len(means)
        out = NormalSample(
            np.empty(means.shape, np.float32),
            np.empty(batch, np.float32),
            np.empty(batch, np.float32),
        )
    inputs = (means, log_stds, noise, live)
    count = count_threads(threads)
    if native.available and use_native:
        try:  # the kernel looks at everything itself: what it takes needs no second look
            fault = _native.sample_normal(*inputs, *out, count)
        except (TypeError, ValueError):
            inputs = _checked_normal(*inputs, out)
            fault = _native.sample_normal(*inputs, *out, count)
    else:
        inputs = _checked_normal(*inputs, out)
        fault = normal_reference(*inputs, *out)
    if fault[0]:
        raise _fault(fault, "dimension")
    return out


FAULTS = (
    "",
    "given a logit, mean or standard deviation that is not a number or infinite; allowed: finite "
    "numbers, and minus infinity as a logit.",
    "given no choice that is allowed; allowed: at least one that is neither masked nor minus "
    "infinity. Mark rows that do not act as not live.",
    "given a random number out of range; allowed: [0, 1) for choices, finite ones for normals.",
)


def _fault(found: tuple[int, int, int], part: str) -> UsageError:
    """Return the error that says what the kernel met where."""
    fault, row, number = found
    return UsageError(f"row {row}, {part} {number}: {FAULTS[fault]}")


def _checked_categorical(
    logits: Floats,
    choices: NDArray[np.int64],
    masks: Flags | None,
    live: Flags | None,
    uniforms: Floats | None,
    out: CategoricalSample,
) -> tuple[Floats, NDArray[np.int64], Flags | None, Flags | None, Floats | None]:
    """The inputs, contiguous; raises for what will not do."""
    if choices.ndim != 1 or not choices.size or (choices < 1).any():
        raise refuse("choices", f"{choices.tolist()}", "for each head, 1 choice or more")
    batch, heads, width = len(logits), choices.size, int(choices.sum())
    axes = "[batch, sum of choices]"
    take_out("out.actions", out.actions, np.int64, (batch, heads))
    take_out("out.log_probabilities", out.log_probabilities, np.float32, (batch,))
    take_out("out.entropies", out.entropies, np.float32, (batch,))
    tidy = np.ascontiguousarray
    return (
        tidy(take("logits", logits, np.float32, (batch, width), axes)),
        tidy(choices),
        None if masks is None else tidy(take_flags("masks", masks, (batch, width), axes)),
        None if live is None else tidy(take_flags("live", live, (batch,), "[batch]")),
        None if uniforms is None else tidy(take("uniforms", uniforms, np.float32, (batch, heads))),
    )


def _checked_normal(
    means: Floats,
    log_stds: Floats,
    noise: Floats | None,
    live: Flags | None,
    out: NormalSample,
) -> tuple[Floats, Floats, Floats | None, Flags | None]:
    """The inputs, contiguous; raises for what will not do."""
    if not isinstance(means, np.ndarray) or means.ndim != 2:
        raise refuse("means", describe(means), "a float32 array [batch, dims]")
    shape, batch = means.shape, len(means)
    take_out("out.actions", out.actions, np.float32, shape)
    take_out("out.log_probabilities", out.log_probabilities, np.float32, (batch,))
    take_out("out.entropies", out.entropies, np.float32, (batch,))
    tidy = np.ascontiguousarray
    return (
        tidy(take("means", means, np.float32, shape, "[batch, dims]")),
        tidy(take("log_stds", log_stds, np.float32, shape, "[batch, dims]")),
        None if noise is None else tidy(take("noise", noise, np.float32, shape, "[batch, dims]")),
        None if live is None else tidy(take_flags("live", live, (batch,), "[batch]")),
    )
