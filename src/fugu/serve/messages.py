"""Requests and answers: what `POST /act` takes and gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import FuguError
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Floats
from fugu.serve.arrays import read_bytes, read_numbers
from fugu.serve.fields import MOST_SHOWN, FieldError, read_keys, read_list, show
from fugu.serve.message_schema import MOST_AGENT, MOST_SEED, PLURALS, message_schema
from fugu.serve.schema import Schema, to_plain, write_state
from fugu.serve.sizes import largest_request
from fugu.serve.values import read_row
from fugu.spaces.action_sampler import ActionSampler

Column = list[tuple[str, Any]]  # fields and what they hold, one for each observation
_BEFORE = "the state of the answer before"


class BodyError(FuguError, ValueError):
    """A body that is no JSON."""


@dataclass(frozen=True)
class Ask:
    """A request, read.

    Attributes:
        rows: Observations as their layout packs them, `[batch, size]`.
        state: `[batch, state_size]`
        masks: `[batch, num_choices]`; None if all is allowed.
        agents: Whose observations they are, `[batch]`.
        rewards: What came of their actions before, `[batch]`.
        greedy: Whether to take the most probable choices and the means.
        seed: Of what is drawn; None if any will do.
        single: Whether one observation was sent and not a list.
    """

    rows: NDArray[Any]
    state: Floats
    masks: NDArray[np.bool_] | None
    agents: NDArray[np.int64]
    rewards: Floats
    greedy: bool
    seed: int | None
    single: bool


@dataclass(frozen=True)
class Answer:
    """Actions as their layout packs them, values `[batch, num_critics]`, and states."""

    actions: NDArray[Any]
    values: Floats
    state: Floats


class Messages:
    """Reads requests for a policy and writes answers.

    Args:
        facts: Of the policy.
        max_batch: Most observations of a request.
    """

    def __init__(self, facts: PolicyFacts, max_batch: int) -> None:
        self.facts, self.max_batch = facts, max_batch
        self._choices = ActionSampler(facts.action, facts.continuous).choices

    @property
    def largest(self) -> int:
        """The most bytes that a request may need."""
        return largest_request(self.facts, sum(self._choices), self.max_batch)

    def read(self, body: bytes) -> Ask:
        """The request of a body.

        Raises:
            BodyError: If it is no JSON.
            FieldError: If a part of it will not do.
        """
        tree = read_json(body)
        single = not (isinstance(tree, dict) and "observations" in tree)
        names = {name: name if single else plural for name, plural in PLURALS.items()}
        required, *optional = names.values()
        given = read_keys(tree, "", [required], [*optional, "greedy", "seed"])
        most = 1 if single else self.max_batch
        count = 1 if single else len(read_list(given[required], required, 1, most))
        parts = {name: _column(given, field, count, single) for name, field in names.items()}
        greedy, seed = given.get("greedy", True), given.get("seed")
        if not isinstance(greedy, bool):
            raise FieldError("greedy", show(greedy), "true or false")
        return Ask(
            rows=self._rows(parts["observation"]),
            state=self._states(parts["state"]),
            masks=self._masks(parts["mask"]),
            agents=_agents(parts["agent"]),
            rewards=_rewards(parts["reward"]),
            greedy=greedy,
            seed=None if seed is None else _integer(seed, "seed", MOST_SEED),
            single=single,
        )

    def _rows(self, column: Column) -> NDArray[Any]:
        layout = self.facts.observation
        rows = layout.zeros(len(column))
        for row, (field, value) in zip(rows, column, strict=True):
            read_row(layout, value, field, row)
        return rows

    def _states(self, column: Column) -> Floats:
        size = self.facts.state_size
        states = np.zeros((len(column), size), np.float32)
        for state, (field, value) in zip(states, column, strict=True):
            if value is None:
                continue
            if not size:
                raise FieldError(field, show(value), "null, since this policy remembers nothing")
            if not isinstance(value, str):
                raise FieldError(field, show(value), f"null, or {_BEFORE}")
            state[:] = read_bytes(np.dtype(np.float32), size, value, field)
            if not np.isfinite(state).all():
                raise FieldError(field, "a number that is not finite", _BEFORE)
        return states

    def _masks(self, column: Column) -> NDArray[np.bool_] | None:
        if all(value is None for _, value in column):
            return None
        masks = np.ones((len(column), sum(self._choices)), np.bool_)
        for mask, (field, value) in zip(masks, column, strict=True):
            if value is not None:
                mask[:] = self._mask(value, field)
        return masks

    def _mask(self, value: Any, field: str) -> list[bool]:
        count = sum(self._choices)
        if not count:
            raise FieldError(field, show(value), "null, since this policy has no choices")
        flags = read_list(value, field, count, count)
        for i, flag in enumerate(flags):
            if not isinstance(flag, bool | int) or flag not in (0, 1):
                raise FieldError(f"{field}[{i}]", show(flag), "true or false, or 1 or 0")
        begin = 0
        for choices in self._choices:
            if not any(flags[begin : begin + choices]):
                given = f"nothing allowed of the choices {begin} to {begin + choices - 1}"
                raise FieldError(field, given, "one choice at least of each head")
            begin += choices
        return flags

    def schema(self) -> Schema:
        """Of requests, answers and their parts."""
        return message_schema(self.facts, self._choices, self.max_batch)

    def write(self, ask: Ask, answer: Answer) -> bytes:
        """The body of an answer."""
        layout = self.facts.action
        columns = {
            "action": [to_plain(layout.unpack(row)) for row in answer.actions],
            "value": [self._value(values) for values in answer.values],
            "state": [write_state(s) if s.size else None for s in answer.state],
        }
        if ask.single:
            tree = {name: column[0] for name, column in columns.items()}
        else:
            tree = {f"{name}s": column for name, column in columns.items()}
        return json.dumps(tree, allow_nan=False).encode()

    def _value(self, values: Floats) -> Any:
        """That of the critic; of several, a list; null for what they do not know."""
        found = [float(value) if np.isfinite(value) else None for value in values]
        return (found or [None])[0] if self.facts.num_critics < 2 else found


def read_json(body: bytes) -> Any:
    """What a body says, numbers that are none included, so that they can be named."""
    try:
        return json.loads(body, object_pairs_hook=_unique)
    except RecursionError:
        raise BodyError("body: given JSON nested too deep; allowed: a request.") from None
    except FieldError:
        raise
    except ValueError as error:  # no JSON, no UTF-8, or an integer of thousands of digits
        raise BodyError(f"body: given what is no JSON ({error}); allowed: a request.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise FieldError(key[:MOST_SHOWN], "twice in one object", "once")
        found[key] = value
    return found


def _column(given: dict[str, Any], name: str, count: int, single: bool) -> Column:
    """One part of each observation of a request."""
    value = given.get(name)
    if single:
        return [(name, value)]
    items = [None] * count if value is None else read_list(value, name, count, count)
    return [(f"{name}[{i}]", item) for i, item in enumerate(items)]


def _agents(column: Column) -> NDArray[np.int64]:
    return np.array(
        [
            i if value is None else _integer(value, field, MOST_AGENT)
            for i, (field, value) in enumerate(column)
        ],
        np.int64,
    )


def _rewards(column: Column) -> Floats:
    numbers = [0.0 if value is None else _finite(value, field) for field, value in column]
    return np.array(numbers, np.float32)


def _integer(value: Any, field: str, most: int) -> int:
    bounds = np.array([0]), np.array([most])
    return int(read_numbers(np.dtype(np.int64), (), bounds, value, field))


def _finite(value: Any, field: str) -> float:
    return float(read_numbers(np.dtype(np.float32), (), (None, None), value, field))
