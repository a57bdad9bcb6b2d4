"""The zygote: it survives its programs, comes back from the dead, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sandbox_helpers import children, eventually, is_running

from fugu.core.errors import UsageError
from fugu.sandbox import Program, SandboxError, launch, make_executor
from fugu.sandbox.backends import UnsafeExecutor
from fugu.sandbox.executor import demand_isolation, find_missing_isolation
from fugu.sandbox.zygote import ZygoteExecutor

DOUBLE = Program("def double(x): return 2 * x", "double")
both_loops = pytest.mark.parametrize("native", [True, False], ids=["compiled", "reference"])
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed here"
)


@both_loops
def test_it_survives_and_is_the_same_process(native: bool) -> None:
    with ZygoteExecutor(native=native) as zygote:
        pid = zygote.pid
        for source in ("import os; os._exit(1)", "import os; os.abort()", "raise MemoryError"):
            assert zygote.run(source).verdict != "passed"
        assert zygote.run(DOUBLE, [(4,)]).outputs[0].value == 8
        assert zygote.pid == pid
        assert zygote.restarts == 0


@both_loops
def test_it_is_started_anew_when_it_dies_between_programs(native: bool) -> None:
    with ZygoteExecutor(jail="none", native=native) as zygote:
        for _ in range(3):
            pid = zygote.pid
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda pid=pid: not is_running(pid))  # type: ignore[misc]
            assert zygote.run(DOUBLE, [(4,)]).outputs[0].value == 8
        assert zygote.restarts == 3


@both_loops
def test_it_is_started_anew_when_it_dies_under_a_program(native: bool) -> None:
    with ZygoteExecutor(jail="none", native=native) as zygote:
        session = zygote.session(Program("import time\ndef f(s): time.sleep(s); return s", "f"))
        assert session.call((0,)).value == 0
        os.kill(zygote.pid, signal.SIGKILL)
        assert session.close().verdict == "refused"
        assert zygote.run(DOUBLE, [(4,)]).outputs[0].value == 8


def test_one_program_at_a_time() -> None:
    with ZygoteExecutor() as zygote:
        session = zygote.session(DOUBLE)
        with pytest.raises(UsageError, match="one at a time"):
            zygote.run(DOUBLE, [(1,)])
        session.close()
        assert zygote.run(DOUBLE, [(1,)]).verdict == "passed"


@both_loops
def test_close_leaves_no_process(native: bool) -> None:
    before = children()
    zygote = ZygoteExecutor(native=native)
    zygote.session(Program("def f():\n    while True: pass", "f"))
    started = children() - before
    assert started
    zygote.close()
    assert eventually(lambda: not any(map(is_running, started)))


def test_a_killed_trainer_leaves_no_process() -> None:
    program = textwrap.dedent("""
        import time
        from fugu.sandbox import Program
        from fugu.sandbox.zygote import ZygoteExecutor
        zygote = ZygoteExecutor()
        session = zygote.session(Program("def f():\\n    while True: pass", "f"))
        print("ready", flush=True)
        session.call(())
    """)
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        assert trainer.stdout.readline() == "ready\n"
    started = children(trainer.pid)
    assert started
    trainer.kill()
    trainer.wait()
    assert eventually(lambda: not any(map(is_running, started)))


def test_the_compiled_loop_is_there_and_used() -> None:
    assert launch.find_loop() is not None
    with ZygoteExecutor(jail="none") as zygote:
        command = Path(f"/proc/{zygote.pid}/cmdline").read_bytes()
    assert b"supervise.so" in command


def test_a_list_that_two_calls_share_is_two_lists_in_the_sandbox() -> None:
    shared = [1]
    program = Program("def grow(items): items.append(0); return len(items)", "grow")
    with ZygoteExecutor() as zygote:
        outputs = zygote.run(program, [(shared,), (shared,)]).outputs
    assert [outcome.value for outcome in outputs] == [2, 2]


def test_missing_isolation_is_named_and_refused() -> None:
    """An executor without isolation, tested as if it had some."""
    with UnsafeExecutor() as bare:
        missing = find_missing_isolation(bare)
        assert {"network", "files", "writing", "processes", "threads", "memory"} <= {*missing}
        with pytest.raises(SandboxError, match="network, .*missing_walls=True"):
            demand_isolation(bare, missing_walls=False)
        assert demand_isolation(bare, missing_walls=True) == missing


def test_it_says_what_holds() -> None:
    with ZygoteExecutor(jail="none") as zygote:
        assert zygote.missing == ()
        facts = zygote.facts()
    assert facts["backend"] == "zygote"
    assert facts["jail"] == "none"
    assert facts["seccomp"] == 1
    assert facts["landlock"] >= 0


@needs_bubblewrap
def test_inside_bubblewrap() -> None:
    with ZygoteExecutor(jail="bubblewrap") as zygote:
        assert zygote.jail == "bubblewrap"
        seen = zygote.run(
            Program("import os\ndef f(path): return os.path.exists(path)", "f"), [("/etc/passwd",)]
        )
        assert seen.outputs[0].value is False  # not even its name


@needs_bubblewrap
def test_scratch_is_there_for_one_program_only() -> None:
    source = """
import os
def f():
    there = os.listdir(".")
    os.mkdir("folder")
    with open("folder/file", "w") as file: file.write("x" * 1000)
    return there, os.getcwd(), open("folder/file").read() == "x" * 1000
"""
    with ZygoteExecutor(scratch=1 << 20) as zygote:
        for _ in range(2):
            execution = zygote.run(Program(source, "f"), [()])
            assert execution.verdict == "passed", execution
            assert execution.outputs[0].value == ([], "/scratch", True)
        full = "def f():\n    with open('big', 'wb') as file: file.write(bytes(4 << 20))"
        assert zygote.run(Program(full, "f"), [()]).verdict in ("error", "output")
        outside = "def f(): open('/tmp/x', 'w')"
        assert zygote.run(Program(outside, "f"), [()]).verdict == "error"


def test_scratch_and_jails_need_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for options in ({"scratch": 1 << 20}, {"jail": "bubblewrap"}):
        with pytest.raises(SandboxError, match="Install the system's package bubblewrap"):
            ZygoteExecutor(**options)  # type: ignore[arg-type]
    for backend in ("bubblewrap", "gvisor", "docker"):
        with pytest.raises(SandboxError, match=backend):
            make_executor(backend)  # type: ignore[arg-type]
