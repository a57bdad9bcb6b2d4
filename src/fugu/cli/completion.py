"""Completion in shells: `fugu --complete WORDS` prints what the last word may become."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fugu.cli.parsing import (
    Argument,
    Commands,
    SettingsCommand,
    arguments_of,
    members_of,
    options_of,
    with_options,
)
from fugu.core.errors import FuguError, UsageError

COMPLETE, INSTALL = "--complete", "--install-completion"
OPTIONS = ("--help", "--version", INSTALL)
SCRIPTS = {
    "bash": """\
_fugu() {
    local IFS=$'\\n'
    COMPREPLY=($(fugu --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -o bashdefault -F _fugu fugu
""",
    "zsh": """\
#compdef fugu
_fugu() {
    local -a found
    found=("${(@f)$(fugu --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[*]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _fugu fugu
""",
    "fish": """\
function __fugu_complete
    set -l words (commandline -opc) (commandline -ct)
    fugu --complete $words[2..-1] 2>/dev/null
end
complete -c fugu -a "(__fugu_complete)"
""",
}


def complete(words: list[str], commands: Commands) -> list[str]:
    """Return what the last word may become.

    >>> from fugu.cli.train import Train
    >>> complete(["tr"], {"train": Train})
    ['train']
    >>> complete(["train", "--train.learn"], {"train": Train})
    ['--train.learning-rate']
    """
    *before, last = words or [""]
    found: Iterable[str]
    if not before:
        found = [*commands, *(OPTIONS if last.startswith("-") else ())]
    elif before[0] not in commands:
        found = []
    elif members := members_of(commands[before[0]]):
        return complete([*before[1:], last], members)
    elif last.startswith("-"):
        found = _options(commands[before[0]], last)
    else:
        positional = [a for a in arguments_of(commands[before[0]]) if a.positional]
        found = [value for argument in positional for value in _values(argument)]
    return [name for name in found if name.startswith(last)]


def _options(kind: Any, last: str) -> list[str]:
    if not issubclass(kind, SettingsCommand):
        return options_of(kind)
    found = options_of(with_options(kind))
    if "." not in last:
        return [*found, *(f"--{section}." for section in kind.sections)]
    from fugu.algos.settings import section_types

    types = section_types("ppo")
    settings = (
        f"--{section}.{item.name.rstrip('_').replace('_', '-')}"
        for section in kind.sections
        for item in dataclasses.fields(types[section])
    )
    return [*found, *settings]


def _values(argument: Argument) -> Iterable[str]:
    """Yield choices, and the names of environments and runs, if an argument takes such."""
    marked = hasattr(argument.hint, "__metadata__")
    plain = typing.get_args(argument.hint)[0] if marked else argument.hint
    if typing.get_origin(plain) is typing.Literal:
        yield from typing.get_args(plain)
    kinds = argument.metavar.replace("[", "|").split("|")
    if "ENV" in kinds:
        from fugu.envs import suite

        yield from suite.names()
    if "RUN" in kinds:
        yield "latest"
        yield from (path.name for path in sorted(Path("runs").glob("*/")))


def install(shell: str | None, home: Path | None = None) -> Path:
    """Write the script of a shell to where it looks for it, and return the path.

    Args:
        shell: bash, zsh or fish; the one that `$SHELL` names if not given.
        home: The user's home folder.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        given = repr(name) if name else "no shell"
        raise UsageError(
            f"{INSTALL}: given {given}; allowed: {', '.join(SCRIPTS)}, as in fugu {INSTALL} bash."
        )
    paths = {
        "bash": ".local/share/bash-completion/completions/fugu",
        "zsh": ".zfunc/_fugu",
        "fish": ".config/fish/completions/fugu.fish",
    }
    path = (home or Path.home()) / paths[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPTS[name])
    return path


def run(args: list[str], commands: Commands) -> int:
    """Run `--complete` or `--install-completion` and return the exit status."""
    if args[0] == COMPLETE:
        try:
            print("\n".join(complete(args[1:], commands)))
        except FuguError:  # a shell that completes has no place for errors
            return 1
        return 0
    if len(args) > 2:
        raise UsageError(f"{INSTALL}: given {args[1:]}; allowed: one shell, {', '.join(SCRIPTS)}.")
    path = install(args[1] if len(args) > 1 else None)
    print(f"wrote {path}")
    if path.name == "_fugu":
        print("in ~/.zshrc, if it is not there: fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    print("It counts in shells that start from now on.")
    return 0
