"""`fugu record`: what does an environment look like, and how is it played?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from fugu.cli.parsing import ActingOptions, EnvSettings, parse_settings
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.data.recording import Policy


@dataclass(frozen=True)
class Record(ActingOptions):
    """Play an environment and write a video, a GIF or a picture of it, or its episodes as data.

    Actions are random, or those of a run's policy.
    """

    env: Annotated[str, tyro.conf.arg(metavar="ENV|RUN")]
    """Any environment's name, or a run: its name, how it begins, its folder, latest."""
    video: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mp4|.gif|.png")] = None
    """The file to write; the name of the environment or the run with .mp4 if not given."""
    data: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Write episodes there, for algorithms that learn from data, and no video; a folder that holds
    some already gets more."""
    episodes: int = 100
    """Episodes of the data."""
    steps: int = 300
    """Steps to play. A PNG shows how it looks after them."""
    copies: int = 1
    """Copies to show side by side."""
    set: EnvSettings = ()
    """Settings or arguments of the environment, beside those of the run."""
    seed: int = 0
    """Seed of the environment and of the actions."""
    fps: float | None = None
    """Pictures a second; what the environment says if not given."""
    height: int | None = None
    """Height of a copy's picture in pixels; even sizes suit a video."""

    def run(self) -> int:
        """Record; 0 if there is a file."""
        from fugu.cli.subjects import find_run, load_agent, refuse_run_options
        from fugu.vector.recording import record

        if self.data is not None and self.video is not None:
            raise UsageError("video: given with data; allowed: one of them.")
        copies = self.copies
        if self.data is not None:
            from fugu.data.recording import COPIES

            copies = min(COPIES, self.episodes)
        found = find_run(self.env, self.runs)
        env, name, kwargs = self.env, self.env, parse_settings(self.set)
        policy: Policy | None = None
        if found is not None:
            agent = load_agent(found, self)
            env, name = agent.config.env, found.name
            kwargs = {**agent.config.env_kwargs, **kwargs}
            with agent.make(copies, backend="serial") as vec:
                policy = agent.players(vec, greedy=not self.sample, seed=self.seed)
        else:
            refuse_run_options(env, self)
        if self.data is not None:
            self._write_data(env, self.data, policy, kwargs)
            return 0
        path = record(
            env,
            self.video or Path(f"{name.replace(':', '_').replace('/', '_')}.mp4"),
            policy=policy,
            steps=self.steps,
            copies=self.copies,
            seed=self.seed,
            fps=self.fps,
            height=self.height,
            env_kwargs=kwargs,
            show=True,
        )
        print(f"Written: {path}")
        return 0

    def _write_data(
        self, env: str, folder: Path, policy: Policy | None, kwargs: dict[str, Any]
    ) -> None:
        from fugu.data.offline import read_metadata
        from fugu.data.recording import record_episodes

        count = record_episodes(
            env,
            folder,
            episodes=self.episodes,
            policy=policy,
            seed=self.seed,
            env_kwargs=kwargs,
        )
        print(f"Written: {count} episodes to {folder}")
        if (folder / "metadata.json").is_file():
            told = read_metadata(folder)
            facts = told["statistics"]
            print(
                f"It holds {told['episodes']:,} episodes of {told['steps']:,} steps, with returns "
                f"from {facts['lowest']:.4g} to {facts['highest']:.4g}, "
                f"{facts['mean_return']:.4g} on average"
            )
