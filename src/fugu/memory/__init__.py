"""Memory: what was solved is stored, and what is like a question is found again.

`Memory` is exact and needs nothing but NumPy; `fugu.memory.turbopuffer` keeps rows in a service.
"""

from fugu.memory.bm25 import Bm25
from fugu.memory.embedders import Embedder, HashedNgrams, TokenRuns
from fugu.memory.items import AnyMemory, Item, Match, Where
from fugu.memory.memory import Memory
from fugu.memory.recall import Recall, RecallView

__all__ = [
    "AnyMemory",
    "Bm25",
    "Embedder",
    "HashedNgrams",
    "Item",
    "Match",
    "Memory",
    "Recall",
    "RecallView",
    "TokenRuns",
    "Where",
]
