"""Engine c: the C that is written of a policy, compiled for this machine."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import UsageError
from fugu.core.files import DOCUMENT, read_bytes
from fugu.envs.building import SUFFIX
from fugu.export.c_building import build_library, check_sizes, sizes
from fugu.export.c_writer import FACTS, write_c
from fugu.export.engine import PolicyFacts
from fugu.nets.net import Floats, Net


class _Batch(ctypes.Structure):
    """What `fugu_policy_rows` takes."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "states", "params", "values")),
        ("count", ctypes.c_int),
    )


class CEngine:
    """Runs a folder of C. Whoever opens one runs its code: take none from strangers.

    Args:
        folder: With `policy.h`, `policy.c` and `policy.json`.
    """

    def __init__(self, folder: Path) -> None:
        facts = folder / FACTS
        if not facts.is_file():
            raise UsageError(
                f"{folder}: given a folder without {FACTS}; allowed: one that fugu export wrote."
            )
        self.facts = PolicyFacts.from_json(read_bytes(facts, DOCUMENT), str(facts))
        self._num_params = sizes(self.facts)[2]
        # A library that is loaded stays, though its file goes.
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            library = Path(made) / f"policy{SUFFIX}"
            build_library(folder, library)
            self.library = ctypes.CDLL(str(library))
        self._run = self.library.fugu_policy_rows
        check_sizes([self.library.fugu_policy_size(i) for i in range(6)], self.facts, folder)

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """One pass; see `Engine.forward`."""
        count, seen = len(rows), np.ascontiguousarray(rows)
        after = np.array(state, np.float32, order="C")
        params = np.zeros((count, self._num_params), np.float32)
        values = np.zeros((count, self.facts.num_critics), np.float32)
        arrays = (seen, after, params, values)
        self._run(ctypes.byref(_Batch(*(each.ctypes.data for each in arrays), count)))
        return params, values, after


def make_engine(net: Net) -> CEngine:
    """An engine for a network."""
    with tempfile.TemporaryDirectory() as folder:
        write_c(net, folder)
        return CEngine(Path(folder))


def open_engine(path: Path) -> CEngine:
    """An engine for a folder that `write_c` wrote."""
    return CEngine(path)
