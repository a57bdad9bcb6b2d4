"""A tour of emulation: a structured observation, its flat bytes, and the tensors a policy sees.

    python examples/emulation_tour.py [--env nethack|expedition] [--steps 2000]

It plays NetHack when `nle` is installed (`pip install "fugu-rl[nethack]"`), else the environment
of `expedition.py` beside it.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
import tyro
from expedition import BAG, Expedition
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.progress import track
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import fugu
from fugu.envs.wrappers import SeededNetHack
from fugu.policies import unpack
from fugu.spaces import Leaf

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
console = Console()


@dataclass(frozen=True)
class Tour:
    """See what emulation does."""

    env: Literal["auto", "nethack", "expedition"] = "auto"
    """Which environment to tour; auto is NetHack if it is installed."""
    steps: int = 2_000
    """Random steps to play at the end."""
    seed: int = 7
    """Of everything."""


def main(cfg: Tour) -> None:
    """Show it all."""
    source, limits = make(cfg.env)
    witness = Witness(source)
    env = fugu.emulate(witness, limits=limits)
    env.reset(cfg.seed)
    (rows,) = env.buffers
    layout = env.observation_layout

    console.rule("[bold]1. What the environment gives: a tree")
    value = layout.unpack(rows.observations[0])
    console.print(show_value(value))
    screen = value.get("tty_chars") if isinstance(value, dict) else None
    if screen is not None:
        text = "\n".join(bytes(line).decode("latin-1").rstrip() for line in screen)
        console.print(Panel(Text(text.strip("\n")), title="what a person sees", expand=False))

    console.rule("[bold]2. What fugu stores: one flat row")
    console.print(
        f"{len(layout.leaves)} leaves become [bold]{layout.size:,} x {layout.dtype}[/bold], "
        f"{layout.nbytes:,} bytes, each leaf at a fixed, aligned place:"
    )
    console.print(Columns([layout_table(layout.leaves), hex_panel(layout, rows.observations[0])]))

    console.rule("[bold]3. What a policy sees: tensors, views of the same bytes")
    batch = torch.from_numpy(np.repeat(rows.observations, 32, axis=0))
    console.print(tensor_table(unpack(layout, batch)))

    console.rule("[bold]4. It comes back exactly as it was")
    play(env, witness, cfg)
    env.close()


def make(name: str) -> tuple[gymnasium.Env[Any, Any], dict[str, int] | None]:
    """The environment of the tour and the limits of its sequences."""
    if name != "expedition":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import nle  # noqa: F401

                return SeededNetHack(gymnasium.make("NetHackScore-v0")), None
        except ImportError:
            if name == "nethack":
                raise SystemExit(
                    'NetHack is not installed: pip install "fugu-rl[nethack]"'
                ) from None
            console.print("NetHack is not installed; this is fugu's own Expedition.")
    return Expedition(), {"walker/bag": BAG}


def show_value(value: Any, name: str = "observation", tree: Tree | None = None) -> Tree:
    """A nested value as a tree."""
    if isinstance(value, dict | tuple):
        branch = Tree(f"[bold]{name}") if tree is None else tree.add(f"[bold]{name}")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            show_value(item, str(key), branch)
        return branch
    label = Text(f"{name}  ")
    if isinstance(value, np.ndarray):
        label.append(f"{value.dtype}{list(value.shape)}  ", "cyan")
        label.append(np.array2string(value.reshape(-1)[:8], threshold=8)[:60], "dim")
    else:
        label.append(f"{type(value).__name__}  ", "cyan")
        label.append(repr(value), "dim")
    return Tree(label) if tree is None else tree.add(label)


def layout_table(leaves: tuple[Leaf, ...]) -> Table:
    """Where each leaf stands."""
    table = Table("leaf", "dtype", "shape", "offset", "bytes", title="the layout", box=None)
    for i, leaf in enumerate(leaves):
        shape = "x".join(map(str, leaf.shape)) or "one"
        row = (leaf.path, str(leaf.dtype), shape, f"{leaf.offset:,}", f"{leaf.nbytes:,}")
        table.add_row(*row, style=COLOURS[i % len(COLOURS)])
    return table


def hex_panel(layout: fugu.Layout, row: np.ndarray, first: int = 8, width: int = 8) -> Panel:
    """The first bytes of each leaf, in its colour."""
    text, raw = Text(), row.view(np.uint8)
    for i, leaf in enumerate(layout.leaves):
        data = raw[leaf.offset : leaf.offset + min(first, leaf.nbytes)]
        text.append(f"{leaf.offset:>7} ", "dim")
        more = " ..." if leaf.nbytes > first else ""
        text.append(" ".join(f"{b:02x}" for b in data) + more + "\n", COLOURS[i % len(COLOURS)])
    return Panel(text, title="its bytes", expand=False)


def tensor_table(tree: Any) -> Table:
    """The torch views of a batch of 32 rows."""
    table = Table("leaf", "dtype", "shape", "share memory", title="unpack(layout, batch)", box=None)

    def add(item: Any, path: str) -> None:
        if isinstance(item, torch.Tensor):
            shape = "x".join(map(str, item.shape))
            table.add_row(path, str(item.dtype), shape, "yes" if item._is_view() else "no")
            return
        for key, child in item.items() if isinstance(item, dict) else enumerate(item):
            add(child, f"{path}/{key}" if path else str(key))

    add(tree, "")
    return table


class Witness(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Remembers what the environment showed last."""

    def reset(self, **arguments: Any) -> Any:
        """Reset and remember."""
        result = self.env.reset(**arguments)
        self.seen = result[0]
        return result

    def step(self, action: Any) -> Any:
        """Step and remember."""
        result = self.env.step(action)
        self.seen = result[0]
        return result


def play(env: Any, witness: Witness, cfg: Tour) -> None:
    """Random steps; each row is compared with what the environment itself showed."""
    (rows,), layout = env.buffers, env.observation_layout
    witness.action_space.seed(cfg.seed)
    packing, episodes, returns = 0.0, 0, []
    scratch = layout.zeros()
    for _ in track(range(cfg.steps), "playing", console=console):
        env.action_layout.pack(witness.action_space.sample(), rows.actions[0])
        env.step()
        start = time.perf_counter()
        layout.pack(witness.seen, scratch)
        packing += time.perf_counter() - start
        value = layout.unpack(rows.observations[0])
        if not same(value, witness.seen) or scratch.tobytes() != rows.observations[0].tobytes():
            raise SystemExit("a row did not come back as it was")
        for info in env.infos:
            episodes += 1
            returns.append(info["episode_return"])
    micros = packing / cfg.steps * 1e6
    mean = f", mean return {np.mean(returns):.2f}" if returns else ""
    console.print(
        f"[green]{cfg.steps:,} steps, {episodes} episodes{mean}: every row came back exactly.[/] "
        f"Packing took {micros:.1f} microseconds a step, {layout.nbytes / micros / 1e3:.1f} GB/s."
    )


def same(ours: Any, theirs: Any) -> bool:
    """Whether two nested values are equal."""
    if isinstance(theirs, dict):
        return all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return bool(np.array_equal(ours, theirs))


if __name__ == "__main__":
    main(tyro.cli(Tour))
