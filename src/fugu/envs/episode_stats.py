"""EpisodeStats: what an episode's infos come to, told once, when it ends."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from fugu.core.errors import EnvError, UsageError
from fugu.envs.contract import Info

Reduction = Literal["mean", "sum", "last", "min", "max"]

# Told by other means, or of no use once the episode is over.
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
        self._values: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, reward: Any, info: Mapping[str, Any], steps: int = 1) -> None:
        """One step's reward and info; `steps` is 0 for a reward that no action earned."""
        self._return += float(reward)
        self._length += steps
        if info:
            self.note(info)

    def add_many(self, rewards: float, steps: int) -> None:
        """The sum of the rewards of several steps that had no info."""
        self._return += rewards
        self._length += steps

    def note(self, info: Mapping[str, Any]) -> None:
        """An info that no step brought, as that of a reset."""
        if not isinstance(info, Mapping):
            raise EnvError(f"info: given {info!r}; allowed: a dict.")
        for key, value in _flatten(info):
            if not _is_numeric(value):
                self._values[key] = value
                self._counts.pop(key, None)
                continue
            reduction = self._reduce.get(key, "mean")
            value = _copied(value)
            if reduction in ("mean", "sum"):
                value = _widened(value)
            if key in self._counts and np.shape(self._values[key]) == np.shape(value):
                self._values[key] = _REDUCERS[reduction](self._values[key], value)
                self._counts[key] += 1
            else:  # new, or of another shape than before
                self._values[key] = value
                self._counts[key] = 1

    def emit(self) -> Info:
        """The episode's info; the next episode begins empty."""
        info: Info = {"episode_return": self._return, "episode_length": self._length}
        for key, value in self._values.items():
            if key in self._counts and self._reduce.get(key, "mean") == "mean":
                value = value / self._counts[key]
            info[key] = value.item() if isinstance(value, np.generic) else value
        self.clear()
        return info

    def state(self) -> Info:
        """The episode so far, for `set_state`."""
        names = ("_return", "_length", "_values", "_counts")
        return {name: getattr(self, name) for name in names}

    def set_state(self, state: Info) -> None:
        """Go back to a `state()`."""
        self.__dict__.update(state)


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


def _flatten(info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in info.items():
        if key in _SKIPPED:
            continue
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _copied(value: Any) -> Any:
    """A copy that the environment does not write into; an array without dimensions as a scalar."""
    return np.array(value)[()] if isinstance(value, np.ndarray) else value


def _widened(value: Any) -> Any:
    """A number or an array in a type that holds sums of it; booleans add up as 0 and 1."""
    if isinstance(value, np.ndarray):
        wide = {"f": np.float64, "u": np.uint64}.get(value.dtype.kind, np.int64)
        return value.astype(wide)
    return float(value) if isinstance(value, float | np.floating) else int(value)


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind in "iufb")
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)
