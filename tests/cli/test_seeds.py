"""Several seeds: their statistics, their report, and what is kept when they are cut short."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fugu import native
from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.store import Run
from fugu.training.seed_summary import (
    SeedResult,
    bootstrap_interval,
    interquartile_mean,
    mean,
    summary,
)

pytestmark = pytest.mark.timeout(200)
needs_native = pytest.mark.skipif(not native.available, reason="needs the native extension")


def test_interquartile_mean() -> None:
    scores = np.array([[9.0, 1, 2, 100, 3, 4, -50, 5], [0, 0, 0, 0, 1, 1, 1, 1]])
    np.testing.assert_allclose(interquartile_mean(scores), [3.5, 0.5])
    assert interquartile_mean(np.array([1.0, 2, 9])) == 4.0, "too few to leave one out"


def test_the_interval_is_that_of_theory_for_a_mean() -> None:
    scores = np.random.default_rng(1).normal(10, 2, 200).tolist()
    low, high = bootstrap_interval([scores], mean)
    half = 1.96 * np.std(scores, ddof=1) / len(scores) ** 0.5
    np.testing.assert_allclose((low, high), np.mean(scores) + np.array([-half, half]), atol=0.03)
    assert bootstrap_interval([scores], mean) == (low, high), "the same for the same seed"
    assert bootstrap_interval([scores], mean, seed=1) != (low, high)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = bootstrap_interval([random.normal(0, 1, 40).tolist()], mean, resamples=1000)
        hits += low <= 0 <= high
    assert 0.90 <= hits / 200 <= 0.98


def test_resamples_are_drawn_within_each_environment() -> None:
    near, far = [1.0] * 5, [1000.0] * 5
    assert bootstrap_interval([near, far], mean) == (500.5, 500.5)
    low, high = bootstrap_interval([near + far], mean)  # the control: one heap
    assert low < 400 < 600 < high
    with pytest.raises(UsageError, match="one or more"):
        bootstrap_interval([near, []])


def test_only_finished_seeds_count() -> None:
    one = SeedResult(0, "a", "finished", 1.0, 10, 5, 1.0)
    cut = SeedResult(1, "b", "stopped", 50.0, 3, 3, 1.0)
    found = summary([one, cut])
    assert (found["seeds"], found["finished"], found["mean"], found["iqm"]) == (2, 1, 1.0, 1.0)
    assert found["mean_interval"] is None, "one score says nothing of the spread"
    assert summary([cut])["mean"] is None


@needs_native
def test_three_seeds_for_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--train.total-steps", "8192", "--quiet", "--seed", "3", "--run.name", "try"]
    assert main(["train", "bandit", "--seeds", "3", *flags]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "runs" / "try-seeds.json").read_text())
    assert [run.name for run in Run.list("runs")] == ["try-seed3", "try-seed4", "try-seed5"]
    scores = [run["score"] for run in found["runs"]]
    assert len({*scores}) == 3, "seeds differ"
    assert found["mean"] == pytest.approx(np.mean(scores))
    assert found["iqm_interval"][0] <= found["iqm"] <= found["iqm_interval"][1]
    for run in found["runs"]:
        assert run["status"] == "finished"
        assert 0 < run["steps_to_best"] <= run["steps"]
        assert run["seconds"] > 0
    for words in ("3 of 3 seeds", "mean ", "IQM ", "95 %", "Written: runs/try-seeds.json"):
        assert words in out


@needs_native
def test_finished_seeds_are_kept_when_the_next_one_is_stopped(tmp_path: Path) -> None:
    flags = ["--train.total-steps", "20000", "--quiet", "--run.name", "cut", "--seeds", "9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fugu.cli.main", "train", "bandit", *flags],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "runs" / "cut-seed1" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.is_file() and metrics.stat().st_size):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = json.loads((tmp_path / "runs" / "cut-seeds.json").read_text())
    assert [run["status"] for run in found["runs"]] == ["finished", "stopped"]
    assert found["finished"] == 1
    assert found["mean"] == found["runs"][0]["score"]
    assert "1 of 2 seeds" in out


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_seed_that_diverges_is_a_result_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "diverging.py").write_text(
        "import gymnasium\n"
        "class Env(gymnasium.Wrapper):\n"
        "    def __init__(self): super().__init__(gymnasium.make('CartPole-v1'))\n"
        "    def step(self, action):\n"
        "        seen, _, *rest = self.env.step(action)\n"
        "        return seen, float('inf'), *rest\n"
    )
    flags = ["--vec.num-envs", "4", "--vec.backend", "serial", "--train.total-steps", "2000"]
    flags += ["--vec.check-finite", "false"]
    assert main(["train", "diverging:Env", "--seeds", "2", "--quiet", *flags]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("failed") == 2
    assert "No seed finished with a score" in captured.out
    assert "seed 0: training: given" in captured.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0", ["seeds: given 0; allowed: 1 or more"]),
        ("-1", ["seeds: given -1; allowed: 1 or more"]),
        ("some", ["parsing --seeds", "'some'", "--seeds INT"]),
    ],
)
def test_wrong_numbers_of_seeds(
    given: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "bandit", "--seeds", given, "--dry-run"]) in (1, 2)
    told = capsys.readouterr().err
    assert all(word in told for word in words)
