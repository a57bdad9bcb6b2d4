"""New processes and their parent's script.

Python lets a new process import the script that its parent runs, unless it is forked. A script that
does its work at the top level would do all of it again, in every process. Nothing of ours needs
that: what environments need of the script is sent along. So a script without a guard,
`if __name__ == "__main__":`, is left out. One with a guard is imported as ever, since what stands
above the guard may matter, such as the registration of an environment.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing import spawn
from pathlib import Path
from typing import Any

GUARD = "__main__"
SCRIPT = ("init_main_from_name", "init_main_from_path")  # of what a new process is told


def start(process: Any) -> None:
    """Start a process, without the script that this one runs if it has no guard.

    `multiprocessing` does not look after it: a fork of this process would terminate it at its own
    exit, and this process would wait for it at exit, however long that takes.
    """
    with nullcontext() if has_guard() else _without_script():
        process.start()
    looked_after: set[Any] = multiprocessing.process._children  # type: ignore[attr-defined]
    looked_after.discard(process)


def has_guard() -> bool:
    """Whether the script that this process runs speaks of its name; true too if there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return path is None or GUARD in Path(path).read_text(errors="replace")
    except OSError:
        return True


@contextmanager
def _without_script() -> Iterator[None]:
    """Let processes that this thread starts know nothing of a script."""
    usual, thread = spawn.get_preparation_data, threading.get_ident()

    def shorter(name: str) -> dict[str, Any]:
        told: dict[str, Any] = usual(name)
        if threading.get_ident() == thread:
            told = {key: value for key, value in told.items() if key not in SCRIPT}
        return told

    spawn.get_preparation_data = shorter
    try:
        yield
    finally:
        spawn.get_preparation_data = usual
