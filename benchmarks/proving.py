"""What proofs of learning share: seeds, scores that must come to something, and what is kept."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass(frozen=True)
class ProofOptions:
    """See the top of the file."""

    seeds: tuple[int, ...] = (11, 12, 13)
    """Of the trainings."""
    only: tuple[str, ...] = ()
    """Only these proofs."""


@dataclass(frozen=True)
class Proof:
    """A score for each seed, whose mean must be at least `least`, or at most `most`.

    Attributes:
        score: Of a seed.
        least: What it must come to.
        most: What it may come to, of a control.
        circumstance: In which it is measured.
    """

    score: Callable[[int], float]
    least: float | None = None
    most: float | None = None
    circumstance: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext

    def holds(self, scores: list[float]) -> bool:
        """Whether the mean of the scores is as it must be."""
        mean = float(np.mean(scores))
        above = self.least is None or mean >= self.least
        return above and (self.most is None or mean <= self.most)


def prove(name: str, proofs: Mapping[str, Proof], options: ProofOptions) -> None:
    """Prove, show it, and keep it in `results/NAME.json`; the status is 1 if one does not hold."""
    check_names(options.only, proofs)
    torch.set_num_threads(1)
    known: dict[str, Any] = {}
    for title in options.only or proofs:
        proof, began = proofs[title], time.perf_counter()
        with proof.circumstance():
            scores = [proof.score(seed) for seed in options.seeds]
        found = {
            "seeds": list(options.seeds),
            "scores": scores,
            "least": proof.least,
            "most": proof.most,
            "holds": proof.holds(scores),
            "minutes": (time.perf_counter() - began) / 60,
        }
        print(title, found, flush=True)
        known = keep(name, {title: found | {"commit": commit()}})
    _show(known)
    missed = [title for title, found in known.items() if not found["holds"]]
    if missed:
        raise SystemExit(f"missed: {', '.join(missed)}")


def check_names(given: tuple[str, ...], allowed: Mapping[str, Any]) -> None:
    """End with a word about names that do not exist."""
    if unknown := set(given) - set(allowed):
        raise SystemExit(f"only: given {sorted(unknown)}; allowed: {list(allowed)}")


def commit() -> str:
    """Which one this is."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, check=False
    ).stdout.strip()


def keep(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Put findings into `results/NAME.json`, where the others stay as they were; all of them."""
    path = RESULTS / f"{name}.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    known |= found
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1) + "\n")
    return known


def _show(known: Mapping[str, Any]) -> None:
    table = Table()
    for column in ("proof", "asked", "scores", "minutes", "holds"):
        table.add_column(column)
    for title, found in known.items():
        asked = f">= {found['least']}" if found["least"] is not None else f"<= {found['most']}"
        scores = ", ".join(f"{score:.3g}" for score in found["scores"])
        holds = "yes" if found["holds"] else "no"
        table.add_row(title, asked, scores, f"{found['minutes']:.1f}", holds)
    Console().print(table)
