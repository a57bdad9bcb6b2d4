"""TOML that is written reads as what it was made of, and what people wrote stays."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fugu.core.config import check_table, dump_toml, edit_table, write_table
from fugu.core.errors import UsageError

values = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=("Cs", "Cc"))),
    st.lists(st.integers(-5, 5), max_size=3),
)
names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=6)
trees = st.recursive(
    st.dictionaries(names, values, min_size=1, max_size=4),
    lambda inner: st.dictionaries(names, values | inner, min_size=1, max_size=3),
    max_leaves=4,
)


@given(trees)
def test_what_is_written_is_read_again(tree: dict[str, object]) -> None:
    assert tomllib.loads(dump_toml(tree)) == tree


def test_nothing_has_no_word_and_is_left_out() -> None:
    assert dump_toml({"a": None, "b": 1}) == "b = 1\n"


FILE = """# mine
seed = 3

[vec]  # how they run
num_envs = 8   # enough
step_timeout = 5.0

# what is learned
[train]
gamma = 0.9
"""


def test_one_table_is_edited_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(FILE)
    write_table(path, "vec", {"num_envs": 32, "backend": "process"})
    text = path.read_text()
    assert tomllib.loads(text) == {
        "seed": 3,
        "vec": {"step_timeout": 5.0, "num_envs": 32, "backend": "process"},
        "train": {"gamma": 0.9},
    }
    assert text.startswith("# mine\nseed = 3\n")
    assert "# how they run" in text
    assert "# what is learned" in text
    write_table(path, "vec", {"num_envs": 32, "backend": "process"})
    assert path.read_text() == text, "the same once more changes nothing"
    assert [file.name for file in tmp_path.iterdir()] == ["my.toml"]


def test_a_file_and_a_table_are_made_where_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    write_table(path, "vec", {"num_envs": 4})
    assert path.read_text() == "[vec]\nnum_envs = 4\n"
    assert edit_table("seed = 1\n", "vec", {"num_envs": 4}) == "seed = 1\n\n[vec]\nnum_envs = 4\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vec = {num_envs = 8}\n", "in a form that is not edited"),
        ("vec.num_envs = 8\n", "in a form that is not edited"),
        ("[vec]\nnum_envs = [\n 1,\n]\n", "in a form that is not edited"),
        ("[vec\n", "is no TOML"),
    ],
)
def test_what_cannot_be_edited_is_refused_and_stays(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text)
    for call in (check_table, lambda *args: write_table(*args[:2], {"num_envs": 4})):
        with pytest.raises(UsageError, match=message):
            call(path, "vec", ["num_envs"])
    assert path.read_text() == text
