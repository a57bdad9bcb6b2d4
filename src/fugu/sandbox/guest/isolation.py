"""The kernel's isolation: Landlock, seccomp, resource limits, dropped privileges; without root."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import resource
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from . import seccomp

_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock
_NO_NEW_PRIVS, _SET_DUMPABLE, _SET_DEATH_SIGNAL, _SET_SECCOMP, _FILTER = 38, 4, 1, 22, 2
_AMBIENT, _AMBIENT_CLEAR = 47, 4
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _ANY_FS = 1 << 2, 1 << 3, (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_ANY_TCP, _ANY_SCOPE = 3, 3
_CAPABILITY_VERSION = 0x20080522
_CAPSET = {"x86_64": 126, "aarch64": 91}
_OPEN_FILES = 64
_SOME_PID = 0x5EC0D00D  # stands for the pid in a filter; larger than any
_STRANGERS = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip")


@dataclass(frozen=True)
class Folders:
    """The parts of the file system that programs may use."""

    library: str  # the standard library, read only
    scratch: str = ""  # a folder to write in; none if empty


def isolate(folders: Folders) -> dict[str, int]:
    """Isolate this process and its children for good, and return what the kernel granted."""
    _prctl(_SET_DUMPABLE, 0)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    granted = {"no_new_privileges": int(_prctl(_NO_NEW_PRIVS, 1))}
    granted["capabilities"] = int(_drop_capabilities())
    granted["landlock"] = _landlock(folders)
    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _bound(resource.RLIMIT_MEMLOCK, 0)
    _bound(resource.RLIMIT_MSGQUEUE, 0)
    granted["seccomp"] = 0
    if seccomp.NUMBERS:
        decisions = seccomp.serving(scratch=bool(folders.scratch))
        granted["seccomp"] = int(_seccomp(seccomp.build(decisions, seccomp.EPERM)))
    return granted


def limit(cpu_seconds: float, memory: int, file_bytes: int) -> None:
    """Set the limits of the program that will run in this process."""
    seconds = math.ceil(cpu_seconds) + 1  # a second line: the zygote is more exact
    _bound(resource.RLIMIT_CPU, seconds)
    _bound(resource.RLIMIT_AS, memory)
    _bound(resource.RLIMIT_FSIZE, file_bytes)


def prepare_lock() -> bytes:
    """Return the filter for `lock`, which is the same for all programs except for a process id."""
    return seccomp.build(seccomp.programs(_SOME_PID), True) if seccomp.NUMBERS else b""


def lock(prepared: bytes) -> None:
    """Refuse to this process the calls that only the zygote needs."""
    if prepared:
        own = struct.pack("<I", os.getpid())
        if not _seccomp(prepared.replace(struct.pack("<I", _SOME_PID), own)):
            raise OSError(ctypes.get_errno(), "no filter")


def fork() -> int:
    """Fork by the system's own call, and return 0 in the child.

    Python's fork would run handlers for threads in the child, which touch many pages. The zygote
    has one thread, and uses nothing that those handlers repair.
    """
    pid = int(_python.fork())
    if pid < 0:
        raise OSError(ctypes.get_errno(), "no fork")
    return pid


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def address_space() -> int:
    """Return the bytes of address space of this process, found by mapping a page under limits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    page = mmap.PAGESIZE
    most = 1 << 47 if hard == resource.RLIM_INFINITY else hard
    below, above = 0, most // page
    while below + 1 < above:
        middle = (below + above) // 2
        resource.setrlimit(resource.RLIMIT_AS, (middle * page, hard))
        try:
            mmap.mmap(-1, page).close()
            above = middle
        except (OSError, MemoryError):
            below = middle
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return above * page


def _prctl(option: int, value: int) -> bool:
    return int(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)) == 0


def _bound(kind: int, most: int) -> None:
    try:
        resource.setrlimit(kind, (most, most))
    except (ValueError, OSError):  # lower already, or gVisor lacks it: the self-test checks it
        return


def _drop_capabilities() -> bool:
    _libc.prctl(_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        return False
    header = struct.pack("<Ii", _CAPABILITY_VERSION, 0)
    return int(_libc.syscall(number, header, bytes(24))) == 0


def _landlock(folders: Folders) -> int:
    """Allow reading the library and writing the scratch folder; return the version, 0 if none."""
    version = int(_libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))
    if version < 1:
        return 0
    handled = _ANY_FS
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        handled |= right if version >= since else 0
    network, scope = _ANY_TCP if version >= 4 else 0, _ANY_SCOPE if version >= 6 else 0
    fields = (handled, network, scope)[: 1 if version < 4 else 2 if version < 6 else 3]
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    ruleset = int(_libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    if ruleset < 0:
        return 0
    for path, rights in _rules(folders, handled):
        _allow(ruleset, path, rights)
    held = int(_libc.syscall(_RESTRICT_SELF, ruleset, 0)) == 0
    os.close(ruleset)
    return version if held else 0


def _rules(folders: Folders, handled: int) -> Iterable[tuple[str, int]]:
    if os.path.isdir(folders.library):
        yield folders.library, _READ_DIR  # names only; packages inside it stay closed
        for entry in os.scandir(folders.library):
            if entry.name not in _STRANGERS:
                yield entry.path, _READ_FILE
    if folders.scratch:
        yield folders.scratch, handled & ~1  # all but execute


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:  # a link to nothing
        return
    if not os.path.isdir(path):
        rights &= _READ_FILE
    rule = struct.pack("<Qi", rights, opened)
    if int(_libc.syscall(_ADD_RULE, ruleset, 1, rule, 0)) != 0:
        raise OSError(ctypes.get_errno(), f"no Landlock rule for {path}")
    os.close(opened)


def _seccomp(code: bytes) -> bool:
    program = _Program(len(code) // 8, code)
    return int(_libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)) == 0


class _Program(ctypes.Structure):
    """The kernel's sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))
