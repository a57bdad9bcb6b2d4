"""All settings of a training run, in the order in which layers of them win."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from fugu.algos.ppo import PPOConfig
from fugu.core.config import Tree, from_tree, merge, read_toml
from fugu.core.errors import UsageError
from fugu.envs import suite
from fugu.policies.config import PolicyConfig

PRESETS: dict[str, Tree] = {
    "classic": {
        "train": {
            "gamma": 0.99,
            "lambda_": 0.95,
            "rho_clip": 1.0,
            "c_clip": 1.0,
            "alpha": 1.0,
            "beta": 0.0,
            "clip": 0.1,
            "value_clip": 0.1,
            "entropy_coefficient": 0.01,
            "value_coefficient": 0.5,
            "learning_rate": 2.5e-4,
            "optimiser": "adamw",
            "max_gradient_norm": 0.5,
            "epochs": 4,
            "reward_clip": 1.0,
        }
    }
}


@dataclass(frozen=True)
class LearningConfig:
    """What every algorithm has."""

    total_steps: int = 1_000_000
    """Agent steps of the whole run."""
    optimiser: Literal["adamw", "muon", "muon_torch"] = "adamw"
    """Which optimiser."""
    learning_rate: float = 0.003
    """Of the optimiser, at its height."""
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls."""
    final_learning_rate: float = 0.0
    """What it falls to, as a share of its height."""
    warmup: float = 0.0
    """Share of the run in which it rises from 0."""
    weight_decay: float = 0.0
    """How much weights shrink."""
    cpu_offload: bool = False
    """Keep observations in pinned memory of the CPU and not on the policy's device."""
    compile: bool = False
    """Let torch compile the policy: slow to begin, sometimes faster then."""
    threads: int = 0
    """Threads that torch may use; 0: as it chooses."""
    deterministic: bool = False
    """Only exact algorithms and batches in a fixed order: two runs are alike on any device."""


@dataclass(frozen=True)
class TrainConfig(PPOConfig, LearningConfig):
    """How to learn with PPO."""


@dataclass(frozen=True)
class VecConfig:
    """How environments are run."""

    num_envs: int = 0
    """Copies; 0: as many as give 64 agents."""
    backend: Literal["auto", "serial", "threads", "process", "native"] = "auto"
    """Who steps them."""
    num_workers: int | None = None
    """Threads or processes; as many as there are cores if not given."""
    batch_size: int | None = None
    """Environments of a batch; all if not given."""
    group_size: int = 1
    """Copies that begin each episode alike."""
    step_timeout: float = 60.0
    """Seconds after which a step counts as stalled, and its worker is begun anew."""
    max_restarts: int = 10
    """Faults an hour that are mended so; one more ends the training."""


@dataclass(frozen=True)
class RunConfig:
    """What is kept of a run."""

    folder: Path = Path("runs")
    """Where runs are."""
    name: str | None = None
    """Of this run; made of the environment and the time if not given."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints."""
    keep: int = 3
    """Checkpoints to keep, beside the best."""
    evaluate_every: int = 0
    """Agent steps between evaluations, which then say what is best; 0: the last episodes do."""
    evaluation_episodes: int = 20
    """Episodes of an evaluation, played without chance in the actions."""
    tensorboard: bool = False
    """Write for TensorBoard too."""
    wandb: bool = False
    """Write for Weights & Biases too."""


@dataclass(frozen=True)
class Config:
    """One training run."""

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


# The settings of each algorithm.
CONFIGS: dict[str, type[Config]] = {"ppo": Config}


def read_config(tree: Tree) -> Config:
    """Settings from a tree of them, such as a run keeps."""
    algo = tree.get("algo", "ppo")
    if algo not in CONFIGS:
        raise UsageError(f"algo: given {algo!r}; allowed: {', '.join(CONFIGS)}.")
    return from_tree(CONFIGS[algo], tree)


def resolve_config(
    env: str,
    *,
    preset: str | None = None,
    files: tuple[str | Path, ...] = (),
    overrides: Tree | None = None,
) -> Config:
    """The settings of a run: defaults < the environment's own < preset < files < overrides."""
    if preset is not None and preset not in PRESETS:
        raise UsageError(f"preset: given {preset!r}; allowed: {', '.join(PRESETS)}.")
    given = merge(PRESETS[preset] if preset else {}, *map(read_toml, files), overrides or {})
    hints = env_settings(env)
    algo = str(given.get("algo", hints.get("algo", "ppo")))
    return read_config(merge(_known(hints, CONFIGS.get(algo, Config)), given, {"env": env}))


def _known(hints: Tree, kind: type[Config]) -> Tree:
    """Hints of an environment, without those for settings of another algorithm."""
    sections = typing.get_type_hints(kind)
    known: Tree = {}
    for name, value in hints.items():
        if isinstance(value, dict) and is_dataclass(sections.get(name)):
            names = {item.name for item in fields(sections[name])}
            known[name] = {key: entry for key, entry in value.items() if key in names}
        else:
            known[name] = value
    return known


def env_settings(env: str) -> Tree:
    """What an environment's own file says of its training; empty if it has none."""
    path = suite.find(env) or (env if env.endswith(suite.SUFFIXES) else "")
    hints = Path(path).with_suffix(".toml") if path else None
    if hints is None or not hints.is_file():
        return {}
    return {key: value for key, value in read_toml(hints).items() if key != "sweep"}
