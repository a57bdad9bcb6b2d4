"""NativeEnv: any native environment behind the contract of every other one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import ActionError, PackError, UsageError
from fugu.core.seeding import fresh_seed
from fugu.envs.contract import Buffers, Env, Info
from fugu.envs.native_library import NativeLibrary, NativeSpec

if TYPE_CHECKING:
    from fugu._native import Pool

EPISODE = ("episodes", "episode_return", "episode_length")
LARGEST = 16384  # pixels of a picture, each way


def native_library(factory: Callable[[], Any]) -> str | None:
    """Return the path of the library whose environments a factory makes; None if not native."""
    if isinstance(factory, partial) and factory.func is NativeEnv:
        return str(factory.args[0])
    return None


class NativeEnv(Env):
    """One copy of a native environment.

    Args:
        path: Of its library.
        settings: Its settings; `NativeEnv(path).library.settings` lists them.

    Attributes:
        render_size: Of pictures: the height in pixels, or the width and the height.
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
        """A copy that stands in somebody else's pool, to be looked at."""
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
        """Begin anew; without a seed, the next episode begins."""
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
            check_actions(self._bound, i, self.groups[i].action_layout, rows.actions)
        self._bound.step_now()
        count = self._episodes[0, 0]
        self.infos = (episode_info(self.spec, self._episodes[0]),) if count else ()

    def state(self) -> bytes:
        """Its state as bytes."""
        out = np.zeros((1, self._bound.state_bytes), np.uint8)
        self._bound.save(np.array([self._index]), out)
        return out.tobytes()

    def set_state(self, state: bytes) -> None:
        """Go back to a `state()`; observations and masks are written anew."""
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
        """What it draws: the background's colour, and shapes `(kind, colour, x, y, size, text)`."""
        return self._bound.draw(self._index)

    def render(self, size: int | tuple[int, int] | None = None) -> NDArray[np.uint8]:
        """A picture of now, `[height, width, 3]`.

        Args:
            size: The height in pixels, or the width and the height, where the picture is centred;
                `render_size` if not given.
        """
        width, height = self._picture_size(self.render_size if size is None else size)
        out = np.empty((height, width, 3), np.uint8)
        self._bound.picture(self._index, out)
        return out

    def close(self) -> None:
        """Let go of it."""
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
    """A pool over the rows of all copies, and the array where it tells of episodes that ended.

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
    """Rows as their bytes, `[rows, bytes]`."""
    return rows.view(np.uint8)


def check_actions(pool: Pool, group: int, layout: Any, actions: NDArray[Any]) -> None:
    """Raise an `ActionError` if a row is no value of the action space."""
    row = pool.bad_action(group, as_bytes(actions))
    if row >= 0:
        try:
            layout.unpack(actions[row])
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None
        raise ActionError("", repr(actions[row]), repr(layout.space))


def episode_info(spec: NativeSpec, episode: NDArray[np.float32]) -> Info:
    """The info of episodes that ended in one step of one copy, averaged over its agents."""
    count, *sums = (float(number) for number in episode)
    info: Info = dict(zip((*EPISODE[1:], *spec.logs), (s / count for s in sums), strict=True))
    if count == 1:
        info["episode_length"] = int(info["episode_length"])
    else:
        info["episodes"] = int(count)
    return info
