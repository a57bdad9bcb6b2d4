"""Pools: many programs at once, whatever happens to those who run them."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
from sandbox_helpers import children, eventually, is_running

from fugu.core.errors import UsageError
from fugu.sandbox import (
    Case,
    Execution,
    ExecutorPool,
    Limits,
    Program,
    SandboxError,
    Task,
    make_executor,
)

DOUBLE = Task("double", "double", (Case((2,), 4), Case(("a",), "aa")))
RIGHT = "def double(x): return x + x"
WRONG = "def double(x): return x"
LOOP = "def double(x):\n    while True: pass"


@pytest.fixture(scope="module")
def pool() -> Iterator[ExecutorPool]:
    with ExecutorPool(workers=2, cache=0) as made:
        yield made


def collect(pool: ExecutorPool, tickets: list[int]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    deadline = time.monotonic() + 120
    while len(found) < len(tickets):
        assert time.monotonic() < deadline, f"{len(found)} of {len(tickets)}"
        found |= {done.ticket: done.result for done in pool.wait(1.0)}
    return found


def test_a_thousand_programs_in_flight(pool: ExecutorPool) -> None:
    sources = [(RIGHT if n % 3 else WRONG) + f"  # {n}" for n in range(1024)]
    tickets = [pool.submit(source, DOUBLE) for source in sources]
    found = collect(pool, tickets)
    verdicts = [found[ticket].verdict for ticket in tickets]
    assert verdicts == ["passed" if n % 3 else "wrong" for n in range(1024)]
    assert pool.pending == 0


def test_whoever_is_free_takes_the_next(pool: ExecutorPool) -> None:
    """One executor is held up by a sleeper; all others' programs are done before it wakes."""
    sleeper = pool.submit_run("import time; time.sleep(3)")
    others = [pool.submit(f"{RIGHT}  # {n}", DOUBLE) for n in range(20)]
    done = []
    while pool.pending:
        done += pool.wait(10)
    assert [finished.ticket for finished in done][-1] == sleeper
    assert {finished.ticket for finished in done} == {sleeper, *others}
    assert {finished.worker for finished in done} == {0, 1}
    assert all(finished.ended >= finished.began > 0 for finished in done)


def test_polling_never_waits_and_tickets_are_answered_once(pool: ExecutorPool) -> None:
    ticket = pool.submit_run(Program("import time\ndef f(): time.sleep(0.5); return 7", "f"), [()])
    assert pool.poll() == []
    assert pool.result(ticket) is None
    assert pool.wait(0.0) == []
    found: list[Any] = []
    assert eventually(lambda: bool(found.append(pool.result(ticket)) or found[-1] is not None))
    assert isinstance(found[-1], Execution)
    assert found[-1].outputs[0].value == 7
    assert pool.result(ticket) is None


def test_a_job_can_be_forgotten(pool: ExecutorPool) -> None:
    kept, dropped = (pool.submit(f"{RIGHT}  # {n}", DOUBLE) for n in range(2))
    pool.forget(dropped)
    assert list(collect(pool, [kept])) == [kept]
    assert pool.pending == 0
    assert pool.grade([(WRONG, DOUBLE)])[0].verdict == "wrong"
    assert pool.poll() == []


def test_grade_and_run_wait(pool: ExecutorPool) -> None:
    grades = pool.grade([(RIGHT, DOUBLE), (WRONG, DOUBLE), (RIGHT, DOUBLE)])
    assert [found.verdict for found in grades] == ["passed", "wrong", "passed"]
    assert pool.run("print(6 * 7)").stdout == "42\n"


def test_grades_are_remembered_and_programs_under_way_shared() -> None:
    with ExecutorPool(workers=1) as pool:
        tickets = [pool.submit(RIGHT, DOUBLE) for _ in range(50)]
        first = collect(pool, tickets)
        assert {found.verdict for found in first.values()} == {"passed"}
        again = pool.submit(RIGHT, DOUBLE)
        (finished,) = pool.poll()
        assert (finished.ticket, finished.worker) == (again, -1)
        assert pool.cache_hits == 1
        other = pool.submit(RIGHT, Task("double", "double", (Case((2,), 5),)))
        assert collect(pool, [other])[other].verdict == "wrong"


def test_a_journal_has_what_was_run_and_when() -> None:
    with ExecutorPool(workers=1) as pool:
        pool.journal = []
        tickets = [pool.submit(source, DOUBLE) for source in (RIGHT, RIGHT, WRONG)]
        collect(pool, tickets)
        collect(pool, [pool.submit(RIGHT, DOUBLE)])
        first, second = pool.journal  # equal ones run once
        assert [first.ticket, second.ticket] == [tickets[0], tickets[2]]
        for job in pool.journal:
            assert job.submitted <= job.began <= job.ended
        assert first.ended <= second.began


def test_an_executor_that_cannot_start_says_why_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydantic_monty")
    monkeypatch.setenv("MONTY_BIN", "/nonexistent/monty")
    with pytest.raises(SandboxError, match="monty"):
        ExecutorPool("monty", workers=2)


def test_a_killed_broker_loses_nothing() -> None:
    with ExecutorPool(workers=2) as pool:
        assert pool.grade([(RIGHT, DOUBLE)])[0].verdict == "passed"
        before = {pool.pid} | children(pool.pid)
        tickets = [pool.submit(f"{RIGHT} + x - x  # {n}", DOUBLE_NUMBER) for n in range(200)]
        os.kill(pool.pid, signal.SIGKILL)
        found = collect(pool, tickets)
        assert {grade.verdict for grade in found.values()} == {"passed"}
        assert pool.respawns == 1
        assert eventually(lambda: not any(map(is_running, before)))


DOUBLE_NUMBER = Task("double", "double", (Case((2,), 4),))


def test_a_killed_zygote_loses_nothing() -> None:
    with ExecutorPool(workers=1, jail="none") as pool:
        (zygote,) = children(pool.pid)
        tickets = [pool.submit(f"{RIGHT}  # {n}", DOUBLE) for n in range(100)]
        os.kill(zygote, signal.SIGKILL)
        found = collect(pool, tickets)
        assert {grade.verdict for grade in found.values()} == {"passed"}
        assert pool.respawns == 0


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        ("def check(c):\n    assert c(1) == 2\n    while True: pass", "2"),
        ("def check(c): assert sum(range(c(3))) > 1", "10**12"),  # holds the interpreter's lock
        ("def check(c): assert len(bytes(c(3))) > 1 << 50", "1 << 40"),
        ("import re\ndef check(c): assert re.match('(a*)*b', c(1))", "'a' * 40"),
        ("import time\ndef check(c): time.sleep(c(1))", "1000"),
        ("import os\ndef check(c): os._exit(c(1))", "3"),
        ("def check(c): print(c(1) * 10**6, c(c(1)))", "'x' * 1000"),
    ],
)
def test_a_check_that_an_answer_keeps_busy_holds_up_nobody(check: str, answer: str) -> None:
    limits = Limits(cpu_seconds=0.3, wall_seconds=2.0)
    hostile = Task("hostile", "double", check=check, limits=limits)
    with ExecutorPool(workers=1) as pool:
        busy = pool.submit(f"def double(x): return {answer}", hostile)
        others = [pool.submit(f"{RIGHT}  # {n}", DOUBLE) for n in range(20)]
        found = collect(pool, [busy, *others])
        assert found[busy].verdict in ("wrong", "error"), found[busy]
        assert {found[ticket].verdict for ticket in others} == {"passed"}
        assert pool.respawns == 0


def test_a_checker_that_fails_is_an_error_and_one_that_does_not_load_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = types.ModuleType("nowhere_to_be_found")  # which the broker cannot import
    exec("def checker(case, answer):\n    return True\n", nowhere.__dict__)
    monkeypatch.setitem(sys.modules, "nowhere_to_be_found", nowhere)
    task = Task("double", "double", (Case((2,), 4),), checker=lambda case, answer: answer > 3)
    failing = Task("double", "double", (Case((2,), 4),), checker=lambda case, answer: 1 / 0 > 0)
    hanging = Task(
        "double", "double", (Case((2,), 4),), limits=Limits(cpu_seconds=0.2),
        checker=lambda case, answer: sum(range(10**12)) > answer,
    )  # fmt: skip
    unknown = Task("double", "double", (Case((2,), 4),), checker=nowhere.checker)
    with ExecutorPool(workers=1) as pool:
        assert pool.grade([(RIGHT, task)])[0].verdict == "passed"
        (none,) = pool.grade([("def double(x): return None", task)])
        assert none.verdict == "error"
        assert "TypeError" in none.message
        (broken,) = pool.grade([(RIGHT, failing)])
        assert (broken.verdict, broken.passed) == ("error", (False,))
        assert "ZeroDivisionError" in broken.message
        assert pool.grade([(RIGHT, hanging)])[0].verdict == "error"
        with pytest.raises(SandboxError, match="No module named"):
            pool.grade([(RIGHT, unknown)])
        assert pool.grade([(RIGHT, DOUBLE)])[0].verdict == "passed"


def test_a_pool_keeps_no_answers() -> None:
    """What a trainer remembers of programs is bounded by bytes, whatever they answer."""
    big = "def double(x): return ['x' * 100_000 + str(n) for n in range(15)], {n}"
    with ExecutorPool(workers=1, cache=1 << 20) as pool:
        sources = [big.replace("{n}", str(n)) for n in range(20)]
        grades = pool.grade([(source, DOUBLE) for source in sources])
        assert {found.verdict for found in grades} == {"wrong"}
        assert max(len(pickle.dumps(found)) for found in grades) < 5000
        assert pool._cache.bytes <= 1 << 20


def test_close_leaves_nothing_behind() -> None:
    before = children()
    pool = ExecutorPool(workers=2)
    for n in range(10):
        pool.submit(f"{LOOP}  # {n}", DOUBLE)
    assert eventually(lambda: len(children() - before) >= 5)  # a broker, zygotes, programs
    started = children() - before
    pool.close()
    assert eventually(lambda: not any(map(is_running, started)))
    pool.close()
    with pytest.raises(UsageError, match="after close"):
        pool.submit(RIGHT, DOUBLE)


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="workers"):
        ExecutorPool(workers=0)
    with pytest.raises(UsageError, match="zygote, bubblewrap"):
        ExecutorPool("docked")  # type: ignore[arg-type]
    with pytest.raises(SandboxError, match="jailed"):
        ExecutorPool(jailed=True)


def test_a_pool_belongs_to_its_process(pool: ExecutorPool) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            pool.submit(RIGHT, DOUBLE)
        except UsageError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert pool.grade([(RIGHT, DOUBLE)])[0].verdict == "passed"


def test_pools_and_executors_agree(pool: ExecutorPool) -> None:
    from fugu.sandbox import grade

    sources = [
        RIGHT,
        WRONG,
        "def double(x",
        "def double(x): return 1 / 0",
        "import os; os._exit(0)",
    ]
    with make_executor() as executor:
        alone = [grade(source, DOUBLE, executor).verdict for source in sources]
    together = [found.verdict for found in pool.grade([(source, DOUBLE) for source in sources])]
    assert alone == together == ["passed", "wrong", "syntax", "error", "error"]
