"""Hostile files: checkpoints, settings, datasets, league databases and shared runs.

    python benchmarks/trust/fuzz_files.py [--only checkpoint config dataset league hub]
        [--inputs 100000] [--seed 1] [--jobs 1]
    python benchmarks/trust/fuzz_files.py --repeat build/fuzz/FINDING

Files that fugu wrote itself are changed: bits, lengths, headers, shapes, names, nesting, links,
pipes, devices, pickles that would leave a canary. Each is given to what a command would read it
with. Two things may come of it: it is read, or one of fugu's own errors says why not. Whatever
else comes is a finding: any other exception, a crash, a hang, more than 4 GiB of addresses, 512 MiB
of memory or 2 s of a processor, a canary, a touched file outside of the target's folder.

Inputs run in forked children, many in one, in memory (/dev/shm). Findings of one cause are shown
once, made smaller, and kept in `build/fuzz`; the figures go to `benchmarks/results/fuzz.json`, and
as a table to `fuzz.md` beside it, where those of kinds that were not run stay. `--only naive` feeds
a reader that trusts its files: whether the fuzzer finds anything.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from fuzzing.arena import Arena, read_tree, write_tree
from fuzzing.minimise import minimise, repeats
from fuzzing.readers import READERS, make_reader
from fuzzing.runner import Finding, Input, Outcome, Reader, fuzz, input_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[2]
RESULTS, KEPT = ROOT / "benchmarks" / "results", ROOT / "build" / "fuzz"
PIECE = 10_000  # inputs of one call
Kind = Literal["checkpoint", "config", "dataset", "league", "hub", "naive"]


@dataclass(frozen=True)
class Options:
    """See the top of the file."""

    only: tuple[Kind, ...] = ("checkpoint", "config", "dataset", "league", "hub")
    """Which files; naive is a reader that falls for everything, as a control."""
    inputs: int = 100_000
    """Of each kind."""
    seed: int = 1
    """The same makes the same inputs."""
    jobs: int = 1
    """Processes that feed side by side."""
    first: int = 0
    """Number of the first input."""
    repeat: Path | None = None
    """Feed a finding that was kept, and tell what comes of it."""
    keep: bool = True
    """Make findings smaller and keep them in build/fuzz."""
    results: Path | None = RESULTS
    """Where to write the figures; none: nowhere."""


def main(options: Options) -> int:
    """Fuzz, and tell; 1 if there are findings."""
    console = Console(stderr=True)
    if options.repeat is not None:
        return _repeat(options.repeat, console)
    total = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        for kind in options.only:
            found = _run(kind, options, progress)
            total += len(found.findings)
            _report(kind, found, options, console)
            if options.results is not None:
                _write_down(options.results, kind, found, options.seed)
    return 1 if total else 0


def _run(kind: str, options: Options, progress: Progress) -> Outcome:
    bar = progress.add_task(kind, total=options.inputs)
    last = options.first + options.inputs
    pieces = [range(i, min(i + PIECE, last)) for i in range(options.first, last, PIECE)]
    found = Outcome()
    if options.jobs == 1:
        reader = make_reader(kind)
        with arena_of(kind) as arena:
            return fuzz(
                reader, arena, options.seed, range(options.first, last),
                lambda done: progress.advance(bar, done),
            )  # fmt: skip
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in pool.map(_piece, [kind] * len(pieces), [options.seed] * len(pieces), pieces):
            found.add(done)
            found.seconds += done.seconds / options.jobs
            progress.advance(bar, done.inputs)
    return found


def _piece(kind: str, seed: int, indices: range) -> Outcome:
    with arena_of(kind) as arena:
        return fuzz(make_reader(kind), arena, seed, indices)


@contextmanager
def arena_of(kind: str) -> Iterator[Arena]:
    """An arena in memory, with a name that is always as long."""
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    folder = base / f"fugu-fuzz-{os.getpid():08d}" / kind
    try:
        yield Arena(folder)
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


# ---------------------------------------------------------------------- findings


def _report(kind: str, found: Outcome, options: Options, console: Console) -> None:
    """Each cause once, made smaller and kept."""
    told = sum(found.refused.values())
    rate = found.inputs / max(found.seconds, 1e-9)
    console.print(
        f"{kind}: {found.inputs:,} inputs in {found.seconds:.0f} s ({rate:,.0f}/s); "
        f"{found.loaded:,} read, {told:,} refused, {len(found.findings):,} findings"
    )
    if not found.findings:
        return
    counts = Counter(finding.signature for finding in found.findings)
    firsts = {finding.signature: finding for finding in reversed(found.findings)}
    reader = make_reader(kind)
    for signature, count in counts.most_common():
        console.print(f"  {count:>6,} x {firsts[signature].what}", markup=False, highlight=False)
        console.print(f"           {firsts[signature].where}", markup=False, highlight=False)
        if options.keep:
            with arena_of(kind) as arena:
                place = _keep(reader, arena, options.seed, firsts[signature])
            command = f"python benchmarks/trust/fuzz_files.py --repeat {place.relative_to(ROOT)}"
            console.print(f"           again: {command}", markup=False, highlight=False)


def _keep(reader: Reader, arena: Arena, seed: int, finding: Finding) -> Path:
    given = input_of(reader, arena, seed, finding.index)
    smaller = minimise(reader, arena, given, finding)
    place = KEPT / f"{reader.name}-{seed}-{finding.index}"
    shutil.rmtree(place, ignore_errors=True)
    (place / "files").mkdir(parents=True)
    write_tree(place / "files", smaller.files)
    about = asdict(finding) | {"kind": reader.name, "use": smaller.use, "more": smaller.more}
    about |= {"seed": seed, "arena": str(arena.folder)}
    (place / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return place


def _repeat(place: Path, console: Console) -> int:
    about = json.loads((place / "about.json").read_text())
    given = Input(about["use"], read_tree(place / "files"), about["more"])
    with arena_of(about["kind"]) as arena:
        finding = repeats(make_reader(about["kind"]), arena, given)
    told = "it is read or refused as it should be" if finding is None else finding.what
    console.print(told if finding is None else f"{told}\n{finding.where}", markup=False)
    return 0 if finding is None else 1


# ---------------------------------------------------------------------- figures


def _write_down(folder: Path, kind: str, found: Outcome, seed: int) -> None:
    path = folder / "fuzz.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    known[kind] = {
        "inputs": found.inputs,
        "loaded": found.loaded,
        "refused": dict(found.refused.most_common()),
        "findings": len(found.findings),
        "causes": dict(Counter(finding.what.split(" ")[0] for finding in found.findings)),
        "seconds": round(found.seconds, 1),
        "seed": seed,
        "commit": commit.strip(),
    }
    known = {name: known[name] for name in READERS if name in known}
    path.write_text(json.dumps(known, indent=1) + "\n")
    lines = [
        "# Hostile files",
        "",
        "Written by `python benchmarks/trust/fuzz_files.py`, which says how to read it.",
        "",
        "| files | inputs | read | refused | findings | seconds | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in known.items():
        refused = ", ".join(f"{error} {count:,}" for error, count in row["refused"].items())
        cells = (name, f"{row['inputs']:,}", f"{row['loaded']:,}", refused, f"{row['findings']:,}")
        lines.append(f"| {' | '.join(cells)} | {row['seconds']:,.0f} | {row['commit']} |")
    (folder / "fuzz.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options)))
