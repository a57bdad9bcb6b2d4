"""Executors, which run untrusted programs, and the self-test of their isolation."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from fugu.core.closing import Closing
from fugu.core.errors import UsageError
from fugu.sandbox.execution import Execution, Inputs, Limits, Program, SandboxError
from fugu.sandbox.guest.frames import Order
from fugu.sandbox.judge import Judge
from fugu.sandbox.session import Guest, OpenProgram, Request, Session

DEFAULT_LIMITS = Limits()
_ENVELOPE = 64  # bytes around an answer in a file


class Executor(Closing, ABC):
    """Runs one program at a time; a pool of executors runs many."""

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 0.0
    """Seconds that a guest may take to start, beyond a program's own time."""
    fallback: Executor | None = None
    """The executor that decides about programs that do not pass here."""

    @functools.cached_property
    def judge(self) -> Judge:
        """The judge that runs the checks of tasks that are graded here."""
        return Judge()

    def run(
        self, program: Program | str, inputs: Inputs = (), limits: Limits = DEFAULT_LIMITS
    ) -> Execution:
        """Call the program's entry with each input, or run the script once for each."""
        program = Program.of(program)
        if (refusal := refuse(program, limits)) is not None:
            return refusal
        execution = self._run(program, inputs, limits)
        if execution.verdict == "refused":  # its guest died, which may not be the program's fault
            execution = self._run(program, inputs, limits)
        return execution

    def session(self, program: Program, limits: Limits = DEFAULT_LIMITS) -> OpenProgram:
        """Return the program, loaded and waiting for calls; close it before the next."""
        if not program.entry:
            raise UsageError(
                "a session: given a script; allowed: a program with an entry, as in "
                "Program(source, 'solve')."
            )
        return self._open(program, (), limits, interactive=True)

    def facts(self) -> dict[str, Any]:
        """Return how it runs programs, for people to read."""
        return {"backend": self.name}

    def close(self) -> None:
        """End all processes that it has started."""
        judge: Judge | None = self.__dict__.pop("judge", None)
        if judge is not None:
            judge.close()

    @abstractmethod
    def _begin(self, request: Request, limits: Limits) -> Guest:
        """Return a guest that awaits the request."""
        raise NotImplementedError("_begin(request, limits) -> Guest")

    def _run(self, program: Program, inputs: Inputs, limits: Limits) -> Execution:
        with self._open(program, inputs, limits, interactive=False) as session:
            session.answers()
            return session.execution

    def _open(
        self, program: Program, inputs: Inputs, limits: Limits, *, interactive: bool
    ) -> Session:
        request = Request.of(program, inputs, limits, interactive=interactive)
        guest = self._begin(request, limits)
        return Session(guest, request, limits, start_seconds=self.start_seconds)


def refuse(program: Program, limits: Limits) -> Execution | None:
    """Return the result of a program that is too long to be run; None for any other."""
    if len(program.source) <= limits.source:
        return None
    given = f"{len(program.source)} characters of source, where {limits.source} are allowed"
    return Execution("refused", message=given)


def pack_order(request: Request, limits: Limits, scratch: int = 0, *, batch: bool = False) -> bytes:
    """Return limits as a guest reads them."""
    file_bytes = max(limits.output, request.longest, scratch)
    if batch:  # the request is in a file in memory, and the answers follow it
        answers = limits.result + _ENVELOPE * (2 + request.answers)
        file_bytes = max(file_bytes, len(request.payload) + answers)
    cpu, wall = limits.cpu_seconds, limits.wall_seconds
    return Order(cpu, wall, limits.memory, file_bytes, limits.output).pack()


# ---------------------------------------------------------------------- self-test

_PROBE = """
import ctypes, os, platform, resource, signal, socket, threading

def probe():
    opened = []

    def attempt(part, act):
        try:
            act()
        except BaseException:
            return
        if part not in opened:
            opened.append(part)

    def write(folder):
        path = os.path.join(folder, f"fugu-self-test-{os.getpid()}")
        with open(path, "w"):
            os.remove(path)

    def fork():
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)

    def thread():
        other = threading.Thread(target=int)
        other.start()
        other.join()

    def environment():
        if not os.environ:
            raise KeyError

    def reach(number):
        libc = ctypes.CDLL(None, use_errno=True)
        nothing = [ctypes.c_long(-1)] * 6
        if libc.syscall(number, *nothing) == -1 and ctypes.get_errno() in (1, 38):
            raise PermissionError

    for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK"):
        for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"):
            def connect(family=family, kind=kind):
                socket.socket(getattr(socket, family), getattr(socket, kind)).close()
            attempt("network", connect)
    attempt("network", lambda: socket.socketpair())
    for path in ("/etc/passwd", "/etc/hostname", "/usr/bin/env"):
        attempt("files", lambda path=path: open(path, "rb").read(1))
    for path in ("/etc", "/home"):
        attempt("files", lambda path=path: os.listdir(path))
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/", os.path.dirname(os.__file__)):
        attempt("writing", lambda folder=folder: write(folder))
    attempt("processes", fork)
    attempt("processes", lambda: os.posix_spawn("/bin/true", ["true"], {}))
    attempt("threads", thread)
    attempt("signals", lambda: os.kill(os.getppid(), 0))
    attempt("limits", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    attempt("environment", environment)
    attempt("memory", lambda: bytearray(256 << 20))
    # execve ptrace io_uring_setup bpf keyctl perf_event_open mount unshare setns
    # process_vm_readv userfaultfd pidfd_open memfd_create shmget
    numbers = {
        "x86_64": (59, 101, 425, 321, 250, 298, 165, 272, 308, 310, 323, 434, 319, 29),
        "aarch64": (221, 117, 425, 280, 219, 241, 40, 97, 268, 270, 282, 434, 279, 194),
    }
    for number in numbers.get(platform.machine(), ()):
        attempt("kernel", lambda number=number: reach(number))
    return opened
"""
_MEMORY = 64 << 20
_FLOOD = "print('x' * (1 << 20))"
_LOOP = "while True: pass"


def find_missing_isolation(executor: Executor) -> tuple[str, ...]:
    """Return the parts of an executor's isolation that a program of ours can break, by name."""
    probe = Program(_PROBE, "probe")
    found = executor.run(probe, [()], Limits(cpu_seconds=5, memory=_MEMORY))
    if found.verdict != "passed":
        return (f"the self-test itself ({found.verdict}: {found.message})",)
    opened: list[str] = list(found.outputs[0].value)
    if executor.run(_FLOOD, limits=Limits(output=1 << 14)).verdict != "output":
        opened.append("output")
    if executor.run(_LOOP, limits=Limits(cpu_seconds=0.02, wall_seconds=5)).verdict != "timeout":
        opened.append("processor time")
    return tuple(opened)


def demand_isolation(executor: Executor, *, missing_walls: bool) -> tuple[str, ...]:
    """Test the isolation, and return what is missing.

    Raises:
        SandboxError: If something is missing, unless `missing_walls` allows that.
    """
    missing = find_missing_isolation(executor)
    if missing and not missing_walls:
        executor.close()
        raise SandboxError(
            f"the backend {executor.name}: given a system that does not isolate programs from: "
            f"{', '.join(missing)}; allowed: one that does (Linux 6.12 or later with Landlock "
            "and seccomp, or with bubblewrap). Run in a virtual machine and pass "
            "missing_walls=True (--missing-walls) if you trust the programs."
        )
    return missing
