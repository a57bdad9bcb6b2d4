"""A dataset for which there is no room stays as it is, and grows once there is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from fugu.data.offline import Dataset, DatasetWriter, Episode
from fugu.envs.contract import AgentGroup
from fugu.spaces import Layout


def episode(steps: int) -> Episode:
    rows = np.full((steps + 1, 2), steps, np.float32)
    ends = np.zeros((2, steps), np.bool_)
    return Episode(rows, np.zeros((steps, 1), np.int64), np.ones(steps, np.float32), *ends)


@pytest.mark.parametrize("written", range(7))
def test_a_commit_that_failed_can_be_made_again(
    written: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its files had no room."""
    layouts = Layout.of(spaces.Box(0, 9, (2,), np.float32)), Layout.of(spaces.Discrete(2))
    writer = DatasetWriter(tmp_path, AgentGroup("agent", (0,), *layouts))
    writer.add(episode(3))
    writer.commit()
    left = iter(range(written))

    def refuse(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer.add(episode(5))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="No space left"):
            writer.commit()
    before = Dataset(tmp_path)
    before.verify()
    assert [len(each) for each in before] == [3]
    writer.close()
    after = Dataset(tmp_path)
    after.verify()
    assert [len(each) for each in after] == [3, 5]
    assert (after[1].observations == 5).all()
