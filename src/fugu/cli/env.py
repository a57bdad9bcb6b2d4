"""`fugu env`: native environments: list them, begin one, build one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Env:
    """List the native environments, begin one of your own, or build one.

    fugu env list | fugu env new my_env | fugu env build my_env/my_env.h
    """

    action: Annotated[Literal["list", "new", "build"], tyro.conf.Positional]
    """list: what there is; new: write a header, hints and a test; build: compile a header."""
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME|HEADER")] = ""
    """The new environment's name, or the header to build."""
    out: str = ""
    """Where to write: a folder for new, a library for build."""

    def run(self) -> int:
        """Do it; 0 if it went well."""
        if self.action == "list":
            from fugu.cli.catalogue import native_facts
            from fugu.cli.envs import show_native
            from fugu.envs import suite

            show_native(map(native_facts, suite.names()))
            return 0
        if not self.target:
            example = "my_env" if self.action == "new" else "my_env/my_env.h"
            raise UsageError(
                f"env {self.action}: given nothing; allowed: fugu env {self.action} {example}"
            )
        if self.action == "new":
            _begin(self.target, self.out or ".")
        else:
            _build(self.target, self.out)
        return 0


def _begin(name: str, folder: str) -> None:
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
