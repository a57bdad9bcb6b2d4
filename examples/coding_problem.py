"""A coding problem, an environment around it, and a thousand copies that nobody waits for.

    python examples/coding_problem.py

A `CodingProblem` has a prompt, tests and `evaluate(code)`. `ChooseProgram` is a hand-written
environment: an action is one of some candidate programs, which a sandbox runs. Its steps take
milliseconds, so it begins them and is asked for them later: one copy's program blocks no other.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import fugu
from fugu.sandbox import Case, ExecutorPool, Grade, Task

SECONDS = 5.0
CANDIDATES = (
    "def largest(numbers):\n    return max(numbers)\n",
    "def largest(numbers):\n    return sorted(numbers)[-1]\n",
    "def largest(numbers):\n    return numbers[0]\n",
    "def largest(numbers):\n    return min(numbers)\n",
    "def largest(numbers)\n    return 0\n",
)


@dataclass(frozen=True)
class CodingProblem:
    """What is asked, and the tests that decide."""

    prompt: str
    tests: Task

    def evaluate(self, code: str) -> Grade:
        """Run a program against the tests, in a sandbox of its own."""
        with ExecutorPool(workers=1) as pool:
            return pool.grade([(code, self.tests)])[0]


LARGEST = CodingProblem(
    "Write largest(numbers).",
    Task(
        "largest",
        "largest",
        (Case(([3, 9, 2],), 9), Case(([-4, -8],), -4), Case(([1],), 1)),
    ),
)


class ChooseProgram(gymnasium.Env[Any, Any]):
    """One action, one program, one verdict."""

    pool: ExecutorPool | None = None  # one for all copies of a process

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(len(CANDIDATES))
        if ChooseProgram.pool is None:
            ChooseProgram.pool = ExecutorPool(workers=1, cache=0)  # every program really runs

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """There is only one problem."""
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def begin_step(self, action: int) -> None:
        """Hand the program in."""
        assert self.pool is not None
        # A comment makes each program its own: else equal ones that are under way would run once.
        code = f"{CANDIDATES[int(action)]}# {self.np_random.integers(1 << 40)}\n"
        self.ticket = self.pool.submit(code, LARGEST.tests)

    def poll(self) -> Any:
        """What came of it; None while it runs."""
        assert self.pool is not None
        grade = self.pool.result(self.ticket)
        if grade is None:
            return None
        return np.ones(1, np.float32), grade.fraction, True, False, {}

    def step(self, action: int) -> Any:
        """Wait for it."""
        self.begin_step(action)
        while (result := self.poll()) is None:
            time.sleep(0.0005)
        return result


def programs_per_second(copies: int, seconds: float) -> float:
    """Of so many copies in flight."""
    with fugu.make(ChooseProgram, copies, batch_size=max(1, copies // 4)) as vec:
        vec.async_reset(0)
        random, ran, began = np.random.default_rng(0), -copies, time.perf_counter()
        while time.perf_counter() - began < seconds:
            batch = vec.recv()
            ran += len(batch.env_ids)
            vec.send(random.integers(len(CANDIDATES), size=(len(batch.env_ids), 1)), batch.env_ids)
        return max(ran, 0) / (time.perf_counter() - began)


def main() -> None:
    """Show both."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    for code in CANDIDATES:
        grade = LARGEST.evaluate(code)
        print(f"{grade.verdict:8} {grade.fraction:.2f}  {code.splitlines()[-1].strip()}")
    for copies in (1, 1024):
        rate = programs_per_second(copies, seconds)
        print(f"{copies:5} copies: {rate:,.0f} programs/s")


if __name__ == "__main__":
    main()
