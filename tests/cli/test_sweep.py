"""`fugu sweep`: its command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fugu import native
from fugu.cli.main import main

pytest.importorskip("optuna")
pytestmark = pytest.mark.skipif(not native.available, reason="needs the native extension")


def test_the_ranges_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[train]\nepochs = 2\n[sweep.train.clip]\nlow = 0.1\nhigh = 0.3\n")
    words = "--sweep.policy.core.choices none,lstm --only train.clip,policy.core,train.gamma"
    assert main(["sweep", "cartpole", "--config", str(path), *words.split(), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train.clip: numbers from 0.1 to 0.3 (uniform)",
        "policy.core: one of none, lstm",
        "train.gamma: numbers from 0.8 to 0.9999 (logit)",
    ]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["cartpole", "pong"], "one environment"),
        (["cartpole", "--trials", "many"], "trials: given 'many'; allowed: a whole number"),
        (["cartpole", "--trials", "0"], "trials: given 0; allowed: 1 or more"),
        (["cartpole", "--workers", "0"], "workers: given 0; allowed: 1 or more"),
        (["cartpole", "--sampler", "best"], "sampler: given 'best'"),
        (["cartpole", "--engine", "mine"], "engine: expected one of 'optuna', 'wandb'; got 'mine'"),
        (["cartpole", "--cluster", "slurm"], "cluster: given 'slurm'"),
        (["cartpole", "--name", "a/b"], "got 'a/b'"),
        (["cartpole", "--fast"], "unknown option '--fast'"),
        (["cartpole", "--sweep.train.gamma.low", "-1"], "between 0 and 1"),
        (["cartpole", "--train.gama", "2"], "nearest: train.gamma"),
        (["--resume", "--trials", "3"], "Its settings stay as they are"),
        (["--resume", "--root", "nowhere"], "holds no sweeps"),
    ],
)
def test_wrong_command_lines(
    args: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *args]) in (1, 2)
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_the_help_names_every_search_setting(capsys: pytest.CaptureFixture[str]) -> None:
    from dataclasses import fields

    from fugu.sweep.plan import SearchConfig

    assert main(["sweep", "--help"]) == 0
    out = capsys.readouterr().out
    for item in fields(SearchConfig):
        name = "no-first" if item.name == "first" else item.name.replace("_", "-")
        assert f"--{name}" in out
