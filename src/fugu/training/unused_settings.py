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


_NO_CRITIC = Unused(("shared", "auto"), "It has no critic; leave the setting out.")
_INTRINSIC = Unused(("none",), "Use algo ppo for intrinsic rewards.")

UNUSED: Mapping[str, Mapping[str, Unused]] = {
    "decision_transformer": {
        "train.cpu_offload": Unused(
            (False,), "Its data stays in files, and batches alone go to the device."
        ),
        "policy.critic": _NO_CRITIC,
        "policy.recall": Unused((0,), "It learns from recorded episodes and has no memory."),
        "policy.engine": Unused(("auto", "torch"), "The native core cannot run it."),
    },
    "dreamer": {
        "train.cpu_offload": Unused(
            (False,), "Dreamer's replay is in the CPU's memory in any case."
        ),
    },
    "grpo": {
        "train.cpu_offload": Unused((False,), "Its episodes are in the CPU's memory in any case."),
        "policy.critic": _NO_CRITIC,
    },
    "mappo": {
        "train.intrinsic": _INTRINSIC,
        "policy.critic": Unused(
            ("shared", "auto"),
            "Its critics always have networks of their own; leave the setting out. train.critic "
            "sets what they see.",
        ),
        "policy.recall": Unused((0,), "Use algo ppo or grpo for a policy that recalls."),
    },
    "safe_ppo": {"train.intrinsic": _INTRINSIC},
}
"""By algorithm and by the setting's dotted name."""


def check_unused(config: Any) -> None:
    """Raise `UsageError` if a run's settings contain one that its algorithm does not use."""
    for path, rule in UNUSED.get(config.algo, {}).items():
        section, name = path.split(".")
        given = getattr(getattr(config, section), name)
        if given not in rule.allowed:
            allowed = " or ".join(map(_shown, rule.allowed))
            raise UsageError(
                f"{path}: given {_shown(given)}; allowed: {allowed} with algo {config.algo}. "
                f"{rule.advice}"
            )


def is_unused(algo: str, path: str) -> bool:
    """Return whether an algorithm has a setting (a dotted name) that it cannot use.

    >>> is_unused("grpo", "policy.critic"), is_unused("ppo", "policy.critic")
    (True, False)
    """
    return path in UNUSED.get(algo, {})


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
