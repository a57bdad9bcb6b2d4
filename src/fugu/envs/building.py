"""Building native environments: a header becomes a library that `fugu.make` loads by its path."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from fugu import native
from fugu.core.errors import FuguError, UsageError
from fugu.envs.compilers import find_compiler, run_compiler

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


def include_folder() -> Path:
    """Where `fugu_env.h` is."""
    if not native.available:
        raise FuguError(f"building needs the native extension: {native.reason}")
    import fugu._native as extension

    return Path(extension.__file__).parent / "include"


def build(header: str | Path, out: str | Path | None = None) -> Path:
    """Compile an environment's header into a library; its path.

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
        os.replace(f"{library}.new", library)  # one who has loaded the old one keeps it whole
    return library
