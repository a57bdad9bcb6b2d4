"""What every engine has: one pass of a policy over a batch, and the facts to act on it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, cast, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import FuguError, UsageError
from fugu.nets.net import Floats, Net
from fugu.spaces import Layout
from fugu.spaces.action_sampler import Continuous
from fugu.spaces.as_json import layout_from_json, layout_to_json

FORMAT = 1  # of the facts as JSON
FACTS = "fugu.facts"  # where they stand in the metadata of ONNX


@dataclass(frozen=True)
class PolicyFacts:
    """What one must know of a policy to act with it.

    Attributes:
        observation: Layout of an observation.
        action: Layout of an action.
        continuous: How continuous actions come within their bounds; see `RowWriter`.
        state_size: Numbers of the state; 0 if nothing is remembered.
        num_critics: Values of an observation.
    """

    observation: Layout
    action: Layout
    continuous: Continuous
    state_size: int
    num_critics: int

    @staticmethod
    def of(net: Net) -> PolicyFacts:
        """Those of a network."""
        critics = 0 if net.values is None else net.shape(net.values)[1]
        return PolicyFacts(net.observation, net.action, net.continuous, net.state_size, critics)

    def to_json(self) -> str:
        """One line of JSON, which files carry beside the network."""
        tree = {
            "format": FORMAT,
            "observation": layout_to_json(self.observation),
            "action": layout_to_json(self.action),
            "continuous": self.continuous,
            "state_size": self.state_size,
            "num_critics": self.num_critics,
        }
        return json.dumps(tree, allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes, place: str) -> PolicyFacts:
        """What `to_json` wrote; an error names the place it comes from."""
        try:
            tree = json.loads(text)
            if tree["format"] != FORMAT:
                raise ValueError(f"format {tree['format']!r}, of which this fugu knows {FORMAT}")
            return PolicyFacts(
                layout_from_json(tree["observation"]),
                layout_from_json(tree["action"]),
                _continuous(tree),
                int(tree["state_size"]),
                int(tree["num_critics"]),
            )
        except (FuguError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{place}: given facts of a policy that cannot be read "
                f"({type(error).__name__}: {error}); allowed: a file that fugu wrote. Export it "
                "again."
            ) from error


def _continuous(tree: dict[str, Any]) -> Continuous:
    """Return how continuous actions are bounded; files of 0.1 say only whether by a tanh."""
    if "continuous" not in tree:
        return "tanh" if tree["squash"] else "clipped"
    found = tree["continuous"]
    if found not in get_args(Continuous):
        raise ValueError(f"continuous {found!r}, expected one of {get_args(Continuous)}")
    return cast(Continuous, found)


class Engine(Protocol):
    """Runs a policy. It is called by one thread at a time.

    Attributes:
        facts: Of the policy.
    """

    facts: PolicyFacts

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """One pass.

        Args:
            rows: Observations as their layout packs them, `[batch, size]`, side by side in
                memory; a batch has a row at least.
            state: `[batch, state_size]`; it is left as it is.

        Returns:
            params `[batch, num_params]`, values `[batch, num_critics]` and the new state, all the
            caller's own; without critics or state they have no columns.
        """
        raise NotImplementedError("forward(rows, state) -> params, values, state")


@runtime_checkable
class AttentiveEngine(Engine, Protocol):
    """An engine whose policy may ask who acts, what was drawn and what it earned.

    Its `forward` takes the rows that `look` gives.
    """

    def look(self, rows: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[Any]:
        """What agents act on, of the observations that they see."""
        raise NotImplementedError("look(rows, agents) -> rows")

    def acted(self, state: Floats, samples: Floats) -> Floats:
        """The state, now that these samples `[batch, numbers]` were drawn."""
        raise NotImplementedError("acted(state, samples) -> state")

    def earned(self, state: Floats, rewards: Floats) -> Floats:
        """The state, now that these rewards `[batch]` came."""
        raise NotImplementedError("earned(state, rewards) -> state")
