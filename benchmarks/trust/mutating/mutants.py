"""All mutants of some packages, without those that no test could tell from the original.

cosmic-ray says which changes there are and makes them. Left out are changes

- of annotations, of `if TYPE_CHECKING` blocks and of `from __future__` lines;
- inside of f-strings of exceptions that are raised, and of what is logged;
- from `==` to `is` and from `!=` to `is not`, or back: CPython shares small numbers and names;
- of `strict=True` of `zip` and `frozen=True` of dataclasses, which only guard against mistakes
  elsewhere in the code;
- that do not compile, or that compile to the same tree.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

ALIKE = ("Eq_Is", "NotEq_IsNot", "Is_Eq", "IsNot_NotEq")
Position = tuple[int, int]  # line from 1, column from 0


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        module: Path of the file, from the folder of the package `fugu`.
        line: Line that is changed.
        text: That line, before.
        operator: What cosmic-ray calls the change.
        occurrence: Which of the operator's places in the file it is.
        key: Name of the mutant, which edits elsewhere in the file leave as it is.
    """

    module: str
    line: int
    text: str
    operator: str
    occurrence: int
    key: str

    def apply(self, source: str) -> str | None:
        """Return the changed source, or nothing if it is no mutant."""
        operator = cosmic_ray.plugins.get_operator(self.operator)
        changed = mutate_code(source, operator(), self.occurrence)
        if changed is None:
            return None
        try:
            with warnings.catch_warnings(action="ignore"):
                compile(changed, self.module, "exec")
                same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
        except (SyntaxError, ValueError):
            return None
        return None if same else str(changed)


def sample(root: Path, packages: tuple[str, ...], count: int, seed: int) -> list[Mutant]:
    """Draw mutants, at most one of each place in the code: a place has up to eleven.

    The draw depends on the code of a place and not on what is before it, so that an edit of a file
    leaves most of a sample as it was.

    Args:
        root: Folder of the package `fugu`.
        packages: Folders in it.
        count: How many; 0: one of each place.
        seed: Another one draws others.
    """
    places = [
        place
        for package in packages
        for path in sorted((root / package).rglob("*.py"))
        for place in _places(path.relative_to(root).as_posix(), path.read_text())
    ]
    places.sort(key=lambda place: _random(seed, place[0].key.rpartition("|")[0]))
    drawn: list[Mutant] = []
    for place in places:
        source = (root / place[0].module).read_text()
        by_chance = sorted(place, key=lambda mutant: _random(seed, mutant.key))
        drawn += [mutant for mutant in by_chance if mutant.apply(source) is not None][:1]
        if len(drawn) == count:
            break
    return drawn


def _random(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed} {key}".encode()).digest()


def _places(module: str, source: str) -> list[list[Mutant]]:
    """All mutants of a file, by the place that they change."""
    tree, lines = get_ast(source), source.splitlines()
    skipped, scopes = list(_skipped(ast.parse(source), lines)), _scopes(ast.parse(source))
    nodes = [node for node in ast_nodes(tree) if not _inert(node)]
    found = defaultdict[tuple[str, Position, Position], list[tuple[str, int]]](list)
    for name in cosmic_ray.plugins.operator_names():
        operator = cosmic_ray.plugins.get_operator(name)
        if operator.arguments() or name.endswith(ALIKE):
            continue
        spots = (spot for node in nodes for spot in operator().mutation_positions(node))
        for occurrence, (start, end) in enumerate(spots):
            if not any(first <= start and end <= last for first, last in skipped):
                kind = name.partition("/")[2].partition("_")[0]
                found[kind, start, end].append((name, occurrence))
    seen = Counter[str]()
    places = []
    for (kind, start, _), changes in sorted(found.items(), key=lambda item: item[0][1:]):
        text = lines[start[0] - 1]
        scope = max((name for name in scopes if name[0] <= start[0] <= name[1]), default=(0, 0, ""))
        spot = f"{module}|{scope[2]}|{text.strip()}|{start[1]}|{kind}"
        seen[spot] += 1
        spot += f"|{seen[spot]}"
        offsets = Counter[str]()  # an operator may change one place in several ways
        mutants = []
        for name, occurrence in changes:
            offsets[name] += 1
            key = f"{spot}|{name.partition('/')[2]} {offsets[name]}"
            mutants.append(Mutant(module, start[0], text.strip(), name, occurrence, key))
        places.append(mutants)
    return places


def _inert(node: Any) -> bool:
    """Whether no operator changes this leaf of the tree, which most of them are."""
    return node.type in ("name", "string", "newline", "endmarker") or (
        node.type == "operator" and node.value in "()[]{},:.="
    )


def _scopes(tree: ast.Module) -> list[tuple[int, int, str]]:
    """First line, last line and name of all functions and classes."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return [(node.lineno, node.end_lineno or node.lineno, node.name) for node in nodes]


def _skipped(tree: ast.Module, lines: list[str]) -> Iterator[tuple[Position, Position]]:
    """Where changes are left out, as the top of the file says."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as inner) | ast.AnnAssign(annotation=inner):
                yield _span(inner, lines)
            case ast.FunctionDef(returns=ast.expr() as inner):
                yield _span(inner, lines)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.ImportFrom(module="__future__"):
                yield _span(node, lines)
            case ast.Raise(exc=ast.Call() as call):
                for inner in ast.walk(call):
                    if isinstance(inner, ast.JoinedStr):
                        yield _span(inner, lines)
            case ast.keyword(arg="strict" | "frozen", value=ast.Constant(value=True) as inner):
                yield _span(inner, lines)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
                yield _span(node, lines)


def _span(node: ast.expr | ast.stmt, lines: list[str]) -> tuple[Position, Position]:
    end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
    return (
        (node.lineno, _characters(lines[node.lineno - 1], node.col_offset)),
        (end_line, _characters(lines[end_line - 1], end_column)),
    )


def _characters(line: str, offset: int) -> int:
    """The column of a byte."""
    return len(line.encode()[:offset].decode())
