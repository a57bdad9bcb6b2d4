"""Writes docs/envs: a page for every environment of the suite, from its own description.

    python docs/generate_env_pages.py [--check]

With --check nothing is written, and the exit status is 1 if a page is not what it should be.
Pictures are drawn anew each time pages are written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from learned import read_learned, section

import fugu
from fugu.envs import suite
from fugu.envs.native_env import NativeLibrary, NativeSpec, Setting
from fugu.vector.random_actions import RandomActions

FOLDER = Path(__file__).parent / "envs"
STEPS = 40  # of chance before a picture is taken
TYPES = ("uint8", "int8", "int16", "int32", "int64", "float32")


def page(library: NativeLibrary) -> str:
    """One environment's page."""
    spec = library.spec(library.values({}))
    lines = [f"# {library.name}", "", library.summary, ""]
    lines += [f"![{library.name}](pictures/{library.name}.png)", ""]
    lines += [f"`fugu play {library.name}` plays it, `fugu train {library.name}` learns it.", ""]
    for group, (observation, action) in zip(spec.groups, spec.leaves, strict=True):
        several = len(spec.groups) > 1 or group.num_agents > 1
        if several:
            lines += [f"## {group.num_agents} x {group.name}", ""]
        lines += [*table("Observation", observation), *table("Action", action)]
        if group.num_costs:
            lines += [f"Costs: {group.num_costs} a step, in `batch.costs`.", ""]
    lines += ["## Reward", "", f"{spec.reward[:1].upper()}{spec.reward[1:]}.", ""]
    lines += [*settings_table(library.settings), *told(spec), *keys(spec)]
    lines += section(library.name, "../", read_learned())
    return "\n".join(lines).rstrip() + "\n"


def table(title: str, leaves: list[dict[str, Any]]) -> Iterator[str]:
    """What an observation or an action is made of."""
    yield from (f"**{title}**", "", "| leaf | type | values | meaning |", "|---|---|---|---|")
    for leaf in leaves:
        shape = "".join(f"[{size}]" for size in leaf["shape"])
        name = leaf["name"] or "the whole"
        texts = [text.strip() for text in leaf["text"].split(";")]
        meaning = leaf["text"]
        if len(texts) > 1:
            meaning = ", ".join(f"{i}: {text}" for i, text in enumerate(texts))
        yield f"| {name} | {TYPES[leaf['type']]}{shape} | {values(leaf)} | {meaning} |"
    yield ""


def values(leaf: dict[str, Any]) -> str:
    """The range of a leaf's numbers."""
    if leaf["choices"]:
        return f"0 to {leaf['choices'] - 1}"
    low, high = (f"{leaf[end]:g}" for end in ("low", "high"))
    return f"{low} to {high}" if "inf" not in low + high else "any"


def settings_table(settings: dict[str, Setting]) -> Iterator[str]:
    """What can be set."""
    yield from ("## Settings", "", "| name | initial | range | meaning |", "|---|---|---|---|")
    for setting in settings.values():
        yield (
            f"| `{setting.name}` | {setting.initial:g} | {setting.low:g} to {setting.high:g} | "
            f"{setting.text} |"
        )
    yield ""


def told(spec: NativeSpec) -> Iterator[str]:
    """What its infos hold."""
    names = ["episode_return", "episode_length", *spec.logs]
    yield f"Infos at the end of an episode: {', '.join(f'`{name}`' for name in names)}."
    yield ""


def keys(spec: NativeSpec) -> Iterator[str]:
    """What a person plays with."""
    if spec.keys:
        yield "Keys: " + ", ".join(f"{key.name} ({key.value:g})" for key in spec.keys) + "."
        yield ""


def index() -> str:
    """The list of all, by kind, with pictures."""
    lines = ["# Environments", "", "Each is one C header; `fugu env list` lists them too.", ""]
    for kind, names in suite.KINDS.items():
        lines += [f"## {kind}", "", "| | | |", "|---|---|---|"]
        for name in names:
            library = NativeLibrary.load(suite.find(name) or "")
            picture = f'<img src="pictures/{name}.png" width="120" alt="{name}">'
            lines.append(f"| [{name}]({name}.md) | {picture} | {library.summary} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def picture(name: str) -> Any:
    """The environment after some steps of chance."""
    with fugu.make(name, 1) as vec:
        vec.reset(seed=3)
        players = [RandomActions(group, group.num_agents, i) for i, group in enumerate(vec.groups)]
        best = vec.render()[0]
        for step in range(STEPS):
            batch = vec.recv() if step else None
            rows = [g.rows for g in batch.groups] if batch else list(vec._slab.rows)
            actions = [player.sample(r) for player, r in zip(players, rows, strict=True)]
            vec.send(actions[0] if len(actions) == 1 else tuple(actions))
        ended = vec.recv().infos
        return best if ended else vec.render()[0]


def main() -> int:
    """Write the pages, or check them."""
    names = suite.names()
    listed = {name for names in suite.KINDS.values() for name in names}
    if listed != set(names):
        print(f"KINDS: {sorted(listed ^ set(names))} are listed or there, not both")
        return 1
    pages = {f"{n}.md": page(NativeLibrary.load(suite.find(n) or "")) for n in names}
    pages["index.md"] = index()
    if "--check" in sys.argv:
        old = [n for n, text in pages.items() if (FOLDER / n).read_text() != text]
        print(f"not up to date: {old}" if old else "all pages are up to date")
        return int(bool(old))
    import imageio.v3 as iio

    (FOLDER / "pictures").mkdir(parents=True, exist_ok=True)
    for file, text in pages.items():
        (FOLDER / file).write_text(text)
    for name in names:
        iio.imwrite(FOLDER / "pictures" / f"{name}.png", picture(name))
    print(f"wrote {len(pages)} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
