"""Pictures side by side, resized, and as text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fugu.core.errors import UsageError
from fugu.envs.picture import GAP, check_picture, resize, tile, to_terminal


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(
    ("count", "columns", "rows"),
    [(1, 1, 1), (2, 2, 1), (3, 2, 2), (5, 3, 2), (9, 3, 3), (10, 4, 3)],
)
def test_tile(count: int, columns: int, rows: int) -> None:
    pictures = [picture(10, 20, seed) for seed in range(count)]
    tiled = tile(pictures, gap=3)
    assert tiled.shape == (rows * 13 - 3, columns * 23 - 3, 3)
    for i, one in enumerate(pictures):
        top, left = i // columns * 13, i % columns * 23
        assert np.array_equal(tiled[top : top + 10, left : left + 20], one)
    if rows > 1:
        assert (tiled[10:13] == GAP).all()


@pytest.mark.parametrize("pictures", [[], [picture(4, 4), picture(4, 5)]])
def test_tile_needs_pictures_of_one_size(pictures: list[np.ndarray]) -> None:
    with pytest.raises(UsageError, match="allowed: one or more"):
        tile(pictures)


@pytest.mark.parametrize("size", [(3, 5), (20, 10), (7, 7), (40, 31), (1, 1)])
def test_resize(size: tuple[int, int]) -> None:
    width, height = size
    given = picture(10, 20)
    resized = resize(given, width, height)
    assert resized.shape == (height, width, 3)
    assert abs(resized.mean() - given.mean()) < 20
    flat = np.full((10, 20, 3), 93, np.uint8)
    assert (resize(flat, width, height) == 93).all()
    assert np.array_equal(resize(given, 20, 10), given)


def read_terminal(text: str) -> np.ndarray:
    """The pixels that a terminal would show."""
    rows: list[Any] = []
    for line in text.splitlines():
        above, below, ink, paper = [], [], None, None
        for code, red, green, blue, block in re.findall(
            r"\x1b\[(38|48);2;(\d+);(\d+);(\d+)m|(▀)", line
        ):
            if block:
                above.append(ink)
                below.append(paper)
            elif code == "38":
                ink = (int(red), int(green), int(blue))
            else:
                paper = (int(red), int(green), int(blue))
        rows += [above, below]
        assert line.endswith("\x1b[0m")
    return np.array(rows, np.uint8)


def test_terminal_shows_every_pixel() -> None:
    given = picture(12, 16)
    given[2:6] = 40  # long runs of one colour
    assert np.array_equal(read_terminal(to_terminal(given, 16)), given)
    assert np.array_equal(read_terminal(to_terminal(given, 8)), resize(given, 8, 6))
    assert len(to_terminal(np.zeros((12, 16, 3), np.uint8), 16)) < 6 * (16 + 50)


@pytest.mark.parametrize(
    "wrong",
    [None, "text", np.zeros((3, 3), np.uint8), np.zeros((3, 3, 3)), np.zeros((0, 3, 3), "u1")],
)
def test_what_is_no_picture(wrong: Any) -> None:
    with pytest.raises(UsageError, match="render_mode"):
        check_picture(wrong)
