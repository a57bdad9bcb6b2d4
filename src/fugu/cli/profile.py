"""`fugu profile`: where the time of an update goes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fugu.cli.flags import plain_options, settings_help
from fugu.core.config import Tree, from_flags
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.training.profiling import Profile as Found

PROFILE_HELP = """usage: fugu profile ENV [--SECTION.SETTING VALUE ...]

Train for a moment and say where the time went: some updates with their parts timed, then as many
under torch's profiler. Nothing is kept but the trace.

  --updates N        updates to time, and to trace (5), after 2 to warm up
  --out FILE         the trace (profile.json), for chrome://tracing or ui.perfetto.dev
  --json             print one JSON object and nothing else
  --preset, --config, --seed, --device, --env.KEY: as of fugu train"""
PLAIN = {"preset": str, "config": str, "seed": int, "device": str, "updates": int, "out": Path}
OPERATORS = 12  # that are shown


@dataclass(frozen=True)
class Profile:
    """Show where the time of an update goes."""

    env: str
    tree: Tree = field(default_factory=dict)
    preset: str | None = None
    config: str | None = None
    updates: int = 5
    out: Path = Path("profile.json")
    json: bool = False

    @classmethod
    def parse(cls, args: list[str]) -> Profile:
        """The command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(PROFILE_HELP + "\n\n" + settings_help())
            raise SystemExit(0 if rest else 2)
        options, names = plain_options(rest, PLAIN, ("json",))
        if len(names) != 1:
            raise UsageError(f"profile: given {names}; allowed: one environment.")
        if "env" in tree:
            tree["env_kwargs"] = tree.pop("env")
        tree |= {name: options.pop(name) for name in ("seed", "device") if name in options}
        return cls(names[0], tree, **options)

    def run(self) -> int:
        """Profile; 0 if it went well."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's tracer tells when it starts
        from fugu.training.config import resolve_config
        from fugu.training.profiling import profile_training

        files = () if self.config is None else (self.config,)
        cfg = resolve_config(self.env, preset=self.preset, files=files, overrides=self.tree)
        found = profile_training(cfg, self.out, self.updates)
        if self.json:
            print(json.dumps(asdict(found)))
        else:
            _show(found, self.out)
        return 0


def _show(found: Found, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    parts, operators = (Table(box=None, pad_edge=False, header_style="dim") for _ in range(2))
    for table, first in ((parts, "an update"), (operators, "\noperators by their own time")):
        table.add_column(first, min_width=32, no_wrap=True)
        for name in ("ms", "share", "calls"):
            table.add_column(name, justify="right", vertical="bottom")
    for part in found.parts:
        name = f"  {part.name}" if part.name else f"[bold cyan]{part.phase}[/]"
        parts.add_row(name, *_figures(part.seconds, part.share, part.calls))
    for operator in found.operators[:OPERATORS]:
        figures = _figures(operator.seconds, operator.share, operator.calls)
        operators.add_row(f"  {operator.name}", *figures)
    rate = found.steps / found.seconds
    console.print(
        f"{found.steps:,.0f} steps in {1e3 * found.seconds:.1f} ms an update: {rate:,.0f}/s\n"
    )
    console.print(parts)
    console.print(operators)
    slower = max(0.0, found.traced_seconds / found.seconds - 1)
    console.print(
        f"\nmatrix products: {found.matrix_products:.1%} of the update's wall clock\n"
        f"[dim]operators are of other updates, which the tracer made {slower:.0%} slower[/]"
    )
    print(f"Written: {out}")


def _figures(seconds: float, share: float, calls: float) -> tuple[str, str, str]:
    return f"{1e3 * seconds:.2f}", f"{share:.1%}", f"{calls:,.0f}"
