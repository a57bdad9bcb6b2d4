"""`fugu coding attack`: the attack suite, as a table of walls."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fugu.core.errors import UsageError
from fugu.sandbox import Backend
from fugu.sandbox.attacking import Finding, attack_all
from fugu.sandbox.unprivileged import attack_as_nobody


@dataclass(frozen=True)
class CodingAttack:
    """Attack the sandbox in every way we know, and show which walls hold.

    Each attack runs without walls first, in a throw-away process: one that fails there shows
    nothing and does not count. Targets are put up for it on this machine alone.
    """

    backend: Backend = "zygote"
    """What to attack."""
    nobody: bool = False
    """Attack as the user nobody; only root can."""
    only: tuple[str, ...] = ()
    """Only these walls, such as network, or attacks by name."""
    missing_walls: bool = False
    """Attack although the self-test finds a wall missing."""
    all: bool = False
    """Show every attack, not only the walls."""
    json: bool = False
    """Print the findings as one JSON object and nothing else."""

    def run(self) -> int:
        """Attack; 0 if every wall holds."""
        if self.backend == "unsafe":
            raise UsageError("coding attack: given unsafe; allowed: a backend that has walls.")
        if self.nobody and os.geteuid() != 0:
            raise UsageError("coding attack: given --nobody; allowed: as root, or leave it out.")
        attack = attack_as_nobody if self.nobody else attack_all
        findings = attack(self.backend, only=self.only, missing_walls=self.missing_walls)
        if self.json:
            print(json.dumps([asdict(found) for found in findings], indent=2))
        else:
            _show(findings, every=self.all)
        return 0 if all_hold(findings) else 1


def all_hold(findings: Sequence[Finding]) -> bool:
    """Whether no attack got anywhere."""
    return bool(findings) and all(found.held for found in findings)


def _show(findings: Sequence[Finding], *, every: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("wall", "attacks", "work without walls", "held", "got through")
    for wall in dict.fromkeys(found.wall for found in findings):
        mine = [found for found in findings if found.wall == wall]
        through = [found.name for found in mine if not found.held]
        counting = sum(found.counts for found in mine)
        held = sum(found.held for found in mine)
        table.add_row(wall, str(len(mine)), str(counting), str(held), ", ".join(through) or "-")
    console.print(table)
    if every:
        details = Table("attack", "wall", "without walls", "here", "what it met")
        for found in findings:
            without = "succeeds" if found.works_without_walls else "fails, does not count"
            here = "held" if found.held else "GOT THROUGH"
            details.add_row(found.name, found.wall, without, here, found.told)
        console.print(details)
    counting = sum(found.counts for found in findings)
    broken = sum(not found.held for found in findings)
    console.print(
        f"{len(findings)} attacks, {counting} that work without walls, {broken} got through"
    )
