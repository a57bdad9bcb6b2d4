"""A ledger for which there is no room: it says so, and keeps what it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fugu.core.errors import DiskFullError
from fugu.league.ledger import Ledger


def test_a_ledger_without_room_keeps_what_it_has(tmp_path: Path) -> None:
    with Ledger(tmp_path / "league.sqlite") as ledger:
        pair = ledger.player("game", "one"), ledger.player("game", "other")
        ledger.add({pair: (1, 2, 3)}, source="match")
        before = ledger.tallies("game"), ledger.players("game")
        (pages,) = ledger._base.execute("PRAGMA page_count").fetchone()
        ledger._base.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DiskFullError, match=r"the disk is full: .*league.sqlite\. All that"):
            ledger.player("game", "long" * 10_000)
        assert (ledger.tallies("game"), ledger.players("game")) == before
        ledger._base.execute("PRAGMA max_page_count = 1000")
        assert ledger.player("game", "long" * 10_000) > pair[1]
