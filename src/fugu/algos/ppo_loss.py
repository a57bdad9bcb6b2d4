"""PPO's loss as one fused kernel: loss, gradient, ratios and metrics in one pass over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from fugu import native
from fugu.algos.ppo_loss_reference import PpoLoss, PpoLossConfig, ValueLoss, ppo_loss_reference
from fugu.native.arrays import count_threads, refuse

if TYPE_CHECKING or native.available:
    from fugu import _native

__all__ = ["PpoLoss", "PpoLossConfig", "ValueLoss", "fused_ppo_loss", "ppo_loss_reference"]

_KINDS = ("clipped", "huber", "mse", "huber_clipped")  # in the kernel's order
_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "rows")


def fused_ppo_loss(
    params: Tensor,
    values: Tensor,
    *,
    choices: Sequence[int],
    continuous: int = 0,
    samples: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    old_values: Tensor,
    returns: Tensor,
    weights: Tensor,
    normaliser: float | Tensor,
    masks: Tensor | None = None,
    cfg: PpoLossConfig | None = None,
    threads: int = 0,
) -> PpoLoss:
    """The loss sum(weight * loss of the row) / normaliser, differentiable in params and values.

    The gradient is that of `ppo_loss_reference`, ties included, and is written while the loss is
    computed. Each row's gradient has the same bits whatever rows stand beside it, so that
    microbatches with one normaliser add up to the batch. Tensors elsewhere than on the CPU,
    float64 params, and installations without the extension are served by the reference.

    Args:
        params: Logits of all heads side by side, then means, then logarithms of standard
            deviations; float32, or a shorter type that is converted. [rows, params]
        values: New values; [rows], or [rows, critics], whose losses are summed.
        choices: How many choices each discrete head has.
        continuous: How many continuous dimensions there are.
        samples: The index of each head's choice, then the raw continuous numbers.
            [rows, heads + continuous]
        old_log_probs: Of the samples, when they were drawn. [rows]
        advantages: Of the samples. [rows]
        old_values: Shaped as `values`.
        returns: What the values should be, shaped as `values`.
        weights: Of the rows [rows]; nothing else of a row of weight 0 is looked at.
        normaliser: What the sum is divided by: for a mean, the number of rows that count.
        masks: What is allowed [rows, sum of choices]; everything if missing.
        cfg: Settings; the defaults if missing.
        threads: How many may be used; 0: all cores. The result does not depend on it.

    Raises:
        UsageError: If a shape will not do, or a sample is none of its head's choices.

    >>> rows = dict(old_log_probs=torch.tensor([-0.693147]), advantages=torch.ones(1))
    >>> rows |= dict(old_values=torch.zeros(1), returns=torch.ones(1), weights=torch.ones(1))
    >>> params = torch.zeros(1, 2, requires_grad=True)
    >>> loss, ratios, metrics = fused_ppo_loss(
    ...     params, torch.zeros(1), choices=[2], samples=torch.zeros(1, 1), normaliser=1.0, **rows
    ... )
    >>> loss.backward()
    >>> f"{ratios.item():.3f}, {metrics['entropy']:.3f}", params.grad.numpy().round(3).tolist()
    ('1.000, 0.693', [[-0.5, 0.5]])
    """
    cfg = cfg or PpoLossConfig()
    given: dict[str, Any] = {
        "params": params, "values": values, "samples": samples, "masks": masks,
        "old_log_probs": old_log_probs, "advantages": advantages, "old_values": old_values,
        "returns": returns, "weights": weights,
    }  # fmt: skip
    _check_shapes(given, choices, continuous)
    on_cpu = all(tensor is None or tensor.device.type == "cpu" for tensor in given.values())
    if not (native.available and on_cpu) or params.dtype == torch.float64:
        numbers: dict[str, Any] = {"normaliser": normaliser, "cfg": cfg, "threads": threads}
        return ppo_loss_reference(**given, choices=choices, continuous=continuous, **numbers)
    tables = [_array(tensor, table=True) for tensor in (samples, old_values, returns)]
    flat = [_array(tensor) for tensor in (old_log_probs, advantages, weights)]
    flags = None if masks is None else masks.detach().bool().contiguous().numpy()
    inputs = (
        tables[0], flags, flat[0], flat[1], tables[1], tables[2], flat[2],
        np.asarray(choices, np.int64),
    )  # fmt: skip
    settings = (
        cfg.clip, _KINDS.index(cfg.value_loss), cfg.value_clip, cfg.huber_delta,
        cfg.value_coefficient, cfg.entropy_coefficient, float(normaliser), count_threads(threads),
    )  # fmt: skip
    # Shorter types are converted here, where autograd converts the gradients back.
    apply: Any = _Fused.apply
    loss, ratios, sums = apply(params.float(), values.float(), inputs, settings)
    return PpoLoss(loss, ratios, dict(zip(_METRICS, sums.unbind(), strict=True)))


def loss_settings(cfg: PpoLossConfig, normaliser: float) -> _native.LossSettings:
    """Settings as the native core has them."""
    return _native.LossSettings(
        cfg.clip,
        cfg.value_clip,
        cfg.huber_delta,
        cfg.value_coefficient,
        cfg.entropy_coefficient,
        normaliser,
        _KINDS.index(cfg.value_loss),
    )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, params: Tensor, values: Tensor, inputs: Any, settings: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        params_grad = torch.empty(params.shape)
        values_grad = torch.empty(values.shape)
        ratios = torch.empty(len(params))
        outputs = (_array(params_grad), _array(values_grad, table=True), _array(ratios))
        arrays = (_array(params), _array(values, table=True), *inputs, *outputs)
        good, *sums = _native.ppo_loss(*arrays, *settings)
        if not good:
            raise _bad_sample(inputs[0], weights=inputs[-2], choices=inputs[-1])
        policy, value, entropy = sums[:3]
        _, _, _, _, value_coefficient, entropy_coefficient, normaliser, _ = settings
        total = policy + value_coefficient * value - entropy_coefficient * entropy
        loss = torch.tensor(np.float64(total) / normaliser, dtype=torch.float32)
        totals = torch.tensor(sums, dtype=torch.float64)
        ctx.save_for_backward(params_grad, values_grad)
        ctx.mark_non_differentiable(ratios, totals)
        ctx.set_materialize_grads(False)
        return loss, ratios, totals

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None, None, None
        params_grad, values_grad = ctx.saved_tensors
        return params_grad * grads[0], values_grad * grads[0], None, None


def _array(tensor: Tensor, table: bool = False) -> NDArray[Any]:
    """The tensor's numbers as the kernel takes them: float32, contiguous, [rows, ...]."""
    tensor = tensor.detach().float().contiguous()
    array: NDArray[Any] = (tensor[:, None] if table and tensor.ndim == 1 else tensor).numpy()
    return array


def _check_shapes(given: dict[str, Any], choices: Sequence[int], continuous: int) -> None:
    if any(count < 1 for count in choices) or continuous < 0 or len(choices) + continuous == 0:
        allowed = "1 or more choices of each head, 0 or more dimensions, and one of them at least"
        raise refuse("choices, continuous", f"{list(choices)}, {continuous}", allowed)
    params, values = given["params"], given["values"]
    rows, width = len(params) if params.ndim else 0, sum(choices)
    critics = tuple(values.shape[1:2])
    shapes = {
        "params": (rows, width + 2 * continuous), "samples": (rows, len(choices) + continuous),
        "masks": (rows, width), "values": (rows, *critics), "old_values": (rows, *critics),
        "returns": (rows, *critics),
    }  # fmt: skip
    for name, tensor in given.items():
        shape = shapes.get(name, (rows,))
        if tensor is not None and tuple(tensor.shape) != shape:
            raise refuse(name, f"shape {tuple(tensor.shape)}", f"{shape}")


def _bad_sample(samples: NDArray[Any], weights: NDArray[Any], choices: NDArray[Any]) -> Exception:
    for head, count in enumerate(choices):
        column = samples[:, head]
        fits = (column >= 0) & (column < count) & (column == np.floor(column))
        for row in np.flatnonzero(~fits & (weights != 0)):
            allowed = f"a whole number from 0 to {count - 1}"
            return refuse(f"samples[{row}, {head}]", f"{column[row]}", allowed)
    raise AssertionError("every sample is a choice")
