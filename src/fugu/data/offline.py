"""Offline data: whole episodes in a folder, appended as they end and read through memory maps.

A folder has a .npy file for each array, `episodes.npy` with a row for each episode, and
`metadata.json`, which has the number of committed episodes. Arrays are appended and reach the disk
first; then the metadata is replaced in one rename. Whatever a killed writer left beyond it is not
committed, and the next writer cuts it off.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

import fugu
from fugu.core.closing import Closing
from fugu.core.errors import FuguError, UsageError
from fugu.core.files import DOCUMENT, check_file, read_bytes
from fugu.core.writing import write_whole
from fugu.envs.contract import AgentGroup
from fugu.envs.masks import mask_heads
from fugu.spaces import Layout
from fugu.store import values

FORMAT = 1  # of the folder
METADATA, EPISODES = "metadata.json", "episodes.npy"
COMMIT_BYTES = 32 * 2**20  # kept in memory before they are written
EPISODE = np.dtype([("start", "<i8"), ("length", "<i8"), ("return", "<f8"), ("checksum", "<u4")])
ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")
DTYPES = {str(np.dtype(code)) for code in "?bBhHiIlLqQefd"}  # of observations and actions
# What a dataset's metadata has at least.
METADATA_TYPES: dict[str, type] = {
    "env": str,
    "env_kwargs": dict,
    "observations": dict,
    "actions": dict,
    "choices": list,
    "episodes": int,
    "steps": int,
    "checksum": int,
    "statistics": dict,
}
Kind = tuple[np.dtype[Any], tuple[int, ...]]  # of a column: its dtype, and the shape of a row


class DatasetError(FuguError, RuntimeError):
    """A dataset that is missing, broken, or of something else."""


@dataclass(frozen=True)
class Episode:
    """What one agent saw, did and received from a reset to an end."""

    observations: NDArray[Any]  # rows of the layout, the final one included, [steps + 1, size]
    actions: NDArray[Any]  # rows of the action layout, as the environment got them, [steps, size]
    rewards: NDArray[np.float32]  # [steps]
    terminations: NDArray[np.bool_]  # whether the environment ended the episode there, [steps]
    truncations: NDArray[np.bool_]  # whether the episode was cut off there, [steps]

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def checksum(self) -> int:
        """CRC-32 of all arrays."""
        found = 0
        for name in ARRAYS:
            found = zlib.crc32(np.ascontiguousarray(getattr(self, name)).tobytes(), found)
        return found


class Dataset:
    """Episodes of one group of agents, mapped from a folder; opening it reads next to nothing.

    Attributes:
        folder: Where it is.
        metadata: The environment, its layouts, who wrote it, and statistics of returns and lengths.
        starts: The first step of each episode, `[episodes]`.
        lengths: Steps of each episode, `[episodes]`.
        returns: Sum of rewards of each episode, `[episodes]`.
        observations: `[steps + episodes, size]`, each episode's with one more at its end: step `s`
            of episode `e`, counted through all episodes, saw row `s + e`.
        actions: `[steps, size]`; `rewards`, `terminations` and `truncations` are `[steps]`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.metadata = read_metadata(self.folder)
        count, steps = int(self.metadata["episodes"]), int(self.metadata["steps"])
        kinds = _kinds(self.folder, self.metadata)
        self._table = map_rows(self.folder / EPISODES, count, (EPISODE, ()))
        if zlib.crc32(self._table.tobytes()) != self.metadata["checksum"]:
            raise DatasetError(f"{self.folder / EPISODES}: its checksum is wrong. Record it anew.")
        _check_table(self.folder / EPISODES, self._table, steps)
        self.starts: NDArray[np.int64] = np.array(self._table["start"])
        self.lengths: NDArray[np.int64] = np.array(self._table["length"])
        self.returns: NDArray[np.float64] = np.array(self._table["return"])
        rows = {name: steps + count if name == "observations" else steps for name in ARRAYS}
        maps = {
            name: map_rows(self.folder / f"{name}.npy", rows[name], kinds[name]) for name in ARRAYS
        }
        self.observations, self.actions = maps["observations"], maps["actions"]
        self.rewards: NDArray[np.float32] = maps["rewards"]
        self.terminations: NDArray[np.bool_] = maps["terminations"]
        self.truncations: NDArray[np.bool_] = maps["truncations"]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Episode:
        """Return an episode, whose arrays are views of the maps."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index}: there are {len(self)}.")
        place = index % len(self)
        first, last = self.starts[place], self.starts[place] + self.lengths[place]
        return Episode(
            self.observations[first + place : last + place + 1],
            *(getattr(self, name)[first:last] for name in ARRAYS[1:]),
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self.metadata["steps"])

    def check(self, group: AgentGroup) -> None:
        """Raise DatasetError unless the data is of agents with these layouts."""
        _check_layouts(self.folder, self.metadata, group)

    def verify(self) -> None:
        """Read everything, and raise DatasetError if a checksum is wrong."""
        for index, episode in enumerate(self):
            if episode.checksum != self._table["checksum"][index]:
                raise DatasetError(
                    f"{self.folder}: given episode {index} with another checksum than when it was "
                    "written; allowed: files as they were. Record it anew."
                )


class Column:
    """An array that grows at its end: a .npy file, whose header leaves room for a longer one."""

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.path, self.dtype, self.shape = path, dtype, shape
        if path.is_symlink():
            raise DatasetError(
                f"{path}: it is a link, and would be written through. Copy the data."
            )
        if not path.exists():
            path.touch()
        try:
            check_file(path)
            self._file = path.open("r+b")
        except OSError as error:
            raise DatasetError(f"{path}: it cannot be written: {error.strerror}.") from None
        if not path.stat().st_size:
            self._write_header(0)
        self._offset = _read_header(path, (dtype, shape))
        self._row_bytes = dtype.itemsize * math.prod(shape)

    def append(self, arrays: Sequence[NDArray[Any]], first: int) -> None:
        """Write rows from `first` on; they are on the disk when this returns."""
        self._file.seek(self._offset + first * self._row_bytes)
        for array in arrays:
            self._file.write(np.ascontiguousarray(array, self.dtype).tobytes())
        self._flush(first + sum(map(len, arrays)))

    def truncate(self, rows: int) -> None:
        """Keep only the first rows; the file may hold more, or fewer if it was damaged."""
        self._file.truncate(self._find_end(rows))
        self._flush(rows)

    def read(self, rows: int) -> NDArray[Any]:
        """Return the first rows."""
        size = self._find_end(rows) - self._offset
        self._file.seek(self._offset)
        return np.frombuffer(self._file.read(size), self.dtype).reshape(-1, *self.shape)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _find_end(self, rows: int) -> int:
        end = self._offset + rows * self._row_bytes
        if os.fstat(self._file.fileno()).st_size < end:
            raise _too_short(self.path)
        return end

    def _flush(self, rows: int) -> None:
        """Write data to the disk first, then the header that counts it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._write_header(rows)

    def _write_header(self, rows: int) -> None:
        self._file.seek(0)
        described = npy.dtype_to_descr(self.dtype)
        header = {"descr": described, "fortran_order": False, "shape": (rows, *self.shape)}
        npy.write_array_header_1_0(self._file, header)
        self._file.flush()


def _read_header(path: Path, kind: Kind) -> int:
    """Return where the data of a .npy file begins; raise DatasetError if it is of another kind."""
    dtype, row = kind
    try:
        check_file(path)
        with path.open("rb") as file:
            npy.read_magic(file)
            shape, _, found = npy.read_array_header_1_0(file)
            offset = file.tell()
    except Exception as error:  # NumPy parses headers as Python, which fails in many ways
        raise DatasetError(f"{path}: it cannot be read: {error!s:.500}. Record it anew.") from None
    if shape[1:] != row or found != dtype:
        raise DatasetError(
            f"{path}: given {found} of shape {shape}; allowed: {dtype} of shape "
            f"(rows, {', '.join(map(str, row))})."
        )
    return offset


def map_rows(path: Path, rows: int, kind: Kind) -> NDArray[Any]:
    """Return the first rows of a .npy file as a map; its header may count more, or fewer."""
    offset, (dtype, row) = _read_header(path, kind), kind
    size = rows * math.prod(row) * dtype.itemsize
    if path.stat().st_size < offset + size:
        raise _too_short(path)
    if not size:
        return np.zeros((rows, *row), dtype)
    return np.memmap(path, dtype, "r", offset, (rows, *row))


def _too_short(path: Path) -> DatasetError:
    return DatasetError(f"{path}: it is shorter than its metadata says. Record it anew.")


class DatasetWriter(Closing):
    """Appends episodes to a folder, a new one or one of the same environment.

    Episodes are committed by `commit`, after some megabytes, and at the end of a `with` block.

    Args:
        folder: Where to write.
        group: The agents of the episodes.
        env: The environment's name, as `fugu.make` takes it.
        env_kwargs: Arguments of the environment.
    """

    def __init__(
        self,
        folder: str | Path,
        group: AgentGroup,
        env: str = "",
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        own = {"env": env, "env_kwargs": dict(env_kwargs or {}), **_describe(group)}
        if (self.folder / METADATA).is_file():
            self._metadata = read_metadata(self.folder)
            _check_layouts(self.folder, self._metadata, group)
            if env and self._metadata["env"] != env:
                raise DatasetError(
                    f"{self.folder}: given episodes of {env!r}; allowed: those of "
                    f"{self._metadata['env']!r}, as there are already. Take another folder."
                )
        else:
            _check_empty(self.folder)
            self._metadata = {"format": FORMAT, "fugu": fugu.__version__, **own}
            self._metadata |= {"episodes": 0, "steps": 0, "checksum": 0, "statistics": {}}
        self.folder.mkdir(parents=True, exist_ok=True)
        kinds = _kinds(self.folder, self._metadata)
        self._columns = {name: Column(self.folder / f"{name}.npy", *kinds[name]) for name in ARRAYS}
        self._lines = Column(self.folder / EPISODES, EPISODE, ())
        self._pending: list[Episode] = []
        self._pending_bytes = 0
        self.keep(self.episodes)
        write_whole(self.folder / METADATA, values.dump(self._metadata))

    @property
    def episodes(self) -> int:
        """Number of committed episodes."""
        return int(self._metadata["episodes"])

    def add(self, episode: Episode) -> None:
        """Append an episode."""
        shapes = {name: getattr(episode, name).shape for name in ARRAYS}
        for name, column in self._columns.items():
            steps = len(episode) + (name == "observations")
            array = getattr(episode, name)
            if not len(episode) or array.shape != (steps, *column.shape):
                raise UsageError(
                    f"add: given an episode with arrays of shapes {shapes}; allowed: one step or "
                    f"more, and {name} of shape {(steps, *column.shape)}."
                )
            if array.dtype != column.dtype:
                raise UsageError(f"add: given {name} of {array.dtype}; allowed: {column.dtype}.")
        self._pending.append(episode)
        self._pending_bytes += sum(getattr(episode, name).nbytes for name in ARRAYS)
        if self._pending_bytes >= COMMIT_BYTES:
            self.commit()

    def commit(self) -> None:
        """Commit all episodes that were added; a kill from now on does not lose them."""
        if not self._pending:
            return
        lines = np.zeros(len(self._pending), EPISODE)
        steps = int(self._metadata["steps"])
        for line, episode in zip(lines, self._pending, strict=True):
            total = float(np.sum(episode.rewards, dtype=np.float64))
            line["start"], line["length"] = steps, len(episode)
            line["return"], line["checksum"] = total, episode.checksum
            steps += len(episode)
        for name, column in self._columns.items():
            first = int(self._metadata["steps"]) + (self.episodes if name == "observations" else 0)
            column.append([getattr(episode, name) for episode in self._pending], first)
        self._lines.append([lines], self.episodes)
        self._write_metadata(self.episodes + len(lines), steps)
        self._pending, self._pending_bytes = [], 0

    def keep(self, episodes: int) -> None:
        """Cut off all but the first episodes, as a resumed run goes back to its checkpoint."""
        if not 0 <= episodes <= self.episodes:
            raise UsageError(f"keep: given {episodes}; allowed: 0 to {self.episodes}.")
        lines = self._lines.read(self.episodes)
        _check_table(self.folder / EPISODES, lines, int(self._metadata["steps"]))
        steps = int(lines["length"][:episodes].sum())
        if episodes < self.episodes:  # first they no longer count, then they are gone
            self._write_metadata(episodes, steps)
        for name, column in self._columns.items():
            column.truncate(steps + episodes if name == "observations" else steps)
        self._lines.truncate(episodes)

    def close(self) -> None:
        """Commit, and close the files."""
        self.commit()
        for column in (*self._columns.values(), self._lines):
            column.close()

    def _write_metadata(self, episodes: int, steps: int) -> None:
        """Replace the metadata, in one rename."""
        lines = self._lines.read(episodes)
        metadata = self._metadata | {
            "episodes": episodes,
            "steps": steps,
            "checksum": zlib.crc32(lines.tobytes()),
            "statistics": statistics(lines["return"], lines["length"]),
        }
        write_whole(self.folder / METADATA, values.dump(metadata))
        self._metadata = metadata


def statistics(returns: NDArray[Any], lengths: NDArray[Any]) -> dict[str, float]:
    """Return means, deviations and extremes for the metadata.

    >>> statistics(np.array([1.0, 3.0]), np.array([5, 5]))["mean_return"]
    2.0
    """
    if not len(returns):
        return {}
    return {
        "mean_return": float(returns.mean()),
        "deviation": float(returns.std()),
        "lowest": float(returns.min()),
        "highest": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "longest": int(lengths.max()),
    }


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read and check the metadata of a dataset."""
    try:
        found = values.load(read_bytes(folder / METADATA, DOCUMENT))
    except FileNotFoundError:
        raise DatasetError(
            f"data: given {str(folder)!r}, which holds no dataset; allowed: a folder that `fugu "
            "record ENV --data FOLDER` wrote."
        ) from None
    except (OSError, ValueError) as error:
        raise DatasetError(f"{folder / METADATA}: it is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise DatasetError(f"{folder / METADATA}: it holds no object. Record it anew.")
    if found.get("format") != FORMAT:
        raise DatasetError(
            f"{folder}: given a dataset of format {found.get('format')!r:.80}; allowed: {FORMAT}. "
            "A newer fugu wrote it."
        )
    for name, kind in METADATA_TYPES.items():
        given = found.get(name)
        if not isinstance(given, kind) or (isinstance(given, int) and not 0 <= given < 1 << 48):
            raise DatasetError(
                f"{folder / METADATA}: given {name} of {given!r:.80}; allowed: "
                f"{'a count' if kind is int else f'a {kind.__name__}'}. Record it anew."
            )
    return found


def group_folders(folder: str | Path, groups: Sequence[AgentGroup]) -> list[Path]:
    """Return the folder of each group's data: the folder itself if there is only one group."""
    root = Path(folder)
    return [root] if len(groups) == 1 else [root / group.name for group in groups]


def _kinds(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Kind]:
    """Return the dtypes and shapes of all columns of a dataset."""
    found: dict[str, Kind] = {
        "rewards": (np.dtype(np.float32), ()),
        "terminations": (np.dtype(np.bool_), ()),
        "truncations": (np.dtype(np.bool_), ()),
    }
    for name in ("observations", "actions"):
        dtype, size = metadata[name].get("dtype"), metadata[name].get("size")
        plain = isinstance(dtype, str) and dtype in DTYPES
        if not plain or not isinstance(size, int) or not 0 <= size < 1 << 40:
            raise DatasetError(
                f"{folder / METADATA}: given {name} of {size!r:.80} times {dtype!r:.80}; allowed: "
                "a count of plain numbers. Record it anew."
            )
        found[name] = (np.dtype(dtype), (int(size),))  # true is one, for Python
    return found


def _check_table(path: Path, table: NDArray[Any], steps: int) -> None:
    """Raise DatasetError unless episodes stand one after another, and fill all steps."""
    lengths, starts = table["length"], table["start"]
    whole = bool((lengths >= 1).all() and (lengths <= steps).all())
    if not whole or int(lengths.sum()) != steps or (starts != np.cumsum(lengths) - lengths).any():
        raise DatasetError(f"{path}: its episodes are not one after another. Record it anew.")


def _describe(group: AgentGroup) -> dict[str, Any]:
    """Return what must be the same for data and environment to fit."""
    layouts = {"observations": group.observation_layout, "actions": group.action_layout}
    return {
        "group": group.name,
        **{name: _describe_layout(layout) for name, layout in layouts.items()},
        "choices": mask_heads(group.action_layout),
    }


def _describe_layout(layout: Layout) -> dict[str, Any]:
    leaves = [
        {
            "path": leaf.path,
            "dtype": str(leaf.dtype),
            "shape": list(leaf.shape),
            "offset": leaf.offset,
        }
        for leaf in layout.leaves
    ]
    space, dtype = str(layout.space), str(layout.dtype)
    return {"space": space, "dtype": dtype, "size": layout.size, "leaves": leaves}


def _check_layouts(folder: Path, metadata: Mapping[str, Any], group: AgentGroup) -> None:
    own = _describe(group)
    for name in ("observations", "actions"):
        given, allowed = metadata[name], own[name]
        if any(given.get(key) != allowed[key] for key in ("dtype", "size", "leaves")):
            raise DatasetError(
                f"{folder}: given data with {name} of {given.get('space')!s:.500}; allowed: "
                f"{allowed['space']}, as the environment has them."
            )
    if metadata["choices"] != own["choices"]:
        raise DatasetError(
            f"{folder}: given data with heads of {metadata['choices']} choices; allowed: "
            f"{own['choices']}, as the environment has them."
        )


def _check_empty(folder: Path) -> None:
    taken = [name for name in (*ARRAYS, "episodes") if (folder / f"{name}.npy").exists()]
    if taken:
        raise DatasetError(
            f"{folder}: given a folder with {taken[0]}.npy and no {METADATA}; allowed: a new "
            "folder, or a dataset's. Take another one."
        )
