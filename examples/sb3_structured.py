"""Stable-Baselines3 on an environment that it cannot take by itself.

    python examples/sb3_structured.py [--total-steps 60000]

Expedition shows nested dicts, a text and a sequence of variable length, and takes an action that
mixes choices with a continuous number. `to_sb3` offers them as one Dict of leaves, for
`MultiInputPolicy`, and one MultiDiscrete.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro
from expedition import BAG
from gymnasium import Space, spaces
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

import fugu
from fugu.vector import to_sb3

console = Console()


@dataclass(frozen=True)
class Settings:
    """Train Stable-Baselines3's PPO on Expedition."""

    total_steps: int = 60_000
    """Steps of all copies together."""
    num_envs: int = 16
    """Copies of the environment."""
    action_bins: int = 3
    """Values that the effort may have."""
    seed: int = 1
    """Of everything."""


class Show(BaseCallback):
    """A progress bar, and the returns of all episodes."""

    def __init__(self, progress: Progress, total: int) -> None:
        super().__init__()
        self.progress, self.task = progress, progress.add_task("expedition", total=total)
        self.returns: list[float] = []
        self.begun = time.monotonic()

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
        return True

    def _on_rollout_end(self) -> None:
        steps, recent = self.num_timesteps, self.returns[-100:]
        mean = f"return {np.mean(recent):6.2f}" if recent else "no episode yet"
        text = f"expedition  {mean}  {steps / (time.monotonic() - self.begun):,.0f}/s"
        self.progress.update(self.task, completed=steps, description=text)


def table(offered: Space[Any], own: Space[Any]) -> Table:
    """The spaces that Stable-Baselines3 sees."""
    found = Table("leaf", "what Stable-Baselines3 sees", box=None)
    for key, space in offered.items() if isinstance(offered, spaces.Dict) else [("", offered)]:
        found.add_row(key, str(space)[:70])
    found.add_row("[bold]action", str(own))
    return found


def main(cfg: Settings) -> None:
    """Train and say how well it went."""
    torch.set_num_threads(1)  # the networks are small, and the workers need the cores
    limits = {"walker/bag": BAG}
    vector = fugu.make("expedition:Expedition", cfg.num_envs, limits=limits)
    envs = to_sb3(vector, action_bins=cfg.action_bins)
    console.print(table(envs.observation_space, envs.action_space))
    model = PPO(
        "MultiInputPolicy",
        envs,
        n_steps=64,
        batch_size=256,
        n_epochs=4,
        learning_rate=1e-3,
        gamma=0.98,
        seed=cfg.seed,
        device="cpu",
    )
    shown = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(TextColumn("{task.description}"), *shown, console=console) as progress:
        show = Show(progress, cfg.total_steps)
        model.learn(cfg.total_steps, callback=show)
        rate = show.num_timesteps / (time.monotonic() - show.begun)
    envs.close()
    console.print(f"{rate:,.0f} steps/s")
    if not show.returns:
        console.print("mean return: no episode ended; train for longer")
        return
    tenth = max(1, len(show.returns) // 10)
    console.print(
        f"mean return {np.mean(show.returns[-tenth:]):.2f} over the last {tenth} episodes "
        f"({np.mean(show.returns[:tenth]):.2f} over the first)"
    )


if __name__ == "__main__":
    main(tyro.cli(Settings))
