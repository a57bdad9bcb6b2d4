"""The interface of inference engines, and the facts of a policy that one needs to act with it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import FuguError, UsageError
from fugu.nets.net import Floats, Net, Place
from fugu.spaces import Layout, Leaf
from fugu.spaces.action_rows import Continuous
from fugu.spaces.action_sampler import ActionSampler
from fugu.spaces.as_json import layout_from_json, layout_to_json

FORMAT = 1  # of the facts as JSON
FACTS = "fugu.facts"  # their key in the metadata of ONNX
NamedLeaves = dict[str, Leaf]


@dataclass(frozen=True)
class PolicyFacts:
    """Facts of a policy that are needed to act with it."""

    observation: Layout  # Layout of an observation
    action: Layout  # Layout of an action
    continuous: Continuous  # How continuous actions are kept within their bounds; see `RowWriter`
    state_size: int  # Numbers of the state; 0 if the policy is not recurrent
    num_critics: int  # Values of an observation

    @staticmethod
    def of(net: Net) -> PolicyFacts:
        """Return the facts of a network."""
        critics = 0 if net.values is None else net.shape(net.values)[1]
        return PolicyFacts(net.observation, net.action, net.continuous, net.state_size, critics)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """What `fugu_policy_size` of written C returns, in order."""
        sampler = ActionSampler(self.action, self.continuous)
        return (
            self.observation.nbytes,
            self.state_size,
            sampler.num_params,
            self.num_critics,
            sampler.num_choices,
            self.action.nbytes,
        )

    def to_json(self) -> str:
        """Return one line of JSON, which files carry beside the network."""
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
        """Read what `to_json` wrote; `place` is the source that errors name."""
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
    """Runs the forward passes of a policy. One thread at a time may call it."""

    facts: PolicyFacts

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass.

        Args:
            rows: Contiguous observations as their layout packs them, `[batch, size]`, at least one.
            state: `[batch, state_size]`; it is not changed.

        Returns:
            params `[batch, num_params]`, values `[batch, num_critics]` and the new state, all owned
            by the caller; without critics or state they have no columns.
        """
        raise NotImplementedError("forward(rows, state) -> params, values, state")


@runtime_checkable
class AttentiveEngine(Engine, Protocol):
    """An engine whose policy depends on the agents, their sampled actions and their rewards.

    Its `forward` takes the rows that `look` returns.
    """

    def look(self, rows: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows that the policy reads, made of the agents' observations."""
        raise NotImplementedError("look(rows, agents) -> rows")

    def acted(self, state: Floats, samples: Floats) -> Floats:
        """Return the state after these samples `[batch, numbers]` were drawn."""
        raise NotImplementedError("acted(state, samples) -> state")

    def earned(self, state: Floats, rewards: Floats) -> Floats:
        """Return the state after these rewards `[batch]` were received."""
        raise NotImplementedError("earned(state, rewards) -> state")


# ---------------------------------------------------------------------- leaves as arrays


def named_leaves(layout: Layout, root: str) -> NamedLeaves:
    """Return the leaves of a layout by name: `root` for a single one, else `root/path`.

    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(gear=spaces.Discrete(5), at=spaces.Box(-1, 1, (2,))))
    >>> list(named_leaves(layout, "observation"))
    ['observation/gear', 'observation/at']
    """
    return {f"{root}/{leaf.path}" if leaf.path else root: leaf for leaf in layout.leaves}


def split_rows(leaves: NamedLeaves, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return each leaf of rows `[batch, size]`, `[batch, *its shape]`, as views where possible."""
    if len(leaves) == 1:
        ((name, leaf),) = leaves.items()
        return {name: rows.reshape(len(rows), *leaf.shape)}
    raw = rows.view("uint8")
    return {
        name: raw[:, leaf.offset : leaf.offset + leaf.nbytes]
        .view(leaf.dtype)
        .reshape(len(rows), *leaf.shape)
        for name, leaf in leaves.items()
    }


def leaves_at(leaves: NamedLeaves, place: Place, count: int) -> list[str]:
    """Return the names of the leaves that hold the `count` numbers of a place."""
    end = place.offset + count * place.dtype.itemsize
    found = [
        name
        for name, leaf in leaves.items()
        if place.offset <= leaf.offset and leaf.offset + leaf.nbytes <= end and leaf.nbytes
    ]
    assert sum(leaves[name].nbytes for name in found) == end - place.offset
    assert all(leaves[name].dtype == place.dtype for name in found)
    return found
