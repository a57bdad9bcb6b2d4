"""Grade programs on the trusted side: the sandbox sees inputs only, and never what is expected.

Any answer gets a grade, in bounded time and of bounded size.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fugu.core.errors import UsageError
from fugu.sandbox.execution import Call, Execution, Limits, Outcome, Program, Verdict, clean, shown
from fugu.sandbox.executor import DEFAULT_LIMITS, Executor, refuse
from fugu.sandbox.guest.codec import CodecError, decode, encode
from fugu.sandbox.judge import JudgeError, Plan, as_calls

_NOTHING = Execution("refused")
_MESSAGE = 1000  # characters of a grade's message
_ENTRY = 1000  # bytes of a grade in a cache, beside its texts
Checker = Callable[["Case", Any], bool]
"""Returns whether an answer to a case is right."""
Compare = Callable[["Task", list[tuple[int, Any]]], tuple[list[bool], str]]
"""Returns which answers, by case number, a task's checker accepts, and what it raised."""


@dataclass(frozen=True)
class Case:
    """One test: the inputs of a program, and the expected answer, which it never sees.

    A function gets `args` and `kwargs`; a script gets `stdin` and should print `expected`.
    """

    args: tuple[Any, ...] = ()
    expected: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""


@dataclass(frozen=True)
class Task:
    """A problem for a program, judged by cases or by a function `check`.

    >>> double = Task("double", entry="double", cases=(Case((2,), 4), Case((0,), 0)))
    """

    name: str
    entry: str = ""
    """The function to write; empty: a script from standard input to standard output."""
    cases: tuple[Case, ...] = ()
    check: str = ""
    """Source of a function `check(candidate)` that asserts; it runs on the trusted side, within the
    processor time and memory of `limits`."""
    setup: str = ""
    """Trusted source that `check` needs, such as helpers."""
    checker: Checker | None = None
    """Compares answers in place of `same`, in another process: it must be importable or plain."""
    tolerance: float = 1e-6
    """Largest difference of floats, relative and absolute."""
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
        """A hash of everything except the name."""
        checker = self.checker
        named = f"{checker.__module__}.{checker.__qualname__}.{id(checker)}" if checker else ""
        cases = [(case.args, case.expected, dict(case.kwargs), case.stdin) for case in self.cases]
        limits = [getattr(self.limits, name) for name in self.limits.__dataclass_fields__]
        parts = (self.entry, cases, self.check, self.setup, named, self.tolerance, limits)
        return hashlib.sha256(self._encoded(parts)).digest()

    @cached_property
    def answers(self) -> tuple[Any, ...]:
        """The expected answer to each case, as a sandbox would return it: a Counter is a dict."""
        if self.entry:
            return tuple(decode(self._encoded(case.expected)) for case in self.cases)
        return tuple(_as_text(self.name, case.expected) for case in self.cases)

    def _encoded(self, value: object) -> bytes:
        try:
            return encode(value)
        except CodecError as error:
            raise UsageError(
                f"task {self.name}: expected cases of numbers, texts, bytes, None, and lists, "
                f"tuples, sets and dicts of them; got {error}."
            ) from None


@dataclass(frozen=True)
class Grade:
    """The grade of a program."""

    verdict: Verdict
    passed: tuple[bool, ...]
    """Whether each case passed; with a check, whether it held."""
    message: str = ""
    """Why it did not pass. It may contain the expected answer: not for the program's author."""
    execution: Execution = _NOTHING

    @property
    def fraction(self) -> float:
        """The share of cases that passed."""
        return sum(self.passed) / len(self.passed)


def grade(source: str, task: Task, executor: Executor) -> Grade:
    """Run a program in the sandbox and judge its answers here; answers are not kept."""
    program = Program(source, task.entry)
    found = _grade(program, task, executor)
    if found.verdict == "refused" and refuse(program, task.limits) is None:
        found = _grade(program, task, executor)  # its guest had died
    if found.verdict != "passed" and executor.fallback is not None:
        return grade(source, task, executor.fallback)
    message = clean(found.message, _MESSAGE)
    return replace(found, message=message, execution=found.execution.feedback())


def key_of(source: str, task: Task) -> bytes:
    """Return a hash of a program and its task."""
    return hashlib.sha256(task.key + source.encode("utf-8", "surrogatepass")).digest()


class GradeCache:
    """The latest grades, by `key_of`: groups of samples repeat programs, and none runs twice.

    Args:
        most_bytes: Memory of all grades; 0 for none.
    """

    def __init__(self, most_bytes: int = 16 << 20) -> None:
        self._most = most_bytes
        self._grades: OrderedDict[bytes, Grade] = OrderedDict()
        self.bytes = 0
        self.hits = 0

    def get(self, key: bytes) -> Grade | None:
        """Return the grade, if it is known."""
        found = self._grades.get(key)
        if found is not None:
            self._grades.move_to_end(key)
            self.hits += 1
        return found

    def put(self, key: bytes, grade: Grade) -> None:
        """Store a grade, unless the sandbox is to blame for it rather than the program."""
        if grade.verdict == "refused" or _bytes_of(grade) > self._most:
            return
        if (old := self._grades.pop(key, None)) is not None:
            self.bytes -= _bytes_of(old)
        self._grades[key] = grade
        self.bytes += _bytes_of(grade)
        while self.bytes > self._most:
            _, gone = self._grades.popitem(last=False)
            self.bytes -= _bytes_of(gone)


def _bytes_of(grade: Grade) -> int:
    ran = grade.execution
    texts = (grade.message, ran.message, ran.stdout, ran.stderr)
    return _ENTRY + sys.getsizeof(grade.passed) + sum(map(sys.getsizeof, texts))


def _grade(program: Program, task: Task, executor: Executor) -> Grade:
    if (refusal := refuse(program, task.limits)) is not None:
        return Grade("refused", (False,) * max(1, len(task.cases)), refusal.message, refusal)
    if task.check:
        return _by_check(program, task, executor)
    if task.entry:
        inputs: list[Any] = [Call(case.args, case.kwargs) for case in task.cases]
    else:
        inputs = [case.stdin for case in task.cases]
    execution = executor.run(program, inputs, task.limits)
    return judge_answers(task, execution, executor.judge.compare)


def judge_answers(task: Task, execution: Execution, compare: Compare) -> Grade:
    """Return the grade of the answers to a task's cases; `compare` runs its own checker."""
    answers = list(execution.outputs[: len(task.cases)])
    answers += [Outcome(error="None", text="no answer")] * (len(task.cases) - len(answers))
    failure = ""
    if task.checker is None:
        expected = zip(task.answers, answers, strict=True)
        passed = tuple(_is_right(task, wanted, answer) for wanted, answer in expected)
    else:
        given = [(number, one.value) for number, one in enumerate(answers) if not one.error]
        try:
            right, failure = compare(task, given)
        except JudgeError as error:
            right, failure = [False] * len(given), str(error)
        found = {number: good for (number, _), good in zip(given, right, strict=True)}
        passed = tuple(found.get(number, False) for number in range(len(answers)))
    if execution.verdict != "passed":
        return Grade(execution.verdict, passed, execution.message, execution)
    if failure:
        return Grade("error", passed, failure, execution)
    if all(passed):
        return Grade("passed", passed, "", execution)
    first = passed.index(False)
    case, value = task.cases[first], answers[first].value
    asked, wanted = shown(case.args if task.entry else case.stdin), shown(task.answers[first])
    message = f"case {first + 1}: {asked} gave {shown(value)}, not {wanted}"
    return Grade("wrong", passed, message, execution)


def _is_right(task: Task, expected: Any, answer: Outcome) -> bool:
    if answer.error:
        return False
    if not task.entry:
        return isinstance(answer.value, str) and _lines(expected) == _lines(answer.value)
    return same(expected, answer.value, task.tolerance)


def _lines(text: str) -> list[str]:
    r"""Return the lines of a printed text, without space at the ends of lines and of the text.

    Only "\n" and "\r\n" end a line, as for judges of programming contests.
    """
    lines = [line.rstrip(" \t") for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _as_text(task: str, expected: object) -> str:
    try:
        return str(expected)
    except ValueError as error:  # an integer of too many digits
        raise UsageError(f"task {task}: expected a text to be printed; got {error}.") from None


def _by_check(program: Program, task: Task, executor: Executor) -> Grade:
    plan = executor.judge.plan(task)
    if plan is not None and (found := _by_plan(program, task, executor, plan)) is not None:
        return found
    session = executor.session(program, task.limits)
    over = False
    try:
        failure = executor.judge.check(task, session)
    except JudgeError as error:
        failure, over = str(error), True
    finally:
        execution = session.close()
    if over:
        return Grade("error", (False,), failure, execution)
    if not failure:
        if execution.verdict in ("passed", "error"):  # errors that the check expects are fine
            return Grade("passed", (True,), "", execution)
        return Grade(execution.verdict, (False,), execution.message, execution)
    if execution.verdict == "passed":
        return Grade("wrong", (False,), failure, execution)
    return Grade(execution.verdict, (False,), execution.message or failure, execution)


def _by_plan(program: Program, task: Task, executor: Executor, plan: Plan) -> Grade | None:
    """Grade by a check whose calls are made all at once; None if it makes other calls."""
    execution = executor.run(program, as_calls(plan), task.limits)
    try:
        replayed = executor.judge.replay(task, plan, execution.outputs)
    except JudgeError as error:
        return Grade("error", (False,), str(error), execution)
    if replayed is None:
        return None
    failure, used = replayed
    if not failure and execution.verdict in ("passed", "error"):
        return Grade("passed", (True,), "", execution)
    if not failure or used == len(execution.outputs) < len(plan):
        return Grade(execution.verdict, (False,), execution.message, execution)
    raised = any(outcome.error for outcome in execution.outputs[:used])
    return Grade("error" if raised else "wrong", (False,), failure, execution)


# ---------------------------------------------------------------------- comparison


def same(expected: Any, given: Any, tolerance: float = 1e-6) -> bool:
    """Return whether two plain values are equal, types included, floats up to a tolerance.

    >>> same([1, 2.0], [1, 2.0000000001]), same((1, 2), [1, 2]), same(1, True)
    (True, False, False)
    """
    kind = type(expected)
    if kind is not type(given):
        return False
    if kind is float:
        return _close(expected, given, tolerance)
    if kind is complex:
        return _close(expected.real, given.real, tolerance) and _close(
            expected.imag, given.imag, tolerance
        )
    if kind in (list, tuple):
        return len(expected) == len(given) and all(
            same(one, other, tolerance) for one, other in zip(expected, given, strict=True)
        )
    if kind is dict:
        return _same_dicts(expected, given, tolerance)
    if kind in (set, frozenset):
        return len(expected) == len(given) and _typed(expected) == _typed(given)
    return bool(expected == given)


def _close(one: float, other: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)


def _same_dicts(expected: dict[Any, Any], given: dict[Any, Any], tolerance: float) -> bool:
    if len(expected) != len(given):
        return False
    others = {_key(key): value for key, value in given.items()}
    return all(
        _key(key) in others and same(value, others[_key(key)], tolerance)
        for key, value in expected.items()
    )


def _typed(values: set[Any] | frozenset[Any]) -> set[Any]:
    return {_key(value) for value in values}


def _key(value: Any) -> Any:
    """Return a key that equals only keys of the same types throughout; all NaNs are equal."""
    if isinstance(value, tuple):
        return (tuple, tuple(_key(item) for item in value))
    if isinstance(value, frozenset):
        return (frozenset, frozenset(_key(item) for item in value))
    if isinstance(value, float) and math.isnan(value):
        return (float, "nan")
    return (type(value), value)
