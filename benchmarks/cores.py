"""Recurrent cores by native kernels beside the same cores in torch.

    python benchmarks/cores.py [--quick] [--json FILE]

Forward and backward of segments of 64 steps, 128 numbers wide, one in fifty of which begins an
episode, and one step of 2,048 rows as a rollout takes it. "steps" is torch one step at a time, as
resets at nearly every time demand; "no resets" is torch's own LSTM and GRU over all steps at once,
which ignore resets and so compute something else: what speed alone could be had. One thread, CPU
time, memory kept as a training keeps it; all take turns, and the fastest of several rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import mock

import torch
import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.table import Table

from fugu.core.machine import keep_freed_memory
from fugu.policies import cores
from fugu.policies.cores import Core

NAMES = ("lstm", "gru", "mingru")
SIZES, TIMES, WIDTH, BATCH = (64, 512), 64, 128, 2048
RESETS = 0.02
STEP = f"step of {BATCH:,}"
Call = Callable[[], object]


def without_kernels(call: Call) -> Call:
    """The call, served by torch."""

    def served() -> None:
        with mock.patch.object(cores, "has_kernels", return_value=False):
            call()

    return served


def segments(core: Core, rows: int, share: float) -> Call:
    """Forward and backward of whole segments."""
    hidden = torch.randn(rows, TIMES, WIDTH, requires_grad=True)
    state, weights = torch.zeros(rows, core.state_size), torch.randn(rows, TIMES, WIDTH)
    resets = torch.rand(rows, TIMES) < share

    def call() -> None:
        hidden.grad = None
        core.zero_grad()
        core.forward_segments(hidden, state, resets).backward(weights)

    return call


def step(core: Core) -> Call:
    """One step of a rollout."""
    hidden, state = torch.randn(BATCH, WIDTH), torch.zeros(BATCH, core.state_size)

    def call() -> None:
        with torch.no_grad():
            core(hidden, state)

    return call


def fastest(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """CPU seconds of each call, the least of rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: min(values[1:]) for name, values in times.items()}  # the first warms up


def measure(name: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of one core by what was run and who ran it."""
    torch.manual_seed(0)
    core = cores.make_core(name, WIDTH, WIDTH)
    found = {}
    for rows in SIZES:
        with_resets = segments(core, rows, RESETS)
        calls = {"fugu": with_resets, "steps": without_kernels(with_resets)}
        if name != "mingru":  # torch has none
            calls["no resets"] = without_kernels(segments(core, rows, 0.0))
        found[f"{rows} x {TIMES}"] = fastest(calls, rounds)
    one = step(core)
    found[STEP] = fastest({"fugu": one, "torch": without_kernels(one)}, 10 * rounds)
    return found


def claims_of(name: str, what: str, seconds: dict[str, float]) -> list[Claim]:
    """What is claimed of one core and one size."""
    targets = {"steps": 1.4 if name != "mingru" else 2.0, "no resets": 1.2, "torch": 1.1}
    return [
        Claim(
            f"{name} {what} against {peer}".replace(" ", "-"), theirs / seconds["fugu"],
            targets[peer], fugu=seconds["fugu"], peers={peer: theirs}, unit="CPU seconds",
        )
        for peer, theirs in seconds.items()
        if peer != "fugu"
    ]  # fmt: skip


def main(options: Options) -> None:
    """Measure and report."""
    torch.set_num_threads(1)
    keep_freed_memory()
    table = Table("core", "what", "by", "CPU milliseconds", "ratio")
    claims = []
    for name in NAMES:
        for what, seconds in measure(name, 3 if options.quick else 12).items():
            for who, value in seconds.items():
                ratio = f"{value / seconds['fugu']:.2f}"
                table.add_row(name, what, who, f"{value * 1e3:.2f}", ratio)
            claims += claims_of(name, what, seconds)
    Console().print(table)
    finish(claims, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
