"""Attack the sandbox in every way we know, and count the attacks that succeed.

    python benchmarks/red_team.py [--quick] [--json FILE]

Every attack of `tests/sandbox/attacks` runs as root and as the user nobody against three sandboxes:
the zygote (the default executor), the zygote in bubblewrap, and the executor that starts a
bubblewrap for each program. Started by another user than root, it attacks as that user alone.

Before each attack on a sandbox, the same attack runs without isolation, in a process of its own. An
attack is proven if it succeeds there. Some need root even without isolation: as nobody they show
nothing, and the table says that they are proven as root. A sandbox holds an attack if the attack
gains nothing and the next honest program gets its right verdict. The claims count the attacks that
are held and that are proven as the user who attacks. --quick attacks the zygote alone, by the
attacks on files, other processes and grading, as whoever runs it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.table import Column, Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sandbox"))

from attacks.suite import ATTACKS, Finding, attack_all
from attacks.unprivileged import attack_as_nobody

LEAST = 120  # attacks, proven as its own user, that each side must hold
QUICK = ("files", "other processes", "grading")
SANDBOXES: dict[str, tuple[str, dict[str, Any]]] = {
    "zygote": ("zygote", {"jail": "none"}),
    "zygote in bubblewrap": ("zygote", {"jail": "bubblewrap"}),
    "bubblewrap": ("bubblewrap", {}),
}
console = Console()


@dataclass(frozen=True)
class Side:
    """A user who attacks a sandbox.

    Attributes:
        user: root, nobody, or `user` for whoever else runs this.
        sandbox: One of SANDBOXES.
    """

    user: str
    sandbox: str

    def __str__(self) -> str:
        return f"{self.user}, {self.sandbox}"

    def attack(self, quick: bool) -> dict[str, Finding]:
        """Run the suite; return its findings by the names of attacks."""
        attack = attack_as_nobody if self.user == "nobody" else attack_all
        backend, options = SANDBOXES[self.sandbox]
        found: list[Finding] = attack(backend, only=QUICK if quick else (), **options)
        return {finding.name: finding for finding in found}


def runnable_sides(quick: bool) -> Iterator[Side]:
    """Yield the sides that this user can take on this machine."""
    users = ("root", "nobody") if os.geteuid() == 0 else ("user",)
    for user in users[:1] if quick else users:
        yield Side(user, "zygote")
        if not quick and shutil.which("bwrap"):
            yield Side(user, "zygote in bubblewrap")
            yield Side(user, "bubblewrap")


def users_who_prove(findings: dict[Side, dict[str, Finding]]) -> dict[str, set[str]]:
    """Return, for each attack, the users as whom it succeeds without isolation."""
    proven_by: dict[str, set[str]] = {}
    for side, found in findings.items():
        for name, finding in found.items():
            proven_by.setdefault(name, set()).update({side.user} if finding.proven else ())
    return proven_by


def cell(finding: Finding, proven_by: set[str]) -> str:
    """Return the outcome of one attack on one side."""
    if not finding.held:
        return "GOT THROUGH"
    if finding.proven:
        return "held"
    users = " and ".join(sorted(proven_by))
    return f"held; proven as {users}" if users else "held; not proven"


def show(findings: dict[Side, dict[str, Finding]], proven_by: dict[str, set[str]]) -> None:
    """Print a row for each attack, and a line for each side."""
    table = Table(Column("attack", no_wrap=True), "category", *map(str, findings))
    for attack in ATTACKS:
        if attack.name in proven_by:
            by_side = (found[attack.name] for found in findings.values())
            cells = (cell(finding, proven_by[attack.name]) for finding in by_side)
            table.add_row(attack.name, attack.category, *cells)
    console.print(table)
    for side, found in findings.items():
        proven = sum(finding.proven for finding in found.values())
        through = sum(not finding.held for finding in found.values())
        console.print(
            f"{side}: {len(found)} attacks, {proven} of them proven as {side.user}, "
            f"{through} got through"
        )
    proven = sum(map(bool, proven_by.values()))
    console.print(
        f"{proven} of {len(proven_by)} attacks are proven: they succeed without isolation"
    )


def judge(
    findings: dict[Side, dict[str, Finding]], proven_by: dict[str, set[str]], quick: bool
) -> list[Claim]:
    """Return two claims for each side, and one that every attack is proven; None: not measured."""
    claims: list[Claim] = []
    users = dict.fromkeys(side.user for side in findings)
    for side in (Side(user, sandbox) for user in users for sandbox in SANDBOXES):
        name = str(side).replace(", ", "-").replace(" ", "-")
        found = findings.get(side, {})
        held = sum(finding.held and finding.proven for finding in found.values())
        through = sum(not finding.held for finding in found.values())
        claims += [
            Claim(f"attacks-proven-and-held-{name}", held if found and not quick else None, LEAST),
            Claim(f"attacks-through-{name}", through if found else None, 0, at_most=True),
        ]
    unproven = sum(not proven for proven in proven_by.values())
    asked = "root" in users  # others lack the rights that some attacks need
    return [*claims, Claim("attacks-not-proven", unproven if asked else None, 0, at_most=True)]


def main(options: Options) -> None:
    """Attack, show and judge."""
    findings: dict[Side, dict[str, Finding]] = {}
    for side in runnable_sides(options.quick):
        with console.status(f"attacking: {side}"):
            findings[side] = side.attack(options.quick)
    proven_by = users_who_prove(findings)
    show(findings, proven_by)
    finish(judge(findings, proven_by, options.quick), options)


if __name__ == "__main__":
    main(tyro.cli(Options))
