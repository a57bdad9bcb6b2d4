"""Dataclasses from JSON: every field is checked, every error says where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.errors import UsageError
from fugu.store.values import parse, plain


@dataclass(frozen=True)
class Leaf:
    name: str
    size: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    numbers: tuple[int, ...] | None = None
    best: Leaf | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


LEAVES = st.builds(
    Leaf, st.text(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from("ab")
)
TREES = st.builds(
    Tree,
    st.lists(LEAVES, max_size=3).map(tuple),
    st.none() | st.lists(st.integers(), min_size=1, max_size=3).map(tuple),
    st.none() | LEAVES,
    st.dictionaries(st.text(), st.text(), max_size=3),
)


@given(TREES)
def test_there_and_back(tree: Tree) -> None:
    assert parse(Tree, json.loads(json.dumps(plain(tree))), "here") == tree


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ([], r"here: given \[\]; allowed: an object"),
        ({}, "here: the key 'leaves' is missing; allowed: leaves, numbers, best, notes"),
        ({"leaves": [], "leafs": []}, "given the key 'leafs'; nearest allowed: 'leaves'"),
        ({"leaves": "x"}, r"here\.leaves: given 'x'; allowed: a list"),
        ({"leaves": [{"name": "x"}]}, r"here\.leaves\[0\]: the key 'size' is missing"),
        ({"leaves": [{"name": 3, "size": 1}]}, r"leaves\[0\]\.name: given 3; allowed: text"),
        ({"leaves": [{"name": "x", "size": True}]}, "size: given True; allowed: a number"),
        ({"leaves": [{"name": "x", "size": math.inf}]}, "size: given inf; allowed: a number"),
        ({"leaves": [{"name": "x", "size": 1, "kind": "c"}]}, "'c'; allowed: 'a', 'b'"),
        ({"leaves": [], "numbers": [1, 2.5]}, r"numbers\[1\]: given 2\.5; allowed: a whole"),
        ({"leaves": [], "notes": {"a": 1}}, r"notes\.a: given 1; allowed: text"),
        ({"leaves": [], "notes": ["a"]}, "notes: given .*; allowed: an object"),
        ({"leaves": [], "best": "y" * 100}, r"best: given 'y{76}\.\.\.; allowed: an object"),
    ],
)
def test_what_is_refused(given_: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(Tree, given_, "here")
