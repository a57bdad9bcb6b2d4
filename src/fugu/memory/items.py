"""What a memory holds, what is asked of it, and what it answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError

Floats = NDArray[np.float32]
By = Literal["vector", "words"]
LONGEST = 1e18  # of a vector: products of two still fit float32


@dataclass(frozen=True)
class Item:
    """One thing to remember, such as a program and the problem that it solves."""

    text: str
    """What is searched and given back."""
    reward: float = 0.0
    """How good it is."""
    task: str = ""
    """What it belongs to."""
    id: str = ""
    """Its name, at most 64 bytes; an item of the same id is replaced. Empty: from task and text."""
    vector: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    """Where it lies; None: the memory's embedder says so from the text."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Whatever else is to be kept with it."""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", content_id(self.task, self.text))
        for name in ("id", "text", "task"):
            _check_text(name, getattr(self, name))
        if len(self.id.encode()) > 64:
            raise UsageError(f"item id: given {self.id!r}; allowed: at most 64 bytes.")
        object.__setattr__(self, "reward", _number(self.id, self.reward))
        for entry in self.metadata.items():
            for part in entry:
                _check_text(f"item {self.id}: metadata", part)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class Match:
    """An item that was found, and how well it fits: cosine, dot product or BM25."""

    item: Item
    score: float


@dataclass(frozen=True)
class Where:
    """Which items may be found; exact."""

    task: str | None = None
    """Only this task's."""
    not_task: str | None = None
    """All but this task's."""
    min_reward: float | None = None
    """Only those of at least this reward."""
    max_reward: float | None = None
    """Only those of at most this reward."""


ANYWHERE = Where()


class AnyMemory(Protocol):
    """What every memory does."""

    def add(self, items: Item | Iterable[Item]) -> None:
        """Remember items; one of a known id takes the old one's place."""
        raise NotImplementedError("add(items) -> None")

    def query(
        self,
        texts: Sequence[str],
        k: int = 4,
        *,
        where: Where | Sequence[Where] = ANYWHERE,
        by: By = "vector",
    ) -> list[list[Match]]:
        """The `k` best items for each text, best first."""
        raise NotImplementedError("query(texts, k, *, where, by) -> list[list[Match]]")


def content_id(task: str, text: str) -> str:
    """The id of an item that was given none: the same text for the same task is one item."""
    return hashlib.sha256(f"{task}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32]


def each(items: Item | Iterable[Item]) -> list[Item]:
    """Items as a list, checked to be items."""
    found = [items] if isinstance(items, Item) else list(items)
    for item in found:
        if not isinstance(item, Item):
            raise UsageError(f"items: given a {type(item).__name__}; allowed: fugu.memory.Item.")
    return found


def check_query(
    texts: Sequence[str], k: int, where: Where | Sequence[Where], by: str
) -> list[Where]:
    """One `Where` for each query; UsageError for what cannot be asked."""
    if isinstance(texts, str):
        raise UsageError("query: given one text; allowed: a list of them, [text].")
    if k < 1:
        raise UsageError(f"query: given k={k}; allowed: 1 or more.")
    if by not in ("vector", "words"):
        raise UsageError(f"query: given by={by!r}; allowed: 'vector', 'words'.")
    wheres = [where] * len(texts) if isinstance(where, Where) else list(where)
    if len(wheres) != len(texts):
        raise UsageError(
            f"query: given {len(wheres)} of where for {len(texts)} texts; allowed: one, or as many."
        )
    return wheres


def as_vector(name: str, given: Any, dimensions: int) -> Floats:
    """A vector as float32 of its own; UsageError for a wrong shape or numbers that are none."""
    try:
        with np.errstate(over="ignore"):
            vector = np.array(given, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: given {given!r}; allowed: {dimensions} numbers.") from None
    if vector.shape != (dimensions,):
        raise UsageError(
            f"{name}: given a vector of shape {vector.shape}; allowed: ({dimensions},). "
            "All vectors of a memory have the length of its embedder's."
        )
    if not np.isfinite(vector).all() or np.linalg.norm(vector.astype(np.float64)) > LONGEST:
        raise UsageError(f"{name}: given numbers that are not finite, or too large; allowed: 1e18.")
    return vector


def _check_text(name: str, given: Any) -> None:
    if not isinstance(given, str):
        raise UsageError(f"{name}: given a {type(given).__name__}; allowed: text.")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: given lone surrogates; allowed: text that UTF-8 has.") from None


def _number(id: str, given: Any) -> float:  # noqa: A002
    try:
        number = float(given) if not isinstance(given, str) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"item {id}: given the reward {given!r}; allowed: a finite number.")
    return number
