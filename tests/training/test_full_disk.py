"""A training whose disk is full says what is safe, and goes on exactly once there is room."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fugu.cli.main import main
from fugu.core.errors import DiskFullError
from fugu.store.run import Run
from fugu.training.session import resume, train

SMALL: dict[str, Any] = {
    "seed": 3,
    "vec": {"num_envs": 8},
    "policy": {"hidden_size": 16},
    "train": {"total_steps": 6 * 128, "horizon": 16},
}


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def files(run: Run) -> dict[str, bytes]:
    newest = run.latest()
    assert newest is not None
    return {path.name: path.read_bytes() for path in newest.iterdir()}


def test_it_says_what_is_safe_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train("cartpole", show=False, run={"folder": tmp_path, "name": "whole"}, **SMALL)
    assert whole.run is not None

    def fill(_: object, progress: Any) -> None:
        if progress.updates == 3:
            monkeypatch.setattr(os, "fsync", full)

    kept = {"folder": tmp_path, "name": "part", "checkpoint_seconds": 0.0}
    run = Run(tmp_path / "part")
    with pytest.raises(DiskFullError, match="the disk is full") as caught:
        train("cartpole", show=False, run=kept, callbacks=[fill], **SMALL)
    assert len(run.checkpoints()) == 2
    assert str(run.latest()) in str(caught.value)
    assert f"fugu resume {run.folder}" in str(caught.value)
    assert not [*run.folder.glob(".*"), *run.checkpoints_folder.glob(".*")]
    monkeypatch.undo()
    assert resume(run, show=False).status == "finished"
    assert files(run) == files(whole.run)


def test_a_run_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "fsync", full)
    args = ["cartpole", "--run.folder", str(tmp_path), "--run.name", "none", "--quiet"]
    assert main(["train", *args, "--train.total-steps", "100"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fugu: the disk is full: ")
    assert "Nothing was begun" in said
    assert not list(tmp_path.iterdir())
