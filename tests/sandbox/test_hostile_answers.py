"""Whatever a program answers there is a verdict: bounded in time, in memory and in its text."""

from __future__ import annotations

import contextlib
import math
import pickle
import time
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fugu.sandbox import Case, Execution, Executor, Limits, Outcome, Task, grade, make_executor
from fugu.sandbox.execution import clean, printable, shown
from fugu.sandbox.grading import judge_answers
from fugu.sandbox.guest.codec import CodecError, decode, encode

LIMITS = Limits(cpu_seconds=1.0, wall_seconds=10.0)
VERDICTS = ("passed", "wrong", "error")
texts = st.text(st.characters(exclude_categories=())) | st.just("x" * 5000)
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**4400, 10**4500) | st.floats()
    | texts | st.binary() | st.complex_numbers(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
hostile = st.recursive(
    keys | st.binary().map(bytearray),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.sets(keys, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.tuples(inner, st.integers(1, 55)).map(lambda pair: nested(*pair))
    ),
    max_leaves=10,
)


def nested(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture(scope="module")
def zygote() -> Iterator[Executor]:
    with make_executor() as made:
        yield made


@given(hostile, hostile, texts, texts)
@settings(max_examples=300, deadline=None)
def test_every_answer_has_a_verdict(value: Any, other: Any, kind: str, text: str) -> None:
    for entry in ("f", ""):
        task = Task("any", entry, (Case((1,), 3, stdin="1"), Case((2,), [other][:0], stdin="2")))
        outcomes = (Outcome(value), Outcome(error=kind or "E", text=text))
        for outputs in (outcomes, outcomes[:1], outcomes[:1] * 5, ()):
            found = judge_answers(task, Execution("passed", outputs), unused)
            assert found.verdict in VERDICTS
            assert len(found.passed) == 2
            assert len(found.message) < 1000
            found.message.encode()


def unused(task: Task, answers: Any) -> Any:
    raise AssertionError("there is no checker")


@given(hostile, st.integers(1, 300))
@settings(max_examples=300, deadline=None)
def test_shown_values_are_bounded_and_can_be_written(value: Any, most: int) -> None:
    text = shown(value, most)
    assert len(text) <= most
    text.encode()
    assert printable(text) == text


@given(texts, st.integers(0, 100))
def test_clean_texts_can_be_written(text: str, most: int) -> None:
    assert len(clean(text, most)) <= most
    clean(text, most).encode()
    assert "\x1b" not in printable(clean(text, most))


HOSTILE = {
    "an integer of many digits": "10**5000",
    "an integer of too many bytes": "1 << (1 << 20)",
    "nesting at the bound": "deep(64)",
    "nesting beyond it": "deep(65)",
    "nesting at what a message allows": "deep(62)",
    "a value in itself": "cycle()",
    "not a number": "float('nan')",
    "the largest float": "[1.7976931348623157e308, 5e-324, -0.0, float('inf')]",
    "a lone surrogate": "'\\ud800' * 100",
    "zero bytes": "'\\0' * 1000",
    "escapes": "'\\x1b[2J' * 100",
    "nothing": "None",
    "bytes": "b'\\xff' * 1000",
    "a huge text": "'x' * (3 << 20)",
    "a text longer than allowed": "'x' * (5 << 20)",
    "a huge set": "set(range(100_000))",
    "keys of every kind": "{None: 1, (1, (2, b'x')): 2, frozenset({3}): 3, float('nan'): 4, 1j: 5}",
    "an answer that is a type": "int",
    "an error with a surrogate": "fail('\\ud800')",
    "an error of a strange kind": "strange()",
    "an error that cannot be written": "unwritable()",
    "keys of one hash": "{n * (2**61 - 1) for n in range(60)}",
    "sets of one hash": "twins(10)",
}
PRELUDE = """
def deep(n):
    value = 1
    for _ in range(n): value = [value]
    return value
def cycle():
    value = []
    value.append(value)
    return value
def fail(text): raise ValueError(text)
def strange(): raise type('\\x1b[2J' + 'x' * 10**5, (Exception,), {})('x' * 10**6)
class Unwritable(Exception):
    def __str__(self): raise self
def unwritable(): raise Unwritable
def twins(depth):
    one, other = frozenset({-1}), frozenset({-2})
    for _ in range(depth):
        one, other = frozenset({one, (other, 0)}), frozenset({other, (one, 0)})
    return {one, other}
"""
CHECKS = {
    "compares": "def check(c): assert c(1) == 1",
    "hands back": "def check(c): assert c(c(c(1))) == 1",
    "writes": "def check(c):\n    x = c(1)\n    assert x == 1, f'{x!r} is {x}'",
    "counts": "def check(c): assert sum(range(c(1))) == len(c(2)) ** c(3)",
    "sorts": "def check(c): assert sorted(c(1))[0] not in set(c(2)) and {c(3): 1}",
    "raises it": "def check(c): raise KeyError(c(1))",
}


def use(case: Case, answer: Any) -> bool:
    return bool(len(answer) > 2 and sorted(answer)[0] == str(answer))


TASKS = {
    "cases": Task("t", "f", (Case((1,), 1), Case((2,), "two")), limits=LIMITS),
    "checker": Task("t", "f", (Case((1,), 1), Case((2,), 2)), checker=use, limits=LIMITS),
    **{name: Task("t", "f", check=check, limits=LIMITS) for name, check in CHECKS.items()},
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_is_wrong_or_an_error(zygote: Executor, answer: str) -> None:
    source = f"{PRELUDE}\ndef f(x): return {answer}"
    for name, task in TASKS.items():
        found = grade(source, task, zygote)
        assert found.verdict in ("wrong", "error", "output", "memory", "timeout"), (name, found)
        assert len(pickle.dumps(found)) < 20_000
        found.message.encode()
        assert grade("def f(x): return 1", TASKS["compares"], zygote).verdict == "passed"


def test_a_forged_answer_of_a_script_is_wrong(zygote: Executor) -> None:
    forged = "import os\nbody = {!r}\nos.write(3, len(body).to_bytes(4, 'little') + body)"
    task = Task("t", "", (Case(stdin="", expected="1"),), limits=LIMITS)
    for value in (10**5000, [1], None, "\ud800", nested(1, 60)):
        body = encode(("value", value))
        assert grade(forged.format(body), task, zygote).verdict in ("wrong", "error")


def test_sets_of_one_hash_are_not_compared_for_ever() -> None:
    """In nested sets the work would grow with the square of their size."""

    def twin(depth: int, leaf: int) -> bytes:
        if depth == 0:
            return encode(frozenset({leaf}))
        one, other = twin(depth - 1, -1), twin(depth - 1, -2 if leaf == -2 else -1)
        pair = b"t\2\0\0\0" + other + encode(0)
        return b"Z\2\0\0\0" + one + pair

    began = time.monotonic()
    for depth in range(1, 13):
        data = b"S\2\0\0\0" + twin(depth, -1) + twin(depth, -2)
        with contextlib.suppress(CodecError):
            decode(data)
    assert decode(encode({frozenset({-1}), frozenset({-2})})) == {frozenset({-1}), frozenset({-2})}
    assert time.monotonic() - began < 120  # a wide margin: it would be hours


def test_many_honest_keys_of_few_hashes_pass() -> None:
    grid = {(x, y) for x in (-2, -1, 0) for y in range(-200, 20_000)}
    assert decode(encode(grid)) == grid


colour = IntEnum("colour", "RED")  # type: ignore[misc]
point = namedtuple("point", "x y")


@pytest.mark.parametrize(
    ("expected", "source"),
    [
        (Counter("aab"), "{'a': 2, 'b': 1}"),
        (OrderedDict(a=1), "{'a': 1}"),
        (defaultdict(list, {1: [2]}), "__import__('collections').defaultdict(list, {1: [2]})"),
        (point(1, 2), "(1, 2)"),
        (colour.RED, "1"),
        (np.float64(0.5), "0.5"),
        ([point(1, Counter("a"))], "[(1, {'a': 1})]"),
    ],
)
def test_expected_values_are_compared_as_answers_come(
    zygote: Executor, expected: Any, source: str
) -> None:
    task = Task("t", "f", (Case((1,), expected),))
    assert grade(f"def f(x): return {source}", task, zygote).verdict == "passed"
    assert grade("def f(x): return [3]", task, zygote).verdict == "wrong"


@pytest.mark.parametrize("letter", ["\x0b", "\x0c", "\x1c", "\x1d", "\x85", "\u2028", "\r"])
def test_only_line_feeds_end_lines(zygote: Executor, letter: str) -> None:
    task = Task("t", "", (Case(expected="1\n2\n"),))
    assert grade(f"print('1' + {letter!r} + '2')", task, zygote).verdict == "wrong"
    both = Task("t", "", (Case(expected=f"1{letter}2"),))
    assert grade("print('1\\n2')", both, zygote).verdict == "wrong"
    assert grade(f"print('1' + {letter!r} + '2')", both, zygote).verdict == "passed"
    assert grade("print('1 \\r\\n2\\t\\n\\n')", task, zygote).verdict == "passed"


@pytest.mark.parametrize("first", ["honest", "cheat"])
@pytest.mark.parametrize(
    "check",
    [
        "def check(c): assert c(c(3)) == 12345",
        "def check(c):\n    x = c(3)\n    assert x == 123\n    assert c(x) == 12345",
        "def check(c):\n    assert c(3) == 123\n    assert c(123) == 12345",
        "def check(c):\n    x = 3\n    for y in 123, 12345:\n        assert c(x) == y; x = y",
        "def check(c):\n    assert abs(c(3) - 123) < 1\n    assert c(123) == 12345",
        "def check(c):\n    for x in (3, 123): assert {3: 123, 123: 12345}[x] == c(x)",
    ],
)
def test_what_is_expected_is_in_no_planned_call(zygote: Executor, check: str, first: str) -> None:
    """A cheat that answers with an argument of another call, whoever was graded before it."""
    honest = "def f(x): return {3: 123, 123: 12345}[x]"
    cheat = """
import gc, sys
def f(x):
    frame, seen = sys._getframe(), ""
    while frame is not None:
        seen += repr(frame.f_locals)[:100000]
        frame = frame.f_back
    if x > 100:
        return x * 100 + 45
    return x * 41 if f"[{x * 41}]" in seen else 0
"""
    task = Task("t", "f", check=check)
    order = [honest, cheat, honest] if first == "honest" else [cheat, honest, cheat]
    for source in order:
        expected = "passed" if source is honest else "wrong"
        assert grade(source, task, zygote).verdict == expected


def test_plans_are_made_of_what_no_answer_changes(zygote: Executor) -> None:
    independent = Task("t", "f", check="def check(c):\n    assert c(1) == 5\n    assert c(2) == 6")
    plan = zygote.judge.plan(independent)
    assert plan is not None
    assert [decode(call) for call in plan] == [([1], {}), ([2], {})]
    for check in (
        "def check(c): assert c(c(1)) == 5",
        "def check(c):\n    assert c(1) == 5\n    assert c([5]) == 6",
        "def check(c):\n    for n in range(c(1)): c(n)",
        "def check(c):\n    while c(1) == 1: pass",
        "def check(c):\n    assert c(1) in {5, 6}",
        "def check(c):\n    if c(1) > 3: c(2)\n    assert c(3) is None",
    ):
        assert zygote.judge.plan(Task("t", "f", check=check, limits=LIMITS)) is None


def test_nan_is_expected_or_not() -> None:
    task = Task("t", "f", (Case((1,), math.nan),))
    assert judge_answers(task, Execution("passed", (Outcome(math.nan),)), unused).passed == (True,)
    assert judge_answers(task, Execution("passed", (Outcome(0.0),)), unused).passed == (False,)
