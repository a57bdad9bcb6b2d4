"""What a name means to `fugu play` and `fugu record`: an environment, or a run and its policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fugu.core.errors import UsageError
from fugu.envs import suite
from fugu.store.run import is_run

if TYPE_CHECKING:
    from fugu.store.run import Run
    from fugu.training.evaluate import Players
    from fugu.vector import Vector


def find_run(name: str, root: Path) -> Run | None:
    """The run of that name, None if it is an environment's; an error if it is neither.

    A run's full name, its folder and "latest" come first, then environments, then beginnings of
    runs' names.
    """
    from fugu.envs.resolve import resolve
    from fugu.store.run import Run

    runs = {run.name: run for run in Run.list(root)}
    if name == "latest" or name in runs or is_run(Path(name)):
        return Run.open(name, root)
    if suite.find(name) or ":" in name or name.endswith(suite.SUFFIXES):
        return None
    try:
        resolve(name)
    except UsageError:
        if any(other.startswith(name) for other in runs):
            return Run.open(name, root)
        raise UsageError(_neither(name, root, list(runs))) from None
    return None


class Cast:
    """The policies of a run, ready to play.

    Attributes:
        cfg: The run's settings.
    """

    def __init__(
        self, run: Run, *, best: bool, greedy: bool, seed: int, trust: bool = False
    ) -> None:
        from fugu.training.evaluate import load_policies
        from fugu.training.inputs import RunInputs

        checkpoint = run.best() if best else None
        if best and checkpoint is None:
            raise UsageError(
                f"best: given with {run.name!r}, whose checkpoints have no score; allowed: a run "
                "in which an episode ended. Leave it out for the last checkpoint."
            )
        self.cfg, self._policies = load_policies(run, checkpoint, RunInputs(trust=trust))
        self._greedy, self._seed = greedy, seed

    def players(self, vec: Vector) -> Players:
        """Players for all agents of a vector, who remember nothing yet."""
        from fugu.training.evaluate import Players, engine_of

        engine = engine_of(self.cfg)
        return Players(self._policies, vec, self._seed, greedy=self._greedy, engine=engine)

    def players_in(self, copies: int) -> Players:
        """The same for so many copies of the run's environment."""
        from fugu.vector import make

        with make(self.cfg.env, copies, backend="serial", env_kwargs=self.cfg.env_kwargs) as vec:
            return self.players(vec)


def _neither(name: str, root: Path, runs: list[str]) -> str:
    from fugu.cli.catalogue import families
    from fugu.cli.envs import nearest

    others = [other for names in families().values() for other in names]
    names = [*suite.names(), *others, *runs, *(["latest"] if runs else [])]
    return (
        f"given {name!r}, which is neither an environment nor a run in {str(root)!r}. "
        f"{nearest(name, names)} fugu envs and fugu runs list them."
    )
