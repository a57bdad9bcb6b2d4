"""Pictures, `[height, width, 3]` of uint8: resized, side by side, and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError

Picture = NDArray[np.uint8]
GAP = (44, 52, 60)
"""The color between pictures that stand side by side."""


def tile(pictures: Sequence[Picture], gap: int = 4) -> Picture:
    """Join pictures of the same size, row by row, in a grid that is nearly square.

    >>> white = np.full((20, 30, 3), 255, np.uint8)
    >>> tile([white] * 5, gap=2).shape
    (42, 94, 3)
    >>> tile([white]).shape
    (20, 30, 3)
    """
    sizes = {np.shape(check_picture(picture)) for picture in pictures}
    if len(sizes) != 1:
        raise UsageError(
            f"tile: given pictures of {len(sizes)} sizes, {sorted(sizes)}; allowed: one or more "
            "pictures of the same size."
        )
    ((height, width, _),) = sizes
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    out: Picture = np.empty(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, 3), np.uint8
    )
    out[:] = GAP
    for i, picture in enumerate(pictures):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        out[top : top + height, left : left + width] = picture
    return out


def resize(picture: Picture, width: int, height: int) -> Picture:
    """Resize a picture: pixels are averaged where it shrinks and copied where it grows.

    >>> checks = np.zeros((4, 4, 3), np.uint8)
    >>> checks[::2, ::2] = checks[1::2, 1::2] = 200
    >>> resize(checks, 2, 2)[:, :, 0].tolist()
    [[100, 100], [100, 100]]
    >>> resize(checks, 8, 4).shape
    (4, 8, 3)
    """
    if min(width, height) < 1:
        raise UsageError(f"resize: given {width} x {height} pixels; allowed: 1 or more each way.")
    out = check_picture(picture).astype(np.float32)
    for axis, size in ((0, height), (1, width)):
        bounds = np.arange(size + 1) * out.shape[axis] // size
        counts = np.maximum(np.diff(bounds), 1)
        # of bounds that are equal, which there are where it grows, reduceat takes the one pixel
        sums = np.add.reduceat(out, bounds[:-1], axis)
        out = sums / counts.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    return np.rint(out).astype(np.uint8)


def to_terminal(picture: Picture, columns: int) -> str:
    r"""Return a picture as lines of `columns` half blocks in 24-bit color, two pixels each.

    >>> red_over_blue = np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8)
    >>> to_terminal(red_over_blue, 1)
    '\x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀\x1b[0m'
    >>> len(to_terminal(np.zeros((40, 60, 3), np.uint8), 30).splitlines())
    10
    """
    height, width, _ = check_picture(picture).shape
    lines = max(1, round(columns * height / width / 2))
    pixels = resize(picture, columns, 2 * lines)
    return "\n".join(
        "".join(_cells(above, below)) + "\x1b[0m"
        for above, below in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True)
    )


def _cells(above: list[list[int]], below: list[list[int]]) -> Iterator[str]:
    """Yield a line's characters; a color is written only where it changes."""
    ink: list[int] = []
    paper: list[int] = []
    for top, bottom in zip(above, below, strict=True):
        if top != ink:
            yield f"\x1b[38;2;{top[0]};{top[1]};{top[2]}m"
        if bottom != paper:
            yield f"\x1b[48;2;{bottom[0]};{bottom[1]};{bottom[2]}m"
        ink, paper = top, bottom
        yield "▀"


def check_picture(picture: object) -> Picture:
    """Return `picture` if it is one, else raise an error."""
    if (
        isinstance(picture, np.ndarray)
        and picture.dtype == np.uint8
        and picture.ndim == 3
        and picture.shape[2] == 3
        and picture.size
    ):
        return picture
    given = (
        f"a {picture.dtype} array of shape {picture.shape}"
        if isinstance(picture, np.ndarray)
        else f"a {type(picture).__name__}"
    )
    raise UsageError(
        f"picture: given {given}; allowed: a uint8 array [height, width, 3]. Environments of "
        'Gymnasium give one if they are made with render_mode="rgb_array".'
    )
