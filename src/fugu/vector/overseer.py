"""The overseer: waits for environments, reads the workers' mail, and mends what fails."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from time import monotonic as now
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fugu.core.errors import ActionError
from fugu.envs.contract import Info
from fugu.vector.crews import Crew
from fugu.vector.faults import Fault, RestartBudget, WorkerError
from fugu.vector.slab import Slab

if TYPE_CHECKING:
    from fugu._native import Exchange, Pool

PATIENCE = 0.1  # seconds to wait at a time
ABSENCE = 1.0  # seconds beyond that after which the learner itself must have been stopped
LOOKING = 0.3  # seconds after which the workers are looked at even if all goes well
IDLE, READY, FAULT = 0, 4, 5  # of Exchange.state
log = logging.getLogger("fugu.vector")


class Overseer:
    """Looks after the workers of one vector.

    Attributes:
        faults: The last faults of workers, newest last.
        infos: What environments said with the rows that nobody has received yet.
        replies: What they replied to calls.
        seeds: Those of the last resets, for reports.
        held: Which environments were received and not sent since.
        due: Which were sent and not received since.
        lost: Which were not under way when their worker ended: their next step begins them anew.
    """

    def __init__(
        self,
        slab: Slab,
        exchange: Exchange | Pool,
        crew: Crew,
        step_timeout: float,
        start_timeout: float,
        max_restarts: int,
        close: Callable[[], object],
        *,
        starting: bool,
    ) -> None:
        self.faults: deque[Fault] = deque(maxlen=100)
        self.infos: dict[int, tuple[Info, ...]] = {}
        self.replies: dict[int, tuple[Any, ...]] = {}
        self.seeds: list[int | None] = [None] * slab.num_envs
        self.held = np.zeros(slab.num_envs, np.bool_)
        self.due = np.zeros(slab.num_envs, np.bool_)
        self.lost: set[int] = set()
        self._slab, self._crew = slab, crew
        # A pool has no faults and its threads do not die: the rest is never asked of it.
        self._exchange: Exchange = cast("Exchange", exchange)
        self._step_timeout, self._start_timeout = step_timeout, start_timeout
        self._close = close
        self._budget = RestartBudget(max_restarts)
        self._reports: dict[int, tuple[Any, ...]] = {}
        self._num_workers = len(crew.channels)
        self._started = [not starting] * self._num_workers  # which ever reported
        # When each worker was started that has not reported since, by the monotonic clock.
        self._starting = dict.fromkeys(range(self._num_workers if starting else 0), now())
        self._reports_start = starting
        self._resumed = 0.0  # when the learner itself went on after it had been stopped
        self._known_faults = 0
        self._next_look = 0.0

    def wait(self, begin: int, end: int, count: int) -> None:
        """Wait for `count` of a range; restart what fails on the way."""
        while True:
            self._crew.work(begin, end, count)
            began = now()
            found = self._exchange.wait_ready(begin, end, count, self._known_faults, PATIENCE)
            if now() - began > PATIENCE + ABSENCE:  # its workers were perhaps stopped as well
                self._resumed = now()
            if self._exchange.faults() != self._known_faults:
                self.read_mail()
                self._handle_reports()
            elif found >= count and now() < self._next_look:
                return
            self.read_mail()
            self.look_after_workers()
            self._next_look = now() + LOOKING

    def read_mail(self) -> None:
        """Sort what workers have sent since."""
        for worker in range(self._num_workers):
            if self._exchange.mail(worker):
                self._exchange.read_mail(worker)
                self._receive(worker)

    def _receive(self, worker: int) -> None:
        try:
            messages = self._crew.channels[worker].receive()
        except EOFError:
            return  # its end is noticed elsewhere
        for kind, *content in messages:
            if kind == "infos":
                self.infos[content[0]] = content[1]
            elif kind == "fault":
                self._reports[content[0]] = tuple(content)
            elif kind == "hello":
                self._started[worker] = True
                self._starting.pop(worker, None)
            else:
                self.replies[content[0]] = (kind, *content)

    def _handle_reports(self) -> None:
        """Environments that raised: their worker lives and begins new ones."""
        refused: list[ActionError] = []
        for env, (_, text, action_error) in list(self._reports.items()):
            self._known_faults += 1
            del self._reports[env]
            if action_error is not None:  # the caller's mistake: the environment waits for another
                self._exchange.hold(env)
                self.held[env], self.due[env] = True, False
                action_error.add_note(f"in environment {env}, which still awaits an action")
                refused.append(action_error)
                continue
            self._exchange.post(np.array([env]))
            self._spend(self._fault("raised", self._exchange.owner(env), (env,), text))
        if refused:
            for other in refused[1:]:
                refused[0].add_note(other.__notes__[-1])
            raise refused[0]

    def look_after_workers(self) -> None:
        """Notice workers that ended or stall, and begin new ones."""
        for worker in range(self._num_workers):
            death = self._crew.death_of(worker)
            if death is None:
                why = self._why_stalled(worker)
                if why is None:
                    continue
                death = ("stalled", f"{why}\n{self._crew.kill(worker)}")
            self._receive(worker)
            self._bury(worker, *death)

    def _why_stalled(self, worker: int) -> str | None:
        """Return why a living worker counts as stalled, or None if it does not."""
        if worker in self._starting:
            silent = now() - max(self._starting[worker], self._resumed)
            late = silent > self._start_timeout
            return f"no report from it {self._start_timeout} s after its start" if late else None
        silent, env = self._exchange.silent(worker)
        if min(silent, now() - self._resumed) <= self._step_timeout:
            return None
        what = "no sign of life from it" if env < 0 else "no end of what it does"
        return f"{what} after {self._step_timeout} s"

    def _bury(self, worker: int, kind: str, detail: str) -> None:
        begin, end = self._exchange.envs_of(worker)
        under_way = [env for env in range(begin, end) if self._exchange.state(env) in (1, 2, 3)]
        if kind == "exited" and not self._started[worker]:  # and will not start another time
            self._close()
            raise WorkerError(
                f"given a worker that {kind} before it began ({detail.strip()}); allowed: one that "
                "starts. Its own words are above, on standard error. If fugu.make stands at the "
                'top level of a script, put it below: if __name__ == "__main__":'
            )
        fault = self._fault(kind, worker, tuple(under_way), detail)
        self._spend(fault)
        self._exchange.revive(worker)
        for env in range(begin, end):
            if self._exchange.state(env) in (IDLE, READY) and (self.held[env] or self.due[env]):
                self.lost.add(env)
            if self._exchange.state(env) == FAULT and env not in self._reports:
                self._known_faults += 1  # its report died with the worker
                self._exchange.post(np.array([env]))
        self._crew.restart(worker)
        if self._reports_start:
            self._starting[worker] = now()

    def report_other_replay(self, env: int, why: str) -> None:
        """An environment whose episode could not be played again and that began another one."""
        fault = self._fault("replayed otherwise", self._exchange.owner(env), (env,), why)
        self.faults.append(fault)
        log.warning("%s", fault)

    def _fault(self, kind: str, worker: int, envs: tuple[int, ...], detail: str) -> Fault:
        first = envs[0] if envs else self._exchange.envs_of(worker)[0]
        actions = tuple(rows.actions.tolist() for rows in self._slab.of_env(first))
        return Fault(kind, worker, envs, detail, self.seeds[first], actions)

    def _spend(self, fault: Fault) -> None:
        self.faults.append(fault)
        log.warning("%s", fault)
        try:
            self._budget.spend(fault)
        except WorkerError:
            self._close()
            raise
