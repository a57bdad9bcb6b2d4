"""Fields of a request: errors that name them, lists and objects."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

from fugu.core.errors import FuguError

MOST_SHOWN = 60  # characters of what was given


class FieldError(FuguError, ValueError):
    """A part of a request that will not do.

    Attributes:
        field: Which, such as `observation.position[1]`.
    """

    def __init__(self, field: str, given: str, allowed: str) -> None:
        self.field, self.given, self.allowed = field, given, allowed
        super().__init__(f"{field}: given {given}; allowed: {allowed}.")

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str, str]]:
        return type(self), (self.field, self.given, self.allowed)


def read_list(value: Any, field: str, least: int, most: int) -> list[Any]:
    """A list of `least` to `most` items."""
    count = f"{most}" if least == most else f"{least} to {most}"
    allowed = f"a list of {count} items"
    if not isinstance(value, list):
        raise FieldError(field, show(value), allowed)
    if not least <= len(value) <= most:
        raise FieldError(field, f"{len(value)} items", allowed)
    return value


def read_keys(
    value: Any, field: str, required: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, Any]:
    """An object with these keys."""
    required = list(required)
    known = [*required, *optional]
    if not isinstance(value, dict):
        allowed = f"an object with the keys {', '.join(known)}"
        raise FieldError(field or "body", show(value), allowed)
    for key in value:
        if key not in known:
            (nearest,) = difflib.get_close_matches(key[:MOST_SHOWN], known, n=1, cutoff=0.0) or (
                "",
            )
            allowed = f"{', '.join(known)}" + (f" (nearest: {nearest})" if nearest else "")
            raise FieldError(
                name_below(field, key), "a key that is not known", allowed or "no keys"
            )
    for key in required:
        if key not in value:
            raise FieldError(name_below(field, key), "nothing", "a value, which is required")
    return value


def name_below(field: str, *keys: str) -> str:
    """The field of a key in an object.

    >>> name_below("observation", "position"), name_below("observation", "left wheel")
    ('observation.position', 'observation["left wheel"]')
    """
    for key in keys:
        plain = key.isidentifier()
        field = f"{field}.{key}" if plain else f"{field}[{json.dumps(key[:MOST_SHOWN])}]"
    return field.removeprefix(".")


def show(value: Any) -> str:
    """What was given, as JSON, shortened."""
    if isinstance(value, list):
        return f"a list of {len(value)} items"
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}...")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**MOST_SHOWN:
        return "an integer of very many digits"
    return json.dumps(value)
