"""The default executor: a warm interpreter behind walls that forks a child for each program."""

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
from fugu.sandbox.executor import Executor, pack_order
from fugu.sandbox.guest.frames import unpack_report
from fugu.sandbox.line import Line
from fugu.sandbox.selftest import demand_walls
from fugu.sandbox.session import Guest, Request

Jail = Literal["auto", "bubblewrap", "none"]
_START = 30.0  # seconds
_REPORT = 1 << 18  # bytes
_MOST_IN_ORDER = 1 << 17  # bytes of a program and its calls that go with an order


class ZygoteExecutor(Executor):
    """Forks a child for each program, behind Landlock, seccomp, limits and, if it can, bubblewrap.

    Args:
        jail: Whether the zygote itself stands in bubblewrap; `auto`: where it works.
        scratch: Bytes of a temporary folder that programs may write in; needs bubblewrap.
        native: Whether the zygote's loop is the compiled one, where there is one.
        missing_walls: Whether to run although the self-test finds a wall missing.
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
                f"the zygote: given {sys.platform}; allowed: Linux, whose kernel has the walls. "
                "Choose the backend docker, or monty."
            )
        self._scratch = scratch
        self._loop = launch.find_loop() if native and not scratch else None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._busy = self._closed = False
        self._buffer = bytearray(_REPORT)
        self.granted: dict[str, int] = {}
        self.restarts = 0
        self.jail = self._choose_jail(jail)
        self.missing = demand_walls(self, missing_walls=missing_walls)

    @property
    def pid(self) -> int:
        """The process that stands between us and the programs."""
        assert self._process is not None
        return self._process.pid

    def facts(self) -> dict[str, Any]:
        """How it runs programs, for people to read."""
        granted = {**self.granted, "missing": list(self.missing)}
        return {"backend": self.name, "jail": self.jail, **granted}

    def close(self) -> None:
        """End the zygote and whatever it runs."""
        self._closed = True
        self._close()

    def _close(self) -> bytes:
        """End the zygote; what it said last."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        return b"" if process is None else end_process(process)

    def _choose_jail(self, jail: Jail) -> str:
        """Start the zygote, in a jail if one is to be had; which one."""
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
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REPORT)
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
        said = self._close()
        return said.decode("utf-8", "replace").strip()[-500:] or "it said nothing"

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
        if not request.interactive and len(request.payload) <= _MOST_IN_ORDER:
            answers = os.memfd_create("answers")
            order = pack_order(request, limits, self._scratch, batch=True)
            self._order(order + request.payload, answers)
            return _BatchGuest(self, _Recorded(self, answers))
        ours, theirs = socket.socketpair()
        with theirs:
            self._order(pack_order(request, limits, self._scratch), theirs.fileno())
        descriptor = ours.detach()
        return _ZygoteGuest(self, Line(descriptor, descriptor))

    def _order(self, message: bytes, descriptor: int) -> None:
        """Have the zygote fork a child that gets the descriptor."""
        for _ in range(3):
            if self._control is None:
                self._restart()
            assert self._control is not None
            try:
                socket.send_fds(self._control, [message], [descriptor])
            except OSError:  # it has died
                self._restart()
                continue
            self._busy = True
            return
        raise SandboxError(f"the zygote dies as soon as it is started: {self._last_words()}")

    def take_report(self, patience: float) -> Mapping[str, Any] | None:
        """The report on the program that has run; None if it does not come in time."""
        if self._control is None:
            return {"killed": "lost"}
        try:
            message = self._message(patience)
        except EOFError:
            self.abandon()
            return {"killed": "lost"}
        if message is None:
            return None
        report = unpack_report(message)
        self._busy = False
        if report["left"]:  # something in the scratch folder: a new zygote has a new one
            self._close()
        return report

    def _message(self, patience: float) -> bytes | None:
        """The next message; None if there is none in time, EOFError once there will be none."""
        assert self._control is not None
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(1000 * patience):
            return None
        try:
            size = self._control.recv_into(self._buffer)
        except OSError:
            size = 0
        if not size:
            raise EOFError
        return bytes(memoryview(self._buffer)[:size])

    def stop_program(self) -> None:
        """Kill the program that runs."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(b"stop")

    def abandon(self) -> None:
        """Kill the zygote; the next program gets another."""
        self._close()
        self._busy = False


class _Recorded(Line):
    """Answers that a child writes into memory and that are read when it is over.

    Nobody is woken for each of them, and what was written before a child was killed is there.
    """

    def __init__(self, zygote: ZygoteExecutor, answers: int) -> None:
        super().__init__(answers, answers)
        self._zygote = zygote
        self.report: Mapping[str, Any] | None = None

    def send(self, payload: bytes, deadline: float) -> None:
        """Nothing: the program went with the order."""

    def receive(self, most: int, deadline: float) -> bytes:
        """The next answer, once the program is over."""
        if self.report is None:
            self.report = self._zygote.take_report(max(0.0, deadline - time.monotonic()))
            if self.report is None:
                raise TimeoutError
            os.lseek(self._inlet, 0, os.SEEK_SET)  # the child's place in it is ours, too
        return super().receive(most, deadline)


class _ZygoteGuest:
    """One child of a zygote, in conversation."""

    settle = 0.1

    def __init__(self, zygote: ZygoteExecutor, line: Line) -> None:
        self._zygote, self.line = zygote, line
        self._report: Mapping[str, Any] | None = None

    def report(self, patience: float) -> Mapping[str, Any] | None:
        """How the program ended; None if it has not after `patience` seconds."""
        if self._report is None:
            self._report = self._zygote.take_report(patience)
        return self._report

    def stop(self) -> None:
        """Kill the program."""
        self._zygote.stop_program()

    def abandon(self) -> None:
        """Let go of a guest that does not answer."""
        self._zygote.abandon()


class _BatchGuest:
    """One child of a zygote that has got all its calls at once."""

    settle = 0.1

    def __init__(self, zygote: ZygoteExecutor, line: _Recorded) -> None:
        self._zygote, self.line = zygote, line

    def report(self, patience: float) -> Mapping[str, Any] | None:
        """How the program ended; None if it has not after `patience` seconds."""
        if self.line.report is None:
            self.line.report = self._zygote.take_report(patience)
        return self.line.report

    def stop(self) -> None:
        """Kill the program."""
        if self.line.report is None:
            self._zygote.stop_program()

    def abandon(self) -> None:
        """Let go of a guest that does not answer."""
        self._zygote.abandon()


def end_process(process: subprocess.Popen[bytes]) -> bytes:
    """See a process end, by force if need be; what it wrote to standard error."""
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
