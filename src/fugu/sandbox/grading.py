"""Grading, on the trusted side: the sandbox gets inputs and gives answers, and never knows more."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fugu.core.errors import UsageError
from fugu.sandbox.checks import DivergedError, Recorder, Replay, load_check, run_check
from fugu.sandbox.comparing import same
from fugu.sandbox.execution import Call, Execution, Limits, Outcome, Program, Verdict
from fugu.sandbox.executor import DEFAULT_LIMITS, Executor, refuse
from fugu.sandbox.guest.codec import CodecError, decode, encode

_NOTHING = Execution("refused")
_MOST_KNOWN = 1 << 16  # bytes of calls that are kept of a check
Checker = Callable[["Case", Any], bool]
"""Whether an answer to a case is right."""


@dataclass(frozen=True)
class Case:
    """One test: what the program gets, and what it should answer, which it never sees.

    A function gets `args` and `kwargs`; a script gets `stdin` and should print `expected`.
    """

    args: tuple[Any, ...] = ()
    expected: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""


@dataclass(frozen=True)
class Task:
    """What a program is to do, and how it is judged: by cases, or by a function `check`.

    >>> double = Task("double", entry="double", cases=(Case((2,), 4), Case((0,), 0)))
    """

    name: str
    entry: str = ""
    """The function to write; empty: a script from standard input to standard output."""
    cases: tuple[Case, ...] = ()
    check: str = ""
    """Source of a function `check(candidate)` that asserts; it runs on the trusted side."""
    setup: str = ""
    """Trusted source that `check` needs, such as helpers."""
    checker: Checker | None = None
    """Compares answers in place of `same`; for a pool it must be importable or plain."""
    tolerance: float = 1e-6
    """How far floats may lie apart, relative and absolute."""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if bool(self.cases) == bool(self.check):
            given = "cases and a check" if self.check else "neither cases nor a check"
            raise UsageError(f"task {self.name}: given {given}; allowed: one of the two.")
        if self.check and not self.entry:
            raise UsageError(
                f"task {self.name}: given a check without an entry; allowed: the name of the "
                "function that check is called with."
            )

    @cached_property
    def key(self) -> bytes:
        """What tells this task from others, whatever it is called."""
        checker = self.checker
        named = f"{checker.__module__}.{checker.__qualname__}.{id(checker)}" if checker else ""
        cases = [(case.args, case.expected, dict(case.kwargs), case.stdin) for case in self.cases]
        limits = [getattr(self.limits, name) for name in self.limits.__dataclass_fields__]
        parts = (self.entry, cases, self.check, self.setup, named, self.tolerance, limits)
        try:
            return hashlib.sha256(encode(parts)).digest()
        except CodecError as error:
            raise UsageError(
                f"task {self.name}: given {error}; allowed: cases of numbers, texts, bytes, None, "
                "and lists, tuples, sets and dicts of them."
            ) from None


@dataclass(frozen=True)
class Grade:
    """What a program is worth."""

    verdict: Verdict
    passed: tuple[bool, ...]
    """Of each case; with a check, of the check as a whole."""
    message: str = ""
    """Why it did not pass. It may tell what was expected: not for the program's author."""
    execution: Execution = _NOTHING

    @property
    def fraction(self) -> float:
        """The share of cases that passed."""
        return sum(self.passed) / len(self.passed)


def grade(source: str, task: Task, executor: Executor) -> Grade:
    """Run a program in the sandbox and judge its answers here."""
    program = Program(source, task.entry)
    found = _grade(program, task, executor)
    if found.verdict == "refused" and refuse(program, task.limits) is None:
        found = _grade(program, task, executor)  # what was to run it had died
    if found.verdict != "passed" and executor.fallback is not None:
        return grade(source, task, executor.fallback)
    return found


def key_of(source: str, task: Task) -> bytes:
    """What tells this program for this task from all others."""
    return hashlib.sha256(task.key + source.encode("utf-8", "surrogatepass")).digest()


class GradeCache:
    """The latest grades, by `key_of`. Groups of samples repeat programs; nothing runs twice."""

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._grades: OrderedDict[bytes, Grade] = OrderedDict()
        self.hits = 0

    def get(self, key: bytes) -> Grade | None:
        """The grade, if it is known."""
        found = self._grades.get(key)
        if found is not None:
            self._grades.move_to_end(key)
            self.hits += 1
        return found

    def put(self, key: bytes, grade: Grade) -> None:
        """Keep a grade, unless the sandbox and not the program is to blame for it."""
        if grade.verdict == "refused" or self._most < 1:
            return
        self._grades[key] = grade
        while len(self._grades) > self._most:
            self._grades.popitem(last=False)


def _grade(program: Program, task: Task, executor: Executor) -> Grade:
    if (refusal := refuse(program, task.limits)) is not None:
        return Grade("refused", (False,) * max(1, len(task.cases)), refusal.message, refusal)
    if task.check:
        return _by_check(program, task, executor)
    if task.entry:
        inputs: list[Any] = [Call(case.args, case.kwargs) for case in task.cases]
    else:
        inputs = [case.stdin for case in task.cases]
    return _by_cases(task, executor.run(program, inputs, task.limits))


def _by_cases(task: Task, execution: Execution) -> Grade:
    answers = list(execution.outputs)
    answers += [Outcome(error="None", text="no answer")] * (len(task.cases) - len(answers))
    passed = tuple(
        _is_right(task, case, answer) for case, answer in zip(task.cases, answers, strict=True)
    )
    if execution.verdict != "passed":
        return Grade(execution.verdict, passed, execution.message, execution)
    if all(passed):
        return Grade("passed", passed, "", execution)
    first = passed.index(False)
    case, value = task.cases[first], answers[first].value
    asked = case.args if task.entry else (case.stdin,)
    message = f"case {first + 1}: {asked!r:.200} gave {value!r:.200}, not {case.expected!r:.200}"
    return Grade("wrong", passed, message, execution)


def _is_right(task: Task, case: Case, answer: Outcome) -> bool:
    if answer.error:
        return False
    if task.checker is not None:
        return bool(task.checker(case, answer.value))
    if not task.entry:
        return _same_text(str(case.expected), str(answer.value))
    return same(case.expected, answer.value, task.tolerance)


def _same_text(expected: str, given: str) -> bool:
    """Whether two printed texts agree, up to space at the ends of lines and of the text."""
    ours, theirs = (
        [line.rstrip() for line in text.rstrip().splitlines()] for text in (expected, given)
    )
    return ours == theirs


def _by_replay(
    program: Program, task: Task, executor: Executor, known: list[tuple[bytes, Call]]
) -> Grade | None:
    """Grade by a check whose calls are known, all of them at once; None if it makes others."""
    execution = executor.run(program, [call for _, call in known], task.limits)
    replay = Replay([packed for packed, _ in known], execution)
    try:
        failure = run_check(load_check(task.setup, task.check), task.entry, replay)
    except DivergedError:
        del executor.known_calls[task.key]
        return None
    if failure is None and execution.verdict in ("passed", "error"):
        return Grade("passed", (True,), "", execution)
    if failure is None or replay.used == len(execution.outputs) < len(known):
        return Grade(execution.verdict, (False,), execution.message, execution)
    raised = any(outcome.error for outcome in execution.outputs[: replay.used])
    return Grade("error" if raised else "wrong", (False,), failure, execution)


def _call(packed: bytes) -> Call:
    args, kwargs = decode(packed)
    return Call(tuple(args), kwargs)


def _by_check(program: Program, task: Task, executor: Executor) -> Grade:
    known = executor.known_calls.get(task.key)
    if known is not None and (found := _by_replay(program, task, executor, known)) is not None:
        return found
    names = load_check(task.setup, task.check)
    session = Recorder(executor.session(program, task.limits))
    try:
        failure = run_check(names, task.entry, session)
    finally:
        execution = session.close()
    if failure is None and executor.fallback is None and sum(map(len, session.calls)) < _MOST_KNOWN:
        executor.known_calls[task.key] = [(packed, _call(packed)) for packed in session.calls]
    if failure is None:
        if execution.verdict in ("passed", "error"):  # errors that the check expects are fine
            return Grade("passed", (True,), "", execution)
        return Grade(execution.verdict, (False,), execution.message, execution)
    if execution.verdict == "passed":
        return Grade("wrong", (False,), failure, execution)
    return Grade(execution.verdict, (False,), execution.message or failure, execution)
