"""1,024 coding environments in flight: how busy executors are, and whether the learner waits.

`benchmarks/coding.py` says how it is measured and what is claimed of it.
"""

from __future__ import annotations

import json
import random
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fugu
from fugu.vector import Batch, Vector

IN_FLIGHT, BATCH = 1024, 256
DIGITS, SHORTEST, LONGEST = 10, 4, 12  # tokens, and how many of them a program has
FAMILIES = 64  # of programs, by how long they run
LEARNING = 2.0  # batches' time that the learner computes for each, on average


@dataclass(frozen=True)
class Flight:
    """How 1,024 environments went.

    Attributes:
        busy: Share of their time that executors had a program in hand, while others waited.
        crowded: Share of the time in which programs waited.
        blocked: Share of receives that blocked with a whole batch ready when they were called.
        ready: Share of receives with a whole batch ready.
        late: Share of the time in which a batch was ready and a receive had not returned.
        programs: A second.
        steps: A second.
        backend: Who stepped them.
    """

    busy: float
    crowded: float
    blocked: float
    ready: float
    late: float
    programs: float
    steps: float
    backend: str


def write_problems(path: Path) -> None:
    """Programs are a comment behind a loop; how long it takes is the problem's matter."""
    chance = random.Random(0)
    with path.open("w") as file:
        for number in range(FAMILIES):
            loops = int(10 ** chance.uniform(0, 6))  # up to about 50 ms
            header = f"def spin(n):\n    for _ in range({loops}): n\n    return n  # "
            tests = [{"args": [1], "expected": 1}]
            line = {"name": f"spin/{number}", "prompt": str(number), "entry": "spin"}
            file.write(json.dumps({**line, "header": header, "tests": tests}) + "\n")


class Writers:
    """Digits, each program another one, until it is long enough and chance ends it."""

    def __init__(self, copies: int) -> None:
        self._written, self._random = np.zeros(copies, np.int64), np.random.default_rng(0)

    def __call__(self, batch: Batch) -> NDArray[np.int64]:
        """What the copies of a batch write next."""
        envs, count = batch.env_ids, len(batch.env_ids)
        self._written[envs[batch.terminations]] = 0
        tokens = self._random.integers(DIGITS, size=count)
        ends = (self._written[envs] >= SHORTEST) & (self._random.random(count) < 0.25)
        self._written[envs] += 1
        return np.where(ends, DIGITS, tokens)[:, None]


class Watch:
    """Counts milliseconds in which a batch is ready and a receive has not returned."""

    def __init__(self, vec: Vector) -> None:
        self._vec, self._ends = vec, threading.Event()
        self.receiving, self.late = False, 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        last = time.perf_counter()
        while not self._ends.wait(0.001):
            now = time.perf_counter()
            if self.receiving and self._vec.ready >= BATCH:
                self.late += now - last
            last = now

    def close(self) -> None:
        """Look no more."""
        self._ends.set()
        self._thread.join()


def receive(vec: Vector) -> tuple[Batch, bool, bool]:
    """A batch, whether one was ready before, and whether the call blocked all the same."""
    ready = vec.ready >= BATCH
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    batch = vec.recv()
    blocked = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > before
    return batch, ready, ready and blocked


def learn(weights: NDArray[np.float32], seconds: float) -> None:
    """Compute for a while, as a learner would."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        weights @ weights


def keep_journal(env: Any) -> None:
    """Let the executors of a worker write down what they do."""
    env.source.pool.journal = []


def read_journal(env: Any) -> tuple[int, list[tuple[float, float, float]]]:
    """How many executors a worker has, and when each program was handed in, begun and ended."""
    pool = env.source.pool
    return pool.workers, [(job.submitted, job.began, job.ended) for job in pool.journal]


def busy_while_crowded(
    executors: int, spans: Sequence[tuple[float, float, float]], first: float, last: float
) -> tuple[float, float]:
    """Seconds that executors had a program in hand while others waited, and those of waiting."""
    events: list[tuple[float, int, int]] = []
    for submitted, began, ended in spans:
        events += [(submitted, 1, 0), (began, -1, 1), (ended, 0, -1)]
    waiting, running, busy, crowded, before = 0, 0, 0.0, 0.0, first
    for moment, waits, runs in sorted(events):
        span = max(0.0, min(moment, last) - max(before, first))
        if waiting:
            busy += span * min(running, executors)
            crowded += span * executors
        waiting, running, before = waiting + waits, running + runs, moment
    return busy, crowded


def measure_environments(seconds: float) -> Flight:
    """1,024 environments, asynchronously."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "spin.jsonl"
        write_problems(path)
        kwargs = {"split": "all", "tokenizer": "letters:0123456789", "prompt_length": 4,
                  "program_length": LONGEST}  # fmt: skip
        vec = fugu.make(f"coding:{path}", IN_FLIGHT, batch_size=BATCH, env_kwargs=kwargs)
        stack.callback(vec.close)
        firsts = [number * IN_FLIGHT // vec.num_workers for number in range(vec.num_workers)]
        write, weights = Writers(IN_FLIGHT), np.ones((128, 128), np.float32)
        chance = random.Random(1)
        vec.async_reset(0)
        held = [vec.recv() for _ in range(IN_FLIGHT // BATCH)]
        vec.apply(keep_journal, env_ids=firsts)
        for batch in held:
            vec.send(write(batch), batch.env_ids)

        def fly(
            seconds: float, learning: float, watch: Watch | None = None
        ) -> tuple[int, int, int, float]:
            calls = ready = blocked = 0
            began = time.perf_counter()
            while time.perf_counter() - began < seconds:
                if watch is not None:
                    watch.receiving = True
                batch, was_ready, did_block = receive(vec)
                if watch is not None:
                    watch.receiving = False
                calls, ready, blocked = calls + 1, ready + was_ready, blocked + did_block
                learn(weights, chance.uniform(0.0, 2.0 * learning))
                vec.send(write(batch), batch.env_ids)
            return calls, ready, blocked, time.perf_counter() - began

        fly(seconds / 4, 0.0)  # until programs of all lengths are in flight
        calls, _, _, taken = fly(seconds / 4, 0.0)
        pace = LEARNING * taken / calls
        first = time.monotonic()
        calls, ready, blocked, alone = fly(seconds / 2, pace)
        watch = Watch(vec)
        _, _, _, watched = fly(seconds / 2, pace, watch)
        watch.close()
        last = time.monotonic()
        while vec.under_way:
            vec.recv(rest=True)
        journals = vec.apply(read_journal, env_ids=firsts)
        backend = f"{vec.backend}, {vec.num_workers} workers"
    parts = [busy_while_crowded(count, spans, first, last) for count, spans in journals]
    executors = sum(count for count, _ in journals)
    busy, crowded = sum(part[0] for part in parts), sum(part[1] for part in parts)
    done = sum(first <= ended <= last for _, spans in journals for _, _, ended in spans)
    return Flight(
        busy / crowded,
        crowded / (executors * (last - first)),
        blocked / calls,
        ready / calls,
        watch.late / watched,
        done / (last - first),
        calls * BATCH / alone,
        f"{backend}, {executors} executors",
    )
