"""Acting with trained policies: `LoadedPolicy`, and the interface of the engines that run them."""

from fugu.inference.engine import Engine, PolicyFacts
from fugu.inference.player import LoadedPolicy

__all__ = ["Engine", "LoadedPolicy", "PolicyFacts"]
