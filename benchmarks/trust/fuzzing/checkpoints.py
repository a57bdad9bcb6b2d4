"""Hostile checkpoints, and runs that hold them."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from fugu.algos.settings import read_config
from fugu.store.checkpoint import load_checkpoint, read_state, verify_checkpoint
from fugu.store.run import Run
from fugu.training.evaluate import load_policies
from fugu.training.session import train
from fugu.training.trainer import Trainer
from fuzzing import mutations
from fuzzing.arena import Arena, Odd, read_tree
from fuzzing.runner import Input

USES: tuple[str, ...] = ("load",) * 60 + ("state",) * 15 + ("verify",) * 13 + ("newest",) * 10
USES += ("evaluate", "resume")
SUMS, STATE = "checksums.json", "state.json"
TENSORS = ("F32", "F64", "I64", "BOOL", "U8", "BF16", "F8_E5M2", "C64", "X", "", "F4", None, 3)


class Checkpoints:
    """A run of cartpole with one small checkpoint."""

    name = "checkpoint"

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"total_steps": 256, "horizon": 16}
            where = {"folder": Path(folder), "name": "pole"}
            small: dict[str, Any] = {"vec": {"num_envs": 4}, "policy": {"hidden_size": 8}}
            train("cartpole", train=settings, run=where, show=False, seed=3, **small)
            files = read_tree(Path(folder) / "pole")
        self.run = {name: data for name, data in files.items() if isinstance(data, bytes)}
        self.step = next(name for name in self.run if name.endswith(STATE)).removesuffix(STATE)
        self.files = {
            name.removeprefix(self.step): data
            for name, data in self.run.items()
            if name.startswith(self.step)
        }

    def make(self, random: Random, arena: Arena) -> Input:
        """Change a file or two; most of the time the checksums agree with that."""
        use, files = random.choice(USES), dict[str, bytes | Odd](self.files)
        for _ in range(random.choice((1, 1, 1, 2))):
            name = random.choice([STATE, *self.files])
            files[name] = changed_file(random, arena, self.files, name)
        if random.random() < 0.1:
            name = random.choice(("x.safetensors", "evil.pkl", "policy_0.pt", *mutations.TEXTS))
            if _is_name(name):
                files[name] = mutations.pickled(arena)
        if random.random() < 0.05:
            files[random.choice(list(files))] = mutations.odd_file(random, arena)
        if random.random() < 0.03:
            files[random.choice(list(files))] = Odd("hard link", str(arena.work / "neighbour.json"))
        if random.random() < 0.85:
            files[SUMS] = _sums(random, files)
        if use in ("newest", "evaluate", "resume"):
            rest = [name for name in self.run if not name.startswith(self.step)]
            files = {f"{self.step}{name}": data for name, data in files.items()}
            files |= {name: self.run[name] for name in rest}
        return Input(use, files)

    def feed(self, given: Input, arena: Arena) -> None:
        """Read it."""
        match given.use:
            case "load":
                load_checkpoint(arena.target)
            case "state":
                read_state(arena.target)
            case "verify":
                verify_checkpoint(arena.target)
            case "newest":
                run = Run(arena.target)
                _, newest = run.best(), run.latest()
                if newest is not None:
                    load_checkpoint(newest)
            case "evaluate":
                load_policies(Run(arena.target))
            case "resume":
                run = Run(arena.target)
                newest = run.latest()
                if newest is not None:
                    trainer = Trainer(read_config(run.config))
                    try:
                        trainer.restore(load_checkpoint(newest))
                        trainer.update()
                    finally:
                        trainer.close()


def changed_file(random: Random, arena: Arena, files: Mapping[str, bytes], name: str) -> bytes:
    """One of the files of a run, as its kind can be changed."""
    data, chance = files[name], random.random()
    if chance < 0.02:
        return mutations.pickled(arena)
    if name.endswith(".json") and chance < 0.7:
        return mutations.to_json(random, mutations.mutate_tree(random, json.loads(data)))
    if name.endswith(".safetensors") and chance < 0.7:
        return mutate_safetensors(random, data)
    return mutations.mutate_bytes(random, data, list(files.values()))


def mutate_safetensors(random: Random, data: bytes) -> bytes:
    """A file of tensors with another header: lengths, shapes, dtypes, offsets, names."""
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    name = random.choice(list(header))
    match random.randrange(8):
        case 0 if isinstance(header[name], dict) and "dtype" in header[name]:
            header[name]["dtype"] = random.choice(TENSORS)
        case 1 if isinstance(header[name], dict) and "shape" in header[name]:
            header[name]["shape"] = random.choice(
                ([], [0], [-1], [2**62, 4], [2**32, 2**32], [1] * 100, [2**40], "x", None, [1.5])
            )
        case 2 if isinstance(header[name], dict) and "data_offsets" in header[name]:
            header[name]["data_offsets"] = [random.choice(mutations.SIZES) for _ in range(2)]
        case 3:
            header[random.choice(mutations.TEXTS)] = header.pop(name)
        case 4:
            header.pop(name)
        case 5:
            header["__metadata__"] = mutations.odd_value(random)
        case 6:
            body = mutations.mutate_bytes(random, body)
        case _:
            header = mutations.mutate_tree(random, header)
    text = mutations.to_json(random, header)
    size = random.choice((len(text),) * 9 + mutations.SIZES[:3] + mutations.SIZES[-3:])
    return struct.pack("<Q", size) + text + body


def _sums(random: Random, files: dict[str, bytes | Odd]) -> bytes:
    """Checksums that agree with the files, or nearly so."""
    sums: Any = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in files.items()
        if isinstance(data, bytes) and name != SUMS
    }
    if random.random() < 0.15:
        sums = mutations.mutate_tree(random, sums)
    return mutations.to_json(random, sums)


def _is_name(name: str) -> bool:
    """Whether a file can be called so."""
    return len(name) < 200 and name.isprintable() and "/" not in name and name.strip(". ") != ""
