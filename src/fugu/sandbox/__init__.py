"""Untrusted programs, run behind walls and graded outside them."""

from fugu.sandbox.backends import BACKENDS as BACKENDS
from fugu.sandbox.backends import Backend as Backend
from fugu.sandbox.backends import installed as installed
from fugu.sandbox.backends import make_executor as make_executor
from fugu.sandbox.comparing import same as same
from fugu.sandbox.execution import VERDICTS as VERDICTS
from fugu.sandbox.execution import Call as Call
from fugu.sandbox.execution import Execution as Execution
from fugu.sandbox.execution import Inputs as Inputs
from fugu.sandbox.execution import Limits as Limits
from fugu.sandbox.execution import Outcome as Outcome
from fugu.sandbox.execution import Program as Program
from fugu.sandbox.execution import SandboxError as SandboxError
from fugu.sandbox.execution import Verdict as Verdict
from fugu.sandbox.executor import Executor as Executor
from fugu.sandbox.grading import Case as Case
from fugu.sandbox.grading import Grade as Grade
from fugu.sandbox.grading import GradeCache as GradeCache
from fugu.sandbox.grading import Task as Task
from fugu.sandbox.grading import grade as grade
from fugu.sandbox.grading import key_of as key_of
from fugu.sandbox.pool import ExecutorPool as ExecutorPool
from fugu.sandbox.pool import Finished as Finished
