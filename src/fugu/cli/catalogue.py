"""Every environment that can be named here: the native suite, recipes, Gymnasium's ids."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO

import gymnasium
from gymnasium import Space, spaces

from fugu.envs import suite
from fugu.envs.contract import Buffers
from fugu.envs.native_env import NativeEnv
from fugu.envs.recipes import Recipe, all_recipes, find_recipe
from fugu.envs.resolve import REGISTRARS
from fugu.vector.random_actions import RandomActions

# What families need beside the package that names them.
_NEEDS = {
    "mujoco": "mujoco",
    "box2d": "Box2D",
    "phys2d": "jax",
    "tabular": "jax",
}
MASK_STEPS = 200  # of a trial that looks whether choices are ever forbidden


@dataclass(frozen=True)
class NativeFacts:
    """A native environment in one line of a table."""

    name: str
    summary: str
    agents: str
    observation: str
    actions: str
    masks: bool
    costs: int


@cache
def native_facts(name: str) -> NativeFacts:
    """Return the facts of an environment of the suite, with its default settings."""
    env = NativeEnv(suite.find(name) or "")
    groups = env.groups
    seen = [describe(group.observation_layout.space) for group in groups]
    done = [describe(group.action_layout.space) for group in groups]
    return NativeFacts(
        name,
        env.library.summary,
        " + ".join(f"{group.num_agents} {group.name}" for group in groups),
        " + ".join(dict.fromkeys(seen)),
        " + ".join(dict.fromkeys(done)),
        _forbids(env),
        max(group.num_costs for group in groups),
    )


@dataclass(frozen=True)
class RecipeFacts:
    """A recipe in one line of a table."""

    prefix: str
    summary: str
    installed: bool
    extra: str
    names: tuple[str, ...]


@cache
def recipe_facts() -> tuple[RecipeFacts, ...]:
    """Return all recipes; those that are not installed have no names."""
    return tuple(_recipe_facts(recipe) for recipe in all_recipes())


def families() -> dict[str, list[str]]:
    """Return names of all environments that are not native, by family: Gymnasium's and recipes."""
    recipes = {fact.prefix: list(fact.names) for fact in recipe_facts() if fact.names}
    return {**_gymnasium(), **recipes}


def _recipe_facts(recipe: Recipe) -> RecipeFacts:
    names: tuple[str, ...] = ()
    if recipe.installed and recipe.names is not None:
        # A package that is there and cannot be imported has none either.
        with suppress(ImportError), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            full = (f"{recipe.prefix}{name}" for name in recipe.names())
            names = tuple(name for name in full if find_recipe(name) is recipe)
    return RecipeFacts(recipe.prefix, recipe.summary, recipe.installed, recipe.extra, names)


def describe(space: Space) -> str:  # type: ignore[type-arg]
    """Describe a space in few words.

    >>> import numpy as np
    >>> describe(spaces.Box(-1, 1, (4,))), describe(spaces.Box(0, 255, (84, 84), np.uint8))
    ('4 float32', '84x84 uint8')
    >>> describe(spaces.Discrete(3)), describe(spaces.MultiDiscrete([5, 5]))
    ('3 choices', '2 of 5 choices')
    >>> describe(spaces.Dict(x=spaces.Box(0, 1, ()), y=spaces.Discrete(2)))
    'x: float32, y: 2 choices'
    """
    match space:
        case spaces.Discrete():
            return f"{space.n} choices"
        case spaces.MultiDiscrete():
            choices = sorted({int(n) for n in space.nvec.flat})
            return f"{space.nvec.size} of {'-'.join(map(str, choices))} choices"
        case spaces.Dict():
            return ", ".join(f"{name}: {describe(part)}" for name, part in space.items())
        case spaces.Box():
            return f"{'x'.join(map(str, space.shape))} {space.dtype}".strip()
        case _:
            return type(space).__name__


def _forbids(env: NativeEnv) -> bool:
    """Return whether some mask forbids an action while random actions are taken."""
    if not any(group.mask_width for group in env.groups):
        return False
    env.bind(*(Buffers.allocate(group) for group in env.groups))
    env.reset(0)
    players = [RandomActions(group, group.num_agents, 0) for group in env.groups]
    for _ in range(MASK_STEPS):
        # Rows that await no action have no mask.
        if any(not rows.action_masks[rows.live].all() for rows in env.buffers):
            return True
        for rows, player in zip(env.buffers, players, strict=True):
            rows.actions[:] = player.sample(rows)
        env.step()
    return False


def _gymnasium() -> dict[str, list[str]]:
    known = set(gymnasium.registry)
    for module in dict.fromkeys(module for module, _ in REGISTRARS.values()):
        # Some talk when they are imported.
        with suppress(ImportError), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    found: dict[str, list[str]] = {}
    for name, spec in gymnasium.registry.items():
        # The others of a registrar are not found by their name alone.
        named = name in known or name.startswith(tuple(REGISTRARS))
        named = named and find_recipe(name) is None  # which lists it itself
        if named and isinstance(spec.entry_point, str):  # others say that they are gone
            found.setdefault(_family(spec.entry_point), []).append(name)
    return {family: sorted(names) for family, names in found.items() if _is_whole(family)}


def _family(entry_point: str) -> str:
    """Return the family of an entry point.

    >>> _family("gymnasium.envs.box2d.lunar_lander:LunarLander"), _family("ale_py.env:AtariEnv")
    ('box2d', 'ale_py')
    """
    parts = entry_point.partition(":")[0].split(".")
    return parts[2] if parts[:2] == ["gymnasium", "envs"] else parts[0]


def _is_whole(family: str) -> bool:
    needs = _NEEDS.get(family)
    return needs is None or importlib.util.find_spec(needs) is not None
