"""`fugu train`, `fugu league` and `fugu resume`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from fugu.cli.parsing import SECTIONS, EnvName, RunName, SettingsCommand, TrainingCommand
from fugu.cli.ranks import Launch, exit_status, is_rank, run_on_ray, run_rank
from fugu.core.config import Tree, merge, to_tree
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.algos.settings import Config
    from fugu.training.callbacks import AnyCallback
    from fugu.training.session import Result

LaunchOptions = Annotated[Launch, tyro.conf.OmitArgPrefixes]
CLUSTERS = ("ray",)


@dataclass(frozen=True, kw_only=True)
class Train(TrainingCommand):
    """Train a policy on an environment.

    fugu train breakout --train.learning-rate 0.01 --env.lives 3

    --SECTION.SETTING VALUE sets any of the settings below, and --env.KEY VALUE an argument of the
    environment. Later ones win: defaults, what is observed of the environment (its spaces and
    number of agents), its own file or its family's recipe, preset, file, flags.
    """

    name: ClassVar[str] = "train"
    env: EnvName
    """A native name (breakout), a recipe's (ALE/Breakout-v5, procgen:coinrun,
    pettingzoo:family/name), a Gymnasium id (CartPole-v1), package.module:factory, or the path of a
    native environment; fugu envs lists them."""
    algo: str | None = None
    """The algorithm: decision_transformer, dreamer, grpo, mappo, ppo, safe_ppo."""
    seeds: int = 1
    """Train with so many seeds, one after the other, and report on all."""
    auto: bool = False
    """Search for better PPO settings by successive halving: these settings and seven others train
    for 1/8 of the steps, the better half continues to 1/4 and 1/2, and the two best to the end,
    these settings always among them. It costs 3 times --train.total-steps in training steps, 4 at
    most (rare rewards, evaluation)."""
    init_from: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None
    """Start with the policy of another run."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="auto")] = None
    """auto: continue the newest run of the same settings, if there is one."""
    launch: LaunchOptions = field(default_factory=Launch)
    cluster: str | None = None
    """ray: start the processes as workers of a Ray cluster."""
    requeue: bool = False
    """On SIGTERM or SIGUSR1 save, have SLURM queue the job again (if it is one) and end with status
    75; continues as --resume auto does."""
    dry_run: bool = False
    """Print all settings, and where each comes from."""
    quiet: bool = False
    """Show no dashboard."""

    def run(self) -> int:
        """Train and return the exit status: 0 if it went to the end."""
        from fugu.algos.settings import read_config
        from fugu.training.config import config_layers, sources_of

        if self.seeds < 1:
            raise UsageError(f"seeds: given {self.seeds}; allowed: 1 or more.")
        if self.resume not in (None, "auto"):
            raise UsageError(
                f"resume: given {self.resume!r}; allowed: auto. A run by its name: fugu resume."
            )
        if self.cluster not in (None, *CLUSTERS):
            raise UsageError(f"cluster: given {self.cluster!r}; allowed: {', '.join(CLUSTERS)}.")
        layers = config_layers(
            self.env, preset=self.preset, files=self.files, overrides=self.overrides
        )
        cfg = read_config(merge(*(layer.tree for layer in layers)))
        if self.auto:
            from fugu.training.auto.members import check_searchable

            check_searchable(cfg, max(self.launch.nproc, 2 if self.cluster else 1))
        if self.dry_run:
            self._show(cfg, sources_of(layers))
            return 0
        if self.seeds > 1:
            return self._train_seeds(cfg)
        if not is_rank() and (self.launch.nproc > 1 or self.cluster):
            return self._launch(cfg)
        return run_rank(self.train_rank)

    def train_rank(self, callbacks: tuple[AnyCallback, ...] = ()) -> int:
        """Train, as one of several ranks or alone, and return the exit status."""
        return exit_status(self._train({}, callbacks), self.requeue)

    def _launch(self, cfg: Config) -> int:
        """Train as several ranks, which find their run by its name, also when started again."""
        from fugu.store.run import Run
        from fugu.training.auto_resume import newest_alike
        from fugu.training.sharding import check_shares

        nproc = max(1, self.launch.nproc)
        if nproc > 1:
            check_shares(cfg, nproc)
        found = newest_alike(cfg) if self._resumes else None
        name = found.name if found else cfg.run.name or Run.new_name(cfg.env)
        folder = cfg.run.folder.absolute()
        if found is None and (folder / name).exists():
            raise UsageError(
                f"run.name: given {name!r}, which is taken in {folder}; allowed: a new name, or "
                "the same settings with --resume auto."
            )
        own = ("--run.name", name, "--run.folder", str(folder), "--resume", "auto")
        command = [*self.args, *own]
        if not self.cluster:
            return self.launch.run([self.name, *command], nproc)
        gpus, restarts = cfg.device.startswith("cuda"), self.launch.max_restarts
        run_on_ray(command, nproc, gpus=gpus, folder=folder, restarts=restarts)
        return 0 if Run(folder / name).status == "finished" else 1

    @property
    def _resumes(self) -> bool:
        return self.requeue or self.resume == "auto"

    def _train_seeds(self, cfg: Config) -> int:
        from fugu.cli.seeds import train_seeds

        if self._resumes or self.cluster or self.launch != Launch():
            raise UsageError(
                f"seeds: given {self.seeds} with --resume, --requeue or several ranks; allowed: 1."
            )
        return train_seeds(
            cfg, self.seeds, lambda seed, name: self._train({"seed": seed, "run": {"name": name}})
        )

    def _train(self, changes: Tree, callbacks: tuple[AnyCallback, ...] = ()) -> Result:
        from fugu.training.session import train

        result = train(
            self.env,
            preset=self.preset,
            config=self.config,
            show=not self.quiet,
            init_from=self.init_from,
            auto_resume=self._resumes,
            auto=self.auto,
            callbacks=callbacks,
            **merge(self.overrides, changes),
        )
        report(result)
        return result

    def _show(self, cfg: Config, sources: dict[str, str]) -> None:
        """Print all settings and where each comes from; check names of environments and runs."""
        from fugu.envs.resolve import resolve
        from fugu.store.run import Run

        resolve(cfg.env, **cfg.env_kwargs)
        if self.init_from is not None:
            print(f"init_from = {str(Run.open(self.init_from, cfg.run.folder).folder)!r}")
        if self.seeds > 1:
            print(f"seeds = {self.seeds}")
        if self.auto:
            from fugu.training.auto.members import make_members

            for member in make_members(cfg.train):
                print(f"# auto: {member.name}: {member.describe() or 'as below'}; {member.reason}")
        _show_settings(to_tree(cfg), sources)


@dataclass(frozen=True, kw_only=True)
class League(Train):
    """Train a policy in a game of two or more sides against snapshots of itself and others.

    fugu league connect4 | fugu league pettingzoo:classic/connect_four_v3

    Opponents are drawn by how hard they are to beat. It takes what fugu train takes; fugu resume
    continues it, and fugu rank shows the ratings.
    """

    name: ClassVar[str] = "league"
    sections: ClassVar[tuple[str, ...]] = ("league", *SECTIONS)

    @property
    def overrides(self) -> Tree:
        """The settings that flags give, with a league."""
        return merge(super().overrides, {"league": {"enabled": True}})


@dataclass(frozen=True, kw_only=True)
class Resume(SettingsCommand):
    """Continue a run from its last checkpoint, exactly as it would have continued.

    fugu resume latest --train.total-steps 2000000

    --SECTION.SETTING VALUE changes a setting. Only those that do not change the training so far may
    change. A run of several processes continues with as many.
    """

    sections: ClassVar[tuple[str, ...]] = SECTIONS
    run_name: RunName
    """The run: its name, the beginning of its name, its folder, or latest."""
    runs: Path = Path("runs")
    """The folder of all runs."""
    launch: LaunchOptions = field(default_factory=Launch)
    requeue: bool = False
    """On SIGTERM or SIGUSR1 save, have SLURM queue the job again and end with status 75."""
    trust: bool = False
    """Trust the run from now on, whoever trained it: its settings may name code to run."""
    quiet: bool = False
    """Show no dashboard."""

    def run(self) -> int:
        """Continue the run and return the exit status: 0 if it went to the end."""
        from fugu.store.checkpoint import read_state
        from fugu.store.run import Run
        from fugu.training.sharding import num_ranks

        if is_rank():
            return run_rank(self.train_rank)
        latest = Run.open(self.run_name, self.runs).latest()
        nproc = self.launch.nproc or (1 if latest is None else num_ranks(read_state(latest)))
        if latest is not None and nproc > 1 and not (self.launch.nproc or self.trust):
            _check_ranks(latest, nproc)
        if nproc > 1:
            return self.launch.run(["resume", *self.args], nproc)
        return self.train_rank()

    def train_rank(self, callbacks: tuple[AnyCallback, ...] = ()) -> int:
        """Continue, as one of several ranks or alone, and return the exit status."""
        from fugu.training.session import resume

        result = resume(
            self.run_name,
            root=self.runs,
            show=not self.quiet,
            callbacks=callbacks,
            overrides=self.tree,
            trust=self.trust,
        )
        report(result)
        return exit_status(result, self.requeue)


def _check_ranks(checkpoint: Path, nproc: int) -> None:
    """Raise UntrustedError if a checkpoint of somebody else says how many processes to start."""
    from fugu.envs.untrusted import UntrustedError
    from fugu.store.checkpoint import is_own

    if not is_own(checkpoint):
        raise UntrustedError(
            f"nproc: expected --nproc for a run that was not trained here; its checkpoint says "
            f"{nproc:,}. Give the number, or --trust if you know who made the run."
        )


def report(result: Result) -> None:
    """Print the result of a session, which the first rank knows."""
    if result.run is None:
        return
    from fugu.training.auto.record import describe_choice, read_record

    score = "no episode ended" if result.score is None else f"mean return {result.score:.4g}"
    rate = result.steps / max(result.seconds, 1e-9)
    print(
        f"{result.status} after {result.steps:,} steps in {result.seconds:.1f} s "
        f"({rate:,.0f}/s): {score} over the last episodes; "
        f"kept in {result.run.folder}"
    )
    record = read_record(result.run)
    if record is not None and record.winner is not None:
        print(describe_choice(record))
        print(f"settings: {result.run.folder / 'auto.toml'}")
    if result.status == "stopped":
        print(f"go on with: fugu resume {result.run.name}", file=sys.stderr)


def _show_settings(tree: Tree, sources: dict[str, str], place: str = "") -> None:
    """Print settings as TOML, with the source of each that is not a plain default."""
    for key, value in tree.items():
        if isinstance(value, dict) and value and key != "env_kwargs":
            print(f"[{place}{key}]")
            _show_settings(value, sources, f"{place}{key}.")
            continue
        line = f"{key} = {str(value)!r}" if isinstance(value, Path) else f"{key} = {value!r}"
        source = sources.get(f"{place}{key}")
        print(line if source is None else f"{line}  # {source}")
