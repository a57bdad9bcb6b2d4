"""Autotune as a whole: it finds a configuration, and nothing hangs. No timings are judged here."""

from __future__ import annotations

import functools
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from vector_toys import Herd, Naughty, Sleepy, Small, Waiting, misbehave

import fugu.vector.tuner
from fugu.core.errors import UsageError
from fugu.vector import make
from fugu.vector.autotune import Configuration, Tuning, TuningError, tune
from fugu.vector.tuner import find_configuration

pytestmark = pytest.mark.timeout(120)
MAKE = sys.modules["fugu.vector.make"]  # the module: the package has the function by its name
QUICK: dict[str, Any] = {"seconds": 0.4, "show": False}


# ---------------------------------------------------------------------- the whole


def check(found: Tuning) -> None:
    """Check what holds for every tuning."""
    assert found.profile.step_seconds > 0
    assert found.choice in [t.configuration for t in found.trials if t.status == "measured"]
    for each in found.trials:
        assert each.status in ("measured", "failed", "ruled out")
        assert (each.steps_per_second > 0) == (each.status == "measured")
        assert bool(each.note) or each.status == "measured"
    assert Tuning.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert_no_measurement()


def assert_no_measurement() -> None:
    assert "fugu-measurement" not in [child.name for child in multiprocessing.active_children()]


def test_tuning_a_small_environment() -> None:
    state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    found = tune(Small, 4, **QUICK)
    check(found)
    assert found.env == "Small"
    assert found.cores >= 1
    assert found.profile.env_bytes is not None
    assert found.choice == Configuration("serial", 4, 1, 4)
    ruled_out = [t for t in found.trials if t.status == "ruled out"]
    assert {t.configuration.backend for t in ruled_out} == {"threads", "process"}
    assert all("saves at most" in t.note for t in ruled_out)
    with make(Small, **found.make_options()) as vec:
        assert (vec.backend, vec.num_envs) == (found.choice.backend, 4)
        assert vec.tuning is None  # type: ignore[attr-defined]
    assert state == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002


def test_tuning_a_slow_environment_with_a_policy_to_measure() -> None:
    found = tune(Sleepy, 2, policy_seconds=lambda observations: time.sleep(0.002), **QUICK)
    check(found)
    assert found.profile.policy_seconds >= 0.002
    assert all(t.steps_per_second < 1000 for t in found.trials)  # two steps in 2 ms


def test_copies_are_chosen_too_and_names_are_resolved() -> None:
    found = tune("CartPole-v1", backend="serial", **QUICK)
    check(found)
    assert found.env == "CartPole-v1"
    assert len({t.configuration.num_envs for t in found.trials}) == 3
    kept = tune("CartPole", 4, backend="process", num_workers=1, batch_size=2, **QUICK)
    assert [t.configuration for t in kept.trials] == [Configuration("process", 4, 1, 2)]


def test_a_native_environment_is_tuned_with_the_native_pool() -> None:
    found = tune("cartpole", 64, **QUICK)
    check(found)
    assert {t.configuration.backend for t in found.trials} == {"native"}
    assert "The native pool is the fastest way" in found.reason
    with make("cartpole", **found.make_options()) as vec:
        assert vec.backend == "native"


def tictactoe() -> Any:
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


@pytest.mark.parametrize("env", [Herd, tictactoe, functools.partial(Waiting, 0.001)])
def test_groups_masks_and_environments_that_are_polled(env: Any) -> None:
    found = tune(env, 2, backend="serial", **QUICK)
    check(found)
    assert found.profile.polled == (env not in (Herd, tictactoe))
    assert not any(t.note for t in found.trials)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_start_method(method: str) -> None:
    found = tune(Small, 2, backend="process", start_method=method, **QUICK)
    check(found)
    assert found.choice.backend == "process"


class Shy(Small):
    """Misbehaves in a worker process, in its second step."""

    def __init__(self, deed: str) -> None:
        self.deed = deed

    def step(self, action: Any) -> Any:
        if self.count > 0 and multiprocessing.current_process().name != "fugu-measurement":
            misbehave(self.deed)
        time.sleep(1e-3)  # so that processes are worth a trial
        return super().step(action)


@pytest.mark.parametrize("deed", ["raise", "kill", "stall"])
def test_a_trial_that_fails_is_a_row_and_the_tuning_goes_on(
    deed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if deed == "stall":
        monkeypatch.setattr(fugu.vector.tuner, "TRIAL_LIMIT", 3.0)
    found = tune(functools.partial(Shy, deed), 4, max_restarts=0, **QUICK)
    check(found)
    assert found.choice.backend != "process"
    processes = [t for t in found.trials if t.configuration.backend == "process"]
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
        (functools.partial(Naughty, "segfault"), "got an error: its process was killed by"),
        (functools.partial(Naughty, "stall"), "got an error: no end after 2 s"),
        (functools.partial(Naughty, "raise", "always"), "got an error: ZeroDivisionError"),
    ],
)
def test_an_environment_that_always_fails_is_one_clear_error(
    env: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fugu.vector.tuner, "ENV_LIMIT", 2.0)
    with pytest.raises(TuningError, match=message) as caught:
        tune(env, 2, **QUICK)
    assert "fugu check" in str(caught.value)
    assert_no_measurement()


def test_an_environment_that_fails_in_every_trial_is_one_clear_error() -> None:
    with pytest.raises(TuningError, match="there can be only one"):
        tune(Unshared, 2, backend="serial", **QUICK)


class Unshared(Small):
    """A process can have only one."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if self.made > 1:
            raise RuntimeError("there can be only one")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 0}, "num_envs: given 0; allowed: 1 or more"),
        ({"num_envs": 2.5}, "num_envs: given 2.5"),
        ({"num_envs": True}, "num_envs: given True"),
        ({"seconds": 0}, "seconds: given 0.0; allowed: above 0"),
        ({"seconds": "soon"}, "seconds: given 'soon'; allowed: a number"),
        ({"policy_seconds": -1.0}, "policy_seconds: given -1.0; allowed: 0 or more"),
        ({"policy_seconds": float("nan")}, "policy_seconds: given nan"),
        ({"seed": "x"}, "seed: given 'x'; allowed: a whole number"),
        ({"max_memory": 0}, "max_memory: given 0"),
        ({"backend": "proces"}, "backend: given 'proces'"),
        ({"backend": "native", "num_envs": 2}, "backend: given 'native'.*a native environment"),
        ({"start_method": "clone"}, "start_method: given 'clone'; allowed: forkserver"),
        ({"num_envs": 2, "batch_size": 3}, "batch_size: given 3; allowed: .* to 2"),
        ({"num_envs": 2, "num_workers": 3}, "num_workers: given 3; allowed: .* to 2"),
        ({"num_envs": 4, "group_size": 3}, "a divisor of num_envs=4"),
        ({"num_envs": 10**9}, "num_envs: expected at most .*; got 1000000000"),
        ({"num_envs": 2, "no_such_setting": 1}, "no_such_setting"),
        ({"env": dict}, "given {}"),
    ],
)
def test_arguments_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, TuningError), match=message):
        tune(**{"env": Small, **QUICK, **options})


def test_names_that_are_unknown_are_refused() -> None:
    with pytest.raises(UsageError, match="Nearest: CartPole-v1"):
        tune("CartPool-v1", 2, **QUICK)


# ---------------------------------------------------------------------- fugu.make


@pytest.fixture
def quick_make(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = functools.partial(find_configuration, seconds=0.4)
    monkeypatch.setattr(MAKE, "find_configuration", quick)


@pytest.mark.usefixtures("quick_make")
@pytest.mark.parametrize("backend", ["auto", "process"])
def test_make_chooses_the_workers_and_records_it(backend: Any) -> None:
    with make(Small, 4, num_workers="auto", backend=backend, max_restarts=3) as vec:
        found = vec.tuning  # type: ignore[attr-defined]
        check(found)
        chosen = found.choice
        assert (vec.backend, vec.num_workers) == (chosen.backend, chosen.num_workers)
        assert {t.configuration.batch_size for t in found.trials} == {4}
        assert backend == "auto" or {t.configuration.backend for t in found.trials} == {backend}
        vec.reset(seed=0)
        assert vec.step([1, 2, 3, 4])[1].tolist() == [1, 2, 3, 4]


@pytest.mark.usefixtures("quick_make")
def test_make_takes_the_native_pool_for_native_environments() -> None:
    with make("cartpole", 64, num_workers="auto") as vec:
        assert vec.backend == "native"
        assert vec.tuning is not None
        assert vec.num_workers == vec.tuning.choice.num_workers


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

    monkeypatch.setattr(MAKE, "find_configuration", refuse)
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
