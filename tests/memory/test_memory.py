"""Memory: what is added is found, exactly, also after changes and a save."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import UsageError
from fugu.memory import HashedNgrams, Item, Match, Memory, Where, find_memory
from fugu.memory import memory as module
from fugu.memory.search import Bm25

PROGRAMS = {
    "double": "def double(x):\n    return 2 * x",
    "square": "def square(x):\n    return x * x",
    "first": "def first(items):\n    return items[0]",
    "last": "def last(items):\n    return items[-1]",
}


def filled() -> Memory:
    memory = Memory()
    for place, (task, text) in enumerate(PROGRAMS.items()):
        memory.add(Item(text, reward=place / 4, task=task, id=task, metadata={"place": str(place)}))
    return memory


def ids(matches: list[Match]) -> list[str]:
    return [match.item.id for match in matches]


def test_what_is_asked_for_is_found() -> None:
    memory = filled()
    for task, text in PROGRAMS.items():
        (matches,) = memory.query([text])
        assert matches[0].item == memory.get(task)
        assert matches[0].score == pytest.approx(1.0)
        assert matches[0].item.metadata == {"place": matches[0].item.metadata["place"]}
        assert [match.score for match in matches] == sorted(
            [match.score for match in matches], reverse=True
        )
    assert len(memory.query(list(PROGRAMS.values()), k=9)) == 4
    assert [len(found) for found in memory.query(["x"], k=9)] == [4]
    assert Memory().query(["x", "y"]) == [[], []]
    assert memory.query([]) == []


def test_words() -> None:
    memory = filled()
    (matches,) = memory.query(["the last of the items"], by="words")
    assert ids(matches) == ["last", "first"]  # no other shares a word
    index = Bm25()
    for text in PROGRAMS.values():
        index.add(text)
    scores = index.scores("the last of the items", np.ones(4, np.bool_))
    assert [match.score for match in matches] == [scores[3], scores[2]]


def test_where() -> None:
    memory = filled()
    texts = list(PROGRAMS.values())
    for by in ("vector", "words"):
        ask: Any = lambda where, by=by: memory.query(texts, 9, where=where, by=by)  # noqa: E731
        assert {one for found in ask(Where(task="last")) for one in ids(found)} == {"last"}
        assert "last" not in {one for found in ask(Where(not_task="last")) for one in ids(found)}
        assert ask(Where(task="unknown")) == [[]] * 4
        assert ids(ask(Where(min_reward=0.5, max_reward=0.5))[2]) == ["first"]
        each = ask([Where(task=task) for task in PROGRAMS])
        assert [ids(found) for found in each] == [[task] for task in PROGRAMS]


def test_of_equals_the_first_comes_first() -> None:
    memory = Memory()
    memory.add([Item("the same", task=str(number)) for number in range(50)])
    for by in ("vector", "words"):
        (matches,) = memory.query(["the same"], k=5, by=by)  # type: ignore[arg-type]
        assert [match.item.task for match in matches] == ["0", "1", "2", "3", "4"]


def test_the_same_text_for_the_same_task_is_one_item() -> None:
    memory = Memory()
    memory.add(Item("a = 1", reward=0.0, task="t"))
    memory.add([Item("a = 1", reward=0.5, task="t"), Item("a = 1", reward=1.0, task="t")])
    memory.add(Item("a = 1", reward=0.0, task="u"))
    assert [(item.task, item.reward) for item in memory] == [("t", 1.0), ("u", 0.0)]


def test_vectors_that_are_given() -> None:
    memory = Memory(None, dimensions=2, metric="dot")
    memory.add([Item("a", vector=[1, 0]), Item("b", vector=np.array([0, 3.0])), Item("c")])
    (matches,) = memory.query(vectors=[[1.0, 1.0]])
    assert [(match.item.text, match.score) for match in matches] == [("b", 3.0), ("a", 1.0)]
    with pytest.raises(UsageError, match="no embedder"):
        memory.query(["a"])
    assert memory.query(["c"], by="words")[0][0].item.text == "c"
    vector = memory.get(matches[0].item.id).vector
    assert vector is not None
    assert vector.tolist() == [0.0, 3.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.query("text"), "got one text"),
        (lambda m: m.query(["a"], k=0), "k=0"),
        (lambda m: m.query(["a"], by="sound"), "'sound'"),
        (lambda m: m.query(["a"], where=[]), "one for each of 1 queries; got 0"),
        (lambda m: m.query(vectors=[[1.0]]), r"shape \(256,\); got \(1,\)"),
        (lambda m: m.query(vectors=[[math.nan] * 256]), "got nan"),
        (lambda m: m.query(vectors=[[1e300] * 256]), "got inf"),
        (lambda m: m.query(vectors=[[0.0] * 256], by="words"), "by='words'; got vectors"),
        (lambda m: m.add("text"), "got a str"),
        (lambda m: m.add(Item("a", vector=["x"])), "expected 256 numbers"),
        (lambda m: m.remove("nobody"), "'nobody'"),
        (lambda m: m.get("nobody"), "'nobody'"),
        (lambda m: Item("a", reward=math.nan), "finite number; got nan"),
        (lambda m: Item("a", reward="1"), "reward: expected a finite number; got '1'"),
        (lambda m: Item("a", id="x" * 65), "at most 64 bytes"),
        (lambda m: Item(3), "expected a text; got a int"),
        (lambda m: Item("\ud800"), "lone surrogates"),
        (lambda m: Item("a", metadata={"n": 3}), "metadata: expected a text; got a int"),
        (lambda m: Memory(metric="miles"), "'miles'"),
        (lambda m: Memory(dimensions=3), "hashed-ngrams-256 has; got 3"),
        (lambda m: Memory(None, dimensions=-1), "got -1"),
    ],
)
def test_what_is_refused(call: Any, message: str) -> None:
    memory = filled()
    with pytest.raises(UsageError, match=message):
        call(memory)
    assert len(memory) == 4


def test_an_add_of_which_one_is_refused_adds_none() -> None:
    memory = Memory(None, dimensions=2)
    with pytest.raises(UsageError):
        memory.add([Item("a", vector=[1, 2]), Item("b", vector=[1, 2, 3])])
    assert len(memory) == 0


# ------------------------------------------------------------------ changes

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove"]),
        st.integers(0, 9),  # which id
        st.text("ab cd", max_size=8),
        st.sampled_from(["t", "u"]),
        st.sampled_from([0.0, 1.0]),
    ),
    max_size=40,
)


def rebuilt(memory: Memory) -> Memory:
    fresh = Memory(HashedNgrams(8))
    fresh.add(list(memory))
    return fresh


@given(STEPS, st.text("ab cd", max_size=8))
def test_after_changes_it_is_as_if_filled_anew(steps: list[Any], query: str) -> None:
    memory = Memory(HashedNgrams(8))
    model: dict[str, Item] = {}
    for place, (what, number, text, task, reward) in enumerate(steps):
        name = f"id{number}"
        if what == "add":
            model.pop(name, None)
            model[name] = Item(text, reward=reward, task=task, id=name)
            memory.add(model[name])
        elif name in model:
            del model[name]
            memory.remove(name)
        if place == len(steps) // 2:
            memory.query([query], by="words")  # from here on its index grows
    assert list(memory) == list(model.values())
    for by in ("vector", "words"):
        for where in (Where(), Where(task="t"), Where(not_task="t", min_reward=0.5)):
            ask: dict[str, Any] = {"k": 3, "by": by, "where": where}
            assert memory.query([query], **ask) == rebuilt(memory).query([query], **ask)


def test_rows_that_are_replaced_take_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPARE", 20)
    memory = Memory(HashedNgrams(8))
    for number in range(300):
        memory.add(Item(f"text {number}", id=f"id{number % 10}"))
        memory.query(["text"], by="words")
    assert len(memory._items) <= 10 + 20 + 1
    assert [item.text for item in memory] == [f"text {number}" for number in range(290, 300)]
    assert memory.query(["text 295"], k=1)[0][0].item.id == "id5"


# ------------------------------------------------------------------ saving


@given(STEPS)
def test_saved_and_loaded(steps: list[Any]) -> None:
    memory = Memory(HashedNgrams(8), metric="dot")
    for _, number, text, task, reward in steps:
        memory.add(Item(text, reward=reward, task=task, id=f"id{number}", metadata={"é": "\n"}))
    loaded = Memory.from_state(memory.state())
    assert list(loaded) == list(memory)
    assert loaded.metric == "dot"
    for by in ("vector", "words"):
        found = [m.query(["ab", "cd"], k=5, by=by) for m in (memory, loaded)]  # type: ignore[arg-type]
        assert found[0] == found[1]
    states = memory.state(), loaded.state()
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_a_file(tmp_path: Path) -> None:
    path = filled().save(tmp_path / "folder" / "memory.npz")
    assert [one.name for one in path.parent.iterdir()] == ["memory.npz"]
    assert list(Memory.load(path)) == list(filled())
    Memory().save(path)
    assert len(Memory.load(path)) == 0
    assert Memory.load(Memory(None).save(path)).embedder is None


def test_a_broken_file_is_told(tmp_path: Path) -> None:
    path = filled().save(tmp_path / "memory.npz")
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(UsageError, match=r"memory\.npz is not a saved memory or broken"):
            Memory.load(path)
    with zipfile.ZipFile(tmp_path / "whole.npz", "w") as file:
        file.writestr("notes.txt", "no memory")
    place = whole.index(b"vectors.npy") + 400
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    for broken in (path, tmp_path / "whole.npz"):
        with pytest.raises(UsageError, match="is not a saved memory or broken"):
            Memory.load(broken)
    with pytest.raises(UsageError, match="a file that exists"):
        Memory.load(tmp_path / "nothing.npz")


def test_a_file_that_would_unpack_to_very_much_is_refused(tmp_path: Path) -> None:
    """Two megabytes that are said to hold two gigabytes."""
    path, state = tmp_path / "memory.npz", filled().state()
    state["vectors"] = np.zeros((2**15, 2**13), np.float32)
    np.savez_compressed(path, **state)  # type: ignore[arg-type]
    tracemalloc.start()
    with pytest.raises(
        UsageError, match=r"memory\.npz is not a saved memory.*expected arrays of at most"
    ):
        Memory.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def document(**changes: Any) -> bytes:
    about = json.loads(filled().state()["document"].tobytes())
    return json.dumps(about | changes).encode()


@pytest.mark.parametrize(
    "text",
    [b"[" * 100_000, b"[]", b"null", b"{", document(dimensions=10**9), document(dimensions="x"),
     document(items=[7] * 3), document(items=None), document(items=[{"other": 1}] * 3),
     document(items=[{"text": "a", "id": "twice"}] * 4)],
)  # fmt: skip
def test_a_document_that_no_memory_wrote_is_refused(tmp_path: Path, text: bytes) -> None:
    state = filled().state() | {"document": np.frombuffer(text, np.uint8)}
    np.savez(tmp_path / "memory.npz", **state)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="memory"):
        Memory.load(tmp_path / "memory.npz")


def test_vectors_of_very_many_numbers_are_refused(tmp_path: Path) -> None:
    """No vector is there, so the file is small; the first one added would take gigabytes."""
    state = Memory(None).state() | {"vectors": np.zeros((0, 10**9), np.float32)}
    about = json.loads(state["document"].tobytes()) | {"dimensions": 10**9}
    state["document"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(tmp_path / "memory.npz", **state)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="dimensions: expected at least 0 and at most"):
        Memory.load(tmp_path / "memory.npz")


def test_a_save_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled().save(tmp_path / "memory.npz")

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="full"):
        Memory().save(path)
    assert list(Memory.load(path)) == list(filled())
    assert [one.name for one in tmp_path.iterdir()] == ["memory.npz"]


def test_another_embedder_or_schema_is_refused(tmp_path: Path) -> None:
    path = filled().save(tmp_path / "memory.npz")
    with pytest.raises(UsageError, match="made with, hashed-ngrams-256; got hashed-ngrams-8"):
        Memory.load(path, HashedNgrams(8))
    state = filled().state()
    document = state["document"].tobytes().replace(b'"schema": 1', b'"schema": 9')
    with pytest.raises(UsageError, match="expected schema 1; got 9"):
        Memory.from_state({**state, "document": np.frombuffer(document, np.uint8)})


def test_a_memory_that_is_not_installed() -> None:
    with pytest.raises(UsageError, match="expected the name of an installed memory .*; got 'x'"):
        find_memory("x")


def test_importing_it_imports_nothing_heavy() -> None:
    program = (
        "import sys, fugu.memory;"
        "heavy = {'torch', 'usearch', 'tokenizers', 'safetensors', 'gymnasium'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
