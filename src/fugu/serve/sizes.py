"""How many bytes a request can need, from the layouts of its policy."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np

from fugu.export.engine import PolicyFacts
from fugu.native.nodes import (
    ArrayNode,
    ConvertedNode,
    DictNode,
    Node,
    OneOfNode,
    ScalarNode,
    SequenceNode,
    TextNode,
    TupleNode,
)

MARGIN = 2  # times the longest usual form: for indentation and for needless digits
FLOAT = len("-1.7976931348623157e+308, ")
BRACKETS = len("[], ")
CHARACTER = len("\\ud83d\\ude00")  # one character, escaped
REST = len('"agent": 2147483647, "reward": , ') + FLOAT  # the other fields of an observation
NAMES = 512  # the names of all fields, `greedy` and `seed`


def largest_request(facts: PolicyFacts, num_choices: int, max_batch: int) -> int:
    """Return the most bytes that a request of `max_batch` observations may need, with a margin.

    Nested lists are longer than base64 of the same numbers, so one limit serves both.

    Args:
        facts: Facts of the policy.
        num_choices: Number of choices of all discrete heads, which a mask lists.
        max_batch: Most observations of a request.
    """
    state = BRACKETS + -(-facts.state_size * 4 // 3) * 4
    mask = BRACKETS + num_choices * len("false, ")
    each = largest_value(facts.observation.root) + state + mask + REST
    return MARGIN * (max_batch * each + NAMES)


def largest_value(node: Node) -> int:
    """Return the length of the longest usual JSON of a node's values.

    >>> largest_value(ScalarNode("", np.dtype(np.int64), 0, 0, 255))
    5
    """
    match node:
        case ArrayNode():
            lists = sum(prod(node.shape[:axis]) for axis in range(len(node.shape)))
            return prod(node.shape) * _number(node.dtype) + lists * BRACKETS
        case ScalarNode():
            return max(len(f"{bound}, ") for bound in (node.low, node.high))
        case TextNode():
            return BRACKETS + node.capacity * CHARACTER
        case DictNode():
            keys = sum(len(json.dumps(str(key))) + len(": ") for key in node.keys)
            return BRACKETS + keys + sum(map(largest_value, node.children))
        case TupleNode():
            return BRACKETS + sum(map(largest_value, node.children))
        case SequenceNode():
            return BRACKETS + node.capacity * largest_value(node.child)
        case OneOfNode():
            return len('{"index": 99999, "value": }, ') + max(map(largest_value, node.children))
        case ConvertedNode():
            return largest_value(node.child)


def _number(dtype: np.dtype[Any]) -> int:
    """The length of the longest number of a type, and the comma behind it."""
    if dtype.kind == "b":
        return len("false, ")
    if dtype.kind == "f":
        return FLOAT
    bounds = np.iinfo(dtype).min, np.iinfo(dtype).max
    return max(len(f"{bound}.0, ") for bound in bounds)  # -128.0 is an integer as well
