"""Collections of problems: some are ready, codeio's are made when they are first asked for.

codeio's have a reference program and a generator of inputs. Neither is trusted: both run in the
sandbox, once for each problem.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from fugu.core.errors import UsageError
from fugu.envs.coding.problems import Problem, load_problems, read_package
from fugu.sandbox import Call, Case, Execution, Inputs, Limits, Program, Task

Split = Literal["train", "held_out", "all"]
HELD_OUT = 5  # one in so many
CODEIO_ENTRY = "main_solution"
CODEIO_SHOWN, CODEIO_TESTED, CODEIO_SEED = 2, 10, 0
_CODEIO_INPUTS = """
from random import Random
{generator}

def make(seed, count):
    chance = Random(seed)
    return [generate_inputs(chance) for _ in range(count)]
"""


class Runner(Protocol):
    """Runs a program and waits for it."""

    def run(self, program: Program | str, inputs: Inputs, limits: Limits) -> Execution:
        """Return the outputs of the program."""


Make = Callable[[Runner], Problem | None]


class Problems:
    """Problems by number.

    Args:
        names: Names of all.
        makers: Functions that make each; None: the problem does not work here.
        texts: Returns the texts that a tokenizer is trained on.
    """

    def __init__(
        self, names: Sequence[str], makers: Sequence[Make], texts: Callable[[], Iterable[str]]
    ) -> None:
        if not names:
            raise UsageError("problems: given none; allowed: one or more. Choose another split.")
        self.names, self._makers, self.texts = tuple(names), tuple(makers), texts
        self._made: dict[int, Problem | None] = {}

    def __len__(self) -> int:
        return len(self.names)

    def get(self, runner: Runner, number: int, name: str | None = None) -> Problem:
        """Return the problem `name`, or that of a number, or the next one that works."""
        if name is not None:
            if name not in self.names:
                raise UsageError(f"problem: given {name!r}; allowed: {self.names[:5]} ...")
            number = self.names.index(name)
        for i in range(len(self)):
            index = (number + i) % len(self)
            if index not in self._made:
                self._made[index] = self._makers[index](runner)
            if (found := self._made[index]) is not None:
                return found
        raise UsageError("problems: given none whose own programs run; allowed: one or more.")


def find_problems(
    given: str | Path | Sequence[Problem], split: Split, limits: Mapping[str, Any]
) -> Problems:
    """Return problems by their collection's name, from a file, or as they are.

    Args:
        given: The name, the file, or problems.
        split: Which of them.
        limits: Fields of `Limits` for all problems; they replace those of their tasks.
    """
    if isinstance(given, str | Path):
        return _load(str(given), split, Limits(**limits))
    return _ready([_with_limits(problem, limits) for problem in given], split)


def _with_limits(problem: Problem, limits: Mapping[str, Any]) -> Problem:
    if not limits:
        return problem

    def limited(task: Task) -> Task:
        return replace(task, limits=replace(task.limits, **limits))

    public = problem.public and limited(problem.public)
    return replace(problem, hidden=limited(problem.hidden), public=public)


@functools.lru_cache(8)
def _load(name: str, split: Split, limits: Limits) -> Problems:
    """Read once in a process, however many copies ask for them."""
    if name != "codeio":
        return _ready(load_problems(name, limits), split)
    lines = {
        f"codeio/{number}": line
        for number, line in enumerate(read_package("codeio", "codeio.jsonl.gz"))
        if is_in(f"codeio/{number}", split)
    }
    makers = [
        lambda runner, name=name, line=line: make_codeio(name, line, runner, limits)
        for name, line in lines.items()
    ]
    return Problems(list(lines), makers, lambda: (line["code_sample"] for line in lines.values()))


def _ready(problems: Sequence[Problem], split: Split) -> Problems:
    chosen = [problem for problem in problems if is_in(problem.name, split)]

    def texts() -> Iterable[str]:
        return (text for problem in chosen for text in (problem.prompt, problem.solution))

    makers = [lambda runner, found=problem: found for problem in chosen]
    return Problems([problem.name for problem in chosen], makers, texts)


def is_in(name: str, split: Split) -> bool:
    """Whether a split has the problem of that name.

    >>> sum(is_in(f"p/{i}", "held_out") for i in range(1000))
    213
    """
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    held_out = number % HELD_OUT == 0
    return split == "all" or held_out == (split == "held_out")


def make_codeio(
    name: str, line: Mapping[str, Any], runner: Runner, limits: Limits
) -> Problem | None:
    """Make a problem of codeio with its tests; None if its own programs do not run here."""
    if not _is_plain(line):
        return None
    maker = Program(_CODEIO_INPUTS.format(generator=line["input_generator"]), "make")
    made = runner.run(maker, [(CODEIO_SEED, CODEIO_TESTED)], limits)
    if made.verdict != "passed" or not isinstance(made.outputs[0].value, list):
        return None
    calls = [Call((), kwargs) for kwargs in made.outputs[0].value if _is_keywords(kwargs)]
    ran = runner.run(Program(line["code_sample"], CODEIO_ENTRY), calls, limits)
    if ran.verdict != "passed" or not calls:
        return None
    pairs = zip(calls, ran.outputs, strict=True)
    cases = tuple(Case((), outcome.value, call.kwargs) for call, outcome in pairs)
    prompt = f"{line['task_description']}\n\n{line['input_output_spec']}\n"
    public = Task(name, CODEIO_ENTRY, cases[:CODEIO_SHOWN], limits=limits)
    hidden = Task(name, CODEIO_ENTRY, cases, limits=limits)
    try:
        _ = hidden.key
    except UsageError:  # the reference's answer is nested too deep to be compared
        return None
    return Problem(name, prompt, hidden, public, solution=line["code_sample"])


def _is_plain(line: Mapping[str, Any]) -> bool:
    """Whether a problem needs nothing but the standard library."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of their escapes in texts
            trees = [ast.parse(line[key]) for key in ("code_sample", "input_generator")]
    except (SyntaxError, ValueError):
        return False
    modules: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            modules |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").split(".")[0])
    return modules <= set(sys.stdlib_module_names)


def _is_keywords(given: object) -> bool:
    return isinstance(given, dict) and all(isinstance(name, str) for name in given)
