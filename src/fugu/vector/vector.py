"""Vector: many copies of an environment, stepped by a crew of workers.

The class is the whole contract of a vector and so stays in one piece; what its methods are made of
is in `commands`, `gathering`, `overseer` and `snapshots`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup, Info
from fugu.envs.native_env import check_actions
from fugu.envs.states import to_json
from fugu.spaces import Layout
from fugu.vector.actions import ActionWriter
from fugu.vector.batch import Batch
from fugu.vector.batch_crew import BatchExchange
from fugu.vector.commands import Commander, Options, ResetSeeds, Seeds
from fugu.vector.crews import Crew
from fugu.vector.faults import WorkerError
from fugu.vector.gathering import Gatherer, Span, span_of, whole_envs
from fugu.vector.native_crew import NativeCrew
from fugu.vector.overseer import Overseer
from fugu.vector.slab import Slab
from fugu.vector.snapshots import (
    AskedStates,
    PoolStates,
    States,
    in_one_go,
    load_rows,
    rows_for,
    save_rows,
)
from fugu.vector.worker import NATIVE

if TYPE_CHECKING:
    from fugu._native import Exchange
    from fugu.vector.configurations import Tuning
    from fugu.vector.ray_report import ClusterReport

if native.available:
    from fugu._native import Pool


@dataclass(frozen=True)
class VectorSettings:
    """How a vector behaves; `fugu.make` documents each."""

    batch_size: int
    group_size: int = 1
    ordered: bool = False
    seed: int | None = None
    step_timeout: float = 60.0
    max_restarts: int = 10
    poison: bool = False
    start_timeout: float = 120.0


class Vector(Closing):
    """Many copies of one environment.

    `send` and `recv` are the primitives: `recv` gives the rows of the first `batch_size`
    environments that are ready, `send` hands their agents' actions back. `reset` and `step` are
    built on them and follow Gymnasium's vector API.

    Attributes:
        groups: The agents of one copy, by their spaces.
        num_envs: Copies.
        num_workers: Workers that step them.
        batch_size: Environments in a batch.
        backend: "serial", "threads", "process", "native", "batch" or "ray".
        faults: The last faults of workers, newest last.
        tuning: What `num_workers="auto"` found.
        why_stateless: Why `state` and `snapshot` do not work, in one sentence; None if they do.
        attributes: What `keep_attr` has set, as JSON, which environments made later get too.
    """

    tuning: Tuning | None = None
    why_stateless: str | None = None

    def __init__(
        self, slab: Slab, exchange: Exchange | Pool, crew: Crew, cfg: VectorSettings, backend: str
    ) -> None:
        self.groups: tuple[AgentGroup, ...] = slab.groups
        self.num_envs, self.batch_size, self.backend = slab.num_envs, cfg.batch_size, backend
        self.num_workers = len(crew.channels)
        self._slab, self._exchange, self._crew, self._cfg = slab, exchange, crew, cfg
        self.attributes: dict[str, str] = {}
        self._gatherer = Gatherer(slab, cfg.batch_size, cfg.poison)
        self._writers = [
            ActionWriter(group, rows) for group, rows in zip(slab.groups, slab.rows, strict=True)
        ]
        # It does nothing in a fork of this process, whose workers these are not.
        self._closer = Finalize(self, _close, (exchange, crew), exitpriority=10)
        self._overseer = Overseer(
            slab,
            exchange,
            crew,
            cfg.step_timeout,
            cfg.start_timeout,
            cfg.max_restarts,
            self._closer,
            starting=backend == "process",
        )
        self._commander = Commander(exchange, crew, self._overseer, self._gatherer.renew)
        self._seeds = ResetSeeds(slab.num_envs, cfg.group_size, cfg.seed)
        self.faults = self._overseer.faults
        self._held, self._due = self._overseer.held, self._overseer.due
        self._ids = np.zeros(slab.num_envs, np.int64)
        self._all = np.arange(slab.num_envs)
        self._last: Batch | None = None
        self._last_span: Span = slice(0, 0)
        self._block = 0  # of ordered batches, the one that comes next

    # ------------------------------------------------------------------ what it is

    @property
    def num_agents(self) -> int:
        """Agents of all copies together."""
        return self.num_envs * sum(group.num_agents for group in self.groups)

    @property
    def observation_layout(self) -> Layout:
        """Of the only group; environments with several have one for each."""
        return self._only_group().observation_layout

    @property
    def action_layout(self) -> Layout:
        """Of the only group; environments with several have one for each."""
        return self._only_group().action_layout

    @property
    def seed(self) -> int | None:
        """The root of all seeds, if one is known yet."""
        return self._seeds.root

    # ------------------------------------------------------------------ send and recv

    def async_reset(self, seed: Seeds = None, options: Options = None) -> None:
        """Begin every environment anew; `recv` gives their first observations.

        Args:
            seed: The root of all seeds (a copy's own derives from it and its number), or one for
                each copy. None: other episodes than before, from the root that is known (the one
                given to `fugu.make`, if none was since), else from a fresh one.
            options: Reset options of every copy, or a list of those of each.
        """
        self._check_open()
        self._drain()
        self._block, self._last = 0, None
        self._commander.reset(self._all, self._seeds.next(seed), options)
        self._held[:], self._due[:] = False, True

    def recv(self, *, rest: bool = False) -> Batch:
        """The first `batch_size` environments that are ready, as views of their rows.

        Args:
            rest: Take fewer, if no more are under way.
        """
        self._check_open()
        begin, end = self._range()
        due = int(np.count_nonzero(self._due[begin:end]))
        size = min(self.batch_size, due) if rest and due else self.batch_size
        if due < size:
            raise UsageError(
                f"recv: given {due} environments under way; allowed: at least {self.batch_size}, "
                "the batch_size. Call reset or async_reset first, then send for every recv."
            )
        self._overseer.wait(begin, end, size)
        self._block += 1
        if self.batch_size == self.num_envs and isinstance(self._exchange, Pool):
            self._exchange.take_all()
            return self._give(self._all)
        count = self._exchange.take(begin, end, size, self._ids)
        return self._give(self._all if count == self.num_envs else self._ids[:count].copy())

    def send(self, actions: Any, agent_ids: Any = None) -> None:
        """Hand the actions of whole environments over; they step while you go on.

        Args:
            actions: Flat rows of the action layout, one an agent, of any width of number; with
                several groups, a tuple of them.
            agent_ids: Whose they are, as batches have them; those of the last batch if not given.
        """
        self._check_open()
        env_ids, envs = self._env_ids(agent_ids)
        parts = (actions,) if len(self.groups) == 1 else actions
        if len(parts) != len(self.groups):
            raise UsageError(
                f"send: given actions for {len(parts)} groups; allowed: {len(self.groups)}, one "
                f"array for each of {[group.name for group in self.groups]}."
            )
        flat = [w.fit(part, len(env_ids)) for w, part in zip(self._writers, parts, strict=True)]
        if isinstance(self._exchange, Pool):
            for i, rows in enumerate(flat):
                check_actions(self._exchange, i, self.groups[i].action_layout, rows)
        elif isinstance(self._exchange, BatchExchange):
            self._exchange.check(flat[0])
        for writer, rows in zip(self._writers, flat, strict=True):
            writer.write(rows, envs)
        self._gatherer.release(envs)
        self._held[envs], self._due[envs] = False, True
        self._last = None
        if self._overseer.lost:
            self._overseer.lost.difference_update(env_ids.tolist())
        if env_ids is self._all and isinstance(self._exchange, Pool):
            self._exchange.post_all()
        else:
            self._exchange.post(env_ids)

    @contextlib.contextmanager
    def lend(self) -> Iterator[Pool]:
        """All copies of a native backend, received, to step natively.

        The borrower leaves the next actions in place: afterwards the copies step as after `send`.
        """
        self._check_open()
        if not isinstance(self._exchange, Pool) or not self._held.all():
            raise UsageError(
                f"lend: given backend {self.backend!r} with {int(self._held.sum())} environments "
                f"received; allowed: 'native', and all {self.num_envs}."
            )
        self._gatherer.release(slice(0, self.num_envs))
        yield self._exchange
        self._held[:], self._due[:] = False, True
        self._last = None
        self._exchange.post_all()

    # ------------------------------------------------------------------ reset and step

    def reset(
        self, seed: Seeds = None, options: Options = None
    ) -> tuple[Any, Mapping[int, tuple[Info, ...]]]:
        """Begin anew and wait for all: `(observations, infos)`."""
        self._check_synchronous("reset")
        self.async_reset(seed, options)
        batch = self.recv()
        return self._observations(batch), batch.infos

    def reset_some(
        self, mask: NDArray[np.bool_], seed: Seeds = None, options: Options = None
    ) -> Batch:
        """Begin some environments anew and wait for them, while the others stay as they are.

        Args:
            mask: Which of them, one flag for each; all must have been received.
            seed: As of `reset`, for all of them; the seeds of the others are not used.
            options: As of `reset`.

        Returns:
            The rows of all; its infos are of those that began anew.
        """
        self._check_open()
        self._check_synchronous("reset_some")
        if not self._held.all():
            raise UsageError("reset_some: given before every environment was received; reset all.")
        if isinstance(self._exchange, BatchExchange) and not np.all(mask):
            raise UsageError(
                "reset_some: given some of the copies that step at once; allowed: all of them."
            )
        env_ids = np.flatnonzero(mask)
        self._gatherer.release(env_ids)
        self._commander.reset(env_ids, self._seeds.next(seed), options)
        self._overseer.wait(0, self.num_envs, len(env_ids))
        self._exchange.take(0, self.num_envs, len(env_ids), self._ids)
        return self._give(self._all)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Mapping[int, tuple[Info, ...]]]:
        """Step all: `(observations, rewards, terminations, truncations, infos)`."""
        self._check_synchronous("step")
        self.send(actions)
        batch = self.recv()
        names = ("rewards", "terminations", "truncations")
        columns = [[getattr(group.rows, name) for group in batch.groups] for name in names]
        flat = [column[0] if len(column) == 1 else tuple(column) for column in columns]
        return self._observations(batch), flat[0], flat[1], flat[2], batch.infos

    # ------------------------------------------------------------------ the environments themselves

    def call(self, name: str, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Call a method of every environment (or get an attribute): what each said."""
        return self.ask(f"call {name}", arguments=arguments, named=named)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every environment."""
        return self.ask(f"get {name}")

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment, to one value or to one for each in a list."""
        if isinstance(values, list | tuple):
            if len(values) != self.num_envs:
                raise UsageError(
                    f"set_attr: given {len(values)} values; allowed: {self.num_envs}, or one."
                )
        else:
            values = [values] * self.num_envs
        self.ask(f"set {name}", values)

    def keep_attr(self, name: str, value: Any) -> None:
        """Set an attribute of every environment, now and whenever a worker restarts.

        The first of an environment and those that it wraps that has the attribute gets the value.

        Args:
            name: An attribute that environments have; those stepped in native code have none.
            value: Plain data: numbers, text, arrays, and lists, tuples and dicts of them.
        """
        if isinstance(self._exchange, Pool | BatchExchange):
            raise UsageError(NATIVE)
        text, before = to_json(value, strict=True), dict(self.attributes)
        self.attributes[name] = text  # before workers know, since one may restart meanwhile
        try:
            in_one_go(self.ask)(f"assign {name}", [text] * self.num_envs)
        except WorkerError as error:
            self.attributes.clear()
            self.attributes.update(before)
            _, found, why = str(error).rpartition("fugu.core.errors.UsageError: ")
            if found:
                raise UsageError(why.strip()) from None
            raise

    def render(self) -> tuple[Any, ...]:
        """What every environment renders, in the render mode it was made with."""
        return self.ask("render ")

    def apply(
        self, function: Callable[..., Any], *arguments: Any, env_ids: Sequence[int] | None = None
    ) -> tuple[Any, ...]:
        """What `function(env, *arguments)` says of each environment, itself an `Env`.

        Args:
            function: Something that workers can import by its name.
            arguments: What else it gets.
            env_ids: Of which environments; all if not given.
        """
        return self.ask("apply ", [function] * self.num_envs, arguments, env_ids=env_ids)

    def ask(
        self,
        name: str,
        values: Sequence[Any] | None = None,
        arguments: tuple[Any, ...] = (),
        named: Mapping[str, Any] | None = None,
        env_ids: Sequence[int] | None = None,
    ) -> tuple[Any, ...]:
        """Have environments do something and wait for their replies: what calls are made of.

        Args:
            name: "call", "get", "set", "render" or "apply", a space, and the attribute's name.
            values: What "set" sets and "apply" applies, one for every environment there is.
            arguments: Of "call" and "apply".
            named: Of "call".
            env_ids: Which environments, each once; all if not given.
        """
        self._check_open()
        if self._due.any():
            raise UsageError(
                f"{name}: given while {int(self._due.sum())} environments are under way; recv all "
                "of them first."
            )
        asked = range(self.num_envs) if env_ids is None else env_ids
        return self._commander.ask(name, list(asked), values, arguments, named or {})

    @property
    def under_way(self) -> int:
        """Environments that were sent and not received since."""
        return int(self._due.sum())

    @property
    def ready(self) -> int:
        """Environments of those under way that wait to be received."""
        return self._exchange.wait_ready(0, self.num_envs, 0, self._exchange.faults(), 0.0)

    def cluster(self) -> ClusterReport | None:
        """What the nodes of Ray's cluster did since this was asked last; None without Ray."""
        report: Callable[[], ClusterReport] | None = getattr(self._crew, "report", None)
        return None if report is None else report()

    @property
    def all_act(self) -> bool:
        """Whether these are native environments whose agents all act in every step."""
        return isinstance(self._exchange, Pool) and self._exchange.all_act

    # ------------------------------------------------------------------ states

    @property
    def has_states(self) -> bool:
        """Whether `state`, and so `snapshot`, works here; `why_stateless` tells why not."""
        return self.why_stateless is None

    def state(self) -> NDArray[np.uint8]:
        """The states of all environments, `[num_envs, bytes]`, for `set_state`.

        Native environments have one, those that implement `Env.state`, and with `resumable=True`
        nearly all others.
        """
        self._check_all_received("state")
        return self._states("state").rows()

    def set_state(
        self, states: NDArray[np.uint8], env_ids: Sequence[int] | NDArray[np.int64] | None = None
    ) -> Batch:
        """Put environments into states that `state` gave; the rows of all environments then.

        Args:
            states: One row for each environment, or a single one for all of them.
            env_ids: Which; all if not given.
        """
        self._check_all_received("set_state")
        ids = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, np.int64)
        rows = rows_for(len(ids), states)
        self._states("set_state").set_rows(ids, rows)
        self._last = None
        return self._give(self._all)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Everything of all environments, all of which were received: states, rows, infos.

        One that fails meanwhile begins a new episode, which is then in the snapshot and, in place
        of what it said before, in the batch that has it.
        """
        self._check_all_received("snapshot")
        return {**self._states("snapshot").save(), **save_rows(self._slab)}

    def restore(
        self, snapshot: Mapping[str, NDArray[Any]], order: NDArray[np.int64]
    ) -> list[Batch]:
        """Go back to a snapshot; the batches that were received then, by environments in order.

        An environment whose episode goes otherwise when it is played again begins a new one: its
        rows come with `valid` 0, as after any fault, and `faults` tells of it.
        """
        self._check_open()
        if self._due.any():
            raise UsageError(
                f"restore: given while {self.under_way} environments are under way; recv all of "
                "them first."
            )
        infos, failed = self._states("restore").load(snapshot)
        self._overseer.infos = infos
        load_rows(self._slab, snapshot, failed)
        for env, why in failed.items():
            self._overseer.report_other_replay(env, why)
        if self._cfg.ordered:
            self._block = int(order[0]) // self.batch_size
        parts = np.split(order, range(self.batch_size, len(order), self.batch_size))
        return [self._give(self._all if len(part) == self.num_envs else part) for part in parts]

    def _states(self, name: str) -> States:
        if self.why_stateless is not None:
            raise UsageError(
                f"{name}: given environments without states ({self.why_stateless}) allowed: "
                "those that has_states tells of."
            )
        if isinstance(self._exchange, Pool):
            assert isinstance(self._crew, NativeCrew)
            return PoolStates(self._exchange, self._crew, self.num_envs)
        return AskedStates(self.ask, self.num_envs, self._cfg.step_timeout)

    def close(self) -> None:
        """End all workers. Calling it again does nothing."""
        self._closer()

    def __repr__(self) -> str:
        agents = ", ".join(f"{group.num_agents} {group.name}" for group in self.groups)
        return (
            f"Vector({self.num_envs} environments of {agents}; {self.num_workers} workers, "
            f"{self.backend}; batches of {self.batch_size})"
        )

    # ------------------------------------------------------------------ batches

    def _give(self, env_ids: NDArray[np.int64]) -> Batch:
        """The batch of these environments, all of which are ready."""
        envs = span_of(env_ids)
        self._held[envs], self._due[envs] = True, False
        self._overseer.read_mail()
        infos: Mapping[int, tuple[Info, ...]] = {}
        if isinstance(self._crew, NativeCrew):
            infos = self._crew.infos(env_ids)
        elif self._overseer.infos:
            infos = {
                e: self._overseer.infos.pop(e)
                for e in env_ids.tolist()
                if e in self._overseer.infos
            }
        self._last = Batch(env_ids, self._gatherer.rows(envs), infos)
        self._last_span = envs
        return self._last

    def _drain(self) -> None:
        """Wait for whatever is under way and forget it."""
        under_way = int(self._due.sum())
        if under_way:
            self._overseer.wait(0, self.num_envs, under_way)
            self._exchange.take(0, self.num_envs, self.num_envs, self._ids)
        self._overseer.read_mail()
        self._overseer.infos.clear()
        self._gatherer.release(np.flatnonzero(self._held))

    # ------------------------------------------------------------------ checks

    def _range(self) -> tuple[int, int]:
        if not self._cfg.ordered:
            return 0, self.num_envs
        first = self._block * self.batch_size % self.num_envs
        return first, first + self.batch_size

    def _env_ids(self, agent_ids: Any) -> tuple[NDArray[np.int64], Span]:
        """The environments that agent ids name, all of whose agents must be among them."""
        if agent_ids is None:
            if self._last is None:
                raise UsageError("send: given no agent_ids and no batch since the last send.")
            return self._last.env_ids, self._last_span
        if self._last is not None and agent_ids is self._last.groups[0].agent_ids:
            return self._last.env_ids, self._last_span
        first = agent_ids if len(self.groups) == 1 else agent_ids[0]
        return whole_envs(first, self.groups[0].num_agents, self._held)

    def _observations(self, batch: Batch) -> Any:
        found = tuple(group.rows.observations for group in batch.groups)
        return found[0] if len(found) == 1 else found

    def _check_synchronous(self, name: str) -> None:
        if self.batch_size != self.num_envs:
            raise UsageError(
                f"{name}: given batches of {self.batch_size} of {self.num_envs} environments; "
                "allowed: all of them. Use send and recv."
            )

    def _check_all_received(self, name: str) -> None:
        self._check_open()
        if not self._held.all():
            raise UsageError(
                f"{name}: given while {int((~self._held).sum())} environments are not received; "
                "reset, or recv all of them first."
            )

    def _check_open(self) -> None:
        if not self._closer.still_active():
            raise UsageError("given a vector that is closed; make a new one.")

    def _only_group(self) -> AgentGroup:
        if len(self.groups) == 1:
            return self.groups[0]
        names = [group.name for group in self.groups]
        raise UsageError(
            f"given a vector with {len(names)} groups of agents, {names}; allowed: one. "
            "Take the layout of one group: vec.groups[i].observation_layout."
        )


def _close(exchange: Exchange | Pool, crew: Crew) -> None:
    exchange.close()
    crew.close()
