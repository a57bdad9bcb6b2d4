"""Executors by name: Monty, and those that start a process for each program."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from fugu.core.errors import MissingExtraError, UsageError
from fugu.sandbox import launch
from fugu.sandbox.execution import (
    Execution,
    Inputs,
    Limits,
    Outcome,
    Program,
    SandboxError,
    as_calls,
)
from fugu.sandbox.executor import DEFAULT_LIMITS, Executor, demand_isolation, pack_order, refuse
from fugu.sandbox.guest.codec import CodecError, decode, encode
from fugu.sandbox.guest.frames import HEADER, MARK, unpack_report
from fugu.sandbox.session import Guest, Line, OpenProgram, Request, SessionOver
from fugu.sandbox.zygote import ZygoteExecutor

Backend = Literal["zygote", "bubblewrap", "monty", "gvisor", "docker", "unsafe"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
_MAX_STDERR = 1 << 20


def make_executor(backend: Backend = "zygote", **options: Any) -> Executor:
    """Return an executor; `unsafe` does not isolate programs and must be asked for by that name.

    Args:
        backend: zygote, bubblewrap, monty, gvisor, docker or unsafe.
        **options: Of the backend: `missing_walls` of all that isolate programs, `jail` and
            `scratch` of the zygote (and of Monty's fallback, which is one), `image` of Docker.
    """
    makers: dict[str, Callable[..., Executor]] = {
        "zygote": ZygoteExecutor,
        "monty": lambda **given: MontyExecutor(ZygoteExecutor(**given)),
        "bubblewrap": BubblewrapExecutor,
        "gvisor": GvisorExecutor,
        "docker": DockerExecutor,
        "unsafe": UnsafeExecutor,
    }
    if backend not in makers:
        raise UsageError(f"backend: given {backend!r}; allowed: {', '.join(BACKENDS)}.")
    return makers[backend](**options)


def installed() -> tuple[Backend, ...]:
    """Return the backends that this machine can run; `unsafe` is not among them."""
    there = {
        "zygote": sys.platform == "linux",
        "bubblewrap": shutil.which("bwrap") is not None,
        "monty": importlib.util.find_spec("pydantic_monty") is not None,
        "gvisor": shutil.which("runsc") is not None,
        "docker": launch.engine_answers(),
    }
    return tuple(backend for backend in BACKENDS if there.get(backend, False))


class SingleExecutor(Executor):
    """Starts a process for each program."""

    start_seconds: ClassVar[float] = 10.0

    @abstractmethod
    def _command(self, limits: Limits) -> list[str]:
        """Return the command that starts the guest."""
        raise NotImplementedError("_command(limits) -> list[str]")

    def _begin(self, request: Request, limits: Limits) -> Guest:
        process = subprocess.Popen(
            self._command(limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment(),
            cwd="/",
            start_new_session=True,
        )
        guest = SingleGuest(process)
        with contextlib.suppress(EOFError):  # the report says why it does not read
            guest.line.send(pack_order(request, limits), time.monotonic() + self.start_seconds)
        return guest

    def _environment(self) -> dict[str, str]:
        return launch.ENVIRONMENT


class SingleGuest:
    """A process that runs one program and then reports on standard error how it ended."""

    settle = 5.0

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._process, self._errors = process, process.stderr
        self.line = Line(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
        process.stdout.close()
        process.stdin.close()
        os.set_blocking(self._errors.fileno(), False)
        self._stderr = bytearray()
        self._report: Mapping[str, Any] | None = None

    def report(self, patience: float) -> Mapping[str, Any] | None:
        """Return how the program ended; None if it has not after `patience` seconds."""
        deadline = time.monotonic() + patience
        while self._report is None:
            ended = self._read(deadline)
            self._report = _find_report(self._stderr)
            if self._report is None and ended:
                words = self._stderr.decode("utf-8", "replace").strip()[-500:]
                self._report = {"killed": "lost", "err": words.encode()}
            if self._report is not None:
                self._end()
            elif time.monotonic() >= deadline:
                return None
        return self._report

    def stop(self) -> None:
        """Kill the program, and the process that would have reported."""
        if self._report is None:
            self._kill()
            self._report = {"killed": "asked", "status": int(signal.SIGKILL)}
            self._end()

    def abandon(self) -> None:
        """Kill it."""
        self._kill()
        self._end()

    def _read(self, deadline: float) -> bool:
        """Read from standard error; return whether that was all."""
        if self._errors.closed:
            return True
        poller = select.poll()
        poller.register(self._errors, select.POLLIN)
        if not poller.poll(1000 * max(0.0, deadline - time.monotonic())):
            return False
        piece = os.read(self._errors.fileno(), 1 << 18)
        self._stderr += piece
        return not piece or len(self._stderr) > _MAX_STDERR

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _end(self) -> None:
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._errors.close()


class UnsafeExecutor(SingleExecutor):
    """A bare process without isolation or limits, except for time. For trusted programs."""

    name: ClassVar[str] = "unsafe"

    def _command(self, limits: Limits) -> list[str]:
        return launch.bare("once", "bare")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **launch.ENVIRONMENT}


class BubblewrapExecutor(SingleExecutor):
    """A bubblewrap and an interpreter for each program, with the kernel's isolation inside."""

    name: ClassVar[str] = "bubblewrap"

    def __init__(self, *, missing_walls: bool = False) -> None:
        self._words = launch.bubblewrap("once", "isolated")
        self.missing = demand_isolation(self, missing_walls=missing_walls)

    def _command(self, limits: Limits) -> list[str]:
        return self._words


class GvisorExecutor(SingleExecutor):
    """gVisor's kernel in user space for each program: slow, and the strongest isolation."""

    name: ClassVar[str] = "gvisor"
    start_seconds: ClassVar[float] = 30.0

    def __init__(self, *, missing_walls: bool = False) -> None:
        self._folder: Path | None = None
        launch.gvisor(Path("/"))  # raises if it is not installed
        self._folder = Path(tempfile.mkdtemp(prefix="fugu-gvisor-"))
        launch.small_root(self._folder)
        self.missing = demand_isolation(self, missing_walls=missing_walls)

    def close(self) -> None:
        """Remove the file system of its programs."""
        super().close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _command(self, limits: Limits) -> list[str]:
        if self._folder is None:
            raise SandboxError("gvisor: given a program after close(); allowed: before it.")
        return launch.gvisor(self._folder, "once", "isolated")


class DockerExecutor(SingleExecutor):
    """A container for each program, without network, of an image that is already there."""

    name: ClassVar[str] = "docker"
    start_seconds: ClassVar[float] = 60.0

    def __init__(self, *, image: str = "python:3.11-slim", missing_walls: bool = False) -> None:
        self._image = image
        if not launch.engine_answers():
            raise SandboxError(
                "docker: given no engine that answers; allowed: `docker version` shows a server. "
                "Start it, or choose the backend zygote."
            )
        self.missing = demand_isolation(self, missing_walls=missing_walls)

    def _command(self, limits: Limits) -> list[str]:
        return launch.docker(self._image, limits.memory, "once", "isolated")

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)  # of the command; the container gets none of it


def _find_report(text: bytearray) -> Mapping[str, Any] | None:
    """Return the report in the text of standard error, once it is complete."""
    start = text.find(MARK)  # the first: a program may print others
    if start < 0:
        return None
    begin = start + len(MARK)
    if len(text) < begin + HEADER.size:
        return None
    (size,) = HEADER.unpack_from(text, begin)
    body = text[begin + HEADER.size : begin + HEADER.size + size]
    return unpack_report(bytes(body)) if len(body) == size else None


class MontyExecutor(Executor):
    """Runs programs by Monty, an interpreter of a part of Python in worker processes.

    A program that passes has passed. All others, wrong or unknown to Monty, are decided by the
    fallback, since Monty's Python is not all of Python.
    """

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
        """Call the program's entry with each input; scripts go to the fallback."""
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
        """Return the program, loaded by Monty; one that it does not support has ended at once."""
        return _MontyProgram(self._module, self._pool, program, limits)

    def close(self) -> None:
        """End the workers and the fallback."""
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
        seconds = float(limits.cpu_seconds)
        bounds = {"max_feed_duration_secs": seconds, "max_memory": limits.memory}
        self._opened = pool.checkout(limits=bounds)
        self._session = self._opened.__enter__()
        with contextlib.suppress(SessionOver):
            self._feed(program.source)

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Outcome:
        """Call the function; SessionOver once Monty has failed."""
        if self._fault or self._execution is not None:
            raise SessionOver
        names = {"fugu_args": list(args), "fugu_kwargs": dict(kwargs or {})}
        value = self._feed(f"{self._entry}(*fugu_args, **fugu_kwargs)", names)
        try:
            value = decode(
                encode(value, self._limits.result)
            )  # plain values, as from other executors
        except CodecError as error:
            self._fault = str(error)
            raise SessionOver from None
        self._outputs.append(Outcome(value))
        return self._outputs[-1]

    def close(self) -> Execution:
        """Return the worker to its pool, and the result of the program."""
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
