"""The conductor: asks Optuna what to try, runs it, tells what came of it, and survives.

Everything it knows stands in the storage, at every moment: whoever comes next, after a kill or
beside it, goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
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
from fugu.sweep.curves import TrialCurve
from fugu.sweep.owners import BEAT, OWNER, Watch, this_owner
from fugu.sweep.plan import Plan
from fugu.sweep.pruning import falls_behind
from fugu.sweep.sampler import CUT_OFF
from fugu.sweep.showing import View
from fugu.sweep.storage import full_disk_advice
from fugu.sweep.trials import NO_ROOM, Launcher, Look, RunningTrial, TrialTask

POLL_SECONDS = 0.3
GRACE_SECONDS = 30.0  # for a trial that was asked to end
HOPELESS = 5  # trials that failed, and no other, after which a sweep gives up
RETRY_OF, FAILURE, RUN = "retry_of", "failure", "run"


class SweepError(FuguError, RuntimeError):
    """A sweep of which nothing can come."""


@dataclass
class Live:
    """A trial of ours that runs.

    Attributes:
        trial: Optuna's.
        running: Its process.
        curve: So far.
        total_steps: Of its training.
        began: When, by the monotonic clock.
        stopped: When it was asked to end; None if it was not.
        beat: When its owner last gave a sign.
    """

    trial: Trial
    running: RunningTrial
    curve: TrialCurve
    total_steps: int
    began: float
    stopped: float | None = None
    beat: float = 0.0


class Conductor:
    """Runs the trials of a sweep, some at a time.

    Args:
        plan: The sweep.
        study: Where it is kept.
        storage: The study's.
        launch: Begins a trial.
        folder: Of the sweep.
        workers: Trials at a time.
        view: Is told how it goes.
        resumable: Whether trials that were cut off can be gone on with, from their folders.
    """

    def __init__(
        self,
        plan: Plan,
        study: Study,
        storage: BaseStorage,
        launch: Launcher,
        folder: Path,
        workers: int,
        view: View,
        *,
        resumable: bool = True,
    ) -> None:
        self._plan, self._study, self._storage = plan, study, storage
        self._launch, self._folder, self._workers, self._view = launch, folder, workers, view
        self._resumable = resumable
        self._live: dict[int, Live] = {}
        self._watch = Watch(plan.search.stale_seconds)
        self._owner = this_owner()
        self._failures: list[str] = []
        self._trials: list[FrozenTrial] = []  # as they stood at the last look
        self.signals: list[int] = []

    def run(self) -> None:
        """To the end of the sweep, or until a signal comes; trials cut off are given back.

        Raises:
            SweepError: All of the first trials failed.
            DiskFullError: There is no room for a trial, or for what came of it.
        """
        with self._stops_on_signals():
            try:
                while not self.signals and self._step():
                    time.sleep(POLL_SECONDS)
            finally:
                self._give_back_all()

    def _step(self) -> bool:
        """Look after everything once; False when there is nothing left to do or to wait for."""
        for live in list(self._live.values()):
            self._look_after(live)
        self._trials = self._study.get_trials(deepcopy=False)
        for lost in self._watch.lost(self._trials, self._live):
            self._recover(lost)
            self._trials = self._study.get_trials(deepcopy=False)
        self._check_hope()
        while len(self._live) < self._workers and self._is_due():
            self._start()
            self._trials = self._study.get_trials(deepcopy=False)
            self._check_hope()
        self._view.update(self._trials, list(self._live.values()))
        return self._is_due() or any(not trial.state.is_finished() for trial in self._trials)

    def _is_due(self) -> bool:
        """Whether another trial is to be begun."""
        if any(trial.state == TrialState.WAITING for trial in self._trials):
            return True
        return len(counted(self._trials)) < self._plan.search.trials

    # ------------------------------------------------------------------ a trial's life

    def _start(self) -> None:
        trial = self._study.ask(self._plan.space.distributions)
        trial.set_user_attr(OWNER, self._owner)
        settings = self._plan.space.settings(trial.params)
        trial.set_user_attr("settings", json.dumps(settings))
        run, goes_on = self._run_of(trial)
        trial.set_user_attr(RUN, str(run))
        kept = {"folder": str(run.parent), "name": run.name, "wandb": self._plan.wandb}
        try:
            cfg = self._plan.trial_config(settings, kept)
        except FuguError as error:  # settings that do not go together
            self._fail(trial, str(error))
            return
        group = {"WANDB_RUN_GROUP": self._plan.name} if self._plan.wandb else {}
        log = self._folder / "logs" / f"{run.name}.log"
        task = TrialTask(to_tree(cfg), str(run), str(log), goes_on, group)
        now = time.monotonic()
        curve = TrialCurve(self._plan.search.metric)
        steps = cfg.train.total_steps
        self._live[trial.number] = Live(trial, self._launch(task), curve, steps, now, beat=now)

    def _run_of(self, trial: Trial) -> tuple[Path, bool]:
        """The folder of a trial's run, and whether to go on with what is there."""
        before = trial.user_attrs.get(RUN)
        if before is not None and self._resumable:
            run = Run(before)
            if run.status in ("killed", "stopped") and run.latest() is not None:
                return run.folder, True
        return self._folder / "runs" / f"trial-{trial.number:04d}", False

    def _look_after(self, live: Live) -> None:
        look = live.running.look()
        if look.status is not None:
            live.curve = TrialCurve(self._plan.search.metric)
        live.curve.add_all(look.rows)
        if look.status is not None:
            self._finish(live, look)
            return
        now = time.monotonic()
        if live.stopped is not None:
            if now - live.stopped > GRACE_SECONDS:
                live.running.end()
            return
        if now - live.beat > self._plan.search.stale_seconds / 4:
            live.beat = now
            if not self._keeps(live):
                return
        if look.rows and self._is_pruned(live):
            live.stopped = now
            live.running.stop()

    def _keeps(self, live: Live) -> bool:
        """Give a sign of life for a trial; False if it was taken from us, and is ended."""
        try:
            live.trial.set_user_attr(BEAT, round(time.time(), 1))
        except UpdateFinishedTrialError:  # this process stood still, and others took it for dead
            live.running.end()
            del self._live[live.trial.number]
            return False
        return True

    def _is_pruned(self, live: Live) -> bool:
        search = self._plan.search
        if search.max_cost is not None and self._cost(live.curve) > search.max_cost:
            return True
        if search.prune == "none":
            return False
        done = [trial for trial in self._trials if trial.state == TrialState.COMPLETE]
        peers = [trial.user_attrs.get("curve", []) for trial in done]
        return falls_behind(live.curve, live.total_steps, peers, search.maximise)

    def _finish(self, live: Live, look: Look) -> None:
        del self._live[live.trial.number]
        score, cost = live.curve.score, self._cost(live.curve)
        pruned = live.stopped is not None and look.status in (-signal.SIGTERM, -signal.SIGKILL)
        if look.status == NO_ROOM:
            if self._bury(live.trial.number, "the disk was full"):
                self._retry_stopped(live.trial.number)
            raise DiskFullError("so says a trial", full_disk_advice(self._folder))
        if look.lost:
            if self._bury(live.trial.number, look.reason):
                self._retry(self._frozen(live.trial.number))
        elif look.status != 0 and not pruned:
            self._fail(live.trial, look.reason)
        elif not math.isfinite(score):
            metric = live.curve.metric
            why = "is not a number" if live.curve.points else "never came"
            self._fail(live.trial, f"{metric} {why} in {live.curve.step:,} steps")
        else:
            self._tell(live, TrialState.PRUNED if pruned else TrialState.COMPLETE, score, cost)

    def _tell(self, live: Live, state: TrialState, score: float, cost: float) -> None:
        share = min(live.curve.step / max(live.total_steps, 1), 1.0)
        facts = {"score": score, "cost": cost, "share": share, "curve": live.curve.kept()}
        facts |= {"steps": live.curve.step, "seconds": live.curve.seconds}
        with contextlib.suppress(UpdateFinishedTrialError):
            for name, value in facts.items():
                live.trial.set_user_attr(name, value)
            values = [score, cost] if state == TrialState.COMPLETE else None
            told = self._study.tell(live.trial, values, state, skip_if_finished=True)
            self._view.tell(told)

    def _fail(self, trial: Trial, reason: str) -> None:
        self._failures.append(reason)
        with contextlib.suppress(UpdateFinishedTrialError):
            trial.set_user_attr(FAILURE, reason)
            told = self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            self._view.tell(told)

    def _cost(self, curve: TrialCurve) -> float:
        return curve.seconds if self._plan.search.cost == "seconds" else float(curve.step)

    # ------------------------------------------------------------------ trials that were cut off

    def _recover(self, lost: FrozenTrial) -> None:
        """Take a trial whose owner is gone for failed, and let it be begun again."""
        if self._bury(lost.number, "its sweep was killed"):
            self._retry(lost)

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _bury(self, number: int, reason: str) -> bool:
        """Mark a trial as failed; False if somebody else was quicker."""
        study = self._storage.get_study_id_from_name(self._plan.name)
        trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
        try:
            self._storage.set_trial_user_attr(trial, FAILURE, reason)
            self._storage.set_trial_user_attr(trial, CUT_OFF, True)
            return self._storage.set_trial_state_values(trial, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return False

    def _retry(self, lost: FrozenTrial) -> None:
        attempts = int(lost.user_attrs.get("attempt", 0)) + 1
        if attempts > self._plan.search.retries:
            return
        told = {RETRY_OF: lost.number, "attempt": attempts}
        if RUN in lost.user_attrs:
            told[RUN] = lost.user_attrs[RUN]
        self._study.enqueue_trial(_parameters(lost), user_attrs=told)

    def _give_back_all(self) -> None:
        """Stop what runs, so that it can be gone on with, and give it back to the study."""
        for live in self._live.values():
            live.running.stop()
        deadline = time.monotonic() + GRACE_SECONDS
        waiting = list(self._live.values())
        while waiting and time.monotonic() < deadline:
            waiting = [live for live in waiting if live.running.look().status is None]
            time.sleep(POLL_SECONDS if waiting else 0.0)
        for live in self._live.values():
            live.running.end()
        for number in self._live:
            if self._bury(number, "its sweep was stopped"):
                self._retry_stopped(number)
        self._live = {}

    def _retry_stopped(self, number: int) -> None:
        """One that was stopped in good order may be begun again however often."""
        trial = self._frozen(number)
        told: dict[str, Any] = {RETRY_OF: number, RUN: trial.user_attrs.get(RUN)}
        self._study.enqueue_trial(_parameters(trial), user_attrs=told)

    def _check_hope(self) -> None:
        well = (TrialState.COMPLETE, TrialState.PRUNED)
        if len(self._failures) >= HOPELESS and not any(
            trial.state in well for trial in self._trials
        ):
            raise SweepError(
                f"sweep: given settings with which all of {len(self._failures)} trials failed; "
                f"allowed: some that train. The last: {self._failures[-1]}. "
                f"See {self._folder / 'logs'}."
            )

    @contextlib.contextmanager
    def _stops_on_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the sweep in good order; a second one at once."""
        before: dict[int, Any] = {}
        if threading.current_thread() is not threading.main_thread():
            yield
            return

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


def counted(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials without those that another took the place of."""
    replaced = {trial.user_attrs.get(RETRY_OF) for trial in trials}
    return [trial for trial in trials if trial.number not in replaced]


def _parameters(trial: FrozenTrial) -> dict[str, Any]:
    """What a trial was to be, as far as that was drawn."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}
