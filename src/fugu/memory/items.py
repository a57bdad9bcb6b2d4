"""The items of a memory, the filters of a query, and the matches that it returns."""

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
MAX_LENGTH = 1e18  # of a vector: the product of two still fits in float32


@dataclass(frozen=True)
class Item:
    """A text to remember, such as a program that solves a problem."""

    text: str
    """The text that queries compare and return."""
    reward: float = 0.0
    """How good it is; queries can filter by it."""
    task: str = ""
    """The task that it belongs to; queries can filter by it."""
    id: str = ""
    """A unique name of at most 64 bytes; empty: a hash of the task and the text."""
    vector: NDArray[Any] | None = field(default=None, repr=False, compare=False)
    """The vector to compare; None: the memory's embedder computes it from the text."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Anything else to keep with it."""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", content_id(self.task, self.text))
        for name in ("id", "text", "task"):
            _check_text(name, getattr(self, name))
        if len(self.id.encode()) > 64:
            raise UsageError(f"item id: expected at most 64 bytes; got {self.id!r}.")
        object.__setattr__(self, "reward", _finite(f"item {self.id}: reward", self.reward))
        for entry in self.metadata.items():
            for text in entry:
                _check_text(f"item {self.id}: metadata", text)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class Match:
    """An item that a query found, and its score: a cosine, a dot product or BM25."""

    item: Item
    score: float


@dataclass(frozen=True)
class Where:
    """An exact filter on the items that a query may find."""

    task: str | None = None
    """Find items of this task only."""
    not_task: str | None = None
    """Leave out the items of this task."""
    min_reward: float | None = None
    """Leave out items with a smaller reward."""
    max_reward: float | None = None
    """Leave out items with a larger reward."""


ANYWHERE = Where()


class AnyMemory(Protocol):
    """The interface of every memory."""

    def add(self, items: Item | Iterable[Item]) -> None:
        """Store items; an item whose id is known replaces the old one."""
        raise NotImplementedError("add(items) -> None")

    def query(
        self,
        texts: Sequence[str],
        k: int = 4,
        *,
        where: Where | Sequence[Where] = ANYWHERE,
        by: By = "vector",
    ) -> list[list[Match]]:
        """Return the `k` best items for each text, best first."""
        raise NotImplementedError("query(texts, k, *, where, by) -> list[list[Match]]")


def find_memory(name: str) -> Any:
    """Return the class of a memory of another package, by its entry point in `fugu.memories`."""
    from importlib.metadata import entry_points  # slow to import

    points = {point.name: point for point in entry_points(group="fugu.memories")}
    if name not in points:
        raise UsageError(
            f"memory: expected the name of an installed memory ({', '.join(points) or 'none is'}); "
            f"got {name!r}. Install its package, such as fugu-turbopuffer."
        )
    return points[name].load()


def content_id(task: str, text: str) -> str:
    """Return the id of an item without one: the same text for the same task is one item."""
    return hashlib.sha256(f"{task}\0{text}".encode(errors="surrogatepass")).hexdigest()[:32]


def as_items(given: Item | Iterable[Item]) -> list[Item]:
    """Return items as a list; UsageError for anything else."""
    items = [given] if isinstance(given, Item) else list(given)
    for item in items:
        if not isinstance(item, Item):
            raise UsageError(f"items: expected fugu.memory.Item; got a {type(item).__name__}.")
    return items


def check_query(
    queries: Sequence[Any] | NDArray[Any], k: int, where: Where | Sequence[Where], by: str
) -> list[Where]:
    """Return one filter for each query; UsageError if the arguments of `query` do not fit."""
    if isinstance(queries, str):
        raise UsageError("query: expected a list of texts; got one text. Write [text].")
    if k < 1:
        raise UsageError(f"query: expected k of at least 1; got k={k}.")
    if by not in ("vector", "words"):
        raise UsageError(f"query: expected by to be one of 'vector', 'words'; got {by!r}.")
    wheres = [where] * len(queries) if isinstance(where, Where) else list(where)
    if len(wheres) != len(queries):
        raise UsageError(
            f"query: expected one filter, or one for each of {len(queries)} queries; "
            f"got {len(wheres)}."
        )
    return wheres


def as_vector(name: str, given: Any, dimensions: int) -> Floats:
    """Return a vector as a new float32 array; UsageError for a wrong shape or infinite numbers."""
    try:
        with np.errstate(over="ignore"):
            vector = np.array(given, np.float32)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: expected {dimensions} numbers; got {given!r}.") from None
    if vector.shape != (dimensions,):
        raise UsageError(
            f"{name}: expected a vector of shape ({dimensions},); got {vector.shape}. "
            "All vectors of a memory have as many numbers as those of its embedder."
        )
    length = np.linalg.norm(vector.astype(np.float64))
    if not length <= MAX_LENGTH:
        raise UsageError(f"{name}: expected a vector of length 1e18 at most; got {length}.")
    return vector


def _check_text(name: str, given: Any) -> None:
    if not isinstance(given, str):
        raise UsageError(f"{name}: expected a text; got a {type(given).__name__}.")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: expected text of UTF-8; got lone surrogates.") from None


def _finite(name: str, given: Any) -> float:
    try:
        number = math.nan if isinstance(given, str) else float(given)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{name}: expected a finite number; got {given!r}.")
    return number
