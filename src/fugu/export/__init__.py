"""Trained policies away from the trainer: engines that run them, files that hold them."""

from fugu.export.loading import load
from fugu.inference.engine import Engine, PolicyFacts
from fugu.inference.player import LoadedPolicy

__all__ = ["Engine", "LoadedPolicy", "PolicyFacts", "load"]
