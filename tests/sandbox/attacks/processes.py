"""Programs that start processes, spy on other processes or send them signals."""

from __future__ import annotations

from attacks.escape import Escape

PROCESSES: tuple[Escape, ...] = (
    Escape("listing processes", "other processes", """
return any(name.isdigit() for name in os.listdir("/proc"))
"""),
    Escape("reading another process's environment", "other processes", """
with open(f"/proc/{targets['victim']}/environ", "rb") as file:
    return targets["secret"].encode() in file.read()
"""),
    Escape("reading another process's memory map", "other processes", """
return "stack" in open(f"/proc/{targets['victim']}/maps").read()
"""),
    Escape("reading the environment of its executor", "other processes", """
return targets["secret"] in os.environ.values()
"""),
    Escape("ptrace of another process", "other processes", """
libc = ctypes.CDLL(None, use_errno=True)
number, victim = targets["numbers"]["ptrace"], ctypes.c_long(targets["victim"])
seize, detach, zero = 0x4206, 17, ctypes.c_long(0)
if libc.syscall(number, seize, victim, zero, zero) != 0:
    return False
libc.syscall(number, detach, victim, zero, zero)
return True
"""),
    Escape("process_vm_readv of another process", "other processes", """
buffer = ctypes.create_string_buffer(8)
local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
remote = (ctypes.c_void_p * 2)(targets["victim_address"], 8)
parts = ctypes.addressof(local), 1, ctypes.addressof(remote), 1
return system_call(targets, "process_vm_readv", targets["victim"], *parts, 0) == 8
"""),
    Escape("reading /proc/self/environ", "other processes", """
return targets["secret"].encode() in open("/proc/self/environ", "rb").read()
"""),
    Escape("reading /proc/PID/mem of another process", "other processes", """
with open(f"/proc/{targets['victim']}/mem", "rb", buffering=0) as file:
    file.seek(targets["victim_address"])
    return len(file.read(8)) == 8
"""),
    Escape("reading the supervisor's memory map", "other processes", """
with open(f"/proc/{os.getppid()}/maps") as file:
    return "stack" in file.read()
"""),
    Escape("opening the supervisor's descriptors", "other processes", """
os.close(os.open(f"/proc/{os.getppid()}/fd/2", os.O_WRONLY))
return True
"""),
    Escape("pidfd_getfd of another process", "other processes", """
process = system_call(targets, "pidfd_open", targets["victim"], 0)
return system_call(targets, "pidfd_getfd", process, 2, 0) >= 0
"""),
    Escape("process_vm_writev to another process", "other processes", """
buffer = ctypes.create_string_buffer(1)
local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 0)
remote = (ctypes.c_void_p * 2)(targets["victim_address"], 0)
parts = ctypes.addressof(local), 1, ctypes.addressof(remote), 1
return system_call(targets, "process_vm_writev", targets["victim"], *parts, 0) == 0
"""),
    Escape("kcmp with another process", "other processes", """
return system_call(targets, "kcmp", os.getpid(), targets["victim"], 1, 0, 0) >= 0
"""),
    Escape("killing another process", "signals", """
os.kill(targets["victim"], signal.SIGKILL)
return True
""", "victim"),
    Escape("tgkill of another process", "signals", """
system_call(targets, "tgkill", targets["victim"], targets["victim"], signal.SIGKILL)
return True
""", "victim"),
    Escape("pidfd_send_signal to another process", "signals", """
descriptor = system_call(targets, "pidfd_open", targets["victim"], 0)
system_call(targets, "pidfd_send_signal", descriptor, signal.SIGKILL, None, 0)
return True
""", "victim"),
    Escape("a signal through the owner of a pipe", "signals", """
import fcntl
reading, writing = os.pipe()
fcntl.fcntl(reading, fcntl.F_SETOWN, targets["victim"])
fcntl.fcntl(reading, 10, signal.SIGTERM)  # F_SETSIG
fcntl.fcntl(reading, fcntl.F_SETFL, fcntl.fcntl(reading, fcntl.F_GETFL) | os.O_ASYNC)
os.write(writing, b"x")
return True
""", "victim"),
    Escape("checking whether the grader is alive", "signals", """
os.kill(targets["pid"], 0)
return True
"""),
    Escape("killing the supervisor", "signals", """
os.kill(os.getppid(), signal.SIGKILL)
time.sleep(5)
""", "lost"),
    Escape("stopping the supervisor", "signals", """
os.kill(os.getppid(), signal.SIGSTOP)
os.kill(os.getppid(), signal.SIGCONT)
return True
"""),
    Escape("rt_sigqueueinfo to another process", "signals", """
information = struct.pack("<iii", signal.SIGKILL, 0, -1) + bytes(116)
system_call(targets, "rt_sigqueueinfo", targets["victim"], signal.SIGKILL, information)
return True
""", "victim"),
    Escape("stopping another process", "signals", """
os.kill(targets["victim"], signal.SIGSTOP)
return True
"""),
    Escape("killing its process group", "signals", """
os.killpg(os.getpgid(0), signal.SIGKILL)
time.sleep(5)
""", "lost"),
    Escape("terminating the supervisor", "signals", """
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(5)
""", "lost"),
    Escape("a fork", "processes", """
pid = os.fork()
if pid == 0:
    os._exit(0)
return os.waitpid(pid, 0)[0] == pid
"""),
    Escape("clone", "processes", """
pid = system_call(targets, "clone", signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0:
    os._exit(0)
return os.waitpid(pid, 0)[0] == pid
"""),
    Escape("a fork bomb", "processes", """
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
    Escape("running a shell command", "processes", """
import subprocess
return subprocess.run(["/bin/sh", "-c", "exit 3"]).returncode == 3
"""),
    Escape("posix_spawn", "processes", """
pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {})
return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
"""),
    Escape("50 threads", "processes", """
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
    Escape("execve", "processes", """
os.execv("/bin/sh", ["sh", "-c", "echo > " + targets["mark"]])
""", "file"),
    Escape("execveat of a program in memory", "processes", """
descriptor = system_call(targets, "memfd_create", b"program", 0)
os.write(descriptor, b"#!/bin/sh\\necho > " + targets["mark"].encode() + b"\\n")
words = (ctypes.c_char_p * 2)(b"program", None)
none = (ctypes.c_char_p * 1)(None)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(targets["numbers"]["execveat"], descriptor, b"", words, none, 0x1000)
return False
""", "file"),
    Escape("a daemon that outlives the program", "processes", """
pid = os.fork()
if pid == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.3)
        open(targets["mark"], "w").close()
    os._exit(0)
os.waitpid(pid, 0)
return True
""", "file"),
    Escape("clearing its parent-death signal", "processes", """
return system_call(targets, "prctl", 1, 0, 0, 0, 0) == 0  # PR_SET_PDEATHSIG
"""),
    Escape("becoming a child subreaper", "processes", """
return system_call(targets, "prctl", 36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
"""),
    Escape("making itself dumpable", "processes", """
return system_call(targets, "prctl", 4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE
"""),
)  # fmt: skip
