"""`fugu train` and `fugu resume`: the main job."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fugu.cli.flags import plain_options, settings_help
from fugu.core.config import Tree, from_flags, merge, to_tree
from fugu.core.errors import UsageError

if TYPE_CHECKING:
    from fugu.training.config import Config
    from fugu.training.session import Result

TRAIN_HELP = """usage: fugu train ENV [--SECTION.SETTING VALUE ...]

Train a policy on an environment: a native name (breakout), a Gymnasium id (CartPole-v1),
pettingzoo:family/name, velocity:Hopper-v5, package.module:factory, or the path of a native
environment.

  --preset NAME      a named set of settings: classic; of Dreamer: cpu, 1m, 12m, 25m to 200m
  --config FILE      a TOML file of settings
  --algo NAME        which algorithm: decision_transformer, dreamer, grpo, mappo, ppo, safe_ppo
  --seed N           root of all chance
  --seeds N          train with so many seeds, one after the other, and report on all
  --device NAME      cpu, cuda or mps
  --init-from RUN    begin with the policy of another run
  --env.KEY VALUE    an argument of the environment
  --dry-run          print all settings and end
  --quiet            no dashboard

Later ones win: defaults, the environment's own file, preset, file, flags."""
RESUME_HELP = """usage: fugu resume RUN [--SECTION.SETTING VALUE ...] [--runs FOLDER] [--quiet]

Go on with a run (its name, the beginning of it, its folder, or latest) from its last checkpoint,
exactly as it would have gone on. Only what does not change the training so far may be set anew,
such as --train.total-steps."""
PLAIN = {
    "algo": str,
    "preset": str,
    "config": str,
    "seed": int,
    "seeds": int,
    "device": str,
    "init-from": str,
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
    dry_run: bool = False
    quiet: bool = False

    @classmethod
    def parse(cls, args: list[str]) -> Train:
        """The command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(TRAIN_HELP + "\n\n" + settings_help(_algo(args)))
            raise SystemExit(0 if rest else 2)
        options, names = plain_options(rest, PLAIN, ("dry-run", "quiet"))
        if len(names) != 1:
            raise UsageError(f"train: given {names}; allowed: one environment. See fugu train -h")
        if "env" in tree:
            tree["env_kwargs"] = tree.pop("env")
        for name in ("algo", "seed", "device"):
            if name in options:
                tree[name] = options.pop(name)
        fields = {name.replace("-", "_"): value for name, value in options.items()}
        return cls(names[0], tree, **fields)

    def run(self) -> int:
        """Train; 0 if it went to the end."""
        from fugu.training.config import resolve_config

        if self.seeds < 1:
            raise UsageError(f"seeds: given {self.seeds}; allowed: 1 or more.")
        files = () if self.config is None else (self.config,)
        cfg = resolve_config(self.env, preset=self.preset, files=files, overrides=self.tree)
        if self.dry_run:
            self._show(cfg)
            return 0
        if self.seeds > 1:
            from fugu.cli.seeds import train_seeds

            return train_seeds(cfg, self.seeds, self._train_seed)
        result = self._train(self.tree)
        return 128 + result.signals[0] if result.signals else 0

    def _train(self, tree: Tree) -> Result:
        from fugu.training.session import train

        result = train(
            self.env,
            preset=self.preset,
            config=self.config,
            show=not self.quiet,
            init_from=self.init_from,
            **tree,
        )
        report(result)
        return result

    def _train_seed(self, seed: int, name: str) -> Result:
        return self._train(merge(self.tree, {"seed": seed, "run": {"name": name}}))

    def _show(self, cfg: Config) -> None:
        """What would be used; what is wrong with names of environments and runs is said too."""
        from fugu.envs.resolve import resolve
        from fugu.store.run import Run

        resolve(cfg.env, **cfg.env_kwargs)
        if self.init_from is not None:
            print(f"init_from = {str(Run.open(self.init_from, cfg.run.folder).folder)!r}")
        if self.seeds > 1:
            print(f"seeds = {self.seeds}")
        _show_settings(to_tree(cfg))


@dataclass(frozen=True)
class Resume:
    """Go on with a run."""

    run_name: str
    tree: Tree = field(default_factory=dict)
    runs: str = "runs"
    quiet: bool = False

    @classmethod
    def parse(cls, args: list[str]) -> Resume:
        """The command that flags describe."""
        tree, rest = from_flags(args)
        if not rest or {"-h", "--help"} & {*rest}:
            print(RESUME_HELP)
            raise SystemExit(0 if rest else 2)
        options, names = plain_options(rest, {"runs": str}, ("quiet",))
        if len(names) != 1:
            raise UsageError(f"resume: given {names}; allowed: one run. See fugu resume -h")
        return cls(names[0], tree, **options)

    def run(self) -> int:
        """Train on; 0 if it went to the end."""
        from fugu.training.session import resume

        result = resume(self.run_name, root=self.runs, show=not self.quiet, overrides=self.tree)
        report(result)
        return 128 + result.signals[0] if result.signals else 0


def _algo(args: list[str]) -> str:
    """What `--algo` says, also beside a call for help."""
    after = [args[i + 1] for i, item in enumerate(args[:-1]) if item == "--algo"]
    joined = [item.removeprefix("--algo=") for item in args if item.startswith("--algo=")]
    return (after + joined or ["ppo"])[0]


def report(result: Result) -> None:
    """A line about what came of a session."""
    score = "no episode ended" if result.score is None else f"mean return {result.score:.4g}"
    rate = result.steps / max(result.seconds, 1e-9)
    place = "" if result.run is None else f"; kept in {result.run.folder}"
    print(
        f"{result.status} after {result.steps:,} steps in {result.seconds:.1f} s "
        f"({rate:,.0f}/s): {score} over the last episodes{place}"
    )
    if result.status == "stopped" and result.run is not None:
        print(f"go on with: fugu resume {result.run.name}", file=sys.stderr)


def _show_settings(tree: Tree, place: str = "") -> None:
    for key, value in tree.items():
        if isinstance(value, dict) and value and key != "env_kwargs":
            print(f"[{place}{key}]")
            _show_settings(value, f"{place}{key}.")
        else:
            print(f"{key} = {str(value)!r}" if isinstance(value, Path) else f"{key} = {value!r}")
