"""Observations: a value beside its compiled space, leaf by leaf, past the first mistake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import PackError
from fugu.envs.checking.findings import Finding
from fugu.envs.checking.trees import name_leaf
from fugu.native.nodes import (
    ArrayNode,
    ConvertedNode,
    DictNode,
    Node,
    OneOfNode,
    ScalarNode,
    SequenceNode,
    TextNode,
    TupleNode,
)
from fugu.native.packing_reference import (
    describe,
    fit_array,
    fit_dict,
    fit_one_of,
    fit_scalar,
    fit_sequence,
    fit_text,
    fit_tuple,
)

_SLACK = 1e-6  # of a bound, relative: what rounding alone can do


def inspect_observation(node: Node, value: Any) -> Iterator[Finding]:
    """What is wrong with `value` as a value of `node`, a node compiled with its bounds."""
    try:
        yield from _inspect(node, value)
    except PackError as error:
        text = f"{name_leaf(error.path)}: given {error.given}; allowed: {error.allowed}"
        advice = error.advice or "Return what the space declares, or declare what you return."
        yield Finding("observations", "fail", error.path, text, advice)


def _inspect(node: Node, value: Any) -> Iterator[Finding]:
    match node:
        case ArrayNode():
            yield from _inspect_array(node, value)
        case ScalarNode():
            yield from _inspect_scalar(node, value)
        case TextNode():
            fit_text(node, value)
        case DictNode():
            for child, item in zip(node.children, fit_dict(node, value), strict=True):
                yield from inspect_observation(child, item)
        case TupleNode():
            for child, item in zip(node.children, fit_tuple(node, value), strict=True):
                yield from inspect_observation(child, item)
        case SequenceNode():
            for item in fit_sequence(node, value):
                yield from inspect_observation(node.child, item)
        case OneOfNode():
            index, item = fit_one_of(node, value)
            yield from inspect_observation(node.children[index], item)
        case ConvertedNode():
            yield from inspect_observation(node.child, node.convert(value, node.path))


def _inspect_array(node: ArrayNode, value: Any) -> Iterator[Finding]:
    array = fit_array(replace(node, low=None, high=None), value)
    given = np.asarray(value).dtype
    if given != node.dtype or not isinstance(value, np.ndarray | np.generic):
        kind = f"{given}" if isinstance(value, np.ndarray | np.generic) else describe(value)
        text = f"{name_leaf(node.path)}: given {kind}; declared {node.dtype}"
        advice = "Return the declared dtype, or declare the one you return: fugu casts every step."
        yield Finding("observations", "warn", node.path, text, advice)
    yield from _inspect_bounds(node, array)


def _inspect_bounds(node: ArrayNode, array: NDArray[Any]) -> Iterator[Finding]:
    if node.low is None or node.high is None or not array.size:
        return
    values = array.reshape(-1)
    with np.errstate(invalid="ignore"):  # nan lies inside here: it has a check of its own
        outside = (values < node.low) | (values > node.high)
    if not outside.any():
        return
    numbers, low, high = (part.astype(np.float64) for part in (values, node.low, node.high))
    with np.errstate(invalid="ignore"):
        excess = np.where(outside, np.maximum(low - numbers, numbers - high), 0.0)
        bound = np.where(numbers < low, low, high)
    worst = int(np.argmax(excess))
    rounding = excess[worst] <= _SLACK * max(1.0, abs(bound[worst]))
    where = [int(i) for i in np.unravel_index(worst, node.shape)] if node.shape else []
    at = f" at index {where}" if where else ""
    text = (
        f"{name_leaf(node.path)}: given {values[worst]}{at}; "
        f"declared {node.low[worst]} to {node.high[worst]}"
    )
    rounded = array.dtype.kind == "f" and rounding
    advice = "Clip it: it is past its bound by rounding." if rounded else _WIDEN
    yield Finding("bounds", "warn" if rounded else "fail", node.path, text, advice)


def _inspect_scalar(node: ScalarNode, value: Any) -> Iterator[Finding]:
    try:
        fit_scalar(node, value)
    except PackError as error:
        whole = isinstance(value, int | np.integer) or np.asarray(value).dtype.kind in "iu"
        if not whole or np.ndim(value):
            raise
        text = f"{name_leaf(node.path)}: given {error.given}; allowed: {error.allowed}"
        yield Finding("bounds", "fail", node.path, text, _WIDEN)


_WIDEN = "Clip the value, or declare the bounds that it really has."
