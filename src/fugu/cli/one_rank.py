"""One of several ranks: tells whoever launched it how it ended, and ends when that one is gone."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.core.errors import FuguError

if TYPE_CHECKING:
    from fugu.training.callbacks import AnyCallback
    from fugu.training.session import Result

FOLDER, LAUNCHER = "FUGU_LAUNCH", "FUGU_LAUNCHER"  # of the launch; the process that watches it
VERDICT, READY = "verdict.json", "first.json"


def is_rank() -> bool:
    """Whether torchrun started this process, beside others."""
    elastic = "TORCHELASTIC_RUN_ID" in os.environ
    return elastic and int(os.environ.get("WORLD_SIZE", "1")) > 1


def attend(work: Callable[[tuple[AnyCallback, ...]], int]) -> int:
    """Do a rank's work; 0 where torchrun is not to start it again.

    Args:
        work: Trains, with callbacks, and gives the exit status of the whole.
    """
    if not is_rank():
        return work(())
    if FOLDER not in os.environ:
        work(())
        return 0
    folder = Path(os.environ[FOLDER])
    if (folder / VERDICT).exists():  # started again for nothing: a rank gave up for all
        return 0
    take_cores()
    threading.Thread(target=_watch, args=(int(os.environ[LAUNCHER]),), daemon=True).start()
    from fugu.training.distributed import RankLostError

    try:
        status = work((_Ready(folder),))
    except RankLostError:
        raise
    except FuguError as error:
        if _write_once(folder / VERDICT, {"status": 1}):
            print(f"fugu: {error}", file=sys.stderr)
        return 1
    if _is_first():
        _write_once(folder / VERDICT, {"status": status})
    return 0


def exit_status(result: Result, requeues: bool) -> int:
    """Of a session: 0 if it went to the end, 75 if it was requeued, else 128 + the signal."""
    from fugu.training.auto_resume import REQUEUE_STATUS, RequeueError, requeue

    if result.status == "finished" or not result.signals:
        return 0
    number = result.signals[0]
    if not requeues or number == signal.SIGINT:
        return 128 + number
    if result.run is not None:  # the first rank speaks for all
        try:
            requeue()
        except RequeueError as error:
            print(f"fugu: {error}", file=sys.stderr)
    return REQUEUE_STATUS


def take_cores() -> None:
    """Keep to this rank's share of the machine's cores, if there is one for each."""
    if not hasattr(os, "sched_getaffinity"):
        return
    cores, size = sorted(os.sched_getaffinity(0)), int(os.environ["LOCAL_WORLD_SIZE"])
    each, rank = len(cores) // size, int(os.environ["LOCAL_RANK"])
    if each:
        os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])


class _Ready:
    """Says, after an update, that the first rank takes signals."""

    def __init__(self, folder: Path) -> None:
        self._path: Path | None = folder / READY if _is_first() else None

    def __call__(self, *_: Any) -> None:
        if self._path is not None:
            _write(self._path, {"process": os.getpid()})
            self._path = None


def read(path: Path) -> dict[str, Any]:
    """What a file of a launch says; nothing if it is not there."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def _is_first() -> bool:
    return os.environ["RANK"] == "0"


def _watch(launcher: int) -> None:
    """Stop as by SIGTERM when torchrun or the launcher has gone."""
    parent = os.getppid()
    while os.getppid() == parent and _lives(launcher):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write(path: Path, content: dict[str, Any]) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)


def _write_once(path: Path, content: dict[str, Any]) -> bool:
    """Whether this process is the first to write the file."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content))
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True
