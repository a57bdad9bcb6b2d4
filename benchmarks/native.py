"""Native environments: how fast each one is, and CartPole beside its peers.

    python benchmarks/native.py [--quick] [--json FILE]

Simulation only, agent steps a second with random actions, no policy. Every environment of the suite
runs 1,024 copies with its initial settings on one thread and on two, stepped by the pool itself;
CartPole runs through `vec.step`, as a user calls it, beside EnvPool, Gymnasium and (where it was
built) PufferLib, and beside a bare C loop of the same dynamics, compiled here with -O3
-march=native, on one core and on every core. CartPole's contenders take turns, as in vector.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np
import tyro
from claims import Claim, Options, finish
from rich.console import Console
from rich.progress import track
from rich.table import Table
from vector import PYTHONS, race

import fugu
from fugu.envs import suite
from fugu.envs.building import build
from fugu.envs.native_env import NativeLibrary, start_pool
from fugu.vector.random_actions import RandomActions
from fugu.vector.slab import Slab

COPIES = 1024
LARGE = 500  # bytes of an observation above which the target is half
CONTENDERS = (
    "fugu-native1",
    "fugu-native2",
    "bare-one",
    "bare-all",
    "envpool-sync",
    "gymnasium-sync",
)
ROWS = (128, 1024, 2048, 16384)
UNEVEN = Path(__file__).parents[1] / "tests/native/toys/uneven.h"
console = Console()


def suite_rate(name: str, threads: int, seconds: float) -> tuple[float, int]:
    """Agent steps a second of the pool, and the bytes of its largest observation."""
    with fugu.make(name, COPIES, num_workers=threads) as vec:
        vec.reset(seed=0)
        players = [RandomActions(g, COPIES * g.num_agents, i) for i, g in enumerate(vec.groups)]
        pool, ids = vec._exchange, np.arange(COPIES)
        rows = vec._slab.rows
        variants = []
        for _ in range(8):  # drawn beforehand; a choice that a mask forbids is one like others here
            variants.append([p._variants[len(variants) % len(p._variants)] for p in players])
        rates = []
        out = np.zeros(COPIES, np.int64)
        for window in range(6):
            began, steps = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - began) < seconds:
                for part, actions in zip(rows, variants[steps % 8], strict=True):
                    part.actions[:] = actions
                pool.post(ids)
                pool.wait_ready(0, COPIES, COPIES, 0, 10.0)
                pool.take(0, COPIES, COPIES, out)
                steps += 1
            if window:  # the first one warms up
                rates.append(steps * vec.num_agents / elapsed)
        return median(rates), max(g.observation_layout.nbytes for g in vec.groups)


def measure_suite(options: Options) -> list[Claim]:
    """Every environment on one thread and on two."""
    table = Table(title=f"{COPIES} copies: million agent steps/s", title_justify="left")
    for column in ("environment", "1 thread", "2 threads", "bytes seen", "target"):
        table.add_column(column, justify="left" if column == "environment" else "right")
    claims = []
    names = suite.names()
    for name in track(names, "suite", console=console, transient=True):
        one, size = suite_rate(name, 1, 0.05 if options.quick else 0.2)
        two, _ = suite_rate(name, 2, 0.05 if options.quick else 0.2)
        target = 1e6 if size > LARGE else 2e6
        table.add_row(name, f"{one / 1e6:.1f}", f"{two / 1e6:.1f}", str(size), f"{target / 1e6:g}")
        claims.append(Claim(f"{name}-million-steps-a-thread", one / 1e6, target / 1e6, fugu=one))
    console.print(table)
    return claims


def measure_cartpole(options: Options) -> list[Claim]:
    """CartPole through `vec.step` beside others."""
    seconds, rounds = (0.15, 3) if options.quick else (0.5, 7)
    rows = {n: race(CONTENDERS, "cartpole", n, seconds, rounds).rates for n in ROWS}
    table = Table(title="CartPole through vec.step: million steps/s", title_justify="left")
    table.add_column("library")
    for n in ROWS:
        table.add_column(f"{n:,} copies", justify="right")
    for library in CONTENDERS:
        rates = [rows[n][library] for n in ROWS]
        table.add_row(library, *(f"{rate / 1e6:.2f}" if rate else "-" for rate in rates))
    console.print(table)
    absent = sorted(name for name in ("envpool", "gymnasium") if not PYTHONS[name].exists())
    if absent:
        console.print(f"absent: {', '.join(absent)} (make peers)")
    console.print("pufferlib: absent; its C environments are not built here")

    def ratio(n: int, ours: str, theirs: str) -> float | None:
        mine, other = rows[n][ours], rows[n][theirs]
        return mine / other if mine and other else None

    best = max(("fugu-native1", "fugu-native2"), key=lambda name: rows[1024][name] or 0)
    peers = {name: rows[1024][name] for name in CONTENDERS[4:]}
    return [
        Claim(
            "cartpole-1024-against-envpool", ratio(1024, best, "envpool-sync"), 20.0, peers=peers
        ),
        Claim("cartpole-16384-against-bare-loops", ratio(16384, "fugu-native2", "bare-all"), 0.5),
    ]


def measure_chunks(options: Options) -> None:
    """Chunks that threads claim as they go against one fixed share for each."""
    if not UNEVEN.exists():
        return
    library = NativeLibrary.load(str(build(UNEVEN, Path("/tmp") / "fugu_uneven.so")))
    spec = library.spec(library.values({"work": 20_000}))
    rates: dict[str, list[float]] = {"claimed": [], "fixed": []}
    actions = (np.random.default_rng(0).random((16, 256)) < 0.05).astype(np.int64)
    for _ in range(3 if options.quick else 7):
        for kind, chunk in (("claimed", 0), ("fixed", 128)):
            slab = Slab(spec.groups, 256, 64)
            pool, _ = start_pool(library, spec, slab.rows, 256, threads=1, chunk=chunk)
            for env in range(256):
                pool.reset(env, env)
            ids, out = np.arange(256), np.zeros(256, np.int64)
            began = time.perf_counter()
            for i in range(100):
                slab.rows[0].actions[:, 0] = actions[i % 16]
                pool.post(ids)
                pool.wait_ready(0, 256, 256, 0, 10.0)
                pool.take(0, 256, 256, out)
            rates[kind].append(25_600 / (time.perf_counter() - began))
            pool.close()
    claimed, fixed = median(rates["claimed"]), median(rates["fixed"])
    console.print(
        f"uneven steps, 2 threads: chunks claimed {claimed:,.0f}/s, fixed shares {fixed:,.0f}/s, "
        f"ratio {claimed / fixed:.2f}"
    )


def main(options: Options) -> None:
    """Measure and report."""
    claims = measure_suite(options)
    measure_chunks(options)
    finish(claims + measure_cartpole(options), options)


if __name__ == "__main__":
    main(tyro.cli(Options))
