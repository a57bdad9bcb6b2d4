"""Large requests are read in a process of their own, so that nobody else waits meanwhile.

To read the JSON of some images takes a tenth of a second, in which no other thread of the process
runs. So a child process does it:

    python -m fugu.serve.reading

It takes pickles on its input: the policy's facts and the most observations of a request, then
bodies; and answers each body by a pickle of an `Ask` or of an error. It ends with its input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from fugu.core.errors import FuguError
from fugu.export.engine import PolicyFacts
from fugu.serve.fields import FieldError
from fugu.serve.messages import Ask, BodyError, Messages

LARGE = 65_536  # bytes; what is shorter is read in about a millisecond


class ReaderError(FuguError):
    """The process that reads large requests has failed, or is busy with others."""


class RequestReader:
    """Reads requests: small ones at once, large ones one after another in a child process.

    Args:
        messages: Reads the small ones.
        most: Most bytes of a body; where none is large there is no child.
        seconds: How long a large request may take, and wait for its turn.
    """

    def __init__(self, messages: Messages, most: int, seconds: float) -> None:
        self._messages, self._seconds, self._closed = messages, seconds, False
        self._threads = ThreadPoolExecutor(1, "fugu-serve-reader")  # waits for the child
        self._child: subprocess.Popen[bytes] | None = None
        if most > LARGE:
            self._threads.submit(self._start)

    async def read(self, body: bytes) -> Ask:
        """Return the request of a body.

        Raises:
            BodyError: If it is no JSON.
            FieldError: If a part of it is wrong.
            ReaderError: If the child has failed, or takes too long.
        """
        if len(body) <= LARGE:
            return self._messages.read(body)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                return await loop.run_in_executor(self._threads, self._ask, body)
        except TimeoutError:
            reason = f"body: it could not be read in {self._seconds:g} s. Send it again."
            raise ReaderError(reason) from None

    def close(self) -> None:
        """End the child; who still waits for it gets an error."""
        self._closed = True
        if self._child is not None:
            self._child.kill()
        self._threads.submit(self._end)
        self._threads.shutdown(wait=False)

    def _ask(self, body: bytes) -> Ask:
        try:
            child = self._child or self._start()
            outcome = _exchange(child, body)
        except Exception as error:
            self._end()  # who has taken or given a part only cannot go on
            raise ReaderError("body: it could not be read. Send it again.") from error
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise OSError("the server has stopped")
        command = [sys.executable, "-P", "-m", __name__]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._child = child
        assert child.stdin is not None
        pickle.dump((self._messages.facts.to_json(), self._messages.max_batch), child.stdin)
        child.stdin.flush()
        if self._closed:  # while it started
            child.kill()
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with contextlib.suppress(OSError):  # what it has not taken cannot be flushed
                child.communicate()


def _exchange(child: subprocess.Popen[bytes], body: bytes) -> Ask | Exception:
    assert child.stdin is not None
    assert child.stdout is not None
    pickle.dump(body, child.stdin)
    child.stdin.flush()
    outcome: Ask | Exception = pickle.load(child.stdout)
    return outcome


def main() -> None:
    """Read bodies until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends its child
    taken, given = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not end up in a pickle
    facts, max_batch = pickle.load(taken)
    messages = Messages(PolicyFacts.from_json(facts, "policy"), max_batch)
    while True:
        try:
            body = pickle.load(taken)
        except EOFError:
            return
        outcome: Ask | Exception
        try:
            outcome = messages.read(body)
        except (BodyError, FieldError) as error:
            outcome = error
        pickle.dump(outcome, given)
        given.flush()


if __name__ == "__main__":
    main()
