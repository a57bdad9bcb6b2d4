"""Settings that an algorithm cannot use are refused, unless nobody chose them."""

from __future__ import annotations

from typing import Any

import pytest

from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.algos.settings import Config, read_config
from fugu.core.errors import UsageError
from fugu.training.config import env_settings, resolve_config
from fugu.training.trainer import Trainer

REFUSED: list[tuple[str, str, Any]] = [
    ("decision_transformer", "train.cpu_offload", True),
    ("decision_transformer", "policy.critic", "own"),
    ("decision_transformer", "policy.recall", 2),
    ("decision_transformer", "policy.engine", "native"),
    ("dreamer", "train.cpu_offload", True),
    ("grpo", "train.cpu_offload", True),
    ("grpo", "policy.critic", "own"),
    ("mappo", "policy.critic", "own"),
    ("mappo", "policy.recall", 2),
    ("mappo", "train.intrinsic", "rnd"),
    ("mappo", "train.loss", "fugu.algos.ppo:ppo_loss"),
    ("safe_ppo", "train.intrinsic", "rnd"),
    ("safe_ppo", "train.loss", "fugu.algos.ppo:ppo_loss"),
]


def tree_of(algo: str, path: str, value: Any) -> dict[str, Any]:
    section, name = path.split(".")
    return {"algo": algo, section: {name: value}}


@pytest.mark.parametrize(("algo", "path", "value"), REFUSED)
def test_they_are_refused_with_a_remedy(algo: str, path: str, value: Any) -> None:
    with pytest.raises(
        UsageError, match=rf"^{path}: given .*; allowed: .* with algo {algo}\. [A-Z]"
    ):
        resolve_config("cartpole", overrides=tree_of(algo, path, value))


def test_every_rule_is_tried_and_its_values_are_taken() -> None:
    rules = {(algo, path) for algo in algorithm_names() for path in find_algorithm(algo).unused}
    assert rules == {(algo, path) for algo, path, _ in REFUSED}
    for algo in algorithm_names():
        for path, rule in find_algorithm(algo).unused.items():
            section, name = path.split(".")
            default = getattr(getattr(Config(algo=algo), section), name)
            assert default == rule.allowed[0]
            for value in rule.allowed:
                resolve_config("cartpole", overrides=tree_of(algo, path, value))


def test_what_an_environment_suggests_to_others_is_left_out() -> None:
    env = "dm_control:cartpole-balance"
    assert env_settings(env)["policy"]["critic"] == "own"
    assert resolve_config(env, overrides={"algo": "grpo"}).policy.critic == "shared"


@pytest.mark.parametrize("engine", ["auto", "native"])
def test_a_microbatch_is_torchs(engine: str) -> None:
    train = {"engine": engine, "microbatch": 64, "horizon": 16}
    cfg = read_config({"env": "cartpole", "train": train, "vec": {"num_envs": 4}})
    if engine == "native":
        with pytest.raises(UsageError, match=r"train\.engine: .* train\.microbatch is 64"):
            Trainer(cfg)
        return
    trainer = Trainer(cfg)
    try:
        assert trainer.algorithm.engines == ["torch"]  # type: ignore[attr-defined]
        (notice,) = trainer.algorithm.notices()
        assert "train.microbatch is 64" in notice
    finally:
        trainer.close()
