"""The process of one trial: an ordinary training that ends when its sweep does.

The first line of its input says what to train; the input stays open as long as the sweep lives.
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
from fugu.sweep.trials import NO_ROOM
from fugu.training.session import resume, train


def main() -> int:
    """Train as told; 0 if it went to its end, 128 and a signal's number if one stopped it.

    74 (EX_IOERR of sysexits.h) if the disk is full.
    """
    told = json.loads(_first_line())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        return _train(told)
    except DiskFullError as error:
        with contextlib.suppress(OSError):  # its log may be on the same disk
            os.write(2, f"fugu: {error}\n".encode())
        os._exit(NO_ROOM)  # Python would try to write what is left, and take another status
    except FuguError as error:
        print(f"fugu: {error}", file=sys.stderr, flush=True)
        return 1


def _train(told: dict[str, Any]) -> int:
    if told["resume"]:
        result = resume(Run(told["resume"]), show=False)
    else:
        settings = dict(told["settings"])
        result = train(settings.pop("env"), show=False, **settings)
    if result.signals:
        return 128 + result.signals[0]
    return 0


def _first_line() -> bytes:
    """Read without a buffer: a thread that waits in one would block the interpreter's end."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            raise SystemExit(1)
        line += piece
    return line


def _leave_with_parent() -> None:
    """Nobody waits for what an orphan would find out."""
    while os.read(0, 1 << 16):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
