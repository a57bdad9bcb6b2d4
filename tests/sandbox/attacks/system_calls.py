"""Numbers of the system calls that attacks make, on each kind of processor."""

from __future__ import annotations

import platform

_NUMBERS = {
    "x86_64": {
        "mincore": 27, "shmget": 29, "shmctl": 31, "sendfile": 40, "clone": 56, "semget": 64,
        "semctl": 66, "msgget": 68, "msgctl": 71, "flock": 73, "ptrace": 101, "syslog": 103,
        "rt_sigqueueinfo": 129, "personality": 135, "sched_setscheduler": 144, "mlock": 149,
        "prctl": 157, "mount": 165, "umount2": 166, "timer_create": 222, "tgkill": 234,
        "mq_open": 240, "mq_unlink": 241, "add_key": 248, "request_key": 249, "keyctl": 250,
        "ioprio_set": 251, "unshare": 272, "splice": 275, "vmsplice": 278, "timerfd_create": 283,
        "signalfd4": 289, "inotify_init1": 294, "perf_event_open": 298, "fanotify_init": 300,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "seccomp": 317, "memfd_create": 319, "bpf": 321,
        "execveat": 322, "userfaultfd": 323,
    },
    "aarch64": {
        "inotify_init1": 26, "ioprio_set": 30, "flock": 32, "umount2": 39, "mount": 40,
        "sendfile": 71, "signalfd4": 74, "vmsplice": 75, "splice": 76, "timerfd_create": 85,
        "personality": 92, "unshare": 97, "timer_create": 107, "syslog": 116, "ptrace": 117,
        "sched_setscheduler": 119, "tgkill": 131, "rt_sigqueueinfo": 138, "prctl": 167,
        "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "semget": 190,
        "semctl": 191, "shmget": 194, "shmctl": 195, "add_key": 217, "request_key": 218,
        "keyctl": 219, "clone": 220, "mlock": 228, "mincore": 232, "perf_event_open": 241,
        "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "seccomp": 277,
        "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282,
    },
}  # fmt: skip
_EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "fsopen": 430, "pidfd_open": 434,
    "openat2": 437, "pidfd_getfd": 438, "memfd_secret": 447,
}  # fmt: skip
NUMBERS: dict[str, int] = {**_NUMBERS.get(platform.machine(), {}), **_EVERYWHERE}
