"""One environment of every recipe, and a Game Boy ROM of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fugu.envs.recipes import all_recipes, find_recipe


@dataclass(frozen=True)
class Sample:
    """An environment that stands for its recipe.

    Attributes:
        name: As it is typed; "ROM" stands for the path of one.
        kwargs: Its arguments.
        envs: Copies, half of them in each of two processes.
        slow: Whether 2,000 steps take minutes.
        varies: Whether another seed makes another game of it.
    """

    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    envs: int = 4
    slow: bool = False
    varies: bool = True


SAMPLES = [
    Sample("ALE/Breakout-v5"),
    Sample("nethack"),
    Sample("minihack:Room-5x5"),
    Sample("procgen:coinrun"),
    Sample("minigrid:Empty-Random-5x5"),
    Sample("minigrid:BabyAI-GoToObj"),
    Sample("crafter", slow=True),
    Sample("box2d:LunarLander"),
    Sample("classic_control:CartPole"),
    Sample("toy_text:FrozenLake"),
    Sample("box2d:CarRacing", {"skip": 1}, slow=True),
    Sample("mujoco:HalfCheetah"),
    Sample("velocity:Hopper"),
    Sample("dm_control:cartpole-balance"),
    Sample("vizdoom:Basic"),
    Sample("gameboy:ROM"),
    Sample("retro:Airstriker-Genesis", envs=2, varies=False),
    Sample("pettingzoo:mpe/simple_spread"),
    Sample("pettingzoo:classic/connect_four", varies=False),
    Sample("pettingzoo:butterfly/knights_archers_zombies"),
    Sample("pettingzoo:sisl/pursuit", slow=True),
    Sample("pettingzoo:atari/pong", varies=False),
    Sample("magent2:adversarial_pursuit", {"map_size": 16}),
    Sample("gymnax:CartPole"),
    Sample("craftax:Craftax-Classic-Symbolic", envs=2, slow=True),
    Sample("envpool:Pong"),
]


def param(sample: Sample) -> Any:
    """A parameter of a test that is skipped, with the reason, where the package is absent."""
    recipe = find_recipe(sample.name)
    assert recipe is not None
    absent = pytest.mark.skipif(
        not recipe.installed,
        reason=f'{recipe.package} is absent: pip install "fugu-rl[{recipe.extra}]" {recipe.also}',
    )
    marks = [absent, pytest.mark.slow] if sample.slow else [absent]
    return pytest.param(sample, id=sample.name, marks=marks)


def write_rom(path: Path) -> Path:
    """A game that counts at 0xC000 how often it found the right arrow pressed, and scrolls by it.

    The address 0xC001 holds 1 once it was found pressed 200 times; 0xC002 counts frames, by which
    it scrolls down.
    """
    program = bytes.fromhex(
        "31feff"  # ld sp, fffe
        "af ea00c0 ea01c0 ea02c0"  # [c000], [c001], [c002] = 0
        "3e91 e040 3ee4 e047"  # lcd on, a palette
        "3e20 e000"  # loop: choose the arrows
        "f000 f000 e601"  # read them twice; bit 0 is the right one, 0 if pressed
        "2012"  # not pressed: over to wait
        "fa00c0 3c ea00c0 e043"  # [c000] += 1; scroll x = [c000]
        "fec8 2005"  # not yet 200: over to wait
        "3e01 ea01c0"  # [c001] = 1
        "f044 fe90 20fa"  # wait: until line 144 begins
        "f044 fe90 28fa"  # and is over
        "fa02c0 3c ea02c0 e042"  # [c002] += 1; scroll y = [c002]
        "18cb"  # jr loop
    )
    rom = bytearray(0x8000)
    rom[0x100:0x104] = bytes.fromhex("00c35001")  # nop; jp 0150
    rom[0x134:0x138] = b"FUGU"
    rom[0x14D] = -sum(byte + 1 for byte in rom[0x134:0x14D]) & 0xFF
    rom[0x150 : 0x150 + len(program)] = program
    path.write_bytes(rom)
    return path


def presses(game: Any) -> int:
    """How often the ROM found the arrow pressed; the reward function of its tests."""
    return int(game.memory[0xC000])


def is_over(game: Any) -> bool:
    """Whether the ROM has counted to 200."""
    return bool(game.memory[0xC001])


def named(sample: Sample, folder: Path) -> str:
    """The sample's name, with a ROM's path in it."""
    return sample.name.replace("ROM", str(write_rom(folder / "fugu.gb")))


def install_visitor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave behind what an installer does of a package with a recipe, `visiting`."""
    info = folder / "visiting-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: visiting\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[fugu.recipes]\nvisiting = visiting\n")
    monkeypatch.syspath_prepend(folder)
    all_recipes.cache_clear()
