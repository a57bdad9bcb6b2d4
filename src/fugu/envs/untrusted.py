"""Untrusted settings of environments: the names and arguments that are plain data.

Only what the table of this module lists is accepted: numbers, flags and choices for environments
whose code came with fugu or a package of its recipes. Names of modules, factories, libraries and
files are not in it, and neither are arguments that take paths or executors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fugu.core.errors import FuguError
from fugu.envs import suite
from fugu.envs.recipes import find_recipe, recipe_name
from fugu.envs.resolve import CODING

CALLED = "<called>"  # what settings say of an environment that the caller has to give


class UntrustedError(FuguError, RuntimeError):
    """Settings of a stranger that are not on the list of those that need no trust."""


@dataclass(frozen=True)
class Rule:
    """The values of one setting that need no trust.

    Attributes:
        allowed: These values in words.
        holds: Called with a value: whether it is one of them.
    """

    allowed: str
    holds: Callable[[Any], bool]


def number(low: float, high: float) -> Rule:
    """Return the rule for numbers of an interval."""
    allowed = f"a number from {low:g} to {high:g}"
    return Rule(allowed, lambda value: _is(value, int | float) and low <= value <= high)


def count(low: int, high: int) -> Rule:
    """Return the rule for whole numbers of an interval."""
    allowed = f"a whole number from {low:,} to {high:,}"
    return Rule(allowed, lambda value: _is(value, int) and low <= value <= high)


def choice(*values: Any) -> Rule:
    """Return the rule for one of these values."""

    def holds(value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in values)

    return Rule("one of " + ", ".join(map(repr, values)), holds)


def text(pattern: str, words: str) -> Rule:
    """Return the rule for text that matches a pattern as a whole."""
    find = re.compile(pattern, re.ASCII).fullmatch
    return Rule(words, lambda value: isinstance(value, str) and find(value) is not None)


def each(rule: Rule) -> Rule:
    """Return the rule for a few values that all keep another rule."""
    allowed = f"up to 64 of: {rule.allowed}"
    return Rule(
        allowed,
        lambda value: isinstance(value, tuple) and len(value) <= 64 and all(map(rule.holds, value)),
    )


def _is(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


FLAG = Rule("true or false", lambda value: isinstance(value, bool))
WEIGHT = number(-1e6, 1e6)
SHARE = number(0, 1)
STEPS = count(1, 10**9)
NAME = r"\w[\w .-]{0,99}"
NUMBER = Rule("a number", lambda value: isinstance(value, int | float) and abs(value) < 1e300)
DEFAULT = Rule("the default", lambda value: False)
NATIVE = "native"  # environments that come with fugu; they know their settings and intervals

_GYMNASIUM = {"max_episode_steps": STEPS, "render_mode": choice("rgb_array", "ansi")}
_PIXELS = {"skip": count(1, 64), "stack": count(1, 64), "size": count(8, 512)}
_MUJOCO = _GYMNASIUM | {
    "frame_skip": count(1, 100),
    **dict.fromkeys(
        ("forward_reward_weight", "ctrl_cost_weight", "contact_cost_weight", "healthy_reward"),
        WEIGHT,
    ),
    **dict.fromkeys(
        ("terminate_when_unhealthy", "exclude_current_positions_from_observation"), FLAG
    ),
    "reset_noise_scale": SHARE,
}
_ZOO = {
    "render_mode": _GYMNASIUM["render_mode"],
    "max_cycles": STEPS,
    "continuous_actions": FLAG,
    "dynamic_rescaling": FLAG,
    "local_ratio": SHARE,
    "N": count(1, 100),
    **dict.fromkeys(("num_good", "num_adversaries", "num_obstacles"), count(0, 100)),
}
_NETHACK = _GYMNASIUM | {"crop": count(1, 79), "whole_map": FLAG}

ENVIRONMENTS: dict[str, dict[str, Rule]] = {
    "": _GYMNASIUM,  # ids that are registered with Gymnasium and have no recipe
    "classic_control:": _GYMNASIUM
    | {"sutton_barto_reward": FLAG, "goal_velocity": WEIGHT, "g": WEIGHT},
    "toy_text:": _GYMNASIUM
    | dict.fromkeys(("is_slippery", "natural", "sab", "is_rainy", "fickle_passenger"), FLAG)
    | {"map_name": choice("4x4", "8x8"), "success_rate": SHARE},
    "box2d:": _GYMNASIUM
    | {"continuous": FLAG, "hardcore": FLAG, "enable_wind": FLAG, "gravity": number(-12, 0)}
    | {"wind_power": number(0, 20), "turbulence_power": number(0, 2)},
    "box2d:CarRacing": _GYMNASIUM
    | _PIXELS
    | {"continuous": FLAG, "domain_randomize": FLAG, "lap_complete_percent": SHARE},
    "mujoco:": _MUJOCO,
    "velocity:": _MUJOCO,
    "dm_control:": _GYMNASIUM,
    "ALE/": {
        "render_mode": _GYMNASIUM["render_mode"],
        "frameskip": count(1, 64),
        "stack_num": count(1, 64),
        "img_height": count(8, 512),
        "img_width": count(8, 512),
        "noop_max": count(0, 1000),
        **dict.fromkeys(("use_fire_reset", "episodic_life", "full_action_space"), FLAG),
        "repeat_action_probability": SHARE,
        "max_num_frames_per_episode": STEPS,
    },
    "minigrid:": _GYMNASIUM
    | {"mission": FLAG, "see_through_walls": FLAG, "size": count(3, 100), "max_steps": STEPS}
    | {"agent_view_size": count(3, 99)},
    "procgen:": {
        "num_levels": count(0, 1 << 31),
        "start_level": count(0, 1 << 31),
        "distribution_mode": choice("easy", "hard", "extreme", "memory", "exploration"),
        "render_mode": _GYMNASIUM["render_mode"],
    },
    "crafter:": {"size": count(8, 512), "render_mode": _GYMNASIUM["render_mode"]},
    "craftax:": {"max_timesteps": STEPS},
    "gymnax:": {"max_steps_in_episode": STEPS},
    "envpool:": {
        "max_episode_steps": STEPS,
        **dict.fromkeys(("frame_skip", "stack_num"), count(1, 64)),
        **dict.fromkeys(("img_height", "img_width"), count(8, 512)),
        "noop_max": count(0, 1000),
        **dict.fromkeys(("episodic_life", "reward_clip", "use_fire_reset"), FLAG),
    },
    "nethack:": _NETHACK,
    "minihack:": _NETHACK,
    "vizdoom:": _GYMNASIUM | _PIXELS,
    "retro:": _PIXELS,
    "pettingzoo:": _ZOO,
    "pettingzoo:atari/": _ZOO | _PIXELS,
    "pettingzoo:butterfly/": _ZOO | _PIXELS,
    "pettingzoo:classic/": _ZOO,
    "pettingzoo:mpe/": _ZOO,
    "pettingzoo:sisl/": _ZOO,
    "magent2:": _ZOO | {"map_size": count(7, 200), "minimap_mode": FLAG, "extra_features": FLAG},
    "coding:": {
        "split": choice("train", "held_out", "all"),
        "turns": count(1, 100),
        "reward": choice("all", "fraction", "shaped"),
        "observation": choice("sequence", "parts"),
        "tokenizer": text(
            r"bytes|bpe(:\d{1,5})?|letters:[^/\\\x00-\x1f]{1,256}",
            "bytes, bpe, bpe:SIZE or letters:abc",
        ),
        **dict.fromkeys(("prompt_length", "program_length", "feedback_length"), count(0, 1 << 16)),
        "recall": count(0, 64),
        "cpu_seconds": number(0.001, 60),
        "memory_bytes": count(1 << 20, 4 << 30),
        "render_mode": _GYMNASIUM["render_mode"],
    },
}
"""Arguments of environments by the recipe's prefix; None is allowed for each of them.

`gameboy:` is not here: it takes paths and functions. Neither are recipes of other packages.
"""


def check_env(env: object, env_kwargs: Mapping[str, Any], remedy: str) -> None:
    """Raise UntrustedError unless an environment and its arguments are data.

    Args:
        env: The name; `CALLED` for an environment that the caller makes, without arguments.
        env_kwargs: The arguments.
        remedy: What the user can do about a refusal, as a sentence.
    """
    family = find_family(env, remedy)
    rules = ENVIRONMENTS.get(family, {})
    for name, value in env_kwargs.items():
        rule = NUMBER if family == NATIVE else rules.get(name)
        if rule is None:
            known = ", ".join(rules) or "no arguments"
            raise refusal("env_kwargs", f"arguments out of: {known}", {name: value}, remedy)
        if value is not None and not rule.holds(value):
            raise refusal(f"env_kwargs.{name}", rule.allowed, value, remedy)


def find_family(env: object, remedy: str) -> str:
    """Return which entry of `ENVIRONMENTS` has the arguments of an environment.

    Raises:
        UntrustedError: Making the environment could import or load what its name says.
    """
    if env == CALLED:
        return CALLED
    if not isinstance(env, str):
        raise refusal("env", "a name", env, remedy)
    if suite.find(env):
        return NATIVE
    name = env if env.endswith(suite.SUFFIXES) else recipe_name(env)
    recipe = find_recipe(name)
    family = recipe.prefix if recipe else "coding:" if name.startswith("coding:") else ""
    rest = name.removeprefix(family)
    plain = re.fullmatch(r"[\w-][\w./-]*", rest, re.ASCII) and not rest.endswith(suite.SUFFIXES)
    known = rest in CODING if family == "coding:" else family in ENVIRONMENTS
    if not (plain and known):
        allowed = "a native environment or a recipe of fugu, or a registered Gymnasium id"
        raise refusal("env", allowed, env, remedy)
    return family


def refusal(setting: str, allowed: str, value: Any, remedy: str) -> UntrustedError:
    """Return the error for a setting of a stranger that needs trust."""
    return UntrustedError(f"{setting}: expected {allowed}; got {value!r:.200}. {remedy}")
