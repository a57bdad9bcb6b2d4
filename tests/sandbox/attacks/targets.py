"""Targets of attacks: listeners, a folder with a secret and an idle process on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attacks.system_calls import NUMBERS
from fugu.sandbox import launch

_VARIABLE = "FUGU_ATTACK_SECRET"
_WAIT = 1.0  # seconds until an effect of an attack must be visible


class Targets:
    """Targets for one attack, which exist until the `with` block ends.

    Attributes:
        description: What the attack is told: paths, ports, process ids, system call numbers.
    """

    def __init__(self, secret: str) -> None:
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fugu-")))
        folder.chmod(0o755)
        (folder / "secret").write_text(secret)
        self._mark = folder / "mark"
        abstract = f"\0fugu-{secrets.token_hex(8)}"
        self._victim = _start_victim(secret)
        self._listeners: list[socket.socket] = []
        self.description: dict[str, Any] = {
            "folder": str(folder),
            "secret_file": str(folder / "secret"),
            "secret": secret,
            "new": str(folder / "new"),
            "mark": str(self._mark),
            "home": os.path.expanduser("~"),
            "pid": os.getpid(),
            "victim": self._victim.pid,
            "victim_address": _find_readable_address(self._victim.pid),
            "numbers": NUMBERS,
            "tcp": self._listen(socket.AF_INET, ("127.0.0.1", 0)),
            "tcp6": self._listen(socket.AF_INET6, ("::1", 0)),
            "udp": self._listen(socket.AF_INET, ("127.0.0.1", 0), socket.SOCK_DGRAM),
            "unix": str(folder / "socket"),
            "abstract": abstract,
        }
        self._listen(socket.AF_UNIX, str(folder / "socket"))
        self._listen(socket.AF_UNIX, abstract)
        wake, self._wake = socket.socketpair()
        self._greeter = threading.Thread(target=_greet, args=(self._listeners, wake), daemon=True)
        self._greeter.start()

    def __enter__(self) -> Targets:
        return self

    def __exit__(self, *error: object) -> None:
        self._victim.kill()
        self._victim.wait()
        self._wake.close()
        self._greeter.join()
        self._stack.close()

    def victim_ended(self) -> bool:
        """Return whether the idle process has ended, or does so within a second."""
        return _becomes_true(lambda: self._victim.poll() is not None)

    def mark_exists(self) -> bool:
        """Return whether the file `mark` exists, or does so within a second."""
        return _becomes_true(self._mark.exists)

    def _listen(self, family: int, address: Any, kind: int = socket.SOCK_STREAM) -> int:
        """Listen and return the port; 0 where this machine lacks the address family."""
        try:
            listener = socket.socket(family, kind)
            listener.bind(address)
        except OSError:
            return 0
        self._stack.callback(listener.close)
        if kind == socket.SOCK_STREAM:
            listener.listen()
            self._listeners.append(listener)
        name = listener.getsockname()
        return int(name[1]) if family != socket.AF_UNIX else 0


@contextlib.contextmanager
def secret_in_environment(secret: str) -> Iterator[None]:
    """Hold the secret in an environment variable of this process, which executors inherit."""
    os.environ[_VARIABLE] = secret
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


def _start_victim(secret: str) -> subprocess.Popen[bytes]:
    program = "import time; print(flush=True); time.sleep(60)"
    victim = subprocess.Popen(
        [launch.python(), "-S", "-E", "-c", program],
        stdout=subprocess.PIPE,
        env={_VARIABLE: secret},
    )
    assert victim.stdout is not None
    with victim.stdout:
        victim.stdout.readline()
    return victim


def _greet(listeners: list[socket.socket], wake: socket.socket) -> None:
    """Send hello to every client until the other end of `wake` closes."""
    with wake:
        while True:
            ready, _, _ = select.select([wake, *listeners], [], [])
            if wake in ready:
                return
            for listener in ready:
                with contextlib.suppress(OSError):
                    client, _ = listener.accept()
                    with client:
                        client.sendall(b"hello")


def _find_readable_address(pid: int) -> int:
    """Return an address in the readable memory of a process; 0 if its map cannot be read."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, permissions, *_ = line.split()
            if permissions.startswith("r"):
                return int(addresses.split("-")[0], 16)
    return 0


def _becomes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _WAIT
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
