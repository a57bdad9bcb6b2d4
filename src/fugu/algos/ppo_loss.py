"""PPO's loss: in plain torch, which defines it, and as a fused kernel that is held to that.

The kernel computes loss, gradient, ratios and metrics in one pass over the rows. torch serves
squashed actions, other devices and float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import huber_loss

from fugu import native
from fugu.native.arrays import count_threads, refuse
from fugu.policies.distribution import FORBIDDEN, evaluate_choices, evaluate_normals

if TYPE_CHECKING:
    from fugu.algos.ppo import PPOConfig
if TYPE_CHECKING or native.available:
    from fugu import _native

ValueLoss = Literal["clipped", "huber", "huber_clipped", "mse"]
Evaluate = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
_KINDS = ("clipped", "huber", "mse", "huber_clipped")  # in the kernel's order
_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "rows")


class PpoLoss(NamedTuple):
    """The loss of some rows."""

    loss: Tensor
    """The scalar to call `backward` on."""
    ratios: Tensor
    """New over old probabilities [rows], without gradient; 1 where the weight is 0."""
    metrics: dict[str, Tensor]
    """Float64 sums over the rows whose weight is not 0: weighted ones `policy_loss`, `value_loss`
    and `entropy` (divide by the normaliser), and plain ones `approx_kl` (k3) and `clip_fraction`
    (divide by `rows`, how many they are). Sums of microbatches add up to those of the batch."""


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
    cfg: PPOConfig,
    masks: Tensor | None = None,
    threads: int = 0,
) -> PpoLoss:
    """Return sum(weight * loss of the row) / normaliser, differentiable in params and values.

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
        cfg: Settings.
        threads: How many may be used; 0: all cores. The result does not depend on it.

    Raises:
        UsageError: If a shape will not do, or a sample is none of its head's choices.

    >>> from fugu.algos.ppo import PPOConfig
    >>> rows = dict(old_log_probs=torch.tensor([-0.693147]), advantages=torch.ones(1))
    >>> rows |= dict(old_values=torch.zeros(1), returns=torch.ones(1), weights=torch.ones(1))
    >>> params = torch.zeros(1, 2, requires_grad=True)
    >>> loss, ratios, metrics = fused_ppo_loss(
    ...     params, torch.zeros(1), choices=[2], samples=torch.zeros(1, 1), normaliser=1.0,
    ...     cfg=PPOConfig(huber_delta=1.0), **rows
    ... )
    >>> loss.backward()
    >>> f"{ratios.item():.3f}, {metrics['entropy']:.3f}", params.grad.numpy().round(3).tolist()
    ('1.000, 0.693', [[-0.5, 0.5]])
    """
    given: dict[str, Any] = {
        "params": params, "values": values, "samples": samples, "masks": masks,
        "old_log_probs": old_log_probs, "advantages": advantages, "old_values": old_values,
        "returns": returns, "weights": weights,
    }  # fmt: skip
    on_cpu = all(tensor is None or tensor.device.type == "cpu" for tensor in given.values())
    if not (native.available and on_cpu) or params.dtype == torch.float64:
        _check_shapes(given, choices, continuous)
        numbers: dict[str, Any] = {"normaliser": normaliser, "cfg": cfg, "threads": threads}
        return ppo_loss_reference(**given, choices=choices, continuous=continuous, **numbers)
    others = (samples, old_values, returns, old_log_probs, advantages, weights)
    arrays = [tensor.detach().float().contiguous().numpy() for tensor in others]
    tables = [array if array.ndim > 1 else array[:, None] for array in arrays[:3]]
    flags = None if masks is None else masks.detach().bool().contiguous().numpy()
    inputs = (
        tables[0], flags, *arrays[3:5], tables[1], tables[2], arrays[5],
        np.asarray(choices, np.int64),
    )  # fmt: skip
    settings = (
        cfg.clip, _KINDS.index(cfg.value_loss), cfg.value_clip, cfg.huber_delta,
        cfg.value_coefficient, cfg.entropy_coefficient, float(normaliser), count_threads(threads),
    )  # fmt: skip
    # Shorter types are converted here, where autograd converts the gradients back.
    apply: Any = _Fused.apply
    try:  # the kernel looks at shapes itself
        loss, ratios, sums = apply(params.float(), values.float(), inputs, settings)
    except (TypeError, ValueError):
        _check_shapes(given, choices, continuous)
        raise
    return PpoLoss(loss, ratios, dict(zip(_METRICS, sums.unbind(), strict=True)))


def loss_settings(cfg: PPOConfig, normaliser: float) -> _native.LossSettings:
    """Return settings as the native learner takes them."""
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
        table = values.shape if values.ndim > 1 else (*values.shape, 1)
        outputs = (params_grad.numpy(), values_grad.view(table).numpy(), ratios.numpy())
        given = (
            params.detach().contiguous().numpy(),
            values.detach().contiguous().view(table).numpy(),
        )
        arrays = (*given, *inputs, *outputs)
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


# ---------------------------------------------------------------------- definition


def ppo_loss_reference(
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
    cfg: PPOConfig,
    masks: Tensor | None = None,
    threads: int = 0,
    evaluate: Evaluate | None = None,
) -> PpoLoss:
    """Return what `fused_ppo_loss` does, by torch's own operations.

    `evaluate` returns the log-probabilities and entropies of samples, for distributions other than
    plain categoricals and normals.
    """
    del threads  # torch has its own
    dtype = torch.float64 if params.dtype == torch.float64 else torch.float32
    counts = weights != 0.0  # whatever the others hold is replaced before it meets a number

    def rows(tensor: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (tensor.ndim - 1)
        return torch.where(counts.view(shape), tensor, 0.0).to(dtype)

    params, values, samples = rows(params), rows(values), rows(samples)
    advantages, old_values, returns = rows(advantages), rows(old_values), rows(returns)
    if masks is not None:
        masks = masks.bool() | ~counts[:, None]
    if evaluate is None:
        log_probs, entropies = _evaluate(params, samples, masks, choices, continuous)
    else:
        log_probs, entropies = evaluate(params, samples, masks)

    log_ratios = torch.where(counts, log_probs - rows(old_log_probs), 0.0)
    ratios = log_ratios.exp()
    clipped_ratios = ratios.clamp(1.0 - cfg.clip, 1.0 + cfg.clip)
    policy_losses = -torch.minimum(advantages * ratios, advantages * clipped_ratios)
    value_losses = _value_losses(values, old_values, returns, cfg)

    weights = weights.to(dtype)
    policy_loss, value_loss = (weights * policy_losses).sum(), (weights * value_losses).sum()
    entropy = (weights * entropies).sum()
    loss = policy_loss + cfg.value_coefficient * value_loss - cfg.entropy_coefficient * entropy
    with torch.no_grad():
        outside = (ratios < 1.0 - cfg.clip) | (ratios > 1.0 + cfg.clip)
        sums = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratios - 1.0 - log_ratios).sum(),
            "clip_fraction": outside.sum(),
            "rows": counts.sum(),
        }
        metrics = {name: tensor.detach().double() for name, tensor in sums.items()}
    return PpoLoss(loss / normaliser, ratios.detach(), metrics)


def _evaluate(
    params: Tensor, samples: Tensor, masks: Tensor | None, choices: Sequence[int], continuous: int
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the samples and the entropies, both [rows]."""
    log_probs, entropies = params.new_zeros(len(params)), params.new_zeros(len(params))
    width, heads = sum(choices), len(choices)
    logits = params[:, :width].clamp_min(FORBIDDEN)
    if masks is not None:
        logits = torch.where(masks, logits, FORBIDDEN)
    for head, part in enumerate(torch.split(logits, list(choices), 1)):
        chosen, entropy = evaluate_choices(part, samples[:, head : head + 1].long())
        log_probs, entropies = log_probs + chosen, entropies + entropy
    if continuous:
        means, log_stds = params[:, width : width + continuous], params[:, width + continuous :]
        chosen, entropy = evaluate_normals(means, log_stds, samples[:, heads:])
        log_probs, entropies = log_probs + chosen, entropies + entropy
    return log_probs, entropies


def _value_losses(values: Tensor, old: Tensor, returns: Tensor, cfg: PPOConfig) -> Tensor:
    """The value loss of each row, summed over its critics: [rows]."""

    def fit(found: Tensor) -> Tensor:
        if cfg.value_loss in ("huber", "huber_clipped"):
            return _huber(found, returns, cfg.huber_delta)
        return 0.5 * (found - returns).square()

    losses = fit(values)
    if cfg.value_loss in ("clipped", "huber_clipped"):
        near = old + (values - old).clamp(-cfg.value_clip, cfg.value_clip)
        losses = torch.maximum(losses, fit(near))
    return losses if losses.ndim == 1 else losses.sum(1)


def _huber(values: Tensor, returns: Tensor, delta: float) -> Tensor:
    if delta == 0.0:
        return torch.zeros_like(values)
    return huber_loss(values, returns, reduction="none", delta=delta)
