"""The Decision Transformer on a mixture of skills, beside behaviour cloning and a control.

    python benchmarks/learning_decision_transformer.py [--seeds 11 12 13] [--steps 700000]

One PPO run on CartPole is recorded after 10, 30, 60 and 100 % of its steps: 1,024 episodes. From
them learn: the Decision Transformer, which is then asked for eight returns; the same with returns
to go that belong to other sequences (the control); and behaviour cloning on the best 10, 25, 40
and 100 % of the data. What comes of it is written to `benchmarks/results/`, with a picture of the
returns asked for and achieved in `docs/images/`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from proving import commit, keep
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from offline_lessons import (  # noqa: E402
    CARTPOLE,
    TARGETS,
    achieved,
    learn,
    record_mixture,
    returns_shuffled,
)

from fugu.data.offline import Dataset  # noqa: E402
from fugu.training.target_returns import rank_correlation  # noqa: E402

HIGHEST, LOWEST_CORRELATION = 400.0, 0.8  # asked of the Decision Transformer
LEARNERS: dict[str, dict[str, Any]] = {
    "decision transformer": {},
    "returns shuffled": {},
    "cloning, best 10 %": {"percentile": 10.0},
    "cloning, best 25 %": {"percentile": 25.0},
    "cloning, best 40 %": {"percentile": 40.0},
    "cloning, all": {"percentile": 100.0},
}


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seeds: tuple[int, ...] = (11, 12, 13)
    """Of the trainings."""
    steps: int = 700_000
    """Of each training."""


def main(options: Options) -> None:
    """Record, learn, ask, and write down what came of it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = record_mixture(Path(folder) / "mixture")
        facts = Dataset(data).metadata["statistics"]
        rows: dict[str, list[dict[str, Any]]] = {}
        for name in LEARNERS:
            rows[name] = [study(name, data, seed, options.steps) for seed in options.seeds]
            if len(rows) > 1:  # the Decision Transformer and its control, at the least
                write(rows, facts, options)
    show(rows, facts)
    best = rows["decision transformer"]
    holds = float(np.median([row["returns"][-1] for row in best])) >= HIGHEST
    holds &= float(np.median([row["correlation"] for row in best])) >= LOWEST_CORRELATION
    if not holds:
        raise SystemExit("missed")


def study(name: str, data: Path, seed: int, steps: int) -> dict[str, Any]:
    """One training, and what was achieved for each target."""
    began = time.perf_counter()
    shuffled = name == "returns shuffled"
    with returns_shuffled() if shuffled else contextlib.nullcontext():
        policy = learn(
            "cartpole", data, steps, CARTPOLE, seed, learning_rate=0.001, **LEARNERS[name]
        )
    targets = TARGETS[-1:] if "percentile" in LEARNERS[name] else TARGETS
    returns = achieved(policy, targets)
    correlation = rank_correlation(targets, returns)
    minutes = (time.perf_counter() - began) / 60
    print(f"{name}, seed {seed}: {[round(r) for r in returns]} in {minutes:.1f} min", flush=True)
    return {"seed": seed, "returns": returns, "correlation": correlation, "minutes": minutes}


def write(rows: dict[str, Any], facts: dict[str, float], options: Options) -> None:
    """As JSON, and as a picture."""
    report = {
        "commit": commit(),
        "steps": options.steps,
        "data": facts,
        "targets": TARGETS,
        "learners": rows,
    }
    keep("decision_transformer", report)
    draw(rows, facts, ROOT / "docs" / "images" / "decision_transformer.png")


def draw(rows: dict[str, Any], facts: dict[str, float], path: Path) -> None:
    """Returns asked for and achieved, seed by seed, and what cloning achieves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(TARGETS, TARGETS, color="#adb5bd", lw=1.2, ls="--", label="achieved = asked")
    colours = {"decision transformer": "#2a9d8f", "returns shuffled": "#e76f51"}
    for name, colour in colours.items():
        found = np.array([row["returns"] for row in rows[name]])
        axes.plot(TARGETS, found.mean(0), "o-", color=colour, lw=1.8, label=name)
        axes.fill_between(TARGETS, found.min(0), found.max(0), color=colour, alpha=0.18, lw=0)
    for name, style in (("cloning, best 10 %", ":"), ("cloning, all", "-.")):
        if name not in rows:
            continue
        level = np.mean([row["returns"][-1] for row in rows[name]])
        axes.axhline(level, color="#5b6ee1", lw=1.2, ls=style, label=name)
    axes.axhline(facts["mean_return"], color="#6c757d", lw=1, label="mean of the data")
    axes.set_xlabel("return asked for")
    axes.set_ylabel("return achieved")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e8eb", lw=0.8)
    axes.legend(frameon=False, ncols=2)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=140)


def show(rows: dict[str, Any], facts: dict[str, float]) -> None:
    """A table."""
    table = Table(title=f"CartPole, data of mean return {facts['mean_return']:.0f}")
    for column in ("learner", "asked for 500", "rank correlation", "minutes"):
        table.add_column(column)
    for name, found in rows.items():
        table.add_row(
            name,
            ", ".join(f"{row['returns'][-1]:.0f}" for row in found),
            ", ".join(f"{row['correlation']:.2f}" for row in found if len(row["returns"]) > 1),
            f"{sum(row['minutes'] for row in found):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
