"""Files of strangers: what is not read is refused by name, and nothing else comes of it.

`benchmarks/trust/fuzz_files.py` does the same with far more inputs.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rich.console import Console

from fugu import native
from fugu.algos.algorithm import flatten_optimiser, restore_optimiser
from fugu.algos.settings import read_config
from fugu.core.config import from_flags, read_toml
from fugu.core.errors import FuguError, UsageError
from fugu.core.files import DOCUMENT, LONGEST_LINE
from fugu.data.offline import EPISODES, METADATA, Dataset, DatasetError, DatasetWriter, Episode
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.envs.native_env import Setting
from fugu.league.ledger import Ledger, LedgerError, Rating
from fugu.league.ratings import Standing, rate, show
from fugu.spaces import Layout
from fugu.store import values
from fugu.store.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from fugu.store.run import Run
from fugu.track.sinks import parse_metrics
from fugu.training.config import resolve_config

FUZZER = Path(__file__).parents[2] / "benchmarks" / "trust" / "fuzz_files.py"
FILES = ("checkpoint", "config", "dataset", "league", "hub")
JOURNAL_END = bytes.fromhex("d9d505f920a163d7")

posix = pytest.mark.skipif(os.name != "posix", reason="needs fork and pipes")


def fuzz(results: Path, *kinds: str, inputs: int) -> dict[str, Any]:
    """What the fuzzer says, by kind of file."""
    command = [sys.executable, str(FUZZER), "--only", *kinds, "--inputs", str(inputs)]
    done = subprocess.run(
        [*command, "--seed", "11", "--results", str(results), "--no-keep"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    found: dict[str, Any] = json.loads((results / "fuzz.json").read_text())
    assert done.returncode == any(found[kind]["findings"] for kind in kinds), done.stderr
    return found | {"told": done.stderr}


@posix
@pytest.mark.skipif(not native.available, reason="needs the native extension")
def test_nothing_is_found_in_readers_of_fugu(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    found = fuzz(tmp_path, *FILES, inputs=300)
    for kind in FILES:
        assert found[kind]["findings"] == 0, found["told"]
        assert found[kind]["loaded"] > 10
        assert sum(found[kind]["refused"].values()) > 50


@posix
def test_all_is_found_in_a_reader_that_trusts(tmp_path: Path) -> None:
    causes = fuzz(tmp_path, "naive", inputs=150)["naive"]["causes"]
    expected = ("code", "touched", "HangError:", "MemoryError:", "memory:", "crash:", "KeyError:")
    assert {*expected} <= causes.keys(), causes


# ---------------------------------------------------------------------- values and settings


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"$float": []}', b'{"$float": "x"}', b'{"a": "\\ud800"}', b"\xff"]
)
def test_json_that_is_none_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|float|surrogates|decode"):
        values.load(text)


def test_what_is_nested_too_deeply_is_not_written() -> None:
    nested: Any = 1
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(UsageError, match="nested"):
        values.dump({"a": nested})


@pytest.mark.parametrize("text", [b"\xff\xfe", b"a = " + b"[" * 5000, b"a = \x00", b"= 1"])
def test_toml_that_is_none_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "given.toml").write_bytes(text)
    with pytest.raises(UsageError, match="no TOML"):
        read_toml(tmp_path / "given.toml")
    with pytest.raises(UsageError, match="a file of TOML"):
        read_toml(tmp_path)


def test_settings_of_wrong_kinds_are_named() -> None:
    with pytest.raises(UsageError, match="learning_rate"):
        read_config({"env": "cartpole", "train": {"learning_rate": 10**400}})
    with pytest.raises(UsageError, match="algo"):
        read_config({"algo": []})
    with pytest.raises(UsageError, match="league"):
        resolve_config("cartpole", overrides={"league": 3})
    with pytest.raises(UsageError, match="one of both"):
        from_flags(["--a.b", "1", "--a.b.c", "2"])


@pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), float("inf"), "1", None])
def test_an_environment_refuses_what_is_no_number(value: Any) -> None:
    setting = Setting("speed", False, 1.0, 0.0, float("inf"), "how fast")
    assert setting.check(2) == 2.0
    with pytest.raises(UsageError, match="speed"):
        setting.check(value)


@pytest.mark.parametrize(
    "line", [b'{"step": 1, "x": "a"}', b'{"step": 1, "x": 1' + b"0" * 400 + b"}", b"[" * 100_000,
             b'{"step": 1, "\\ud800": 2}', b"[1, 2]", b"7"]
)  # fmt: skip
def test_metrics_that_are_no_numbers_are_left_out(line: bytes) -> None:
    assert parse_metrics(line) is None


@pytest.mark.parametrize("facts", [{"created": "x"}, {"created": 1e300}, {"created": [1]}])
def test_a_run_with_an_odd_date_has_that_of_its_folder(tmp_path: Path, facts: Any) -> None:
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "status.json").write_text('{"status": "running", "process": "x", "host": 3}')
    run = Run(tmp_path)
    assert run.created == tmp_path.stat().st_mtime
    assert (run.status, run.process) == ("running", 0)


# ---------------------------------------------------------------------- checkpoints


@posix
def test_a_checkpoint_with_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "a", tensors={}, state={"step": 1})
    (folder / "state.json").unlink()
    os.mkfifo(folder / "state.json")
    with pytest.raises(CheckpointError, match="no ordinary file"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a.pkl", "a\0.safetensors"])
def test_a_checkpoint_that_names_other_files_is_refused(tmp_path: Path, name: str) -> None:
    folder = save_checkpoint(tmp_path / "a", tensors={}, state={"step": 1})
    sums = json.loads((folder / "checksums.json").read_text())
    (folder / "checksums.json").write_text(json.dumps({**sums, name: "0" * 64}))
    with pytest.raises(CheckpointError, match="which no checkpoint has"):
        load_checkpoint(folder)


def group_of() -> AgentGroup:
    box, choice = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
    return AgentGroup("agent", (0,), Layout.of(box), Layout.of(choice))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("row_of", [0, 0]), ("row_of", [-1, 1]), ("free", [2, 10**9]), ("length", [-1, 0]),
     ("length", [0, 99])],
)  # fmt: skip
def test_rows_that_native_code_would_write_outside_of_are_refused(
    name: str, wrong: list[int]
) -> None:
    shape = SegmentShape(agents=2, rows=2, horizon=4, num_samples=1)
    segments = Segments(group_of(), shape)
    state = {key: np.array(value) for key, value in segments.state_dict().items()}
    segments.load_state_dict(state)
    with pytest.raises(UsageError, match="each once"):
        segments.load_state_dict({**state, name: np.array(wrong)})


def test_an_optimiser_of_other_weights_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimiser.step()
    flat, rest = flatten_optimiser(optimiser.state_dict())
    restore_optimiser(optimiser, flat, rest)
    with pytest.raises(ValueError, match="shape"):
        restore_optimiser(optimiser, {**flat, "0.exp_avg": torch.ones(2)}, rest)
    for wrong in (torch.ones(2), torch.ones(()), torch.ones(1)):
        with pytest.raises(ValueError, match="shape"):
            restore_optimiser(optimiser, {**flat, "0.exp_avg_sq": wrong}, rest)
    with pytest.raises(ValueError, match="no weight 1"):
        restore_optimiser(optimiser, {**flat, "1.step": flat["0.step"]}, rest)
    with pytest.raises(ValueError, match="keeps"):
        restore_optimiser(optimiser, {"0.step": flat["0.step"]}, rest)
    (settings,) = rest["param_groups"]
    with pytest.raises(ValueError, match="betas"):
        restore_optimiser(optimiser, flat, {**rest, "param_groups": [{**settings, "betas": "x"}]})
    with pytest.raises(ValueError, match="params"):
        restore_optimiser(optimiser, flat, {**rest, "param_groups": [{**settings, "params": [1]}]})
    assert torch.equal(optimiser.state[weight]["exp_avg"], flat["0.exp_avg"])  # as it was


# ---------------------------------------------------------------------- datasets


def dataset(folder: Path) -> Path:
    """Two short episodes."""
    with DatasetWriter(folder, group_of(), "a-game") as writer:
        for steps in (2, 3):
            ends = np.zeros((2, steps), np.bool_)
            ends[0, -1] = True
            observations = np.zeros((steps + 1, 3), np.float32)
            actions = np.zeros((steps, 1), group_of().action_layout.dtype)
            writer.add(Episode(observations, actions, np.ones(steps, np.float32), *ends))
    return folder


@pytest.mark.parametrize(
    ("entry", "value"),
    [("episodes", -1), ("episodes", 2**60), ("steps", "x"), ("env", None), ("actions", []),
     ("observations", {"dtype": "object", "size": 3}), ("observations", {"size": -1}),
     ("observations", {"dtype": "float32", "size": True})],
)  # fmt: skip
def test_metadata_of_wrong_kinds_is_refused(tmp_path: Path, entry: str, value: Any) -> None:
    folder = dataset(tmp_path / "data")
    metadata = json.loads((folder / METADATA).read_text())
    (folder / METADATA).write_text(json.dumps({**metadata, entry: value}))
    with pytest.raises(DatasetError):
        Dataset(folder)


@pytest.mark.parametrize("header", ["(", "{'descr': '|O', ", "[" * 400, "{'descr': '<f8'}"])
def test_headers_that_numpy_fails_at_are_refused(tmp_path: Path, header: str) -> None:
    folder = dataset(tmp_path / "data")
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2, "little")
    (folder / "rewards.npy").write_bytes(b"\x93NUMPY\x01\x00" + size + text + bytes(80))
    with pytest.raises(DatasetError, match=r"rewards\.npy"):
        Dataset(folder)


@pytest.mark.parametrize(("field", "value"), [("start", 7), ("length", -2), ("length", 2**62)])
def test_episodes_that_stand_elsewhere_are_refused(tmp_path: Path, field: str, value: int) -> None:
    import zlib

    folder = dataset(tmp_path / "data")
    lines = np.load(folder / EPISODES)
    lines[field][1] = value
    np.save(folder / EPISODES, lines)
    metadata = json.loads((folder / METADATA).read_text())
    metadata["checksum"] = zlib.crc32(lines.tobytes())
    (folder / METADATA).write_text(json.dumps(metadata))
    with pytest.raises(DatasetError, match="one after another"):
        Dataset(folder)
    with pytest.raises(DatasetError, match="one after another"):
        DatasetWriter(folder, group_of(), "a-game")


@posix
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "data")
    (folder / "rewards.npy").unlink()
    (folder / "rewards.npy").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DatasetError, match="link"):
        DatasetWriter(folder, group_of(), "a-game")
    assert not (tmp_path / "elsewhere").exists()


def test_broken_minari_data_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    from fugu.data.minari import import_minari

    (tmp_path / "metadata.json").write_text('{"data_format": "hdf5"}')
    with pytest.raises(DatasetError, match="as Minari writes it"):
        import_minari(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("change", ["bomb", "external link", "external data", "soft link"])
def test_minari_data_that_is_elsewhere_or_huge_is_refused(tmp_path: Path, change: str) -> None:
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("minari")
    from fugu.data.minari import export_minari, import_minari

    theirs = tmp_path / "minari"
    export_minari(Dataset(dataset(tmp_path / "data")), "a/b-v0", group_of(), folder=theirs)
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(100))
    folder = theirs if (theirs / "metadata.json").is_file() else theirs / "data"
    import_minari(folder, tmp_path / "whole")
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        episode = file["episode_1"]
        del episode["rewards"]
        match change:
            case "bomb":
                episode.create_dataset("rewards", (2**28,), "f8", chunks=(2**20,), fillvalue=1.0)
            case "external link":
                episode["rewards"] = h5py.ExternalLink(str(secret), "/")
            case "external data":
                episode.create_dataset("rewards", (3,), "f8", external=[(str(secret), 0, 24)])
            case _:
                episode["rewards"] = h5py.SoftLink("/episode_0/rewards")
    message = "expected episodes of at most" if change == "bomb" else "expected data in one file"
    with pytest.raises(DatasetError, match=message):
        import_minari(folder, tmp_path / "out")


# ---------------------------------------------------------------------- lines and tokenizers


A_PROBLEM = b'{"name": "a", "prompt": 1}'
LINES = [b"[" * 100_000, b"\xff\xfe", b"[1]", b"7", b'{"name": 1', A_PROBLEM,
         b'{"name": "a", "prompt": "b", "tests": 3}',
         b'{"name": "a", "prompt": "b", "tests": [3]}']  # fmt: skip


@pytest.mark.parametrize("line", [*LINES, b"x" * (LONGEST_LINE + 1)])
def test_lines_that_are_none_are_named(tmp_path: Path, line: bytes) -> None:
    from fugu.algos.preferences import read_comparisons
    from fugu.envs.coding.problems import read_problems
    from fugu.store.chat_export import read_rows

    path = tmp_path / "lines.jsonl"
    path.write_bytes(line)
    readers: list[Any] = [
        lambda: [*read_rows(path)],
        lambda: read_comparisons(path, group_of()),
    ]
    if line != A_PROBLEM:
        readers.append(lambda: read_problems(path))
    for read in readers:
        with pytest.raises(FuguError, match=r"lines\.jsonl"):
            read()


@pytest.mark.parametrize("text", ["[" * 100_000, "{}", "", '{"model": 3}', "\0"])
def test_a_tokenizer_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    pytest.importorskip("tokenizers")
    from fugu.envs.coding.tokenizers import PairTokenizer

    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"tokenizer\.json: expected a tokenizer"):
        PairTokenizer.load(path)
    with path.open("wb") as file:
        file.truncate(DOCUMENT + 1)
    with pytest.raises(UsageError, match="expected at most"):
        PairTokenizer.load(path)


# ---------------------------------------------------------------------- leagues


def ledger_of(path: Path, *statements: str) -> Path:
    """Two players and a game, and what a stranger did to them."""
    with Ledger(path) as ledger:
        one, two = ledger.player("chess", "a"), ledger.player("chess", "b")
        ledger.add({(one, two): (1, 0, 0)}, source="a match")
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            base.execute(statement)
    base.close()
    return path


@pytest.mark.parametrize(
    "change",
    ["CREATE TRIGGER t AFTER INSERT ON ratings BEGIN DELETE FROM players; END",
     "CREATE VIEW v AS SELECT 1", "DROP TABLE results"],
)  # fmt: skip
def test_tables_of_something_else_are_refused(tmp_path: Path, change: str) -> None:
    with pytest.raises(LedgerError, match="something else"):
        Ledger(ledger_of(tmp_path / "league.sqlite", change))


@pytest.mark.parametrize("value", ["-5", "'x'", "x'00'", "9e15", "9223372036854775807"])
def test_counts_that_are_none_are_refused(tmp_path: Path, value: str) -> None:
    path = ledger_of(tmp_path / "league.sqlite", f"UPDATE results SET wins = {value}")
    with Ledger(path) as ledger, pytest.raises(LedgerError, match="no league wrote"):
        ledger.tallies("chess")


def test_games_of_nobody_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(ledger_of(tmp_path / "league.sqlite")) as ledger:
        monkeypatch.setattr(ledger, "players", lambda game: [])  # as of a damaged index
        with pytest.raises(LedgerError, match="does not list"):
            rate(ledger, "chess")


def test_a_damaged_ledger_is_found_before_it_is_ranked(tmp_path: Path) -> None:
    path = ledger_of(tmp_path / "league.sqlite")
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA journal_mode = DELETE")
    base.close()
    data = path.read_bytes()
    path.write_bytes(data[: 4096 * 2] + bytes(4096) + data[4096 * 3 :])
    with pytest.raises(LedgerError), Ledger(path) as ledger:
        ledger.check()


@posix
def test_what_stands_beside_a_ledger_neither_writes_nor_deletes_elsewhere(tmp_path: Path) -> None:
    path, other = ledger_of(tmp_path / "league.sqlite"), tmp_path / "mine.txt"
    other.write_text("keep this")
    journal = tmp_path / "league.sqlite-journal"
    journal.write_bytes(b"x" * 512 + JOURNAL_END)
    with pytest.raises(LedgerError, match="-journal"):
        Ledger(path)
    journal.unlink()
    (tmp_path / "league.sqlite-wal").symlink_to(tmp_path / "new")
    with pytest.raises(LedgerError, match="-wal"):
        Ledger(path)
    (tmp_path / "link").symlink_to(tmp_path / "new")
    with pytest.raises(LedgerError, match="link"):
        Ledger(tmp_path / "link")
    assert other.read_text() == "keep this"
    assert not (tmp_path / "new").exists()


def test_a_game_that_is_called_like_markup_is_shown() -> None:
    shown = io.StringIO()
    standing = Standing("[/x]", Rating(1000.0, 10.0), None, 1, 0, 0)
    show([standing], "[/bold]", Console(file=shown, width=200))
    assert "[/bold]" in shown.getvalue()
    assert "[/x]" in shown.getvalue()


def test_every_error_here_is_one_of_ours() -> None:
    for kind in (CheckpointError, DatasetError, LedgerError, UsageError):
        assert issubclass(kind, FuguError)
