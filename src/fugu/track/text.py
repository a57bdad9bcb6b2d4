"""Numbers, times and curves as short text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line, the lowest value as the lowest block; what is no number is a gap.

    More values than the width are averaged, so that the whole curve is always seen.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    >>> sparkline([1, 1, float("nan"), 1])
    '▅▅ ▅'
    """
    points = _averaged(values, width)
    numbers = [value for value in points if math.isfinite(value)]
    if not numbers:
        return " " * len(points)
    low, high = min(numbers), max(numbers)
    # Halves, so that the distance of huge numbers stays finite.
    span = high / 2 - low / 2
    return "".join(_block((value / 2 - low / 2) / span if span else 0.5, value) for value in points)


def number(value: float) -> str:
    """A number in about four digits.

    >>> [number(x) for x in (1234567, 2.5e9, 45300, 123.456, 0.25, -0.000012, 0, 3, 400)]
    ['1.235M', '2.500G', '45,300', '123.5', '0.25', '-1.2e-05', '0', '3', '400']
    """
    if not math.isfinite(value):
        return str(float(value))
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{value / limit:.3f}{letter}" if size < 1e15 else f"{value:.3g}"
    if size >= 1e4:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def rate(value: float) -> str:
    """Something a second, in whole numbers.

    >>> rate(1243.6), rate(float("inf"))
    ('1244', 'inf')
    """
    return number(round(value) if math.isfinite(value) else value)


def duration(seconds: float) -> str:
    """A time as a clock shows it.

    >>> duration(75), duration(3723), duration(200000), duration(float("inf"))
    ('01:15', '1:02:03', '2d 07:33', '--:--')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "--:--"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


def size(count: float) -> str:
    """Bytes in the unit that people say.

    >>> size(2 * 2**30), size(300 * 2**20)
    ('2.0 GB', '300 MB')
    """
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def _averaged(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [index * count // width for index in range(width + 1)]
    means = []
    for start, end in itertools.pairwise(edges):
        numbers = [value for value in values[start:end] if math.isfinite(value)]
        means.append(sum(numbers) / len(numbers) if numbers else math.nan)
    return means


def _block(height: float, value: float) -> str:
    if not math.isfinite(value):
        return " "
    return BLOCKS[min(int(height * len(BLOCKS)), len(BLOCKS) - 1)]
