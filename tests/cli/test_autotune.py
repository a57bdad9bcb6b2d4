"""`fugu autotune`: its options, its table, its TOML file, and that JSON stands alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fugu.vector.autotune
from fugu.cli.main import main
from fugu.vector.autotune import (
    Configuration,
    EnvProfile,
    Trial,
    Tuning,
    headline,
    show_tuning,
)

pytestmark = pytest.mark.timeout(120)
SERIAL, PROCESS = Configuration("serial", 8, 1, 8), Configuration("process", 8, 2, 4)
TUNING = Tuning(
    env="Maze-v0",
    choice=PROCESS,
    reason="90,000 steps/s, the fastest.",
    profile=EnvProfile(19.5e-6, 1e-3, 5 << 20, polled=False, policy_seconds=0.002),
    trials=(
        Trial(SERIAL, "measured", 50_000.0, 1),
        Trial(PROCESS, "measured", 90_000.0, 3),
        Trial(Configuration("process", 8, 1, 8), "measured", 30_000.0, 2, "faults: 1 [x]"),
        Trial(Configuration("process", 8, 4, 8), "failed", note="oh:\nValueError: [deep]\nin step"),
        Trial(Configuration("threads", 8, 1, 8), "ruled out", note="needs 9 s"),
    ),
    cores=2,
    load=0.1,
)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the tuning by one that records how it was called."""
    calls: list[dict[str, Any]] = []

    def tune(env: Any, num_envs: Any, **settings: Any) -> Tuning:
        print("an environment that talks")
        calls.append({"env": env, "num_envs": num_envs, **settings})
        return TUNING

    monkeypatch.setattr(fugu.vector.autotune, "tune", tune)
    return calls


def shown(tuning: Tuning = TUNING, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_tuning(tuning, console)
    return console.export_text()


def test_settings_are_passed_on(tuned: list[dict[str, Any]]) -> None:
    words = "--num-envs 8 --backend process --batch-size 4 --policy-seconds 0.5 --seconds 2"
    more = "--seed 7 --max-memory 0.5 --limits 16"
    assert main(["autotune", "Maze-v0", *words.split(), *more.split()]) == 0
    assert tuned == [
        {
            "env": "Maze-v0",
            "num_envs": 8,
            "backend": "process",
            "batch_size": 4,
            "policy_seconds": 0.5,
            "seconds": 2.0,
            "seed": 7,
            "max_memory": 1 << 29,
            "limits": 16,
            "action_limits": 16,
            "show": True,
        }
    ]


def test_defaults(tuned: list[dict[str, Any]]) -> None:
    assert main(["autotune", "Maze-v0"]) == 0
    assert tuned == [
        {
            "env": "Maze-v0",
            "num_envs": None,
            "backend": "auto",
            "batch_size": None,
            "policy_seconds": 0.0,
            "seconds": 6.0,
            "seed": 0,
            "max_memory": None,
            "show": True,
        }
    ]


def test_json_stands_alone(tuned: list[dict[str, Any]], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["autotune", "Maze-v0", "--json"]) == 0
    captured = capfd.readouterr()
    assert Tuning.from_dict(json.loads(captured.out)) == TUNING
    assert captured.err == "an environment that talks\n"
    assert tuned[0]["show"] is False


def test_json_stands_alone_though_workers_talk(tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text(
        "import gymnasium\n"
        "def make():\n"
        "    print('an environment that talks', flush=True)\n"
        "    return gymnasium.make('CartPole-v1')\n"
    )
    command = "autotune talking:make --num-envs 2 --backend process --seconds 0.3 --json"
    done = subprocess.run(
        [sys.executable, "-m", "fugu.cli.main", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Tuning.from_dict(json.loads(done.stdout)).choice.backend == "process"
    assert done.stderr.count("an environment that talks") > 2


def test_the_whole_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command = "autotune CartPole-v1 --num-envs 2 --backend serial --seconds 0.3"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert "CartPole-v1 on " in out
    assert "a native version, 'cartpole'" in out
    assert "Choice: CartPole-v1: serial, 2 environments: " in out


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "ENV"),
        (["X-v0", "--secnods", "3"], 2, "unknown option '--secnods'; nearest: '--seconds'"),
        (["X-v0", "--backend", "fast"], 2, "--backend"),
        (["X-v0", "--png", "a.png"], 2, "unknown option '--png'"),
        (["CartPool-v1"], 1, "CartPole-v1"),
        (["CartPole-v1", "--seconds", "0"], 1, "fugu: seconds: given 0.0; allowed: above 0"),
        (["CartPole-v1", "--num-envs", "0"], 1, "fugu: num_envs: given 0"),
    ],
)
def test_wrong_command_lines(
    args: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["autotune", *args]) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


# ---------------------------------------------------------------------- the table


def test_the_table_says_what_was_tried_and_why_the_last_round_first() -> None:
    text = shown()
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.count("│") == 8]
    assert [[cell.strip() for cell in row[:6]] for row in rows] == [
        ["process", "2", "8", "4", "3", "90,000"],
        ["process", "1", "8", "8", "2", "30,000"],
        ["serial", "1", "8", "8", "1", "50,000"],
        ["process", "4", "8", "8", "0", ""],
        ["threads", "1", "8", "8", "0", ""],
    ]
    assert "█" in rows[0][6]
    outcomes = [row[6].strip() for row in (rows[1], *rows[3:])]
    assert outcomes == ["faults: 1 [x]", "failed: ValueError: [deep]", "ruled out: needs 9 s"]
    for piece in ("2 cores", "19.5 us a step", "1.0 ms to start", "5 MB of memory", "2.0 ms for"):
        assert piece in text, piece
    summary = "process, 2 workers, 8 environments in batches of 4: 90,000 steps/s, the fastest."
    assert f"Choice: Maze-v0: {summary}" in text
    assert "native" not in text
    assert "tune again" not in text


def test_the_table_says_if_the_machine_was_busy_or_the_memory_is_unknown() -> None:
    unknown = replace(TUNING.profile, env_bytes=None)
    text = shown(replace(TUNING, load=1.5, profile=unknown))
    assert "(load 1.5): tune again" in text
    assert "unknown memory for each" in text


def test_the_line_of_a_note_that_says_most() -> None:
    assert headline("") == ""
    assert headline("no end after 3 s") == "no end after 3 s"
    assert headline("a:\n  File\nmy.OwnError: x\nin step of it") == "my.OwnError: x"


# ---------------------------------------------------------------------- the TOML file


def test_the_choice_is_written_into_a_config_and_trained_with(
    tuned: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from fugu.training.config import resolve_config

    path = tmp_path / "my.toml"
    path.write_text("# mine\n[env_kwargs]\nsize = 5\n\n[vec]\nnum_envs = 3\nstep_timeout = 9.0\n")
    assert main(["autotune", "Maze-v0", "--config", str(path)]) == 0
    assert tuned[0]["env_kwargs"] == {"size": 5}, (
        "the environments are those that will be trained on"
    )
    assert f"fugu train Maze-v0 --config {path}" in capsys.readouterr().out
    cfg = resolve_config("Maze-v0", files=(path,))
    chosen = (cfg.vec.backend, cfg.vec.num_envs, cfg.vec.num_workers, cfg.vec.batch_size)
    assert chosen == ("process", 8, 2, 4)
    assert cfg.vec.step_timeout == 9.0
    assert path.read_text().startswith("# mine\n")


def test_a_native_environment_gets_the_native_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.toml"
    command = f"autotune cartpole --num-envs 64 --seconds 0.3 --config {path}"
    assert main(command.split()) == 0
    out = capsys.readouterr().out
    assert "The native pool is the fastest way" in out
    assert "a native version" not in out
    assert 'backend = "native"' in path.read_text()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "vec = {num_envs = 1}", "in a form that is not edited"),
        ("no/a.toml", None, "in a folder that exists"),
    ],
)
def test_a_config_that_cannot_be_written_is_refused_before_anything_is_measured(
    name: str,
    content: str | None,
    message: str,
    tuned: list[dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert main(["autotune", "Maze-v0", "--config", str(path)]) == 1
    assert message in capsys.readouterr().err
    assert not tuned
