"""`fugu autotune`: which settings step an environment fastest on this machine?"""

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

from fugu.core.config import read_toml
from fugu.core.errors import UsageError
from fugu.core.toml import check_table, write_table


@dataclass(frozen=True)
class Autotune:
    """Measure which settings of fugu.make step an environment fastest here, and show them."""

    env: Annotated[str, tyro.conf.arg(metavar="ENV")]
    """CartPole-v1, module:Id-v0, pettingzoo:family/name or package.module:factory."""
    num_envs: int | None = None
    """Copies; some powers of two are tried if not given."""
    backend: Literal["auto", "serial", "threads", "process"] = "auto"
    """Try this backend only."""
    batch_size: int | None = None
    """Environments in a batch; all, half and a quarter are tried if not given."""
    policy_seconds: float = 0.0
    """Seconds that the policy takes for a batch."""
    seconds: float = 6.0
    """Seconds for the measuring; starting the workers comes on top."""
    seed: int = 0
    """Seed of the resets, the actions and the order of the trials."""
    max_memory: float | None = None
    """Gigabytes (2^30 bytes) that all copies may take; half of what is free if not given."""
    limits: int | None = None
    """Most items of each Sequence and Graph in the spaces."""
    png: Path | None = None
    """Draw a picture into this file."""
    json: bool = False
    """Print the tuning as one JSON object and nothing else."""
    config: Path | None = None
    """Write the choice into this TOML file, for fugu train --config; all else in it stays, and
    its env_kwargs are those of the copies that are measured."""

    def run(self) -> int:
        """Tune and show; 0 if there is a choice."""
        from fugu.vector.autotune import tune
        from fugu.vector.tuning.picture import check_picture, draw_picture

        if self.png is not None:
            check_picture(self.png)
        if self.config is not None:
            self._check_config(self.config)
        with _chatter_to_stderr() if self.json else contextlib.nullcontext():
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
        if self.png is not None:
            draw_picture(tuning, self.png)
        if self.config is not None:
            write_table(self.config, "vec", tuning.make_options())
        if self.json:
            print(json.dumps(tuning.to_dict(), indent=2))
            return 0
        if self.png is not None:
            print(f"Drawn: {self.png}")
        if self.config is not None:
            print(f"Written: {self.config}; fugu train {self.env} --config {self.config}")
        return 0

    def _check_config(self, path: Path) -> None:
        """Raise before anything is measured, if the choice could not be written."""
        from fugu.envs import suite

        if suite.find(self.env) or self.env.endswith(suite.SUFFIXES):
            raise UsageError(
                f"config: given with {self.env!r}, a native environment; allowed: with others. "
                "Native ones are stepped by a pool of their own (--vec.backend native), which is "
                "not among what is tried here and is faster."
            )
        if not path.parent.is_dir():
            raise UsageError(f"config: given {str(path)!r}; allowed: in a folder that exists.")
        if path.exists():
            check_table(path, "vec", ("backend", "num_envs", "num_workers", "batch_size"))

    def _make_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"backend": self.backend, "batch_size": self.batch_size}
        if self.limits is not None:
            options |= {"limits": self.limits, "action_limits": self.limits}
        if self.config is not None and self.config.exists():
            options["env_kwargs"] = read_toml(self.config).get("env_kwargs", {})
        return options


@contextlib.contextmanager
def _chatter_to_stderr() -> Iterator[None]:
    """What environments print must not stand before the JSON, from other processes either."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
