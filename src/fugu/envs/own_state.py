"""States of emulated environments: how they are written, and those that a source keeps itself."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from fugu.core.errors import EnvError, UsageError
from fugu.envs.plain import from_json, to_json

_MARK = b"fugu-env"
_SIZE = struct.Struct("<Q")
_PAIRS = (("state", "set_state"), ("get_state", "set_state"))
_TRANSPARENT = (OrderEnforcing, PassiveEnvChecker, TimeLimit)  # whose state is known


class ReplayError(EnvError):
    """An episode played again did not lead to where it had led."""


class OwnState:
    """The state that a source gives and takes as bytes, with the time limits around it."""

    def __init__(
        self,
        get: Callable[[], Any],
        put: Callable[[bytes], Any],
        limits: list[Any],
    ) -> None:
        self._get, self._put, self._limits = get, put, limits

    @classmethod
    def of(cls, source: Any) -> OwnState | None:
        """That of the source, or of what it wraps if the wrappers keep nothing but time."""
        limits: list[Any] = []
        while True:
            for get, put in _PAIRS:  # of its class: some wrappers pass on what is below them
                if hasattr(type(source), get) and hasattr(type(source), put):
                    return cls(getattr(source, get), getattr(source, put), limits)
            if not isinstance(source, _TRANSPARENT):
                return None
            if isinstance(source, TimeLimit):
                limits.append(source)
            source = source.env

    def works(self) -> bool:
        """Whether it gives bytes; many things are called a state."""
        try:
            return isinstance(self._get(), bytes)
        except Exception:
            return False

    def get(self) -> tuple[bytes, list[int]]:
        """The state, and how far each time limit has come."""
        return self._get(), [limit._elapsed_steps or 0 for limit in self._limits]

    def put(self, state: bytes, elapsed: list[int]) -> None:
        """Go back."""
        self._put(state)
        for limit, steps in zip(self._limits, elapsed, strict=True):
            limit._elapsed_steps = steps


def join_state(header: Mapping[str, Any], parts: list[bytes]) -> bytes:
    """A header of plain values and some parts of bytes in one; what follows them is ignored."""
    text = to_json({**header, "sizes": [len(part) for part in parts]}).encode()
    return b"".join([_MARK, _SIZE.pack(len(text)), text, *parts])


def split_state(state: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The header and the parts that `join_state` was given."""
    start = len(_MARK) + _SIZE.size
    if len(state) < start or not state.startswith(_MARK):
        raise UsageError(
            f"set_state: given {len(state)} bytes that are no state of an emulated environment; "
            "allowed: what state() of the same environment gave."
        )
    end = start + _SIZE.unpack_from(state, len(_MARK))[0]
    header = from_json(state[start:end].decode())
    parts = []
    for size in header.pop("sizes"):
        parts.append(state[end : end + size])
        end += size
    return header, parts
