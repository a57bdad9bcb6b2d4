"""Shared by the sandbox's tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from fugu.sandbox import BACKENDS, installed

WALLED = [backend for backend in BACKENDS if backend != "unsafe"]
INSTALLED = installed()


def absent(backend: str) -> str:
    """Why a backend is not tested here; empty if it is."""
    return "" if backend in INSTALLED else f"{backend} is not installed here"


def children(pid: int | None = None) -> set[int]:
    """All processes below one."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == (os.getpid() if pid is None else pid):
            found |= {int(folder.name)} | children(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(fact: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if fact():
            return True
        time.sleep(0.02)
    return fact()
