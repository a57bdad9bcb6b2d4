"""Embedders: texts as vectors, which are near each other where the texts are alike."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.memory.items import Floats

Hashes = NDArray[np.uint64]


class Embedder(Protocol):
    """A function from texts to vectors that gives the same vectors in every process."""

    @property
    def name(self) -> str:
        """The name that a saved memory is checked against: equal names embed alike."""
        raise NotImplementedError("name -> str")

    @property
    def dimensions(self) -> int:
        """The size of a vector."""
        raise NotImplementedError("dimensions -> int")

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text; zeros for a text with nothing to embed."""
        raise NotImplementedError("__call__(texts) -> float32 [texts, dimensions]")


def embed(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """Return the embedder's vectors [texts, dimensions]; UsageError if it returns others."""
    vectors = np.asarray(embedder(texts), np.float32)
    if vectors.shape != (len(texts), embedder.dimensions) or not np.isfinite(vectors).all():
        raise UsageError(
            f"embedder {embedder.name}: expected finite numbers of shape "
            f"({len(texts)}, {embedder.dimensions}); got an array of shape {vectors.shape}."
        )
    return vectors


class _HashEmbedder:
    """Counts of hashes, added up with signs in the dimensions of a vector."""

    kind: ClassVar[str]

    def __init__(self, dimensions: int = 256) -> None:
        if dimensions < 1:
            raise UsageError(f"dimensions: expected at least 1; got {dimensions}.")
        self.dimensions = dimensions
        self.name = f"{self.kind}-{dimensions}"

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text; zeros for a text without hashes."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            found = np.concatenate([np.zeros(0, np.uint64), *self._hashes(text)])
            hashes, counts = np.unique(found, return_counts=True)
            signs = np.where(hashes >> np.uint64(63), 1.0, -1.0)
            places = (hashes % np.uint64(self.dimensions)).astype(np.int64)
            summed = np.bincount(places, signs * np.sqrt(counts), self.dimensions)
            length = np.sqrt((summed * summed).sum())
            if length > 0:
                vector[:] = summed / length
        return vectors

    def _hashes(self, text: str) -> Iterator[Hashes]:
        raise NotImplementedError("_hashes(text) -> Iterator[uint64 arrays]")


class HashedNgrams(_HashEmbedder):
    """Runs of 3 to 5 bytes of a text, hashed and counted.

    It needs no other package and no training, and finds texts with similar spelling: versions of a
    program, problems with similar words. Upper and lower case count the same, as does any white
    space.
    """

    kind = "hashed-ngrams"

    def _hashes(self, text: str) -> Iterator[Hashes]:
        plain = f" {' '.join(text.lower().split())} ".encode(errors="replace")
        codes = np.frombuffer(plain, np.uint8).astype(np.uint64) + np.uint64(1)
        for size in range(3, min(5, len(codes)) + 1):
            value = np.zeros(len(codes) - size + 1, np.uint64)
            for offset in range(size):  # 9 bits for each byte: no two runs collide here
                value = (value << np.uint64(9)) | codes[offset : offset + len(value)]
            yield _mix(value)


class TokenRuns(_HashEmbedder):
    """Runs of 1 to 4 words, which are whole numbers such as tokens, hashed and counted."""

    kind = "token-runs"

    def _hashes(self, text: str) -> Iterator[Hashes]:
        try:
            codes = np.array([int(word) for word in text.split()], np.uint64) + np.uint64(1)
        except (ValueError, OverflowError):
            raise UsageError(
                f"text: expected whole numbers separated by spaces; got {text!r}."
            ) from None
        value = np.zeros(len(codes), np.uint64)
        for size in range(1, min(4, len(codes)) + 1):
            value = _mix(value[: len(codes) - size + 1] + codes[size - 1 :])
            yield value


def _mix(value: Hashes) -> Hashes:
    """Spread each number over all 64 bits (the finalizer of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = value ^ (value >> np.uint64(31))
    return mixed


class WordLlama:
    """The mean of the word vectors of the package `wordllama`: near for texts of similar meaning.

    It reads the files that the package contains and uses no network.
    """

    def __init__(self) -> None:
        spec = importlib.util.find_spec("wordllama")  # not imported: it configures logging
        if spec is None or not spec.submodule_search_locations:
            raise MissingExtraError("wordllama", "memory")
        package = Path(next(iter(spec.submodule_search_locations)))
        weights = _only_file(package / "weights", "*.safetensors")
        vocabulary = _only_file(package / "tokenizers", "*.json")
        tables: Any = importlib.import_module("safetensors.numpy").load_file(weights)
        if len(tables) != 1:
            raise UsageError(f"{weights}: expected one table; got {len(tables)}.")
        self._table: Floats = next(iter(tables.values())).astype(np.float32)  # [tokens, dimensions]
        tokenizers: Any = importlib.import_module("tokenizers")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(vocabulary))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.dimensions = int(self._table.shape[1])
        self.name = f"{weights.stem}-{len(self._table)}"

    def __call__(self, texts: Sequence[str]) -> Floats:
        """Return a vector of length 1 for each text; zeros for a text without tokens."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for vector, tokens in zip(vectors, encoded, strict=True):
            if tokens.ids:
                mean = self._table[tokens.ids].mean(axis=0, dtype=np.float64)
                vector[:] = mean / max(float(np.sqrt((mean * mean).sum())), 1e-30)
        return vectors


def _only_file(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UsageError(
            f"wordllama: expected one file {pattern} in {folder}; got {len(found)}. "
            "Install a version of the package that contains its table."
        )
    return found[0]
