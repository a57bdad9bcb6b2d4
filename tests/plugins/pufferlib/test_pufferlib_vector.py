"""PufferLib's vectors: seeds, batches, faults, ends, and what they ask of actions."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import puffer_script as script
import pytest
import torch
from gymnasium import spaces
from puffer_toys import Bare, Echo, bare, f32

import fugu
import fugu_pufferlib as pufferlib
from fugu.core.errors import EnvError, UsageError
from fugu.vector import WorkerError

BACKENDS = ["Serial", "Multiprocessing", pytest.param("Ray", marks=pytest.mark.slow)]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for actors
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return str(request.param)


def test_seeds_reach_every_copy(backend: str) -> None:
    """Those of `make` and of `reset`, also where a worker has several copies."""
    make = pufferlib.vector.make
    vecenv = make(script.Squares, backend=backend, num_envs=4, num_workers=2, seed=10)
    own = [script.Squares(seed=seed) for seed in (10, 11, 12, 13)]
    vecenv.async_reset(None)
    seen = vecenv.recv()[0]
    assert np.array_equal(seen, np.concatenate([env.reset()[0] for env in own]))
    seen, _ = vecenv.reset(seed=100)
    assert np.array_equal(seen, np.concatenate([e.reset(100 + i)[0] for i, e in enumerate(own)]))
    vecenv.close()
    vecenv.close()


def test_batches_come_in_turn(backend: str) -> None:
    vecenv = pufferlib.vector.make(
        script.Squares, backend=backend, num_envs=4, num_workers=2, batch_size=2
    )
    if backend == "Serial":  # there a batch is all there is, as PufferLib has it
        assert (vecenv.num_agents, vecenv.agents_per_batch) == (8, 8)
        vecenv.close()
        return
    assert (vecenv.num_agents, vecenv.agents_per_batch, vecenv.num_envs) == (16, 8, 8)
    vecenv.async_reset(seed=1)
    for turn in range(6):
        ids = vecenv.recv()[5]
        assert ids.tolist() == list(range(8 * (turn % 2), 8 * (turn % 2) + 8))
        vecenv.send(vecenv.action_space.sample())
    vecenv.close()


def test_without_zero_copy_the_first_that_are_ready_come() -> None:
    vecenv = pufferlib.vector.make(
        Bare, backend="Multiprocessing", num_envs=3, num_workers=3, batch_size=2, zero_copy=False
    )
    vecenv.async_reset(seed=1)
    seen: set[int] = set()
    turns, until = 0, time.monotonic() + 60
    while turns < 20 or (
        len(seen) < 6 and time.monotonic() < until
    ):  # one may get no core at first
        turns += 1
        observations, *_, ids, masks = vecenv.recv()
        assert observations.shape == (4, 3)
        assert masks.all()
        assert len(set(ids // 2)) == 2
        seen |= set(ids.tolist())
        vecenv.send(np.zeros(4, np.int64))
    assert seen == set(range(6))
    vecenv.close()


def test_copies_may_be_made_each_in_its_own_way() -> None:
    marks = [{"mark": mark} for mark in (5, 6, 7)]
    for kind in (pufferlib.vector.Serial, pufferlib.vector.Multiprocessing):
        vecenv = pufferlib.vector.make(
            [Bare, bare, Bare], [[], [], []], marks, backend=kind, num_envs=3, num_workers=1
        )
        assert vecenv.reset(seed=4)[0][::2].tolist() == [[5, 0, 4], [6, 1, 5], [7, 2, 6]]
        vecenv.close()
    with pytest.raises(UsageError, match="lists of"):
        pufferlib.vector.make([Bare], [[]], [{}], backend="Serial", num_envs=2)


def test_serial_has_its_environments_at_hand() -> None:
    vecenv = pufferlib.vector.make(Bare, backend="Serial", num_envs=2)
    assert vecenv.driver_env is vecenv.envs[0]
    assert [env.seed for env in vecenv.envs] == [0, 1]
    vecenv.reset()
    vecenv.notify()
    assert vecenv.step(np.zeros(4, int))[0][:, 0].tolist() == [1, 1, 1, 1]
    assert np.shares_memory(vecenv.envs[1].observations, vecenv.batch.observations)
    vecenv.close()


def test_an_end_comes_with_the_next_beginning() -> None:
    vecenv = pufferlib.vector.make(script.make_machine, backend="Serial", num_envs=1)
    alone = script.make_machine()
    seen, _ = vecenv.reset(seed=2)
    alone.reset(seed=2)
    for _ in range(30):
        action = script.act(vecenv, seen)
        alone.step(action)
        last, flags = alone.observations.copy(), (alone.terminals[0], alone.truncations[0])
        seen, _, terminals, truncations, infos = vecenv.step(action)
        assert (terminals[0], truncations[0]) == flags
        if alone.done:
            assert np.array_equal(vecenv.batch.final, last)
            alone.reset()
            assert [set(info) for info in infos][-1] == {"begun"}
        assert np.array_equal(seen, alone.observations)
    vecenv.close()


@pytest.mark.parametrize("kind", ["Serial", "Multiprocessing"])
def test_actions_are_checked_before_anything_steps(kind: str) -> None:
    vecenv = pufferlib.vector.make(Bare, backend=kind, num_envs=1)
    with pytest.raises(pufferlib.APIUsageError):
        vecenv.recv()
    vecenv.reset()
    for wrong in (np.array([0, 4]), np.array([-1, 0]), np.zeros(3, int), np.array([np.nan, 0])):
        with pytest.raises(pufferlib.APIUsageError, match="send: given"):
            vecenv.send(wrong)
    assert vecenv.step(torch.tensor([1, 2]))[1].tolist() == [1.0, 2.0]
    with pytest.raises(pufferlib.APIUsageError):
        vecenv.recv()
    vecenv.close()


def test_an_error_in_a_process_is_mended_and_told() -> None:
    vecenv = pufferlib.vector.make(Bare, backend="Multiprocessing", num_envs=2, num_workers=2)
    vecenv.reset(seed=1)
    vecenv.send(np.array([1, 1, 3, 1]))
    _, rewards, terminals, truncations, infos, _, masks = vecenv.recv()
    assert truncations.tolist() == [False, False, True, True]
    assert rewards.tolist() == [1, 1, 0, 0]
    assert masks.all()
    assert not terminals.any()
    assert "three is too much" in infos[0]["fault"]
    assert vecenv.step(np.ones(4, int))[3].tolist() == [False] * 4
    vecenv.close()


def test_an_error_in_this_process_is_raised() -> None:
    vecenv = pufferlib.vector.make(Bare, backend="Serial", num_envs=2)
    vecenv.reset(seed=1)
    with pytest.raises(WorkerError, match="three is too much"):
        vecenv.step(np.array([1, 1, 3, 1]))


def test_a_vector_is_made_of_pufferlib_environments_alone() -> None:
    make = pufferlib.vector.make
    with pytest.raises(UsageError, match="something that makes a PufferEnv"):
        make(lambda **_: Echo(f32), backend="Serial")
    with pytest.raises(UsageError, match="Serial, Multiprocessing, Ray"):
        make(Bare, backend="Threads")
    with pytest.raises(UsageError, match="zero_copy"):
        make(Bare, backend="Serial", zerocopy=True)
    for wrong in (0, 1.5):
        with pytest.raises(UsageError, match="whole number from 1"):
            make(Bare, backend="Serial", num_envs=wrong)
    with pytest.raises(UsageError, match="one PufferEnv"):
        make(Bare, num_envs=2)
    with pytest.raises(UsageError, match="one PufferEnv"):
        make(script.make_machine)


def test_all_copies_need_the_same_spaces() -> None:
    class Wider(Bare):
        single_action_space = spaces.Discrete(5)

    with pytest.raises((EnvError, WorkerError), match="first copy"):
        pufferlib.vector.make([Bare, Wider], backend="Serial", num_envs=2)


def test_a_script_without_a_guard_uses_processes_where_they_are_forked(tmp_path: Path) -> None:
    text = """
import multiprocessing, numpy as np, gymnasium
import fugu_pufferlib as pufferlib
if multiprocessing.get_all_start_methods()[0] != "fork":
    raise SystemExit
def make_env(buf=None, seed=0):
    env = gymnasium.make("CartPole-v1")
    return pufferlib.emulation.GymnasiumPufferEnv(env=env, buf=buf)
vecenv = pufferlib.vector.make(make_env, backend="Multiprocessing", num_envs=2)
vecenv.reset()
assert vecenv.step(np.ones(2, int))[1].tolist() == [1.0, 1.0]
vecenv.close()
"""
    file = tmp_path / "script.py"
    file.write_text(text)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- for fugu's own vectors


def test_agents_that_leave_one_by_one_keep_the_contract() -> None:
    with fugu.make(lambda: pufferlib.to_fugu(script.make_herd), 1, backend="serial") as vec:
        vec.reset(seed=4)
        found = []
        for _ in range(7):
            vec.send(np.ones(3, int))
            batch = vec.recv()
            lengths = [info["episode_length"] for info in batch.infos.get(0, ())]
            found.append(
                (*(a.astype(int).tolist() for a in (batch.live, batch.terminations)), lengths)
            )
            assert not batch.observations[~batch.live].any()
            ended = batch.terminations
            if ended.any():
                assert batch.final[ended, 0].tolist() == np.flatnonzero(ended).tolist()
    nobody = [0, 0, 0]
    assert found == [
        ([1, 1, 1], nobody, []),
        ([0, 1, 1], [1, 0, 0], [2]),
        ([0, 1, 1], nobody, []),
        ([0, 0, 1], [0, 1, 0], [4]),
        ([1, 1, 1], [0, 0, 1], [5]),
        ([1, 1, 1], nobody, []),
        ([0, 1, 1], [1, 0, 0], [2]),
    ]


def test_those_that_restart_themselves_tell_their_episodes() -> None:
    """By return and length, and with what they acted on last."""
    alone = script.Squares(seed=0)
    with fugu.make(lambda: pufferlib.to_fugu(script.Squares), 1, backend="serial") as vec:
        seen, _ = vec.reset(seed=[4])
        alone.reset(4)
        returns, lengths, told = np.zeros(4), np.zeros(4, int), 0
        for step in range(12):
            before = seen.copy()
            actions = np.random.default_rng(step).integers(0, 3, (4, 2))
            vec.send(actions)
            batch = vec.recv()
            seen = batch.observations
            _, rewards, terminals, truncations, _ = alone.step(actions)
            assert np.array_equal(seen.reshape(4, 2, 3), alone.observations)
            assert np.array_equal(batch.terminations, terminals)
            assert np.array_equal(batch.truncations, truncations)
            returns, lengths = returns + rewards, lengths + 1
            ended = np.flatnonzero(terminals | truncations)
            assert np.array_equal(batch.final[ended], before[ended])
            infos = batch.infos.get(0, ())
            assert [info["episode_return"] for info in infos] == returns[ended].tolist()
            assert [info["episode_length"] for info in infos] == lengths[ended].tolist()
            assert all("ages" in info for info in infos)
            returns[ended], lengths[ended], told = 0.0, 0, told + len(infos)
        assert told


def test_observations_that_are_replaced_and_not_written_are_noticed() -> None:
    class Replacing(Bare):
        def step(self, actions: Any) -> Any:
            self.observations = self.observations + 1
            return self.observations, self.rewards, self.terminals, self.truncations, []

    vecenv = pufferlib.vector.make(Replacing, backend="Serial")
    vecenv.reset()
    vecenv.send(np.zeros(2, int))
    with pytest.raises(WorkerError, match=r"self.observations\[:\] ="):
        vecenv.recv()
