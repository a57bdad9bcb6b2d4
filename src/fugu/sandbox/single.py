"""Executors that start a process for each program: bubblewrap, gVisor, Docker, and none at all."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from fugu.sandbox import launch
from fugu.sandbox.execution import Limits, SandboxError
from fugu.sandbox.executor import Executor, pack_order
from fugu.sandbox.guest.frames import HEADER, MARK, unpack_report
from fugu.sandbox.line import Line
from fugu.sandbox.selftest import demand_walls
from fugu.sandbox.session import Guest, Request

_MOST_SAID = 1 << 20


class SingleExecutor(Executor):
    """A process for each program, which is started, used and gone."""

    start_seconds: ClassVar[float] = 10.0

    @abstractmethod
    def _command(self, limits: Limits) -> list[str]:
        """What starts the guest."""
        raise NotImplementedError("_command(limits) -> list[str]")

    def _begin(self, request: Request, limits: Limits) -> Guest:
        process = subprocess.Popen(
            self._command(limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
            cwd="/",
            start_new_session=True,
        )
        guest = SingleGuest(process)
        with contextlib.suppress(EOFError):  # the report will say why it does not read
            guest.line.send(pack_order(request, limits), time.monotonic() + self.start_seconds)
        return guest

    def _environment(self) -> dict[str, str]:
        return launch.ENVIRONMENT


class SingleGuest:
    """A process that runs one program and then tells how it ended on standard error."""

    settle = 5.0

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.line = Line(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        process.stdout.close()
        process.stdin.close()
        os.set_blocking(process.stderr.fileno(), False)
        self._said = bytearray()
        self._report: Mapping[str, Any] | None = None

    def report(self, patience: float) -> Mapping[str, Any] | None:
        """How the program ended; None if it has not after `patience` seconds."""
        deadline = time.monotonic() + patience
        while self._report is None:
            ended = self._listen(deadline)
            self._report = _find_report(self._said)
            if self._report is not None:
                self._end()
            elif ended:
                self._end()
                words = self._said.decode("utf-8", "replace").strip()[-500:]
                self._report = {"killed": "lost", "err": words.encode()}
            elif time.monotonic() >= deadline:
                return None
        return self._report

    def stop(self) -> None:
        """Kill the program, and the process that would have reported."""
        if self._report is None:
            self._kill()
            self._report = {"killed": "asked", "status": int(signal.SIGKILL)}
            self._end()

    def abandon(self) -> None:
        """Let go of it."""
        self._kill()
        self._end()

    def _listen(self, deadline: float) -> bool:
        """Take what is said on standard error; whether that was all."""
        stream = self._process.stderr
        assert stream is not None
        if stream.closed:
            return True
        poller = select.poll()
        poller.register(stream, select.POLLIN)
        if not poller.poll(1000 * max(0.0, deadline - time.monotonic())):
            return False
        piece = os.read(stream.fileno(), 1 << 18)
        self._said += piece
        return not piece or len(self._said) > _MOST_SAID

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


class UnsafeExecutor(SingleExecutor):
    """A bare process: no walls, no limits but the wall clock. For programs that are trusted."""

    name: ClassVar[str] = "unsafe"

    def _command(self, limits: Limits) -> list[str]:
        return launch.bare("once", "bare")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **launch.ENVIRONMENT}


class BubblewrapExecutor(SingleExecutor):
    """A bubblewrap with an interpreter of its own for each program, all other walls inside."""

    name: ClassVar[str] = "bubblewrap"

    def __init__(self, *, missing_walls: bool = False) -> None:
        self._words = launch.bubblewrap("once", "walls")
        self.missing = demand_walls(self, missing_walls=missing_walls)

    def _command(self, limits: Limits) -> list[str]:
        return self._words


class GvisorExecutor(SingleExecutor):
    """gVisor's kernel in user space for each program: slow, and the thickest wall."""

    name: ClassVar[str] = "gvisor"
    start_seconds: ClassVar[float] = 30.0

    def __init__(self, *, missing_walls: bool = False) -> None:
        self._folder: Path | None = None
        launch.gvisor(Path("/"))  # complains if it is not installed
        self._folder = Path(tempfile.mkdtemp(prefix="fugu-gvisor-"))
        launch.small_root(self._folder)
        self.missing = demand_walls(self, missing_walls=missing_walls)

    def close(self) -> None:
        """Remove the file system that was made for it."""
        super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _command(self, limits: Limits) -> list[str]:
        if self._folder is None:
            raise SandboxError("gvisor: given a program after close(); allowed: before it.")
        return launch.gvisor(self._folder, "once", "walls")


class DockerExecutor(SingleExecutor):
    """A container for each program, without network, of an image that is already there."""

    name: ClassVar[str] = "docker"
    start_seconds: ClassVar[float] = 60.0

    def __init__(self, *, image: str = "python:3.11-slim", missing_walls: bool = False) -> None:
        self._image = image
        if not launch.engine_answers():
            raise SandboxError(
                "docker: given no engine that answers; allowed: `docker version` shows a server. "
                "Start it, or choose the backend zygote."
            )
        self.missing = demand_walls(self, missing_walls=missing_walls)

    def _command(self, limits: Limits) -> list[str]:
        return launch.docker(self._image, limits.memory, "once", "walls")

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)  # the command's own; the container gets none of it


def _find_report(said: bytearray) -> Mapping[str, Any] | None:
    """The report in what was said, once it is whole."""
    start = said.find(MARK)  # the first: a program may print more of them
    if start < 0:
        return None
    begin = start + len(MARK)
    if len(said) < begin + HEADER.size:
        return None
    (size,) = HEADER.unpack_from(said, begin)
    body = said[begin + HEADER.size : begin + HEADER.size + size]
    return unpack_report(bytes(body)) if len(body) == size else None
