"""The supervisor: waits for environments, talks with workers, and repairs what fails."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic as now
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import ActionError, UsageError
from fugu.core.seeding import derive, fresh_seed
from fugu.vector.backends import (
    Fault,
    Infos,
    Message,
    MissingAttributeError,
    RestartedError,
    WorkerBackend,
    WorkerError,
)
from fugu.vector.shared_buffers import SharedBuffers

PATIENCE = 0.1  # seconds to wait at a time
ABSENCE = 1.0  # seconds beyond that after which the learner itself must have been stopped
HOUR = 3600.0  # seconds
LOOKING = 0.3  # seconds after which the workers are looked at even if all goes well
IDLE, READY, FAULT = 0, 4, 5  # of Exchange.state
UNDER_WAY = (1, 2, 3)  # of Exchange.state
RESETS = 0x7273  # the branch of the seed tree for resets without a seed, after the first
Seeds = int | Sequence[int | None] | None
Options = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
log = logging.getLogger("fugu.vector")


class Supervisor:
    """Looks after the workers of one vector, and sends them commands.

    Args:
        buffers: The rows of all environments.
        backend: Runs the workers.
        limits: The seconds after which a worker counts as stalled while it has something to do,
            and after its start; and the restarts that are allowed in an hour.
        close: Closes the vector, after a fault that cannot be repaired.
        renew: Brings copies of rows up to date; called when environments that were received have
            restarted.

    Attributes:
        faults: The last faults of workers, newest last.
        infos: Infos that workers sent with rows that nobody has received yet.
        held: Which environments were received and not sent since.
        due: Which were sent and not received since.
        lost: Which were not under way when their worker ended: their next step restarts them.
    """

    def __init__(
        self,
        buffers: SharedBuffers,
        backend: WorkerBackend,
        limits: tuple[float, float, int],
        close: Callable[[], object],
        renew: Callable[[], object],
    ) -> None:
        self.faults: deque[Fault] = deque(maxlen=100)
        self.infos: dict[int, Infos] = {}
        self.held = np.zeros(buffers.num_envs, np.bool_)
        self.due = np.zeros(buffers.num_envs, np.bool_)
        self.lost: set[int] = set()
        self._buffers, self._backend, self._queue = buffers, backend, backend.queue
        self._step_timeout, self._start_timeout, self._max_restarts = limits
        self._close, self._renew = close, renew
        self._restarts: deque[float] = deque()  # the times of those within the last hour
        self._seeds: list[int | None] = [None] * buffers.num_envs  # of the last resets
        self._reports: dict[int, tuple[str, ActionError | None]] = {}  # by environment
        self._replies: dict[int, Message] = {}  # to a call, by environment
        # When each worker was started that has not reported since, by the monotonic clock.
        self._starting = dict.fromkeys(range(backend.num_workers * backend.reports_start), now())
        self._never_started = set(self._starting)  # workers that have never reported
        self._resumed = 0.0  # when the learner itself went on after it had been stopped
        self._known_faults = 0
        self._next_look = 0.0

    # ------------------------------------------------------------------ waiting

    def wait(self, begin: int, end: int, count: int) -> None:
        """Wait for `count` environments of a range; restart what fails meanwhile."""
        while True:
            self._backend.work(begin, end, count)
            began = now()
            found = self._queue.wait_ready(begin, end, count, self._known_faults, PATIENCE)
            ended = now()
            if ended - began > PATIENCE + ABSENCE:  # its workers were perhaps stopped as well
                self._resumed = ended
            if self._queue.faults() != self._known_faults:
                self.receive()
                self._handle_reports()
            elif found >= count and ended < self._next_look:
                return
            self.receive()
            self._look_after_workers()
            self._next_look = now() + LOOKING

    def receive(self, ended: int = -1) -> None:
        """Sort what workers have sent, the worker `ended` included."""
        for message in self._backend.receive(ended):
            match message:
                case "infos", env, infos:
                    self.infos[env] = infos
                case "fault", env, text, error:
                    self._reports[env] = text, error
                case "hello", worker:
                    self._never_started.discard(worker)
                    self._starting.pop(worker, None)
                case _:
                    self._replies[message[1]] = message

    def _handle_reports(self) -> None:
        """Restart environments that raised; their worker lives."""
        refused: list[ActionError] = []
        for env, (text, action_error) in list(self._reports.items()):
            self._known_faults += 1
            del self._reports[env]
            if action_error is not None:  # the caller's mistake: the environment waits for another
                self._backend.hold(env)
                self.held[env], self.due[env] = True, False
                action_error.add_note(f"in environment {env}, which still awaits an action")
                refused.append(action_error)
                continue
            self._queue.post(np.array([env]))
            self._spend(self._fault("raised", self._queue.owner(env), (env,), env, text))
        if refused:
            for other in refused[1:]:
                refused[0].add_note(other.__notes__[-1])
            raise refused[0]

    def _look_after_workers(self) -> None:
        """Restart workers that ended or stall."""
        for worker in range(self._backend.num_workers):
            death = self._backend.death_of(worker)
            if death is None:
                why = self._why_stalled(worker)
                if why is None:
                    continue
                death = ("stalled", f"{why}\n{self._backend.kill(worker)}")
            self.receive(ended=worker)
            self._replace(worker, *death)

    def _why_stalled(self, worker: int) -> str | None:
        """Return why a living worker counts as stalled, or None if it does not."""
        if worker in self._starting:
            silent = now() - max(self._starting[worker], self._resumed)
            late = silent > self._start_timeout
            return f"no report from it {self._start_timeout} s after its start" if late else None
        silent, env = self._queue.silent(worker)
        if min(silent, now() - self._resumed) <= self._step_timeout:
            return None
        what = "no sign of life from it" if env < 0 else "no end of what it does"
        return f"{what} after {self._step_timeout} s"

    def _replace(self, worker: int, kind: str, detail: str) -> None:
        """Start a worker in place of one that ended."""
        if kind == "exited" and worker in self._never_started:  # and will not start another time
            self._close()
            raise WorkerError(
                f"given a worker that {kind} before it began ({detail.strip()}); allowed: one that "
                "starts. Its own words are above, on standard error. If fugu.make stands at the "
                'top level of a script, put it below: if __name__ == "__main__":'
            )
        states = self._backend.states_of(worker)
        under_way = tuple(env for env, state in states.items() if state in UNDER_WAY)
        self._spend(self._fault(kind, worker, under_way, (*under_way, *states)[0], detail))
        for env, state in states.items():
            if state in (IDLE, READY) and (self.held[env] or self.due[env]):
                self.lost.add(env)
        self._backend.restart(worker)
        for env, state in states.items():
            if state == FAULT and env not in self._reports:  # its report died with the worker
                self._known_faults += 1
                self._queue.post(np.array([env]))
        if self._backend.reports_start:
            self._starting[worker] = now()

    def report_other_replay(self, env: int, why: str) -> None:
        """Note a fault: an episode could not be played again, and another one began."""
        self._note(self._fault("replayed otherwise", self._queue.owner(env), (env,), env, why))

    def _fault(
        self, kind: str, worker: int, envs: tuple[int, ...], example: int, detail: str
    ) -> Fault:
        actions = tuple(rows.actions.tolist() for rows in self._buffers.of_env(example))
        return Fault(kind, worker, envs, detail, self._seeds[example], actions)

    def _note(self, fault: Fault) -> None:
        self.faults.append(fault)
        log.warning("%s", fault)

    def _spend(self, fault: Fault) -> None:
        """Count a restart, of which so many are allowed in an hour."""
        self._note(fault)
        while self._restarts and now() - self._restarts[0] > HOUR:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            self._close()
            raise WorkerError(
                f"given more than {self._max_restarts} restarts within an hour; mend the "
                "environment, or allow more: max_restarts=... The last fault:",
                fault,
            )
        self._restarts.append(now())

    # ------------------------------------------------------------------ commands

    def reset(
        self, env_ids: NDArray[np.int64], seeds: Sequence[int | None], options: Options
    ) -> None:
        """Reset environments; seeds and options have an item for every environment there is."""
        each = options if isinstance(options, Sequence) else [options] * len(seeds)
        if len(each) != len(seeds):
            raise UsageError(
                f"options: given {len(each)} of them; allowed: one, or {len(seeds)} in a list."
            )
        envs = env_ids.tolist()
        for env in envs:
            self._seeds[env] = self._seeds[env] if seeds[env] is None else seeds[env]
        self.lost.difference_update(envs)
        self._command([("reset", env, seeds[env], each[env]) for env in envs])

    def call(
        self,
        name: str,
        env_ids: Sequence[int],
        values: Sequence[Any] | None,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """Return the replies of environments, all of which were received; see `Vector.ask`."""
        lost = sorted(self.lost.intersection(env_ids))
        if lost:  # their worker ended, and they must restart before anything can be asked of them
            self.lost.difference_update(lost)
            self._queue.post(np.array(lost, np.int64))
            self._take(len(lost))
            self._renew()
        replies = self._replies
        replies.clear()
        self._command(
            [
                ("call", env, name, None if values is None else values[env], arguments, dict(named))
                for env in env_ids
            ]
        )
        self._take(len(env_ids))
        self.receive()
        missing = [env for env in env_ids if env not in replies]
        if missing:
            self._renew()
        refused = [reply for reply in replies.values() if reply[0] == "refusal"]
        if refused:
            _, env, error, trace = refused[0]
            kind = MissingAttributeError if error.startswith("AttributeError") else WorkerError
            raise kind(f"{name} failed in environment {env}: {trace}")
        if missing:
            raise RestartedError(
                f"{name.strip()} got no reply from environments {missing}: they restarted"
            )
        return tuple(replies[env][2] for env in env_ids)

    def _take(self, count: int) -> None:
        """Wait for so many environments; no others are under way."""
        every = len(self.due)
        self.wait(0, every, count)
        self._queue.take(0, every, count, np.zeros(every, np.int64))

    def _command(self, commands: list[Message]) -> None:
        """Post the environments of each worker in turn, and send it what to do with them.

        A worker that ends meanwhile gets nothing more: its environments restart without a command,
        and one that was left in the channel of its successor would be taken for a later one.
        """
        shares: dict[int, list[Message]] = {}
        for command in commands:
            shares.setdefault(self._queue.owner(command[1]), []).append(command)
        for worker, share in shares.items():
            self._queue.post(np.array([command[1] for command in share], np.int64), True)
            with contextlib.suppress(BrokenPipeError, ConnectionError):
                for command in share:
                    self._backend.send(worker, command, self._while_sending)

    def _while_sending(self) -> None:
        self.receive()
        self._look_after_workers()


class ResetSeeds:
    """The seeds of every environment, from one root, each time that all of them are reset.

    Attributes:
        root: The root, if one is known yet.
    """

    def __init__(self, num_envs: int, group_size: int, root: int | None) -> None:
        self.root, self._num_envs, self._group_size = root, num_envs, group_size
        self._resets = 0  # since the root was set, so that each begins other episodes

    def next(self, seed: Seeds) -> list[int | None]:
        """Return one for each environment; environments of a group have the same."""
        if isinstance(seed, Sequence):
            if len(seed) != self._num_envs:
                raise UsageError(
                    f"seed: given {len(seed)} seeds; allowed: one integer, or {self._num_envs}."
                )
            return list(seed)
        if seed is not None:
            self.root, self._resets = int(seed), 0
        elif self.root is None:
            self.root = fresh_seed()
        root = derive(self.root, RESETS, self._resets) if self._resets else self.root
        self._resets += 1
        return [derive(root, env // self._group_size) for env in range(self._num_envs)]
