"""Autotune: what is tried, what is chosen, and that nothing hangs. No timings are judged here."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from vector_toys import Herd, Naughty, Sleepy, Small, Waiting, misbehave

import fugu.vector.making
import fugu.vector.tuning.tuner
from fugu.core.errors import UsageError
from fugu.envs.contract import AgentGroup, Buffers
from fugu.spaces import Layout
from fugu.vector import make
from fugu.vector.autotune import Machine, Profile, Setting, Trial, Tuning, TuningError, tune
from fugu.vector.tuning.bench import Bench, BenchError, StalledError
from fugu.vector.tuning.candidates import HANDOVER, copies, most_saved, objection, propose
from fugu.vector.tuning.choosing import choose
from fugu.vector.tuning.playing import Player, be_busy
from fugu.vector.tuning.policies import PolicyClock
from fugu.vector.tuning.profiling import Rows, step_times
from fugu.vector.tuning.request import Request
from fugu.vector.tuning.trials import Timing
from fugu.vector.tuning.tuner import Tuner, find_setting

pytestmark = pytest.mark.timeout(120)

QUICK = {"seconds": 0.4, "show": False}


def profile(step: float = 1e-3, *, slow: float | None = None, **changes: Any) -> Profile:
    """Of an environment whose steps take `step` seconds, a few of them `slow`."""
    times = step_times([step] * 97 + [slow or step] * 3)
    found = Profile(times, 1e-3, 1e-3, 0.1, 20.0, 1 << 20, 100, 1.0)
    return replace(found, **changes)


def request(num_envs: int | None = 8, **changes: Any) -> Request:
    return replace(Request(num_envs, None, None, None, 1, 1 << 30, 6.0), **changes)


def machine(cores: int = 2) -> Machine:
    return Machine(cores, 1 << 32, 0.0, "a machine", "3.11")


def trial(rate: float, backend: Any = "serial", workers: int = 1, batch: int = 8) -> Trial:
    return Trial(Setting(backend, 8, workers, batch), "measured", rate, (rate,))


def names(settings: list[Setting]) -> list[tuple[Any, ...]]:
    return [(s.backend, s.num_envs, s.num_workers, s.batch_size) for s in settings]


# ---------------------------------------------------------------------- what is tried


def test_what_is_tried_on_two_cores() -> None:
    found = names(propose(request(), profile(thread_gain=2.0), machine()))
    parallel = [
        (backend, 8, workers, batch)
        for backend in ("threads", "process")
        for workers, batch in [(1, 8), (1, 4), (2, 8), (2, 4), (2, 2)]
    ]
    assert found[0] == ("serial", 8, 1, 8)
    assert sorted(found[1:]) == sorted(parallel)


def test_threads_that_hold_the_lock_have_one_row() -> None:
    found = names(propose(request(), profile(thread_gain=1.0), machine()))
    assert [name for name in found if name[0] == "threads"] == [("threads", 8, 2, 8)]


def test_twice_as_many_workers_as_cores_if_steps_differ_much() -> None:
    even, uneven = profile(), profile(slow=0.05)
    assert max(s.num_workers for s in propose(request(), even, machine())) == 2
    assert max(s.num_workers for s in propose(request(), uneven, machine())) == 4
    many = request(1000)  # of so many copies a worker has slow and quick ones alike
    assert max(s.num_workers for s in propose(many, profile(slow=0.01), machine(1))) == 1


def test_never_more_workers_than_copies() -> None:
    for num_envs in (1, 3):
        found = propose(request(num_envs), profile(slow=0.1, thread_gain=2.0), machine(8))
        assert all(1 <= s.num_workers <= num_envs for s in found)
        assert all(num_envs % s.batch_size == 0 for s in found)
        assert len(set(found)) == len(found)


def test_many_cores_need_no_more_trials() -> None:
    found = propose(request(512), profile(thread_gain=2.0), machine(128))
    assert {s.num_workers for s in found} == {1, 64, 128}
    assert len(found) == 15


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ({"backend": "process"}, {"backend": {"process"}}),
        ({"backend": "serial"}, {"backend": {"serial"}, "num_workers": {1}}),
        ({"num_workers": 3}, {"backend": {"threads", "process"}, "num_workers": {3}}),
        ({"batch_size": 5}, {"batch_size": {5}}),
    ],
)
def test_what_is_given_is_kept(fixed: dict[str, Any], expected: dict[str, set[Any]]) -> None:
    found = propose(request(**fixed), profile(), machine())
    for name, values in expected.items():
        assert {getattr(s, name) for s in found} == values


def test_copies_fit_into_memory() -> None:
    open_request = request(None)
    assert copies(open_request, profile(), machine()) == [8, 32, 128]
    assert copies(open_request, profile(copy_bytes=20 << 20), machine()) == [8, 32]
    assert copies(open_request, profile(copy_bytes=200 << 20), machine()) == [4]
    assert copies(open_request, profile(copy_bytes=4 << 30), machine()) == [1]
    assert copies(request(None, group_size=6), profile(), machine()) == [12, 36, 132]
    with pytest.raises(UsageError, match="given 8 copies of .* bytes; allowed: 5 within"):
        copies(request(8), profile(copy_bytes=200 << 20), machine())


# ---------------------------------------------------------------------- what is ruled out


def test_threads_are_ruled_out_where_stepping_holds_the_lock() -> None:
    setting = Setting("threads", 8, 2, 8)
    assert "holds the GIL: two threads are 1.05x" in objection(
        setting, request(), profile(thread_gain=1.05), 0.0
    )
    assert "could not be" in objection(setting, request(), profile(thread_gain=None), 0.0)
    assert objection(setting, request(), profile(thread_gain=1.9), 0.0) == ""
    asked = request(backend="threads")
    assert objection(setting, asked, profile(thread_gain=1.0), 0.0) == ""


def test_processes_are_ruled_out_where_the_hand_over_takes_longer() -> None:
    setting, tiny = Setting("process", 8, 2, 8), profile(1e-6)
    assert "a hand-over takes" in objection(setting, request(), tiny, 0.0)
    assert objection(Setting("serial", 8, 1, 8), request(), tiny, 0.0) == ""
    assert objection(setting, request(), profile(1e-3), 0.0) == ""
    assert objection(setting, request(backend="process"), tiny, 0.0) == ""


def test_one_worker_is_of_use_only_beside_a_busy_learner() -> None:
    whole, half = Setting("process", 8, 1, 8), Setting("process", 8, 1, 4)
    for setting, policy_seconds in [(whole, 0.0), (whole, 0.01), (half, 0.0)]:
        assert "saves nothing" in objection(setting, request(), profile(), policy_seconds)
    assert objection(half, request(), profile(), 0.01) == ""


def test_the_most_that_workers_save() -> None:
    assert most_saved(Setting("process", 8, 2, 8), profile(1e-3), 1.0) == pytest.approx(4e-3)
    assert most_saved(Setting("process", 8, 1, 4), profile(1e-3), 1e-3) == pytest.approx(2e-3)
    assert most_saved(Setting("process", 8, 1, 4), profile(1e-3), 1.0) == pytest.approx(8e-3)
    assert HANDOVER < 1e-3


def test_what_takes_too_long_to_begin_is_ruled_out() -> None:
    slow = profile(0.5, make_seconds=1.0)
    assert "needs about 12 s" in objection(Setting("serial", 8, 1, 8), request(), slow, 0.0)
    assert objection(Setting("process", 8, 4, 8), request(), slow, 0.0) == ""
    waiting = profile(5.0, polled=True, make_seconds=0.0, reset_seconds=0.0)
    assert objection(Setting("serial", 8, 1, 8), request(), waiting, 0.0) == ""


# ---------------------------------------------------------------------- what is chosen


def test_the_fastest_is_chosen() -> None:
    setting, reason = choose([trial(100), trial(200, "process", 2), trial(150, "process", 2, 4)])
    assert setting == Setting("process", 8, 2, 8)
    assert reason == "200 steps/s, the fastest, 2.0x serial."


def test_something_simpler_within_five_per_cent_is_preferred() -> None:
    rates = [trial(190.1), trial(195, "process", 1), trial(200, "process", 2)]
    setting, reason = choose(rates)
    assert setting.backend == "serial"
    assert "within 5% of the fastest (process, 2 workers, 8 copies: 200) and simpler" in reason
    setting, _ = choose([replace(rates[0], steps_per_second=189.0), *rates[1:]])
    assert setting == Setting("process", 8, 1, 8)


def test_what_is_simpler() -> None:
    ordered = [
        Setting("serial", 8, 1, 8),
        Setting("threads", 8, 1, 8),
        Setting("process", 8, 1, 8),
        Setting("process", 8, 1, 4),
        Setting("threads", 4, 2, 4),
        Setting("threads", 8, 2, 8),
        Setting("process", 8, 2, 8),
        Setting("threads", 8, 2, 4),
    ]
    shuffled = random.Random(0).sample(ordered, len(ordered))
    assert sorted(shuffled, key=lambda setting: setting.complexity) == ordered


def test_what_was_not_measured_is_never_chosen() -> None:
    ruled_out = replace(trial(0), status="ruled out", note="no")
    failed = replace(trial(0, "process", 2), status="failed", note="ZeroDivisionError: oh")
    setting, reason = choose([ruled_out, failed, trial(3, "threads", 2)])
    assert setting.backend == "threads"
    assert "the only setting that was measured" in reason
    with pytest.raises(TuningError, match=r"failed in every trial \(1\).*ZeroDivisionError: oh"):
        choose([ruled_out, failed])
    with pytest.raises(TuningError, match=r"all ruled out.*more seconds or fewer num_envs\. no"):
        choose([ruled_out])


# ---------------------------------------------------------------------- records


def tuning() -> Tuning:
    trials = (trial(100.0), replace(trial(0, "process", 2), status="failed", note="oh"))
    found = profile(notes=("broken off",), policy_seconds=0.5)
    return Tuning("X-v0", found, trials, trials[0].setting, "so.", machine(), 6.0, 3)


def test_a_tuning_is_json_and_comes_back() -> None:
    found = tuning()
    assert Tuning.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert Tuning.from_dict(found.to_dict()) == found
    assert found.make_options() == {
        "backend": "serial",
        "num_envs": 8,
        "num_workers": 1,
        "batch_size": 8,
    }
    assert found.summary == "X-v0: serial, 8 copies: so."


def test_a_dict_that_is_no_tuning_is_refused() -> None:
    data = tuning().to_dict()
    with pytest.raises(UsageError, match="Tuning: given a list; allowed: a dict with exactly"):
        Tuning.from_dict([])
    with pytest.raises(UsageError, match="Tuning: given .*'more'"):
        Tuning.from_dict({**data, "more": 1})
    del data["profile"]["slab_bytes"]
    with pytest.raises(UsageError, match="Profile: given .*'slab_bytes'"):
        Tuning.from_dict(data)


# ---------------------------------------------------------------------- the parts


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


def assert_no_bench() -> None:
    """Whoever measured is gone."""
    assert "fugu-bench" not in [child.name for child in multiprocessing.active_children()]


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


# ---------------------------------------------------------------------- the whole


def check(found: Tuning) -> None:
    """What holds for every tuning."""
    assert found.profile.steps.count >= 1
    quantiles = found.profile.steps.quantiles
    assert list(quantiles) == sorted(quantiles)
    assert found.profile.slab_bytes > 0
    assert 0 <= found.profile.reset_share <= 1
    assert found.choice in [t.setting for t in found.trials if t.status == "measured"]
    for each in found.trials:
        assert each.status in ("measured", "failed", "ruled out")
        assert (each.steps_per_second > 0) == (each.status == "measured") == bool(each.windows)
        assert bool(each.note) or each.status == "measured"
    assert Tuning.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert_no_bench()


def test_tuning_a_small_environment() -> None:
    state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    found = tune(Small, 4, **QUICK)
    check(found)
    assert found.env == "Small"
    assert found.machine.cores >= 1
    assert found.profile.steps_per_episode is None
    assert found.profile.copy_bytes is not None
    group = Setting("serial", 4, 1, 4)
    assert group in [t.setting for t in found.trials]
    with make(Small, **found.make_options()) as vec:
        assert (vec.backend, vec.num_envs) == (found.choice.backend, 4)
        assert vec.tuning is None  # type: ignore[attr-defined]
    assert state == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002


def test_tuning_a_slow_environment_with_a_policy_to_measure() -> None:
    found = tune(Sleepy, 2, policy_seconds=lambda observations: time.sleep(0.002), **QUICK)
    check(found)
    assert found.profile.policy_seconds >= 0.002
    assert all(t.policy_seconds >= 0.002 for t in found.trials)


def test_copies_are_chosen_too_and_names_are_resolved() -> None:
    found = tune("CartPole-v1", backend="serial", **QUICK)
    check(found)
    assert found.env == "CartPole-v1"
    assert len({t.setting.num_envs for t in found.trials}) == 3
    kept = tune("CartPole", 4, backend="process", num_workers=1, batch_size=2, **QUICK)
    assert [t.setting for t in kept.trials] == [Setting("process", 4, 1, 2)]


def tictactoe() -> Any:
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


@pytest.mark.parametrize("env", [Herd, tictactoe, functools.partial(Waiting, 0.001)])
def test_groups_masks_and_environments_that_are_polled(env: Any) -> None:
    found = tune(env, 2, backend="serial", **QUICK)
    check(found)
    assert found.profile.polled == (env not in (Herd, tictactoe))
    assert not found.profile.notes
    assert not any(t.note for t in found.trials)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_start_method(method: str) -> None:
    found = tune(Small, 2, backend="process", start_method=method, **QUICK)
    check(found)
    assert found.choice.backend == "process"


class Shy(Small):
    """Does something bad in a worker process, after a while."""

    def __init__(self, deed: str) -> None:
        self.deed = deed

    def step(self, action: Any) -> Any:
        if self.count > 20 and multiprocessing.current_process().name != "fugu-bench":
            misbehave(self.deed)
        time.sleep(1e-4)  # so that processes are worth a trial
        return super().step(action)


@pytest.mark.parametrize("deed", ["raise", "kill", "stall"])
def test_a_trial_that_fails_is_a_row_and_the_tuning_goes_on(
    deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if deed == "stall":
        monkeypatch.setattr(fugu.vector.tuning.tuner, "TRIAL_LIMIT", 3.0)
    found = tune(functools.partial(Shy, deed), 4, max_restarts=0, **QUICK)
    check(found)
    assert found.choice.backend != "process"
    processes = [t for t in found.trials if t.setting.backend == "process"]
    failed = [t for t in processes if t.status == "failed"]
    word = {"raise": "a deed of its own", "kill": "SIGKILL", "stall": "no end after"}[deed]
    assert failed
    assert all(word in t.note for t in failed)
    if deed == "stall":
        assert len(failed) == 1
        assert any("stalled in another trial" in t.note for t in processes)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (functools.partial(Naughty, "segfault"), "cannot be profiled: its process was killed by"),
        (functools.partial(Naughty, "stall"), "cannot be profiled: no end after 2 s"),
        (functools.partial(Naughty, "raise"), "failed in every trial .*|cannot be profiled"),
        (dict, "cannot be profiled: UsageError: given {}"),
    ],
)
def test_an_environment_that_always_fails_is_one_clear_error(
    env: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fugu.vector.tuning.tuner, "PROFILE_LIMIT", 2.0)
    with pytest.raises(TuningError, match=message) as caught:
        tune(env, 2, **QUICK)
    assert "fugu check" in str(caught.value)
    assert_no_bench()


class Unshared(Small):
    """There can be only one in a process."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if self.made > 1:
            raise RuntimeError("there can be only one")


def test_an_environment_of_which_a_process_can_have_only_one() -> None:
    with pytest.raises(TuningError, match="there can be only one"):
        tune(Unshared, 2, backend="serial", **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs: given 0; allowed: an integer from 1"),
        ({"num_envs": 2.0}, "num_envs: given 2.0"),
        ({"num_envs": True}, "num_envs: given True"),
        ({"seconds": 0}, "seconds: given 0; allowed: a number of seconds above 0"),
        ({"seconds": "6"}, "seconds: given '6'"),
        ({"policy_seconds": -1.0}, "policy_seconds: given -1.0.*Or give the policy"),
        ({"policy_seconds": float("nan")}, "policy_seconds: given nan"),
        ({"seed": "x"}, "seed: given 'x'; allowed: an integer"),
        ({"max_memory": 0}, "max_memory: given 0"),
        ({"backend": "proces"}, "allowed: auto, serial, threads, process"),
        ({"batch_size": 2}, "batch_size: given 2; allowed: together with num_envs"),
        ({"num_envs": 2, "batch_size": 3}, "batch_size: given 3; allowed: 1 to 2, num_envs"),
        ({"num_envs": 2, "num_workers": 3}, "num_workers: given 3"),
        ({"num_envs": 4, "group_size": 3}, "a divisor of num_envs=4"),
        ({"num_envs": 10**9}, r"num_envs: given 1000000000 copies"),
        ({"num_envs": 2, "no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, TuningError), match=message):
        tune(Small, **{**QUICK, **options})


def test_names_that_are_unknown_are_refused() -> None:
    with pytest.raises(UsageError, match="Nearest: CartPole-v1"):
        tune("CartPool-v1", 2, **QUICK)


# ---------------------------------------------------------------------- fugu.make


@pytest.fixture
def quick_make(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(find_setting, seconds=0.4)
    monkeypatch.setattr(fugu.vector.making, "find_setting", quick)


@pytest.mark.usefixtures("quick_make")
@pytest.mark.parametrize("backend", ["auto", "process"])
def test_make_chooses_the_workers_and_records_it(backend: Any) -> None:
    with make(Small, 4, num_workers="auto", backend=backend, max_restarts=3) as vec:
        found = vec.tuning  # type: ignore[attr-defined]
        check(found)
        chosen = found.choice
        assert (vec.backend, vec.num_workers) == (chosen.backend, chosen.num_workers)
        assert {t.setting.batch_size for t in found.trials} == {4}
        assert backend == "auto" or {t.setting.backend for t in found.trials} == {backend}
        vec.reset(seed=0)
        assert vec.step([1, 2, 3, 4])[1].tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("quick_make")
def test_make_passes_everything_on() -> None:
    options: dict[str, Any] = {"batch_size": 2, "ordered": True, "group_size": 2}
    make_env = functools.partial(gymnasium.make, "FrozenLake-v1")
    with make(make_env, 4, num_workers="auto", env_kwargs={"map_name": "8x8"}, **options) as vec:
        assert vec.batch_size == 2
        assert vec.observation_layout.space.n == 64  # type: ignore[attr-defined]
        assert vec.tuning.env == "make"  # type: ignore[attr-defined]


def test_make_measures_nothing_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(fugu.vector.making, "find_setting", refuse)
    with make(Small, 1) as vec:
        assert vec.backend == "serial"
        assert vec.tuning is None  # type: ignore[attr-defined]
    for options, message in [
        ({"num_envs": 0}, "num_envs: given 0"),
        ({"num_envs": 4, "batch_size": 3, "ordered": True}, "divisor of num_envs=4"),
    ]:
        with pytest.raises(UsageError, match=message):
            make(Small, num_workers="auto", **options)
    with pytest.raises(UsageError, match='given .many.; allowed: .*, or "auto"'):
        make(Small, 2, backend="process", num_workers="many")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- nothing is left behind


SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
from vector_toys import Sleepy
from fugu.vector.autotune import tune

if __name__ == "__main__":
    print("begun", flush=True)
    tune(Sleepy, 4, backend="process", seconds=60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_tuning_that_is_ended_leaves_no_process(number: int, tmp_path: Path) -> None:
    script = tmp_path / "tunes_for_long.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"begun\n"
    deadline = time.monotonic() + 30
    while len(family(parent.pid)) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)  # until the bench and its workers run
    members = family(parent.pid)
    assert len(members) >= 5, members
    parent.send_signal(number)
    parent.communicate(timeout=30)
    while any(alive(pid) for pid in members) and time.monotonic() < deadline + 15:
        time.sleep(0.1)
    assert not [pid for pid in members if alive(pid)]


def family(pid: int) -> set[int]:
    """A process and all below it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, fresh = {pid}, {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
