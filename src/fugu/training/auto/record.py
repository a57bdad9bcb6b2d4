"""The record of a search, `auto.json` in its run folder: all that resuming it needs."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fugu.algos.settings import Config
from fugu.core.config import Tree, plain_tree
from fugu.core.errors import UsageError
from fugu.core.files import DOCUMENT, parse_json, read_bytes
from fugu.core.toml import dump_toml
from fugu.core.writing import write_whole
from fugu.store.run import Run
from fugu.track.curves import Curve, draw_curves, read_curve
from fugu.track.text import number
from fugu.training.auto.members import DEFAULTS, Candidate

FILE = "auto.json"
SECTIONS = ("algo", "env_kwargs", "train", "vec", "policy")  # of auto.toml
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


def show_progress(record: SearchRecord) -> None:
    """Print the table of the last rung."""
    if record.winner is None and record.rungs:
        Console(highlight=False).print(rung_table(record, record.rungs[-1]), "")


def rung_table(record: SearchRecord, rung: Rung) -> Table:
    """Return a table of a rung: member, settings that differ, return, whether it is kept."""
    title = f"after {rung.steps:,} of {record.config['train']['total_steps']:,} steps each"
    table = Table(title=title, box=None, pad_edge=False, header_style="dim", title_justify="left")
    for column in ("member", "settings that differ"):
        table.add_column(column, overflow="fold")
    table.add_column("return", justify="right")
    table.add_column("kept")
    scored = {name: value for name, value in rung.returns.items() if value is not None}
    names = [*sorted(scored, key=lambda name: -scored[name])]
    for name in names + [name for name in rung.returns if name not in scored]:
        value = rung.returns[name]
        table.add_row(
            name,
            record.member(name).describe() or "none",
            "-" if value is None else number(value),
            "yes" if name in rung.kept else "no",
        )
    return table


def describe_choice(record: SearchRecord) -> str:
    """Return what was chosen, why, and what the search cost."""
    assert record.winner is not None
    member, total = record.member(record.winner), record.config["train"]["total_steps"]
    what = "the defaults" if record.winner == DEFAULTS else f"{member.name} ({member.describe()})"
    cost = f"{record.trained_steps:,} training steps, {record.trained_steps / total:.2f} times"
    return f"auto chose {what}: {record.why}. The search took {cost} those of one run."


def write_settings(record: SearchRecord, cfg: Config, path: Path) -> None:
    """Write the chosen settings as TOML for `fugu train ENV --config`."""
    tree = plain_tree(cfg)
    lines = [f"# {line}\n" for line in (describe_choice(record), _reason(record))]
    usable = {name: _without_none(tree[name]) for name in SECTIONS}
    write_whole(path, "".join(lines) + "\n" + dump_toml(usable))


def _reason(record: SearchRecord) -> str:
    assert record.winner is not None
    return f"{record.winner}: {record.member(record.winner).reason}."


def _without_none(tree: Tree) -> Tree:
    """Return a section with the word that settings have for None, which TOML lacks."""
    if not isinstance(tree, dict):
        return tree
    return {key: "none" if value is None else value for key, value in tree.items()}


def write_curves(record: SearchRecord, folder: Path, path: Path) -> None:
    """Draw the mean returns of all members against their steps, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    curves: list[Curve] = []
    for member in record.members:
        label = f"{member.name} (chosen)" if member.name == record.winner else member.name
        try:
            curves.append(
                read_curve(folder / member.name / "metrics.jsonl", "episode_return", label)
            )
        except UsageError:
            continue  # no episode of this member has ended
    if curves:
        draw_curves(curves, "episode_return", path)
