"""EpisodeStats: what an episode's infos come to, told once, when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from fugu.core.errors import EnvError, UsageError
from fugu.envs.contract import Info

Reduction = Literal["mean", "sum", "last", "min", "max"]

# Told by other means, or of no use once the episode is over.
_SKIPPED = ("action_mask", "final_info", "final_obs", "final_observation")
_REDUCERS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": np.add,
    "sum": np.add,
    "last": lambda _, new: new,
    "min": np.minimum,
    "max": np.maximum,
}


class EpisodeStats:
    """Gathers one agent's rewards and infos and emits one info at the end of each episode.

    The info holds `episode_return`, `episode_length` and every entry seen on the way, nested ones
    under `outer/inner`: numbers and arrays of one shape by their `reduce` (the mean over the steps
    that had them, if none is named), everything else as it was last.

    >>> stats = EpisodeStats(reduce={"score": "last"})
    >>> stats.add(1.0, {"score": 1, "speed": 2.0, "where": "cave"})
    >>> stats.add(0.5, {"score": 7, "speed": 4.0})
    >>> stats.emit()
    {'episode_return': 1.5, 'episode_length': 2, 'score': 7, 'speed': 3.0, 'where': 'cave'}
    """

    def __init__(self, reduce: Mapping[str, Reduction] | None = None) -> None:
        self._reduce = dict(reduce or {})
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
            elif key in self._counts and np.shape(self._values[key]) == np.shape(value):
                reducer = _REDUCERS[self._reduce.get(key, "mean")]
                self._values[key] = reducer(self._values[key], value)
                self._counts[key] += 1
            else:  # new, or of another shape than before
                self._values[key] = np.array(value) if np.ndim(value) else value
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


def _flatten(info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in info.items():
        if key in _SKIPPED:
            continue
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind in "iufb")
    return isinstance(value, int | float | np.number | np.bool_)
