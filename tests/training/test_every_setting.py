"""Every setting of every algorithm reaches what it sets: runs that differ in it alone differ."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from setting_cases import CASES, RUNS, Alike, Differ, Excused

from fugu.algos.registry import algorithm_names
from fugu.algos.settings import read_config
from fugu.core.config import merge
from fugu.core.errors import UsageError
from fugu.data.recording import record_episodes
from fugu.training.session import train

pytestmark = pytest.mark.timeout(200)
ROOT = Path(__file__).parents[2]
CORES = ("ppo", "safe_ppo")  # algorithms that the native core learns too
COMPARED = [
    (algo, name) for algo, cases in CASES.items() for name, case in cases.items()
    if isinstance(case, Differ)
]  # fmt: skip
WEIGHTS: dict[str, list[torch.Tensor]] = {}  # of runs that several cases compare with


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of recorded episodes."""
    root = tmp_path_factory.mktemp("data")
    for name, env, seed in (
        ("cartpole", "cartpole", 0), ("cartpole_again", "cartpole", 1), ("pendulum", "pendulum", 0)
    ):  # fmt: skip
        record_episodes(env, root / name, episodes=8, copies=4, seed=seed)
    return root


def weights_after(algo: str, settings: dict[str, Any], data: Path) -> list[torch.Tensor]:
    """The weights that a short run ends with."""
    key = repr((algo, sorted(settings.items(), key=str)))
    if key not in WEIGHTS:
        sections: dict[str, Any] = {}
        for name, value in settings.items():
            if name == "train.data":
                value = data / value
            *section, last = name.split(".")
            sections = merge(sections, {section[0]: {last: value}} if section else {last: value})
        env = sections.pop("env")
        result = train(env, algo=algo, seed=3, keep=False, show=False, **sections)
        found = [weight for policy in result.policies for weight in policy.parameters()]
        WEIGHTS[key] = [weight.detach().clone() for weight in found]
    return WEIGHTS[key]


def settings_of(algo: str, case: Differ, name: str, value: Any) -> dict[str, Any]:
    env = {"env": case.env} if case.env else {}
    return {**RUNS[algo], **env, **case.given, name: value}


def alike(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return [a.shape for a in first] == [b.shape for b in second] and all(
        torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("algo", algorithm_names())
def test_no_setting_is_left_out(algo: str) -> None:
    cfg = read_config({"algo": algo})
    names = {
        f"{section}.{item.name}"
        for section in ("train", "policy")
        for item in fields(getattr(cfg, section))
    }
    assert names == CASES[algo].keys()


def test_excuses_name_tests_that_there_are() -> None:
    for case in itertools.chain.from_iterable(cases.values() for cases in CASES.values()):
        assert not isinstance(case, Excused) or (ROOT / case.test).exists()


@pytest.mark.parametrize("algo", CASES)
def test_runs_without_a_difference_are_alike(algo: str, data: Path) -> None:
    first = weights_after(algo, RUNS[algo], data)
    second = weights_after(algo, {**RUNS[algo], "run.keep": 4}, data)  # no part of what is learned
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("algo", "name"), COMPARED, ids=[".".join(each) for each in COMPARED])
def test_two_values_give_different_weights(algo: str, name: str, data: Path) -> None:
    case = CASES[algo][name]
    assert isinstance(case, Differ)
    for engine in ("torch", "native") if algo in CORES else ("",):
        chosen = {"train.engine": engine} if engine else {}
        first, second = (
            settings_of(algo, case, name, value) | chosen for value in (case.first, case.second)
        )
        if engine == "native" and case.torch_only:
            with pytest.raises(UsageError, match=case.torch_only):
                weights_after(algo, second, data)
            continue
        same = alike(weights_after(algo, first, data), weights_after(algo, second, data))
        assert same == isinstance(case, Alike), engine
