"""Masks of emulated environments: where they are found, for any action space, and bad ones."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from toys import Counter, only

from fugu.core.errors import EnvError
from fugu.envs import emulate


class Masked(Counter):
    """Gives its mask by one of the three ways."""

    def __init__(self, how: str, masks: list[Any], **spaces_: Any) -> None:
        super().__init__(length=99, **spaces_)
        self.how, self.masks = how, masks
        if how == "observation":
            self.observation_space = spaces.Dict(
                action_mask=spaces.Box(0, 1, (4,), np.int8), x=spaces.Discrete(100)
            )
        if how == "method":
            self.action_masks = lambda: self.masks[self.count]

    def observe(self) -> Any:
        self.info = {"action_mask": self.masks[self.count]} if self.how == "info" else {}
        if self.how == "observation":
            return {"action_mask": self.masks[self.count], "x": self.count}
        return super().observe()


@pytest.mark.parametrize("how", ["info", "observation", "method"])
def test_masks_are_found_in_three_places(how: str) -> None:
    masks = [np.int8([1, 0, 0, 1]), np.int8([0, 1, 1, 0]), np.int8([1, 1, 1, 1])]
    env = emulate(gymnasium.wrappers.TimeLimit(Masked(how, masks), 50))
    env.reset(seed=0)
    for mask in masks:
        assert only(env).action_masks.tolist() == [mask.astype(bool).tolist()]
        if mask is not masks[-1]:
            env.step()


def test_without_a_mask_everything_is_allowed_again() -> None:
    env = emulate(Masked("info", [np.int8([1, 0, 0, 1]), None]))
    env.reset(seed=0)
    env.step()
    assert only(env).action_masks.all()


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.MultiDiscrete([2, 3]), (np.int8([1, 0]), np.int8([0, 1, 1])), [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
        (spaces.MultiBinary(2), np.int8([1, 1, 1, 0]), [1, 1, 1, 0]),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (3,)), c=spaces.Discrete(2)),
            {"a": np.int8([0, 1]), "c": np.int8([1, 0])},
            [0, 1, 1, 0],
        ),
        (
            spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 2]))),
            (None, (np.int8([0, 1]), np.int8([1, 0]))),
            [1, 1, 0, 1, 1, 0],
        ),
    ],
)
def test_masks_of_any_action_space(space: Any, mask: Any, expected: list[int]) -> None:
    env = emulate(Masked("info", [mask], action=space))
    env.reset(seed=0)
    assert only(env).action_masks.astype(int).tolist() == [expected]


@pytest.mark.parametrize(
    ("mask", "message"),
    [(np.ones(3), "given 3 entries; allowed: 4"), (np.zeros(4), "forbids every choice")],
)
def test_a_mask_that_cannot_be_is_refused(mask: Any, message: str) -> None:
    env = emulate(Masked("info", [mask]))
    with pytest.raises(EnvError, match=message):
        env.reset(seed=0)


def test_continuous_actions_have_no_mask() -> None:
    env = emulate(Counter(action=spaces.Box(-1, 1, (2,))))
    assert only(env).action_masks.shape == (1, 0)
