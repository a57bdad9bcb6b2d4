"""PufferLib's INI files as fugu's settings: `convert`, for `fugu convert-config`."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fugu.core.config import Tree, merge
from fugu.core.errors import UsageError
from fugu.envs import suite
from fugu.envs.native_env import NativeLibrary
from fugu_pufferlib.config_tables import (
    ABOVE_ZERO,
    ADDED,
    ARGUMENTS,
    BACKENDS,
    DEFAULTS,
    DROPPED,
    OCEAN,
    OPTIMISERS,
    RENAMED,
    SCALES,
    SWEPT,
)

Sections = dict[str, dict[str, Any]]
OWN_POLICY = "a policy of your own is an argument of fugu.train: policy_factory=..."
HOW_TO_SEARCH = "how to search is said by flags: fugu sweep --help"


@dataclass(frozen=True)
class Note:
    """What became of one setting.

    Attributes:
        source: Its name in the INI file; empty for one that PufferLib has no word for.
        target: Its name here; empty if it was dropped.
        why: In a few words, where it is not plain.
    """

    source: str
    target: str
    why: str = ""


@dataclass
class Conversion:
    """What an INI file says, in fugu's words.

    Attributes:
        settings: For `fugu train --config`.
        ranges: For `fugu sweep --config`, below "sweep".
        notes: What became of each setting of the file, and what was added to it.
        assumed: Settings that the file does not have, from PufferLib's defaults.
        env: The environment of the same name here, if there is one.
    """

    settings: Tree = field(default_factory=dict)
    ranges: Tree = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    env: str | None = None

    def set(self, path: str, value: Any) -> None:
        """Set one setting, such as "train.gamma"."""
        _put(self.settings, path, value)


def convert(text: str) -> Conversion:
    r"""Read an INI file of PufferLib 3.0.

    Settings that it does not have are PufferLib's own defaults, as far as they change what is
    learned.

    >>> found = convert("[train]\ngae_lambda = 0.9\nname = mine")
    >>> found.settings["train"]["lambda"], found.settings["train"]["learning_rate"]
    (0.9, 0.015)
    >>> [note for note in found.notes if note.source == "train.name"]
    [Note(source='train.name', target='', why='runs are named by --run.name')]
    """
    given = _read(text)
    found, merged = Conversion(), merge(DEFAULTS, given)
    _convert_base(merged, found)
    for section, entries in merged.items():
        if section.startswith("sweep"):
            found.notes += _convert_sweep(section, entries, merged, found)
            continue
        for key, value in entries.items():
            note = _convert_one(f"{section}.{key}", value, merged, found)
            if key in given.get(section, {}):
                found.notes.append(note)
            elif note.target:
                found.assumed.append(note.target)
    for path, (value, why) in ADDED.items():
        found.set(path, value)
        found.notes.append(Note("", path, why))
    return found


def _read(text: str) -> Sections:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise UsageError(f"config: given what is no INI file: {error}") from None
    return {name: {k: _value(v) for k, v in parser[name].items()} for name in parser.sections()}


def _value(text: str) -> Any:
    """As PufferLib reads values, but true and false in any case."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


# ------------------------------------------------------------------ settings


def _convert_base(merged: Sections, found: Conversion) -> None:
    """The environment and the policy's kind."""
    base = merged.get("base", {})
    names = str(base.get("env_name") or "").split()
    name = names[0].removeprefix("puffer_") if names else ""
    name = OCEAN.get(name, name)
    if base.get("package") == "ocean" and suite.find(name):
        found.env = name
    if base.get("rnn_name"):
        found.set("policy.core", "lstm")


def _convert_one(path: str, value: Any, merged: Sections, found: Conversion) -> Note:
    """Set what one setting means here."""
    section, key = path.split(".", 1)
    if path in _SPECIAL:
        try:
            return _SPECIAL[path](value, merged, found)
        except (TypeError, ValueError):
            raise UsageError(f"{path}: given {value!r}; allowed: a number.") from None
    if section == "base":
        return _note_base(path, value, found)
    if section == "env":
        return _convert_argument(key, value, found)
    if path in DROPPED:
        return Note(path, "", DROPPED[path])
    if path not in RENAMED:
        own = section in ("policy", "rnn")
        return Note(
            path, "", OWN_POLICY if own else "PufferLib 3.0 does not read it, nor does fugu"
        )
    target = RENAMED[path]
    if value is None or value == "auto":
        return Note(path, "", f"{value} is what {target} is if it is not given")
    found.set(target, value)
    return Note(path, target)


def _note_base(path: str, value: Any, found: Conversion) -> Note:
    if path == "base.rnn_name" and value:
        return Note(path, "policy.core", "an LSTM that is reset where episodes end")
    if path in ("base.policy_name", "base.rnn_name"):
        usual = value in (None, "Policy")
        return Note(path, "", "the policy is fugu's own" if usual else OWN_POLICY)
    if path == "base.max_suggestion_cost":
        return Note(path, "", HOW_TO_SEARCH)
    if path == "base.env_name" and found.env:
        return Note(path, "ENV", f"fugu train {found.env}")
    return Note(path, "", "the command line names the environment: fugu envs lists them")


def _convert_argument(key: str, value: Any, found: Conversion) -> Note:
    """An argument of the environment."""
    path = f"env.{key}"
    if value is None:
        return Note(path, "", "None is what it is if it is not given")
    try:
        target = _argument(key, value, found)
    except UsageError as error:
        return Note(path, "", str(error))
    found.set(target, value)
    return Note(path, target)


def _argument(key: str, value: Any, found: Conversion) -> str:
    """Where an argument of the environment stands; native ones say which they have."""
    if found.env is not None:
        key = ARGUMENTS.get(key, key)
        NativeLibrary.load(suite.find(found.env) or "").values({key: value})
    return f"env_kwargs.{key}"


def _copies(merged: Sections) -> int:
    """Copies that one environment of theirs is here: those of Ocean are many at once."""
    inner = merged.get("env", {}).get("num_envs", 1)
    is_ocean = merged.get("base", {}).get("package") == "ocean"
    return int(inner) if is_ocean and isinstance(inner, int) else 1


def _num_envs(value: Any, merged: Sections, found: Conversion) -> Note:
    each = _copies(merged)
    found.set("vec.num_envs", int(value) * each)
    why = f"{value} environments of {each} copies each" if each > 1 else ""
    return Note("vec.num_envs", "vec.num_envs", why)


def _inner_envs(value: Any, merged: Sections, found: Conversion) -> Note:
    if _copies(merged) > 1:
        return Note("env.num_envs", "vec.num_envs", "each copy is an environment of its own here")
    return _convert_argument("num_envs", value, found)


def _vec_batch(value: Any, merged: Sections, found: Conversion) -> Note:
    if not isinstance(value, int):
        return Note("vec.batch_size", "", "all at once: they step while the learner learns")
    found.set("vec.batch_size", value * _copies(merged))
    return Note("vec.batch_size", "vec.batch_size")


def _backend(value: Any, merged: Sections, found: Conversion) -> Note:
    if found.env is not None or value not in BACKENDS:
        return Note("vec.backend", "", "auto: the native pool, or processes where they pay")
    found.set("vec.backend", BACKENDS[value])
    return Note("vec.backend", "vec.backend", f"{value} is called {BACKENDS[value]}")


def _optimiser(value: Any, merged: Sections, found: Conversion) -> Note:
    if value not in OPTIMISERS:
        return Note("train.optimizer", "", f"{value!r} is neither muon nor adam")
    found.set("train.optimiser", OPTIMISERS[value])
    return Note("train.optimizer", "train.optimiser", f"{OPTIMISERS[value]}, without weight decay")


def _adam(name: str, value: Any, merged: Sections, found: Conversion) -> Note:
    """A setting of Adam, or of Muon in its place."""
    source, target = f"train.{name}", _adam_target(name, merged)
    if target is None:
        return Note(source, "", "muon has no such setting")
    found.set(target, float(value))
    return Note(source, target, "muon's momentum" if target == "train.momentum" else "")


def _adam_target(name: str, merged: Sections) -> str | None:
    """What a setting of Adam is called here: PufferLib's Muon has the first beta as momentum."""
    if merged["train"]["optimizer"] != "muon":
        return f"train.{name}"
    return "train.momentum" if name == "adam_beta1" else None


def _anneal(value: Any, merged: Sections, found: Conversion) -> Note:
    found.set("train.schedule", "cosine" if value else "constant")
    return Note("train.anneal_lr", "train.schedule", "cosine if true, constant if not")


def _epochs(value: Any, merged: Sections, found: Conversion) -> Note:
    target = "train.epochs" if value == int(value) and value >= 1 else "train.replay_ratio"
    found.set(target, value)
    return Note("train.update_epochs", target)


def _steps(merged: Sections) -> int:
    """Agent steps of an update, if each copy has one agent."""
    train = merged["train"]
    if isinstance(train["batch_size"], int):
        return train["batch_size"]
    copies = int(merged["vec"]["num_envs"]) * _copies(merged)
    return copies * int(train["bptt_horizon"])


def _batch(value: Any, merged: Sections, found: Conversion) -> Note:
    if not isinstance(value, int):
        return Note(
            "train.batch_size", "", "auto: a row for each agent, as here without train.rows"
        )
    found.set("train.rows", max(1, value // int(merged["train"]["bptt_horizon"])))
    return Note("train.batch_size", "train.rows", "steps over the horizon")


def _minibatch(value: Any, merged: Sections, found: Conversion) -> Note:
    found.set("train.minibatches", max(1, round(_steps(merged) / int(value))))
    why = f"{_steps(merged):,} steps of an update over {value:,}"
    if not isinstance(merged["train"]["batch_size"], int):
        why += "; with several agents in each copy, more are needed"
    return Note("train.minibatch_size", "train.minibatches", why)


def _most(value: Any, merged: Sections, found: Conversion) -> Note:
    if int(value) >= int(merged["train"]["minibatch_size"]):
        return Note("train.max_minibatch_size", "", "no minibatch is larger")
    found.set("train.microbatch", int(value))
    return Note("train.max_minibatch_size", "train.microbatch")


def _entropy(value: Any, merged: Sections, found: Conversion) -> Note:
    found.set("train.entropy_coefficient", value)
    found.set("train.final_entropy_coefficient", "none")
    return Note("train.ent_coef", "train.entropy_coefficient", "the same to the end")


def _hidden_size(value: Any, merged: Sections, found: Conversion) -> Note:
    found.settings.setdefault("policy", {}).setdefault("hidden_size", value)
    return Note("policy.hidden_size", "policy.hidden_size")


def _rnn_size(value: Any, merged: Sections, found: Conversion) -> Note:
    if not merged.get("base", {}).get("rnn_name"):
        return Note("rnn.hidden_size", "", "base.rnn_name names no recurrent policy")
    found.set("policy.hidden_size", value)
    return Note("rnn.hidden_size", "policy.hidden_size", "encoder and core are equally wide")


_SPECIAL: dict[str, Callable[[Any, Sections, Conversion], Note]] = {
    "vec.num_envs": _num_envs,
    "env.num_envs": _inner_envs,
    "vec.batch_size": _vec_batch,
    "vec.backend": _backend,
    "train.optimizer": _optimiser,
    "train.adam_beta1": partial(_adam, "adam_beta1"),
    "train.adam_beta2": partial(_adam, "adam_beta2"),
    "train.adam_eps": partial(_adam, "adam_eps"),
    "train.anneal_lr": _anneal,
    "train.update_epochs": _epochs,
    "train.batch_size": _batch,
    "train.minibatch_size": _minibatch,
    "train.max_minibatch_size": _most,
    "train.ent_coef": _entropy,
    "policy.hidden_size": _hidden_size,
    "rnn.hidden_size": _rnn_size,
}


# ------------------------------------------------------------------ sweeps


def _convert_sweep(
    section: str, entries: Mapping[str, Any], merged: Sections, found: Conversion
) -> list[Note]:
    """The range of one setting; what says how to search is a flag here."""
    parts = [part for part in section.split(".")[1:] if part != "parameters"]
    if len(parts) != 2 or "distribution" not in entries:
        return [Note(f"{section}.{key}", "", HOW_TO_SEARCH) for key in entries]
    kind, has_ends = str(entries["distribution"]), {"min", "max"} <= entries.keys()
    target = SWEPT.get(".".join(parts), RENAMED.get(".".join(parts)))
    if parts[0] == "train" and parts[1] in ("adam_beta1", "adam_beta2", "adam_eps"):
        target = _adam_target(parts[1], merged)
    if parts[0] == "env" and has_ends:
        try:
            target = _argument(parts[1], entries["min"], found)
        except UsageError as error:
            return [Note(section, "", str(error))]
    if target is None or kind not in SCALES or not has_ends:
        return [Note(section, "", "no range of a setting that is a number here")]
    table = {"low": entries["min"], "high": entries["max"], **SCALES[kind]}
    if target == "train.total_steps":
        table |= {"low": int(entries["min"]), "high": int(entries["max"]), "integer": True}
    why = "from min to max; mean and scale are not needed"
    if target in ABOVE_ZERO and not entries["min"]:
        table["low"] = entries["max"] / 100
        why = f"from {table['low']:g}, since 0 is refused, to max"
    _put(found.ranges, target, table)
    return [Note(section, f"sweep.{target}", why)]


def _put(tree: Tree, path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for folder in folders:
        tree = tree.setdefault(folder, {})
    tree[last] = value
