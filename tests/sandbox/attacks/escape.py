"""An escape: a program that tries to break out of the sandbox."""

from __future__ import annotations

from dataclasses import dataclass

from attacks.targets import Targets
from fugu.sandbox.execution import Execution, Limits, Program, shown
from fugu.sandbox.executor import Executor

_LIMITS = Limits(0.4, wall_seconds=20.0, memory=128 << 20, output=1 << 16, result=1 << 16)
_PRELUDE = """
import ctypes, os, signal, socket, struct, sys, threading, time

def system_call(targets, name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    # Pass whole words: half of a plain 0 on the stack would be undefined.
    passed = [a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments]
    result = libc.syscall(ctypes.c_long(targets["numbers"][name]), *passed)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result
"""


@dataclass(frozen=True)
class Escape:
    """A program that tries to break out. It aims only at `Targets`.

    Attributes:
        name: What it does.
        category: What must be isolated from it, such as network or files.
        body: Body of the function `attack(targets)`, which returns True on success.
        proof: How success is seen: `returned` (the function returns True), `file` (the file `mark`
            exists), `victim` (the idle process has ended) or `lost` (its supervisor has ended).
    """

    name: str
    category: str
    body: str
    proof: str = "returned"

    def is_proven(self, unsafe: Executor, secret: str) -> bool:
        """Return whether it succeeds in an executor without isolation."""
        return self.attempt(unsafe, secret)[0]

    def attempt(self, executor: Executor, secret: str) -> tuple[bool, str]:
        """Return whether it succeeds in an executor, and how it ended."""
        with Targets(secret) as targets:
            program = Program(self._source(), "attack")
            execution = executor.run(program, [(targets.description,)], _LIMITS)
            return self._succeeded(execution, targets), describe(execution)

    def _source(self) -> str:
        lines = "\n".join(f"    {line}" for line in self.body.strip().splitlines())
        return f"{_PRELUDE}\ndef attack(targets):\n{lines}\n"

    def _succeeded(self, execution: Execution, targets: Targets) -> bool:
        if self.proof == "lost":
            return execution.verdict == "refused"
        if self.proof == "victim":
            return targets.victim_ended()
        if self.proof == "file":
            return targets.mark_exists()
        return bool(execution.outputs) and execution.outputs[0].value is True


def describe(execution: Execution) -> str:
    """Return the verdict and message of an execution, or what it returned, in one short line."""
    if execution.verdict != "passed":
        return f"{execution.verdict}: {execution.message}"[:120]
    return f"returned {shown(execution.outputs[0].value, 100)}"
