"""What every native environment keeps to: seeds, snapshots, refusals, ends, pictures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_helpers import NAMES, Players, play, step_all

import fugu
from fugu.core.errors import ActionError, UsageError
from fugu.core.seeding import derive
from fugu.envs import suite
from fugu.envs.native_env import NativeLibrary
from fugu.vector import make

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def library(name: str) -> NativeLibrary:
    return NativeLibrary.load(suite.find(name) or "")


def played(name: str, steps: int = 60, seed: int = 5, **options: Any) -> list[bytes]:
    with make(name, 6, **options) as vec:
        vec.async_reset(seed=seed)
        return play(vec, steps)


def test_there_are_enough_of_them() -> None:
    assert len(NAMES) >= 24


def test_the_same_seed_gives_the_same_bytes_on_any_backend_and_number_of_threads(name: str) -> None:
    alone = played(name, num_workers=1)
    assert played(name, num_workers=2) == alone
    assert played(name, num_workers=3) == alone
    assert played(name, backend="serial") == alone
    assert played(name, backend="threads", num_workers=2) == alone
    halves = played(name, num_workers=2, batch_size=3, ordered=True)
    assert len(halves) == 2 * len(alone)
    assert played(name, backend="serial", batch_size=3, ordered=True) == halves


def test_another_seed_gives_other_states(name: str) -> None:
    found = set()
    for seed in (1, 2):
        with make(name, 2) as vec:
            vec.reset(seed=seed)
            found.add(vec.state().tobytes())
    assert len(found) == 2


def test_a_snapshot_goes_back_exactly(name: str) -> None:
    with make(name, 8, num_workers=2) as vec:
        vec.reset(seed=3)
        before = Players(vec, 8, 1)
        for _ in range(37):
            step_all(vec, before)
        state = vec.state()
        runs = []
        for _ in range(2):
            players = Players(vec, 8, 2)
            runs.append([step_all(vec, players).tobytes() for _ in range(1000)])
            vec.set_state(state)
        assert runs[0] == runs[1]
        assert np.array_equal(vec.state(), state)


def test_copies_can_begin_from_one_state_of_one_of_them(name: str) -> None:
    with make(name, 4) as vec:
        vec.reset(seed=3)
        players = Players(vec, 4)
        for _ in range(5):
            step_all(vec, players)
        batch = vec.set_state(vec.state()[2])
        for group in batch.groups:
            rows = group.rows.observations.reshape(4, -1)
            assert (rows == rows[0]).all()


def test_episodes_are_cut_off_at_max_steps_with_a_final_observation(name: str) -> None:
    with make(name, 3, env_kwargs={"max_steps": 4}) as vec:
        vec.reset(seed=1)
        players = Players(vec, 3)
        lengths = np.zeros(3, int)
        for _ in range(12):
            vec.send(players.actions(vec._slab.rows))
            batch = vec.recv()
            lengths += 1
            for env in range(3):
                rows = [_rows_of(batch, env, g) for g in range(len(batch.groups))]
                cut = any(r["truncations"].any() for r in rows)
                assert not cut or lengths[env] <= 4
                if cut or all(r["terminations"].all() for r in rows):
                    lengths[env] = 0
                    assert env in batch.infos
            assert (lengths <= 4).all()


def _rows_of(batch: Any, env: int, group: int) -> dict[str, Any]:
    found = batch.groups[group]
    agents = len(found.agent_ids) // 3
    part = slice(env * agents, (env + 1) * agents)
    return {key: getattr(found.rows, key)[part] for key in ("terminations", "truncations")}


def test_infos_tell_of_whole_episodes(name: str) -> None:
    """The mean return of the infos is that of the rewards, summed by hand over whole episodes."""
    with make(name, 4, env_kwargs={"max_steps": 20}) as vec:
        vec.reset(seed=2)
        players = Players(vec, 4)
        totals = [np.zeros(len(r.rewards)) for r in vec._slab.rows]
        for _ in range(100):
            vec.send(players.actions(vec._slab.rows))
            batch = vec.recv()
            ended: dict[int, list[float]] = {}
            for total, group in zip(totals, batch.groups, strict=True):
                rows = group.rows
                total += rows.rewards
                over = np.flatnonzero(rows.terminations | rows.truncations)
                for row in over.tolist():
                    env = int(group.agent_ids[row]) // (len(total) // 4)
                    ended.setdefault(env, []).append(total[row])
                    total[row] = 0
            assert set(batch.infos) == set(ended)
            for env, returns in ended.items():
                (info,) = batch.infos[env]
                assert info["episode_return"] == pytest.approx(np.mean(returns), abs=1e-3, rel=1e-4)
                assert all(math.isfinite(value) for value in info.values())


def test_observations_are_values_of_their_space(name: str) -> None:
    with make(name, 4) as vec:
        vec.reset(seed=2)
        players = Players(vec, 4)
        for _ in range(200):
            step_all(vec, players)
            for group, rows in zip(vec.groups, vec._slab.rows, strict=True):
                layout = group.observation_layout
                assert layout.space.contains(layout.unpack(rows.observations[0]))
                assert np.isfinite(rows.rewards).all()


def test_every_setting_has_words_and_refuses_what_is_out_of_range(name: str) -> None:
    for key, setting in library(name).settings.items():
        assert setting.text
        assert setting.low <= setting.initial <= setting.high
        for wrong in (setting.low - 1, setting.high + 1e12, math.nan, math.inf, "5", None):
            with pytest.raises(UsageError, match=rf"^{key}: given .*allowed: "):
                make(name, env_kwargs={key: wrong})
    with pytest.raises(UsageError, match="given a setting 'max_step'.*Did you mean 'max_steps'"):
        make(name, env_kwargs={"max_step": 5})


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_settings_never_crash(name: str, data: st.DataObject) -> None:
    chosen = {}
    for key, setting in library(name).settings.items():
        numbers: Any = (
            st.integers(int(setting.low), int(setting.high))
            if setting.whole
            else st.floats(setting.low, setting.high)
        )
        if data.draw(st.booleans(), label=f"set {key}"):
            chosen[key] = data.draw(numbers, label=key)
    with make(name, 2, env_kwargs=chosen) as vec:
        vec.reset(seed=data.draw(st.integers(0, 2**64 - 1)))
        players = Players(vec, 2)
        for _ in range(30):
            step_all(vec, players)
        for rows in vec._slab.rows:
            assert not np.isnan(rows.rewards).any()


def test_actions_outside_the_space_are_refused_with_their_name(name: str) -> None:
    with make(name, 2) as vec:
        vec.reset(seed=0)
        players = Players(vec, 2)
        state = vec.state()
        for g, group in enumerate(vec.groups):
            for path, value in _wrong(group.action_layout):
                actions = players.actions(vec._slab.rows)
                parts = [actions] if len(vec.groups) == 1 else list(actions)
                group.action_layout.views(parts[g])  # the layout is what is meant
                _set(group.action_layout, parts[g], path, value)
                with pytest.raises(ActionError, match=path or "value"):
                    vec.send(parts[0] if len(parts) == 1 else tuple(parts))
        assert np.array_equal(vec.state(), state)  # nobody stepped
        step_all(vec, players)


def _wrong(layout: Any) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for leaf in layout.leaves:
        space = layout.space[leaf.path] if leaf.path else layout.space
        if isinstance(space, spaces.Box):
            found += [(leaf.path, v) for v in (math.nan, math.inf, float(space.high.max()) + 1)]
        else:
            count = space.n if isinstance(space, spaces.Discrete) else space.nvec.max()
            found += [(leaf.path, v) for v in (-1, int(count), 2**62, -(2**63))]
    return found


def _set(layout: Any, rows: Any, path: str, value: float) -> None:
    (leaf,) = [leaf for leaf in layout.leaves if leaf.path == path]
    raw = rows.view(np.uint8).reshape(len(rows), -1)
    size = leaf.dtype.itemsize
    raw[-1, leaf.offset : leaf.offset + size] = np.array([value], leaf.dtype).view(np.uint8)


def test_seeds_derive_from_the_run_the_copy_and_the_episode() -> None:
    with make("cartpole", 3) as vec:
        vec.reset(seed=9)
        state = vec.state()
        seeds = state[:, 8:16].copy().view(np.uint64)[:, 0]
        assert seeds.tolist() == [derive(9, env) for env in range(3)]
    with make("cartpole", 4, group_size=2) as vec:
        observations, _ = vec.reset(seed=9)
        assert np.array_equal(observations[0], observations[1])
        assert not np.array_equal(observations[1], observations[2])


def test_every_environment_has_words_and_a_picture(name: str) -> None:
    lib = library(name)
    spec = lib.spec(lib.values({}))
    assert lib.summary.endswith(".")
    assert spec.reward
    assert spec.size[0] > 0
    assert spec.frames > 0
    for observation, action in spec.leaves:
        assert all(leaf["text"] for leaf in (*observation, *action))
    with fugu.make(name, 1) as vec:
        vec.reset(seed=0)
        step_all(vec, Players(vec, 1))
        (drawn,) = vec.apply(_display_list)
        assert len(drawn[1]) > 1


def _display_list(env: Any) -> Any:
    return env.display_list()
