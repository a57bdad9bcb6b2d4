"""Seccomp filters: decisions on system calls as a program for the kernel's packet filter.

A filter is a binary search over ranges of numbers, so that a call takes about eight steps.
"""

from __future__ import annotations

import struct

from .syscalls import EPERM, Decision, Rule

_LOAD, _AND, _EQUAL, _AT_LEAST, _JUMP, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x05, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4  # byte offsets in seccomp_data
_INSTRUCTION = struct.Struct("<HBBI")

Instruction = tuple[int, int, int, int]


def build(decisions: dict[int, Decision], default: Decision, architecture: int) -> bytes:
    """The filter that decides so, and by `default` on every other number."""
    head: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    code = head + _search(_ranges(decisions, default))
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _ranges(decisions: dict[int, Decision], default: Decision) -> list[tuple[int, Decision]]:
    """Where each run of equal decisions begins."""
    edges: list[tuple[int, Decision]] = [(0, decisions.get(0, default))]
    for number in sorted({n + step for n in decisions for step in (0, 1)} - {0}):
        decision = decisions.get(number, default)
        if not _same(decision, edges[-1][1]):
            edges.append((number, decision))
    return edges


def _same(one: Decision, other: Decision) -> bool:
    return type(one) is type(other) and one == other  # True is not the errno 1


def _search(ranges: list[tuple[int, Decision]]) -> list[Instruction]:
    if len(ranges) == 1:
        return _decide(ranges[0][1])
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    pivot = ranges[middle][0]
    if len(below) < 256:
        return [(_AT_LEAST, len(below), 0, pivot), *below, *above]
    return [(_AT_LEAST, 0, 1, pivot), (_JUMP, 0, 0, len(below)), *below, *above]


def _decide(decision: Decision) -> list[Instruction]:
    if decision is True:
        return [(_RETURN, 0, 0, _ALLOW)]
    if isinstance(decision, int):
        return [(_RETURN, 0, 0, _ERRNO | decision)]
    return _by_arguments(decision)


def _by_arguments(rule: Rule) -> list[Instruction]:
    code: list[Instruction] = []
    for tests in rule:
        for index, (offset, mask, value) in enumerate(tests):
            to_next = 3 * (len(tests) - index - 1) + 1  # over the other tests and the return
            code += [(_LOAD, 0, 0, offset), (_AND, 0, 0, mask), (_EQUAL, 0, to_next, value)]
        code.append((_RETURN, 0, 0, _ALLOW))
    return [*code, (_RETURN, 0, 0, _ERRNO | EPERM)]
