"""Files that are written whole or not at all, on disks that may be full."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from fugu.core.errors import DiskFullError, FuguError
from fugu.core.writing import tells_full_disk, write_together, write_whole


def fill(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Let so many more files be written, and then none."""
    left = iter(range(after))

    def refuse(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)


def test_a_file_is_replaced_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "note"
    write_whole(path, "old")
    fill(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("note", "old")]


def test_of_several_files_none_is_replaced_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    write_together(dict.fromkeys(paths, "old"))
    fill(monkeypatch, after=1)
    with pytest.raises(OSError, match="No space left"):
        write_together(dict.fromkeys(paths, "new"))
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert [path.read_text() for path in paths] == ["old", "old"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_that(number: int) -> None:
    with pytest.raises(DiskFullError, match=r"the disk is full: .* at /there\. Do so\."):  # noqa: SIM117
        with tells_full_disk(lambda: "Do so."):
            raise OSError(number, os.strerror(number), "/there")


def test_other_errors_are_not() -> None:
    with pytest.raises(PermissionError), tells_full_disk(lambda: "Do so."):
        raise PermissionError(errno.EACCES, "no")


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(DiskFullError("no room", "Make some.")))
    assert isinstance(error, FuguError)
    assert str(error) == "the disk is full: no room. Make some."
