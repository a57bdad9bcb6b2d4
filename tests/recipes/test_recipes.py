"""Names of recipes, what they need, and the settings that train what they make."""

from __future__ import annotations

import json
import pickle
import re
import sys
import tomllib
from pathlib import Path

import pytest
from kitchen import SAMPLES, Sample, install_visitor, param

from fugu.cli.main import main
from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.recipes import Recipe, all_recipes, find_recipe
from fugu.envs.resolve import resolve
from fugu.training.config import env_ranges, env_settings, resolve_config

RECIPES = {recipe.prefix: recipe for recipe in all_recipes()}
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
UNTRAINED = ("velocity:",)  # whose settings are those of an algorithm


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("ALE/Breakout-v5", "ALE/"),
        ("nethack", "nethack:"),
        ("nethack:Staircase", "nethack:"),
        ("minihack:Room-5x5", "minihack:"),
        ("pettingzoo:butterfly/knights_archers_zombies", "pettingzoo:butterfly/"),
        ("pettingzoo:other/thing", "pettingzoo:"),
        ("box2d:LunarLander", "box2d:"),
        ("box2d:CarRacing-v3", "box2d:CarRacing"),
    ],
)
def test_the_longest_prefix_counts(name: str, prefix: str) -> None:
    found = find_recipe(name)
    assert found is not None
    assert found.prefix == prefix


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "breakout", "procgen", "minigrid", "ale_py:ALE/Pong-v5", "a.b:c", ""]
)
def test_names_that_are_no_recipe(name: str) -> None:
    assert find_recipe(name) is None


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_missing_package_names_the_extra(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, recipe.package, None)
    assert not recipe.installed
    with pytest.raises(MissingExtraError) as caught:
        resolve(f"{recipe.prefix}x")
    assert (caught.value.package, caught.value.extra) == (recipe.package, recipe.extra)
    assert f"fugu-rl[{recipe.extra}]" in str(caught.value)
    assert recipe.also in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_the_extra_is_one_of_the_project(recipe: Recipe) -> None:
    assert PROJECT["optional-dependencies"][recipe.extra]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_settings_stand_beside_the_recipe(recipe: Recipe) -> None:
    name = f"{recipe.prefix}x"
    if recipe.prefix in UNTRAINED:
        assert not recipe.settings.is_file()
        return
    settings = env_settings(name)
    cfg = resolve_config(name)  # which refuses keys and values that there are not
    for key, value in settings["train"].items():
        assert str(getattr(cfg.train, key)).lower() == str(value).lower()
    assert 0 < env_ranges(name)["train"]["learning_rate"]["low"] <= cfg.train.learning_rate
    assert cfg.train.learning_rate <= env_ranges(name)["train"]["learning_rate"]["high"]


def test_what_is_typed_comes_before_a_recipes_settings() -> None:
    cfg = resolve_config("procgen:coinrun", overrides={"env_kwargs": {"start_level": 3}})
    assert cfg.env_kwargs == {"num_levels": 200, "start_level": 3}
    assert resolve_config("ALE/Pong-v5").vec.backend == "batch"
    cfg = resolve_config("ALE/Pong-v5", overrides={"vec": {"backend": "process"}})
    assert cfg.vec.backend == "process"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sample", [*map(param, SAMPLES)])
def test_wrong_names_are_answered_with_the_nearest(sample: Sample) -> None:
    recipe = find_recipe(sample.name)
    assert recipe is not None
    if recipe.names is None:
        pytest.skip("any name will do")
    known = next(iter(recipe.names()))
    with pytest.raises(UsageError, match=rf"Nearest: .*{re.escape(recipe.prefix)}"):
        resolve(f"{recipe.prefix}{known[:-1]}q")
    if recipe.prefix[-1] in ":/":
        with pytest.raises(UsageError, match=f"one of {len(list(recipe.names()))} names"):
            resolve(recipe.prefix)


def test_another_package_brings_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_recipe("visiting:counter") is None
    install_visitor(tmp_path, monkeypatch)
    try:
        found = find_recipe("visiting:counter")
        assert found is not None
        assert found.find("visiting") == found.find("visiting:counter") == "counter-v1"
        assert found.settings == Path(__file__).with_name("visiting.toml")
    finally:
        monkeypatch.undo()
        all_recipes.cache_clear()


@pytest.mark.filterwarnings("ignore")
def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    out = capsys.readouterr().out
    for recipe in RECIPES.values():
        assert recipe.prefix in out
        assert recipe.installed or f'pip install "fugu-rl[{recipe.extra}]"' in out
    assert main(["envs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert {r["prefix"]: r["installed"] for r in listed} == {
        prefix: recipe.installed for prefix, recipe in RECIPES.items()
    }
    if RECIPES["ALE/"].installed:
        assert main(["envs", "ALE/Break"]) == 0
        assert capsys.readouterr().out.split() == ["ALE/Breakout-v5"]
