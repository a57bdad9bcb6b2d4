"""The process that runs checks and checkers: trusted source, on answers that may be hostile.

A number that an answer blows up, or a text that a pattern never gets through, may occupy the
interpreter for hours. So this process does nothing else, and `Judge` (`judge.py`) ends it where it
takes more than its task allows.

A check is a function such as HumanEval's `check(candidate)`. Its candidate is a proxy: arguments
and results are encoded as plain values, so a check never sees objects of the program.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import os
import pickle
import resource
import socket
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from fugu.core.errors import UsageError
from fugu.sandbox.execution import Outcome, clean
from fugu.sandbox.grading import Task
from fugu.sandbox.guest import isolation
from fugu.sandbox.guest.codec import CodecError, encode
from fugu.sandbox.messages import pack, receive_one
from fugu.sandbox.session import SessionOver

_SLACK = 64 << 20  # bytes that imports within a check may take
_MAX_CALLS = 100_000
_MAX_PLANNED = 1 << 16  # bytes of the calls of a plan
_TEXT = 500  # characters of a failure
# Errors that tests may expect of a program: no AssertionError, which only the check may raise, and
# none that controls the interpreter.
_EXPECTED = [
    "ArithmeticError",
    "AttributeError",
    "EOFError",
    "IndexError",
    "KeyError",
    "LookupError",
    "NameError",
    "NotImplementedError",
    "OverflowError",
    "RecursionError",
    "RuntimeError",
    "TypeError",
    "UnicodeError",
    "ValueError",
    "ZeroDivisionError",
]


def main() -> None:
    """Serve the judge at the other end of the socket on the command line."""
    if sys.platform == "linux":
        isolation.die_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(EOFError, ConnectionError):
        sys.path[:] = receive_one(connection)[0]
        process = _Process(connection)
        while True:
            connection.sendall(pack(process.answer(*receive_one(connection))))


class _Process:
    """The known tasks, and the answers to requests about them."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._tasks: dict[bytes, Task] = {}

    def answer(self, kind: str, key: bytes, *rest: Any) -> tuple[Any, ...]:
        """Return the answer to one message."""
        try:
            if kind == "task":
                self._tasks[key] = pickle.loads(rest[0])
                return ("known",)
            task = self._tasks[key]
            with _memory(task.limits.memory + _SLACK):
                if kind == "compare":
                    return self._compare(task, *rest)
                names = load_check(task.setup, task.check)
                if kind == "plan":
                    return "plan", plan_calls(names, task.entry)
                if kind == "replay":
                    replay = Replay(*rest)
                    return "checked", run_check(names, task.entry, replay), replay.used
                return "checked", run_check(names, task.entry, self), 0
        except DivergedError:
            return ("diverged",)
        except UsageError as error:
            return "usage", str(error)
        except Exception as error:
            return "failed", f"{type(error).__name__}: {text_of(error)}"

    def call(self, packed: bytes) -> Any:
        """Have the judge call the program."""
        self._connection.sendall(pack(("call", packed)))
        (outcome,) = receive_one(self._connection)
        if outcome is None:
            raise SessionOver
        return value_of(outcome)

    def _compare(self, task: Task, answers: list[tuple[int, Any]]) -> tuple[Any, ...]:
        """Return which answers the task's checker accepts, and the first error that it raised."""
        assert task.checker is not None
        right, failure = [], ""
        for number, value in answers:
            try:
                right.append(bool(task.checker(task.cases[number], value)))
            except Exception as error:
                right.append(False)
                raised = f"{type(error).__name__}: {text_of(error)}"
                failure = failure or f"case {number + 1}: the checker raised {raised}"
        return "compared", right, failure


@contextlib.contextmanager
def _memory(most: int) -> Iterator[None]:
    """Limit this process to so many bytes more than it has, where the system can."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


# ---------------------------------------------------------------------- checks


class CandidateError(Exception):
    """The program raised something other than Python's ordinary errors."""


class DivergedError(BaseException):
    """A check makes other calls than were planned."""


class Candidate(Protocol):
    """The program that a check calls."""

    def call(self, packed: bytes) -> Any:
        """Return the value of an answer or raise its error; SessionOver if there is none."""
        raise NotImplementedError("call(packed) -> Any")


class Replay:
    """A program that has already answered all planned calls."""

    def __init__(self, planned: Sequence[bytes], outcomes: Sequence[Outcome]) -> None:
        self._planned, self._outcomes = planned, outcomes
        self.used = 0

    def call(self, packed: bytes) -> Any:
        """Return an answer; DivergedError for another call, SessionOver without an answer."""
        if self.used >= len(self._planned) or packed != self._planned[self.used]:
            raise DivergedError
        if self.used >= len(self._outcomes):
            raise SessionOver
        self.used += 1
        return value_of(self._outcomes[self.used - 1])


def value_of(outcome: Outcome) -> Any:
    """Return the value of an answer, or raise its error."""
    if outcome.error:
        known = outcome.error in _EXPECTED
        raise (getattr(builtins, outcome.error) if known else CandidateError)(outcome.text)
    return outcome.value


def load_check(setup: str, check: str) -> dict[str, Any]:
    """Return the names that trusted source defines, such as the function `check`."""
    names: dict[str, Any] = {"__name__": "check"}
    try:
        for source in (setup, check):
            exec(_compiled(source), names)
        names["check"]
    except Exception as error:
        raise UsageError(
            f"a check: expected Python that defines check(candidate); got source that fails with "
            f"{type(error).__name__}: {text_of(error)}."
        ) from error
    return names


def run_check(names: dict[str, Any], entry: str, candidate: Candidate) -> str:
    """Run a check against a program; return why it fails, empty if it holds.

    The check may also call the program by the name of its entry. UsageError if the arguments of its
    first call, which no answer has influenced, cannot be encoded.
    """
    calls = 0

    def proxy(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > _MAX_CALLS:
            raise SessionOver
        try:
            packed = encode((list(args), dict(kwargs)))
        except CodecError as error:
            if calls > 1:
                raise
            raise UsageError(
                "a check: expected calls with numbers, texts, bytes, None, and lists, tuples, sets "
                f"and dicts of them; got {error}."
            ) from None
        return candidate.call(packed)

    names[entry] = proxy
    try:
        names["check"](proxy)
    except UsageError:
        raise
    except SessionOver:
        return f"the program was over after {calls} calls"
    except Exception as error:  # any error means that the check fails
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        line = trace.tb_lineno if trace else 0
        return (
            f"{type(error).__name__} in line {line} of the check, at call {calls}: {text_of(error)}"
        )
    return ""


def text_of(error: BaseException) -> str:
    """Return the message of an error, shortened; nothing if it cannot be written."""
    try:
        return clean(str(error), _TEXT)
    except Exception:
        return ""


def plan_calls(names: dict[str, Any], entry: str) -> tuple[bytes, ...] | None:
    """Return the calls that a check makes whatever is answered; None if there is no such plan.

    The check gets blanks as answers, so no planned call contains an answer. There is no plan either
    where one call contains the value that the answer to another is compared with: a program that
    gets all calls at once would see it.
    """
    planned = _Planner()
    try:
        if run_check(names, entry, planned):
            return None
    except UsageError:  # which its first real call raises again
        return None
    return tuple(planned.calls) if planned.is_safe() else None


class _Planner:
    """A program that answers each call with a blank."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.compared: list[tuple[int, object]] = []
        self._bytes = 0

    def call(self, packed: bytes) -> Any:
        self._bytes += len(packed)
        if self._bytes > _MAX_PLANNED:
            raise SessionOver
        self.calls.append(packed)
        return _Blank(len(self.calls) - 1, self.compared)

    def is_safe(self) -> bool:
        """Return whether no call contains the value that another's answer is compared with."""
        for index, other in self.compared:
            if other is None or isinstance(other, bool):  # too little information to matter
                continue
            try:
                expected = encode(other)
            except CodecError:
                return False
            if any(expected in call for at, call in enumerate(self.calls) if at != index):
                return False
        return True


class _Blank:
    """Stands for an answer: it equals everything, and records what it is compared with."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, index: int, compared: list[tuple[int, object]]) -> None:
        self._index, self._compared = index, compared

    def _record(self, others: Iterator[object]) -> None:
        self._compared += [(self._index, x) for x in others if not isinstance(x, _Blank)]


def _returning(answer: Callable[[_Blank], object]) -> Callable[..., object]:
    def method(self: _Blank, *others: object) -> object:
        self._record(iter(others))
        return answer(self)

    return method


for _name in ("eq", "lt", "le", "gt", "ge", "bool"):
    setattr(_Blank, f"__{_name}__", _returning(lambda blank: True))
setattr(_Blank, "__ne__", _returning(lambda blank: False))  # noqa: B010
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(_Blank, f"__{_name}__", _returning(lambda blank: blank))
    setattr(_Blank, f"__r{_name}__", _returning(lambda blank: blank))
for _name in ("abs", "neg", "pos", "round"):
    setattr(_Blank, f"__{_name}__", _returning(lambda blank: blank))


@functools.lru_cache(1024)
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<check>", "exec", dont_inherit=True)
