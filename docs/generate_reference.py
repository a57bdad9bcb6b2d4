"""Writes docs/reference: a page for every command and for the settings of every algorithm.

    python docs/generate_reference.py [--check]

With --check nothing is written, and the exit status is 1 if a page is not what it should be.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pages import table, write_or_check

from fugu.algos.registry import algorithm_names
from fugu.algos.settings import section_types
from fugu.cli.main import COMMANDS
from fugu.cli.parsing import (
    SettingsCommand,
    arguments_of,
    members_of,
    summary,
    with_options,
)
from fugu.core.intervals import allowed_numbers
from fugu.training.config import PRESETS

FOLDER = Path(__file__).parent / "reference"
# Commands by what they are for, each with the page that tells more.
KINDS: dict[str, dict[str, str]] = {
    "Train and judge": {
        "train": "training.md",
        "resume": "training.md#checkpoints",
        "eval": "training.md",
        "runs": "training.md",
        "sweep": "sweeps.md",
        "league": "league.md",
        "rank": "league.md#ratings",
        "dream": "algorithms/dreamer.md",
    },
    "Environments": {
        "envs": "envs/index.md",
        "env": "write_your_own/native_environment.md",
        "check": "write_your_own/environment.md",
        "play": "start.md",
        "record": "start.md",
    },
    "Policies elsewhere": {
        "export": "export.md",
        "gallery": "web.md",
        "serve": "serve.md",
        "hub": "hub.md",
        "zoo": "zoo.md",
    },
    "Speed": {"autotune": "autotune.md", "profile": "training.md#where-the-time-goes"},
    "Programs": {"coding": "coding.md"},
    "This installation": {
        "doctor": "start.md",
        "convert-config": "migrate/pufferlib.md",
    },
}
TITLES = {
    "decision_transformer": "the Decision Transformer",
    "dreamer": "Dreamer",
    "grpo": "GRPO",
    "mappo": "MAPPO and IPPO",
    "ppo": "PPO",
    "safe_ppo": "Safe PPO",
}
WORDS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
SECTIONS = ("vec", "policy", "run", "league")


# ---------------------------------------------------------------------- commands


def command_page(name: str, guide: str) -> str:
    """One command's page."""
    kind: Any = COMMANDS[name]
    lines = [f"# fugu {name}", ""]
    if members := members_of(kind):
        lines += [summary(kind), ""]
        for action, part in members.items():
            lines += [f"## fugu {name} {action}", "", *described(f"{name} {action}", part)]
    elif issubclass(kind, SettingsCommand):
        lines += described(name, with_options(kind))
        page = "[settings](../settings/index.md)"
        lines += [f"`--SECTION.SETTING` is any of the {page} of the algorithm.", ""]
    else:
        lines += described(name, kind)
    lines += [f"More: [{guide_title(guide)}](../../{guide}).", ""]
    return "\n".join(lines).rstrip() + "\n"


def described(name: str, kind: Any) -> list[str]:
    """A command that is a dataclass: its words, and a table of what it takes."""
    text = inspect.cleandoc(kind.__doc__ or "")
    lines: list[str] = []
    examples: list[str] = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("fugu "):
            examples += paragraph.split(" | ")
        else:
            lines += [paragraph, ""]
    given, options = [], []
    for argument in arguments_of(kind):
        what = cell(argument.help)
        if argument.positional:
            word = argument.metavar or argument.flag.removeprefix("--").upper()
            given.append((word, what))
        else:
            value, default = words_of(argument.hint), shown(argument.default)
            options.append((f"`{argument.flag}`", value, default, what))
    usage = " ".join(["usage: fugu", name, *(word for word, _ in given), "[OPTIONS]"])
    lines += ["```text", usage, *([""] if examples else []), *examples, "```", ""]
    if given:
        rows = [(f"`{word.replace('|', ' or ')}`", what) for word, what in given]
        lines += table(("given", "what"), rows)
    if options:
        lines += table(("option", "value", "if not given", "what"), options)
    return lines


def words_of(hint: Any) -> str:
    """The values of a type, as they are typed."""
    marks = getattr(hint, "__metadata__", ())
    if word := next((mark.metavar for mark in marks if getattr(mark, "metavar", None)), ""):
        return f"`{word.replace('|', ' or ')}`"
    if hasattr(hint, "__metadata__"):
        hint = typing.get_args(hint)[0]
    if hint is bool:
        return ""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (typing.Union, types.UnionType):
        return ", ".join(dict.fromkeys(words_of(p) for p in parts if p is not type(None)))
    if origin is tuple:
        return f"{words_of(parts[0])} ..."
    return f"`{WORDS.get(hint, 'VALUE')}`"


def shown(default: Any) -> str:
    """A default as people write it; nothing for what is not there."""
    if default in (None, "", ()) or default is False:
        return ""
    if isinstance(default, int) and not isinstance(default, bool):
        return f"{default:,}"
    return f"`{default}`" if isinstance(default, str | Path) else str(default)


def commands_index() -> str:
    """The list of all, by kind."""
    lines = ["# Commands", "", "`fugu COMMAND --help` tells the same in a terminal, and"]
    lines += ["`fugu --install-completion` lets bash, zsh and fish complete all of it.", ""]
    for kind, names in KINDS.items():
        rows = [(f"[`fugu {name}`]({name}.md)", summary(COMMANDS[name])) for name in names]
        lines += [f"## {kind}", "", *table(("command", "what it does"), rows)]
    lines += ["## Exit status", ""]
    statuses = [
        ("0", "It went well."),
        ("1", "It did not; the last lines say why."),
        ("2", "The command line is wrong; the message names what is allowed."),
        ("75", "`fugu train --requeue` was told to make room, and wants to be started again."),
        ("130", "Interrupted by Ctrl-C."),
    ]
    return "\n".join([*lines, *table(("status", "meaning"), statuses)]).rstrip() + "\n"


# ---------------------------------------------------------------------- settings


def settings_index() -> str:
    """What all algorithms share."""
    lines = [*SETTINGS_INTRO.strip().splitlines(), ""]
    rows = [
        (f"[{TITLES[algo][:1].upper()}{TITLES[algo][1:]}]({algo}.md)", f"`--algo {algo}`")
        for algo in sorted(algorithm_names(), key=lambda algo: (algo != "ppo", algo))
    ]
    lines += ["## `train`, by algorithm", "", *table(("settings", "chosen by"), rows)]
    hints = section_types("ppo")
    for section in SECTIONS:
        lines += [f"## `{section}`", "", summary(hints[section]), ""]
        lines += settings_table(section, hints[section])
    lines += ["## Presets", "", "`--preset NAME` sets all of these at once.", ""]
    for name, tree in PRESETS.items():
        told = ", ".join(f"`{key} = {value}`" for key, value in leaves(tree))
        lines += [f"- `{name}`: {told}"]
    return "\n".join(lines).rstrip() + "\n"


def settings_page(algo: str) -> str:
    """The settings of one algorithm: all of `train`, and what else is its own."""
    title, own, common = TITLES[algo], section_types(algo), section_types("ppo")
    lines = [f"# Settings of {title}", ""]
    lines += [f"What it is: [{title}](../../algorithms/{algo}.md).", ""]
    lines += ["## `train`", "", *settings_table("train", own["train"])]
    for section in SECTIONS:
        if own[section] is not common[section]:
            lines += [f"## `{section}`", "", *settings_table(section, own[section])]
    kinds = [name for name in SECTIONS if own[name] is common[name]]
    links = ", ".join(f"[`{name}`](index.md#{name})" for name in kinds)
    return "\n".join([*lines, f"As for every algorithm: {links}."]).rstrip() + "\n"


def settings_table(section: str, kind: Any) -> list[str]:
    """Every setting of a section."""
    rows = []
    for argument in arguments_of(kind, f"{section}."):
        flag, hint, default = argument.flag, argument.hint, argument.default
        value = "true, false" if hint is bool else words_of(hint)
        name = flag.removeprefix(f"--{section}.").replace("-", "_")
        if allowed := allowed_numbers(kind, name) or allowed_numbers(kind, f"{name}_"):  # lambda_
            value += f", {allowed}"
        told = str(default).lower() if isinstance(default, bool) else shown(default)
        rows.append((f"`{flag}`", told or "none", value, cell(argument.help)))
    return table(("setting", "default", "values", "what"), rows)


def leaves(tree: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Keys and values of nested settings."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{place}{key}.")
        else:
            yield f"{place}{key.rstrip('_')}", value


SETTINGS_INTRO = """
# Settings

A run is described by settings in five sections. They are given as flags (`--train.learning-rate
0.01`), in a TOML file (`--config my.toml`), or in Python (`fugu.train(..., train={"learning_rate":
0.01})`). These are the same:

```toml title="my.toml"
[train]
learning_rate = 0.01

[vec]
num_envs = 256
```

Later ones win: defaults, the environment's own file, `--preset`, `--config`, flags. `fugu train ENV
--dry-run` prints what would be used. A key that does not exist is an error that names the nearest
one.

Beside the sections there are `--algo`, `--seed`, `--device` and `--env.KEY VALUE`, an argument of
the environment.
"""


# ---------------------------------------------------------------------- all of it


def cell(text: str) -> str:
    """Words in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def guide_title(guide: str) -> str:
    """The first heading of a page."""
    page = Path(__file__).parent / guide.partition("#")[0]
    return page.read_text().splitlines()[0].removeprefix("# ")


INDEX = """# Reference

Written from the code, so that it cannot fall behind it.

- [Commands](commands/index.md): what each takes, and what it means.
- [Settings](settings/index.md): every one of training, its default and its values.
- [Python](python.md): the functions and classes that scripts call.

Environments have pages of their own: [all of them](../envs/index.md).
"""


def main() -> int:
    """Write the pages, or check them."""
    listed = [name for names in KINDS.values() for name in names]
    if sorted(listed) != sorted(COMMANDS):
        print(f"KINDS: {sorted({*listed} ^ {*COMMANDS})} are listed or there, not both")
        return 1
    pages = {FOLDER / "index.md": INDEX}
    pages[FOLDER / "commands/index.md"] = commands_index()
    for names in KINDS.values():
        for name, guide in names.items():
            pages[FOLDER / f"commands/{name}.md"] = command_page(name, guide)
    pages[FOLDER / "settings/index.md"] = settings_index()
    for algo in algorithm_names():
        pages[FOLDER / f"settings/{algo}.md"] = settings_page(algo)
    return write_or_check(pages)


if __name__ == "__main__":
    sys.exit(main())
