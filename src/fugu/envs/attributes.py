"""Find attributes of environments through their wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fugu.core.errors import UsageError, nearest_names

WRAPPED = ("env", "aec_env", "par_env")  # where wrappers keep what they wrap


def find_holder(env: Any, name: str) -> Any:
    """Return the first of an environment and those that it wraps that has an attribute itself.

    >>> import gymnasium
    >>> env = gymnasium.make("CartPole-v1")
    >>> find_holder(env, "gravity") is env.unwrapped
    True
    >>> find_holder(env, "gravty")
    Traceback (most recent call last):
        ...
    fugu.core.errors.UsageError: set_env: expected an attribute of CartPoleEnv or of its wrappers; got 'gravty'. Did you mean 'gravity'?
    """  # noqa: E501
    layers = list(_layers(env))
    for layer in layers:
        if name in getattr(layer, "__dict__", {}) or hasattr(type(layer), name):
            return layer
    known = [key for key in getattr(layers[-1], "__dict__", {}) if not key.startswith("_")]
    close = nearest_names(name, known, 1, 0.6)
    hint = f"Did you mean {close[0]!r}?" if close else f"It has {', '.join(sorted(known))}."
    raise UsageError(
        f"set_env: expected an attribute of {type(layers[-1]).__name__} or of its wrappers; "
        f"got {name!r}. {hint}"
    )


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment, what it wraps, what that wraps, and so on."""
    while env is not None:
        yield env
        inside = getattr(env, "__dict__", {})
        env = next((inside[key] for key in WRAPPED if key in inside), None)
