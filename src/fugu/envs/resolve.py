"""Environments by name: `resolve` turns a name into a factory."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs import suite
from fugu.envs.native_env import NativeEnv, NativeLibrary
from fugu.envs.recipes import find_recipe
from fugu.envs.suite import nearest, newest

_FORMS = (
    "a native name (cartpole), the path of a native environment that was built (./my_env.so), a "
    "recipe's name (ALE/Breakout-v5, procgen:coinrun, pettingzoo:classic/chess), a Gymnasium id "
    "(CartPole-v1, module:Id-v0), coding:humaneval, package.module:factory, or a callable"
)
# Problems that CodingEnv poses; native families of programs have their own names.
CODING = ("humaneval", "codeio", "expressions")
# Packages that register their ids when they are imported, by how the ids begin, and their extras.
REGISTRARS = {
    "BabyAI-": ("minigrid", "minigrid"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "MiniHack-": ("minihack", "nethack"),
    "NetHack": ("nle", "nethack"),
    "Vizdoom": ("vizdoom.gymnasium_wrapper", "vizdoom"),
    "dm_control/": ("shimmy", "dm-control"),
}


def resolve(env: str | Callable[..., Any], /, **kwargs: Any) -> Callable[[], Any]:
    """Return a factory of the environment that `env` names; it can be pickled.

    `a.b:c` is a Python factory where `c` is an identifier, else a Gymnasium id (`c-v0`) that the
    module `a.b` registers. A name without its version means the newest.

    Args:
        env: A native name, the path of a native library, a recipe's name (`ALE/Breakout-v5`,
            `pettingzoo:family/name`; see `fugu.envs.recipes`), a Gymnasium id, `module:Id-v0`,
            `coding:humaneval` or `coding:problems.jsonl` (see `CodingEnv`),
            `package.module:factory`, or a callable.
        kwargs: Arguments of the environment.

    >>> resolve("CartPole-v1")().spec.id, resolve("FrozenLake", map_name="8x8")().spec.id
    ('CartPole-v1', 'FrozenLake-v1')
    >>> resolve("collections:OrderedDict", size=3)()
    OrderedDict([('size', 3)])
    """
    if not isinstance(env, str):
        if not callable(env):
            raise UsageError(
                f"env: given {env!r}; allowed: {_FORMS}. For an environment that is made already, "
                "give what makes it."
            )
        return partial(env, **kwargs) if kwargs else env
    path = suite.find(env) or (str(Path(env).resolve()) if env.endswith(suite.SUFFIXES) else None)
    if path is not None:
        library = NativeLibrary.load(path)
        library.spec(library.values(kwargs))  # errors are raised here, not in workers
        return partial(NativeEnv, path, **kwargs)
    recipe = find_recipe(env)
    if recipe is not None:
        return recipe.factory(env, kwargs)
    prefix, colon, name = env.partition(":")
    if colon and prefix == "coding":
        return partial(
            _call, "fugu.envs.coding", "CodingEnv", {"problems": _find_coding(name)} | kwargs
        )
    if colon and name.isidentifier():
        return partial(_call, prefix, _find_factory(prefix, name), kwargs)
    found = _find_id(prefix, name) if colon else _find_id("", env)
    return partial(gymnasium.make, _of_the_script(found) or found, **kwargs)


def _call(module: str, name: str, kwargs: dict[str, Any]) -> Any:
    """Call a factory by name, since a closure cannot be pickled."""
    return getattr(importlib.import_module(module), name)(**kwargs)


def _find_coding(name: str) -> str:
    """Return a collection of problems, or the full path of a file of them."""
    if name in CODING:
        return name
    if Path(name).is_file():
        return str(Path(name).resolve())
    known = [*CODING, *(alias.partition(":")[2] for alias in suite.ALIASES)]
    raise UsageError(
        f"coding: given {name!r}; allowed: {', '.join(known)}, or a JSONL file. "
        f"{nearest(name, known)}"
    )


def _of_the_script(found: str) -> EnvSpec | None:
    """Return the spec of an id that the running script registered, unknown to other processes."""
    if ":" in found:  # a module does, wherever it is imported
        return None
    spec = gymnasium.registry[found]
    entry = spec.entry_point
    if isinstance(entry, str) and entry.startswith("__main__:"):
        entry = getattr(sys.modules["__main__"], entry.partition(":")[2], None)
    if not callable(entry) or getattr(entry, "__module__", "") != "__main__":
        return None
    return replace(spec, entry_point=entry)


def _find_factory(module: str, name: str) -> str:
    home = _import(module)
    made = getattr(home, name, None)
    if callable(made):
        return name
    names = [n for n in dir(home) if not n.startswith("_") and callable(getattr(home, n, None))]
    given = f"given {name!r}" if made is None else f"given {name!r}, a {type(made).__name__}"
    raise UsageError(f"{module}: {given}; allowed: something in it to call. {nearest(name, names)}")


def _import(module: str) -> ModuleType:
    """Import what the user named; errors inside of it are raised unchanged.

    A missing package is reported with its extra, if there is one.
    """
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        advice = "Name it as Python imports it: folder.my_env:make, not folder/my_env.py:make."
        raise UsageError(f"module: given {module!r}; allowed: a module's name. {advice}")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] == "pettingzoo":
            raise MissingExtraError("pettingzoo", "pettingzoo") from error
        if not f"{module}.".startswith(f"{missing}."):
            raise
        raise UsageError(
            f"module: given {module!r}, but there is no module {missing!r}; allowed: a module "
            f"that can be imported from here. {nearest(missing, _siblings(missing))}"
        ) from error


def _siblings(module: str) -> list[str]:
    """Return the modules in the folders where `module` was looked for."""
    parent = module.rpartition(".")[0]
    path = getattr(sys.modules.get(parent), "__path__", ()) if parent else None
    return [f"{parent}.{found.name}".lstrip(".") for found in pkgutil.iter_modules(path)]


def _find_id(module: str, name: str) -> str:
    """Return the full id, with the module to import first if there is one."""
    if module:
        _import(module)
    elif newest(name, gymnasium.registry) is None:
        module = _import_registrar(name)
    found = newest(name, gymnasium.registry)
    if found is None:
        advice = "" if module else f" If a module registers it, name that too: its_module:{name}."
        raise UsageError(
            f"env: given {name!r}, which is not registered with Gymnasium; allowed: {_FORMS}. "
            f"{nearest(name, gymnasium.registry)}{advice}"
        )
    return f"{module}:{found}" if module else found


def _import_registrar(name: str) -> str:
    """Import the package known to register ids that begin like `name`, and return it."""
    for start, (module, extra) in REGISTRARS.items():
        if name.startswith(start):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                raise MissingExtraError(error.name or module, extra) from error
            return module
    return ""
