"""C compilers of this machine: the system's, and the one in the package `ziglang`."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from fugu.core.errors import FuguError, MissingExtraError, UsageError

PATIENCE = 600.0  # seconds that a compiler may take; large policies are long arrays


class BuildError(FuguError, RuntimeError):
    """Code that does not compile."""


def find_compiler() -> list[str]:
    """The command of a C compiler: `$CC`, the system's, or the one in the package `ziglang`."""
    given = os.environ.get("CC")
    if given:
        return shlex.split(given)
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise UsageError(
        "given a machine without a C compiler; allowed: cc, gcc, clang, a compiler named by the "
        "variable CC, or the package ziglang: pip install ziglang"
    )


def zig(target: str) -> list[str]:
    """The command of a C compiler for a target, `wasm32-freestanding` for one."""
    if not importlib.util.find_spec("ziglang"):
        raise MissingExtraError("ziglang", "export")
    return [sys.executable, "-m", "ziglang", "cc", "-target", target]


def run_compiler(command: Sequence[str], name: str, allowed: str) -> str:
    """Compile; the compiler's warnings.

    Args:
        command: Its command and arguments.
        name: What is compiled, for people.
        allowed: What would have compiled, for them too.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(
            f"{name}: the compiler did not run to its end ({error}). Name another one by the "
            "variable CC, or try something smaller."
        ) from error
    if done.returncode:
        raise BuildError(
            f"{name}: given code that does not compile; {command[0]} says:\n{done.stderr.strip()}\n"
            f"Allowed: {allowed}."
        )
    return done.stderr
