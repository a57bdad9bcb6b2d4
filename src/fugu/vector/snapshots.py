"""Snapshots: the states of a vector's environments, read and put back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.contract import Env, Info
from fugu.envs.emulated import EmulatedEnv
from fugu.envs.states import ReplayError, from_json, to_json
from fugu.vector.faults import RestartedError
from fugu.vector.native_crew import NativeCrew
from fugu.vector.slab import FIELDS, Slab

if TYPE_CHECKING:
    from fugu._native import Pool

Arrays = dict[str, NDArray[Any]]
Infos = dict[int, tuple[Info, ...]]
P = ParamSpec("P")
T = TypeVar("T")
TRIES = 5  # of reading or putting back states while workers die
LONGEST = 0.5  # seconds of replay between two signs of life


class States(Protocol):
    """The states of all environments of a vector."""

    def rows(self) -> NDArray[np.uint8]:
        """One row of bytes for each environment."""
        raise NotImplementedError("rows() -> NDArray[np.uint8]")

    def set_rows(self, env_ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Put environments into states that `rows` gave."""
        raise NotImplementedError("set_rows(env_ids, rows) -> None")

    def save(self) -> Arrays:
        """States and all that environments said last."""
        raise NotImplementedError("save() -> Arrays")

    def load(self, saved: Mapping[str, NDArray[Any]]) -> tuple[Infos, dict[int, str]]:
        """Go back; what environments had said, and why some of them had to begin anew."""
        raise NotImplementedError("load(saved) -> tuple[Infos, dict[int, str]]")


class PoolStates:
    """Of native environments in a pool: blocks of bytes of one size."""

    def __init__(self, pool: Pool, crew: NativeCrew, num_envs: int) -> None:
        self._pool, self._crew, self._num_envs = pool, crew, num_envs

    def rows(self) -> NDArray[np.uint8]:
        """One row of bytes for each environment."""
        out = np.zeros((self._num_envs, self._pool.state_bytes), np.uint8)
        self._pool.save(np.arange(self._num_envs), out)
        return out

    def set_rows(self, env_ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Put environments into states that `rows` gave."""
        if rows.shape[1] != self._pool.state_bytes:
            raise UsageError(
                f"set_state: given rows of {rows.shape[1]} bytes; allowed: "
                f"{self._pool.state_bytes}, those of this environment with as many agents."
            )
        try:
            self._pool.load(env_ids, rows)
        except ValueError as error:
            raise UsageError(f"set_state: given {error}; allowed: states of this one.") from None

    def save(self) -> Arrays:
        """States, and what the episodes that ended in the last step came to."""
        return {"states": self.rows(), "episodes": self._crew.episodes.copy()}

    def load(self, saved: Mapping[str, NDArray[Any]]) -> tuple[Infos, dict[int, str]]:
        """Go back, always with success."""
        _check_keys(saved, "states", "episodes")
        self.set_rows(np.arange(self._num_envs), np.ascontiguousarray(saved["states"]))
        self._crew.episodes[...] = saved["episodes"]
        return {}, {}


def in_one_go(method: Callable[P, T]) -> Callable[P, T]:
    """From the beginning once more, if environments began anew in the midst of it."""

    @functools.wraps(method)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(TRIES - 1):
            with contextlib.suppress(RestartedError):
                return method(*args, **kwargs)
        return method(*args, **kwargs)

    return whole


class AskedStates:
    """Of environments that live with their workers, who read and put back states of any length.

    Args:
        ask: `Vector.ask`.
        num_envs: Environments.
        step_timeout: Seconds after which a worker without a sign of life counts as stalled: long
            replays are done in parts, shorter than that.
    """

    def __init__(
        self, ask: Callable[..., tuple[Any, ...]], num_envs: int, step_timeout: float
    ) -> None:
        self._ask, self._num_envs = ask, num_envs
        self._part = min(LONGEST, step_timeout / 4)

    @in_one_go
    def rows(self) -> NDArray[np.uint8]:
        """One row of bytes for each environment, filled up with zeros."""
        read = self._each(_read)
        width = max(len(state) for state, _, _ in read)
        if any(len(state) < width and not pads for state, _, pads in read):
            raise UsageError("state: given environments whose states differ in size.")
        return np.stack(
            [np.frombuffer(state.ljust(width, b"\0"), np.uint8) for state, _, _ in read]
        )

    @in_one_go
    def set_rows(self, env_ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Put environments into states that `rows` gave."""
        ids = env_ids.tolist()
        self._put_back({env: row.tobytes() for env, row in zip(ids, rows, strict=True)}, _put_back)

    @in_one_go
    def save(self) -> Arrays:
        """States one after another, their sizes, and what environments said last, as JSON."""
        read = self._each(_read)
        infos = {env: infos for env, (_, infos, _) in enumerate(read) if infos}
        return {
            "states": np.frombuffer(b"".join(state for state, _, _ in read), np.uint8).copy(),
            "sizes": np.array([len(state) for state, _, _ in read], np.int64),
            "infos": np.frombuffer(to_json(infos).encode(), np.uint8).copy(),
        }

    @in_one_go
    def load(self, saved: Mapping[str, NDArray[Any]]) -> tuple[Infos, dict[int, str]]:
        """Go back; what cannot be played again begins a new episode."""
        _check_keys(saved, "states", "sizes", "infos")
        if len(saved["sizes"]) != self._num_envs:
            raise UsageError(
                f"restore: given a snapshot of {len(saved['sizes'])} environments; allowed: one "
                f"of {self._num_envs}."
            )
        ends = np.cumsum(saved["sizes"])
        parts = np.split(saved["states"], ends[:-1])
        states = {env: part.tobytes() for env, part in enumerate(parts)}
        failed = self._put_back(states, _put_back_or_begin)
        infos: Infos = from_json(saved["infos"].tobytes().decode())
        self._each([partial(_say, infos=infos.get(env, ())) for env in range(self._num_envs)])
        return infos, failed

    def _put_back(
        self, states: Mapping[int, bytes], function: Callable[..., Any]
    ) -> dict[int, str]:
        """Have workers go back to these states, a part at a time; why some of them could not."""
        functions = [partial(function, state=states.get(env)) for env in range(self._num_envs)]
        failed: dict[int, str] = {}
        left = list(states)
        while left:
            told = dict(zip(left, self._each(functions, self._part, env_ids=left), strict=True))
            failed |= {env: why for env, why in told.items() if isinstance(why, str)}
            left = [env for env, done in told.items() if done is False]
            functions = [partial(function, state=None)] * self._num_envs
        return failed

    def _each(
        self,
        function: Callable[..., Any] | Sequence[Callable[..., Any]],
        *arguments: Any,
        env_ids: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        functions = [function] * self._num_envs if callable(function) else function
        return self._ask("apply ", functions, arguments, env_ids=env_ids)


def why_stateless(env: Env) -> str | None:
    """Why copies of an environment have no states, in one sentence; None if they have."""
    if isinstance(env, EmulatedEnv):
        why = env.why_stateless()
        return None if why is None else f"{env.source} is an environment {why}."
    if type(env).state is Env.state or type(env).set_state is Env.set_state:
        return f"{type(env).__qualname__} has no state() and set_state()."
    return None


def rows_for(count: int, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """States that a caller gave, a row for each of so many environments."""
    rows = np.ascontiguousarray(states, np.uint8)
    rows = np.repeat(rows.reshape(1, -1), count, 0) if rows.size == rows.shape[-1] else rows
    if rows.ndim != 2 or len(rows) != count:
        raise UsageError(
            f"set_state: given {np.shape(states)} bytes for {count} environments; allowed: a row "
            "for each of them, or one row for all."
        )
    return rows


def save_rows(slab: Slab) -> Arrays:
    """All rows of all groups."""
    return {
        f"rows.{i}.{name}": getattr(rows, name).copy()
        for i, rows in enumerate(slab.rows)
        for name in FIELDS
    }


def load_rows(slab: Slab, saved: Mapping[str, NDArray[Any]], failed: Mapping[int, str]) -> None:
    """Write rows back, but for environments that began anew: their step was broken."""
    kept = np.setdiff1d(np.arange(slab.num_envs), list(failed))
    for i, (group, rows) in enumerate(zip(slab.groups, slab.rows, strict=True)):
        for name in FIELDS:
            array = getattr(rows, name)
            own = slice(None) if not failed else rows_of(kept, len(array) // slab.num_envs)
            if array.size:  # older snapshots lack arrays that are empty in theirs
                array[own] = saved[f"rows.{i}.{name}"][own]
        if failed:
            rows.valid[rows_of(np.array(list(failed)), group.num_agents)] = False


def rows_of(env_ids: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """The rows of environments that have so many of them each."""
    found: NDArray[np.int64] = (env_ids[:, None] * rows + np.arange(rows)).reshape(-1)
    return found


# ------------------------------------------------------------------ what workers are asked for


def _read(env: Env) -> tuple[bytes, tuple[Info, ...], bool]:
    """The state, what was said last, and whether zeros after the state would not matter."""
    return env.state(), tuple(env.infos), isinstance(env, EmulatedEnv)


def _put_back(env: Env, seconds: float, state: bytes | None) -> bool:
    """Begin to go back to a state, or go on with it; whether it is done."""
    if not isinstance(env, EmulatedEnv):
        assert state is not None
        env.set_state(state)
        return True
    if state is not None:
        env.begin_replay(state)
    return env.go_on(seconds)


def _put_back_or_begin(env: Env, seconds: float, state: bytes | None) -> bool | str:
    """The same, but an episode that cannot be played again is left for the next one."""
    try:
        return _put_back(env, seconds, state)
    except ReplayError as error:
        env.reset()
        return str(error)


def _say(env: Env, infos: tuple[Info, ...]) -> None:
    env.infos = infos


def _check_keys(saved: Mapping[str, NDArray[Any]], *names: str) -> None:
    missing = [name for name in names if name not in saved]
    if missing:
        raise UsageError(
            f"restore: given a snapshot without {', '.join(missing)}; allowed: one of a vector of "
            "the same environments, all in the native pool or none."
        )
