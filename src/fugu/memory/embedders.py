"""Embedders: texts as vectors, near each other where the texts are alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.memory.items import Floats

Hashes = NDArray[np.uint64]


class Embedder(Protocol):
    """Texts to vectors; the same text gives the same vector in every process."""

    @property
    def name(self) -> str:
        """What a saved memory is checked against: two of the same name embed alike."""
        raise NotImplementedError("name -> str")

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        raise NotImplementedError("dimensions -> int")

    def __call__(self, texts: Sequence[str]) -> Floats:
        """One row for each text, of length 1, or of zeros if there is nothing in it."""
        raise NotImplementedError("__call__(texts) -> float32 [texts, dimensions]")


class _Hashing:
    """Vectors of counted hashes.

    Args:
        dimensions: Numbers in a vector.
    """

    kind: ClassVar[str]

    def __init__(self, dimensions: int = 256) -> None:
        if dimensions < 1:
            raise UsageError(f"dimensions: given {dimensions}; allowed: 1 or more.")
        self.dimensions = dimensions
        self.name = f"{self.kind}-{dimensions}"


class HashedNgrams(_Hashing):
    """Runs of 3 to 5 bytes of a text, counted and hashed into the places of a vector.

    It needs nothing, learns nothing, and finds texts that share spelling: other versions of a
    program, problems worded alike. Letters count alike in both cases, as does any white space.

    Args:
        dimensions: Numbers in a vector.
    """

    kind = "hashed-ngrams"

    def __call__(self, texts: Sequence[str]) -> Floats:
        """One row of length 1 for each text; zeros for one without three bytes."""
        return _count(map(_hash_runs, texts), len(texts), self.dimensions)


class TokenRuns(_Hashing):
    """Runs of 1 to 4 words of a text that are whole numbers, such as tokens; counted and hashed.

    Args:
        dimensions: Numbers in a vector.
    """

    kind = "token-runs"

    def __call__(self, texts: Sequence[str]) -> Floats:
        """One row of length 1 for each text; zeros for one without words."""
        return _count(map(_hash_numbers, texts), len(texts), self.dimensions)


def _count(texts: Iterable[Hashes], number: int, dimensions: int) -> Floats:
    """Hashes of each text as counts, with signs, in the places of a vector of length 1."""
    rows = np.zeros((number, dimensions), np.float32)
    for row, found in zip(rows, texts, strict=True):
        hashes, counts = np.unique(found, return_counts=True)
        signs = np.where(hashes >> np.uint64(63), 1.0, -1.0)
        places = (hashes % np.uint64(dimensions)).astype(np.int64)
        summed = np.bincount(places, signs * np.sqrt(counts), dimensions)
        length = np.sqrt((summed * summed).sum())
        if length > 0:
            row[:] = summed / length
    return rows


def _hash_numbers(text: str) -> Hashes:
    """A hash of every run of 1 to 4 numbers."""
    try:
        codes = np.array([int(word) for word in text.split()], np.uint64) + np.uint64(1)
    except (ValueError, OverflowError):
        raise UsageError(f"text: given {text!r}; allowed: whole numbers with spaces.") from None
    found = [np.zeros(0, np.uint64)]
    value = np.zeros(len(codes), np.uint64)
    for size in range(1, min(4, len(codes)) + 1):
        value = _mix(value[: len(codes) - size + 1] + codes[size - 1 :])
        found.append(value)
    return np.concatenate(found)


def _hash_runs(text: str) -> Hashes:
    """A hash of every run of 3, 4 and 5 bytes."""
    plain = f" {' '.join(text.lower().split())} ".encode(errors="replace")
    codes = np.frombuffer(plain, np.uint8).astype(np.uint64) + np.uint64(1)
    found = [np.zeros(0, np.uint64)]
    for size in (3, 4, 5):
        starts = len(codes) - size + 1
        if starts < 1:
            break
        value = np.zeros(starts, np.uint64)
        for offset in range(size):
            value = (value << np.uint64(9)) | codes[
                offset : offset + starts
            ]  # 9 bits a byte: exact
        found.append(_mix(value))
    return np.concatenate(found)


def _mix(value: Hashes) -> Hashes:
    """Spread each number over all 64 bits (the finaliser of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = value ^ (value >> np.uint64(31))
    return mixed


def embed(embedder: Embedder, texts: Sequence[str]) -> Floats:
    """The embedder's rows for texts; UsageError if they are not what it promised."""
    rows = np.asarray(embedder(texts), np.float32)
    if rows.shape != (len(texts), embedder.dimensions) or not np.isfinite(rows).all():
        raise UsageError(
            f"embedder {embedder.name}: it gave an array of shape {rows.shape}; allowed: "
            f"({len(texts)}, {embedder.dimensions}) finite numbers."
        )
    return rows
