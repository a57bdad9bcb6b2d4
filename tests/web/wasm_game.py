"""A module as a page uses it, run by wasmtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from wasmtime import Engine, Instance, Memory, Module, Store

NAMES = [
    *("observations", "final", "actions", "masks", "rewards", "costs", "terminations"),
    *("truncations", "live", "over", "agents"),
    *("observation_bytes", "action_bytes", "mask_width", "num_costs"),
]
MINDS = [
    *("states", "params", "values", "num_states", "num_params", "num_values", "choices"),
    *("spread", "scratch"),
]
TYPES = {"rewards": np.float32, "costs": np.float32}


class WasmGame:
    """Copies of an environment in a module."""

    def __init__(self, module: bytes, copies: int) -> None:
        self._store = Store(Engine())
        instance = Instance(self._store, Module(self._store.engine, module), [])
        self._exports = instance.exports(self._store)
        assert self.call("open", copies)
        self.copies = copies

    def call(self, name: str, *args: int) -> Any:
        return self._exports[name](self._store, *args)

    def memory(self, at: int, count: int, dtype: Any = np.uint8) -> NDArray[Any]:
        """Numbers in the module's memory, as they are now."""
        memory: Memory = self._exports["memory"]
        size = memory.data_len(self._store)
        whole = np.ctypeslib.as_array(memory.data_ptr(self._store), (size,))
        return whole[at : at + count * np.dtype(dtype).itemsize].copy().view(dtype)

    def write(self, at: int, values: NDArray[Any]) -> None:
        self._exports["memory"].write(self._store, values.tobytes(), at)

    def group(self, group: int) -> dict[str, int]:
        return dict(zip(NAMES, self._words(self.call("rows", group), len(NAMES)), strict=True))

    def minds(self, group: int) -> dict[str, int]:
        return dict(zip(MINDS, self._words(self.call("minds", group), len(MINDS)), strict=True))

    def rows(self, group: int, name: str) -> NDArray[Any]:
        """One array of a group, `[copies * agents, numbers]`."""
        found = self.group(group)
        rows = self.copies * found["agents"]
        dtype = TYPES.get(name, np.uint8)
        widths = {
            "observations": found["observation_bytes"],
            "final": found["observation_bytes"],
            "actions": found["action_bytes"],
            "masks": found["mask_width"],
            "costs": found["num_costs"],
        }
        width = widths.get(name, 1)
        return self.memory(found[name], rows * width, dtype).reshape(rows, width)

    def act(self, group: int, actions: NDArray[Any]) -> None:
        """Write the actions of all agents of a group."""
        self.write(self.group(group)["actions"], actions)

    def shapes(self, copy: int) -> tuple[int, list[Any]]:
        """What it draws, as `NativeEnv.display_list` gives it."""
        at, count, _, background = self._words(self.call("draw", copy), 4)
        out = []
        for i in range(count):
            raw = self.memory(at + 84 * i, 84)
            kind, color = (int(word) for word in raw[:8].view(np.uint32))
            numbers = [float(number) for number in raw[8:36].view(np.float32)]
            text = raw[36:].tobytes().split(b"\0")[0].decode()
            out.append((kind, color, tuple(numbers[:3]), tuple(numbers[3:6]), numbers[6], text))
        return background, out

    def _words(self, at: int, count: int) -> list[int]:
        return [int(word) for word in self.memory(at, count, np.uint32)]
