"""Where a sweep is kept: Optuna's journal in its folder, or any database that Optuna takes."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.storages.journal._file import get_lock_file
from optuna.study import Study, StudyDirection

from fugu.core.errors import UsageError
from fugu.core.writing import tells_full_disk
from fugu.envs.untrusted import UntrustedError
from fugu.store.signing import Kind, is_signed, sign
from fugu.sweep.plan import Plan

JOURNAL = "journal.log"
PLAN = "fugu_plan"  # the attribute of a study that holds what the sweep is
SIGNATURES = "fugu_signatures"  # of the plan, by the users who began or trusted the sweep


def open_storage(folder: Path, url: str | None = None) -> BaseStorage:
    """The storage of a sweep: the database of the URL, or the journal in the folder."""
    if url is None:
        # An absolute path: where the lock points to must exist, from anywhere.
        path = str((folder / JOURNAL).resolve())
        lock = JournalFileOpenLock(path)
        mend_journal(Path(path), lock)
        return JournalStorage(Journal(path, lock_obj=lock))
    try:
        return RDBStorage(url)
    except Exception as error:  # of whatever driver the URL names
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(
            f"storage: given {url!r}, which cannot be opened ({line}); allowed: a URL that Optuna "
            "takes, such as sqlite:///sweep.db or postgresql://user@host/name."
        ) from None


def full_disk_advice(folder: Path) -> str:
    """How to go on with the sweep of a folder."""
    return f"All that came of trials is safe. Free some space, then: fugu sweep --resume {folder}"


class Journal(JournalFileBackend):
    """Optuna's journal on disks that may be full."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines; a half that there was no room for is cut off: others may follow."""
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        folder = Path(self._file_path).parent
        with tells_full_disk(lambda: full_disk_advice(folder)), get_lock_file(self._lock):
            handle = os.open(self._file_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
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


def mend_journal(path: Path, lock: JournalFileOpenLock) -> bool:
    """Cut off a last line without its end, which a process that was killed left; True if so.

    Optuna would append to it, and could read nothing of the journal from then on.
    """
    if not path.exists():
        return False
    lock.acquire()
    try:
        with path.open("rb+") as file:
            text = file.read()
            whole = text.rfind(b"\n") + 1
            file.truncate(whole)
            return whole < len(text)
    finally:
        lock.release()


def create_study(storage: BaseStorage, plan: Plan) -> Study:
    """A new study that holds the plan.

    Raises:
        UsageError: There is one of that name.
    """
    up, down = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE
    try:
        study = optuna.create_study(
            study_name=plan.name,
            storage=storage,
            directions=[up if plan.search.maximise else down, down],
        )
    except optuna.exceptions.DuplicatedStudyError:
        raise UsageError(
            f"name: given {plan.name!r}, which is taken; allowed: a new name, or "
            f"fugu sweep --resume {plan.name}."
        ) from None
    with warnings.catch_warnings():  # marked as experimental
        warnings.simplefilter("ignore")
        study.set_metric_names([plan.search.metric, plan.search.cost])
    study.set_user_attr(PLAN, plan.to_json())
    _sign(study)
    return study


def load_study(storage: BaseStorage, name: str, *, trust: bool = False) -> tuple[Study, Plan]:
    """The study of that name, and its plan.

    Args:
        storage: Where it is kept.
        name: Of the study.
        trust: Take the plan from now on, whoever wrote it: trials run what its settings name.

    Raises:
        UsageError: There is none, or it is no sweep of ours.
        UntrustedError: Somebody else wrote the plan.
    """
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        names = ", ".join(optuna.get_all_study_names(storage)) or "none"
        raise UsageError(
            f"resume: given {name!r}, which the storage does not have; allowed: {names}."
        ) from None
    if PLAN not in study.user_attrs:
        raise UsageError(
            f"resume: given {name!r}, a study that fugu sweep did not begin, or that was killed "
            "before it had; allowed: one that it did. Begin a new one by another name."
        )
    if trust:
        _sign(study)
    else:
        check_signed(name, "sweep", study.user_attrs[PLAN], study.user_attrs.get(SIGNATURES))
    return study, Plan.from_json(study.user_attrs[PLAN])


def check_signed(name: str, kind: Kind, content: str, signatures: object) -> None:
    """Raise UntrustedError unless one of the signatures is this user's own."""
    given = signatures if isinstance(signatures, list) else []
    if not any(is_signed(kind, content.encode(), each) for each in given):
        raise UntrustedError(
            f"resume: expected a sweep that was begun here; got {name!r}, which somebody else, or "
            "you on another machine, may have begun. Its trials run what its settings name. If "
            "you know who began it, trust it once: fugu sweep --resume NAME --trust."
        )


def _sign(study: Study) -> None:
    """Add this user's signature to those of the plan."""
    own = sign("sweep", study.user_attrs[PLAN].encode())
    others = study.user_attrs.get(SIGNATURES)
    known = others if isinstance(others, list) else []
    if own is not None and own not in known:
        study.set_user_attr(SIGNATURES, [*known, own])
