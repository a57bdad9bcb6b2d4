"""Default settings for an environment that nobody tuned, as a function of what is known of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from fugu.core.config import Tree, merge
from fugu.envs.native_env import native_library
from fugu.envs.resolve import resolve
from fugu.policies.features import has_images, make_features
from fugu.vector import make

BATCH = 2048  # steps per update
FEW, MANY = 8, 64  # agents that fill it: of one agent each, and of several agents a copy
SHORTEST = 16  # steps of a segment
REMEMBERING = 32  # the same if the policy is recurrent: minibatches are made of whole rows then


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
        "advantage_std_min": 0.01,
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


def settings_of(choices: list[Choice]) -> Tree:
    """Merge choices; later ones win."""
    return merge(*(choice.settings for choice in choices))
