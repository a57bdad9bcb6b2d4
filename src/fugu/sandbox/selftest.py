"""The self-test: before any program runs, one of ours tries every wall from inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fugu.sandbox.execution import Limits, Program, SandboxError

if TYPE_CHECKING:
    from fugu.sandbox.executor import Executor

_PROBE = """
import ctypes, os, platform, resource, signal, socket, threading

def probe():
    opened = []

    def attempt(wall, act):
        try:
            act()
        except BaseException:
            return
        if wall not in opened:
            opened.append(wall)

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


def find_missing_walls(executor: Executor) -> tuple[str, ...]:
    """The walls that do not hold, by name."""
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


def demand_walls(executor: Executor, *, missing_walls: bool) -> tuple[str, ...]:
    """Test the walls; SandboxError if one is missing, unless told that this is known."""
    missing = find_missing_walls(executor)
    if missing and not missing_walls:
        executor.close()
        raise SandboxError(
            f"the backend {executor.name}: given a system where these walls are missing: "
            f"{', '.join(missing)}; allowed: one where all hold (Linux 6.12 or later with Landlock "
            "and seccomp, or with bubblewrap). Run in a virtual machine and pass "
            "missing_walls=True (--missing-walls) if you trust the programs."
        )
    return missing
