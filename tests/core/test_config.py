from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from fugu.core.config import from_flags, from_tree, merge, read_toml, to_tree
from fugu.core.errors import UsageError


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    steps: int = 3
    fast: bool = False
    kind: Literal["a", "b"] = "a"
    most: float | None = None
    sizes: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    inner: Inner = Inner()
    extra: dict[str, Any] = field(default_factory=dict)


def test_values_become_what_their_fields_are() -> None:
    tree, rest = from_flags(
        [
            "run",
            "--inner.rate",
            "1",
            "--inner.steps=1e3",
            "--inner.fast",
            "--inner.kind",
            "b",
            "--inner.most",
            "none",
            "--inner.sizes",
            "2,3",
            "--extra.level",
            "4",
            "--extra.hard",
        ]
    )
    assert rest == ["run"]
    made = from_tree(Outer, tree)
    assert made.inner == Inner(1.0, 1000, True, "b", None, (2, 3))
    assert made.extra == {"level": 4, "hard": True}
    assert from_tree(Outer, to_tree(made)) == made
    assert from_tree(Outer, from_flags(["--inner.no-fast"])[0]).inner.fast is False


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"inner": {"rat": 1}}, "inner.rat: given, but there is no such.*nearest: inner.rate"),
        ({"inner": {"rate": "much"}}, "inner.rate: given 'much'; allowed: a number"),
        ({"inner": {"rate": True}}, "inner.rate: given True; allowed: a number"),
        ({"inner": {"steps": 1.5}}, "inner.steps: given 1.5; allowed: a whole number"),
        ({"inner": {"fast": 1}}, "inner.fast: given 1; allowed: true or false"),
        ({"inner": {"kind": "c"}}, "inner.kind: given 'c'; allowed: a, b"),
        ({"inner": 3}, "inner: given 3; allowed: settings"),
        ({"name": 3}, "name: given 3; allowed: text"),
    ],
)
def test_what_is_wrong_is_named(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_tree(Outer, tree)


def test_later_layers_win(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("name = 'file'\n[inner]\nrate = 0.5\nsteps = 7\n")
    made = from_tree(Outer, merge(read_toml(tmp_path / "a.toml"), {"inner": {"rate": 0.7}}))
    assert (made.name, made.inner.rate, made.inner.steps) == ("file", 0.7, 7)
    with pytest.raises(UsageError, match="a file that exists"):
        read_toml(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_text("name = ")
    with pytest.raises(UsageError, match=r"c\.toml', which is no TOML"):
        read_toml(tmp_path / "c.toml")
