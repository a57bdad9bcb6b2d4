"""Run untrusted programs in isolation, and grade their results outside of it."""

from fugu.sandbox.backends import BACKENDS, Backend, installed, make_executor
from fugu.sandbox.execution import (
    VERDICTS,
    Call,
    Execution,
    Inputs,
    Limits,
    Outcome,
    Program,
    SandboxError,
    Verdict,
)
from fugu.sandbox.executor import Executor
from fugu.sandbox.grading import Case, Grade, GradeCache, Task, grade, key_of, same
from fugu.sandbox.pool import ExecutorPool, Finished

__all__ = [
    "BACKENDS",
    "Backend",
    "Call",
    "Case",
    "Execution",
    "Executor",
    "ExecutorPool",
    "Finished",
    "Grade",
    "GradeCache",
    "Inputs",
    "Limits",
    "Outcome",
    "Program",
    "SandboxError",
    "Task",
    "VERDICTS",
    "Verdict",
    "grade",
    "installed",
    "key_of",
    "make_executor",
    "same",
]
