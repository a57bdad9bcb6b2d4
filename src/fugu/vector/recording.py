"""`record`: what environments look like while they are played, as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium

from fugu.core.errors import UsageError
from fugu.envs.contract import Env
from fugu.envs.native_env import NativeEnv, native_library
from fugu.envs.picture import Picture, check_picture, resize, tile
from fugu.envs.recipes import find_recipe
from fugu.envs.resolve import resolve
from fugu.vector.batch import Batch
from fugu.vector.film import check_film, film
from fugu.vector.making import make
from fugu.vector.random_actions import random_policy
from fugu.vector.vector import Vector

FPS = 30.0  # where an environment does not say
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
        env: As of `fugu.make`, or a vector that is made already and stays open.
        out: The file: .mp4 (H.264), .gif (looping) or .png (how it looks after all steps).
        policy: Gives the actions for a batch, as `Vector.send` takes them; random legal ones if
            not given.
        steps: Of each copy; there is one picture more.
        copies: Shown side by side; those of a vector that is given are as many as it has.
        seed: Of the environments and of random actions.
        fps: Pictures a second; what the environment says if not given, else 30.
        height: Of a copy's picture, in pixels.
        env_kwargs: Arguments of the environment; those of Gymnasium and PettingZoo are made with
            `render_mode="rgb_array"`.
        show: Show a progress bar on stderr.

    Returns:
        The file.
    """
    path = Path(out)
    for name, value in (("steps", steps), ("copies", copies), ("height", height), ("fps", fps)):
        if value is not None and not value >= (0 if name == "steps" else 1):
            least = 0 if name == "steps" else 1
            raise UsageError(f"{name}: given {value!r}; allowed: a number from {least} on.")
    check_film(path)
    if isinstance(env, Vector):
        _record(env, path, policy, steps, seed, fps, height, show)
        return path
    with make_rendered(env, copies, env_kwargs=env_kwargs) as vec:
        _record(vec, path, policy, steps, seed, fps, height, show)
    return path


def make_rendered(
    env: str | Callable[..., Any],
    copies: int,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Vector:
    """Make environments that render pictures; see `record` and, for the options, `fugu.make`."""
    kwargs = _with_render_mode(env, dict(env_kwargs or {}))
    return make(env, copies, backend=_backend(env, kwargs), env_kwargs=kwargs, **options)


def _record(
    vec: Vector,
    path: Path,
    policy: Policy | None,
    steps: int,
    seed: int | None,
    fps: float | None,
    height: int | None,
    show: bool,
) -> None:
    vec.async_reset(seed)
    batch = vec.recv()
    act = policy or random_policy(vec, seed or 0)
    picture = _pictures(vec, height)  # before a file is begun: it may be that there are none
    with film(path, fps or _fps(vec)) as out, _progress(steps, show) as advance:
        out.add(picture)
        for _ in range(steps):
            vec.send(act(batch))
            batch = vec.recv()
            if path.suffix.lower() != ".png":
                out.add(_pictures(vec, height))
            advance()
        if path.suffix.lower() == ".png":
            out.add(_pictures(vec, height))


def _pictures(vec: Vector, height: int | None) -> Picture:
    return tile([_with_height(found, height) for found in vec.apply(_picture_of, height)])


def _picture_of(env: Env, height: int | None) -> Any:
    return env.render(height) if isinstance(env, NativeEnv) else env.render()


def _with_height(found: Any, height: int | None) -> Picture:
    picture = check_picture(found)
    if height is None or height == picture.shape[0]:
        return picture
    return resize(picture, max(1, round(picture.shape[1] * height / picture.shape[0])), height)


def _fps(vec: Vector) -> float:
    metadata = vec.apply(_metadata_of, env_ids=[0])[0]
    return float(metadata.get("render_fps") or FPS)


def _metadata_of(env: Env) -> dict[str, Any]:
    if isinstance(env, NativeEnv):
        return {"render_fps": env.spec.frames}
    found: Mapping[str, Any] = getattr(getattr(env, "source", env), "metadata", None) or {}
    return {"render_fps": found.get("render_fps")}


def _with_render_mode(env: str | Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    factory = resolve(env, **kwargs)
    is_gymnasium = getattr(factory, "func", None) is gymnasium.make
    recipe = find_recipe(env) if isinstance(env, str) else None
    if is_gymnasium or (recipe is not None and recipe.draws):
        return {"render_mode": "rgb_array", **kwargs}
    return kwargs


def _backend(env: str | Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Pictures are what takes time, so there is no use in processes to send them through."""
    return "native" if native_library(resolve(env, **kwargs)) else "serial"


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
