"""What `fugu convert-config` does: write an INI file of PufferLib as TOML files."""

from __future__ import annotations

from pathlib import Path

from fugu.algos.settings import read_config
from fugu.core.config import dump_toml
from fugu.core.errors import UsageError
from fugu.core.writing import write_together
from fugu_pufferlib.config import Conversion, Note, convert


def convert_file(file: Path, out: Path | None, *, force: bool) -> None:
    """Write the settings of an INI file, and the ranges of its sweep beside them.

    Args:
        file: The INI file.
        out: The TOML file; beside the INI file if not given.
        force: Whether to replace files that exist.
    """
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"convert-config: given {str(file)!r}; allowed: an INI file ({error})."
        ) from None
    found = convert(text)
    check(found)
    out = out or file.with_suffix(".toml")
    sweep = out.with_suffix(".sweep.toml")
    files = {out: found.settings}
    if found.ranges:
        files[sweep] = {**found.settings, "sweep": found.ranges}
    existing = [str(path) for path in files if path.exists()]
    if existing and not force:
        raise UsageError(
            f"out: given {', '.join(existing)}, which is there; allowed: a new file, or --force."
        )
    head = f"# From {file.name}, by fugu convert-config.\n"
    write_together({path: head + dump_toml(tree) for path, tree in files.items()})
    report(found)
    env = found.env or "ENV"
    print(f"next: fugu train {env} --config {out}")
    if found.ranges:
        print(f"or:   fugu sweep {env} --config {sweep}")


def check(found: Conversion) -> None:
    """Raise UsageError unless `fugu train` and `fugu sweep` accept the settings."""
    read_config({"env": found.env or "", **found.settings})


def report(found: Conversion) -> None:
    """Print what became of each setting."""
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
