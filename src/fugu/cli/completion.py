"""Completion of command lines in shells: what may follow, and how a shell gets to ask.

A shell's script calls `fugu --complete WORDS`, with the words after `fugu` up to the one that is
being typed, and is told what that may become: commands, options, environments, runs.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fugu.cli.flags import SECTIONS
from fugu.core.errors import FuguError, UsageError

COMPLETE, INSTALL = "--complete", "--install-completion"
SINGLE_PROCESS = ("--help", "--version", INSTALL)
TRAIN_OPTIONS = (
    "--preset", "--config", "--algo", "--seed", "--seeds", "--device", "--auto", "--init-from",
    "--resume", "--nproc", "--max-restarts", "--rank-timeout", "--cluster", "--requeue",
    "--dry-run", "--quiet",
)  # fmt: skip
# Commands whose flags are settings: their options, sections, and what they are given.
TRAINING: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "train": (TRAIN_OPTIONS, SECTIONS, "ENV"),
    "league": (TRAIN_OPTIONS, ("league", *SECTIONS), "ENV"),
    "resume": (("--runs", "--nproc", "--requeue", "--quiet"), SECTIONS, "RUN"),
    "profile": (("--preset", "--config", "--seed", "--device", "--json"), SECTIONS, "ENV"),
    "sweep": (
        ("--only", "--name", "--root", "--resume", "--workers", "--storage", "--cluster",
         "--engine", "--config", "--preset", "--algo", "--seed", "--device", "--dry-run",
         "--quiet"),
        SECTIONS,
        "ENV",
    ),
}  # fmt: skip
GROUPS = {
    "coding": ("run", "export"),
    "hub": ("push", "pull"),
    "zoo": ("list", "play", "eval", "pull"),
}
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


def complete(words: list[str], commands: Mapping[str, Any]) -> list[str]:
    """What the last word may become.

    >>> complete(["tr"], {"train": object, "eval": object})
    ['train']
    >>> complete(["train", "--train.learn"], {"train": object})
    ['--train.learning-rate']
    """
    *before, last = words or [""]
    if not before:
        return _beginning(last, [*commands, *(SINGLE_PROCESS if last.startswith("-") else ())])
    name = before[0]
    if name not in commands:
        return []
    if last.startswith("-"):
        return _beginning(last, _options(name, commands[name], last))
    if name in GROUPS and len(before) == 1:
        return _beginning(last, GROUPS[name])
    return _beginning(last, _subjects(name, commands[name]))


def install(shell: str | None, home: Path | None = None) -> Path:
    """Write the script of a shell where it looks for such; where that is.

    Args:
        shell: bash, zsh or fish; the one that `$SHELL` names if not given.
        home: Of the user.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SCRIPTS:
        given = repr(name) if name else "no shell"
        raise UsageError(
            f"{INSTALL}: given {given}; allowed: {', '.join(SCRIPTS)}, as in fugu {INSTALL} bash."
        )
    place = home or Path.home()
    paths = {
        "bash": ".local/share/bash-completion/completions/fugu",
        "zsh": ".zfunc/_fugu",
        "fish": ".config/fish/completions/fugu.fish",
    }
    path = place / paths[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPTS[name])
    return path


def run(args: list[str], commands: Mapping[str, Any]) -> int:
    """The two options of this file; 0 if it went well."""
    if args[0] == COMPLETE:
        try:
            print("\n".join(complete(args[1:], commands)))
        except FuguError:  # a shell that completes has no place for what is wrong
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


def _beginning(last: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(last)]


def _options(name: str, kind: Any, last: str) -> list[str]:
    if name in TRAINING:
        options, sections, _ = TRAINING[name]
        settings = _settings(sections) if "." in last else [f"--{part}." for part in sections]
        return [*options, *settings, "--help"]
    if not dataclasses.is_dataclass(kind):
        return ["--help"]
    named = [f.name for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING]
    return [f"--{option.replace('_', '-')}" for option in named] + ["--help"]


def _settings(sections: Iterable[str]) -> list[str]:
    from fugu.algos.settings import section_types

    hints = section_types("ppo")
    return [
        f"--{section}.{item.name.rstrip('_').replace('_', '-')}"
        for section in sections
        for item in dataclasses.fields(hints[section])
    ]


def _subjects(name: str, kind: Any) -> list[str]:
    """Environments and runs, if the command takes such; and what else its first word may be."""
    taken = TRAINING[name][2] if name in TRAINING else ""
    found: list[str] = []
    if name not in TRAINING and dataclasses.is_dataclass(kind):
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            plain, *marks = typing.get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
            taken += "".join(f"|{getattr(mark, 'metavar', '') or ''}" for mark in marks)
            if typing.get_origin(plain) is typing.Literal and name in ("env", "runs"):
                found += typing.get_args(plain)
    if name == "hub":
        taken = "RUN"
    if "ENV" in taken:
        from fugu.envs import suite

        found += suite.names()
    if "RUN" in taken:
        found += ["latest", *(path.name for path in sorted(Path("runs").glob("*/")))]
    return found
