"""What a backend makes of a program: the same for all that are installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_helpers import WALLED, absent

from fugu.core.errors import UsageError
from fugu.sandbox import Call, Executor, Limits, Outcome, Program, make_executor
from fugu.sandbox.session import SessionOver

BACKENDS = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(bool(absent(name)), reason=absent(name)),
            *([pytest.mark.slow] if name in ("gvisor", "docker") else []),
        ],
    )
    for name in WALLED
]
REFERENCE = "zygote, reference"  # its loop in Python
WITH_UNSAFE = [*BACKENDS, REFERENCE, "unsafe"]
SHORT = Limits(cpu_seconds=0.2, wall_seconds=30, memory=64 << 20, output=1 << 14, result=1 << 16)


@pytest.fixture(scope="module", params=WITH_UNSAFE)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with _make(request.param) as made:
        yield made


@pytest.fixture(scope="module", params=[*BACKENDS, REFERENCE])
def walled(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with _make(request.param) as made:
        yield made


def _make(name: Any) -> Executor:
    return make_executor("zygote", native=False) if name == REFERENCE else make_executor(name)


def is_honest(executor: Executor) -> bool:
    execution = executor.run(Program("def f(x): return x * 2", "f"), [(21,)])
    return execution.verdict == "passed" and execution.outputs[0].value == 42


def test_values_cross_in_both_directions_with_their_types(executor: Executor) -> None:
    value: Any = {
        (1, 2.5): [None, True, {3}],
        "k": (b"b", 10**40, frozenset({"x"}), [float("inf")]),
    }
    execution = executor.run(
        Program("def same(x, *, y=0): return (x, y)", "same"), [(value,), Call((1,), {"y": 2})]
    )
    assert execution.verdict == "passed", execution
    assert [outcome.value for outcome in execution.outputs] == [(value, 0), (1, 2)]
    assert execution.peak_memory >= 0
    assert execution.cpu_seconds >= 0


def test_a_script_reads_and_prints(executor: Executor) -> None:
    source = "import sys\nn = int(input())\nprint(n * 2)\nprint('said', file=sys.stderr)\n"
    execution = executor.run(source, ["4", "5\n"])
    assert execution.verdict == "passed", execution
    assert [outcome.value for outcome in execution.outputs] == ["8\n", "10\n"]
    assert execution.stdout == "8\n10\n"
    assert execution.stderr == "said\nsaid\n"


def test_a_script_that_leaves_with_zero_has_passed(executor: Executor) -> None:
    assert executor.run("print(1)\nraise SystemExit").verdict == "passed"
    left = executor.run("print(1)\nraise SystemExit(3)")
    assert left.verdict == "error"
    assert left.outputs[0].error == "SystemExit"
    assert left.stdout == "1\n"


def test_syntax_is_found_before_anything_runs(executor: Executor) -> None:
    for source in ("print('ran')\ndef f(:", "print('ran')\nx = '\0'", "print('ran')\n" + "(" * 500):
        execution = executor.run(source)
        assert execution.verdict == "syntax", (source, execution)
        assert execution.stdout == ""


def test_an_error_of_one_call_leaves_the_others(executor: Executor) -> None:
    execution = executor.run(Program("def f(n): return 10 // n", "f"), [(5,), (0,), (2,)])
    assert execution.verdict == "error"
    assert [outcome.value for outcome in execution.outputs] == [2, None, 5]
    assert execution.outputs[1] == Outcome(
        error="ZeroDivisionError", text="integer division or modulo by zero (line 1)"
    )


def test_a_program_without_its_function_or_that_fails_to_load(executor: Executor) -> None:
    missing = executor.run(Program("x = 1", "solve"), [(1,)])
    assert (missing.verdict, missing.outputs) == ("error", ())
    assert "defines no solve" in missing.message
    failing = executor.run(Program("print('so far')\n1 / 0", "solve"), [(1,)])
    assert failing.verdict == "error"
    assert "ZeroDivisionError" in failing.message
    assert failing.stdout == "so far\n"


def test_answers_that_cannot_pass_are_errors(executor: Executor) -> None:
    if executor.name == "monty":
        pytest.skip("Monty gives such answers as texts")
    execution = executor.run(Program("def f(): return f", "f"), [()])
    assert execution.verdict == "error"
    assert "function" in execution.message


def test_a_program_that_is_too_long_is_refused(executor: Executor) -> None:
    execution = executor.run("x = 1\n" * 100, limits=Limits(source=50))
    assert execution.verdict == "refused"
    assert "600 characters" in execution.message


def test_ends_without_an_answer(executor: Executor) -> None:
    for act, word in (
        ("os._exit(0)", "without an answer"),
        ("os.abort()", "SIGABRT"),
        ("os.kill(os.getpid(), 40)", "signal 40"),
    ):
        execution = executor.run(Program(f"import os\ndef f(): {act}", "f"), [()])
        assert execution.verdict == "error", execution
        assert word in execution.message
    assert is_honest(executor)


def test_inputs_that_cannot_pass_are_the_callers_mistake(executor: Executor) -> None:
    with pytest.raises(UsageError, match="type object"):
        executor.run(Program("def f(x): pass", "f"), [(object(),)])
    with pytest.raises(UsageError, match=r"\(5,\)"):
        executor.run(Program("def f(x): pass", "f"), [5])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="standard input"):
        executor.run("print(1)", [(1,)])
    assert is_honest(executor)


def test_sessions(executor: Executor) -> None:
    source = "total = 0\ndef add(n):\n    global total\n    total += n\n    return total\n"
    session = executor.session(Program(source, "add"))
    assert [session.call((n,)).value for n in (1, 2, 3)] == [1, 3, 6]
    execution = session.close()
    assert execution.verdict == "passed"
    assert len(execution.outputs) == 3
    with pytest.raises(SessionOver):
        session.call((1,))
    assert is_honest(executor)


def test_a_session_of_a_program_that_ends(walled: Executor) -> None:
    if walled.name == "monty":
        pytest.skip("what Monty cannot do is over at once")
    session = walled.session(Program("import os\ndef f(): os._exit(3)", "f"))
    with pytest.raises(SessionOver):
        session.call(())
    assert session.close().verdict == "error"
    broken = walled.session(Program("def f(:", "f"))
    with pytest.raises(SessionOver):
        broken.call(())
    assert broken.close().verdict == "syntax"


# ---------------------------------------------------------------- limits, of backends that isolate


def test_processor_time(walled: Executor) -> None:
    for source in (
        "while True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "9 ** 9 ** 9",
    ):
        execution = walled.run(source, limits=SHORT)
        assert execution.verdict == "timeout", (source, execution)
        assert "processor time" in execution.message
        assert 0.1 < execution.cpu_seconds < 5
    assert is_honest(walled)


def test_answers_before_a_timeout_are_kept(walled: Executor) -> None:
    source = "def f(n):\n    while n == 2: pass\n    return n"
    execution = walled.run(Program(source, "f"), [(0,), (1,), (2,), (3,)], SHORT)
    assert execution.verdict == "timeout"
    assert [outcome.value for outcome in execution.outputs] == [0, 1]


def test_wall_clock(walled: Executor) -> None:
    limits = Limits(cpu_seconds=5, wall_seconds=0.5)
    execution = walled.run("import time\ntime.sleep(30)", limits=limits)
    assert execution.verdict == "timeout"
    assert "0.5 s" in execution.message
    assert is_honest(walled)


def test_memory(walled: Executor) -> None:
    for source in (
        "def f(): return len(bytearray(1 << 30))",
        "def f():\n    kept = []\n    while True: kept.append(bytes(1 << 20))",
        "def f(): return len([0] * (1 << 28))",
    ):
        execution = walled.run(Program(source, "f"), [()], Limits(memory=64 << 20))
        assert execution.verdict == "memory", execution
    at_load = walled.run(Program("kept = bytes(1 << 30)", "f"), [()], Limits(memory=64 << 20))
    assert at_load.verdict == "memory"
    enough = walled.run(
        Program("def f(): return len(bytes(100 << 20))", "f"), [()], Limits(memory=256 << 20)
    )
    assert enough.verdict == "passed"
    assert is_honest(walled)


def test_output(walled: Executor) -> None:
    for source in (
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(2, b'x' * 999)",
    ):
        execution = walled.run(source, limits=SHORT)
        assert execution.verdict == "output", execution
        assert max(len(execution.stdout), len(execution.stderr)) <= 1 << 14
    long = walled.run(Program("def f(): return 'x' * (1 << 17)", "f"), [()], SHORT)
    assert long.verdict == "output"
    assert is_honest(walled)


def test_messages_that_are_none_of_ours(walled: Executor) -> None:
    if walled.name == "monty":
        pytest.skip("its programs have no descriptors")
    for junk in ("b'junk' * 100", "b'\\xff' * 8", "b'\\1\\0\\0\\0N'", "b'\\0\\0\\0\\0'"):
        source = f"""
import os
def f():
    for descriptor in range(3, 64):
        try: os.write(descriptor, {junk})
        except OSError: pass
    return 1
"""
        execution = walled.run(Program(source, "f"), [(), ()], SHORT)
        assert execution.verdict in ("error", "output"), (junk, execution)
        assert is_honest(walled)


def test_a_forged_end_does_not_keep_the_sandbox_busy(walled: Executor) -> None:
    if walled.name == "monty":
        pytest.skip("its programs have no descriptors")
    source = """
import os
def f():
    frame = b"t\\1\\0\\0\\0s\\3\\0\\0\\0end"
    message = len(frame).to_bytes(4, "little") + frame
    for descriptor in range(3, 64):
        try: os.write(descriptor, message)
        except OSError: pass
    while True: pass
"""
    execution = walled.run(Program(source, "f"), [()], SHORT)
    assert execution.verdict in ("error", "timeout")
    assert is_honest(walled)


def test_deep_recursion_is_an_error(walled: Executor) -> None:
    execution = walled.run(Program("def f(n): return f(n + 1)", "f"), [(0,)])
    assert execution.verdict == "error"
    assert "RecursionError" in execution.message
    crash = """
import sys
sys.setrecursionlimit(10**9)
def f(n):
    x = []
    for _ in range(10**6): x = [x]
    return repr(x)
"""
    assert walled.run(Program(crash, "f"), [(0,)]).verdict in ("error", "memory", "timeout")
    assert is_honest(walled)


def test_chance_is_the_same_each_time(walled: Executor) -> None:
    if walled.name == "monty":
        pytest.skip("Monty has chances of its own")
    source = "import random\ndef f(): return [random.random(), list({'a', 'b', 'c', 'd', 'e'})]"
    found = [walled.run(Program(source, "f"), [()]).outputs[0].value for _ in range(3)]
    assert found[0] == found[1] == found[2]


def test_limits_are_checked() -> None:
    for bad in ({"cpu_seconds": 0}, {"memory": 1.5}, {"output": -1}, {"wall_seconds": True}):
        with pytest.raises(UsageError, match=f"limits.{next(iter(bad))}"):
            Limits(**bad)  # type: ignore[arg-type]


def test_an_unknown_backend() -> None:
    with pytest.raises(UsageError, match="zygote, bubblewrap"):
        make_executor("docked")  # type: ignore[arg-type]
