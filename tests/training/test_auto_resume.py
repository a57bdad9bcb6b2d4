"""A search that is stopped or killed, and resumed, chooses and leaves what it would have."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from auto_cases import SMALL, record_of, search

from fugu import native
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.track.sinks import read_metrics
from fugu.training.auto.record import SearchRecord
from fugu.training.session import Result, resume, train

pytestmark = [
    pytest.mark.timeout(250),
    pytest.mark.skipif(not native.available, reason="needs the native extension"),
]


class KilledError(Exception):
    """Ends a process without a last checkpoint, as far as a test can."""


def outcome(result: Result) -> tuple[Any, ...]:
    """All that a search left, without timings and folders."""
    assert result.run is not None
    record = record_of(result)
    path = result.run.latest()
    assert path is not None
    tensors = {
        f"{file}.{name}": tensor.numpy().tobytes()
        for file, entries in load_checkpoint(path).tensors.items()
        for name, tensor in entries.items()
    }
    lines = [
        {name: value for name, value in line.items() if "second" not in name}
        for line in read_metrics(result.run.metrics_path)
    ]
    return record.winner, record.why, record.rungs, record.members, tensors, lines, result.score


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """What a search leaves that nobody interrupts."""
    return outcome(search(tmp_path_factory.mktemp("whole")))


def kill_at(count: int) -> Any:
    """Return a callback that raises after so many updates of all members together."""
    left = [count]

    def kill(trainer: Any, progress: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise KilledError

    return kill


# In the first member before its first checkpoint; in the fifth; at the second and the last rung.
@pytest.mark.parametrize(("count", "seconds"), [(2, 1000.0), (19, 0.0), (40, 1000.0), (80, 0.0)])
def test_a_killed_search_resumes_to_the_same_result(
    count: int, seconds: float, tmp_path: Path, whole: tuple[Any, ...]
) -> None:
    settings = {"folder": tmp_path, "name": "auto", "checkpoint_seconds": seconds}
    with pytest.raises(KilledError):
        search(tmp_path, run=settings, callbacks=[kill_at(count)])
    assert outcome(resume("auto", root=tmp_path, show=False)) == whole


def test_a_search_of_another_seed_leaves_something_else(
    tmp_path: Path, whole: tuple[Any, ...]
) -> None:
    run = {"folder": tmp_path, "name": "auto"}
    other = outcome(train("cartpole", auto=True, show=False, seed=4, run=run, **SMALL))
    assert other[2] != whole[2]


def test_a_search_killed_while_it_promotes_resumes(
    tmp_path: Path, whole: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(record: SearchRecord, folder: Path, path: Path) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("fugu.training.auto.search.write_curves", refuse)
        with pytest.raises(KilledError):
            search(tmp_path)
    assert outcome(resume("auto", root=tmp_path, show=False)) == whole


def test_the_same_command_resumes_a_stopped_search(tmp_path: Path, whole: tuple[Any, ...]) -> None:
    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = trainer.cfg.run.name == "gamma-down"

    stopped = search(tmp_path, callbacks=[stop])
    assert (stopped.status, Run(tmp_path / "auto").status) == ("stopped", "stopped")
    with pytest.raises(UsageError, match="taken"):
        search(tmp_path)
    resumed = search(tmp_path, auto_resume=True)
    assert outcome(resumed) == whole
    assert outcome(search(tmp_path, auto_resume=True)) == whole, "a finished one is found"


def test_plain_training_does_not_resume_a_search(tmp_path: Path) -> None:
    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = True

    search(tmp_path, callbacks=[stop], run={"folder": tmp_path})
    plain = train(
        "cartpole", auto_resume=True, show=False, seed=3, run={"folder": tmp_path}, **SMALL
    )
    assert plain.status == "finished"
    assert len(Run.list(tmp_path)) == 2


def test_a_process_that_is_killed_leaves_a_search_to_resume(
    tmp_path: Path, whole: tuple[Any, ...]
) -> None:
    script = f"""
        import os, signal
        from fugu.training.session import train

        def kill(trainer, progress):
            if trainer.cfg.run.name == "entropy-up" and progress.updates == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        train("cartpole", auto=True, show=False, seed=3, callbacks=[kill],
              run={{"folder": {str(tmp_path)!r}, "name": "auto"}}, **{SMALL!r})
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -9
    assert Run(tmp_path / "auto").status == "killed"
    assert main(["resume", "auto", "--runs", str(tmp_path), "--quiet"]) == 0
    assert outcome(resume("auto", root=tmp_path, show=False))[:6] == whole[:6]
