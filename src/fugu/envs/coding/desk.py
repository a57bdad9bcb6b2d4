"""The desk where programs are handed in: the executors that all environments of a process share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

from fugu.memory import Memory, Where
from fugu.sandbox import Backend, Execution, ExecutorPool, Grade, Inputs, Limits, Program, Task

_desks: dict[tuple[str, int], Desk] = {}
Recall = Callable[[str, str, int], list[str]]


class Desk:
    """A pool of executors, closed when its last environment leaves.

    Attributes:
        pool: The executors.
    """

    def __init__(self, backend: Backend, executors: int) -> None:
        self._key = backend, executors
        inside = multiprocessing.parent_process() is not None
        self.pool = ExecutorPool(backend, executors or (1 if inside else None))
        self._memories: dict[Path, Recall] = {}
        self._users = 0

    @classmethod
    def shared(cls, backend: Backend, executors: int) -> Desk:
        """The desk of this process; `leave` it in the end."""
        key = str(backend), executors
        if key not in _desks:
            _desks[key] = cls(backend, executors)
        desk = _desks[key]
        desk._users += 1
        return desk

    def leave(self) -> None:
        """One environment less."""
        self._users -= 1
        if self._users == 0:
            _desks.pop(self._key, None)
            self.pool.close()

    def submit(self, source: str, task: Task) -> int:
        """Hand a program in; the ticket to ask with."""
        return self.pool.submit(source, task)

    def result(self, ticket: int) -> Grade | None:
        """Its grade, once there is one."""
        found: Grade | None = self.pool.result(ticket)
        return found

    def forget(self, ticket: int) -> None:
        """Nobody will ask for it."""
        self.pool.forget(ticket)

    def run(self, program: Program | str, inputs: Inputs, limits: Limits) -> Execution:
        """Run a program and wait for it."""
        return self.pool.run(program, inputs, limits)

    def memory(self, file: str | Path) -> Recall:
        """What finds solved programs for a prompt that were not written for the same problem."""
        path = Path(file).resolve()
        if path not in self._memories:
            known = Memory.load(path)

            def recall(prompt: str, name: str, count: int) -> list[str]:
                where = Where(not_task=name, min_reward=1.0)
                (matches,) = known.query([prompt], count, where=where)
                return [match.item.metadata.get("program", match.item.text) for match in matches]

            self._memories[path] = recall
        return self._memories[path]
