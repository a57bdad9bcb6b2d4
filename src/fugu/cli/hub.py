"""`fugu hub`: runs shared through the Hugging Face Hub, or through a folder."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fugu.core.errors import UsageError

_STYLE = (tyro.conf.PositionalRequiredArgs, tyro.conf.FlagCreatePairsOff)


@dataclass(frozen=True)
class Push:
    """Share a run: a checkpoint, its settings and metrics, a card, its curve and a film.

    A token comes from HF_TOKEN or `hf auth login`. Made again, a push that failed goes on.
    """

    name: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """The run: its name, the beginning of it, its folder, or latest."""
    repo: Annotated[str, tyro.conf.arg(metavar="USER/NAME|./FOLDER")]
    """A repository of the Hub, or a folder, which needs no network."""
    private: bool = False
    """Make the repository private, if it is new."""
    revision: str | None = None
    """The branch to push to, which is made if it is new."""
    best: bool = False
    """Share the best checkpoint and not the last."""
    episodes: int = 20
    """Episodes to play for the card; 0: it says what training told."""
    no_video: bool = False
    """Do not film the policy."""
    message: str = ""
    """Of the commit."""
    runs: Path = Path("runs")
    """Where runs are."""

    def run(self) -> int:
        """Push; 0 if it is there."""
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
    """Make a run of a shared one, verified, for fugu eval, play, train --init-from and resume.

    Nothing of it is run. Without --trust, environments that are programs are refused, and states of
    environments are left out, so that a resumed run begins new episodes.
    """

    repo: Annotated[str, tyro.conf.arg(metavar="USER/NAME|./FOLDER")]
    """A repository of the Hub, or a folder."""
    into: Path | None = None
    """The folder to make; its name in the folder of runs if not given."""
    revision: str | None = None
    """A branch, tag or commit."""
    trust: bool = False
    """You know who made it: take a Python factory or a native library as its environment, which
    runs when you play or train it, and the states of environments."""
    max_gb: float = 16.0
    """The most to download, in GB."""
    runs: Path = Path("runs")
    """Where runs are."""

    def run(self) -> int:
        """Pull; 0 if there is a run."""
        from fugu.hub.pull import pull

        if not self.max_gb > 0:
            raise UsageError(f"max-gb: given {self.max_gb}; allowed: a number above 0.")
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
        if done.left:
            print("Without states of environments: a resume begins new episodes (--trust has them)")
        name = done.run.name if done.run.folder.parent == self.runs else done.run.folder
        print(f"next: fugu eval {name}")
        return 0


_COMMANDS: dict[str, Any] = {"push": Push, "pull": Pull}


@dataclass(frozen=True)
class Hub:
    """Share a run on the Hugging Face Hub or in a folder, or take a shared one."""

    action: Annotated[Literal["push", "pull"], tyro.conf.Positional]
    """fugu hub ACTION --help tells more."""

    @classmethod
    def parse(cls, args: list[str]) -> Any:
        """The command of the group that `args` describe."""
        name = args[0] if args else ""
        if name in ("", "-h", "--help"):
            print("Runs shared through the Hugging Face Hub, or through a folder:")
            print("  fugu hub push RUN user/name   share a run; ./folder needs no network")
            print("  fugu hub pull user/name       take one, verified")
            raise SystemExit(0 if name else 2)
        if name not in _COMMANDS:
            (nearest,) = difflib.get_close_matches(name, _COMMANDS, n=1, cutoff=0.0)
            raise UsageError(
                f"hub: given {name!r}; nearest: {nearest!r}; allowed: {', '.join(_COMMANDS)}."
            )
        return tyro.cli(_COMMANDS[name], prog=f"fugu hub {name}", args=args[1:], config=_STYLE)

    def run(self) -> int:
        """Never called: `parse` gives the group's own commands."""
        raise NotImplementedError("run() -> int")
