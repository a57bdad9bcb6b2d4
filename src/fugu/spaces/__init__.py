"""Layouts: any Gymnasium space as flat memory, and back."""

from fugu.spaces.layout import Layout
from fugu.spaces.leaves import Leaf

__all__ = ["Layout", "Leaf"]
