"""EpisodeStats: one info for each episode, summed up from all infos of its steps."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from fugu.core.errors import EnvError, UsageError
from fugu.envs.contract import Info

Reduction = Literal["mean", "sum", "last", "min", "max"]

# Reported elsewhere, or useless once the episode is over.
_SKIPPED = ("action_mask", "final_info", "final_obs", "final_observation")
# Gymnasium's success flag says whether the goal is reached now, so an episode's is its last one.
_DEFAULT_REDUCTIONS: dict[str, Reduction] = {"is_success": "last"}
_REDUCERS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": operator.add,
    "sum": operator.add,
    "last": lambda _, new: new,
    "min": np.minimum,
    "max": np.maximum,
}
# Scalar types and what turns them into Python numbers, whose sums cannot overflow.
_TO_SUM: dict[type, Callable[[Any], int | float]] = {
    **dict.fromkeys((bool, int, np.bool_), int),
    **{np.dtype(f"{kind}{size}").type: int for kind in "iu" for size in (1, 2, 4, 8)},
    **dict.fromkeys((float, np.float16, np.float32, np.float64), float),
}


class EpisodeStats:
    """Gathers one agent's rewards and infos and emits one info at the end of each episode.

    The info holds `episode_return`, `episode_length` and every entry seen on the way, nested ones
    under `outer/inner`: numbers, booleans and arrays of one shape by their `reduce`, everything
    else as it was last. An entry without a reduction is averaged over the steps that had it, except
    `is_success`, of which the last value counts. Means are float64, and sums are wide enough for
    any number of steps; "last", "min" and "max" keep the type of the entry.

    >>> stats = EpisodeStats(reduce={"score": "last"})
    >>> stats.add(1.0, {"score": 1, "speed": 2.0, "where": "cave"})
    >>> stats.add(0.5, {"score": 7, "speed": 4.0})
    >>> stats.emit()
    {'episode_return': 1.5, 'episode_length': 2, 'score': 7, 'speed': 3.0, 'where': 'cave'}
    """

    def __init__(self, reduce: Mapping[str, Reduction] | None = None) -> None:
        self._reduce = {**_DEFAULT_REDUCTIONS, **(reduce or {})}
        for key, name in self._reduce.items():
            if name not in _REDUCERS:
                raise UsageError(
                    f"reduce[{key!r}]: given {name!r}; allowed: {', '.join(_REDUCERS)}."
                )
        self.clear()

    @property
    def length(self) -> int:
        """Steps of the episode so far."""
        return self._length

    def clear(self) -> None:
        """Forget the episode so far."""
        self._return, self._length = 0.0, 0
        self._entries: dict[str, _Entry] = {}

    def add(self, reward: Any, info: Mapping[str, Any], steps: int = 1) -> None:
        """Add one step's reward and info; `steps` is 0 for a reward without an action."""
        self._return += float(reward)
        self._length += steps
        if info:
            self.note(info)

    def add_many(self, rewards: float, steps: int) -> None:
        """Add the sum of the rewards of several steps without infos."""
        self._return += rewards
        self._length += steps

    def note(self, info: Mapping[str, Any]) -> None:
        """Add an info without a step, such as that of a reset."""
        if type(info) is not dict and not isinstance(info, Mapping):
            raise EnvError(f"info: given {info!r}; allowed: a dict.")
        self._note_all(info, "")

    def _note_all(self, info: Mapping[Any, Any], prefix: str) -> None:
        entries = self._entries
        for key, value in info.items():
            entry = entries.get(f"{prefix}{key}" if prefix else key)
            if entry is not None and entry.is_sum:  # most entries of most steps
                to_sum = _TO_SUM.get(type(value))
                if to_sum is not None:
                    entry.value += to_sum(value)
                    entry.count += 1
                    continue
            if key in _SKIPPED:
                continue
            if isinstance(value, Mapping):
                self._note_all(value, f"{prefix}{key}/")
            else:
                self._note_entry(f"{prefix}{key}", value)

    def _note_entry(self, key: str, value: Any) -> None:
        if not _is_numeric(value):
            self._entries[key] = _Entry(value)
            return
        reduction = self._reduce.get(key, "mean")
        adds = reduction in ("mean", "sum")
        value = _widened(value) if adds else _copied(value)
        entry = self._entries.get(key)
        if entry is not None and entry.count and np.shape(entry.value) == np.shape(value):
            entry.value = _REDUCERS[reduction](entry.value, value)
            entry.count += 1
        else:  # new, or of another shape than before
            self._entries[key] = _Entry(value, 1, is_sum=adds and np.ndim(value) == 0)

    def emit(self) -> Info:
        """Return the episode's info, and start the next episode."""
        info: Info = {"episode_return": self._return, "episode_length": self._length}
        for key, entry in self._entries.items():
            value = entry.value
            if entry.count and self._reduce.get(key, "mean") == "mean":
                value = value / entry.count
            info[key] = value.item() if isinstance(value, np.generic) else value
        self.clear()
        return info

    def state(self) -> Info:
        """Return the episode so far, for `set_state`."""
        entries = self._entries.items()
        return {
            "_return": self._return,
            "_length": self._length,
            "_values": {key: entry.value for key, entry in entries},
            "_counts": {key: entry.count for key, entry in entries if entry.count},
        }

    def set_state(self, state: Info) -> None:
        """Restore a `state()`."""
        self.clear()
        self._return, self._length = state["_return"], state["_length"]
        counts = state["_counts"]
        for key, value in state["_values"].items():
            count = counts.get(key, 0)
            adds = count > 0 and self._reduce.get(key, "mean") in ("mean", "sum")
            value = _widened(value) if adds else value
            self._entries[key] = _Entry(value, count, is_sum=adds and np.ndim(value) == 0)


class _Entry:
    """An entry of the infos: its reduction so far, or its last value (`count` is then 0).

    `is_sum` marks the sum of scalars, kept as a Python number.
    """

    __slots__ = ("count", "is_sum", "value")

    def __init__(self, value: Any, count: int = 0, *, is_sum: bool = False) -> None:
        self.value, self.count, self.is_sum = value, count, is_sum


def scalars(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers and booleans of an episode's info as floats, without arrays and text.

    >>> scalars({"is_success": True, "score": 3, "where": "cave"})
    {'is_success': 1.0, 'score': 3.0}
    """
    return {
        name: float(value)
        for name, value in info.items()
        if _is_numeric(value) and not isinstance(value, np.ndarray)
    }


def _copied(value: Any) -> Any:
    """Return a copy that the environment cannot change; a 0-d array becomes a scalar."""
    return np.array(value)[()] if isinstance(value, np.ndarray) else value


def _widened(value: Any) -> Any:
    """Return a number or an array in a type wide enough for sums of it."""
    if isinstance(value, np.ndarray):
        wide = {"f": np.float64, "u": np.uint64}.get(value.dtype.kind, np.int64)
        value = value.astype(wide)[()]
    if isinstance(value, np.ndarray):
        return value
    return float(value) if isinstance(value, float | np.floating) else int(value)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind in "iufb")
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)
