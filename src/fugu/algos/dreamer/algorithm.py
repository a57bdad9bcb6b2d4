"""Dreamer: agents act by their latent states, and learn from replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fugu.algos.algorithm import (
    Algorithm,
    Metrics,
    PolicyFactory,
    RunContext,
    State,
    Tensors,
    as_array,
    as_arrays,
    as_tensor,
    load_environments,
    load_network,
    load_rng,
    save_environments,
    save_network,
    save_rng,
)
from fugu.algos.dreamer.agent import DreamerAgent, DreamerLearner
from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig, DreamerVecConfig
from fugu.algos.optimizers import make_optimizer
from fugu.algos.settings import Unused
from fugu.core.seeding import derive
from fugu.data.replay import Replay, ReplayShape
from fugu.envs.contract import AgentGroup, Buffers
from fugu.rollout.collector import Collector

ACTIONS, SEQUENCES, WEIGHTS, LATENTS = 1, 2, 3, 4  # branches of the seed tree


class ReplayActor:
    """One group's agents: their latent states, and the replay that they fill.

    Attributes:
        agent: By which they act.
        replay: What they saw and did.
        states: Of the agents, as the policy has them.
        fresh: Steps since the last update.
        owed: Gradient steps that the train ratio asked for and that were not taken yet, less than
            one.
    """

    def __init__(
        self,
        agent: DreamerAgent,
        replay: Replay,
        cfg: DreamerConfig,
        random: np.random.Generator,
        latent_random: torch.Generator,
    ) -> None:
        self.agent, self.replay = agent, replay
        self._cfg, self._random, self._latent_random = cfg, random, latent_random
        self._device = latent_random.device
        agents = replay.shape.agents
        self.states = agent.initial_state(agents, self._device)
        self._rewards = np.zeros(agents, np.float32)  # since the last action
        self._waiting = np.zeros(agents, np.bool_)  # for what the last action earns
        self._first = np.ones(agents, np.bool_)  # whether the next observation begins an episode
        self.fresh, self.owed = 0, 0.0

    @property
    def full(self) -> bool:
        """Whether an update is due."""
        return self.fresh >= self._cfg.update_every and self._debt >= 1.0

    @property
    def _debt(self) -> float:
        batch = self._cfg.batch_size * self._cfg.batch_length
        return self.owed + self.fresh * self._cfg.train_ratio / batch

    def settle(self) -> int:
        """The gradient steps of an update that is due."""
        count = int(self._debt)
        self.owed, self.fresh = self._debt - count, 0
        return count

    def act(self, agents: NDArray[np.int64], rows: Buffers) -> NDArray[Any]:
        """Record what these agents received, and return their next actions."""
        self._earn(agents, rows)
        distribution, live = self.agent.distribution, rows.live
        samples = np.zeros((len(agents), distribution.num_samples), np.float32)
        if live.any():
            part: Any = slice(None) if live.all() else live
            masks = rows.action_masks[part]
            samples[part] = self._act(agents[part], rows.observations[part], masks)
        return distribution.to_rows(samples)

    def _earn(self, agents: NDArray[np.int64], rows: Buffers) -> None:
        """What followed the last actions; the last observation of an episode is a step too."""
        waiting = self._waiting[agents]
        self._rewards[agents] += np.where(waiting & rows.valid, rows.rewards, 0.0)
        ended = rows.terminations | rows.truncations | ~rows.valid
        if not ended.any():
            return
        over = ended & waiting & rows.valid
        self.replay.add(
            agents[over],
            observations=rows.final[over],
            rewards=self._rewards[agents[over]],
            last=True,
            terminal=rows.terminations[over],
        )
        self.replay.end(agents[waiting & ~rows.valid])
        gone = agents[ended]
        self.states[torch.from_numpy(gone).to(self._device)] = 0.0
        self._rewards[gone], self._waiting[gone], self._first[gone] = 0.0, False, True

    def _act(
        self, agents: NDArray[np.int64], observations: NDArray[Any], masks: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        seen = torch.from_numpy(np.ascontiguousarray(observations)).to(self._device)
        index = torch.from_numpy(agents).to(self._device)
        params, after = self.agent.step(seen, self.states[index], self._latent_random)
        free = bool(masks.all())
        samples, _ = self.agent.distribution.sample(
            params.cpu(), None if free else masks, self._random
        )
        if not free:
            self.agent.world.masked.fill_(True)
        self.states[index] = self.agent.acted(after, samples)
        rssm = self.agent.world.rssm
        features = after[:, : rssm.num_features]
        self.replay.add(
            agents,
            observations=observations,
            samples=samples,
            masks=masks,
            rewards=self._rewards[agents],
            first=self._first[agents],
            deter=features[:, : rssm.deter].cpu().numpy(),
            stoch=rssm.categories(features[:, rssm.deter :]).cpu().numpy(),
        )
        self._rewards[agents], self._waiting[agents], self._first[agents] = 0.0, True, False
        enough = min(self._cfg.prefill, self.replay.shape.steps * self.replay.shape.agents)
        if self.fresh or (len(self.replay) >= enough and self.replay.starts):
            self.fresh += len(agents)
        return samples

    def state_dict(self) -> dict[str, Any]:
        """All that is not the replay's or the agent's."""
        return {
            "states": self.states,
            "rewards": self._rewards,
            "waiting": self._waiting,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        self.states = as_tensor(state["states"]).clone().to(self._device)
        self._rewards[:] = as_array(state["rewards"])
        self._waiting[:] = as_array(state["waiting"])
        self._first[:] = as_array(state["first"])


class Dreamer(Algorithm):
    """Dreamer for each group of agents.

    Args:
        context: What the run hands in.

    Attributes:
        actors: One for each group.
        learners: One for each group.
    """

    Config, PolicyConfig, VecConfig = DreamerConfig, DreamerPolicyConfig, DreamerVecConfig
    changeable = ("learning_rate", "final_learning_rate")
    ignored_hints = ("train", "policy")
    unused: ClassVar[Mapping[str, Unused]] = {
        "train.cpu_offload": Unused(
            (False,), "Dreamer's replay is in the CPU's memory in any case."
        ),
    }

    def __init__(self, context: RunContext) -> None:
        cfg, vec, device = context.config, context.vector, context.device
        self.context, self.cfg, self.vec, self._device = context, cfg, vec, device
        self._random = [
            np.random.default_rng(derive(cfg.seed, branch)) for branch in (ACTIONS, SEQUENCES)
        ]
        self._latent_random = torch.Generator(device)
        self._latent_random.manual_seed(derive(cfg.seed, LATENTS) >> 1)
        torch.manual_seed(derive(cfg.seed, WEIGHTS) >> 1)
        self.actors: list[ReplayActor] = []
        self.learners: list[DreamerLearner] = []
        for group in vec.groups:
            self._add_group(group)
        self.policies = [actor.agent for actor in self.actors]
        self.collector: Collector = Collector(vec, self.actors)
        self.episodes = self.collector.episodes

    @classmethod
    def policy_factory(cls, config: Any, factory: PolicyFactory) -> PolicyFactory:
        """Return what makes its agents, whatever the user's factory."""
        return DreamerAgent

    def _add_group(self, group: AgentGroup) -> None:
        cfg, train = self.cfg, self.cfg.train
        agent = DreamerAgent(group, cfg.policy).to(self._device)
        if train.compile:
            compile_agent(agent)
        agents = self.vec.num_envs * group.num_agents
        shape = ReplayShape(
            agents,
            train.replay_size // agents,
            train.batch_length,
            agent.distribution.num_samples,
            cfg.policy.deter,
            cfg.policy.stoch,
        )
        replay = Replay(group, shape, online=train.online)
        random = self._random[0], self._latent_random
        self.actors.append(ReplayActor(agent, replay, train, *random))
        optimiser = make_optimizer(agent, train.optimizer_config())
        self.learners.append(DreamerLearner(agent, optimiser, train))

    # ------------------------------------------------------------------ collect and update

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        self.collector.start(seed)

    def collect(self) -> None:
        """Until the train ratio asks for a gradient step of some group."""
        self.collector.collect()

    def update(self, progress: float) -> Metrics:
        """Take as many gradient steps as the train ratio asks for, and return metrics."""
        losses: Metrics = {}
        rate = self.context.learning_rate(progress)
        for actor, learner, group in zip(self.actors, self.learners, self.vec.groups, strict=True):
            if not actor.full:
                continue
            found = self._learn(actor, learner, actor.settle(), rate)
            found |= {"gradient_steps": float(learner.steps), "replay": float(len(actor.replay))}
            prefix = "" if len(self.learners) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in found.items()}
        return losses

    def _learn(
        self, actor: ReplayActor, learner: DreamerLearner, count: int, learning_rate: float
    ) -> dict[str, float]:
        """Take gradient steps; the means of what they told."""
        rssm, train = actor.agent.world.rssm, self.cfg.train
        names: list[str] = []
        total = torch.zeros(1, device=self._device)
        for _ in range(count):
            batch = actor.replay.sample(train.batch_size, self._random[1], self._device)
            parts, latents = learner.step(batch, learning_rate, self._latent_random)
            stoch = rssm.categories(latents.stoch)
            actor.replay.refresh(batch.places[1:], latents.deter, stoch)
            names, total = list(parts), total + torch.stack(list(parts.values()))
        return dict(zip(names, (total / count).tolist(), strict=True))

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs, the replay included."""
        tensors: Tensors = {"latents": {"random": self._latent_random.get_state()}}
        optimisers, counters = [], []
        for i, (actor, learner) in enumerate(zip(self.actors, self.learners, strict=True)):
            optimisers.append(save_network(tensors, i, actor.agent, learner.optimiser))
            tensors[f"replay_{i}"] = dict(actor.replay.state_dict())
            tensors[f"actor_{i}"] = actor.state_dict()
            counters.append([learner.steps, actor.fresh, actor.owed])
        save_environments(tensors, self.collector)
        state = {
            "optimisers": optimisers,
            "counters": counters,
            "random": save_rng(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
        }
        return tensors, state

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        for i, (actor, learner) in enumerate(zip(self.actors, self.learners, strict=True)):
            load_network(tensors, i, actor.agent, learner.optimiser, state["optimisers"][i])
            actor.replay.load_state_dict(as_arrays(tensors[f"replay_{i}"]))
            actor.load_state_dict(tensors[f"actor_{i}"])
            learner.steps, actor.fresh, actor.owed = state["counters"][i]
        self._latent_random.set_state(as_tensor(tensors["latents"]["random"]).cpu())
        load_rng(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        if not load_environments(tensors, self.collector):
            self.start(int(state["reset_seed"]))


def compile_agent(agent: DreamerAgent) -> None:
    """Let torch compile the networks that run on whole batches; names of weights stay."""
    world = agent.world
    parts: list[nn.Module | None] = [world.encoder.mlp, world.decoder.trunk, world.reward.network]
    for network in [*parts, agent.actor.network, agent.critic.network]:
        if network is not None:
            network.compile()
