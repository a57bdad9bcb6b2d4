"""Every recipe that is installed: 2,000 steps in processes, and seeds that decide everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kitchen import SAMPLES, Sample, named, param

import fugu
from fugu.envs.recipes import all_recipes, find_recipe
from fugu.vector import Vector
from fugu.vector.random_actions import RandomActions

STEPS = 2_000
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]


def test_every_recipe_has_a_sample() -> None:
    sampled = {getattr(find_recipe(sample.name), "prefix", None) for sample in SAMPLES}
    rest = {"pettingzoo:"}  # of which no family is left that has no recipe of its own
    assert sampled | rest == {recipe.prefix for recipe in all_recipes()}


def make(sample: Sample, folder: Path, backend: Any) -> Vector:
    return fugu.make(
        named(sample, folder),
        sample.envs,
        backend=backend,
        num_workers=2 if backend == "process" else None,
        env_kwargs=sample.kwargs,
        step_timeout=900.0,
        max_restarts=0,
    )


def play(vec: Vector, rounds: int, seed: int) -> list[bytes]:
    """What all rows hold, round by round, when chance plays."""
    players = [RandomActions(g, vec.num_envs * g.num_agents, 0) for g in vec.groups]
    vec.async_reset(seed=seed)
    seen = []
    for _ in range(rounds):
        batch = vec.recv()
        rows = [group.rows for group in batch.groups]
        parts = [(r.observations, r.rewards, r.terminations, r.truncations, r.live) for r in rows]
        seen.append(b"".join(array.tobytes() for part in parts for array in part))
        assert all(np.isfinite(r.rewards).all() for r in rows)
        assert all(r.valid.all() for r in rows)
        chosen = [player.sample(r) for player, r in zip(players, rows, strict=True)]
        vec.send(chosen[0] if len(chosen) == 1 else tuple(chosen))
    vec.recv()
    return seen


@pytest.mark.parametrize("sample", [*map(param, SAMPLES)])
def test_two_thousand_steps_in_processes(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with make(sample, tmp_path, "process") as vec:
        seen = play(vec, STEPS // sample.envs, 1)
        assert not vec.faults
    assert len({*seen}) > 1, "nothing ever changed"
    assert not [*here.iterdir()], "files in the user's folder"


@pytest.mark.parametrize("sample", [*map(param, SAMPLES)])
def test_a_seed_decides_everything(sample: Sample, tmp_path: Path) -> None:
    with make(sample, tmp_path, "process") as vec:
        first = play(vec, 100, 1)
    with make(sample, tmp_path, "process") as vec:
        again, other = play(vec, 100, 1), play(vec, 100, 2)
    assert first == again
    assert (first != other) == sample.varies
