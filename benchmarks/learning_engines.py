"""The native engine learns in as many steps as torch.

    python benchmarks/learning_engines.py [--only NAME ...] [--seeds 1 2 3 4 5]

Sanity environments, CartPole, breakout and snake are learned by torch, by the native core in
float32 and by the core in bfloat16, with the same seeds. A task holds if every engine reaches the
score (most of its seeds do), and the core's steps to it overlap with torch's: the intervals from
the second lowest to the second highest of five. What comes of it is written to
`benchmarks/results/learning_engines.json`, and as a table beside it; tasks that were not run keep
their last figures there.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tyro
from proving import RESULTS, check_names, commit, keep
from rich.console import Console

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from lessons import Lesson, Outcome, study  # noqa: E402

ENGINES = {
    "torch": {"engine": "torch", "precision": "float32"},
    "native": {"engine": "native", "precision": "float32"},
    "native, bfloat16": {"engine": "native", "precision": "bfloat16"},
}
# Steps at the most, and the score to reach.
TASKS: dict[str, tuple[int, float]] = {
    "bandit": (40_000, 0.85),
    "password": (60_000, 0.9),
    "stochastic": (60_000, 0.85),
    "squared": (100_000, 0.8),
    "multiagent": (40_000, 0.95),
    "spaces": (100_000, 0.9),
    "continuous": (100_000, 48.0),
    "masked": (60_000, 14.0),
    "memory": (60_000, 0.9),
    "cartpole": (250_000, 450.0),
    "snake": (400_000, 10.0),
    "breakout": (3_000_000, 400.0),
}


def learn(task: str, engine: str, seed: int) -> Outcome:
    """One training."""
    steps, score = TASKS[task]
    how = ENGINES[engine]
    settings: dict[str, Any] = {"train": {"engine": how["engine"]}}
    settings["policy"] = {"precision": how["precision"]}
    return study(Lesson(task, steps, settings), seed, score)


def steps_to(outcomes: list[dict[str, Any]]) -> list[float]:
    """Steps to the score, in order; infinite where it was not reached."""
    return sorted(math.inf if o["reached"] is None else o["reached"] for o in outcomes)


def holds(found: dict[str, list[dict[str, Any]]]) -> bool:
    """Whether all engines reach the score, and in as many steps as torch."""
    right = steps_to(found["torch"])
    kept = True
    for outcomes in found.values():
        steps = steps_to(outcomes)
        spare = len(steps) // 4
        kept &= math.isfinite(median(steps))
        kept &= steps[spare] <= right[-1 - spare] and right[spare] <= steps[-1 - spare]
    return kept


def write_page(known: dict[str, Any]) -> None:
    """A table of the figures."""
    lines = [
        "# The native engine learns as torch does",
        "",
        "Written by `python benchmarks/learning_engines.py`, which says how to read it. Thousands",
        "of steps to the score, seed by seed, and the minutes that all of them took.",
        "",
        "| task | score | torch | native | native, bfloat16 | commit | holds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in (task for task in TASKS if task in known):
        found = known[name]["engines"]
        cells = []
        for outcomes in found.values():
            steps = [o["reached"] for o in outcomes]
            told = ", ".join("never" if s is None else f"{s / 1000:,.0f}" for s in steps)
            cells.append(f"{told} ({sum(o['minutes'] for o in outcomes):.1f} min)")
        verdict = "yes" if known[name]["holds"] else "**no**"
        row = (f"`{name}`", f"{TASKS[name][1]:g}", *cells, known[name]["commit"], verdict)
        lines.append(f"| {' | '.join(row)} |")
    (RESULTS / "learning_engines.md").write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these tasks."""
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Of the trainings."""


def main(options: Options) -> None:
    """Learn, compare, write down."""
    check_names(options.only, TASKS)
    torch.set_num_threads(1)
    console, missed = Console(), []
    for task in options.only or TASKS:
        found: dict[str, list[dict[str, Any]]] = {}
        for engine in ENGINES:
            found[engine] = [asdict(learn(task, engine, seed)) for seed in options.seeds]
            steps = [o["reached"] for o in found[engine]]
            console.print(f"{task}, {engine}: {steps}")
        this = {"engines": found, "commit": commit(), "holds": holds(found)}
        known = keep("learning_engines", {task: this})
        write_page(known)
        missed += [] if known[task]["holds"] else [task]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main(tyro.cli(Options))
