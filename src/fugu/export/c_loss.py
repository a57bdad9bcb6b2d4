"""What int8 weights change: params and greedy actions on observations that were not used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.nets.net import Floats, Net
from fugu.nets.reference import run_reference
from fugu.spaces.action_sampler import ActionSampler

CLOSE = 0.01  # numbers of two actions are the same if no further apart, of what they may vary


@dataclass(frozen=True)
class Loss:
    """What rounding changes on some observations.

    Attributes:
        observations: How many.
        largest_error: Of a parameter of the actions' distribution.
        agreement: The share of observations that lead to the same greedy action. Numbers count as
            the same within a hundredth of the way between their bounds, or of their standard
            deviation where they have none.
    """

    observations: int
    largest_error: float
    agreement: float


def as_steps(net: Net, rows: NDArray[Any]) -> NDArray[Any]:
    """Observations as `[steps, batch, size]`; `[count, size]` are one step of as many episodes."""
    size = net.observation.size
    steps = rows[None] if rows.ndim == 2 else rows
    if steps.ndim != 3 or steps.shape[-1] != size or not steps.size:
        raise UsageError(
            f"observations: given an array of shape {rows.shape}; allowed: (count, {size}), each "
            f"the first of an episode, or (steps, batch, {size})."
        )
    if steps.dtype != net.observation.dtype:
        raise UsageError(
            f"observations: given {steps.dtype}; allowed: {net.observation.dtype}, as the layout "
            "packs them."
        )
    return steps


def split(steps: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Half to learn from and half to measure with: of the batch, or of a single episode's steps."""
    if steps.shape[1] > 1:
        return steps[:, ::2], steps[:, 1::2]
    half = max(1, len(steps) // 2)
    return steps[:half], steps[half:] if len(steps) > 1 else steps


def measure(net: Net, other: Net, steps: NDArray[Any]) -> Loss:
    """What another network does differently over steps of episodes, `[steps, batch, size]`."""
    sampler = ActionSampler(net.action, net.continuous)
    nets = net, other
    states = [np.zeros((steps.shape[1], net.state_size), np.float32) for _ in nets]
    largest, equal = 0.0, 0
    for seen in steps:
        params = []
        for i, each in enumerate(nets):
            found, _, states[i] = run_reference(each, seen, states[i])
            params.append(found)
        largest = max(largest, float(np.abs(params[0] - params[1]).max(initial=0.0)))
        equal += int(_alike(sampler, *params).sum())
    count = steps.shape[0] * steps.shape[1]
    return Loss(count, largest, equal / count)


def _alike(sampler: ActionSampler, params: Floats, others: Floats) -> NDArray[np.bool_]:
    """Which rows lead to the same greedy action, `[batch]`."""
    random, heads = np.random.default_rng(0), sampler.num_heads  # nothing is drawn
    one, other = (sampler.sample(each, None, random, greedy=True)[0] for each in (params, others))
    alike: NDArray[np.bool_] = (one[:, :heads] == other[:, :heads]).all(1)
    deviations = np.exp(params[:, sampler.num_outputs :].astype(np.float64))
    acted = [_numbers(sampler, sampler.to_rows(each)) for each in (one, other)]
    first = 0
    for numbers, mine, its in zip(sampler.writer.numbers, *acted, strict=True):
        own = slice(first, first + len(numbers.low))
        first = own.stop
        reach = numbers.high - numbers.low
        unbounded = reach >= float(np.finfo(numbers.leaf.dtype).max)
        varies = np.where(unbounded, deviations[:, own], reach)
        alike &= (np.abs(mine - its) <= CLOSE * varies).all(1)
    return alike


def _numbers(sampler: ActionSampler, rows: NDArray[Any]) -> list[NDArray[np.float64]]:
    """The continuous leaves of actions, each `[batch, numbers]`."""
    raw = rows.view(np.uint8)
    leaves = [numbers.leaf for numbers in sampler.writer.numbers]
    views = (raw[:, leaf.offset : leaf.offset + leaf.nbytes].view(leaf.dtype) for leaf in leaves)
    return [view.astype(np.float64) for view in views]
