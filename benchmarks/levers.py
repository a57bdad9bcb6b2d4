"""What each lever brings: training with one thing changed at a time.

    python benchmarks/levers.py [--quick] [--json FILE] [--only cartpole breakout ...]
        [--levers native "native, bfloat16" ...]

Each row is `fugu train ENV` with its own settings and one lever, against the row that it is
compared with, in turns (see `racing.py`); figures are steps/s and the ratio of both.

    torch: the fused loss, the native core for rollouts only, torch.compile, bfloat16, and every
        thread bound to a core of its own
    native: the engine as a whole; rows of native environments written straight into segments, all
        steps of them without a return to Python; bfloat16; threads bound to cores
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import tyro
from claims import Claim, Options
from racing import Bench, Entry, measure, over, show, show_faults, text

ENVS = ("cartpole", "breakout", "snake", "CartPole-v1")
TORCH = {"train": {"engine": "torch"}, "policy": {"engine": "torch", "precision": "float32"}}
NATIVE = {"train": {"engine": "native"}, "policy": {"precision": "float32"}}


@dataclass(frozen=True)
class Lever:
    """A way to train.

    Attributes:
        base: The way that it is compared with; empty: none.
        settings: Of the script that trains.
    """

    base: str
    settings: dict[str, Any]


LEVERS = {
    "torch, its own loss": Lever("", {**TORCH, "without": ["fused_loss"]}),
    "torch": Lever("torch, its own loss", TORCH),
    "torch, native rollouts": Lever(
        "torch", {**TORCH, "policy": {"engine": "native", "precision": "float32"}}
    ),
    "torch, compiled": Lever("torch", {**TORCH, "train": {"engine": "torch", "compile": True}}),
    "torch, bfloat16": Lever(
        "torch", {**TORCH, "policy": {"engine": "torch", "precision": "bfloat16"}}
    ),
    "torch, threads bound": Lever("torch", {**TORCH, "bind": True}),
    "native, step by step": Lever(
        "torch, native rollouts", {**NATIVE, "without": ["straight_rows"]}
    ),
    "native": Lever("native, step by step", NATIVE),
    "native, bfloat16": Lever("native", {**NATIVE, "policy": {"precision": "bfloat16"}}),
    "native, threads bound": Lever("native", {**NATIVE, "bind": True}),
}


@dataclass(frozen=True)
class LeverOptions(Options):
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these environments."""
    levers: tuple[str, ...] = tuple(LEVERS)
    """Only these rows."""


def race(env: str, levers: tuple[str, ...], bench: Bench) -> list[Claim]:
    """Levers on one environment."""
    base = {"env": env, "variant": "defaults", "goal": "rate"}
    vec = {"vec": {"backend": "process"}} if env == "CartPole-v1" else {}
    entries = {
        name: Entry("fugu", {**base, **vec, **lever.settings})
        for name, lever in LEVERS.items()
        if name in levers
        if env != "CartPole-v1" or name != "native, step by step"  # as it is anyway
    }
    bench.race(env, entries, 3.0, 3)
    rates = {name: entry.figure("rate") for name, entry in entries.items()}
    rows = []
    for name, rate in rates.items():
        other = LEVERS[name].base
        other = other if other in rates or not other else LEVERS[other].base
        rows.append((name, text(rate), text(over(rate, rates.get(other)), ".2f"), other))
    show(f"{env}: steps/s of training", ("with", "steps/s", "times", "those of"), rows)
    show_faults(entries)
    return []


def main(options: LeverOptions) -> None:
    """One environment after another."""
    if unknown := set(options.levers) - set(LEVERS):
        raise SystemExit(f"levers: given {sorted(unknown)}; allowed: {list(LEVERS)}")
    rows = {env: partial(race, env, options.levers) for env in ENVS}
    measure(rows, options, options.only, ("cartpole",))


if __name__ == "__main__":
    main(tyro.cli(LeverOptions))
