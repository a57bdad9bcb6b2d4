"""`fugu convert-config`: an INI file of PufferLib as a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fugu.core.errors import UsageError


@dataclass(frozen=True)
class ConvertConfig:
    """Write an INI file of PufferLib 3.0 as settings of fugu train, and print what was changed.

    What the file does not say is as PufferLib has it, so that the run stays the same. Ranges of
    sweeps go to a file of their own.
    """

    file: Annotated[Path, tyro.conf.arg(metavar="FILE.ini")]
    """The INI file."""
    out: Path | None = None
    """Where to write; beside the INI file, with the ending .toml, if not given."""
    force: bool = False
    """Write over files that are there."""

    def run(self) -> int:
        """Convert the file and return the exit status."""
        try:
            from fugu_pufferlib.command import convert_file
        except ModuleNotFoundError:
            raise UsageError(
                "convert-config needs the package fugu-pufferlib. In a clone of fugu, run: "
                "pip install ./plugins/fugu-pufferlib"
            ) from None
        convert_file(self.file, self.out, force=self.force)
        return 0
