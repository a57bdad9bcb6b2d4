"""Run ONNX files by onnxruntime, on one thread of the CPU and without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fugu.core.errors import MissingExtraError, UsageError
from fugu.export.engine import FACTS, PolicyFacts, named_leaves, split_rows
from fugu.nets.net import Floats, Net
from fugu.spaces.action_sampler import ActionSampler

try:
    import onnxruntime
except ModuleNotFoundError as error:
    raise MissingExtraError("onnxruntime", "export") from error


class OnnxEngine:
    """Runs a model that `write_onnx` wrote, given as a file or bytes; `place` is for errors.

    Small batches are fastest with one thread.
    """

    def __init__(self, model: Path | bytes, place: str, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3  # errors reach the caller as exceptions
        given = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(
                given, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its own kinds, which share no base
            raise UsageError(
                f"{place}: given a file that onnxruntime cannot read ({error}); allowed: one that "
                "fugu export wrote, whole."
            ) from error
        metadata = self._session.get_modelmeta().custom_metadata_map
        if FACTS not in metadata:
            raise UsageError(
                f"{place}: given a model without the layouts of a policy ({FACTS} in its "
                "metadata); allowed: one that fugu export wrote."
            )
        self.facts = PolicyFacts.from_json(metadata[FACTS], place)
        self._leaves = named_leaves(self.facts.observation, "observation")
        self._choices = ActionSampler(self.facts.action, self.facts.continuous).num_choices
        known = {output.name for output in self._session.get_outputs()}
        self._outputs = [name for name in ("params", "values", "next_state") if name in known]
        self._check(place)
        self._partly = onnxruntime.RunOptions()  # actions are drawn elsewhere
        self._partly.only_execute_path_to_fetches = True

    def forward(self, rows: NDArray[Any], state: Floats) -> tuple[Floats, Floats, Floats]:
        """Run one pass; see `Engine.forward`."""
        batch = len(rows)
        feeds = split_rows(self._leaves, rows)
        if self.facts.state_size:
            feeds["state"] = state
        if self._choices:
            feeds["mask"] = np.ones((batch, self._choices), np.bool_)
        found = dict(
            zip(self._outputs, self._session.run(self._outputs, feeds, self._partly), strict=True)
        )
        nothing = np.zeros((batch, 0), np.float32)
        return found["params"], found.get("values", nothing), found.get("next_state", nothing)

    def _check(self, place: str) -> None:
        """Raise unless the model has the inputs that the facts describe."""
        expected = {name: list(leaf.shape) for name, leaf in self._leaves.items()}
        sizes = {"state": self.facts.state_size, "mask": self._choices}
        expected |= {name: [size] for name, size in sizes.items() if size}
        found = {given.name: given.shape[1:] for given in self._session.get_inputs()}
        if found != expected:
            raise UsageError(
                f"{place}: given a model with the inputs {found}; allowed: {expected}, of which "
                "its metadata speaks. Export it again."
            )


def make_engine(net: Net) -> OnnxEngine:
    """Make an engine for a network."""
    from fugu.export.onnx_writer import MOST_BYTES, build_onnx

    if net.num_weights * 4 > MOST_BYTES:
        raise UsageError(
            f"engine: given 'onnx' for {net.num_weights:,} weights, too many for one file; "
            "allowed: fugu export RUN --to onnx, which writes two, and that file."
        )
    return OnnxEngine(build_onnx(net).SerializeToString(), "onnx")


def open_engine(path: Path) -> OnnxEngine:
    """Open FILE.onnx."""
    return OnnxEngine(path, str(path))
