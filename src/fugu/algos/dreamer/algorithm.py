"""Dreamer: agents act by their latent states, and learn from replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
from fugu.rollout.actor import Actor
from fugu.rollout.collector import Collector
from fugu.rollout.forwards import TorchForward

ACTIONS, SEQUENCES, WEIGHTS, LATENTS = 1, 2, 3, 4  # branches of the seed tree


class LatentForward(TorchForward):
    """Computes the outputs of an agent that draws its latent states."""

    def __init__(self, agent: DreamerAgent, random: torch.Generator) -> None:
        super().__init__(agent)
        self._agent, self._random = agent, random

    def __call__(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return parameters of actions, no values, and the new states."""
        params, after = self._agent.step(observations, state, self._random)
        return params, params[:, :0], after


class ReplayActor(Actor[Replay]):
    """Acts for one group's agents, and fills their replay.

    Attributes:
        fresh: Steps since the last update.
        owed: Gradient steps that the train ratio asked for and that were not taken yet, below 1.
    """

    policy: DreamerAgent

    def __init__(
        self,
        agent: DreamerAgent,
        replay: Replay,
        cfg: DreamerConfig,
        random: np.random.Generator,
        latent_random: torch.Generator,
    ) -> None:
        forward = LatentForward(agent, latent_random)
        super().__init__(agent, replay, None, latent_random.device, random, forward)
        self._cfg, self.fresh, self.owed = cfg, 0, 0.0

    @property
    def full(self) -> bool:
        """Whether an update is due."""
        return self.fresh >= self._cfg.update_every and self._debt >= 1.0

    @property
    def _debt(self) -> float:
        batch = self._cfg.batch_size * self._cfg.batch_length
        return self.owed + self.fresh * self._cfg.train_ratio / batch

    def settle(self) -> int:
        """Return the number of gradient steps of an update that is due."""
        count = int(self._debt)
        self.owed, self.fresh = self._debt - count, 0
        return count

    def _record_ends(
        self, agents: NDArray[np.int64], rows: Buffers, acted: NDArray[np.bool_]
    ) -> None:
        self.store.record_ends(agents, rows, acted)

    def _record_steps(
        self,
        agents: NDArray[np.int64],
        observations: NDArray[Any],
        masks: NDArray[np.bool_],
        samples: NDArray[np.float32],
        log_probabilities: NDArray[np.float32],
        values: Tensor,
        before: Tensor,
        after: Tensor,
        seen: Tensor,
    ) -> None:
        world, replay = self.policy.world, self.store
        if not masks.all():
            world.masked.fill_(True)
        deter, stoch = world.rssm.split(after[:, : world.rssm.num_features])
        latents = {"deter": deter, "stoch": world.rssm.categories(stoch)}
        arrays = {name: latent.cpu().numpy() for name, latent in latents.items()}
        replay.record_step(agents, observations, masks, samples, **arrays)
        enough = min(self._cfg.prefill, replay.shape.steps * replay.shape.agents)
        if self.fresh or (len(replay) >= enough and replay.full):
            self.fresh += len(agents)


class Dreamer(Algorithm):
    """Dreamer, with an actor and a learner for each group of agents."""

    Config, PolicyConfig, VecConfig = DreamerConfig, DreamerPolicyConfig, DreamerVecConfig
    changeable = ("learning_rate", "final_learning_rate")
    ignored_hints = ("train", "policy")
    unused: ClassVar[Mapping[str, Unused]] = {
        "train.cpu_offload": Unused(
            (False,), "Dreamer's replay is in the CPU's memory in any case."
        )
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
        self.policies = [actor.policy for actor in self.actors]
        self.collector: Collector = Collector(vec, self.actors)
        self.episodes = self.collector.episodes

    @classmethod
    def policy_factory(cls, config: Any, factory: PolicyFactory) -> PolicyFactory:
        """Return the class of its agents, whatever the user's factory is."""
        return DreamerAgent

    def _add_group(self, group: AgentGroup) -> None:
        cfg, train = self.cfg, self.cfg.train
        agent = DreamerAgent(group, cfg.policy).to(self._device)
        if train.compile:
            compile_agent(agent)
        agents = self.vec.num_envs * group.num_agents
        shape = ReplayShape(
            agents=agents,
            steps=train.replay_size // agents,
            length=train.batch_length,
            num_samples=agent.distribution.num_samples,
            deter=cfg.policy.deter,
            stoch=cfg.policy.stoch,
        )
        replay = Replay(group, shape, online=train.online)
        actor = ReplayActor(agent, replay, train, self._random[0], self._latent_random)
        self.actors.append(actor)
        optimizer = make_optimizer(agent, train.optimizer_config())
        self.learners.append(DreamerLearner(agent, optimizer, train))

    # ------------------------------------------------------------------ collect and update

    def start(self, seed: int) -> None:
        """Begin a run: reset all environments with this seed."""
        self.collector.start(seed)

    def collect(self) -> None:
        """Step until the train ratio asks for a gradient step of some group."""
        self.collector.collect()

    def update(self, progress: float) -> Metrics:
        """Take as many gradient steps as the train ratio asks for, and return metrics."""
        losses: Metrics = {}
        rate = self.context.learning_rate(progress)
        for actor, learner, group in zip(self.actors, self.learners, self.vec.groups, strict=True):
            if not actor.full:
                continue
            found = self._learn(actor, learner, actor.settle(), rate)
            found |= {"gradient_steps": float(learner.steps), "replay": float(len(actor.store))}
            prefix = "" if len(self.learners) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in found.items()}
        return losses

    def _learn(
        self, actor: ReplayActor, learner: DreamerLearner, count: int, learning_rate: float
    ) -> dict[str, float]:
        """Take gradient steps and return the means of their metrics."""
        rssm, train = actor.policy.world.rssm, self.cfg.train
        names: list[str] = []
        total = torch.zeros(1, device=self._device)
        for _ in range(count):
            batch = actor.store.sample(train.batch_size, self._random[1], self._device)
            parts, latents = learner.step(batch, learning_rate, self._latent_random)
            stoch = rssm.categories(latents.stoch)
            actor.store.refresh(batch.places[1:], latents.deter, stoch)
            names, total = list(parts), total + torch.stack(list(parts.values()))
        return dict(zip(names, (total / count).tolist(), strict=True))

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs, the replay included."""
        tensors: Tensors = {"latents": {"random": self._latent_random.get_state()}}
        optimizers, counters = [], []
        for i, (actor, learner) in enumerate(zip(self.actors, self.learners, strict=True)):
            optimizers.append(save_network(tensors, i, actor.policy, learner.optimizer))
            tensors[f"replay_{i}"] = dict(actor.store.state_dict())
            tensors[f"actor_{i}"] = {"states": actor.states, **actor.store.pending}
            counters.append([learner.steps, actor.fresh, actor.owed])
        save_environments(tensors, self.collector)
        state = {
            "optimisers": optimizers,
            "counters": counters,
            "random": save_rng(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
        }
        return tensors, state

    def load_state_dict(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Go back to a `state_dict`."""
        for i, (actor, learner) in enumerate(zip(self.actors, self.learners, strict=True)):
            load_network(tensors, i, actor.policy, learner.optimizer, state["optimisers"][i])
            actor.store.load_state_dict(as_arrays(tensors[f"replay_{i}"]))
            kept = tensors[f"actor_{i}"]
            actor.states = as_tensor(kept["states"]).clone().to(self._device)
            for name, array in actor.store.pending.items():
                array[:] = as_array(kept[name])
            learner.steps, actor.fresh, actor.owed = state["counters"][i]
        self._latent_random.set_state(as_tensor(tensors["latents"]["random"]).cpu())
        load_rng(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        if not load_environments(tensors, self.collector):
            self.start(int(state["reset_seed"]))


def compile_agent(agent: DreamerAgent) -> None:
    """Let torch compile the networks that run on whole batches; the names of weights stay."""
    world = agent.world
    parts: list[nn.Module | None] = [world.encoder.mlp, world.decoder.trunk, world.reward.network]
    for network in [*parts, agent.actor.network, agent.critic.network]:
        if network is not None:
            network.compile()
