"""`fugu convert-config`: an INI file of PufferLib as a TOML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fugu.core.config import Tree
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu_pufferlib.config import Conversion, Note


@dataclass(frozen=True)
class ConvertConfig:
    """Write an INI file of PufferLib 3.0 as settings of fugu train, and tell what was changed.

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
        """Convert; 0 if it went well."""
        try:
            from fugu_pufferlib.config import convert
        except ModuleNotFoundError:
            raise UsageError(
                "convert-config needs the package fugu-pufferlib. In a clone of fugu, run: "
                "pip install ./plugins/fugu-pufferlib"
            ) from None
        try:
            text = self.file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"convert-config: given {str(self.file)!r}; allowed: an INI file ({error})."
            ) from None
        found = convert(text)
        check(found)
        out = self.out or self.file.with_suffix(".toml")
        sweep = out.with_suffix(".sweep.toml")
        files = {out: found.settings}
        if found.ranges:
            files[sweep] = {**found.settings, "sweep": found.ranges}
        self._write(files)
        _tell(found)
        env = found.env or "ENV"
        print(f"next: fugu train {env} --config {out}")
        if found.ranges:
            print(f"or:   fugu sweep {env} --config {sweep}")
        return 0

    def _write(self, files: dict[Path, Tree]) -> None:
        from fugu.core.toml import dump_toml
        from fugu.core.writing import write_together

        there = [str(path) for path in files if path.exists()]
        if there and not self.force:
            raise UsageError(
                f"out: given {', '.join(there)}, which is there; allowed: a new file, or --force."
            )
        head = f"# From {self.file.name}, by fugu convert-config.\n"
        write_together({path: head + dump_toml(tree) for path, tree in files.items()})


def check(found: Conversion) -> None:
    """Raise unless `fugu train` and `fugu sweep` take it."""
    from fugu.algos.settings import read_config

    read_config({"env": found.env or "", **found.settings})


def _tell(found: Conversion) -> None:
    """What became of each setting."""
    groups: dict[str, list[Note]] = {"renamed": [], "kept": [], "dropped": [], "added": []}
    for note in found.notes:
        kind = "renamed" if note.source != note.target else "kept"
        kind = "dropped" if not note.target else "added" if not note.source else kind
        groups[kind].append(note)
    for kind, notes in groups.items():
        if kind == "kept" and notes:
            print(f"kept: {', '.join(note.source for note in notes)}")
            continue
        if notes:
            print(f"{kind}:")
        for note in notes:
            names = (note.source, note.target)
            name = (" -> " if kind == "renamed" else "").join(names)
            print(f"  {name}{f': {note.why}' if note.why else ''}")
    if found.assumed:
        print(f"as PufferLib's default.ini has them: {', '.join(found.assumed)}")
