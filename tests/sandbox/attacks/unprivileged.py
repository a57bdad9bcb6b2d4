"""The attack suite as the user nobody, started by root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import fugu
from attacks.suite import Finding
from fugu.sandbox import launch

NOBODY = 65534
_TIMEOUT = 600.0  # seconds for the whole suite
_CANDIDATES = ("/usr/bin/python3", "/usr/local/bin/python3", "/opt/python/bin/python3")
_UNWANTED = shutil.ignore_patterns("__pycache__")


def attack_as_nobody(backend: str = "zygote", **settings: Any) -> list[Finding]:
    """Return what `attack_all` finds as the user nobody. Only root can become another user."""
    with tempfile.TemporaryDirectory(prefix="fugu-nobody-") as name:
        folder = Path(name)
        _copy_suite(folder)
        arguments = json.dumps({"backend": backend, **settings})
        done = _run_as_nobody(
            [find_interpreter(), "-m", "attacks.suite", arguments],
            {"PYTHONPATH": str(folder), "PATH": os.environ.get("PATH", "")},
            _TIMEOUT,
        )
    if done.returncode != 0:
        raise RuntimeError(f"the suite as the user nobody ended with: {done.stderr[-2000:]}")
    return [Finding(**json.loads(line)) for line in done.stdout.splitlines()]


def find_interpreter() -> str:
    """Return an interpreter that the user nobody can start; home folders are often closed to it."""
    for candidate in (launch.python(), *_CANDIDATES):
        if os.path.exists(candidate) and _starts(candidate):
            return candidate
    raise RuntimeError(
        "no interpreter that the user nobody can start. Install Python 3.11 or later at one of "
        f"{', '.join(_CANDIDATES)}, or run this one from a folder that all users can read."
    )


def _starts(interpreter: str) -> bool:
    program = "import sys; sys.exit(sys.version_info < (3, 11))"
    try:
        return _run_as_nobody([interpreter, "-IS", "-c", program], {}, 30.0).returncode == 0
    except OSError:
        return False


def _run_as_nobody(
    command: list[str], environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        cwd="/",
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _copy_suite(folder: Path) -> None:
    """Copy this package, and the part of fugu that it needs, to where all users can read them."""
    source, target = Path(fugu.__file__).parent, folder / "fugu"
    target.mkdir()
    shutil.copy(source / "__init__.py", target)
    for part in ("core", "sandbox"):
        shutil.copytree(source / part, target / part, ignore=_UNWANTED)
    shutil.copytree(Path(__file__).parent, folder / "attacks", ignore=_UNWANTED)
    if loop := launch.find_loop():
        shutil.copy(loop, target / "sandbox")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
