"""`fugu check`: check an environment."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Check:
    """Run an environment for a while and report its faults."""

    env: Annotated[str, tyro.conf.arg(metavar="ENV")]
    """CartPole-v1, module:Id-v0, pettingzoo:family/name or package.module:factory."""
    steps: int = 1000
    """Steps of each run."""
    seed: int = 0
    """Random seed of resets and actions."""
    limits: int = 256
    """Maximum length of each Sequence and Graph in the spaces."""
    json: bool = False
    """Print the report as one JSON object and nothing else."""

    def run(self) -> int:
        """Check the environment; return 0 if no check failed."""
        from fugu.envs.checking import check
        from fugu.envs.resolve import resolve

        # The JSON must be all of stdout, whatever the environment prints.
        with contextlib.redirect_stdout(sys.stderr) if self.json else contextlib.nullcontext():
            report = check(
                resolve(self.env),
                steps=self.steps,
                seed=self.seed,
                limits=self.limits,
                show=not self.json,
            )
        if self.json:
            print(json.dumps(report.to_dict(), indent=2))
        return 0 if report.ok else 1
