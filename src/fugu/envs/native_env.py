"""Native environments: their libraries, settings and agents, and `NativeEnv`."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import ActionError, FuguError, PackError, UsageError, nearest_names
from fugu.core.seeding import fresh_seed
from fugu.envs.contract import AgentGroup, Buffers, Env, Info
from fugu.spaces import Layout

if TYPE_CHECKING:
    from fugu._native import Pool
if native.available:
    import fugu._native as _native

EPISODE = ("episodes", "episode_return", "episode_length")
LARGEST = 16384  # pixels of a picture, each way
BOX, DISCRETE, MULTI_DISCRETE = range(3)  # kinds of leaves, as fugu_env.h has them
TYPES = tuple(map(np.dtype, ("uint8", "int8", "int16", "int32", "int64", "float32")))


@dataclass(frozen=True)
class Setting:
    """One setting of a native environment."""

    name: str
    whole: bool  # only whole numbers are allowed
    initial: float
    low: float
    high: float
    text: str

    def check(self, value: Any) -> float:
        """Return the value as a number; raise an error if it is not allowed."""
        is_number = isinstance(value, int | float | np.integer | np.floating | np.bool_)
        if is_number and self.low <= value <= self.high and abs(value) <= sys.float_info.max:
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
    """A key to play with: while it is held, one number of one agent's action is set."""

    name: str
    group: int
    agent: int
    leaf: int
    index: int
    value: float


@dataclass(frozen=True)
class Cells:
    """Cells of a picture to point at: row by row, each is a value of the agent's first number."""

    agent: int  # of the first group
    columns: int
    rows: int
    x: float
    y: float
    width: float
    height: float


class NativeSpec:
    """The description of a native environment with given settings.

    Attributes:
        values: Values of all settings, in order.
        groups: Its agents.
        logs: Entries of an episode's info beside the return and the length.
        keys: Keys for people who play.
        cells: Cells for people who point at them.
        reward: A sentence about the reward.
        size: Width and height of its picture, in its own units.
        frames: Frames per second for people who watch.
        waits_for_a_key: Whether a game pauses until a key is pressed.
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
    """A native environment in a shared library; `NativeLibrary.load` opens one."""

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
        """Return the library at a path; it is loaded once, and again when it was rebuilt."""
        file = Path(path)
        return _load(path, file.stat().st_mtime_ns if file.is_file() else 0)

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.library.name

    @property
    def summary(self) -> str:
        """A sentence about the environment."""
        return self.library.summary

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Its settings by name."""
        return {row[0]: Setting(*row) for row in self.library.settings}

    def values(self, given: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the values of all settings: those given, and the defaults of the others."""
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
        """Return its description with these settings."""
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


def native_library(factory: Callable[[], Any]) -> str | None:
    """Return the path of the library whose environments a factory makes; None if not native."""
    if isinstance(factory, partial) and factory.func is NativeEnv:
        return str(factory.args[0])
    return None


class NativeEnv(Env):
    """One copy of a native environment.

    Args:
        path: The library.
        settings: Its settings; `NativeEnv(path).library.settings` lists them.

    Attributes:
        render_size: Height of pictures in pixels, or their width and height.
    """

    metadata: Mapping[str, Any] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    render_size: int | tuple[int, int] = 400

    def __init__(self, path: str, /, **settings: Any) -> None:
        self.library = NativeLibrary.load(path)
        self.spec: NativeSpec = self.library.spec(self.library.values(settings))
        self.groups = self.spec.groups
        self._pool: Pool | None = None
        self._index = 0
        self._begun = False

    @classmethod
    def within(cls, path: str, spec: NativeSpec, pool: Pool, index: int) -> NativeEnv:
        """Return a copy that is part of another pool, to render it."""
        env = cls.__new__(cls)
        env.library, env.spec, env.groups = NativeLibrary.load(path), spec, spec.groups
        env._pool, env._index, env._begun = pool, index, True
        return env

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on, one for each group."""
        for group, rows in zip(self.groups, buffers, strict=True):
            rows.check(group)
        self.buffers = buffers
        state = self.state() if self._begun else None
        self._pool, self._episodes = start_pool(self.library, self.spec, buffers, 1)
        if state is not None:
            self.set_state(state)

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Reset the environment; without a seed, the next episode begins."""
        if options:
            raise UsageError(
                f"reset: given options {dict(options)!r}; allowed: none. Settings of a native "
                "environment are given when it is made."
            )
        if seed is None and not self._begun:
            seed = fresh_seed()
        self._bound.reset(self._index, seed)
        for rows in self.buffers:
            rows.valid[:] = True
        self._begun, self.infos = True, ()

    def step(self) -> None:
        """Take the actions and write everything that follows."""
        if not self._begun:
            raise UsageError("step: given before reset; call reset first.")
        for i, rows in enumerate(self.buffers):
            bad = self._bound.bad_action(i, as_bytes(rows.actions))
            if bad >= 0:
                raise action_error(self.groups[i].action_layout, rows.actions[bad])
        self._bound.step_now()
        count = self._episodes[0, 0]
        self.infos = (episode_info(self.spec, self._episodes[0]),) if count else ()

    def state(self) -> bytes:
        """Return its state."""
        out = np.zeros((1, self._bound.state_bytes), np.uint8)
        self._bound.save(np.array([self._index]), out)
        return out.tobytes()

    def set_state(self, state: bytes) -> None:
        """Restore a `state()` and write its observations and masks."""
        rows = np.frombuffer(state, np.uint8).reshape(1, -1)
        if rows.shape[1] != self._bound.state_bytes:
            raise UsageError(
                f"set_state: given {rows.shape[1]} bytes; allowed: {self._bound.state_bytes}, "
                f"those of a state of {self.library.name} with as many agents."
            )
        try:
            self._bound.load(np.array([self._index]), rows.copy())
        except ValueError as error:
            raise UsageError(f"set_state: given {error}; allowed: states of this one.") from None
        self._begun = True

    def display_list(self) -> tuple[int, list[Any]]:
        """Return the background's color, and shapes `(kind, color, x, y, size, text)`."""
        return self._bound.draw(self._index)

    def render(self, size: int | tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """Return a picture, `[height, width, 3]`.

        Args:
            size: The height in pixels, or the width and the height, in which the picture is
                centered; `render_size` if not given.
        """
        width, height = self._picture_size(self.render_size if size is None else size)
        out = np.empty((height, width, 3), np.uint8)
        self._bound.picture(self._index, out)
        return out

    def close(self) -> None:
        """Close it."""
        self._pool = None

    def _picture_size(self, size: int | tuple[int, int]) -> tuple[int, int]:
        across, down = self.spec.size
        if not (across > 0 and down > 0):
            raise UsageError(
                f"render: given {self.library.name!r}, which draws nothing; allowed: an "
                "environment that says the size of its picture with fugu_picture."
            )
        width, height = size if isinstance(size, tuple) else (0, size)
        if not isinstance(size, tuple):
            width = max(1, round(height * across / down))
        if not (1 <= width <= LARGEST and 1 <= height <= LARGEST):
            raise UsageError(
                f"render: given a size of {size}, so {width} x {height} pixels; allowed: the "
                f"height, or the width and the height, from 1 to {LARGEST}."
            )
        return width, height

    @property
    def _bound(self) -> Pool:
        if self._pool is None:
            raise UsageError("given an environment that is not bound; call bind first.")
        return self._pool


def start_pool(
    library: NativeLibrary,
    spec: NativeSpec,
    rows: tuple[Buffers, ...],
    num_envs: int,
    *,
    threads: int = 0,
    helps: bool = True,
    chunk: int = 0,
    stall: float = 0.0,
) -> tuple[Pool, NDArray[np.float32]]:
    """Return a pool over the rows of all copies, and the array of ended episodes.

    That array is `[copies, 3 + logs]`: how many episodes (of agents) ended in the last step, and
    the sums of their returns, their lengths and the log fields.
    """
    from fugu._native import Pool

    pool = Pool(library.library, list(spec.values), num_envs, threads, helps, chunk, stall)
    for i, part in enumerate(rows):
        pool.bind(
            i,
            as_bytes(part.observations),
            as_bytes(part.final),
            as_bytes(part.actions),
            part.action_masks,
            part.rewards,
            part.costs,
            part.terminations,
            part.truncations,
            part.live,
        )
        part.valid[:] = True
    episodes = np.zeros((num_envs, len(EPISODE) + len(spec.logs)), np.float32)
    pool.start(episodes)
    return pool, episodes


def as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return rows as their bytes, `[rows, bytes]`."""
    return rows.view(np.uint8)


def action_error(layout: Layout, row: NDArray[Any]) -> ActionError:
    """Return the error of a row that `Pool.bad_action` found to be no value of its space."""
    try:
        layout.unpack(row)
    except PackError as error:
        return ActionError(error.path, error.given, error.allowed, error.advice)
    return ActionError("", repr(row), repr(layout.space))


def episode_info(spec: NativeSpec, episode: NDArray[np.float32]) -> Info:
    """Return the info of episodes that ended in one step of one copy, averaged over its agents."""
    count, *sums = (float(number) for number in episode)
    info: Info = dict(zip((*EPISODE[1:], *spec.logs), (s / count for s in sums), strict=True))
    if count == 1:
        info["episode_length"] = int(info["episode_length"])
    else:
        info["episodes"] = int(count)
    return info
