"""A fast tier: Monty, an interpreter of a part of Python, in worker processes without the system.

What passes here has passed. All else, be it wrong or beyond what Monty knows, is decided by the
fall-back, since Monty's Python is not all of Python.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fugu.core.errors import MissingExtraError
from fugu.sandbox.execution import Execution, Inputs, Limits, Outcome, Program, as_calls
from fugu.sandbox.executor import DEFAULT_LIMITS, Executor, refuse
from fugu.sandbox.guest.codec import CodecError, decode, encode
from fugu.sandbox.session import Guest, OpenProgram, Request, SessionOver


class MontyExecutor(Executor):
    """Runs what Monty can, and hands the rest to `fallback`."""

    name: ClassVar[str] = "monty"

    def __init__(self, fallback: Executor) -> None:
        try:
            import pydantic_monty
        except ImportError:
            fallback.close()
            raise MissingExtraError("pydantic-monty", "coding") from None
        self._module = pydantic_monty
        self.fallback = fallback
        self._pool: Any = pydantic_monty.Monty(max_processes=1)
        self._pool.__enter__()

    def run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> Execution:
        """Call the program's entry with each input; scripts go to the fall-back."""
        assert self.fallback is not None
        program = Program.of(program)
        if not program.entry or refuse(program, limits) is not None:
            return self.fallback.run(program, inputs, limits)
        opened = self.session(program, limits)
        with contextlib.suppress(SessionOver):
            for args, kwargs in as_calls(inputs):
                opened.call(args, kwargs)
        execution = opened.close()
        if execution.verdict == "passed":
            return execution
        return self.fallback.run(program, inputs, limits)

    def session(self, program: Program, limits: Limits = DEFAULT_LIMITS) -> OpenProgram:
        """The program, loaded by Monty; one that it does not understand is over at once."""
        return _MontyProgram(self._module, self._pool, program, limits)

    def close(self) -> None:
        """End the workers, and the fall-back."""
        super().close()
        if self._pool is not None:
            self._pool.__exit__(None, None, None)
            self._pool = None
        if self.fallback is not None:
            self.fallback.close()

    def _begin(self, request: Request, limits: Limits) -> Guest:
        raise NotImplementedError("Monty has no guests: _begin(request, limits)")


class _MontyProgram:
    """One program in one worker of Monty."""

    def __init__(self, module: Any, pool: Any, program: Program, limits: Limits) -> None:
        self._module, self._entry, self._limits = module, program.entry, limits
        self._outputs: list[Outcome] = []
        self._printed = module.CollectString(limits.output)
        self._execution: Execution | None = None
        self._fault = ""
        self._began = time.monotonic()
        bounds = {
            "max_feed_duration_secs": float(limits.cpu_seconds),
            "max_memory": limits.memory,
        }
        self._opened = pool.checkout(limits=bounds)
        self._session = self._opened.__enter__()
        with contextlib.suppress(SessionOver):
            self._feed(program.source)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Outcome:
        """Call the function; SessionOver once Monty has given up."""
        if self._fault or self._execution is not None:
            raise SessionOver
        names = {"fugu_args": list(args), "fugu_kwargs": dict(kwargs or {})}
        value = self._feed(f"{self._entry}(*fugu_args, **fugu_kwargs)", names)
        try:
            value = decode(encode(value, self._limits.result))  # plain values, as from all others
        except CodecError as error:
            self._fault = str(error)
            raise SessionOver from None
        self._outputs.append(Outcome(value))
        return self._outputs[-1]

    def close(self) -> Execution:
        """Give the worker back and say what came of the program."""
        if self._execution is None:
            with contextlib.suppress(self._module.MontyError):
                self._opened.__exit__(None, None, None)
            self._execution = Execution(
                "error" if self._fault else "passed",
                tuple(self._outputs),
                self._fault,
                cpu_seconds=time.monotonic() - self._began,
                stdout=self._printed.output[: 1 << 16],
            )
        return self._execution

    def _feed(self, code: str, names: Mapping[str, Any] | None = None) -> Any:
        try:
            value = self._session.feed_run(
                code, inputs=dict(names or {}), print_callback=self._printed
            )
            if time.monotonic() - self._began > self._limits.cpu_seconds:
                raise TimeoutError("its calls together take too long")
            return value
        except Exception as error:  # Monty's own errors, and values that it cannot take or give
            self._fault = f"{type(error).__name__}: {error}"[:500]
            raise SessionOver from None
