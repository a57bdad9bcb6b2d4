"""Settings of optimisers reach them: in every algorithm, in both engines, and on resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fugu import native
from fugu.algos.optimizers import FlatAdamW, LaProp, Muon
from fugu.data.recording import record_episodes
from fugu.training.config import resolve_config
from fugu.training.session import resume, train
from fugu.training.trainer import Progress, Trainer

GIVEN: dict[str, float] = {
    "adam_beta1": 0.8,
    "adam_beta2": 0.95,
    "adam_eps": 1e-3,
    "momentum": 0.7,
    "weight_decay": 0.01,
}
TINY_DREAMER = {"deter": 16, "hidden": 8, "stoch": 4, "classes": 4, "blocks": 4, "units": 8}
ALGOS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "safe_ppo": {},
    "mappo": {},
    "grpo": {"vec": {"num_envs": 8, "group_size": 4}},
    "dreamer": {"policy": TINY_DREAMER, "vec": {"num_envs": 2}},
    "decision_transformer": {"policy": {"hidden_size": 8, "blocks": 1, "window": 4}},
}
KINDS = {"adamw": torch.optim.AdamW, "muon": Muon, "muon_torch": Muon, "laprop": LaProp}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few recorded episodes."""
    folder = tmp_path_factory.mktemp("data") / "cartpole"
    record_episodes("cartpole", folder, episodes=4, copies=2)
    return folder


def learners_of(engine: Any) -> Any:
    if hasattr(engine, "groups"):
        return [each.learner for each in engine.groups]
    return engine.learners if hasattr(engine, "learners") else engine._learners


def group_of(algo: str, train: dict[str, Any], data: Path) -> tuple[Any, dict[str, Any]]:
    """The optimiser of a run, and the settings of its first group of parameters."""
    env = "constrained_cartpole" if algo == "safe_ppo" else "cartpole"
    sections: dict[str, Any] = {"vec": {"num_envs": 4}, **ALGOS[algo]}
    if algo == "decision_transformer":
        train = {"data": str(data), **train}
    cfg = resolve_config(env, overrides={"algo": algo, **sections, "train": train})
    trainer = Trainer(cfg)
    try:
        engine: Any = trainer.algorithm
        first = engine._actors[0].learner if algo == "grpo" else learners_of(engine)[0]
        optimizer = first.optimizer if hasattr(first, "optimizer") else first.optimiser
        return optimizer, optimizer.param_groups[0]
    finally:
        trainer.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algo", ALGOS)
def test_settings_reach_the_optimiser(algo: str, kind: str, data: Path) -> None:
    engine = {"engine": "torch"} if algo in ("ppo", "safe_ppo") else {}
    optimiser, group = group_of(algo, {"optimiser": kind, **GIVEN, **engine}, data)
    check(optimiser, group, kind)


@pytest.mark.skipif(not native.available, reason="the core is not built")
@pytest.mark.parametrize("kind", KINDS)
def test_settings_reach_the_optimiser_of_the_native_engine(kind: str, data: Path) -> None:
    train = {"optimiser": kind, **GIVEN, "engine": "native"}
    optimiser, group = group_of("ppo", train, data)
    check(optimiser, group, kind)
    assert isinstance(optimiser, FlatAdamW) == (kind == "adamw")


def check(optimiser: Any, group: dict[str, Any], kind: str) -> None:
    assert isinstance(optimiser, KINDS[kind])
    assert group["weight_decay"] == 0.01
    if kind in ("muon", "muon_torch"):
        assert group["momentum"] == 0.7
        assert group["variant"] == ("puffer" if kind == "muon" else "torch")
    else:
        assert (group["betas"], group["eps"]) == ((0.8, 0.95), 1e-3)


@pytest.mark.parametrize(
    ("algo", "kind", "settings"),
    [
        ("ppo", "adamw", {"betas": (0.9, 0.999), "eps": 1e-5}),
        ("dreamer", "laprop", {"betas": (0.9, 0.999), "eps": 1e-20}),
        ("ppo", "muon", {"momentum": 0.95}),
    ],
)
def test_defaults_are_those_of_each_optimiser(
    algo: str, kind: str, settings: dict[str, Any], data: Path
) -> None:
    _, group = group_of(algo, {"optimiser": kind}, data)
    assert {name: group[name] for name in settings} == settings


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_with_changed_settings(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"show": False, "vec": {"num_envs": 4}}
    small = {"total_steps": 256, "horizon": 16, "optimiser": kind, "engine": "torch"}
    found: list[dict[str, Any]] = []

    def stop(trainer: Trainer, progress: Progress) -> None:
        trainer.stopping = True

    def look(trainer: Trainer, progress: Progress) -> None:
        engine: Any = trainer.algorithm
        found.append(dict(engine.groups[0].learner.optimizer.param_groups[0]))

    where = {"folder": tmp_path, "name": "it"}
    train("cartpole", train=small, run=where, callbacks=[stop], **options)
    resume("it", root=tmp_path, show=False, train=GIVEN, callbacks=[look])
    assert found
    for group in found:
        check(KINDS[kind]([torch.zeros(1, requires_grad=True)], 1.0), group, kind)
    steps = {group.get("step") for group in found}
    assert kind != "laprop" or min(steps) > 16  # the count goes on, although it is in the group
