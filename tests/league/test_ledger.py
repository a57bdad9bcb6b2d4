"""The ledger: several writers, killed ones, and results that are taken back."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fugu.core.errors import UsageError
from fugu.league.ledger import Ledger, LedgerError, Rating, Tally

WRITER = """
    import sys
    from fugu.league.ledger import Ledger
    path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    for i in range(count):
        with Ledger(path) as ledger:
            mine, one, other = (ledger.player("game", who) for who in (name, "one", "other"))
            # Two rows that belong together: one without the other would be half a word.
            ledger.add({(mine, one): (1, 0, 0), (mine, other): (0, 1, 0)}, source=name, sequence=i)
    print("done")
"""


def write_in_a_process(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows(path: Path, name: str) -> list[tuple[int, int]]:
    """The sequences of what one writer wrote, and how many rows each has."""
    with sqlite3.connect(path) as base:
        query = "SELECT sequence, count(*) FROM results WHERE source = ? GROUP BY 1 ORDER BY 1"
        return base.execute(query, (name,)).fetchall()


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "league.sqlite"
    writers = [write_in_a_process(path, name, 40) for name in ("left", "right")]
    for writer in writers:
        assert writer.communicate(timeout=120)[0] == "done\n"
    for name in ("left", "right"):
        assert rows(path, name) == [(i, 2) for i in range(40)]
    with Ledger(path) as ledger:
        assert [entry.name for entry in ledger.players("game")].count("one") == 1
        assert sum(tally.games for tally in ledger.tallies("game")) == 160


def test_a_killed_writer_leaves_whole_words_and_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "league.sqlite"
    doomed = write_in_a_process(path, "doomed", 1_000_000)
    other = write_in_a_process(path, "other writer", 60)
    try:
        for _ in range(1200):
            if path.exists() and len(_rows_if_any(path, "doomed")) >= 10:
                break
            time.sleep(0.05)
        os.kill(doomed.pid, signal.SIGKILL)
        assert doomed.wait(timeout=60) == -signal.SIGKILL
        assert other.communicate(timeout=120)[0] == "done\n"
    finally:
        doomed.kill()
        other.kill()
    told = rows(path, "doomed")
    assert len(told) >= 10
    assert told == [(i, 2) for i in range(len(told))]
    assert rows(path, "other writer") == [(i, 2) for i in range(60)]
    with sqlite3.connect(path) as base:
        assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def _rows_if_any(path: Path, name: str) -> list[tuple[int, int]]:
    try:
        return rows(path, name)
    except sqlite3.OperationalError:  # it has no tables yet
        return []


def test_tallies_add_up_whoever_is_named_first() -> None:
    with Ledger(":memory:") as ledger:
        one, other = ledger.player("chess", "one"), ledger.player("chess", "other")
        ledger.player("go", "one")
        ledger.add({(one, other): (3, 2, 1)}, source="a")
        ledger.add({(other, one): (10, 0, 20)}, source="b")
        assert ledger.tallies("chess") == [Tally(one, other, 23, 2, 11)]
        assert ledger.tallies("go") == []
        assert ledger.games() == ["chess", "go"]


def test_half_a_word_is_not_written() -> None:
    with Ledger(":memory:") as ledger:
        one, other = ledger.player("chess", "one"), ledger.player("chess", "other")
        with pytest.raises(LedgerError):
            ledger.add({(one, other): (1, 0, 0), (one, one): (1, 0, 0)}, source="a")
        assert ledger.tallies("chess") == []
        with pytest.raises(LedgerError):
            ledger.add({(one, 99): (1, 0, 0)}, source="a")


def test_a_learner_keeps_its_number_until_its_snapshot() -> None:
    with Ledger(":memory:") as ledger:
        first = ledger.learner("chess", "run", era=0, step=0)
        assert ledger.learner("chess", "run", era=0, step=500) == first
        second = ledger.learner("chess", "run", era=1, step=900)
        assert second != first
        assert [entry.name for entry in ledger.players("chess")] == ["run:500", "run:900"]
        assert ledger.player("chess", "run:500") == first
        ledger.player("chess", "run:1000")  # somebody had that checkpoint play
        third = ledger.learner("chess", "run", era=2, step=1000)
        assert ledger.players("chess")[-1].number == third
        assert ledger.players("chess")[-1].name != "run:1000"


def test_what_came_after_a_checkpoint_is_taken_back() -> None:
    with Ledger(":memory:") as ledger:
        first = ledger.learner("chess", "run", 0, 100)
        second = ledger.learner("chess", "run", 1, 200)
        ledger.add({(second, first): (1, 0, 0)}, source="run", sequence=1)
        third = ledger.learner("chess", "run", 2, 300)
        ledger.add({(third, first): (5, 0, 0)}, source="run", sequence=2)
        ledger.add({(second, first): (7, 0, 0)}, source="another", sequence=9)
        ledger.rewind("run", sequence=1, era=1)
        assert [entry.number for entry in ledger.players("chess")] == [first, second]
        assert ledger.tallies("chess") == [Tally(first, second, 0, 0, 8)]


def test_ratings_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "league.sqlite"
    with Ledger(path) as ledger:
        one = ledger.player("chess", "one")
        for mean in (900.0, 1100.0):
            ledger.write_ratings({one: Rating(mean, 5.0), 77: Rating(1, 1)}, {}, {one: 3})
    with sqlite3.connect(path) as base:
        assert base.execute("SELECT * FROM ratings").fetchall() == [
            (one, 1100.0, 5.0, None, None, 3)
        ]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, whatever its name may be " * 50)
    with pytest.raises(LedgerError, match="Use another file"):
        Ledger(tmp_path / "text")
    with sqlite3.connect(tmp_path / "newer") as base:
        base.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match="schema version 99"):
        Ledger(tmp_path / "newer")
