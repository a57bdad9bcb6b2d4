"""Attacks on the kernel's less known doors, and on what all processes of a machine share.

Each is a name, the wall that should hold it, the body of `attack(facts)`, and its proof if that is
not what it returns (`attacks.py`).
"""

from __future__ import annotations

SYSTEM_NUMBERS = {
    "x86_64": {
        "mincore": 27, "sendfile": 40, "semget": 64, "semctl": 66, "flock": 73,
        "rt_sigqueueinfo": 129, "sched_setscheduler": 144, "mlock": 149, "modify_ldt": 154,
        "prctl": 157, "timer_create": 222, "mq_open": 240, "mq_unlink": 241, "request_key": 249,
        "vmsplice": 278, "signalfd4": 289, "splice": 275, "timerfd_create": 283,
        "fanotify_init": 300, "prlimit64": 302, "setns": 308, "process_vm_writev": 311,
        "kcmp": 312, "seccomp": 317, "copy_file_range": 326,
    },
    "aarch64": {
        "mincore": 232, "sendfile": 71, "semget": 190, "semctl": 191, "flock": 32,
        "rt_sigqueueinfo": 138, "sched_setscheduler": 119, "mlock": 228, "prctl": 167,
        "timer_create": 107, "mq_open": 180, "mq_unlink": 181, "request_key": 218, "vmsplice": 75,
        "signalfd4": 74, "splice": 76, "timerfd_create": 85, "fanotify_init": 262,
        "prlimit64": 261, "setns": 268, "process_vm_writev": 271, "kcmp": 272, "seccomp": 277,
        "copy_file_range": 285,
    },
}  # fmt: skip
SYSTEM_EVERYWHERE = {"fsopen": 430, "pidfd_getfd": 438, "memfd_secret": 447, "close_range": 436}

SYSTEM_ATTACKS: tuple[tuple[str, str, str, str], ...] = (
    ("a name without a folder to listen at", "network", """
with socket.socket(socket.AF_UNIX) as line:
    line.bind(facts["abstract"] + "-mine")
    line.listen()
    return True
""", "returned"),
    ("a pair of sockets", "network", """
one, other = socket.socketpair()
one.sendall(b"x")
return other.recv(1) == b"x"
""", "returned"),
    ("asking for the network's interfaces", "network", """
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
    line.send(struct.pack("=IHHII", 32, 18, 0x301, 1, 0) + bytes(16))
    return len(line.recv(65536)) > 16
""", "returned"),
    ("the packets of all", "network", """
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()
return True
""", "returned"),
    ("the environment of itself as a file", "other processes", """
return facts["secret"].encode() in open("/proc/self/environ", "rb").read()
""", "returned"),
    ("reading another's memory as a file", "other processes", """
with open(f"/proc/{facts['victim']}/mem", "rb", buffering=0) as file:
    file.seek(facts["victim_address"])
    return len(file.read(8)) == 8
""", "returned"),
    ("the memory of whoever watches it", "other processes", """
with open(f"/proc/{os.getppid()}/maps") as file:
    return "stack" in file.read()
""", "returned"),
    ("the descriptors of whoever watches it", "other processes", """
os.close(os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY))
return True
""", "returned"),
    ("a descriptor of another process", "other processes", """
process = system_call(facts, "pidfd_open", facts["victim"], 0)
return system_call(facts, "pidfd_getfd", process, 2, 0) >= 0
""", "returned"),
    ("writing into another's memory", "other processes", """
buffer = ctypes.create_string_buffer(1)
local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 0)
remote = (ctypes.c_void_p * 2)(facts["victim_address"], 0)
parts = ctypes.addressof(local), 1, ctypes.addressof(remote), 1
return system_call(facts, "process_vm_writev", facts["victim"], *parts, 0) == 0
""", "returned"),
    ("comparing itself with another process", "other processes", """
return system_call(facts, "kcmp", os.getpid(), facts["victim"], 1, 0, 0) >= 0
""", "returned"),
    ("the limits of another process", "limits", """
import resource
return len(resource.prlimit(facts["victim"], resource.RLIMIT_NOFILE)) == 2
""", "returned"),
    ("the priority of another process", "limits", """
os.setpriority(os.PRIO_PROCESS, facts["victim"], 19)
return True
""", "returned"),
    ("the cores of another process", "limits", """
os.sched_setaffinity(facts["victim"], os.sched_getaffinity(facts["victim"]))
return True
""", "returned"),
    ("a schedule of its own", "limits", """
return system_call(facts, "sched_setscheduler", 0, 3, struct.pack("<i", 0)) == 0
""", "returned"),
    ("memory that is never swapped", "limits", """
buffer = ctypes.create_string_buffer(4096)
return system_call(facts, "mlock", ctypes.addressof(buffer), 1) == 0
""", "returned"),
    ("memory of the kernel in a pipe", "limits", """
import fcntl
_, writing = os.pipe()
return fcntl.fcntl(writing, 1031, 1 << 18) >= 1 << 18  # F_SETPIPE_SZ
""", "returned"),
    ("two hundred files", "writing", """
for number in range(200):
    open(f"{facts['new']}-{number}", "w").close()
return True
""", "returned"),
    ("a core to be dumped", "limits", """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
return True
""", "returned"),
    ("a set of keys of one hash", "limits", """
start = time.process_time()
while time.process_time() < start + 1.2:
    set(n * (2**61 - 1) for n in range(1000))
return True
""", "returned"),
    ("a pattern that never ends", "limits", """
import re
start = time.process_time()
while time.process_time() < start + 1.2:
    re.match("(a*)*b", "a" * 16)
return True
""", "returned"),
    ("a number of many digits", "limits", """
start = time.process_time()
while time.process_time() < start + 1.2:
    pow(7, 10**5)
return True
""", "returned"),
    ("a signal that carries a value", "signals", """
information = struct.pack("<iii", signal.SIGKILL, 0, -1) + bytes(116)
system_call(facts, "rt_sigqueueinfo", facts["victim"], signal.SIGKILL, information)
return True
""", "victim"),
    ("stopping another process", "signals", """
os.kill(facts["victim"], signal.SIGSTOP)
return True
""", "returned"),
    ("killing all of its group", "signals", """
os.killpg(os.getpgid(0), signal.SIGKILL)
time.sleep(5)
""", "lost"),
    ("interrupting whoever watches it", "signals", """
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(5)
""", "lost"),
    ("a life longer than its watcher's", "processes", """
return system_call(facts, "prctl", 1, 0, 0, 0, 0) == 0  # PR_SET_PDEATHSIG
""", "returned"),
    ("orphans of others as its children", "processes", """
return system_call(facts, "prctl", 36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
""", "returned"),
    ("being traced by anybody", "processes", """
return system_call(facts, "prctl", 4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE
""", "returned"),
    ("deciding on system calls", "kernel", """
system_call(facts, "prctl", 38, 1, 0, 0, 0)
allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(allow))
return system_call(facts, "seccomp", 1, 8, program) >= 0
""", "returned"),
    ("semaphores of System V", "kernel", """
number = system_call(facts, "semget", 0, 1, 0o1600)
system_call(facts, "semctl", number, 0, 0)
return True
""", "returned"),
    ("message queues of POSIX", "kernel", """
name = f"fugu-attack-{os.getpid()}".encode()
os.close(system_call(facts, "mq_open", name, os.O_RDWR | os.O_CREAT, 0o600, None))
return system_call(facts, "mq_unlink", name) == 0
""", "returned"),
    ("a timer of the kernel", "kernel", """
return system_call(facts, "timer_create", 1, None, ctypes.create_string_buffer(8).raw) == 0
""", "returned"),
    ("a timer as a file", "kernel", """
return system_call(facts, "timerfd_create", 1, 0) >= 0
""", "returned"),
    ("signals as a file", "kernel", """
return system_call(facts, "signalfd4", -1, bytes(8), 8, 0) >= 0
""", "returned"),
    ("watching all files", "kernel", """
return system_call(facts, "fanotify_init", 0, 0) >= 0
""", "returned"),
    ("entering a namespace", "kernel", """
return system_call(facts, "setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0) == 0
""", "returned"),
    ("a file system of its own", "kernel", """
return system_call(facts, "fsopen", b"tmpfs", 0) >= 0
""", "returned"),
    ("memory that the kernel cannot see", "kernel", """
return system_call(facts, "memfd_secret", 0) >= 0
""", "returned"),
    ("a key that is asked for", "kernel", """
system_call(facts, "add_key", b"user", b"fugu-asked", b"x", 1, -2)
return system_call(facts, "request_key", b"user", b"fugu-asked", None, 0) > 0
""", "returned"),
    ("pages of a file in a pipe", "kernel", """
file, (_, writing) = os.open(os.__file__, os.O_RDONLY), os.pipe()
return system_call(facts, "splice", file, None, writing, None, 16, 0) == 16
""", "returned"),
    ("pages of its own in a pipe", "kernel", """
_, writing = os.pipe()
buffer = ctypes.create_string_buffer(64)
piece = struct.pack("<QQ", ctypes.addressof(buffer), 64)
return system_call(facts, "vmsplice", writing, piece, 1, 0) == 64
""", "returned"),
    ("a file sent by the kernel", "kernel", """
file, (_, writing) = os.open(os.__file__, os.O_RDONLY), os.pipe()
return system_call(facts, "sendfile", writing, file, None, 16) == 16
""", "returned"),
    ("which pages of a file are in memory", "kernel", """
buffer, found = ctypes.create_string_buffer(8192), ctypes.create_string_buffer(4)
address = ctypes.addressof(buffer) & ~4095
return system_call(facts, "mincore", address, 4096, ctypes.addressof(found)) == 0
""", "returned"),
    ("a lock on a file of all", "kernel", """
file = os.open(os.__file__, os.O_RDONLY)
return system_call(facts, "flock", file, 2 | 4) == 0  # LOCK_EX | LOCK_NB
""", "returned"),
)  # fmt: skip
