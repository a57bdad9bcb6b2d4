"""Engine jax: the network as a compiled function of JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.export.engine import PolicyFacts
from fugu.export.jax_net import batched, jax_function, jax_leaves
from fugu.nets.net import Floats, Net


class JaxEngine:
    """Runs a network by JAX; batches are filled up to powers of two, for each of which it compiles.

    Attributes:
        function: `forward(weights, leaves, state)` of one agent; see `jax_function`.
        weights: What it is called with.
    """

    def __init__(self, net: Net) -> None:
        self.facts, self._net = PolicyFacts.of(net), net
        self.function, self.weights = jax_function(net)
        self._batched = batched(self.function)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """One pass; see `Engine.forward`."""
        batch = len(rows)
        missing = (1 << (batch - 1).bit_length()) - batch
        leaves = jax_leaves(self._net, _filled(rows, missing))
        found = self._batched(self.weights, leaves, _filled(state, missing))
        params, values, after = (np.array(part[:batch]) for part in found)
        return params, values, after


def _filled(array: NDArray[Any], missing: int) -> NDArray[Any]:
    """With so many rows of zeros more."""
    if not missing:
        return array
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def make_engine(net: Net) -> JaxEngine:
    """An engine for a network."""
    return JaxEngine(net)
