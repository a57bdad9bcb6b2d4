"""Memory: stored texts that are found again by their vectors or their words.

`Memory` is exact and needs only NumPy; packages can add others (`find_memory`).
"""

from fugu.memory.embedders import Embedder, HashedNgrams, TokenRuns, WordLlama
from fugu.memory.items import AnyMemory, Item, Match, Where, find_memory
from fugu.memory.memory import Memory
from fugu.memory.recall import Recall, RecallView

__all__ = [
    "AnyMemory",
    "Embedder",
    "HashedNgrams",
    "Item",
    "Match",
    "Memory",
    "Recall",
    "RecallView",
    "TokenRuns",
    "Where",
    "WordLlama",
    "find_memory",
]
