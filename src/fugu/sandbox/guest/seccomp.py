"""The system calls that a program may make, and the seccomp filters that refuse all others.

The tables list what is allowed; calls of future kernels are refused, too.
"""

from __future__ import annotations

import os
import platform
import struct

# fmt: off
_X86_64 = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19, "writev": 20,
    "access": 21, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28,
    "dup": 32, "dup2": 33, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38,
    "getpid": 39, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "clone": 56,
    "fork": 57, "vfork": 58, "exit": 60, "wait4": 61, "kill": 62, "uname": 63, "fcntl": 72,
    "ftruncate": 77, "getcwd": 79, "chdir": 80, "rename": 82, "mkdir": 83, "rmdir": 84,
    "unlink": 87, "readlink": 89, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98,
    "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110,
    "rt_sigpending": 127, "sigaltstack": 131, "prctl": 157, "setrlimit": 160, "gettid": 186,
    "tkill": 200, "time": 201, "futex": 202, "sched_getaffinity": 204, "getdents64": 217,
    "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "epoll_ctl": 233, "tgkill": 234, "waitid": 247, "openat": 257, "mkdirat": 258,
    "newfstatat": 262, "unlinkat": 263, "renameat": 264, "readlinkat": 267, "faccessat": 269,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "epoll_pwait": 281, "eventfd2": 290,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "prlimit64": 302, "renameat2": 316,
    "seccomp": 317, "getrandom": 318, "memfd_create": 319, "membarrier": 324, "statx": 332,
    "rseq": 334, "pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436,
    "openat2": 437, "faccessat2": 439,
}
_AARCH64 = {
    "getcwd": 17, "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22,
    "dup": 23, "dup3": 24, "fcntl": 25, "ioctl": 29, "mkdirat": 34, "unlinkat": 35,
    "renameat": 38, "ftruncate": 46, "faccessat": 48, "chdir": 49, "openat": 56, "close": 57,
    "pipe2": 59, "getdents64": 61, "lseek": 62, "read": 63, "write": 64, "readv": 65,
    "writev": 66, "pread64": 67, "pwrite64": 68, "pselect6": 72, "ppoll": 73, "readlinkat": 78,
    "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "waitid": 95,
    "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "nanosleep": 101,
    "getitimer": 102, "setitimer": 103, "clock_gettime": 113, "clock_getres": 114,
    "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128,
    "kill": 129, "tkill": 130, "tgkill": 131, "sigaltstack": 132, "rt_sigaction": 134,
    "rt_sigprocmask": 135, "rt_sigpending": 136, "rt_sigreturn": 139, "times": 153, "uname": 160,
    "getrlimit": 163, "setrlimit": 164, "getrusage": 165, "prctl": 167, "gettimeofday": 169,
    "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177,
    "gettid": 178, "sendto": 206, "recvfrom": 207, "sendmsg": 211, "recvmsg": 212, "brk": 214,
    "munmap": 215, "mremap": 216, "clone": 220, "mmap": 222, "fadvise64": 223, "mprotect": 226,
    "madvise": 233, "wait4": 260, "prlimit64": 261, "renameat2": 276, "seccomp": 277,
    "getrandom": 278, "memfd_create": 279, "membarrier": 283, "statx": 291, "rseq": 293,
    "pidfd_send_signal": 424, "pidfd_open": 434, "clone3": 435, "close_range": 436,
    "openat2": 437, "faccessat2": 439,
}
_ALWAYS = (
    "read", "write", "close", "stat", "fstat", "lstat", "newfstatat", "statx", "poll", "ppoll",
    "select", "pselect6", "lseek", "mmap", "mprotect", "munmap", "mremap", "madvise", "brk",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "sigaltstack", "pread64",
    "pwrite64", "readv", "writev", "access", "faccessat", "faccessat2", "pipe", "pipe2",
    "sched_yield", "dup", "dup2", "dup3", "nanosleep", "clock_nanosleep", "getitimer", "alarm",
    "setitimer", "getpid", "gettid", "getppid", "getuid", "getgid", "geteuid", "getegid", "uname",
    "ftruncate", "getcwd", "readlink", "readlinkat", "gettimeofday", "time", "times",
    "clock_gettime", "clock_getres", "getrlimit", "getrusage", "futex", "sched_getaffinity",
    "getdents64", "restart_syscall", "fadvise64", "exit", "exit_group", "epoll_create1",
    "epoll_ctl", "epoll_wait", "epoll_pwait", "eventfd2", "getrandom", "membarrier", "rseq",
    "set_robust_list", "set_tid_address",
)
_SCRATCH = (
    "chdir", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "rmdir", "unlink", "unlinkat",
)
# Calls that the zygote needs, and that each program loses.
_SERVING = (
    "clone", "fork", "vfork", "wait4", "waitid", "kill", "pidfd_open", "pidfd_send_signal",
    "sendto", "recvfrom", "sendmsg", "recvmsg", "prctl", "seccomp", "prlimit64", "setrlimit",
    "memfd_create", "close_range", "tgkill",
)
# fmt: on

_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
_ALL = 0xFFFFFFFF
ENOSYS, EPERM = 38, 1

Test = tuple[int, int, int]
"""An argument's half (byte offset in seccomp_data), a mask and the value it must then have."""
Rule = tuple[tuple[Test, ...], ...]
"""Alternatives: allowed if all tests of one hold."""
Decision = bool | int | Rule
"""True: allowed. A number: refused with this errno. A rule: it depends on the arguments."""


# The kernel's number of this kind of processor, and its system calls; none if it is unknown.
ARCHITECTURE, NUMBERS = _MACHINES.get(platform.machine(), (0, {}))


def low(argument: int) -> int:
    """Return the byte offset of the lower half of an argument; the upper half follows."""
    return 16 + 8 * argument


def serving(*, scratch: bool) -> dict[int, Decision]:
    """Return what the zygote may do, and so all its children; all else is refused."""
    table = NUMBERS
    allowed = _ALWAYS + _SERVING + (_SCRATCH if scratch else ())
    decisions: dict[int, Decision] = {table[name]: True for name in allowed if name in table}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
    decisions[table["openat"]] = True if scratch else (((low(2), writing, 0),),)
    # F_DUPFD to F_SETLK and F_DUPFD_CLOEXEC: nothing that sends signals or holds leases
    decisions[table["fcntl"]] = (((low(1), _ALL - 7, 0),), ((low(1), _ALL, 1030),))
    # TCGETS, FIONCLEX, FIOCLEX
    decisions[table["ioctl"]] = tuple(
        ((low(1), _ALL, request),) for request in (0x5401, 0x5450, 0x5451)
    )
    for name in ("clone3", "openat2"):  # the C library then takes the older call
        decisions[table[name]] = ENOSYS
    return decisions


def programs(pid: int) -> dict[int, Decision]:
    """Return what is refused to the program in process `pid`, in addition to `serving`."""
    table = NUMBERS
    decisions: dict[int, Decision] = {table[name]: EPERM for name in _SERVING if name in table}
    itself = (((low(0), _ALL, pid),),)
    for name in ("kill", "tgkill"):
        decisions[table[name]] = itself
    # asking for a limit of one's own, not setting one
    decisions[table["prlimit64"]] = (((low(0), _ALL, 0), (low(2), _ALL, 0), (low(2) + 4, _ALL, 0)),)
    return decisions


# ---------------------------------------------------------------------- filters

_LOAD, _AND, _EQUAL, _AT_LEAST, _JUMP, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x05, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4  # byte offsets in seccomp_data
_INSTRUCTION = struct.Struct("<HBBI")

Instruction = tuple[int, int, int, int]


def build(decisions: dict[int, Decision], default: Decision) -> bytes:
    """Return the filter that decides so, and by `default` on every other number.

    It is a program for the kernel's packet filter: a binary search over ranges of numbers, so that
    a call takes about eight steps. Calls of another architecture kill the process.
    """
    head: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, ARCHITECTURE),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    code = head + _search(_ranges(decisions, default))
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _ranges(decisions: dict[int, Decision], default: Decision) -> list[tuple[int, Decision]]:
    """Return where each run of equal decisions begins."""
    edges: list[tuple[int, Decision]] = [(0, decisions.get(0, default))]
    for number in sorted({n + step for n in decisions for step in (0, 1)} - {0}):
        decision = decisions.get(number, default)
        last = edges[-1][1]
        if type(decision) is not type(last) or decision != last:  # True is not the errno 1
            edges.append((number, decision))
    return edges


def _search(ranges: list[tuple[int, Decision]]) -> list[Instruction]:
    if len(ranges) == 1:
        return _decide(ranges[0][1])
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    pivot = ranges[middle][0]
    if len(below) < 256:
        return [(_AT_LEAST, len(below), 0, pivot), *below, *above]
    return [(_AT_LEAST, 0, 1, pivot), (_JUMP, 0, 0, len(below)), *below, *above]


def _decide(decision: Decision) -> list[Instruction]:
    if decision is True:
        return [(_RETURN, 0, 0, _ALLOW)]
    if isinstance(decision, int):
        return [(_RETURN, 0, 0, _ERRNO | decision)]
    return _by_arguments(decision)


def _by_arguments(rule: Rule) -> list[Instruction]:
    code: list[Instruction] = []
    for tests in rule:
        for index, (offset, mask, value) in enumerate(tests):
            to_next = 3 * (len(tests) - index - 1) + 1  # over the other tests and the return
            code += [(_LOAD, 0, 0, offset), (_AND, 0, 0, mask), (_EQUAL, 0, to_next, value)]
        code.append((_RETURN, 0, 0, _ALLOW))
    return [*code, (_RETURN, 0, 0, _ERRNO | EPERM)]
