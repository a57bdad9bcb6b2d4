"""What a memory adds: the same training with and without one.

    python benchmarks/memory.py [--seeds 1 2 3] [--steps 60000] [--json FILE]

Problems come in families. A family has a secret that no prompt tells; whoever writes a program for
one of its problems must have learned the family by heart, or be shown a program that solved another
of them. `--policy.recall 1` shows that: the wrapper asks its memory once a batch and never for the
problem's own answer; the memory is empty at first and holds what the policy itself solved. With
equal seeds and steps, the greedy policy is judged on problems that were held out, and on families
that nobody has trained on, of each of which the memory is given one solved problem.

It holds if the memory adds 25 points to the first and 60 to the second share, on average. What
comes of it is written to `benchmarks/results/memory.json`, as a table to `memory.md` beside it, and
as curves to `docs/images/memory.png`.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tyro
from claims import Claim, finish
from claims import Options as ClaimOptions
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from memory_lessons import EACH, FAMILIES, NEW_FAMILIES, study  # noqa: E402

RESULTS = Path(__file__).with_name("results")
PICTURE = ROOT / "docs" / "images" / "memory.png"
HELD_OUT, NEW = 0.25, 0.6  # what a memory must add
ARMS = {1: "with a memory", 0: "without"}


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seeds: tuple[int, ...] = (1, 2, 3)
    """Of the trainings."""
    steps: int = 60_000
    """Of one training."""
    json: Path | None = None
    """Append one row for each claim to this file."""


def main(options: Options) -> None:
    """Train, write down what came of it, and judge the claims."""
    console, found = Console(stderr=True), []
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        for seed in options.seeds:
            for recall, name in ARMS.items():
                bar = progress.add_task(f"seed {seed}, {name}", total=options.steps)
                outcome = study(
                    Path(folder),
                    recall,
                    seed,
                    options.steps,
                    lambda steps, solved, bar=bar: progress.update(bar, completed=steps),  # type: ignore[misc]
                )
                progress.update(bar, completed=options.steps)
                found.append(asdict(outcome))
                write_report(found, options)
    shares = {
        part: {recall: mean(o[part] for o in found if o["recall"] == recall) for recall in ARMS}
        for part in ("held_out", "new_families")
    }
    claims = []
    for (part, share), target in zip(shares.items(), (HELD_OUT, NEW), strict=True):
        adds, name = share[1] - share[0], f"memory-adds-{part.replace('_', '-')}"
        peers = {"without": share[0]}
        claims.append(Claim(name, adds, target, fugu=share[1], peers=peers, unit="share solved"))
    finish(claims, ClaimOptions(json=options.json))


def write_report(found: list[dict[str, Any]], options: Options) -> None:
    """Figures, a table, and curves."""
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    RESULTS.mkdir(exist_ok=True)
    whole = {"steps": options.steps, "runs": found, "commit": commit.stdout.strip()}
    (RESULTS / "memory.json").write_text(json.dumps(whole) + "\n")
    lines = [
        "# What a memory adds",
        "",
        "Written by `python benchmarks/memory.py`, which says how to read it: "
        f"{FAMILIES} families of {EACH} problems, {NEW_FAMILIES} others, {options.steps:,} steps, "
        f"seeds {', '.join(map(str, options.seeds))}; shares of problems that are solved, a seed "
        f"each, and their mean; commit {whole['commit']}.",
        "",
        "| | last updates of the training | held out | families never trained on |",
        "|---|---|---|---|",
    ]
    for recall, name in ARMS.items():
        mine = [outcome for outcome in found if outcome["recall"] == recall]
        cells = [_cell(mean(outcome["solved"][-5:]) for outcome in mine)]
        cells += [_cell(outcome[part] for outcome in mine) for part in ("held_out", "new_families")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    (RESULTS / "memory.md").write_text("\n".join([*lines, ""]))
    plot(found)


def _cell(shares: Iterable[float]) -> str:
    found = list(shares)
    each = "; ".join(f"{share:.1%}" for share in found)
    return f"{each} (**{mean(found):.1%}**)" if found else "-"


def plot(found: list[dict[str, Any]]) -> None:
    """All curves of the trainings."""
    figure = importlib.import_module("matplotlib.figure").Figure((6.4, 3.6), layout="tight")
    axes = figure.subplots()
    for recall, color in ((1, "#3d7ea6"), (0, "#e07a5f")):
        for number, outcome in enumerate(o for o in found if o["recall"] == recall):
            label = ARMS[recall] if number == 0 else None
            solved = [100 * share for share in outcome["solved"]]
            axes.plot(outcome["steps"], solved, color=color, label=label, linewidth=1.0)
    axes.set(xlabel="programs written", ylabel="solved in training, %", ylim=(0, 100))
    axes.legend(frameon=False)
    figure.savefig(PICTURE, dpi=150)


if __name__ == "__main__":
    main(tyro.cli(Options))
