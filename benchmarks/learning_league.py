"""A league's proofs: connect4 from self-play alone, and Kuhn poker, which can be solved.

    python benchmarks/learning_league.py [--seeds 11 12 13] [--steps N] [--only NAME ...]

Connect4 learns in a league, never sees a script, and then plays greedily against two that the
environment has: one that plays at random, and one that looks a move ahead, winning and blocking
where it can. In Kuhn poker it is known what a best response gains against the average of the pool;
the control is a learner that only ever met itself. What comes of it is written to
`benchmarks/results/learning_league.json`; proofs that were not run keep their last figures there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "league"))

from league_lessons import (  # noqa: E402
    exploitability_of_the_latest,
    exploitability_of_the_pool,
)

from fugu.core.seeding import derive  # noqa: E402
from fugu.policies.policy import Policy  # noqa: E402
from fugu.training.evaluate import Players  # noqa: E402
from fugu.training.session import train  # noqa: E402
from fugu.vector import make  # noqa: E402

PATH = Path(__file__).with_name("results") / "learning_league.json"
GAMES = 1024
RANDOM, ONE_PLY = 0, 1  # of connect4's setting `opponent`


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    seeds: tuple[int, ...] = (11, 12, 13)
    """Of the trainings."""
    steps: int = 20_000_000
    """Of the learner, in connect4."""
    only: tuple[str, ...] = ()
    """Only these proofs."""


@dataclass(frozen=True)
class Proof:
    """A score for each seed, whose mean must be at least `least`, or at most `most`."""

    score: Callable[[int, int], float]
    least: float | None = None
    most: float | None = None

    def holds(self, scores: list[float]) -> bool:
        """Whether it is so."""
        mean = float(np.mean(scores))
        return (self.least is None or mean >= self.least) and (
            self.most is None or mean <= self.most
        )


@cache
def connect4(seed: int, steps: int) -> Policy:
    """A policy that learned in a league."""
    result = train(
        "connect4",
        keep=False,
        show=False,
        seed=seed,
        vec={"num_envs": 512},
        policy={"hidden_size": 256, "layers": 2},
        train={"total_steps": steps, "horizon": 32, "gamma": 0.99},
        league={"enabled": True, "snapshot_every": steps // 20},
    )
    return result.policies[0]


def won(policy: Policy, opponent: int, seed: int) -> float:
    """The share of games that it wins, playing greedily; draws are no wins."""
    with make("connect4", 64, env_kwargs={"opponent": opponent}) as vec:
        players, wins, games = Players([policy], vec, seed), 0.0, 0
        quota = np.full(64, GAMES // 64)
        vec.async_reset(derive(seed, 77))
        while quota.any():
            batch = vec.recv()
            for env, told in batch.infos.items():
                for info in told:
                    if quota[env]:
                        quota[env] -= 1
                        wins, games = wins + float(info["won"]), games + 1
            vec.send(players(batch))
    return wins / games


PROOFS = {
    "connect4 against random": Proof(
        lambda seed, steps: won(connect4(seed, steps), RANDOM, seed), least=0.95
    ),
    "connect4 against one ply": Proof(
        lambda seed, steps: won(connect4(seed, steps), ONE_PLY, seed), least=0.80
    ),
    "kuhn, the pool": Proof(lambda seed, _: exploitability_of_the_pool(seed)[1], most=0.05),
    "kuhn, the latest": Proof(lambda seed, _: exploitability_of_the_latest(seed), least=0.05),
}


def main(options: Options) -> None:
    """Prove, and write down what came of it."""
    if unknown := set(options.only) - set(PROOFS):
        raise SystemExit(f"only: given {sorted(unknown)}; allowed: {list(PROOFS)}")
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(PATH.read_text()) if PATH.exists() else {}
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for name in options.only or PROOFS:
        proof, began = PROOFS[name], time.perf_counter()
        scores = [proof.score(seed, options.steps) for seed in options.seeds]
        known[name] = {
            "seeds": list(options.seeds),
            "steps": options.steps if name.startswith("connect4") else None,
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
    table = Table(title="Leagues")
    for column in ("proof", "asked", "scores", "minutes", "holds"):
        table.add_column(column)
    for name, found in known.items():
        asked = f">= {found['least']}" if found["least"] is not None else f"<= {found['most']}"
        scores = ", ".join(f"{score:.3f}" for score in found["scores"])
        holds = "yes" if found["holds"] else "no"
        table.add_row(name, asked, scores, f"{found['minutes']:.1f}", holds)
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Options))
