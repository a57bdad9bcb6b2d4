"""Programs that use kernel interfaces beyond those that an ordinary program needs."""

from __future__ import annotations

from attacks.escape import Escape

KERNEL: tuple[Escape, ...] = (
    Escape("io_uring", "kernel", """
return system_call(targets, "io_uring_setup", 4, bytes(120)) >= 0
"""),
    Escape("bpf", "kernel", """
return system_call(targets, "bpf", 0, struct.pack("<IIIII", 2, 4, 4, 1, 0) + bytes(100), 120) >= 0
"""),
    Escape("keyctl", "kernel", """
return system_call(targets, "keyctl", 0, -3, 1) > 0
"""),
    Escape("add_key", "kernel", """
return system_call(targets, "add_key", b"user", b"fugu-attack", b"x", 1, -2) > 0
"""),
    Escape("perf_event_open", "kernel", """
event = struct.pack("<IIQ", 1, 128, 1) + bytes(24) + struct.pack("<Q", 0x61) + bytes(80)
return system_call(targets, "perf_event_open", event, 0, -1, -1, 0) >= 0
"""),
    Escape("userfaultfd", "kernel", """
return system_call(targets, "userfaultfd", 1) >= 0
"""),
    Escape("unshare", "kernel", """
return system_call(targets, "unshare", 0x10000000) == 0
"""),
    Escape("mount", "kernel", """
folder = targets["folder"].encode()
if system_call(targets, "mount", b"none", folder, b"tmpfs", 0, None) == 0:
    return system_call(targets, "umount2", folder, 2) == 0
"""),
    Escape("System V shared memory", "kernel", """
number = system_call(targets, "shmget", 0, 4096, 0o1600)
system_call(targets, "shmctl", number, 0, None)
return True
"""),
    Escape("System V message queues", "kernel", """
number = system_call(targets, "msgget", 0, 0o1600)
system_call(targets, "msgctl", number, 0, None)
return True
"""),
    Escape("inotify", "kernel", """
return system_call(targets, "inotify_init1", 0) >= 0
"""),
    Escape("memfd_create", "kernel", """
return system_call(targets, "memfd_create", b"x", 0) >= 0
"""),
    Escape("personality", "kernel", """
return system_call(targets, "personality", 0x0040000) >= 0
"""),
    Escape("reading the kernel log", "kernel", """
return system_call(targets, "syslog", 10, None, 0) > 0
"""),
    Escape("setuid", "kernel", """
os.setuid(65534)
return os.getuid() == 65534
"""),
    Escape("installing a seccomp filter", "kernel", """
system_call(targets, "prctl", 38, 1, 0, 0, 0)
allow = ctypes.create_string_buffer(struct.pack("<HBBI", 6, 0, 0, 0x7FFF0000))
program = struct.pack("<HxxxxxxQ", 1, ctypes.addressof(allow))
return system_call(targets, "seccomp", 1, 8, program) >= 0
"""),
    Escape("System V semaphores", "kernel", """
number = system_call(targets, "semget", 0, 1, 0o1600)
system_call(targets, "semctl", number, 0, 0)
return True
"""),
    Escape("POSIX message queues", "kernel", """
name = f"fugu-attack-{os.getpid()}".encode()
os.close(system_call(targets, "mq_open", name, os.O_RDWR | os.O_CREAT, 0o600, None))
return system_call(targets, "mq_unlink", name) == 0
"""),
    Escape("timer_create", "kernel", """
return system_call(targets, "timer_create", 1, None, ctypes.create_string_buffer(8).raw) == 0
"""),
    Escape("timerfd_create", "kernel", """
return system_call(targets, "timerfd_create", 1, 0) >= 0
"""),
    Escape("signalfd4", "kernel", """
return system_call(targets, "signalfd4", -1, bytes(8), 8, 0) >= 0
"""),
    Escape("fanotify", "kernel", """
return system_call(targets, "fanotify_init", 0, 0) >= 0
"""),
    Escape("setns", "kernel", """
return system_call(targets, "setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0) == 0
"""),
    Escape("fsopen", "kernel", """
return system_call(targets, "fsopen", b"tmpfs", 0) >= 0
"""),
    Escape("memfd_secret", "kernel", """
return system_call(targets, "memfd_secret", 0) >= 0
"""),
    Escape("request_key", "kernel", """
system_call(targets, "add_key", b"user", b"fugu-asked", b"x", 1, -2)
return system_call(targets, "request_key", b"user", b"fugu-asked", None, 0) > 0
"""),
    Escape("splice", "kernel", """
file, (_, writing) = os.open(os.__file__, os.O_RDONLY), os.pipe()
return system_call(targets, "splice", file, None, writing, None, 16, 0) == 16
"""),
    Escape("vmsplice", "kernel", """
_, writing = os.pipe()
buffer = ctypes.create_string_buffer(64)
piece = struct.pack("<QQ", ctypes.addressof(buffer), 64)
return system_call(targets, "vmsplice", writing, piece, 1, 0) == 64
"""),
    Escape("sendfile", "kernel", """
file, (_, writing) = os.open(os.__file__, os.O_RDONLY), os.pipe()
return system_call(targets, "sendfile", writing, file, None, 16) == 16
"""),
    Escape("mincore", "kernel", """
buffer, found = ctypes.create_string_buffer(8192), ctypes.create_string_buffer(4)
address = ctypes.addressof(buffer) & ~4095
return system_call(targets, "mincore", address, 4096, ctypes.addressof(found)) == 0
"""),
    Escape("flock on a shared file", "kernel", """
file = os.open(os.__file__, os.O_RDONLY)
return system_call(targets, "flock", file, 2 | 4) == 0  # LOCK_EX | LOCK_NB
"""),
)  # fmt: skip
