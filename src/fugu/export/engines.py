"""The engines by name; a module is imported when its engine is chosen.

A module has `make_engine(net)`, and `open_engine(path)` if it reads files of its own. It raises
`MissingExtraError` where a package that it needs is missing.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fugu.core.errors import UsageError, nearest_names
from fugu.export.engine import Engine

if TYPE_CHECKING:
    from fugu.policies.policy import Policy
    from fugu.spaces import Layout

# Those that run any policy, by torch.
POLICY_ENGINES = ("torch", "compile")
# Those that run networks that `fugu.nets.reading` can take apart.
NET_ENGINES = {
    "native": "fugu.export.native_engine",
    "onnx": "fugu.export.onnx_engine",
    "jax": "fugu.export.jax_engine",
    "wasm": "fugu.export.wasm_engine",
    "c": "fugu.export.c_engine",
}
NAMES = (*POLICY_ENGINES, *NET_ENGINES)


def check_engine(name: str) -> None:
    """Raise unless there is an engine of that name."""
    if name not in NAMES:
        (nearest,) = nearest_names(name, NAMES)
        raise UsageError(
            f"engine: given {name!r}; nearest: {nearest!r}; allowed: {', '.join(NAMES)}."
        )


def make_engine(name: str, policy: Policy, layout: Layout) -> Engine:
    """An engine for a policy and the layout of its observations."""
    check_engine(name)
    if name in POLICY_ENGINES:
        from fugu.export.torch_engine import TorchEngine

        return TorchEngine(policy, layout, compiled=name == "compile")
    module = _module(name)
    from fugu.nets.reading import read_policy

    engine: Engine = module.make_engine(read_policy(policy, layout))
    return engine


def open_engine(name: str, path: Path) -> Engine:
    """The engine of an exported file or folder, for which `file_engine` gave the name."""
    engine: Engine = _module(name).open_engine(path)
    return engine


def file_engine(path: Path) -> str | None:
    """The engine that reads a file or folder; None if none does."""
    if path.suffix in (".onnx", ".wasm"):
        return path.suffix.removeprefix(".")
    return "c" if (path / "policy.c").is_file() else None


def _module(name: str) -> Any:
    return importlib.import_module(NET_ENGINES[name])
