"""Who runs a trial, and whether they still do.

A trial that runs belongs to the process of a sweep. On the same machine one asks the system
whether that lives; on another the owner gives signs of life, and one that gave none for some time,
by the clock of whoever watches, counts as gone.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from fugu.core.machine import is_running

OWNER, BEAT = "owner", "beat"


def this_owner() -> dict[str, Any]:
    """This process."""
    return {"host": socket.gethostname(), "process": os.getpid(), "born": _born(os.getpid())}


def is_gone(owner: dict[str, Any]) -> bool | None:
    """Whether the process of an owner has ended; None if it is of another machine."""
    if owner.get("host") != socket.gethostname():
        return None
    process = int(owner["process"])
    if not is_running(process):
        return True
    return _born(process) != str(owner["born"])  # else the number went to another


class Watch:
    """Notices trials whose owner is gone.

    Args:
        stale_seconds: Without a sign of life, after which an owner elsewhere is gone.
    """

    def __init__(self, stale_seconds: float) -> None:
        self._stale_seconds = stale_seconds
        self._seen: dict[int, tuple[Any, float]] = {}  # of a trial: its last sign, and when

    def lost(self, trials: Iterable[FrozenTrial], own: Iterable[int]) -> list[FrozenTrial]:
        """Those that run without an owner; `own` are the numbers of our own trials."""
        mine = set(own)
        running = [t for t in trials if t.state == TrialState.RUNNING and t.number not in mine]
        return [trial for trial in running if self._is_lost(trial)]

    def _is_lost(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get(OWNER)
        if owner is not None:
            gone = is_gone(owner)
            if gone is not None:
                return gone
        sign, now = trial.user_attrs.get(BEAT), time.monotonic()
        before = self._seen.get(trial.number)
        if before is None or before[0] != sign:
            self._seen[trial.number] = sign, now
            return False
        return now - before[1] > self._stale_seconds


def _born(process: int) -> str:
    """When a process began, in ticks of the system's clock; empty where it does not say."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
