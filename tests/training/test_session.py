"""Sessions: groups that act at different paces, callbacks, what is kept, what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fugu.track.sinks import read_metrics
from fugu.training.session import resume, train
from fugu.training.trainer import DivergedError

pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_groups_whose_agents_leave_and_join_each_learn_at_their_own_pace(backend: str) -> None:
    seen: dict[str, int] = {}

    def look(trainer: Any, progress: Any) -> None:
        for name in progress.losses:
            seen[name] = seen.get(name, 0) + 1

    result = train(
        "vector_toys:Herd",
        keep=False,
        show=False,
        vec={"num_envs": 4, "backend": backend, "num_workers": 2 if backend == "process" else None},
        train={"total_steps": 4000, "horizon": 8},
        callbacks=[look],
    )
    assert result.status == "finished"
    updates = {name.partition("/")[0]: count for name, count in seen.items() if "policy" in name}
    assert len(updates) == 2
    assert min(updates.values()) >= 5


@pytest.mark.parametrize("env", ["connect4", "snake", "speaker_listener", "tetris", "point_goal"])
def test_native_environments_of_every_shape_can_be_trained_on(env: str) -> None:
    kwargs = {"opponent": 2} if env == "connect4" else {}  # two agents that take turns
    result = train(
        env,
        keep=False,
        show=False,
        env_kwargs=kwargs,
        vec={"num_envs": 8},
        train={"total_steps": 3000, "horizon": 16},
    )
    assert result.status == "finished"
    for policy in result.policies:
        assert all(torch.isfinite(weight).all() for weight in policy.parameters())


def test_batches_that_come_out_of_order_are_learned_from() -> None:
    result = train(
        "cartpole",
        keep=False,
        show=False,
        vec={"num_envs": 32, "batch_size": 8, "num_workers": 2},
        train={"total_steps": 20_000},
    )
    assert result.score is not None
    assert result.score > 25  # chance gets 22, and falls no further than that


def test_metrics_are_kept_and_the_run_says_how_it_ended(tmp_path: Path) -> None:
    result = train("bandit", show=False, train={"total_steps": 5000}, run={"folder": tmp_path})
    assert result.run is not None
    assert result.run.status == "finished"
    lines = list(read_metrics(result.run.metrics_path))
    assert [line["updates"] for line in lines] == list(range(1, len(lines) + 1))
    for name in ("loss/policy_loss", "loss/entropy", "episode_return", "steps_per_second"):
        assert name in lines[-1]


def test_what_is_not_a_number_stops_a_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    def poison(trainer: Any, progress: Any) -> None:
        if progress.updates == 3:
            with torch.no_grad():
                next(trainer.policies[0].parameters()).fill_(float("nan"))

    with pytest.raises(Exception, match="not a number|given a logit") as caught:
        train(
            "bandit",
            show=False,
            train={"total_steps": 50_000},
            run={"folder": tmp_path, "name": "bad", "checkpoint_seconds": 0},
            callbacks=[poison],
        )
    assert isinstance(caught.value, DivergedError)


def test_a_run_that_cannot_resume_its_episodes_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(
        "CartPole-v1",
        show=False,
        train={"total_steps": 64, "horizon": 8},
        vec={"num_envs": 4, "backend": "serial"},
        run={"folder": tmp_path},
    )
    assert "new episodes" not in caplog.text
    pytest.importorskip("ale_py")
    train(
        "ale_py:ALE/Pong-v5",
        show=False,
        train={"total_steps": 8, "horizon": 4},
        vec={"num_envs": 1, "backend": "serial"},
        run={"folder": tmp_path},
    )
    assert "resume will begin new episodes" in caplog.text


def test_offloading_on_a_cpu_is_said_to_be_of_no_use(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"total_steps": 64, "horizon": 8, "cpu_offload": True}
    train("bandit", show=False, keep=False, train=settings)
    assert "nothing to spare" in caplog.text


def test_copies_that_do_not_fill_batches_can_be_saved(tmp_path: Path) -> None:
    result = train(
        "CartPole-v1",
        show=False,
        train={"total_steps": 600, "horizon": 8},
        vec={"num_envs": 10, "backend": "process", "num_workers": 2, "batch_size": 4},
        run={"folder": tmp_path, "name": "odd", "checkpoint_seconds": 0},
    )
    assert result.status == "finished"
    more = resume("odd", root=tmp_path, show=False, overrides={"train": {"total_steps": 900}})
    assert more.steps >= 900
