"""`fugu autotune`: measure which arguments of fugu.make step an environment fastest here."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fugu.core.config import check_table, read_toml, write_table
from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Autotune:
    """Measure which backend, workers, environments and batches are fastest on this machine."""

    env: Annotated[str, tyro.conf.arg(metavar="ENV")]
    """CartPole-v1, module:Id-v0, pettingzoo:family/name or package.module:factory."""
    num_envs: int | None = None
    """Number of environments; several are tried if not given."""
    backend: Literal["auto", "native", "serial", "threads", "process"] = "auto"
    """Try this backend only."""
    batch_size: int | None = None
    """Environments in a batch; all, half and a quarter are tried if not given."""
    policy_seconds: float = 0.0
    """Seconds that the policy takes for a batch."""
    seconds: float = 6.0
    """Seconds to measure; starting the workers comes on top."""
    seed: int = 0
    """Seed of the environments, the actions and the order of the trials."""
    max_memory: float | None = None
    """Gigabytes (2^30 bytes) for all environments; half of the free memory if not given."""
    limits: int | None = None
    """Most items of each Sequence and Graph in the spaces."""
    json: bool = False
    """Print the result as one JSON object and nothing else."""
    config: Path | None = None
    """Write the choice into [vec] of this TOML file, for fugu train --config. The rest of the file
    stays, and its env_kwargs are used for the measurement."""

    def run(self) -> int:
        """Measure, show and write the choice; return 0."""
        from fugu.vector.autotune import tune

        if self.config is not None:
            _check_config(self.config)
        with _stdout_to_stderr() if self.json else contextlib.nullcontext():
            tuning = tune(
                self.env,
                self.num_envs,
                policy_seconds=self.policy_seconds,
                seconds=self.seconds,
                seed=self.seed,
                max_memory=None if self.max_memory is None else int(self.max_memory * 2**30),
                show=not self.json,
                **self._make_options(),
            )
        if self.config is not None:
            write_table(self.config, "vec", tuning.make_options())
        if self.json:
            print(json.dumps(tuning.to_dict(), indent=2))
        elif self.config is not None:
            print(f"Written: {self.config}; fugu train {self.env} --config {self.config}")
        return 0

    def _make_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"backend": self.backend, "batch_size": self.batch_size}
        if self.limits is not None:
            options |= {"limits": self.limits, "action_limits": self.limits}
        if self.config is not None and self.config.exists():
            options["env_kwargs"] = read_toml(self.config).get("env_kwargs", {})
        return options


def _check_config(path: Path) -> None:
    """Raise an error before anything is measured if the choice could not be written."""
    if not path.parent.is_dir():
        raise UsageError(f"config: expected a file in a folder that exists; got {str(path)!r}.")
    if path.exists():
        check_table(path, "vec", ("backend", "num_envs", "num_workers", "batch_size"))


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Keep the output of environments, also of those in other processes, out of the JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
