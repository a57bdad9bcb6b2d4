"""Reward models: the loss by hand, calibration by hand, comparisons that come back, checkpoints."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.algos.preferences import (
    Comparison,
    Piece,
    PreferenceConfig,
    calibrate,
    compare,
    load_reward_model,
    preference_loss,
    read_comparisons,
    train_reward_model,
    write_comparisons,
)
from fugu.core.errors import UsageError
from fugu.data.episodes import Episode
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout
from fugu.store.checkpoint import CheckpointError

ACTION = Layout.of(spaces.Dict(go=spaces.Discrete(3), far=spaces.Box(-1, 1, (1,))))
GROUP = AgentGroup("agent", (0,), Layout.of(spaces.Box(-9, 9, (2,))), ACTION)


def episodes(count: int, steps: int | None = 6) -> list[Episode]:
    """Episodes whose rewards are the first number seen, plus 1 for the choice 2."""
    random, found = np.random.default_rng(0), []
    for _ in range(count):
        length = steps or int(random.integers(2, 9))
        seen = random.normal(size=(length, 2)).astype(np.float32)
        choices = random.integers(3, size=(length, 1))
        samples = np.concatenate([choices, random.normal(size=(length, 1))], 1).astype(np.float32)
        rewards = (seen[:, 0] + (choices[:, 0] == 2)).astype(np.float32)
        masks, logs = np.ones((length, 3), np.bool_), np.zeros(length, np.float32)
        found.append(Episode(seen, samples, masks, logs, rewards))
    return found


def test_the_loss_by_hand() -> None:
    differences = torch.tensor([0.0, 2.0, -1.0, 3.0])
    preferences = torch.tensor([1.0, 1.0, 1.0, 0.5])
    expected = [
        math.log(2),
        math.log(1 + math.exp(-2)),
        math.log(1 + math.exp(1)),
        0.5 * math.log(1 + math.exp(-3)) + 0.5 * math.log(1 + math.exp(3)),
    ]
    assert preference_loss(differences, preferences).tolist() == pytest.approx(expected)


def test_calibration_by_hand() -> None:
    report = calibrate(np.array([0.9, 0.92, 0.3, 0.55]), np.array([1.0, 0.0, 0.0, 0.5]), bins=5)
    # Bins of confidence: 0.5-0.6, 0.6-0.7, 0.7-0.8, 0.8-0.9, 0.9-1.
    assert [(b.count, b.accuracy) for b in report.bins] == [(1, 0.5), (1, 1.0), (2, 0.5)]
    assert [b.confidence for b in report.bins] == pytest.approx([0.55, 0.7, 0.91])
    assert report.accuracy == 0.625
    assert report.calibration_error == pytest.approx(0.25 * 0.05 + 0.25 * 0.3 + 0.5 * 0.41)
    said = [0.9, 0.08, 0.7, math.sqrt(0.55 * 0.45)]
    assert report.loss == pytest.approx(-np.mean(np.log(said)))


def test_a_perfectly_sure_and_right_model_has_no_error() -> None:
    report = calibrate(np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    assert (report.accuracy, report.calibration_error) == (1.0, 0.0)
    assert report.loss == pytest.approx(0.0, abs=1e-9)


def test_the_teacher_prefers_larger_returns() -> None:
    two = episodes(2)
    random = np.random.default_rng(1)
    better = two[0] if two[0].total > two[1].total else two[1]
    for comparison in compare(two, 20, random):
        first = np.array_equal(comparison.first.observations, better.observations)
        assert comparison.preference == float(first)
    turned = compare(two, 20, random, mistakes=1.0)
    assert all(
        c.preference != np.array_equal(c.first.observations, better.observations) for c in turned
    )
    same = [two[0], two[0]]
    assert {c.preference for c in compare(same, 5, random)} == {0.5}
    pieces = compare(two, 5, random, length=2)
    assert {len(c.first.samples) for c in pieces} == {2}


def test_a_teachers_temperature_is_bradleys_and_terrys() -> None:
    two = episodes(2)
    difference = two[0].total - two[1].total
    comparisons = compare(two, 4000, np.random.default_rng(2), temperature=abs(difference))
    right = [
        c.preference
        if np.array_equal(c.first.observations, two[0].observations)
        else 1 - c.preference
        for c in comparisons
    ]
    expected = 1 / (1 + math.exp(-math.copysign(1, difference)))
    assert np.mean(right) == pytest.approx(expected, abs=0.03)


def test_comparisons_come_back_from_their_file(tmp_path: Path) -> None:
    written = compare(episodes(5, None), 7, np.random.default_rng(0))
    write_comparisons(tmp_path / "pairs.jsonl", written)
    read = read_comparisons(tmp_path / "pairs.jsonl", GROUP)
    for one, other in zip(written, read, strict=True):
        assert one.preference == other.preference
        for mine, theirs in ((one.first, other.first), (one.second, other.second)):
            assert np.array_equal(mine.observations, theirs.observations)
            assert mine.observations.dtype == theirs.observations.dtype
            assert np.array_equal(mine.samples, theirs.samples)


GOOD: dict[str, Any] = {"observations": [[1.0, 2.0]], "actions": [[0.0, 0.5]]}


@pytest.mark.parametrize(
    "line",
    [
        {"first": GOOD, "second": GOOD},
        {"first": GOOD, "second": {**GOOD, "actions": [[0.0]]}, "preference": 1},
        {"first": GOOD, "second": GOOD, "preference": 2},
        {"first": {"observations": [], "actions": []}, "second": GOOD, "preference": 1},
    ],
)
def test_a_wrong_line_is_named(line: Any, tmp_path: Path) -> None:
    good = json.dumps({"first": GOOD, "second": GOOD, "preference": 1})
    (tmp_path / "pairs.jsonl").write_text(f"{good}\n{json.dumps(line)}\n")
    with pytest.raises(UsageError, match="line 2: given"):
        read_comparisons(tmp_path / "pairs.jsonl", GROUP)


def correlation(shuffled: bool, steps: int | None = 6) -> tuple[float, Any]:
    """Of the learned rewards with the true ones, on episodes that were not compared."""
    random = np.random.default_rng(3)
    comparisons = compare(episodes(150, steps), 400, random)
    if shuffled:
        labels = random.permutation([c.preference for c in comparisons])
        comparisons = [replace(c, preference=p) for c, p in zip(comparisons, labels, strict=True)]
    model, report = train_reward_model(GROUP, comparisons, PreferenceConfig(members=2, epochs=15))
    fresh = episodes(300)[200:]
    learned = np.concatenate([model.rewards(episode) for episode in fresh])
    true = np.concatenate([episode.rewards for episode in fresh])
    return float(np.corrcoef(learned, true)[0, 1]), report


@pytest.mark.parametrize("steps", [6, None])
def test_rewards_are_found_from_comparisons(steps: int | None) -> None:
    found, report = correlation(False, steps)
    assert found >= 0.9
    assert report.accuracy >= 0.8
    assert report.loss < 0.5
    assert report.comparisons == 80


def test_shuffled_labels_tell_nothing() -> None:
    found, report = correlation(True)
    assert abs(found) <= 0.5
    assert report.accuracy <= 0.65


def test_rewards_have_the_scale_of_the_comparisons() -> None:
    comparisons = compare(episodes(50), 100, np.random.default_rng(0))
    model, _ = train_reward_model(GROUP, comparisons, PreferenceConfig(epochs=2, holdout=0.01))
    assert model.centres  # pieces of one length: nothing is known of a constant
    every = np.concatenate([model.rewards(p) for c in comparisons for p in (c.first, c.second)])
    assert every.mean() == pytest.approx(0.0, abs=0.05)
    assert every.std() == pytest.approx(1.0, abs=0.05)
    uneven = compare(episodes(50, None), 100, np.random.default_rng(0))
    model, _ = train_reward_model(GROUP, uneven, PreferenceConfig(epochs=2))
    assert not model.centres


def test_training_is_its_seeds_alone() -> None:
    comparisons = compare(episodes(20), 40, np.random.default_rng(0))

    def rewards(seed: int) -> Any:
        torch.rand(seed + 3)  # whatever came before
        model, _ = train_reward_model(GROUP, comparisons, PreferenceConfig(epochs=1, seed=seed))
        return model.rewards(comparisons[0].first).tolist()

    assert rewards(1) == rewards(1) != rewards(2)


def test_a_checkpoint_gives_the_same_rewards(tmp_path: Path) -> None:
    comparisons = compare(episodes(20), 40, np.random.default_rng(0))
    model, _ = train_reward_model(GROUP, comparisons, PreferenceConfig(members=3, epochs=1))
    model.save(tmp_path / "reward")
    loaded = load_reward_model(tmp_path / "reward", GROUP)
    piece = comparisons[0].first
    assert np.array_equal(model.rewards(piece), loaded.rewards(piece))
    assert model.probability(comparisons[0]) == loaded.probability(comparisons[0])
    assert not [*tmp_path.rglob("*.p*kl*")]
    other = replace(GROUP, observation_layout=Layout.of(spaces.Box(-9, 9, (3,))))
    with pytest.raises(UsageError, match="observation_space"):
        load_reward_model(tmp_path / "reward", other)
    with pytest.raises(CheckpointError, match="no such folder"):
        load_reward_model(tmp_path / "nothing", GROUP)


def test_a_report_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = calibrate(np.linspace(0.05, 0.95, 40), (np.arange(40) > 18).astype(float))
    path = report.plot(tmp_path / "reliability.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_too_few_comparisons_are_refused() -> None:
    piece = Piece(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
    with pytest.raises(UsageError, match="2 or more"):
        train_reward_model(GROUP, [Comparison(piece, piece, 1.0)])
    with pytest.raises(UsageError, match="2 or more"):
        compare(episodes(1), 1, np.random.default_rng(0))
