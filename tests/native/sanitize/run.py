"""Builds core, kernels, networks and every native environment with sanitizers and runs them.

    python tests/native/sanitize/run.py [--steps 1000000] [--names cartpole ...]

Exit status 1 if a sanitizer complains.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "native"
KINDS = {
    "address, undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
# Kinds of processor that networks are compiled for; see CMakeLists.txt.
TARGETS: dict[str, list[str]] = {"baseline": []}
if platform.machine() in ("x86_64", "AMD64"):
    TARGETS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-march=x86-64-v4"]}
    TARGETS |= {"avx512bf16": ["-march=x86-64-v4", "-mavx512bf16"]}


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    steps: int = 1_000_000
    """Of each environment under each sanitizer; a tenth more with random settings."""
    names: tuple[str, ...] = ()
    """Only these environments."""


def write_table(folder: Path, names: tuple[str, ...]) -> Path:
    """The environments in one C file, and a table of them."""
    headers = [h for h in sorted(NATIVE.glob("envs/*/*.h")) if not names or h.stem in names]
    lines = [f'#include "{header}"' for header in headers]
    lines += ["const FuguDefinition* const all_environments[] = {"]
    lines += [f"    &{header.stem}_definition," for header in headers]
    lines += ["    0};", ""]
    file = folder / "all.c"
    file.write_text("\n".join(lines))
    return file


def build(folder: Path, flags: list[str], names: tuple[str, ...]) -> Path:
    """The driver with these sanitizers."""
    common = ["-g", "-O1", "-DFUGU_ONE_TARGET", "-ffp-contract=off", f"-I{NATIVE}"]
    common += [f"-I{NATIVE / 'core'}", "-Wno-unused-function", *flags]
    common += ["-DFUGU_NET_TARGETS"] * (len(TARGETS) > 1)
    table, program = write_table(folder, names), folder / "drive"
    cc, cxx = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
    objects = [folder / "table.o"]
    subprocess.run([cc, "-std=c99", *common, "-c", table, "-o", objects[0]], check=True)
    parts: list[tuple[str, Path, list[str]]] = [
        (name, Path(__file__).with_name(f"{name}.cpp"), [])
        for name in ("drive", "kernels", "nets", "learn")
    ]
    for name, more in TARGETS.items():
        parts.append((name, NATIVE / "nets" / "target.cpp", [f"-DFUGU_TARGET={name}", *more]))
    for name, source, more in parts:
        objects.append(folder / f"{name}.o")
        command = [cxx, "-std=c++17", *common, *more, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True)
    subprocess.run([cxx, *flags, *objects, "-pthread", "-o", program], check=True)
    return program


def main(options: Options) -> int:
    """Build and run under each kind."""
    if not shutil.which(os.environ.get("CC", "cc")):
        print("sanitize: needs a C and C++ compiler (apt-get install g++)", file=sys.stderr)
        return 1
    for kind, flags in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{kind}: building", flush=True)
            program = build(Path(folder), flags, options.names)
            began = time.monotonic()
            done = subprocess.run([program, str(options.steps)], check=False)
            print(f"{kind}: {time.monotonic() - began:.0f} s, status {done.returncode}", flush=True)
            if done.returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
