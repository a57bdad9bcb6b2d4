"""What `fugu runs` says about a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fugu.core.errors import FuguError
from fugu.store import CheckpointError, Run, verify_checkpoint
from fugu.track.sinks import RESERVED, read_metrics
from fugu.track.text import duration, number, sparkline

_COLOURS = {"running": "green", "finished": "cyan", "failed": "red", "killed": "red"}


@dataclass(frozen=True)
class Facts:
    """A run in one line of a table."""

    name: str
    env: str
    steps: int
    last: float | None
    best: float | None
    seconds: float
    status: str


def facts_of(run: Run, metric: str) -> Facts:
    """What the table shows of a run; one whose files are broken is listed too."""
    steps, seconds, last, best = 0, 0.0, None, None
    for entry in read_metrics(run.metrics_path):
        steps = int(entry["step"] or 0)
        seconds = float(entry.get("seconds") or seconds)
        value = entry.get(metric)
        if isinstance(value, int | float) and math.isfinite(value):
            last = float(value)
            best = last if best is None else max(best, last)
    try:
        env, status = run.env, run.status
    except FuguError as error:
        env, status = "", f"broken: {error}"
    return Facts(run.name, env, steps, last, best, seconds, status)


def show_table(facts: Sequence[Facts], metric: str) -> None:
    """All runs, one a line."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("run", overflow="fold")
    table.add_column("env", overflow="fold")
    for name in ("steps", f"last {metric.replace('_', ' ')}", "best", "time"):
        table.add_column(name, justify="right")
    table.add_column("status")
    for fact in facts:
        table.add_row(
            Text(fact.name),
            Text(fact.env),
            f"{fact.steps:,}",
            _number(fact.last),
            _number(fact.best),
            duration(fact.seconds),
            Text(fact.status, _COLOURS.get(fact.status, "")),
        )
    Console().print(table)


def details_of(run: Run, metric: str) -> dict[str, Any]:
    """Everything about a run, as JSON has it."""
    last: dict[str, float | None] = {}
    for entry in read_metrics(run.metrics_path):
        # JSON has no infinite numbers.
        last |= {k: v if v is not None and math.isfinite(v) else None for k, v in entry.items()}
    best = run.best()
    return asdict(facts_of(run, metric)) | {
        "folder": str(run.folder),
        "created": datetime.fromtimestamp(run.created).isoformat(timespec="seconds"),
        "facts": run.facts,
        "config": run.config,
        "metrics": {name: value for name, value in last.items() if name not in RESERVED},
        "checkpoints": {path.name: _state_of(path) for path in run.checkpoints()},
        "best_checkpoint": best.name if best else None,
    }


def show_details(run: Run, metric: str) -> None:
    """A run in full: facts, curves, checkpoints, settings."""
    details, console = details_of(run, metric), Console()
    colour = _COLOURS.get(details["status"], "default")
    console.print(
        f"[bold]{escape(details['name'])}[/]  [{colour}]{escape(details['status'])}[/]\n"
        f"[dim]{escape(details['folder'])}, begun {details['created']}[/]"
    )
    if details["env"]:
        console.print(f"env {escape(details['env'])}")
    console.print(f"{details['steps']:,} steps in {duration(details['seconds'])}")
    for name, value in details["facts"].items():
        told = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        console.print(f"{escape(name.replace('_', ' '))}: {escape(told)}")
    _show_metrics(console, run, details["metrics"])
    if details["checkpoints"]:
        console.print("\n[dim]checkpoints[/]")
    for name, state in details["checkpoints"].items():
        best = "  [cyan]best[/]" if name == details["best_checkpoint"] else ""
        console.print(f"{name}  {escape(state)}{best}")
    if details["config"]:
        console.print("\n[dim]config[/]")
        for name, value in _flat(details["config"]):
            console.print(f"{escape(name)} = {escape(repr(value))}")


def _show_metrics(console: Console, run: Run, metrics: dict[str, float | None]) -> None:
    curves: dict[str, list[float]] = {name: [] for name in metrics}
    for entry in read_metrics(run.metrics_path):
        for name, curve in curves.items():
            value = entry.get(name)
            if name in entry:
                curve.append(math.nan if value is None else float(value))
    if not curves:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("\nmetric")
    table.add_column("\nlast", justify="right")
    table.add_column("")
    for name, curve in curves.items():
        table.add_row(Text(name), _number(metrics[name]), Text(sparkline(curve, 40), "cyan"))
    console.print(table)


def _state_of(path: Path) -> str:
    try:
        verify_checkpoint(path)
    except CheckpointError as error:
        return f"broken: {error.file}: {error.reason}"
    return "whole"


def _flat(tree: dict[str, Any], place: str = "") -> list[tuple[str, Any]]:
    """Settings as `train.learning_rate`.

    >>> _flat({"a": {"b": 1}, "c": 2})
    [('a.b', 1), ('c', 2)]
    """
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        inner = isinstance(value, dict)
        found += _flat(value, f"{place}{name}.") if inner else [(f"{place}{name}", value)]
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else number(value)
