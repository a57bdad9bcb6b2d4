"""Datasets from Minari's format and to it, through the package `minari` itself."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import FuguError, MissingExtraError, UsageError
from fugu.core.files import DOCUMENT
from fugu.data.columns import DatasetError
from fugu.data.offline import Dataset, DatasetWriter, Episode
from fugu.envs.contract import AgentGroup
from fugu.envs.suite import newest
from fugu.spaces import Layout

NAME = "agent"  # of the group that an imported dataset's episodes are of
BLOCK = 64  # episodes that are handed over at once


def import_minari(
    source: str | Path,
    folder: str | Path,
    group: AgentGroup | None = None,
    *,
    env: str | None = None,
) -> Dataset:
    """Write a Minari dataset's episodes as a dataset of ours.

    Args:
        source: The id of a dataset that is on this machine, such as "D4RL/pen/human-v2", or the
            folder of its data.
        folder: Where to write; a dataset that is there already gets more.
        group: Whose episodes they are: `vec.groups[0]` of the environment. If not given, layouts
            are those of Minari's spaces, in which keys are sorted.
        env: The environment's name; what Minari says if not given.

    Returns:
        The dataset.
    """
    minari = _package("minari")
    path = Path(source)
    is_folder = (path / "metadata.json").is_file()
    with _explaining(source):
        found = minari.MinariDataset(path) if is_folder else minari.load_dataset(str(source))
        _check_sizes(Path(found.storage.data_path) / "main_data.hdf5")
        return _copy(found, Path(folder), group, env)


@contextmanager
def _explaining(source: str | Path) -> Iterator[None]:
    """Errors of ours for what Minari, HDF5 or JSON say of files that are not as they should be."""
    try:
        yield
    except FuguError:
        raise
    except FileNotFoundError:
        raise UsageError(
            f"minari: given {str(source)!r}; allowed: the id of a dataset on this machine, or the "
            f"folder of its data. Download it with: minari download {source}"
        ) from None
    except Exception as error:
        raise DatasetError(
            f"minari: given {str(source)!r}, which cannot be read ({type(error).__name__}: "
            f"{error!s:.500}); allowed: a dataset as Minari writes it. Download it anew."
        ) from error


def _check_sizes(path: Path) -> None:
    """Raise unless every episode of an HDF5 file has its own data and fits into memory."""
    if not path.exists():  # Minari knows other formats too
        return
    h5py: Any = importlib.import_module("h5py")
    most = max(path.stat().st_size, DOCUMENT)
    with h5py.File(path) as file:
        for name in file:
            if (size := _declared(file, name, h5py)) > most:
                raise DatasetError(
                    f"{path}: expected episodes of at most {most} bytes; got {name} of {size}. "
                    "Download it anew."
                )


def _declared(group: Any, name: str, h5py: Any) -> int:
    """The bytes that a part of an HDF5 file takes in memory; DatasetError if it is elsewhere."""
    link = group.get(name, getlink=True)
    part = group[name] if isinstance(link, h5py.HardLink) else None
    if isinstance(part, h5py.Group):
        return sum(_declared(part, inner, h5py) for inner in part)
    if part is None or part.external or part.is_virtual:
        raise DatasetError(f"minari: expected data in one file; got a link, {name}, to others.")
    return int(part.nbytes)


def _copy(found: Any, folder: Path, group: AgentGroup | None, env: str | None) -> Dataset:
    """The episodes of an open Minari dataset, as a dataset of ours."""
    if group is None:
        layouts = Layout.of(found.observation_space), Layout.of(found.action_space)
        group = AgentGroup(NAME, (0,), *layouts)
    observation, action = group.observation_layout, group.action_layout
    spec = found.env_spec
    name = env or ("" if spec is None else spec.id)
    with DatasetWriter(folder, group, name, {} if spec is None else spec.kwargs) as writer:
        for told in found.iterate_episodes():
            steps = len(told.rewards)
            writer.add(
                Episode(
                    _pack(observation, told.observations, steps + 1),
                    _pack(action, told.actions, steps),
                    np.asarray(told.rewards, np.float32),
                    np.asarray(told.terminations, np.bool_),
                    np.asarray(told.truncations, np.bool_),
                )
            )
    return Dataset(folder)


def export_minari(
    data: Dataset, name: str, group: AgentGroup, *, folder: str | Path | None = None
) -> Path:
    """Write a dataset in Minari's format, images without loss.

    Args:
        data: The dataset.
        name: Minari's id for it, such as "cartpole/mixture-v0".
        group: Whose episodes they are: `vec.groups[0]` of the environment.
        folder: Where to write; where `minari.load_dataset(name)` looks if not given.

    Returns:
        The folder that holds the data.
    """
    data.check(group)
    storages = _package("minari.dataset.minari_storage")
    roots = _package("minari.storage.datasets_root_dir")
    buffers = _package("minari.data_collector.episode_buffer")
    out = Path(roots.get_dataset_path(name)) / "data" if folder is None else Path(folder)
    if (out / "metadata.json").exists():
        raise UsageError(f"minari: given {str(out)!r}, which is taken; allowed: a new name.")
    out.mkdir(parents=True, exist_ok=True)
    observation, action = group.observation_layout, group.action_layout
    try:
        storage = storages.MinariStorage.new(
            out,
            observation_space=observation.space,
            action_space=action.space,
            env_spec=_spec(data.metadata),
            jpeg_encoding=False,
        )
    except NotImplementedError as error:
        raise UsageError(f"minari: given a space that it cannot hold: {error}.") from None
    minari = _package("minari")
    about = {"dataset_id": name, "minari_version": minari.__version__}
    storage.update_metadata({**about, "description": f"Recorded from {data.metadata['env']}."})
    for first in range(0, len(data), BLOCK):
        episodes = [data[index] for index in range(first, min(first + BLOCK, len(data)))]
        storage.update_episodes(
            [
                buffers.EpisodeBuffer(
                    observations=_stack(observation.space, _values(observation, e.observations)),
                    actions=_stack(action.space, _values(action, e.actions)),
                    rewards=np.array(e.rewards),
                    terminations=np.array(e.terminations),
                    truncations=np.array(e.truncations),
                )
                for e in episodes
            ]
        )
    return out


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError("minari", "minari") from error


def _spec(metadata: dict[str, Any]) -> Any:
    """How Gymnasium makes the environment; None if it is not one of its own."""
    name = metadata["env"]
    # Of what is registered alone: a stranger's name may be that of a module to import.
    found = newest(name, gymnasium.registry) or newest(name.partition(":")[2], gymnasium.registry)
    if found is None:
        return None
    spec = copy.deepcopy(gymnasium.registry[found])
    spec.kwargs.update(metadata["env_kwargs"])
    return spec


def _values(layout: Layout, rows: NDArray[Any]) -> list[Any]:
    return [layout.unpack(row, True) for row in np.array(rows)]


def _stack(space: Space[Any], given: Sequence[Any]) -> Any:
    """Values of a space as Minari has them: a tree whose leaves have the steps first."""
    match space:
        case spaces.Dict():
            return {key: _stack(s, [v[key] for v in given]) for key, s in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_stack(s, [v[i] for v in given]) for i, s in enumerate(space.spaces))
        case spaces.Text():
            return list(given)
        case _:
            return np.stack([np.asarray(value) for value in given])


def _pack(layout: Layout, tree: Any, count: int) -> NDArray[Any]:
    """Minari's tree of steps as rows."""
    rows = layout.zeros(count)
    for step, row in enumerate(rows):
        layout.pack(_step(layout.space, tree, step), row)
    return rows


def _step(space: Space[Any], tree: Any, step: int) -> Any:
    match space:
        case spaces.Dict():
            return {key: _step(inner, tree[key], step) for key, inner in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_step(s, part, step) for s, part in zip(space.spaces, tree, strict=True))
        case _:
            return tree[step]
