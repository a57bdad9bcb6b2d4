"""The Turbopuffer adapter: its real client, against a server on loopback that fails as told."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from turbopuffer_server import TOGETHER, Service

import fugu_turbopuffer.journal as module
from fugu.core.errors import UsageError
from fugu.core.records import read_records
from fugu.memory import HashedNgrams, Item, Match, Memory, Where, find_memory
from fugu_turbopuffer import (
    RetrievalError,
    TurbopufferMemory,
    TurbopufferSettings,
    run_within,
)

pytest.importorskip("turbopuffer")

LONG = 60.0  # seconds; nothing here takes nearly as long unless it hangs
PROGRAMS = [f"def f{number}(x):\n    return x {'+-*'[number % 3]} {number}" for number in range(40)]


def settings(service: Service, folder: Path, **more: Any) -> TurbopufferSettings:
    given: dict[str, Any] = {
        "namespace": "programs",
        "journal": folder / "journal",
        "base_url": service.url,
        "api_key": "a-key",
        "timeout": 5.0,
        "batch_seconds": 0.001,
        **more,
    }
    return TurbopufferSettings(**given)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.01)


def items(count: int = 40) -> list[Item]:
    return [
        Item(
            text, reward=place / 40, task=f"task{place % 5}", id=f"row{place}", metadata={"é": "ü"}
        )
        for place, text in enumerate(PROGRAMS[:count])
    ]


def alike(found: list[list[Match]], wanted: list[list[Match]]) -> None:
    assert [[m.item for m in one] for one in found] == [[m.item for m in one] for one in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert [m.score for m in one] == pytest.approx([m.score for m in other], abs=1e-5)


# ------------------------------------------------------------------ when all is well


def test_it_is_found_by_its_entry_point() -> None:
    assert find_memory("turbopuffer") is TurbopufferMemory


def test_it_finds_what_a_local_memory_finds(service: Service, tmp_path: Path) -> None:
    local = Memory()
    local.add(items())
    with TurbopufferMemory(settings(service, tmp_path)) as memory:
        memory.add(items())
        assert memory.flush(LONG)
        texts = PROGRAMS[:3]
        wheres = [Where(task="task1"), Where(not_task="task2", min_reward=0.3, max_reward=0.8)]
        for by in ("vector", "words"):
            for where in (Where(), *wheres, [Where(), *wheres]):
                ask: Any = {"where": where, "by": by, "k": 3}
                alike(memory.query(texts, **ask), local.query(texts, **ask))
        assert memory.query([]) == []
    assert service.keys == {"Bearer a-key"}


def test_writes_go_in_batches(service: Service, tmp_path: Path) -> None:
    with TurbopufferMemory(
        settings(service, tmp_path, batch_rows=16, batch_seconds=LONG)
    ) as memory:
        for item in items():
            memory.add(item)
        assert memory.flush(LONG)
    assert len(service.ids()) == 40
    assert max(service.writes) <= 16
    assert len(service.writes) <= 5


def test_a_chunk_is_one_request_as_far_as_the_service_allows(
    service: Service, tmp_path: Path
) -> None:
    with TurbopufferMemory(settings(service, tmp_path)) as memory:
        memory.add(items())
        assert memory.flush(LONG)
        same = memory.query([PROGRAMS[0]] * 1000 + PROGRAMS[1:TOGETHER])
        assert service.queries == [TOGETHER]
        assert len(same) == 1000 + TOGETHER - 1
        assert same[0] == same[999]
        assert same[1000][0].item.text == PROGRAMS[1]
        service.queries.clear()
        many = memory.query(PROGRAMS, k=1)
        assert sorted(service.queries) == [8, 16, 16]
        assert [found[0].item.text for found in many] == PROGRAMS


def test_an_item_is_replaced(service: Service, tmp_path: Path) -> None:
    with TurbopufferMemory(settings(service, tmp_path)) as memory:
        memory.add([Item("a", id="x", reward=float(number)) for number in range(5)])
        assert memory.flush(LONG)
        ((match,),) = memory.query(["a"], by="words")
    assert match.item.reward == 4.0


def test_vectors_that_are_given(service: Service, tmp_path: Path) -> None:
    vector = HashedNgrams()(["elsewhere"])[0]
    with TurbopufferMemory(settings(service, tmp_path)) as memory:
        memory.add([Item("here", id="here"), Item("odd", id="odd", vector=vector)])
        assert memory.flush(LONG)
        assert memory.query(["elsewhere"], k=1)[0][0].item.id == "odd"
        with pytest.raises(UsageError, match=r"got \(2,\)"):
            memory.add(Item("bad", vector=[1.0, 2.0]))


def test_a_missing_namespace_is_empty(service: Service, tmp_path: Path) -> None:
    with TurbopufferMemory(settings(service, tmp_path)) as memory:
        assert memory.query(["a", "b"]) == [[], []]
    assert service.requests == 1  # it was not tried again


# ------------------------------------------------------------------ when writes fail


@pytest.mark.parametrize("fault", [500, 503, 429, 408, 401, "drop", "garbage", "half"])
def test_nothing_is_lost(service: Service, tmp_path: Path, fault: int | str) -> None:
    service.faults.extend([fault] * 3)
    with TurbopufferMemory(settings(service, tmp_path, batch_rows=8)) as memory:
        memory.add(items())
        assert memory.flush(LONG)
        assert not service.faults
        report = memory.close(LONG)
    assert service.ids() == {item.id for item in items()}
    assert (report.sent, report.unsent, report.refused, report.problem) == (40, 0, 0, "")
    assert list((tmp_path / "journal").iterdir()) == []


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_an_answer_that_does_not_come(service: Service, tmp_path: Path, fault: str) -> None:
    service.faults.extend([fault] * 2)
    with TurbopufferMemory(settings(service, tmp_path, timeout=0.3)) as memory:
        memory.add(items())
        assert memory.flush(LONG)
    assert service.ids() == {item.id for item in items()}


def test_adding_does_not_wait_for_the_service(service: Service, tmp_path: Path) -> None:
    service.broken = "hang"
    memory = TurbopufferMemory(settings(service, tmp_path, timeout=LONG))
    memory.add(items())
    assert memory.report.unsent == 40
    assert not memory.flush(0.05)
    report = memory.close(0.05)
    assert (report.sent, report.unsent) == (0, 40)
    assert report.journal == tmp_path / "journal"


def test_what_was_not_sent_is_sent_by_the_next_one(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.broken = 500
    memory = TurbopufferMemory(settings(service, tmp_path))
    memory.add(items())
    report = memory.close(0.2)
    assert (report.sent, report.unsent) == (0, 40)
    assert "InternalServerError" in report.problem
    assert "40 rows were not sent" in caplog.text
    assert memory.close() == report
    with pytest.raises(UsageError, match="closed"):
        memory.add(items())
    service.broken = None
    with TurbopufferMemory(settings(service, tmp_path)) as heir:
        assert heir.flush(LONG)
    assert service.ids() == {item.id for item in items()}


PROGRAM = """
import sys
from pathlib import Path
from fugu.memory import Item
from fugu_turbopuffer import TurbopufferMemory, TurbopufferSettings

url, folder = sys.argv[1:]
memory = TurbopufferMemory(
    TurbopufferSettings("programs", Path(folder) / "journal", base_url=url, api_key="a-key",
                        batch_rows=8, batch_seconds=0.01)
)
for number in range(10**9):
    memory.add(Item(f"program {number}", id=f"row{number}"))
    print(number, flush=True)
"""


def test_a_killed_process_loses_nothing(service: Service, tmp_path: Path) -> None:
    """Rows reach the service all the while; the next process sends those that had not."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, service.url, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(500)]
        service.broken = 503
        lines += [process.stdout.readline() for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
    added = {f"row{line.strip()}" for line in lines if line.endswith("\n")}
    assert added - service.ids(), "all was sent before the kill: this shows nothing"
    service.broken = None
    with TurbopufferMemory(settings(service, tmp_path)) as heir:
        assert heir.flush(LONG)
    assert added <= service.ids()
    assert len(service.ids() - added) <= 1


def test_a_row_that_is_refused_holds_up_no_other(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.faults.append(500)
    with TurbopufferMemory(settings(service, tmp_path, batch_rows=16)) as memory:
        memory.add([*items(7), Item("bad", id="poison1"), *items()[7:], Item("bad", id="poison2")])
        assert memory.flush(LONG)
        report = memory.close(LONG)
    assert service.ids() == {item.id for item in items()}
    assert (report.sent, report.unsent, report.refused) == (40, 0, 2)
    kept = list(read_records(tmp_path / "journal" / "refused.jsonl"))
    assert [row["id"] for row in kept] == ["poison1", "poison2"]
    assert "bad rows" in kept[0]["refused"]
    assert "row poison1 was refused" in caplog.text


def test_too_many_unsent_rows_are_told(service: Service, tmp_path: Path) -> None:
    service.broken = 500
    memory = TurbopufferMemory(settings(service, tmp_path, max_unsent=10))
    memory.add(items(10))
    with pytest.raises(UsageError, match="at most 10 rows that wait; 10 wait and 1 more are given"):
        memory.add(items(1))
    memory.close(0)


def test_two_memories_share_a_journal(service: Service, tmp_path: Path) -> None:
    with (
        TurbopufferMemory(settings(service, tmp_path)) as one,
        TurbopufferMemory(settings(service, tmp_path)) as other,
    ):
        threads = [
            threading.Thread(target=memory.add, args=(part,))
            for part in (items()[:20], items()[20:])
            for memory in (one, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert one.flush(LONG)
        assert other.flush(LONG)
    assert service.ids() == {item.id for item in items()}


# ------------------------------------------------------------------ when queries fail


@pytest.mark.parametrize("fault", [500, 429, "drop", "garbage", "half"])
def test_a_query_is_tried_again(service: Service, tmp_path: Path, fault: int | str) -> None:
    with TurbopufferMemory(settings(service, tmp_path, attempts=4)) as memory:
        memory.add(items())
        assert memory.flush(LONG)
        service.faults.extend([fault] * 3)
        found = memory.query(PROGRAMS[:2], k=1)
        assert [one[0].item.text for one in found] == PROGRAMS[:2]
        service.faults.extend([fault] * 4)
        with pytest.raises(RetrievalError, match="turbopuffer: "):
            memory.query(PROGRAMS[:2], k=1)
        assert not service.faults


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_a_query_that_is_not_answered_ends(service: Service, tmp_path: Path, fault: str) -> None:
    with TurbopufferMemory(settings(service, tmp_path, timeout=0.2, query_seconds=0.3)) as memory:
        service.broken = fault
        with pytest.raises(RetrievalError):
            memory.query(["a"])


def test_a_wrong_key_is_not_tried_again(service: Service, tmp_path: Path) -> None:
    with TurbopufferMemory(settings(service, tmp_path)) as memory:
        service.broken = 401
        with pytest.raises(RetrievalError, match="AuthenticationError"):
            memory.query(["a"])
        assert service.requests == 1


def test_a_run_may_go_on_without_answers(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.broken = 500
    with TurbopufferMemory(settings(service, tmp_path, unanswered="empty")) as memory:
        assert memory.query(["a", "b"]) == [[], []]
    assert "2 queries found nothing" in caplog.text


def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    with Service() as gone:
        pass
    memory = TurbopufferMemory(settings(gone, tmp_path))
    memory.add(items(3))
    with pytest.raises(RetrievalError, match="Is the service there"):
        memory.query(["a"])
    assert memory.close(0.1).unsent == 3


# ------------------------------------------------------------------ the rest


def test_another_process_gets_its_own(service: Service, tmp_path: Path) -> None:
    with (
        TurbopufferMemory(settings(service, tmp_path)) as memory,
        pickle.loads(pickle.dumps(memory)) as other,
    ):
        assert other.settings == memory.settings
        other.add(items(1))
        assert other.flush(LONG)
        assert memory.query([PROGRAMS[0]], k=1)[0][0].item == items(1)[0]
    assert "a-key" not in repr(memory.settings)


def test_what_is_refused(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="batch_rows: expected more than 0; got 0"):
        settings(service, tmp_path, batch_rows=0)
    with pytest.raises(UsageError, match="'raise', 'empty'; got 'shrug'"):
        settings(service, tmp_path, unanswered="shrug")
    monkeypatch.delenv("TURBOPUFFER_API_KEY", raising=False)
    with pytest.raises(UsageError, match="api_key"):
        TurbopufferMemory(settings(service, tmp_path, api_key=None))


def test_calls_with_a_deadline() -> None:
    assert run_within(LONG, [lambda place=place: place * place for place in range(50)], 4) == [
        place * place for place in range(50)
    ]
    never = threading.Event()
    with pytest.raises(TimeoutError):
        run_within(0.01, [never.wait] * 10, 2)
    never.set()
    with pytest.raises(ZeroDivisionError):
        run_within(LONG, [lambda: 1 // 0, never.wait])
