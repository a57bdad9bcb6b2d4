"""The problems of reasoning-gym's `codeio`: functions with a reference and a maker of inputs.

Neither is trusted: both run in the sandbox, once for each problem, when it is first asked for.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

from fugu.core.errors import UsageError
from fugu.envs.coding.problems import Problem
from fugu.sandbox import Call, Case, Execution, Inputs, Limits, Program, Task

ENTRY = "main_solution"
SHOWN, TESTED, SEED = 2, 10, 0
_MAKER = """
from random import Random
{generator}

def make(seed, count):
    chance = Random(seed)
    return [generate_inputs(chance) for _ in range(count)]
"""


class Runs(Protocol):
    """Runs a program and waits for it."""

    def run(self, program: Program | str, inputs: Inputs, limits: Limits) -> Execution:
        """What came of it."""


def is_plain(line: Mapping[str, Any]) -> bool:
    """Whether a problem needs nothing but the standard library."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of their escapes in texts
            trees = [ast.parse(line[key]) for key in ("code_sample", "input_generator")]
    except (SyntaxError, ValueError):
        return False
    wanted: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            wanted |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            wanted.add((node.module or "").split(".")[0])
    return wanted <= set(sys.stdlib_module_names)


def make_problem(
    name: str, line: Mapping[str, Any], runner: Runs, limits: Limits
) -> Problem | None:
    """A problem with its tests; None if its own programs do not run here."""
    if not is_plain(line):
        return None
    maker = Program(_MAKER.format(generator=line["input_generator"]), "make")
    made = runner.run(maker, [(SEED, TESTED)], limits)
    if made.verdict != "passed" or not isinstance(made.outputs[0].value, list):
        return None
    inputs = [given for given in made.outputs[0].value if _is_keywords(given)]
    program = Program(line["code_sample"], ENTRY)
    calls = [Case((), None, given) for given in inputs]
    answered = _answers(program, calls, runner, limits)
    if answered is None or not calls:
        return None
    prompt = f"{line['task_description']}\n\n{line['input_output_spec']}\n"
    public = Task(name, ENTRY, answered[:SHOWN], limits=limits)
    hidden = Task(name, ENTRY, answered, limits=limits)
    try:
        _ = hidden.key
    except UsageError:  # what the reference answers is nested too deep to be compared
        return None
    return Problem(name, prompt, hidden, public, solution=line["code_sample"])


def _is_keywords(given: object) -> bool:
    return isinstance(given, dict) and all(isinstance(name, str) for name in given)


def _answers(
    program: Program, calls: list[Case], runner: Runs, limits: Limits
) -> tuple[Case, ...] | None:
    """The calls with what the reference answers."""
    ran = runner.run(program, [Call((), call.kwargs) for call in calls], limits)
    if ran.verdict != "passed":
        return None
    pairs = zip(calls, ran.outputs, strict=True)
    return tuple(Case((), outcome.value, call.kwargs) for call, outcome in pairs)
