"""Minari's format: what goes out comes back, and their own reader agrees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("minari", reason="minari is not installed: pip install 'fugu-rl[minari]'")
pytest.importorskip("h5py", reason="h5py is not installed: pip install 'fugu-rl[minari]'")

from fugu.core.errors import UsageError
from fugu.data.minari import export_minari, import_minari
from fugu.data.offline import ARRAYS, Dataset, DatasetError, DatasetWriter, Episode
from fugu.data.recording import record_episodes
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout
from fugu.vector import make

NESTED = spaces.Dict(
    gear=spaces.Discrete(5, start=2),
    picture=spaces.Box(0, 255, (32, 32, 3), np.uint8),
    pair=spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.MultiBinary(3))),
    word=spaces.Text(4),
)


def test_a_recorded_dataset_goes_out_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    record_episodes("CartPole-v1", tmp_path / "data", episodes=4, copies=2, backend="serial")
    data = Dataset(tmp_path / "data")
    with make("CartPole-v1", 1, backend="serial") as vec:
        export_minari(data, "cartpole/random-v0", vec.groups[0])
        theirs = minari.load_dataset("cartpole/random-v0")
        assert (theirs.total_episodes, theirs.total_steps) == (len(data), data.steps)
        assert theirs.env_spec.id == "CartPole-v1"
        assert theirs[1].observations == pytest.approx(np.array(data[1].observations))
        assert theirs[1].actions.tolist() == data[1].actions[:, 0].tolist()
        assert theirs[1].terminations[-1]
        back = import_minari("cartpole/random-v0", tmp_path / "back")
        back.check(vec.groups[0])
        with pytest.raises(UsageError, match="taken"):
            export_minari(data, "cartpole/random-v0", vec.groups[0])
    assert back.metadata["env"] == "CartPole-v1"
    assert_same(back, data)


def test_a_name_in_a_dataset_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("strange_games.py").write_text("open('imported', 'w').close()\n")
    record_episodes("CartPole-v1", tmp_path / "data", episodes=2, copies=1, backend="serial")
    path = tmp_path / "data" / "metadata.json"
    strange = {"env": "strange_games:CartPole-v1", "env_kwargs": {"gravity": "/x"}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **strange}))
    with make("CartPole-v1", 1, backend="serial") as vec:
        export_minari(Dataset(tmp_path / "data"), "x/y-v0", vec.groups[0], folder=tmp_path / "out")
    assert not Path("imported").exists()
    assert "gravity" not in gymnasium.registry["CartPole-v1"].kwargs


def test_structured_spaces_and_images_come_back_exactly(tmp_path: Path) -> None:
    group = AgentGroup(
        "agent", (0,), Layout.of(NESTED), Layout.of(spaces.Dict(a=spaces.Discrete(3)))
    )
    with DatasetWriter(tmp_path / "data", group) as writer:
        for steps in (2, 3):
            writer.add(drawn(group, steps))
    data = Dataset(tmp_path / "data")
    out = export_minari(data, "nested-v0", group, folder=tmp_path / "minari")
    assert_same(import_minari(out, tmp_path / "back", group), data)
    sorted_keys = import_minari(out, tmp_path / "sorted")
    sorted_keys.verify()
    assert sorted_keys.rewards.tolist() == data.rewards.tolist()
    with pytest.raises(DatasetError, match="as the environment has them"):
        sorted_keys.check(group)


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(UsageError, match="minari download"):
        import_minari("nobody/knows-v0", tmp_path / "data")


def assert_same(found: Dataset, given: Dataset) -> None:
    assert len(found) == len(given)
    for mine, theirs in zip(found, given, strict=True):
        for name in ARRAYS:
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


def drawn(group: AgentGroup, steps: int) -> Episode:
    tables: list[Any] = []
    for layout, count in ((group.observation_layout, steps + 1), (group.action_layout, steps)):
        layout.space.seed(steps)
        table = layout.zeros(count)
        for row in table:
            layout.pack(layout.space.sample(), row)
        tables.append(table)
    ends = np.zeros((2, steps), np.bool_)
    return Episode(*tables, np.arange(steps, dtype=np.float32), *ends)
