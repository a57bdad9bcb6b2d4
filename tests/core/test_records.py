"""Records: lines that a killed writer, or a bad disk, cannot spoil unseen."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import UsageError
from fugu.core.records import RecordWriter, from_line, read_records, to_line

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False).filter(math.isfinite),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.text().filter(lambda key: key != "crc32"), VALUES, min_size=1)


@given(RECORDS)
def test_a_record_comes_back(record: dict[str, object]) -> None:
    line = to_line(record)
    assert line.count(b"\n") == 1
    assert from_line(line) == record
    loaded = json.loads(line)
    loaded.pop("crc32")
    assert loaded == record


@given(RECORDS, st.data())
def test_a_changed_line_is_noticed(record: dict[str, object], data: st.DataObject) -> None:
    line = to_line(record)[:-1]
    place = data.draw(st.integers(0, len(line) - 1))
    if data.draw(st.booleans()):
        changed = line[:place]
    else:
        flipped = line[place] ^ data.draw(st.integers(1, 255))
        changed = line[:place] + bytes([flipped]) + line[place + 1 :]
    found = from_line(changed)
    # A flip inside the name of the checksum's key makes it a key of its own, and no checksum.
    assert found is None or (found != record and len(found) == len(record) + 1)


def test_lines_of_others_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[1, 2]\n' + to_line({"a": 2}) + b'{"a": 3}\r\n{"a": ')
    with caplog.at_level(logging.WARNING):
        assert list(read_records(path)) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert "line 3 is broken" in caplog.text
    assert "line 6 is broken" in caplog.text


def test_after_a_torn_line_a_new_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file.jsonl"
    with RecordWriter(path) as writer:
        writer.append([{"a": 1}, {"a": 2}])
        writer.append([])
    path.write_bytes(path.read_bytes()[:-5])
    with RecordWriter(path) as writer:
        writer.append([{"a": 3}])
        writer.sync()
    assert list(read_records(path)) == [{"a": 1}, {"a": 3}]
    with pytest.raises(UsageError, match="closed"):
        writer.append([{"a": 4}])


@pytest.mark.parametrize("record", [{}, {"crc32": "x"}, {"a": math.nan}, {"a": {1, 2}}])
def test_what_is_refused(tmp_path: Path, record: dict[str, object]) -> None:
    with RecordWriter(tmp_path / "file") as writer, pytest.raises(UsageError, match="record: "):
        writer.append([{"a": 1}, record])
    assert (tmp_path / "file").read_bytes() == b""


PROGRAM = """
import sys
from fugu.core.records import RecordWriter
with RecordWriter(sys.argv[1]) as writer:
    for number in range(300):
        writer.append([{"who": sys.argv[2], "number": number, "text": "x" * 500}])
"""


def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), who]) for who in "abc"]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    found = [(record["who"], record["number"]) for record in read_records(path)]
    assert sorted(found) == [(who, number) for who in "abc" for number in range(300)]
