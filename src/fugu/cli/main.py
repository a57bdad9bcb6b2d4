"""The entry point of the command `fugu`.

Each command is a frozen dataclass: its docstring is the help, its fields are the options (those
without a default are given by position), and `run` does the work and returns the exit status.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import tyro

import fugu
from fugu.cli import completion
from fugu.cli.autotune import Autotune
from fugu.cli.check import Check
from fugu.cli.coding import Coding
from fugu.cli.convert_config import ConvertConfig
from fugu.cli.doctor import Doctor
from fugu.cli.dream import Dream
from fugu.cli.env import Env
from fugu.cli.envs import Envs
from fugu.cli.evaluate import Evaluate
from fugu.cli.export import Export
from fugu.cli.gallery import Gallery
from fugu.cli.hub import Hub
from fugu.cli.league import League
from fugu.cli.play import Play
from fugu.cli.profile import Profile
from fugu.cli.rank import Rank
from fugu.cli.record import Record
from fugu.cli.runs import Runs
from fugu.cli.serve import Serve
from fugu.cli.sweep import Sweep
from fugu.cli.train import Resume, Train
from fugu.cli.zoo import Zoo
from fugu.core.errors import FuguError, nearest_names
from fugu.core.writing import tells_full_disk


class Command(Protocol):
    """What every command has."""

    def run(self) -> int:
        """Do the work; 0 if it went well."""
        raise NotImplementedError("run() -> int")


COMMANDS: dict[str, Callable[..., Command]] = {
    "train": Train,
    "resume": Resume,
    "eval": Evaluate,
    "league": League,
    "rank": Rank,
    "sweep": Sweep,
    "doctor": Doctor,
    "check": Check,
    "profile": Profile,
    "autotune": Autotune,
    "envs": Envs,
    "env": Env,
    "coding": Coding,
    "play": Play,
    "record": Record,
    "gallery": Gallery,
    "dream": Dream,
    "runs": Runs,
    "export": Export,
    "serve": Serve,
    "hub": Hub,
    "zoo": Zoo,
    "convert-config": ConvertConfig,
}

_DESCRIPTION = (
    "Any environment as flat memory, thousands of copies at once, policies trained on them.\n\n"
    "fugu COMMAND --help tells more about a command, fugu --version which fugu this is;\n"
    "fugu --install-completion lets your shell complete all of it."
)
_FULL = "Free some space and give the command again: what was there before is as it was."
_STYLE = (tyro.conf.PositionalRequiredArgs, tyro.conf.FlagCreatePairsOff)


class _RefusedError(Exception):
    """A command line that names something fugu does not have."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default the process's own, and return the exit status.

    0: it went well. 1: it did not, and stderr or the report says why. 2: the command line is
    wrong. 130: interrupted by Ctrl-C.
    """
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: list[str]) -> int:
    if args[:1] in (["--version"], ["-V"]):
        print(f"fugu {fugu.__version__}")
        return 0
    try:
        if args[:1] in ([completion.COMPLETE], [completion.INSTALL]):
            return completion.run(args, COMMANDS)
        command = _parse(args)
    except (_RefusedError, FuguError) as refusal:
        print(f"fugu: {refusal}", file=sys.stderr)
        return 2
    except SystemExit as end:  # tyro has shown the help, or what is wrong
        return end.code if isinstance(end.code, int) else 0
    try:
        _see_working_folder()
        with tells_full_disk(lambda: _FULL):
            status = command.run()
            sys.stdout.flush()
        return status
    except FuguError as error:
        print(f"fugu: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fugu: interrupted", file=sys.stderr)
        return 130


def _parse(args: list[str]) -> Command:
    """The command that `args` describe; SystemExit where they only ask for help."""
    name = args[0] if args else ""
    if name in COMMANDS:
        return _parse_command(name, args[1:])
    if name not in ("", "-h", "--help"):
        valid = [*completion.SINGLE_PROCESS] if name.startswith("-") else list(COMMANDS)
        raise _RefusedError(_unknown("option" if name.startswith("-") else "command", name, valid))
    made: Command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS, prog="fugu", description=_DESCRIPTION, args=args, config=_STYLE
    )
    return made


def _parse_command(name: str, args: list[str]) -> Command:
    kind = COMMANDS[name]
    parse: Callable[[list[str]], Command] | None = getattr(kind, "parse", None)
    if parse is not None:  # its flags are settings, of which only those given count
        return parse(args)
    command, rest = tyro.cli(
        kind, prog=f"fugu {name}", args=args, return_unknown_args=True, config=_STYLE
    )
    if not rest:
        return command
    options = [part for part in rest if part.startswith("-")]
    if not options:
        raise _RefusedError(
            f"{name}: given {rest[0]!r} beyond what it takes. See fugu {name} --help"
        )
    given = options[0].partition("=")[0]
    raise _RefusedError(_unknown("option", given, _options(command), name))


def _options(command: Command) -> list[str]:
    """The options of a command, as they are typed."""
    assert dataclasses.is_dataclass(command)
    named = [f.name for f in dataclasses.fields(command) if f.default is not dataclasses.MISSING]
    return ["--" + name.replace("_", "-") for name in named] + ["--help"]


def _unknown(kind: str, given: str, valid: Iterable[str], command: str = "") -> str:
    names = list(valid)
    (nearest,) = nearest_names(given, names)
    place, program = (f"{command}: ", f"fugu {command}") if command else ("", "fugu")
    return (
        f"{place}unknown {kind} {given!r}; nearest: {nearest!r}; "
        f"allowed: {', '.join(names)}. See {program} --help"
    )


def _see_working_folder() -> None:
    """Let `my_module:factory` name a file of the working folder, as under `python -m`.

    Behind all other folders, so that nothing there can hide an installed package.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


if __name__ == "__main__":
    sys.exit(main())
