"""Replay: rings of steps, and the sequences that are drawn from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fugu.core.errors import UsageError
from fugu.data.replay import Replay, ReplayShape, Sequences
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout

CPU = torch.device("cpu")
GROUP = AgentGroup(
    "agent", (0,), Layout.of(spaces.Box(0, 255, (2,), np.uint8)), Layout.of(spaces.Discrete(3))
)


def make_replay(agents: int = 2, steps: int = 12, length: int = 4, online: bool = False) -> Replay:
    return Replay(GROUP, ReplayShape(agents, steps, length, 1, 3, 2), online=online)


def write(replay: Replay, agent: int, numbers: range) -> None:
    """Steps that hold their agent and their number everywhere."""
    for number in numbers:
        replay.add(
            np.array([agent]),
            observations=[[agent, number]],
            samples=[[number + 0.5]],
            masks=[[True, number % 2 == 0, True]],
            rewards=[number * 10.0],
            first=[number % 7 == 0],
            last=[number % 7 == 6],
            terminal=[number % 14 == 6],
            deter=[[number / 2, agent, 1.0]],
            stoch=[[number % 5, agent]],
        )


def check(batch: Sequences) -> None:
    """Everything in a sequence belongs to one agent, and to steps that followed each other."""
    agents, numbers = batch.observations.long().unbind(-1)
    assert batch.observations.dtype == torch.uint8
    assert (agents == agents[0]).all()
    assert torch.equal(numbers, numbers[0] + torch.arange(len(numbers))[:, None])
    assert torch.equal(batch.samples[..., 0], numbers + 0.5)
    assert torch.equal(batch.masks[..., 1], numbers % 2 == 0)
    assert torch.equal(batch.rewards, numbers * 10.0)
    assert torch.equal(batch.first, numbers % 7 == 0)
    assert torch.equal(batch.last, numbers % 7 == 6)
    assert torch.equal(batch.terminal, numbers % 14 == 6)
    assert torch.equal(batch.deter[:, 0], numbers[0] / 2)
    assert torch.equal(batch.stoch, torch.stack([numbers[0] % 5, agents[0]], -1))


def test_sequences_are_whole_also_where_the_ring_is_closed() -> None:
    replay, random = make_replay(), np.random.default_rng(0)
    for count in (5, 3, 11, 17):
        for agent in range(2):
            begin = int(replay._written[agent])
            write(replay, agent, range(begin, begin + count + agent))
        batch = replay.sample(64, random, CPU)
        assert batch.rewards.shape == (5, 64)
        check(batch)


def test_every_start_is_as_probable_as_every_other() -> None:
    replay, random = make_replay(agents=3), np.random.default_rng(1)
    write(replay, 0, range(30))  # it holds 18 to 29
    write(replay, 1, range(7))
    write(replay, 2, range(4))  # no sequence of 4 with a step before it
    assert replay.starts == 8 + 3
    assert len(replay) == 12 + 7 + 4
    draws = 22_000
    batch = replay.sample(draws, random, CPU)
    check(batch)
    places, counts = np.unique(batch.places[0], return_counts=True)
    assert len(places) == 11
    chi_square = float(((counts - draws / 11) ** 2 / (draws / 11)).sum())
    assert chi_square < 29.6  # 99.9 % of 10 degrees of freedom


def test_new_sequences_come_first_and_once() -> None:
    replay, random = make_replay(steps=40, online=True), np.random.default_rng(0)
    write(replay, 1, range(13))  # whole sequences behind 0, 4 and 8
    batch = replay.sample(2, random, CPU)
    assert batch.observations[0, :, 1].tolist() == [0, 4]
    batch = replay.sample(3, random, CPU)
    assert batch.observations[0, 0, 1].item() == 8
    check(batch)
    assert not replay._fresh


def test_new_sequences_that_were_overwritten_are_left_out() -> None:
    replay = make_replay(steps=12, online=True)
    write(replay, 0, range(25))
    batch = replay.sample(8, np.random.default_rng(0), CPU)
    check(batch)
    assert batch.observations[0, :2, 1].tolist() == [16, 20]


def test_refreshed_latents_are_the_context_of_later_draws() -> None:
    replay, random = make_replay(agents=1, steps=40), np.random.default_rng(0)
    write(replay, 0, range(12))
    deter, stoch = torch.arange(12.0).view(4, 1, 3), torch.arange(8).view(4, 1, 2)
    replay.refresh(np.array([[3], [4], [5], [6]]), deter, stoch)
    batch = replay.sample(200, random, CPU)
    begins = batch.observations[0, :, 1].long()
    for column, begin in enumerate(begins.tolist()):
        numbers, categories = [begin / 2, 0.0, 1.0], [begin % 5, 0]
        if 3 <= begin <= 6:
            numbers, categories = deter[begin - 3, 0].tolist(), stoch[begin - 3, 0].tolist()
        assert batch.deter[column].tolist() == numbers
        assert batch.stoch[column].tolist() == categories
    assert {3, 4, 5, 6} < {*begins.tolist()}


def test_a_broken_step_is_the_last_of_its_episode() -> None:
    replay = make_replay(agents=1, steps=8, length=2)
    write(replay, 0, range(1, 4))
    replay.end(np.array([0]))
    batch = replay.sample(1, np.random.default_rng(0), CPU)
    assert batch.last[:, 0].tolist() == [False, False, True]
    assert not batch.terminal.any()


@pytest.mark.parametrize("count", [3, 12, 31])
def test_it_goes_on_from_its_state(count: int) -> None:
    whole, part = make_replay(online=True), make_replay(online=True)
    for replay in (whole, part):
        write(replay, 0, range(count))
    copy = make_replay(online=True)
    state: dict[str, Any] = {name: array.copy() for name, array in part.state_dict().items()}
    assert state["observations"].shape[1] == min(count, 12)
    copy.load_state_dict(state)
    for replay in (whole, copy):
        write(replay, 0, range(count, count + 9))
    drawn = [replay.sample(9, np.random.default_rng(3), CPU) for replay in (whole, copy)]
    for name in ("observations", "rewards", "deter", "stoch"):
        assert torch.equal(getattr(drawn[0], name), getattr(drawn[1], name))
    assert np.array_equal(drawn[0].places, drawn[1].places)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(UsageError, match=r"more than 4.*replay-size"):
        make_replay(steps=4)
    with pytest.raises(UsageError, match="a sequence of 4"):
        make_replay().sample(1, np.random.default_rng(0), CPU)
    with pytest.raises(UsageError, match="settings that it began with"):
        make_replay().load_state_dict(make_replay(agents=3).state_dict())
