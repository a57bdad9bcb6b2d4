"""Recipes learn with the settings that stand beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fugu.training.evaluate import evaluate
from fugu.training.session import Result, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.filterwarnings("ignore")]


def learn(env: str, folder: Path, **sections: Any) -> Result:
    return train(env, show=False, seed=1, run={"folder": folder}, **sections)


def returns(result: Result) -> Any:
    assert result.run is not None
    return np.array(evaluate(result.run, episodes=100, greedy=False, seed=7).returns)


def test_minigrid_empty(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    short = {"total_steps": 50_000}
    assert returns(learn("minigrid:Empty-5x5", tmp_path, train=short)).mean() >= 0.9
    control = learn("minigrid:Empty-5x5", tmp_path, train={**short, "learning_rate": 0.0})
    assert returns(control).mean() < 0.7


def test_minihack_room(tmp_path: Path) -> None:
    pytest.importorskip("minihack")
    short = {"total_steps": 20_000}
    reached = returns(learn("minihack:Room-5x5", tmp_path, train=short)) > 0  # which only goals pay
    assert reached.mean() >= 0.8
    control = learn("minihack:Room-5x5", tmp_path, train={"total_steps": 1, "learning_rate": 0.0})
    assert (returns(control) > 0).mean() < 0.8


def test_procgen_coinrun_improves(tmp_path: Path) -> None:
    pytest.importorskip("procgen")
    short = {"total_steps": 300_000}
    after = returns(learn("procgen:coinrun", tmp_path, train=short)).mean()
    before = returns(learn("procgen:coinrun", tmp_path, train={"total_steps": 1})).mean()
    assert after >= before + 2.0  # of 10 for the coin
