"""Cards as the Hub reads them, and scores that training tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fugu.hub.card import Score, read_progress, write_card
from fugu.store.run import Run
from fugu.track.jsonl import JsonlSink

yaml = pytest.importorskip("yaml")


def card_of(env: str = "breakout", score: Score | None = None, *files: str) -> str:
    config = {"env": env, "algo": "ppo", "seed": 3, "train": {"rho_clip": float("inf")}}
    return write_card(
        "ann/b",
        "b-1",
        config,
        steps=1000,
        seconds=61.0,
        libraries={"python": "3.11.7"},
        score=score,
        files=files,
    )


def metadata(card: str) -> Any:
    _, text, _ = card.split("---\n", 2)
    return yaml.safe_load(text)


@pytest.mark.parametrize("env", ["breakout", "ALE/Pong-v5", "a:b", 'o"d\\d: #', "- x", "ü", "no"])
def test_the_hub_reads_what_was_meant(env: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = card_of(env, Score(12.345, 0.5, 20, "played"))
    read = metadata(card)
    assert read["library_name"] == "fugu"
    assert read["pipeline_tag"] == "reinforcement-learning"
    assert {"fugu", "ppo", env, "reinforcement-learning"} <= set(read["tags"])
    (result,) = hub.ModelCard(card).data.eval_results
    assert (result.dataset_name, result.metric_type) == (env, "mean_reward")
    assert result.metric_value == "12.35 +/- 0.50"
    assert result.task_type == "reinforcement-learning"


def test_a_card_without_a_score_says_none() -> None:
    card = card_of()
    assert metadata(card)["model-index"] == [{"name": "ppo", "results": []}]
    assert "Mean return" not in card


def test_pictures_are_shown_where_there_are_some() -> None:
    assert "replay" not in card_of()
    card = card_of("breakout", None, "curve.png", "replay.mp4")
    assert '<video src="replay.mp4"' in card
    assert "](curve.png)" in card
    assert "](replay.gif)" in card_of("breakout", None, "replay.gif")


def test_it_says_how_to_use_it_in_three_lines() -> None:
    card = card_of()
    block = card.split("```python\n")[1].split("```")[0]
    lines = [line for line in block.splitlines() if line]
    assert lines[:2] == ["import fugu", 'agent = fugu.from_hub("ann/b")']
    assert len(lines) == 3
    assert "fugu hub pull ann/b" in card


# ------------------------------------------------------------------ what training tells


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "run", "cartpole", {})


def score_of(run: Run, steps: int) -> Score | None:
    return read_progress(run.metrics_path, steps)[0]


def write(run: Run, lines: dict[int, dict[str, float]]) -> None:
    sink = JsonlSink(run.metrics_path)
    for step, metrics in lines.items():
        sink.write(step, metrics)
    sink.close()


def test_the_last_hundred_episodes_count(run: Run) -> None:
    def told(count: float, mean: float) -> dict[str, float]:
        return {"episodes": count, "episode_return": mean}

    write(run, {1: told(50, 900.0), 2: told(90, 10.0), 3: {}, 4: told(30, 22.0), 5: told(9, 0.0)})
    score = score_of(run, 4)
    assert score is not None
    assert (score.mean, score.episodes) == (13.0, 120)
    assert score.deviation == pytest.approx((0.75 * 9 + 0.25 * 81) ** 0.5)
    assert str(score) == "13.00 +/- 5.20"


def test_an_evaluation_counts_before_episodes(run: Run) -> None:
    exam = {"evaluation/mean_return": 7.0, "evaluation/deviation": 1.5, "evaluation/episodes": 20}
    later = {**exam, "evaluation/mean_return": 9.0}
    write(run, {1: exam, 2: {"episodes": 4, "episode_return": 1.0}, 3: later})
    score = score_of(run, 2)
    assert score is not None
    assert (score.mean, score.deviation, score.episodes) == (7.0, 1.5, 20)


def test_nobody_knows(run: Run) -> None:
    assert score_of(run, 10) is None
    write(run, {1: {"loss": 1.0}, 2: {"episodes": 3, "episode_return": float("nan")}})
    assert score_of(run, 10) is None
