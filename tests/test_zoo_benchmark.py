"""`benchmarks/zoo.py`: trainings without flags that can be cut off, their report and policies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
sys.path.append(str(Path(__file__).parents[1] / "docs"))

import learned
import zoo
from zoo_results import (
    Found,
    joint_curve,
    peer_cells,
    read_race,
    read_results,
    row,
    running_mean,
    share_kept,
    whole_seconds,
)
from zoo_tasks import SB3, Task, all_tasks

from fugu import native
from fugu.envs import suite
from fugu.store.checkpoint import load_checkpoint
from fugu.store.run import Run
from fugu.zoo.index import pull, read_index


def seed(number: int, score: float, **more: Any) -> dict[str, Any]:
    facts = {"seed": number, "total_steps": 1000, "steps": 1024, "jobs": 1, "fraction": 1.0}
    figures = {"seconds": 2.0, "best": 10.0, "final": 9.0, "kept": 0.9, "commit": "abc"}
    evaluation = {"mean_return": score, "deviation": 1.0, "episodes": 100}
    return {**facts, **figures, "evaluation": evaluation, "curve": [[0, 1], [10, 2]], **more}


# ---------------------------------------------------------------------- tasks


def test_every_native_environment_is_a_task() -> None:
    native_tasks = [task.env for task in all_tasks().values() if task.group == "native"]
    assert native_tasks == suite.names()
    assert len({task.name for task in all_tasks().values()}) == len(all_tasks())


def test_every_published_score_has_tuned_settings_of_the_peer() -> None:
    tasks = all_tasks()
    assert SB3.keys() <= tasks.keys()
    assert {env for env, task in tasks.items() if task.published is not None} <= SB3.keys()
    assert all(tasks[env].steps for env in SB3)


# ---------------------------------------------------------------------- figures


def test_a_running_mean_weighs_updates_by_their_episodes() -> None:
    returns = [(1, 50.0, 0.0), (2, 50.0, 2.0), (3, 10.0, 12.0), (4, 200.0, 5.0)]
    assert running_mean(returns) == [(2, 1.0), (3, 2.0), (4, 5.0)]
    assert running_mean(returns[:1]) == [(1, 0.0)]
    assert running_mean([]) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([20.0, 500.0, 100.0], 0.2),  # positive: last / best
        ([-1200.0, -200.0, -700.0], 0.5),  # negative: of what was gained
        ([-50.0, 90.0, 20.0], 0.5),  # both
        ([-200.0, -199.0, -200.0], 1.0),  # nothing was learned
        ([0.0, 0.0], 1.0),
        ([-100.0, -50.0, -120.0], 0.0),  # below its start
    ],
)
def test_the_share_kept(values: list[float], expected: float) -> None:
    assert share_kept(values) == pytest.approx(expected)


def test_a_joint_curve_covers_the_steps_of_all_seeds() -> None:
    joint = joint_curve([[[0, 0.0], [10, 10.0]], [[2, 0.0], [8, 6.0]]])
    assert (joint["steps"][0], joint["steps"][-1]) == (2, 8)
    assert (joint["low"][-1], joint["median"][-1], joint["high"][-1]) == (6.0, 7.0, 8.0)
    assert joint_curve([[]])["steps"] == []


def test_a_row_marks_collapse_and_scores_above_the_published() -> None:
    task = Task("CartPole-v1", "table", 1000, published=200.0)
    good = row(Found(task, [seed(1, 300.0), seed(2, 250.0), seed(3, 100.0)], None))
    assert "**250 (100 to 300)**" in good
    assert "| 0.90 |" in good
    bad = row(Found(task, [seed(1, 190.0), seed(2, 150.0, kept=0.2)], None))
    assert "| 170 (150 to 190) |" in bad
    assert "**0.20**" in bad
    silent = row(Found(task, [seed(1, 0.0, evaluation=None, kept=None, best=None)], None))
    assert "no episode ended" in silent


def test_pages_show_score_command_and_curve() -> None:
    found = Found(Task("breakout", "native"), [seed(1, 5.0), seed(2, 9.0), seed(3, 1.0)], None)
    text = "\n".join(learned.section("breakout", "../", {"breakout": found.to_dict()}))
    assert "`fugu train breakout`: mean return of greedy episodes **5 (1 to 9)**" in text
    assert "](../images/zoo/breakout.png)" in text
    assert learned.section("pong", "../", {"breakout": found.to_dict()}) == []
    table = Found(Task("CartPole-v1", "table", 1000), [seed(1, 5.0)], None).to_dict()
    assert (
        learned.command("CartPole-v1", table) == "fugu train CartPole-v1 --train.total-steps 1000"
    )


def test_seconds_of_a_race_are_extrapolated_to_all_steps(tmp_path: Path) -> None:
    part = seed(1, 300.0, seconds=50.0, fraction=0.1, total_steps=100, steps=125)
    assert whole_seconds(part) == 400.0
    marked = {**part, "marks": [(25, 40.0), (125, 50.0)]}  # a slow start is counted once
    assert whole_seconds(marked) == 50.0 + (1000 - 125) * 0.1
    (tmp_path / "race_fugu_seed_1.json").write_text(json.dumps({**part, "library": "fugu"}))
    assert read_race(tmp_path) == {}  # nobody to compare with
    slow = {**part, "library": "sb3", "seconds": 500.0}
    (tmp_path / "race_sb3_seed_1.json").write_text(json.dumps(slow))
    race = read_race(tmp_path)
    assert race == {"fugu": [400.0], "sb3": [4000.0]}
    assert peer_cells(None, race) == ("-", "400", "4,000", "10.0")
    assert peer_cells(seed(1, 300.0), {}) == ("300", "-", "-", "-")
    assert peer_cells(part, {})[0] == "-"  # the score of a shorter training says nothing


def test_the_best_and_the_median_seed() -> None:
    seeds = [seed(1, 5.0), seed(2, 9.0), seed(3, 1.0)]
    assert zoo.choose(seeds, "best")["seed"] == 2
    assert zoo.choose(seeds, "median")["seed"] == 1


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (zoo.ZooOptions(steps=0.1), "Give --out"),
        (zoo.ZooOptions(steps=0.0), "expected a fraction"),
        (zoo.ZooOptions(jobs=0), "expected 1 or more"),
        (zoo.ZooOptions(race=True, jobs=2), "one training runs at a time"),
        (zoo.ZooOptions(only=("CartPole",)), "allowed"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: zoo.ZooOptions, reason: str) -> None:
    with pytest.raises(SystemExit, match=reason):
        zoo.main(options)


@pytest.mark.skipif(not native.available, reason="needs the native extension")
def test_trainings_are_kept_skipped_reported_and_published(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out"
    options: dict[str, Any] = {"only": ("bandit",), "seeds": (1, 2), "steps": 0.01, "out": out}
    assert zoo.main(zoo.ZooOptions(jobs=2, **options)) == 0
    (found,) = read_results(out, list(all_tasks().values()))
    assert [one["seed"] for one in found.seeds] == [1, 2]
    assert len(found.scores) == 2
    assert all(one["jobs"] == 2 for one in found.seeds)
    assert all(Run(out / "bandit" / f"policy_{i}").config["seed"] == i for i in (1, 2))
    assert Run(out / "bandit/policy_1").config["train"]["threads"] == 1
    assert not any((out / "work").iterdir())

    before = (out / "bandit/seed_1.json").read_bytes()
    (out / "bandit/seed_2.json").unlink()
    assert zoo.main(zoo.ZooOptions(**options)) == 0
    assert "1 of 2 trainings are done already" in capfd.readouterr().out
    assert (out / "bandit/seed_1.json").read_bytes() == before
    assert json.loads((out / "bandit/seed_2.json").read_text())["jobs"] == 1

    assert zoo.main(zoo.ZooOptions(report=True, publish="best", **options)) == 0
    assert "| `bandit` |" in (out / "zoo.md").read_text()
    summary = json.loads((out / "zoo.json").read_text())
    assert summary["bandit"]["scores"] == found.scores
    assert (out / "pictures/bandit.png").read_bytes().startswith(b"\x89PNG")
    (policy,) = read_index(out / "published")
    assert policy.score == max(found.scores)
    assert policy.note == "best of 2 seeds"
    monkeypatch.chdir(tmp_path)
    run = pull("bandit", folder=out / "published")
    latest = run.latest()
    assert latest is not None
    assert [*load_checkpoint(latest).tensors] == ["policy_0"]


def test_a_training_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its folder stays, so that the next run can go on with it."""
    task = Task("no_such_environment", "native", 100)
    options = zoo.ZooOptions(out=tmp_path)
    with zoo.Progress() as progress:
        failed = zoo.Runner(progress).run([zoo.Job(task, 1, options)], 1)
    assert failed == ["no_such_environment, fugu, seed 1"]
    assert "no_such_environment" in capfd.readouterr().out
    assert not (tmp_path / "no_such_environment/seed_1.json").exists()
    assert (tmp_path / "work/no_such_environment_1/stderr.txt").exists()
