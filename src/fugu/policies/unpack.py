"""Torch views of layouts: the first layer of a policy restores the structure of flat rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fugu.core.errors import MissingExtraError, PackError
from fugu.spaces import Layout

try:
    import torch
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "train") from error

_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name): getattr(torch, name)
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
        "float16", "float32", "float64",
    )
}  # fmt: skip


def unpack(layout: Layout, batch: torch.Tensor) -> Any:
    """Return the tree of `layout.views` as views of a torch batch, `[..., size]`, on any device.

    Works under `torch.compile(fullgraph=True)`. Nothing is copied.

    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(gear=spaces.Discrete(5), position=spaces.Box(-1, 1, (2,))))
    >>> tree = unpack(layout, torch.from_numpy(layout.zeros(32)))
    >>> {name: (leaf.dtype, tuple(leaf.shape)) for name, leaf in tree.items()}
    {'gear': (torch.int64, (32,)), 'position': (torch.float32, (32, 2))}
    """
    flat_dtype = torch_dtype(layout.dtype)
    if batch.dtype != flat_dtype or batch.dim() < 1 or batch.shape[-1] != layout.size:
        raise PackError(
            "",
            f"{batch.dtype} tensor of shape {tuple(batch.shape)}",
            f"{flat_dtype} tensor of shape (..., {layout.size})",
            "Rows are never reinterpreted.",
        )
    lead = batch.shape[:-1]

    def view(offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> torch.Tensor:
        count, leaf_dtype = math.prod(shape), torch_dtype(dtype)
        if count == 0:
            return batch.new_empty((*lead, *shape), dtype=leaf_dtype)
        start = offset // layout.dtype.itemsize
        length = count * dtype.itemsize // layout.dtype.itemsize
        leaf = batch.narrow(-1, start, length)
        if leaf_dtype != flat_dtype:
            leaf = leaf.view(leaf_dtype)
        return leaf.view((*lead, *shape))

    return layout.tree(view)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype of a NumPy dtype."""
    return _DTYPES[dtype]
