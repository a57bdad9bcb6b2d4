"""Autotune: what is tried, what is ruled out, what is chosen, and the record of it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from tuning_cases import machine, profile, request, trial

from fugu.core.errors import UsageError
from fugu.vector.autotune import Setting, Tuning, TuningError
from fugu.vector.tuning.candidates import HANDOVER, copies, most_saved, objection, propose
from fugu.vector.tuning.choosing import choose

pytestmark = pytest.mark.timeout(120)


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
