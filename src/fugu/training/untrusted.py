"""Settings of strangers: what a run may say before the user trusts it.

Every reader of runs gets their settings from `settings_of`. Those of a run that this user trained
are signed (see `fugu.store.signing`) and taken as they are. Of others only data is accepted:
numbers and choices, within ranges, and environments of `fugu.envs.untrusted`. Paths, addresses and
free text are refused, and so is every setting that is added later without a rule.
"""

from __future__ import annotations

import shlex
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Literal, Union

from fugu.algos.registry import is_builtin
from fugu.algos.settings import Config, RunConfig, read_config
from fugu.core.config import Tree, merge, to_tree
from fugu.envs.untrusted import (
    CALLED,
    DEFAULT,
    NAME,
    Rule,
    check_env,
    choice,
    count,
    each,
    refusal,
    text,
)
from fugu.store.run import Run
from fugu.training.inputs import RunInputs

SETTINGS: dict[str, Rule] = {
    "device": text(r"(cpu|cuda|mps)(:\d{1,2})?", "cpu, cuda, cuda:N or mps"),
    "algo": Rule("the name of an algorithm that ships with fugu", is_builtin),
    "train.horizon": count(1, 1 << 20),
    "train.threads": count(0, 1024),
    "train.costs": each(text(NAME, "a name")),
    "vec.num_envs": count(0, 1 << 16),
    "vec.num_workers": count(1, 1024),
    "vec.group_size": count(1, 1 << 16),
    "vec.backend": choice("auto", "serial", "threads", "process", "native", "batch"),
    "vec.ray_cpus": DEFAULT,
    "vec.ray_timeout": DEFAULT,
    "run.trajectories": DEFAULT,
    "run.tensorboard": DEFAULT,
    "run.wandb": DEFAULT,
    "league.opponents": each(text(rf"{NAME}(:(best|\d{{1,18}}))?", "the name of a run")),
    "policy.hidden_size": count(1, 1 << 14),
    "policy.layers": count(1, 64),
    "policy.window": count(1, 1 << 16),
    "policy.recall": count(0, 64),
}
"""Rules of settings by their dotted names; their defaults are allowed in any case.

Without a rule, numbers, flags and the choices of a closed set are allowed, and free text, paths
and tables are not.
"""


def settings_of(run: Run, inputs: RunInputs | None = None, overrides: Tree | None = None) -> Config:
    """Return the settings of a run, which every reader of runs takes from here.

    `overrides` are settings of the caller, which win. UntrustedError if somebody else wrote the
    run, and its settings are more than data.
    """
    inputs = inputs or RunInputs()
    if not inputs.trust and not run.is_own():
        check_algorithm(run.config, _remedy(run))  # before it is imported
    cfg = read_config(run.config)
    if inputs.trust:
        run.trust()
    elif not run.is_own():
        # The place and name of a run are those of its folder, whatever its settings say.
        plain = replace(cfg.run, folder=RunConfig.folder, name=RunConfig.name)
        check_settings(replace(cfg, run=plain), _remedy(run), given=inputs.env is not None)
        cfg = replace(cfg, run=replace(cfg.run, folder=run.folder.parent, name=run.name))
    return read_config(merge(to_tree(cfg), overrides)) if overrides else cfg


def _remedy(run: Run) -> str:
    return (
        f"The run {str(run.folder)!r} was not trained here. If you know who made it, trust it "
        f"once: fugu eval {shlex.quote(str(run.folder))} --trust (in Python trust=True)."
    )


def check_algorithm(settings: Tree, remedy: str) -> None:
    """Raise UntrustedError if settings name an algorithm that does not ship with fugu.

    Its module would be imported to read the rest of the settings. `remedy` is a sentence.
    """
    rule, given = SETTINGS["algo"], settings.get("algo", "ppo")
    if not rule.holds(given):
        raise refusal("algo", rule.allowed, given, remedy)


def check_settings(cfg: Config, remedy: str, *, given: bool = False) -> None:
    """Raise UntrustedError for the first setting that needs trust, with a remedy as a sentence.

    If the environment is `given`, because the caller makes it, its name does not matter.
    """
    check_env(CALLED if given else cfg.env, cfg.env_kwargs, remedy)
    for name, hint, value, default in _leaves(cfg):
        rule = SETTINGS.get(name)
        if value != default and not (rule.holds(value) if rule else _is_closed(hint)):
            raise refusal(name, rule.allowed if rule else f"{default!r}", value, remedy)


def _leaves(cfg: Any, place: str = "") -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the dotted name, type, value and default of each setting but the environment's."""
    hints = typing.get_type_hints(type(cfg))
    for field in fields(cfg):
        name, value = f"{place}{field.name}", getattr(cfg, field.name)
        if is_dataclass(value):
            yield from _leaves(value, f"{name}.")
        elif name not in ("env", "env_kwargs"):
            made = field.default_factory
            default = field.default if made is MISSING else made()
            yield name, hints[field.name], value, default


def _is_closed(hint: Any) -> bool:
    """Return whether a type has numbers, flags and the choices of a Literal only."""
    if typing.get_origin(hint) in (Union, types.UnionType, tuple):
        return all(_is_closed(each) for each in typing.get_args(hint) if each is not Ellipsis)
    return typing.get_origin(hint) is Literal or hint in (bool, int, float, types.NoneType)
