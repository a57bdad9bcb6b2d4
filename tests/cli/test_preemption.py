"""Runs that are preempted: saved, queued again, and continued by the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.store.checkpoint import read_state
from fugu.store.run import Run
from fugu.training.auto_resume import REQUEUE_STATUS, RequeueError, newest_alike, requeue
from fugu.training.config import resolve_config
from fugu.training.session import train

pytestmark = pytest.mark.timeout(400)
SCONTROL = """#!/bin/sh
echo "$@" >> {log}
exit {status}
"""


def put_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, status: int = 0) -> Path:
    """A scheduler's command that only notes what it was told, first in the path."""
    program, log = folder / "bin" / "scontrol", folder / "scontrol.log"
    program.parent.mkdir()
    program.write_text(SCONTROL.format(log=log, status=status))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return log


def told(folder: Path) -> int:
    """Bytes of metrics that runs wrote."""
    return sum(
        run.metrics_path.stat().st_size for run in Run.list(folder) if run.metrics_path.exists()
    )


def preempt(number: int, folder: Path, *more: str) -> int:
    """Train for ever until a signal comes, after some updates; the exit status."""
    before = told(folder)
    args = [sys.executable, "-m", "fugu.cli.main", "train", "cartpole", "--quiet"]
    args += ["--run.folder", str(folder), "--vec.num-envs", "8", *more]
    process = subprocess.Popen([*args, "--train.total-steps", "1000000000"])
    try:
        for _ in range(3000):
            if told(folder) > before:
                break
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        return process.wait(timeout=100)
    finally:
        process.kill()
        process.wait()


def test_sigusr1_saves_and_stops(tmp_path: Path) -> None:
    assert preempt(signal.SIGUSR1, tmp_path) == 128 + signal.SIGUSR1
    (run,) = Run.list(tmp_path)
    assert run.status == "stopped"
    assert run.latest() is not None


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_preempted_job_is_queued_again_and_goes_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, runs = put_scontrol(tmp_path, monkeypatch), tmp_path / "runs"
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert preempt(number, runs, "--requeue") == REQUEUE_STATUS
    assert log.read_text() == "requeue 4711\n"
    (run,) = Run.list(runs)
    first = run.latest()
    assert first is not None
    steps = int(read_state(first)["steps"])
    assert preempt(number, runs, "--requeue") == REQUEUE_STATUS  # the job, begun again
    (run,) = Run.list(runs)  # still one
    latest = run.latest()
    assert latest is not None
    assert int(read_state(latest)["steps"]) > steps


def test_ctrl_c_is_nobody_elses_wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = put_scontrol(tmp_path, monkeypatch)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert preempt(signal.SIGINT, tmp_path / "runs", "--requeue") == 128 + signal.SIGINT
    assert not log.exists()


def test_outside_of_slurm_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = put_scontrol(tmp_path, monkeypatch)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not requeue()
    assert not log.exists()


def test_a_scheduler_that_refuses_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_scontrol(tmp_path, monkeypatch, status=3)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with pytest.raises(RequeueError, match="job 4711.*exit status 3"):
        requeue()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequeueError, match="no scontrol"):
        requeue()


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {"vec": {"num_envs": 8}, "train": {"total_steps": 1024, "horizon": 16}}
    return {**settings, "run": {"folder": folder}, **changes}


def stop_early(trainer: Any, progress: Any) -> None:
    trainer.stopping = progress.updates == 2


def test_auto_goes_on_with_the_newest_run_of_the_same_settings(tmp_path: Path) -> None:
    def go(**changes: Any) -> Any:
        return train("bandit", show=False, auto_resume=True, **small(tmp_path, **changes))

    stopped = train("bandit", show=False, callbacks=[stop_early], **small(tmp_path))
    other = go(seed=1)
    assert other.run.name != stopped.run.name  # other settings
    result = go()
    assert (result.run.name, result.status) == (stopped.run.name, "finished")
    assert result.steps >= 1024
    assert len(Run.list(tmp_path)) == 2
    again = go()  # there is nothing left to do
    assert (again.run.name, again.steps) == (result.run.name, result.steps)


def test_auto_begins_anew_where_there_is_no_checkpoint_yet(tmp_path: Path) -> None:
    place = {"folder": tmp_path, "name": "mine"}
    settings = small(tmp_path, run=place)
    done = train("bandit", show=False, **settings)
    assert done.run is not None
    for path in done.run.checkpoints():
        path.rename(tmp_path / path.name)
    result = train("bandit", show=False, auto_resume=True, **settings)
    assert result.run is not None
    assert result.run.name == "mine"
    lines = result.run.metrics_path.read_text().splitlines()
    assert len(lines) == result.steps // 128  # those of before are gone


def test_auto_leaves_runs_alone_that_failed_or_are_under_way(tmp_path: Path) -> None:
    cfg = resolve_config("bandit", overrides=small(tmp_path))
    run = train("bandit", show=False, **small(tmp_path)).run
    assert run is not None
    found = newest_alike(cfg)
    assert found is not None
    assert found.name == run.name
    run.mark("failed")
    assert newest_alike(cfg) is None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        run.mark("running")
        status = run.folder / "status.json"
        status.write_text(status.read_text().replace(str(os.getpid()), str(other.pid)))
        with pytest.raises(UsageError, match=f"under way .process {other.pid}"):
            newest_alike(cfg)
        assert other.stdin is not None
        other.stdin.close()
    assert newest_alike(cfg) is not None  # its process is gone


def test_runs_of_another_version_are_passed_over(tmp_path: Path) -> None:
    cfg = resolve_config("bandit", overrides=small(tmp_path))
    train("bandit", show=False, **small(tmp_path))
    assert newest_alike(cfg) is not None
    assert newest_alike(cfg, lambda run: {**run.config, "a_section_to_come": {}}) is None


def test_a_name_with_other_settings_is_refused(tmp_path: Path) -> None:
    place = {"folder": tmp_path, "name": "mine"}
    train("bandit", show=False, **small(tmp_path, run=place))
    cfg = resolve_config("bandit", overrides=small(tmp_path, run=place, seed=9))
    with pytest.raises(UsageError, match="'mine', a run of other settings"):
        newest_alike(cfg)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--resume", "mine"], "allowed: auto"),
        (["--nproc", "-1"], "allowed: 1 or more"),
        (["--cluster", "moon"], "allowed: ray"),
        (["--nproc", "2", "--vec.num-envs", "5"], "multiples of 2"),
        (["--nproc", "2", "--algo", "dreamer"], "nproc: given 2 with dreamer"),
        (["--nproc", "2", "--seeds", "2"], "seeds: given 2 with"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "cartpole", "--run.folder", str(tmp_path), *flags]) in (1, 2)
    assert said in capsys.readouterr().err
    assert not Run.list(tmp_path)


def test_ray_is_asked_for_by_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("ray", "ray.train"):  # the part too: another test may have loaded it
        monkeypatch.setitem(sys.modules, module, None)
    args = ["train", "bandit", "--cluster", "ray", "--nproc", "2", "--run.folder", str(tmp_path)]
    assert main(args) == 1
    assert "fugu-rl[ray]" in capsys.readouterr().err


@pytest.mark.slow
def test_ranks_train_as_workers_of_a_ray_cluster(tmp_path: Path) -> None:
    for package in ("pandas", "pyarrow"):  # of ray[train]
        pytest.importorskip(package)
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=4, include_dashboard=False)
    try:
        args = ["train", "cartpole", "--cluster", "ray", "--nproc", "2", "--quiet"]
        args += ["--vec.num-envs", "16", "--train.total-steps", "4096", "--run.name", "on-ray"]
        assert main([*args, "--run.folder", str(tmp_path)]) == 0
    finally:
        ray.shutdown()
    run = Run(tmp_path / "on-ray")
    assert run.status == "finished"
    path = run.latest()
    assert path is not None
    state = read_state(path)
    assert len(state["ranks"]) == 1
    assert state["steps"] >= 4096
