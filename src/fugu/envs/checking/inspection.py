"""Inspection: the checks of single transitions, each a small function."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import PackError
from fugu.envs.checking.recording import Layouts, Transition, fingerprint, leaves_of, name_leaf
from fugu.envs.checking.report import Finding, Findings, Status
from fugu.native.nodes import ArrayNode, Node, ScalarNode
from fugu.native.packing import ReferencePacker, describe, fit_array
from fugu.spaces import Layout

_ROUNDING = 1e-6  # relative to a bound
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_KEPT_TURNS = 5  # an environment may return more than one buffer in turns
_WIDEN = "Clip the value, or declare the bounds that it really has."


class Inspector:
    """Checks the transitions of a run as they come."""

    def __init__(self, layouts: Layouts, findings: Findings) -> None:
        self._findings, self._several = findings, len(layouts) > 1
        self._observations = {
            agent: None if layout is None else ObservationCheck(layout)
            for agent, (layout, _) in layouts.items()
        }
        self._recent: deque[list[Transition]] = deque(maxlen=_KEPT_TURNS)

    def inspect(self, transition: Transition) -> int | None:
        """Check a transition; return the hash of its observation as a row, if it fits."""
        found = [finding for check in CHECKS for finding in check(transition)]
        observations, row = self._observations[transition.agent], None
        if observations is not None:
            mistakes, row = observations.check(transition.observation)
            found += mistakes
        agent = f", agent {transition.agent!r}" if self._several else ""
        for finding in found:
            finding.place = transition.place + agent
            self._findings.add_finding(finding)
        return row

    def check_kept(self, given: list[Transition]) -> None:
        """Check that the observations of the last turns are still what they were when given."""
        changed = {
            path: old.place
            for old in chain.from_iterable(self._recent)
            for path, value in fingerprint(old.observation).items()
            if value != old.fingerprint.get(name_leaf(path))
        }
        for path, place in changed.items():
            text = f"{name_leaf(path)}: expected it to stay as it was returned; it changed later"
            advice = "Return copies: fugu copies at once, but others may keep observations."
            self._findings.add("kept observations", "warn", text, advice, path, place)
        if changed:
            self._recent.clear()
        self._recent.append(given)


def check_finite(transition: Transition) -> Iterator[Finding]:
    """Find NaN and infinite numbers in an observation."""
    for path, leaf in leaves_of(transition.observation):
        array = np.asarray(leaf if isinstance(leaf, np.ndarray | float | np.floating) else 0)
        if array.dtype.kind != "f":
            continue
        nan = "Find where it comes from: one NaN ruins the whole policy."
        infinite = "Clip it; if it is intended, pass check_finite=False to fugu.make."
        for bad, advice in ((np.isnan(array), nan), (np.isinf(array), infinite)):
            if bad.any():
                got = f"{array[bad][0]}{_index(bad)}"
                text = f"{name_leaf(path)}: expected finite numbers; got {got}"
                yield Finding("finite", "fail", text, advice, path)


def check_reward(transition: Transition) -> Iterator[Finding]:
    """Find a reward that is not one finite real number."""
    reward, got = transition.reward, describe(transition.reward)
    if transition.first:
        return
    if not isinstance(reward, int | float | np.integer | np.floating | np.bool_):
        converts = hasattr(reward, "__float__") and getattr(reward, "ndim", 0) == 0
        text, advice = f"expected one real number; got {got}", "Return float(reward)."
        yield Finding("rewards", "warn" if converts else "fail", text, advice)
    elif not abs(reward if isinstance(reward, int) else float(reward)) <= _FLOAT32_MAX:
        text = f"expected a finite number that float32 can hold; got {got}"
        yield Finding("rewards", "fail", text, "Clip it, or find where it comes from.")


def check_flags(transition: Transition) -> Iterator[Finding]:
    """Find `terminated` and `truncated` that are not bools."""
    flags = {"terminated": transition.terminated, "truncated": transition.truncated}
    for name, flag in flags.items():
        if not transition.first and not isinstance(flag, bool | np.bool_):
            number = isinstance(flag, int | np.integer) and flag in (0, 1)
            text = f"{name}: expected True or False; got {describe(flag)}"
            advice = "Return bool(terminated) and bool(truncated)."
            yield Finding("flags", "warn" if number else "fail", text, advice, name)


def check_info(transition: Transition) -> Iterator[Finding]:
    """Find an info that is not a dict."""
    if not isinstance(transition.info, dict):
        mapping = isinstance(transition.info, Mapping)
        text = f"expected a dict; got {describe(transition.info)}"
        yield Finding("infos", "warn" if mapping else "fail", text, "Return {} if there is none.")


CHECKS = (check_finite, check_reward, check_flags, check_info)


class ObservationCheck(ReferencePacker):
    """Packs observations, leaf by leaf and past the first mistake, and notes what does not fit."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout.root, layout.dtype, layout.size)
        self._row, self._found = layout.zeros(), list[Finding]()

    def check(self, observation: Any) -> tuple[list[Finding], int | None]:
        """Return findings and the hash of the flat row, None if the observation does not fit."""
        self._row[...], self._found = 0, []
        self.pack_node(self._root, observation, self._row, 0)
        fits = all(x.check == "bounds" or x.status == "warn" for x in self._found)
        return self._found, hash(self._row.tobytes()) if fits else None

    def pack_node(self, node: Node, value: Any, row: NDArray[Any], slot: int) -> None:
        """Pack a node and those below it; note each one whose value does not fit."""
        try:
            if isinstance(node, ArrayNode):
                super().pack_node(replace(node, low=None, high=None), value, row, slot)
                self._check_array(node, value)
            else:
                super().pack_node(node, value, row, slot)
        except PackError as error:
            check, advice = "observations", error.advice or "Return what the space declares."
            if isinstance(node, ScalarNode) and error.given.lstrip("-").isdecimal():
                check, advice = "bounds", _WIDEN  # a whole number, out of its range
            text = f"{name_leaf(error.path)}: expected {error.allowed}; got {error.given}"
            self._found.append(Finding(check, "fail", text, advice, error.path))

    def _check_array(self, node: ArrayNode, value: Any) -> None:
        values = fit_array(replace(node, low=None, high=None), value)
        name, is_array = name_leaf(node.path), isinstance(value, np.ndarray | np.generic)
        if not is_array or value.dtype != node.dtype:
            got = value.dtype if is_array else describe(value)
            text = f"{name}: expected {node.dtype}; got {got}"
            advice = "Return the declared dtype, or declare this one: fugu converts it each step."
            self._found.append(Finding("observations", "warn", text, advice, node.path))
        if node.low is None or node.high is None:
            return
        low, high = node.low.reshape(node.shape), node.high.reshape(node.shape)
        shown = (values < low) | (values > high)  # NaN counts as inside: check_finite reports it
        if not shown.any():
            return
        status: Status = "fail"
        advice = _WIDEN
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                below, above = (_ROUNDING * np.maximum(1, np.abs(x)) for x in (low, high))
                far = (values < low - below) | (values > high + above)
            if far.any():
                shown = far
            else:
                status, advice = "warn", "Clip it: rounding took it past its bound."
        bounds, got = f"{low[shown][0]} to {high[shown][0]}", f"{values[shown][0]}{_index(shown)}"
        text = f"{name}: expected {bounds}; got {got}"
        self._found.append(Finding("bounds", status, text, advice, node.path))


def _index(where: NDArray[np.bool_]) -> str:
    """Return the index of the first True, in words; empty for a single number."""
    return f" at index {np.argwhere(where)[0].tolist()}" if where.ndim else ""
