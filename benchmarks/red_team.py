"""The sandbox attacked in every way we know: how many escapes there are, and how many succeed.

    python benchmarks/red_team.py [--quick] [--json FILE]

The suite of `fugu coding attack` against the zygote, as root and as the user nobody, and against
bubblewrap where it is installed. An attack counts if it succeeds where there are no walls, which is
tried first, each time. It holds if it got nothing, and the next honest program its right verdict.
--quick attacks the zygote alone, as whoever runs it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence

import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.table import Table

from fugu.sandbox.attacking import Finding, attack_all
from fugu.sandbox.unprivileged import attack_as_nobody

ASKED = 110  # distinct escapes, proven; as nobody some need rights that nobody has
console = Console()


def sides(quick: bool) -> dict[str, Callable[[], Sequence[Finding]]]:
    """What is attacked, and as whom."""
    found: dict[str, Callable[[], Sequence[Finding]]] = {"zygote": lambda: attack_all("zygote")}
    if quick:
        return found
    if os.geteuid() == 0:
        found["zygote, as nobody"] = lambda: attack_as_nobody("zygote")
    if shutil.which("bwrap"):
        found["bubblewrap"] = lambda: attack_all("bubblewrap")
    return found


def word(finding: Finding) -> str:
    """What became of an attack."""
    if not finding.held:
        return "GOT THROUGH"
    return "held" if finding.counts else "held; shows nothing"


def main(options: Options) -> None:
    """Attack and report."""
    by_side: dict[str, dict[str, Finding]] = {}
    for side, attack in sides(options.quick).items():
        with console.status(f"attacking: {side}"):
            by_side[side] = {finding.name: finding for finding in attack()}
    first = next(iter(by_side.values()))
    table = Table("attack", "wall", *by_side)
    for name, finding in first.items():
        cells = [word(mine[name]) if name in mine else "-" for mine in by_side.values()]
        table.add_row(name, finding.wall, *cells)
    console.print(table)
    claims = []
    for side, mine in by_side.items():
        counting = sum(finding.counts for finding in mine.values())
        through = sum(not finding.held for finding in mine.values())
        console.print(f"{side}: {len(mine)} attacks, {counting} count, {through} got through")
        short = side.replace(", ", "-").replace(" ", "-")
        claims.append(Claim(f"attacks-that-count-{short}", counting, ASKED))
        claims.append(Claim(f"attacks-that-got-through-{short}", through, 0, at_most=True))
    finish(claims, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
