"""Programs that exceed their limits or change priorities and limits."""

from __future__ import annotations

from attacks.escape import Escape

LIMITS: tuple[Escape, ...] = (
    Escape("raising its resource limits", "limits", """
import resource
for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
return True
"""),
    Escape("lowering its resource limits", "limits", """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
return True
"""),
    Escape("a loop that catches every exception", "limits", """
for number in (signal.SIGXCPU, signal.SIGTERM, signal.SIGALRM):
    signal.signal(number, signal.SIG_IGN)
start = time.process_time()
while time.process_time() < start + 1.2:
    try:
        sum(range(1000))
    except BaseException:
        pass
return True
"""),
    Escape("long calls into C", "limits", """
start = time.process_time()
while time.process_time() < start + 1.2:
    sum(range(30_000_000))
return True
"""),
    Escape("allocating 400 MiB", "limits", """
return len(b"x" * (400 << 20)) == 400 << 20
"""),
    Escape("mapping 400 MiB", "limits", """
import mmap
with mmap.mmap(-1, 400 << 20) as pages:
    return len(pages) == 400 << 20
"""),
    Escape("4 MiB on standard output", "limits", """
return sum(os.write(1, b"x" * (1 << 16)) for _ in range(64)) == 4 << 20
"""),
    Escape("4 MiB on standard error", "limits", """
return sum(os.write(2, b"x" * (1 << 16)) for _ in range(64)) == 4 << 20
"""),
    Escape("300 open files", "limits", """
opened = [os.dup(0) for _ in range(300)]
return len(opened) == 300
"""),
    Escape("a higher CPU priority", "limits", """
return os.nice(-1) < 0
"""),
    Escape("changing its CPU affinity", "limits", """
os.sched_setaffinity(0, os.sched_getaffinity(0))
return True
"""),
    Escape("a higher I/O priority", "limits", """
return system_call(targets, "ioprio_set", 1, 0, (2 << 13) | 4) == 0
"""),
    Escape("reading another process's limits", "limits", """
import resource
return len(resource.prlimit(targets["victim"], resource.RLIMIT_NOFILE)) == 2
"""),
    Escape("lowering another process's priority", "limits", """
os.setpriority(os.PRIO_PROCESS, targets["victim"], 19)
return True
"""),
    Escape("changing another process's CPU affinity", "limits", """
os.sched_setaffinity(targets["victim"], os.sched_getaffinity(targets["victim"]))
return True
"""),
    Escape("changing its scheduling policy", "limits", """
return system_call(targets, "sched_setscheduler", 0, 3, struct.pack("<i", 0)) == 0
"""),
    Escape("locking memory", "limits", """
buffer = ctypes.create_string_buffer(4096)
return system_call(targets, "mlock", ctypes.addressof(buffer), 1) == 0
"""),
    Escape("enlarging a pipe's buffer", "limits", """
import fcntl
_, writing = os.pipe()
return fcntl.fcntl(writing, 1031, 1 << 18) >= 1 << 18  # F_SETPIPE_SZ
"""),
    Escape("enabling core dumps", "limits", """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
return True
"""),
    Escape("hash collisions", "limits", """
start = time.process_time()
while time.process_time() < start + 1.2:
    set(n * (2**61 - 1) for n in range(1000))
return True
"""),
    Escape("a catastrophic regular expression", "limits", """
import re
start = time.process_time()
while time.process_time() < start + 1.2:
    re.match("(a*)*b", "a" * 16)
return True
"""),
    Escape("huge powers", "limits", """
start = time.process_time()
while time.process_time() < start + 1.2:
    pow(7, 10**5)
return True
"""),
)  # fmt: skip
