"""Copies that step at once behind the vector's contract."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import visiting
from kitchen import install_visitor

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.envs.recipes import all_recipes
from fugu.vector import Vector, WorkerError
from fugu.vector.shared_buffers import SharedBuffers

ROWS = ("observations", "rewards", "terminations", "truncations", "live", "valid", "final")


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install_visitor(tmp_path, monkeypatch)
    yield
    all_recipes.cache_clear()


def run(vec: Vector, rounds: int = 60) -> list[Any]:
    """Rows and infos of each environment in turn, when chance plays."""
    choices = [np.random.default_rng(env).integers(0, 3, rounds) for env in range(vec.num_envs)]
    seen: list[list[Any]] = [[] for _ in range(vec.num_envs)]
    vec.async_reset(seed=5)
    for _ in range(rounds * vec.num_envs // vec.batch_size):
        batch = vec.recv()
        for i, env in enumerate(batch.env_ids.tolist()):
            row = {name: getattr(batch, name)[i].tobytes() for name in ROWS}
            if not (batch.terminations[i] or batch.truncations[i]):
                del row["final"]
            seen[env].append((row, batch.infos.get(env)))
        envs = batch.env_ids
        vec.send([choices[env][len(seen[env]) - 1] for env in envs], batch.agent_ids)
    return seen


@pytest.mark.parametrize("size", [6, 3, 2, 1])
def test_all_backends_give_the_same_rows(size: int) -> None:
    with fugu.make("visiting:counter", 6, backend="serial") as vec:
        expected = run(vec)
    with fugu.make("visiting:counter", 6, batch_size=size) as vec:
        assert (vec.backend, vec.num_workers) == ("batch", 6 // size)
        assert run(vec) == expected
    infos = [info for env in expected for _, info in env if info]
    assert {info["episode_length"] for (info,) in infos} >= {9}, "none was cut off"
    assert {info["episode_return"] for (info,) in infos} >= {7.0, 8.0}
    assert {info["luck"] for (info,) in infos} <= {float(i) for i in range(7)}


def test_processes_give_the_same_rows() -> None:
    with fugu.make("visiting:counter", 4, batch_size=2) as vec:
        expected = run(vec)
    with fugu.make("visiting:counter", 4, backend="process", num_workers=2) as vec:
        assert run(vec) == expected


def test_rows_are_written_where_they_are_read() -> None:
    batch = visiting.batch("", 3, 1)
    rows = SharedBuffers(batch.groups, 3, 0).rows[0]
    batch.bind(rows)
    batch.reset([1, 2, 3])
    rows.actions[:] = 2
    batch.step()
    seen = batch.groups[0].observation_layout.views(rows.observations)
    assert seen["place"].tolist() == [[2, 0]] * 3
    assert seen["luck"].tolist() == [1, 2, 3]


def test_reset_and_step() -> None:
    with fugu.make("visiting", 3, env_kwargs={"goal": 4}) as vec:
        vec.reset(seed=1)
        _, rewards, terminations, _, infos = vec.step([2, 1, 0])
        assert (rewards.tolist(), terminations.any(), dict(infos)) == ([2, 1, 0], False, {})
        _, _, terminations, _, infos = vec.step([2, 1, 0])
        assert terminations.tolist() == [True, False, False]
        assert infos[0][0]["episode_return"] == 4.0
        vec.reset()  # in the middle of episodes
        *_, infos = vec.step([2, 2, 2])
        assert not infos


def test_wrong_actions_are_refused_before_anything_steps() -> None:
    with fugu.make("visiting:counter", 2) as vec:
        vec.reset(seed=1)
        for wrong in ([0, 3], [-1, 0]):
            with pytest.raises(ActionError, match="0 to 2"):
                vec.step(wrong)
        _, rewards, *_ = vec.step([1, 2])
        assert rewards.tolist() == [1, 2]
    with fugu.make("visiting:counter", 1, backend="serial", max_restarts=0) as vec:
        vec.reset(seed=1)
        with pytest.raises(ActionError, match="0 to 2"):
            vec.step([3])


def test_copies_that_fail_are_an_error() -> None:
    with fugu.make("visiting:counter", 4, batch_size=2, env_kwargs={"fails_at": 3}) as vec:
        with pytest.raises(WorkerError, match="the device is gone"):
            run(vec)
        with pytest.raises(WorkerError, match="the device is gone"):
            vec.async_reset(seed=1)


def test_copies_that_stall_are_an_error() -> None:
    with fugu.make("visiting:counter", 2, env_kwargs={"sleeps": 3.0}, step_timeout=0.2) as vec:
        vec.reset(seed=1)
        with pytest.raises(WorkerError, match=r"stalled.*(?s:.)*time.sleep"):
            vec.step([0, 0])


def test_nothing_is_left_behind() -> None:
    before = threading.active_count()
    vec = fugu.make("visiting:counter", 4, batch_size=2)
    vec.async_reset(seed=1)
    assert threading.active_count() == before + 2
    vec.close()
    assert threading.active_count() == before


def test_what_cannot_be_asked_of_them() -> None:
    with fugu.make("visiting:counter", 2) as vec:
        vec.reset(seed=1)
        with pytest.raises(WorkerError, match="nothing to ask"):
            vec.render()
        with pytest.raises(UsageError, match="allowed: all of them"):
            vec.reset_some(np.array([True, False]))
        with pytest.raises(UsageError, match="options"):
            vec.reset(options={"a": 1})
        assert not vec.has_states
        vec.reset(seed=1)
        vec.step([0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"costs": ("cost",)}, "costs: given with copies that step at once"),
        ({"batch_size": 4, "num_envs": 6}, "a divisor of num_envs=6"),
        ({"env": "CartPole-v1"}, "'batch' for 'CartPole-v1'; allowed: names that begin with ALE/"),
        ({"env": "minigrid:Empty-5x5"}, "allowed: names that begin with"),
    ],
)
def test_what_cannot_be_made(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"env": "visiting:counter", "num_envs": 2, "backend": "batch"}
    pytest.importorskip("minigrid")
    with pytest.raises(UsageError, match=message):
        fugu.make(**{**given, **arguments})


def test_training_on_them(tmp_path: Path) -> None:
    result = fugu.train(
        "visiting:counter",
        show=False,
        train={"total_steps": 4096, "horizon": 16},
        vec={"num_envs": 16, "batch_size": 8},
        run={"folder": tmp_path},
    )
    assert result.status == "finished"
    assert result.score is not None


def test_gymnax_copies_do_not_depend_on_each_other() -> None:
    pytest.importorskip("gymnax")
    with fugu.make("gymnax:CartPole", 3) as vec:
        together = run_poles(vec)
    with fugu.make("gymnax:CartPole", 3, batch_size=1) as vec:
        assert run_poles(vec) == together


def run_poles(vec: Vector) -> list[list[bytes]]:
    seen: list[list[bytes]] = [[] for _ in range(vec.num_envs)]
    vec.async_reset(seed=2)
    for turn in range(80 * vec.num_envs // vec.batch_size):
        batch = vec.recv()
        for i, env in enumerate(batch.env_ids.tolist()):
            seen[env].append(batch.observations[i].tobytes())
        vec.send(np.full(vec.batch_size, (turn * vec.batch_size // vec.num_envs) % 2))
    return seen


def test_envpool_shows_the_last_and_the_first_observation() -> None:
    pytest.importorskip("envpool")
    with fugu.make("envpool:CartPole", 3) as vec:
        first, _ = vec.reset(seed=1)
        assert len({row.tobytes() for row in first}) == 3
        ends = 0
        for _ in range(100):
            vec.send(np.ones(3, int))
            batch = vec.recv()
            for i in np.flatnonzero(batch.terminations):
                ends += 1
                assert abs(batch.final[i, 2]) > 0.2, "the pole of an ended episode has fallen"
                assert np.abs(batch.observations[i]).max() <= 0.05, "that of a new one stands"
                assert batch.infos[int(i)][0]["episode_length"] > 5
        assert ends > 10
