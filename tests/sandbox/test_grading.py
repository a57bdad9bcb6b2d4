"""Grading outside: what is right, what is not, and what a program can do about it (nothing)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from fugu.core.errors import UsageError
from fugu.sandbox import (
    Case,
    Executor,
    GradeCache,
    Limits,
    Task,
    grade,
    key_of,
    make_executor,
    same,
)

ADD = Task("add", "add", (Case((1, 2), 3), Case((0.5, 0.25), 0.75), Case(("a", "b"), "ab")))


@pytest.fixture(scope="module")
def zygote() -> Iterator[Executor]:
    with make_executor() as made:
        yield made


@pytest.mark.parametrize(
    ("expected", "given", "agree"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (1.0, 1.0 + 1e-9, True),
        (1.0, 1.1, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (0.0, -0.0, True),
        ((1, 2), [1, 2], False),
        ([1, [2.0]], [1, [2.0 + 1e-10]], True),
        ([1], [1, 1], False),
        ({1: 2}, {True: 2}, False),
        ({"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({(1, 2): 3}, {(1, 2.0): 3}, False),
        ({1, 2}, {2, 1}, True),
        ({1, 2}, frozenset({1, 2}), False),
        ({1}, {True}, False),
        ("a", b"a", False),
        (b"a", bytearray(b"a"), False),
        (1 + 2j, 1 + 2j + 1e-12, True),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_same(expected: Any, given: Any, agree: bool) -> None:
    assert same(expected, given) is agree
    assert same([expected], [given]) is agree


def test_tolerance() -> None:
    assert same(100.0, 100.5, 0.01)
    assert not same(100.0, 100.5, 0.001)


@pytest.mark.parametrize(
    ("source", "verdict", "passed"),
    [
        ("def add(a, b): return a + b", "passed", (True, True, True)),
        ("def add(a, b): return 3", "wrong", (True, False, False)),
        ("def add(a, b): return [a, b][0] + 2", "error", (True, False, False)),
        ("def add(a, b): return a +", "syntax", (False, False, False)),
        ("def add(a, b):\n    while True: pass", "timeout", (False, False, False)),
        ("def add(a, b): return bytes(1 << 40)", "memory", (False, False, False)),
        ("def add(a, b): print('x' * (1 << 23)); return a + b", "output", (False, False, False)),
        ("def other(a, b): return a + b", "error", (False, False, False)),
    ],
)
def test_verdicts(zygote: Executor, source: str, verdict: str, passed: tuple[bool, ...]) -> None:
    task = Task(ADD.name, ADD.entry, ADD.cases, limits=Limits(cpu_seconds=0.3))
    found = grade(source, task, zygote)
    assert (found.verdict, found.passed) == (verdict, passed), found
    assert found.fraction == pytest.approx(sum(passed) / 3)
    assert bool(found.message) == (verdict != "passed")


def test_refused(zygote: Executor) -> None:
    task = Task("add", "add", ADD.cases, limits=Limits(source=10))
    assert grade("def add(a, b): return a + b", task, zygote).verdict == "refused"


def test_scripts_are_compared_as_printed_text(zygote: Executor) -> None:
    cases = (Case(stdin="2\n", expected="4"), Case(stdin="3\n", expected="6\n"))
    task = Task("twice", cases=cases)
    assert grade("print(2 * int(input()))", task, zygote).verdict == "passed"
    assert grade("print(2 * int(input()), ' ')", task, zygote).verdict == "passed"
    wrong = grade("print('4')", task, zygote)
    assert (wrong.verdict, wrong.passed) == ("wrong", (True, False))


def is_permutation(case: Case, answer: Any) -> bool:
    return isinstance(answer, list) and sorted(answer) == sorted(case.args[0])


def test_a_checker_of_ones_own(zygote: Executor) -> None:
    task = Task("shuffle", "shuffle", (Case(([3, 1, 2],)),), checker=is_permutation)
    assert grade("def shuffle(x): return x[::-1]", task, zygote).verdict == "passed"
    assert grade("def shuffle(x): return x[1:]", task, zygote).verdict == "wrong"


CHECK = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(n=3) == helper(3)
    try:
        candidate("x", 1)
        assert False, "it takes too much"
    except TypeError:
        pass
"""


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        ("def square(n): return n * n", "passed"),
        ("def square(n): return n + 2", "wrong"),
        ("def square(*n, **k): return 4 if n else 9", "wrong"),
        ("def square(n): raise ValueError('no')", "error"),
        ("def square(n): raise SystemExit", "error"),
        ("def square(n):\n    while True: pass", "timeout"),
        ("import os\ndef square(n): os._exit(0)", "error"),
        ("def square(n", "syntax"),
        ("raise SystemExit(0)", "error"),
        ("class A:\n    def __eq__(s, o): return True\ndef square(n): return A()", "error"),
    ],
)
def test_a_check_runs_here_and_its_calls_there(zygote: Executor, source: str, verdict: str) -> None:
    task = Task(
        "square",
        "square",
        check=CHECK,
        setup="def helper(n): return n ** 2",
        limits=Limits(cpu_seconds=0.3),
    )
    for _ in range(2):
        found = grade(source, task, zygote)
        assert found.verdict == verdict, found
        assert found.passed == (verdict == "passed",)
        assert grade("def square(n): return n * n", task, zygote).verdict == "passed"


def test_a_check_whose_calls_hang_on_answers(zygote: Executor) -> None:
    """What was known of its calls is of no use, and does no harm."""
    check = "def check(candidate):\n    assert candidate(candidate(1)) > 1"
    task = Task("grow", "grow", check=check)
    for source, verdict in (
        ("def grow(n): return n + 1", "passed"),
        ("def grow(n): return n + 2", "passed"),
        ("def grow(n): return n * 0", "wrong"),
        ("def grow(n): return n + 1", "passed"),
    ):
        assert grade(source, task, zygote).verdict == verdict


def test_a_program_cannot_raise_what_steers_a_check(zygote: Executor) -> None:
    """An AssertionError, StopIteration or GeneratorExit of its own is no event of the check's."""
    check = """
def check(candidate):
    seen = []
    try:
        for n in map(candidate, [1, 2, 3]):
            seen.append(n)
    except AssertionError:
        return
    assert seen == [1, 2, 3]
"""
    task = Task("count", "count", check=check)
    assert grade("def count(n): return n", task, zygote).verdict == "passed"
    for kind in ("AssertionError", "StopIteration", "GeneratorExit", "KeyboardInterrupt"):
        assert grade(f"def count(n): raise {kind}", task, zygote).verdict == "error", kind


def test_a_check_sees_values_and_never_the_programs_memory(zygote: Executor) -> None:
    """What a check hands over is copied: a program cannot change the check's own lists."""
    check = """
def check(candidate):
    given = [1, 2, 3]
    candidate(given)
    assert given == [1, 2, 3]
"""
    task = Task("clear", "clear", check=check)
    assert grade("def clear(x): x.clear()", task, zygote).verdict == "passed"


def test_tasks_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="neither"):
        Task("none", "f")
    with pytest.raises(UsageError, match="one of the two"):
        Task("both", "f", (Case(),), check=CHECK)
    with pytest.raises(UsageError, match="without an entry"):
        Task("script", check=CHECK)
    with pytest.raises(UsageError, match="type object"):
        key_of("", Task("odd", "f", (Case((object(),)),)))


def test_a_check_that_is_broken_is_the_tasks_mistake(zygote: Executor) -> None:
    for check in ("def check(candidate:", "x = 1", "1 / 0"):
        with pytest.raises(UsageError, match="a check"):
            grade("def f(): pass", Task("broken", "f", check=check), zygote)
    unsendable = Task("odd", "f", check="def check(candidate): candidate(object())")
    with pytest.raises(UsageError, match="type object"):
        grade("def f(x): pass", unsendable, zygote)
    assert grade("def add(a, b): return a + b", ADD, zygote).verdict == "passed"


def test_keys_tell_programs_and_tasks_apart() -> None:
    other = Task("add", "add", (*ADD.cases[:2], Case(("a", "b"), b"ab")))
    strict = Task("add", "add", ADD.cases, tolerance=0.0)
    keys = {
        key_of("x", ADD), key_of("y", ADD), key_of("x", other), key_of("x", strict),
        key_of("x", Task("add", "add", ADD.cases, limits=Limits(cpu_seconds=9))),
    }  # fmt: skip
    assert len(keys) == 5
    assert key_of("x", ADD) == key_of("x", Task("called otherwise", "add", ADD.cases))


def test_the_cache_keeps_the_latest(zygote: Executor) -> None:
    grades = [grade(f"def add(a, b): return a + b  # {n}", ADD, zygote) for n in range(3)]
    one = GradeCache()
    one.put(b"0", grades[0])
    cache = GradeCache(most_bytes=2 * one.bytes + 100)
    cache.put(b"0", grades[0])
    cache.put(b"1", grades[1])
    assert cache.get(b"0") is grades[0]
    cache.put(b"2", grades[2])
    assert cache.get(b"1") is None  # asked for longest ago
    assert (cache.get(b"0"), cache.get(b"2")) == (grades[0], grades[2])
    assert cache.hits == 3
    refused = grade("x" * 100, Task("add", "add", ADD.cases, limits=Limits(source=10)), zygote)
    cache.put(b"r", refused)
    assert cache.get(b"r") is None
    cache.put(b"0", grades[0])
    assert cache.bytes == 2 * one.bytes
    none = GradeCache(most_bytes=0)
    none.put(b"0", grades[0])
    assert (none.get(b"0"), none.bytes) == (None, 0)
