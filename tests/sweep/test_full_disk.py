"""A journal for which there is no room: it says so, and others can still be told of trials."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from fugu.core.errors import DiskFullError
from fugu.sweep import trial_process
from fugu.sweep.plan import SweepPlan
from fugu.sweep.report import SweepView
from fugu.sweep.running import Controller
from fugu.sweep.storage import JOURNAL, create_study, open_storage, without_retried
from fugu.sweep.trials import DISK_FULL, TrialProgress, TrialTask


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study(study_name="one", storage=open_storage(tmp_path))
    study.add_trial(optuna.create_trial(value=1.0))
    before, write = (tmp_path / JOURNAL).read_bytes(), os.write

    def write_half(handle: int, content: Any) -> int:
        if len(content) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, content[: len(content) // 2])

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(DiskFullError, match="fugu sweep --resume"):
        study.add_trial(optuna.create_trial(value=2.0))
    monkeypatch.undo()
    assert (tmp_path / JOURNAL).read_bytes() == before
    study.add_trial(optuna.create_trial(value=3.0))
    found = optuna.load_study(study_name="one", storage=open_storage(tmp_path))
    assert [trial.value for trial in found.trials] == [1.0, 3.0]


class Cramped:
    """A trial whose disk is full."""

    def __init__(self, task: TrialTask) -> None: ...

    def poll(self) -> TrialProgress:
        return TrialProgress([], DISK_FULL, "no room")

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def test_a_trial_without_room_is_given_back_and_ends_the_sweep(
    tmp_path: Path, plan_of: Callable[..., SweepPlan]
) -> None:
    """Else all that are left would fail, one after the other."""
    plan = plan_of("one", trials=3)
    storage = open_storage(tmp_path)
    study = create_study(storage, plan)
    controller = Controller(plan, study, storage, Cramped, tmp_path, 1, SweepView(plan, show=False))
    with pytest.raises(DiskFullError, match="fugu sweep --resume"):
        controller.run()
    assert [trial.state for trial in without_retried(study.get_trials())] == [TrialState.WAITING]


def test_a_trial_tells_that_its_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(task: dict[str, Any]) -> int:
        raise DiskFullError("no room", "Make some.")

    monkeypatch.setattr(trial_process, "_read_line", lambda: b"{}")
    monkeypatch.setattr(trial_process, "_exit_with_parent", lambda: None)
    monkeypatch.setattr(trial_process, "_train", train)
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"status {status}"))
    with pytest.raises(pytest.fail.Exception, match=f"status {DISK_FULL}"):
        trial_process.main()
    assert "the disk is full: no room" in capfd.readouterr().err
