"""`benchmarks/run.py`: a run that was cut off goes on where it was, if the code is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import run as benchmarks


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one commit, that the runner takes for its own."""
    for name in ("src", "native", "benchmarks/results", "tests/sandbox/attacks"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file.txt").write_text("first")
    monkeypatch.setattr(benchmarks, "HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(benchmarks, "RESULTS", tmp_path / "benchmarks/results")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    """Run git there, as somebody."""
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    """All that there is."""
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "more")


def measure() -> str:
    """Write a page as a run does; the commit that it names."""
    outcome = benchmarks.Outcome("a table", (True,), 1.0)
    benchmarks.write_page("native", benchmarks.BENCHMARKS["native"], outcome)
    return benchmarks.commit()


def test_nothing_is_measured_at_first(project: Path) -> None:
    assert benchmarks.measured_at("native") == ""


def test_what_was_measured_stays_so_while_only_results_change(project: Path) -> None:
    at = measure()
    assert len(at) >= 7
    assert benchmarks.measured_at("native") == at
    commit(project)  # the page itself
    assert benchmarks.measured_at("native") == at == benchmarks.commit()


@pytest.mark.parametrize("name", ["src", "native", "benchmarks", "tests/sandbox/attacks"])
@pytest.mark.parametrize("committed", [False, True])
def test_other_code_is_measured_anew(project: Path, name: str, committed: bool) -> None:
    at = measure()
    (project / name / "file.txt").write_text("second")
    git(project, "add", "-A")
    if committed:
        commit(project)
        assert benchmarks.commit() != at
    assert benchmarks.measured_at("native") == ""


def test_what_somebody_wrote_below_a_page_stays(project: Path) -> None:
    measure()
    page = project / "benchmarks/results/native.md"
    page.write_text(page.read_text() + "\nA note.\n")
    measure()
    assert page.read_text().endswith("```\n\nA note.\n")
    assert page.read_text().count("a table") == 1
