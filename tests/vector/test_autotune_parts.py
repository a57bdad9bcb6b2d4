"""The parts of autotune: random players, clocks of policies, the order of trials, the bench."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tuning_cases import QUICK, assert_no_bench, machine, profile, request
from vector_toys import Small, misbehave

from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.spaces import Layout
from fugu.vector.autotune import Setting, Trial, tune
from fugu.vector.tuning.bench import Bench, BenchError, StalledError
from fugu.vector.tuning.playing import Player, be_busy
from fugu.vector.tuning.policies import PolicyClock
from fugu.vector.tuning.profiling import Rows
from fugu.vector.tuning.trials import Timing
from fugu.vector.tuning.tuner import Tuner

pytestmark = pytest.mark.timeout(120)


# ---------------------------------------------------------------------- players, clocks, trials


ACTION_SPACES = {
    "one head": spaces.Discrete(5, start=3),
    "several heads": spaces.MultiDiscrete([3, 4]),
    "many agents' keys": spaces.MultiBinary(3),
    "a tree": spaces.Dict(
        turn=spaces.Discrete(4), push=spaces.Box(-1, 1, (2,)), more=spaces.MultiDiscrete([2, 3])
    ),
    "no head": spaces.Box(-1, 1, (3,)),
}


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_actions_are_legal_and_the_same_for_the_same_seed(name: str) -> None:
    layout = Layout.of(ACTION_SPACES[name], strict=True)
    observations = Layout.of(spaces.Discrete(2))
    group = AgentGroup("agents", tuple(range(50)), observations, layout)
    rows, generator = Buffers.allocate(group), np.random.default_rng(0)
    players = [Player(group, 50, seed) for seed in (1, 1, 2)]
    same = True
    for forbids in (False, True, True):
        rows.action_masks[:] = True
        if forbids and group.mask_width:
            rows.action_masks[:] = generator.random(rows.action_masks.shape) < 0.6
            rows.action_masks[:, legal_ones(layout.space)] = True
        first, second, other = (player.actions(rows) for player in players)
        np.testing.assert_array_equal(first, second)
        same &= np.array_equal(first, other)
        for action, mask in zip(first, rows.action_masks, strict=True):
            value = layout.unpack(action)
            assert layout.space.contains(value), value
            assert all(mask[choice] for choice in choices(layout.space, value)), (value, mask)
    assert not same


def heads(space: Any, value: Any) -> list[tuple[int, int]]:
    """(choices, the one that was chosen) of every discrete head."""
    match space:
        case spaces.Discrete():
            return [(int(space.n), int(value) - int(space.start))]
        case spaces.MultiDiscrete():
            return list(zip(space.nvec.tolist(), value.tolist(), strict=True))
        case spaces.MultiBinary():
            return [(2, int(entry)) for entry in value]
        case spaces.Dict():
            return [head for key, item in space.items() for head in heads(item, value[key])]
    return []


def choices(space: Any, value: Any) -> list[int]:
    """The place in the mask of every choice."""
    counts = [count for count, _ in heads(space, value)]
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [start + choice for start, (_, choice) in zip(starts, heads(space, value), strict=True)]


def legal_ones(space: Any) -> list[int]:
    """One choice of every head, so that something is always allowed."""
    counts = [count for count, _ in heads(space, space.sample())]
    return [sum(counts[: i + 1]) - 1 for i in range(len(counts))]


def test_a_policy_that_is_given_is_measured_once_for_each_batch() -> None:
    seen: list[tuple[int, ...]] = []
    clock = PolicyClock(lambda observations: seen.append(observations.shape))
    groups = [Rows(2, 3, "<f4")]
    assert clock.seconds(4, groups) > 0
    calls = len(seen)
    assert clock.seconds(4, groups) == clock.seconds(4, groups)
    assert len(seen) == calls
    assert set(seen) == {(8, 3)}
    pairs: list[Any] = []
    PolicyClock(pairs.append).seconds(1, [*groups, Rows(1, 5, "|u1")])
    assert [part.shape for part in pairs[0]] == [(2, 3), (1, 5)]
    assert PolicyClock(0.25).seconds(4, groups) == 0.25
    be_busy(1e-4)


class Table:
    """A bench that measures nothing: it notes what was to be tried, and says what it is told to."""

    def __init__(self, says: Any) -> None:
        self.says, self.visits = says, []

    def run(self, limit: float, function: Any, *arguments: Any) -> Any:
        if not isinstance(function, functools.partial):
            copy = profile(), [Rows(1, 1, "<f4")]
            return copy if function.__name__ == "profile_copy" else 2.0
        self.visits.append((function.keywords["setting"], function.keywords["seconds"]))
        if isinstance(self.says, Exception):
            raise self.says
        return Timing((float(len(self.visits)),), 0.1, 0)


def run_on(table: Any, seed: int, **changes: Any) -> tuple[Trial, ...]:
    tuner = Tuner(table, None, lambda: None, request(**changes), seed, lambda *_: None)  # type: ignore[arg-type,return-value]
    return tuner.run(machine(), PolicyClock(0.001))[1]


def test_the_order_is_random_and_the_same_for_the_same_seed() -> None:
    def order(seed: int) -> list[Setting]:
        table = Table(None)
        run_on(table, seed)
        return [setting for setting, _ in table.visits]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert set(order(1)) == set(order(2))


def test_every_setting_has_an_equal_share_in_some_visits() -> None:
    table = Table(None)
    trials = [t for t in run_on(table, 0) if t.status == "measured"]
    count = len(trials)
    settings, seconds = zip(*table.visits, strict=True)
    assert len(settings) == 3 * count
    assert len(set(seconds)) == 1
    assert sum(seconds) == pytest.approx(5.0)  # one of six is for the profile
    for first in range(0, 3 * count, count):
        assert len(set(settings[first : first + count])) == count
    for each in trials:
        places = [place + 1.0 for place, setting in enumerate(settings) if setting == each.setting]
        assert each.windows == tuple(places)
        assert each.steps_per_second == places[1]


def test_what_failed_is_not_tried_again_nor_a_backend_that_stalled() -> None:
    table = Table(BenchError("no"))
    failed = [t for t in run_on(table, 0) if t.status == "failed"]
    assert len(table.visits) == len(failed) > 3
    table = Table(StalledError("no end"))
    trials = run_on(table, 0)
    assert [t.status for t in trials].count("failed") == len(table.visits) == 3  # one a backend
    assert any(t.note == "this backend stalled in another trial" for t in trials)


# ---------------------------------------------------------------------- the bench


def add(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("raise", "ZeroDivisionError: a deed of its own"),
        ("exit", "SystemExit: 3"),
        ("hard-exit", "ended with status 7"),
        ("segfault", "killed by SIGSEGV"),
        ("stall", "no end after 1 s"),
        ("spin", "no end after 1 s"),
    ],
)
def test_whatever_happens_on_the_bench_it_is_an_error_and_the_next_one_works(
    deed: str, message: str
) -> None:
    with Bench("forkserver") as bench:
        with pytest.raises(BenchError, match=message):
            bench.run(1.0 if deed in ("stall", "spin") else 30.0, misbehave, deed)
        assert bench.run(30.0, add, 1, 2) == 3
        assert bench.run(30.0, lambda: os.getpid()) == bench.run(30.0, os.getpid)
    assert_no_bench()


def test_what_cannot_be_sent_is_refused() -> None:
    import threading

    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        tune(lambda: Small(lock), 2, **QUICK)
    with pytest.raises(UsageError, match="start_method: given 'clone'; allowed: "):
        tune(Small, 2, start_method="clone", **QUICK)
