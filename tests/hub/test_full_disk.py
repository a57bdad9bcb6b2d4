"""A push to a full disk keeps the run that was shared before."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fugu.core.errors import DiskFullError
from fugu.hub.pull import pull
from fugu.hub.push import push_to_hub
from fugu.store.run import Run

pytestmark = pytest.mark.timeout(200)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_older_run_stays(
    run: Run, older: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    push_to_hub(older, shared, episodes=0, video=False)
    before, copy = files(shared), shutil.copyfile
    left = iter(range(3))

    def refuse(source: Any, target: Any) -> Any:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", refuse)
        with pytest.raises(DiskFullError, match="is unchanged"):
            push_to_hub(run, shared, episodes=0, video=False)
    assert files(shared) == before
    pull(shared, root=tmp_path / "runs")
    push_to_hub(run, shared, episodes=0, video=False)
    assert files(shared) != before
