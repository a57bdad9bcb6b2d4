"""Files of pictures: a video, a GIF, or the last picture alone."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.core.writing import FULL
from fugu.envs.picture import Picture

SUFFIXES = (".mp4", ".gif", ".png")
NEEDED = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",), ".png": ("PIL",)}
PACKAGES = {"imageio_ffmpeg": "imageio-ffmpeg", "PIL": "pillow"}  # where the names differ
SHORTEST = 20  # milliseconds: viewers slow GIFs down whose pictures stand for less


class Film(Protocol):
    """A file that is being written."""

    def add(self, picture: Picture) -> None:
        """The next picture, of the size of those before."""
        raise NotImplementedError("add(picture: Picture) -> None")

    def close(self) -> None:
        """Nothing comes any more."""
        raise NotImplementedError("close() -> None")


def check_film(path: Path) -> None:
    """Raise if no such file can be written here, before anything is played."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"out: given {str(path)!r}; allowed: a name that ends with {', '.join(SUFFIXES)}."
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"out: given {str(path)!r}; allowed: a name in a folder that exists. "
            f"mkdir -p {path.parent} makes it."
        )
    for package in NEEDED[path.suffix.lower()]:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(PACKAGES.get(package, package), "play")


@contextmanager
def film(path: Path, fps: float) -> Iterator[Film]:
    """A file to add pictures to; nothing is left of it if something goes wrong meanwhile."""
    check_film(path)
    kinds: dict[str, Callable[[Path, float], Film]] = {".mp4": Video, ".gif": Gif, ".png": Still}
    # Under another name until it is whole, so that what was there stays if this fails.
    part = path.with_name(f".{path.stem}.part{path.suffix.lower()}")
    try:
        part.touch()  # says why not, which an encoder does not
        made = kinds[part.suffix](part, fps)
        try:
            yield made
        finally:
            made.close()
        part.replace(path)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise FuguError(
            f"out: given {str(path)!r}, which cannot be written: {error}. Give another name."
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


class Video:
    """H.264 in an MP4, as every browser plays it."""

    def __init__(self, path: Path, fps: float) -> None:
        imageio: Any = importlib.import_module("imageio.v2")
        self._writer = imageio.get_writer(
            path,
            format="FFMPEG",
            mode="I",
            fps=fps,
            codec="libx264",
            pixelformat="yuv420p",
            quality=8,
            macro_block_size=2,
            ffmpeg_log_level="error",
        )

    def add(self, picture: Picture) -> None:
        """The next picture."""
        # Colours are stored for two pixels each way, so the size must be even.
        height, width, _ = picture.shape
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._writer.append_data(even)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class Gif:
    """A GIF that loops, each picture with a palette of its own."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._image = path, importlib.import_module("PIL.Image")
        self._duration = max(SHORTEST, round(100 / fps) * 10)  # GIFs count hundredths of a second
        self._pictures: list[Any] = []

    def add(self, picture: Picture) -> None:
        """The next picture."""
        image = self._image.fromarray(picture)
        self._pictures.append(image.quantize(256, dither=self._image.Dither.NONE))

    def close(self) -> None:
        """Write all of them."""
        if self._pictures:
            first, *others = self._pictures
            options = {"save_all": True, "append_images": others, "loop": 0, "disposal": 1}
            first.save(self._path, duration=self._duration, **options)


class Still:
    """A PNG of the last picture."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path = path
        self._picture: Picture | None = None

    def add(self, picture: Picture) -> None:
        """The next picture."""
        self._picture = picture

    def close(self) -> None:
        """Write the last one."""
        image: Any = importlib.import_module("PIL.Image")
        if self._picture is not None:
            image.fromarray(self._picture).save(self._path)
