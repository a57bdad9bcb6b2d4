"""`benchmarks/red_team.py`: what its table and claims say of the findings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import red_team
from attacks.suite import ATTACKS, Finding
from red_team import Side

ROOT, NOBODY = Side("root", "zygote"), Side("nobody", "zygote")
FIRST, SECOND = ATTACKS[0], ATTACKS[1]


def finding(attack: object, *, proven: bool = True, succeeded: bool = False) -> Finding:
    name = getattr(attack, "name", "")
    return Finding(name, "network", proven, succeeded, survived=True)


def claims_of(findings: dict[Side, dict[str, Finding]]) -> dict[str, float | None]:
    proven_by = red_team.users_who_prove(findings)
    return {claim.claim: claim.ratio for claim in red_team.judge(findings, proven_by, False)}


def test_an_attack_that_needs_root_is_proven_as_root(capsys: pytest.CaptureFixture[str]) -> None:
    findings = {
        ROOT: {FIRST.name: finding(FIRST), SECOND.name: finding(SECOND, proven=False)},
        NOBODY: {
            FIRST.name: finding(FIRST, proven=False),
            SECOND.name: finding(SECOND, proven=False),
        },
    }
    proven_by = red_team.users_who_prove(findings)
    assert red_team.cell(findings[ROOT][FIRST.name], proven_by[FIRST.name]) == "held"
    cells = [red_team.cell(found, proven_by[name]) for name, found in findings[NOBODY].items()]
    assert cells == ["held; proven as root", "held; not proven"]
    red_team.show(findings, proven_by)
    out = capsys.readouterr().out
    assert "root, zygote: 2 attacks, 1 of them proven as root, 0 got through" in out
    claims = claims_of(findings)
    assert claims["attacks-proven-and-held-root-zygote"] == 1
    assert claims["attacks-proven-and-held-nobody-zygote"] == 0
    assert claims["attacks-not-proven"] == 1


def test_an_attack_that_succeeds_is_shown_and_counted() -> None:
    findings = {ROOT: {FIRST.name: finding(FIRST, succeeded=True), SECOND.name: finding(SECOND)}}
    assert red_team.cell(findings[ROOT][FIRST.name], {"root"}) == "GOT THROUGH"
    claims = claims_of(findings)
    assert claims["attacks-proven-and-held-root-zygote"] == 1
    assert claims["attacks-through-root-zygote"] == 1
    assert claims["attacks-through-root-bubblewrap"] is None  # it was not attacked


def test_a_user_without_rights_need_not_prove_all() -> None:
    assert claims_of({Side("user", "zygote"): {}})["attacks-not-proven"] is None
