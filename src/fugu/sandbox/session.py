"""Sessions: one program in a guest, its calls, its answers and its verdict.

Nothing that a program sends is trusted: other messages than ours end it, and their contents are
only ever answers to compare.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.sandbox.execution import (
    Execution,
    Inputs,
    Limits,
    Outcome,
    Program,
    Verdict,
    as_calls,
    as_texts,
    clean,
)
from fugu.sandbox.guest.codec import CodecError, TooLongError, decode
from fugu.sandbox.guest.frames import HEADER, framed, pack

GRACE = 5.0  # seconds that a guest may be late
_ENVELOPE = 256  # bytes of a message around its answer
_MOST_KIND, _MOST_TEXT = 100, 2000  # characters of an error
_END = pack(("end",))


class Line:
    """The trusted end of a stream to a guest; it owns its descriptors.

    No wait outlasts its deadline, and no message exceeds its bound.
    """

    def __init__(self, inlet: int, outlet: int) -> None:
        self._inlet, self._outlet = inlet, outlet
        self._pending = bytearray()
        for descriptor in {inlet, outlet}:
            os.set_blocking(descriptor, False)

    def send(self, payload: bytes, deadline: float) -> None:
        """Send a message; EOFError once nobody reads, TimeoutError past the deadline."""
        rest = memoryview(framed(payload))
        while rest:
            try:
                rest = rest[os.write(self._outlet, rest) :]
            except BlockingIOError:
                _await(self._outlet, select.POLLOUT, deadline)
            except OSError:
                raise EOFError from None

    def receive(self, most: int, deadline: float) -> bytes:
        """Return the next message; EOFError at the end, TooLongError beyond `most` bytes."""
        while (payload := self._take(most)) is None:
            try:
                piece = os.read(self._inlet, 1 << 16)
            except BlockingIOError:
                _await(self._inlet, select.POLLIN, deadline)
                continue
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            self._pending += piece
        return payload

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in {self._inlet, self._outlet}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._inlet = self._outlet = -1

    def _take(self, most: int) -> bytes | None:
        if len(self._pending) < HEADER.size:
            return None
        size: int = HEADER.unpack_from(self._pending)[0]
        if size > most:
            raise TooLongError(f"a message of {size} bytes, where {most} are allowed")
        end = HEADER.size + size
        if len(self._pending) < end:
            return None
        payload = bytes(self._pending[HEADER.size : end])
        del self._pending[:end]
        return payload


def _await(descriptor: int, event: int, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    poller = select.poll()
    poller.register(descriptor, event)
    poller.poll(1000 * left)


class Guest(Protocol):
    """A process that runs one program."""

    settle: float
    """Seconds from a program's end to its report."""

    @property
    def line(self) -> Line:
        """The stream to the program."""
        raise NotImplementedError("line -> Line")

    def report(self, patience: float) -> Mapping[str, Any] | None:
        """Return how the program ended; None if it has not after `patience` seconds."""
        raise NotImplementedError("report(patience) -> Mapping | None")

    def stop(self) -> None:
        """Kill the program."""
        raise NotImplementedError("stop()")

    def abandon(self) -> None:
        """Kill a guest that does not answer, and all that it runs."""
        raise NotImplementedError("abandon()")


@dataclass(frozen=True)
class Request:
    """A program and its inputs, ready to be sent to a guest."""

    payload: bytes
    answers: int  # that it should give without further calls
    interactive: bool
    longest: int  # bytes of the longest standard input

    @classmethod
    def of(cls, program: Program, inputs: Inputs, limits: Limits, *, interactive: bool) -> Request:
        """Return a request; UsageError if the inputs cannot be encoded."""
        calls = as_calls(inputs) if program.entry else []
        texts = [] if program.entry else as_texts(inputs)
        request = {
            "source": program.source,
            "entry": program.entry,
            "calls": calls,
            "stdin": texts,
            "session": interactive,
            "result": limits.result,
        }
        longest = max((4 * len(text) for text in texts), default=0)
        return cls(_encoded(request), len(calls) + len(texts), interactive, longest)


class OpenProgram(Protocol):
    """A program that waits for calls."""

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Outcome:
        """Call the function; SessionOver once the program has ended."""
        raise NotImplementedError("call(args, kwargs) -> Outcome")

    def close(self) -> Execution:
        """End the program and return its result."""
        raise NotImplementedError("close() -> Execution")


class SessionOver(BaseException):
    """The program has ended and takes no more calls."""


class Session(Closing):
    """A program that is called while it lives. Use it in a `with`, then ask for `execution`."""

    def __init__(
        self, guest: Guest, request: Request, limits: Limits, *, start_seconds: float = 0.0
    ) -> None:
        self._guest, self._limits, self._interactive = guest, limits, request.interactive
        self._deadline = time.monotonic() + start_seconds + limits.wall_seconds + GRACE
        self._outputs: list[Outcome] = []
        self._fault: tuple[Verdict, str] | None = None
        self._over = self._clean = False
        self._leaving = True  # whether the program ends without being killed
        self._execution: Execution | None = None
        self._expected = request.answers
        self._load(request.payload)

    @property
    def execution(self) -> Execution:
        """The result of the program, which is ended if it still runs."""
        return self.close()

    def answers(self) -> None:
        """Wait for the answers to the inputs of the request."""
        while not self._over and len(self._outputs) < self._expected:
            self._answer()

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Outcome:
        """Call the function; SessionOver once the program has ended."""
        if self._over or self._execution is not None:
            raise SessionOver
        payload = _encoded(("call", list(args), dict(kwargs or {})))
        self._expected += 1
        self._send(payload)
        self._answer()
        if self._over:
            raise SessionOver
        return self._outputs[-1]

    def close(self) -> Execution:
        """End the program and return its result."""
        if self._execution is not None:
            return self._execution
        if self._interactive and not self._over:
            self._send(_END)
        if not self._over:
            self._answer(only_end=True)
        report = self._guest.report(self._guest.settle) if self._leaving else None
        if report is None:
            self._guest.stop()
            report = self._guest.report(GRACE)
        self._guest.line.close()
        if report is None:
            self._guest.abandon()
            report = {}
        self._execution = self._judge(report)
        return self._execution

    def _load(self, payload: bytes) -> None:
        self._send(payload)
        message = self._next()
        if message is not None:
            if message[0] == "syntax":
                self._end("syntax", message[1], leaving=True)
            elif message[0] == "failed":
                verdict: Verdict = "memory" if message[1] == "MemoryError" else "error"
                self._end(verdict, f"{message[1]}: {message[2]}", leaving=True)
            elif message[0] == "memory":
                self._end("memory", "it takes more memory than allowed", leaving=True)
            elif message != ("loaded",):
                self._breach()

    def _send(self, payload: bytes) -> None:
        if self._over:
            return
        try:
            self._guest.line.send(payload, self._deadline)
        except EOFError:
            self._over = True
        except TimeoutError:
            self._end("timeout", "it does not take its inputs")

    def _answer(self, *, only_end: bool = False) -> None:
        """Read the next message, which is an answer or the end."""
        message = self._next()
        if message is None:
            return
        kind = message[0]
        if kind == "end":
            self._over = self._clean = True
        elif only_end:
            self._breach()
        elif kind == "value":
            self._outputs.append(Outcome(value=message[1]))
        elif kind == "raised":
            kind, text = clean(message[1], _MOST_KIND), clean(message[2], _MOST_TEXT)
            self._outputs.append(Outcome(error=kind or "Exception", text=text))
        elif kind == "memory":
            self._outputs.append(Outcome(error="MemoryError", text="no more is allowed"))
        elif kind == "long":
            self._end("output", f"its answer is {message[1]}")
        else:
            self._breach()

    def _next(self) -> tuple[Any, ...] | None:
        if self._over:
            return None
        try:
            payload = self._guest.line.receive(self._limits.result + _ENVELOPE, self._deadline)
            message: tuple[Any, ...] = decode(payload)
        except EOFError:
            self._over = True
        except TimeoutError:
            self._end("timeout", f"no answer within {self._limits.wall_seconds:g} s")
        except TooLongError as error:
            self._end("output", f"it answers with {error}")
        except CodecError:
            self._breach()
        else:
            if _is_message(message):
                return message
            self._breach()
        return None

    def _breach(self) -> None:
        self._end("error", "it wrote something other than answers into its answers")

    def _end(self, verdict: Verdict, message: str, *, leaving: bool = False) -> None:
        self._over, self._leaving = True, leaving
        self._fault = verdict, clean(message, _MOST_TEXT)

    def _judge(self, report: Mapping[str, Any]) -> Execution:
        verdict, message = self._verdict(report)
        out, err = (report.get(name, b"").decode("utf-8", "replace") for name in ("out", "err"))
        used = report.get("cpu", 0.0), report.get("memory", 0)
        return Execution(verdict, tuple(self._outputs), message, *used, out, err)

    def _verdict(self, report: Mapping[str, Any]) -> tuple[Verdict, str]:
        limits, killed = self._limits, report.get("killed")
        if self._fault and self._fault[0] == "syntax":
            return self._fault
        if report.get("status") is None:
            words = report.get("err", b"").decode("utf-8", "replace")[:200]
            return "refused", f"its guest has died{': ' if words else ''}{words}"
        if killed == "wall":
            return "timeout", f"it runs for more than {limits.wall_seconds:g} s"
        if killed == "cpu" or report.get("cpu", 0.0) > limits.cpu_seconds:
            return "timeout", f"it takes more than {limits.cpu_seconds:g} s of processor time"
        if report.get("printed", 0) >= limits.output:
            return "output", f"it prints {limits.output} bytes or more"
        if self._fault:
            return self._fault
        if not self._clean or len(self._outputs) < self._expected:
            return _ended(report)
        for outcome in self._outputs:
            if outcome.error == "MemoryError":
                return "memory", "it takes more memory than allowed"
            if outcome.error:
                return "error", f"{outcome.error}: {outcome.text}"
        return "passed", ""


def _encoded(value: object) -> bytes:
    try:
        return pack(value)
    except CodecError as error:
        raise UsageError(
            f"arguments of a program: given {error}; allowed: numbers, texts, bytes, None, and "
            "lists, tuples, sets and dicts of them."
        ) from None


_PARTS = {"syntax": 2, "failed": 3, "loaded": 1, "value": 2, "raised": 3, "memory": 1, "long": 2}
_PARTS["end"] = 1


def _is_message(given: object) -> bool:
    if type(given) is not tuple or not given or type(given[0]) is not str:
        return False
    texts = given[1:] if given[0] != "value" else ()
    return _PARTS.get(given[0]) == len(given) and all(type(text) is str for text in texts)


def _ended(report: Mapping[str, Any]) -> tuple[Verdict, str]:
    """Return the verdict on a program that ended before it had given all its answers."""
    status = report["status"]
    if not os.WIFSIGNALED(status):
        return "error", "it ended without an answer"
    number = os.WTERMSIG(status)
    if number == signal.SIGXCPU:
        return "timeout", "it takes too much processor time"
    if number == signal.SIGXFSZ:
        return "output", "it writes more than allowed"
    known = {member.value: member.name for member in signal.Signals}
    return "error", f"it was ended by {known.get(number, f'signal {number}')}"
