"""Claims: what a benchmark sets out to show, printed and kept the same way by all of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Options:
    """What every benchmark takes."""

    quick: bool = False
    """End within 50 s; what is left out is named as not measured."""
    json: Path | None = None
    """Append one row for each claim to this file."""


@dataclass(frozen=True)
class Claim:
    """One claim: a ratio and the target it should meet.

    Attributes:
        claim: Its name.
        ratio: What was measured; None if it was not.
        target: What it should be.
        at_most: Whether the target is an upper bound; a lower one otherwise.
        fugu: Our figure.
        peers: Theirs, by name; None for one that is absent.
        limit: The physical limit, measured in the same run.
        unit: Of the figures.
    """

    claim: str
    ratio: float | None
    target: float
    at_most: bool = False
    fugu: float | None = None
    peers: dict[str, float | None] = field(default_factory=dict)
    limit: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if it was not measured."""
        if self.ratio is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def __str__(self) -> str:
        verdict = {True: "met", False: "missed", None: "not measured"}[self.met]
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        sign = "<=" if self.at_most else ">="
        return f"claim {self.claim}: {ratio} (target {sign} {self.target:g}) {verdict}"


def finish(claims: list[Claim], options: Options) -> None:
    """Print the claims, append them to the file, and exit with 1 if one is missed."""
    if options.json:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        with options.json.open("a") as file:
            for claim in claims:
                row: dict[str, Any] = {**asdict(claim), "met": claim.met, "commit": commit}
                file.write(json.dumps(row) + "\n")
    print()
    for claim in claims:
        print(claim)
    sys.exit(int(any(claim.met is False for claim in claims)))


def seconds_per_call(
    call: Callable[[], object], *, window: float = 0.05, windows: int = 7
) -> float:
    """Median seconds of one call over several windows of about `window` seconds."""
    number = 1
    while (elapsed := _time(call, number)) < window / 4:
        number *= 4
    number = max(1, int(number * window / elapsed))
    return median(_time(call, number) / number for _ in range(windows))


def _time(call: Callable[[], object], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - start
