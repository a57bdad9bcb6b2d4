"""Run folders."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from fugu.core.errors import UsageError
from fugu.store import CheckpointError, Run, load_checkpoint
from fugu.store.checkpoint import replaced


def save(run: Run, step: int, score: float | None = None) -> Path:
    return run.save(step, tensors={"policy": {"x": torch.tensor([step])}}, state={}, score=score)


def break_(path: Path) -> None:
    file = path / "policy.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def names(paths: object) -> list[str]:
    return [path.name for path in paths]  # type: ignore[attr-defined]


def test_create(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "runs", env="pettingzoo:sisl/pursuit_v4", config={"seed": 3})
    assert re.fullmatch(r"pettingzoo_sisl_pursuit_v4-\d{8}-\d{6}-[0-9a-f]{4}", run.name)
    assert run.env == "pettingzoo:sisl/pursuit_v4"
    assert run.config == {"seed": 3}
    assert run.metrics_path == run.folder / "metrics.jsonl"
    assert run.latest() is run.best() is None
    assert list(run.checkpoints()) == list(run.prune()) == []


def test_a_taken_name_and_wrong_names(tmp_path: Path) -> None:
    Run.create(tmp_path, name="mine")
    with pytest.raises(UsageError, match="'mine', which is taken"):
        Run.create(tmp_path, name="mine")
    for name in ("../mine", "", "latest", ".hidden", "a/b"):
        with pytest.raises(UsageError, match="given the name"):
            Run.create(tmp_path, name=name)
    assert names(tmp_path.iterdir()) == ["mine"]


def test_the_config_is_written_once(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a", config={"train": {"rate": 0.1}})
    with pytest.raises(UsageError, match=r"it has a config\.json"):
        run.write_config({})
    assert run.config == {"train": {"rate": 0.1}}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").write_text('env = "pong"')
    other = Run.open("b", tmp_path)
    assert (other.config, other.env) == ({"env": "pong"}, "pong")
    with pytest.raises(UsageError, match=r"it has a config\.toml"):
        other.write_config({})


def test_open(tmp_path: Path) -> None:
    for index, name in enumerate(["pong-1", "pong-2", "breakout-1"]):
        run = Run.create(tmp_path, name=name)
        (run.folder / "run.json").write_text(json.dumps({"env": name, "created": index}))
    (tmp_path / "no_run").mkdir()
    assert [run.name for run in Run.list(tmp_path)] == ["pong-1", "pong-2", "breakout-1"]
    assert Run.open("latest", tmp_path).name == "breakout-1"
    assert Run.open("b", tmp_path).name == "breakout-1"
    assert Run.open("pong-1", tmp_path).name == "pong-1"
    assert Run.open(tmp_path / "pong-2").name == "pong-2"
    with pytest.raises(UsageError, match="begins 2 names: pong-1, pong-2"):
        Run.open("pong", tmp_path)
    with pytest.raises(UsageError, match="nearest: breakout-1"):
        Run.open("braekout", tmp_path)
    with pytest.raises(UsageError, match="nearest"):
        Run.open("", tmp_path)
    with pytest.raises(UsageError, match="holds no runs"):
        Run.open("latest", tmp_path / "elsewhere")


def test_an_exact_name_wins_over_longer_ones(tmp_path: Path) -> None:
    Run.create(tmp_path, name="a")
    Run.create(tmp_path, name="ab")
    assert Run.open("a", tmp_path).name == "a"


def test_latest_falls_back_and_names_the_broken_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run.create(tmp_path, name="a")
    for step in (9, 100, 20):
        save(run, step)
    assert names(run.checkpoints()) == ["step_000000009", "step_000000020", "step_000000100"]
    with caplog.at_level(logging.WARNING, "fugu.store"):
        assert run.latest() == run.checkpoint_path(100)
        assert not caplog.records
        break_(run.checkpoint_path(100))
        assert run.latest() == run.checkpoint_path(20)
    (message,) = caplog.messages
    assert "step_000000100" in message
    assert "policy.safetensors" in message
    break_(run.checkpoint_path(20))
    break_(run.checkpoint_path(9))
    assert run.latest() is None


def test_steps_beyond_nine_digits_keep_their_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    save(run, 999_999_999)
    save(run, 10**10)
    assert run.latest() == run.checkpoint_path(10**10)


def test_best(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    for step, score in enumerate([1.0, 5.0, 5.0, float("nan"), None, 2.0]):
        save(run, step, score)
    assert run.best() == run.checkpoint_path(2)
    break_(run.checkpoint_path(2))
    assert run.best() == run.checkpoint_path(1)
    state = load_checkpoint(run.checkpoint_path(1)).state
    assert (state["step"], state["score"]) == (1, 5.0)


def test_prune_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    for step in range(8):
        save(run, step, score=-abs(step - 2))
    (run.checkpoints_folder / ".step_000000009.new-abcd").mkdir()
    assert names(run.prune(keep=3)) == [f"step_00000000{step}" for step in (0, 1, 3, 4)]
    assert sorted(names(run.checkpoints_folder.iterdir())) == [
        f"step_00000000{step}" for step in (2, 5, 6, 7)
    ]
    assert list(run.prune(keep=3)) == []
    with pytest.raises(UsageError, match="keep: given 0"):
        run.prune(keep=0)


def test_prune_never_counts_broken_ones(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    for step in range(4):
        save(run, step)
    break_(run.checkpoint_path(3))  # its tensors only
    (run.checkpoint_path(2) / "checksums.json").unlink()
    assert names(run.prune(keep=1)) == ["step_000000000"]
    assert run.latest() == run.checkpoint_path(1)
    assert list(run.prune(keep=2)) == []
    assert names(run.checkpoints()) == [f"step_00000000{step}" for step in (1, 2, 3)]


def test_a_checkpoint_that_was_being_replaced_is_found(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    path = save(run, 4)
    path.rename(replaced(path))
    assert names(run.checkpoints()) == ["step_000000004"]
    latest = run.latest()
    assert latest is not None
    assert load_checkpoint(latest).state["step"] == 4
    save(run, 5)
    assert names(run.prune(keep=1)) == ["step_000000004"]
    replaced(save(run, 6)).mkdir()
    run.prune(keep=2)
    assert sorted(names(run.checkpoints_folder.iterdir())) == ["step_000000005", "step_000000006"]


def test_status(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    assert run.status == "running"
    run.mark("finished")
    assert run.status == "finished"
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    facts = json.loads((run.folder / "status.json").read_text())
    facts |= {"status": "running", "process": process.pid}
    (run.folder / "status.json").write_text(json.dumps(facts))
    assert run.status == "killed"
    (run.folder / "status.json").write_text(json.dumps(facts | {"process": os.getpid()}))
    assert run.status == "running"
    (run.folder / "status.json").write_text("{")
    with pytest.raises(UsageError, match=r"status\.json: it is no JSON"):
        _ = run.status


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    save(Run.create(tmp_path, name="a"), 1, 2.0)
    program = (
        "import sys; from fugu.store import Run; (run,) = Run.list(sys.argv[1]);"
        "assert run.best() == run.latest() is not None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)


def test_missing_checkpoint_is_an_error_of_the_store(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    with pytest.raises(CheckpointError, match="step_000000003"):
        load_checkpoint(run.checkpoint_path(3))


def test_a_kill_while_a_run_is_made_leaves_its_name_free(tmp_path: Path) -> None:
    """Else it could neither be made nor be resumed."""
    script = f"""
        import os, signal
        from fugu.store import Run, run
        run.Run.mark = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        Run.create({str(tmp_path)!r}, "a", config={{}})
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert process.returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    assert not Run.list(tmp_path)
    run = Run.create(tmp_path, "a", config={"seed": 1})
    assert run.config == {"seed": 1}
    assert list(tmp_path.iterdir()) == [run.folder]  # what was left is gone


def test_a_name_that_somebody_takes_meanwhile_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(run: Run, status: str) -> None:
        (tmp_path / "a" / "full").mkdir(parents=True)

    monkeypatch.setattr(Run, "mark", race)
    with pytest.raises(UsageError, match="taken"):
        Run.create(tmp_path, "a")
    assert names(tmp_path.iterdir()) == ["a"]


def test_prune_deletes_halves_of_small_files(tmp_path: Path) -> None:
    run = Run.create(tmp_path, name="a")
    save(run, 1)
    (run.folder / ".status.json.0123abcd").write_text("{")
    run.prune()
    assert not list(run.folder.glob(".*"))
