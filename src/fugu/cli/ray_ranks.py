"""Ranks as the workers of Ray Train."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from fugu.core.errors import FuguError
from fugu.training.distributed import timeout


def fit(command: list[str], workers: int, *, gpus: bool, folder: Path, max_failures: int) -> None:
    """Run a command of fugu as so many workers.

    Args:
        command: Of fugu, as it is typed.
        workers: Ranks.
        gpus: Whether each has a GPU.
        folder: Of runs, which all machines see.
        max_failures: How often all are started again when one dies.
    """
    trainer = TorchTrainer(
        work,
        train_loop_config={"command": command, "folder": os.getcwd()},
        torch_config=TorchConfig(
            backend="nccl" if gpus else "gloo", timeout_s=int(timeout().total_seconds())
        ),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=RunConfig(
            storage_path=str(folder / ".ray"),
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise FuguError(
            f"cluster: given ray, whose workers failed more than {max_failures} times; what the "
            f"last one said: {error}"
        ) from error


def work(config: dict[str, Any]) -> None:
    """What each worker does; it belongs to torch's group already."""
    from fugu.cli.train import Train
    from fugu.training.trainer import DivergedError

    os.chdir(config["folder"])
    if config["folder"] not in sys.path:
        sys.path.append(config["folder"])
    try:
        Train.parse(config["command"]).train_rank()
    except DivergedError as error:  # all ranks agree on it: another try would end alike
        print(f"fugu: {error}", file=sys.stderr)
