"""Learners that learn together: what one and two of them reach, and where the difference goes.

Each of two ranks has as many copies as the one alone and one thread, so that it collects and
learns as much; whatever it takes longer for is what learning together costs: adding up gradients
and what updates count, and waiting for the slower one. Beside them is one learner with all copies
and two threads, which is what one machine is better used for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

COPIES, EPOCHS, MINIBATCHES = 512, 4, 4  # of a rank; and of an update
POLICIES = {"mlp": ("none", 2_000_000), "lstm": ("lstm", 600_000)}


@dataclass(frozen=True)
class Crew:
    """Who learn.

    Attributes:
        ranks: How many.
        threads: Of each.
        copies: Of all.
    """

    ranks: int
    threads: int
    copies: int


CREWS = {
    "1 rank": Crew(1, 1, COPIES),
    "2 ranks": Crew(2, 1, 2 * COPIES),
    "1 rank, 2 threads": Crew(1, 2, 2 * COPIES),
}


def measure_ranks(quick: bool) -> dict[str, Any]:
    """Figures of each policy and crew: medians over updates, the first half left out."""
    policies = ("mlp",) if quick else tuple(POLICIES)
    return {
        policy: {name: train(policy, CREWS[name], quick) for name in CREWS} for policy in policies
    }


def train(policy: str, crew: Crew, quick: bool) -> dict[str, float]:
    """Steps/s, and milliseconds of an update."""
    core, steps = POLICIES[policy]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "--nproc": crew.ranks,
            "--vec.num-envs": crew.copies,
            "--policy.core": core,
            "--train.threads": crew.threads,
            "--train.epochs": EPOCHS,
            "--train.minibatches": MINIBATCHES,
            "--train.total-steps": steps // 8 if quick else steps,
            "--run.folder": folder,
            "--run.name": "ranks",
        }
        words = [str(word) for pair in settings.items() for word in pair]
        command = [sys.executable, "-m", "fugu.cli.main", "train", "breakout", "--quiet", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        lines = (Path(folder) / "ranks" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    warm = rows[len(rows) // 2 :]
    return {
        "rate": median(row["steps_per_second"] for row in warm),
        "collect": 1e3 * median(row["seconds/collect"] for row in warm),
        "learn": 1e3 * median(row["seconds/learn"] for row in warm),
    }


def overhead(found: dict[str, dict[str, float]]) -> float:
    """Milliseconds that learning together adds to one step of the optimiser."""
    return (found["2 ranks"]["learn"] - found["1 rank"]["learn"]) / (EPOCHS * MINIBATCHES)


def ranks_table(figures: dict[str, Any]) -> Table:
    """All of it."""
    table = Table(title="learners, breakout: milliseconds of an update")
    for head in ("policy", "learners", "steps/s", "collect", "learn", "together, a step"):
        table.add_column(head, justify="left" if head in ("policy", "learners") else "right")
    for policy, found in figures.items():
        for name, told in found.items():
            cost = f"{overhead(found):.1f}" if name == "2 ranks" else "-"
            parts = (f"{told['rate']:,.0f}", f"{told['collect']:.1f}", f"{told['learn']:.1f}")
            table.add_row(policy, name, *parts, cost)
    return table
