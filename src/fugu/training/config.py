"""All settings of a training run, in the order in which layers of them win."""

from __future__ import annotations

import logging
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from fugu.algos.decision_transformer import DecisionTransformerConfig
from fugu.algos.dreamer.config import PRESETS as DREAMER_PRESETS
from fugu.algos.dreamer.config import DreamerConfig, DreamerPolicyConfig
from fugu.algos.grpo import GRPOConfig
from fugu.algos.mappo import MAPPOConfig
from fugu.algos.optimisers import OptimiserKind
from fugu.algos.ppo import PPOConfig
from fugu.algos.safe_ppo import SafePPOConfig
from fugu.core.config import Tree, from_tree, merge, parse_value, read_toml
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
from fugu.envs import suite
from fugu.envs.contract import AgentGroup
from fugu.envs.recipes import find_recipe, recipe_name
from fugu.policies.central import make_player
from fugu.policies.config import PolicyConfig
from fugu.policies.decision_transformer import DecisionTransformerPolicyConfig
from fugu.policies.policy import Policy
from fugu.training.defaults import choose, observe
from fugu.training.unused_settings import check_unused, is_unused

log = logging.getLogger("fugu")

PRESETS: dict[str, Tree] = {
    **DREAMER_PRESETS,
    "mujoco": {  # bodies that move: numbers in, numbers out, sixteen copies
        "vec": {"num_envs": 16},
        "train": {
            "horizon": 128,
            "epochs": 10,
            "minibatches": 32,
            "learning_rate": 3e-4,
            "entropy_coefficient": 0.0,
            "value_loss": "mse",
        },
        "policy": {
            "layers": 2,
            "hidden_size": 64,
            "activation": "tanh",
            "critic": "own",
            "normalise": True,
        },
    },
    "classic": {  # PPO as in its paper's experiments on Atari, and nothing beside
        "vec": {"num_envs": 8},
        "train": {
            "horizon": 128,
            "epochs": 4,
            "minibatches": 4,
            "replay_ratio": "none",
            "gamma": 0.99,
            "lambda_": 0.95,
            "advantage": "gae",
            "clip": 0.1,
            "value_loss": "mse",
            "value_coefficient": 0.5,
            "entropy_coefficient": 0.01,
            "final_entropy_coefficient": "none",
            "alpha": 0.0,
            "target_kl": "none",
            "desired_kl": "none",
            "intrinsic": "none",
            "best_episodes": 0,
            "learning_rate": 2.5e-4,
            "schedule": "linear",
            "optimiser": "adamw",
            "max_gradient_norm": 0.5,
            "reward_clip": 1.0,
        },
    },
}


@dataclass(frozen=True)
class LearningConfig(CheckedConfig):
    """What every algorithm has."""

    section: ClassVar[str] = "train"

    total_steps: PositiveInt = 1_000_000
    """Agent steps of the whole run."""
    optimiser: OptimiserKind = "adamw"
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

    @property
    def emulation(self) -> dict[str, Any]:
        """Settings of `fugu.emulate` that the algorithm needs."""
        return {}

    def num_critics(self, group: AgentGroup) -> int:
        """Values that the policy of a group gives of an observation."""
        return 1

    def player(self, factory: Callable[..., Policy]) -> Callable[..., Policy]:
        """What makes policies that only act; `factory` makes those of a plain algorithm."""
        return factory


@dataclass(frozen=True)
class TrainConfig(PPOConfig, LearningConfig):
    """How to learn with PPO."""


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
    """One training run."""

    unhinted: ClassVar[tuple[str, ...]] = ()  # sections that an environment's file does not fill
    env: str = ""
    """What to train on: any name that `fugu.make` takes."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    seed: int = 0
    """Root of all chance."""
    device: str = "cpu"
    """Where policies live: cpu, cuda, mps."""
    algo: str = "ppo"
    """Which algorithm; it says what settings `train` has."""
    train: TrainConfig = field(default_factory=TrainConfig)
    vec: VecConfig = field(default_factory=VecConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    run: RunConfig = field(default_factory=RunConfig)
    league: LeagueConfig = field(default_factory=LeagueConfig)

    def __post_init__(self) -> None:
        check_unused(self)

    @property
    def env_options(self) -> dict[str, Any]:
        """Arguments of `fugu.make` that decide what the environments show, to play as well."""
        checks = {"check_finite": self.vec.check_finite}
        return {"env_kwargs": self.env_kwargs, **checks, **self.train.emulation}


@dataclass(frozen=True)
class OfflineConfig(DecisionTransformerConfig, LearningConfig):
    """How to learn with the Decision Transformer."""

    total_steps: int = 2_000_000
    """Steps of sequences to learn from, padding left out: a batch of 64 has up to 1,280."""
    learning_rate: float = 0.001
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: float = 0.1
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class DecisionTransformerRunConfig(Config):
    """One run of the Decision Transformer."""

    unhinted: ClassVar[tuple[str, ...]] = ("train", "policy")  # they are for those that play
    algo: str = "decision_transformer"
    train: OfflineConfig = field(default_factory=OfflineConfig)  # type: ignore[assignment]
    vec: VecConfig = field(default_factory=lambda: VecConfig(num_envs=1))
    policy: DecisionTransformerPolicyConfig = field(default_factory=DecisionTransformerPolicyConfig)


@dataclass(frozen=True)
class DreamerTrainConfig(DreamerConfig, LearningConfig):
    """How to learn with Dreamer."""

    total_steps: int = 100_000
    """Agent steps of the whole run."""
    optimiser: OptimiserKind = "laprop"
    """Which optimiser, of all networks together."""
    learning_rate: float = 3e-4
    """Of the optimiser, at its height."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls."""
    threads: int = 1
    """Threads that torch may use; 0: as it chooses. More do not help with small networks."""


@dataclass(frozen=True)
class DreamerVecConfig(VecConfig):
    """How environments are run for Dreamer."""

    num_envs: int = 8
    """Copies."""


@dataclass(frozen=True)
class DreamerRunConfig(Config):
    """One run of Dreamer."""

    unhinted: ClassVar[tuple[str, ...]] = ("train", "policy")  # they are for those without a model
    algo: str = "dreamer"
    train: DreamerTrainConfig = field(default_factory=DreamerTrainConfig)  # type: ignore[assignment]
    vec: DreamerVecConfig = field(default_factory=DreamerVecConfig)
    policy: DreamerPolicyConfig = field(  # type: ignore[assignment]
        default_factory=DreamerPolicyConfig
    )


@dataclass(frozen=True)
class SafeTrainConfig(SafePPOConfig, TrainConfig):
    """How to learn with Safe PPO."""

    @property
    def emulation(self) -> dict[str, Any]:
        """Which entries of infos are costs."""
        return {"costs": self.costs}

    def num_critics(self, group: AgentGroup) -> int:
        """One for the reward and one for each constraint."""
        return 1 + group.num_costs


@dataclass(frozen=True)
class SafePPORunConfig(Config):
    """One run of Safe PPO."""

    algo: str = "safe_ppo"
    train: SafeTrainConfig = field(default_factory=SafeTrainConfig)


@dataclass(frozen=True)
class MAPPOTrainConfig(MAPPOConfig, TrainConfig):
    """How to learn with MAPPO, or IPPO."""

    learning_rate: float = 7e-4
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    @property
    def emulation(self) -> dict[str, Any]:
        """Whether environments show their state."""
        return {"global_state": self.critic == "central" and self.state != "observations"}

    def player(self, factory: Callable[..., Policy]) -> Callable[..., Policy]:
        """Actors alone."""
        return partial(make_player, factory, self.agent_ids, self.share_parameters)


@dataclass(frozen=True)
class MAPPORunConfig(Config):
    """One run of MAPPO, or IPPO."""

    algo: str = "mappo"
    train: MAPPOTrainConfig = field(default_factory=MAPPOTrainConfig)


@dataclass(frozen=True)
class GRPOTrainConfig(GRPOConfig, LearningConfig):
    """How to learn with GRPO."""

    def num_critics(self, group: AgentGroup) -> int:
        """None: the team tells what an episode was worth."""
        return 0


@dataclass(frozen=True)
class GRPOVecConfig(VecConfig):
    """How environments are run for GRPO."""

    group_size: int = 8
    """Copies that begin each episode alike, and are compared."""


@dataclass(frozen=True)
class GRPORun(Config):
    """One run of GRPO."""

    algo: str = "grpo"
    train: GRPOTrainConfig = field(default_factory=GRPOTrainConfig)  # type: ignore[assignment]
    vec: GRPOVecConfig = field(default_factory=GRPOVecConfig)


# The settings of each algorithm.
CONFIGS: dict[str, type[Config]] = {
    "decision_transformer": DecisionTransformerRunConfig,
    "dreamer": DreamerRunConfig,
    "grpo": GRPORun,
    "mappo": MAPPORunConfig,
    "ppo": Config,
    "safe_ppo": SafePPORunConfig,
}


def read_config(tree: Tree) -> Config:
    """Settings from a tree of them, such as a run keeps."""
    algo = tree.get("algo", "ppo")
    if not isinstance(algo, str) or algo not in CONFIGS:
        raise UsageError(f"algo: given {algo!r}; allowed: {', '.join(CONFIGS)}.")
    return from_tree(CONFIGS[algo], tree)


@dataclass(frozen=True)
class Layer:
    """Settings from one source; later layers win over earlier ones.

    Attributes:
        source: Where they come from, as `fugu train --dry-run` prints it.
        tree: The settings.
    """

    source: str
    tree: Tree


def resolve_config(
    env: str,
    *,
    preset: str | None = None,
    files: tuple[str | Path, ...] = (),
    overrides: Tree | None = None,
    factory: Callable[..., Any] | None = None,
) -> Config:
    """Return the settings of a run; see `config_layers` for which of them win."""
    layers = config_layers(env, preset=preset, files=files, overrides=overrides, factory=factory)
    return read_config(merge(*(layer.tree for layer in layers)))


def config_layers(
    env: str,
    *,
    preset: str | None = None,
    files: tuple[str | Path, ...] = (),
    overrides: Tree | None = None,
    factory: Callable[..., Any] | None = None,
) -> list[Layer]:
    """Return all settings that are not plain defaults, by where they come from.

    In the order in which later ones win: what is observed of the environment (see
    `fugu.training.defaults`), its own file or its recipe's, the preset, files, overrides.

    Args:
        env: The name of the environment; a plain Gymnasium id means its family's recipe.
        preset: The name of a preset.
        files: TOML files.
        overrides: Settings that were given one by one.
        factory: Makes the environment, if it has no name.
    """
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"preset: given {preset!r}; allowed: {', '.join(PRESETS)}.")
    env = env if factory else recipe_name(env)
    given = [Layer(f"preset {preset}", PRESETS[preset])] if preset else []
    given += [Layer(str(path), read_toml(path)) for path in files]
    given += [Layer("given", overrides or {}), Layer("given", {"env": env})]
    tree = merge(*(layer.tree for layer in given))
    hints = env_settings(env)
    in_league = hints.pop("league", {})  # what else holds there, such as a second agent
    league = tree.get("league")
    if isinstance(league, dict) and str(league.get("enabled", False)).lower() == "true":
        hints = merge(hints, in_league)
    algo = str(tree.get("algo", hints.get("algo", "ppo")))
    own = Layer(f"settings of {env}", _known(hints, algo))
    observed = _observed(factory or env, merge(own.tree, tree)) if algo == "ppo" else []
    return [*observed, own, *given]


def sources_of(layers: list[Layer]) -> dict[str, str]:
    """Return where each setting comes from, by its dotted name; what is not named is a default.

    >>> sources_of([Layer("a", {"train": {"gamma": 1}}), Layer("b", {"train": {"gamma": 2}})])
    {'train.gamma': 'b'}
    """
    found: dict[str, str] = {}

    def walk(tree: Tree, place: str, source: str) -> None:
        for key, value in tree.items():
            name = f"{place}{key}".replace("-", "_")
            if isinstance(value, dict) and name != "env_kwargs":
                walk(value, f"{name}.", source)
            else:
                found[name] = source

    for layer in layers:
        walk(layer.tree, "", layer.source)
    return found


def _observed(env: str | Callable[..., Any], tree: Tree) -> list[Layer]:
    """Settings that follow from what can be seen of an environment."""
    kwargs = tree.get("env_kwargs", {})
    core = tree.get("policy", {}).get("core", "none")
    copies = tree.get("vec", {}).get("num_envs", 0)
    copies = parse_value(copies) if isinstance(copies, str) else copies
    copies = copies if isinstance(copies, int) and copies > 0 else 0  # else an error comes later
    try:
        facts = observe(env, kwargs, recurrent=core != "none", num_envs=copies)
    except Exception:  # whoever makes it to train says what is wrong
        log.debug("%s could not be observed", env, exc_info=True)
        return []
    choices = [] if facts is None else choose(facts)
    return [Layer(f"observed: {choice.reason}", choice.settings) for choice in choices]


def _known(hints: Tree, algo: str) -> Tree:
    """Hints of an environment, without those that its algorithm does not know or use."""
    kind = CONFIGS.get(algo, Config)
    sections = typing.get_type_hints(kind)
    known: Tree = {}
    for name, value in hints.items():
        if name in kind.unhinted:
            continue
        if isinstance(value, dict) and is_dataclass(sections.get(name)):
            names = {item.name for item in fields(sections[name])}
            names = {key for key in names if not is_unused(algo, f"{name}.{key}")}
            known[name] = {key: entry for key, entry in value.items() if key in names}
        else:
            known[name] = value
    return known


def env_settings(env: str) -> Tree:
    """Return what an environment's own file or its recipe's says of its training.

    A recipe's table `environments` holds what differs for some of its environments, by their names
    without the version.
    """
    tree = _env_file(env)
    recipe = None if suite.find(env) else find_recipe(env)
    name = env.removeprefix(recipe.prefix) if recipe else ""
    own = tree.get("environments", {}).get(re.sub(r"[-_]v\d+$", "", name), {})
    plain = {key: value for key, value in tree.items() if key not in ("sweep", "environments")}
    return merge(plain, own)


def env_ranges(env: str) -> Tree:
    """The ranges that an environment's own file has for sweeps; empty if it has none."""
    ranges: Tree = _env_file(env).get("sweep", {})
    return ranges


def _env_file(env: str) -> Tree:
    path = suite.find(env) or (env if env.endswith(suite.SUFFIXES) else "")
    recipe = None if path else find_recipe(env)
    hints = recipe.settings if recipe else Path(path).with_suffix(".toml") if path else None
    return read_toml(hints) if hints is not None and hints.is_file() else {}
