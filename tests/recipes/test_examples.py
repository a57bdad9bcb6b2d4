"""The scripts of examples/cleanrl do as their page says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/cleanrl"
FEW = ("--total-timesteps", "256", "--num-envs", "4", "--num-steps", "32")
pytestmark = pytest.mark.timeout(600)


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)


def needs(package: str) -> Any:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is absent: make recipes")


def test_variants_are_what_the_plain_script_and_their_edits_give() -> None:
    done = run("variants", "--check")
    assert done.returncode == 0, done.stdout


@needs("minihack")
def test_the_plain_script_cannot_take_minihack() -> None:
    done = run("minihack_plain", *FEW)
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    assert message == "TypeError: object of type 'NoneType' has no len()"
    results = ROOT / "benchmarks/results/examples.json"
    known = json.loads(results.read_text()) if results.exists() else {}
    if "minihack_plain" in known:
        assert known["minihack_plain"]["error"] == message
        assert message in (ROOT / "docs/examples.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "ppo",
        pytest.param("minihack_emulated", marks=needs("minihack")),
        pytest.param("minihack_fast", marks=needs("minihack")),
        pytest.param("atari_plain", marks=needs("ale_py")),
        pytest.param("atari_small", marks=needs("ale_py")),
        pytest.param("atari_large", marks=needs("ale_py")),
        pytest.param("atari_envpool", marks=needs("envpool")),
    ],
)
def test_a_script_trains_and_tells_its_rate(name: str) -> None:
    done = run(name, *FEW)
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("global_step=256 ")
    assert "SPS=" in last
