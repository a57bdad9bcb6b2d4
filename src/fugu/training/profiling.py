"""Where an update's time goes: parts of it timed from outside, then torch's operators."""

from __future__ import annotations

import functools
import importlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from fugu.algos.settings import Config
from fugu.core.errors import UsageError
from fugu.training.trainer import Progress, Trainer

# What is timed, by the part it counts for; what is called inside another counts for itself alone.
# A name that is gone leaves its part without it.
PARTS = {
    ("collect", "wait for environments"): ["fugu.vector.vector:Vector.recv"],
    ("collect", "forward"): [
        "fugu.policies.policy:Policy.forward",
        "fugu.policies.central:CentralPolicy.forward",
        "fugu.rollout.forwards:NativeForward.__call__",
        "fugu.rollout.forwards:LearnerForward.__call__",
    ],
    ("collect", "rows by the core"): ["fugu.nets.learning:NativeLearner.collect"],
    ("collect", "random numbers"): ["fugu.rollout.collector:draw_random"],
    ("collect", "new weights"): [
        "fugu.rollout.forwards:NativeForward.refresh",
        "fugu.rollout.forwards:LearnerForward.refresh",
    ],
    ("collect", "critics' rows"): ["fugu.rollout.observation_views:CriticObservations.__call__"],
    ("collect", "sampling"): [
        "fugu.spaces.action_sampler:ActionSampler.sample",
        "fugu.spaces.action_sampler:RowWriter.write",
    ],
    ("collect", "segments"): [
        f"fugu.data.segments:Segments.{name}"
        for name in ("record_reward", "bootstrap", "record_step")
    ],
    ("collect", "send actions"): ["fugu.vector.vector:Vector.send"],
    ("collect", "reward scale"): [
        f"fugu.rollout.actor:ReturnNormalizer.{name}" for name in ("note", "note_rows")
    ],
    ("learn", "gather"): [
        "fugu.algos.segment_view:SegmentView.__init__",
        "fugu.algos.segment_view:SegmentView.minibatch",
        "fugu.data.segments:Segments.take",
        "fugu.data.segments:Segments.release",
    ],
    ("learn", "advantages"): ["fugu.algos.segment_view:SegmentView.advantages"],
    ("learn", "choice of rows"): ["fugu.algos.ppo:PPOLearner._draw"],
    ("learn", "forward"): [
        "fugu.policies.policy:Policy.forward_segments",
        "fugu.policies.central:CentralPolicy.forward_segments",
    ],
    ("learn", "loss"): ["fugu.algos.ppo:_ppo_loss"],
    ("learn", "backward"): ["torch:Tensor.backward"],
    ("learn", "gradients by the core"): ["fugu.nets.learning:NativeLearner.learn"],
    ("learn", "weights to the core"): ["fugu.nets.learning:NativeLearner.reload"],
    ("learn", "optimiser"): [
        "torch.optim:AdamW.step",
        "fugu.algos.optimizers:FlatAdamW.step",
        "fugu.algos.optimizers:Muon.step",
        "torch.optim:Optimizer.zero_grad",
        "torch.nn.utils:clip_grad_norm_",
        "fugu.nets.learning:FlatParameters.clip_grads",
    ],
}
MATRIX_PRODUCTS = re.compile(
    r"aten::(addmm|mm|bmm|baddbmm|addmv|mv|linear|matmul)$|mkldnn|lstm|gru"
)


@dataclass(frozen=True)
class Part:
    """One part of a phase, "collect" or "learn"; without a name, the whole phase.

    Seconds and calls are those of an update, and the share is that of the whole update.
    """

    phase: str
    name: str
    seconds: float
    share: float
    calls: float


@dataclass(frozen=True)
class Operator:
    """One of torch's operators; seconds and calls are those of an update."""

    name: str
    seconds: float
    share: float
    calls: float


@dataclass(frozen=True)
class Profile:
    """Where the time of some updates went.

    Attributes:
        seconds: Duration of an update.
        steps: Agent steps of an update.
        traced_seconds: Duration of an update under torch's profiler.
        parts: Parts of the updates without torch's profiler.
        operators: Torch's operators by their own time, the longest first.
        matrix_products: Share of matrix products in the traced updates.
    """

    seconds: float
    steps: float
    traced_seconds: float
    parts: tuple[Part, ...]
    operators: tuple[Operator, ...]
    matrix_products: float


class _Inside(threading.local):
    """Seconds of the timed calls inside the one that a thread is in."""

    seconds = 0.0


class Stopwatch:
    """Times calls by part; the time of a call inside another is taken off the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}
        self.calls: dict[tuple[str, str], int] = {}
        self._inside = _Inside()

    def timed(self, part: tuple[str, str], call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same call, with its time noted."""

        @functools.wraps(call)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            outer, self._inside.seconds = self._inside.seconds, 0.0
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent = time.perf_counter() - began
                own = spent - self._inside.seconds
                self.seconds[part] = self.seconds.get(part, 0.0) + own
                self.calls[part] = self.calls.get(part, 0) + 1
                self._inside.seconds = outer + spent

        return wrapper

    @contextmanager
    def watching(self, trainer: Trainer) -> Iterator[None]:
        """Time the calls of all parts, by wrapping them until the end of the block."""
        undo: list[tuple[Any, str, Any]] = []
        try:
            for part, targets in PARTS.items():
                for owner, name in (found for t in targets for found in _owners(t, trainer)):
                    before = vars(owner)[name]
                    undo.append((owner, name, before))
                    setattr(owner, name, self.timed(part, before))
            yield
        finally:
            for owner, name, before in reversed(undo):
                setattr(owner, name, before)


def profile_training(cfg: Config, out: Path, updates: int = 5, warmup: int = 2) -> Profile:
    """Train for some updates to warm up, some that are timed, and as many under torch's profiler.

    Nothing is kept but the trace `out`, for chrome://tracing or ui.perfetto.dev.
    """
    if updates < 1:
        raise UsageError(f"updates: given {updates}; allowed: 1 or more.")
    if out.suffix != ".json" or not out.parent.is_dir():
        raise UsageError(f"out: given {str(out)!r}; allowed: a .json file in a folder that exists.")
    endless = replace(cfg, train=replace(cfg.train, total_steps=1 << 60))
    trainer, watch = Trainer(endless), Stopwatch()
    try:
        _advance(trainer, warmup)
        before = trainer.steps
        with watch.watching(trainer):
            timed = _advance(trainer, updates)
        steps = trainer.steps - before
        kinds = [ProfilerActivity.CPU]
        if trainer.device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        with profile(activities=kinds) as tracer:
            traced = _advance(trainer, updates)
    finally:
        trainer.close()
    tracer.export_chrome_trace(str(out))
    wall = sum(map(_seconds, traced))
    operators = [
        Operator(found.key, spent / updates, spent / wall, found.count / updates)
        for found in tracer.key_averages()
        if (spent := found.self_cpu_time_total / 1e6) > 0
    ]
    return Profile(
        sum(map(_seconds, timed)) / updates,
        steps / updates,
        wall / updates,
        tuple(_parts(watch, timed)),
        tuple(sorted(operators, key=lambda found: -found.seconds)),
        sum(found.share for found in operators if MATRIX_PRODUCTS.search(found.name)),
    )


def _advance(trainer: Trainer, updates: int) -> list[Progress]:
    """Train for so many updates."""
    found: list[Progress] = []

    def note(progress: Progress) -> None:
        found.append(progress)
        trainer.stopping = len(found) == updates

    trainer.stopping = not updates
    trainer.run(note)
    return found


def _seconds(progress: Progress) -> float:
    return sum(progress.phases.values())


def _parts(watch: Stopwatch, timed: list[Progress]) -> Iterator[Part]:
    """Each phase, its parts, and what is left of it."""
    count, whole = len(timed), sum(map(_seconds, timed))
    for phase in timed[0].phases:
        total = sum(progress.phases[phase] for progress in timed)
        yield Part(phase, "", total / count, total / whole, 1.0)
        mine = {key: spent for key, spent in watch.seconds.items() if key[0] == phase}
        for key in (key for key in PARTS if key in mine):
            spent = mine[key]
            yield Part(*key, spent / count, spent / whole, watch.calls[key] / count)
        if mine:
            left = max(0.0, total - sum(mine.values()))
            yield Part(phase, "rest", left / count, left / whole, 1.0)


def _owners(target: str, trainer: Trainer) -> Iterator[tuple[Any, str]]:
    """Yield what has the attribute that `module:Class.method` or `module:function` names."""
    module, _, path = target.partition(":")
    folder, _, name = path.rpartition(".")
    try:
        owner: Any = importlib.import_module(module)
    except ImportError:
        return
    if folder:
        owner = vars(owner).get(folder)
    if owner is not None and name in vars(owner):
        yield owner, name
    for policy in trainer.policies:  # a compiled policy has methods of its own
        if isinstance(owner, type) and isinstance(policy, owner) and name in vars(policy):
            yield policy, name
