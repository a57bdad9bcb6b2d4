"""Every Python block of the README and the docs runs as it stands.

Blocks of a language and a file name (```c lights.h) are written to that file, one behind the other.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fugu.envs import suite

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for file, block in re.findall(r"```\w+ (\S+)\n(.*?)```", page.read_text(), re.S):
        with (tmp_path / file).open("a") as out:
            out.write(block + "\n")
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.S):
        exec(compile(block, str(page), "exec"), names)
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert all((page.parent / link).exists() for link in links), links


def test_pages_of_environments_are_what_they_describe() -> None:
    script = ROOT / "docs" / "generate_env_pages.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr} Run: python {script}"
    for name in suite.names():
        assert (ROOT / "docs/envs/pictures" / f"{name}.png").stat().st_size > 1000
