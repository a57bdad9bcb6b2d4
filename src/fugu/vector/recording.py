"""`record`: write what environments look like while they are played to a video or a picture."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.core.writing import FULL
from fugu.envs.contract import Env
from fugu.envs.native_env import NativeEnv, native_library
from fugu.envs.picture import Picture, check_picture, resize, tile
from fugu.envs.recipes import find_recipe
from fugu.envs.resolve import resolve
from fugu.vector.batching import Batch
from fugu.vector.make import make
from fugu.vector.random_actions import random_policy
from fugu.vector.vector import Vector

FPS = 30.0  # where an environment does not say
NEEDED = {".mp4": ("imageio", "imageio_ffmpeg"), ".gif": ("PIL",), ".png": ("PIL",)}
PACKAGES = {"imageio_ffmpeg": "imageio-ffmpeg", "PIL": "pillow"}  # where the names differ
SHORTEST = 20  # milliseconds: viewers slow GIFs down whose pictures stand for less
Policy = Callable[[Batch], Any]


def record(
    env: str | Callable[..., Any] | Vector,
    out: str | Path,
    *,
    policy: Policy | None = None,
    steps: int = 300,
    copies: int = 1,
    seed: int | None = 0,
    fps: float | None = None,
    height: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    show: bool = False,
) -> Path:
    """Play environments and write what they look like: a video, a GIF, or the last picture.

    Args:
        env: As in `fugu.make`, or a vector that is made already and stays open.
        out: The file: .mp4 (H.264), .gif (looping) or .png (how it looks after all steps).
        policy: Returns the actions for a batch, as `Vector.send` takes them; random legal ones if
            not given.
        steps: Steps of each copy; there is one picture more.
        copies: Copies shown side by side; a vector that is given shows all of its own.
        seed: The seed of the environments and of random actions.
        fps: Pictures a second; by default what the environment says, else 30.
        height: The height of a copy's picture, in pixels.
        env_kwargs: Arguments of the environment; those of Gymnasium and PettingZoo are made with
            `render_mode="rgb_array"`.
        show: Show a progress bar on stderr.

    Returns:
        The file.
    """
    path = Path(out)
    for name, value in (("steps", steps), ("copies", copies), ("height", height), ("fps", fps)):
        least = 0 if name == "steps" else 1
        if value is not None and not value >= least:
            raise UsageError(f"{name}: given {value!r}; allowed: a number from {least} on.")
    check_video(path)
    only_last = path.suffix.lower() == ".png"
    if isinstance(env, Vector):
        opened: AbstractContextManager[Vector] = nullcontext(env)
    else:
        opened = make_rendered(env, copies, env_kwargs=env_kwargs)
    with opened as vec:
        vec.async_reset(seed)
        batch = vec.recv()
        act = policy or random_policy(vec, seed or 0)
        picture = _pictures(vec, height)  # before a file is begun: it may be that there are none
        (own_fps,) = vec.apply(_fps_of, env_ids=[0])
        with open_video(path, fps or own_fps) as video, _progress(steps, show) as advance:
            video.add(picture)
            for step in range(1, steps + 1):
                vec.send(act(batch))
                batch = vec.recv()
                if not only_last or step == steps:
                    video.add(_pictures(vec, height))
                advance()
    return path


def make_rendered(
    env: str | Callable[..., Any],
    copies: int,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Vector:
    """Make environments that render pictures; see `record` and, for the options, `fugu.make`."""
    kwargs = dict(env_kwargs or {})
    recipe = find_recipe(env) if isinstance(env, str) else None
    is_gymnasium = getattr(resolve(env, **kwargs), "func", None) is gymnasium.make
    if is_gymnasium or (recipe is not None and recipe.draws):
        kwargs = {"render_mode": "rgb_array", **kwargs}
    # Rendering takes most of the time, so worker processes would only cost the way through them.
    backend: Any = "native" if native_library(resolve(env, **kwargs)) else "serial"
    return make(env, copies, backend=backend, env_kwargs=kwargs, **options)


def _pictures(vec: Vector, height: int | None) -> Picture:
    return tile([_with_height(found, height) for found in vec.apply(_picture_of, height)])


def _picture_of(env: Env, height: int | None) -> Any:
    return env.render(height) if isinstance(env, NativeEnv) else env.render()


def _with_height(found: Any, height: int | None) -> Picture:
    picture = check_picture(found)
    if height is None or height == picture.shape[0]:
        return picture
    return resize(picture, max(1, round(picture.shape[1] * height / picture.shape[0])), height)


def _fps_of(env: Env) -> float:
    if isinstance(env, NativeEnv):
        return env.spec.frames or FPS
    metadata: Mapping[str, Any] = getattr(getattr(env, "source", env), "metadata", None) or {}
    return float(metadata.get("render_fps") or FPS)


@contextmanager
def _progress(steps: int, show: bool) -> Iterator[Callable[[], None]]:
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("steps", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=steps)
        yield lambda: progress.advance(task)


# ------------------------------------------------------------------ files of pictures


def check_video(path: Path) -> None:
    """Raise if no such file can be written here, before anything is played."""
    if path.suffix.lower() not in NEEDED:
        raise UsageError(
            f"out: given {str(path)!r}; allowed: a name that ends with {', '.join(NEEDED)}."
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
def open_video(path: Path, fps: float) -> Iterator[Mp4 | Images]:
    """Open a file to add pictures to; nothing is left of it if something fails meanwhile."""
    check_video(path)
    # Under another name until it is whole, so that what was there stays if this fails.
    part = path.with_name(f".{path.stem}.part{path.suffix.lower()}")
    try:
        part.touch()  # the error says why not, which an encoder's does not
        video = Mp4(part, fps) if part.suffix == ".mp4" else Images(part, fps)
        try:
            yield video
        finally:
            video.close()
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


class Mp4:
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
        """Add a picture, of the size of those before."""
        # Colours are stored for two pixels each way, so the size must be even.
        height, width, _ = picture.shape
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._writer.append_data(even)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class Images:
    """A GIF that loops, each picture with a palette of its own; or a PNG of the last picture."""

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._image = path, importlib.import_module("PIL.Image")
        self._duration = max(SHORTEST, round(100 / fps) * 10)  # GIFs count hundredths of a second
        self._pictures: list[Any] = []

    def add(self, picture: Picture) -> None:
        """Add a picture, of the size of those before."""
        image = self._image.fromarray(picture)
        if self._path.suffix == ".png":
            self._pictures = [image]
        else:
            self._pictures.append(image.quantize(256, dither=self._image.Dither.NONE))

    def close(self) -> None:
        """Write the pictures."""
        if not self._pictures:
            return
        first, *others = self._pictures
        if self._path.suffix == ".png":
            first.save(self._path)
        else:
            options = {"save_all": True, "append_images": others, "loop": 0, "disposal": 1}
            first.save(self._path, duration=self._duration, **options)
