"""`fugu envs`, `fugu env` and `fugu check`: list, create and check environments."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from fugu.cli.parsing import EnvName
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
        """List the environments and return the exit status."""
        from fugu.cli.catalogue import families, native_facts, recipe_facts
        from fugu.envs import suite
        from fugu.envs.suite import nearest

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


@dataclass(frozen=True)
class Env:
    """List the native environments, create one of your own, or build one.

    fugu env list | fugu env new my_env | fugu env build my_env/my_env.h
    """

    action: Annotated[Literal["list", "new", "build"], tyro.conf.Positional]
    """list: what there is; new: write a header, hints and a test; build: compile a header."""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|HEADER")] = ""
    """The new environment's name, or the header to build."""
    out: str = ""
    """Where to write: a folder for new, a library for build."""

    def run(self) -> int:
        """List, create or build environments, and return the exit status."""
        if self.action == "list":
            from fugu.cli.catalogue import native_facts
            from fugu.envs import suite

            show_native(map(native_facts, suite.names()))
            return 0
        if not self.target:
            example = "my_env" if self.action == "new" else "my_env/my_env.h"
            raise UsageError(
                f"env {self.action}: given nothing; allowed: fugu env {self.action} {example}"
            )
        if self.action == "new":
            _create(self.target, self.out or ".")
        else:
            _build(self.target, self.out)
        return 0


@dataclass(frozen=True)
class Check:
    """Run an environment for a while and report its faults."""

    env: EnvName
    """CartPole-v1, module:Id-v0, pettingzoo:family/name or package.module:factory."""
    steps: int = 1000
    """Steps of each run."""
    seed: int = 0
    """Random seed of resets and actions."""
    limits: int = 256
    """Maximum length of each Sequence and Graph in the spaces."""
    json: bool = False
    """Print the report as one JSON object and nothing else."""

    def run(self) -> int:
        """Check the environment; return 0 if no check failed."""
        from fugu.envs.checking import check
        from fugu.envs.resolve import resolve

        # The JSON must be all of stdout, whatever the environment prints.
        with contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext():
            report = check(
                resolve(self.env),
                steps=self.steps,
                seed=self.seed,
                limits=self.limits,
                show=not self.json,
            )
        if self.json:
            print(json.dumps(report.to_dict(), indent=2))
        return 0 if report.ok else 1


def _create(name: str, folder: str) -> None:
    from fugu.envs.scaffold import write_scaffold

    header, hints, test = write_scaffold(name, folder)
    print(f"wrote {header}, {hints} and {test}")
    print(f"next: fugu env build {header}, then fugu play {header.with_suffix('.so')}")


def _build(header: str, out: str) -> None:
    from fugu.envs.building import build
    from fugu.envs.native_env import NativeLibrary

    library = build(header, out or None)
    loaded = NativeLibrary.load(str(library.resolve()))
    spec = loaded.spec(loaded.values({}))
    agents = " + ".join(f"{group.num_agents} {group.name}" for group in spec.groups)
    print(f"built {library}: {agents}; {loaded.library.state_bytes} bytes of state a copy")
    print(f'next: fugu.make("{library if library.is_absolute() else f"./{library}"}", 1024)')


def show_native(facts: Iterable[NativeFacts]) -> None:
    """Print what native environments are, and what their agents see and do."""
    from rich.text import Text

    table = _table("native", "what it is; agents, observation, actions")
    for fact in facts:
        parts = [fact.agents, fact.observation, fact.actions]
        parts += [name for name, there in (("masks", fact.masks), ("costs", fact.costs)) if there]
        text = Text(fact.summary)
        table.add_row(fact.name, text.append(f"\n{' | '.join(parts)}", "dim"))
    _console().print(table)


def show_recipes(facts: Iterable[RecipeFacts]) -> None:
    """Print which recipes there are, and what those that are not installed need."""
    from rich.text import Text

    table = _table("\nrecipe", "\nnames", "\nwhat it is")
    for fact in facts:
        there = f"{len(fact.names):,}" if fact.names else "any" if fact.installed else "absent"
        text = Text(fact.summary)
        if not fact.installed:
            text.append(f'\npip install "fugu-rl[{fact.extra}]"', "dim")
        table.add_row(fact.prefix, there, text)
    _console().print(table)


def _show_families(others: Mapping[str, list[str]]) -> None:
    table = _table("\nfamily", "\nnames", "\nsuch as")
    for family, names in others.items():
        some = names[:: max(1, len(names) // 3)][:3]
        table.add_row(
            family, f"{len(names):,}", ", ".join(n.removeprefix(f"{family}/") for n in some)
        )
    console = _console()
    console.print(table)
    console.print("\n[dim]fugu envs PART lists the names that hold PART.[/]")


def _table(name: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(name, style="cyan", no_wrap=True)
    for column in columns:
        numbers = column == "\nnames"
        table.add_column(column, justify="right" if numbers else "left", no_wrap=numbers)
    return table


def _console() -> Console:
    from rich.console import Console

    # What is read by programs is not folded to the width of a screen.
    return Console() if sys.stdout.isatty() else Console(width=200)
