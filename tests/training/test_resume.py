"""A run that was stopped and resumed goes on as if nothing had been: bit for bit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fugu.core.errors import UsageError
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.track.sinks import read_metrics
from fugu.training.session import resume, train

pytestmark = pytest.mark.timeout(200)
SMALL: dict[str, Any] = {"total_steps": 6 * 512, "horizon": 16}


def fingerprint(run: Run) -> tuple[str, list[dict[str, Any]]]:
    """A hash of all that a run's last checkpoint holds, and its metrics without timings."""
    path = run.latest()
    assert path is not None
    checkpoint = load_checkpoint(path)
    digest = hashlib.sha256()
    for file in sorted(checkpoint.tensors):
        for name in sorted(checkpoint.tensors[file]):
            digest.update(f"{file}.{name}".encode())
            digest.update(checkpoint.tensors[file][name].contiguous().numpy().tobytes())
    digest.update(repr(checkpoint.state["random"]).encode())
    kept = []
    for line in read_metrics(run.metrics_path):
        kept.append({k: v for k, v in line.items() if "second" not in k})
    return digest.hexdigest(), kept


CASES = {
    "mlp": {},
    "lstm": {"policy": {"core": "lstm"}},
    "threads": {"vec": {"num_envs": 32, "num_workers": 2}},
    "muon": {"train": SMALL | {"optimiser": "muon", "learning_rate": 0.01, "alpha": 0.8}},
}


@pytest.mark.parametrize("case", CASES)
def test_stopped_and_resumed_equals_never_stopped(case: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"vec": {"num_envs": 32}, "train": SMALL} | CASES[case]
    whole = train(
        "cartpole", show=False, seed=3, run={"folder": tmp_path, "name": "whole"}, **settings
    )
    assert whole.run is not None

    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = progress.updates == 3

    part = train(
        "cartpole",
        show=False,
        seed=3,
        run={"folder": tmp_path, "name": "part"},
        callbacks=[stop],
        **settings,
    )
    assert (part.status, part.run is not None) == ("stopped", True)
    rest = resume("part", root=tmp_path, show=False)
    assert rest.status == "finished"
    assert rest.run is not None
    assert fingerprint(rest.run) == fingerprint(whole.run)
    assert rest.score == whole.score


def test_other_seeds_give_other_weights(tmp_path: Path) -> None:
    found = set()
    for seed in (1, 1, 2):
        result = train(
            "bandit",
            show=False,
            seed=seed,
            vec={"num_envs": 16},
            train={"total_steps": 1000},
            run={"folder": tmp_path},
        )
        assert result.run is not None
        found.add(fingerprint(result.run)[0])
    assert len(found) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_leave_a_run_that_can_go_on(number: int, tmp_path: Path) -> None:
    script = f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from fugu.cli.main import main
        sys.exit(main(["train", "cartpole", "--quiet", "--train.total-steps", "100000000",
            "--run.folder", {str(tmp_path)!r}, "--run.name", "long", "--vec.num-envs", "16",
            "--run.checkpoint-seconds", "0.2"]))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    run = Run(tmp_path / "long")
    try:
        for _ in range(600):
            if run.folder.exists() and len(run.checkpoints()) >= 2:
                break
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            import time

            time.sleep(0.1)
        process.send_signal(number)
        status = process.wait(timeout=60)
    finally:
        process.kill()
    assert status == (-9 if number == signal.SIGKILL else 128 + number)
    assert run.status == ("killed" if number == signal.SIGKILL else "stopped")
    checkpoint = run.latest()
    assert checkpoint is not None
    steps = int(load_checkpoint(checkpoint).state["step"])
    result = resume(
        "long", root=tmp_path, show=False, overrides={"train": {"total_steps": steps + 1}}
    )
    assert result.status == "finished"
    assert result.steps > steps


KILLED: dict[str, dict[str, Any]] = {
    "mlp": {"vec": {"num_envs": 8, "backend": "serial"}},
    "lstm": {"vec": {"num_envs": 8, "backend": "serial"}, "policy": {"core": "lstm"}},
    "mlp in processes": {"vec": {"num_envs": 8, "backend": "process", "num_workers": 2}},
    "lstm in processes": {
        "vec": {"num_envs": 8, "backend": "process", "num_workers": 2},
        "policy": {"core": "lstm"},
    },
    "parts of the copies": {
        "vec": {"num_envs": 8, "backend": "process", "num_workers": 2, "batch_size": 4},
        "train": {"deterministic": True},
    },
}


@pytest.mark.parametrize("case", KILLED)
def test_killed_and_resumed_equals_never_killed(case: str, tmp_path: Path) -> None:
    """Environments that have no states: their episodes are played again."""
    settings = {**KILLED[case], "seed": 3}
    settings["train"] = {"total_steps": 6 * 256, "horizon": 32, **settings.get("train", {})}
    whole = train("CartPole-v1", show=False, run={"folder": tmp_path, "name": "whole"}, **settings)
    script = f"""
        import os, signal
        from fugu.training.session import train

        def kill_later(trainer, progress):
            if progress.updates != 3:
                return
            recv, calls = trainer.vec.recv, []

            def counted(**options):
                calls.append(1)
                if len(calls) == 16:  # in the middle of a collection, after the checkpoint
                    os.killpg(0, signal.SIGKILL)
                return recv(**options)

            trainer.vec.recv = counted

        if __name__ == "__main__":
            run = {{"folder": {str(tmp_path)!r}, "name": "part", "checkpoint_seconds": 0.0}}
            train("CartPole-v1", show=False, run=run, callbacks=[kill_later], **{settings!r})
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    process = subprocess.Popen([sys.executable, str(path)], start_new_session=True)
    assert process.wait(timeout=120) == -signal.SIGKILL
    rest = resume("part", root=tmp_path, show=False)
    assert rest.status == "finished"
    assert rest.run is not None
    assert whole.run is not None
    assert fingerprint(rest.run) == fingerprint(whole.run)
    assert rest.score == whole.score


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="allowed"):
        resume("nothing", root=tmp_path, show=False)
    run = Run.create(tmp_path, "empty", "cartpole", {"env": "cartpole"})
    with pytest.raises(UsageError, match="no checkpoint yet"):
        resume(run, show=False)
