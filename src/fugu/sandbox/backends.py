"""Executors by name."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from typing import Any, Literal, get_args

from fugu.core.errors import UsageError
from fugu.sandbox import launch
from fugu.sandbox.executor import Executor
from fugu.sandbox.monty import MontyExecutor
from fugu.sandbox.single import (
    BubblewrapExecutor,
    DockerExecutor,
    GvisorExecutor,
    UnsafeExecutor,
)
from fugu.sandbox.zygote import ZygoteExecutor

Backend = Literal["zygote", "bubblewrap", "monty", "gvisor", "docker", "unsafe"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def make_executor(backend: Backend = "zygote", **options: Any) -> Executor:
    """An executor; `unsafe` has no walls and must be asked for by that name.

    Args:
        backend: zygote, bubblewrap, monty, gvisor, docker or unsafe.
        **options: Of the backend: `missing_walls` of all that have walls, `jail` and `scratch` of
            the zygote (and of Monty's fall-back, which is one), `image` of Docker.
    """
    if backend == "zygote":
        return ZygoteExecutor(**options)
    if backend == "monty":
        return MontyExecutor(ZygoteExecutor(**options))
    if backend == "bubblewrap":
        return BubblewrapExecutor(**options)
    if backend == "gvisor":
        return GvisorExecutor(**options)
    if backend == "docker":
        return DockerExecutor(**options)
    if backend == "unsafe":
        return UnsafeExecutor(**options)
    raise UsageError(f"backend: given {backend!r}; allowed: {', '.join(BACKENDS)}.")


def installed() -> tuple[Backend, ...]:
    """The backends that this machine has what it takes for; `unsafe` is not among them."""
    there = {
        "zygote": sys.platform == "linux",
        "bubblewrap": shutil.which("bwrap") is not None,
        "monty": importlib.util.find_spec("pydantic_monty") is not None,
        "gvisor": shutil.which("runsc") is not None,
        "docker": launch.engine_answers(),
    }
    return tuple(backend for backend in BACKENDS if there.get(backend, False))
