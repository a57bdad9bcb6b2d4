"""Untrusted values and texts as bounded text that any writer, tokenizer or terminal can take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MOST_BITS = 2000  # of an integer that is written out; Python itself refuses 4,300 digits
_DEEPEST = 8
_BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def shown(value: Any, most: int = 200) -> str:
    """Return a plain value as Python writes it, cut to `most` characters.

    >>> shown([1, "a", (2,)]), shown(10**5000), shown("x" * 300, 5)
    ("[1, 'a', (2)]", '<an integer of 16610 bits>', "'xxxx")
    """
    pieces: list[str] = []
    room = most
    for piece in _pieces(value, most, _DEEPEST):
        pieces.append(piece[:room])
        room -= len(piece)
        if room <= 0:
            break
    return "".join(pieces)


def clean(text: str, most: int | None = None) -> str:
    """Return the first `most` characters of a text, a question mark for each lone surrogate."""
    return text[:most].encode("utf-8", "replace").decode("utf-8")


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, but for ends of lines and tabs.

    >>> printable("red: \x1b[31m\n")
    'red: \\x1b[31m\n'
    """
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else repr(letter)[1:-1]
        for letter in text
    )


def _pieces(value: Any, most: int, depth: int) -> Iterator[str]:
    kind = type(value)
    if kind is int and value.bit_length() > _MOST_BITS:
        yield f"<an integer of {value.bit_length()} bits>"
    elif kind in (str, bytes, bytearray):
        yield repr(value[:most])
    elif kind not in _BRACKETS:
        yield repr(value)
    elif depth == 0:
        yield "..."
    else:
        yield _BRACKETS[kind][0]
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(item, most, depth - 1)
            if kind is dict:
                yield ": "
                yield from _pieces(value[item], most, depth - 1)
        yield _BRACKETS[kind][1]
