"""`fugu envs`: which environments there are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from fugu.core.errors import UsageError, nearest_names

if TYPE_CHECKING:
    from rich.console import Console

    from fugu.cli.catalogue import NativeFacts, RecipeFacts


@dataclass(frozen=True)
class Envs:
    """List the environments that can be named here.

    fugu envs | fugu envs cart | fugu envs --json
    """

    part: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PART")] = ""
    """List the names that hold this, one a line; upper and lower case are alike."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """List them; 0 if there is one."""
        from fugu.cli.catalogue import families, native_facts, recipe_facts
        from fugu.envs import suite

        others = families()
        everything = [*suite.names(), *(name for names in others.values() for name in names)]
        native = [name for name in suite.names() if self._means(name)]
        others = {
            family: [name for name in names if self._means(name)]
            for family, names in others.items()
        }
        others = {family: names for family, names in others.items() if names}
        if not native and not others:
            raise UsageError(
                f"envs: given {self.part!r}, which is in no name here. "
                f"{nearest(self.part, everything)} fugu envs lists all."
            )
        if self.json:
            facts = [asdict(native_facts(name)) for name in native]
            recipes = [{**asdict(fact), "names": len(fact.names)} for fact in recipe_facts()]
            found = {"native": facts, "recipes": recipes, "families": others}
            print(json.dumps(found, indent=2))
        elif self.part:
            print("\n".join([*native, *(name for names in others.values() for name in names)]))
        else:
            show_native(native_facts(name) for name in native)
            show_recipes(recipe_facts())
            prefixes = {fact.prefix for fact in recipe_facts()}
            _show_families({name: found for name, found in others.items() if name not in prefixes})
        return 0

    def _means(self, name: str) -> bool:
        return self.part.lower() in name.lower()


def nearest(given: str, names: Iterable[str]) -> str:
    """The names most like the one given, whatever their case and version.

    >>> nearest("cartpool", ["CartPole-v1", "breakout", "cartpole"])
    'Nearest: cartpole, CartPole-v1.'
    """
    by_plain: dict[str, list[str]] = {}
    for name in names:
        by_plain.setdefault(name.lower().rpartition("/")[2], []).append(name)
    close = nearest_names(given, by_plain, 3, 0.4)
    found = [name for plain in close for name in by_plain[plain]][:3]
    return f"Nearest: {', '.join(found)}." if found else "None is near."


def show_native(facts: Iterable[NativeFacts]) -> None:
    """What native environments are, and what their agents see and do."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("native", style="cyan", no_wrap=True)
    table.add_column("what it is; agents, observation, actions")
    for fact in facts:
        parts = [fact.agents, fact.observation, fact.actions]
        parts += [name for name, there in (("masks", fact.masks), ("costs", fact.costs)) if there]
        text = Text(fact.summary)
        table.add_row(fact.name, text.append(f"\n{' | '.join(parts)}", "dim"))
    _console().print(table)


def show_recipes(facts: Iterable[RecipeFacts]) -> None:
    """Which recipes there are, and what those that are not installed need."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("\nrecipe", style="cyan", no_wrap=True)
    table.add_column("\nnames", justify="right", no_wrap=True)
    table.add_column("\nwhat it is")
    for fact in facts:
        there = f"{len(fact.names):,}" if fact.names else "any" if fact.installed else "absent"
        text = Text(fact.summary)
        if not fact.installed:
            text.append(f'\npip install "fugu-rl[{fact.extra}]"', "dim")
        table.add_row(fact.prefix, there, text)
    _console().print(table)


def _show_families(others: Mapping[str, list[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("\nfamily", style="cyan", no_wrap=True)
    table.add_column("\nnames", justify="right", no_wrap=True)
    table.add_column("\nsuch as", overflow="fold")
    for family, names in others.items():
        some = names[:: max(1, len(names) // 3)][:3]
        table.add_row(
            family, f"{len(names):,}", ", ".join(n.removeprefix(f"{family}/") for n in some)
        )
    console = _console()
    console.print(table)
    console.print("\n[dim]fugu envs PART lists the names that hold PART.[/]")


def _console() -> Console:
    from rich.console import Console

    # What is read by programs is not folded to the width of a screen.
    return Console() if sys.stdout.isatty() else Console(width=200)
