"""What the adapters to other libraries need of a vector: resets of some, and questions to some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vector_toys import Small, Walk

from fugu.core.errors import UsageError
from fugu.core.seeding import derive, episode_seed
from fugu.envs.contract import Env
from fugu.vector import Vector, WorkerError, make

pytestmark = pytest.mark.timeout(60)


def vector(env: Any, num_envs: int, backend: Any, **options: Any) -> Vector:
    workers = {} if backend == "serial" else {"num_workers": min(2, num_envs)}
    return make(env, num_envs, backend=backend, **{**workers, **options})


@pytest.fixture(params=["serial", "threads", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("poison", [False, True])
def test_some_begin_anew_and_the_others_stay(backend: str, poison: bool) -> None:
    with vector(Small, 4, backend, poison=poison) as vec:
        vec.reset(seed=1)
        before = vec.step([1, 1, 1, 1])[0].copy()
        mask = np.array([False, True, False, True])
        batch = vec.reset_some(mask, seed=5, options={"level": 2})
        assert batch.env_ids.tolist() == [0, 1, 2, 3]
        assert batch.observations[:, 0].tolist() == [1, 0, 1, 0]
        seeds = [episode_seed(derive(5, env), 0) % 1000 for env in range(4)]
        expected = np.where(mask, seeds, before[:, 1])
        assert batch.observations[:, 1].tolist() == expected.tolist()
        assert vec.get_attr("options") == (None, {"level": 2}, None, {"level": 2})
        assert vec.step([1, 1, 1, 1])[0][:, 0].tolist() == [2, 1, 2, 1]
        assert not vec.faults


def test_some_cannot_begin_anew_before_all_were_received(backend: str) -> None:
    with vector(Small, 2, backend) as vec:
        with pytest.raises(UsageError, match="before every environment was received"):
            vec.reset_some(np.array([True, False]))
        vec.reset(seed=0)
        vec.send([0, 0])
        with pytest.raises(UsageError, match="before every environment was received"):
            vec.reset_some(np.array([True, False]))
        vec.recv()


def test_options_may_be_given_one_by_one(backend: str) -> None:
    with vector(Small, 3, backend) as vec:
        vec.reset(seed=0, options=[{"level": 1}, None, {"level": 3}])
        assert vec.get_attr("options") == ({"level": 1}, None, {"level": 3})
        with pytest.raises(UsageError, match="options: given 2 of them; allowed: one, or 3"):
            vec.reset(seed=0, options=[{}, {}])


def test_questions_reach_only_those_asked(backend: str) -> None:
    with vector(Walk, 3, backend) as vec:
        vec.reset(seed=0)
        vec.ask("set note", ["a", "b", "c"], env_ids=[2, 0])
        assert vec.get_attr("note") == ("a", "unset", "c")
        assert vec.ask("get note", env_ids=[2, 1]) == ("c", "unset")
        assert vec.apply(number_of_groups, 10, env_ids=[1]) == (11,)
        assert vec.apply(number_of_groups, 20) == (21,) * 3
        vec.step(vec.action_layout.zeros(3))


def number_of_groups(env: Env, more: int) -> int:
    return len(env.groups) + more


def test_what_is_not_there_is_an_attribute_error(backend: str) -> None:
    with vector(Walk, 2, backend) as vec:
        for kind in (AttributeError, WorkerError):
            with pytest.raises(kind, match="no_such_thing"):
                vec.get_attr("no_such_thing")
        with pytest.raises(WorkerError, match="TypeError") as caught:
            vec.call("describe")
        assert not isinstance(caught.value, AttributeError)


def test_the_seed_is_told() -> None:
    with make(Small, 2, backend="serial", seed=4) as vec:
        assert vec.seed == 4
        vec.reset(seed=6)
        assert vec.seed == 6
    with make(Small, 2, backend="serial") as vec:
        assert vec.seed is None
