"""Inference engines by name, and the leaves of layouts as named arrays."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fugu.core.errors import UsageError, nearest_names
from fugu.inference.engine import Engine, PolicyFacts
from fugu.nets.native import NativeNet
from fugu.nets.net import Floats, Net, Place
from fugu.spaces import Layout, Leaf

if TYPE_CHECKING:
    from fugu.policies.policy import Policy

FACTS = "fugu.facts"  # their key in the metadata of ONNX
NamedLeaves = dict[str, Leaf]
# Modules of engines that are imported when they are chosen, each with `make_engine(net)`.
MODULES = {
    "onnx": "fugu.export.onnx_engine",
    "jax": "fugu.export.jax_net",
    "wasm": "fugu.export.wasm_engine",
    "c": "fugu.export.c_engine",
}
NAMES = ("torch", "compile", "native", *MODULES)


# ---------------------------------------------------------------------- engines by name


class NativeEngine:
    """Runs a network by the native core, for the best kind of processor of this machine."""

    def __init__(self, net: Net) -> None:
        self.facts, self._net = PolicyFacts.of(net), NativeNet(net)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass; see `Engine.forward`."""
        return self._net.forward(rows, state)


def check_engine(name: str) -> None:
    """Raise unless there is an engine of that name."""
    if name not in NAMES:
        (nearest,) = nearest_names(name, NAMES)
        raise UsageError(
            f"engine: given {name!r}; nearest: {nearest!r}; allowed: {', '.join(NAMES)}."
        )


def make_engine(name: str, policy: Policy, layout: Layout) -> Engine:
    """Make an engine for a policy and the layout of its observations.

    Only torch and compile run any policy; others run those that `read_policy` can take apart.
    """
    check_engine(name)
    if name in ("torch", "compile"):
        from fugu.inference.torch_engine import TorchEngine

        return TorchEngine(policy, layout, compiled=name == "compile")
    make = NativeEngine if name == "native" else importlib.import_module(MODULES[name]).make_engine
    from fugu.nets.reading import read_policy

    engine: Engine = make(read_policy(policy, layout))
    return engine


def open_engine(name: str, path: Path) -> Engine:
    """Open an exported file or folder with the engine that `file_engine` named."""
    engine: Engine = importlib.import_module(MODULES[name]).open_engine(path)
    return engine


def file_engine(path: Path) -> str | None:
    """Return the engine that reads a file or folder; None if none does."""
    if path.suffix in (".onnx", ".wasm"):
        return path.suffix.removeprefix(".")
    return "c" if (path / "policy.c").is_file() else None


# ---------------------------------------------------------------------- leaves as arrays


def named_leaves(layout: Layout, root: str) -> NamedLeaves:
    """Return the leaves of a layout by name: `root` for a single one, else `root/path`.

    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(gear=spaces.Discrete(5), at=spaces.Box(-1, 1, (2,))))
    >>> list(named_leaves(layout, "observation"))
    ['observation/gear', 'observation/at']
    """
    return {f"{root}/{leaf.path}" if leaf.path else root: leaf for leaf in layout.leaves}


def split_rows(leaves: NamedLeaves, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return each leaf of rows `[batch, size]`, `[batch, *its shape]`, as views where possible."""
    if len(leaves) == 1:
        ((name, leaf),) = leaves.items()
        return {name: rows.reshape(len(rows), *leaf.shape)}
    raw = rows.view("uint8")
    return {
        name: raw[:, leaf.offset : leaf.offset + leaf.nbytes]
        .view(leaf.dtype)
        .reshape(len(rows), *leaf.shape)
        for name, leaf in leaves.items()
    }


def leaves_at(leaves: NamedLeaves, place: Place, count: int) -> list[str]:
    """Return the names of the leaves that hold the `count` numbers of a place."""
    end = place.offset + count * place.dtype.itemsize
    found = [
        name
        for name, leaf in leaves.items()
        if place.offset <= leaf.offset and leaf.offset + leaf.nbytes <= end and leaf.nbytes
    ]
    assert sum(leaves[name].nbytes for name in found) == end - place.offset
    assert all(leaves[name].dtype == place.dtype for name in found)
    return found
