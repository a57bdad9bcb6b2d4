"""`fugu train` and `fugu resume`: the main job."""

from __future__ import annotations

import dataclasses
import sys
import typing
from dataclasses import dataclass, field
from typing import Any

from fugu.core.config import Tree, from_flags, to_tree
from fugu.core.errors import UsageError

TRAIN_HELP = """usage: fugu train ENV [--SECTION.SETTING VALUE ...]

Train a policy on an environment: a native name (breakout), a Gymnasium id (CartPole-v1),
pettingzoo:family/name, package.module:factory, or the path of a native environment.

  --preset NAME      a named set of settings: classic
  --config FILE      a TOML file of settings
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
PLAIN = {"preset": str, "config": str, "seed": int, "seeds": int, "device": str, "init-from": str}


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
            print(TRAIN_HELP + "\n\n" + settings_help())
            raise SystemExit(0 if rest else 2)
        options, names = _plain_options(rest, PLAIN, ("dry-run", "quiet"))
        if len(names) != 1:
            raise UsageError(f"train: given {names}; allowed: one environment. See fugu train -h")
        if "env" in tree:
            tree["env_kwargs"] = tree.pop("env")
        for name in ("seed", "device"):
            if name in options:
                tree[name] = options.pop(name)
        fields = {name.replace("-", "_"): value for name, value in options.items()}
        return cls(names[0], tree, **fields)

    def run(self) -> int:
        """Train; 0 if it went to the end."""
        from fugu.training.config import resolve_config
        from fugu.training.session import train

        files = () if self.config is None else (self.config,)
        cfg = resolve_config(self.env, preset=self.preset, files=files, overrides=self.tree)
        if self.dry_run:
            _show_settings(to_tree(cfg))
            return 0
        scores = []
        for seed in range(cfg.seed, cfg.seed + self.seeds):
            result = train(
                self.env,
                preset=self.preset,
                config=self.config,
                show=not self.quiet,
                init_from=self.init_from,
                **{**self.tree, "seed": seed},
            )
            report(result)
            if result.signals:
                return 128 + result.signals[0]
            scores.append(result.score)
        if self.seeds > 1:
            _report_seeds([score for score in scores if score is not None])
        return 0


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
        options, names = _plain_options(rest, {"runs": str}, ("quiet",))
        if len(names) != 1:
            raise UsageError(f"resume: given {names}; allowed: one run. See fugu resume -h")
        return cls(names[0], tree, **options)

    def run(self) -> int:
        """Train on; 0 if it went to the end."""
        from fugu.training.session import resume

        result = resume(self.run_name, root=self.runs, show=not self.quiet, overrides=self.tree)
        report(result)
        return 128 + result.signals[0] if result.signals else 0


def report(result: Any) -> None:
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


def _report_seeds(scores: list[float]) -> None:
    if len(scores) < 2:
        return
    import numpy as np

    mean, spread = float(np.mean(scores)), float(np.std(scores, ddof=1))
    half = 1.96 * spread / len(scores) ** 0.5
    print(f"{len(scores)} seeds: mean return {mean:.4g} +- {half:.2g} (95 %), each {scores}")


def _plain_options(
    rest: list[str], kinds: dict[str, Any], flags: tuple[str, ...]
) -> tuple[dict[str, Any], list[str]]:
    """Options without a section, and names."""
    found: dict[str, Any] = {}
    names: list[str] = []
    items = list(rest)
    while items:
        item = items.pop(0)
        name, equals, value = item.removeprefix("--").partition("=")
        if not item.startswith("--"):
            names.append(item)
        elif name in flags:
            found[name.replace("-", "_")] = True
        elif name in kinds:
            if not equals and not items:
                raise UsageError(f"--{name}: given nothing; allowed: a value.")
            text = value if equals else items.pop(0)
            try:
                found[name.replace("-", "_")] = kinds[name](text)
            except ValueError:
                raise UsageError(f"--{name}: given {text!r}; allowed: a whole number.") from None
        else:
            allowed = ", ".join(f"--{known}" for known in (*kinds, *flags))
            raise UsageError(f"--{name}: given, but there is no such option; allowed: {allowed}.")
    return found, names


def settings_help() -> str:
    """Every setting, its default and what it is."""
    from fugu.training.config import Config

    lines = []
    hints = typing.get_type_hints(Config)
    for section in ("train", "vec", "policy", "run"):
        kind = hints[section]
        documents = field_documents(kind)
        lines.append(f"{section}: {(kind.__doc__ or '').splitlines()[0]}")
        for item in dataclasses.fields(kind):
            flag = f"--{section}.{item.name.rstrip('_').replace('_', '-')}"
            lines.append(f"  {flag} ({item.default})  {documents.get(item.name, '')}")
    return "\n".join(lines)


def field_documents(kind: type) -> dict[str, str]:
    """The lines below a dataclass's fields, its bases' too."""
    import ast
    import inspect
    import textwrap

    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in zip(tree.body, tree.body[1:], strict=False):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if isinstance(before, ast.AnnAssign) and is_text:
                assert isinstance(before.target, ast.Name)
                found[before.target.id] = str(after.value.value)  # type: ignore[attr-defined]
    return found


def _show_settings(tree: Tree, place: str = "") -> None:
    for key, value in tree.items():
        if isinstance(value, dict) and value and key != "env_kwargs":
            print(f"[{place}{key}]")
            _show_settings(value, f"{place}{key}.")
        else:
            print(f"{key} = {value!r}")
