"""The ledger: players, their results and their ratings in an SQLite file that many may write."""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

from fugu.core.closing import Closing
from fugu.core.errors import DiskFullError, FuguError, UsageError

SCHEMA = 1
PATIENCE = 60.0  # seconds to wait for other writers
MOST = 10**12  # games of two players, and steps
_OTHERS = bytes.fromhex("d9d505f920a163d7")  # how a journal ends that names another file
ROOM = 1 << 16  # bytes that SQLite needs beside what it writes
TABLES = """
CREATE TABLE players (
    id INTEGER PRIMARY KEY,
    game TEXT NOT NULL,
    name TEXT NOT NULL,
    run TEXT,
    era INTEGER,
    step INTEGER,
    created REAL NOT NULL,
    UNIQUE (game, name),
    UNIQUE (game, run, era)
);
CREATE TABLE results (
    id INTEGER PRIMARY KEY,
    first INTEGER NOT NULL REFERENCES players (id) ON DELETE CASCADE,
    second INTEGER NOT NULL REFERENCES players (id) ON DELETE CASCADE,
    wins INTEGER NOT NULL CHECK (wins >= 0),
    draws INTEGER NOT NULL CHECK (draws >= 0),
    losses INTEGER NOT NULL CHECK (losses >= 0),
    source TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    time REAL NOT NULL,
    CHECK (first <> second)
);
CREATE INDEX results_by_source ON results (source, sequence);
CREATE TABLE ratings (
    player INTEGER PRIMARY KEY REFERENCES players (id) ON DELETE CASCADE,
    elo REAL NOT NULL,
    elo_deviation REAL NOT NULL,
    openskill_mu REAL,
    openskill_sigma REAL,
    games INTEGER NOT NULL
);
"""


@dataclass(frozen=True)
class Tally:
    """Games of two players, from the first one's view."""

    first: int
    second: int
    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """Number of all of them."""
        return self.wins + self.draws + self.losses


@dataclass(frozen=True)
class Rating:
    """An estimate and its standard deviation."""

    mean: float
    deviation: float

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that it is in with a probability of 95 %."""
        return self.mean - 1.96 * self.deviation, self.mean + 1.96 * self.deviation


@dataclass(frozen=True)
class Entry:
    """A player, as the ledger knows it.

    Its name is `<run>:<step>` for the checkpoint of a run at a step.
    """

    number: int
    name: str
    run: str | None
    step: int | None


class Ledger(Closing):
    """An open ledger. All that one call writes is written whole or not at all.

    Args:
        path: The file; a new one is made.

    >>> with Ledger(":memory:") as ledger:
    ...     one, other = ledger.player("chess", "one"), ledger.player("chess", "other")
    ...     ledger.add({(one, other): (2, 1, 0)}, source="a match")
    ...     ledger.tallies("chess")
    [Tally(first=1, second=2, wins=2, draws=1, losses=0)]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if self.path != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            _check_files(self.path)
        try:
            self._base = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
            self._share()
            self._set_up()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            self._tell_full(error)
            raise LedgerError(f"ledger {self.path}: {error}. Use another file.") from error

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def _share(self) -> None:
        """Let readers and a writer work at once; SQLite does not wait by itself for this."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._base.execute("PRAGMA journal_mode = WAL")
                self._base.execute("PRAGMA foreign_keys = ON")
                self._base.execute("PRAGMA trusted_schema = OFF")
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _set_up(self) -> None:
        with self._writing():
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            schema = _schema(self._base)
            if version == 0 and not schema:
                for statement in TABLES.split(";"):
                    self._base.execute(statement)
                self._base.execute(f"PRAGMA user_version = {SCHEMA}")
            elif version != SCHEMA:
                raise UsageError(
                    f"ledger {self.path}: given schema version {version}; allowed: {SCHEMA}. Use "
                    "another file, or a newer fugu."
                )
            elif schema != _own_schema():
                raise LedgerError(
                    f"ledger {self.path}: given tables of something else; allowed: those of a "
                    "league. Use another file."
                )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise LedgerError for what SQLite, or we, cannot read."""
        try:
            yield
        except (sqlite3.Error, ArithmeticError, TypeError, ValueError) as error:
            self._tell_full(error)
            raise LedgerError(
                f"ledger {self.path}: it holds what no league wrote ({error}). Use another file."
            ) from error

    def check(self) -> None:
        """Read all of it; LedgerError if it is damaged."""
        with self._reading():
            (verdict,) = self._base.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise ValueError(verdict)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Write alone among all writers; nothing is written if something is raised."""
        try:
            self._base.execute("BEGIN IMMEDIATE")
        except sqlite3.DatabaseError as error:
            self._tell_full(error)
            raise LedgerError(
                f"ledger {self.path}: {error}, for {PATIENCE:g} s. Somebody else writes all the "
                "time, or the file cannot be written."
            ) from error
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException as error:
            if self._base.in_transaction:  # SQLite itself gives up some
                with contextlib.suppress(sqlite3.Error):
                    self._base.execute("ROLLBACK")
            self._tell_full(error)
            if isinstance(error, sqlite3.Error | OverflowError | UnicodeDecodeError):
                raise LedgerError(f"ledger {self.path}: {error}. Use another file.") from error
            raise

    def _tell_full(self, error: BaseException) -> None:
        """Raise a DiskFullError where that is what SQLite means, in whatever words."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or self.path == ":memory:":
            return
        if code == sqlite3.SQLITE_FULL or disk_usage(Path(self.path).parent).free < ROOM:
            raise DiskFullError(
                f"{error} for {self.path}",
                "All that it held is safe. Free some space and begin again.",
            ) from error

    # ------------------------------------------------------------------ players

    def player(
        self, game: str, name: str, *, run: str | None = None, step: int | None = None
    ) -> int:
        """Return the number of the player of that name in a game; a new one is entered."""
        with self._writing():
            found = self._base.execute(
                "SELECT id FROM players WHERE game = ? AND name = ?", (game, name)
            ).fetchone()
            return int(found[0]) if found else self._enter(game, name, run, None, step)

    def learner(self, game: str, run: str, era: int, step: int) -> int:
        """Return the number of a run's learner before its `era`-th snapshot, named by its steps."""
        with self._writing():
            found = self._base.execute(
                "SELECT id FROM players WHERE game = ? AND run = ? AND era = ?", (game, run, era)
            ).fetchone()
            name = f"{run}:{step}"
            taken = self._base.execute(
                "SELECT id FROM players "
                "WHERE game = ? AND name = ? AND NOT (run IS ? AND era IS ?)",
                (game, name, run, era),
            ).fetchone()
            name = name if taken is None else f"{name} (on its way)"
            if found is None:
                return self._enter(game, name, run, era, step)
            self._base.execute(
                "UPDATE OR IGNORE players SET name = ?, step = ? WHERE id = ?",
                (name, step, found[0]),
            )
            return int(found[0])

    def _enter(
        self, game: str, name: str, run: str | None, era: int | None, step: int | None
    ) -> int:
        cursor = self._base.execute(
            "INSERT INTO players (game, name, run, era, step, created) VALUES (?, ?, ?, ?, ?, ?)",
            (game, name, run, era, step, time.time()),
        )
        return int(cursor.lastrowid or 0)

    def games(self) -> list[str]:
        """Return the names of all games."""
        with self._reading():
            rows = self._base.execute("SELECT DISTINCT game FROM players ORDER BY game")
            return [_text(game) for (game,) in rows]

    def players(self, game: str) -> list[Entry]:
        """Return all players of a game, in the order in which they were entered."""
        with self._reading():
            rows = self._base.execute(
                "SELECT id, name, run, step FROM players WHERE game = ? ORDER BY id", (game,)
            )
            return [
                Entry(_count(number), _text(name), run and _text(run), step and _count(step))
                for number, name, run, step in rows
            ]

    # ------------------------------------------------------------------ results

    def add(
        self,
        results: Mapping[tuple[int, int], tuple[int, int, int] | list[int]],
        *,
        source: str,
        sequence: int = 0,
    ) -> None:
        """Add wins, draws and losses of the first of each two players.

        Args:
            results: By the numbers of both players.
            source: Name of the run, or of whoever else adds them.
            sequence: Number of this addition in its source; `rewind` removes later ones.
        """
        rows = [
            (first, second, *counts, source, sequence, time.time())
            for (first, second), counts in results.items()
        ]
        with self._writing():
            self._base.executemany(
                "INSERT INTO results (first, second, wins, draws, losses, source, sequence, time) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

    def rewind(self, source: str, sequence: int, era: int) -> None:
        """Remove a run's results after its `sequence`-th addition, and learners after an era."""
        with self._writing():
            self._base.execute(
                "DELETE FROM results WHERE source = ? AND sequence > ?", (source, sequence)
            )
            self._base.execute("DELETE FROM players WHERE run = ? AND era > ?", (source, era))

    def tallies(self, game: str) -> list[Tally]:
        """Return the sums of all games of each two players, the lower number first."""
        with self._reading():
            rows = self._base.execute(
                """
                SELECT min(first, second), max(first, second),
                       sum(CASE WHEN first < second THEN wins ELSE losses END), sum(draws),
                       sum(CASE WHEN first < second THEN losses ELSE wins END)
                FROM results JOIN players ON players.id = results.first
                JOIN players AS others ON others.id = results.second
                WHERE players.game = ?1 AND others.game = ?1 AND first <> second
                GROUP BY 1, 2 ORDER BY 1, 2
                """,
                (game,),
            )
            return [Tally(*map(_count, row)) for row in rows]

    # ------------------------------------------------------------------ ratings

    def write_ratings(
        self, elo: Mapping[int, Rating], skill: Mapping[int, Rating], games: Mapping[int, int]
    ) -> None:
        """Replace the ratings of players; `skill` may lack some."""
        rows = []
        for player, rating in elo.items():
            other = skill.get(player)
            pair = (None, None) if other is None else (other.mean, other.deviation)
            rows.append((player, rating.mean, rating.deviation, *pair, games.get(player, 0)))
        with self._writing():
            self._base.executemany(
                # A player may have been taken back since its games were read.
                "INSERT OR REPLACE INTO ratings "
                "SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM players WHERE id = ?1)",
                rows,
            )


class LedgerError(FuguError, RuntimeError):
    """A ledger that cannot be read or written."""


def _check_files(path: str) -> None:
    """Raise LedgerError for what SQLite would take for its own and is not.

    It writes through links, and deletes a file that a journal says belongs to it.
    """
    for name in (path, *(f"{path}{ending}" for ending in ("-wal", "-shm", "-journal"))):
        try:
            linked = name == path and os.path.exists(path)  # somebody's own shared file
            mode = (os.stat(name) if linked else os.lstat(name)).st_mode
            fine = stat.S_ISREG(mode) and not (name != path and _names_others(name))
        except FileNotFoundError:
            continue
        if not fine:
            raise LedgerError(
                f"ledger {path}: given {name!r}, which is no ordinary file of its own; allowed: "
                "those that SQLite made. Use another file, or delete that one."
            )


def _names_others(name: str) -> bool:
    """Return whether a journal ends with the name of another file."""
    with open(name, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_OTHERS)))
        return name.endswith("-journal") and file.read() == _OTHERS


def _schema(base: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Return what a database is made of, beside SQLite's own tables."""
    rows = base.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return {
        (str(kind), str(name), str(table), " ".join(str(sql).split()))
        for kind, name, table, sql in rows
        if not str(name).startswith("sqlite_")
    }


@functools.cache
def _own_schema() -> set[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.executescript(TABLES)
        return _schema(base)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no name")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"{value!r:.40} is no count")
    return value
