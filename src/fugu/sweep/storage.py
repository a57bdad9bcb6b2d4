"""Where sweeps are stored: a folder each, with Optuna's journal or the URL of a database.

Each running trial names the process that runs it, its owner. On one machine the system says whether
an owner lives. An owner on another machine sends heartbeats; it counts as dead after some time
without one, by the clock of the process that watches. Whoever notices a trial without an owner
marks it as failed and queues it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from fugu.core.errors import UsageError
from fugu.core.machine import is_running
from fugu.core.writing import tells_full_disk, write_whole
from fugu.envs.untrusted import UntrustedError
from fugu.store.signing import Kind, is_signed, sign
from fugu.sweep.plan import SweepPlan
from fugu.sweep.sampler import INTERRUPTED

JOURNAL = "journal.log"
SWEEP_FILE = "sweep.json"  # in a sweep's folder: its name, and the URL of its database
PLAN = "fugu_plan"  # attribute of the study: the plan as JSON
SIGNATURES = "fugu_signatures"  # attribute of the study: signatures of the plan, by its users
OWNER, HEARTBEAT, RETRY_OF, ATTEMPT = "owner", "beat", "retry_of", "attempt"  # attributes of trials
RUN, FAILURE = "run", "failure"


class SweepJournal(JournalFileBackend):
    """Optuna's journal, which also survives full disks and processes killed while they write."""

    def __init__(self, path: Path) -> None:
        self._path, self._mutex = path, JournalFileOpenLock(str(path))
        super().__init__(str(path), lock_obj=self._mutex)
        with self._locked(), path.open("rb+") as file:  # Optuna cannot read past a partial line
            file.truncate(file.read().rfind(b"\n") + 1)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, or none of them if the disk is full, so that others can append later."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with tells_full_disk(lambda: full_disk_advice(self._path.parent)), self._locked():
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            size = os.fstat(handle).st_size
            try:
                while lines:
                    lines = lines[os.write(handle, lines) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
            finally:
                os.close(handle)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._mutex.acquire()
        try:
            yield
        finally:
            self._mutex.release()


def full_disk_advice(folder: Path) -> str:
    """Return how to continue the sweep of a folder once the disk has space."""
    return f"All results of trials are safe. Free some space, then: fugu sweep --resume {folder}"


def open_storage(folder: Path, url: str | None = None) -> BaseStorage:
    """Open the database of the URL, or the journal in the sweep's folder."""
    if url is None:
        return JournalStorage(SweepJournal((folder / JOURNAL).resolve()))
    try:
        return RDBStorage(url)
    except Exception as error:  # of any driver that the URL names
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            "storage: expected a URL that Optuna can open, such as sqlite:///sweep.db or "
            f"postgresql://user@host/name; got {url!r} ({reason})."
        ) from None


def create_study(storage: BaseStorage, plan: SweepPlan) -> Study:
    """Create a study that holds the plan; UsageError if the storage has one of that name."""
    score = StudyDirection.MAXIMIZE if plan.search.maximize else StudyDirection.MINIMIZE
    try:
        study = optuna.create_study(
            study_name=plan.name,
            storage=storage,
            directions=[score, StudyDirection.MINIMIZE],
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise UsageError(name_taken(plan.name, "the storage")) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([plan.search.metric, plan.search.cost])
    study.set_user_attr(PLAN, plan.to_json())
    _sign(study)
    return study


def load_study(storage: BaseStorage, name: str, *, trust: bool = False) -> tuple[Study, SweepPlan]:
    """Load a study of `fugu sweep` and its plan.

    UntrustedError if somebody else wrote the plan, unless `trust`, which signs it: trials run what
    its settings name.
    """
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        names = ", ".join(optuna.get_all_study_names(storage)) or "none"
        raise UsageError(
            f"resume: expected a study of the storage ({names}); got {name!r}."
        ) from None
    if PLAN not in study.user_attrs:
        raise UsageError(
            f"resume: expected a study that fugu sweep started; got {name!r}, which has no plan: "
            "fugu sweep did not start it, or was killed too early. Start a sweep of another name."
        )
    if trust:
        _sign(study)
    else:
        check_signed(name, "sweep", study.user_attrs[PLAN], study.user_attrs.get(SIGNATURES))
    return study, SweepPlan.from_json(study.user_attrs[PLAN])


def check_signed(name: str, kind: Kind, content: str, signatures: object) -> None:
    """Raise UntrustedError unless one of the signatures is this user's own."""
    given = signatures if isinstance(signatures, list) else []
    if not any(is_signed(kind, content.encode(), each) for each in given):
        raise UntrustedError(
            f"resume: expected a sweep that you started on this machine; got {name!r}, which "
            "somebody else may have started. Its trials run what its settings name. If you know "
            "who started it, trust it once: fugu sweep --resume NAME --trust."
        )


def _sign(study: Study) -> None:
    """Add this user's signature of the plan."""
    own = sign("sweep", study.user_attrs[PLAN].encode())
    others = study.user_attrs.get(SIGNATURES)
    known = others if isinstance(others, list) else []
    if own is not None and own not in known:
        study.set_user_attr(SIGNATURES, [*known, own])


# ------------------------------------------------------------------ folders of sweeps


def name_taken(name: str, place: str) -> str:
    """Return the message for a name that another sweep has."""
    return (
        f"name: expected a name that no sweep in {place} has; got {name!r}. Continue that sweep "
        f"with: fugu sweep --resume {name}."
    )


def find_sweep(given: str, root: Path, url: str | None) -> tuple[Path, str]:
    """Return the folder and the name of a sweep; the folder may not exist if there is a URL."""
    folders = sorted(
        (path.parent for path in root.glob(f"*/{SWEEP_FILE}")),
        key=lambda folder: (folder / SWEEP_FILE).stat().st_mtime,
    )
    if given == "latest":
        if not folders:
            raise UsageError(
                f"resume: {str(root)!r} holds no sweeps. Start one, or name their folder by --root."
            )
        return folders[-1], folders[-1].name
    folder = Path(given) if (Path(given) / SWEEP_FILE).is_file() else root / given
    if not (folder / SWEEP_FILE).is_file() and url is None:
        names = ", ".join(each.name for each in folders) or "none there"
        raise UsageError(
            f"resume: expected a sweep in {str(root)!r} ({names}); got {given!r}. A sweep of "
            "another machine needs --storage URL."
        )
    return folder, str(_read_sweep_file(folder).get("name", Path(given).name))


def write_sweep_file(folder: Path, name: str, url: str | None) -> None:
    """Write the sweep's file if it has none; a URL with a password is left out."""
    path = folder / SWEEP_FILE
    if path.exists():
        return
    stored = url if url is None or not re.search(r"://[^/@]*:[^/@]*@", url) else None
    signature = None if stored is None else sign("storage", stored.encode())
    facts = {"name": name, "storage": stored, "signature": signature}
    write_whole(path, json.dumps(facts) + "\n")


def stored_url(folder: Path, trust: bool) -> str | None:
    """Return the URL of a sweep's database, unless somebody else wrote it there."""
    facts = _read_sweep_file(folder)
    url = facts.get("storage")
    if url is not None and not trust:
        check_signed(folder.name, "storage", str(url), [facts.get("signature")])
    return url


def _read_sweep_file(folder: Path) -> dict[str, Any]:
    path = folder / SWEEP_FILE
    facts: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return facts


# ------------------------------------------------------------------ interrupted trials


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

    An owner on another machine is dead after `stale_seconds` without a heartbeat. Trials that were
    not interrupted on purpose are queued again up to `retries` times.
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

        One that a user stopped `on_purpose` may be retried any number of times.
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
