"""Sinks: what is written is read back, resumes leave no doubles, failures stay alone."""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fugu.core.errors import MissingExtraError, UsageError
from fugu.track import CombinedSink, JsonlSink, Sink, TensorboardSink, WandbSink, read_metrics


def steps(path: Path) -> list[float | None]:
    return [entry["step"] for entry in read_metrics(path)]


def test_jsonl_numbers_round_trip(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    floats = [struct.unpack("d", rng.bytes(8))[0] for _ in range(500)]
    numbers = {str(i): x for i, x in enumerate(floats) if math.isfinite(x)}
    sink = JsonlSink(tmp_path / "new" / "m.jsonl")
    sink.write(3, numbers | {"numpy": np.float32(0.1), "count": 2**60, 'qu"ote': -0.0})
    sink.close()
    (entry,) = read_metrics(sink.path)
    assert {name: entry[name] for name in numbers} == numbers
    assert entry["numpy"] == float(np.float32(0.1))
    assert entry["count"] == 2**60
    assert str(entry['qu"ote']) == "-0.0"
    assert entry["step"] == 3
    assert entry["seconds"] is not None
    assert entry["seconds"] >= 0


def test_jsonl_is_strict_json_for_what_is_no_number(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(1, {"nan": math.nan, "up": math.inf, "down": -math.inf})
    text = sink.path.read_text()
    entry = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert (entry["nan"], entry["up"], entry["down"]) == (None, math.inf, -math.inf)


def test_jsonl_lines_stand_in_the_file_at_once(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write(1, {"loss": 1.0})
    assert steps(sink.path) == [1]
    sink.histogram(1, "nothing", [1.0])
    assert steps(sink.path) == [1]


@pytest.mark.parametrize("name", ["step", "seconds"])
def test_jsonl_reserved_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"given '{name}'"):
        JsonlSink(tmp_path / "m.jsonl").write(1, {name: 1.0})


def test_jsonl_resume_cuts_off_what_came_later(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    lines = [{"step": step, "seconds": step * 100.0} for step in (1, 2, 2, 3, 4)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sink = JsonlSink(path, resume_step=2)
    assert steps(path) == [1, 2, 2]
    sink.write(3, {"again": 1.0})
    *_, last = read_metrics(path)
    assert (last["step"], last["again"]) == (3, 1.0)
    assert last["seconds"] is not None
    assert 200 <= last["seconds"] < 230, "the time of training goes on where it was"


@pytest.mark.parametrize(("resume_step", "left"), [(None, [1, 2]), (1, [1]), (0, []), (9, [1, 2])])
def test_jsonl_mends_a_last_half_line(
    resume_step: int | None, left: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    assert steps(path) == [1, 2]
    JsonlSink(path, resume_step).write(7, {})
    assert steps(path) == [*left, 7]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_reading_what_is_not_there_or_no_metrics(tmp_path: Path) -> None:
    assert list(read_metrics(tmp_path / "none")) == []
    (tmp_path / "m").write_text('\n[1]\n{"loss": 2}\n{"step": 4}\n\xff')
    assert steps(tmp_path / "m") == [4]


class Notes(Sink):
    """Remembers, and fails from a step on."""

    def __init__(self, fails_at: float = math.inf) -> None:
        self.fails_at, self.steps, self.closed = fails_at, list[int](), 0

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if step >= self.fails_at:
            raise OSError("the disk is full")
        self.steps.append(step)

    def close(self) -> None:
        self.closed += 1
        if self.steps == [] or self.fails_at < math.inf:
            raise OSError("cannot close")


def test_a_sink_that_fails_is_dropped_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    first, bad, last = Notes(), Notes(fails_at=2), Notes()
    both = CombinedSink([first, bad, last])
    with caplog.at_level(logging.WARNING, "fugu.track"):
        for step in range(5):
            both.write(step, {"loss": 1.0})
            both.histogram(step, "h", [1.0])
    assert first.steps == last.steps == [0, 1, 2, 3, 4]
    assert (bad.steps, bad.closed) == ([0, 1], 1)
    (message,) = caplog.messages
    assert "Notes failed" in message
    assert "the disk is full" in message
    both.close()
    assert first.closed == last.closed == 1
    assert bad.closed == 1
    both.close()
    assert first.closed == 1


def test_an_interrupt_is_no_failure_of_a_sink() -> None:
    class Interrupted(Notes):
        def write(self, step: int, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CombinedSink([Interrupted()]).write(1, {})


def test_tensorboard_writes_what_its_reader_reads(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorboardSink(tmp_path)
    for step in (1, 2, 3):
        sink.write(step, {"loss": step / 4})
    sink.close()
    resumed = TensorboardSink(tmp_path, resume_step=2)
    resumed.write(3, {"loss": 9.0})
    resumed.histogram(3, "ratios", np.arange(10.0))
    resumed.histogram(3, "none", [])
    resumed.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.25), (2, 0.5), (3, 9.0)]
    assert events.Tags()["histograms"] == ["ratios"]


def test_tensorboard_histograms_are_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    random = np.random.default_rng(0)
    values = random.normal(size=(8, 125)).astype(np.float32)
    sink = TensorboardSink(tmp_path)
    sink.histogram(1, "weights/encoder", values)
    sink.histogram(2, "weights/encoder", values * 2)
    sink.histogram(2, "returns", [1, 1, 1, 5, math.nan, math.inf])
    sink.histogram(2, "broken", [math.nan])
    sink.close()
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0})
    events.Reload()
    assert sorted(events.Tags()["histograms"]) == ["returns", "weights/encoder"]
    first, second = events.Histograms("weights/encoder")
    assert (first.step, second.step) == (1, 2)
    for told, scale in ((first.histogram_value, 1), (second.histogram_value, 2)):
        given = values.astype(np.float64) * scale
        assert told.num == sum(told.bucket) == 1000
        np.testing.assert_allclose((told.min, told.max), (given.min(), given.max()))
        np.testing.assert_allclose((told.sum, told.sum_squares), (given.sum(), (given**2).sum()))
    (returns,) = events.Histograms("returns")
    told = returns.histogram_value
    assert (told.num, told.sum, told.min, told.max) == (4, 8.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("kind", "package"), [(TensorboardSink, "tensorboard"), (WandbSink, "wandb")]
)
def test_missing_packages_name_their_extra(
    kind: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"fugu-rl\[{package}\]"):
        kind(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wandb_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    logged: list[tuple[dict[str, Any], int]] = []

    def init(**settings: Any) -> Any:
        calls.append(settings)
        return SimpleNamespace(
            log=lambda metrics, step: logged.append((metrics, step)), finish=lambda: None
        )

    module: Any = ModuleType("wandb")
    module.init, module.Settings, module.Histogram = init, SimpleNamespace, tuple
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.import_module", lambda name: module)
    for step in (1, 2):
        sink = WandbSink(tmp_path, name="a", config={"seed": 1})
        sink.write(step, {"loss": np.float32(0.5)})
        sink.histogram(step, "h", [1.0, 2.0])
        sink.close()
    assert calls[0]["id"] == calls[1]["id"]
    assert {call["resume"] for call in calls} == {"allow"}
    assert {call["mode"] for call in calls} == {"offline"}
    assert logged[:2] == [({"loss": 0.5}, 1), ({"h": (1.0, 2.0)}, 1)]
    assert WandbSink(tmp_path / "other").run_id != calls[0]["id"]


def test_wandb_offline_for_real(tmp_path: Path) -> None:
    """Without network, in processes of their own: wandb writes the last bytes when they end."""
    pytest.importorskip("wandb")
    folders = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR")
    environment = os.environ | dict.fromkeys(folders, str(tmp_path / "home"))
    program = (
        "import sys; from fugu.track import WandbSink; sink = WandbSink(sys.argv[1], name='a');"
        "sink.write(int(sys.argv[2]), {'loss' + sys.argv[2]: 0.5});"
        "sink.histogram(int(sys.argv[2]), 'weights', [1.0, 2.0, float('nan')]); sink.close();"
        "print(sink.run_id)"
    )
    ids = set()
    for step in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "run"), step],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        ids.add(done.stdout.strip())
        time.sleep(1.1 if step == "1" else 0)  # wandb names its folders by the second
    (run_id,) = ids
    logs = [path.read_bytes() for path in (tmp_path / "run").rglob(f"run-{run_id}.wandb")]
    assert len(logs) == 2
    assert sorted(b"loss1" in log for log in logs) == [False, True]
    assert sorted(b"loss2" in log for log in logs) == [False, True]
    assert all(b"weights" in log and b"histogram" in log for log in logs)
