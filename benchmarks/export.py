"""Engines of a trained policy: how long one pass takes, and how large a page's module is.

    python benchmarks/export.py [--quick] [--json FILE]

Microseconds of `engine.forward`, from rows in memory to params, values and states in memory, on one
thread of one core, for batches of 1, 16 and 256; a call's, and an observation's share of it. The
policies are the default one of breakout and of cartpole, and a convolution over images of 84 x 84
x 4; their weights are as at the start of training, which changes no time. The engines take turns,
window by window, and the median window counts. An engine whose package is missing is named as
absent. The WebAssembly of breakout's page, environment and policy in one module, is weighed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import tyro
from claims import Claim, Options, finish
from gymnasium import spaces
from rich.console import Console
from rich.table import Table

import fugu
from fugu.core.errors import MissingExtraError
from fugu.envs.contract import AgentGroup
from fugu.export.engine import NAMES, make_engine
from fugu.inference.engine import Engine
from fugu.nets.reading import read_policy
from fugu.policies import Policy, PolicyConfig, make_policy
from fugu.spaces import Layout
from fugu.training.config import resolve_config

BATCHES = (1, 16, 256)
ENVS = ("breakout", "cartpole")
MOST_KILOBYTES = 200.0
console = Console()
Times = dict[str, dict[int, float]]


@dataclass(frozen=True)
class Subject:
    """A policy to be run."""

    name: str
    policy: Policy
    layout: Layout


def subjects(quick: bool) -> list[Subject]:
    """The policies."""
    found = []
    for env in ENVS:
        with fugu.make(env, 1) as vec:
            group = vec.groups[0]
        policy = make_policy(group, resolve_config(env).policy).eval()
        found.append(Subject(env, policy, group.observation_layout))
    if not quick:
        layout = Layout.of(spaces.Box(0, 255, (84, 84, 4), np.uint8))
        group = AgentGroup("agent", (0,), layout, Layout.of(spaces.Discrete(6)))
        found.append(Subject("images", make_policy(group, PolicyConfig()).eval(), layout))
    return found


def measure(subject: Subject, names: list[str], options: Options) -> Times:
    """Seconds of a call, by engine and batch."""
    engines: dict[str, Engine] = {}
    for name in names:
        try:
            engines[name] = make_engine(name, subject.policy, subject.layout)
        except MissingExtraError as error:
            console.print(f"absent: {name} ({error})")
    windows, seconds = (3, 0.02) if options.quick else (9, 0.05)
    times: Times = {name: {} for name in engines}
    for batch in BATCHES:
        rows = subject.layout.zeros(batch)
        calls = {name: _call(engine, rows) for name, engine in engines.items()}
        counts = {name: _calls_in(call, seconds) for name, call in calls.items()}
        taken: dict[str, list[float]] = {name: [] for name in engines}
        for _ in range(windows):
            for name, call in calls.items():
                taken[name].append(_seconds(call, counts[name]))
        for name in engines:
            times[name][batch] = median(taken[name])
    return times


def _call(engine: Engine, rows: np.ndarray) -> Callable[[], object]:
    state = np.zeros((len(rows), engine.facts.state_size), np.float32)
    return lambda: engine.forward(rows, state)


def _calls_in(call: Callable[[], object], seconds: float) -> int:
    call()  # some compile now
    count = 1
    while (taken := _seconds(call, count) * count) < seconds / 2:
        count *= 2
    return max(1, round(count * seconds / taken))


def _seconds(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def show(subject: Subject, times: Times) -> None:
    """A table of one policy."""
    weights = sum(parameter.numel() for parameter in subject.policy.parameters())
    table = Table(
        title=f"{subject.name}: {weights:,} weights, microseconds of a call (an observation)",
        title_justify="left",
    )
    table.add_column("engine")
    for batch in BATCHES:
        table.add_column(f"batch {batch}", justify="right")
    for name, mine in times.items():
        cells = [f"{mine[b] * 1e6:,.1f} ({mine[b] / b * 1e6:,.2f})" for b in BATCHES]
        table.add_row(name, *cells)
    console.print(table)


def latency_claims(subject: Subject, times: Times) -> list[Claim]:
    """Native beside torch and onnxruntime, for one observation."""
    alone = {name: mine[1] * 1e6 for name, mine in times.items()}
    native, peers = alone.get("native"), {name: alone.get(name) for name in ("torch", "onnx")}

    def ratio(above: float | None, below: float | None) -> float | None:
        return above / below if above and below else None

    figures = {"fugu": native, "peers": peers, "unit": "microseconds"}
    return [
        Claim(f"{subject.name}-native-against-torch", ratio(peers["torch"], native), 20, **figures),
        Claim(
            f"{subject.name}-native-within-onnxruntime",
            ratio(native, peers["onnx"]),
            1.0,
            at_most=True,
            **figures,
        ),
    ]


def weigh(subject: Subject) -> Claim:
    """Kilobytes of an environment and its policy as one module."""
    from fugu.export.c_writer import write_c
    from fugu.web import write_page

    size = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            report = write_c(read_policy(subject.policy, subject.layout), Path(folder) / "c")
            page = write_page(folder, subject.name, (report.header, report.source))
            size = sum(page.module_bytes.values()) / 1e3
            console.print(f"{subject.name} and its policy as WebAssembly: {size:,.0f} kB")
    except MissingExtraError as error:
        console.print(f"absent: {error}")
    claim = f"{subject.name}-page-kilobytes"
    return Claim(claim, size, MOST_KILOBYTES, at_most=True, fugu=size, unit="kB")


def main(options: Options) -> None:
    """Measure and report."""
    torch.set_num_threads(1)
    names = [name for name in NAMES if not (options.quick and name == "compile")]
    if options.quick:
        console.print("not measured: compile, images")
    claims = []
    for subject in subjects(options.quick):
        times = measure(subject, names, options)
        show(subject, times)
        claims += latency_claims(subject, times) if subject.name in ENVS else []
        claims += [weigh(subject)] if subject.name == "breakout" else []
    finish(claims, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
