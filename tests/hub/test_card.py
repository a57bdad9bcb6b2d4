"""Cards as the Hub reads them, and scores of trainings."""

from __future__ import annotations

from typing import Any

import pytest

from fugu.hub.push import Score, training_score, write_card
from fugu.store.checkpoint import read_state
from fugu.store.run import Run

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


# ------------------------------------------------------------------ scores of the training


def test_the_score_of_the_training_weighs_updates_by_their_episodes() -> None:
    score = training_score({"recent": [[90, 900.0], [30, 660.0]]})
    assert score is not None
    assert (score.mean, score.episodes) == (13.0, 120)
    assert score.deviation == pytest.approx((0.75 * 9 + 0.25 * 81) ** 0.5)
    assert str(score) == "13.00 +/- 5.20"


def test_a_training_without_episodes_has_no_score() -> None:
    assert training_score({"recent": []}) is None
    assert training_score({}) is None


def test_the_checkpoint_of_a_run_has_the_score_of_its_last_episodes(run: Run) -> None:
    latest = run.latest()
    assert latest is not None
    score = training_score(read_state(latest))
    assert score is not None
    assert score.mean == pytest.approx(read_state(latest)["score"])
    assert 1 <= score.deviation < score.mean
