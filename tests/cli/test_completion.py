"""Completion: what may follow, and a real shell that asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fugu.cli.completion import GROUPS, SCRIPTS, TRAINING, complete, install
from fugu.cli.main import COMMANDS, main
from fugu.core.errors import UsageError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tra"], ["train"]),
        (["--ver"], ["--version"]),
        (["train", "breako"], ["breakout"]),
        (["train", "breakout", "--tra"], ["--train."]),
        (["train", "breakout", "--vec.num-e"], ["--vec.num-envs"]),
        (["league", "pong", "--league."], None),
        (["eval", "--epi"], ["--episodes"]),
        (["hub", "pu"], ["push", "pull"]),
        (["runs", "sh"], ["show"]),
        (["nothing", ""], []),
    ],
)
def test_what_may_follow(words: list[str], expected: list[str] | None) -> None:
    found = complete(words, COMMANDS)
    assert found == expected if expected is not None else found
    assert all(name.startswith(words[-1]) for name in found)


def test_commands_and_groups_are_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert complete([""], COMMANDS) == list(COMMANDS)
    assert set(TRAINING) | set(GROUPS) <= set(COMMANDS)
    for group, names in GROUPS.items():
        main([group, "--help"])
        told = capsys.readouterr().out
        assert [name for name in names if name not in told] == []
        assert [name for name in names if main([group, name, "--help"]) != 0] == []
    for command, (options, _, _) in TRAINING.items():
        main([command, "--help"])
        told = capsys.readouterr().out
        assert [option for option in options if option not in told] == []


def test_runs_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "pole-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for words in (["eval", ""], ["resume", ""], ["hub", "push", ""], ["export", ""]):
        assert complete(words, COMMANDS) == ["latest", "pole-1"]
    assert "pole-1" in complete(["play", ""], COMMANDS)
    assert "breakout" in complete(["play", ""], COMMANDS)


def test_a_shell_completes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = tmp_path / "bin" / "fugu"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fugu.cli.main "$@"\n')
    command.chmod(0o755)
    script = install("bash", tmp_path)
    asked = f"source {script}; COMP_WORDS=(fugu play cart); COMP_CWORD=2; _fugu"
    environ = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "-c", f"{asked}; echo ${{COMPREPLY[@]}}"],
        env=environ, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["cartpole"]


def test_every_shell_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({install(shell, tmp_path) for shell in SCRIPTS}) == len(SCRIPTS)
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert install(None, tmp_path).read_text() == SCRIPTS["fish"]
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with pytest.raises(UsageError, match="given 'tcsh'; allowed: bash, zsh, fish"):
        install(None, tmp_path)
