"""JSON Schema of requests and answers."""

from __future__ import annotations

import json

from fugu.export.engine import PolicyFacts
from fugu.serve.schema import DIALECT, MOST_EXAMPLE, Schema, example, value_schema

MOST_SEED = 2**63 - 1
MOST_AGENT = 2**31 - 1
PLURALS = {
    "observation": "observations",
    "state": "states",
    "mask": "masks",
    "agent": "agents",
    "reward": "rewards",
}
"""Parts of a request, and what they are called in one of several observations."""


def message_schema(facts: PolicyFacts, choices: list[int], max_batch: int) -> Schema:
    """Of requests; of their parts and of answers under `$defs`.

    Args:
        facts: Of the policy.
        choices: How many each discrete head of its actions has.
        max_batch: Most observations of a request.
    """
    shown = {"observation": example(facts.observation)}
    return {
        "$schema": DIALECT,
        "title": "Requests of POST /act; under $defs their parts, and the answers.",
        "oneOf": [{"$ref": "#/$defs/request"}, {"$ref": "#/$defs/requests"}],
        "examples": [shown] if len(json.dumps(shown)) <= MOST_EXAMPLE else [],
        "$defs": {
            "request": _request(),
            "requests": _requests(max_batch),
            "answer": _answer(_ANSWER),
            "answers": _answer({f"{n}s": _list(part) for n, part in _ANSWER.items()}),
            "observation": value_schema(facts.observation),
            "action": value_schema(facts.action, packed=False),
            "state": _state(facts.state_size),
            "mask": _mask(choices),
            "value": _value(facts.num_critics),
        },
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_PARTS: Schema = {
    "observation": _ref("observation"),
    "state": _or_null(_ref("state")),
    "mask": _or_null(_ref("mask")),
    "agent": _or_null({"type": "integer", "minimum": 0, "maximum": MOST_AGENT, "default": 0}),
    "reward": _or_null({"type": "number", "default": 0}),
}
_COMMON: Schema = {
    "greedy": {"type": "boolean", "default": True},
    "seed": _or_null({"type": "integer", "minimum": 0, "maximum": MOST_SEED}),
}
_ANSWER: Schema = {
    "action": _ref("action"),
    "value": _ref("value"),
    "state": _or_null(_ref("state")),
}


def _request() -> Schema:
    return {
        "type": "object",
        "properties": _PARTS | _COMMON,
        "required": ["observation"],
        "additionalProperties": False,
    }


def _requests(max_batch: int) -> Schema:
    sizes = {"minItems": 1, "maxItems": max_batch}
    parts = {PLURALS[name]: _list(part) | sizes for name, part in _PARTS.items()}
    optional = {name: _or_null(part) for name, part in parts.items()}
    return {
        "type": "object",
        "properties": optional | {"observations": parts["observations"]} | _COMMON,
        "required": ["observations"],
        "additionalProperties": False,
    }


def _answer(parts: Schema) -> Schema:
    return {"type": "object", "properties": parts, "required": list(parts)}


def _state(size: int) -> Schema:
    if not size:
        return {"type": "null", "description": "This policy remembers nothing."}
    length = -(-size * 4 // 3) * 4
    return {
        "type": "string",
        "contentEncoding": "base64",
        "minLength": length,
        "maxLength": length,
        "description": "What came with the answer before; null begins an episode.",
    }


def _mask(choices: list[int]) -> Schema:
    if not choices:
        return {"type": "null", "description": "This policy has no choices."}
    return {
        "type": "array",
        "items": {"enum": [True, False, 1, 0]},
        "minItems": sum(choices),
        "maxItems": sum(choices),
        "description": f"Which are allowed, head by head: {', '.join(map(str, choices))}.",
    }


def _value(critics: int) -> Schema:
    number: Schema = {"type": ["number", "null"], "description": "What the critic expects."}
    if critics < 2:
        return number
    return _list(number) | {"minItems": critics, "maxItems": critics}
