"""Programs that do not break out but try to get a better grade than they deserve.

Each succeeds against a grader of the usual kind (the harnesses below), which runs the program and
compares its answers in one process. The expected answer is a secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from fugu.sandbox.execution import Limits
from fugu.sandbox.executor import Executor
from fugu.sandbox.grading import Case, Task, grade

_LIMITS = Limits(cpu_seconds=1.0, wall_seconds=10.0)
_MEASURED = 12345.678  # the answer that MEASURING expects

COMPARING = """
def grader(source, expected):
    names = {}
    exec(source, names)
    return names["solve"](3) == expected
try:
    print("passed" if grader(SOURCE, EXPECTED) else "wrong")
except BaseException as error:
    print("failed", type(error))
"""

COLLECTING = """
def grader(source, expected):
    result = []
    try:
        names = {}
        exec(source, names)
        assert names["solve"](3) == expected
        result.append("passed")
    except BaseException:
        result.append("failed")
    return result[0]
print(grader(SOURCE, EXPECTED))
"""

CHECKING_STATUS = """
import subprocess, sys
test = SOURCE + f"\\nassert solve(3) == {EXPECTED!r}\\n"
print("failed" if subprocess.run([sys.executable, "-c", test]).returncode else "passed")
"""

READING_PIPE = """
import os
reading, writing = os.pipe()
pid = os.fork()
if pid == 0:
    os.closerange(3, writing)
    os.closerange(writing + 1, 256)
    try:
        names = {}
        exec(SOURCE, names)
        os.write(writing, b"passed" if names["solve"](3) == EXPECTED else b"failed")
    finally:
        os._exit(0)
os.close(writing)
print(os.read(reading, 6).decode())
os.waitpid(pid, 0)
"""

MEASURING = """
def grader(source, expected):
    names = {}
    exec(source, names)
    return abs(names["solve"](3) - expected) < 1e-6
try:
    print("passed" if grader(SOURCE, 12345.678) else "wrong")
except BaseException as error:
    print("failed", type(error))
"""


@dataclass(frozen=True)
class Cheat:
    """A program that tries to pass a test without the right answer.

    Attributes:
        name: What it does.
        source: The program, which defines `solve(n)`.
        harness: The usual grader that it deceives.
        category: What must be isolated from it.
    """

    name: str
    source: str
    harness: str
    category: str = "grading"

    def is_proven(self, unsafe: Executor, secret: str) -> bool:
        """Return whether it deceives the usual grader, in an executor without isolation."""
        names = f"SOURCE = {self.source!r}\nEXPECTED = {secret!r}\n"
        return unsafe.run(names + self.harness).stdout.strip() == "passed"

    def attempt(self, executor: Executor, secret: str) -> tuple[bool, str]:
        """Return whether it passes when the sandbox grades it, and the verdict."""
        expected = _MEASURED if self.harness is MEASURING else secret
        task = Task(self.name, "solve", (Case((3,), expected),), limits=_LIMITS)
        verdict = grade(self.source, task, executor).verdict
        return verdict == "passed", verdict


CHEATS: tuple[Cheat, ...] = (
    Cheat("an answer that equals everything", """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
def solve(n): return Anything()
""", COMPARING),
    Cheat("a string that equals everything", """
class Anything(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def solve(n): return Anything("x")
""", COMPARING),
    Cheat("reading the grader's frames", """
import sys
def solve(n):
    frame = sys._getframe()
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            for name in ("expected", "EXPECTED"):
                if name in names:
                    return names[name]
        frame = frame.f_back
""", COMPARING),
    Cheat("searching the garbage collector's objects", """
import gc
def solve(n):
    seen = [list(gc.get_objects())]
    for thing in seen[0]:
        if type(thing) is dict:
            for value in list(thing.values()):
                if type(value) is str and value.startswith("secret-"):
                    return value
""", COMPARING),
    Cheat("appending to the grader's result", """
import sys
def solve(n):
    frame = sys._getframe()
    while frame is not None:
        result = frame.f_locals.get("result")
        if isinstance(result, list):
            result.append("passed")
        frame = frame.f_back
    return None
""", COLLECTING),
    Cheat("sys.exit before the test", "import sys\nsys.exit(0)\n", CHECKING_STATUS),
    Cheat("os._exit during the test", """
import os
def solve(n): os._exit(0)
""", CHECKING_STATUS),
    Cheat("forging the result on a pipe", """
import os
def solve(n):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"passed")
        except OSError:
            pass
    os._exit(0)
""", READING_PIPE),
    Cheat("replacing builtins.abs", """
import builtins
builtins.abs = lambda value: 0.0
def solve(n): return 1.0
""", MEASURING),
    Cheat("os._exit in sys.excepthook", """
import os, sys
sys.excepthook = lambda *_: os._exit(0)
def solve(n): return None
""", CHECKING_STATUS),
    Cheat("os._exit in atexit", """
import atexit, os
atexit.register(os._exit, 0)
def solve(n): return None
""", CHECKING_STATUS),
    Cheat("printing 'passed' and exiting", """
import os
def solve(n):
    os.write(1, b"passed")
    os._exit(0)
""", COMPARING),
    Cheat("a trace function in the grader's frame", """
import sys
def solve(n):
    def trace(frame, event, argument):
        if event == "line" and "result" in frame.f_locals:
            frame.f_locals["result"].append("passed")
        return trace
    frame = sys._getframe(1)
    frame.f_trace = trace
    sys.settrace(trace)
    return None
""", COLLECTING),
)  # fmt: skip
