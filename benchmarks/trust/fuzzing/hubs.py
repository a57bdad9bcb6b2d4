"""Hostile shared runs: folders, and listings of a Hub that lies."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import fugu.hub.pull as pulling
from fugu.algos.settings import read_config
from fugu.hub.agent import from_hub
from fugu.hub.push import push_to_hub
from fugu.store.run import Run
from fugu.training.session import train
from fuzzing import mutations
from fuzzing.arena import Arena, Files, Odd, read_tree
from fuzzing.checkpoints import changed_file
from fuzzing.runner import Input

USES = ("folder",) * 69 + ("listing",) * 30 + ("agent",)
SUMS = "checksums.json"
NAMES = (
    "../x", "../../x", "../outside/x.json", "/etc/x", "checkpoints/../../x.json",
    "checkpoints/step_1/../../../x.safetensors", "checkpoints/step_1//state.json", "./config.json",
    "config.json/", "CONFIG.JSON", "policy.pkl", "checkpoints/step_1/policy.pt", "league/x.json",
    "", "a/../config.json",
    "checkpoints/step_1/\x00.safetensors", "checkpoints/step_1/a\n.safetensors", "..", ".", "~/x",
    "checkpoints/step_1/\u0430.safetensors", "C:\\x", "..\\..\\x", "checkpoints", "metrics.jsonl\n",
    "checkpoints/step_" + "9" * 30 + "/state.json",
    "checkpoints/step_1/" + "a" * 300 + ".safetensors",
    "checkpoints/step_1/state.json/state.json", "README.md", ".gitattributes", "run.json ",
)  # fmt: skip


class LyingRepository:
    """A repository whose listing is arbitrary."""

    name, commit = "stranger/run", "0" * 40

    def __init__(self, files: Files, folder: Path, sizes: Mapping[str, int]) -> None:
        self._folder, self._files, self._sizes = folder, files, sizes

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the listing."""
        return dict(self._sizes)

    def fetch(self, name: str) -> Path:
        """Return a file with the content, in a cache as that of huggingface_hub."""
        place = self._folder / hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
        content = self._files.get(name, b"")
        place.write_bytes(content if isinstance(content, bytes) else b"")
        return place


class Hubs:
    """A run of cartpole, shared."""

    name = "hub"

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            where = {"folder": Path(folder), "name": "pole"}
            small: dict[str, Any] = {"vec": {"num_envs": 4}, "policy": {"hidden_size": 8}}
            settings = {"total_steps": 256, "horizon": 16}
            train("cartpole", train=settings, run=where, show=False, seed=3, **small)
            place = Path(folder) / "shared"
            push_to_hub(Run(Path(folder) / "pole"), place, episodes=0, video=False)
            shared = read_tree(place)
        self.files = {
            name: data
            for name, data in shared.items()
            if isinstance(data, bytes) and not name.endswith((".png", ".gif", ".mp4"))
        }
        step = next(name for name in self.files if name.endswith("/state.json"))
        self.step = step.removesuffix("state.json")

    def make(self, random: Random, arena: Arena) -> Input:
        """Change files and names; most of the time all checksums agree with that."""
        use, files = random.choice(USES), dict[str, bytes | Odd](self.files)
        for _ in range(random.choice((1, 1, 2))):
            name = random.choice(("config.json", "run.json", *self.files))
            files[name] = changed_file(random, arena, self.files, name)
        if random.random() < 0.85:
            files[f"{self.step}{SUMS}"] = _sums(random, files, self.step)
        if use == "listing":
            name = random.choice(NAMES)
            files[name] = files[random.choice(list(files))]
            if random.random() < 0.3:
                files.pop(random.choice(list(files)))
        elif random.random() < 0.15:
            name = random.choice([name for name in NAMES if _is_plain(name)] + list(files))
            odd = mutations.odd_file(random, arena)
            files[name] = random.choice((mutations.pickled(arena), odd, Odd("folder")))
        if random.random() < 0.85:
            files[SUMS] = _sums(random, files, "")
        more: dict[str, Any] = {"trust": random.random() < 0.2}
        if use == "listing":
            sizes = {name: len(v) for name, v in files.items() if isinstance(v, bytes)}
            for name in random.sample(list(sizes), 1) if random.random() < 0.4 else ():
                sizes[name] = random.choice((*mutations.SIZES, -1, sizes[name] + 1))
            held = {name: v.hex() for name, v in files.items() if isinstance(v, bytes)}
            return Input(use, {}, more | {"sizes": sizes, "files": held})
        files = {name: data for name, data in files.items() if _is_plain(name)}
        return Input(use, _layable(files), more)

    def feed(self, given: Input, arena: Arena) -> None:
        """Pull it, and read what came; or let it act."""
        trust = bool(given.more["trust"])
        if given.use == "agent":
            from_hub(arena.target)
            return
        if given.use == "folder":
            pulled = pulling.pull(arena.target, arena.out / "run", trust=trust)
        else:
            files = {name: bytes.fromhex(text) for name, text in given.more["files"].items()}
            (arena.out / "cache").mkdir()
            repository = LyingRepository(files, arena.out / "cache", given.more["sizes"])
            with mock.patch.object(
                pulling, "open_repository", return_value=nullcontext(repository)
            ):
                pulled = pulling.pull("stranger/run", arena.out / "run", trust=trust)
        run = pulled.run
        _ = run.env, run.created, run.status, run.latest(), run.facts
        read_config(run.config)


def _sums(random: Random, files: Mapping[str, bytes | Odd], prefix: str) -> bytes:
    sums: Any = {
        name.removeprefix(prefix): hashlib.sha256(data).hexdigest()
        for name, data in files.items()
        if isinstance(data, bytes) and name.startswith(prefix) and name.removeprefix(prefix) != SUMS
        and name not in ("README.md", ".gitattributes")
    }  # fmt: skip
    if random.random() < 0.1:
        sums = mutations.mutate_tree(random, sums, (*NAMES, *mutations.TEXTS))
    return mutations.to_json(random, sums)


def _is_plain(name: str) -> bool:
    """Whether a file of that name can be laid out in a folder."""
    parts = name.split("/")
    return all(part.strip(". ") and len(part) < 200 and "\0" not in part for part in parts)


def _layable(files: Mapping[str, bytes | Odd]) -> dict[str, bytes | Odd]:
    """Without files below what is no folder."""
    odd = tuple(f"{name}/" for name in files)
    return {name: data for name, data in files.items() if not name.startswith(odd)}
