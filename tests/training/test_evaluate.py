from __future__ import annotations

import json
from pathlib import Path

import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.training.evaluate import evaluate
from fugu.training.session import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(
        "memory", show=False, train={"total_steps": 60_000}, run={"folder": folder, "name": "good"}
    )
    return folder


def test_evaluation_has_the_memory_of_training_and_repeats_exactly(runs: Path) -> None:
    found = evaluate("good", root=runs, episodes=50)
    assert len(found.returns) == 64  # 16 copies play 4 each
    assert found.to_dict()["mean_return"] >= 0.9
    assert evaluate("good", root=runs, episodes=50) == found


def test_the_command_tells_numbers_and_films(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    video = tmp_path / "memory.gif"
    options = ["--runs", str(runs), "--episodes", "5", "--json", "--video", str(video)]
    assert main(["eval", "good", *options]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 5
    assert video.stat().st_size > 1000


def test_what_is_wrong_is_said(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="episodes: given 0"):
        evaluate("good", root=runs, episodes=0)
    assert main(["eval", "bad", "--runs", str(runs)]) == 1
    assert "good" in capsys.readouterr().err
