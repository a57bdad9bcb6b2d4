"""The command line: which command runs, and what it says and returns when something fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fugu
from fugu.cli.doctor import Doctor
from fugu.cli.envs import Check
from fugu.cli.main import COMMANDS, main
from fugu.core.errors import UsageError


def run_python(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=120, cwd=cwd, check=False
    )


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the checker by one that notes how it was called and finds fault with seed 13."""
    calls: list[dict[str, Any]] = []

    def check(factory: Any, **settings: Any) -> Any:
        print("an environment that talks")
        calls.append({"env": factory(), **settings})
        ok = settings["seed"] != 13
        return SimpleNamespace(ok=ok, to_dict=lambda: {"ok": ok})

    module = ModuleType("fugu.envs.checking")
    module.check = check  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fugu.envs.checking", module)
    return calls


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"fugu {fugu.__version__}\n"


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_version_and_help_import_nothing_heavy(flag: str) -> None:
    code = (
        "import sys; from fugu.cli.main import main; status = main(sys.argv[1:]);"
        "heavy = {'torch', 'gymnasium', 'numpy', 'rich'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = run_python("-c", code, flag)
    assert done.returncode == 0, done.stderr


def test_as_a_module() -> None:
    done = run_python("-m", "fugu.cli.main", "--version")
    assert (done.returncode, done.stdout) == (0, f"fugu {fugu.__version__}\n"), done.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_help_of_a_command_shows_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    out = capsys.readouterr().out
    assert "ENV" in out
    assert "--limits INT" in out
    assert "--no-json" not in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["docter"], "unknown command 'docter'; nearest: 'doctor'"),
        (["chek", "CartPole-v1"], "unknown command 'chek'; nearest: 'check'"),
        (["zzz"], "allowed: train, resume"),
        (["--versoin"], "unknown option '--versoin'; nearest: '--version'"),
        (["doctor", "--jsn"], "doctor: unknown option '--jsn'; nearest: '--json'"),
        (["check", "X-v0", "--stpes=3"], "check: unknown option '--stpes'; nearest: '--steps'"),
        (["check", "X-v0", "--bananas", "3"], "allowed: --steps, --seed, --limits, --json, --help"),
        (["check", "X-v0", "Y-v0"], "check: given 'Y-v0' beyond what it takes"),
        (["check"], "ENV"),
        (["check", "X-v0", "--steps", "many"], "--steps"),
        ([], "doctor"),
    ],
)
def test_wrong_command_lines(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_error_of_fugu_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Doctor) -> int:
        raise UsageError("given this; allowed: that.")

    monkeypatch.setattr(Doctor, "run", run)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "fugu: given this; allowed: that.\n"


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(self: Doctor) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Doctor, "run", run)
    assert main(["doctor"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Doctor) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(Doctor, "run", run)
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_check_passes_its_settings_on(checked: list[dict[str, Any]]) -> None:
    assert main(["check", "CartPole-v1", "--steps", "7", "--seed", "-3", "--limits", "9"]) == 0
    (call,) = checked
    assert call.pop("env").spec.id == "CartPole-v1"
    assert call == {"steps": 7, "seed": -3, "limits": 9, "show": True}


def test_check_defaults(checked: list[dict[str, Any]]) -> None:
    assert Check("CartPole-v1").run() == 0
    (call,) = checked
    del call["env"]
    assert call == {"steps": 1000, "seed": 0, "limits": 256, "show": True}


def test_check_as_json(checked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--seed", "13", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"ok": False}
    assert captured.err == "an environment that talks\n"
    assert checked[0]["show"] is False


@pytest.mark.usefixtures("checked")
def test_check_of_an_unknown_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPool-v1"]) == 1
    err = capsys.readouterr().err
    assert "CartPole-v1" in err
    assert "Traceback" not in err


def test_check_of_cartpole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--steps", "100", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert main(["check", "CartPole-v1", "--steps", "100"]) == 0
    assert "CartPole-v1 passes" in capsys.readouterr().out


def test_factories_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "home_made.py").write_text("print('imported from here')\n")
    code = (
        "import sys; sys.path = [p for p in sys.path if p];"  # as a console script has it
        "from fugu.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = run_python("-c", code, "check", "home_made:make", cwd=tmp_path)
    assert done.returncode == 1
    assert "imported from here" in done.stdout
    assert done.stderr.startswith("fugu: home_made: given 'make'"), done.stderr


@pytest.mark.parametrize("args", [["train", "--help"], ["--version"]])
def test_who_reads_may_stop_reading(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "fugu.cli.main", *args]
    ended = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
