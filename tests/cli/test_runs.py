"""`fugu runs` on made-up run folders."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fugu.cli.main import main
from fugu.store import Run
from fugu.track import JsonlSink
from fugu.track.curves import average, read_curve


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs: two seeds of pong, one of breakout."""
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    for index, (name, env) in enumerate(
        [("pong-a", "pong"), ("pong-b", "pong"), ("breakout-a", "breakout")]
    ):
        run = Run.create("runs", name=name, env=env, config={"train": {"rate": 0.5}, "seed": index})
        (run.folder / "run.json").write_text(json.dumps({"env": env, "created": index}))
        sink = JsonlSink(run.metrics_path)
        for step in range(0, 2001, 100):
            returned = math.nan if step == 0 else step * (index + 1) / 100
            sink.write(step, {"episode_return": returned, "loss": 1 / (step + 1)})
        sink.write(2100, {"episode_return": 3.0, "loss": 0.0})
        sink.close()
        run.save(100, tensors={"policy": {"x": np.zeros(3)}}, state={}, score=1.0)
        run.save(200, tensors={"policy": {"x": np.zeros(3)}}, state={}, score=0.0)
        run.mark("finished" if index else "failed")
    return tmp_path / "runs"


def test_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["runs"], ["runs", "list"]):
        assert main(args) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split() == ["pong-a", "pong", "2,100", "3", "20", "00:00", "failed"]
        assert lines[3].split() == [
            "breakout-a",
            "breakout",
            "2,100",
            "3",
            "60",
            "00:00",
            "finished",
        ]
        assert len(lines) == 4


def test_list_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "pong-b", "--json", "--metric", "loss"]) == 0
    (fact,) = json.loads(capsys.readouterr().out)
    assert (fact["name"], fact["steps"], fact["best"], fact["last"]) == ("pong-b", 2100, 1.0, 0.0)


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert "There are no runs" in capsys.readouterr().out
    for action in ("show", "compare", "plot"):
        assert main(["runs", action, "--root", str(tmp_path)]) == 1
        assert "--root" in capsys.readouterr().err


def test_a_run_without_metrics_or_with_broken_files_is_listed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(root, name="fresh", env="pong")
    (root / "pong-a" / "status.json").write_text("{")
    assert main(["runs", "--json"]) == 0
    facts = {fact["name"]: fact for fact in json.loads(capsys.readouterr().out)}
    assert (facts["fresh"]["steps"], facts["fresh"]["last"]) == (0, None)
    assert facts["fresh"]["status"] == "running"
    assert facts["pong-a"]["status"].startswith("broken: ")
    assert main(["runs", "compare", run.name]) == 1
    assert "it has no metrics yet" in capsys.readouterr().err


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root / "breakout-a" / "checkpoints" / "step_000000200" / "policy.safetensors"
    file.write_bytes(b"")
    assert main(["runs", "show", "latest"]) == 0
    out = capsys.readouterr().out
    for words in (
        *("breakout-a", "finished", "2,100 steps", "episode_return", "loss", "▁", "█"),
        *("step_000000100  whole  best", "step_000000200  broken: policy.safetensors"),
        *("train.rate = 0.5", "seed = 2"),
    ):
        assert words in out, words
    assert main(["runs", "show", "pong-b", "--json"]) == 0
    details = json.loads(capsys.readouterr().out)
    assert details["config"] == {"train": {"rate": 0.5}, "seed": 1}
    assert details["checkpoints"] == {"step_000000100": "whole", "step_000000200": "whole"}
    assert details["best_checkpoint"] == "step_000000100"
    assert main(["runs", "show", "pong-a", "pong-b"]) == 1
    assert "allowed: one" in capsys.readouterr().err


def test_wrong_names(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", "pong"]) == 1
    assert "begins 2 names" in capsys.readouterr().err
    assert main(["runs", "compare", "pong-c"]) == 1
    assert "nearest: pong-" in capsys.readouterr().err
    assert main(["runs", "compare", "pong-a", "--metric", "episode_retrun"]) == 1
    assert "nearest: 'episode_return'" in capsys.readouterr().err
    assert main(["runs", "sow"]) == 2


@pytest.mark.parametrize("plotext", [True, False])
def test_compare(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plotext: bool
) -> None:
    if plotext:
        pytest.importorskip("plotext")
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["runs", "compare", "pong-a", "pong-b"]) == 0
    out = capsys.readouterr().out
    assert ("episode_return against steps" in out) == plotext
    assert "\x1b" not in out, "no colours off a terminal"
    table = [line for line in out.splitlines() if line.startswith("pong-")]
    assert [line.split()[:4] for line in table] == [
        ["pong-a", "2100", "3", "20"],
        ["pong-b", "2100", "3", "40"],
    ]
    assert all("█" in line for line in table)


def test_plot(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from PIL import Image

    assert main(["runs", "plot", "--out", "curves.png"]) == 0
    assert capsys.readouterr().out == "Drawn: curves.png\n"
    with Image.open("curves.png") as image:
        colours = image.convert("RGB").getcolors(1 << 20)
        assert image.size > (800, 400)
    assert colours is not None
    shades = {colour for _, colour in colours}
    assert {(0x2A, 0x9D, 0x8F), (0xE7, 0x6F, 0x51)} <= shades, "both curves are there"
    assert main(["runs", "plot", "pong-a", "--out", "one.svg"]) == 0
    assert Path("one.svg").read_text().startswith("<?xml")


def test_plot_refuses_before_it_reads(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["runs", "plot", "--out", "curves.gif"]) == 1
    assert "allowed: a name with .png" in capsys.readouterr().err
    assert main(["runs", "plot", "--out", "nowhere/curves.png"]) == 1
    assert "a folder that exists" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["runs", "plot"]) == 1
    assert "fugu-rl[plot]" in capsys.readouterr().err


def test_the_band_is_the_spread_of_the_seeds(root: Path) -> None:
    curves = [
        read_curve(root / name / "metrics.jsonl", "episode_return", name)
        for name in ("pong-a", "pong-b")
    ]
    mean = average(curves, "pong")
    assert (mean.runs, mean.steps[0], mean.steps[-1]) == (2, 100, 2100)
    at = np.searchsorted(mean.steps, 1000.0)
    step = mean.steps[at]
    np.testing.assert_allclose(mean.values[at], 1.5 * step / 100)
    np.testing.assert_allclose(mean.spread[at], 0.5 * step / 100)


def test_help_imports_nothing_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    import subprocess

    code = (
        "import sys; from fugu.cli.main import main; status = main(['runs', '--help']);"
        "heavy = {'torch', 'numpy', 'rich', 'matplotlib', 'plotext'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--metric" in done.stdout
