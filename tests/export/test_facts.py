"""What an exported file says of its policy, read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gymnasium import spaces

from fugu import Layout
from fugu.core.errors import UsageError
from fugu.inference.engine import PolicyFacts

FACTS = PolicyFacts(
    Layout.of(spaces.Box(-1, 1, (3,))), Layout.of(spaces.Box(0, 50, (2,))), "scaled", 0, 1
)


def older(**changed: Any) -> str:
    tree = json.loads(FACTS.to_json()) | changed
    return json.dumps({key: value for key, value in tree.items() if value is not None})


def test_facts_survive_a_round_trip() -> None:
    assert PolicyFacts.from_json(FACTS.to_json(), "file") == FACTS


@pytest.mark.parametrize(("squash", "continuous"), [(True, "tanh"), (False, "clipped")])
def test_files_of_the_first_version_are_read(squash: bool, continuous: str) -> None:
    found = PolicyFacts.from_json(older(continuous=None, squash=squash), "file")
    assert found.continuous == continuous


@pytest.mark.parametrize("changed", [{"continuous": "folded"}, {"continuous": None}])
def test_facts_without_known_bounds_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="file: .*cannot be read"):
        PolicyFacts.from_json(older(**changed), "file")
