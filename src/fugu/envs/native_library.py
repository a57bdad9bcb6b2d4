"""Native environments as Python sees them: a library, its settings, its agents."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from fugu import native
from fugu.core.errors import FuguError, UsageError, nearest_names
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout

if native.available:
    import fugu._native as _native

LARGEST = sys.float_info.max
BOX, DISCRETE, MULTI_DISCRETE = range(3)  # kinds of leaves, as fugu_env.h has them
TYPES = tuple(map(np.dtype, ("uint8", "int8", "int16", "int32", "int64", "float32")))


@dataclass(frozen=True)
class Setting:
    """One setting of a native environment."""

    name: str
    whole: bool
    """Whether only whole numbers are allowed."""
    initial: float
    low: float
    high: float
    text: str

    def check(self, value: Any) -> float:
        """The value as a number, or an error that says what is allowed."""
        kinds = int | float | np.integer | np.floating | bool | np.bool_
        is_number = isinstance(value, kinds)
        if is_number and self.low <= value <= self.high and abs(value) <= LARGEST:
            number = float(value)
            if not self.whole or number == int(number):
                return number
        kind = "a whole number" if self.whole else "a number"
        raise UsageError(
            f"{self.name}: given {value!r}; allowed: {kind} from {self.low:g} to {self.high:g} "
            f"({self.text})."
        )


@dataclass(frozen=True)
class Key:
    """A key that a person plays with: while it is held, one number of one agent's action is set."""

    name: str
    group: int
    agent: int
    leaf: int
    index: int
    value: float


@dataclass(frozen=True)
class Cells:
    """Cells of a picture that a person points at: each is a choice, row by row, of one agent."""

    agent: int
    """Of the first group; it is the first number of its action that is chosen."""
    columns: int
    rows: int
    x: float
    y: float
    width: float
    height: float


class NativeSpec:
    """What a native environment looks like with given settings.

    Attributes:
        values: Of all settings, in order.
        groups: Its agents.
        logs: Names of what it tells of an episode, beside the return and the length.
        keys: For people to play with.
        cells: For people to point at.
        reward: What is rewarded, in words.
        size: Width and height of its picture, in its own units.
        frames: A second, for people to watch.
        waits_for_a_key: Whether a person's game stands still until a key is pressed.
        leaves: The leaves of each group's observation and action, as the library describes them.
    """

    def __init__(self, name: str, values: tuple[float, ...], spec: Mapping[str, Any]) -> None:
        self.values = values
        self.groups = tuple(_group(name, group) for group in spec["groups"])
        self.logs: tuple[str, ...] = tuple(spec["logs"])
        self.keys = tuple(Key(*key) for key in spec["keys"])
        self.cells = tuple(Cells(*cells) for cells in spec["cells"])
        self.reward: str = spec["reward"]
        self.size: tuple[float, float] = (spec["width"], spec["height"])
        self.frames: float = spec["frames"]
        self.waits_for_a_key: bool = spec["waits_for_a_key"]
        self.leaves = [(group["observation"], group["action"]) for group in spec["groups"]]


class NativeLibrary:
    """A native environment that was built into a shared library; `NativeLibrary.load` gets one."""

    def __init__(self, path: str) -> None:
        if not native.available:
            raise FuguError(f"native environments need the native extension: {native.reason}")
        if not Path(path).is_file():
            raise UsageError(
                f"env: given {path!r}; allowed: a library that exists. "
                "fugu env build my_env.h makes one."
            )
        self.path = path
        try:
            self.library = _native.Library(str(Path(path).resolve()))
        except RuntimeError as error:
            raise UsageError(
                f"env: given {path!r}, but {error}; allowed: what fugu env build makes of a "
                "header, with this version of fugu."
            ) from None

    @staticmethod
    def load(path: str) -> NativeLibrary:
        """The library at a path; each is loaded once, and again when it was built anew."""
        file = Path(path)
        return _load(path, file.stat().st_mtime_ns if file.is_file() else 0)

    @property
    def name(self) -> str:
        """The environment's."""
        return self.library.name

    @property
    def summary(self) -> str:
        """What it is, in a sentence."""
        return self.library.summary

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Its settings by name."""
        return {row[0]: Setting(*row) for row in self.library.settings}

    def values(self, given: Mapping[str, Any]) -> tuple[float, ...]:
        """Values of all settings, those given and the initial ones of the others."""
        for name in given:
            if name not in self.settings:
                near = nearest_names(name, self.settings, 1, 0.6)
                advice = f" Did you mean {near[0]!r}?" if near else ""
                raise UsageError(
                    f"{self.name}: given a setting {name!r}; allowed: "
                    f"{', '.join(self.settings)}.{advice}"
                )
        return tuple(
            setting.check(given[name]) if name in given else setting.initial
            for name, setting in self.settings.items()
        )

    def spec(self, values: tuple[float, ...]) -> NativeSpec:
        """What it looks like with these settings."""
        try:
            return NativeSpec(self.name, values, self.library.describe(list(values)))
        except RuntimeError as error:
            raise UsageError(f"{self.name}: {error}") from None


@cache
def _load(path: str, _built: int) -> NativeLibrary:
    return NativeLibrary(path)


def _group(env: str, group: Mapping[str, Any]) -> AgentGroup:
    name, count = group["name"], group["agents"]
    agents = (name,) if count == 1 else tuple(f"{name}_{i}" for i in range(count))
    layouts = []
    for part in ("observation", "action"):
        options = {"strict": True, "plain": True} if part == "action" else {}
        layout = Layout.of(_space(group[part]), **options)
        _check_offsets(f"{env}, {part} of {name}", layout, group[part])
        layouts.append(layout)
    return AgentGroup(name, agents, layouts[0], layouts[1], group["costs"])


def _space(leaves: list[dict[str, Any]]) -> Space[Any]:
    if len(leaves) == 1 and not leaves[0]["name"]:
        return _leaf(leaves[0])
    return spaces.Dict(OrderedDict((leaf["name"], _leaf(leaf)) for leaf in leaves))


def _leaf(leaf: dict[str, Any]) -> Space[Any]:
    match leaf["kind"]:
        case 1:
            return spaces.Discrete(leaf["choices"])
        case 2:
            return spaces.MultiDiscrete(np.full(leaf["shape"], leaf["choices"]))
        case _:
            dtype: Any = TYPES[leaf["type"]]
            return spaces.Box(leaf["low"], leaf["high"], leaf["shape"], dtype.type)


def _check_offsets(what: str, layout: Layout, leaves: list[dict[str, Any]]) -> None:
    for found, leaf in zip(layout.leaves, leaves, strict=True):
        if found.offset != leaf["offset"] or found.dtype != TYPES[leaf["type"]]:
            raise UsageError(
                f"{what}: given leaf {leaf['name']!r} of {TYPES[leaf['type']]} at byte "
                f"{leaf['offset']}; allowed: {found.dtype} at {found.offset}. Declare leaves in "
                "the order of the struct's fields, with offsetof."
            )
