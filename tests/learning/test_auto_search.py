"""A search finds settings that learn where those given do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fugu.store.run import Run
from fugu.training import auto_search as search
from fugu.training.auto_record import read_record
from fugu.training.auto_search import rank
from fugu.training.evaluate import evaluate
from fugu.training.session import train

pytestmark = pytest.mark.timeout(280)
STEPS, SOLVED, FAILED = 150_000, 450.0, 150.0


def settings(folder: Path, rate: float) -> dict[str, Any]:
    return {
        "show": False,
        "seed": 0,
        "train": {"total_steps": STEPS, "learning_rate": rate},
        "run": {"folder": folder, "name": "auto"},
    }


def mean_return(run: Run) -> float:
    found: float = evaluate(run, episodes=48, seed=7).to_dict()["mean_return"]
    return found


@pytest.mark.parametrize("rate", [1e-6, 1.0], ids=["too low", "too high"])
def test_cartpole_is_learned_from_a_bad_learning_rate(rate: float, tmp_path: Path) -> None:
    found = train("cartpole", auto=True, **settings(tmp_path, rate))
    assert found.run is not None
    assert mean_return(found.run) >= SOLVED
    record = read_record(found.run)
    assert record is not None
    assert record.trained_steps <= 4 * STEPS
    # The control: the settings as given, trained for as many steps.
    assert mean_return(Run(found.run.folder / "members" / "defaults")) <= FAILED


def test_a_search_that_ranks_the_wrong_way_round_does_not_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "rank", lambda scores, first=(): rank(scores, first)[::-1])
    found = train("cartpole", auto=True, **settings(tmp_path, 1e-6))
    assert found.run is not None
    assert mean_return(found.run) <= FAILED
