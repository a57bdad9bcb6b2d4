"""Builds the extension and the environments apart from the virtual environment's own.

`stage` makes a folder that, first on `PYTHONPATH`, is the `fugu` that Python imports.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
EDITABLE = "_editable_skbc_fugu_rl.py"  # what finds the virtual environment's own fugu


def stage(folder: Path, compilers: tuple[str, str], flags: list[str]) -> Path:
    """Build with these C and C++ compilers and flags; the folder for `PYTHONPATH`."""
    site, built = folder / "site", folder / "cmake"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(ROOT / "src", site, ignore=shutil.ignore_patterns("__pycache__"))
    (site / EDITABLE).touch()
    joined = " ".join(flags)
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_C_COMPILER": compilers[0],
        "CMAKE_CXX_COMPILER": compilers[1],
        "CMAKE_C_FLAGS": joined,
        "CMAKE_CXX_FLAGS": joined,
        "FUGU_ONE_TARGET": "ON",
        "CMAKE_INSTALL_PREFIX": str(site),
        "Python_EXECUTABLE": sys.executable,
    }
    told = [f"-D{name}={value}" for name, value in settings.items()]
    for arguments in (
        ["-S", str(ROOT), "-B", str(built), "-G", "Ninja", *told],
        ["--build", str(built), "-j", str(os.environ.get("JOBS", os.cpu_count()))],
        ["--install", str(built)],
    ):
        done = subprocess.run(
            [str(BIN / "cmake"), *arguments],
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{done.stdout[-4000:]}\nsanitize: it cannot be built")
    return site
