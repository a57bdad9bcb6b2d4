"""What `benchmarks/zoo.py` found, as parts of pages: scores, curves and commands."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "zoo.json"
PICTURES = "images/zoo"


def read_learned() -> dict[str, dict[str, Any]]:
    """Return the results by environment; none before the benchmark was run."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def command(env: str, one: dict[str, Any]) -> str:
    """Return the command that was run, without the seed."""
    steps = "" if one["group"] == "native" else f" --train.total-steps {one['steps']}"
    return f"fugu train {env}{steps}"


def score(one: dict[str, Any]) -> str:
    """Return the median of the seeds' scores, and their range.

    >>> score({"scores": [1.0, 3.0, None, 2.0]})
    '2 (1 to 3)'
    """
    scores = [value for value in one["scores"] if value is not None]
    if not scores:
        return "no episode ended"
    return f"{median(scores):.4g} ({min(scores):.4g} to {max(scores):.4g})"


def seconds(one: dict[str, Any]) -> str:
    """Return the seconds of a training, with those of Stable-Baselines3 if they were raced.

    >>> seconds({"race": {"fugu": [10.0], "sb3": [70.0]}, "seconds": [99.0]})
    '10; SB3: 70'
    >>> seconds({"race": {}, "seconds": [99.0, 101.0]})
    '100'
    """
    race = one.get("race")
    if race:
        return f"{median(race['fugu']):,.0f}; SB3: {median(race['sb3']):,.0f}"
    return f"{median(one['seconds']):,.0f}"


def section(env: str, up: str, results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of a page about one environment; none if it has no result.

    Args:
        env: The environment's name in the benchmark.
        up: The path from the page's folder to `docs`, such as "../".
        results: What `read_learned` returned.
    """
    one = results.get(env)
    if one is None:
        return []
    seeds = len(one["seeds"])
    return [
        "## Learned",
        "",
        f"`{command(env, one)}`: mean return of greedy episodes **{score(one)}**, "
        f"median (lowest to highest) of {seeds} seeds after {one['steps']:,} steps, "
        f"{seconds(one)} seconds each ([how]({up}zoo.md#scores)).",
        "",
        f"![Learning curve of {env}]({up}{PICTURES}/{one['name']}.png)",
        "",
    ]
