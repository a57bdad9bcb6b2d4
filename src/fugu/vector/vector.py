"""Vector: many copies of an environment, stepped by a backend of workers.

The class is the whole contract of a vector and so stays in one piece.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.closing import Closing
from fugu.core.errors import ActionError, PackError, UsageError
from fugu.envs.contract import AgentGroup, Info
from fugu.envs.states import to_json
from fugu.spaces import Layout
from fugu.vector.backends import ClusterReport, WorkerBackend, WorkerError
from fugu.vector.batching import Batch, Batcher, Span, rows_of, span_of, whole_envs
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.snapshots import AskedStates, in_one_go, load_rows, rows_for, save_rows
from fugu.vector.supervisor import Options, ResetSeeds, Seeds, Supervisor
from fugu.vector.worker import NATIVE

if TYPE_CHECKING:
    from fugu._native import Pool
    from fugu.vector.backends.native import PoolStates
    from fugu.vector.tuner import Tuning

CLOSED = "given a vector that is closed; make a new one."


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

    `send` and `recv` are the primitives: `recv` returns the rows of the first `batch_size`
    environments that are ready, `send` takes the actions of their agents. `reset` and `step` are
    built on them and follow Gymnasium's vector API.

    Attributes:
        groups: The agents of one copy, by their spaces.
        num_envs: The number of copies.
        num_workers: The number of workers that step them.
        batch_size: Environments in a batch.
        backend: "serial", "threads", "process", "native", "batch" or "ray".
        faults: The last faults of workers, newest last.
        tuning: The measurements of `num_workers="auto"`.
        why_stateless: Why `state` and `snapshot` do not work, in one sentence; None if they do.
        attributes: Attributes set by `keep_attr`, as JSON; environments made later get them too.
    """

    tuning: Tuning | None = None
    why_stateless: str | None = None

    def __init__(self, buffers: SharedBuffers, backend: WorkerBackend, cfg: VectorSettings) -> None:
        self.groups: tuple[AgentGroup, ...] = buffers.groups
        self.num_envs, self.batch_size = buffers.num_envs, cfg.batch_size
        self.backend, self.num_workers = backend.name, backend.num_workers
        self._buffers, self._backend, self._queue, self._cfg = buffers, backend, backend.queue, cfg
        self.attributes: dict[str, str] = {}
        self._batcher = Batcher(buffers, cfg.batch_size, cfg.poison)
        # It does nothing in a fork of this process, whose workers these are not.
        self._closer = Finalize(self, _close, (backend,), exitpriority=10)
        limits = cfg.step_timeout, cfg.start_timeout, cfg.max_restarts
        self._supervisor = Supervisor(buffers, backend, limits, self._closer, self._batcher.renew)
        self._seeds = ResetSeeds(buffers.num_envs, cfg.group_size, cfg.seed)
        self.faults = self._supervisor.faults
        self._held, self._due = self._supervisor.held, self._supervisor.due
        self._ids = np.zeros(buffers.num_envs, np.int64)
        self._all, self._all_span = np.arange(buffers.num_envs), slice(0, buffers.num_envs)
        self._last: Batch | None = None
        self._last_span: Span = self._all_span
        self._block = 0  # the number of the next batch, if they are ordered

    # ------------------------------------------------------------------ what it is

    @property
    def num_agents(self) -> int:
        """Agents of all copies together."""
        return self.num_envs * sum(group.num_agents for group in self.groups)

    @property
    def observation_layout(self) -> Layout:
        """The layout of the only group; environments with several have one for each."""
        return self._only_group().observation_layout

    @property
    def action_layout(self) -> Layout:
        """The layout of the only group; environments with several have one for each."""
        return self._only_group().action_layout

    @property
    def seed(self) -> int | None:
        """The root of all seeds, if one is known yet."""
        return self._seeds.root

    # ------------------------------------------------------------------ send and recv

    def async_reset(self, seed: Seeds = None, options: Options = None) -> None:
        """Reset every environment; `recv` returns their first observations.

        Args:
            seed: The root of all seeds (a copy's own derives from it and its number), or one for
                each copy. None: other episodes than before, from the root that is known (the one
                given to `fugu.make`, if none was since), else from a fresh one.
            options: Reset options of every copy, or a list of those of each.
        """
        self._check_open()
        under_way = self.under_way
        if under_way:  # wait for it, and forget it
            self._supervisor.wait(0, self.num_envs, under_way)
            self._queue.take(0, self.num_envs, self.num_envs, self._ids)
        self._supervisor.receive()
        self._supervisor.infos.clear()
        self._batcher.release(np.flatnonzero(self._held))
        self._block, self._last = 0, None
        self._supervisor.reset(self._all, self._seeds.next(seed), options)
        self._held[:], self._due[:] = False, True

    def recv(self, *, rest: bool = False) -> Batch:
        """Return the first `batch_size` environments that are ready, as views of their rows.

        Args:
            rest: Take fewer, if no more are under way.
        """
        if not self._closer.still_active():
            raise UsageError(CLOSED)
        begin, end, size = 0, self.num_envs, self.batch_size
        if self._cfg.ordered:
            begin = self._block * size % self.num_envs
            end = begin + size
        due = int(np.count_nonzero(self._due[begin:end]))
        if due < size:
            if not (rest and due):
                raise UsageError(
                    f"recv: given {due} environments under way; allowed: at least {size}, the "
                    "batch_size. Call reset or async_reset first, then send for every recv."
                )
            size = due
        self._supervisor.wait(begin, end, size)
        self._block += 1
        if size == self.num_envs:
            self._backend.take_all()
            return self._batch(self._all, self._all_span)
        env_ids = self._ids[: self._queue.take(begin, end, size, self._ids)].copy()
        return self._batch(env_ids, span_of(env_ids))

    def send(self, actions: Any, agent_ids: Any = None) -> None:
        """Hand over the actions of whole environments, which step while the caller goes on.

        Args:
            actions: Flat rows of the action layout, one for each agent, of any width of number;
                with several groups, a tuple of them.
            agent_ids: Whose actions they are, as batches have them; by default the last batch's.
        """
        if not self._closer.still_active():
            raise UsageError(CLOSED)
        last = self._last
        if last is not None and (agent_ids is None or agent_ids is last.groups[0].agent_ids):
            env_ids, envs = last.env_ids, self._last_span
        elif agent_ids is None:
            raise UsageError("send: given no agent_ids and no batch since the last send.")
        else:
            first = agent_ids if len(self.groups) == 1 else agent_ids[0]
            env_ids, envs = whole_envs(first, self.groups[0].num_agents, self._held)
        parts = (actions,) if len(self.groups) == 1 else actions
        if len(parts) != len(self.groups):
            raise UsageError(
                f"send: given actions for {len(parts)} groups; allowed: {len(self.groups)}, one "
                f"array for each of {[group.name for group in self.groups]}."
            )
        count = len(env_ids)
        try:  # whether they are values of the space is seen where they are unpacked, by workers
            flat = [
                group.action_layout.fit_rows(part, count * group.num_agents)
                for group, part in zip(self.groups, parts, strict=True)
            ]
        except PackError as error:
            raise ActionError(error.path, error.given, error.allowed, error.advice) from None
        self._backend.check_actions(flat)
        for group, buffers, rows in zip(self.groups, self._buffers.rows, flat, strict=True):
            agents = group.num_agents
            if isinstance(envs, slice):
                buffers.actions[envs.start * agents : envs.stop * agents] = rows
            else:
                buffers.actions[rows_of(envs, agents)] = rows
        self._batcher.release(envs)
        self._held[envs], self._due[envs] = False, True
        self._last = None
        if self._supervisor.lost:
            self._supervisor.lost.difference_update(env_ids.tolist())
        if env_ids is self._all:
            self._backend.post_all()
        else:
            self._queue.post(env_ids)

    @contextlib.contextmanager
    def step_natively(self) -> Iterator[Pool]:
        """Lend the native pool, all copies received, to a block that steps them.

        The block leaves the next actions in place: afterwards the copies step as after `send`.
        """
        self._check_open()
        pool = self._backend.pool
        if pool is None or not self._held.all():
            raise UsageError(
                f"step_natively: given backend {self.backend!r} with {int(self._held.sum())} "
                f"environments received; allowed: 'native', and all {self.num_envs}."
            )
        self._batcher.release(self._all_span)
        yield pool
        self._held[:], self._due[:] = False, True
        self._last = None
        self._backend.post_all()

    # ------------------------------------------------------------------ reset and step

    def reset(
        self, seed: Seeds = None, options: Options = None
    ) -> tuple[Any, Mapping[int, tuple[Info, ...]]]:
        """Reset all environments and wait for them: `(observations, infos)`."""
        self._check_synchronous("reset")
        self.async_reset(seed, options)
        batch = self.recv()
        return self._observations(batch), batch.infos

    def reset_some(
        self, mask: NDArray[np.bool_], seed: Seeds = None, options: Options = None
    ) -> Batch:
        """Reset some environments and wait for them, while the others stay as they are.

        Args:
            mask: Which of them, one flag for each; all must have been received.
            seed: As of `reset`, for all of them; the seeds of the others are not used.
            options: As of `reset`.

        Returns:
            The rows of all; the infos are of those that were reset.
        """
        self._check_open()
        self._check_synchronous("reset_some")
        if not self._held.all():
            raise UsageError("reset_some: given before every environment was received; reset all.")
        if not (self._backend.resets_some or np.all(mask)):
            raise UsageError(
                "reset_some: given some of the copies that step at once; allowed: all of them."
            )
        env_ids = np.flatnonzero(mask)
        self._batcher.release(env_ids)
        self._supervisor.reset(env_ids, self._seeds.next(seed), options)
        self._supervisor.wait(0, self.num_envs, len(env_ids))
        self._queue.take(0, self.num_envs, len(env_ids), self._ids)
        return self._batch(self._all, self._all_span)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Mapping[int, tuple[Info, ...]]]:
        """Step all environments: `(observations, rewards, terminations, truncations, infos)`."""
        self._check_synchronous("step")
        self.send(actions)
        batch = self.recv()
        names = ("rewards", "terminations", "truncations")
        columns = [[getattr(group.rows, name) for group in batch.groups] for name in names]
        flat = [column[0] if len(column) == 1 else tuple(column) for column in columns]
        return self._observations(batch), flat[0], flat[1], flat[2], batch.infos

    # ------------------------------------------------------------------ the environments themselves

    def call(self, name: str, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Call a method of every environment (or get an attribute) and return the results."""
        return self.ask(f"call {name}", arguments=arguments, named=named)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment."""
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
        if not self._backend.sets_attributes:
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
        """Return what every environment renders, in the render mode it was made with."""
        return self.ask("render ")

    def apply(
        self, function: Callable[..., Any], *arguments: Any, env_ids: Sequence[int] | None = None
    ) -> tuple[Any, ...]:
        """Return `function(env, *arguments)` of each environment, itself an `Env`.

        Args:
            function: A function that workers can import by its name.
            arguments: Its other arguments.
            env_ids: The environments; all if not given.
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
        """Have environments do something and return their replies; other calls are made of it.

        Args:
            name: "call", "get", "set", "render" or "apply", a space, and the attribute's name.
            values: What "set" sets and "apply" applies, one for every environment there is.
            arguments: Positional arguments for "call" and "apply".
            named: Keyword arguments for "call".
            env_ids: The environments, each once; all if not given.
        """
        self._check_open()
        self._check_none_under_way(name)
        asked = range(self.num_envs) if env_ids is None else env_ids
        return self._supervisor.call(name, list(asked), values, arguments, named or {})

    @property
    def under_way(self) -> int:
        """The number of environments that were sent and not received since."""
        return int(self._due.sum())

    @property
    def ready(self) -> int:
        """The number of environments under way that wait to be received."""
        return self._queue.wait_ready(0, self.num_envs, 0, self._queue.faults(), 0.0)

    def cluster(self) -> ClusterReport | None:
        """Return what the nodes of Ray's cluster did since the last call; None without Ray."""
        return self._backend.report()

    @property
    def all_act(self) -> bool:
        """Whether these are native environments whose agents all act in every step."""
        return self._backend.all_act

    # ------------------------------------------------------------------ states

    @property
    def has_states(self) -> bool:
        """Whether `state`, and so `snapshot`, works here; `why_stateless` has the reason."""
        return self.why_stateless is None

    def state(self) -> NDArray[np.uint8]:
        """Return the states of all environments, `[num_envs, bytes]`, for `set_state`.

        Native environments have one, those that implement `Env.state`, and with `resumable=True`
        nearly all others.
        """
        self._check_all_received("state")
        return self._states("state").rows()

    def set_state(
        self, states: NDArray[np.uint8], env_ids: Sequence[int] | NDArray[np.int64] | None = None
    ) -> Batch:
        """Put environments into states that `state` returned; return the rows of all of them.

        Args:
            states: One row for each environment, or a single one for all of them.
            env_ids: The environments; all if not given.
        """
        self._check_all_received("set_state")
        ids = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, np.int64)
        rows = rows_for(len(ids), states)
        self._states("set_state").set_rows(ids, rows)
        return self._batch(self._all, self._all_span)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return states, rows and infos of all environments, all of which were received.

        One that fails meanwhile begins a new episode, which is then in the snapshot and also in the
        batch that has the environment.
        """
        self._check_all_received("snapshot")
        return {**self._states("snapshot").save(), **save_rows(self._buffers)}

    def restore(
        self, snapshot: Mapping[str, NDArray[Any]], order: NDArray[np.int64]
    ) -> list[Batch]:
        """Go back to a snapshot; return the batches received then, by environments in order.

        An environment whose episode differs when it is played again begins a new one: its rows
        come with `valid` 0, as after any fault, and `faults` has the reason.
        """
        self._check_open()
        self._check_none_under_way("restore")
        infos, failed = self._states("restore").load(snapshot)
        self._supervisor.infos = infos
        load_rows(self._buffers, snapshot, failed)
        for env, why in failed.items():
            self._supervisor.report_other_replay(env, why)
        if self._cfg.ordered:
            self._block = int(order[0]) // self.batch_size
        parts = np.split(order, range(self.batch_size, len(order), self.batch_size))
        if len(parts) == 1:
            return [self._batch(self._all, self._all_span)]
        return [self._batch(part, span_of(part)) for part in parts]

    def _states(self, name: str) -> PoolStates | AskedStates:
        if self.why_stateless is not None:
            raise UsageError(
                f"{name}: given environments without states ({self.why_stateless}) allowed: "
                "those that has_states tells of."
            )
        if self._backend.states is not None:
            return self._backend.states
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

    def _batch(self, env_ids: NDArray[np.int64], envs: Span) -> Batch:
        """Return the batch of these environments, all of which are ready."""
        self._held[envs], self._due[envs] = True, False
        self._supervisor.receive()
        infos = self._backend.infos(env_ids, self._supervisor.infos)
        self._last = Batch(env_ids, self._batcher.rows(envs), infos)
        self._last_span = envs
        return self._last

    # ------------------------------------------------------------------ checks

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

    def _check_none_under_way(self, name: str) -> None:
        if self._due.any():
            raise UsageError(
                f"{name}: given while {self.under_way} environments are under way; recv all of "
                "them first."
            )

    def _check_open(self) -> None:
        if not self._closer.still_active():
            raise UsageError(CLOSED)

    def _only_group(self) -> AgentGroup:
        if len(self.groups) == 1:
            return self.groups[0]
        names = [group.name for group in self.groups]
        raise UsageError(
            f"given a vector with {len(names)} groups of agents, {names}; allowed: one. "
            "Take the layout of one group: vec.groups[i].observation_layout."
        )


def _close(backend: WorkerBackend) -> None:
    backend.queue.close()
    backend.close()
