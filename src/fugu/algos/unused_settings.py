"""Settings that an algorithm inherits and cannot use: any value but the default is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Unused:
    """A setting without an effect.

    Attributes:
        allowed: The values that describe what happens in any case; the first is the default.
        advice: Why there are no others, and what to do instead.
    """

    allowed: tuple[Any, ...]
    advice: str


NO_CRITIC = Unused(("shared", "auto"), "It has no critic; leave the setting out.")
NO_INTRINSIC = Unused(("none",), "Use algo ppo for intrinsic rewards.")
NO_CUSTOM_LOSS = Unused((None,), "Use algo ppo for a loss function of your own.")


def check_unused(config: Any, unused: Mapping[str, Unused]) -> None:
    """Raise `UsageError` if settings hold one that their algorithm does not use.

    Args:
        config: All settings of a run.
        unused: The algorithm's settings without an effect, by their dotted names.
    """
    for path, rule in unused.items():
        section, name = path.split(".")
        given = getattr(getattr(config, section), name)
        if given not in rule.allowed:
            allowed = " or ".join(map(_shown, rule.allowed))
            raise UsageError(
                f"{path}: given {_shown(given)}; allowed: {allowed} with algo {config.algo}. "
                f"{rule.advice}"
            )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
