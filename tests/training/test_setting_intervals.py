"""Every number among the settings has an interval, and what is outside of it is refused."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any

import pytest

import fugu
from fugu.algos.preferences import PreferenceConfig
from fugu.algos.registry import algorithm_names
from fugu.algos.settings import read_config, section_types
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.core.intervals import intervals_of
from fugu.envs import suite
from fugu.envs.recipes import all_recipes
from fugu.training.config import PRESETS, resolve_config

SECTIONS = ("train", "vec", "policy", "run", "league")
KINDS: list[tuple[str, str, Any]] = [
    (algo, section, section_types(algo)[section])
    for algo in algorithm_names()
    for section in SECTIONS
]
ANY_NUMBER = {"seed"}


def plain_types(hint: Any) -> set[Any]:
    """The types that a hint is made of."""
    return {hint}.union(*map(plain_types, typing.get_args(hint)))


def numbers_of(kind: Any) -> list[str]:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if plain_types(hints[name]) & {int, float}]


@pytest.mark.parametrize(("algo", "section", "kind"), [*KINDS, ("", "", PreferenceConfig)])
def test_every_number_has_an_interval_and_is_checked(algo: str, section: str, kind: Any) -> None:
    for name in numbers_of(kind):
        if name in ANY_NUMBER or name == "ray_resources":  # checked with Ray's other requests
            continue
        interval = intervals_of(kind)[name]
        bad = [-math.inf if math.isinf(interval.low) else interval.low - 1]
        if typing.get_type_hints(kind)[name] is not int:
            bad += [math.nan]
            bad += [] if interval.infinite else [math.inf]
        for number in bad:
            path = f"{section}.{name}".strip("._")
            with pytest.raises(UsageError, match=f"{path}: given .*; allowed: "):
                kind(**{name: number})


@pytest.mark.parametrize(
    ("flag", "number", "allowed"),
    [
        ("rows", -1, "0 or more"),
        ("reward_clip", -1.0, "above 0, or none"),
        ("reward_clip", 0.0, "above 0, or none"),
        ("max_gradient_norm", 0.0, "above 0, or inf"),
        ("max_gradient_norm", -1.0, "above 0, or inf"),
        ("target_kl", -1.0, "above 0, or none"),
        ("target_kl", 0.0, "above 0, or none"),
        ("value_coefficient", -1.0, "0 or more"),
        ("total_steps", 0, "1 or more"),
        ("learning_rate", math.nan, "0 or more"),
        ("adam_beta2", 1.0, "0 to below 1"),
        ("adam_eps", 0.0, "above 0, or none"),
        ("clip", 0.0, "above 0, or inf"),
        ("desired_kl", 0.0, "above 0, or none"),
        ("final_desired_kl", -0.01, "above 0, or none"),
        ("intrinsic_coef", -0.5, "0 or more"),
        ("intrinsic_end", 0.0, "above 0 to 1"),
        ("intrinsic_end", 1.5, "above 0 to 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(flag: str, number: float, allowed: str) -> None:
    message = f"^train.{flag}: given {number}; allowed: {allowed}.$"
    with pytest.raises(UsageError, match=message):
        resolve_config("cartpole", overrides={"train": {flag: number}})


def test_infinity_is_allowed_where_it_means_no_limit() -> None:
    names = ("rho_clip", "c_clip", "clip", "value_clip", "max_gradient_norm")
    train: dict[str, Any] = dict.fromkeys(names, math.inf)
    found = fugu.train(
        "bandit", train={"total_steps": 256, **train}, vec={"num_envs": 4}, keep=False, show=False
    )
    assert found.steps >= 256


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan])
def test_a_vector_refuses_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(UsageError, match="a time above 0"):
        fugu.make("cartpole", 2, step_timeout=timeout)


def test_numbers_of_presets_and_environments_are_inside() -> None:
    for preset in PRESETS:
        resolve_config("cartpole", preset=preset)
    for env in suite.names():
        resolve_config(env)
    for recipe in all_recipes():
        resolve_config(f"{recipe.prefix}{recipe.default}")


def test_help_tells_the_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    told = told.partition("--train.gamma FLOAT ")[2]
    assert told.startswith("Discount of a step. Allowed: 0 to 1. (default: 0.99)")


def test_text_is_converted_before_it_is_checked() -> None:
    with pytest.raises(UsageError, match="train.rows: given -1; allowed: 0 or more"):
        read_config({"train": {"rows": "-1"}})
