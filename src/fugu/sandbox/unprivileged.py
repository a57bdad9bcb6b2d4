"""The attack suite as a user without privileges, started by one who has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from fugu.sandbox import launch
from fugu.sandbox.attacking import Finding
from fugu.sandbox.execution import SandboxError

NOBODY = 65534
_PATIENCE = 600.0  # seconds for the whole suite
_CANDIDATES = ("/usr/bin/python3", "/usr/local/bin/python3", "/opt/python/bin/python3")
_PARTS = ("core", "sandbox")


def attack_as_nobody(backend: str = "zygote", **settings: Any) -> list[Finding]:
    """What `attack_all` finds as the user nobody; needs root, who alone can become another."""
    wanted = json.dumps({"backend": backend, **settings})
    with tempfile.TemporaryDirectory(prefix="fugu-nobody-") as name:
        folder = Path(name)
        _copy_package(folder)
        done = subprocess.run(
            [find_interpreter(), "-m", "fugu.sandbox.attacking", wanted],
            env={"PYTHONPATH": str(folder), "PATH": os.environ.get("PATH", "")},
            cwd="/",
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    if done.returncode != 0:
        raise SandboxError(f"the suite as the user nobody ended with: {done.stderr[-2000:]}")
    return [Finding(**json.loads(line)) for line in done.stdout.splitlines()]


def find_interpreter() -> str:
    """An interpreter that the user nobody can start; home folders are often shut."""
    for candidate in (launch.python(), *_CANDIDATES):
        if os.path.exists(candidate) and _starts(candidate):
            return candidate
    raise SandboxError(
        "the suite as the user nobody: given no interpreter that this user can start; allowed: "
        f"Python 3.11 or later at {', '.join(_CANDIDATES)}, or this one outside of a shut folder."
    )


def _starts(interpreter: str) -> bool:
    program = "import sys; sys.exit(sys.version_info < (3, 11))"
    try:
        done = subprocess.run(
            [interpreter, "-IS", "-c", program],
            cwd="/",
            env={},
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            timeout=30,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


def _copy_package(folder: Path) -> None:
    """What the suite needs of fugu, where anyone can read it."""
    source, target = Path(__file__).parents[1], folder / "fugu"
    target.mkdir()
    shutil.copy(source / "__init__.py", target)
    for part in _PARTS:
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source / part, target / part, ignore=unwanted)
    if loop := launch.find_loop():
        shutil.copy(loop, target / "sandbox")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
