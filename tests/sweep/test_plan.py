"""Ranges: read from TOML and flags, drawn by Optuna, decoded to settings, and back."""

from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fugu import native
from fugu.core.config import dump_toml, from_flags
from fugu.core.errors import UsageError
from fugu.sweep.plan import Range, SweepPlan, choose_ranges, nest, read_range, read_tables
from fugu.training.config import env_ranges, resolve_config

RANGES = [
    Range("train.clip", 0.05, 0.5),
    Range("train.learning_rate", 1e-4, 1e-1, log=True),
    Range("train.gamma", 0.8, 0.9999, logit=True),
    Range("train.minibatches", 1, 16, power_of_two=True),
    Range("train.epochs", 1, 8, integer=True),
    Range("train.total_steps", 1000, 1_000_000, log=True, integer=True),
    Range("policy.core", choices=("none", "lstm")),
    Range("train.normalise_advantages", choices=(True, False)),
]


def read_ranges(tree: dict[str, Any]) -> list[Range]:
    return [read_range(path, table) for path, table in read_tables(tree).items()]


needs_native = pytest.mark.skipif(not native.available, reason="needs the native extension")


@pytest.mark.parametrize("each", RANGES, ids=lambda each: each.path)
def test_a_range_is_what_its_toml_says(each: Range) -> None:
    text = dump_toml({"sweep": nest({each.path: each.to_tree()})})
    assert read_ranges(tomllib.loads(text)["sweep"]) == [each]


@pytest.mark.parametrize("each", RANGES, ids=lambda each: each.path)
def test_values_come_back_through_optuna(each: Range) -> None:
    for value in each.bounds:
        drawn = each.encode(value)
        assert each.distribution._contains(each.distribution.to_internal_repr(drawn))
        back = each.decode(drawn)
        assert back == value if isinstance(value, str | bool) else math.isclose(back, value)
        assert back in each


def test_each_kind_is_drawn_on_its_own_scale() -> None:
    kinds = {each.path: each.distribution for each in RANGES}
    assert kinds["train.clip"] == FloatDistribution(0.05, 0.5)
    assert kinds["train.learning_rate"] == FloatDistribution(1e-4, 1e-1, log=True)
    assert kinds["train.minibatches"] == IntDistribution(0, 4)
    assert kinds["train.epochs"] == IntDistribution(1, 8)
    assert kinds["train.total_steps"] == IntDistribution(1000, 1_000_000, log=True)
    assert kinds["policy.core"] == CategoricalDistribution(("none", "lstm"))
    logit = kinds["train.gamma"]
    assert isinstance(logit, FloatDistribution)
    assert math.isclose(logit.high, math.log(0.9999 / 0.0001), rel_tol=1e-9)


@given(st.floats(0.001, 0.998), st.floats(0, 1))
def test_a_logit_draw_stays_inside(low: float, share: float) -> None:
    each = Range("train.gamma", low, 0.999, logit=True)
    ends = each.encode(low), each.encode(0.999)
    assert low <= each.decode(ends[0] + share * (ends[1] - ends[0])) <= 0.999


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"low": 1}, "finite numbers as low and high"),
        ({"lwo": 1, "high": 2}, "nearest: sweep.train.gamma.low"),
        ({"low": 2, "high": 1}, "a low below the high"),
        ({"low": 0, "high": 1, "log": True}, "numbers above 0"),
        ({"low": 0.5, "high": 1.0, "logit": True}, "between 0 and 1"),
        ({"low": 3, "high": 8, "power_of_two": True}, "powers of two"),
        ({"low": 0.5, "high": 8, "integer": True}, "integers"),
        (
            {"low": 0.1, "high": 0.8, "log": True, "logit": True},
            "expected one scale; got log and logit",
        ),
        ({"low": 0.1, "high": 0.8, "logit": True, "integer": True}, "either logit or integer"),
        ({"low": "a", "high": 2}, "low: given 'a'"),
        ({"low": 1, "high": math.inf}, "finite numbers"),
        ({"low": 1, "high": 2, "log": 1}, "true or false"),
        ({"choices": ["a"]}, "two values or more"),
        ({"choices": "a"}, "two values or more"),
        ({"choices": [[1], [2]]}, "numbers, strings"),
        ({"choices": [1, 2], "low": 1}, "either choices or low"),
    ],
)
def test_wrong_ranges_are_refused_with_their_place(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read_range("train.gamma", table)
    assert str(error.value).startswith("sweep.train.gamma")


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sweep.train.gamma: expected a table .* got 0.9"):
        read_ranges({"train": {"gamma": 0.9, "clip": {"low": 0.1, "high": 0.2}}})


def test_flags_say_what_toml_says() -> None:
    words = "--sweep.train.gamma.low 0.9 --sweep.train.gamma.high=0.999 --sweep.train.gamma.logit"
    tree, _ = from_flags([*words.split(), "--sweep.policy.core.choices", "none,lstm"])
    assert read_ranges(tree["sweep"]) == [
        Range("train.gamma", 0.9, 0.999, logit=True),
        Range("policy.core", choices=("none", "lstm")),
    ]


@needs_native
def test_layers_of_ranges_and_settings() -> None:
    cfg = resolve_config("breakout")
    own = env_ranges("breakout")["train"]["learning_rate"]
    given = {"gamma": {"low": 0.9, "high": 0.95}, "lambda": {"low": 0.7}}
    found = {each.path: each for each in choose_ranges(cfg, {"train": given})}
    assert found["train.learning_rate"].to_tree() == own, "the environment's file"
    assert found["train.gamma"] == Range("train.gamma", 0.9, 0.95), "a whole one replaces ours"
    assert found["train.lambda_"] == Range("train.lambda_", 0.7, 0.999, logit=True), "a key alone"
    assert found["train.total_steps"].high == cfg.train.total_steps, "ours"
    chosen = choose_ranges(cfg, {}, only=("train.lambda", "train.learning-rate"))
    assert [each.path for each in chosen] == ["train.lambda_", "train.learning_rate"]
    plan = SweepPlan("one", "breakout", ranges=chosen)
    assert SweepPlan.from_json(plan.to_json()) == plan


@needs_native
def test_the_unchanged_settings_are_a_trial() -> None:
    plan = SweepPlan("one", "cartpole", ranges=choose_ranges(resolve_config("cartpole"), {}))
    parameters = plan.default_parameters()
    assert parameters is not None
    settings = plan.settings(parameters)
    assert settings["train.total_steps"] == plan.cfg.train.total_steps
    assert math.isclose(settings["train.gamma"], plan.cfg.train.gamma)
    outside = SweepPlan("one", "cartpole", ranges=(Range("train.gamma", 0.1, 0.2),))
    assert outside.default_parameters() is None


def test_plans_of_older_versions_are_read() -> None:
    plan = SweepPlan("one", "cartpole")
    text = plan.to_json()
    assert '"maximize"' in text
    assert SweepPlan.from_json(text.replace("maximize", "maximise")) == plan


@needs_native
@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"train": {"gama": {"low": 0.1, "high": 0.2}}}, "nearest: train.gamma"),
        ({"train": {"epochs": {"low": 1, "high": 8}}}, "integer = true"),
        ({"policy": {"core": {"choices": ["lstm", "fast"]}}}, "given 'fast'"),
        ({"train": {"horizon": {"low": 0, "high": 8, "integer": True}}}, "horizon"),
    ],
)
def test_ranges_that_are_no_settings_are_refused(ranges: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose_ranges(resolve_config("cartpole"), ranges)


@needs_native
def test_only_names_settings_that_have_a_range() -> None:
    with pytest.raises(UsageError, match=r"--sweep.train.clip.low"):
        choose_ranges(resolve_config("cartpole"), {}, only=("train.clip",))


@needs_native
def test_ranges_of_an_environment_are_for_algorithms_that_take_its_hints() -> None:
    for algo, high in (("ppo", 0.03), ("dreamer", 0.003)):
        ranges = choose_ranges(resolve_config("breakout", overrides={"algo": algo}), {})
        (rate,) = [each for each in ranges if each.path == "train.learning_rate"]
        assert math.isclose(rate.high, high), algo
