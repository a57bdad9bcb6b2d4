"""The plan on paper: what 1,000 environment workers and 64 learners need, by what was measured.

A worker with k copies whose step takes s seconds brings back k steps every k s + t seconds, t being
Ray's way there and back. A learner spends h seconds on each request: sending and fetching, and
copying its bytes. The figures are of `scale.py`, on one machine: a network adds its own latency to
t, and its bandwidth is a limit beside the learner's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from rich.table import Table

WORKERS, LEARNERS, COPIES, HORIZON = 1_000, 64, 16, 64
WIRE = 1.25e9  # bytes a second of a network card of 10 Gbit/s


@dataclass(frozen=True)
class Kind:
    """A kind of environment: seconds and bytes of a step."""

    name: str
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Demand:
    """What all workers together ask of those who learn.

    Attributes:
        steps: Environment steps a second.
        requests: Requests a second.
        handling: Seconds of a learner for one request.
        bytes: Bytes a second, all learners together.
    """

    steps: float
    requests: float
    handling: float
    bytes: float

    @property
    def learners(self) -> float:
        """Whole learners that only hand requests over."""
        return self.requests * self.handling

    @property
    def wires(self) -> float:
        """Network cards that are filled."""
        return self.bytes / WIRE

    @property
    def breaks_first(self) -> str:
        """What ends first as workers are added to one learner."""
        return "learner's time" if self.learners >= self.wires else "bandwidth"


def kinds(figures: dict[str, Any]) -> list[Kind]:
    """A cheap one, one with pictures, and a slow simulator."""
    small, large = figures["bytes"]["cartpole"], figures["bytes"]["pixels"]
    return [
        Kind("CartPole, 20 us", 20e-6, small),
        Kind("Atari, 250 us", 250e-6, large),
        Kind("simulator, 5 ms", 5e-3, 1024.0),
    ]


def demand(kind: Kind, figures: dict[str, Any]) -> Demand:
    """Of 1,000 workers."""
    small = figures["requests"]["cartpole"]["ray-1"]
    large = figures["requests"]["pixels"]["ray-1"]
    copied = figures["bytes"]["pixels"] * figures["copies"]["pixels"]
    per_byte = (large["copy"] + large["fetch"]) / copied
    handling = small["send"] + small["fetch"] + COPIES * kind.bytes * per_byte
    requests = WORKERS / (COPIES * kind.seconds + small["ray"])
    steps = requests * COPIES
    return Demand(steps, requests, handling, steps * kind.bytes)


def plan_table(figures: dict[str, Any]) -> Table:
    """All kinds; one column each."""
    table = Table(
        title=f"on paper: {WORKERS:,} workers with {COPIES} copies each, {LEARNERS} learners",
        title_justify="left",
    )
    table.add_column("")
    found = [(kind, demand(kind, figures)) for kind in kinds(figures)]
    for kind, _ in found:
        table.add_column(kind.name, justify="right")
    each = [d for _, d in found]
    update = HORIZON * WORKERS * COPIES
    table.add_row("steps/s that the workers offer", *(f"{d.steps:,.0f}" for d in each))
    table.add_row("requests/s", *(f"{d.requests:,.0f}" for d in each))
    table.add_row("learner's time a request, us", *(f"{d.handling * 1e6:,.0f}" for d in each))
    table.add_row("learners to hand requests over", *(f"{ceil(d.learners)}" for d in each))
    table.add_row(
        f"of each of {LEARNERS} learners' time", *(f"{d.learners / LEARNERS:.0%}" for d in each)
    )
    table.add_row("GB/s, all together", *(f"{d.bytes / 1e9:,.2f}" for d in each))
    table.add_row(
        f"MB/s at each of {LEARNERS}", *(f"{d.bytes / LEARNERS / 1e6:,.1f}" for d in each)
    )
    table.add_row(f"steps of an update, horizon {HORIZON}", *(f"{update:,}" for _ in each))
    table.add_row("of them at each learner", *(f"{update // LEARNERS:,}" for _ in each))
    table.add_row("seconds to collect them", *(f"{update / d.steps:,.2f}" for d in each))
    table.add_row(
        "workers that one learner can serve", *(f"{WORKERS / d.learners:,.0f}" for d in each)
    )
    table.add_row("breaks first", *(d.breaks_first for d in each))
    return table
