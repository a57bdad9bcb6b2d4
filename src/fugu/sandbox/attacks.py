"""Programs that try to break out, one for each way we know.

Each defines `attack(facts)` and returns True if it got what it came for. They aim only at what the
suite itself has put up: listeners on the loopback, files in a temporary folder, a process that does
nothing. `attacking.py` runs them.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from fugu.sandbox.attacks_system import SYSTEM_ATTACKS, SYSTEM_EVERYWHERE, SYSTEM_NUMBERS
from fugu.sandbox.execution import Limits

LIMITS = Limits(0.4, wall_seconds=20.0, memory=128 << 20, output=1 << 16, result=1 << 16)

_NUMBERS = {
    "x86_64": {
        "shmget": 29, "shmctl": 31, "clone": 56, "msgget": 68, "msgctl": 71, "ptrace": 101,
        "syslog": 103, "personality": 135, "mount": 165, "umount2": 166, "add_key": 248,
        "keyctl": 250,
        "ioprio_set": 251, "tgkill": 234, "unshare": 272, "inotify_init1": 294,
        "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "process_vm_readv": 310, "memfd_create": 319, "bpf": 321, "execveat": 322,
        "userfaultfd": 323,
    },
    "aarch64": {
        "shmget": 194, "shmctl": 195, "clone": 220, "msgget": 186, "msgctl": 187, "ptrace": 117,
        "syslog": 116, "personality": 92, "mount": 40, "umount2": 39, "add_key": 217, "keyctl": 219,
        "ioprio_set": 30, "tgkill": 131, "unshare": 97, "inotify_init1": 26,
        "perf_event_open": 241, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "process_vm_readv": 270, "memfd_create": 279, "bpf": 280, "execveat": 281,
        "userfaultfd": 282,
    },
}  # fmt: skip
_EVERYWHERE = {"pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "openat2": 437}
_MACHINE = platform.machine()
NUMBERS = {
    **_NUMBERS.get(_MACHINE, {}),
    **SYSTEM_NUMBERS.get(_MACHINE, {}),
    **_EVERYWHERE,
    **SYSTEM_EVERYWHERE,
}


@dataclass(frozen=True)
class Attack:
    """One way to break out."""

    name: str
    wall: str
    """What should hold it."""
    body: str
    """The body of `attack(facts)`."""
    proof: str = "returned"
    """returned: it returns True; file: it leaves facts['mark'] behind; victim: the process that
    does nothing is gone; lost: whatever ran it is gone."""

    @property
    def source(self) -> str:
        """The program."""
        lines = "\n".join(f"    {line}" for line in self.body.strip().splitlines())
        return f"{_PRELUDE}\ndef attack(facts):\n{lines}\n"


_PRELUDE = """
import ctypes, os, signal, socket, struct, sys, threading, time

def system_call(facts, name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    # As whole words: of a plain 0 that is passed on the stack, half would be left to chance.
    passed = [a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments]
    result = libc.syscall(ctypes.c_long(facts["numbers"][name]), *passed)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result
"""

_NETWORK = [
    ("a TCP connection", """
with socket.create_connection(("127.0.0.1", facts["tcp"]), 2) as line:
    return line.recv(5) == b"hello"
"""),
    ("a TCP connection over IPv6", """
with socket.create_connection(("::1", facts["tcp6"]), 2) as line:
    return line.recv(5) == b"hello"
"""),
    ("a UDP datagram", """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
    return line.sendto(b"x", ("127.0.0.1", facts["udp"])) == 1
"""),
    ("a port to listen on", """
with socket.socket() as line:
    line.bind(("127.0.0.1", 0))
    line.listen()
    return True
"""),
    ("a raw socket", """
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
return True
"""),
    ("a netlink socket", """
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
    line.bind((0, 0))
    return True
"""),
    ("a unix socket in a folder", """
with socket.socket(socket.AF_UNIX) as line:
    line.connect(facts["unix"])
    return line.recv(5) == b"hello"
"""),
    ("a unix socket without a folder", """
with socket.socket(socket.AF_UNIX) as line:
    line.connect(facts["abstract"])
    return line.recv(5) == b"hello"
"""),
]  # fmt: skip

_FILES = [
    ("reading a secret file", 'return open(facts["secret_file"]).read() == facts["secret"]'),
    ("reading a secret file by its number", """
how = struct.pack("<QQQ", 0, 0, 0)
path = facts["secret_file"].encode()
descriptor = system_call(facts, "openat2", -100, path, how, len(how))
return os.read(descriptor, 100).decode() == facts["secret"]
"""),
    ("reading a secret file by its handle", """
handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
mount = ctypes.c_int()
libc = ctypes.CDLL(None, use_errno=True)
numbers, path = facts["numbers"], facts["secret_file"].encode()
if libc.syscall(numbers["name_to_handle_at"], -100, path, handle, ctypes.byref(mount), 0):
    return False
folder = os.open(facts["folder"], os.O_RDONLY)
descriptor = libc.syscall(numbers["open_by_handle_at"], folder, handle, 0)
return descriptor >= 0 and os.read(descriptor, 100).decode() == facts["secret"]
"""),
    ("reading the system's users", 'return "root" in open("/etc/passwd").read()'),
    ("listing a folder", 'return "secret" in os.listdir(facts["folder"])'),
    ("listing the home folder", 'return isinstance(os.listdir(facts["home"]), list)'),
    ("listing the whole file system", 'return "etc" in os.listdir("/")'),
    ("listing devices of the kernel", 'return bool(os.listdir("/sys/class"))'),
]  # fmt: skip

_WRITING = [
    ("writing a file", 'return open(facts["new"], "w").write("x") == 1'),
    ("writing a file in the temporary folder", """
path = f"/tmp/fugu-attack-{os.getpid()}"
with open(path, "w"):
    os.remove(path)
return True
"""),
    ("writing a file in shared memory", """
path = f"/dev/shm/fugu-attack-{os.getpid()}"
with open(path, "w"):
    os.remove(path)
return True
"""),
    ("writing a file where it runs", """
path = f"fugu-attack-{os.getpid()}"
with open(path, "w"):
    os.remove(path)
return True
"""),
    ("writing into the standard library", """
path = os.path.join(os.path.dirname(os.__file__), f"fugu_attack_{os.getpid()}.py")
with open(path, "w"):
    os.remove(path)
return True
"""),
    ("appending to a secret file", 'return open(facts["secret_file"], "a").write("x") == 1'),
    ("emptying a secret file", 'os.truncate(facts["secret_file"], 0)\nreturn True'),
    ("removing a secret file", 'os.remove(facts["secret_file"])\nreturn True'),
    ("renaming a secret file", 'os.rename(facts["secret_file"], facts["new"])\nreturn True'),
    ("opening a secret file to all", 'os.chmod(facts["secret_file"], 0o777)\nreturn True'),
    ("changing a secret file's age", 'os.utime(facts["secret_file"], (1, 1))\nreturn True'),
    ("a link to a secret file", 'os.link(facts["secret_file"], facts["new"])\nreturn True'),
    ("a symbolic link", 'os.symlink("/etc/passwd", facts["new"])\nreturn True'),
    ("a new folder", 'os.mkdir(facts["new"])\nreturn True'),
    ("a new pipe in a folder", 'os.mkfifo(facts["new"])\nreturn True'),
    ("another root folder", 'os.chroot(facts["folder"])\nreturn True'),
    ("filling the disk", """
with open(facts["new"], "wb") as file:
    return sum(file.write(bytes(1 << 20)) for _ in range(32)) == 32 << 20
"""),
]  # fmt: skip

_OTHERS = [
    ("listing processes", 'return any(name.isdigit() for name in os.listdir("/proc"))'),
    ("reading another's environment", """
with open(f"/proc/{facts['victim']}/environ", "rb") as file:
    return facts["secret"].encode() in file.read()
"""),
    ("reading another's memory map", """
return "stack" in open(f"/proc/{facts['victim']}/maps").read()
"""),
    ("the environment of whoever started it", """
return facts["secret"] in os.environ.values()
"""),
    ("tracing another process", """
libc = ctypes.CDLL(None, use_errno=True)
number, victim = facts["numbers"]["ptrace"], ctypes.c_long(facts["victim"])
seize, detach, zero = 0x4206, 17, ctypes.c_long(0)
if libc.syscall(number, seize, victim, zero, zero) != 0:
    return False
libc.syscall(number, detach, victim, zero, zero)
return True
"""),
    ("reading another's memory", """
buffer = ctypes.create_string_buffer(8)
local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
remote = (ctypes.c_void_p * 2)(facts["victim_address"], 8)
parts = ctypes.addressof(local), 1, ctypes.addressof(remote), 1
return system_call(facts, "process_vm_readv", facts["victim"], *parts, 0) == 8
"""),
]  # fmt: skip

_SIGNALS = [
    ("killing another process", 'os.kill(facts["victim"], signal.SIGKILL)\nreturn True'),
    ("killing a thread of another process", """
system_call(facts, "tgkill", facts["victim"], facts["victim"], signal.SIGKILL)
return True
"""),
    ("killing by a process descriptor", """
descriptor = system_call(facts, "pidfd_open", facts["victim"], 0)
system_call(facts, "pidfd_send_signal", descriptor, signal.SIGKILL, None, 0)
return True
"""),
    ("killing by a pipe's owner", """
import fcntl
reading, writing = os.pipe()
fcntl.fcntl(reading, fcntl.F_SETOWN, facts["victim"])
fcntl.fcntl(reading, 10, signal.SIGTERM)  # F_SETSIG
fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_ASYNC)
os.write(writing, b"x")
return True
"""),
    ("being told of whoever grades", 'os.kill(facts["pid"], 0)\nreturn True'),
]  # fmt: skip

_PROCESSES = [
    ("a fork", """
pid = os.fork()
if pid == 0:
    os._exit(0)
return os.waitpid(pid, 0)[0] == pid
"""),
    ("a fork by its number", """
pid = system_call(facts, "clone", signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
return os.waitpid(pid, 0)[0] == pid
"""),
    ("a fork bomb", """
pids = []
try:
    for _ in range(64):
        pid = os.fork()
        if pid == 0:
            time.sleep(5)
            os._exit(0)
        pids.append(pid)
finally:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
return len(pids) == 64
"""),
    ("a command", """
import subprocess
return subprocess.run(["/bin/sh", "-c", "exit 3"]).returncode == 3
"""),
    ("a spawned command", """
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {})
return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
"""),
    ("fifty threads", """
gate = threading.Event()
threads = []
try:
    for _ in range(50):
        thread = threading.Thread(target=gate.wait, args=(5,))
        thread.start()
        threads.append(thread)
finally:
    gate.set()
return len(threads) == 50
"""),
]  # fmt: skip

_ENDINGS = [
    Attack("another program in its place", "processes", """
os.execv("/bin/sh", ["sh", "-c", "echo > " + facts["mark"]])
""", "file"),
    Attack("another program out of memory", "processes", """
descriptor = system_call(facts, "memfd_create", b"program", 0)
os.write(descriptor, b"#!/bin/sh\\necho > " + facts["mark"].encode() + b"\\n")
words = (ctypes.c_char_p * 2)(b"program", None)
none = (ctypes.c_char_p * 1)(None)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(facts["numbers"]["execveat"], descriptor, b"", words, none, 0x1000)
return False
""", "file"),
    Attack("a process that stays behind", "processes", """
pid = os.fork()
if pid == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.3)
        open(facts["mark"], "w").close()
    os._exit(0)
os.waitpid(pid, 0)
return True
""", "file"),
    Attack("killing whoever watches it", "signals", """
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(5)
""", "lost"),
    Attack("stopping whoever watches it", "signals", """
os.kill(os.getppid(), signal.SIGSTOP)
os.kill(os.getppid(), signal.SIGCONT)
return True
"""),
]  # fmt: skip

_LIMITS = [
    ("raising its limits", """
import resource
for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
    resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
return True
"""),
    ("lowering its limits", """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
return True
"""),
    ("a loop that swallows all", """
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
    ("a call that takes for ever", """
start = time.process_time()
while time.process_time() < start + 1.2:
    sum(range(30_000_000))
return True
"""),
    ("400 MiB of memory", 'return len(b"x" * (400 << 20)) == 400 << 20'),
    ("400 MiB of mapped memory", """
import mmap
with mmap.mmap(-1, 400 << 20) as pages:
    return len(pages) == 400 << 20
"""),
    ("four MiB of output", """
return sum(os.write(1, b"x" * (1 << 16)) for _ in range(64)) == 4 << 20
"""),
    ("four MiB of complaints", """
return sum(os.write(2, b"x" * (1 << 16)) for _ in range(64)) == 4 << 20
"""),
    ("300 open files", """
opened = [os.dup(0) for _ in range(300)]
return len(opened) == 300
"""),
    ("priority over others", "return os.nice(-1) < 0"),
    ("another core", "os.sched_setaffinity(0, os.sched_getaffinity(0))\nreturn True"),
    ("the disk before others", """
return system_call(facts, "ioprio_set", 1, 0, (2 << 13) | 4) == 0
"""),
]  # fmt: skip

_KERNEL = [
    ("io_uring", """
return system_call(facts, "io_uring_setup", 4, bytes(120)) >= 0
"""),
    ("bpf", """
return system_call(facts, "bpf", 0, struct.pack("<IIIII", 2, 4, 4, 1, 0) + bytes(100), 120) >= 0
"""),
    ("a key ring", 'return system_call(facts, "keyctl", 0, -3, 1) > 0'),
    ("a key", """
return system_call(facts, "add_key", b"user", b"fugu-attack", b"x", 1, -2) > 0
"""),
    ("performance counters", """
event = struct.pack("<IIQ", 1, 128, 1) + bytes(24) + struct.pack("<Q", 0x61) + bytes(80)
return system_call(facts, "perf_event_open", event, 0, -1, -1, 0) >= 0
"""),
    ("faults of its own", 'return system_call(facts, "userfaultfd", 1) >= 0'),
    ("namespaces of its own", 'return system_call(facts, "unshare", 0x10000000) == 0'),
    ("a mount", """
folder = facts["folder"].encode()
if system_call(facts, "mount", b"none", folder, b"tmpfs", 0, None) == 0:
    return system_call(facts, "umount2", folder, 2) == 0
"""),
    ("shared memory of System V", """
number = system_call(facts, "shmget", 0, 4096, 0o1600)
system_call(facts, "shmctl", number, 0, None)
return True
"""),
    ("message queues of System V", """
number = system_call(facts, "msgget", 0, 0o1600)
system_call(facts, "msgctl", number, 0, None)
return True
"""),
    ("watching files", 'return system_call(facts, "inotify_init1", 0) >= 0'),
    ("files in memory", 'return system_call(facts, "memfd_create", b"x", 0) >= 0'),
    ("another personality", 'return system_call(facts, "personality", 0x0040000) >= 0'),
    ("the kernel's log", 'return system_call(facts, "syslog", 10, None, 0) > 0'),
    ("another user", "os.setuid(65534)\nreturn os.getuid() == 65534"),
]  # fmt: skip

ATTACKS: tuple[Attack, ...] = (
    *(Attack(name, "network", body) for name, body in _NETWORK),
    *(Attack(name, "files", body) for name, body in _FILES),
    *(Attack(name, "writing", body) for name, body in _WRITING),
    *(Attack(name, "other processes", body) for name, body in _OTHERS),
    *(Attack(name, "signals", body, "victim") for name, body in _SIGNALS[:-1]),
    *(Attack(name, "signals", body) for name, body in _SIGNALS[-1:]),
    *(Attack(name, "processes", body) for name, body in _PROCESSES),
    *_ENDINGS,
    *(Attack(name, "limits", body) for name, body in _LIMITS),
    *(Attack(name, "kernel", body) for name, body in _KERNEL),
    *(Attack(*attack) for attack in SYSTEM_ATTACKS),
)
