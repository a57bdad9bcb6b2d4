"""The engine: what collects experience and learns from it, behind the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fugu.policies.policy import Policy
from fugu.training.collect import EpisodeRecord

Tensors = dict[str, dict[str, Any]]


class Engine(Protocol):
    """Policies, their experience and their learning; the trainer says when."""

    @property
    def policies(self) -> list[Policy]:
        """One for each group of agents."""

    @property
    def episodes(self) -> EpisodeRecord:
        """What ended episodes told."""

    @property
    def steps(self) -> int:
        """Agent steps so far."""

    def start(self, seed: int) -> None:
        """Begin all environments anew."""

    def collect(self) -> None:
        """Gather the experience of one update."""

    def update(self, progress: float, learning_rate: float) -> dict[str, float]:
        """Learn from it; what there is to say.

        Args:
            progress: Of the whole run, from 0 to 1.
            learning_rate: For this update.
        """

    def checkpoint(self) -> tuple[Tensors, dict[str, Any]]:
        """Tensors and the rest of all that is needed to go on exactly."""

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], seed: int) -> None:
        """Go on from a checkpoint; environments without states begin anew with this seed."""
