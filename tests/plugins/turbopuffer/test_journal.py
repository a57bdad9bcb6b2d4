"""The journal: rows wait on disk, in order, until they are acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import DiskFullError, UsageError
from fugu.core.records import read_records
from fugu_turbopuffer.journal import Journal


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"id": str(number), "text": f"row\n{number}"} for number in numbers]


def waiting(journal: Journal, limit: int = 1000) -> list[str]:
    return [row["id"] for _, row in journal.peek(limit)]


def test_in_order_until_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert waiting(journal) == []
    journal.append(rows(1, 2, 3))
    journal.append(rows(4))
    assert waiting(journal, 2) == ["1", "2"]
    assert len(journal) == 4
    journal.acknowledge(journal.peek(2)[-1][0])
    assert waiting(journal) == ["3", "4"]
    journal.acknowledge(journal.peek(9)[-1][0])
    assert len(journal) == 0
    journal.append(rows(5))
    assert waiting(journal) == ["5"]
    journal.acknowledge(journal.peek(9)[-1][0])
    journal.close()
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_what_waits_outlasts_its_owner(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(rows(1, 2, 3))
    journal.acknowledge(journal.peek(1)[-1][0])
    assert waiting(Journal(tmp_path)) == []  # it has an owner
    journal.close()
    journal.close()
    with pytest.raises(UsageError, match="closed"):
        journal.append(rows(4))
    heir = Journal(tmp_path)
    assert waiting(heir) == ["2", "3"]
    assert waiting(Journal(tmp_path)) == []
    heir.append(rows(4))
    assert waiting(heir) == ["2", "3", "4"]


PROGRAM = """
import sys
from fugu_turbopuffer.journal import Journal
journal = Journal(sys.argv[1])
number = 0
while True:
    journal.append([{"id": str(number), "text": "x" * 300}])
    print(number, flush=True)
    if number % 7 == 0:
        entries = journal.peek(3)
        journal.acknowledge(entries[-1][0])
        print("sent", *[row["id"] for _, row in entries], flush=True)
    number += 1
"""


def test_a_killed_owner_loses_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(400)]
        other = Journal(tmp_path)
        assert waiting(other) == []  # it has an owner
        other.close()
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
    whole = [line.split() for line in lines if line.endswith("\n")]
    added = {words[0] for words in whole if words[0] != "sent"}
    sent = {word for words in whole if words[0] == "sent" for word in words[1:]}
    assert len(added) > 300
    heir = Journal(tmp_path)
    found = set()
    while entries := heir.peek(100):
        found |= {row["id"] for _, row in entries}
        heir.acknowledge(entries[-1][0])
    assert added - sent <= found
    # It may have added or sent one more than it could say.
    assert len(found - (added - sent)) <= 4
    heir.close()
    assert list(tmp_path.iterdir()) == []


def test_a_broken_file_does_not_stop_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path)
    journal.append(rows(1))
    journal.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"nonsense " * 1000)
    heir = Journal(tmp_path)
    assert waiting(heir) == []
    assert f"{path} is broken and left alone" in caplog.text
    heir.append(rows(2))
    assert waiting(heir) == ["2"]


def test_a_file_that_its_owner_is_about_to_fill_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "1-a.sqlite").touch()
    journal = Journal(tmp_path)
    journal.append(rows(1))
    assert waiting(journal) == ["1"]
    assert (tmp_path / "1-a.sqlite").exists()


def test_the_rows_of_many_owners_are_taken_over_in_order(tmp_path: Path) -> None:
    owners = [Journal(tmp_path) for _ in range(3)]
    for number, owner in enumerate(owners):
        owner.append(rows(10 * number, 10 * number + 1))
    for number, owner in enumerate(owners):
        owner.close()
        os.utime(owner._path, (number, number))
    heir = Journal(tmp_path)
    assert waiting(heir) == ["0", "1", "10", "11", "20", "21"]
    assert len(list(tmp_path.glob("*.sqlite"))) == 1


def test_a_full_disk(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(rows(1))
    (pages,) = journal._base.execute("PRAGMA page_count").fetchone()
    journal._base.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFullError, match="None of these rows was stored"):
        journal.append([{"id": str(number), "text": "x" * 1000} for number in range(2, 99)])
    journal._base.execute("PRAGMA max_page_count = 1000")
    journal.append(rows(2))
    assert waiting(journal) == ["1", "2"]
    assert len(journal) == 2


def test_too_many(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_rows=3)
    journal.append(rows(1, 2, 3))
    with pytest.raises(UsageError, match="at most 3 rows that wait; 3 wait and 1 more are given"):
        journal.append(rows(4))
    journal.acknowledge(journal.peek(1)[0][0])
    journal.append(rows(4))
    assert len(journal) == 3


def test_refused_rows_are_kept_elsewhere(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(rows(1, 2))
    journal.refuse(journal.peek(1)[0], "too odd")
    assert waiting(journal) == ["2"]
    (kept,) = read_records(tmp_path / "refused.jsonl")
    assert kept == {**rows(1)[0], "refused": "too odd"}


@given(st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["send", "die"])), max_size=25))
def test_any_order_of_things(steps: list[int | str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        journal, expected, number = Journal(folder), [], 0
        for step in steps:
            if step == "send":
                entries = journal.peek(2)
                assert [row["id"] for _, row in entries] == expected[: len(entries)]
                if entries:
                    journal.acknowledge(entries[-1][0])
                    expected = expected[len(entries) :]
            elif step == "die":
                journal.close()
                journal = Journal(folder)
            else:
                numbers = range(number, number + int(step))
                journal.append(rows(*numbers))
                expected += [str(one) for one in numbers]
                number += int(step)
            assert len(journal) == len(expected)
        journal.close()
        assert os.path.isdir(folder)
