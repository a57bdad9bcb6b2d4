"""Snapshots: the states of a vector's environments, read and put back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.envs.contract import Env, Info
from fugu.envs.emulated import EmulatedEnv
from fugu.envs.states import ReplayError, from_json, to_json
from fugu.vector.backends import Infos, RestartedError
from fugu.vector.batching import rows_of
from fugu.vector.shared_buffers import FIELDS, SharedBuffers

Arrays = dict[str, NDArray[Any]]
P = ParamSpec("P")
T = TypeVar("T")
TRIES = 5  # of reading or putting back states while workers die
LONGEST = 0.5  # seconds of replay between two signs of life


def in_one_go(method: Callable[P, T]) -> Callable[P, T]:
    """Make a method start again from its beginning if environments restarted meanwhile."""

    @functools.wraps(method)
    def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(TRIES - 1):
            with contextlib.suppress(RestartedError):
                return method(*args, **kwargs)
        return method(*args, **kwargs)

    return whole


class AskedStates:
    """The states of environments that live with their workers, who read and put back each.

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
        """Return one row of bytes for each environment, filled up with zeros."""
        read = self._each(_read)
        width = max(len(state) for state, _, _ in read)
        if any(len(state) < width and not pads for state, _, pads in read):
            raise UsageError("state: given environments whose states differ in size.")
        return np.stack(
            [np.frombuffer(state.ljust(width, b"\0"), np.uint8) for state, _, _ in read]
        )

    @in_one_go
    def set_rows(self, env_ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
        """Put environments into states that `rows` returned."""
        ids = env_ids.tolist()
        self._put_back({env: row.tobytes() for env, row in zip(ids, rows, strict=True)}, _put_back)

    @in_one_go
    def save(self) -> Arrays:
        """Return the states one after another, their sizes, and the last infos as JSON."""
        read = self._each(_read)
        infos = {env: infos for env, (_, infos, _) in enumerate(read) if infos}
        return {
            "states": np.frombuffer(b"".join(state for state, _, _ in read), np.uint8).copy(),
            "sizes": np.array([len(state) for state, _, _ in read], np.int64),
            "infos": np.frombuffer(to_json(infos).encode(), np.uint8).copy(),
        }

    @in_one_go
    def load(self, saved: Mapping[str, NDArray[Any]]) -> tuple[dict[int, Infos], dict[int, str]]:
        """Go back; an episode that cannot be played again is replaced by a new one."""
        check_keys(saved, "states", "sizes", "infos")
        if len(saved["sizes"]) != self._num_envs:
            raise UsageError(
                f"restore: given a snapshot of {len(saved['sizes'])} environments; allowed: one "
                f"of {self._num_envs}."
            )
        ends = np.cumsum(saved["sizes"])
        parts = np.split(saved["states"], ends[:-1])
        states = {env: part.tobytes() for env, part in enumerate(parts)}
        failed = self._put_back(states, _put_back_or_begin)
        infos: dict[int, Infos] = from_json(saved["infos"].tobytes().decode())
        self._each([partial(_set_infos, infos=infos.get(env, ())) for env in range(self._num_envs)])
        return infos, failed

    def _put_back(
        self, states: Mapping[int, bytes], function: Callable[..., Any]
    ) -> dict[int, str]:
        """Put these states back, a part at a time; return why some of them could not be."""
        functions = [partial(function, state=states.get(env)) for env in range(self._num_envs)]
        failed: dict[int, str] = {}
        left = list(states)
        while left:
            done = dict(zip(left, self._each(functions, self._part, env_ids=left), strict=True))
            failed |= {env: why for env, why in done.items() if isinstance(why, str)}
            left = [env for env, result in done.items() if result is False]
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
    """Return why copies of an environment have no states, in one sentence; None if they have."""
    if isinstance(env, EmulatedEnv):
        why = env.why_stateless()
        return None if why is None else f"{env.source} is an environment {why}."
    if type(env).state is Env.state or type(env).set_state is Env.set_state:
        return f"{type(env).__qualname__} has no state() and set_state()."
    return None


def rows_for(count: int, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the states that a caller gave, a row for each of so many environments."""
    rows = np.ascontiguousarray(states, np.uint8)
    rows = np.repeat(rows.reshape(1, -1), count, 0) if rows.size == rows.shape[-1] else rows
    if rows.ndim != 2 or len(rows) != count:
        raise UsageError(
            f"set_state: given {np.shape(states)} bytes for {count} environments; allowed: a row "
            "for each of them, or one row for all."
        )
    return rows


def save_rows(buffers: SharedBuffers) -> Arrays:
    """Return copies of all rows of all groups."""
    return {
        f"rows.{i}.{name}": getattr(rows, name).copy()
        for i, rows in enumerate(buffers.rows)
        for name in FIELDS
    }


def load_rows(
    buffers: SharedBuffers, saved: Mapping[str, NDArray[Any]], failed: Mapping[int, str]
) -> None:
    """Write rows back, except for environments that began a new episode: their step is broken."""
    kept = np.setdiff1d(np.arange(buffers.num_envs), list(failed))
    for i, (group, rows) in enumerate(zip(buffers.groups, buffers.rows, strict=True)):
        for name in FIELDS:
            array = getattr(rows, name)
            own = slice(None) if not failed else rows_of(kept, len(array) // buffers.num_envs)
            if array.size:  # older snapshots lack arrays that are empty in theirs
                array[own] = saved[f"rows.{i}.{name}"][own]
        if failed:
            rows.valid[rows_of(np.array(list(failed)), group.num_agents)] = False


# ------------------------------------------------------------------ what workers are asked for


def _read(env: Env) -> tuple[bytes, tuple[Info, ...], bool]:
    """Return the state, the last infos, and whether zeros after the state do not matter."""
    return env.state(), tuple(env.infos), isinstance(env, EmulatedEnv)


def _put_back(env: Env, seconds: float, state: bytes | None) -> bool:
    """Begin to go back to a state, or continue; return whether that is done."""
    if not isinstance(env, EmulatedEnv):
        assert state is not None
        env.set_state(state)
        return True
    if state is not None:
        env.begin_replay(state)
    return env.go_on(seconds)


def _put_back_or_begin(env: Env, seconds: float, state: bytes | None) -> bool | str:
    """Do the same; on an episode that cannot be played again, begin the next one."""
    try:
        return _put_back(env, seconds, state)
    except ReplayError as error:
        env.reset()
        return str(error)


def _set_infos(env: Env, infos: tuple[Info, ...]) -> None:
    env.infos = infos


def check_keys(saved: Mapping[str, NDArray[Any]], *names: str) -> None:
    """Raise unless a snapshot has these arrays."""
    missing = [name for name in names if name not in saved]
    if missing:
        raise UsageError(
            f"restore: given a snapshot without {', '.join(missing)}; allowed: one of a vector of "
            "the same environments, all in the native pool or none."
        )
