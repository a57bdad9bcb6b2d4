"""Crews: who runs the workers. The caller itself, threads, or processes."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

import cloudpickle

from fugu.core.errors import UsageError
from fugu.vector.channel import Channel, LocalChannel, PipeChannel
from fugu.vector.faults import WorkerError
from fugu.vector.scripts import start
from fugu.vector.slab import Slab
from fugu.vector.worker import CLOSING, DONE, POLLING, TIMEOUT, Setup, Worker

if TYPE_CHECKING:
    from fugu._native import Exchange

CLOSE_SECONDS = 3.0  # seconds for workers to close their environments before they are killed
DYING = 5.0  # seconds for a killed process to be gone
MakeExchange = Callable[[Slab], "Exchange"]


class Crew(Protocol):
    """Runs the workers of one vector."""

    channels: list[Channel]

    def work(self, begin: int, end: int, count: int) -> None:
        """Get `count` environments of a range done, if that takes the caller."""
        raise NotImplementedError("work(begin, end, count)")

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """How a worker ended, ("exited" or "killed", detail), or None if it lives."""
        raise NotImplementedError("death_of(worker)")

    def kill(self, worker: int) -> str:
        """End a stalled worker; where it was. Raises a `WorkerError` if it cannot be ended."""
        raise NotImplementedError("kill(worker)")

    def restart(self, worker: int) -> None:
        """Begin a new worker in place of one that ended."""
        raise NotImplementedError("restart(worker)")

    def close(self) -> None:
        """End all workers; the exchange is closed already."""
        raise NotImplementedError("close()")


class SerialCrew:
    """The caller is the only worker."""

    def __init__(self, setup: Setup, slab: Slab, exchange: Exchange, num_workers: int) -> None:
        ours, theirs = LocalChannel.pair()
        self.channels: list[Channel] = [ours]
        self._exchange = exchange
        self._worker = Worker(0, setup, slab, exchange, theirs)

    def work(self, begin: int, end: int, count: int) -> None:
        """Serve that many environments; those that wait for something are not waited for."""
        faults = self._exchange.faults()
        while True:
            enough = (
                not self._worker.polls
                or self._exchange.wait_ready(begin, end, count, faults, 0.0) >= count
                or self._exchange.faults() != faults
            )
            event = self._worker.serve(count, 0.0 if enough else POLLING)
            if event in (DONE, TIMEOUT, CLOSING) and (enough or not self._worker.polls):
                return

    def death_of(self, worker: int) -> None:
        """It lives as long as its caller."""

    def kill(self, worker: int) -> str:
        """A caller does not notice that it stalls."""
        raise WorkerError("the caller is its own worker and cannot be ended")

    def restart(self, worker: int) -> None:
        """Never asked for."""

    def close(self) -> None:
        """Close the environments."""
        self._worker.close()


class ThreadCrew:
    """A thread a worker."""

    def __init__(
        self, setup: Setup, slab: Slab, make_exchange: MakeExchange, num_workers: int
    ) -> None:
        self.channels: list[Channel] = []
        self._threads: list[threading.Thread] = []
        for index in range(num_workers):
            ours, theirs = LocalChannel.pair()
            # Each has an exchange of its own over the same memory: it keeps a place in it.
            worker = Worker(index, setup, slab, make_exchange(slab), theirs)
            thread = threading.Thread(target=worker.run, name=f"fugu-{index}", daemon=True)
            self.channels.append(ours)
            self._threads.append(thread)
            thread.start()

    def work(self, begin: int, end: int, count: int) -> None:
        """The threads do."""

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """Threads end only by a mistake of ours or when Python ends."""
        return None if self._threads[worker].is_alive() else ("exited", "its thread is gone")

    def kill(self, worker: int) -> str:
        """A thread cannot be ended from outside."""
        frame = sys._current_frames().get(self._threads[worker].ident or -1)
        where = "".join(traceback.format_stack(frame)) if frame else "nobody knows where"
        raise WorkerError(
            f"given a thread that stalled in an environment; a thread cannot be ended from outside:"
            f" use backend='process' for environments that may stall. It is in:\n{where}"
        )

    def restart(self, worker: int) -> None:
        """Never: see `kill`."""
        raise WorkerError("given a thread that ended by itself; that should not be: report it")

    def close(self) -> None:
        """Wait for the threads; one that stalls is left to end with Python."""
        deadline = time.monotonic() + 5.0
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))


class ProcessCrew:
    """A process a worker."""

    def __init__(
        self,
        setup: Setup,
        slab: Slab,
        num_workers: int,
        make_exchange: MakeExchange,
        start_method: str,
    ) -> None:
        self._context: Any = multiprocessing.get_context(start_method)
        if start_method == "forkserver":
            self._context.set_forkserver_preload(["fugu.vector.crews"])
        # A fork has OpenCV's pool without its threads: telling it to end them may wait for ever.
        one_thread = start_method != "fork" or "cv2" not in sys.modules
        self._job = Job(replace(setup, one_thread=one_thread), slab, make_exchange)
        self._processes: list[BaseProcess | None] = [None] * num_workers
        self._traces = [tempfile.TemporaryFile() for _ in range(num_workers)]  # noqa: SIM115
        self.channels: list[Channel] = [None] * num_workers  # type: ignore[list-item]
        for worker in range(num_workers):
            self.restart(worker)

    def work(self, begin: int, end: int, count: int) -> None:
        """The processes do."""

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """The exit code or the signal, and what Python could still say."""
        process = self._processes[worker]
        if process is None or process.exitcode is None:
            return None
        code = process.exitcode
        trace = self._read_trace(worker)
        if code >= 0:
            return "exited", f"with status {code}\n{trace}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return "killed", f"by {name}\n{trace}"

    def kill(self, worker: int) -> str:
        """Ask where it is, then end it."""
        process = self._processes[worker]
        assert process is not None
        assert process.pid is not None
        if hasattr(signal, "SIGUSR1"):
            _signal(process.pid, signal.SIGUSR1)  # faulthandler writes the stacks
            time.sleep(0.05)
        process.kill()
        process.join(timeout=DYING)
        return self._read_trace(worker)

    def restart(self, worker: int) -> None:
        """Begin a new process in place of one that ended."""
        old = self._processes[worker]
        if old is not None:
            _forget(old)
            self.channels[worker].close()
        ours, theirs = self._context.Pipe(duplex=True)
        trace = self._traces[worker]
        trace.seek(0)
        trace.truncate()
        process = self._context.Process(
            target=_run,
            args=(self._job, worker, theirs, Descriptor(trace.fileno())),
            name=f"fugu-{worker}",
            daemon=True,
        )
        start(process)
        theirs.close()
        self._processes[worker], self.channels[worker] = process, PipeChannel(ours)

    def close(self) -> None:
        """Wait a little for the processes, then end them."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for process in self._processes:
            if process is not None:
                process.join(timeout=max(0.0, deadline - time.monotonic()))
                if process.exitcode is None:
                    process.kill()
                _forget(process)
        self._processes = [None] * len(self._processes)
        for channel in self.channels:
            channel.close()
        for trace in self._traces:
            trace.close()

    def _read_trace(self, worker: int) -> str:
        trace = self._traces[worker]
        trace.seek(0)
        return trace.read().decode(errors="replace")


class Job:
    """What a process gets when it starts; the factory may be a lambda or live in a notebook."""

    def __init__(self, setup: Setup, slab: Slab, make_exchange: MakeExchange) -> None:
        self.setup, self.slab, self.make_exchange = setup, slab, make_exchange

    def __getstate__(self) -> tuple[Any, ...]:
        return cloudpickle.dumps((self.setup, self.make_exchange)), self.slab

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        pickled, self.slab = state
        self.setup, self.make_exchange = cloudpickle.loads(pickled)


class Descriptor:
    """A file descriptor that a starting process gets too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor, (multiprocessing.reduction.DupFd(self.number),)


def _descriptor(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


def _run(job: Job, index: int, connection: Any, trace: Descriptor) -> None:
    """The life of a worker process."""
    threading.Thread(target=end_with_learner, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner decides
    faulthandler.enable(trace.number)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, trace.number)
    one_thread_each()
    channel = PipeChannel(connection)
    exchange = job.make_exchange(job.slab)
    exchange.leave(index)  # its first sign of life
    channel.send(("hello",), lambda: None)
    exchange.send_mail(index, False)
    Worker(index, job.setup, job.slab, exchange, channel).run()


def one_thread_each() -> None:
    """Keep the libraries of environments from starting a thread a core in every worker."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def end_with_learner() -> None:
    """Wait for the learner's end, however it comes, and go as well."""
    if sys.platform == "linux":  # the kernel's way too, should an environment never let go
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    learner = multiprocessing.parent_process()
    assert learner is not None
    multiprocessing.connection.wait([learner.sentinel])
    os._exit(1)


def _forget(process: BaseProcess) -> None:
    """Let go of a process that ended or was killed."""
    process.join(timeout=DYING)
    if process.exitcode is not None:  # else the kernel still holds it; it runs no code any more
        process.close()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def check_guard() -> None:
    """Raise if this runs while a child process imports its parent's script."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise UsageError(
            "given fugu.make at the top level of a script, which every worker process runs again; "
            'put it below: if __name__ == "__main__":'
        )
