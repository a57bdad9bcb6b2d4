"""GRPO's proofs with several seeds, each beside its controls.

    python benchmarks/learning_grpo.py [--seeds 11 12 13] [--only NAME ...]

A context bandit whose pay is mostly luck, learned from teams that begin alike; the same with teams
that do not, and with shuffled rewards. CartPole from rewards to go. Copied and reversed sequences
of tokens. A task whose rewards are learned from comparisons, and from shuffled ones. What comes of
it is written to `benchmarks/results/learning_grpo.json`; proofs that were not run keep their last
figures there.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "learning"))

from grpo_lessons import (  # noqa: E402
    balanced,
    exact_sequences,
    mixed_teams,
    right_pulls,
    shuffled_rewards,
    taught_by_preferences,
)

PATH = Path(__file__).with_name("results") / "learning_grpo.json"


@dataclass(frozen=True)
class Proof:
    """One score, and what it must come to: at least `least`, or, of a control, at most `most`."""

    score: Callable[[int], float]
    least: float | None = None
    most: float | None = None
    circumstance: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def holds(self, scores: list[float]) -> bool:
        """Whether the mean of the scores is as it must be."""
        mean = float(np.mean(scores))
        above = self.least is None or mean >= self.least
        return above and (self.most is None or mean <= self.most)


def preferred(shuffled: bool, seed: int) -> float:
    """The true return."""
    return taught_by_preferences(shuffled, seed)[0]


PROOFS = {
    "bandit": Proof(right_pulls, least=0.95),
    "bandit, mixed teams": Proof(right_pulls, most=0.4, circumstance=mixed_teams),
    "bandit, shuffled rewards": Proof(right_pulls, most=0.3, circumstance=shuffled_rewards),
    "preferences": Proof(partial(preferred, False), least=9.0),
    "preferences, shuffled": Proof(partial(preferred, True), most=6.0),
    "cartpole": Proof(balanced, least=400.0),
    "copy": Proof(partial(exact_sequences, "copy"), least=0.95),
    "reverse": Proof(partial(exact_sequences, "reverse"), least=0.95),
}


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seeds: tuple[int, ...] = (11, 12, 13)
    """Of the trainings."""
    only: tuple[str, ...] = ()
    """Only these proofs."""


def main(options: Options) -> None:
    """Prove, and write down what came of it."""
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(PATH.read_text()) if PATH.exists() else {}
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for name in options.only or PROOFS:
        proof, began = PROOFS[name], time.perf_counter()
        with proof.circumstance():
            scores = [proof.score(seed) for seed in options.seeds]
        known[name] = {
            "seeds": list(options.seeds),
            "scores": scores,
            "least": proof.least,
            "most": proof.most,
            "holds": proof.holds(scores),
            "minutes": (time.perf_counter() - began) / 60,
            "commit": commit.stdout.strip(),
        }
        print(name, known[name], flush=True)
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(json.dumps(known, indent=1) + "\n")
    show(known)
    missed = [name for name, found in known.items() if not found["holds"]]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


def show(known: dict[str, Any]) -> None:
    """A table."""
    table = Table(title="GRPO")
    for column in ("proof", "asked", "scores", "minutes", "holds"):
        table.add_column(column)
    for name, found in known.items():
        asked = f">= {found['least']}" if found["least"] is not None else f"<= {found['most']}"
        scores = ", ".join(f"{score:.3g}" for score in found["scores"])
        holds = "yes" if found["holds"] else "no"
        table.add_row(name, asked, scores, f"{found['minutes']:.1f}", holds)
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
