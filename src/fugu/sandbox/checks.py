"""Test functions such as HumanEval's `check(candidate)`: trusted source on untrusted answers.

The candidate that they get is a proxy: each call crosses into the sandbox as values and comes back
as a value, so that a check compares plain numbers and texts, never objects of the program's making.
All of this runs in the process of `judging.py`, which its judge holds to limits.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from fugu.core.errors import UsageError
from fugu.sandbox.execution import Outcome
from fugu.sandbox.guest.codec import CodecError, encode
from fugu.sandbox.session import SessionOver
from fugu.sandbox.texts import clean

_MOST_CALLS = 100_000
_MOST_PLANNED = 1 << 16  # bytes of the calls of a plan
_TEXT = 500  # characters of a failure
# What tests may expect of a program. No AssertionError, which only the check itself may raise, and
# nothing that steers the interpreter.
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


class CandidateError(Exception):
    """The program raised what is none of Python's ordinary errors."""


class DivergedError(BaseException):
    """A check makes other calls than were planned."""


class Candidate(Protocol):
    """What answers the calls of a check."""

    def call(self, packed: bytes) -> Any:
        """The value of an answer, or the error that it is; SessionOver if there is none."""
        raise NotImplementedError("call(packed) -> Any")


class Replay:
    """A program that has answered all planned calls already."""

    def __init__(self, planned: Sequence[bytes], outcomes: Sequence[Outcome]) -> None:
        self._planned, self._outcomes = planned, outcomes
        self.used = 0

    def call(self, packed: bytes) -> Any:
        """The answer; DivergedError if this is another call, SessionOver if there is no answer."""
        if self.used >= len(self._planned) or packed != self._planned[self.used]:
            raise DivergedError
        if self.used >= len(self._outcomes):
            raise SessionOver
        self.used += 1
        return value_of(self._outcomes[self.used - 1])


def value_of(outcome: Outcome) -> Any:
    """The value of an answer; raises the error that it is."""
    if outcome.error:
        known = outcome.error in _EXPECTED
        raise (getattr(builtins, outcome.error) if known else CandidateError)(outcome.text)
    return outcome.value


def load_check(setup: str, check: str) -> dict[str, Any]:
    """The names that trusted source defines, the function `check` among them."""
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
    """Run a check against a program; empty if it holds, else why not.

    The check may call the program by the name of its entry, too. UsageError if its first call, on
    which no answer has had an influence, cannot cross into a sandbox.
    """
    calls = 0

    def proxy(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > _MOST_CALLS:
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
    except Exception as error:  # whatever the check raises, it does not hold
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        line = trace.tb_lineno if trace else 0
        return (
            f"{type(error).__name__} in line {line} of the check, at call {calls}: {text_of(error)}"
        )
    return ""


def text_of(error: BaseException) -> str:
    """What an error says, bounded; nothing if it holds a value that cannot be written."""
    try:
        return clean(str(error), _TEXT)
    except Exception:
        return ""


def plan_calls(names: dict[str, Any], entry: str) -> tuple[bytes, ...] | None:
    """The calls that a check makes whatever is answered; None if they cannot be made in advance.

    The check runs on blanks in place of answers, so that no answer, right or wrong, is in a planned
    call. None, too, where one call contains what another's answer is compared with: a program that
    saw all calls at once would see it.
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
        if self._bytes > _MOST_PLANNED:
            raise SessionOver
        self.calls.append(packed)
        return _Blank(len(self.calls) - 1, self.compared)

    def is_safe(self) -> bool:
        """Whether no call tells what the answer to another is compared with."""
        for index, other in self.compared:
            if other is None or isinstance(other, bool):  # there is little to tell
                continue
            try:
                told = encode(other)
            except CodecError:
                return False
            if any(told in call for at, call in enumerate(self.calls) if at != index):
                return False
        return True


class _Blank:
    """An answer that nobody has given: equal to whatever it is compared with, which it notes."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, index: int, compared: list[tuple[int, object]]) -> None:
        self._index, self._compared = index, compared

    def _note(self, others: Iterator[object]) -> None:
        self._compared += [(self._index, x) for x in others if not isinstance(x, _Blank)]


def _answering(answer: Callable[[_Blank], object]) -> Callable[..., object]:
    def method(self: _Blank, *others: object) -> object:
        self._note(iter(others))
        return answer(self)

    return method


for _name in ("eq", "lt", "le", "gt", "ge", "bool"):
    setattr(_Blank, f"__{_name}__", _answering(lambda blank: True))
setattr(_Blank, "__ne__", _answering(lambda blank: False))  # noqa: B010
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(_Blank, f"__{_name}__", _answering(lambda blank: blank))
    setattr(_Blank, f"__r{_name}__", _answering(lambda blank: blank))
for _name in ("abs", "neg", "pos", "round"):
    setattr(_Blank, f"__{_name}__", _answering(lambda blank: blank))


@functools.lru_cache(1024)
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<check>", "exec", dont_inherit=True)
