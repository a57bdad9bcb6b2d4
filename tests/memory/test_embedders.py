"""Embedders: the same vectors everywhere, near for texts that are alike."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import MissingExtraError, UsageError
from fugu.memory import HashedNgrams, Memory, WordLlama
from fugu.memory.embedders import embed

MASK = (1 << 64) - 1


def slow_ngrams(text: str, dimensions: int) -> list[float]:
    """With whole numbers of Python, one run at a time."""
    plain = f" {' '.join(text.lower().split())} ".encode(errors="replace")
    counts: Counter[int] = Counter()
    for size in (3, 4, 5):
        for start in range(len(plain) - size + 1):
            value = 0
            for byte in plain[start : start + size]:
                value = (value << 9) | (byte + 1)
            value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
            counts[value ^ (value >> 31)] += 1
    vector = [0.0] * dimensions
    for value, count in counts.items():
        vector[value % dimensions] += math.sqrt(count) * (1.0 if value >> 63 else -1.0)
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector] if length else vector


@given(st.text(max_size=60), st.sampled_from([1, 7, 64]))
def test_ngrams_are_what_they_say(text: str, dimensions: int) -> None:
    (row,) = HashedNgrams(dimensions)([text])
    np.testing.assert_allclose(row, slow_ngrams(text, dimensions), atol=1e-6)


def test_texts_are_embedded_one_by_one() -> None:
    texts = ["def f(x):\n    return x", "", "ab", "print('hello')"]
    rows = HashedNgrams()(texts)
    assert rows.shape == (4, 256)
    for text, row in zip(texts, rows, strict=True):
        assert np.array_equal(HashedNgrams()([text])[0], row)
    assert HashedNgrams()([]).shape == (0, 256)
    assert not rows[1].any()


def test_case_and_white_space_do_not_count() -> None:
    one, other, third = HashedNgrams()(["Sort the  List", "sort the\nlist ", "sort the test"])
    assert np.array_equal(one, other)
    assert not np.array_equal(one, third)


def test_the_same_in_every_process() -> None:
    program = (
        "from fugu.memory import HashedNgrams; print(HashedNgrams(16)(['def f(): 1']).tolist())"
    )
    seen = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        seen.add(subprocess.check_output([sys.executable, "-c", program], env=environment))
    assert seen == {f"{HashedNgrams(16)(['def f(): 1']).tolist()}\n".encode()}


def test_a_version_of_a_program_is_nearer_than_another_program() -> None:
    texts = [
        "def total(items):\n    result = 0\n    for item in items:\n        result += item",
        "def total(values):\n    result = 0\n    for value in values:\n        result += value",
        "import re\nprint(re.findall('[a-z]+', open('notes.txt').read()))",
    ]
    one, version, other = HashedNgrams()(texts)
    assert one @ version > one @ other + 0.3


def test_an_embedder_that_breaks_its_promise_is_told() -> None:
    class Short(HashedNgrams):
        def __call__(self, texts: object) -> np.ndarray:
            return np.zeros((1, 3), np.float32)

    with pytest.raises(UsageError, match=r"shape \(2, 256\); got an array of shape \(1, 3\)"):
        embed(Short(), ["a", "b"])
    with pytest.raises(UsageError, match="dimensions: expected at least 1; got 0"):
        HashedNgrams(0)


# ------------------------------------------------------------------ wordllama


@pytest.fixture(scope="module")
def wordllama() -> WordLlama:
    pytest.importorskip("wordllama")
    return WordLlama()


def test_wordllama_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wordllama")

    def refuse(*_: object) -> None:
        raise AssertionError("it asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert WordLlama()(["hello"]).shape == (1, 256)


def test_wordllama_is_what_its_own_package_computes(wordllama: WordLlama) -> None:
    inference = pytest.importorskip("wordllama.inference")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(wordllama._tokenizer.to_str())
    theirs = inference.WordLlamaInference(wordllama._table, tokenizer=tokenizer)
    texts = ["sort a list of numbers", "def f(x): return x + 1", "ünïcode ✓", "a" * 500]
    np.testing.assert_allclose(wordllama(texts), theirs.embed(texts, norm=True), atol=1e-5)


def test_wordllama_knows_meaning(wordllama: WordLlama) -> None:
    one, alike, other = wordllama(
        ["the car is fast", "a quick automobile", "bake the bread slowly"]
    )
    assert one @ alike > one @ other + 0.1
    np.testing.assert_allclose(np.linalg.norm(one), 1.0, rtol=1e-5)
    assert not wordllama([""]).any()


def test_a_memory_of_wordllama_is_loaded_with_it(wordllama: WordLlama, tmp_path: Path) -> None:
    from fugu.memory import Item

    memory = Memory(wordllama)
    memory.add(Item("sort numbers"))
    path = memory.save(tmp_path / "memory.npz")
    with pytest.raises(UsageError, match=f"made with, {wordllama.name}; got none"):
        Memory.load(path)
    assert len(Memory.load(path, wordllama)) == 1


def test_without_the_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"fugu-rl\[memory\]"):
        WordLlama()


def test_a_package_without_its_table_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wordllama").mkdir()
    (tmp_path / "wordllama" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"expected one file \*\.safetensors"):
        WordLlama()
