"""Intrinsic rewards: new observations are rewarded, known ones less, and a run resumes exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu import native
from fugu.algos.exploration import Novelty
from fugu.spaces import Layout
from fugu.training.session import train


def box(low: float, high: float) -> spaces.Box:
    return spaces.Box(low, high, (3,))


def picture(low: int, high: int) -> spaces.Box:
    return spaces.Box(low, high, (24, 24, 3), np.uint8)


# The whole space, a part of it that is seen, and one that is not.
KINDS: dict[str, tuple[spaces.Space[Any], ...]] = {
    "numbers": (box(-9, 9), box(-9, -1), box(1, 9)),
    "mixed": tuple(
        spaces.Dict(a=part, b=spaces.Discrete(4)) for part in (box(-9, 9), box(-9, -1), box(1, 9))
    ),
    "image": (picture(0, 255), picture(0, 99), picture(150, 255)),
}


def rows_of(kind: str, part: int, count: int) -> torch.Tensor:
    layout, space = Layout.of(KINDS[kind][0]), KINDS[kind][part]
    space.seed(part)
    rows = np.zeros((count, layout.size), layout.dtype)
    for row in rows:
        layout.pack(space.sample(), row)
    return torch.from_numpy(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_seen_often_is_rewarded_less(kind: str) -> None:
    torch.manual_seed(0)
    novelty, random = Novelty(Layout.of(KINDS[kind][0])), np.random.default_rng(0)
    seen, unseen = rows_of(kind, 1, 128), rows_of(kind, 2, 128)
    first = novelty.learn(seen, random)
    for _ in range(50):
        last = novelty.learn(seen, random)
    assert last < first / 2
    rewards = novelty.rewards(torch.cat([seen, unseen]))
    assert rewards[128:].mean() > 2 * rewards[:128].mean()


def test_errors_are_means_and_rewards_are_in_units_of_their_deviation() -> None:
    torch.manual_seed(0)
    novelty, seen = Novelty(Layout.of(KINDS["numbers"][0])), rows_of("numbers", 0, 700)
    novelty._optimizer.param_groups[0]["lr"] = 0.0  # so that errors stay as they are
    told = novelty.learn(seen, np.random.default_rng(0))  # in two minibatches, of 512 and 188
    assert told == pytest.approx(float(novelty._errors(seen).detach().mean()), rel=1e-5)
    first, second = (novelty.rewards(rows) for rows in (seen[:300], seen[300:]))
    errors = novelty._errors(seen).detach().double().numpy()
    assert first == pytest.approx(errors[:300] / errors[:300].std(), rel=1e-5)
    assert second == pytest.approx(errors[300:] / errors.std(), rel=1e-5)


def test_a_state_dict_resumes_exactly() -> None:
    layout, random = Layout.of(KINDS["numbers"][0]), np.random.default_rng(0)
    torch.manual_seed(0)
    one, other = Novelty(layout), Novelty(layout)
    seen = rows_of("numbers", 0, 700)
    one.learn(seen, random)
    one.rewards(seen)
    other.load_state_dict({k: np.asarray(v) for k, v in one.state_dict().items()})
    assert one.learn(seen, np.random.default_rng(5)) == other.learn(seen, np.random.default_rng(5))
    assert np.array_equal(one.rewards(seen), other.rewards(seen))


@pytest.mark.skipif(not native.available, reason="needs the native extension")
@pytest.mark.parametrize("engine", ["torch", "native"])
def test_rewards_are_added_until_the_given_share_of_a_run(engine: str) -> None:
    metrics: list[dict[str, Any]] = []
    settings = {"total_steps": 8 * 256, "intrinsic": "rnd", "intrinsic_end": 0.5, "horizon": 32}
    train(
        "cartpole",
        train={**settings, "engine": engine},
        vec={"num_envs": 8},
        keep=False,
        show=False,
        callbacks=[lambda trainer, progress: metrics.append(dict(progress.losses))],
    )
    bonus = ["intrinsic_reward" in each for each in metrics]
    assert bonus == [True] * 4 + [False] * 4
    assert all(each["intrinsic_reward"] > 0 for each in metrics[:4])
