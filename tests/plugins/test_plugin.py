"""An algorithm in a package of its own trains, resumes, is swept and logs like a built-in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

PACKAGE = Path(__file__).parent / "fugu-reinforce"
METRICS = {"loss/policy_loss", "loss/value_loss", "loss/entropy", "loss/return_to_go"}


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The package, installed into a folder; the variables that processes find it by."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for file in PACKAGE.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "--target", str(folder)]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, str(source)], check=True, timeout=120)
    return {**os.environ, "PYTHONPATH": str(folder)}


def fugu(
    variables: dict[str, str], folder: Path, *arguments: str, fails: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `fugu` in a folder."""
    found = subprocess.run(
        [sys.executable, "-m", "fugu.cli.main", *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (found.returncode != 0) == fails, found.stderr + found.stdout
    return found


def train(variables: dict[str, str], folder: Path, name: str, *more: str) -> None:
    """Train REINFORCE on cartpole."""
    plain = ["--train.total-steps", "6000", "--train.episodes", "8", "--vec.num-envs", "8"]
    kept = ["--run.name", name, "--run.checkpoint-seconds", "0", "--quiet", "--seed", "4"]
    fugu(variables, folder, "train", "cartpole", "--algo", "reinforce", *plain, *kept, *more)


def metrics_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return what a run logged."""
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights_of(folder: Path, name: str) -> list[np.ndarray[Any, Any]]:
    """Return the weights in a run's last checkpoint."""
    last = sorted((folder / "runs" / name / "checkpoints").glob("step_*"))[-1]
    found = load_file(last / "policy_0.safetensors")
    return [found[name] for name in sorted(found)]


def same(one: Sequence[np.ndarray[Any, Any]], other: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return whether weights are equal, bit for bit."""
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_its_settings_are_flags_and_its_metrics_are_logged(
    installed: dict[str, str], tmp_path: Path
) -> None:
    assert (
        "--train.value-coef"
        in fugu(installed, tmp_path, "train", "--algo", "reinforce", "--help").stdout
    )
    train(installed, tmp_path, "one")
    assert metrics_of(tmp_path, "one")[-1].keys() >= METRICS
    wrong = ["train", "cartpole", "--algo", "reinforce", "--train.horizon", "3"]
    assert "no such setting" in fugu(installed, tmp_path, *wrong, fails=True).stderr
    evaluation = fugu(installed, tmp_path, "eval", "one", "--episodes", "4", "--json")
    assert json.loads(evaluation.stdout)["mean_return"] > 0


def test_it_resumes_exactly(installed: dict[str, str], tmp_path: Path) -> None:
    constant = ["--train.schedule", "constant"]
    train(installed, tmp_path, "whole", *constant)
    train(installed, tmp_path, "cut", *constant, "--train.total-steps", "3000")
    assert not same(weights_of(tmp_path, "whole"), weights_of(tmp_path, "cut"))
    fugu(installed, tmp_path, "resume", "cut", "--train.total-steps", "6000", "--quiet")
    assert same(weights_of(tmp_path, "whole"), weights_of(tmp_path, "cut"))


def test_it_is_swept(installed: dict[str, str], tmp_path: Path) -> None:
    flags = ["--algo", "reinforce", "--train.total-steps", "2000", "--trials", "3", "--quiet"]
    name = "--sweep.train.value-coef"
    ranges = [f"{name}.low", "0.1", f"{name}.high", "1.0", "--only", "train.value_coef"]
    fugu(installed, tmp_path, "sweep", "cartpole", "--name", "it", *flags, *ranges)
    configs = [json.loads(path.read_text()) for path in tmp_path.glob("sweeps/it/**/config.json")]
    assert {config["algo"] for config in configs} == {"reinforce"}
    assert len({config["train"]["value_coef"] for config in configs}) == 3


@pytest.mark.slow
def test_it_learns_and_without_a_learning_rate_it_does_not(
    installed: dict[str, str], tmp_path: Path
) -> None:
    more = ["--train.total-steps", "150000", "--train.episodes", "32"]
    train(installed, tmp_path, "learns", *more)
    train(installed, tmp_path, "control", *more, "--train.learning-rate", "0")
    assert metrics_of(tmp_path, "learns")[-1]["episode_return"] > 80
    assert metrics_of(tmp_path, "control")[-1]["episode_return"] < 35
