"""`Recipe`: how the environments of one package are named, made and trained."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import gymnasium

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.batch_env import BatchEnv, BatchOfOne
from fugu.envs.suite import nearest, newest


@dataclass(frozen=True)
class Recipe:
    """How the environments of one package are named, made and trained.

    A package brings a recipe with an entry point in the group `fugu.recipes` that names a module
    with a `RECIPE`. The file beside that module, `<module>.toml`, has the settings that train what
    the recipe makes.

    Attributes:
        prefix: Start of the names, such as "procgen:"; of several that fit, the longest counts.
        summary: A line about the environments.
        package: The module that must be installed.
        extra: The extra of fugu-rl that brings it.
        make: Called with a name, without the prefix, and the environment's arguments.
        names: Lists all names; without it, any name will do.
        alias: Called with a plain Gymnasium id: the name by which this recipe knows it, or None.
            Training such an id uses the recipe.
        default: The name that is meant by the prefix alone, without its last character.
        batch: Called with a name, the number of copies, the threads for them and the environment's
            arguments: copies that step at once. Without `make`, one of them alone is made so too.
        draws: Whether `make` takes `render_mode="rgb_array"`.
        also: A command that installs what the extra cannot.
        toml: The file of settings, if it is not `<module>.toml`: a path, or a name in this folder.
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
    toml: str = ""

    @property
    def installed(self) -> bool:
        """Whether its package is installed."""
        try:
            return importlib.util.find_spec(self.package) is not None
        except (ModuleNotFoundError, ValueError):  # its parent is not, or it is known to be absent
            return False

    @property
    def settings(self) -> Path:
        """The TOML file of its settings, which may be missing."""
        if self.toml:
            return Path(__file__).parent / self.toml
        function = self.make or self.batch
        module = sys.modules[function.__module__].__file__ if function else None
        return Path(module or "").with_suffix(".toml")

    def means(self, env: str) -> bool:
        """Whether a name is one of this recipe's."""
        return env.startswith(self.prefix) or (bool(self.default) and env == self.prefix[:-1])

    def find(self, env: str) -> str:
        """Return the full name that `env` means, without the prefix; an error if there is none."""
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
        """Return a function that makes one copy, here or in another process."""
        name = self.find(env)
        if self.make is not None:
            return partial(self.make, name, **kwargs)
        assert self.batch is not None
        return partial(BatchOfOne, partial(self.batch, name, 1, 1, **kwargs))


def ids_of(module: str, start: str) -> list[str]:
    """Return the ids that begin with `start` once `module` is imported, without that start."""
    register(module)
    return sorted(name.removeprefix(start) for name in gymnasium.registry if name.startswith(start))


def register(module: str) -> None:
    """Import a module for the ids that it registers, without the text that some print then."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module(module)
