"""Layouts: any Gymnasium space as flat memory, and back."""

from fugu.spaces.compile import Leaf
from fugu.spaces.layout import Layout

__all__ = ["Layout", "Leaf"]
