"""Central critics: actors read what their agents see, critics read more and know more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig
from fugu.policies.cores import make_core
from fugu.policies.features import Reading, make_features
from fugu.policies.mlp import MlpEncoder, initialise
from fugu.policies.policy import Policy, exactly, make_head, make_policy
from fugu.policies.sight import Part, Sight
from fugu.policies.unpack import unpack


class SightEncoder(nn.Module):
    """Parts of a sight to one hidden vector: the features of each, side by side into an MLP."""

    def __init__(self, sight: Sight, parts: tuple[Part, ...], cfg: PolicyConfig) -> None:
        super().__init__()
        self._sight, self._parts = sight, parts
        reading = Reading.of(cfg)
        features = [make_features(part.layout, reading, cfg.normalise) for part in parts]
        self.features = nn.ModuleList(features)
        initialise(self.features)
        counted = zip(parts, features, strict=True)
        width = sum(part.count * feature.width for part, feature in counted)
        self.mlp = MlpEncoder(max(width, 1), cfg.hidden_size, cfg.layers, cfg.activation)

    def forward(self, rows: Tensor) -> Tensor:
        """`[batch, size]` in the sight's dtype to `[batch, hidden_size]`."""
        found = []
        for part, feature in zip(self._parts, self.features, strict=True):
            if feature.width:
                numbers = feature(unpack(part.layout, self._sight.read(rows, part)))
                found.append(numbers.reshape(len(rows), -1))
        seen = torch.cat(found, -1) if found else torch.ones(len(rows), 1, device=rows.device)
        hidden: Tensor = self.mlp(seen)
        return hidden


class Critic(nn.Module):
    """An encoder, a core and a head of its own, for values alone."""

    def __init__(self, sight: Sight, parts: tuple[Part, ...], cfg: PolicyConfig) -> None:
        super().__init__()
        self.encoder = SightEncoder(sight, parts, cfg)
        self.core = make_core(cfg.core, cfg.hidden_size, cfg.hidden_size, cfg.window)
        self.decoder = make_head(self.core.output_size, 0, 1)
        self.state_size: int = self.core.state_size

    def forward(self, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[batch, 1]` and the new state."""
        hidden, state = self.core(self.encoder(rows), state)
        return exactly(self.decoder, hidden), state

    def forward_segments(self, rows: Tensor, state: Tensor, resets: Tensor) -> Tensor:
        """Values `[rows, time, 1]` of whole segments; see `Policy.forward_segments`."""
        count, steps = rows.shape[:2]
        hidden = self.encoder(rows.flatten(0, 1)).reshape(count, steps, -1)
        return exactly(self.decoder, self.core.forward_segments(hidden, state, resets))


class CentralPolicy(Policy):
    """Actors that read what their agents see, beside critics that read the whole sight.

    Rows are those of a `Sight`. One may end where the actor's part ends: then nobody asks the
    critic, its value is not a number and its state stays. An agent's state is its actor's, then
    its critic's.

    Args:
        sight: How rows are made.
        actors: One for all agents of the group, or one for each.
        critics: As many; none, for a policy that only acts.
        reads_names: Whether actors read who they are beside what they see.

    Attributes:
        rescale: Turns what critics say into units of rewards. `forward` applies it, and
            `forward_segments`, which losses are computed from, does not.
    """

    rescale: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self, sight: Sight, actors: list[Policy], critics: list[Critic], *, reads_names: bool
    ) -> None:
        nn.Module.__init__(self)  # its parts are the actors' and the critics'
        first = actors[0]
        self.sight, self.reads_names, self._short = sight, reads_names, first._short
        self.actors, self.critics = nn.ModuleList(actors), nn.ModuleList(critics)
        self.distribution, self.log_std = first.distribution, None
        self.num_params, self.num_critics = first.num_params, 1
        self._sizes = [first.state_size, critics[0].state_size if critics else 0]
        self.state_size = sum(self._sizes)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step of rows of the sight; see `Policy.forward`."""
        who = self._names(observations) if len(self.actors) > 1 else None
        params, values, state = self._by_agent(who, self._step, observations, state)
        return params, values, state

    def forward_segments(
        self, observations: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Whole segments, each of one agent; see `Policy.forward_segments`."""
        who = None
        if len(self.actors) > 1:  # steps that a fault broke are zeros, names and all
            who = self._names(observations.flatten(0, 1), observations.shape[1])
        params, values = self._by_agent(who, self._segments, observations, state, resets)
        return params, values

    def look(self, observations: NDArray[Any], agents: NDArray[np.int64]) -> NDArray[Any]:
        """The actor's part of rows: what agents see, and who they are."""
        rows = self.sight.rows(len(observations), whole=False)
        self.sight.write_own(rows, observations, agents)
        return rows

    @torch.no_grad()
    def note(self, observations: Tensor) -> None:
        """Let rows `[batch, size]` count in how later ones are normalised."""
        scales = self.scales
        for scale in scales:
            scale.noting = True
        try:
            self(observations, self.initial_state(len(observations), observations.device))
        finally:
            for scale in scales:
                scale.noting = False

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As any module; a policy that only acts passes over what critics know."""
        if not self.critics:
            state_dict = {k: v for k, v in state_dict.items() if not k.startswith("critics.")}
        return super().load_state_dict(state_dict, strict, assign)

    # ------------------------------------------------------------------ one agent's networks

    def _step(self, agent: int, rows: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        mine, its = torch.split(state, self._sizes, -1)
        params, _, mine = self.actors[agent](self._actor_rows(rows), mine)
        if self.critics and rows.shape[-1] == self.sight.size:
            with self._products(rows):
                values, its = self.critics[agent](rows, its)
            values = values if self.rescale is None else self.rescale(values)
        else:
            values = torch.full((len(rows), 1), torch.nan, device=rows.device)
        return params, values, torch.cat([mine, its], -1)

    def _segments(
        self, agent: int, rows: Tensor, state: Tensor, resets: Tensor
    ) -> tuple[Tensor, ...]:
        actor, critic = self.actors[agent], self.critics[agent]
        assert isinstance(actor, Policy)
        assert isinstance(critic, Critic)
        mine, its = (part.contiguous() for part in torch.split(state, self._sizes, -1))
        seen = self._actor_rows(rows.flatten(0, 1)).reshape(*rows.shape[:2], -1)
        params, _ = actor.forward_segments(seen, mine, resets)
        with self._products(rows):
            values = critic.forward_segments(rows, its, resets)
        return params, values

    def _actor_rows(self, rows: Tensor) -> Tensor:
        if self.reads_names:
            return rows[:, : self.sight.actor_size]
        return self.sight.read(rows, self.sight.own)

    def _names(self, rows: Tensor, steps: int = 1) -> Tensor:
        """Who the agents are; every `steps` rows are of one."""
        assert self.sight.name is not None
        ones = self.sight.read(rows, self.sight.name)
        return ones.reshape(-1, steps, ones.shape[-1]).amax(1).argmax(-1)

    def _by_agent(
        self, who: Tensor | None, call: Callable[..., tuple[Tensor, ...]], *columns: Tensor
    ) -> tuple[Tensor, ...]:
        """What `call(agent, *columns)` gives for the rows of each agent, in their order."""
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
    sight: Sight,
    *,
    agent_ids: bool,
    shared: bool,
    critic: tuple[Part, ...] | None,
    factory: Callable[..., Policy] = make_policy,
) -> CentralPolicy:
    """Actors and critics for a group of agents.

    Args:
        group: Whose observations and actions.
        cfg: What both are built of.
        sight: How rows are made; with agent_ids, or if actors are not shared, it has names.
        agent_ids: Whether shared networks read who the agent is.
        shared: One actor and one critic for all agents, or one of each for every agent.
        critic: Parts of the sight that critics read; None: there are no critics.
        factory: Makes an actor, as `make_policy` does.
    """
    reads_names = agent_ids and shared

    def actor() -> Policy:
        if not reads_names:
            return factory(group, cfg, 0)
        if factory is not make_policy:
            raise UsageError(
                "agent_ids: given True with a policy_factory, which knows nothing of them; "
                "allowed: False, or no factory."
            )
        assert sight.name is not None
        rows = replace(group, observation_layout=sight.actor_layout)
        encoder = SightEncoder(sight, (sight.own, sight.name), cfg)
        return make_policy(rows, cfg, 0, encoder=encoder)

    count = 1 if shared else group.num_agents
    actors = [actor() for _ in range(count)]
    critics = [] if critic is None else [Critic(sight, critic, cfg) for _ in range(count)]
    return CentralPolicy(sight, actors, critics, reads_names=reads_names)


def make_player(
    factory: Callable[..., Policy],
    agent_ids: bool,
    shared: bool,
    group: AgentGroup,
    cfg: PolicyConfig,
) -> CentralPolicy:
    """A policy that only acts: nothing of the environment but observations is needed."""
    sight = Sight.of(group, named=agent_ids or not shared)
    return make_central_policy(
        group, cfg, sight, agent_ids=agent_ids, shared=shared, critic=None, factory=factory
    )
