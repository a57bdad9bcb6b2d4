"""Large requests are read in a child process, so that no other request waits meanwhile.

Reading the JSON of a few images takes a tenth of a second, in which no other thread of a process
runs. The child, `python -m fugu.serve.reading`, takes frames on its input: the policy's facts, then
bodies. It answers each body with a pickle of an `Ask` or an error, and ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from typing import IO

from fugu.export.engine import PolicyFacts
from fugu.serve.errors import RequestError
from fugu.serve.messages import Ask, Messages

LARGE = 65_536  # bytes; a shorter body is read in about a millisecond


class RequestReader:
    """Reads requests: small ones at once, large ones one after another in a child process.

    Args:
        messages: Reads the small ones.
        seconds: Time that a large request may take, including the wait for its turn.
    """

    def __init__(self, messages: Messages, seconds: float) -> None:
        self._messages, self._seconds = messages, seconds
        self._turn, self._child = asyncio.Lock(), None

    _child: Process | None

    async def read(self, body: bytes) -> Ask:
        """Return the request of a body.

        Raises:
            RequestError: If a part of it is wrong, or the child has failed or takes too long (503).
        """
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
        command = (sys.executable, "-P", "-m", __name__)
        self._child = child = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE
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
    """Read bodies until there are no more."""
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


if __name__ == "__main__":
    main()
