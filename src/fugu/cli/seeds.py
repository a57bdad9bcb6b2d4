"""`fugu train --seeds`: several runs, one after the other, and one report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fugu.core.writing import write_whole
from fugu.store.run import Run
from fugu.track.sinks import read_metrics
from fugu.track.text import duration, number
from fugu.training.seed_summary import SeedResult, summary
from fugu.training.trainer import DivergedError

if TYPE_CHECKING:
    from fugu.algos.settings import Config
    from fugu.training.session import Result


def train_seeds(cfg: Config, seeds: int, train_one: Callable[[int, str], Result]) -> int:
    """Train with each seed; 0 if all finished. What finished is reported, however it ends.

    Args:
        cfg: The settings, with the first seed.
        seeds: How many.
        train_one: Trains with a seed, as the run of a name.
    """
    base = cfg.run.name or Run.new_name(cfg.env)
    results: list[SeedResult] = []
    status = 0
    try:
        for seed in range(cfg.seed, cfg.seed + seeds):
            name, began = f"{base}-seed{seed}", time.perf_counter()
            try:
                result = train_one(seed, name)
            except DivergedError as error:  # one that fails is a result too
                print(f"fugu: seed {seed}: {error}", file=sys.stderr)
                run = Run(cfg.run.folder / name)
                spent = time.perf_counter() - began
                results.append(SeedResult(seed, name, "failed", None, *_steps(run), spent))
                status = 1
                continue
            assert result.run is not None
            steps, best = _steps(result.run)
            results.append(
                SeedResult(seed, name, result.status, result.score, steps, best, result.seconds)
            )
            if result.status != "finished":
                status = 128 + result.signals[0] if result.signals else 1
                break
    finally:
        if results:
            _report(cfg, results, cfg.run.folder / f"{base}-seeds.json")
    return status


def _report(cfg: Config, results: Sequence[SeedResult], path: Path) -> None:
    found = {"env": cfg.env, **summary(results), "runs": [asdict(result) for result in results]}
    write_whole(path, json.dumps(found, indent=2) + "\n")
    _show(found, results)
    print(f"Written: {path}")


def _show(found: dict[str, Any], results: Sequence[SeedResult]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("seed", "score", "steps", "best at", "time"):
        table.add_column(f"\n{column}", justify="right", no_wrap=True)
    table.add_column("\nrun", overflow="fold")
    for result in results:
        note = "" if result.status == "finished" else f"  [red]{result.status}[/]"
        table.add_row(
            str(result.seed),
            "-" if result.score is None else number(result.score),
            f"{result.steps:,}",
            "-" if result.steps_to_best is None else f"{result.steps_to_best:,}",
            duration(result.seconds),
            f"{result.run}{note}",
        )
    console = Console(highlight=False)
    console.print(table)
    if not found["finished"]:
        console.print("\nNo seed finished with a score.")
        return
    lines = [f"\n[bold]{found['finished']} of {found['seeds']} seeds[/]"]
    for name, title in (("mean", "mean"), ("iqm", "IQM")):
        interval = found[f"{name}_interval"]
        text = (
            f"  [dim](95 %: {number(interval[0])} to {number(interval[1])})[/]" if interval else ""
        )
        lines.append(f"{title:<5}{number(found[name])}{text}")
    console.print("\n".join(lines))


def _steps(run: Run) -> tuple[int, int | None]:
    """Steps of a run, and at its highest mean return."""
    steps, best, highest = 0, None, float("-inf")
    for entry in read_metrics(run.metrics_path):
        steps = int(entry["step"] or 0)
        value = entry.get("episode_return")
        if value is not None and value > highest:
            best, highest = steps, value
    return steps, best
