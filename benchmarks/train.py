"""Training beside its peers, all in one run.

    python benchmarks/train.py [--quick] [--json FILE] [--only solve flagship ...]

How peers are measured is told in `racing.py`; scripts in `training/` say what each library is run
with, in its own virtual environment (`make peers`).

defaults, same: CartPole, steps/s of training at several numbers of copies, with each library's own
    settings, and with the same for all: two layers of 64 with tanh that actor and critic share,
    rollouts of 128, 4 epochs of 4 minibatches, Adam.
solve: seconds until the last hundred episodes of training return 475 on average; median of seeds.
engines: seconds until CartPole returns 475 and breakout 400, by either of our engines.
flagship: breakout, 2,048 copies, 118 numbers seen, rollouts of 64, 1 epoch of 4 minibatches, Muon,
    118-128-(3+1) or an LSTM of 128 between, against PufferLib's own C breakout; and the share of
    the machine's matrix products, measured here too, that this training amounts to.
parts: training on Gymnasium's CartPole against the sum of its parts, each measured alone.
products: the share of torch's updates that is matrix products.
straggler: steps whose time varies much; batches of the first half that is ready against all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tyro
from claims import Claim, Options
from racing import Bench, Entry, console, measure, over, show, show_faults, text

COPIES = (8, 64, 1024)
FLAGSHIP_COPIES = 2048
EARLIER = {"mlp": 350_333.0, "lstm": 72_080.0}  # PufferLib's rates on a machine like ours
SOLVE_LIMIT = 120.0
QUICK = ("same",)


@dataclass(frozen=True)
class TrainOptions(Options):
    """See the top of the file."""

    only: tuple[str, ...] = ()
    """Only these rows."""


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
        bench.race(f"{variant}, {copies} copies", entries, 4.0, 3)
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
        "fugu, Gymnasium's, defaults": Entry(  # 8 copies, as it chooses; a million steps, as SB3's
            "fugu",
            {
                "env": "CartPole-v1",
                "variant": "defaults",
                "copies": 8,
                "train": {"total_steps": 1_000_000},
            },
        ),
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


def engines(bench: Bench) -> list[Claim]:
    """Seconds to solve what both engines learn."""
    rows = []
    for env, score in (("cartpole", 475.0), ("breakout", 400.0)):
        base = {"env": env, "variant": "defaults", "goal": "solve", "score": score}
        entries = {
            engine: Entry("fugu", {**base, "train": {"engine": engine}})
            for engine in ("torch", "native")
        }
        bench.seeds(f"engines {env}", entries, SOLVE_LIMIT)
        for engine, entry in entries.items():
            each = [text(one.get("solved"), ".1f") for one in entry.answers]
            steps = [text(one.get("steps")) for one in entry.answers]
            cells = (text(entry.solved, ".1f"), ", ".join(each), ", ".join(steps))
            rows.append((f"{env} to {score:.0f}", engine, *cells))
        show_faults(entries)
    show("seconds to solve, by engine", ("", "engine", "median", "each seed", "steps"), rows)
    return []


# What is raced on breakout: engine, precision and threads; and what is asked against PufferLib.
RACED: dict[str, tuple[str, str, int]] = {
    "torch, float32": ("torch", "float32", 0),
    "torch, bfloat16": ("torch", "bfloat16", 0),
    "native, float32": ("native", "float32", 0),
    "native, bfloat16": ("native", "bfloat16", 0),
    "native, bfloat16, one thread": ("native", "bfloat16", 1),
}
ASKED = {
    "mlp": {"torch, float32": 1.4, "torch, bfloat16": 2.5, "native, bfloat16": 4.0},
    "lstm": {"torch, float32": 1.2, "torch, bfloat16": 2.5, "native, bfloat16": 3.5},
}


def flagship(bench: Bench) -> list[Claim]:
    """Breakout, the share of the machine, and what a second thread brings."""
    rows, claims = [], []
    for network in ASKED:
        base = {"variant": network, "copies": FLAGSHIP_COPIES, "goal": "rate", "env": "breakout"}
        entries = {name: Entry("fugu", raced(base, *how)) for name, how in RACED.items()}
        entries["pufferlib"] = Entry("pufferlib", base)
        entries["machine"] = Entry("fugu", {}, "training/measure_machine")
        bench.race(f"flagship {network}", entries, 10.0, 3)
        theirs, peer = entries["pufferlib"].figure("rate"), "pufferlib"
        if theirs is None:
            theirs, peer = EARLIER[network], "pufferlib, NOT measured here: an earlier figure"
        names = ("float32", "bfloat16", "breakout")
        machine = {name: entries["machine"].figure(name) for name in names}
        told = ", ".join(f"{key} {text(machine[key] and machine[key] / 1e9)}" for key in names[:2])
        console.print(
            f"beside {network}: matrix products of 2048 x 2048 {told} GFLOP/s; breakout alone "
            f"{text(machine['breakout'])} steps/s"
        )
        weights = entries["pufferlib"].figure("parameters")
        rows.append((f"{network}: {peer}", text(weights), text(theirs), "", "", ""))
        for name, (_, precision, threads) in RACED.items():
            entry, peak = entries[name], machine[precision]
            rate, flop = entry.figure("rate"), entry.figure("flop")
            share = over(rate * flop, peak) if rate and flop and not threads else None
            limit = None
            if flop and peak and machine["breakout"] and not threads:
                limit = 1 / (flop / peak + 1 / machine["breakout"])
            ratio, reached = over(rate, theirs), over(rate, limit) if limit else None
            cells = (text(rate), text(ratio, ".2f"), text(share, ".0%"), text(reached, ".0%"))
            rows.append((f"fugu {network}, {name}", text(entry.figure("parameters")), *cells))
            facts: dict[str, Any] = {"fugu": rate, "peers": {peer: theirs}, "unit": "steps/s"}
            claim = f"breakout-{network}-{name.replace(', ', '-')}"
            if name in ASKED[network]:
                asked = ASKED[network][name]
                claims.append(Claim(f"{claim}-against-pufferlib", ratio, asked, **facts))
            if name == "native, bfloat16":
                of_limit: dict[str, Any] = {"fugu": rate, "limit": limit, "unit": "steps/s"}
                claims.append(Claim(f"{claim}-of-the-limit", reached, 0.7, **of_limit))
        two, one = (entries[n].figure("rate") for n in (list(RACED)[-2], list(RACED)[-1]))
        facts = {"fugu": two, "peers": {"one thread": one}, "unit": "steps/s"}
        claims.append(Claim(f"breakout-{network}-native-two-threads", over(two, one), 1.8, **facts))
        show_faults(entries)
    columns = (
        "library",
        "parameters",
        "steps/s",
        "against pufferlib",
        "of products",
        "of the limit",
    )
    show(f"breakout, {FLAGSHIP_COPIES:,} copies: steps/s of training", columns, rows)
    return claims


def raced(base: dict[str, Any], engine: str, precision: str, threads: int) -> dict[str, Any]:
    """Settings of one of ours; environments have as many threads as the engine."""
    settings: dict[str, Any] = {**base, "policy": {"precision": precision}}
    settings["train"] = {"engine": engine, "threads": threads}
    return {**settings, "vec": {"num_workers": 1}} if threads else settings


def parts(bench: Bench) -> list[Claim]:
    """Training against its parts."""
    base = {"env": "CartPole-v1", "variant": "defaults", "copies": 64}
    entries = {
        "training": Entry("fugu", {**base, "goal": "rate"}),
        "parts": Entry("fugu", {**base, "goal": "parts"}, "training/measure_parts"),
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
    """The share of torch's updates in matrix products."""
    base: dict[str, Any] = {"env": "breakout", "copies": FLAGSHIP_COPIES, "goal": "products"}
    base["train"] = {"engine": "torch"}  # of the native engine's, where_time_goes.py tells
    entries = {
        network: Entry("fugu", {**base, "variant": network}, "training/measure_parts")
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
    "engines": engines,
    "flagship": flagship,
    "parts": parts,
    "products": products,
    "straggler": straggler,
}


def main(options: TrainOptions) -> None:
    """Measure and report."""
    measure(ROWS, options, options.only, quick=QUICK)


if __name__ == "__main__":
    main(tyro.cli(TrainOptions))
