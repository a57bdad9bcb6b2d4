"""Hostile settings: TOML, flags, INI files, and what run folders say of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from fugu.algos.registry import algorithm_names
from fugu.algos.settings import Config, read_config
from fugu.cli.convert_config import ConvertConfig
from fugu.cli.run_facts import details_of, show_details
from fugu.cli.runs import Runs
from fugu.core.config import from_flags, read_toml, to_tree
from fugu.core.toml import dump_toml, write_table
from fugu.store import values
from fugu.store.run import Run
from fugu.track.curves import read_curve
from fugu.training.config import resolve_config
from fuzzing import mutations
from fuzzing.arena import Arena, Odd
from fuzzing.runner import Input

USES: tuple[str, ...] = (
    ("toml",) * 40 + ("flags",) * 20 + ("run",) * 25 + ("table",) * 8 + ("ini",) * 5
)
USES += ("show", "list")
LITERALS = (
    "nan", "inf", "-inf", "1e400", "9" * 500, "0x" + "f" * 200, "true", "''", '"\\uD800"',
    "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "[]", "{}", "[1, 'a', []]",
    "{a = {b = 1}}", "'''x", "-0",
    "[" * 3000, "[" * 3000 + "]" * 3000, "{a=" * 2000, '"' + "a" * 9000 + '"', "1_000", "0b2", "",
)  # fmt: skip
INI = """[base]
package = ocean
env_name = puffer_breakout
[train]
total_timesteps = 1000
gae_lambda = 0.9
learning_rate = 0.01
[env]
frameskip = 4
[sweep.train.learning_rate]
distribution = log_normal
min = 0.0001
mean = 0.01
max = 0.1
scale = 0.5
"""
STATUS = {"status": "running", "process": 1, "host": "here", "time": 1.5e9}
FACTS = {"env": "cartpole", "created": 1.5e9, "engines": ["torch"]}
METRICS = [{"step": n, "seconds": 0.5 * n, "episode_return": 1.5, "loss": None} for n in range(4)]


class Configs:
    """The settings of all algorithms, as files and flags."""

    name = "config"

    def __init__(self) -> None:
        self.trees = [
            _short(_plain(to_tree(Config(env="cartpole", algo=a)))) for a in algorithm_names()
        ]
        self.tomls = [dump_toml(tree).encode() for tree in self.trees]
        sections = [(k, v) for tree in self.trees for k, v in tree.items() if isinstance(v, dict)]
        self.names = sorted({f"{section}.{key}" for section, inner in sections for key in inner})

    def make(self, random: Random, arena: Arena) -> Input:
        """A file of some kind, or flags."""
        use = random.choice(USES)
        if use == "flags":
            return Input(use, {}, {"flags": self._flags(random)})
        if use in ("run", "show", "list"):
            return Input(use, self._run(random, arena))
        if use == "ini":
            return Input(use, {"given.ini": _change_text(random, arena, INI.encode(), self.tomls)})
        return Input(use, {"given.toml": self._toml(random, arena)})

    def _toml(self, random: Random, arena: Arena) -> bytes | Odd:
        chance = random.random()
        if chance < 0.01:
            return mutations.odd_file(random, arena)
        if chance < 0.3:
            tree = mutations.mutate_tree(random, random.choice(self.trees))
            try:
                return dump_toml(tree).encode("utf-8", "surrogatepass")
            except Exception:  # what TOML has no words for
                return mutations.to_json(random, tree)
        return _change_text(random, arena, random.choice(self.tomls), self.tomls)

    def _flags(self, random: Random) -> list[str]:
        flags = []
        for _ in range(random.choice((1, 2, 3, 6))):
            name = random.choice(self.names)
            if random.random() < 0.2:
                name = mutations.mutate_bytes(random, name.encode()).decode("latin1")
            if random.random() < 0.2:
                name += random.choice((".x", ".", "..", ".no_x", "." + name))
            value = str(mutations.odd_value(random))
            both = ([f"--{name}", value], [f"--{name}={value}"], [f"--{name}"], [value])
            flags += random.choice(both)
        return flags

    def _run(self, random: Random, arena: Arena) -> dict[str, bytes | Odd]:
        """A run's folder."""
        lines = [json.dumps(mutations.mutate_tree(random, line)) for line in METRICS]
        files: dict[str, bytes | Odd] = {
            "run.json": values.dump(FACTS),
            "status.json": values.dump(STATUS),
            "config.json": json.dumps(random.choice(self.trees)).encode(),
            "metrics.jsonl": "\n".join(lines).encode("utf-8", "replace") + b"\n",
        }
        for name, data in random.sample(list(files.items()), random.choice((1, 2))):
            assert isinstance(data, bytes)
            if name == "metrics.jsonl" or random.random() < 0.3:
                files[name] = _change_text(random, arena, data, self.tomls)
            else:
                tree = mutations.mutate_tree(random, json.loads(data))
                files[name] = mutations.to_json(random, tree)
        if random.random() < 0.3:
            files["config.toml"] = self._toml(random, arena)
        if random.random() < 0.03:
            files[random.choice(list(files))] = mutations.odd_file(random, arena)
        return files

    def feed(self, given: Input, arena: Arena) -> None:
        """Read it."""
        match given.use:
            case "toml":
                resolve_config("cartpole", files=(arena.target / "given.toml",))
            case "flags":
                tree, _ = from_flags(given.more["flags"])
                resolve_config("cartpole", overrides=tree)
            case "table":
                write_table(arena.target / "given.toml", "vec", {"num_envs": 3})
                read_toml(arena.target / "given.toml")
            case "ini":
                ConvertConfig(arena.target / "given.ini", arena.out / "made.toml").run()
            case "run":
                _read_run(Run.open(arena.target))
            case "show":
                run = Run.open(arena.target)
                show_details(run, details_of(run, "episode_return"))
            case "list":
                Runs(root=str(arena.work)).run()


def _read_run(run: Run) -> None:
    _ = run.alive, run.process, run.latest()
    json.dumps(details_of(run, "episode_return"), default=str)
    read_config(run.config)
    read_curve(run.metrics_path, "episode_return", run.name)


def _change_text(random: Random, arena: Arena, data: bytes, others: list[bytes]) -> bytes:
    chance = random.random()
    if chance < 0.01:
        return mutations.pickled(arena)
    if chance < 0.5:
        return mutations.mutate_bytes(random, data, others)
    lines = data.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(lines))
        key, equals, _ = lines[place].partition(b"=")
        match random.randrange(4):
            case 0 if equals:
                lines[place] = key + b"= " + random.choice(LITERALS).encode()
            case 1:
                lines.insert(random.randrange(len(lines)), lines[place])
            case 2:
                opening = random.choice(("[a", "[[train]]", "[train.x]", "[]", "a.b = 1", "x" * 9))
                lines.insert(place, opening.encode())
            case _:
                text = random.choice(mutations.TEXTS).encode("utf-8", "surrogatepass")
                lines[place] = key + b"= '" + text + b"'"
    return b"\n".join(lines)


def _short(tree: dict[str, Any]) -> dict[str, Any]:
    """A few settings of each section."""
    return {
        name: dict(list(value.items())[:6]) if isinstance(value, dict) else value
        for name, value in tree.items()
    }


def _plain(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    return tree if tree is None or isinstance(tree, bool | int | float | str) else str(tree)
