"""Engine native: the network run by the native core, without torch."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from fugu.export.engine import PolicyFacts
from fugu.nets.native import NativeNet
from fugu.nets.net import Floats, Net


class NativeEngine:
    """Runs a network by the native core, for the best kind of processor that is here."""

    def __init__(self, net: Net) -> None:
        self.facts, self._net = PolicyFacts.of(net), NativeNet(net)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """One pass; see `Engine.forward`."""
        return self._net.forward(rows, state)


def make_engine(net: Net) -> NativeEngine:
    """An engine for a network."""
    return NativeEngine(net)
