"""Central critics: actors read their agents' observations, critics read more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.cores import make_core
from fugu.policies.encoders import Reading, make_features
from fugu.policies.layers import MlpEncoder, initialize, noting
from fugu.policies.policy import Policy, exactly, make_head, make_policy
from fugu.policies.unpack import torch_dtype, unpack
from fugu.spaces import Layout

Bytes = NDArray[np.uint8]
NUMBER = np.dtype(np.float32)


@dataclass(frozen=True)
class RowPart:
    """Rows of a layout side by side within a larger row, from `offset` bytes on."""

    layout: Layout
    count: int
    offset: int

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.count * self.layout.nbytes


@dataclass(frozen=True)
class CriticLayout:
    """The layout of critic observations: first what actors read, then what only critics read.

    Rows are float32 if all parts are, else bytes whose parts begin at multiples of eight.

    Attributes:
        rest: What only critics read: the environment's state, or the observations of all agents.
    """

    own: RowPart
    agent: RowPart | None  # the agent's index in its group, one-hot; None if no network reads it
    rest: tuple[RowPart, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(
        cls, group: AgentGroup, *, agent_ids: bool, rest: tuple[tuple[Layout, int], ...] = ()
    ) -> CriticLayout:
        """Lay out the critic observations of a group.

        Args:
            group: The group of agents.
            agent_ids: Whether rows hold the agent's index.
            rest: Layouts of what only critics read, and the number of rows of each.

        >>> square, flag = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
        >>> group = AgentGroup("agent", ("a", "b"), Layout.of(square), Layout.of(flag))
        >>> found = CriticLayout.of(group, agent_ids=True, rest=((group.observation_layout, 2),))
        >>> found.size, found.actor_size, found.dtype
        (14, 6, dtype('float32'))
        """
        layouts = [(group.observation_layout, 1)]
        if agent_ids:
            layouts.append((Layout.of(spaces.Box(0, 1, (group.num_agents,))), 1))
        layouts += rest
        floats = all(layout.dtype == NUMBER for layout, _ in layouts)
        parts: list[RowPart] = []
        end = 0
        for layout, count in layouts:
            parts.append(RowPart(layout, count, end))
            end = parts[-1].end if floats else _aligned(parts[-1].end)
        dtype = NUMBER if floats else np.dtype(np.uint8)
        return cls(parts[0], parts[1] if agent_ids else None, tuple(parts[1 + agent_ids :]), dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of a whole row."""
        last = self.rest[-1] if self.rest else self.agent or self.own
        return self._end(last)

    @property
    def size(self) -> int:
        """Numbers of a whole row."""
        return self.nbytes // self.dtype.itemsize

    @property
    def actor_size(self) -> int:
        """Numbers of the part that actors read, at whose end a row may end."""
        return self._end(self.agent or self.own) // self.dtype.itemsize

    @cached_property
    def row_layout(self) -> Layout:
        """The layout of whole rows, for storing them."""
        return self._plain_layout(self.size)

    @cached_property
    def actor_layout(self) -> Layout:
        """The layout of the part that actors read."""
        return self._plain_layout(self.actor_size)

    def zeros(self, count: int, *, whole: bool = True) -> NDArray[Any]:
        """Return zeroed rows, without what only critics read if not `whole`."""
        return np.zeros((count, self.size if whole else self.actor_size), self.dtype)

    def write_own(
        self, rows: NDArray[Any], observations: NDArray[Any], agents: NDArray[np.int64]
    ) -> None:
        """Write agents' observations and indices; agents are counted through all environments."""
        out = rows.view(np.uint8)
        out[:, self.own.offset : self.own.end] = bytes_of(observations)
        if self.agent is not None:
            count = self.agent.layout.size
            ones = np.eye(count, dtype=NUMBER)[agents % count]
            out[:, self.agent.offset : self.agent.end] = bytes_of(ones)

    def read(self, rows: Tensor, part: RowPart) -> Tensor:
        """Return a part of rows `[batch, size]` in its layout's dtype, `[batch * count, size]`."""
        item = self.dtype.itemsize
        found = rows[:, part.offset // item : part.end // item]
        if self.dtype != part.layout.dtype:
            found = found.view(torch_dtype(part.layout.dtype))
        return found.reshape(len(rows) * part.count, part.layout.size)

    def _end(self, part: RowPart) -> int:
        return part.end if self.dtype == NUMBER else _aligned(part.end)

    def _plain_layout(self, size: int) -> Layout:
        if self.dtype == NUMBER:
            return Layout.of(spaces.Box(-np.inf, np.inf, (size,)))
        return Layout.of(spaces.Box(0, 255, (size,), np.uint8))


def bytes_of(rows: NDArray[Any]) -> Bytes:
    """Return rows as their bytes, `[rows, bytes]`."""
    found: Bytes = np.ascontiguousarray(rows).view(np.uint8)
    return found


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8


class PartsEncoder(nn.Module):
    """Parts of critic observations to one hidden vector: features of each, joined by an MLP."""

    def __init__(self, layout: CriticLayout, parts: tuple[RowPart, ...], cfg: PolicyConfig) -> None:
        super().__init__()
        self._layout, self._parts = layout, parts
        reading = Reading.of(cfg)
        features = [make_features(part.layout, reading, cfg.normalise) for part in parts]
        self.features = nn.ModuleList(features)
        initialize(self.features)
        counted = zip(parts, features, strict=True)
        width = sum(part.count * feature.width for part, feature in counted)
        self.mlp = MlpEncoder(max(width, 1), cfg.hidden_size, cfg.layers, cfg.activation)

    def forward(self, rows: Tensor) -> Tensor:
        """Map `[batch, size]` in the rows' dtype to `[batch, hidden_size]`."""
        found = []
        for part, feature in zip(self._parts, self.features, strict=True):
            if feature.width:
                numbers = feature(unpack(part.layout, self._layout.read(rows, part)))
                found.append(numbers.reshape(len(rows), -1))
        seen = torch.cat(found, -1) if found else torch.ones(len(rows), 1, device=rows.device)
        hidden: Tensor = self.mlp(seen)
        return hidden


class Critic(nn.Module):
    """A network for values alone, with its own encoder, core and head."""

    def __init__(self, layout: CriticLayout, parts: tuple[RowPart, ...], cfg: PolicyConfig) -> None:
        super().__init__()
        self.encoder = PartsEncoder(layout, parts, cfg)
        self.core = make_core(cfg.core, cfg.hidden_size, cfg.hidden_size, cfg.window)
        self.decoder = make_head(self.core.output_size, 0, 1)
        self.state_size: int = self.core.state_size

    def forward(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return values `[batch, 1]` and the new state."""
        hidden, state = self.core(self.encoder(rows), state)
        return exactly(self.decoder, hidden), state

    def forward_segments(self, rows: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Return values `[rows, time, 1]` of whole segments; see `Policy.forward_segments`."""
        count, steps = rows.shape[:2]
        hidden = self.encoder(rows.flatten(0, 1)).reshape(count, steps, -1)
        return exactly(self.decoder, self.core.forward_segments(hidden, state, resets))


class CentralPolicy(Policy):
    """Actors that read their agents' observations, and critics that read whole critic observations.

    A row may end after the actor's part: then the critic is not called, its value is NaN and its
    state stays. An agent's state is its actor's, then its critic's.

    There is one actor for all agents of the group, or one for each, and as many critics, or none
    for a policy that only acts.

    Attributes:
        reads_agents: Whether actors read their agent's index.
        rescale: Maps critics' outputs to units of rewards. `forward` applies it, but not
            `forward_segments`, whose values losses are computed from.
    """

    rescale: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self,
        layout: CriticLayout,
        actors: list[Policy],
        critics: list[Critic],
        *,
        reads_agents: bool,
    ) -> None:
        nn.Module.__init__(self)  # its parts are the actors' and the critics'
        first = actors[0]
        self.layout, self.reads_agents, self._short = layout, reads_agents, first._short
        self.actors, self.critics = nn.ModuleList(actors), nn.ModuleList(critics)
        self.distribution, self.log_std = first.distribution, None
        self.num_params, self.num_critics = first.num_params, 1
        self._sizes = [first.state_size, critics[0].state_size if critics else 0]
        self.state_size = sum(self._sizes)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step; see `Policy.forward`."""
        who = self._agents(observations) if len(self.actors) > 1 else None
        params, values, state = self._by_agent(who, self._step, observations, state)
        return params, values, state

    def forward_segments(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take whole segments, each of one agent; see `Policy.forward_segments`."""
        who = None
        if len(self.actors) > 1:  # broken steps are zeros, agents' indices included
            who = self._agents(observations.flatten(0, 1), observations.shape[1])
        params, values = self._by_agent(who, self._segments, observations, state, resets)
        return params, values

    def look(self, observations: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[Any]:
        """Return the actor's part of rows: observations and agents' indices."""
        rows = self.layout.zeros(len(observations), whole=False)
        self.layout.write_own(rows, observations, agents)
        return rows

    @torch.no_grad()
    def note(self, observations: Tensor) -> None:
        """Update the normalization of observations by rows `[batch, size]`."""
        with noting(self.scales):
            self(observations, self.initial_state(len(observations), observations.device))

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state; a policy that only acts ignores the weights of critics."""
        if not self.critics:
            state_dict = {k: v for k, v in state_dict.items() if not k.startswith("critics.")}
        return super().load_state_dict(state_dict, strict, assign)

    def _step(self, agent: int, rows: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        actor_state, critic_state = torch.split(state, self._sizes, -1)
        params, _, actor_state = self.actors[agent](self._actor_rows(rows), actor_state)
        if self.critics and rows.shape[-1] == self.layout.size:
            with self._products(rows.device):
                values, critic_state = self.critics[agent](rows, critic_state)
            values = values if self.rescale is None else self.rescale(values)
        else:
            values = torch.full((len(rows), 1), torch.nan, device=rows.device)
        return params, values, torch.cat([actor_state, critic_state], -1)

    def _segments(
        self, agent: int, rows: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, ...]:
        actor, critic = self.actors[agent], self.critics[agent]
        assert isinstance(actor, Policy)
        assert isinstance(critic, Critic)
        actor_state, critic_state = torch.split(state, self._sizes, -1)
        seen = self._actor_rows(rows.flatten(0, 1)).reshape(*rows.shape[:2], -1)
        params, _ = actor.forward_segments(seen, actor_state.contiguous(), resets)
        with self._products(rows.device):
            values = critic.forward_segments(rows, critic_state.contiguous(), resets)
        return params, values

    def _actor_rows(self, rows: Tensor) -> Tensor:
        if self.reads_agents:
            return rows[:, : self.layout.actor_size]
        return self.layout.read(rows, self.layout.own)

    def _agents(self, rows: Tensor, steps: int = 1) -> Tensor:
        """Return the index of the agent of every `steps` rows."""
        assert self.layout.agent is not None
        ones = self.layout.read(rows, self.layout.agent)
        return ones.reshape(-1, steps, ones.shape[-1]).amax(1).argmax(-1)

    def _by_agent(
        self, who: Tensor | None, call: Callable[..., tuple[Tensor, ...]], *columns: Tensor
    ) -> tuple[Tensor, ...]:
        """Call `call(agent, *columns)` with the rows of each agent; return results in row order."""
        if who is None:
            return call(0, *columns)
        order = who.argsort(stable=True)
        counts = torch.bincount(who, minlength=len(self.actors)).tolist()
        parts = [torch.split(column[order.to(column.device)], counts) for column in columns]
        found = [call(agent, *mine) for agent, mine in enumerate(zip(*parts, strict=True))]
        back = order.argsort()
        return tuple(torch.cat(column)[back] for column in zip(*found, strict=True))


def make_central_policy(
    group: AgentGroup,
    cfg: PolicyConfig,
    layout: CriticLayout,
    *,
    agent_ids: bool,
    shared: bool,
    critic: tuple[RowPart, ...] | None,
    factory: Callable[..., Policy] = make_policy,
) -> CentralPolicy:
    """Make actors and critics for a group of agents.

    Args:
        group: The group of agents.
        cfg: The settings of both.
        layout: The layout of rows; with agent_ids, or if actors are not shared, with indices.
        agent_ids: Whether shared networks read the agent's index.
        shared: One actor and one critic for all agents, or one of each for every agent.
        critic: The parts of rows that critics read; None: there are no critics.
        factory: Makes an actor, as `make_policy` does.
    """
    reads_agents = agent_ids and shared

    def actor() -> Policy:
        if not reads_agents:
            return factory(group, cfg, 0)
        if factory is not make_policy:
            raise UsageError(
                "agent_ids: given True with a policy_factory, which knows nothing of them; "
                "allowed: False, or no factory."
            )
        assert layout.agent is not None
        rows = replace(group, observation_layout=layout.actor_layout)
        encoder = PartsEncoder(layout, (layout.own, layout.agent), cfg)
        return make_policy(rows, cfg, 0, encoder=encoder)

    count = 1 if shared else group.num_agents
    actors = [actor() for _ in range(count)]
    critics = [] if critic is None else [Critic(layout, critic, cfg) for _ in range(count)]
    return CentralPolicy(layout, actors, critics, reads_agents=reads_agents)


def make_player(
    factory: Callable[..., Policy],
    agent_ids: bool,
    shared: bool,
    group: AgentGroup,
    cfg: PolicyConfig,
) -> CentralPolicy:
    """Make a policy that only acts, of observations alone."""
    layout = CriticLayout.of(group, agent_ids=agent_ids or not shared)
    return make_central_policy(
        group, cfg, layout, agent_ids=agent_ids, shared=shared, critic=None, factory=factory
    )
