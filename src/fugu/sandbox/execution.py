"""Programs, their limits and their results, as values and as text that anybody can display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from fugu.core.errors import FuguError, UsageError

Verdict = Literal["passed", "syntax", "wrong", "error", "timeout", "memory", "output", "refused"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

_FEEDBACK = 1000  # characters of each text of a graded program
_MAX_BITS = 2000  # of an integer that is written out; Python itself refuses 4,300 digits
_MAX_DEPTH = 8
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


class SandboxError(FuguError, RuntimeError):
    """A sandbox cannot be trusted, or cannot be started."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of a program. CPU time decides; the wall clock is for programs that sleep."""

    cpu_seconds: float = 2.0
    """Processor time, whatever else the machine does."""
    wall_seconds: float = 20.0
    """Elapsed time."""
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
        """Return a program; a bare text is a script."""
        return given if isinstance(given, Program) else cls(given)


@dataclass(frozen=True)
class Call:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of one call, or of one run of a script."""

    value: Any = None
    """The value that it returned; for a script, the text that it printed."""
    error: str = ""
    """The type of the exception that it raised, such as ZeroDivisionError; empty if none."""
    text: str = ""
    """The message of the exception."""


@dataclass(frozen=True)
class Execution:
    """The result of running a program."""

    verdict: Verdict
    """passed: it ran to its end without an error. Never wrong: nothing was compared."""
    outputs: tuple[Outcome, ...] = ()
    """One for each input, in order; fewer if it was stopped."""
    message: str = ""
    """Why it did not pass, in words."""
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    """Bytes, including those of the bare interpreter."""
    stdout: str = ""
    stderr: str = ""

    def feedback(self) -> Execution:
        """Return the same without outputs and with shortened texts: its size is bounded."""
        message, stdout, stderr = (
            clean(text, _FEEDBACK) for text in (self.message, self.stdout, self.stderr)
        )
        return replace(self, outputs=(), message=message, stdout=stdout, stderr=stderr)


Inputs = Sequence[Call | Sequence[Any] | str]
"""Calls or their positional arguments for a function; texts for a script's standard input."""


def as_calls(inputs: Inputs) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return the inputs of a function as they are sent into the sandbox."""
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
    """Return the inputs of a script as they are sent into the sandbox; none is one empty input."""
    for given in inputs:
        if not isinstance(given, str):
            raise UsageError(
                f"an input of a script: given {given!r}; allowed: text for its standard input. "
                "Name the function to call with Program(source, entry)."
            )
    return [str(given) for given in inputs] or [""]


# ---------------------------------------------------------------------- untrusted text


def shown(value: Any, most: int = 200) -> str:
    """Return a plain value as Python writes it, cut to `most` characters.

    >>> shown([1, "a", (2,)]), shown(10**5000), shown("x" * 300, 5)
    ("[1, 'a', (2)]", '<an integer of 16610 bits>', "'xxxx")
    """
    pieces: list[str] = []
    room = most
    for piece in _pieces(value, most, _MAX_DEPTH):
        pieces.append(piece[:room])
        room -= len(piece)
        if room <= 0:
            break
    return "".join(pieces)


def clean(text: str, most: int | None = None) -> str:
    """Return the first `most` characters of a text, a question mark for each lone surrogate."""
    return text[:most].encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, except line ends and tabs.

    >>> printable("red: \x1b[31m\n")
    'red: \\x1b[31m\n'
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1]
        for letter in text
    )


def _pieces(value: Any, most: int, depth: int) -> Iterator[str]:
    kind = type(value)
    if kind is int and value.bit_length() > _MAX_BITS:
        yield f"<an integer of {value.bit_length()} bits>"
    elif kind in (str, bytes, bytearray):
        yield repr(value[:most])
    elif kind not in _BRACKETS:
        yield repr(value)
    elif depth == 0:
        yield "..."
    else:
        yield _BRACKETS[kind][0]
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, most, depth - 1)
            if kind is dict:
                yield ": "
                yield from _pieces(value[item], most, depth - 1)
        yield _BRACKETS[kind][1]
