"""Whatever happens to a worker: the run goes on, or ends with one error."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vector_toys import Naughty, Sleepy, Small

from fugu.vector import Vector, WorkerError, make

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

DEEDS = {
    "raise": ("raised", "a deed of its own"),
    "exit": ("raised", "SystemExit: 3"),
    "hard-exit": ("exited", "with status 7"),
    "kill": ("killed", "by SIGKILL"),
    "segfault": ("killed", "by SIGSEGV"),
    "stall": ("stalled", "in misbehave"),
    "spin": ("stalled", "in misbehave"),
}


def children(pid: int | None = None) -> list[int]:
    """All processes below one, but for multiprocessing's own helpers."""
    below, found = [pid or os.getpid()], []
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
            command = (path.parent / "cmdline").read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
            if "forkserver" in command or "resource_tracker" in command:
                found.append(int(path.parent.name))
    helpers, every = set(found), []
    while below:
        for child in parents.get(below.pop(), []):
            below.append(child)
            if child not in helpers or parents.get(child) is None:
                every.append(child)
    return [child for child in every if child not in helpers]


def workers_of(vec: Vector) -> list[int]:
    return [process.pid for process in vec._backend._processes]  # type: ignore[attr-defined]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def wait_until(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


# ---------------------------------------------------------------------- single faults


@pytest.mark.parametrize("deed", DEEDS)
def test_a_fault_in_step_is_noticed_told_and_mended(deed: str) -> None:
    kind, words = DEEDS[deed]
    with make(
        functools.partial(Naughty, deed), 4, backend="process", num_workers=2, step_timeout=0.5
    ) as vec:
        vec.reset(seed=3)
        vec.step([0, 0, 0, 0])
        start = time.monotonic()
        vec.send([0, 4, 0, 0])
        batch = vec.recv()
        assert time.monotonic() - start < 3.0  # with the time a new process takes to begin
        (fault,) = vec.faults
        assert fault.kind == kind
        assert words in fault.detail
        assert 1 in fault.envs
        assert fault.seed is not None
        assert "last actions" in str(fault)
        assert not batch.valid[1]
        assert batch.valid[2:].all()  # the other worker is not disturbed
        assert batch.observations[2:, 0].tolist() == [2, 2]
        assert batch.observations[1, 0] == 0
        assert batch.live.all()
        vec.send([0, 0, 0, 0])
        batch = vec.recv()
        if deed not in ("raise", "exit"):  # the sibling lost its state, and is told apart
            assert not batch.valid[0] or batch.observations[0, 0] in (1, 2, 3)
        assert batch.valid[1:].all()
        assert batch.observations[1, 0] == 1
        vec.send([0, 0, 0, 0])
        assert vec.recv().valid.all()


@pytest.mark.parametrize("deed", ["raise", "hard-exit", "stall"])
def test_a_fault_in_reset_is_mended_too(deed: str) -> None:
    factory = functools.partial(Naughty, deed, "reset")
    with make(factory, 2, backend="process", num_workers=2, step_timeout=0.5) as vec:
        vec.reset(seed=0)
        vec.async_reset(seed=0, options={"now": True})
        batch = vec.recv()
        assert not batch.valid.any()
        assert len(vec.faults) == 2
        vec.send([1, 1])
        assert vec.recv().valid.all()


@pytest.mark.parametrize("deed", ["raise", "kill", "stall"])
def test_past_the_budget_there_is_one_error_with_the_cause(deed: str) -> None:
    before = set(children())
    vec = make(
        functools.partial(Naughty, deed),
        4,
        backend="process",
        num_workers=2,
        step_timeout=0.3,
        max_restarts=2,
    )
    vec.reset(seed=0)
    with pytest.raises(WorkerError, match="more than 2 restarts") as caught:  # noqa: PT012
        for _ in range(20):
            vec.step([0, 0, 0, 4])
    assert caught.value.fault is not None
    assert DEEDS[deed][1] in str(caught.value)
    assert wait_until(lambda: set(children()) <= before, 5)


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_an_exception_is_mended_without_processes_too(backend: Any) -> None:
    factory = functools.partial(Naughty, "raise")
    with make(factory, 2, backend=backend, num_workers=2 if backend == "threads" else None) as vec:
        vec.reset(seed=0)
        vec.send([4, 1])
        batch = vec.recv()
        assert batch.valid.tolist() == [False, True]
        assert "a deed of its own" in vec.faults[0].detail


def test_a_thread_that_stalls_is_a_fatal_error() -> None:
    vec = make(Sleepy, 2, backend="threads", num_workers=2, step_timeout=0.1)
    vec.reset(seed=0)
    vec.send([0, 4])  # 0.04 s: in time
    vec.recv()

    class Longer(Small):
        def step(self, action: Any) -> Any:
            time.sleep(2)
            return super().step(action)

    vec.close()
    vec = make(Longer, 2, backend="threads", num_workers=2, step_timeout=0.1)
    vec.reset(seed=0)
    vec.send([0, 0])
    with pytest.raises(WorkerError, match=r"cannot be ended from outside[\s\S]*time.sleep\(2\)"):
        vec.recv()
    vec.close()


# ---------------------------------------------------------------------- many kills


def test_two_hundred_kills_under_load() -> None:
    before, shm, files = set(children()), shared_memory(), descriptors()
    generator, kills, steps, broken = random.Random(0), 0, 0, 0
    vec = make(Small, 12, backend="process", num_workers=3, batch_size=4, max_restarts=10_000)
    vec.async_reset(seed=0)
    next_kill = time.monotonic() + 0.05
    while kills < 200:
        batch = vec.recv()
        steps += len(batch.env_ids)
        broken += int((~batch.valid).sum())
        assert batch.live.all()
        vec.send(np.zeros(4, int), batch.agent_ids)
        if time.monotonic() > next_kill:
            with contextlib.suppress(ProcessLookupError):  # it is gone, and not noticed yet
                os.kill(generator.choice(workers_of(vec)), signal.SIGKILL)
                kills += 1
            next_kill = time.monotonic() + generator.uniform(0.0, 0.06)
    for _ in range(50):
        batch = vec.recv()
        vec.send(np.zeros(4, int), batch.agent_ids)
    assert steps > 2_000
    assert broken > 0
    assert len(vec.faults) == 100  # the newest are kept
    vec.close()
    gc.collect()
    assert wait_until(lambda: set(children()) <= before, 5), children()
    assert shared_memory() == shm
    assert descriptors() <= files + 4  # the forkserver's own


# ---------------------------------------------------------------------- leaving


def test_closing_leaves_nothing_behind() -> None:
    for backend in ("serial", "threads", "process"):
        make(Small, 4, backend=backend, num_workers=2).close()  # what is made once, is made
    gc.collect()
    before = (set(children()), shared_memory(), descriptors(), threading.active_count())
    for backend in ("serial", "threads", "process"):
        for _ in range(3):
            vec = make(Small, 4, backend=backend, num_workers=2)
            vec.reset(seed=0)
            if backend != "serial":
                vec.send([0, 0, 0, 0])  # closed in the middle of a step
            vec.close()
            del vec
    gc.collect()
    after = (set(children()), shared_memory(), descriptors(), threading.active_count())
    assert after == before


def test_a_vector_that_is_dropped_closes_itself() -> None:
    before = set(children())
    vec = make(Small, 4, backend="process", num_workers=2)
    vec.reset(seed=0)
    del vec
    gc.collect()
    assert wait_until(lambda: set(children()) <= before, 5)


SCRIPT = """
import os, sys, time
sys.path.insert(0, {folder!r})
import numpy as np
from vector_toys import Sleepy
import fugu

def main():
    vec = fugu.make(Sleepy, 4, backend="process", num_workers=2, start_method={method!r})
    vec.reset(seed=0)
    print("ready", *[p.pid for p in vec._backend._processes], flush=True)
    {ending}

if __name__ == "__main__":
    main()
"""
ENDINGS = {
    "normal exit": "vec.step([0, 0, 0, 0])",
    "exception": "raise ZeroDivisionError('mine')",
    "kill": "[vec.step([1, 1, 1, 1]) for _ in range(10**6)]",
    "interrupt": "[vec.step([1, 1, 1, 1]) for _ in range(10**6)]",
    "kill while workers are busy": "vec.send([4, 4, 4, 4]); time.sleep(60)",
}


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_however_the_learner_ends_no_worker_stays(ending: str, method: str, tmp_path: Path) -> None:
    shm = shared_memory()
    folder = str(Path(__file__).parents[1] / "vector")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=folder, method=method, ending=ENDINGS[ending]))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    word, *pids = process.stdout.readline().split()
    assert word == "ready"
    time.sleep(0.1)
    if ending.startswith("kill"):
        process.kill()
    elif ending == "interrupt":
        os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode == 0) == (ending == "normal exit"), errors
    if ending == "exception":
        assert "mine" in errors
    if ending == "interrupt":
        assert "KeyboardInterrupt" in errors
        assert errors.count("Traceback") == 1, errors
    gone = wait_until(lambda: not any(Path(f"/proc/{pid}/mem").exists() for pid in pids), 5)
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert gone or all("Z" in Path(f"/proc/{p}/stat").read_text().rpartition(")")[2] for p in alive)
    assert shared_memory() == shm


UNGUARDED = """
import gymnasium
import numpy as np
import fugu

class Small(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), 1.0, True, False, {}

gymnasium.register("Small-v0", Small)
print("the script runs")
for env in (Small, "CartPole-v1", "Small-v0"):
    with fugu.make(env, 2, backend="process", num_workers=2, start_method=METHOD) as vec:
        vec.reset(seed=0)
        print(vec.step([0, 1])[1].tolist())
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_script_needs_no_guard(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.replace("METHOD", repr(method)))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["the script runs", *["[1.0, 1.0]"] * 3]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_stands_above_a_guard_is_there_in_workers(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    above, _, below = UNGUARDED.replace("METHOD", repr(method)).partition(
        'print("the script runs")'
    )
    below = "\n".join(f"    {line}" for line in below.splitlines())
    above += 'print("read")\n'
    script.write_text(f'{above}if __name__ == "__main__":\n{below}\n')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("read") == 1 + 3 * 2


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_guard_in_the_wrong_place_is_named(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import fugu\n"
        f"vec = fugu.make('CartPole-v1', 2, backend='process', start_method={method!r})\n"
        "if __name__ == '__main__':\n"
        "    vec.reset(seed=0)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert 'if __name__ == "__main__":' in done.stderr
    assert "WorkerError" in done.stderr
