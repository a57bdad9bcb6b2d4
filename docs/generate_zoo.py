"""Writes what `benchmarks/zoo.py` found into docs/zoo.md and docs/recipes.md.

    python docs/generate_zoo.py [--check]

With --check nothing is written, and the exit status is 1 if a page is not what it should be.
"""

from __future__ import annotations

import sys
from typing import Any

from learned import DOCS, PICTURES, command, read_learned, score, seconds
from pages import between, replace_between, table, write_or_check

from fugu.zoo.index import read_index

ZOO, RECIPES = DOCS / "zoo.md", DOCS / "recipes.md"
HEAD = ("environment", "command", "score", "published", "seconds", "curve")


def results(groups: tuple[str, ...], found: dict[str, dict[str, Any]]) -> str:
    """Return a table of the results of some groups."""
    rows = []
    for env, one in found.items():
        if one["group"] in groups:
            published = "-" if one["published"] is None else f"{one['published']:.4g}"
            curve = f'<img src="{PICTURES}/{one["name"]}.png" width="210" alt="curve of {env}">'
            cells = (f"`{env}`", f"`{command(env, one)}`", score(one), published)
            rows.append((*cells, seconds(one), curve))
    if not rows:
        return (
            "\nNo results yet: `python benchmarks/zoo.py` trains, `--report` writes them here.\n\n"
        )
    return "\n".join(["", *table(HEAD, rows), ""])


def policies() -> str:
    """Return a table of the policies that come with fugu."""
    rows = [
        (
            f"`{policy.name}`",
            f"{policy.score:.4g} ± {policy.deviation:.3g}",
            f"{policy.steps:,}",
            f"{policy.bytes / 1000:,.0f} kB",
            policy.note,
        )
        for policy in read_index()
    ]
    if not rows:
        return (
            "\nNo policy is published yet: `python benchmarks/zoo.py --publish best` does so.\n\n"
        )
    return "\n".join(["", *table(("name", "mean return", "steps", "size", "chosen"), rows), ""])


def main() -> int:
    """Write the parts of both pages, or check them."""
    found = read_learned()
    zoo = between(ZOO, "scores", results(("table", "heldout", "native"), found))
    zoo = replace_between(zoo, "policies", policies(), ZOO)
    return write_or_check(
        {ZOO: zoo, RECIPES: between(RECIPES, "learned", results(("table", "heldout"), found))}
    )


if __name__ == "__main__":
    sys.exit(main())
