"""Workers in processes of their own, and how such processes are started."""

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
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import cloudpickle

from fugu.core.errors import UsageError
from fugu.vector.backends import Message
from fugu.vector.backends.local import MakeQueue, QueueBackend
from fugu.vector.shared_buffers import SharedBuffers
from fugu.vector.worker import PipeChannel, Setup, Worker

CLOSE_SECONDS = 3.0  # seconds for workers to close their environments before they are killed
DYING = 5.0  # seconds for a killed process to be gone
GUARD = "__main__"
SCRIPT = ("init_main_from_name", "init_main_from_path")  # in the data that starts a new process


class ProcessBackend(QueueBackend):
    """A process for each worker."""

    name = "process"
    reports_start = True

    def __init__(
        self,
        setup: Setup,
        buffers: SharedBuffers,
        make_queue: MakeQueue,
        num_workers: int,
        start_method: str,
    ) -> None:
        super().__init__(make_queue(buffers), buffers.num_envs, num_workers)
        self._context = context_of(start_method)
        # A fork has OpenCV's pool without its threads: telling it to end them may wait for ever.
        one_thread = start_method != "fork" or "cv2" not in sys.modules
        self._job = Job(replace(setup, one_thread=one_thread), buffers, make_queue)
        self._traces = [tempfile.TemporaryFile() for _ in range(num_workers)]  # noqa: SIM115
        self._processes: list[BaseProcess] = []
        for worker in range(num_workers):
            process, channel = self._start(worker)
            self._processes.append(process)
            self._channels.append(channel)

    def _receive(self, worker: int) -> list[Message]:
        with contextlib.suppress(EOFError):  # its end is noticed by `death_of`
            return self._channels[worker].receive()
        return []

    def death_of(self, worker: int) -> tuple[str, str] | None:
        """Return the exit code or the signal, and the trace that Python still wrote."""
        code = self._processes[worker].exitcode
        if code is None:
            return None
        trace = self._read_trace(worker)
        if code >= 0:
            return "exited", f"with status {code}\n{trace}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return "killed", f"by {name}\n{trace}"

    def kill(self, worker: int) -> str:
        """End a stalled worker and return where it was."""
        process = self._processes[worker]
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGUSR1)  # faulthandler writes the stacks
            time.sleep(0.05)
        process.kill()
        process.join(timeout=DYING)
        return self._read_trace(worker)

    def restart(self, worker: int) -> None:
        """Start a new process in place of one that ended."""
        self._queue.revive(worker)
        _forget(self._processes[worker])
        self._channels[worker].close()
        self._processes[worker], self._channels[worker] = self._start(worker)

    def _start(self, worker: int) -> tuple[BaseProcess, PipeChannel]:
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
        return process, PipeChannel(ours)

    def close(self) -> None:
        """Wait a little for the processes, then end them."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for process in self._processes:
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
            _forget(process)
        self._processes = []
        for channel in self._channels:
            channel.close()
        for trace in self._traces:
            trace.close()

    def _read_trace(self, worker: int) -> str:
        trace = self._traces[worker]
        trace.seek(0)
        return trace.read().decode(errors="replace")


class Job:
    """What a process gets when it starts; the factory may be a lambda or live in a notebook."""

    def __init__(self, setup: Setup, buffers: SharedBuffers, make_queue: MakeQueue) -> None:
        self.setup, self.buffers, self.make_queue = setup, buffers, make_queue

    def __getstate__(self) -> tuple[Any, ...]:
        return cloudpickle.dumps((self.setup, self.make_queue)), self.buffers

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        pickled, self.buffers = state
        self.setup, self.make_queue = cloudpickle.loads(pickled)


class Descriptor:
    """A file descriptor that a starting process gets too."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor, (multiprocessing.reduction.DupFd(self.number),)


def _descriptor(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


def _run(job: Job, index: int, connection: Any, trace: Descriptor) -> None:
    """Run a worker in its process."""
    threading.Thread(target=end_with_learner, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the learner decides
    faulthandler.enable(trace.number)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, trace.number)
    one_thread_each()
    channel = PipeChannel(connection)
    queue = job.make_queue(job.buffers)
    queue.leave(index)  # its first sign of life
    channel.send(("hello", index), lambda: None)
    queue.send_mail(index, False)
    Worker(index, job.setup, job.buffers, queue, channel).run()


def one_thread_each() -> None:
    """Keep the libraries of environments from starting a thread a core in every worker."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def end_with_learner() -> None:
    """Wait for the learner's end, however it comes, and end this process as well."""
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


# ------------------------------------------------------------------ new processes and scripts


def context_of(start_method: str) -> Any:
    """Return the context that starts processes by a method."""
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(["fugu.vector.backends.process"])
    return context


def start(process: Any) -> None:
    """Start a process, without the script that this one runs if it has no guard.

    Python lets a new process import the script that its parent runs, unless it is forked. A script
    that does its work at the top level would do all of it again, in every process. So one without
    a guard, `if __name__ == "__main__":`, is left out; one with a guard is imported, since what
    stands above the guard may matter, such as the registration of an environment.

    `multiprocessing` does not look after the process: a fork of this process would terminate it at
    its own exit, and this process would wait for it at exit, however long that takes.
    """
    with nullcontext() if has_guard() else _without_script():
        process.start()
    looked_after: set[Any] = multiprocessing.process._children  # type: ignore[attr-defined]
    looked_after.discard(process)


def has_guard() -> bool:
    """Return whether the script that this process runs names `__main__`, or there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return path is None or GUARD in Path(path).read_text(errors="replace")
    except OSError:
        return True


@contextmanager
def _without_script() -> Iterator[None]:
    """Keep the script from processes that this thread starts."""
    usual, thread = spawn.get_preparation_data, threading.get_ident()

    def shorter(name: str) -> dict[str, Any]:
        data: dict[str, Any] = usual(name)
        if threading.get_ident() == thread:
            data = {key: value for key, value in data.items() if key not in SCRIPT}
        return data

    spawn.get_preparation_data = shorter
    try:
        yield
    finally:
        spawn.get_preparation_data = usual


def check_guard() -> None:
    """Raise if this runs while a child process imports its parent's script."""
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise UsageError(
            "given fugu.make at the top level of a script, which every worker process runs again; "
            'put it below: if __name__ == "__main__":'
        )
