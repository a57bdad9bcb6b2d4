"""Compare the tree at two commits: files, lines, duplicated lines, single-importer modules.

    python benchmarks/trust/tree.py BEFORE [AFTER]

A line of code counts as duplicated if it stands in a run of six or more lines that stand elsewhere
too, spaces and blank lines aside; imports do not count, and pages are not compared. A module counts
as having one importer if exactly one other module of `src/fugu` imports it, and that one is in the
same package. A class name is used twice if two modules of `src/fugu` define it at the top level.
The report is written to `benchmarks/results/tree.md`.
"""

from __future__ import annotations

import ast
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
    "plugins": "optional packages of their own",
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
    """The size of one folder of the tree."""

    files: int = 0
    lines: int = 0
    long: int = 0
    twice: int = 0


def git(*words: str) -> str:
    """Return the output of a git command."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def sources(commit: str) -> dict[str, list[str]]:
    """Return the lines of every file of code and every page."""
    names = git("ls-tree", "-r", "--name-only", commit).splitlines()
    found = {}
    for name in names:
        path = PurePosixPath(name)
        if path.parts[0] in ROOMS and (path.suffix in CODE or path.suffix == ".md"):
            found[name] = git("show", f"{commit}:{name}").splitlines()
    return found


def written_twice(files: dict[str, list[str]]) -> dict[str, int]:
    """Count the duplicated lines of each file of code."""
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
    """Yield the lines that are neither blank nor part of an import."""
    inside = False
    for raw in lines:
        line = raw.strip()
        begins = line.startswith(("import ", "from ", "#include"))
        if line and not begins and not inside:
            yield line
        inside = (inside or (begins and line.endswith("("))) and not line.endswith(")")


def modules(files: dict[str, list[str]]) -> dict[str, ast.Module]:
    """Parse the modules of `src/fugu`, by their names."""
    found = {}
    for name, lines in files.items():
        path = PurePosixPath(name)
        if name.startswith("src/fugu/") and path.suffix == ".py":
            dotted = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
            found[dotted] = ast.parse("\n".join(lines))
    return found


def single_importers(parsed: dict[str, ast.Module]) -> int:
    """Count the modules that exactly one other module imports, of the same package."""
    importers = defaultdict[str, set[str]](set)
    for name, tree in parsed.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            for target in found:
                if target in parsed and target != name:
                    importers[target].add(name)
    return sum(
        len(found) == 1 and next(iter(found)).split(".")[1:2] == target.split(".")[1:2]
        for target, found in importers.items()
    )


def repeated_classes(parsed: dict[str, ast.Module]) -> int:
    """Count the names of classes that several modules define at their top level."""
    homes = defaultdict[str, int](int)
    for tree in parsed.values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name] += 1
    return sum(count > 1 for count in homes.values())


def rooms(files: dict[str, list[str]]) -> dict[str, Room]:
    """Measure each folder."""
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
    files = sources(first), sources(last)
    found = [rooms(each) for each in files]
    parsed = [modules(each) for each in files]
    lines = [
        "# The tree, before and after",
        "",
        f"Written by `python benchmarks/trust/tree.py {first} {last}`, which says how to read it.",
        "",
        "| | | files | lines | files over 500 lines | duplicated lines |",
        "|---|---|---|---|---|---|",
    ]
    for name, label in ROOMS.items():
        before, after = (end[name] for end in found)
        cells = [
            f"{getattr(before, kind):,} → {getattr(after, kind):,}"
            for kind in ("files", "lines", "long", "twice")
        ]
        lines.append(f"| `{name}` | {label} | {' | '.join(cells)} |")
    lines += ["", "| of `src/fugu` | |", "|---|---|"]
    for label, count in (
        ("Python modules", len),
        ("modules with one importer, in their own package", single_importers),
        ("class names used twice or more", repeated_classes),
    ):
        before, after = map(count, parsed)
        lines.append(f"| {label} | {before:,} → {after:,} |")
    page = "\n".join(lines) + "\n"
    (ROOT / "benchmarks" / "results" / "tree.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main(tyro.cli(Options))
