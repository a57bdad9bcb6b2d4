"""What a search tells: a table per rung, the choice, `auto.toml`, and the members' curves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fugu.algos.settings import Config
from fugu.core.config import Tree, plain_tree
from fugu.core.errors import UsageError
from fugu.core.toml import dump_toml
from fugu.core.writing import write_whole
from fugu.track.curves import Curve, read_curve
from fugu.track.picture import draw_curves
from fugu.track.text import number
from fugu.training.auto.members import DEFAULTS
from fugu.training.auto.record import Rung, SearchRecord

SECTIONS = ("algo", "env_kwargs", "train", "vec", "policy")  # of auto.toml


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
    tree = plain_tree(cfg)
    lines = [f"# {line}\n" for line in (describe_choice(record), _reason(record))]
    usable = {name: _without_none(tree[name]) for name in SECTIONS}
    write_whole(path, "".join(lines) + "\n" + dump_toml(usable))


def _reason(record: SearchRecord) -> str:
    assert record.winner is not None
    return f"{record.winner}: {record.member(record.winner).reason}."


def _without_none(tree: Tree) -> Tree:
    """Return a section with the word that settings have for None, which TOML lacks."""
    if not isinstance(tree, dict):
        return tree
    return {key: "none" if value is None else value for key, value in tree.items()}


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
