"""How checkpoints of older schema versions become those of today, one version at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SCHEMA = 1
"""The schema version that is written."""

Document = dict[str, Any]
Tensors = dict[str, dict[str, Any]]
Migration = Callable[[Document, Tensors], tuple[Document, Tensors]]


def migrate(
    document: Document, tensors: Tensors, migrations: Mapping[int, Migration] | None = None
) -> tuple[Document, Tensors]:
    """The same checkpoint in today's schema; KeyError where no way leads there.

    >>> migrate({"schema": 0, "step": 7}, {})[0]
    {'schema': 1, 'libraries': {}, 'state': {'step': 7}}
    """
    steps = MIGRATIONS if migrations is None else migrations
    while document["schema"] != SCHEMA:
        version = document["schema"]
        document, tensors = steps[version](document, tensors)
        document["schema"] = version + 1
    return document, tensors


def _nest_state(document: Document, tensors: Tensors) -> tuple[Document, Tensors]:
    """Version 0 had the entries of the state beside the schema, and no library versions."""
    state = {key: value for key, value in document.items() if key != "schema"}
    return {"schema": 0, "libraries": {}, "state": state}, tensors


MIGRATIONS: dict[int, Migration] = {0: _nest_state}
"""By the version that a migration starts from.

A migration also runs without tensors, where only the state is asked for: it changes those that
are there.
"""
