"""The default executor: an isolated, warm interpreter that forks a child for each program."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from fugu.core.errors import UsageError
from fugu.sandbox import launch
from fugu.sandbox.execution import Limits, SandboxError
from fugu.sandbox.executor import Executor, demand_isolation, pack_order
from fugu.sandbox.guest.frames import framed, read_streams, unpack_report
from fugu.sandbox.session import Guest, Line, Request

Jail = Literal["auto", "bubblewrap", "none"]
_START = 30.0  # seconds
_REPORT = 1 << 10  # bytes


class ZygoteExecutor(Executor):
    """Forks a child for each program, isolated by Landlock, seccomp, limits and bubblewrap.

    Args:
        jail: Whether the zygote itself runs in bubblewrap; `auto`: where that works.
        scratch: Bytes of a temporary folder that programs may write in; needs bubblewrap.
        native: Whether to use the compiled loop of the zygote, where there is one.
        missing_walls: Whether to run although the self-test finds the isolation incomplete.
    """

    name: ClassVar[str] = "zygote"

    def __init__(
        self,
        *,
        jail: Jail = "auto",
        scratch: int = 0,
        native: bool = True,
        missing_walls: bool = False,
    ) -> None:
        if sys.platform != "linux":
            raise SandboxError(
                f"the zygote: given {sys.platform}; allowed: Linux, which isolates processes. "
                "Choose the backend docker, or monty."
            )
        self._scratch = scratch
        self._loop = launch.find_loop() if native and not scratch else None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._busy = self._closed = False
        self._streams: tuple[int, int] | None = None  # of the program that runs
        self._output = 0  # bytes of each that are kept
        self.granted: dict[str, int] = {}
        self.restarts = 0
        self.jail = self._choose_jail(jail)
        self.missing = demand_isolation(self, missing_walls=missing_walls)

    @property
    def pid(self) -> int:
        """The process that forks a child for each program."""
        assert self._process is not None
        return self._process.pid

    def facts(self) -> dict[str, Any]:
        """Return how it runs programs, for people to read."""
        granted = {**self.granted, "missing": list(self.missing)}
        return {"backend": self.name, "jail": self.jail, **granted}

    def close(self) -> None:
        """End the zygote and all that it runs."""
        super().close()
        self._closed = True
        self._close()

    def _close(self) -> bytes:
        """End the zygote; return what it wrote to standard error."""
        self._read_streams()
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        return b"" if process is None else _end_process(process)

    def _choose_jail(self, jail: Jail) -> str:
        """Start the zygote, in a jail if possible; return which one."""
        if jail != "none" and shutil.which("bwrap"):
            try:
                self._start("bubblewrap")
                return "bubblewrap"
            except SandboxError:  # many containers forbid namespaces
                if jail == "bubblewrap" or self._scratch:
                    raise
        if jail == "bubblewrap" or self._scratch:
            what = f"a scratch folder of {self._scratch} bytes" if self._scratch else "its jail"
            raise SandboxError(
                f"the zygote: given {what}; allowed: where bubblewrap is installed. "
                "Install the system's package bubblewrap, or leave it out."
            )
        self._start("none")
        return "none"

    def _start(self, jail: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = launch.zygote(
            theirs.fileno(), jailed=jail == "bubblewrap", scratch=self._scratch, library=self._loop
        )
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=launch.ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        with contextlib.suppress(EOFError):
            hello = self._message(_START)
            if hello is not None:
                self.granted = json.loads(hello)
                return
        raise SandboxError(f"the zygote does not start: {self._last_words()}")

    def _last_words(self) -> str:
        text = self._close().decode("utf-8", "replace")
        return text.strip()[-500:] or "it wrote no reason"

    def _restart(self) -> None:
        self._close()
        self.restarts += 1
        self._start(self.jail)

    def _begin(self, request: Request, limits: Limits) -> Guest:
        if self._closed:
            raise UsageError("this executor: given a program after close(); allowed: before it.")
        if self._busy:
            raise UsageError(
                "this executor: given a program while it runs another; allowed: one at a time. "
                "Close the session first, or use an ExecutorPool."
            )
        guest = _ZygoteGuest(self)
        if request.interactive:
            ours, theirs = socket.socketpair()
            descriptor = ours.detach()
            guest.line = Line(descriptor, descriptor)
            with theirs:
                self._order(theirs.fileno(), request, limits)
        else:
            guest.line = recorded = _Recorded(guest, framed(request.payload))
            self._order(recorded.file, request, limits)
        return guest

    def _order(self, line: int, request: Request, limits: Limits) -> None:
        """Have the zygote fork a child that talks through `line`."""
        order = pack_order(request, limits, self._scratch, batch=not request.interactive)
        for _ in range(3):
            if self._control is None:
                self._restart()
            assert self._control is not None
            self._streams = os.memfd_create("out"), os.memfd_create("err")
            self._output = limits.output
            try:
                socket.send_fds(self._control, [order], [line, *self._streams])
            except OSError:  # it has died
                self._restart()
                continue
            self._busy = True
            return
        raise SandboxError(f"the zygote dies as soon as it is started: {self._last_words()}")

    def _read_streams(self) -> dict[str, Any]:
        """Return what the program has printed; nothing the second time."""
        streams, self._streams = self._streams, None
        return {} if streams is None else read_streams(streams, self._output)

    def take_report(self, patience: float) -> Mapping[str, Any] | None:
        """Return the report on the program; None if it does not come in time."""
        if self._control is None:
            return {"killed": "lost"}
        try:
            message = self._message(patience)
        except EOFError:
            self.abandon()
            return {"killed": "lost"}
        if message is None:
            return None
        report = unpack_report(message) | self._read_streams()
        self._busy = False
        if report["left"]:  # something in the scratch folder: a new zygote has a new one
            self._close()
        return report

    def _message(self, patience: float) -> bytes | None:
        """Return the next message; None if there is none in time, EOFError at the end."""
        assert self._control is not None
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(1000 * patience):
            return None
        try:
            message = self._control.recv(_REPORT)
        except OSError:
            message = b""
        if not message:
            raise EOFError
        return message

    def stop_program(self) -> None:
        """Kill the program that runs."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(b"stop")

    def abandon(self) -> None:
        """Kill the zygote; the next program gets another."""
        self._close()
        self._busy = False


class _ZygoteGuest:
    """One child of a zygote."""

    settle = 0.1
    line: Line

    def __init__(self, zygote: ZygoteExecutor) -> None:
        self._zygote = zygote
        self._report: Mapping[str, Any] | None = None

    def report(self, patience: float) -> Mapping[str, Any] | None:
        """Return how the program ended; None if it has not after `patience` seconds."""
        if self._report is None:
            self._report = self._zygote.take_report(patience)
        return self._report

    def stop(self) -> None:
        """Kill the program."""
        if self._report is None:
            self._zygote.stop_program()

    def abandon(self) -> None:
        """Kill a guest that does not answer."""
        self._zygote.abandon()


class _Recorded(Line):
    """A request in a file in memory, and the answers that a child appends to it.

    Nobody wakes up for each answer, and answers that precede the end of a killed child are kept.
    """

    def __init__(self, guest: _ZygoteGuest, request: bytes) -> None:
        self.file = os.memfd_create("answers")
        super().__init__(self.file, self.file)
        rest = memoryview(request)
        while rest:
            rest = rest[os.write(self.file, rest) :]
        os.lseek(self.file, 0, os.SEEK_SET)  # the child shares our position in it
        self._guest, self._answers = guest, len(request)
        self._over = False

    def send(self, payload: bytes, deadline: float) -> None:
        """Do nothing: the request is in the file."""

    def receive(self, most: int, deadline: float) -> bytes:
        """Return the next answer, once the program has ended."""
        if not self._over:
            if self._guest.report(max(0.0, deadline - time.monotonic())) is None:
                raise TimeoutError
            self._over = True
            os.lseek(self.file, self._answers, os.SEEK_SET)
        return super().receive(most, deadline)


def _end_process(process: subprocess.Popen[bytes]) -> bytes:
    """End a process, by force if needed; return what it wrote to standard error."""
    try:
        process.wait(1.0)  # it ends by itself when its descriptors close
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stderr is None:
        return b""
    with process.stderr:
        os.set_blocking(process.stderr.fileno(), False)  # others may hold it open
        return process.stderr.read() or b""
