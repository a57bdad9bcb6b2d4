"""The extension module, built from native/bind."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

class Packer:
    """Walks Python values and flat rows by the nodes of one layout."""

    def __init__(
        self,
        root: object,
        dtype: np.dtype[Any],
        size: int,
        clear: bool,
        slow_pack: Callable[[Any, Any, NDArray[Any], int], None],
        slow_unpack: Callable[[Any, NDArray[Any], int], Any],
        refuse_row: Callable[[Any], None],
    ) -> None: ...
    def pack(self, value: Any, out: NDArray[Any], /) -> None: ...
    def unpack(self, row: NDArray[Any], copy: bool = False, /) -> Any: ...

def noop(value: Any, /) -> None: ...
def time_memcpy(source: NDArray[np.uint8], out: NDArray[np.uint8], repeats: int, /) -> float: ...
