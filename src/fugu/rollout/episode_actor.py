"""Whole episodes of policies that act."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.seeding import derive
from fugu.data.episodes import Episode, Episodes, EpisodeShape
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.vector import make

COPIES = 16


class EpisodeActor:
    """One group's agents: their policy, their recurrent states, their episodes."""

    def __init__(
        self,
        policy: Policy,
        episodes: Episodes,
        device: torch.device,
        random: np.random.Generator,
    ) -> None:
        self.policy, self.episodes = policy, episodes
        self._device, self._random = device, random
        self.states = policy.initial_state(episodes.shape.agents, device)

    @torch.no_grad()
    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""
        self.episodes.earn(agents, rows.rewards, rows.terminations, rows.truncations, rows.live)
        ended = rows.terminations | rows.truncations
        if ended.any() and self.policy.state_size:
            self.states[agents[ended]] = 0.0
        seen = torch.from_numpy(np.ascontiguousarray(rows.observations)).to(self._device)
        params, _, after = self.policy(seen, self.states[agents])
        live = rows.live
        samples, log_probabilities = self.policy.distribution.sample(
            params.float().cpu(),
            None if rows.action_masks.all() else rows.action_masks,
            self._random,
            live=None if live.all() else live,
        )
        if self.policy.state_size:
            self.states[agents[live]] = after[torch.from_numpy(live).to(after.device)].float()
        part = slice(None) if live.all() else live
        self.episodes.add(
            agents[part],
            rows.observations[part],
            rows.action_masks[part],
            samples[part],
            log_probabilities[part],
        )
        return self.policy.distribution.to_rows(samples)


def sample_episodes(
    env: str | Callable[..., Any],
    count: int,
    *,
    policy: Policy | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> tuple[AgentGroup, list[Episode]]:
    """Play, and keep whole episodes: what comparisons are drawn from.

    Args:
        env: Any name that `fugu.make` takes, or something to call for an environment.
        count: Episodes; the first ones that end, of a few copies.
        policy: Who plays; a new one, which acts almost evenly, if not given.
        env_kwargs: Arguments of the environment.
        seed: Of the environments and of the actions.

    >>> group, episodes = sample_episodes("bandit", 3)
    >>> [episode.length for episode in episodes]
    [1, 1, 1]
    """
    with make(env, COPIES, backend="serial", env_kwargs=env_kwargs) as vec:
        if len(vec.groups) != 1:
            raise UsageError(
                f"sample_episodes: given {len(vec.groups)} groups of agents; allowed: one."
            )
        (group,) = vec.groups
        if policy is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive(seed, 2) >> 1)
                policy = make_policy(group, PolicyConfig(), 0)
        device = next(policy.parameters()).device
        shape = EpisodeShape(COPIES * group.num_agents, 1, policy.distribution.num_samples)
        store = Episodes(group, shape)
        actor = EpisodeActor(policy, store, device, np.random.default_rng(derive(seed, 1)))
        found: list[Episode] = []
        vec.async_reset(derive(seed, 0))
        while len(found) < count:
            batch = vec.recv()
            broken = batch.groups[0].agent_ids[~batch.groups[0].rows.valid]
            store.forget(broken)
            actor.states[broken] = 0.0
            vec.send(actor.act(batch.groups[0].agent_ids, batch.groups[0].rows))
            found += [episode for (episode,) in store.take()]
    return group, found[:count]
