"""Run and write policies as WebAssembly modules; running one needs neither torch nor a compiler."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.core.files import read_bytes
from fugu.core.writing import write_whole
from fugu.export.c_engine import build_wasm, check_sizes
from fugu.export.c_writer import CReport, write_c
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Floats, Net

try:
    import wasmtime
except ModuleNotFoundError as error:
    raise MissingExtraError("wasmtime", "export") from error

MAGIC = b"\0asm\1\0\0\0"
SECTION = b"fugu"
PAGE = 65536
HEAD = 20  # bytes that name the arrays of a call
MOST_MEMORY = 2**31  # bytes of a module
FUEL = 2 * 10**10  # instructions of one row; a module that needs more is stopped


class WasmEngine:
    """Runs the bytes of a module that `write_wasm` wrote; it can access only its own memory.

    `place` is the source that errors name.
    """

    def __init__(self, module: bytes, place: Path) -> None:
        self._place = place
        self.facts = PolicyFacts.from_json(read_facts(module, place), str(place))
        self._store, exports = _start(module, place)
        names = ("memory", "__heap_base", "fugu_policy_rows", "fugu_policy_size")
        try:
            self._memory, heap, self._rows, size = (exports[name] for name in names)
        except KeyError as error:
            raise _not_ours(place, f"it has no {error}") from error
        self._heap = int(heap.value(self._store))
        check_sizes([self._call(size, i) for i in range(6)], self.facts, place)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass; see `Engine.forward`."""
        count, (_, state_size, params, critics, *_) = len(rows), self.facts.sizes
        given = _bytes(np.ascontiguousarray(rows)), _bytes(np.ascontiguousarray(state, np.float32))
        lengths = [HEAD, *(each.size for each in given), 4 * count * params, 4 * count * critics]
        places = list(_places(self._heap, lengths))
        head, observations, states, outputs, values, end = places
        memory = self._reach(end)
        memory[head : head + HEAD] = _bytes(np.array([*places[1:5], count], "<i4"))
        for begin, each in zip((observations, states), given, strict=True):
            memory[begin : begin + each.size] = each
        self._store.set_fuel(FUEL * count)
        self._call(self._rows, head)

        def found(begin: int, width: int) -> Floats:
            raw = memory[begin : begin + 4 * count * width]
            return raw.copy().view("<f4").reshape(count, width).astype(np.float32, copy=False)

        return found(outputs, params), found(values, critics), found(states, state_size)

    def _reach(self, end: int) -> NDArray[np.uint8]:
        """Return the module's memory, grown to the size that is needed."""
        missing = end - self._memory.data_len(self._store)
        if missing > 0:
            try:
                self._memory.grow(self._store, -(-missing // PAGE))
            except wasmtime.WasmtimeError as error:
                raise UsageError(
                    f"rows: given so many that {self._place} needs {end:,} bytes; allowed: "
                    f"{MOST_MEMORY:,}. Take fewer at once."
                ) from error
        size = self._memory.data_len(self._store)
        # The store moves nothing until the memory grows again.
        pointer = ctypes.cast(self._memory.data_ptr(self._store), ctypes.POINTER(ctypes.c_uint8))
        return np.ctypeslib.as_array(pointer, (size,))

    def _call(self, function: Any, *arguments: int) -> Any:
        try:
            return function(self._store, *arguments)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise _not_ours(self._place, f"it broke off: {error}") from error


def make_engine(net: Net) -> WasmEngine:
    """Write and open a module of a network."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder) / "policy.wasm"
        write_wasm(net, module)
        return WasmEngine(module.read_bytes(), module)


def open_engine(path: Path) -> WasmEngine:
    """Open a file that `write_wasm` wrote."""
    try:
        module = read_bytes(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error}); allowed: a .wasm file.") from error
    return WasmEngine(module, path)


def write_wasm(
    net: Net, path: str | Path, *, int8: bool = False, observations: NDArray[Any] | None = None
) -> CReport:
    """Write a policy as a WebAssembly module that imports nothing, with its facts inside.

    Arguments and the result are those of `write_c`, but for `path`, which is FILE.wasm.
    """
    place = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        report = write_c(net, folder, int8=int8, observations=observations)
        made = Path(folder) / "policy.wasm"
        build_wasm(Path(folder), made)
        facts = PolicyFacts.of(net).to_json().encode()
        module = made.read_bytes() + _section(facts)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, module)
    return report


def read_facts(module: bytes, place: Path) -> bytes:
    """Return the contents of the section `fugu` of a module."""
    if module[: len(MAGIC)] != MAGIC:
        raise _not_ours(place, "it is no WebAssembly")
    try:
        for kind, begin, end in _sections(module):
            length, at = _number(module, begin)
            if kind == 0 and module[at : at + length] == SECTION:
                return module[at + length : end]
    except IndexError as error:
        raise _not_ours(place, "it is cut off") from error
    raise _not_ours(place, "it has no section of that name")


def _sections(module: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the kind of each section, and where its contents begin and end."""
    at = len(MAGIC)
    while at < len(module):
        size, begin = _number(module, at + 1)
        if begin + size > len(module):
            raise IndexError
        yield module[at], begin, begin + size
        at = begin + size


def _number(module: bytes, at: int) -> tuple[int, int]:
    """Return a LEB128 number, and where it ends."""
    value = shift = 0
    while True:
        byte = module[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 28:
            raise IndexError


def _leb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _section(facts: bytes) -> bytes:
    body = _leb(len(SECTION)) + SECTION + facts
    return b"\0" + _leb(len(body)) + body


def _start(module: bytes, place: Path) -> tuple[wasmtime.Store, dict[str, Any]]:
    """Instantiate a module, and return what it exports."""
    config = wasmtime.Config()
    config.consume_fuel = True
    store = wasmtime.Store(wasmtime.Engine(config))
    store.set_limits(memory_size=MOST_MEMORY, memories=1, instances=1)
    store.set_fuel(FUEL)
    try:
        made = wasmtime.Module(store.engine, module)
        instance = wasmtime.Instance(store, made, [])
    except wasmtime.WasmtimeError as error:
        raise _not_ours(place, f"it does not start: {error}") from error
    exports = instance.exports(store)
    return store, {each.name: exports[each.name] for each in made.exports}


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _places(begin: int, lengths: list[int]) -> Iterator[int]:
    """Yield where arrays of these lengths begin, aligned, and where the last one ends."""
    for length in lengths:
        begin = -(-begin // 16) * 16
        yield begin
        begin += length
    yield begin


def _not_ours(place: Path, reason: str) -> UsageError:
    return UsageError(
        f"{place}: given a module that cannot be run ({reason}); allowed: a .wasm file that fugu "
        "export wrote."
    )
