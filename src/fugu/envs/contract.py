"""The contract of every environment: groups of agents, the buffers they share, and `Env`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.envs.masks import mask_heads
from fugu.spaces import Layout

Info = dict[str, Any]


@dataclass(frozen=True)
class AgentGroup:
    """Agents with the same spaces: they share buffers, a batch and a policy."""

    name: str
    agents: tuple[Hashable, ...]
    observation_layout: Layout
    action_layout: Layout
    num_costs: int = 0
    """Number of constraints with costs, a column of `costs` each."""
    state_layout: Layout | None = None
    """Layout of the environment's global state, which only the first group has."""

    @property
    def num_agents(self) -> int:
        """Number of rows, one per agent."""
        return len(self.agents)

    @cached_property
    def mask_width(self) -> int:
        """Entries of an action mask: one per choice of each discrete head."""
        return sum(mask_heads(self.action_layout))


@dataclass(frozen=True)
class Buffers:
    """One group's rows, `[agents, ...]`, that an environment reads and writes in place.

    Attributes:
        observations: Current observations; after an episode's end, the first of the next episode.
        final: The last observation of an episode, written on the step that ends it.
        action_masks: 1 for each choice that is allowed now, the discrete heads side by side.
        actions: The next actions; the only array that the caller writes.
        rewards: Sum of the rewards since the agent acted last.
        costs: Sum of the costs since then, a column per constraint; most environments have none.
        terminations: 1 on the step in which the agent's episode terminated.
        truncations: 1 on the step in which the agent's episode was truncated.
        live: 1 if the observation awaits an action.
        valid: 0 if a fault broke the step. Environments write 1.
        global_state: A state for critics only: one row per environment, in its first group; most
            environments have none.
        final_state: The global state at the last end of an agent's episode.
    """

    observations: NDArray[Any]
    final: NDArray[Any]
    action_masks: NDArray[np.bool_]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    costs: NDArray[np.float32]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    live: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    global_state: NDArray[Any]
    final_state: NDArray[Any]

    @classmethod
    def allocate(cls, group: AgentGroup) -> Buffers:
        """Return zeroed buffers for one environment's agents of `group`."""
        return cls(**{name: np.zeros(*spec) for name, spec in cls.specs(group).items()})

    @staticmethod
    def specs(group: AgentGroup) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of each array."""
        agents, flag = group.num_agents, np.dtype(np.bool_)
        observation, action = group.observation_layout, group.action_layout
        state, number = (1, 0), np.dtype(np.float32)
        if group.state_layout is not None:
            state, number = (1, group.state_layout.size), group.state_layout.dtype
        return {
            "observations": ((agents, observation.size), observation.dtype),
            "final": ((agents, observation.size), observation.dtype),
            "action_masks": ((agents, group.mask_width), flag),
            "actions": ((agents, action.size), action.dtype),
            "rewards": ((agents,), np.dtype(np.float32)),
            "costs": ((agents, group.num_costs), np.dtype(np.float32)),
            "terminations": ((agents,), flag),
            "truncations": ((agents,), flag),
            "live": ((agents,), flag),
            "valid": ((agents,), flag),
            "global_state": (state, number),
            "final_state": (state, number),
        }

    def check(self, group: AgentGroup) -> None:
        """Raise unless every array has the shape, dtype and layout that `group` needs."""
        for name, (shape, dtype) in self.specs(group).items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise UsageError(
                    f"bind: given {name} as {array.dtype} array of shape {array.shape}; allowed: "
                    f"contiguous {dtype} array of shape {shape}. Buffers.allocate makes them."
                )

    def of_envs(self, first: int, end: int, num_envs: int) -> Buffers:
        """Return the rows of environments `first` to `end`, of buffers of `num_envs`."""

        def rows(whole: NDArray[Any]) -> NDArray[Any]:
            each = len(whole) // num_envs
            return whole[first * each : end * each]

        return Buffers(**{field.name: rows(getattr(self, field.name)) for field in fields(self)})

    def copy(self) -> Buffers:
        """Return a copy."""
        return Buffers(**{field.name: getattr(self, field.name).copy() for field in fields(self)})


class Env(Closing):
    """An environment: it writes into the buffers it was bound to and never returns arrays.

    Episodes restart in the step that ends them (SAME_STEP): the row then has the first observation
    of the next episode, and `final` the last one of the ended. A single-agent environment has one
    group of one agent.

    Attributes:
        groups: Its agents by their spaces.
        buffers: The buffers it is bound to, one for each group.
        infos: Infos of the last `reset` or `step`: one dict for each episode that ended.
        copy_number: The number of this copy in its vector, from 0 on; known before `bind`.
    """

    groups: tuple[AgentGroup, ...]
    buffers: tuple[Buffers, ...]
    infos: Sequence[Info] = ()
    copy_number: int = 0

    @property
    def num_agents(self) -> int:
        """Number of agents of all groups."""
        return sum(group.num_agents for group in self.groups)

    @property
    def observation_layout(self) -> Layout:
        """Layout of the only group; an error if there are several groups."""
        return self._only_group().observation_layout

    @property
    def action_layout(self) -> Layout:
        """Layout of the only group; an error if there are several groups."""
        return self._only_group().action_layout

    def bind(self, *buffers: Buffers) -> None:
        """Read and write these buffers from now on, one for each group."""
        raise NotImplementedError("bind(*buffers: Buffers) -> None")

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        """Reset; `seed` is the root of every later episode's seed."""
        raise NotImplementedError("reset(seed: int | None, options: Mapping | None) -> None")

    def step(self) -> None:
        """Take `actions` of the live agents and write everything that follows."""
        raise NotImplementedError("step() -> None")

    def begin_step(self) -> None:
        """Start a step that may have to wait for something outside; `poll` ends it."""
        self.step()

    def poll(self) -> bool:
        """Return whether the step started last is done and written."""
        return True

    def close(self) -> None:
        """Release all resources. Calling it again does nothing."""
        raise NotImplementedError("close() -> None")

    def render(self) -> Any:
        """Render the environment in its render mode."""
        raise NotImplementedError("render() -> Any")

    def state(self) -> bytes:
        """Return the whole state, for `set_state`; without it, episodes are replayed on resume."""
        raise NotImplementedError("state() -> bytes")

    def set_state(self, state: bytes) -> None:
        """Restore a `state()`."""
        raise NotImplementedError("set_state(state: bytes) -> None")

    def where(self) -> str:
        """Return which episode and step this is, for errors; empty if unknown."""
        return ""

    def _only_group(self) -> AgentGroup:
        if len(self.groups) == 1:
            return self.groups[0]
        names = [group.name for group in self.groups]
        raise UsageError(
            f"given an environment with {len(names)} groups of agents, {names}; allowed: one. "
            "Take the layout of one group: env.groups[i].observation_layout."
        )
