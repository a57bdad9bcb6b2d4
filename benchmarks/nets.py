"""Forward passes of policies by the native core beside torch.

    python benchmarks/nets.py [--quick] [--json FILE]

The default MLP and an LSTM of 128 numbers on four numbers, and the Nature network on four pictures
of 84 x 84, for 1 to 256 observations at once: what a call takes, the conversion of arrays to
tensors and back not counted for torch. One thread each, CPU time; both take turns in short windows,
of which the fastest counts. "chosen" is what `policy.engine = auto` takes.

A convolutional network has 8 million multiplications for one observation: no overhead can be saved
that is 20 times as long as they take, so there the target is another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import tyro
from claims import Claim, Options, finish
from gymnasium import spaces
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fugu import Layout
from fugu.envs.contract import AgentGroup
from fugu.nets.native import NativeNet, targets, work_of
from fugu.nets.reading import read_policy
from fugu.policies import Policy, PolicyConfig, make_policy
from fugu.rollout.forwards import make_forward

BATCHES = 1, 16, 64, 256
WINDOW = 2e-4  # seconds, less than a scheduler's slice
NUMBERS, PICTURES = spaces.Box(-1, 1, (4,)), spaces.Box(0, 255, (84, 84, 4), np.uint8)
CASES: dict[str, tuple[Any, dict[str, Any], float]] = {  # observations, settings, target at 1
    "mlp": (NUMBERS, {}, 20),
    "lstm-128": (NUMBERS, {"core": "lstm"}, 20),
    "nature": (PICTURES, {}, 2),
}
Call = Callable[[], object]


def make(name: str) -> tuple[Policy, Layout]:
    """The policy of a case, and the layout of what it sees."""
    space, settings, _ = CASES[name]
    group = AgentGroup("agent", (0,), Layout.of(space), Layout.of(spaces.Discrete(4)))
    torch.manual_seed(0)
    return make_policy(group, PolicyConfig(**settings)).eval(), group.observation_layout


def rows_of(layout: Layout, count: int) -> NDArray[Any]:
    """Observations."""
    layout.space.seed(0)
    rows = layout.zeros(count)
    for row in rows:
        layout.pack(layout.space.sample(), row)
    return rows


def calls_of(policy: Policy, layout: Layout, batch: int) -> dict[str, Call]:
    """One forward pass by each."""
    rows, state = rows_of(layout, batch), np.zeros((batch, policy.state_size), np.float32)
    tensors = torch.from_numpy(rows), torch.from_numpy(state)
    net = read_policy(policy, layout)

    @torch.no_grad()
    def eager() -> None:
        policy(*tensors)

    calls: dict[str, Call] = {"torch": eager}
    for target in targets():
        runner = NativeNet(net, target)
        out = runner.forward(rows, state)
        calls[target] = lambda runner=runner, out=out: runner.forward(rows, state, out)  # type: ignore[misc]
    return calls


def fastest(calls: dict[str, Call], rounds: int) -> dict[str, float]:
    """CPU seconds of one call each, in the fastest of windows that take turns."""
    counts, found = {}, {}
    for name, call in calls.items():
        count = 1
        while (seconds := _time(call, count)) < WINDOW and count < 4096:
            count *= 2
        counts[name], found[name] = count, seconds / count
    for _ in range(rounds):
        for name, call in calls.items():
            found[name] = min(found[name], _time(call, counts[name]) / counts[name])
    return found


def _time(call: Call, count: int) -> float:
    start = time.thread_time()
    for _ in range(count):
        call()
    return time.thread_time() - start


def main(options: Options) -> None:
    """Measure and report."""
    torch.set_num_threads(1)
    best = list(targets())[-1]
    table = Table("policy", "batch", "torch", *targets(), "ratio", "10^9 products/s", "chosen")
    claims, chosen_ratios = [], []
    for name, (_, _, target) in CASES.items():
        policy, layout = make(name)
        work = work_of(read_policy(policy, layout))
        for batch in BATCHES:
            heavy = work * batch > 1 << 26
            rounds = (3 if options.quick else 8) if heavy else (20 if options.quick else 60)
            seconds = fastest(calls_of(policy, layout, batch), rounds)
            ratio = seconds["torch"] / seconds[best]
            chosen = make_forward(policy, layout, "auto", batch).engine
            cells = (f"{seconds[who] * 1e6:,.1f}" for who in ("torch", *targets()))
            rate = f"{work * batch / seconds[best] / 1e9:.1f}"
            table.add_row(name, str(batch), *cells, f"{ratio:.1f}", rate, chosen)
            if chosen == "native":
                chosen_ratios.append(ratio)
            if batch == 1:
                figures: Any = {"fugu": seconds[best], "peers": {"torch": seconds["torch"]}}
                claims.append(Claim(f"{name}-1-against-torch", ratio, target, **figures))
    table.title = "CPU microseconds of one forward pass"
    Console(width=120).print(table)
    claims.append(Claim("where-chosen-against-torch", min(chosen_ratios), 1.5))
    finish(claims, options)


if __name__ == "__main__":
    main(tyro.cli(Options))
