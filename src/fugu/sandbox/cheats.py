"""Programs that do not break out but cheat whoever grades them.

Each succeeds against a grader of the common kind, which runs the program and compares its answers
in one process; the harnesses below are such graders. The answer asked for is a secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from fugu.sandbox.execution import Limits
from fugu.sandbox.grading import Case, Task

LIMITS = Limits(cpu_seconds=1.0, wall_seconds=10.0)

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
    """One way to be graded better than one is."""

    name: str
    source: str
    harness: str
    """The common grader that it works against."""
    wall: str = "grading"

    def control(self, secret: str) -> str:
        """The program that runs the harness on it, and prints "passed" if the cheat works."""
        return f"SOURCE = {self.source!r}\nEXPECTED = {secret!r}\n{self.harness}"

    def task(self, secret: str) -> Task:
        """The same question, for us to grade."""
        expected = 12345.678 if self.harness is MEASURING else secret
        return Task(self.name, "solve", (Case((3,), expected),), limits=LIMITS)


CHEATS = (
    Cheat("an answer that equals everything", """
class Anything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
def solve(n): return Anything()
""", COMPARING),
    Cheat("a text that equals everything", """
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
    Cheat("searching all objects", """
import gc
def solve(n):
    seen = [list(gc.get_objects())]
    for thing in seen[0]:
        if type(thing) is dict:
            for value in list(thing.values()):
                if type(value) is str and value.startswith("secret-"):
                    return value
""", COMPARING),
    Cheat("writing into the grader's result", """
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
    Cheat("leaving before the test", "import sys\nsys.exit(0)\n", CHECKING_STATUS),
    Cheat("leaving in the middle of the test", """
import os
def solve(n): os._exit(0)
""", CHECKING_STATUS),
    Cheat("forging the result pipe", """
import os
def solve(n):
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"passed")
        except OSError:
            pass
    os._exit(0)
""", READING_PIPE),
    Cheat("another abs", """
import builtins
builtins.abs = lambda value: 0.0
def solve(n): return 1.0
""", MEASURING),
    Cheat("leaving as the test fails", """
import os, sys
sys.excepthook = lambda *_: os._exit(0)
def solve(n): return None
""", CHECKING_STATUS),
    Cheat("leaving when all is over", """
import atexit, os
atexit.register(os._exit, 0)
def solve(n): return None
""", CHECKING_STATUS),
    Cheat("saying that it has passed", """
import os
def solve(n):
    os.write(1, b"passed")
    os._exit(0)
""", COMPARING),
    Cheat("ending all that is asserted", """
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
