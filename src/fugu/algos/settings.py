"""Settings of a training run: those of learning in general, of environments, of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from fugu.algos.optimizers import OptimizerConfig, OptimizerKind
from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.core.config import Tree, from_tree
from fugu.core.errors import UsageError
from fugu.core.intervals import (
    CheckedConfig,
    Fraction,
    FractionBelowOne,
    NonNegativeFloat,
    NonNegativeInt,
    NonNegativeOrInfinite,
    PositiveFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.envs.contract import AgentGroup
from fugu.policies.policy import Policy


@dataclass(frozen=True)
class Unused:
    """A setting that an algorithm inherits and cannot use: other values than these are refused.

    Attributes:
        allowed: The values that describe what happens in any case; the first is the default.
        advice: Why there are no others, and what to do instead.
    """

    allowed: tuple[Any, ...]
    advice: str


NO_CRITIC = Unused(("shared", "auto"), "It has no critic; leave the setting out.")
NO_INTRINSIC = Unused(("none",), "Use algo ppo for intrinsic rewards.")
NO_CUSTOM_LOSS = Unused((None,), "Use algo ppo for a loss function of your own.")


def check_unused(config: Any, unused: Mapping[str, Unused]) -> None:
    """Raise `UsageError` if settings hold one that their algorithm does not use.

    Args:
        config: All settings of a run.
        unused: The algorithm's settings without an effect, by their dotted names.
    """
    for path, rule in unused.items():
        section, name = path.split(".")
        given = getattr(getattr(config, section), name)
        if given not in rule.allowed:
            allowed = " or ".join(map(_shown, rule.allowed))
            raise UsageError(
                f"{path}: given {_shown(given)}; allowed: {allowed} with algo {config.algo}. "
                f"{rule.advice}"
            )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


@dataclass(frozen=True)
class LearningConfig(CheckedConfig):
    """What every algorithm has."""

    section: ClassVar[str] = "train"

    total_steps: PositiveInt = 1_000_000
    """Agent steps of the whole run."""
    optimiser: OptimizerKind = "adamw"
    """Which optimiser."""
    learning_rate: NonNegativeFloat = 0.003
    """Of the optimiser, at its height."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls."""
    final_learning_rate: NonNegativeFloat = 0.0
    """What it falls to, as a share of its height."""
    warmup: Fraction = 0.0
    """Share of the run in which the learning rate rises linearly to its peak; 0: none."""
    weight_decay: NonNegativeFloat = 0.0
    """How much weights shrink."""
    adam_beta1: FractionBelowOne = 0.9
    """Decay rate of AdamW's and LaProp's running mean of gradients."""
    adam_beta2: FractionBelowOne = 0.999
    """Decay rate of AdamW's and LaProp's running mean of squared gradients."""
    adam_eps: PositiveFloat | None = None
    """Epsilon of AdamW and LaProp, added to the denominator; if not given, 1e-5 for AdamW and 1e-20
    for LaProp."""
    momentum: FractionBelowOne = 0.95
    """Momentum of Muon."""
    cpu_offload: bool = False
    """Keep observations in pinned memory of the CPU and not on the policy's device."""
    compile: bool = False
    """Let torch compile the policy: slow to begin, sometimes faster then."""
    threads: NonNegativeInt = 0
    """Threads that torch may use; 0: one for small minibatches, else as it chooses."""
    deterministic: bool = False
    """Only exact algorithms and batches in a fixed order: two runs are alike on any device."""

    def optimizer_config(self) -> OptimizerConfig:
        """Return the settings of the optimizer and of its learning rate."""
        return OptimizerConfig(
            kind=self.optimiser,
            learning_rate=self.learning_rate,
            beta1=self.adam_beta1,
            beta2=self.adam_beta2,
            eps=self.adam_eps,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            schedule=self.schedule,
            final_share=self.final_learning_rate,
            warmup=self.warmup,
        )

    @property
    def emulation(self) -> dict[str, Any]:
        """Settings of `fugu.emulate` that the algorithm needs."""
        return {}

    def minibatch_steps(self, agents: int) -> int:
        """Return about how many steps a minibatch has, to choose threads; 0: unknown.

        Args:
            agents: Agents of all copies.
        """
        return 0

    def num_critics(self, group: AgentGroup) -> int:
        """Values that the policy of a group gives of an observation."""
        return 1

    def player(self, factory: Callable[..., Policy]) -> Callable[..., Policy]:
        """What makes policies that only act; `factory` makes those of a plain algorithm."""
        return factory


@dataclass(frozen=True)
class VecConfig(CheckedConfig):
    """How environments are run."""

    section: ClassVar[str] = "vec"

    num_envs: NonNegativeInt = 0
    """Copies; 0: as many as give 64 agents."""
    backend: Literal["auto", "serial", "threads", "process", "native", "batch", "ray"] = "auto"
    """Who steps them."""
    num_workers: PositiveInt | None = None
    """Threads, processes or actors; if not given, as many as cores, or as Ray has room for."""
    batch_size: PositiveInt | None = None
    """Environments of a batch; all if not given."""
    group_size: PositiveInt = 1
    """Copies that begin each episode alike."""
    step_timeout: PositiveOrInfinite = 60.0
    """Seconds without a sign of life after which a worker that has work is killed and restarted."""
    start_timeout: PositiveOrInfinite = 120.0
    """The same for a new worker process that has not reported yet."""
    max_restarts: NonNegativeInt = 10
    """Faults an hour that are mended so; one more ends the training."""
    check_finite: bool = True
    """Treat a NaN or infinite reward or observation as a fault; false hands it on."""
    ray_address: str = "auto"
    """Of Ray's cluster: auto (the one that this machine is part of), local, or HOST:PORT."""
    ray_cpus: NonNegativeFloat = 1.0
    """CPUs that each worker asks its node of the cluster for."""
    ray_resources: dict[str, float] = field(default_factory=dict)
    """What else it asks for: --vec.ray-resources.GPU 0.1, or resources of your own."""
    ray_timeout: PositiveFloat = 60.0
    """Seconds to wait until the cluster has a place for a worker."""


@dataclass(frozen=True)
class RunConfig(CheckedConfig):
    """What is kept of a run."""

    section: ClassVar[str] = "run"

    folder: Path = Path("runs")
    """Where runs are."""
    name: str | None = None
    """Of this run; made of the environment and the time if not given."""
    checkpoint_seconds: NonNegativeOrInfinite = 60.0
    """Time between checkpoints."""
    keep: PositiveInt = 3
    """Checkpoints to keep, beside the best."""
    evaluate_every: NonNegativeInt = 0
    """Agent steps between evaluations, which then say what is best; 0: the last episodes do."""
    evaluation_episodes: PositiveInt = 20
    """Episodes of an evaluation, as many of each agent, played without chance in the actions."""
    evaluation_max_episode_steps: PositiveInt = 100_000
    """Environment steps after which an evaluation counts a running episode as truncated."""
    record_data: Path | None = None
    """Write all episodes of the training to this folder, for algorithms that learn from data."""
    trajectories: bool = False
    """Keep programs that are written and what they earn, for `fugu coding export`."""
    tensorboard: bool = False
    """Write for TensorBoard too."""
    wandb: bool = False
    """Write for Weights & Biases too."""


@dataclass(frozen=True)
class LeagueConfig(CheckedConfig):
    """Whom a learner plays against, in games of two or more sides."""

    section: ClassVar[str] = "league"

    enabled: bool = False
    """Play against a pool of opponents and not only against oneself; `fugu league` sets it."""
    sides: NonNegativeInt = 0
    """Sides that the agents of a copy form, in their order; 0: each is one."""
    opponents: tuple[str, ...] = ()
    """Runs (RUN, RUN:best, RUN:STEP) that are in the pool for good; random is one too."""
    draw: Literal["hard", "even", "uniform"] = "hard"
    """Opponents by the learner's score p against them: (1 - p)^2, p (1 - p), or all alike."""
    self_share: Fraction = 0.5
    """Share of matches in which the learner holds all sides, and learns from all."""
    in_play: PositiveInt = 4
    """Opponents at a time, drawn anew with every update; each costs a forward pass a step."""
    snapshot_every: NonNegativeInt = 250_000
    """Agent steps between snapshots of the learner, which join the pool; 0: never."""
    snapshot_score: Fraction = 0.75
    """A snapshot is taken too when the learner scores so much against all of the pool; 1: never."""
    pool_size: NonNegativeInt = 16
    """Snapshots that are drawn at most; the one that is beaten most goes first. 0: all."""
    database: Path | None = None
    """The SQLite file of results and ratings; `league.sqlite` beside the runs if not given."""


@dataclass(frozen=True)
class Config:
    """All settings of a training run.

    The sections `train`, `vec` and `policy` have the types that the algorithm names; those that are
    not given have its defaults.
    """

    env: str = ""
    """What to train on: any name that `fugu.make` takes."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    seed: int = 0
    """Random seed; equal seeds give identical runs."""
    device: str = "cpu"
    """Device of the policies: cpu, cuda, mps."""
    algo: str = "ppo"
    """Name of the algorithm, or package.module:Name of one of your own; it determines the settings
    of `train`."""
    train: Any = None
    vec: Any = None
    policy: Any = None
    run: RunConfig = field(default_factory=RunConfig)
    league: LeagueConfig = field(default_factory=LeagueConfig)

    def __post_init__(self) -> None:
        for name, kind in section_types(self.algo).items():
            given = getattr(self, name)
            if given is None:
                object.__setattr__(self, name, kind())
            elif not isinstance(given, kind):
                raise UsageError(
                    f"{name}: expected the settings {kind.__name__} of algo {self.algo!r}; got "
                    f"{type(given).__name__}."
                )
        check_unused(self, find_algorithm(self.algo).unused)

    @property
    def env_options(self) -> dict[str, Any]:
        """Arguments of `fugu.make` that decide what the environments show, in evaluations too."""
        checks = {"check_finite": self.vec.check_finite}
        return {"env_kwargs": self.env_kwargs, **checks, **self.train.emulation}


def section_types(algo: str) -> dict[str, type[Any]]:
    """Return the type of each section; those of `train`, `vec` and `policy` are the algorithm's."""
    algorithm = find_algorithm(algo)
    return {
        "train": algorithm.Config,
        "vec": algorithm.VecConfig,
        "policy": algorithm.PolicyConfig,
        "run": RunConfig,
        "league": LeagueConfig,
    }


def read_config(tree: Tree) -> Config:
    """Return the settings that nested dicts describe, such as a run keeps."""
    algo = tree.get("algo", "ppo")
    if not isinstance(algo, str):
        raise UsageError(
            f"algo: expected {', '.join(algorithm_names())}, or package.module:Name; got {algo!r}."
        )
    sections: Tree = {}
    for name, kind in section_types(algo).items():
        given = tree.get(name, {})
        if not isinstance(given, Mapping):
            raise UsageError(f"{name}: given {given!r}; allowed: settings of their own.")
        sections[name] = from_tree(kind, given, f"{name}.")
    return from_tree(Config, {**tree, **sections})
