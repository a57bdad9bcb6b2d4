"""Hostile datasets: folders of recorded episodes, and Minari's files."""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from random import Random

import numpy as np
from gymnasium import spaces

from fugu.algos.decision_transformer import SequenceSampler
from fugu.data.minari import export_minari, import_minari
from fugu.data.offline import EPISODE, EPISODES, METADATA, Dataset, DatasetWriter, Episode
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout
from fuzzing import mutations
from fuzzing.arena import Arena, Odd, read_tree
from fuzzing.runner import Input

USES = ("read",) * 79 + ("append",) * 20 + ("minari",)


class Datasets:
    """Three short episodes."""

    name = "dataset"

    def __init__(self) -> None:
        box, choice = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
        self.group = AgentGroup("agent", (0,), Layout.of(box), Layout.of(choice))
        with tempfile.TemporaryDirectory() as folder:
            with DatasetWriter(Path(folder) / "data", self.group, "a-game") as writer:
                for steps in (2, 5, 3):
                    writer.add(self.episode(steps))
            files = read_tree(Path(folder) / "data")
            theirs = Path(folder) / "minari"
            export_minari(Dataset(Path(folder) / "data"), "a/b-v0", self.group, folder=theirs)
            minari = read_tree(theirs)
        self.files = {name: data for name, data in files.items() if isinstance(data, bytes)}
        self.minari = {name: data for name, data in minari.items() if isinstance(data, bytes)}

    def episode(self, steps: int) -> Episode:
        """What an agent might do."""
        observations = np.zeros((steps + 1, 3), np.float32)
        actions = np.ones((steps, 1), self.group.action_layout.dtype)
        ends = np.zeros((2, steps), np.bool_)
        ends[0, -1] = True
        return Episode(observations, actions, np.ones(steps, np.float32), *ends)

    def make(self, random: Random, arena: Arena) -> Input:
        """Change files; most of the time the metadata's checksum agrees with that."""
        use = random.choice(USES)
        if use == "minari":
            name = random.choice(list(self.minari))
            data = self.minari[name]
            if name.endswith(".json") and random.random() < 0.8:
                data = mutations.to_json(random, mutations.mutate_tree(random, json.loads(data)))
            else:
                data = mutations.mutate_bytes(random, data)
            return Input(use, {**self.minari, name: data})
        files = dict[str, bytes | Odd](self.files)
        metadata = json.loads(self.files[METADATA])
        for _ in range(random.choice((1, 1, 2))):
            name = random.choice((METADATA, METADATA, EPISODES, *self.files))
            data = self.files[name]
            if name == METADATA:
                metadata = mutations.mutate_tree(random, metadata)
                files[name] = mutations.to_json(random, metadata)
                if random.random() < 0.2:
                    files[name] = mutations.mutate_bytes(random, data)
            elif name == EPISODES and random.random() < 0.5:
                files[name] = _table(random, data)
            else:
                files[name] = mutations.mutate_npy(random, data, arena)
        table = files[EPISODES]
        if random.random() < 0.7 and isinstance(table, bytes) and isinstance(metadata, dict):
            header = len(self.files[EPISODES]) - 3 * EPISODE.itemsize
            metadata["checksum"] = zlib.crc32(table[header:])
            files[METADATA] = mutations.to_json(random, metadata)
        if random.random() < 0.06:
            files[random.choice(list(files))] = mutations.odd_file(random, arena)
        if random.random() < 0.05:
            files.pop(random.choice(list(files)))
        return Input(use, files)

    def feed(self, given: Input, arena: Arena) -> None:
        """Read it, draw from it, or write more into it."""
        match given.use:
            case "read":
                data = Dataset(arena.target)
                data.check(self.group)
                for episode in data:
                    assert len(episode.observations) == len(episode) + 1
                drawn = SequenceSampler(data, 4).draw(8, np.random.default_rng(1))
                assert drawn.observations.shape[:2] == (8, 4)
                data.verify()
            case "append":
                with DatasetWriter(arena.target, self.group, "a-game") as writer:
                    writer.add(self.episode(2))
                Dataset(arena.target).check(self.group)
            case "minari":
                import_minari(arena.target, arena.out / "data")


def _table(random: Random, data: bytes) -> bytes:
    """Lines of episodes that begin, last or count otherwise."""
    size = 3 * EPISODE.itemsize
    lines = np.frombuffer(data[-size:], EPISODE).copy()
    for _ in range(random.choice((1, 2))):
        field = random.choice(("start", "length", "return"))
        values = (*range(-2, 12), 2**31, 2**62, -(2**63), 2**63 - 1)
        lines[field][random.randrange(3)] = random.choice(values)
    return data[:-size] + lines.tobytes()
