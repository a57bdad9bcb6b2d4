"""Writing pages, and `fugu gallery`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fugu.cli.main import main
from fugu.core.errors import UsageError
from fugu.envs.building import build
from fugu.web import write_gallery, write_page


def data_of(page: Path) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return json.loads(found[1])


def test_a_page_is_one_file_that_names_nothing_outside(tmp_path: Path, policy_files: Any) -> None:
    page = write_page(
        tmp_path / "new" / "folder", "breakout", policy_files("breakout"), title="<b>"
    )
    assert [path.name for path in page.path.parent.iterdir()] == ["index.html"]
    html = page.path.read_text()
    assert "<title>&lt;b&gt;</title>" in html
    assert "{{" not in html
    outside = set(re.findall(r"(?:src|href)=[\"']([^\"'#]+)", html))
    assert all(address.startswith("data:") for address in outside)
    assert page.module_bytes["breakout"] < 40_000
    (game,) = data_of(page.path)["games"]
    assert [group["thinks"] for group in game["groups"]] == [True]


def test_settings_reach_the_page(tmp_path: Path) -> None:
    page = write_page(tmp_path, "connect4", env_kwargs={"opponent": 2})
    (game,) = data_of(page.path)["games"]
    assert game["groups"][0]["agents"] == ["player_0", "player_1"]
    assert len(game["cells"]) == 2


def test_what_a_browser_cannot_run_is_refused(tmp_path: Path, policy_files: Any) -> None:
    with pytest.raises(UsageError, match="'CartPole-v1', which a browser cannot run"):
        write_page(tmp_path, "CartPole-v1")
    with pytest.raises(UsageError, match="one for each group of its agents, by name: speaker, l"):
        write_page(tmp_path, "speaker_listener", policy_files("breakout"))
    with pytest.raises(UsageError, match="each of another name"):
        write_gallery(tmp_path, ["pong", "pong"])
    assert not list(tmp_path.iterdir())


def test_an_environment_without_a_picture_is_refused(tmp_path: Path) -> None:
    from fugu.envs import suite

    text = (suite.folder() / "bandit.h").read_text()
    header = tmp_path / "blind.h"
    header.write_text(text.replace("bandit", "blind").replace("fugu_picture(spec, 6, 4, 8);", ""))
    with pytest.raises(UsageError, match="'blind', which draws nothing"):
        write_page(tmp_path / "page", str(build(header)))


def test_the_command_writes_a_gallery(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here"
    assert main(["gallery", "--out", str(out), "--env", "pong", "--env", "bandit"]) == 0
    told = capsys.readouterr().out
    assert f"wrote {out / 'index.html'}: 2 environments" in told
    assert (out / "index.html").as_uri() in told
    data = data_of(out / "index.html")
    assert [kind["games"] for kind in data["kinds"]] == [["pong"], ["bandit"]]


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["gallery", "--out", str(tmp_path / "file")]) == 1
    assert "a file; allowed: a folder" in capsys.readouterr().err
    assert main(["gallery", "--out", str(tmp_path), "--env", "breakuot"]) == 1
    assert "breakuot" in capsys.readouterr().err
