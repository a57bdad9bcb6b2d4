"""The contract of recipes."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.batch_env import BatchEnv, BatchOfOne
from fugu.envs.naming import nearest, newest


@dataclass(frozen=True)
class Recipe:
    """How the environments of one package are named, made and trained.

    A module with a `RECIPE` is a recipe. Those in this folder are found by themselves, those of
    other packages by an entry point in the group `fugu.recipes` that names the module. The file
    beside the module, `<module>.toml`, has the settings that train what it makes.

    Attributes:
        prefix: What names begin with, such as "procgen:"; of several that fit the longest counts.
        summary: What the environments are, in a line.
        package: The module that must be installed.
        extra: The extra of fugu-rl that brings it.
        make: Called with a name, without the prefix, and the environment's arguments.
        names: All names; without it, any name will do.
        alias: Called with a plain Gymnasium id: the name by which this recipe knows it, or None.
            Training such an id uses the recipe.
        default: The name that is meant by the prefix alone, without its mark.
        batch: Called with a name, the number of copies, the threads for them and the environment's
            arguments: copies that step at once. Without `make`, one of them alone is made so too.
        draws: Whether `make` takes `render_mode="rgb_array"`.
        also: What to install beside the extra, as a command.
    """

    prefix: str
    summary: str
    package: str
    extra: str
    make: Callable[..., Any] | None = None
    names: Callable[[], Iterable[str]] | None = None
    alias: Callable[[str], str | None] | None = None
    default: str = ""
    batch: Callable[..., BatchEnv] | None = None
    draws: bool = True
    also: str = ""

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        try:
            return importlib.util.find_spec(self.package) is not None
        except (ModuleNotFoundError, ValueError):  # its parent is not, or it is known to be absent
            return False

    @property
    def settings(self) -> Path:
        """The TOML file beside its module, which may be missing."""
        function = self.make or self.batch
        home = sys.modules[function.__module__].__file__ if function else None
        return Path(home or "").with_suffix(".toml")

    def means(self, env: str) -> bool:
        """Whether a name is one of this recipe's."""
        return env.startswith(self.prefix) or (bool(self.default) and env == self.prefix[:-1])

    def find(self, env: str) -> str:
        """The name that `env` gives, without the prefix, in full; an error if there is none."""
        if not self.installed:
            raise MissingExtraError(self.package, self.extra, self.also)
        name = env.removeprefix(self.prefix) if env.startswith(self.prefix) else self.default
        if self.names is None:
            return name
        names = list(self.names())
        found = newest(name, names)
        if found is None:
            near = nearest(env, [f"{self.prefix}{each}" for each in names])
            raise UsageError(
                f"env: given {env!r}; allowed: {self.prefix} and one of {len(names)} names, which "
                f"fugu envs {self.prefix} lists. {near}"
            )
        return found

    def factory(self, env: str, kwargs: dict[str, Any]) -> Callable[[], Any]:
        """What makes one copy, here or in another process."""
        name = self.find(env)
        if self.make is not None:
            return partial(self.make, name, **kwargs)
        assert self.batch is not None
        return partial(BatchOfOne, partial(self.batch, name, 1, 1, **kwargs))
