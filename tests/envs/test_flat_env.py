"""`emulate(env).to_gymnasium()`: Gymnasium's own contract, what is seen as rows."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from expedition import BAG, Expedition
from gymnasium.vector import SyncVectorEnv

import fugu
from fugu.core.errors import UsageError

from toys import Turns  # isort: skip

LIMITS = {"walker/bag": BAG}


def test_it_shows_the_rows_of_what_the_environment_shows_and_changes_nothing_else() -> None:
    bare, flat = Expedition(), fugu.emulate(Expedition(), limits=LIMITS).to_gymnasium()
    layout = flat.observation_layout
    flat.action_space.seed(1)
    seen, info = bare.reset(seed=3)
    row, same = flat.reset(seed=3)
    assert same == info
    ends = 0
    for _ in range(200):
        expected = layout.zeros()
        layout.pack(seen, expected)
        assert row.tobytes() == expected.tobytes()
        assert flat.observation_space.contains(row)
        action = flat.action_space.sample()
        seen, *told = bare.step(action)
        row, *same = flat.step(action)
        assert same == told
        if told[1] or told[2]:  # it restarts nothing by itself
            ends += 1
            (seen, _), (row, _) = bare.reset(), flat.reset()
    assert ends


def test_rows_stay_as_they_are_when_the_environment_goes_on() -> None:
    env = fugu.emulate(lambda: gymnasium.make("Blackjack-v1")).to_gymnasium()
    first, _ = env.reset(seed=1)
    kept = first.copy()
    env.step(1)
    np.testing.assert_array_equal(first, kept)


def test_vectors_of_gymnasium_take_it() -> None:
    make = [lambda: fugu.emulate(gymnasium.make("Blackjack-v1")).to_gymnasium()] * 3
    envs = SyncVectorEnv(make)
    seen, _ = envs.reset(seed=1)
    assert seen.shape == (3, 3)
    assert envs.step(np.ones(3, int))[0].dtype == seen.dtype
    envs.close()


def test_environments_of_several_agents_are_refused() -> None:
    with pytest.raises(UsageError, match="allowed: a gymnasium.Env"):
        fugu.emulate(Turns()).to_gymnasium()
