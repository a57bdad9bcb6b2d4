"""Requests and answers of `POST /act`: how they are read, written and described.

Large requests are read in a child process: the JSON of a few images takes a tenth of a second, in
which no other thread of the process runs. The child takes frames on its input: the policy's facts,
then bodies. It answers each body with a pickle of a `Request` or an error, and ends with its input.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fugu.inference.engine import PolicyFacts
from fugu.nets.net import Floats
from fugu.serve.json_types import (
    MAX_SHOWN,
    JsonType,
    RequestError,
    Schema,
    integer,
    list_of,
    mismatch,
    null,
    nullable,
    object_of,
)
from fugu.serve.layout_types import Array, row_of, value_of
from fugu.spaces.action_sampler import ActionSampler

LARGE = 65_536  # bytes; a shorter body is read in about a millisecond
MAX_EXAMPLE = 2000  # characters; a longer one is not shown
MARGIN = 2  # times the longest usual form: for indentation and for needless digits
NAMES = 512  # characters of the names of all fields, `greedy` and `seed`


@dataclass(frozen=True)
class Ask:
    """The observations of a request, and how to act on them."""

    rows: NDArray[Any]  # [batch, size], observations as their layout packs them
    state: Floats  # [batch, state_size], before each observation
    masks: NDArray[np.bool_]  # [batch, num_choices], allowed choices of all heads side by side
    agents: NDArray[np.int64]  # [batch], the agent of each observation
    rewards: Floats  # [batch], of the previous actions
    greedy: bool  # whether to take the most probable choices and the means
    seed: int | None  # of the sampling; None: any
    single: bool  # whether one observation was sent rather than a list


@dataclass(frozen=True)
class Answer:
    """Actions and values for the observations of a request."""

    actions: NDArray[Any]  # [batch, size], as their layout packs them
    values: Floats  # [batch, num_critics]
    state: Floats  # [batch, state_size], after each action


class Messages:
    """Reads requests for a policy and writes answers.

    Args:
        facts: Layouts and sizes of the policy.
        max_batch: Maximum number of observations of a request.

    Attributes:
        largest: Bytes that a request may need, with a margin.
        example: A plain request.
        schema: JSON Schema of requests; under `$defs` that of their parts and of answers.
    """

    def __init__(self, facts: PolicyFacts, max_batch: int) -> None:
        self.facts, self.max_batch = facts, max_batch
        self._choices = ActionSampler(facts.action, facts.continuous).choices
        definitions = self._definitions()
        refs = {
            name: replace(kind, schema={"$ref": f"#/$defs/{name}"})
            for name, kind in definitions.items()
        }
        self._parts = parts = {
            "observation": refs["observation"],
            "state": nullable(refs["state"]),
            "mask": nullable(refs["mask"]),
            "agent": nullable(integer(0, 2**31 - 1)),
            "reward": nullable(Array(np.float32).type, 0.0),
        }
        common = {
            "greedy": nullable(Array(np.bool_).type, True),
            "seed": nullable(integer(0, 2**63 - 1)),
        }
        lists = {f"{name}s": list_of(kind, 1, max_batch) for name, kind in parts.items()}
        optional = {name: nullable(kind) for name, kind in lists.items()}
        self._one = object_of(parts | common)
        self._several = object_of(optional | {"observations": lists["observations"]} | common)
        self.largest = MARGIN * (max_batch * sum(kind.size for kind in parts.values()) + NAMES)
        self.example = self._one.example
        self.schema = self._schema(definitions)

    def _definitions(self) -> dict[str, JsonType]:
        """Return the types of an observation, a state and a mask."""
        size, choices = self.facts.state_size, sum(self._choices)
        state = Array(np.float32, (size,)).type
        mask = Array(np.bool_, (choices,), packed=False).type
        return {
            "observation": row_of(self.facts.observation),
            "state": state if size else null("this policy has no memory"),
            "mask": mask if choices else null("this policy has no choices"),
        }

    def _schema(self, definitions: dict[str, JsonType]) -> Schema:
        critics, number = self.facts.num_critics, {"type": ["number", "null"]}
        several = {"type": "array", "items": number, "minItems": critics, "maxItems": critics}
        answer = {name: {"$ref": f"#/$defs/{name}"} for name in ("action", "value")}
        answer["state"] = self._parts["state"].schema
        answers = {f"{name}s": {"type": "array", "items": part} for name, part in answer.items()}
        shown = len(json.dumps(self.example)) <= MAX_EXAMPLE
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "Requests of POST /act; under $defs their parts, and the answers.",
            "oneOf": [{"$ref": "#/$defs/request"}, {"$ref": "#/$defs/requests"}],
            "examples": [self.example] if shown else [],
            "$defs": {
                "request": self._one.schema,
                "requests": self._several.schema,
                "answer": {"type": "object", "properties": answer, "required": [*answer]},
                "answers": {"type": "object", "properties": answers, "required": [*answers]},
                **{name: kind.schema for name, kind in definitions.items()},
                "action": value_of(self.facts.action, packed=False).schema,
                "value": number if critics < 2 else several,
            },
        }

    def read(self, body: bytes) -> Ask:
        """Return the request of a body.

        Raises:
            RequestError: 400 if it is not JSON, 422 if a part of it is wrong.
        """
        tree = _read_json(body)
        single = not (isinstance(tree, dict) and "observations" in tree)
        found = (self._one if single else self._several).read(tree, "")
        columns = {name: self._column(found, name, single) for name in self._parts}
        blank = np.zeros(self.facts.state_size, np.float32)
        return Ask(
            rows=np.array(columns["observation"]),
            state=np.array([blank if state is None else state for state in columns["state"]]),
            masks=self._masks(columns["mask"], "mask" if single else "masks[{}]"),
            agents=np.array([i if a is None else a for i, a in enumerate(columns["agent"])]),
            rewards=np.array(columns["reward"], np.float32),
            greedy=bool(found["greedy"]),
            seed=found["seed"],
            single=single,
        )

    def _column(self, found: dict[Any, Any], name: str, single: bool) -> list[Any]:
        """Return one part of each observation."""
        if single:
            return [found[name]]
        count, column = len(found["observations"]), found[f"{name}s"]
        if column is None:
            return [self._parts[name].read(None, name)] * count
        if len(column) != count:
            raise mismatch(f"{name}s", f"a list of {count} items", f"a list of {len(column)} items")
        return list(column)

    def _masks(self, column: list[Any], field: str) -> NDArray[np.bool_]:
        masks = np.ones((len(column), sum(self._choices)), np.bool_)
        ends = np.cumsum(self._choices)
        for i, mask in enumerate(column):
            if mask is not None:
                masks[i] = mask
                for begin, end in zip(ends - self._choices, ends, strict=True):
                    if not mask[begin:end].any():
                        expected = f"at least one of the choices {begin} to {end - 1}"
                        raise mismatch(field.format(i), expected, "none of them")
        return masks

    def write(self, ask: Ask, answer: Answer) -> bytes:
        """Return the body of an answer."""
        columns = {
            "action": [self.facts.action.unpack(row) for row in answer.actions],
            "value": [self._value(values) for values in answer.values],
            "state": [
                base64.b64encode(state.astype("<f4").tobytes()).decode() if state.size else None
                for state in answer.state
            ],
        }
        if ask.single:
            tree: Any = {name: column[0] for name, column in columns.items()}
        else:
            tree = {f"{name}s": column for name, column in columns.items()}
        return json.dumps(tree, allow_nan=False, default=lambda array: array.tolist()).encode()

    def _value(self, values: Floats) -> Any:
        """Return the critic's number, or a list for several; null for what they do not know."""
        found = [float(value) if np.isfinite(value) else None for value in values]
        return (found or [None])[0] if self.facts.num_critics < 2 else found


def _read_json(body: bytes) -> Any:
    try:
        return _DECODER.decode(body.decode())
    except RecursionError:
        raise RequestError(400, "body", "expected a request; got JSON nested too deep.") from None
    except RequestError:
        raise
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        raise RequestError(400, "body", f"expected JSON of a request; got ({error}).") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise mismatch(twice[:MAX_SHOWN], "each key once in an object", "it twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


# ---------------------------------------------------------------------- large requests


class RequestReader:
    """Reads requests: small ones at once, large ones one after another in a child process.

    A large request may take so many seconds, including the wait for its turn.
    """

    def __init__(self, messages: Messages, seconds: float) -> None:
        self._messages, self._seconds = messages, seconds
        self._turn, self._child = asyncio.Lock(), None

    _child: Process | None

    async def read(self, body: bytes) -> Ask:
        """Return the request of a body; RequestError if it is wrong or cannot be read (503)."""
        if len(body) <= LARGE:
            return self._messages.read(body)
        try:
            async with asyncio.timeout(self._seconds), self._turn:
                outcome: Ask | RequestError = pickle.loads(await self._exchange(body))
        except (TimeoutError, OSError, EOFError) as error:
            reason = f"it could not be read within {self._seconds:g} s. Send it again."
            raise RequestError(503, "body", reason) from error
        if isinstance(outcome, RequestError):
            raise outcome
        return outcome

    async def start(self) -> Process:
        """Start the child."""
        begin = f"from {__name__} import main; main()"
        self._child = child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-c", begin, stdin=PIPE, stdout=PIPE
        )
        facts = self._messages.facts.to_json(), self._messages.max_batch
        assert child.stdin is not None
        child.stdin.write(_frame(pickle.dumps(facts)))
        return child

    async def close(self) -> None:
        """End the child; requests that it still reads are answered 503."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _exchange(self, body: bytes) -> bytes:
        child = self._child or await self.start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(_frame(body))
            await child.stdin.drain()
            size = int.from_bytes(await child.stdout.readexactly(8))
            return await child.stdout.readexactly(size)
        except BaseException:  # a child that has taken or given only a part cannot continue
            await asyncio.shield(self.close())
            raise


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(8) + data


def _read_frame(stream: IO[bytes]) -> bytes | None:
    size = stream.read(8)
    return stream.read(int.from_bytes(size)) if size else None


def main() -> None:
    """Read bodies in the child until its input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C, and ends its child
    taken, given = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not end up in a pickle
    first = _read_frame(taken)
    assert first is not None
    facts, max_batch = pickle.loads(first)
    messages = Messages(PolicyFacts.from_json(facts, "policy"), max_batch)
    while (body := _read_frame(taken)) is not None:
        outcome: Ask | RequestError
        try:
            outcome = messages.read(body)
        except RequestError as error:
            outcome = error
        given.write(_frame(pickle.dumps(outcome)))
        given.flush()
