"""Lessons: trainings that are watched, and what can be taken away from them.

The tests of this folder and `benchmarks/learning.py` share them, so that a proof is written once.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fugu.algos.dreamer.agent import DreamerAgent, Imagined
from fugu.data.segments import Segments
from fugu.policies.policy import Policy
from fugu.rollout.actor import Actor
from fugu.rollout.forwards import TorchForward
from fugu.training.callbacks import AnyCallback
from fugu.training.evaluate import Players
from fugu.training.session import RECENT, Result, train
from fugu.training.trainer import Progress, Trainer
from fugu.vector import make

Settings = Mapping[str, Any]
Circumstance = Callable[[], AbstractContextManager[tuple[AnyCallback, ...]]]
COPIES, EPISODES = 16, 112  # of a judgement; every copy plays as many
LAG = 8  # updates that a stale actor is behind


# ------------------------------------------------------------------ circumstances


@contextlib.contextmanager
def as_usual() -> Iterator[tuple[AnyCallback, ...]]:
    """Nothing is changed."""
    yield ()


def step_by_step() -> AbstractContextManager[Any]:
    """Whoever collects does it in Python, where it can be meddled with."""
    return mock.patch("fugu.algos.ppo.can_fill_segments", return_value=False)


@contextlib.contextmanager
def ends_unseen() -> Iterator[tuple[AnyCallback, ...]]:
    """The learner does not see that episodes end: traces run on into the next ones."""
    record_reward = Segments.record_reward

    def blind(self: Segments, agents: Any, rewards: Any, ends: Any, cuts: Any, *rest: Any) -> Any:
        return record_reward(self, agents, rewards, np.zeros_like(ends), np.zeros_like(cuts), *rest)

    with step_by_step(), mock.patch.object(Segments, "record_reward", blind):
        yield ()


@contextlib.contextmanager
def cuts_as_ends() -> Iterator[tuple[AnyCallback, ...]]:
    """The learner takes truncations for terminations."""
    record_reward = Segments.record_reward

    def mistaken(self: Any, agents: Any, rewards: Any, ends: Any, cuts: Any, *rest: Any) -> Any:
        return record_reward(self, agents, rewards, ends | cuts, np.zeros_like(cuts), *rest)

    with step_by_step(), mock.patch.object(Segments, "record_reward", mistaken):
        yield ()


@contextlib.contextmanager
def imagination_off() -> Iterator[tuple[AnyCallback, ...]]:
    """All that Dreamer imagines is zeros."""
    imagine = DreamerAgent.imagine

    def nothing(self: DreamerAgent, *args: Any) -> Imagined:
        found = imagine(self, *args)
        return Imagined(found.features * 0.0, found.samples, found.masks)

    with mock.patch.object(DreamerAgent, "imagine", nothing):
        yield ()


@contextlib.contextmanager
def stale_actor() -> Iterator[tuple[AnyCallback, ...]]:
    """Actors act with weights that are some updates old."""
    past: deque[list[dict[str, Any]]] = deque(maxlen=LAG)

    def lag(trainer: Trainer, progress: Progress) -> None:
        past.append([copy.deepcopy(policy.state_dict()) for policy in trainer.policies])
        for actor, learned, weights in zip(
            actors_of(trainer), trainer.policies, past[0], strict=True
        ):
            if actor.policy is learned:
                actor.policy = copy.deepcopy(learned)
                actor.forward = TorchForward(actor.policy)
            actor.policy.load_state_dict(weights)

    with step_by_step():
        yield (lag,)


@contextlib.contextmanager
def nothing_left() -> Iterator[tuple[AnyCallback, ...]]:
    """Nothing of the workers stays behind."""
    with make("CartPole-v1", 2, backend="process", num_workers=2):
        pass  # what is begun once and stays, such as a fork server
    before = left_behind()
    log = logging.getLogger("fugu.vector")  # which tells every fault, a thousand of them
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield ()
    finally:
        log.setLevel(level)
    deadline = time.monotonic() + 5.0
    while (after := left_behind() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not after, f"left behind: {sorted(after)}"


def left_behind() -> set[str]:
    """Shared memory that this process holds or that has our name, and the processes below it."""
    parents: dict[str, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(parent, []).append(path.parent.name)
    below = [str(os.getpid())]
    for pid in below:  # which grows meanwhile
        below += parents.get(pid, [])
    files = {str(path) for path in Path("/dev/shm").glob("*fugu*")}
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (target := os.readlink(path)).startswith(("/memfd:", "/dev/shm")):
                files.add(f"{path.name} {target}")
    return files | {*below[1:]}


def actors_of(trainer: Trainer) -> list[Actor]:
    """Those who act, one for each group of agents."""
    engine: Any = trainer.algorithm
    actors: list[Actor] = engine.collector.actors
    return actors


# ------------------------------------------------------------------ lessons


@dataclass(frozen=True)
class Lesson:
    """One training.

    Attributes:
        env: What is learned.
        steps: Of the whole training; 0: as many as the environment's own file says.
        settings: Beside the defaults, by section.
        circumstance: What is changed around it.
        judged_on: Where the greedy policy shows what it learned; empty: the last hundred episodes
            of the training are the score.
    """

    env: str
    steps: int = 0
    settings: Settings = field(default_factory=dict)
    circumstance: Circumstance = as_usual
    judged_on: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a lesson.

    Attributes:
        seed: Of the training.
        score: In the end.
        reached: Steps after which a hundred episodes in a row had the threshold as their mean; None
            if they never had.
        minutes: That it took.
    """

    seed: int
    score: float
    reached: int | None
    minutes: float


def study(
    lesson: Lesson,
    seed: int,
    threshold: float,
    tell: Callable[[int], None] = lambda steps: None,
) -> Outcome:
    """Train, and watch when the threshold is reached.

    Args:
        lesson: What to learn.
        seed: Of the training.
        threshold: To be reached.
        tell: Called with the steps so far.
    """
    recent: deque[tuple[float, float]] = deque()  # episodes, and the sum of their returns
    reached: int | None = None

    def watch(trainer: Trainer, progress: Progress) -> None:
        nonlocal reached
        tell(progress.steps)
        count = progress.episodes.get("episodes", 0.0)
        if not count:
            return
        recent.append((count, count * progress.episodes["episode_return"]))
        while sum(n for n, _ in recent) - recent[0][0] >= RECENT:
            recent.popleft()
        episodes = sum(n for n, _ in recent)
        mean = sum(total for _, total in recent) / episodes
        if reached is None and episodes >= RECENT and mean >= threshold:
            reached = progress.steps

    began = time.perf_counter()
    with lesson.circumstance() as callbacks:
        result = learn(lesson.env, lesson.steps, lesson.settings, seed, (watch, *callbacks))
    score = result.score if result.score is not None else float("nan")
    if lesson.judged_on:
        score = judge(result.policies, lesson.judged_on, seed)
    return Outcome(seed, score, reached, (time.perf_counter() - began) / 60)


def learn(
    env: str,
    steps: int,
    settings: Settings | None = None,
    seed: int = 1,
    callbacks: tuple[AnyCallback, ...] = (),
) -> Result:
    """Train quietly, and keep nothing; 0 steps are as many as the environment's file says."""
    sections = {"seed": seed, **(settings or {})}
    if steps:
        sections["train"] = {"total_steps": steps, **sections.get("train", {})}
    return train(env, keep=False, show=False, callbacks=callbacks, **sections)


def judge(policies: list[Policy], env: str, seed: int) -> float:
    """The mean return of greedy policies over episodes that they have not seen."""
    returns: list[list[float]] = [[] for _ in range(COPIES)]
    with make(env, COPIES, backend="serial") as vec:
        players = Players(policies, vec, seed)
        vec.async_reset(seed + 1_000_000)
        while min(map(len, returns)) < EPISODES // COPIES:
            batch = vec.recv()
            for copy_, told in batch.infos.items():
                returns[copy_] += [float(info["episode_return"]) for info in told]
            vec.send(players(batch))
    return float(np.mean([mine[: EPISODES // COPIES] for mine in returns]))
