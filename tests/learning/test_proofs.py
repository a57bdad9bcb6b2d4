"""The proofs of `benchmarks/learning.py` that take minutes: two of three seeds, and the control."""

from __future__ import annotations

import pytest
from learning import PROOFS, Finding, Proof, without
from lessons import Outcome, study

from fugu.vector import WorkerError

BY_NAME = {proof.name: proof for proof in PROOFS}
QUICK = ("cartpole", "password-7")  # under a minute
SLOW = ("acrobot", "masked-cartpole", "faults", "memory-8", "breakout")


def check(proof: Proof) -> None:
    """Two of the first three seeds reach the threshold; one control is as far behind as it must."""
    reached: list[Outcome] = []
    for seed in proof.seeds[:3]:
        outcome = study(proof.lesson, seed, proof.threshold)
        reached += [outcome] if outcome.score >= proof.threshold else []
        if len(reached) == 2:
            break
    assert len(reached) == 2
    if proof.control is not None:
        finding = Finding(
            proof, tuple(reached), (study(proof.control, proof.seeds[0], proof.threshold),)
        )
        assert finding.holds, str(finding)


@pytest.mark.parametrize("name", QUICK)
def test_quick_proofs_hold(name: str) -> None:
    check(BY_NAME[name])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SLOW)
def test_slow_proofs_hold(name: str) -> None:
    check(BY_NAME[name])


def test_without_a_budget_faults_end_the_training() -> None:
    lesson = without(BY_NAME["faults"].lesson, vec={"max_restarts": 3})
    with pytest.raises(WorkerError, match="more than 3 restarts"):
        study(lesson, 1, 450)
