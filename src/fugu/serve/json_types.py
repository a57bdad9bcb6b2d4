"""Types of JSON values, each with a reader, a JSON Schema and an example; errors of requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fugu.core.errors import FuguError, nearest_names

Schema = dict[str, Any]
MAX_SHOWN = 60  # characters of a value or a name in an error


class RequestError(FuguError, ValueError):
    """A request that is refused.

    Attributes:
        status: HTTP status of the answer.
        field: Part of the request at fault, such as `observation.position[1]`.
        problem: What is wrong with it.
        close: Whether the connection is closed, since the rest of the request is not read.
    """

    def __init__(self, status: int, field: str, problem: str, close: bool = False) -> None:
        self.status, self.field, self.problem, self.close = status, field, problem, close
        super().__init__(f"{field}: {problem}")

    def __reduce__(self) -> tuple[type[RequestError], tuple[int, str, str, bool]]:
        return RequestError, (self.status, self.field, self.problem, self.close)


def mismatch(field: str, expected: str, got: Any) -> RequestError:
    """Return the error for a field that holds something other than expected."""
    return RequestError(422, field, f"expected {expected}; got {got}.")


def show(value: Any) -> str:
    """Return a value as JSON, shortened."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} items"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def subfield(field: str, key: str) -> str:
    """Return the field of a key in the object at `field`.

    >>> subfield("observation", "position"), subfield("observation", "left wheel")
    ('observation.position', 'observation["left wheel"]')
    """
    key = key[:MAX_SHOWN]
    if not key.isidentifier():
        return f"{field}[{json.dumps(key)}]"
    return f"{field}.{key}" if field else key


@dataclass(frozen=True)
class JsonType:
    """A type of JSON values.

    Attributes:
        read: `read(value, field)` returns a client's value as Python has it, or raises a
            `RequestError` that names its field.
        schema: JSON Schema of the values.
        example: A plain value.
        size: Characters of the longest usual value, and of the separator behind it.
        required: Whether an object must have it.
    """

    read: Callable[[Any, str], Any]
    schema: Schema
    example: Any
    size: int
    required: bool = True


def nullable(kind: JsonType, default: Any = None) -> JsonType:
    """Return a type whose values may also be null or missing, which means the default."""

    def read(value: Any, field: str) -> Any:
        return default if value is None else kind.read(value, field)

    schema = {"anyOf": [kind.schema, {"type": "null"}], "default": default}
    return replace(kind, read=read, schema=schema, required=False)


def null(reason: str) -> JsonType:
    """Return the type of null alone, for a reason."""

    def read(value: Any, field: str) -> None:
        if value is not None:
            raise mismatch(field, f"null, since {reason}", show(value))

    return JsonType(read, {"type": "null", "description": reason}, None, 6, required=False)


def converted(kind: JsonType, convert: Callable[[Any], Any]) -> JsonType:
    """Return a type whose values are converted once they have been read."""
    return replace(kind, read=lambda value, field: convert(kind.read(value, field)))


def integer(low: int, high: int) -> JsonType:
    """Return the type of the integers from `low` to `high`; 1.0 is one as well.

    >>> integer(0, 2).schema
    {'type': 'integer', 'minimum': 0, 'maximum': 2}
    """

    def read(value: Any, field: str) -> int:
        number = int(value) if type(value) is float and value.is_integer() else value
        if type(number) is not int or not low <= number <= high:
            raise mismatch(field, f"an integer from {low} to {high}", show(value))
        return number

    schema = {"type": "integer", "minimum": low, "maximum": high}
    size = max(len(f"{bound}, ") for bound in (low, high))
    return JsonType(read, schema, min(max(0, low), high), size)


def list_of(kind: JsonType, least: int, most: int) -> JsonType:
    """Return the type of lists of `least` to `most` values of a type."""

    def read(value: Any, field: str) -> list[Any]:
        check_length(value, field, least, most)
        return [kind.read(item, f"{field}[{i}]") for i, item in enumerate(value)]

    schema = {"type": "array", "items": kind.schema, "minItems": least, "maxItems": most}
    return JsonType(read, schema, [kind.example] * least, len("[], ") + most * kind.size)


def tuple_of(kinds: Sequence[JsonType]) -> JsonType:
    """Return the type of lists with one value of each type."""

    def read(value: Any, field: str) -> tuple[Any, ...]:
        check_length(value, field, len(kinds), len(kinds))
        items = enumerate(zip(kinds, value, strict=True))
        return tuple(kind.read(item, f"{field}[{i}]") for i, (kind, item) in items)

    size = len("[], ") + sum(kind.size for kind in kinds)
    schema = tuple_schema([kind.schema for kind in kinds])
    return JsonType(read, schema, [kind.example for kind in kinds], size)


def tuple_schema(items: list[Schema]) -> Schema:
    """Return the JSON Schema of lists with one value for each schema."""
    schema: Schema = {"type": "array", "minItems": len(items), "maxItems": len(items)}
    return schema | ({"prefixItems": items, "items": False} if items else {})


def object_of(properties: Mapping[Any, JsonType]) -> JsonType:
    """Return the type of objects with these properties; what is read has the same keys."""
    kinds = {str(key): (key, kind) for key, kind in properties.items()}
    required = [name for name, (_, kind) in kinds.items() if kind.required]
    defaults = {key: kind.read(None, "") for key, kind in kinds.values() if not kind.required}

    def read(value: Any, field: str) -> dict[Any, Any]:
        if not isinstance(value, dict):
            names = ", ".join(kinds)
            raise mismatch(field or "body", f"an object with the keys {names}", show(value))
        for name in required:
            if name not in value:
                raise mismatch(subfield(field, name), "a value, which is required", "nothing")
        found = dict(defaults)
        for name, item in value.items():
            if name not in kinds:
                raise _unknown(subfield(field, name), name, list(kinds))
            key, kind = kinds[name]
            found[key] = kind.read(item, subfield(field, name))
        return found

    schema = {
        "type": "object",
        "properties": {name: kind.schema for name, (_, kind) in kinds.items()},
        "required": required,
        "additionalProperties": False,
    }
    size = len("{}, ") + sum(len(json.dumps(n)) + 2 + kind.size for n, (_, kind) in kinds.items())
    return JsonType(read, schema, {name: kinds[name][1].example for name in required}, size)


def _unknown(field: str, name: str, known: list[str]) -> RequestError:
    nearest = nearest_names(name[:100], known, 1, 0.6)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    keys = f"the keys {', '.join(known)}" if known else "no keys"
    return RequestError(422, field, f"expected {keys}; got an unknown one.{hint}")


def one_of(kinds: Sequence[JsonType]) -> JsonType:
    """Return the type of `{"index": i, "value": ...}` with a value of the type `kinds[i]`."""
    index = integer(0, len(kinds) - 1)
    anything = JsonType(lambda value, field: value, {}, None, 0)
    head = object_of({"index": index, "value": anything})

    def read(value: Any, field: str) -> tuple[int, Any]:
        chosen = head.read(value, field)["index"]
        return chosen, kinds[chosen].read(value["value"], f"{field}.value")

    constants = (replace(index, schema={"const": i}) for i in range(len(kinds)))
    options = [object_of({"index": i, "value": k}) for i, k in zip(constants, kinds, strict=True)]
    schema = {"oneOf": [option.schema for option in options]}
    return JsonType(read, schema, options[0].example, max(option.size for option in options))


def check_length(value: Any, field: str, least: int, most: int) -> None:
    """Raise unless a value is a list of `least` to `most` items."""
    if type(value) is not list or not least <= len(value) <= most:
        count = f"{most}" if least == most else f"{least} to {most}"
        raise mismatch(field, f"a list of {count} items", show(value))
