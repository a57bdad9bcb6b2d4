"""`fugu coding export` on made-up trajectories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fugu.cli.main import main
from fugu.store import Run
from fugu.store.chat_export import ChatRow, read_rows
from fugu.store.trajectories import Trajectory, TrajectoryGroup, TrajectoryWriter


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    run = Run.create("runs", name="coding-a", env="coding:humaneval")
    with TrajectoryWriter(run.folder) as writer:
        for number in range(20):
            members = [Trajectory(f"p{number}", 1.0, "passed"), Trajectory("no", 0.0, "wrong")]
            group = TrajectoryGroup(f"task{number}", "write p", tuple(members), run.name)
            writer.add(group)
            writer.add(group)
    return run


def test_winners(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["coding", "export", "latest", "--out", "winners.jsonl", "--test-share", "0.3"]) == 0
    )
    rows = list(read_rows("winners.jsonl"))
    assert len(rows) == 20
    assert {row.split for row in rows} == {"TRAIN", "TEST"}
    assert isinstance(rows[0], ChatRow)
    assert rows[0].metadata["run"] == "coding-a"
    out = capsys.readouterr().out
    assert "of 80 trajectories in 40 groups (40 duplicates, 20 below" in out
    assert "winners.jsonl" in out


def test_json_and_files(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(run.folder / "trajectories.jsonl")
    args = ["--kind", "dpo", "--dialect", "openai", "--json", "--out", "pairs.jsonl"]
    assert main(["coding", "export", file, *args]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["files"] == ["pairs.jsonl", "pairs.test.jsonl"]
    assert facts["train"] + facts["test"] == 20
    assert facts["duplicates"] == 20
    lines = Path("pairs.jsonl").read_text().splitlines()
    assert len(lines) == facts["train"]


def test_several_sources(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with TrajectoryWriter("more.jsonl") as writer:
        writer.add(TrajectoryGroup("another", "x", (Trajectory("q", 2.0),)))
    assert main(["coding", "export", "coding-a", "more.jsonl", "--out", "both.jsonl"]) == 0
    assert len(list(read_rows("both.jsonl"))) == 21
    assert main(["coding", "export", "--out", "none.jsonl"]) != 0
    assert not Path("none.jsonl").exists()


def test_nothing_to_write_is_said(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "export", "coding-a", "--min-reward", "9"]) == 1
    assert "0 rows for training" in capsys.readouterr().out


def test_what_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Run.create("runs", name="other")
    for args, message in [
        (["other"], "the run other, which has no trajectories.jsonl"),
        (["nothing"], "nothing"),
        (["coding-a", "--test-share", "3"], "test_share: given 3.0"),
    ]:
        assert main(["coding", "export", *args]) == 1
        assert message in capsys.readouterr().err
    assert main(["coding", "export", "coding-a", "--kind", "poem"]) == 2
    assert not Path("export.jsonl").exists()
