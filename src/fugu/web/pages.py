"""Pages: one HTML file that holds all it needs, so that it runs from a disk and from any host."""

from __future__ import annotations

import base64
import html
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fugu.core.errors import UsageError
from fugu.core.writing import write_whole
from fugu.envs import suite
from fugu.envs.native_env import NativeEnv
from fugu.envs.resolve import resolve
from fugu.web.module import PolicyFiles, build_module

PARTS = Path(__file__).parent / "page"
STYLES = ("base", "gallery", "player", "agents")
SCRIPTS = ("module", "pictures", "controls", "game", "bars", "agents", "pad", "player", "gallery")
PAGE = "index.html"


@dataclass(frozen=True)
class Page:
    """A page that was written.

    Attributes:
        path: The file.
        module_bytes: Of each environment's module, its policies included.
    """

    path: Path
    module_bytes: Mapping[str, int]


def write_page(
    folder: str | Path,
    env: str,
    policy_c: PolicyFiles | Mapping[str, PolicyFiles] | None = None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    title: str = "",
    note: str = "",
) -> Page:
    """Write a page on which an environment is played, by people and by policies.

    Args:
        folder: Where `index.html` is put.
        env: A native environment: its name, or the path of its library.
        policy_c: `policy.h` and `policy.c` of its agents; by the name of their group if there are
            several.
        env_kwargs: Its settings.
        title: Of the page; the environment's name if not given.
        note: What is said of the policy, such as the run that it comes from.
    """
    made = _native(env, env_kwargs or {})
    policies = _by_group(made, policy_c)
    module = build_module(made, policies)
    game = {**describe(made, policies), "module": _text(module), "note": note}
    shown = title or str(game["title"])
    path = _write(Path(folder), {"title": shown, "kinds": [], "games": [game]})
    return Page(path, {made.library.name: len(module)})


def write_gallery(folder: str | Path, names: Iterable[str] | None = None) -> Page:
    """Write a page with many environments to play: all of the suite, if no names are given."""
    envs = [_native(name, {}) for name in (suite.names() if names is None else names)]
    titles = [env.library.name for env in envs]
    if not titles or len(set(titles)) < len(titles):
        raise UsageError(f"names: given {titles}; allowed: one or more, each of another name.")
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        modules = list(compilers.map(build_module, envs))
    games = [
        {**describe(env, {}), "module": _text(module), "note": ""}
        for env, module in zip(envs, modules, strict=True)
    ]
    kinds = [
        {"title": kind, "games": found}
        for kind, members in suite.KINDS.items()
        if (found := [name for name in members if name in titles])
    ]
    path = _write(Path(folder), {"title": "fugu gallery", "kinds": kinds, "games": games})
    return Page(path, dict(zip(titles, map(len, modules), strict=True)))


def describe(env: NativeEnv, policies: Mapping[str, PolicyFiles]) -> dict[str, Any]:
    """What a page must know of an environment, as JSON has it."""
    spec = env.spec
    if not all(side > 0 for side in spec.size):
        raise UsageError(
            f"env: given {env.library.name!r}, which draws nothing; allowed: an environment that "
            "says the size of its picture with fugu_picture."
        )
    return {
        "name": env.library.name,
        "title": title_of(env.library.name),
        "summary": env.library.summary,
        "reward": spec.reward,
        "size": spec.size,
        "frames": spec.frames,
        "waits": spec.waits_for_a_key,
        "keys": [vars(key) for key in spec.keys],
        "cells": [vars(cells) for cells in spec.cells],
        "groups": [
            {
                "name": group.name,
                "agents": list(group.agents),
                "thinks": group.name in policies,
                "action": [_leaf(leaf) for leaf in action],
            }
            for group, (_, action) in zip(env.groups, spec.leaves, strict=True)
        ],
    }


def title_of(name: str) -> str:
    """A name as people write it.

    >>> title_of("simple_spread"), title_of("game2048")
    ('Simple spread', 'Game 2048')
    """
    return re.sub(r"(?<=[a-z])(?=\d)", " ", name).replace("_", " ").capitalize()


def _leaf(leaf: Mapping[str, Any]) -> dict[str, Any]:
    low, high = (leaf[end] if math.isfinite(leaf[end]) else None for end in ("low", "high"))
    return {**leaf, "shape": list(leaf["shape"]), "low": low, "high": high}


def _native(env: str, settings: Mapping[str, Any]) -> NativeEnv:
    factory = resolve(env, **settings)
    if getattr(factory, "func", None) is not NativeEnv:
        raise UsageError(
            f"env: given {env!r}, which a browser cannot run; allowed: a native environment, such "
            f"as {', '.join(suite.names()[:5])}, or the path of one that was built."
        )
    made: NativeEnv = factory()
    return made


def _by_group(
    env: NativeEnv, policy_c: PolicyFiles | Mapping[str, PolicyFiles] | None
) -> dict[str, PolicyFiles]:
    if policy_c is None:
        return {}
    if isinstance(policy_c, Mapping):
        return dict(policy_c)
    if len(env.groups) > 1:
        names = ", ".join(group.name for group in env.groups)
        raise UsageError(
            f"policy_c: given one policy for {env.library.name!r}; allowed: one for each group of "
            f"its agents, by name: {names}."
        )
    return {env.groups[0].name: policy_c}


def _text(module: bytes) -> str:
    return base64.b64encode(module).decode()


def _write(folder: Path, data: Mapping[str, Any]) -> Path:
    styles = "\n".join((PARTS / f"{name}.css").read_text() for name in STYLES)
    scripts = "\n".join((PARTS / f"{name}.js").read_text() for name in SCRIPTS)
    # Nothing in the data can end the element that holds it.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"title": html.escape(data["title"]), "style": styles, "script": scripts, "data": text}
    page = re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m[1]], (PARTS / "page.html").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PAGE
    write_whole(path, page)
    return path
