"""Curves of trials, pruning by them, and owners of trials."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from fugu.sweep import storage as recovery
from fugu.sweep.storage import Recovery, is_dead, this_process
from fugu.sweep.trials import MetricsTail, TrialCurve, score_at


def curve_of(*scores: float, step: int = 10) -> TrialCurve:
    curve = TrialCurve("episode_return")
    for i, score in enumerate(scores):
        row = {"step": (i + 1) * step, "seconds": i, "episode_return": score, "episodes": 100.0}
        curve.add(row)
    return curve


def test_a_score_is_the_mean_of_the_last_hundred_episodes() -> None:
    curve = TrialCurve("episode_return")
    for i in range(30):
        curve.add({"step": i, "seconds": i, "episode_return": float(i), "episodes": 10.0})
    assert curve.score == pytest.approx(sum(range(20, 30)) / 10)
    assert curve.seconds == 29
    curve.add({"step": 30, "seconds": 31.0, "loss": 1.0})
    assert curve.score == pytest.approx(24.5), "a line without the metric changes no score"
    assert (curve.step, curve.seconds) == (30, 31.0)


def test_an_evaluation_counts_as_it_is() -> None:
    curve = TrialCurve("evaluation/mean_return")
    for step, value in ((1, 5.0), (2, 9.0)):
        curve.add({"step": step, "evaluation/mean_return": value, "episodes": 3.0})
    assert curve.score == 9.0


def test_what_is_no_number_is_no_score() -> None:
    assert math.isnan(curve_of(1.0, math.nan).score)
    curve = TrialCurve("episode_return")
    assert math.isnan(curve.score)
    curve.add({"step": 1, "seconds": 0.0, "episode_return": None})
    assert math.isnan(curve.score)
    assert curve.sample() == []


def test_a_resumed_run_takes_back_its_later_points() -> None:
    curve = curve_of(1.0, 2.0, 3.0)
    curve.add({"step": 20, "seconds": 9.0, "episode_return": 7.0, "episodes": 100.0})
    assert [point.step for point in curve.points] == [10, 20]
    assert curve.score == 7.0


def test_a_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == []
    path.write_text('{"step": 1}\n{"step": 2}\nnonsense\n{"ste')
    assert [row["step"] for row in tail.read()] == [1, 2]
    assert tail.read() == []
    with path.open("a") as file:
        file.write('p": 3}\n')
    assert [row["step"] for row in tail.read()] == [3]
    path.write_text('{"step": 2}\n')  # cut off by a resume
    assert [row["step"] for row in tail.read()] == [2]


def test_kept_points_hold_the_ends() -> None:
    curve = curve_of(*map(float, range(500)))
    stored = curve.sample()
    assert len(stored) == 40
    assert stored[0] == [10, 0.0]
    assert stored[-1] == [5000, 499.0]
    assert score_at(stored, 5001) is None
    assert score_at(stored, 5) is None


def test_who_falls_behind() -> None:
    peers = [[[10, score], [1000, 100.0]] for score in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert curve_of(2.9, step=200).is_behind(1000, peers, maximize=True)
    assert not curve_of(3.0, step=200).is_behind(1000, peers, maximize=True)
    assert not curve_of(9.0, 0.0, step=100).is_behind(1000, peers, maximize=True), "its best counts"
    assert not curve_of(0.0, step=100).is_behind(1000, peers, maximize=True), "too early"
    assert not curve_of(0.0, step=200).is_behind(1000, peers[:4], maximize=True), (
        "too few to compare with"
    )
    assert not curve_of(0.0, step=2000).is_behind(1000, peers, maximize=True), "nobody came so far"
    assert curve_of(3.1, step=200).is_behind(1000, peers, maximize=False)
    assert not curve_of(2.9, step=200).is_behind(1000, peers, maximize=False)


# ---------------------------------------------------------------------- owners


def running(number: int, **told: Any) -> FrozenTrial:
    trial = create_trial(state=TrialState.RUNNING, user_attrs=told)
    trial.number = number
    return trial


def test_a_process_is_known_by_its_number_and_its_birth() -> None:
    here = this_process()
    assert is_dead(here) is False
    assert is_dead({**here, "host": "elsewhere"}) is None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = {
        "host": socket.gethostname(),
        "process": child.pid,
        "born": recovery._start_time(child.pid),
    }
    assert is_dead(owner) is False
    if Path("/proc").is_dir():
        assert is_dead({**owner, "born": "1"}), "another process got its number"
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner) is True, "though nobody has waited for it"
    child.wait(timeout=60)
    assert is_dead(owner) is True


def test_trials_without_an_owner_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(recovery.time, "monotonic", lambda: clock[0])
    gone = {**this_process(), "process": 2**22 - 1, "born": "1"}
    far = {"host": "elsewhere", "process": os.getpid(), "born": "1"}
    study = optuna.create_study()
    watch = Recovery(study, study._storage, stale_seconds=100.0, retries=2)
    trials = [
        running(0, owner=this_process()),
        running(1, owner=gone),
        running(2, owner=far, beat=1),
        running(3),
        running(4, owner=gone),
    ]
    assert [trial.number for trial in watch.orphans(trials, own=[4])] == [1]
    clock[0] = 90.0
    trials[2] = running(2, owner=far, beat=2)  # a sign of life
    assert [trial.number for trial in watch.orphans(trials, own=[4])] == [1]
    clock[0] = 150.0
    assert [trial.number for trial in watch.orphans(trials, own=[4])] == [1, 3]
    clock[0] = 200.0
    assert [trial.number for trial in watch.orphans(trials, own=[4])] == [1, 2, 3]
