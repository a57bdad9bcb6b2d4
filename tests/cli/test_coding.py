"""`fugu coding run`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fugu.cli.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the default executor needs Linux")


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
        (["exprot"], "nearest: 'export'"),
        (["attack"], "coding: unknown command 'attack'; nearest: 'export'; allowed: run, export"),
    ],
)
def test_mistakes(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", *flags]) in (1, 2)
    assert words in capsys.readouterr().err


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coding", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("run", "export"))
    assert main(["coding", "run", "--help"]) == 0
    assert "--limits.cpu-seconds" in capsys.readouterr().out


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
