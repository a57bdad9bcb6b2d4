"""`fugu autotune`: its options, its tables and pictures, and that JSON stands alone."""

from __future__ import annotations

import importlib.util
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
from fugu.vector.autotune import Machine, Profile, Setting, Trial, Tuning
from fugu.vector.tuning.picture import draw_picture
from fugu.vector.tuning.profiling import step_times
from fugu.vector.tuning.showing import headline, show_tuning

pytestmark = pytest.mark.timeout(120)
SERIAL, PROCESS = Setting("serial", 8, 1, 8), Setting("process", 8, 2, 4)
TUNING = Tuning(
    env="Maze-v0",
    profile=Profile(
        steps=step_times([1e-5] * 95 + [2e-4] * 5),
        make_seconds=1e-3,
        reset_seconds=2e-4,
        reset_share=0.25,
        steps_per_episode=20.0,
        copy_bytes=5 << 20,
        slab_bytes=50,
        thread_gain=1.02,
        notes=("broken off after 3 steps: ValueError: [no markup]",),
    ),
    trials=(
        Trial(SERIAL, "measured", 50_000.0, (49_000.0, 50_000.0, 51_000.0)),
        Trial(PROCESS, "measured", 90_000.0, (80_000.0, 90_000.0, 95_000.0), note="1 broken step"),
        Trial(Setting("process", 8, 4, 8), "failed", note="oh:\nValueError: [deep]\nin step"),
        Trial(Setting("threads", 8, 1, 8), "ruled out", note="it holds the GIL"),
        Trial(Setting("threads", 8, 2, 8), "ruled out", note="it holds the GIL"),
    ),
    choice=PROCESS,
    reason="90,000 steps/s, the fastest.",
    machine=Machine(2, 8 << 30, 0.1, "a machine", "3.11"),
    seconds=6.0,
    seed=0,
)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the tuning by one that notes how it was called."""
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
    assert "fugu.autotune: CartPole-v1" in out
    assert "Choice: CartPole-v1: serial, 2 copies: " in out


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "ENV"),
        (["X-v0", "--secnods", "3"], 2, "unknown option '--secnods'; nearest: '--seconds'"),
        (["X-v0", "--backend", "fast"], 2, "--backend"),
        (["CartPool-v1"], 1, "CartPole-v1"),
        (["CartPole-v1", "--seconds", "0"], 1, "fugu: seconds: given 0.0"),
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


# ---------------------------------------------------------------------- tables and pictures


def test_the_tables_say_what_was_tried_and_why() -> None:
    text = shown()
    lines = text.splitlines()
    rows = [line.split("│")[1:-1] for line in lines if line.count("│") == 7]
    assert [[cell.strip() for cell in row[:5]] for row in rows] == [
        ["process", "2", "8", "4", "90,000"],
        ["", "", "", "", ""],
        ["serial", "1", "8", "8", "50,000"],
        ["process", "4", "8", "8", ""],
        ["threads", "1, 2", "8", "8", ""],
    ]
    assert "█" in rows[0][5]
    assert rows[1][5].strip() == "1 broken step"
    assert rows[3][5].strip() == "failed: ValueError: [deep]"
    assert rows[4][5].strip() == "ruled out: it holds the GIL"
    for piece in (
        "19.5 us on average, median 10.0 us",
        "200.0 us, 25% of the time",
        "5.0 MiB, and 50 B of rows",
        "1.02x one: stepping holds the GIL",
        "ValueError: [no markup]",
    ):
        assert piece in text, piece
    summary = "process, 2 workers, 8 copies in batches of 4: 90,000 steps/s, the fastest."
    assert f"Choice: Maze-v0: {summary}" in text
    assert "tune again" not in text


def test_a_busy_machine_is_told_of() -> None:
    busy = replace(TUNING, machine=replace(TUNING.machine, load=1.5))
    assert "(load 1.5 on 2 cores): tune again when this machine is quiet" in shown(busy)


def test_what_is_not_known_is_said_so() -> None:
    unknown = replace(
        TUNING.profile, copy_bytes=None, thread_gain=None, steps_per_episode=None, reset_share=0.0
    )
    text = shown(replace(TUNING, profile=unknown))
    for piece in ("more than 100 steps", "unknown, and 50 B of rows", "two threads      │ unknown"):
        assert piece in text, piece


def test_bars_stand_in_for_a_missing_plotext(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotext", None)
    text = shown()
    assert "99 % within" in text
    assert "slowest" in text


def test_a_plot_in_the_terminal() -> None:
    pytest.importorskip("plotext")
    text = shown()
    assert "steps that take no longer, %" in text
    assert "microseconds" in text
    assert "slowest" not in text


def test_the_line_of_a_note_that_says_most() -> None:
    assert headline("") == ""
    assert headline("no end after 3 s") == "no end after 3 s"
    assert headline("a:\n  File\nmy.OwnError: x\nin step of it") == "my.OwnError: x"


def test_a_picture_is_drawn(
    tuned: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "tuning.png"
    assert main(["autotune", "Maze-v0", "--png", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"Drawn: {path}" in capsys.readouterr().out
    assert "matplotlib.pyplot" not in sys.modules
    draw_picture(replace(TUNING, trials=TUNING.trials[1:2]), path)
    for wrong, message in [("x.jpg", "ends with .png"), ("no/x.png", "a folder that exists")]:
        assert main(["autotune", "Maze-v0", "--png", str(tmp_path / wrong)]) == 1
        assert message in capsys.readouterr().err
    assert len(tuned) == 1


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(
    tuned: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["autotune", "Maze-v0", "--png", "tuning.png"]) == 1
    assert 'pip install "fugu-rl[plot]"' in capsys.readouterr().err
    assert not tuned


# ---------------------------------------------------------------------- the choice as settings


def test_the_choice_is_written_into_a_config_and_trained_with(
    tuned: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    from fugu.training.config import resolve_config

    path = tmp_path / "my.toml"
    path.write_text("# mine\n[env_kwargs]\nsize = 5\n\n[vec]\nnum_envs = 3\nstep_timeout = 9.0\n")
    assert main(["autotune", "Maze-v0", "--config", str(path)]) == 0
    assert tuned[0]["env_kwargs"] == {"size": 5}, "the copies are those that will be trained on"
    assert f"fugu train Maze-v0 --config {path}" in capsys.readouterr().out
    cfg = resolve_config("Maze-v0", files=(path,))
    chosen = (cfg.vec.backend, cfg.vec.num_envs, cfg.vec.num_workers, cfg.vec.batch_size)
    assert chosen == ("process", 8, 2, 4)
    assert cfg.vec.step_timeout == 9.0
    assert path.read_text().startswith("# mine\n")


@pytest.mark.parametrize(
    ("env", "name", "content", "message"),
    [
        ("Maze-v0", "a.toml", "vec = {num_envs = 1}", "in a form that is not edited"),
        ("Maze-v0", "no/a.toml", None, "in a folder that exists"),
        ("cartpole", "a.toml", None, "a native environment"),
    ],
)
def test_a_config_that_cannot_be_written_is_refused_before_anything_is_measured(
    env: str,
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
    assert main(["autotune", env, "--config", str(path)]) == 1
    assert message in capsys.readouterr().err
    assert not tuned
