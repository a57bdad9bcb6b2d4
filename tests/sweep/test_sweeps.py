"""Sweeps with real trainings in real processes: their ends, their faults, and what survives."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from fugu.core.errors import UsageError
from fugu.core.machine import is_running
from fugu.store.checkpoint import read_state
from fugu.store.run import Run
from fugu.sweep.controller import Controller, SweepError
from fugu.sweep.plan import SweepPlan
from fugu.sweep.recovery import without_retried
from fugu.sweep.report import SweepView
from fugu.sweep.running import ExecutionConfig, resume_sweep, start_sweep
from fugu.sweep.storage import JOURNAL, SWEEP_FILE, create_study, load_study, open_storage
from fugu.sweep.trials import TrialProgress, TrialTask
from fugu.track.sinks import read_metrics
from fugu.training.config import resolve_config

pytestmark = pytest.mark.timeout(600)
Plans = Callable[..., SweepPlan]


def prepare(sweeps: Path, plan: SweepPlan) -> optuna.Study:
    """A sweep that was begun, and whose process is gone."""
    folder = sweeps / plan.name
    folder.mkdir(parents=True)
    (folder / SWEEP_FILE).write_text(json.dumps({"name": plan.name, "storage": None}))
    return create_study(open_storage(folder), plan)


def trials_of(sweeps: Path, name: str) -> list[FrozenTrial]:
    """As anybody sees them who opens the journal."""
    study, _ = load_study(open_storage(sweeps / name), name)
    return study.get_trials()


def test_a_sweep_to_its_end(sweeps: Path, plan_of: Plans) -> None:
    pytest.importorskip("matplotlib")
    ranges = {
        "train": {
            "learning_rate": {"low": 0.001, "high": 0.1, "log": True},
            "gamma": {"low": 0.8, "high": 0.99, "logit": True},
            "total_steps": {"low": 128, "high": 320, "integer": True},
        }
    }
    only = ("train.learning_rate", "train.gamma", "train.total_steps")
    given = {"train": {"clip": "0.15"}}  # as a flag gives it
    plan = plan_of("whole", given, ranges, only, trials=4, sampler="cost", first=True)
    result = start_sweep(plan, ExecutionConfig(sweeps, workers=2, show=False))
    report, folder = result.report, sweeps / "whole"
    assert (report.complete, report.pruned, report.failed) == (4, 0, 0)
    trials = trials_of(sweeps, "whole")
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 4
    first = json.loads(trials[0].user_attrs["settings"])
    assert first["train.total_steps"] == 320, "the settings as they are come first"
    assert first["train.learning_rate"] == pytest.approx(plan.cfg.train.learning_rate)

    for trial in trials:  # what Optuna was told is what the run says
        run = Run(trial.user_attrs["run"])
        assert run.status == "finished"
        checkpoint = run.latest()
        assert checkpoint is not None
        assert trial.values[0] == pytest.approx(read_state(checkpoint)["score"])
        assert trial.values[1] == read_state(checkpoint)["steps"]
        settings = json.loads(trial.user_attrs["settings"])
        assert run.config["train"]["gamma"] == settings["train.gamma"]

    best = max(trials, key=lambda trial: trial.values[0])
    assert report.score == best.values[0]
    told = resolve_config("sweep_toys:make", files=(folder / "best.toml",))
    trained = Run(trials[report.best or 0].user_attrs["run"]).config
    for section in ("train", "policy", "vec"):
        assert json.loads(json.dumps(told.__dict__[section].__dict__)) == trained[section]
    assert told.train.clip == 0.15
    assert (folder / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert {"score", "cost"} == report.importances.keys()
    assert sum(report.importances["score"].values()) == pytest.approx(1.0, abs=0.001)
    assert json.loads((folder / "report.json").read_text())["best"] == report.best
    with pytest.raises(UsageError, match="--resume whole"):
        start_sweep(plan, ExecutionConfig(sweeps, show=False))


def test_trials_that_crash_diverge_or_are_killed_are_recorded_as_failed(
    sweeps: Path, plan_of: Plans, capfd: pytest.CaptureFixture[str]
) -> None:
    faults = ["none", "raise", "lost_number", "kill"]
    ranges = {"env_kwargs": {"fault": {"choices": faults}}}
    plan = plan_of(
        "faults", {"vec": {"check_finite": False}}, ranges, ("env_kwargs.fault",), trials=4
    )
    study = prepare(sweeps, plan)
    for fault in faults:
        study.enqueue_trial({"env_kwargs.fault": fault})
    report = resume_sweep("faults", ExecutionConfig(sweeps)).report
    assert (report.complete, report.failed, report.best) == (1, 3, 0)
    trials = trials_of(sweeps, "faults")
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    reasons = [trial.user_attrs["failure"] for trial in trials[1:]]
    assert reasons[0] == "RuntimeError: the toy is broken"
    assert "not a number" in reasons[1], reasons
    assert reasons[2] == "ended by SIGKILL"
    lines = capfd.readouterr().err.splitlines()
    assert sum("failed:" in line for line in lines) == 3, "somebody who watches is told"


def test_a_score_that_never_comes_is_a_failure(sweeps: Path, plan_of: Plans) -> None:
    start_sweep(
        plan_of("wrong", trials=1, metric="episode_retrun"), ExecutionConfig(sweeps, show=False)
    )
    (trial,) = trials_of(sweeps, "wrong")
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs["failure"].startswith("episode_retrun was never reported in 32")


# ---------------------------------------------------------------------- kills and resumes

SLOW = {
    "train": {"total_steps": 1600},
    "env_kwargs": {"pace": 0.002},
    "run": {"checkpoint_seconds": 0.0},
}


def spawn_resume(name: str, sweeps: Path) -> subprocess.Popen[bytes]:
    words = ["sweep", "--resume", name, "--root", str(sweeps), "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "fugu.cli.main", *words])


def wait_for(what: Callable[[], Any], process: subprocess.Popen[bytes] | None = None) -> Any:
    """What becomes true; fails loudly if it does not, or the process ends before."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        assert process is None or process.poll() is None, "it ended before"
        time.sleep(0.05)
    raise AssertionError("it never came")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_is_killed_or_stopped_goes_on(
    ending: signal.Signals, sweeps: Path, plan_of: Plans
) -> None:
    plan = plan_of("cut", SLOW, trials=2, stale_seconds=10.0)
    prepare(sweeps, plan)
    process = spawn_resume("cut", sweeps)
    run = Run(sweeps / "cut" / "runs" / "trial-0000")
    wait_for(lambda: len(run.checkpoints()) > 2, process)
    trained_by = json.loads((run.folder / "status.json").read_text())["process"]
    process.send_signal(ending)
    status = process.wait(timeout=120)
    assert status == (-9 if ending == signal.SIGKILL else 128 + signal.SIGTERM)
    wait_for(lambda: not is_running(trained_by))
    (first, *_) = trials_of(sweeps, "cut")
    assert first.state == (TrialState.RUNNING if ending == signal.SIGKILL else TrialState.FAIL)
    before = [row["step"] for row in read_metrics(run.metrics_path)]
    assert before[-1] < 1600

    report = resume_sweep("cut", ExecutionConfig(sweeps, show=False)).report
    assert (report.complete, report.pruned, report.failed) == (2, 0, 0)
    trials = trials_of(sweeps, "cut")
    assert trials[0].state == TrialState.FAIL
    (retry,) = [t for t in trials if t.user_attrs.get("retry_of") == 0]
    assert retry.params == trials[0].params
    assert retry.user_attrs["run"] == str(run.folder), "it went on where it was cut off"
    steps = [row["step"] for row in read_metrics(run.metrics_path)]
    assert steps == sorted(set(steps)), "no step twice"
    assert steps[-1] >= 1600
    assert len(without_retried(trials)) == 2


def test_several_processes_share_one_journal(sweeps: Path, plan_of: Plans) -> None:
    plan = plan_of("shared", {"env_kwargs": {"pace": 0.01}}, trials=4, stale_seconds=10.0)
    prepare(sweeps, plan)
    both = [spawn_resume("shared", sweeps) for _ in range(2)]
    assert [process.wait(timeout=500) for process in both] == [0, 0]
    trials = trials_of(sweeps, "shared")
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert 4 <= len(trials) <= 5, "two that begin at once may begin one too many"
    assert len({trial.user_attrs["run"] for trial in trials}) == len(trials)
    owners = {trial.user_attrs["owner"]["process"] for trial in trials}
    assert owners == {process.pid for process in both}


# ---------------------------------------------------------------------- pruning and giving up


def test_a_trial_that_falls_behind_is_ended(sweeps: Path, plan_of: Plans) -> None:
    """Five that did well are in the journal; one that earns nothing follows."""
    given = {"train": {"total_steps": 40_000}, "env_kwargs": {"pace": 0.001, "worth": 0.0}}
    plan = plan_of("poor", given, trials=6, prune="median")
    study = prepare(sweeps, plan)
    rate = FloatDistribution(0.001, 0.1, log=True)
    for _ in range(5):
        told = {"curve": [[0, 3.0], [40_000, 4.0]], "settings": '{"train.learning_rate": 0.01}'}
        study.add_trial(
            create_trial(
                params={"train.learning_rate": 0.01},
                distributions={"train.learning_rate": rate},
                values=[4.0, 40_000.0],
                user_attrs=told,
            )
        )
    report = resume_sweep("poor", ExecutionConfig(sweeps, show=False)).report
    assert (report.complete, report.pruned) == (5, 1)
    pruned = trials_of(sweeps, "poor")[-1]
    assert pruned.user_attrs["score"] == 0.0
    assert 0.1 < pruned.user_attrs["share"] < 1.0
    assert Run(pruned.user_attrs["run"]).status == "stopped"


class Broken:
    """A trial whose process ends at once."""

    def __init__(self, task: TrialTask) -> None:
        self.task = task

    def poll(self) -> TrialProgress:
        return TrialProgress([], 1, "no room")

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def test_a_sweep_in_which_all_fail_gives_up(sweeps: Path, plan_of: Plans) -> None:
    plan = plan_of("vain", trials=50)
    study = prepare(sweeps, plan)
    study.sampler = RandomSampler(seed=0)
    storage = open_storage(sweeps / "vain")
    controller = Controller(
        plan, study, storage, Broken, sweeps / "vain", 1, SweepView(plan, show=False)
    )
    with pytest.raises(SweepError, match="all of 5 trials failed.*no room"):
        controller.run()


# ---------------------------------------------------------------------- the storage


def test_a_journal_with_a_torn_last_line_is_mended(sweeps: Path, plan_of: Plans) -> None:
    plan = plan_of("torn")
    study = prepare(sweeps, plan)
    study.enqueue_trial({"train.learning_rate": 0.01})
    journal = sweeps / "torn" / JOURNAL
    whole = journal.read_bytes()
    for mended in (False, True):
        journal.write_bytes(whole + b'{"op_code": 4, "worker')
        if mended:
            open_storage(sweeps / "torn")
            assert journal.read_bytes() == whole
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        append = [{"op_code": 2, "worker_id": "w", "study_id": 0, "user_attr": {"a": 1}}] * 2
        backend.append_logs(append)
        if mended:
            assert trials_of(sweeps, "torn")[0].state == TrialState.WAITING
        else:  # the control: Optuna alone cannot go on
            with pytest.raises(ValueError, match="Expecting|Invalid|Extra|delimiter"):
                optuna.storages.JournalStorage(backend)


def test_any_database_of_optuna_holds_a_sweep(sweeps: Path, plan_of: Plans) -> None:
    url = f"sqlite:///{sweeps.parent / 'sweep.db'}"
    plan = plan_of("data", trials=1)
    start_sweep(plan, ExecutionConfig(sweeps, url, show=False))
    (study,) = optuna.get_all_study_summaries(url)
    assert (study.study_name, study.n_trials) == ("data", 1)
    elsewhere = ExecutionConfig(sweeps.parent / "other", url, show=False)  # as on another machine
    report = resume_sweep("data", elsewhere).report
    assert report.complete == 1
    assert (sweeps.parent / "other/data/best.toml").exists()


@pytest.mark.parametrize(
    ("name", "execution", "message"),
    [
        ("latest", ExecutionConfig(Path("none")), "holds no sweeps"),
        ("other", ExecutionConfig(Path("none")), "expected a sweep in 'none'"),
        (
            "other",
            ExecutionConfig(Path("none"), "sqlite:///empty.db"),
            "expected a study of the storage",
        ),
        ("other", ExecutionConfig(Path("none"), "no://where"), "URL that Optuna can open"),
    ],
)
def test_what_cannot_be_resumed_is_refused(
    name: str, execution: ExecutionConfig, message: str, sweeps: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        resume_sweep(name, execution)
