"""GRPO's proofs with several seeds, each beside its controls.

    python benchmarks/learning_grpo.py [--seeds 11 12 13] [--only NAME ...]

A context bandit whose pay is mostly luck, learned from teams that begin alike; the same with teams
that do not, and with shuffled rewards. CartPole from rewards to go. Copied and reversed sequences
of tokens. A task whose rewards are learned from comparisons, and from shuffled ones. What comes of
it is written to `benchmarks/results/learning_grpo.json`; proofs that were not run keep their last
figures there.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import tyro
from proving import Proof, ProofOptions, prove

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


if __name__ == "__main__":
    prove("learning_grpo", PROOFS, tyro.cli(ProofOptions))
