"""The members of a search for settings, and its record, `auto.json` in its run folder."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fugu.algos.ppo import PPOConfig
from fugu.algos.settings import Config
from fugu.core.config import Tree, dump_toml, plain_tree
from fugu.core.errors import UsageError
from fugu.core.files import DOCUMENT, parse_json, read_bytes
from fugu.core.writing import write_whole
from fugu.store.run import Run
from fugu.track.curves import Curve, draw_curves, read_curve
from fugu.track.text import number

FILE = "auto.json"
SECTIONS = ("algo", "env_kwargs", "train", "vec", "policy")  # of auto.toml
_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")

DEFAULTS = "defaults"  # the name of the first member, which changes nothing
ENTROPY = 0.01  # bonus of a member that explores, where the settings have none
USUAL_RATE = 3e-4  # the learning rate that the adaptation to the KL divergence starts from
ADAPTIVE: Tree = {
    "learning_rate": USUAL_RATE,
    "schedule": "constant",
    "desired_kl": 0.02,
    "final_desired_kl": 0.001,
}


@dataclass(frozen=True)
class Candidate:
    """A member of a search: settings of `train` that differ from those given, and why.

    Its name is short and unique, such as "gamma-down".
    """

    name: str
    changes: Mapping[str, Any]
    reason: str

    def apply(self, cfg: Config) -> Config:
        """Return settings with this member's changes."""
        return replace(cfg, train=replace(cfg.train, **self.changes))

    def describe(self) -> str:
        """Return the changes as one line.

        >>> Candidate("gamma-down", {"gamma": 0.95}, "").describe()
        'gamma=0.95'
        """
        return ", ".join(f"{name.rstrip('_')}={value}" for name, value in self.changes.items())


def make_members(train: PPOConfig) -> list[Candidate]:
    """Return the members of the first rung, eight at most; the first one changes nothing.

    >>> [member.name for member in make_members(PPOConfig(desired_kl=0.02, learning_rate=3e-4))]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['defaults', 'rate-up', 'rate-down', 'entropy-up', 'gamma-down', 'gamma-up', 'epochs-down',
     'gamma-up-entropy-up']
    """
    shorter, longer = _discounts(train.gamma)
    entropy = {"entropy_coefficient": _round(3.0 * train.entropy_coefficient) or ENTROPY}
    found = [
        Candidate(DEFAULTS, {}, "the settings as they are without --auto"),
        Candidate("rate-up", _rates(train, 1), "larger policy updates may learn faster"),
        Candidate("rate-down", _rates(train, -1), "smaller policy updates may be more stable"),
        Candidate("entropy-up", entropy, "an entropy bonus keeps the policy exploring"),
        Candidate("gamma-down", shorter, "a shorter horizon has less noise, if rewards come soon"),
    ]
    if longer:
        found.append(Candidate("gamma-up", longer, "a longer horizon sees rewards that come late"))
    found.append(_reuse(train))
    if train.desired_kl is None or not 0.3 < train.learning_rate / USUAL_RATE < 3.0:
        reason = "a learning rate that adapts to the KL divergence corrects a wrong one"
        found.append(Candidate("rate-adaptive", ADAPTIVE, reason))
    elif longer:
        reason = "tasks with late rewards need both"
        found.append(Candidate("gamma-up-entropy-up", {**longer, **entropy}, reason))
    return found


def make_curious_members(train: PPOConfig) -> list[Candidate]:
    """Return the members for a task whose rewards do not vary: random network distillation."""
    if train.intrinsic == "rnd":
        return []
    curious = {"intrinsic": "rnd"}
    found = [Candidate("rnd", curious, "no return varied: reward new observations")]
    if longer := _discounts(train.gamma)[1]:
        reason = "no return varied: reward new observations, over a longer horizon"
        found.append(Candidate("rnd-gamma-up", {**curious, **longer}, reason))
    return found


def check_searchable(cfg: Config, ranks: int) -> None:
    """Raise UsageError for settings that a search cannot vary or compare."""
    if cfg.algo != "ppo":
        raise UsageError(
            f"auto: expected algo 'ppo'; got {cfg.algo!r}. The search varies PPO's settings and "
            "ranks by return. Leave out --auto, or use fugu sweep."
        )
    if cfg.league.enabled:
        raise UsageError(
            "auto: the return of a league depends on its opponents, so it cannot rank settings. "
            "Leave out --auto."
        )
    if ranks > 1:
        raise UsageError(f"auto: expected one process; got {ranks}. Leave out --nproc.")
    if cfg.run.record_data is not None:
        raise UsageError(
            "auto: run.record_data would mix the episodes of all members. Record a run of the "
            "chosen settings instead: fugu train ENV --config RUN/auto.toml"
        )


def _rates(train: PPOConfig, sign: int) -> Tree:
    """Return a larger (1) or smaller (-1) policy update."""
    if train.desired_kl is None:
        return {"learning_rate": _round(train.learning_rate * 3.0**sign)}
    found = {"desired_kl": _round(train.desired_kl * 2.0**sign)}
    if train.final_desired_kl is not None:
        found["final_desired_kl"] = _round(train.final_desired_kl * 2.0**sign)
    return found


def _discounts(gamma: float) -> tuple[Tree, Tree]:
    """Return discounts with a fifth and with five times the effective horizon 1 / (1 - gamma)."""
    if gamma >= 1.0:
        return {"gamma": 0.99}, {}
    left = 1.0 - gamma
    return {"gamma": _round(max(0.0, 1.0 - 5.0 * left))}, {"gamma": _round(1.0 - left / 5.0)}


def _reuse(train: PPOConfig) -> Candidate:
    """Return a member that uses each batch half as often, or twice where it is used once."""
    ratio, fewer = train.replay_ratio, "fewer epochs overfit a batch less"
    more = "more epochs learn more from a batch"
    if ratio is None and train.epochs > 1:
        return Candidate("epochs-down", {"epochs": train.epochs // 2}, fewer)
    if ratio is None:
        return Candidate("epochs-up", {"epochs": 2 * train.epochs}, more)
    if ratio > 1:
        return Candidate("epochs-down", {"replay_ratio": _round(ratio / 2.0)}, fewer)
    return Candidate("epochs-up", {"replay_ratio": 2 * ratio}, more)


def _round(value: float) -> float:
    """Return a value without the noise of its last binary digits."""
    return float(f"{value:.6g}")


# ------------------------------------------------------------------ the record


@dataclass(frozen=True)
class Rung:
    """One comparison of a search.

    Attributes:
        steps: Environment steps of the rung; members stop after the update that reaches them.
        trained: Environment steps that each member has trained for.
        returns: Mean return of the recent training episodes, by member; None without episodes.
        kept: The members that continue, best first.
    """

    steps: int
    trained: Mapping[str, int]
    returns: Mapping[str, float | None]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class SearchRecord:
    """What is known of a search so far: all that resuming it needs.

    Attributes:
        config: All settings of the defaults, as JSON has them.
        winner: The name of the member that was chosen; None before.
        why: Why it was chosen.
        init_from: The run whose policies all members started from, if any.
    """

    config: Tree
    members: tuple[Candidate, ...]
    rungs: tuple[Rung, ...] = ()
    winner: str | None = None
    why: str = ""
    init_from: str | None = None

    def member(self, name: str) -> Candidate:
        """Return the member of a name."""
        return next(member for member in self.members if member.name == name)

    @property
    def trained_steps(self) -> int:
        """Environment steps that all members trained for, up to the last comparison."""
        latest: dict[str, int] = {}
        for rung in self.rungs:
            latest |= rung.trained
        return sum(latest.values())

    def write(self, run: Run) -> None:
        """Write the record into a run folder, whole or not at all."""
        write_whole(run.folder / FILE, json.dumps(asdict(self), indent=1) + "\n")


def read_record(run: Run) -> SearchRecord | None:
    """Return the record of a run's search; None if the run is not one of a search."""
    path = run.folder / FILE
    try:
        tree: dict[str, Any] = parse_json(read_bytes(path, DOCUMENT))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UsageError(f"{path}: it is not JSON: {error}. Restore it.") from None
    try:
        members = tuple(Candidate(**entry) for entry in tree.pop("members"))
        rungs = tuple(
            Rung(entry["steps"], entry["trained"], entry["returns"], tuple(entry["kept"]))
            for entry in tree.pop("rungs")
        )
        record = SearchRecord(members=members, rungs=rungs, **tree)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: it is not the record of a search: {error!r}.") from None
    # Names of members are those of folders, which a search also deletes.
    known = [member.name for member in record.members]
    used = [name for rung in record.rungs for name in rung.kept]
    used += [] if record.winner is None else [record.winner]
    for name in known:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"{path}: expected a member's name; got {name!r:.80}. Restore it.")
    for name in used:
        if name not in known:
            raise UsageError(f"{path}: expected one of {known}; got {name!r:.80}. Restore it.")
    return record


def base_settings(run: Run) -> Tree:
    """Return the settings that a run's search started from; empty if there was no search."""
    record = read_record(run)
    return {} if record is None else record.config


def is_unfinished(run: Run) -> bool:
    """Return whether a run is that of a search that has not chosen yet."""
    record = read_record(run)
    return record is not None and record.winner is None


def members_folder(run: Run) -> Path:
    """Return the folder of the members' runs."""
    return run.folder / "members"


def show_progress(record: SearchRecord) -> None:
    """Print the table of the last rung."""
    if record.winner is None and record.rungs:
        Console(highlight=False).print(rung_table(record, record.rungs[-1]), "")


def rung_table(record: SearchRecord, rung: Rung) -> Table:
    """Return a table of a rung: member, settings that differ, return, whether it is kept."""
    title = f"after {rung.steps:,} of {record.config['train']['total_steps']:,} steps each"
    table = Table(title=title, box=None, pad_edge=False, header_style="dim", title_justify="left")
    for column in ("member", "settings that differ"):
        table.add_column(column, overflow="fold")
    table.add_column("return", justify="right")
    table.add_column("kept")
    scored = {name: value for name, value in rung.returns.items() if value is not None}
    names = [*sorted(scored, key=lambda name: -scored[name])]
    for name in names + [name for name in rung.returns if name not in scored]:
        value = rung.returns[name]
        table.add_row(
            name,
            record.member(name).describe() or "none",
            "-" if value is None else number(value),
            "yes" if name in rung.kept else "no",
        )
    return table


def describe_choice(record: SearchRecord) -> str:
    """Return what was chosen, why, and what the search cost."""
    assert record.winner is not None
    member, total = record.member(record.winner), record.config["train"]["total_steps"]
    what = "the defaults" if record.winner == DEFAULTS else f"{member.name} ({member.describe()})"
    cost = f"{record.trained_steps:,} training steps, {record.trained_steps / total:.2f} times"
    return f"auto chose {what}: {record.why}. The search took {cost} those of one run."


def write_settings(record: SearchRecord, cfg: Config, path: Path) -> None:
    """Write the chosen settings as TOML for `fugu train ENV --config`."""
    assert record.winner is not None
    reason = f"{record.winner}: {record.member(record.winner).reason}."
    tree: Tree = {name: value for name, value in plain_tree(cfg).items() if name in SECTIONS}
    for name, section in tree.items():
        if isinstance(section, dict):  # TOML lacks None, for which settings have a word
            tree[name] = {k: "none" if value is None else value for k, value in section.items()}
    head = f"# {describe_choice(record)}\n# {reason}\n\n"
    write_whole(path, head + dump_toml({name: tree[name] for name in SECTIONS}))


def write_curves(record: SearchRecord, folder: Path, path: Path) -> None:
    """Draw the mean returns of all members against their steps, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    curves: list[Curve] = []
    for member in record.members:
        label = f"{member.name} (chosen)" if member.name == record.winner else member.name
        try:
            curves.append(
                read_curve(folder / member.name / "metrics.jsonl", "episode_return", label)
            )
        except UsageError:
            continue  # no episode of this member has ended
    if curves:
        draw_curves(curves, "episode_return", path)
