"""Pictures of dreams: images side by side, numbers as lines."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.envs.picture import GAP, Picture, resize
from fugu.policies.images import ImageShape
from fugu.training.dreaming import Dream

TRUTH, LOOKED, DREAMED = "#8d99a6", "#2a9d8f", "#e76f51"
EDGES = {True: (42, 157, 143), False: (231, 111, 81)}  # around predictions: looked at, dreamed
HEIGHT = 160  # of an image, at least
MOST_LINES = 8  # numbers that are shown


def pictures(dream: Dream) -> Iterator[Picture]:
    """One for each step of the dream's first stretch."""
    images = [i for i, part in enumerate(dream.parts) if part.kind == "image"]
    lines = None if images and len(images) == len(dream.parts) else _Lines(dream)
    for step in range(len(dream.truths[0]) if dream.truths else 0):
        rows = [_image_row(dream, i, step) for i in images]
        if lines is not None:
            rows.append(lines.draw(step))
        yield _stack(rows)
    if not dream.truths:
        raise UsageError(
            "dream: given an environment without observations; allowed: one with some."
        )


def _image_row(dream: Dream, index: int, step: int) -> Picture:
    """The truth, and the prediction in the colour of how it came about."""
    image = dream.parts[index].image
    assert image is not None
    pair = [_rgb(each[index][step, 0], image) for each in (dream.truths, dream.predictions)]
    factor = max(1, -(-HEIGHT // pair[0].shape[0]))
    height, width = (side * factor for side in pair[0].shape[:2])
    edge = EDGES[step < dream.context]
    framed = []
    for picture, colour in zip(pair, (GAP, edge), strict=True):
        frame = np.empty((height + 8, width + 8, 3), np.uint8)
        frame[:] = colour
        frame[4:-4, 4:-4] = resize(picture, width, height)
        framed.append(frame)
    return np.concatenate(framed, 1)


def _rgb(pixels: NDArray[Any], image: ImageShape) -> Picture:
    """The last three channels, or the last one in grey."""
    ordered = np.transpose(pixels, image.order).reshape(image.channels, *image.sides)
    shown = ordered[-3:] if image.channels % 3 == 0 else np.repeat(ordered[-1:], 3, 0)
    return np.moveaxis(np.clip(shown, 0, 255).astype(np.uint8), 0, -1)


class _Lines:
    """Numbers over time; the picture grows step by step."""

    def __init__(self, dream: Dream) -> None:
        if importlib.util.find_spec("matplotlib") is None:
            raise MissingExtraError("matplotlib", "plot")
        self._context = dream.context
        self._curves: list[tuple[str, NDArray[Any], NDArray[Any]]] = []
        for part, truth, prediction in zip(
            dream.parts, dream.truths, dream.predictions, strict=True
        ):
            if part.kind == "image":
                continue
            flat = [each[:, 0].reshape(len(each), -1) for each in (truth, prediction)]
            for column in range(flat[0].shape[1]):
                name = f"{part.name} {column}" if flat[0].shape[1] > 1 else part.name
                self._curves.append((name.strip(), flat[0][:, column], flat[1][:, column]))
        self._curves = self._curves[:MOST_LINES]

    def draw(self, step: int) -> Picture:
        """What there is up to a step."""
        figures: Any = importlib.import_module("matplotlib.figure")
        canvases: Any = importlib.import_module("matplotlib.backends.backend_agg")
        rows = -(-len(self._curves) // 2)
        columns = min(len(self._curves), 2)
        figure = figures.Figure(figsize=(7.2, 1.9 * rows), dpi=90, layout="constrained")
        canvas = canvases.FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for axis, (name, truth, prediction) in zip(axes, self._curves, strict=False):
            self._draw_curve(axis, name, truth, prediction, step)
        for axis in axes[len(self._curves) :]:
            axis.set_visible(False)
        canvas.draw()
        shown: Picture = np.asarray(canvas.buffer_rgba())[..., :3].copy()
        return shown

    def _draw_curve(
        self, axis: Any, name: str, truth: NDArray[Any], prediction: NDArray[Any], step: int
    ) -> None:
        low = float(min(truth.min(), prediction.min()))
        high = float(max(truth.max(), prediction.max()))
        room = 0.08 * (high - low) or 0.5
        axis.set_xlim(0, len(truth) - 1)
        axis.set_ylim(low - room, high + room)
        axis.axvspan(0, self._context - 1, color=LOOKED, alpha=0.08, lw=0)
        axis.set_title(name or "observation", fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
        times = np.arange(step + 1)
        axis.plot(times, truth[: step + 1], color=TRUTH, lw=2.4, label="truth")
        seen = min(step + 1, self._context)
        axis.plot(times[:seen], prediction[:seen], color=LOOKED, lw=1.2)
        if step >= self._context:
            start = self._context - 1
            axis.plot(times[start:], prediction[start : step + 1], color=DREAMED, lw=1.4)


def _stack(rows: list[Picture]) -> Picture:
    """Pictures below each other, on white."""
    width = max(row.shape[1] for row in rows)
    padded = [
        np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255)
        for row in rows
    ]
    return np.concatenate(padded)
