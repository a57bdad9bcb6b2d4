"""Games of old consoles, by stable-retro; ROMs are yours to bring, some free ones come with it."""

from __future__ import annotations

from typing import Any

from fugu.envs.recipes.pixels import SeenSmall
from fugu.envs.recipes.recipe import Recipe


def make(name: str, skip: int = 4, stack: int = 4, size: int = 84, **kwargs: Any) -> SeenSmall:
    """Grey pictures, some in a row, each action some times over; buttons as one choice."""
    import stable_retro

    options = {
        "render_mode": "rgb_array",
        "use_restricted_actions": stable_retro.Actions.DISCRETE,
        **kwargs,
    }
    return SeenSmall(
        stable_retro.make(name, **options), (size, size), skip=skip, stack=stack, extra="retro"
    )


def names() -> list[str]:
    """Games that it knows, whether their ROMs are there or not."""
    import stable_retro

    return sorted(stable_retro.data.list_games(stable_retro.data.Integrations.ALL))


RECIPE = Recipe(
    prefix="retro:",
    summary="Consoles: Airstriker-Genesis comes with it; bring other ROMs. One copy a process",
    package="stable_retro",
    extra="retro",
    make=make,
    names=names,
)
