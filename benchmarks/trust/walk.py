"""The walk from an environment's step to the gradient step: which of fugu's functions are called.

    python benchmarks/trust/walk.py [--list] [--env breakout] [--json FILE]

One update of PPO is traced, after a first one that warms up: its collection and its learning, by
the native learner and by torch. Every function of `src/fugu` that is called counts once, however
often it is called; comprehensions and lambdas count with the function that holds them. --list names
them in the order of their first call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

import fugu
from fugu.core.seeding import derive
from fugu.training.config import resolve_config
from fugu.training.trainer import Trainer

SOURCE = Path(fugu.__file__).parent
TARGETS = {"native": 25, "torch": 45}  # functions, at most
console = Console()


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    env: str = "breakout"
    """Environment to train on."""
    list: bool = False
    """Name the functions, in the order of their first call."""
    json: Path | None = None
    """Write the counts to this file."""


@contextmanager
def traced(found: dict[str, None]) -> Iterator[None]:
    """Note the functions of `src/fugu` that are called."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)) and code.co_name[0] != "<":
            place = Path(code.co_filename).relative_to(SOURCE)
            found.setdefault(f"{place}:{code.co_qualname}")

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walk(env: str, engine: str) -> list[str]:
    """Return the functions that one update calls, in the order of their first call."""
    cfg = resolve_config(env, overrides={"train": {"engine": engine}})
    trainer = Trainer(cfg)
    found: dict[str, None] = {}
    try:
        trainer.algorithm.start(derive(cfg.seed, 0))
        trainer.update()
        with traced(found):
            trainer.algorithm.collect()
            trainer.algorithm.update(0.1)
    finally:
        trainer.close()
    return list(found)


def main(options: Options) -> None:
    """Trace both, and show how many functions and files there are."""
    table = Table("learner", "functions", "files", "asked")
    facts = {}
    for engine, most in TARGETS.items():
        found = walk(options.env, engine)
        files = {name.partition(":")[0] for name in found}
        table.add_row(engine, str(len(found)), str(len(files)), f"at most {most}")
        facts[engine] = {"functions": found, "files": sorted(files)}
        if options.list:
            console.print(f"[bold]{engine}[/]", *found, sep="\n  ")
    console.print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Options))
