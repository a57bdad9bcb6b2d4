"""Workers that are stopped, killed or hang, at every moment: the learner notices and goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stopping_toys import STEPS_TO_END, FailingFactory, arm
from vector_toys import Small, Waiting

from fugu.vector import Vector, make
from fugu.vector.backends import RestartedError

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="stops processes"),
]
LIMIT = 0.5  # step_timeout
START = 15.0  # start_timeout, where it is not what is tested


def pids(vec: Vector) -> list[int]:
    return [process.pid for process in vec._backend._processes]  # type: ignore[attr-defined]


def vector(file: Path, **options: Any) -> Vector:
    return make(
        FailingFactory(file),
        2,
        backend="process",
        num_workers=2,
        step_timeout=LIMIT,
        max_restarts=100,
        resumable=True,
        **{"start_timeout": START, **options},
    )


def restarted(work: Any) -> Any:
    """Do it; if the environment restarted instead, that is right as well."""
    with contextlib.suppress(RestartedError):
        return work()


def go(vec: Vector, moment: str) -> None:
    """Have every worker come to a moment."""
    if moment == "reset":
        vec.reset(options={"now": True})
    elif moment == "infos":
        for _ in range(STEPS_TO_END):
            vec.step([0, 0])
    elif moment == "restart":
        vec.step([1, 0])
    elif moment == "state":
        vec.snapshot()
    elif moment == "set_state":
        vec.restore(vec.snapshot(), np.arange(2))
    elif moment == "render":
        restarted(vec.render)
    elif moment == "call":
        restarted(lambda: vec.call("ask"))
    else:
        vec.step([0, 0])


MOMENTS = ["step", "reset", "infos", "render", "call", "state", "set_state"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("deed", ["stop", "hang"])
def test_whatever_stops_in_an_environment_is_noticed(
    deed: str, moment: str, tmp_path: Path
) -> None:
    with vector(tmp_path / "armed") as vec:
        vec.reset(seed=1)
        arm(tmp_path / "armed", deed, moment)
        go(vec, moment)
        assert [fault.kind for fault in vec.faults] == ["stalled"]
        assert go_on(vec)


@pytest.mark.parametrize("moment", ["step", "reset", "render", "call", "state", "set_state"])
def test_a_worker_that_was_stopped_while_idle_is_noticed(moment: str, tmp_path: Path) -> None:
    with vector(tmp_path / "never") as vec:
        vec.reset(seed=1)
        os.kill(pids(vec)[0], signal.SIGSTOP)
        go(vec, moment)
        assert [fault.kind for fault in vec.faults] == ["stalled"]
        assert "no sign of life" in vec.faults[0].detail
        assert go_on(vec)


def test_a_close_that_hangs_does_not_hang_the_restart(tmp_path: Path) -> None:
    with vector(tmp_path / "armed") as vec:
        vec.reset(seed=1)
        arm(tmp_path / "armed", "hang", "close")
        vec.step([1, 0])  # it raises, and is closed
        assert [fault.kind for fault in vec.faults] == ["stalled"]
        assert go_on(vec)


def test_a_worker_that_never_reports_is_replaced(tmp_path: Path) -> None:
    with vector(tmp_path / "armed", start_timeout=5.0) as vec:
        vec.reset(seed=1)
        arm(tmp_path / "armed", "stop", "start")
        os.kill(pids(vec)[0], signal.SIGKILL)  # its successor stops before it begins
        vec.step([0, 0])
        assert [fault.kind for fault in vec.faults][:2] == ["killed", "stalled"]
        assert "no report" in vec.faults[1].detail
        assert go_on(vec)


def go_on(vec: Vector) -> bool:
    """Whether all steps are valid again after one that may be broken."""
    vec.step([0, 0])
    vec.send([0, 0])
    return bool(vec.recv().valid.all())


def test_long_letters_to_a_stopped_worker_do_not_block(tmp_path: Path) -> None:
    with vector(tmp_path / "never") as vec:
        vec.reset(seed=1)
        os.kill(pids(vec)[1], signal.SIGSTOP)
        vec.reset(options={"text": "x" * 4_000_000})
        assert [fault.kind for fault in vec.faults] == ["stalled"]
        assert vec.get_attr("count") == (0, 0)  # nothing of the letter is taken for a later one
        assert go_on(vec)


def test_work_that_lasts_longer_than_the_limit_is_no_stall() -> None:
    class Slow(Small):
        def step(self, action: Any) -> Any:
            time.sleep(0.2)
            return super().step(action)

    with make(Slow, 6, backend="process", num_workers=2, step_timeout=0.5) as vec:
        vec.reset(seed=1)
        vec.step([0] * 6)
        assert not vec.faults


@pytest.mark.parametrize("backend", ["serial", "threads", "process"])
def test_environments_that_wait_are_signs_of_life(backend: Any) -> None:
    with make(Waiting, 2, backend=backend, num_workers=1, step_timeout=0.3) as vec:
        vec.reset(seed=1)
        vec.step([4, 4])  # 0.2 s
        assert not vec.faults


# ---------------------------------------------------------------------- closing


def run(script: str) -> subprocess.CompletedProcess[str]:
    folder = Path(__file__).parents[1] / "vector"
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


@pytest.mark.parametrize("backend", ["process", "threads"])
@pytest.mark.parametrize("end", ["vec.close()", "pass"])
def test_a_close_that_hangs_ends_with_the_process(backend: str, end: str) -> None:
    done = run(f"""
        import time, fugu
        from vector_toys import Small
        class Hangs(Small):
            def close(self):
                time.sleep(3600)
        vec = fugu.make(Hangs, 2, backend={backend!r}, num_workers=2)
        vec.reset(seed=1)
        vec.step([0, 0])
        {end}
        print("end", flush=True)
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr
    assert "close() of" in done.stderr  # that of the copy which was made to look at


def test_a_stopped_worker_does_not_hang_the_end_of_python() -> None:
    done = run("""
        import os, signal, fugu
        from vector_toys import Small
        vec = fugu.make(Small, 2, backend="process", num_workers=2)
        vec.reset(seed=1)
        for process in vec._backend._processes:
            os.kill(process.pid, signal.SIGSTOP)
        print("end", flush=True)
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


# ---------------------------------------------------------------------- forks


@pytest.mark.parametrize("backend", ["process", "threads", "serial"])
def test_a_forked_child_that_ends_leaves_the_vector_alone(backend: str) -> None:
    workers = 1 if backend == "serial" else 2
    done = run(f"""
        import gc, os, sys, fugu
        from vector_toys import Small
        vec = fugu.make(Small, 2, backend={backend!r}, num_workers={workers})
        vec.reset(seed=1)
        for way in range(3):
            child = os.fork()
            if child == 0:
                if way == 1:
                    vec.close()
                elif way == 2:
                    del vec
                    gc.collect()
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            vec.step([0, 0])
        assert not vec.faults
        print("end", flush=True)
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_a_learner_that_was_stopped_itself_blames_nobody() -> None:
    done = run("""
        import os, signal, subprocess, sys, fugu
        from vector_toys import Sleepy
        vec = fugu.make(Sleepy, 2, backend="process", num_workers=2, step_timeout=1.0)
        vec.reset(seed=1)
        own = [os.getpid(), *(process.pid for process in vec._backend._processes)]
        wake = f"import os, signal, time; time.sleep(3)\\nfor pid in {own}: os.kill(pid, 18)"
        script = f"import os, time; time.sleep(0.2)\\nfor pid in {own}: os.kill(pid, 19)\\n" + wake
        stopper = subprocess.Popen([sys.executable, "-c", script])
        for _ in range(20):
            vec.step([4, 4])  # 40 ms each
        stopper.wait()
        print("faults", [str(fault) for fault in vec.faults], flush=True)
    """)
    assert done.stdout.strip() == "faults []", done.stdout + done.stderr
