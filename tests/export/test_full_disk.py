"""A policy for which there is no room leaves the one that was there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from policy_kinds import KINDS

from fugu.export.c_writer import write_c
from fugu.export.onnx_writer import write_onnx
from fugu.nets.net import Net
from fugu.nets.reading import read_policy


def nets() -> tuple[Net, Net]:
    return read_policy(*KINDS[0].make()), read_policy(*KINDS[1].make())


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("written", range(3))
def test_an_older_policy_in_c_stays(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its files has no room."""
    old, new = nets()
    write_c(old, tmp_path)
    before, left = files(tmp_path), iter(range(written))

    def refuse(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_c(new, tmp_path)
    assert files(tmp_path) == before


def test_an_older_policy_in_onnx_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weights beside it, which have another name only when all is written."""
    onnx = pytest.importorskip("onnx")
    old, new = nets()
    write_onnx(old, tmp_path / "policy.onnx", most_bytes=1_000)
    before = files(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_onnx(new, tmp_path / "policy.onnx", most_bytes=1_000)
    assert files(tmp_path) == before
