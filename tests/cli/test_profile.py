"""`fugu profile`: its parts add up, its trace can be opened, nothing stays wrapped."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fugu import native
from fugu.cli.main import main

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)

from fugu.training import profiling
from fugu.training.config import resolve_config
from fugu.vector.vector import Vector

pytestmark = pytest.mark.timeout(200)
SMALL = ["--vec.num-envs", "16", "--train.horizon", "16", "--updates", "2"]
TORCH = [*SMALL, "--train.engine", "torch"]


def test_table_and_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = vars(Vector)["recv"]
    assert main(["profile", "cartpole", *TORCH, "--policy.core", "lstm"]) == 0
    out = capsys.readouterr().out
    for row in (
        *("collect", "  wait for environments", "  forward", "  sampling", "  segments"),
        *("learn", "  gather", "  backward", "  optimiser", "  advantages", "aten::", "256 steps"),
        *("matrix products: ", "% of the update's wall clock", "Written: profile.json"),
    ):
        assert row in out, row
    trace = json.loads((tmp_path / "profile.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"aten::addmm", "aten::mm"} <= names
    assert vars(Vector)["recv"] is before
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_parts_add_up_to_their_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "t.json")
    flags = [*TORCH, "--train.epochs", "3", "--train.minibatches", "2"]
    assert main(["profile", "breakout", *flags, "--json", "--out", out]) == 0
    found = json.loads(capsys.readouterr().out)
    phases = {part["phase"]: part for part in found["parts"] if not part["name"]}
    assert sum(part["share"] for part in phases.values()) == pytest.approx(1)
    for phase, whole in phases.items():
        parts = {p["name"]: p for p in found["parts"] if p["phase"] == phase and p["name"]}
        assert sum(p["seconds"] for p in parts.values()) == pytest.approx(whole["seconds"])
        assert parts["rest"]["share"] < whole["share"] / 2, "most of it has a name"
        assert parts["rest"]["calls"] == whole["calls"] == 1
        for part in (whole, *parts.values()):
            assert part["seconds"] == pytest.approx(part["share"] * found["seconds"])
    assert sum(part["seconds"] for part in phases.values()) == pytest.approx(found["seconds"])
    spent = [operator["seconds"] for operator in found["operators"]]
    assert spent == sorted(spent, reverse=True)
    assert 0 < sum(spent) < found["traced_seconds"]
    for operator in found["operators"]:
        assert operator["seconds"] == pytest.approx(operator["share"] * found["traced_seconds"])
        assert operator["calls"] > 0
    calls = {(p["phase"], p["name"]): p["calls"] for p in found["parts"]}
    assert calls["collect", "forward"] == 16
    assert calls["learn", "backward"] == 6
    assert 0 < found["matrix_products"] < 1
    assert found["steps"] == 256


def test_a_name_that_is_gone_leaves_its_part_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {
        ("collect", "forward"): ["fugu.policies.policy:Policy.renamed"],
        ("learn", "gather"): ["fugu.nowhere:Class.method", "fugu.algos.ppo:Gone.method"],
        ("learn", "backward"): ["torch:Tensor.backward"],
    }
    monkeypatch.setattr(profiling, "PARTS", gone)
    cfg = resolve_config("bandit", overrides={"vec": {"num_envs": 8}, "train": {"engine": "torch"}})
    found = profiling.profile_training(cfg, tmp_path / "t.json", 1, warmup=0)
    assert [(part.phase, part.name) for part in found.parts] == [
        *(("collect", ""), ("learn", ""), ("learn", "backward"), ("learn", "rest"))
    ]


def test_a_call_inside_another_counts_for_itself_alone() -> None:
    watch = profiling.Stopwatch()
    inner = watch.timed(("learn", "inner"), lambda: time.sleep(0.05))
    outer = watch.timed(("learn", "outer"), lambda: (inner(), inner(), time.sleep(0.02)))
    outer()
    assert watch.calls == {("learn", "inner"): 2, ("learn", "outer"): 1}
    assert watch.seconds["learn", "inner"] == pytest.approx(0.1, abs=0.03)
    assert watch.seconds["learn", "outer"] == pytest.approx(0.02, abs=0.015)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--updates", "0"], "updates: given 0; allowed: 1 or more"),
        (["--out", "nowhere/a.json"], "allowed: a .json file in a folder that exists"),
        (["--seeds", "2"], "unknown option '--seeds'; nearest: '--seed'; allowed: --preset"),
        (["--train.learning-rat", "1"], "nearest: train.learning_rate"),
    ],
)
def test_what_is_wrong(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "bandit", *flags]) in (1, 2)
    assert message in capsys.readouterr().err


def test_parts_of_the_native_core(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL, "--train.engine", "native", "--json", "--out", str(tmp_path / "t.json")]
    assert main(["profile", "breakout", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    calls = {(p["phase"], p["name"]): p["calls"] for p in found["parts"]}
    assert calls["collect", "rows by the core"] == 1
    assert calls["learn", "optimiser"] == 2 * 16  # gradients are cut, and it steps
    assert calls["learn", "gradients by the core"] == 16
