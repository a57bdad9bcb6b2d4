"""`fugu coding run` and `fugu coding attack`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from fugu.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text("def add(a, b=1): return (a, b, a + b)\nprint('hello')\n")
    return path


def test_a_script(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "run", str(program)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("passed")
    assert "hello" in out
    assert "ms of processor time" in out


def test_a_function_with_inputs(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = ["(1, 2)", "('a', 'b')", "(1, 'b')"]
    assert main(["coding", "run", str(program), "--entry", "add", "--input", *inputs]) == 1
    out = capsys.readouterr().out
    assert "(1, 2, 3)" in out
    assert "('a', 'b', 'ab')" in out
    assert "TypeError" in out


def test_json(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "run", str(program), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["stdout"]) == ("passed", "hello\n")


def test_limits(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text("while True: pass")
    flags = ["--limits.cpu-seconds", "0.1", "--limits.wall-seconds", "30"]
    assert main(["coding", "run", str(program), *flags]) == 1
    assert capsys.readouterr().out.startswith("timeout")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["run", "/nonexistent.py"], "cannot be read"),
        (["run", __file__, "--entry", "f", "--input", "3"], "a tuple of arguments"),
        (["run", __file__, "--limits.memory", "0"], "limits.memory"),
        (["attack", "--backend", "unsafe"], "a backend that has walls"),
        (["attack", "--only", "moat"], "network, files"),
        (["atack"], "nearest: 'attack'"),
        (["bench", "--seconds", "0"], "more than 0"),
    ],
)
def test_mistakes(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", *flags]) in (1, 2)
    assert words in capsys.readouterr().err


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("run", "bench", "attack", "export"))
    assert main(["coding", "run", "--help"]) == 0
    assert "--limits.cpu-seconds" in capsys.readouterr().out


def test_bench_shows_a_table_and_why_a_backend_is_not_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")  # no runsc
    flags = ["--backends", "zygote", "gvisor", "--seconds", "0.3"]
    assert main(["coding", "bench", *flags]) == 1
    out = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    rates = {row[1]: row[2] for row in cells if len(row) > 3 and row[1]}
    assert float(rates["zygote"].replace(",", "")) > 0
    assert rates["gvisor"] == "-"
    assert "runsc" in out


def test_bench_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "bench", "--backends", "unsafe", "--seconds", "0.2", "--json"]) == 0
    (rate,) = json.loads(capsys.readouterr().out)
    assert (rate["backend"], rate["why"]) == ("unsafe", "")
    assert rate["programs_per_second"] > 0


def test_attack_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "attack", "--only", "network", "grading", "--all"]) == 0
    out = capsys.readouterr().out
    assert "0 got through" in out
    assert "grading" in out
    assert "a UDP datagram" in out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_attack_as_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "attack", "--nobody", "--only", "network", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["wall"] for row in found} == {"network"}
    assert not any(row["succeeded"] for row in found)


HOSTILE = r"""
import sys
def surrogate(): return "\ud800", {(1, 2): {3}, b"x": float("nan")}
def digits(): return 10**5000
def escapes():
    print("\x1b[2J\x9b31m")
    raise ValueError("\x1b]0;title\x07 \udcff")
"""


@pytest.mark.parametrize("entry", ["surrogate", "digits", "escapes"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_hostile_answers_are_shown_and_do_nothing_to_the_terminal(
    entry: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(HOSTILE)
    status = main(["coding", "run", str(path), "--entry", entry, "--input", "()", *flags])
    assert status == (1 if entry == "escapes" else 0)
    out = capsys.readouterr().out
    out.encode()
    assert not {"\x1b", "\x9b", "\x07"} & set(out)
    if flags:
        assert json.loads(out)["outputs"]
    else:
        assert {"surrogate": "ud800", "digits": "bits", "escapes": "x1b]0"}[entry] in out


@pytest.mark.parametrize("text", ["({[]: 1},)", "(" * 2000, "(" + "9" * 5000 + ",)", "\udcff"])
def test_inputs_that_are_no_tuples(
    text: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["coding", "run", str(program), "--entry", "add", "--input", text]) in (1, 2)
    assert "a tuple of arguments" in capsys.readouterr().err
