"""`fugu train` and `fugu resume`: the main job."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.cli.flags import plain_options, settings_help
from fugu.cli.launch import Launch
from fugu.cli.one_rank import attend, exit_status, is_rank
from fugu.core.config import Tree, from_flags, merge, to_tree
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.algos.settings import Config
    from fugu.training.callbacks import AnyCallback
    from fugu.training.session import Result

TRAIN_HELP = """usage: fugu train ENV [--SECTION.SETTING VALUE ...]

Train a policy on an environment: a native name (breakout), a recipe's (ALE/Breakout-v5,
procgen:coinrun, pettingzoo:family/name), a Gymnasium id (CartPole-v1), package.module:factory, or
the path of a native environment; fugu envs lists them.

  --preset NAME      a named set of settings: classic, mujoco; of Dreamer: cpu, 1m, 12m, 25m to 200m
  --config FILE      a TOML file of settings
  --algo NAME        which algorithm: decision_transformer, dreamer, grpo, mappo, ppo, safe_ppo
  --seed N           root of all chance
  --seeds N          train with so many seeds, one after the other, and report on all
  --device NAME      cpu, cuda or mps
  --auto             search for better PPO settings, by successive halving: these settings and
                     seven others train for 1/8 of the steps, the better half goes on to 1/4 and
                     1/2, and the two best to the end, these settings always among them; costs 3
                     times --train.total-steps in training steps, 4 at most (rare rewards,
                     evaluation)
  --init-from RUN    begin with the policy of another run
  --resume auto      go on with the newest run of the same settings, if there is one
  --nproc N          train with so many processes, each with its share of the copies; when one
                     dies all are started again (--max-restarts N) and go on from the last
                     checkpoint; --rank-timeout SECONDS: how long they wait for each other
  --cluster ray      start them as workers of a Ray cluster
  --requeue          when SIGTERM or SIGUSR1 comes, save, have SLURM queue the job again (if it is
                     one) and end with status 75; goes on as --resume auto does
  --env.KEY VALUE    an argument of the environment
  --dry-run          print all settings, where each comes from, and end
  --quiet            no dashboard

Later ones win: defaults, what is observed of the environment (its spaces and number of agents), its
own file or its family's recipe, preset, file, flags."""
RESUME_HELP = """usage: fugu resume RUN [--SECTION.SETTING VALUE ...] [--runs FOLDER] [--trust]
                   [--quiet]

Go on with a run (its name, the beginning of it, its folder, or latest) from its last checkpoint,
exactly as it would have gone on. Only what does not change the training so far may be set anew,
such as --train.total-steps. A run of several processes goes on with as many (--nproc,
--max-restarts and --rank-timeout as of fugu train); --requeue as there. --trust trusts the run from
now on, whoever trained it: its settings may name code to run."""
FLAGS_OF_RESUME = ("quiet", "requeue", "trust")
LAUNCH = {"nproc": int, "max-restarts": int, "rank-timeout": str}
PLAIN = {
    "algo": str,
    "preset": str,
    "config": str,
    "seed": int,
    "seeds": int,
    "device": str,
    "init-from": str,
    "resume": str,
    "cluster": str,
    **LAUNCH,
}


@dataclass(frozen=True)
class Train:
    """Train a policy on an environment."""

    env: str
    tree: Tree = field(default_factory=dict)
    preset: str | None = None
    config: str | None = None
    seeds: int = 1
    init_from: str | None = None
    resume: str | None = None
    requeue: bool = False
    launch: Launch = field(default_factory=Launch)
    args: tuple[str, ...] = ()
    auto: bool = False
    dry_run: bool = False
    quiet: bool = False

    @classmethod
    def parse(cls, args: list[str]) -> Train:
        """The command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(TRAIN_HELP + "\n\n" + settings_help(_algo(args)))
            raise SystemExit(0 if rest else 2)
        options, names = plain_options(rest, PLAIN, ("auto", "dry-run", "quiet", "requeue"))
        if len(names) != 1:
            raise UsageError(f"train: given {names}; allowed: one environment. See fugu train -h")
        if "env" in tree:
            tree["env_kwargs"] = tree.pop("env")
        for name in ("algo", "seed", "device"):
            if name in options:
                tree[name] = options.pop(name)
        launch = _launch_of(options)
        return cls(names[0], tree, launch=launch, args=tuple(args), **options)

    def run(self) -> int:
        """Train; 0 if it went to the end."""
        from fugu.algos.settings import read_config
        from fugu.training.config import config_layers, sources_of

        if self.seeds < 1:
            raise UsageError(f"seeds: given {self.seeds}; allowed: 1 or more.")
        if self.resume not in (None, "auto"):
            raise UsageError(
                f"resume: given {self.resume!r}; allowed: auto. A run by its name: fugu resume."
            )
        files = () if self.config is None else (self.config,)
        layers = config_layers(self.env, preset=self.preset, files=files, overrides=self.tree)
        cfg = read_config(merge(*(layer.tree for layer in layers)))
        if self.auto:
            from fugu.training.auto_record import check_searchable

            check_searchable(cfg, max(self.launch.nproc, 2 if self.launch.cluster else 1))
        if self.dry_run:
            self._show(cfg, sources_of(layers))
            return 0
        if self.seeds > 1:
            return self._train_seeds(cfg)
        if not is_rank() and (self.launch.nproc > 1 or self.launch.cluster):
            return self._launch(cfg)
        return attend(self.train_rank)

    def train_rank(self, callbacks: tuple[AnyCallback, ...] = ()) -> int:
        """Train, as one of several or alone; the exit status."""
        return exit_status(self._train(self.tree, callbacks), self.requeue)

    def _launch(self, cfg: Config) -> int:
        """Train as several ranks that find their run by its name, also when started again."""
        from fugu.store.run import Run
        from fugu.training.auto_resume import newest_alike
        from fugu.training.distributed import check_shares

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
        if self.launch.cluster:
            gpus = cfg.device.startswith("cuda")
            return self.launch.run_on_ray(command, nproc, gpus=gpus, run=Run(folder / name))
        return self.launch.run(["train", *command], nproc)

    @property
    def _resumes(self) -> bool:
        return self.requeue or self.resume == "auto"

    def _train_seeds(self, cfg: Config) -> int:
        from fugu.cli.seeds import train_seeds

        if self._resumes or self.launch != Launch():
            raise UsageError(
                f"seeds: given {self.seeds} with --resume, --requeue or several ranks; allowed: 1."
            )
        return train_seeds(cfg, self.seeds, self._train_seed)

    def _train(self, tree: Tree, callbacks: tuple[AnyCallback, ...] = ()) -> Result:
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
            **tree,
        )
        report(result)
        return result

    def _train_seed(self, seed: int, name: str) -> Result:
        return self._train(merge(self.tree, {"seed": seed, "run": {"name": name}}))

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
            from fugu.training.auto_record import make_members

            for member in make_members(cfg.train):
                print(f"# auto: {member.name}: {member.describe() or 'as below'}; {member.reason}")
        _show_settings(to_tree(cfg), sources)


@dataclass(frozen=True)
class Resume:
    """Go on with a run."""

    run_name: str
    tree: Tree = field(default_factory=dict)
    runs: str = "runs"
    launch: Launch = field(default_factory=Launch)
    requeue: bool = False
    args: tuple[str, ...] = ()
    trust: bool = False
    quiet: bool = False

    @classmethod
    def parse(cls, args: list[str]) -> Resume:
        """The command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(RESUME_HELP)
            raise SystemExit(0 if rest else 2)
        options, names = plain_options(rest, {"runs": str, **LAUNCH}, FLAGS_OF_RESUME)
        if len(names) != 1:
            raise UsageError(f"resume: given {names}; allowed: one run. See fugu resume -h")
        launch = _launch_of(options)
        return cls(names[0], tree, launch=launch, args=tuple(args), **options)

    def run(self) -> int:
        """Train on; 0 if it went to the end."""
        from fugu.store.checkpoint import read_state
        from fugu.store.run import Run
        from fugu.training.distributed import num_ranks

        if is_rank():
            return attend(self.train_rank)
        latest = Run.open(self.run_name, self.runs).latest()
        nproc = self.launch.nproc or (1 if latest is None else num_ranks(read_state(latest)))
        if latest is not None and nproc > 1 and not (self.launch.nproc or self.trust):
            _check_ranks(latest, nproc)
        if nproc > 1:
            return self.launch.run(["resume", *self.args], nproc)
        return self.train_rank()

    def train_rank(self, callbacks: tuple[AnyCallback, ...] = ()) -> int:
        """Train on, as one of several or alone; the exit status."""
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
    """Raise UntrustedError where a checkpoint of somebody else says how many processes to start."""
    from fugu.envs.untrusted import UntrustedError
    from fugu.store.checkpoint import is_own

    if not is_own(checkpoint):
        raise UntrustedError(
            f"nproc: expected --nproc for a run that was not trained here; its checkpoint says "
            f"{nproc:,}. Give the number, or --trust if you know who made the run."
        )


def _launch_of(options: dict[str, Any]) -> Launch:
    """How ranks are started, taken out of all options."""
    names = ("nproc", "max_restarts", "rank_timeout", "cluster")
    return Launch(**{name: options.pop(name) for name in names if name in options})


def _algo(args: list[str]) -> str:
    """What `--algo` says, also beside a call for help."""
    after = [args[i + 1] for i, item in enumerate(args[:-1]) if item == "--algo"]
    joined = [item.removeprefix("--algo=") for item in args if item.startswith("--algo=")]
    return (after + joined or ["ppo"])[0]


def report(result: Result) -> None:
    """A line about what came of a session, which the first rank knows."""
    if result.run is None:
        return
    from fugu.training.auto_record import describe_choice, read_record

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
