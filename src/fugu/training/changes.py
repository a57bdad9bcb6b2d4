"""What callbacks may log and change in a run, and the errors for what they may not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fugu.algos.settings import LearningConfig
from fugu.core.config import from_tree
from fugu.core.errors import UsageError

BUILT_IN = re.compile(
    r"(loss|seconds|evaluation|nodes|weights\w*)/.*"
    r"|step|seconds|updates|steps_per_second|episodes|episode_return|episode_length"
)


def check_metrics(metrics: Mapping[str, Any], taken: set[str]) -> dict[str, float]:
    """Return metrics as floats; raise `UsageError` for names that are taken and for other values.

    >>> check_metrics({"difficulty": 2}, {"success"})
    {'difficulty': 2.0}
    """
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"log: expected names of metrics as text; got {name!r}.")
        if name in taken or BUILT_IN.fullmatch(name):
            raise UsageError(
                f"log: expected a name that no built-in metric has; got {name!r}. Choose another, "
                f"such as {'my/' + name.rpartition('/')[2]!r}."
            )
        single = hasattr(value, "item") and math.prod(value.shape) == 1  # of NumPy or torch
        number = value.item() if single else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UsageError(f"log: expected a number for {name!r}; got {value!r:.80}.")
        if number != number:
            raise UsageError(
                f"log: expected a number for {name!r}; got NaN. Leave the metric out instead."
            )
        found[name] = float(number)
    return found


def check_settings(
    train: LearningConfig, given: Mapping[str, Any], changeable: Sequence[str], algo: str
) -> dict[str, Any]:
    """Return settings as the fields of `train` have them; `UsageError` if they may not change."""
    for name in given:
        if name not in changeable:
            allowed = f"one of {', '.join(changeable)}" if changeable else "none"
            raise UsageError(
                f"change: expected a setting that may change while {algo!r} trains, {allowed}; "
                f"got {name!r}. Give others to fugu.train, or to fugu.resume as overrides."
            )
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
    typed = from_tree(type(train), plain, "train.")
    return {name: getattr(typed, name) for name in plain}
