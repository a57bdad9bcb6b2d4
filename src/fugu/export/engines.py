"""Engines by name, for policies and for exported files."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.export.engine import Engine, PolicyFacts
from fugu.nets.native import NativeNet
from fugu.nets.net import Floats, Net

if TYPE_CHECKING:
    from fugu.policies.policy import Policy
    from fugu.spaces import Layout

# Modules of engines that are imported when they are chosen, each with `make_engine(net)`.
MODULES = {
    "onnx": "fugu.export.onnx_engine",
    "jax": "fugu.export.jax_net",
    "wasm": "fugu.export.wasm_engine",
    "c": "fugu.export.c_engine",
}
NAMES = ("torch", "compile", "native", *MODULES)


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
        (nearest,) = difflib.get_close_matches(str(name), NAMES, n=1, cutoff=0.0)
        raise UsageError(
            f"engine: given {name!r}; nearest: {nearest!r}; allowed: {', '.join(NAMES)}."
        )


def make_engine(name: str, policy: Policy, layout: Layout) -> Engine:
    """Make an engine for a policy and the layout of its observations.

    Only torch and compile run any policy; others run those that `read_policy` can take apart.
    """
    check_engine(name)
    if name in ("torch", "compile"):
        from fugu.export.torch_engine import TorchEngine

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
