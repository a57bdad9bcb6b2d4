"""Completion: what may follow, and a real shell that asks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fugu.cli.completion import SCRIPTS, complete, install
from fugu.cli.main import COMMANDS, main
from fugu.cli.parsing import SettingsCommand, members_of
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
    for group in COMMANDS:
        names = list(members_of(COMMANDS[group]))
        if names:
            main([group, "--help"])
            told = capsys.readouterr().out
            assert [name for name in names if name not in told] == []
            assert complete([group, ""], COMMANDS) == names
            assert [name for name in names if main([group, name, "--help"]) != 0] == []
            capsys.readouterr()


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_those_of_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in [[name, member] for member in members_of(COMMANDS[name])] or [[name]]:
        assert main([*words, "--help"]) == 0
        told = {*re.findall(r"^[│ ] (?:-h, )?(--\w[\w.-]+)", capsys.readouterr().out, re.M)}
        found = {*complete([*words, "--"], COMMANDS)}
        if issubclass(COMMANDS[name], SettingsCommand):
            sections = {option for option in found if option.endswith(".")}
            settings = {option for option in told if "." in option}
            assert {f"{option.partition('.')[0]}." for option in settings} == sections
            found, told = found - sections, {option for option in told if "." not in option}
        assert found == told


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
