"""Native code: find a C compiler, and build headers into libraries that `fugu.make` loads."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fugu import native
from fugu.core.errors import FuguError, MissingExtraError, UsageError

COMPILER_SECONDS = 600.0  # time limit of a compiler; large policies are long arrays
FLAGS = (
    "-std=c99",
    "-O3",
    "-ffp-contract=off",  # the same bits on every kind of processor
    "-fno-math-errno",  # a square root is one instruction, not a call
    "-ffreestanding",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
)
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


class BuildError(FuguError, RuntimeError):
    """Code that does not compile."""


def find_compiler() -> list[str]:
    """Return the command of a C compiler: `$CC`, the system's, or the package `ziglang`'s."""
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
    """Return the command of a C compiler for a target, such as `wasm32-freestanding`."""
    if not importlib.util.find_spec("ziglang"):
        raise MissingExtraError("ziglang", "export")
    return [sys.executable, "-m", "ziglang", "cc", "-target", target]


def run_compiler(command: Sequence[str], name: str, allowed: str) -> str:
    """Run a compiler and return its warnings.

    Args:
        command: The compiler and its arguments.
        name: Name of the code, for errors.
        allowed: A description of code that compiles, for errors.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=COMPILER_SECONDS
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


def include_folder() -> Path:
    """Return the folder of `fugu_env.h`."""
    if not native.available:
        raise FuguError(f"building needs the native extension: {native.reason}")
    import fugu._native as extension

    return Path(extension.__file__).parent / "include"


def build(header: str | Path, out: str | Path | None = None) -> Path:
    """Compile an environment's header into a library; return its path.

    Args:
        header: `my_env.h`, which ends with `FUGU_ENVIRONMENT(Struct, my_env, "...")`.
        out: The library to write; beside the header if not given.
    """
    source = Path(header)
    name = source.stem
    if source.suffix != ".h" or not source.is_file():
        raise UsageError(
            f"header: given {str(header)!r}; allowed: a header that exists. "
            "fugu env new my_env writes one to begin with."
        )
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(
            f"header: given {source.name!r}; allowed: a C name, since it is the environment's too."
        )
    library = Path(out) if out is not None else source.with_suffix(SUFFIX)
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        main = Path(folder) / f"{name}.c"
        main.write_text(f'#include "{name}.h"\nFUGU_EXPORT({name})\n')
        made = Path(folder) / f"{name}{SUFFIX}"  # a failed build leaves the old library alone
        includes = [f"-I{source.resolve().parent}", f"-I{include_folder()}"]
        command = [*compiler, *FLAGS, *includes, str(main), "-o", str(made)]
        allowed = (
            f'C99 with fugu_env.h alone, and FUGU_ENVIRONMENT(Struct, {name}, "...") at the end'
        )
        if warnings := run_compiler(command, source.name, allowed):
            print(warnings, file=sys.stderr)
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, f"{library}.new")
        os.replace(f"{library}.new", library)  # processes that loaded the old one keep it
    return library
