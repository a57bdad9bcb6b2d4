"""Find NaN and infinite numbers in rows with native code, and describe them in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.envs.contract import AgentGroup, Buffers, Env
from fugu.spaces import Layout

if native.available:
    from fugu._native import FiniteCheck

ADVICE = (
    "Find where it comes from; `fugu check` helps. If the environment means it, pass "
    "check_finite=False to fugu.make, or --vec.check-finite=false."
)
Span = tuple[int, int, int]  # byte offset, numbers, bytes of each


def make_check(groups: Sequence[AgentGroup], buffers: Sequence[Buffers]) -> FiniteCheck:
    """Return a check of all floating-point numbers that environments write.

    Observations count where an agent is live, final observations where its episode ended.
    """
    check = FiniteCheck()
    for group, rows in zip(groups, buffers, strict=True):
        spans = float_spans(group.observation_layout)
        if spans:
            check.add(_bytes(rows.observations), spans, rows.live)
            check.add(_bytes(rows.final), spans, rows.terminations, rows.truncations)
        for numbers in (rows.rewards, rows.costs):
            if numbers.size:
                whole = numbers.reshape(1, -1)
                check.add(_bytes(whole), [(0, numbers.size, numbers.itemsize)])
        if group.state_layout is not None:
            state_spans = float_spans(group.state_layout)
            for states in (rows.global_state, rows.final_state):
                if state_spans and states.size:
                    check.add(_bytes(states), state_spans)
    return check


def float_spans(layout: Layout) -> list[Span]:
    """Return where floating-point numbers stand in a row; neighbors of one type are one span.

    >>> from gymnasium import spaces
    >>> float_spans(Layout.of(spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Discrete(3))))
    [(0, 2, 4)]
    """
    found: list[Span] = []
    for leaf in layout.leaves:
        if leaf.dtype.kind != "f" or not leaf.nbytes:
            continue
        offset, count, size = leaf.offset, leaf.nbytes // leaf.dtype.itemsize, leaf.dtype.itemsize
        if found and found[-1][2] == size and found[-1][0] + found[-1][1] * size == offset:
            offset, count = found[-1][0], found[-1][1] + count
            found.pop()
        found.append((offset, count, size))
    return found


def say_what_is_not_finite(env: Env, copy_number: int) -> str:
    """Return an error's message that names the number, whose it is, and when it came."""
    where = env.where()
    return (
        f"environment {copy_number}: expected finite numbers; got "
        f"{first_not_finite(env.groups, env.buffers)}{f', in {where}' if where else ''}. {ADVICE}"
    )


def first_not_finite(groups: Sequence[AgentGroup], buffers: Sequence[Buffers]) -> str:
    """Return the first such number and its place, as "nan in observation position[1]"."""
    for group, rows in zip(groups, buffers, strict=True):
        ended = rows.terminations | rows.truncations
        layout, agents = group.observation_layout, group.agents
        found = (
            _in_rows("observation", layout, rows.observations, rows.live, agents)
            or _in_rows("final observation", layout, rows.final, ended, agents)
            or _in_numbers("reward", rows.rewards[:, None], agents)
            or _in_numbers("cost", rows.costs, agents)
        )
        if not found and group.state_layout is not None:
            every = np.ones(len(rows.global_state), np.bool_)
            found = _in_rows("global state", group.state_layout, rows.global_state, every, (None,))
        if found:
            return found
    return "a number of the final global state that is NaN or infinite"


def _in_rows(
    name: str, layout: Layout, rows: NDArray[Any], counts: NDArray[np.bool_], agents: Sequence[Any]
) -> str:
    """Describe the first number of some rows that is not finite; empty if there is none."""
    for leaf in layout.leaves:
        if leaf.dtype.kind != "f":
            continue
        part = _bytes(rows)[:, leaf.offset : leaf.offset + leaf.nbytes].copy().view(leaf.dtype)
        bad = ~np.isfinite(part) & counts[:, None]
        if bad.any():
            row, at = (int(index[0]) for index in np.nonzero(bad))
            path, whose = leaf.path, _of(agents, len(rows) // len(agents), row)
            for index in np.unravel_index(at, leaf.shape) if leaf.shape else ():
                path = f"{path}[{index}]"
            return f"{part[row, at]} in {name}{f' {path}' if path else ''}{whose}"
    return ""


def _in_numbers(name: str, numbers: NDArray[Any], agents: Sequence[Any]) -> str:
    bad = np.argwhere(~np.isfinite(numbers))
    if not len(bad):
        return ""
    row, column = bad[0].tolist()
    which = f"[{column}]" if numbers.shape[1] > 1 else ""
    whose = _of(agents, len(numbers) // len(agents), row)
    return f"{numbers[row, column]} as {name}{which}{whose}"


def _of(agents: Sequence[Any], copies: int, row: int) -> str:
    agent = f" of agent {agents[row % len(agents)]!r}" if len(agents) > 1 else ""
    return f"{agent} of copy {row // len(agents)}" if copies > 1 else agent


def _bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return rows as bytes, `[rows, bytes of one]`."""
    return rows.view(np.uint8).reshape(len(rows), -1)
