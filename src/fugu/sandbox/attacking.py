"""The attack suite: every attack and every cheat, first without walls, then against a backend.

An attack counts only if it succeeds without walls, in a throw-away process of the same run: what
fails there anyway shows nothing. After each one an honest program must still get its right verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.sandbox import launch
from fugu.sandbox.attacks import ATTACKS, LIMITS, NUMBERS, Attack
from fugu.sandbox.backends import make_executor
from fugu.sandbox.cheats import CHEATS, Cheat
from fugu.sandbox.execution import Execution, Program
from fugu.sandbox.executor import Executor
from fugu.sandbox.grading import Case, Task, grade
from fugu.sandbox.single import UnsafeExecutor
from fugu.sandbox.texts import shown
from fugu.sandbox.thefts import LIMITS as THEFT_LIMITS
from fugu.sandbox.thefts import THEFTS, Theft, thief

_VARIABLE = "FUGU_ATTACK_SECRET"
_PROOF_SECONDS = 1.0
Item = Attack | Cheat | Theft
_HONEST = Task("honest", "double", (Case((21,), 42), Case(("a",), "aa")))


@dataclass(frozen=True)
class Finding:
    """What one attack did."""

    name: str
    wall: str
    works_without_walls: bool
    succeeded: bool
    survived: bool
    """Whether the next honest program got its right verdict."""
    told: str = ""
    """What the attack met."""

    @property
    def counts(self) -> bool:
        """Whether holding it shows anything."""
        return self.works_without_walls

    @property
    def held(self) -> bool:
        """Whether it got nowhere and broke nothing."""
        return self.survived and not self.succeeded


def attack_all(
    backend: str = "zygote",
    *,
    only: Sequence[str] = (),
    progress: Callable[[Finding], None] = lambda finding: None,
    **options: Any,
) -> list[Finding]:
    """Run the suite against a backend; `only` names walls or attacks."""
    secret = f"secret-{secrets.token_hex(8)}"
    every: tuple[Item, ...] = (*ATTACKS, *CHEATS, *THEFTS)
    chosen = [item for item in every if not only or {item.name, item.wall} & {*only}]
    if not chosen:
        walls = dict.fromkeys(item.wall for item in every)
        raise UsageError(f"attacks: given {list(only)}; allowed: {', '.join(walls)}.")
    findings = []
    with (
        _variable(secret),
        UnsafeExecutor() as unsafe,
        make_executor(backend, **options) as executor,  # type: ignore[arg-type]
    ):
        for item in chosen:
            without, _ = _try(item, unsafe, secret, walls=False)
            succeeded, told = _try(item, executor, secret, walls=True)
            survived = _is_honest(executor)
            finding = Finding(item.name, item.wall, without, succeeded, survived, told)
            progress(finding)
            findings.append(finding)
    return findings


def _try(item: Item, executor: Executor, secret: str, *, walls: bool) -> tuple[bool, str]:
    """Whether it succeeds, and what it met."""
    if isinstance(item, Cheat):
        if walls:
            graded = grade(item.source, item.task(secret), executor)
            return graded.verdict == "passed", graded.verdict
        return executor.run(item.control(secret)).stdout.strip() == "passed", ""
    if isinstance(item, Theft):
        if walls:
            return _steal(item, executor, secret)
        found = executor.run(item.control(secret), limits=THEFT_LIMITS)
        return found.stdout.strip() == "passed", ""
    with Stage(secret) as stage:
        program = Program(item.source, "attack")
        execution = executor.run(program, [(stage.facts,)], LIMITS)
        return stage.proves(item, execution), _told(execution)


def _steal(item: Theft, executor: Executor, secret: str) -> tuple[bool, str]:
    """Whether a program finds the one before it, which had the secret in all its parts."""
    executor.run(Program(item.victim(secret), "f"), [(secret,)])
    execution = executor.run(Program(thief(item), "steal"), [()], THEFT_LIMITS)
    answers = [outcome.value for outcome in execution.outputs]
    return secret in answers, _told(execution)


def _told(execution: Execution) -> str:
    if execution.verdict != "passed":
        return f"{execution.verdict}: {execution.message}"[:120]
    return f"returned {shown(execution.outputs[0].value, 100)}"


def _is_honest(executor: Executor) -> bool:
    right = grade("def double(x): return x + x", _HONEST, executor)
    wrong = grade("def double(x): return x", _HONEST, executor)
    return right.verdict == "passed" and wrong.verdict == "wrong"


@contextlib.contextmanager
def _variable(secret: str) -> Iterator[None]:
    os.environ[_VARIABLE] = secret
    try:
        yield
    finally:
        del os.environ[_VARIABLE]


class Stage:
    """What attacks aim at: listeners, a folder with a secret, a process that does nothing."""

    def __init__(self, secret: str) -> None:
        self._stack = contextlib.ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fugu-")))
        folder.chmod(0o755)
        (folder / "secret").write_text(secret)
        self._mark = folder / "mark"
        abstract = f"\0fugu-{secrets.token_hex(8)}"
        self._victim = self._start_victim(secret)
        self._listeners: list[socket.socket] = []
        self.facts: dict[str, Any] = {
            "folder": str(folder),
            "secret_file": str(folder / "secret"),
            "secret": secret,
            "new": str(folder / "new"),
            "mark": str(self._mark),
            "home": os.path.expanduser("~"),
            "pid": os.getpid(),
            "victim": self._victim.pid,
            "victim_address": _some_address(self._victim.pid),
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

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self._victim.kill()
        self._victim.wait()
        self._wake.close()
        self._greeter.join()
        self._stack.close()

    def proves(self, attack: Attack, execution: Execution) -> bool:
        """Whether the attack got what it came for."""
        returned = bool(execution.outputs) and execution.outputs[0].value is True
        if attack.proof == "returned":
            return returned
        if attack.proof == "lost":
            return execution.verdict == "refused"
        if attack.proof == "victim":
            return _before_long(lambda: self._victim.poll() is not None)
        return _before_long(self._mark.exists)

    def _start_victim(self, secret: str) -> subprocess.Popen[bytes]:
        command = [
            launch.python(),
            "-S",
            "-E",
            "-c",
            "import time; print(flush=True); time.sleep(60)",
        ]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, env={_VARIABLE: secret})
        assert victim.stdout is not None
        with victim.stdout:
            victim.stdout.readline()
        return victim

    def _listen(self, family: int, address: Any, kind: int = socket.SOCK_STREAM) -> int:
        """Greet whoever connects; the port, 0 where this machine has no such family."""
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


def _greet(listeners: list[socket.socket], wake: socket.socket) -> None:
    """Say hello to whoever connects, until the other end of `wake` closes."""
    with wake:
        while True:
            ready, _, _ = select.select([wake, *listeners], [], [])
            if wake in ready:
                return
            for listener in ready:
                with contextlib.suppress(OSError):
                    line, _ = listener.accept()
                    with line:
                        line.sendall(b"hello")


def _some_address(pid: int) -> int:
    """An address that another process can read."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, rights, *_ = line.split()
            if rights.startswith("r"):
                return int(where.split("-")[0], 16)
    return 0


def _before_long(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _PROOF_SECONDS
    while time.monotonic() < deadline:
        if fact():
            return True
        time.sleep(0.02)
    return False


def main() -> None:
    """Print findings as lines of JSON, for whoever starts this as another user."""
    settings = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    attack_all(
        **settings, progress=lambda found: print(json.dumps(dataclasses.asdict(found)), flush=True)
    )


if __name__ == "__main__":
    main()
