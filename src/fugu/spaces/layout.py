"""Layouts: the values of a space as rows of flat memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from fugu.core.errors import PackError, SpaceError
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
)
from fugu.native.packing import INDEX, LENGTH, cast, describe, make_packer
from fugu.spaces.compile import Compiler, Leaf, Limits

T = TypeVar("T")
LeafView = Callable[[int, np.dtype[Any], tuple[int, ...]], T]


class Layout:
    """The arrangement of a space's values in flat memory.

    Compile one with `Layout.of`, then move values with `pack` and `unpack`. A layout whose leaves
    all have one dtype keeps it; a mixed one is bytes, its leaves naturally aligned.

    Attributes:
        space: The space it was compiled from.
        options: The limits, `strict` and `plain`.
        leaves: Its typed arrays, in order.
        dtype: Type of the numbers of a row.
        size: Numbers of `dtype` in a row.
        nbytes: Bytes of a row.
        root: The compiled tree.
        packer: Packs and unpacks its values.
        pack: `pack(value, out)` writes a value of the space into the row `out`. Integers are cast
            exactly or refused, floats are rounded; anything else that does not fit raises a
            `PackError` that names the leaf, and leaves the row in an undefined state.
        unpack: `unpack(row, copy=False)` gives the value back; its arrays are views of the row
            unless `copy`.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> layout = Layout.of(spaces.Dict(gear=spaces.Discrete(5), position=spaces.Box(-1, 1, (2,))))
    >>> layout
    Layout(16 x uint8: gear int64 @0, position float32[2] @8)
    >>> row = layout.zeros()
    >>> layout.pack({"position": np.float32([0.5, -0.5]), "gear": 3}, row)
    >>> layout.unpack(row)
    {'gear': np.int64(3), 'position': array([ 0.5, -0.5], dtype=float32)}
    """

    def __init__(
        self,
        space: Space[Any],
        *,
        limits: Limits = None,
        strict: bool = False,
        plain: bool = False,
        use_native: bool = True,
    ) -> None:
        compiler = Compiler(limits, strict=strict, plain=plain)
        self.space, self.options = space, (limits, strict, plain)
        self.root: Node = compiler.compile(space)
        if compiler.unused:
            raise SpaceError(
                f"limits: given {sorted(compiler.unused)}; allowed: {sorted(compiler.limited)}, "
                "the parts of this space that declare no maximum themselves."
            )
        self.leaves: tuple[Leaf, ...] = tuple(compiler.leaves)
        dtypes = {leaf.dtype for leaf in self.leaves}
        self._mixed = len(dtypes) > 1
        widest = max((dtype.itemsize for dtype in dtypes), default=1)
        self.nbytes: int = -(-compiler.end // widest) * widest
        self.dtype: np.dtype[Any] = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.uint8)
        self.size: int = self.nbytes // self.dtype.itemsize
        self.packer = packer = make_packer(self.root, self.dtype, self.size, use_native=use_native)
        # Bound methods of the packer, with no Python in between: this is the hot path.
        self.pack: Callable[[Any, NDArray[Any]], None] = packer.pack
        self.unpack: Callable[..., Any] = packer.unpack

    @classmethod
    def of(
        cls,
        space: Space[Any],
        *,
        limits: Limits = None,
        strict: bool = False,
        plain: bool = False,
    ) -> Layout:
        """Compile `space`.

        Args:
            space: Any Gymnasium space, nested to any depth.
            limits: Most items of each Sequence and Graph part, which declare none themselves:
                `{"path/of/it": 16}`, or one number for all. A Graph at `g` has `g/nodes` and
                `g/edges`.
            strict: Also refuse Box values outside their bounds, as for actions.
            plain: Unpack a Discrete as an `int`, not as a NumPy number. Environments take both,
                and Gymnasium's own check of an `int` is quicker.
        """
        return cls(space, limits=limits, strict=strict, plain=plain)

    def zeros(self, *shape: int) -> NDArray[Any]:
        """Return a zeroed array of rows, `[*shape, size]`."""
        return np.zeros((*shape, self.size), self.dtype)

    def views(self, flat: NDArray[Any]) -> Any:
        """Return the tree of typed views of `flat`, `[..., size]`; leaves keep the leading axes.

        Trees are dicts and tuples; a text, a sequence, a OneOf and a graph are dicts of their
        leaves.

        >>> from gymnasium import spaces
        >>> layout = Layout.of(spaces.Tuple((spaces.Discrete(9), spaces.Box(0, 1, (2, 2)))))
        >>> [view.shape for view in layout.views(layout.zeros(10))]
        [(10,), (10, 2, 2)]
        """
        if flat.dtype != self.dtype or flat.ndim < 1 or flat.shape[-1] != self.size:
            allowed = f"{self.dtype} array of shape (..., {self.size})"
            raise PackError("", describe(flat), allowed, "Rows are never reinterpreted.")
        raw = np.ascontiguousarray(flat).view(np.uint8)
        batch = flat.shape[:-1]

        def view(offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            return raw[..., offset : offset + size].view(dtype).reshape(batch + shape)

        return self.tree(view)

    def tree(self, view: LeafView[T]) -> Any:
        """Return the tree of `views`, with each leaf made by `view(offset, dtype, shape)`."""
        return _tree(self.root, (), view)

    def assign(self, rows: Any, out: NDArray[Any]) -> None:
        """Write flat `rows` of any width of number into `out`, exactly or not at all.

        A layout of one number per row also takes rows without the last axis. Rows of a mixed
        layout are bytes and nothing else.
        """
        out[...] = self.fit_rows(rows, *out.shape[:-1])

    def fit_rows(self, rows: Any, *batch: int) -> NDArray[Any]:
        """Return flat `rows` as `[*batch, size]` of this layout's dtype, as `assign` takes them."""
        array, shape = np.asarray(rows), (*batch, self.size)
        if self.size == 1 and array.shape == shape[:-1]:
            array = array[..., None]
        if array.shape == shape and array.dtype == self.dtype:
            return array
        allowed = f"{self.dtype} array of shape {shape}"
        if array.shape != shape:
            raise PackError("", f"as rows, {describe(array)}", allowed)
        if self._mixed:
            advice = "A mixed layout's rows are bytes: make them with pack."
            raise PackError("", f"as rows, {describe(array)}", allowed, advice)
        return cast(array, self.dtype, "", allowed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return (self.space, self.options) == (other.space, other.options)

    def __hash__(self) -> int:
        return hash((self.dtype, self.size, tuple(leaf.path for leaf in self.leaves)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.space, *self.options)

    def __repr__(self) -> str:
        def leaf(leaf: Leaf) -> str:
            shape = str(list(leaf.shape)).replace(" ", "") if leaf.shape else ""
            return f"{leaf.path} {leaf.dtype}{shape} @{leaf.offset}".strip()

        leaves = ", ".join(leaf(each) for each in self.leaves[:8])
        more = f", and {len(self.leaves) - 8} more" if len(self.leaves) > 8 else ""
        return f"Layout({self.size} x {self.dtype}: {leaves}{more})"


def flat_space(layout: Layout) -> spaces.Box:
    """Return the space of a layout's flat rows.

    >>> flat_space(Layout.of(spaces.Dict(gear=spaces.Discrete(5), speed=spaces.Box(0, 9, (2,)))))
    Box(0, 255, (16,), uint8)
    """
    dtype = layout.dtype
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, (layout.size,), dtype.type)
    if dtype.kind == "b":
        return spaces.Box(0, 1, (layout.size,), dtype.type)
    limits = np.iinfo(dtype)
    return spaces.Box(int(limits.min), int(limits.max), (layout.size,), dtype.type)


def _rebuild(space: Space[Any], limits: Limits, strict: bool, plain: bool) -> Layout:
    return Layout.of(space, limits=limits, strict=strict, plain=plain)


def _tree(node: Node, slots: tuple[int, ...], view: LeafView[T]) -> Any:
    match node:
        case ArrayNode():
            return view(node.offset, node.dtype, slots + node.shape)
        case ScalarNode():
            return view(node.offset, node.dtype, slots)
        case TextNode():
            characters = view(node.offset, node.dtype, (*slots, node.capacity))
            return {**_length(node, slots, view), "characters": characters}
        case DictNode():
            items = (_tree(child, slots, view) for child in node.children)
            return dict(zip(node.keys, items, strict=True))
        case TupleNode():
            return tuple(_tree(child, slots, view) for child in node.children)
        case SequenceNode():
            items = _tree(node.child, (*slots, node.capacity), view)
            return {**_length(node, slots, view), "items": items}
        case OneOfNode():
            options = tuple(_tree(child, slots, view) for child in node.children)
            return {"index": view(node.index_offset, INDEX, slots), "options": options}
        case ConvertedNode():
            return _tree(node.child, slots, view)


def _length(node: TextNode | SequenceNode, slots: tuple[int, ...], view: LeafView[T]) -> Any:
    return {
        "length": view(node.length_offset, LENGTH, slots),
        "mask": view(node.mask_offset, np.dtype(np.bool_), (*slots, node.capacity)),
    }
