"""The first files of a new native environment: a header, its training hints, a test."""

from __future__ import annotations

import re
from pathlib import Path

from fugu.core.errors import UsageError

TEMPLATES = Path(__file__).with_name("scaffold_files")


def write_scaffold(name: str, folder: str | Path = ".") -> list[Path]:
    """Write `name.h`, `name.toml` and `name_test.py` into `folder/name`; return their paths."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(
            f"name: given {name!r}; allowed: lower-case letters, digits and _, as in my_env."
        )
    home = Path(folder) / name
    files = {
        f"{name}.h": "header.h",
        f"{name}.toml": "hints.toml",
        f"{name}_test.py": "test.txt",
    }
    there = [file for file in files if (home / file).exists()]
    if there:
        raise UsageError(
            f"name: given {name!r}, but {home} has {', '.join(there)} already; allowed: a name "
            "that is not taken. Nothing was written."
        )
    home.mkdir(parents=True, exist_ok=True)
    struct = "".join(part.capitalize() for part in name.split("_"))
    for file, template in files.items():
        text = (TEMPLATES / template).read_text()
        (home / file).write_text(text.replace("@name@", name).replace("@Struct@", struct))
    return [home / file for file in files]
