"""The trainer: drives an algorithm through collections and updates, and resumes it."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import FrameType
from typing import Any

import numpy as np
import torch

from fugu.algos.algorithm import Algorithm, RunContext, State, Tensors, as_tensors, import_object
from fugu.algos.registry import algorithm_names, find_algorithm
from fugu.algos.settings import Config, VecConfig
from fugu.core.config import to_tree
from fugu.core.errors import FuguError, UsageError
from fugu.core.machine import keep_freed_memory
from fugu.core.seeding import derive
from fugu.envs.contract import AgentGroup
from fugu.envs.states import from_json, to_json
from fugu.policies.policy import Policy
from fugu.store.checkpoint import Checkpoint, refuses_misfits
from fugu.training.callbacks import Callback, check_metrics, check_settings
from fugu.training.distributed import (
    broadcast,
    count_copies,
    gather_checkpoint,
    hand_out_checkpoint,
    share_of,
)
from fugu.training.inputs import RunInputs
from fugu.vector import Vector, make
from fugu.vector.backends import ClusterReport

SMALL = 1 << 17  # numbers of a layer for a minibatch that one thread computes best
ENVIRONMENTS = 0  # the branch of the seed tree
RECENT = 100  # episodes that a score is the mean of
STOPS = ("SIGINT", "SIGTERM", "SIGUSR1")  # of a terminal, and of schedulers that want the machine
CHANGES, ATTRIBUTES = "changes", "environment_attributes"  # of a checkpoint's state
Report = Mapping[str, float]


class DivergedError(FuguError, ArithmeticError):
    """A loss or a weight is NaN or infinite."""


@dataclass(frozen=True)
class Progress:
    """The state of a run after an update.

    Attributes:
        steps: Agent steps so far, of all ranks.
        steps_per_second: Agent steps per second over the last update.
        phases: Seconds of each phase of the last update.
        losses: Metrics of the last update.
        episodes: Means over the episodes that ended since the update before; empty if none did.
        cluster: Activity of the nodes of a Ray cluster since then; None without one.
    """

    steps: int
    updates: int
    steps_per_second: float
    phases: Report
    losses: Report
    episodes: Report
    cluster: ClusterReport | None = None


@dataclass
class RecentMean:
    """The mean of a metric over about the last hundred episodes.

    `updates` has the number of episodes of each update, and the sum of their values.
    """

    updates: list[tuple[float, float]] = field(default_factory=list)

    @property
    def episodes(self) -> int:
        """Number of episodes that the mean is of."""
        return int(sum(count for count, _ in self.updates))

    @property
    def mean(self) -> float | None:
        """The mean; None before the first episode ended."""
        if not self.updates:
            return None
        return sum(total for _, total in self.updates) / sum(count for count, _ in self.updates)

    def add(self, episodes: float, mean: float) -> None:
        """Add the episodes of an update, and drop older ones that are not needed any more."""
        self.updates.append((episodes, episodes * mean))
        while len(self.updates) > 1 and sum(n for n, _ in self.updates[1:]) >= RECENT:
            del self.updates[0]


class Trainer:
    """Drives the algorithm of one run, and restores it from checkpoints.

    Attributes:
        ranks: The processes that train together, of which this is one.
        vec: The environments; with several ranks, this one's share of them.
        context: What the algorithm was handed.
        steps: Agent steps so far, of all ranks.
        recent: Returns of about the last hundred episodes.
        stopping: Setting it, at any rank, ends `run` after the update under way.
        logged: Metrics of callbacks that are not written yet.
        metric_names: The built-in metrics so far.
    """

    def __init__(self, cfg: Config, inputs: RunInputs | None = None) -> None:
        inputs = inputs or RunInputs()
        keep_freed_memory()
        self.cfg, self.device, self.ranks = cfg, find_device(cfg.device), inputs.ranks
        own = share_of(cfg, inputs)
        self.vec = make_vector(own, inputs)
        agents = self.vec.num_agents
        self._undo = set_threads(threads_for(own, agents), cfg.train.deterministic)
        try:
            self.context = make_context(own, self.vec, self.device, inputs)
            self.algorithm: Algorithm = find_algorithm(own.algo)(self.context)
            self.broadcast_policies()
        except BaseException:
            self.close()
            raise
        self.steps, self.updates, self.stopping = 0, 0, False
        self.inputs, self.stop_reason = inputs, ""
        self.callbacks: tuple[Callback, ...] = ()
        self.logged: dict[str, float] = {}
        self.metric_names: set[str] = set()
        self.recent = RecentMean()
        self._changed: dict[str, list[Any]] = {}  # settings: the first value, and that of now

    @property
    def policies(self) -> list[Policy]:
        """One for each group of agents."""
        return list(self.algorithm.policies)

    @property
    def score(self) -> float | None:
        """Mean return of about the last hundred episodes; None before the first ended."""
        return self.recent.mean

    @property
    def progress(self) -> float:
        """Share of the run that is done, from 0 to 1."""
        total: int = self.cfg.train.total_steps
        return min(1.0, self.steps / total)

    def run(self, after_update: Callable[[Progress], None] = lambda progress: None) -> None:
        """Train to the end, or until `stopping` is set; a new run resets its environments."""
        if not self.updates and not self.steps:
            self.algorithm.start(derive(self.cfg.seed, ENVIRONMENTS))
        while self.steps < self.cfg.train.total_steps and not self.ranks.any(self.stopping):
            after_update(self.update())

    def update(self) -> Progress:
        """Collect the experience of one update and learn from it."""
        self._check({})  # a callback may have modified the weights
        began, steps, progress = time.perf_counter(), self.steps, self.progress
        self.algorithm.collect()
        collected = time.perf_counter()
        reached = int(self.ranks.sum(np.array([self.algorithm.steps], np.float64))[0])
        self.context.steps = reached
        losses = self.algorithm.update(progress)
        self.steps = reached
        self._check(losses)
        self.updates += 1
        ended = time.perf_counter()
        phases = {"collect": collected - began, "learn": ended - collected}
        rates = (self.steps - steps) / max(ended - began, 1e-9)
        losses.setdefault("learning_rate", self.context.learning_rate(progress))
        episodes = self.algorithm.episodes.read(self.ranks)
        if episodes:
            self.recent.add(episodes["episodes"], episodes["episode_return"])
        cluster = self.vec.cluster()
        return Progress(self.steps, self.updates, rates, phases, losses, episodes, cluster)

    # ------------------------------------------------------------------ for callbacks

    def stop(self, reason: str = "") -> None:
        """End the run after the update under way, with a checkpoint and the status "stopped"."""
        self.stopping, self.stop_reason = True, reason

    def log(self, metrics: Mapping[str, float]) -> None:
        """Write metrics of your own with those of the update under way, at the first rank.

        UsageError if a built-in metric has the same name, or a value is not a number.
        """
        self.logged |= check_metrics(metrics, self.metric_names)

    def change(self, **settings: Any) -> None:
        """Change settings of `train` from the next update on, as in `change(clip=0.1)`.

        Checkpoints have the changes. At several ranks, each makes the same ones. UsageError if a
        setting may not change meanwhile, or not to this value.
        """
        train, algorithm = self.cfg.train, self.algorithm
        given = check_settings(train, settings, algorithm.changeable, self.cfg.algo)
        before = to_tree(train)
        self.cfg = replace(self.cfg, train=replace(train, **given))
        own = self.context.config
        self.context.config = replace(own, train=replace(own.train, **given))
        algorithm.change(self.context.config.train)
        for name, value in given.items():
            self._changed.setdefault(name, [before[name], None])[1] = value

    def set_env(self, name: str, value: Any) -> None:
        """Set an attribute of every copy of the environment, through wrappers.

        It stays set when workers restart and when the run resumes. At several ranks, each sets it
        for its own copies. Native environments have no attributes: use `env_kwargs` for those.

        Args:
            name: An attribute that the environments have.
            value: Plain data: numbers, text, arrays, and lists, tuples and dicts of them.
        """
        if self.vec.attributes.get(name) == to_json(value, strict=True):
            return
        if self.algorithm.collector is not None:
            self.algorithm.collector.wait()
        self.vec.keep_attr(name, value)

    def _check(self, losses: Mapping[str, float]) -> None:
        bad = [
            name
            for name, value in losses.items()
            if math.isnan(value) and not name.endswith("explained_variance")
        ]
        for policy in self.policies:
            if not all(map(_is_finite, policy.parameters())):
                bad.append("a weight")
        if self.ranks.any(bool(bad)):
            given = ", ".join(bad) or "a number of another rank"
            raise DivergedError(
                f"training: given {given} that is not a number after {self.steps} steps; "
                "allowed: finite ones. The last checkpoint is from before. Try a lower "
                "train.learning-rate, or look at what the environment rewards."
            )

    # ------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> tuple[Tensors, State]:
        """Return all that resuming exactly needs, tensors and the rest, at the first rank."""
        tensors, state = self.algorithm.state_dict()
        state |= {"steps": self.steps, "own_steps": self.algorithm.steps, "updates": self.updates}
        state |= {CHANGES: self._changed, ATTRIBUTES: self.vec.attributes}
        return gather_checkpoint(self.ranks, tensors, state)

    def load_policies(self, checkpoint: Checkpoint) -> None:
        """Load the policies of a checkpoint, and nothing else of it."""
        for i, policy in enumerate(self.policies):
            given = checkpoint.tensors.get(f"policy_{i}", {})
            own = policy.state_dict()
            fixed = [k for k in own if not k.endswith("_extra_state")]  # a memory has any size
            wrong = [k for k in fixed if k not in given or tuple(given[k].shape) != own[k].shape]
            if wrong or given.keys() != own.keys():
                raise UsageError(
                    f"init-from: given a policy whose {wrong[:3] or 'inputs'} differ from this "
                    "one's; allowed: one of the same environment with the same policy settings."
                )
            policy.load_state_dict(as_tensors(given))

    def broadcast_policies(self) -> None:
        """Let all ranks begin with the policies of the first one."""
        for policy in self.policies:
            broadcast(policy, self.ranks)

    def restore(self, checkpoint: Checkpoint | None) -> Mapping[str, Any]:
        """Load a checkpoint that the first rank has; return its state."""
        with refuses_misfits("this run"):
            own = hand_out_checkpoint(self.ranks, checkpoint)
            self.steps, self.updates = int(own.state["steps"]), int(own.state["updates"])
            seed = derive(self.cfg.seed, ENVIRONMENTS, self.updates)
            steps, self.context.steps = own.state.get("own_steps", self.steps), self.steps
            state = {**own.state, "steps": steps, "reset_seed": seed}
            given = to_tree(self.cfg.train)
            for name, (first, value) in own.state.get(CHANGES, {}).items():
                if given.get(name) == first:  # else resumed with another
                    self.change(**{name: value})
            for name, text in own.state.get(ATTRIBUTES, {}).items():
                self.set_env(name, from_json(text))
            self.algorithm.load_state_dict(own.tensors, state)
        return own.state

    def close(self) -> None:
        """End the environments; torch's settings are then as they were."""
        self.vec.close()
        self._undo()


OPPONENTS = "fugu.league.self_play:SelfPlay"  # a layer above, imported for runs in a league


def make_context(
    cfg: Config, vector: Vector, device: torch.device, inputs: RunInputs
) -> RunContext:
    """Return what the algorithm of a run is handed."""
    check_spaces(vector.groups)
    algorithm = find_algorithm(cfg.algo)
    if inputs.loss is not None and not algorithm.supports_loss:
        raise UsageError(f"loss: algo {cfg.algo!r} takes no loss function; use algo 'ppo'.")
    opponents = None
    if cfg.league.enabled:
        if not algorithm.supports_leagues:
            names = [name for name in algorithm_names() if find_algorithm(name).supports_leagues]
            raise UsageError(
                f"algo: given {cfg.algo!r} in a league; allowed: {', '.join(names)}, whose "
                "learners need nothing of what other agents do."
            )
        opponents = import_object(OPPONENTS, "league")
    factory = inputs.factory(cfg.policy)
    return RunContext(cfg, vector, device, factory, inputs.ranks, inputs.loss, opponents)


def check_spaces(groups: Sequence[AgentGroup]) -> None:
    """Raise `UsageError` if the observations or the actions of a group hold no number at all."""
    for group in groups:
        spaces = {"observation": group.observation_layout, "action": group.action_layout}
        for name, layout in spaces.items():
            if not layout.size:
                remedy = "Show a constant instead" if name == "observation" else "Add an action"
                raise UsageError(
                    f"{name} space of {group.name!r}: given {layout.space}, which holds no number; "
                    f"allowed: spaces with one number or more. {remedy}, such as "
                    f"{'Box(0, 1, (1,))' if name == 'observation' else 'Discrete(1)'}."
                )


def threads_for(cfg: Config, agents: int) -> int:
    """Return the threads for torch: as asked for; else 1 for small minibatches, or 0 for all.

    Threads of a small product wait for each other longer than they compute, and where environments
    step in processes meanwhile they wait for a core as well.
    """
    asked: int = cfg.train.threads
    steps: int = cfg.train.minibatch_steps(agents)
    if asked or not steps:
        return asked
    return 1 if steps * cfg.policy.hidden_size < SMALL else 0


def set_threads(threads: int, deterministic: bool) -> Callable[[], None]:
    """Set torch's threads (0: as they are) and determinism; return a function that undoes it."""
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    if threads:
        torch.set_num_threads(threads)
    if deterministic:
        torch.use_deterministic_algorithms(True)

    def undo() -> None:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])

    return undo


def _is_finite(weight: torch.Tensor) -> bool:
    """Return whether all numbers of a weight are finite, which a finite sum tells at once.

    >>> _is_finite(torch.full((2,), 3e38)), _is_finite(torch.tensor([1.0, math.nan]))
    (True, False)
    """
    return math.isfinite(weight.detach().sum()) or bool(torch.isfinite(weight).all())


def find_device(name: str) -> torch.device:
    """Return the device of that name; UsageError if it is not there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"device: given {name!r}, which cannot be used here ({reason}); allowed: cpu, or cuda "
            "or mps where fugu doctor shows it."
        ) from None
    return device


def make_vector(cfg: Config, inputs: RunInputs) -> Vector:
    """Make the environments of a run, or those of a rank."""
    if not cfg.env:
        raise UsageError("env: given nothing; allowed: any name that fugu.make takes.")
    given = to_tree(cfg.vec)
    names = {each.name for each in fields(VecConfig)} - {"num_envs", "check_finite"}
    return make(
        inputs.env_of(cfg.env),
        count_copies(cfg, inputs),
        ordered=cfg.train.deterministic,
        resumable=True,
        **{name: given[name] for name in names},
        **cfg.env_options,
    )


def stops_on_signals(trainer: Trainer) -> contextlib.AbstractContextManager[list[int]]:
    """Let Ctrl-C, SIGTERM and SIGUSR1 stop a trainer after its update, a second one at once.

    Of several ranks none stops at once: their launcher forwards signals, so that one may come
    twice. Yields a list of the signals that came.
    """

    def stop() -> None:
        trainer.stopping = True

    return catching_signals(STOPS, stop, again=trainer.ranks.size > 1)


@contextlib.contextmanager
def catching_signals(
    names: Sequence[str], stop: Callable[[], None] = lambda: None, *, again: bool = False
) -> Iterator[list[int]]:
    """Call `stop` for signals, the first of each only unless `again`; yield those that came."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before: dict[int, Any] = {}

    def handle(number: int, _frame: FrameType | None) -> None:
        stop()
        came.append(number)
        if not again:
            signal.signal(number, before[number])

    for ending in (getattr(signal, name) for name in names if hasattr(signal, name)):
        before[ending] = signal.signal(ending, handle)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
