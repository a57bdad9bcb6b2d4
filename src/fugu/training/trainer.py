"""The trainer: collects, updates, records, saves; and goes on from what was saved."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch

from fugu.algos.optimisers import OptimiserConfig, make_optimiser
from fugu.algos.ppo import PPO
from fugu.algos.schedules import learning_rate_at
from fugu.core.errors import FuguError, UsageError
from fugu.core.seeding import derive
from fugu.data.segments import Segments, SegmentShape
from fugu.policies.policy import Policy, make_policy
from fugu.store.checkpoint import Checkpoint
from fugu.training.collect import Actor, Collector
from fugu.training.config import Config
from fugu.training.normalise import RewardScale
from fugu.vector import Vector, make

ENVIRONMENTS, SAMPLING, ROWS, WEIGHTS = range(4)  # branches of the seed tree
AGENTS = 64  # as many copies as give so many
Report = Mapping[str, float]


class DivergedError(FuguError, ArithmeticError):
    """A loss or a weight is not a number any more."""


@dataclass(frozen=True)
class Progress:
    """How a run stands after an update.

    Attributes:
        steps: Agent steps so far.
        updates: Updates so far.
        steps_per_second: Over the last update.
        phases: Seconds of each phase of the last update.
        losses: Of the last update.
        episodes: Means over the episodes that ended since the update before; empty if none did.
    """

    steps: int
    updates: int
    steps_per_second: float
    phases: Report
    losses: Report
    episodes: Report


class Trainer:
    """Everything of one run that lives while it runs.

    Attributes:
        cfg: Its settings.
        vec: Its environments.
        policies: One for each group of agents.
        steps: Agent steps so far.
        updates: Updates so far.
        stopping: Set from outside, ends `run` after the update under way.
    """

    def __init__(self, cfg: Config) -> None:
        self.cfg, self.device = cfg, find_device(cfg.device)
        self.vec = make_vector(cfg)
        self.updates, self.stopping = 0, False
        self._random = [
            np.random.default_rng(derive(cfg.seed, branch)) for branch in (SAMPLING, ROWS)
        ]
        torch.manual_seed(derive(cfg.seed, WEIGHTS) >> 1)
        self.policies: list[Policy] = []
        self._actors: list[Actor] = []
        self._learners: list[PPO] = []
        for group in self.vec.groups:
            policy = make_policy(group, cfg.policy).to(self.device)
            agents = self.vec.num_envs * group.num_agents
            shape = SegmentShape(
                agents,
                cfg.train.rows or agents,
                cfg.train.horizon,
                policy.distribution.num_samples,
                policy.state_size,
            )
            segments = Segments(group, shape)
            self.policies.append(policy)
            scale = RewardScale(agents, cfg.train.gamma)
            self._actors.append(Actor(policy, segments, scale, self.device, self._random[0]))
            optimiser = make_optimiser(policy, optimiser_config(cfg))
            self._learners.append(PPO(policy, optimiser, cfg.train, self._random[1]))
        self.collector = Collector(self.vec, self._actors)

    @property
    def steps(self) -> int:
        """Agent steps so far."""
        return self.collector.steps

    @property
    def progress(self) -> float:
        """Of the whole run, from 0 to 1."""
        return min(1.0, self.steps / self.cfg.train.total_steps)

    def run(self, after_update: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train to the end, or until it is told to stop; a new run begins its environments."""
        if not self.updates and not self.steps:
            self.collector.start(derive(self.cfg.seed, ENVIRONMENTS))
        while self.steps < self.cfg.train.total_steps and not self.stopping:
            after_update(self.update())

    def update(self) -> Progress:
        """Collect rows and learn from them."""
        self._check({})  # somebody may have laid hands on the weights
        began, steps = time.perf_counter(), self.steps
        self.collector.collect()
        collected = time.perf_counter()
        losses: dict[str, float] = {}
        rate = learning_rate_at(self.progress, optimiser_config(self.cfg))
        for actor, learner, group in zip(
            self._actors, self._learners, self.vec.groups, strict=True
        ):
            if not actor.segments.full:
                continue
            for parameters in learner.optimiser.param_groups:
                parameters["lr"] = rate
            divisor = actor.scale.divisor if self.cfg.train.normalise_rewards else 1.0
            told = learner.update(actor.segments, self.progress, divisor)
            prefix = "" if len(self._learners) == 1 else f"{group.name}/"
            losses |= {f"{prefix}{name}": value for name, value in told.items()}
        self._check(losses)
        self.updates += 1
        ended = time.perf_counter()
        phases = {"collect": collected - began, "learn": ended - collected}
        rates = (self.steps - steps) / max(ended - began, 1e-9)
        losses["learning_rate"] = rate
        episodes = self.collector.episodes.read()
        return Progress(self.steps, self.updates, rates, phases, losses, episodes)

    def _check(self, losses: Mapping[str, float]) -> None:
        bad = [name for name, value in losses.items() if math.isnan(value)]
        bad = [name for name in bad if not name.endswith("explained_variance")]
        for policy in self.policies:
            if not all(torch.isfinite(weight).all() for weight in policy.parameters()):
                bad.append("a weight")
        if bad:
            raise DivergedError(
                f"training: given {', '.join(bad)} that is not a number after {self.steps} steps; "
                "allowed: finite ones. The last checkpoint is from before. Try a lower "
                "train.learning-rate, or look at what the environment rewards."
            )

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Tensors and the rest of all that a run needs to go on exactly.

        Environments under way are waited for; what they said is taken when the run goes on.
        """
        tensors: dict[str, dict[str, Any]] = {}
        optimisers = []
        for i, (policy, actor, learner) in enumerate(
            zip(self.policies, self._actors, self._learners, strict=True)
        ):
            tensors[f"policy_{i}"] = dict(policy.state_dict())
            flat, rest = _flatten_optimiser(learner.optimiser.state_dict())
            tensors[f"optimiser_{i}"] = flat
            optimisers.append(rest)
            segments = actor.segments.state_dict()
            tensors[f"segments_{i}"] = {**segments, "recurrent": actor.states}
            tensors[f"scale_{i}"] = dict(actor.scale.state_dict())
        snapshot = self.collector.pause()
        if snapshot is not None:
            tensors["environments"] = snapshot
        state = {
            "steps": self.steps,
            "updates": self.updates,
            "optimisers": optimisers,
            "random": [generator.bit_generator.state for generator in self._random],
            "backend": [self.vec.backend, self.vec.num_workers],
        }
        return tensors, state

    def load_policies(self, checkpoint: Checkpoint) -> None:
        """Begin with the policies of a checkpoint, and nothing else of it."""
        for i, policy in enumerate(self.policies):
            given = checkpoint.tensors.get(f"policy_{i}", {})
            own = policy.state_dict()
            wrong = [k for k in own if k not in given or tuple(given[k].shape) != own[k].shape]
            if wrong or len(given) != len(own):
                raise UsageError(
                    f"init-from: given a policy whose {wrong[:3] or 'parts'} differ from this "
                    "one's; allowed: one of the same environment with the same policy settings."
                )
            policy.load_state_dict({k: _tensor(v) for k, v in given.items()})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state, tensors = checkpoint.state, checkpoint.tensors
        for i, (policy, actor, learner) in enumerate(
            zip(self.policies, self._actors, self._learners, strict=True)
        ):
            policy.load_state_dict({k: _tensor(v) for k, v in tensors[f"policy_{i}"].items()})
            flat = {k: _tensor(v) for k, v in tensors[f"optimiser_{i}"].items()}
            learner.optimiser.load_state_dict(_unflatten_optimiser(flat, state["optimisers"][i]))
            arrays = {k: _array(v) for k, v in tensors[f"segments_{i}"].items()}
            actor.states = torch.from_numpy(arrays.pop("recurrent").copy()).to(self.device)
            actor.segments.load_state_dict(arrays)
            actor.scale.load_state_dict({k: _array(v) for k, v in tensors[f"scale_{i}"].items()})
        for generator, saved in zip(self._random, state["random"], strict=True):
            generator.bit_generator.state = saved
        self.collector.steps, self.updates = int(state["steps"]), int(state["updates"])
        environments = tensors.get("environments")
        if environments is None:
            self.collector.start(derive(self.cfg.seed, ENVIRONMENTS, self.updates))
        else:
            self.collector.resume({k: _array(v) for k, v in environments.items()})

    def close(self) -> None:
        """End the environments."""
        self.vec.close()


def find_device(name: str) -> torch.device:
    """The device of that name, if it is there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"device: given {name!r}, which cannot be used here ({reason}); allowed: cpu, or cuda "
            "or mps where fugu doctor shows it."
        ) from None
    return device


def make_vector(cfg: Config) -> Vector:
    """The environments of a run."""
    if not cfg.env:
        raise UsageError("env: given nothing; allowed: any name that fugu.make takes.")
    num_envs, options = cfg.vec.num_envs, {"backend": cfg.vec.backend, "env_kwargs": cfg.env_kwargs}
    if not num_envs:
        with make(cfg.env, 1, backend="serial", env_kwargs=cfg.env_kwargs) as one:
            num_envs = max(1, AGENTS // one.num_agents)
    return make(
        cfg.env,
        num_envs,
        num_workers=cfg.vec.num_workers,
        batch_size=cfg.vec.batch_size,
        **options,  # type: ignore[arg-type]
    )


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


@contextlib.contextmanager
def stops_on_signals(trainer: Trainer) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM stop after the update under way; a second one stops at once.

    Gives a list that holds the signals that came.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before: dict[int, Any] = {}

    def stop(number: int, _frame: FrameType | None) -> None:
        trainer.stopping = True
        came.append(number)
        signal.signal(number, before[number])

    for ending in (signal.SIGINT, signal.SIGTERM):
        before[ending] = signal.signal(ending, stop)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flatten_optimiser(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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


def _unflatten_optimiser(flat: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**flat, **rest["numbers"]}.items():
        parameter, _, name = key.partition(".")
        state.setdefault(int(parameter), {})[name] = value
    return {"state": state, "param_groups": rest["param_groups"]}


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))


def _array(value: Any) -> np.ndarray[Any, Any]:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
