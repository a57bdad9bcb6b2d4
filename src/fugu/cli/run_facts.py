"""Facts and curves of runs, for `fugu runs`."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import shutil
import sys
from collections.abc import Iterable, Sequence
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
from fugu.track.curves import Curve, average, check_picture, draw_curves, read_curve
from fugu.track.sinks import RESERVED, read_metrics
from fugu.track.text import duration, number, sparkline

_COLORS = {"running": "green", "finished": "cyan", "failed": "red", "killed": "red"}


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


def facts_of_all(runs: Iterable[Run], metric: str) -> list[Facts]:
    """Return what the table shows of runs; those whose files are broken are listed too."""
    return [_facts_of(run, metric) for run in runs]


def _facts_of(run: Run, metric: str) -> Facts:
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


def _table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def show_table(facts: Sequence[Facts], metric: str) -> None:
    """Print all runs, one a line."""
    numbers = ("steps", f"last {metric.replace('_', ' ')}", "best", "time")
    table = _table("run", "env", *numbers, "status", numbers=numbers)
    for fact in facts:
        table.add_row(
            Text(fact.name),
            Text(fact.env),
            f"{fact.steps:,}",
            _number(fact.last),
            _number(fact.best),
            duration(fact.seconds),
            Text(fact.status, _COLORS.get(fact.status, "")),
        )
    Console().print(table)


def details_of(run: Run, metric: str) -> dict[str, Any]:
    """Return everything about a run, as JSON has it."""
    last: dict[str, float | None] = {}
    for entry in read_metrics(run.metrics_path):
        # JSON has no infinite numbers.
        last |= {k: v if v is not None and math.isfinite(v) else None for k, v in entry.items()}
    best = run.best()
    return asdict(_facts_of(run, metric)) | {
        "folder": str(run.folder),
        "created": datetime.fromtimestamp(run.created).isoformat(timespec="seconds"),
        "facts": run.facts,
        "config": run.config,
        "metrics": {name: value for name, value in last.items() if name not in RESERVED},
        "checkpoints": {path.name: _state_of(path) for path in run.checkpoints()},
        "best_checkpoint": best.name if best else None,
    }


def show_details(run: Run, details: dict[str, Any]) -> None:
    """Print a run in full: facts, curves, checkpoints, settings."""
    console, color = Console(), _COLORS.get(details["status"], "default")
    console.print(
        f"[bold]{escape(details['name'])}[/]  [{color}]{escape(details['status'])}[/]\n"
        f"[dim]{escape(details['folder'])}, begun {details['created']}[/]"
    )
    if details["env"]:
        console.print(f"env {escape(details['env'])}")
    console.print(f"{details['steps']:,} steps in {duration(details['seconds'])}")
    for name, value in details["facts"].items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        console.print(f"{escape(name.replace('_', ' '))}: {escape(text)}")
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
        for name in curves.keys() & entry.keys():
            value = entry[name]
            curves[name].append(math.nan if value is None else float(value))
    if not curves:
        return
    table = _table("\nmetric", "\nlast", "", numbers=["\nlast"])
    for name, curve in curves.items():
        table.add_row(Text(name), _number(metrics[name]), Text(sparkline(curve, 40), "cyan"))
    console.print(table)


def _curves_of(runs: Iterable[Run], metric: str) -> list[Curve]:
    return [read_curve(run.metrics_path, metric, run.name) for run in runs]


def plot(runs: Iterable[Run], metric: str, out: Path) -> None:
    """Draw runs of one environment as one curve: their mean, with a band."""
    check_picture(out)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.env or run.name, []).append(run)
    curves = []
    for env, members in groups.items():
        group = _curves_of(members, metric)
        curves.append(group[0] if len(group) == 1 else average(group, env))
    draw_curves(curves, metric, out)
    print(f"Drawn: {out}")


def compare(runs: Iterable[Run], metric: str) -> None:
    """Print the curves of runs."""
    curves = _curves_of(runs, metric)
    if importlib.util.find_spec("plotext") is not None:
        _plot_in_terminal(curves, metric)
    table = _table("run", "steps", "last", "best", metric, numbers=["steps", "last", "best"])
    table.columns[-1].no_wrap = True
    for curve in curves:
        numbers = [number(x) for x in (curve.steps[-1], curve.values[-1], curve.values.max())]
        table.add_row(Text(curve.label), *numbers, sparkline(curve.values.tolist(), 30))
    Console().print(table)


def _plot_in_terminal(curves: Sequence[Curve], metric: str) -> None:
    plotext: Any = importlib.import_module("plotext")
    columns, lines = shutil.get_terminal_size((100, 30))
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(min(columns, 120), max(min(lines - len(curves) - 4, 24), 10))
    colors = itertools.cycle(("cyan", "orange", "blue", "red", "green", "magenta"))
    for curve, color in zip(curves, colors, strict=False):
        points = curve.steps.tolist(), curve.values.tolist()
        plotext.plot(*points, label=curve.label, color=color, marker="braille")
    plotext.title(f"{metric} against steps")
    picture: str = plotext.build()
    print(picture if sys.stdout.isatty() else plotext.uncolorize(picture))


def _state_of(path: Path) -> str:
    try:
        verify_checkpoint(path)
    except CheckpointError as error:
        return f"broken: {error.file}: {error.reason}"
    return "whole"


def _flat(tree: dict[str, Any], place: str = "") -> list[tuple[str, Any]]:
    """Return settings by names such as `train.learning_rate`.

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
