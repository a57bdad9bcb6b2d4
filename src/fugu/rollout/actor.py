"""Actors: a policy acts for the agents of one group, and what follows is recorded for learning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.ranks import SINGLE_PROCESS, Moments, Ranks
from fugu.core.seeding import derive
from fugu.data.episodes import Episode, Episodes, EpisodeShape
from fugu.data.segments import Rewarded
from fugu.envs.contract import AgentGroup, Buffers
from fugu.policies.config import PolicyConfig
from fugu.policies.policy import Policy, make_policy
from fugu.rollout.forwards import Forward, TorchForward
from fugu.vector import make

COPIES = 16  # of environments that `sample_episodes` plays in


class ReturnNormalizer:
    """The standard deviation of agents' discounted returns so far; rewards are divided by it.

    Every agent's return is summed up forward, `G = gamma * G + r`, once for each of its actions,
    and begins at 0 in each episode; the variance is that of all sums seen.

    Args:
        agents: Number of agents.
        gamma: Discount of a step.
        ranks: The processes whose agents count.
    """

    def __init__(self, agents: int, gamma: float, ranks: Ranks = SINGLE_PROCESS) -> None:
        self._gamma, self._ranks = gamma, ranks
        self._sums = np.zeros(agents)
        self._count, self._mean, self._square = 0.0, 0.0, 0.0  # Welford's three numbers

    @property
    def divisor(self) -> float:
        """The divisor of rewards, 1 until returns vary at all; all ranks ask for it together."""
        variance = self._square / max(1.0, self._count)
        found = self._ranks.moments(Moments(self._count, self._mean, variance))
        deviation = float(found.variance) ** 0.5 if found.count > 1 else 0.0
        return deviation if deviation > 1e-8 else 1.0

    def note(
        self,
        agents: NDArray[np.int64],
        rewards: NDArray[np.float32],
        ended: NDArray[np.bool_],
        counts: NDArray[np.bool_],
    ) -> None:
        """Add the rewards of these agents' last actions, `[agents]`.

        Args:
            agents: Agents that acted, each once.
            rewards: The sum of what reached each since it acted.
            ended: Whose episode is over.
            counts: Whose rewards count; a fault may have spoiled the others'.
        """
        sums = np.where(counts, self._gamma * self._sums[agents] + rewards, self._sums[agents])
        self._sums[agents] = np.where(ended, 0.0, sums)
        seen = sums[counts]
        if seen.size:
            self._merge(seen.size, float(seen.mean()), float(seen.var()))

    def note_rows(self, rewards: NDArray[np.float32], ended: NDArray[np.bool_]) -> None:
        """Add the rewards of all agents at several times, `[times, agents]`, all of which count."""
        if not len(rewards):
            return
        sums, continues = rewards.astype(np.float64), (~ended).astype(np.float64)
        for now, on in zip(sums, continues, strict=True):
            self._sums *= self._gamma
            now += self._sums
            np.multiply(now, on, out=self._sums)
        for mean, variance in zip(sums.mean(1), sums.var(1), strict=True):
            self._merge(len(self._sums), float(mean), float(variance))

    def _merge(self, size: int, mean: float, variance: float) -> None:
        total, shift = self._count + size, mean - self._mean
        self._square += variance * size
        self._square += shift * shift * self._count * size / total
        self._mean += shift * size / total
        self._count = total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the statistics as arrays."""
        return {"sums": self._sums, "moments": np.array([self._count, self._mean, self._square])}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Go back to a `state_dict`."""
        self._sums[:] = state["sums"]
        self._count, self._mean, self._square = (float(number) for number in state["moments"])


class Acts(Protocol):
    """Acts for one group's agents."""

    @property
    def full(self) -> bool:
        """Whether there is enough experience to learn from."""

    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""


class Sized(Protocol):
    """How much a store holds."""

    @property
    def agents(self) -> int:
        """Agents whose experience it is."""


class Store(Protocol):
    """Where an actor records: `fugu.data.segments.Segments` or `fugu.data.episodes.Episodes`."""

    @property
    def shape(self) -> Sized:
        """How much it holds."""

    bootstraps: ClassVar[bool]
    """Whether it wants the values of the last observations of truncated episodes."""

    @property
    def full(self) -> bool:
        """Whether there is enough experience to learn from."""

    def record_reward(
        self,
        agents: NDArray[np.int64],
        rewards: NDArray[np.float32],
        terminations: NDArray[np.bool_],
        truncations: NDArray[np.bool_],
        valid: NDArray[np.bool_],
        live: NDArray[np.bool_],
        costs: NDArray[np.float32],
    ) -> Rewarded:
        """Record what reached these agents now; it belongs to their last actions."""

    def bootstrap(self, agents: NDArray[np.int64], final_values: NDArray[np.float32]) -> None:
        """Record the values `[agents, critics]` of final observations, of agents truncated now."""

    def record_step(
        self,
        agents: NDArray[np.int64],
        observations: NDArray[Any],
        masks: NDArray[np.bool_],
        samples: NDArray[np.float32],
        log_probabilities: NDArray[np.float32],
        values: NDArray[np.float32],
        states: NDArray[np.float32],
        on_device: torch.Tensor | None = None,
    ) -> None:
        """Record what agents see and do now."""


StoreT = TypeVar("StoreT", bound=Store)


class Actor(Generic[StoreT]):
    """One group's agents: their policy, their recurrent states, and the store of what they do.

    Rewards go to the actions that earned them, truncated episodes are bootstrapped from their last
    observation, and recurrent states are reset where episodes ended.

    Attributes:
        store: Where steps and rewards are recorded, such as `Segments`.
        returns: Measures how much discounted returns vary; None: nothing does.
        forward: Computes the policy's outputs.
        random: Draws actions.
        states: Recurrent states, `[agents, state]`.
    """

    def __init__(
        self,
        policy: Policy,
        store: StoreT,
        returns: ReturnNormalizer | None,
        device: torch.device,
        random: np.random.Generator,
        forward: Forward | None = None,
    ) -> None:
        self.policy, self.store, self.returns = policy, store, returns
        self.forward: Forward = forward or TorchForward(policy)
        self._device, self.random = device, random
        self.states = policy.initial_state(store.shape.agents, device)

    @property
    def full(self) -> bool:
        """Whether there is enough experience to learn from."""
        return self.store.full

    @torch.no_grad()
    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""
        ended = rows.terminations | rows.truncations | ~rows.valid
        acted, complete, rewards = self.store.record_reward(
            agents,
            rows.rewards,
            rows.terminations,
            rows.truncations,
            rows.valid,
            rows.live,
            rows.costs,
        )
        if self.returns is not None:  # agents that are dead, or have not begun, earned nothing
            now = slice(None) if complete.all() else complete
            self.returns.note(agents[now], rewards[now], ended[now], rows.valid[now])
        self._record_ends(agents, rows, acted)
        recurrent, index = self.policy.state_size > 0, torch.from_numpy(agents).to(self._device)
        if recurrent and ended.any():
            self.states[agents[ended]] = 0.0
        before = self.states[index] if recurrent else self.states[: len(agents)]
        seen = torch.from_numpy(np.ascontiguousarray(rows.observations)).to(self._device)
        params, values, after = self.forward(seen, before)
        masks = None if rows.action_masks.all() else rows.action_masks
        live = None if rows.live.all() else rows.live
        sampler = self.policy.distribution.sampler
        samples, log_probabilities = sampler.sample(
            params.float().cpu().numpy(), masks, self.random, live=live
        )
        after = self.policy.acted(after.float(), samples) if recurrent else after
        part: Any = slice(None) if live is None else live
        acting = part if live is None else torch.from_numpy(live).to(self._device)
        if recurrent:
            self.states[index[acting]] = after[acting]
        self._record_steps(
            agents[part],
            rows.observations[part],
            rows.action_masks[part],
            samples[part],
            log_probabilities[part],
            values[acting],
            before[acting],
            after[acting],
            seen[acting],
        )
        return sampler.writer.write(samples)

    def _record_ends(
        self, agents: NDArray[np.int64], rows: Buffers, acted: NDArray[np.bool_]
    ) -> None:
        """Bootstrap the truncated episodes of agents that had acted."""
        cut = rows.truncations & rows.valid & acted
        if self.store.bootstraps and cut.any():
            final = torch.from_numpy(np.ascontiguousarray(rows.final[cut])).to(self._device)
            _, last, _ = self.forward(final, self.states[agents[cut]])
            self.store.bootstrap(agents[cut], last.float().cpu().numpy())

    def _record_steps(
        self,
        agents: NDArray[np.int64],
        observations: NDArray[Any],
        masks: NDArray[np.bool_],
        samples: NDArray[np.float32],
        log_probabilities: NDArray[np.float32],
        values: torch.Tensor,
        before: torch.Tensor,
        after: torch.Tensor,
        seen: torch.Tensor,
    ) -> None:
        """Record the steps of agents that act, with their states before and after."""
        critics, states = values.float().cpu().numpy(), before.cpu().numpy()
        self.store.record_step(
            agents, observations, masks, samples, log_probabilities, critics, states, seen
        )


class EpisodeActor(Actor[Episodes]):
    """An actor that records whole episodes.

    Attributes:
        episodes: The store.
    """

    def __init__(
        self,
        policy: Policy,
        episodes: Episodes,
        device: torch.device,
        random: np.random.Generator,
    ) -> None:
        super().__init__(policy, episodes, None, device, random)
        self.episodes = episodes


def sample_episodes(
    env: str | Callable[..., Any],
    count: int,
    *,
    policy: Policy | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> tuple[AgentGroup, list[Episode]]:
    """Play, and return whole episodes: what preferences are drawn from.

    Args:
        env: Any name that `fugu.make` takes, or something to call for an environment.
        count: Number of episodes; the first ones that end, of a few copies.
        policy: The policy that plays; None: a new one, which acts almost at random.
        env_kwargs: Arguments of the environment.
        seed: Seed of the environments and of the actions.

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
