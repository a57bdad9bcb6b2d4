"""Profiling: one copy alone, some copies for their memory, two copies for the GIL.

All of it runs on the bench, a fresh process: what a copy adds to its memory is seen only where
little else happens, what hangs or crashes can be ended, and the caller stays as it is.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from fugu.core.machine import own_memory
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.vector.tuning.playing import Player
from fugu.vector.tuning.records import Profile, StepTimes
from fugu.vector.worker import POLLING, Setup

QUANTILES = 21
MOST_STEPS = 200_000
RESETS = 5
COPIES = 8  # that are made to see what memory they take
GAIN_ROUNDS = 3


@dataclass(frozen=True)
class Rows:
    """What the observations of one group look like."""

    num_agents: int
    size: int
    dtype: str


class Copy:
    """One copy that plays random legal actions."""

    def __init__(self, setup: Setup, seed: int, players: list[Player] | None = None) -> None:
        began = time.perf_counter()
        self.env = setup.make()
        self.make_seconds = time.perf_counter() - began
        self.env.bind(*(Buffers.allocate(group) for group in self.env.groups))
        self.polled = type(self.env).poll is not Env.poll
        self.players = players or [
            Player(group, group.num_agents, derive(seed, i))
            for i, group in enumerate(self.env.groups)
        ]

    def act(self) -> None:
        """Write the next actions."""
        for player, rows in zip(self.players, self.env.buffers, strict=True):
            rows.actions[:] = player.actions(rows)

    def step(self) -> None:
        """Step, and wait for the end of it."""
        if not self.polled:
            self.env.step()
            return
        self.env.begin_step()
        while not self.env.poll():
            time.sleep(POLLING)

    def ends(self) -> int:
        """Agents whose episode ended in this step."""
        return sum(int((rows.terminations | rows.truncations).sum()) for rows in self.env.buffers)


@dataclass
class Played:
    """How a copy played.

    Attributes:
        seconds: Of every step.
        ends: Agents whose episode ended.
        note: Why it was broken off.
    """

    seconds: list[float] = field(default_factory=list)
    ends: int = 0
    note: str = ""


@dataclass
class More:
    """What further copies take; None if there could be none.

    Attributes:
        make_seconds: To make one.
        copy_bytes: Memory of one.
        note: Why there could be none.
    """

    make_seconds: float | None = None
    copy_bytes: int | None = None
    note: str = ""


def profile_copy(setup: Setup, seconds: float, seed: int) -> tuple[Profile, list[Rows]]:
    """Play one copy for a while, then make some more; also what its observations look like."""
    first = Copy(setup, seed)
    resets = _time_resets(first, seconds / 5, seed)
    played = _play(first, seconds * 3 / 5)
    more = _make_more(setup, seconds / 5, seed, first.players)
    first.env.close()
    episodes = played.ends / first.env.num_agents
    reset_seconds, total = float(np.mean(resets)), sum(played.seconds)
    profile = Profile(
        steps=step_times(played.seconds),
        # The first one imports much that the others need not.
        make_seconds=first.make_seconds if more.make_seconds is None else more.make_seconds,
        reset_seconds=reset_seconds,
        reset_share=min(reset_seconds * episodes / max(total, 1e-9), 1.0),
        steps_per_episode=len(played.seconds) / episodes if episodes else None,
        copy_bytes=more.copy_bytes,
        slab_bytes=sum(slab_bytes(group) for group in first.env.groups),
        polled=first.polled,
        notes=tuple(text for text in (played.note, more.note) if text),
    )
    layouts = [(group.num_agents, group.observation_layout) for group in first.env.groups]
    return profile, [Rows(agents, layout.size, layout.dtype.str) for agents, layout in layouts]


def step_times(seconds: list[float]) -> StepTimes:
    """Their statistics.

    >>> times = step_times([1.0, 1.0, 1.0, 5.0])
    >>> times.mean, times.median, times.quantiles[0], times.quantiles[-1]
    (2.0, 1.0, 1.0, 5.0)
    """
    times = np.asarray(seconds)
    return StepTimes(
        count=len(times),
        mean=float(times.mean()),
        median=float(np.median(times)),
        deviation=float(times.std()),
        percentile_99=float(np.quantile(times, 0.99)),
        quantiles=tuple(np.quantile(times, np.linspace(0, 1, QUANTILES)).tolist()),
    )


def slab_bytes(group: AgentGroup) -> int:
    """Bytes that the rows of one copy take."""
    specs = Buffers.specs(group).values()
    return sum(prod(shape) * dtype.itemsize for shape, dtype in specs)


def _time_resets(copy: Copy, seconds: float, seed: int) -> list[float]:
    """The first one is only timed if it is the only one: much is set up on the way."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) <= RESETS and (not times or time.perf_counter() < end):
        began = time.perf_counter()
        copy.env.reset(derive(seed, len(times)))
        times.append(time.perf_counter() - began)
    return times[1:] or times


def _play(copy: Copy, seconds: float) -> Played:
    """Step for a while, at least once; an error breaks it off, if there were steps before."""
    played = Played()
    end = time.perf_counter() + seconds
    while len(played.seconds) < MOST_STEPS and (not played.seconds or time.perf_counter() < end):
        try:
            copy.act()
            began = time.perf_counter()
            copy.step()
        except Exception as error:
            if not played.seconds:
                raise
            played.note = (
                f"broken off after {len(played.seconds)} steps: {type(error).__name__}: {error}"
            )
            break
        played.seconds.append(time.perf_counter() - began)
        played.ends += copy.ends()
    return played


def _make_more(setup: Setup, seconds: float, seed: int, players: list[Player]) -> More:
    """Make further copies, step each once, and see what they take."""
    copies: list[Copy] = []
    before, end = own_memory(), time.perf_counter() + seconds
    try:
        while len(copies) < COPIES and (not copies or time.perf_counter() < end):
            copy = Copy(setup, seed, players)  # shared: they are no part of what a copy takes
            copies.append(copy)
            copy.env.reset(derive(seed, len(copies)))
            copy.act()
            copy.step()
        make_seconds = float(np.mean([copy.make_seconds for copy in copies]))
        return More(make_seconds, max(own_memory() - before, 0) // len(copies))
    except Exception as error:
        return More(note=f"a further copy failed: {type(error).__name__}: {error}")
    finally:
        for copy in copies:
            copy.env.close()


def measure_thread_gain(setup: Setup, step_seconds: float, seconds: float, seed: int) -> float:
    """How much quicker two threads step two copies than one thread does.

    The best of some rounds of each, since only the quickest are free of what else runs here.
    """
    copies = [Copy(setup, seed), Copy(setup, seed)]
    for copy in copies:
        copy.env.reset(seed)
    steps = max(1, int(seconds / (GAIN_ROUNDS * 3 * max(step_seconds, 1e-7))))
    alone: list[float] = []
    together: list[float] = []
    end = time.perf_counter() + seconds
    while len(alone) < GAIN_ROUNDS and (not alone or time.perf_counter() < end):
        alone.append(_time_threads(copies[:1], steps))
        together.append(_time_threads(copies, steps))
    for copy in copies:
        copy.env.close()
    return 2 * min(alone) / max(min(together), 1e-9)


def _time_threads(copies: list[Copy], steps: int) -> float:
    errors: list[BaseException] = []

    def run(copy: Copy) -> None:
        try:
            for _ in range(steps):
                copy.act()
                copy.step()
        except Exception as error:
            errors.append(error)

    threads: list[Any] = [threading.Thread(target=run, args=(copy,)) for copy in copies]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - began
