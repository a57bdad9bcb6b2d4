from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

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


class Halting(gymnasium.Env[Any, Any]):
    """Every other episode succeeds in its fourth step; the others fail there, or never end."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, endless: bool = False) -> None:
        self._endless, self._episode = endless, -1

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._episode, self._steps = self._episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        success = self._steps == 4 and self._episode % 2 == 1
        over = success or (self._steps == 4 and not self._endless)
        info = {"is_success": success, "alive": True, "health": np.uint8(200)}
        return np.zeros(1, np.float32), 1.0, over, False, info


def train_halting(folder: Path, *, endless: bool) -> None:
    train(
        f"{__name__}:Halting",
        env_kwargs={"endless": endless},
        show=False,
        vec={"num_envs": 8, "backend": "serial"},
        train={"total_steps": 4096},
        run={
            "folder": folder,
            "name": "halting",
            "evaluate_every": 2048,
            "evaluation_max_episode_steps": 20,
        },
    )


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "halting" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_rates_of_flags_in_infos_are_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_halting(tmp_path, endless=False)
    rates = {"is_success": 0.5, "alive": 1.0, "health": 200.0}
    for metrics in metrics_of(tmp_path):
        assert {name: metrics[name] for name in rates} == rates
        assert {name: metrics[f"evaluation/{name}"] for name in rates} == rates
    options = ["halting", "--runs", str(tmp_path), "--episodes", "32"]
    assert main(["eval", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in rates} == rates
    assert main(["eval", *options]) == 0
    assert "success rate 50.0%" in capsys.readouterr().out


def test_episodes_that_do_not_end_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    train_halting(tmp_path, endless=True)
    assert "16 of 32 episodes did not end within 20 steps" in caplog.text
    assert [metrics["evaluation/cut_off"] for metrics in metrics_of(tmp_path)] == [16, 16]
    found = evaluate("halting", root=tmp_path, episodes=32, max_episode_steps=10)
    assert (found.cut_off, found.to_dict()["mean_length"]) == (16, (10 + 4) / 2)
    options = ["halting", "--runs", str(tmp_path), "--episodes", "32", "--max-episode-steps", "10"]
    assert main(["eval", *options]) == 0
    report = capsys.readouterr().out
    assert "success rate 100.0% of the episodes that ended" in report
    assert "16 did not end and were cut off (--max-episode-steps)" in report
