"""Environments on a Ray cluster: steps/s by workers, what a request costs, and what follows.

    python benchmarks/scale.py [--quick] [--json FILE] [--docs]

Simulation only, environment steps a second, random actions, no policy, all copies at once. Ray's
workers are each on a node of their own: raylet, object store and resources, all on this machine, so
that everything is measured but the wire between machines. Settings take turns, round after round;
a figure is the median of its rounds. Beside them are the caller alone and processes.

A request takes the time of its worker (steps, and packing), the learner's own (sending, fetching,
copying into the shared buffers), and what is left: Ray's way there and back. With one worker these
add up.

Then breakout is trained by one and by two learners (`scale_ranks.py`), and without --quick CartPole
on three nodes, one of which is killed on the way. Figures go to `benchmarks/results/scale.json`;
--docs writes the tables of `docs/scale.md` from that file and measures nothing. --only ranks, or
environments, leaves the other figures as they are.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

import gymnasium
import numpy as np
import ray
import tyro
from claims import Claim, Options, finish
from gymnasium import spaces
from proving import keep
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parents[1]
for folder in ("vector", "learning"):
    sys.path.insert(0, str(ROOT / "tests" / folder))

from ray_nodes import Nodes, nodes  # noqa: E402
from scale_plan import plan_table  # noqa: E402
from scale_ranks import measure_ranks, ranks_table  # noqa: E402

import fugu  # noqa: E402
from fugu.core.machine import usable_cores  # noqa: E402
from fugu.vector.backends.ray_worker import WireFormat  # noqa: E402

WORKERS = (1, 2, 4)
RESULTS = Path(__file__).with_name("results") / "scale.json"
PAGE = ROOT / "docs" / "scale.md"
PARTS = ("worker", "send", "fetch", "copy", "ray")  # of a request
Figures = dict[str, Any]
console = Console()


@dataclass(frozen=True)
class ScaleOptions(Options):
    """See the top of the file."""

    docs: bool = False
    """Write the tables of docs/scale.md from the figures that are kept."""
    only: tuple[Literal["environments", "ranks"], ...] = ()
    """Only these."""


class Waits(gymnasium.Env[Any, Any]):
    """A step waits 2 ms for something elsewhere: more workers help, whatever the cores."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Nothing to see."""
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        """Wait."""
        time.sleep(0.002)
        return np.zeros(4, np.float32), 0.0, False, False, {}


class Pixels(gymnasium.Env[Any, Any]):
    """Shows four frames of 84 x 84, as Atari does, and does nothing else."""

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Grey."""
        self._frames = np.full((4, 84, 84), 127, np.uint8)
        return self._frames, {}

    def step(self, action: Any) -> Any:
        """Grey."""
        return self._frames, 0.0, False, False, {}


@dataclass(frozen=True)
class Workload:
    """What is stepped, and how many copies of it."""

    env: Callable[[], Any]
    copies: int


WORKLOADS = {
    "cartpole": Workload(lambda: gymnasium.make("CartPole-v1"), 64),
    "waits": Workload(Waits, 32),
    "pixels": Workload(Pixels, 32),
}


class Entry:
    """One setting of a workload, that stands ready and is stepped now and then."""

    def __init__(self, work: Workload, **options: Any) -> None:
        self.vec = fugu.make(work.env, work.copies, **options)
        self._actions = np.random.default_rng(0).integers(0, 2, (64, work.copies))
        self._turn = 0
        self.rates: list[float] = []
        self.requests: list[dict[str, float]] = []
        self.vec.reset(seed=0)
        self.run(0.2)
        self.rates, self.requests = [], []

    def run(self, seconds: float) -> None:
        """One window."""
        self.vec.cluster()
        began, steps = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < seconds:
            self._turn = (self._turn + 1) % len(self._actions)
            self.vec.step(self._actions[self._turn])
            steps += self.vec.num_envs
        self.rates.append(steps / elapsed)
        report = self.vec.cluster()
        if report is not None:
            count, busy = report.requests, sum(node.busy * node.workers for node in report.nodes)
            parts = {"worker": busy * report.elapsed / count, "round": report.elapsed / count}
            parts["steps"] = steps / count
            parts |= {name: report.seconds.get(name, 0.0) / count for name in PARTS[1:4]}
            self.requests.append(parts)

    def request(self) -> dict[str, float]:
        """Seconds of the parts of a request; what is left is Ray's, with one worker."""
        found = {name: median(each[name] for each in self.requests) for name in self.requests[0]}
        left = found["round"] - sum(found[name] for name in PARTS[:4])
        return {**found, "ray": max(left, 0.0)}


@contextmanager
def entries(work: Workload, cluster: Nodes) -> Iterator[dict[str, Entry]]:
    """All settings of a workload."""
    with ExitStack() as stack:
        made = {"serial": Entry(work, backend="serial")}
        for count in WORKERS:
            made[f"process-{count}"] = Entry(work, backend="process", num_workers=count)
            made[f"ray-{count}"] = Entry(work, num_workers=count, **cluster.options)
            stack.callback(made[f"process-{count}"].vec.close)
            stack.callback(made[f"ray-{count}"].vec.close)
        stack.callback(made["serial"].vec.close)
        yield made


def bytes_of(entry: Entry) -> float:
    """Bytes of one environment's step on their way to the learner."""
    return WireFormat(entry.vec._buffers).size(entry.vec.num_envs) / entry.vec.num_envs


def measure(quick: bool) -> Figures:
    """Every setting of every workload, by turns; a cluster of as many nodes as workers."""
    seconds, rounds = (0.25, 2) if quick else (1.0, 5)
    found: Figures = {"rates": {}, "requests": {}, "bytes": {}, "copies": {}}
    most = max(WORKERS)
    # Two seats a node: all settings of a workload stand ready at once.
    with nodes(most, 2) as cluster, Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(WORKLOADS) * rounds)
        for name, work in WORKLOADS.items():
            progress.update(task, description=name)
            with entries(work, cluster) as made:
                for _ in range(rounds):
                    for entry in made.values():
                        entry.run(seconds)
                    progress.advance(task)
                found["rates"][name] = {key: median(e.rates) for key, e in made.items()}
                found["requests"][name] = {k: e.request() for k, e in made.items() if e.requests}
                found["bytes"][name], found["copies"][name] = bytes_of(made["ray-1"]), work.copies
    return {**found, "ray": ray.__version__, "cores": usable_cores(), "on": platform.platform()}


def rates_table(figures: Figures) -> Table:
    """Steps/s of all settings."""
    table = Table(title="environment steps/s", title_justify="left")
    table.add_column("setting")
    for name in figures["rates"]:
        table.add_column(f"{name}, {figures['copies'][name]} copies", justify="right")
    for setting in next(iter(figures["rates"].values())):
        cells = [f"{rates[setting]:,.0f}" for rates in figures["rates"].values()]
        table.add_row(setting, *cells)
    return table


def requests_table(figures: Figures) -> Table:
    """What a request to a single worker takes."""
    table = Table(title="a request to one worker, in us", title_justify="left")
    for column in ("workload", "steps", *PARTS, "together", "overhead a step", "MB/s"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name, by_setting in figures["requests"].items():
        parts = by_setting["ray-1"]
        whole = sum(parts[part] for part in PARTS)
        rate = figures["rates"][name]["ray-1"] * figures["bytes"][name] / 1e6
        cells = [f"{parts[part] * 1e6:,.0f}" for part in PARTS]
        over = (whole - parts["worker"]) / parts["steps"] * 1e6
        steps = f"{parts['steps']:.0f}"
        table.add_row(name, steps, *cells, f"{whole * 1e6:,.0f}", f"{over:,.1f}", f"{rate:,.1f}")
    return table


def learn(quick: bool) -> tuple[Claim, Figures]:
    """CartPole on three nodes, one of which is killed."""
    name, limit = "cartpole-while-a-node-dies", 450.0
    if quick:
        return Claim(name, None, 1.0), {}
    from ray_lessons import STEPS, train_while_a_node_dies

    progress = Progress(console=console, transient=True)
    with progress, contextlib.redirect_stdout(sys.stderr):  # Ray tells at length of a dead node
        task = progress.add_task("CartPole, and a node dies", total=STEPS)
        story = train_while_a_node_dies(1, tell=lambda at: progress.update(task, completed=at))
    told = {}
    for when, reports in (("before", story.before), ("after", story.after)):
        seconds = sum(report.elapsed for report in reports)
        steps: dict[str, float] = {}
        for report in reports:
            for node in report.nodes:
                done = node.steps_per_second * report.elapsed
                steps[node.name] = steps.get(node.name, 0.0) + done
        told[when] = {node: done / seconds for node, done in steps.items()}
        lines = ", ".join(f"{node} {rate:,.0f}" for node, rate in told[when].items())
        console.print(f"steps/s of training {when} the node died: {lines}")
    console.print(
        f"greedy score {story.score:.0f} after {STEPS:,} steps, {len(story.faults)} faults"
    )
    figures = {"score": story.score, "faults": len(story.faults), "steps_per_second": told}
    return Claim(name, story.score / limit, 1.0, fugu=story.score, unit="return"), figures


def claims_of(figures: Figures) -> list[Claim]:
    """What the figures say of environments that wait, and of those that show much."""
    rates = figures["rates"]["waits"]
    one, two, four = (rates[f"ray-{count}"] for count in WORKERS)
    return [
        Claim("ray-2-workers-against-1", two / one, 1.7, fugu=two, unit="steps/s"),
        Claim("ray-4-workers-against-1", four / one, 3.0, fugu=four, unit="steps/s"),
        Claim(
            "ray-4-against-4-processes",
            four / rates["process-4"],
            0.7,
            fugu=four,
            peers={"fugu's own processes": rates["process-4"]},
            unit="steps/s",
        ),
    ]


def write_docs() -> None:
    """Put the tables into the page, between the marks that are there for them."""
    kept = json.loads(RESULTS.read_text())
    figures, text = kept["environments"], PAGE.read_text()
    for name, table in (
        ("rates", rates_table(figures)),
        ("requests", requests_table(figures)),
        ("ranks", ranks_table(kept["ranks"])),
        ("plan", plan_table(figures)),
    ):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{as_markdown(table)}\n\n{end}{rest.partition(end)[2]}"
    PAGE.write_text(text)


def as_markdown(table: Table) -> str:
    """The same table for a page."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    rows = [[str(column.header) for column in table.columns]]
    rows += [["---:" if column.justify == "right" else "---" for column in table.columns]]
    rows += [list(row) for row in zip(*columns, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(options: ScaleOptions) -> None:
    """Measure and report."""
    if options.docs:
        write_docs()
        return
    claims: list[Claim] = []
    if "environments" in (options.only or ("environments",)):
        claims += study_environments(options.quick)
    if "ranks" in (options.only or ("ranks",)):
        found = measure_ranks(options.quick)
        console.print(ranks_table(found))
        if not options.quick:
            keep("scale", {"ranks": found})
    finish(claims, options)


def study_environments(quick: bool) -> list[Claim]:
    """Those on a cluster."""
    figures = measure(quick)
    for table in (rates_table(figures), requests_table(figures), plan_table(figures)):
        console.print(table)
    claim, figures["training"] = learn(quick)
    if not quick:
        keep("scale", {"environments": figures})
    return [*claims_of(figures), claim]


if __name__ == "__main__":
    main(tyro.cli(ScaleOptions))
