"""A league's proofs: connect4 from self-play alone, and Kuhn poker, which can be solved.

    python benchmarks/learning_league.py [--seeds 11 12 13] [--steps N] [--only NAME ...]

Connect4 learns in a league, never sees a script, and then plays greedily against two that the
environment has: one that plays at random, and one that looks a move ahead, winning and blocking
where it can. In Kuhn poker it is known what a best response gains against the average of the pool;
the control is a learner that only ever met itself. What comes of it is written to
`benchmarks/results/learning_league.json`; proofs that were not run keep their last figures there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import tyro
from proving import Proof, ProofOptions, prove

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

GAMES = 1024
RANDOM, ONE_PLY = 0, 1  # of connect4's setting `opponent`


@dataclass(frozen=True)
class Options(ProofOptions):
    """See the top of the file."""

    steps: int = 20_000_000
    """Of the learner, in connect4."""


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


def main(options: Options) -> None:
    """Prove, and write down what came of it."""

    def share(opponent: int) -> Callable[[int], float]:
        return lambda seed: won(connect4(seed, options.steps), opponent, seed)

    proofs = {
        "connect4 against random": Proof(share(RANDOM), least=0.95),
        "connect4 against one ply": Proof(share(ONE_PLY), least=0.80),
        "kuhn, the pool": Proof(lambda seed: exploitability_of_the_pool(seed)[1], most=0.05),
        "kuhn, the latest": Proof(exploitability_of_the_latest, least=0.05),
    }
    prove("learning_league", proofs, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
