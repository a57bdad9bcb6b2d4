"""`fugu doctor`: it shows what is there, and survives what is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fugu
from fugu.cli import doctor
from fugu.cli.doctor import Requirement, Row, Section, satisfies
from fugu.cli.main import main
from fugu.sandbox import launch

SECTIONS = [
    "fugu",
    "Python",
    "required packages",
    "processor",
    "memory",
    "processes",
    "sandbox",
    "torch",
    "extras",
    "compilers",
]


def rows_of(report: dict[str, Any], section: str) -> dict[str, dict[str, str]]:
    (found,) = (s for s in report["sections"] if s["name"] == section)
    return {row["name"]: row for row in found["rows"]}


def doctor_without(module: str) -> tuple[int, dict[str, Any]]:
    # not through main: tyro imports a torch that it sees in sys.modules, even one that is None
    code = (
        f"import sys; sys.modules[{module!r}] = None;"
        "from fugu.cli.doctor import Doctor; sys.exit(Doctor(json=True).run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def collect_only(monkeypatch: pytest.MonkeyPatch, **probes: Any) -> list[Row]:
    monkeypatch.setattr(doctor, "_PROBES", {"some": probes})
    (section,) = doctor.collect()
    return list(section.rows)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    assert [section["name"] for section in report["sections"]] == SECTIONS
    assert all(section["rows"] for section in report["sections"])
    for section in report["sections"]:
        for row in section["rows"]:
            assert set(row) == {"name", "value", "status", "advice"}
            assert row["status"] in ("ok", "info", "warn", "error")
            assert "the probe failed" not in row["value"], row
    assert rows_of(report, "fugu")["version"]["value"] == fugu.__version__
    required = rows_of(report, "required packages")
    assert {"numpy", "gymnasium", "rich", "tyro"} <= set(required)
    assert {row["status"] for row in required.values()} == {"ok"}


@pytest.mark.parametrize("width", [80, 120])
def test_tables_say_the_same_as_json(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    shown = "".join("".join(lines).split())  # cells are wrapped
    for section in doctor.collect():
        assert section.name in lines
        for row in section.rows:
            assert "".join(row.name.split()) in shown
    assert 'pipinstall"fugu-rl[train]"' in shown
    assert lines[-1].startswith(("Healthy", "Warnings")) or "Healthy" in lines[-2]


def test_without_the_extension_it_says_why() -> None:
    status, report = doctor_without("fugu._native")
    row = rows_of(report, "fugu")["native extension"]
    assert status == 0
    assert row["status"] == "warn"
    assert "halted; None in sys.modules" in row["value"]
    assert "pip install" in row["advice"]


def test_without_torch() -> None:
    status, report = doctor_without("torch")
    rows = rows_of(report, "torch")
    assert status == 0
    assert list(rows) == ["version"]
    assert rows["version"]["status"] == "warn"
    assert 'pip install "fugu-rl[train]"' in rows["version"]["advice"]


def test_without_a_required_package_it_is_not_healthy() -> None:
    status, report = doctor_without("gymnasium")
    row = rows_of(report, "required packages")["gymnasium"]
    assert status == 1
    assert report["healthy"] is False
    assert row["status"] == "error"
    assert "does not import" in row["value"]


def test_a_probe_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> Iterator[Row]:
        yield Row("before", "there")
        raise OSError("no such thing")

    def works() -> Iterator[Row]:
        yield Row("after", "there")

    before, failed, after = collect_only(monkeypatch, broken=breaks, working=works)
    assert (before.name, failed.name, after.name) == ("before", "broken", "after")
    assert failed.status == "warn"
    assert "OSError: no such thing" in failed.value


def test_what_packages_print_stays_out_of_the_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talks() -> Iterator[Row]:
        print("hello from a package")
        yield Row("quiet", "no")

    monkeypatch.setattr(doctor, "_PROBES", {"some": {"quiet": talks}})
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"][0]["rows"][0]["value"] == "no"


def test_errors_are_shown_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    rows = (Row("a", "x[1]", "error", "do [this]"), Row("b", "y", "warn"))
    sections = [Section("parts", rows)]
    doctor.show(sections)
    out = capsys.readouterr().out
    assert "x[1]" in out  # not taken for markup
    assert "do [this]" in out
    assert "Broken: parts: a. Warnings: parts: b." in out


@pytest.mark.parametrize(
    ("blocks", "free", "status"),
    [(16_384, 16_384, "warn"), (1 << 20, 1_000, "warn"), (1 << 20, 1 << 20, "ok")],
)
def test_small_shared_memory(
    blocks: int, free: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = SimpleNamespace(f_blocks=blocks, f_bavail=free, f_frsize=4096)
    monkeypatch.setattr(doctor.os, "statvfs", lambda path: facts)
    monkeypatch.setattr(doctor.Path, "exists", lambda self: True)
    (row,) = doctor._shared_memory()
    assert row.status == status
    assert ("--shm-size" in row.advice) == (status == "warn")


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({}, "none"),
        ({"cpu.max": "max 100000\n"}, "none"),
        ({"cpu.max": "150000 100000\n"}, "1.5 cores"),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "none"),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "0.5 cores"),
    ],
)
def test_cgroup_quota(
    files: dict[str, str], value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(doctor, "Path", lambda path: tmp_path)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 64)
    (row,) = doctor._quota()
    assert row.value == value
    assert (row.status, row.advice) == (
        ("info", "") if value == "none" else ("warn", "start at most 1 workers")
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy>=2.0", Requirement("numpy", (), ">=2.0", "", "")),
        ("torch >=2.5, <3 ; extra == 'train'", Requirement("torch", (), ">=2.5,<3", "train", "")),
        ('me[a,b]; extra == "c"', Requirement("me", ("a", "b"), "", "c", "")),
        (
            'old (<2); python_version < "3.12" and extra == "x"',
            Requirement("old", (), "<2", "x", 'python_version < "3.12"'),
        ),
    ],
)
def test_requirements(line: str, expected: Requirement) -> None:
    assert Requirement.parse(line) == expected


@pytest.mark.parametrize(
    ("version", "versions", "expected"),
    [
        ("2.0", ">=2", True),
        ("2", ">=2.0.1", False),
        ("1.26.4", ">=2.0", False),
        ("2.10.0", ">2.9,!=2.10", False),
        ("80.10.2", "<81", True),
        ("2.13.0+cpu", "==2.13", True),
        ("3.0rc1", "<=3", True),
        ("1", "", True),
    ],
)
def test_version_ranges(version: str, versions: str, expected: bool) -> None:
    assert satisfies(version, versions) is expected


def test_a_range_it_cannot_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="~=1.4"):
        satisfies("1.4", "~=1.4")


def test_extras_judge_what_they_include(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"here": "2.0", "old": "1.0"}
    monkeypatch.setattr(doctor, "_installed", versions.get)
    lines = [
        'here>=1; extra == "whole"',
        'here; extra == "part"',
        'gone; extra == "part"',
        'old>=2; extra == "stale"',
        'fugu-rl[whole,part]; extra == "both"',
        'fugu-rl[stale]; extra == "worse"',
    ]
    requirements = [Requirement.parse(line) for line in lines]

    def row(extra: str) -> tuple[str, str]:
        (found,) = doctor._extra_row(extra, requirements)
        assert found.advice == f'pip install "fugu-rl[{extra}]"'
        return found.value, found.status

    assert row("whole") == ("here 2.0", "ok")
    assert row("part") == ("here 2.0, gone missing", "info")
    assert row("stale") == ("old 1.0 (needs >=2)", "warn")
    assert row("both") == ("[whole], [part] in part", "info")
    assert row("worse") == ("[stale] in part", "warn")


@pytest.mark.skipif(sys.platform != "linux", reason="the default executor needs Linux")
def test_it_says_whether_the_sandbox_isolates(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = collect_only(monkeypatch, isolation=doctor._isolation)
    assert row.status == "ok"
    assert row.value.startswith("the self-test passed, with ")
    assert "seccomp" in row.value


@pytest.mark.skipif(sys.platform != "linux", reason="the default executor needs Linux")
def test_it_names_what_the_sandbox_does_not_isolate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox whose Landlock was taken out: its programs can read files."""
    guest = tmp_path / "guest"
    shutil.copytree(launch.GUEST, guest)
    walls = guest / "walls.py"
    source = walls.read_text()
    assert source.count("= _landlock(folders)") == 1
    walls.write_text(source.replace("= _landlock(folders)", "= 0"))
    monkeypatch.setattr(launch, "GUEST", guest)
    monkeypatch.setenv("PATH", "/nonexistent")  # no bubblewrap
    (row,) = collect_only(monkeypatch, isolation=doctor._isolation)
    assert row.status == "warn"
    assert row.value == "the self-test failed, with seccomp: files not isolated"
    assert "bubblewrap" in row.advice
