"""Environments that stop, kill or hang their worker in a chosen call, once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from vector_toys import Small

STEPS_TO_END = 3  # of an episode whose end sends an info


def fail(deed: str) -> None:
    """Stop, kill or hang this process."""
    if deed == "hang":
        time.sleep(3600)
    os.kill(os.getpid(), {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[deed])


class FailingText:
    """A value of an info that fails while it is pickled."""

    def __init__(self, env: FailingEnv) -> None:
        self.env = env

    def __reduce__(self) -> tuple[Any, ...]:
        self.env.arrive("infos")
        return str, ("fine",)


class FailingFactory:
    """Makes `FailingEnv`s; fails itself where a worker loads it, if the moment is "start".

    Args:
        file: Holds the deed, the moment and the learner's process id once the failure is armed;
            whoever fails removes it first, so that it happens once.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self) -> FailingEnv:
        return FailingEnv(self.file)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        arrive(self.file, "start")


class FailingEnv(Small):
    """Fails in the moment that a file names."""

    render_mode = "rgb_array"

    def __init__(self, file: Path) -> None:
        self.file = file

    def arrive(self, moment: str) -> None:
        arrive(self.file, moment)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if options:
            self.arrive("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.arrive("step")
        if action == 1:
            raise ZeroDivisionError("it fails, and so is closed")
        observation, reward, _, _, _ = super().step(action)
        over = self.count >= STEPS_TO_END
        return observation, reward, over, False, {"text": FailingText(self)} if over else {}

    def render(self) -> Any:
        self.arrive("render")
        return b"picture"

    def ask(self) -> int:
        self.arrive("call")
        return int(self.count)

    def get_state(self) -> bytes:
        self.arrive("state")
        return bytes([self.count])

    def set_state(self, state: bytes) -> None:
        self.arrive("set_state")
        self.count = state[0]

    def close(self) -> None:
        self.arrive("close")


def arm(file: Path, deed: str, moment: str) -> None:
    """Have the next worker that comes to this moment fail."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{deed} {moment} {os.getpid()}")
    draft.rename(file)


def arrive(file: Path, moment: str) -> None:
    """Fail if this is the armed moment, and this process is not the learner."""
    try:
        deed, armed, learner = file.read_text().split()
    except FileNotFoundError:
        return
    if armed == moment and int(learner) != os.getpid():
        try:
            file.unlink()
        except FileNotFoundError:
            return  # another worker was faster
        file.with_suffix(".failed").write_text(str(time.monotonic()))
        fail(deed)
