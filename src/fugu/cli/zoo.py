"""`fugu zoo`: trained policies that come with fugu."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fugu.cli.parsing import Commands
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.zoo.index import ZooPolicy

Name = Annotated[str, tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True, kw_only=True)
class ZooOptions:
    """Options of all commands of the zoo."""

    folder: Path | None = None
    """Folder of the zoo; the one that is installed with fugu if not given."""

    @property
    def zoo(self) -> Path:
        """The folder of the zoo."""
        from fugu.zoo.index import FOLDER

        return FOLDER if self.folder is None else self.folder


@dataclass(frozen=True)
class ZooList(ZooOptions):
    """List the trained policies with their scores, training steps and sizes."""

    json: bool = False
    """Print one JSON array and nothing else."""

    def run(self) -> int:
        """List them; 0 if the index could be read."""
        from fugu.zoo.index import read_index

        policies = read_index(self.zoo)
        if self.json:
            print(json.dumps([asdict(policy) for policy in policies], indent=2))
        elif not policies:
            print(f"There are no policies in {str(self.zoo)!r}.")
        else:
            _show(policies)
        return 0


@dataclass(frozen=True)
class ZooPlay(ZooOptions):
    """Watch a trained policy play its environment, or write a video of it.

    It plays in a window, or in the terminal where there is no display.
    """

    name: Name
    """The policy: its name, or its environment."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.gif|.mp4|.png")] = None
    """Write a GIF, a video or a picture and open no window."""
    terminal: bool = False
    """Play in the terminal, without a window."""
    seed: int | None = None
    """Seed of the game; a fresh one if not given."""
    sample: bool = False
    """Sample actions, as in training; by default it takes the most probable ones."""
    fps: float | None = None
    """Steps per second; what the environment says if not given."""
    steps: int | None = None
    """End after this many steps; a video has 300 if not given."""

    def run(self) -> int:
        """Play; 0 when it ends."""
        from fugu.cli.play import Play
        from fugu.cli.record import Record
        from fugu.zoo.index import opened

        if self.out is not None and self.terminal:
            raise UsageError("out: got it with --terminal; allowed: one of them.")
        with opened(self.name, self.zoo) as (_, run):
            shared: dict[str, Any] = {"sample": self.sample, "fps": self.fps}
            if self.out is None:
                shared |= {"seed": self.seed, "steps": self.steps, "terminal": self.terminal}
                return Play(str(run.folder), **shared).run()
            steps = 300 if self.steps is None else self.steps
            shared |= {"seed": self.seed or 0, "steps": steps, "video": self.out}
            return Record(str(run.folder), **shared).run()


@dataclass(frozen=True)
class ZooEval(ZooOptions):
    """Evaluate a trained policy and compare its mean return with the index."""

    name: Name
    """The policy: its name, or its environment."""
    episodes: int = 100
    """Number of episodes."""
    seed: int = 0
    """Seed of the environments and of sampled actions."""
    sample: bool = False
    """Sample actions, as in training; by default it takes the most probable ones."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def run(self) -> int:
        """Evaluate; 0 if it went well."""
        from fugu.cli.evaluate import Evaluate
        from fugu.zoo.index import opened

        with opened(self.name, self.zoo) as (policy, run):
            status = Evaluate(
                str(run.folder),
                episodes=self.episodes,
                seed=self.seed,
                sample=self.sample,
                json=self.json,
            ).run()
        if not self.json:
            print(f"in the index: {_score(policy)} over {policy.episodes} episodes")
        return status


@dataclass(frozen=True)
class ZooPull(ZooOptions):
    """Copy a trained policy into a run folder, for fugu eval, play, export and train --init-from.

    Every file is verified and no code of it is run. It holds weights and settings, but neither
    optimizer nor experience: train it further with fugu train ENV --init-from RUN.
    """

    name: Name
    """The policy: its name, or its environment."""
    into: Path | None = None
    """The run folder to create; the policy's name in the folder of runs if not given."""
    runs: Path = Path("runs")
    """Where runs are."""

    def run(self) -> int:
        """Pull; 0 if there is a run."""
        from fugu.zoo.index import pull

        run = pull(self.name, self.into, root=self.runs, folder=self.zoo)
        name = run.name if run.folder.parent == self.runs else run.folder
        print(f"Pulled: {self.name} to {run.folder}")
        print(f"next: fugu eval {name}")
        return 0


@dataclass(frozen=True)
class Zoo:
    """List, watch, evaluate or copy the trained policies that come with fugu."""

    @classmethod
    def commands(cls) -> Commands:
        """Return the commands of the group."""
        return {"list": ZooList, "play": ZooPlay, "eval": ZooEval, "pull": ZooPull}

    def run(self) -> int:
        """Raise: a command line names a command of the group."""
        raise NotImplementedError("run() -> int")


def _score(policy: ZooPolicy) -> str:
    return f"{policy.score:.4g} ± {policy.deviation:.3g}"


def _show(policies: list[ZooPolicy]) -> None:
    """Print a table of policies."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("name", "environment", "mean return", "steps", "size", "note"):
        left = column in ("name", "environment", "note")
        table.add_column(column, justify="left" if left else "right", no_wrap=column != "note")
    for policy in policies:
        numbers = f"{policy.steps:,}", f"{policy.bytes / 1000:,.0f} kB"
        table.add_row(policy.name, policy.env, _score(policy), *numbers, policy.note)
    Console().print(table, markup=False)
