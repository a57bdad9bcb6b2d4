"""Command lines: a command is a frozen dataclass that tyro parses.

Its docstring is the help, and its fields are the options; those without a default are positional.
Settings are overrides such as `--train.gamma 0.9`. Only those given count: files and presets are
behind them, so they stay a tree until `fugu.algos.settings` reads it.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import difflib
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

import tyro

from fugu.core.config import Tree, from_flags
from fugu.core.errors import UsageError
from fugu.core.intervals import allowed_numbers

STYLE = (tyro.conf.PositionalRequiredArgs, tyro.conf.FlagCreatePairsOff)
HELP = ("-h", "--help")
SECTIONS = ("train", "vec", "policy", "run")

RunName = Annotated[str, tyro.conf.arg(metavar="RUN")]
"""A run: its name, the beginning of its name, its folder, or latest."""
EnvName = Annotated[str, tyro.conf.arg(metavar="ENV")]
EnvSettings = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(metavar="NAME=VALUE [...]"),
]
"""Settings of an environment, as in `--set gravity=9.8 size=3`; the flag may be repeated."""


class Command(Protocol):
    """A parsed command line."""

    def run(self) -> int:
        """Run the command and return the exit status."""
        raise NotImplementedError("run() -> int")


Commands = Mapping[str, Callable[..., Command]]


@dataclass(frozen=True, kw_only=True)
class SettingsCommand:
    """Base of the commands that take settings as flags, as `--SECTION.SETTING VALUE`."""

    sections: ClassVar[tuple[str, ...]] = ()
    """The sections whose settings the help lists."""
    tree: Annotated[Tree, tyro.conf.Fixed, tyro.conf.Suppress] = field(default_factory=dict)
    """The settings given, nested by section."""
    args: Annotated[tuple[str, ...], tyro.conf.Fixed, tyro.conf.Suppress] = ()
    """The command line that was parsed."""

    @classmethod
    def options(cls) -> list[tuple[str, Any, Any]]:
        """Return names, types and defaults of further options, which take time to import."""
        return []


@dataclass(frozen=True, kw_only=True)
class TrainingCommand(SettingsCommand):
    """Base of the commands that train on an environment with settings."""

    sections: ClassVar[tuple[str, ...]] = SECTIONS
    preset: str | None = None
    """A named set of settings: classic, mujoco; of Dreamer: cpu, 1m, 12m, 25m to 200m."""
    config: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A TOML file of settings."""
    seed: int | None = None
    """Random seed; equal seeds give identical runs."""
    device: str | None = None
    """cpu, cuda or mps."""

    @property
    def overrides(self) -> Tree:
        """The settings that flags give."""
        tree = {"env_kwargs" if name == "env" else name: x for name, x in self.tree.items()}
        named = {name: getattr(self, name, None) for name in ("algo", "seed", "device")}
        return tree | {name: value for name, value in named.items() if value is not None}

    @property
    def files(self) -> tuple[str, ...]:
        """The files of settings."""
        return () if self.config is None else (self.config,)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of the commands that use the policy of a run."""

    best: bool = False
    """Use the best checkpoint instead of the last one."""
    trust: bool = False
    """Trust the run from now on, whoever trained it: its settings may name code to run."""
    runs: Path = Path("runs")
    """The folder of all runs."""


@dataclass(frozen=True, kw_only=True)
class ActingOptions(RunOptions):
    """Options of the commands in which the policy of a run acts."""

    sample: bool = False
    """Sample actions, as in training, instead of taking the most probable ones."""


def parse_command(
    commands: Commands,
    args: Sequence[str],
    prog: str,
    description: str,
    options: Sequence[str] = ("--help",),
) -> Command:
    """Return the command that `args` describe, from a table of commands and groups of commands.

    Raises:
        UsageError: A command or an option does not exist.
        SystemExit: tyro has printed the help, or what is wrong.
    """
    name = args[0] if args else ""
    if name in commands:
        kind, program = commands[name], f"{prog} {name}"
        members = members_of(kind)
        if members:
            return parse_command(members, args[1:], program, inspect.getdoc(kind) or "")
        command: Command = parse(kind, args[1:], program)
        return command
    if name and name not in HELP:
        is_option = name.startswith("-")
        names, what = (options, "option") if is_option else (commands, "command")
        raise _unknown(what, name, names, prog)
    listed = [
        Annotated[kind, tyro.conf.subcommand(name, description=summary(kind), prefix_name=False)]
        for name, kind in commands.items()
    ]
    union: Any = typing.Union[tuple(listed)]  # noqa: UP007
    found: Command = tyro.cli(
        union, prog=prog, description=description, args=list(args), config=STYLE
    )
    return found


def summary(kind: Any) -> str:
    """Return the first line of a class's docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def members_of(kind: Any) -> Commands:
    """Return the commands of a group; a command has none."""
    found: Commands = kind.commands() if hasattr(kind, "commands") else {}
    return found


def parse(kind: Any, args: Sequence[str], prog: str) -> Any:
    """Return the command of a class that `args` describe."""
    rest, given = list(args), dict[str, Any]()
    if issubclass(kind, SettingsCommand):
        tree, rest = from_flags(args)
        given = {"tree": tree, "args": tuple(args)}
        kind = with_options(kind, rest)
    command, unknown = tyro.cli(kind, prog=prog, args=rest, return_unknown_args=True, config=STYLE)
    if not unknown:
        return dataclasses.replace(command, **given) if given else command
    options = [part.partition("=")[0] for part in unknown if part.startswith("-")]
    if options:
        raise _unknown("option", options[0], options_of(kind), prog)
    name = prog.removeprefix("fugu ")
    raise UsageError(f"{name}: given {unknown[0]!r} beyond what it takes. See {prog} --help")


def _unknown(kind: str, given: str, valid: Iterable[str], prog: str) -> UsageError:
    names = list(valid)
    (nearest,) = difflib.get_close_matches(given, names, n=1, cutoff=0.0)
    place = prog.removeprefix("fugu").strip()
    return UsageError(
        f"{place}{': ' if place else ''}unknown {kind} {given!r}; nearest: {nearest!r}; "
        f"allowed: {', '.join(names)}. See {prog} --help"
    )


# ---------------------------------------------------------------------- what a command takes


@dataclass(frozen=True)
class Argument:
    """A field of a command as it is typed."""

    flag: str
    """Such as --limits.memory."""
    hint: Any
    """Its type, with annotations."""
    default: Any
    """MISSING if it has none."""
    help: str
    positional: bool

    @property
    def metavar(self) -> str:
        """What stands for the value in the help; empty if the type says it."""
        marks = getattr(self.hint, "__metadata__", ())
        return next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), "")


def arguments_of(kind: Any, prefix: str = "") -> Iterator[Argument]:
    """Yield what a command takes, with the options of nested dataclasses."""
    documents = field_documents(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    for item in dataclasses.fields(kind):
        hint, default = hints[item.name], item.default
        marks = getattr(hint, "__metadata__", ())
        plain = typing.get_args(hint)[0] if marks else hint
        if tyro.conf.Suppress in marks:
            continue
        if dataclasses.is_dataclass(plain):
            flat = tyro.conf.OmitArgPrefixes in marks
            yield from arguments_of(plain, prefix if flat else f"{prefix}{item.name}.")
            continue
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        flag = f"--{prefix}{item.name.rstrip('_')}".replace("_", "-")
        positional = default is dataclasses.MISSING or tyro.conf.Positional in marks
        texts = [mark.help for mark in marks if getattr(mark, "help", None)]
        text = texts[0] if texts else documents.get(item.name, "")
        yield Argument(flag, hint, default, " ".join(text.split()), positional)


def options_of(kind: Any) -> list[str]:
    """Return the options of a command as they are typed."""
    found = [argument.flag for argument in arguments_of(kind) if not argument.positional]
    return [*found, "--help"]


def with_options(kind: type[SettingsCommand], args: Sequence[str] = ()) -> type[SettingsCommand]:
    """Return a command with the options that take time to import, and settings if it needs them.

    Args:
        kind: The command.
        args: The command line; only a help lists the settings, those of its `--algo`.
    """
    options = kind.options()
    if kind.sections and not set(HELP).isdisjoint(args):
        words = [word for arg in args for word in arg.split("=", 1)]
        algo = dict(itertools.pairwise(words)).get("--algo", "ppo")
        options += _section_options(algo, kind.sections)
    if not options:
        return kind
    namespace = {"__doc__": kind.__doc__}
    return dataclasses.make_dataclass(
        kind.__name__, options, bases=(kind,), namespace=namespace, frozen=True, kw_only=True
    )


def _section_options(algo: str, sections: Iterable[str]) -> list[tuple[str, Any, Any]]:
    """Return the settings of an algorithm as options: a dataclass for each section."""
    from fugu.algos.settings import section_types

    found: list[tuple[str, Any, Any]] = []
    for section in sections:
        kind = section_types(algo)[section]
        documents, hints = field_documents(kind), typing.get_type_hints(kind)
        fields: list[tuple[str, Any, Any]] = []
        for item in dataclasses.fields(kind):
            text = " ".join(documents.get(item.name, "").split())
            if allowed := allowed_numbers(kind, item.name):
                text += f" Allowed: {allowed}."
            mark = tyro.conf.arg(name=item.name.rstrip("_"), help=text)
            made = item.default_factory
            default = item.default if made is dataclasses.MISSING else made()
            default = field(default_factory=functools.partial(copy.copy, default))
            fields.append((item.name, Annotated[hints[item.name], mark], default))
        shown: Any = dataclasses.make_dataclass(section, fields, frozen=True)
        shown.__doc__ = summary(kind)
        hint = Annotated[shown, tyro.conf.FlagConversionOff]
        found.append((section, hint, field(default_factory=shown)))
    return found


def field_documents(kind: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields, with those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base) or base.__module__ == "types":
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for before, after in itertools.pairwise(tree.body):
            match before, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = text
    return found


def parse_settings(given: Iterable[Iterable[str]]) -> dict[str, Any]:
    """Return settings by name; values are Python literals, or else text.

    >>> parse_settings([("gravity=9.8", "size=3"), ("map=easy",), ("slippery=False",)])
    {'gravity': 9.8, 'size': 3, 'map': 'easy', 'slippery': False}
    """
    settings: dict[str, Any] = {}
    for item in itertools.chain.from_iterable(given):
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"set: given {item!r}; allowed: name=value, such as max_steps=200.")
        if name in settings:
            raise UsageError(f"set: given {name!r} twice; allowed: once.")
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return settings
