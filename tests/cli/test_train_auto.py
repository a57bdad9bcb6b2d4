"""`fugu train --auto` on the command line: what it prints, refuses and resumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fugu import native
from fugu.cli.main import main
from fugu.store.run import Run

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(not native.available, reason="needs the native extension"),
]
SMALL = [
    "--auto",
    "--vec.num-envs",
    "8",
    "--train.horizon",
    "8",
    "--train.epochs",
    "2",
    "--train.total-steps",
    "2048",
    "--policy.hidden-size",
    "16",
    "--run.name",
    "auto",
]


def test_every_rung_is_a_table_and_the_end_says_what_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "cartpole", *SMALL, "--run.folder", str(tmp_path)]
    assert main(command) == 0
    told = capsys.readouterr().out
    for steps in ("256", "512", "1,024", "2,048"):
        assert f"after {steps} of 2,048 steps each" in told
    assert "settings that differ" in told
    assert "gamma=0.95" in told
    assert "auto chose" in told
    assert "standard error" in told or "exceeds that of" in told
    assert "auto.toml" in told
    run = Run(tmp_path / "auto")
    assert main(["eval", str(run.folder), "--episodes", "2"]) == 0
    assert main(["export", str(run.folder), "--out", str(tmp_path / "policy.onnx")]) == 0
    assert main([*command, "--resume", "auto", "--quiet"]) == 0, "a finished search is found"
    plain = ["train", "cartpole", "--config", str(run.folder / "auto.toml"), "--quiet"]
    assert main([*plain, "--run.folder", str(tmp_path), "--run.name", "again"]) == 0


def test_a_dry_run_lists_the_members(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--auto", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "# auto: defaults: as below" in told
    assert "# auto: gamma-down: gamma=0.95; a shorter horizon" in told
    assert main(["train", "cartpole", "--dry-run"]) == 0
    assert "# auto" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--algo mappo", "expected algo 'ppo'; got 'mappo'"),
        ("--nproc 2", "expected one process"),
        ("--train.total-steps 100", "expected train.total_steps of"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--run.folder", str(tmp_path)]
    assert main(["train", "cartpole", "--auto", "--quiet", *folder, *flags.split()]) != 0
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_league_cannot_be_searched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", "connect4", "--auto", "--quiet"]) != 0
    assert "league" in capsys.readouterr().err
