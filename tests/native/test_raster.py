"""The rasteriser: areas, colours, edges, letters, and that it writes nowhere else."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import fugu
from fugu import native

if not native.available:
    pytest.skip("needs the native extension", allow_module_level=True)

from fugu._native import rasterise
from fugu.core.errors import UsageError

RECTANGLE, CIRCLE, LINE, TRIANGLE, LETTERS = range(5)
BLACK, WHITE = 0x000000, 0xFFFFFF


def shape(kind: int, points: list[tuple[float, float]], size: float = 0, **more: Any) -> Any:
    points = [*points, (0.0, 0.0), (0.0, 0.0)][:3]
    x, y = (tuple(float(point[i]) for point in points) for i in range(2))
    return kind, more.get("color", WHITE), x, y, float(size), more.get("text", "")


def draw(
    *shapes: Any,
    size: tuple[float, float] = (100, 100),
    pixels: Any = None,
    background: int = BLACK,
) -> np.ndarray:
    width, height = pixels or (int(size[0]), int(size[1]))
    guard = 999  # bytes before and after that must stay as they are
    memory = np.full(guard + height * width * 3 + guard, 77, np.uint8)
    out = memory[guard:-guard].reshape(height, width, 3)
    rasterise(background, list(shapes), size, out)
    assert (memory[:guard] == 77).all()
    assert (memory[-guard:] == 77).all()
    return out


def area(picture: np.ndarray) -> float:
    """Pixels that are white, parts of them included."""
    return float(picture[:, :, 0].sum() / 255)


TRIANGLES = [
    [(10, 10), (80, 20), (35, 90)],
    [(5, 50), (95, 52), (95, 48)],
    [(20, 80), (50, 15), (80, 80)],
]


def test_background() -> None:
    assert (draw(background=0x123456) == (0x12, 0x34, 0x56)).all()


@pytest.mark.parametrize("offset", [0, 0.25, 0.5, 0.8])
def test_rectangle(offset: float) -> None:
    picture = draw(shape(RECTANGLE, [(10 + offset, 20), (40 + offset, 35)]))
    assert area(picture) == pytest.approx(30 * 15, rel=0.005)
    assert (picture[20:35, 12:40] == 255).all()
    assert not picture[:, :10].any()
    assert not picture[:, 42:].any()
    swapped = draw(shape(RECTANGLE, [(40 + offset, 35), (10 + offset, 20)]))
    assert np.array_equal(picture, swapped)


def test_edge_of_a_rectangle_is_smooth() -> None:
    column = int(draw(shape(RECTANGLE, [(10.5, 0), (20, 100)]))[50, 10, 0])
    assert column == pytest.approx(127, abs=8)


@pytest.mark.parametrize("radius", [2, 7.3, 30])
def test_circle(radius: float) -> None:
    picture = draw(shape(CIRCLE, [(50.3, 49.6)], radius))
    assert area(picture) == pytest.approx(math.pi * radius**2, rel=0.02)
    assert picture[49, 50, 0] == 255
    assert len(np.unique(picture)) > 4  # its edge has shades


@pytest.mark.parametrize("end", [(80, 20), (80, 65), (31, 90), (20, 90), (20.5, 20.2)])
@pytest.mark.parametrize("width", [1, 3, 10])
def test_line_with_round_ends(end: tuple[float, float], width: float) -> None:
    picture = draw(shape(LINE, [(20, 20), end], width))
    length = math.dist((20, 20), end)
    expected = width * length + math.pi * (width / 2) ** 2
    assert area(picture) == pytest.approx(expected, rel=0.02, abs=0.3)


@pytest.mark.parametrize("corners", TRIANGLES)
def test_triangle(corners: list[tuple[float, float]]) -> None:
    (ax, ay), (bx, by), (cx, cy) = corners
    expected = abs((bx - ax) * (cy - ay) - (cx - ax) * (by - ay)) / 2
    for order in itertools.permutations(corners):
        assert area(draw(shape(TRIANGLE, list(order)))) == pytest.approx(expected, rel=0.01)


def test_no_seams_between_shapes_that_touch() -> None:
    edges = [i * 100 / 7 for i in range(8)]
    cells = [
        shape(RECTANGLE, [(x0, y0), (x1, y1)])
        for x0, x1 in itertools.pairwise(edges)
        for y0, y1 in itertools.pairwise(edges)
    ]
    assert (draw(*cells) == 255).all()
    a, b, c, d = (0, 0), (100, 0), (100, 100), (0, 100)
    assert (draw(shape(TRIANGLE, [a, b, c]), shape(TRIANGLE, [a, c, d])) == 255).all()


def test_later_shapes_lie_above_and_colours_are_exact() -> None:
    below = shape(RECTANGLE, [(0, 0), (100, 100)], color=0x102030)
    above = shape(CIRCLE, [(50, 50)], 20, color=0xA0B0C0)
    picture = draw(below, above)
    assert picture[50, 50].tolist() == [0xA0, 0xB0, 0xC0]
    assert picture[5, 5].tolist() == [0x10, 0x20, 0x30]


FAR = 3e38


@pytest.mark.parametrize(
    "outside",
    [
        shape(RECTANGLE, [(-50, -50), (-1, -1)]),
        shape(CIRCLE, [(150, 50)], 49),
        shape(LINE, [(-20, 120), (120, 120)], 30),
        shape(TRIANGLE, [(101, 0), (101, 100), (FAR, 50)]),
        shape(LETTERS, [(50, -20)], 30, text="outside"),
        shape(CIRCLE, [(math.nan, 50)], 10),
        shape(CIRCLE, [(50, 50)], math.inf),
        shape(CIRCLE, [(50, 50)], -3),
        shape(LINE, [(0, 0), (math.inf, 3)], 3),
        shape(99, [(0, 0), (100, 100)], 3),
    ],
)
def test_what_lies_outside_or_is_no_shape_is_not_drawn(outside: Any) -> None:
    assert not draw(outside).any()


@pytest.mark.parametrize(
    "large",
    [
        shape(RECTANGLE, [(-FAR, -FAR), (FAR, FAR)]),
        shape(CIRCLE, [(50, 50)], 1e6),
        shape(LINE, [(-1e6, 50), (1e6, 50)], 1000),
        shape(TRIANGLE, [(-1e5, -1e4), (1e5, -1e4), (50, 1e6)]),
    ],
)
def test_what_is_larger_than_the_picture_is_cut(large: Any) -> None:
    assert (draw(large) == 255).all()


def test_aspect_ratio_is_kept_and_the_picture_centred() -> None:
    all_of_it = shape(RECTANGLE, [(-5, -5), (15, 25)])
    wide = draw(all_of_it, size=(10, 20), pixels=(100, 40))
    assert area(wide) == 20 * 40
    assert (wide[:, 40:60] == 255).all()
    tall = draw(shape(CIRCLE, [(5, 10)], 4), size=(10, 20), pixels=(30, 100))
    assert area(tall) == pytest.approx(math.pi * 12**2, rel=0.02)
    assert tall[50, 15, 0] == 255


@pytest.mark.parametrize("pixels", [(1, 1), (3, 2), (7, 50), (101, 9)])
def test_small_pictures(pixels: tuple[int, int]) -> None:
    draw(shape(CIRCLE, [(5, 5)], 20), shape(LETTERS, [(5, 5)], 8, text="Wg"), pixels=pixels)


# ------------------------------------------------------------------ letters

PRINTABLE = [chr(code) for code in range(32, 127)]


def letter(text: str, height: float = 40, y: float = 50) -> np.ndarray:
    return draw(shape(LETTERS, [(50, y)], height, text=text))


def test_all_letters_differ() -> None:
    for height in (9, 40):
        pictures = {letter(character, height).tobytes() for character in PRINTABLE}
        assert len(pictures) == len(PRINTABLE)
    assert not letter(" ").any()


@pytest.mark.parametrize("height", [8, 20, 60])
def test_ink_lies_within_its_box(height: int) -> None:
    for character in PRINTABLE[1:]:
        rows, columns = np.nonzero(letter(character, height)[:, :, 0])
        assert rows.min() >= 50 - height / 2 - 1, character
        assert rows.max() <= 50 + height / 2 + 1, character
        middle = (columns.min() + columns.max() + 1) / 2
        assert middle == pytest.approx(50, abs=0.12 * height + 1), character
    rows, _ = np.nonzero(letter("H", height)[:, :, 0])
    assert (rows.min() + rows.max() + 1) / 2 == pytest.approx(50, abs=0.6)


def test_letters_stand_side_by_side() -> None:
    ink = letter("HHH", 30)[:, :, 0].any(axis=0)
    strokes = np.flatnonzero(np.diff(ink.astype(int)) == 1)
    assert len(strokes) == 3


def test_letters_outside_of_ascii_are_question_marks() -> None:
    assert np.array_equal(letter("\x07"), letter("?"))


# ------------------------------------------------------------------ the boundary


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 8, 3), np.uint8)[:, ::2],
    ],
)
def test_pixels_are_not_converted(out: np.ndarray) -> None:
    with pytest.raises(TypeError):
        rasterise(0, [], (1.0, 1.0), out)


def test_a_picture_needs_a_size() -> None:
    for size in ((0.0, 1.0), (1.0, -1.0), (math.nan, 1.0)):
        with pytest.raises(ValueError, match="width and a height"):
            rasterise(0, [], size, np.zeros((4, 4, 3), np.uint8))


# ------------------------------------------------------------------ environments


@pytest.mark.parametrize("backend", ["native", "serial", "process"])
def test_render_of_every_backend(backend: Any) -> None:
    with fugu.make("cartpole", 2, backend=backend) as vec:
        vec.reset(seed=3)
        vec.step(np.ones((2, 1), np.int64))
        pictures = vec.render()
        small = vec.call("render", 80)
        fitted = vec.call("render", (50, 60))
        vec.set_attr("render_size", 44)
        assert vec.render()[1].shape == (44, 66, 3)
    with fugu.make("cartpole", 2, backend="serial") as vec:
        vec.reset(seed=3)
        vec.step(np.ones((2, 1), np.int64))
        assert all(map(np.array_equal, vec.render(), pictures))
    assert [picture.shape for picture in pictures] == [(400, 600, 3)] * 2
    assert small[0].shape == (80, 120, 3)
    assert fitted[0].shape == (60, 50, 3)
    assert not np.array_equal(*pictures)  # copies differ in where they begin


def test_render_size() -> None:
    from fugu.envs.contract import Buffers
    from fugu.envs.resolve import resolve

    env = resolve("cartpole")()
    with pytest.raises(UsageError, match="not bound"):
        env.render()
    env.bind(*(Buffers.allocate(group) for group in env.groups))
    env.reset(0)
    env.render_size = 100
    assert env.render().shape == (100, 150, 3)
    assert env.render(60).shape == (60, 90, 3)
    with pytest.raises(UsageError, match="allowed: the height"):
        env.render(0)
    # the same as its display list drawn by hand
    background, shapes = env.display_list()
    out = np.zeros((100, 150, 3), np.uint8)
    rasterise(background, shapes, env.spec.size, out)
    assert np.array_equal(out, env.render())
