"""The other algorithms beside their peers, all in one run.

    python benchmarks/algos.py [--quick] [--json FILE] [--only dreamer ...]

How peers are measured is told in `racing.py`; scripts in `learners/` say what each library is run
with, in its own virtual environment (`make peers`).

decision_transformer: steps of the optimiser a second, of 64 sequences of 20 steps of CartPole;
    three layers of 128 with one head; d3rlpy.
dreamer: gradient steps a second of a whole training, one for each step of CartPole, 16 sequences of
    64 steps, the published size of a million weights; SheepRL.
grpo: tokens a second of the loss and its gradient, logits given; TRL. Both must agree on them.
safe_ppo, mappo: no peer is on the package index in a version that installs beside a current
    Gymnasium; steps a second of training, and the share of the machine's matrix products, measured
    here too, that it amounts to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from claims import Claim, Options
from racing import Bench, Entry, console, measure, over, show, show_faults, text

from fugu.data.offline import Dataset
from fugu.data.recording import record_episodes

SECONDS, ROUNDS = 10.0, 3
TOLERANCE = 1e-4  # of a loss that two libraries compute


@dataclass(frozen=True)
class AlgosOptions(Options):
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these rows."""


def race(bench: Bench, row: str, peer: str, unit: str, **settings: Any) -> list[Claim]:
    """Time fugu against one peer."""
    entries = {
        "fugu": Entry("fugu", {"row": row, **settings}, "learners/time_fugu"),
        peer: Entry(peer, {"row": row, **settings}, f"learners/time_{peer}"),
    }
    bench.race(row, entries, SECONDS, ROUNDS)
    found = {name: entry.figure("rate") for name, entry in entries.items()}
    columns = ("library", unit, "parameters")
    cells = [
        (name, text(found[name], ",.2f"), text(entry.figure("parameters")))
        for name, entry in entries.items()
    ]
    show(row.replace("_", " "), columns, cells)
    show_faults(entries)
    for figure in ("loss", "gradient"):
        ours, theirs = (entry.figure(figure) for entry in entries.values())
        if ours is not None and theirs is not None:
            console.print(f"{figure}: fugu {ours:.6f}, {peer} {theirs:.6f}")
            if abs(ours - theirs) > TOLERANCE * max(1.0, abs(theirs)):
                raise SystemExit(f"{row}: the libraries do not compute the same {figure}")
    facts: dict[str, Any] = {"fugu": found["fugu"], "peers": {peer: found[peer]}, "unit": unit}
    return [Claim(f"{row}-against-{peer}", over(found["fugu"], found[peer]), 1.0, **facts)]


def decision_transformer(bench: Bench) -> list[Claim]:
    """Against d3rlpy."""
    with tempfile.TemporaryDirectory() as folder:
        record_episodes("CartPole-v1", folder, episodes=400, backend="serial")
        data = Dataset(folder)
        last = np.cumsum(data.lengths) - 1
        keep = np.ones(len(data.observations), np.bool_)
        keep[last + np.arange(1, len(data) + 1)] = False  # what was seen in the end
        np.savez(
            Path(folder) / "arrays.npz",
            observations=data.observations[keep],
            **{
                name: np.asarray(getattr(data, name), np.float32 if name == "rewards" else None)
                for name in ("actions", "rewards", "terminations", "truncations")
            },
        )
        return race(bench, "decision_transformer", "d3rlpy", "optimiser steps/s", data=folder)


def alone(bench: Bench, row: str) -> list[Claim]:
    """Time fugu against the machine."""
    entries = {
        "fugu": Entry("fugu", {"row": row}, "learners/time_fugu"),
        "matrix products": Entry("fugu", {}, "training/measure_machine"),
    }
    bench.race(row, entries, SECONDS, ROUNDS)
    rate, flop = entries["fugu"].figure("rate"), entries["fugu"].figure("flop")
    peak = entries["matrix products"].figure("float32")
    share = over(rate * flop, peak) if rate and flop else None
    parameters = text(entries["fugu"].figure("parameters"))
    columns = ("library", "steps/s", "parameters", "of matrix products")
    show(row.replace("_", " "), columns, [("fugu", text(rate), parameters, text(share, ".1%"))])
    show_faults(entries)
    return []


ROWS: dict[str, Callable[[Bench], list[Claim]]] = {
    "decision_transformer": decision_transformer,
    "dreamer": lambda bench: race(bench, "dreamer", "sheeprl", "gradient steps/s"),
    "grpo": lambda bench: race(bench, "grpo", "trl", "tokens/s"),
    "safe_ppo": lambda bench: alone(bench, "safe_ppo"),
    "mappo": lambda bench: alone(bench, "mappo"),
}


def main(options: AlgosOptions) -> None:
    """Measure and report."""
    measure(ROWS, options, options.only, quick=("grpo",))


if __name__ == "__main__":
    main(tyro.cli(AlgosOptions))
