"""What is run, within which limits, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fugu.core.errors import FuguError, UsageError
from fugu.sandbox.texts import clean

Verdict = Literal["passed", "syntax", "wrong", "error", "timeout", "memory", "output", "refused"]
VERDICTS: tuple[Verdict, ...] = (
    "passed",
    "syntax",
    "wrong",
    "error",
    "timeout",
    "memory",
    "output",
    "refused",
)

_FEEDBACK = 1000  # characters of a text that are kept of a program that was graded


class SandboxError(FuguError, RuntimeError):
    """A sandbox that cannot be trusted, or cannot be had."""


@dataclass(frozen=True)
class Limits:
    """What a program may take. Processor time decides; the wall clock is for those that sleep."""

    cpu_seconds: float = 2.0
    """Processor time, whatever else the machine does."""
    wall_seconds: float = 20.0
    """Time by the clock on the wall."""
    memory: int = 256 << 20
    """Bytes beyond what a bare interpreter takes."""
    output: int = 1 << 20
    """Bytes that it may print; the first 64 KiB of each stream are kept."""
    result: int = 4 << 20
    """Bytes of an answer, and of all answers to calls that are made at once."""
    source: int = 1 << 20
    """Characters of the program itself."""

    def __post_init__(self) -> None:
        for item in fields(self):
            given = getattr(self, item.name)
            numbers = (int, float) if item.name.endswith("seconds") else (int,)
            if isinstance(given, bool) or not isinstance(given, numbers) or not 0 < given < 1 << 40:
                kind = "a number" if float in numbers else "a whole number"
                raise UsageError(
                    f"limits.{item.name}: given {given!r}; allowed: {kind} above 0. "
                    "Leave it out for the default."
                )


@dataclass(frozen=True)
class Program:
    """A program as untrusted text."""

    source: str
    entry: str = ""
    """The function to call with each input; empty: a script that reads standard input."""

    @classmethod
    def of(cls, given: Program | str) -> Program:
        """A program; a bare text is a script."""
        return given if isinstance(given, Program) else cls(given)


@dataclass(frozen=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What one call, or one run of a script, gave."""

    value: Any = None
    """What it returned; a script: what it printed."""
    error: str = ""
    """The kind of exception it raised, such as ZeroDivisionError; empty if none."""
    text: str = ""
    """What the exception said."""


@dataclass(frozen=True)
class Execution:
    """What came of a program."""

    verdict: Verdict
    """passed: it ran to its end without an error. Never wrong: nothing was compared."""
    outputs: tuple[Outcome, ...] = ()
    """One for each input, in order; fewer if it was stopped."""
    message: str = ""
    """Why it did not pass, in words."""
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    """Bytes, the bare interpreter's included."""
    stdout: str = ""
    stderr: str = ""

    def feedback(self) -> Execution:
        """The same without its answers, and with the beginnings of its texts: a bounded size."""
        message, stdout, stderr = (
            clean(text, _FEEDBACK) for text in (self.message, self.stdout, self.stderr)
        )
        return replace(self, outputs=(), message=message, stdout=stdout, stderr=stderr)


Inputs = Sequence[Call | Sequence[Any] | str]
"""Calls or their positional arguments for a function; texts for a script's standard input."""


def as_calls(inputs: Inputs) -> list[tuple[list[Any], dict[str, Any]]]:
    """Inputs of a function as they cross into the sandbox."""
    calls = []
    for given in inputs:
        if isinstance(given, Call):
            calls.append((list(given.args), dict(given.kwargs)))
        elif isinstance(given, (list, tuple)):
            calls.append((list(given), {}))
        else:
            raise UsageError(
                f"an input of a function: given {given!r}; allowed: a tuple of its arguments, "
                f"or a Call. For one argument write ({given!r},)."
            )
    return calls


def as_texts(inputs: Inputs) -> list[str]:
    """Inputs of a script as they cross into the sandbox; none is one empty input."""
    for given in inputs:
        if not isinstance(given, str):
            raise UsageError(
                f"an input of a script: given {given!r}; allowed: text for its standard input. "
                "Name the function to call with Program(source, entry)."
            )
    return [str(given) for given in inputs] or [""]
