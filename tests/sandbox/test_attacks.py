"""No attack that we know of gets anywhere, as root and as nobody, and none breaks the sandbox.

Each one first succeeds without walls, in a throw-away process, or it does not count.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from sandbox_helpers import INSTALLED, absent

from fugu.sandbox.attacking import Finding, attack_all
from fugu.sandbox.attacks import ATTACKS
from fugu.sandbox.cheats import CHEATS
from fugu.sandbox.thefts import THEFTS
from fugu.sandbox.unprivileged import attack_as_nobody

WALLS = {"network", "files", "writing", "other processes", "signals", "processes", "limits"}
WALLS |= {"kernel", "grading", "predecessors"}
WANTED, PROVEN = 120, 110
CASES: list[Any] = [
    pytest.param("zygote", {"jail": "none"}, id="zygote"),
    pytest.param("zygote", {"jail": "bubblewrap"}, id="zygote-in-bubblewrap"),
    pytest.param(
        "zygote", {"jail": "none", "native": False}, id="reference", marks=pytest.mark.slow
    ),
    pytest.param("bubblewrap", {}, id="bubblewrap", marks=pytest.mark.slow),
]


def judge(findings: list[Finding]) -> None:
    broken = [(found.name, found.told) for found in findings if found.succeeded]
    assert not broken
    assert all(found.survived for found in findings), [f for f in findings if not f.survived]
    counting = [found for found in findings if found.counts]
    assert len(findings) >= WANTED
    assert len(counting) >= PROVEN, [found.name for found in findings if not found.counts]
    assert {found.wall for found in counting} == WALLS
    assert sum(found.wall == "grading" for found in counting) == len(CHEATS)
    assert sum(found.wall == "predecessors" for found in counting) == len(THEFTS)


def skip_without_bubblewrap(backend: str, options: dict[str, Any]) -> None:
    if shutil.which("bwrap") is None and (backend != "zygote" or options["jail"] == "bubblewrap"):
        pytest.skip("bubblewrap is not installed here")


def test_there_are_enough_and_their_names_differ() -> None:
    names = [attack.name for attack in (*ATTACKS, *CHEATS, *THEFTS)]
    assert len(names) >= WANTED
    assert len({*names}) == len(names)


@pytest.mark.parametrize(("backend", "options"), CASES)
def test_no_attack_succeeds(backend: str, options: dict[str, Any]) -> None:
    skip_without_bubblewrap(backend, options)
    judge(attack_all(backend, **options))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("backend", "options"), CASES)
def test_no_attack_succeeds_as_nobody(backend: str, options: dict[str, Any]) -> None:
    skip_without_bubblewrap(backend, options)
    judge(attack_as_nobody(backend, **options))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gvisor", "docker"])
def test_no_attack_succeeds_in_other_kernels(backend: str) -> None:
    if absent(backend):
        pytest.skip(absent(backend))
    assert backend in INSTALLED
    judge(attack_all(backend))


def test_the_suite_can_fail() -> None:
    """A negative control: against a backend without walls nearly all get through."""
    findings = attack_all("unsafe", only=["files", "signals", "kernel"])
    assert sum(found.succeeded for found in findings) >= 15
    assert all(found.succeeded == found.works_without_walls for found in findings)
