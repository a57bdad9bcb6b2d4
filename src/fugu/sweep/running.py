"""Sweeps: started, resumed, and driven by a controller that runs, prunes and records trials.

The state of a sweep is in its storage only. So several controllers can share one, and a new one
continues after a kill.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from fugu.core.config import to_tree
from fugu.core.errors import DiskFullError, FuguError, UsageError
from fugu.core.intervals import CheckedConfig, NonNegativeFloat, PositiveInt
from fugu.core.writing import tells_full_disk
from fugu.store.run import Run
from fugu.sweep.plan import SweepPlan
from fugu.sweep.report import SweepReport, SweepView, write_report
from fugu.sweep.sampler import make_sampler
from fugu.sweep.storage import (
    FAILURE,
    HEARTBEAT,
    JOURNAL,
    OWNER,
    RUN,
    Recovery,
    create_study,
    find_sweep,
    full_disk_advice,
    load_study,
    name_taken,
    open_storage,
    stored_url,
    this_process,
    without_retried,
    write_sweep_file,
)
from fugu.sweep.trials import (
    DISK_FULL,
    Launcher,
    LocalTrial,
    RunningTrial,
    TrialCurve,
    TrialProgress,
    TrialTask,
    ray_launcher,
)
from fugu.training.trainer import catching_signals

POLL_SECONDS = 0.3
GRACE_SECONDS = 30.0  # for a trial that was asked to stop
MAX_FAILURES = 5  # failed trials, without any other, after which a sweep gives up


class SweepError(FuguError, RuntimeError):
    """A sweep in which every trial fails."""


class Controller:
    """Runs the trials of a sweep, `workers` at a time.

    If it is `resumable`, a retried trial continues in its run folder. `signals` are those that
    stopped it.
    """

    def __init__(
        self,
        plan: SweepPlan,
        study: Study,
        storage: BaseStorage,
        launch: Launcher,
        folder: Path,
        workers: int,
        view: SweepView,
        *,
        resumable: bool = True,
    ) -> None:
        self._plan, self._search, self._study = plan, plan.search, study
        self._launch, self._folder, self._workers, self._view = launch, folder, workers, view
        self._resumable = resumable
        self._running: dict[int, RunningTrial] = {}
        self._recovery = Recovery(study, storage, self._search.stale_seconds, self._search.retries)
        self._failures: list[str] = []
        self._trials: list[FrozenTrial] = []  # as of the last refresh
        self.signals: list[int] = []

    def run(self) -> None:
        """Run until the sweep is complete or a signal comes; then requeue trials that still run.

        SweepError if all of the first trials failed, DiskFullError if a disk is full.
        """
        with catching_signals(("SIGINT", "SIGTERM")) as self.signals:
            try:
                while not self.signals and self._step():
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop_all()

    def _step(self) -> bool:
        """Update everything once; return False when nothing is left to start or to wait for."""
        for running in list(self._running.values()):
            self._update(running)
        self._refresh()
        for orphan in self._recovery.orphans(self._trials, self._running):
            self._recovery.requeue(orphan.number, "its sweep was killed")
            self._refresh()
        while len(self._running) < self._workers and self._is_trial_due():
            self._start()
            self._refresh()
        self._view.update(self._trials, list(self._running.values()))
        return self._is_trial_due() or any(not t.state.is_finished() for t in self._trials)

    def _refresh(self) -> None:
        self._trials = self._study.get_trials(deepcopy=False)
        succeeded = (TrialState.COMPLETE, TrialState.PRUNED)
        is_hopeless = not any(trial.state in succeeded for trial in self._trials)
        if len(self._failures) >= MAX_FAILURES and is_hopeless:
            raise SweepError(
                f"sweep: all of {len(self._failures)} trials failed, the last with: "
                f"{self._failures[-1]}. See {self._folder / 'logs'}, and correct the settings."
            )

    def _is_trial_due(self) -> bool:
        if any(trial.state == TrialState.WAITING for trial in self._trials):
            return True
        return len(without_retried(self._trials)) < self._search.trials

    # ------------------------------------------------------------------ one trial

    def _start(self) -> None:
        trial = self._study.ask(self._plan.distributions)
        trial.set_user_attr(OWNER, this_process())
        settings = self._plan.settings(trial.params)
        trial.set_user_attr("settings", json.dumps(settings))
        folder, is_resumed = self._run_folder(trial)
        trial.set_user_attr(RUN, str(folder))
        run = {"folder": str(folder.parent), "name": folder.name, "wandb": self._plan.wandb}
        try:
            cfg = self._plan.trial_config(settings, run)
        except FuguError as error:  # settings that exclude each other
            self._fail(trial, str(error))
            return
        environment = {"WANDB_RUN_GROUP": self._plan.name} if self._plan.wandb else {}
        log = self._folder / "logs" / f"{folder.name}.log"
        task = TrialTask(to_tree(cfg), str(folder), str(log), is_resumed, environment)
        curve, steps = TrialCurve(self._search.metric), cfg.train.total_steps
        now = time.monotonic()
        self._running[trial.number] = RunningTrial(
            trial, self._launch(task), curve, steps, started=now, heartbeat=now
        )

    def _run_folder(self, trial: Trial) -> tuple[Path, bool]:
        """Return the run folder of a trial, and whether to resume the run that is there."""
        before = trial.user_attrs.get(RUN)
        if before is not None and self._resumable:
            run = Run(before)
            if run.status in ("killed", "stopped") and run.latest() is not None:
                return run.folder, True
        return self._folder / "runs" / f"trial-{trial.number:04d}", False

    def _update(self, running: RunningTrial) -> None:
        progress = running.process.poll()
        if progress.exit_code is not None:
            self._finish(running, progress)
            return
        for row in progress.rows:
            running.curve.add(row)
        now = time.monotonic()
        if running.stopped is not None:
            if now - running.stopped > GRACE_SECONDS:
                running.process.kill()
            return
        if now - running.heartbeat > self._search.stale_seconds / 4:
            running.heartbeat = now
            if not self._record_heartbeat(running):
                return
        if progress.rows and self._is_pruned(running):
            running.stopped = now
            running.process.stop()

    def _record_heartbeat(self, running: RunningTrial) -> bool:
        """Record a heartbeat; if another process has requeued the trial, kill ours: False."""
        try:
            running.trial.set_user_attr(HEARTBEAT, round(time.time(), 1))
        except UpdateFinishedTrialError:  # this process was suspended, and counted as dead
            running.process.kill()
            del self._running[running.trial.number]
            return False
        return True

    def _is_pruned(self, running: RunningTrial) -> bool:
        limit = self._search.max_cost
        if limit is not None and self._cost(running.curve) > limit:
            return True
        if self._search.prune == "none":
            return False
        complete = [trial for trial in self._trials if trial.state == TrialState.COMPLETE]
        peers = [trial.user_attrs.get("curve", []) for trial in complete]
        return running.curve.is_behind(running.total_steps, peers, self._search.maximize)

    def _finish(self, running: RunningTrial, progress: TrialProgress) -> None:
        number, code = running.trial.number, progress.exit_code
        del self._running[number]
        running.curve = curve = TrialCurve(self._search.metric, progress.rows)
        is_pruned = running.stopped is not None and code in (-signal.SIGTERM, -signal.SIGKILL)
        if code == DISK_FULL:
            self._recovery.requeue(number, "the disk was full", on_purpose=True)
            raise DiskFullError("a trial reports it", full_disk_advice(self._folder))
        if progress.node_lost:
            self._recovery.requeue(number, progress.reason)
        elif code != 0 and not is_pruned:
            self._fail(running.trial, progress.reason)
        elif not math.isfinite(curve.score):
            problem = "is not a number" if curve.points else "was never reported"
            self._fail(running.trial, f"{curve.metric} {problem} in {curve.step:,} steps")
        else:
            cost, share = self._cost(curve), min(curve.step / max(running.total_steps, 1), 1.0)
            facts = {"score": curve.score, "cost": cost, "share": share, "curve": curve.sample()}
            facts |= {"steps": curve.step, "seconds": curve.seconds}
            state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE
            self._tell(running.trial, state, facts, None if is_pruned else [curve.score, cost])

    def _fail(self, trial: Trial, reason: str) -> None:
        self._failures.append(reason)
        self._tell(trial, TrialState.FAIL, {FAILURE: reason})

    def _tell(
        self,
        trial: Trial,
        state: TrialState,
        facts: dict[str, Any],
        values: list[float] | None = None,
    ) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):  # requeued by another process
            for name, value in facts.items():
                trial.set_user_attr(name, value)
            self._view.log(self._study.tell(trial, values, state, skip_if_finished=True))

    def _cost(self, curve: TrialCurve) -> float:
        return curve.seconds if self._search.cost == "seconds" else float(curve.step)

    # ------------------------------------------------------------------ the end

    def _stop_all(self) -> None:
        """Stop all running trials with a checkpoint, and requeue them."""
        for running in self._running.values():
            running.process.stop()
        deadline = time.monotonic() + GRACE_SECONDS
        waiting = list(self._running.values())
        while waiting and time.monotonic() < deadline:
            waiting = [each for each in waiting if each.process.poll().exit_code is None]
            time.sleep(POLL_SECONDS if waiting else 0.0)
        for number, running in self._running.items():
            running.process.kill()
            self._recovery.requeue(number, "its sweep was stopped", on_purpose=True)
        self._running = {}


# ------------------------------------------------------------------ sweeps


@dataclass(frozen=True)
class ExecutionConfig(CheckedConfig):
    """Where and how the trials of a sweep run.

    Attributes:
        root: The folder of sweeps.
        storage: URL of a database that Optuna can open; None: a journal in the sweep's folder.
        workers: Number of concurrent trials.
        cluster: None: trials are processes of this machine; "ray": of a Ray cluster.
        ray_cpus: Number of CPUs that each trial requests from the cluster.
    """

    root: Path = Path("sweeps")
    storage: str | None = None
    workers: PositiveInt = 1
    cluster: Literal["ray"] | None = None
    ray_address: str | None = None
    ray_cpus: NonNegativeFloat = 1.0
    show: bool = True


@dataclass(frozen=True)
class SweepResult:
    """The report of all trials so far, and the signals that stopped the sweep, if any did."""

    plan: SweepPlan
    report: SweepReport
    signals: tuple[int, ...] = ()


def start_sweep(plan: SweepPlan, execution: ExecutionConfig) -> SweepResult:
    """Run a new sweep until it is complete or a signal stops it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = execution.root / plan.name
    if folder.exists():
        raise UsageError(name_taken(plan.name, str(execution.root)))
    folder.mkdir(parents=True)
    storage = open_storage(folder, execution.storage)
    study = create_study(storage, plan)
    write_sweep_file(folder, plan.name, execution.storage)
    first = plan.default_parameters() if plan.search.first else None
    if first is not None:
        study.enqueue_trial(first)
    return _run(plan, study, storage, folder, execution)


def resume_sweep(given: str, execution: ExecutionConfig, *, trust: bool = False) -> SweepResult:
    """Continue a sweep that was stopped or killed, or join one that other processes run.

    Args:
        given: The name of the sweep, its folder, or "latest".
        execution: Where and how its trials run from now on. The storage must be given again only if
            its URL has a password, or if the sweep was started on another machine.
        trust: Trust the sweep, whoever started it: its trials run what its settings name.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder, name = find_sweep(given, execution.root, execution.storage)
    url = execution.storage or stored_url(folder, trust)
    if url is None and not (folder / JOURNAL).exists():
        raise UsageError(
            f"resume: expected a sweep with a {JOURNAL}; got {given!r}, which has none. Give the "
            "storage that it was started with: --storage URL."
        )
    folder.mkdir(parents=True, exist_ok=True)
    storage = open_storage(folder, url)
    study, plan = load_study(storage, name, trust=trust)
    write_sweep_file(folder, name, url)
    return _run(plan, study, storage, folder, execution)


def _run(
    plan: SweepPlan, study: Study, storage: BaseStorage, folder: Path, execution: ExecutionConfig
) -> SweepResult:
    folder, search = folder.resolve(), plan.search
    study.sampler = make_sampler(
        search.sampler, plan.distributions, abs(plan.cfg.seed), max_cost=search.max_cost
    )
    is_local = execution.cluster is None
    launch = LocalTrial if is_local else ray_launcher(execution.ray_address, execution.ray_cpus)
    with (
        tells_full_disk(lambda: full_disk_advice(folder)),
        SweepView(plan, execution.show) as view,
    ):
        controller = Controller(
            plan, study, storage, launch, folder, execution.workers, view, resumable=is_local
        )
        controller.run()
    return SweepResult(plan, write_report(plan, study, folder), tuple(controller.signals))
