"""The tree at two commits: files, lines, long files, and lines that are written twice.

    python benchmarks/trust/tree.py BEFORE [AFTER]

A line of code is written twice if it stands in a run of six or more that stand elsewhere too,
spaces and blank lines aside; imports do not count, and pages are not compared. What comes of it is
written to `benchmarks/results/tree.md`.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import tyro

ROOT = Path(__file__).parents[2]
RUN, LONG = 6, 500
CODE = {".py", ".pyi", ".c", ".h", ".cpp", ".hpp", ".sh"}
ROOMS = {
    "src": "the library, in Python",
    "native": "the core and environments, in C and C++",
    "tests": "tests",
    "benchmarks": "benchmarks",
    "examples": "examples",
    "docs": "pages, and what writes them",
}


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    before: tyro.conf.Positional[str]
    """A commit."""
    after: tyro.conf.Positional[str] = "HEAD"
    """A later one."""


@dataclass
class Room:
    """What a folder of the tree has."""

    files: int = 0
    lines: int = 0
    long: int = 0
    twice: int = 0


def git(*words: str) -> str:
    """What a command of git says."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def sources(commit: str) -> dict[str, list[str]]:
    """The lines of every file of code, and of pages."""
    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    found = {}
    for name in names:
        path = PurePosixPath(name)
        if path.parts[0] in ROOMS and (path.suffix in CODE or path.suffix == ".md"):
            found[name] = git("show", f"{commit}:{name}").splitlines()
    return found


def written_twice(files: dict[str, list[str]]) -> dict[str, int]:
    """Lines of each file of code that stand in a run that is elsewhere too."""
    plain = {
        name: list(_without_imports(lines))
        for name, lines in files.items()
        if PurePosixPath(name).suffix in CODE
    }
    places = defaultdict[tuple[str, ...], list[tuple[str, int]]](list)
    for name, lines in plain.items():
        for i in range(len(lines) - RUN + 1):
            places[tuple(lines[i : i + RUN])].append((name, i))
    marked = defaultdict[str, set[int]](set)
    for where in places.values():
        if len(where) > 1:
            for name, i in where:
                marked[name] |= set(range(i, i + RUN))
    return {name: len(lines) for name, lines in marked.items()}


def _without_imports(lines: list[str]) -> Iterator[str]:
    """What stands on the lines that are neither blank nor part of an import."""
    inside = False
    for raw in lines:
        line = raw.strip()
        begins = line.startswith(("import ", "from ", "#include"))
        if line and not begins and not inside:
            yield line
        inside = (inside or (begins and line.endswith("("))) and not line.endswith(")")


def rooms(commit: str) -> dict[str, Room]:
    """What each folder has."""
    files = sources(commit)
    twice = written_twice(files)
    found = {name: Room() for name in ROOMS}
    for name, lines in files.items():
        room = found[name.split("/")[0]]
        room.files += 1
        room.lines += len(lines)
        room.long += len(lines) > LONG and PurePosixPath(name).suffix in CODE
        room.twice += twice.get(name, 0)
    return found


def main(options: Options) -> None:
    """Compare and report."""
    first, last = (
        git("rev-parse", "--short", commit).strip() for commit in (options.before, options.after)
    )
    found = rooms(first), rooms(last)
    lines = [
        "# The tree, before and after",
        "",
        f"Written by `python benchmarks/trust/tree.py {first} {last}`, which says how to read it.",
        "",
        "| | | files | lines | files over 500 lines | lines written twice |",
        "|---|---|---|---|---|---|",
    ]
    for name, told in ROOMS.items():
        before, after = (end[name] for end in found)
        cells = [
            f"{getattr(before, kind):,} → {getattr(after, kind):,}"
            for kind in ("files", "lines", "long", "twice")
        ]
        lines.append(f"| `{name}` | {told} | {' | '.join(cells)} |")
    page = "\n".join(lines) + "\n"
    (ROOT / "benchmarks" / "results" / "tree.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main(tyro.cli(Options))
