"""The engine of PPO: torch serves every policy, on every device; the native core most on a CPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fugu.algos.learner import Learner
from fugu.algos.optimisers import OptimiserConfig, make_optimiser
from fugu.algos.ppo import PPO
from fugu.core.machine import has_bfloat16
from fugu.core.seeding import derive
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.nets.learning import NativeLearner
from fugu.policies.config import PolicyConfig, PolicyEngine, Precision
from fugu.policies.policy import Policy
from fugu.training.collect import Actor, Collector, EpisodeRecord
from fugu.training.config import Config
from fugu.training.engine import Tensors
from fugu.training.forwards import LearnerForward, make_forward, recall_forward
from fugu.training.keeping import (
    as_arrays,
    keep_chance,
    keep_environments,
    keep_network,
    recall_chance,
    recall_network,
)
from fugu.training.native_collect import NativeCollector, can_fill_rows
from fugu.training.native_learning import make_native_learner
from fugu.training.normalise import RewardScale
from fugu.training.parts import Parts
from fugu.training.recollect import Recollection
from fugu.training.shares import own_seeds
from fugu.vector import Vector

log = logging.getLogger("fugu")

SAMPLING, ROWS, WEIGHTS = 1, 2, 3  # branches of the seed tree; 0 is the environments'
LARGE_BATCH, LARGE_LAYER = 1024, 128  # below, converting to bfloat16 costs what its products save


class PPOEngine:
    """PPO for each group of agents; see `Engine` for what its parts do.

    Algorithms that learn from the same segments derive from it and say which policy and learner.

    Attributes:
        collector: Steps the environments.
        offloaded_bytes: Of observations that the device is spared.
        why_torch: Why torch learns a policy, where the native core might; empty if it does not.
    """

    why_torch = ""

    _recollection: Recollection | None = None

    def __init__(
        self,
        cfg: Config,
        vec: Vector,
        device: torch.device,
        parts: Parts,
    ) -> None:
        self.cfg, self.vec, self._device, self.ranks = cfg, vec, device, parts.ranks
        self._random = [
            self.ranks.row_generator(derive(cfg.seed, SAMPLING)),
            self.ranks.own_generator(derive(cfg.seed, ROWS)),
        ]
        torch.manual_seed(derive(cfg.seed, WEIGHTS) >> 1)
        self.policies: list[Policy] = []
        self._actors: list[Actor] = []
        self._cores: list[NativeLearner | None] = []
        self._learners: list[Learner] = []
        for group in vec.groups:
            self._add_group(group, parts)
        self._threads = torch.get_num_threads()
        if all(self._cores):  # threads of torch would wait, and take the core's processors
            torch.set_num_threads(1)
        self.collector = self.make_collector()
        stores = [actor.segments.observations for actor in self._actors]
        self.offloaded_bytes = sum(store.offloaded_bytes for store in stores)

    def _add_group(self, group: AgentGroup, parts: Parts) -> None:
        cfg, device, agents = self.cfg, self._device, self.vec.num_envs * group.num_agents
        precision = choose_precision(cfg.policy, agents, device)
        policy = self.make_policy(group, replace(cfg.policy, precision=precision), parts)
        policy = policy.to(device)
        if cfg.train.compile:
            compile_policy(policy)
        shape = SegmentShape(
            agents,
            cfg.train.rows or agents,
            cfg.train.horizon,
            policy.distribution.num_samples,
            policy.state_size,
            policy.num_critics,
            group.num_costs,
        )
        stored = policy.stored(self.stored(group))
        segments = Segments(stored, shape, device, cfg.train.cpu_offload)
        scale = RewardScale(agents, cfg.train.gamma, self.ranks)
        engine: PolicyEngine = cfg.policy.engine
        if engine == "auto" and (cfg.train.compile or precision == "bfloat16"):
            engine = "torch"
        whole = agents * self.ranks.size  # so that any number of ranks chooses alike
        layout = stored.observation_layout
        core, reason = make_native_learner(cfg, policy, layout, precision, device)
        self.why_torch = self.why_torch or reason
        forward = LearnerForward(core) if core else make_forward(policy, layout, engine, whole)
        self._cores.append(core)
        self.policies.append(policy)
        self._actors.append(Actor(policy, segments, scale, device, self._random[0], forward))
        optimiser = make_optimiser(policy, optimiser_config(cfg), core)
        self._learners.append(self.make_learner(group, policy, optimiser, core))

    # ------------------------------------------------------------------ what algorithms change

    def make_policy(self, group: AgentGroup, cfg: PolicyConfig, parts: Parts) -> Policy:
        """The policy of a group."""
        return parts.factory(cfg)(group, cfg)

    def make_learner(
        self,
        group: AgentGroup,
        policy: Policy,
        optimiser: torch.optim.Optimizer,
        core: NativeLearner | None,
    ) -> Learner:
        """What improves the policy of a group, with the native core's help if there is a core."""
        layout = policy.stored(self.stored(group)).observation_layout
        return PPO(policy, optimiser, self.cfg.train, self._random[1], self.ranks, core, layout)

    def stored(self, group: AgentGroup) -> AgentGroup:
        """The group as segments know it: with the rows that its actor is shown."""
        return group

    def make_collector(self) -> Collector:
        """What steps the environments with the actors."""
        self._recollection = Recollection.of(self.policies, self.cfg.policy.recall_worth)
        core, actor = self._cores[0], self._actors[0]
        says = actor.policy.distribution
        if core and not self._recollection and can_fill_rows(self.vec, core, says):
            return NativeCollector(self.vec, actor, core)
        return Collector(self.vec, self._actors, self._recollection)

    # ------------------------------------------------------------------ the engine

    @property
    def steps(self) -> int:
        """Agent steps so far."""
        return self.collector.steps

    @property
    def episodes(self) -> EpisodeRecord:
        """What ended episodes told."""
        return self.collector.episodes

    def start(self, seed: int) -> None:
        """Begin all environments anew."""
        self.collector.start(own_seeds(seed, self.vec, self.cfg.vec.group_size, self.ranks))

    @property
    def policy_engines(self) -> list[str]:
        """Who computes what the policies say while they collect, group by group."""
        return [actor.forward.engine for actor in self._actors]

    @property
    def engines(self) -> list[str]:
        """Who learns, group by group."""
        return ["native" if core else "torch" for core in self._cores]

    def collect(self) -> None:
        """Until some group's segments are full."""
        for actor in self._actors:
            actor.forward.refresh()
        self.collector.collect()

    def update(self, progress: float, learning_rate: float) -> dict[str, float]:
        """Learn from the segments that are full, at whatever rank."""
        losses: dict[str, float] = {}
        for actor, learner, group in zip(
            self._actors, self._learners, self.vec.groups, strict=True
        ):
            if not self.ranks.any(actor.segments.full):
                continue
            for parameters in learner.optimiser.param_groups:
                parameters["lr"] = learning_rate
            divisor = actor.scale.divisor if self.cfg.train.normalise_rewards else 1.0
            told = learner.update(actor.segments, progress, divisor)
            prefix = "" if len(self._learners) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in told.items()}
        return losses

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> tuple[Tensors, dict[str, Any]]:
        """All that the engine needs to go on exactly.

        Environments under way are waited for; what they said is taken when the run goes on.
        """
        tensors: Tensors = {}
        optimisers = []
        for i, (policy, actor, learner) in enumerate(
            zip(self.policies, self._actors, self._learners, strict=True)
        ):
            optimisers.append(keep_network(tensors, i, policy, learner.optimiser))
            segments = actor.segments.state_dict()
            tensors[f"segments_{i}"] = {**segments, "recurrent": actor.states}
            tensors[f"scale_{i}"] = dict(actor.scale.state_dict())
            if remembered := learner.state_dict():
                tensors[f"learner_{i}"] = remembered
        if self._recollection is not None:
            tensors |= self._recollection.state()
        keep_environments(tensors, self.collector)
        state = {
            "optimisers": optimisers,
            "random": keep_chance(self._random),
            "backend": [self.vec.backend, self.vec.num_workers],
            "policy_engines": self.policy_engines,
            "engines": self.engines,
        }
        return tensors, state

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], seed: int) -> None:
        """Go on from a checkpoint."""
        for i, (policy, actor, learner) in enumerate(
            zip(self.policies, self._actors, self._learners, strict=True)
        ):
            recall_network(tensors, i, policy, learner.optimiser, state["optimisers"][i])
            arrays = as_arrays(tensors[f"segments_{i}"])
            actor.states.copy_(torch.from_numpy(arrays.pop("recurrent")))
            actor.segments.load_state_dict(arrays)
            actor.scale.load_state_dict(as_arrays(tensors[f"scale_{i}"]))
            learner.load_state_dict(tensors.get(f"learner_{i}", {}))
        nobody = ["torch"] * len(self._actors)
        self._recall_engines(state.get("engines", nobody), state.get("policy_engines", nobody))
        recall_chance(self._random, state["random"])
        self.collector.steps = int(state["steps"])
        environments = tensors.get("environments")
        if environments is None:
            self.start(seed)
        else:
            if self._recollection is not None:
                self._recollection.load(tensors)
            self.collector.resume(as_arrays(environments))

    def _recall_engines(self, learned: list[str], said: list[str]) -> None:
        """Go on with those who learned and spoke so far, where the settings leave that open."""
        for i, actor in enumerate(self._actors):
            core = self._cores[i]
            if core and learned[i] == "torch" and self.cfg.train.engine == "auto":
                core = self._cores[i] = None
                self._learn_anew(self._learners[i])
                self._collect_anew()
            elif not core and learned[i] == "native":
                log.warning(
                    "this run was learned by the native core, and goes on with torch: its numbers "
                    "will differ in the last digits"
                )
            if core:
                core.refresh()
            elif self.cfg.policy.engine == "auto":
                layout, agents = (
                    actor.segments.group.observation_layout,
                    actor.segments.shape.agents,
                )
                actor.forward = recall_forward(said[i], actor.policy, layout, agents)

    def _learn_anew(self, learner: Learner) -> None:
        """With torch from now on, and an optimiser that takes torch's gradients."""
        kept = learner.optimiser.state_dict()
        learner.core = None
        learner.optimiser = make_optimiser(learner.policy, optimiser_config(self.cfg))
        learner.optimiser.load_state_dict(kept)

    def _collect_anew(self) -> None:
        """With torch from now on; whoever listened to episodes goes on listening."""
        torch.set_num_threads(self._threads)
        before, self.collector = self.collector, self.make_collector()
        self.collector.episodes, self.collector.witness = before.episodes, before.witness


def choose_precision(cfg: PolicyConfig, agents: int, device: torch.device) -> Precision:
    """What "auto" comes to: bfloat16 where batches and layers are large enough to gain by it.

    Convolutions always are.

    >>> choose_precision(PolicyConfig(precision="bfloat16"), 1, torch.device("cpu"))
    'bfloat16'
    >>> choose_precision(PolicyConfig(), 64, torch.device("cpu"))
    'float32'
    """
    if cfg.precision != "auto":
        return cfg.precision
    large = agents >= LARGE_BATCH and cfg.hidden_size >= LARGE_LAYER
    large |= cfg.encoder in ("nature", "impala")
    return "bfloat16" if large and device.type == "cpu" and has_bfloat16() else "float32"


def compile_policy(policy: Policy) -> None:
    """Let torch compile what runs on whole batches; names of weights stay as they are.

    A core that remembers is left out: where its episodes end is known only at run time.
    """
    if policy.state_size:
        for name, module in policy.named_modules():
            if name.rpartition(".")[2] in ("encoder", "decoder"):
                module.compile()
        return
    policy.forward = torch.compile(policy.forward)  # type: ignore[method-assign]
    policy.forward_segments = torch.compile(policy.forward_segments)  # type: ignore[method-assign]


def optimiser_config(cfg: Config) -> OptimiserConfig:
    """The optimiser's part of the settings."""
    train = cfg.train
    return OptimiserConfig(
        kind=train.optimiser,
        learning_rate=train.learning_rate,
        beta1=train.adam_beta1,
        beta2=train.adam_beta2,
        eps=train.adam_eps,
        weight_decay=train.weight_decay,
        momentum=train.momentum,
        schedule=train.schedule,
        final_share=train.final_learning_rate,
        warmup=train.warmup,
    )
