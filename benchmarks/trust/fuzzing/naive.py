"""The control: a reader that trusts its files, in which everything must be found."""

from __future__ import annotations

import ctypes
import json
import pickle
from pathlib import Path
from random import Random

from fuzzing import mutations
from fuzzing.arena import Arena, Odd
from fuzzing.runner import Input

USES: tuple[str, ...] = (
    ("pickle",) * 30 + ("unpack",) * 30 + ("settings",) * 30 + ("length",) * 7 + ("native",) * 2
)
USES += ("wait",)
SETTINGS = {"env": "cartpole", "train": {"steps": 100}, "seed": 1}


class Naive:
    """Does what nobody should."""

    name = "naive"

    def make(self, random: Random, arena: Arena) -> Input:
        """Something that it falls for."""
        use = random.choice(USES)
        match use:
            case "pickle":
                return Input(use, {"given": mutations.pickled(arena)})
            case "unpack":
                return Input(use, {}, {"names": [random.choice(("x", "../../x", "../outside/x"))]})
            case "wait":
                return Input(use, {"given": Odd("pipe")})
            case "length" | "native":
                size = random.choice((64, 1 << 30, 1 << 40))
                return Input(use, {"given": size.to_bytes(8, "little")})
        tree = mutations.mutate_tree(random, SETTINGS)
        return Input(use, {"given": mutations.to_json(random, tree)})

    def feed(self, given: Input, arena: Arena) -> None:
        """Read it, without a thought."""
        path = arena.target / "given"
        match given.use:
            case "pickle":
                pickle.loads(path.read_bytes())
            case "unpack":
                for name in given.more["names"]:
                    Path(arena.target / name).write_text("mine")
            case "wait":
                path.read_bytes()
            case "length":
                room = bytearray(int.from_bytes(path.read_bytes(), "little"))
                room[::4096] = b"x" * len(room[::4096])
            case "native":
                ctypes.string_at(int.from_bytes(path.read_bytes(), "little"), 1)
            case "settings":
                tree = json.loads(path.read_bytes())
                print(tree["train"]["steps"] + tree["seed"], tree["env"].lower())
