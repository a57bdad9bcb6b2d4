"""Hostile databases of a league."""

from __future__ import annotations

import sqlite3
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from fugu.cli.rank import Rank
from fugu.league import ratings as standings
from fugu.league.ledger import Ledger
from fuzzing import mutations
from fuzzing.arena import Arena, Odd
from fuzzing.runner import Input

USES = ("rank",) * 75 + ("table",) * 5 + ("write",) * 20
NAME = "league.sqlite"
SCHEMES = (
    "CREATE VIEW extra AS SELECT 1",
    "DROP TABLE results",
    "DROP TABLE ratings",
    "ALTER TABLE players RENAME TO others",
    "ALTER TABLE results ADD COLUMN more TEXT",
    "CREATE TRIGGER evil AFTER INSERT ON ratings BEGIN DELETE FROM players; END",
    "CREATE TRIGGER evil BEFORE INSERT ON results BEGIN SELECT RAISE(FAIL, 'x'); END",
    "ALTER TABLE players RENAME TO p; CREATE VIEW players AS WITH RECURSIVE n(i) AS (SELECT 1 "
    "UNION ALL SELECT i + 1 FROM n) SELECT i AS id, 'chess' AS game, i AS name, NULL AS run, "
    "NULL AS era, NULL AS step, 0 AS created FROM n",
    "ALTER TABLE results RENAME TO r; CREATE VIEW results AS SELECT randomblob(1000000000) AS "
    "first, 2 AS second, 1 AS wins, 0 AS draws, 0 AS losses, 'x' AS source, 0 AS sequence FROM r",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = -1",
    "PRAGMA encoding = 'UTF-16'",
)
VALUES = (
    "NULL", "-1", "0", "1e300", "9e999", "9223372036854775807", "-9223372036854775808", "'x'", "''",
    "x'00ff'", "zeroblob(100000)", "'9223372036854775808'", "CAST(x'ff' AS TEXT)", "'[/bold]'",
    "'[bold'", "char(27) || '[2J'", "'a' || char(0) || 'b'", "printf('%.*c', 30000, 'x')", "1.5",
)  # fmt: skip
COLUMNS = {
    "players": ("id", "game", "name", "run", "era", "step", "created"),
    "results": ("first", "second", "wins", "draws", "losses", "source", "sequence", "time"),
    "ratings": ("player", "elo", "elo_deviation", "openskill_mu", "games"),
}


class Ledgers:
    """Three players of one game and two of another."""

    name = "league"

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / NAME
            with Ledger(path) as ledger:
                one, two, three = (ledger.player("chess", name) for name in ("a", "b", "run:100"))
                ledger.learner("go", "run", 1, 100)
                four, five = ledger.player("go", "x"), ledger.player("go", "y")
                ledger.add({(one, two): (2, 1, 0), (three, two): (0, 1, 5)}, source="a match")
                ledger.add({(four, five): (1, 1, 1)}, source="run", sequence=2)
                standings.rate(ledger, "chess")
            self.file = path.read_bytes()
            base = sqlite3.connect(path)
            base.execute("PRAGMA journal_mode = DELETE")
            base.close()
            self.plain = path.read_bytes()
            self.shaped = [_edited(path, self.plain, change) for change in SCHEMES]

    def make(self, random: Random, arena: Arena) -> Input:
        """Change bytes, rows, the schema, or what stands beside the file."""
        use, chance = random.choice(USES), random.random()
        data: bytes | Odd = self.file
        files: dict[str, bytes | Odd] = {}
        if chance < 0.5:
            data = _change(random, random.choice((self.file, self.plain)))
        elif chance < 0.85:
            return Input(use, {NAME: self.plain}, {"statements": _statements(random)})
        elif chance < 0.93:
            data = random.choice(self.shaped)
        elif chance < 0.97:
            ending = random.choice(("-wal", "-shm", "-journal"))
            beside: tuple[Callable[[], bytes | Odd], ...] = (
                lambda: mutations.odd_file(random, arena),
                lambda: random.randbytes(random.choice((0, 32, 100, 5000))),
                lambda: hot_journal(arena.outside / "secret.txt"),
                lambda: _change(random, hot_journal(arena.outside / "secret.txt")),
            )
            files[f"{NAME}{ending}"] = random.choice(beside)()
            data = random.choice((self.file, self.plain))
        elif chance < 0.98:
            data = mutations.odd_file(random, arena)
        else:
            data = random.choice((mutations.pickled(arena), b"", b"x" * 5000))
        return Input(use, {NAME: data, **files})

    def feed(self, given: Input, arena: Arena) -> None:
        """Rank the players, or write more."""
        path = arena.target / NAME
        if given.more:
            _run_statements(path, given.more["statements"])
        if given.use == "write":
            with Ledger(path) as ledger:
                one, two = ledger.player("chess", "a"), ledger.player("chess", "new")
                learner = ledger.learner("go", "run", 1, 200)
                ledger.add({(one, two): (1, 0, 0), (learner, one): [0, 0, 1]}, source="run")
                ledger.rewind("run", 1, 0)
                ledger.players("go")
        else:
            Rank(database=path, json=given.use == "rank").run()


def _run_statements(path: Path, statements: list[str]) -> None:
    """What a stranger did to the rows, as far as SQLite lets it."""
    base = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA ignore_check_constraints = ON", "PRAGMA synchronous = OFF",
                      "PRAGMA journal_mode = MEMORY", *statements):  # fmt: skip
        try:
            base.execute(statement)
        except sqlite3.Error:
            continue
    base.close()


def _statements(random: Random) -> list[str]:
    found = []
    for _ in range(random.choice((1, 1, 2, 3))):
        table = random.choice(("players", "results", "results", "ratings"))
        column, value, other = random.choice(COLUMNS[table]), *random.choices(VALUES, k=2)
        kinds = (
            f"UPDATE {table} SET {column} = {value}",
            f"UPDATE {table} SET {column} = {value} WHERE rowid > {random.randrange(5)}",
            f"DELETE FROM {table} WHERE rowid < {random.randrange(5)}",
            f"INSERT INTO results VALUES (NULL, {value}, 1, {other}, 0, 0, 'x', 0, 0)",
            f"INSERT INTO players VALUES ({value}, 'chess', 'z', 'run', 1, 1, 0)",
        )
        found.append(random.choice(kinds))
    return found


def _change(random: Random, data: bytes) -> bytes:
    """Bytes where they matter: in the header, at the beginning of pages, or anywhere."""
    match random.randrange(3):
        case 0:
            head = mutations.mutate_bytes(random, data[:100])
            return head + data[100:]
        case 1:
            page = random.randrange(max(1, len(data) // 4096)) * 4096
            start = page + random.choice((0, 100 if not page else 0))
            part = mutations.mutate_bytes(random, data[start : start + 48])
            return data[:start] + part + data[start + 48 :]
    return mutations.mutate_bytes(random, data)


def hot_journal(name: Path) -> bytes:
    """A journal that says of another file that it belongs to it, which SQLite then deletes."""
    magic, text = bytes.fromhex("d9d505f920a163d7"), str(name).encode()
    header = magic + struct.pack(">IIIII", 0, 1, 1, 512, 4096)
    lock_page = (1 << 30) // 4096 + 1
    tail = struct.pack(">I", lock_page) + text
    tail += struct.pack(">II", len(text), sum(text)) + magic
    return header.ljust(512, b"\0") + tail


def _edited(path: Path, data: bytes, statements: str) -> bytes:
    path.write_bytes(data)
    base = sqlite3.connect(path)
    base.executescript(statements)
    base.close()
    return path.read_bytes()
