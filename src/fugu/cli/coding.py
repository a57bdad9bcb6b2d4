"""`fugu coding`: a group of commands, one file each."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from fugu.core.errors import UsageError, nearest_names

_COMMANDS = {
    "run": ("fugu.cli.coding_run:CodingRun", "run a program in the sandbox"),
    "export": ("fugu.cli.coding_export:CodingExport", "write the best programs as chats"),
}
_STYLE = (tyro.conf.PositionalRequiredArgs, tyro.conf.FlagCreatePairsOff)


@dataclass(frozen=True)
class Coding:
    """Run programs in the sandbox, and export programs that policies wrote."""

    action: Annotated[Literal["run", "export"], tyro.conf.Positional]
    """The command; `fugu coding ACTION --help` describes it."""

    @classmethod
    def parse(cls, args: list[str]) -> Any:
        """Parse `args` and return a command of the group."""
        name = args[0] if args else ""
        if name in ("", "-h", "--help"):
            lines = [f"  fugu coding {word:<8} {what}" for word, (_, what) in _COMMANDS.items()]
            print("\n".join(["Programs as untrusted text:", *lines]))
            raise SystemExit(0 if name else 2)
        if name not in _COMMANDS:
            (nearest,) = nearest_names(name, _COMMANDS)
            raise UsageError(
                f"coding: expected one of {', '.join(_COMMANDS)}; got {name!r}. "
                f"Did you mean {nearest!r}?"
            )
        module, _, kind = _COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(module), kind)
        return tyro.cli(command, prog=f"fugu coding {name}", args=args[1:], config=_STYLE)

    def run(self) -> int:
        """Raise: `parse` returns a command of the group, never the group itself."""
        raise NotImplementedError("run() -> int")
