"""The controller of a sweep: it starts trials, prunes them, and records their results.

Its state is in the storage only. So several controllers can share a sweep, and a new one continues
after a kill.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from fugu.core.config import to_tree
from fugu.core.errors import DiskFullError, FuguError
from fugu.store.run import Run
from fugu.sweep.plan import SweepPlan
from fugu.sweep.recovery import (
    FAILURE,
    HEARTBEAT,
    OWNER,
    RUN,
    Recovery,
    this_process,
    without_retried,
)
from fugu.sweep.report import SweepView
from fugu.sweep.storage import full_disk_advice
from fugu.sweep.trials import (
    DISK_FULL,
    Launcher,
    TrialCurve,
    TrialProcess,
    TrialProgress,
    TrialTask,
)

POLL_SECONDS = 0.3
GRACE_SECONDS = 30.0  # for a trial that was asked to stop
MAX_FAILURES = 5  # failed trials, without any other, after which a sweep gives up


class SweepError(FuguError, RuntimeError):
    """A sweep in which every trial fails."""


@dataclass
class RunningTrial:
    """A trial that this controller runs.

    Attributes:
        trial: Optuna's trial.
        process: Its process.
        curve: Its learning curve so far.
        total_steps: Number of steps of its training.
        started: When it started, by the monotonic clock.
        stopped: When it was asked to stop; None if it was not.
        heartbeat: When its last heartbeat was recorded.
    """

    trial: Trial
    process: TrialProcess
    curve: TrialCurve
    total_steps: int
    started: float
    stopped: float | None = None
    heartbeat: float = 0.0


class Controller:
    """Runs the trials of a sweep.

    Args:
        plan: The plan of the sweep.
        study: Optuna's study.
        storage: The storage of the study.
        launch: Starts a trial.
        folder: The folder of the sweep.
        workers: Number of concurrent trials.
        view: Shows the progress.
        resumable: Whether a retried trial can resume from its run folder.
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

        Raises:
            SweepError: All of the first trials failed.
            DiskFullError: The disk of a trial, or of the sweep, is full.
        """
        with self._handling_signals():
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
            self._succeed(running, TrialState.PRUNED if is_pruned else TrialState.COMPLETE)

    def _succeed(self, running: RunningTrial, state: TrialState) -> None:
        curve, cost = running.curve, self._cost(running.curve)
        share = min(curve.step / max(running.total_steps, 1), 1.0)
        facts = {"score": curve.score, "cost": cost, "share": share, "curve": curve.sample()}
        facts |= {"steps": curve.step, "seconds": curve.seconds}
        values = [curve.score, cost] if state == TrialState.COMPLETE else None
        self._tell(running.trial, state, facts, values)

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

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM stop the sweep in good order, and a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {}

        def stop(number: int, _frame: FrameType | None) -> None:
            self.signals.append(number)
            signal.signal(number, before[number])

        for ending in (signal.SIGINT, signal.SIGTERM):
            before[ending] = signal.signal(ending, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
