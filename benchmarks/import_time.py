"""Seconds that `import fugu` takes.

    python benchmarks/import_time.py [--quick] [--json FILE]

Fresh interpreters, median; what the interpreter takes without it is measured beside it and taken
off. The peers are what most scripts import first.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

import tyro
from claims import Claim, Options, finish


def seconds(statement: str, runs: int) -> float:
    """Median seconds of a fresh interpreter that runs one statement."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        times.append(time.perf_counter() - start)
    return median(times)


def main(options: Options) -> None:
    """Measure and report."""
    runs = 5 if options.quick else 15
    idle = seconds("pass", runs)
    ours = seconds("import fugu", runs) - idle
    whole = seconds("import fugu; [getattr(fugu, name) for name in fugu.__all__]", runs) - idle
    peers: dict[str, float | None] = {
        name: seconds(f"import {name}", runs) - idle for name in ("numpy", "gymnasium")
    }
    print(f"import fugu: {ours:.3f} s; with every public name: {whole:.3f} s")
    for name, taken in peers.items():
        print(f"import {name}: {taken:.3f} s")
    finish(
        [
            Claim("import", ours, 0.25, at_most=True, fugu=ours, peers=peers, unit="seconds"),
            Claim("import-all-names", whole, 1.0, at_most=True, fugu=whole, unit="seconds"),
        ],
        options,
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
