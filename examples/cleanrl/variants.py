"""Write the variants of the plain script: each is a real file that differs from it by a few lines.

    python examples/cleanrl/variants.py [--check]

With --check, write nothing and exit with status 1 if a file is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

HERE = Path(__file__).parent
PLAIN = "ppo"

Edit = tuple[str, str]  # a text that the plain script has once, and its replacement

LAST_IMPORT = "from torch.distributions import Categorical\n"
MAKE_ENV = '''def make_env(args: Args) -> gym.Env[Any, Any]:
    """Make one copy of the environment."""
    return gym.make(args.env_id)


'''
COPIES = "    copies = [lambda: make_env(args)] * args.num_envs\n"
VECTOR = 'gym.vector.SyncVectorEnv(copies, autoreset_mode="SameStep")'


def importing(*lines: str) -> Edit:
    """Add imports after the others."""
    return LAST_IMPORT, "\n".join([LAST_IMPORT, *lines, ""])


def registering(package: str) -> Edit:
    """Import a package that registers its environments."""
    place = "import gymnasium as gym\n"
    names = sorted([f"import {package}  # noqa: F401  registers its ids\n", place], key=key_of)
    return place, "".join(names)


def key_of(line: str) -> str:
    """Return the module that an import is sorted by."""
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
    """A script that differs from the plain one by a few edits.

    Attributes:
        name: Name of the file, without `.py`.
        description: What the script shows, in one line.
        edits: Changes to the plain script.
        package: Package that it needs besides fugu, as it is imported.
    """

    name: str
    description: str
    edits: tuple[Edit, ...]
    package: str

    @property
    def path(self) -> Path:
        """Path of the script."""
        return HERE / f"{self.name}.py"

    def text(self) -> str:
        """Return the text of the script: the plain one with the edits."""
        found = (HERE / f"{PLAIN}.py").read_text()
        for old, new in self.edits:
            if found.count(old) != 1:
                raise SystemExit(
                    f"{self.name}: expected a text that {PLAIN}.py has once; got {old!r}."
                )
            found = found.replace(old, new)
        return found

    def diff(self) -> list[str]:
        """Return the unified diff from the plain script."""
        plain = (HERE / f"{PLAIN}.py").read_text().splitlines()
        own = self.path.read_text().splitlines()
        names = f"{PLAIN}.py", self.path.name
        return list(unified_diff(plain, own, *names, n=0, lineterm=""))

    def changed(self) -> tuple[int, int]:
        """Return the numbers of added and removed lines."""
        lines = self.diff()[2:]
        return sum(line[0] == "+" for line in lines), sum(line[0] == "-" for line in lines)


VARIANTS = (
    Variant(
        "minihack_plain",
        "MiniHack unchanged: it fails, since an observation has ten parts",
        ROOM,
        "minihack",
    ),
    Variant(
        "minihack_emulated",
        "one line changed: `fugu.emulate` packs the parts into one row",
        (*ROOM, FUGU, EMULATED),
        "minihack",
    ),
    Variant(
        "minihack_fast",
        "one more line: `fugu.make` steps the copies in processes",
        (*ROOM, BOTH, EMULATED, FEW),
        "minihack",
    ),
    Variant(
        "atari_plain",
        "Pong from pixels with the wrappers of Gymnasium, one copy after another",
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
    """Yield the variants whose files are missing or out of date."""
    for variant in VARIANTS:
        if not variant.path.exists() or variant.path.read_text() != variant.text():
            yield variant


def main() -> int:
    """Write the scripts, or check them."""
    found = list(stale())
    if "--check" in sys.argv:
        for variant in found:
            print(f"{variant.path.name} is out of date: run examples/cleanrl/variants.py.")
        return int(bool(found))
    for variant in found:
        variant.path.write_text(variant.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
