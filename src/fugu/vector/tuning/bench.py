"""The bench: a process of its own to measure in, which can be ended whatever happens on it."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import pickle
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import cloudpickle

from fugu.core.closing import Closing
from fugu.core.errors import FuguError, UsageError
from fugu.vector.crews import end_with_learner
from fugu.vector.scripts import start

T = TypeVar("T")
PATIENCE = 6.0  # seconds for a bench that was told to end; it may have workers of its own to end


class BenchError(FuguError, RuntimeError):
    """What was to be measured failed, or ended the process."""


class StalledError(BenchError):
    """What was to be measured took too long."""


class Ended(BaseException):
    """The bench was told to end; no `Exception`, so that no environment catches it."""


class Bench(Closing):
    """Runs functions elsewhere, one at a time, each within a limit of time.

    After a failure the process is another one, so that nothing that is left of it disturbs what is
    measured next.
    """

    def __init__(self, start_method: str) -> None:
        known = multiprocessing.get_all_start_methods()
        if start_method not in known:
            raise UsageError(f"start_method: given {start_method!r}; allowed: {', '.join(known)}.")
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":  # as vectors have it: the first to start it decides
            self._context.set_forkserver_preload(["fugu.vector.crews"])
        self._process: Any = None
        self._connection: Any = None

    def run(self, limit: float, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns; a `BenchError` if it does not within `limit` seconds."""
        task = _pickled(function, arguments)
        if self._process is None:
            self._start()
        try:
            return self._ask(task, limit)  # type: ignore[no-any-return]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process and whatever runs below it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        self._connection.close()
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()

    def _start(self) -> None:
        self._connection, theirs = self._context.Pipe(duplex=True)
        self._process = self._context.Process(target=_serve, args=(theirs,), name="fugu-bench")
        start(self._process)
        theirs.close()

    def _ask(self, task: bytes, limit: float) -> Any:
        try:
            self._connection.send_bytes(task)
            if not self._connection.poll(limit):
                raise StalledError(f"no end after {limit:.0f} s")
            kind, content = pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise BenchError(self._last_words()) from None
        if kind == "error":
            raise BenchError(content)
        return content

    def _last_words(self) -> str:
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return (
            f"its process ended with status {code}. If this is at the top level of a script, put "
            'it below: if __name__ == "__main__":'
        )


def _pickled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    try:
        return bytes(cloudpickle.dumps((function, arguments)))
    except Exception as error:
        raise UsageError(
            f"given an environment or a setting that cannot be sent to another process ({error}); "
            "allowed: what cloudpickle takes, since tuning measures in a process of its own. "
            "Choose by hand: backend=..., num_workers=..."
        ) from error


def _serve(connection: Any) -> None:
    """The life of the bench."""
    threading.Thread(target=end_with_learner, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    signal.signal(signal.SIGTERM, _end)
    logging.getLogger("fugu.vector").setLevel(logging.CRITICAL)  # faults stand in the table
    try:
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))
    except (EOFError, ConnectionError, Ended):
        pass


def _answer(task: bytes) -> bytes:
    try:
        function, arguments = cloudpickle.loads(task)
        return pickle.dumps(("done", function(*arguments)))
    except (Exception, SystemExit) as error:
        return pickle.dumps(("error", f"{type(error).__name__}: {error}"))


def _end(_number: int, _frame: FrameType | None) -> None:
    raise Ended
