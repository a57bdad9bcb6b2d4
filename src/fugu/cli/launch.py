"""`fugu train --nproc`: torchrun around ranks of the same command, and Ray Train likewise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fugu.cli.one_rank import FOLDER, LAUNCHER, READY, VERDICT, read
from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.machine import usable_cores

if TYPE_CHECKING:
    from fugu.store.run import Run

TIMEOUT = "FUGU_RANK_TIMEOUT"
FORWARDED = ("SIGINT", "SIGTERM", "SIGUSR1")
CLUSTERS = ("ray",)
# Each start has a store of its own: gloo would else connect to ranks of the one before.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True)
class Launch:
    """How ranks are started."""

    nproc: int = 0
    """How many; 0: as many as a resumed run had, else one."""
    max_restarts: int = 3
    """How often all are started again when one dies."""
    rank_timeout: str | None = None
    """Seconds that ranks wait for each other."""
    cluster: str | None = None
    """Where: on this machine if not given."""

    def __post_init__(self) -> None:
        if self.nproc < 0 or self.max_restarts < 0:
            raise UsageError(
                f"given --nproc {self.nproc} --max-restarts {self.max_restarts}; allowed: 1 or "
                "more ranks, and 0 or more restarts."
            )
        if self.cluster is not None and self.cluster not in CLUSTERS:
            raise UsageError(f"cluster: given {self.cluster!r}; allowed: {', '.join(CLUSTERS)}.")

    def run(self, command: list[str], nproc: int) -> int:
        """Run a command of fugu as so many ranks, by torchrun; its exit status."""
        with tempfile.TemporaryDirectory(prefix="fugu-ranks-") as folder:
            process = subprocess.Popen(
                torchrun(command, nproc, self.max_restarts),
                env=self._environment(Path(folder), nproc),
                start_new_session=True,  # signals of the terminal reach the ranks once, from here
            )
            try:
                with _signals() as came:
                    _wait(process, Path(folder) / READY, came)
            finally:
                process.kill()  # ranks notice that it is gone; nothing if it ended
                process.wait()
            verdict = read(Path(folder) / VERDICT)
        if not verdict:
            print(
                f"fugu: the ranks ended without a result (torchrun's status {process.returncode}). "
                "The run goes on from its last checkpoint with fugu resume.",
                file=sys.stderr,
            )
        return int(verdict.get("status", 1))

    def _environment(self, folder: Path, nproc: int) -> dict[str, str]:
        threads = str(max(1, usable_cores() // nproc))
        given = {} if self.rank_timeout is None else {TIMEOUT: self.rank_timeout}
        launch = {FOLDER: str(folder), LAUNCHER: str(os.getpid())}
        return {"OMP_NUM_THREADS": threads, **os.environ, **OWN_STORE, **given, **launch}

    def run_on_ray(self, command: list[str], nproc: int, *, gpus: bool, run: Run) -> int:
        """Train a run as the workers of a Ray cluster; 0 if it went to the end."""
        try:
            from fugu.cli.ray_ranks import fit
        except ImportError as error:
            raise MissingExtraError("ray", "ray") from error
        folder = run.folder.parent
        fit(command, nproc, gpus=gpus, folder=folder, max_failures=self.max_restarts)
        return 0 if run.status == "finished" else 1


def torchrun(command: list[str], nproc: int, max_restarts: int) -> list[str]:
    """The command line of torchrun around one of fugu."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(nproc), "--max-restarts", str(max_restarts), "--no-python"),
        *("--", sys.executable, "-P", "-m", "fugu.cli.main", *command),
    ]


def _wait(process: subprocess.Popen[bytes], ready: Path, came: list[int]) -> None:
    """Until torchrun ends; a signal goes to the first rank, a second one ends all of them."""
    told = 0  # the process that knows of the signal; after a restart there is another
    while True:
        try:
            process.wait(0.2)
            return
        except subprocess.TimeoutExpired:
            pass
        first = int(read(ready).get("process", 0))
        if came and first not in (0, told):
            try:
                os.kill(first, came[0])
                told = first
            except ProcessLookupError:  # it is about to be started again
                continue
        if len(came) > 1:
            process.terminate()
        if len(came) > 2:
            process.kill()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that came, which do nothing else meanwhile."""
    came: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    for number in (getattr(signal, name) for name in FORWARDED if hasattr(signal, name)):
        before[number] = signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
