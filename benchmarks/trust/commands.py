"""Commands of fugu, started as forks of this process or as programs, to be killed or waited for."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType

import gymnasium  # noqa: F401  all that a training imports, once, before forks
import safetensors.torch  # noqa: F401
import torch._dynamo  # noqa: F401
from processes import session

import fugu.training.auto_resume
import fugu.training.session  # noqa: F401
from fugu.cli.main import main as fugu_main

LONGEST = 180.0  # seconds of a command that must have ended by itself


class BrokenError(AssertionError):
    """Something was lost, or is not as it would have been."""


class Started:
    """A command of fugu in a session of its own.

    Args:
        args: Of the command.
        log: The file for what it prints.
        fresh: Start a program; else this process is forked, with all that it has imported.
    """

    def __init__(self, args: list[str], log: Path, *, fresh: bool = False) -> None:
        self._log = log
        self.pid = self._run(args) if fresh else self._fork(args)
        self._end = os.pidfd_open(self.pid)

    def _run(self, args: list[str]) -> int:
        command = [sys.executable, "-m", "fugu.cli.main", *args]
        with self._log.open("ab") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        started.returncode = 0  # nobody but us waits for it
        return started.pid

    def _fork(self, args: list[str]) -> int:
        child = os.fork()
        if child:
            return child
        status = 70
        try:
            os.setsid()
            handle = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            sys.modules["__main__"] = ModuleType("__main__")  # workers import the main module
            status = fugu_main(args)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        return bool(select.select([self._end], [], [], seconds)[0])

    def kill(self) -> int:
        """Kill it, if it still runs; its exit status, -9 if that is why it ended."""
        signal.pidfd_send_signal(self._end, signal.SIGKILL)
        return self._reap()

    def finish(self) -> int:
        """Wait for its end; its exit status."""
        if not self.wait(LONGEST):
            self.kill()
            raise BrokenError(f"it did not end within {LONGEST:g} s")
        return self._reap()

    def _reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._end)
        return os.waitstatus_to_exitcode(status)

    def left_behind(self) -> list[int]:
        """Processes of its session that still run some seconds after its end."""
        deadline = time.monotonic() + 15.0
        while (left := session(self.pid)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left


def run(args: list[str], log: Path) -> tuple[int, str]:
    """The exit status of a command, and what it printed."""
    begin = log.stat().st_size if log.exists() else 0
    status = Started(args, log).finish()
    return status, log.read_bytes()[begin:].decode(errors="replace")


def succeed(args: list[str], log: Path) -> str:
    """What a command printed that went well."""
    status, text = run(args, log)
    if status:
        raise BrokenError(f"fugu {' '.join(args)} ended with status {status}: {text[-2000:]}")
    return text
