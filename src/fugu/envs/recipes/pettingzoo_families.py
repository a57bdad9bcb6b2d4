"""PettingZoo's families, MPE and MAgent2: games and tasks of several agents."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from fugu.core.errors import MissingExtraError
from fugu.envs.recipes.pixels import FrameStack, Shrink
from fugu.envs.recipes.recipe import Recipe


def make_one(package: str, extra: str, name: str, **kwargs: Any) -> Any:
    """Make the environment of a module, parallel where it can be, else turn by turn."""
    try:
        module = importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or f"{package}.{name}", extra) from error
    return (getattr(module, "parallel_env", None) or module.env)(**kwargs)


def make_any(name: str, **kwargs: Any) -> Any:
    """Make an environment of PettingZoo by its family and its name, as "family/name"."""
    return make_one("pettingzoo", "pettingzoo", name.replace("/", ".", 1), **kwargs)


def make_butterfly(name: str, stack: int = 4, size: int = 84, **kwargs: Any) -> Any:
    """Make a butterfly environment; pictures become small, grey and stacked."""
    env = make_one("pettingzoo.butterfly", "butterfly", name, **kwargs)
    seen = env.observation_space(env.possible_agents[0])
    return small_pictures(env, stack, size, 1, "butterfly") if len(seen.shape) == 3 else env


def make_atari(name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any) -> Any:
    """Make an Atari game with small, grey, stacked pictures; actions are repeated `skip` times."""
    try:
        import ale_py.roms
    except ModuleNotFoundError as error:
        raise MissingExtraError("ale-py", "arcade") from error
    roms = {"auto_rom_install_path": str(Path(ale_py.roms.__file__).parent), **kwargs}
    env = make_one("pettingzoo.atari", "arcade", name, **roms)
    return small_pictures(env, stack, size, skip, "arcade")


def modules_of(package: str) -> list[str]:
    """Return the environments of a package without importing them."""
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):
        return []
    folders = spec.submodule_search_locations if spec else None
    return [m.name for m in pkgutil.iter_modules(folders or ()) if re.search(r"_v\d+$", m.name)]


def names_of_all() -> list[str]:
    """Return the environments of all families, as "family/name"."""
    folder = importlib.import_module("pettingzoo").__path__
    families = {"mpe": "mpe2"} | {
        found.name: f"pettingzoo.{found.name}" for found in pkgutil.iter_modules(folder)
    }
    return [f"{family}/{n}" for family, package in families.items() for n in modules_of(package)]


def small_pictures(env: Any, stack: int, size: int, skip: int, extra: str) -> Any:
    """Wrap a parallel environment so that every agent sees its last `stack` small grey pictures.

    Actions are repeated `skip` times and rewards are summed, until one of the agents is done.
    """
    from pettingzoo.utils import BaseParallelWrapper

    class SmallPicturesOfAgents(BaseParallelWrapper):  # type: ignore[misc]
        """Each agent's last pictures, the newest last."""

        def __init__(self, inner: Any) -> None:
            super().__init__(inner)
            agents, sides = inner.possible_agents, (size, size)
            self._shrinks = {
                agent: Shrink(inner.observation_space(agent), sides, grey=True, extra=extra)
                for agent in agents
            }
            self._frames = {agent: FrameStack(stack, sides) for agent in agents}
            self._space = spaces.Box(0, 255, (stack, *sides), np.uint8)

        def observation_space(self, agent: Any) -> spaces.Box:
            """Return the space that all agents share."""
            return self._space

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            """Reset; the first picture fills the stack."""
            seen, infos = self.env.reset(seed=seed, options=options)
            return {a: self._frames[a].fill(self._shrinks[a](p)) for a, p in seen.items()}, infos

        def step(self, actions: Any) -> Any:
            """Repeat the actions; push one picture for each agent."""
            total: dict[Any, float] = dict.fromkeys(actions, 0.0)
            for _ in range(skip):
                seen, rewards, terminations, truncations, infos = self.env.step(actions)
                total = {agent: had + rewards.get(agent, 0.0) for agent, had in total.items()}
                if any(terminations.values()) or any(truncations.values()):
                    break
            pictures = {a: self._frames[a].push(self._shrinks[a](p)) for a, p in seen.items()}
            return pictures, total, terminations, truncations, infos

    return SmallPicturesOfAgents(env)


def _family(
    prefix: str,
    folder: str,
    extra: str,
    summary: str,
    package: str = "pettingzoo",
    make: Callable[..., Any] | None = None,
) -> Recipe:
    """Return the recipe of the environments that are modules of a folder."""
    return Recipe(
        prefix=prefix,
        summary=summary,
        package=package,
        extra=extra,
        make=make or partial(make_one, folder, extra),
        names=partial(modules_of, folder),
        toml=f"{extra}.toml",
    )


RECIPES = (
    Recipe(
        prefix="pettingzoo:",
        summary="PettingZoo: families that have no recipe of their own",
        package="pettingzoo",
        extra="pettingzoo",
        make=make_any,
        names=names_of_all,
        toml="pettingzoo.toml",
    ),
    _family(
        "pettingzoo:atari/",
        "pettingzoo.atari",
        "arcade",
        "Atari games of several players (pong, warlords, ...)",
        "multi_agent_ale_py",
        make_atari,
    ),
    _family(
        "pettingzoo:butterfly/",
        "pettingzoo.butterfly",
        "butterfly",
        "Teams in pictures: knights_archers_zombies, pistonball, cooperative_pong",
        make=make_butterfly,
    ),
    _family(
        "pettingzoo:classic/",
        "pettingzoo.classic",
        "classic",
        "Boards and cards: chess, go, connect_four, leduc_holdem, hanabi, ...",
    ),
    _family(
        "pettingzoo:mpe/",
        "mpe2",
        "mpe",
        "MPE: particles that meet, chase and talk (simple_spread, ...)",
        "mpe2",
    ),
    _family(
        "pettingzoo:sisl/",
        "pettingzoo.sisl",
        "sisl",
        "SISL: teams that pursue and carry (pursuit, multiwalker)",
    ),
    _family(
        "magent2:",
        "magent2.environments",
        "magent2",
        "MAgent2: battle, gather, tiger_deer, ... with up to hundreds of agents",
        "magent2",
    ),
)
