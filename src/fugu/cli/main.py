"""The entry point of the command `fugu`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import fugu
from fugu.cli import completion
from fugu.cli.autotune import Autotune
from fugu.cli.coding import Coding
from fugu.cli.convert_config import ConvertConfig
from fugu.cli.doctor import Doctor
from fugu.cli.dream import Dream
from fugu.cli.envs import Check, Env, Envs
from fugu.cli.evaluate import Evaluate
from fugu.cli.export import Export, Gallery
from fugu.cli.hub import Hub
from fugu.cli.parsing import Commands, parse_command
from fugu.cli.play import Play
from fugu.cli.profile import Profile
from fugu.cli.rank import Rank
from fugu.cli.record import Record
from fugu.cli.runs import Runs
from fugu.cli.serve import Serve
from fugu.cli.sweep import Sweep
from fugu.cli.train import League, Resume, Train
from fugu.cli.zoo import Zoo
from fugu.core.errors import FuguError
from fugu.core.writing import tells_full_disk

COMMANDS: Commands = {
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default the process's own, and return the exit status.

    0: it went well. 1: it did not, and stderr or the report says why. 2: the command line is
    wrong. 130: interrupted by Ctrl-C.
    """
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: list[str]) -> int:
    if args[:1] in (["--version"], ["-V"]):
        print(f"fugu {fugu.__version__}")
        return 0
    try:
        if args[:1] in ([completion.COMPLETE], [completion.INSTALL]):
            return completion.run(args, COMMANDS)
        command = parse_command(COMMANDS, args, "fugu", _DESCRIPTION, completion.OPTIONS)
    except FuguError as error:
        print(f"fugu: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:  # tyro has printed the help, or what is wrong
        return end.code if isinstance(end.code, int) else 0
    try:
        _add_working_folder()
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


def _add_working_folder() -> None:
    """Let `my_module:factory` name a file of the working folder, as under `python -m`.

    It comes after all other folders, so that nothing there can hide an installed package.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


if __name__ == "__main__":
    sys.exit(main())
