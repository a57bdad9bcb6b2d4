"""Test functions such as HumanEval's `check(candidate)`, run on the trusted side.

The candidate that they get is a proxy: each call crosses into the sandbox as values and comes back
as a value, so that a check compares plain numbers and texts, never objects of the program's making.
"""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

from fugu.core.errors import UsageError
from fugu.sandbox.execution import Execution, Outcome
from fugu.sandbox.guest.codec import encode
from fugu.sandbox.session import OpenProgram, SessionOver

_MOST_CALLS = 100_000
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


def load_check(setup: str, check: str) -> dict[str, Any]:
    """The names that trusted source defines, the function `check` among them."""
    names: dict[str, Any] = {"__name__": "check"}
    try:
        for source in (setup, check):
            exec(_compiled(source), names)
        names["check"]
    except Exception as error:
        raise UsageError(
            f"a check: given source that fails with {type(error).__name__}: {error}; "
            "allowed: Python that defines check(candidate)."
        ) from error
    return names


class DivergedError(BaseException):
    """A check makes other calls than it did before."""


class Replay:
    """A program that has answered a check's calls in advance, as they were made before."""

    def __init__(self, known: Sequence[bytes], execution: Execution) -> None:
        self._known, self._execution = known, execution
        self.used = 0

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Outcome:
        """The answer; DivergedError if this is another call, SessionOver if there is no answer."""
        if self.used >= len(self._known) or pack_call(args, kwargs) != self._known[self.used]:
            raise DivergedError
        if self.used >= len(self._execution.outputs):
            raise SessionOver
        self.used += 1
        return self._execution.outputs[self.used - 1]

    def close(self) -> Execution:
        """What came of the program."""
        return self._execution


class Recorder:
    """A program whose calls are noted."""

    def __init__(self, session: OpenProgram) -> None:
        self._session = session
        self.calls: list[bytes] = []

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Outcome:
        """Call the function; SessionOver once the program is over."""
        outcome = self._session.call(args, kwargs)
        self.calls.append(pack_call(args, kwargs))
        return outcome

    def close(self) -> Execution:
        """End the program and say what came of it."""
        return self._session.close()


def pack_call(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bytes:
    """A call as it is compared and kept."""
    return encode((list(args), dict(kwargs or {})))


def run_check(names: dict[str, Any], entry: str, session: OpenProgram) -> str | None:
    """Run a check against a program; None if it holds, else why not.

    The check may call the program by the name of its entry, too.
    """
    calls = 0

    def candidate(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > _MOST_CALLS:
            raise SessionOver
        outcome = session.call(args, kwargs)
        if outcome.error:
            kind = (
                getattr(builtins, outcome.error) if outcome.error in _EXPECTED else CandidateError
            )
            raise kind(outcome.text)
        return outcome.value

    names[entry] = candidate
    try:
        names["check"](candidate)
    except UsageError:
        raise
    except SessionOver:
        return f"the program was over after {calls} calls"
    except Exception as error:  # whatever the check raises, it does not hold
        line = error.__traceback__.tb_next.tb_lineno if _inside(error) else 0  # type: ignore[union-attr]
        return f"{type(error).__name__} in line {line} of the check, at call {calls}: {error}"[:500]
    return None


@functools.lru_cache(1024)
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<check>", "exec", dont_inherit=True)


def _inside(error: Exception) -> bool:
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None
