"""Files of strangers take no more memory than their size suggests, and are refused by name."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fugu.core import files
from fugu.core.files import parse_json, read_bytes, read_lines
from fugu.core.npz import read_npz

BOMB = 2**28  # bytes that a small file would take
LITTLE = 2**25  # bytes that refusing it may take


def peak(call: Callable[[], Any]) -> int:
    """The most bytes that Python and NumPy held during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refuse(call: Callable[[], Any], message: str | None = None) -> None:
    """A call must fail with such a ValueError, and take little memory."""

    def failing() -> None:
        with pytest.raises(ValueError, match=message):
            call()

    assert peak(failing) < LITTLE


# ---------------------------------------------------------------------- archives


def archive(**arrays: Any) -> io.BytesIO:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file


def test_arrays_come_back() -> None:
    given = {
        "a": np.arange(6, dtype=np.int32).reshape(2, 3),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "empty": np.zeros((0, 5), np.float32),
        "scalar": np.array(3),
        "text": np.array(["ab", "c"]),
        "flags": np.array([True, False]),
    }
    found = read_npz(archive(**given))
    assert found.keys() == given.keys()
    for name, array in given.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable


def test_compressed_arrays_are_refused_before_they_are_unpacked() -> None:
    file = io.BytesIO()
    np.savez_compressed(file, zeros=np.zeros(BOMB, np.uint8))
    assert len(file.getvalue()) < 2**20
    refuse(lambda: read_npz(file), "expected arrays of at most .* bytes")
    small = io.BytesIO()
    np.savez_compressed(small, noise=np.frombuffer(os.urandom(999), np.uint8))
    refuse(lambda: read_npz(small), "expected no compression")


def test_entries_that_share_bytes_are_refused() -> None:
    """One megabyte that a hundred entries are said to hold."""
    file = archive(a=np.zeros(2**20, np.uint8))
    with zipfile.ZipFile(file, "a") as opened:
        (entry,) = opened.infolist()
        for number in range(100):
            copy = zipfile.ZipInfo(f"b{number}.npy")
            for name in ("header_offset", "CRC", "compress_size", "file_size"):
                setattr(copy, name, getattr(entry, name))
            opened.filelist.append(copy)
        opened._didModify = True  # type: ignore[attr-defined]
    refuse(lambda: read_npz(file), "expected arrays of at most")


@pytest.mark.parametrize(
    "header",
    ["{'descr': '|u1', 'fortran_order': False, 'shape': (10000000000,), }",
     "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -8), }",
     "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
     "{'descr': '|V0', 'fortran_order': False, 'shape': (10000000000000000000,), }",
     "(" * 5000, "__import__('os').system('true')", ""],
)  # fmt: skip
def test_headers_that_promise_something_else_are_refused(header: str) -> None:
    text = header.encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("a.npy", content)
    refuse(lambda: read_npz(file))


def test_no_pickle_is_read(tmp_path: Path) -> None:
    class Canary:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "canary",)

    file = archive(a=np.array([Canary()], object))
    refuse(lambda: read_npz(file), "expected numbers; got Python objects")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("seed", range(5))
def test_changed_bytes_are_refused_or_read(seed: int) -> None:
    random, whole = np.random.default_rng(seed), archive(a=np.arange(99), b=np.ones(5)).getvalue()
    for _ in range(200):
        changed = bytearray(whole)
        for place in random.integers(0, len(whole), 3):
            changed[place] = random.integers(256)
        file = io.BytesIO(bytes(changed[: random.integers(len(whole) // 2, len(whole) + 1)]))
        try:
            read_npz(file)
        except ValueError:
            continue


# ---------------------------------------------------------------------- documents and lines


def test_documents_have_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2**42)  # takes no room on the disk
    for most in (files.DOCUMENT, None):
        with pytest.raises(OSError, match="expected at most"):
            read_bytes(path, most)
    with pytest.raises(OSError, match="expected at most"):
        files.read_text(path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"[" * 100_000])
def test_json_that_is_nested_too_deeply_is_a_value_error(text: Any) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text)


def test_lines_come_back(tmp_path: Path) -> None:
    path, packed = tmp_path / "lines.jsonl", tmp_path / "lines.jsonl.gz"
    path.write_bytes(b"one\n\ntwo")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [*read_lines(path)] == [*read_lines(packed)] == [b"one\n", b"\n", b"two"]


def test_lines_that_do_not_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with path.open("wb") as file:
        file.truncate(BOMB)
    packed = tmp_path / "lines.jsonl.gz"
    packed.write_bytes(gzip.compress(bytes(BOMB)))
    for one in (path, packed):
        with pytest.raises(ValueError, match="expected lines of at most"):
            next(read_lines(one))


def test_what_unpacks_to_very_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UNPACKED", 10_000)
    path = tmp_path / "lines.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" * 100_000))
    with pytest.raises(ValueError, match="expected at most 10000 bytes when unpacked"):
        [*read_lines(path)]
    monkeypatch.setattr(files, "UNPACKED", 10**6)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], whole[:20] + bytes(20), b"no gzip"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="it cannot be unpacked"):
            [*read_lines(path)]


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no ordinary file"):
        next(read_lines(tmp_path / "pipe"))


def test_records_that_are_nested_too_deeply_are_left_out() -> None:
    from fugu.core.records import from_line

    assert from_line(b'{"a": ' + b"[" * 100_000) is None
    assert from_line(json.dumps({"a": 1}).encode()) == {"a": 1}
