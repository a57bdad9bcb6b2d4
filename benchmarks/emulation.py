"""Packing against `gymnasium.spaces.flatten` and against the bare copy.

    python benchmarks/emulation.py [--quick] [--json FILE]

One observation at a time, one core, no environment stepped. The limit is one memcpy of the same
bytes plus one call into C for each leaf, measured in the same run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import tyro
from claims import Claim, Options, finish, seconds_per_call
from gymnasium import Space, spaces
from rich.console import Console
from rich.table import Table

from fugu import Layout, _native


def observations() -> Iterator[tuple[str, Space[Any] | None, Any]]:
    """The spaces of the claims, each with a value."""
    space = spaces.Dict(
        image=spaces.Box(0, 255, (64, 64, 3), np.uint8),
        vec=spaces.Box(-1, 1, (16,), np.float32),
        pos=spaces.Discrete(10),
    )
    space.seed(0)
    yield "dict", space, space.sample()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import nle  # noqa: F401

            env = gymnasium.make("NetHackScore-v0")
        observation, _ = env.reset(seed=1)
        yield "nle", env.observation_space, observation
    except ImportError:
        yield "nle", None, None


def measure(name: str, space: Space[Any], value: Any, table: Table) -> list[Claim]:
    """The two claims on one observation."""
    layout = Layout.of(space)
    row = layout.zeros()
    source, out = row.view(np.uint8).copy(), row.view(np.uint8).copy()
    idle = seconds_per_call(lambda: None)
    ours = seconds_per_call(lambda: layout.pack(value, row)) - idle
    flatten = seconds_per_call(lambda: spaces.flatten(space, value)) - idle
    call = seconds_per_call(lambda: _native.noop(value)) - idle
    copy = float(np.median([_native.time_memcpy(source, out, 2_000) for _ in range(7)]))
    limit = copy + len(layout.leaves) * call
    table.add_row(
        name,
        f"{len(layout.leaves)}",
        f"{layout.nbytes:,}",
        *(f"{t * 1e6:.2f}" for t in (ours, flatten, copy, limit)),
    )
    figures = {"fugu": ours, "limit": limit, "unit": "seconds"}
    peers = {"gymnasium.spaces.flatten": flatten}
    return [
        Claim(f"{name}-against-flatten", flatten / ours, 10, peers=peers, **figures),
        Claim(f"{name}-against-memcpy", ours / limit, 3, at_most=True, peers=peers, **figures),
    ]


def main(options: Options) -> None:
    """Measure and report."""
    table = Table(
        "observation", "leaves", "bytes", "fugu pack", "gymnasium flatten", "memcpy", "limit",
        title="microseconds an observation, one core",
    )  # fmt: skip
    claims: list[Claim] = []
    for name, space, value in observations():
        if space is None:
            claims.append(Claim(f"{name}-against-flatten", None, 10))
            claims.append(Claim(f"{name}-against-memcpy", None, 3, at_most=True))
        else:
            claims += measure(name, space, value, table)
    Console().print(table)
    finish(claims, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
