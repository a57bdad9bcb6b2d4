"""Packers move values into flat rows and back by the nodes of a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fugu import native
from fugu.core.errors import PackError
from fugu.native.nodes import (
    ArrayNode,
    ConvertedNode,
    DictNode,
    Node,
    OneOfNode,
    ScalarNode,
    SequenceNode,
    TextNode,
    TupleNode,
    join,
)

if TYPE_CHECKING or native.available:
    from fugu._native import Packer as NativePacker

LENGTH = np.dtype(np.int32)  # of sequences and texts
INDEX = np.dtype(np.int64)  # of OneOf
Bytes = NDArray[np.uint8]
Packer: TypeAlias = "ReferencePacker | NativePacker"  # moves values into flat rows and back


def make_packer(root: Node, dtype: np.dtype[Any], size: int, *, use_native: bool = True) -> Packer:
    """Make the native packer of `root`, or the reference where the extension is missing."""
    reference = ReferencePacker(root, dtype, size)
    if not (native.available and use_native):
        return reference
    return NativePacker(
        root,
        dtype,
        size,
        reference.clears,
        reference.pack_node,
        reference.unpack_node,
        reference.refuse_row,
    )


class ReferencePacker:
    """Packs and unpacks by walking the nodes in Python.

    It is the reference of tests, serves machines without the extension, and the native packer
    itself: any value that is not an exact fit goes through `pack_node` here, so that casts and
    error messages exist once.
    """

    def __init__(self, root: Node, dtype: np.dtype[Any], size: int) -> None:
        self._root, self._dtype, self._size = root, dtype, size
        self.clears = any(isinstance(n, TextNode | SequenceNode | OneOfNode) for n in walk(root))
        """Whether a row must be zeroed before it is packed, since parts of it may stay unused."""

    def pack(self, value: Any, out: NDArray[Any], /) -> None:
        """Write `value` into the row `out`."""
        self.refuse_row(out)
        if not out.flags.writeable:
            raise PackError("", "a read-only row", "a writable one")
        if self.clears:
            out[...] = 0
        self.pack_node(self._root, value, out, 0)

    def unpack(self, row: NDArray[Any], copy: bool = False, /) -> Any:
        """Return the value of `row`, its arrays views of it unless `copy`."""
        self.refuse_row(row)
        return self.unpack_node(self._root, row.copy() if copy else row, 0)

    def refuse_row(self, row: Any) -> None:
        """Raise unless `row` is a flat row of this layout."""
        allowed = f"a contiguous {self._dtype} array of shape ({self._size},)"
        if not isinstance(row, np.ndarray):
            raise PackError("", describe(row), allowed, "A row is one entry of the flat array.")
        fits = row.dtype == self._dtype and row.shape == (self._size,)
        if not (fits and row.flags.c_contiguous):
            given = describe(row) + ("" if row.flags.c_contiguous else ", not contiguous")
            raise PackError("", f"as a row, {given}", allowed, "Rows are never reinterpreted.")

    # ------------------------------------------------------------------ values -> rows

    def pack_node(self, node: Node, value: Any, row: NDArray[Any], slot: int) -> None:
        """Write `value` at `slot` of `node`; raise a `PackError` if it does not fit."""
        raw = row.view(np.uint8)
        match node:
            case ArrayNode():
                array = fit_array(node, value)
                size = array.nbytes
                raw[node.offset + slot * size :][:size] = array.reshape(-1).view(np.uint8)
            case ScalarNode():
                write(raw, node.dtype, node.offset, slot, fit_scalar(node, value))
            case TextNode():
                self._pack_text(node, value, raw, slot)
            case DictNode():
                for child, item in zip(node.children, fit_dict(node, value), strict=True):
                    self.pack_node(child, item, raw, slot)
            case TupleNode():
                for child, item in zip(node.children, fit_tuple(node, value), strict=True):
                    self.pack_node(child, item, raw, slot)
            case SequenceNode():
                items = fit_sequence(node, value)
                self._pack_length(node, len(items), raw, slot)
                for i, item in enumerate(items):
                    self.pack_node(node.child, item, raw, slot * node.capacity + i)
            case OneOfNode():
                index, item = fit_one_of(node, value)
                write(raw, INDEX, node.index_offset, slot, index)
                self.pack_node(node.children[index], item, raw, slot)
            case ConvertedNode():
                self.pack_node(node.child, node.convert(value, node.path), raw, slot)

    def _pack_text(self, node: TextNode, value: Any, raw: Bytes, slot: int) -> None:
        codes = fit_text(node, value)
        self._pack_length(node, len(codes), raw, slot)
        for i, code in enumerate(codes):
            write(raw, node.dtype, node.offset, slot * node.capacity + i, code)

    def _pack_length(
        self, node: TextNode | SequenceNode, length: int, raw: Bytes, slot: int
    ) -> None:
        write(raw, LENGTH, node.length_offset, slot, length)
        raw[node.mask_offset + slot * node.capacity :][:length] = 1

    # ------------------------------------------------------------------ rows -> values

    def unpack_node(self, node: Node, row: NDArray[Any], slot: int) -> Any:
        """Return the value at `slot` of `node`; arrays are views of `row`."""
        raw = row.view(np.uint8)
        match node:
            case ArrayNode():
                array = read_array(raw, node.dtype, node.offset, slot, node.shape)
                check_bounds(node, array)
                return array
            case ScalarNode():
                value = read(raw, node.dtype, node.offset, slot)
                number = fit_scalar(node, value)
                return number if node.plain else value
            case TextNode():
                length = self._read_length(node, raw, slot)
                start = slot * node.capacity
                codes = [read(raw, node.dtype, node.offset, start + i) for i in range(length)]
                return read_text(node, codes)
            case DictNode():
                items = (self.unpack_node(child, raw, slot) for child in node.children)
                return dict(zip(node.keys, items, strict=True))
            case TupleNode():
                return tuple(self.unpack_node(child, raw, slot) for child in node.children)
            case SequenceNode():
                return self._unpack_sequence(node, raw, slot)
            case OneOfNode():
                index = read(raw, INDEX, node.index_offset, slot)
                count = len(node.children)
                if not 0 <= index < count:
                    allowed = f"0 to {count - 1}, one of its {count} spaces"
                    raise PackError(join(node.path, "index"), f"{index}", allowed)
                return index, self.unpack_node(node.children[index], raw, slot)
            case ConvertedNode():
                return node.restore(self.unpack_node(node.child, raw, slot))

    def _unpack_sequence(self, node: SequenceNode, raw: Bytes, slot: int) -> Any:
        length, start = self._read_length(node, raw, slot), slot * node.capacity
        items = tuple(self.unpack_node(node.child, raw, start + i) for i in range(length))
        if not node.stacked:
            return items
        child = node.child
        assert isinstance(child, ArrayNode | ScalarNode)
        item_shape = child.shape if isinstance(child, ArrayNode) else ()
        whole = read_array(raw, child.dtype, child.offset, slot, (node.capacity, *item_shape))
        return whole[:length]

    def _read_length(self, node: TextNode | SequenceNode, raw: Bytes, slot: int) -> int:
        length = int(read(raw, LENGTH, node.length_offset, slot))
        if not 0 <= length <= node.capacity:
            raise PackError(join(node.path, "length"), f"{length}", f"0 to {node.capacity}")
        return length


# ---------------------------------------------------------------------- fitting: raises PackError


def fit_array(node: ArrayNode, value: Any) -> NDArray[Any]:
    """Return `value` as a contiguous array of the node's dtype and shape."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged lists
        raise PackError(node.path, f"{describe(value)} ({error})", allowed_array(node)) from error
    if array.shape != node.shape:
        advice = "Give the declared shape, or declare the shape you give."
        raise PackError(node.path, describe(value), allowed_array(node), advice)
    array = cast(array, node.dtype, node.path, allowed_array(node))
    check_bounds(node, array)
    return np.ascontiguousarray(array).reshape(node.shape)


def cast(array: NDArray[Any], dtype: np.dtype[Any], path: str, allowed: str) -> NDArray[Any]:
    """Cast `array`: integers exactly or not at all, floats rounded but never to infinity."""
    if array.dtype == dtype:
        return array
    if dtype.kind == "f" and array.dtype.kind in "fiub":
        with np.errstate(over="ignore"):
            result = array.astype(dtype)
        if np.isfinite(array).all() and not np.isfinite(result).all():
            given = f"{describe(array)} with values up to {np.abs(array).max()}"
            raise PackError(path, given, allowed, f"They do not fit into {dtype}.")
        return result
    if dtype.kind in "iub" and array.dtype.kind in "iub":
        result = array.astype(dtype)
        if not (result == array).all():
            given = f"{describe(array)} with values {array.min()} to {array.max()}"
            raise PackError(path, given, allowed, f"They do not fit into {dtype}.")
        return result
    raise PackError(
        path, describe(array), allowed, f"Convert it to {dtype}: it is never reinterpreted."
    )


def check_bounds(node: ArrayNode, array: NDArray[Any]) -> None:
    """Raise if the node has bounds and a value, or a NaN, lies outside."""
    if node.low is None or node.high is None:
        return
    values = array.reshape(-1)
    inside = (values >= node.low) & (values <= node.high)
    if inside.all():
        return
    first = int(np.argmin(inside))
    where = list(map(int, np.unravel_index(first, node.shape))) if node.shape else []
    given = f"{values[first]}" + (f" at index {where}" if where else "")
    raise PackError(node.path, given, f"{node.low[first]} to {node.high[first]}")


def fit_scalar(node: ScalarNode, value: Any) -> int:
    """Return `value` as an integer of the node."""
    allowed = f"an integer from {node.low} to {node.high}"
    is_integer = isinstance(value, int | np.integer | np.bool_) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iub"
    )
    if not is_integer:
        raise PackError(node.path, describe(value), allowed)
    number = int(value)
    if not node.low <= number <= node.high:
        raise PackError(node.path, f"{number}", allowed)
    return number


def fit_text(node: TextNode, value: Any) -> list[int]:
    """Return the codes of a string of the node."""
    letters = "bytes of UTF-8" if node.alphabet is None else f"characters of {node.alphabet!r}"
    allowed = f"a string of {node.min_length} to {node.capacity} {letters}"
    if not isinstance(value, str):
        raise PackError(node.path, describe(value), allowed)
    if node.alphabet is None:
        try:
            codes = list(value.encode())
        except UnicodeEncodeError as error:
            raise PackError(node.path, f"{value!r} ({error})", allowed) from error
    else:
        codes = [node.alphabet.find(character) for character in value]
    if not node.min_length <= len(codes) <= node.capacity:
        raise PackError(node.path, f"{len(codes)} of them, {value!r}", allowed)
    if -1 in codes:
        raise PackError(node.path, f"{value!r}, with {value[codes.index(-1)]!r}", allowed)
    return codes


def read_text(node: TextNode, codes: list[int]) -> str:
    """Return the string of these codes."""
    path = join(node.path, "characters")
    if node.alphabet is None:
        try:
            return bytes(codes).decode()
        except UnicodeDecodeError as error:
            raise PackError(path, f"{bytes(codes)!r}", f"UTF-8 ({error})") from error
    for code in codes:
        if code >= len(node.alphabet):
            allowed = f"indices below {len(node.alphabet)}, the size of the alphabet"
            raise PackError(path, f"index {code}", allowed)
    return "".join(node.alphabet[code] for code in codes)


def fit_dict(node: DictNode, value: Any) -> list[Any]:
    """Return the items of `value` in the node's order."""
    allowed = f"a dict with the keys {list(node.keys)}"
    if not isinstance(value, Mapping):
        raise PackError(node.path, describe(value), allowed)
    missing = [key for key in node.keys if key not in value]
    extra = [key for key in value if key not in node.keys]
    if missing or extra:
        parts = [f"a dict without {missing}"] if missing else []
        parts += [f"the unknown keys {extra}"] if extra else []
        raise PackError(node.path, " and ".join(parts), allowed, "Nothing is dropped silently.")
    return [value[key] for key in node.keys]


def fit_tuple(node: TupleNode, value: Any) -> tuple[Any, ...]:
    """Return `value` as a tuple of the node's length."""
    allowed = f"a tuple of {len(node.children)} items"
    scalar = isinstance(value, np.ndarray) and value.ndim == 0
    if scalar or not isinstance(value, tuple | list | np.ndarray):
        raise PackError(node.path, describe(value), allowed)
    if len(value) != len(node.children):
        raise PackError(node.path, f"{len(value)} items", allowed)
    return tuple(value)


def fit_sequence(node: SequenceNode, value: Any) -> tuple[Any, ...]:
    """Return `value` as a tuple no longer than the node's capacity."""
    kinds = np.ndarray if node.stacked else tuple | list | np.ndarray
    what = "one array, its items stacked," if node.stacked else "a tuple"
    allowed = f"{what} of at most {node.capacity} items"
    if not isinstance(value, kinds) or (isinstance(value, np.ndarray) and value.ndim == 0):
        raise PackError(node.path, describe(value), allowed)
    if len(value) > node.capacity:
        advice = "Nothing is cut off: declare a larger limit for it."
        raise PackError(node.path, f"{len(value)} items", allowed, advice)
    return tuple(value)


def fit_one_of(node: OneOfNode, value: Any) -> tuple[int, Any]:
    """Return `value` as `(index, item)`."""
    count = len(node.children)
    allowed = f"a tuple (index, value) with an index from 0 to {count - 1}"
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise PackError(node.path, describe(value), allowed)
    index = value[0]
    if not isinstance(index, int | np.integer) or not 0 <= index < count:
        raise PackError(node.path, f"index {index!r}", allowed)
    return int(index), value[1]


def allowed_array(node: ArrayNode) -> str:
    """Describe what an array node takes."""
    return f"{node.dtype} array of shape {node.shape}"


def describe(value: Any) -> str:
    """Describe `value` in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with the keys {list(value)}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {len(value)} items"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# ---------------------------------------------------------------------- bytes


def write(raw: Bytes, dtype: np.dtype[Any], offset: int, slot: int, value: int) -> None:
    """Write one number at a slot."""
    size = dtype.itemsize
    raw[offset + slot * size :][:size] = np.asarray(value, dtype).reshape(1).view(np.uint8)


def read(raw: Bytes, dtype: np.dtype[Any], offset: int, slot: int) -> Any:
    """Read one number at a slot, as a NumPy scalar."""
    size = dtype.itemsize
    return raw[offset + slot * size :][:size].view(dtype)[0]


def read_array(
    raw: Bytes, dtype: np.dtype[Any], offset: int, slot: int, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return a view of the array at a slot."""
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return raw[offset + slot * size :][:size].view(dtype).reshape(shape)


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all below it, in order."""
    yield node
    match node:
        case DictNode() | TupleNode() | OneOfNode():
            for child in node.children:
                yield from walk(child)
        case SequenceNode() | ConvertedNode():
            yield from walk(node.child)
