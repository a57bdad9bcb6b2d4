"""The process of one trial: an ordinary training that ends when its sweep's process does.

The first line of standard input holds the task. The sweep keeps the pipe open while it lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from typing import Any

from fugu.core.errors import DiskFullError, FuguError
from fugu.store.run import Run
from fugu.sweep.trials import DISK_FULL
from fugu.training.session import resume, train


def main() -> int:
    """Train, and return the exit code: 0 if complete, 128 + N after signal N, 74 if disk full."""
    task = json.loads(_read_line())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        return _train(task)
    except DiskFullError as error:
        with contextlib.suppress(OSError):  # its log may be on the same disk
            os.write(2, f"fugu: {error}\n".encode())
        os._exit(DISK_FULL)  # a normal exit would flush to the full disk, and change the code
    except FuguError as error:
        print(f"fugu: {error}", file=sys.stderr, flush=True)
        return 1


def _train(task: dict[str, Any]) -> int:
    if task["resume"]:
        result = resume(Run(task["resume"]), show=False)
    else:
        settings = dict(task["settings"])
        result = train(settings.pop("env"), show=False, **settings)
    return 128 + result.signals[0] if result.signals else 0


def _read_line() -> bytes:
    """Read unbuffered: a thread that waits inside a buffer would block the interpreter's exit."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            raise SystemExit(1)
        line += piece
    return line


def _exit_with_parent() -> None:
    while os.read(0, 1 << 16):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
