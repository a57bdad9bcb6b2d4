"""Recovery of interrupted trials: each running trial names the process that runs it, its owner.

On one machine the system says whether an owner lives. An owner on another machine sends heartbeats;
it counts as dead after some time without one, by the clock of the process that watches. Whoever
notices a trial without an owner marks it as failed and queues it again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from fugu.core.machine import is_running
from fugu.sweep.sampler import INTERRUPTED

OWNER, HEARTBEAT, RETRY_OF, ATTEMPT = "owner", "beat", "retry_of", "attempt"  # attributes of trials
RUN, FAILURE = "run", "failure"


def this_process() -> dict[str, Any]:
    """Return this process as an owner."""
    return {"host": socket.gethostname(), "process": os.getpid(), "born": _start_time(os.getpid())}


def is_dead(owner: dict[str, Any]) -> bool | None:
    """Return whether an owner's process has ended; None if it is on another machine."""
    if owner.get("host") != socket.gethostname():
        return None
    process = int(owner["process"])
    return not is_running(process) or _start_time(process) != str(owner["born"])


def _start_time(process: int) -> str:
    """Return when a process started, in ticks of the system; empty where it does not say.

    Process ids are reused; together with the start time they are unique.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def without_retried(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that no other trial retries."""
    retried = {trial.user_attrs.get(RETRY_OF) for trial in trials}
    return [trial for trial in trials if trial.number not in retried]


class Recovery:
    """Finds trials whose owner is dead, and queues interrupted trials again.

    Args:
        study: The study.
        storage: The storage of the study.
        stale_seconds: Seconds without a heartbeat after which an owner on another machine is dead.
        retries: How often a trial is queued again that was not interrupted on purpose.
    """

    def __init__(
        self, study: Study, storage: BaseStorage, stale_seconds: float, retries: int
    ) -> None:
        self._study, self._storage = study, storage
        self._stale_seconds, self._retries = stale_seconds, retries
        self._heartbeats: dict[int, tuple[Any, float]] = {}  # last one of a trial, and when it came

    def orphans(self, trials: Iterable[FrozenTrial], own: Iterable[int]) -> list[FrozenTrial]:
        """Return the running trials whose owner is dead; `own` are numbers of our own trials."""
        ours = set(own)
        running = [t for t in trials if t.state == TrialState.RUNNING and t.number not in ours]
        return [trial for trial in running if self._is_orphan(trial)]

    def requeue(self, number: int, reason: str, *, on_purpose: bool = False) -> None:
        """Mark a trial as failed and queue it again; nothing if another process has done so.

        Args:
            number: Number of the trial.
            reason: Why it was interrupted.
            on_purpose: Whether a user stopped it, so that it may be retried any number of times.
        """
        study_id = self._storage.get_study_id_from_name(self._study.study_name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        try:
            self._storage.set_trial_user_attr(trial_id, FAILURE, reason)
            self._storage.set_trial_user_attr(trial_id, INTERRUPTED, True)
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return
        trial = self._storage.get_trial(trial_id)
        attempt = int(trial.user_attrs.get(ATTEMPT, 0)) + (not on_purpose)
        if attempt <= self._retries or on_purpose:
            facts = {RETRY_OF: number, ATTEMPT: attempt, RUN: trial.user_attrs.get(RUN)}
            parameters = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            self._study.enqueue_trial(parameters, user_attrs=facts)

    def _is_orphan(self, trial: FrozenTrial) -> bool:
        owner = trial.user_attrs.get(OWNER)
        dead = None if owner is None else is_dead(owner)
        if dead is not None:
            return dead
        heartbeat, now = trial.user_attrs.get(HEARTBEAT), time.monotonic()
        last, since = self._heartbeats.get(trial.number, (None, None))
        if since is None or last != heartbeat:
            self._heartbeats[trial.number] = heartbeat, now
            return False
        return now - since > self._stale_seconds
