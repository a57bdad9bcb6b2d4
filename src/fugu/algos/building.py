"""What algorithms share when they make policies: precision, compilation, seeds, imports by name."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from fugu.core.errors import UsageError
from fugu.core.machine import has_bfloat16
from fugu.policies.config import PolicyConfig, Precision
from fugu.policies.policy import Policy

# Branches of the seed tree; 0 is that of the environments.
SAMPLING_STREAM, ROW_STREAM, WEIGHT_STREAM = 1, 2, 3
LARGE_BATCH, LARGE_LAYER = 1024, 128  # below, converting to bfloat16 costs what its products save


def choose_precision(cfg: PolicyConfig, agents: int, device: torch.device) -> Precision:
    """Return what precision "auto" means: bfloat16 where batches and layers are large enough.

    Convolutions always are.

    >>> choose_precision(PolicyConfig(precision="bfloat16"), 1, torch.device("cpu"))
    'bfloat16'
    >>> choose_precision(PolicyConfig(), 64, torch.device("cpu"))
    'float32'
    """
    if cfg.precision != "auto":
        return cfg.precision
    large = agents >= LARGE_BATCH and cfg.hidden_size >= LARGE_LAYER
    large |= cfg.encoder in ("nature", "impala")
    return "bfloat16" if large and device.type == "cpu" and has_bfloat16() else "float32"


def compile_policy(policy: Policy) -> None:
    """Let torch compile what runs on whole batches; names of weights stay as they are.

    A recurrent core is left out: where its episodes end is known only at run time.
    """
    if policy.state_size:
        for name, module in policy.named_modules():
            if name.rpartition(".")[2] in ("encoder", "decoder"):
                module.compile()
        return
    policy.forward = torch.compile(policy.forward)  # type: ignore[method-assign]
    policy.forward_segments = torch.compile(policy.forward_segments)  # type: ignore[method-assign]


def import_object(place: str, setting: str) -> Any:
    """Import `package.module:name`.

    Args:
        place: The name.
        setting: The setting that holds it, for errors.

    >>> import_object("math:pi", "train.loss")
    3.141592653589793
    """
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{setting}: expected package.module:name of something that can be imported; got "
            f"{place!r} ({error}). A module in the working folder needs PYTHONPATH=."
        ) from error
