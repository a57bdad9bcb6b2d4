"""Vectors: many copies of an environment, stepped in parallel.

The adapters to other libraries load when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fugu.vector.backends import Fault, WorkerError
from fugu.vector.batching import Batch, GroupBatch
from fugu.vector.make import make
from fugu.vector.vector import Vector

if TYPE_CHECKING:
    from fugu.vector.gymnasium_adapter import to_gymnasium as to_gymnasium
    from fugu.vector.sb3_adapter import to_sb3 as to_sb3

_ADAPTERS = {
    "to_gymnasium": "fugu.vector.gymnasium_adapter",
    "to_sb3": "fugu.vector.sb3_adapter",
}

__all__ = ["Batch", "Fault", "GroupBatch", "Vector", "WorkerError", "make"]


def __getattr__(name: str) -> Any:
    if name in _ADAPTERS:
        value = getattr(importlib.import_module(_ADAPTERS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fugu.vector' has no attribute {name!r}; it has {__dir__()}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ADAPTERS])
