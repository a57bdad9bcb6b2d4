"""Trained policies away from the trainer: engines that run them, files that hold them."""

from fugu.export.engine import Engine, PolicyFacts
from fugu.export.loading import load
from fugu.export.player import LoadedPolicy

__all__ = ["Engine", "LoadedPolicy", "PolicyFacts", "load"]
