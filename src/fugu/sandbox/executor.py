"""Executors: what runs untrusted programs."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.sandbox.execution import Execution, Inputs, Limits, Program
from fugu.sandbox.guest.frames import Order
from fugu.sandbox.judge import Judge
from fugu.sandbox.session import Guest, OpenProgram, Request, Session

DEFAULT_LIMITS = Limits()
_ENVELOPE = 64  # bytes around an answer in a file


class Executor(Closing, ABC):
    """Runs one program at a time; a pool of them runs many."""

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 0.0
    """How long a guest may take to stand ready, beyond a program's own time."""
    fallback: Executor | None = None
    """Who decides about programs that do not pass here."""

    @functools.cached_property
    def judge(self) -> Judge:
        """What runs the checks of tasks that are graded here."""
        return Judge()

    def run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> Execution:
        """Call the program's entry with each input, or run the script once for each."""
        program = Program.of(program)
        if (refusal := refuse(program, limits)) is not None:
            return refusal
        execution = self._run(program, inputs, limits)
        if (
            execution.verdict == "refused"
        ):  # what was to run it died, perhaps by no fault of its own
            execution = self._run(program, inputs, limits)
        return execution

    def session(self, program: Program, limits: Limits = DEFAULT_LIMITS) -> OpenProgram:
        """The program, loaded and waiting for calls; close it before the next."""
        if not program.entry:
            raise UsageError(
                "a session: given a script; allowed: a program with an entry, as in "
                "Program(source, 'solve')."
            )
        return self._open(program, (), limits, interactive=True)

    def facts(self) -> dict[str, Any]:
        """How it runs programs, for people to read."""
        return {"backend": self.name}

    def close(self) -> None:
        """End whatever it has started."""
        judge: Judge | None = self.__dict__.pop("judge", None)
        if judge is not None:
            judge.close()

    @abstractmethod
    def _begin(self, request: Request, limits: Limits) -> Guest:
        """A guest that awaits the request."""
        raise NotImplementedError("_begin(request, limits) -> Guest")

    def _run(self, program: Program, inputs: Inputs, limits: Limits) -> Execution:
        with self._open(program, inputs, limits, interactive=False) as session:
            session.answers()
            return session.execution

    def _open(
        self, program: Program, inputs: Inputs, limits: Limits, *, interactive: bool
    ) -> Session:
        request = Request.of(program, inputs, limits, interactive=interactive)
        guest = self._begin(request, limits)
        return Session(guest, request, limits, start_seconds=self.start_seconds)


def refuse(program: Program, limits: Limits) -> Execution | None:
    """The verdict on a program that is too long to be looked at."""
    if len(program.source) <= limits.source:
        return None
    given = f"{len(program.source)} characters of source, where {limits.source} are allowed"
    return Execution("refused", message=given)


def pack_order(request: Request, limits: Limits, scratch: int = 0, *, batch: bool = False) -> bytes:
    """Limits as a guest takes them."""
    file_bytes = max(limits.output, request.longest, scratch)
    if batch:  # the request stands in a file of memory, and the answers behind it
        answers = limits.result + _ENVELOPE * (2 + request.answers)
        file_bytes = max(file_bytes, len(request.payload) + answers)
    cpu, wall = limits.cpu_seconds, limits.wall_seconds
    return Order(cpu, wall, limits.memory, file_bytes, limits.output).pack()
