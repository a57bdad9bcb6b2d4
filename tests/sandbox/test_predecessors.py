"""A program learns nothing of the programs that ran before it, wherever it looks."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.thefts import THEFTS, Theft
from sandbox_helpers import WALLED, absent

from fugu.sandbox import Call, Case, Executor, Limits, Program, Task, grade, make_executor
from fugu.sandbox.session import SessionOver
from fugu.sandbox.zygote import ZygoteExecutor

LIMITS = Limits(cpu_seconds=5.0, memory=512 << 20)
KINDS = [*WALLED, "zygote, reference"]


def make(kind: str) -> Executor:
    if kind.startswith("zygote"):
        return ZygoteExecutor(jail="none", native=kind == "zygote")
    return make_executor(kind)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=KINDS)
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    kind = request.param
    if kind in WALLED and absent(kind):
        pytest.skip(absent(kind))
    with make(kind) as made:
        yield made


def leave_secrets(executor: Executor, secret: str) -> None:
    """Run programs that have the secret in every place where a program can have something."""
    source = f"""
import sys
KEPT = {secret!r}
def f(x, key=""):
    print(KEPT, x)
    print(KEPT, x, file=sys.stderr)
    return [KEPT, x, key]
def g(x): raise ValueError(KEPT + x)
"""
    whole = Program(source, "f")
    assert executor.run(whole, [(secret,), Call((secret,), {"key": secret})]).verdict == "passed"
    assert executor.run(Program(source, "g"), [(secret,)]).verdict == "error"
    with contextlib.suppress(SessionOver):
        session = executor.session(whole)
        try:
            session.call((secret,), {"key": secret})
        finally:
            session.close()
    long = f"{source}\nWORDS = {[secret] * 20_000}\n"
    assert executor.run(Program(long, "f"), [(secret * 1000,)]).verdict == "passed"
    script = f"{source}\nimport sys\nprint(sys.stdin.read())"
    assert executor.run(script, [secret * 1000]).verdict in ("passed", "error")
    task = Task("t", "f", (Case((secret,), secret),), limits=LIMITS)
    assert grade(source, task, executor).verdict == "wrong"
    check = f"def check(candidate):\n    assert candidate({secret!r}) == {secret!r}"
    assert grade(source, Task("t", "f", check=check), executor).verdict == "wrong"


@pytest.mark.parametrize("theft", THEFTS, ids=lambda theft: theft.name)
def test_no_way_leads_to_a_predecessor(executor: Executor, theft: Theft) -> None:
    secret = f"secret-{secrets.token_hex(8)}"
    leave_secrets(executor, secret)
    found = executor.run(theft.program, [()], LIMITS)
    told = repr([outcome.value for outcome in found.outputs])
    assert secret not in told + found.stdout + found.stderr + found.message


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "reference"])
def test_a_zygote_holds_nothing_of_its_programs(native: bool) -> None:
    """All of its memory, read from outside: what is not there cannot be inherited."""
    with ZygoteExecutor(jail="none", native=native) as zygote:
        try:
            memory(zygote.pid)
        except PermissionError:
            pytest.skip("this user may not read another process's memory")
        secret = f"secret-{secrets.token_hex(8)}"
        leave_secrets(zygote, secret)
        found = memory(zygote.pid)
        assert b"prepare_lock" in found  # it was really read
        assert secret.encode() not in found
        assert zygote.restarts == 0


def memory(pid: int) -> bytes:
    """What stands in all pages of a process."""
    pieces = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            start, end = (int(number, 16) for number in where.split("-"))
            if rights.startswith("r"):
                with contextlib.suppress(OSError, OverflowError):
                    file.seek(start)
                    pieces.append(file.read(end - start))
    return b"".join(pieces)
