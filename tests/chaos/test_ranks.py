"""Ranks that are killed, stopped and preempted: `fugu train --nproc` goes on or ends in order."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fugu.store.checkpoint import load_checkpoint, read_state
from fugu.store.run import Run
from fugu.track.sinks import read_metrics

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
LONG, STEPS = 10**9, 40 * 64
SMALL = ["--quiet", "--policy.hidden-size", "16", "--vec.num-envs", "4", "--vec.backend", "serial"]
SMALL += ["--train.horizon", "16", "--train.epochs", "1", "--train.minibatches", "1"]
SLOW = """
import time
import gymnasium

class Slow(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.005)
        return self.env.step(action)

def make():
    return Slow(gymnasium.make("CartPole-v1"))
"""


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "fugu.cli.main", *args]


def train_command(folder: Path, name: str, steps: int, *more: str) -> list[str]:
    """In a folder with an environment that takes its time, so that a run lasts some seconds."""
    (folder / "slow.py").write_text(SLOW)
    place = ["--run.folder", str(folder), "--run.name", name]
    return command("train", "slow:make", *SMALL, *place, "--train.total-steps", str(steps), *more)


@contextlib.contextmanager
def started(args: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(args, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    for _ in range(4000):
        if found := condition():
            return found
        assert process.poll() is None, f"it ended early: {process.communicate()[1]}"
        time.sleep(0.1)
    raise AssertionError("nothing came of it")


def ranks(name: str) -> dict[int, int]:
    """The processes that train a run, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            variables = (entry / "environ").read_bytes().split(b"\0")
            own = [v.partition(b"=")[2] for v in variables if v.startswith(b"RANK=")]
            if own and b"fugu.cli.main" in words and name.encode() in words:
                found[int(own[0])] = int(entry.name)
    return found


def fingerprint(run: Run) -> str:
    """Of all that a run's last checkpoint holds."""
    path = run.latest()
    assert path is not None
    digest = hashlib.sha256()
    for file, tensors in sorted(load_checkpoint(path).tensors.items()):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{file}.{name}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two ranks that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    args = train_command(folder, "whole", STEPS, "--nproc", "2")
    subprocess.run(args, cwd=folder, check=True, timeout=800)
    return Run(folder / "whole")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_started_again_and_nothing_is_lost(
    rank: int, whole: Run, tmp_path: Path
) -> None:
    args = train_command(tmp_path, "part", STEPS, "--nproc", "2", "--run.checkpoint-seconds", "0.3")
    run = Run(tmp_path / "part")
    with started(args, tmp_path) as process:
        wait_for(lambda: len(run.checkpoints()) >= 2, process)
        before = ranks("part")
        os.kill(before[rank], signal.SIGKILL)
        _, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    assert run.process not in before.values()  # another one ended it
    assert run.status == "finished"
    updates = [line["updates"] for line in read_metrics(run.metrics_path)]
    assert updates == list(range(1, len(updates) + 1))  # none twice, none left out
    assert fingerprint(run) == fingerprint(whole)  # as if nothing had happened
    assert not ranks("part")


def test_sigterm_stops_all_ranks_with_a_checkpoint_from_which_they_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path / "stopped")
    args = train_command(tmp_path, "stopped", LONG, "--nproc", "2")
    with started(args, tmp_path) as process:
        wait_for(lambda: run.metrics_path.exists() and run.metrics_path.stat().st_size, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=400)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert run.status == "stopped"
    path = run.latest()
    assert path is not None
    steps = int(read_state(path)["steps"])
    assert "fugu resume stopped" in errors
    more = ["--runs", str(tmp_path), "--quiet", "--train.total-steps", str(steps + 1)]
    subprocess.run(command("resume", "stopped", *more), cwd=tmp_path, check=True, timeout=400)
    assert run.status == "finished"
    last = run.latest()
    assert last is not None
    assert int(read_state(last)["steps"]) > steps


def test_ranks_end_when_whoever_launched_them_was_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / "orphans")
    args = train_command(tmp_path, "orphans", LONG, "--nproc", "2")
    with started(args, tmp_path) as process:
        wait_for(lambda: run.metrics_path.exists() and run.metrics_path.stat().st_size, process)
        assert len(ranks("orphans")) == 2
        process.kill()
        process.wait()
    for _ in range(1200):
        if not ranks("orphans"):
            break
        time.sleep(0.1)
    assert not ranks("orphans")
    assert run.status == "stopped"
    assert run.latest() is not None


BROKEN = """
import os
import gymnasium

def make():
    if os.environ.get("RANK") == "1":
        from fugu.core.errors import UsageError
        raise UsageError("env: given rank 1; allowed: another.")
    return gymnasium.make("CartPole-v1")
"""


def test_what_is_wrong_at_one_rank_ends_all_with_one_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    args = command("train", "broken:make", "--nproc", "2", "--quiet", "--run.folder", "runs")
    done = subprocess.run(
        [*args, "--vec.backend", "serial", "--vec.num-envs", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("fugu: env: given rank")]
    assert len(lines) == 1, done.stderr
