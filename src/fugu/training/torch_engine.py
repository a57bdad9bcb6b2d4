"""The engine in torch: serves every policy, on every device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fugu.algos.learner import Learner
from fugu.algos.optimisers import OptimiserConfig, make_optimiser
from fugu.algos.ppo import PPO
from fugu.core.machine import has_bfloat16
from fugu.core.seeding import derive
from fugu.data.segments import Segments, SegmentShape
from fugu.envs.contract import AgentGroup
from fugu.policies.config import PolicyConfig, PolicyEngine, Precision
from fugu.policies.policy import Policy
from fugu.training.collect import Actor, Collector, EpisodeRecord
from fugu.training.config import Config
from fugu.training.engine import Tensors
from fugu.training.forwards import make_forward, recall_forward
from fugu.training.normalise import RewardScale
from fugu.training.parts import Parts
from fugu.training.recollect import Recollection
from fugu.training.shares import own_seeds
from fugu.vector import Vector

SAMPLING, ROWS, WEIGHTS = 1, 2, 3  # branches of the seed tree; 0 is the environments'
LARGE_BATCH, LARGE_LAYER = 1024, 128  # below, converting to bfloat16 costs what its products save


class TorchEngine:
    """PPO for each group of agents; see `Engine` for what its parts do.

    Algorithms that learn from the same segments derive from it and say which policy and learner.

    Attributes:
        collector: Steps the environments.
        offloaded_bytes: Of observations that the device is spared.
    """

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
        self._learners: list[Learner] = []
        for group in vec.groups:
            self._add_group(group, parts)
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
        forward = make_forward(policy, stored.observation_layout, engine, whole)
        self.policies.append(policy)
        self._actors.append(Actor(policy, segments, scale, device, self._random[0], forward))
        optimiser = make_optimiser(policy, optimiser_config(cfg))
        self._learners.append(self.make_learner(group, policy, optimiser))

    # ------------------------------------------------------------------ what algorithms change

    def make_policy(self, group: AgentGroup, cfg: PolicyConfig, parts: Parts) -> Policy:
        """The policy of a group."""
        return parts.factory(cfg)(group, cfg)

    def make_learner(
        self, group: AgentGroup, policy: Policy, optimiser: torch.optim.Optimizer
    ) -> Learner:
        """What improves the policy of a group."""
        return PPO(policy, optimiser, self.cfg.train, self._random[1], self.ranks)

    def stored(self, group: AgentGroup) -> AgentGroup:
        """The group as segments know it: with the rows that its actor is shown."""
        return group

    def make_collector(self) -> Collector:
        """What steps the environments with the actors."""
        self._recollection = Recollection.of(self.policies, self.cfg.policy.recall_worth)
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
            tensors[f"policy_{i}"] = dict(policy.state_dict())
            flat, rest = flatten_optimiser(learner.optimiser.state_dict())
            tensors[f"optimiser_{i}"] = flat
            optimisers.append(rest)
            segments = actor.segments.state_dict()
            tensors[f"segments_{i}"] = {**segments, "recurrent": actor.states}
            tensors[f"scale_{i}"] = dict(actor.scale.state_dict())
            if remembered := learner.state_dict():
                tensors[f"learner_{i}"] = remembered
        if self._recollection is not None:
            tensors |= self._recollection.state()
        snapshot = self.collector.pause()
        if snapshot is not None:
            tensors["environments"] = snapshot
        state = {
            "optimisers": optimisers,
            "random": [generator.bit_generator.state for generator in self._random],
            "backend": [self.vec.backend, self.vec.num_workers],
            "policy_engines": self.policy_engines,
        }
        return tensors, state

    def restore(self, tensors: Mapping[str, Any], state: Mapping[str, Any], seed: int) -> None:
        """Go on from a checkpoint."""
        for i, (policy, actor, learner) in enumerate(
            zip(self.policies, self._actors, self._learners, strict=True)
        ):
            policy.load_state_dict({k: as_tensor(v) for k, v in tensors[f"policy_{i}"].items()})
            flat = {k: as_tensor(v) for k, v in tensors[f"optimiser_{i}"].items()}
            learner.optimiser.load_state_dict(unflatten_optimiser(flat, state["optimisers"][i]))
            arrays = {k: as_array(v) for k, v in tensors[f"segments_{i}"].items()}
            actor.states = torch.from_numpy(arrays.pop("recurrent").copy()).to(self._device)
            actor.segments.load_state_dict(arrays)
            actor.scale.load_state_dict({k: as_array(v) for k, v in tensors[f"scale_{i}"].items()})
            learner.load_state_dict(tensors.get(f"learner_{i}", {}))
        if self.cfg.policy.engine == "auto":
            self._recall_engines(state.get("policy_engines", ["torch"] * len(self._actors)))
        for generator, saved in zip(self._random, state["random"], strict=True):
            generator.bit_generator.state = saved
        self.collector.steps = int(state["steps"])
        environments = tensors.get("environments")
        if environments is None:
            self.start(seed)
        else:
            if self._recollection is not None:
                self._recollection.load(tensors)
            self.collector.resume({k: as_array(v) for k, v in environments.items()})

    def _recall_engines(self, recorded: list[str]) -> None:
        for actor, engine in zip(self._actors, recorded, strict=True):
            layout, agents = actor.segments.group.observation_layout, actor.segments.shape.agents
            actor.forward = recall_forward(engine, actor.policy, layout, agents)


def choose_precision(cfg: PolicyConfig, agents: int, device: torch.device) -> Precision:
    """What "auto" comes to: bfloat16 where batches and layers are large enough to gain by it.

    >>> choose_precision(PolicyConfig(precision="bfloat16"), 1, torch.device("cpu"))
    'bfloat16'
    >>> choose_precision(PolicyConfig(), 64, torch.device("cpu"))
    'float32'
    """
    if cfg.precision != "auto":
        return cfg.precision
    large = agents >= LARGE_BATCH and cfg.hidden_size >= LARGE_LAYER
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
        weight_decay=train.weight_decay,
        schedule=train.schedule,
        final_share=train.final_learning_rate,
        warmup=train.warmup,
    )


def as_tensor(value: Any) -> torch.Tensor:
    """A checkpoint's entry as a tensor."""
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A checkpoint's entry as an array."""
    return value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def flatten_optimiser(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors by `parameter.name`, and everything else."""
    flat, numbers = {}, {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            key = f"{parameter}.{name}"
            if isinstance(value, torch.Tensor):
                flat[key] = value
            else:
                numbers[key] = value
    return flat, {"numbers": numbers, "param_groups": state["param_groups"]}


def unflatten_optimiser(flat: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """What `flatten_optimiser` was given."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**flat, **rest["numbers"]}.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = value
    return {"state": state, "param_groups": rest["param_groups"]}
