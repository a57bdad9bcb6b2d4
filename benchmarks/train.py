"""Training beside its peers, all in one run.

    python benchmarks/train.py [--quick] [--json FILE] [--only solve flagship ...]

Every measurement is a process of its own with a time limit, from the library's own virtual
environment (`make peers`); libraries take turns, round after round, so that a busy moment of the
machine hits them alike, and a figure is the median of its rounds. A library that is absent or
fails is named with the reason. Scripts in `training/` say what each library is run with.

defaults, same: CartPole, steps/s of training at several numbers of copies, with each library's own
    settings, and with the same for all: two layers of 64 with tanh that actor and critic share,
    rollouts of 128, 4 epochs of 4 minibatches, Adam.
solve: seconds until the last hundred episodes of training return 475 on average; median of seeds.
flagship: breakout, 2,048 copies, 118 numbers seen, rollouts of 64, 1 epoch of 4 minibatches, Muon,
    118-128-(3+1) or an LSTM of 128 between, against PufferLib's own C breakout; and the share of
    the machine's matrix products, measured here too, that this training amounts to.
parts: training on Gymnasium's CartPole against the sum of its parts, each measured alone.
products: the share of an update that is matrix products.
straggler: steps whose time varies much; batches of the first half that is ready against all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(__file__).with_name("training")
PYTHONS = {
    "fugu": Path(sys.executable),
    "sb3": ROOT / ".venv-peers/bin/python",
    "pufferlib": ROOT / ".venv-pufferlib/bin/python",
    "sample_factory": ROOT / ".venv-sample-factory/bin/python",
}
COPIES = (8, 64, 1024)
FLAGSHIP_COPIES = 2048
EARLIER = {"mlp": 350_333.0, "lstm": 72_080.0}  # PufferLib's rates on a machine like ours
START_LIMIT = 180.0  # seconds that a process may take beside what it measures
SOLVE_LIMIT = 120.0
QUICK = ("same",)
console = Console()


@dataclass(frozen=True)
class TrainOptions(Options):
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these rows."""


@dataclass
class Entry:
    """One library with its settings, and what its rounds told."""

    library: str
    settings: dict[str, Any]
    script: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    fault: str = ""

    def run(self, seconds: float, **more: Any) -> None:
        """One more round, in a process group that is ended whatever happens."""
        script = SCRIPTS / f"{self.script or 'run_' + self.library}.py"
        if not PYTHONS[self.library].exists():
            self.fault = "absent (make peers)"
            return
        settings = json.dumps({**self.settings, "seconds": seconds, **more})
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [PYTHONS[self.library], script, settings],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                cwd=folder,  # a peer writes into the working folder at import
                env={**os.environ, "PYTHONPATH": str(SCRIPTS.parent)},
            )
            try:
                out, _ = process.communicate(timeout=START_LIMIT + 6 * seconds)
            except subprocess.TimeoutExpired:
                out = ""
                self.fault = f"no answer within {START_LIMIT + 6 * seconds:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
            if lines:
                self.answers.append(json.loads(lines[-1].removeprefix("RESULT ")))
            elif not self.fault:
                errors.seek(0)
                self.fault = (errors.read().strip().splitlines() or ["ended without an answer"])[-1]

    def figure(self, name: str) -> float | None:
        """The median of a figure; None if it is not known."""
        found = [one[name] for one in self.answers if one.get(name) is not None]
        return median(found) if found else None

    @property
    def solved(self) -> float | None:
        """Median seconds, a seed that did not solve it counting as the slowest."""
        times = sorted(one.get("solved") or float("inf") for one in self.answers)
        middle = times[len(times) // 2] if times else float("inf")
        return None if middle == float("inf") else middle


class Bench:
    """Runs entries in turns and shows how far it is."""

    def __init__(self, options: TrainOptions, progress: Progress) -> None:
        self.quick, self._progress = options.quick, progress
        self._task = progress.add_task("", total=None)

    def race(self, name: str, entries: dict[str, Entry], seconds: float, rounds: int = 5) -> None:
        """Let entries take turns; a quick run makes one short round."""
        seconds, rounds = (min(seconds, 2.0), 1) if self.quick else (seconds, rounds)
        self._turns(name, entries, [{}] * rounds, seconds)

    def seeds(self, name: str, entries: dict[str, Entry], limit: float) -> None:
        """The same with a seed for each round."""
        given = [{"seed": seed} for seed in range(1 if self.quick else 3)]
        self._turns(name, entries, given, limit)

    def _turns(
        self, row: str, entries: dict[str, Entry], rounds: list[dict[str, Any]], seconds: float
    ) -> None:
        self._progress.update(self._task, total=len(rounds) * len(entries), completed=0)
        for number, more in enumerate(rounds):
            for name, entry in entries.items():
                told = f"{row}: {name}, round {number + 1} of {len(rounds)}"
                self._progress.update(self._task, description=told)
                if not entry.fault:
                    entry.run(seconds, **more)
                self._progress.advance(self._task)


def show(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A table whose first column is names."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row, style="bold green" if row[0].startswith("fugu") else "")
    console.print(table)


def show_faults(entries: dict[str, Entry]) -> None:
    """Why there is no figure of some."""
    for name, entry in entries.items():
        if entry.fault:
            console.print(f"{name}: {entry.fault}", markup=False)


def text(figure: float | None, form: str = ",.0f") -> str:
    """A cell of a table."""
    return "-" if figure is None else f"{figure:{form}}"


def over(ours: float | None, theirs: float | None) -> float | None:
    """A ratio, if both are known."""
    return ours / theirs if ours and theirs else None


def rates(variant: str, bench: Bench) -> list[Claim]:
    """CartPole, steps/s."""
    libraries = {
        "fugu, native": ("fugu", "cartpole"),
        "fugu, Gymnasium's": ("fugu", "CartPole-v1"),
        "sb3": ("sb3", ""),
        "sample factory": ("sample_factory", ""),
        "pufferlib": ("pufferlib", ""),
    }
    all_copies = (64,) if bench.quick else COPIES
    cells: dict[str, list[str]] = {name: [] for name in [*libraries, "fugu / best peer"]}
    for copies in all_copies:
        base = {"variant": variant, "copies": copies, "goal": "rate"}
        entries = {
            name: Entry(library, {**base, "env": env}) for name, (library, env) in libraries.items()
        }
        bench.race(f"{variant}, {copies} copies", entries, 6.0, 3)
        found = {name: entry.figure("rate") for name, entry in entries.items()}
        for name, rate in found.items():
            cells[name].append(text(rate))
        peers = [rate for name, rate in found.items() if rate and "fugu" not in name]
        pair = [over(found[name], max(peers, default=None)) for name in list(libraries)[:2]]
        cells["fugu / best peer"].append(" and ".join(text(ratio, ".2f") for ratio in pair))
        show_faults(entries)
    show(
        f"CartPole, {variant} settings: steps/s of training",
        ("library", *(f"{n:,} copies" for n in all_copies)),
        [(name, *row) for name, row in cells.items()],
    )
    return []


def solve(bench: Bench) -> list[Claim]:
    """Seconds to 475."""
    entries = {
        "fugu, native, defaults": Entry("fugu", {"env": "cartpole", "variant": "defaults"}),
        "fugu, native, tuned": Entry("fugu", {"env": "cartpole", "variant": "tuned"}),
        "fugu, Gymnasium's, defaults": Entry("fugu", {"env": "CartPole-v1", "variant": "defaults"}),
        "fugu, Gymnasium's, tuned": Entry(
            "fugu", {"env": "CartPole-v1", "variant": "tuned", "vec": {"backend": "serial"}}
        ),
        "sb3, defaults": Entry("sb3", {"variant": "defaults", "copies": 8}),
        "sb3, zoo": Entry("sb3", {"variant": "zoo", "copies": 8}),
        "sb3, tuned": Entry("sb3", {"variant": "tuned"}),
        "sample factory, defaults": Entry("sample_factory", {"variant": "defaults"}),
        "sample factory, tuned": Entry("sample_factory", {"variant": "tuned"}),
        "pufferlib, defaults": Entry("pufferlib", {"variant": "defaults"}),
        "pufferlib, tuned": Entry("pufferlib", {"variant": "tuned"}),
    }
    if bench.quick:
        entries = {name: entry for name, entry in entries.items() if "defaults" not in name}
    for entry in entries.values():
        entry.settings = {"copies": 64, "goal": "solve", **entry.settings}
    bench.seeds("solve", entries, SOLVE_LIMIT / 3 if bench.quick else SOLVE_LIMIT)
    rows = []
    for name, entry in entries.items():
        each = [text(one.get("solved"), ".1f") for one in entry.answers]
        steps = [text(one.get("steps")) for one in entry.answers]
        rows.append((name, text(entry.solved, ".1f"), ", ".join(each), ", ".join(steps)))
    show("CartPole: seconds to 475", ("library", "median", "each seed", "steps"), rows)
    show_faults(entries)

    def best(word: str) -> float | None:
        times = [e.solved for name, e in entries.items() if name.startswith(word) and e.solved]
        return min(times, default=None)

    theirs = {name: best(name) for name in ("sb3", "sample factory", "pufferlib")}
    first = min((time for time in theirs.values() if time), default=None)
    claims = []
    for name, word, target in (("native", "fugu, native", 5.0), ("gymnasium", "fugu, Gym", 2.0)):
        ratio = over(first, best(word))
        facts: dict[str, Any] = {"fugu": best(word), "peers": theirs, "unit": "s"}
        claims.append(Claim(f"solve-{name}-times-faster", ratio, target, **facts))
    return claims


def flagship(bench: Bench) -> list[Claim]:
    """Breakout, and the share of the machine."""
    rows, claims = [], []
    for network, targets in (("mlp", (1.4, 2.5)), ("lstm", (1.2, 2.5))):
        base = {"variant": network, "copies": FLAGSHIP_COPIES, "goal": "rate", "env": "breakout"}
        entries = {
            "float32": Entry("fugu", base),
            "bfloat16": Entry("fugu", {**base, "policy": {"precision": "bfloat16"}}),
            "pufferlib": Entry("pufferlib", base),
            "matrix products": Entry("fugu", {}, "measure_machine"),
        }
        bench.race(f"flagship {network}", entries, 10.0)
        theirs, name = entries["pufferlib"].figure("rate"), "pufferlib"
        if theirs is None:
            theirs, name = EARLIER[network], "pufferlib, NOT measured here: an earlier figure"
        weights = entries["pufferlib"].figure("parameters")
        peaks = {name: entries["matrix products"].figure(name) for name in ("float32", "bfloat16")}
        told = ", ".join(f"{key} {text(peak and peak / 1e9)}" for key, peak in peaks.items())
        console.print(f"matrix products of 2048 x 2048, beside {network}: {told} GFLOP/s")
        rows.append((f"{network}: {name}", text(weights), text(theirs), "", ""))
        for precision, target in zip(("float32", "bfloat16"), targets, strict=True):
            entry = entries[precision]
            rate, flop = entry.figure("rate"), entry.figure("flop")
            share = over(rate * flop, peaks[precision]) if rate and flop else None
            ratio = over(rate, theirs)
            cells = (text(rate), text(ratio, ".2f"), text(share, ".0%"))
            rows.append((f"fugu {network}, {precision}", text(entry.figure("parameters")), *cells))
            claim = f"breakout-{network}-{precision}-against-pufferlib"
            facts: dict[str, Any] = {"fugu": rate, "peers": {name: theirs}, "unit": "steps/s"}
            claims.append(Claim(claim, ratio, target, **facts))
        show_faults(entries)
    columns = ("library", "parameters", "steps/s", "against pufferlib", "of matrix products")
    show(f"breakout, {FLAGSHIP_COPIES:,} copies: steps/s of training", columns, rows)
    return claims


def parts(bench: Bench) -> list[Claim]:
    """Training against its parts."""
    base = {"env": "CartPole-v1", "variant": "defaults", "copies": 64}
    entries = {
        "training": Entry("fugu", {**base, "goal": "rate"}),
        "parts": Entry("fugu", {**base, "goal": "parts"}, "measure_parts"),
    }
    bench.race("parts", entries, 6.0)
    names = ("environments", "policy", "update")
    times = [entries["parts"].figure(name) for name in names]
    known = [time for time in times if time is not None]
    limit = 1 / sum(known) if len(known) == len(names) else None
    rate = entries["training"].figure("rate")
    cells = [text(time and 1e6 * time, ".2f") for time in times]
    show(
        "Gymnasium's CartPole, 64 copies: us a step of each part alone",
        ("", *names, "limit, steps/s", "training, steps/s"),
        [("fugu", *cells, text(limit), text(rate))],
    )
    show_faults(entries)
    facts: dict[str, Any] = {"fugu": rate, "limit": limit, "unit": "steps/s"}
    return [Claim("training-against-its-parts", over(rate, limit), 0.8, **facts)]


def products(bench: Bench) -> list[Claim]:
    """The share of updates in matrix products."""
    base = {"env": "breakout", "copies": FLAGSHIP_COPIES, "goal": "products"}
    entries = {
        network: Entry("fugu", {**base, "variant": network}, "measure_parts")
        for network in ("mlp", "lstm")
    }
    bench.race("products", entries, 5.0, 3)
    claims = []
    for network, entry in entries.items():
        share = entry.figure("share")
        others = entry.answers[-1]["others"] if entry.answers else {}
        rest = ", ".join(f"{key} {part:.0%}" for key, part in others.items())
        console.print(f"matrix products of updates, {network}: {text(share, '.0%')}; then {rest}")
        claims.append(Claim(f"products-of-updates-{network}", share, 0.6))
    show_faults(entries)
    return claims


def straggler(bench: Bench) -> list[Claim]:
    """Batches of the first that are ready against all."""
    base = {"env": "workloads:Straggler", "variant": "straggler", "copies": 64, "goal": "rate"}
    entries = {
        "all": Entry("fugu", {**base, "vec": {"backend": "process"}}),
        "the first half": Entry("fugu", {**base, "vec": {"backend": "process", "batch_size": 32}}),
    }
    bench.race("straggler", entries, 6.0)
    found = {name: entry.figure("rate") for name, entry in entries.items()}
    told = ", ".join(f"{name} {text(rate)}" for name, rate in found.items())
    ratio = over(found["the first half"], found["all"])
    console.print(f"straggler, steps/s of training: {told}, ratio {text(ratio, '.2f')}")
    show_faults(entries)
    return []


ROWS: dict[str, Callable[[Bench], list[Claim]]] = {
    "defaults": lambda bench: rates("defaults", bench),
    "same": lambda bench: rates("same", bench),
    "solve": solve,
    "flagship": flagship,
    "parts": parts,
    "products": products,
    "straggler": straggler,
}


def main(options: TrainOptions) -> None:
    """Measure and report."""
    names = options.only or (QUICK if options.quick else tuple(ROWS))
    unknown = set(names) - set(ROWS)
    if unknown:
        raise SystemExit(f"only: given {sorted(unknown)}; allowed: {', '.join(ROWS)}")
    claims: list[Claim] = []
    with Progress(console=console, transient=True) as progress:
        bench = Bench(options, progress)
        for name in names:
            claims += ROWS[name](bench)
    left = [name for name in ROWS if name not in names]
    if left:
        console.print(f"not measured: {', '.join(left)}")
    finish(claims, options)


if __name__ == "__main__":
    main(tyro.cli(TrainOptions))
