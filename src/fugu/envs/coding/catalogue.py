"""Collections of problems: some are ready, others are made when they are first asked for."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fugu.core.errors import UsageError
from fugu.envs.coding import codeio
from fugu.envs.coding.codeio import Runs
from fugu.envs.coding.problems import Problem, load_problems, read_package
from fugu.sandbox import Limits, Task

Split = Literal["train", "held_out", "all"]
HELD_OUT = 5  # one in so many


Make = Callable[[Runs], Problem | None]


class Problems:
    """Problems by number.

    Args:
        names: Of all, in their order.
        makers: What gives each; None if it cannot be had after all.
        texts: What to learn pairs of letters from.
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

    def get(self, runner: Runs, number: int, wanted: str | None = None) -> Problem:
        """The problem of that number, or the next that can be had; or the one of that name."""
        if wanted is not None:
            if wanted not in self.names:
                raise UsageError(f"problem: given {wanted!r}; allowed: {self.names[:5]} ...")
            number = self.names.index(wanted)
        for i in range(len(self)):
            place = (number + i) % len(self)
            if place not in self._made:
                self._made[place] = self._makers[place](runner)
            if (found := self._made[place]) is not None:
                return found
        raise UsageError("problems: given none whose own programs run; allowed: one or more.")


def find_problems(
    given: str | Path | Sequence[Problem], split: Split, limits: Mapping[str, Any]
) -> Problems:
    """Problems by their collection's name, from a file, or as they are.

    Args:
        given: Where they are.
        split: Which of them.
        limits: Fields of `Limits` that hold for all, whatever their tasks say.
    """
    if isinstance(given, str | Path):
        return _load(str(given), split, Limits(**limits))
    return _ready([_bound(problem, limits) for problem in given], split)


def _bound(problem: Problem, limits: Mapping[str, Any]) -> Problem:
    if not limits:
        return problem

    def bound(task: Task) -> Task:
        return replace(task, limits=replace(task.limits, **limits))

    public = problem.public and bound(problem.public)
    return replace(problem, hidden=bound(problem.hidden), public=public)


@functools.lru_cache(8)
def _load(name: str, split: Split, limits: Limits) -> Problems:
    """Read once in a process, however many copies ask for them."""
    if name == "codeio":
        return _codeio(split, limits)
    return _ready(load_problems(name, limits), split)


def _ready(problems: Sequence[Problem], split: Split) -> Problems:
    chosen = [problem for problem in problems if is_in(problem.name, split)]

    def texts() -> Iterable[str]:
        return (text for problem in chosen for text in (problem.prompt, problem.solution))

    makers = [lambda runner, found=problem: found for problem in chosen]
    return Problems([problem.name for problem in chosen], makers, texts)


def is_in(name: str, split: Split) -> bool:
    """Whether a problem of that name is on that side.

    >>> sum(is_in(f"p/{i}", "held_out") for i in range(1000))
    213
    """
    side = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    held_out = side % HELD_OUT == 0
    return split == "all" or held_out == (split == "held_out")


def _codeio(split: Split, limits: Limits) -> Problems:
    lines = {
        f"codeio/{number}": line
        for number, line in enumerate(read_package("codeio", "codeio.jsonl.gz"))
        if is_in(f"codeio/{number}", split)
    }
    makers = [
        lambda runner, name=name, line=line: codeio.make_problem(name, line, runner, limits)
        for name, line in lines.items()
    ]

    def texts() -> Iterable[str]:
        return (line["code_sample"] for line in lines.values())

    return Problems(list(lines), makers, texts)
