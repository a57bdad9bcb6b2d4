"""The examples and the benchmarks run as their pages say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("env", ["nethack", "expedition"])
def test_the_emulation_tour(env: str) -> None:
    done = run("examples/emulation_tour.py", "--env", env, "--steps", "100")
    assert done.returncode == 0, done.stderr
    assert "100 steps" in done.stdout
    assert "every row came back exactly" in done.stdout


def test_ppo_by_hand_balances_the_pole() -> None:
    done = run("examples/ppo_by_hand.py")
    assert done.returncode == 0, done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert float(last.rpartition(" ")[2]) >= 400


@pytest.mark.parametrize("name", ["emulation", "import_time"])
def test_a_benchmark_states_its_claims_and_keeps_them(name: str, tmp_path: Path) -> None:
    """Whether they are met is not asserted: a busy machine must not break the build."""
    file = tmp_path / "rows.jsonl"
    done = run(f"benchmarks/{name}.py", "--quick", "--json", str(file))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows
    missed = [row for row in rows if row["met"] is False]
    assert done.returncode == int(bool(missed)), done.stderr
    for row in rows:
        assert f"claim {row['claim']}: " in done.stdout
        assert row["ratio"] is not None
        assert row["commit"]
