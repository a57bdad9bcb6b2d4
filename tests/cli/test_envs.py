"""`fugu envs`: everything that can be named is listed, and what is listed can be named."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fugu import native
from fugu.cli.main import main

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)

from fugu.cli.catalogue import families, native_facts
from fugu.envs import suite
from fugu.envs.resolve import resolve


def test_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out, "no colours off a terminal"
    lines = [line.split() for line in out.splitlines()]
    firsts = {words[0] for words in lines if words}
    assert {*suite.names(), "classic_control", "toy_text"} <= firsts
    assert "1 agent | 2x6x7 uint8 | 7 choices | masks" in out
    assert "1 agent | 4 float32 | 2 choices | costs" in out


def test_a_part_of_names_whatever_its_case(capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("cartpole", "CARTPOLE"):
        assert main(["envs", part]) == 0
        names = capsys.readouterr().out.split("\n")
        assert {"cartpole", "constrained_cartpole", "CartPole-v1", ""} <= {*names}
        assert all("cartpole" in name.lower() for name in names[:-1])
        assert len(names) == len({*names})


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [fact["name"] for fact in found["native"]] == suite.names()
    assert "CartPole-v1" in found["families"]["classic_control"]
    assert main(["envs", "minesw", "--json"]) == 0
    (fact,) = json.loads(capsys.readouterr().out)["native"]
    assert (fact["observation"], fact["actions"]) == ("9x9 uint8", "81 choices")
    assert (fact["masks"], fact["costs"]) == (True, 0)


def test_nothing_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "cartpool"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "given 'cartpool', which is in no name here. Nearest: cartpole" in captured.err


def test_masks_and_costs_are_those_of_the_headers() -> None:
    facts = [native_facts(name) for name in suite.names()]
    masked = {fact.name for fact in facts if fact.masks}
    assert masked == {"connect4", "game2048", "masked", "minesweeper"}
    paying = {fact.name for fact in facts if fact.costs}
    assert paying == {"constrained_cartpole", "hazard_grid", "point_goal"}


def test_one_name_of_each_family_is_found() -> None:
    for family, names in families().items():
        assert callable(resolve(names[0])), family
        assert len(names) == len({*names})


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m fugu.cli.main envs - | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
