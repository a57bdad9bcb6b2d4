"""Datasets: what was written is read, whatever was under way when the writer died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import fugu.data.offline as offline
from fugu.core.errors import UsageError
from fugu.data.offline import Dataset, DatasetError, DatasetWriter, Episode
from fugu.data.recording import GroupRecorder, Recorder, record_episodes
from fugu.envs.contract import AgentGroup, Buffers
from fugu.spaces import Layout
from fugu.vector import make

TREE = spaces.Dict(
    gear=spaces.Discrete(5, start=2),
    view=spaces.Box(0, 255, (2, 3), np.uint8),
    speed=spaces.Box(-1, 1, (2,), np.float32),
)


def group_of(
    observation: Any = TREE,
    action: Any = spaces.MultiDiscrete([3, 2]),  # noqa: B008
) -> AgentGroup:
    return AgentGroup("agent", (0,), Layout.of(observation), Layout.of(action))


def episode(group: AgentGroup, steps: int, seed: int) -> Episode:
    random = np.random.default_rng(seed)
    rows = []
    for layout, count in ((group.observation_layout, steps + 1), (group.action_layout, steps)):
        layout.space.seed(seed)
        table = layout.zeros(count)
        for row in table:
            layout.pack(layout.space.sample(), row)
        rows.append(table)
    ends = np.zeros((2, steps), np.bool_)
    ends[seed % 2, -1] = True
    return Episode(*rows, random.standard_normal(steps).astype(np.float32), *ends)


def assert_same(found: Episode, given: Episode) -> None:
    for name in offline.ARRAYS:
        assert np.array_equal(getattr(found, name), getattr(given, name)), name


def test_what_was_written_is_read_and_more_can_follow(tmp_path: Path) -> None:
    group = group_of()
    given = [episode(group, steps, seed) for seed, steps in enumerate((3, 1, 7, 4))]
    for part in (given[:3], given[3:]):
        with DatasetWriter(tmp_path / "data", group, "some:env", {"size": 3}) as writer:
            for each in part:
                writer.add(each)
    data = Dataset(tmp_path / "data")
    assert (len(data), data.steps, data.lengths.tolist()) == (4, 15, [3, 1, 7, 4])
    for found, each in zip(data, given, strict=True):
        assert_same(found, each)
    assert isinstance(data[0].observations.base, np.memmap)
    assert data.returns == pytest.approx([e.rewards.sum(dtype=np.float64) for e in given])
    assert (data.metadata["env"], data.metadata["env_kwargs"]) == ("some:env", {"size": 3})
    assert data.metadata["statistics"]["longest"] == 7
    data.verify()
    plain = np.load(tmp_path / "data" / "rewards.npy")  # a file like any other
    assert np.array_equal(plain, np.concatenate([e.rewards for e in given]))


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    group = group_of()
    with DatasetWriter(tmp_path, group) as writer:
        writer.add(episode(group, 5, 0))
    Dataset(tmp_path).verify()
    for name in ("rewards.npy", "episodes.npy"):
        path = tmp_path / name
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        with pytest.raises(DatasetError, match="checksum"):
            Dataset(tmp_path).verify()
        path.write_bytes(content)
    Dataset(tmp_path).verify()


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    group = group_of()
    with DatasetWriter(tmp_path / "data", group, "a") as writer:
        writer.add(episode(group, 2, 0))
        whole = episode(group, 2, 1)
        short = Episode(whole.observations[:-1], *_rest(whole))
        with pytest.raises(UsageError, match="observations of shape"):
            writer.add(short)
    other = group_of(action=spaces.MultiDiscrete([3, 4]))
    with pytest.raises(DatasetError, match="choices"):
        Dataset(tmp_path / "data").check(other)
    with pytest.raises(DatasetError, match="observations of"):
        DatasetWriter(tmp_path / "data", group_of(spaces.Discrete(3)))
    with pytest.raises(DatasetError, match="those of 'a'"):
        DatasetWriter(tmp_path / "data", group, "b")
    with pytest.raises(DatasetError, match="fugu record"):
        Dataset(tmp_path / "nothing")


def _rest(each: Episode) -> tuple[Any, ...]:
    return tuple(getattr(each, name) for name in offline.ARRAYS[1:])


@pytest.mark.parametrize("left", ["data", "lines", "header"])
def test_leftovers_beyond_the_metadata_do_not_count(left: str, tmp_path: Path) -> None:
    """What stands there when a writer dies between its steps."""
    group = group_of()
    given = [episode(group, steps, steps) for steps in (3, 4)]
    with DatasetWriter(tmp_path, group) as writer:
        writer.add(given[0])
    metadata = (tmp_path / offline.METADATA).read_bytes()
    with DatasetWriter(tmp_path, group) as writer:
        writer.add(given[1])
    (tmp_path / offline.METADATA).write_bytes(metadata)  # all was written, but for the rename
    if left == "data":  # or a part of it
        with (tmp_path / "actions.npy").open("r+b") as file:
            file.truncate(os.path.getsize(file.name) - 5)
    if left == "header":
        header = (tmp_path / "rewards.npy").read_bytes()[:128]
        assert b"(7,)" in header
    assert len(Dataset(tmp_path)) == 1
    with DatasetWriter(tmp_path, group) as writer:
        writer.add(given[1])
    data = Dataset(tmp_path)
    data.verify()
    assert_same(data[0], given[0])
    assert_same(data[1], given[1])


def test_a_killed_writer_loses_only_what_was_not_committed(tmp_path: Path) -> None:
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import fugu.data.offline as offline
        from test_offline import episode, group_of

        offline.COMMIT_BYTES = 400
        writer = offline.DatasetWriter({str(tmp_path)!r}, group_of())
        for number in range(10**9):
            writer.add(episode(group_of(), 1 + number % 5, number))
            print(writer.episodes, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = 0
    for line in process.stdout:
        told = int(line)
        if told >= 20:
            break
    process.send_signal(signal.SIGKILL)
    rest = [int(line) for line in process.stdout.read().split()]
    assert process.wait() == -signal.SIGKILL
    data = Dataset(tmp_path)
    data.verify()
    assert len(data) >= max([told, *rest])
    for number, found in enumerate(data):
        assert_same(found, episode(group_of(), 1 + number % 5, number))


def test_keep_goes_back(tmp_path: Path) -> None:
    group = group_of()
    with DatasetWriter(tmp_path, group) as writer:
        for steps in (2, 3, 4):
            writer.add(episode(group, steps, steps))
        writer.commit()
        writer.keep(1)
        writer.add(episode(group, 6, 6))
    data = Dataset(tmp_path)
    data.verify()
    assert data.lengths.tolist() == [2, 6]


def test_episodes_are_counted_from_both_ends_and_those_beyond_are_refused(tmp_path: Path) -> None:
    group = group_of()
    given = [episode(group, steps, steps) for steps in (2, 3)]
    with DatasetWriter(tmp_path, group) as writer:
        for each in given:
            writer.add(each)
    data = Dataset(tmp_path)
    for index in (0, 1, -1, -2):
        assert_same(data[index], given[index])
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"episode {index}: there are 2"):
            data[index]


def test_a_writer_refuses_other_types_of_numbers_and_counts_that_there_are_not(
    tmp_path: Path,
) -> None:
    group = group_of()
    whole = episode(group, 2, 1)
    with DatasetWriter(tmp_path / "data", group) as writer:
        writer.add(whole)
        with pytest.raises(UsageError, match="rewards of float64"):
            writer.add(replace(whole, rewards=whole.rewards.astype(np.float64)))
        with pytest.raises(UsageError, match="one step or more"):
            writer.add(Episode(whole.observations[:1], *(part[:0] for part in _rest(whole))))
        writer.commit()
        for count in (-1, 2):
            with pytest.raises(UsageError, match=f"keep: given {count}; allowed: 0 to 1"):
                writer.keep(count)
        writer.keep(1)
        assert writer.episodes == 1
        writer.keep(0)
        assert writer.episodes == 0
    assert len(Dataset(tmp_path / "data")) == 0
    (tmp_path / "data" / offline.METADATA).unlink()
    with pytest.raises(DatasetError, match=r"a folder with observations.npy and no metadata.json"):
        DatasetWriter(tmp_path / "data", group)


def test_many_bytes_are_committed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_of()
    each = episode(group, 2, 1)
    size = sum(getattr(each, name).nbytes for name in offline.ARRAYS)
    monkeypatch.setattr(offline, "COMMIT_BYTES", 2 * size)
    with DatasetWriter(tmp_path, group) as writer:
        for committed in (0, 2, 2, 4):
            writer.add(each)
            assert writer.episodes == committed


def test_statistics_are_means_deviations_and_extremes() -> None:
    found = offline.statistics(np.array([1.0, 3.0, 8.0]), np.array([5, 6, 10]))
    assert found == {
        "mean_return": 4.0,
        "deviation": pytest.approx(np.sqrt(26 / 3)),
        "lowest": 1.0,
        "highest": 8.0,
        "mean_length": 7.0,
        "longest": 10,
    }
    assert offline.statistics(np.array([]), np.array([])) == {}


@pytest.mark.parametrize("name", [*offline.ARRAYS, "episodes"])
def test_files_that_are_too_short_are_refused(name: str, tmp_path: Path) -> None:
    group = group_of()
    with DatasetWriter(tmp_path, group) as writer:
        writer.add(episode(group, 3, 1))
    path = tmp_path / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DatasetError, match=f"{name}.npy: it is shorter than its metadata says"):
        Dataset(tmp_path)
    with pytest.raises(DatasetError, match=f"{name}.npy: it is shorter than its metadata says"):
        DatasetWriter(tmp_path, group)


# ------------------------------------------------------------------ recording


def rows_of(group: AgentGroup, **columns: Any) -> Buffers:
    """One agent's row; alive, and nothing happened but what is given."""
    buffers = Buffers.allocate(group)
    buffers.live[:], buffers.valid[:] = True, True
    for name, value in columns.items():
        getattr(buffers, name)[...] = value
    return buffers


def test_rewards_belong_to_the_last_action_and_broken_episodes_are_left_out(
    tmp_path: Path,
) -> None:
    group = group_of(spaces.Box(0, 9, (1,)), spaces.Discrete(9))
    agents = np.array([0])
    with DatasetWriter(tmp_path, group) as writer:
        recorder = GroupRecorder(writer, 1)

        def note(action: int, **columns: Any) -> None:
            recorder.record(agents, rows_of(group, **columns), np.array([[action]]))

        note(3, observations=1)
        note(0, rewards=1.0, live=False)  # another's turn
        note(4, rewards=0.5, observations=2)
        note(5, rewards=2.0, terminations=True, final=7, observations=3)
        note(6, rewards=9.0, valid=False, observations=4)  # a fault: what 5 did is lost
        note(7, rewards=0.25, truncations=True, final=8, observations=5)
    data = Dataset(tmp_path)
    assert [e.actions[:, 0].tolist() for e in data] == [[3, 4], [6]]
    assert [e.rewards.tolist() for e in data] == [[1.5, 2.0], [0.25]]
    assert [e.observations[:, 0].tolist() for e in data] == [[1, 2, 7], [4, 8]]
    assert [e.terminations.tolist() for e in data] == [[False, True], [False]]
    assert [e.truncations.tolist() for e in data] == [[False, False], [True]]


def test_recorded_episodes_are_what_the_environment_did(tmp_path: Path) -> None:
    import gymnasium

    count = record_episodes("CartPole-v1", tmp_path, episodes=7, copies=3, seed=2, backend="serial")
    data = Dataset(tmp_path)
    assert count == len(data) == 9
    env = gymnasium.make("CartPole-v1")
    for found in data:
        env.reset()
        env.unwrapped.state = np.array(found.observations[0], np.float64)  # type: ignore[attr-defined]
        for step in range(len(found)):
            seen, reward, terminated, _, _ = env.step(int(found.actions[step, 0]))
            assert seen == pytest.approx(found.observations[step + 1], abs=1e-4)
            assert (reward, terminated) == (found.rewards[step], found.terminations[step])
        assert found.terminations[-1]


def test_one_episode_can_be_recorded_and_none_is_refused(tmp_path: Path) -> None:
    assert record_episodes("CartPole-v1", tmp_path / "one", episodes=1, backend="serial") == 1
    assert len(Dataset(tmp_path / "one")) == 1
    with pytest.raises(UsageError, match="episodes: given 0"):
        record_episodes("CartPole-v1", tmp_path / "none", episodes=0)


def test_groups_have_folders_of_their_own(tmp_path: Path) -> None:
    with make("speaker_listener", 2) as vec:
        names = [group.name for group in vec.groups]
        recorder = Recorder(vec, tmp_path, "speaker_listener")
        recorder.close()
    assert len(names) > 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
