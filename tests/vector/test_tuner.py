"""The tuner: what is tried, how it is raced, what is chosen, and the record of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fugu.core.errors import UsageError
from fugu.vector.measuring import EnvProfile
from fugu.vector.tuner import (
    Configuration,
    Trial,
    Tuning,
    TuningError,
    TuningRequest,
    choose,
    expected_seconds,
    find_candidates,
    race,
    saved_seconds,
    time_policy,
)

REQUEST = TuningRequest(None, 8, None, None, 1, 1 << 30, 0.0, 6.0, 0, "forkserver")
PROFILE = EnvProfile(1e-3, 1e-3, 1 << 20, polled=False)


def candidates(cores: int = 2, env_bytes: int = 1, **changes: Any) -> list[tuple[Any, ...]]:
    is_native = changes.pop("is_native", False)
    request = replace(REQUEST, **changes)
    found = find_candidates(request, env_bytes, cores, is_native=is_native)
    return [(c.backend, c.num_envs, c.num_workers, c.batch_size) for c in found]


# ---------------------------------------------------------------------- what is tried


def test_what_is_tried_on_two_cores_the_simplest_first() -> None:
    parallel = [
        (backend, 8, workers, batch)
        for workers in (1, 2)
        for batch in (8, 4, 2)
        for backend in ("threads", "process")
    ]
    assert candidates() == [("serial", 8, 1, 8), *parallel]


def test_numbers_of_environments_are_tried_if_none_is_given() -> None:
    found = candidates(num_envs=None)
    assert {num_envs for _, num_envs, _, _ in found} == {8, 32, 128}
    assert {workers for backend, _, workers, _ in found if backend != "serial"} == {2}
    assert {num_envs for _, num_envs, _, _ in candidates(num_envs=None, group_size=12)} == {
        12,
        36,
        132,
    }


def test_environments_fit_into_memory() -> None:
    assert {n for _, n, _, _ in candidates(num_envs=None, env_bytes=20 << 20)} == {8, 32}
    assert {n for _, n, _, _ in candidates(num_envs=None, env_bytes=200 << 20)} == {5}
    assert {n for _, n, _, _ in candidates(num_envs=None, env_bytes=2 << 30)} == {1}
    with pytest.raises(UsageError, match="expected at most 5, since an environment takes 209,715,"):
        candidates(env_bytes=200 << 20)


def test_what_is_given_is_kept() -> None:
    assert candidates(num_workers=3, batch_size=2, backend="process") == [("process", 8, 3, 2)]
    assert candidates(backend="serial", num_workers=3) == [("serial", 8, 1, 8)]
    assert {backend for backend, *_ in candidates(num_workers=3)} == {"threads", "process"}


def test_never_more_workers_than_environments_and_batches_that_divide_them() -> None:
    for num_envs in (1, 3, 7):
        found = candidates(cores=8, num_envs=num_envs)
        assert all(1 <= workers <= num_envs for _, _, workers, _ in found)
        assert all(num_envs % batch == 0 for _, _, _, batch in found)
        assert len(set(found)) == len(found)


def test_native_environments_are_tried_with_the_native_pool() -> None:
    assert {backend for backend, *_ in candidates(is_native=True)} == {"native"}
    assert {n for _, n, _, _ in candidates(is_native=True, num_envs=None)} == {128, 512, 2048}
    assert {b for b, *_ in candidates(is_native=True, backend="process")} == {"process"}


def test_the_time_that_a_configuration_needs() -> None:
    profile = EnvProfile(0.5, 1.0, None, polled=False)
    serial, process = Configuration("serial", 8, 1, 8), Configuration("process", 8, 4, 4)
    assert expected_seconds(serial, profile, 0.0) == pytest.approx(12.0)
    assert expected_seconds(process, profile, 0.25) == pytest.approx(3.5)
    polled = replace(profile, polled=True)
    assert expected_seconds(serial, polled, 0.0) == pytest.approx(8.5)


def test_the_time_that_workers_save() -> None:
    assert saved_seconds(Configuration("process", 8, 2, 8), PROFILE, 1.0) == pytest.approx(4e-3)
    overlapping = Configuration("process", 8, 1, 4)
    assert saved_seconds(overlapping, PROFILE, 0.0) == 0.0
    assert saved_seconds(overlapping, PROFILE, 1e-3) == pytest.approx(2e-3)
    assert saved_seconds(overlapping, PROFILE, 1.0) == pytest.approx(8e-3)


def test_a_policy_is_timed_with_the_observations_of_a_batch() -> None:
    seen: list[Any] = []
    assert time_policy(seen.append, 4, [(2, 3, "<f4")]) > 0
    assert {observations.shape for observations in seen} == {(8, 3)}
    time_policy(seen.append, 1, [(2, 3, "<f4"), (1, 5, "|u1")])
    assert [part.shape for part in seen[-1]] == [(2, 3), (1, 5)]
    assert time_policy(0.25, 4, []) == 0.25


# ---------------------------------------------------------------------- the race


class Track:
    """Measures configurations: one with more workers is faster, and some fail."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.failing = failing
        self.calls: list[tuple[int, float]] = []

    def __call__(self, candidate: Configuration, seconds: float) -> Trial:
        self.calls.append((candidate.num_workers, seconds))
        if candidate.num_workers in self.failing:
            return Trial(candidate, "failed", note="no")
        return Trial(candidate, "measured", 100.0 * candidate.num_workers)


EIGHT = [Configuration("process", 8, workers, 8) for workers in range(1, 9)]


def test_each_round_measures_the_faster_half_for_longer() -> None:
    track = Track()
    trials = race(EIGHT, track, 6.0, 0)
    assert [trial.configuration for trial in trials] == EIGHT
    assert [trial.rounds for trial in trials] == [1, 1, 1, 1, 2, 2, 3, 3]
    assert [seconds for _, seconds in track.calls] == [0.25] * 8 + [0.5] * 4 + [1.0] * 2


def test_the_order_is_random_and_the_same_for_the_same_seed() -> None:
    def order(seed: int) -> list[int]:
        track = Track()
        race(EIGHT, track, 6.0, seed)
        return [workers for workers, _ in track.calls]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_what_failed_is_not_measured_again() -> None:
    track = Track(failing=(8, 7))
    trials = race(EIGHT, track, 6.0, 0)
    assert [workers for workers, _ in track.calls].count(8) == 1
    assert [trial.rounds for trial in trials] == [1, 1, 1, 2, 3, 3, 1, 1]
    assert choose(trials)[0].num_workers == 6
    assert len(race(EIGHT, Track(failing=tuple(range(9))), 6.0, 0)) == 8
    (only,) = race(EIGHT[:1], Track(), 6.0, 0)
    assert only.rounds == 1


# ---------------------------------------------------------------------- the choice


def trial(rate: float, backend: Any = "serial", workers: int = 1, rounds: int = 1) -> Trial:
    return Trial(Configuration(backend, 8, workers, 8), "measured", rate, rounds)


def test_the_fastest_of_the_last_round_is_chosen() -> None:
    found, reason = choose([trial(300, rounds=1), trial(100, "process", 2, rounds=3)])
    assert found == Configuration("process", 8, 2, 8)
    assert reason == "100 steps/s, the fastest."


def test_something_simpler_within_five_per_cent_is_preferred() -> None:
    rates = [trial(190.1), trial(195, "process", 1), trial(200, "process", 2)]
    found, reason = choose(rates)
    assert found.backend == "serial"
    assert "within 5% of the fastest (process, 2 workers, 8 environments: 200)" in reason
    assert choose([trial(189), *rates[1:]])[0] == Configuration("process", 8, 1, 8)


def test_what_was_not_measured_is_never_chosen() -> None:
    ruled_out = Trial(Configuration("serial", 8, 1, 8), "ruled out", note="needs 9 s")
    failed = Trial(Configuration("process", 8, 2, 8), "failed", note="ZeroDivisionError: oh")
    assert choose([ruled_out, failed, trial(3, "threads", 2)])[0].backend == "threads"
    with pytest.raises(TuningError, match="fugu check.*ZeroDivisionError: oh"):
        choose([ruled_out, failed])
    with pytest.raises(TuningError, match="more seconds or a smaller num_envs.*needs 9 s"):
        choose([ruled_out])


# ---------------------------------------------------------------------- the record


def test_a_tuning_is_json_and_comes_back() -> None:
    failed = Trial(Configuration("process", 8, 2, 4), "failed", note="oh")
    choice = Configuration("serial", 8, 1, 8)
    found = Tuning("X-v0", choice, "so.", PROFILE, (trial(100.0), failed), 2, 0.5)
    assert Tuning.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert Tuning.from_dict(found.to_dict()) == found
    assert found.make_options() == {
        "backend": "serial",
        "num_envs": 8,
        "num_workers": 1,
        "batch_size": 8,
    }
    data = found.to_dict()
    with pytest.raises(UsageError, match="Tuning: expected what to_dict"):
        Tuning.from_dict([])
    with pytest.raises(UsageError, match="more: given, but there is no such setting"):
        Tuning.from_dict({**data, "more": 1})
    del data["profile"]["step_seconds"]
    with pytest.raises(UsageError, match="Tuning: expected what to_dict.*step_seconds"):
        Tuning.from_dict(data)
