"""`fugu hub`: share runs through the Hugging Face Hub or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fugu.cli.parsing import Commands
from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Push:
    """Share a run: a checkpoint, settings, metrics, a model card, the learning curve and a video.

    The token comes from HF_TOKEN or `hf auth login`. After a failure, push again: only what is
    missing is sent.
    """

    name: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """The run: its name, the beginning of its name, its folder, or latest."""
    repo: Annotated[str, tyro.conf.arg(metavar="USER/NAME|./FOLDER")]
    """A repository of the Hub, or a folder, which needs no network."""
    private: bool = False
    """Make the repository private if it is new."""
    revision: str | None = None
    """The branch to push to, which is created if it is new; the main branch if not given."""
    best: bool = False
    """Share the best checkpoint instead of the last one."""
    episodes: int = 20
    """Episodes to play for the card; with 0 it reports the returns of the training."""
    no_video: bool = False
    """Do not record a video of the policy."""
    message: str = ""
    """The commit message; the run's name and steps if not given."""
    runs: Path = Path("runs")
    """The folder of all runs."""

    def run(self) -> int:
        """Push the run and return the exit status."""
        from fugu.hub.push import push_to_hub

        done = push_to_hub(
            self.name,
            self.repo,
            private=self.private,
            revision=self.revision,
            best=self.best,
            episodes=self.episodes,
            video=not self.no_video,
            message=self.message,
            root=self.runs,
        )
        for note in done.notes:
            print(note)
        score = "no score" if done.score is None else f"mean return {done.score}"
        print(f"Pushed: {done.url} ({len(done.files)} files, {score})")
        return 0


@dataclass(frozen=True)
class Pull:
    """Download and verify a shared run, for fugu eval, play, train --init-from and resume.

    No code of it is executed. Without --trust, an environment that is a program is refused, and
    states of environments are left out, so that a resumed run begins new episodes.
    """

    repo: Annotated[str, tyro.conf.arg(metavar="USER/NAME|./FOLDER")]
    """A repository of the Hub, or a folder."""
    into: Path | None = None
    """The run folder to create; the name of the repository in the folder of all runs if not
    given."""
    revision: str | None = None
    """A branch, tag or commit; the main branch if not given."""
    trust: bool = False
    """Trust the run, if you know who made it: accept states of environments, and a Python factory
    or a native library as its environment, which is executed when you play or train it."""
    max_gb: float = 16.0
    """The most to download, in GB."""
    runs: Path = Path("runs")
    """The folder of all runs."""

    def run(self) -> int:
        """Pull the run and return the exit status."""
        from fugu.hub.pull import pull

        if not self.max_gb > 0:
            raise UsageError(f"max-gb: expected a number above 0; got {self.max_gb}.")
        done = pull(
            self.repo,
            self.into,
            revision=self.revision,
            root=self.runs,
            trust=self.trust,
            max_bytes=int(self.max_gb * 1e9),
        )
        at = f" at {done.commit[:12]}" if done.commit else ""
        print(f"Pulled: {self.repo}{at} to {done.run.folder}")
        if done.skipped:
            print("Without states of environments: a resume begins new episodes (--trust has them)")
        name = done.run.name if done.run.folder.parent == self.runs else done.run.folder
        print(f"next: fugu eval {name}")
        return 0


@dataclass(frozen=True)
class Hub:
    """Share a run on the Hugging Face Hub or in a folder, or download a shared run."""

    @classmethod
    def commands(cls) -> Commands:
        """Return the commands of the group."""
        return {"push": Push, "pull": Pull}

    def run(self) -> int:
        """Raise: a command line names a command of the group."""
        raise NotImplementedError("run() -> int")
