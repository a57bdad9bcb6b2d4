"""No known attack succeeds, as root or as nobody, and none breaks the sandbox.

Each one first succeeds without isolation, in a process of its own, or it shows nothing.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from attacks.cheats import CHEATS
from attacks.suite import ATTACKS, Finding, attack_all
from attacks.thefts import THEFTS
from attacks.unprivileged import attack_as_nobody
from sandbox_helpers import INSTALLED, absent

CATEGORIES = {"network", "files", "writing", "other processes", "signals", "processes", "limits"}
CATEGORIES |= {"kernel", "grading", "predecessors"}
LEAST = 120
LEAST_PROVEN = 110  # some need root, or interfaces that not every kernel has
CASES: list[Any] = [
    pytest.param("zygote", {"jail": "none"}, id="zygote"),
    pytest.param("zygote", {"jail": "bubblewrap"}, id="zygote-in-bubblewrap"),
    pytest.param(
        "zygote", {"jail": "none", "native": False}, id="reference", marks=pytest.mark.slow
    ),
    pytest.param("bubblewrap", {}, id="bubblewrap", marks=pytest.mark.slow),
]


def judge(findings: list[Finding]) -> None:
    assert not [(found.name, found.message) for found in findings if found.succeeded]
    assert not [found for found in findings if not found.survived]
    proven = [found for found in findings if found.proven]
    assert len(findings) >= LEAST
    assert len(proven) >= LEAST_PROVEN, [found.name for found in findings if not found.proven]
    assert {found.category for found in proven} == CATEGORIES
    assert sum(found.category == "grading" for found in proven) == len(CHEATS)
    assert sum(found.category == "predecessors" for found in proven) == len(THEFTS)


def skip_without_bubblewrap(backend: str, options: dict[str, Any]) -> None:
    if shutil.which("bwrap") is None and (backend != "zygote" or options["jail"] == "bubblewrap"):
        pytest.skip("bubblewrap is not installed here")


def test_there_are_enough_and_their_names_differ() -> None:
    names = [attack.name for attack in ATTACKS]
    assert len(names) >= LEAST
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
    """A negative control: without isolation nearly all attacks succeed."""
    findings = attack_all("unsafe", only=["files", "signals", "kernel"])
    assert sum(found.succeeded for found in findings) >= 15
    assert all(found.succeeded == found.proven for found in findings)


def test_unknown_attacks_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"expected one of network, files.*got \['moat'\]"):
        attack_all(only=["moat"])
