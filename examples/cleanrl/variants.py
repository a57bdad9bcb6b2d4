"""Writes the variants of the plain script: each is a real file, and a few lines are all it changes.

    python examples/cleanrl/variants.py [--check]

With --check nothing is written, and the exit status is 1 if a file is not what it should be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

HERE = Path(__file__).parent
PLAIN = "ppo"

Edit = tuple[str, str]  # what stands in the plain script, once, and what stands there instead

LAST_IMPORT = "from torch.distributions import Categorical\n"
MAKE_ENV = '''def make_env(args: Args) -> gym.Env[Any, Any]:
    """One copy."""
    return gym.make(args.env_id)


'''
COPIES = "    copies = [lambda: make_env(args)] * args.num_envs\n"
VECTOR = 'gym.vector.SyncVectorEnv(copies, autoreset_mode="SameStep")'


def importing(*lines: str) -> Edit:
    """Imports behind the others."""
    return LAST_IMPORT, "\n".join([LAST_IMPORT, *lines, ""])


def registering(package: str) -> Edit:
    """A package whose ids are to be known."""
    place = "import gymnasium as gym\n"
    names = sorted([f"import {package}  # noqa: F401  registers its ids\n", place], key=key_of)
    return place, "".join(names)


def key_of(line: str) -> str:
    """What imports are sorted by."""
    return line.split()[1]


FUGU = importing("import fugu")
BOTH = importing("import fugu", "from fugu.vector import to_gymnasium")
ROOM: tuple[Edit, ...] = (registering("minihack"), ("CartPole-v1", "MiniHack-Room-5x5-v0"))
EMULATED = (
    "return gym.make(args.env_id)",
    "return fugu.emulate(gym.make(args.env_id)).to_gymnasium()",
)
PONG: tuple[Edit, ...] = (
    ("total_timesteps: int = 100_000", "total_timesteps: int = 10_000_000"),
    ("learning_rate: float = 1e-3", "learning_rate: float = 2.5e-4"),
)
ALE = registering("ale_py")
WRAPPED = (
    "    return gym.make(args.env_id)\n",
    "    env = gym.make(args.env_id, frameskip=1)\n"
    "    env = gym.wrappers.AtariPreprocessing(env)\n"
    "    return gym.wrappers.FrameStackObservation(env, 4)\n",
)
GAME = ("CartPole-v1", "ALE/Pong-v5")
FEW = (VECTOR, "to_gymnasium(fugu.make(copies[0], args.num_envs))")
MANY = (
    ("num_envs: int = 8", "num_envs: int = 64"),
    ("num_steps: int = 128", "num_steps: int = 32"),
)
UNMADE = (("import gymnasium as gym\n", ""), (MAKE_ENV, ""), (COPIES, ""))


@dataclass(frozen=True)
class Variant:
    """One of the scripts.

    Attributes:
        name: Of its file.
        says: What it shows, in a line.
        edits: What it changes.
        package: What it needs beside fugu, as it is imported.
    """

    name: str
    says: str
    edits: tuple[Edit, ...]
    package: str

    @property
    def path(self) -> Path:
        """Its file."""
        return HERE / f"{self.name}.py"

    def text(self) -> str:
        """What the file should hold."""
        found = (HERE / f"{PLAIN}.py").read_text()
        for old, new in self.edits:
            if found.count(old) != 1:
                raise SystemExit(f"{self.name}: given {old!r}; allowed: what {PLAIN}.py has once.")
            found = found.replace(old, new)
        return found

    def diff(self) -> list[str]:
        """Its file against the plain script's, line by line."""
        plain = (HERE / f"{PLAIN}.py").read_text().splitlines()
        own = self.path.read_text().splitlines()
        names = f"{PLAIN}.py", self.path.name
        return list(unified_diff(plain, own, *names, n=0, lineterm=""))

    def changed(self) -> tuple[int, int]:
        """Lines that it adds, and lines that it takes away."""
        lines = self.diff()[2:]
        return sum(line[0] == "+" for line in lines), sum(line[0] == "-" for line in lines)


VARIANTS = (
    Variant(
        "minihack_plain",
        "MiniHack, as it is: it fails, since what is seen has ten parts",
        ROOM,
        "minihack",
    ),
    Variant(
        "minihack_emulated",
        "one line changed: `fugu.emulate` makes one row of them",
        (*ROOM, FUGU, EMULATED),
        "minihack",
    ),
    Variant(
        "minihack_fast",
        "one line more: `fugu.make` steps the copies in processes",
        (*ROOM, BOTH, EMULATED, FEW),
        "minihack",
    ),
    Variant(
        "atari_plain",
        "Pong from pixels with the wrappers of Gymnasium, one copy after the other",
        (ALE, GAME, *PONG, WRAPPED),
        "ale_py",
    ),
    Variant(
        "atari_small",
        "the same copies, stepped in processes",
        (ALE, BOTH, GAME, *PONG, WRAPPED, FEW),
        "ale_py",
    ),
    Variant(
        "atari_large",
        "64 copies in the threads of ALE's own vector",
        (
            BOTH,
            GAME,
            *PONG,
            *MANY,
            *UNMADE,
            (VECTOR, 'to_gymnasium(fugu.make(args.env_id, args.num_envs, backend="batch"))'),
        ),
        "ale_py",
    ),
    Variant(
        "atari_envpool",
        "64 copies in the threads of EnvPool",
        (
            BOTH,
            ("CartPole-v1", "envpool:Pong-v5"),
            *PONG,
            *MANY,
            *UNMADE,
            (VECTOR, "to_gymnasium(fugu.make(args.env_id, args.num_envs))"),
        ),
        "envpool",
    ),
)


def stale() -> Iterator[Variant]:
    """Those whose files are not what they should be."""
    for variant in VARIANTS:
        if not variant.path.exists() or variant.path.read_text() != variant.text():
            yield variant


def main() -> int:
    """Write the files, or check them."""
    found = list(stale())
    if "--check" in sys.argv:
        for variant in found:
            print(f"{variant.path.name} is not what {PLAIN}.py and its edits give.")
        return int(bool(found))
    for variant in found:
        variant.path.write_text(variant.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
