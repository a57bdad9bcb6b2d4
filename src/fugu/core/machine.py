"""Facts about the machine."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Return the bytes of free memory; of all memory where the system does not say."""
    if sys.platform == "linux":
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = dict(line.split(":", 1) for line in lines)
        return int(facts["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def own_memory() -> int:
    """Return the bytes of memory of this process; their peak where the system says no more."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def is_running(process: int) -> bool:
    """Return whether a process of this machine has not ended; zombies have.

    >>> is_running(os.getpid())
    True
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return sys.platform != "linux"
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory, and return whether it does.

    Otherwise it returns tensors of some megabytes to the system and requests them again, page by
    page, which slows training on the CPU down by a tenth to a third.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # not the GNU C library
        return False
    mmap_threshold, trim_threshold, top_pad = -3, -1, -2  # of malloc.h
    settings = {mmap_threshold: 1 << 30, trim_threshold: (1 << 31) - 1, top_pad: 1 << 26}
    taken = [mallopt(name, ctypes.c_int(value)) for name, value in settings.items()]
    return all(answer == 1 for answer in taken)


def has_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 faster than float32; False if unknown."""
    if sys.platform != "linux":
        return False
    return any(name in Path("/proc/cpuinfo").read_text() for name in ("avx512_bf16", "amx_bf16"))


def load() -> float:
    """Return the load average of the last minute, in cores; 0 if unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def system() -> str:
    """Return the name and version of the operating system."""
    return platform.platform()
