"""Memory: what was solved is stored, and what is like a question is found again.

`Memory` is exact and needs nothing but NumPy; `fugu.memory.turbopuffer` keeps rows in a service.
"""

from fugu.memory.bm25 import Bm25
from fugu.memory.embedders import Embedder, HashedNgrams
from fugu.memory.items import AnyMemory, Item, Match, Where
from fugu.memory.memory import Memory

__all__ = [
    "AnyMemory",
    "Bm25",
    "Embedder",
    "HashedNgrams",
    "Item",
    "Match",
    "Memory",
    "Where",
]
