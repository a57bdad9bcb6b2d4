"""Runs of the Decision Transformer: data in, checkpoints, what is asked for."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.data.offline import Dataset
from fugu.data.recording import record_episodes
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.training.config import resolve_config
from fugu.training.evaluate import evaluate
from fugu.training.session import Result, resume, train
from fugu.training.target_returns import evaluate_targets, rank_correlation
from fugu.training.trainer import Trainer

TINY: dict[str, Any] = {"hidden_size": 16, "blocks": 1, "window": 5}
FEW: dict[str, Any] = {"batch_size": 8, "batches": 4, "total_steps": 6 * 120}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random play, by environment."""
    root = tmp_path_factory.mktemp("data")
    for env in ("cartpole", "CartPole-v1", "continuous", "spaces", "memory"):
        record_episodes(env, root / env, episodes=16, copies=4, backend=backend_of(env))
    record_episodes("speaker_listener", root / "speaker_listener", episodes=4, copies=2)
    return {path.name: path for path in root.iterdir()}


def backend_of(env: str) -> Any:
    return "serial" if env == "CartPole-v1" else "auto"


def start(env: str, folder: Path, **settings: Any) -> Result:
    sections = {"policy": TINY, "seed": 3, **settings}
    sections["train"] = {**FEW, **sections.get("train", {})}
    return train(env, show=False, algo="decision_transformer", **sections)


def tensors_of(run: Run | None) -> dict[str, bytes]:
    assert run is not None
    path = run.latest()
    assert path is not None
    checkpoint = load_checkpoint(path)
    found = {
        f"{file}.{name}": tensor.contiguous().numpy().tobytes()
        for file, group in checkpoint.tensors.items()
        for name, tensor in group.items()
    }
    return {**found, "random": repr(checkpoint.state["random"]).encode()}


@pytest.mark.parametrize(
    ("env", "vec"),
    [
        ("cartpole", {"num_envs": 1}),
        ("CartPole-v1", {"num_envs": 2, "backend": "process", "num_workers": 1}),
        ("speaker_listener", {"num_envs": 1}),
    ],
)
def test_stopped_and_resumed_equals_never_stopped(
    env: str, vec: dict[str, Any], data: dict[str, Path], tmp_path: Path
) -> None:
    settings = {"vec": vec, "train": {"data": data[env]}}
    whole = start(env, tmp_path, run={"folder": tmp_path, "name": "whole"}, **settings)

    def stop(trainer: Any, progress: Any) -> None:
        trainer.stopping = progress.updates == 2

    part = start(
        env, tmp_path, run={"folder": tmp_path, "name": "part"}, callbacks=[stop], **settings
    )
    assert part.status == "stopped"
    assert tensors_of(part.run) != tensors_of(whole.run)
    rest = resume("part", root=tmp_path, show=False)
    assert rest.status == "finished"
    assert tensors_of(rest.run) == tensors_of(whole.run)


def test_the_learning_rate_rises_from_the_first_update_on(
    data: dict[str, Path], tmp_path: Path
) -> None:
    rates: list[float] = []

    def note(trainer: Any, progress: Any) -> None:
        rates.append(progress.losses["learning_rate"])

    learn = {"data": data["cartpole"], "warmup": 1.0, "learning_rate": 0.1, "total_steps": 600}
    result = start("cartpole", tmp_path, train=learn, callbacks=[note], keep=False)
    assert 0.0 < rates[0] < rates[-1] <= 0.1
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.1 * min(1.0, result.steps / 600))


def test_other_data_does_not_resume(data: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    record_episodes("cartpole", folder, episodes=4)
    settings = {"train": {"data": folder}, "run": {"folder": tmp_path, "name": "one"}}
    start("cartpole", tmp_path, **settings)
    record_episodes("cartpole", folder, episodes=4)
    with pytest.raises(UsageError, match="began with"):
        resume("one", root=tmp_path, show=False, train={"total_steps": 10**6})


@pytest.mark.parametrize("env", ["continuous", "spaces", "memory"])
def test_any_layout_is_learned_and_played(env: str, data: dict[str, Path], tmp_path: Path) -> None:
    result = start(
        env,
        tmp_path,
        train={"data": data[env], "total_steps": 200},
        run={"folder": tmp_path, "name": "one", "evaluate_every": 100, "evaluation_episodes": 4},
    )
    assert result.run is not None
    found = evaluate("one", root=tmp_path, episodes=4)
    assert np.isfinite(found.returns).all()
    assert evaluate("one", root=tmp_path, episodes=4) == found
    assert result.run.best() is not None  # evaluations give a score


def test_defaults_follow_the_data_and_targets_are_asked_for(
    data: dict[str, Path], tmp_path: Path
) -> None:
    result = start(
        "cartpole",
        tmp_path,
        train={"data": data["cartpole"]},
        run={"folder": tmp_path, "name": "one"},
    )
    (policy,) = result.policies
    episodes: Any = Dataset(data["cartpole"])
    core: Any = policy.core
    assert float(core.target) == float(core.scale) == episodes.returns.max()
    (scale,) = policy.scales
    assert int(scale.count) == len(episodes.observations)
    assert scale.mean.numpy() == pytest.approx(episodes.observations.mean(0, np.float64))
    found = evaluate_targets("one", [10.0, 20.0], root=tmp_path, episodes=2)
    assert [each.target for each in found] == [10.0, 20.0]
    with pytest.raises(UsageError, match="train.data"):
        start("cartpole", tmp_path, keep=False)


def test_other_algorithms_are_not_asked(tmp_path: Path) -> None:
    train("bandit", show=False, train={"total_steps": 500}, run={"folder": tmp_path, "name": "a"})
    with pytest.raises(UsageError, match="decision_transformer"):
        evaluate_targets("a", [1.0], root=tmp_path, episodes=1)


def test_evaluations_with_targets_have_the_defaults_of_those_without() -> None:
    given, known = (signature(call).parameters for call in (evaluate_targets, evaluate))
    shared = given.keys() & known.keys()
    assert shared > {"episodes", "root", "best", "greedy", "seed", "max_episode_steps"}
    assert all(given[name].default == known[name].default for name in shared)


def test_rank_correlation_is_spearmans() -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    for _ in range(5):
        one, other = random.integers(6, size=(2, 12)).astype(float)
        expected = stats.spearmanr(one, other).statistic
        assert rank_correlation(one.tolist(), other.tolist()) == pytest.approx(expected)
    assert rank_correlation([1.0, 2.0], [3.0, 3.0]) == 0.0
    assert rank_correlation([3.0, 3.0], [1.0, 2.0]) == 0.0
    assert rank_correlation([3.0], [1.0]) == 0.0


def test_the_commands_record_train_and_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["record", "cartpole", "--data", "data", "--episodes", "20"]) == 0
    assert "32 episodes" in capsys.readouterr().out  # 16 copies play 2 each
    options = ["--algo", "decision_transformer", "--train.data", "data", "--run.name", "dt"]
    few = ["--train.total-steps", "500", "--policy.hidden-size", "16", "--policy.blocks", "1"]
    assert main(["train", "cartpole", *options, *few, "--quiet"]) == 0
    capsys.readouterr()
    asked = ["eval", "dt", "--episodes", "2", "--target", "10", "40", "--plot", "asked.png"]
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["target"] for each in told["targets"]] == [10.0, 40.0]
    assert (tmp_path / "asked.png").stat().st_size > 1000
    assert main(["eval", "dt", "--episodes", "2"]) == 0
    assert main(["record", "dt", "--data", "more", "--episodes", "2"]) == 0
    assert len(Dataset(tmp_path / "more")) == 2
    assert main(["eval", "dt", "--plot", "asked.png"]) == 1
    assert "--target" in capsys.readouterr().err


def test_a_training_can_leave_its_episodes_as_data(tmp_path: Path) -> None:
    ended: list[float] = []

    def note(trainer: Any, progress: Any) -> None:
        ended.append(progress.episodes.get("episodes", 0.0))
        trainer.stopping = progress.updates == 4

    folder = tmp_path / "data"
    settings: dict[str, Any] = {"vec": {"num_envs": 8}, "train": {"total_steps": 8 * 8 * 32}}
    run = {"folder": tmp_path, "name": "one", "record_data": folder}
    train("cartpole", show=False, seed=3, callbacks=[note], run=run, **settings)
    first = Dataset(folder)
    assert len(first) == sum(ended)
    assert (first.returns == first.lengths).all()
    record_episodes("cartpole", folder, episodes=3)  # as if written after the checkpoint
    result = resume("one", root=tmp_path, show=False)
    data = Dataset(folder)
    data.verify()
    assert result.status == "finished"
    assert len(data) > len(first)
    assert data.lengths[: len(first)].tolist() == first.lengths.tolist()
    assert data.steps <= result.steps
    with pytest.raises(UsageError, match="record_data"):
        start("cartpole", tmp_path, train={"data": folder}, keep=False, run={"record_data": folder})


def test_policies_that_know_their_observations_keep_their_scales(data: dict[str, Path]) -> None:
    sections = {"policy": {**TINY, "normalise": True}, "train": {"data": data["speaker_listener"]}}
    cfg = resolve_config("speaker_listener", overrides={"algo": "decision_transformer", **sections})
    trainer = Trainer(cfg)
    try:
        known, unknown = trainer.policies
        for scale in known.scales:
            scale.count.fill_(1.0)
        trainer.algorithm.start(0)
        assert all(float(scale.count) == 1.0 for scale in known.scales)
        assert all(float(scale.count) > 1.0 for scale in unknown.scales)
        assert known.scales
        assert unknown.scales
    finally:
        trainer.close()
