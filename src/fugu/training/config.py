"""All settings of a training run, in the order in which layers of them win."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from fugu.algos.dreamer.config import PRESETS as DREAMER_PRESETS
from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.algos.settings import Config, LearningConfig, read_config, section_types
from fugu.core.config import Tree, merge, parse_value, read_toml, to_tree
from fugu.core.errors import UsageError
from fugu.envs import suite
from fugu.envs.native_env import native_library
from fugu.envs.recipes import find_recipe, recipe_name
from fugu.envs.resolve import resolve
from fugu.policies.encoders import has_images, make_features
from fugu.vector import make

log = logging.getLogger("fugu")
BATCH = 2048  # steps per update
FEW, MANY = 8, 64  # agents that fill it: of one agent each, and of several agents a copy
SHORTEST = 16  # steps of a segment
REMEMBERING = 32  # the same if the policy is recurrent: minibatches are made of whole rows then

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
            "advantage_std_min": 0.0,
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


def given_settings(settings: LearningConfig) -> Tree:
    """Return an algorithm's settings that differ from their defaults, and the algorithm's name.

    >>> from fugu.algos.ppo import PPOConfig
    >>> given_settings(PPOConfig(gamma=0.98))
    {'algo': 'ppo', 'train': {'gamma': 0.98}}
    """
    kind = type(settings)
    names = [name for name in algorithm_names() if find_algorithm(name).Config is kind]
    if not names:
        raise UsageError(
            f"settings: expected those of an installed algorithm; got {kind.__name__}. Name the "
            'algorithm: fugu.train(env, algo="package.module:Name", train={...}).'
        )
    usual = to_tree(kind())
    given = {key: value for key, value in to_tree(settings).items() if value != usual[key]}
    return {"algo": names[0], "train": given}


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
    `fugu.training.config`), its own file or its recipe's, the preset, files, overrides.

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
    """Return an environment's settings without those that the algorithm does not know or use."""
    algorithm = find_algorithm(algo)
    types = section_types(algo)
    known: Tree = {}
    for name, value in hints.items():
        if name in algorithm.ignored_hints:
            continue
        if isinstance(value, dict) and name in types:
            names = {item.name for item in fields(types[name])}
            names = {key for key in names if f"{name}.{key}" not in algorithm.unused}
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


@dataclass(frozen=True)
class EnvFacts:
    """What default settings depend on.

    Attributes:
        num_agents: Agents of one copy.
        images: Whether an observation has an image.
        numeric: Whether observations are arrays and categories only: no texts or sequences.
        action_size: Continuous dimensions of an action; 0: it is discrete.
        recurrent: Whether the policy remembers earlier observations.
        num_envs: Copies that the user or the environment's file asks for; 0: none are asked for.
    """

    num_agents: int
    images: bool
    numeric: bool
    action_size: int
    recurrent: bool = False
    num_envs: int = 0


@dataclass(frozen=True)
class Choice:
    """Some settings, and the observation that they follow from."""

    reason: str
    settings: Tree


def observe(
    env: str | Callable[..., Any],
    env_kwargs: Mapping[str, Any],
    recurrent: bool = False,
    num_envs: int = 0,
) -> EnvFacts | None:
    """Make one copy of an environment and look at its spaces; None for native environments."""
    if native_library(resolve(env, **env_kwargs)) is not None:
        return None
    with make(env, 1, backend="serial", env_kwargs=env_kwargs) as vec:
        groups, agents = vec.groups, vec.num_agents
    return EnvFacts(
        agents,
        images=any(has_images(make_features(group.observation_layout)) for group in groups),
        numeric=all(_is_numeric(group.observation_layout.space) for group in groups),
        action_size=max(
            sum(
                int(np.prod(leaf.space.shape))
                for leaf in group.action_layout.leaves
                if isinstance(leaf.space, spaces.Box)
            )
            for group in groups
        ),
        recurrent=recurrent,
        num_envs=num_envs,
    )


def _is_numeric(space: Any) -> bool:
    if isinstance(space, spaces.Dict):
        return all(map(_is_numeric, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return all(map(_is_numeric, space.spaces))
    return isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    )


def choose(facts: EnvFacts) -> list[Choice]:
    """Return the settings for an environment of this kind, each with its reason.

    >>> facts = EnvFacts(num_agents=1, images=False, numeric=True, action_size=6)
    >>> [choice.reason for choice in choose(facts)]
    ['any environment', '1 agent', 'observations without images', '6 continuous actions']
    """
    if not facts.numeric:
        return []
    agents = FEW if facts.num_agents == 1 and not facts.images else MANY
    if facts.recurrent:
        agents = max(agents, REMEMBERING)
    copies = facts.num_envs or max(1, agents // facts.num_agents)
    horizon = max(SHORTEST, BATCH // (copies * facts.num_agents))
    given = f", {_count(copies, 'copy', 'copies')}" if facts.num_envs else ""
    always = {
        "advantage": "gae",
        "schedule": "constant",
        "learning_rate": 3e-4,
        "desired_kl": 0.02,
        "final_desired_kl": 0.001,
        "target_kl": 0.1,
        "value_loss": "mse",
        "advantage_std_min": 0.001,
    }
    found = [
        Choice("any environment", {"train": always}),
        Choice(
            _count(facts.num_agents, "agent") + given,
            {"vec": {"num_envs": copies}, "train": {"horizon": horizon}},
        ),
    ]
    if not facts.images:
        learn = {"epochs": 10, "minibatches": 8 if facts.recurrent else 32}
        look = {"layers": 2, "hidden_size": 64, "activation": "tanh"}
        look |= {"critic": "auto", "normalise": True}
        found.append(Choice("observations without images", {"train": learn, "policy": look}))
    if facts.action_size:
        # Noise of all dimensions together has norm 1, whatever their number.
        log_std = 0.0 - round(0.5 * math.log(facts.action_size), 2)
        reason = _count(facts.action_size, "continuous action")
        quiet = {"entropy_coefficient": 0.0}
        bounds = {"continuous": "scaled", "log_std": log_std}
        found.append(Choice(reason, {"train": quiet, "policy": bounds}))
    return found


def _count(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun: "1 agent", "2 agents"."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def merge_choices(choices: list[Choice]) -> Tree:
    """Merge choices; later ones win."""
    return merge(*(choice.settings for choice in choices))
