"""Decision Transformer: learns from recorded episodes what was done on the way to which return.

Every sequence of a batch is a stretch of an episode: returns to go, observations, actions. The
policy predicts each action from what comes before it; the loss is the negative log-likelihood of
choices and the squared error (or the negative log-likelihood) of numbers. Asked for a high return
it then does what was done in episodes that had one. With a percentile it is behaviour cloning on
the best episodes: the same network and loss, but it is not told any return.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fugu.core.intervals import (
    CheckedConfig,
    FiniteFloat,
    Interval,
    NonNegativeFloat,
    PositiveInt,
    PositiveOrInfinite,
)
from fugu.data.sequences import Sequences
from fugu.policies.decision_transformer import DecisionTransformer

Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class DecisionTransformerConfig(CheckedConfig):
    """Settings of the Decision Transformer."""

    section: ClassVar[str] = "train"

    data: Path = Path()
    """The folder of recorded episodes, as `fugu record ENV --data FOLDER` writes it."""
    batch_size: PositiveInt = 64
    """Sequences of a step of the optimiser."""
    batches: PositiveInt = 50
    """Steps of the optimiser in an update."""
    percentile: Annotated[float, Interval(0.0, 100.0, above=True)] | None = None
    """Behaviour cloning on the episodes of highest return that have this share of all steps, in
    percent, without any return to go; a Decision Transformer of all episodes if not given."""
    loss: Literal["mse", "normal"] = "mse"
    """How numbers are fitted: squared error, or the likelihood of a normal. Choices always have
    their likelihood."""
    return_scale: NonNegativeFloat = 0.0
    """What returns to go are divided by; 0: the largest of the data."""
    target: FiniteFloat | None = None
    """The return that evaluations ask for; the highest of the data if not given."""
    max_gradient_norm: PositiveOrInfinite = 0.25
    """Gradients are scaled down to this norm."""


@dataclass(frozen=True)
class DecisionBatch:
    """Sequences as tensors, `[batch, window, ...]`."""

    observations: Tensor
    samples: Tensor
    returns: Tensor
    times: Tensor
    mask: Tensor


def to_batch(
    policy: DecisionTransformer, sequences: Sequences, device: torch.device
) -> DecisionBatch:
    """Sequences on the policy's device, actions as the samples that give them."""
    actions = sequences.actions
    samples = policy.distribution.to_samples(actions.reshape(-1, actions.shape[-1]))
    samples = samples.reshape(*actions.shape[:2], -1)
    arrays = (sequences.observations, samples, sequences.returns, sequences.times, sequences.mask)
    return DecisionBatch(*(torch.from_numpy(array).to(device) for array in arrays))


def decision_loss(
    policy: DecisionTransformer, batch: DecisionBatch, cfg: DecisionTransformerConfig
) -> tuple[Tensor, Metrics]:
    """The mean loss of all steps that are there, and what there is to say of it."""
    params = policy.forward_sequences(
        batch.observations, batch.samples, batch.returns, batch.times, batch.mask
    )
    params, samples = params[batch.mask].float(), batch.samples[batch.mask]  # [steps, ...]
    loss, metrics = params.new_zeros(()), Metrics()
    distribution = policy.distribution
    logits = params[:, : distribution.num_choices]
    chosen = samples[:, : distribution.num_heads].long()
    if distribution.num_heads:
        heads = torch.split(logits, distribution.choices, dim=-1)
        pairs = list(zip(heads, chosen.T, strict=True))
        choices = torch.stack([functional.cross_entropy(head, index) for head, index in pairs])
        right = [head.argmax(-1) == index for head, index in pairs]
        loss = loss + choices.sum()
        metrics["cross_entropy"] = choices.sum().detach()
        metrics["accuracy"] = torch.stack(right).float().mean()
    if distribution.num_continuous:
        numbers, error = number_loss(policy, params, samples, cfg.loss)
        loss = loss + numbers
        metrics["squared_error"] = error
    return loss, metrics | {"loss": loss.detach()}


def number_loss(
    policy: DecisionTransformer, params: Tensor, samples: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """The loss of the actions' numbers, and their mean squared error.

    Squashed numbers are compared after the squashing, in units of half their range.
    """
    distribution = policy.distribution
    means = params[:, distribution.num_choices : distribution.num_outputs]
    log_stds = params[:, distribution.num_outputs :]
    raw = samples[:, distribution.num_heads :]
    squashed = distribution.squashed.bool()
    said, meant = (torch.where(squashed, x.tanh(), x) for x in (means, raw))
    error = (said - meant).square().mean()
    # With a squared error the deviation alone is fitted by likelihood: what is drawn spreads as
    # much as the prediction errs.
    centre = means if kind == "normal" else means.detach()
    deviations = (raw - centre) * torch.exp(-log_stds)
    likelihood = (0.5 * deviations.square() + log_stds).sum(-1).mean()
    loss = likelihood if kind == "normal" else error + likelihood - likelihood.detach()
    return loss, error.detach()


class DecisionLearner:
    """Improves one policy from batches of sequences.

    Args:
        policy: To be improved; it leaves nothing out but while it learns.
        optimiser: Of its parameters.
        cfg: The settings.
    """

    def __init__(
        self,
        policy: DecisionTransformer,
        optimiser: torch.optim.Optimizer,
        cfg: DecisionTransformerConfig,
    ) -> None:
        self.policy, self.optimiser, self.cfg = policy.eval(), optimiser, cfg
        self._parameters = [p for p in policy.parameters() if p.requires_grad]

    def update(self, drawn: list[Sequences], device: torch.device) -> dict[str, float]:
        """One step of the optimiser for each batch; means of what there is to say."""
        sums: dict[str, list[Tensor]] = {}
        self.policy.train()
        try:
            for sequences in drawn:
                for name, value in self._step(to_batch(self.policy, sequences, device)).items():
                    sums.setdefault(name, []).append(value)
        finally:
            self.policy.eval()
        return {name: float(torch.stack(found).mean()) for name, found in sums.items()}

    def _step(self, batch: DecisionBatch) -> Metrics:
        self.optimiser.zero_grad(set_to_none=True)
        loss, metrics = decision_loss(self.policy, batch, self.cfg)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self.cfg.max_gradient_norm)
        self.optimiser.step()
        return metrics | {"gradient_norm": norm.detach()}
