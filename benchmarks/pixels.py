"""ALE Pong from pixels: training beside Stable-Baselines3 and a plain script, in one run.

    python benchmarks/pixels.py [--quick] [--json FILE]
    python benchmarks/pixels.py --curve [--seed 1] [--total-steps N] [--threads 2]

How peers are measured is told in `racing.py`. A step is one action, which is four frames; all count
the same number of steps, after an update that is not counted, with two threads, and see four
grey pictures of 84 x 84. Each row says what decides the work of a step.

fugu, recipe: what `fugu train ALE/Pong-v5` does, by the recipe's own settings.
fugu, zoo's settings: the copies, horizon, epochs and minibatch of the peers.
sb3: Stable-Baselines3 with the wrappers and settings of RL Baselines3 Zoo, copies one after the
    other as there; and with a process for each copy.
plain script: `examples/cleanrl/atari_plain.py`.

--curve trains for real, without peers, and writes the score to `benchmarks/results/pong.json` and,
as a curve, to `docs/images/pong.png`.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import tyro
from claims import Claim, Options
from proving import commit, keep
from racing import ROOT, Bench, Entry, console, measure, over, show, show_faults, text

import fugu
from fugu.training.trainer import Progress, Trainer

GAME, NETWORK = "ALE/Pong-v5", "Nature, 512"
THREADS, ASKED = 2, 2.0
STEPS, QUICK_STEPS, ROUNDS = 4096, 2048, 3  # counted are whole updates of all
SECONDS = 120.0  # that a turn may take many times over, before it counts as stalled
WORK = ("copies", "horizon", "epochs", "minibatch", "threads", "parameters")
RECENT, POINTS = 20, 200  # episodes of a score, and points of a curve
PICTURE = ROOT / "docs/images/pong.png"


@dataclass(frozen=True)
class PixelOptions(Options):
    """See the top of the file."""

    curve: bool = False
    """Train for real and keep the curve of the score."""
    seed: int = 1
    """Of that training."""
    total_steps: int = 1_500_000
    """Of that training."""
    threads: int = THREADS
    """Of that training."""


def rates(bench: Bench) -> list[Claim]:
    """Steps/s of training."""
    ours = {"env": GAME, "train": {"threads": THREADS}}
    entries = {
        "fugu, recipe": Entry("fugu", {**ours, "variant": "defaults"}),
        "fugu, zoo's settings": Entry("fugu", {**ours, "variant": "pixels", "copies": 8}),
        "sb3": Entry("sb3", {"vec": "dummy"}, "training/run_sb3_atari"),
        "sb3, processes": Entry("sb3", {"vec": "subproc"}, "training/run_sb3_atari"),
        "plain script": Entry("fugu", {"name": "atari_plain"}, "training/run_script"),
    }
    if bench.quick:
        del entries["sb3, processes"]
    steps = QUICK_STEPS if bench.quick else STEPS
    for entry in entries.values():
        entry.settings |= {"goal": "rate", "steps": steps, "warm": 1}
    bench.race("pong", entries, SECONDS, ROUNDS)
    found = {name: entry.figure("rate") for name, entry in entries.items()}
    peers = {name: rate for name, rate in found.items() if not name.startswith("fugu")}
    rows = []
    for name, entry in entries.items():
        told = entry.answers[-1] if entry.answers else {}
        work = [text(told.get(fact)) for fact in WORK]
        ratios = [text(over(found[name], theirs), ".2f") for theirs in peers.values()]
        rows.append((name, text(found[name]), *ratios, *work, NETWORK))
    against = (f"/ {name}" for name in peers)
    show(
        f"Pong from pixels, {steps:,} steps counted: steps/s of training",
        ("", "steps/s", *against, *WORK, "network"),
        rows,
    )
    show_faults(entries)
    mine = found["fugu, recipe"]
    named = {"sb3": [name for name in peers if name.startswith("sb3")], "plain": ["plain script"]}
    claims = []
    for short, names in named.items():
        best = max((rate for name in names if (rate := peers[name])), default=None)
        facts: dict[str, Any] = {"fugu": mine, "peers": {short: best}, "unit": "steps/s"}
        claims.append(Claim(f"pong-against-{short}", over(mine, best), ASKED, **facts))
    return claims


# ------------------------------------------------------------------ learning


def learn(seed: int, total_steps: int, threads: int) -> dict[str, list[float]]:
    """Train by the recipe; the mean score of the last games, beside steps and seconds."""
    recent: deque[float] = deque(maxlen=RECENT)
    curve: dict[str, list[float]] = {"steps": [], "seconds": [], "score": []}
    facts = {"seed": seed, "total_steps": total_steps, "threads": threads, "commit": commit()}
    began = time.perf_counter()

    def watch(trainer: Trainer, progress: Progress) -> None:
        if progress.episodes:
            ended = progress.episodes
            recent.extend([ended["episode_return"]] * int(ended["episodes"]))
        last = curve["steps"][-1] if curve["steps"] else 0.0
        over = progress.steps >= total_steps
        if recent and (over or progress.steps - last >= total_steps / POINTS):
            score, seconds = sum(recent) / len(recent), time.perf_counter() - began
            for key, value in zip(curve, (progress.steps, seconds, score), strict=True):
                curve[key].append(round(value, 2))
            console.print(f"{progress.steps:,} steps, {seconds:.0f} s: {score:.1f}")
            keep("pong", {**facts, **curve})  # so far: nothing is lost if it is cut off

    fugu.train(
        GAME,
        seed=seed,
        train={"total_steps": total_steps, "threads": threads},
        keep=False,
        show=False,
        callbacks=[watch],
    )
    return curve


def draw(found: dict[str, list[float]]) -> None:
    """The curve."""
    figure = importlib.import_module("matplotlib.figure").Figure((6.4, 3.6), layout="tight")
    axes = figure.subplots()
    axes.plot([steps / 1e6 for steps in found["steps"]], found["score"], color="#e07a5f")
    axes.set(xlabel="million steps", ylabel="score of Pong", ylim=(-21.5, 21.5))
    figure.savefig(PICTURE, dpi=150)


def main(options: PixelOptions) -> None:
    """Measure and report, or learn."""
    if options.curve:
        draw(learn(options.seed, options.total_steps, options.threads))
        return
    measure({"pong": rates}, options, (), quick=("pong",))


if __name__ == "__main__":
    main(tyro.cli(PixelOptions))
