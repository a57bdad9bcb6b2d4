"""Checkpoints: exact, whole or not at all, and never trusted."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fugu.core.errors import UsageError
from fugu.store import (
    CheckpointError,
    load_checkpoint,
    read_state,
    save_checkpoint,
    verify_checkpoint,
)
from fugu.store.checkpoint import MIGRATIONS, SCHEMA, migrate, replaced

GOLDEN = Path(__file__).parent / "golden"
TORCH_KINDS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def small(folder: Path, value: float = 1.0) -> Path:
    tensors = {"policy": {"weight": torch.full((4, 3), value)}}
    return save_checkpoint(folder, tensors=tensors, state={"step": 5})


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("kind", TORCH_KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (3, 5), (0,), (2, 0, 3)], ids=str)
def test_tensors_round_trip_exactly(
    kind: torch.dtype, shape: tuple[int, ...], tmp_path: Path
) -> None:
    size = int(np.prod(shape)) * kind.itemsize
    raw = torch.arange(size, dtype=torch.int64).mul(37).remainder(251).to(torch.uint8)
    if kind == torch.bool:
        raw = raw % 2
    value = raw.view(kind).reshape(shape) if size else torch.empty(shape, dtype=kind)
    save_checkpoint(tmp_path / "c", tensors={"all": {"x": value}}, state={})
    back = load_checkpoint(tmp_path / "c").tensors["all"]["x"]
    assert (back.dtype, back.shape) == (kind, torch.Size(shape))
    assert bytes_of(back) == bytes_of(value) if size else back.numel() == 0


@pytest.mark.parametrize("kind", ["?", "u1", "i2", "u2", "u4", "u8", "i8", "f2", "f4", "f8", "c8"])
def test_arrays_round_trip_exactly(kind: str, tmp_path: Path) -> None:
    source = np.arange(24).astype(kind).reshape(4, 6)
    frozen = source.copy()
    frozen.flags.writeable = False
    arrays = {
        "whole": source,
        "part": source[::-1, ::2],
        "frozen": frozen,
        "scalar": source[1, 1:2],
    }
    save_checkpoint(tmp_path / "c", tensors={"arrays": arrays}, state={})
    back = load_checkpoint(tmp_path / "c").tensors["arrays"]
    for name, array in arrays.items():
        assert back[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(back[name].numpy(), array)


def test_tied_views_and_parameters(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    tensors = {"a": weight, "tied": weight, "view": weight[1:], "turned": weight.T}
    save_checkpoint(tmp_path / "c", tensors={"policy": tensors}, state={})
    back = load_checkpoint(tmp_path / "c").tensors["policy"]
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor.detach()), name


def test_optimizer_and_no_tensors(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", tensors={"policy": {}}, state={})
    assert load_checkpoint(tmp_path / "c").tensors == {"policy": {}}
    save_checkpoint(tmp_path / "d", tensors={}, state={})
    assert load_checkpoint(tmp_path / "d").tensors == {}


def test_state_round_trips(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    state = {
        "random": generator.bit_generator.state,
        "best": float("-inf"),
        "rate": 0.1,
        "large": 2**127 + 1,
        "names": ["ä", ""],
        "nothing": None,
        "on": True,
        "numpy": np.float32(0.1),
    }
    save_checkpoint(tmp_path / "c", tensors={}, state=state)
    back = load_checkpoint(tmp_path / "c")
    assert back.state == state | {"numpy": float(np.float32(0.1))}
    assert back.state["on"] is True
    assert (
        back.libraries["torch"] == torch.__version__.partition("+")[0]
        or "+" in (back.libraries["torch"])
    )
    # Strict JSON: what other languages refuse is not in it.
    text = (tmp_path / "c" / "state.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert np.isnan(_round(tmp_path, {"x": float("nan")})["x"])


def _round(folder: Path, state: dict[str, object]) -> dict[str, float]:
    return load_checkpoint(save_checkpoint(folder / "r", tensors={}, state=state)).state


@pytest.mark.parametrize(
    ("tensors", "state", "message"),
    [
        ({}, {"a": {"b": np.zeros(2)}}, "given a ndarray at 'state.a.b'"),
        ({}, {"a": {3: 1}}, "given the key 3 at 'state.a.3'"),
        ({}, {"a": [1, object()]}, "given a object at 'state.a.1'"),
        ({"p": {"x": np.array(["text"])}}, {}, "at 'p.x'"),
        ({"p": {"x": torch.zeros(2, dtype=torch.complex128)}}, {}, "given torch.complex128 at 'p'"),
        ({"../p": {}}, {}, "given the file '../p'"),
        ({".p": {}}, {}, "given the file '.p'"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is(
    tensors: dict[str, dict[str, object]], state: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        save_checkpoint(tmp_path / "c", tensors=tensors, state=state)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(tmp_path / "c", 1.0)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        small(tmp_path / "c", 2.0)
    monkeypatch.undo()
    assert load_checkpoint(tmp_path / "c").tensors["policy"]["weight"][0, 0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_replacing(tmp_path: Path) -> None:
    small(tmp_path / "c", 1.0)
    small(tmp_path / "c", 2.0)
    assert load_checkpoint(tmp_path / "c").tensors["policy"]["weight"][0, 0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_killed_between_the_two_renames(tmp_path: Path) -> None:
    small(tmp_path / "c", 1.0)
    (tmp_path / "c").rename(replaced(tmp_path / "c"))
    assert load_checkpoint(tmp_path / "c").tensors["policy"]["weight"][0, 0] == 1
    small(tmp_path / "c", 2.0)
    assert load_checkpoint(tmp_path / "c").tensors["policy"]["weight"][0, 0] == 2
    assert not replaced(tmp_path / "c").exists()


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json", "checksums.json"])
@pytest.mark.parametrize("harm", ["truncate", "empty", "delete", "flip"])
def test_harm_is_refused_by_name(name: str, harm: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "step_1")
    path = folder / name
    content = bytearray(path.read_bytes())
    if harm == "delete":
        path.unlink()
    elif harm == "flip":
        content[-5] ^= 4
        path.write_bytes(content)
    else:
        path.write_bytes(content[:-3] if harm == "truncate" else b"")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert str(folder) in str(caught.value)
    # A changed list of checksums may blame the file that it no longer fits.
    assert caught.value.file == name or name == "checksums.json"
    with pytest.raises(CheckpointError):
        verify_checkpoint(folder)
    assert pickle.loads(pickle.dumps(caught.value)).file == caught.value.file


def test_every_flipped_bit_of_a_tensor_file_is_noticed(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "c", tensors={"p": {"x": torch.zeros(2)}}, state={})
    path = folder / "p.safetensors"
    whole = path.read_bytes()
    for bit in range(0, len(whole) * 8, 3):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"p\.safetensors"):
            verify_checkpoint(folder)
    path.write_bytes(whole)
    verify_checkpoint(folder)


def test_foreign_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_checkpoint(tmp_path / "nothing")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(CheckpointError, match=r"checksums\.json: it is missing"):
        load_checkpoint(tmp_path / "foreign")
    folder = small(tmp_path / "c")
    shutil.copy(folder / "policy.safetensors", folder / "smuggled.safetensors")
    with pytest.raises(CheckpointError, match=r"smuggled\.safetensors"):
        load_checkpoint(folder)


@pytest.mark.parametrize("schema", [SCHEMA + 1, -1, "1", None, [1]])
def test_unknown_schema(schema: object, tmp_path: Path) -> None:
    folder = small(tmp_path / "c")
    rewrite(folder, {"schema": schema, "libraries": {}, "state": {}})
    with pytest.raises(CheckpointError, match=r"state\.json: given schema version .*reads: 0, 1"):
        load_checkpoint(folder)


def test_state_of_a_foreign_shape(tmp_path: Path) -> None:
    folder = small(tmp_path / "c")
    rewrite(folder, {"schema": SCHEMA})
    with pytest.raises(CheckpointError, match="holds no state"):
        load_checkpoint(folder)


def rewrite(folder: Path, document: object) -> None:
    content = json.dumps(document).encode()
    (folder / "state.json").write_bytes(content)
    sums = json.loads((folder / "checksums.json").read_text())
    sums["state.json"] = hashlib.sha256(content).hexdigest()
    (folder / "checksums.json").write_text(json.dumps(sums))


@pytest.mark.parametrize("version", range(SCHEMA + 1))
def test_golden_files_of_every_version_load(version: int) -> None:
    found = load_checkpoint(GOLDEN / f"version_{version}")
    assert found.state == {"step": 1200, "score": 37.5, "env": "cartpole"}
    assert torch.equal(found.tensors["policy"]["weight"], torch.arange(6.0).reshape(2, 3) / 4)
    assert found.tensors["policy"]["steps"].item() == 1200
    assert read_state(GOLDEN / f"version_{version}") == found.state


def test_there_is_a_way_from_every_older_version() -> None:
    assert sorted(MIGRATIONS) == list(range(SCHEMA))
    with pytest.raises(KeyError):
        migrate({"schema": 0}, {}, migrations={})


def test_migrations_can_rename_tensors() -> None:
    def rename(document, tensors):  # type: ignore[no-untyped-def]
        return document, {"policy": tensors["actor"]}

    assert migrate({"schema": 0}, {"actor": {"x": 1}}, {0: rename})[1] == {"policy": {"x": 1}}
