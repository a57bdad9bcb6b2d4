"""The record of a search, `auto.json` in its run folder: all that resuming it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fugu.core.config import Tree
from fugu.core.errors import UsageError
from fugu.core.files import DOCUMENT, parse_json, read_bytes
from fugu.core.writing import write_whole
from fugu.store.run import Run
from fugu.training.auto.members import Candidate

FILE = "auto.json"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")


@dataclass(frozen=True)
class Rung:
    """One comparison of a search.

    Attributes:
        steps: Environment steps of the rung; members stop after the update that reaches them.
        trained: Environment steps that each member has trained for.
        returns: Mean return of the recent training episodes, by member; None without episodes.
        kept: The members that continue, best first.
    """

    steps: int
    trained: Mapping[str, int]
    returns: Mapping[str, float | None]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class SearchRecord:
    """What is known of a search so far.

    Attributes:
        config: All settings of the defaults, as JSON has them.
        members: All candidates so far.
        rungs: The comparisons so far.
        winner: The name of the member that was chosen; None before.
        why: Why it was chosen.
        init_from: The run whose policies all members started from, if any.
    """

    config: Tree
    members: tuple[Candidate, ...]
    rungs: tuple[Rung, ...] = ()
    winner: str | None = None
    why: str = ""
    init_from: str | None = None

    def member(self, name: str) -> Candidate:
        """Return the member of a name."""
        return next(member for member in self.members if member.name == name)

    @property
    def trained_steps(self) -> int:
        """Environment steps that all members trained for, up to the last comparison."""
        latest: dict[str, int] = {}
        for rung in self.rungs:
            latest |= rung.trained
        return sum(latest.values())

    def with_rung(self, rung: Rung) -> SearchRecord:
        """Return the record with one more comparison."""
        return replace(self, rungs=(*self.rungs, rung))

    def write(self, run: Run) -> None:
        """Write the record into a run folder, whole or not at all."""
        write_whole(run.folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read_record(run: Run) -> SearchRecord | None:
    """Return the record of a run's search; None if the run is not one of a search."""
    path = run.folder / FILE
    try:
        tree: dict[str, Any] = parse_json(read_bytes(path, DOCUMENT))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UsageError(f"{path}: it is not JSON: {error}. Restore it.") from None
    try:
        members = tuple(Candidate(**entry) for entry in tree.pop("members"))
        rungs = tuple(
            Rung(entry["steps"], entry["trained"], entry["returns"], tuple(entry["kept"]))
            for entry in tree.pop("rungs")
        )
        record = SearchRecord(members=members, rungs=rungs, **tree)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: it is not the record of a search: {error!r}.") from None
    _check_names(path, record)
    return record


def _check_names(path: Path, record: SearchRecord) -> None:
    """Raise UsageError unless members are named as `make_members` names them.

    Their names are those of folders, which a search also deletes.
    """
    known = [member.name for member in record.members]
    used = [name for rung in record.rungs for name in rung.kept]
    used += [] if record.winner is None else [record.winner]
    for name in known:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{path}: expected a member's name; got {name!r:.80}. Restore it.")
    for name in used:
        if name not in known:
            raise UsageError(f"{path}: expected one of {known}; got {name!r:.80}. Restore it.")


def base_settings(run: Run) -> Tree:
    """Return the settings that a run's search started from; empty if there was no search."""
    record = read_record(run)
    return {} if record is None else record.config


def is_unfinished(run: Run) -> bool:
    """Return whether a run is that of a search that has not chosen yet."""
    record = read_record(run)
    return record is not None and record.winner is None


def members_folder(run: Run) -> Path:
    """Return the folder of the members' runs."""
    return run.folder / "members"
