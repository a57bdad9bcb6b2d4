"""Several processes that train one run: `--nproc` starts torchrun, `--cluster ray` Ray Train.

Ranks leave two files in the folder of their launch: `first.json` names the first rank's process
once it handles signals, and `verdict.json` holds the exit status of the whole.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.core.machine import usable_cores

if TYPE_CHECKING:
    from fugu.training.callbacks import AnyCallback
    from fugu.training.session import Result

FOLDER, LAUNCHER = "FUGU_LAUNCH", "FUGU_LAUNCHER"  # of the launch; the process that watches it
VERDICT, READY = "verdict.json", "first.json"
TIMEOUT = "FUGU_RANK_TIMEOUT"
FORWARDED = ("SIGINT", "SIGTERM", "SIGUSR1")
# Each start has a store of its own: gloo would otherwise connect to ranks of the one before.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


# ---------------------------------------------------------------------- the launcher


@dataclass(frozen=True)
class Launch:
    """How ranks are started."""

    nproc: int = 0
    """Number of processes, each with its share of the copies; 0: as many as a resumed run had, or
    one."""
    max_restarts: int = 3
    """How often all processes are started again when one dies; they continue from the last
    checkpoint."""
    rank_timeout: str | None = None
    """Seconds that processes wait for each other."""

    def __post_init__(self) -> None:
        if self.nproc < 0 or self.max_restarts < 0:
            raise UsageError(
                f"given --nproc {self.nproc} --max-restarts {self.max_restarts}; allowed: 1 or "
                "more ranks, and 0 or more restarts."
            )

    def run(self, command: list[str], nproc: int) -> int:
        """Run a command of fugu as so many ranks, by torchrun, and return its exit status."""
        threads = {"OMP_NUM_THREADS": str(max(1, usable_cores() // nproc))}
        given = {} if self.rank_timeout is None else {TIMEOUT: self.rank_timeout}
        with tempfile.TemporaryDirectory(prefix="fugu-ranks-") as name:
            folder = Path(name)
            launch = {FOLDER: name, LAUNCHER: str(os.getpid())}
            process = subprocess.Popen(
                torchrun(command, nproc, self.max_restarts),
                env={**threads, **os.environ, **OWN_STORE, **given, **launch},
                start_new_session=True,  # signals of the terminal reach the ranks once, from here
            )
            try:
                with _collected_signals() as received:
                    _wait(process, folder / READY, received)
            finally:
                process.kill()  # ranks notice that it is gone; nothing happens if it ended
                process.wait()
            verdict = _read(folder / VERDICT)
        if not verdict:
            print(
                f"fugu: the ranks ended without a result (torchrun's status {process.returncode}). "
                "The run goes on from its last checkpoint with fugu resume.",
                file=sys.stderr,
            )
        return int(verdict.get("status", 1))


def torchrun(command: list[str], nproc: int, max_restarts: int) -> list[str]:
    """Return the command line of torchrun around one of fugu."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(nproc), "--max-restarts", str(max_restarts), "--no-python"),
        *("--", sys.executable, "-P", "-m", "fugu.cli.main", *command),
    ]


def _wait(process: subprocess.Popen[bytes], ready: Path, received: list[int]) -> None:
    """Wait for torchrun; a signal goes to the first rank, and a second one ends all of them."""
    notified = 0  # the process that has the signal; after a restart there is another
    while True:
        try:
            process.wait(0.2)
            return
        except subprocess.TimeoutExpired:
            pass
        first = int(_read(ready).get("process", 0))
        if received and first not in (0, notified):
            try:
                os.kill(first, received[0])
                notified = first
            except ProcessLookupError:  # it is about to be started again
                continue
        if len(received) > 1:
            process.terminate()
        if len(received) > 2:
            process.kill()


@contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Yield a list of the signals received, which have no other effect meanwhile."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    numbers = [getattr(signal, name) for name in FORWARDED if hasattr(signal, name)]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------- one rank


def is_rank() -> bool:
    """Return whether torchrun started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def run_rank(work: Callable[[tuple[AnyCallback, ...]], int]) -> int:
    """Do the work of this process; return 0 if torchrun is not to start it again.

    Args:
        work: Trains with callbacks and returns the exit status of the whole.
    """
    if not is_rank():
        return work(())
    if FOLDER not in os.environ:
        work(())
        return 0
    folder = Path(os.environ[FOLDER])
    if (folder / VERDICT).exists():  # started again for nothing: a rank gave up for all
        return 0
    pin_to_cores()
    threading.Thread(target=_watch, args=(int(os.environ[LAUNCHER]),), daemon=True).start()
    is_first = os.environ["RANK"] == "0"
    pending = [folder / READY] if is_first else []

    def report_ready(*_: Any) -> None:
        """Say, after an update, that the first rank handles signals."""
        if pending:
            _write(pending.pop(), {"process": os.getpid()})

    from fugu.training.distributed import RankLostError

    try:
        status = work((report_ready,))
    except RankLostError:
        raise
    except FuguError as error:
        if _write(folder / VERDICT, {"status": 1}, once=True):
            print(f"fugu: {error}", file=sys.stderr)
        return 1
    if is_first:
        _write(folder / VERDICT, {"status": status}, once=True)
    return 0


def exit_status(result: Result, requeues: bool) -> int:
    """Return 0 for a session that finished, 75 for one that was requeued, else 128 + the signal."""
    from fugu.training.auto_resume import REQUEUE_STATUS, RequeueError, requeue

    if result.status == "finished" or not result.signals:
        return 0
    number = result.signals[0]
    if not requeues or number == signal.SIGINT:
        return 128 + number
    if result.run is not None:  # the first rank speaks for all
        try:
            requeue()
        except RequeueError as error:
            print(f"fugu: {error}", file=sys.stderr)
    return REQUEUE_STATUS


def pin_to_cores() -> None:
    """Keep this rank to its share of the machine's cores, if there is one for each."""
    if not hasattr(os, "sched_getaffinity"):
        return
    cores, size = sorted(os.sched_getaffinity(0)), int(os.environ["LOCAL_WORLD_SIZE"])
    each, rank = len(cores) // size, int(os.environ["LOCAL_RANK"])
    if each:
        os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])


def _watch(launcher: int) -> None:
    """Stop as by SIGTERM when torchrun or the launcher is gone."""
    parent = os.getppid()
    while os.getppid() == parent and _is_alive(launcher):
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _read(path: Path) -> dict[str, Any]:
    """Return what a file of a launch says; nothing if it does not exist."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found


def _write(path: Path, content: dict[str, Any], *, once: bool = False) -> bool:
    """Write a file whole; with `once`, return whether this process is the first to write it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(content))
    if not once:
        fresh.replace(path)
        return True
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


# ---------------------------------------------------------------------- Ray


def run_on_ray(command: list[str], nproc: int, *, gpus: bool, folder: Path, restarts: int) -> None:
    """Run `fugu train` as so many workers of Ray Train.

    Args:
        command: The arguments of fugu train.
        nproc: Number of workers.
        gpus: Whether each worker has a GPU.
        folder: The folder of runs, which all machines see.
        restarts: How often all are started again when one dies.
    """
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.torch import TorchConfig, TorchTrainer
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    from fugu.training.distributed import timeout

    backend, seconds = "nccl" if gpus else "gloo", int(timeout().total_seconds())
    trainer = TorchTrainer(
        _run_worker,
        train_loop_config={"command": command, "folder": os.getcwd()},
        torch_config=TorchConfig(backend=backend, timeout_s=seconds),
        scaling_config=ScalingConfig(num_workers=nproc, use_gpu=gpus),
        run_config=RunConfig(
            storage_path=str(folder / ".ray"),
            failure_config=FailureConfig(max_failures=restarts),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise FuguError(
            f"cluster: given ray, whose workers failed more than {restarts} times; what the "
            f"last one said: {error}"
        ) from error


def _run_worker(config: dict[str, Any]) -> None:
    """Train in a worker of Ray, which is in torch's process group already."""
    from fugu.cli.parsing import parse
    from fugu.cli.train import Train
    from fugu.training.trainer import DivergedError

    os.chdir(config["folder"])
    if config["folder"] not in sys.path:
        sys.path.append(config["folder"])
    try:
        parse(Train, config["command"], "fugu train").train_rank()
    except DivergedError as error:  # all ranks agree on it: another try would end alike
        print(f"fugu: {error}", file=sys.stderr)
