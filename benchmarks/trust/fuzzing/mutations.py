"""Ways in which a good file becomes a bad one."""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.arena import Arena, Odd

SIZES = (0, 1, 2, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40,
         2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 1.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**53 + 1, 2**63, -(2**63) - 1,
    10**400, float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip
TEXTS = (
    "", " ", "none", "true", "nan", "inf", "-1", "1e999", "0x10", "a" * 5000, "\x00",
    "é\u202e\U0001f421", "\ud800", "%s%n{0}{x}", "'; DROP TABLE players; --", "../../x",
    "../outside/x", "/etc/passwd",
    "~", ".", "..", "a/b", "a\\b", "con", "\n", "\x1b[2J", "[bold]", "os:system", "__class__",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, [], {}, [[]], [None], {"": None}, {"$float": "nan"}, {"$float": "x"}, {"$float": []},
    {"$float": None}, [1, "a", None], {"a": {"b": {}}}, [0] * 300, {"__class__": "x"},
)  # fmt: skip
DEEP = (10, 500, 2000, 100_000)

Mutation = Callable[[Random, bytes], bytes]


class Payload:
    """What a pickle would run if anybody loaded it: it makes the canary."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


def pickled(arena: Arena) -> bytes:
    """A pickle that makes the canary where it is loaded."""
    return pickle.dumps(Payload(arena.canary), protocol=2)


# ---------------------------------------------------------------------- bytes


def mutate_bytes(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """The bytes with one to four things done to them."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if others and random.random() < 0.1:
            data = splice(random, data, random.choice(others))
        else:
            data = random.choice(BYTES)(random, data)
    return data


def flip(random: Random, data: bytes) -> bytes:
    """Some bits are the other way round."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8, 32)) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def truncate(random: Random, data: bytes) -> bytes:
    """The end is missing."""
    return data[: random.choice((0, 1, 7, 8, random.randint(0, len(data)), max(len(data) - 1, 0)))]


def cut(random: Random, data: bytes) -> bytes:
    """Something in the middle is missing."""
    start, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    return data[:start] + data[end:]


def repeat(random: Random, data: bytes) -> bytes:
    """A part stands there several times."""
    start = random.randint(0, len(data))
    part = data[start : start + random.choice((1, 4, 16, 64))]
    return data[:start] + part * random.choice((2, 3, 100)) + data[start:]


def insert(random: Random, data: bytes) -> bytes:
    """Something else stands in between."""
    start = random.randint(0, len(data))
    return data[:start] + random.randbytes(random.choice((1, 2, 8, 40))) + data[start:]


def overwrite_number(random: Random, data: bytes) -> bytes:
    """A number of some width, such as a length, is another."""
    code = random.choice("bhiq")
    width = struct.calcsize(code)
    if len(data) < width:
        return data
    start = random.choice((0, 8, random.randint(0, len(data) - width)))
    start = min(start, len(data) - width)
    value = random.choice(SIZES) & ((1 << 8 * width) - 1)
    order = random.choice(("little", "big"))
    return data[:start] + value.to_bytes(width, order) + data[start + width :]  # type: ignore[arg-type]


def rewrite_digits(random: Random, data: bytes) -> bytes:
    """A number that is written as text is another."""
    found = list(re.finditer(rb"-?\d[\d.]*", data))
    if not found:
        return data
    match = random.choice(found)
    value = random.choice((*NUMBERS, *SIZES))
    return data[: match.start()] + str(value).encode() + data[match.end() :]


def splice(random: Random, data: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


BYTES: tuple[Mutation, ...] = (
    flip, flip, flip, truncate, cut, repeat, insert, overwrite_number, rewrite_digits,
)  # fmt: skip


# ---------------------------------------------------------------------- trees of JSON


def mutate_tree(random: Random, tree: Any, texts: Sequence[str] = TEXTS) -> Any:
    """A tree of plain values with one to three things done to it; the one given stays."""
    tree = json.loads(json.dumps(tree))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        tree = _mutate_node(random, tree, texts)
    return tree


def odd_value(random: Random, texts: Sequence[str] = TEXTS) -> Any:
    """What nobody expects."""
    return copy.deepcopy(random.choice(random.choice((NUMBERS, SIZES, texts, SHAPES))))


def _mutate_node(random: Random, tree: Any, texts: Sequence[str]) -> Any:
    places = list(_places(tree, 0))
    if not places or random.random() < 0.02:
        return odd_value(random, texts)
    holder, key = random.choice(places)
    match random.randrange(7):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            name = random.choice((*texts, f"{key}_", f"-{key}", str(key).upper()))
            holder[name] = holder.pop(key)
        case 2 if isinstance(holder, dict):
            holder[random.choice(texts)] = odd_value(random, texts)
        case 3:
            other, there = random.choice(places)
            if there in (other if isinstance(other, dict) else range(len(other))):
                holder[key] = json.loads(json.dumps(other[there]))
        case 4 if isinstance(holder[key], int | float):
            holder[key] = random.choice((*NUMBERS, *SIZES, str(holder[key]), [holder[key]]))
        case 5 if isinstance(holder, list):
            holder.insert(key, odd_value(random, texts))
        case _:
            holder[key] = odd_value(random, texts)
    return tree


def _places(tree: Any, depth: int) -> list[tuple[Any, Any]]:
    """All values of a tree, each as what holds it and its key there."""
    found: list[tuple[Any, Any]] = []
    if depth > 8:
        return found
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        found.append((tree, key))
        found += _places(tree[key], depth + 1)
    return found


def to_json(random: Random, tree: Any) -> bytes:
    """A tree as text; sometimes of another encoding, nested deeply, or with a key twice."""
    text = json.dumps(tree)
    chance = random.random()
    if chance < 0.02:
        return text.encode(random.choice(("utf-16", "utf-32", "utf-8-sig")))
    if chance < 0.04:
        depth = random.choice(DEEP)
        opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
        inner = opening * depth + random.choice(("", "1" + closing * depth))
        return text.replace(":", ": " + inner + ', "x":', 1).encode()
    if chance < 0.06 and text.startswith("{") and len(text) > 2:
        return (text[:-1] + ", " + text[1:]).encode()
    if chance < 0.07:
        return text.replace(": ", f': {"9" * random.choice((50, 5000))}, "x": ', 1).encode()
    return text.encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------- arrays of NumPy

DTYPES = ("|O", "<f8", ">f4", "<f4", "|b1", "<i8", "|u1", "<U5", "|S0", "|V8", "<M8[ns]", "<c16",
          "<f2", "|V0", "x", "", "<i999", "O8", "<f16")  # fmt: skip


def mutate_npy(random: Random, data: bytes, arena: Arena) -> bytes:
    """An .npy file with another header, another content, or a pickle in it."""
    try:
        length = int.from_bytes(data[8:10], "little")
        header: dict[str, Any] = ast.literal_eval(data[10 : 10 + length].decode("latin1"))
    except (ValueError, SyntaxError):
        return mutate_bytes(random, data)
    body = data[10 + length :]
    match random.randrange(8):
        case 0:
            header["descr"] = random.choice(DTYPES)
        case 1:
            header["descr"] = [("a", random.choice(DTYPES)), ("a", "<f4")]
        case 2:
            shape = list(header.get("shape", ()))
            for _ in range(random.choice((1, 2))):
                shape.insert(random.randint(0, len(shape)), random.choice((*SIZES, -1, -(2**63))))
            header["shape"] = tuple(shape)
        case 3:
            header["shape"] = random.choice(((), (0,), (-1,), "x", None, (1.5,), (2**70,), (0, 0)))
        case 4:
            header["fortran_order"] = random.choice((True, None, 2, "yes"))
        case 5:
            header.pop(random.choice(list(header)))
        case 6:
            header["descr"], body = "|O", pickled(arena)
        case _:
            return mutate_bytes(random, data)
    text = repr(header)
    if random.random() < 0.05:
        text = random.choice(("(" * 500, "{" + "'a':" * 300, "9" * 5000, "-" * 3000, text * 9))
    return npy_bytes(text, body, random.choice((1, 1, 1, 1, 2, 3, 9)))


def npy_bytes(header: str, body: bytes, version: int = 1) -> bytes:
    """The bytes of an .npy file."""
    text = header.encode("utf-8", "replace") + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text) & 0xFFFF)
    return b"\x93NUMPY" + bytes((version, 0)) + size + text + body


def odd_file(random: Random, arena: Arena) -> Odd:
    """Something that is no file."""
    targets = ("state.json", ".", "nowhere", "/dev/zero", "/dev/stdin", str(arena.outside / "x"),
               str(arena.outside / "secret.txt"), str(arena.outside), "../../x")  # fmt: skip
    return random.choice(
        (Odd("link", random.choice(targets)), Odd("pipe"), Odd("device"), Odd("folder"))
    )
