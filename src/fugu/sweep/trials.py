"""Trials that run: each a process of its own, looked at from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fugu.core.config import Tree
from fugu.sweep.curves import Tail
from fugu.track.jsonl import read_metrics

NO_ROOM = 74  # the exit status of a trial whose disk is full


@dataclass(frozen=True)
class TrialTask:
    """What a trial's process is told.

    Attributes:
        settings: Of the training, all of them.
        run: The folder of its run.
        log: The file for what it prints.
        resume: Whether to go on with the run that is there.
        environment: Variables beside the process's own.
    """

    settings: Tree
    run: str
    log: str
    resume: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """How a trial stands.

    Attributes:
        rows: Lines of metrics that are new; all of them once it has ended.
        status: None while it runs; then 0 if it went to its end, -N if signal N ended it.
        reason: Why it failed, in one line.
        lost: Whether where it ran is gone, which is not its fault.
    """

    rows: list[dict[str, Any]]
    status: int | None = None
    reason: str = ""
    lost: bool = False


class RunningTrial(Protocol):
    """A trial that runs somewhere."""

    def look(self) -> Look:
        """How it stands; never waits."""
        raise NotImplementedError("look() -> Look")

    def stop(self) -> None:
        """Ask it to end after the update under way."""
        raise NotImplementedError("stop() -> None")

    def end(self) -> None:
        """End it now, and all that it began."""
        raise NotImplementedError("end() -> None")


Launcher = Callable[[TrialTask], RunningTrial]


class LocalTrial:
    """A trial in a process of this machine."""

    def __init__(self, task: TrialTask) -> None:
        self._log, self._ended = Path(task.log), False
        self._metrics = Path(task.run) / "metrics.jsonl"
        self._tail = Tail(self._metrics)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fugu.sweep.child"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it ends with all its workers, and not by our Ctrl-C
                env={**os.environ, **task.environment},
            )
        told = {"settings": task.settings, "resume": task.run if task.resume else ""}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once, as `look` will say
            self._process.stdin.write(json.dumps(told, default=str).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def process(self) -> int:
        """Its number."""
        return self._process.pid

    def look(self) -> Look:
        """How it stands."""
        status = self._process.poll()
        if status is None:
            return Look(self._tail.read())
        self.end()  # workers that it may have left
        signalled = status - 128 if 128 < status < 160 else 0  # it noticed the signal itself
        status = -signalled if signalled else status
        return Look(list(read_metrics(self._metrics)), status, self._reason(status))

    def stop(self) -> None:
        """Ask it to end after the update under way."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End its whole group of processes now."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=60)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _reason(self, status: int) -> str:
        if not status:
            return ""
        if status < 0:
            return f"ended by {signal.Signals(-status).name}"
        return telling_line(self._log.read_text(errors="replace")) or f"ended with {status}"


def telling_line(text: str) -> str:
    r"""The line of what a process printed that says why it failed: what was raised, or the last.

    >>> telling_line("begins\nfugu: a fault:\nValueError: too deep\nin step 3\n")
    'ValueError: too deep'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(fugu:|[\w.]+(Error|Exception)\b)", line)]
    return (raised or lines or [""])[-1]
