"""Values: every moment of a run beside what was declared. One function for each check."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.envs.checking.agents import AgentSpaces, Spaces
from fugu.envs.checking.findings import Finding, Ledger
from fugu.envs.checking.moments import Moment
from fugu.envs.checking.observations import inspect_observation
from fugu.envs.checking.trees import arrays_of, leaves_of, name_leaf
from fugu.native.packing_reference import describe

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_KEPT_CALLS = 4  # an environment may go around more than one buffer


def inspect_declared(moment: Moment, spaces: AgentSpaces) -> Iterator[Finding]:
    """The observation, leaf by leaf, against its space."""
    if spaces.bounded_layout is not None:
        yield from inspect_observation(spaces.bounded_layout.root, moment.observation)


def inspect_finite(moment: Moment, _spaces: AgentSpaces) -> Iterator[Finding]:
    """Numbers that are none, and infinite ones, in the observation."""
    for path, leaf in leaves_of(moment.observation):
        array = np.asarray(leaf) if isinstance(leaf, np.ndarray | float | np.floating) else None
        if array is None or array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        name = name_leaf(path)
        if np.isnan(array).any():
            advice = "Find where it comes from: one not-a-number ruins the whole policy."
            yield Finding("finite", "fail", path, f"{name}: nan{_index(np.isnan(array))}", advice)
        if np.isinf(array).any():
            advice = (
                "Clip it; where the environment means it, pass check_finite=False to fugu.make."
            )
            value = array[np.isinf(array)].reshape(-1)[0]
            text = f"{name}: {value}{_index(np.isinf(array))}"
            yield Finding("finite", "fail", path, text, advice)


def inspect_reward(moment: Moment, _spaces: AgentSpaces) -> Iterator[Finding]:
    """A reward is one finite real number."""
    reward = moment.reward
    if moment.first:
        return
    given = f"given {describe(reward)}; allowed: one real number"
    advice = "Return float(reward)."
    try:
        number = float("nan") if isinstance(reward, str | bytes) else float(reward)
    except (TypeError, ValueError, OverflowError):
        yield Finding("rewards", "fail", "kind", given, advice)
        return
    if isinstance(reward, str | bytes) or np.ndim(reward) > 0:
        yield Finding("rewards", "fail", "kind", given, advice)
    elif not isinstance(reward, int | float | np.number | np.bool_):
        yield Finding("rewards", "warn", "kind", given, advice)
    elif math.isnan(number) or abs(number) > _FLOAT32_MAX:
        text = f"given {number}; allowed: a finite number that float32 can hold"
        yield Finding("rewards", "fail", "value", text, "Clip it, or find where it comes from.")


def inspect_flags(moment: Moment, _spaces: AgentSpaces) -> Iterator[Finding]:
    """`terminated` and `truncated` are bools."""
    if moment.first:
        return
    for name, flag in (("terminated", moment.terminated), ("truncated", moment.truncated)):
        if isinstance(flag, bool | np.bool_):
            continue
        number = isinstance(flag, int | np.integer) and flag in (0, 1)
        text = f"{name}: given {describe(flag)}; allowed: True or False"
        advice = "Return bool(terminated) and bool(truncated)."
        yield Finding("flags", "warn" if number else "fail", name, text, advice)


def inspect_info(moment: Moment, _spaces: AgentSpaces) -> Iterator[Finding]:
    """An info is a dict."""
    if not isinstance(moment.info, dict):
        status: Any = "warn" if isinstance(moment.info, Mapping) else "fail"
        text = f"given {describe(moment.info)}; allowed: a dict"
        yield Finding("infos", status, "info", text, "Return {} where there is nothing to say.")


INSPECTORS: tuple[Callable[[Moment, AgentSpaces], Iterator[Finding]], ...] = (
    inspect_declared,
    inspect_finite,
    inspect_reward,
    inspect_flags,
    inspect_info,
)


class Inspector:
    """Inspects every moment of a run as it comes."""

    def __init__(self, spaces: Spaces, ledger: Ledger) -> None:
        self.ledger = ledger
        self._spaces = spaces
        self._several = len(spaces) > 1
        self._kept: deque[list[tuple[str, str, NDArray[Any], bytes]]] = deque(maxlen=_KEPT_CALLS)

    def see(self, moments: list[Moment]) -> None:
        """Inspect what one call returned."""
        for moment in moments:
            for inspect in INSPECTORS:
                for finding in inspect(moment, self._spaces[moment.agent]):
                    self.ledger.add(finding, self._place(moment))
        self._compare_kept(moments)

    def _compare_kept(self, moments: list[Moment]) -> None:
        """Whether arrays that were returned earlier are still as they were."""
        changed = {
            path: f"{name_leaf(path)}: the array returned at {place} changed later"
            for kept in self._kept
            for path, place, array, content in kept
            if array.tobytes() != content
        }
        for path, text in changed.items():
            advice = "Return copies. fugu copies at once: this harms who keeps observations."
            self.ledger.add(Finding("kept observations", "warn", path, text, advice))
        if changed:
            self._kept.clear()
        self._kept.append(
            [
                (path, self._place(moment), array, array.tobytes())
                for moment in moments
                for path, array in arrays_of(moment.observation)
            ]
        )

    def _place(self, moment: Moment) -> str:
        return f"{moment.place}, agent {moment.agent!r}" if self._several else moment.place


def _index(where: NDArray[np.bool_]) -> str:
    if not where.ndim:
        return ""
    first = np.unravel_index(int(np.argmax(where)), where.shape)
    return f" at index {[int(i) for i in first]}"
