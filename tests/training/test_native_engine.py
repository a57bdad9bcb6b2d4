"""The native core beside torch: the same runs, checkpoints for both, and who is chosen."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fugu
from fugu import native
from fugu.core.errors import UsageError
from fugu.envs.building import build
from fugu.rollout.collector import Collector, NativeCollector
from fugu.training.config import resolve_config
from fugu.training.trainer import Progress, Trainer

pytestmark = pytest.mark.skipif(not native.available, reason="the core is not built")

TOYS = Path(__file__).parents[1] / "native/toys"
UPDATES = 3
SMALL = {"vec": {"num_envs": 24}, "train": {"horizon": 16}}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "breakout": ("breakout", {}),
    "lstm": ("breakout", {"policy": {"core": "lstm"}}),
    "gru": ("memory", {"policy": {"core": "gru"}}),
    "mingru": ("memory", {"policy": {"core": "mingru"}}),
    "own critic": ("cartpole", {"policy": {"critic": "own", "normalise": True}}),
    "steps": ("cartpole", {"train": {"draw": "steps"}}),
    "priorities": ("breakout", {"train": {"alpha": 0.8, "value_loss": "clipped"}}),
    "clipped huber loss": (
        "cartpole",
        {"train": {"value_loss": "huber_clipped", "value_clip": 0.1, "huber_delta": 0.3}},
    ),
    "muon": ("cartpole", {"train": {"optimiser": "muon", "learning_rate": 0.01}}),
    "continuous": ("continuous", {}),
    "truncations": ("pendulum", {"env_kwargs": {"max_steps": 11}}),
    "lstm, truncations": ("pendulum", {"env_kwargs": {"max_steps": 7}, "policy": {"core": "lstm"}}),
    "masks": ("masked", {}),
    "structured": ("spaces", {}),
    "several agents": ("multiagent", {}),
    "agents that begin anew": ("snake", {}),
    "lstm, several agents": (
        "simple_spread",
        {"policy": {"core": "lstm"}, "train": {"horizon": 40}},
    ),
    "taking turns": ("connect4", {"env_kwargs": {"opponent": 2}}),
    "processes": ("CartPole-v1", {"vec": {"backend": "process", "num_workers": 2}}),
    "best episodes": ("password", {"train": {"best_episodes": 4}}),
}


def merged(settings: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = copy.deepcopy(SMALL)
    for section, values in copy.deepcopy(settings).items():
        out[section] = {**out.get(section, {}), **values}
    out["policy"] = {"precision": "float32", "hidden_size": 32, **out.get("policy", {})}
    return out


def run(env: str, engine: str, settings: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """What each update left: weights, losses and episodes."""
    seen: list[dict[str, Any]] = []

    def after(trainer: Trainer, progress: Progress) -> None:
        weights = torch.cat([p.detach().flatten() for p in trainer.policies[0].parameters()])
        engines = getattr(trainer.algorithm, "engines", [])
        seen.append({
            "weights": weights.clone(), "losses": progress.losses, "episodes": progress.episodes,
            "steps": progress.steps, "engines": engines, "collector": trainer.algorithm.collector,  # type: ignore[attr-defined]
        })  # fmt: skip
        trainer.stopping = len(seen) == UPDATES

    settings = merged(settings)
    settings["train"] = {"total_steps": 100_000, **settings["train"], "engine": engine}
    options = {"keep": False, "show": False, "seed": 5, **options}
    fugu.train(env, callbacks=[after], **options, **settings)
    return seen


@pytest.mark.parametrize("name", RUNS)
def test_runs_stay_together(name: str) -> None:
    env, settings = RUNS[name]
    by_torch, by_core = run(env, "torch", settings), run(env, "native", settings)
    assert by_torch[0]["engines"] == ["torch"]
    assert by_core[0]["engines"] == ["native"]
    for right, found in zip(by_torch, by_core, strict=True):
        # A thirtieth of a step: AdamW divides gradients of almost 0 by their own size.
        assert float((right["weights"] - found["weights"]).abs().max()) < 1e-4
        assert found["steps"] == right["steps"]
        assert found["losses"].keys() == right["losses"].keys()
        for key, value in right["losses"].items():
            assert found["losses"][key] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True)
        assert found["episodes"] == pytest.approx(right["episodes"], rel=1e-5)


def test_rows_of_native_environments_are_filled_without_python() -> None:
    for env in ("cartpole", "multiagent", "snake"):
        assert isinstance(run(env, "native", {})[0]["collector"], NativeCollector)
    in_turns = run(*RUNS["taking turns"][:1], "native", RUNS["taking turns"][1])[0]["collector"]
    assert not isinstance(in_turns, NativeCollector)


@pytest.mark.parametrize(
    "name", ["lstm", "lstm, truncations", "continuous", "masks", "several agents"]
)
def test_native_collection_records_what_the_collector_does(name: str) -> None:
    """Every table, all that agents remember and the counts, bit for bit, over four segments."""
    env, settings = RUNS[name]
    tables: list[dict[str, Any]] = []
    for collects in (NativeCollector, Collector):
        settings = merged(settings)
        settings["train"] |= {"engine": "native", "horizon": 9}
        trainer = Trainer(resolve_config(env, overrides=settings))
        algorithm: Any = trainer.algorithm
        algorithm.start(7)
        for _ in range(4):
            collects.collect(algorithm.collector)
            (group,) = algorithm.groups
            store = group.actor.store
            store.release(store.take())
        arrays = store.state_dict() | {"states": group.actor.states.numpy()}
        told = {"steps": algorithm.collector.steps, **algorithm.episodes.read()}
        tables.append(arrays | group.returns.state_dict() | told)
        trainer.close()
    natively, step_by_step = tables
    assert natively.keys() == step_by_step.keys()
    for key, numbers in step_by_step.items():
        np.testing.assert_array_equal(natively[key], numbers, err_msg=key)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_runs_are_the_same_each_time(core: str, precision: str) -> None:
    settings = {"policy": {"core": core, "precision": precision}}
    first, again = (run("breakout", "native", settings)[-1]["weights"] for _ in range(2))
    assert first.numpy().tobytes() == again.numpy().tobytes()


@pytest.mark.parametrize(
    ("first", "then"), [("native", "torch"), ("torch", "native"), ("torch", "auto")]
)
def test_checkpoints_serve_both(first: str, then: str, tmp_path: Path) -> None:
    """A run goes on with the other engine, and ends where it would have without a change."""
    settings: dict[str, Any] = {
        "vec": {"num_envs": 16},
        "policy": {"precision": "float32", "core": "gru", "hidden_size": 16},
        "show": False,
        "seed": 3,
    }
    train = {"horizon": 16, "total_steps": 16 * 16 * 4, "engine": first}
    whole = fugu.train(
        "cartpole", train=train, run={"folder": tmp_path, "name": "whole"}, **settings
    )
    stopped: list[int] = []

    def stop(trainer: Trainer, progress: Progress) -> None:
        stopped.append(progress.steps)
        trainer.stopping = len(stopped) == 2

    fugu.train(
        "cartpole",
        train=train,
        run={"folder": tmp_path, "name": "part"},
        callbacks=[stop],
        **settings,
    )
    overrides = {"train": {"engine": then}}
    rest = fugu.resume("part", root=tmp_path, show=False, **overrides)
    assert rest.steps == whole.steps
    for right, found in zip(
        whole.policies[0].parameters(), rest.policies[0].parameters(), strict=True
    ):
        assert float((right - found).abs().max()) < 1e-4


def test_auto_says_why_torch_learns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fugu"):
        seen = run("cartpole", "auto", {"policy": {"core": "transformer", "window": 4}})
    assert seen[0]["engines"] == ["torch"]
    assert "torch learns this policy" in caplog.text
    assert "attend" in caplog.text
    assert run("cartpole", "auto", {})[0]["engines"] == ["native"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"policy": {"core": "transformer", "window": 4}}, "attend"),
        ({"train": {"compile": True}}, "compile"),
    ],
)
def test_the_core_is_refused_what_it_cannot_learn(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=f"train.engine.*{word}"):
        run("cartpole", "native", settings)


def test_a_policy_that_says_no_numbers_is_an_error() -> None:
    def spoil(trainer: Trainer, progress: Progress) -> None:
        with torch.no_grad():
            trainer.policies[0].decoder.bias[0] = float("nan")  # type: ignore[index,union-attr]

    with pytest.raises((UsageError, ArithmeticError)):
        fugu.train(
            "cartpole", keep=False, show=False, callbacks=[spoil], train={"engine": "native"}
        )


@pytest.mark.parametrize("toy", ["idle", "waiting"])
def test_agents_that_do_not_act_although_they_should_are_an_error(toy: str, tmp_path: Path) -> None:
    library = str(build(TOYS / f"{toy}.h", tmp_path / f"{toy}.so"))
    with pytest.raises(UsageError, match="does not act in every step"):
        run(library, "native", {})
    assert run(library, "torch", {})[-1]["steps"] > 0


@pytest.mark.parametrize("agents", [1, 5, 48, 49])
def test_as_many_agents_as_there_may_be_and_one_more(agents: int, tmp_path: Path) -> None:
    crowd = str(build(TOYS / "crowd.h", tmp_path / "crowd.so"))
    settings = {"env_kwargs": {"agents": agents}, "vec": {"num_envs": 3}}
    by_torch, by_core = (run(crowd, engine, settings) for engine in ("torch", "native"))
    assert isinstance(by_core[0]["collector"], NativeCollector) == (agents <= 48)
    for right, found in zip(by_torch, by_core, strict=True):
        assert float((right["weights"] - found["weights"]).abs().max()) < 1e-4
        assert found["episodes"] == pytest.approx(right["episodes"], rel=1e-5)
